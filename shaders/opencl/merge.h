/* SPDX-License-Identifier: MIT */
/* The arguments of merge.cl, in device memory, for OpenCL C and C. */
#ifndef ATTUNE_OPENCL_MERGE_H
#define ATTUNE_OPENCL_MERGE_H

#include "arguments.h"

#define ATTUNE_OPENCL_MERGE_PARTS   8
#define ATTUNE_OPENCL_MERGE_THREADS 64

/* A tensor [batch][head][row][contiguous]. */
typedef struct attune_opencl_merge_view {
    ATTUNE_LONG offset, stride_b, stride_h, stride_row; /* bytes */
    ATTUNE_UINT type;                                   /* of its elements, as in elements.h */
    ATTUNE_UINT present;
} attune_opencl_merge_view;

typedef struct attune_opencl_merge_part {
    attune_opencl_merge_view o, lse, d_o, d_lse;
} attune_opencl_merge_part;

typedef struct attune_opencl_merge {
    attune_opencl_merge_view o, lse, d_o, d_lse;
    ATTUNE_UINT heads, q_len, columns, part_count;
    ATTUNE_UINT weighted; /* 0: o is the plain sum of the parts' o */
    ATTUNE_UINT strict;   /* parts whose weight is 0 are read too, so that their NaN shows */
    ATTUNE_UINT partial;  /* another merge follows: o of a fully masked row stays 0 or NaN */
    ATTUNE_UINT pad;
    attune_opencl_merge_part parts[ATTUNE_OPENCL_MERGE_PARTS];
} attune_opencl_merge;

#endif
