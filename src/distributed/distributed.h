/* SPDX-License-Identifier: MIT */
/*
 * Attention over several devices: which rank has which rows and keys, and what it needs of others.
 *
 *     partition.c   chunks to ranks, and what their rows need     balance.c   chunks to ranks by work
 */
#ifndef ATTUNE_DISTRIBUTED_DISTRIBUTED_H
#define ATTUNE_DISTRIBUTED_DISTRIBUTED_H

#include <attune/distributed.h>

#include "base/hash.h"

/* The work of one full block. Work is counted in integers, so that sums are the same on every machine. */
#define ATTUNE__FULL_WORK 1024

/* The runs of all ranks: those of rank r are items[offsets[r]] to items[offsets[r + 1] - 1]. */
typedef struct attune__run_lists {
    size_t *offsets; /* ranks + 1 */
    attune_run *items;
    size_t count, capacity;
} attune__run_lists;

struct attune_partition {
    attune_allocator allocator; /* a copy */
    uint32_t ranks;
    uint32_t q_block, kv_block;
    int64_t q_len, kv_len, chunk;
    double partial_cost;
    int64_t *work; /* of each rank */
    attune__run_lists rows, keys, needs;
    attune__hash hash;
};

/* Chunks and the ranks that have them. */
typedef struct attune__deal {
    uint32_t ranks;
    int64_t count;
    const int64_t *work; /* of each chunk; NULL if the layout does not depend on it */
    uint32_t *rank;      /* of each chunk: the result */
    int64_t *load;       /* of each rank */
    int64_t *first;      /* ranks + 1, and chunks: for attune__deal_swap, the chunks of each rank */
    int64_t *chunks;
} attune__deal;

void attune__deal_contiguous(attune__deal *deal);
void attune__deal_zigzag(attune__deal *deal);
void attune__deal_striped(attune__deal *deal);
/* Consecutive chunks, at most `most` for a rank, so that the largest load is least. most * ranks >= count. */
void attune__deal_cut(attune__deal *deal, int64_t most);
/* Swaps chunks between ranks until the largest load is within 2 % of the mean. False if no swap reduces it further. */
bool attune__deal_swap(attune__deal *deal);

#endif
