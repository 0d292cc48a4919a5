/* SPDX-License-Identifier: MIT */
/* Shared memory and tensor memory of the kernels for sm_100a. Tiles in shared memory are those of layout_sm90.h: slabs
 * of 64 columns of 16-bit elements with TMA's 128-byte swizzle, so that head dimensions are padded to 64. */
#ifndef ATTUNE_CUDA_LAYOUT_SM100_H
#define ATTUNE_CUDA_LAYOUT_SM100_H

#include "layout_sm90.h"

/* Columns of tensor memory, each of 128 lanes of four bytes. */
#define ATTUNE_CUDA_TENSOR_COLUMNS 512

/* In tensor memory, for each 128 rows of queries: S[128][N], in whose first half P is stored in 16 bits, and
 * O[128][Dv]. group_columns are those of 128 rows; columns are allocated by powers of two. */
ATTUNE_CUDA_LAYOUT attune_cuda_forward_tma_layout attune_cuda_forward_sm100(attune_cuda_tile t)
{
    attune_cuda_forward_tma_layout l = attune_cuda_forward_tma(t, 64, 42);
    l.o_columns = attune_cuda_round_up(t.head_dim_v, 16);
    l.group_columns = t.block_n + l.o_columns;
    l.columns = 32;
    while (l.columns < t.block_m / 128 * l.group_columns)
        l.columns *= 2;
    return l;
}

#endif
