/* SPDX-License-Identifier: MIT */
/* The families without matrix units and with shared memory: shaders/forward.comp and backward.comp. */
#include "vulkan/family.h"

#include "shaders/backward_kv_bf16.h"
#include "shaders/backward_kv_f16.h"
#include "shaders/backward_kv_f32.h"
#include "shaders/backward_q_bf16.h"
#include "shaders/backward_q_f16.h"
#include "shaders/backward_q_f32.h"
#include "shaders/forward_bf16.h"
#include "shaders/forward_f16.h"
#include "shaders/forward_f32.h"
#include "shaders/forward_subgroup_bf16.h"
#include "shaders/forward_subgroup_f16.h"
#include "shaders/forward_subgroup_f32.h"
#include "shaders/serving_portable.h"
#include "shaders/serving_subgroup.h"

/* The main loop's share of llvmpipe's iterations; the rest is for loops outside of it. */
#define LOOP_BUDGET UINT32_C(60000)

static attune__vulkan_module portable(const attune_limits *limits, attune_dtype dtype)
{
    static const attune__vulkan_module modules[3] = ATTUNE__VULKAN_MODULES(forward);
    (void)limits;
    return modules[attune__vulkan_dtype_index(dtype)];
}

static attune__vulkan_module subgroup(const attune_limits *limits, attune_dtype dtype)
{
    static const attune__vulkan_module modules[3] = ATTUNE__VULKAN_MODULES(forward_subgroup);
    (void)limits;
    return modules[attune__vulkan_dtype_index(dtype)];
}

static attune__vulkan_module backward(bool keys, attune_dtype dtype)
{
    static const attune__vulkan_module modules[2][3] = {ATTUNE__VULKAN_MODULES(backward_q),
                                                        ATTUNE__VULKAN_MODULES(backward_kv)};
    return modules[keys][attune__vulkan_dtype_index(dtype)];
}

/* limits: NULL with subgroups. */
static const char *make_forward(const attune_limits *limits, const attune__program_desc *desc, bool flat,
                                attune__forward_layout *l)
{
    const attune_plan_choice *c = desc->choice;
    return attune__forward_layout_make(
        c->block_m, c->block_n, c->workgroup_invocations, desc->shape->head_dim, desc->shape->head_dim_v,
        (limits ? attune__shaders_form(limits, desc->shape) : ATTUNE__FORWARD_SUBGROUPS) |
            (flat ? ATTUNE__FORWARD_FLAT : 0),
        l);
}

static const char *set_forward(const attune_limits *limits, const attune__program_desc *desc, bool flat,
                               uint32_t *constants)
{
    attune__forward_layout l;
    const char *why = make_forward(limits, desc, flat, &l);
    if (why)
        return why;
    l.FOLDS = desc->shape->split_keys && desc->shape->split_keys < desc->shape->kv_len;
    l.SUM_SIZE = l.FOLDS ? l.O_SIZE : 1;
    l.MEMBERS = desc->shape->shared_sequences > 1 ? desc->choice->block_m : 1;
    attune__vulkan_set_forward(&l, constants);
    return NULL;
}

static const char *set_portable(const attune_limits *limits, const attune__program_desc *desc, bool flat,
                                uint32_t *constants)
{
    return set_forward(limits, desc, flat, constants);
}

static const char *set_subgroup(const attune_limits *limits, const attune__program_desc *desc, bool flat,
                                uint32_t *constants)
{
    (void)limits;
    return set_forward(NULL, desc, flat, constants);
}

static const char *make_backward(const attune__program_desc *desc, bool keys, attune__backward_layout *l)
{
    const attune_plan_choice *c = desc->choice;
    return attune__backward_layout_make(attune__vulkan_outer_rows(c, keys), attune__vulkan_inner_rows(c, keys),
                                        c->workgroup_invocations, desc->shape->head_dim, desc->shape->head_dim_v, keys,
                                        l);
}

static const char *set_backward(const attune_limits *limits, const attune__program_desc *desc, bool keys,
                                uint32_t *constants)
{
    (void)limits;
    attune__backward_layout l;
    const char *why = make_backward(desc, keys, &l);
    if (!why)
        attune__vulkan_set_backward(&l, constants);
    return why;
}

/* llvmpipe needed 22 iterations where `regular` counts 15. */
static uint32_t most_steps(const attune_limits *limits, const attune__program_desc *desc)
{
    attune__forward_layout l;
    if (make_forward(limits, desc, false, &l))
        return 0;
    const uint32_t slices = desc->shape->head_dim / l.SLICE, chunks = desc->choice->block_n / l.CHUNK;
    /* Over a cache also those of next_tile, of which a few steps skip any number of tiles. */
    const uint32_t members = desc->shape->shared_sequences > 1 ? desc->choice->block_m : 0;
    const uint32_t next = desc->shape->tokens ? 4 + members : 0;
    const uint32_t regular = 1 + 2 + next + (slices + 1) + (chunks + 1) + chunks * (l.CHUNK / 4 + 1);
    return LOOP_BUDGET / (2 * regular + chunks * (l.CHUNK + 1));
}

static uint32_t most_backward_steps(const attune_limits *limits, const attune__program_desc *desc, bool keys)
{
    (void)limits;
    attune__backward_layout l;
    if (make_backward(desc, keys, &l))
        return 0;
    const uint32_t inner = attune__vulkan_inner_rows(desc->choice, keys);
    const uint32_t slices = (desc->shape->head_dim + desc->shape->head_dim_v) / l.SLICE + 2,
                   chunks = inner / l.CHUNK * (keys ? 2 : 1);
    const uint32_t expressions = (desc->mask ? 1u : 0u) + (desc->score ? 1u : 0u), pairs = (4 * l.TM + 1) * expressions;
    const uint32_t regular = 1 + 4 + slices + pairs + (chunks + 2) + chunks * (l.CHUNK / 4 + 1);
    return LOOP_BUDGET / (2 * regular + chunks * (l.CHUNK + 1));
}

const attune__vulkan_family attune__vulkan_family_portable = {
    .plan = &attune__vulkan_portable,
    .forward = portable,
    .serving = ATTUNE__VULKAN_MODULE(attune__spirv_serving_portable),
    .set_forward = set_portable,
    .backward = backward,
    .set_backward = set_backward,
    .most_steps = most_steps,
    .most_backward_steps = most_backward_steps,
};

const attune__vulkan_family attune__vulkan_family_subgroup = {
    .plan = &attune__vulkan_subgroup,
    .subgroups = true,
    .forward = subgroup,
    .serving = ATTUNE__VULKAN_MODULE(attune__spirv_serving_subgroup),
    .set_forward = set_subgroup,
    .backward = backward,
    .set_backward = set_backward,
    .most_steps = most_steps,
    .most_backward_steps = most_backward_steps,
};
