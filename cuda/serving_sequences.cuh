/* SPDX-License-Identifier: MIT */
/*
 * The sequences of a batch over a cache, and the tiles of their rows. What the caller's integers hold is checked here,
 * where they are read (docs/serving.md has the results).
 */
#ifndef ATTUNE_CUDA_SERVING_SEQUENCES_CUH
#define ATTUNE_CUDA_SERVING_SEQUENCES_CUH

#include "common.cuh"
#include "layout_sm80.h"

__device__ __forceinline__ int integer_at(const attune_cuda_array &x, i64 i)
{
    return ((const int *)x.address)[i * x.stride[0]];
}

/* The rows of a sequence are those from `first` on of q and o; 0 where the batch has none, or none that are valid. */
struct sequence_rows {
    int first, count;
};

/* The caller's integers of a sequence, read where they are needed. */
struct integers_there {
    const attune_cuda_serving &s;
    int b;

    __device__ __forceinline__ int row(int i) const
    {
        return integer_at(s.q_start, b + i);
    }
    __device__ __forceinline__ int page(int i) const
    {
        return integer_at(s.pages_start, b + i);
    }
    __device__ __forceinline__ int kv_len() const
    {
        return integer_at(s.kv_len, b);
    }
    __device__ __forceinline__ int kv_first() const
    {
        return integer_at(s.kv_first, b);
    }
};

/* ARGUMENTS: attune_cuda_arguments, or attune_cuda_append. */
template <typename ARGUMENTS, typename INTEGERS>
__device__ __forceinline__ sequence_rows rows_of(const ARGUMENTS &a, const attune_cuda_serving &s, int b, int live,
                                                 const INTEGERS &x)
{
    sequence_rows r = {0, 0};
    if (b >= live)
        return r;
    if (!s.q_start.address)
        return {0, a.q_len};
    int first = x.row(0), end = x.row(1);
    if (first >= 0 && first <= end && end <= s.tokens && end - first <= a.q_len)
        r = {first, end - first};
    return r;
}

template <typename ARGUMENTS>
__device__ __forceinline__ sequence_rows rows_of(const ARGUMENTS &a, const attune_cuda_serving &s, int b, int live)
{
    return rows_of(a, s, b, live, integers_there{s, b});
}

/* A sequence in a tile. Row i of a sequence is at q = position + i of the keys. */
struct sequence {
    int b, h, h_kv;          /* h: the first head */
    int row, rows;           /* the tile's first packed row; packed rows of the sequence */
    int batch, row0, token0; /* where the sequence's rows are in q and o, and among those of all sequences */
    int q_len, kv_len, kv_first, position;
};

/* With rows of several sequences (serving_groups.cuh). */
template <bool SHARES> struct group_of_tile {
};
template <> struct group_of_tile<true> {
    int members;   /* sequences of the tile; 1 = that of its first rows */
    int only;      /* the member that is computed; -1 = all */
    int part_keys; /* parts begin at its multiples */
};

/* A tile of rows, and its sequence. In shared memory, since the accumulators leave no registers for it. */
struct tile : sequence, group_of_tile<config::SHARES> {
    const int *table; /* of the pages */
    i64 entry_stride;
    int entries;
    int part, parts;   /* of its keys */
    int slot, counter; /* of its partial results, with more than one part */
    /* With fixed parts, numbered from key 0: the one that is computed, and the first and the last that the rows see. */
    int fixed, fixed_first, fixed_last;
};
static_assert(config::SHARES || sizeof(tile) <= ATTUNE_CUDA_SERVING_TILE, "the layout has space for the tile");

/* The first packed row of a sequence's tile. The last rows come first: under causal masks they take longest, and the
 * shortest tiles fill the end of the call. */
__device__ __forceinline__ int ordered_row(const sequence &t, int tile)
{
    return ((t.rows + BLOCK_M - 1) / BLOCK_M - 1 - tile) * BLOCK_M;
}

/* Finds the sequence and the rows of tile `index`: a scan over the sequences, 32 at a time. False past the last. */
__device__ __forceinline__ bool find_rows(tile &t, const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                          int index)
{
    int group = known_here(a.heads / known_here(a.kv_heads)), lane = (int)threadIdx.x % 32;
    int live = s.count.address ? min(integer_at(s.count, 0), a.batch) : a.batch;
    t.h_kv = index % known_here(a.kv_heads);
    t.h = t.h_kv * group;
    u32 left = (u32)(index / known_here(a.kv_heads)); /* tiles of 32 sequences fit 32 bits */
#pragma unroll 1
    for (int b = 0; b < live; b += 32) {
        sequence_rows mine = rows_of(a, s, b + lane, live);
        u32 tiles = (u32)(((i64)mine.count * group + BLOCK_M - 1) / BLOCK_M), sum = tiles;
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            u32 other = __shfl_up_sync(0xffffffffu, sum, i);
            sum += lane >= i ? other : 0;
        }
        u32 past = __ballot_sync(0xffffffffu, sum > left);
        if (past) {
            int found = __ffs((int)past) - 1;
            t.b = b + found;
            t.row0 = __shfl_sync(0xffffffffu, mine.first, found);
            t.q_len = __shfl_sync(0xffffffffu, mine.count, found);
            t.rows = t.q_len * group;
            t.row = ordered_row(t, (int)(left - __shfl_sync(0xffffffffu, sum - tiles, found)));
            return true;
        }
        left -= __shfl_sync(0xffffffffu, sum, 31);
    }
    return false;
}

/* Those of a sequence, loaded at once; 0 where the caller gives none. */
struct integers_here {
    int rows[2], pages[2], keys, keys_first;

    __device__ __forceinline__ int row(int i) const
    {
        return rows[i];
    }
    __device__ __forceinline__ int page(int i) const
    {
        return pages[i];
    }
    __device__ __forceinline__ int kv_len() const
    {
        return keys;
    }
    __device__ __forceinline__ int kv_first() const
    {
        return keys_first;
    }
};

__device__ __forceinline__ integers_here load_integers(const attune_cuda_serving &s, int b)
{
    integers_here x = {{0, 0}, {0, 0}, integer_at(s.kv_len, b), 0};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (s.q_start.address)
            x.rows[i] = integer_at(s.q_start, b + i);
        if (s.pages_start.address)
            x.pages[i] = integer_at(s.pages_start, b + i);
    }
    if (s.kv_first.address)
        x.keys_first = integer_at(s.kv_first, b);
    return x;
}

template <typename ARGUMENTS, typename INTEGERS>
__device__ __forceinline__ void find_keys(tile &t, const ARGUMENTS &a, const attune_cuda_serving &s, const INTEGERS &x)
{
    bool packed = s.q_start.address != 0;
    t.batch = packed ? 0 : t.b;
    t.token0 = packed ? t.row0 : t.b * a.q_len;
    t.table = (const int *)s.pages.address + t.b * s.pages.stride[0];
    t.entry_stride = s.pages.stride[1];
    t.entries = s.pages.address ? s.entries : 1;
    if (s.pages_start.address) {
        int first = x.page(0), end = x.page(1);
        bool valid = first >= 0 && first <= end && end <= s.entries;
        t.entries = valid ? end - first : 0;
        t.entry_stride = s.pages.stride[0];
        t.table = (const int *)s.pages.address + (valid ? first : 0) * t.entry_stride;
    }
    int most = (int)min((i64)a.kv_len, (i64)t.entries * s.page), length = x.kv_len();
    t.kv_len = length >= 0 && length <= most ? length : 0;
    t.position = t.kv_len - t.q_len;
    t.kv_first = s.kv_first.address ? min(max(x.kv_first(), 0), t.kv_len) : 0;
}

template <typename ARGUMENTS>
__device__ __forceinline__ void find_keys(tile &t, const ARGUMENTS &a, const attune_cuda_serving &s)
{
    find_keys(t, a, s, integers_there{s, t.b});
}

#endif
