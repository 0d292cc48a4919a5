/* SPDX-License-Identifier: MIT */
/* Plans and calls over tensors, and merging. */
#include "tests/fuzz/api.h"

void api_make_plan(api_world *w, api_tape *t)
{
    static const uint32_t dims[] = {8, 16, 24, 64, 256, 0, 7, 264};
    attune_kernel_options options = {
        .struct_size = sizeof options,
        .any = {.block_m = 16 * api_below(t, 5), .block_n = 16 * api_below(t, 5), .split_kv = api_below(t, 4)}};
    attune_problem p = {.struct_size = sizeof p,
                        .direction = (attune_direction)(api_below(t, 16) == 0 ? 7 : api_below(t, 2)),
                        .dtype = (attune_dtype)api_below(t, 6),
                        .head_dim = dims[api_below(t, 8)],
                        .head_dim_v = dims[api_below(t, 8)],
                        .batch = api_below(t, 4),
                        .kv_batch = api_below(t, 3),
                        .heads = api_below(t, 5),
                        .kv_heads = api_below(t, 3),
                        .q_len = api_length(t),
                        .kv_len = api_length(t),
                        .score = api_below(t, 2) ? w->exprs[api_below(t, API_SLOTS)] : NULL,
                        .block_mask = api_below(t, 8) == 0,
                        .lse = api_below(t, 2),
                        .row_max = api_below(t, 2),
                        .capture_gradient_elements = api_below(t, 4) ? 64 : api_length(t),
                        .segments = api_below(t, 4) ? 0 : api_below(t, 4)};
    const attune_mask *mask = w->masks[api_below(t, API_SLOTS)];
    if (mask && api_below(t, 2))
        (void)attune_problem_set_mask(&p, mask);
    const uint32_t slot = api_below(t, API_SLOTS);
    attune_plan_destroy(w->plans[slot]);
    api_failed_well(
        attune_plan_create(w->devices[api_below(t, API_SLOTS)], &p, api_below(t, 4) ? NULL : &options, &w->plans[slot]),
        w->plans[slot]);
}

void api_run_plan(api_world *w, api_tape *t)
{
    static const uint32_t dims[] = {8, 16, 24, 64, 256};
    const attune_plan *plan = w->plans[api_below(t, API_SLOTS)];
    attune_device *device = w->devices[api_below(t, API_SLOTS)];
    if (!device)
        return;
    const attune_dtype dtype = (attune_dtype)(1 + api_below(t, 4)),
                       rows = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    const int64_t batch = 1 + api_below(t, 3), heads = 1 + api_below(t, 4), kv_heads = 1 + api_below(t, 2),
                  d = dims[api_below(t, 5)], dv = api_below(t, 2) ? d : dims[api_below(t, 5)], q_len = api_length(t),
                  kv_len = api_length(t);
    const int64_t q[] = {batch, heads, q_len, d}, k[] = {batch, kv_heads, kv_len, d},
                  v[] = {batch, kv_heads, kv_len, dv}, o[] = {batch, heads, q_len, dv}, one[] = {64};
    attune_capture captures[] = {{"doc", api_tensor(w, t, 1, one, ATTUNE_I32)},
                                 {"bias", api_tensor(w, t, 1, one, ATTUNE_F32)}};
    attune_capture gradients[] = {{"bias", api_tensor(w, t, 1, one, ATTUNE_F32)}};
    const attune_parameter parameter = {"n", api_take(t)};
    const attune_mask *mask = api_below(t, 2) ? w->masks[api_below(t, API_SLOTS)] : NULL;
    attune_segment segments[3];
    for (int i = 0; i < 3; i++)
        segments[i] = (attune_segment){api_tensor(w, t, 4, k, dtype), api_tensor(w, t, 4, v, dtype), mask,
                                       api_tensor(w, t, 4, k, dtype), api_tensor(w, t, 4, v, dtype)};
    attune_completion done;
    attune_status status;
    if (api_below(t, 2)) {
        attune_forward_args a = {.struct_size = sizeof a,
                                 .q = api_tensor(w, t, 4, q, dtype),
                                 .k = segments[0].k,
                                 .v = segments[0].v,
                                 .o = api_tensor(w, t, 4, o, dtype),
                                 .mask = mask,
                                 .captures = captures,
                                 .capture_count = api_below(t, 3),
                                 .parameters = &parameter,
                                 .parameter_count = api_below(t, 2),
                                 .workspace = w->buffers[api_below(t, API_SLOTS)],
                                 .workspace_offset = api_below(t, 4) ? 0 : (uint64_t)api_length(t),
                                 .segments = segments,
                                 .segment_count = api_below(t, 4) ? 0 : api_below(t, 4)};
        if (api_below(t, 2))
            a.lse = api_tensor(w, t, 3, o, rows);
        if (api_below(t, 2))
            a.row_max = api_tensor(w, t, 3, o, rows);
        status = attune_forward(plan, attune_device_queue(device), &a, &done);
    } else {
        attune_backward_args a = {.struct_size = sizeof a,
                                  .q = api_tensor(w, t, 4, q, dtype),
                                  .k = segments[0].k,
                                  .v = segments[0].v,
                                  .o = api_tensor(w, t, 4, o, dtype),
                                  .lse = api_tensor(w, t, 3, o, rows),
                                  .d_o = api_tensor(w, t, 4, o, dtype),
                                  .d_q = api_tensor(w, t, 4, q, dtype),
                                  .d_k = segments[0].d_k,
                                  .d_v = segments[0].d_v,
                                  .mask = mask,
                                  .captures = captures,
                                  .capture_count = api_below(t, 3),
                                  .capture_gradients = gradients,
                                  .capture_gradient_count = api_below(t, 2),
                                  .parameters = &parameter,
                                  .parameter_count = api_below(t, 2),
                                  .workspace = w->buffers[api_below(t, API_SLOTS)],
                                  .segments = segments,
                                  .segment_count = api_below(t, 4) ? 0 : api_below(t, 4)};
        status = attune_backward(plan, attune_device_queue(device), &a, &done);
    }
    api_launched(status, done);
}

/* The merger, device and shapes of a merge, or of its gradients. */
typedef struct merged {
    const attune_merger *merger;
    attune_device *device;
    attune_dtype dtype, rows; /* of O, and of LSE */
    int64_t o[4];
} merged;

/* False if there is no device, and nothing is drawn. */
static bool draw_merged(api_world *w, api_tape *t, merged *m)
{
    *m = (merged){0};
    m->merger = w->mergers[api_below(t, API_SLOTS)];
    m->device = w->devices[api_below(t, API_SLOTS)];
    if (!m->device)
        return false;
    m->dtype = (attune_dtype)(1 + api_below(t, 4));
    m->rows = m->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    m->o[0] = 1 + api_below(t, 2);
    m->o[1] = 1 + api_below(t, 3);
    m->o[2] = api_length(t);
    m->o[3] = 8 * (1 + api_below(t, 3));
    return true;
}

void api_run_merge(api_world *w, api_tape *t)
{
    merged m;
    if (!draw_merged(w, t, &m))
        return;
    attune_merge_part parts[10];
    for (int i = 0; i < 10; i++)
        parts[i] = (attune_merge_part){api_tensor(w, t, 4, m.o, m.dtype), api_tensor(w, t, 3, m.o, m.rows),
                                       api_tensor(w, t, 4, m.o, m.dtype), api_tensor(w, t, 3, m.o, m.rows)};
    attune_merge_args a = {.struct_size = sizeof a,
                           .parts = parts,
                           .part_count = api_below(t, 11),
                           .o = api_tensor(w, t, 4, m.o, m.dtype),
                           .workspace = w->buffers[api_below(t, API_SLOTS)]};
    attune_completion done;
    const attune_status status = attune_merge(m.merger, attune_device_queue(m.device), &a, &done);
    api_launched(status, done);
}

void api_run_merge_backward(api_world *w, api_tape *t)
{
    merged m;
    if (!draw_merged(w, t, &m))
        return;
    attune_merge_part parts[10];
    for (int i = 0; i < 10; i++) {
        parts[i] = (attune_merge_part){.o = api_tensor(w, t, 4, m.o, m.dtype), .lse = api_tensor(w, t, 3, m.o, m.rows)};
        if (api_below(t, 4))
            parts[i].d_o = api_tensor(w, t, 4, m.o, m.dtype);
        if (api_below(t, 4))
            parts[i].d_lse = api_tensor(w, t, 3, m.o, m.rows);
    }
    attune_merge_backward_args a = {.struct_size = sizeof a,
                                    .parts = parts,
                                    .part_count = api_below(t, 11),
                                    .o = api_tensor(w, t, 4, m.o, m.dtype),
                                    .lse = api_tensor(w, t, 3, m.o, m.rows),
                                    .d_o = api_tensor(w, t, 4, m.o, m.dtype),
                                    .workspace = w->buffers[api_below(t, API_SLOTS)],
                                    .workspace_offset = api_below(t, 4) ? 0 : (uint64_t)api_length(t)};
    if (api_below(t, 2))
        a.d_lse = api_tensor(w, t, 3, m.o, m.rows);
    attune_completion done;
    const attune_status status = attune_merge_backward(m.merger, attune_device_queue(m.device), &a, &done);
    api_launched(status, done);
}
