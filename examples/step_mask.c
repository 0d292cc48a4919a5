/* SPDX-License-Identifier: MIT */
/*
 * Attention with the mask of an engine that has only additive masks: a tensor of 0 and negative infinity on the device,
 * computed in each step. Three methods, timed and compared:
 *
 *     lists      the mask as an expression, whose block mask is built once: the baseline
 *     tensor     a block mask computed from the tensor, updated in each step
 *     capture    the score expression adds the tensor, without a block mask
 *
 *     cc step_mask.c $(pkg-config --cflags --libs attune) && ./a.out cpu 2048
 */
#include <attune/attune.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRY(call)                                                                                                      \
    if ((call) != ATTUNE_OK)                                                                                           \
    return fprintf(stderr, "%s\n", attune_last_error()), 1

enum { HEADS = 16, DIM = 128, WAYS = 3, STEPS = 10 };

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int smaller(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    const char *id = argc > 1 ? argv[1] : "cpu";
    const int64_t length = argc > 2 ? atoll(argv[2]) : 1024;
    if (length < 1 || length > 32768)
        return fprintf(stderr, "usage: %s [DEVICE [LENGTH]], with a LENGTH from 1 to 32768\n", argv[0]), 2;
    const size_t elements = (size_t)(HEADS * length * DIM), pairs = (size_t)(length * length);
    uint16_t *values = malloc(3 * elements * sizeof *values), *additive = malloc(pairs * sizeof *additive);
    uint16_t *out[WAYS] = {malloc(elements * sizeof **out), malloc(elements * sizeof **out),
                           malloc(elements * sizeof **out)};
    if (!values || !additive || !out[0] || !out[1] || !out[2])
        return fprintf(stderr, "no memory\n"), 1;
    for (size_t i = 0; i < 3 * elements; i++) /* of either sign, from 1/4 to 2, in f16 */
        values[i] = (uint16_t)((rand() & 0x8000) | 0x3400 | (rand() & 0x0bff));
    for (int64_t q = 0; q < length; q++)
        for (int64_t kv = 0; kv < length; kv++)
            additive[q * length + kv] = q >= kv ? 0 : 0xfc00;

    attune_instance *instance;
    attune_device *device;
    TRY(attune_instance_create(NULL, &instance));
    TRY(attune_device_open(instance, id, &device));
    attune_queue *queue = attune_device_queue(device);

    /* q, k, v, o and the tensor, in the engine's memory. */
    attune_buffer *buffers[5];
    attune_tensor t[4], bias;
    for (int i = 0; i < 4; i++) {
        TRY(attune_buffer_create(device, elements * sizeof *values, &buffers[i]));
        t[i] = (attune_tensor){.buffer = buffers[i], .dtype = ATTUNE_F16, .rank = 4, .size = {1, HEADS, length, DIM}};
        if (i < 3)
            TRY(attune_buffer_write(buffers[i], 0, values + (size_t)i * elements, elements * sizeof *values));
    }
    TRY(attune_buffer_create(device, pairs * sizeof *additive, &buffers[4]));
    TRY(attune_buffer_write(buffers[4], 0, additive, pairs * sizeof *additive));
    bias = (attune_tensor){.buffer = buffers[4], .dtype = ATTUNE_F16, .rank = 4, .size = {1, 1, length, length}};

    attune_expr *causal, *add;
    attune_mask *masks[WAYS] = {NULL};
    const attune_symbol symbol = {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 4};
    const attune_mask_desc desc = {.struct_size = sizeof desc, .heads = HEADS, .q_len = length, .kv_len = length};
    TRY(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv", NULL, 0, &causal));
    TRY(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score + bias[0, 0, q, kv]", &symbol, 1, &add));
    TRY(attune_mask_create(instance, &desc, causal, NULL, 0, NULL, 0, &masks[0]));
    TRY(attune_mask_upload(masks[0], device));
    TRY(attune_mask_create_tensor(device, &desc, ATTUNE_F16, 1, 1, &masks[1]));

    static const char *const names[WAYS] = {"lists", "tensor", "capture"};
    double base = 0, worst = 0;
    for (int way = 0; way < WAYS; way++) {
        attune_problem problem = {.struct_size = sizeof problem,
                                  .dtype = ATTUNE_F16,
                                  .head_dim = DIM,
                                  .heads = HEADS,
                                  .q_len = length,
                                  .score = way == 2 ? add : NULL};
        attune_plan *plan;
        attune_buffer *workspace = NULL;
        if (masks[way])
            TRY(attune_problem_set_mask(&problem, masks[way]));
        TRY(attune_plan_create(device, &problem, NULL, &plan));
        if (attune_plan_workspace_size(plan))
            TRY(attune_buffer_create(device, attune_plan_workspace_size(plan), &workspace));
        const attune_capture capture = {"bias", bias};
        const attune_forward_args args = {.struct_size = sizeof args,
                                          .q = t[0],
                                          .k = t[1],
                                          .v = t[2],
                                          .o = t[3],
                                          .mask = masks[way],
                                          .captures = &capture,
                                          .capture_count = way == 2,
                                          .workspace = workspace};
        double seconds[STEPS];
        for (int step = -1; step < STEPS; step++) { /* the first step is not timed */
            attune_completion done;
            const double begin = now();
            if (way == 1)
                TRY(attune_mask_update(masks[1], queue, &bias, NULL));
            TRY(attune_forward(plan, queue, &args, &done));
            TRY(attune_completion_wait(done, UINT64_MAX));
            if (step >= 0)
                seconds[step] = now() - begin;
        }
        qsort(seconds, STEPS, sizeof *seconds, smaller);
        base = way ? base : seconds[STEPS / 2];
        printf("%-8s %8.3f ms, %.2f of lists\n", names[way], seconds[STEPS / 2] * 1e3, seconds[STEPS / 2] / base);
        TRY(attune_buffer_read(buffers[3], 0, out[way], elements * sizeof **out));
        attune_plan_destroy(plan);
        attune_buffer_destroy(workspace);
    }

    /* The kernels round in different orders, which is visible in f16. */
    for (int way = 1; way < WAYS; way++)
        for (size_t i = 0; i < elements; i++) {
            const int a = out[0][i] & 0x7fff, b = out[way][i] & 0x7fff;
            const bool same_sign = (out[0][i] ^ out[way][i]) < 0x8000;
            const double distance = (same_sign ? abs(a - b) : a + b) / 1024.0;
            worst = (a > 0x2400 && distance > worst) ? distance : worst;
        }
    printf("largest difference %.1e of a value\n", worst);

    for (int i = 0; i < 5; i++)
        attune_buffer_destroy(buffers[i]);
    attune_mask_destroy(masks[0]);
    attune_mask_destroy(masks[1]);
    attune_expr_destroy(causal);
    attune_expr_destroy(add);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    for (int i = 0; i < WAYS; i++)
        free(out[i]);
    free(values);
    free(additive);
    return worst > 0.02;
}
