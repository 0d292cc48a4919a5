/* SPDX-License-Identifier: MIT */
#include "base/text.h"

#include <math.h>
#include <stdarg.h>
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
    if (!text)
        return;
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

/* The expression language parses a double and rounds it to float, C compilers parse a float: the results can differ. */
static bool reads_back(const char *digits, double value, bool single)
{
    const double read = strtod(digits, NULL);
    return single ? (float)read == (float)value && strtof(digits, NULL) == (float)value : read == value;
}

static void real_text(double value, bool single, char text[ATTUNE__FLOAT_TEXT])
{
    if (!isfinite(value)) {
        snprintf(text, ATTUNE__FLOAT_TEXT, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    char digits[ATTUNE__FLOAT_TEXT];
    const int most = single ? 9 : 17;
    int precision = 1;
    /* The fewest digits that read back exactly. The decimal point is the locale's until it is replaced. */
    for (; precision < most; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision - 1, value);
        if (reads_back(digits, value, single))
            break;
    }
    snprintf(digits, sizeof digits, "%.*e", precision - 1, value);
    const int power = atoi(strchr(digits, 'e') + 1);
    const int decimals = precision - 1 - power;
    if (power >= -4 && power < 8) /* 50.0, not 5e+01 */
        snprintf(digits, sizeof digits, "%.*f", decimals > 0 ? decimals : 0, value);
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

void attune__float_text(float value, char text[ATTUNE__FLOAT_TEXT])
{
    real_text((double)value, true, text);
}

void attune__double_text(double value, char text[ATTUNE__FLOAT_TEXT])
{
    real_text(value, false, text);
}
