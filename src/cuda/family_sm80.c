/* SPDX-License-Identifier: MIT */
/* The families of mma.sync. */
#include "cuda/family.h"
#include "cuda/layout_sm80.h"
#include "plan/family_cuda.h"

/* Of its two backward kernels, that of queries adds the capture gradients. */
static void define(attune__cuda_kernel *kernel, const attune__program_desc *desc, attune__cuda_role role)
{
    if (desc->choice->decode)
        attune__cuda_define(kernel, "SAVED_STATE", desc->variant->saved_state);
    if (desc->choice->direction != ATTUNE_BACKWARD)
        return;
    const bool rows = role == ATTUNE__CUDA_ROWS;
    attune__cuda_define(kernel, "DK_DV", !rows);
    attune__cuda_define(kernel, "HAVE_CAPTURE_GRADIENTS",
                        rows && attune__requests_captures(desc->shape, desc->gradient));
    attune__cuda_define(kernel, "SEPARATE_DK_DV", desc->variant->separate_dk_dv);
    attune__cuda_define(kernel, "SERIAL_COLUMNS", !rows && desc->variant->serial_columns);
}

static uint32_t shared_memory(const attune__program_desc *desc, attune__cuda_role role)
{
    uint32_t bytes[2] = {desc->choice->shared_memory, desc->choice->shared_memory};
    if (desc->choice->direction == ATTUNE_BACKWARD)
        attune__cuda_sm80_backward_bytes(desc->shape, desc->choice, bytes);
    return bytes[role == ATTUNE__CUDA_ROWS];
}

const attune__cuda_family attune__cuda_family_sm80 = {
    .plan = &attune__cuda_sm80,
    .suffix = "",
    .forward = {"forward_sm80.cu", "attune_forward_sm80"},
    .decode = {"decode_sm80.cu", "attune_decode_sm80"},
    .backward = {"backward_sm80.cu", "attune_backward_sm80"},
    .serving = {"serving_sm80.cu", "attune_serving_sm80"},
    .define = define,
    .shared_memory = shared_memory,
};

static void define_atomic(attune__cuda_kernel *kernel, const attune__program_desc *desc, attune__cuda_role role)
{
    (void)role;
    attune__cuda_define(kernel, "DK_DV", 1);
    attune__cuda_define(kernel, "PADDING",
                        attune_cuda_backward_atomic_sm80_padding(desc->choice->block_n1, desc->choice->num_warps));
}

static uint32_t one(attune_cuda_tile tile)
{
    (void)tile;
    return 1;
}

const attune__cuda_family attune__cuda_family_sm80_atomic = {
    .plan = &attune__cuda_sm80_atomic,
    .suffix = "",
    .backward = {"backward_atomic_sm80.cu", "attune_backward_atomic_sm80"},
    .has_fallback = true,
    .define = define_atomic,
    .dq_name = "attune_backward_dq_sm80",
    .dq_shared_memory = attune_cuda_backward_dq_sm80,
    .dq_ctas = one,
    .cluster = one,
};
