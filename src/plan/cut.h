/* SPDX-License-Identifier: MIT */
/* How a call is cut into tiles of work, for every backend that walks them as items of a list. */
#ifndef ATTUNE_PLAN_CUT_H
#define ATTUNE_PLAN_CUT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct attune__cut_desc {
    int64_t batch, heads, kv_heads, q_len;
    uint32_t block_m, split_kv;
    bool decode;
    uint32_t mask_q_block; /* rows of a block of the mask; 0 = no mask */
    bool one_list;         /* all heads have the same lists, or there is no mask */
} attune__cut_desc;

typedef struct attune__cut {
    uint32_t head_step, q_step; /* query heads and rows of an item: head_step * q_step <= block_m */
    uint32_t q_block, in_block; /* chunks of q_step rows never cross a block of q_block, which has in_block of them */
    int64_t head_chunks, q_chunks;
    uint32_t splits;
    int64_t items;
} attune__cut;

/* A decode item has all query heads of a group when their lists are the same, so that k and v are read once for the
 * group. */
attune__cut attune__cut_make(const attune__cut_desc *desc);

/* What a loop of the CPU costs: pairs of a row and a key (or rows, of a loop that has no keys). */
typedef struct attune__loop_cost {
    double pairs;
    uint32_t flop;   /* of a pair */
    uint32_t weight; /* instructions of a pair's expressions (expr/analysis.h) */
    uint32_t lanes;  /* of the device's vectors */
} attune__loop_cost;

/* How many threads, at most `most`, the loop is worth: a thread's share is longer than it takes to wake it. */
uint32_t attune__cut_threads(const attune__loop_cost *cost, uint32_t most);

#endif
