/* SPDX-License-Identifier: MIT */
/* How a call is divided into work items, for the backends that process a list of items. */
#ifndef ATTUNE_PLAN_PARTITION_H
#define ATTUNE_PLAN_PARTITION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct attune__partition_desc {
    int64_t batch, heads, kv_heads, q_len;
    uint32_t block_m, split_kv;
    bool decode;
    uint32_t mask_q_block;  /* rows of a block of the mask; 0 = no mask */
    bool one_list;          /* all heads have the same lists, or there is no mask */
    uint32_t section_items; /* the least of a section, on a device that takes items in their order; 0 = one plane */
} attune__partition_desc;

typedef struct attune__partition {
    uint32_t head_step, q_step; /* query heads and rows of an item: head_step * q_step <= block_m */
    uint32_t q_block, in_block; /* chunks of q_step rows never cross a block of q_block, which has in_block of them */
    int64_t head_chunks, q_chunks;
    uint32_t splits;
    int64_t items;
    uint32_t
        section; /* planes of keys (batch and key head) whose items follow one another, the last rows of all first */
} attune__partition;

/*
 * A decode item has all query heads of a group if they share their lists, so that k and v are read once for the group.
 */
attune__partition attune__partition_make(const attune__partition_desc *desc);

/* The cost of a parallel loop on the CPU, per pair (or per row, for loops without keys). */
typedef struct attune__loop_cost {
    double pairs;
    uint32_t flop;   /* of a pair */
    uint32_t weight; /* instructions of a pair's expressions (expr/analysis.h) */
    uint32_t lanes;  /* of the device's vectors */
} attune__loop_cost;

/* The number of threads, at most `most`, such that each thread's share takes longer than waking it. */
uint32_t attune__loop_threads(const attune__loop_cost *cost, uint32_t most);

#endif
