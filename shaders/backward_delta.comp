/* SPDX-License-Identifier: MIT */
/* delta = dot(o, dO) - dLSE of each row, before the kernels of backward.comp. */
#version 460
#extension GL_GOOGLE_include_directive : require

#include "arguments.glsl"
#include "elements.glsl"

#define ROW_LANES 8u /* invocations of a row */

layout(local_size_x = ROW_LANES * ATTUNE_VULKAN_DELTA_ROWS) in;

shared float sums[ROW_LANES * ATTUNE_VULKAN_DELTA_ROWS];

void main()
{
    attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);
    uint tid = gl_LocalInvocationIndex, row_lane = tid % ROW_LANES;
    uint index = (push.first + gl_WorkGroupID.x) * ATTUNE_VULKAN_DELTA_ROWS + tid / ROW_LANES;
    bool valid = index < args.batch * args.heads * args.q_len;
    uint row = valid ? index : 0u;
    uint q = row % args.q_len, h = row / args.q_len % args.heads, b = row / args.q_len / args.heads;
    uvec2 o_row = address_step(plane(args.o, b, h), q, args.o.stride_row);
    uvec2 d_o_row = address_step(plane(args.d_o, b, h), q, args.d_o.stride_row);
    bool o_aligned = (args.flags & ATTUNE_VULKAN_ALIGNED_O) != 0u;
    bool d_o_aligned = (args.flags & ATTUNE_VULKAN_ALIGNED_D_O) != 0u;
    float sum = 0.0;
    for (uint i = row_lane; i < HEAD_DIM_V / 8u; i += ROW_LANES) {
        vec4 low, high, d_low, d_high;
        widen(fetch(address_add(o_row, 8u * i * ELEMENT_BYTES), o_aligned, true), low, high);
        widen(fetch(address_add(d_o_row, 8u * i * ELEMENT_BYTES), d_o_aligned, true), d_low, d_high);
        sum += dot(low, d_low) + dot(high, d_high);
    }
    sums[tid] = sum;
    barrier();
    if (row_lane != 0u || !valid)
        return;
    for (uint i = 1u; i < ROW_LANES; i++)
        sum += sums[tid + i];
    if (any(notEqual(args.d_lse.address, uvec2(0u))))
        sum -= uintBitsToFloat(Word(address_step(plane(args.d_lse, b, h), q, args.d_lse.stride_row)).value);
    OutWord(address_step(args.delta, row, uvec2(4u, 0u))).value = floatBitsToUint(sum);
}
