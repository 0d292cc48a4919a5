/* SPDX-License-Identifier: MIT */
/* The stack that calls need, on a thread that has no more: what attune.h says under "Stack". */
#define _GNU_SOURCE /* MAP_ANONYMOUS, MAP_STACK */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <attune/attune.h>

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

static void run_on_cpu(void)
{
    attune_device *device;
    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK, "%s", attune_last_error());
    attune_buffer *buffer;
    cr_assert_eq(attune_buffer_create(device, 1 << 20, &buffer), ATTUNE_OK);
    static float zeros[1 << 18];
    for (size_t i = 0; i < sizeof zeros / sizeof zeros[0]; i++)
        zeros[i] = (float)(i * 37 % 101) / 101;
    cr_assert_eq(attune_buffer_write(buffer, 0, zeros, sizeof zeros), ATTUNE_OK);
    const attune_capture w = {"w", {.buffer = buffer, .dtype = ATTUNE_F32, .rank = 2, .size = {8, 8}}};
    uint64_t at = 0;
    attune_tensor t[10];
    for (int i = 0; i < 10; i++) {
        const bool row = i == 4 || i == 5;
        t[i] = (attune_tensor){buffer, at, ATTUNE_F32, row ? 3 : 4, {1, 2, 70, 32}, {0}};
        at += row ? 4 * 2 * 70 : 4 * 2 * 70 * 32;
    }
    for (int d = 0; d < 2; d++) {
        const attune_problem problem = {.struct_size = sizeof problem,
                                        .dtype = ATTUNE_F32,
                                        .direction = d ? ATTUNE_BACKWARD : ATTUNE_FORWARD,
                                        .head_dim = 32,
                                        .heads = 2,
                                        .q_len = 70,
                                        .kv_len = 70,
                                        .lse = true,
                                        .score = score_expr};
        attune_plan *plan;
        cr_assert_eq(attune_plan_create(device, &problem, NULL, &plan), ATTUNE_OK, "%s", attune_last_error());
        attune_buffer *workspace = NULL;
        if (attune_plan_workspace_size(plan))
            cr_assert_eq(attune_buffer_create(device, attune_plan_workspace_size(plan), &workspace), ATTUNE_OK);
        const attune_forward_args forward = {.struct_size = sizeof forward,
                                             .q = t[0],
                                             .k = t[1],
                                             .v = t[2],
                                             .o = t[3],
                                             .lse = t[4],
                                             .captures = &w,
                                             .capture_count = 1,
                                             .workspace = workspace};
        const attune_backward_args backward = {.struct_size = sizeof backward,
                                               .q = t[0],
                                               .k = t[1],
                                               .v = t[2],
                                               .o = t[3],
                                               .lse = t[4],
                                               .d_o = t[6],
                                               .d_q = t[7],
                                               .d_k = t[8],
                                               .d_v = t[9],
                                               .captures = &w,
                                               .capture_count = 1,
                                               .workspace = workspace};
        attune_queue *queue = attune_device_queue(device);
        cr_assert_eq(d ? attune_backward(plan, queue, &backward, NULL) : attune_forward(plan, queue, &forward, NULL),
                     ATTUNE_OK, "%s", attune_last_error());
        attune_buffer_destroy(workspace);
        attune_plan_destroy(plan);
    }
    attune_buffer_destroy(buffer);
    attune_device_destroy(device);
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
        {"run on the CPU", run_on_cpu},
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
