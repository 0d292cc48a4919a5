/* SPDX-License-Identifier: MIT */
#include "base/text.h"

#include <stdio.h>

attune__text attune__text_begin(char *buffer, size_t size)
{
    if (size)
        buffer[0] = '\0';
    return (attune__text){buffer, size, 0};
}

void attune__text_add(attune__text *text, const char *format, ...)
{
    size_t used = text->length < text->size ? text->length : text->size;
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(text->size ? text->buffer + used : NULL, text->size - used, format, arguments);
    va_end(arguments);
    if (added > 0)
        text->length += (size_t)added;
}

void attune__text_add_json(attune__text *text, const char *string)
{
    attune__text_add(text, "\"");
    for (const unsigned char *c = (const unsigned char *)string; *c; c++) {
        if (*c == '"' || *c == '\\')
            attune__text_add(text, "\\%c", *c);
        else if (*c < 0x20)
            attune__text_add(text, "\\u%04x", (unsigned)*c);
        else
            attune__text_add(text, "%c", *c);
    }
    attune__text_add(text, "\"");
}

void attune__text_end(const attune__text *text, size_t *needed)
{
    if (needed)
        *needed = text->length + 1;
}
