/* SPDX-License-Identifier: MIT */
/* The arguments of mask_lists.cl, by value, for OpenCL C and C. */
#ifndef ATTUNE_OPENCL_MASK_LISTS_H
#define ATTUNE_OPENCL_MASK_LISTS_H

#include "arguments.h"

#define ATTUNE_OPENCL_LISTS_THREADS 64

typedef struct attune_opencl_mask_lists {
    ATTUNE_LONG offset, stride_b, stride_h, stride_q, stride_kv; /* of the tensor, in bytes */
    /* Offsets in the mask's object: a word for each block; attune_opencl_mask_row of each row of blocks; their entries;
     * the same of columns. */
    ATTUNE_LONG classes, rows, entries, columns, column_entries;
    ATTUNE_UINT heads, q_len, kv_len, q_block, kv_block, q_blocks, kv_blocks;
    ATTUNE_UINT element; /* bytes: 1, 2 or 4 */
    ATTUNE_UINT forbidden, row_count;
    ATTUNE_UINT first; /* the number of a launch's first workgroup */
} attune_opencl_mask_lists;

#endif
