/* SPDX-License-Identifier: MIT */
/* The barriers of the forward kernel for sm_100a, and what its softmax warps hand over to the correction. */
#ifndef ATTUNE_CUDA_LAYOUT_FORWARD_SM100_CUH
#define ATTUNE_CUDA_LAYOUT_FORWARD_SM100_CUH

#include "config_forward_sm100.cuh" /* before the header that reads it */

#include "layout_forward_sm90.cuh"

/* Of each softmax group. `rows`: of its row_words, which are empty once O is rescaled. */
struct group_control {
    u64 s_full[sm100::S_BUFFERS], p_full[sm100::S_BUFFERS], o_full;
    pipeline<1> rows;
};

struct sm100_control {
    control tiles;
    group_control groups[sm100::GROUPS];
    pipeline<sm100::O_TILES ? sm100::O_TILES : 1> o;
    u32 tmem; /* the address of the allocated columns */
};
static_assert(sizeof(sm100_control) <= sm100::LAYOUT.control_bytes);

/* The softmax threads of 128 rows hand over these words: for each key tile the factor of O, with the sign of -1 in the
 * query tile's last one; after it the row's sum and maximum. */
struct row_words {
    u32 factor_or_sum[128], row_max[128];
};
static_assert(!sm100::CORRECTS || sizeof(row_words) * sm100::GROUPS == BLOCK_M * 8, "layout_sm100.h");

#endif
