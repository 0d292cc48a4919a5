/* SPDX-License-Identifier: MIT */
/* Shared by the backward kernels that loop over query rows: the iterator over the tiles of rows that a tile of keys
 * meets. */
#ifndef ATTUNE_CUDA_BACKWARD_CUH
#define ATTUNE_CUDA_BACKWARD_CUH

#include "common.cuh"
#include "sums.cuh"

/* ------------------------------------------------------------------------------------------------- tile coordinates */

/* The tile of keys that a CTA computes dK and dV of. The queries of `heads` pairs of batch and head meet it: the
 * `group` heads of its GQA group, in each batch that shares the keys. */
struct column {
    int b, h_kv, kv; /* kv: the first key; b: the batch index in k and v */
    int group, heads;
    int role; /* where separate CTAs compute dK and dV: 0 dV, 1 dK */
};

/* The first keys are scheduled first: under a causal mask they meet the most rows. */
__device__ __forceinline__ column column_of(const attune_cuda_arguments &a, const attune_cuda_backward &back, int index,
                                            int roles)
{
    column c;
    int tiles = (a.kv_len + BLOCK_N - 1) / BLOCK_N;
    c.role = index % roles;
    index /= roles;
    int plane = index / tiles;
    c.kv = (index - plane * tiles) * BLOCK_N;
    c.b = plane / a.kv_heads;
    c.h_kv = plane - c.b * a.kv_heads;
    c.group = a.heads / a.kv_heads;
    c.heads = c.group * (back.kv_batch == 1 ? a.batch : 1);
    return c;
}

/* A tile of BLOCK_M query rows. */
struct rows {
    int b, h;
    int q;     /* the first row; -1 after the last tile */
    bool full; /* the mask allows every pair; only the lengths may cut the tile */
};

/* Iterates over the tiles of rows that a tile of keys meets: head by head, ascending within each. */
struct column_iterator {
    rows next;
    int head; /* index of the following head, less than column.heads */
    /* With block lists. */
    lists left;
    int end; /* end of the current block */
};

__device__ __forceinline__ void column_block(column_iterator &w, const attune_cuda_arguments &a)
{
    int block = min(w.left.next_partial, w.left.next_full);
    w.next.full = block == w.left.next_full;
    /* The mask's lengths may exceed the call's. */
    if (block == NO_BLOCK || block * a.q_block >= a.q_len) {
        w.next.q = -1;
    } else {
        w.next.q = block * a.q_block;
        w.end = min(w.next.q + a.q_block, a.q_len);
        lists_next(w.left, w.next.full);
    }
}

/* Moves on to the next head that has a tile. */
__device__ __forceinline__ void column_head(column_iterator &w, const attune_cuda_arguments &a,
                                            const attune_cuda_backward &back, const column &c)
{
    w.next.q = -1;
    while (w.next.q < 0 && w.head < c.heads) {
        int b = w.head / c.group;
        w.next.b = c.b + b;
        w.next.h = c.h_kv * c.group + w.head - b * c.group;
        w.head++;
        if constexpr (config::HAVE_BLOCKS) {
            i64 row = w.next.b * back.column_batch_rows + w.next.h * back.column_head_rows + c.kv / a.kv_block;
            lists_open(w.left, back.partial, back.full, row);
            lists_begin(w.left);
            column_block(w, a);
        } else {
            w.next.q = 0;
            w.next.full = true;
        }
    }
}

__device__ __forceinline__ void column_begin(column_iterator &w, const attune_cuda_arguments &a,
                                             const attune_cuda_backward &back, const column &c)
{
    w.head = 0;
    column_head(w, a, back, c);
}

/* Returns the next tile; q is -1 from the end on. */
__device__ __forceinline__ rows column_next(column_iterator &w, const attune_cuda_arguments &a,
                                            const attune_cuda_backward &back, const column &c)
{
    rows taken = w.next;
    if (taken.q >= 0) {
        w.next.q += BLOCK_M;
        if constexpr (config::HAVE_BLOCKS) {
            if (w.next.q >= w.end)
                column_block(w, a);
        } else if (w.next.q >= a.q_len)
            w.next.q = -1;
        if (w.next.q < 0)
            column_head(w, a, back, c);
    }
    return taken;
}

#endif
