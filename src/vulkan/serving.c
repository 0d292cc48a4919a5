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

void attune__vulkan_serving_describe(const attune__forward *call, uint64_t address, attune_vulkan_serving *serving)
{
    const attune__serving *s = call->serving;
    const attune__serving_sizes sizes = attune__serving_sizes_of(call);
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
        .prefix = attune__vulkan_array_describe(&s->shared, address),
        .tokens = (uint32_t)call->q.size[2],
        .pool = sizes.pool,
        .page = sizes.page,
        .entries = sizes.entries,
        .tree_words = sizes.tree_words,
        .schedule = address,
    };
}
