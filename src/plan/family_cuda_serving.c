/* SPDX-License-Identifier: MIT */
/* CUDA, calls over a cache: the schedule and the space for partial results, on which planner and launch agree. */
#include <math.h>

#include "cuda/layout_sm80.h"
#include "plan/family_cuda.h"

/* Bytes of all partial results, at most. */
#define MOST_BYTES (UINT64_C(16) << 20)

bool attune__cuda_has_parts(const attune__shape *s)
{
    const int64_t one = s->split_keys ? s->split_keys : 2 * (int64_t)ATTUNE_CUDA_SERVING_PART_KEYS;
    return s->tokens && s->kv_len > one;
}

attune__cuda_parts attune__cuda_serving_parts(const attune__shape *s, uint32_t block_m, uint32_t resident)
{
    if (!attune__cuda_has_parts(s))
        return (attune__cuda_parts){.slots = 0};
    const uint64_t bytes = attune_cuda_serving_part_sm80(block_m, s->head_dim_v), most = MOST_BYTES / bytes;
    const int64_t group = s->heads / s->kv_heads;
    /* Those of a tile, and of all tiles that a call may have. */
    const double rows = (double)s->tokens * (double)group,
                 tiles = (rows / block_m + (double)s->batch) * (double)s->kv_heads;
    const uint32_t each = s->split_keys ? s->split_keys : ATTUNE_CUDA_SERVING_PART_KEYS;
    const double keys = (double)s->kv_len / each + 1;
    double slots = tiles * (s->split_keys ? keys : fmin(keys, ATTUNE_CUDA_SERVING_PARTS));
    slots = fmin(s->split_keys ? slots : fmin(slots, 2.0 * resident), (double)most);
    attune__cuda_parts parts = {.slots = (uint32_t)slots, .split_keys = s->split_keys};
    parts.schedule = sizeof(attune_cuda_schedule) + (uint64_t)(s->batch + 1) * sizeof(attune_cuda_scheduled) +
                     parts.slots / 2 * sizeof(int32_t);
    parts.schedule = attune__round_up64(parts.schedule, 256);
    /* A CTA that computes all fixed parts of a tile has one for their sum. */
    const uint64_t sums = s->split_keys ? resident : 0;
    parts.workspace = attune__round_up64(parts.schedule + (parts.slots + sums) * bytes, 256);
    return parts;
}
