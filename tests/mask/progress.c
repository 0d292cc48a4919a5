/* SPDX-License-Identifier: MIT */
/* Building a mask tells how far it is, stops when it is told to, and at a limit of work. */
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attune/attune.h>

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

Test(progress, a_limit_of_work)
{
    watch w;
    attune_mask *mask;
    /* The least that is enough, found by halving: enough is enough each time, one less is not. */
    uint64_t low = 0, high = UINT64_C(1) << 40;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        attune_mask_desc desc = describe(&w, middle);
        desc.progress = NULL;
        desc.q_len = desc.kv_len = 200;
        const attune_status status = create(&desc, hard, &mask);
        cr_assert(status == ATTUNE_OK || status == ATTUNE_CANCELLED, "%s", attune_last_error());
        cr_assert_eq(mask != NULL, status == ATTUNE_OK);
        if (status == ATTUNE_CANCELLED)
            cr_assert_not_null(strstr(attune_last_error(), "desc.max_work"), "%s", attune_last_error());
        attune_mask_destroy(mask);
        *(status == ATTUNE_OK ? &high : &low) = middle;
    }
    cr_assert_gt(high, 200 * 200 * 3);
    /* An easy mask of any size needs little. */
    attune_mask_desc desc = describe(&w, 1000000);
    desc.q_len = desc.kv_len = 100000;
    cr_assert_eq(create(&desc, causal, &mask), ATTUNE_OK, "%s", attune_last_error());
    attune_mask_destroy(mask);
    desc.q_len = desc.kv_len = INT32_MAX;
    cr_assert_eq(create(&desc, hard, &mask), ATTUNE_CANCELLED, "long before its lists would fill the memory");
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
