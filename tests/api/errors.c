/* SPDX-License-Identifier: MIT */
/* Every wrong argument has a status and a message that names the value; outputs stay as they were. */
#include <criterion/criterion.h>
#include <string.h>

#include "api/flow.h"

/* Runs the flow with one argument wrong and puts the argument back. */
#define WRONG(f, field, value, words)                                                                                  \
    do {                                                                                                               \
        flow before_ = f;                                                                                              \
        f.args.field = value;                                                                                          \
        EXPECT(flow_run(&f, NULL), ATTUNE_INVALID_ARGUMENT, words);                                                    \
        f = before_;                                                                                                   \
    } while (0)

Test(errors, forward_arguments)
{
    static flow f;
    cr_assert_eq(flow_create(&f, NULL), ATTUNE_OK, "%s", attune_last_error());
    static float before[FLOW_ELEMENTS], after[FLOW_ELEMENTS];
    cr_assert_eq(attune_buffer_read(f.o, 0, before, sizeof before), ATTUNE_OK);
    WRONG(f, struct_size, 0, "struct_size is 0");
    WRONG(f, q.buffer, NULL, "q.buffer is NULL");
    WRONG(f, q.dtype, ATTUNE_F16, "q.dtype is f16 (2), expected f32");
    WRONG(f, q.dtype, (attune_dtype)99, "q.dtype is ? (99)");
    WRONG(f, q.rank, 3, "q.rank is 3, expected 4");
    WRONG(f, q.size[1], 3, "q ends at element");
    WRONG(f, q.size[1], 1, "q.size[1] is 1, expected the plan's heads, 2");
    WRONG(f, q.size[2], 0, "q.size[2] is 0");
    WRONG(f, q.size[2], -5, "q.size[2] is -5");
    WRONG(f, q.size[3], 24, "q.size[3] is 24, expected the plan's head_dim, 32");
    WRONG(f, k.size[0], 2, "k ends at element");
    WRONG(f, k.size[2], INT64_MAX / 2, "k has more than 2^63 elements");
    WRONG(f, v.size[2], 299, "v.size[2] is 299, expected the length of k, 300");
    WRONG(f, o.size[2], 299, "o.size[2] is 299, expected the length of q, 300");
    WRONG(f, q.offset, 2, "q.offset is 2, expected a multiple of the 4 bytes of f32");
    WRONG(f, q.offset, 4, "q ends at element");
    WRONG(f, q.offset, UINT64_MAX - 3, "q ends at element");
    WRONG(f, q.stride[3], 2, "q.stride[3] is 2, expected 1");
    WRONG(f, lse.size[2], 2, "lse.size[2] is 2");
    WRONG(f, lse.dtype, ATTUNE_F16, "lse.dtype is f16");
    WRONG(f, row_max, f.args.lse, "set problem.row_max");
    WRONG(f, mask, NULL, "give a mask, or make a plan without one");
    WRONG(f, capture_count, 0, "\"slope\"");
    WRONG(f, captures, NULL, "args.captures is NULL");
    WRONG(f, parameter_count, 0, "cap");
    if (f.workspace) {
        WRONG(f, workspace, NULL, "create a buffer of this size");
        WRONG(f, workspace, f.lse, "args.workspace has 2400 bytes");
        WRONG(f, workspace_offset, 100, "expected a multiple of 256");
        WRONG(f, workspace_offset, 1u << 30, "the plan needs");
    }
    f.captures[0].tensor.dtype = ATTUNE_I32;
    EXPECT(flow_run(&f, NULL), ATTUNE_INVALID_ARGUMENT, "slope.dtype is i32 (5), expected f32");
    f.captures[0].tensor.dtype = ATTUNE_F32;

    attune_tensor twice = f.args.k;
    twice.size[0] = 2;
    twice.stride[1] = FLOW_LENGTH * FLOW_DIM, twice.stride[2] = FLOW_DIM, twice.stride[3] = 1;
    WRONG(f, k, twice, "k.size[0] is 2, expected the plan's kv_batch, 1");
    attune_plan *plan = f.plan;
    f.problem.batch = 3;
    cr_assert_eq(attune_plan_create(f.device, &f.problem, NULL, &f.plan), ATTUNE_OK, "%s", attune_last_error());
    WRONG(f, k, twice, "k.size[0] is 2, expected the batch of q, 1");
    attune_plan_destroy(f.plan);
    f.plan = plan;

    attune_tensor longer = f.args.q;
    longer.size[2] = FLOW_LENGTH + 1;
    longer.stride[2] = 0, longer.stride[3] = 1;
    WRONG(f, q, longer, "the plan's limit is 300: make a plan for the largest calls");
    attune_tensor overlapping = f.args.o;
    overlapping.stride[0] = FLOW_ELEMENTS, overlapping.stride[1] = 32, overlapping.stride[2] = 32,
    overlapping.stride[3] = 1;
    WRONG(f, o, overlapping, "makes elements overlap");
    /* V as a transposed cache keeps it. */
    attune_tensor transposed = f.args.v;
    transposed.stride[0] = FLOW_ELEMENTS, transposed.stride[1] = FLOW_LENGTH * FLOW_DIM, transposed.stride[2] = 1,
    transposed.stride[3] = FLOW_LENGTH;
    WRONG(f, v, transposed,
          "v is transposed: stride[2] is 1 and stride[3] 300, so that its length (size[2] 300) is contiguous, "
          "expected its rows of 32 (size[3])");
    attune_tensor outside = f.args.q;
    outside.stride[0] = 1, outside.stride[1] = -9600, outside.stride[2] = 32, outside.stride[3] = 1;
    WRONG(f, q, outside, "begins 9600 elements before its buffer");

    cr_assert_eq(attune_buffer_read(f.o, 0, after, sizeof after), ATTUNE_OK);
    cr_assert_eq(memcmp(before, after, sizeof before), 0, "an error changed the output");
    cr_assert_eq(flow_run(&f, after), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_neq(memcmp(before, after, sizeof before), 0);
    flow_destroy(&f);
}

Test(errors, masks_of_another_plan)
{
    static flow f;
    cr_assert_eq(flow_create(&f, NULL), ATTUNE_OK, "%s", attune_last_error());
    attune_expr *causal, *uses_length;
    cr_assert_eq(attune_expr_create(f.instance, ATTUNE_EXPR_MASK, "causal", NULL, 0, &causal), ATTUNE_OK);
    cr_assert_eq(attune_expr_create(f.instance, ATTUNE_EXPR_MASK, "q + kv < q_len", NULL, 0, &uses_length), ATTUNE_OK);
    attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = 300, .kv_len = 300};
    attune_mask *mask;
    cr_assert_eq(attune_mask_create(f.instance, &desc, causal, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
    WRONG(f, mask, mask, "another expression than the plan, \"q >= kv\" instead of \"doc[kv] == doc[q] && q >= kv\"");
    attune_mask_destroy(mask);
    static const uint8_t all[2 * 300 * 300] = {1};
    desc.heads = 2;
    for (int64_t heads = 1; heads <= 2; heads++) {
        const attune_array dense = {.data = all, .dtype = ATTUNE_U8, .rank = 4, .size = {1, heads, 300, 300}};
        cr_assert_eq(attune_mask_create_dense(f.instance, &desc, &dense, &mask), ATTUNE_OK, "%s", attune_last_error());
        WRONG(f, mask, mask, heads == 1 ? "\"dense[0, 0, q, kv]\" instead of" : "\"dense[0, h, q, kv]\" instead of");
        attune_mask_destroy(mask);
    }
    desc.heads = 0;

    const attune_host_capture doc = {"doc", {.data = f.doc, .dtype = ATTUNE_I32, .rank = 1, .size = {FLOW_LENGTH}}};
    cr_assert_eq(attune_mask_create(f.instance, &desc, f.mask_expr, &doc, 1, NULL, 0, &mask), ATTUNE_OK);
    WRONG(f, mask, mask, "call attune_mask_upload");
    attune_mask_destroy(mask);
    desc.kv_len = 299;
    cr_assert_eq(attune_mask_create(f.instance, &desc, f.mask_expr, &doc, 1, NULL, 0, &mask), ATTUNE_OK);
    WRONG(f, mask, mask, "shorter than q_len 300 x kv_len 300");
    attune_mask_destroy(mask);
    desc.kv_len = 300;
    desc.q_block = 64;
    cr_assert_eq(attune_mask_create(f.instance, &desc, f.mask_expr, &doc, 1, NULL, 0, &mask), ATTUNE_OK);
    WRONG(f, mask, mask, "blocks of 64 x 128, the plan was made for 128 x 128");
    attune_mask_destroy(mask);

    /* An expression with lengths means something else at other lengths. */
    desc.q_block = 0;
    desc.kv_len = 400;
    cr_assert_eq(attune_mask_create(f.instance, &desc, uses_length, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
    cr_assert_eq(attune_mask_upload(mask, f.device), ATTUNE_OK);
    attune_problem problem = f.problem;
    cr_assert_eq(attune_problem_set_mask(&problem, mask), ATTUNE_OK);
    attune_plan *plan = f.plan;
    cr_assert_eq(attune_plan_create(f.device, &problem, NULL, &f.plan), ATTUNE_OK, "%s", attune_last_error());
    WRONG(f, mask, mask, "uses q_len or kv_len");
    attune_plan_destroy(f.plan);
    f.plan = plan;
    attune_mask_destroy(mask);
    attune_expr_destroy(causal);
    attune_expr_destroy(uses_length);
    flow_destroy(&f);
}

Test(errors, instances_and_devices)
{
    attune_instance *instance = (attune_instance *)1;
    attune_instance_desc desc = {0};
    EXPECT(attune_instance_create(&desc, &instance), ATTUNE_INVALID_ARGUMENT, "struct_size is 0");
    cr_assert_null(instance);
    desc = (attune_instance_desc){.struct_size = sizeof desc, .cpu_threads = 100000};
    EXPECT(attune_instance_create(&desc, &instance), ATTUNE_INVALID_ARGUMENT, "cpu_threads is 100000");
    desc = (attune_instance_desc){.struct_size = sizeof desc, .compile_threads = 65};
    EXPECT(attune_instance_create(&desc, &instance), ATTUNE_INVALID_ARGUMENT, "compile_threads is 65");
    desc = (attune_instance_desc){.struct_size = sizeof desc, .log_level = (attune_log_level)9};
    EXPECT(attune_instance_create(&desc, &instance), ATTUNE_INVALID_ARGUMENT, "log_level is 9");
    EXPECT(attune_instance_create(NULL, NULL), ATTUNE_INVALID_ARGUMENT, "instance is NULL");
    /* A caller with a newer header: unknown fields must be zero. */
    struct {
        attune_instance_desc desc;
        uint64_t newer[2];
    } longer = {.desc.struct_size = sizeof longer, .newer = {0, 7}};
    EXPECT(attune_instance_create(&longer.desc, &instance), ATTUNE_UNSUPPORTED, "does not have");
    longer.newer[1] = 0;
    cr_assert_eq(attune_instance_create(&longer.desc, &instance), ATTUNE_OK);

    attune_device *device = (attune_device *)1;
    EXPECT(attune_device_open(instance, "gpu", &device), ATTUNE_INVALID_ARGUMENT, "device id \"gpu\" is invalid");
    cr_assert_null(device);
    EXPECT(attune_device_open(instance, "cpu:", &device), ATTUNE_INVALID_ARGUMENT, "expected a number");
    EXPECT(attune_device_open(instance, "cpu:x", &device), ATTUNE_INVALID_ARGUMENT, "expected a number");
    EXPECT(attune_device_open(instance, "cpu:99999999999", &device), ATTUNE_INVALID_ARGUMENT, "expected a number");
    EXPECT(attune_device_open(instance, "cpu:1", &device), ATTUNE_UNAVAILABLE, "this machine has 1 of cpu");
    EXPECT(attune_device_open(instance, NULL, &device), ATTUNE_INVALID_ARGUMENT, "id is NULL");
    EXPECT(attune_device_open(NULL, "cpu", &device), ATTUNE_INVALID_ARGUMENT, "instance is NULL");

    uint32_t count;
    cr_assert_eq(attune_device_count(instance, &count), ATTUNE_OK);
    cr_assert_geq(count, 4);
    bool seen[5] = {false};
    for (uint32_t i = 0; i < count; i++) {
        attune_device_info info = {.struct_size = sizeof info};
        cr_assert_eq(attune_device_describe(instance, i, &info), ATTUNE_OK);
        cr_assert(info.available != (info.reason[0] != '\0'), "%s: \"%s\"", info.id, info.reason);
        seen[info.backend] = true;
    }
    for (int i = 1; i < 5; i++)
        cr_assert(seen[i]);
    attune_device_info info = {.struct_size = sizeof info};
    EXPECT(attune_device_describe(instance, count, &info), ATTUNE_INVALID_ARGUMENT, "index is");

    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
    attune_buffer *buffer = (attune_buffer *)1;
    EXPECT(attune_buffer_create(device, 0, &buffer), ATTUNE_INVALID_ARGUMENT, "size is 0");
    cr_assert_null(buffer);
    EXPECT(attune_buffer_wrap(device, NULL, 5, &buffer), ATTUNE_INVALID_ARGUMENT, "memory is NULL");
    attune_status huge = attune_buffer_create(device, UINT64_MAX - 10, &buffer);
    cr_assert(huge == ATTUNE_OUT_OF_HOST_MEMORY || huge == ATTUNE_OUT_OF_DEVICE_MEMORY, "%s",
              attune_status_string(huge));
    cr_assert_eq(attune_buffer_create(device, 16, &buffer), ATTUNE_OK);
    char bytes[32] = {0};
    EXPECT(attune_buffer_write(buffer, 8, bytes, 9), ATTUNE_INVALID_ARGUMENT, "exceeds the buffer's 16 bytes");
    EXPECT(attune_buffer_read(buffer, UINT64_MAX, bytes, 2), ATTUNE_INVALID_ARGUMENT, "exceeds the buffer");
    EXPECT(attune_buffer_read(buffer, 0, NULL, 2), ATTUNE_INVALID_ARGUMENT, "data is NULL");
    attune_buffer_destroy(buffer);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(errors, masks)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_expr *causal, *cap;
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "causal", NULL, 0, &causal), ATTUNE_OK);
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "softcap(30)", NULL, 0, &cap), ATTUNE_OK);
    attune_mask *mask;
    const attune_mask_desc good = {.struct_size = sizeof good, .q_len = 10, .kv_len = 10};
#define BAD_DESC(field, value, words)                                                                                  \
    do {                                                                                                               \
        attune_mask_desc desc = good;                                                                                  \
        desc.field = value;                                                                                            \
        EXPECT(attune_mask_create(instance, &desc, causal, NULL, 0, NULL, 0, &mask), ATTUNE_INVALID_ARGUMENT, words);  \
        cr_assert_null(mask);                                                                                          \
    } while (0)
    BAD_DESC(struct_size, 3, "struct_size is 3");
    BAD_DESC(q_len, 0, "q_len is 0");
    BAD_DESC(kv_len, -1, "kv_len is -1");
    BAD_DESC(kv_len, INT64_C(1) << 31, "kv_len is 2147483648");
    BAD_DESC(q_block, 8, "q_block is 8, expected a multiple of 16");
    BAD_DESC(kv_block, 100, "kv_block is 100");
    BAD_DESC(kv_block, 2048, "kv_block is 2048");
    BAD_DESC(batch, -2, "batch is -2");
    BAD_DESC(kv_heads, 3, "kv_heads is 3, which does not divide heads 1");
    EXPECT(attune_mask_create(instance, &good, cap, NULL, 0, NULL, 0, &mask), ATTUNE_INVALID_ARGUMENT,
           "score expression");
    EXPECT(attune_mask_create(instance, &good, NULL, NULL, 0, NULL, 0, &mask), ATTUNE_INVALID_ARGUMENT, "expr is NULL");
    cr_assert_eq(attune_mask_create(instance, &good, causal, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
    char text[16];
    EXPECT(attune_mask_draw_text(mask, 1, 0, 10, 10, text, sizeof text, NULL), ATTUNE_INVALID_ARGUMENT, "batch is 1");
    EXPECT(attune_mask_draw_text(mask, 0, 0, 0, 10, text, sizeof text, NULL), ATTUNE_INVALID_ARGUMENT,
           "columns x rows");
    attune_mask_destroy(mask);
    attune_expr_destroy(causal);
    attune_expr_destroy(cap);
    attune_instance_destroy(instance);
}

Test(errors, plans)
{
    static flow f;
    cr_assert_eq(flow_create(&f, NULL), ATTUNE_OK, "%s", attune_last_error());
    attune_plan *plan = NULL;
#define BAD_PROBLEM(field, value, status, words)                                                                       \
    do {                                                                                                               \
        attune_problem problem = f.problem;                                                                            \
        problem.field = value;                                                                                         \
        EXPECT(attune_plan_create(f.device, &problem, NULL, &plan), status, words);                                    \
        cr_assert_null(plan);                                                                                          \
    } while (0)
    BAD_PROBLEM(struct_size, 1, ATTUNE_INVALID_ARGUMENT, "struct_size is 1");
    BAD_PROBLEM(head_dim, 0, ATTUNE_UNSUPPORTED, "head_dim");
    BAD_PROBLEM(head_dim, 20, ATTUNE_UNSUPPORTED, "20");
    BAD_PROBLEM(head_dim, 584, ATTUNE_UNSUPPORTED, "584");
    BAD_PROBLEM(head_dim_v, 7, ATTUNE_UNSUPPORTED, "7");
    BAD_PROBLEM(kv_heads, 3, ATTUNE_INVALID_ARGUMENT, "3");
    BAD_PROBLEM(kv_batch, 5, ATTUNE_INVALID_ARGUMENT, "problem.kv_batch is 5, expected 1 or the batch, which is 1");
    BAD_PROBLEM(q_len, 0, ATTUNE_INVALID_ARGUMENT, "q_len");
    BAD_PROBLEM(dtype, ATTUNE_I32, ATTUNE_INVALID_ARGUMENT, "i32");
    BAD_PROBLEM(kv_dtype, ATTUNE_I32, ATTUNE_INVALID_ARGUMENT,
                "problem.kv_dtype is i32 (5), expected f32, f16 or bf16");
    BAD_PROBLEM(o_dtype, (attune_dtype)77, ATTUNE_INVALID_ARGUMENT, "problem.o_dtype is ? (77)");
    BAD_PROBLEM(kv_dtype, ATTUNE_F64, ATTUNE_INVALID_ARGUMENT,
                "problem.kv_dtype is f64 (4), expected f32, f16 or bf16");
    BAD_PROBLEM(score, f.mask_expr, ATTUNE_INVALID_ARGUMENT, "problem.score is a mask expression, expected a score");
    BAD_PROBLEM(mask, f.score_expr, ATTUNE_INVALID_ARGUMENT, "problem.mask is a score expression, expected a mask");
    BAD_PROBLEM(direction, (attune_direction)7, ATTUNE_INVALID_ARGUMENT, "problem.direction is 7");
    BAD_PROBLEM(capture_gradient_elements, -1, ATTUNE_INVALID_ARGUMENT, "problem.capture_gradient_elements is -1");
    attune_problem mixed = f.problem;
    mixed.dtype = ATTUNE_F64;
    mixed.o_dtype = ATTUNE_F32;
    EXPECT(attune_plan_create(f.device, &mixed, NULL, &plan), ATTUNE_INVALID_ARGUMENT,
           "problem.dtype is f64, kv_dtype f64 and o_dtype f32: float64 plans have one dtype");
    mixed.dtype = mixed.o_dtype = (attune_dtype)0;
    mixed.kv_dtype = ATTUNE_BF16;
    cr_assert_eq(attune_plan_create(f.device, &mixed, NULL, &plan), ATTUNE_OK, "%s", attune_last_error());
    EXPECT(attune_forward(plan, attune_device_queue(f.device), &f.args, NULL), ATTUNE_INVALID_ARGUMENT,
           "k.dtype is f32 (1), expected bf16");
    attune_plan_destroy(plan);
    mixed.kv_dtype = (attune_dtype)0;
    mixed.o_dtype = ATTUNE_F16;
    cr_assert_eq(attune_plan_create(f.device, &mixed, NULL, &plan), ATTUNE_OK, "%s", attune_last_error());
    EXPECT(attune_forward(plan, attune_device_queue(f.device), &f.args, NULL), ATTUNE_INVALID_ARGUMENT,
           "o.dtype is f32 (1), expected f16");
    attune_plan_destroy(plan);
    attune_backward_args backward = {.struct_size = sizeof backward};
    EXPECT(attune_backward(f.plan, attune_device_queue(f.device), &backward, NULL), ATTUNE_INVALID_ARGUMENT,
           "the plan's direction is forward");
    EXPECT(attune_forward(f.plan, NULL, &f.args, NULL), ATTUNE_INVALID_ARGUMENT, "queue is NULL");
    EXPECT(attune_forward(NULL, NULL, &f.args, NULL), ATTUNE_INVALID_ARGUMENT, "plan is NULL");
    flow_destroy(&f);
}

Test(errors, null_is_accepted_by_every_destroy)
{
    attune_instance_destroy(NULL);
    attune_device_destroy(NULL);
    attune_buffer_destroy(NULL);
    attune_expr_destroy(NULL);
    attune_mask_destroy(NULL);
    attune_plan_destroy(NULL);
    cr_assert_eq(attune_buffer_size(NULL), 0);
    cr_assert_null(attune_device_queue(NULL));
    cr_assert_str_eq(attune_status_string((attune_status)12345), "ATTUNE_UNKNOWN");
    cr_assert_str_eq(attune_dtype_string((attune_dtype)0), "?");
}
