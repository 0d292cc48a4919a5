/* SPDX-License-Identifier: MIT */
/* Adds the exact sums of a capture gradient (gradient.glsl) to the caller's tensor, one element for each invocation. */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "address.glsl"
#include "arguments.h"
#include "gradient.glsl"

layout(local_size_x = ATTUNE_VULKAN_SUMS_ELEMENTS) in;

layout(push_constant) uniform Push{ATTUNE_PUSH_LAUNCH} push;

/* 2^n, where f32 has it */
float power2(const in int n)
{
    return n < -126 ? uintBitsToFloat(1u << (149 + max(n, -149))) : uintBitsToFloat(uint(127 + n) << 23);
}

float value_of(uint words[SUM_WORDS])
{
    bool negative = (words[SUM_WORDS - 1u] & 0x80000000u) != 0u;
    uint carry = negative ? 1u : 0u;
    uint top = 0u, below = 0u, rest = 0u, previous = 0u, older = 0u;
    int word = 0;
    [[unroll]] for (uint n = 0u; n < SUM_WORDS; n++) {
        uint magnitude = (negative ? ~words[n] : words[n]) + carry;
        carry = carry != 0u && magnitude == 0u ? 1u : 0u;
        if (magnitude != 0u) {
            top = magnitude;
            below = previous;
            rest = older;
            word = int(n);
        }
        older |= previous;
        previous = magnitude;
    }
    if (top == 0u)
        return 0.0;
    /* The 32 highest bits. Bits below them set the lowest one (a sticky bit), so that the conversion to f32 rounds
     * correctly. */
    int high = findMSB(top);
    uint bits = high == 31 ? top : top << (31 - high) | below >> (high + 1);
    uint lost = high == 31 ? below : below << (31 - high);
    bits |= (lost | rest) != 0u ? 1u : 0u;
    int exponent = 32 * word + high - 31 - 149;
    float value = float(bits);
    /* In two steps: the power of two or the result may be out of range. */
    if (exponent > 100)
        value = exponent + 31 > 127 ? uintBitsToFloat(0x7f800000u) : value * power2(exponent);
    else
        value = exponent < -120 ? value * power2(-60) * power2(exponent + 60) : value * power2(exponent);
    return negative ? -value : value;
}

void main()
{
    attune_vulkan_sums s = attune_vulkan_sums(push.arguments);
    uint index = (push.first + gl_WorkGroupID.x) * ATTUNE_VULKAN_SUMS_ELEMENTS + gl_LocalInvocationIndex;
    if (index >= s.count)
        return;
    AttuneSum sum = AttuneSum(address_step(s.sums, index, uvec2(64u, 0u)));
    uint words[SUM_WORDS];
    [[unroll]] for (uint n = 0u; n < SUM_WORDS; n++)
        words[n] = sum.x[n];
    uint non_finite = sum.x[SUM_NON_FINITE];
    float value = value_of(words);
    const uint infinities = SUM_INFINITY | SUM_MINUS_INFINITY;
    if (non_finite != 0u)
        value = uintBitsToFloat((non_finite & SUM_NAN) != 0u || (non_finite & infinities) == infinities ? 0x7fc00000u
                                : (non_finite & SUM_INFINITY) != 0u                                     ? 0x7f800000u
                                                                                                        : 0xff800000u);
    uvec2 to = s.to;
    uint rest = index;
    [[unroll]] for (int d = 3; d >= 0; d--) {
        to = address_step(to, rest % s.size[d], s.stride[d]);
        rest /= s.size[d];
    }
    OutWord word = OutWord(to);
    word.value = floatBitsToUint(uintBitsToFloat(word.value) + value);
}
