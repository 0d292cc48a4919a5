/* SPDX-License-Identifier: MIT */
/* Tokens and messages. Messages contain printable ASCII only, so that the caret is in the right column. */
#include "expr/lex.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

/* Columns of the source that a message shows. */
#define WINDOW 100
/* The limit on characters of a literal, more than a double can represent. */
#define LITERAL 120

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

attune_status attune__source_fail(const attune__source *source, uint32_t at, const char *hint, const char *format, ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);

    char inside[160] = "";
    if (source->caller)
        snprintf(inside, sizeof inside, "in the preset %s: ", source->preset);
    for (; source->caller; source = source->caller)
        at = source->call_at;

    uint32_t line = 1, start = 0;
    for (uint32_t i = 0; i < at; i++)
        if (source->text[i] == '\n') {
            line++;
            start = i + 1;
        }
    uint32_t end = at;
    while (end < source->length && source->text[end] != '\n')
        end++;
    uint32_t from = at - start > WINDOW / 2 ? at - WINDOW / 2 : start;
    uint32_t to = end - from > WINDOW ? from + WINDOW : end;

    char shown[WINDOW + 1];
    for (uint32_t i = from; i < to; i++) {
        char c = source->text[i];
        shown[i - from] = c == '\t' || c == '\r' ? ' ' : c < ' ' || c > '~' ? '?' : c;
    }
    shown[to - from] = '\0';

    const char *left = from > start ? "..." : "", *right = to < end ? "..." : "";
    int caret = (int)(strlen(left) + at - from);
    return attune__fail(ATTUNE_PARSE_ERROR, "line %u, column %u: %s%s\n  %s%s%s\n  %*s^%s%s", line, at - start + 1,
                        inside, what, left, shown, right, caret, "", hint ? "\nhint: " : "", hint ? hint : "");
}

/* strtod uses the decimal point of the process's locale; the language always uses a point. */
static double read_float(const char *digits)
{
    char sample[16], local[LITERAL + 16];
    snprintf(sample, sizeof sample, "%.1f", 0.5);
    size_t point = strcspn(sample + 1, "5");
    attune__text text = attune__text_begin(local, sizeof local);
    for (; *digits; digits++) {
        if (*digits == '.')
            attune__text_add(&text, "%.*s", (int)point, sample + 1);
        else
            attune__text_add(&text, "%c", *digits);
    }
    return strtod(local, NULL);
}

static attune_status lex_number(const attune__source *source, attune__token *token)
{
    const char *text = source->text + token->at;
    uint32_t n = 0;
    bool real = false;
    while (is_digit(text[n]))
        n++;
    if (text[n] == '.') {
        real = true;
        n++;
        while (is_digit(text[n]))
            n++;
    }
    if ((text[n] == 'e' || text[n] == 'E') &&
        (is_digit(text[n + 1]) || ((text[n + 1] == '+' || text[n + 1] == '-') && is_digit(text[n + 2])))) {
        real = true;
        n += 2;
        while (is_digit(text[n]))
            n++;
    }
    if (is_letter(text[n])) {
        bool suffix = (text[n] == 'f' || text[n] == 'F') && !is_letter(text[n + 1]) && !is_digit(text[n + 1]);
        return attune__source_fail(source, token->at + n,
                                   suffix ? "literals have no suffix: write 1.5, not 1.5f" : NULL,
                                   "expected an operator after the number but found '%c'", text[n]);
    }
    token->length = n;
    if (n > LITERAL)
        return attune__source_fail(source, token->at, NULL, "the number has %u characters; the limit is %d", n,
                                   LITERAL);
    char digits[LITERAL + 1];
    memcpy(digits, text, n);
    digits[n] = '\0';
    if (real) {
        token->kind = ATTUNE__TOKEN_FLOAT;
        token->real = read_float(digits);
        if (isinf((float)token->real))
            return attune__source_fail(source, token->at, "infinity is 1.0 / 0.0",
                                       "%s does not fit f32, whose largest value is 3.40282347e+38", digits);
        return ATTUNE_OK;
    }
    token->kind = ATTUNE__TOKEN_INT;
    uint64_t value = 0;
    for (const char *c = digits; *c && value <= UINT32_MAX; c++)
        value = 10 * value + (uint64_t)(*c - '0');
    if (value > UINT64_C(2147483648))
        return attune__source_fail(source, token->at, "write it with a decimal point to make it f32",
                                   "%s does not fit i32, which ends at 2147483647", digits);
    token->integer = (uint32_t)value;
    return ATTUNE_OK;
}

attune_status attune__lex(const attune__source *source, uint32_t *position, attune__token *token)
{
    static const char pairs[][3] = {"&&", "||", "==", "!=", "<=", ">=", "**", "<<", ">>", "->", "++", "//"};
    const char *text = source->text;
    uint32_t at = *position;
    while (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r')
        at++;
    *token = (attune__token){.kind = ATTUNE__TOKEN_SIGN, .at = at, .length = 1};
    char c = text[at];
    if (at >= source->length) {
        token->kind = ATTUNE__TOKEN_END;
        token->length = 0;
    } else if (is_letter(c)) {
        token->kind = ATTUNE__TOKEN_NAME;
        while (is_letter(text[at + token->length]) || is_digit(text[at + token->length]))
            token->length++;
    } else if (is_digit(c) || (c == '.' && is_digit(text[at + 1]))) {
        ATTUNE__TRY(lex_number(source, token));
    } else if (strchr("+-*/%<>=!&|?:()[],.^~;{}", c)) {
        token->sign[0] = c;
        for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
            if (!strncmp(text + at, pairs[i], 2)) {
                /* a --b and a ++b are consecutive signs, not operators of C. */
                if (strcmp(pairs[i], "++")) {
                    token->sign[1] = pairs[i][1];
                    token->length = 2;
                }
                break;
            }
    } else if (c > ' ' && c <= '~') {
        return attune__source_fail(source, at, NULL, "unexpected character '%c'", c);
    } else {
        return attune__source_fail(source, at, "the language is plain ASCII", "unexpected byte 0x%02x",
                                   (unsigned)(unsigned char)c);
    }
    *position = at + token->length;
    return ATTUNE_OK;
}
