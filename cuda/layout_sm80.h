/* SPDX-License-Identifier: MIT */
/* Shared memory of the mma.sync kernels. Rows are swizzled, so that only head dimensions are padded. */
#ifndef ATTUNE_CUDA_LAYOUT_SM80_H
#define ATTUNE_CUDA_LAYOUT_SM80_H

#include "layout.h"

/* Of 8 x 8 matrices of 16-bit elements, ldmatrix loads two columns of matrices at once. */
#define ATTUNE_CUDA_PADDING 16

/* ----------------------------------------------------------------------------------------------- forward and decode */

/*
 * Q[M][D], K[S][N][D], V[S][N][Dv], terms[2][T][N] words, with M x N the tile, S the stages, T the terms of a key.
 * Decode in float32 with wide heads saves the state of each thread's rows, and its next tiles, while O accumulates.
 * The epilogue reuses the memory: forward for O[M][Dv], decode for the results of the warps that share rows, in
 * float32, O[G][M][Dv] and then m and l [G][M][2].
 */
typedef struct attune_cuda_forward_sm80_layout {
    unsigned q, k, v, terms, state;
    unsigned k_stage, v_stage, terms_buffer; /* of one stage, of one buffer */
    unsigned ml;                             /* epilogue of decode */
    unsigned size;
} attune_cuda_forward_sm80_layout;

typedef struct attune_cuda_serving_sm80_layout {
    unsigned k, v;             /* Q is at 0 */
    unsigned k_stage, v_stage; /* of one stage */
    unsigned keys, k_factors, v_factors, maxima, p;
    unsigned ml;   /* epilogue */
    unsigned rows; /* the tile of rows */
    unsigned size;
} attune_cuda_serving_sm80_layout;

ATTUNE_CUDA_LAYOUT attune_cuda_forward_sm80_layout attune_cuda_operands_sm80(attune_cuda_tile t)
{
    const unsigned d = attune_cuda_round_up(t.head_dim, ATTUNE_CUDA_PADDING),
                   dv = attune_cuda_round_up(t.head_dim_v, ATTUNE_CUDA_PADDING);
    attune_cuda_forward_sm80_layout l = {0};
    l.k_stage = t.block_n * d * t.element;
    l.v_stage = t.block_n * dv * t.element;
    l.terms_buffer = t.key_terms * t.block_n * 4;
    l.k = l.q + t.block_m * d * t.element;
    l.v = l.k + t.stages * l.k_stage;
    l.terms = l.v + t.stages * l.v_stage;
    l.state = l.terms + 2 * l.terms_buffer;
    return l;
}

ATTUNE_CUDA_LAYOUT attune_cuda_forward_sm80_layout attune_cuda_forward_sm80(attune_cuda_tile t)
{
    attune_cuda_forward_sm80_layout l = attune_cuda_operands_sm80(t);
    const unsigned o = t.block_m * attune_cuda_round_up(t.head_dim_v, ATTUNE_CUDA_PADDING) * t.element;
    l.size = attune_cuda_larger(l.state, o);
    return l;
}

/* The splits of a row that the kernel which combines them has on their way at once. */
#define ATTUNE_CUDA_COMBINED_AT_ONCE 16

/* The splits of a row that a cluster of CTAs combines: the largest size that is portable. */
#define ATTUNE_CUDA_CLUSTER_SPLITS 8

/* Whether decode's accumulators leave no registers for what a thread keeps across tiles. */
ATTUNE_CUDA_LAYOUT int attune_cuda_decode_sm80_saves_state(attune_cuda_tile t)
{
    return t.element == 4 && (attune_cuda_round_up(t.head_dim, ATTUNE_CUDA_PADDING) > 128 ||
                              attune_cuda_round_up(t.head_dim_v, ATTUNE_CUDA_PADDING) > 128);
}

ATTUNE_CUDA_LAYOUT attune_cuda_forward_sm80_layout attune_cuda_decode_sm80(attune_cuda_tile t)
{
    attune_cuda_forward_sm80_layout l = attune_cuda_operands_sm80(t);
    const unsigned groups = t.warps / (t.block_m / 16); /* warps that share rows */
    const unsigned state = attune_cuda_decode_sm80_saves_state(t) ? 32 * 32 * t.warps : 0;
    l.ml = groups * t.block_m * attune_cuda_round_up(t.head_dim_v, ATTUNE_CUDA_PADDING) * 4;
    l.size = attune_cuda_larger(l.state + state, l.ml + groups * t.block_m * 2 * 4);
    return l;
}

/*
 * Over a cache: as decode, and in the place of its state two words for each key of S + 1 tiles, and at the end the tile
 * of rows, which the epilogue keeps, or of a tile with rows of several sequences these too. Where no warp has registers
 * for 16 rows of O, those that share rows divide its columns instead, and exchange maxima[G][M] and P[M][N], in
 * float32, in shared memory; in float32 K and the widest V have one buffer.
 */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_serving_sm80_rows(attune_cuda_tile t)
{
    /* Each row may be that of another sequence: its lengths, and two bytes. */
    return ATTUNE_CUDA_SERVING_TILE + (t.shares ? 16 + t.block_m * (48 + 2) : 0);
}

ATTUNE_CUDA_LAYOUT int attune_cuda_serving_sm80_shares_p(attune_cuda_tile t)
{
    return t.head_dim_v > (t.element == 4 || t.k_factors ? 128 : 256);
}

ATTUNE_CUDA_LAYOUT int attune_cuda_serving_sm80_one_buffer(attune_cuda_tile t)
{
    return t.element == 4 && t.head_dim_v > 256;
}

/* The warps that share rows, and those of them that divide the keys of a tile by 16 or more. */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_serving_sm80_groups(attune_cuda_tile t)
{
    return t.warps / (t.block_m / 16);
}

ATTUNE_CUDA_LAYOUT unsigned attune_cuda_serving_sm80_key_groups(attune_cuda_tile t)
{
    const unsigned groups = attune_cuda_serving_sm80_groups(t);
    return groups < t.block_n / 16 ? groups : t.block_n / 16;
}

ATTUNE_CUDA_LAYOUT unsigned attune_cuda_serving_sm80_dv(attune_cuda_tile t)
{
    return attune_cuda_round_up(t.head_dim_v,
                                ATTUNE_CUDA_PADDING *
                                    (attune_cuda_serving_sm80_shares_p(t) ? attune_cuda_serving_sm80_groups(t) : 1));
}

/* With several stages, of keys that have more columns than values: these are a part of the keys, as a rule, and have no
 * memory of their own. Where they are not, a tile's replace its keys after S. */
ATTUNE_CUDA_LAYOUT int attune_cuda_serving_sm80_v_in_k(attune_cuda_tile t)
{
    const unsigned d = attune_cuda_round_up(t.head_dim, ATTUNE_CUDA_PADDING) * t.element,
                   dv = attune_cuda_serving_sm80_dv(t) * t.element;
    return t.stages > 1 && attune_cuda_serving_sm80_shares_p(t) && t.head_dim > t.head_dim_v && dv <= d &&
           d % 128 == 0 && dv % 128 == 0;
}

/* Floats of a row of P: 8 rows begin in different banks. */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_serving_sm80_p_pitch(attune_cuda_tile t)
{
    return t.block_n + 8;
}

ATTUNE_CUDA_LAYOUT attune_cuda_serving_sm80_layout attune_cuda_serving_sm80(attune_cuda_tile t)
{
    const int shares = attune_cuda_serving_sm80_shares_p(t);
    const unsigned d = attune_cuda_round_up(t.head_dim, ATTUNE_CUDA_PADDING), dv = attune_cuda_serving_sm80_dv(t);
    const unsigned groups = attune_cuda_serving_sm80_key_groups(t);
    attune_cuda_serving_sm80_layout l = {0};
    l.k_stage = t.block_n * d * t.element;
    l.v_stage = attune_cuda_serving_sm80_v_in_k(t) ? l.k_stage : t.block_n * dv * t.element;
    l.k = t.q_parts * t.block_m * d * t.element;
    l.v =
        attune_cuda_serving_sm80_one_buffer(t) || attune_cuda_serving_sm80_v_in_k(t) ? l.k : l.k + t.stages * l.k_stage;
    l.keys = attune_cuda_serving_sm80_one_buffer(t) ? l.k + attune_cuda_larger(l.k_stage, l.v_stage)
                                                    : l.v + t.stages * l.v_stage;
    /* With several stages the places of a key in K and in V, else its page and row. */
    l.k_factors = l.keys + (t.stages + 1) * t.block_n * (t.stages > 1 ? 16 : 8);
    l.v_factors = l.k_factors + t.block_n * t.k_factors * 4;
    l.maxima = l.v_factors + t.block_n * t.v_factors * 4;
    l.p = l.maxima + (shares ? groups * t.block_m * 4 : 0);
    l.ml = (shares ? 1 : groups) * t.block_m * dv * 4;
    l.rows = attune_cuda_larger(l.p + (shares ? t.block_m * attune_cuda_serving_sm80_p_pitch(t) * 4 : 0),
                                l.ml + groups * t.block_m * 2 * 4);
    l.size = l.rows + attune_cuda_serving_sm80_rows(t);
    return l;
}

/*
 * How a call over a cache is divided, by attune_schedule. Item i is part (i - item) % parts of tile (i - item) /
 * parts of its sequence, where the tiles of a sequence are [row tiles][kv_heads]. Of a tile in several parts, the CTA
 * that finishes last adds their results, in the order of the keys.
 */
typedef struct attune_cuda_scheduled {
    int item, parts;   /* its first item, the parts of each of its tiles */
    int slot, counter; /* the first ones of its tiles, if they have several parts */
} attune_cuda_scheduled;

/*
 * The same with ATTUNE_SHARES. An item of a sequence has rows of those after it, too, as far as their first parts that
 * items of others have include its part. Such sequences have one tile of rows for each head of keys, in which the
 * queries of all are one after another.
 */
typedef struct attune_cuda_shared_scheduled {
    int item, items;   /* its first item, those of each of its tiles */
    int slot, counter; /* as above */
    int parts, others; /* of each of its tiles; the first of them, which items of sequences before it have */
    int leader;        /* the sequence whose items have the last of these */
    int query0;        /* the queries in the tile before its own */
} attune_cuda_shared_scheduled;

/* Followed by a sequence's entry each and one for the end, and int32 counters [slots / 2], with ATTUNE_SHARES [slots],
 * zero between calls. */
typedef struct attune_cuda_schedule {
    int key, items;
    int part_keys; /* with ATTUNE_SHARES: parts begin at its multiples */
    int taken;     /* of the items past those that the CTAs begin with; 0 between calls */
} attune_cuda_schedule;

/* Keys whose time the store and the merge of a partial result take, about. */
#define ATTUNE_CUDA_MERGE_KEYS 32

/* The launch of attune_schedule: a CTA, and its shared memory. */
#define ATTUNE_CUDA_SCHEDULE_THREADS 256
#define ATTUNE_CUDA_SCHEDULE_SHARED  512
/* With several stages the entries of as many sequences are after it. */
#define ATTUNE_CUDA_SCHEDULE_HERE 1024
/* With ATTUNE_SHARES. */
#define ATTUNE_CUDA_SHARED_SCHEDULE_SHARED 7168

/* The keys of a tile's rows may be computed in parts, of at least this many keys, and at most this many. Their partial
 * results are float o[M][Dv] and then m and l [M][2] each; a multiple of 128 bytes. */
#define ATTUNE_CUDA_SERVING_PART_KEYS 256
/* With several stages, whose CTAs add parts in less time: */
#define ATTUNE_CUDA_SERVING_LEAST_KEYS 64
#define ATTUNE_CUDA_SERVING_PARTS      64

ATTUNE_CUDA_LAYOUT unsigned attune_cuda_serving_part_sm80(unsigned block_m, unsigned head_dim_v)
{
    return attune_cuda_round_up(block_m * (head_dim_v + 2) * 4, 128);
}

/* --------------------------------------------------------------------------------------------------------- backward */

/*
 * The outer tile, of BLOCK_N keys (K, V) or of BLOCK_M queries (Q, dO); S inner tiles of the other kind; in
 * backward_atomic_sm80 P and dS [N][M]; with an outer tile of keys LSE and delta of the queries of each inner tile; the
 * CTA's work item, with its block iterator; the descriptors of the following inner tiles.
 */
typedef struct attune_cuda_backward_sm80_layout {
    unsigned outer, outer_second;          /* the second operand of the outer tile: V or dO */
    unsigned inner, inner_second;          /* inner_second: in an inner tile, the second operand begins here */
    unsigned p, ds, row_data, work, descs; /* row_data: LSE and delta */
    unsigned inner_stage, row_data_stage;  /* of one stage */
    unsigned size;
} attune_cuda_backward_sm80_layout;

#define ATTUNE_CUDA_WORK_ITEM_BYTES 256

/* The ring of tile descriptors, of 16 bytes: a power of two, at least 3 more than the tiles that are prefetched. */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_backward_sm80_descs(unsigned stages)
{
    return stages > 6 ? 16 : stages > 2 ? 8 : 4;
}

/* The smallest tile of float32 reads its outer operands from global memory, so that wide heads fit a small shared
 * memory. */
ATTUNE_CUDA_LAYOUT int attune_cuda_backward_sm80_outer_direct(unsigned element, unsigned outer_rows)
{
    return element == 4 && outer_rows == 16;
}

ATTUNE_CUDA_LAYOUT attune_cuda_backward_sm80_layout attune_cuda_backward_regions_sm80(attune_cuda_tile t, int keys,
                                                                                      unsigned padding, unsigned p)
{
    const unsigned d = attune_cuda_round_up(t.head_dim, padding) * t.element,
                   dv = attune_cuda_round_up(t.head_dim_v, padding) * t.element;
    const unsigned outer = keys ? t.block_n : t.block_m, inner = keys ? t.block_m : t.block_n;
    attune_cuda_backward_sm80_layout l = {0};
    l.outer_second = outer * d;
    l.inner_second = inner * d;
    l.inner_stage = inner * (d + dv);
    l.row_data_stage = keys ? inner * 8 : 0;
    l.inner = attune_cuda_backward_sm80_outer_direct(t.element, outer) ? 0 : outer * (d + dv);
    l.p = l.inner + t.stages * l.inner_stage;
    l.ds = l.p + p;
    l.row_data = l.ds + p;
    l.work = l.row_data + t.stages * l.row_data_stage;
    l.descs = l.work + ATTUNE_CUDA_WORK_ITEM_BYTES;
    l.size = l.descs + attune_cuda_round_up(attune_cuda_backward_sm80_descs(t.stages) * 16, 128);
    return l;
}

/* backward_sm80. keys: the kernel of dK and dV, whose outer tile has keys; else that of dQ. */
ATTUNE_CUDA_LAYOUT attune_cuda_backward_sm80_layout attune_cuda_backward_sm80(attune_cuda_tile t, int keys)
{
    return attune_cuda_backward_regions_sm80(t, keys, ATTUNE_CUDA_PADDING, 0);
}

/* backward_atomic_sm80: a warp has 32 keys, and those with the same keys share the columns of each product. */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_backward_atomic_sm80_padding(unsigned block_n, unsigned warps)
{
    return ATTUNE_CUDA_PADDING * (32 * warps / block_n);
}

ATTUNE_CUDA_LAYOUT attune_cuda_backward_sm80_layout attune_cuda_backward_atomic_sm80(attune_cuda_tile t)
{
    return attune_cuda_backward_regions_sm80(t, 1, attune_cuda_backward_atomic_sm80_padding(t.block_n, t.warps),
                                             t.block_n * t.block_m * t.element);
}

/* attune_backward_dq_sm80: a tile [M][pitch] of 16-bit elements. Rows are padded by 16 bytes against bank conflicts. */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_backward_dq_sm80_pitch(attune_cuda_tile t)
{
    return attune_cuda_round_up(t.head_dim, attune_cuda_backward_atomic_sm80_padding(t.block_n, t.warps)) * 2 + 16;
}

ATTUNE_CUDA_LAYOUT unsigned attune_cuda_backward_dq_sm80(attune_cuda_tile t)
{
    return t.block_m * attune_cuda_backward_dq_sm80_pitch(t);
}

#endif
