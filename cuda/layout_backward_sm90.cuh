/* SPDX-License-Identifier: MIT */
/*
 * The barriers of the backward kernels with TMA, and the coordinates of their tiles. Of each stage the producer loads
 * Q, dO, LSE and delta of a query tile; K and V stay for a tile of keys.
 */
#ifndef ATTUNE_CUDA_LAYOUT_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_LAYOUT_BACKWARD_SM90_CUH

/* The kernel's configuration, `backward`: Hopper's, unless its source has included another one. */
#ifndef ATTUNE_CUDA_CONFIG_BACKWARD_SM100_CUH
#include "config_backward_sm90.cuh"
#endif
#include "hopper.cuh"

/* The named barriers of bar.sync; __syncthreads has number 0. */
enum named_barrier { BARRIER_CONSUMERS = 1, BARRIER_GROUP_0, BARRIER_GROUP_1, BARRIER_DQ, BARRIER_TMEM };

/* Flags of a tile descriptor. TILE_VALUES: of two items for a tile of keys (backward::ITEMS), that of dV. TILE_ABSENT:
 * in a pair of CTAs on sm_100a no row attends to this CTA's keys. The bits from TILE_KEYS up hold the index of the tile
 * of keys. */
enum {
    TILE_MASKED = 1,
    TILE_PARTIAL = 2,
    TILE_END = 4,
    TILE_STOP = 8,
    TILE_VALUES = 16,
    TILE_ABSENT = 16,
    TILE_KEYS = 32
};

struct __align__(16) tile_desc
{
    int q, h, b, flags; /* with TILE_END q is the index of the tile of keys */
};

/* dO, where it has stages of its own. loaded: how many the load thread has filled. */
template <int SIZE> struct output_stages {
    pipeline<SIZE> outputs;
    u32 loaded;
};
template <> struct output_stages<0> {
};

struct control : output_stages<backward::DO_STAGES> {
    pipeline<1> keys;              /* K and V of a tile of keys */
    pipeline<STAGES> queries;      /* Q, dO, LSE and delta of a query tile */
    pipeline<backward::GROUPS> dq; /* dQ; the stage is the consumer warp group that computed it */
    /* Cluster of two CTAs. q_empty: Q of the stage may be loaded again, before its dO. ds_ready: this CTA's dS is in
     * shared memory. peer_p_empty: the peer has read its P, whose buffer may receive this CTA's dS. peer_ds_full: the
     * peer's dS has arrived. ds_empty: the peer has received this CTA's dS. next: the tile of keys that rank 0 took for
     * both. */
    u64 q_empty[STAGES], ds_ready, peer_p_empty, peer_ds_full, ds_empty;
    pipeline<1> next;
    tile_desc descs[STAGES];
    int kv, next_tile; /* kv: first key of the current tile */
    struct {
        const int *partial, *full;
        int left, left_full, tile, tiles_done, b, b_end, h, h_end, b_keys, h_keys, q, end, flags;
        union {
            int begin; /* with split tails, which lists exclude */
            int part;  /* a head_part */
        };
    } iterator; /* the load thread's position; in shared memory, because the producer has few registers */
};
static_assert(sizeof(control) <= backward::CONTROL_BYTES);

/* ------------------------------------------------------------------------------------------------ tiles of the work */

/* A tile of keys: batch, head and first key, and how many tiles later the next one of the head is. */
struct key_tile {
    int b, h_kv, kv, next;
};

__device__ __forceinline__ int query_tiles_per_head(const attune_cuda_arguments &a)
{
    return (a.q_len + BLOCK_M - 1) / BLOCK_M;
}

__device__ __forceinline__ int key_tiles_per_head(const attune_cuda_arguments &a)
{
    int length = a.kv_len;
    make_opaque(length); /* rematerialised at each use: the producer has few registers */
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
    return backward::SPLIT_TAIL ? g.full_wave_tiles + (all - g.full_wave_tiles) * g.tail_splits : all;
}

/* Tiles are ordered by sets of heads whose Q and dO stay in the L2 cache. Within a set the first keys come first: under
 * a causal mask they meet the most queries, and the longest tiles must start first. */
__device__ __forceinline__ key_tile key_tile_of(const attune_cuda_arguments &a, const attune_cuda_backward &g, int tile)
{
    if (backward::SPLIT_TAIL && tile >= g.full_wave_tiles)
        tile = g.full_wave_tiles + tail_tile(g, tile);
    int tiles = key_tiles_per_head(a), planes = g.kv_batch * a.kv_heads, some = g.resident_heads;
    int set = tile / (tiles * some), rest = tile - set * tiles * some;
    some = min(some, planes - set * some);
    int chunk = rest / some, plane = set * g.resident_heads + rest - chunk * some;
    if (backward::ORDERED)
        chunk = tiles - 1 - chunk;
    return {plane / a.kv_heads, plane % a.kv_heads, chunk * BLOCK_N, some};
}

/* The tile of the same head in whose place `tile` was taken: within a set the longest come first, where the mask has an
 * order. */
__device__ __forceinline__ int longest_first(const attune_cuda_arguments &a, const attune_cuda_backward &g, int tile)
{
    if (!config::HAVE_BLOCKS || backward::ORDERED || !g.column_order)
        return tile;
    key_tile at = key_tile_of(a, g, tile / backward::ITEMS);
    int two = a.kv_block > BLOCK_N, block = at.kv / BLOCK_N >> two;
    int by = (((const int *)g.column_order)[at.b * g.column_batch_rows + block] - block) << two;
    return tile + by * at.next * backward::ITEMS;
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
    return (float *)g.sums + (row / BLOCK_M * backward::DQ_GROUPS + group) * (backward::DQ_BYTES / 4);
}

#endif
