/* SPDX-License-Identifier: MIT */
/* Shared memory of Hopper's kernels. Tiles are slabs of 64 columns of 16-bit elements with TMA's 128-byte swizzle, so
 * that head dimensions are padded to 64. */
#ifndef ATTUNE_CUDA_LAYOUT_SM90_H
#define ATTUNE_CUDA_LAYOUT_SM90_H

#include "layout.h"

/* ---------------------------------------------------------------------------------------------------------- forward */

/*
 * Q[B][M][D], K[S][N][D], V[S][N][Dv], the pipelines' barriers with the tile descriptors, and with T terms of a key
 * their barriers and terms[S][T][N] words, and with tiles of a capture descriptors and [S][M][N] elements, at least two
 * stages: one is copied while another is read. B = 2 for narrow heads: the next query tile's Q loads while this one is
 * computed.
 */
typedef struct attune_cuda_forward_tma_layout {
    unsigned q, k, v, control, key_terms, capture_tiles;
    unsigned q_buffers, q_buffer, k_stage, v_stage, terms_stage; /* their number; bytes of one */
    unsigned capture_pitch, capture_stage;                       /* bytes of a row, and of a stage */
    unsigned control_bytes;
    unsigned size;
    /* Of layout_sm100.h: tiles of O, their number, and words of rows; buffers of S, columns of tensor memory. */
    unsigned o, o_tiles, rows, s_buffers, p_column, o_columns, group_columns, columns;
} attune_cuda_forward_tma_layout;

/* narrow: the head dimensions up to which B = 2; control_words: of 8 bytes, beside those of each stage. */
ATTUNE_CUDA_LAYOUT attune_cuda_forward_tma_layout attune_cuda_forward_tma(attune_cuda_tile t, unsigned narrow,
                                                                          unsigned control_words)
{
    const unsigned d = attune_cuda_round_up(t.head_dim, 64), dv = attune_cuda_round_up(t.head_dim_v, 64);
    attune_cuda_forward_tma_layout l = {0};
    l.q_buffers = d <= narrow && dv <= narrow ? 2 : 1;
    l.q_buffer = t.block_m * d * t.element;
    l.k_stage = t.block_n * d * t.element;
    l.v_stage = t.block_n * dv * t.element;
    l.terms_stage = t.key_terms * t.block_n * 4;
    l.control_bytes = attune_cuda_round_up(8 * (control_words + 7 * t.stages), 128);
    l.k = l.q + l.q_buffers * l.q_buffer;
    l.v = l.k + t.stages * l.k_stage;
    l.control = l.v + t.stages * l.v_stage;
    l.key_terms = l.control + l.control_bytes;
    l.capture_tiles = l.key_terms + (t.key_terms ? attune_cuda_round_up(t.stages * (16 + l.terms_stage), 128) : 0);
    l.capture_pitch = t.block_n * t.capture_tile;
    l.capture_stage = t.block_m * l.capture_pitch;
    l.size = l.capture_tiles;
    if (t.capture_tile)
        l.size += attune_cuda_round_up(
            attune_cuda_round_up(4 * (4 + t.stages), 16) + (t.stages > 1 ? t.stages : 2) * l.capture_stage, 128);
    return l;
}

ATTUNE_CUDA_LAYOUT attune_cuda_forward_tma_layout attune_cuda_forward_sm90(attune_cuda_tile t)
{
    return attune_cuda_forward_tma(t, 128, 34);
}

/* ------------------------------------------------------------------------------------------------ forward over a cache
 */

/* Values of more than 256 columns, as those of latent attention: two consumer warp groups compute S of every other tile
 * of keys, and divide the columns of O, and V has no memory of its own. It is a part of K, as a rule; else it replaces
 * K once S is done. */
ATTUNE_CUDA_LAYOUT int attune_cuda_serving_sm90_wide(unsigned head_dim_v)
{
    return head_dim_v > 256;
}

/* setmaxnreg's of each of two consumer warp groups that have 64 rows each. */
#define ATTUNE_CUDA_SERVING_SM90_PAIR_REGISTERS 208

/* Q[M][D], K[S][N][D], V[S][N][Dv], the pipelines' barriers, a bit for each key of a stage, and the descriptors of two
 * tiles of rows: the next one is found while this one is computed. With wide values V is in K's stages, and there are
 * P[M][N] and two floats for each row and warp group, a maximum and a sum. */
typedef struct attune_cuda_serving_sm90_layout {
    unsigned k, v, p, maxima, control; /* Q is at 0 */
    unsigned k_stage, v_stage;         /* bytes of one */
    unsigned control_bytes;
    unsigned size;
} attune_cuda_serving_sm90_layout;

ATTUNE_CUDA_LAYOUT attune_cuda_serving_sm90_layout attune_cuda_serving_sm90(attune_cuda_tile t)
{
    const unsigned d = attune_cuda_round_up(t.head_dim, 64), dv = attune_cuda_round_up(t.head_dim_v, 64);
    attune_cuda_serving_sm90_layout l = {0};
    const int wide = attune_cuda_serving_sm90_wide(t.head_dim_v);
    l.k_stage = t.block_n * d * t.element;
    l.v_stage = wide ? l.k_stage : t.block_n * dv * t.element;
    l.k = t.block_m * d * t.element;
    l.v = wide ? l.k : l.k + t.stages * l.k_stage;
    l.p = l.v + t.stages * l.v_stage;
    l.maxima = l.p + (wide ? t.block_m * t.block_n * t.element : 0);
    l.control = l.maxima + (wide ? 2 * 2 * t.block_m * 4 : 0);
    l.control_bytes = attune_cuda_round_up(
        8 * (6 + 4 * t.stages) + t.stages * t.block_n / 8 + 2 * (ATTUNE_CUDA_SERVING_TILE + 16), 128);
    l.size = l.control + l.control_bytes;
    return l;
}

/* --------------------------------------------------------------------------------------------------------- backward */

/* Wide heads: the consumer warp groups divide the columns, and so do two CTAs where another kernel rounds
 * dQ. */
ATTUNE_CUDA_LAYOUT int attune_cuda_backward_sm90_wide(unsigned head_dim, unsigned head_dim_v)
{
    return head_dim > 128 || head_dim_v > 128;
}

/* A cluster of two CTAs computes a tile of keys, each one half. */
ATTUNE_CUDA_LAYOUT int attune_cuda_backward_sm90_paired(unsigned head_dim, unsigned head_dim_v, unsigned block_n)
{
    return attune_cuda_backward_sm90_wide(head_dim, head_dim_v) && block_n == 128;
}

/* The kernel that adds dQ to sums rounds it, too. In a cluster the additions are the limit, and rounding beside them
 * takes longer than attune_backward_dq_sm90 after them: docs/decisions/0052-rounding-dq-in-the-kernel.md. */
ATTUNE_CUDA_LAYOUT int attune_cuda_backward_sm90_rounds_dq(unsigned head_dim, unsigned head_dim_v, unsigned block_n)
{
    return !attune_cuda_backward_sm90_paired(head_dim, head_dim_v, block_n);
}

/* dQ is staged for its bulk addition in a buffer of its own. */
ATTUNE_CUDA_LAYOUT int attune_cuda_backward_sm90_dq_staged(unsigned head_dim, unsigned head_dim_v)
{
    return head_dim <= 192 && head_dim_v <= 192;
}

/* The padded columns of the sums of dQ, with tiles of block_m rows. */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_backward_sm90_dq_columns(unsigned head_dim, unsigned head_dim_v,
                                                                 unsigned block_m)
{
    if (head_dim > 64 || attune_cuda_backward_sm90_wide(head_dim, head_dim_v))
        return attune_cuda_round_up(head_dim, 128);
    return attune_cuda_round_up(head_dim, block_m == 128 ? 16 : 32);
}

#define ATTUNE_CUDA_HEAD_SUMS_BYTES 1536

/*
 * K[N][D], V[N][Dv] of the CTA's keys, Q[S][M][D], dO[S][M][Dv]; S buffers of dS [M][128], or with wide heads of P and
 * dS [M][64] each; dQ in float32, where it is staged; LSE and delta [S][M] in float32; barriers and tile descriptors;
 * with capture gradients their sums over the rows of a head; with a tile of a capture [M][N] elements. In a cluster of
 * two, each CTA has 64 keys: one buffer each of dS and P, and the peer's K of half of the columns, take the space of
 * two.
 */
typedef struct attune_cuda_backward_sm90_layout {
    unsigned k, v, q, d_o, ds, p, peer_k, dq, lse, delta, control, head_sums; /* p, peer_k: in a cluster */
    unsigned capture_tile;
    unsigned q_stage, do_stage, ds_stage, control_bytes;
    unsigned size;
} attune_cuda_backward_sm90_layout;

ATTUNE_CUDA_LAYOUT attune_cuda_backward_sm90_layout attune_cuda_backward_sm90(attune_cuda_tile t, int capture_gradients)
{
    const unsigned d = attune_cuda_round_up(t.head_dim, 64), dv = attune_cuda_round_up(t.head_dim_v, 64);
    const int wide = attune_cuda_backward_sm90_wide(t.head_dim, t.head_dim_v),
              paired = attune_cuda_backward_sm90_paired(t.head_dim, t.head_dim_v, t.block_n);
    const unsigned keys = paired ? t.block_n / 2 : t.block_n;
    const unsigned dq_columns = !wide ? attune_cuda_backward_sm90_dq_columns(t.head_dim, t.head_dim_v, t.block_m)
                                : attune_cuda_backward_sm90_dq_staged(t.head_dim, t.head_dim_v) ? d
                                                                                                : 0;
    attune_cuda_backward_sm90_layout l = {0};
    l.q_stage = t.block_m * d * t.element;
    l.do_stage = t.block_m * dv * t.element;
    l.ds_stage = t.block_m * 128 * t.element;
    l.control_bytes = paired ? 512 : 256;
    l.v = l.k + keys * d * t.element;
    l.q = l.v + keys * dv * t.element;
    l.d_o = l.q + t.stages * l.q_stage;
    l.ds = l.d_o + t.stages * l.do_stage;
    l.p = l.ds + l.ds_stage / 2;
    l.peer_k = l.p + l.ds_stage / 2;
    l.dq = l.ds + t.stages * l.ds_stage;
    l.lse = l.dq + t.block_m * dq_columns * 4;
    l.delta = l.lse + t.stages * t.block_m * 4;
    l.control = l.delta + t.stages * t.block_m * 4;
    l.head_sums = l.control + l.control_bytes;
    l.capture_tile = l.head_sums + (capture_gradients ? ATTUNE_CUDA_HEAD_SUMS_BYTES : 0);
    l.size = l.capture_tile + t.block_m * t.block_n * t.capture_tile;
    return l;
}

/* attune_backward_dq_sm90: a tile [M][pitch] of float32, of half of a wide head's columns. */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_backward_dq_sm90_pitch(unsigned head_dim, unsigned head_dim_v, unsigned block_m)
{
    const unsigned columns = attune_cuda_backward_sm90_dq_columns(head_dim, head_dim_v, block_m);
    return ((attune_cuda_backward_sm90_wide(head_dim, head_dim_v) ? columns / 2 : columns) + 4) * 4;
}

ATTUNE_CUDA_LAYOUT unsigned attune_cuda_backward_dq_sm90(unsigned head_dim, unsigned head_dim_v, unsigned block_m)
{
    return block_m * attune_cuda_backward_dq_sm90_pitch(head_dim, head_dim_v, block_m);
}

#endif
