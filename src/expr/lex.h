/* SPDX-License-Identifier: MIT */
/* Text to tokens, and messages that point into the text. */
#ifndef ATTUNE_EXPR_LEX_H
#define ATTUNE_EXPR_LEX_H

#include <attune/attune.h>

#include "base/printf.h"

typedef enum attune__token_kind {
    ATTUNE__TOKEN_END,
    ATTUNE__TOKEN_NAME,
    ATTUNE__TOKEN_INT,
    ATTUNE__TOKEN_FLOAT,
    ATTUNE__TOKEN_SIGN /* an operator or bracket, also of other languages, for the message */
} attune__token_kind;

typedef struct attune__token {
    attune__token_kind kind;
    uint32_t at, length; /* in the text */
    uint32_t integer;    /* up to 2^31, since -2147483648 is a sign and a literal */
    double real;
    char sign[3];
} attune__token;

/* A text that is parsed. The text of a preset refers to the call that names it. */
typedef struct attune__source {
    const char *text;
    uint32_t length;
    const struct attune__source *caller;
    uint32_t call_at;
    const char *preset; /* signature */
} attune__source;

/* Reads the next token from *position on, and advances *position. PARSE_ERROR. */
attune_status attune__lex(const attune__source *source, uint32_t *position, attune__token *token);

/* Fails with PARSE_ERROR: line and column, the error, the line, a caret, and the hint if it is not NULL. In a preset
 * the position is that of its call. */
attune_status attune__source_fail(const attune__source *source, uint32_t at, const char *hint, const char *format, ...)
    ATTUNE__PRINTF(4, 5);

#endif
