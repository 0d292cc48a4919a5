/* SPDX-License-Identifier: MIT */
/*
 * The load thread of the backward kernels with TMA. It iterates over the mask's transposed block lists and loads K, V,
 * Q, dO, LSE and delta.
 */
#ifndef ATTUNE_CUDA_PRODUCER_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_PRODUCER_BACKWARD_SM90_CUH

#include "layout_backward_sm90.cuh"

/* ----------------------------------------------------------------------------------------------------- load thread */

/* Loads Q, LSE and delta of the iterator's query tile. */
__device__ __forceinline__ void load_q(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                       u32 memory, u32 stage, const tensor_map *q_map)
{
    auto &it = c.iterator;
    u64 *full = &c.queries.full[stage];
    i64 row = workspace_row(a, g, it.b, it.h, it.q);
#pragma unroll
    for (int slab = 0; slab < backward::SLABS_D; slab++)
        tensor_load(memory + backward::Q_OFFSET + stage * backward::Q_BYTES + slab * backward::ROW_SLAB, q_map, full,
                    slab * 64, it.q, it.h, it.b);
    bulk_load(memory + backward::LSE_OFFSET + stage * backward::ROW_BYTES, (const float *)g.lse + row,
              backward::ROW_BYTES, full);
    bulk_load(memory + backward::DELTA_OFFSET + stage * backward::ROW_BYTES, (const float *)g.delta + row,
              backward::ROW_BYTES, full);
}

/* Loads dO of the iterator's query tile. full: the barrier at which its bytes count. */
__device__ __forceinline__ void load_do(control &c, u32 memory, u32 stage, const tensor_map *do_map, u64 *full)
{
    auto &it = c.iterator;
#pragma unroll
    for (int slab = 0; slab < backward::SLABS_DV; slab++)
        tensor_load(memory + backward::DO_OFFSET + stage * backward::DO_BYTES + slab * backward::ROW_SLAB, do_map, full,
                    slab * 64, it.q, it.h, it.b);
}

/* TILE_VALUES of the iterator's item. */
__device__ __forceinline__ int values_flag(const control &c)
{
    return backward::ITEMS > 1 && c.iterator.tile % backward::ITEMS ? TILE_VALUES : 0;
}

__device__ __forceinline__ tile_desc query_tile_desc(const attune_cuda_arguments &a, const control &c)
{
    auto &it = c.iterator;
    /* Capture gradients are summed over all rows of a tile: rows past the last must be masked, since their scores may
     * be NaN although their LSE is +inf. */
    int flags = backward::HAVE_CAPTURE_GRADIENTS && it.q > a.q_len - BLOCK_M ? it.flags | TILE_MASKED : it.flags;
    flags |= values_flag(c);
    return {it.q, it.h, it.b, backward::ORDERED ? flags + c.kv / BLOCK_N * TILE_KEYS : flags};
}

/* The state of dO's own stages after as many loads; not used where there are none, as on Hopper. */
__device__ __forceinline__ pipeline_state own_do_state(u32 loaded)
{
    constexpr u32 OWN_STAGES = backward::DO_STAGES ? backward::DO_STAGES : 1;
    return {loaded % OWN_STAGES, ~(loaded / OWN_STAGES) & 1};
}

/* dO of the iterator's query tile, whose stages are its own: fewer than Q has, or as many. */
template <typename barriers>
__device__ __forceinline__ void load_own_do(barriers &c, u32 memory, const tensor_map *do_map)
{
    const pipeline_state own = own_do_state(c.loaded++);
    producer_acquire<&barriers::outputs>(c, own);
    producer_expect<&barriers::outputs>(c, own, backward::DO_BYTES);
    load_do(c, memory, own.stage, do_map, &c.outputs.full[own.stage]);
}

/* After the last tile: waits until all stages have been released. pipe: after that of TILE_STOP, which stays. */
template <typename barriers> __device__ __forceinline__ void drain(barriers &c, pipeline_state pipe)
{
    auto &it = c.iterator;
    producer_acquire<&control::keys>(c, {0, ~it.tiles_done & 1u});
#pragma unroll 1
    for (int i = 1; i < STAGES; i++, advance(pipe))
        producer_acquire<&control::queries>(c, pipe);
#pragma unroll 1
    for (u32 i = 0, loaded = c.loaded; i < backward::DO_STAGES; i++, loaded++)
        producer_acquire<&barriers::outputs>(c, own_do_state(loaded));
}

/* 1: load Q, dO, LSE and delta of a query tile. The descriptor is written before the arrival that releases it to the
 * consumers. */
__device__ __forceinline__ void load_query_tile(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                                control &c, u32 memory, pipeline_state &pipe, const tensor_map *q_map,
                                                const tensor_map *do_map)
{
    if constexpr (backward::PAIRED) {
        /* The buffer of dO becomes empty later than that of Q. */
        barrier_wait(&c.q_empty[pipe.stage], pipe.phase);
        const tile_desc desc = query_tile_desc(a, c);
        barrier_expect_more(&c.queries.full[pipe.stage], backward::Q_BYTES + 2 * backward::ROW_BYTES);
        load_q(a, g, c, memory, pipe.stage, q_map);
        producer_acquire<&control::queries>(c, pipe);
        c.descs[pipe.stage] = desc;
        producer_expect<&control::queries>(c, pipe, backward::DO_BYTES);
    } else if constexpr (backward::DO_STAGES > 0) {
        producer_acquire<&control::queries>(c, pipe);
        c.descs[pipe.stage] = query_tile_desc(a, c);
        producer_expect<&control::queries>(c, pipe, backward::Q_BYTES + 2 * backward::ROW_BYTES);
        load_q(a, g, c, memory, pipe.stage, q_map);
        load_own_do(c, memory, do_map);
        advance(pipe);
        return;
    } else {
        producer_acquire<&control::queries>(c, pipe);
        c.descs[pipe.stage] = query_tile_desc(a, c);
        producer_expect<&control::queries>(c, pipe, backward::Q_BYTES + backward::DO_BYTES + 2 * backward::ROW_BYTES);
        load_q(a, g, c, memory, pipe.stage, q_map);
    }
    load_do(c, memory, pipe.stage, do_map, &c.queries.full[pipe.stage]);
    advance(pipe);
}

__device__ __forceinline__ void push_descriptor(control &c, pipeline_state &pipe, int tile, int flags)
{
    producer_acquire<&control::queries>(c, pipe);
    if (backward::PAIRED)
        barrier_wait(&c.q_empty[pipe.stage], pipe.phase);
    c.descs[pipe.stage] = {tile, 0, 0, flags};
    producer_commit<&control::queries>(c, pipe);
    advance(pipe);
}

/* Which blocks of rows load_head loads. */
enum head_part { HEAD_ALL, HEAD_FIRST, HEAD_REST };

/* The first of the query heads that share the tile's keys. */
__device__ __forceinline__ int first_head(const attune_cuda_arguments &a, const control &c)
{
    return c.iterator.h_keys * (a.heads / a.kv_heads);
}

/* Loads every query tile of one head that attends to the tile of keys; HEAD_FIRST: those of the first block of all
 * heads; HEAD_REST: the others of one. */
__device__ __forceinline__ void load_head(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                          u32 memory, pipeline_state &pipe, const tensor_map *q_map,
                                          const tensor_map *do_map)
{
    auto &it = c.iterator;
    if constexpr (!config::HAVE_BLOCKS) {
#pragma unroll 1
        for (it.q = backward::SPLIT_TAIL ? it.begin : 0; it.q < (backward::SPLIT_TAIL ? it.end : a.q_len);
             it.q += BLOCK_M)
            load_query_tile(a, g, c, memory, pipe, q_map, do_map);
        return;
    }
    {
        i64 row = it.b * g.column_batch_rows + it.h * g.column_head_rows + c.kv / a.kv_block;
        const i64 *list = (const i64 *)g.partial.offsets + row;
        it.partial = (const int *)g.partial.indices + list[0];
        it.left = (int)(list[1] - list[0]);
        list = (const i64 *)g.full.offsets + row;
        it.full = (const int *)g.full.indices + list[0];
        it.left_full = (int)(list[1] - list[0]);
    }
    for (bool first = true;; first = false) {
        {
            int block = it.left ? *it.partial : NO_BLOCK, block_full = it.left_full ? *it.full : NO_BLOCK;
            it.flags = TILE_MASKED | TILE_PARTIAL;
            if (block_full < block) {
                block = block_full;
                it.full++;
                it.left_full--;
                it.flags = c.kv + BLOCK_N > a.kv_len ? TILE_MASKED : 0;
            } else {
                it.partial++;
                it.left--;
            }
            /* The block lists may cover more rows than the call has. */
            if (block >= (a.q_len + a.q_block - 1) / a.q_block)
                break;
            it.q = block * a.q_block;
            it.end = min(it.q + a.q_block, a.q_len);
        }
        if (backward::FIRST_BLOCKS_FIRST && it.part == HEAD_REST && first)
            continue;
#pragma unroll 1
        for (; it.q < it.end; it.q += BLOCK_M)
            if (backward::FIRST_BLOCKS_FIRST && it.part == HEAD_FIRST) {
#pragma unroll 1
                for (it.h = first_head(a, c); it.h < it.h_end; it.h++)
                    load_query_tile(a, g, c, memory, pipe, q_map, do_map);
            } else
                load_query_tile(a, g, c, memory, pipe, q_map, do_map);
        if (backward::FIRST_BLOCKS_FIRST && it.part == HEAD_FIRST)
            break;
    }
}

/* The next tile of keys. In a cluster rank 0 takes it from the counter and sends it to the peer, which signals when it
 * has read it. */
__device__ __forceinline__ int next_tile(const attune_cuda_arguments &a, control &c, int tiles_done)
{
    int tile = 0;
    if (!backward::PAIRED || cluster_rank() == 0)
        tile = atomicAdd((int *)a.counter, 1);
    if (backward::PAIRED && cluster_rank() == 0) {
        barrier_wait_peer(&c.next.empty[0], ~tiles_done & 1);
        store_peer(&c.next_tile, tile, &c.next.full[0]);
    } else if (backward::PAIRED) {
        producer_expect<&control::next>(c, {0, 0}, sizeof c.next_tile);
        barrier_wait_peer(&c.next.full[0], tiles_done & 1);
        tile = *(volatile int *)&c.next_tile;
        barrier_arrive_peer(&c.next.empty[0]);
    }
    return tile;
}

__device__ __forceinline__ void produce(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                        u32 memory, const tensor_map *q_map, const tensor_map *k_map,
                                        const tensor_map *v_map, const tensor_map *do_map)
{
    pipeline_state pipe = {0, 1}; /* a fresh barrier passes a wait for the phase before its first */
    auto &it = c.iterator;
    /* The first tile too comes from the counter: with a fixed order, and for the rounding of dQ, a CTA may wait only
     * for tiles that were taken before, else CTAs that are not yet resident would block it for ever. */
#pragma unroll 1
    for (it.tiles_done = 0; (it.tile = next_tile(a, c, it.tiles_done)) < key_tile_count(a, g) * backward::ITEMS;
         it.tiles_done++) {
        /* 1: load K and V */
        {
            it.tile = longest_first(a, g, it.tile);
            key_tile at = key_tile_of(a, g, it.tile / backward::ITEMS);
            producer_acquire<&control::keys>(c, {0, ~it.tiles_done & 1u});
            c.kv = at.kv;
            it.flags = at.kv + BLOCK_N > a.kv_len ? TILE_MASKED : 0;
            it.b_keys = at.b;
            it.h_keys = at.h_kv;
        }
        if (backward::SPLIT_TAIL) {
            bool split = it.tile >= g.full_wave_tiles;
            it.begin = split ? (it.tile - g.full_wave_tiles) % g.tail_splits * g.tail_split_rows : 0;
            it.end = split ? min(a.q_len - it.begin, g.tail_split_rows) + it.begin : a.q_len;
        }
        bool load_v = !values_flag(c); /* dV does not depend on V */
        producer_expect<&control::keys>(c, {0, 0},
                                        backward::K_BYTES + (load_v ? backward::V_BYTES : 0) +
                                            (backward::PAIRED ? 2 * backward::KEY_SLAB : 0));
        int rank = backward::PAIRED ? (int)cluster_rank() : 0, kv = c.kv + rank * backward::CTA_N;
        /* A broadcast batch (stride 0) has size 1 in its tensor map; K and V may differ in this. */
        int b_k = a.k.batch ? it.b_keys : 0, b_v = a.v.batch ? it.b_keys : 0;
#pragma unroll
        for (int slab = 0; slab < backward::SLABS_D; slab++)
            tensor_load(memory + slab * backward::KEY_SLAB, k_map, &c.keys.full[0], slab * 64, kv, it.h_keys, b_k);
#pragma unroll
        for (int slab = 0; slab < (load_v ? backward::SLABS_DV : 0); slab++)
            tensor_load(memory + backward::K_BYTES + slab * backward::KEY_SLAB, v_map, &c.keys.full[0], slab * 64, kv,
                        it.h_keys, b_v);
#pragma unroll
        for (int slab = 0; slab < (backward::PAIRED ? 2 : 0); slab++)
            tensor_load(memory + backward::PEER_K_OFFSET + slab * backward::KEY_SLAB, k_map, &c.keys.full[0],
                        (rank * 2 + slab) * 64, c.kv + (rank ^ 1) * backward::CTA_N, it.h_keys, b_k);
        it.b_end = g.kv_batch == 1 ? a.batch : it.b_keys + 1;
        it.h_end = (it.h_keys + 1) * (a.heads / a.kv_heads);
#pragma unroll 1
        for (it.b = it.b_keys; it.b < it.b_end; it.b++) {
            if (backward::FIRST_BLOCKS_FIRST) {
                it.part = HEAD_ALL;
                if (!g.column_head_rows) {
                    it.part = HEAD_FIRST;
                    it.h = first_head(a, c);
                    load_head(a, g, c, memory, pipe, q_map, do_map);
                    it.part = HEAD_REST;
                }
            }
#pragma unroll 1
            for (it.h = first_head(a, c); it.h < it.h_end; it.h++)
                load_head(a, g, c, memory, pipe, q_map, do_map);
        }
        push_descriptor(c, pipe, it.tile / backward::ITEMS, TILE_END | values_flag(c));
    }
    push_descriptor(c, pipe, 0, TILE_STOP);
    if constexpr (backward::DO_STAGES > 0) /* commits release the stages: the CTA must not end before them */
        drain(c, pipe);
}

#endif
