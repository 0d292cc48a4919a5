/* SPDX-License-Identifier: MIT */
/* Exact sums of f32 (gradient.h), for the kernel that adds and the one that reads them. */
#ifndef ATTUNE_EXACT_SUM_H
#define ATTUNE_EXACT_SUM_H

#include "prelude.h"

#define SUM_WORDS          16u /* uint, of which the integer has SUM_DIGITS */
#define SUM_DIGITS         12u
#define SUM_NON_FINITE     15u
#define SUM_NAN            1u
#define SUM_INFINITY       2u
#define SUM_MINUS_INFINITY 4u

/* An addition carries into the next word when its own wraps: in the end every carry was added once, in any order. */
ATTUNE_FUNCTION void exact_sum_add(volatile __global uint *sum, float value)
{
    const uint bits = as_uint(value), magnitude = bits & 0x7fffffffu, exponent = magnitude >> 23;
    const int negative = bits != magnitude;
    if (magnitude == 0u)
        return;
    if (exponent == 255u) {
        atomic_or(sum + SUM_NON_FINITE, magnitude > 0x7f800000u ? SUM_NAN
                                        : negative              ? SUM_MINUS_INFINITY
                                                                : SUM_INFINITY);
        return;
    }
    const uint mantissa = (magnitude & 0x7fffffu) | (exponent != 0u ? 0x800000u : 0u);
    const uint first = max(exponent, 1u) - 1u, shift = first % 32u;
    uint low = mantissa << shift, high = shift > 8u ? mantissa >> (32u - shift) : 0u;
    for (uint word = first / 32u; word < SUM_DIGITS && (low | high) != 0u; word++) {
        uint carry = 0u;
        if (low != 0u) {
            const uint old = atomic_add(sum + word, negative ? 0u - low : low);
            carry = (negative ? old < low : old + low < old) ? 1u : 0u;
        }
        low = high + carry;
        high = 0u;
    }
}

#endif
