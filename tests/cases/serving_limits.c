/* SPDX-License-Identifier: MIT */
/* Calls over a cache at their limits: a thousand sequences, tables that repeat pages, pages gigabytes apart, and a
 * workspace that several plans share. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/oracle/serving.h"

#define OK(call)   cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())
#define GOOD(call) cr_assert(call, "%s: %s", #call, why.message)

typedef struct shape {
    int64_t sequences, heads, kv_heads, d, page, most_rows, most_keys;
    bool repeat; /* some sequences have one page several times in a row */
} shape;

static int64_t between(random_state *r, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(random_u64(r) % (uint64_t)(hi - lo + 1));
}

/* A packed batch in f32 over a pool of shuffled pages, with a window as its mask. */
static void draw(attune_instance *instance, const shape *c, uint64_t seed, serving *s)
{
    failure why;
    random_state r = {seed};
    const int64_t entries = (c->most_keys + c->page - 1) / c->page, pages = c->sequences * entries;
    *s = (serving){.a = {.scale = 0}};
    GOOD(array_create(&s->q_start, ATTUNE_I32, 1, (int64_t[]){c->sequences + 1}, &why));
    GOOD(array_create(&s->kv_len, ATTUNE_I32, 1, (int64_t[]){c->sequences}, &why));
    GOOD(array_create(&s->pages, ATTUNE_I32, 2, (int64_t[]){c->sequences, entries}, &why));
    int32_t *start = s->q_start.data, *keys = s->kv_len.data, *table = s->pages.data;
    start[0] = 0;
    for (int64_t b = 0; b < c->sequences; b++) {
        start[b + 1] = start[b] + (int32_t)between(&r, 0, c->most_rows);
        keys[b] = (int32_t)between(&r, 0, c->most_keys);
        for (int64_t i = 0; i < entries; i++)
            table[b * entries + i] = (int32_t)(b * entries + i);
    }
    for (int64_t i = pages - 1; i > 0; i--) {
        const int64_t j = between(&r, 0, i);
        const int32_t swapped = table[i];
        table[i] = table[j];
        table[j] = swapped;
    }
    for (int64_t i = 1; c->repeat && i < pages; i++)
        if (i % entries && i / entries % 3 == 0)
            table[i] = table[i - 1];
    GOOD(array_create(&s->a.q, ATTUNE_F32, 3, (int64_t[]){start[c->sequences] + 5, c->heads, c->d}, &why));
    GOOD(array_create(&s->a.k, ATTUNE_F32, 4, (int64_t[]){pages, c->kv_heads, c->page, c->d}, &why));
    GOOD(array_create(&s->a.v, ATTUNE_F32, 4, (int64_t[]){pages, c->kv_heads, c->page, c->d}, &why));
    array_fill_normal(&s->a.q, &r, 1);
    array_fill_normal(&s->a.k, &r, 1);
    array_fill_normal(&s->a.v, &r, 1);
    OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv && q - kv < 29", NULL, 0, &s->a.mask));
    GOOD(serving_check(s, &why));
}

static void undraw(serving *s)
{
    attune_expr_destroy(s->a.mask);
    serving_free(s);
}

static void check(attune_instance *instance, attune_device *device, const serving *s)
{
    failure why;
    array o, lse;
    int64_t count;
    OK(serving_forward(device, s, NULL, &o, &lse, NULL));
    reference_row *rows = serving_all_rows(s, &count);
    const int64_t width = serving_width(s), each = count * (2 * width + 2);
    double *memory = calloc((size_t)(2 * each + count * (width + 1)), sizeof *memory);
    cr_assert(rows && memory);
    reference_result results[2];
    for (int i = 0; i < 2; i++) {
        double *at = memory + i * each;
        results[i] = (reference_result){at, at + count * width, at + count * (width + 1), at + count * (width + 2)};
    }
    double *got = memory + 2 * each, *got_lse = got + count * width;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = serving_index(s, &rows[i]);
        memcpy(got + i * width, (double *)o.data + at * width, (size_t)width * sizeof *got);
        got_lse[i] = ((double *)lse.data)[at];
    }
    reference_error error;
    GOOD(serving_compare(instance, s, rows, count, got, &results[0], &results[1], &error, &why));
    cr_assert(error.pass, "o: %g of %g", error.max, error.bound_max);
    for (int64_t i = 0; i < count; i++)
        cr_assert(got_lse[i] == results[0].lse[i] || fabs(got_lse[i] - results[0].lse[i]) < 1e-4,
                  "lse of row %lld of sequence %lld: %g, expected %g", (long long)rows[i].q, (long long)rows[i].b,
                  got_lse[i], results[0].lse[i]);
    free(memory);
    free(rows);
    array_free(&o);
    array_free(&lse);
}

static attune_device *open_device(attune_instance **instance)
{
    attune_device *device;
    OK(attune_instance_create(NULL, instance));
    OK(attune_device_open(*instance, "cpu", &device));
    return device;
}

/* More sequences than a grid or a block has threads, and more rows than 16 bits with a sign. */
Test(serving_limits, a_thousand_sequences)
{
    attune_instance *instance;
    attune_device *device = open_device(&instance);
    serving s;
    draw(instance, &(shape){1100, 2, 1, 8, 16, 62, 40, false}, 1, &s);
    cr_assert_gt(serving_tokens(&s), 32768);
    check(instance, device, &s);
    undraw(&s);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* The keys of a page that a table has twice are two keys each. */
Test(serving_limits, repeated_pages)
{
    attune_instance *instance;
    attune_device *device = open_device(&instance);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        serving s;
        draw(instance, &(shape){9, 4, 2, 24, seed % 2 ? 16 : 5, 20, 150, true}, seed, &s);
        check(instance, device, &s);
        undraw(&s);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

static void run(attune_device *device, const attune_plan *plan, const serving_call *call)
{
    attune_completion done;
    OK(attune_forward(plan, attune_device_queue(device), &call->args, &done));
    OK(attune_completion_wait(done, UINT64_MAX));
}

/* o, whose rows of no sequence are NaN as the upload left them. */
static void read_o(const serving *s, const serving_call *call, void *o)
{
    OK(attune_buffer_read(call->args.o.buffer, 0, o, (uint64_t)array_count(&s->a.q) * sizeof(float)));
}

/* A pool where a page begins more than 2^32 bytes after the one before it. */
Test(serving_limits, pages_far_apart)
{
    const int64_t stride = (INT64_C(1) << 30) + 16, element = sizeof(float);
    attune_instance *instance;
    attune_device *device = open_device(&instance);
    attune_plan *plan;
    attune_buffer *far;
    serving s;
    serving_call call;
    draw(instance, &(shape){3, 2, 2, 16, 32, 6, 60, false}, 7, &s);
    const int64_t pages = s.a.k.size[0], page = s.a.k.size[1] * s.a.k.size[2] * s.a.k.size[3];
    const size_t bytes = (size_t)(pages * stride * element);
    char *pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED)
        cr_skip_test("no %zu bytes of address space", bytes);
    for (int64_t i = 0; i < pages; i++) {
        memcpy(pool + i * stride * element, (float *)s.a.k.data + i * page, (size_t)(page * element));
        memcpy(pool + (i * stride + page) * element, (float *)s.a.v.data + i * page, (size_t)(page * element));
    }
    const attune_problem problem = serving_problem(&s, false, false);
    OK(attune_plan_create(device, &problem, NULL, &plan));
    OK(serving_upload(device, &s, plan, false, false, &call));
    const size_t o_bytes = (size_t)array_count(&s.a.q) * sizeof(float);
    void *near = malloc(o_bytes), *got = malloc(o_bytes);
    run(device, plan, &call);
    read_o(&s, &call, near);
    OK(attune_buffer_wrap(device, pool, bytes, &far));
    attune_tensor *const both[] = {&call.cache.k, &call.cache.v};
    for (int i = 0; i < 2; i++) {
        attune_tensor *t = both[i];
        t->buffer = far;
        t->offset = (uint64_t)(i * page * element);
        t->stride[3] = 1;
        for (int d = 2; d > 0; d--)
            t->stride[d] = t->stride[d + 1] * t->size[d + 1];
        t->stride[0] = stride;
    }
    OK(attune_buffer_write(call.args.o.buffer, 0, s.a.q.data, o_bytes)); /* other values than the results */
    run(device, plan, &call);
    read_o(&s, &call, got);
    const int64_t rows = ((int32_t *)s.q_start.data)[s.q_start.size[0] - 1];
    cr_assert_eq(memcmp(got, near, (size_t)(rows * s.a.q.size[1] * s.a.q.size[2] * element)), 0);
    free(near);
    free(got);
    serving_release(&call);
    attune_plan_destroy(plan);
    attune_buffer_destroy(far);
    munmap(pool, bytes);
    undraw(&s);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* A plan finds nothing of its own in the workspace: other plans' calls and other lengths leave the same bits. */
Test(serving_limits, plans_share_a_workspace)
{
    enum { PLANS = 3 };
    static const shape shapes[PLANS] = {
        {5, 4, 2, 64, 16, 3, 2500, false}, {40, 8, 1, 16, 7, 30, 300, false}, {2, 2, 2, 96, 64, 1, 9000, false}};
    attune_instance *instance;
    attune_device *device = open_device(&instance);
    serving s[PLANS];
    serving_call call[PLANS];
    attune_plan *plan[PLANS];
    attune_buffer *workspace;
    void *o[PLANS];
    uint64_t most = 1;
    for (int i = 0; i < PLANS; i++) {
        draw(instance, &shapes[i], 11 + (uint64_t)i, &s[i]);
        attune_expr_destroy(s[i].a.mask);
        s[i].a.mask = NULL;
        attune_problem problem = serving_problem(&s[i], false, false);
        problem.split_keys = 256; /* parts in the workspace */
        OK(attune_plan_create(device, &problem, NULL, &plan[i]));
        OK(serving_upload(device, &s[i], plan[i], false, false, &call[i]));
        o[i] = malloc((size_t)array_count(&s[i].a.q) * sizeof(float));
        run(device, plan[i], &call[i]);
        read_o(&s[i], &call[i], o[i]);
        const uint64_t size = attune_plan_workspace_size(plan[i]);
        most = size > most ? size : most;
    }
    OK(attune_buffer_create(device, most, &workspace));
    for (int i = 0; i < PLANS; i++)
        call[i].args.workspace = workspace;
    for (int round = 0; round < 12; round++) {
        const int i = round * 5 % 7 % PLANS;
        const int32_t zero = 0;
        /* A step with fewer keys, and then the step again. */
        OK(attune_buffer_write(call[i].batch.kv_len.buffer, 0, &zero, sizeof zero));
        run(device, plan[i], &call[i]);
        OK(attune_buffer_write(call[i].batch.kv_len.buffer, 0, s[i].kv_len.data, sizeof zero));
        run(device, plan[i], &call[i]);
        const size_t bytes = (size_t)array_count(&s[i].a.q) * sizeof(float);
        void *got = malloc(bytes);
        read_o(&s[i], &call[i], got);
        cr_assert_eq(memcmp(got, o[i], bytes), 0, "round %d, plan %d", round, i);
        free(got);
    }
    for (int i = 0; i < PLANS; i++) {
        free(o[i]);
        serving_release(&call[i]);
        attune_plan_destroy(plan[i]);
        undraw(&s[i]);
    }
    attune_buffer_destroy(workspace);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}
