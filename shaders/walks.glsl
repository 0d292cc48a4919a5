/* SPDX-License-Identifier: MIT */
/*
 * What a workgroup of the backward pass owns, and the tiles that it walks. A kernel declares what tiles.glsl asks for, and
 * BLOCK_M, the rows that are owned; BLOCK_N are walked at once. With KEYS keys are owned and queries walked, else the other
 * way round: A and A2 are the rows owned, B and B2 those walked, S = A B^T and dP = A2 B2^T.
 */
#ifndef ATTUNE_WALKS_GLSL
#define ATTUNE_WALKS_GLSL

#include "tiles.glsl"

#ifdef KEYS
#define TENSOR_A args.k
#define TENSOR_B args.q
#define TENSOR_A2 args.v
#define TENSOR_B2 args.d_o
#define WALK_BLOCK args.q_walk
#else
#define TENSOR_A args.q
#define TENSOR_B args.k
#define TENSOR_A2 args.d_o
#define TENSOR_B2 args.v
#define WALK_BLOCK args.kv_block
#endif

/* The tile that the workgroup owns, and how many planes of walked rows it meets. */
struct Owned {
    uint b, h, row0, rows, planes;
};

/* A plane that is walked: its lists, and where its rows are. */
struct Walk {
    uint plane, b, h;
    uvec2 entries;
    uint blocks;
    uvec2 at, at2; /* of B and B2 */
    Tile tile;
};

Owned owned_of(Arguments args, const in uint index)
{
    Owned own;
#ifdef KEYS
    uint planes = args.kv_batch * args.kv_heads, plane_index = index % planes;
    own.row0 = index / planes * BLOCK_M;
    own.b = plane_index / args.kv_heads;
    own.h = plane_index % args.kv_heads;
    own.rows = min(BLOCK_M, args.kv_len - own.row0);
    /* All batches where k and v broadcast. */
    own.planes = args.heads / args.kv_heads * (args.kv_batch < args.batch ? args.batch : 1u);
#else
    Item it = item_of(args, index);
    own = Owned(it.b, it.h0, it.q0, it.rows, 1u);
#endif
    return own;
}

/* Sets a walk before the first tile of its plane. */
void enter(inout Walk w, Arguments args, const in Owned own)
{
#ifdef KEYS
    uint group = args.heads / args.kv_heads;
    w.b = args.kv_batch < args.batch ? w.plane / group : own.b;
    w.h = own.h * group + w.plane % group;
    uint kv_h = w.h;
    w.blocks = (args.q_len + args.q_walk - 1u) / args.q_walk;
    uvec2 lists = args.mask_columns;
    uint at = w.b * args.mask_columns_b + w.h * args.mask_columns_h + own.row0 / args.kv_block;
#else
    w.b = own.b;
    w.h = own.h;
    uint kv_h = w.h / (args.heads / args.kv_heads);
    w.blocks = (args.kv_len + args.kv_block - 1u) / args.kv_block;
    uvec2 lists = args.mask_rows;
    uint at = w.b * args.mask_rows_b + w.h * args.mask_rows_h + own.row0 / args.q_block;
#endif
    w.entries = uvec2(0u);
    if (BLOCKS) {
        uvec4 head = Uvec4(address_step(lists, at, uvec2(16u, 0u))).value;
        w.entries = head.xy;
        w.blocks = head.z;
    }
    w.at = plane(TENSOR_B, w.b, kv_h);
    w.at2 = plane(TENSOR_B2, w.b, kv_h);
    w.tile = Tile(0u - BLOCK_N, 0u, 0u, 0u);
}

bool next_tile(inout Walk w, Arguments args, const in Owned own, const in uint walked)
{
    while (!advance(w.tile, w.entries, w.blocks, WALK_BLOCK, walked)) {
        w.plane++;
        if (w.plane >= own.planes)
            return false;
        enter(w, args, own);
    }
    return true;
}

/* LSE of a row, infinite where it has no pair: its weights are then 0. */
float load_lse(const in Tensor t, const in uint b, const in uint h, const in uint q)
{
    uint bits = Word(address_step(plane(t, b, h), q, t.stride_row)).value;
    return uintBitsToFloat(bits == 0xff800000u ? 0x7f800000u : bits);
}

float load_delta(Arguments args, const in uint b, const in uint h, const in uint q)
{
    return uintBitsToFloat(Word(address_step(args.delta, (b * args.heads + h) * args.q_len + q, uvec2(4u, 0u))).value);
}

#endif
