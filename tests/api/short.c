/* SPDX-License-Identifier: MIT */
/* Captures that are too short for what indexes them read 0, and the log says so, once. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "api/flow.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

typedef struct lines {
    int count;
    char last[512];
} lines;

static void note(void *user, attune_log_level level, const char *message)
{
    lines *l = user;
    cr_assert_eq(level, ATTUNE_LOG_WARNING);
    l->count++;
    snprintf(l->last, sizeof l->last, "%s", message);
}

#define SAYS(l, words)                                                                                                 \
    do {                                                                                                               \
        cr_expect_eq((l).count, 1, "%d warnings, the last \"%s\"", (l).count, (l).last);                               \
        cr_expect(strstr((l).last, words), "\"%s\" does not say \"%s\"", (l).last, words);                             \
        (l).count = 0;                                                                                                 \
    } while (0)

Test(short_captures, of_masks)
{
    static const struct {
        const char *text, *warning;
        int64_t batch, heads, kv_heads, size, kv_start, kv_total;
    } cases[] = {
        {"ids[q] == ids[kv]", NULL, 1, 1, 1, 50, 0, 0},
        {"ids[q] == ids[kv]", "\"ids\" of the mask has 49 elements in dimension 0, which kv indexes from 0 to 49", 1, 1,
         1, 49, 0, 0},
        {"ids[q] == 1", NULL, 1, 1, 1, 40, 0, 0},
        {"kv <= q && ids[q] == 1", "which q indexes from 0 to 39", 1, 1, 1, 39, 0, 0},
        {"kv < ids[b]", NULL, 3, 1, 1, 3, 0, 0},
        {"kv < ids[b]", "which b indexes from 0 to 2", 3, 1, 1, 2, 0, 0},
        {"kv < ids[h]", "which h indexes from 0 to 5", 1, 6, 3, 3, 0, 0},
        {"kv < ids[h_kv]", NULL, 1, 6, 3, 3, 0, 0},
        /* A segment's keys are counted in the whole. */
        {"ids[kv] == 1", NULL, 1, 1, 1, 80, 30, 80},
        {"ids[kv] == 1", "which kv indexes from 0 to 79", 1, 1, 1, 79, 30, 80},
        /* Other indices are not judged. */
        {"ids[kv - 1] == 1 || ids[kv / 2 + 40] == 2 || ids[ids[kv]] == 3", NULL, 1, 1, 1, 50, 0, 0},
    };
    lines l = {0};
    const attune_instance_desc instance_desc = {.struct_size = sizeof instance_desc, .log = note, .log_user = &l};
    attune_instance *instance;
    OK(attune_instance_create(&instance_desc, &instance));
    static int32_t ids[100];
    for (int i = 0; i < 100; i++)
        ids[i] = i / 7;
    const attune_symbol symbol = {"ids", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attune_host_capture capture = {"ids",
                                             {.data = ids, .dtype = ATTUNE_I32, .rank = 1, .size = {cases[i].size}}};
        const attune_mask_desc desc = {.struct_size = sizeof desc,
                                       .batch = cases[i].batch,
                                       .heads = cases[i].heads,
                                       .kv_heads = cases[i].kv_heads,
                                       .q_len = 40,
                                       .kv_len = 50,
                                       .kv_start = cases[i].kv_start,
                                       .kv_total = cases[i].kv_total};
        attune_expr *expr;
        attune_mask *mask;
        OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, cases[i].text, &symbol, 1, &expr));
        OK(attune_mask_create(instance, &desc, expr, &capture, 1, NULL, 0, &mask));
        if (cases[i].warning)
            SAYS(l, cases[i].warning);
        cr_expect_eq(l.count, 0, "%s: %s", cases[i].text, l.last);
        attune_mask_destroy(mask);
        attune_expr_destroy(expr);
    }
    attune_instance_destroy(instance);
}

Test(short_captures, of_calls)
{
    lines l = {0};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .log = note, .log_user = &l};
    static flow f;
    OK(flow_create(&f, &desc));
    for (int i = 0; i < 3; i++)
        OK(flow_run(&f, NULL));
    cr_expect_eq(l.count, 0, "%s", l.last);
    f.captures[0].tensor.size[0] = FLOW_HEADS - 1;
    OK(flow_run(&f, NULL));
    SAYS(l, "the capture \"slope\" of a call has 1 elements in dimension 0, which h indexes from 0 to 1: elements "
            "out of range read as 0");
    for (int i = 0; i < 3; i++)
        OK(flow_run(&f, NULL));
    cr_expect_eq(l.count, 0, "said again");

    /* Either of two. */
    const attune_symbol symbols[] = {{"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                     {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1}};
    attune_expr *expr;
    attune_problem problem = f.problem;
    OK(attune_expr_create(f.instance, ATTUNE_EXPR_SCORE, "score + slope[h] + bias[h_kv]", symbols, 2, &expr));
    problem.score = expr;
    for (int i = 0; i < 2; i++) {
        attune_capture captures[2] = {f.captures[0], f.captures[0]};
        captures[1].name = "bias";
        captures[0].tensor.size[0] = captures[1].tensor.size[0] = FLOW_HEADS;
        captures[i].tensor.size[0]--;
        attune_plan_destroy(f.plan);
        OK(attune_plan_create(f.device, &problem, NULL, &f.plan));
        f.args.captures = captures;
        f.args.capture_count = 2;
        OK(flow_run(&f, NULL));
        SAYS(l, i ? "\"bias\" of a call has 1 elements in dimension 0, which h_kv indexes from 0 to 1"
                  : "\"slope\" of a call has 1 elements in dimension 0, which h indexes from 0 to 1");
    }
    attune_expr_destroy(expr);
    flow_destroy(&f);
}
