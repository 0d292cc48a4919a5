/* SPDX-License-Identifier: MIT */
#include "cases/segments.h"

#include <string.h>

/* Distinct places, ascending; the case's own numbers are the seed. */
static void cut(const attention_case *c, segments *s)
{
    random_state random = {(uint64_t)c->kv_len * 31 + (uint64_t)c->q_len * 7 + c->head_dim + c->segments};
    s->count = c->segments < MOST_SEGMENTS ? c->segments : MOST_SEGMENTS;
    if (s->count > c->kv_len)
        s->count = (uint32_t)c->kv_len;
    s->start[0] = 0;
    for (uint32_t i = 1; i < s->count; i++) {
        const int64_t least = s->start[i - 1] + 1, most = c->kv_len - (s->count - i);
        /* About what is left for each, from one key to three times that. */
        const int64_t share = 2 * (most - least) / (s->count - i) + 1;
        s->start[i] =
            least + (int64_t)(random_u64(&random) % (uint64_t)(share < most - least + 1 ? share : most - least + 1));
    }
    s->start[s->count] = c->kv_len;
}

const char *segments_prepare(attune_instance *instance, attune_device *device, const attention_case *c,
                             const attention *a, segments *s, attune_problem *problem)
{
    cut(c, s);
    problem->kv_len = 1;
    problem->segments = s->count;
    for (uint32_t i = 0; i < s->count; i++) {
        const int64_t length = s->start[i + 1] - s->start[i];
        if (length > problem->kv_len)
            problem->kv_len = length;
        if (!a->mask)
            continue;
        const attune_mask_desc desc = {
            .struct_size = sizeof desc,
            .q_block = c->q_block,
            .kv_block = c->kv_block,
            .batch = c->batch,
            .heads = c->heads,
            .kv_heads = c->kv_heads,
            .q_len = c->q_len + c->mask_longer,
            .kv_len = length,
            .kv_start = s->start[i],
            .kv_total = c->kv_len,
        };
        if (attune_mask_create(instance, &desc, a->mask, a->captures, a->capture_count, a->parameters,
                               a->parameter_count, &s->masks[i]) != ATTUNE_OK ||
            attune_mask_upload(s->masks[i], device) != ATTUNE_OK ||
            attune_problem_set_mask(problem, s->masks[i]) != ATTUNE_OK)
            return attune_last_error();
    }
    return NULL;
}

static attune_tensor view(const attune_tensor *whole, int64_t start, int64_t end)
{
    attune_tensor part = *whole;
    part.size[2] = end - start;
    part.offset = (uint64_t)((int64_t)part.offset + start * part.stride[2] * (int64_t)attune_dtype_size(part.dtype));
    return part;
}

void segments_views(const segments *s, const attune_tensor *k, const attune_tensor *v, const attune_tensor *d_k,
                    const attune_tensor *d_v, attune_segment *views)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const int64_t start = s->start[i], end = s->start[i + 1];
        views[i] = (attune_segment){.k = view(k, start, end), .v = view(v, start, end), .mask = s->masks[i]};
        if (!d_k)
            continue;
        views[i].d_k = view(d_k, start, end);
        views[i].d_v = view(d_v, start, end);
    }
}

void segments_finish(segments *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        attune_mask_destroy(s->masks[i]);
    s->count = 0;
}
