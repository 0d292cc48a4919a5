/* SPDX-License-Identifier: MIT */
/* The family of drivers on the CPU: shaders/lanes.comp and lanes_backward.comp, which have no shared memory. */
#include "vulkan/family.h"

#include "shaders/lanes_backward_kv_bf16.h"
#include "shaders/lanes_backward_kv_f16.h"
#include "shaders/lanes_backward_kv_f32.h"
#include "shaders/lanes_backward_q_bf16.h"
#include "shaders/lanes_backward_q_f16.h"
#include "shaders/lanes_backward_q_f32.h"
#include "shaders/lanes_bf16.h"
#include "shaders/lanes_f16.h"
#include "shaders/lanes_f32.h"

static attune__vulkan_module forward(const attune_limits *limits, attune_dtype dtype)
{
    static const attune__vulkan_module modules[3] = ATTUNE__VULKAN_MODULES(lanes);
    (void)limits;
    return modules[attune__vulkan_dtype_index(dtype)];
}

static attune__vulkan_module backward(bool keys, attune_dtype dtype)
{
    static const attune__vulkan_module modules[2][3] = {ATTUNE__VULKAN_MODULES(lanes_backward_q),
                                                        ATTUNE__VULKAN_MODULES(lanes_backward_kv)};
    return modules[keys][attune__vulkan_dtype_index(dtype)];
}

static uint32_t most_steps(const attune_limits *limits, const attune__program_desc *desc)
{
    const attune_plan_choice *c = desc->choice;
    (void)limits;
    return attune__lanes_most_steps(c->block_m, c->block_n, c->workgroup_invocations, desc->shape->head_dim,
                                    desc->shape->head_dim_v, (uint32_t)attune_dtype_size(desc->shape->k_dtype));
}

static uint32_t most_backward_steps(const attune_limits *limits, const attune__program_desc *desc, bool keys)
{
    (void)limits;
    const attune_plan_choice *c = desc->choice;
    return attune__lanes_backward_most_steps(attune__vulkan_outer_rows(c, keys), attune__vulkan_inner_rows(c, keys),
                                             c->workgroup_invocations, desc->shape->head_dim, desc->shape->head_dim_v,
                                             (uint32_t)attune_dtype_size(desc->shape->k_dtype));
}

const attune__vulkan_family attune__vulkan_family_lanes = {
    .plan = &attune__vulkan_lanes,
    .subgroups = true,
    .backward_subgroups = true,
    .forward = forward,
    .backward = backward,
    .most_steps = most_steps,
    .most_backward_steps = most_backward_steps,
};
