/* SPDX-License-Identifier: MIT */
/*
 * The arguments of attention kernels, passed by value, for OpenCL C and C (src/opencl/arguments.h). A tensor is a
 * memory object, and in it an offset and strides. All are in bytes, 64-bit.
 */
#ifndef ATTUNE_OPENCL_ARGUMENTS_H
#define ATTUNE_OPENCL_ARGUMENTS_H

#ifdef __OPENCL_C_VERSION__ /* every OpenCL C since 1.2 */
#define ATTUNE_UINT uint
#define ATTUNE_INT  int
#define ATTUNE_LONG long
#else
#include <stdint.h>
#define ATTUNE_UINT uint32_t
#define ATTUNE_INT  int32_t
#define ATTUNE_LONG int64_t
#endif

/* Flags: of a tensor, every group of elements that a kernel moves at once is aligned. */
#define ATTUNE_OPENCL_ALIGNED_Q   1u
#define ATTUNE_OPENCL_ALIGNED_K   2u
#define ATTUNE_OPENCL_ALIGNED_V   4u
#define ATTUNE_OPENCL_ALIGNED_O   8u
#define ATTUNE_OPENCL_ALIGNED_D_O 16u
#define ATTUNE_OPENCL_ALIGNED_D_Q 32u
#define ATTUNE_OPENCL_ALIGNED_D_K 64u
#define ATTUNE_OPENCL_ALIGNED_D_V 128u
/* A merge follows: a row whose scores are all -inf keeps its O, 0 or NaN, which the merge then weighs. */
#define ATTUNE_OPENCL_IS_PARTIAL 256u
/* Tensors that a call may leave out. Their pointer is then that of another object, which is not accessed. */
#define ATTUNE_OPENCL_HAS_LSE     512u
#define ATTUNE_OPENCL_HAS_ROW_MAX 1024u
#define ATTUNE_OPENCL_HAS_D_LSE   2048u
#define ATTUNE_OPENCL_HAS_SINKS   4096u

/* Rows of a workgroup of backward_delta.cl, and its work-items; elements of one of backward_sums.cl. */
#define ATTUNE_OPENCL_DELTA_ROWS    8u
#define ATTUNE_OPENCL_DELTA_THREADS 64u
#define ATTUNE_OPENCL_SUMS_ELEMENTS 64u

/* A tensor [batch][head][row][contiguous]. */
typedef struct attune_opencl_tensor {
    ATTUNE_LONG offset, stride_b, stride_h, stride_row;
} attune_opencl_tensor;

typedef struct attune_opencl_arguments {
    attune_opencl_tensor q, k, v, o, lse, row_max;
    /* backward */
    attune_opencl_tensor d_o, d_lse, d_q, d_k, d_v;
    /* Offsets in the mask's object: for each row (column) of blocks an attune_opencl_mask_row; the expression's table.
     */
    ATTUNE_LONG mask_rows, mask_columns, mask_table;
    /* Offsets in the workspace: the table of the score expression; of splits O, and row maximum and sum; in backward an
     * f32 [batch][heads][q_len]. Over a cache the rows of partial results are those of a slot's tile. */
    ATTUNE_LONG score_table, partials, partials_ml, delta;
    /* The logit of each head that is in the denominator alone. In a call over a cache: the attune_opencl_serving in the
     * workspace. */
    ATTUNE_LONG sinks, sinks_h, serving;
    ATTUNE_LONG d_sinks, d_sinks_h; /* backward: their gradient */
    ATTUNE_UINT batch, kv_batch, heads, kv_heads, q_len, kv_len;
    ATTUNE_UINT splits;
    ATTUNE_UINT mask_rows_b, mask_rows_h; /* rows of blocks from one batch or head to the next; 0 = broadcast */
    ATTUNE_UINT mask_columns_b, mask_columns_h;
    ATTUNE_UINT q_block, kv_block;     /* of the mask; without one the tile */
    ATTUNE_UINT inner_q_block;         /* backward: as kv_block, of the inner tiles of queries */
    ATTUNE_UINT head_step, q_step;     /* heads and queries of a tile */
    ATTUNE_UINT head_chunks, q_chunks; /* tiles of a group of heads, and of the queries */
    ATTUNE_UINT in_block;              /* tiles of a row of blocks */
    ATTUNE_UINT section;               /* planes of keys whose tiles follow one another, those of the last rows first */
    ATTUNE_UINT flags;
    ATTUNE_UINT first; /* the number of a launch's first workgroup: long calls are several launches */
    float scale;
} attune_opencl_arguments;

/* A row of blocks of an uploaded mask: where its entries are, `block << 1 | partial`, ascending. */
typedef struct attune_opencl_mask_row {
    ATTUNE_LONG offset;
    ATTUNE_UINT count;
    ATTUNE_UINT pad;
} attune_opencl_mask_row;

/* A capture of an expression: of a mask it is in the mask's object, or in that of the tensor that the mask is computed
 * from; of a score in its own. */
typedef struct attune_opencl_capture {
    ATTUNE_LONG offset;
    ATTUNE_LONG sums; /* backward: of its gradient, in the workspace; -1 = not requested */
    ATTUNE_LONG stride[4];
    ATTUNE_UINT size[4];
} attune_opencl_capture;

/* Of backward_sums.cl: the gradient of one capture, a float tensor. */
typedef struct attune_opencl_sums {
    ATTUNE_LONG sums, to; /* offsets in the workspace and in the tensor's object */
    ATTUNE_LONG stride[4];
    ATTUNE_UINT size[4];
    ATTUNE_UINT count, first;
} attune_opencl_sums;

#define ATTUNE_OPENCL_SYMBOLS 16 /* ATTUNE_EXPR_MAX_SYMBOLS */

/* The inputs of an expression's function, by symbol. */
typedef struct attune_opencl_table {
    ATTUNE_INT q_len, kv_len, group; /* group: heads for each key head */
    ATTUNE_INT b0, h0, q0;           /* added to the indices of a pair */
    ATTUNE_INT parameters[ATTUNE_OPENCL_SYMBOLS];
    attune_opencl_capture captures[ATTUNE_OPENCL_SYMBOLS];
} attune_opencl_table;

/* Arrays of a cache and a batch that a call may leave out. */
#define ATTUNE_OPENCL_HAS_Q_START     1u
#define ATTUNE_OPENCL_HAS_KV_FIRST    2u
#define ATTUNE_OPENCL_HAS_COUNT       4u
#define ATTUNE_OPENCL_HAS_PAGES       8u
#define ATTUNE_OPENCL_HAS_PAGES_START 16u
#define ATTUNE_OPENCL_HAS_TREE        32u
#define ATTUNE_OPENCL_HAS_K_SCALE     64u
#define ATTUNE_OPENCL_HAS_V_SCALE     128u
#define ATTUNE_OPENCL_HAS_SHARED      256u

/* A tensor of i32 or f32. */
typedef struct attune_opencl_array {
    ATTUNE_LONG offset, stride[3];
} attune_opencl_array;

/* The cache and the batch of a call of a plan with problem.tokens. */
typedef struct attune_opencl_cache {
    attune_opencl_array q_start, kv_len, kv_first, count; /* [batch + 1], [batch], [batch], [1] */
    attune_opencl_array shared;                           /* [batch] */
    attune_opencl_array pages, pages_start;               /* [batch][entries], or [entries] with pages_start */
    attune_opencl_array tree;                             /* [batch of q][rows][words] */
    attune_opencl_array k_scale, v_scale;                 /* [pages][kv_heads][page] */
    ATTUNE_UINT tokens;                                   /* rows of q, if it is packed */
    ATTUNE_UINT pool, page;                               /* pages, and keys of a page */
    ATTUNE_UINT entries;                                  /* of the block table: of a row, or of the list */
    ATTUNE_UINT tree_words, has;
} attune_opencl_cache;

/*
 * The work of a batch, which schedule.cl divides: workgroups compute items, and others merge the tiles that have
 * several. A schedule is uint4s:
 *
 *     header                items, merges, keys of a part, 0
 *     items[items]          tile, part, slot of the partial result, sequences
 *     merges[merges]        tile, parts, first slot, 0
 *     links[merges]         parts of others, the merge that has the last of them + 1, first query, 0
 *     lengths[batch][2]     of schedule.cl
 *
 * A tile is numbered as in tiles.h, without splits. Part i has the keys from i times those of a part on. Sequences that
 * share keys, one after another, whose queries one tile has room for, are numbered as its queries. An item has the
 * queries of the sequence of its tile, and of those after it that share the keys of the part. In links, of a tile the
 * parts that items of sequences before it have: those before its first slot. Links and lengths are there with `shares`.
 */
typedef struct attune_opencl_parts {
    ATTUNE_LONG schedule;     /* its offset in an object of its own */
    ATTUNE_UINT items, slots; /* at most: workgroups, and partial results; 0 items: every workgroup has one tile */
    ATTUNE_UINT wanted;       /* items for which the keys of a call are divided */
    ATTUNE_UINT split_keys;   /* keys of a part; 0 = as the lengths have it */
    ATTUNE_UINT merges;       /* at most */
    ATTUNE_UINT shares;       /* whether items have rows of several sequences */
} attune_opencl_parts;

/* The slot of an item that has all keys of its tile. */
#define ATTUNE_OPENCL_NO_SLOT 0xffffffffu
/* Shorter parts would be mostly the reading of Q and the merge. */
#define ATTUNE_OPENCL_PART_KEYS 256u
/* Storing and merging a partial result takes about the time of so many keys of an item. */
#define ATTUNE_OPENCL_MERGE_KEYS 32u

/* The cache of a call, what its expressions read, and its parts. */
typedef struct attune_opencl_serving {
    attune_opencl_cache cache;
    attune_opencl_parts parts;
    attune_opencl_table mask, score;
} attune_opencl_serving;

#endif
