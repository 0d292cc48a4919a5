/* SPDX-License-Identifier: MIT */
/* Rows of several ranks, which are CPU devices and threads of this process, beside one of them alone. */
#include "bench/timing/row_ranks.h"

#include "bench/timing/predict.h"
#include "bench/timing/share.h"
#include "tests/distributed/ranks.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(ROW_RANKS == MOST_RANKS, "row.h says how many ranks there may be");

/* The problem of all ranks: the same for any number of them. */
typedef struct ranks_work {
    const ranks_setup *setup;
    const row_options *options;
    uint32_t threads; /* of each rank */
} ranks_work;

/* Ranks that wait for the calls that rank 0 begins. */
typedef struct team {
    const ranks_work *work;
    const attune_partition *partition;
    rank_group group;
    share shares[MOST_RANKS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t begun;
    uint32_t done; /* ranks that have done the present call */
    bool over;
    attune_status status; /* the first failure, and what it said */
    char message[256];
    /* Results, on rank 0. */
    array *o;
    share_gradients *gradients;
    measurement *time;
    bool measured;
} team;

static void keep_failure(team *c, attune_status status)
{
    pthread_mutex_lock(&c->lock);
    if (status != ATTUNE_OK && c->status == ATTUNE_OK) {
        c->status = status;
        (void)snprintf(c->message, sizeof c->message, "%s", attune_last_error());
    }
    pthread_mutex_unlock(&c->lock);
}

static void finish_call(team *c, attune_status status)
{
    keep_failure(c, status);
    pthread_mutex_lock(&c->lock);
    c->done++;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void wait_for_all(team *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->done < c->group.size)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

/* measure_call: from when all ranks may begin until all are done. */
static bool call_all(void *context, double *seconds)
{
    team *c = context;
    const double begin = measure_clock();
    pthread_mutex_lock(&c->lock);
    c->begun++;
    c->done = 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    finish_call(c, share_call(&c->shares[0]));
    wait_for_all(c);
    *seconds = measure_clock() - begin;
    return c->status == ATTUNE_OK;
}

/* The ranks above 0, until rank 0 ends it. */
static void follow(team *c, uint32_t rank)
{
    for (uint64_t seen = 0;; seen++) {
        pthread_mutex_lock(&c->lock);
        while (c->begun == seen && !c->over)
            pthread_cond_wait(&c->changed, &c->lock);
        const bool over = c->begun == seen;
        pthread_mutex_unlock(&c->lock);
        if (over)
            return;
        finish_call(c, share_call(&c->shares[rank]));
    }
}

static void lead(team *c)
{
    double seconds;
    wait_for_all(c);
    bool good = c->status == ATTUNE_OK && call_all(c, &seconds);
    for (uint32_t r = 0; good && c->o && r < c->group.size; r++) {
        attune_status status = share_read(&c->shares[r], c->o);
        if (status == ATTUNE_OK && c->gradients)
            status = share_read_gradients(&c->shares[r], c->gradients);
        keep_failure(c, status);
        good = status == ATTUNE_OK;
    }
    c->measured = good && measure_run(&c->work->options->measure, call_all, c, c->time);
    pthread_mutex_lock(&c->lock);
    c->over = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* A rank: a device with threads of its own, its share, and its calls. */
static void run_rank(void *context, uint32_t rank)
{
    team *c = context;
    const ranks_work *w = c->work;
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = w->threads};
    const attune_transport transport = rank_transport(&c->group, rank, true);
    attune_instance *instance = NULL;
    attune_device *device = NULL;
    attune_status status = attune_instance_create(&desc, &instance);
    if (status == ATTUNE_OK)
        status = attune_device_open(instance, "cpu", &device);
    if (status == ATTUNE_OK)
        status =
            share_make(device, &transport, c->partition, w->setup->mask, &w->setup->problem, w->options->kernel,
                       &w->setup->a, w->options->pass == ROW_BACKWARD ? &w->setup->gradients : NULL, &c->shares[rank]);
    else
        transport.abort(transport.user);
    finish_call(c, status);
    if (rank)
        follow(c, rank);
    else
        lead(c);
    share_free(&c->shares[rank]);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* Measures the ranks of a partition. results: NULL, or receives those of all ranks. */
static bool measure_ranks(const ranks_work *work, const attune_partition *partition, uint32_t ranks,
                          ranks_setup *results, measurement *time, report_row *row)
{
    team *c = calloc(1, sizeof *c);
    if (!c)
        return row_fail(row, REPORT_FAILED, "out of memory");
    c->work = work;
    c->partition = partition;
    c->o = results ? &results->o : NULL;
    c->gradients = results && work->options->pass == ROW_BACKWARD ? &results->gradients : NULL;
    c->time = time;
    rank_group_init(&c->group, ranks);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    rank_group_run(&c->group, run_rank, c);
    const bool good = c->measured && c->status == ATTUNE_OK;
    const bool unsupported = c->status == ATTUNE_UNSUPPORTED || c->status == ATTUNE_UNAVAILABLE;
    if (c->status != ATTUNE_OK)
        (void)row_fail(row, unsupported ? REPORT_UNSUPPORTED : REPORT_FAILED, "%u rank%s: %s: %s", ranks,
                       ranks > 1 ? "s" : "", attune_status_string(c->status), c->message);
    else if (!good)
        row_finish(row, false, "call", ATTUNE_OK);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
    rank_group_finish(&c->group);
    free(c);
    return good;
}

/* The workload's mask; every pair if it has none. */
static bool make_mask(attune_instance *instance, const workload *w, const attention *a, attune_mask **mask,
                      report_row *row)
{
    const attune_mask_desc desc = {.struct_size = sizeof desc,
                                   .batch = w->batch,
                                   .heads = w->heads,
                                   .kv_heads = w->kv_heads,
                                   .q_len = w->q_len,
                                   .kv_len = w->kv_len};
    attune_mask_stats stats = {.struct_size = sizeof stats};
    attune_expr *every = NULL;
    attune_status status = ATTUNE_OK;
    const double begin = measure_clock();
    if (!a->mask)
        status = attune_expr_create(instance, ATTUNE_EXPR_MASK, "true", NULL, 0, &every);
    if (status == ATTUNE_OK)
        status = attune_mask_create(instance, &desc, a->mask ? a->mask : every, a->captures, a->capture_count,
                                    a->parameters, a->parameter_count, mask);
    row->mask_seconds = measure_clock() - begin;
    attune_expr_destroy(every);
    if (status == ATTUNE_OK)
        status = attune_mask_stats_get(*mask, true, &stats);
    row->density = stats.density;
    row->block_density = stats.block_density;
    row->pairs = stats.pairs;
    row->mask_bytes = stats.bytes;
    return status == ATTUNE_OK || row_fail_call(row, status, "mask");
}

/* A partition, with what it costs. */
static bool deal(attune_instance *instance, uint32_t ranks, attune_layout layout, const ranks_setup *s,
                 attune_partition **partition, report_row *row)
{
    const attune_partition_desc desc = {.struct_size = sizeof desc, .ranks = ranks, .layout = layout};
    attune_partition_stats stats = {.struct_size = sizeof stats};
    const predict_machine unit = {1, 1, 0};
    prediction traffic = {0};
    attune_status status = attune_partition_create(instance, &desc, s->mask, partition);
    if (status == ATTUNE_OK)
        status = attune_partition_stats_get(*partition, &stats);
    if (status == ATTUNE_OK)
        status = predict(*partition, s->mask, &s->problem, &unit, &traffic);
    row->ranks = ranks;
    row->imbalance = stats.imbalance;
    row->fetched = stats.fetched;
    row->received_bytes = traffic.received;
    row->ring_bytes = traffic.ring;
    predict_free(&traffic);
    return status == ATTUNE_OK || row_fail_call(row, status, "partition");
}

static bool make_gradients(uint64_t seed, ranks_setup *s, report_row *row)
{
    share_gradients *g = &s->gradients;
    failure why = {{0}};
    random_state random = {seed ^ UINT64_C(0x7570)};
    if (!array_create(&g->d_o, s->o.dtype, 4, s->o.size, &why) ||
        !array_create(&g->d_q, s->a.q.dtype, 4, s->a.q.size, &why) ||
        !array_create(&g->d_k, s->a.k.dtype, 4, s->a.k.size, &why) ||
        !array_create(&g->d_v, s->a.v.dtype, 4, s->a.v.size, &why))
        return row_fail(row, REPORT_FAILED, "%s", why.message);
    array_fill_normal(&g->d_o, &random, 1);
    return true;
}

bool ranks_setup_make(attune_instance *instance, attune_device *device, const workload *w, uint32_t ranks,
                      attune_layout layout, const row_options *options, ranks_setup *s, report_row *row)
{
    failure why = {{0}};
    char suffix[32];
    const uint32_t dim_v = w->head_dim_v ? w->head_dim_v : w->head_dim;
    const int64_t size[4] = {w->batch, w->heads, w->q_len, dim_v};
    *s = (ranks_setup){.mask = NULL};
    const bool backward = options->pass == ROW_BACKWARD;
    (void)snprintf(suffix, sizeof suffix, "/ranks:%u%s", ranks, backward ? "/backward" : "");
    row_describe(device, w, "ranks", suffix, options, row);
    (void)snprintf(row->timer, sizeof row->timer, "CLOCK_MONOTONIC around the calls of all ranks");
    if (!workload_instantiate(instance, w, options->seed, &s->a, &why) ||
        !array_create(&s->o, attention_o_dtype(&s->a), 4, size, &why))
        return row_fail(row, REPORT_FAILED, "%s", why.message);
    if (backward && !make_gradients(options->seed, s, row))
        return false;
    s->problem = row_problem(w, &s->a, backward);
    if (!make_mask(instance, w, &s->a, &s->mask, row))
        return false;
    row->flop = 2 * (double)row->pairs * ((double)w->head_dim + (double)dim_v) * (backward ? 2.5 : 1);
    return deal(instance, 1, layout, s, &s->one, row) && deal(instance, ranks, layout, s, &s->all, row);
}

void ranks_setup_free(ranks_setup *s)
{
    attune_partition_destroy(s->one);
    attune_partition_destroy(s->all);
    attune_mask_destroy(s->mask);
    array *arrays[] = {&s->o, &s->gradients.d_o, &s->gradients.d_q, &s->gradients.d_k, &s->gradients.d_v};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        array_free(arrays[i]);
    workload_release(&s->a);
}

void row_ranks(attune_instance *instance, attune_device *device, const workload *w, uint32_t ranks,
               attune_layout layout, const row_options *options, report_row *row)
{
    ranks_setup s;
    measurement alone = {0};
    bool good = ranks_setup_make(instance, device, w, ranks, layout, options, &s, row);
    const ranks_work work = {&s, options, row->threads / ranks ? row->threads / ranks : 1};
    row->threads = work.threads * ranks;
    /* The check is of the ranks: one alone is the single device. */
    good = good && measure_ranks(&work, s.one, 1, NULL, &alone, row);
    good = good && measure_ranks(&work, s.all, ranks, &s, &row->time, row);
    row->one_seconds = alone.median;
    if (good && options->check)
        good = row_check_o(&s.a, &s.o, options->seed, 0, row);
    if (good && options->check && options->pass == ROW_BACKWARD)
        (void)row_check_identities(&s.a, &s.o, &s.gradients.d_o, &s.gradients.d_q, &s.gradients.d_k, &s.gradients.d_v,
                                   row);
    measure_free(&alone);
    ranks_setup_free(&s);
}
