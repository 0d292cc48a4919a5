/* SPDX-License-Identifier: MIT */
/*
 * Stage 7 of a split pass: merges the partial results of each row. An invocation has four columns of a row, and every
 * ATTUNE_VULKAN_COMBINE_LANES-th part of the keys; those of the same columns are merged through shared memory.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "arguments.glsl"
#include "elements.glsl"

layout(local_size_x = ATTUNE_VULKAN_COMBINE_THREADS) in;

const uint BATCH = 4u; /* parts whose loads are in flight */

attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);

shared vec4 shared_o[ATTUNE_VULKAN_COMBINE_THREADS];
shared float shared_m[ATTUNE_VULKAN_COMBINE_THREADS], shared_l[ATTUNE_VULKAN_COMBINE_THREADS];

struct Sums {
    float m, l;
    vec4 o;
};

void add_part(inout Sums sums, const in Sums part)
{
    const float top = max(sums.m, part.m);
    const float before = exp2((sums.m - top) * TO_LOG2), factor = exp2((part.m - top) * TO_LOG2);
    sums.m = top;
    sums.l = fma(part.l, factor, sums.l * before);
    sums.o = fma(part.o, vec4(factor), sums.o * before);
}

/* The parts `first`, `first` + `step`, ... of a row. */
Sums sum_parts(const in uint row, const in uint column, const in uint first, const in uint step)
{
    const uint last = args.splits - 1u;
    const uvec2 ml = address_step(args.partials_ml, row * args.splits, uvec2(8u, 0u));
    const uvec2 part_o = address_step(args.partials, row * args.splits, uvec2(HEAD_DIM_V * 4u, 0u));
    const uvec2 o = address_add(part_o, column * 4u);
    Sums sums = Sums(LOWEST, 0.0, vec4(0.0));
    for (uint i0 = first; i0 <= last; i0 += BATCH * step) {
        Sums loaded[BATCH];
        [[unroll]] for (uint i = 0u; i < BATCH; i++) {
            const uint part = min(i0 + i * step, last);
            loaded[i].m = uintBitsToFloat(Word(address_add(ml, 8u * part)).value);
            loaded[i].l = uintBitsToFloat(Word(address_add(ml, 8u * part + 4u)).value);
            loaded[i].o = Vec4(address_add(o, part * HEAD_DIM_V * 4u)).value;
        }
        [[unroll]] for (uint i = 0u; i < BATCH; i++)
            if (i0 + i * step <= last)
                add_part(sums, loaded[i]);
    }
    return sums;
}

void store(const in Sums sums, const in uint row, const in uint column)
{
    uint q = row % args.q_len, h = row / args.q_len % args.heads, b = row / args.q_len / args.heads;
    float top = sums.m;
    vec2 sink = add_sink(args, h, top);
    float sum = sums.l * sink.x + sink.y;
    uvec2 to = address_step(plane(args.o, b, h), q, args.o.stride_row);
    store4(O_TYPE, address_add(to, column * bytes_of(O_TYPE)), (args.flags & ATTUNE_VULKAN_ALIGNED_O) != 0u,
           is_zero(sum) ? (args.flags & ATTUNE_VULKAN_IS_PARTIAL) != 0u ? sums.o : vec4(0.0) : sums.o * (sink.x / sum));
    if (column == 0u) {
        store_row(args.lse, b, h, q, lse_bits(top, sum));
        store_row(args.row_max, b, h, q, row_max_bits(sums.m, sums.l));
    }
}

void main()
{
    const uint groups = HEAD_DIM_V / 4u, rows = args.batch * args.heads * args.q_len;
    const uint lanes = ATTUNE_VULKAN_COMBINE_LANES(args.splits), columns = ATTUNE_VULKAN_COMBINE_THREADS / lanes;
    const uint tid = gl_LocalInvocationIndex, lane = tid / columns;
    const uint index = (push.first + gl_WorkGroupID.x) * columns + tid % columns;
    const uint row = index / groups, column = index % groups * 4u;
    Sums sums = sum_parts(min(row, rows - 1u), column, lane, lanes);
    shared_m[tid] = sums.m;
    shared_l[tid] = sums.l;
    shared_o[tid] = sums.o;
    barrier();
    if (lane > 0u || row >= rows)
        return;
    for (uint i = tid + columns; i < ATTUNE_VULKAN_COMBINE_THREADS; i += columns)
        add_part(sums, Sums(shared_m[i], shared_l[i], shared_o[i]));
    store(sums, row, column);
}
