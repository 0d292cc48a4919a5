/* SPDX-License-Identifier: MIT */
/* A forward and a backward call: again and again with the same bits, those of captures' gradients too, which many
 * workgroups add to; and recorded into a command buffer of the caller's. */
#include <criterion/criterion.h>

#include <attune/vulkan.h>
#include <stdlib.h>
#include <string.h>

#include "support/devices.h"
#include "support/random_expr.h"
#include "vulkan/vulkan.h"

#define HEADS    4
#define KV_HEADS 2
#define LENGTH   70
#define DIM      16
#define BIAS     (2 * LENGTH - 1)

enum { Q, K, V, O, LSE, D_O, D_Q, D_K, D_V, D_BIAS, D_SLOPE, BIASES, SLOPES, TENSORS };

typedef struct fixture {
    attune_instance *instance;
    attune_device *device;
    attune_expr *mask_expr, *score;
    attune_mask *mask;
    attune_plan *forward, *backward;
    attune_buffer *workspace;
    attune_tensor t[TENSORS];
    attune_capture captures[2], gradients[2];
    attune_forward_args forward_args;
    attune_backward_args backward_args;
} fixture;

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s", attune_last_error())

static uint64_t bytes_of(const attune_tensor *t)
{
    uint64_t bytes = attune_dtype_size(t->dtype);
    for (uint32_t i = 0; i < t->rank; i++)
        bytes *= (uint64_t)t->size[i];
    return bytes;
}

/* Random values, or 0 without a state. */
static void fill_tensor(const attune_tensor *t, uint64_t *state)
{
    float *values = calloc(1, bytes_of(t));
    cr_assert(values);
    for (uint64_t i = 0; state && i < bytes_of(t) / sizeof *values; i++)
        values[i] = (float)random_expr_between(state, -1000, 1000) / 700;
    OK(attune_buffer_write(t->buffer, 0, values, bytes_of(t)));
    free(values);
}

static void fill(fixture *r, int which, uint64_t *state)
{
    fill_tensor(&r->t[which], state);
}

static void make_tensors(fixture *r)
{
    static const int64_t sizes[TENSORS][4] = {
        [Q] = {1, HEADS, LENGTH, DIM},
        [K] = {1, KV_HEADS, LENGTH, DIM},
        [V] = {1, KV_HEADS, LENGTH, DIM},
        [O] = {1, HEADS, LENGTH, DIM},
        [LSE] = {1, HEADS, LENGTH},
        [D_O] = {1, HEADS, LENGTH, DIM},
        [D_Q] = {1, HEADS, LENGTH, DIM},
        [D_K] = {1, KV_HEADS, LENGTH, DIM},
        [D_V] = {1, KV_HEADS, LENGTH, DIM},
        [D_BIAS] = {BIAS},
        [D_SLOPE] = {HEADS},
        [BIASES] = {BIAS},
        [SLOPES] = {HEADS},
    };
    uint64_t state = test_seed() + 9;
    for (int i = 0; i < TENSORS; i++) {
        attune_tensor *t = &r->t[i];
        *t = (attune_tensor){.dtype = ATTUNE_F32, .rank = i == LSE ? 3 : i < D_BIAS ? 4 : 1};
        memcpy(t->size, sizes[i], sizeof t->size);
        OK(attune_buffer_create(r->device, bytes_of(t), &t->buffer));
        fill(r, i, &state);
    }
}

static void make_arguments(fixture *r)
{
    const attune_tensor *t = r->t;
    r->captures[0] = (attune_capture){"bias", t[BIASES]};
    r->captures[1] = (attune_capture){"slope", t[SLOPES]};
    r->gradients[0] = (attune_capture){"bias", t[D_BIAS]};
    r->gradients[1] = (attune_capture){"slope", t[D_SLOPE]};
    r->forward_args = (attune_forward_args){.struct_size = sizeof r->forward_args,
                                            .q = t[Q],
                                            .k = t[K],
                                            .v = t[V],
                                            .o = t[O],
                                            .lse = t[LSE],
                                            .mask = r->mask,
                                            .captures = r->captures,
                                            .capture_count = 2,
                                            .workspace = r->workspace};
    r->backward_args = (attune_backward_args){.struct_size = sizeof r->backward_args,
                                              .q = t[Q],
                                              .k = t[K],
                                              .v = t[V],
                                              .o = t[O],
                                              .lse = t[LSE],
                                              .d_o = t[D_O],
                                              .d_q = t[D_Q],
                                              .d_k = t[D_K],
                                              .d_v = t[D_V],
                                              .mask = r->mask,
                                              .captures = r->captures,
                                              .capture_count = 2,
                                              .capture_gradients = r->gradients,
                                              .capture_gradient_count = 2,
                                              .workspace = r->workspace};
}

static void fixture_open(fixture *r)
{
    static const attune_symbol symbols[] = {{"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                            {"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1}};
    OK(attune_instance_create(NULL, &r->instance));
    r->device = device_or_skip(r->instance, "vulkan");
    OK(attune_expr_create(r->instance, ATTUNE_EXPR_MASK, "causal", NULL, 0, &r->mask_expr));
    OK(attune_expr_create(r->instance, ATTUNE_EXPR_SCORE, "tanh(score) * slope[h] + bias[q - kv + 69]", symbols, 2,
                          &r->score));
    const attune_mask_desc desc = {
        .struct_size = sizeof desc, .q_block = 32, .kv_block = 32, .q_len = LENGTH, .kv_len = LENGTH};
    OK(attune_mask_create(r->instance, &desc, r->mask_expr, NULL, 0, NULL, 0, &r->mask));
    OK(attune_mask_upload(r->mask, r->device));
    attune_problem problem = {.struct_size = sizeof problem,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = LENGTH,
                              .score = r->score,
                              .lse = true};
    OK(attune_problem_set_mask(&problem, r->mask));
    OK(attune_plan_create(r->device, &problem, NULL, &r->forward));
    problem.direction = ATTUNE_BACKWARD;
    problem.lse = false;
    problem.capture_gradient_elements = BIAS + HEADS;
    OK(attune_plan_create(r->device, &problem, NULL, &r->backward));
    const uint64_t one = attune_plan_workspace_size(r->forward), other = attune_plan_workspace_size(r->backward);
    OK(attune_buffer_create(r->device, one > other ? one : other, &r->workspace));
    make_tensors(r);
    make_arguments(r);
}

static void fixture_close(fixture *r)
{
    for (int i = 0; i < TENSORS; i++)
        attune_buffer_destroy(r->t[i].buffer);
    attune_buffer_destroy(r->workspace);
    attune_plan_destroy(r->forward);
    attune_plan_destroy(r->backward);
    attune_mask_destroy(r->mask);
    attune_expr_destroy(r->mask_expr);
    attune_expr_destroy(r->score);
    attune_device_destroy(r->device);
    attune_instance_destroy(r->instance);
}

static void read_all(const fixture *r, char *out[TENSORS])
{
    for (int t = O; t <= D_SLOPE; t++) {
        const uint64_t bytes = bytes_of(&r->t[t]);
        if (!out[t])
            out[t] = calloc(1, bytes);
        cr_assert(out[t]);
        OK(attune_buffer_read(r->t[t].buffer, 0, out[t], bytes));
    }
}

static void expect_equal(const fixture *r, char *first[TENSORS], char *again[TENSORS], int run)
{
    for (int t = O; t <= D_SLOPE; t++)
        cr_assert(!memcmp(first[t], again[t], bytes_of(&r->t[t])), "output %d of run %d has other bits", t, run);
}

static void free_outputs(const fixture *r, char *first[TENSORS], char *again[TENSORS])
{
    for (int t = O; t <= D_SLOPE; t++) {
        bool any = false;
        for (uint64_t i = 0; i < bytes_of(&r->t[t]); i++)
            any = any || first[t][i];
        cr_assert(any, "output %d is 0", t);
        free(first[t]);
        free(again[t]);
    }
}

Test(vulkan_calls, gradients_are_equal_bit_by_bit)
{
    fixture r = {0};
    fixture_open(&r);
    attune_queue *queue = attune_device_queue(r.device);
    char *first[TENSORS] = {NULL}, *again[TENSORS] = {NULL};
    OK(attune_forward(r.forward, queue, &r.forward_args, NULL));
    for (int i = 0; i < 250; i++) {
        attune_completion completion;
        fill(&r, D_BIAS, NULL);
        fill(&r, D_SLOPE, NULL);
        OK(attune_backward(r.backward, queue, &r.backward_args, &completion));
        OK(attune_completion_wait(completion, UINT64_MAX));
        read_all(&r, i ? again : first);
        if (i)
            expect_equal(&r, first, again, i);
    }
    free_outputs(&r, first, again);
    fixture_close(&r);
}

/* Forward, a barrier and backward in one command buffer; its submission's end is the end of an empty one after it. */
static void record(const fixture *r, const attune__vulkan_device *device, VkCommandBuffer commands)
{
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    cr_assert_eq(device->vk.BeginCommandBuffer(commands, &begin), VK_SUCCESS);
    attune__vulkan_barrier(device, commands);
    OK(attune_vulkan_forward_record(r->forward, commands, &r->forward_args));
    attune__vulkan_barrier(device, commands);
    OK(attune_vulkan_backward_record(r->backward, commands, &r->backward_args));
    cr_assert_eq(device->vk.EndCommandBuffer(commands), VK_SUCCESS);
}

static void submit_and_wait(attune__vulkan_device *device, VkCommandBuffer commands)
{
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};
    attune__vulkan_slot *slot;
    cr_assert_eq(device->vk.QueueSubmit(device->queue.handle, 1, &info, VK_NULL_HANDLE), VK_SUCCESS);
    OK(attune__vulkan_begin(device, false, &slot));
    OK(attune__vulkan_submit(device, slot, NULL));
    OK(attune__vulkan_wait_idle(device));
}

static VkCommandBuffer make_commands(const attune__vulkan_device *device, VkCommandPool *pool)
{
    const VkCommandPoolCreateInfo pool_info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                               .queueFamilyIndex = device->queue.family};
    VkCommandBuffer commands;
    cr_assert_eq(device->vk.CreateCommandPool(device->handle, &pool_info, NULL, pool), VK_SUCCESS);
    const VkCommandBufferAllocateInfo buffer_info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                     .commandPool = *pool,
                                                     .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                     .commandBufferCount = 1};
    cr_assert_eq(device->vk.AllocateCommandBuffers(device->handle, &buffer_info, &commands), VK_SUCCESS);
    return commands;
}

Test(vulkan_calls, may_be_recorded_by_the_caller)
{
    fixture r = {0};
    fixture_open(&r);
    attune__vulkan_device *device = attune__vulkan_of(r.device);
    char *first[TENSORS] = {NULL}, *again[TENSORS] = {NULL};
    attune_completion completion;
    OK(attune_forward(r.forward, attune_device_queue(r.device), &r.forward_args, NULL));
    fill(&r, D_BIAS, NULL);
    fill(&r, D_SLOPE, NULL);
    OK(attune_backward(r.backward, attune_device_queue(r.device), &r.backward_args, &completion));
    OK(attune_completion_wait(completion, UINT64_MAX));
    read_all(&r, first);

    VkCommandPool pool;
    const VkCommandBuffer commands = make_commands(device, &pool);
    record(&r, device, commands);
    for (int run = 1; run <= 3; run++) {
        for (int t = O; t <= D_SLOPE; t++)
            if (t != D_O)
                fill(&r, t, NULL);
        submit_and_wait(device, commands);
        read_all(&r, again);
        expect_equal(&r, first, again, run);
    }
    double seconds;
    r.backward_args.seconds = &seconds;
    cr_expect_eq(attune_vulkan_backward_record(r.backward, commands, &r.backward_args), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_vulkan_forward_record(r.backward, commands, &r.forward_args), ATTUNE_INVALID_ARGUMENT);
    device->vk.DestroyCommandPool(device->handle, pool, NULL);
    free_outputs(&r, first, again);
    fixture_close(&r);
}

/* A step through a plan for a prompt, recorded: the decode kernel's bits, as the call's own. */
Test(vulkan_calls, the_lengths_of_a_recorded_call_choose_its_kernel)
{
    enum { KEYS = 520, STEP = HEADS * DIM };
    attune_instance *instance;
    attune_plan *plans[3]; /* of a step, of a prompt, and without decode */
    attune_buffer *workspace, *buffers[3];
    float found[4][STEP];
    OK(attune_instance_create(NULL, &instance));
    attune_device *opened = device_or_skip(instance, "vulkan");
    attune__vulkan_device *device = attune__vulkan_of(opened);
    attune_problem problem = {
        .struct_size = sizeof problem, .head_dim = DIM, .heads = HEADS, .kv_heads = KV_HEADS, .kv_len = KEYS};
    const attune_kernel_options forward = {.struct_size = sizeof forward, .fwd.force_use_flex_attention = ATTUNE_ON};
    uint64_t most = 0, state = test_seed() + 10;
    for (int i = 0; i < 3; i++) {
        problem.q_len = i ? 40 : 1;
        OK(attune_plan_create(opened, &problem, i == 2 ? &forward : NULL, &plans[i]));
        const uint64_t bytes = attune_plan_workspace_size(plans[i]);
        most = bytes > most ? bytes : most;
    }
    OK(attune_buffer_create(opened, most, &workspace));
    for (int i = 0; i < 3; i++) {
        static float values[KV_HEADS * KEYS * DIM];
        for (size_t j = 0; j < sizeof values / sizeof *values; j++)
            values[j] = (float)random_expr_between(&state, -1000, 1000) / 700;
        OK(attune_buffer_create(opened, sizeof values, &buffers[i]));
        OK(attune_buffer_write(buffers[i], 0, values, sizeof values));
    }
    const attune_tensor q = {buffers[0], 0, ATTUNE_F32, 4, {1, HEADS, 1, DIM}, {0}};
    const attune_tensor k = {buffers[1], 0, ATTUNE_F32, 4, {1, KV_HEADS, KEYS, DIM}, {0}};
    attune_tensor v = k, o = q;
    v.buffer = buffers[2];
    OK(attune_buffer_create(opened, sizeof found[0], &o.buffer));
    const attune_forward_args args = {
        .struct_size = sizeof args, .q = q, .k = k, .v = v, .o = o, .workspace = workspace};
    for (int i = 0; i < 3; i++) {
        OK(attune_forward(plans[i], attune_device_queue(opened), &args, NULL));
        OK(attune_buffer_read(o.buffer, 0, found[i], sizeof found[i]));
    }
    OK(attune_buffer_write(o.buffer, 0, (const float[STEP]){0}, sizeof found[3]));
    VkCommandPool pool;
    const VkCommandBuffer commands = make_commands(device, &pool);
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    cr_assert_eq(device->vk.BeginCommandBuffer(commands, &begin), VK_SUCCESS);
    OK(attune_vulkan_forward_record(plans[1], commands, &args));
    cr_assert_eq(device->vk.EndCommandBuffer(commands), VK_SUCCESS);
    submit_and_wait(device, commands);
    OK(attune_buffer_read(o.buffer, 0, found[3], sizeof found[3]));
    cr_expect(!memcmp(found[0], found[1], sizeof found[0]), "the call's bits");
    cr_expect(!memcmp(found[0], found[3], sizeof found[0]), "the recorded call's bits");
    cr_expect(memcmp(found[0], found[2], sizeof found[0]), "the forward kernel has them too");
    device->vk.DestroyCommandPool(device->handle, pool, NULL);
    for (int i = 0; i < 3; i++) {
        attune_plan_destroy(plans[i]);
        attune_buffer_destroy(buffers[i]);
    }
    attune_buffer_destroy(o.buffer);
    attune_buffer_destroy(workspace);
    attune_device_destroy(opened);
    attune_instance_destroy(instance);
}

enum { SEQUENCES = 6, PAGE = 16, PAGES = 60, TABLE = 64, TOKENS = 48, MOST_ROWS = 20 };

static attune_tensor tensor_of(attune_device *device, attune_dtype dtype, uint32_t rank, const int64_t *size)
{
    attune_tensor t = {.dtype = dtype, .rank = rank};
    memcpy(t.size, size, rank * sizeof *size);
    OK(attune_buffer_create(device, bytes_of(&t), &t.buffer));
    return t;
}

/* Another step: rows, keys and pages of each sequence, and how many sequences there are. */
static void put_batch(const attune_cache *cache, const attune_batch *batch, uint64_t *state)
{
    int32_t start[SEQUENCES + 1] = {0}, keys[SEQUENCES], table[SEQUENCES][TABLE];
    const int32_t count = (int32_t)random_expr_between(state, 1, SEQUENCES);
    for (int b = 0; b < SEQUENCES; b++) {
        int64_t rows = random_expr_between(state, 0, 2) ? random_expr_between(state, 0, 2)
                                                        : random_expr_between(state, 0, MOST_ROWS);
        rows = start[b] + rows > TOKENS ? TOKENS - start[b] : rows;
        start[b + 1] = start[b] + (int32_t)rows;
        keys[b] = (int32_t)random_expr_between(state, 0, random_expr_between(state, 0, 1) ? TABLE * PAGE : 200);
        for (int i = 0; i < TABLE; i++)
            table[b][i] = (int32_t)random_expr_between(state, i * PAGE < keys[b] ? 0 : -5, PAGES - 1);
    }
    OK(attune_buffer_write(batch->q_start.buffer, 0, start, sizeof start));
    OK(attune_buffer_write(batch->kv_len.buffer, 0, keys, sizeof keys));
    OK(attune_buffer_write(batch->count.buffer, 0, &count, sizeof count));
    OK(attune_buffer_write(cache->pages.buffer, 0, table, sizeof table));
}

/* Each live sequence alone, with fixed parts: the bits that it has in the batch. */
static void check_alone(const attune_plan *plan, attune_queue *queue, const attune_forward_args *args,
                        const float *expected, int step)
{
    attune_cache cache = *args->cache;
    attune_batch batch = *args->batch;
    attune_forward_args alone = *args;
    int32_t start[SEQUENCES + 1], count;
    static float found[TOKENS * HEADS * DIM];
    OK(attune_buffer_read(batch.q_start.buffer, 0, start, sizeof start));
    OK(attune_buffer_read(batch.count.buffer, 0, &count, sizeof count));
    alone.cache = &cache;
    alone.batch = &batch;
    batch.count.buffer = NULL;
    batch.kv_len.size[0] = cache.pages.size[0] = 1;
    batch.q_start.size[0] = 2;
    for (int b = 0; b < count; b++) {
        const int32_t first = start[b] * HEADS * DIM, rows = start[b + 1] - start[b];
        batch.kv_len.offset = batch.q_start.offset = (uint64_t)b * sizeof(int32_t);
        cache.pages.offset = (uint64_t)b * TABLE * sizeof(int32_t);
        OK(attune_forward(plan, queue, &alone, NULL));
        OK(attune_buffer_read(args->o.buffer, 0, found, sizeof found));
        cr_assert(!memcmp(found + first, expected + first, (size_t)(rows * HEADS * DIM) * sizeof *found),
                  "step %d, sequence %d", step, b);
    }
}

/* The call with a schedule of the step, in a buffer that held anything before. */
static void check_schedule(const attune_plan *plan, attune_queue *queue, const attune_forward_args *args,
                           attune_buffer *buffer, const float *expected, uint64_t *state, int step)
{
    static float found[TOKENS * HEADS * DIM];
    const uint64_t bytes = attune_plan_schedule_size(plan);
    attune_forward_args with = *args;
    uint32_t *words = malloc(bytes);
    cr_assert(words);
    for (uint64_t i = 0; i < bytes / 4; i++)
        words[i] = (uint32_t)random_expr_between(state, 0, step % 8 ? 200 : INT32_MAX);
    with.schedule = buffer;
    OK(attune_buffer_write(buffer, 0, words, bytes));
    OK(attune_forward(plan, queue, &with, NULL)); /* anything, within bounds */
    OK(attune_buffer_write(args->o.buffer, 0, expected, sizeof found));
    OK(attune_schedule(plan, queue, &with, NULL));
    for (int layer = 0; layer < 2; layer++) {
        OK(attune_forward(plan, queue, &with, NULL));
        OK(attune_buffer_read(args->o.buffer, 0, found, sizeof found));
        cr_assert(!memcmp(found, expected, sizeof found), "step %d, layer %d", step, layer);
    }
    free(words);
}

/* A step over a cache that was recorded once, submitted with 20 batches: the bits of calls of their own, and of those
 * with a schedule; and with fixed parts of each sequence alone. */
Test(vulkan_calls, a_recorded_batch_is_replayed)
{
    static const attune_kernel_options kernels[] = {
        {.struct_size = sizeof kernels[0], .any.kernel = "vulkan_portable"},
        {.struct_size = sizeof kernels[0], .any.kernel = "vulkan_subgroup"},
        {.struct_size = sizeof kernels[0], .any.kernel = "vulkan_decode"},
    };
    attune_instance *instance;
    OK(attune_instance_create(NULL, &instance));
    attune_device *opened = device_or_skip(instance, "vulkan");
    attune__vulkan_device *device = attune__vulkan_of(opened);
    uint64_t state = test_seed() + 11;
    attune_expr *mask;
    OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv && q - kv < 50 && row != 3", NULL, 0, &mask));
    const attune_tensor q = tensor_of(opened, ATTUNE_F32, 3, (int64_t[]){TOKENS, HEADS, DIM});
    const attune_tensor o = tensor_of(opened, ATTUNE_F32, 3, (int64_t[]){TOKENS, HEADS, DIM});
    const attune_cache cache = {
        .struct_size = sizeof cache,
        .k = tensor_of(opened, ATTUNE_F32, 4, (int64_t[]){PAGES, KV_HEADS, PAGE, DIM}),
        .v = tensor_of(opened, ATTUNE_F32, 4, (int64_t[]){PAGES, KV_HEADS, PAGE, DIM}),
        .pages = tensor_of(opened, ATTUNE_I32, 2, (int64_t[]){SEQUENCES, TABLE}),
    };
    const attune_batch batch = {
        .struct_size = sizeof batch,
        .q_start = tensor_of(opened, ATTUNE_I32, 1, (int64_t[]){SEQUENCES + 1}),
        .kv_len = tensor_of(opened, ATTUNE_I32, 1, (int64_t[]){SEQUENCES}),
        .count = tensor_of(opened, ATTUNE_I32, 1, (int64_t[]){1}),
    };
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = ATTUNE_F32,
                              .head_dim = DIM,
                              .batch = SEQUENCES,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = MOST_ROWS,
                              .kv_len = TABLE * PAGE,
                              .tokens = TOKENS,
                              .page = PAGE,
                              .mask = mask};
    fill_tensor(&q, &state);
    fill_tensor(&cache.k, &state);
    fill_tensor(&cache.v, &state);
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        attune_plan *plan;
        attune_buffer *workspace, *schedule;
        problem.split_keys = i == 1 ? 0 : 256;
        if (attune_plan_create(opened, &problem, &kernels[i], &plan) != ATTUNE_OK) {
            cr_expect(i > 0, "%s", attune_last_error()); /* a device without subgroups */
            continue;
        }
        OK(attune_buffer_create(opened, attune_plan_workspace_size(plan) + 1, &workspace));
        OK(attune_buffer_create(opened, attune_plan_schedule_size(plan), &schedule));
        const attune_forward_args args = {
            .struct_size = sizeof args, .q = q, .o = o, .workspace = workspace, .cache = &cache, .batch = &batch};
        VkCommandPool pool;
        const VkCommandBuffer commands = make_commands(device, &pool);
        const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
        cr_assert_eq(device->vk.BeginCommandBuffer(commands, &begin), VK_SUCCESS);
        attune__vulkan_barrier(device, commands);
        OK(attune_vulkan_forward_record(plan, commands, &args));
        cr_assert_eq(device->vk.EndCommandBuffer(commands), VK_SUCCESS);
        float canary[TOKENS * HEADS * DIM], found[2][TOKENS * HEADS * DIM], before[TOKENS * HEADS * DIM] = {0};
        for (int j = 0; j < TOKENS * HEADS * DIM; j++)
            canary[j] = -77;
        int others = 0;
        for (int step = 0; step < 20; step++) {
            put_batch(&cache, &batch, &state);
            OK(attune_buffer_write(o.buffer, 0, canary, sizeof canary));
            submit_and_wait(device, commands);
            OK(attune_buffer_read(o.buffer, 0, found[0], sizeof found[0]));
            OK(attune_buffer_write(o.buffer, 0, canary, sizeof canary));
            OK(attune_forward(plan, attune_device_queue(opened), &args, NULL));
            OK(attune_buffer_read(o.buffer, 0, found[1], sizeof found[1]));
            cr_assert(!memcmp(found[0], found[1], sizeof found[0]), "%s, step %d", kernels[i].any.kernel, step);
            others += memcmp(found[0], before, sizeof before) != 0;
            memcpy(before, found[0], sizeof before);
            if (step % 4 == 0)
                check_schedule(plan, attune_device_queue(opened), &args, schedule, found[0], &state, step);
            if (problem.split_keys && step % 4 == 1)
                check_alone(plan, attune_device_queue(opened), &args, found[0], step);
        }
        cr_expect_eq(others, 20, "%s: %d steps differ from the one before", kernels[i].any.kernel, others);
        device->vk.DestroyCommandPool(device->handle, pool, NULL);
        attune_buffer_destroy(schedule);
        attune_buffer_destroy(workspace);
        attune_plan_destroy(plan);
    }
    attune_buffer *const buffers[] = {q.buffer,
                                      o.buffer,
                                      cache.k.buffer,
                                      cache.v.buffer,
                                      cache.pages.buffer,
                                      batch.q_start.buffer,
                                      batch.kv_len.buffer,
                                      batch.count.buffer};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        attune_buffer_destroy(buffers[i]);
    attune_expr_destroy(mask);
    attune_device_destroy(opened);
    attune_instance_destroy(instance);
}

/* A schedule is one of the lengths: rows of q past the last sequence's are another number in each call. */
Test(vulkan_calls, a_schedule_serves_calls_with_more_rows)
{
    static const attune_kernel_options options = {.struct_size = sizeof options,
                                                  .any = {.block_m = 4, .kernel = "vulkan_portable"}};
    enum { KEYS = 1024, WIDTH = HEADS * DIM };
    const int32_t start[] = {0, 3, 7}, keys[] = {KEYS, 700};
    attune_instance *instance;
    OK(attune_instance_create(NULL, &instance));
    attune_device *opened = device_or_skip(instance, "vulkan");
    uint64_t state = test_seed() + 12;
    const attune_tensor q = tensor_of(opened, ATTUNE_F32, 3, (int64_t[]){TOKENS, HEADS, DIM});
    const attune_tensor o = tensor_of(opened, ATTUNE_F32, 3, (int64_t[]){TOKENS, HEADS, DIM});
    const attune_cache cache = {.struct_size = sizeof cache,
                                .k = tensor_of(opened, ATTUNE_F32, 4, (int64_t[]){2, KV_HEADS, KEYS, DIM}),
                                .v = tensor_of(opened, ATTUNE_F32, 4, (int64_t[]){2, KV_HEADS, KEYS, DIM})};
    const attune_batch batch = {.struct_size = sizeof batch,
                                .q_start = tensor_of(opened, ATTUNE_I32, 1, (int64_t[]){3}),
                                .kv_len = tensor_of(opened, ATTUNE_I32, 1, (int64_t[]){2})};
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = ATTUNE_F32,
                                    .head_dim = DIM,
                                    .batch = 2,
                                    .heads = HEADS,
                                    .kv_heads = KV_HEADS,
                                    .q_len = MOST_ROWS,
                                    .kv_len = KEYS,
                                    .tokens = TOKENS};
    attune_plan *plan;
    attune_buffer *workspace, *schedule;
    float found[3][7 * WIDTH];
    fill_tensor(&q, &state);
    fill_tensor(&cache.k, &state);
    fill_tensor(&cache.v, &state);
    OK(attune_buffer_write(batch.q_start.buffer, 0, start, sizeof start));
    OK(attune_buffer_write(batch.kv_len.buffer, 0, keys, sizeof keys));
    OK(attune_plan_create(opened, &problem, &options, &plan));
    OK(attune_buffer_create(opened, attune_plan_workspace_size(plan), &workspace));
    OK(attune_buffer_create(opened, attune_plan_schedule_size(plan), &schedule));
    attune_forward_args args = {
        .struct_size = sizeof args, .q = q, .o = o, .workspace = workspace, .cache = &cache, .batch = &batch};
    for (int i = 0; i < 3; i++) {
        args.schedule = i ? schedule : NULL;
        args.q.size[0] = args.o.size[0] = 7;
        if (i == 1)
            OK(attune_schedule(plan, attune_device_queue(opened), &args, NULL));
        args.q.size[0] = args.o.size[0] = i == 2 ? TOKENS : 7;
        fill_tensor(&o, NULL);
        OK(attune_forward(plan, attune_device_queue(opened), &args, NULL));
        OK(attune_buffer_read(o.buffer, 0, found[i], sizeof found[i]));
    }
    cr_expect(!memcmp(found[0], found[1], sizeof found[0]), "the bits of a call without a schedule");
    cr_expect(!memcmp(found[0], found[2], sizeof found[0]), "with more rows");
    attune_buffer *const buffers[] = {
        q.buffer,  o.buffer, cache.k.buffer, cache.v.buffer, batch.q_start.buffer, batch.kv_len.buffer,
        workspace, schedule};
    attune_plan_destroy(plan);
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        attune_buffer_destroy(buffers[i]);
    attune_device_destroy(opened);
    attune_instance_destroy(instance);
}

/* A mask of a tensor, and a call with it, recorded once with shorter lengths than the mask's, and executed again
 * whenever the tensor has other values: the bits of an update and a call of their own. */
Test(vulkan_calls, a_recorded_mask_follows_its_tensor)
{
    enum { MOST = 300, ROWS = 130, KEYS = 270, COUNT = ROWS * KEYS };
    attune_instance *instance;
    OK(attune_instance_create(NULL, &instance));
    attune_device *opened = device_or_skip(instance, "vulkan");
    attune__vulkan_device *device = attune__vulkan_of(opened);
    uint64_t state = test_seed() + 12;
    const attune_mask_desc desc = {
        .struct_size = sizeof desc, .heads = HEADS, .kv_heads = KV_HEADS, .q_len = MOST, .kv_len = MOST};
    attune_problem problem = {.struct_size = sizeof problem,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = MOST,
                              .kv_len = MOST};
    attune_mask *mask;
    attune_plan *plan;
    attune_buffer *workspace;
    OK(attune_mask_create_tensor(opened, &desc, ATTUNE_BOOL, 1, 1, &mask));
    OK(attune_problem_set_mask(&problem, mask));
    OK(attune_plan_create(opened, &problem, NULL, &plan));
    OK(attune_buffer_create(opened, attune_plan_workspace_size(plan) + 1, &workspace));
    const attune_tensor allowed = tensor_of(opened, ATTUNE_BOOL, 4, (int64_t[]){1, 1, ROWS, KEYS});
    const attune_forward_args args = {
        .struct_size = sizeof args,
        .q = tensor_of(opened, ATTUNE_F32, 4, (int64_t[]){1, HEADS, ROWS, DIM}),
        .k = tensor_of(opened, ATTUNE_F32, 4, (int64_t[]){1, KV_HEADS, KEYS, DIM}),
        .v = tensor_of(opened, ATTUNE_F32, 4, (int64_t[]){1, KV_HEADS, KEYS, DIM}),
        .o = tensor_of(opened, ATTUNE_F32, 4, (int64_t[]){1, HEADS, ROWS, DIM}),
        .mask = mask,
        .workspace = workspace,
    };
    fill_tensor(&args.q, &state);
    fill_tensor(&args.k, &state);
    fill_tensor(&args.v, &state);
    VkCommandPool pool;
    const VkCommandBuffer commands = make_commands(device, &pool);
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    cr_assert_eq(device->vk.BeginCommandBuffer(commands, &begin), VK_SUCCESS);
    cr_expect_eq(attune_vulkan_mask_update_record(NULL, commands, &allowed), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_vulkan_mask_update_record(mask, NULL, &allowed), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_vulkan_mask_update_record(mask, commands, NULL), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_vulkan_mask_update_record(mask, commands, &args.q), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_vulkan_forward_record(plan, commands, &args), ATTUNE_INVALID_ARGUMENT, "a mask without lists");
    attune__vulkan_barrier(device, commands);
    OK(attune_vulkan_mask_update_record(mask, commands, &allowed));
    OK(attune_vulkan_forward_record(plan, commands, &args));
    cr_assert_eq(device->vk.EndCommandBuffer(commands), VK_SUCCESS);
    static uint8_t pairs[COUNT];
    static float found[2][HEADS * ROWS * DIM], before[HEADS * ROWS * DIM];
    for (int step = 0; step < 6; step++) {
        const int64_t width = random_expr_between(&state, 1, 2 * KEYS), first = random_expr_between(&state, 0, ROWS);
        for (int i = 0; i < COUNT; i++)
            pairs[i] = i / KEYS >= first && i % KEYS <= i / KEYS * 2 && i / KEYS * 2 - i % KEYS < width;
        OK(attune_buffer_write(allowed.buffer, 0, pairs, sizeof pairs));
        for (int own = 0; own < 2; own++) {
            fill_tensor(&args.o, &state);
            if (own) {
                OK(attune_mask_update(mask, attune_device_queue(opened), &allowed, NULL));
                OK(attune_forward(plan, attune_device_queue(opened), &args, NULL));
            } else {
                submit_and_wait(device, commands);
            }
            OK(attune_buffer_read(args.o.buffer, 0, found[own], sizeof found[own]));
        }
        cr_assert(!memcmp(found[0], found[1], sizeof found[0]), "step %d", step);
        cr_assert(memcmp(found[0], before, sizeof before), "step %d is that before", step);
        memcpy(before, found[0], sizeof before);
    }
    device->vk.DestroyCommandPool(device->handle, pool, NULL);
    attune_plan_destroy(plan);
    attune_mask_destroy(mask);
    const attune_tensor *const tensors[] = {&allowed, &args.q, &args.k, &args.v, &args.o};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        attune_buffer_destroy(tensors[i]->buffer);
    attune_buffer_destroy(workspace);
    attune_device_destroy(opened);
    attune_instance_destroy(instance);
}
