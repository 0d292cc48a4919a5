/* SPDX-License-Identifier: MIT */
/* Stage 7 of a split pass: merges the partial results of each row. One work-item has four columns of a row. */
#include "mods.h"
#include "outputs.h"

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_combine(ATTUNE_KERNEL_PARAMETERS ATTUNE_KERNEL_MODS)
{
    const uint groups = HEAD_DIM_V / 4u;
    const uint index = (args.first + GROUP) * THREADS + (uint)get_local_id(0);
    const uint row = index / groups, column = index % groups * 4u;
    if (row < args.batch * args.heads * args.q_len) {
        const uint at_q = row % args.q_len, h = row / args.q_len % args.heads, b = row / args.q_len / args.heads;
        __global const float *ml = (__global const float *)(workspace + args.partials_ml) + 2ul * row * args.splits;
        __global const float *parts = (__global const float *)(workspace + args.partials) +
                                      (ulong)row * args.splits * HEAD_DIM_V + column;
        float m = ml[0], l = 0.0f;
        float4 sum = (float4)(0.0f);
        for (uint i = 1u; i < args.splits; i++)
            m = fmax(m, ml[2u * i]);
        for (uint i = 0u; i < args.splits; i++) {
            const float alpha = exp2((ml[2u * i] - m) * TO_LOG2);
            l += alpha * ml[2u * i + 1u];
            sum += alpha * *(__global const float4 *)(parts + (ulong)i * HEAD_DIM_V);
        }
        float top = m;
        const float2 sink = add_sink(&args, sinks, h, &top);
        const float with_sink = l * sink.x + sink.y;
        const float4 value = !is_zero(with_sink)                            ? sum * (sink.x / with_sink)
                             : (args.flags & ATTUNE_OPENCL_IS_PARTIAL) != 0 ? sum
                                                                            : (float4)(0.0f);
        store4(O_TYPE, o + plane_of(&args.o, b, h) + (long)at_q * args.o.stride_row + (long)(column * bytes_of(O_TYPE)),
               (args.flags & ATTUNE_OPENCL_ALIGNED_O) != 0u, value);
        if (column == 0u) {
            if (args.flags & ATTUNE_OPENCL_HAS_LSE)
                *row_at(lse, &args.lse, b, h, at_q) = lse_of(top, with_sink);
            if (args.flags & ATTUNE_OPENCL_HAS_ROW_MAX)
                *row_at(row_max, &args.row_max, b, h, at_q) = row_max_of(m, l);
        }
    }
}
