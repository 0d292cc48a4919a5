/* SPDX-License-Identifier: MIT */
/*
 * Groups of eight elements of K and V as memory has them, of any type of a cache: loaded early, made numbers of where
 * they are used. Codes are in `low`.xy, the factor of a ggml's block in `low`.z.
 */
#ifndef ATTUNE_KEY_GROUPS_H
#define ATTUNE_KEY_GROUPS_H

#include "quantised.h"

ATTUNE_FUNCTION int has_blocks(uint type)
{
    return type == Q8_0 || type == Q4_0;
}

/* Whether a key's row has a factor of its own. */
ATTUNE_FUNCTION int has_factor(uint type)
{
    return type > BF16 && !has_blocks(type);
}

/* Zeros unless `valid`. */
ATTUNE_FUNCTION element_group load_group(uint type, __global const uchar *row, uint group, int aligned, int valid)
{
    if (type <= BF16)
        return fetch(type, row + group * 8u * bytes_of(type), aligned, valid);
    element_group codes;
    codes.low = (uint4)(0u);
    codes.high = (uint4)(0u);
    if (!valid)
        return codes;
    if (has_blocks(type)) {
        const uint first = group % 4u * 8u;
        row += group / 4u * (type == Q8_0 ? 34u : 18u);
        codes.low.xy = as_uint2(vload4(0, (__global const ushort *)(row + 2u + (type == Q8_0 ? first : first % 16u))));
        codes.low.z = *(__global const ushort *)row;
    } else if (aligned)
        codes.low.xy = *(__global const uint2 *)(row + group * 8u);
    else
        codes.low.xy = as_uint2(vload8(0, row + group * 8u));
    return codes;
}

/* `factor`: of the key's row, where its type has one. */
ATTUNE_FUNCTION void widen_group(uint type, element_group from, uint group, float factor, float4 *low, float4 *high)
{
    if (type <= BF16) {
        widen(type, from, low, high);
        return;
    }
    const uchar8 codes = as_uchar8(from.low.xy);
    float8 values;
    if (has_blocks(type)) {
        const ushort bits = (ushort)from.low.z;
        const float of_block = vload_half(0, (const half *)&bits);
        const uchar8 halves = group % 4u < 2u ? codes & (uchar8)(15) : codes >> (uchar8)(4);
        values = (type == Q8_0 ? convert_float8(as_char8(codes)) : convert_float8(halves) - 8.0f) * of_block;
    } else
        values = (type == I8 ? convert_float8(as_char8(codes)) : values_of_f8(type, convert_uint8(codes))) * factor;
    *low = values.lo;
    *high = values.hi;
}

#endif
