/* SPDX-License-Identifier: MIT */
/*
 * Exact sums of float32, so that the order in which CTAs add to them does not matter. Word i counts 2^(32 i - 96)
 * in a signed 64-bit integer: a number has its 24 bits in one word or in two, and 2^31 numbers leave no word too full.
 * What a number has below 2^-96 is cut off. The last word has a bit for each kind of what is not finite.
 */
#ifndef ATTUNE_CUDA_SUMS_CUH
#define ATTUNE_CUDA_SUMS_CUH

#include "common.cuh"

#define SUM_LOWEST 96 /* word 0 counts 2^-96 */
#define SUM_FLAGS  (ATTUNE_CUDA_SUM_WORDS - 1)

__device__ __forceinline__ void sum_add(u64 *sum, float x)
{
    u32 bits = __float_as_uint(x), exponent = bits >> 23 & 255;
    if (exponent == 255) {
        atomicOr(sum + SUM_FLAGS, x != x ? 1ull : bits >> 31 ? 2ull : 4ull);
        return;
    }
    u32 fraction = (bits & 0x7fffff) | 0x800000;
    int tile_coord = (int)exponent - 150 + SUM_LOWEST; /* of the fraction's last bit */
    if (tile_coord <= -24)
        return;
    if (tile_coord < 0) {
        fraction >>= -tile_coord;
        tile_coord = 0;
    }
    u64 both = (u64)fraction << tile_coord % 32, low = both & 0xffffffff, high = both >> 32;
    bool negative = bits >> 31;
    if (low)
        atomicAdd(sum + tile_coord / 32, negative ? 0 - low : low);
    if (high)
        atomicAdd(sum + tile_coord / 32 + 1, negative ? 0 - high : high);
}

/* The sum, rounded a few times at most. */
__device__ __forceinline__ double sum_value(const u64 *sum)
{
    u64 flags = sum[SUM_FLAGS];
    if (flags)
        return flags == 2 ? -__longlong_as_double(0x7ff0000000000000ll)
               : flags == 4 ? __longlong_as_double(0x7ff0000000000000ll)
                            : __longlong_as_double(0x7ff8000000000000ll);
    i64 word[SUM_FLAGS], carry = 0;
    for (int i = 0; i < SUM_FLAGS; i++) {
        i64 x = (i64)sum[i] + carry;
        carry = x >> 32; /* rounded down */
        word[i] = i + 1 < SUM_FLAGS ? x - (carry << 32) : x;
    }
    double value = 0;
    for (int i = SUM_FLAGS; i-- > 0;)
        value += (double)word[i] * __longlong_as_double((i64)(1023 + 32 * i - SUM_LOWEST) << 52);
    return value;
}

#endif
