/* SPDX-License-Identifier: MIT */
/* Stage 7 of a split pass: merges the partial results of each row. One invocation has four columns of a row. */
#version 460
#extension GL_GOOGLE_include_directive : require

#include "arguments.glsl"
#include "elements.glsl"

layout(local_size_x = ATTUNE_VULKAN_COMBINE_COLUMNS) in;

void main()
{
    attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);
    const uint groups = HEAD_DIM_V / 4u;
    uint workgroup = push.first + gl_WorkGroupID.x;
    uint index = workgroup * ATTUNE_VULKAN_COMBINE_COLUMNS + gl_LocalInvocationIndex;
    uint row = index / groups, column = index % groups * 4u;
    if (row >= args.batch * args.heads * args.q_len)
        return;
    uint q = row % args.q_len, h = row / args.q_len % args.heads, b = row / args.q_len / args.heads;

    uvec2 ml = address_step(args.partials_ml, row * args.splits, uvec2(8u, 0u));
    float m = uintBitsToFloat(Word(ml).value);
    for (uint i = 1u; i < args.splits; i++)
        m = max(m, uintBitsToFloat(Word(address_add(ml, 8u * i)).value));
    float l = 0.0;
    vec4 o = vec4(0.0);
    uvec2 part = address_step(args.partials, row * args.splits, uvec2(HEAD_DIM_V * 4u, 0u));
    for (uint i = 0u; i < args.splits; i++) {
        float alpha = exp2((uintBitsToFloat(Word(address_add(ml, 8u * i)).value) - m) * TO_LOG2);
        float part_l = uintBitsToFloat(Word(address_add(ml, 8u * i + 4u)).value);
        vec4 part_o = Vec4(address_add(part, (i * HEAD_DIM_V + column) * 4u)).value;
        l += alpha * part_l;
        o += alpha * part_o;
    }
    float top = m;
    vec2 sink = add_sink(args, h, top);
    float sum = l * sink.x + sink.y;
    uvec2 to = address_step(plane(args.o, b, h), q, args.o.stride_row);
    store4(O_TYPE, address_add(to, column * bytes_of(O_TYPE)), (args.flags & ATTUNE_VULKAN_ALIGNED_O) != 0u,
           is_zero(sum) ? (args.flags & ATTUNE_VULKAN_IS_PARTIAL) != 0u ? o : vec4(0.0) : o * (sink.x / sum));
    if (column == 0u) {
        store_row(args.lse, b, h, q, lse_bits(top, sum));
        store_row(args.row_max, b, h, q, row_max_bits(m, l));
    }
}
