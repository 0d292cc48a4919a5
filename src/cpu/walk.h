/* SPDX-License-Identifier: MIT */
/*
 * The tiles of one row of blocks, in ascending order of keys whichever list they stand in, so that the order of
 * summation does not depend on how a mask was classified. Without a mask every tile is full.
 */
#ifndef ATTUNE_CPU_WALK_H
#define ATTUNE_CPU_WALK_H

#include "cpu/cpu.h"

typedef struct attune__walk {
    const int32_t *partial, *partial_end, *full, *full_end; /* block columns that are left; NULL without a mask */
    bool masked;
    int64_t block;      /* keys in a block */
    int64_t next;       /* without a mask: the next block column */
    int64_t skip, left; /* blocks of other splits before this one's, and blocks of this one */
    int64_t kv, kv_end; /* of the present block, what is left */
    bool is_partial;    /* the present block */
    int64_t kv_len;
    size_t block_n;
} attune__walk;

typedef struct attune__kv_tile {
    int64_t kv0;
    size_t count;
    bool partial;
} attune__kv_tile;

/* The tiles of rows from q0 on, which lie in one block row, for one split. Splits divide the blocks, not the keys, so
 * that each has about as many to compute. */
static inline attune__walk attune__walk_begin(const attune__cpu_run *run, int64_t b, int64_t h, int64_t q0,
                                              uint32_t split)
{
    const attune_mask *mask = run->call->mask;
    attune__walk walk = {.masked = mask != NULL, .kv_len = run->call->kv_len, .block_n = run->block_n};
    int64_t blocks;
    if (mask) {
        int64_t row = attune__mask_at(mask, b, h).row0 + q0 / mask->q_block;
        walk.block = mask->kv_block;
        walk.partial = mask->kv.indices + mask->kv.offsets[row];
        walk.partial_end = mask->kv.indices + mask->kv.offsets[row + 1];
        walk.full = mask->full_kv.indices + mask->full_kv.offsets[row];
        walk.full_end = mask->full_kv.indices + mask->full_kv.offsets[row + 1];
        blocks = (walk.partial_end - walk.partial) + (walk.full_end - walk.full);
    } else {
        walk.block = (int64_t)run->block_n;
        blocks = (walk.kv_len + walk.block - 1) / walk.block;
    }
    walk.skip = blocks * split / run->splits;
    walk.left = blocks * (split + 1) / run->splits - walk.skip;
    return walk;
}

/* The tiles of rows that keys from kv0 on, which lie in one block column, meet: what is kv above is q here. */
static inline attune__walk attune__walk_columns(const attune__cpu_run *run, int64_t b, int64_t h, int64_t kv0)
{
    const attune_mask *mask = run->call->mask;
    attune__walk walk = {.masked = mask != NULL, .kv_len = run->call->q_len, .block_n = run->block_m};
    if (mask) {
        const int64_t column = attune__mask_at(mask, b, h).col0 + kv0 / mask->kv_block;
        walk.block = mask->q_block;
        walk.partial = mask->q.indices + mask->q.offsets[column];
        walk.partial_end = mask->q.indices + mask->q.offsets[column + 1];
        walk.full = mask->full_q.indices + mask->full_q.offsets[column];
        walk.full_end = mask->full_q.indices + mask->full_q.offsets[column + 1];
        walk.left = (walk.partial_end - walk.partial) + (walk.full_end - walk.full);
    } else {
        walk.block = (int64_t)run->block_m;
        walk.left = (walk.kv_len + walk.block - 1) / walk.block;
    }
    return walk;
}

/* False at the end. */
static inline bool attune__walk_block(attune__walk *walk)
{
    if (!walk->left)
        return false;
    int64_t column;
    do {
        walk->is_partial = false;
        if (!walk->masked) {
            column = walk->next++;
        } else if (walk->full == walk->full_end ||
                   (walk->partial != walk->partial_end && *walk->partial < *walk->full)) {
            column = *walk->partial++;
            walk->is_partial = true;
        } else {
            column = *walk->full++;
        }
    } while (walk->skip-- > 0);
    walk->skip = 0;
    walk->left--;
    walk->kv = column * walk->block;
    /* A mask may be longer than the call. */
    walk->kv_end = walk->kv + walk->block < walk->kv_len ? walk->kv + walk->block : walk->kv_len;
    return true;
}

/* False at the end. */
static inline bool attune__walk_tile(attune__walk *walk, attune__kv_tile *tile)
{
    while (walk->kv >= walk->kv_end)
        if (!attune__walk_block(walk))
            return false;
    int64_t left = walk->kv_end - walk->kv;
    *tile = (attune__kv_tile){walk->kv, left < (int64_t)walk->block_n ? (size_t)left : walk->block_n, walk->is_partial};
    walk->kv += (int64_t)walk->block_n;
    return true;
}

#endif
