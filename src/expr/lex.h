/* SPDX-License-Identifier: MIT */
/* Text to tokens, and messages that point into the text. */
#ifndef ATTUNE_EXPR_LEX_H
#define ATTUNE_EXPR_LEX_H

#include <attune/attune.h>

typedef enum attune__token_kind {
    ATTUNE__TOKEN_END,
    ATTUNE__TOKEN_NAME,
    ATTUNE__TOKEN_INT,
    ATTUNE__TOKEN_FLOAT,
    ATTUNE__TOKEN_SIGN /* an operator or bracket, or what somebody might take for one */
} attune__token_kind;

typedef struct attune__token {
    attune__token_kind kind;
    uint32_t at, length; /* in the text */
    uint32_t integer;    /* up to 2^31: -2147483648 is a literal behind a sign */
    double real;
    char sign[3];
} attune__token;

/* A text under parsing. The text of a preset points back at the call that named it. */
typedef struct attune__source {
    const char *text;
    uint32_t length;
    const struct attune__source *caller;
    uint32_t call_at;
    const char *preset; /* signature */
} attune__source;

/* Reads the token at or behind *position and moves *position past it. PARSE_ERROR. */
attune_status attune__lex(const attune__source *source, uint32_t *position, attune__token *token);

/* Fails with PARSE_ERROR: line and column, what is wrong, the line, a caret, and the hint if it is not NULL. In a
 * preset the place is that of its call. */
attune_status attune__source_fail(const attune__source *source, uint32_t at, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
