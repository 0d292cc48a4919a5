/* SPDX-License-Identifier: MIT */
/* The families of wgmma. */
#include "cuda/family.h"
#include "cuda/layout_sm90.h"
#include "plan/family_cuda.h"

static uint32_t cluster(attune_cuda_tile t)
{
    return attune_cuda_backward_sm90_paired(t.head_dim, t.head_dim_v, t.block_n) ? 2 : 1;
}

static void define_arrivals(attune__cuda_kernel *kernel)
{
#ifdef ATTUNE__CUDA_ARRIVALS /* a build for racecheck: tests/cuda/sanitize.py */
    attune__cuda_define(kernel, "ARRIVALS", ATTUNE__CUDA_ARRIVALS);
#else
    (void)kernel;
#endif
}

static void define(attune__cuda_kernel *kernel, const attune__program_desc *desc, attune__cuda_role role)
{
    (void)role;
    const attune__shape *s = desc->shape;
    const attune_plan_choice *c = desc->choice;
    define_arrivals(kernel);
    if (c->direction != ATTUNE_BACKWARD)
        return;
    attune__cuda_define(kernel, "HAVE_MASK_COLUMNS", desc->variant->key_intervals);
    attune__cuda_define(kernel, "HAVE_CAPTURE_GRADIENTS", attune__requests_captures(desc->shape, desc->gradient));
    attune__cuda_define(kernel, "DETERMINISTIC", c->deterministic);
    attune__cuda_define(kernel, "CLUSTER",
                        cluster(attune__cuda_tile(s, c->block_m1, c->block_n1, c->num_warps, c->num_stages)));
}

static uint32_t dq_shared_memory(attune_cuda_tile t)
{
    return attune_cuda_backward_dq_sm90(t.head_dim, t.head_dim_v, t.block_m);
}

static uint32_t dq_ctas(attune_cuda_tile t)
{
    if (attune_cuda_backward_sm90_rounds_dq(t.head_dim, t.head_dim_v, t.block_n))
        return 0;
    return attune_cuda_backward_sm90_wide(t.head_dim, t.head_dim_v) ? 2 : 1;
}

const attune__cuda_family attune__cuda_family_sm90a = {
    .plan = &attune__cuda_sm90a,
    .suffix = "a",
    .forward = {"forward_sm90.cu", "attune_forward_sm90"},
    .backward = {"backward_sm90.cu", "attune_backward_sm90"},
    .persistent = true,
    .has_fallback = true,
    .define = define,
    .dq_name = "attune_backward_dq_sm90",
    .dq_shared_memory = dq_shared_memory,
    .dq_ctas = dq_ctas,
    .cluster = cluster,
    .splits_tail = true,
    .float_sums = true,
    .padded_sums = true,
};

static void define_serving(attune__cuda_kernel *kernel, const attune__program_desc *desc, attune__cuda_role role)
{
    (void)desc;
    (void)role;
    define_arrivals(kernel);
}

const attune__cuda_family attune__cuda_family_serving_sm90a = {
    .plan = &attune__cuda_serving_sm90a,
    .suffix = "a",
    .serving = {"serving_sm90.cu", "attune_serving_sm90"},
    .persistent = true,
    .define = define_serving,
    .boxes = true,
};
