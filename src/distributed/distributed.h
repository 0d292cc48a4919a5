/* SPDX-License-Identifier: MIT */
/*
 * Attention over several devices: which rank has which rows and keys, and what it needs of others.
 *
 *     partition.c   chunks to ranks, and what their rows need     balance.c   chunks to ranks by work
 *     create.c      the masks, plan and messages of a rank        forward.c   calls
 */
#ifndef ATTUNE_DISTRIBUTED_DISTRIBUTED_H
#define ATTUNE_DISTRIBUTED_DISTRIBUTED_H

#include <attune/distributed.h>

#include "api/api.h"
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

/* The runs of a rank. */
typedef struct attune__run_view {
    const attune_run *items;
    size_t count;
} attune__run_view;
static inline attune__run_view attune__runs_of(const attune__run_lists *lists, uint32_t r)
{
    return (attune__run_view){lists->items + lists->offsets[r], lists->offsets[r + 1] - lists->offsets[r]};
}
static inline int64_t attune__runs_length(attune__run_view runs)
{
    int64_t sum = 0;
    for (size_t i = 0; i < runs.count; i++)
        sum += runs.items[i].count;
    return sum;
}

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

/* ------------------------------------------------------------------------------------------------------------ calls */

/* Keys that go to a rank, or come from one: those from `start` on of the tensor that they are in. */
typedef struct attune__transfer {
    uint32_t peer;
    int64_t start, count;
} attune__transfer;

/* The keys of one launch. */
typedef struct attune__distributed_part {
    int64_t keys; /* 0 = no launch */
    attune_mask *mask;
    attune_buffer *positions; /* i32 [keys]; NULL = their own index */
} attune__distributed_part;

enum { ATTUNE__OWN, ATTUNE__OTHERS, ATTUNE__DISTRIBUTED_PARTS };

struct attune_distributed {
    attune_device *device; /* retained */
    attune_transport transport;
    bool token_major;
    bool aborted;
    int64_t q_len, kv_len;
    int64_t rows, own_keys;
    attune__shape shape; /* of the problem over the whole sequence */
    attune__distributed_part parts[ATTUNE__DISTRIBUTED_PARTS];
    attune_buffer *positions; /* i32 [rows], of the rows; NULL = their own index */
    attune_plan *plan;        /* NULL = no rows */
    attune__program *merger;  /* NULL = at most one part */
    attune__transfer *sends, *receives;
    size_t send_count, receive_count;
    attune_message *messages; /* of one call */
    /* Offsets in the workspace: k and v of others, partial results, and what the merge and the plan need. */
    uint64_t k_at, v_at, part_at, part_size, lse_at, merge_at, plan_at, workspace;
};

/* Planes of k and v whose rows are adjacent in memory, and the elements of a row, for a head_dim. */
static inline int64_t attune__transfer_planes(const attune_distributed *d)
{
    return d->shape.kv_batch * (d->token_major ? 1 : d->shape.kv_heads);
}
static inline int64_t attune__transfer_row(const attune_distributed *d, uint32_t head_dim)
{
    return head_dim * (d->token_major ? d->shape.kv_heads : 1);
}

#endif
