/* SPDX-License-Identifier: MIT */
/* CUDA, calls over a cache: the schedule and the space for partial results, on which planner and launch agree. */
#include <math.h>

#include "cuda/layout_sm80.h"
#include "plan/family_cuda.h"

/* Bytes of all partial results, at most; with shared keys, of which each sequence has parts for itself besides. */
#define MOST_BYTES   (UINT64_C(16) << 20)
#define SHARED_BYTES (UINT64_C(80) << 20)

#define SHARED_SEQUENCES 16
#define SHARED_DIM       128

bool attune__cuda_has_parts(const attune__shape *s)
{
    const int64_t one = s->split_keys ? s->split_keys : 2 * (int64_t)ATTUNE_CUDA_SERVING_PART_KEYS;
    return s->tokens && s->kv_len > one;
}

/* Where an H200 takes less time for it: of other batches the shared pages come from L2, and gathering rows takes longer
 * than that (docs/decisions/0081-short-calls-over-a-cache.md). With fixed parts always. */
bool attune__cuda_shares(const attune__shape *s)
{
    const bool wide = s->head_dim >= SHARED_DIM && s->head_dim_v >= SHARED_DIM,
               narrow_types = attune__dtype_bytes(s) == 2 && !attune__cuda_codes(s) && !attune__cuda_is_f32(s);
    const bool faster = s->shared_sequences >= SHARED_SEQUENCES && wide && narrow_types &&
                        s->q_len * (s->heads / s->kv_heads) <= ATTUNE__CUDA_SHARED_ROWS;
    return s->shared_sequences > 1 && attune__cuda_has_parts(s) && (faster || s->split_keys);
}

attune__cuda_parts attune__cuda_serving_parts(const attune__shape *s, uint32_t block_m, uint32_t stages,
                                              uint32_t resident)
{
    if (!attune__cuda_has_parts(s))
        return (attune__cuda_parts){.slots = 0};
    const bool shares = attune__cuda_shares(s), fixed = shares || s->split_keys;
    const uint64_t bytes = attune_cuda_serving_part_sm80(block_m, s->head_dim_v),
                   most = (shares ? SHARED_BYTES : MOST_BYTES) / bytes;
    const int64_t group = s->heads / s->kv_heads;
    /* Those of a tile, and of all tiles that a call may have. */
    const double rows = (double)s->tokens * (double)group,
                 tiles = (rows / block_m + (double)s->batch) * (double)s->kv_heads;
    const uint32_t least = stages > 1 ? ATTUNE_CUDA_SERVING_LEAST_KEYS : ATTUNE_CUDA_SERVING_PART_KEYS,
                   each = s->split_keys ? s->split_keys : least;
    const double keys = (double)s->kv_len / each + 1;
    double slots = tiles * (fixed ? keys : fmin(keys, ATTUNE_CUDA_SERVING_PARTS));
    /* Of tiles that share keys each has one of its own, and another where it is divided. With several stages there may
     * be more parts than run at once. */
    if (!s->split_keys)
        slots = fmin(slots, (stages > 1 && !shares ? 8.0 : 2.0) * resident + (shares ? 2 * tiles : 0));
    slots = fmin(slots, (double)most);
    attune__cuda_parts parts = {
        .slots = (uint32_t)slots,
        .split_keys = s->split_keys,
        .shares = shares,
        .fixed = fixed,
        .taken = stages > 1 && !fixed,
    };
    const uint64_t entry = shares ? sizeof(attune_cuda_shared_scheduled) : sizeof(attune_cuda_scheduled),
                   counters = shares ? parts.slots : parts.slots / 2;
    parts.schedule = sizeof(attune_cuda_schedule) + (uint64_t)(s->batch + 1) * entry + counters * sizeof(int32_t);
    parts.schedule = attune__round_up64(parts.schedule, 256);
    /* A CTA that computes all fixed parts of a tile has one for their sum. */
    const uint64_t sums = fixed ? resident : 0;
    parts.workspace = attune__round_up64(parts.schedule + (parts.slots + sums) * bytes, 256);
    return parts;
}

uint64_t attune__cuda_serving_workspace(const attune__search *search, const attune__tile *tile,
                                        const attune__cost *cost, uint32_t split)
{
    (void)split;
    const uint32_t occupancy = attune__occupancy(search->limits, cost);
    return attune__cuda_serving_parts(search->shape, tile->value[ATTUNE__BLOCK_M], tile->value[ATTUNE__NUM_STAGES],
                                      search->limits->compute_units * (occupancy ? occupancy : 1))
        .workspace;
}
