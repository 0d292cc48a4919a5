/* SPDX-License-Identifier: MIT */
/* The family of tcgen05: forward. */
#include "cuda/family.h"

#include "plan/family_cuda.h"

static void define(attune__cuda_kernel *kernel, const attune__program_desc *desc, attune__cuda_role role)
{
    (void)desc;
    (void)role;
    (void)kernel;
#ifdef ATTUNE__CUDA_ARRIVALS /* a build for racecheck: tests/cuda/sanitize.py */
    attune__cuda_define(kernel, "ARRIVALS", ATTUNE__CUDA_ARRIVALS);
#endif
}

const attune__cuda_family attune__cuda_family_sm100a = {
    .plan = &attune__cuda_sm100a,
    .suffix = "a",
    .forward = {"forward_sm100.cu", "attune_forward_sm100"},
    .persistent = true,
    .has_fallback = true,
    .define = define,
};
