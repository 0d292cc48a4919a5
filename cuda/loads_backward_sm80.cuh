/* SPDX-License-Identifier: MIT */
/*
 * Loads of the mma.sync backward kernels. The outer tile is loaded once; tiles of the inner loop are prefetched with
 * cp.async, STAGES - 1 ahead. The block iterator and the descriptors of the following tiles are in shared memory,
 * written by thread 0, since the accumulators need the registers.
 */
#ifndef ATTUNE_CUDA_LOADS_BACKWARD_SM80_CUH
#define ATTUNE_CUDA_LOADS_BACKWARD_SM80_CUH

#include "backward.cuh"
#include "layout_sm80.h"
#include "pairs.cuh"

/* Where warps share rows, P and dS pass through shared memory (backward_atomic_sm80.cu). */
constexpr attune_cuda_backward_sm80_layout LAYOUT = SPLIT > 1 ? attune_cuda_backward_atomic_sm80(TILE)
                                                              : attune_cuda_backward_sm80(TILE, DK_DV);
static_assert(planned(LAYOUT.size));
static_assert(SPLIT == 1 || config::PADDING == attune_cuda_backward_atomic_sm80_padding(BLOCK_N, WARPS));
constexpr int ROLES = DK_DV && config::SEPARATE_DK_DV ? 2 : 1; /* CTAs of an outer tile */

constexpr int AHEAD = STAGES > 1 ? STAGES - 1 : 1;
constexpr u32 TILE_DESCS = attune_cuda_backward_sm80_descs(STAGES);
static_assert(TILE_DESCS >= AHEAD + 3);
constexpr u32 WORK_ITEM_BYTES = ATTUNE_CUDA_WORK_ITEM_BYTES;
constexpr u32 OUTER_SECOND_OFFSET = LAYOUT.outer_second, INNER_OFFSET = LAYOUT.inner, ROW_DATA_OFFSET = LAYOUT.row_data,
              WORK_OFFSET = LAYOUT.work;
constexpr u32 INNER_BYTES = LAYOUT.inner_stage, ROW_DATA_BYTES = LAYOUT.row_data_stage;
constexpr u32 SECOND_OFFSET = LAYOUT.inner_second; /* V follows K, and dO follows Q */

/* A CTA's work item: its outer tile, and the iterator over the inner tiles, which thread 0 advances. */
template <bool KEYS> struct outer_tile;

/* An outer tile of keys. */
template <> struct outer_tile<true> {
    int slow_path; /* first, as on_slow_path reads it */
    column c;
    column_iterator w;

    __device__ __forceinline__ void find(const attune_cuda_arguments &a, const attune_cuda_backward &back)
    {
        c = column_of(a, back, (int)blockIdx.x, ROLES);
    }

    __device__ __forceinline__ void begin(const attune_cuda_arguments &a, const attune_cuda_backward &back)
    {
        column_begin(w, a, back, c);
    }

    __device__ __forceinline__ inner_tile next(const attune_cuda_arguments &a, const attune_cuda_backward &back)
    {
        rows r = column_next(w, a, back, c);
        return {r.b, r.h, c.h_kv, r.q, r.full};
    }

    __device__ __forceinline__ pair_coord coord() const
    {
        return {uniform(c.b), uniform(c.h_kv), uniform(c.h_kv), uniform(c.kv), 0};
    }
};

/* An outer tile of queries. */
template <> struct outer_tile<false> {
    int slow_path;
    tile_coord p;
    block_iterator w;

    __device__ __forceinline__ void find(const attune_cuda_arguments &a, const attune_cuda_backward &back)
    {
        p = tile_coord_of(a, (int)blockIdx.x);
    }

    __device__ __forceinline__ void begin(const attune_cuda_arguments &a, const attune_cuda_backward &back)
    {
        block_iterator_begin(w, a, p);
    }

    __device__ __forceinline__ inner_tile next(const attune_cuda_arguments &a, const attune_cuda_backward &back)
    {
        keys k = block_iterator_next(w, a);
        return {p.b, p.h, p.h_kv, k.kv, k.full};
    }

    __device__ __forceinline__ pair_coord coord() const
    {
        return {uniform(p.b), uniform(p.h), uniform(p.h_kv), uniform(p.q), 0};
    }
};
typedef outer_tile<DK_DV> work_item;
static_assert(sizeof(work_item) <= WORK_ITEM_BYTES);

/* Writes the descriptor of the iterator's next tile. By thread 0. */
__device__ __forceinline__ void enqueue_tile(unsigned char *work, int index, const attune_cuda_arguments &a,
                                             const attune_cuda_backward &back)
{
    inner_tile t = ((work_item *)work)->next(a, back);
    *(int4 *)(work + WORK_ITEM_BYTES + index % (int)TILE_DESCS * 16) =
        make_int4(t.b, t.h, t.first, t.h_kv * 2 + t.full);
}

__device__ __forceinline__ inner_tile tile_desc(const unsigned char *work, int index)
{
    int b, h, first, rest;
    load_shared_4(b, h, first, rest, shared_address(work) + WORK_ITEM_BYTES + (u32)(index % (int)TILE_DESCS) * 16);
    return {b, h, rest >> 1, first, (bool)(rest & 1)};
}

/* Whether the CTA runs a second time, on the non-finite slow path (backward_sm80.cu). backward_atomic_sm80.cu has none:
 * it sets `redo`. */
__device__ __forceinline__ bool on_slow_path(const unsigned char *work)
{
    if constexpr (SPLIT > 1)
        return false;
    int slow_path;
    load_shared(slow_path, shared_address(work));
    return slow_path;
}

template <int ROWS, int DIM, int CHUNKS>
__device__ __forceinline__ void load_rows(u32 to, const attune_cuda_view &x, int b, int h, int first, int limit)
{
    load_tile<ROWS, DIM, CHUNKS>(to, (const element *)x.address + b * x.batch + h * x.head, x.row, first, limit,
                                 view_aligned(x));
}

template <int ROWS>
__device__ __forceinline__ void load_both(u32 to, const attune_cuda_view &x, const attune_cuda_view &y, int b, int h,
                                          int first, int limit)
{
    load_rows<ROWS, HEAD_DIM, CHUNKS_D>(to, x, b, h, first, limit);
    load_rows<ROWS, HEAD_DIM_V, CHUNKS_DV>(to + (u32)(ROWS * PAD_D * sizeof(element)), y, b, h, first, limit);
}

/* lse and delta of an inner tile's queries. */
__device__ __forceinline__ void load_row_data(u32 to, const attune_cuda_arguments &a, const attune_cuda_backward &back,
                                              const inner_tile &t)
{
    i64 row = ((i64)t.b * a.heads + t.h) * back.row_stride + t.first;
    for (int i = thread_index_remat(); i < INNER_ROWS; i += THREADS) {
        copy_float(to + (u32)i * 4, (const float *)back.lse + row + i);
        copy_float(to + (u32)(INNER_ROWS + i) * 4, (const float *)back.delta + row + i);
    }
}

/* 1, 2: an inner tile as one cp.async group; a tile of queries comes with its lse and delta. */
__device__ __forceinline__ void load_inner(u32 to, u32 row_data, const attune_cuda_arguments &a,
                                           const attune_cuda_backward &back, const inner_tile &t)
{
    if (t.first >= 0) {
        if constexpr (DK_DV) {
            load_both<INNER_ROWS>(to, a.q, back.d_o, t.b, t.h, t.first, a.q_len);
            load_row_data(row_data, a, back, t);
        } else
            load_both<INNER_ROWS>(to, a.k, a.v, t.b, t.h_kv, t.first, a.kv_len);
    }
    copy_commit();
}

/* Fills the ring of descriptors. By thread 0. */
__device__ __forceinline__ void enqueue_first_tiles(unsigned char *work, const attune_cuda_arguments &a,
                                                    const attune_cuda_backward &back)
{
    ((work_item *)work)->begin(a, back);
#pragma unroll 1
    for (int i = 0; i <= AHEAD + 1; i++)
        enqueue_tile(work, i, a, back);
}

/* Waits until tile `index` is in shared memory. The barrier also says that all warps have read the tile before it: the
 * copy of `next` starts into that stage, and thread 0 writes one more descriptor. */
__device__ __forceinline__ void wait_tile(unsigned char *work, int index, u32 stage, u32 inner_tiles, u32 row_data,
                                          const attune_cuda_arguments &a, const attune_cuda_backward &back,
                                          const inner_tile &next)
{
    copy_wait<AHEAD - 1>();
    __syncthreads();
    if constexpr (STAGES > 1) {
        u32 free_stage = stage == 0 ? STAGES - 1 : stage - 1;
        load_inner(inner_tiles + free_stage * INNER_BYTES, row_data + free_stage * ROW_DATA_BYTES, a, back, next);
    }
    if (threadIdx.x == 0)
        enqueue_tile(work, index + AHEAD + 2, a, back);
}

#endif
