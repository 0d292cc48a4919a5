/* SPDX-License-Identifier: MIT */
/* shaders/arguments.glsl in C: the arguments of a launch. */
#ifndef ATTUNE_VULKAN_ARGUMENTS_H
#define ATTUNE_VULKAN_ARGUMENTS_H

#include <stdint.h>

typedef struct attune__vulkan_tensor {
    uint64_t address;
    int64_t stride_b, stride_h, stride_row; /* bytes */
} attune__vulkan_tensor;

#define ATTUNE__VULKAN_ALIGNED_Q   UINT32_C(1)
#define ATTUNE__VULKAN_ALIGNED_K   UINT32_C(2)
#define ATTUNE__VULKAN_ALIGNED_V   UINT32_C(4)
#define ATTUNE__VULKAN_ALIGNED_O   UINT32_C(8)
#define ATTUNE__VULKAN_ALIGNED_D_O UINT32_C(16)
#define ATTUNE__VULKAN_ALIGNED_D_Q UINT32_C(32)
#define ATTUNE__VULKAN_ALIGNED_D_K UINT32_C(64)
#define ATTUNE__VULKAN_ALIGNED_D_V UINT32_C(128)
#define ATTUNE__VULKAN_IS_PARTIAL  UINT32_C(256)

typedef struct attune__vulkan_arguments {
    attune__vulkan_tensor q, k, v, o, lse, row_max;
    uint64_t mask_rows;
    uint64_t mask_mod, score_mod;
    uint64_t partials, partials_ml;
    uint32_t batch, heads, kv_heads, q_len;
    uint32_t kv_len, splits;
    uint32_t mask_rows_b, mask_rows_h;
    uint32_t q_block, kv_block;
    uint32_t head_step, q_step;
    uint32_t head_chunks, q_chunks, in_block;
    uint32_t flags;
    float scale;
    uint32_t kv_batch;
    attune__vulkan_tensor d_o, d_lse, d_q, d_k, d_v;
    uint64_t delta;
    uint64_t mask_columns;
    uint32_t mask_columns_b, mask_columns_h;
    uint32_t inner_q_block;
    uint32_t pad;
} attune__vulkan_arguments;

_Static_assert(sizeof(attune__vulkan_arguments) == 11 * 32 + 7 * 8 + 22 * 4, "as std430 lays it out");

/* Of shaders/backward_sums.comp: the gradient of one capture. */
typedef struct attune__vulkan_sums {
    uint64_t sums, to;
    uint32_t size[4];
    int64_t stride[4]; /* bytes */
    uint32_t count;
    uint32_t pad[3];
} attune__vulkan_sums;

/* One row of blocks of an uploaded mask: where its entries are, `block << 1 | partial`, ascending. */
typedef struct attune__vulkan_mask_row {
    uint64_t address;
    uint32_t count;
    uint32_t pad;
} attune__vulkan_mask_row;

typedef struct attune__vulkan_push {
    uint64_t arguments;
    uint32_t first;
} attune__vulkan_push;

#endif
