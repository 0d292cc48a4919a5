/* SPDX-License-Identifier: MIT */
/*
 * Derivatives of a score expression, by reverse accumulation over its IR: with respect to `score`, and to every element
 * of a floating-point capture that it reads. Parameters have none.
 *
 * Where a function is not differentiable, they are PyTorch's: for equal operands of min and max, each has half; abs has
 * 0 at 0; clamp(x, lo, hi) has 1 for x at its bounds, and the bounds have theirs only outside; floor and ceil have 0;
 * the condition of a choice has none; pow(x, 0) has 0 for x, and pow(0, y >= 0) has 0 for y. Unlike in PyTorch, where 0
 * * inf gives NaN, a branch that a choice, min, max or clamp does not take contributes exactly 0.
 */
#ifndef ATTUNE_EXPR_GRADIENT_H
#define ATTUNE_EXPR_GRADIENT_H

#include "expr/expr.h"

/* d result / d capture[indices]. Two reads of one capture are two entries, and may read the same element. */
typedef struct attune__gradient_read {
    uint32_t capture; /* the capture node: it has the symbol and, as its operands, the indices */
    uint32_t factor;
} attune__gradient_read;

typedef struct attune__gradient {
    attune_allocator allocator;
    attune_expr *expr;   /* the nodes of all results; its symbols are those of the score expression, in its order */
    uint32_t score;      /* d result / d score */
    uint32_t read_count; /* of floating-point captures that have a derivative */
    attune__gradient_read *reads;
} attune__gradient;

/* UNSUPPORTED if the derivatives have more than ATTUNE_EXPR_MAX_NODES nodes. */
attune_status attune__gradient_create(const attune_expr *expr, attune__gradient **gradient);
void attune__gradient_destroy(attune__gradient *gradient); /* accepts NULL */
/* The variables, as bits, on which the derivatives depend. */
uint16_t attune__gradient_uses(const attune__gradient *gradient);
/* The capture reads whose indices depend on no row, key or product; as many as there is space for. */
attune__uniform_reads attune__gradient_uniform_reads(const attune__gradient *gradient);

/* Prints derivatives as text, for ATTUNE_EXPR_GRADIENT, one per line: "d score = ...", "d bias[q - kv, h] = ...". */
attune_status attune__gradient_print(const attune_expr *expr, char *buffer, size_t size, size_t *needed);

/*
 * Differentiates a row, as attune__expr_score_row_*: `score` has the inputs of the score expression, `d` the
 * derivatives of a loss with respect to its results. d is replaced by the derivatives with respect to `score`. The
 * gradients of the capture elements that were read are added to sums[symbol] (contiguous in the shape of the capture;
 * NULL = not requested). Pairs whose d is 0 contribute 0. `bindings` are the score expression's; scratch has
 * attune__expr_scratch_size of the gradient's expr.
 */
void attune__gradient_row_f32(const attune__functions *functions, const attune__gradient *gradient,
                              const attune__bindings *bindings, const attune__row *row, int32_t kv0, size_t count,
                              void *scratch, const float *score, float *d, double *const *sums);
void attune__gradient_row_f64(const attune__gradient *gradient, const attune__bindings *bindings,
                              const attune__row *row, int32_t kv0, size_t count, void *scratch, const double *score,
                              double *d, double *const *sums);

#endif
