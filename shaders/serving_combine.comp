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

/* The row is that of a tile, `from` its first part's in the partial results. */
Sums fold_parts(const in uint from, const in uint parts, const in uint column)
{
    Sums sums = Sums(LOWEST, 0.0, vec4(0.0));
    for (uint i0 = 0u; i0 < parts; i0 += BATCH) {
        Sums loaded[BATCH];
        [[unroll]] for (uint i = 0u; i < BATCH; i++) {
            uint row = from + min(i0 + i, parts - 1u) * BLOCK_M;
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
    uint index = push.first + gl_WorkGroupID.x;
    if (index >= min(head.merges, serving.slots / 2u))
        return;
    uvec4 merge = Uvec4(address_step(serving.schedule, 1u + serving.items + index, uvec2(16u, 0u))).value;
    /* A schedule may hold anything. */
    if (merge.x >= tile_count(args) || merge.z >= serving.slots)
        return;
    uint parts = min(merge.y, serving.slots - merge.z);
    TileCoord coord = tile_coord_of(args, merge.x);
    begin_rows(coord.b);
    begin_queries(args, coord, sequence.q_len);
    const uint groups = HEAD_DIM_V / 4u;
    for (uint i = gl_LocalInvocationIndex; i < coord.rows * groups && parts > 0u; i += ATTUNE_VULKAN_SCHEDULE_THREADS) {
        uint row = i / groups, column = i % groups * 4u;
        store(fold_parts(merge.z * BLOCK_M + row, parts, column), coord.h0 + head_of(row, coord.queries),
              coord.q0 + query_of(row, coord.queries), column);
    }
}
