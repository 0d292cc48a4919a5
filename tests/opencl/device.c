/* SPDX-License-Identifier: MIT */
/* On the first OpenCL device: calls whose workgroups run on several threads, and calls of several threads. */
#include <attune/attune.h>
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/devices.h"

enum { HEADS = 4, LENGTH = 128, DIM = 64, ELEMENTS = HEADS * LENGTH * DIM, ROUNDS = 200 };
enum { Q, K, V, O, D_O, D_Q, D_K, D_V, BUFFERS };

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s", attune_last_error())

typedef struct attention {
    attune_expr *expr;
    attune_mask *mask;
    attune_plan *forward, *backward;
    attune_buffer *buffers[BUFFERS], *lse, *workspace;
    attune_backward_args args;
} attention;

/* Halves of random sign below 1. */
static void draw(uint16_t *to, uint32_t seed)
{
    for (int i = 0; i < ELEMENTS; i++) {
        seed = seed * 1664525 + 1013904223;
        to[i] = (uint16_t)(0x3000 + (seed >> 16 & 0x8bff));
    }
}

static attune_tensor tensor_of(const attention *t, int buffer)
{
    return (attune_tensor){
        .buffer = t->buffers[buffer], .dtype = ATTUNE_F16, .rank = 4, .size = {1, HEADS, LENGTH, DIM}};
}

static void attention_create(attention *t, attune_instance *instance, attune_device *device)
{
    uint16_t data[ELEMENTS];
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = LENGTH, .kv_len = LENGTH};
    *t = (attention){.mask = NULL};
    OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv && q - kv < 32", NULL, 0, &t->expr));
    OK(attune_mask_create(instance, &desc, t->expr, NULL, 0, NULL, 0, &t->mask));
    OK(attune_mask_upload(t->mask, device));
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = ATTUNE_F16,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .q_len = LENGTH,
                              .lse = true};
    OK(attune_problem_set_mask(&problem, t->mask));
    OK(attune_plan_create(device, &problem, NULL, &t->forward));
    problem.direction = ATTUNE_BACKWARD;
    OK(attune_plan_create(device, &problem, NULL, &t->backward));
    for (int i = 0; i < BUFFERS; i++) {
        draw(data, (uint32_t)test_seed() + (uint32_t)i);
        OK(attune_buffer_create(device, sizeof data, &t->buffers[i]));
        OK(attune_buffer_write(t->buffers[i], 0, data, sizeof data));
    }
    OK(attune_buffer_create(device, HEADS * LENGTH * sizeof(float), &t->lse));
    OK(attune_buffer_create(device, attune_plan_workspace_size(t->backward), &t->workspace));
    t->args = (attune_backward_args){
        .struct_size = sizeof t->args,
        .q = tensor_of(t, Q),
        .k = tensor_of(t, K),
        .v = tensor_of(t, V),
        .o = tensor_of(t, O),
        .lse = {.buffer = t->lse, .dtype = ATTUNE_F32, .rank = 3, .size = {1, HEADS, LENGTH}},
        .d_o = tensor_of(t, D_O),
        .d_q = tensor_of(t, D_Q),
        .d_k = tensor_of(t, D_K),
        .d_v = tensor_of(t, D_V),
        .workspace = t->workspace,
        .mask = t->mask,
    };
    attune_completion done;
    attune_buffer *partials = NULL;
    if (attune_plan_workspace_size(t->forward))
        OK(attune_buffer_create(device, attune_plan_workspace_size(t->forward), &partials));
    const attune_forward_args args = {.struct_size = sizeof args,
                                      .q = t->args.q,
                                      .k = t->args.k,
                                      .v = t->args.v,
                                      .o = t->args.o,
                                      .lse = t->args.lse,
                                      .workspace = partials,
                                      .mask = t->mask};
    OK(attune_forward(t->forward, attune_device_queue(device), &args, &done));
    OK(attune_completion_wait(done, UINT64_MAX));
    attune_buffer_destroy(partials);
}

static void attention_destroy(attention *t)
{
    for (int i = 0; i < BUFFERS; i++)
        attune_buffer_destroy(t->buffers[i]);
    attune_buffer_destroy(t->lse);
    attune_buffer_destroy(t->workspace);
    attune_plan_destroy(t->forward);
    attune_plan_destroy(t->backward);
    attune_mask_destroy(t->mask);
    attune_expr_destroy(t->expr);
}

/* PoCL 3.1 shares local memory between its threads, where a function that has a pointer to it is not inlined. */
Test(opencl_device, gradients_are_the_same_each_time)
{
    attune_instance *instance;
    attention t;
    OK(attune_instance_create(NULL, &instance));
    attune_device *device = device_or_skip(instance, "opencl");
    attention_create(&t, instance, device);
    static uint16_t first[BUFFERS][ELEMENTS], again[ELEMENTS];
    for (int round = 0; round < ROUNDS; round++) {
        attune_completion done;
        OK(attune_backward(t.backward, attune_device_queue(device), &t.args, &done));
        OK(attune_completion_wait(done, UINT64_MAX));
        for (int i = D_Q; i <= D_V; i++) {
            OK(attune_buffer_read(t.buffers[i], 0, round ? again : first[i], sizeof again));
            cr_assert(!round || !memcmp(again, first[i], sizeof again), "round %d, tensor %d", round, i - D_Q);
        }
    }
    attention_destroy(&t);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(opencl_device, measures_peaks)
{
    attune_instance *instance;
    double flops = 0, bandwidth = 0, half = 0;
    OK(attune_instance_create(NULL, &instance));
    attune_device *device = device_or_skip(instance, "opencl");
    OK(attune_device_measure(device, ATTUNE_F32, &flops, &bandwidth));
    cr_expect_neq(flops, bandwidth, "one of them twice");
    cr_log_info("f32 %.1f GFLOP/s, copy %.1f GB/s", flops * 1e-9, bandwidth * 1e-9);
    /* Any processor of this century, and none of the next. */
    cr_expect(flops > 1e8 && flops < 1e16);
    cr_expect(bandwidth > 1e8 && bandwidth < 1e14);
    OK(attune_device_measure(device, ATTUNE_F16, &half, NULL));
    cr_expect(half > 1e8 && half < 1e16);
    OK(attune_device_measure(device, ATTUNE_BF16, NULL, &bandwidth));
    cr_expect_eq(attune_device_measure(device, ATTUNE_F64, &flops, NULL), ATTUNE_UNSUPPORTED);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* The launch without rows, by which a plan compiles its kernels, divides by nothing that it does not have. OpenCL
 * leaves the result of a division by 0 open, and PoCL's handler of the signal hides it from a process that has none
 * itself. */
Test(opencl_device, gradient_of_a_batch)
{
    static const attune_symbol symbols[] = {{"of_key", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BF16, 1},
                                            {"of_batch", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 1}};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    attune_instance *instance;
    attune_expr *score, *mask;
    OK(attune_instance_create(&desc, &instance));
    attune_device *device = device_or_skip(instance, "opencl");
    OK(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score + of_key[kv] + of_batch[b] % 8.0", symbols, 2, &score));
    OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, "max(kv, 38) >= kv_len / 0", NULL, 0, &mask));
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .direction = ATTUNE_BACKWARD,
                                    .dtype = ATTUNE_F32,
                                    .head_dim = 96,
                                    .q_len = 1,
                                    .kv_len = 118,
                                    .score = score,
                                    .mask = mask,
                                    .block_mask = true,
                                    .capture_gradient_elements = 27};
    const attune_kernel_options options = {.struct_size = sizeof options, .any = {.kernel = "opencl_portable"}};
    attune_plan *plan;
    cr_assert(signal(SIGFPE, SIG_DFL) != SIG_ERR);
    OK(attune_plan_create(device, &problem, &options, &plan));
    attune_plan_destroy(plan);
    attune_expr_destroy(score);
    attune_expr_destroy(mask);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* Each thread's calls have more and more workgroups of the same kernel, and a cache that has no program yet. */
typedef struct grower {
    const char *folder;
    char error[512];
} grower;

static void *grow(void *of)
{
    grower *g = of;
    uint16_t data[ELEMENTS];
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = g->folder};
    draw(data, (uint32_t)test_seed());
    attune_instance *instance;
    attune_device *device = NULL;
    attune_buffer *buffer = NULL, *workspace = NULL;
    attune_status status = attune_instance_create(&desc, &instance);
    if (status == ATTUNE_OK)
        status = attune_device_open(instance, "opencl", &device);
    if (status == ATTUNE_OK)
        status = attune_buffer_create(device, 2 * sizeof data, &buffer);
    if (status == ATTUNE_OK)
        status = attune_buffer_write(buffer, 0, data, sizeof data);
    for (int64_t length = 8; length <= LENGTH && status == ATTUNE_OK; length += 8) {
        const attune_problem problem = {
            .struct_size = sizeof problem, .dtype = ATTUNE_F16, .head_dim = DIM, .heads = HEADS, .q_len = length};
        const attune_tensor tensor = {
            .buffer = buffer, .dtype = ATTUNE_F16, .rank = 4, .size = {1, HEADS, length, DIM}};
        attune_forward_args args = {.struct_size = sizeof args, .q = tensor, .k = tensor, .v = tensor, .o = tensor};
        args.o.offset = sizeof data;
        attune_completion done;
        attune_plan *plan = NULL;
        status = attune_plan_create(device, &problem, NULL, &plan);
        if (status == ATTUNE_OK && attune_plan_workspace_size(plan))
            status = attune_buffer_create(device, attune_plan_workspace_size(plan), &workspace);
        args.workspace = workspace;
        if (status == ATTUNE_OK)
            status = attune_forward(plan, attune_device_queue(device), &args, &done);
        if (status == ATTUNE_OK)
            status = attune_completion_wait(done, UINT64_MAX);
        attune_buffer_destroy(workspace);
        workspace = NULL;
        attune_plan_destroy(plan);
    }
    attune_buffer_destroy(buffer);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    if (status != ATTUNE_OK)
        snprintf(g->error, sizeof g->error, "%s", attune_last_error());
    return NULL;
}

/* PoCL before version 6 ended the process here (attune__opencl_launch has the reason). */
Test(opencl_device, kernels_of_several_queues)
{
    char folder[] = "/tmp/attune-opencl-XXXXXX", command[64];
    grower growers[3];
    pthread_t threads[3];
    attune_instance *instance;
    OK(attune_instance_create(NULL, &instance));
    attune_device_destroy(device_or_skip(instance, "opencl"));
    attune_instance_destroy(instance);
    cr_assert_not_null(mkdtemp(folder));
    for (int i = 0; i < 3; i++) {
        growers[i] = (grower){.folder = folder};
        cr_assert_eq(pthread_create(&threads[i], NULL, grow, &growers[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
        cr_expect_str_empty(growers[i].error, "thread %d: %s", i, growers[i].error);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_expect_eq(system(command), 0); /* NOLINT(cert-env33-c): a folder of our own */
}
