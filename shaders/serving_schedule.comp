/* SPDX-License-Identifier: MIT */
/*
 * Divides the work of a batch over the device, by the lengths that it reads: one workgroup, before the calls of a step.
 * A tile has one item, or as many as it has parts of keys. Parts are as long as the keys of all tiles, divided by the
 * items that are wanted; with fixed parts (split_keys) only the tiles with more keys than that are split. Where there
 * are more partial results than slots, fewer tiles are.
 *
 * A plan with serving.shares has the items of a part that several sequences share computed once, with the queries of
 * all of them in one tile, if these are fewer keys and no more time, which is that of the longest item, or of all items
 * and merges, divided by the items that are wanted.
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

/* Which invocations write for one another. */
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer Lengths
{
    uvec4 value;
};

const uint LANES = ATTUNE_VULKAN_SCHEDULE_THREADS;

layout(local_size_x = ATTUNE_VULKAN_SCHEDULE_THREADS) in;

shared float sums[ATTUNE_VULKAN_SCHEDULE_THREADS];
/* Items, slots and merges of the sequences of a group that are before each one, and of the group. */
shared uvec3 before[ATTUNE_VULKAN_SCHEDULE_THREADS + 1];
shared uvec4 first_parts[ATTUNE_VULKAN_SCHEDULE_THREADS]; /* of a sequence, as parts_of, with the query of its first */
/* Of the sequences of a group: rows, first key, end, shared keys; then as in Work. */
shared uvec4 lengths[ATTUNE_VULKAN_SCHEDULE_THREADS];
shared uvec3 joined[ATTUNE_VULKAN_SCHEDULE_THREADS];

uint tid, planes;

/* A division of the work, with each sequence alone or with those that share parts together. */
struct Division {
    bool sharing;
    bool fits;      /* there are as many slots as parts */
    uint part_keys; /* of a part */
    float least;    /* tiles with more keys are split */
    float keys;     /* of all items */
    float time;     /* in keys of an item */
};

Division division;

/* Of a sequence: the tiles of one plane of heads, the first key and the end; the keys that it has in common with the
 * one before it, and the one after it with this one, where they have one tile; the queries there before its own. */
struct Work {
    uint tiles, first, end, shared_keys, leads, query0;
};

Work find_work(const in uint b)
{
    begin_rows(b);
    begin_length(b);
    uint tiles = sequence.q_len / args.q_step + (sequence.q_len % args.q_step != 0u ? 1u : 0u);
    /* Rows of this call are nowhere else. */
    int common_keys = is_absent(serving.prefix) ? 0
                                                : clamp(integer_at(serving.prefix, b), 0, max(sequence.position, 0));
    return Work(tiles, sequence.kv_first, sequence.kv_len, uint(common_keys), 0u, 0u);
}

/* Where gather() has a sequence's lengths. */
uvec2 lengths_at(const in uint b)
{
    return address_step(serving.schedule, 1u + serving.items + 2u * (serving.merges + b), uvec2(16u, 0u));
}

Work work_of(const in uint b)
{
    if (serving.shares == 0u)
        return find_work(b);
    uvec4 of = Lengths(lengths_at(b)).value, common_keys = Lengths(address_add(lengths_at(b), 16u)).value;
    return Work(of.x, of.y, of.z, common_keys.x, common_keys.y, common_keys.z);
}

/* Which sequences of a group have their queries in one tile. Those without rows are passed over. */
void join()
{
    const uint shortest = max(serving.split_keys, ATTUNE_VULKAN_PART_KEYS), room = args.q_step;
    uint before = LANES, begin = 0u, queries = 0u, common_keys = 0xffffffffu;
    for (uint i = 0u; i < LANES; i++) {
        const uvec4 of = lengths[i];
        uvec3 own = uvec3(0u);
        common_keys = min(common_keys, of.w);
        if (of.x > 0u) {
            const uvec4 last = lengths[min(before, LANES - 1u)];
            common_keys = min(common_keys, last.z - min(last.z, last.x));
            if (before < LANES && common_keys >= shortest && last.y == of.y && i - begin < room &&
                queries + of.x <= room) {
                own = uvec3(common_keys, 0u, queries);
                joined[before].y = common_keys;
            } else {
                begin = i;
                queries = 0u;
            }
            queries = min(queries + of.x, room);
            before = i;
            common_keys = 0xffffffffu;
        }
        joined[i] = own;
    }
}

void gather()
{
    for (uint b0 = 0u; b0 < args.batch; b0 += LANES) {
        Work work = Work(0u, 0u, 0u, 0u, 0u, 0u);
        sequence.q_len = 0u;
        if (b0 + tid < args.batch)
            work = find_work(b0 + tid);
        barrier();
        lengths[tid] = uvec4(sequence.q_len, work.first, work.end, work.shared_keys);
        barrier();
        if (tid == 0u)
            join();
        barrier();
        if (b0 + tid < args.batch) {
            Lengths(lengths_at(b0 + tid)).value = uvec4(work.tiles, work.first, work.end, 0u);
            Lengths(address_add(lengths_at(b0 + tid), 16u)).value = uvec4(joined[tid], 0u);
        }
    }
    memoryBarrierBuffer();
    barrier();
}

/* The first part of each tile, their number, and how many of them, the first, items of sequences before have. */
uvec3 parts_of(const in Work work)
{
    const uint first = work.first / division.part_keys, common_parts = work.shared_keys / division.part_keys;
    const bool together = division.sharing && max(work.shared_keys, work.leads) / division.part_keys > first;
    if (float(work.end - work.first) <= division.least && !together)
        return uvec3(0u, 1u, 0u);
    return uvec3(first, (work.end - 1u) / division.part_keys + 1u - first,
                 division.sharing && common_parts > first ? common_parts - first : 0u);
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

float most_of_all(const in float value)
{
    barrier();
    sums[tid] = value;
    barrier();
    for (uint step = LANES / 2u; step > 0u; step /= 2u) {
        if (tid < step)
            sums[tid] = max(sums[tid], sums[tid + step]);
        barrier();
    }
    return sums[0];
}

/* The slots that the partial results take. */
float slots_taken()
{
    float slots = 0.0;
    for (uint b = tid; b < args.batch; b += LANES) {
        Work work = work_of(b);
        uvec3 parts = parts_of(work);
        slots += parts.y > 1u ? float(work.tiles) * float(parts.y - parts.z) : 0.0;
    }
    return sum_of_all(slots) * float(planes);
}

/* The keys of all items; of sequences that share parts, those of the first of them and what the others have more. */
float count_keys()
{
    float keys = 0.0;
    for (uint b = tid; b < args.batch; b += LANES) {
        Work work = work_of(b);
        uint common_keys = division.sharing ? work.shared_keys / division.part_keys * division.part_keys : 0u;
        keys += float(work.tiles) * float(work.end - max(work.first, common_keys));
    }
    return sum_of_all(keys) * float(planes);
}

/* The keys of the longest item, and with `common_keys` the most that two sequences share. */
float longest(const in bool common_keys)
{
    float most = 0.0;
    for (uint b = tid; b < args.batch; b += LANES) {
        Work work = work_of(b);
        float keys = float(work.end - work.first);
        keys = parts_of(work).y > 1u ? min(keys, float(division.part_keys)) : keys;
        most = max(most, common_keys ? float(work.shared_keys) : work.tiles == 0u ? 0.0 : keys);
    }
    return most_of_all(most);
}

void choose_parts()
{
    division.part_keys = 1u;
    const float share = count_keys() / float(serving.wanted);
    const uint rounded = (ATTUNE_VULKAN_PART_KEYS + args.kv_block - 1u) / args.kv_block;
    uint blocks = uint(min(share / float(args.kv_block), 16777216.0)) + 1u;
    /* Only whole parts are shared: the longest prefix has four. */
    if (division.sharing)
        blocks = min(blocks, uint(longest(true)) / 4u / args.kv_block);
    blocks = max(blocks, rounded);
    division.least = serving.split_keys == 0u ? 0.0 : share;
    division.fits = false;
    float slots = 0.0;
    /* No sequence has 2^31 keys. */
    for (uint i = 0u; i < 33u && !division.fits; i++) {
        division.part_keys = serving.split_keys == 0u ? min(blocks, 0x7fffffffu / args.kv_block) * args.kv_block
                                                      : serving.split_keys;
        division.least = max(division.least, float(division.part_keys));
        slots = slots_taken();
        division.fits = slots <= float(serving.slots);
        blocks = min(blocks, 0x3fffffffu) * 2u;
        division.least *= division.fits ? 1.0 : 2.0;
    }
    if (serving.shares != 0u) {
        division.keys = count_keys();
        division.time = max(longest(false),
                            (division.keys + slots * float(ATTUNE_VULKAN_MERGE_KEYS)) / float(serving.wanted));
    }
}

/* Divides the work both ways, if sequences may share parts, and takes the better one. */
void divide()
{
    division.sharing = false;
    choose_parts();
    if (serving.shares == 0u || is_absent(serving.prefix))
        return;
    const Division alone = division;
    division.sharing = true;
    choose_parts();
    if (!division.fits || division.keys >= alone.keys || division.time > alone.time)
        division = alone;
}

/* A group of sequences, one of each invocation; returns its totals. */
uvec3 begin_group(const in uint b)
{
    uvec3 parts = uvec3(0u, 1u, 0u);
    uint tiles = 0u, query0 = 0u;
    if (b < args.batch) {
        Work work = work_of(b);
        parts = parts_of(work);
        tiles = work.tiles * planes;
        query0 = work.query0;
    }
    barrier();
    first_parts[tid] = uvec4(parts, query0);
    before[tid + 1u] = tiles * (parts.y > 1u ? uvec3(parts.y - parts.z, parts.y - parts.z, 1u) : uvec3(1u, 0u, 0u));
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

/* As many sequences from `low` on as have the part in one item. */
uint members_of(const in uint low, const in uint part)
{
    uint count = 1u;
    for (uint i = low + 1u; i < LANES; i++)
        if (before[i + 1u].x > before[i].x) {
            if (first_parts[i].z <= part)
                break;
            count = i + 1u - low;
        }
    return count;
}

/* The sequence before `low` whose items have the last of the parts that others have. */
uint leader_of(const in uint low)
{
    uint leader = low;
    do
        leader -= leader > 0u ? 1u : 0u;
    while (leader > 0u && (before[leader + 1u].x == before[leader].x || first_parts[leader].z >= first_parts[low].z));
    return leader;
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
    uvec4 own = first_parts[low];
    uint count = own.y - own.z, number = i - before[low].x, of_sequence = number / count;
    uint chunks = (before[low + 1u].x - before[low].x) / count / planes, rest = of_sequence / args.head_chunks;
    /* The last rows come first: tiles.glsl. */
    uint tile = ((b0 + low) * args.kv_heads + rest / chunks) * args.q_chunks + args.q_chunks - chunks + rest % chunks;
    tile = tile * args.head_chunks + of_sequence % args.head_chunks;
    uint slot = own.y > 1u ? first.y + number : ATTUNE_VULKAN_NO_SLOT, part = number % count;
    uint members = division.sharing && own.y > 1u ? members_of(low, own.z + part) : 1u;
    if (total.x + i < serving.items)
        OutUvec4(address_step(serving.schedule, 1u + total.x + i, uvec2(16u, 0u))).value = uvec4(
            tile, own.x + own.z + part, slot, members);
    if (own.y > 1u && part == 0u) {
        uvec2 to = address_step(serving.schedule, 1u + serving.items + first.z + of_sequence, uvec2(16u, 0u));
        OutUvec4(to).value = uvec4(tile, own.y, slot, 0u);
        if (serving.shares != 0u) {
            uint leader = own.z > 0u ? total.z + before[leader_of(low)].z + of_sequence + 1u : 0u;
            OutUvec4(address_step(to, serving.merges, uvec2(16u, 0u))).value = uvec4(own.z, leader, own.w, 0u);
        }
    }
}

void main()
{
    tid = gl_LocalInvocationIndex;
    planes = args.kv_heads * args.head_chunks;
    serving = attune_vulkan_serving(args.serving);
    if (serving.shares != 0u)
        gather();
    divide();
    uvec3 total = uvec3(0u);
    for (uint b0 = 0u; b0 < args.batch; b0 += LANES) {
        uvec3 group = begin_group(b0 + tid);
        for (uint i = tid; i < group.x; i += LANES)
            write_item(b0, i, total);
        total += group;
    }
    if (tid == 0u)
        OutUvec4(serving.schedule).value = uvec4(min(total.x, serving.items), total.z, division.part_keys, 0u);
}
