/* SPDX-License-Identifier: MIT */
/* Each limit takes its last value and refuses the next. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "api/flow.h"
#include "support/devices.h"
#include "support/heap.h"

#define OK(call)             cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())
#define REFUSED(call, words) EXPECT(call, ATTUNE_INVALID_ARGUMENT, words)

static int lines; /* of the log */

static void count_line(void *user, attune_log_level level, const char *message)
{
    (void)user, (void)message;
    cr_assert_eq(level, ATTUNE_LOG_WARNING);
    lines++;
}

Test(edges, instances)
{
    attune_instance *instance;
    attune_instance_desc desc = {
        .struct_size = sizeof desc, .cpu_threads = 4096, .compile_threads = 64, .log_level = ATTUNE_LOG_DEBUG};
    OK(attune_instance_create(&desc, &instance));
    attune_instance_destroy(instance);
    desc.cpu_threads++;
    REFUSED(attune_instance_create(&desc, &instance), "cpu_threads is 4097, the limit is 4096");
    desc.cpu_threads = 0;
    desc.log_level = (attune_log_level)(ATTUNE_LOG_DEBUG + 1);
    REFUSED(attune_instance_create(&desc, &instance), "log_level is 5");
    heap h = {0};
    desc = (attune_instance_desc){.struct_size = sizeof desc, .allocator = heap_allocator(&h)};
    desc.allocator.release = NULL;
    REFUSED(attune_instance_create(&desc, &instance), "desc.allocator has alloc but no release");
    desc.allocator = heap_allocator(&h);
    desc.allocator.alloc = NULL;
    REFUSED(attune_instance_create(&desc, &instance), "desc.allocator has release but no alloc");

    cr_expect_eq(attune_version(),
                 ATTUNE_VERSION_MAJOR * 1000000u + ATTUNE_VERSION_MINOR * 1000u + ATTUNE_VERSION_PATCH);

    /* A level and all that are more severe. */
    static const int32_t ids[4] = {0};
    const attune_symbol symbol = {"ids", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1};
    const attune_host_capture capture = {"ids", {.data = ids, .dtype = ATTUNE_I32, .rank = 1, .size = {4}}};
    const attune_mask_desc mask_desc = {.struct_size = sizeof mask_desc, .q_len = 20, .kv_len = 20};
    for (int level = 0; level <= ATTUNE_LOG_DEBUG; level++) {
        desc =
            (attune_instance_desc){.struct_size = sizeof desc, .log = count_line, .log_level = (attune_log_level)level};
        attune_expr *expr;
        attune_mask *mask;
        lines = 0;
        OK(attune_instance_create(&desc, &instance));
        OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, "ids[kv] == 0", &symbol, 1, &expr));
        OK(attune_mask_create(instance, &mask_desc, expr, &capture, 1, NULL, 0, &mask));
        cr_expect_eq(lines, level != ATTUNE_LOG_ERROR, "level %d: %d warnings", level, lines);
        attune_mask_destroy(mask);
        attune_expr_destroy(expr);
        attune_instance_destroy(instance);
    }
}

Test(edges, devices_and_buffers)
{
    attune_instance *instance;
    attune_device *device;
    OK(attune_instance_create(NULL, &instance));
    REFUSED(attune_device_open(instance, "cpu:0000000", &device), "expected a number");
    REFUSED(attune_device_open(instance, "cp", &device), "is invalid");
    REFUSED(attune_device_open(instance, "cpux", &device), "is invalid");
    cr_expect_eq(attune_device_open(instance, "cpu:10", &device), ATTUNE_UNAVAILABLE);
    cr_expect_eq(attune_device_open(instance, "opencl:99", &device), ATTUNE_UNAVAILABLE);
    cr_expect(strstr(attune_last_error(), "OpenCL") || strstr(attune_last_error(), "opencl:99"), "%s",
              attune_last_error());
    OK(attune_device_open(instance, "cpu:000000", &device));
    uint32_t count;
    attune_device_info info = {.struct_size = sizeof info};
    OK(attune_device_count(instance, &count));
    OK(attune_device_describe(instance, count - 1, &info));
    cr_expect(info.backend == ATTUNE_BACKEND_OPENCL && info.limits.backend == ATTUNE_BACKEND_OPENCL);
    cr_expect_eq(strncmp(info.id, "opencl", 6), 0);
    OK(attune_device_describe(instance, 0, &info));
    cr_expect(info.backend == ATTUNE_BACKEND_CPU && info.available);

    attune_buffer *buffer;
    char bytes[16], got[16] = "";
    memset(bytes, 'x', sizeof bytes);
    OK(attune_buffer_create(device, sizeof bytes, &buffer));
    cr_expect_eq(attune_buffer_size(buffer), sizeof bytes);
    OK(attune_buffer_write(buffer, 0, bytes, sizeof bytes));
    OK(attune_buffer_write(buffer, 15, "y", 1));
    OK(attune_buffer_write(buffer, 16, NULL, 0));
    OK(attune_buffer_read(buffer, 16, NULL, 0));
    REFUSED(attune_buffer_write(buffer, 16, bytes, 1), "the buffer's 16 bytes");
    REFUSED(attune_buffer_write(buffer, 17, NULL, 0), "the buffer's 16 bytes");
    REFUSED(attune_buffer_read(buffer, 1, got, 16), "the buffer's 16 bytes");
    OK(attune_buffer_read(buffer, 0, got, sizeof got));
    cr_expect(!memcmp(got, "xxxxxxxxxxxxxxxy", 16));
    attune_buffer_destroy(buffer);
    OK(attune_buffer_create(device, 1, &buffer));
    attune_buffer_destroy(buffer);
    OK(attune_buffer_wrap(device, bytes, 1, &buffer));
    attune_buffer_destroy(buffer);
    REFUSED(attune_buffer_wrap(device, bytes, 0, &buffer), "size is 0");

    double flops;
    REFUSED(attune_device_measure(device, ATTUNE_I32, &flops, NULL), "dtype is i32 (5), expected f32");
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(edges, expressions)
{
    attune_instance *instance;
    attune_expr *score, *mask;
    OK(attune_instance_create(NULL, &instance));
    const attune_symbol symbols[] = {{"w", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                     {"unused", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                     {"heat", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0}};
    OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, "kv % 7 != q", symbols, 3, &mask));
    REFUSED(attune_expr_create(instance, (attune_expr_kind)9, "score", NULL, 0, &score), "kind is 9");
    OK(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score * heat + w[kv] + 0.1", symbols, 3, &score));
    cr_assert_eq(attune_expr_symbol_count(score), 2);
    bool heat = false, w = false;
    for (uint32_t i = 0; i < 2; i++) {
        attune_symbol s;
        OK(attune_expr_symbol_get(score, i, &s));
        heat |= !strcmp(s.name, "heat") && s.kind == ATTUNE_SYMBOL_PARAMETER && s.dtype == ATTUNE_F32 && !s.rank;
        w |= !strcmp(s.name, "w") && s.kind == ATTUNE_SYMBOL_CAPTURE && s.rank == 1;
    }
    cr_expect(heat && w);
    attune_symbol symbol;
    REFUSED(attune_expr_symbol_get(score, 2, &symbol), "index is 2, but the expression uses 2 symbols");
    uint64_t one[2], other[2];
    attune_expr_hash(score, one);
    attune_expr_hash(mask, other);
    cr_expect(one[0] != other[0] && one[1] != other[1] && one[0] && one[1] && one[0] != one[1]);
    attune_expr_hash(NULL, one);
    cr_expect(!one[0] && !one[1]);
    char text[4096];
    for (int format = ATTUNE_EXPR_TEXT; format <= ATTUNE_EXPR_GRADIENT; format++)
        OK(attune_expr_print(score, (attune_expr_format)format, text, sizeof text, NULL));
    REFUSED(attune_expr_print(score, (attune_expr_format)(ATTUNE_EXPR_TEXT - 1), text, sizeof text, NULL), "format is");
    REFUSED(attune_expr_print(score, (attune_expr_format)(ATTUNE_EXPR_GRADIENT + 1), text, sizeof text, NULL),
            "format is");
    REFUSED(attune_expr_print(score, ATTUNE_EXPR_TEXT, NULL, 1, NULL), "buffer is NULL");

    /* Rows of several parts, as points one by one. */
    enum { COUNT = 2500, FIRST = 5 };
    static float table[COUNT];
    static double values[COUNT];
    for (int i = 0; i < COUNT; i++)
        table[i] = (float)(i % 37) / 7;
    const attune_host_capture capture = {"w", {.data = table, .dtype = ATTUNE_F32, .rank = 1, .size = {COUNT}}};
    const attune_parameter parameter = {"heat", 1.25};
    attune_point point = {.q = 3, .kv = FIRST, .q_len = 10, .kv_len = 3000};
    static const size_t counts[] = {0, 1, 1023, 1024, 1025, 2048, COUNT};
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
        for (int f64 = 0; f64 < 2; f64++) {
            const attune_expr *const exprs[] = {score, mask};
            for (int e = 0; e < 2; e++) {
                for (int i = 0; i < COUNT; i++)
                    values[i] = (double)(i % 11) / 3;
                point.kv = FIRST;
                OK(attune_expr_evaluate_row(exprs[e], f64 ? ATTUNE_F64 : ATTUNE_F32, &point, counts[n], &capture, 1,
                                            &parameter, 1, values));
                for (size_t i = 0; i < COUNT; i++) {
                    double wanted = (double)(i % 11) / 3;
                    float single;
                    point.kv = FIRST + (int32_t)i;
                    point.score = (float)wanted;
                    OK(attune_expr_evaluate(exprs[e], &point, &capture, 1, &parameter, 1, &single));
                    if (i < counts[n])
                        wanted = f64 && !e ? wanted * 1.25 + (FIRST + i < COUNT ? (double)table[FIRST + i] : 0) + 0.1
                                           : (double)single;
                    cr_assert(fabs(values[i] - wanted) <= 1e-15 * fabs(wanted), "%d of %zu: %.17g, not %.17g", (int)i,
                              counts[n], values[i], wanted);
                }
            }
        }
    point.kv = INT32_MAX - 3;
    OK(attune_expr_evaluate_row(mask, ATTUNE_F32, &point, 3, NULL, 0, NULL, 0, values));
    REFUSED(attune_expr_evaluate_row(mask, ATTUNE_F32, &point, 4, NULL, 0, NULL, 0, values), "the limit of 2147483647");
    REFUSED(attune_expr_evaluate_row(mask, ATTUNE_F32, &point, SIZE_MAX, NULL, 0, NULL, 0, values),
            "the limit of 2147483647");
    point.kv = -1;
    REFUSED(attune_expr_evaluate_row(mask, ATTUNE_F32, &point, 1, NULL, 0, NULL, 0, values), "the limit of 2147483647");
    point.kv = 0;
    REFUSED(attune_expr_evaluate_row(mask, ATTUNE_F16, &point, 1, NULL, 0, NULL, 0, values), "precision is f16");
    attune_expr_destroy(score);
    attune_expr_destroy(mask);
    attune_instance_destroy(instance);
}

Test(edges, masks)
{
    attune_instance *instance;
    attune_expr *causal;
    attune_mask *mask;
    OK(attune_instance_create(NULL, &instance));
    OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, "causal", NULL, 0, &causal));
    const attune_mask_desc good = {.struct_size = sizeof good, .q_len = 10, .kv_len = 10};
    attune_mask_desc d = good;
#define BUILD attune_mask_create(instance, &d, causal, NULL, 0, NULL, 0, &mask)
#define TAKES                                                                                                          \
    do {                                                                                                               \
        OK(BUILD);                                                                                                     \
        attune_mask_destroy(mask);                                                                                     \
        d = good;                                                                                                      \
    } while (0)
#define REFUSES(words)                                                                                                 \
    do {                                                                                                               \
        REFUSED(BUILD, words);                                                                                         \
        d = good;                                                                                                      \
    } while (0)
    d.q_block = d.kv_block = 16;
    TAKES;
    d.q_block = d.kv_block = 1024;
    TAKES;
    d.q_block = 1040;
    REFUSES("q_block is 1040");
    d.heads = d.kv_heads = 6;
    TAKES;
    d.heads = 6, d.kv_heads = 4;
    REFUSES("kv_heads is 4, which does not divide heads 6");
    d.heads = 3, d.kv_heads = 6;
    REFUSES("kv_heads is 6");
    d.heads = 3, d.kv_heads = -1;
    REFUSES("kv_heads is -1");
    d.heads = -3;
    REFUSES("heads is -3");
    d.kv_start = 20, d.kv_total = 30;
    TAKES;
    d.kv_total = 10;
    TAKES;
    d.kv_start = INT32_MAX - 10, d.kv_total = INT32_MAX;
    TAKES;
    d.kv_start = 21, d.kv_total = 30;
    REFUSES("within kv_total");
    d.kv_start = 31, d.kv_total = 30;
    REFUSES("within kv_total");
    d.kv_start = -1, d.kv_total = 30;
    REFUSES("within kv_total");
    d.kv_start = 0, d.kv_total = 9;
    REFUSES("within kv_total");
    d.kv_start = 0, d.kv_total = INT64_C(1) << 31;
    REFUSES("within kv_total");
    d.kv_start = 1;
    REFUSES("or both 0");
    d.kv_total = -1;
    REFUSES("within kv_total");
    attune_expr_destroy(causal);
    attune_instance_destroy(instance);
}

/* Of each dimension all, or one for all batches or heads. */
Test(edges, dense_arrays)
{
    static const uint8_t bytes[3 * 4 * 20 * 30] = {1, 0, 1};
    attune_instance *instance;
    OK(attune_instance_create(NULL, &instance));
    const attune_mask_desc desc = {.struct_size = sizeof desc, .batch = 3, .heads = 4, .q_len = 20, .kv_len = 30};
    static const struct {
        int64_t size[4];
        const char *words; /* NULL = taken */
    } cases[] = {
        {{3, 4, 20, 30}, NULL},
        {{1, 4, 20, 30}, NULL},
        {{3, 1, 20, 30}, NULL},
        {{1, 1, 20, 30}, NULL},
        {{2, 4, 20, 30}, "dense.size[0] is 2, expected 3 or 1"},
        {{3, 3, 20, 30}, "dense.size[1] is 3, expected 4 or 1"},
        {{3, 4, 1, 30}, "dense.size[2] is 1, expected 20"},
        {{3, 4, 19, 30}, "dense.size[2] is 19"},
        {{3, 4, 20, 1}, "dense.size[3] is 1, expected 30"},
        {{3, 4, 20, 0}, "dense.size[3] is 0"},
    };
    attune_mask *mask;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_array array = {.data = bytes, .dtype = i % 2 ? ATTUNE_BOOL : ATTUNE_U8, .rank = 4};
        memcpy(array.size, cases[i].size, sizeof array.size);
        if (cases[i].words) {
            REFUSED(attune_mask_create_dense(instance, &desc, &array, &mask), cases[i].words);
            continue;
        }
        OK(attune_mask_create_dense(instance, &desc, &array, &mask));
        attune_mask_lists lists = {.struct_size = sizeof lists};
        OK(attune_mask_lists_get(mask, &lists));
        cr_expect(lists.batch == cases[i].size[0] && lists.heads == cases[i].size[1]);
        attune_mask_destroy(mask);
    }
    attune_array wrong = {.data = bytes, .dtype = ATTUNE_I32, .rank = 4, .size = {1, 1, 20, 30}};
    REFUSED(attune_mask_create_dense(instance, &desc, &wrong, &mask), "dense.dtype is i32, expected bool or u8");
    wrong.dtype = ATTUNE_U8;
    wrong.rank = 3;
    REFUSED(attune_mask_create_dense(instance, &desc, &wrong, &mask), "dense.rank is 3, expected 4");
    wrong.rank = 4;
    attune_mask_desc segment = desc;
    segment.kv_total = 30;
    REFUSED(attune_mask_create_dense(instance, &segment, &wrong, &mask), "desc.kv_total is 30");
    for (int sign = -1; sign <= 1; sign += 2) {
        wrong.stride[2] = sign * (INT64_MAX / 16 / 19 + 1);
        wrong.stride[3] = 1;
        REFUSED(attune_mask_create_dense(instance, &desc, &wrong, &mask), "dense exceeds the address space");
    }
    wrong.data = NULL;
    REFUSED(attune_mask_create_dense(instance, &desc, &wrong, &mask), "dense.data is NULL");
    attune_instance_destroy(instance);
}

Test(edges, workspaces)
{
    static flow f;
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 2};
    OK(flow_create(&f, &desc));
    const uint64_t wanted = attune_plan_workspace_size(f.plan);
    cr_assert_gt(wanted, 0);
    attune_buffer *larger;
    OK(attune_buffer_create(f.device, wanted + 512, &larger));
    f.args.workspace = larger;
    for (uint64_t offset = 0; offset <= 512; offset += 256) {
        f.args.workspace_offset = offset;
        OK(flow_run(&f, NULL));
    }
    f.args.workspace_offset = 768;
    REFUSED(flow_run(&f, NULL), "the plan needs");
    f.args.workspace_offset = wanted + 512 + 256 - (wanted + 512) % 256;
    REFUSED(flow_run(&f, NULL), "args.workspace has 0 bytes");
    attune_buffer_destroy(larger);
    OK(attune_buffer_create(f.device, wanted - 1, &larger));
    f.args.workspace = larger;
    f.args.workspace_offset = 0;
    REFUSED(flow_run(&f, NULL), "the plan needs");
    attune_buffer_destroy(larger);
    flow_destroy(&f);
}
