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
    uint32_t most_steps;             /* of keys, that the driver lets a workgroup walk; 0 = no bound */
} attune__vulkan_program;

typedef struct attune__vulkan_mask {
    attune__device_mask base;
    attune_buffer *buffer;
    uint64_t rows, mod; /* addresses */
    uint32_t longest;   /* blocks in one row, at most */
} attune__vulkan_mask;

/* What a choice is compiled as: a prebuilt module and its specialization constants, which are numbered from 0. */
#define ATTUNE__VULKAN_CONSTANTS 34 /* of shaders/forward_registers.comp; the others have fewer */

typedef struct attune__vulkan_kernel {
    const uint32_t *words;
    size_t word_count;
    bool subgroups; /* their size is required */
    uint32_t constants[ATTUNE__VULKAN_CONSTANTS];
} attune__vulkan_kernel;

/* UNSUPPORTED if the library has no module for the choice's kernel. */
attune_status attune__vulkan_specialise(const attune_limits *limits, const attune__program_desc *desc,
                                        attune__vulkan_kernel *kernel);

#endif
