/* SPDX-License-Identifier: MIT */
/* Shared memory and tensor memory of the kernels for sm_100a. Tiles in shared memory are those of layout_sm90.h: slabs
 * of 64 columns of 16-bit elements with TMA's 128-byte swizzle, so that head dimensions are padded to 64. */
#ifndef ATTUNE_CUDA_LAYOUT_SM100_H
#define ATTUNE_CUDA_LAYOUT_SM100_H

#include "layout_sm90.h"

/* Columns of tensor memory, each of 128 lanes of four bytes. */
#define ATTUNE_CUDA_TENSOR_COLUMNS 512

/* ---------------------------------------------------------------------------------------------------------- forward */

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

/* --------------------------------------------------------------------------------------------------------- backward */

#define ATTUNE_CUDA_SM100_HEAD_SUMS_BYTES 1536

/*
 * K[N][D], V[N][Dv] of the CTA's keys, Q[S][M][D], dO[R][M][Dv], dS [N][M]; dQ[M][P] in float32, a part of its columns,
 * where it is staged; LSE and delta [S][M] in float32; barriers and tile descriptors; with capture gradients their sums
 * over the rows of a head. R = 1 and P = 32 past head dimensions of 64, where shared memory has no space for more. In
 * tensor memory: S and dP [N][M], in whose columns P and dS are stored in 16 bits, dK[N][D], dV[N][Dv], and dQ[M][D];
 * it takes the columns of dP and dS where there are no others.
 */
typedef struct attune_cuda_backward_sm100_layout {
    unsigned k, v, q, d_o, ds, dq, lse, delta, control, head_sums;
    unsigned q_stage, do_stage, do_stages, dq_part, control_bytes; /* dq_part: columns */
    unsigned size;
    unsigned dp_column, dk_column, dv_column, dq_column, columns; /* of tensor memory; S begins at 0 */
} attune_cuda_backward_sm100_layout;

ATTUNE_CUDA_LAYOUT attune_cuda_backward_sm100_layout attune_cuda_backward_sm100(attune_cuda_tile t,
                                                                                int capture_gradients)
{
    const unsigned d = attune_cuda_round_up(t.head_dim, 64), dv = attune_cuda_round_up(t.head_dim_v, 64);
    const unsigned d_columns = attune_cuda_round_up(t.head_dim, 16),
                   dv_columns = attune_cuda_round_up(t.head_dim_v, 16);
    attune_cuda_backward_sm100_layout l = {0};
    l.q_stage = t.block_m * d * t.element;
    l.do_stage = t.block_m * dv * t.element;
    l.do_stages = d <= 64 && dv <= 64 ? t.stages : 1;
    l.dq_part = d <= 64 && dv <= 64 ? 64 : 32;
    l.control_bytes = 512;
    l.v = l.k + t.block_n * d * t.element;
    l.q = l.v + t.block_n * dv * t.element;
    l.d_o = l.q + t.stages * l.q_stage;
    l.ds = l.d_o + l.do_stages * l.do_stage;
    l.dq = l.ds + t.block_m * t.block_n * t.element;
    l.lse = l.dq + t.block_m * l.dq_part * 4;
    l.delta = l.lse + t.stages * t.block_m * 4;
    l.control = l.delta + t.stages * t.block_m * 4;
    l.head_sums = l.control + l.control_bytes;
    l.size = l.head_sums + (capture_gradients ? ATTUNE_CUDA_SM100_HEAD_SUMS_BYTES : 0);
    l.dp_column = t.block_m;
    l.dk_column = 2 * t.block_m;
    l.dv_column = l.dk_column + d_columns;
    l.dq_column = l.dv_column + dv_columns;
    if (l.dq_column + d_columns > ATTUNE_CUDA_TENSOR_COLUMNS)
        l.dq_column = l.dp_column;
    l.columns = ATTUNE_CUDA_TENSOR_COLUMNS; /* a power of two, which 256 columns and those of dK and dV are more than */
    return l;
}

#endif
