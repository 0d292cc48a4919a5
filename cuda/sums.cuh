/* SPDX-License-Identifier: MIT */
/*
 * Exact sums of float32 values: additions are associative, so that results do not depend on the order in which CTAs
 * add. Word i is a signed 64-bit integer in units of 2^(32 i - 96). The 24 bits of a value fall into one word or two,
 * and 2^31 values cannot overflow a word. Bits below 2^-96 are dropped. The last word has one flag each for NaN, -inf,
 * +inf.
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
    int bit = (int)exponent - 150 + SUM_LOWEST; /* position of the fraction's last bit */
    if (bit <= -24)
        return;
    if (bit < 0) {
        fraction >>= -bit;
        bit = 0;
    }
    u64 both = (u64)fraction << bit % 32, low = both & 0xffffffff, high = both >> 32;
    bool negative = bits >> 31;
    if (low)
        atomicAdd(sum + bit / 32, negative ? 0 - low : low);
    if (high)
        atomicAdd(sum + bit / 32 + 1, negative ? 0 - high : high);
}

/* The sum as a double. The words are added from the highest down, with a few roundings at most. */
__device__ __forceinline__ double sum_value(const u64 *sum)
{
    u64 flags = sum[SUM_FLAGS];
    if (flags)
        return flags == 2   ? -__longlong_as_double(0x7ff0000000000000ll)
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
