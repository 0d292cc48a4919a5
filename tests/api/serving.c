/* SPDX-License-Identifier: MIT */
/* Serving calls: their refusals, and their promises beside values. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "api/extremes.h"
#include "api/flow.h"
#include "support/devices.h"

#define OK(call)             cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())
#define REFUSED(call, words) EXPECT(call, ATTUNE_INVALID_ARGUMENT, words)

Test(serving, sinks_are_required_and_never_ignored)
{
    static flow f;
    static float plain[FLOW_ELEMENTS], with[FLOW_ELEMENTS];
    OK(flow_create(&f, NULL));
    OK(flow_run(&f, plain));
    attune_buffer *buffer;
    float sinks[FLOW_HEADS] = {-INFINITY, 2};
    OK(attune_buffer_create(f.device, sizeof sinks, &buffer));
    OK(attune_buffer_write(buffer, 0, sinks, sizeof sinks));
    f.args.sinks = (attune_tensor){.buffer = buffer, .dtype = ATTUNE_F32, .rank = 1, .size = {FLOW_HEADS}};
    REFUSED(flow_run(&f, NULL), "args.sinks is set, but the plan adds none: set problem.sinks");
    attune_plan_destroy(f.plan);
    f.problem.sinks = true;
    OK(attune_plan_create(f.device, &f.problem, NULL, &f.plan));
    OK(flow_run(&f, with));
    const size_t head = FLOW_ELEMENTS / FLOW_HEADS;
    cr_expect_eq(memcmp(plain, with, head * sizeof *plain), 0, "a sink of -inf changes nothing");
    for (size_t i = head; i < FLOW_ELEMENTS; i++)
        cr_assert_lt(fabsf(with[i]), fabsf(plain[i]), "a sink takes weight from every key");
    f.args.sinks.size[0] = FLOW_HEADS - 1;
    REFUSED(flow_run(&f, NULL), "sinks.size[0] is 1, expected the plan's heads, 2");
    f.args.sinks.size[0] = FLOW_HEADS;
    f.args.sinks.dtype = ATTUNE_F16;
    REFUSED(flow_run(&f, NULL), "sinks.dtype is f16");
    f.args.sinks.dtype = ATTUNE_F32;
    f.args.sinks.buffer = NULL;
    REFUSED(flow_run(&f, NULL), "sinks.buffer is NULL");
    attune_buffer_destroy(buffer);
    flow_destroy(&f);
}

/* A head's rows are NaN, and no other's. */
Test(serving, sinks_that_are_not_finite)
{
    static flow f;
    static float o[FLOW_ELEMENTS];
    OK(flow_create(&f, NULL));
    attune_plan_destroy(f.plan);
    f.problem.sinks = true;
    OK(attune_plan_create(f.device, &f.problem, NULL, &f.plan));
    attune_buffer *buffer;
    OK(attune_buffer_create(f.device, FLOW_HEADS * sizeof *o, &buffer));
    f.args.sinks = (attune_tensor){.buffer = buffer, .dtype = ATTUNE_F32, .rank = 1, .size = {FLOW_HEADS}};
    for (int i = 0; i < 2; i++) {
        const float sinks[FLOW_HEADS] = {0, i ? INFINITY : NAN};
        OK(attune_buffer_write(buffer, 0, sinks, sizeof sinks));
        OK(flow_run(&f, o));
        for (size_t j = 0; j < FLOW_ELEMENTS; j++)
            cr_assert_eq(isnan(o[j]) != 0, j >= FLOW_ELEMENTS / FLOW_HEADS);
    }
    attune_buffer_destroy(buffer);
    flow_destroy(&f);
}

/* Two sequences, of 3 rows and 20 keys and of 1 and 9, in pages of 8; heads of 2 on 1 and 16 columns. */
typedef struct served {
    attune_instance *instance;
    attune_device *device;
    attune_plan *plan;
    attune_problem problem;
    attune_cache cache;
    attune_batch batch;
    attune_forward_args args;
    float q[4 * 2 * 16], pool[6 * 2 * 8 * 16], o[4 * 2 * 16], lse[4 * 2];
    int32_t q_start[3], kv_len[2], pages[2 * 3], list[5], list_start[3], tree[4], count[1], kv_first[2];
    attune_buffer *buffers[28];
    uint32_t buffer_count;
} served;

static attune_tensor wrap(served *s, void *data, size_t bytes, attune_dtype dtype, uint32_t rank, int64_t a, int64_t b,
                          int64_t c, int64_t d)
{
    attune_buffer **buffer = &s->buffers[s->buffer_count++];
    OK(attune_buffer_wrap(s->device, data, bytes, buffer));
    return (attune_tensor){.buffer = *buffer, .dtype = dtype, .rank = rank, .size = {a, b, c, d}};
}

static void served_create(served *s)
{
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < sizeof s->q / sizeof s->q[0]; i++)
        s->q[i] = sinf((float)i);
    for (size_t i = 0; i < sizeof s->pool / sizeof s->pool[0]; i++)
        s->pool[i] = cosf((float)i * 0.7f);
    memcpy(s->q_start, (int32_t[]){0, 3, 4}, sizeof s->q_start);
    memcpy(s->kv_len, (int32_t[]){20, 9}, sizeof s->kv_len);
    memcpy(s->pages, (int32_t[]){5, 0, 3, 1, 2, -1}, sizeof s->pages);
    memcpy(s->list, (int32_t[]){5, 0, 3, 1, 2}, sizeof s->list);
    memcpy(s->list_start, (int32_t[]){0, 3, 5}, sizeof s->list_start);
    s->count[0] = 2;
    OK(attune_instance_create(NULL, &s->instance));
    OK(attune_device_open(s->instance, "cpu", &s->device));
    s->problem = (attune_problem){.struct_size = sizeof s->problem,
                                  .head_dim = 16,
                                  .batch = 2,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .q_len = 3,
                                  .kv_len = 24,
                                  .lse = true,
                                  .tokens = 4,
                                  .page = 8,
                                  .tree = true};
    OK(attune_plan_create(s->device, &s->problem, NULL, &s->plan));
    s->cache = (attune_cache){.struct_size = sizeof s->cache,
                              .k = wrap(s, s->pool, sizeof s->pool / 2, ATTUNE_F32, 4, 6, 1, 8, 16),
                              .v = wrap(s, s->pool + 6 * 8 * 16, sizeof s->pool / 2, ATTUNE_F32, 4, 6, 1, 8, 16),
                              .pages = wrap(s, s->pages, sizeof s->pages, ATTUNE_I32, 2, 2, 3, 0, 0)};
    s->batch = (attune_batch){.struct_size = sizeof s->batch,
                              .q_start = wrap(s, s->q_start, sizeof s->q_start, ATTUNE_I32, 1, 3, 0, 0, 0),
                              .kv_len = wrap(s, s->kv_len, sizeof s->kv_len, ATTUNE_I32, 1, 2, 0, 0, 0),
                              .kv_first = wrap(s, s->kv_first, sizeof s->kv_first, ATTUNE_I32, 1, 2, 0, 0, 0),
                              .count = wrap(s, s->count, sizeof s->count, ATTUNE_I32, 1, 1, 0, 0, 0)};
    s->args = (attune_forward_args){.struct_size = sizeof s->args,
                                    .q = wrap(s, s->q, sizeof s->q, ATTUNE_F32, 3, 4, 2, 16, 0),
                                    .o = wrap(s, s->o, sizeof s->o, ATTUNE_F32, 3, 4, 2, 16, 0),
                                    .lse = wrap(s, s->lse, sizeof s->lse, ATTUNE_F32, 2, 4, 2, 0, 0),
                                    .cache = &s->cache,
                                    .batch = &s->batch};
    OK(attune_buffer_create(s->device, attune_plan_workspace_size(s->plan), &s->args.workspace));
}

static void served_destroy(served *s)
{
    for (uint32_t i = 0; i < s->buffer_count; i++)
        attune_buffer_destroy(s->buffers[i]);
    attune_buffer_destroy(s->args.workspace);
    attune_plan_destroy(s->plan);
    attune_device_destroy(s->device);
    attune_instance_destroy(s->instance);
}

static attune_status serve(served *s)
{
    for (size_t i = 0; i < sizeof s->o / sizeof s->o[0]; i++)
        s->o[i] = 99;
    for (size_t i = 0; i < sizeof s->lse / sizeof s->lse[0]; i++)
        s->lse[i] = 99;
    attune_completion completion;
    const attune_status status = attune_forward(s->plan, attune_device_queue(s->device), &s->args, &completion);
    return status == ATTUNE_OK ? attune_completion_wait(completion, UINT64_MAX) : status;
}

/* Each row is computed, or masked (o = 0, lse = -inf), or not written. */
static void expect_rows(const served *s, const char *rows, const char *what)
{
    for (int i = 0; i < 4; i++) {
        const float o = s->o[i * 32], lse = s->lse[i * 2];
        const char found = o == 99 && lse == 99 ? '.' : o == 0 && lse == -INFINITY ? '0' : isfinite(lse) ? 'x' : '?';
        cr_expect_eq(found, rows[i], "%s: row %d is %c, expected %c", what, i, found, rows[i]);
    }
}

Test(serving, problems)
{
    static served s;
    attune_plan *plan;
    served_create(&s);
#define BAD(change, status, words)                                                                                     \
    do {                                                                                                               \
        attune_problem problem = s.problem;                                                                            \
        change;                                                                                                        \
        EXPECT(attune_plan_create(s.device, &problem, NULL, &plan), status, words);                                    \
    } while (0)
    BAD(problem.tokens = -1, ATTUNE_INVALID_ARGUMENT, "problem.tokens is -1");
    BAD((problem.tokens = INT32_MAX, problem.heads = 1 << 20), ATTUNE_INVALID_ARGUMENT,
        "problem has tokens 2147483647 x heads 1048576 rows, expected at most 2^40");
    BAD(problem.page = -8, ATTUNE_INVALID_ARGUMENT, "problem.page is -8");
    BAD(problem.tokens = 0, ATTUNE_INVALID_ARGUMENT, "problem.page is set, but problem.tokens is 0");
    BAD(problem.tokens = problem.page = 0, ATTUNE_INVALID_ARGUMENT, "problem.tree is set, but problem.tokens is 0");
    BAD((problem.tokens = problem.page = 0, problem.tree = false, problem.split_keys = 256), ATTUNE_INVALID_ARGUMENT,
        "problem.split_keys is set, but problem.tokens is 0");
    BAD((problem.tokens = problem.page = 0, problem.tree = false, problem.shared_sequences = 2),
        ATTUNE_INVALID_ARGUMENT, "problem.shared_sequences is set, but problem.tokens is 0");
    BAD(problem.shared_sequences = (uint32_t)problem.batch + 1, ATTUNE_INVALID_ARGUMENT, "expected at most the batch");
    BAD(problem.split_keys = 100, ATTUNE_INVALID_ARGUMENT, "problem.split_keys is 100, expected a multiple of 256");
    BAD(problem.segments = 2, ATTUNE_INVALID_ARGUMENT, "problem.segments 2");
    BAD(problem.block_mask = true, ATTUNE_INVALID_ARGUMENT, "problem.block_mask is set without problem.mask");
    BAD(problem.kv_batch = 1, ATTUNE_INVALID_ARGUMENT, "problem.kv_batch is 1");
    BAD(problem.direction = ATTUNE_BACKWARD, ATTUNE_UNSUPPORTED, "serving is forward only");
#undef BAD
    attune_kernel_options options = {.struct_size = sizeof options, .any = {.force_use_flex_attention = ATTUNE_OFF}};
    EXPECT(attune_plan_create(s.device, &s.problem, &options, &plan), ATTUNE_UNSUPPORTED, "leave the option out");
    attune_profile profile = {.struct_size = sizeof profile};
    attune_plan_choice choice = {.struct_size = sizeof choice};
    static const char *const devices[] = {"h200", "a6000"};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        attune_problem problem = s.problem;
        OK(attune_profile_find(devices[i], &profile));
        OK(attune_plan_choose(&profile.limits, &problem, NULL, &choice));
        cr_expect_str_eq(choice.kernel, "cuda_sm80");
        problem.split_keys = 256;
        problem.kv_len = 4096;
        OK(attune_plan_choose(&profile.limits, &problem, NULL, &choice));
        options = (attune_kernel_options){.struct_size = sizeof options, .any = {.block_n = 48}};
        EXPECT(attune_plan_choose(&profile.limits, &problem, &options, &choice), ATTUNE_INVALID_ARGUMENT,
               "it must divide problem.split_keys");
        problem = s.problem;
        problem.kv_dtype = ATTUNE_MXFP4;
        EXPECT(attune_plan_choose(&profile.limits, &problem, NULL, &choice), ATTUNE_UNSUPPORTED, "mxfp4");
        options = (attune_kernel_options){.struct_size = sizeof options, .any = {.num_stages = 2}};
        problem.kv_dtype = ATTUNE_I8;
        EXPECT(attune_plan_choose(&profile.limits, &problem, &options, &choice), ATTUNE_INVALID_ARGUMENT,
               "converted as they are read have one stage");
    }
    static const char *const kernels[][2] = {
        {"rdna3", "vulkan_subgroup"}, {"pocl", "opencl_serving"}, {"opencl-minimum", "opencl_serving"}};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        attune_problem problem = s.problem;
        OK(attune_profile_find(kernels[i][0], &profile));
        OK(attune_plan_choose(&profile.limits, &problem, NULL, &choice));
        cr_expect_str_eq(choice.kernel, kernels[i][1]);
        problem.split_keys = 256;
        OK(attune_plan_choose(&profile.limits, &problem, NULL, &choice));
    }
    OK(attune_profile_find("rusticl", &profile));
    s.problem.kv_len = 100000;
    EXPECT(attune_plan_choose(&profile.limits, &s.problem, NULL, &choice), ATTUNE_UNSUPPORTED,
           "there are more keys than the driver lets one workgroup read");
    served_destroy(&s);
}

Test(serving, arguments)
{
    static served s;
    served_create(&s);
    OK(serve(&s));
    expect_rows(&s, "xxxx", "as it is");
#define BAD(change, restore, words)                                                                                    \
    do {                                                                                                               \
        change;                                                                                                        \
        REFUSED(serve(&s), words);                                                                                     \
        restore;                                                                                                       \
    } while (0)
    BAD(s.args.cache = NULL, s.args.cache = &s.cache, "args.cache is NULL");
    BAD(s.args.batch = NULL, s.args.batch = &s.batch, "args.batch is NULL");
    BAD(s.cache.struct_size = 8, s.cache.struct_size = sizeof s.cache, "args.cache.struct_size is 8");
    BAD(s.args.q.size[0] = 3, s.args.q.size[0] = 4, "o.size[0] is 4, expected that of q, 3");
    BAD(s.args.q.rank = 4, s.args.q.rank = 3, "q.rank is 4, expected 3");
    BAD(s.cache.k.size[2] = 4, s.cache.k.size[2] = 8, "cache.k.size[2] is 4, expected the plan's page, 8");
    BAD(s.cache.k.dtype = ATTUNE_F16, s.cache.k.dtype = ATTUNE_F32, "cache.k.dtype is f16");
    BAD(s.cache.k.size[0] = 7, s.cache.k.size[0] = 6, "cache.k ends at element");
    BAD(s.cache.v.size[0] = 5, s.cache.v.size[0] = 6, "cache.v.size[0] is 5, expected that of cache.k, 6");
    BAD(s.cache.pages.size[0] = 1, s.cache.pages.size[0] = 2, "cache.pages has 1 rows, but the batch has 2");
    BAD(s.cache.pages.dtype = ATTUNE_I64, s.cache.pages.dtype = ATTUNE_I32, "cache.pages.dtype is i64");
    attune_tensor table = s.cache.pages;
    BAD(s.cache.pages.buffer = NULL, s.cache.pages = table, "cache.pages.buffer is NULL");
    BAD(s.batch.q_start.size[0] = 2, s.batch.q_start.size[0] = 3, "expected one more than batch.kv_len, 3");
    BAD(s.batch.shared = s.batch.q_start, s.batch.shared.buffer = NULL,
        "batch.shared.size[0] is 3, expected the sequen");
    BAD(s.batch.kv_first.size[0] = 1, s.batch.kv_first.size[0] = 2, "batch.kv_first.size[0] is 1");
    attune_tensor lengths = s.batch.kv_len;
    BAD(s.batch.kv_len.buffer = NULL, s.batch.kv_len = lengths, "batch.kv_len.buffer is NULL");
    attune_tensor tree = wrap(&s, s.tree, sizeof s.tree, ATTUNE_I32, 2, 2, 2, 0, 0);
    BAD(s.batch.tree = tree, s.batch.tree.buffer = NULL, "batch.tree.size[0] is 2, expected the rows of q, 4");
    attune_tensor v = s.cache.v;
    s.cache.v.buffer = NULL;
    OK(serve(&s));
    s.cache.v = v;
#undef BAD
    /* A plan without serving, and one without a tree. */
    static flow f;
    OK(flow_create(&f, NULL));
    f.args.batch = &s.batch;
    REFUSED(flow_run(&f, NULL), "args.batch is set, but the plan reads no cache: set problem.tokens");
    flow_destroy(&f);
    attune_plan_destroy(s.plan);
    s.problem.tree = false;
    OK(attune_plan_create(s.device, &s.problem, NULL, &s.plan));
    s.batch.tree = wrap(&s, s.tree, sizeof s.tree, ATTUNE_I32, 2, 4, 1, 0, 0);
    REFUSED(serve(&s), "batch.tree is set, but the plan has no tree");
    s.batch.tree.buffer = NULL;
    attune_plan_destroy(s.plan);
    s.problem.page = 0;
    OK(attune_plan_create(s.device, &s.problem, NULL, &s.plan));
    REFUSED(serve(&s), "cache.pages is set, but the plan has one page for each sequence");
    s.cache.pages.buffer = NULL;
    s.cache.k.size[0] = s.cache.v.size[0] = 1;
    REFUSED(serve(&s), "cache.k has 1 pages, one for each sequence, but the batch has 2");
    served_destroy(&s);
}

/* Faults that only the device can find: the memory is the caller's, so that a wrong address is outside of an array. */
Test(serving, contents)
{
    static served s;
    served_create(&s);
#define WITH(array, values, rows)                                                                                      \
    do {                                                                                                               \
        int32_t kept[sizeof s.array / sizeof s.array[0]];                                                              \
        memcpy(kept, s.array, sizeof kept);                                                                            \
        memcpy(s.array, (int32_t[])values, sizeof kept);                                                               \
        OK(serve(&s));                                                                                                 \
        expect_rows(&s, rows, #array " " #values);                                                                     \
        memcpy(s.array, kept, sizeof kept);                                                                            \
    } while (0)
#define LIST(...) {__VA_ARGS__}
    WITH(q_start, LIST(0, 0, 1), "x...");
    WITH(q_start, LIST(2, 2, 2), "....");
    WITH(q_start, LIST(3, 1, 2), ".x..");
    WITH(q_start, LIST(-1, 1, 3), ".xx.");
    WITH(q_start, LIST(0, 3, 5), "xxx.");
    WITH(q_start, LIST(0, 4, 4), "....");
    WITH(q_start, LIST(INT32_MIN, INT32_MAX, 4), "....");
    WITH(kv_len, LIST(0, 9), "000x");
    WITH(kv_len, LIST(-5, 24), "000x");
    WITH(kv_len, LIST(25, 9), "000x");
    WITH(kv_len, LIST(INT32_MAX, INT32_MIN), "0000");
    WITH(kv_first, LIST(20, 9), "0000");
    WITH(kv_first, LIST(INT32_MAX, INT32_MIN), "000x");
    WITH(count, LIST(1), "xxx.");
    WITH(count, LIST(-3), "....");
    WITH(count, LIST(INT32_MAX), "xxxx");
    WITH(pages, LIST(-1, 6, INT32_MAX, 1, INT32_MIN, 2), "000x");
    int32_t shared[2];
    s.batch.shared = wrap(&s, shared, sizeof shared, ATTUNE_I32, 1, 2, 0, 0, 0);
    static const int32_t claims[] = {0, -1, 9, 24, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        shared[0] = shared[1] = claims[i];
        WITH(kv_len, LIST(20, 9), "xxxx");
    }
    s.batch.shared.buffer = NULL;
    s.cache.pages = wrap(&s, s.list, sizeof s.list, ATTUNE_I32, 1, 5, 0, 0, 0);
    s.cache.pages_start = wrap(&s, s.list_start, sizeof s.list_start, ATTUNE_I32, 1, 3, 0, 0, 0);
    WITH(list_start, LIST(0, 3, 5), "xxxx");
    WITH(list_start, LIST(0, 2, 5), "000x");
    WITH(list_start, LIST(-1, 3, 6), "0000");
    WITH(list_start, LIST(3, 0, 5), "000x");
    served_destroy(&s);
}

/* Rows of a dense call: b * q_len + q. */
Test(serving, row_of_dense_calls)
{
    static flow f;
    OK(flow_create(&f, NULL));
    attune_expr *a, *b;
    attune_mask *masks[2];
    OK(attune_expr_create(f.instance, ATTUNE_EXPR_MASK, "row % 7 >= kv % 5 && row > 20", NULL, 0, &a));
    OK(attune_expr_create(f.instance, ATTUNE_EXPR_MASK, "(b * q_len + q) % 7 >= kv % 5 && b * q_len + q > 20", NULL, 0,
                          &b));
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_block = 16, .batch = 3, .q_len = 50, .kv_len = 70};
    OK(attune_mask_create(f.instance, &desc, a, NULL, 0, NULL, 0, &masks[0]));
    OK(attune_mask_create(f.instance, &desc, b, NULL, 0, NULL, 0, &masks[1]));
    attune_mask_stats stats[2];
    for (int i = 0; i < 2; i++) {
        stats[i] = (attune_mask_stats){.struct_size = sizeof stats[i]};
        OK(attune_mask_stats_get(masks[i], true, &stats[i]));
    }
    cr_expect(stats[0].pairs > 0 && stats[0].pairs == stats[1].pairs);
    for (int q = 0; q < 50; q++) {
        const attune_point point = {.b = 2, .q = q, .kv = 4, .q_len = 50, .kv_len = 70};
        float x, y;
        OK(attune_expr_evaluate(a, &point, NULL, 0, NULL, 0, &x));
        OK(attune_expr_evaluate(b, &point, NULL, 0, NULL, 0, &y));
        cr_expect_eq(x, y);
    }
    attune_mask_destroy(masks[0]);
    attune_mask_destroy(masks[1]);
    attune_expr_destroy(a);
    attune_expr_destroy(b);
    flow_destroy(&f);
}

/* Types of a cache's keys and values, and their factors. */
Test(serving, quantised)
{
    static served s;
    attune_plan *plan;
    served_create(&s);
#define BAD(change, status, words)                                                                                     \
    do {                                                                                                               \
        attune_problem problem = s.problem;                                                                            \
        change;                                                                                                        \
        EXPECT(attune_plan_create(s.device, &problem, NULL, &plan), status, words);                                    \
    } while (0)
    BAD(problem.kv_dtype = ATTUNE_Q8_0, ATTUNE_INVALID_ARGUMENT, "whose blocks of 32 do not divide the 16 columns");
    BAD(problem.v_dtype = ATTUNE_Q4_0, ATTUNE_INVALID_ARGUMENT, "problem.v_dtype is q4_0, whose blocks of 32");
    BAD(problem.kv_dtype = ATTUNE_MXFP4, ATTUNE_UNSUPPORTED, "problem.kv_dtype is mxfp4, which no kernel reads");
    BAD(problem.v_dtype = ATTUNE_NVFP4, ATTUNE_UNSUPPORTED, "problem.v_dtype is nvfp4, which no kernel reads");
    BAD(problem.dtype = ATTUNE_I8, ATTUNE_INVALID_ARGUMENT, "problem.dtype is i8");
    BAD((problem.dtype = ATTUNE_F64, problem.kv_dtype = ATTUNE_I8), ATTUNE_INVALID_ARGUMENT, "float64 plans");
    BAD((problem.tokens = problem.page = 0, problem.tree = false, problem.kv_dtype = ATTUNE_F8E4M3),
        ATTUNE_INVALID_ARGUMENT, "quantised keys and values are read from a cache only");
    BAD((problem.tokens = problem.page = 0, problem.tree = false, problem.v_dtype = ATTUNE_F16),
        ATTUNE_INVALID_ARGUMENT, "problem.v_dtype is f16 and kv_dtype f32");
#undef BAD
    static int8_t keys[6 * 8 * 16];
    static float scale[6 * 8];
    for (size_t i = 0; i < sizeof keys; i++)
        keys[i] = (int8_t)(i * 37 % 201 - 100);
    for (size_t i = 0; i < sizeof scale / sizeof scale[0]; i++)
        scale[i] = 0.01f;
    attune_plan_destroy(s.plan);
    s.problem.kv_dtype = ATTUNE_I8;
    s.problem.v_dtype = ATTUNE_F32;
    OK(attune_plan_create(s.device, &s.problem, NULL, &s.plan));
    REFUSED(serve(&s), "cache.k.dtype is f32 (1), expected i8");
    s.cache.k = wrap(&s, keys, sizeof keys, ATTUNE_I8, 4, 6, 1, 8, 16);
    OK(serve(&s));
    s.cache.k_scale = wrap(&s, scale, sizeof scale, ATTUNE_F32, 3, 6, 1, 8, 0);
    OK(serve(&s));
    float first = s.o[0];
    s.cache.k_scale.rank = 2;
    REFUSED(serve(&s), "cache.k_scale.rank is 2, expected 1 ([1] or [kv_heads]) or 3");
    s.cache.k_scale.rank = 3;
    s.cache.k_scale.size[2] = 7;
    REFUSED(serve(&s), "cache.k_scale.size[2] is 7, expected that of the keys, 8");
    s.cache.k_scale.size[2] = 8;
    s.cache.v_scale = s.cache.k_scale;
    REFUSED(serve(&s), "cache.v_scale is set, but the keys or values are f32, which have no factors");
    s.cache.v_scale.buffer = NULL;
    s.cache.k_scale.rank = 1;
    s.cache.k_scale.size[0] = 2;
    REFUSED(serve(&s), "cache.k_scale.size[0] is 2, expected 1 or the plan's kv_heads, 1");
    s.cache.k_scale.size[0] = 1;
    OK(serve(&s));
    cr_expect_eq(s.o[0], first, "equal factors of keys are that of the tensor");
    s.cache.v.buffer = NULL;
    REFUSED(serve(&s), "v is part of k, but v is f32 and k is i8");
    served_destroy(&s);
}

/* Refusals of attune_append, and faults that only the device can find. */
Test(serving, append)
{
    static served s;
    static float rows[4 * 16], tables[2 * 24 * 8];
    static int64_t slots[4] = {0, -1, 17, 48};
    static int32_t positions[4] = {0, 23, 24, -1};
    served_create(&s);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        rows[i] = sinf((float)i * 1.3f);
    attune_append_args args = {.struct_size = sizeof args,
                               .k = wrap(&s, rows, sizeof rows, ATTUNE_F32, 3, 4, 1, 16, 0),
                               .cache = &s.cache,
                               .batch = &s.batch};
    args.v = args.k;
    const attune_tensor k = args.k, slot = wrap(&s, slots, sizeof slots, ATTUNE_I64, 1, 4, 0, 0, 0),
                        cosine = wrap(&s, tables, sizeof tables, ATTUNE_F32, 2, 24, 8, 0, 0),
                        position = wrap(&s, positions, sizeof positions, ATTUNE_I32, 1, 4, 0, 0, 0);
    attune_queue *queue = attune_device_queue(s.device);
    OK(attune_append(s.plan, queue, &args, NULL));
#define BAD(change, restore, words)                                                                                    \
    do {                                                                                                               \
        change;                                                                                                        \
        REFUSED(attune_append(s.plan, queue, &args, NULL), words);                                                     \
        restore;                                                                                                       \
    } while (0)
    BAD(args.cache = NULL, args.cache = &s.cache, "args.cache is NULL");
    BAD(args.batch = NULL, args.batch = &s.batch, "slots.buffer and batch are NULL");
    BAD(args.k.size[2] = 8, args.k = k, "k.size[2] is 8, expected the plan's head_dim, 16");
    BAD(args.k.dtype = ATTUNE_F16, args.k = k, "k.dtype is f16");
    BAD(args.v.size[0] = 3, args.v = k, "v.size[0] is 3");
    BAD(args.v.buffer = NULL, args.v = k, "v.buffer is NULL, but cache.v.buffer is set");
    BAD(args.q = s.args.q, args.q.buffer = NULL, "q.buffer is set and q_out.buffer is NULL");
    BAD(args.q_norm = k, args.q_norm.buffer = NULL, "q_norm.rank is 3, expected 1");
    BAD(args.norm_epsilon = 1e-5, args.norm_epsilon = 0, "args.norm_epsilon is 1e-05, expected");
    BAD(args.cosine = cosine, args.cosine.buffer = NULL, "sine.buffer is NULL: set cosine and sine, or neither");
    BAD(args.positions = position, args.positions.buffer = NULL, "args.positions is set without cosine and sine");
    BAD(args.interleaved = true, args.interleaved = false, "args.interleaved is set without cosine and sine");
    args.slots = slot;
    BAD(args.slots.dtype = ATTUNE_I32, args.slots = slot, "slots.dtype is i32");
    BAD(args.slots.size[0] = 3, args.slots = slot, "slots.size[0] is 3, expected the rows of k, 4");
    args.cosine = args.sine = cosine;
    BAD(args.rotary_first = 2, args.rotary_first = 0, "8 pairs of columns from rotary_first 2 on, but head_dim is 16");
    BAD(args.batch = NULL, args.batch = &s.batch, "a rotation needs positions");
    BAD(args.sine.size[1] = 4, args.sine = cosine, "sine.size[1] is 4, expected that of cosine, 8");
    attune_tensor keys = s.cache.k;
    BAD((s.cache.k.stride[0] = 8 * 16, s.cache.k.stride[2] = 8, s.cache.k.stride[3] = 1), s.cache.k = keys,
        "cache.k is an output and its stride");
#undef BAD
    /* The caller's memory: nothing past the pool or the tables. */
    args.positions = position;
    float *const pool = s.pool;
    static float before[sizeof s.pool / sizeof s.pool[0]];
    memcpy(before, pool, sizeof before);
    for (size_t i = 0; i < 24 * 8; i++)
        tables[i] = 1;
    attune_tensor sine = cosine;
    sine.offset = sizeof tables / 2;
    args.sine = sine;
    OK(attune_append(s.plan, queue, &args, NULL));
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        const size_t row = i / 16 % 48; /* rows 1, 2 and 3 have no slot, no position, and neither */
        cr_assert_eq(pool[i], row == 0 ? rows[i % 16] : before[i], "element %zu", i);
    }
    args.batch = NULL;
    positions[2] = 3;
    OK(attune_append(s.plan, queue, &args, NULL));
    cr_expect_eq(memcmp(pool + 17 * 16, rows + 2 * 16, 16 * sizeof *pool), 0);
    static flow f;
    OK(flow_create(&f, NULL));
    REFUSED(attune_append(f.plan, attune_device_queue(f.device), &args, NULL), "set problem.tokens");
    flow_destroy(&f);
    served_destroy(&s);
}

/* Schedules: what is refused, and that one serves layers with other contents. */
Test(serving, schedules)
{
    static served s;
    static float o[sizeof s.o / sizeof s.o[0]];
    served_create(&s);
    attune_queue *queue = attune_device_queue(s.device);
    OK(serve(&s));
    memcpy(o, s.o, sizeof o);
    const uint64_t bytes = attune_plan_schedule_size(s.plan);
    cr_assert_gt(bytes, 0);
    attune_buffer *schedule, *small;
    OK(attune_buffer_create(s.device, bytes + 256, &schedule));
    OK(attune_buffer_create(s.device, bytes - 1, &small));
    REFUSED(attune_schedule(s.plan, queue, &s.args, NULL), "args.schedule is NULL");
    s.args.schedule = small;
    REFUSED(attune_schedule(s.plan, queue, &s.args, NULL), "(attune_plan_schedule_size)");
    s.args.schedule = schedule;
    s.args.schedule_offset = 128;
    REFUSED(attune_schedule(s.plan, queue, &s.args, NULL), "args.schedule_offset is 128, expected a multiple of 256");
    s.args.schedule_offset = 256;
    REFUSED(serve(&s), "args.schedule was not written by attune_schedule for 2 sequences");
    OK(attune_schedule(s.plan, queue, &s.args, NULL));
    OK(serve(&s));
    cr_expect_eq(memcmp(o, s.o, sizeof o), 0);
    for (size_t i = 0; i < sizeof s.q / sizeof s.q[0]; i++)
        s.q[i] = -s.q[i];
    OK(serve(&s));
    s.args.schedule = NULL;
    memcpy(o, s.o, sizeof o);
    OK(serve(&s));
    cr_expect_eq(memcmp(o, s.o, sizeof o), 0);
    /* A schedule of one sequence, for two. */
    s.args.schedule = schedule;
    s.batch.kv_len.size[0] = s.batch.kv_first.size[0] = 1;
    s.batch.q_start.size[0] = 2;
    REFUSED(serve(&s), "args.schedule was not written by attune_schedule for 1 sequences");
    static flow f;
    OK(flow_create(&f, NULL));
    f.args.schedule = schedule;
    REFUSED(flow_run(&f, NULL), "args.schedule is set, but the plan reads no cache");
    f.args.schedule = NULL;
    REFUSED(attune_schedule(f.plan, attune_device_queue(f.device), &f.args, NULL), "set problem.tokens");
    cr_expect_eq(attune_plan_schedule_size(f.plan), 0);
    flow_destroy(&f);
    attune_buffer_destroy(schedule);
    attune_buffer_destroy(small);
    served_destroy(&s);
}

/* Sizes, strides and offsets at the ends of 64 bits in the tensors of a call over a cache and of its new rows: every
 * one is refused or harmless. Keys are i8 with factors; with a list the block table is one, without pages there is
 * none. */
static void run_extremes(bool list, bool pages)
{
    static served s;
    static int8_t keys[6 * 8 * 16];
    static float scale[6 * 8], rows[4 * 16], tables[24 * 8];
    static int64_t slots[4];
    static int32_t tree[4], shared[2], positions[4];
    served_create(&s);
    attune_plan_destroy(s.plan);
    attune_buffer_destroy(s.args.workspace);
    s.problem.kv_dtype = ATTUNE_I8;
    s.problem.v_dtype = ATTUNE_F32;
    s.problem.page = pages ? 8 : 0;
    OK(attune_plan_create(s.device, &s.problem, NULL, &s.plan));
    OK(attune_buffer_create(s.device, attune_plan_workspace_size(s.plan), &s.args.workspace));
    s.cache.k = wrap(&s, keys, sizeof keys, ATTUNE_I8, 4, 6, 1, 8, 16);
    s.cache.k_scale = wrap(&s, scale, sizeof scale, ATTUNE_F32, 3, 6, 1, 8, 0);
    if (list) {
        s.cache.pages = wrap(&s, s.list, sizeof s.list, ATTUNE_I32, 1, 5, 0, 0, 0);
        s.cache.pages_start = wrap(&s, s.list_start, sizeof s.list_start, ATTUNE_I32, 1, 3, 0, 0, 0);
    } else if (!pages)
        s.cache.pages.buffer = NULL;
    s.batch.tree = wrap(&s, tree, sizeof tree, ATTUNE_I32, 2, 4, 1, 0, 0);
    s.batch.shared = wrap(&s, shared, sizeof shared, ATTUNE_I32, 1, 2, 0, 0, 0);
    attune_append_args append = {.struct_size = sizeof append,
                                 .k = wrap(&s, rows, sizeof rows, ATTUNE_F32, 3, 4, 1, 16, 0),
                                 .v = wrap(&s, rows, sizeof rows, ATTUNE_F32, 3, 4, 1, 16, 0),
                                 .cache = &s.cache,
                                 .slots = wrap(&s, slots, sizeof slots, ATTUNE_I64, 1, 4, 0, 0, 0),
                                 .batch = &s.batch,
                                 .cosine = wrap(&s, tables, sizeof tables, ATTUNE_F32, 2, 24, 8, 0, 0),
                                 .sine = wrap(&s, tables, sizeof tables, ATTUNE_F32, 2, 24, 8, 0, 0),
                                 .positions = wrap(&s, positions, sizeof positions, ATTUNE_I32, 1, 4, 0, 0, 0),
                                 .k_norm = wrap(&s, tables, sizeof tables, ATTUNE_F32, 1, 16, 0, 0, 0),
                                 .q_norm = wrap(&s, tables, sizeof tables, ATTUNE_F32, 1, 16, 0, 0, 0),
                                 .q = s.args.q,
                                 .q_out = s.args.o};
    attune_tensor *const tensors[] = {
        &s.cache.k,      &s.cache.v,     &s.cache.k_scale, &s.cache.pages,  &s.cache.pages_start, &s.batch.q_start,
        &s.batch.kv_len, &s.batch.count, &s.batch.tree,    &s.batch.shared, &s.batch.kv_first,    &s.args.q,
        &s.args.o,       &s.args.lse,    &append.k,        &append.v,       &append.slots,        &append.cosine,
        &append.sine,    &append.q,      &append.q_out,    &append.k_norm,  &append.q_norm,       &append.positions};
    enum { TENSORS = sizeof tensors / sizeof tensors[0], CALLS = 14 /* the first are of forward; 11 of both */ };
    attune_queue *queue = attune_device_queue(s.device);
    OK(serve(&s));
    OK(attune_append(s.plan, queue, &append, NULL));
    uint64_t state = test_seed();
    int count[2][2] = {{0}};
    for (uint64_t n = 0; n < scaled(6000); n++) {
        const int64_t which = random_expr_between(&state, 0, TENSORS - 1);
        const bool appends = which >= CALLS || (which < 11 && n % 2);
        attune_tensor *t = tensors[which], kept = *t;
        if (!t->buffer)
            continue;
        if (random_expr_between(&state, 0, 1)) {
            t->stride[t->rank - 1] = 1;
            for (uint32_t i = t->rank - 1; i-- > 0;)
                t->stride[i] = t->stride[i + 1] * t->size[i + 1];
        }
        distort(&state, t->rank < 3 ? t->rank : 3, t->size, t->stride, &t->offset);
        const attune_status status = appends ? attune_append(s.plan, queue, &append, NULL) : serve(&s);
        cr_assert(status == ATTUNE_OK || status == ATTUNE_INVALID_ARGUMENT, "tensor %d: %s", (int)which,
                  attune_last_error());
        count[appends][status == ATTUNE_OK]++;
        *t = kept;
    }
    cr_assert(count[0][0] && count[0][1] && count[1][0] && count[1][1]);
    served_destroy(&s);
}

Test(serving, extreme_tensors)
{
    run_extremes(false, true);
}

Test(serving, extreme_tensors_of_lists)
{
    run_extremes(true, true);
}

Test(serving, extreme_tensors_without_pages)
{
    run_extremes(false, false);
}

/* Counts at the ends of 64 bits make a plan, whose sizes then are those of its counts, or are refused, on every device
 * that is known. */
Test(serving, extreme_problems)
{
    static served s;
    static const uint32_t parts[] = {0, 1, 256, 512, 1u << 31, UINT32_MAX - 255, UINT32_MAX};
    static const int64_t counts[] = {1, 2, 3, 1000, 1 << 20, INT32_MAX - 1, INT32_MAX};
    served_create(&s);
    uint64_t state = test_seed();
    int refused = 0, taken = 0;
    for (uint64_t n = 0; n < scaled(6000); n++) {
        attune_problem problem = s.problem;
        int64_t *const fields[] = {&problem.batch,  &problem.heads,  &problem.kv_heads, &problem.q_len,
                                   &problem.kv_len, &problem.tokens, &problem.page};
        for (int64_t i = random_expr_between(&state, 1, 4); i > 0; i--)
            *fields[random_expr_between(&state, 0, 6)] =
                random_expr_between(&state, 0, 3) ? counts[random_expr_between(&state, 0, 6)] : extreme(&state);
        problem.split_keys = parts[random_expr_between(&state, 0, 6)];
        problem.shared_sequences = (uint32_t)random_expr_between(&state, 0, 40);
        const uint32_t profile = (uint32_t)random_expr_between(&state, 0, attune_profile_count());
        attune_device_info own = {.struct_size = sizeof own};
        attune_profile known = {.struct_size = sizeof known};
        if (profile < attune_profile_count())
            OK(attune_profile_get(profile, &known));
        else
            OK(attune_device_info_get(s.device, &own));
        attune_plan_choice choice = {.struct_size = sizeof choice};
        const attune_status status =
            attune_plan_choose(known.name ? &known.limits : &own.limits, &problem, NULL, &choice);
        cr_assert(status == ATTUNE_OK || status == ATTUNE_INVALID_ARGUMENT || status == ATTUNE_UNSUPPORTED, "%s",
                  attune_last_error());
        const int64_t heads = problem.heads ? problem.heads : 1;
        cr_assert(status != ATTUNE_OK || problem.tokens <= (INT64_C(1) << 40) / heads);
        refused += status != ATTUNE_OK;
        taken += status == ATTUNE_OK;
    }
    cr_assert(refused && taken);
    served_destroy(&s);
}
