/* SPDX-License-Identifier: MIT */
/* Checks the arguments of calls, and resolves captures and parameters in the order of the expression's symbols. */
#include "api/api.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Checks q, k, v and o against the plan and one another. */
static attune_status check_attention(const attune_plan *plan, attune__forward *call, bool o_writable)
{
    const attune__shape *shape = &plan->shape;
    attune__tensor_rule rule = {"q", plan->device, shape->q_dtype, 4, false, true};
    ATTUNE__TRY(attune__tensor_check(&call->q, &rule));
    rule.name = "k";
    rule.dtype = shape->k_dtype;
    ATTUNE__TRY(attune__tensor_check(&call->k, &rule));
    rule.name = "v";
    rule.dtype = shape->v_dtype;
    ATTUNE__TRY(attune__tensor_check(&call->v, &rule));
    rule.name = "o";
    rule.dtype = shape->o_dtype;
    rule.writable = o_writable;
    ATTUNE__TRY(attune__tensor_check(&call->o, &rule));

    call->batch = call->q.size[0];
    call->heads = call->q.size[1];
    call->q_len = call->q.size[2];
    call->kv_heads = call->k.size[1];
    call->kv_len = call->k.size[2];
    call->scale = shape->scale;
    ATTUNE__TRY(attune__check_at_most("batch (q.size[0])", call->batch, shape->batch));
    ATTUNE__TRY(attune__check_size("q", &call->q, 1, "the plan's heads", shape->heads));
    ATTUNE__TRY(attune__check_at_most("q_len (q.size[2])", call->q_len, shape->q_len));
    ATTUNE__TRY(attune__check_size("q", &call->q, 3, "the plan's head_dim", shape->head_dim));
    ATTUNE__TRY(attune__check_size("k", &call->k, 0, shape->kv_batch == 1 ? "the plan's kv_batch" : "the batch of q",
                                   shape->kv_batch == 1 ? 1 : call->batch));
    ATTUNE__TRY(attune__check_size("k", &call->k, 1, "the plan's kv_heads", shape->kv_heads));
    ATTUNE__TRY(attune__check_at_most("kv_len (k.size[2])", call->kv_len, shape->kv_len));
    ATTUNE__TRY(attune__check_size("k", &call->k, 3, "the plan's head_dim", shape->head_dim));
    ATTUNE__TRY(attune__check_size("v", &call->v, 0, "the batch of k", call->k.size[0]));
    ATTUNE__TRY(attune__check_size("v", &call->v, 1, "the heads of k", call->kv_heads));
    ATTUNE__TRY(attune__check_size("v", &call->v, 2, "the length of k", call->kv_len));
    ATTUNE__TRY(attune__check_size("v", &call->v, 3, "the plan's head_dim_v", shape->head_dim_v));
    ATTUNE__TRY(attune__check_size("o", &call->o, 0, "the batch of q", call->batch));
    ATTUNE__TRY(attune__check_size("o", &call->o, 1, "the heads of q", call->heads));
    ATTUNE__TRY(attune__check_size("o", &call->o, 2, "the length of q", call->q_len));
    return attune__check_size("o", &call->o, 3, "the plan's head_dim_v", shape->head_dim_v);
}

/* [tokens, heads] as [1, heads, tokens]. */
static attune_status check_packed_row_tensor(const attune_plan *plan, const attune__forward *call, const char *name,
                                             attune_tensor *tensor)
{
    const attune__tensor_rule rule = {name, plan->device, attune__shape_real(&plan->shape), 2, true, false};
    ATTUNE__TRY(attune__tensor_check(tensor, &rule));
    ATTUNE__TRY(attune__check_size(name, tensor, 0, "the tokens of q", call->q.size[2]));
    ATTUNE__TRY(attune__check_size(name, tensor, 1, "the heads of q", call->heads));
    attune__unpack(tensor);
    return ATTUNE_OK;
}

/* lse, row_max and d_lse: [batch, heads, q_len]. */
static attune_status check_row_tensor(const attune_plan *plan, const attune__forward *call, const char *name,
                                      bool writable, attune_tensor *tensor)
{
    if (call->serving && call->serving->packed)
        return check_packed_row_tensor(plan, call, name, tensor);
    const attune__tensor_rule rule = {name, plan->device, attune__shape_real(&plan->shape), 3, writable, false};
    ATTUNE__TRY(attune__tensor_check(tensor, &rule));
    ATTUNE__TRY(attune__check_size(name, tensor, 0, "the batch of q", call->batch));
    ATTUNE__TRY(attune__check_size(name, tensor, 1, "the heads of q", call->heads));
    return attune__check_size(name, tensor, 2, "the length of q", call->q_len);
}

/* sinks and d_sinks: [heads]. */
static attune_status check_head_tensor(const attune_plan *plan, const char *name, bool writable, attune_tensor *tensor)
{
    const attune__tensor_rule rule = {name, plan->device, attune__shape_real(&plan->shape), 1, writable, false};
    ATTUNE__TRY(attune__tensor_check(tensor, &rule));
    return attune__check_size(name, tensor, 0, "the plan's heads", plan->shape.heads);
}

/* Of segments, the first has the sinks, so that the result counts them once. */
static attune_status check_sinks(const attune_plan *plan, const attune__segment_range *range, attune__forward *call)
{
    if (!plan->shape.sinks)
        return call->sinks.buffer ? attune__fail(ATTUNE_INVALID_ARGUMENT,
                                                 "args.sinks is set, but the plan adds none: set problem.sinks")
                                  : ATTUNE_OK;
    ATTUNE__TRY(check_head_tensor(plan, "sinks", false, &call->sinks));
    if (range && range->kv_start)
        call->sinks.buffer = NULL;
    return ATTUNE_OK;
}

/* The mask of a segment must have been built for this range of keys. */
static attune_status check_segment_range(const attune_mask *mask, const attune__segment_range *range)
{
    if (!mask->kv_total)
        return ATTUNE_OK;
    if (!range)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.mask was built for a segment (desc.kv_total %lld), but the plan has no segments",
                            (long long)mask->kv_total);
    if (mask->kv_start != range->kv_start || mask->kv_total != range->kv_total)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "the mask of the segment at key %lld of %lld was built for one at %lld of %lld: rebuild it",
                            (long long)range->kv_start, (long long)range->kv_total, (long long)mask->kv_start,
                            (long long)mask->kv_total);
    return ATTUNE_OK;
}

/* A mask that broadcasts and does not read the index may be used with any batch or heads. */
static attune_status check_planes(const attune_mask *mask, const attune__forward *call)
{
    const unsigned bit_b = 1u << ATTUNE__VAR_B, bit_h_kv = 1u << ATTUNE__VAR_H_KV;
    const unsigned bits_h = 1u << ATTUNE__VAR_H | bit_h_kv;
    if (mask->batch != call->batch && (mask->stored_batch > 1 || mask->uses & bit_b))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.mask %s and was built for batch %lld, q has %lld: build it with desc.batch %lld",
                            mask->uses & bit_b ? "reads b" : "has lists of each batch", (long long)mask->batch,
                            (long long)call->batch, (long long)call->batch);
    if (mask->heads != call->heads && (mask->stored_heads > 1 || mask->uses & bits_h))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.mask %s and was built for %lld heads, q has %lld: build it with desc.heads %lld",
                            mask->uses & bit_h_kv ? "reads h_kv"
                            : mask->uses & bits_h ? "reads h"
                                                  : "has lists of each head",
                            (long long)mask->heads, (long long)call->heads, (long long)call->heads);
    if (mask->kv_heads != call->kv_heads && mask->uses & bit_h_kv)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "args.mask reads h_kv and was built for kv_heads %lld, k has %lld: build it with desc.kv_heads %lld",
            (long long)mask->kv_heads, (long long)call->kv_heads, (long long)call->kv_heads);
    return ATTUNE_OK;
}

/* The beginning of an expression's text. */
static void print_short(const attune_expr *expr, char text[static 100])
{
    size_t needed = 0;
    snprintf(text, 100, "none");
    if (expr && attune__expr_print(expr, ATTUNE_EXPR_TEXT, text, 100, &needed) == ATTUNE_OK && needed > 100)
        memcpy(text + 96, "...", 4);
}

/* Dense masks of one plane and of several look alike, and have different expressions. */
static attune_status fail_expression(const attune_expr *mask, const attune_expr *plan)
{
    char texts[2][100];
    print_short(mask, texts[0]);
    print_short(plan, texts[1]);
    return attune__fail(
        ATTUNE_INVALID_ARGUMENT,
        "args.mask has another expression than the plan, \"%s\" instead of \"%s\": create a plan for it "
        "(attune_problem_set_mask)",
        texts[0], texts[1]);
}

static attune_status check_mask(const attune_plan *plan, const attune__segment_range *range, attune__forward *call)
{
    const attune__shape *shape = &plan->shape;
    const attune_mask *mask = call->mask;
    if (!mask)
        return shape->block_mask
                   ? attune__fail(ATTUNE_INVALID_ARGUMENT,
                                  "args.mask is NULL, but the plan has a block mask (problem.block_mask): "
                                  "give a mask, or make a plan without one")
                   : ATTUNE_OK;
    if (!shape->block_mask)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.mask is set, but the plan has no block mask: see "
                                                     "attune_problem_set_mask");
    if (mask->from_tensor && !mask->updated)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.mask is computed from a tensor and has no lists yet: call attune_mask_update");
    if (mask->q_block != shape->mask_q_block || mask->kv_block != shape->mask_kv_block)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.mask has blocks of %u x %u, the plan was made for %u x %u",
                            mask->q_block, mask->kv_block, shape->mask_q_block, shape->mask_kv_block);
    ATTUNE__TRY(check_segment_range(mask, range));
    /* A mask without an expression has only full blocks, so that any plan can run it. */
    if (mask->expr && (!plan->mask || memcmp(&mask->expr->hash, &plan->mask->hash, sizeof mask->expr->hash)))
        return fail_expression(mask->expr, plan->mask);
    ATTUNE__TRY(check_planes(mask, call));
    if (mask->q_len < call->q_len || mask->kv_len < call->kv_len)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "args.mask was built for %lld x %lld, which is shorter than q_len %lld x kv_len %lld: rebuild it",
            (long long)mask->q_len, (long long)mask->kv_len, (long long)call->q_len, (long long)call->kv_len);
    const uint16_t length_bits = 1u << ATTUNE__VAR_Q_LEN | 1u << ATTUNE__VAR_KV_LEN;
    if ((mask->uses & length_bits) && (mask->q_len != call->q_len || mask->kv_len != call->kv_len))
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "args.mask uses q_len or kv_len and was built for %lld x %lld, not for %lld x %lld: rebuild it",
            (long long)mask->q_len, (long long)mask->kv_len, (long long)call->q_len, (long long)call->kv_len);
    for (const struct attune__mask_upload *u = mask->uploads; u; u = u->next)
        if (u->device == plan->device) {
            call->device_mask = u->device_mask;
            return ATTUNE_OK;
        }
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.mask is not on device %s: call attune_mask_upload",
                        plan->device->info.id);
}

/* Once per plan, to keep the log short. */
static void warn_short(const attune_plan *plan, const attune__segment_range *range, const attune__forward *call,
                       const attune_tensor *tensors)
{
    atomic_bool *warned = (atomic_bool *)(uintptr_t)&plan->warned;
    if (atomic_load_explicit(warned, memory_order_relaxed))
        return;
    const attune__extents extents = {.of = {[ATTUNE__VAR_B] = call->batch,
                                            [ATTUNE__VAR_H] = call->heads,
                                            [ATTUNE__VAR_H_KV] = call->kv_heads,
                                            [ATTUNE__VAR_Q] = call->q_len,
                                            [ATTUNE__VAR_KV] = range ? range->kv_total : call->kv_len}};
    for (uint32_t i = 0; i < plan->score->symbol_count; i++) {
        const attune__symbol *symbol = &plan->score->symbols[i];
        if (symbol->kind == ATTUNE_SYMBOL_CAPTURE &&
            attune__warn_short_capture(&plan->device->host, "a call", &plan->reads, i, symbol->name, tensors[i].size,
                                       &extents))
            atomic_store_explicit(warned, true, memory_order_relaxed);
    }
}

static attune_status bind_captures(const attune_plan *plan, const attune_capture *captures, uint32_t count,
                                   const attune__segment_range *range, const attune__forward *call,
                                   attune_tensor tensors[ATTUNE_EXPR_MAX_SYMBOLS])
{
    if (!plan->score)
        return ATTUNE_OK;
    ATTUNE__TRY(attune__resolve_captures(plan, plan->score, "score", captures, count, tensors));
    if (!call->serving)
        warn_short(plan, range, call, tensors);
    return ATTUNE_OK;
}

attune_status attune__check_mask_parameters(const attune_expr *expr, const attune__value *values,
                                            const attune_parameter *parameters, uint32_t count)
{
    for (uint32_t i = 0; expr && i < expr->symbol_count; i++) {
        const attune__symbol *symbol = &expr->symbols[i];
        if (symbol->kind != ATTUNE_SYMBOL_PARAMETER)
            continue;
        const bool whole = symbol->dtype == ATTUNE_I32;
        const double built = whole ? (double)values[i].i : (double)values[i].f;
        for (uint32_t j = 0; j < count; j++) {
            if (!parameters[j].name || strcmp(parameters[j].name, symbol->name) != 0)
                continue;
            const double given = whole ? parameters[j].value : (double)(float)parameters[j].value;
            if (given != built && !(isnan(given) && isnan(built)))
                return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                    "args.parameters has \"%s\" = %.9g, but args.mask reads it and was built with "
                                    "%.9g: build the mask again, or give it another name in the score expression",
                                    symbol->name, parameters[j].value, built);
        }
    }
    return ATTUNE_OK;
}

static attune_status bind_parameters(const attune_plan *plan, const attune_parameter *parameters, uint32_t count,
                                     const attune__segment_range *range, const attune_mask *mask,
                                     attune__value values[ATTUNE_EXPR_MAX_SYMBOLS])
{
    if (count)
        ATTUNE__TRY(attune__check_not_null(parameters, "args.parameters"));
    if (mask)
        ATTUNE__TRY(attune__check_mask_parameters(mask->expr, mask->parameters, parameters, count));
    if (!plan->score)
        return ATTUNE_OK;
    if (range)
        return attune__bind_shifted(plan->score, NULL, 0, parameters, count, range->kv_start, range->kv_total, NULL,
                                    values);
    return attune__bind_host(plan->score, NULL, 0, parameters, count, NULL, values);
}

static attune_status check_workspace(const attune_plan *plan, const attune__forward *call)
{
    const uint64_t wanted = plan->decision.choice.workspace;
    return wanted ? attune__workspace_check(plan->device, call->workspace, call->workspace_offset, wanted, "the plan")
                  : ATTUNE_OK;
}

attune_status attune__check_direction(const attune_plan *plan, attune_direction direction)
{
    if (plan->shape.direction != direction)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "the plan's direction is %s, this call is %s",
                            plan->shape.direction == ATTUNE_FORWARD ? "forward" : "backward",
                            direction == ATTUNE_FORWARD ? "forward" : "backward");
    return ATTUNE_OK;
}

attune_status attune__forward_resolve_at(const attune_plan *plan, const attune_forward_args *a,
                                         const attune__segment_range *range, attune__forward_call *resolved)
{
    attune__forward *call = &resolved->call;
    *call = (attune__forward){
        .q = a->q,
        .k = range ? range->segment->k : a->k,
        .v = range ? range->segment->v : a->v,
        .o = a->o,
        .lse = a->lse,
        .row_max = a->row_max,
        .sinks = a->sinks,
        .mask = range ? range->segment->mask : a->mask,
        .captures = resolved->captures,
        .parameters = resolved->parameters,
        .workspace = a->workspace,
        .workspace_offset = a->workspace_offset,
        .seconds = a->seconds,
    };
    if (plan->shape.tokens)
        ATTUNE__TRY(attune__serving_resolve(plan, a, resolved));
    else if (a->cache || a->batch || a->schedule)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.%s is set, but the plan reads no cache: set problem.tokens",
                            a->cache   ? "cache"
                            : a->batch ? "batch"
                                       : "schedule");
    else
        ATTUNE__TRY(check_attention(plan, call, true));
    if (call->lse.buffer) {
        if (!plan->shape.lse)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "args.lse is set, but the plan computes no LSE: set problem.lse");
        ATTUNE__TRY(check_row_tensor(plan, call, "lse", true, &call->lse));
    }
    if (call->row_max.buffer) {
        if (!plan->shape.row_max)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "args.row_max is set, but the plan computes no row maxima: set problem.row_max");
        ATTUNE__TRY(check_row_tensor(plan, call, "row_max", true, &call->row_max));
    }
    ATTUNE__TRY(check_sinks(plan, range, call));
    if (!call->serving)
        ATTUNE__TRY(check_mask(plan, range, call));
    ATTUNE__TRY(bind_captures(plan, a->captures, a->capture_count, range, call, resolved->captures));
    ATTUNE__TRY(bind_parameters(plan, a->parameters, a->parameter_count, range, call->mask, resolved->parameters));
    return check_workspace(plan, call);
}

static attune_status check_no_segments(const attune_plan *plan)
{
    if (plan->shape.segments)
        return attune__fail(
            ATTUNE_UNSUPPORTED,
            "the plan has segments, which recorded calls do not support: use attune_forward or attune_backward");
    return ATTUNE_OK;
}

attune_status attune__forward_resolve(const attune_plan *plan, const attune_forward_args *args,
                                      attune__forward_call *resolved)
{
    ATTUNE__TRY(attune__check_direction(plan, ATTUNE_FORWARD));
    ATTUNE__TRY(check_no_segments(plan));
    attune_forward_args a;
    ATTUNE__TRY(attune__desc_read(&a, sizeof a, args, sizeof a, "args"));
    return attune__forward_resolve_at(plan, &a, NULL, resolved);
}

/* Checks that `tensor` has the type and shape of another tensor, which was checked before. */
static attune_status check_like(const attune_plan *plan, const char *name, const char *of, const attune_tensor *like,
                                bool writable, attune_tensor *tensor)
{
    const attune__tensor_rule rule = {name, plan->device, like->dtype, 4, writable, true};
    ATTUNE__TRY(attune__tensor_check(tensor, &rule));
    for (uint32_t i = 0; i < 4; i++)
        ATTUNE__TRY(attune__check_size(name, tensor, i, of, like->size[i]));
    return ATTUNE_OK;
}

static attune_status check_capture_gradient(const attune_plan *plan, uint32_t symbol, const attune_tensor *capture,
                                            attune_tensor *d_capture, uint64_t *elements)
{
    const attune__symbol *s = &plan->score->symbols[symbol];
    if (s->dtype != ATTUNE_F32 && s->dtype != ATTUNE_F16 && s->dtype != ATTUNE_BF16)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.capture_gradients has \"%s\", which is %s: only "
                            "floating-point captures have gradients",
                            s->name, attune_dtype_string(s->dtype));
    ATTUNE__TRY(attune__tensor_check(d_capture,
                                     &(attune__tensor_rule){s->name, plan->device, ATTUNE_F32, s->rank, true, false}));
    uint64_t count = 1;
    for (uint32_t i = 0; i < s->rank; i++) {
        ATTUNE__TRY(attune__check_size(s->name, d_capture, i, "the capture's size", capture->size[i]));
        count *= (uint64_t)d_capture->size[i]; /* distinct elements of one buffer: no overflow */
    }
    *elements += count;
    return ATTUNE_OK;
}

/* Resolves capture gradients in the order of the score expression's symbols; buffer NULL = not requested. */
static attune_status bind_capture_gradients(const attune_plan *plan, const attune_capture *gradients, uint32_t count,
                                            const attune_tensor *captures, attune_tensor *d_captures)
{
    if (count)
        ATTUNE__TRY(attune__check_not_null(gradients, "args.capture_gradients"));
    const uint32_t symbols = plan->score ? plan->score->symbol_count : 0;
    for (uint32_t i = 0; i < symbols; i++)
        d_captures[i].buffer = NULL;
    uint64_t elements = 0;
    for (uint32_t j = 0; j < count; j++) {
        ATTUNE__TRY(attune__check_not_null(gradients[j].name, "args.capture_gradients[].name"));
        uint32_t i = 0;
        while (i < symbols && (plan->score->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE ||
                               strcmp(plan->score->symbols[i].name, gradients[j].name) != 0))
            i++;
        if (i == symbols)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "args.capture_gradients has \"%s\", which is not a capture of the score expression",
                                gradients[j].name);
        if (d_captures[i].buffer)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.capture_gradients has \"%s\" twice", gradients[j].name);
        d_captures[i] = gradients[j].tensor;
        ATTUNE__TRY(check_capture_gradient(plan, i, &captures[i], &d_captures[i], &elements));
    }
    if (elements > plan->shape.capture_gradient_elements)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.capture_gradients have %llu elements, but the plan's limit is %llu: raise "
                            "problem.capture_gradient_elements",
                            (unsigned long long)elements, (unsigned long long)plan->shape.capture_gradient_elements);
    return ATTUNE_OK;
}

attune_status attune__backward_resolve_at(const attune_plan *plan, const attune_backward_args *a,
                                          const attune__segment_range *range, attune__backward_call *resolved)
{
    attune__backward *back = &resolved->call;
    *back = (attune__backward){
        .forward = {.q = a->q,
                    .k = range ? range->segment->k : a->k,
                    .v = range ? range->segment->v : a->v,
                    .o = a->o,
                    .lse = a->lse,
                    .sinks = a->sinks,
                    .mask = range ? range->segment->mask : a->mask,
                    .captures = resolved->captures,
                    .parameters = resolved->parameters,
                    .workspace = a->workspace,
                    .workspace_offset = a->workspace_offset,
                    .seconds = a->seconds},
        .d_o = a->d_o,
        .d_lse = a->d_lse,
        .d_q = a->d_q,
        .d_k = range ? range->segment->d_k : a->d_k,
        .d_v = range ? range->segment->d_v : a->d_v,
        .d_captures = resolved->d_captures,
        .d_sinks = a->d_sinks,
    };
    attune__forward *call = &back->forward;
    ATTUNE__TRY(check_attention(plan, call, false));
    ATTUNE__TRY(check_row_tensor(plan, call, "lse", false, &call->lse));
    ATTUNE__TRY(check_like(plan, "d_o", "the size of o", &call->o, false, &back->d_o));
    if (back->d_lse.buffer)
        ATTUNE__TRY(check_row_tensor(plan, call, "d_lse", false, &back->d_lse));
    ATTUNE__TRY(check_like(plan, "d_q", "the size of q", &call->q, true, &back->d_q));
    ATTUNE__TRY(check_like(plan, "d_k", "the size of k", &call->k, true, &back->d_k));
    ATTUNE__TRY(check_like(plan, "d_v", "the size of v", &call->v, true, &back->d_v));
    if (back->d_sinks.buffer) {
        if (!plan->shape.sinks)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.d_sinks is set, but the plan adds no sinks");
        ATTUNE__TRY(check_head_tensor(plan, "d_sinks", true, &back->d_sinks));
    }
    ATTUNE__TRY(check_sinks(plan, range, call));
    if (!call->sinks.buffer)
        back->d_sinks.buffer = NULL;
    ATTUNE__TRY(check_mask(plan, range, call));
    ATTUNE__TRY(bind_captures(plan, a->captures, a->capture_count, range, call, resolved->captures));
    ATTUNE__TRY(bind_parameters(plan, a->parameters, a->parameter_count, range, call->mask, resolved->parameters));
    ATTUNE__TRY(bind_capture_gradients(plan, a->capture_gradients, a->capture_gradient_count, resolved->captures,
                                       resolved->d_captures));
    return check_workspace(plan, call);
}

attune_status attune__backward_resolve(const attune_plan *plan, const attune_backward_args *args,
                                       attune__backward_call *resolved)
{
    ATTUNE__TRY(attune__check_direction(plan, ATTUNE_BACKWARD));
    ATTUNE__TRY(check_no_segments(plan));
    attune_backward_args a;
    ATTUNE__TRY(attune__desc_read(&a, sizeof a, args, sizeof a, "args"));
    return attune__backward_resolve_at(plan, &a, NULL, resolved);
}
