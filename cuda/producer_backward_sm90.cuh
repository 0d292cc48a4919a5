/* SPDX-License-Identifier: MIT */
/*
 * The producer warp group of Hopper's backward kernel, and the layout of shared memory. One thread walks the mask's
 * transposed block lists and loads K, V, Q, dO, LSE and delta. One warp for each consumer warp group adds that group's
 * fragments of dQ to global memory. In a cluster of two CTAs another thread copies dS to the peer.
 */
#ifndef ATTUNE_CUDA_PRODUCER_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_PRODUCER_BACKWARD_SM90_CUH

#include "common.cuh"
#include "hopper.cuh"
#include "terms.cuh"
#include "ordered_sums.cuh"

constexpr int GROUPS = 2; /* consumer warp groups */
constexpr int SLABS_D = (HEAD_DIM + 63) / 64, SLABS_DV = (HEAD_DIM_V + 63) / 64;
constexpr int STEPS_D = (HEAD_DIM + 15) / 16, STEPS_DV = (HEAD_DIM_V + 15) / 16;
constexpr int WIDTH_D = round_up(HEAD_DIM, 16), WIDTH_DV = round_up(HEAD_DIM_V, 16);
/* Wide heads: the warp groups split the columns of dK, dV and dQ, and the rows of S and dP. */
constexpr bool WIDE = HEAD_DIM > 128 || HEAD_DIM_V > 128;
/* Wide heads with a tile of 128 keys: a cluster of two CTAs computes 64 keys each and exchanges dS, which halves the
 * additions to dQ in global memory. */
#define ATTUNE_PAIRED (ATTUNE_BLOCK_N == 128 && (ATTUNE_HEAD_DIM > 128 || ATTUNE_HEAD_DIM_V > 128))
constexpr bool PAIRED = ATTUNE_PAIRED;
constexpr int CTA_N = WIDE ? 64 : BLOCK_N; /* keys of one CTA */
static_assert(THREADS == 128 * (GROUPS + 1) && STAGES == 2 && (BLOCK_N == 64 * GROUPS || (WIDE && BLOCK_N == 64)),
              "each warp group computes 64 keys, or both the same 64");
static_assert(!PAIRED || (SLABS_D == 4 && SLABS_DV == 4),
              "the four consumer warp groups of a cluster compute a slab of dQ each");
static_assert(!WIDE || (SLABS_D >= 2 && SLABS_DV >= 2), "each warp group computes a slab of dK and of dV");
/* Narrow heads: the warp groups split dQ by its rows if there are 128, else by its columns. With 128 columns dQ is
 * computed transposed, because its columns are then the M of wgmma, 64 for each warp group. */
constexpr bool DQ_TRANSPOSED = HEAD_DIM > 64 && !WIDE, DQ_SPLIT_ROWS = BLOCK_M == 128;
static_assert(BLOCK_M == 64 || (DQ_SPLIT_ROWS && SLABS_D == 1 && SLABS_DV == 1),
              "a tile has 64 rows, or 128 with heads up to 64");
constexpr int DQ_COLUMNS = DQ_TRANSPOSED   ? 128
                           : DQ_SPLIT_ROWS ? WIDTH_D
                           : WIDE          ? round_up(HEAD_DIM, 128)
                                           : round_up(HEAD_DIM, 32);
constexpr int DQ_WIDTH = DQ_TRANSPOSED   ? BLOCK_M
                         : DQ_SPLIT_ROWS ? DQ_COLUMNS
                                         : DQ_COLUMNS / 2; /* N of a warp group's wgmma for dQ; M is 64 */
/* Columns of dK (and of a wide head's dQ) and of dV that a warp group computes. Of three slabs, the first warp group
 * computes two of dK and the second two of dV. EQUAL_GROUPS: both compute as many. */
constexpr bool EQUAL_GROUPS = !WIDE || (SLABS_D % 2 == 0 && SLABS_DV % 2 == 0);
constexpr int FIRST_GROUP_D = (SLABS_D + 1) / 2 * 64, FIRST_GROUP_DV = SLABS_DV / 2 * 64;
template <int GROUP> constexpr int GROUP_D = !WIDE ? WIDTH_D : GROUP ? SLABS_D * 64 - FIRST_GROUP_D : FIRST_GROUP_D;
template <int GROUP>
constexpr int GROUP_DV = !WIDE   ? WIDTH_DV
                         : GROUP ? SLABS_DV * 64 - FIRST_GROUP_DV
                                 : FIRST_GROUP_DV;
constexpr u32 DQ_BYTES = 64 * DQ_WIDTH * 4; /* of one warp group, in global memory */
template <int GROUP> constexpr u32 GROUP_DQ_BYTES = PAIRED ? 64 * 64 * 4 : WIDE ? 64 * GROUP_D<GROUP> * 4 : DQ_BYTES;
/* Whether dQ is accumulated in a fixed order. Tiles of keys are added from the last to the first: under a causal mask
 * the last keys start with later query tiles, so that waits are short. */
constexpr bool ORDERED = ATTUNE_DETERMINISTIC;
/* How a warp group's fragment of dQ is added to global memory. STAGED: through a buffer of its own. IN_PLACE: through
 * the warp group's columns of Q and dO, which all products have read by then. ATOMIC: by all threads from registers.
 * Atomic additions are the slowest, but for clusters, where staging would delay the next load of dO. */
enum { DQ_ADD_STAGED, DQ_ADD_IN_PLACE, DQ_ADD_ATOMIC };
constexpr int DQ_ADD = PAIRED && !ORDERED                       ? DQ_ADD_ATOMIC
                       : !WIDE || (SLABS_D < 4 && SLABS_DV < 4) ? DQ_ADD_STAGED
                       : EQUAL_GROUPS && SLABS_DV >= SLABS_D    ? DQ_ADD_IN_PLACE
                                                                : DQ_ADD_ATOMIC;
/* Whether tail tiles are split by query rows, so that the last wave occupies all CTAs. The block lists of a mask give
 * tiles of many lengths, which balance the last wave without a split. */
constexpr bool SPLIT_TAIL = !ATTUNE_HAVE_BLOCKS && !ORDERED;
constexpr u32 TAIL_TILE_BYTES =
    BLOCK_N * (round_up(HEAD_DIM, WIDE ? 128 : 16) + round_up(HEAD_DIM_V, WIDE ? 128 : 16)) * 4;
constexpr u32 ROW_SLAB = BLOCK_M * 128, KEY_SLAB = CTA_N * 128;
constexpr u32 Q_BYTES = SLABS_D * ROW_SLAB, DO_BYTES = SLABS_DV * ROW_SLAB, ROW_BYTES = BLOCK_M * 4;
constexpr u32 K_BYTES = SLABS_D * KEY_SLAB, V_BYTES = SLABS_DV * KEY_SLAB;
constexpr u32 DS_BYTES = 2 * ROW_SLAB; /* dS; wide heads: P and dS */
/* FUSED_GRADIENTS: P, dS and the capture gradients are computed in one pass, which is needed if a gradient depends on
 * the score, since P alone does not give it. */
constexpr bool HAVE_CAPTURE_GRADIENTS = ATTUNE_HAVE_READS,
               FUSED_GRADIENTS = HAVE_CAPTURE_GRADIENTS && (ATTUNE_READS_OF_SCORE || ORDERED);
/* dP is issued after P and dV: a score expression leaves no registers for the accumulators of dP. */
constexpr bool DP_AFTER_P = HAVE_SCORE && !WIDE && !FUSED_GRADIENTS;
constexpr int PRODUCER_REGISTERS = ORDERED ? 40 : 24, CONSUMER_REGISTERS = ORDERED ? 232 : 240;
static_assert(!ORDERED || DQ_ADD != DQ_ADD_ATOMIC, "atomic additions have no fixed order");

/* Flags of a tile descriptor. The bits from TILE_KEYS up hold the index of the tile of keys. */
enum { TILE_MASKED = 1, TILE_PARTIAL = 2, TILE_END = 4, TILE_STOP = 8, TILE_KEYS = 16 };

constexpr u32 Q_OFFSET = K_BYTES + V_BYTES, DO_OFFSET = Q_OFFSET + STAGES * Q_BYTES,
              DS_OFFSET = DO_OFFSET + STAGES * DO_BYTES;
/* Cluster: one buffer for dS; one for P, which receives the peer's dS once dV is done; and the peer's K, of the columns
 * of dQ that this CTA computes. */
constexpr u32 P_OFFSET = DS_OFFSET + ROW_SLAB, PEER_K_OFFSET = P_OFFSET + ROW_SLAB;
static_assert(!PAIRED || 2 * DS_BYTES == 2 * ROW_SLAB + 2 * KEY_SLAB,
              "dS, P and the peer's K take the space of two stages of P and dS");
constexpr u32 DQ_OFFSET = DS_OFFSET + 2 * DS_BYTES,
              LSE_OFFSET = DQ_OFFSET + (DQ_ADD == DQ_ADD_STAGED ? GROUP_DQ_BYTES<0> + GROUP_DQ_BYTES<1> : 0);
constexpr u32 DELTA_OFFSET = LSE_OFFSET + STAGES * ROW_BYTES, CONTROL_OFFSET = DELTA_OFFSET + STAGES * ROW_BYTES;

/* Some kernels have too few registers to keep values derived from the thread index. They are rematerialised in every
 * tile with capture gradients, a long score, terms shared by keys or rows, a mask in two forms, and a fixed order. */
#define ATTUNE_REMATERIALISE                                                                                           \
    (ATTUNE_HAVE_READS || ATTUNE_SCORE_IS_LONG ||                                                                      \
     (ATTUNE_HAVE_SCORE && (ATTUNE_SCORE_KEYS || ATTUNE_SCORE_ROWS || ATTUNE_DETERMINISTIC ||                          \
                            (ATTUNE_HAVE_MASK && ATTUNE_HAVE_MASK_RANGE))))

/* threadIdx.x. Where it is rematerialised, it is hidden from the compiler, which would keep it in a register. */
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
    int q, h, b, flags; /* with TILE_END q is the index of the tile of keys */
};

struct control {
    u64 keys_full, keys_empty, full[STAGES], empty[STAGES], dq_full[GROUPS], dq_empty[GROUPS];
    /* Cluster of two CTAs. empty_q: Q of the stage may be loaded again, before its dO. ds_ready: this CTA's dS is in
     * shared memory. peer_p_empty: the peer has read its P, whose buffer may receive this CTA's dS. peer_ds_full: the
     * peer's dS has arrived. ds_empty: the peer has received this CTA's dS. next_full, next_empty: `next`, the tile of
     * keys that rank 0 took for both. */
    u64 empty_q[STAGES], ds_ready, peer_p_empty, peer_ds_full, ds_empty, next_full, next_empty;
    tile_desc descs[STAGES];
    int kv, next; /* kv: first key of the current tile */
    struct {
        const int *partial, *full;
        int left, left_full, tile, tiles_done, b, b_end, h, h_end, b_keys, h_keys, q, end, flags, begin;
    } iterator; /* the load thread's position; in shared memory, because the producer has few registers */
};
constexpr u32 CONTROL_BYTES = PAIRED ? 512 : 256;
/* Capture gradients summed over the rows of one head: capture_gradients_sm90.cuh. */
constexpr u32 HEAD_SUMS_OFFSET = CONTROL_OFFSET + CONTROL_BYTES, HEAD_SUMS_BYTES = 1536;
static_assert(sizeof(control) <= CONTROL_BYTES);
static_assert(!PAIRED || !HAVE_CAPTURE_GRADIENTS, "a cluster has no space for the sums of captures");
static_assert(planned(HEAD_SUMS_OFFSET + HEAD_SUMS_BYTES, 0) ||
              (!HAVE_CAPTURE_GRADIENTS && planned(HEAD_SUMS_OFFSET, 0)));

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

/* Copies to the same address of the cluster peer, whose barrier counts the bytes. */
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

/* A tile of keys: batch, head and first key. */
struct key_tile {
    int b, h_kv, kv;
};

__device__ __forceinline__ int query_tiles_per_head(const attune_cuda_arguments &a)
{
    return (a.q_len + BLOCK_M - 1) / BLOCK_M;
}

__device__ __forceinline__ int key_tiles_per_head(const attune_cuda_arguments &a)
{
    int length = a.kv_len;
    asm volatile("" : "+r"(length)); /* rematerialised at each use: the producer has few registers */
    return (length + BLOCK_N - 1) / BLOCK_N;
}

/* The index among split tail tiles of the tile to which a split belongs. */
__device__ __forceinline__ int tail_tile(const attune_cuda_backward &g, int split)
{
    return (split - g.full_wave_tiles) / g.tail_splits;
}

/* Tiles of all heads; each split of a tail tile counts as one. */
__device__ __forceinline__ int key_tile_count(const attune_cuda_arguments &a, const attune_cuda_backward &g)
{
    int all = g.kv_batch * a.kv_heads * key_tiles_per_head(a);
    return SPLIT_TAIL ? g.full_wave_tiles + (all - g.full_wave_tiles) * g.tail_splits : all;
}

/* Tiles are ordered by sets of heads whose Q and dO stay in the L2 cache. Within a set the first keys come first: under
 * a causal mask they meet the most queries, and the longest tiles must start first. */
__device__ __forceinline__ key_tile key_tile_of(const attune_cuda_arguments &a, const attune_cuda_backward &g, int tile)
{
    if (SPLIT_TAIL && tile >= g.full_wave_tiles)
        tile = g.full_wave_tiles + tail_tile(g, tile);
    int tiles = key_tiles_per_head(a), planes = g.kv_batch * a.kv_heads, some = g.resident_heads;
    int set = tile / (tiles * some), rest = tile - set * tiles * some;
    some = min(some, planes - set * some);
    int chunk = rest / some, plane = set * g.resident_heads + rest - chunk * some;
    if (ORDERED)
        chunk = tiles - 1 - chunk;
    return {plane / a.kv_heads, plane % a.kv_heads, chunk * BLOCK_N};
}

/* Row index into the workspace arrays LSE, delta and dQ sums. */
__device__ __forceinline__ i64 workspace_row(const attune_cuda_arguments &a, const attune_cuda_backward &g, int b,
                                             int h, int q)
{
    return (b * a.heads + h) * g.row_stride + q;
}

/* A warp group's float32 sums of dQ for a tile of rows, in fragment layout. */
__device__ __forceinline__ float *dq_sums_of(const attune_cuda_backward &g, i64 row, int group)
{
    return (float *)g.sums + (row / BLOCK_M * GROUPS + group) * (DQ_BYTES / 4);
}

/* Cluster: the sums of both warp groups of a rank are contiguous. */
__device__ __forceinline__ float *pair_dq_sums_of(const attune_cuda_backward &g, i64 row, u32 rank, int group)
{
    return dq_sums_of(g, row, (int)rank) + group * (GROUP_DQ_BYTES<0> / 4);
}

__device__ __forceinline__ u32 pair_dq_buffer(u32 memory, u32 stage, int group)
{
    return memory + DO_OFFSET + stage * DO_BYTES + group * (FIRST_GROUP_DV / 64) * ROW_SLAB;
}

/* DQ_ADD_IN_PLACE: the buffer of half a warp group's dQ, over its columns of dO (first half) or Q. */
__device__ __forceinline__ u32 dq_buffer(u32 memory, u32 stage, int group, int half)
{
    return memory + (half ? Q_OFFSET + stage * Q_BYTES + group * (FIRST_GROUP_D / 64) * ROW_SLAB
                          : DO_OFFSET + stage * DO_BYTES + group * (FIRST_GROUP_DV / 64) * ROW_SLAB);
}

/* -------------------------------------------------------------------------------------------------- the load thread */

__device__ __forceinline__ void load_query_tile(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                                control &c, u32 memory, pipeline_state &pipe, const tensor_map *q_map,
                                                const tensor_map *do_map)
{
    auto &it = c.iterator;
    barrier_wait(PAIRED ? &c.empty_q[pipe.stage] : &c.empty[pipe.stage], pipe.phase);
    u64 *full = &c.full[pipe.stage];
    /* Capture gradients are summed over all rows of a tile: rows past the last must be masked, since their scores may
     * be NaN although their LSE is +inf. */
    int flags = HAVE_CAPTURE_GRADIENTS && it.q > a.q_len - BLOCK_M ? it.flags | TILE_MASKED : it.flags;
    const tile_desc next = {it.q, it.h, it.b, ORDERED ? flags + c.kv / BLOCK_N * TILE_KEYS : flags};
    /* The descriptor is written before the arrival that releases it to the consumers. In a cluster dO's buffer becomes
     * empty later than Q's, so that the descriptor is written with dO. */
    if (PAIRED) {
        barrier_expect_more(full, Q_BYTES + 2 * ROW_BYTES);
    } else {
        c.descs[pipe.stage] = next;
        barrier_expect(full, Q_BYTES + DO_BYTES + 2 * ROW_BYTES);
    }
    i64 row = workspace_row(a, g, it.b, it.h, it.q);
#pragma unroll
    for (int slab = 0; slab < SLABS_D; slab++)
        tensor_load(memory + Q_OFFSET + pipe.stage * Q_BYTES + slab * ROW_SLAB, q_map, full, slab * 64, it.q, it.h,
                    it.b);
    bulk_load(memory + LSE_OFFSET + pipe.stage * ROW_BYTES, (const float *)g.lse + row, ROW_BYTES, full);
    bulk_load(memory + DELTA_OFFSET + pipe.stage * ROW_BYTES, (const float *)g.delta + row, ROW_BYTES, full);
    if (PAIRED) {
        barrier_wait(&c.empty[pipe.stage], pipe.phase);
        c.descs[pipe.stage] = next;
        barrier_expect(full, DO_BYTES);
    }
#pragma unroll
    for (int slab = 0; slab < SLABS_DV; slab++)
        tensor_load(memory + DO_OFFSET + pipe.stage * DO_BYTES + slab * ROW_SLAB, do_map, full, slab * 64, it.q, it.h,
                    it.b);
    advance(pipe);
}

__device__ __forceinline__ void push_descriptor(control &c, pipeline_state &pipe, int tile, int flags)
{
    barrier_wait(&c.empty[pipe.stage], pipe.phase);
    if (PAIRED)
        barrier_wait(&c.empty_q[pipe.stage], pipe.phase);
    c.descs[pipe.stage] = {tile, 0, 0, flags};
    barrier_arrive(&c.full[pipe.stage]);
    advance(pipe);
}

/* Loads every query tile of one head that attends to the tile of keys. */
__device__ __forceinline__ void load_head(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                          u32 memory, pipeline_state &pipe, const tensor_map *q_map,
                                          const tensor_map *do_map)
{
#if ATTUNE_HAVE_BLOCKS
    auto &it = c.iterator;
    {
        i64 row = it.b * g.column_batch_rows + it.h * g.column_head_rows + c.kv / a.kv_block;
        const i64 *list = (const i64 *)g.partial.offsets + row;
        it.partial = (const int *)g.partial.indices + list[0];
        it.left = (int)(list[1] - list[0]);
        list = (const i64 *)g.full.offsets + row;
        it.full = (const int *)g.full.indices + list[0];
        it.left_full = (int)(list[1] - list[0]);
    }
    for (;;) {
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
#pragma unroll 1
        for (; it.q < it.end; it.q += BLOCK_M)
            load_query_tile(a, g, c, memory, pipe, q_map, do_map);
    }
#else
#pragma unroll 1
    for (c.iterator.q = SPLIT_TAIL ? c.iterator.begin : 0; c.iterator.q < (SPLIT_TAIL ? c.iterator.end : a.q_len);
         c.iterator.q += BLOCK_M)
        load_query_tile(a, g, c, memory, pipe, q_map, do_map);
#endif
}

/* Resident CTAs, or clusters. Read again at each use: the producer has few registers. */
__device__ __forceinline__ int resident_ctas()
{
    int workgroups;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(workgroups));
    return PAIRED ? workgroups / 2 : workgroups;
}

/* The next tile of keys. In a cluster rank 0 takes it from the counter and sends it to the peer, which signals when it
 * has read it. */
__device__ __forceinline__ int next_tile(const attune_cuda_arguments &a, control &c, int tile, int tiles_done)
{
    if (!a.counter)
        return tile + resident_ctas();
    if (!PAIRED || cluster_rank() == 0)
        tile = (ORDERED ? 0 : resident_ctas()) + atomicAdd((int *)a.counter, 1);
    if (PAIRED && cluster_rank() == 0) {
        barrier_wait_peer(&c.next_empty, ~tiles_done & 1);
        store_peer(&c.next, tile, &c.next_full);
    } else if (PAIRED) {
        barrier_expect(&c.next_full, sizeof c.next);
        barrier_wait_peer(&c.next_full, tiles_done & 1);
        tile = *(volatile int *)&c.next;
        barrier_arrive_peer(&c.next_empty);
    }
    return tile;
}

__device__ __forceinline__ void produce(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                        u32 memory, const tensor_map *q_map, const tensor_map *k_map,
                                        const tensor_map *v_map, const tensor_map *do_map)
{
    pipeline_state pipe = {0, 1}; /* a fresh barrier passes a wait for the phase before its first */
    auto &it = c.iterator;
    /* With a fixed order the first tile too comes from the counter: a CTA may wait only for tiles that were taken
     * before its own, else CTAs that are not yet resident would block it for ever. */
    it.tile = ORDERED ? next_tile(a, c, 0, 0) : (int)blockIdx.x / (PAIRED ? 2 : 1);
    it.tiles_done = 0;
#pragma unroll 1
    for (; it.tile < key_tile_count(a, g); it.tiles_done++) {
        {
            key_tile at = key_tile_of(a, g, it.tile);
            barrier_wait(&c.keys_empty, ~it.tiles_done & 1);
            c.kv = at.kv;
            it.flags = at.kv + BLOCK_N > a.kv_len ? TILE_MASKED : 0;
            it.b_keys = at.b;
            it.h_keys = at.h_kv;
        }
        if (SPLIT_TAIL) {
            bool split = it.tile >= g.full_wave_tiles;
            it.begin = split ? (it.tile - g.full_wave_tiles) % g.tail_splits * g.tail_split_rows : 0;
            it.end = split ? min(a.q_len - it.begin, g.tail_split_rows) + it.begin : a.q_len;
        }
        barrier_expect(&c.keys_full, K_BYTES + V_BYTES + (PAIRED ? 2 * KEY_SLAB : 0));
        int rank = PAIRED ? (int)cluster_rank() : 0, kv = c.kv + rank * CTA_N;
        /* A broadcast batch (stride 0) has size 1 in its tensor map; K and V may differ in this. */
        int b_k = a.k.batch ? it.b_keys : 0, b_v = a.v.batch ? it.b_keys : 0;
#pragma unroll
        for (int slab = 0; slab < SLABS_D; slab++)
            tensor_load(memory + slab * KEY_SLAB, k_map, &c.keys_full, slab * 64, kv, it.h_keys, b_k);
#pragma unroll
        for (int slab = 0; slab < SLABS_DV; slab++)
            tensor_load(memory + K_BYTES + slab * KEY_SLAB, v_map, &c.keys_full, slab * 64, kv, it.h_keys, b_v);
#pragma unroll
        for (int slab = 0; slab < (PAIRED ? 2 : 0); slab++)
            tensor_load(memory + PEER_K_OFFSET + slab * KEY_SLAB, k_map, &c.keys_full, (rank * 2 + slab) * 64,
                        c.kv + (rank ^ 1) * CTA_N, it.h_keys, b_k);
        it.b_end = g.kv_batch == 1 ? a.batch : it.b_keys + 1;
        it.h_end = (it.h_keys + 1) * (a.heads / a.kv_heads);
#pragma unroll 1
        for (it.b = it.b_keys; it.b < it.b_end; it.b++)
#pragma unroll 1
            for (it.h = it.h_keys * (a.heads / a.kv_heads); it.h < it.h_end; it.h++)
                load_head(a, g, c, memory, pipe, q_map, do_map);
        push_descriptor(c, pipe, it.tile, TILE_END);
        it.tile = next_tile(a, c, it.tile, it.tiles_done + ORDERED);
    }
    push_descriptor(c, pipe, 0, TILE_STOP);
    int *counter = (int *)a.counter;
    if (PAIRED && cluster_rank())
        return;
    if (!ORDERED && counter && atomicAdd(counter + 1, 1) == resident_ctas() - 1) {
        counter[0] = 0;
        counter[1] = 0;
    }
}

/* dQ += dS^T K in global memory: adds one consumer warp group's fragments with bulk reductions. In a fixed order a
 * whole warp calls this, since it searches the block lists together; else one thread is enough. */
__device__ __forceinline__ void add_dq(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                       u32 memory, int group)
{
    constexpr bool IN_PLACE = DQ_ADD == DQ_ADD_IN_PLACE;
    bool first = threadIdx.x % 32 == 0;
    if (!ORDERED && !first)
        return;
    u32 bytes = group ? GROUP_DQ_BYTES<1> : GROUP_DQ_BYTES<0>;
    pipeline_state pipe = {0, 0};
    u32 phase = 0, rank = PAIRED ? cluster_rank() : 0;
    for (;; advance(pipe)) {
        barrier_wait(&c.full[pipe.stage], pipe.phase);
        tile_desc desc = c.descs[pipe.stage];
        if (ORDERED)
            __syncwarp();
        bool rows = !(desc.flags & (TILE_END | TILE_STOP));
        if (!(first && IN_PLACE && rows))
            lane_arrive(&c.empty[pipe.stage]);
        if (desc.flags & TILE_STOP)
            break;
        if (!rows)
            continue;
        i64 row = workspace_row(a, g, desc.b, desc.h, desc.q);
        int tile = desc.flags / TILE_KEYS;
        u32 *word = (u32 *)g.order_counts + (PAIRED ? (row / BLOCK_M * 2 + rank) : row / BLOCK_M) * GROUPS + group;
        if (ORDERED)
            order_wait(a, desc.b, desc.h, desc.q, tile, word);
        if (first) {
            float *to = PAIRED ? pair_dq_sums_of(g, row, rank, group) : dq_sums_of(g, row, group);
            barrier_wait(&c.dq_full[group], phase);
            if (PAIRED) {
                bulk_add(to, pair_dq_buffer(memory, pipe.stage, group), bytes);
            } else if (IN_PLACE) {
                bulk_add(to, dq_buffer(memory, pipe.stage, group, 0), bytes / 2);
                bulk_add(to + bytes / 8, dq_buffer(memory, pipe.stage, group, 1), bytes / 2);
            } else
                bulk_add(to, memory + DQ_OFFSET + group * GROUP_DQ_BYTES<0>, bytes);
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            barrier_arrive(IN_PLACE ? &c.empty[pipe.stage] : &c.dq_empty[group]);
            if (ORDERED)
                order_release(word, tile);
        }
        phase ^= 1;
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Copies dS of each query tile to the cluster peer, and signals the peer when its dS has arrived here. */
__device__ __forceinline__ void exchange_ds(control &c, u32 memory)
{
    pipeline_state pipe = {0, 0};
    u32 phase = 0;
    for (;; advance(pipe)) {
        barrier_wait(&c.full[pipe.stage], pipe.phase);
        int flags = c.descs[pipe.stage].flags;
        barrier_arrive(&c.empty[pipe.stage]);
        if (flags & TILE_STOP)
            break;
        if (flags & TILE_END)
            continue;
        barrier_expect(&c.peer_ds_full, ROW_SLAB);
        barrier_wait(&c.ds_ready, phase);
        barrier_wait_peer(&c.peer_p_empty, phase);
        copy_peer(memory + P_OFFSET, memory + DS_OFFSET, ROW_SLAB, &c.peer_ds_full);
        barrier_wait_peer(&c.peer_ds_full, phase);
        barrier_arrive_peer(&c.ds_empty);
        phase ^= 1;
    }
}

#endif
