/* SPDX-License-Identifier: MIT */
/* Wrong arguments of backward and of calls over segments: status, message, and outputs as they were. */
#include <criterion/criterion.h>
#include <string.h>

#include "api/flow.h"
#include "support/heap.h"

#define MAKE(call) cr_assert_eq((call), ATTUNE_OK, "%s", attune_last_error())

/* The flow, trained: what backward needs beside it. */
typedef struct trained {
    flow f;
    attune_plan *backward;
    attune_buffer *d_o, *d_q, *d_k, *d_v, *d_slope, *workspace;
    attune_backward_args args;
    attune_capture gradients[2];
} trained;

static void trained_create(trained *t)
{
    memset(t, 0, sizeof *t);
    MAKE(flow_create(&t->f, NULL));
    MAKE(flow_run(&t->f, NULL));
    attune_problem problem = t->f.problem;
    problem.direction = ATTUNE_BACKWARD;
    problem.lse = false;
    problem.capture_gradient_elements = FLOW_HEADS;
    MAKE(attune_plan_create(t->f.device, &problem, NULL, &t->backward));
    attune_buffer **const buffers[] = {&t->d_o, &t->d_q, &t->d_k, &t->d_v};
    static float values[FLOW_ELEMENTS];
    for (int i = 0; i < FLOW_ELEMENTS; i++)
        values[i] = (float)(i % 17) - 8;
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        MAKE(attune_buffer_create(t->f.device, sizeof values, buffers[i]));
        MAKE(attune_buffer_write(*buffers[i], 0, values, sizeof values));
    }
    MAKE(attune_buffer_create(t->f.device, FLOW_HEADS * sizeof(float), &t->d_slope));
    MAKE(attune_buffer_create(t->f.device, attune_plan_workspace_size(t->backward), &t->workspace));
    const attune_forward_args *a = &t->f.args;
    t->gradients[0] =
        (attune_capture){"slope", {.buffer = t->d_slope, .dtype = ATTUNE_F32, .rank = 1, .size = {FLOW_HEADS}}};
    t->gradients[1] = t->gradients[0];
    t->args = (attune_backward_args){.struct_size = sizeof t->args,
                                     .q = a->q,
                                     .k = a->k,
                                     .v = a->v,
                                     .o = a->o,
                                     .lse = a->lse,
                                     .d_o = a->o,
                                     .d_q = a->q,
                                     .d_k = a->k,
                                     .d_v = a->v,
                                     .mask = a->mask,
                                     .captures = t->f.captures,
                                     .capture_count = 1,
                                     .capture_gradients = t->gradients,
                                     .capture_gradient_count = 1,
                                     .parameters = t->f.parameters,
                                     .parameter_count = 1,
                                     .workspace = t->workspace};
    t->args.d_o.buffer = t->d_o;
    t->args.d_q.buffer = t->d_q;
    t->args.d_k.buffer = t->d_k;
    t->args.d_v.buffer = t->d_v;
}

static attune_status run(trained *t)
{
    return attune_backward(t->backward, attune_device_queue(t->f.device), &t->args, NULL);
}

static void trained_destroy(trained *t)
{
    attune_plan_destroy(t->backward);
    attune_buffer *const buffers[] = {t->d_o, t->d_q, t->d_k, t->d_v, t->d_slope, t->workspace};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        attune_buffer_destroy(buffers[i]);
    flow_destroy(&t->f);
}

#define WRONG(t, field, value, words)                                                                                  \
    do {                                                                                                               \
        const trained before_ = t;                                                                                     \
        t.field = value;                                                                                               \
        EXPECT(run(&t), ATTUNE_INVALID_ARGUMENT, words);                                                               \
        t = before_;                                                                                                   \
    } while (0)

Test(training_errors, backward_arguments)
{
    static trained t;
    trained_create(&t);
    static float before[FLOW_ELEMENTS], after[FLOW_ELEMENTS];
    MAKE(attune_buffer_read(t.d_q, 0, before, sizeof before));
    WRONG(t, args.struct_size, 0, "struct_size is 0");
    WRONG(t, args.lse.buffer, NULL, "lse.buffer is NULL");
    WRONG(t, args.lse.dtype, ATTUNE_F16, "lse.dtype is f16 (2), expected f32");
    WRONG(t, args.o.size[2], 299, "o.size[2] is 299, expected the length of q, 300");
    WRONG(t, args.d_o.buffer, NULL, "d_o.buffer is NULL");
    WRONG(t, args.d_o.size[3], 16, "d_o.size[3] is 16, expected the size of o, 32");
    WRONG(t, args.d_lse, t.args.o, "d_lse.rank is 4, expected 3");
    WRONG(t, args.d_q.buffer, NULL, "d_q.buffer is NULL");
    WRONG(t, args.d_q.rank, 2, "d_q.rank is 2, expected 4");
    WRONG(t, args.d_k.dtype, ATTUNE_BF16, "d_k.dtype is bf16 (3), expected f32");
    WRONG(t, args.d_v.size[1], 1, "d_v.size[1] is 1, expected the size of v, 2");
    attune_tensor overlapping = t.args.d_k;
    overlapping.stride[0] = FLOW_ELEMENTS, overlapping.stride[1] = 32, overlapping.stride[2] = 32,
    overlapping.stride[3] = 1;
    WRONG(t, args.d_k, overlapping, "makes elements overlap");
    WRONG(t, args.mask, NULL, "args.mask is NULL");
    WRONG(t, args.capture_count, 0, "args.captures has no \"slope\"");
    WRONG(t, args.capture_gradients, NULL, "args.capture_gradients is NULL");
    WRONG(t, args.capture_gradient_count, 2, "has \"slope\" twice");
    WRONG(t, gradients[0].name, "cap", "\"cap\", which is not a capture");
    WRONG(t, gradients[0].tensor.size[0], 1, "slope.size[0] is 1, expected the capture's size, 2");
    WRONG(t, gradients[0].tensor.dtype, ATTUNE_BF16, "slope.dtype is bf16 (3), expected f32");
    WRONG(t, args.parameter_count, 0, "cap");
    WRONG(t, args.workspace, NULL, "args.workspace is NULL");
    WRONG(t, args.workspace, t.d_slope, "args.workspace has 8 bytes");
    WRONG(t, args.workspace_offset, 100, "expected a multiple of 256");
    WRONG(t, args.segment_count, 1, "set problem.segments");
    const attune_plan *plan = t.backward;
    t.backward = t.f.plan;
    EXPECT(run(&t), ATTUNE_INVALID_ARGUMENT, "the plan's direction is forward, this call is backward");
    t.backward = (attune_plan *)(uintptr_t)plan;
    MAKE(attune_buffer_read(t.d_q, 0, after, sizeof after));
    cr_assert_eq(memcmp(before, after, sizeof before), 0, "an error changed an output");
    MAKE(run(&t));
    MAKE(attune_buffer_read(t.d_q, 0, after, sizeof after));
    cr_assert_neq(memcmp(before, after, sizeof before), 0);
    trained_destroy(&t);
}

Test(training_errors, gradients_past_the_plan)
{
    static trained t;
    trained_create(&t);
    attune_problem problem = t.f.problem;
    problem.direction = ATTUNE_BACKWARD;
    attune_plan *none;
    MAKE(attune_plan_create(t.f.device, &problem, NULL, &none));
    attune_plan *plan = t.backward;
    t.backward = none;
    EXPECT(run(&t), ATTUNE_INVALID_ARGUMENT, "have 2 elements, but the plan's limit is 0: raise");
    t.backward = plan;
    attune_plan_destroy(none);
    trained_destroy(&t);
}

/* The flow over two segments of its keys. */
typedef struct split {
    flow f;
    attune_mask *masks[2];
    attune_segment segments[2];
    attune_plan *plan;
    attune_buffer *workspace;
} split;

static attune_status split_create(split *s, const attune_instance_desc *desc)
{
    static const int64_t start[3] = {0, 100, FLOW_LENGTH};
    memset(s, 0, sizeof *s);
    attune_status status = flow_create(&s->f, desc);
    const attune_host_capture doc = {"doc", {.data = s->f.doc, .dtype = ATTUNE_I32, .rank = 1, .size = {FLOW_LENGTH}}};
    attune_problem problem = s->f.problem;
    problem.segments = 2;
    problem.kv_len = 200;
    for (int i = 0; i < 2 && status == ATTUNE_OK; i++) {
        const attune_mask_desc mask = {.struct_size = sizeof mask,
                                       .heads = FLOW_HEADS,
                                       .q_len = FLOW_LENGTH,
                                       .kv_len = start[i + 1] - start[i],
                                       .kv_start = start[i],
                                       .kv_total = FLOW_LENGTH};
        status = attune_mask_create(s->f.instance, &mask, s->f.mask_expr, &doc, 1, NULL, 0, &s->masks[i]);
        if (status == ATTUNE_OK)
            status = attune_mask_upload(s->masks[i], s->f.device);
        if (status == ATTUNE_OK)
            status = attune_problem_set_mask(&problem, s->masks[i]);
        attune_tensor *const views[2] = {&s->segments[i].k, &s->segments[i].v};
        for (int j = 0; j < 2; j++) {
            *views[j] = j ? s->f.args.v : s->f.args.k;
            views[j]->offset = (uint64_t)start[i] * FLOW_DIM * sizeof(float);
            views[j]->stride[0] = FLOW_ELEMENTS;
            views[j]->stride[1] = FLOW_LENGTH * FLOW_DIM;
            views[j]->stride[2] = FLOW_DIM;
            views[j]->stride[3] = 1;
            views[j]->size[2] = start[i + 1] - start[i];
        }
        s->segments[i].mask = s->masks[i];
    }
    if (status == ATTUNE_OK)
        status = attune_plan_create(s->f.device, &problem, NULL, &s->plan);
    if (status == ATTUNE_OK)
        status = attune_buffer_create(s->f.device, attune_plan_workspace_size(s->plan), &s->workspace);
    s->f.args.segments = s->segments;
    s->f.args.segment_count = 2;
    s->f.args.workspace = s->workspace;
    return status;
}

static attune_status run_split(split *s)
{
    return attune_forward(s->plan, attune_device_queue(s->f.device), &s->f.args, NULL);
}

static void split_destroy(split *s)
{
    attune_plan_destroy(s->plan);
    attune_mask_destroy(s->masks[0]);
    attune_mask_destroy(s->masks[1]);
    attune_buffer_destroy(s->workspace);
    s->f.args.workspace = s->f.workspace;
    flow_destroy(&s->f);
}

#define WRONG_SPLIT(s, field, value, words)                                                                            \
    do {                                                                                                               \
        const split before_ = s;                                                                                       \
        s.field = value;                                                                                               \
        EXPECT(run_split(&s), ATTUNE_INVALID_ARGUMENT, words);                                                         \
        s = before_;                                                                                                   \
    } while (0)

Test(training_errors, segments)
{
    static split s;
    static float whole[FLOW_ELEMENTS], parts[FLOW_ELEMENTS], zeros[FLOW_ELEMENTS];
    MAKE(split_create(&s, NULL));
    MAKE(attune_buffer_write(s.f.o, 0, zeros, sizeof zeros));
    WRONG_SPLIT(s, f.args.segment_count, 0, "args.segment_count is 0, but the plan was made for 1 to 2");
    WRONG_SPLIT(s, f.args.segment_count, 3, "args.segment_count is 3");
    WRONG_SPLIT(s, f.args.segments, NULL, "args.segments is NULL");
    WRONG_SPLIT(s, segments[0].k.rank, 2, "args.segments[0].k has rank 2");
    WRONG_SPLIT(s, segments[1].k.size[2], 0, "args.segments[1].k has rank 4 and 0 keys");
    WRONG_SPLIT(s, segments[1].v.size[2], 199, "args.segments[1]: v.size[2] is 199, expected the length of k, 200");
    WRONG_SPLIT(s, segments[1].v.buffer, NULL, "args.segments[1]: v.buffer is NULL");
    WRONG_SPLIT(s, segments[1].mask, NULL, "args.segments[1]: args.mask is NULL");
    WRONG_SPLIT(s, segments[0].mask, s.masks[1], "was built for one at 100 of 300");
    WRONG_SPLIT(s, segments[1].mask, s.f.mask, "another expression");
    WRONG_SPLIT(s, f.args.workspace, s.f.lse, "args.workspace has 2400 bytes");
    const attune_plan *plan = s.plan;
    s.plan = s.f.plan;
    EXPECT(run_split(&s), ATTUNE_INVALID_ARGUMENT, "set problem.segments");
    s.plan = (attune_plan *)(uintptr_t)plan;
    s.f.args.mask = s.masks[0];
    s.f.args.segment_count = 0;
    s.f.args.k = s.f.args.v = s.segments[0].k;
    s.f.args.workspace = s.f.workspace;
    EXPECT(attune_forward(s.f.plan, attune_device_queue(s.f.device), &s.f.args, NULL), ATTUNE_INVALID_ARGUMENT,
           "was built for a segment");
    MAKE(attune_buffer_read(s.f.o, 0, parts, sizeof parts));
    cr_assert_eq(memcmp(parts, zeros, sizeof parts), 0, "an error changed the output");
    s.f.args.segment_count = 2;
    s.f.args.workspace = s.workspace;
    MAKE(run_split(&s));
    MAKE(attune_buffer_read(s.f.o, 0, parts, sizeof parts));
    split_destroy(&s);

    static flow f;
    MAKE(flow_create(&f, NULL));
    MAKE(flow_run(&f, whole));
    for (int i = 0; i < FLOW_ELEMENTS; i++)
        cr_expect_float_eq(parts[i], whole[i], 1e-5f, "element %d: %g over segments, %g whole", i, (double)parts[i],
                           (double)whole[i]);
    flow_destroy(&f);
}

Test(training_errors, descriptions_of_segments)
{
    static flow f;
    MAKE(flow_create(&f, NULL));
    attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = 300, .kv_len = 200, .kv_start = 100, .kv_total = 299};
    attune_expr *causal;
    attune_mask *mask;
    MAKE(attune_expr_create(f.instance, ATTUNE_EXPR_MASK, "causal", NULL, 0, &causal));
    EXPECT(attune_mask_create(f.instance, &desc, causal, NULL, 0, NULL, 0, &mask), ATTUNE_INVALID_ARGUMENT,
           "desc.kv_start is 100, kv_len 200 and kv_total 299");
    desc.kv_total = 0;
    EXPECT(attune_mask_create(f.instance, &desc, causal, NULL, 0, NULL, 0, &mask), ATTUNE_INVALID_ARGUMENT,
           "desc.kv_start is 100");
    attune_problem problem = f.problem;
    attune_plan *plan;
    problem.segments = 2;
    problem.row_max = true;
    EXPECT(attune_plan_create(f.device, &problem, NULL, &plan), ATTUNE_INVALID_ARGUMENT, "gives no row maxima");
    problem.row_max = false;
    problem.segments = 5000;
    EXPECT(attune_plan_create(f.device, &problem, NULL, &plan), ATTUNE_INVALID_ARGUMENT,
           "problem.segments is 5000, expected at most 1024");
    attune_expr_destroy(causal);
    flow_destroy(&f);
}

/* Every allocation of masks and a plan over segments fails once; the calls themselves allocate nothing. */
Test(training_errors, every_allocation_fails)
{
    static split s;
    heap h = {0};
    for (h.fail_at = 1;; h.fail_at++) {
        atomic_store(&h.allocations, 0);
        const attune_instance_desc desc = {
            .struct_size = sizeof desc, .cpu_threads = 2, .allocator = heap_allocator(&h)};
        attune_status status = split_create(&s, &desc);
        const long long before = atomic_load(&h.allocations);
        if (status == ATTUNE_OK) {
            status = run_split(&s);
            cr_assert_eq(atomic_load(&h.allocations), before);
        }
        split_destroy(&s);
        cr_assert_eq(atomic_load(&h.live), 0, "failing allocation %lld leaks %lld", h.fail_at,
                     (long long)atomic_load(&h.live));
        if (h.fail_at > before) {
            cr_assert_eq(status, ATTUNE_OK, "%s", attune_last_error());
            break;
        }
        cr_assert(status == ATTUNE_OUT_OF_HOST_MEMORY || status == ATTUNE_OUT_OF_DEVICE_MEMORY || status == ATTUNE_OK,
                  "allocation %lld: %s, %s", h.fail_at, attune_status_string(status), attune_last_error());
    }
    cr_assert_gt(h.fail_at, 20);
}
