/* SPDX-License-Identifier: MIT */
/*
 * Calls over segments of the keys: one launch for each segment, and a merge. Two hidden parameters of the expressions,
 * kv_start and kv_total, give the segment's range in the concatenation. In forward, each launch computes o and lse over
 * its own keys. In backward, each launch computes P from the LSE over all keys, so that d_k and d_v are final, and d_q
 * is the sum of the parts.
 */
#include "api/api.h"

#include <string.h>

/* Checks the number and the lengths of the segments, and returns the length of the concatenation. */
static attune_status check_segments(const attune_plan *plan, const attune_segment *segments, uint32_t count,
                                    int64_t *total)
{
    if (!count || count > plan->shape.segments)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.segment_count is %u, but the plan was made for 1 to %u (problem.segments)", count,
                            plan->shape.segments);
    ATTUNE__TRY(attune__check_not_null(segments, "args.segments"));
    *total = 0;
    for (uint32_t i = 0; i < count; i++) {
        const attune_tensor *k = &segments[i].k;
        if (k->rank != 4 || k->size[2] < 1 || k->size[2] > INT32_MAX - *total)
            return attune__fail(
                ATTUNE_INVALID_ARGUMENT,
                "args.segments[%u].k has rank %u and %lld keys after %lld others: expected rank 4, at least 1 "
                "key and fewer than 2^31 in all",
                i, k->rank, k->rank > 2 ? (long long)k->size[2] : 0, (long long)*total);
        *total += k->size[2];
    }
    return ATTUNE_OK;
}

static attune_status name_segment(attune_status status, uint32_t index)
{
    return status == ATTUNE_OK ? ATTUNE_OK : attune__fail_context(status, "args.segments[%u]", index);
}

/* Where the partial results of the segments are: in the workspace, after the merge's own part of it. */
typedef struct results {
    const attune_tensor *like; /* o or d_q */
    attune_buffer *workspace;
    uint64_t workspace_offset;
    uint64_t offset; /* of the first */
    uint64_t step, lse_at;
    attune_dtype dtype, lse_dtype;
    bool lse;
} results;

static results results_of(const attune_plan *plan, const attune__forward *call, const attune_tensor *like,
                          uint32_t segments)
{
    const attune__shape *shape = &plan->shape;
    const uint64_t rows = (uint64_t)(call->batch * call->heads * call->q_len);
    const attune_dtype real = attune__shape_real(shape);
    const uint64_t o_bytes = rows * (uint64_t)like->size[3] * attune_dtype_size(real);
    return (results){
        .like = like,
        .workspace = call->workspace,
        .workspace_offset = call->workspace_offset,
        .offset = call->workspace_offset + attune__merge_workspace(real, rows, (uint64_t)like->size[3], segments),
        .step = attune__segment_size(shape, rows),
        .lse_at = attune__round_up64(o_bytes, 256),
        .dtype = plan->device->backend->f32_outputs ? real : like->dtype,
        .lse_dtype = real,
        .lse = shape->direction == ATTUNE_FORWARD,
    };
}

/* attune__merge_part_fn */
static attune__merge_part result_at(const void *user, uint32_t index)
{
    const results *r = user;
    const uint64_t at = r->offset + index * r->step;
    attune__merge_part part = {.o = attune__workspace_tensor(r->workspace, at, r->dtype, r->like, 4)};
    if (r->lse)
        part.lse = attune__workspace_tensor(r->workspace, at + r->lse_at, r->lse_dtype, r->like, 3);
    return part;
}

/* Merges the partial results into `like`; lse NULL = d_q, a plain sum. */
static attune_status merge_results(const attune_plan *plan, attune_queue *queue, const results *r,
                                   const attune_tensor *lse, uint32_t segments, double *seconds, uint64_t *value)
{
    const attune__merge merge = {.o = *r->like,
                                 .lse = lse ? *lse : (attune_tensor){.buffer = NULL},
                                 .workspace = r->workspace,
                                 .workspace_offset = r->workspace_offset,
                                 .seconds = seconds,
                                 .strict = true};
    return attune__merge_run(plan->merger, queue, &merge, segments, result_at, r, value);
}

/* The backend's workspace begins after the partial results. */
static uint64_t backend_workspace(const attune_plan *plan, uint64_t offset)
{
    const attune__shape *s = &plan->shape;
    return offset + attune__segments_size(s, (uint64_t)(s->batch * s->heads * s->q_len), s->segments);
}

attune_status attune__forward_segments(const attune_plan *plan, attune_queue *queue, const attune_forward_args *args,
                                       uint64_t *value)
{
    attune_forward_args a = *args;
    attune__forward_call resolved;
    attune__segment_range range = {.kv_start = 0};
    ATTUNE__TRY(check_segments(plan, a.segments, a.segment_count, &range.kv_total));
    for (uint32_t i = 0; i < a.segment_count; i++) {
        range.segment = &a.segments[i];
        ATTUNE__TRY(name_segment(attune__forward_resolve_at(plan, &a, &range, &resolved), i));
        range.kv_start += range.segment->k.size[2];
    }
    const attune_tensor o = resolved.call.o, lse = resolved.call.lse;
    const results r = results_of(plan, &resolved.call, &o, a.segment_count);
    double seconds = 0, total = 0;
    range.kv_start = 0;
    for (uint32_t i = 0; i < a.segment_count; i++) {
        range.segment = &a.segments[i];
        ATTUNE__TRY(attune__forward_resolve_at(plan, &a, &range, &resolved));
        range.kv_start += range.segment->k.size[2];
        attune__forward *call = &resolved.call;
        if (a.segment_count > 1) {
            const attune__merge_part part = result_at(&r, i);
            call->o = part.o;
            call->lse = part.lse;
            call->part = true;
        }
        call->workspace_offset = backend_workspace(plan, a.workspace_offset);
        call->seconds = a.seconds ? &seconds : NULL;
        ATTUNE__TRY(attune__plan_forward(plan, queue, call, value));
        total += seconds;
    }
    if (a.segment_count > 1) {
        ATTUNE__TRY(merge_results(plan, queue, &r, &lse, a.segment_count, a.seconds ? &seconds : NULL, value));
        total += seconds;
    }
    if (a.seconds)
        *a.seconds = total;
    return ATTUNE_OK;
}

attune_status attune__backward_segments(const attune_plan *plan, attune_queue *queue, const attune_backward_args *args,
                                        uint64_t *value)
{
    attune_backward_args a = *args;
    attune__backward_call resolved;
    attune__segment_range range = {.kv_start = 0};
    ATTUNE__TRY(check_segments(plan, a.segments, a.segment_count, &range.kv_total));
    for (uint32_t i = 0; i < a.segment_count; i++) {
        range.segment = &a.segments[i];
        ATTUNE__TRY(name_segment(attune__backward_resolve_at(plan, &a, &range, &resolved), i));
        range.kv_start += range.segment->k.size[2];
    }
    const attune_tensor d_q = resolved.call.d_q;
    const results r = results_of(plan, &resolved.call.forward, &d_q, a.segment_count);
    double seconds = 0, total = 0;
    range.kv_start = 0;
    for (uint32_t i = 0; i < a.segment_count; i++) {
        range.segment = &a.segments[i];
        ATTUNE__TRY(attune__backward_resolve_at(plan, &a, &range, &resolved));
        range.kv_start += range.segment->k.size[2];
        attune__forward *call = &resolved.call.forward;
        if (a.segment_count > 1)
            resolved.call.d_q = result_at(&r, i).o;
        call->workspace_offset = backend_workspace(plan, a.workspace_offset);
        call->seconds = a.seconds ? &seconds : NULL;
        ATTUNE__TRY(plan->device->backend->backward(plan->programs[0], queue, &resolved.call, value));
        total += seconds;
    }
    if (a.segment_count > 1) {
        ATTUNE__TRY(merge_results(plan, queue, &r, NULL, a.segment_count, a.seconds ? &seconds : NULL, value));
        total += seconds;
    }
    if (a.seconds)
        *a.seconds = total;
    return ATTUNE_OK;
}
