/* SPDX-License-Identifier: MIT */
/*
 * Causal attention with a soft-cap within packed documents: captures, grouped queries, the caller's memory.
 *
 *     cc documents.c $(pkg-config --cflags --libs attune) && ./a.out
 */
#include <attune/attune.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                                                      \
    if ((call) != ATTUNE_OK)                                                                                           \
    return fprintf(stderr, "%s\n", attune_last_error()), 1

enum { HEADS = 8, KV_HEADS = 2, LENGTH = 1000, DIM = 64 };
static float q[HEADS * LENGTH * DIM], k[KV_HEADS * LENGTH * DIM], v[KV_HEADS * LENGTH * DIM], o[HEADS * LENGTH * DIM];
static int32_t doc[LENGTH];

static attune_tensor tensor(attune_buffer *buffer, int heads)
{
    attune_tensor t = {.buffer = buffer, .dtype = ATTUNE_F32, .rank = 4, .size = {1, heads, LENGTH, DIM}};
    return t;
}

int main(void)
{
    for (int i = 0; i < LENGTH; i++)
        doc[i] = i / 300;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        k[i] = v[i] = (float)rand() / (float)RAND_MAX - 0.5f;

    attune_instance *instance;
    attune_device *device;
    TRY(attune_instance_create(NULL, &instance));
    TRY(attune_device_open(instance, "cpu", &device));

    attune_symbol names[] = {{"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1}};
    attune_expr *allowed, *cap;
    TRY(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv && doc[q] == doc[kv]", names, 1, &allowed));
    TRY(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "50 * tanh(score / 50)", NULL, 0, &cap));

    attune_mask *mask;
    attune_mask_desc blocks = {.struct_size = sizeof blocks, .q_len = LENGTH, .kv_len = LENGTH};
    attune_host_capture ids = {"doc", {.data = doc, .dtype = ATTUNE_I32, .rank = 1, .size = {LENGTH}}};
    TRY(attune_mask_create(instance, &blocks, allowed, &ids, 1, NULL, 0, &mask));
    TRY(attune_mask_upload(mask, device));

    attune_plan *plan;
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = ATTUNE_F32,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = LENGTH,
                              .score = cap};
    TRY(attune_problem_set_mask(&problem, mask));
    TRY(attune_plan_create(device, &problem, NULL, &plan));

    attune_buffer *bq, *bk, *bv, *bo, *workspace;
    TRY(attune_buffer_wrap(device, q, sizeof q, &bq));
    TRY(attune_buffer_wrap(device, k, sizeof k, &bk));
    TRY(attune_buffer_wrap(device, v, sizeof v, &bv));
    TRY(attune_buffer_wrap(device, o, sizeof o, &bo));
    TRY(attune_buffer_create(device, attune_plan_workspace_size(plan) + 1, &workspace));

    attune_forward_args args = {.struct_size = sizeof args,
                                .q = tensor(bq, HEADS),
                                .k = tensor(bk, KV_HEADS),
                                .v = tensor(bv, KV_HEADS),
                                .o = tensor(bo, HEADS),
                                .mask = mask,
                                .workspace = workspace};
    attune_completion done;
    TRY(attune_forward(plan, attune_device_queue(device), &args, &done)); /* launches only; call it for every step */
    TRY(attune_completion_wait(done, UINT64_MAX));
    printf("o[0] = %g, v[0] = %g: the first row sees only itself\n", (double)o[0], (double)v[0]);

    attune_buffer *buffers[] = {bq, bk, bv, bo, workspace};
    for (int i = 0; i < 5; i++)
        attune_buffer_destroy(buffers[i]);
    attune_plan_destroy(plan);
    attune_mask_destroy(mask);
    attune_expr_destroy(allowed);
    attune_expr_destroy(cap);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    return o[0] != v[0];
}
