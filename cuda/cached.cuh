/* SPDX-License-Identifier: MIT */
/*
 * Keys and values of any type in a cache, eight at a time. q8_0 and q4_0 are ggml's blocks of 32: a factor in f16, then
 * the codes; q4_0 has elements 0 to 15 in the low half of its bytes and 16 to 31 in the high one. A type with factors
 * has them in a tensor of its own.
 */
#ifndef ATTUNE_CUDA_CACHED_CUH
#define ATTUNE_CUDA_CACHED_CUH

#include "common.cuh"

constexpr int K_TYPE = config::K_TYPE, V_TYPE = config::V_TYPE;

template <int TYPE> constexpr bool HAS_FACTORS = TYPE >= ATTUNE_CUDA_F8E4M3 &&TYPE <= ATTUNE_CUDA_I8;
template <int TYPE> constexpr bool HAS_BLOCKS = TYPE >= ATTUNE_CUDA_Q8_0;
/* Bytes of an element, or of a block. */
template <int TYPE>
constexpr int TYPE_BYTES = TYPE == ATTUNE_CUDA_Q8_0     ? 34
                           : TYPE == ATTUNE_CUDA_Q4_0   ? 18
                           : TYPE >= ATTUNE_CUDA_F8E4M3 ? 1
                           : TYPE == ATTUNE_CUDA_F32    ? 4
                                                        : 2;

typedef unsigned char byte;

/* Of the formats of OCP's 8-bit floating point: e4m3 has one NaN and no infinity, e5m2 is the first half of an f16. */
template <int TYPE> __device__ __forceinline__ float value_of_code(u32 code)
{
    if constexpr (TYPE == ATTUNE_CUDA_Q4_0)
        return (float)((int)code - 8);
    else if constexpr (TYPE == ATTUNE_CUDA_I8 || TYPE == ATTUNE_CUDA_Q8_0)
        return (float)((int)(code << 24) >> 24);
    else if constexpr (TYPE == ATTUNE_CUDA_F8E5M2)
        return half_to_float((unsigned short)(code << 8));
    else {
        /* The bits of a float of 2^-120 times the value, also of one that is subnormal. */
        float x = __uint_as_float((code & 128) << 24 | (code & 127) << 20) * __uint_as_float(247u << 23);
        return (code & 127) == 127 ? __int_as_float(0x7fffffff) : x;
    }
}

/* Bytes of a row, from any address that the type may have. */
template <int WORDS, int UNIT> __device__ __forceinline__ void load_words(u32 (&word)[WORDS], const byte *from)
{
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        if constexpr (UNIT == 4)
            word[i] = ((const u32 *)from)[i];
        else if constexpr (UNIT == 2)
            word[i] = (u32)((const unsigned short *)from)[2 * i] | (u32)((const unsigned short *)from)[2 * i + 1] << 16;
        else
            word[i] =
                (u32)from[4 * i] | (u32)from[4 * i + 1] << 8 | (u32)from[4 * i + 2] << 16 | (u32)from[4 * i + 3] << 24;
    }
}

/* Elements from d, a multiple of 8, on: their bits, and a block's factor. */
template <int TYPE> struct eight {
    static constexpr int WORDS = HAS_BLOCKS<TYPE> ? 2 : 2 * TYPE_BYTES<TYPE>;
    u32 word[WORDS];
    float factor;
};

/* aligned: rows begin at multiples of eight bytes. */
template <int TYPE>
__device__ __forceinline__ void load_eight(eight<TYPE> &x, const byte *row, int d, float factor, bool aligned)
{
    x.factor = factor;
    if constexpr (HAS_BLOCKS<TYPE>) {
        const byte *block = row + d / 32 * TYPE_BYTES<TYPE>;
        x.factor = half_to_float(*(const unsigned short *)block);
        load_words<2, 2>(x.word, block + 2 + (TYPE == ATTUNE_CUDA_Q4_0 ? d % 16 : d % 32));
        if constexpr (TYPE == ATTUNE_CUDA_Q4_0)
#pragma unroll
            for (int i = 0; i < 2; i++)
                x.word[i] = x.word[i] >> (d % 32 < 16 ? 0 : 4) & 0x0f0f0f0fu;
    } else if (aligned) {
#pragma unroll
        for (int i = 0; i < x.WORDS; i += 2) {
            uint2 two = ((const uint2 *)(row + d * TYPE_BYTES<TYPE>))[i / 2];
            x.word[i] = two.x, x.word[i + 1] = two.y;
        }
    } else
        load_words<eight<TYPE>::WORDS, TYPE_BYTES<TYPE>>(x.word, row + d * TYPE_BYTES<TYPE>);
}

/* Their values, each rounded once. */
template <int TYPE> __device__ __forceinline__ float value_of(const eight<TYPE> &x, int i)
{
    if constexpr (TYPE == ATTUNE_CUDA_F32)
        return __uint_as_float(x.word[i]);
    else if constexpr (TYPE_BYTES<TYPE> == 2)
        return unpack<TYPE>(x.word[i / 2] >> i % 2 * 16 & 0xffffu);
    else
        return value_of_code<TYPE>(x.word[i / 4] >> i % 4 * 8 & 0xffu) * x.factor;
}

/* A float's parts of 8 bits each, the first the largest, whose sum it is if there are three. */
template <int PARTS> __device__ __forceinline__ void split_bf16(float (&part)[PARTS], float x)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        part[i] = __uint_as_float(__float_as_uint(x) & 0xffff0000u);
        x = fabsf(x) < ATTUNE_INF ? x - part[i] : 0.0f;
    }
}

/* The first halves of two floats. */
__device__ __forceinline__ u32 high_halves(float low, float high)
{
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

/* Two codes as bf16, exact. */
template <int TYPE> __device__ __forceinline__ u32 codes_of(const eight<TYPE> &x, int i)
{
    u32 two = x.word[i / 4] >> i % 4 * 8;
    if constexpr (TYPE == ATTUNE_CUDA_F8E4M3 && __CUDA_ARCH__ >= 890) {
        two = e4m3_to_f16((unsigned short)two);
        return high_halves(half_to_float((unsigned short)two), half_to_float((unsigned short)(two >> 16)));
    }
    return high_halves(value_of_code<TYPE>(two & 0xffu), value_of_code<TYPE>(two >> 8 & 0xffu));
}

/* Two codes as bf16, 0 where one is not finite: the products of an infinity with lower parts, which may be 0,
 * would be NaN. */
template <int TYPE> __device__ __forceinline__ u32 finite_codes(u32 two)
{
    if constexpr (TYPE == ATTUNE_CUDA_F8E5M2) {
        two = (two & 0x7fffu) == 0x7f80u ? two & 0xffff0000u : two;
        two = (two & 0x7fff0000u) == 0x7f800000u ? two & 0xffffu : two;
    }
    return two;
}

/* One element, as value_of. */
template <int TYPE> __device__ __forceinline__ float load_value(const byte *row, int d, float factor)
{
    if constexpr (TYPE == ATTUNE_CUDA_F32)
        return ((const float *)row)[d];
    else if constexpr (TYPE_BYTES<TYPE> == 2)
        return unpack<TYPE>(((const unsigned short *)row)[d]);
    else if constexpr (HAS_BLOCKS<TYPE>) {
        const byte *block = row + d / 32 * TYPE_BYTES<TYPE>;
        u32 code = TYPE == ATTUNE_CUDA_Q8_0 ? block[2 + d % 32] : block[2 + d % 16] >> (d % 32 < 16 ? 0 : 4) & 15;
        return value_of_code<TYPE>(code) * half_to_float(*(const unsigned short *)block);
    } else
        return value_of_code<TYPE>(row[d]) * factor;
}

/* Whether every row begins at a multiple of `bytes`. */
template <int TYPE> __device__ __forceinline__ bool cache_aligned(const attune_cuda_view &v, u64 bytes)
{
    return ((v.address | (u64)(v.batch | v.head | v.row) * TYPE_BYTES<TYPE>)&(bytes - 1)) == 0;
}

#endif
