/* SPDX-License-Identifier: MIT */
/* Calls over a cache whose bits do not follow from the batch, the schedule or the number of threads. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/layout_sm80.h"
#include "support/devices.h"
#include "tests/oracle/reference.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

enum { MANY = 20, MANY_ROWS = 40, MANY_KEYS = 2000, MANY_PAGES = 900, MANY_TOKENS = 400 };

/* Twenty sequences of all kinds, with prefixes in two levels: the keys that each has in common with the one before. */
typedef struct many {
    attune_instance *instance;
    attune_device *device;
    attune_plan *plan;
    int32_t q_start[MANY + 1], kv_len[MANY], shared[MANY], table[MANY][MANY_KEYS / 16];
    float q[MANY_TOKENS * 4 * 32], pool[2 * MANY_PAGES * 2 * 16 * 32], o[MANY_TOKENS * 4 * 32];
    attune_buffer *buffers[8], *workspace, *schedule;
    uint32_t buffer_count;
    uint32_t together;    /* the plan's shared_sequences */
    bool is_cuda, copies; /* copies: the device does not read the host's memory */
    attune_cache cache;
    attune_batch batch;
    attune_forward_args args;
} many;

static attune_tensor wrapped(many *m, void *data, attune_dtype dtype, uint32_t rank, int64_t a, int64_t b, int64_t c,
                             int64_t d)
{
    attune_tensor t = {.dtype = dtype, .rank = rank, .size = {a, b, c, d}};
    uint64_t bytes = attune_dtype_size(dtype);
    for (uint32_t i = 0; i < rank; i++)
        bytes *= (uint64_t)t.size[i];
    if (m->copies) {
        OK(attune_buffer_create(m->device, bytes, &m->buffers[m->buffer_count]));
        OK(attune_buffer_write(m->buffers[m->buffer_count], 0, data, bytes));
    } else
        OK(attune_buffer_wrap(m->device, data, bytes, &m->buffers[m->buffer_count]));
    t.buffer = m->buffers[m->buffer_count++];
    return t;
}

static void many_lengths(many *m, random_state *r)
{
    int32_t page = 0;
    for (int b = 0; b < MANY; b++) {
        const bool prompt = b % 7 == 3;
        m->q_start[b + 1] = m->q_start[b] + (prompt ? 5 + (int32_t)(random_u64(r) % 35) : b % 5 ? 1 : 3);
        m->shared[b] = b < 2 || b == 14 ? 0 : b > 5 && b < 10 ? 1040 : 640;
        m->kv_len[b] = 1041 + (int32_t)(random_u64(r) % (MANY_KEYS - 1041));
        if (b % 6 == 1) /* the next shares no more than these */
            m->kv_len[b] = 640 + b;
        if (m->shared[b] > m->kv_len[b] || (b && m->shared[b] > m->kv_len[b - 1]))
            m->shared[b] = 640;
        for (int i = 0; i < MANY_KEYS / 16; i++)
            m->table[b][i] = i < m->shared[b] / 16 ? m->table[b - 1][i] : -1;
        for (int i = m->shared[b] / 16; i < (m->kv_len[b] + 15) / 16; i++)
            m->table[b][i] = page++ % MANY_PAGES;
    }
    cr_assert(m->q_start[MANY] <= MANY_TOKENS);
}

/* `kernel`: NULL = the planner's. `shared`: the sequences whose rows may be in one tile. */
static void many_create(many *m, const char *backend, const char *kernel, uint32_t threads, int sequences,
                        uint32_t shared)
{
    memset(m, 0, sizeof *m);
    random_state r = {test_seed()};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = threads, .cache_folder = ""};
    OK(attune_instance_create(&desc, &m->instance));
    m->device = device_or_skip(m->instance, backend);
    m->copies = strcmp(backend, "cpu") != 0;
    m->is_cuda = !strcmp(backend, "cuda");
    m->together = shared;
    for (size_t i = 0; i < sizeof m->q / sizeof m->q[0]; i++)
        m->q[i] = (float)random_normal(&r);
    for (size_t i = 0; i < sizeof m->pool / sizeof m->pool[0]; i++)
        m->pool[i] = (float)random_uniform(&r) - 0.5f;
    many_lengths(m, &r);
    attune_expr *mask;
    OK(attune_expr_create(m->instance, ATTUNE_EXPR_MASK, "q >= kv && (q - kv < 900 || kv < 7)", NULL, 0, &mask));
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .head_dim = 32,
                                    .batch = sequences,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .q_len = MANY_ROWS,
                                    .kv_len = MANY_KEYS,
                                    .mask = mask,
                                    .tokens = MANY_TOKENS,
                                    .page = 16,
                                    .split_keys = 256,
                                    .shared_sequences = shared};
    attune_kernel_options options = {.struct_size = sizeof options};
    if (kernel)
        (void)snprintf(options.fwd.kernel, sizeof options.fwd.kernel, "%s", kernel);
    OK(attune_plan_create(m->device, &problem, &options, &m->plan));
    attune_expr_destroy(mask);
    const size_t half = sizeof m->pool / sizeof m->pool[0] / 2;
    m->cache = (attune_cache){.struct_size = sizeof m->cache,
                              .k = wrapped(m, m->pool, ATTUNE_F32, 4, MANY_PAGES, 2, 16, 32),
                              .v = wrapped(m, m->pool + half, ATTUNE_F32, 4, MANY_PAGES, 2, 16, 32),
                              .pages = wrapped(m, m->table, ATTUNE_I32, 2, sequences, MANY_KEYS / 16, 0, 0)};
    m->batch = (attune_batch){.struct_size = sizeof m->batch,
                              .q_start = wrapped(m, m->q_start, ATTUNE_I32, 1, sequences + 1, 0, 0, 0),
                              .kv_len = wrapped(m, m->kv_len, ATTUNE_I32, 1, sequences, 0, 0, 0)};
    m->args = (attune_forward_args){.struct_size = sizeof m->args,
                                    .q = wrapped(m, m->q, ATTUNE_F32, 3, MANY_TOKENS, 4, 32, 0),
                                    .o = wrapped(m, m->o, ATTUNE_F32, 3, MANY_TOKENS, 4, 32, 0),
                                    .cache = &m->cache,
                                    .batch = &m->batch};
    OK(attune_buffer_create(m->device, attune_plan_workspace_size(m->plan), &m->workspace));
    OK(attune_buffer_create(m->device, attune_plan_schedule_size(m->plan), &m->schedule));
    m->args.workspace = m->workspace;
}

static void many_destroy(many *m)
{
    for (uint32_t i = 0; i < m->buffer_count; i++)
        attune_buffer_destroy(m->buffers[i]);
    attune_buffer_destroy(m->workspace);
    attune_buffer_destroy(m->schedule);
    attune_plan_destroy(m->plan);
    attune_device_destroy(m->device);
    attune_instance_destroy(m->instance);
}

static void many_write(const many *m, const attune_tensor *tensor, const void *data, uint64_t bytes)
{
    if (m->copies)
        OK(attune_buffer_write(tensor->buffer, 0, data, bytes));
}

static void many_run(many *m)
{
    attune_completion done;
    memset(m->o, 0xff, sizeof m->o);
    many_write(m, &m->args.o, m->o, sizeof m->o);
    OK(attune_forward(m->plan, attune_device_queue(m->device), &m->args, &done));
    OK(attune_completion_wait(done, UINT64_MAX));
    if (m->copies)
        OK(attune_buffer_read(m->args.o.buffer, 0, m->o, sizeof m->o));
}

/* Has the fixed parts of every second sequence computed by one CTA for each tile, as where there is no memory for
 * theirs. */
static void join_parts(many *m)
{
    const uint64_t bytes = attune_plan_schedule_size(m->plan);
    int *words = malloc(bytes), item = 0, several = 0;
    cr_assert(words);
    OK(attune_buffer_read(m->schedule, 0, words, bytes));
    attune_cuda_schedule *schedule = (attune_cuda_schedule *)words;
    attune_cuda_shared_scheduled *shared = (attune_cuda_shared_scheduled *)(schedule + 1);
    const int sequences = (int)m->batch.kv_len.size[0];
    /* Of those that no other sequence shares keys with. */
    for (int b = 0; b < sequences && m->together > 1; b++) {
        const int tiles = (shared[b + 1].item - shared[b].item) / (shared[b].items ? shared[b].items : 1);
        bool alone = shared[b].others == 0;
        for (int i = b + 1; i < sequences; i++)
            alone = alone && (shared[i].others == 0 || shared[i].leader != b);
        several += alone && shared[b].parts > 1;
        if (alone)
            shared[b].parts = shared[b].items = 1;
        shared[b].item = item;
        item += tiles * shared[b].items;
    }
    attune_cuda_scheduled *of = (attune_cuda_scheduled *)(schedule + 1);
    for (int b = 0; b < sequences && m->together < 2; b++) {
        const int tiles = (of[b + 1].item - of[b].item) / of[b].parts;
        several += of[b].parts > 1;
        of[b].parts = b % 2 ? 1 : of[b].parts;
        of[b].item = item;
        item += tiles * of[b].parts;
    }
    *(m->together > 1 ? &shared[sequences].item : &of[sequences].item) = schedule->items = item;
    OK(attune_buffer_write(m->schedule, 0, words, bytes));
    free(words);
    cr_expect_gt(several, m->together > 1 ? 0 : 1, "sequences in parts");
}

/* The items of the schedule with the rows of several sequences; on CUDA the sequences of which others have parts. */
static int gathered(const many *m)
{
    const uint64_t bytes = attune_plan_schedule_size(m->plan);
    uint32_t *words = malloc(bytes), count = 0;
    cr_assert(words);
    OK(attune_buffer_read(m->schedule, 0, words, bytes));
    const attune_cuda_shared_scheduled *of =
        (attune_cuda_shared_scheduled *)((attune_cuda_schedule *)(void *)words + 1);
    for (int b = 0; m->is_cuda && b < (int)m->batch.kv_len.size[0]; b++)
        count += of[b].others > 0;
    for (uint32_t i = 0; !m->is_cuda && i < words[0]; i++)
        count += words[4 * (1 + i) + 3] > 1;
    free(words);
    return (int)count;
}

/* A sequence has the same bits alone and in a batch, with a schedule of the step or the call's own, and whether shared
 * keys are named; those of the first run. */
static void run_bits(const char *backend, const char *kernel, uint32_t threads, bool first_run, int sequences,
                     uint32_t together)
{
    static many m;
    static float expected[sizeof m.o / sizeof m.o[0]];
    many_create(&m, backend, kernel, threads, sequences, together);
    many_run(&m);
    if (first_run)
        memcpy(expected, m.o, sizeof expected);
    cr_expect_eq(memcmp(m.o, expected, sizeof expected), 0, "%u threads", threads);
    const attune_tensor shared = wrapped(&m, m.shared, ATTUNE_I32, 1, sequences, 0, 0, 0);
    m.batch.shared = shared;
    many_run(&m);
    cr_expect_eq(memcmp(m.o, expected, sizeof expected), 0, "%u threads, shared keys", threads);
    /* The schedule of other lengths first, in the same memory. */
    m.args.schedule = m.schedule;
    int32_t kept[MANY + 1];
    memcpy(kept, m.q_start, sizeof kept);
    for (int b = 0; b <= MANY; b++)
        m.q_start[b] = b * 20;
    many_write(&m, &m.batch.q_start, m.q_start, (uint64_t)(sequences + 1) * 4);
    attune_completion done;
    OK(attune_schedule(m.plan, attune_device_queue(m.device), &m.args, &done));
    OK(attune_completion_wait(done, UINT64_MAX));
    memcpy(m.q_start, kept, sizeof kept);
    many_write(&m, &m.batch.q_start, m.q_start, (uint64_t)(sequences + 1) * 4);
    many_run(&m); /* stale: anything, within bounds */
    OK(attune_schedule(m.plan, attune_device_queue(m.device), &m.args, NULL));
    for (int layer = 0; layer < 2; layer++) {
        many_run(&m);
        cr_expect_eq(memcmp(m.o, expected, sizeof expected), 0, "%u threads, a schedule", threads);
    }
    if (together > 1 && strcmp(backend, "cpu") != 0)
        cr_expect_gt(gathered(&m), sequences > 5 ? 3 : 0, "%d with the rows of several sequences", gathered(&m));
    if (m.is_cuda) {
        join_parts(&m);
        many_run(&m);
        cr_expect_eq(memcmp(m.o, expected, sizeof expected), 0, "parts one after another");
    }
    m.args.schedule = NULL;
    m.batch.shared.buffer = NULL;
    /* One at a time: few items, whose keys are split. */
    m.batch.kv_len.size[0] = 1;
    m.batch.q_start.size[0] = 2;
    for (int b = 0; b < sequences; b++) {
        m.batch.kv_len.offset = m.batch.q_start.offset = (uint64_t)b * 4;
        m.cache.pages.size[0] = 1;
        m.cache.pages.offset = (uint64_t)b * sizeof m.table[0];
        many_run(&m);
        const size_t first = (size_t)m.q_start[b] * 128, count = (size_t)(m.q_start[b + 1] - m.q_start[b]) * 128;
        cr_expect_eq(memcmp(m.o + first, expected + first, count * sizeof *expected), 0, "sequence %d alone", b);
    }
    many_destroy(&m);
}

/* On any number of threads, too. */
Test(serving_bits, batch_threads_schedule_and_prefix)
{
    for (uint32_t threads = 1; threads < 6; threads += 2)
        run_bits("cpu", NULL, threads, threads == 1, MANY, 0);
}

Test(serving_bits, opencl)
{
    run_bits("opencl", NULL, 1, true, MANY, 0);
    run_bits("opencl", NULL, 1, false, MANY, 8);
}

Test(serving_bits, opencl_decode)
{
    run_bits("opencl", "opencl_decode", 1, true, 10, 0);
}

Test(serving_bits, vulkan)
{
    run_bits("vulkan", NULL, 1, true, 10, 0);
    run_bits("vulkan", NULL, 1, false, 10, 8);
}

/* Schedules of other lengths, of which some are wrong: anything within the rows of the batch, and nothing is kept. */
static void run_other_lengths(const char *backend, int sequences)
{
    static many m;
    static float expected[sizeof m.o / sizeof m.o[0]];
    random_state r = {test_seed() + 3};
    many_create(&m, backend, NULL, 1, sequences, sequences < 8 ? (uint32_t)sequences : 8);
    m.batch.shared = wrapped(&m, m.shared, ATTUNE_I32, 1, sequences, 0, 0, 0);
    m.args.schedule = m.schedule;
    for (int round = 0; round < 6; round++) {
        int32_t q_start[MANY + 1] = {0}, kv_len[MANY], shared[MANY];
        for (int b = 0; b < sequences; b++) {
            q_start[b + 1] = q_start[b] + (int32_t)(random_u64(&r) % 18);
            kv_len[b] = (int32_t)(random_u64(&r) % MANY_KEYS);
            shared[b] = (int32_t)(random_u64(&r) % 2000) - 500;
            const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, MANY_KEYS + 1};
            if (random_u64(&r) % 4 == 0)
                shared[b] = wrong[random_u64(&r) % 4];
            if (random_u64(&r) % 6 == 0)
                kv_len[b] = wrong[random_u64(&r) % 4];
            if (random_u64(&r) % 6 == 0)
                q_start[b] = wrong[random_u64(&r) % 4];
        }
        const bool right = round % 3 == 0;
        many_write(&m, &m.batch.q_start, right ? m.q_start : q_start, (uint64_t)(sequences + 1) * 4);
        many_write(&m, &m.batch.kv_len, right ? m.kv_len : kv_len, (uint64_t)sequences * 4);
        many_write(&m, &m.batch.shared, right ? m.shared : shared, (uint64_t)sequences * 4);
        attune_completion done;
        OK(attune_schedule(m.plan, attune_device_queue(m.device), &m.args, &done));
        OK(attune_completion_wait(done, UINT64_MAX));
        many_write(&m, &m.batch.q_start, right ? q_start : m.q_start, (uint64_t)(sequences + 1) * 4);
        many_write(&m, &m.batch.kv_len, right ? kv_len : m.kv_len, (uint64_t)sequences * 4);
        many_write(&m, &m.batch.shared, right ? shared : m.shared, (uint64_t)sequences * 4);
        many_run(&m);
        for (size_t i = (size_t)m.q_start[sequences] * 128; !right && i < sizeof m.o / sizeof m.o[0]; i++) {
            uint32_t bits;
            memcpy(&bits, &m.o[i], sizeof bits);
            cr_assert_eq(bits, UINT32_MAX, "element %zu, outside of the batch, was written", i);
        }
        many_write(&m, &m.batch.q_start, m.q_start, (uint64_t)(sequences + 1) * 4);
        many_write(&m, &m.batch.kv_len, m.kv_len, (uint64_t)sequences * 4);
        many_write(&m, &m.batch.shared, m.shared, (uint64_t)sequences * 4);
        OK(attune_schedule(m.plan, attune_device_queue(m.device), &m.args, NULL));
        many_run(&m);
        if (!round)
            memcpy(expected, m.o, sizeof expected);
        cr_expect_eq(memcmp(m.o, expected, sizeof expected), 0, "round %d", round);
    }
    many_destroy(&m);
}

Test(serving_bits, cuda)
{
    run_bits("cuda", NULL, 1, true, MANY, 0);
    run_bits("cuda", NULL, 1, false, MANY, 8);
}

Test(serving_bits, cuda_other_lengths)
{
    run_other_lengths("cuda", MANY);
}

Test(serving_bits, opencl_other_lengths)
{
    run_other_lengths("opencl", MANY);
}

Test(serving_bits, model)
{
    model_or_skip();
    run_bits("cuda", NULL, 1, true, 5, 0);
    run_bits("cuda", NULL, 1, false, 5, 5);
    run_other_lengths("cuda", 5);
}
