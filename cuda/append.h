/* SPDX-License-Identifier: MIT */
/* Shared by append.cu and src/cuda/append.c. Launch: a grid of rows * ctas, of ATTUNE_CUDA_APPEND_THREADS threads and
 * attune_cuda_append_shared bytes of shared memory. */
#ifndef ATTUNE_CUDA_APPEND_H
#define ATTUNE_CUDA_APPEND_H

#include "arguments.h"
#include "layout.h"

/* New rows of a cache, besides attune_cuda_serving, whose tokens are the rows. Views as in arguments.h; strides of
 * block types count blocks. Address 0 = absent. */
typedef struct attune_cuda_append {
    attune_cuda_view q, k, v, q_out;    /* [batch][head][row] */
    attune_cuda_view cache_k, cache_v;  /* [pages][kv_heads][page] */
    attune_cuda_array slots, positions; /* int64 and int32 [batch][rows] */
    attune_cuda_array q_norm, k_norm;   /* weights of the first columns, float or of the type of rows */
    attune_cuda_array cosine, sine;     /* float [positions][pairs] */
    long long pool, page;               /* pages, and keys of a page */
    long long table_positions;          /* of cosine and sine */
    int batch, heads, kv_heads;         /* batch: of the lengths */
    int q_len, kv_len;                  /* the most rows and keys of a sequence */
    int rows;                           /* of a batch of the tensors */
    int ctas;                           /* of a row, which divide its heads */
    int whole;                          /* there are no lengths: every row is there */
    int q_norm_columns, k_norm_columns;
    int q_norm_f32, k_norm_f32;           /* weights are float */
    int pairs, rotary_first, interleaved; /* of the rotation */
    int k_scale_rows, v_scale_rows;       /* each row's factor is computed and written */
    float epsilon;
} attune_cuda_append;

#define ATTUNE_CUDA_APPEND_THREADS 128

/* A row of the most columns for each warp, and what it found. */
ATTUNE_CUDA_LAYOUT unsigned attune_cuda_append_shared(unsigned head_dim, unsigned head_dim_v)
{
    return ATTUNE_CUDA_APPEND_THREADS / 32 * 4 * (attune_cuda_larger(head_dim, head_dim_v) + 1);
}

#endif
