/* SPDX-License-Identifier: MIT */
/* The cache and the batch of a call of a plan with problem.tokens, in device memory, for GLSL (serving.glsl) and C
 * (src/vulkan/serving.c). */
#ifndef ATTUNE_VULKAN_SERVING_BLOCK_H
#define ATTUNE_VULKAN_SERVING_BLOCK_H

#include "arguments.h"

/* A tensor of i32 or f32: strides in bytes. One that is absent has the address of the block below, and no strides, so
 * that it may be read: Mesa 26 loads what all invocations load even under a condition that is false. */
ATTUNE_STRUCT(attune_vulkan_array)
{
    ATTUNE_ADDRESS address;
    ATTUNE_STRIDE stride[3];
};

ATTUNE_BLOCK(attune_vulkan_serving)
{
    attune_vulkan_array q_start, kv_len, kv_first, count; /* [batch + 1], [batch], [batch], [1] */
    attune_vulkan_array pages, pages_start;               /* [batch][entries], or [entries] with pages_start */
    attune_vulkan_array tree;                             /* [batch of q][rows][words] */
    attune_vulkan_array k_scale, v_scale;                 /* [pages][kv_heads][page] */
    attune_vulkan_array prefix;                           /* [batch]: attune_batch.shared */
    ATTUNE_UINT tokens;                                   /* rows of q, if it is packed */
    ATTUNE_UINT pool, page;                               /* pages, and keys of a page */
    ATTUNE_UINT entries;                                  /* of the block table: of a row, or of the list */
    ATTUNE_UINT tree_words;
    ATTUNE_UINT items, slots; /* of a schedule, at most: workgroups, and partial results */
    ATTUNE_UINT wanted;       /* items for which the keys of a call are divided */
    ATTUNE_ADDRESS schedule;  /* an attune_vulkan_schedule; that of this block = every workgroup has one tile */
    ATTUNE_UINT split_keys;   /* keys of a part; 0 = as the lengths have it */
    ATTUNE_UINT merges;       /* of a schedule, at most */
    ATTUNE_UINT shares;       /* items may have rows of several sequences */
    ATTUNE_UINT pad;
};

/*
 * The work of a batch, which serving_schedule.comp divides: workgroups compute items, and then merge the tiles that
 * have several. A uvec4 for each follows:
 *
 *     items[serving.items]        tile, part, slot of the partial result, sequences
 *     merges[serving.merges]      tile, parts, first slot, 0
 *     links[serving.merges]       parts of others, the merge that has the last of them + 1, first query, 0
 *     lengths[batch][2]           of serving_schedule.comp
 *
 * A tile is numbered as in tiles.glsl, without splits. Part i has the keys from i * part_keys on. Sequences that share
 * keys, one after another, whose queries one tile has room for, are numbered as its queries. An item has the queries of
 * the sequence of its tile, and of those after it that share the keys of the part. In links, of a tile the parts that
 * items of sequences before it have: those before its first slot. Links and lengths are there with serving.shares.
 */
ATTUNE_BLOCK(attune_vulkan_schedule)
{
    ATTUNE_UINT items, merges, part_keys, pad;
};

/* The slot of an item that has all keys of its tile. */
#define ATTUNE_VULKAN_NO_SLOT 0xffffffffu

/* Invocations of serving_schedule.comp and of serving_combine.comp. */
#define ATTUNE_VULKAN_SCHEDULE_THREADS 128u
/* Shorter parts would read their rows of Q and write partial results for too few keys. */
#define ATTUNE_VULKAN_PART_KEYS 256u
/* Storing and merging a partial result takes about the time of so many keys of an item. */
#define ATTUNE_VULKAN_MERGE_KEYS 32u

#endif
