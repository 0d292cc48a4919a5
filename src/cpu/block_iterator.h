/* SPDX-License-Identifier: MIT */
/* Iterates over the tiles of one row of blocks in ascending order of keys, over both lists, so that the order of
 * summation does not depend on how the mask was classified. Without a mask every tile is full. */
#ifndef ATTUNE_CPU_BLOCK_ITERATOR_H
#define ATTUNE_CPU_BLOCK_ITERATOR_H

#include "cpu/cpu.h"

typedef struct attune__block_iterator {
    const int32_t *partial, *partial_end, *full, *full_end; /* remaining block columns; NULL without a mask */
    bool masked;
    int64_t block;      /* keys in a block */
    int64_t next;       /* without a mask: the next block column */
    int64_t skip, left; /* remaining blocks of earlier splits, and of this one */
    int64_t kv, kv_end; /* the remaining keys of the current block */
    bool is_partial;    /* of the current block */
    int64_t kv_len;
    size_t block_n;
} attune__block_iterator;

typedef struct attune__kv_tile {
    int64_t kv0;
    size_t count;
    bool partial;
    bool masked, absent, tree; /* serving: why it is partial */
} attune__kv_tile;

/* Begins at the first tile of the block row of q0, for one split. Splits divide the listed blocks, not the keys, so
 * that they have about the same work. */
static inline attune__block_iterator attune__block_iterator_begin(const attune__cpu_run *run, int64_t b, int64_t h,
                                                                  int64_t q0, uint32_t split)
{
    const attune_mask *mask = run->call->mask;
    attune__block_iterator iterator = {.masked = mask != NULL, .kv_len = run->call->kv_len, .block_n = run->block_n};
    int64_t blocks;
    if (mask) {
        int64_t row = attune__mask_at(mask, b, h).row0 + q0 / mask->q_block;
        iterator.block = mask->kv_block;
        iterator.partial = mask->kv.indices + mask->kv.offsets[row];
        iterator.partial_end = mask->kv.indices + mask->kv.offsets[row + 1];
        iterator.full = mask->full_kv.indices + mask->full_kv.offsets[row];
        iterator.full_end = mask->full_kv.indices + mask->full_kv.offsets[row + 1];
        blocks = (iterator.partial_end - iterator.partial) + (iterator.full_end - iterator.full);
    } else {
        iterator.block = (int64_t)run->block_n;
        blocks = (iterator.kv_len + iterator.block - 1) / iterator.block;
    }
    iterator.skip = blocks * split / run->splits;
    iterator.left = blocks * (split + 1) / run->splits - iterator.skip;
    return iterator;
}

/* Begins at the first tile of rows for the block column of kv0; kv above is q here. */
static inline attune__block_iterator attune__block_iterator_begin_columns(const attune__cpu_run *run, int64_t b,
                                                                          int64_t h, int64_t kv0)
{
    const attune_mask *mask = run->call->mask;
    attune__block_iterator iterator = {.masked = mask != NULL, .kv_len = run->call->q_len, .block_n = run->block_m};
    if (mask) {
        const int64_t column = attune__mask_at(mask, b, h).col0 + kv0 / mask->kv_block;
        iterator.block = mask->q_block;
        iterator.partial = mask->q.indices + mask->q.offsets[column];
        iterator.partial_end = mask->q.indices + mask->q.offsets[column + 1];
        iterator.full = mask->full_q.indices + mask->full_q.offsets[column];
        iterator.full_end = mask->full_q.indices + mask->full_q.offsets[column + 1];
        iterator.left = (iterator.partial_end - iterator.partial) + (iterator.full_end - iterator.full);
    } else {
        iterator.block = (int64_t)run->block_m;
        iterator.left = (iterator.kv_len + iterator.block - 1) / iterator.block;
    }
    return iterator;
}

/* False at the end. */
static inline bool attune__block_iterator_next(attune__block_iterator *iterator)
{
    if (!iterator->left)
        return false;
    int64_t column;
    do {
        iterator->is_partial = false;
        if (!iterator->masked) {
            column = iterator->next++;
        } else if (iterator->full == iterator->full_end ||
                   (iterator->partial != iterator->partial_end && *iterator->partial < *iterator->full)) {
            column = *iterator->partial++;
            iterator->is_partial = true;
        } else {
            column = *iterator->full++;
        }
    } while (iterator->skip-- > 0);
    iterator->skip = 0;
    iterator->left--;
    iterator->kv = column * iterator->block;
    /* The mask may be longer than the call. */
    iterator->kv_end =
        iterator->kv + iterator->block < iterator->kv_len ? iterator->kv + iterator->block : iterator->kv_len;
    return true;
}

/* False at the end. */
static inline bool attune__block_iterator_next_tile(attune__block_iterator *iterator, attune__kv_tile *tile)
{
    while (iterator->kv >= iterator->kv_end)
        if (!attune__block_iterator_next(iterator))
            return false;
    int64_t left = iterator->kv_end - iterator->kv;
    *tile = (attune__kv_tile){.kv0 = iterator->kv,
                              .count = left < (int64_t)iterator->block_n ? (size_t)left : iterator->block_n,
                              .partial = iterator->is_partial};
    iterator->kv += (int64_t)iterator->block_n;
    return true;
}

#endif
