/* SPDX-License-Identifier: MIT */
/* Shared memory and tensor memory of the kernels for sm_100a. Tiles in shared memory are those of layout_sm90.h: slabs
 * of 64 columns of 16-bit elements with TMA's 128-byte swizzle, so that head dimensions are padded to 64. */
#ifndef ATTUNE_CUDA_LAYOUT_SM100_H
#define ATTUNE_CUDA_LAYOUT_SM100_H

#include "layout_sm90.h"

/* Columns of tensor memory, each of 128 lanes of four bytes. */
#define ATTUNE_CUDA_TENSOR_COLUMNS 512

/* ---------------------------------------------------------------------------------------------------------- forward */

/* Whether a warp group of its own rescales O and stores it. The softmax warps of a single group of 128 rows have the
 * time for it, since they wait for the products, and the registers. */
ATTUNE_CUDA_LAYOUT int attune_cuda_forward_sm100_corrects(unsigned block_m)
{
    return block_m > 128;
}

/* Warps: four that load, four for the softmax of each 128 rows, four that correct, and four for the products. */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_forward_sm100_warps(unsigned block_m)
{
    return 4 + block_m / 128 * 4 + (attune_cuda_forward_sm100_corrects(block_m) ? 4 : 0) + 4;
}

/* Shared memory of a CTA, and a tile of O: 128 rows of 64 columns of 16 bits. */
#define ATTUNE_CUDA_SM100_SHARED 232448
#define ATTUNE_CUDA_SM100_O_TILE 16384

/*
 * In tensor memory, for each 128 rows of queries: S[B][128][N], in whose first half P is stored in 16 bits, and
 * O[128][Dv]. B = 2 where there are columns for it: the next S need not wait until P has been multiplied. Else P has
 * columns of its own, from p_column on, where there are columns for that.
 * group_columns are those of 128 rows; columns are allocated by powers of two. With a correction warp group
 * shared memory has two words for each row besides, which the softmax warps hand over, and between V and the barriers
 * as many tiles of O as there is space for and a query tile has, up to four: TMA stores them to global memory.
 */
ATTUNE_CUDA_LAYOUT attune_cuda_forward_tma_layout attune_cuda_forward_sm100(attune_cuda_tile t)
{
    attune_cuda_forward_tma_layout l = attune_cuda_forward_tma(t, 64, 42);
    if (attune_cuda_forward_sm100_corrects(t.block_m)) {
        const unsigned most = t.block_m / 128 * (attune_cuda_round_up(t.head_dim_v, 64) / 64);
        l.rows = l.key_terms;
        l.key_terms += 8 * t.block_m;
        l.size += 8 * t.block_m;
        while (l.o_tiles < most && l.o_tiles < 4 && l.size + ATTUNE_CUDA_SM100_O_TILE <= ATTUNE_CUDA_SM100_SHARED) {
            l.o_tiles++;
            l.size += ATTUNE_CUDA_SM100_O_TILE;
        }
        l.o = l.control;
        l.control += l.o_tiles * ATTUNE_CUDA_SM100_O_TILE;
        l.rows += l.o_tiles * ATTUNE_CUDA_SM100_O_TILE;
        l.key_terms += l.o_tiles * ATTUNE_CUDA_SM100_O_TILE;
    }
    l.o_columns = attune_cuda_round_up(t.head_dim_v, 16);
    l.s_buffers = t.block_m / 128 * (2 * t.block_n + l.o_columns) <= ATTUNE_CUDA_TENSOR_COLUMNS ? 2 : 1;
    l.group_columns = l.s_buffers * t.block_n + l.o_columns;
    if (l.s_buffers == 1 && t.block_m / 128 * (l.group_columns + t.block_n / 2) <= ATTUNE_CUDA_TENSOR_COLUMNS) {
        l.p_column = l.group_columns;
        l.group_columns += t.block_n / 2;
    }
    l.columns = 32;
    while (l.columns < t.block_m / 128 * l.group_columns)
        l.columns *= 2;
    return l;
}

/* --------------------------------------------------------------------------------------------------------- backward */

#define ATTUNE_CUDA_SM100_HEAD_SUMS_BYTES 1536

/* Head dimensions past 128: tiles of 64 rows instead of 128. */
ATTUNE_CUDA_LAYOUT int attune_cuda_backward_sm100_wide(unsigned head_dim, unsigned head_dim_v)
{
    return head_dim > 128 || head_dim_v > 128;
}

/* A pair of CTAs has a tile of 256 keys, each one half. */
ATTUNE_CUDA_LAYOUT int attune_cuda_backward_sm100_paired(unsigned block_n)
{
    return block_n == 256;
}

/* The columns of dK, dQ or dV that products compute, of which each CTA of a pair has half of the right operand. */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_backward_sm100_width(unsigned head_dim, unsigned block_n)
{
    return attune_cuda_round_up(head_dim, attune_cuda_backward_sm100_paired(block_n) ? 32 : 16);
}

/*
 * K[N][D], V[N][Dv] of the CTA's keys, Q[S][M][D], dO[R][M][Dv], dS [N][M]; dQ[M][D] in float32, a part of it, where it
 * is staged; LSE and delta [S][M] in float32; barriers and tile descriptors; with capture gradients their sums over the
 * rows of a head.
 *
 * Head dimensions up to 128: R = 1 past 64, and dQ is staged by 32 columns instead of 64, since shared memory has no
 * space for more. In tensor memory S and dP [N][M], in whose columns P and dS are stored in 16 bits, dK[N][D],
 * dV[N][Dv], and dQ[M][D]; it takes the columns of dP and dS where there are no others.
 *
 * By pairs, up to 128: the CTA has 128 keys, K[128][D] and V[128][Dv], and of all 256 half of the columns of K, of each
 * query tile half of the rows of Q and dO, and half of their columns, and dS[256][M / 2]. There are S stages of the
 * rows of Q, and R of its columns and of dO. dQ[M / 2][D] has half of its columns in each half of tensor memory's
 * lanes.
 *
 * Past 128: R = S, dQ is staged by 16 rows, and transposed in tensor memory: [D][M], of 128 lanes at a time. With
 * `separate` there are no columns for both dK and dV: they take the same, one after the other, for the same keys.
 */
typedef struct attune_cuda_backward_sm100_layout {
    unsigned k, v, q, d_o, ds, dq, lse, delta, control, head_sums;
    unsigned k_columns, q_columns, do_columns; /* of a pair: 64 columns of 256 keys, and of M rows */
    unsigned q_stage, do_stage, do_stages, control_bytes;
    unsigned dq_part; /* columns, or rows */
    unsigned size;
    unsigned dp_column, dk_column, dv_column, dq_column, columns; /* of tensor memory; S begins at 0 */
    int separate;
} attune_cuda_backward_sm100_layout;

ATTUNE_CUDA_LAYOUT void attune_cuda_backward_sm100_columns(attune_cuda_backward_sm100_layout *l, attune_cuda_tile t)
{
    const unsigned dk = attune_cuda_backward_sm100_width(t.head_dim, t.block_n),
                   dv = attune_cuda_backward_sm100_width(t.head_dim_v, t.block_n),
                   narrow_dq = attune_cuda_backward_sm100_paired(t.block_n) ? dk / 2 : dk;
    l->columns = ATTUNE_CUDA_TENSOR_COLUMNS; /* a power of two, and what is needed is always more than half of it */
    if (attune_cuda_backward_sm100_wide(t.head_dim, t.head_dim_v)) {
        const unsigned dq = (t.head_dim > 128 ? 2 : 1) * t.block_m;
        l->dk_column = l->dv_column = t.block_m;
        l->separate = t.block_m + dk + dv + dq > ATTUNE_CUDA_TENSOR_COLUMNS;
        l->dp_column = t.block_m + (dk > dv ? dk : dv);
        if (!l->separate) {
            l->dv_column += dk;
            l->dp_column = l->dv_column + dv;
        }
        l->dq_column = l->dp_column + t.block_m;
        if (l->dq_column + dq > ATTUNE_CUDA_TENSOR_COLUMNS)
            l->dq_column = l->dp_column;
        return;
    }
    l->dp_column = t.block_m;
    l->dk_column = 2 * t.block_m;
    l->dv_column = l->dk_column + dk;
    l->dq_column = l->dv_column + dv;
    if (l->dq_column + narrow_dq > ATTUNE_CUDA_TENSOR_COLUMNS)
        l->dq_column = l->dp_column;
}

ATTUNE_CUDA_LAYOUT attune_cuda_backward_sm100_layout attune_cuda_backward_sm100(attune_cuda_tile t,
                                                                                int capture_gradients)
{
    const unsigned d = attune_cuda_round_up(t.head_dim, 64), dv = attune_cuda_round_up(t.head_dim_v, 64);
    const int wide = attune_cuda_backward_sm100_wide(t.head_dim, t.head_dim_v), few = d <= 64 && dv <= 64,
              paired = attune_cuda_backward_sm100_paired(t.block_n);
    const unsigned keys = paired ? t.block_n / 2 : t.block_n, rows = paired ? t.block_m / 2 : t.block_m;
    const unsigned columns = paired ? 64 * t.element : 0; /* bytes of a row's or key's half of the columns */
    attune_cuda_backward_sm100_layout l = {0};
    attune_cuda_backward_sm100_columns(&l, t);
    l.q_stage = rows * d * t.element;
    l.do_stage = rows * dv * t.element;
    l.do_stages = few || wide ? t.stages : 1;
    l.dq_part = wide || paired ? 16 : few ? 64 : 32;
    l.control_bytes = 512;
    l.v = l.k + keys * d * t.element;
    l.k_columns = l.v + keys * dv * t.element;
    l.q = l.k_columns + t.block_n * columns;
    l.q_columns = l.q + t.stages * l.q_stage;
    l.d_o = l.q_columns + l.do_stages * t.block_m * columns;
    l.do_columns = l.d_o + l.do_stages * l.do_stage;
    l.ds = l.do_columns + l.do_stages * t.block_m * columns;
    l.dq = l.ds + rows * t.block_n * t.element;
    l.lse = l.dq + l.dq_part * (wide ? attune_cuda_round_up(t.head_dim, 32) : t.block_m) * 4;
    l.delta = l.lse + t.stages * t.block_m * 4;
    l.control = l.delta + t.stages * t.block_m * 4;
    l.head_sums = l.control + l.control_bytes;
    l.size = l.head_sums + (capture_gradients ? ATTUNE_CUDA_SM100_HEAD_SUMS_BYTES : 0);
    return l;
}

#endif
