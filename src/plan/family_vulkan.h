/* SPDX-License-Identifier: MIT */
/* Shared by Vulkan's families. */
#ifndef ATTUNE_PLAN_FAMILY_VULKAN_H
#define ATTUNE_PLAN_FAMILY_VULKAN_H

#include "plan/family_shaders.h"

/* The backward pass on cooperative matrices; clamp chooses the subgroups. */
const attune__tile *attune__vulkan_matrix_backward_tiles(const attune__search *search, uint32_t *count);
void attune__vulkan_matrix_backward_clamp(const attune__search *search, attune__tile *tile);
const char *attune__vulkan_matrix_backward_reject(const attune__search *search, const attune__tile *tile,
                                                  attune__option *option);
uint64_t attune__vulkan_matrix_backward_shared(const attune__search *search, const attune__tile *tile);
void attune__vulkan_variant(const attune__shape *shape, const attune_plan_choice *choice, attune__variant *variant);
const attune__tile *attune__vulkan_lanes_backward_tiles(uint32_t *count);
const char *attune__vulkan_lanes_backward_reject(const attune__search *search, const attune__tile *tile, uint32_t width,
                                                 attune__option *option);

#endif
