/* SPDX-License-Identifier: MIT */
/* The cache and the batch of a call (shaders/serving.h). */
#include "vulkan/arguments.h"

static attune_vulkan_array array_of(const attune_tensor *tensor, uint64_t absent)
{
    attune_vulkan_array a = {.address = tensor->buffer ? attune__vulkan_tensor_address(tensor) : absent};
    for (uint32_t i = 0; tensor->buffer && i < tensor->rank && i < 3; i++)
        a.stride[i] = tensor->stride[i] * 4;
    return a;
}

void attune__vulkan_serving_describe(const attune__forward *call, uint64_t address, attune_vulkan_serving *serving)
{
    const attune__serving *s = call->serving;
    *serving = (attune_vulkan_serving){
        .q_start = array_of(&s->q_start, address),
        .kv_len = array_of(&s->kv_len, address),
        .kv_first = array_of(&s->kv_first, address),
        .count = array_of(&s->count, address),
        .pages = array_of(&s->pages, address),
        .pages_start = array_of(&s->pages_start, address),
        .tree = array_of(&s->tree, address),
        .k_scale = array_of(&s->k_scale, address),
        .v_scale = array_of(&s->v_scale, address),
        .tokens = (uint32_t)call->q.size[2],
        .pool = call->k.size[0] < INT32_MAX ? (uint32_t)call->k.size[0] : INT32_MAX,
        .page = call->k.size[2] < INT32_MAX ? (uint32_t)call->k.size[2] : INT32_MAX,
        .entries = (uint32_t)s->pages.size[s->pages_start.buffer ? 0 : 1],
        .tree_words = (uint32_t)s->tree.size[2],
    };
}
