/* SPDX-License-Identifier: MIT */
/* Codes of values, as src/base/quant.c has them. Floats are bits where a driver's arithmetic may differ: divisions need
 * not be rounded to nearest, and comparisons with NaN are undefined. */
#ifndef ATTUNE_QUANTISE_GLSL
#define ATTUNE_QUANTISE_GLSL

#include "elements.glsl"
#include "quantised.glsl"

const uint MAGNITUDE = 0x7fffffffu, INFINITE = 0x7f800000u, NOT_A_NUMBER = 0x7fc00000u;

/* (high, low) / by and the remainder, for high < by < 2^31. */
uvec2 divide_wide(const in uint high, const in uint low, const in uint by)
{
    uint rest = high, quotient = 0u;
    for (int i = 31; i >= 0; i--) {
        rest = rest << 1 | (low >> i & 1u);
        quotient <<= 1;
        if (rest >= by) {
            rest -= by;
            quotient |= 1u;
        }
    }
    return uvec2(quotient, rest);
}

/* The exponent of a finite number that is not 0, biased by 127, and its fraction of 24 bits. */
int split_float(const in uint magnitude, out uint fraction)
{
    int exponent = int(magnitude >> 23);
    fraction = magnitude & 0x7fffffu;
    if (exponent > 0) {
        fraction |= 0x800000u;
        return exponent;
    }
    int shift = 23 - findMSB(fraction);
    fraction <<= shift;
    return 1 - shift;
}

/* x / y, rounded to nearest, ties to even. */
uint divide(const in uint x, const in uint y)
{
    uint sign = (x ^ y) & 0x80000000u, a = x & MAGNITUDE, b = y & MAGNITUDE;
    if (a > INFINITE || b > INFINITE || (a == b && (a == 0u || a == INFINITE)))
        return NOT_A_NUMBER;
    if (a == INFINITE || b == 0u)
        return sign | INFINITE;
    if (a == 0u || b == INFINITE)
        return sign;
    uint dividend, divisor;
    int exponent = split_float(a, dividend) - split_float(b, divisor) + 126;
    /* Between 2^25 and 2^27, with a last bit for the remainder. */
    uvec2 divided = divide_wide(dividend >> 6, dividend << 26, divisor);
    uint quotient = divided.x | uint(divided.y != 0u);
    int dropped = 2;
    if (quotient >= 1u << 26) {
        exponent++;
        dropped++;
    }
    if (exponent > 254)
        return sign | INFINITE;
    dropped = min(dropped + max(1 - exponent, 0), 30);
    uint rest = quotient & (1u << dropped) - 1u, half_place = 1u << dropped - 1;
    uint fraction = quotient >> dropped;
    if (rest > half_place || (rest == half_place && (fraction & 1u) != 0u))
        fraction++;
    return sign | fraction + (uint(max(exponent, 1) - 1) << 23);
}

uint largest_code(const in uint type)
{
    return floatBitsToUint(type == I8 ? 127.0 : type == F8E4M3 ? 448.0 : 57344.0);
}

uint f8_of(const in uint type, const in uint bits)
{
    const uint sign = bits >> 24 & 0x80u, magnitude = bits & MAGNITUDE;
    const uint fraction_bits = type == F8E4M3 ? 3u : 2u, bias = type == F8E4M3 ? 7u : 15u,
               dropped = 23u - fraction_bits;
    if (magnitude > INFINITE)
        return sign | 0x7fu;
    if (magnitude >= largest_code(type))
        return sign | (type == F8E4M3 ? 0x7eu : 0x7bu);
    /* Below the least normal number: multiples of its last place. */
    if (magnitude < 128u - bias << 23)
        return sign | uint(roundEven(uintBitsToFloat(magnitude) * (type == F8E4M3 ? 512.0 : 65536.0)));
    return sign | (magnitude + (1u << dropped - 1u) - 1u + (magnitude >> dropped & 1u) >> dropped) -
                      (127u - bias << fraction_bits);
}

/* The nearest of value / factor, within the type's range. */
uint code_of(const in uint type, const in uint value, const in uint factor)
{
    uint x = (factor & MAGNITUDE) == 0u ? 0u : divide(value, factor), magnitude = x & MAGNITUDE;
    if (type != I8)
        return f8_of(type, x);
    if (magnitude > INFINITE)
        return 0u;
    float whole = magnitude < 0x42fe0000u ? roundEven(uintBitsToFloat(magnitude)) : 127.0;
    return uint((x & 0x80000000u) != 0u ? -int(whole) : int(whole)) & 0xffu;
}

/* A block's factor in binary16, and what its values are multiplied by, from its furthest value: NaN both if one of
 * them is not finite. */
uint block_factors(const in uint type, const in uint most, const in bool finite, out uint inverse)
{
    uint factor = type == Q8_0 ? divide(most & MAGNITUDE, floatBitsToUint(127.0)) : divide(most, floatBitsToUint(-8.0));
    inverse = divide(floatBitsToUint(1.0), factor);
    /* A factor so small that this is infinite is 0 in binary16. */
    inverse = !finite ? NOT_A_NUMBER : (inverse & MAGNITUDE) == INFINITE ? 0u : inverse;
    return narrow(F16, uintBitsToFloat(finite ? factor : NOT_A_NUMBER));
}

uint code_in_block(const in uint type, const in float value, const in uint inverse)
{
    if (inverse == NOT_A_NUMBER)
        return 0u;
    precise float x = value * uintBitsToFloat(inverse);
    if (type == Q4_0) {
        precise float shifted = x + 8.5;
        return min(uint(shifted), 15u);
    }
    float whole = trunc(x), rest = abs(x - whole);
    int code = int(whole) + (rest < 0.5 ? 0 : x < 0.0 ? -1 : 1); /* ties away from 0 */
    return uint(code) & 0xffu;
}

#endif
