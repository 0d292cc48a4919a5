/* SPDX-License-Identifier: MIT */
/* Calls over a cache at their limits: a thousand sequences, tables that repeat pages, pages gigabytes apart, a
 * workspace that several plans share, and integers that are wrong. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/devices.h"
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

static void check(attune_instance *instance, attune_device *device, const serving *s,
                  const attune_kernel_options *options)
{
    failure why;
    array o, lse;
    int64_t count;
    OK(serving_forward(device, s, options, &o, &lse, NULL));
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
    check(instance, device, &s, NULL);
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
        check(instance, device, &s, NULL);
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

/* ----------------------------------------------------------------------------------------------------- wrong integers
 */

#define GUARD 4096 /* bytes before and after a tensor */

/* The same call on a device, with memory around what it writes. */
typedef struct guarded {
    attune_device *device;
    attune_plan *plan;
    serving_call call;
    attune_tensor slots;
    struct {
        attune_tensor *tensor;
        attune_buffer *buffer;
        size_t bytes;
        unsigned char *contents; /* as read */
    } tensors[3];
} guarded;

static void guard(guarded *g, int index, attune_tensor *tensor, const array *values)
{
    const size_t bytes = (size_t)array_count(values) * sizeof(float), all = bytes + 2 * GUARD;
    unsigned char *contents = malloc(all);
    cr_assert(contents);
    memset(contents, 0xff, all);
    memcpy(contents + GUARD, values->data, bytes);
    g->tensors[index].tensor = tensor;
    g->tensors[index].bytes = all;
    g->tensors[index].contents = contents;
    OK(attune_buffer_create(g->device, all, &g->tensors[index].buffer));
    OK(attune_buffer_write(g->tensors[index].buffer, 0, contents, all));
    tensor->buffer = g->tensors[index].buffer;
    tensor->offset = GUARD;
}

static const void *read_guarded(guarded *g, int index)
{
    OK(attune_buffer_read(g->tensors[index].buffer, 0, g->tensors[index].contents, g->tensors[index].bytes));
    return g->tensors[index].contents;
}

static void guarded_create(guarded *g, attune_device *device, const serving *s)
{
    const attune_problem problem = serving_problem(s, false, false);
    *g = (guarded){.device = device};
    OK(attune_plan_create(device, &problem, NULL, &g->plan));
    OK(serving_upload(device, s, g->plan, false, false, &g->call));
    guard(g, 0, &g->call.args.o, &s->a.q);
    guard(g, 1, &g->call.cache.k, &s->a.k);
    guard(g, 2, &g->call.cache.v, &s->a.v);
    g->slots = (attune_tensor){.dtype = ATTUNE_I64, .rank = 1, .size = {serving_tokens(s)}};
    OK(attune_buffer_create(device, (uint64_t)serving_tokens(s) * sizeof(int64_t), &g->slots.buffer));
}

static void guarded_destroy(guarded *g)
{
    for (int i = 0; i < 3; i++) {
        attune_buffer_destroy(g->tensors[i].buffer);
        free(g->tensors[i].contents);
    }
    attune_buffer_destroy(g->slots.buffer);
    serving_release(&g->call);
    attune_plan_destroy(g->plan);
    attune_device_destroy(g->device);
}

/* One in four is wrong. */
static int32_t draw_integer(random_state *r, int32_t right, int32_t limit)
{
    const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, limit, limit + 1, -limit, 2147480000};
    return random_u64(r) % 4 ? right : wrong[random_u64(r) % (sizeof wrong / sizeof wrong[0])];
}

/* The integers of a step, as the devices have them. */
typedef struct step {
    int32_t q_start[16], kv_len[15], kv_first[15], count, pages[256], pages_start[16];
    int64_t slots[256];
} step;

static void draw_step(random_state *r, const serving *s, step *t)
{
    const int64_t sequences = s->kv_len.size[0], tokens = serving_tokens(s), pool = s->a.k.size[0];
    const int64_t entries = array_count(&s->pages);
    const int32_t *start = s->q_start.data, *keys = s->kv_len.data, *pages = s->pages.data, *list = s->pages_start.data;
    for (int64_t b = 0; list && b <= sequences; b++) {
        t->pages_start[b] = draw_integer(r, list[b], (int32_t)entries);
        if (random_u64(r) % 8 == 0)
            t->pages_start[b] = (int32_t)between(r, 0, entries);
    }
    for (int64_t b = 0; b <= sequences; b++) {
        t->q_start[b] = draw_integer(r, start[b], (int32_t)tokens);
        if (random_u64(r) % 8 == 0)
            t->q_start[b] = (int32_t)between(r, 0, tokens);
    }
    for (int64_t b = 0; b < sequences; b++) {
        t->kv_len[b] = draw_integer(r, keys[b], (int32_t)(entries / sequences * s->a.k.size[2]));
        t->kv_first[b] = draw_integer(r, (int32_t)between(r, 0, keys[b]), keys[b]);
    }
    t->count = random_u64(r) % 4 ? (int32_t)sequences : draw_integer(r, 3, (int32_t)sequences);
    for (int64_t i = 0; i < entries; i++) {
        const int32_t entry = draw_integer(r, pages[i], (int32_t)pool);
        t->pages[i] = entry >= 0 && entry < pool ? pages[i] : entry; /* no page twice: rows are appended */
    }
    for (int64_t i = 0; i < tokens; i++) {
        const int64_t keys_of_pool = pool * s->a.k.size[2],
                      wrong[] = {-1, INT64_MIN, INT64_MAX, keys_of_pool, keys_of_pool + (INT64_C(1) << 32), INT32_MIN};
        t->slots[i] = random_u64(r) % 4 ? i * (keys_of_pool / tokens) : wrong[random_u64(r) % 6];
    }
}

static void write_step(guarded *g, const serving *s, const step *t)
{
    const size_t sequences = (size_t)s->kv_len.size[0], entries = (size_t)array_count(&s->pages);
    unsigned char *o = g->tensors[0].contents;
    memset(o, 0xff, g->tensors[0].bytes);
    OK(attune_buffer_write(g->tensors[0].buffer, 0, o, g->tensors[0].bytes));
    OK(attune_buffer_write(g->call.batch.q_start.buffer, 0, t->q_start, (sequences + 1) * 4));
    OK(attune_buffer_write(g->call.batch.kv_len.buffer, 0, t->kv_len, sequences * 4));
    OK(attune_buffer_write(g->call.batch.kv_first.buffer, 0, t->kv_first, sequences * 4));
    OK(attune_buffer_write(g->call.batch.count.buffer, 0, &t->count, 4));
    OK(attune_buffer_write(g->call.cache.pages.buffer, 0, t->pages, entries * 4));
    if (s->pages_start.data)
        OK(attune_buffer_write(g->call.cache.pages_start.buffer, 0, t->pages_start, (sequences + 1) * 4));
    OK(attune_buffer_write(g->slots.buffer, 0, t->slots, (uint64_t)g->slots.size[0] * 8));
}

/* How many sequences have each row, and whether one row has two. */
static bool find_claims(const serving *s, const step *t, int64_t q_len, int *claims)
{
    const int64_t tokens = serving_tokens(s);
    bool twice = false;
    memset(claims, 0, (size_t)tokens * sizeof *claims);
    for (int64_t b = 0; b < s->kv_len.size[0] && b < t->count; b++) {
        const int64_t first = t->q_start[b], end = t->q_start[b + 1];
        for (int64_t i = first; first >= 0 && end <= tokens && end - first <= q_len && i < end; i++)
            twice |= ++claims[i] > 1;
    }
    return twice;
}

/* Whether two sequences have an entry of the list. */
static bool share_pages(const serving *s, const step *t)
{
    const int64_t entries = array_count(&s->pages);
    bool taken[256] = {false}, shared = false;
    for (int64_t b = 0; s->pages_start.data && b < s->kv_len.size[0]; b++) {
        const int64_t first = t->pages_start[b], end = t->pages_start[b + 1];
        for (int64_t i = first; first >= 0 && end <= entries && i < end; i++) {
            shared |= taken[i];
            taken[i] = true;
        }
    }
    return shared;
}

/* The block table of a serving becomes a list. */
static void make_list(serving *s)
{
    failure why;
    const int64_t sequences = s->kv_len.size[0], entries = s->pages.size[1];
    GOOD(array_create(&s->pages_start, ATTUNE_I32, 1, (int64_t[]){sequences + 1}, &why));
    for (int64_t b = 0; b <= sequences; b++)
        ((int32_t *)s->pages_start.data)[b] = (int32_t)(b * entries);
    s->pages.rank = 1;
    s->pages.size[0] = sequences * entries;
    GOOD(serving_check(s, &why));
}

static void compare_rows(const serving *s, const int *claims, const guarded *g, const guarded *cpu)
{
    const int64_t width = s->a.q.size[1] * s->a.q.size[2], tokens = serving_tokens(s);
    const unsigned char *got = g->tensors[0].contents, *expected = cpu->tensors[0].contents;
    for (size_t i = 0; i < g->tensors[0].bytes; i++) {
        const bool inside = i >= GUARD && i < g->tensors[0].bytes - GUARD;
        const size_t row = inside ? (i - GUARD) / ((size_t)width * sizeof(float)) : 0;
        if (!inside || !claims[row])
            cr_assert_eq(got[i], 0xff, "byte %zu of o, of no row of a sequence, was written", i);
    }
    for (int64_t i = 0; i < tokens * width; i++) {
        float x, y;
        memcpy(&x, got + GUARD + i * 4, sizeof x);
        memcpy(&y, expected + GUARD + i * 4, sizeof y);
        if (claims[i / width] == 1)
            cr_assert(fabsf(x - y) < 1e-5f * (1 + fabsf(y)), "row %lld: %g, on the CPU %g", (long long)(i / width),
                      (double)x, (double)y);
    }
}

/* Every other sequence claims half of the rows of the one before the last, and those between have none. */
static void overlap(const serving *s, int64_t q_len, step *t)
{
    const int64_t sequences = s->kv_len.size[0], tokens = serving_tokens(s);
    for (int64_t b = 0; b <= sequences; b++) {
        const int64_t start = b / 2 * (q_len / 2) + b % 2 * q_len;
        t->q_start[b] = (int32_t)(start < tokens ? start : tokens);
    }
    t->count = (int32_t)sequences;
}

/* Each element of a row that several sequences claim is that of one of them, as the CPU computes it alone. */
static int64_t compare_claims(const serving *s, const step *t, int64_t q_len, const int *claims, const guarded *g,
                              guarded *cpu)
{
    const int64_t width = s->a.q.size[1] * s->a.q.size[2], tokens = serving_tokens(s), sequences = s->kv_len.size[0];
    const float *got = (const float *)(const void *)(g->tensors[0].contents + GUARD);
    bool *found = calloc((size_t)(tokens * width), sizeof *found);
    int64_t rows = 0;
    cr_assert(found);
    for (int64_t b = 0; b < sequences && b < t->count; b++) {
        step alone = *t;
        for (int64_t i = 0; i <= sequences; i++)
            if (i != b && i != b + 1)
                alone.q_start[i] = -1; /* of no sequence */
        int own[256];
        find_claims(s, &alone, q_len, own);
        write_step(cpu, s, &alone);
        run(cpu->device, cpu->plan, &cpu->call);
        const float *o = (const float *)(const void *)((const unsigned char *)read_guarded(cpu, 0) + GUARD);
        for (int64_t i = 0; i < tokens * width; i++)
            found[i] |= own[i / width] && fabsf(got[i] - o[i]) < 1e-5f * (1 + fabsf(o[i]));
    }
    for (int64_t i = 0; i < tokens * width; i++) {
        cr_assert(claims[i / width] < 2 || found[i], "row %lld: %g is of no sequence that claims it",
                  (long long)(i / width), (double)got[i]);
        rows += i % width == 0 && claims[i / width] > 1;
    }
    free(found);
    return rows;
}

/* Lengths, tables and slots that are wrong: the CPU's results, which tests/api/serving.c states, and nothing written
 * around them. */
static void run_wrong(const char *backend, bool list)
{
    attune_instance *instance;
    attune_device *device;
    OK(attune_instance_create(&(attune_instance_desc){.struct_size = sizeof(attune_instance_desc), .cache_folder = ""},
                              &instance));
    device = device_or_skip(instance, backend);
    random_state r = {test_seed() * 77 + 5};
    serving s;
    guarded g[2]; /* the device's and the CPU's */
    failure why;
    draw(instance, &(shape){7, 2, 2, 16, 8, 12, 40, false}, 5, &s);
    GOOD(array_create(&s.kv_first, ATTUNE_I32, 1, s.kv_len.size, &why));
    GOOD(array_create(&s.count, ATTUNE_I32, 1, (int64_t[]){1}, &why));
    ((int32_t *)s.count.data)[0] = 7;
    if (list)
        make_list(&s);
    cr_assert(serving_tokens(&s) <= 256 && array_count(&s.pages) <= 256);
    guarded_create(&g[0], device, &s);
    OK(attune_device_open(instance, "cpu", &device));
    guarded_create(&g[1], device, &s);
    const int64_t q_len = serving_problem(&s, false, false).q_len;
    int64_t claimed = 0;
    int claims[256], rounds = 0;
    for (int round = 0; round < 24; round++) {
        step t;
        draw_step(&r, &s, &t);
        if (round % 4 == 1)
            overlap(&s, q_len, &t);
        const bool of_two = find_claims(&s, &t, q_len, claims), twice = of_two || share_pages(&s, &t);
        for (int i = 0; i < 2; i++) {
            attune_completion done;
            const attune_append_args append = {.struct_size = sizeof append,
                                               .k = g[i].call.args.q,
                                               .v = g[i].call.args.q,
                                               .cache = &g[i].call.cache,
                                               .batch = &g[i].call.batch,
                                               .slots = round % 3 ? g[i].slots : (attune_tensor){.buffer = NULL}};
            write_step(&g[i], &s, &t);
            run(g[i].device, g[i].plan, &g[i].call);
            read_guarded(&g[i], 0);
            /* Two rows of one key leave it undefined. */
            if (twice)
                continue;
            OK(attune_append(g[i].plan, attune_device_queue(g[i].device), &append, &done));
            OK(attune_completion_wait(done, UINT64_MAX));
        }
        compare_rows(&s, claims, &g[0], &g[1]);
        claimed += of_two ? compare_claims(&s, &t, q_len, claims, &g[0], &g[1]) : 0;
        rounds += !twice;
        for (int i = 1; i < 3; i++)
            cr_assert_eq(memcmp(read_guarded(&g[0], i), read_guarded(&g[1], i), g[0].tensors[i].bytes), 0,
                         "round %d: %s of the cache differs from the CPU's", round, i == 1 ? "k" : "v");
    }
    cr_assert_gt(rounds, 2);
    cr_assert_gt(claimed, 5);
    guarded_destroy(&g[0]);
    guarded_destroy(&g[1]);
    undraw(&s);
    attune_instance_destroy(instance);
}

Test(serving_limits, cpu)
{
    run_wrong("cpu", false);
}

Test(serving_limits, vulkan)
{
    run_wrong("vulkan", false);
}

Test(serving_limits, vulkan_of_lists)
{
    run_wrong("vulkan", true);
}

Test(serving_limits, cuda)
{
    run_wrong("cuda", false);
}

Test(serving_limits, cuda_of_lists)
{
    run_wrong("cuda", true);
}

Test(serving_limits, model)
{
    model_or_skip();
    run_wrong("cuda", false);
}

Test(serving_limits, model_of_lists)
{
    model_or_skip();
    run_wrong("cuda", true);
}

Test(serving_limits, opencl)
{
    run_wrong("opencl", false);
}

Test(serving_limits, opencl_of_lists)
{
    run_wrong("opencl", true);
}

/* A plan for more tiles than 32 bits count, which a call of few rows does not have, and a table of more entries than
 * that, which are one number: the bits of a plan and a table that are as large as the call. */
static void run_large(const char *backend)
{
    attune_instance *instance;
    attune_plan *plan, *large;
    serving s;
    serving_call call;
    OK(attune_instance_create(NULL, &instance));
    attune_device *device = device_or_skip(instance, backend);
    draw(instance, &(shape){130, 2, 2, 16, 8, 3, 40, false}, 13, &s);
    const int64_t entries = s.pages.size[1];
    int32_t *table = s.pages.data;
    for (int64_t i = 0; i < array_count(&s.pages); i++)
        table[i] = table[i / entries * entries];
    attune_problem problem = serving_problem(&s, false, false);
    problem.q_len = 64; /* the tile of any more rows */
    OK(attune_plan_create(device, &problem, NULL, &plan));
    problem.q_len = INT32_MAX;
    OK(attune_plan_create(device, &problem, NULL, &large));
    OK(serving_upload(device, &s, large, false, false, &call));
    const size_t bytes = (size_t)array_count(&s.a.q) * sizeof(float);
    void *o[2] = {malloc(bytes), malloc(bytes)};
    run(device, plan, &call);
    read_o(&s, &call, o[0]);
    call.cache.pages.stride[0] = entries;
    call.cache.pages.stride[1] = 0;
    call.cache.pages.size[1] = INT64_C(1) << 32;
    OK(attune_buffer_write(call.args.o.buffer, 0, s.a.q.data, bytes)); /* other values than the results */
    run(device, large, &call);
    read_o(&s, &call, o[1]);
    const size_t rows = (size_t)((int32_t *)s.q_start.data)[s.q_start.size[0] - 1];
    cr_expect_eq(memcmp(o[0], o[1], rows * (size_t)(s.a.q.size[1] * s.a.q.size[2]) * sizeof(float)), 0);
    free(o[0]);
    free(o[1]);
    serving_release(&call);
    attune_plan_destroy(plan);
    attune_plan_destroy(large);
    undraw(&s);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(serving_limits, vulkan_of_large_plans)
{
    run_large("vulkan");
}

Test(serving_limits, opencl_of_large_plans)
{
    run_large("opencl");
}

/* As the widest heads have it where local memory is small. */
Test(serving_limits, opencl_of_four_keys)
{
    attune_instance *instance;
    serving s;
    OK(attune_instance_create(NULL, &instance));
    attune_device *device = device_or_skip(instance, "opencl");
    const attune_kernel_options options = {.struct_size = sizeof options, .any = {.block_m = 1, .block_n = 4}};
    draw(instance, &(shape){3, 2, 2, 24, 16, 6, 50, false}, 17, &s);
    check(instance, device, &s, &options);
    undraw(&s);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}
