/* SPDX-License-Identifier: MIT */
/* The stack that calls need, on a thread that has no more: what attune.h says under "Stack". */
#define _GNU_SOURCE /* MAP_ANONYMOUS, MAP_STACK */
#include <criterion/criterion.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <attune/attune.h>

#include "base/alloc.h"
#include "cache/cache.h"

/* Sanitizers make frames several times as large, and the promise is not about them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define MEASURED 0
#else
#define MEASURED 1
#endif

#define PROMISE ((size_t)64 << 10)
#define ROOM    ((size_t)1 << 20) /* so that a call which needs more is named, with its figure */
#define PAINT   0xa5

/* The deepest expressions that the language takes. */
static char nested[4000], deep_json[5000];

static void fill_texts(void)
{
    /* A level of parentheses, of calls, of selects and of operators each. */
    size_t at = 0;
    for (int i = 0; i < 15; i++)
        at += (size_t)snprintf(nested + at, sizeof nested - at, "(q + (kv < %d ? abs(-kv - ", i + 3);
    at += (size_t)snprintf(nested + at, sizeof nested - at, "q");
    for (int i = 0; i < 15; i++)
        at += (size_t)snprintf(nested + at, sizeof nested - at, ") : %d) * 3)", i);
    snprintf(nested + at, sizeof nested - at, " > 5 && !(b == h || q %% 3 != 1)");
    memset(deep_json, '[', 2000);
    memset(deep_json + 2000, ']', 2000);
}

static attune_instance *instance;
static attune_expr *mask_expr, *score_expr;

static void create_expr(void)
{
    const attune_symbol symbols[] = {{"w", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2}};
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, nested, NULL, 0, &mask_expr), ATTUNE_OK, "%s",
                 attune_last_error());
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE,
                                    "20.0 * tanh(score / 20.0) + w[b, h] * (exp(-abs(q - kv) / 7.0) + "
                                    "sqrt(abs(score) + 1.0)) / (1.0 + w[h, b] * w[h, b])",
                                    symbols, 1, &score_expr),
                 ATTUNE_OK, "%s", attune_last_error());
}

static void parse_errors(void)
{
    static char text[4097];
    const char *const opens[] = {"(", "!", "-", "abs(", "q ? ", "q ? 1 : ", "1 + (", "x["};
    for (size_t i = 0; i < sizeof opens / sizeof opens[0]; i++) {
        text[0] = '\0';
        for (size_t at = 0; at + strlen(opens[i]) < 4096; at += strlen(opens[i]))
            strcpy(text + at, opens[i]);
        attune_expr *expr;
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, text, NULL, 0, &expr), ATTUNE_PARSE_ERROR);
    }
}

static void print(void)
{
    static char text[1 << 20];
    const attune_expr_format formats[] = {ATTUNE_EXPR_TEXT, ATTUNE_EXPR_IR, ATTUNE_EXPR_C, ATTUNE_EXPR_GRADIENT};
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(attune_expr_print(score_expr, formats[i], text, sizeof text, NULL), ATTUNE_OK, "%s",
                     attune_last_error());
        if (i < 3)
            cr_assert_eq(attune_expr_print(mask_expr, formats[i], text, sizeof text, NULL), ATTUNE_OK);
    }
}

static float weights[64];

static void build_mask(void)
{
    const attune_mask_desc desc = {.struct_size = sizeof desc, .batch = 2, .heads = 2, .q_len = 700, .kv_len = 900};
    attune_mask *mask, *both;
    cr_assert_eq(attune_mask_create(instance, &desc, mask_expr, NULL, 0, NULL, 0, &mask), ATTUNE_OK, "%s",
                 attune_last_error());
    cr_assert_eq(attune_mask_and(mask, mask, &both), ATTUNE_OK, "%s", attune_last_error());
    attune_mask_stats stats = {.struct_size = sizeof stats};
    cr_assert_eq(attune_mask_stats_get(both, true, &stats), ATTUNE_OK);
    attune_mask_destroy(both);
    attune_mask_destroy(mask);
}

static void extend_mask(void)
{
    const attune_mask_desc desc = {.struct_size = sizeof desc, .batch = 2, .heads = 2, .q_len = 300, .kv_len = 500};
    attune_mask *mask, *longer;
    cr_assert_eq(attune_mask_create(instance, &desc, mask_expr, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
    cr_assert_eq(attune_mask_extend(mask, 700, 900, NULL, 0, NULL, &longer), ATTUNE_OK, "%s", attune_last_error());
    attune_mask_destroy(longer);
    attune_mask_destroy(mask);
}

static void given_masks(void)
{
    enum { LENGTH = 300 };
    static uint8_t bytes[LENGTH * LENGTH];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = i % 7 < 3;
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = LENGTH, .kv_len = LENGTH};
    const attune_array array = {.data = bytes, .dtype = ATTUNE_BOOL, .rank = 4, .size = {1, 1, LENGTH, LENGTH}};
    const attune_mask_range range = {.struct_size = sizeof range, .q_block0 = 1, .q_blocks = 1};
    attune_mask_lists lists = {.struct_size = sizeof lists};
    attune_mask *dense, *listed, *either, *part;
    cr_assert_eq(attune_mask_create_dense(instance, &desc, &array, &dense), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_mask_lists_get(dense, &lists), ATTUNE_OK);
    cr_assert_eq(attune_mask_create_lists(instance, &desc, &lists, mask_expr, NULL, 0, NULL, 0, &listed), ATTUNE_OK,
                 "%s", attune_last_error());
    cr_assert_eq(attune_mask_or(dense, listed, &either), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_mask_slice(either, &range, &part), ATTUNE_OK, "%s", attune_last_error());
    attune_mask_destroy(part);
    attune_mask_destroy(either);
    attune_mask_destroy(listed);
    attune_mask_destroy(dense);
}

static void draw(void)
{
    static char text[1 << 14];
    static uint8_t pixels[3 * 40 * 40];
    uint32_t width = 40, height = 40;
    const attune_mask_desc desc = {.struct_size = sizeof desc, .batch = 2, .heads = 2, .q_len = 9000, .kv_len = 9000};
    attune_expr *causal;
    attune_mask *mask;
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "causal", NULL, 0, &causal), ATTUNE_OK);
    cr_assert_eq(attune_mask_create(instance, &desc, causal, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
    cr_assert_eq(attune_mask_draw_text(mask, 1, 1, 40, 40, text, sizeof text, NULL), ATTUNE_OK);
    cr_assert_eq(attune_mask_draw_pixels(mask, 1, 1, pixels, &width, &height), ATTUNE_OK);
    attune_mask_destroy(mask);
    attune_expr_destroy(causal);
}

static void evaluate(void)
{
    const attune_host_capture w = {"w", {.data = weights, .dtype = ATTUNE_F32, .rank = 2, .size = {8, 8}}};
    const attune_point point = {.q = 3, .kv = 2, .q_len = 9, .kv_len = 9, .score = 0.25f};
    float value;
    double values[100] = {0.5};
    cr_assert_eq(attune_expr_evaluate(score_expr, &point, &w, 1, NULL, 0, &value), ATTUNE_OK);
    cr_assert_eq(attune_expr_evaluate_row(score_expr, ATTUNE_F64, &point, 100, &w, 1, NULL, 0, values), ATTUNE_OK);
}

static void options(void)
{
    attune_kernel_options o = {.struct_size = sizeof o};
    cr_assert_eq(attune_kernel_options_parse("{\"BLOCK_M\": 32, \"num_stages\": 2}", &o), ATTUNE_OK);
    cr_assert_eq(attune_kernel_options_parse(deep_json, &o), ATTUNE_PARSE_ERROR);
    cr_assert_not_null(strstr(attune_last_error(), "16 levels"), "%s", attune_last_error());
}

static void explain(void)
{
    static char text[1 << 18];
    for (uint32_t i = 0; i < attune_profile_count(); i++)
        for (int d = 0; d < 2; d++) {
            attune_profile p = {.struct_size = sizeof p};
            cr_assert_eq(attune_profile_get(i, &p), ATTUNE_OK);
            const attune_problem problem = {.struct_size = sizeof problem,
                                            .dtype = p.limits.f16 ? ATTUNE_F16 : ATTUNE_F32,
                                            .direction = d ? ATTUNE_BACKWARD : ATTUNE_FORWARD,
                                            .head_dim = 64,
                                            .q_len = 512,
                                            .mask = mask_expr,
                                            .score = score_expr};
            (void)attune_plan_choose_explain(&p.limits, &problem, NULL, ATTUNE_TEXT, text, sizeof text, NULL);
            (void)attune_plan_choose_explain(&p.limits, &problem, NULL, ATTUNE_JSON, text, sizeof text, NULL);
        }
}

/* Device memory of the CPU with small numbers, and tensors that lie in it one after another. */
#define MEMORY ((size_t)1 << 20)

static attune_device *device;
static attune_buffer *memory;
static uint64_t taken;

static void open_device(void)
{
    static uint16_t numbers[MEMORY / 2];
    /* Of every type about 1 to 2, or bits of it. */
    for (size_t i = 0; i < MEMORY / 2; i++)
        numbers[i] = (uint16_t)(0x3f80 + i * 37 % 101);
    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_create(device, MEMORY, &memory), ATTUNE_OK);
    cr_assert_eq(attune_buffer_write(memory, 0, numbers, MEMORY), ATTUNE_OK);
    taken = 0;
}

static void close_device(void)
{
    attune_buffer_destroy(memory);
    attune_device_destroy(device);
}

/* The rank is that of the sizes before the first 0. */
static attune_tensor tensor(attune_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d)
{
    attune_tensor t = {memory, taken, dtype, 0, {a, b, c, d}, {0}};
    uint64_t bytes = attune_dtype_size(dtype);
    while (t.rank < 4 && t.size[t.rank])
        bytes *= (uint64_t)t.size[t.rank++];
    taken += (bytes / attune_dtype_block(dtype) + 63) / 64 * 64;
    cr_assert_leq(taken, MEMORY);
    return t;
}

static attune_tensor integers(uint32_t count, const int32_t *values)
{
    const attune_tensor t = tensor(ATTUNE_I32, count, 0, 0, 0);
    cr_assert_eq(attune_buffer_write(memory, t.offset, values, count * sizeof *values), ATTUNE_OK);
    return t;
}

static attune_plan *create_plan(const attune_problem *problem, attune_buffer **workspace)
{
    attune_plan *plan;
    cr_assert_eq(attune_plan_create(device, problem, NULL, &plan), ATTUNE_OK, "%s", attune_last_error());
    const uint64_t bytes = attune_plan_workspace_size(plan);
    cr_assert_eq(attune_buffer_create(device, bytes ? bytes : 1, workspace), ATTUNE_OK);
    return plan;
}

static void destroy_plan(attune_plan *plan, attune_buffer *workspace)
{
    attune_buffer_destroy(workspace);
    attune_plan_destroy(plan);
}

static void run(attune_dtype dtype, attune_direction direction, int64_t q_len, int64_t kv_len)
{
    attune_expr *causal;
    attune_mask *mask;
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = q_len, .kv_len = kv_len};
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "kv <= q + kv_len - q_len", NULL, 0, &causal),
                 ATTUNE_OK);
    cr_assert_eq(attune_mask_create(instance, &desc, causal, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
    open_device();
    const attune_capture w = {"w", tensor(ATTUNE_F32, 8, 8, 0, 0)};
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = dtype,
                              .direction = direction,
                              .head_dim = 32,
                              .heads = 2,
                              .q_len = q_len,
                              .kv_len = kv_len,
                              .lse = true,
                              .score = score_expr,
                              .capture_gradient_elements = direction == ATTUNE_BACKWARD ? 64 : 0};
    cr_assert_eq(attune_problem_set_mask(&problem, mask), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_mask_upload(mask, device), ATTUNE_OK, "%s", attune_last_error());
    attune_buffer *workspace;
    attune_plan *plan = create_plan(&problem, &workspace);
    const attune_tensor q = tensor(dtype, 1, 2, q_len, 32), o = tensor(dtype, 1, 2, q_len, 32),
                        k = tensor(dtype, 1, 2, kv_len, 32), v = tensor(dtype, 1, 2, kv_len, 32),
                        lse = tensor(dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, 1, 2, q_len, 0);
    attune_queue *queue = attune_device_queue(device);
    if (direction == ATTUNE_FORWARD) {
        const attune_forward_args args = {.struct_size = sizeof args,
                                          .q = q,
                                          .k = k,
                                          .v = v,
                                          .o = o,
                                          .lse = lse,
                                          .mask = mask,
                                          .captures = &w,
                                          .capture_count = 1,
                                          .workspace = workspace};
        cr_assert_eq(attune_forward(plan, queue, &args, NULL), ATTUNE_OK, "%s", attune_last_error());
    } else {
        const attune_capture d_w = {"w", tensor(ATTUNE_F32, 8, 8, 0, 0)};
        const attune_backward_args args = {.struct_size = sizeof args,
                                           .q = q,
                                           .k = k,
                                           .v = v,
                                           .o = o,
                                           .lse = lse,
                                           .d_o = tensor(dtype, 1, 2, q_len, 32),
                                           .d_q = tensor(dtype, 1, 2, q_len, 32),
                                           .d_k = tensor(dtype, 1, 2, kv_len, 32),
                                           .d_v = tensor(dtype, 1, 2, kv_len, 32),
                                           .mask = mask,
                                           .captures = &w,
                                           .capture_count = 1,
                                           .capture_gradients = &d_w,
                                           .capture_gradient_count = 1,
                                           .workspace = workspace};
        cr_assert_eq(attune_backward(plan, queue, &args, NULL), ATTUNE_OK, "%s", attune_last_error());
    }
    destroy_plan(plan, workspace);
    close_device();
    attune_mask_destroy(mask);
    attune_expr_destroy(causal);
}

#define RUN(name, ...)                                                                                                 \
    static void name(void)                                                                                             \
    {                                                                                                                  \
        run(__VA_ARGS__);                                                                                              \
    }
RUN(forward_f32, ATTUNE_F32, ATTUNE_FORWARD, 70, 90)
RUN(forward_f16, ATTUNE_F16, ATTUNE_FORWARD, 70, 90)
RUN(forward_bf16, ATTUNE_BF16, ATTUNE_FORWARD, 70, 90)
RUN(forward_f64, ATTUNE_F64, ATTUNE_FORWARD, 70, 90)
RUN(decode_f32, ATTUNE_F32, ATTUNE_FORWARD, 1, 900)
RUN(decode_f16, ATTUNE_F16, ATTUNE_FORWARD, 1, 900)
RUN(decode_bf16, ATTUNE_BF16, ATTUNE_FORWARD, 1, 900)
RUN(backward_f32, ATTUNE_F32, ATTUNE_BACKWARD, 70, 90)
RUN(backward_f16, ATTUNE_F16, ATTUNE_BACKWARD, 70, 90)
RUN(backward_bf16, ATTUNE_BF16, ATTUNE_BACKWARD, 70, 90)
#undef RUN

/* More parts than one launch merges. */
static void merge(void)
{
    enum { PARTS = 10 };
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        const attune_dtype dtype = dtypes[i], row = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
        attune_merge_part parts[PARTS];
        attune_merger *merger;
        attune_buffer *workspace;
        open_device();
        cr_assert_eq(attune_merger_create(device, &merger), ATTUNE_OK, "%s", attune_last_error());
        for (int p = 0; p < PARTS; p++)
            parts[p] = (attune_merge_part){tensor(dtype, 1, 2, 9, 32), tensor(row, 1, 2, 9, 0),
                                           tensor(dtype, 1, 2, 9, 32), tensor(row, 1, 2, 9, 0)};
        const attune_tensor o = tensor(dtype, 1, 2, 9, 32), lse = tensor(row, 1, 2, 9, 0);
        cr_assert_eq(attune_buffer_create(device, attune_merger_workspace_size(merger, &o, PARTS), &workspace),
                     ATTUNE_OK);
        const attune_merge_args args = {.struct_size = sizeof args,
                                        .parts = parts,
                                        .part_count = PARTS,
                                        .o = o,
                                        .lse = lse,
                                        .workspace = workspace};
        const attune_merge_backward_args backward = {.struct_size = sizeof backward,
                                                     .parts = parts,
                                                     .part_count = PARTS,
                                                     .o = o,
                                                     .lse = lse,
                                                     .d_o = tensor(dtype, 1, 2, 9, 32),
                                                     .workspace = workspace};
        cr_assert_eq(attune_merge(merger, attune_device_queue(device), &args, NULL), ATTUNE_OK, "%s",
                     attune_last_error());
        cr_assert_eq(attune_merge_backward(merger, attune_device_queue(device), &backward, NULL), ATTUNE_OK, "%s",
                     attune_last_error());
        attune_buffer_destroy(workspace);
        attune_merger_destroy(merger);
        close_device();
    }
}

/* New rows, a step's schedule and a call over pages, of each type that a cache has. */
static void serve(void)
{
    static const attune_dtype dtypes[][2] = {
        {ATTUNE_F32, ATTUNE_F32},  {ATTUNE_F16, ATTUNE_F16},    {ATTUNE_BF16, ATTUNE_BF16}, {ATTUNE_BF16, ATTUNE_I8},
        {ATTUNE_F16, ATTUNE_Q8_0}, {ATTUNE_F16, ATTUNE_F8E4M3}, {ATTUNE_F32, ATTUNE_Q4_0},
    };
    attune_expr *causal;
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "kv <= q + kv_len - q_len", NULL, 0, &causal),
                 ATTUNE_OK);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        const attune_dtype dtype = dtypes[i][0], kv = dtypes[i][1];
        open_device();
        const attune_capture w = {"w", tensor(ATTUNE_F32, 8, 8, 0, 0)};
        const attune_problem problem = {.struct_size = sizeof problem,
                                        .dtype = dtype,
                                        .kv_dtype = kv,
                                        .head_dim = 64,
                                        .batch = 2,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .q_len = 7,
                                        .kv_len = 96,
                                        .lse = true,
                                        .mask = causal,
                                        .score = score_expr,
                                        .tokens = 8,
                                        .page = 16};
        attune_buffer *workspace, *schedule;
        attune_plan *plan = create_plan(&problem, &workspace);
        attune_cache cache = {
            .struct_size = sizeof cache,
            .k = tensor(kv, 12, 2, 16, 64),
            .v = tensor(kv, 12, 2, 16, 64),
            .pages = integers(12, (const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}),
        };
        cache.pages.rank = 2;
        cache.pages.size[0] = 2;
        cache.pages.size[1] = 6;
        const attune_batch batch = {.struct_size = sizeof batch,
                                    .q_start = integers(3, (const int32_t[]){0, 7, 8}),
                                    .kv_len = integers(2, (const int32_t[]){90, 33})};
        attune_queue *queue = attune_device_queue(device);
        const attune_append_args append = {.struct_size = sizeof append,
                                           .k = tensor(dtype, 8, 2, 64, 0),
                                           .v = tensor(dtype, 8, 2, 64, 0),
                                           .cosine = tensor(ATTUNE_F32, 96, 32, 0, 0),
                                           .sine = tensor(ATTUNE_F32, 96, 32, 0, 0),
                                           .cache = &cache,
                                           .batch = &batch};
        cr_assert_eq(attune_append(plan, queue, &append, NULL), ATTUNE_OK, "%s", attune_last_error());
        attune_forward_args args = {.struct_size = sizeof args,
                                    .q = tensor(dtype, 8, 4, 64, 0),
                                    .o = tensor(dtype, 8, 4, 64, 0),
                                    .lse = tensor(ATTUNE_F32, 8, 4, 0, 0),
                                    .captures = &w,
                                    .capture_count = 1,
                                    .cache = &cache,
                                    .batch = &batch,
                                    .workspace = workspace};
        cr_assert_eq(attune_buffer_create(device, attune_plan_schedule_size(plan), &schedule), ATTUNE_OK);
        args.schedule = schedule;
        cr_assert_eq(attune_schedule(plan, queue, &args, NULL), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune_forward(plan, queue, &args, NULL), ATTUNE_OK, "%s", attune_last_error());
        attune_buffer_destroy(schedule);
        destroy_plan(plan, workspace);
        close_device();
    }
    attune_expr_destroy(causal);
}

/* Kernels on disk: an entry that is missed, stored, found and evicted, and a pack that is written and loaded. */
static void store_kernels(void)
{
    static char kernel[70000];
    char folder[] = "/tmp/attune-stack-XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(folder));
    const attune__cache_desc desc = {.allocator = attune__default_allocator, .folder = folder, .size = 100000};
    attune__cache *cache = attune__cache_open(&desc);
    cr_assert_not_null(cache);
    for (uint64_t i = 0; i < 3; i++) {
        const attune__cache_key key = {"test", {{i, 1}}, "identity", 8};
        void *data = NULL;
        size_t size;
        cr_assert_not(attune__cache_get(cache, &key, &data, &size));
        attune__cache_put(cache, &key, kernel, sizeof kernel);
        cr_assert(attune__cache_get(cache, &key, &data, &size) && size == sizeof kernel);
        attune__free(&desc.allocator, data);
    }
    attune__cache_close(cache);
    attune_pack *pack;
    snprintf(path, sizeof path, "%s/pack", folder);
    cr_assert_eq(attune_pack_create(instance, &pack), ATTUNE_OK);
    cr_assert_eq(attune_pack_write(pack, path), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_instance_pack_load(instance, path), ATTUNE_OK, "%s", attune_last_error());
    attune_pack_destroy(pack);
    DIR *list = opendir(folder);
    for (const struct dirent *at; (at = readdir(list));)
        (void)unlinkat(dirfd(list), at->d_name, 0);
    closedir(list);
    cr_assert_eq(rmdir(folder), 0);
}

static void do_nothing(void)
{
}

static void *call(void *user)
{
    void (*const *step)(void) = user;
    (*step)();
    return NULL;
}

/* The bytes that were ever written, from the top of the stack. */
static size_t run_measured(void (*step)(void))
{
    uint8_t *stack = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    cr_assert_neq(stack, MAP_FAILED);
    memset(stack, PAINT, ROOM);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    cr_assert_eq(pthread_attr_setstack(&attributes, stack, ROOM), 0);
    cr_assert_eq(pthread_create(&thread, &attributes, call, &step), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    size_t untouched = 0;
    while (untouched < ROOM && stack[untouched] == PAINT)
        untouched++;
    munmap(stack, ROOM);
    return ROOM - untouched;
}

Test(stack, calls_need_at_most_64_kib)
{
    static const struct {
        const char *name;
        void (*step)(void);
    } steps[] = {
        {"create expressions", create_expr},
        {"errors of the parser", parse_errors},
        {"print", print},
        {"evaluate", evaluate},
        {"build masks", build_mask},
        {"kernel options", options},
        {"explain", explain},
        {"extend a mask", extend_mask},
        {"masks of lists and arrays", given_masks},
        {"draw", draw},
        {"forward in f32", forward_f32},
        {"forward in f16", forward_f16},
        {"forward in bf16", forward_bf16},
        {"forward in f64", forward_f64},
        {"decode in f32", decode_f32},
        {"decode in f16", decode_f16},
        {"decode in bf16", decode_bf16},
        {"backward in f32", backward_f32},
        {"backward in f16", backward_f16},
        {"backward in bf16", backward_bf16},
        {"merge", merge},
        {"serve", serve},
        {"cache and packs", store_kernels},
    };
    fill_texts();
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 1, .cache_folder = ""};
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    /* The C library's own part of a thread's stack, with this program's thread-local variables. */
    const size_t own = run_measured(do_nothing);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const size_t used = run_measured(steps[i].step) - own;
        if (MEASURED)
            cr_expect_leq(used, PROMISE, "%s: %zu bytes of stack", steps[i].name, used);
    }
    attune_expr_destroy(mask_expr);
    attune_expr_destroy(score_expr);
    attune_instance_destroy(instance);
}
