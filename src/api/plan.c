/* SPDX-License-Identifier: MIT */
/* Plans: the planner's choice for a device, with its programs. */
#include "api/api.h"

#include <stdio.h>
#include <string.h>

attune_status attune_problem_set_mask(attune_problem *problem, const attune_mask *mask)
{
    ATTUNE__TRY(attune__check_not_null(problem, "problem"));
    ATTUNE__TRY(attune__check_not_null(mask, "mask"));
    problem->mask = mask->expr;
    problem->block_mask = true;
    problem->mask_q_block = mask->q_block;
    problem->mask_kv_block = mask->kv_block;
    return ATTUNE_OK;
}

static attune_status check_expr(const attune_expr *expr, attune_expr_kind kind, const char *name)
{
    if (expr && expr->kind != kind)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.%s is a %s expression, expected a %s expression", name,
                            expr->kind == ATTUNE_EXPR_MASK ? "mask" : "score",
                            kind == ATTUNE_EXPR_MASK ? "mask" : "score");
    return ATTUNE_OK;
}

/* Only calls over a cache have rows that are not b * q_len + q. */
static attune_status retain(const attune_problem *p, const attune_expr *expr, const attune_expr **retained)
{
    *retained = NULL;
    if (!expr)
        return ATTUNE_OK;
    attune_expr *made;
    ATTUNE__TRY((p->tokens ? attune__expr_ragged : attune__expr_dense)(&expr->allocator, expr, &made));
    *retained = made;
    return ATTUNE_OK;
}

attune_status attune__plan_init(attune_plan *plan, const attune_limits *limits, const attune_problem *problem,
                                const attune_kernel_options *options)
{
    ATTUNE__TRY(attune__shape_from_problem(problem, &plan->shape));
    attune_problem p;
    ATTUNE__TRY(attune__desc_read(&p, sizeof p, problem, sizeof p, "problem"));
    ATTUNE__TRY(check_expr(p.mask, ATTUNE_EXPR_MASK, "mask"));
    ATTUNE__TRY(check_expr(p.score, ATTUNE_EXPR_SCORE, "score"));
    ATTUNE__TRY(retain(&p, p.mask, &plan->mask));
    ATTUNE__TRY(retain(&p, p.score, &plan->score));
    if (plan->score && p.segments) {
        attune_expr *shifted;
        ATTUNE__TRY(attune__expr_shift(&plan->score->allocator, plan->score, &shifted));
        attune__expr_release(plan->score);
        plan->score = shifted;
    }
    if (plan->score)
        plan->reads = attune__expr_direct_reads(plan->score);
    if (plan->score && plan->shape.direction == ATTUNE_BACKWARD)
        ATTUNE__TRY(attune__gradient_create(plan->score, &plan->gradient));
    plan->shape.expr = attune__analyse(plan->mask, plan->score, plan->gradient);
    const attune_expr *exprs[3] = {plan->mask, plan->score, plan->gradient ? plan->gradient->expr : NULL};
    for (int i = 0; i < 3; i++)
        if (exprs[i]) {
            const uint32_t columns = plan->shape.mask_kv_block;
            const uint64_t bytes = exprs[i]->kind == ATTUNE_EXPR_MASK ? attune__expr_tile_size(exprs[i], columns)
                                                                      : attune__expr_scratch_size(exprs[i], columns);
            if (bytes > plan->shape.expr_scratch)
                plan->shape.expr_scratch = bytes;
        }
    if (plan->mask && plan->shape.tokens)
        plan->shape.bounds_scratch = plan->mask->node_count * sizeof(attune__interval);
    plan->options = (attune_kernel_options){.struct_size = sizeof plan->options};
    if (options)
        ATTUNE__TRY(attune__desc_read(&plan->options, sizeof plan->options, options, sizeof plan->options, "options"));
    return attune__plan_choose(limits, &plan->shape, &plan->options, &plan->decision);
}

attune_status attune_plan_choose(const attune_limits *limits, const attune_problem *problem,
                                 const attune_kernel_options *options, attune_plan_choice *choice)
{
    attune_plan plan = {.device = NULL};
    attune_status status = attune__plan_init(&plan, limits, problem, options);
    if (status == ATTUNE_OK)
        status = attune__desc_write(choice, &plan.decision.choice, sizeof *choice, sizeof *choice, "choice");
    attune__plan_finish(&plan);
    return status;
}

attune_status attune_plan_choose_explain(const attune_limits *limits, const attune_problem *problem,
                                         const attune_kernel_options *options, attune_text_format format, char *buffer,
                                         size_t size, size_t *needed)
{
    if (size && !buffer)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "buffer is NULL, but size is %zu", size);
    if (format != ATTUNE_TEXT && format != ATTUNE_JSON)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "format is %d, expected ATTUNE_TEXT or ATTUNE_JSON", (int)format);
    attune_plan plan = {.device = NULL};
    attune_status status = attune__plan_init(&plan, limits, problem, options);
    if (status == ATTUNE_OK)
        status = attune__plan_explain(limits, &plan.shape, &plan.options, &plan.decision, format, buffer, size, needed);
    attune__plan_finish(&plan);
    return status;
}

static attune_status check_supported(const attune_plan_choice *choice, const attune__backend *backend, const char *who)
{
    bool missing = choice->direction == ATTUNE_BACKWARD ? !backend->backward
                   : choice->decode                     ? !backend->decode
                                                        : !backend->forward;
    if (!missing)
        return ATTUNE_OK;
    return attune__fail(ATTUNE_UNSUPPORTED, "%s has no %s pass: %s", who,
                        choice->direction == ATTUNE_BACKWARD ? "backward"
                        : choice->decode                     ? "decode"
                                                             : "forward",
                        backend->missing_reason);
}

attune_status attune__plan_supported(const attune_plan *plan, const attune__backend *backend, const char *who)
{
    const attune__decision *d = &plan->decision;
    ATTUNE__TRY(check_supported(&d->choice, backend, who));
    return d->choice.short_q_len ? check_supported(&d->short_choice, backend, who) : ATTUNE_OK;
}

uint32_t attune__plan_programs(const attune_plan *plan, attune__shape *short_shape,
                               attune__program_desc descs[ATTUNE__PLAN_PROGRAMS])
{
    const attune__decision *d = &plan->decision;
    *short_shape = attune__shape_of_short(&plan->shape, d);
    descs[0] =
        (attune__program_desc){&plan->shape, &d->choice, &d->variant, plan->mask, plan->score, plan->gradient, NULL};
    descs[1] = descs[0];
    descs[1].shape = short_shape;
    descs[1].choice = &d->short_choice;
    descs[1].variant = &d->short_variant;
    return d->choice.short_q_len ? 2 : 1;
}

static void destroy_programs(attune_plan *plan)
{
    for (uint32_t i = 0; i < ATTUNE__PLAN_PROGRAMS; i++)
        if (plan->programs[i])
            plan->device->backend->program_destroy(plan->programs[i]);
    memset(plan->programs, 0, sizeof plan->programs);
}

static attune_status create_programs(attune_plan *plan, uint32_t *invocations)
{
    attune_device *device = plan->device;
    char who[64];
    snprintf(who, sizeof who, "device %s", device->info.id);
    ATTUNE__TRY(attune__plan_supported(plan, device->backend, who));
    attune__shape short_shape;
    attune__program_desc descs[ATTUNE__PLAN_PROGRAMS];
    const uint32_t count = attune__plan_programs(plan, &short_shape, descs);
    for (uint32_t i = 0; i < count; i++)
        descs[i].invocations = invocations;
    return device->backend->programs_create(device, descs, count, plan->programs);
}

static attune_status prepare(attune_plan *plan, const attune_problem *problem, const attune_kernel_options *options,
                             bool partial)
{
    attune_device *device = plan->device;
    attune_limits limits = device->info.limits;
    uint32_t invocations = 0;
    ATTUNE__TRY(attune__plan_init(plan, &limits, problem, options));
    plan->shape.partial = partial;
    attune_status status = create_programs(plan, &invocations);
    if (status == ATTUNE_COMPILE_FAILED && invocations && invocations < limits.workgroup_invocations) {
        attune__log(&device->host, ATTUNE_LOG_WARNING, "device %s: a kernel has %u of %u invocations: a smaller tile",
                    device->info.id, invocations, limits.workgroup_invocations);
        destroy_programs(plan);
        attune__plan_finish(plan);
        *plan = (attune_plan){.device = device};
        limits.workgroup_invocations = invocations;
        ATTUNE__TRY(attune__plan_init(plan, &limits, problem, options));
        plan->shape.partial = partial;
        status = create_programs(plan, NULL);
    }
    if (status == ATTUNE_OK && plan->shape.segments > 1)
        status = attune__merger_make(device, &plan->merger);
    return status;
}

attune_status attune_plan_create(attune_device *device, const attune_problem *problem,
                                 const attune_kernel_options *options, attune_plan **plan)
{
    return attune__plan_create(device, problem, options, false, plan);
}

attune_status attune__plan_create(attune_device *device, const attune_problem *problem,
                                  const attune_kernel_options *options, bool partial, attune_plan **plan)
{
    ATTUNE__TRY(attune__check_not_null(plan, "plan"));
    *plan = NULL;
    ATTUNE__TRY(attune__device_check(device));
    ATTUNE__TRY(attune__check_not_null(problem, "problem"));
    attune_plan *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->device = attune__device_retain(device);
    attune_status status = prepare(made, problem, options, partial);
    if (status != ATTUNE_OK) {
        attune_plan_destroy(made);
        return status;
    }
    *plan = made;
    return ATTUNE_OK;
}

void attune__plan_finish(attune_plan *plan)
{
    attune__gradient_destroy(plan->gradient);
    attune__expr_release(plan->mask);
    attune__expr_release(plan->score);
}

void attune_plan_destroy(attune_plan *plan)
{
    if (!plan)
        return;
    attune_device *device = plan->device;
    destroy_programs(plan);
    if (plan->merger)
        device->backend->merger_destroy(plan->merger);
    attune__plan_finish(plan);
    attune_allocator allocator = device->host.allocator;
    attune__free(&allocator, plan);
    attune__device_release(device);
}

attune_status attune_plan_choice_get(const attune_plan *plan, attune_plan_choice *choice)
{
    ATTUNE__TRY(attune__check_not_null(plan, "plan"));
    return attune__desc_write(choice, &plan->decision.choice, sizeof *choice, sizeof *choice, "choice");
}

attune_status attune_plan_choice_at(const attune_plan *plan, int64_t q_len, int64_t kv_len, attune_plan_choice *choice)
{
    ATTUNE__TRY(attune__check_not_null(plan, "plan"));
    const attune__shape *s = &plan->shape;
    if (q_len < 1 || q_len > s->q_len || kv_len < 1 || kv_len > s->kv_len)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "q_len is %lld and kv_len %lld, the plan serves 1 to %lld and %lld", (long long)q_len,
                            (long long)kv_len, (long long)s->q_len, (long long)s->kv_len);
    return attune__desc_write(choice, attune__plan_choice(plan, q_len, kv_len), sizeof *choice, sizeof *choice,
                              "choice");
}

attune_status attune_plan_explain(const attune_plan *plan, attune_text_format format, char *buffer, size_t size,
                                  size_t *needed)
{
    ATTUNE__TRY(attune__check_not_null(plan, "plan"));
    if (size)
        ATTUNE__TRY(attune__check_not_null(buffer, "buffer"));
    if (format != ATTUNE_TEXT && format != ATTUNE_JSON)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "format is %d, expected ATTUNE_TEXT or ATTUNE_JSON", (int)format);
    return attune__plan_explain(&plan->device->info.limits, &plan->shape, &plan->options, &plan->decision, format,
                                buffer, size, needed);
}

uint64_t attune_plan_workspace_size(const attune_plan *plan)
{
    return plan ? plan->decision.choice.workspace : 0;
}

attune_status attune__plan_forward(const attune_plan *plan, attune_queue *queue, const attune__forward *call,
                                   uint64_t *value)
{
    const attune__backend *backend = plan->device->backend;
    const bool is_short = attune__decision_is_short(&plan->decision, call->q_len, call->kv_len);
    const bool decode = is_short || plan->decision.choice.decode;
    return (decode ? backend->decode : backend->forward)(plan->programs[is_short], queue, call, value);
}
