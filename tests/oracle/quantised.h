/* SPDX-License-Identifier: MIT */
/* Quantised types, by the definitions of their formats. */
#ifndef ATTUNE_TESTS_ORACLE_QUANTISED_H
#define ATTUNE_TESTS_ORACLE_QUANTISED_H

#include <attune/attune.h>
#include <math.h>

static inline size_t row_bytes(attune_dtype dtype, int64_t columns)
{
    return (size_t)columns / attune_dtype_block(dtype) * attune_dtype_size(dtype);
}

static inline bool in_blocks(attune_dtype dtype)
{
    return attune_dtype_block(dtype) > 1;
}

static inline bool has_factors(attune_dtype dtype)
{
    return dtype == ATTUNE_F8E4M3 || dtype == ATTUNE_F8E5M2 || dtype == ATTUNE_I8;
}

/* The value of a code, by the formats' definitions. */
static inline double decode_byte(attune_dtype dtype, unsigned code)
{
    const int fraction_bits = dtype == ATTUNE_F8E4M3 ? 3 : 2, bias = dtype == ATTUNE_F8E4M3 ? 7 : 15;
    if (dtype == ATTUNE_I8)
        return (double)(int8_t)code;
    const int exponent = (int)(code & 127) >> fraction_bits, fraction = (int)code & ((1 << fraction_bits) - 1);
    const double magnitude = exponent ? ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits)
                                      : ldexp(fraction, 1 - bias - fraction_bits);
    return code & 128 ? -magnitude : magnitude;
}

#endif
