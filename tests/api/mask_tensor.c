/* SPDX-License-Identifier: MIT */
/* Masks that follow a tensor on a device: the same results, bit for bit, as a mask of the same expression that was
 * built on the host from the same values. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/flow.h"
#include "tests/oracle/array.h"
#include "support/devices.h"

#define MAKE(call) cr_assert_eq((call), ATTUNE_OK, "%s", attune_last_error())

#define BATCH    2
#define HEADS    4
#define KV_HEADS 2
#define DIM      32
#define MOST_Q   150
#define MOST_KV  210

/* One mask with tensors of changing lengths, and what is attended through it. */
typedef struct following {
    attune_instance *instance;
    attune_device *device;
    random_state random;
    attune_dtype dtype;
    int64_t planes[2]; /* of the tensor */
    int64_t q_len, kv_len;
    bool keys_first; /* the tensor is transposed */
    uint32_t q_block, kv_block;
    array truth;  /* [planes..., q_len, kv_len] of bool */
    array values; /* the tensor's elements, with one before the first */
    attune_tensor tensor;
    attune_mask *mask;
    attune_plan *plans[2]; /* forward, backward */
    attune_buffer *workspaces[2];
} following;

static bool is_float(attune_dtype dtype)
{
    return dtype == ATTUNE_F32 || dtype == ATTUNE_F16 || dtype == ATTUNE_BF16;
}

/* Blocks of 16 x 16 that are empty, whole or mixed; some rows see nothing. */
static void draw_truth(following *f)
{
    failure why;
    const int64_t size[4] = {f->planes[0], f->planes[1], f->q_len, f->kv_len};
    cr_assert(array_create(&f->truth, ATTUNE_BOOL, 4, size, &why), "%s", why.message);
    uint8_t *truth = f->truth.data;
    for (int64_t p = 0; p < size[0] * size[1]; p++)
        for (int64_t q0 = 0; q0 < f->q_len; q0 += 16)
            for (int64_t kv0 = 0; kv0 < f->kv_len; kv0 += 16) {
                const uint64_t kind = random_u64(&f->random) % 3;
                for (int64_t q = q0; q < q0 + 16 && q < f->q_len; q++)
                    for (int64_t kv = kv0; kv < kv0 + 16 && kv < f->kv_len; kv++)
                        truth[(p * f->q_len + q) * f->kv_len + kv] =
                            q % 29 != 7 && (kind == 2 || (kind == 1 && random_u64(&f->random) % 2));
            }
}

/* The tensor of those values. */
static void write_tensor(following *f)
{
    failure why;
    const int64_t count = array_count(&f->truth), plane = f->q_len * f->kv_len, flat[1] = {count + 1};
    cr_assert(array_create(&f->values, f->dtype, 1, flat, &why), "%s", why.message);
    f->tensor = (attune_tensor){
        .offset = attune_dtype_size(f->dtype),
        .dtype = f->dtype,
        .rank = 4,
        .size = {f->planes[0], f->planes[1], f->q_len, f->kv_len},
        .stride = {f->planes[1] * plane, plane, f->keys_first ? 1 : f->kv_len, f->keys_first ? f->q_len : 1},
    };
    for (int64_t i = 0; i < count; i++) {
        const int64_t q = i % plane / f->kv_len, kv = i % f->kv_len;
        const int64_t at = i / plane * plane + q * f->tensor.stride[2] + kv * f->tensor.stride[3];
        const bool allowed = ((const uint8_t *)f->truth.data)[i];
        /* Finite biases are the score expression's: whatever they are, they allow. */
        const double bias = allowed ? 60000.0 - (double)(i % 7) * 2e4 : -INFINITY;
        array_set(&f->values, at + 1, is_float(f->dtype) ? bias : allowed);
    }
    const size_t bytes = (size_t)flat[0] * attune_dtype_size(f->dtype);
    MAKE(attune_buffer_create(f->device, bytes, &f->tensor.buffer));
    MAKE(attune_buffer_write(f->tensor.buffer, 0, f->values.data, bytes));
}

static attune_mask_desc describe(const following *f, int64_t q_len, int64_t kv_len)
{
    return (attune_mask_desc){.struct_size = sizeof(attune_mask_desc),
                              .q_block = f->q_block,
                              .kv_block = f->kv_block,
                              .batch = BATCH,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = q_len,
                              .kv_len = kv_len};
}

static attune_tensor make_tensor(const following *f, int64_t heads, int64_t length, uint32_t rank, random_state *random)
{
    failure why;
    array values;
    attune_tensor t = {.dtype = ATTUNE_F32, .rank = rank, .size = {BATCH, heads, length, rank == 4 ? DIM : 0}};
    cr_assert(array_create(&values, ATTUNE_F32, rank, t.size, &why), "%s", why.message);
    if (random)
        array_fill_normal(&values, random, 1);
    const size_t bytes = (size_t)array_count(&values) * sizeof(float);
    MAKE(attune_buffer_create(f->device, bytes, &t.buffer));
    MAKE(attune_buffer_write(t.buffer, 0, values.data, bytes));
    array_free(&values);
    return t;
}

static void read_out(const attune_tensor *t, float *out)
{
    size_t count = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        count *= (size_t)t->size[i];
    MAKE(attune_buffer_read(t->buffer, 0, out, count * sizeof *out));
}

enum { OUTPUTS = 5, MOST_OUTPUT = BATCH * HEADS * MOST_KV * DIM };
typedef float results[OUTPUTS][MOST_OUTPUT];

static attune_problem problem_of(const following *f)
{
    attune_problem problem = {.struct_size = sizeof problem,
                              .head_dim = DIM,
                              .batch = BATCH,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = MOST_Q,
                              .kv_len = MOST_KV};
    MAKE(attune_problem_set_mask(&problem, f->mask));
    return problem;
}

static void make_plans(following *f)
{
    const attune_kernel_options fixed_order = {.struct_size = sizeof fixed_order, .bwd.deterministic = ATTUNE_ON};
    for (int backward = 0; backward < 2; backward++) {
        attune_problem problem = problem_of(f);
        problem.direction = backward ? ATTUNE_BACKWARD : ATTUNE_FORWARD;
        problem.lse = !backward;
        MAKE(attune_plan_create(f->device, &problem, &fixed_order, &f->plans[backward]));
        f->workspaces[backward] = NULL;
        if (attune_plan_workspace_size(f->plans[backward]))
            MAKE(attune_buffer_create(f->device, attune_plan_workspace_size(f->plans[backward]),
                                      &f->workspaces[backward]));
    }
}

/* Forward and backward through a mask, from the same random inputs each time. */
static void attend(const following *f, const attune_mask *mask, results out)
{
    random_state random = {42};
    const attune_tensor q = make_tensor(f, HEADS, f->q_len, 4, &random),
                        k = make_tensor(f, KV_HEADS, f->kv_len, 4, &random),
                        v = make_tensor(f, KV_HEADS, f->kv_len, 4, &random),
                        d_o = make_tensor(f, HEADS, f->q_len, 4, &random), o = make_tensor(f, HEADS, f->q_len, 4, NULL),
                        lse = make_tensor(f, HEADS, f->q_len, 3, NULL), d_q = make_tensor(f, HEADS, f->q_len, 4, NULL),
                        d_k = make_tensor(f, KV_HEADS, f->kv_len, 4, NULL),
                        d_v = make_tensor(f, KV_HEADS, f->kv_len, 4, NULL);
    const attune_tensor outputs[OUTPUTS] = {o, lse, d_q, d_k, d_v};
    const attune_forward_args forward = {.struct_size = sizeof forward,
                                         .q = q,
                                         .k = k,
                                         .v = v,
                                         .o = o,
                                         .lse = lse,
                                         .mask = mask,
                                         .workspace = f->workspaces[0]};
    const attune_backward_args backward = {.struct_size = sizeof backward,
                                           .q = q,
                                           .k = k,
                                           .v = v,
                                           .o = o,
                                           .lse = lse,
                                           .d_o = d_o,
                                           .d_q = d_q,
                                           .d_k = d_k,
                                           .d_v = d_v,
                                           .mask = mask,
                                           .workspace = f->workspaces[1]};
    attune_completion done;
    MAKE(attune_forward(f->plans[0], attune_device_queue(f->device), &forward, NULL));
    MAKE(attune_backward(f->plans[1], attune_device_queue(f->device), &backward, &done));
    MAKE(attune_completion_wait(done, UINT64_MAX));
    for (int i = 0; i < OUTPUTS; i++)
        read_out(&outputs[i], out[i]);
    attune_buffer *const buffers[] = {q.buffer,   k.buffer,   v.buffer,   d_o.buffer, o.buffer,
                                      lse.buffer, d_q.buffer, d_k.buffer, d_v.buffer};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        attune_buffer_destroy(buffers[i]);
}

static void check_lengths(following *f, int64_t q_len, int64_t kv_len)
{
    static const char *const names[OUTPUTS] = {"o", "lse", "d_q", "d_k", "d_v"};
    static results expected, found;
    attune_mask *built;
    memset(expected, 0, sizeof expected);
    memset(found, 0, sizeof found);
    f->q_len = q_len;
    f->kv_len = kv_len;
    draw_truth(f);
    write_tensor(f);
    const attune_mask_desc desc = describe(f, q_len, kv_len);
    attune_host_capture capture = {"tensor", {.data = (char *)f->values.data + f->tensor.offset, .dtype = f->dtype}};
    capture.array.rank = 4;
    memcpy(capture.array.size, f->tensor.size, sizeof f->tensor.size);
    memcpy(capture.array.stride, f->tensor.stride, sizeof f->tensor.stride);
    const attune_problem problem = problem_of(f);
    MAKE(attune_mask_create(f->instance, &desc, problem.mask, &capture, 1, NULL, 0, &built));
    MAKE(attune_mask_upload(built, f->device));
    attend(f, built, expected);
    MAKE(attune_mask_update(f->mask, attune_device_queue(f->device), &f->tensor, NULL));
    attend(f, f->mask, found);
    for (int i = 0; i < OUTPUTS; i++)
        cr_expect(!memcmp(expected[i], found[i], sizeof expected[i]),
                  "%s differs: %s, %lld x %lld planes, %lld x %lld, blocks of %u x %u%s", names[i],
                  attune_dtype_string(f->dtype), (long long)f->planes[0], (long long)f->planes[1], (long long)q_len,
                  (long long)kv_len, f->q_block, f->kv_block, f->keys_first ? ", transposed" : "");
    attune_mask_destroy(built);
    attune_buffer_destroy(f->tensor.buffer);
    array_free(&f->values);
    array_free(&f->truth);
}

/* `full`: how many masks at scale 1. */
static void check_device(const char *backend, uint64_t full)
{
    static const attune_dtype dtypes[] = {ATTUNE_F16, ATTUNE_BOOL, ATTUNE_F32, ATTUNE_U8, ATTUNE_BF16};
    static const uint32_t blocks[][2] = {{16, 16}, {64, 128}, {128, 32}};
    following f = {.random = {test_seed()}};
    MAKE(attune_instance_create(NULL, &f.instance));
    f.device = device_or_skip(f.instance, backend);
    const uint64_t count = scaled(full);
    for (uint64_t i = 0; i < count; i++) {
        f.dtype = dtypes[i % 5];
        f.planes[0] = random_u64(&f.random) % 2 ? BATCH : 1;
        f.planes[1] = random_u64(&f.random) % 2 ? HEADS : 1;
        f.keys_first = random_u64(&f.random) % 2;
        f.q_block = blocks[i % 3][0];
        f.kv_block = blocks[i % 3][1];
        const attune_mask_desc most = describe(&f, MOST_Q, MOST_KV);
        MAKE(attune_mask_create_tensor(f.device, &most, f.dtype, f.planes[0], f.planes[1], &f.mask));
        make_plans(&f);
        check_lengths(&f, MOST_Q, MOST_KV);
        check_lengths(&f, 1, 1 + (int64_t)(random_u64(&f.random) % MOST_KV));
        check_lengths(&f, 1 + (int64_t)(random_u64(&f.random) % MOST_Q),
                      1 + (int64_t)(random_u64(&f.random) % MOST_KV));
        for (int backward = 0; backward < 2; backward++) {
            attune_plan_destroy(f.plans[backward]);
            attune_buffer_destroy(f.workspaces[backward]);
        }
        attune_mask_destroy(f.mask);
    }
    attune_device_destroy(f.device);
    attune_instance_destroy(f.instance);
}

Test(mask_tensor, cpu)
{
    check_device("cpu", 20);
}

Test(mask_tensor, vulkan, .timeout = 300)
{
    check_device("vulkan", 2);
}

Test(mask_tensor, opencl, .timeout = 300)
{
    check_device("opencl", 1);
}

Test(mask_tensor, cuda, .timeout = 300)
{
    check_device("cuda", 5);
}

Test(mask_tensor, arguments)
{
    following f = {.random = {1}, .dtype = ATTUNE_F16, .planes = {1, 1}, .q_len = 20, .kv_len = 30};
    MAKE(attune_instance_create(NULL, &f.instance));
    MAKE(attune_device_open(f.instance, "cpu", &f.device));
    draw_truth(&f);
    write_tensor(&f);
    attune_mask_desc desc = describe(&f, 20, 30);
    EXPECT(attune_mask_create_tensor(f.device, &desc, ATTUNE_I32, 1, 1, &f.mask), ATTUNE_INVALID_ARGUMENT,
           "dtype is i32, expected bool, u8, f32, f16 or bf16");
    EXPECT(attune_mask_create_tensor(f.device, &desc, ATTUNE_F16, 1, 2, &f.mask), ATTUNE_INVALID_ARGUMENT,
           "tensor_heads is 2, expected desc.heads, 4, or 1");
    desc.kv_total = 100;
    EXPECT(attune_mask_create_tensor(f.device, &desc, ATTUNE_F16, 1, 1, &f.mask), ATTUNE_INVALID_ARGUMENT, "kv_total");
    desc.kv_total = 0;
    MAKE(attune_mask_create_tensor(f.device, &desc, ATTUNE_F16, 1, 1, &f.mask));

    attune_problem problem = {.struct_size = sizeof problem,
                              .head_dim = DIM,
                              .batch = BATCH,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = 20,
                              .kv_len = 30};
    attune_plan *plan;
    attune_buffer *workspace;
    MAKE(attune_problem_set_mask(&problem, f.mask));
    MAKE(attune_plan_create(f.device, &problem, NULL, &plan));
    MAKE(attune_buffer_create(f.device, attune_plan_workspace_size(plan), &workspace));
    attune_queue *queue = attune_device_queue(f.device);
    const attune_tensor q = make_tensor(&f, HEADS, 20, 4, &f.random), k = make_tensor(&f, KV_HEADS, 30, 4, &f.random),
                        o = make_tensor(&f, HEADS, 20, 4, NULL);
    const attune_forward_args args = {
        .struct_size = sizeof args, .q = q, .k = k, .v = k, .o = o, .mask = f.mask, .workspace = workspace};
    EXPECT(attune_forward(plan, queue, &args, NULL), ATTUNE_INVALID_ARGUMENT, "call attune_mask_update");

    attune_tensor wrong = f.tensor;
    wrong.dtype = ATTUNE_BF16;
    EXPECT(attune_mask_update(f.mask, queue, &wrong, NULL), ATTUNE_INVALID_ARGUMENT, "expected f16");
    wrong = f.tensor;
    wrong.size[3] = 31;
    wrong.size[2] = 10;
    EXPECT(attune_mask_update(f.mask, queue, &wrong, NULL), ATTUNE_INVALID_ARGUMENT, "created for 1 to 30 keys");
    wrong = f.tensor;
    wrong.size[0] = 2;
    wrong.stride[0] = 0;
    EXPECT(attune_mask_update(f.mask, queue, &wrong, NULL), ATTUNE_INVALID_ARGUMENT, "tensor.size[0] is 2");
    MAKE(attune_mask_update(f.mask, queue, &f.tensor, NULL));
    MAKE(attune_forward(plan, queue, &args, NULL));

    /* Calls may not be longer than the tensor that the mask saw last. */
    wrong = f.tensor;
    wrong.size[2] = 19;
    MAKE(attune_mask_update(f.mask, queue, &wrong, NULL));
    EXPECT(attune_forward(plan, queue, &args, NULL), ATTUNE_INVALID_ARGUMENT, "19 x 30");

    attune_mask_lists lists = {.struct_size = sizeof lists};
    attune_mask_stats stats = {.struct_size = sizeof stats};
    attune_mask_range range = {.struct_size = sizeof range};
    attune_mask *made;
    EXPECT(attune_mask_lists_get(f.mask, &lists), ATTUNE_UNSUPPORTED,
           "is computed from a tensor and its lists are on device cpu");
    EXPECT(attune_mask_stats_get(f.mask, false, &stats), ATTUNE_UNSUPPORTED, "is computed from a tensor");
    EXPECT(attune_mask_slice(f.mask, &range, &made), ATTUNE_UNSUPPORTED, "is computed from a tensor");
    EXPECT(attune_mask_not(f.mask, &made), ATTUNE_UNSUPPORTED, "a is computed from a tensor");
    EXPECT(attune_mask_draw_text(f.mask, 0, 0, 10, 10, NULL, 0, NULL), ATTUNE_UNSUPPORTED, "is computed from a tensor");

    attune_mask *dense;
    const attune_array truth = array_view(&f.truth);
    desc = describe(&f, 20, 30);
    MAKE(attune_mask_create_dense(f.instance, &desc, &truth, &dense));
    EXPECT(attune_mask_update(dense, queue, &f.tensor, NULL), ATTUNE_INVALID_ARGUMENT, "attune_mask_create_tensor");
    attune_mask_destroy(dense);

    attune_buffer *const buffers[] = {q.buffer, k.buffer, o.buffer, f.tensor.buffer, workspace};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        attune_buffer_destroy(buffers[i]);
    attune_plan_destroy(plan);
    attune_mask_destroy(f.mask);
    array_free(&f.values);
    array_free(&f.truth);
    attune_device_destroy(f.device);
    attune_instance_destroy(f.instance);
}
