/* SPDX-License-Identifier: MIT */
/*
 * The block iterator: the tiles of the blocks that a mask lists. A kernel declares BLOCK_N, the rows of a tile, BLOCKS
 * and PACKED before it includes this.
 */
#ifndef ATTUNE_BLOCK_LISTS_GLSL
#define ATTUNE_BLOCK_LISTS_GLSL

#include "tiles.glsl"

struct BlockIterator {
    uvec2 entries;            /* address of the list; unused without BLOCKS */
    uint block, end;          /* the block after the tile's, and the end, as numbers in the list */
    uint row0, row_end, kind; /* of the tile: its first row, the end of its block; kind 1 = partial block */
};

/* Before the first tile of the list `index`; without lists, of `count` blocks. */
BlockIterator block_iterator_begin(const in uvec2 lists, const in uint index, const in uint count)
{
    BlockIterator it = BlockIterator(uvec2(0u), 0u, count, 0u - BLOCK_N, 0u, 0u);
    if (BLOCKS) {
        uvec4 head = Uvec4(address_step(lists, index, uvec2(16u, 0u))).value;
        it.entries = head.xy;
        it.end = head.z;
    }
    return it;
}

/* The next tile, if there is one: of the rest of this block, or of the next one in the list. */
bool block_iterator_next(inout BlockIterator it, const in uint block_size, const in uint length)
{
    it.row0 += BLOCK_N;
    while (it.row0 >= it.row_end) {
        if (it.block >= it.end)
            return false;
        uint column = it.block;
        if (BLOCKS) {
            uint entry = Word(address_add(it.entries, 4u * it.block)).value;
            column = entry >> 1;
            it.kind = entry & 1u;
        }
        it.row0 = column * block_size;
        it.row_end = min(it.row0 + block_size, length);
        it.block++;
    }
    return true;
}

/* The blocks of keys of a forward tile: its split's share of them. */
BlockIterator block_iterator_begin(attune_vulkan_arguments args, const in TileCoord coord)
{
    uint index = coord.b * args.mask_rows_b + coord.h0 * args.mask_rows_h + coord.q0 / args.q_block;
    uint count = (args.kv_len + args.kv_block - 1u) / args.kv_block;
    BlockIterator it = block_iterator_begin(args.mask_rows, index, count);
    if (args.splits > 1u) {
        /* blocks * split / splits, without overflow */
        uint share = it.end / args.splits, rest = it.end % args.splits;
        it.block = share * coord.split + rest * coord.split / args.splits;
        it.end = share * (coord.split + 1u) + rest * (coord.split + 1u) / args.splits;
    }
    return it;
}

#endif
