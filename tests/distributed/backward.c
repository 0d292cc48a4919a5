/* SPDX-License-Identifier: MIT */
/* Gradients over several ranks, which are threads: the case table and random cases against float64, one rank against
 * the single device, and ranks that fail. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/sharing.h"
#include "support/devices.h"

enum {
#define ROW(name, ...) CASE_##name,
#include "cases/table.h"
#undef ROW
    CASE_COUNT
};

/* The references take most of the time: longer cases are forward's alone. */
#define MOST_PAIRS 25000

/* On one rank, the bits of the single device. */
static void compare_single(const sharing *s)
{
    array o = {0}, lse = {0};
    attention_gradients single = {.d_o = &s->gradients.d_o,
                                  .d_lse = s->gradients.d_lse.data ? &s->gradients.d_lse : NULL,
                                  .captures = attention_differentiable(s->a)};
    attention_run run = {.mask_q_block = s->c->q_block ? s->c->q_block : 32,
                         .mask_kv_block = s->c->kv_block ? s->c->kv_block : 16,
                         .o = &o,
                         .lse = &lse,
                         .gradients = &single};
    /* attention_forward takes no others. */
    if (s->c->partial || !s->a->mask || s->a->sinks.data)
        return;
    cr_assert_eq(attention_forward(s->instance, s->device, s->a, &run), ATTUNE_OK, "%s", attune_last_error());
    const case_gradients *g = &s->gradients;
    const array *const pairs[][2] = {{&g->d_q, &single.d_q}, {&g->d_k, &single.d_k}, {&g->d_v, &single.d_v}};
    uint64_t wrong = 0;
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
        for (int64_t i = 0; i < array_count(pairs[p][0]); i++)
            wrong += array_get(pairs[p][0], i) != array_get(pairs[p][1], i);
    for (uint32_t c = 0; c < s->a->capture_count; c++)
        for (int64_t i = 0; g->d_captures[c].data && i < array_count(&g->d_captures[c]); i++)
            wrong += array_get(&g->d_captures[c], i) != array_get(&single.d_captures[c], i);
    cr_expect_eq(wrong, 0, "%s: %llu elements of one rank are not the single device's", s->c->name,
                 (unsigned long long)wrong);
    array_free(&o);
    array_free(&lse);
    attention_gradients_free(&single);
}

/* Whether the case has gradients, and is short enough. */
static bool run_case(sharing *s, const attention_case *given, uint64_t number, uint32_t calls)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_BF16, ATTUNE_F64, ATTUNE_F16};
    static const uint32_t ranks[] = {3, 2, 4, 1, 7, 11};
    const attune_dtype dtype = dtypes[number / 2 % 4];
    attention_case c = dtype == ATTUNE_F64 ? case_unmixed(given) : *given;
    attention a;
    failure why;
    if (!case_has_gradients(&c) || c.batch * c.heads * c.q_len * c.kv_len > MOST_PAIRS)
        return false;
    s->c = &c;
    s->ranks = ranks[number % 6];
    s->calls = calls;
    s->backward = true;
    cr_assert(case_instantiate(s->instance, &c, dtype, test_seed() + number, &a, &why), "%s", why.message);
    sharing_begin(s, &a, number / 5 + number);
    rank_group_run(&s->group, sharing_run_rank, s);
    bool done = true;
    for (uint32_t r = 0; r < s->ranks; r++) {
        done = done && s->status[r] == ATTUNE_OK;
        cr_expect_eq(s->status[r], ATTUNE_OK, "%s, rank %u of %u: %s", c.name, r, s->ranks, s->message[r]);
        cr_expect_not(s->differs[r], "%s, rank %u of %u: a repeated call differs", c.name, r, s->ranks);
        cr_expect_eq(s->shared[r], s->shared[0], "%s: gradients of captures differ on rank %u of %u", c.name, r,
                     s->ranks);
    }
    if (done)
        cr_expect(case_check_gradients(s->instance, s->device, &c, &a, &s->gradients, &why),
                  "over %u ranks, layout %d: %s", s->ranks, (int)s->layout, why.message);
    if (done && s->ranks == 1)
        compare_single(s);
    sharing_end(s);
    case_release(&a);
    return true;
}

/* Every case on each number of ranks; on one of these where fewer cases are asked for. */
Test(distributed_backward, table)
{
    static sharing s;
    sharing_open(&s);
    const uint64_t cases = scaled(CASE_COUNT), times = cases < CASE_COUNT ? 1 : 6;
    for (uint64_t i = 0; i < cases; i++)
        for (uint64_t j = 0; j < times && test_part(i); j++)
            run_case(&s, &attention_cases[i * CASE_COUNT / cases], i + j, 2);
    sharing_close(&s);
}

Test(distributed_backward, random)
{
    static sharing s;
    sharing_open(&s);
    for (uint64_t i = 0; i < scaled(25); i++) {
        case_storage storage;
        const attention_case c = attention_case_random(test_seed() * 6007 + i, &storage);
        if (test_part(i))
            run_case(&s, &c, i, 2);
    }
    sharing_close(&s);
}

/* Several ranks need different parts of a rank's keys, in every layout; with all that is summed over ranks. */
Test(distributed_backward, windows)
{
    attention_case c = sharing_windows;
    c.sinks = true;
    static sharing s;
    sharing_open(&s);
    for (uint64_t i = 0; i < 12; i++)
        cr_assert(run_case(&s, &c, i, 2));
    sharing_close(&s);
}

/* 250 calls, and as many of forward. */
Test(distributed_backward, repeats)
{
    static sharing s;
    sharing_open(&s);
    cr_assert(run_case(&s, &attention_cases[CASE_relative_bias], 2, (uint32_t)scaled(250)));
    sharing_close(&s);
}

/* --------------------------------------------------------------------------------------------------------- failures */

/* Every rank returns an error, whichever exchange of the call fails, and none waits for it. */
Test(distributed_backward, a_rank_fails, .timeout = 60)
{
    static sharing s = {.backward = true};
    static const rank_fault faults[] = {
        {.exchange = true, .rank = 0, .after = 1}, /* keys; after forward's exchange */
        {.exchange = true, .rank = 3, .after = 2}, /* gradients of keys */
        {.exchange = true, .rank = 2, .after = 3}, /* sums of captures */
        {.finish = true, .rank = 1, .after = 1},   {.finish = true, .rank = 0, .after = 2},
        {.finish = true, .rank = 3, .after = 3},
    };
    sharing_open(&s);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        sharing_run_failure(&s, &faults[i], MOST_RANKS, MOST_RANKS);
        for (uint32_t r = 0; r < 4; r++) {
            cr_expect_eq(s.created[r], ATTUNE_OK);
            cr_expect_neq(s.status[r], ATTUNE_OK, "fault %zu, rank %u", i, r);
            if (r == faults[i].rank)
                cr_expect(s.status[r] == ATTUNE_IO && strstr(s.message[r], faults[i].finish ? "finish" : "exchange"),
                          "%s", s.message[r]);
        }
    }
    /* Both exchanges of forward's keys, then of backward's and of gradients. */
    s.fails_in_turn = true;
    for (int at = 0; at < 12; at++) {
        const rank_fault fault = {
            .exchange = at % 2, .finish = at % 2 == 0, .rank = (uint32_t)at / 2 % 4, .after = at / 2};
        sharing_run_failure(&s, &fault, MOST_RANKS, MOST_RANKS);
        for (uint32_t r = 0; r < 4; r++)
            cr_expect_eq(s.status[r], r == fault.rank ? ATTUNE_IO : ATTUNE_UNAVAILABLE, "after %d, rank %u: %s", at / 2,
                         r, s.message[r]);
    }
    s.fails_in_turn = false;
    sharing_close(&s);
    /* A device that is lost while keys are sent, or gradients of keys, or sums of captures. */
    for (int after = 1; after < 4; after++) {
        sharing_open_devices(&s, (const char *const[]){"cpu", "cpu", "cpu", "cpu"}, 4);
        const rank_fault lost = {
            .exchange = true, .rank = 1, .after = after, .lose = sharing_lose, .device = s.devices[1]};
        sharing_run_failure(&s, &lost, MOST_RANKS, MOST_RANKS);
        for (uint32_t r = 0; r < 4; r++) {
            cr_expect_eq(s.created[r], ATTUNE_OK);
            cr_expect_eq(s.status[r], r == 1 ? ATTUNE_DEVICE_LOST : ATTUNE_UNAVAILABLE, "after %d, rank %u: %s", after,
                         r, s.message[r]);
        }
        sharing_close(&s);
    }
    sharing_open(&s);
    /* An argument that one rank's call has wrong. */
    sharing_run_failure(&s, &(rank_fault){.rank = 0}, MOST_RANKS, 1);
    for (uint32_t r = 0; r < 4; r++)
        cr_expect_eq(s.status[r], r == 1 ? ATTUNE_INVALID_ARGUMENT : ATTUNE_UNAVAILABLE, "%s", s.message[r]);
    sharing_close(&s);
}
