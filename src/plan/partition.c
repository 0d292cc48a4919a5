/* SPDX-License-Identifier: MIT */
#include "plan/partition.h"

/* As few planes as have so many items, since their keys share the cache; equal sections. Under a causal mask the items
 * of the first rows, which have the fewest keys, then fill the units at the end. */
static uint32_t section_of(const attune__partition_desc *desc, int64_t plane_items)
{
    const int64_t planes = desc->batch * desc->kv_heads, least = desc->section_items;
    if (!desc->mask_q_block || !desc->section_items || plane_items < 1)
        return 1;
    const int64_t section = (least + plane_items - 1) / plane_items;
    const int64_t sections = planes / section > 1 ? planes / section : 1;
    return (uint32_t)((planes + sections - 1) / sections);
}

attune__partition attune__partition_make(const attune__partition_desc *desc)
{
    const int64_t group = desc->heads / desc->kv_heads;
    attune__partition c = {.head_step = 1, .splits = desc->decode && desc->split_kv > 1 ? desc->split_kv : 1};
    if (desc->decode && desc->one_list)
        c.head_step = group < (int64_t)desc->block_m ? (uint32_t)group : desc->block_m;
    c.head_chunks = (group + c.head_step - 1) / c.head_step;
    c.q_step = desc->block_m / c.head_step;
    c.q_block = desc->mask_q_block ? desc->mask_q_block : c.q_step;
    if (c.q_step > c.q_block)
        c.q_step = c.q_block;
    c.in_block = (c.q_block + c.q_step - 1) / c.q_step;
    c.q_chunks = desc->q_len / c.q_block * c.in_block + (desc->q_len % c.q_block + c.q_step - 1) / c.q_step;
    c.section = section_of(desc, c.q_chunks * c.head_chunks * c.splits);
    c.items = c.q_chunks * desc->batch * desc->kv_heads * c.head_chunks * c.splits;
    return c;
}

/* Operations per nanosecond and lane: half the peak of a core with two FMA units at 2 GHz. */
#define FLOP_PER_LANE 4.0
/* The least work that pays for waking a thread: twice the round trip of a futex. */
#define SHARE_NS 10000.0

uint32_t attune__loop_threads(const attune__loop_cost *cost, uint32_t most)
{
    const double lanes = cost->lanes ? (double)cost->lanes : 1;
    const double shares = cost->pairs * ((double)cost->flop / FLOP_PER_LANE + (double)cost->weight) / lanes / SHARE_NS;
    return shares <= 1 ? 1 : shares < (double)most ? (uint32_t)shares : most;
}
