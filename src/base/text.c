/* SPDX-License-Identifier: MIT */
#include "base/text.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void attune__float_text(float value, char text[ATTUNE__FLOAT_TEXT])
{
    char digits[ATTUNE__FLOAT_TEXT];
    int precision = 1;
    /* the fewest digits that read back; the decimal point is the locale's until it is replaced */
    for (; precision < 9; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, (double)value);
        if (strtof(digits, NULL) == value)
            break;
    }
    float magnitude = fabsf(value);
    if (magnitude >= 1e-4f && magnitude < 1e8f) {
        /* 50.0, not 5e+01 */
        int decimals = precision - 1;
        float power = 1;
        while (power * 10 <= magnitude) {
            power *= 10;
            decimals--;
        }
        while (power > magnitude) {
            power /= 10;
            decimals++;
        }
        snprintf(digits, sizeof digits, "%.*f", decimals > 0 ? decimals : 0, (double)value);
    }
    if (magnitude < 1e-4f || magnitude >= 1e8f || strtof(digits, NULL) != value)
        snprintf(digits, sizeof digits, "%.*g", precision, (double)value);
    size_t length = 0;
    bool point = false, exponent = false;
    for (const char *c = digits; *c && length + 4 < ATTUNE__FLOAT_TEXT; c++) {
        bool plain = (*c >= '0' && *c <= '9') || *c == '-' || *c == '+' || *c == 'e';
        exponent |= *c == 'e';
        if (!plain && point)
            continue; /* a decimal point of several bytes */
        point |= !plain;
        text[length++] = plain ? *c : '.';
    }
    text[length] = '\0';
    if (!point && !exponent)
        memcpy(text + length, ".0", 3);
}
