/* SPDX-License-Identifier: MIT */
/* What launches work with: programs and uploaded masks. */
#ifndef ATTUNE_VULKAN_LAUNCH_H
#define ATTUNE_VULKAN_LAUNCH_H

#include "vulkan/arguments.h"
#include "vulkan/vulkan.h"

typedef struct attune__vulkan_program {
    attune__program base;
    attune__shape shape;
    attune_plan_choice choice;
    const attune_expr *score;
    attune__vulkan_pipeline forward;
    attune__vulkan_pipeline aligned; /* for calls whose tensors are; handle VK_NULL_HANDLE: forward serves them */
    attune__vulkan_pipeline combine; /* handle VK_NULL_HANDLE: no splits */
} attune__vulkan_program;

typedef struct attune__vulkan_mask {
    attune__device_mask base;
    attune_buffer *buffer;
    uint64_t rows, mod; /* addresses */
} attune__vulkan_mask;

#endif
