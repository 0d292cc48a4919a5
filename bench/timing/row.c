/* SPDX-License-Identifier: MIT */
/* Rows: attention on a device, block masks, and calls of peers. */
#include "bench/timing/row_parts.h"

#include "bench/timing/clock.h"
#include "tests/oracle/segments.h"

#include <stdlib.h>
#include <string.h>

#define BUFFERS_MAX (10 + 2 * ATTUNE_EXPR_MAX_SYMBOLS)

/* The resources of one attention row. */
typedef struct bench_setup {
    attention a;
    attune_mask *mask;
    segments cut; /* then there is no `mask` */
    attune_segment views[SEGMENTS_MAX];
    attune_problem problem;
    attune_plan *plan;
    attune_buffer *buffers[BUFFERS_MAX];
    uint32_t buffer_count;
    attune_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_parameter parameters[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_forward_args args;
    attune_queue *queue;
    double seconds;
    attune_status status; /* of the last call */
    /* Training. */
    attune_plan *backward;
    attune_backward_args back;
    attune_capture gradients[ATTUNE_EXPR_MAX_SYMBOLS];
    array d_o;
    attune_instance *instance;
    attune_device *device;
    attune_mask_desc mask_desc;
} bench_setup;

/* ------------------------------------------------------------------------------------------------------------ setup */

static void release(bench_setup *s)
{
    attune_plan_destroy(s->plan);
    attune_plan_destroy(s->backward);
    attune_mask_destroy(s->mask);
    segments_finish(&s->cut);
    array_free(&s->d_o);
    for (uint32_t i = 0; i < s->buffer_count; ++i)
        attune_buffer_destroy(s->buffers[i]);
    workload_release(&s->a);
}

static bool make_buffer(bench_setup *s, attune_device *device, uint64_t size, const void *data, report_row *row)
{
    attune_buffer *buffer;
    attune_status status = attune_buffer_create(device, size ? size : 1, &buffer);
    if (status != ATTUNE_OK)
        return row_fail_call(row, status, "buffer");
    s->buffers[s->buffer_count++] = buffer;
    row->device_bytes += size;
    if (data && size && (status = attune_buffer_write(buffer, 0, data, size)) != ATTUNE_OK)
        return row_fail_call(row, status, "write");
    return true;
}

static bool make_tensor(bench_setup *s, attune_device *device, attune_dtype dtype, uint32_t rank, const int64_t *size,
                        const void *data, attune_tensor *t, report_row *row)
{
    uint64_t bytes = attune_dtype_size(dtype);
    for (uint32_t i = 0; i < rank; ++i)
        bytes *= (uint64_t)size[i];
    if (!make_buffer(s, device, bytes, data, row))
        return false;
    *t = (attune_tensor){.buffer = s->buffers[s->buffer_count - 1], .dtype = dtype, .rank = rank};
    memcpy(t->size, size, rank * sizeof *size);
    return true;
}

/* Builds the mask, or the masks of the segments, and uploads it. */
static attune_status build_masks(bench_setup *s, attune_problem *problem)
{
    if (s->cut.count)
        return segments_build(s->instance, s->device, &s->a, &s->mask_desc, &s->cut, problem);
    return s->a.mask ? attention_mask(s->instance, s->device, &s->a, &s->mask_desc, problem, &s->mask) : ATTUNE_OK;
}

/* Statistics of one mask, or of all masks of the segments. */
static attune_status sum_statistics(const bench_setup *s, report_row *row)
{
    const int64_t *size = s->a.q.size, keys = s->a.k.size[2];
    row->density = row->block_density = 0;
    row->pairs = 0;
    for (uint32_t i = 0; i < (s->cut.count ? s->cut.count : 1); ++i) {
        attune_mask_stats stats = {.struct_size = sizeof stats};
        const attune_status status = attune_mask_stats_get(s->cut.count ? s->cut.masks[i] : s->mask, true, &stats);
        if (status != ATTUNE_OK)
            return status;
        const int64_t length = s->cut.count ? s->cut.start[i + 1] - s->cut.start[i] : keys;
        row->block_density += stats.block_density * (double)length / (double)keys;
        row->pairs += stats.pairs;
        row->mask_bytes += stats.bytes;
        row->device_bytes += stats.bytes;
    }
    row->density = (double)row->pairs / ((double)(size[0] * size[1]) * (double)size[2] * (double)keys);
    return ATTUNE_OK;
}

static bool make_masks(const workload *w, bench_setup *s, report_row *row)
{
    s->mask_desc = (attune_mask_desc){.struct_size = sizeof s->mask_desc,
                                      .batch = w->batch,
                                      .heads = w->heads,
                                      .kv_heads = w->kv_heads,
                                      .q_len = w->q_len,
                                      .kv_len = w->kv_len};
    double begin = clock_seconds();
    attune_status status = build_masks(s, &s->problem);
    row->mask_seconds = s->a.mask ? clock_seconds() - begin : 0;
    if (status != ATTUNE_OK)
        return row_fail_call(row, status, "mask");
    if (!s->a.mask) {
        row->density = row->block_density = 1;
        row->pairs = w->batch * w->heads * w->q_len * w->kv_len;
        return true;
    }
    status = sum_statistics(s, row);
    return status == ATTUNE_OK || row_fail_call(row, status, "mask statistics");
}

static void describe_backward(const attune_plan *plan, report_row *row)
{
    attune_plan_choice c = {.struct_size = sizeof c};
    if (attune_plan_choice_get(plan, &c) == ATTUNE_OK)
        (void)snprintf(row->plan, sizeof row->plan, "%.40s %ux%u, %ux%u", c.kernel ? c.kernel : "?", c.block_m1,
                       c.block_n1, c.block_m2, c.block_n2);
}

/* The plans of the pass, with their times. Backward also needs the forward plan, whose time is not counted. */
static bool make_plans(attune_device *device, const row_options *options, bench_setup *s, report_row *row)
{
    attune_problem problem = s->problem;
    if (!row_plan(device, options, &problem, "plan", &s->plan, row))
        return false;
    row->workspace = attune_plan_workspace_size(s->plan);
    row_describe_plan(s->plan, row);
    if (options->pass == ROW_FORWARD)
        return true;
    if (options->pass == ROW_BACKWARD)
        row->compile_cold = row->compile_warm = 0;
    problem.direction = ATTUNE_BACKWARD;
    problem.lse = false;
    problem.capture_gradient_elements = attention_capture_elements(&s->a, attention_differentiable(&s->a));
    if (!row_plan(device, options, &problem, "plan of backward", &s->backward, row))
        return false;
    describe_backward(s->backward, row);
    return true;
}

/* The captures and parameters that the score expression uses, on the device. */
static bool bind_score(attune_device *device, bench_setup *s, report_row *row)
{
    for (uint32_t i = 0, n = s->a.score ? attune_expr_symbol_count(s->a.score) : 0; i < n; ++i) {
        attune_symbol symbol;
        attune_status status = attune_expr_symbol_get(s->a.score, i, &symbol);
        if (status != ATTUNE_OK)
            return row_fail_call(row, status, "symbol");
        for (uint32_t p = 0; p < s->a.parameter_count; ++p)
            if (!strcmp(s->a.parameters[p].name, symbol.name))
                s->parameters[s->args.parameter_count++] = s->a.parameters[p];
        for (uint32_t c = 0; c < s->a.capture_count; ++c) {
            const attune_array *host = &s->a.captures[c].array;
            if (strcmp(s->a.captures[c].name, symbol.name) != 0)
                continue;
            attune_capture *capture = &s->captures[s->args.capture_count++];
            capture->name = s->a.captures[c].name;
            if (!make_tensor(s, device, host->dtype, host->rank, host->size, host->data, &capture->tensor, row))
                return false;
        }
    }
    s->args.captures = s->captures;
    s->args.parameters = s->parameters;
    return true;
}

static bool make_arguments(attune_device *device, bench_setup *s, report_row *row)
{
    const array *q = &s->a.q, *k = &s->a.k, *v = &s->a.v;
    const attune_dtype o_dtype = attention_o_dtype(&s->a);
    int64_t o[4] = {q->size[0], q->size[1], q->size[2], v->size[3]};
    s->args.struct_size = sizeof s->args;
    s->args.seconds = &s->seconds;
    s->queue = attune_device_queue(device);
    if (!make_tensor(s, device, q->dtype, 4, q->size, q->data, &s->args.q, row) ||
        !make_tensor(s, device, k->dtype, 4, k->size, k->data, &s->args.k, row) ||
        !make_tensor(s, device, v->dtype, 4, v->size, v->data, &s->args.v, row) ||
        !make_tensor(s, device, o_dtype, 4, o, NULL, &s->args.o, row) || !bind_score(device, s, row))
        return false;
    if (row->workspace) {
        if (!make_buffer(s, device, row->workspace, NULL, row))
            return false;
        s->args.workspace = s->buffers[s->buffer_count - 1];
    }
    s->args.segments = s->cut.count ? s->views : NULL;
    s->args.segment_count = s->cut.count;
    row->bytes = (double)attune_dtype_size(q->dtype) * (double)array_count(q) +
                 (double)attune_dtype_size(k->dtype) * ((double)array_count(k) + (double)array_count(v)) +
                 (double)attune_dtype_size(o_dtype) * (double)(o[0] * o[1]) * (double)(o[2] * o[3]);
    return true;
}

static attune_status queue_forward(void *state, attune_queue *queue, uint32_t layer, double *seconds)
{
    bench_setup *s = state;
    (void)layer;
    s->args.mask = s->mask;
    s->args.seconds = seconds;
    return attune_forward(s->plan, queue, &s->args, NULL);
}

static bool forward(void *state, double *seconds)
{
    bench_setup *s = state;
    s->args.mask = s->mask;
    segments_views(&s->cut, &s->args.k, &s->args.v, s->back.d_k.buffer ? &s->back.d_k : NULL, &s->back.d_v, s->views);
    s->status = attune_forward(s->plan, s->queue, &s->args, NULL);
    *seconds = s->seconds;
    return s->status == ATTUNE_OK;
}

/* --------------------------------------------------------------------------------------------------------- training */

/* Fills the output with bytes that are NaN in every dtype, to detect elements that no kernel writes. */
static attune_status fill_with_nan(attune_buffer *buffer)
{
    static unsigned char bytes[1 << 16];
    memset(bytes, 0xff, sizeof bytes);
    attune_status status = ATTUNE_OK;
    uint64_t size = attune_buffer_size(buffer);
    for (uint64_t at = 0; at < size && status == ATTUNE_OK; at += sizeof bytes)
        status = attune_buffer_write(buffer, at, bytes, size - at < sizeof bytes ? size - at : sizeof bytes);
    return status;
}

/* The additional tensors of the backward pass. */
static bool make_gradients(attune_device *device, uint64_t seed, bench_setup *s, report_row *row)
{
    const attune_forward_args *f = &s->args;
    failure why = {{0}};
    random_state random = {seed ^ UINT64_C(0x7570)};
    if (!array_create(&s->d_o, f->o.dtype, 4, f->o.size, &why))
        return row_fail(row, REPORT_FAILED, "%s", why.message);
    array_fill_normal(&s->d_o, &random, 1);
    const attune_dtype rows = f->o.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    attune_backward_args *b = &s->back;
    if (!make_tensor(s, device, rows, 3, f->o.size, NULL, &s->args.lse, row) ||
        !make_tensor(s, device, f->o.dtype, 4, f->o.size, s->d_o.data, &b->d_o, row) ||
        !make_tensor(s, device, f->q.dtype, 4, f->q.size, NULL, &b->d_q, row) ||
        !make_tensor(s, device, f->k.dtype, 4, f->k.size, NULL, &b->d_k, row) ||
        !make_tensor(s, device, f->v.dtype, 4, f->v.size, NULL, &b->d_v, row))
        return false;
    const uint32_t wanted = attention_differentiable(&s->a);
    for (uint32_t c = 0; c < s->a.capture_count; ++c) {
        const attune_array *host = &s->a.captures[c].array;
        if (!(wanted >> c & 1))
            continue;
        attune_capture *gradient = &s->gradients[b->capture_gradient_count++];
        gradient->name = s->a.captures[c].name;
        if (!make_tensor(s, device, ATTUNE_F32, host->rank, host->size, NULL, &gradient->tensor, row))
            return false;
    }
    const uint64_t workspace = attune_plan_workspace_size(s->backward);
    if (!make_buffer(s, device, workspace, NULL, row))
        return false;
    b->workspace = s->buffers[s->buffer_count - 1];
    row->workspace = workspace > row->workspace ? workspace : row->workspace;
    b->struct_size = sizeof *b;
    b->q = f->q;
    b->k = f->k;
    b->v = f->v;
    b->o = f->o;
    b->lse = s->args.lse;
    b->captures = f->captures;
    b->capture_count = f->capture_count;
    b->parameters = f->parameters;
    b->parameter_count = f->parameter_count;
    b->capture_gradients = s->gradients;
    b->segments = f->segments;
    b->segment_count = f->segment_count;
    b->seconds = &s->seconds;
    return true;
}

static bool backward(void *state, double *seconds)
{
    bench_setup *s = state;
    s->back.mask = s->mask;
    s->status = attune_backward(s->backward, s->queue, &s->back, NULL);
    *seconds = s->seconds;
    return s->status == ATTUNE_OK;
}

/* The host's time for the mask plus the device's time for the passes. */
static bool step(void *state, double *seconds)
{
    bench_setup *s = state;
    double begin = clock_seconds(), pass = 0;
    s->status = build_masks(s, NULL);
    if (s->status != ATTUNE_OK)
        return false;
    *seconds = clock_seconds() - begin;
    if (!forward(s, &pass))
        return false;
    *seconds += pass;
    if (!backward(s, &pass))
        return false;
    *seconds += pass;
    return true;
}

static attune_status read_array(const attune_tensor *t, array *read)
{
    failure why = {{0}};
    if (!array_create(read, t->dtype, t->rank, t->size, &why))
        return ATTUNE_OUT_OF_HOST_MEMORY;
    return attune_buffer_read(t->buffer, t->offset, read->data, array_bytes(read));
}

static bool check_backward(bench_setup *s, report_row *row)
{
    double seconds;
    const attune_tensor *const tensors[4] = {&s->back.d_q, &s->back.d_k, &s->back.d_v, &s->back.o};
    array arrays[4] = {{0}};
    for (uint32_t i = 0; i < 3; ++i)
        if ((s->status = fill_with_nan(tensors[i]->buffer)) != ATTUNE_OK)
            return row_fail_call(row, s->status, "write");
    if (!backward(s, &seconds))
        return row_fail_call(row, s->status, "backward");
    attune_status status = ATTUNE_OK;
    for (uint32_t i = 0; i < 4 && status == ATTUNE_OK; ++i)
        status = read_array(tensors[i], &arrays[i]);
    const bool good = status == ATTUNE_OK
                          ? row_check_identities(&s->a, &arrays[3], &s->d_o, &arrays[0], &arrays[1], &arrays[2], row)
                          : row_fail_call(row, status, "read");
    for (uint32_t i = 0; i < 4; ++i)
        array_free(&arrays[i]);
    return good;
}

/* ------------------------------------------------------------------------------------------------------------ check */

static bool check(bench_setup *s, const row_options *options, report_row *row)
{
    failure why = {{0}};
    array o = {0};
    double seconds;
    attune_status status = fill_with_nan(s->args.o.buffer);
    if (status != ATTUNE_OK)
        return row_fail_call(row, status, "write");
    if (!forward(s, &seconds))
        return row_fail_call(row, s->status, "forward");
    if (!array_create(&o, s->args.o.dtype, 4, s->args.o.size, &why))
        return row_fail(row, REPORT_FAILED, "%s", why.message);
    status = attune_buffer_read(s->args.o.buffer, 0, o.data, array_bytes(&o));
    const bool good = status != ATTUNE_OK ? row_fail_call(row, status, "read")
                                          : row_check_o(&s->a, &o, options->seed,
                                                        s->cut.count ? segments_rounding(s->device, &s->a) : 0, row);
    array_free(&o);
    return good;
}

/* ------------------------------------------------------------------------------------------------------------- rows */

void row_attention(attune_instance *instance, attune_device *device, const workload *w, const row_options *options,
                   report_row *row)
{
    bench_setup *s = calloc(1, sizeof *s);
    failure why = {{0}};
    const uint32_t dim_v = w->head_dim_v ? w->head_dim_v : w->head_dim;
    const bool cut = options->segments && w->segments;
    char suffix[32];
    (void)snprintf(suffix, sizeof suffix, "%s%s", cut ? "/segments" : "",
                   options->pass == ROW_BACKWARD ? "/backward"
                   : options->pass == ROW_STEP   ? "/step"
                                                 : "");
    row_describe(device, w, "attention", suffix, options, row);
    if (!s) {
        (void)row_fail(row, REPORT_FAILED, "out of memory");
        return;
    }
    bool good = workload_instantiate(instance, w, options->seed, &s->a, &why);
    if (!good)
        (void)row_fail(row, REPORT_FAILED, "%s", why.message);
    s->instance = instance;
    s->device = device;
    if (cut) {
        int64_t lengths[SEGMENTS_MAX];
        segments_cut(&s->cut, lengths, workload_cut(w, lengths));
    }
    s->problem = row_problem(w, &s->a, options->pass != ROW_FORWARD);
    good = good && make_masks(w, s, row) && make_plans(device, options, s, row) && make_arguments(device, s, row) &&
           (options->pass == ROW_FORWARD || make_gradients(device, options->seed, s, row));
    /* For each allowed pair a dot product over head_dim and a sum over head_dim_v, with two operations per term. */
    row->flop = row->pairs > 0 ? 2 * (double)row->pairs * ((double)w->head_dim + (double)dim_v) : 0;
    /* Backward has five matrix products, forward two. */
    row->flop *= options->pass == ROW_BACKWARD ? 2.5 : options->pass == ROW_STEP ? 3.5 : 1;
    good = good && (!options->check || check(s, options, row));
    if (good && options->pass != ROW_FORWARD) {
        double seconds;
        good = options->check ? check_backward(s, row) : forward(s, &seconds);
    }
    if (good) {
        const measure_call calls[] = {forward, backward, step};
        good = options->layers ? row_layers(device, queue_forward, s, options, row, &s->status)
                               : measure_run(&options->measure, calls[options->pass], s, &row->time);
        row_finish(row, good, "call", s->status);
    }
    release(s);
    free(s);
}

bool row_refuses_options(attune_instance *instance, attune_device *device, const workload *w,
                         const row_options *options, failure *why)
{
    attention a;
    if (!options->kernel || !workload_bind_types(instance, w, &a, why))
        return false;
    const bool training = options->pass == ROW_BACKWARD || options->pass == ROW_STEP;
    attune_problem problem = row_problem(w, &a, training);
    problem.mask = a.mask;
    bool refused = row_problem_refuses_options(device, &problem, options->kernel, why);
    if (!refused && training) {
        problem.direction = ATTUNE_BACKWARD;
        problem.lse = false;
        problem.capture_gradient_elements = attention_capture_elements(&a, attention_differentiable(&a));
        refused = row_problem_refuses_options(device, &problem, options->kernel, why);
    }
    workload_release(&a);
    return refused;
}

typedef struct mask_build {
    attune_instance *instance;
    attune_mask_desc desc;
    const attention *a;
    attune_status status;
    attune_mask_stats stats;
} mask_build;

static bool build_mask(void *state, double *seconds)
{
    mask_build *m = state;
    attune_mask *mask;
    double begin = clock_seconds();
    m->status = attune_mask_create(m->instance, &m->desc, m->a->mask, m->a->captures, m->a->capture_count,
                                   m->a->parameters, m->a->parameter_count, &mask);
    *seconds = clock_seconds() - begin;
    if (m->status != ATTUNE_OK)
        return false;
    m->status = attune_mask_stats_get(mask, false, &m->stats);
    attune_mask_destroy(mask);
    return m->status == ATTUNE_OK;
}

void row_mask(attune_instance *instance, const workload *w, const int64_t *lengths, int64_t length_count,
              const row_options *options, report_row *row)
{
    attention a = {0};
    failure why = {{0}};
    (void)snprintf(row->workload, sizeof row->workload, "%s", w->name);
    (void)snprintf(row->kind, sizeof row->kind, "mask");
    (void)snprintf(row->device, sizeof row->device, "host");
    (void)snprintf(row->dtype, sizeof row->dtype, "-");
    (void)snprintf(row->shape, sizeof row->shape, "q%lldk%lld%s", (long long)w->q_len, (long long)w->kv_len,
                   lengths && w->capture_count ? "given" : "");
    (void)snprintf(row->name, sizeof row->name, "%s/host/%s", row->workload, row->shape);
    (void)snprintf(row->plan, sizeof row->plan, "blocks of 128 x 128, 1 thread");
    (void)snprintf(row->timer, sizeof row->timer, "CLOCK_MONOTONIC around attune_mask_create");
    row->threads = 1;
    row->share = 1;
    row->seed = options->seed;
    row->density = row->block_density = -1;
    row->pairs = -1;
    if (!workload_bind(instance, w, options->seed, &a, &why)) {
        (void)row_fail(row, REPORT_FAILED, "%s", why.message);
        return;
    }
    if (lengths && a.capture_count && a.captures[0].array.dtype == ATTUNE_I32)
        workload_document_ids((int32_t *)(uintptr_t)a.captures[0].array.data, a.captures[0].array.size[0], lengths,
                              length_count);
    mask_build build = {.instance = instance,
                        .desc = {.struct_size = sizeof build.desc,
                                 .batch = w->batch,
                                 .heads = w->heads,
                                 .q_len = w->q_len,
                                 .kv_len = w->kv_len},
                        .a = &a,
                        .stats = {.struct_size = sizeof build.stats}};
    bool good = measure_run(&options->measure, build_mask, &build, &row->time);
    row->mask_seconds = row->time.median;
    row->mask_bytes = build.stats.bytes;
    row->density = build.stats.density;
    row->block_density = build.stats.block_density;
    row_finish(row, good, "mask", build.status);
    workload_release(&a);
}

void row_call(measure_call call, void *context, const char *what, const row_options *options, report_row *row)
{
    const bool good = measure_run(&options->measure, call, context, &row->time);
    row_finish(row, good, what, ATTUNE_OK);
}
