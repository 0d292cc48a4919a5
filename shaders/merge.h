/* SPDX-License-Identifier: MIT */
/* The arguments of merge.comp, for GLSL and C. */
#ifndef ATTUNE_VULKAN_MERGE_H
#define ATTUNE_VULKAN_MERGE_H

#include "types.h"

#define ATTUNE_VULKAN_MERGE_PARTS 8

/* A tensor [batch][head][row][contiguous]. */
ATTUNE_STRUCT(attune_vulkan_merge_view)
{
    ATTUNE_ADDRESS address;                       /* 0 = absent */
    ATTUNE_STRIDE stride_b, stride_h, stride_row; /* bytes */
    ATTUNE_UINT is_f32;                           /* elements of f32, not of the module's type */
    ATTUNE_UINT pad;
};

ATTUNE_STRUCT(attune_vulkan_merge_part)
{
    attune_vulkan_merge_view o, lse, d_o, d_lse;
};

ATTUNE_BLOCK(attune_vulkan_merge)
{
    attune_vulkan_merge_view o, lse, d_o, d_lse;
    ATTUNE_UINT heads, q_len, columns, part_count;
    ATTUNE_UINT weighted; /* 0: o is the plain sum of the parts' o */
    ATTUNE_UINT backward;
    ATTUNE_UINT strict;  /* parts whose weight is 0 are read too, so that their NaN shows */
    ATTUNE_UINT partial; /* another merge follows: o of a fully masked row stays 0 or NaN */
    attune_vulkan_merge_part parts[ATTUNE_VULKAN_MERGE_PARTS];
};

#endif
