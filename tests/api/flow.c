/* SPDX-License-Identifier: MIT */
#include "api/flow.h"

#include <math.h>
#include <string.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        attune_status status_ = (call);                                                                                \
        if (status_ != ATTUNE_OK)                                                                                      \
            return status_;                                                                                            \
    } while (0)

static attune_status fill(flow *f, attune_buffer **buffer, double phase)
{
    float data[FLOW_ELEMENTS];
    for (int i = 0; i < FLOW_ELEMENTS; i++)
        data[i] = (float)sin(phase + 0.37 * i * i);
    TRY(attune_buffer_create(f->device, sizeof data, buffer));
    return attune_buffer_write(*buffer, 0, data, sizeof data);
}

attune_status flow_create(flow *f, const attune_instance_desc *desc)
{
    memset(f, 0, sizeof *f);
    for (int i = 0; i < FLOW_LENGTH; i++)
        f->doc[i] = i / 70;
    TRY(attune_instance_create(desc, &f->instance));
    TRY(attune_device_open(f->instance, "cpu", &f->device));
    const attune_symbol symbols[] = {
        {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
        {"cap", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0},
        {"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
    };
    TRY(attune_expr_create(f->instance, ATTUNE_EXPR_MASK, "causal && document(doc)", symbols, 3, &f->mask_expr));
    TRY(attune_expr_create(f->instance, ATTUNE_EXPR_SCORE, "cap * tanh(score / cap) + slope[h]", symbols, 3,
                           &f->score_expr));
    const attune_mask_desc mask_desc = {
        .struct_size = sizeof mask_desc, .heads = FLOW_HEADS, .q_len = FLOW_LENGTH, .kv_len = FLOW_LENGTH};
    const attune_host_capture doc = {"doc", {.data = f->doc, .dtype = ATTUNE_I32, .rank = 1, .size = {FLOW_LENGTH}}};
    TRY(attune_mask_create(f->instance, &mask_desc, f->mask_expr, &doc, 1, NULL, 0, &f->mask));
    TRY(attune_mask_upload(f->mask, f->device));
    f->problem = (attune_problem){.struct_size = sizeof f->problem,
                                  .head_dim = FLOW_DIM,
                                  .heads = FLOW_HEADS,
                                  .q_len = FLOW_LENGTH,
                                  .score = f->score_expr,
                                  .lse = true};
    TRY(attune_problem_set_mask(&f->problem, f->mask));
    TRY(attune_plan_create(f->device, &f->problem, NULL, &f->plan));
    TRY(fill(f, &f->q, 0));
    TRY(fill(f, &f->k, 1));
    TRY(fill(f, &f->v, 2));
    TRY(fill(f, &f->o, 3));
    TRY(attune_buffer_create(f->device, FLOW_HEADS * FLOW_LENGTH * sizeof(float), &f->lse));
    const float slopes[FLOW_HEADS] = {0.5f, 0.25f};
    TRY(attune_buffer_create(f->device, sizeof slopes, &f->caps));
    TRY(attune_buffer_write(f->caps, 0, slopes, sizeof slopes));
    uint64_t workspace = attune_plan_workspace_size(f->plan);
    if (workspace)
        TRY(attune_buffer_create(f->device, workspace, &f->workspace));
    attune_tensor t = {.dtype = ATTUNE_F32, .rank = 4, .size = {1, FLOW_HEADS, FLOW_LENGTH, FLOW_DIM}};
    f->args = (attune_forward_args){.struct_size = sizeof f->args, .q = t, .k = t, .v = t, .o = t};
    f->args.q.buffer = f->q;
    f->args.k.buffer = f->k;
    f->args.v.buffer = f->v;
    f->args.o.buffer = f->o;
    f->args.lse =
        (attune_tensor){.buffer = f->lse, .dtype = ATTUNE_F32, .rank = 3, .size = {1, FLOW_HEADS, FLOW_LENGTH}};
    f->captures[0] =
        (attune_capture){"slope", {.buffer = f->caps, .dtype = ATTUNE_F32, .rank = 1, .size = {FLOW_HEADS}}};
    f->parameters[0] = (attune_parameter){"cap", 20};
    f->args.captures = f->captures;
    f->args.capture_count = 1;
    f->args.parameters = f->parameters;
    f->args.parameter_count = 1;
    f->args.mask = f->mask;
    f->args.workspace = f->workspace;
    return ATTUNE_OK;
}

attune_status flow_run(flow *f, float *o)
{
    attune_completion completion;
    TRY(attune_forward(f->plan, attune_device_queue(f->device), &f->args, &completion));
    TRY(attune_completion_wait(completion, UINT64_MAX));
    return o ? attune_buffer_read(f->o, 0, o, FLOW_ELEMENTS * sizeof *o) : ATTUNE_OK;
}

void flow_destroy(flow *f)
{
    /* The instance and the device first: handles keep what they were made from alive. */
    attune_instance_destroy(f->instance);
    attune_device_destroy(f->device);
    attune_expr_destroy(f->mask_expr);
    attune_expr_destroy(f->score_expr);
    attune_mask_destroy(f->mask);
    attune_plan_destroy(f->plan);
    attune_buffer *buffers[] = {f->q, f->k, f->v, f->o, f->lse, f->caps, f->workspace};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        attune_buffer_destroy(buffers[i]);
    memset(f, 0, sizeof *f);
}
