/* SPDX-License-Identifier: MIT */
/*
 * The tile that a workgroup computes. A kernel declares PACKED before it includes this.
 */
#ifndef ATTUNE_TILES_GLSL
#define ATTUNE_TILES_GLSL

#include "arguments.glsl"

/* Rows are queries of one head, or with PACKED of several heads that share keys. */
struct TileCoord {
    uint b, kv_h, h0, q0, heads, queries, split, rows;
};

TileCoord tile_coord_of(attune_vulkan_arguments args, uint index)
{
    TileCoord coord;
    uint rest = index;
    coord.split = rest % args.splits;
    rest /= args.splits;
    uint head_chunk = rest % args.head_chunks;
    rest /= args.head_chunks;
    /* Neighbouring workgroups have rows of the same few planes, whose K and V then stay in the cache. The last rows of
     * these planes come first: under a causal mask they have the most keys. */
    uint section = rest / (args.q_chunks * args.section), first = section * args.section;
    rest -= section * args.q_chunks * args.section;
    uint planes = max(min(args.section, args.batch * args.kv_heads - first), 1u);
    uint chunk = args.q_chunks - 1u - rest / planes, plane = first + rest % planes;
    coord.kv_h = plane % args.kv_heads;
    coord.b = plane / args.kv_heads;
    uint group = args.heads / args.kv_heads;
    coord.h0 = coord.kv_h * group + head_chunk * args.head_step;
    coord.heads = min(args.head_step, group - head_chunk * args.head_step);
    uint block0 = chunk / args.in_block * args.q_block;
    uint end = min(block0 + args.q_block, args.q_len);
    coord.q0 = block0 + chunk % args.in_block * args.q_step;
    coord.queries = min(args.q_step, end - coord.q0);
    coord.rows = coord.heads * coord.queries;
    return coord;
}

/* Without splits. */
uint tile_count(attune_vulkan_arguments args)
{
    return args.batch * args.kv_heads * args.q_chunks * args.head_chunks;
}

/* The queries of a tile, of a sequence that has q_len. */
void begin_queries(attune_vulkan_arguments args, inout TileCoord coord, const in uint q_len)
{
    coord.queries = coord.q0 < q_len ? min(args.q_step, q_len - coord.q0) : 0u;
    coord.rows = coord.heads * coord.queries;
}

uint head_of(const in uint row, const in uint queries)
{
    return PACKED ? row / queries : 0u;
}

uint query_of(const in uint row, const in uint queries)
{
    return PACKED ? row % queries : row;
}

#endif
