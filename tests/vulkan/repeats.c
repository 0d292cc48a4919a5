/* SPDX-License-Identifier: MIT */
/* The backward pass again and again: the same bits, those of captures' gradients too, which many workgroups add to. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "support/devices.h"
#include "support/random_expr.h"

#define HEADS    4
#define KV_HEADS 2
#define LENGTH   70
#define DIM      16
#define BIAS     (2 * LENGTH - 1)

enum { Q, K, V, O, LSE, D_O, D_Q, D_K, D_V, D_BIAS, D_SLOPE, BIASES, SLOPES, TENSORS };

typedef struct room {
    attune_instance *instance;
    attune_device *device;
    attune_expr *mask_expr, *score;
    attune_mask *mask;
    attune_plan *forward, *backward;
    attune_buffer *workspace;
    attune_tensor t[TENSORS];
} room;

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s", attune_last_error())

static uint64_t bytes_of(const attune_tensor *t)
{
    uint64_t bytes = attune_dtype_size(t->dtype);
    for (uint32_t i = 0; i < t->rank; i++)
        bytes *= (uint64_t)t->size[i];
    return bytes;
}

static void fill(room *r, int which, uint64_t *state)
{
    float *values = calloc(1, bytes_of(&r->t[which]));
    cr_assert(values);
    for (uint64_t i = 0; state && i < bytes_of(&r->t[which]) / sizeof *values; i++)
        values[i] = (float)random_expr_between(state, -1000, 1000) / 700;
    OK(attune_buffer_write(r->t[which].buffer, 0, values, bytes_of(&r->t[which])));
    free(values);
}

static void make_tensors(room *r)
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

static void open_room(room *r)
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
}

static void close_room(room *r)
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

Test(vulkan_repeats, gradients_are_equal_bit_by_bit)
{
    room r = {0};
    open_room(&r);
    attune_queue *queue = attune_device_queue(r.device);
    const attune_capture captures[] = {{"bias", r.t[BIASES]}, {"slope", r.t[SLOPES]}};
    const attune_capture gradients[] = {{"bias", r.t[D_BIAS]}, {"slope", r.t[D_SLOPE]}};
    const attune_forward_args forward = {.struct_size = sizeof forward,
                                         .q = r.t[Q],
                                         .k = r.t[K],
                                         .v = r.t[V],
                                         .o = r.t[O],
                                         .lse = r.t[LSE],
                                         .mask = r.mask,
                                         .captures = captures,
                                         .capture_count = 2,
                                         .workspace = r.workspace};
    const attune_backward_args backward = {.struct_size = sizeof backward,
                                           .q = r.t[Q],
                                           .k = r.t[K],
                                           .v = r.t[V],
                                           .o = r.t[O],
                                           .lse = r.t[LSE],
                                           .d_o = r.t[D_O],
                                           .d_q = r.t[D_Q],
                                           .d_k = r.t[D_K],
                                           .d_v = r.t[D_V],
                                           .mask = r.mask,
                                           .captures = captures,
                                           .capture_count = 2,
                                           .capture_gradients = gradients,
                                           .capture_gradient_count = 2,
                                           .workspace = r.workspace};
    char *first[TENSORS] = {NULL}, *again[TENSORS] = {NULL};
    OK(attune_forward(r.forward, queue, &forward, NULL));
    for (int i = 0; i < 250; i++) {
        attune_completion completion;
        fill(&r, D_BIAS, NULL);
        fill(&r, D_SLOPE, NULL);
        OK(attune_backward(r.backward, queue, &backward, &completion));
        OK(attune_completion_wait(completion, UINT64_MAX));
        for (int t = D_Q; t <= D_SLOPE; t++) {
            const uint64_t bytes = bytes_of(&r.t[t]);
            char **to = i ? &again[t] : &first[t];
            if (!*to)
                *to = calloc(1, bytes);
            cr_assert(*to);
            OK(attune_buffer_read(r.t[t].buffer, 0, *to, bytes));
            cr_assert(!i || !memcmp(first[t], again[t], bytes), "output %d of run %d has other bits", t, i);
        }
    }
    for (int t = D_Q; t <= D_SLOPE; t++) {
        bool any = false;
        for (uint64_t i = 0; i < bytes_of(&r.t[t]); i++)
            any = any || first[t][i];
        cr_assert(any, "output %d is 0", t);
        free(first[t]);
        free(again[t]);
    }
    close_room(&r);
}
