/* SPDX-License-Identifier: MIT */
#include "bench/timing/row_parts.h"

#include "bench/timing/clock.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

bool row_fail(report_row *row, report_status status, const char *format, ...)
{
    va_list list;
    row->status = status;
    va_start(list, format);
    (void)vsnprintf(row->message, sizeof row->message, format, list);
    va_end(list);
    return false;
}

bool row_fail_call(report_row *row, attune_status status, const char *what)
{
    bool unsupported = status == ATTUNE_UNSUPPORTED || status == ATTUNE_UNAVAILABLE;
    return row_fail(row, unsupported ? REPORT_UNSUPPORTED : REPORT_FAILED, "%s: %s: %s", what,
                    attune_status_string(status), attune_last_error());
}

void row_describe_plan(const attune_plan *plan, report_row *row)
{
    attune_plan_choice c = {.struct_size = sizeof c};
    if (attune_plan_choice_get(plan, &c) != ATTUNE_OK)
        return;
    int used = snprintf(row->plan, sizeof row->plan, "%.40s %ux%u%s", c.kernel ? c.kernel : "?", c.block_m, c.block_n,
                        c.decode ? " decode" : "");
    if (c.split_kv > 1 && used > 0 && (size_t)used < sizeof row->plan)
        (void)snprintf(row->plan + used, sizeof row->plan - (size_t)used, " split %u", c.split_kv);
}

attune_problem row_problem(const workload *w, const attention *a, bool lse)
{
    return (attune_problem){.struct_size = sizeof(attune_problem),
                            .direction = ATTUNE_FORWARD,
                            .dtype = w->dtype,
                            .kv_dtype = w->kv_dtype,
                            .o_dtype = w->o_dtype,
                            .head_dim = w->head_dim,
                            .head_dim_v = w->head_dim_v,
                            .batch = w->batch,
                            .kv_batch = w->kv_batch,
                            .heads = w->heads,
                            .kv_heads = w->kv_heads,
                            .q_len = w->q_len,
                            .kv_len = w->kv_len,
                            .scale = a->scale,
                            .score = a->score,
                            .lse = lse};
}

bool row_problem_refuses_options(attune_device *device, const attune_problem *problem,
                                 const attune_kernel_options *options, failure *why)
{
    attune_device_info info = {.struct_size = sizeof info};
    attune_plan_choice choice = {.struct_size = sizeof choice};
    if (attune_device_info_get(device, &info) != ATTUNE_OK ||
        attune_plan_choose(&info.limits, problem, NULL, &choice) != ATTUNE_OK)
        return false;
    const attune_status status = attune_plan_choose(&info.limits, problem, options, &choice);
    if (status != ATTUNE_INVALID_ARGUMENT && status != ATTUNE_DOES_NOT_FIT)
        return false;
    (void)failure_set(why, "%s", attune_last_error());
    return true;
}

bool row_plan(attune_device *device, const row_options *options, const attune_problem *problem, const char *what,
              attune_plan **plan, report_row *row)
{
    double begin = clock_seconds();
    attune_plan *cold = NULL;
    attune_status status = attune_plan_create(device, problem, options->kernel, &cold);
    if (status != ATTUNE_OK)
        return row_fail_call(row, status, what);
    row->compile_cold += clock_seconds() - begin;
    begin = clock_seconds();
    status = attune_plan_create(device, problem, options->kernel, plan);
    attune_plan_destroy(cold);
    if (status != ATTUNE_OK)
        return row_fail_call(row, status, what);
    row->compile_warm += clock_seconds() - begin;
    return true;
}

/* The inner product, and the sum of the magnitudes of its terms. */
static void inner_product(const array *x, const array *y, double *sum, double *size)
{
    *sum = *size = 0;
    for (int64_t i = 0, n = array_count(x); i < n; ++i) {
        const double product = array_get(x, i) * array_get(y, i);
        *sum += product;
        *size += fabs(product);
    }
}

bool row_check_identities(const attention *a, const array *o, const array *d_o, const array *d_q, const array *d_k,
                          const array *d_v, report_row *row)
{
    const array *const pairs[4][2] = {{d_v, &a->v}, {d_o, o}, {d_q, &a->q}, {d_k, &a->k}};
    double sums[4], sizes[4], epsilon = reference_epsilon(a->q.dtype);
    for (int i = 0; i < 4; ++i) {
        inner_product(pairs[i][0], pairs[i][1], &sums[i], &sizes[i]);
        epsilon = fmax(epsilon, reference_epsilon(pairs[i][1]->dtype));
    }
    for (int i = 0; i < 4; i += 2) {
        /* Rounding errors of each product, most of which cancel. */
        const double bound = (sizes[i] + sizes[i + 1]) * epsilon * 4;
        if (!(fabs(sums[i] - sums[i + 1]) <= bound))
            return row_fail(row, REPORT_WRONG, "%s is %.9g, %s %.9g: expected the same to %.3g",
                            i ? "<d_q, q>" : "<d_v, v>", sums[i], i ? "<d_k, k>" : "<d_o, o>", sums[i + 1], bound);
    }
    return true;
}

typedef struct checked_rows {
    int64_t count;
    reference_row *rows;
    double *got;
    reference_result oracle, naive;
} checked_rows;

void row_result_free(reference_result *r)
{
    free(r->o);
    free(r->lse);
    free(r->row_max);
    free(r->moved);
}

static void free_checked(checked_rows *c)
{
    free(c->rows);
    free(c->got);
    row_result_free(&c->oracle);
    row_result_free(&c->naive);
}

bool row_result_create(reference_result *r, int64_t rows, int64_t dim)
{
    r->o = calloc((size_t)(rows * dim), sizeof *r->o);
    r->lse = calloc((size_t)rows, sizeof *r->lse);
    r->row_max = calloc((size_t)rows, sizeof *r->row_max);
    r->moved = calloc((size_t)(rows * dim), sizeof *r->moved);
    return r->o && r->lse && r->row_max && r->moved;
}

static bool compare_rows(const attention *a, const array *o, double more, checked_rows *c, report_row *row)
{
    failure why = {{0}};
    int64_t dim = o->size[3], heads = o->size[1], length = o->size[2];
    for (int64_t i = 0; i < c->count; ++i) {
        const reference_row *r = &c->rows[i];
        for (int64_t d = 0; d < dim; ++d)
            c->got[i * dim + d] = array_get(o, ((r->b * heads + r->h) * length + r->q) * dim + d);
    }
    if (!reference_compute(a, REFERENCE_ORACLE, c->rows, c->count, &c->oracle, &why) ||
        !reference_compute(a, REFERENCE_NAIVE, c->rows, c->count, &c->naive, &why))
        return row_fail(row, REPORT_FAILED, "reference: %s", why.message);
    reference_error e = {0};
    reference_compare_o(o->dtype, o->dtype, c->count, dim, c->got, &c->oracle, &c->naive, &e);
    if (more > 0)
        reference_allow(&e, more, more / 8);
    row->checked = true;
    row->checked_rows = c->count;
    row->error = e.max;
    row->naive_error = e.naive_max;
    if (e.pass)
        return true;
    int64_t worst = e.worst >= 0 && e.worst < c->count * dim ? e.worst : 0;
    const reference_row *r = &c->rows[worst / dim];
    return row_fail(
        row, REPORT_WRONG,
        "largest error %.3g (limit %.3g, naive %.3g), mean %.3g (limit %.3g), %lld elements with a wrong pattern "
        "of NaN, infinity or zero; worst at b %lld h %lld q %lld d %lld: %.9g, the oracle has %.9g",
        e.max, e.bound_max, e.naive_max, e.mean, e.bound_mean, (long long)e.pattern_errors, (long long)r->b,
        (long long)r->h, (long long)r->q, (long long)(worst % dim), c->got[worst], c->oracle.o[worst]);
}

bool row_check_o(const attention *a, const array *o, uint64_t seed, double more, report_row *row)
{
    checked_rows c = {0};
    int64_t all = o->size[0] * o->size[1] * o->size[2];
    c.count = CHECK_WORK / a->k.size[2];
    c.count = c.count < 8 ? 8 : c.count > CHECK_ROWS ? CHECK_ROWS : c.count;
    c.count = c.count < all ? c.count : all;
    c.rows = calloc((size_t)c.count, sizeof *c.rows);
    c.got = calloc((size_t)(c.count * o->size[3]), sizeof *c.got);
    bool good = c.rows && c.got && row_result_create(&c.oracle, c.count, o->size[3]) &&
                row_result_create(&c.naive, c.count, o->size[3]);
    if (!good)
        (void)row_fail(row, REPORT_FAILED, "out of memory for the references");
    if (good) {
        /* The first and the last row, and random ones. */
        random_state r = {seed ^ UINT64_C(0x636865636b)};
        for (int64_t i = 0; i < c.count; ++i) {
            int64_t n = i == 0 ? 0 : i == 1 ? all - 1 : (int64_t)(random_u64(&r) % (uint64_t)all);
            c.rows[i] = (reference_row){n / o->size[2] / o->size[1], n / o->size[2] % o->size[1], n % o->size[2]};
        }
        good = compare_rows(a, o, more, &c, row);
    }
    free_checked(&c);
    return good;
}

void row_finish(report_row *row, bool good, const char *what, attune_status status)
{
    if (row->time.count > 0 && good)
        return;
    if (row->time.cut)
        (void)row_fail(row, REPORT_STOPPED, "stopped before the first sample");
    else if (status != ATTUNE_OK)
        (void)row_fail_call(row, status, what);
    else if (row->status == REPORT_OK)
        (void)row_fail(row, REPORT_FAILED, "%s: no sample", what);
}

void row_clock(const attune_device_info *info, report_row *row)
{
    const bool cpu = info->backend == ATTUNE_BACKEND_CPU;
    (void)snprintf(row->timer, sizeof row->timer, "%s",
                   cpu ? "the library's clock around its work" : "device timestamps");
    row->threads = cpu ? info->limits.compute_units : 1;
}

void row_describe(attune_device *device, const workload *w, const char *kind, const char *suffix,
                  const row_options *options, report_row *row)
{
    attune_device_info info = {.struct_size = sizeof info};
    const uint32_t dim_v = w->head_dim_v ? w->head_dim_v : w->head_dim;
    (void)attune_device_info_get(device, &info);
    (void)snprintf(row->workload, sizeof row->workload, "%s", w->name);
    (void)snprintf(row->kind, sizeof row->kind, "%s", kind);
    if (!*row->device)
        (void)snprintf(row->device, sizeof row->device, "%s", info.id);
    (void)snprintf(row->dtype, sizeof row->dtype, "%s", attune_dtype_string(w->dtype));
    if (w->kv_dtype || w->o_dtype)
        (void)snprintf(row->dtype, sizeof row->dtype, "%s:%s:%s", attune_dtype_string(w->dtype),
                       attune_dtype_string(w->kv_dtype ? w->kv_dtype : w->dtype),
                       attune_dtype_string(w->o_dtype ? w->o_dtype : w->dtype));
    (void)snprintf(row->shape, sizeof row->shape, "b%lldh%lld:%lldq%lldk%lldd%u", (long long)w->batch,
                   (long long)w->heads, (long long)w->kv_heads, (long long)w->q_len, (long long)w->kv_len, w->head_dim);
    if (dim_v != w->head_dim) {
        size_t used = strlen(row->shape);
        (void)snprintf(row->shape + used, sizeof row->shape - used, ":%u", dim_v);
    }
    (void)snprintf(row->name, sizeof row->name, "%s/%s/%s/%s%s", row->workload, row->device, row->dtype, row->shape,
                   suffix);
    row_clock(&info, row);
    row->seed = options->seed;
    row->density = row->block_density = -1;
    row->pairs = -1;
}
