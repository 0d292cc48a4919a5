/* SPDX-License-Identifier: MIT */
/* The family of tcgen05. */
#include "cuda/family.h"
#include "cuda/layout_sm100.h"
#include "plan/family_cuda.h"

static uint32_t cluster(attune_cuda_tile t)
{
    return attune_cuda_backward_sm100_paired(t.block_n) ? 2 : 1;
}

static void define(attune__cuda_kernel *kernel, const attune__program_desc *desc, attune__cuda_role role)
{
    (void)role;
#ifdef ATTUNE__CUDA_ARRIVALS /* a build for racecheck: tests/cuda/sanitize.py */
    attune__cuda_define(kernel, "ARRIVALS", ATTUNE__CUDA_ARRIVALS);
#endif
    const attune__shape *s = desc->shape;
    const attune_plan_choice *c = desc->choice;
    if (c->direction != ATTUNE_BACKWARD)
        return;
    attune__cuda_define(kernel, "HAVE_MASK_COLUMNS", desc->variant->key_intervals);
    attune__cuda_define(kernel, "HAVE_CAPTURE_GRADIENTS", attune__requests_captures(desc->shape, desc->gradient));
    attune__cuda_define(kernel, "DETERMINISTIC", desc->choice->deterministic);
    attune__cuda_define(kernel, "CLUSTER",
                        cluster(attune__cuda_tile(s, c->block_m1, c->block_n1, c->num_warps, c->num_stages)));
}

static uint32_t dq_ctas(attune_cuda_tile t)
{
    (void)t;
    return 0;
}

static uint32_t items(attune_cuda_tile t)
{
    return attune_cuda_backward_sm100(t, 0).separate ? 2 : 1;
}

const attune__cuda_family attune__cuda_family_sm100a = {
    .plan = &attune__cuda_sm100a,
    .suffix = "a",
    .forward = {"forward_sm100.cu", "attune_forward_sm100"},
    .backward = {"backward_sm100.cu", "attune_backward_sm100"},
    .persistent = true,
    .has_fallback = true,
    .define = define,
    .dq_ctas = dq_ctas,
    .cluster = cluster,
    .items = items,
    .stores_o = true,
    .float_sums = true,
    .divides_rows = true,
};
