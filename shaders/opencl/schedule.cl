/* SPDX-License-Identifier: MIT */
/*
 * Divides the work of a batch over the device, by the lengths that it reads: one workgroup, before the calls of a step.
 * A tile has one item, or as many as it has parts of keys. Parts are as long as the keys of all tiles, divided by the
 * items that are wanted; with fixed parts (split_keys) only the tiles with more keys than that are split. Where there
 * are more partial results than slots, fewer tiles are.
 */
#include "schedule.h"
#include "serving.h"

#define GROUP 64u /* sequences whose items are numbered at once */

/* The arrays with the lengths of sequences, and the size of their parts. */
typedef struct division {
    const attune_opencl_schedule *args;
    __global const uchar *q_start, *kv_lens, *kv_first, *count, *pages, *pages_start;
    uint planes, part_keys;
    float least; /* tiles with more keys are split */
} division;

/* The tiles of one plane of heads, the first key and the end. */
typedef struct work {
    uint tiles, first, end;
} work;

ATTUNE_FUNCTION work work_of(const division *d, uint b)
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
    return w;
}

/* The first part of each tile, and their number. */
ATTUNE_FUNCTION uint2 parts_of(const division *d, const work *w)
{
    const uint first = w->first / d->part_keys;
    return (float)(w->end - w->first) <= d->least ? (uint2)(0u, 1u)
                                                  : (uint2)(first, (w->end - 1u) / d->part_keys + 1u - first);
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

/* Whether the partial results have slots. */
ATTUNE_FUNCTION int fits(const division *d, __local float *sums)
{
    float slots = 0.0f;
    for (uint b = (uint)get_local_id(0); b < d->args->batch; b += THREADS) {
        const work w = work_of(d, b);
        const uint parts = parts_of(d, &w).y;
        slots += parts > 1u ? (float)w.tiles * (float)parts : 0.0f;
    }
    return sum_of_all(sums, slots) * (float)d->planes <= (float)d->args->parts.slots;
}

ATTUNE_FUNCTION void choose_parts(division *d, __local float *sums)
{
    const attune_opencl_parts *parts = &d->args->parts;
    const uint block = d->args->block;
    float keys = 0.0f;
    for (uint b = (uint)get_local_id(0); b < d->args->batch; b += THREADS) {
        const work w = work_of(d, b);
        keys += (float)w.tiles * (float)(w.end - w.first);
    }
    const float share = sum_of_all(sums, keys) * (float)d->planes / (float)parts->wanted;
    uint blocks = max((uint)min(share / (float)block, 16777216.0f) + 1u,
                      (ATTUNE_OPENCL_PART_KEYS + block - 1u) / block);
    d->least = parts->split_keys == 0u ? 0.0f : share;
    /* No sequence has 2^31 keys. */
    int fit = 0;
    for (uint i = 0u; i < 33u && !fit; i++) {
        d->part_keys = parts->split_keys == 0u ? min(blocks, 0x7fffffffu / block) * block : parts->split_keys;
        d->least = max(d->least, (float)d->part_keys);
        fit = fits(d, sums);
        blocks = min(blocks, 0x3fffffffu) * 2u;
        d->least *= fit ? 1.0f : 2.0f;
    }
}

/* Item i of a group, whose sequences begin with b0. before: the items, slots and merges of the sequences of the group
 * before each one; `total` has those of the groups before. */
ATTUNE_FUNCTION void write_item(const division *d, __local const uint4 *before, __local const uint2 *parts, uint b0,
                                uint i, uint4 total, __global uchar *schedule)
{
    const attune_opencl_schedule *args = d->args;
    uint low = 0u, high = GROUP;
    while (high - low > 1u) {
        const uint middle = (low + high) / 2u;
        const int lower = before[middle].x <= i;
        low = lower ? middle : low;
        high = lower ? high : middle;
    }
    const uint4 first = total + before[low];
    const uint count = parts[low].y, number = i - before[low].x, of_sequence = number / count;
    const uint chunks = (before[low + 1u].x - before[low].x) / count / d->planes,
               rest = of_sequence / args->head_chunks;
    /* The last rows come first: tiles.h. */
    uint tile = ((b0 + low) * args->kv_heads + rest / chunks) * args->q_chunks + args->q_chunks - chunks +
                rest % chunks;
    tile = tile * args->head_chunks + of_sequence % args->head_chunks;
    const uint slot = count > 1u ? first.y + number : ATTUNE_OPENCL_NO_SLOT, part = number % count;
    __global uint *to = (__global uint *)(schedule + args->parts.schedule);
    if (total.x + i < args->parts.items)
        vstore4((uint4)(tile, parts[low].x + part, slot, 0u), 1u + total.x + i, to);
    if (count > 1u && part == 0u)
        vstore4((uint4)(tile, count, slot, 0u), 1u + args->parts.items + first.z + of_sequence, to);
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_schedule(const attune_opencl_schedule args, __global const uchar *q_start, __global const uchar *kv_lens,
                __global const uchar *kv_first, __global const uchar *count, __global const uchar *pages,
                __global const uchar *pages_start, __global uchar *schedule)
{
    __local float sums[THREADS];
    __local uint4 before[GROUP + 1u];
    __local uint2 parts[GROUP];
    const uint id = (uint)get_local_id(0);
    division d;
    d.args = &args;
    d.q_start = q_start;
    d.kv_lens = kv_lens;
    d.kv_first = kv_first;
    d.count = count;
    d.pages = pages;
    d.pages_start = pages_start;
    d.planes = args.kv_heads * args.head_chunks;
    choose_parts(&d, sums);
    uint4 total = (uint4)(0u);
    for (uint b0 = 0u; b0 < args.batch; b0 += GROUP) {
        MEET();
        for (uint i = id; i < GROUP; i += THREADS) {
            work w = {0u, 0u, 0u};
            if (b0 + i < args.batch)
                w = work_of(&d, b0 + i);
            const uint2 of_tile = parts_of(&d, &w);
            const uint tiles = w.tiles * d.planes;
            parts[i] = of_tile;
            before[i + 1u] = of_tile.y > 1u ? (uint4)(tiles * of_tile.y, tiles * of_tile.y, tiles, 0u)
                                            : (uint4)(tiles, 0u, 0u, 0u);
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
            write_item(&d, before, parts, b0, i, total, schedule);
        total += group;
    }
    /* Without slots: the launch that has nothing to do. */
    if (id == 0u && args.parts.slots > 0u)
        vstore4((uint4)(min(total.x, args.parts.items), total.z, d.part_keys, 0u), 0,
                (__global uint *)(schedule + args.parts.schedule));
}
