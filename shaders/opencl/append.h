/* SPDX-License-Identifier: MIT */
/* The arguments of append.cl, passed by value, for OpenCL C and C. */
#ifndef ATTUNE_OPENCL_APPEND_H
#define ATTUNE_OPENCL_APPEND_H

#include "arguments.h"

/* Flags: the tensors of a call, and how its numbers are laid out. */
#define ATTUNE_OPENCL_APPEND_Q            1u
#define ATTUNE_OPENCL_APPEND_V            2u
#define ATTUNE_OPENCL_APPEND_SLOTS        4u
#define ATTUNE_OPENCL_APPEND_POSITIONS    8u
#define ATTUNE_OPENCL_APPEND_ROTATES      16u
#define ATTUNE_OPENCL_APPEND_INTERLEAVED  32u
#define ATTUNE_OPENCL_APPEND_K_SCALE_ROWS 64u /* each row's factor is computed and written */
#define ATTUNE_OPENCL_APPEND_V_SCALE_ROWS 128u

/* Columns of a head at most. */
#define ATTUNE_OPENCL_APPEND_COLUMNS 576u

/* A tensor of at most two dimensions, in bytes. */
typedef struct attune_opencl_rows {
    ATTUNE_LONG offset, stride[2];
} attune_opencl_rows;

/* Weights of the first columns; type: as in elements.h. */
typedef struct attune_opencl_norm {
    ATTUNE_LONG offset, stride;
    ATTUNE_UINT columns, type;
} attune_opencl_norm;

typedef struct attune_opencl_append {
    attune_opencl_tensor q, k, v, q_out;   /* rows of the call */
    attune_opencl_tensor cache_k, cache_v; /* [pages][kv_heads][page] */
    attune_opencl_rows slots, positions;   /* of rows */
    attune_opencl_rows cosine, sine;       /* [positions][pairs] */
    attune_opencl_norm q_norm, k_norm;
    attune_opencl_cache cache;
    ATTUNE_UINT flags, first;     /* first: the number of a launch's first workgroup */
    ATTUNE_UINT batch;            /* 0: there is none, and every row is there */
    ATTUNE_UINT heads, kv_heads;  /* heads: of q, 0 without it */
    ATTUNE_UINT q_len, kv_len;    /* the most rows and keys of a sequence */
    ATTUNE_UINT rows, workgroups; /* of a batch of the tensors; of a row, which share its heads */
    ATTUNE_UINT columns_k, columns_v;
    ATTUNE_UINT type, k_type, v_type; /* of rows, and of the cache */
    ATTUNE_UINT positions_count, pairs, rotary_first;
    float epsilon;
} attune_opencl_append;

#endif
