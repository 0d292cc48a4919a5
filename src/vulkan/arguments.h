/* SPDX-License-Identifier: MIT */
/* The arguments of attention kernels (shaders/arguments.h): described for a call, and recorded into its workspace. */
#ifndef ATTUNE_VULKAN_ARGUMENTS_H
#define ATTUNE_VULKAN_ARGUMENTS_H

#include "plan/family_shaders.h"
#include "plan/partition.h"
#include "shaders/arguments.h"
#include "shaders/serving.h"
#include "vulkan/vulkan.h"

typedef struct attune__vulkan_push {
    ATTUNE_PUSH_LAUNCH
} attune__vulkan_push;

uint64_t attune__vulkan_tensor_address(const attune_tensor *tensor); /* 0 = none */

/* Describes a tensor, and sets the flag if every group of elements in it begins at a multiple of `alignment`. */
attune_vulkan_tensor attune__vulkan_tensor_describe(const attune_tensor *tensor, uint64_t alignment, uint32_t flag,
                                                    uint32_t *flags);

/* The tensors, lengths and mask of a call; `o_alignment` is that of the groups of o. Without a mask the blocks are of
 * kv_block keys and inner_q_block queries. */
void attune__vulkan_arguments_describe(const attune__forward *call, uint64_t o_alignment, uint32_t kv_block,
                                       uint32_t inner_q_block, attune_vulkan_arguments *arguments);
/* The tiles of queries. */
void attune__vulkan_arguments_partition(const attune__partition *partition, attune_vulkan_arguments *arguments);

/* UNSUPPORTED: the call has more tiles or partial results than the kernels count. */
attune_status attune__vulkan_counts_check(const attune__forward *call, uint64_t tiles, uint32_t block_m,
                                          uint32_t splits);
/* The gradient of the capture `name`, whose exact sums are at an address. UNSUPPORTED: it has 2^32 elements or more. */
attune_status attune__vulkan_sums_describe(const attune_tensor *out, const char *name, uint64_t sums,
                                           attune_vulkan_sums *described);

/* serving.c: what a call over a cache has besides, for the block that will be at an address. */
attune_vulkan_array attune__vulkan_array_describe(const attune_tensor *tensor, uint64_t absent);
void attune__vulkan_serving_describe(const attune__forward *call, uint64_t address, attune_vulkan_serving *serving);
/* schedule.c: its schedule. */
void attune__vulkan_schedule_describe(const attune__shape *shape, const attune__shaders_parts *parts, uint64_t schedule,
                                      attune_vulkan_arguments *arguments, attune_vulkan_serving *serving);

/* All that a call's kernels read at `offset` of a buffer, in this order: the arguments, the table of the score
 * expression, that of the mask and the sequences of a call over a cache, the sums of capture gradients. */
typedef struct attune__vulkan_arguments_block {
    const attune__forward *call;
    const attune_expr *score;             /* NULL = none */
    const attune_expr *mask;              /* of a call over a cache; NULL = none */
    const attune_vulkan_serving *serving; /* NULL = a dense call */
    const attune_vulkan_arguments *arguments;
    const attune_vulkan_sums *sums;
    uint32_t sum_count;
    const uint64_t *sum_addresses; /* by symbol; 0 = not requested. NULL = none is */
    const attune_buffer *buffer;
    uint64_t offset;
} attune__vulkan_arguments_block;

/* After a barrier on earlier commands, since successive calls share a workspace. A barrier must follow. */
void attune__vulkan_arguments_record(const attune__vulkan_arguments_block *block, const attune__vulkan_device *device,
                                     VkCommandBuffer commands);

#endif
