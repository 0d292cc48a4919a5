/* SPDX-License-Identifier: MIT */
/* The cache and the batch of a call (shaders/serving.h). */
#include "vulkan/arguments.h"

attune_vulkan_array attune__vulkan_array_describe(const attune_tensor *tensor, uint64_t absent)
{
    attune_vulkan_array a = {.address = tensor->buffer ? attune__vulkan_tensor_address(tensor) : absent};
    for (uint32_t i = 0; tensor->buffer && i < tensor->rank && i < 3; i++)
        a.stride[i] = tensor->stride[i] * (int64_t)attune_dtype_size(tensor->dtype);
    return a;
}

/* The kernels count in 31 bits: no index reaches what is cut off. */
static uint32_t at_most(int64_t size)
{
    return size < INT32_MAX ? (uint32_t)size : INT32_MAX;
}

void attune__vulkan_serving_describe(const attune__forward *call, uint64_t address, attune_vulkan_serving *serving)
{
    const attune__serving *s = call->serving;
    *serving = (attune_vulkan_serving){
        .q_start = attune__vulkan_array_describe(&s->q_start, address),
        .kv_len = attune__vulkan_array_describe(&s->kv_len, address),
        .kv_first = attune__vulkan_array_describe(&s->kv_first, address),
        .count = attune__vulkan_array_describe(&s->count, address),
        .pages = attune__vulkan_array_describe(&s->pages, address),
        .pages_start = attune__vulkan_array_describe(&s->pages_start, address),
        .tree = attune__vulkan_array_describe(&s->tree, address),
        .k_scale = attune__vulkan_array_describe(&s->k_scale, address),
        .v_scale = attune__vulkan_array_describe(&s->v_scale, address),
        .tokens = (uint32_t)call->q.size[2],
        .pool = at_most(call->k.size[0]),
        .page = at_most(call->k.size[2]),
        .entries = at_most(s->pages.size[s->pages_start.buffer ? 0 : 1]),
        .tree_words = at_most(s->tree.size[2]),
    };
}
