/* SPDX-License-Identifier: MIT */
/*
 * The tile that a workgroup computes, the block iterator over the tiles that a mask lists, and where rows are in
 * memory. A program defines BLOCK_N, the rows of an inner tile, and BLOCKS, MASK, SCORE and PACKED as 0 or 1.
 */
#ifndef ATTUNE_TILES_H
#define ATTUNE_TILES_H

#include "prelude.h"

/* The kernels' parameters before the captures; backward kernels have more after them. */
#define ATTUNE_KERNEL_PARAMETERS                                                                                       \
    const attune_opencl_arguments args, __global const uchar *restrict q, __global const uchar *restrict k,            \
        __global const uchar *restrict v, __global uchar *restrict o, __global uchar *restrict lse,                    \
        __global uchar *restrict row_max, __global const uchar *restrict sinks, __global uchar *restrict workspace,    \
        __global const uchar *restrict mask, __global const uchar *restrict mask_data

/* Below every score: a row that has seen no pair. Times LOG2E it is finite too: a driver may take (x - m) * LOG2E for
 * x * LOG2E - m * LOG2E. */
#define LOWEST -2.0e38f
#define LOG2E  1.44269504088896341f
#define LN2    0.693147180559945309f

/* Scores are in units of log2, which saves a multiplication for each. Results of a score expression stay in natural
 * units, so that the row maximum is exact. */
#define UNIT    (SCORE ? 1.0f : LN2)
#define TO_LOG2 (SCORE ? LOG2E : 1.0f)

ATTUNE_FUNCTION float lse_of(float m, float l)
{
    return is_nan(l) ? ATTUNE_NAN : is_zero(l) ? -INFINITY : m * UNIT + log2(l) * LN2;
}

/* The row maximum from m and the sum l. fmax() drops NaN scores, so that l alone shows them. An infinite score makes l
 * NaN too, but then m is infinite. */
ATTUNE_FUNCTION float row_max_of(float m, float l)
{
    int nan = is_nan(l) && as_uint(m) != 0x7f800000u;
    int none = as_uint(m) == as_uint(LOWEST);
    return nan ? ATTUNE_NAN : none ? -INFINITY : m * UNIT;
}

ATTUNE_FUNCTION long plane_of(const attune_opencl_tensor *t, uint b, uint h)
{
    return t->offset + (long)b * t->stride_b + (long)h * t->stride_h;
}

/* The element of a row in lse or row_max. */
ATTUNE_FUNCTION __global float *row_at(__global uchar *memory, const attune_opencl_tensor *t, uint b, uint h, uint q)
{
    return (__global float *)(memory + plane_of(t, b, h) + (long)q * t->stride_row);
}

/* In stage 7, the factor of a row whose O is 0, whatever was accumulated. No factor is negative, and one of 0 is that
 * of a row beside whose sink its scores vanish: NaN in V shows there. */
#define ZERO_ROW -1.0f

/* The sink of a head, a logit in the denominator alone. m becomes the larger of both; O and sums relative to the old m
 * are multiplied by x, and y is the sink's own weight. */
ATTUNE_FUNCTION float2 add_sink(const attune_opencl_arguments *args, __global const uchar *sinks, uint h, float *m)
{
    if (!(args->flags & ATTUNE_OPENCL_HAS_SINKS))
        return (float2)(1.0f, 0.0f);
    const float sink = *(__global const float *)(sinks + args->sinks + (long)h * args->sinks_h) / UNIT;
    const float old = *m, top = fmax(old, sink);
    *m = top;
    return (float2)(exp2((old - top) * TO_LOG2), exp2((sink - top) * TO_LOG2));
}

/* Rows are queries of one head, or with PACKED of several heads that share keys. */
typedef struct tile_coord {
    uint b, kv_h, h0, q0, heads, queries, split, rows;
} tile_coord;

ATTUNE_FUNCTION tile_coord tile_coord_of(const attune_opencl_arguments *args, uint index)
{
    tile_coord coord;
    uint rest = index;
    coord.split = rest % args->splits;
    rest /= args->splits;
    uint head_chunk = rest % args->head_chunks;
    rest /= args->head_chunks;
    /* Neighbouring workgroups have rows of the same few planes, whose K and V then stay in the cache. The last rows of
     * these planes come first: under a causal mask they have the most keys. */
    uint section = rest / (args->q_chunks * args->section), first = section * args->section;
    rest -= section * args->q_chunks * args->section;
    uint planes = max(min(args->section, args->batch * args->kv_heads - first), 1u);
    uint chunk = args->q_chunks - 1u - rest / planes, plane = first + rest % planes;
    coord.kv_h = plane % args->kv_heads;
    coord.b = plane / args->kv_heads;
    uint group = args->heads / args->kv_heads;
    coord.h0 = coord.kv_h * group + head_chunk * args->head_step;
    coord.heads = min(args->head_step, group - head_chunk * args->head_step);
    uint block0 = chunk / args->in_block * args->q_block;
    uint end = min(block0 + args->q_block, args->q_len);
    coord.q0 = block0 + chunk % args->in_block * args->q_step;
    coord.queries = min(args->q_step, end - coord.q0);
    coord.rows = coord.heads * coord.queries;
    return coord;
}

/* The head and query of a row of the tile. */
ATTUNE_FUNCTION uint row_head(const tile_coord *coord, uint row)
{
    return coord->h0 + (PACKED ? row / coord->queries : 0u);
}

ATTUNE_FUNCTION uint row_query(const tile_coord *coord, uint row)
{
    return coord->q0 + (PACKED ? row % coord->queries : row);
}

typedef struct block_iterator {
    __global const uint *entries; /* unused without BLOCKS */
    uint block, end;              /* the block after the tile's, and the end, as numbers in the list */
    uint row0, row_end, kind;     /* of the tile: its first row, the end of its block; kind 1 = partial block */
    uint partial; /* of the tile: kind, or 0 where all its pairs are known to be allowed (key_tiles.h) */
} block_iterator;

/* Before the first tile of the list `index` of those at `lists` in the mask's object; without lists, of `count`
 * blocks. */
ATTUNE_FUNCTION block_iterator block_iterator_begin(__global const uchar *mask, long lists, uint index, uint count)
{
    block_iterator it;
    it.entries = (__global const uint *)mask;
    it.block = 0u;
    it.end = count;
    it.row0 = 0u - BLOCK_N;
    it.row_end = 0u;
    it.kind = 0u;
    it.partial = 0u;
    if (BLOCKS) {
        __global const attune_opencl_mask_row *row = (__global const attune_opencl_mask_row *)(mask + lists) + index;
        it.entries = (__global const uint *)(mask + row->offset);
        it.end = row->count;
    }
    return it;
}

/* The next tile, if there is one: of the rest of this block, or of the next one in the list. */
ATTUNE_FUNCTION int block_iterator_next(block_iterator *it, uint block_size, uint length)
{
    it->row0 += BLOCK_N;
    while (it->row0 >= it->row_end) {
        if (it->block >= it->end)
            return 0;
        uint column = it->block;
        if (BLOCKS) {
            uint entry = it->entries[it->block];
            column = entry >> 1;
            it->kind = entry & 1u;
        }
        it->row0 = column * block_size;
        it->row_end = min(it->row0 + block_size, length);
        it->block++;
    }
    it->partial = it->kind;
    return 1;
}

/* The blocks of keys of a forward tile: its split's share of them. */
ATTUNE_FUNCTION block_iterator block_iterator_of_tile(const attune_opencl_arguments *args, __global const uchar *mask,
                                                      const tile_coord *coord)
{
    uint index = coord->b * args->mask_rows_b + coord->h0 * args->mask_rows_h + coord->q0 / args->q_block;
    uint count = (args->kv_len + args->kv_block - 1u) / args->kv_block;
    block_iterator it = block_iterator_begin(mask, args->mask_rows, index, count);
    if (args->splits > 1u) {
        /* blocks * split / splits, without overflow */
        uint share = it.end / args->splits, rest = it.end % args->splits;
        it.block = share * coord->split + rest * coord->split / args->splits;
        it.end = share * (coord->split + 1u) + rest * (coord->split + 1u) / args->splits;
    }
    return it;
}

/* A tile of keys: the first; whether the mask's expression is evaluated; whether pairs may be forbidden at all. */
typedef struct key_tile {
    uint kv0;
    int is_partial, masked;
} key_tile;

ATTUNE_FUNCTION key_tile key_tile_of(const block_iterator *it, uint kv_len)
{
    key_tile tile;
    tile.kv0 = it->row0;
    tile.is_partial = MASK && it->partial != 0u;
    tile.masked = tile.is_partial || it->row0 + BLOCK_N > kv_len;
    return tile;
}

/* Rows of K and V, where every kernel asks for them. */
ATTUNE_FUNCTION __global const uchar *k_row(__global const uchar *k_plane, uint kv, long stride)
{
    return k_plane + (long)kv * stride;
}

ATTUNE_FUNCTION __global const uchar *v_row(__global const uchar *v_plane, uint kv, long stride)
{
    return v_plane + (long)kv * stride;
}

#endif
