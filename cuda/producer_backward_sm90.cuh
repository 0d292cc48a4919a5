/* SPDX-License-Identifier: MIT */
/*
 * The warp group that produces Hopper's backward kernel: a thread that walks the work and the mask's lists and loads, and
 * a warp for each other group that adds its part of dQ. What lies in shared memory is here too.
 */
#ifndef ATTUNE_CUDA_FEED_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_FEED_BACKWARD_SM90_CUH

#include "common.cuh"
#include "hopper.cuh"
#include "terms.cuh"
#include "ordered_sums.cuh"

#ifndef ATTUNE_DETERMINISTIC
#define ATTUNE_DETERMINISTIC 0
#endif
#ifndef ATTUNE_READS_OF_SCORE
#define ATTUNE_READS_OF_SCORE 0
#endif

constexpr int GROUPS = 2; /* of consumers */
constexpr int SLABS_D = (HEAD_DIM + 63) / 64, SLABS_DV = (HEAD_DIM_V + 63) / 64;
constexpr int STEPS_D = (HEAD_DIM + 15) / 16, STEPS_DV = (HEAD_DIM_V + 15) / 16;
constexpr int WIDTH_D = round_up(HEAD_DIM, 16), WIDTH_DV = round_up(HEAD_DIM_V, 16);
/* Wide heads: the warp groups share the columns of dK, dV and dQ, and the rows of S and dP. */
constexpr bool WIDE = HEAD_DIM > 128 || HEAD_DIM_V > 128;
/* Of these such as have a tile of 128 keys: a pair of CTAs in a cluster has 64 each, and dS of both halves dQ's
 * additions. */
#define ATTUNE_PAIRED (ATTUNE_BLOCK_N == 128 && (ATTUNE_HEAD_DIM > 128 || ATTUNE_HEAD_DIM_V > 128))
constexpr bool PAIRED = ATTUNE_PAIRED;
constexpr int CTA_N = WIDE ? 64 : BLOCK_N; /* a CTA's keys */
static_assert(THREADS == 128 * (GROUPS + 1) && STAGES == 2 && (BLOCK_N == 64 * GROUPS || (WIDE && BLOCK_N == 64)),
              "two warp groups own 64 keys each, or the same 64");
static_assert(!PAIRED || (SLABS_D == 4 && SLABS_DV == 4), "a pair's four warp groups have a slab of dQ each");
static_assert(!WIDE || (SLABS_D >= 2 && SLABS_DV >= 2), "a slab of each for both warp groups");
/* Else they share the 128 rows of dQ, or its columns; it is transposed too where these are 128. */
constexpr bool DQ_TRANSPOSED = HEAD_DIM > 64 && !WIDE, BY_ROWS = BLOCK_M == 128;
static_assert(BLOCK_M == 64 || (BY_ROWS && SLABS_D == 1 && SLABS_DV == 1), "the tile's rows are 64, or with small heads 128");
constexpr int DQ_COLUMNS = DQ_TRANSPOSED ? 128 : BY_ROWS ? WIDTH_D : WIDE ? round_up(HEAD_DIM, 128) : round_up(HEAD_DIM, 32);
constexpr int DQ_WIDTH = DQ_TRANSPOSED ? BLOCK_M : BY_ROWS ? DQ_COLUMNS : DQ_COLUMNS / 2; /* of a part, which has 64 rows */
/* Of dK (and a wide head's dQ) and dV, the columns that a warp group has: of three slabs the first has two of dK, the
 * second two of dV. EQUAL_SHARES: both have as many. */
constexpr bool EQUAL_SHARES = !WIDE || (SLABS_D % 2 == 0 && SLABS_DV % 2 == 0);
constexpr int FIRST_D = (SLABS_D + 1) / 2 * 64, FIRST_DV = SLABS_DV / 2 * 64;
template <int GROUP> constexpr int PART_D = !WIDE ? WIDTH_D : GROUP ? SLABS_D * 64 - FIRST_D : FIRST_D;
template <int GROUP> constexpr int PART_DV = !WIDE ? WIDTH_DV : GROUP ? SLABS_DV * 64 - FIRST_DV : FIRST_DV;
constexpr u32 DQ_BYTES = 64 * DQ_WIDTH * 4; /* of a part, in the sums */
template <int GROUP> constexpr u32 PART_DQ_BYTES = PAIRED ? 64 * 64 * 4 : WIDE ? 64 * PART_D<GROUP> * 4 : DQ_BYTES;
/* Whether dQ's sums are added to in turn. Under a causal mask the last keys begin last in their rows, so that their
 * turns come with hardly a wait. */
constexpr bool ORDERED = ATTUNE_DETERMINISTIC;
/* Where a part waits for its addition: in memory of its own; over the warp group's columns of Q and dO, which no one
 * reads any longer; or nowhere, all threads adding what they hold at once, which is slow but of a pair, whose dO would
 * come too late. */
enum { DQ_ADD_STAGED, DQ_ADD_IN_PLACE, DQ_ADD_ATOMIC };
constexpr int DQ_ADD = PAIRED && !ORDERED                      ? DQ_ADD_ATOMIC
                      : !WIDE || (SLABS_D < 4 && SLABS_DV < 4) ? DQ_ADD_STAGED
                      : EQUAL_SHARES && SLABS_DV >= SLABS_D          ? DQ_ADD_IN_PLACE
                                                             : DQ_ADD_ATOMIC;
/* Whether the last tiles of keys come in splits of their rows, lest most CTAs have nothing to do while a few
 * have one more tile. The lists of a mask make tiles of many lengths, which fill the time up by themselves. */
constexpr bool SPLIT_TAIL = !ATTUNE_HAVE_BLOCKS && !ORDERED;
constexpr u32 TAIL_TILE_BYTES = BLOCK_N * (round_up(HEAD_DIM, WIDE ? 128 : 16) + round_up(HEAD_DIM_V, WIDE ? 128 : 16)) * 4;
constexpr u32 ROW_SLAB = BLOCK_M * 128, KEY_SLAB = CTA_N * 128;
constexpr u32 Q_BYTES = SLABS_D * ROW_SLAB, DO_BYTES = SLABS_DV * ROW_SLAB, ROW_BYTES = BLOCK_M * 4;
constexpr u32 K_BYTES = SLABS_D * KEY_SLAB, V_BYTES = SLABS_DV * KEY_SLAB;
constexpr u32 DS_BYTES = 2 * ROW_SLAB; /* dS, or of wide heads P and dS */
/* Gradients of captures: whether what they are due depends on the scores. */
constexpr bool HAVE_READS = ATTUNE_HAVE_READS, AT_ONCE = HAVE_READS && (ATTUNE_READS_OF_SCORE || ORDERED);
/* Whether dP begins after P and dV only: a score expression has no room beside it. */
constexpr bool LATE = HAVE_SCORE && !WIDE && !AT_ONCE;
constexpr int PRODUCER_REGISTERS = ORDERED ? 40 : 24, CONSUMER_REGISTERS = ORDERED ? 232 : 240;
static_assert(!ORDERED || DQ_ADD != DQ_ADD_ATOMIC, "what all threads add has no turns");

/* Above the flags stands the number of the tile of keys. */
enum { TILE_MASKED = 1, TILE_PARTIAL = 2, TILE_END = 4, TILE_STOP = 8, TILE_KEYS = 16 };

constexpr u32 Q_OFFSET = K_BYTES + V_BYTES, DO_OFFSET = Q_OFFSET + STAGES * Q_BYTES, DS_OFFSET = DO_OFFSET + STAGES * DO_BYTES;
/* A pair: dS; P, and once dV is done the other's dS; and the other's keys, of the columns of dQ that are computed
 * here. */
constexpr u32 P_OFFSET = DS_OFFSET + ROW_SLAB, PEER_K_OFFSET = P_OFFSET + ROW_SLAB;
static_assert(!PAIRED || 2 * DS_BYTES == 2 * ROW_SLAB + 2 * KEY_SLAB, "a pair has the room of two P and dS");
constexpr u32 DQ_OFFSET = DS_OFFSET + 2 * DS_BYTES,
              LSE_OFFSET = DQ_OFFSET + (DQ_ADD == DQ_ADD_STAGED ? PART_DQ_BYTES<0> + PART_DQ_BYTES<1> : 0);
constexpr u32 DELTA_OFFSET = LSE_OFFSET + STAGES * ROW_BYTES, CONTROL_OFFSET = DELTA_OFFSET + STAGES * ROW_BYTES;

/* Gradients of captures, a long score, one that keys or rows share terms of, one beside a mask of two forms, and one in a
 * fixed order leave so few registers that what follows from a thread's number is rematerialised in each tile. */
#define ATTUNE_REMATERIALISE                                                                                              \
    (ATTUNE_HAVE_READS || ATTUNE_SCORE_IS_LONG ||                                                                      \
     (ATTUNE_HAVE_SCORE && (ATTUNE_SCORE_KEYS || ATTUNE_SCORE_ROWS || ATTUNE_DETERMINISTIC ||                           \
                            (ATTUNE_HAVE_MASK && ATTUNE_HAVE_MASK_RANGE))))

/* threadIdx.x, there hidden from the compiler, which else keeps it. */
__device__ __forceinline__ int thread_index()
{
#if ATTUNE_REMATERIALISE
    return thread_index_remat();
#else
    return (int)threadIdx.x;
#endif
}

struct __align__(16) tile_desc
{
    int q, h, b, flags; /* at the end of a tile q is its number */
};

struct control {
    u64 keys_full, keys_empty, full[STAGES], empty[STAGES], dq_full[GROUPS], dq_empty[GROUPS];
    /* A pair: where Q may be loaded again, before dO; dS is there, the other has read its P, the other's dS is there,
     * the other has got dS; and the tile that one of them took for both. */
    u64 empty_q[STAGES], ready, free, theirs, sent, next_full, next_empty;
    tile_desc descs[STAGES];
    int kv, next; /* the tile of keys */
    struct {
        const int *partial, *full;
        int left, left_full, tile, round, b, b_end, h, h_end, b_keys, h_keys, q, end, flags, begin;
    } walk; /* in shared memory, because the loader has few registers */
};
constexpr u32 CONTROL_BYTES = PAIRED ? 512 : 256;
/* What captures are due from a head's rows: reads_sm90.cuh. */
constexpr u32 READS_OFFSET = CONTROL_OFFSET + CONTROL_BYTES, READ_BYTES = 1536;
static_assert(sizeof(control) <= CONTROL_BYTES);
static_assert(!PAIRED || !HAVE_READS, "a pair has no room for what captures are due");
static_assert(planned(READS_OFFSET + READ_BYTES, 0) || (!HAVE_READS && planned(READS_OFFSET, 0)));

/* ----------------------------------------------------------------------------------------------------- instructions */

__device__ __forceinline__ void bulk_load(u32 to, const void *from, u32 bytes, u64 *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

__device__ __forceinline__ void bulk_add(float *to, u32 from, u32 bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

/* To the other of a pair, where its barrier counts the bytes. */
__device__ __forceinline__ void copy_peer(u32 to, u32 from, u32 bytes, u64 *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     peer_address(to)),
                 "r"(from), "r"(bytes), "r"(peer_address(shared_address(barrier)))
                 : "memory");
}

__device__ __forceinline__ void store_peer(int *to, int value, u64 *barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     peer_address(shared_address(to))),
                 "r"(value), "r"(peer_address(shared_address(barrier)))
                 : "memory");
}

__device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ------------------------------------------------------------------------------------------------ tiles of the work */

/* Which keys of which head a CTA has. */
struct column {
    int b, h_kv, kv;
};

__device__ __forceinline__ int row_tiles(const attune_cuda_arguments &a)
{
    return (a.q_len + BLOCK_M - 1) / BLOCK_M;
}

__device__ __forceinline__ int column_tiles(const attune_cuda_arguments &a)
{
    int length = a.kv_len;
    asm volatile("" : "+r"(length)); /* rematerialised at each use: the loader has few registers */
    return (length + BLOCK_N - 1) / BLOCK_N;
}

/* Of the tiles that come in splits, which one a piece belongs to. */
__device__ __forceinline__ int tail_tile(const attune_cuda_backward &g, int piece)
{
    return (piece - g.full_wave_tiles) / g.tail_splits;
}

/* With pieces counted as tiles. */
__device__ __forceinline__ int column_count(const attune_cuda_arguments &a, const attune_cuda_backward &g)
{
    int all = g.kv_batch * a.kv_heads * column_tiles(a);
    return SPLIT_TAIL ? g.full_wave_tiles + (all - g.full_wave_tiles) * g.tail_splits : all;
}

/* Some heads at a time, whose rows stay in the L2 cache; of these the first keys first, which under a causal mask have
 * the most rows. */
__device__ __forceinline__ column column_at(const attune_cuda_arguments &a, const attune_cuda_backward &g, int tile)
{
    if (SPLIT_TAIL && tile >= g.full_wave_tiles)
        tile = g.full_wave_tiles + tail_tile(g, tile);
    int tiles = column_tiles(a), planes = g.kv_batch * a.kv_heads, some = g.together;
    int set = tile / (tiles * some), rest = tile - set * tiles * some;
    some = min(some, planes - set * some);
    int chunk = rest / some, plane = set * g.together + rest - chunk * some;
    if (ORDERED)
        chunk = tiles - 1 - chunk;
    return {plane / a.kv_heads, plane % a.kv_heads, chunk * BLOCK_N};
}

/* A row among those of the workspace. */
__device__ __forceinline__ i64 row_at(const attune_cuda_arguments &a, const attune_cuda_backward &g, int b, int h, int q)
{
    return (b * a.heads + h) * g.row_stride + q;
}

/* Where a warp group's part of a tile of rows begins among the sums of dQ. */
__device__ __forceinline__ float *sums_at(const attune_cuda_backward &g, i64 row, int group)
{
    return (float *)g.sums + (row / BLOCK_M * GROUPS + group) * (DQ_BYTES / 4);
}

/* A pair: the rank's parts follow one another. */
__device__ __forceinline__ float *pair_sums_at(const attune_cuda_backward &g, i64 row, u32 rank, int group)
{
    return sums_at(g, row, (int)rank) + group * (PART_DQ_BYTES<0> / 4);
}

__device__ __forceinline__ u32 pair_dq_place(u32 memory, u32 stage, int group)
{
    return memory + DO_OFFSET + stage * DO_BYTES + group * (FIRST_DV / 64) * ROW_SLAB;
}

/* Where half of a warp group's part of dQ is laid down in place: over its columns of dO, and of Q. */
__device__ __forceinline__ u32 dq_place(u32 memory, u32 stage, int group, int half)
{
    return memory + (half ? Q_OFFSET + stage * Q_BYTES + group * (FIRST_D / 64) * ROW_SLAB
                          : DO_OFFSET + stage * DO_BYTES + group * (FIRST_DV / 64) * ROW_SLAB);
}

/* ------------------------------------------------------------------------------------------------------- the loader */

__device__ __forceinline__ void load_rows(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                          u32 memory, pipeline_state &r, const tensor_map *q_map, const tensor_map *do_map)
{
    auto &w = c.walk;
    barrier_wait(PAIRED ? &c.empty_q[r.stage] : &c.empty[r.stage], r.phase);
    u64 *full = &c.full[r.stage];
    /* Captures have sums over all rows, those past the last too, whose scores may be NaN in spite of their LSE. */
    int flags = HAVE_READS && w.q > a.q_len - BLOCK_M ? w.flags | TILE_MASKED : w.flags;
    const tile_desc next = {w.q, w.h, w.b, ORDERED ? flags + c.kv / BLOCK_N * TILE_KEYS : flags};
    /* The tile descriptor comes before the arrival that tells of it; a pair's comes with dO. */
    if (PAIRED) {
        barrier_expect_more(full, Q_BYTES + 2 * ROW_BYTES);
    } else {
        c.descs[r.stage] = next;
        barrier_expect(full, Q_BYTES + DO_BYTES + 2 * ROW_BYTES);
    }
    i64 row = row_at(a, g, w.b, w.h, w.q);
#pragma unroll
    for (int slab = 0; slab < SLABS_D; slab++)
        tensor_load(memory + Q_OFFSET + r.stage * Q_BYTES + slab * ROW_SLAB, q_map, full, slab * 64, w.q, w.h, w.b);
    bulk_load(memory + LSE_OFFSET + r.stage * ROW_BYTES, (const float *)g.lse + row, ROW_BYTES, full);
    bulk_load(memory + DELTA_OFFSET + r.stage * ROW_BYTES, (const float *)g.delta + row, ROW_BYTES, full);
    if (PAIRED) {
        barrier_wait(&c.empty[r.stage], r.phase);
        c.descs[r.stage] = next;
        barrier_expect(full, DO_BYTES);
    }
#pragma unroll
    for (int slab = 0; slab < SLABS_DV; slab++)
        tensor_load(memory + DO_OFFSET + r.stage * DO_BYTES + slab * ROW_SLAB, do_map, full, slab * 64, w.q, w.h, w.b);
    advance(r);
}

__device__ __forceinline__ void load_note(control &c, pipeline_state &r, int tile, int flags)
{
    barrier_wait(&c.empty[r.stage], r.phase);
    if (PAIRED)
        barrier_wait(&c.empty_q[r.stage], r.phase);
    c.descs[r.stage] = {tile, 0, 0, flags};
    barrier_arrive(&c.full[r.stage]);
    advance(r);
}

/* The rows of one head that attend to a tile of keys. */
__device__ __forceinline__ void load_head(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                          u32 memory, pipeline_state &r, const tensor_map *q_map, const tensor_map *do_map)
{
#if ATTUNE_HAVE_BLOCKS
    auto &w = c.walk;
    {
        i64 row = w.b * g.column_batch_rows + w.h * g.column_head_rows + c.kv / a.kv_block;
        const i64 *list = (const i64 *)g.partial.offsets + row;
        w.partial = (const int *)g.partial.indices + list[0];
        w.left = (int)(list[1] - list[0]);
        list = (const i64 *)g.full.offsets + row;
        w.full = (const int *)g.full.indices + list[0];
        w.left_full = (int)(list[1] - list[0]);
    }
    for (;;) {
        {
            int block = w.left ? *w.partial : NO_BLOCK, block_full = w.left_full ? *w.full : NO_BLOCK;
            w.flags = TILE_MASKED | TILE_PARTIAL;
            if (block_full < block) {
                block = block_full;
                w.full++;
                w.left_full--;
                w.flags = c.kv + BLOCK_N > a.kv_len ? TILE_MASKED : 0;
            } else {
                w.partial++;
                w.left--;
            }
            /* A mask may be longer than the call. */
            if (block >= (a.q_len + a.q_block - 1) / a.q_block)
                break;
            w.q = block * a.q_block;
            w.end = min(w.q + a.q_block, a.q_len);
        }
#pragma unroll 1
        for (; w.q < w.end; w.q += BLOCK_M)
            load_rows(a, g, c, memory, r, q_map, do_map);
    }
#else
#pragma unroll 1
    for (c.walk.q = SPLIT_TAIL ? c.walk.begin : 0; c.walk.q < (SPLIT_TAIL ? c.walk.end : a.q_len); c.walk.q += BLOCK_M)
        load_rows(a, g, c, memory, r, q_map, do_map);
#endif
}

/* Workgroups, or pairs of them. Read again at each use: the loader has few registers. */
__device__ __forceinline__ int takers()
{
    int workgroups;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(workgroups));
    return PAIRED ? workgroups / 2 : workgroups;
}

/* The tile after `tile`. Of a pair the first takes it, and tells the other, which says when it has read it. */
__device__ __forceinline__ int next_tile(const attune_cuda_arguments &a, control &c, int tile, int round)
{
    if (!a.counter)
        return tile + takers();
    if (!PAIRED || cluster_rank() == 0)
        tile = (ORDERED ? 0 : takers()) + atomicAdd((int *)a.counter, 1);
    if (PAIRED && cluster_rank() == 0) {
        barrier_wait_peer(&c.next_empty, ~round & 1);
        store_peer(&c.next, tile, &c.next_full);
    } else if (PAIRED) {
        barrier_expect(&c.next_full, sizeof c.next);
        barrier_wait_peer(&c.next_full, round & 1);
        tile = *(volatile int *)&c.next;
        barrier_arrive_peer(&c.next_empty);
    }
    return tile;
}

__device__ __forceinline__ void load(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                     u32 memory, const tensor_map *q_map, const tensor_map *k_map,
                                     const tensor_map *v_map, const tensor_map *do_map)
{
    pipeline_state r = {0, 1}; /* empty to begin with: the phase before the first */
    auto &w = c.walk;
    /* In order of the claims, lest one that waits keeps those off that it waits for. */
    w.tile = ORDERED ? next_tile(a, c, 0, 0) : (int)blockIdx.x / (PAIRED ? 2 : 1);
    w.round = 0;
#pragma unroll 1
    for (; w.tile < column_count(a, g); w.round++) {
        {
            column at = column_at(a, g, w.tile);
            barrier_wait(&c.keys_empty, ~w.round & 1);
            c.kv = at.kv;
            w.flags = at.kv + BLOCK_N > a.kv_len ? TILE_MASKED : 0;
            w.b_keys = at.b;
            w.h_keys = at.h_kv;
        }
        if (SPLIT_TAIL) {
            bool piece = w.tile >= g.full_wave_tiles;
            w.begin = piece ? (w.tile - g.full_wave_tiles) % g.tail_splits * g.tail_split_rows : 0;
            w.end = piece ? min(a.q_len - w.begin, g.tail_split_rows) + w.begin : a.q_len;
        }
        barrier_expect(&c.keys_full, K_BYTES + V_BYTES + (PAIRED ? 2 * KEY_SLAB : 0));
        int rank = PAIRED ? (int)cluster_rank() : 0, kv = c.kv + rank * CTA_N;
        /* A batch of stride 0 is one of size 1 in its tensor map; K and V may differ in it. */
        int b_k = a.k.batch ? w.b_keys : 0, b_v = a.v.batch ? w.b_keys : 0;
#pragma unroll
        for (int slab = 0; slab < SLABS_D; slab++)
            tensor_load(memory + slab * KEY_SLAB, k_map, &c.keys_full, slab * 64, kv, w.h_keys, b_k);
#pragma unroll
        for (int slab = 0; slab < SLABS_DV; slab++)
            tensor_load(memory + K_BYTES + slab * KEY_SLAB, v_map, &c.keys_full, slab * 64, kv, w.h_keys, b_v);
#pragma unroll
        for (int slab = 0; slab < (PAIRED ? 2 : 0); slab++)
            tensor_load(memory + PEER_K_OFFSET + slab * KEY_SLAB, k_map, &c.keys_full, (rank * 2 + slab) * 64,
                        c.kv + (rank ^ 1) * CTA_N, w.h_keys, b_k);
        w.b_end = g.kv_batch == 1 ? a.batch : w.b_keys + 1;
        w.h_end = (w.h_keys + 1) * (a.heads / a.kv_heads);
#pragma unroll 1
        for (w.b = w.b_keys; w.b < w.b_end; w.b++)
#pragma unroll 1
            for (w.h = w.h_keys * (a.heads / a.kv_heads); w.h < w.h_end; w.h++)
                load_head(a, g, c, memory, r, q_map, do_map);
        load_note(c, r, w.tile, TILE_END);
        w.tile = next_tile(a, c, w.tile, w.round + ORDERED);
    }
    load_note(c, r, 0, TILE_STOP);
    int *counter = (int *)a.counter;
    if (PAIRED && cluster_rank())
        return;
    if (!ORDERED && counter && atomicAdd(counter + 1, 1) == takers() - 1) {
        counter[0] = 0;
        counter[1] = 0;
    }
}

/* Adds the parts of dQ of one warp group, as they come. By a whole warp if in turn, else by its first thread. */
__device__ __forceinline__ void add_dq(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                       u32 memory, int group)
{
    constexpr bool IN_PLACE = DQ_ADD == DQ_ADD_IN_PLACE;
    bool first = threadIdx.x % 32 == 0;
    if (!ORDERED && !first)
        return;
    u32 bytes = group ? PART_DQ_BYTES<1> : PART_DQ_BYTES<0>;
    pipeline_state r = {0, 0};
    u32 phase = 0, rank = PAIRED ? cluster_rank() : 0;
    for (;; advance(r)) {
        barrier_wait(&c.full[r.stage], r.phase);
        tile_desc n = c.descs[r.stage];
        if (ORDERED)
            __syncwarp();
        bool rows = !(n.flags & (TILE_END | TILE_STOP));
        if (!(first && IN_PLACE && rows))
            lane_arrive(&c.empty[r.stage]);
        if (n.flags & TILE_STOP)
            break;
        if (!rows)
            continue;
        i64 row = row_at(a, g, n.b, n.h, n.q);
        int tile = n.flags / TILE_KEYS;
        u32 *word = (u32 *)g.order_counts + (PAIRED ? (row / BLOCK_M * 2 + rank) : row / BLOCK_M) * GROUPS + group;
        if (ORDERED)
            order_wait(a, n.b, n.h, n.q, tile, word);
        if (first) {
            float *to = PAIRED ? pair_sums_at(g, row, rank, group) : sums_at(g, row, group);
            barrier_wait(&c.dq_full[group], phase);
            if (PAIRED) {
                bulk_add(to, pair_dq_place(memory, r.stage, group), bytes);
            } else if (IN_PLACE) {
                bulk_add(to, dq_place(memory, r.stage, group, 0), bytes / 2);
                bulk_add(to + bytes / 8, dq_place(memory, r.stage, group, 1), bytes / 2);
            } else
                bulk_add(to, memory + DQ_OFFSET + group * PART_DQ_BYTES<0>, bytes);
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            barrier_arrive(IN_PLACE ? &c.empty[r.stage] : &c.dq_empty[group]);
            if (ORDERED)
                order_release(word, tile);
        }
        phase ^= 1;
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Sends dS to the other of a pair, tile by tile, and says when the other's has come. */
__device__ __forceinline__ void exchange(control &c, u32 memory)
{
    pipeline_state r = {0, 0};
    u32 phase = 0;
    for (;; advance(r)) {
        barrier_wait(&c.full[r.stage], r.phase);
        int flags = c.descs[r.stage].flags;
        barrier_arrive(&c.empty[r.stage]);
        if (flags & TILE_STOP)
            break;
        if (flags & TILE_END)
            continue;
        barrier_expect(&c.theirs, ROW_SLAB);
        barrier_wait(&c.ready, phase);
        barrier_wait_peer(&c.free, phase);
        copy_peer(memory + P_OFFSET, memory + DS_OFFSET, ROW_SLAB, &c.theirs);
        barrier_wait_peer(&c.theirs, phase);
        barrier_arrive_peer(&c.sent);
        phase ^= 1;
    }
}

#endif
