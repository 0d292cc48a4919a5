/* SPDX-License-Identifier: MIT */
/* The family of cooperative matrices: shaders/forward_registers.comp and backward_matrix.comp where the fragment layout
 * is known, else forward_matrix.comp. */
#include "vulkan/family.h"

#if ATTUNE_HAVE_COOPERATIVE_MATRIX
#include "shaders/backward_matrix_kv_f16.h"
#include "shaders/backward_matrix_q_f16.h"
#include "shaders/forward_matrix_f16.h"
#include "shaders/forward_registers_bf16.h"
#include "shaders/forward_registers_f16.h"
#endif

static attune__vulkan_module forward(const attune_limits *limits, attune_dtype dtype)
{
#if ATTUNE_HAVE_COOPERATIVE_MATRIX
    static const attune__vulkan_module modules[3] = {ATTUNE__VULKAN_MODULE(attune__spirv_forward_matrix_f16),
                                                     ATTUNE__VULKAN_MODULE(attune__spirv_forward_registers_f16),
                                                     ATTUNE__VULKAN_MODULE(attune__spirv_forward_registers_bf16)};
#else
    static const attune__vulkan_module modules[3];
#endif
    return modules[dtype == ATTUNE_BF16 ? 2 : limits->fragment_layout != 0];
}

static attune__matrix_shape matrix_shape(const attune_limits *limits)
{
    return (attune__matrix_shape){limits->matrix_m, limits->matrix_n, limits->matrix_k, limits->subgroup_size,
                                  limits->fragment_layout};
}

static const char *set_registers(const attune__program_desc *desc, attune__matrix_shape matrix, uint32_t *constants)
{
    const attune_plan_choice *c = desc->choice;
    attune__registers_layout l;
    const char *why = attune__registers_layout_make(c->block_m, c->block_n, c->num_warps, matrix, desc->shape->head_dim,
                                                    desc->shape->head_dim_v, &l);
    if (!why)
        attune__vulkan_set_registers(&l, constants);
    return why;
}

static const char *set_matrix(const attune__program_desc *desc, attune__matrix_shape matrix, uint32_t *constants)
{
    const attune_plan_choice *c = desc->choice;
    attune__matrix_layout l;
    const char *why = attune__matrix_layout_make(c->block_m, c->block_n, c->num_warps, matrix, desc->shape->head_dim,
                                                 desc->shape->head_dim_v, &l);
    if (!why)
        attune__vulkan_set_matrix(&l, constants);
    return why;
}

static const char *set_forward(const attune_limits *limits, const attune__program_desc *desc, bool flat,
                               uint32_t *constants)
{
    (void)flat;
    const attune__matrix_shape matrix = matrix_shape(limits);
    return matrix.fragment_layout ? set_registers(desc, matrix, constants) : set_matrix(desc, matrix, constants);
}

static attune__vulkan_module backward(bool keys, attune_dtype dtype)
{
#if ATTUNE_HAVE_COOPERATIVE_MATRIX
    static const attune__vulkan_module modules[2] = {ATTUNE__VULKAN_MODULE(attune__spirv_backward_matrix_q_f16),
                                                     ATTUNE__VULKAN_MODULE(attune__spirv_backward_matrix_kv_f16)};
#else
    static const attune__vulkan_module modules[2];
#endif
    (void)dtype;
    return modules[keys];
}

static const char *make_backward(const attune_limits *limits, const attune__program_desc *desc, bool keys,
                                 attune__backward_matrix_layout *l)
{
    const attune_plan_choice *c = desc->choice;
    return attune__backward_matrix_layout_make(attune__vulkan_outer_rows(c, keys), attune__vulkan_inner_rows(c, keys),
                                               c->num_warps, matrix_shape(limits), desc->shape->head_dim,
                                               desc->shape->head_dim_v, keys, l);
}

static const char *set_backward(const attune_limits *limits, const attune__program_desc *desc, bool keys,
                                uint32_t *constants)
{
    attune__backward_matrix_layout l;
    const char *why = make_backward(limits, desc, keys, &l);
    if (!why)
        attune__vulkan_set_backward_matrix(&l, constants);
    return why;
}

static uint32_t most_backward_steps(const attune_limits *limits, const attune__program_desc *desc, bool keys)
{
    const attune_plan_choice *c = desc->choice;
    attune__backward_matrix_layout l;
    return make_backward(limits, desc, keys, &l)
               ? 0
               : attune__backward_matrix_most_steps(&l, attune__vulkan_outer_rows(c, keys),
                                                    attune__vulkan_inner_rows(c, keys), c->workgroup_invocations);
}

static uint32_t most_steps(const attune_limits *limits, const attune__program_desc *desc)
{
    const attune_plan_choice *c = desc->choice;
    return attune__matrix_most_steps(c->block_m, c->block_n, c->num_warps, matrix_shape(limits), desc->shape->head_dim,
                                     desc->shape->head_dim_v);
}

const attune__vulkan_family attune__vulkan_family_coopmat = {
    .plan = &attune__vulkan_coopmat,
    .subgroups = true,
    .backward_subgroups = true,
    .require = attune__vulkan_fragment_layout_require,
    .forward = forward,
    .set_forward = set_forward,
    .near_keys = true,
    .backward = backward,
    .set_backward = set_backward,
    .most_steps = most_steps,
    .most_backward_steps = most_backward_steps,
};
