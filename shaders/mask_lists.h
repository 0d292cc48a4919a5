/* SPDX-License-Identifier: MIT */
/* The arguments of mask_lists.comp, for GLSL and C. */
#ifndef ATTUNE_VULKAN_MASK_LISTS_H
#define ATTUNE_VULKAN_MASK_LISTS_H

#include "arguments.h"

ATTUNE_BLOCK(attune_vulkan_mask_lists)
{
    ATTUNE_ADDRESS tensor;
    ATTUNE_STRIDE stride_b, stride_h, stride_q, stride_kv; /* bytes */
    ATTUNE_ADDRESS classes;                                /* a word for each block */
    ATTUNE_ADDRESS rows, entries;           /* attune_vulkan_mask_row of each row of blocks; their entries */
    ATTUNE_ADDRESS columns, column_entries; /* the same of columns */
    ATTUNE_UINT heads, q_len, kv_len, q_block, kv_block, q_blocks, kv_blocks;
    ATTUNE_UINT element; /* bytes: 1, 2 or 4 */
    ATTUNE_UINT forbidden, row_count;
};

#endif
