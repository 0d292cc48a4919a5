/* SPDX-License-Identifier: MIT */
/* Gradients by the definition: sums over all pairs, a row at a time. The derivative of the score expression is the
 * library's, which tests/expr/gradient.c holds against dual numbers. */
#ifndef TESTS_CASES_GRADIENTS_H
#define TESTS_CASES_GRADIENTS_H

#include "tests/oracle/reference.h"

/* Caller's memory, shaped as q, k, v and the captures; d_captures NULL = not wanted. cancelled, NULL or shaped as q, k
 * and the captures: the sums of |terms| that cancel in an element. dS is a difference of two sums over Dv, which a row
 * of one key has exactly and no order of adding has: float32 leaves that much times its rounding. */
typedef struct gradient_result {
    double *d_q, *d_k, *d_v;
    double *cancelled[2 + ATTUNE_EXPR_MAX_SYMBOLS];
    double *d_captures[ATTUNE_EXPR_MAX_SYMBOLS];
    double *d_sinks; /* [heads]; NULL = not wanted */
    /* NULL or [heads]: by how much roundings of O and of each exponent may move d_sinks: of a row, as that of a pair in
     * tests/oracle/reference.h; of rows, the root of the sum of squares. */
    double *sinks_moved;
} gradient_result;

/* REFERENCE_NAIVE: S, softmax and sums in float32; P rounded to the dtype of V, dS to that of K, o and
 * the results but for those of captures to their own. d_lse may be NULL. */
bool gradients_compute(const attention *a, const array *d_o, const array *d_lse, reference_precision precision,
                       const gradient_result *result, failure *why);

#endif
