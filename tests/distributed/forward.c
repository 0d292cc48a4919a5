/* SPDX-License-Identifier: MIT */
/* Attention over several ranks, which are threads: the case table and random cases against float64, one rank against
 * the single device, and ranks that fail. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "distributed/ranks.h"
#include "support/devices.h"
#include "support/heap.h"
#include "tests/oracle/segments.h"

enum {
#define ROW(name, ...) CASE_##name,
#include "cases/table.h"
#undef ROW
    CASE_COUNT
};

/* The oracle takes most of the time. */
#define MOST_PAIRS 400000

/* One case over some ranks. */
typedef struct sharing {
    attune_instance *instance;
    attune_device *device;
    const attention_case *c;
    const attention *a;
    attune_mask *mask;
    uint32_t ranks, calls; /* calls: on each rank, with equal results */
    attune_layout layout;
    bool token_major, late;
    uint32_t other_problem; /* the rank that has another scale; none if not below ranks */
    uint32_t bad_call;      /* the rank whose call has a bad argument */
    rank_group group;
    array o, lse; /* whole */
    attune_status created[MOST_RANKS], status[MOST_RANKS];
    char message[MOST_RANKS][256];
    bool differs[MOST_RANKS]; /* a repeated call gave other bits */
} sharing;

/* Elements [b, h, first dimensions..., columns] of some positions, to or from a whole array. */
typedef struct local {
    attune_tensor tensor;
    char *data;
    size_t bytes;
} local;

static int64_t count_positions(const attune_run *runs, uint32_t count)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += runs[i].count;
    return sum;
}

static bool local_create(attune_device *device, const array *like, int64_t positions, bool token_major, local *l)
{
    attune_tensor *t = &l->tensor;
    memset(l, 0, sizeof *l);
    if (!positions)
        return true;
    const int64_t columns = like->rank == 4 ? like->size[3] : 1;
    *t = (attune_tensor){.dtype = like->dtype, .rank = like->rank};
    const int64_t size[4] = {like->size[0], like->size[1], positions, columns};
    memcpy(t->size, size, sizeof size);
    t->stride[0] = size[1] * positions * columns;
    t->stride[1] = token_major ? columns : positions * columns;
    t->stride[2] = token_major ? size[1] * columns : columns;
    t->stride[3] = 1;
    l->bytes = (size_t)(size[0] * t->stride[0]) * attune_dtype_size(like->dtype);
    l->data = calloc(l->bytes, 1);
    return l->data && attune_buffer_wrap(device, l->data, l->bytes, &t->buffer) == ATTUNE_OK;
}

static void local_destroy(local *l)
{
    attune_buffer_destroy(l->tensor.buffer);
    free(l->data);
}

/* Copies rows between a rank's tensor and the whole array. */
static void move(const local *l, const array *whole, const attune_run *runs, uint32_t count, bool out)
{
    const attune_tensor *t = &l->tensor;
    const size_t element = attune_dtype_size(whole->dtype);
    const int64_t columns = whole->rank == 4 ? whole->size[3] : 1;
    int64_t at = 0;
    for (uint32_t i = 0; i < count; i++)
        for (int64_t p = runs[i].start; p < runs[i].start + runs[i].count; p++, at++)
            for (int64_t b = 0; b < whole->size[0]; b++)
                for (int64_t h = 0; h < whole->size[1]; h++) {
                    char *mine = l->data + (size_t)(b * t->stride[0] + h * t->stride[1] + at * t->stride[2]) * element;
                    char *all = (char *)whole->data +
                                (size_t)(((b * whole->size[1] + h) * whole->size[2] + p) * columns) * element;
                    memcpy(out ? all : mine, out ? mine : all, (size_t)columns * element);
                }
}

typedef struct rank_data {
    attune_partition *partition;
    attune_distributed *distributed;
    local q, k, v, o, lse, sinks, captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_capture named[ATTUNE_EXPR_MAX_SYMBOLS];
    const attune_run *rows, *keys;
    uint32_t row_runs, key_runs;
    void *memory;
    attune_buffer *workspace;
} rank_data;

static bool place_whole(attune_device *device, const void *data, attune_dtype dtype, uint32_t rank, const int64_t *size,
                        local *l)
{
    int64_t elements = 1;
    l->tensor = (attune_tensor){.dtype = dtype, .rank = rank};
    for (uint32_t i = 0; i < rank; i++) {
        l->tensor.size[i] = size[i];
        elements *= size[i];
    }
    l->bytes = (size_t)elements * attune_dtype_size(dtype);
    l->data = malloc(l->bytes);
    if (!l->data)
        return false;
    memcpy(l->data, data, l->bytes);
    return attune_buffer_wrap(device, l->data, l->bytes, &l->tensor.buffer) == ATTUNE_OK;
}

static attune_status prepare(sharing *s, uint32_t rank, rank_data *r)
{
    const attention *a = s->a;
    const attune_partition_desc dealt = {.struct_size = sizeof dealt, .ranks = s->ranks, .layout = s->layout};
    attune_status status = attune_partition_create(s->instance, &dealt, s->mask, &r->partition);
    if (status != ATTUNE_OK)
        return status;
    attune_partition_runs(r->partition, rank, ATTUNE_RUN_ROWS, &r->rows, &r->row_runs);
    attune_partition_runs(r->partition, rank, ATTUNE_RUN_KEYS, &r->keys, &r->key_runs);
    const attune_problem problem = {
        .struct_size = sizeof problem,
        .dtype = a->q.dtype,
        .kv_dtype = a->k.dtype,
        .o_dtype = a->o_dtype,
        .head_dim = (uint32_t)a->q.size[3],
        .head_dim_v = (uint32_t)a->v.size[3],
        .batch = a->q.size[0],
        .kv_batch = a->k.size[0],
        .heads = a->q.size[1],
        .kv_heads = a->k.size[1],
        .scale = rank == s->other_problem ? 0.125 : a->scale,
        .score = a->score,
        .lse = true,
        .sinks = a->sinks.data != NULL,
    };
    const attune_transport transport = rank_transport(&s->group, rank, s->late);
    const attune_distributed_desc desc = {.struct_size = sizeof desc,
                                          .transport = &transport,
                                          .partition = r->partition,
                                          .mask = s->mask,
                                          .problem = &problem,
                                          .token_major = s->token_major};
    return attune_distributed_create(s->device, &desc, &r->distributed);
}

static bool place(sharing *s, rank_data *r)
{
    const attention *a = s->a;
    const int64_t rows = count_positions(r->rows, r->row_runs), keys = count_positions(r->keys, r->key_runs);
    const uint64_t bytes = attune_distributed_workspace_size(r->distributed);
    bool ok = local_create(s->device, &a->q, rows, false, &r->q) &&
              local_create(s->device, &a->k, keys, s->token_major, &r->k) &&
              local_create(s->device, &a->v, keys, s->token_major, &r->v) &&
              local_create(s->device, &s->o, rows, false, &r->o) &&
              local_create(s->device, &s->lse, rows, false, &r->lse);
    if (ok && a->sinks.data)
        ok = place_whole(s->device, a->sinks.data, a->sinks.dtype, 1, a->sinks.size, &r->sinks);
    for (uint32_t i = 0; ok && i < a->capture_count; i++) {
        const attune_array *h = &a->captures[i].array;
        ok = place_whole(s->device, h->data, h->dtype, h->rank, h->size, &r->captures[i]);
        r->named[i] = (attune_capture){a->captures[i].name, r->captures[i].tensor};
    }
    r->memory = ok && bytes ? malloc(bytes) : NULL;
    if (ok && bytes) {
        memset(r->memory, 0xa5, bytes);
        ok = attune_buffer_wrap(s->device, r->memory, bytes, &r->workspace) == ATTUNE_OK;
    }
    if (ok) {
        move(&r->q, &a->q, r->rows, r->row_runs, false);
        move(&r->k, &a->k, r->keys, r->key_runs, false);
        move(&r->v, &a->v, r->keys, r->key_runs, false);
    }
    return ok;
}

static attune_status call(const sharing *s, uint32_t rank, const rank_data *r)
{
    const attune_forward_args args = {.struct_size = sizeof args,
                                      .q = r->q.tensor,
                                      .k = r->k.tensor,
                                      .v = r->v.tensor,
                                      .o = r->o.tensor,
                                      .lse = r->lse.tensor,
                                      .mask = rank == s->bad_call ? s->mask : NULL,
                                      .captures = r->named,
                                      .capture_count = s->a->capture_count,
                                      .parameters = s->a->parameters,
                                      .parameter_count = s->a->parameter_count,
                                      .sinks = r->sinks.tensor,
                                      .workspace = r->workspace};
    return attune_distributed_forward(r->distributed, attune_device_queue(s->device), &args, NULL);
}

/* The body of a rank. */
static void run_rank(void *context, uint32_t rank)
{
    sharing *s = context;
    rank_data r = {.partition = NULL};
    attune_status status = s->created[rank] = prepare(s, rank, &r);
    if (status == ATTUNE_OK && !place(s, &r))
        abort();
    char *first = NULL;
    for (uint32_t i = 0; status == ATTUNE_OK && i < s->calls; i++) {
        status = call(s, rank, &r);
        if (!first && r.o.bytes)
            first = memcpy(malloc(r.o.bytes), r.o.data, r.o.bytes);
        s->differs[rank] |= r.o.bytes && memcmp(first, r.o.data, r.o.bytes) != 0;
        if (r.o.bytes && i + 1 < s->calls)
            memset(r.o.data, 0x5a, r.o.bytes);
        if (r.memory)
            memset(r.memory, 0xa5 + (int)i, attune_distributed_workspace_size(r.distributed));
    }
    s->status[rank] = status;
    if (status != ATTUNE_OK) {
        strncpy(s->message[rank], attune_last_error(), sizeof s->message[rank] - 1);
    } else {
        move(&r.o, &s->o, r.rows, r.row_runs, true);
        move(&r.lse, &s->lse, r.rows, r.row_runs, true);
    }
    free(first);
    local_destroy(&r.q);
    local_destroy(&r.k);
    local_destroy(&r.v);
    local_destroy(&r.o);
    local_destroy(&r.lse);
    local_destroy(&r.sinks);
    for (uint32_t i = 0; i < s->a->capture_count; i++)
        local_destroy(&r.captures[i]);
    attune_buffer_destroy(r.workspace);
    free(r.memory);
    attune_distributed_destroy(r.distributed);
    attune_partition_destroy(r.partition);
}

/* ------------------------------------------------------------------------------------------------------------ cases */

static attune_mask *make_mask(attune_instance *instance, const attention_case *c, const attention *a)
{
    const attune_mask_desc desc = {.struct_size = sizeof desc,
                                   .q_block = c->q_block ? c->q_block : 32,
                                   .kv_block = c->kv_block ? c->kv_block : 16,
                                   .batch = c->batch,
                                   .heads = c->heads,
                                   .kv_heads = c->kv_heads,
                                   .q_len = c->q_len,
                                   .kv_len = c->kv_len};
    attune_mask *mask, *listed;
    attune_expr *expr = a->mask, *all = NULL;
    failure why;
    if (!expr) {
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "true", NULL, 0, &all), ATTUNE_OK);
        expr = all;
    }
    cr_assert_eq(attune_mask_create(instance, &desc, expr, a->captures, a->capture_count, a->parameters,
                                    a->parameter_count, &mask),
                 ATTUNE_OK, "%s", attune_last_error());
    attune_expr_destroy(all);
    if (!c->partial)
        return mask;
    attune_mask_lists lists = {.struct_size = sizeof lists};
    cr_assert(case_partial(instance, c, &expr, &why), "%s", why.message);
    cr_assert_eq(attune_mask_lists_get(mask, &lists), ATTUNE_OK);
    cr_assert_eq(attune_mask_create_lists(instance, &desc, &lists, expr, a->captures, a->capture_count, a->parameters,
                                          a->parameter_count, &listed),
                 ATTUNE_OK, "%s", attune_last_error());
    attune_expr_destroy(expr);
    attune_mask_destroy(mask);
    return listed;
}

static void compare(const sharing *s, attune_dtype dtype)
{
    const attention *a = s->a;
    const int64_t dv = a->v.size[3], rows = array_count(&s->lse);
    double *values = calloc((size_t)(3 * rows * (dv + 2) + rows * dv), sizeof *values);
    cr_assert(values);
    reference_result result[3];
    failure why;
    for (int i = 0; i < 3; i++) {
        double *base = values + i * rows * (dv + 2);
        result[i] = (reference_result){base, base + rows * dv, base + rows * (dv + 1), NULL};
    }
    if (dtype != ATTUNE_F64)
        result[1].moved = values + 3 * rows * (dv + 2);
    cr_assert(reference_compute(a, REFERENCE_ORACLE, NULL, 0, &result[1], &why), "%s", why.message);
    cr_assert(reference_compute(a, REFERENCE_NAIVE, NULL, 0, &result[2], &why), "%s", why.message);
    for (int64_t i = 0; i < rows * dv; i++) {
        result[0].o[i] = array_get(&s->o, i);
        if (isfinite(result[1].lse[i / dv]) && result[1].o[i] == 0 && result[2].o[i] == 0)
            result[2].o[i] = DBL_MIN;
    }
    for (int64_t i = 0; i < rows; i++)
        result[0].lse[i] = array_get(&s->lse, i);
    reference_error o, lse;
    reference_compare_o(attention_rule_dtype(a), attention_o_dtype(a), rows, dv, result[0].o, &result[1], &result[2],
                        &o);
    const double more = segments_rounding(s->device, a);
    reference_allow(&o, more, more / 8);
    reference_compare(dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, rows, result[0].lse, result[1].lse, result[2].lse,
                      &lse);
    cr_expect(o.pass,
              "%s %s over %u ranks, layout %d: o: max error %.3g (bound %.3g), mean %.3g (bound %.3g), %lld "
              "wrong patterns; at %lld: %.9g, oracle %.9g",
              s->c->name, attune_dtype_string(dtype), s->ranks, (int)s->layout, o.max, o.bound_max, o.mean,
              o.bound_mean, (long long)o.pattern_errors, (long long)o.worst, result[0].o[o.worst],
              result[1].o[o.worst]);
    cr_expect(lse.pass, "%s %s over %u ranks: lse: max error %.3g (bound %.3g), %lld wrong patterns", s->c->name,
              attune_dtype_string(dtype), s->ranks, lse.max, lse.bound_max, (long long)lse.pattern_errors);
    free(values);
}

/* On one rank, the bits of the single device. */
static void compare_single(const sharing *s)
{
    array o = {0}, lse = {0};
    attention_run run = {.mask_q_block = s->c->q_block ? s->c->q_block : 32,
                         .mask_kv_block = s->c->kv_block ? s->c->kv_block : 16,
                         .o = &o,
                         .lse = &lse};
    /* What attention_forward has. */
    if (s->c->partial || !s->a->mask || s->a->sinks.data)
        return;
    cr_assert_eq(attention_forward(s->instance, s->device, s->a, &run), ATTUNE_OK, "%s", attune_last_error());
    uint64_t wrong = 0;
    for (int64_t i = 0; i < array_count(&o); i++) {
        const double x = array_get(&o, i), y = array_get(&s->o, i);
        wrong += x != y && !(isnan(x) && isnan(y));
    }
    cr_expect_eq(wrong, 0, "%s: %llu elements of one rank are not the single device's", s->c->name,
                 (unsigned long long)wrong);
    array_free(&o);
    array_free(&lse);
}

static void sharing_begin(sharing *s, const attention *a, uint64_t number)
{
    failure why;
    const int64_t size[4] = {a->q.size[0], a->q.size[1], a->q.size[2], a->v.size[3]};
    s->a = a;
    s->layout = (attune_layout)(number % 5);
    s->token_major = number / 5 % 2;
    s->late = number / 3 % 2;
    s->other_problem = s->bad_call = MOST_RANKS;
    s->mask = make_mask(s->instance, s->c, a);
    cr_assert(array_create(&s->o, attention_o_dtype(a), 4, size, &why));
    cr_assert(array_create(&s->lse, a->q.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, 3, size, &why));
    rank_group_init(&s->group, s->ranks);
}

static void sharing_end(sharing *s)
{
    rank_group_finish(&s->group);
    attune_mask_destroy(s->mask);
    array_free(&s->o);
    array_free(&s->lse);
}

static void open_device(sharing *s)
{
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 1};
    cr_assert_eq(attune_instance_create(&desc, &s->instance), ATTUNE_OK);
    s->device = device_or_skip(s->instance, "cpu");
}

static void close_device(sharing *s)
{
    attune_device_destroy(s->device);
    attune_instance_destroy(s->instance);
}

static void run_case(sharing *s, const attention_case *given, uint64_t number)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_BF16, ATTUNE_F64, ATTUNE_F16};
    static const uint32_t ranks[] = {2, 3, 1, 4, 7};
    const attune_dtype dtype = dtypes[number / 2 % 4];
    attention_case c = dtype == ATTUNE_F64 ? case_unmixed(given) : *given;
    attention a;
    failure why;
    /* A row that has both NaN and +inf has either, by the order. */
    if (c.input == INPUT_MIXED || c.input == INPUT_NONFINITE)
        return;
    if (c.batch * c.heads * c.q_len * c.kv_len > MOST_PAIRS)
        return;
    s->c = &c;
    s->ranks = ranks[number % 5];
    s->calls = 2;
    cr_assert(case_instantiate(s->instance, &c, dtype, test_seed() + number, &a, &why), "%s", why.message);
    sharing_begin(s, &a, number / 5 + number);
    rank_group_run(&s->group, run_rank, s);
    bool done = true;
    for (uint32_t r = 0; r < s->ranks; r++) {
        done = done && s->status[r] == ATTUNE_OK;
        cr_expect_eq(s->status[r], ATTUNE_OK, "%s, rank %u of %u: %s", c.name, r, s->ranks, s->message[r]);
        cr_expect_not(s->differs[r], "%s, rank %u of %u: a repeated call differs", c.name, r, s->ranks);
    }
    if (done)
        compare(s, dtype);
    if (done && s->ranks == 1)
        compare_single(s);
    sharing_end(s);
    case_release(&a);
}

Test(distributed_forward, table)
{
    static sharing s;
    open_device(&s);
    for (uint64_t i = 0; i < scaled(CASE_COUNT); i++)
        if (test_part(i))
            run_case(&s, &attention_cases[i * CASE_COUNT / scaled(CASE_COUNT)], i);
    close_device(&s);
}

Test(distributed_forward, random)
{
    static sharing s;
    open_device(&s);
    for (uint64_t i = 0; i < scaled(100); i++) {
        case_storage storage;
        const attention_case c = attention_case_random(test_seed() * 7919 + i, &storage);
        if (test_part(i))
            run_case(&s, &c, i);
    }
    close_device(&s);
}

/* --------------------------------------------------------------------------------------------------------- failures */

/* Causal attention of 200 rows over 4 ranks, of which one fails somewhere. */
static void run_failure(sharing *s, const rank_fault *fault, uint32_t other_problem, uint32_t bad_call)
{
    static const attention_case c = {.name = "fails",
                                     .batch = 1,
                                     .kv_batch = 1,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .q_len = 200,
                                     .kv_len = 200,
                                     .head_dim = 16,
                                     .mask = "q >= kv"};
    static attention a;
    failure why;
    s->c = &c;
    s->ranks = 4;
    s->calls = 3;
    memset(s->status, 0, sizeof s->status);
    cr_assert(case_instantiate(s->instance, &c, ATTUNE_F32, 1, &a, &why), "%s", why.message);
    sharing_begin(s, &a, 3);
    s->group.fault = *fault;
    s->other_problem = other_problem;
    s->bad_call = bad_call;
    rank_group_run(&s->group, run_rank, s);
    sharing_end(s);
    case_release(&a);
}

/* Every rank returns an error, whichever of them fails, and none waits for it. */
Test(distributed_forward, a_rank_fails, .timeout = 60)
{
    static sharing s;
    static const rank_fault faults[] = {
        {.gather = true, .rank = 2},
        {.exchange = true, .rank = 0},
        {.exchange = true, .rank = 3, .after = 2},
        {.finish = true, .rank = 1, .after = 1},
    };
    open_device(&s);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        run_failure(&s, &faults[i], MOST_RANKS, MOST_RANKS);
        for (uint32_t r = 0; r < 4; r++) {
            const char *name = faults[i].gather ? "gather" : faults[i].exchange ? "exchange" : "finish";
            cr_expect_neq(s.status[r], ATTUNE_OK, "fault %zu, rank %u", i, r);
            if (r == faults[i].rank)
                cr_expect(s.status[r] == ATTUNE_IO && strstr(s.message[r], name), "%s", s.message[r]);
        }
    }
    /* An argument that one rank's call has wrong. */
    run_failure(&s, &(rank_fault){.rank = 0}, MOST_RANKS, 1);
    for (uint32_t r = 0; r < 4; r++) {
        cr_expect_eq(s.created[r], ATTUNE_OK);
        cr_expect_eq(s.status[r], r == 1 ? ATTUNE_INVALID_ARGUMENT : ATTUNE_UNAVAILABLE, "%s", s.message[r]);
    }
    close_device(&s);
}

/* A rank with another problem is refused by all, before any call. */
Test(distributed_forward, a_rank_differs, .timeout = 60)
{
    static sharing s;
    open_device(&s);
    run_failure(&s, &(rank_fault){.rank = 0}, 2, MOST_RANKS);
    for (uint32_t r = 0; r < 4; r++) {
        cr_expect_eq(s.created[r], ATTUNE_INVALID_ARGUMENT);
        cr_expect(strstr(s.message[r], "rank 2"), "%s", s.message[r]);
    }
    close_device(&s);
}

/* Of rank 0 of 2, where the other does as it does. */
static attune_status echo(void *user, const void *mine, void *all, size_t size)
{
    (void)user;
    memcpy(all, mine, size);
    memcpy((char *)all + size, mine, size);
    return ATTUNE_OK;
}

static attune_status no_exchange(void *user, const attune_message *sends, uint32_t send_count,
                                 const attune_message *receives, uint32_t receive_count, attune_queue *queue)
{
    (void)user, (void)sends, (void)send_count, (void)receives, (void)receive_count, (void)queue;
    return ATTUNE_OK;
}

static void count_abort(void *user)
{
    ++*(int *)user;
}

/* Every allocation fails once: an error, and nothing is lost. */
Test(distributed_forward, out_of_memory)
{
    for (long long at = 1;; at++) {
        heap memory = {0};
        int aborts = 0;
        const attune_instance_desc instance_desc = {
            .struct_size = sizeof instance_desc, .cpu_threads = 1, .allocator = heap_allocator(&memory)};
        const attune_mask_desc mask_desc = {.struct_size = sizeof mask_desc, .q_len = 300, .kv_len = 300};
        const attune_partition_desc dealt = {.struct_size = sizeof dealt, .ranks = 2};
        attune_problem problem = {.struct_size = sizeof problem, .head_dim = 16};
        const attune_transport transport = {.struct_size = sizeof transport,
                                            .size = 2,
                                            .user = &aborts,
                                            .gather = echo,
                                            .exchange = no_exchange,
                                            .abort = count_abort};
        attune_distributed_desc desc = {.struct_size = sizeof desc, .transport = &transport, .problem = &problem};
        attune_instance *instance;
        attune_device *device;
        attune_expr *mask_expr, *score;
        attune_mask *mask;
        attune_partition *partition;
        attune_distributed *distributed;
        cr_assert_eq(attune_instance_create(&instance_desc, &instance), ATTUNE_OK);
        cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv", NULL, 0, &mask_expr), ATTUNE_OK);
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score + q", NULL, 0, &score), ATTUNE_OK);
        cr_assert_eq(attune_mask_create(instance, &mask_desc, mask_expr, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
        cr_assert_eq(attune_partition_create(instance, &dealt, mask, &partition), ATTUNE_OK);
        problem.score = score;
        desc.partition = partition;
        desc.mask = mask;
        memory.fail_at = memory.allocations + at;
        const attune_status status = attune_distributed_create(device, &desc, &distributed);
        memory.fail_at = 0;
        attune_distributed_destroy(distributed);
        attune_partition_destroy(partition);
        attune_mask_destroy(mask);
        attune_expr_destroy(mask_expr);
        attune_expr_destroy(score);
        attune_device_destroy(device);
        attune_instance_destroy(instance);
        cr_expect_eq(memory.live, 0, "allocation %lld: %lld live", at, (long long)memory.live);
        if (status == ATTUNE_OK) {
            cr_assert(at > 30 && !aborts);
            break;
        }
        cr_assert(status == ATTUNE_OUT_OF_HOST_MEMORY || status == ATTUNE_OUT_OF_DEVICE_MEMORY, "%s",
                  attune_last_error());
    }
}
