/* SPDX-License-Identifier: MIT */
#include <attune/attune.h>
#include <stdio.h>

#define TRY(call) if ((call) != ATTUNE_OK) return fprintf(stderr, "%s\n", attune_last_error()), 1

enum { HEADS = 8, LENGTH = 500, DIM = 64 };
static float x[HEADS * LENGTH * DIM], y[HEADS * LENGTH * DIM];

int main(void)
{
    attune_instance *instance; attune_device *cpu; attune_expr *window, *cap;
    attune_mask *mask; attune_plan *plan; attune_buffer *in, *out, *workspace;
    for (int i = 0; i < HEADS * LENGTH * DIM; i++) x[i] = (float)(i * 7919 % 1000) / 1000 - 0.5f;
    TRY(attune_instance_create(NULL, &instance));
    TRY(attune_device_open(instance, "cpu", &cpu));
    TRY(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv && q - kv < 128", NULL, 0, &window));
    TRY(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "50 * tanh(score / 50)", NULL, 0, &cap));
    attune_mask_desc blocks = {.struct_size = sizeof blocks, .q_len = LENGTH, .kv_len = LENGTH};
    TRY(attune_mask_create(instance, &blocks, window, NULL, 0, NULL, 0, &mask));
    TRY(attune_mask_upload(mask, cpu));
    attune_problem problem = {.struct_size = sizeof problem, .head_dim = DIM, .heads = HEADS, .q_len = LENGTH, .score = cap};
    TRY(attune_problem_set_mask(&problem, mask));
    TRY(attune_plan_create(cpu, &problem, NULL, &plan));
    TRY(attune_buffer_wrap(cpu, x, sizeof x, &in));
    TRY(attune_buffer_wrap(cpu, y, sizeof y, &out));
    TRY(attune_buffer_create(cpu, attune_plan_workspace_size(plan), &workspace));
    attune_tensor q = {.buffer = in, .dtype = ATTUNE_F32, .rank = 4, .size = {1, HEADS, LENGTH, DIM}}, o = q;
    o.buffer = out;
    attune_forward_args args = {.struct_size = sizeof args, .q = q, .k = q, .v = q, .o = o, .mask = mask, .workspace = workspace};
    TRY(attune_forward(plan, attune_device_queue(cpu), &args, NULL)); /* launches only: call it for every step */
    return printf("o[0] = %g, v[0] = %g: the first row sees only itself\n", (double)y[0], (double)x[0]) < 0;
}
