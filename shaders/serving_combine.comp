/* SPDX-License-Identifier: MIT */
/*
 * Merges the parts of a tile of a call over a cache, which a schedule split (serving_schedule.comp): a workgroup has a
 * tile, and an invocation four columns of a row. Parts are folded from the first to the last.
 */
#version 460
#extension GL_GOOGLE_include_directive : require

#include "arguments.glsl"
#include "elements.glsl"
#include "tiles.glsl"

attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);

#include "sequence.glsl"

layout(local_size_x = ATTUNE_VULKAN_SCHEDULE_THREADS) in;

const uint BATCH = 4u; /* parts whose loads are in flight */

struct Sums {
    float m, l;
    vec4 o;
};

/* Of a merge: its tile, parts and first slot; its number in the list. */
uvec4 merge;
uint merge_index;
TileCoord coord;

/* The row of the partial result of a part, for a query of the tile and a head. With serving.shares an item of this
 * sequence has it, or of one before it. A schedule may hold anything. */
uint partial_of(const in uint part, const in uint query, const in uint head)
{
    if (serving.shares == 0u)
        return (merge.z + part) * BLOCK_M + head * coord.queries + query;
    const uint merges = 1u + serving.items, links = merges + serving.merges;
    uint index = merge_index;
    uvec4 link = Uvec4(address_step(serving.schedule, links + index, uvec2(16u, 0u))).value;
    const uint query0 = link.z;
    while (part < link.x && link.y - 1u < index) {
        index = link.y - 1u;
        link = Uvec4(address_step(serving.schedule, links + index, uvec2(16u, 0u))).value;
    }
    uint slot = Uvec4(address_step(serving.schedule, merges + index, uvec2(16u, 0u))).value.z + part - link.x;
    uint row = (query0 - link.z + query) * coord.heads + head;
    return min(slot, serving.slots - 1u) * BLOCK_M + min(row, BLOCK_M - 1u);
}

Sums fold_parts(const in uint query, const in uint head, const in uint parts, const in uint column)
{
    Sums sums = Sums(LOWEST, 0.0, vec4(0.0));
    for (uint i0 = 0u; i0 < parts; i0 += BATCH) {
        Sums loaded[BATCH];
        [[unroll]] for (uint i = 0u; i < BATCH; i++) {
            uint row = partial_of(min(i0 + i, parts - 1u), query, head);
            uvec2 ml = address_step(args.partials_ml, row, uvec2(8u, 0u));
            uvec2 at = address_step(args.partials, row, uvec2(HEAD_DIM_V * 4u, 0u));
            loaded[i].m = uintBitsToFloat(Word(ml).value);
            loaded[i].l = uintBitsToFloat(Word(address_add(ml, 4u)).value);
            loaded[i].o = Vec4(address_add(at, column * 4u)).value;
        }
        [[unroll]] for (uint i = 0u; i < BATCH; i++)
            if (i0 + i == 0u)
                sums = loaded[i];
            else if (i0 + i < parts) {
                vec2 factors = fold_factors(sums.m, loaded[i].m);
                sums.l = fold(sums.l, loaded[i].l, factors);
                sums.o = fold(sums.o, loaded[i].o, factors);
            }
    }
    return sums;
}

void store(const in Sums sums, const in uint h, const in uint q, const in uint column)
{
    float top = sums.m;
    vec2 sink = add_sink(args, h, top);
    precise float sum = sums.l * sink.x + sink.y;
    uint b = sequence.batch, row = sequence.row0 + q;
    uvec2 to = address_step(plane(args.o, b, h), row, args.o.stride_row);
    store4(O_TYPE, address_add(to, column * bytes_of(O_TYPE)), (args.flags & ATTUNE_VULKAN_ALIGNED_O) != 0u,
           is_zero(sum) ? (args.flags & ATTUNE_VULKAN_IS_PARTIAL) != 0u ? sums.o : vec4(0.0) : sums.o * (sink.x / sum));
    if (column == 0u) {
        store_row(args.lse, b, h, row, lse_bits(top, sum));
        store_row(args.row_max, b, h, row, row_max_bits(sums.m, sums.l));
    }
}

void main()
{
    serving = attune_vulkan_serving(args.serving);
    attune_vulkan_schedule head = attune_vulkan_schedule(serving.schedule);
    merge_index = push.first + gl_WorkGroupID.x;
    if (merge_index >= min(head.merges, serving.merges))
        return;
    merge = Uvec4(address_step(serving.schedule, 1u + serving.items + merge_index, uvec2(16u, 0u))).value;
    /* A schedule may hold anything. */
    if (merge.x >= tile_count(args) || merge.z >= serving.slots)
        return;
    uint parts = min(merge.y, serving.shares != 0u ? serving.slots : serving.slots - merge.z);
    coord = tile_coord_of(args, merge.x);
    begin_rows(coord.b);
    begin_queries(args, coord, sequence.q_len);
    const uint groups = HEAD_DIM_V / 4u;
    for (uint i = gl_LocalInvocationIndex; i < coord.rows * groups && parts > 0u; i += ATTUNE_VULKAN_SCHEDULE_THREADS) {
        uint row = i / groups, column = i % groups * 4u;
        uint head = head_of(row, coord.queries), query = query_of(row, coord.queries);
        store(fold_parts(query, head, parts, column), coord.h0 + head, coord.q0 + query, column);
    }
}
