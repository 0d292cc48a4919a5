/* SPDX-License-Identifier: MIT */
/* The work of a workgroup over a cache: the item of a schedule, its tiles of keys, and the place of its result. */
#ifndef ATTUNE_SERVING_ITEMS_H
#define ATTUNE_SERVING_ITEMS_H

#include "exp2.h"
#include "serving_mods.h"

ATTUNE_EXP2(exp2_row, float, int, as_float, as_int)

/* The work of a workgroup: a tile, or a part of its keys, and with SHARES of those of sequences after its own. */
typedef struct work_item {
    uint tile, slot, first_key, end_key, members;
    int is_there;
} work_item;

ATTUNE_FUNCTION uint tile_count(const attune_opencl_arguments *args)
{
    return args->batch * args->kv_heads * args->q_chunks * args->head_chunks;
}

/* From the number of the workgroup. A schedule may hold anything. */
ATTUNE_FUNCTION work_item work_item_of(const attune_opencl_arguments *args, __global const attune_opencl_parts *parts,
                                       __global const uchar *schedule, uint index)
{
    work_item w;
    const int divided = parts->items > 0u;
    __global const uint *from = (__global const uint *)(schedule + parts->schedule);
    const uint4 header = vload4(0, from);
    const uint4 item = vload4(divided ? 1u + min(index, parts->items - 1u) : 0u, from);
    const int valid = index < min(header.x, parts->items) && item.x < tile_count(args) &&
                      (item.z == ATTUNE_OPENCL_NO_SLOT || item.z < parts->slots);
    w.is_there = !divided || valid;
    w.tile = !divided ? index : valid ? item.x : 0u;
    w.slot = divided ? item.z : ATTUNE_OPENCL_NO_SLOT;
    w.first_key = w.slot == ATTUNE_OPENCL_NO_SLOT ? 0u : item.y * header.z;
    w.end_key = w.slot == ATTUNE_OPENCL_NO_SLOT ? 0xffffffffu : w.first_key + header.z;
    w.members = w.slot == ATTUNE_OPENCL_NO_SLOT ? 1u : min(item.w, BLOCK_M);
    return w;
}

/* The first tile from kv0 on that the mask's bounds leave; of those that they do not, ever more are skipped at once.
 * *partial receives whether the mask is evaluated there. */
ATTUNE_FUNCTION uint next_tile(uint kv0, uint end, int *partial, const tile_coord *coord,
                               const sequence *s ATTUNE_MODS_PARAMETERS)
{
    uint count = 1u;
    int grows = 1, found = !MASK;
    *partial = MASK;
    while (!found && kv0 < end) {
        const uint tiles = min(count, (end - kv0 + BLOCK_N - 1u) / BLOCK_N), next = kv0 + tiles * BLOCK_N;
        const attune_range any = attune_mask_bounds(s, coord, kv0, min(next, end) - 1u ATTUNE_MODS);
        found = any.high != 0 && tiles == 1u;
        *partial = any.low == 0;
        grows = grows && any.high == 0;
        kv0 = any.high != 0 ? kv0 : next;
        count = any.high != 0 ? max(tiles / 2u, 1u) : grows ? 2u * tiles : tiles;
    }
    return kv0;
}

/* Where a row's partial result is among those of its slot: of a tile whose sequences vary with the parts, by query. */
ATTUNE_FUNCTION uint partial_row(const tile_coord *coord, uint row)
{
    return SHARES ? row % coord->queries * coord->heads + row / coord->queries : row;
}

#endif
