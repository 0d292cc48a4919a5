/* SPDX-License-Identifier: MIT */
/* The range of a capture over a box of indices. */
#ifndef ATTUNE_EXPR_RANGES_H
#define ATTUNE_EXPR_RANGES_H

#include "expr/expr.h"

/* `index` has an interval for each dimension; indices out of range read 0. *looked is incremented by the elements and
 * table entries that were read. */
attune__interval attune__ranges_query(const attune__ranges *ranges, const attune__bindings *bindings, uint32_t symbol,
                                      const attune__interval *index, uint64_t *looked);

#endif
