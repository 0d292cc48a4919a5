/* SPDX-License-Identifier: MIT */
/* As combine.cl, where calls are short enough for the merge to count: COMBINE_ITEMS work-items share four columns of a
 * row, and each has a share of the parts, whose loads do not wait for one another's. */
#include "mods.h"
#include "outputs.h"

#define OWNERS (THREADS / COMBINE_ITEMS) /* columns of a workgroup, in groups of four */

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_combine(ATTUNE_KERNEL_PARAMETERS ATTUNE_KERNEL_MODS)
{
    __local float4 sums[THREADS];
    __local float most[THREADS], weights[THREADS];
    const uint groups = HEAD_DIM_V / 4u, id = (uint)get_local_id(0), share = id / OWNERS;
    const uint index = (args.first + GROUP) * OWNERS + id % OWNERS;
    const uint row = index / groups, column = index % groups * 4u;
    const int there = row < args.batch * args.heads * args.q_len;
    __global const float *ml = (__global const float *)(workspace + args.partials_ml) + 2ul * row * args.splits;
    __global const float *parts = (__global const float *)(workspace + args.partials) +
                                  (ulong)row * args.splits * HEAD_DIM_V + column;
    float m = LOWEST, l = 0.0f;
    float4 sum = (float4)(0.0f);
    const uint end = there ? args.splits : 0u;
    for (uint i = share; i < end; i += COMBINE_ITEMS)
        m = fmax(m, ml[2u * i]);
    for (uint i = share; i < end; i += COMBINE_ITEMS) {
        const float alpha = exp2((ml[2u * i] - m) * TO_LOG2);
        l += alpha * ml[2u * i + 1u];
        sum += alpha * *(__global const float4 *)(parts + (ulong)i * HEAD_DIM_V);
    }
    sums[id] = sum;
    most[id] = m;
    weights[id] = l;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (there && share == 0u) {
        for (uint i = 1u; i < COMBINE_ITEMS; i++)
            m = fmax(m, most[i * OWNERS + id]);
        l = 0.0f;
        sum = (float4)(0.0f);
        for (uint i = 0u; i < COMBINE_ITEMS; i++) {
            const float alpha = exp2((most[i * OWNERS + id] - m) * TO_LOG2);
            l += alpha * weights[i * OWNERS + id];
            sum += alpha * sums[i * OWNERS + id];
        }
        const uint at_q = row % args.q_len, h = row / args.q_len % args.heads, b = row / args.q_len / args.heads;
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
