/* SPDX-License-Identifier: MIT */
/*
 * The warp group that produces Hopper's forward kernel: a thread that walks the work and the mask's lists, a thread that
 * loads, and two warps that keep infinities and NaN of V from forbidden pairs. What lies in shared memory is here too.
 */
#ifndef ATTUNE_CUDA_FEED_SM90_CUH
#define ATTUNE_CUDA_FEED_SM90_CUH

#define ATTUNE_SLOPES_GO_DOWN 1
#include "hopper.cuh"
#include "terms.cuh"

constexpr int GROUPS = BLOCK_M / 64; /* of consumers */
static_assert(THREADS == 128 * (GROUPS + 1), "one warp group feeds, each other one owns 64 rows");
constexpr int SLABS_D = (HEAD_DIM + 63) / 64, SLABS_DV = (HEAD_DIM_V + 63) / 64;
constexpr int STEPS_D = (HEAD_DIM + 15) / 16, WIDTH_DV = round_up(HEAD_DIM_V, 16);
constexpr u32 Q_SLAB = BLOCK_M * 128, KV_SLAB = BLOCK_N * 128;
constexpr u32 Q_BYTES = SLABS_D * Q_SLAB, K_BYTES = SLABS_D * KV_SLAB, V_BYTES = SLABS_DV * KV_SLAB;
/* Of the next rows' Q, where the keys leave room. */
constexpr int Q_BUFFERS = SLABS_D <= 2 && SLABS_DV <= 2 ? 2 : 1;
constexpr u32 RESIDENT_BYTES = Q_BUFFERS * Q_BYTES;
constexpr int PRODUCER_REGISTERS = GROUPS == 3 ? 32 : GROUPS == 2 ? 40 : 56;
constexpr int CONSUMER_REGISTERS = GROUPS == 3 ? 160 : GROUPS == 2 ? 232 : 248;

/* Flags; a second set of them, 8 bits higher, is for the rows that lie in the mask's next block. */
enum { TILE_MASKED = 1, TILE_LAST = 2, TILE_PARTIAL = 4, TILE_ABSENT = 8, TILE_SCAN_V = 16, TILE_QUERIES = 32 };
/* A tile of 192 rows may lie in two blocks of 128 rows: both are walked, and each consumer takes its own block's part. */
constexpr int BLOCK_LISTS = ATTUNE_HAVE_BLOCKS && GROUPS == 3 ? 2 : 1;

/* Where pairs are forbidden, infinities and NaN of V must not meet their P = 0: two warps of the first group look for
 * them in such tiles, take them out, and the consumers add them where they are allowed. */
constexpr bool SCANS_V = HAVE_MASK || BLOCK_LISTS > 1;
/* They make the terms of the keys too. */
constexpr int SCAN_WARPS = SCANS_V || KEY_TERMS ? 2 : 0;

/* A tile of keys: the first of them, and how it is masked. Among the tile scheduler's: a tile of rows, or -1 at the end. */
struct tile_desc {
    int at, flags;
};

/* What follows the tiles in shared memory: at most 8 (34 + 7 STAGES) bytes. */
constexpr int AHEAD = 4; /* steps that the tile scheduler may be ahead: more than its reads take */
struct control {
    u64 q_full[Q_BUFFERS], q_empty[Q_BUFFERS];
    u64 k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES], v_scanned[STAGES];
    u64 step_full[AHEAD], step_empty[AHEAD];
    struct {
        tile_coord at;
        int what; /* TILE_QUERIES with keys, TILE_QUERIES | TILE_LAST without, 0: no more work */
    } work[Q_BUFFERS];
    tile_desc keys[STAGES], steps[AHEAD];
    int non_finite[STAGES]; /* V had infinities or NaN, which are 0 there now */
};
constexpr u32 CONTROL_BYTES = round_up(8 * (34 + 7 * STAGES), 128);

/* Behind it, the terms of the keys in each stage. */
struct staged {
    u64 full[STAGES], empty[STAGES];
};
constexpr u32 STAGED_BYTES = KEY_TERMS ? round_up(STAGES * (16 + TERM_BYTES), 128) : 0;
static_assert(!KEY_TERMS || BLOCK_LISTS == 1, "the owners' flags are the checkers'");
constexpr u32 STAGED_OFFSET = RESIDENT_BYTES + STAGES * (K_BYTES + V_BYTES) + CONTROL_BYTES;
static_assert(sizeof(control) <= CONTROL_BYTES && planned(STAGED_OFFSET + STAGED_BYTES, 0));

/* Whether a tile of keys has terms: the mask's are for partial blocks alone, and not where their rows have ranges. */
__device__ __forceinline__ bool has_terms(const attune_cuda_arguments &a, int flags)
{
    return ATTUNE_SCORE_KEYS || (flags & TILE_PARTIAL && !(ATTUNE_HAVE_MASK_RANGE && a.mask_ranges));
}

template <int SIZE> __device__ __forceinline__ void advance(pipeline_state &r)
{
    if (++r.stage == SIZE) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

/* ------------------------------------------------------------------------------------------------------- the tile scheduler */

/*
 * Heads whose keys fit in the L2 cache together are a section. With lists a section's last rows come first: they are
 * the longest under a causal mask, and the sections' ends the shortest.
 */
constexpr i64 SECTION_BYTES = 24 << 20;

__device__ __forceinline__ tile_coord scheduled_coord(const attune_cuda_arguments &a, int tile)
{
    if (!ATTUNE_HAVE_BLOCKS || a.order)
        return tile_coord_of(a, tile);
    int rows = (a.q_len + BLOCK_M - 1) / BLOCK_M, group = a.heads / a.kv_heads, planes = a.batch * a.heads;
    i64 bytes = a.kv_len * (i64)((HEAD_DIM + HEAD_DIM_V) * sizeof(element));
    int width = group * (bytes > SECTION_BYTES ? 1 : (int)((u32)SECTION_BYTES / (u32)max((int)bytes, 1)));
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

/* The tile after this one, or -1. */
__device__ __forceinline__ int work_next(const attune_cuda_arguments &a, int tile)
{
    if (a.counter)
        tile = (int)gridDim.x + atomicAdd((int *)a.counter, 1);
    else
        tile += (int)gridDim.x;
    return tile < tile_count(a) ? tile : -1;
}

/* Whoever ends last sets the counters back. */
__device__ __forceinline__ void work_end(const attune_cuda_arguments &a)
{
    int *counter = (int *)a.counter;
    if (counter && atomicAdd(counter + 1, 1) == (int)gridDim.x - 1) {
        counter[0] = 0;
        counter[1] = 0;
    }
}

/* The tile scheduler is a lane for each list: what lane i gives of it, for all of them. */
constexpr u32 SCHEDULER_LANES = (1u << BLOCK_LISTS) - 1;

/* The next keys that any of the lists has, or -1. */
__device__ __forceinline__ int block_iterators_peek(const block_iterator &w)
{
    u32 next = (u32)w.next.kv;
    return (int)(BLOCK_LISTS > 1 ? min(next, __shfl_xor_sync(SCHEDULER_LANES, next, 1)) : next);
}

/* Goes past them and returns the tile descriptor's flags. */
__device__ __forceinline__ int block_iterators_next(block_iterator &w, const attune_cuda_arguments &a, int kv)
{
    int flags = TILE_MASKED | TILE_ABSENT;
    if (BLOCK_LISTS == 1 || w.next.kv == kv) {
        keys now = block_iterator_next(w, a);
        flags = (keys_masked(now, a) ? TILE_MASKED : 0) | (HAVE_MASK && !now.full ? TILE_PARTIAL : 0);
    }
    if (BLOCK_LISTS > 1) {
        flags <<= threadIdx.x % 32 * 8;
        flags |= __shfl_xor_sync(SCHEDULER_LANES, flags, 1);
    }
    if (SCANS_V && flags & ((TILE_PARTIAL | TILE_ABSENT) * (BLOCK_LISTS > 1 ? 0x101 : 1)))
        flags |= TILE_SCAN_V | TILE_SCAN_V << 8;
    return block_iterators_peek(w) < 0 ? flags | TILE_LAST | TILE_LAST << 8 : flags;
}

__device__ __forceinline__ void schedule_push(control &c, pipeline_state &r, int at, int flags)
{
    if (threadIdx.x % 32 == 0) {
        barrier_wait(&c.step_empty[r.stage], r.phase);
        c.steps[r.stage].at = at;
        c.steps[r.stage].flags = flags;
        barrier_arrive(&c.step_full[r.stage]);
    }
    advance<AHEAD>(r);
}

/* Tells the tiles of rows, each one with the tiles of keys that it meets behind it. */
__device__ __forceinline__ void schedule_tiles(const attune_cuda_arguments &a, control &c)
{
    int lane = (int)threadIdx.x % 32;
    pipeline_state r = {0, 1}; /* empty to begin with: the phase before the first */
    int tile = (int)blockIdx.x < tile_count(a) ? (int)blockIdx.x : -1;
    while (tile >= 0) {
        block_iterator w;
        tile_coord p = scheduled_coord(a, tile);
        if (lane)
            p.q = min(p.q + BLOCK_M, a.q_len) - 1;
        block_iterator_begin(w, a, p);
        int kv = block_iterators_peek(w);
        schedule_push(c, r, tile, kv < 0 ? TILE_QUERIES | TILE_LAST : TILE_QUERIES);
        while (kv >= 0) {
            int flags = block_iterators_next(w, a, kv);
            schedule_push(c, r, kv, flags);
            kv = block_iterators_peek(w);
        }
        if (lane == 0)
            tile = work_next(a, tile); /* no sooner: who takes work and does not begin it keeps it from others */
        if (BLOCK_LISTS > 1)
            tile = __shfl_sync(SCHEDULER_LANES, tile, 0);
    }
    schedule_push(c, r, -1, TILE_QUERIES);
    if (lane == 0)
        work_end(a);
}

/* ------------------------------------------------------------------------------------------------------- the loader */

__device__ __forceinline__ void load_v(const attune_cuda_arguments &a, control &c, u32 v_tiles, const tensor_map *v_map,
                                       pipeline_state &v, const tile_coord &p, int kv)
{
    barrier_wait(&c.v_empty[v.stage], v.phase);
    barrier_expect(&c.v_full[v.stage], V_BYTES);
#pragma unroll
    for (int slab = 0; slab < SLABS_DV; slab++)
        tensor_load(v_tiles + v.stage * V_BYTES + slab * KV_SLAB, v_map, &c.v_full[v.stage], slab * 64, kv, p.h_kv,
                    a.v.batch ? p.b : 0);
    advance(v);
}

/* V follows one tile behind K: its room is free the later. */
__device__ __forceinline__ void load(const attune_cuda_arguments &a, control &c, u32 memory, const tensor_map *q_map,
                                     const tensor_map *k_map, const tensor_map *v_map)
{
    u32 k_tiles = memory + RESIDENT_BYTES, v_tiles = k_tiles + STAGES * K_BYTES;
    pipeline_state r = {0, 0}, q = {0, 1}, k = {0, 1}, v = {0, 1};
    tile_coord p = {0, 0, 0, 0};
    int after = -1; /* the keys whose V is due */
    for (;; advance<AHEAD>(r)) {
        barrier_wait(&c.step_full[r.stage], r.phase);
        int at = c.steps[r.stage].at, flags = c.steps[r.stage].flags;
        barrier_arrive(&c.step_empty[r.stage]);
        if (flags & TILE_QUERIES) {
            barrier_wait(&c.q_empty[q.stage], q.phase);
            c.work[q.stage].what = at < 0 ? 0 : flags;
            if (at >= 0)
                c.work[q.stage].at = p = scheduled_coord(a, at);
            if (at < 0 || flags & TILE_LAST) {
                barrier_arrive(&c.q_full[q.stage]);
            } else {
                barrier_expect(&c.q_full[q.stage], Q_BYTES);
#pragma unroll
                for (int slab = 0; slab < SLABS_D; slab++)
#pragma unroll
                    for (int g = 0; g < GROUPS; g++)
                        tensor_load(memory + q.stage * Q_BYTES + slab * Q_SLAB + g * 64 * 128, q_map,
                                    &c.q_full[q.stage], slab * 64, p.q + g * 64, p.h, p.b);
            }
            if (at < 0)
                break;
            advance<Q_BUFFERS>(q);
            continue;
        }
        barrier_wait(&c.k_empty[k.stage], k.phase);
        c.keys[k.stage].at = at;
        c.keys[k.stage].flags = flags;
        barrier_expect(&c.k_full[k.stage], K_BYTES);
#pragma unroll
        for (int slab = 0; slab < SLABS_D; slab++)
            tensor_load(k_tiles + k.stage * K_BYTES + slab * KV_SLAB, k_map, &c.k_full[k.stage], slab * 64, at, p.h_kv,
                        a.k.batch ? p.b : 0);
        advance(k);
        if (after >= 0)
            load_v(a, c, v_tiles, v_map, v, p, after);
        after = at;
        if (flags & TILE_LAST) { /* what follows may take its time */
            load_v(a, c, v_tiles, v_map, v, p, after);
            after = -1;
        }
    }
}

/* ----------------------------------------------------------------------------------------------------- the scan warps */

constexpr u32 EXPONENTS = ATTUNE_DTYPE == ATTUNE_CUDA_F16 ? 0x7c007c00u : 0x7f807f80u;
constexpr u32 EXPONENT_ONE = ATTUNE_DTYPE == ATTUNE_CUDA_F16 ? 0x04000400u : 0x00800080u;

/* The sign bits of those of two elements whose exponents are all ones, and other bits. */
__device__ __forceinline__ u32 non_finite_signs(u32 two)
{
    return (two & EXPONENTS) + EXPONENT_ONE;
}

/* 8 elements of a tile in shared memory. */
__device__ __forceinline__ void get_eight(u32 (&w)[4], u32 from)
{
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from)
                 : "memory");
}

/* Sets infinities and NaN of a tile to 0. Returns whether the thread's part had any. It nearly never has: the first
 * loop has no branches, so that its reads overlap. */
__device__ __forceinline__ bool zero_non_finite(u32 tile)
{
    constexpr u32 STRIDE = 32 * SCAN_WARPS * 16;
    u32 begin = (threadIdx.x - 64) * 16, found = 0, w[4];
#pragma unroll 8
    for (u32 i = begin; i < V_BYTES; i += STRIDE) {
        get_eight(w, tile + i);
        found |= non_finite_signs(w[0]) | non_finite_signs(w[1]) | non_finite_signs(w[2]) | non_finite_signs(w[3]);
    }
    if (!(found & 0x80008000u))
        return false;
#pragma unroll 1
    for (u32 i = begin; i < V_BYTES; i += STRIDE) {
        get_eight(w, tile + i);
#pragma unroll
        for (int j = 0; j < 4; j++)
            w[j] &= ~((non_finite_signs(w[j]) >> 15 & 0x00010001u) * 0xffffu);
        asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(tile + i), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                     : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    return true;
}

/* The terms of a tile's keys. `turns` has a bit for each stage: the phase in which it is empty. */
__device__ __forceinline__ void stage_terms(const attune_cuda_arguments &a, staged &t, u32 terms, const tile_coord &p,
                                            int kv, int flags, u32 stage, u32 &phases)
{
#if ATTUNE_KEY_TERMS
    if (!has_terms(a, flags))
        return;
    constexpr int LANES = 32 * SCAN_WARPS;
    int lane = (int)threadIdx.x - 64;
    key_terms k[(BLOCK_N + LANES - 1) / LANES];
#pragma unroll
    for (int i = 0; i * LANES < BLOCK_N; i++)
        key_terms_make(k[i], a, p, kv + i * LANES + lane, flags & TILE_PARTIAL);
    barrier_wait(&t.empty[stage], phases >> stage & 1);
    phases ^= 1u << stage;
#pragma unroll
    for (int i = 0; i * LANES < BLOCK_N; i++)
        if (BLOCK_N % LANES == 0 || i * LANES + lane < BLOCK_N)
            key_terms_store(k[i], terms + stage * TERM_BYTES, i * LANES + lane);
    warp_arrive(&t.full[stage]);
#endif
}

__device__ __forceinline__ void scan_v(const attune_cuda_arguments &a, control &c, unsigned char *bytes)
{
    u32 memory = shared_address(bytes), v_tiles = memory + RESIDENT_BYTES + STAGES * K_BYTES, phases = ~0u;
    pipeline_state r = {0, 0}, q = {0, 0};
    for (;;) {
        barrier_wait(&c.q_full[q.stage], q.phase);
        int flags = c.work[q.stage].what;
        if (!flags)
            break;
        tile_coord p = c.work[q.stage].at;
        while (!(flags & TILE_LAST)) {
            barrier_wait(&c.k_full[r.stage], r.phase);
            int kv = c.keys[r.stage].at;
            flags = c.keys[r.stage].flags;
            warp_arrive(&c.k_empty[r.stage]);
            if (KEY_TERMS)
                stage_terms(a, *(staged *)(bytes + STAGED_OFFSET), memory + STAGED_OFFSET + sizeof(staged), p, kv, flags,
                            r.stage, phases);
            if (SCANS_V && flags & TILE_SCAN_V) {
                barrier_wait(&c.v_full[r.stage], r.phase);
                int any = zero_non_finite(v_tiles + r.stage * V_BYTES);
                asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %0, 0;\nbar.red.or.pred q, 7, 64, p;\n"
                             "selp.b32 %0, 1, 0, q;\n}"
                             : "+r"(any)::"memory");
                if (threadIdx.x == 64) {
                    c.non_finite[r.stage] = any;
                    barrier_arrive(&c.v_scanned[r.stage]);
                }
            }
            advance(r);
        }
        warp_arrive(&c.q_empty[q.stage]);
        advance<Q_BUFFERS>(q);
    }
}

#endif
