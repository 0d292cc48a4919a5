/* SPDX-License-Identifier: MIT */
/*
 * Attention over several devices (context parallelism): a sequence is cut over ranks, each of which has some of its
 * rows and keys. A rank is a device, and a process or a thread that calls attune for it.
 *
 *     attune_mask -> attune_partition (rows and keys of each rank, and the keys that it needs of others)
 *
 * A partition is a pure function of the mask and the description: every rank creates the same one.
 */
#ifndef ATTUNE_DISTRIBUTED_H
#define ATTUNE_DISTRIBUTED_H

#include <attune/attune.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------------------------------- partition */

/* How rows and keys are dealt to the ranks. They are dealt in chunks, each of consecutive positions. */
typedef enum attune_layout {
    /* Equal numbers of chunks: contiguous, then chunks are swapped between ranks until the most work of a rank is
     * within 2 % of the mean, or no swap reduces it. */
    ATTUNE_LAYOUT_BALANCED = 0,
    /* Unequal numbers: each rank has consecutive rows, cut so that the most work of a rank is least. */
    ATTUNE_LAYOUT_CUT = 1,
    ATTUNE_LAYOUT_CONTIGUOUS = 2, /* equal numbers of consecutive chunks */
    ATTUNE_LAYOUT_ZIGZAG = 3,     /* of 2 * ranks parts, rank r has parts r and 2 * ranks - 1 - r */
    ATTUNE_LAYOUT_STRIPED = 4     /* chunk i belongs to rank i % ranks */
} attune_layout;

#define ATTUNE_MAX_RANKS 4096

/* Parameters of a partition. */
typedef struct attune_partition_desc {
    uint32_t struct_size;
    uint32_t ranks; /* 1 to ATTUNE_MAX_RANKS */
    attune_layout layout;
    /* Rows of a chunk, a multiple of the mask's q_block and kv_block; the last chunk may be shorter. 0 = at most 512
     * rows, fewer for short sequences and where larger chunks cannot be balanced. */
    int64_t chunk;
    /* Time of a partial block as a multiple of that of a full block, 0.01 to 100. 0 = estimated from the instructions
     * of the mask expression, against head_dim 128. */
    double partial_cost;
    /* ATTUNE_LAYOUT_CUT: the most rows of a rank, as a multiple of the mean, at least 1. 0 = 4. */
    double most_rows;
} attune_partition_desc;

/* Consecutive rows or keys of the whole sequence. */
typedef struct attune_run {
    int64_t start, count;
    uint32_t rank; /* that has them */
} attune_run;

/* What each rank has, and what it needs of others. */
typedef struct attune_partition attune_partition;

/*
 * Deals the rows and the keys of a mask to ranks. Where q_len equals kv_len, the rank that has a row has the key of the
 * same position. Otherwise keys are dealt by the same layout, and contiguously with BALANCED and CUT. Ranks may be left
 * without rows or keys if there are fewer chunks than ranks. The work of a rank is the cost of the blocks of its rows,
 * over all batches and heads. UNSUPPORTED for masks whose lists are on a device (attune_mask_create_tensor). The mask
 * is not needed afterwards.
 */
ATTUNE_API attune_status attune_partition_create(attune_instance *instance, const attune_partition_desc *desc,
                                                 const attune_mask *mask, attune_partition **partition);
ATTUNE_API void attune_partition_destroy(attune_partition *partition);

/* The three lists of a rank. */
typedef enum attune_run_kind {
    ATTUNE_RUN_ROWS = 1, /* rows that the rank has */
    ATTUNE_RUN_KEYS = 2, /* keys that the rank has */
    ATTUNE_RUN_NEEDS = 3 /* keys of other ranks that its rows need: those of the blocks in the mask's lists */
} attune_run_kind;

/*
 * Returns a list of runs, in ascending order of start; the array is valid as long as the partition. The rank's own
 * tensors hold its rows, or keys, in this order. Rank a sends to rank b those runs of b's needs whose rank is a. Any
 * thread.
 */
ATTUNE_API attune_status attune_partition_runs(const attune_partition *partition, uint32_t rank, attune_run_kind kind,
                                               const attune_run **runs, uint32_t *count);

/* What a partition achieves. */
typedef struct attune_partition_stats {
    uint32_t struct_size;
    uint32_t ranks;
    int64_t chunk;             /* as chosen */
    double imbalance;          /* most work of a rank / mean; 1 if there is no work */
    double fetched;            /* keys fetched / keys of all other ranks, which a ring fetches, of the rank where this
                                  is largest; 0 with one rank */
    int64_t fetched_keys;      /* over all ranks */
    int64_t most_rows;         /* of a rank */
    int64_t most_keys;         /* likewise */
    int64_t most_fetched_keys; /* likewise */
    double partial_cost;       /* as given or estimated */
} attune_partition_stats;

/* Computes statistics. Any thread. */
ATTUNE_API attune_status attune_partition_stats_get(const attune_partition *partition, attune_partition_stats *stats);

/* Returns the work of a rank, in units of a full block of one batch and head. 0 if there is no such rank. Any thread.
 */
ATTUNE_API double attune_partition_work(const attune_partition *partition, uint32_t rank);

/* A hash of what every rank must agree on: the runs of all ranks, the lengths and the mask's expression. The same on
 * every machine. Any thread. */
ATTUNE_API void attune_partition_hash(const attune_partition *partition, uint64_t hash[2]);

#ifdef __cplusplus
}
#endif

#endif
