/* SPDX-License-Identifier: MIT */
/* The arguments of append.comp, for GLSL and C. */
#ifndef ATTUNE_VULKAN_APPEND_H
#define ATTUNE_VULKAN_APPEND_H

#include "arguments.h"
#include "serving.h"

ATTUNE_BLOCK(attune_vulkan_append)
{
    attune_vulkan_tensor q, k, v, q_out;   /* rows of the call; q and v may be absent */
    attune_vulkan_tensor cache_k, cache_v; /* [pages][kv_heads][page] */
    attune_vulkan_array slots, positions;  /* of rows; likewise absent as in attune_vulkan_serving */
    attune_vulkan_array q_norm, k_norm;    /* weights of the first columns */
    attune_vulkan_array cosine, sine;      /* [positions][pairs] */
    ATTUNE_ADDRESS serving;
    ATTUNE_UINT batch, heads, kv_heads;
    ATTUNE_UINT q_len, kv_len; /* the most rows and keys of a sequence */
    ATTUNE_UINT rows;          /* of a batch of the tensors */
    ATTUNE_UINT workgroups;    /* of a row, which share its heads */
    ATTUNE_UINT whole;         /* no batch: every row is there */
    ATTUNE_UINT q_norm_columns, k_norm_columns;
    ATTUNE_UINT q_norm_f32, k_norm_f32; /* weights are f32, not of the type of rows */
    ATTUNE_UINT positions_count, pairs;
    ATTUNE_UINT rotary_first, interleaved;
    ATTUNE_UINT k_scale_rows, v_scale_rows; /* each row's factor is computed and written */
    float epsilon;
    ATTUNE_UINT pad[3];
};

#endif
