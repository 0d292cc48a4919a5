/* SPDX-License-Identifier: MIT */
/* K and V at forbidden pairs have no influence on a row's bits, whatever is there: other finite values, infinities or
 * NaN. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/devices.h"
#include "tests/oracle/reference.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

enum { HEADS = 3, KEYS = 300, DIM = 40, ROWS = 100, PAGE = 16, PAGES = (KEYS + PAGE - 1) / PAGE };

typedef struct pattern {
    const char *text;
    bool (*allowed)(int64_t q, int64_t kv);
} pattern;

typedef struct pairs {
    pattern mask;
    uint32_t splits; /* 0 = the planner's */
    int64_t rows;
    attune_dtype dtype; /* of q, k, v and o */
    bool cached;
    const char *backend, *kernel; /* forwards alone; NULL = the CPU's, with gradients */
} pairs;

typedef struct call {
    attune_device *device;
    attune_plan *plan, *gradients;
    attune_mask *mask;
    attune_buffer *buffers[16], *workspace[2];
    void *data[16]; /* where the device has copies: what each was made from */
    uint64_t sizes[16];
    uint32_t buffer_count;
    void *q, *k, *v, *o, *lse, *d_o, *d_q, *d_k, *d_v;
    int32_t q_start[2], kv_len[1], pages[PAGES];
    attune_cache cache;
    attune_batch batch;
    attune_forward_args args;
    attune_backward_args backward;
} call;

static size_t size_of(attune_dtype dtype)
{
    return (size_t)attune_dtype_size(dtype);
}

static void put(void *to, attune_dtype dtype, size_t i, double value)
{
    const float single = (float)value;
    uint32_t word;
    memcpy(&word, &single, sizeof word);
    const uint16_t half = (uint16_t)(word >> 16); /* of bf16 */
    if (dtype == ATTUNE_F64)
        memcpy((char *)to + i * sizeof value, &value, sizeof value);
    else if (dtype == ATTUNE_F32)
        memcpy((char *)to + i * sizeof single, &single, sizeof single);
    else
        memcpy((char *)to + i * sizeof half, &half, sizeof half);
}

static attune_tensor wrapped(call *c, void *data, uint64_t bytes, attune_tensor t)
{
    attune_device_info info = {.struct_size = sizeof info};
    OK(attune_device_info_get(c->device, &info));
    if (info.backend == ATTUNE_BACKEND_CPU) {
        OK(attune_buffer_wrap(c->device, data, bytes, &c->buffers[c->buffer_count]));
    } else {
        OK(attune_buffer_create(c->device, bytes, &c->buffers[c->buffer_count]));
        c->data[c->buffer_count] = data;
        c->sizes[c->buffer_count] = bytes;
    }
    t.buffer = c->buffers[c->buffer_count++];
    return t;
}

static void write_copies(const call *c)
{
    for (uint32_t i = 0; i < c->buffer_count; i++)
        if (c->data[i])
            OK(attune_buffer_write(c->buffers[i], 0, c->data[i], c->sizes[i]));
}

static void read_copies(const call *c)
{
    for (uint32_t i = 0; i < c->buffer_count; i++)
        if (c->data[i])
            OK(attune_buffer_read(c->buffers[i], 0, c->data[i], c->sizes[i]));
}

static bool has_gradients(const pairs *p)
{
    return !p->cached && !p->kernel;
}

static void *drawn(const pairs *p, random_state *r, size_t count)
{
    void *data = calloc(count, size_of(p->dtype));
    cr_assert(data);
    for (size_t i = 0; i < count; i++)
        put(data, p->dtype, i, random_normal(r));
    return data;
}

/* Rows of q and o are [row, head] over a cache, else [head, row]; those of v are [key] of one head. */
static size_t row_at(const pairs *p, int64_t h, int64_t q)
{
    return (size_t)(p->cached ? q * HEADS + h : h * p->rows + q);
}

static void create_backward(call *c, const pairs *p, random_state *r, attune_tensor rows, attune_tensor keys)
{
    const size_t size = size_of(p->dtype), q_bytes = (size_t)(HEADS * p->rows) * DIM * size,
                 kv_bytes = KEYS * DIM * size;
    const attune_tensor lse = {
        .dtype = p->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, .rank = 3, .size = {1, HEADS, p->rows}};
    c->lse = calloc((size_t)(HEADS * p->rows), sizeof(double));
    c->d_o = drawn(p, r, q_bytes / size);
    c->d_q = calloc(1, q_bytes);
    c->d_k = calloc(1, kv_bytes);
    c->d_v = calloc(1, kv_bytes);
    cr_assert(c->lse && c->d_q && c->d_k && c->d_v);
    c->args.lse = wrapped(c, c->lse, (uint64_t)(HEADS * p->rows) * size_of(lse.dtype), lse);
    c->backward = (attune_backward_args){.struct_size = sizeof c->backward,
                                         .q = c->args.q,
                                         .k = c->args.k,
                                         .v = c->args.v,
                                         .o = c->args.o,
                                         .lse = c->args.lse,
                                         .d_o = wrapped(c, c->d_o, q_bytes, rows),
                                         .mask = c->mask};
    c->backward.d_q = wrapped(c, c->d_q, q_bytes, rows);
    c->backward.d_k = wrapped(c, c->d_k, kv_bytes, keys);
    c->backward.d_v = wrapped(c, c->d_v, kv_bytes, keys);
}

static void create(call *c, const pairs *p, attune_instance *instance, random_state *r)
{
    attune_expr *mask;
    const size_t bytes = size_of(p->dtype), q_count = (size_t)(HEADS * p->rows) * DIM, kv_count = PAGES * PAGE * DIM;
    memset(c, 0, sizeof *c);
    c->device = device_or_skip(instance, p->backend ? p->backend : "cpu");
    OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, p->mask.text, NULL, 0, &mask));
    attune_kernel_options options = {.struct_size = sizeof options, .any = {.split_kv = p->splits}};
    (void)snprintf(options.any.kernel, sizeof options.any.kernel, "%s", p->kernel ? p->kernel : "cpu");
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = p->dtype,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .kv_heads = 1,
                              .q_len = p->rows,
                              .kv_len = KEYS,
                              .lse = !p->cached};
    if (p->cached) {
        problem.mask = mask;
        problem.tokens = p->rows;
        problem.page = PAGE;
    } else {
        const attune_mask_desc desc = {
            .struct_size = sizeof desc, .heads = HEADS, .kv_heads = 1, .q_len = p->rows, .kv_len = KEYS};
        OK(attune_mask_create(instance, &desc, mask, NULL, 0, NULL, 0, &c->mask));
        OK(attune_mask_upload(c->mask, c->device));
        OK(attune_problem_set_mask(&problem, c->mask));
    }
    OK(attune_plan_create(c->device, &problem, &options, &c->plan));
    problem.direction = ATTUNE_BACKWARD;
    if (has_gradients(p))
        OK(attune_plan_create(
            c->device, &problem,
            &(attune_kernel_options){.struct_size = sizeof(attune_kernel_options), .any = {.kernel = "cpu"}},
            &c->gradients));
    attune_expr_destroy(mask);
    c->q = drawn(p, r, q_count);
    c->k = drawn(p, r, kv_count);
    c->v = drawn(p, r, kv_count);
    c->o = calloc(q_count, bytes);
    cr_assert(c->o);
    attune_tensor rows = {.dtype = p->dtype, .rank = 4, .size = {1, HEADS, p->rows, DIM}};
    attune_tensor keys = {.dtype = p->dtype, .rank = 4, .size = {1, 1, KEYS, DIM}};
    if (p->cached) {
        rows = (attune_tensor){.dtype = p->dtype, .rank = 3, .size = {p->rows, HEADS, DIM}};
        keys = (attune_tensor){.dtype = p->dtype, .rank = 4, .size = {PAGES, 1, PAGE, DIM}};
    }
    c->args = (attune_forward_args){.struct_size = sizeof c->args,
                                    .q = wrapped(c, c->q, q_count * bytes, rows),
                                    .o = wrapped(c, c->o, q_count * bytes, rows),
                                    .mask = c->mask};
    c->args.k = wrapped(c, c->k, kv_count * bytes, keys);
    c->args.v = wrapped(c, c->v, kv_count * bytes, keys);
    if (p->cached) {
        for (int32_t i = 0; i < PAGES; i++)
            c->pages[i] = i;
        c->q_start[1] = (int32_t)p->rows;
        c->kv_len[0] = KEYS;
        const attune_tensor pages = {.dtype = ATTUNE_I32, .rank = 2, .size = {1, PAGES}};
        const attune_tensor starts = {.dtype = ATTUNE_I32, .rank = 1, .size = {2}};
        const attune_tensor lengths = {.dtype = ATTUNE_I32, .rank = 1, .size = {1}};
        c->cache = (attune_cache){.struct_size = sizeof c->cache,
                                  .k = c->args.k,
                                  .v = c->args.v,
                                  .pages = wrapped(c, c->pages, sizeof c->pages, pages)};
        c->batch = (attune_batch){.struct_size = sizeof c->batch,
                                  .q_start = wrapped(c, c->q_start, sizeof c->q_start, starts),
                                  .kv_len = wrapped(c, c->kv_len, sizeof c->kv_len, lengths)};
        c->args.k = c->args.v = (attune_tensor){0};
        c->args.cache = &c->cache;
        c->args.batch = &c->batch;
    }
    if (has_gradients(p))
        create_backward(c, p, r, rows, keys);
    OK(attune_buffer_create(c->device, attune_plan_workspace_size(c->plan) + 1, &c->workspace[0]));
    c->args.workspace = c->workspace[0];
    if (!has_gradients(p))
        return;
    OK(attune_buffer_create(c->device, attune_plan_workspace_size(c->gradients) + 1, &c->workspace[1]));
    c->backward.workspace = c->workspace[1];
}

static void destroy(call *c)
{
    for (uint32_t i = 0; i < c->buffer_count; i++)
        attune_buffer_destroy(c->buffers[i]);
    attune_buffer_destroy(c->workspace[0]);
    attune_buffer_destroy(c->workspace[1]);
    attune_plan_destroy(c->plan);
    attune_plan_destroy(c->gradients);
    attune_mask_destroy(c->mask);
    attune_device_destroy(c->device);
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->o);
    free(c->lse);
    free(c->d_o);
    free(c->d_q);
    free(c->d_k);
    free(c->d_v);
}

/* O, and dQ where there is one, as bytes. */
typedef char result[2][HEADS * ROWS * DIM * sizeof(double)];

static void run(call *c, const pairs *p, result to)
{
    const size_t bytes = (size_t)(HEADS * p->rows) * DIM * size_of(p->dtype);
    attune_completion done;
    write_copies(c);
    OK(attune_forward(c->plan, attune_device_queue(c->device), &c->args, &done));
    OK(attune_completion_wait(done, UINT64_MAX));
    read_copies(c);
    memcpy(to[0], c->o, bytes);
    if (!has_gradients(p))
        return;
    OK(attune_backward(c->gradients, attune_device_queue(c->device), &c->backward, &done));
    OK(attune_completion_wait(done, UINT64_MAX));
    memcpy(to[1], c->d_q, bytes);
}

/* The elements of K or V that one call has otherwise than another: some keys, in some columns. */
typedef struct change {
    bool of_k;
    int64_t keys[6];
    int64_t first, columns;
    double value; /* 0 = other finite ones */
} change;

static int64_t total; /* elements that were compared */

/* Whether an element of o, or of dQ, reads what has changed. A column of o reads that of V alone. */
static bool reads(const pairs *p, const change *ch, bool gradient, int64_t q, int64_t d)
{
    if (!ch->of_k && !gradient && (d < ch->first || d >= ch->first + ch->columns))
        return false;
    for (size_t i = 0; i < sizeof ch->keys / sizeof *ch->keys; i++)
        if (p->mask.allowed(q + (p->cached ? KEYS - p->rows : 0), ch->keys[i]))
            return true;
    return false;
}

static void expect_bits(const pairs *p, const change *ch, bool gradient, const char *before, const char *after)
{
    const size_t element = size_of(p->dtype);
    int64_t differ = 0, first_q = -1, first_d = -1;
    for (int64_t q = 0; q < p->rows; q++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t d = 0; d < DIM; d++) {
                const size_t at = (row_at(p, h, q) * DIM + (size_t)d) * element;
                if (reads(p, ch, gradient, q, d))
                    continue;
                total++;
                if (!memcmp(before + at, after + at, element))
                    continue;
                if (!differ++) {
                    first_q = q;
                    first_d = d;
                }
            }
    cr_expect_eq(differ, 0,
                 "%s: %s, %d rows, dtype %d, %d splits%s, %s has %g in %d columns: %d elements of %s differ, the first "
                 "in row %d, column %d",
                 p->kernel ? p->kernel : "cpu", p->mask.text, (int)p->rows, (int)p->dtype, (int)p->splits,
                 p->cached ? ", a cache" : "", ch->of_k ? "K" : "V", ch->value, (int)ch->columns, (int)differ,
                 gradient ? "dQ" : "O", (int)first_q, (int)first_d);
}

static void change_values(const pairs *p, call *c, random_state *r, const change *ch)
{
    for (size_t i = 0; i < sizeof ch->keys / sizeof *ch->keys; i++)
        for (int64_t d = ch->first; d < ch->first + ch->columns; d++)
            put(ch->of_k ? c->k : c->v, p->dtype, (size_t)(ch->keys[i] * DIM + d),
                ch->value != 0 ? ch->value : 1000 * random_normal(r));
}

static void compare(const pairs *p, attune_instance *instance)
{
    static const double values[] = {0, 0, (double)NAN, (double)INFINITY, -(double)INFINITY};
    static result before, after;
    random_state r = {test_seed()};
    const size_t bytes = PAGES * PAGE * DIM * size_of(p->dtype);
    call c;
    create(&c, p, instance, &r);
    run(&c, p, before);
    void *kept_k = malloc(bytes), *kept_v = malloc(bytes);
    cr_assert(kept_k && kept_v);
    memcpy(kept_k, c.k, bytes);
    memcpy(kept_v, c.v, bytes);
    for (int i = 0; i < 20; i++) {
        change ch = {.of_k = i / 10, .value = values[i % 5], .columns = i / 5 % 2 ? DIM : 1};
        ch.first = ch.columns == 1 ? (int64_t)(random_u64(&r) % DIM) : 0;
        for (size_t j = 0; j < sizeof ch.keys / sizeof *ch.keys; j++)
            ch.keys[j] = (int64_t)(random_u64(&r) % KEYS);
        change_values(p, &c, &r, &ch);
        run(&c, p, after);
        for (int gradient = 0; gradient < 1 + has_gradients(p); gradient++)
            expect_bits(p, &ch, gradient, before[gradient], after[gradient]);
        memcpy(c.k, kept_k, bytes);
        memcpy(c.v, kept_v, bytes);
    }
    free(kept_k);
    free(kept_v);
    destroy(&c);
}

static bool causal(int64_t q, int64_t kv)
{
    return kv <= q;
}

static bool scattered(int64_t q, int64_t kv)
{
    return (kv * 7 + q) % 5 == 0;
}

static bool sparse(int64_t q, int64_t kv)
{
    return (kv + q) % 41 == 0;
}

static bool blocks(int64_t q, int64_t kv)
{
    return kv / 24 % 4 == q / 8 % 4;
}

static const pattern patterns[] = {{"kv <= q", causal},
                                   {"(kv * 7 + q) % 5 == 0", scattered},
                                   {"(kv + q) % 41 == 0", sparse},
                                   {"kv / 24 % 4 == q / 8 % 4", blocks}};

static void compare_all(attune_dtype dtype)
{
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 2, .cache_folder = ""};
    attune_instance *instance;
    total = 0;
    OK(attune_instance_create(&desc, &instance));
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        for (int64_t rows = 1; rows <= ROWS; rows = rows == 1 ? 3 : rows == 3 ? 40 : rows + 60)
            for (int cached = 0; cached < 2; cached++)
                for (int split = 0; split < (cached || rows > 3 ? 1 : 2); split++)
                    compare(&(pairs){patterns[i], split ? 3 : 0, rows, dtype, cached != 0, NULL, NULL}, instance);
    cr_expect_gt(total, 1000000, "%d elements", (int)total);
    attune_instance_destroy(instance);
}

Test(forbidden, cpu_f32)
{
    compare_all(ATTUNE_F32);
}

Test(forbidden, cpu_f64)
{
    compare_all(ATTUNE_F64);
}

Test(forbidden, cpu_bf16)
{
    compare_all(ATTUNE_BF16);
}

/* A kernel is compiled for each: fewer shapes, and over a cache where the kernel has one. */
static void compare_kernel(const char *backend, const char *kernel, bool caches)
{
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    attune_instance *instance;
    total = 0;
    OK(attune_instance_create(&desc, &instance));
    for (int cached = 0; cached < 1 + caches; cached++)
        for (size_t i = (size_t)cached; i < sizeof patterns / sizeof *patterns; i += 2)
            compare(&(pairs){patterns[i], 0, 40, ATTUNE_F32, cached != 0, backend, kernel}, instance);
    cr_expect_gt(total, 100000, "%d elements", (int)total);
    attune_instance_destroy(instance);
}

Test(forbidden, vulkan_portable, .timeout = 300)
{
    compare_kernel("vulkan", "vulkan_portable", true);
}

Test(forbidden, vulkan_subgroup, .timeout = 300)
{
    compare_kernel("vulkan", "vulkan_subgroup", true);
}

Test(forbidden, opencl, .timeout = 300)
{
    compare_kernel("opencl", "opencl_portable", false);
}

static bool last(int64_t q, int64_t kv)
{
    (void)q;
    return kv != KEYS - 2;
}

/* A zero whose sign a sum of zeros decides: the first keys have weights that underflow, and negative values. */
Test(forbidden, cpu_zeros)
{
    static result o[2];
    const pairs p = {{"kv != 298", last}, 0, 1, ATTUNE_F32, false, NULL, NULL};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 1, .cache_folder = ""};
    attune_instance *instance;
    random_state r = {test_seed()};
    call c;
    OK(attune_instance_create(&desc, &instance));
    create(&c, &p, instance, &r);
    for (int i = 0; i < HEADS * DIM; i++)
        ((float *)c.q)[i] = 1;
    for (int i = 0; i < KEYS * DIM; i++) {
        ((float *)c.k)[i] = i / DIM < KEYS - 2 ? -100 : 1;
        ((float *)c.v)[i] = i / DIM < KEYS - 2 ? -1 : -0.0f;
    }
    for (int i = 0; i < 2; i++) {
        for (int d = 0; d < DIM; d++)
            ((float *)c.v)[(KEYS - 2) * DIM + d] = i ? 1 : -1;
        run(&c, &p, o[i]);
    }
    cr_expect_eq(((float *)(void *)o[0][0])[0], 0);
    cr_expect_eq(memcmp(o[0][0], o[1][0], HEADS * DIM * sizeof(float)), 0, "%g and %g",
                 ((double)((float *)(void *)o[0][0])[0]), ((double)((float *)(void *)o[1][0])[0]));
    destroy(&c);
    attune_instance_destroy(instance);
}
