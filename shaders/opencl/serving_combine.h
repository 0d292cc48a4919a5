/* SPDX-License-Identifier: MIT */
/* Stage 7 of a call over a cache whose keys are divided: the parts of each tile are merged. */
#ifndef ATTUNE_SERVING_COMBINE_H
#define ATTUNE_SERVING_COMBINE_H

#include "outputs.h"
#include "serving_items.h"

#if SHARES
/* The row of a partial result of part `part` of a merge's tile, which an item of this sequence has or of one before it.
 * A schedule may hold anything. */
ATTUNE_FUNCTION ulong partial_of(__global const uint *from, __global const attune_opencl_parts *of, uint index,
                                 uint part, uint query, const tile_coord *coord, uint row_h)
{
    const uint merges = 1u + of->items, links = merges + of->merges;
    uint4 link = vload4(links + index, from);
    const uint query0 = link.z;
    while (part < link.x && link.y - 1u < index) {
        index = link.y - 1u;
        link = vload4(links + index, from);
    }
    const uint slot = vload4(merges + index, from).z + part - link.x;
    const uint row = (query0 - link.z + query) * coord->heads + row_h - coord->h0;
    return (ulong)min(slot, of->slots - 1u) * BLOCK_M + min(row, BLOCK_M - 1u);
}
#endif

/* Merges the parts of a tile, from the first to the last. */
__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_serving_combine(ATTUNE_KERNEL_PARAMETERS ATTUNE_SERVING_PARAMETERS)
{
    sequence seq;
    __global const attune_opencl_serving *serving = (__global const attune_opencl_serving *)(workspace + args.serving);
    __global const attune_opencl_parts *of = &serving->parts;
    __global const uint *from = (__global const uint *)(schedule + of->schedule);
    const uint index = args.first + GROUP, slots = of->slots;
    const int in_list = index < min(vload4(0, from).y, of->merges);
    const uint4 merge = vload4(in_list ? 1u + of->items + index : 0u, from);
    /* A schedule may hold anything. */
    const int valid = in_list && merge.x < tile_count(&args) && merge.z < slots;
    const uint parts = valid ? min(merge.y, SHARES ? slots : slots - merge.z) : 0u;
    tile_coord coord = tile_coord_of(&args, valid ? merge.x : 0u);
    seq.of = &serving->cache;
    seq.b = coord.b;
    begin_rows(&seq, args.q_len, q_start, count);
    coord.queries = coord.q0 < seq.q_len ? min(args.q_step, seq.q_len - coord.q0) : 0u;
    coord.rows = coord.heads * coord.queries;
    coord.b = seq.batch;
    const int aligned = ALIGNED || (args.flags & ATTUNE_OPENCL_ALIGNED_O) != 0u;
    const uint groups = HEAD_DIM_V / 4u, end = parts ? coord.rows * groups : 0u;
    for (uint i = (uint)get_local_id(0); i < end; i += THREADS) {
        const uint row = i / groups, column = i % groups * 4u, row_h = row_head(&coord, row);
        const uint row_q = seq.row0 + row_query(&coord, row);
        float m = LOWEST, l = 0.0f;
        float4 o_row = (float4)(0.0f);
        for (uint part = 0u; part < parts; part++) {
#if SHARES
            const ulong at = partial_of(from, of, index, part, row_query(&coord, row) - coord.q0, &coord, row_h);
#else
            const ulong at = (ulong)(merge.z + part) * BLOCK_M + row;
#endif
            const float2 ml = vload2(at, (__global const float *)(workspace + args.partials_ml));
            const float4 values = vload4(0, (__global const float *)(workspace + args.partials) + at * HEAD_DIM_V +
                                                column);
            const float top = fmax(m, ml.x);
            const float before = exp2_row((m - top) * TO_LOG2), own = exp2_row((ml.x - top) * TO_LOG2);
            m = part ? top : ml.x;
            l = part ? FMA(ml.y, own, l * before) : ml.y;
            o_row = part ? FMA(values, (float4)(own), o_row * before) : values;
        }
        float top = m;
        const float2 sink = add_sink(&args, sinks, row_h, &top);
        const float sum = l * sink.x + sink.y, scale = sink.x / sum;
        if (column == 0u)
            store_row_state(&args, &coord, workspace, lse, row_max, row_h, row_q, top, sum, m, l);
        store_columns(&args, &coord, workspace, o, aligned, row_h, row_q, column,
                      is_zero(sum) ? (float4)(0.0f) : o_row * scale);
    }
}

#endif
