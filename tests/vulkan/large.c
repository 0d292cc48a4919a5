/* SPDX-License-Identifier: MIT */
/* Keys and values past what a storage buffer's binding reaches (128 MiB on many devices), and elements 2^31 and more
 * from the first one. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attune/vulkan.h>

#include "base/half.h"
#include "support/devices.h"
#include "support/large_gradient.h"
#include "vulkan/fake.h"

#define DIM     64
#define MIB     (UINT64_C(1) << 20)
#define SPECIAL 8 /* rows at either end */

typedef struct half_row {
    uint16_t value[DIM];
} half_row;

static float key(int64_t i)
{
    return 2.25f + (float)i / 16;
}

static float value(int64_t i, int64_t d)
{
    return (float)((i * 7 + d) % 13) / 8;
}

static half_row key_row(int64_t i)
{
    half_row row;
    for (int d = 0; d < DIM; d++)
        row.value[d] = attune__f16_from_f32(key(i));
    return row;
}

static half_row value_row(int64_t i)
{
    half_row row;
    for (int d = 0; d < DIM; d++)
        row.value[d] = attune__f16_from_f32(value(i, d));
    return row;
}

/* Attention of a query of ones over rows first, first + 1, ... and `zeros` rows of zeros. */
static double expected(int64_t first, int64_t count, double zeros, int64_t d)
{
    double sum = zeros, o = 0;
    for (int64_t i = first; i < first + count; i++) {
        const double weight = exp((double)key(i) * DIM / sqrt(DIM));
        sum += weight;
        o += weight * (double)value(i, d);
    }
    return o / sum;
}

typedef struct fixture {
    attune_instance *instance;
    attune_device *device;
    attune_buffer *buffers[12];
    int count;
} fixture;

static fixture fixture_open(void)
{
    fixture r = {0};
    cr_assert_eq(attune_instance_create(NULL, &r.instance), ATTUNE_OK);
    r.device = device_or_skip(r.instance, "vulkan");
    return r;
}

static void fixture_close(fixture *r)
{
    for (int i = 0; i < r->count; i++)
        attune_buffer_destroy(r->buffers[i]);
    attune_device_destroy(r->device);
    attune_instance_destroy(r->instance);
}

/* Skips, with the reason, where there is no such buffer. */
static attune_buffer *buffer_or_skip(fixture *r, uint64_t size)
{
    attune_buffer *buffer = NULL;
    const attune_status status = attune_buffer_create(r->device, size, &buffer);
    if (status == ATTUNE_OUT_OF_DEVICE_MEMORY) {
        char why[256];
        snprintf(why, sizeof why, "%s", attune_last_error());
        fixture_close(r);
        cr_skip_test("%s", why);
    }
    cr_assert_eq(status, ATTUNE_OK, "%s", attune_last_error());
    return r->buffers[r->count++] = buffer;
}

static attune_buffer *filled(fixture *r, uint64_t size, const void *data)
{
    attune_buffer *buffer = buffer_or_skip(r, size);
    cr_assert_eq(attune_buffer_write(buffer, 0, data, size), ATTUNE_OK, "%s", attune_last_error());
    return buffer;
}

static void skip_without_matrices(fixture *r, const char *kernel)
{
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_device_info_get(r->device, &info), ATTUNE_OK);
    if (kernel && !(info.limits.matrix & ATTUNE_MATRIX_COOPMAT)) {
        fixture_close(r);
        cr_skip_test("cooperative matrices");
    }
}

/* Queries of ones; o as floats. parts: SPLIT_KV, 0 = automatic. kernel: its name, NULL = automatic. */
static attune_status attend(fixture *r, const attune_problem *problem, uint32_t parts, const char *kernel,
                            const attune_mask *mask, attune_tensor k, attune_tensor v, float *o)
{
    const int64_t heads = problem->heads ? problem->heads : 1, batch = problem->batch ? problem->batch : 1;
    const size_t count = (size_t)(batch * heads * problem->q_len * DIM);
    uint16_t *ones = malloc(count * sizeof *ones);
    cr_assert_not_null(ones);
    for (size_t i = 0; i < count; i++)
        ones[i] = attune__f16_from_f32(1);
    attune_plan *plan;
    attune_kernel_options options = {.struct_size = sizeof options, .any.split_kv = parts};
    snprintf(options.any.kernel, sizeof options.any.kernel, "%s", kernel ? kernel : "");
    cr_assert_eq(attune_plan_create(r->device, problem, &options, &plan), ATTUNE_OK, "%s", attune_last_error());
    const attune_tensor t = {.dtype = ATTUNE_F16, .rank = 4, .size = {batch, heads, problem->q_len, DIM}};
    attune_forward_args args = {.struct_size = sizeof args, .q = t, .k = k, .v = v, .o = t, .mask = mask};
    args.q.buffer = filled(r, count * sizeof *ones, ones);
    args.o.buffer = filled(r, count * sizeof *ones, ones);
    if (attune_plan_workspace_size(plan))
        args.workspace = buffer_or_skip(r, attune_plan_workspace_size(plan));
    attune_completion completion;
    const attune_status status = attune_forward(plan, attune_device_queue(r->device), &args, &completion);
    if (status == ATTUNE_OK)
        cr_assert_eq(attune_completion_wait(completion, UINT64_MAX), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_read(args.o.buffer, 0, ones, count * sizeof *ones), ATTUNE_OK);
    for (size_t i = 0; i < count; i++)
        o[i] = attune__f32_from_f16(ones[i]);
    attune_plan_destroy(plan);
    free(ones);
    return status;
}

/* Twice f16's rounding of values below 2. */
#define TOLERANCE 2e-3

/* 160 MiB of keys and of values: all of them, one query; and only the rows at both ends, by a mask. */
static void run_past_the_binding(bool masked)
{
    fixture r = fixture_open();
    const int64_t rows = (int64_t)(160 * MIB / sizeof(half_row));
    half_row *image = calloc((size_t)rows, sizeof *image);
    attune_tensor kv[2];
    for (int n = 0; n < 2; n++) {
        if (!image) {
            fixture_close(&r);
            cr_skip_test("160 MiB of host memory");
        }
        for (int64_t i = 0; i < SPECIAL; i++) {
            image[i] = n ? value_row(i) : key_row(i);
            image[rows - SPECIAL + i] = n ? value_row(SPECIAL + i) : key_row(SPECIAL + i);
        }
        kv[n] = (attune_tensor){.dtype = ATTUNE_F16, .rank = 4, .size = {1, 1, rows, DIM}};
        kv[n].buffer = filled(&r, (uint64_t)rows * sizeof *image, image);
    }
    free(image);
    attune_problem problem = {
        .struct_size = sizeof problem, .dtype = ATTUNE_F16, .head_dim = DIM, .q_len = masked ? 3 : 1, .kv_len = rows};
    attune_expr *expr = NULL;
    attune_mask *mask = NULL;
    if (masked) {
        const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = 3, .kv_len = rows};
        cr_assert_eq(attune_expr_create(r.instance, ATTUNE_EXPR_MASK, "kv < 8 || kv >= kv_len - 8", NULL, 0, &expr),
                     ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune_mask_create(r.instance, &desc, expr, NULL, 0, NULL, 0, &mask), ATTUNE_OK, "%s",
                     attune_last_error());
        cr_assert_eq(attune_mask_upload(mask, r.device), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune_problem_set_mask(&problem, mask), ATTUNE_OK);
    }
    float o[3 * DIM];
    /* A driver that cannot read as many keys in one launch says so, and can in splits. */
    attune_status status = attend(&r, &problem, 0, NULL, mask, kv[0], kv[1], o);
    if (status == ATTUNE_UNSUPPORTED && !masked) {
        cr_expect(strstr(attune_last_error(), "SPLIT_KV"), "%s", attune_last_error());
        status = attend(&r, &problem, 256, NULL, mask, kv[0], kv[1], o);
    }
    cr_assert_eq(status, ATTUNE_OK, "%s", attune_last_error());
    for (int64_t i = 0; i < problem.q_len * DIM; i++) {
        const double wanted = expected(0, 2 * SPECIAL, masked ? 0 : (double)(rows - 2 * SPECIAL), i % DIM);
        cr_assert_float_eq((double)o[i], wanted, TOLERANCE, "element %d: %g, not %g", (int)i, (double)o[i], wanted);
    }
    attune_mask_destroy(mask);
    attune_expr_destroy(expr);
    fixture_close(&r);
}

Test(vulkan_large, keys_past_the_binding)
{
    run_past_the_binding(false);
}

Test(vulkan_large, keys_past_the_binding_masked)
{
    run_past_the_binding(true);
}

/* As many keys as a driver that bounds a shader's loops takes, in the kernel's longest way: forbidden NaN in every
 * step. */
Test(vulkan_large, the_most_keys_of_a_workgroup)
{
    for (int64_t rows = 1 << 17; rows > 4096; rows = rows / 4 * 3) {
        fixture r = fixture_open();
        half_row *image = calloc((size_t)rows, sizeof *image);
        cr_assert_not_null(image);
        attune_tensor kv[2];
        for (int n = 0; n < 2; n++) {
            for (int64_t i = 0; i < rows; i++)
                for (int d = 0; n == 1 && i % 2 && d < DIM; d++)
                    image[i].value[d] = 0x7e00; /* NaN */
            for (int64_t i = 0; i < SPECIAL; i++)
                image[rows - 2 * (SPECIAL - i)] = n ? value_row(i) : key_row(i);
            kv[n] = (attune_tensor){.dtype = ATTUNE_F16, .rank = 4, .size = {1, 1, rows, DIM}};
            kv[n].buffer = filled(&r, (uint64_t)rows * sizeof *image, image);
        }
        free(image);
        attune_problem problem = {
            .struct_size = sizeof problem, .dtype = ATTUNE_F16, .head_dim = DIM, .q_len = 40, .kv_len = rows};
        attune_expr *expr;
        attune_mask *mask;
        const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = 40, .kv_len = rows};
        cr_assert_eq(attune_expr_create(r.instance, ATTUNE_EXPR_MASK, "kv % 2 == 0", NULL, 0, &expr), ATTUNE_OK);
        cr_assert_eq(attune_mask_create(r.instance, &desc, expr, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
        cr_assert_eq(attune_mask_upload(mask, r.device), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune_problem_set_mask(&problem, mask), ATTUNE_OK);
        float o[40 * DIM];
        const attune_status status = attend(&r, &problem, 0, NULL, mask, kv[0], kv[1], o);
        for (int64_t i = 0; status == ATTUNE_OK && i < 40 * DIM; i++) {
            const double wanted = expected(0, SPECIAL, (double)(rows / 2 - SPECIAL), i % DIM);
            cr_assert_float_eq((double)o[i], wanted, TOLERANCE, "%lld keys, element %d: %g, not %g", (long long)rows,
                               (int)i, (double)o[i], wanted);
        }
        attune_mask_destroy(mask);
        attune_expr_destroy(expr);
        fixture_close(&r);
        if (status == ATTUNE_OK) {
            cr_log_info("%lld keys", (long long)rows);
            return;
        }
        cr_assert_eq(status, ATTUNE_UNSUPPORTED, "%s", attune_last_error());
    }
    cr_assert_fail("4,096 keys are refused: %s", attune_last_error());
}

/* Two real buffers that are more than 2^31 elements apart, as one tensor of the caller's: the stride between its
 * rows, heads or batches is their distance. No device here has to allocate the space between. */
static void run_far(uint32_t dimension, const char *kernel)
{
    fixture r = fixture_open();
    skip_without_matrices(&r, kernel);
    /* Each has a block of its own; what is between them is never touched. */
    const uint64_t extent = 80 * MIB, between = UINT64_C(1900) * MIB;
    attune__vulkan_buffer whole = {.base = {.device = r.device, .size = UINT64_MAX / 2}};
    VkDeviceAddress address[2];
    half_row *image = calloc(1, (size_t)extent);
    cr_assert_not_null(image);
    for (int n = 0; n < 2; n++) {
        /* Keys in the first half, values in the second. */
        for (int64_t i = 0; i < SPECIAL; i++) {
            image[i] = key_row(n * SPECIAL + i);
            image[extent / 2 / sizeof *image + (size_t)i] = value_row(n * SPECIAL + i);
        }
        attune_buffer *buffer = filled(&r, extent, image);
        address[n] = attune__vulkan_address(buffer, 0);
        for (int b = 0; n == 0 && b < 5; b++)
            (void)buffer_or_skip(&r, between);
    }
    free(image);
    const int64_t distance = (int64_t)(address[1] - address[0]);
    if (llabs(distance) / 2 <= INT64_C(1) << 31) {
        fixture_close(&r);
        cr_skip_test("the driver put the buffers %lld bytes apart", (long long)distance);
    }
    whole.address = address[0] < address[1] ? address[0] : address[1];
    /* Rows: one of each buffer. Heads, batches: eight rows of each. */
    const int64_t apart = distance / 2, rows = dimension == 2 ? 2 : SPECIAL;
    attune_tensor k = {.buffer = &whole.base,
                       .offset = address[0] - whole.address,
                       .dtype = ATTUNE_F16,
                       .rank = 4,
                       .size = {1, 1, rows, DIM},
                       .stride = {DIM * SPECIAL, DIM * SPECIAL, DIM, 1}};
    k.size[dimension] = 2;
    k.stride[dimension] = apart;
    attune_tensor v = k;
    v.offset += extent / 2;
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = ATTUNE_F16,
                                    .head_dim = DIM,
                                    .batch = k.size[0],
                                    .heads = k.size[1],
                                    .kv_heads = k.size[1],
                                    .q_len = 40,
                                    .kv_len = rows};
    float o[2 * 40 * DIM];
    cr_assert_eq(attend(&r, &problem, 0, kernel, NULL, k, v, o), ATTUNE_OK, "%s", attune_last_error());
    for (int64_t i = 0; i < k.size[0] * k.size[1] * 40 * DIM; i++) {
        const int64_t part = i / (40 * DIM), d = i % DIM;
        double wanted;
        if (dimension == 2) {
            const double weights[2] = {exp((double)key(0) * 8), exp((double)key(SPECIAL) * 8)};
            wanted =
                (weights[0] * (double)value(0, d) + weights[1] * (double)value(SPECIAL, d)) / (weights[0] + weights[1]);
        } else {
            wanted = expected(part * SPECIAL, SPECIAL, 0, d);
        }
        cr_assert_float_eq((double)o[i], wanted, TOLERANCE, "element %d: %g, not %g", (int)i, (double)o[i], wanted);
    }
    cr_log_info("%lld elements apart", (long long)apart);
    fixture_close(&r);
}

Test(vulkan_large, rows_far_apart)
{
    run_far(2, NULL);
}

Test(vulkan_large, rows_far_apart_matrix)
{
    run_far(2, "vulkan_coopmat");
}

/* Two rows at the ends of one buffer, which the kernel on matrices still reads by offsets of 32 bits. */
Test(vulkan_large, near_rows_matrix)
{
    fixture r = fixture_open();
    skip_without_matrices(&r, "vulkan_coopmat");
    const int64_t stride = (int64_t)(1900 * MIB / sizeof(half_row)) * DIM;
    attune_tensor k = {
        .dtype = ATTUNE_F16, .rank = 4, .size = {1, 1, 2, DIM}, .stride = {2 * stride, 2 * stride, stride, 1}};
    k.buffer = buffer_or_skip(&r, 1900 * MIB + MIB);
    attune_tensor v = k;
    v.offset = MIB / 2;
    for (int64_t i = 0; i < 2; i++) {
        const half_row rows[2] = {key_row(i), value_row(i)};
        const uint64_t at = (uint64_t)i * 1900 * MIB;
        cr_assert_eq(attune_buffer_write(k.buffer, at, &rows[0], sizeof rows[0]), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune_buffer_write(k.buffer, at + v.offset, &rows[1], sizeof rows[1]), ATTUNE_OK);
    }
    const attune_problem problem = {
        .struct_size = sizeof problem, .dtype = ATTUNE_F16, .head_dim = DIM, .q_len = 40, .kv_len = 2};
    float o[40 * DIM];
    cr_assert_eq(attend(&r, &problem, 0, "vulkan_coopmat", NULL, k, v, o), ATTUNE_OK, "%s", attune_last_error());
    for (int64_t i = 0; i < 40 * DIM; i++) {
        const double wanted = expected(0, 2, 0, i % DIM);
        cr_assert_float_eq((double)o[i], wanted, TOLERANCE, "element %d: %g, not %g", (int)i, (double)o[i], wanted);
    }
    fixture_close(&r);
}

Test(vulkan_large, heads_far_apart)
{
    run_far(1, NULL);
}

Test(vulkan_large, batches_far_apart)
{
    run_far(0, NULL);
}

/* d_sink of so many rows, each of which gives -1; false: the driver's bound on loops refuses them. */
static bool sum_sink(int64_t batch, int64_t q_len)
{
    fixture r = fixture_open();
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .direction = ATTUNE_BACKWARD,
                                    .dtype = ATTUNE_F32,
                                    .head_dim = 8,
                                    .batch = batch,
                                    .q_len = q_len,
                                    .kv_len = 8,
                                    .sinks = true};
    attune_plan *plan;
    cr_assert_eq(attune_plan_create(r.device, &problem, NULL, &plan), ATTUNE_OK, "%s", attune_last_error());
    /* Inputs have one row, which all share. */
    const float row[8] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    attune_tensor rows = {.dtype = ATTUNE_F32, .rank = 4, .size = {batch, 1, q_len, 8}, .stride = {0, 0, 0, 1}};
    rows.buffer = filled(&r, sizeof row, row);
    attune_tensor keys = rows, lse = rows;
    keys.size[2] = 8;
    lse.rank = 3;
    lse.stride[1] = 1; /* of one head: strides of 0 alone are those of a contiguous tensor */
    attune_tensor d_q = {.dtype = ATTUNE_F32, .rank = 4, .size = {batch, 1, q_len, 8}}, d_k = d_q;
    d_k.size[2] = 8;
    const attune_tensor sinks = {.buffer = rows.buffer, .dtype = ATTUNE_F32, .rank = 1, .size = {1}};
    attune_backward_args args = {.struct_size = sizeof args,
                                 .q = rows,
                                 .k = keys,
                                 .v = keys,
                                 .o = rows,
                                 .lse = lse,
                                 .d_o = rows,
                                 .sinks = sinks,
                                 .d_q = d_q,
                                 .d_k = d_k,
                                 .d_v = d_k,
                                 .d_sinks = sinks};
    const uint64_t key_bytes = (uint64_t)batch * 8 * sizeof row;
    args.d_q.buffer = buffer_or_skip(&r, (uint64_t)(batch * q_len) * sizeof row);
    args.d_k.buffer = buffer_or_skip(&r, key_bytes);
    args.d_v.buffer = buffer_or_skip(&r, key_bytes);
    args.d_sinks.buffer = buffer_or_skip(&r, sizeof row[0]);
    args.workspace = buffer_or_skip(&r, attune_plan_workspace_size(plan));
    attune_completion completion;
    const attune_status status = attune_backward(plan, attune_device_queue(r.device), &args, &completion);
    float sum = 0;
    if (status == ATTUNE_OK) {
        cr_assert_eq(attune_completion_wait(completion, UINT64_MAX), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune_buffer_read(args.d_sinks.buffer, 0, &sum, sizeof sum), ATTUNE_OK);
        /* delta is 8 * 0.5 * 0.5. */
        cr_expect_eq((double)sum, (double)(-2 * batch * q_len), "%g", (double)sum);
    } else {
        cr_expect_eq(status, ATTUNE_UNSUPPORTED, "%s", attune_last_error());
        cr_expect(strstr(attune_last_error(), "a head's rows"), "%s", attune_last_error());
    }
    attune_plan_destroy(plan);
    fixture_close(&r);
    return status == ATTUNE_OK;
}

/* The second has more rows of a head than a driver that bounds a shader's loops takes. */
Test(vulkan_large, rows_of_a_sink)
{
    cr_expect(sum_sink(200, 955));
    sum_sink(4000, 956);
}

/* The gradient of a capture of 2^32 elements: the kernels count them in 32 bits. The buffers only say that they are so
 * large, since the call must end before it uses them. */
Test(vulkan_large, gradient_of_too_many_elements)
{
    fixture r = fixture_open();
    attune_expr *score;
    attune_plan *plan;
    large_gradient_plan(r.instance, r.device, &score, &plan);
    attune_buffer *small = buffer_or_skip(&r, 64 * MIB), *said;
    cr_assert_eq(
        attune_vulkan_buffer_wrap(r.device, ((attune__vulkan_buffer *)small)->handle, 0, UINT64_C(1) << 42, &said),
        ATTUNE_OK, "%s", attune_last_error());
    large_gradient_refused(r.device, plan, small, said);
    attune_buffer_destroy(said);
    attune_plan_destroy(plan);
    attune_expr_destroy(score);
    fixture_close(&r);
}

/* Parts of rows whose partial results are more than 32 bits count: the message has what is too many. */
Test(vulkan_large, partial_results_of_too_many_rows)
{
    enum { PARTS = 512, BATCH = 1 << 18, WIDTH = 128 };
    fixture r = fixture_open();
    attune_plan *plan;
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = ATTUNE_F32,
                                    .head_dim = WIDTH,
                                    .batch = BATCH,
                                    .q_len = 1,
                                    .kv_len = 1 << 16};
    const attune_kernel_options options = {.struct_size = sizeof options, .any.split_kv = PARTS};
    cr_assert_eq(attune_plan_create(r.device, &problem, &options, &plan), ATTUNE_OK, "%s", attune_last_error());
    attune_buffer *small = buffer_or_skip(&r, 64 * MIB), *said;
    cr_assert_eq(
        attune_vulkan_buffer_wrap(r.device, ((attune__vulkan_buffer *)small)->handle, 0, UINT64_C(1) << 42, &said),
        ATTUNE_OK, "%s", attune_last_error());
    const attune_tensor q = {.buffer = said, .dtype = ATTUNE_F32, .rank = 4, .size = {BATCH, 1, 1, WIDTH}};
    attune_tensor k = q, o = q;
    k.size[2] = 1 << 16;
    k.stride[2] = WIDTH; /* one batch's keys serve all */
    k.stride[3] = 1;
    o.offset = UINT64_C(1) << 40;
    const attune_forward_args args = {
        .struct_size = sizeof args, .q = q, .k = k, .v = k, .o = o, .workspace = said, .workspace_offset = 1 << 30};
    cr_expect_eq(attune_forward(plan, attune_device_queue(r.device), &args, NULL), ATTUNE_UNSUPPORTED);
    cr_expect(strstr(attune_last_error(), "262144 rows of 128 columns in 512 parts"), "%s", attune_last_error());
    attune_buffer_destroy(said);
    attune_plan_destroy(plan);
    fixture_close(&r);
}
