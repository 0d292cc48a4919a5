/* SPDX-License-Identifier: MIT */
/*
 * Elements of q, k, v and o, eight at a time. Their type is a constant, so that a driver's compiler keeps one path; a
 * program defines TYPE, that of k and v. 16-bit elements are integers in memory: the device needs no half arithmetic.
 * `aligned`: every group of eight begins at a multiple of 16 bytes; without it elements are aligned to themselves.
 */
#ifndef ATTUNE_ELEMENTS_H
#define ATTUNE_ELEMENTS_H

#include "prelude.h"

/* attune__opencl_dtype_index */
#define F32  0
#define F16  1
#define BF16 2

ATTUNE_FUNCTION uint bytes_of(uint type)
{
    return type == F32 ? 4u : 2u;
}

ATTUNE_FUNCTION float2 unpack(uint type, uint word)
{
    if (type == F16)
        return vload_half2(0, (const half *)&word);
    return (float2)(as_float(word << 16), as_float(word & 0xffff0000u));
}

/* Round to nearest even. */
ATTUNE_FUNCTION ushort narrow(uint type, float value)
{
    if (type == F16) {
        ushort bits;
        vstore_half_rte(value, 0, (half *)&bits);
        return bits;
    }
    uint bits = as_uint(value);
    return is_nan(value) ? (ushort)(bits >> 16 | 0x40u) : (ushort)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

ATTUNE_FUNCTION uint pack(uint type, float low, float high)
{
    return (uint)narrow(type, low) | (uint)narrow(type, high) << 16;
}

ATTUNE_FUNCTION float load_element(uint type, __global const uchar *at)
{
    if (type == F32)
        return *(__global const float *)at;
    if (type == F16)
        return vload_half(0, (__global const half *)at);
    return as_float((uint) * (__global const ushort *)at << 16);
}

ATTUNE_FUNCTION void store_element(uint type, __global uchar *at, float value)
{
    if (type == F32)
        *(__global float *)at = value;
    else
        *(__global ushort *)at = narrow(type, value);
}

/* Eight elements as memory has them; `high` only where they have 32 bits. */
typedef struct element_group {
    uint4 low, high;
} element_group;

/* Zeros unless `valid`. */
ATTUNE_FUNCTION element_group fetch(uint type, __global const uchar *at, int aligned, int valid)
{
    element_group group;
    group.low = (uint4)(0u);
    group.high = (uint4)(0u);
    if (!valid)
        return group;
    if (aligned) {
        group.low = *(__global const uint4 *)at;
        if (type == F32)
            group.high = *((__global const uint4 *)at + 1);
    } else if (type == F32) {
        group.low = vload4(0, (__global const uint *)at);
        group.high = vload4(1, (__global const uint *)at);
    } else {
        __global const ushort *from = (__global const ushort *)at;
        group.low.x = from[0] | (uint)from[1] << 16;
        group.low.y = from[2] | (uint)from[3] << 16;
        group.low.z = from[4] | (uint)from[5] << 16;
        group.low.w = from[6] | (uint)from[7] << 16;
    }
    return group;
}

ATTUNE_FUNCTION void widen(uint type, element_group group, float4 *low, float4 *high)
{
    if (type == F32) {
        *low = as_float4(group.low);
        *high = as_float4(group.high);
    } else {
        *low = (float4)(unpack(type, group.low.x), unpack(type, group.low.y));
        *high = (float4)(unpack(type, group.low.z), unpack(type, group.low.w));
    }
}

/* Whether one of eight elements of TYPE is NaN or infinite. */
ATTUNE_FUNCTION int is_non_finite(element_group group)
{
#if TYPE == F32
    return any((group.low & 0x7fffffffu) >= (uint4)(0x7f800000u)) ||
           any((group.high & 0x7fffffffu) >= (uint4)(0x7f800000u));
#else
    const uint ones = TYPE == F16 ? 0x7c00u : 0x7f80u;
    return any((group.low & ones) == (uint4)(ones)) || any((group.low & (ones << 16)) == (uint4)(ones << 16));
#endif
}

/* Without `aligned`, elements are aligned to themselves; with it, the four to their sum. */
ATTUNE_FUNCTION void store4(uint type, __global uchar *at, int aligned, float4 value)
{
    if (type == F32) {
        if (aligned)
            *(__global float4 *)at = value;
        else
            vstore4(value, 0, (__global float *)at);
    } else if (aligned)
        *(__global uint2 *)at = (uint2)(pack(type, value.x, value.y), pack(type, value.z, value.w));
    else {
        __global ushort *to = (__global ushort *)at;
        to[0] = narrow(type, value.x);
        to[1] = narrow(type, value.y);
        to[2] = narrow(type, value.z);
        to[3] = narrow(type, value.w);
    }
}

#endif
