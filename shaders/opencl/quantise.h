/* SPDX-License-Identifier: MIT */
/*
 * Codes of values, as src/base/quant.c has them. Floats are bits where a driver's arithmetic may differ: divisions need
 * not be rounded to nearest, and denormals may be lost.
 */
#ifndef ATTUNE_QUANTISE_H
#define ATTUNE_QUANTISE_H

#include "quantised.h"

#define MAGNITUDE    0x7fffffffu
#define INFINITE     0x7f800000u
#define NOT_A_NUMBER 0x7fc00000u

/* The exponent of a finite number that is not 0, biased by 127, and its fraction of 24 bits. */
ATTUNE_FUNCTION int split_float(uint magnitude, uint *fraction)
{
    const int exponent = (int)(magnitude >> 23), shift = (int)clz(magnitude & 0x7fffffu) - 8;
    *fraction = exponent > 0 ? (magnitude & 0x7fffffu) | 0x800000u : magnitude << shift;
    return exponent > 0 ? exponent : 1 - shift;
}

/* x without its last bits: rounded to nearest, ties to even; dropped: 1 to 31. */
ATTUNE_FUNCTION uint round_bits(uint x, uint dropped)
{
    const uint rest = x & ((1u << dropped) - 1u), half_place = 1u << (dropped - 1u), whole = x >> dropped;
    return whole + (rest > half_place || (rest == half_place && (whole & 1u) != 0u) ? 1u : 0u);
}

/* x / y, rounded to nearest, ties to even. */
ATTUNE_FUNCTION uint divide(uint x, uint y)
{
    const uint sign = (x ^ y) & 0x80000000u, a = x & MAGNITUDE, b = y & MAGNITUDE;
    if (a > INFINITE || b > INFINITE || (a == b && (a == 0u || a == INFINITE)))
        return NOT_A_NUMBER;
    if (a == INFINITE || b == 0u)
        return sign | INFINITE;
    if (a == 0u || b == INFINITE)
        return sign;
    uint numerator, divisor;
    int exponent = split_float(a, &numerator) - split_float(b, &divisor) + 126;
    /* Between 2^25 and 2^27, with a last bit for the remainder. */
    const ulong dividend = (ulong)numerator << 26;
    const uint quotient = (uint)(dividend / divisor) | (dividend % divisor != 0ul ? 1u : 0u);
    int dropped = 2;
    if (quotient >= 1u << 26) {
        exponent++;
        dropped++;
    }
    if (exponent > 254)
        return sign | INFINITE;
    dropped = min(dropped + max(1 - exponent, 0), 30);
    return sign | (round_bits(quotient, (uint)dropped) + ((uint)(max(exponent, 1) - 1) << 23));
}

/* Bits of a float in f16. */
ATTUNE_FUNCTION uint half_bits(uint bits)
{
    const uint sign = bits >> 16 & 0x8000u, magnitude = bits & MAGNITUDE, exponent = magnitude >> 23;
    if (magnitude > INFINITE)
        return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return sign | 0x7c00u;
    if (exponent >= 113u)
        return sign | (round_bits(magnitude, 13u) - 0x1c000u);
    /* Below 2^-14: a multiple of 2^-24. */
    return exponent < 102u ? sign : sign | round_bits((magnitude & 0x7fffffu) | 0x800000u, 126u - exponent);
}

ATTUNE_FUNCTION uint largest_code(uint type)
{
    return as_uint(type == I8 ? 127.0f : type == F8E4M3 ? 448.0f : 57344.0f);
}

ATTUNE_FUNCTION uint f8_of(uint type, uint bits)
{
    const uint sign = bits >> 24 & 0x80u, magnitude = bits & MAGNITUDE, bias = type == F8E4M3 ? 7u : 15u;
    const uint fraction_bits = type == F8E4M3 ? 3u : 2u, exponent = magnitude >> 23;
    if (magnitude > INFINITE)
        return sign | 0x7fu;
    if (magnitude >= largest_code(type))
        return sign | (type == F8E4M3 ? 0x7eu : 0x7bu);
    if (exponent > 127u - bias)
        return sign | (round_bits(magnitude, 23u - fraction_bits) - ((127u - bias) << fraction_bits));
    /* Below the least normal number: multiples of its last place. */
    const uint dropped = min(23u - fraction_bits + 128u - bias - exponent, 31u);
    return sign | round_bits((magnitude & 0x7fffffu) | (exponent > 0u ? 0x800000u : 0u), dropped);
}

/* The nearest of value / factor, within the type's range. */
ATTUNE_FUNCTION uint code_of(uint type, uint value, uint factor)
{
    const uint x = (factor & MAGNITUDE) == 0u ? 0u : divide(value, factor), magnitude = x & MAGNITUDE;
    if (type != I8)
        return f8_of(type, x);
    const float whole = magnitude < 0x42fe0000u ? rint(as_float(magnitude)) : 127.0f;
    const int code = magnitude > INFINITE ? 0 : (int)whole;
    return (uint)((x & 0x80000000u) != 0u ? -code : code) & 0xffu;
}

/* A block's factor in f16, and what its values are multiplied by, from its furthest value: NaN both if one of them is
 * not finite. */
ATTUNE_FUNCTION uint block_factors(uint type, uint most, int finite, uint *inverse)
{
    const uint factor = type == Q8_0 ? divide(most & MAGNITUDE, as_uint(127.0f)) : divide(most, as_uint(-8.0f));
    const uint inverted = divide(as_uint(1.0f), factor);
    /* A factor so small that this is infinite is 0 in f16. */
    *inverse = !finite ? NOT_A_NUMBER : (inverted & MAGNITUDE) == INFINITE ? 0u : inverted;
    return half_bits(finite ? factor : NOT_A_NUMBER);
}

ATTUNE_FUNCTION uint code_in_block(uint type, float value, uint inverse)
{
    const float x = inverse == NOT_A_NUMBER ? 0.0f : value * as_float(inverse);
    if (type == Q4_0)
        return inverse == NOT_A_NUMBER ? 0u : min((uint)(x + 8.5f), 15u);
    const float whole = trunc(x), rest = fabs(x - whole);
    return (uint)((int)whole + (rest < 0.5f ? 0 : x < 0.0f ? -1 : 1)) & 0xffu; /* ties away from 0 */
}

#endif
