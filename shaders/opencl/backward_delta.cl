/* SPDX-License-Identifier: MIT */
/* delta = dot(o, dO) - dLSE of each row, before the kernels of backward.cl, and after it the gradients of sinks. */
#include "backward_tiles.h"
#include "elements.h"
#include "mods.h"

#define ROW_LANES (THREADS / ATTUNE_OPENCL_DELTA_ROWS) /* work-items of a row */

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_backward_delta(ATTUNE_KERNEL_PARAMETERS ATTUNE_BACKWARD_PARAMETERS ATTUNE_KERNEL_MODS)
{
    __local float sums[THREADS];
    const uint id = (uint)get_local_id(0), row_lane = id % ROW_LANES;
    const uint row = (args.first + GROUP) * ATTUNE_OPENCL_DELTA_ROWS + id / ROW_LANES;
    const int valid = row < args.batch * args.heads * args.q_len;
    const int o_aligned = (args.flags & ATTUNE_OPENCL_ALIGNED_O) != 0u;
    const int d_o_aligned = (args.flags & ATTUNE_OPENCL_ALIGNED_D_O) != 0u;
    uint at_q = 0u, h = 0u, b = 0u;
    float sum = 0.0f;
    if (valid) {
        at_q = row % args.q_len;
        h = row / args.q_len % args.heads;
        b = row / args.q_len / args.heads;
        __global const uchar *const o_row = o + plane_of(&args.o, b, h) + (long)at_q * args.o.stride_row;
        __global const uchar *const d_o_row = d_o + plane_of(&args.d_o, b, h) + (long)at_q * args.d_o.stride_row;
        for (uint i = row_lane; i < HEAD_DIM_V / 8u; i += ROW_LANES) {
            float4 low, high, d_low, d_high;
            widen(TYPE, fetch(TYPE, o_row + 8u * i * bytes_of(TYPE), o_aligned, 1), &low, &high);
            widen(TYPE, fetch(TYPE, d_o_row + 8u * i * bytes_of(TYPE), d_o_aligned, 1), &d_low, &d_high);
            sum = FMA(low.x, d_low.x, FMA(low.y, d_low.y, FMA(low.z, d_low.z, FMA(low.w, d_low.w, sum))));
            sum = FMA(high.x, d_high.x, FMA(high.y, d_high.y, FMA(high.z, d_high.z, FMA(high.w, d_high.w, sum))));
        }
    }
    sums[id] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (valid && row_lane == 0u) {
        for (uint i = 1u; i < ROW_LANES; i++)
            sum += sums[id + i];
        if (args.flags & ATTUNE_OPENCL_HAS_D_LSE)
            sum -= *(__global const float *)(d_lse + plane_of(&args.d_lse, b, h) + (long)at_q * args.d_lse.stride_row);
        *((__global float *)(workspace + args.delta) + row) = sum;
    }
}

#if SINKS
/* A sum and what its roundings lost: sums of many rows, whatever their order, are those of a wider type. */
typedef struct long_sum {
    float sum, lost;
} long_sum;

ATTUNE_FUNCTION void long_sum_add(long_sum *to, float value)
{
    const float next = to->sum + value, added = next - to->sum;
    to->lost += (to->sum - (next - added)) + (value - added);
    to->sum = next;
}

/* d_sink = - sum over its rows of exp(sink - lse) delta. A workgroup has one head. */
__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_backward_sinks(ATTUNE_KERNEL_PARAMETERS ATTUNE_BACKWARD_PARAMETERS ATTUNE_KERNEL_MODS)
{
    __local float sums[THREADS], lost[THREADS];
    const uint id = (uint)get_local_id(0), h = args.first + GROUP;
    const int valid = args.q_len > 0u; /* the first launch has no rows, and no sinks */
    const float sink = valid ? *(__global const float *)(sinks + args.sinks + (long)h * args.sinks_h) : -INFINITY;
    long_sum sum = {0.0f, 0.0f};
    if (as_uint(sink) != 0xff800000u)
        for (uint row = id; row < args.batch * args.q_len; row += THREADS) {
            const uint b = row / args.q_len, at_q = row % args.q_len;
            const float weight = exp(sink - *row_at(lse, &args.lse, b, h, at_q));
            if (!is_zero(weight))
                long_sum_add(&sum, -weight * load_delta(workspace, &args, b, h, at_q));
        }
    sums[id] = sum.sum;
    lost[id] = sum.lost;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id == 0u && valid) {
        for (uint i = 1u; i < THREADS; i++) {
            long_sum_add(&sum, sums[i]);
            sum.lost += lost[i];
        }
        *(__global float *)(d_sinks + args.d_sinks + (long)h * args.d_sinks_h) = is_finite(sum.sum) ? sum.sum + sum.lost
                                                                                                    : sum.sum;
    }
}
#endif
