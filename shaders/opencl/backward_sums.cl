/* SPDX-License-Identifier: MIT */
/* The exact sums of a capture gradient (exact_sum.h): set to 0 before a call, and added to the caller's tensor after
 * it; an element to a work-item. */
#include "exact_sum.h"

/* 2^n, where f32 has it */
ATTUNE_FUNCTION float power2(int n)
{
    return n < -126 ? as_float(1u << (149 + max(n, -149))) : as_float((uint)(127 + n) << 23);
}

ATTUNE_FUNCTION float value_of(const uint *words)
{
    const int negative = (words[SUM_DIGITS - 1u] & 0x80000000u) != 0u;
    uint carry = negative ? 1u : 0u;
    uint top = 0u, below = 0u, rest = 0u, previous = 0u, older = 0u;
    int word = 0;
    for (uint n = 0u; n < SUM_DIGITS; n++) {
        const uint magnitude = (negative ? ~words[n] : words[n]) + carry;
        carry = carry != 0u && magnitude == 0u ? 1u : 0u;
        if (magnitude != 0u) {
            top = magnitude;
            below = previous;
            rest = older;
            word = (int)n;
        }
        older |= previous;
        previous = magnitude;
    }
    if (top == 0u)
        return 0.0f;
    /* The 32 highest bits. Bits below them set the lowest one (a sticky bit), so that the conversion to f32 rounds
     * correctly. */
    const int free = (int)clz(top);
    uint bits = free == 0 ? top : top << free | below >> (32 - free);
    const uint lost = free == 0 ? below : below << free;
    bits |= (lost | rest) != 0u ? 1u : 0u;
    const int exponent = 32 * word - free - 149;
    float value = convert_float_rte(bits);
    /* In two steps: the power of two or the result may be out of range. */
    if (exponent > 100)
        value = exponent + 31 > 127 ? INFINITY : value * power2(exponent);
    else
        value = exponent < -120 ? value * power2(-60) * power2(exponent + 60) : value * power2(exponent);
    return negative ? -value : value;
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_clear_sums(const attune_opencl_sums args, __global uchar *workspace, __global uchar *to)
{
    const uint index = (args.first + GROUP) * THREADS + (uint)get_local_id(0);
    __global uint *const sum = (__global uint *)(workspace + args.sums) + (ulong)SUM_WORDS * index;
    if (index < args.count)
        for (uint n = 0u; n < SUM_WORDS; n++)
            sum[n] = 0u;
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_add_sums(const attune_opencl_sums args, __global uchar *workspace, __global uchar *to)
{
    const uint index = (args.first + GROUP) * THREADS + (uint)get_local_id(0);
    __global const uint *const sum = (__global const uint *)(workspace + args.sums) + (ulong)SUM_WORDS * index;
    if (index < args.count) {
        uint words[SUM_DIGITS];
        for (uint n = 0u; n < SUM_DIGITS; n++)
            words[n] = sum[n];
        const uint non_finite = sum[SUM_NON_FINITE], infinities = SUM_INFINITY | SUM_MINUS_INFINITY;
        float value = value_of(words);
        if (non_finite != 0u)
            value = (non_finite & SUM_NAN) != 0u || (non_finite & infinities) == infinities ? ATTUNE_NAN
                    : (non_finite & SUM_INFINITY) != 0u                                     ? INFINITY
                                                                                            : -INFINITY;
        long at = args.to;
        uint rest = index;
        for (int d = 3; d >= 0; d--) {
            at += (long)(rest % args.size[d]) * args.stride[d];
            rest /= args.size[d];
        }
        *(__global float *)(to + at) += value;
    }
}
