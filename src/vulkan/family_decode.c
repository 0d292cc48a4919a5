/* SPDX-License-Identifier: MIT */
/* The family of few rows: shaders/decode.comp, with one module for dense keys of all types and one for caches. */
#include "vulkan/family.h"

#include "shaders/decode_dense.h"
#include "shaders/decode_serving.h"

/* The main loop's share of llvmpipe's iterations; the rest is for loops outside of it. */
#define LOOP_BUDGET UINT32_C(60000)

static attune__vulkan_module forward(const attune_limits *limits, attune_dtype dtype)
{
    static const attune__vulkan_module module = ATTUNE__VULKAN_MODULE(attune__spirv_decode_dense);
    (void)limits;
    (void)dtype;
    return module;
}

static const char *make(const attune__program_desc *desc, attune__decode_layout *l)
{
    const attune_plan_choice *c = desc->choice;
    return attune__decode_layout_make(c->block_m, c->block_n, c->num_warps, c->workgroup_invocations / c->num_warps,
                                      desc->shape->head_dim, desc->shape->head_dim_v, false, l);
}

static const char *set_forward(const attune_limits *limits, const attune__program_desc *desc, bool flat,
                               uint32_t *constants)
{
    attune__decode_layout l;
    const char *why = make(desc, &l);
    (void)flat;
    if (why)
        return why;
    l.FOLDS = desc->shape->split_keys && desc->shape->split_keys < desc->shape->kv_len;
    /* On the CPU a subgroup is a vector, whose lanes cannot part, and Mesa 26's llvmpipe takes its barrier for one of
     * the workgroup, whose subgroups have tiles of their own. */
    l.MEETS = !limits->host;
    attune__vulkan_set_decode(&l, constants);
    return NULL;
}

/* Loops of a tile: the main loop, the search for the next one, the mask of a lane's pairs; the others are unrolled, but
 * loops over registers are counted too. */
static uint32_t most_steps(const attune_limits *limits, const attune__program_desc *desc)
{
    attune__decode_layout l;
    (void)limits;
    if (make(desc, &l))
        return 0;
    const uint32_t next = desc->shape->tokens ? 4 : 0;
    return LOOP_BUDGET / (2 * (1 + 2 + next + l.SCORES + 1));
}

const attune__vulkan_family attune__vulkan_family_decode = {
    .plan = &attune__vulkan_few_rows,
    .subgroups = true,
    .forward = forward,
    .serving = ATTUNE__VULKAN_MODULE(attune__spirv_decode_serving),
    .set_forward = set_forward,
    .most_steps = most_steps,
};
