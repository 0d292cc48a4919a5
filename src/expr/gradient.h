/* SPDX-License-Identifier: MIT */
/*
 * Derivatives of a score expression, by reverse accumulation over its IR: with respect to `score`, and to every
 * element of a floating-point capture that it reads. Parameters have none.
 *
 * At kinks they are PyTorch's: min and max of equal operands give each a half; abs has 0 at 0; clamp(x, lo, hi) passes
 * all at its ends and its bounds get theirs only outside; floor and ceil have 0; the condition of a choice has none;
 * pow(x, 0) has 0 for x, and pow(0, y >= 0) has 0 for y. A branch that a choice, min, max or clamp does not take
 * contributes exactly 0, never 0 * inf: there PyTorch gives NaN.
 */
#ifndef ATTUNE_EXPR_GRADIENT_H
#define ATTUNE_EXPR_GRADIENT_H

#include "expr/expr.h"

/* d result / d capture[indices]. Two reads of one capture are two entries, whose elements may be the same. */
typedef struct attune__gradient_read {
    uint32_t capture; /* the node that reads: its symbol, and its operands, the indices */
    uint32_t factor;
} attune__gradient_read;

typedef struct attune__gradient {
    attune_allocator allocator;
    attune_expr *expr;   /* the nodes of all results; its symbols are those of the score expression, in its order */
    uint32_t score;      /* d result / d score */
    uint32_t read_count; /* floating-point captures alone, and only those that a derivative leads to */
    attune__gradient_read *reads;
} attune__gradient;

/* UNSUPPORTED if the derivatives have more than ATTUNE_EXPR_MAX_NODES nodes. */
attune_status attune__gradient_create(const attune_expr *expr, attune__gradient **gradient);
void attune__gradient_destroy(attune__gradient *gradient); /* accepts NULL */

/* What ATTUNE_EXPR_GRADIENT prints: derivatives as text, one a line: "d score = ...", "d bias[q - kv, h] = ...". */
attune_status attune__gradient_print(const attune_expr *expr, char *buffer, size_t size, size_t *needed);

/*
 * Evaluates a row, as attune__expr_score_row_*: `score` is what the score expression was given, `d` the derivative of a
 * loss with respect to what it gave; d is replaced by the derivative with respect to `score`, and sums[symbol]
 * (contiguous in the shape of the capture; NULL = not wanted) receive what is due to each element that was read. Pairs
 * whose d is 0 give 0. `bindings` are the score expression's; scratch is
 * attune__expr_scratch_size of its expr.
 */
void attune__gradient_row_f32(const attune__functions *functions, const attune__gradient *gradient,
                              const attune__bindings *bindings, const attune__row *row, int32_t kv0, size_t count,
                              void *scratch, const float *score, float *d, double *const *sums);
void attune__gradient_row_f64(const attune__gradient *gradient, const attune__bindings *bindings,
                              const attune__row *row, int32_t kv0, size_t count, void *scratch, const double *score,
                              double *d, double *const *sums);

#endif
