/* SPDX-License-Identifier: MIT */
/* Building a mask reports progress, stops on request, and at a limit of work. */
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attune/attune.h>

#include "mask/work.h"
#include "support/heap.h"

static heap memory;
static attune_instance *instance;
static attune_expr *hard, *causal;

/* Bounds say nothing of it: every pair of every block is looked at. */
static const char text[] = "sin(q * 37.0 + kv * 101.0 + h) * sin(q * 37.0 + kv * 101.0 + h) + "
                           "cos(q * 37.0 + kv * 101.0 + h) * cos(q * 37.0 + kv * 101.0 + h) > 0.5";

static void enter(void)
{
    const attune_instance_desc desc = {.struct_size = sizeof desc, .allocator = heap_allocator(&memory)};
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, text, NULL, 0, &hard), ATTUNE_OK, "%s",
                 attune_last_error());
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "causal", NULL, 0, &causal), ATTUNE_OK);
}

static void leave(void)
{
    attune_expr_destroy(hard);
    attune_expr_destroy(causal);
    attune_instance_destroy(instance);
    cr_assert_eq(atomic_load(&memory.live), 0);
}

TestSuite(progress, .init = enter, .fini = leave);

typedef struct watch {
    int calls, stop_at; /* 0 = never */
    double last;
    bool rising;
} watch;

static int look(void *user, double done)
{
    watch *w = user;
    w->rising &= done >= w->last && done <= 1;
    w->last = done;
    return ++w->calls == w->stop_at;
}

static attune_mask_desc describe(watch *w, uint64_t most)
{
    *w = (watch){.rising = true};
    return (attune_mask_desc){.struct_size = sizeof(attune_mask_desc),
                              .heads = 3,
                              .q_len = 1000,
                              .kv_len = 900,
                              .progress = look,
                              .progress_user = w,
                              .max_work = most};
}

static attune_status create(const attune_mask_desc *desc, const attune_expr *expr, attune_mask **mask)
{
    *mask = (attune_mask *)1;
    return attune_mask_create(instance, desc, expr, NULL, 0, NULL, 0, mask);
}

Test(progress, tells_and_stops)
{
    watch w;
    attune_mask *mask;
    attune_mask_desc desc = describe(&w, 0);
    cr_assert_eq(create(&desc, hard, &mask), ATTUNE_OK, "%s", attune_last_error());
    attune_mask_destroy(mask);
    const int calls = w.calls;
    cr_assert_gt(calls, 20);
    cr_assert(w.rising);
    cr_assert_gt(w.last, 0.8);
    /* At each of its calls, and nothing is called after it. */
    for (int at = 1; at <= calls; at += calls / 7) {
        desc = describe(&w, 0);
        w.stop_at = at;
        cr_assert_eq(create(&desc, hard, &mask), ATTUNE_CANCELLED);
        cr_assert_null(mask);
        cr_assert_eq(w.calls, at);
        cr_assert_not_null(strstr(attune_last_error(), "desc.progress stopped"), "%s", attune_last_error());
    }
}

typedef attune_status (*limited)(uint64_t most, const void *with);

/* The least that is enough, found by halving: enough is enough each time, one less is not. */
static uint64_t least(limited run, const void *with)
{
    uint64_t low = 0, high = UINT64_C(1) << 40;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        const attune_status status = run(middle, with);
        cr_assert(status == ATTUNE_OK || status == ATTUNE_CANCELLED, "%s", attune_last_error());
        if (status == ATTUNE_CANCELLED)
            cr_assert_not_null(strstr(attune_last_error(), ".max_work"), "%s", attune_last_error());
        *(status == ATTUNE_OK ? &high : &low) = middle;
    }
    return high;
}

typedef struct sides {
    attune_mask_op op;
    attune_mask *a, *b;
} sides;

static attune_status combine_within(uint64_t most, const void *with)
{
    const sides *s = with;
    const attune_mask_work work = {.struct_size = sizeof work, .max_work = most};
    attune_mask *mask = (attune_mask *)1;
    const attune_status status = attune_mask_combine(s->op, s->a, s->b, &work, &mask);
    cr_assert_eq(mask != NULL, status == ATTUNE_OK);
    attune_mask_destroy(mask);
    return status;
}

static attune_status count_within(uint64_t most, const void *with)
{
    const attune_mask_work work = {.struct_size = sizeof work, .max_work = most};
    attune_mask_stats stats = {.struct_size = sizeof stats};
    const attune_status status = attune_mask_stats_count(with, &work, &stats);
    cr_assert_eq(stats.pairs > 0, status == ATTUNE_OK);
    return status;
}

static attune_mask *build(const char *expression, int64_t length)
{
    attune_expr *expr;
    attune_mask *mask;
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = length, .kv_len = length};
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, expression, NULL, 0, &expr), ATTUNE_OK, "%s",
                 attune_last_error());
    cr_assert_eq(create(&desc, expr, &mask), ATTUNE_OK, "%s", attune_last_error());
    attune_expr_destroy(expr);
    return mask;
}

/* Joining evaluates the blocks that are partial in both, and, of masks from arrays, every pair. Exact figures evaluate
 * the pairs of partial blocks. */
Test(progress, of_combining_and_counting)
{
    enum { LENGTH = 1024, PAIRS = LENGTH * LENGTH };
    static uint8_t bytes[2][PAIRS];
    sides s = {ATTUNE_MASK_AND, build("(q * 3 + kv * 5) % 7 != 0", LENGTH), build("(q * 5 + kv * 2) % 9 != 3", LENGTH)};
    cr_expect_gt(least(combine_within, &s), 64 * 10, "64 blocks, of some nodes each");
    cr_expect_gt(least(count_within, s.a), PAIRS * 5);
    for (s.op = ATTUNE_MASK_AND; s.op <= ATTUNE_MASK_NOT; s.op++) {
        attune_mask *const b = s.b;
        s.b = s.op == ATTUNE_MASK_NOT ? NULL : b;
        cr_expect_gt(least(combine_within, &s), 64 * 2, "entries of lists");
        s.b = b;
    }
    /* Stopped by the callback, at each of its calls. */
    watch w = {.rising = true};
    const attune_mask_work work = {.struct_size = sizeof work, .progress = look, .progress_user = &w};
    attune_mask_stats stats = {.struct_size = sizeof stats};
    cr_assert_eq(attune_mask_stats_count(s.a, &work, &stats), ATTUNE_OK);
    cr_expect(w.rising && w.calls > 5, "%d calls", w.calls);
    w = (watch){.rising = true, .stop_at = 3};
    cr_assert_eq(attune_mask_stats_count(s.a, &work, &stats), ATTUNE_CANCELLED);
    cr_expect_not_null(strstr(attune_last_error(), "work.progress stopped"), "%s", attune_last_error());
    cr_expect_eq(w.calls, 3);
    attune_mask_destroy(s.a);
    attune_mask_destroy(s.b);

    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = LENGTH, .kv_len = LENGTH};
    attune_mask **const to[2] = {&s.a, &s.b};
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < PAIRS; j++)
            bytes[i][j] = (uint8_t)((unsigned)j * 2654435761u >> (28 + i) & 1);
        const attune_array array = {.data = bytes[i], .dtype = ATTUNE_BOOL, .rank = 4, .size = {1, 1, LENGTH, LENGTH}};
        cr_assert_eq(attune_mask_create_dense(instance, &desc, &array, to[i]), ATTUNE_OK, "%s", attune_last_error());
    }
    s.op = ATTUNE_MASK_OR;
    cr_expect_gt(least(combine_within, &s), 2 * PAIRS);
    w = (watch){.rising = true};
    attune_mask *mask;
    cr_assert_eq(attune_mask_combine(s.op, s.a, s.b, &work, &mask), ATTUNE_OK);
    attune_mask_destroy(mask);
    cr_expect(w.rising && w.calls > 5, "%d calls", w.calls);
    const int calls = w.calls;
    for (int at = 1; at <= calls; at += 1 + calls / 5) {
        w = (watch){.rising = true, .stop_at = at};
        cr_assert_eq(attune_mask_combine(s.op, s.a, s.b, &work, &mask), ATTUNE_CANCELLED);
        cr_assert_null(mask);
        cr_assert_eq(w.calls, at);
    }
    cr_assert_eq(attune_mask_combine(ATTUNE_MASK_NOT, s.a, s.b, &work, &mask), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune_mask_combine((attune_mask_op)4, s.a, s.b, &work, &mask), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune_mask_combine((attune_mask_op)0, s.a, s.b, NULL, &mask), ATTUNE_INVALID_ARGUMENT);
    attune_mask_destroy(s.a);
    attune_mask_destroy(s.b);
}

typedef struct building {
    attune_mask_desc desc;
    const attune_expr *expr;
    attune_host_capture capture;
} building;

static attune_status build_within(uint64_t most, const void *with)
{
    building b = *(const building *)with;
    attune_mask *mask;
    b.desc.max_work = most;
    const attune_status status =
        attune_mask_create(instance, &b.desc, b.expr, &b.capture, b.capture.name ? 1 : 0, NULL, 0, &mask);
    attune_mask_destroy(mask);
    return status;
}

Test(progress, a_limit_of_work)
{
    watch w;
    attune_mask *mask;
    building b = {.desc = describe(&w, 0), .expr = hard};
    b.desc.progress = NULL;
    b.desc.q_len = b.desc.kv_len = 200;
    cr_assert_gt(least(build_within, &b), 200 * 200 * 3);
    /* An easy mask of any size needs little. */
    attune_mask_desc desc = describe(&w, 1000000);
    desc.q_len = desc.kv_len = 100000;
    cr_assert_eq(create(&desc, causal, &mask), ATTUNE_OK, "%s", attune_last_error());
    attune_mask_destroy(mask);
    desc.q_len = desc.kv_len = INT32_MAX;
    cr_assert_eq(create(&desc, hard, &mask), ATTUNE_CANCELLED, "long before its lists would fill the memory");
}

static attune_status extend_within(uint64_t most, const void *with)
{
    const attune_mask_work work = {.struct_size = sizeof work, .max_work = most};
    attune_mask *mask = (attune_mask *)1;
    const attune_status status = attune_mask_extend(with, 1040, 1000, NULL, 0, &work, &mask);
    cr_assert_eq(mask != NULL, status == ATTUNE_OK);
    attune_mask_destroy(mask);
    return status;
}

/* A mask that has grown: the limits of the call, not of the build that it comes of, over the new blocks alone. */
Test(progress, of_extending)
{
    watch w;
    attune_mask *mask, *longer;
    building b = {.desc = describe(&w, UINT64_C(1) << 40), .expr = hard};
    b.desc.heads = 1;
    b.desc.q_len = 1024;
    b.desc.kv_len = 896;
    cr_assert_eq(create(&b.desc, hard, &mask), ATTUNE_OK, "%s", attune_last_error());
    const int built = w.calls;
    const uint64_t enough = least(extend_within, mask);
    cr_expect_gt(enough, (1040 * 1000 - 1024 * 896) * 3, "the new pairs");
    cr_expect_eq(w.calls, built, "the callback of the build is not called again");
    b.desc.progress = NULL;
    b.desc.q_len = 1040;
    b.desc.kv_len = 1000;
    cr_expect_lt(enough, least(build_within, &b) / 2, "the others are kept");
    /* Stopped by the callback, at each of its calls. */
    w = (watch){.rising = true};
    attune_mask_work work = {.struct_size = sizeof work, .progress = look, .progress_user = &w};
    cr_assert_eq(attune_mask_extend(mask, 3000, 1000, NULL, 0, &work, &longer), ATTUNE_OK, "%s", attune_last_error());
    attune_mask_destroy(longer);
    cr_expect(w.rising && w.calls > 5, "%d calls", w.calls);
    const int calls = w.calls;
    for (int at = 1; at <= calls; at += 1 + calls / 5) {
        w = (watch){.rising = true, .stop_at = at};
        longer = mask;
        cr_assert_eq(attune_mask_extend(mask, 3000, 1000, NULL, 0, &work, &longer), ATTUNE_CANCELLED);
        cr_assert_null(longer);
        cr_assert_eq(w.calls, at);
        cr_assert_not_null(strstr(attune_last_error(), "work.progress stopped"), "%s", attune_last_error());
    }
    work.struct_size = 0;
    cr_assert_eq(attune_mask_extend(mask, 3000, 1000, NULL, 0, &work, &longer), ATTUNE_INVALID_ARGUMENT);
    attune_mask_destroy(mask);
}

/* Exactly at the limit, in steps of any size, and as often as promised. */
Test(progress, is_counted_to_the_unit)
{
    static const uint64_t limits[] = {
        1, 10, ATTUNE__WORK_STEP - 1, ATTUNE__WORK_STEP, ATTUNE__WORK_STEP + 1, 3 * ATTUNE__WORK_STEP};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        for (uint64_t step = 1; step <= 2 * ATTUNE__WORK_STEP; step = step * 3 + 1) {
            attune__work work = {.name = "desc", .most = limits[i]};
            uint64_t done = 0;
            for (; done + step < limits[i] && done < 1000 * step; done += step)
                cr_assert_eq(attune__work_add(&work, step), ATTUNE_OK);
            if (done < limits[i])
                cr_assert_eq(attune__work_add(&work, limits[i] - done), ATTUNE_OK, "all that is allowed");
            cr_assert_not(attune__work_stopped(&work));
            cr_assert_eq(attune__work_add(&work, 1), ATTUNE_CANCELLED, "one more than %llu",
                         (unsigned long long)limits[i]);
            cr_assert_eq(attune__work_add(&work, 0), ATTUNE_CANCELLED, "for good");
            cr_assert(attune__work_stopped(&work));
        }
    watch w = {.rising = true};
    attune__work work = {.name = "desc", .progress = look, .user = &w};
    for (uint64_t done = 0; done < 5 * ATTUNE__WORK_STEP; done += ATTUNE__WORK_STEP / 4)
        cr_assert_eq(attune__work_add(&work, ATTUNE__WORK_STEP / 4), ATTUNE_OK);
    cr_assert_eq(w.calls, 5, "at the first and after each step, %d calls", w.calls);
    cr_assert_eq(attune__work_add(NULL, 1), ATTUNE_OK);
    cr_assert_not(attune__work_stopped(NULL));
    attune__work_share(&work, 0.5);
    attune__work_share(&work, 0.25);
    cr_assert_eq(work.share, 0.5);
}

/* Work besides evaluation: lists are written, and bounds look at captures. */
Test(progress, of_lists_and_captures)
{
    enum { LENGTH = 300 };
    static float table[LENGTH * LENGTH];
    building b = {.desc = {.struct_size = sizeof(attune_mask_desc), .q_len = 100000, .kv_len = 100000}, .expr = causal};
    const uint64_t blocks = (100000 + 127) / 128;
    cr_expect_gt(least(build_within, &b), blocks * (blocks + 1), "entries of the lists and of their transposes");

    for (int i = 0; i < LENGTH * LENGTH; i++)
        table[i] = 1.0f + (float)(i % 17);
    const attune_symbol symbol = {"table", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2};
    attune_expr *expr;
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "table[q, kv - 5] >= 0.0", &symbol, 1, &expr),
                 ATTUNE_OK, "%s", attune_last_error());
    b = (building){
        .desc = {.struct_size = sizeof(attune_mask_desc), .q_len = 128, .kv_len = 128},
        .expr = expr,
        .capture = {"table", {.data = table, .dtype = ATTUNE_F32, .rank = 2, .size = {LENGTH, LENGTH}}},
    };
    cr_expect_gt(least(build_within, &b), 128 * 8, "the ends of 128 rows");
    attune_expr_destroy(expr);
}

/* Terms that matter in a few rows each are looked at there alone. */
Test(progress, of_an_expression_of_many_parts)
{
    enum { TERMS = 40, LENGTH = 4096 };
    char long_text[ATTUNE_EXPR_MAX_LENGTH] = "true";
    for (int i = 0; i < TERMS; i++)
        snprintf(long_text + strlen(long_text), sizeof long_text - strlen(long_text),
                 " && ((q*%d+kv*%d)%%7 + (q*%d+kv*%d)%%7 != 11 || abs(q - %d) > 60)", i + 3, 2 * i + 5, i + 3,
                 2 * i + 5, 100 * i + 50);
    building b = {.desc = {.struct_size = sizeof(attune_mask_desc), .q_len = LENGTH, .kv_len = LENGTH}};
    attune_expr *expr;
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, long_text, NULL, 0, &expr), ATTUNE_OK, "%s",
                 attune_last_error());
    b.expr = expr;
    /* All terms at all pairs are some 10 nodes, times 40, times 2^24. */
    b.desc.max_work = UINT64_C(60) << 24;
    attune_mask *mask;
    cr_assert_eq(create(&b.desc, expr, &mask), ATTUNE_OK, "%s", attune_last_error());
    attune_mask_lists lists = {.struct_size = sizeof lists};
    cr_assert_eq(attune_mask_lists_get(mask, &lists), ATTUNE_OK);
    cr_expect_eq(lists.full_kv_offsets[lists.q_blocks], (LENGTH / 128) * (LENGTH / 128));
    attune_mask_destroy(mask);
    attune_expr_destroy(expr);
}

Test(progress, of_whom)
{
    watch w;
    attune_mask *mask;
    static const uint8_t dense[64 * 64] = {1};
    const attune_array array = {.data = dense, .dtype = ATTUNE_BOOL, .rank = 4, .size = {1, 1, 64, 64}};
    attune_mask_desc desc = describe(&w, 0);
    desc.heads = 1;
    desc.q_len = desc.kv_len = 64;
    cr_assert_eq(attune_mask_create_dense(instance, &desc, &array, &mask), ATTUNE_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(attune_last_error(), "desc.progress"), "%s", attune_last_error());
    /* A description of before these fields. */
    desc.struct_size = (uint32_t)offsetof(attune_mask_desc, progress);
    cr_assert_eq(attune_mask_create_dense(instance, &desc, &array, &mask), ATTUNE_OK, "%s", attune_last_error());
    attune_mask_destroy(mask);
    cr_assert_eq(create(&desc, causal, &mask), ATTUNE_OK);
    attune_mask_destroy(mask);
    cr_assert_eq(w.calls, 0);
    cr_assert_str_eq(attune_status_string(ATTUNE_CANCELLED), "ATTUNE_CANCELLED");
    cr_assert_eq(ATTUNE_CANCELLED, 13);
}
