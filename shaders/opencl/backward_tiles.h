/* SPDX-License-Identifier: MIT */
/*
 * The outer tile of a workgroup of the backward pass, and the inner tiles that it loops over. A program defines
 * BLOCK_M, the rows of an outer tile, BLOCK_N, those of an inner one, and KEYS as 0 or 1. With KEYS the outer tile has
 * keys and the inner ones queries, else the other way round. A and A2 are the outer rows, B and B2 the inner ones:
 * S = A B^T and dP = A2 B2^T.
 */
#ifndef ATTUNE_BACKWARD_TILES_H
#define ATTUNE_BACKWARD_TILES_H

#include "tiles.h"

/* The parameters of backward kernels between those of all kernels and the captures. */
#define ATTUNE_BACKWARD_PARAMETERS                                                                                     \
    , __global const uchar *restrict d_o, __global const uchar *restrict d_lse, __global uchar *restrict d_q,          \
        __global uchar *restrict d_k, __global uchar *restrict d_v, __global uchar *restrict d_sinks

#if KEYS
#define TENSOR_A    k
#define TENSOR_A2   v
#define TENSOR_B    q
#define TENSOR_B2   d_o
#define INNER_BLOCK inner_q_block
#else
#define TENSOR_A    q
#define TENSOR_A2   d_o
#define TENSOR_B    k
#define TENSOR_B2   v
#define INNER_BLOCK kv_block
#endif

/* The outer tile, and the number of planes (batch and head) that inner rows come from. */
typedef struct outer_tile {
    uint b, h, row0, rows, planes;
} outer_tile;

/* The inner tiles of one plane; b_plane and b2_plane are its offsets in B and B2. */
typedef struct inner_tiles {
    uint plane, b, h;
    long b_plane, b2_plane;
    block_iterator blocks;
} inner_tiles;

ATTUNE_FUNCTION outer_tile outer_tile_of(const attune_opencl_arguments *args, uint index)
{
    outer_tile outer;
#if KEYS
    uint planes = args->kv_batch * args->kv_heads, plane = index % planes;
    outer.row0 = index / planes * BLOCK_M;
    outer.b = plane / args->kv_heads;
    outer.h = plane % args->kv_heads;
    outer.rows = min(BLOCK_M, args->kv_len - outer.row0);
    /* Where k and v broadcast, the queries of all batches read these keys. */
    outer.planes = args->heads / args->kv_heads * (args->kv_batch < args->batch ? args->batch : 1u);
#else
    tile_coord coord = tile_coord_of(args, index);
    outer.b = coord.b;
    outer.h = coord.h0;
    outer.row0 = coord.q0;
    outer.rows = coord.rows;
    outer.planes = 1u;
#endif
    return outer;
}

/* Before the first tile of the plane. */
ATTUNE_FUNCTION void inner_tiles_begin(inner_tiles *inner, const attune_opencl_arguments *args,
                                       __global const uchar *mask, const outer_tile *outer)
{
    const uint group = args->heads / args->kv_heads;
#if KEYS
    const uint count = (args->q_len + args->inner_q_block - 1u) / args->inner_q_block;
    inner->b = args->kv_batch < args->batch ? inner->plane / group : outer->b;
    inner->h = outer->h * group + inner->plane % group;
    const uint inner_h = inner->h;
    const long lists = args->mask_columns;
    const uint list = inner->b * args->mask_columns_b + inner->h * args->mask_columns_h + outer->row0 / args->kv_block;
#else
    const uint count = (args->kv_len + args->kv_block - 1u) / args->kv_block;
    inner->b = outer->b;
    inner->h = outer->h;
    const uint inner_h = inner->h / group;
    const long lists = args->mask_rows;
    const uint list = inner->b * args->mask_rows_b + inner->h * args->mask_rows_h + outer->row0 / args->q_block;
#endif
    inner->blocks = block_iterator_begin(mask, lists, list, count);
    inner->b_plane = plane_of(&args->TENSOR_B, inner->b, inner_h);
    inner->b2_plane = plane_of(&args->TENSOR_B2, inner->b, inner_h);
}

ATTUNE_FUNCTION int inner_tiles_next(inner_tiles *inner, const attune_opencl_arguments *args,
                                     __global const uchar *mask, const outer_tile *outer, uint inner_len)
{
    while (!block_iterator_next(&inner->blocks, args->INNER_BLOCK, inner_len)) {
        inner->plane++;
        if (inner->plane >= outer->planes)
            return 0;
        inner_tiles_begin(inner, args, mask, outer);
    }
    return 1;
}

/* A fully masked row gets an infinite LSE, which makes its weights 0. */
ATTUNE_FUNCTION float load_lse(__global uchar *lse, const attune_opencl_arguments *args, uint b, uint h, uint q)
{
    const uint bits = as_uint(*row_at(lse, &args->lse, b, h, q));
    return as_float(bits == 0xff800000u ? 0x7f800000u : bits);
}

ATTUNE_FUNCTION float load_delta(__global const uchar *workspace, const attune_opencl_arguments *args, uint b, uint h,
                                 uint q)
{
    return *((__global const float *)(workspace + args->delta) + (b * args->heads + h) * args->q_len + q);
}

#endif
