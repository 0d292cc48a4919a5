/* SPDX-License-Identifier: MIT */
/* A step over a cache that is captured in a CUDA graph once and launched with 20 batches, or the share of them that
 * ATTUNE_TEST_SCALE asks for: the bits of calls of their own. Skipped where there is no GPU. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <attune/cuda.h>

#include "base/half.h"
#include "cuda/cuda.h"
#include "cuda/graphs.h"
#include "support/devices.h"
#include "support/random_expr.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

/* Each sequence has pages of its own, which new rows are written to. */
enum {
    HEADS = 8,
    KV_HEADS = 2,
    DIM = 64,
    SEQUENCES = 6,
    PAGE = 16,
    TABLE = 96,
    PAGES = SEQUENCES * TABLE,
    TOKENS = 48,
    MOST_ROWS = 20,
    LAYERS = 2,
    WIDTH = HEADS * DIM,
    POOL = PAGES * PAGE * KV_HEADS * DIM
};

typedef struct step {
    attune_instance *instance;
    attune_device *device;
    attune_expr *mask;
    attune_plan *plan;
    attune_cache cache;
    attune_batch batch;
    attune_tensor q, new_k, new_v, o[LAYERS];
    attune_buffer *workspace, *schedule; /* schedule NULL = calls have none */
    uint16_t *pool;                      /* k and v before the step, as halves */
    uint64_t state;
} step;

static attune_tensor make(const step *s, attune_dtype dtype, uint32_t rank, const int64_t *size)
{
    attune_tensor t = {.dtype = dtype, .rank = rank};
    uint64_t bytes = attune_dtype_size(dtype);
    for (uint32_t i = 0; i < rank; i++)
        bytes *= (uint64_t)(t.size[i] = size[i]);
    OK(attune_buffer_create(s->device, bytes, &t.buffer));
    return t;
}

static uint16_t draw_half(step *s)
{
    return attune__bf16_from_f32((float)random_expr_between(&s->state, -2000, 2000) / 1000.0f);
}

static void fill(step *s, const attune_tensor *t, int64_t count)
{
    uint16_t *data = malloc((size_t)count * sizeof *data);
    cr_assert(data);
    for (int64_t i = 0; i < count; i++)
        data[i] = draw_half(s);
    OK(attune_buffer_write(t->buffer, 0, data, (uint64_t)count * sizeof *data));
    free(data);
}

static void step_open(step *s, int64_t split_keys, bool scheduled)
{
    *s = (step){.state = test_seed() + (uint64_t)split_keys + scheduled};
    OK(attune_instance_create(NULL, &s->instance));
    s->device = device_or_skip(s->instance, "cuda");
    OK(attune_expr_create(s->instance, ATTUNE_EXPR_MASK, "q >= kv && q - kv < 900 && row != 3", NULL, 0, &s->mask));
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = ATTUNE_BF16,
                                    .head_dim = DIM,
                                    .batch = SEQUENCES,
                                    .heads = HEADS,
                                    .kv_heads = KV_HEADS,
                                    .q_len = MOST_ROWS,
                                    .kv_len = TABLE * PAGE,
                                    .tokens = TOKENS,
                                    .page = PAGE,
                                    .split_keys = (uint32_t)split_keys,
                                    .mask = s->mask};
    OK(attune_plan_create(s->device, &problem, NULL, &s->plan));
    s->q = make(s, ATTUNE_BF16, 3, (int64_t[]){TOKENS, HEADS, DIM});
    s->new_k = make(s, ATTUNE_BF16, 3, (int64_t[]){TOKENS, KV_HEADS, DIM});
    s->new_v = make(s, ATTUNE_BF16, 3, (int64_t[]){TOKENS, KV_HEADS, DIM});
    for (int i = 0; i < LAYERS; i++)
        s->o[i] = make(s, ATTUNE_BF16, 3, (int64_t[]){TOKENS, HEADS, DIM});
    s->cache = (attune_cache){.struct_size = sizeof s->cache,
                              .k = make(s, ATTUNE_BF16, 4, (int64_t[]){PAGES, KV_HEADS, PAGE, DIM}),
                              .v = make(s, ATTUNE_BF16, 4, (int64_t[]){PAGES, KV_HEADS, PAGE, DIM}),
                              .pages = make(s, ATTUNE_I32, 2, (int64_t[]){SEQUENCES, TABLE})};
    s->batch = (attune_batch){.struct_size = sizeof s->batch,
                              .q_start = make(s, ATTUNE_I32, 1, (int64_t[]){SEQUENCES + 1}),
                              .kv_len = make(s, ATTUNE_I32, 1, (int64_t[]){SEQUENCES}),
                              .count = make(s, ATTUNE_I32, 1, (int64_t[]){1})};
    OK(attune_buffer_create(s->device, attune_plan_workspace_size(s->plan) + 1, &s->workspace));
    cr_assert(attune_plan_schedule_size(s->plan), "a plan of %d keys has a schedule", TABLE * PAGE);
    if (scheduled)
        OK(attune_buffer_create(s->device, attune_plan_schedule_size(s->plan), &s->schedule));
    s->pool = malloc((size_t)2 * POOL * sizeof *s->pool);
    cr_assert(s->pool);
    for (int64_t i = 0; i < 2 * POOL; i++)
        s->pool[i] = draw_half(s);
    fill(s, &s->q, TOKENS * WIDTH);
}

static void step_close(step *s)
{
    attune_buffer *const buffers[] = {s->q.buffer,
                                      s->new_k.buffer,
                                      s->new_v.buffer,
                                      s->o[0].buffer,
                                      s->o[1].buffer,
                                      s->cache.k.buffer,
                                      s->cache.v.buffer,
                                      s->cache.pages.buffer,
                                      s->batch.q_start.buffer,
                                      s->batch.kv_len.buffer,
                                      s->batch.count.buffer,
                                      s->workspace,
                                      s->schedule};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        attune_buffer_destroy(buffers[i]);
    free(s->pool);
    attune_plan_destroy(s->plan);
    attune_expr_destroy(s->mask);
    attune_device_destroy(s->device);
    attune_instance_destroy(s->instance);
}

/* Another batch: rows, keys and pages of each sequence, how many sequences there are, and the new keys. */
static void put_batch(step *s)
{
    int32_t start[SEQUENCES + 1] = {0}, keys[SEQUENCES], table[PAGES];
    const int32_t count = (int32_t)random_expr_between(&s->state, 1, SEQUENCES);
    for (int b = 0; b < SEQUENCES; b++) {
        int64_t rows = random_expr_between(&s->state, 0, 2) ? 1 : random_expr_between(&s->state, 0, MOST_ROWS);
        rows = start[b] + rows > TOKENS ? TOKENS - start[b] : rows;
        start[b + 1] = start[b] + (int32_t)rows;
        keys[b] =
            (int32_t)random_expr_between(&s->state, rows, random_expr_between(&s->state, 0, 1) ? TABLE * PAGE : 200);
    }
    for (int32_t i = 0; i < PAGES; i++) {
        const int64_t j = random_expr_between(&s->state, 0, i);
        table[i] = table[j];
        table[j] = i;
    }
    OK(attune_buffer_write(s->batch.q_start.buffer, 0, start, sizeof start));
    OK(attune_buffer_write(s->batch.kv_len.buffer, 0, keys, sizeof keys));
    OK(attune_buffer_write(s->batch.count.buffer, 0, &count, sizeof count));
    OK(attune_buffer_write(s->cache.pages.buffer, 0, table, sizeof table));
    fill(s, &s->new_k, TOKENS * KV_HEADS * DIM);
    fill(s, &s->new_v, TOKENS * KV_HEADS * DIM);
}

/* The cache and the outputs as they are before a step; a schedule of another one. */
static void reset(const step *s)
{
    static uint16_t canary[TOKENS * WIDTH];
    memset(canary, 0xc2, sizeof canary);
    OK(attune_buffer_write(s->cache.k.buffer, 0, s->pool, POOL * sizeof *s->pool));
    OK(attune_buffer_write(s->cache.v.buffer, 0, s->pool + POOL, POOL * sizeof *s->pool));
    for (int i = 0; i < LAYERS; i++)
        OK(attune_buffer_write(s->o[i].buffer, 0, canary, sizeof canary));
}

/* New keys, the schedule, if there is one, and the layers, which have the same keys here. */
static void call(const step *s, attune_queue *queue, bool scheduled)
{
    const attune_append_args append = {
        .struct_size = sizeof append, .k = s->new_k, .v = s->new_v, .cache = &s->cache, .batch = &s->batch};
    attune_forward_args args = {.struct_size = sizeof args,
                                .q = s->q,
                                .workspace = s->workspace,
                                .cache = &s->cache,
                                .batch = &s->batch,
                                .schedule = scheduled ? s->schedule : NULL};
    OK(attune_append(s->plan, queue, &append, NULL));
    for (int i = 0; i < LAYERS; i++) {
        args.o = s->o[i];
        if (scheduled && !i)
            OK(attune_schedule(s->plan, queue, &args, NULL));
        OK(attune_forward(s->plan, queue, &args, NULL));
    }
}

/* o of the layers, then k and v. */
#define RESULT (LAYERS * TOKENS * WIDTH + 2 * POOL)
static void read_result(const step *s, uint16_t *to)
{
    const uint64_t o = TOKENS * WIDTH * sizeof *to, pool = POOL * sizeof *to;
    for (int i = 0; i < LAYERS; i++)
        OK(attune_buffer_read(s->o[i].buffer, 0, to + i * TOKENS * WIDTH, o));
    OK(attune_buffer_read(s->cache.k.buffer, 0, to + LAYERS * TOKENS * WIDTH, pool));
    OK(attune_buffer_read(s->cache.v.buffer, 0, to + LAYERS * TOKENS * WIDTH + POOL, pool));
}

static void replay(int64_t split_keys, bool scheduled)
{
    step s;
    step_open(&s, split_keys, scheduled);
    const graphs g = graphs_find();
    attune__cuda_device *device = attune__cuda_of(s.device);
    attune__cu_stream stream;
    attune_queue *queue;
    void *graph, *made;
    uint16_t *found = malloc(2 * RESULT * sizeof *found), *expected = found + RESULT;
    cr_assert(found);
    int others = 0;
    put_batch(&s);
    reset(&s);
    cr_assert_eq(attune__cuda_enter(device), ATTUNE_OK);
    cr_assert_eq(device->driver.stream_create(&stream, CU_STREAM_NON_BLOCKING), 0);
    OK(attune_cuda_queue_wrap(s.device, stream, &queue));
    cr_assert_eq(g.begin(stream, 0), 0);
    call(&s, queue, scheduled);
    cr_assert_eq(g.end(stream, &graph), 0);
    cr_assert_eq(g.instantiate(&made, graph, 0), 0);
    const int batches = 1 + (int)scaled(19);
    for (int i = 0; i < batches; i++) {
        put_batch(&s);
        reset(&s);
        call(&s, attune_device_queue(s.device), false);
        read_result(&s, expected);
        reset(&s);
        cr_assert_eq(g.launch(made, stream), 0);
        cr_assert_eq(device->driver.stream_synchronize(stream), 0);
        others += i && memcmp(found, expected, TOKENS * WIDTH * sizeof *found) != 0;
        read_result(&s, found);
        cr_assert(!memcmp(found, expected, LAYERS * TOKENS * WIDTH * sizeof *found), "batch %d: o", i);
        cr_assert(!memcmp(found, expected, RESULT * sizeof *found), "batch %d: the cache", i);
        cr_assert(!memcmp(found, found + TOKENS * WIDTH, TOKENS * WIDTH * sizeof *found), "batch %d: layers", i);
        cr_assert(memcmp(found + LAYERS * TOKENS * WIDTH, s.pool, POOL * sizeof *found), "batch %d: no new keys", i);
    }
    cr_expect_eq(others, batches - 1, "%d batches differ from the one before", others);
    free(found);
    g.destroy_made(made);
    g.destroy(graph);
    attune_cuda_queue_destroy(queue);
    device->driver.stream_destroy(stream);
    attune__cuda_leave(device);
    step_close(&s);
}

Test(cuda_replays, a_step)
{
    replay(0, false);
}

Test(cuda_replays, a_step_with_a_schedule)
{
    replay(0, true);
}

Test(cuda_replays, a_step_in_fixed_parts)
{
    replay(256, false);
}

Test(cuda_replays, a_step_in_fixed_parts_with_a_schedule)
{
    replay(256, true);
}
