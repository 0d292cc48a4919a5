/* SPDX-License-Identifier: MIT */
/* The cache and the batch of a call (shaders/opencl/serving.h). */
#include "opencl/program.h"

_Static_assert(sizeof(attune_opencl_serving) <= ATTUNE__OPENCL_TABLE, "a table of the queue");
_Static_assert(sizeof(attune_opencl_arguments) +
                       (ATTUNE__OPENCL_POINTERS + ATTUNE__OPENCL_SERVING_POINTERS + 2 * ATTUNE_EXPR_MAX_SYMBOLS) *
                           sizeof(uint64_t) <=
                   ATTUNE__OPENCL_ARGUMENTS,
               "every device takes the arguments, with the captures of a mask and of a score");
_Static_assert(sizeof(attune_opencl_serving) <= ATTUNE__SHADERS_ARGUMENTS, "its place in the workspace");

/* `flag`: of an array that a call may leave out. */
static attune_opencl_array array_of(const attune_tensor *tensor, uint32_t flag, uint32_t *has)
{
    attune_opencl_array a = {0};
    if (!tensor->buffer)
        return a;
    a.offset = (int64_t)(attune__opencl_buffer_of(tensor->buffer)->offset + tensor->offset);
    for (uint32_t i = 0; i < tensor->rank && i < 3; i++)
        a.stride[i] = tensor->stride[i] * 4;
    *has |= flag;
    return a;
}

void attune__opencl_serving_describe(const attune__forward *call, attune_opencl_cache *cache)
{
    const attune__serving *s = call->serving;
    const attune__serving_sizes sizes = attune__serving_sizes_of(call);
    uint32_t has = 0;
    *cache = (attune_opencl_cache){
        .tokens = (uint32_t)call->q.size[2],
        .pool = sizes.pool,
        .page = sizes.page,
        .entries = sizes.entries,
        .tree_words = sizes.tree_words,
    };
    cache->q_start = array_of(&s->q_start, ATTUNE_OPENCL_HAS_Q_START, &has);
    cache->kv_len = array_of(&s->kv_len, 0, &has);
    cache->kv_first = array_of(&s->kv_first, ATTUNE_OPENCL_HAS_KV_FIRST, &has);
    cache->count = array_of(&s->count, ATTUNE_OPENCL_HAS_COUNT, &has);
    cache->shared = array_of(&s->shared, ATTUNE_OPENCL_HAS_SHARED, &has);
    cache->pages = array_of(&s->pages, ATTUNE_OPENCL_HAS_PAGES, &has);
    cache->pages_start = array_of(&s->pages_start, ATTUNE_OPENCL_HAS_PAGES_START, &has);
    cache->tree = array_of(&s->tree, ATTUNE_OPENCL_HAS_TREE, &has);
    cache->k_scale = array_of(&s->k_scale, ATTUNE_OPENCL_HAS_K_SCALE, &has);
    cache->v_scale = array_of(&s->v_scale, ATTUNE_OPENCL_HAS_V_SCALE, &has);
    cache->has = has;
}

void attune__opencl_serving_set(attune__opencl_setter *setter, const attune__serving *serving,
                                const attune_buffer *schedule)
{
    static const attune__serving none = {.packed = false};
    const attune__serving *s = serving ? serving : &none;
    attune__opencl_set_memory(setter, s->q_start.buffer);
    attune__opencl_set_memory(setter, s->kv_len.buffer);
    attune__opencl_set_memory(setter, s->kv_first.buffer);
    attune__opencl_set_memory(setter, s->count.buffer);
    attune__opencl_set_memory(setter, s->pages.buffer);
    attune__opencl_set_memory(setter, s->pages_start.buffer);
    attune__opencl_set_memory(setter, s->tree.buffer);
    attune__opencl_set_memory(setter, s->k_scale.buffer);
    attune__opencl_set_memory(setter, s->v_scale.buffer);
    attune__opencl_set_memory(setter, schedule);
}
