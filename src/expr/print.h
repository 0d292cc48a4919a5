/* SPDX-License-Identifier: MIT */
/* Text out of expressions. */
#ifndef ATTUNE_EXPR_PRINT_H
#define ATTUNE_EXPR_PRINT_H

#include "base/text.h"
#include "expr/expr.h"

/* Room for the shortest decimal of any float, a point and a NUL. */
#define ATTUNE__FLOAT_TEXT 32

/* The shortest decimal that reads back as the float; always with a point or an exponent, whatever the locale. */
void attune__float_text(float value, char text[ATTUNE__FLOAT_TEXT]);

/* A node as text. UNSUPPORTED if sharing makes it longer than 1 MiB. */
attune_status attune__print_node(const attune_expr *expr, uint32_t node, attune__text *text);

/* The functions that the emitted text calls, in C99. */
void attune__ctext_prelude(attune__text *text);
attune_status attune__ctext_function(const attune_expr *expr, const char *name, attune__text *text);

#endif
