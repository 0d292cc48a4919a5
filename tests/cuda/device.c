/* SPDX-License-Identifier: MIT */
/* On a GPU: what is captured in a graph gives what a call gives, and the same call the same bits each time. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <attune/attune.h>
#include <attune/cuda.h>

#include "bench/array.h"
#include "cuda/driver.h"
#include "support/devices.h"

#define HEADS 6
#define ROWS  700

typedef struct setting {
    const char *mask, *score;
    uint32_t head_dim;
    attune_dtype dtype;
} setting;

static const setting settings[] = {
    {NULL, NULL, 64, ATTUNE_F16},
    {"q >= kv", NULL, 128, ATTUNE_BF16},
    {"q >= kv && q - kv < 200", "50.0 * tanh(score / 50.0)", 128, ATTUNE_F16},
    {"(q + kv) % 3 != 0", NULL, 256, ATTUNE_BF16},
    {"q >= kv", NULL, 64, ATTUNE_F32},
};
#define SETTINGS (sizeof settings / sizeof settings[0])

typedef struct bench {
    attune_device *device;
    attune_expr *mask_expr, *score;
    attune_mask *mask;
    attune_plan *plan;
    attune_buffer *buffer;
    uint64_t bytes; /* of one tensor */
    attune_forward_args args;
} bench;

static void bench_open(attune_instance *instance, attune_device *device, const setting *s, bench *b)
{
    *b = (bench){.device = device};
    attune_problem problem = {
        .struct_size = sizeof problem, .dtype = s->dtype, .head_dim = s->head_dim, .heads = HEADS, .q_len = ROWS};
    if (s->mask) {
        const attune_mask_desc desc = {
            .struct_size = sizeof desc, .heads = HEADS, .kv_heads = HEADS, .q_len = ROWS, .kv_len = ROWS};
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, s->mask, NULL, 0, &b->mask_expr), ATTUNE_OK);
        cr_assert_eq(attune_mask_create(instance, &desc, b->mask_expr, NULL, 0, NULL, 0, &b->mask), ATTUNE_OK);
        cr_assert_eq(attune_mask_upload(b->mask, device), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune_problem_set_mask(&problem, b->mask), ATTUNE_OK);
    }
    if (s->score)
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE, s->score, NULL, 0, &b->score), ATTUNE_OK);
    problem.score = b->score;
    const attune_kernel_options options = {.struct_size = sizeof options,
                                           .fwd = {.force_use_flex_attention = ATTUNE_ON}};
    cr_assert_eq(attune_plan_create(device, &problem, &options, &b->plan), ATTUNE_OK, "%s", attune_last_error());
    b->bytes = (uint64_t)HEADS * ROWS * s->head_dim * attune_dtype_size(s->dtype);
    cr_assert_eq(attune_buffer_create(device, 4 * b->bytes, &b->buffer), ATTUNE_OK);
    attune_tensor tensors[4];
    random_state r = {test_seed()};
    for (int i = 0; i < 4; i++) {
        tensors[i] = (attune_tensor){.buffer = b->buffer,
                                     .offset = (uint64_t)i * b->bytes,
                                     .dtype = s->dtype,
                                     .rank = 4,
                                     .size = {1, HEADS, ROWS, s->head_dim}};
        array data;
        failure why;
        cr_assert(array_create(&data, s->dtype, 4, tensors[i].size, &why));
        array_fill_normal(&data, &r, 1);
        cr_assert_eq(attune_buffer_write(b->buffer, tensors[i].offset, data.data, b->bytes), ATTUNE_OK);
        array_free(&data);
    }
    b->args = (attune_forward_args){.struct_size = sizeof b->args,
                                    .q = tensors[0],
                                    .k = tensors[1],
                                    .v = tensors[2],
                                    .o = tensors[3],
                                    .mask = b->mask};
}

static void bench_close(bench *b)
{
    attune_plan_destroy(b->plan);
    attune_mask_destroy(b->mask);
    attune_expr_destroy(b->mask_expr);
    attune_expr_destroy(b->score);
    attune_buffer_destroy(b->buffer);
}

/* Spoils the output, so that what is read was written since. */
static void spoil(bench *b, void *memory)
{
    memset(memory, 0xff, b->bytes);
    cr_assert_eq(attune_buffer_write(b->buffer, 3 * b->bytes, memory, b->bytes), ATTUNE_OK);
}

static void run(bench *b, void *output)
{
    attune_completion completion;
    spoil(b, output);
    cr_assert_eq(attune_forward(b->plan, attune_device_queue(b->device), &b->args, &completion), ATTUNE_OK, "%s",
                 attune_last_error());
    cr_assert_eq(attune_completion_wait(completion, UINT64_MAX), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_read(b->buffer, 3 * b->bytes, output, b->bytes), ATTUNE_OK);
}

Test(cuda_device, the_same_bits_each_time)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, "cuda");
    for (size_t i = 0; i < SETTINGS; i++) {
        bench b;
        bench_open(instance, device, &settings[i], &b);
        void *first = malloc(b.bytes), *again = malloc(b.bytes);
        cr_assert(first && again);
        run(&b, first);
        for (uint64_t j = 0; j < scaled(250); j++) {
            run(&b, again);
            cr_assert_eq(memcmp(first, again, b.bytes), 0, "setting %zu differs in repeat %llu", i,
                         (unsigned long long)j);
        }
        free(first);
        free(again);
        bench_close(&b);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* The driver's functions for graphs, which attune itself does not need. */
typedef struct graphs {
    int (*context_retain)(attune__cu_context *, int);
    int (*context_push)(attune__cu_context);
    int (*stream_create)(attune__cu_stream *, unsigned);
    int (*stream_destroy)(attune__cu_stream);
    int (*synchronize)(attune__cu_stream);
    int (*begin)(attune__cu_stream, int);
    int (*end)(attune__cu_stream, void **);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*launch)(void *, attune__cu_stream);
} graphs;

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    cr_assert_not_null(symbol, "%s", name);
    return symbol;
}

static graphs open_graphs(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    graphs g;
    void *found[] = {find(library, "cuDevicePrimaryCtxRetain"),
                     find(library, "cuCtxPushCurrent_v2"),
                     find(library, "cuStreamCreate"),
                     find(library, "cuStreamDestroy_v2"),
                     find(library, "cuStreamSynchronize"),
                     find(library, "cuStreamBeginCapture_v2"),
                     find(library, "cuStreamEndCapture"),
                     find(library, "cuGraphInstantiateWithFlags"),
                     find(library, "cuGraphLaunch")};
    cr_assert_eq(sizeof found, sizeof g);
    memcpy(&g, found, sizeof g);
    return g;
}

Test(cuda_device, a_graph_gives_what_a_call_gives)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, "cuda");
    const graphs g = open_graphs();
    attune__cu_context context;
    attune__cu_stream stream;
    attune_queue *queue;
    cr_assert(!g.context_retain(&context, 0) && !g.context_push(context) && !g.stream_create(&stream, 1));
    cr_assert_eq(attune_cuda_queue_wrap(device, stream, &queue), ATTUNE_OK, "%s", attune_last_error());
    for (size_t i = 0; i < SETTINGS; i++) {
        bench b;
        bench_open(instance, device, &settings[i], &b);
        void *call = malloc(b.bytes), *replay = malloc(b.bytes), *graph, *exec;
        cr_assert(call && replay);
        run(&b, call);
        attune_completion completion = {0};
        cr_assert_eq(g.begin(stream, 1), 0);
        cr_assert_eq(attune_forward(b.plan, queue, &b.args, &completion), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(g.end(stream, &graph), 0);
        cr_assert_eq(completion.value, 0);
        cr_assert_eq(g.instantiate(&exec, graph, 0), 0);
        for (int j = 0; j < 3; j++) {
            spoil(&b, replay);
            /* The graph on one stream, a call on another: neither disturbs the other's order of tiles. */
            cr_assert_eq(g.launch(exec, stream), 0);
            cr_assert_eq(attune_forward(b.plan, queue, &b.args, &completion), ATTUNE_OK, "%s", attune_last_error());
            cr_assert_eq(g.synchronize(stream), 0);
            cr_assert_eq(attune_buffer_read(b.buffer, 3 * b.bytes, replay, b.bytes), ATTUNE_OK);
            cr_assert_eq(memcmp(call, replay, b.bytes), 0, "setting %zu", i);
            spoil(&b, replay);
            cr_assert(!g.launch(exec, stream) && !g.synchronize(stream));
            cr_assert_eq(attune_buffer_read(b.buffer, 3 * b.bytes, replay, b.bytes), ATTUNE_OK);
            cr_assert_eq(memcmp(call, replay, b.bytes), 0, "setting %zu", i);
        }
        free(call);
        free(replay);
        bench_close(&b);
    }
    attune_cuda_queue_destroy(queue);
    g.stream_destroy(stream);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}
