/* SPDX-License-Identifier: MIT */
/*
 * The outer tile of a workgroup of the backward pass, and the inner tiles that it loops over. A kernel declares what
 * block_lists.glsl needs, and BLOCK_M, the rows of an outer tile; inner tiles have BLOCK_N. With KEYS the outer tile
 * has keys and the inner ones queries, else the other way round. A and A2 are the outer rows, B and B2 the inner ones:
 * S = A B^T and dP = A2 B2^T.
 */
#ifndef ATTUNE_BACKWARD_TILES_GLSL
#define ATTUNE_BACKWARD_TILES_GLSL

#include "block_lists.glsl"

#ifdef KEYS
#define TENSOR_A    args.k
#define TENSOR_B    args.q
#define TENSOR_A2   args.v
#define TENSOR_B2   args.d_o
#define INNER_BLOCK args.inner_q_block
#else
#define TENSOR_A    args.q
#define TENSOR_B    args.k
#define TENSOR_A2   args.d_o
#define TENSOR_B2   args.v
#define INNER_BLOCK args.kv_block
#endif

/* The outer tile, and the number of planes (batch and head) that inner rows come from. */
struct OuterTile {
    uint b, h, row0, rows, planes;
};

/* The inner tiles of one plane. */
struct InnerTiles {
    uint plane, b, h;
    uvec2 b_plane, b2_plane; /* addresses of B and B2 */
    BlockIterator blocks;
};

OuterTile outer_tile_of(attune_vulkan_arguments args, const in uint index)
{
    OuterTile outer;
#ifdef KEYS
    uint planes = args.kv_batch * args.kv_heads, plane_index = index % planes;
    outer.row0 = index / planes * BLOCK_M;
    outer.b = plane_index / args.kv_heads;
    outer.h = plane_index % args.kv_heads;
    outer.rows = min(BLOCK_M, args.kv_len - outer.row0);
    /* Where k and v broadcast, the queries of all batches read these keys. */
    outer.planes = args.heads / args.kv_heads * (args.kv_batch < args.batch ? args.batch : 1u);
#else
    TileCoord coord = tile_coord_of(args, index);
    outer = OuterTile(coord.b, coord.h0, coord.q0, coord.rows, 1u);
#endif
    return outer;
}

/* Before the first tile of the plane. */
void inner_tiles_begin(inout InnerTiles inner, attune_vulkan_arguments args, const in OuterTile outer)
{
#ifdef KEYS
    uint group = args.heads / args.kv_heads;
    inner.b = args.kv_batch < args.batch ? inner.plane / group : outer.b;
    inner.h = outer.h * group + inner.plane % group;
    uint kv_h = inner.h;
    uint count = (args.q_len + args.inner_q_block - 1u) / args.inner_q_block;
    uvec2 lists = args.mask_columns;
    uint index = inner.b * args.mask_columns_b + inner.h * args.mask_columns_h + outer.row0 / args.kv_block;
#else
    inner.b = outer.b;
    inner.h = outer.h;
    uint kv_h = inner.h / (args.heads / args.kv_heads);
    uint count = (args.kv_len + args.kv_block - 1u) / args.kv_block;
    uvec2 lists = args.mask_rows;
    uint index = inner.b * args.mask_rows_b + inner.h * args.mask_rows_h + outer.row0 / args.q_block;
#endif
    inner.blocks = block_iterator_begin(lists, index, count);
    inner.b_plane = plane(TENSOR_B, inner.b, kv_h);
    inner.b2_plane = plane(TENSOR_B2, inner.b, kv_h);
}

bool inner_tiles_next(inout InnerTiles inner, attune_vulkan_arguments args, const in OuterTile outer,
                      const in uint inner_len)
{
    while (!block_iterator_next(inner.blocks, INNER_BLOCK, inner_len)) {
        inner.plane++;
        if (inner.plane >= outer.planes)
            return false;
        inner_tiles_begin(inner, args, outer);
    }
    return true;
}

/* A fully masked row gets an infinite LSE, which makes its weights 0. */
float load_lse(const in attune_vulkan_tensor t, const in uint b, const in uint h, const in uint q)
{
    uint bits = Word(address_step(plane(t, b, h), q, t.stride_row)).value;
    return uintBitsToFloat(bits == 0xff800000u ? 0x7f800000u : bits);
}

float load_delta(attune_vulkan_arguments args, const in uint b, const in uint h, const in uint q)
{
    return uintBitsToFloat(Word(address_step(args.delta, (b * args.heads + h) * args.q_len + q, uvec2(4u, 0u))).value);
}

#endif
