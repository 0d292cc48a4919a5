/* SPDX-License-Identifier: MIT */
/* The hot calls: check, resolve, launch. Nothing here allocates, compiles or waits. */
#include "api/api.h"

static attune_status check_plan(const attune_plan *plan, const attune_queue *queue)
{
    ATTUNE__TRY(attune__check_not_null(plan, "plan"));
    return attune__queue_check(queue, plan->device, "plan");
}

static attune_status check_no_given_segments(uint32_t count)
{
    if (count)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.segment_count is %u, but the plan has no segments: set problem.segments", count);
    return ATTUNE_OK;
}

attune_status attune_forward(const attune_plan *plan, attune_queue *queue, const attune_forward_args *args,
                             attune_completion *completion)
{
    ATTUNE__TRY(check_plan(plan, queue));
    ATTUNE__TRY(attune__check_direction(plan, ATTUNE_FORWARD));
    attune_forward_args a;
    ATTUNE__TRY(attune__desc_read(&a, sizeof a, args, sizeof a, "args"));
    uint64_t value = 0;
    if (plan->shape.segments) {
        ATTUNE__TRY(attune__forward_segments(plan, queue, &a, &value));
    } else {
        attune__forward_call resolved;
        ATTUNE__TRY(check_no_given_segments(a.segment_count));
        ATTUNE__TRY(attune__forward_resolve_at(plan, &a, NULL, &resolved));
        ATTUNE__TRY(attune__plan_forward(plan, queue, &resolved.call, completion ? &value : NULL));
    }
    if (completion)
        *completion = (attune_completion){queue, value};
    return ATTUNE_OK;
}

attune_status attune_schedule(const attune_plan *plan, attune_queue *queue, const attune_forward_args *args,
                              attune_completion *completion)
{
    ATTUNE__TRY(check_plan(plan, queue));
    attune__forward_call resolved;
    ATTUNE__TRY(attune__forward_resolve(plan, args, &resolved));
    const attune__serving *serving = resolved.call.serving;
    if (!serving)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "the plan reads no cache: set problem.tokens");
    const attune__backend *backend = plan->device->backend;
    if (!backend->schedule)
        return attune__fail(ATTUNE_UNSUPPORTED, "device %s has no schedules: each call divides its own work",
                            plan->device->info.id);
    ATTUNE__TRY(attune__check_not_null(serving->schedule, "args.schedule"));
    uint64_t value = 0;
    ATTUNE__TRY(backend->schedule(plan->programs[0], queue, &resolved.call, &value));
    if (completion)
        *completion = (attune_completion){queue, value};
    return ATTUNE_OK;
}

attune_status attune_backward(const attune_plan *plan, attune_queue *queue, const attune_backward_args *args,
                              attune_completion *completion)
{
    ATTUNE__TRY(check_plan(plan, queue));
    ATTUNE__TRY(attune__check_direction(plan, ATTUNE_BACKWARD));
    attune_backward_args a;
    ATTUNE__TRY(attune__desc_read(&a, sizeof a, args, sizeof a, "args"));
    uint64_t value = 0;
    if (plan->shape.segments) {
        ATTUNE__TRY(attune__backward_segments(plan, queue, &a, &value));
    } else {
        attune__backward_call resolved;
        ATTUNE__TRY(check_no_given_segments(a.segment_count));
        ATTUNE__TRY(attune__backward_resolve_at(plan, &a, NULL, &resolved));
        ATTUNE__TRY(
            plan->device->backend->backward(plan->programs[0], queue, &resolved.call, completion ? &value : NULL));
    }
    if (completion)
        *completion = (attune_completion){queue, value};
    return ATTUNE_OK;
}

attune_status attune_completion_wait(attune_completion completion, uint64_t timeout_ns)
{
    ATTUNE__TRY(attune__check_not_null(completion.queue, "completion.queue"));
    attune_device *device = completion.queue->device;
    ATTUNE__TRY(attune__device_check(device));
    if (!device->backend->wait)
        return ATTUNE_OK;
    return device->backend->wait(completion.queue, completion.value, timeout_ns);
}
