/* SPDX-License-Identifier: MIT */
/*
 * Arguments of mask_lists.cu: three entry points that take one attune_cuda_mask_lists by value and run in this order on
 * a stream.
 *
 *     attune_mask_classify   a CTA of ATTUNE_CUDA_MASK_THREADS for each block of the tensor
 *     attune_mask_offsets    a CTA of ATTUNE_CUDA_MASK_SCAN for each of the four lists
 *     attune_mask_indices    a warp for each row of blocks and each column, ATTUNE_CUDA_MASK_THREADS in a CTA
 */
#ifndef ATTUNE_CUDA_MASK_LISTS_H
#define ATTUNE_CUDA_MASK_LISTS_H

#define ATTUNE_CUDA_MASK_THREADS 256
#define ATTUNE_CUDA_MASK_SCAN    1024

/* Bits of a list's index: full or partial blocks, lists of columns or of rows. */
#define ATTUNE_CUDA_MASK_FULL    1
#define ATTUNE_CUDA_MASK_COLUMNS 2
#define ATTUNE_CUDA_MASK_LISTS   4

typedef struct attune_cuda_mask_lists {
    unsigned long long tensor;
    long long stride[4];        /* elements: batch, head, q, kv */
    unsigned long long classes; /* a byte for each block: 0 empty, 1 partial, 2 full */
    unsigned long long offsets[ATTUNE_CUDA_MASK_LISTS], indices[ATTUNE_CUDA_MASK_LISTS];
    int planes, heads; /* planes that are stored: batch times heads */
    int q_len, kv_len, q_block, kv_block, q_blocks, kv_blocks;
    int element;        /* bytes of an element: 1, 2 or 4 */
    unsigned forbidden; /* the bit pattern of an element that forbids its pair */
} attune_cuda_mask_lists;

#endif
