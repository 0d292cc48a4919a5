/* SPDX-License-Identifier: MIT */
/*
 * What the host hands to merge.cu, as cuda/arguments.h does for attention: entry points attune_merge and
 * attune_merge_backward take one attune_cuda_merge by value. A grid of ceil(rows / ATTUNE_CUDA_MERGE_ROWS) blocks of
 * ATTUNE_CUDA_MERGE_THREADS threads; a warp has a row.
 */
#ifndef ATTUNE_CUDA_MERGE_H
#define ATTUNE_CUDA_MERGE_H

#define ATTUNE_CUDA_MERGE_THREADS 128
#define ATTUNE_CUDA_MERGE_ROWS    4
#define ATTUNE_CUDA_MERGE_PARTS   8

/* A tensor [batch][head][row][contiguous]; strides in bytes. An LSE has no last dimension and is float. */
typedef struct attune_cuda_merge_view {
    unsigned long long address; /* 0 = there is none */
    long long batch, head, row;
    int dtype; /* 1 f16, 2 bf16, 3 f32 */
    int pair;  /* whether two elements from an even column on can be moved at once */
} attune_cuda_merge_view;

typedef struct attune_cuda_merge_part {
    attune_cuda_merge_view o, lse, d_o, d_lse;
} attune_cuda_merge_part;

typedef struct attune_cuda_merge {
    attune_cuda_merge_view o, lse, d_o, d_lse;
    long long rows;
    int heads, q_len, columns, part_count;
    int weighted; /* 0: o is the plain sum of the parts' o */
    int pad;
    attune_cuda_merge_part parts[ATTUNE_CUDA_MERGE_PARTS];
} attune_cuda_merge;

typedef char attune_cuda_merge_fits[sizeof(attune_cuda_merge) <= 4096 ? 1 : -1];

#endif
