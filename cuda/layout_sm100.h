/* SPDX-License-Identifier: MIT */
/* Shared memory and tensor memory of the kernels for sm_100a. Tiles in shared memory are those of layout_sm90.h: slabs
 * of 64 columns of 16-bit elements with TMA's 128-byte swizzle, so that head dimensions are padded to 64. */
#ifndef ATTUNE_CUDA_LAYOUT_SM100_H
#define ATTUNE_CUDA_LAYOUT_SM100_H

#include "layout.h"

/* Columns of tensor memory, each of 128 lanes of four bytes. */
#define ATTUNE_CUDA_TENSOR_COLUMNS 512

/*
 * Q[B][M][D], K[S][N][D], V[S][N][Dv], the pipelines' barriers with the tile descriptors, and with T terms of a key
 * their barriers and terms[S][T][N] words. B = 2 where the head dimensions are at most 64: the next query tile's Q
 * loads while this one is computed. In tensor memory, for each 128 rows of queries: S[128][N], in whose first half P is
 * stored in 16 bits, and O[128][Dv].
 */
typedef struct attune_cuda_forward_sm100_layout {
    unsigned q, k, v, control, key_terms;
    unsigned q_buffers, q_buffer, k_stage, v_stage, terms_stage; /* their number; bytes of one */
    unsigned control_bytes;
    unsigned size;
    unsigned o_columns, group_columns, columns; /* of O, of 128 rows, of all; columns are allocated by powers of two */
} attune_cuda_forward_sm100_layout;

ATTUNE_CUDA_LAYOUT attune_cuda_forward_sm100_layout attune_cuda_forward_sm100(attune_cuda_tile t)
{
    const unsigned d = attune_cuda_round_up(t.head_dim, 64), dv = attune_cuda_round_up(t.head_dim_v, 64);
    attune_cuda_forward_sm100_layout l = {0};
    l.q_buffers = d <= 64 && dv <= 64 ? 2 : 1;
    l.q_buffer = t.block_m * d * t.element;
    l.k_stage = t.block_n * d * t.element;
    l.v_stage = t.block_n * dv * t.element;
    l.terms_stage = t.key_terms * t.block_n * 4;
    l.control_bytes = attune_cuda_round_up(8 * (42 + 7 * t.stages), 128);
    l.k = l.q + l.q_buffers * l.q_buffer;
    l.v = l.k + t.stages * l.k_stage;
    l.control = l.v + t.stages * l.v_stage;
    l.key_terms = l.control + l.control_bytes;
    l.size = l.key_terms + (t.key_terms ? attune_cuda_round_up(t.stages * (16 + l.terms_stage), 128) : 0);
    l.o_columns = attune_cuda_round_up(t.head_dim_v, 16);
    l.group_columns = t.block_n + l.o_columns;
    l.columns = 32;
    while (l.columns < t.block_m / 128 * l.group_columns)
        l.columns *= 2;
    return l;
}

#endif
