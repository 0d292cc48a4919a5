/* SPDX-License-Identifier: MIT */
/* The arguments of attention kernels, in device memory, for GLSL (arguments.glsl) and C (src/vulkan/arguments.h). */
#ifndef ATTUNE_VULKAN_ARGUMENTS_BLOCK_H
#define ATTUNE_VULKAN_ARGUMENTS_BLOCK_H

#include "types.h"

/* Flags: of a tensor, every group of elements that a kernel moves at once is aligned. */
#define ATTUNE_VULKAN_ALIGNED_Q   1u
#define ATTUNE_VULKAN_ALIGNED_K   2u
#define ATTUNE_VULKAN_ALIGNED_V   4u
#define ATTUNE_VULKAN_ALIGNED_O   8u
#define ATTUNE_VULKAN_ALIGNED_D_O 16u
#define ATTUNE_VULKAN_ALIGNED_D_Q 32u
#define ATTUNE_VULKAN_ALIGNED_D_K 64u
#define ATTUNE_VULKAN_ALIGNED_D_V 128u
/* A merge follows: a row whose scores are all -inf keeps its O, 0 or NaN, which the merge then weighs. */
#define ATTUNE_VULKAN_IS_PARTIAL 256u

/* Work of a workgroup: parts of groups of four columns in combine.comp, rows in backward_delta.comp (of eight
 * invocations each), elements of a capture in backward_sums.comp; and the invocations that share the rows of a head in
 * backward_sinks.comp. */
#define ATTUNE_VULKAN_COMBINE_THREADS 64u
#define ATTUNE_VULKAN_DELTA_ROWS      8u
#define ATTUNE_VULKAN_SUMS_ELEMENTS   64u
#define ATTUNE_VULKAN_SINKS_THREADS   128u

/* Invocations of combine.comp that share the parts of a group of columns: two to four parts for each. */
#define ATTUNE_VULKAN_COMBINE_LANES(splits)                                                                            \
    ((splits) >= 32u ? 16u : (splits) >= 16u ? 8u : (splits) >= 8u ? 4u : (splits) >= 4u ? 2u : 1u)

/* A tensor [batch][head][row][contiguous]. Address 0: it is absent. */
ATTUNE_STRUCT(attune_vulkan_tensor)
{
    ATTUNE_ADDRESS address;
    ATTUNE_STRIDE stride_b, stride_h, stride_row; /* bytes */
};

ATTUNE_BLOCK(attune_vulkan_arguments)
{
    attune_vulkan_tensor q, k, v, o, lse, row_max;
    ATTUNE_ADDRESS mask_rows;             /* for each row of blocks an attune_vulkan_mask_row */
    ATTUNE_ADDRESS mask_mod, score_mod;   /* the expressions' tables: mods.glsl */
    ATTUNE_ADDRESS partials, partials_ml; /* of splits: O, and row maximum and sum */
    ATTUNE_ADDRESS sinks;                 /* f32 for each head; 0 = none */
    ATTUNE_STRIDE sinks_h;                /* bytes */
    ATTUNE_ADDRESS serving;               /* an attune_vulkan_serving; 0 = a dense call */
    ATTUNE_UINT batch, heads, kv_heads, q_len;
    ATTUNE_UINT kv_len, splits;
    ATTUNE_UINT mask_rows_b, mask_rows_h; /* rows of blocks from one batch or head to the next; 0 = broadcast */
    ATTUNE_UINT q_block, kv_block;        /* of the mask; without one the tile */
    ATTUNE_UINT inner_q_block;            /* backward: as kv_block, of the inner tiles of queries */
    ATTUNE_UINT head_step, q_step;        /* heads and queries of a tile */
    ATTUNE_UINT head_chunks, q_chunks;    /* tiles of a group of heads, and of the queries */
    ATTUNE_UINT in_block;                 /* tiles of a row of blocks */
    ATTUNE_UINT section; /* planes of keys whose tiles follow one another, those of the last rows first */
    ATTUNE_UINT flags;
    float scale;
    ATTUNE_UINT kv_batch;
    /* backward */
    attune_vulkan_tensor d_o, d_lse, d_q, d_k, d_v;
    ATTUNE_ADDRESS delta;        /* f32 [batch][heads][q_len] */
    ATTUNE_ADDRESS d_sinks;      /* f32 for each head */
    ATTUNE_STRIDE d_sinks_h;     /* bytes */
    ATTUNE_ADDRESS mask_columns; /* as mask_rows, of the transposed lists */
    ATTUNE_UINT mask_columns_b, mask_columns_h;
    ATTUNE_UINT pad0, pad1; /* no array of two, whose layout would be that of one in shared memory */
};

/* Of backward_sums.comp: the gradient of one capture, a float tensor. */
ATTUNE_BLOCK(attune_vulkan_sums)
{
    ATTUNE_ADDRESS sums, to;
    ATTUNE_UINT size[4];
    ATTUNE_STRIDE stride[4]; /* bytes */
    ATTUNE_UINT count;
    ATTUNE_UINT pad[3];
};

/* A row of blocks of an uploaded mask: where its entries are, `block << 1 | partial`, ascending. */
ATTUNE_STRUCT(attune_vulkan_mask_row)
{
    ATTUNE_ADDRESS address;
    ATTUNE_UINT count;
    ATTUNE_UINT pad;
};

#endif
