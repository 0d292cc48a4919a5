/* SPDX-License-Identifier: MIT */
/*
 * The load thread of the backward pass for sm_100a by pairs of CTAs. A cluster of two has a tile of 256 keys: each CTA
 * has 128 of them as lanes of S, dP, dK and dV, and both have the same query tiles. Products are of both CTAs
 * (tcgen05.cuh), and a thread of the CTA of rank 0 issues them. Of a right operand each CTA has half:
 *
 *     S = K Q^T, dP = V dO^T     half of the rows of Q and dO
 *     dV += P dO, dK += dS Q     half of their columns, which are loaded again
 *     dQ = dS^T K                half of the columns of K, of all 256 keys
 *
 * The left operand of dQ is half of the rows of dS, of all keys: each warp group stores its half of the rows, in its
 * own CTA or in the other one. A CTA has then half of the rows of dQ over all keys, and adds it.
 *
 * Barriers that say that operands are there, or P or dS, are those of rank 0, where loads of both CTAs count and warps
 * of both arrive. What products have read or written is said to both CTAs, each of which waits at its own barriers.
 */
#ifndef ATTUNE_CUDA_PAIR_BACKWARD_SM100_CUH
#define ATTUNE_CUDA_PAIR_BACKWARD_SM100_CUH

#include "config_backward_sm100.cuh" /* before the headers that read it */

#include "producer_backward_sm90.cuh"
#include "tcgen05.cuh"

/* rows, columns: of Q; dO has `outputs` of the control for both. keys: K and V. freed: the other CTA has no more use of
 * tensor memory. */
struct pair_control {
    pipeline<STAGES> rows;
    pipeline<backward::DO_STAGES> columns;
    u64 keys, freed;
    struct { /* the block lists of the other CTA's keys, where a block has no more than 128 */
        const int *partial, *full;
        int left, left_full;
    } other;
};

/* The state of the rows of Q after as many loads. */
__device__ __forceinline__ pipeline_state q_rows_state(u32 loaded)
{
    return {loaded % STAGES, ~(loaded / STAGES) & 1};
}

/* Acquires a stage, of which rank 0's barrier expects what both CTAs load. */
template <auto PIPELINE, typename barriers>
__device__ __forceinline__ void acquire_both(barriers &c, const pipeline_state &r, u32 bytes, bool first)
{
    producer_acquire<PIPELINE>(c, r);
    if (first)
        producer_expect<PIPELINE>(c, r, 2 * bytes);
}

/* Half of the rows of the iterator's query tile, and half of the columns: TMA's box has 64 rows of 64 columns. */
template <int SLABS>
__device__ __forceinline__ void load_half_rows(const control &c, u32 to, const tensor_map *map, u64 *full, int rank)
{
    auto &it = c.iterator;
#pragma unroll
    for (int slab = 0; slab < SLABS; slab++)
        tensor_load_pair(to + slab * backward::ROW_SLAB, map, full, slab * 64, it.q + rank * (BLOCK_M / 2), it.h, it.b);
}

__device__ __forceinline__ void load_half_columns(const control &c, u32 to, const tensor_map *map, u64 *full,
                                                  int column)
{
    auto &it = c.iterator;
#pragma unroll
    for (int half = 0; half < 2; half++)
        tensor_load_pair(to + half * backward::ROW_SLAB, map, full, column, it.q + half * (BLOCK_M / 2), it.h, it.b);
}

/* 1: load Q, dO, LSE and delta of a query tile. */
__device__ __forceinline__ void load_pair_tile(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                               control &c, pair_control &p, u32 memory, pipeline_state &pipe,
                                               const tensor_map *q_map, const tensor_map *do_map)
{
    auto &it = c.iterator;
    const u32 loaded = c.loaded++;
    const pipeline_state rows = q_rows_state(loaded), own = own_do_state(loaded);
    const int rank = (int)cluster_rank();
    i64 row = workspace_row(a, g, it.b, it.h, it.q);
    producer_acquire<&control::queries>(c, pipe);
    c.descs[pipe.stage] = query_tile_desc(a, c);
    producer_expect<&control::queries>(c, pipe, 2 * backward::ROW_BYTES);
    bulk_load(memory + backward::LSE_OFFSET + pipe.stage * backward::ROW_BYTES, (const float *)g.lse + row,
              backward::ROW_BYTES, &c.queries.full[pipe.stage]);
    bulk_load(memory + backward::DELTA_OFFSET + pipe.stage * backward::ROW_BYTES, (const float *)g.delta + row,
              backward::ROW_BYTES, &c.queries.full[pipe.stage]);
    acquire_both<&pair_control::rows>(p, rows, backward::Q_BYTES, !rank);
    load_half_rows<backward::SLABS_D>(c, memory + backward::Q_OFFSET + rows.stage * backward::Q_BYTES, q_map,
                                      &p.rows.full[rows.stage], rank);
    acquire_both<&control::outputs>(c, own, backward::DO_BYTES + backward::COLUMNS_BYTES, !rank);
    load_half_rows<backward::SLABS_DV>(c, memory + backward::DO_OFFSET + own.stage * backward::DO_BYTES, do_map,
                                       &c.outputs.full[own.stage], rank);
    load_half_columns(c, memory + backward::DO_COLUMNS_OFFSET + own.stage * backward::COLUMNS_BYTES, do_map,
                      &c.outputs.full[own.stage], rank * (backward::WIDTH_DV / 2));
    acquire_both<&pair_control::columns>(p, own, backward::COLUMNS_BYTES, !rank);
    load_half_columns(c, memory + backward::Q_COLUMNS_OFFSET + own.stage * backward::COLUMNS_BYTES, q_map,
                      &p.columns.full[own.stage], rank * (backward::WIDTH_D / 2));
    advance(pipe);
}

__device__ __forceinline__ void push_pair_descriptor(control &c, pipeline_state &pipe, int tile, int flags)
{
    producer_acquire<&control::queries>(c, pipe);
    c.descs[pipe.stage] = {tile, 0, 0, flags};
    producer_commit<&control::queries>(c, pipe);
    advance(pipe);
}

/* The transposed lists of a block of keys, which are empty where the call has none of these. */
template <typename lists>
__device__ __forceinline__ void open_lists(lists &l, const attune_cuda_backward &g, i64 row, bool any)
{
    const i64 *list = (const i64 *)g.partial.offsets + row;
    l.partial = (const int *)g.partial.indices + (any ? list[0] : 0);
    l.left = any ? (int)(list[1] - list[0]) : 0;
    list = (const i64 *)g.full.offsets + row;
    l.full = (const int *)g.full.indices + (any ? list[0] : 0);
    l.left_full = any ? (int)(list[1] - list[0]) : 0;
}

template <typename lists> __device__ __forceinline__ int next_listed(const lists &l)
{
    return min(l.left ? *l.partial : NO_BLOCK, l.left_full ? *l.full : NO_BLOCK);
}

/* Takes a block from the lists that have it. Its flags, or TILE_ABSENT. */
template <typename lists> __device__ __forceinline__ int take_listed(lists &l, int block, int of_full)
{
    if (l.left_full && *l.full == block) {
        l.full++;
        l.left_full--;
        return of_full;
    }
    if (l.left && *l.partial == block) {
        l.partial++;
        l.left--;
        return TILE_MASKED | TILE_PARTIAL;
    }
    return TILE_ABSENT;
}

/* Loads every query tile of one head that attends to the keys of either CTA. Both have the same tiles. */
__device__ __forceinline__ void load_pair_head(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                               control &c, pair_control &p, u32 memory, pipeline_state &pipe,
                                               const tensor_map *q_map, const tensor_map *do_map)
{
    auto &it = c.iterator;
    const int of_full = c.kv + backward::CTA_N > a.kv_len ? TILE_MASKED : 0;
    it.flags = of_full;
    if constexpr (!config::HAVE_BLOCKS) {
#pragma unroll 1
        for (it.q = 0; it.q < a.q_len; it.q += BLOCK_M)
            load_pair_tile(a, g, c, p, memory, pipe, q_map, do_map);
        return;
    }
    {
        i64 row = it.b * g.column_batch_rows + it.h * g.column_head_rows;
        const bool divided = a.kv_block < BLOCK_N; /* each CTA has a block of keys */
        const int own = c.kv / a.kv_block, other = own ^ 1;
        open_lists(it, g, row + own, c.kv < a.kv_len || !divided);
        open_lists(p.other, g, row + other, divided && other * a.kv_block < a.kv_len);
    }
    for (;;) {
        const int block = min(next_listed(it), next_listed(p.other));
        /* The block lists may cover more rows than the call has. */
        if (block >= (a.q_len + a.q_block - 1) / a.q_block)
            break;
        take_listed(p.other, block, 0);
        it.flags = take_listed(it, block, of_full);
        it.q = block * a.q_block;
        it.end = min(it.q + a.q_block, a.q_len);
#pragma unroll 1
        for (; it.q < it.end; it.q += BLOCK_M)
            load_pair_tile(a, g, c, p, memory, pipe, q_map, do_map);
    }
}

/* 1: load K and V of the CTA's keys, and half of the columns of K of all. */
__device__ __forceinline__ void load_pair_keys(const attune_cuda_arguments &a, const control &c, pair_control &p,
                                               u32 memory, int kv, const tensor_map *k_map, const tensor_map *v_map)
{
    auto &it = c.iterator;
    const int rank = (int)cluster_rank();
    /* A broadcast batch (stride 0) has size 1 in its tensor map; K and V may differ in this. */
    const int b_k = a.k.batch ? it.b_keys : 0, b_v = a.v.batch ? it.b_keys : 0;
    if (!rank)
        barrier_expect(&p.keys, 2 * (backward::K_BYTES + backward::V_BYTES + backward::K_COLUMNS_BYTES));
#pragma unroll
    for (int slab = 0; slab < backward::SLABS_D; slab++)
        tensor_load_pair(memory + slab * backward::KEY_SLAB, k_map, &p.keys, slab * 64, c.kv, it.h_keys, b_k);
#pragma unroll
    for (int slab = 0; slab < backward::SLABS_DV; slab++)
        tensor_load_pair(memory + backward::K_BYTES + slab * backward::KEY_SLAB, v_map, &p.keys, slab * 64, c.kv,
                         it.h_keys, b_v);
#pragma unroll
    for (int half = 0; half < 2; half++)
        tensor_load_pair(memory + backward::K_COLUMNS_OFFSET + half * backward::KEY_SLAB, k_map, &p.keys,
                         rank * (backward::WIDTH_D / 2), kv + half * backward::CTA_N, it.h_keys, b_k);
}

__device__ __forceinline__ void produce_pair(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                             pair_control &p, u32 memory, const tensor_map *q_map,
                                             const tensor_map *k_map, const tensor_map *v_map, const tensor_map *do_map)
{
    pipeline_state pipe = {0, 1};
    auto &it = c.iterator;
#pragma unroll 1
    for (it.tiles_done = 0; (it.tile = next_tile(a, c, it.tiles_done)) < key_tile_count(a, g); it.tiles_done++) {
        {
            it.tile = longest_first(a, g, it.tile);
            key_tile at = key_tile_of(a, g, it.tile);
            producer_acquire<&control::keys>(c, {0, ~it.tiles_done & 1u});
            c.kv = at.kv + (int)cluster_rank() * backward::CTA_N;
            it.b_keys = at.b;
            it.h_keys = at.h_kv;
            producer_commit<&control::keys>(c, {0, 0});
            load_pair_keys(a, c, p, memory, at.kv, k_map, v_map);
        }
        it.b_end = g.kv_batch == 1 ? a.batch : it.b_keys + 1;
        it.h_end = first_head(a, c) + a.heads / a.kv_heads;
#pragma unroll 1
        for (it.b = it.b_keys; it.b < it.b_end; it.b++)
#pragma unroll 1
            for (it.h = first_head(a, c); it.h < it.h_end; it.h++)
                load_pair_head(a, g, c, p, memory, pipe, q_map, do_map);
        push_pair_descriptor(c, pipe, it.tile, TILE_END);
    }
    push_pair_descriptor(c, pipe, 0, TILE_STOP);
    drain(c, pipe);
#pragma unroll 1
    for (u32 i = 0; i < STAGES; i++)
        producer_acquire<&pair_control::rows>(p, q_rows_state(c.loaded + i));
#pragma unroll 1
    for (u32 i = 0; i < backward::DO_STAGES; i++)
        producer_acquire<&pair_control::columns>(p, own_do_state(c.loaded + i));
}

/* --------------------------------------------------------------------------------------------------------- barriers */

/* Says at the barriers of all CTAs that products have read or written. */
__device__ __forceinline__ void commit_all(u64 *barrier)
{
    if constexpr (backward::PAIRED)
        tcgen05_commit_pair(barrier);
    else
        tcgen05_commit(barrier);
}

/* Arrives where the thread that issues products waits. */
__device__ __forceinline__ void warp_arrive_issuer(u64 *barrier)
{
    if constexpr (backward::PAIRED) {
        __syncwarp();
        if (threadIdx.x % 32 < ARRIVALS)
            barrier_arrive_first(barrier);
    } else {
        warp_arrive(barrier);
    }
}

/* Waits for what is signalled from either CTA. */
__device__ __forceinline__ void wait_both(u64 *barrier, u32 phase)
{
    if constexpr (backward::PAIRED)
        barrier_wait_peer(barrier, phase);
    else
        barrier_wait(barrier, phase);
}

/* Stores to shared memory, also of the other CTA, are before products. */
__device__ __forceinline__ void fence_stores()
{
    if constexpr (backward::PAIRED)
        fence_async_all();
    else
        fence_async();
}

__device__ __forceinline__ void init_pair_barriers(control &c, pair_control &p)
{
    for (int i = 0; i < STAGES; i++)
        pipeline_init<&pair_control::rows>(p, i, 1, 1);
    for (int i = 0; i < backward::DO_STAGES; i++)
        pipeline_init<&pair_control::columns>(p, i, 1, 1);
    pipeline_init<&control::next>(c, 0, 1, 1);
    barrier_init(&p.keys, 1);
    barrier_init(&p.freed, 1);
}

#endif
