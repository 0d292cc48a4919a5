/* SPDX-License-Identifier: MIT */
/* One attention problem on a device, through the public API as an engine would: mask, plan, buffers, launch, results.
 */
#include "tests/oracle/segments.h"

#include <string.h>

typedef struct resources {
    attune_mask *mask;
    segments cut;
    attune_segment segments[SEGMENTS_MAX];
    attune_plan *plan;
    attune_buffer *q, *k, *v, *sinks, *o, *lse, *row_max, *workspace;
    attune_buffer *captures[ATTUNE_EXPR_MAX_SYMBOLS], *d_captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_plan *backward;
    attune_buffer *d_o, *d_lse, *d_q, *d_k, *d_v, *scratch;
} resources;

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        attune_status status_ = (call);                                                                                \
        if (status_ != ATTUNE_OK)                                                                                      \
            return status_;                                                                                            \
    } while (0)

/* A contiguous tensor with an array's contents, or space for them. */
static attune_status upload(attune_device *device, const array *a, bool contents, attune_buffer **buffer,
                            attune_tensor *tensor)
{
    TRY(attune_buffer_create(device, array_bytes(a), buffer));
    if (contents)
        TRY(attune_buffer_write(*buffer, 0, a->data, array_bytes(a)));
    *tensor = (attune_tensor){.buffer = *buffer, .dtype = a->dtype, .rank = a->rank};
    memcpy(tensor->size, a->size, sizeof tensor->size);
    return ATTUNE_OK;
}

/* One mask, or one for each segment. */
static attune_status make_masks(attune_instance *instance, attune_device *device, const attention *a,
                                const attention_run *run, attune_problem *problem, resources *r)
{
    const attune_mask_desc desc = {
        .struct_size = sizeof desc,
        .q_block = run->mask_q_block,
        .kv_block = run->mask_kv_block,
        .batch = problem->batch,
        .heads = problem->heads,
        .kv_heads = problem->kv_heads,
        .q_len = problem->q_len,
        .kv_len = problem->kv_len,
    };
    if (run->segments) {
        segments_cut(&r->cut, run->segments, run->segment_count);
        return segments_build(instance, device, a, &desc, &r->cut, problem);
    }
    return a->mask ? attention_mask(instance, device, a, &desc, problem, &r->mask) : ATTUNE_OK;
}

static attune_status make_plans(attune_instance *instance, attune_device *device, const attention *a,
                                attention_run *run, resources *r)
{
    attune_problem problem = {
        .struct_size = sizeof problem,
        .dtype = a->q.dtype,
        .kv_dtype = a->k.dtype,
        .o_dtype = attention_o_dtype(a),
        .head_dim = (uint32_t)a->q.size[3],
        .head_dim_v = (uint32_t)a->v.size[3],
        .batch = a->q.size[0],
        .kv_batch = a->k.size[0],
        .heads = a->q.size[1],
        .kv_heads = a->k.size[1],
        .q_len = a->q.size[2],
        .kv_len = a->k.size[2],
        .scale = a->scale,
        .score = a->score,
        .lse = run->lse != NULL || run->gradients,
        .row_max = run->row_max != NULL,
        .sinks = a->sinks.data != NULL,
    };
    TRY(make_masks(instance, device, a, run, &problem, r));
    TRY(attune_plan_create(device, &problem, run->options, &r->plan));
    if (run->choice) {
        run->choice->struct_size = sizeof *run->choice;
        TRY(attune_plan_choice_get(r->plan, run->choice));
    }
    if (!run->gradients)
        return ATTUNE_OK;
    problem.direction = ATTUNE_BACKWARD;
    problem.capture_gradient_elements = attention_capture_elements(a, run->gradients->captures);
    return attune_plan_create(device, &problem, run->options, &r->backward);
}

/* Zeros, since gradients of captures are added to. */
static attune_status upload_zeros(attune_device *device, const array *shape, attune_buffer **buffer,
                                  attune_tensor *tensor)
{
    failure why;
    array zeros;
    if (!array_create(&zeros, ATTUNE_F32, shape->rank, shape->size, &why))
        return ATTUNE_OUT_OF_HOST_MEMORY;
    memset(zeros.data, 0, array_bytes(&zeros));
    attune_status status = upload(device, &zeros, true, buffer, tensor);
    array_free(&zeros);
    return status;
}

static attune_status run_backward(attune_device *device, const attention *a, const attention_run *run,
                                  const attune_forward_args *forward, resources *r)
{
    const attention_gradients *g = run->gradients;
    attune_backward_args args = {
        .struct_size = sizeof args,
        .q = forward->q,
        .k = forward->k,
        .v = forward->v,
        .sinks = forward->sinks,
        .o = forward->o,
        .lse = forward->lse,
        .mask = forward->mask,
        .captures = forward->captures,
        .capture_count = forward->capture_count,
        .parameters = forward->parameters,
        .parameter_count = forward->parameter_count,
    };
    attune_capture wanted[ATTUNE_EXPR_MAX_SYMBOLS];
    TRY(upload(device, g->d_o, true, &r->d_o, &args.d_o));
    if (g->d_lse)
        TRY(upload(device, g->d_lse, true, &r->d_lse, &args.d_lse));
    TRY(upload(device, &a->q, false, &r->d_q, &args.d_q));
    TRY(upload(device, &a->k, false, &r->d_k, &args.d_k));
    TRY(upload(device, &a->v, false, &r->d_v, &args.d_v));
    for (uint32_t i = 0; i < a->capture_count; i++)
        if (g->captures >> i & 1) {
            array shape = {.rank = a->captures[i].array.rank};
            memcpy(shape.size, a->captures[i].array.size, sizeof shape.size);
            attune_capture *capture = &wanted[args.capture_gradient_count++];
            capture->name = a->captures[i].name;
            TRY(upload_zeros(device, &shape, &r->d_captures[i], &capture->tensor));
        }
    args.capture_gradients = wanted;
    const uint64_t workspace = attune_plan_workspace_size(r->backward);
    if (workspace)
        TRY(attune_buffer_create(device, workspace, &r->scratch));
    args.workspace = r->scratch;
    args.segments = forward->segments;
    args.segment_count = forward->segment_count;
    segments_views(&r->cut, &args.k, &args.v, &args.d_k, &args.d_v, r->segments);
    attune_completion completion;
    TRY(attune_backward(r->backward, attune_device_queue(device), &args, &completion));
    return attune_completion_wait(completion, UINT64_MAX);
}

static attune_status run_on(attune_instance *instance, attune_device *device, const attention *a, attention_run *run,
                            resources *r)
{
    TRY(make_plans(instance, device, a, run, r));
    attune_forward_args args = {.struct_size = sizeof args, .mask = r->mask};
    const attune_dtype rows = a->q.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    const array o = {
        .dtype = attention_o_dtype(a), .rank = 4, .size = {a->q.size[0], a->q.size[1], a->q.size[2], a->v.size[3]}};
    const array row = {.dtype = rows, .rank = 3, .size = {a->q.size[0], a->q.size[1], a->q.size[2]}};
    TRY(upload(device, &a->q, true, &r->q, &args.q));
    TRY(upload(device, &a->k, true, &r->k, &args.k));
    TRY(upload(device, &a->v, true, &r->v, &args.v));
    if (a->sinks.data)
        TRY(upload(device, &a->sinks, true, &r->sinks, &args.sinks));
    TRY(upload(device, &o, false, &r->o, &args.o));
    if (run->lse || run->gradients)
        TRY(upload(device, &row, false, &r->lse, &args.lse));
    if (run->row_max)
        TRY(upload(device, &row, false, &r->row_max, &args.row_max));
    attune_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    for (uint32_t i = 0; i < a->capture_count; i++) {
        const attune_array *h = &a->captures[i].array;
        array data = {.dtype = h->dtype, .rank = h->rank, .data = (void *)(uintptr_t)h->data};
        memcpy(data.size, h->size, sizeof data.size);
        captures[i].name = a->captures[i].name;
        TRY(upload(device, &data, true, &r->captures[i], &captures[i].tensor));
    }
    uint64_t workspace = attune_plan_workspace_size(r->plan);
    if (workspace)
        TRY(attune_buffer_create(device, workspace, &r->workspace));
    args.captures = captures;
    args.capture_count = a->capture_count;
    args.parameters = a->parameters;
    args.parameter_count = a->parameter_count;
    args.workspace = r->workspace;
    if (run->segments) {
        args.segments = r->segments;
        args.segment_count = run->segment_count;
        segments_views(&r->cut, &args.k, &args.v, NULL, NULL, r->segments);
    }
    attune_completion completion;
    TRY(attune_forward(r->plan, attune_device_queue(device), &args, &completion));
    if (run->gradients)
        TRY(run_backward(device, a, run, &args, r));
    return attune_completion_wait(completion, UINT64_MAX);
}

/* Reads a result back into a float64 array of its shape. */
static attune_status collect(attune_buffer *buffer, attune_dtype dtype, uint32_t rank, const int64_t *size, array *out,
                             failure *why)
{
    array raw;
    if (!array_create(&raw, dtype, rank, size, why))
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune_status status = attune_buffer_read(buffer, 0, raw.data, array_bytes(&raw));
    if (status == ATTUNE_OK && !array_convert(&raw, ATTUNE_F64, out, why))
        status = ATTUNE_OUT_OF_HOST_MEMORY;
    array_free(&raw);
    return status;
}

static attune_status collect_gradients(const attention *a, const resources *r, attention_gradients *g, failure *why)
{
    TRY(collect(r->d_q, a->q.dtype, 4, a->q.size, &g->d_q, why));
    TRY(collect(r->d_k, a->k.dtype, 4, a->k.size, &g->d_k, why));
    TRY(collect(r->d_v, a->v.dtype, 4, a->v.size, &g->d_v, why));
    for (uint32_t i = 0; i < a->capture_count; i++)
        if (g->captures >> i & 1)
            TRY(collect(r->d_captures[i], ATTUNE_F32, a->captures[i].array.rank, a->captures[i].array.size,
                        &g->d_captures[i], why));
    return ATTUNE_OK;
}

void attention_gradients_free(attention_gradients *gradients)
{
    array_free(&gradients->d_q);
    array_free(&gradients->d_k);
    array_free(&gradients->d_v);
    for (uint32_t i = 0; i < ATTUNE_EXPR_MAX_SYMBOLS; i++)
        array_free(&gradients->d_captures[i]);
}

attune_status attention_forward(attune_instance *instance, attune_device *device, const attention *a,
                                attention_run *run)
{
    resources r = {0};
    failure why;
    array results[3] = {{0}};
    array *wanted[3] = {run->o, run->lse, run->row_max};
    const attune_dtype rows = a->q.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    const int64_t size[4] = {a->q.size[0], a->q.size[1], a->q.size[2], a->v.size[3]};
    attune_status status = run_on(instance, device, a, run, &r);
    attune_buffer *buffers[3] = {r.o, r.lse, r.row_max};
    for (int i = 0; i < 3 && status == ATTUNE_OK; i++)
        if (wanted[i])
            status = collect(buffers[i], i ? rows : attention_o_dtype(a), i ? 3 : 4, size, &results[i], &why);
    if (run->gradients && status == ATTUNE_OK) {
        status = collect_gradients(a, &r, run->gradients, &why);
        if (status != ATTUNE_OK)
            attention_gradients_free(run->gradients);
    }
    for (int i = 0; i < 3; i++) {
        if (status == ATTUNE_OK && wanted[i])
            *wanted[i] = results[i];
        else
            array_free(&results[i]);
    }
    attune_mask_destroy(r.mask);
    segments_finish(&r.cut);
    attune_plan_destroy(r.plan);
    attune_plan_destroy(r.backward);
    attune_buffer *all[] = {r.q,         r.sinks, r.k,     r.v,   r.o,   r.lse, r.row_max,
                            r.workspace, r.d_o,   r.d_lse, r.d_q, r.d_k, r.d_v, r.scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        attune_buffer_destroy(all[i]);
    for (uint32_t i = 0; i < a->capture_count; i++) {
        attune_buffer_destroy(r.captures[i]);
        attune_buffer_destroy(r.d_captures[i]);
    }
    return status;
}
