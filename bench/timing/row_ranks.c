/* SPDX-License-Identifier: MIT */
/* Rows of several ranks, which are devices and threads of this process, beside one of them alone. */
#include "bench/timing/row_ranks.h"

#include "bench/timing/clock.h"
#include "bench/timing/links.h"
#include "bench/timing/messages.h"
#include "bench/timing/predict.h"
#include "bench/timing/share.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(ROW_RANKS == MOST_RANKS, "row.h says how many ranks there may be");

/* The problem of all ranks: the same for any number of them. */
typedef struct ranks_work {
    attune_instance *instance;
    const ranks_setup *setup;
    const row_options *options;
    const row_ranks_options *ranks;
    uint32_t threads; /* of each CPU rank */
} ranks_work;

/* A sample on devices has calls for so many seconds, one behind another in the queues, but not more than these: one may
 * take less than threads take to meet. */
#define QUEUED_SECONDS 0.01
#define QUEUED_CALLS   128

/* The times of a call, of a call without its messages, and of its messages alone. */
typedef struct ranks_times {
    measurement call, computing, exchange;
} ranks_times;

/* Ranks that wait for the calls that rank 0 begins. */
typedef struct team {
    const ranks_work *work;
    const attune_partition *partition; /* NULL of decode */
    links links;
    share shares[MOST_RANKS];
    messages messages[MOST_RANKS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t begun;
    uint32_t done; /* ranks that have done the present call */
    bool over;
    messages_mode mode;   /* of the present call */
    bool alone;           /* it is of the messages alone */
    uint32_t calls;       /* before the devices are waited for */
    attune_status status; /* the first failure, and what it said */
    char message[256];
    /* Results, on rank 0. */
    array *o;
    share_gradients *gradients;
    ranks_times *times;
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
    while (c->done < c->links.ranks)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

/* The work of a rank in a sample. */
static attune_status work_of(team *c, uint32_t rank)
{
    attune_status status = ATTUNE_OK;
    c->messages[rank].mode = c->mode;
    for (uint32_t i = 0; i < c->calls && status == ATTUNE_OK; i++)
        status = c->alone ? messages_send(&c->messages[rank], c->shares[rank].queue) : share_call(&c->shares[rank]);
    return status == ATTUNE_OK ? share_wait(&c->shares[rank]) : status;
}

/* measure_call: from when all ranks may begin until all are done. */
static bool call_all(void *context, double *seconds)
{
    team *c = context;
    const double begin = clock_seconds();
    pthread_mutex_lock(&c->lock);
    c->begun++;
    c->done = 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    finish_call(c, work_of(c, 0));
    wait_for_all(c);
    *seconds = (clock_seconds() - begin) / c->calls;
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
        finish_call(c, work_of(c, rank));
    }
}

static bool queued(const links *l)
{
    bool any = false;
    for (uint32_t r = 0; r < l->ranks; r++)
        any = any || !l->instances[r];
    return any;
}

/* Whether attune copies messages to and from devices itself: the call without them has its copies all the same. */
static bool copied(const links *l)
{
    return l->link == ROW_LINK_HOST && queued(l);
}

static bool measure(team *c, messages_mode mode, bool alone, measurement *time)
{
    double seconds;
    c->mode = mode;
    c->alone = alone;
    c->calls = 1;
    if (queued(&c->links)) {
        if (!call_all(c, &seconds))
            return false;
        const double calls = QUEUED_SECONDS / seconds;
        c->calls = calls < 1 ? 1 : calls > QUEUED_CALLS ? QUEUED_CALLS : (uint32_t)calls;
    }
    return measure_run(&c->work->options->measure, call_all, c, time);
}

static void lead(team *c)
{
    double seconds;
    wait_for_all(c);
    bool good = c->status == ATTUNE_OK && call_all(c, &seconds);
    for (uint32_t r = 0; good && c->o && r < c->links.ranks; r++) {
        attune_status status = share_read(&c->shares[r], c->o);
        if (status == ATTUNE_OK && c->gradients)
            status = share_read_gradients(&c->shares[r], c->gradients);
        keep_failure(c, status);
        good = status == ATTUNE_OK;
    }
    c->mode = MESSAGES_NOTED;
    c->measured = good && call_all(c, &seconds) && measure(c, MESSAGES_SENT, false, &c->times->call);
    if (c->measured && c->links.ranks > 1 && !copied(&c->links))
        c->measured = measure(c, MESSAGES_LEFT, false, &c->times->computing) &&
                      measure(c, MESSAGES_SENT, true, &c->times->exchange);
    pthread_mutex_lock(&c->lock);
    c->over = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* A rank: its share, and its calls. */
static void run_rank(void *context, uint32_t rank)
{
    team *c = context;
    const ranks_work *w = c->work;
    const ranks_setup *setup = w->setup;
    attune_transport below = links_transport(&c->links, rank);
    below.lend = w->ranks->send ? NULL : below.lend;
    const attune_transport transport = messages_transport(&c->messages[rank], &below);
    attune_device *device = c->links.devices[rank];
    finish_call(c, c->partition
                       ? share_make(device, &transport, c->partition, setup->mask, &setup->problem, w->options->kernel,
                                    w->ranks->overlap, &setup->a,
                                    w->options->pass == ROW_BACKWARD ? &setup->gradients : NULL, &c->shares[rank])
                       : share_make_decode(device, &transport, &setup->problem, w->options->kernel, &setup->a,
                                           &c->shares[rank]));
    if (rank)
        follow(c, rank);
    else
        lead(c);
    share_free(&c->shares[rank]);
}

static const char *const overlaps[] = {[ATTUNE_OVERLAP_AUTO] = "",
                                       [ATTUNE_OVERLAP_ON] = ", overlap on",
                                       [ATTUNE_OVERLAP_OFF] = ", overlap off",
                                       [ATTUNE_OVERLAP_HEADS] = ", overlap heads",
                                       [ATTUNE_OVERLAP_READ] = ", overlap read"};

/* Measures the ranks of a partition, or of decode. results: NULL, or receives those of all ranks. */
static bool measure_ranks(const ranks_work *work, const attune_partition *partition, uint32_t ranks,
                          ranks_setup *results, ranks_times *times, report_row *row)
{
    team *c = calloc(1, sizeof *c);
    if (!c)
        return row_fail(row, REPORT_FAILED, "out of memory");
    c->work = work;
    c->partition = partition;
    c->o = results ? &results->o : NULL;
    c->gradients = results && work->options->pass == ROW_BACKWARD ? &results->gradients : NULL;
    c->times = times;
    c->calls = 1;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    const bool linked = links_make(work->instance, work->ranks, ranks, work->threads, &c->links, row);
    if (linked)
        rank_group_run(&c->links.group, run_rank, c);
    const bool good = c->measured && c->status == ATTUNE_OK;
    const bool unsupported = c->status == ATTUNE_UNSUPPORTED || c->status == ATTUNE_UNAVAILABLE;
    if (c->status != ATTUNE_OK)
        (void)row_fail(row, unsupported ? REPORT_UNSUPPORTED : REPORT_FAILED, "%u rank%s: %s: %s", ranks,
                       ranks > 1 ? "s" : "", attune_status_string(c->status), c->message);
    else if (!good && row->status == REPORT_OK) {
        row->time.cut = times->call.cut;
        row_finish(row, false, "call", ATTUNE_OK);
    }
    row->exchanged_bytes = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        row->exchanged_bytes += (double)c->messages[r].received;
        messages_free(&c->messages[r]);
    }
    if (linked && ranks > 1)
        (void)snprintf(row->plan, sizeof row->plan, "transport %s%s%s", links_name(c->links.link),
                       overlaps[work->ranks->overlap], work->ranks->send ? ", sent" : "");
    links_free(&c->links);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
    free(c);
    return good;
}

/* Of the workload; of every pair if it has none. */
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
    const double begin = clock_seconds();
    if (!a->mask)
        status = attune_expr_create(instance, ATTUNE_EXPR_MASK, "true", NULL, 0, &every);
    if (status == ATTUNE_OK)
        status = attune_mask_create(instance, &desc, a->mask ? a->mask : every, a->captures, a->capture_count,
                                    a->parameters, a->parameter_count, mask);
    row->mask_seconds = clock_seconds() - begin;
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

/* Decode has every pair, which needs no mask: keys are dealt in turn. */
static bool set_up_decode(const workload *w, uint32_t ranks, ranks_setup *s, report_row *row)
{
    const double bytes = (double)attune_dtype_size(s->a.k.dtype) * (double)(s->problem.head_dim + s->a.v.size[3]);
    if (s->a.mask)
        return row_fail(row, REPORT_UNSUPPORTED,
                        "decode over ranks has no mask: write it as a score, mask ? score : -1.0 / 0.0");
    const int64_t cycle = SHARE_CHUNK * (int64_t)ranks, rest = w->kv_len % cycle,
                  most = w->kv_len / cycle * SHARE_CHUNK + (rest < SHARE_CHUNK ? rest : SHARE_CHUNK);
    row->ranks = ranks;
    row->imbalance = (double)most * ranks / (double)w->kv_len;
    row->density = row->block_density = 1;
    row->pairs = w->batch * w->heads * w->q_len * w->kv_len;
    row->ring_bytes = bytes * (double)(s->a.k.size[0] * w->kv_heads * w->kv_len) * (ranks - 1);
    return true;
}

bool ranks_setup_make(attune_instance *instance, attune_device *device, const workload *w, uint32_t ranks,
                      attune_layout layout, const row_options *options, ranks_setup *s, report_row *row)
{
    static const char *const passes[] = {
        [ROW_FORWARD] = "", [ROW_BACKWARD] = "/backward", [ROW_STEP] = "", [ROW_DECODE] = "/decode"};
    failure why = {{0}};
    char suffix[32];
    const uint32_t dim_v = w->head_dim_v ? w->head_dim_v : w->head_dim;
    const int64_t size[4] = {w->batch, w->heads, w->q_len, dim_v};
    *s = (ranks_setup){.mask = NULL};
    const bool backward = options->pass == ROW_BACKWARD;
    (void)snprintf(suffix, sizeof suffix, "/ranks:%u%s", ranks, passes[options->pass]);
    row_describe(device, w, "ranks", suffix, options, row);
    (void)snprintf(row->timer, sizeof row->timer, "CLOCK_MONOTONIC around the calls of all ranks");
    if (!workload_instantiate(instance, w, options->seed, &s->a, &why) ||
        !array_create(&s->o, attention_o_dtype(&s->a), 4, size, &why))
        return row_fail(row, REPORT_FAILED, "%s", why.message);
    if (backward && !make_gradients(options->seed, s, row))
        return false;
    s->problem = row_problem(w, &s->a, backward);
    const bool decode = options->pass == ROW_DECODE;
    if (decode ? !set_up_decode(w, ranks, s, row) : !make_mask(instance, w, &s->a, &s->mask, row))
        return false;
    row->flop = 2 * (double)row->pairs * ((double)w->head_dim + (double)dim_v) * (backward ? 2.5 : 1);
    return decode || (deal(instance, 1, layout, s, &s->one, row) && deal(instance, ranks, layout, s, &s->all, row));
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

/* The device of a row: that of rank 0, and of how many others. */
static void name_devices(const row_ranks_options *ranks, report_row *row)
{
    uint32_t others = 0;
    for (uint32_t r = 1; r < ranks->count; r++) {
        uint32_t same = 0;
        while (strcmp(ranks->devices[same], ranks->devices[r]) != 0)
            same++;
        others += same == r;
    }
    (void)snprintf(row->device, sizeof row->device, others ? "%.20s+%u" : "%s", ranks->devices[0], others);
}

/* The key of a comparison has the transport, but of CPU ranks, which have one. */
static void name_link(const row_ranks_options *ranks, report_row *row)
{
    const size_t used = strlen(row->name);
    if (strcmp(ranks->devices[0], "cpu") != 0 && *row->plan)
        (void)snprintf(row->name + used, sizeof row->name - used, "/%s", row->plan + strlen("transport "));
}

/* The call's time as attune explain --ranks predicts it, at the rate of one rank and that of the messages alone.
 * Backward has the same blocks, and returns the gradients of keys, in f32, after them. */
static void add_prediction(const ranks_setup *s, bool backward, report_row *row)
{
    const predict_machine unit = {1, 1, 0};
    prediction p = {0};
    if (!s->all || !s->mask || row->one_seconds <= 0 || row->exchange_seconds <= 0 ||
        predict(s->all, s->mask, &s->problem, &unit, &p) != ATTUNE_OK)
        return;
    const double rate = p.one / row->one_seconds,
                 returned = backward ? sizeof(float) / (double)attune_dtype_size(s->a.k.dtype) : 0;
    double most = 0;
    for (uint32_t r = 0; r < p.ranks; r++)
        most = p.rank[r].exchange > most ? p.rank[r].exchange : most;
    row->link_rate = most * (1 + returned) / row->exchange_seconds;
    for (uint32_t r = 0; row->link_rate > 0 && rate > 0 && r < p.ranks; r++) {
        const double own = p.rank[r].own / rate, exchange = p.rank[r].exchange / row->link_rate;
        const double seconds = predict_seconds(own, exchange, p.rank[r].others / rate) + exchange * returned;
        row->predicted_seconds = seconds > row->predicted_seconds ? seconds : row->predicted_seconds;
    }
    predict_free(&p);
}

void row_ranks(attune_instance *instance, attune_device *device, const workload *w, const row_ranks_options *ranks,
               const row_options *options, report_row *row)
{
    ranks_setup s;
    ranks_times alone = {0}, all = {0};
    name_devices(ranks, row);
    bool good = ranks_setup_make(instance, device, w, ranks->count, ranks->layout, options, &s, row);
    const uint32_t threads = row->threads / ranks->count;
    const ranks_work work = {instance, &s, options, ranks, threads ? threads : 1};
    row->threads = work.threads * ranks->count;
    /* The check is of the ranks: one alone is the single device. */
    good = good && measure_ranks(&work, s.one, 1, NULL, &alone, row);
    good = good && measure_ranks(&work, s.all, ranks->count, &s, &all, row);
    name_link(ranks, row);
    row->time = all.call;
    row->one_seconds = alone.call.median;
    row->computing_seconds = all.computing.median;
    row->exchange_seconds = all.exchange.median;
    if (options->pass == ROW_DECODE)
        row->received_bytes = row->exchanged_bytes;
    else if (good)
        add_prediction(&s, options->pass == ROW_BACKWARD, row);
    if (good && options->check)
        good = row_check_o(&s.a, &s.o, options->seed, 0, row);
    if (good && options->check && options->pass == ROW_BACKWARD)
        (void)row_check_identities(&s.a, &s.o, &s.gradients.d_o, &s.gradients.d_q, &s.gradients.d_k, &s.gradients.d_v,
                                   row);
    statistics_free(&all.computing);
    statistics_free(&all.exchange);
    statistics_free(&alone.call);
    ranks_setup_free(&s);
}
