/* SPDX-License-Identifier: MIT */
/* d_sink = -sum over the rows of a head of exp(sink - LSE) delta, after backward_delta.comp. A workgroup has one head,
 * and sums its rows in a fixed order. */
#version 460
#extension GL_GOOGLE_include_directive : require

#include "arguments.glsl"

layout(local_size_x = ATTUNE_VULKAN_SINKS_THREADS) in;

/* A sum (x) and what its roundings lost (y): sums of many rows are those of a wider type. */
shared vec2 sums[ATTUNE_VULKAN_SINKS_THREADS];

vec2 long_add(const in vec2 to, const in float value)
{
    precise float next = to.x + value, part = next - to.x;
    precise float lost = to.y + ((to.x - (next - part)) + (value - part));
    return vec2(next, lost);
}

/* An invocation's rows. */
vec2 sum_rows(attune_vulkan_arguments args, const in uint h, const in float sink)
{
    vec2 sum = vec2(0.0);
    for (uint row = gl_LocalInvocationIndex; row < args.batch * args.q_len; row += ATTUNE_VULKAN_SINKS_THREADS) {
        uint b = row / args.q_len, q = row % args.q_len;
        float lse = uintBitsToFloat(Word(address_step(plane(args.lse, b, h), q, args.lse.stride_row)).value);
        float weight = is_nan(sink) || is_nan(lse) ? uintBitsToFloat(0x7fc00000u) : exp(sink - lse);
        uint index = (b * args.heads + h) * args.q_len + q;
        float delta = uintBitsToFloat(Word(address_step(args.delta, index, uvec2(4u, 0u))).value);
        if (!is_zero(weight))
            sum = long_add(sum, -weight * delta);
    }
    return sum;
}

void main()
{
    attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);
    uint h = push.first + gl_WorkGroupID.x, tid = gl_LocalInvocationIndex;
    float sink = uintBitsToFloat(Word(address_step(args.sinks, h, args.sinks_h)).value);
    vec2 sum = vec2(0.0);
    if (floatBitsToUint(sink) != 0xff800000u)
        sum = sum_rows(args, h, sink);
    sums[tid] = sum;
    barrier();
    if (tid != 0u)
        return;
    for (uint i = 1u; i < ATTUNE_VULKAN_SINKS_THREADS; i++) {
        sum = long_add(sum, sums[i].x);
        sum.y += sums[i].y;
    }
    bool finite = (floatBitsToUint(sum.x) & 0x7fffffffu) < 0x7f800000u;
    OutWord(address_step(args.d_sinks, h, args.d_sinks_h)).value = floatBitsToUint(finite ? sum.x + sum.y : sum.x);
}
