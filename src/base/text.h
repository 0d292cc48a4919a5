/* SPDX-License-Identifier: MIT */
/*
 * Text output into a caller's buffer: as with snprintf, bytes that do not fit are counted, not written. Floats as text.
 */
#ifndef ATTUNE_BASE_TEXT_H
#define ATTUNE_BASE_TEXT_H

#include <stddef.h>

#include "base/printf.h"

typedef struct attune__text {
    char *buffer;
    size_t size;
    size_t length; /* of the whole text, without the NUL */
} attune__text;

/* Starts a text; the buffer holds an empty string at once. buffer may be NULL if size is 0. */
attune__text attune__text_begin(char *buffer, size_t size);
/* text may be NULL: nothing is written. */
void attune__text_add(attune__text *text, const char *format, ...) ATTUNE__PRINTF(2, 3);
/* Adds a string as a JSON string, including the quotes. */
void attune__text_add_json(attune__text *text, const char *string);
/* Stores the bytes needed, including the NUL, if `needed` is not NULL. */
void attune__text_end(const attune__text *text, size_t *needed);

/* Bytes of the shortest decimal of any float or double, with a point and a NUL. */
#define ATTUNE__FLOAT_TEXT 32

/* The shortest decimal that reads back as the number; always with a point or an exponent, in any locale. */
void attune__float_text(float value, char text[ATTUNE__FLOAT_TEXT]);
void attune__double_text(double value, char text[ATTUNE__FLOAT_TEXT]);

#endif
