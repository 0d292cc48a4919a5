/* SPDX-License-Identifier: MIT */
/*
 * The producer warp group of the forward kernels with TMA: the tile scheduler, the load thread, and two scan warps,
 * which keep V's infinities and NaN out of forbidden pairs.
 */
#ifndef ATTUNE_CUDA_PRODUCER_SM90_CUH
#define ATTUNE_CUDA_PRODUCER_SM90_CUH

#include "layout_forward_sm90.cuh"

/* -------------------------------------------------------------------------------------------------- tile scheduler */

/*
 * With block lists, heads whose keys and values fit in the L2 cache together are a section. Within a section the last
 * query tiles of all its heads are first: under a causal mask they take longest, and each section ends with the
 * shortest.
 */
__device__ __forceinline__ tile_coord scheduled_coord(const attune_cuda_arguments &a, int tile)
{
    if (!config::HAVE_BLOCKS || a.order)
        return tile_coord_of(a, tile);
    int rows = (a.q_len + BLOCK_M - 1) / BLOCK_M, group = a.heads / a.kv_heads, planes = a.batch * a.heads;
    i64 bytes = a.kv_len * (i64)((HEAD_DIM + HEAD_DIM_V) * sizeof(element));
    int width = group * section_heads(bytes);
    width = min(width, planes);
    int section = tile / (width * rows), first = section * width;
    tile -= first * rows;
    width = min(width, planes - first);
    int row = tile / width, plane = first + tile - row * width;
    tile_coord p;
    p.b = plane / a.heads;
    p.h = plane - p.b * a.heads;
    p.h_kv = p.h / group;
    p.q = (rows - 1 - row) * BLOCK_M;
    return p;
}

/* The CTA's next query tile, or -1. */
__device__ __forceinline__ int next_query_tile(const attune_cuda_arguments &a, int tile)
{
    if (a.counter)
        tile = (int)gridDim.x + atomicAdd((int *)a.counter, 1);
    else
        tile += (int)gridDim.x;
    return tile < tile_count(a) ? tile : -1;
}

/* The last CTA to finish zeroes the counters for the next launch. */
__device__ __forceinline__ void finish_query_tiles(const attune_cuda_arguments &a)
{
    int *counter = (int *)a.counter;
    if (counter && atomicAdd(counter + 1, 1) == (int)gridDim.x - 1) {
        counter[0] = 0;
        counter[1] = 0;
    }
}

/* The next key tile of any list, or -1. */
__device__ __forceinline__ int block_iterators_peek(const block_iterator &w)
{
    u32 next = (u32)w.next.kv;
    return (int)(forward::BLOCK_LISTS > 1 ? min(next, __shfl_xor_sync(forward::SCHEDULER_LANES, next, 1)) : next);
}

/* Advances the lists that have this key tile, and returns its flags: both lists', in each lane. */
__device__ __forceinline__ int block_iterators_next(block_iterator &w, const attune_cuda_arguments &a, int kv)
{
    int flags = TILE_MASKED | TILE_ABSENT;
    if (forward::BLOCK_LISTS == 1 || w.next.kv == kv) {
        keys tile = block_iterator_next(w, a);
        flags = (keys_masked(tile, a) ? TILE_MASKED : 0) | (HAVE_MASK && !tile.full ? TILE_PARTIAL : 0);
    }
    if (forward::BLOCK_LISTS > 1) {
        flags <<= threadIdx.x % 32 * 8;
        flags |= __shfl_xor_sync(forward::SCHEDULER_LANES, flags, 1);
    }
    if (forward::SCANS_V && flags & ((TILE_PARTIAL | TILE_ABSENT) * (forward::BLOCK_LISTS > 1 ? 0x101 : 1)))
        flags |= TILE_SCAN_V | TILE_SCAN_V << 8;
    return block_iterators_peek(w) < 0 ? flags | TILE_LAST | TILE_LAST << 8 : flags;
}

/* next: the first key of the tile after it, -1 after the last one. */
__device__ __forceinline__ void queue_push(control &c, pipeline_state &r, int index, int flags, int next = -1)
{
    if (threadIdx.x % 32 == 0) {
        producer_acquire<&control::queue>(c, r);
        c.queue_tiles[r.stage].index = index;
        c.queue_tiles[r.stage].flags = flags;
        if constexpr (config::SCORE_TILE > 0)
            captures_of(c).queue_next[r.stage] = next;
        producer_commit<&control::queue>(c, r);
    }
    advance<forward::QUEUE_STAGES>(r);
}

/* Queues the CTA's query tiles, each followed by its key tiles. */
__device__ __forceinline__ void schedule_tiles(const attune_cuda_arguments &a, control &c)
{
    int lane = (int)threadIdx.x % 32;
    pipeline_state r = {0, 1};
    int tile = (int)blockIdx.x < tile_count(a) ? (int)blockIdx.x : -1;
    while (tile >= 0) {
        block_iterator w;
        tile_coord p = scheduled_coord(a, tile);
        if (lane) /* the second list is that of the tile's last row */
            p.q = min(p.q + BLOCK_M, a.q_len) - 1;
        block_iterator_begin(w, a, p);
        int kv = block_iterators_peek(w);
        queue_push(c, r, tile, kv < 0 ? TILE_QUERIES | TILE_LAST : TILE_QUERIES);
        while (kv >= 0) {
            int flags = block_iterators_next(w, a, kv);
            queue_push(c, r, kv, flags, config::SCORE_TILE ? block_iterators_peek(w) : -1);
            kv = block_iterators_peek(w);
        }
        /* Only now: a tile fetched ahead of time would wait for this CTA while another one is idle. */
        if (lane == 0)
            tile = next_query_tile(a, tile);
        if (forward::BLOCK_LISTS > 1)
            tile = __shfl_sync(forward::SCHEDULER_LANES, tile, 0);
    }
    queue_push(c, r, -1, TILE_QUERIES);
    if (lane == 0)
        finish_query_tiles(a);
}

/* ----------------------------------------------------------------------------------------------------- load thread */

/* 1: load Q. */
__device__ __forceinline__ void load_q(control &c, u32 memory, const tensor_map *q_map, const pipeline_state &q,
                                       const tile_coord &p)
{
    producer_expect<&control::q>(c, q, forward::Q_BYTES);
#pragma unroll
    for (int slab = 0; slab < forward::SLABS_D; slab++)
#pragma unroll
        for (int g = 0; g < BLOCK_M / 64; g++)
            tensor_load(memory + q.stage * forward::Q_BYTES + slab * forward::Q_SLAB + g * 64 * 128, q_map,
                        &c.q.full[q.stage], slab * 64, p.q + g * 64, p.h, p.b);
}

/* 2: load K, with the descriptor of the key tile. next: the first key of the tile after it. */
__device__ __forceinline__ void load_k(const attune_cuda_arguments &a, control &c, u32 k_tiles, const tensor_map *k_map,
                                       pipeline_state &k, const tile_coord &p, int kv, int flags, int next)
{
    producer_acquire<&control::k>(c, k);
    c.key_tiles[k.stage].index = kv;
    c.key_tiles[k.stage].flags = flags;
    if constexpr (config::SCORE_TILE > 0)
        captures_of(c).next[k.stage] = next;
    producer_expect<&control::k>(c, k, forward::K_BYTES);
#pragma unroll
    for (int slab = 0; slab < forward::SLABS_D; slab++)
        tensor_load(k_tiles + k.stage * forward::K_BYTES + slab * forward::KV_SLAB, k_map, &c.k.full[k.stage],
                    slab * 64, kv, p.h_kv, a.k.batch ? p.b : 0);
    advance(k);
}

/* 2: load V. */
__device__ __forceinline__ void load_v(const attune_cuda_arguments &a, control &c, u32 v_tiles, const tensor_map *v_map,
                                       pipeline_state &v, const tile_coord &p, int kv)
{
    producer_acquire<&control::v>(c, v);
    producer_expect<&control::v>(c, v, forward::V_BYTES);
#pragma unroll
    for (int slab = 0; slab < forward::SLABS_DV; slab++)
        tensor_load(v_tiles + v.stage * forward::V_BYTES + slab * forward::KV_SLAB, v_map, &c.v.full[v.stage],
                    slab * 64, kv, p.h_kv, a.v.batch ? p.b : 0);
    advance(v);
}

/* Waits until all stages are empty. The last query tile's, which says that there are no more, is never released. */
__device__ __forceinline__ void drain(control &c, pipeline_state q, pipeline_state k, pipeline_state v)
{
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) {
        producer_acquire<&control::k>(c, k);
        producer_acquire<&control::v>(c, v);
        advance(k);
        advance(v);
    }
    for (int i = 1; i < forward::Q_BUFFERS; i++) {
        advance<forward::Q_BUFFERS>(q);
        producer_acquire<&control::q>(c, q);
    }
}

/* V trails K by one key tile, because consumers release a stage of V one tile later than that of K. */
__device__ __forceinline__ void load(const attune_cuda_arguments &a, control &c, u32 memory, const tensor_map *q_map,
                                     const tensor_map *k_map, const tensor_map *v_map)
{
    u32 k_tiles = memory + forward::K_OFFSET, v_tiles = k_tiles + (forward::V_OFFSET - forward::K_OFFSET);
    pipeline_state r = {0, 0}, q = {0, 1}, k = {0, 1}, v = {0, 1};
    tile_coord p = {0, 0, 0, 0};
    int pending_v = -1; /* the key tile whose K is loaded and whose V is not */
    for (;; advance<forward::QUEUE_STAGES>(r)) {
        consumer_wait<&control::queue>(c, r);
        int index = c.queue_tiles[r.stage].index, flags = c.queue_tiles[r.stage].flags, next = -1;
        if constexpr (config::SCORE_TILE > 0)
            next = captures_of(c).queue_next[r.stage];
        consumer_release_thread<&control::queue>(c, r);
        if (flags & TILE_QUERIES) {
            producer_acquire<&control::q>(c, q);
            c.query_tiles[q.stage].flags = index < 0 ? 0 : flags;
            if (index >= 0)
                c.query_tiles[q.stage].coord = p = scheduled_coord(a, index);
            if (index < 0 || flags & TILE_LAST)
                producer_commit<&control::q>(c, q);
            else
                load_q(c, memory, q_map, q, p);
            if (index < 0)
                break;
            advance<forward::Q_BUFFERS>(q);
            continue;
        }
        load_k(a, c, k_tiles, k_map, k, p, index, flags, next);
        if (pending_v >= 0)
            load_v(a, c, v_tiles, v_map, v, p, pending_v);
        pending_v = index;
        /* The last V is loaded at once: the next query tile may be long in coming. */
        if (flags & TILE_LAST) {
            load_v(a, c, v_tiles, v_map, v, p, pending_v);
            pending_v = -1;
        }
    }
    if (forward::DRAINS)
        drain(c, q, k, v);
}

/* ------------------------------------------------------------------------------------------------------ scan warps */

constexpr u32 EXPONENTS = config::DTYPE == ATTUNE_CUDA_F16 ? 0x7c007c00u : 0x7f807f80u;
constexpr u32 EXPONENT_ONE = config::DTYPE == ATTUNE_CUDA_F16 ? 0x04000400u : 0x00800080u;

/* For each of two elements: its sign bit is set in the result if its exponent is all ones. Other bits are arbitrary. */
__device__ __forceinline__ u32 non_finite_signs(u32 two)
{
    return (two & EXPONENTS) + EXPONENT_ONE;
}

/* 8 elements from shared memory. */
__device__ __forceinline__ void load_shared_8(u32 (&w)[4], u32 from)
{
    load_shared_4_ordered(w[0], w[1], w[2], w[3], from);
}

/* Replaces infinities and NaN of a tile of V by 0. Returns whether the thread's elements had any. They nearly never do,
 * so the first loop only detects them, without branches, and its loads overlap. */
__device__ __forceinline__ bool zero_non_finite(u32 tile)
{
    constexpr u32 STRIDE = 32 * forward::SCAN_WARPS * 16;
    u32 begin = (threadIdx.x - 64) * 16, found = 0, w[4];
#pragma unroll 8
    for (u32 i = begin; i < forward::V_BYTES; i += STRIDE) {
        load_shared_8(w, tile + i);
        found |= non_finite_signs(w[0]) | non_finite_signs(w[1]) | non_finite_signs(w[2]) | non_finite_signs(w[3]);
    }
    if (!(found & 0x80008000u))
        return false;
#pragma unroll 1
    for (u32 i = begin; i < forward::V_BYTES; i += STRIDE) {
        load_shared_8(w, tile + i);
#pragma unroll
        for (int j = 0; j < 4; j++)
            w[j] &= ~((non_finite_signs(w[j]) >> 15 & 0x00010001u) * 0xffffu);
        store_shared_4(tile + i, w[0], w[1], w[2], w[3]);
    }
    fence_async();
    return true;
}

/* Computes and stores the terms of a tile's keys. Not every tile has terms, so each stage has a phase of its own:
 * `phases` has a bit for each stage, the phase in which it is empty. */
__device__ __forceinline__ void store_key_terms(const attune_cuda_arguments &a, key_terms_control &t, u32 terms,
                                                const tile_coord &p, int kv, int flags, u32 stage, u32 &phases)
{
    if constexpr (KEY_TERMS > 0) {
        if (!has_terms(a, flags))
            return;
        constexpr int LANES = forward::SCAN_THREADS;
        int lane = (int)threadIdx.x - 64;
        key_terms k[(BLOCK_N + LANES - 1) / LANES];
#pragma unroll
        for (int i = 0; i * LANES < BLOCK_N; i++)
            key_terms_make(k[i], a, p, kv + i * LANES + lane, flags & TILE_PARTIAL);
        producer_acquire<&key_terms_control::terms>(t, {stage, phases >> stage & 1});
        phases ^= 1u << stage;
#pragma unroll
        for (int i = 0; i * LANES < BLOCK_N; i++)
            if (BLOCK_N % LANES == 0 || i * LANES + lane < BLOCK_N)
                key_terms_store(k[i], terms + stage * TERM_BYTES, i * LANES + lane);
        producer_commit_warp<&key_terms_control::terms>(t, {stage, 0});
    }
}

__device__ __forceinline__ void scan_v(const attune_cuda_arguments &a, control &c, unsigned char *bytes)
{
    u32 memory = shared_address(bytes), v_tiles = memory + forward::V_OFFSET, phases = ~0u;
    pipeline_state r = {0, 0}, q = {0, 0}; /* r: of K and V, which have the same stages here */
    for (;;) {
        consumer_wait<&control::q>(c, q);
        int flags = c.query_tiles[q.stage].flags;
        if (!flags)
            break;
        tile_coord p = c.query_tiles[q.stage].coord;
        while (!(flags & TILE_LAST)) {
            consumer_wait<&control::k>(c, r);
            int kv = c.key_tiles[r.stage].index;
            flags = c.key_tiles[r.stage].flags;
            consumer_release<&control::k>(c, r);
            if (KEY_TERMS)
                store_key_terms(a, *(key_terms_control *)(bytes + forward::KEY_TERMS_OFFSET),
                                memory + forward::KEY_TERMS_OFFSET + sizeof(key_terms_control), p, kv, flags, r.stage,
                                phases);
            if (forward::SCANS_V && flags & TILE_SCAN_V) {
                consumer_wait<&control::v>(c, r);
                int any = named_sync_or<(int)BARRIER_SCAN, 64>(zero_non_finite(v_tiles + r.stage * forward::V_BYTES));
                if (threadIdx.x == 64) {
                    c.non_finite[r.stage] = any;
                    barrier_arrive(&c.v_scanned[r.stage]);
                }
            }
            if constexpr (forward::SCAN_RELEASES_V) {
                if (!(flags & TILE_SCAN_V)) /* not before it is full */
                    consumer_wait<&control::v>(c, r);
                consumer_release<&control::v>(c, r);
            }
            advance(r);
        }
        consumer_release<&control::q>(c, q);
        advance<forward::Q_BUFFERS>(q);
    }
}

#endif
