/* SPDX-License-Identifier: MIT */
/* A GPU: graphs, repeats, streams and threads, each held bit by bit against a first run. Skipped where there is none.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <attune/attune.h>
#include <attune/cuda.h>

#include "base/half.h"
#include "cuda/cuda.h"
#include "cuda/graphs.h"
#include "support/devices.h"
#include "support/random_expr.h"

#define HEADS    4
#define KV_HEADS 2
#define KEYS     1000
#define DIM      128
#define THREADS  4

/* One attention on the device: a plan, its inputs, and outputs for some callers. */
typedef struct scene {
    attune_instance *instance;
    attune_device *device;
    attune_expr *allowed, *score;
    attune_mask *mask;
    attune_plan *plan;
    attune_dtype dtype;
    int64_t q_len;
    attune_buffer *q, *k, *v, *o[THREADS], *workspace[THREADS];
    size_t o_bytes;
    /* Backward: o[] hold dQ, dK, dV and the gradients of the captures, which calls add to. */
    bool back;
    attune_buffer *answer, *lse, *captures[2];
    size_t added; /* bytes at the end of o[] */
} scene;

#define BIASES 2048
static const attune_symbol symbols[2] = {{"heat", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                         {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BF16, 1}};
static const int64_t symbol_sizes[2] = {HEADS, BIASES};

static attune_buffer *random_buffer(attune_device *device, attune_dtype dtype, int64_t count, uint64_t *state)
{
    const size_t each = attune_dtype_size(dtype);
    unsigned char *bytes = malloc((size_t)count * each);
    attune_buffer *buffer;
    cr_assert_not_null(bytes);
    for (int64_t i = 0; i < count; i++) {
        const float x = (float)random_expr_between(state, -3000, 3000) / 1000.0f;
        const uint16_t half = dtype == ATTUNE_F16 ? attune__f16_from_f32(x) : attune__bf16_from_f32(x);
        memcpy(bytes + (size_t)i * each, each == 4 ? (const void *)&x : (const void *)&half, each);
    }
    cr_assert_eq(attune_buffer_create(device, (uint64_t)count * each, &buffer), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_write(buffer, 0, bytes, (uint64_t)count * each), ATTUNE_OK, "%s", attune_last_error());
    free(bytes);
    return buffer;
}

static attune_tensor captured(const scene *s, int i)
{
    return (attune_tensor){.buffer = s->captures[i], .dtype = symbols[i].dtype, .rank = 1, .size = {symbol_sizes[i]}};
}

/* Runs the forward plan once, for O and LSE, and replaces it with a backward one. */
static void scene_to_backward(scene *s, attune_problem *problem, uint64_t *state)
{
    const attune_tensor q = {.buffer = s->q, .dtype = s->dtype, .rank = 4, .size = {1, HEADS, s->q_len, DIM}};
    const attune_tensor k = {.buffer = s->k, .dtype = s->dtype, .rank = 4, .size = {1, KV_HEADS, KEYS, DIM}};
    const attune_capture captures[2] = {{"heat", captured(s, 0)}, {"bias", captured(s, 1)}};
    attune_forward_args args = {.struct_size = sizeof args, .q = q, .k = k, .v = k, .o = q, .mask = s->mask};
    attune_completion completion;
    s->answer = random_buffer(s->device, s->dtype, HEADS * s->q_len * DIM, state);
    s->lse = random_buffer(s->device, ATTUNE_F32, HEADS * s->q_len, state);
    args.v.buffer = s->v;
    args.o.buffer = s->answer;
    args.lse = (attune_tensor){.buffer = s->lse, .dtype = ATTUNE_F32, .rank = 3, .size = {1, HEADS, s->q_len}};
    args.captures = captures;
    args.capture_count = 2;
    if (attune_plan_workspace_size(s->plan))
        cr_assert_eq(attune_buffer_create(s->device, attune_plan_workspace_size(s->plan), &args.workspace), ATTUNE_OK,
                     "%s", attune_last_error());
    cr_assert_eq(attune_forward(s->plan, attune_device_queue(s->device), &args, &completion), ATTUNE_OK, "%s",
                 attune_last_error());
    cr_assert_eq(attune_completion_wait(completion, UINT64_MAX), ATTUNE_OK, "%s", attune_last_error());
    attune_buffer_destroy(args.workspace);
    attune_plan_destroy(s->plan);
    problem->direction = ATTUNE_BACKWARD;
    problem->capture_gradient_elements = HEADS + BIASES;
    const attune_kernel_options options = {.struct_size = sizeof options, .bwd = {.deterministic = ATTUNE_ON}};
    cr_assert_eq(attune_plan_create(s->device, problem, &options, &s->plan), ATTUNE_OK, "%s", attune_last_error());
    s->added = (HEADS + BIASES) * sizeof(float);
    s->o_bytes += (size_t)2 * KV_HEADS * KEYS * DIM * attune_dtype_size(s->dtype) + s->added;
}

static attune_status run_backward(const scene *s, int slot, attune_queue *queue, attune_completion *completion)
{
    const attune_tensor q = {.buffer = s->q, .dtype = s->dtype, .rank = 4, .size = {1, HEADS, s->q_len, DIM}};
    const attune_tensor k = {.buffer = s->k, .dtype = s->dtype, .rank = 4, .size = {1, KV_HEADS, KEYS, DIM}};
    const uint64_t queries = (uint64_t)(HEADS * s->q_len * DIM) * attune_dtype_size(s->dtype),
                   keys = (uint64_t)KV_HEADS * KEYS * DIM * attune_dtype_size(s->dtype);
    attune_capture captures[2] = {{"heat", captured(s, 0)}, {"bias", captured(s, 1)}}, gradients[2];
    attune_backward_args args = {.struct_size = sizeof args, .q = q, .k = k, .v = k, .o = q, .d_o = q, .d_q = q};
    args.v.buffer = s->v;
    args.o.buffer = s->answer;
    args.lse = (attune_tensor){.buffer = s->lse, .dtype = ATTUNE_F32, .rank = 3, .size = {1, HEADS, s->q_len}};
    args.d_q.buffer = s->o[slot];
    args.d_k = args.d_v = k;
    args.d_k.buffer = args.d_v.buffer = s->o[slot];
    args.d_k.offset = queries;
    args.d_v.offset = queries + keys;
    memcpy(gradients, captures, sizeof gradients);
    for (int i = 0; i < 2; i++) {
        gradients[i].tensor.buffer = s->o[slot];
        gradients[i].tensor.dtype = ATTUNE_F32;
        gradients[i].tensor.offset = queries + 2 * keys + (i ? HEADS * sizeof(float) : 0);
    }
    args.mask = s->mask;
    args.captures = captures;
    args.capture_gradients = gradients;
    args.capture_count = args.capture_gradient_count = 2;
    args.workspace = s->workspace[slot];
    return attune_backward(s->plan, queue, &args, completion);
}

/* q_len 1 makes a decode kernel. */
static void scene_open(scene *s, attune_dtype dtype, int64_t q_len, bool back)
{
    uint64_t state = test_seed() + (uint64_t)q_len;
    *s = (scene){.dtype = dtype, .q_len = q_len, .back = back};
    cr_assert_eq(attune_instance_create(NULL, &s->instance), ATTUNE_OK);
    s->device = device_or_skip(s->instance, "cuda");
    cr_assert_eq(attune_expr_create(s->instance, ATTUNE_EXPR_MASK, "kv <= q + kv_len - q_len && (kv + q) % 5 != 0",
                                    NULL, 0, &s->allowed),
                 ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(
        attune_expr_create(s->instance, ATTUNE_EXPR_SCORE,
                           back ? "20 * tanh(score / 20) * heat[h] + bias[kv - q + 1000]" : "20 * tanh(score / 20)",
                           symbols, 2, &s->score),
        ATTUNE_OK, "%s", attune_last_error());
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = q_len, .kv_len = KEYS};
    cr_assert_eq(attune_mask_create(s->instance, &desc, s->allowed, NULL, 0, NULL, 0, &s->mask), ATTUNE_OK, "%s",
                 attune_last_error());
    cr_assert_eq(attune_mask_upload(s->mask, s->device), ATTUNE_OK, "%s", attune_last_error());
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = dtype,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = q_len,
                              .kv_len = KEYS,
                              .score = s->score,
                              .lse = true};
    cr_assert_eq(attune_problem_set_mask(&problem, s->mask), ATTUNE_OK);
    cr_assert_eq(attune_plan_create(s->device, &problem, NULL, &s->plan), ATTUNE_OK, "%s", attune_last_error());
    s->q = random_buffer(s->device, dtype, HEADS * q_len * DIM, &state);
    s->k = random_buffer(s->device, dtype, (int64_t)KV_HEADS * KEYS * DIM, &state);
    s->v = random_buffer(s->device, dtype, (int64_t)KV_HEADS * KEYS * DIM, &state);
    s->o_bytes = (size_t)(HEADS * q_len * DIM) * attune_dtype_size(dtype);
    for (int i = 0; i < 2; i++)
        s->captures[i] = random_buffer(s->device, symbols[i].dtype, symbol_sizes[i], &state);
    if (back)
        scene_to_backward(s, &problem, &state);
    const uint64_t workspace = attune_plan_workspace_size(s->plan);
    for (int i = 0; i < THREADS; i++) {
        s->o[i] = random_buffer(s->device, ATTUNE_BF16, (int64_t)s->o_bytes / 2, &state);
        if (back) {
            static const float zeros[HEADS + BIASES];
            cr_assert_eq(attune_buffer_write(s->o[i], s->o_bytes - s->added, zeros, s->added), ATTUNE_OK);
        }
        if (workspace)
            cr_assert_eq(attune_buffer_create(s->device, workspace, &s->workspace[i]), ATTUNE_OK);
    }
}

static void scene_close(scene *s)
{
    for (int i = 0; i < THREADS; i++) {
        attune_buffer_destroy(s->o[i]);
        attune_buffer_destroy(s->workspace[i]);
    }
    attune_buffer_destroy(s->answer);
    attune_buffer_destroy(s->lse);
    attune_buffer_destroy(s->captures[0]);
    attune_buffer_destroy(s->captures[1]);
    attune_buffer_destroy(s->q);
    attune_buffer_destroy(s->k);
    attune_buffer_destroy(s->v);
    attune_plan_destroy(s->plan);
    attune_mask_destroy(s->mask);
    attune_expr_destroy(s->allowed);
    attune_expr_destroy(s->score);
    attune_device_destroy(s->device);
    attune_instance_destroy(s->instance);
}

static attune_status scene_run(const scene *s, int slot, attune_queue *queue, attune_completion *completion)
{
    if (s->back)
        return run_backward(s, slot, queue, completion);
    const attune_tensor q = {.buffer = s->q, .dtype = s->dtype, .rank = 4, .size = {1, HEADS, s->q_len, DIM}};
    const attune_tensor k = {.buffer = s->k, .dtype = s->dtype, .rank = 4, .size = {1, KV_HEADS, KEYS, DIM}};
    attune_forward_args args = {
        .struct_size = sizeof args, .q = q, .k = k, .v = k, .o = q, .mask = s->mask, .workspace = s->workspace[slot]};
    args.v.buffer = s->v;
    args.o.buffer = s->o[slot];
    return attune_forward(s->plan, queue, &args, completion);
}

static void wait_for(attune_completion completion)
{
    cr_assert_eq(attune_completion_wait(completion, UINT64_MAX), ATTUNE_OK, "%s", attune_last_error());
}

/* Whether a slot holds the answer; overwrites it then. */
static bool holds(const scene *s, int slot, const unsigned char *answer)
{
    unsigned char *got = malloc(s->o_bytes);
    bool same =
        got && attune_buffer_read(s->o[slot], 0, got, s->o_bytes) == ATTUNE_OK && !memcmp(got, answer, s->o_bytes);
    if (got) {
        memset(got, 0x55, s->o_bytes - s->added);
        memset(got + s->o_bytes - s->added, 0, s->added);
    }
    same = same && attune_buffer_write(s->o[slot], 0, got, s->o_bytes) == ATTUNE_OK;
    free(got);
    return same;
}

/* The output of slot 0, which must differ from what was there. */
static unsigned char *first_answer(scene *s)
{
    unsigned char *before = malloc(s->o_bytes), *answer = malloc(s->o_bytes);
    attune_completion completion;
    cr_assert(before && answer);
    cr_assert_eq(attune_buffer_read(s->o[0], 0, before, s->o_bytes), ATTUNE_OK);
    cr_assert_eq(scene_run(s, 0, attune_device_queue(s->device), &completion), ATTUNE_OK, "%s", attune_last_error());
    wait_for(completion);
    cr_assert_eq(attune_buffer_read(s->o[0], 0, answer, s->o_bytes), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_neq(memcmp(before, answer, s->o_bytes), 0);
    cr_assert(holds(s, 0, answer));
    free(before);
    return answer;
}

static void repeat(attune_dtype dtype, int64_t q_len, bool back)
{
    scene s;
    scene_open(&s, dtype, q_len, back);
    unsigned char *answer = first_answer(&s);
    for (int i = 0; i < 250; i++) {
        attune_completion completion;
        cr_assert_eq(scene_run(&s, i % THREADS, attune_device_queue(s.device), &completion), ATTUNE_OK, "%s",
                     attune_last_error());
        wait_for(completion);
        cr_assert(holds(&s, i % THREADS, answer), "repeat %d", i);
    }
    free(answer);
    scene_close(&s);
}

/* A buffer, to which another one's bytes are moved. */
static attune_buffer *move_away(attune_device *device, attune_buffer *from)
{
    const uint64_t size = attune_buffer_size(from);
    unsigned char *bytes = malloc((size_t)size);
    attune_buffer *to;
    cr_assert_not_null(bytes);
    cr_assert_eq(attune_buffer_create(device, size, &to), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_read(from, 0, bytes, size), ATTUNE_OK);
    cr_assert_eq(attune_buffer_write(to, 0, bytes, size), ATTUNE_OK);
    memset(bytes, 0x55, (size_t)size);
    cr_assert_eq(attune_buffer_write(from, 0, bytes, size), ATTUNE_OK);
    free(bytes);
    return to;
}

static void copy_to(const attune__cuda_device *device, attune_buffer *to, attune_buffer *from, attune__cu_stream stream)
{
    cr_assert_eq(device->driver.copy_on_device(attune__cuda_pointer(to), attune__cuda_pointer(from),
                                               (size_t)attune_buffer_size(to), stream),
                 0);
}

/* Copies that calls on `stream` come after: one in the stream, and one in another that it waits for. */
static void copy_before(const scene *s, attune_buffer *q, attune_buffer *k, attune__cu_stream stream,
                        attune__cu_stream other)
{
    const attune__cuda_device *device = attune__cuda_of(s->device);
    const attune__cuda_driver *driver = &device->driver;
    attune__cu_event fork, join;
    cr_assert_eq(driver->event_create(&fork, CU_EVENT_DISABLE_TIMING), 0);
    cr_assert_eq(driver->event_create(&join, CU_EVENT_DISABLE_TIMING), 0);
    cr_assert_eq(driver->event_record(fork, stream), 0);
    cr_assert_eq(driver->stream_wait(other, fork, 0), 0);
    copy_to(device, s->q, q, stream);
    copy_to(device, s->k, k, other);
    cr_assert_eq(driver->event_record(join, other), 0);
    cr_assert_eq(driver->stream_wait(stream, join, 0), 0);
    driver->event_destroy(fork);
    driver->event_destroy(join);
}

static void capture_in_graph(attune_dtype dtype, int64_t q_len, bool back)
{
    scene s;
    scene_open(&s, dtype, q_len, back);
    const graphs g = graphs_find();
    attune__cuda_device *device = attune__cuda_of(s.device);
    attune__cu_stream stream, other;
    attune_queue *queue;
    void *graph, *made;
    unsigned char *answer = first_answer(&s);
    attune_buffer *const q = move_away(s.device, s.q), *const k = move_away(s.device, s.k);
    attune_completion completion = {NULL, 77};
    cr_assert_eq(attune__cuda_enter(device), ATTUNE_OK);
    cr_assert_eq(device->driver.stream_create(&stream, CU_STREAM_NON_BLOCKING), 0);
    cr_assert_eq(device->driver.stream_create(&other, CU_STREAM_NON_BLOCKING), 0);
    cr_assert_eq(attune_cuda_queue_wrap(s.device, stream, &queue), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(g.begin(stream, 0), 0);
    copy_before(&s, q, k, stream, other);
    for (int slot = 1; slot < 3; slot++)
        cr_assert_eq(scene_run(&s, slot, queue, &completion), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(g.end(stream, &graph), 0);
    cr_assert_eq(completion.value, 0);
    wait_for(completion);
    cr_assert_eq(g.instantiate(&made, graph, 0), 0);
    cr_assert_not(holds(&s, 1, answer), "a capture runs nothing");
    for (int i = 0; i < (int)scaled(20); i++) {
        cr_assert_eq(g.launch(made, stream), 0);
        cr_assert_eq(device->driver.stream_synchronize(stream), 0);
        cr_assert(holds(&s, 1, answer) && holds(&s, 2, answer), "launch %d", i);
    }
    /* Outside a capture the queue goes on as before. */
    cr_assert_eq(scene_run(&s, 3, queue, &completion), ATTUNE_OK);
    wait_for(completion);
    cr_assert(holds(&s, 3, answer));
    g.destroy_made(made);
    g.destroy(graph);
    attune_cuda_queue_destroy(queue);
    device->driver.stream_destroy(stream);
    device->driver.stream_destroy(other);
    attune_buffer_destroy(q);
    attune_buffer_destroy(k);
    attune__cuda_leave(device);
    free(answer);
    scene_close(&s);
}

typedef struct worker {
    const scene *scene;
    const unsigned char *answer;
    attune_queue *queue;
    int slot, failures;
} worker;

static void *run_worker(void *user)
{
    worker *w = user;
    for (int i = 0; i < 50; i++) {
        attune_completion completion;
        const attune_status status = scene_run(w->scene, w->slot, w->queue, &completion);
        if (status != ATTUNE_OK || attune_completion_wait(completion, UINT64_MAX) != ATTUNE_OK ||
            !holds(w->scene, w->slot, w->answer))
            w->failures++;
    }
    return NULL;
}

/* Threads, each on a stream of its own or all on the device's. */
static void run_threads(const scene *s, const unsigned char *answer, bool apart)
{
    attune__cuda_device *device = attune__cuda_of(s->device);
    attune__cu_stream streams[THREADS] = {NULL};
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){s, answer, attune_device_queue(s->device), i, 0};
        if (apart) {
            cr_assert_eq(attune__cuda_enter(device), ATTUNE_OK);
            cr_assert_eq(device->driver.stream_create(&streams[i], CU_STREAM_NON_BLOCKING), 0);
            attune__cuda_leave(device);
            cr_assert_eq(attune_cuda_queue_wrap(s->device, streams[i], &workers[i].queue), ATTUNE_OK);
        }
        (void)holds(s, i, answer); /* overwrites it */
    }
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, run_worker, &workers[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        cr_expect_eq(workers[i].failures, 0, "thread %d: %d", i, workers[i].failures);
        attune_cuda_queue_destroy(workers[i].queue);
        if (streams[i]) {
            cr_assert_eq(attune__cuda_enter(device), ATTUNE_OK);
            device->driver.stream_destroy(streams[i]);
            attune__cuda_leave(device);
        }
    }
}

static void do_not_mix(attune_dtype dtype, int64_t q_len, bool back)
{
    scene s;
    scene_open(&s, dtype, q_len, back);
    unsigned char *answer = first_answer(&s);
    run_threads(&s, answer, true);
    run_threads(&s, answer, false);
    free(answer);
    scene_close(&s);
}

/* A process for each plan: most of the time is its kernels' compilation. */
#define PLAN(name, dtype, q_len, back)                                                                                 \
    Test(cuda_streams, repeats_are_equal_bit_by_bit_##name)                                                            \
    {                                                                                                                  \
        repeat(dtype, q_len, back);                                                                                    \
    }                                                                                                                  \
    Test(cuda_streams, a_call_is_captured_in_a_graph_##name)                                                           \
    {                                                                                                                  \
        capture_in_graph(dtype, q_len, back);                                                                          \
    }                                                                                                                  \
    Test(cuda_streams, streams_and_threads_do_not_mix_##name)                                                          \
    {                                                                                                                  \
        do_not_mix(dtype, q_len, back);                                                                                \
    }

PLAN(bf16, ATTUNE_BF16, 700, false)
PLAN(f16, ATTUNE_F16, 333, false)
PLAN(f32, ATTUNE_F32, 300, false)
PLAN(decode, ATTUNE_BF16, 1, false)
PLAN(decode_block, ATTUNE_F16, 8, false)
PLAN(backward_bf16, ATTUNE_BF16, 300, true)
PLAN(backward_f32, ATTUNE_F32, 150, true)

/* Measured peaks are neither 0 nor a thousand times what a GPU has; under a sanitizer they are low. */
Test(cuda_streams, peaks_are_measured)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, "cuda");
    const attune_dtype dtypes[] = {ATTUNE_F16, ATTUNE_BF16, ATTUNE_F32};
    for (int i = 0; i < 3; i++) {
        double flops = 0, bandwidth = 0;
        cr_assert_eq(attune_device_measure(device, dtypes[i], &flops, &bandwidth), ATTUNE_OK, "%s",
                     attune_last_error());
        cr_log_info("%s: %.1f TFLOP/s, %.0f GB/s", attune_dtype_string(dtypes[i]), flops * 1e-12, bandwidth * 1e-9);
        cr_assert(flops > 0 && flops < 1e16, "%g", flops);
        cr_assert(bandwidth > 0 && bandwidth < 2e13, "%g", bandwidth);
    }
    cr_assert_eq(attune_device_measure(device, ATTUNE_F64, &(double){0}, NULL), ATTUNE_UNSUPPORTED);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}
