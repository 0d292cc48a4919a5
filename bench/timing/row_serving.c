/* SPDX-License-Identifier: MIT */
/* Rows of serving: a batch over a paged cache, checked sequence by sequence. */
#include "bench/timing/row_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_SEQUENCES 8

typedef struct serving_setup {
    const serving_workload *w;
    serving s;
    attune_plan *plan;
    attune_queue *queue;
    serving_call call;
    attune_parameter window;
    attune_buffer *schedule; /* with options->layers: of a step */
    double seconds;
    attune_status status; /* of the last call */
} serving_setup;

/* One layer. */
static bool forward(serving_setup *b, uint32_t kind)
{
    b->window = (attune_parameter){"width", serving_window(b->w, kind)};
    b->status = attune_forward(b->plan, b->queue, &b->call.args, NULL);
    return b->status == ATTUNE_OK;
}

/* The layers of the model's pattern, each kind once for each layer that it has; gives the time of one. */
static bool layers(void *state, double *seconds)
{
    serving_setup *b = state;
    uint32_t count = 0;
    *seconds = 0;
    for (uint32_t kind = 0; kind < serving_kinds(b->w); kind++)
        for (uint32_t i = 0; i < serving_layers(b->w, kind); i++, count++) {
            if (!forward(b, kind))
                return false;
            *seconds += b->seconds;
        }
    *seconds /= count;
    return true;
}

/* Layers of each kind in turn, and again past the model's last. */
static uint32_t kind_of_layer(const serving_workload *w, uint32_t layer)
{
    uint32_t kind = 0;
    while (layer >= serving_layers(w, kind)) {
        layer -= serving_layers(w, kind);
        kind = (kind + 1) % serving_kinds(w);
    }
    return kind;
}

/* A layer of a step in a row, whose first one has the schedule for all. */
static attune_status queue_layer(void *state, attune_queue *queue, uint32_t layer, double *seconds)
{
    serving_setup *b = state;
    attune_status status = ATTUNE_OK;
    const uint32_t kind = kind_of_layer(b->w, layer);
    b->window = (attune_parameter){"width", serving_window(b->w, kind)};
    b->call.args.seconds = NULL;
    b->call.args.schedule = b->schedule;
    if (layer == 0 && b->schedule)
        status = attune_schedule(b->plan, queue, &b->call.args, NULL);
    b->call.args.seconds = seconds;
    return status == ATTUNE_OK ? attune_forward(b->plan, queue, &b->call.args, NULL) : status;
}

static bool make_schedule(attune_device *device, serving_setup *b, report_row *row)
{
    const uint64_t size = attune_plan_schedule_size(b->plan);
    b->status = size ? attune_buffer_create(device, size, &b->schedule) : ATTUNE_OK;
    return b->status == ATTUNE_OK || row_fail_call(row, b->status, "schedule");
}

static bool make(attune_device *device, const row_options *options, serving_setup *b, report_row *row)
{
    attune_problem problem = serving_problem(&b->s, false, false);
    attune_device_info info = {.struct_size = sizeof info};
    attune_plan_choice choice = {.struct_size = sizeof choice};
    /* Not every kernel has rows of several sequences in a tile. */
    if (problem.shared_sequences && (attune_device_info_get(device, &info) != ATTUNE_OK ||
                                     attune_plan_choose(&info.limits, &problem, options->kernel, &choice) != ATTUNE_OK))
        problem.shared_sequences = 0;
    if (!row_plan(device, options, &problem, "plan", &b->plan, row))
        return false;
    row_describe_plan(b->plan, row);
    row->workspace = attune_plan_workspace_size(b->plan);
    b->status = serving_upload(device, &b->s, b->plan, false, false, &b->call);
    if (b->status != ATTUNE_OK)
        return row_fail_call(row, b->status, "upload");
    row->device_bytes = b->call.bytes;
    b->call.args.seconds = &b->seconds;
    if (b->w->local)
        b->call.args.parameters = &b->window;
    b->queue = attune_device_queue(device);
    return true;
}

bool row_serving_refuses_options(attune_instance *instance, attune_device *device, const serving_workload *w,
                                 attune_dtype dtype, attune_dtype kv_dtype, attune_dtype o_dtype,
                                 const row_options *options, failure *why)
{
    const serving_workload few = serving_scaled(w, 1e-9);
    serving s = {0};
    bool refused = false;
    if (options->kernel && serving_instantiate(instance, &few, dtype, kv_dtype, o_dtype, options->seed, &s, why)) {
        attune_problem problem = serving_problem(&s, false, false);
        problem.shared_sequences = 0; /* as where a kernel cannot have them */
        refused = row_problem_refuses_options(device, &problem, options->kernel, why);
        attune_expr_destroy(s.a.mask);
        serving_free(&s);
    }
    return refused;
}

/* ------------------------------------------------------------------------------------------------------------ check */

/* Some rows of the first, the last and other sequences, those of a sequence together. */
static int64_t choose(const serving *s, uint64_t seed, reference_row *rows)
{
    random_state r = {seed ^ UINT64_C(0x636865636b)};
    const int64_t sequences = serving_sequences(s), most = sequences < CHECK_SEQUENCES ? sequences : CHECK_SEQUENCES;
    int64_t count = 0, work = 0;
    for (int64_t i = 0; i < most; i++) {
        const int64_t b = i == 0 ? 0 : i == 1 ? sequences - 1 : (int64_t)(random_u64(&r) % (uint64_t)sequences);
        const int64_t all = serving_rows(s, b) * s->a.q.size[1];
        for (int64_t j = 0; j < CHECK_ROWS / most && j < all && (count < 8 || work < CHECK_WORK); j++) {
            const int64_t n = j ? (int64_t)(random_u64(&r) % (uint64_t)all) : all - 1;
            rows[count++] = (reference_row){b, n / serving_rows(s, b), n % serving_rows(s, b)};
            work += serving_keys(s, b);
        }
    }
    return count;
}

typedef struct checked {
    reference_row rows[CHECK_ROWS];
    int64_t count;
    reference_result oracle, naive;
    double *got;
} checked;

/* The rows of one kind of layer, whose results are on the device. */
static bool compare(attune_instance *instance, serving_setup *b, uint32_t kind, const array *o, checked *c,
                    report_row *row)
{
    failure why = {{0}};
    reference_error e = {0};
    const int64_t width = serving_width(&b->s);
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t d = 0; d < width; d++)
            c->got[i * width + d] = array_get(o, serving_index(&b->s, &c->rows[i]) * width + d);
    if (b->w->local)
        b->s.a.parameters[0].value = serving_window(b->w, kind);
    if (!serving_compare(instance, &b->s, c->rows, c->count, c->got, &c->oracle, &c->naive, &e, &why))
        return row_fail(row, REPORT_FAILED, "reference: %s", why.message);
    row->checked = true;
    row->checked_rows += c->count;
    row->error = fmax(row->error, e.max);
    row->naive_error = fmax(row->naive_error, e.naive_max);
    if (e.pass)
        return true;
    const int64_t worst = e.worst >= 0 && e.worst < c->count * width ? e.worst : 0;
    const reference_row *r = &c->rows[worst / width];
    return row_fail(row, REPORT_WRONG,
                    "largest error %.3g (limit %.3g, naive %.3g), mean %.3g (limit %.3g), %lld elements with a wrong "
                    "pattern of NaN, infinity or zero; worst in sequence %lld, head %lld, row %lld, column %lld: %.9g, "
                    "the oracle has %.9g",
                    e.max, e.bound_max, e.naive_max, e.mean, e.bound_mean, (long long)e.pattern_errors, (long long)r->b,
                    (long long)r->h, (long long)r->q, (long long)(worst % width), c->got[worst], c->oracle.o[worst]);
}

static bool check(attune_instance *instance, serving_setup *b, uint64_t seed, report_row *row)
{
    failure why = {{0}};
    array o;
    checked *c = calloc(1, sizeof *c);
    const attune_tensor *from = &b->call.args.o;
    const int64_t width = serving_width(&b->s);
    bool good = c && array_create(&o, from->dtype, from->rank, from->size, &why);
    if (!good) {
        free(c);
        return row_fail(row, REPORT_FAILED, "out of memory for the references");
    }
    c->count = choose(&b->s, seed, c->rows);
    c->got = calloc((size_t)(c->count * width + 1), sizeof *c->got);
    good = row_result_create(&c->oracle, c->count, width) && row_result_create(&c->naive, c->count, width) && c->got;
    if (!good)
        (void)row_fail(row, REPORT_FAILED, "out of memory for the references");
    for (uint32_t kind = 0; good && kind < serving_kinds(b->w); kind++) {
        good = forward(b, kind) || row_fail_call(row, b->status, "forward");
        if (good) {
            b->status = attune_buffer_read(from->buffer, 0, o.data, array_bytes(&o));
            good = b->status == ATTUNE_OK || row_fail_call(row, b->status, "read");
        }
        good = good && compare(instance, b, kind, &o, c, row);
    }
    row_result_free(&c->oracle);
    row_result_free(&c->naive);
    free(c->got);
    free(c);
    array_free(&o);
    return good;
}

/* -------------------------------------------------------------------------------------------------------------- row */

static void describe(attune_device *device, const serving_workload *w, const serving *s, attune_dtype dtype,
                     attune_dtype kv_dtype, attune_dtype o_dtype, const row_options *options, report_row *row)
{
    attune_device_info info = {.struct_size = sizeof info};
    const serving_work work = serving_measure(w, s);
    (void)attune_device_info_get(device, &info);
    (void)snprintf(row->workload, sizeof row->workload, "%s", w->name);
    (void)snprintf(row->kind, sizeof row->kind, "serving");
    (void)snprintf(row->device, sizeof row->device, "%s", info.id);
    (void)snprintf(row->dtype, sizeof row->dtype, "%s", attune_dtype_string(dtype));
    if (kv_dtype || o_dtype)
        (void)snprintf(row->dtype, sizeof row->dtype, "%s:%s:%s", attune_dtype_string(dtype),
                       attune_dtype_string(kv_dtype ? kv_dtype : dtype),
                       attune_dtype_string(o_dtype ? o_dtype : dtype));
    (void)snprintf(row->shape, sizeof row->shape, "s%lldt%lldh%lld:%lldk%lldd%u", (long long)work.sequences,
                   (long long)work.rows, (long long)w->heads, (long long)w->kv_heads, (long long)work.keys,
                   w->head_dim);
    if (w->head_dim_v && w->head_dim_v != w->head_dim) {
        const size_t used = strlen(row->shape);
        (void)snprintf(row->shape + used, sizeof row->shape - used, ":%u", w->head_dim_v);
    }
    (void)snprintf(row->name, sizeof row->name, "%s/%s/%s/%s", row->workload, row->device, row->dtype, row->shape);
    row_clock(&info, row);
    row->seed = options->seed;
    row->tokens = work.rows;
    row->flop = work.flop;
    row->bytes = work.bytes;
    row->pairs = (int64_t)work.pairs;
    row->density = row->block_density = -1;
}

void row_serving(attune_instance *instance, attune_device *device, const serving_workload *w, attune_dtype dtype,
                 attune_dtype kv_dtype, attune_dtype o_dtype, const row_options *options, report_row *row)
{
    failure why = {{0}};
    serving_setup *b = calloc(1, sizeof *b);
    row->density = row->block_density = -1;
    row->pairs = -1;
    (void)snprintf(row->name, sizeof row->name, "%s", w->name);
    if (!b) {
        (void)row_fail(row, REPORT_FAILED, "out of memory");
        return;
    }
    b->w = w;
    if (!serving_instantiate(instance, w, dtype, kv_dtype, o_dtype, options->seed, &b->s, &why)) {
        (void)row_fail(row, REPORT_FAILED, "%s", why.message);
        free(b);
        return;
    }
    describe(device, w, &b->s, dtype, kv_dtype, o_dtype, options, row);
    bool good = make(device, options, b, row) && (!options->check || check(instance, b, options->seed, row)) &&
                (!options->layers || make_schedule(device, b, row));
    if (good) {
        good = options->layers ? row_layers(device, queue_layer, b, options, row, &b->status)
                               : measure_run(&options->measure, layers, b, &row->time);
        row_finish(row, good, "call", b->status);
    }
    attune_buffer_destroy(b->schedule);
    serving_release(&b->call);
    attune_plan_destroy(b->plan);
    attune_expr_destroy(b->s.a.mask);
    serving_free(&b->s);
    free(b);
}
