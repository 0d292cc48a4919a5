/* SPDX-License-Identifier: MIT */
/*
 * Keys and values of any type in a cache, eight at a time. q8_0 and q4_0 are ggml's blocks of 32: a factor in f16, then
 * the codes; q4_0 has elements 0 to 15 in the low half of its bytes and 16 to 31 in the high one.
 */
#ifndef ATTUNE_QUANTISED_H
#define ATTUNE_QUANTISED_H

#include "elements.h"

/* attune__opencl_key_type */
#define F8E4M3 3
#define F8E5M2 4
#define I8     5
#define Q8_0   6
#define Q4_0   7

/* Of the formats of OCP's 8-bit floating point: e4m3 has one NaN and no infinity. */
ATTUNE_FUNCTION float8 values_of_f8(uint type, uint8 code)
{
    const uint fraction_bits = type == F8E4M3 ? 3u : 2u, bias = type == F8E4M3 ? 7u : 15u;
    const float least = type == F8E4M3 ? 1.953125e-3f : 1.52587890625e-5f;
    const uint8 magnitude = code & 127u;
    const uint8 normal = (magnitude + ((127u - bias) << fraction_bits)) << (23u - fraction_bits);
    const uint8 subnormal = as_uint8(convert_float8(magnitude) * least);
    uint8 bits = select(normal, subnormal, magnitude >> fraction_bits == (uint8)(0u));
    if (type == F8E4M3)
        bits = select(bits, (uint8)(0x7fc00000u), magnitude == (uint8)(127u));
    else {
        bits = select(bits, (uint8)(0x7fc00000u), magnitude > (uint8)(124u));
        bits = select(bits, (uint8)(0x7f800000u), magnitude == (uint8)(124u));
    }
    return as_float8(bits | (code & 128u) << 24u);
}

/* Elements from `d` on of a row, each rounded once; factor: of its codes, for types without blocks. */
ATTUNE_FUNCTION float8 load_row8(uint type, __global const uchar *row, uint d, float factor)
{
    switch (type) {
    case F32:
        return vload8(0, (__global const float *)row + d);
    case F16:
        return vload_half8(0, (__global const half *)row + d);
    case BF16:
        return as_float8(convert_uint8(vload8(0, (__global const ushort *)row + d)) << 16u);
    case I8:
        return convert_float8(vload8(0, (__global const char *)row + d)) * factor;
    case Q8_0:
        row += (long)(d / 32u * 34u);
        return convert_float8(vload8(0, (__global const char *)row + 2u + d % 32u)) * attune_get_f16(row);
    case Q4_0: {
        row += (long)(d / 32u * 18u);
        const uchar8 bytes = vload8(0, row + 2u + d % 16u),
                     codes = d % 32u < 16u ? bytes & (uchar8)(15) : bytes >> (uchar8)(4);
        return (convert_float8(codes) - 8.0f) * attune_get_f16(row);
    }
    default:
        return values_of_f8(type, convert_uint8(vload8(0, row + d))) * factor;
    }
}

#endif
