/* SPDX-License-Identifier: MIT */
#include "cases/segments.h"

/* Distinct places, ascending; the case's own numbers are the seed. */
static void cut(const attention_case *c, segments *s)
{
    random_state random = {(uint64_t)c->kv_len * 31 + (uint64_t)c->q_len * 7 + c->head_dim + c->segments};
    s->count = c->segments < SEGMENTS_MAX ? c->segments : SEGMENTS_MAX;
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
    const attune_mask_desc whole = {
        .struct_size = sizeof whole,
        .q_block = c->q_block,
        .kv_block = c->kv_block,
        .batch = c->batch,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .q_len = c->q_len + c->mask_longer,
        .kv_len = c->kv_len,
    };
    cut(c, s);
    return segments_build(instance, device, a, &whole, s, problem) == ATTUNE_OK ? NULL : attune_last_error();
}
