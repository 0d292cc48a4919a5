/* SPDX-License-Identifier: MIT */
/* delta = dot(o, dO) - dLSE of each row, before the kernels of backward.comp. Eight invocations share a row. */
#version 460
#extension GL_GOOGLE_include_directive : require

#include "arguments.glsl"
#include "elements.glsl"

layout(local_size_x = 64) in;

layout(constant_id = 4) const uint HEAD_DIM_V = 64;

shared float parts[64];

void main()
{
    Arguments args = Arguments(push.arguments);
    uint tid = gl_LocalInvocationIndex, part = tid % 8u;
    uint index = (push.first + gl_WorkGroupID.x) * 8u + tid / 8u;
    bool valid = index < args.batch * args.heads * args.q_len;
    uint row = valid ? index : 0u;
    uint q = row % args.q_len, h = row / args.q_len % args.heads, b = row / args.q_len / args.heads;
    uvec2 o_row = address_step(plane(args.o, b, h), q, args.o.stride_row);
    uvec2 d_o_row = address_step(plane(args.d_o, b, h), q, args.d_o.stride_row);
    float sum = 0.0;
    for (uint i = part; i < HEAD_DIM_V / 8u; i += 8u) {
        vec4 low, high, d_low, d_high;
        widen(fetch(address_add(o_row, 8u * i * ELEMENT_BYTES), (args.flags & ALIGNED_O) != 0u, true), low, high);
        widen(fetch(address_add(d_o_row, 8u * i * ELEMENT_BYTES), (args.flags & ALIGNED_D_O) != 0u, true), d_low, d_high);
        sum += dot(low, d_low) + dot(high, d_high);
    }
    parts[tid] = sum;
    barrier();
    if (part != 0u || !valid)
        return;
    for (uint i = 1u; i < 8u; i++)
        sum += parts[tid + i];
    if (any(notEqual(args.d_lse.address, uvec2(0u))))
        sum -= uintBitsToFloat(Word(address_step(plane(args.d_lse, b, h), q, args.d_lse.stride_row)).value);
    OutWord(address_step(args.delta, row, uvec2(4u, 0u))).value = floatBitsToUint(sum);
}
