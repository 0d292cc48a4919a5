/* SPDX-License-Identifier: MIT */
/* Overflow-checked sums and products of untrusted values: false on overflow, which leaves the result undefined. */
#ifndef ATTUNE_BASE_CHECKED_H
#define ATTUNE_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool attune__add(int64_t *sum, int64_t more)
{
    return !__builtin_add_overflow(*sum, more, sum);
}
static inline bool attune__multiply(int64_t *product, int64_t factor)
{
    return !__builtin_mul_overflow(*product, factor, product);
}
static inline bool attune__multiply_size(size_t *product, size_t factor)
{
    return !__builtin_mul_overflow(*product, factor, product);
}

/* |value|, also of INT64_MIN, whose negation overflows. */
static inline uint64_t attune__magnitude(int64_t value)
{
    return value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
}

/* Extends the lowest or highest element offset by a dimension of `size` elements, at least 1. */
static inline bool attune__reach(int64_t size, int64_t stride, int64_t *lowest, int64_t *highest)
{
    int64_t reach = size - 1;
    return attune__multiply(&reach, stride) && attune__add(reach < 0 ? lowest : highest, reach);
}

#endif
