/* SPDX-License-Identifier: MIT */
/* The arguments of the kernels that compute a mask's lists from a tensor, which Vulkan and OpenCL have alike
 * (shaders/mask_lists.h, shaders/opencl/mask_lists.h): all but where the tensor and the lists are. Included with the
 * backend's struct LISTS. */
#include "backend.h"

static LISTS describe_lists(const attune_mask *mask, const attune_tensor *tensor)
{
    const int64_t element = (int64_t)attune_dtype_size(tensor->dtype);
    return (LISTS){
        .stride_b = tensor->stride[0] * element,
        .stride_h = tensor->stride[1] * element,
        .stride_q = tensor->stride[2] * element,
        .stride_kv = tensor->stride[3] * element,
        .heads = (uint32_t)mask->stored_heads,
        .q_len = (uint32_t)mask->q_len,
        .kv_len = (uint32_t)mask->kv_len,
        .q_block = mask->q_block,
        .kv_block = mask->kv_block,
        .q_blocks = (uint32_t)mask->q_blocks,
        .kv_blocks = (uint32_t)mask->kv_blocks,
        .element = (uint32_t)element,
        .forbidden = attune__mask_forbidden(tensor->dtype),
        .row_count = (uint32_t)(mask->stored_batch * mask->stored_heads * mask->q_blocks),
    };
}
