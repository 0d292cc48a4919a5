/* SPDX-License-Identifier: MIT */
#include "plan/cut.h"

attune__cut attune__cut_make(const attune__cut_desc *desc)
{
    const int64_t group = desc->heads / desc->kv_heads;
    attune__cut c = {.head_step = 1, .splits = desc->decode && desc->split_kv > 1 ? desc->split_kv : 1};
    if (desc->decode && desc->one_list)
        c.head_step = group < (int64_t)desc->block_m ? (uint32_t)group : desc->block_m;
    c.head_chunks = (group + c.head_step - 1) / c.head_step;
    c.q_step = desc->block_m / c.head_step;
    c.q_block = desc->mask_q_block ? desc->mask_q_block : c.q_step;
    if (c.q_step > c.q_block)
        c.q_step = c.q_block;
    c.in_block = (c.q_block + c.q_step - 1) / c.q_step;
    c.q_chunks = desc->q_len / c.q_block * c.in_block + (desc->q_len % c.q_block + c.q_step - 1) / c.q_step;
    c.items = c.q_chunks * desc->batch * desc->kv_heads * c.head_chunks * c.splits;
    return c;
}
