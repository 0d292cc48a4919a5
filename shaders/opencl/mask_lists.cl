/* SPDX-License-Identifier: MIT */
/*
 * Builds the block lists of a mask that follows a tensor. In attune_classify a workgroup classifies one block of the
 * tensor; an element whose bits are `forbidden` forbids its pair. In attune_fill a workgroup has one row of blocks, or
 * one column, and lists the blocks that are not empty in ascending order, `block << 1 | partial`.
 */
#include "mask_lists.h"
#include "prelude.h"

#define WIDTH ATTUNE_OPENCL_LISTS_THREADS

#define SEEN_FORBIDDEN 1u
#define SEEN_ALLOWED   2u
#define PARTIAL        3u /* both */

ATTUNE_FUNCTION uint bits_at(__global const uchar *at, uint element)
{
    return element == 1u ? *at : element == 2u ? *(__global const ushort *)at : *(__global const uint *)at;
}

__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void
attune_classify(const attune_opencl_mask_lists f, __global uchar *mask, __global const uchar *tensor)
{
    __local uint seen_by_all;
    const uint lane = (uint)get_local_id(0), index = f.first + GROUP;
    const uint column = index % f.kv_blocks, row = index / f.kv_blocks % f.q_blocks;
    const uint plane = index / f.kv_blocks / f.q_blocks;
    const uint q0 = row * f.q_block, kv0 = column * f.kv_block;
    const uint rows = min(f.q_block, f.q_len - q0), columns = min(f.kv_block, f.kv_len - kv0);
    __global const uchar *const first = tensor + f.offset + (long)(plane / f.heads) * f.stride_b +
                                        (long)(plane % f.heads) * f.stride_h + (long)q0 * f.stride_q +
                                        (long)kv0 * f.stride_kv;
    if (lane == 0u)
        seen_by_all = 0u;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint seen = 0u;
    for (uint i = lane; i < rows * columns; i += WIDTH) {
        __global const uchar *const at = first + (long)(i / columns) * f.stride_q + (long)(i % columns) * f.stride_kv;
        seen |= bits_at(at, f.element) == f.forbidden ? SEEN_FORBIDDEN : SEEN_ALLOWED;
    }
    atomic_or(&seen_by_all, seen);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0u)
        ((__global uint *)(mask + f.classes))[index] = seen_by_all;
}

__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void
attune_fill(const attune_opencl_mask_lists f, __global uchar *mask, __global const uchar *tensor)
{
    __local uint taken[WIDTH];
    __global const uint *const classes = (__global const uint *)(mask + f.classes);
    const uint lane = (uint)get_local_id(0), group = f.first + GROUP;
    const int is_row = group < f.row_count;
    const uint line = group - (is_row ? 0u : f.row_count);
    const uint lines = is_row ? f.q_blocks : f.kv_blocks, count = is_row ? f.kv_blocks : f.q_blocks;
    const uint plane = line / lines, step = is_row ? 1u : f.kv_blocks;
    const uint start = plane * f.q_blocks * f.kv_blocks + line % lines * (is_row ? f.kv_blocks : 1u);
    const long at = (is_row ? f.entries : f.column_entries) + (long)line * 4 * count;
    __global uint *const entries = (__global uint *)(mask + at);
    uint end = 0u;
    (void)tensor;
    for (uint base = 0u; base < count; base += WIDTH) {
        const uint block = base + lane;
        const uint seen = block < count ? classes[start + block * step] : 0u;
        const int has_allowed = (seen & SEEN_ALLOWED) != 0u;
        taken[lane] = has_allowed ? 1u : 0u;
        barrier(CLK_LOCAL_MEM_FENCE);
        /* Two loops: what PoCL 6.0 makes of one with a comparison of i, with its method cbs, ends the process. */
        uint before = 0u;
        for (uint i = 0u; i < lane; i++)
            before += taken[i];
        uint all = before;
        for (uint i = lane; i < WIDTH; i++)
            all += taken[i];
        if (has_allowed)
            entries[end + before] = block << 1 | (seen == PARTIAL ? 1u : 0u);
        end += all;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lane == 0u) {
        __global attune_opencl_mask_row *const row = (__global attune_opencl_mask_row *)(mask + (is_row ? f.rows
                                                                                                        : f.columns)) +
                                                     line;
        row->offset = at;
        row->count = end;
    }
}
