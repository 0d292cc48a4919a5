/* SPDX-License-Identifier: MIT */
/*
 * Divides the work of a batch over the device, by the lengths that it reads: one workgroup, before the calls of a step.
 * A tile has one item, or as many as it has parts of keys. Parts are as long as the keys of all tiles, divided by the
 * items that are wanted; with fixed parts (split_keys) only the tiles with more keys than that are split. Where there
 * are more partial results than slots, fewer tiles are.
 */
#version 460
#extension GL_GOOGLE_include_directive : require

#include "arguments.glsl"

attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);

#include "sequence.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer OutUvec4
{
    uvec4 value;
};

const uint LANES = ATTUNE_VULKAN_SCHEDULE_THREADS;

layout(local_size_x = ATTUNE_VULKAN_SCHEDULE_THREADS) in;

shared float sums[ATTUNE_VULKAN_SCHEDULE_THREADS];
/* Items, slots and merges of the sequences of a group that are before each one, and of the group. */
shared uvec3 before[ATTUNE_VULKAN_SCHEDULE_THREADS + 1];
shared uvec2 first_parts[ATTUNE_VULKAN_SCHEDULE_THREADS]; /* of a sequence: the first, and their number */

uint tid, planes, part_keys;
float least; /* tiles with more keys are split */

struct Work {
    uint tiles, first, end; /* of one plane of heads; keys */
};

Work work_of(const in uint b)
{
    begin_rows(b);
    begin_length(b);
    uint tiles = sequence.q_len / args.q_step + (sequence.q_len % args.q_step != 0u ? 1u : 0u);
    return Work(tiles, sequence.kv_first, sequence.kv_len);
}

/* The first part of each tile, and their number. */
uvec2 parts_of(const in Work work)
{
    if (float(work.end - work.first) <= least)
        return uvec2(0u, 1u);
    uint first = work.first / part_keys;
    return uvec2(first, (work.end - 1u) / part_keys + 1u - first);
}

float sum_of_all(const in float value)
{
    barrier();
    sums[tid] = value;
    barrier();
    for (uint step = LANES / 2u; step > 0u; step /= 2u) {
        if (tid < step)
            sums[tid] += sums[tid + step];
        barrier();
    }
    return sums[0];
}

/* Whether the partial results have slots. */
bool fits()
{
    float slots = 0.0;
    for (uint b = tid; b < args.batch; b += LANES) {
        Work work = work_of(b);
        uint parts = parts_of(work).y;
        slots += parts > 1u ? float(work.tiles) * float(parts) : 0.0;
    }
    return sum_of_all(slots) * float(planes) <= float(serving.slots);
}

void choose_parts()
{
    float keys = 0.0;
    for (uint b = tid; b < args.batch; b += LANES) {
        Work work = work_of(b);
        keys += float(work.tiles) * float(work.end - work.first);
    }
    const float share = sum_of_all(keys) * float(planes) / float(serving.wanted);
    const uint rounded = (ATTUNE_VULKAN_PART_KEYS + args.kv_block - 1u) / args.kv_block;
    uint blocks = max(uint(min(share / float(args.kv_block), 16777216.0)) + 1u, rounded);
    least = serving.split_keys == 0u ? 0.0 : share;
    /* No sequence has 2^31 keys. */
    for (uint i = 0u; i < 33u; i++) {
        part_keys = serving.split_keys == 0u ? min(blocks, 0x7fffffffu / args.kv_block) * args.kv_block
                                             : serving.split_keys;
        least = max(least, float(part_keys));
        if (fits())
            return;
        blocks = min(blocks, 0x3fffffffu) * 2u;
        least *= 2.0;
    }
}

/* A group of sequences, one of each invocation; returns its totals. */
uvec3 begin_group(const in uint b)
{
    uvec2 parts = uvec2(0u);
    uint tiles = 0u;
    if (b < args.batch) {
        Work work = work_of(b);
        parts = parts_of(work);
        tiles = work.tiles * planes;
    }
    barrier();
    first_parts[tid] = parts;
    before[tid + 1u] = tiles * (parts.y > 1u ? uvec3(parts.y, parts.y, 1u) : uvec3(1u, 0u, 0u));
    if (tid == 0u)
        before[0] = uvec3(0u);
    for (uint step = 1u; step < LANES; step *= 2u) {
        barrier();
        uvec3 more = tid >= step ? before[tid + 1u - step] : uvec3(0u);
        barrier();
        before[tid + 1u] += more;
    }
    barrier();
    return before[LANES];
}

/* Item i of a group, whose sequences begin with b0; `total` has those of the groups before. */
void write_item(const in uint b0, const in uint i, const in uvec3 total)
{
    uint low = 0u, high = LANES;
    while (high - low > 1u) {
        uint middle = (low + high) / 2u;
        if (before[middle].x <= i)
            low = middle;
        else
            high = middle;
    }
    uvec3 first = total + before[low];
    uint count = first_parts[low].y, number = i - before[low].x, of_sequence = number / count;
    uint chunks = (before[low + 1u].x - before[low].x) / count / planes, rest = of_sequence / args.head_chunks;
    /* The last rows come first: tiles.glsl. */
    uint tile = ((b0 + low) * args.kv_heads + rest / chunks) * args.q_chunks + args.q_chunks - chunks + rest % chunks;
    tile = tile * args.head_chunks + of_sequence % args.head_chunks;
    uint slot = count > 1u ? first.y + number : ATTUNE_VULKAN_NO_SLOT, part = number % count;
    if (total.x + i < serving.items)
        OutUvec4(address_step(serving.schedule, 1u + total.x + i, uvec2(16u, 0u))).value = uvec4(
            tile, first_parts[low].x + part, slot, 0u);
    if (count > 1u && part == 0u)
        OutUvec4(address_step(serving.schedule, 1u + serving.items + first.z + of_sequence, uvec2(16u, 0u))).value =
            uvec4(tile, count, slot, 0u);
}

void main()
{
    tid = gl_LocalInvocationIndex;
    planes = args.kv_heads * args.head_chunks;
    serving = attune_vulkan_serving(args.serving);
    choose_parts();
    uvec3 total = uvec3(0u);
    for (uint b0 = 0u; b0 < args.batch; b0 += LANES) {
        uvec3 group = begin_group(b0 + tid);
        for (uint i = tid; i < group.x; i += LANES)
            write_item(b0, i, total);
        total += group;
    }
    if (tid == 0u)
        OutUvec4(serving.schedule).value = uvec4(min(total.x, serving.items), total.z, part_keys, 0u);
}
