/* SPDX-License-Identifier: MIT */
/*
 * Which tile a workgroup owns, and the tiles of keys that its mask lists. A kernel declares BLOCK_N, BLOCKS and PACKED
 * before it includes this.
 */
#ifndef ATTUNE_TILES_GLSL
#define ATTUNE_TILES_GLSL

#include "arguments.glsl"

/* The tile that the workgroup owns. */
struct Item {
    uint b, kv_h, h0, q0, heads, queries, split, rows;
};

Item item_of(Arguments args, uint index)
{
    Item it;
    uint rest = index;
    it.split = rest % args.splits;
    rest /= args.splits;
    uint head_chunk = rest % args.head_chunks;
    rest /= args.head_chunks;
    /* One head's K and V stay in the cache while its rows pass: the last first, since under a causal mask they have the most
     * to do. */
    uint chunk = args.q_chunks - 1u - rest % args.q_chunks;
    rest /= args.q_chunks;
    it.kv_h = rest % args.kv_heads;
    it.b = rest / args.kv_heads;
    uint group = args.heads / args.kv_heads;
    it.h0 = it.kv_h * group + head_chunk * args.head_step;
    it.heads = min(args.head_step, group - head_chunk * args.head_step);
    uint block0 = chunk / args.in_block * args.q_block;
    uint end = min(block0 + args.q_block, args.q_len);
    it.q0 = block0 + chunk % args.in_block * args.q_step;
    it.queries = min(args.q_step, end - it.q0);
    it.rows = it.heads * it.queries;
    return it;
}

uint head_of(const in uint row, const in uint queries)
{
    return PACKED ? row / queries : 0u;
}

uint query_of(const in uint row, const in uint queries)
{
    return PACKED ? row % queries : row;
}

/* A tile of keys, and the blocks behind it. */
struct Tile {
    uint kv0, kv_end, kind, block;
};

/* The next tile, if there is one: the rest of this block, or the next one that is listed. */
bool advance(inout Tile tile, const in uvec2 entries, const in uint blocks, const in uint kv_block, const in uint kv_len)
{
    tile.kv0 += BLOCK_N;
    while (tile.kv0 >= tile.kv_end) {
        if (tile.block >= blocks)
            return false;
        uint column = tile.block;
        if (BLOCKS) {
            uint entry = Word(address_add(entries, 4u * tile.block)).value;
            column = entry >> 1;
            tile.kind = entry & 1u;
        }
        tile.kv0 = column * kv_block;
        tile.kv_end = min(tile.kv0 + kv_block, kv_len);
        tile.block++;
    }
    return true;
}

#endif
