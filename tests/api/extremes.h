/* SPDX-License-Identifier: MIT */
/* Figures at the ends of 64 bits, for what must be refused or harmless. */
#ifndef ATTUNE_TESTS_API_EXTREMES_H
#define ATTUNE_TESTS_API_EXTREMES_H

#include <stdint.h>

#include "support/random_expr.h"

static const int64_t extremes[] = {
    INT64_MIN,        INT64_MIN + 1,    INT64_MIN / 2, -(INT64_C(1) << 32), -1,       0, 1, 2, 3, INT64_C(1) << 31,
    INT64_C(1) << 32, INT64_C(1) << 61, INT64_MAX / 2, INT64_MAX - 1,       INT64_MAX};

static inline int64_t extreme(uint64_t *state)
{
    return extremes[random_expr_between(state, 0, sizeof extremes / sizeof *extremes - 1)];
}

/* One to three figures of a view become extreme. */
static inline void distort(uint64_t *state, uint32_t rank, int64_t *size, int64_t *stride, uint64_t *offset)
{
    for (int64_t n = random_expr_between(state, 1, 3); n > 0; n--) {
        const int64_t which = random_expr_between(state, 0, offset ? 6 : 5);
        if (which == 6)
            *offset = (uint64_t)extreme(state) & ~UINT64_C(7);
        else
            *((which < 3 ? size : stride) + random_expr_between(state, 0, rank - 1)) = extreme(state);
    }
}

#endif
