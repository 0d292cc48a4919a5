/* SPDX-License-Identifier: MIT */
/*
 * Divides the work of a batch over the device, by the lengths that it reads: one workgroup, before the calls of a step.
 * A tile has one item, or as many as it has parts of keys. Parts are as long as the keys of all tiles, divided by the
 * items that are wanted; with fixed parts (split_keys) only the tiles with more keys than that are split. Where there
 * are more partial results than slots, fewer tiles are.
 *
 * A plan with `shares` has the items of a part that several sequences share computed once, with the queries of all of
 * them in one tile, if these are fewer keys and no more time, which is that of the longest item, or of all items and
 * merges, divided by the items that are wanted.
 */
#include "schedule.h"
#include "serving.h"

#define GROUP 64u /* sequences whose items are numbered at once; none shares items with one of another group */

/* The arrays with the lengths of sequences, and the size of their parts. */
typedef struct division {
    const attune_opencl_schedule *args;
    __global const uchar *q_start, *kv_lens, *kv_first, *count, *shared, *pages, *pages_start;
    __global uint *schedule;
    uint planes, part_keys;
    int sharing; /* sequences compute the parts that they share together */
    float least; /* tiles with more keys are split */
    float keys;  /* of all items */
    float time;  /* in keys of an item */
} division;

/* Of a sequence: the tiles of one plane of heads, the first key and the end; the keys that it has in common with the
 * one before it, and the one after it with this one, where they have one tile; the queries there before its own. */
typedef struct work {
    uint tiles, first, end, shared, leads, query0;
} work;

/* Where a sequence's lengths are, which gather() finds. */
ATTUNE_FUNCTION uint lengths_at(const division *d, uint b)
{
    const attune_opencl_parts *parts = &d->args->parts;
    return 1u + parts->items + 2u * parts->merges + 2u * b;
}

/* q_len receives its rows. */
ATTUNE_FUNCTION work find_work(const division *d, uint b, uint *q_len)
{
    sequence s;
    s.of = &d->args->cache;
    s.b = b;
    begin_rows(&s, d->args->q_len, d->q_start, d->count);
    begin_table(&s, d->pages, d->pages_start);
    begin_length(&s, d->args->kv_len, d->kv_lens);
    begin_first(&s, d->kv_first);
    work w;
    w.tiles = s.q_len / d->args->q_step + (s.q_len % d->args->q_step != 0u ? 1u : 0u);
    w.first = s.kv_first;
    w.end = s.kv_len;
    /* Rows of this call are nowhere else. */
    const int shared = s.of->has & ATTUNE_OPENCL_HAS_SHARED ? integer_at(d->shared, &s.of->shared, b) : 0;
    w.shared = (uint)clamp(shared, 0, max(s.position, 0));
    w.leads = w.query0 = 0u;
    *q_len = s.q_len;
    return w;
}

ATTUNE_FUNCTION work work_of(const division *d, uint b)
{
    uint q_len;
    if (!d->args->parts.shares)
        return find_work(d, b, &q_len);
    const uint4 lengths = vload4(lengths_at(d, b), d->schedule), common = vload4(lengths_at(d, b) + 1u, d->schedule);
    work w;
    w.tiles = lengths.x;
    w.first = lengths.y;
    w.end = lengths.z;
    w.shared = common.x;
    w.leads = common.y;
    w.query0 = common.z;
    return w;
}

/* Which sequences of a group, from `lengths` (rows, first key, end, shared keys), have their queries in one tile:
 * `common` receives shared, leads and query0 of each. Those without rows are passed over. */
ATTUNE_FUNCTION void join(const division *d, __local const uint4 *lengths, __local uint4 *common)
{
    const uint least = max(d->args->parts.split_keys, ATTUNE_OPENCL_PART_KEYS), room = d->args->q_step;
    uint before = GROUP, begin = 0u, queries = 0u, shared = 0xffffffffu;
    for (uint i = 0u; i < GROUP; i++) {
        const uint4 of = lengths[i];
        shared = min(shared, of.w);
        uint4 joined = (uint4)(0u);
        if (of.x > 0u) {
            const uint4 last = lengths[min(before, GROUP - 1u)];
            shared = min(shared, last.z - min(last.z, last.x));
            if (before < GROUP && shared >= least && last.y == of.y && i - begin < room && queries + of.x <= room) {
                joined = (uint4)(shared, 0u, queries, 0u);
                common[before].y = shared;
            } else {
                begin = i;
                queries = 0u;
            }
            queries = min(queries + of.x, room);
            before = i;
            shared = 0xffffffffu;
        }
        common[i] = joined;
    }
}

ATTUNE_FUNCTION void gather(const division *d, __local uint4 *lengths, __local uint4 *common)
{
    const uint id = (uint)get_local_id(0);
    for (uint b0 = 0u; b0 < d->args->batch; b0 += GROUP) {
        MEET();
        for (uint i = id; i < GROUP; i += THREADS) {
            lengths[i] = (uint4)(0u);
            if (b0 + i < d->args->batch) {
                uint q_len;
                const work w = find_work(d, b0 + i, &q_len);
                lengths[i] = (uint4)(q_len, w.first, w.end, w.shared);
                vstore4((uint4)(w.tiles, w.first, w.end, 0u), lengths_at(d, b0 + i), d->schedule);
            }
        }
        MEET();
        if (id == 0u)
            join(d, lengths, common);
        MEET();
        for (uint i = id; i < min(GROUP, d->args->batch - b0); i += THREADS)
            vstore4(common[i], lengths_at(d, b0 + i) + 1u, d->schedule);
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
}

/* The first part of each tile, their number, and how many of them, the first, items of sequences before have. */
ATTUNE_FUNCTION uint4 parts_of(const division *d, const work *w)
{
    const uint first = w->first / d->part_keys, shared = w->shared / d->part_keys;
    const int joined = d->sharing && max(w->shared, w->leads) / d->part_keys > first;
    if ((float)(w->end - w->first) <= d->least && !joined)
        return (uint4)(0u, 1u, 0u, 0u);
    return (uint4)(first, (w->end - 1u) / d->part_keys + 1u - first, d->sharing && shared > first ? shared - first : 0u,
                   0u);
}

ATTUNE_FUNCTION float sum_of_all(__local float *sums, float value)
{
    MEET();
    sums[get_local_id(0)] = value;
    MEET();
    float sum = 0.0f;
    for (uint i = 0u; i < THREADS; i++)
        sum += sums[i];
    return sum;
}

ATTUNE_FUNCTION float most_of_all(__local float *sums, float value)
{
    MEET();
    sums[get_local_id(0)] = value;
    MEET();
    float most = 0.0f;
    for (uint i = 0u; i < THREADS; i++)
        most = fmax(most, sums[i]);
    return most;
}

/* The slots that the partial results take. */
ATTUNE_FUNCTION float slots_of(const division *d, __local float *sums)
{
    float slots = 0.0f;
    for (uint b = (uint)get_local_id(0); b < d->args->batch; b += THREADS) {
        const work w = work_of(d, b);
        const uint4 parts = parts_of(d, &w);
        slots += parts.y > 1u ? (float)w.tiles * (float)(parts.y - parts.z) : 0.0f;
    }
    return sum_of_all(sums, slots) * (float)d->planes;
}

/* The keys of all items; of sequences that share parts, those of the first of them and what the others have more. */
ATTUNE_FUNCTION float keys_of(const division *d, __local float *sums)
{
    float keys = 0.0f;
    for (uint b = (uint)get_local_id(0); b < d->args->batch; b += THREADS) {
        const work w = work_of(d, b);
        const uint shared = d->sharing ? w.shared / d->part_keys * d->part_keys : 0u;
        keys += (float)w.tiles * (float)(w.end - max(w.first, shared));
    }
    return sum_of_all(sums, keys) * (float)d->planes;
}

/* The keys of the longest item. */
ATTUNE_FUNCTION float longest_of(const division *d, __local float *sums)
{
    float most = 0.0f;
    for (uint b = (uint)get_local_id(0); b < d->args->batch; b += THREADS) {
        const work w = work_of(d, b);
        const float keys = (float)(w.end - w.first);
        most = fmax(most, w.tiles == 0u ? 0.0f : parts_of(d, &w).y > 1u ? fmin(keys, (float)d->part_keys) : keys);
    }
    return most_of_all(sums, most);
}

/* The most keys that two sequences share. */
ATTUNE_FUNCTION float shared_of(const division *d, __local float *sums)
{
    float most = 0.0f;
    for (uint b = (uint)get_local_id(0); b < d->args->batch; b += THREADS)
        most = fmax(most, (float)work_of(d, b).shared);
    return most_of_all(sums, most);
}

/* Returns whether there are as many slots as parts. */
ATTUNE_FUNCTION int choose_parts(division *d, __local float *sums)
{
    const attune_opencl_parts *parts = &d->args->parts;
    const uint block = d->args->block;
    d->part_keys = 1u;
    const float share = keys_of(d, sums) / (float)parts->wanted;
    uint blocks = (uint)min(share / (float)block, 16777216.0f) + 1u;
    /* Only whole parts are shared: the longest prefix has four. */
    if (d->sharing)
        blocks = min(blocks, (uint)shared_of(d, sums) / 4u / block);
    blocks = max(blocks, (ATTUNE_OPENCL_PART_KEYS + block - 1u) / block);
    d->least = parts->split_keys == 0u ? 0.0f : share;
    /* No sequence has 2^31 keys. */
    int fit = 0;
    float slots = 0.0f;
    for (uint i = 0u; i < 33u && !fit; i++) {
        d->part_keys = parts->split_keys == 0u ? min(blocks, 0x7fffffffu / block) * block : parts->split_keys;
        d->least = max(d->least, (float)d->part_keys);
        slots = slots_of(d, sums);
        fit = slots <= (float)parts->slots;
        blocks = min(blocks, 0x3fffffffu) * 2u;
        d->least *= fit ? 1.0f : 2.0f;
    }
    if (parts->shares) {
        d->keys = keys_of(d, sums);
        d->time = fmax(longest_of(d, sums), (d->keys + slots * (float)ATTUNE_OPENCL_MERGE_KEYS) / (float)parts->wanted);
    }
    return fit;
}

/* As many sequences from `low` on as have the part in one item. */
ATTUNE_FUNCTION uint members_of(__local const uint4 *before, __local const uint4 *parts, uint low, uint part)
{
    uint members = 1u;
    for (uint i = low + 1u; i < GROUP; i++)
        if (before[i + 1u].x > before[i].x) {
            if (parts[i].z <= part)
                break;
            members = i + 1u - low;
        }
    return members;
}

/* The sequence before `low` whose items have the last of the parts that others have. */
ATTUNE_FUNCTION uint leader_of(__local const uint4 *before, __local const uint4 *parts, uint low)
{
    uint leader = low;
    do
        leader -= leader > 0u ? 1u : 0u;
    while (leader > 0u && (before[leader + 1u].x == before[leader].x || parts[leader].z >= parts[low].z));
    return leader;
}

/* Item i of a group, whose sequences begin with b0. before: the items, slots and merges of the sequences of the group
 * before each one; `total` has those of the groups before. parts: of each one as in parts_of(), with query0. */
ATTUNE_FUNCTION void write_item(const division *d, __local const uint4 *before, __local const uint4 *parts, uint b0,
                                uint i, uint4 total)
{
    const attune_opencl_schedule *args = d->args;
    uint low = 0u, high = GROUP;
    while (high - low > 1u) {
        const uint middle = (low + high) / 2u;
        const int lower = before[middle].x <= i;
        low = lower ? middle : low;
        high = lower ? high : middle;
    }
    const uint4 first = total + before[low], own = parts[low];
    const uint count = own.y - own.z, number = i - before[low].x, of_sequence = number / count;
    const uint chunks = (before[low + 1u].x - before[low].x) / count / d->planes,
               rest = of_sequence / args->head_chunks;
    /* The last rows come first: tiles.h. */
    uint tile = ((b0 + low) * args->kv_heads + rest / chunks) * args->q_chunks + args->q_chunks - chunks +
                rest % chunks;
    tile = tile * args->head_chunks + of_sequence % args->head_chunks;
    const uint slot = own.y > 1u ? first.y + number : ATTUNE_OPENCL_NO_SLOT, part = number % count;
    const uint members = d->sharing && own.y > 1u ? members_of(before, parts, low, own.z + part) : 1u;
    if (total.x + i < args->parts.items)
        vstore4((uint4)(tile, own.x + own.z + part, slot, members), 1u + total.x + i, d->schedule);
    if (own.y > 1u && part == 0u) {
        const uint merge = first.z + of_sequence, to = 1u + args->parts.items + merge;
        vstore4((uint4)(tile, own.y, slot, 0u), to, d->schedule);
        if (args->parts.shares) {
            const uint leader = own.z > 0u ? total.z + before[leader_of(before, parts, low)].z + of_sequence + 1u : 0u;
            vstore4((uint4)(own.z, leader, own.w, 0u), to + args->parts.merges, d->schedule);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_schedule(const attune_opencl_schedule args, __global const uchar *q_start, __global const uchar *kv_lens,
                __global const uchar *kv_first, __global const uchar *count, __global const uchar *shared,
                __global const uchar *pages, __global const uchar *pages_start, __global uchar *schedule)
{
    __local float sums[THREADS];
    __local uint4 before[GROUP + 1u];
    __local uint4 parts[GROUP];
    const uint id = (uint)get_local_id(0);
    division d;
    d.args = &args;
    d.q_start = q_start;
    d.kv_lens = kv_lens;
    d.kv_first = kv_first;
    d.count = count;
    d.shared = shared;
    d.pages = pages;
    d.pages_start = pages_start;
    d.schedule = (__global uint *)(schedule + args.parts.schedule);
    d.planes = args.kv_heads * args.head_chunks;
    d.sharing = 0;
    if (args.parts.shares)
        gather(&d, before, parts);
    choose_parts(&d, sums);
    if (args.parts.shares && args.cache.has & ATTUNE_OPENCL_HAS_SHARED) {
        division together = d;
        together.sharing = 1;
        if (choose_parts(&together, sums) && together.keys < d.keys && together.time <= d.time)
            d = together;
    }
    uint4 total = (uint4)(0u);
    for (uint b0 = 0u; b0 < args.batch; b0 += GROUP) {
        MEET();
        for (uint i = id; i < GROUP; i += THREADS) {
            work w = {0u, 0u, 0u, 0u, 0u, 0u};
            if (b0 + i < args.batch)
                w = work_of(&d, b0 + i);
            uint4 of_tile = parts_of(&d, &w);
            const uint tiles = w.tiles * d.planes, items = tiles * (of_tile.y - of_tile.z);
            of_tile.w = w.query0;
            parts[i] = of_tile;
            before[i + 1u] = of_tile.y > 1u ? (uint4)(items, items, tiles, 0u) : (uint4)(items, 0u, 0u, 0u);
        }
        MEET();
        if (id == 0u) {
            uint4 sum = (uint4)(0u);
            before[0] = sum;
            for (uint i = 1u; i <= GROUP; i++) {
                sum += before[i];
                before[i] = sum;
            }
        }
        MEET();
        const uint4 group = before[GROUP];
        for (uint i = id; i < group.x; i += THREADS)
            write_item(&d, before, parts, b0, i, total);
        total += group;
    }
    /* Without slots: the launch that has nothing to do. */
    if (id == 0u && args.parts.slots > 0u)
        vstore4((uint4)(min(total.x, args.parts.items), total.z, d.part_keys, 0u), 0, d.schedule);
}
