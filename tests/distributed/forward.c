/* SPDX-License-Identifier: MIT */
/* Attention over several ranks, which are threads: the case table and random cases against float64, one rank against
 * the single device, and ranks that fail. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/sharing.h"
#include "support/devices.h"
#include "support/heap.h"

enum {
#define ROW(name, ...) CASE_##name,
#include "cases/table.h"
#undef ROW
    CASE_COUNT
};

/* The oracle takes most of the time. */
#define MOST_PAIRS 400000

/* On one rank, the bits of the single device. */
static void compare_single(const sharing *s)
{
    array o = {0}, lse = {0};
    attention_run run = {.mask_q_block = s->c->q_block ? s->c->q_block : 32,
                         .mask_kv_block = s->c->kv_block ? s->c->kv_block : 16,
                         .o = &o,
                         .lse = &lse};
    /* attention_forward takes no others. */
    if (s->c->partial || !s->a->mask || s->a->sinks.data)
        return;
    cr_assert_eq(attention_forward(s->instance, s->device, s->a, &run), ATTUNE_OK, "%s", attune_last_error());
    uint64_t wrong = 0;
    for (int64_t i = 0; i < array_count(&o); i++) {
        const double x = array_get(&o, i), y = array_get(&s->o, i);
        wrong += x != y && !(isnan(x) && isnan(y));
    }
    cr_expect_eq(wrong, 0, "%s: %llu elements of one rank are not the single device's", s->c->name,
                 (unsigned long long)wrong);
    array_free(&o);
    array_free(&lse);
}

static void run_case(sharing *s, const attention_case *given, uint64_t number, uint32_t calls)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_BF16, ATTUNE_F64, ATTUNE_F16};
    static const uint32_t ranks[] = {2, 3, 1, 4, 7};
    const attune_dtype dtype = dtypes[number / 2 % 4];
    attention_case c = dtype == ATTUNE_F64 ? case_unmixed(given) : *given;
    attention a;
    failure why;
    /* A row that has both NaN and +inf has either, by the order. */
    if (c.input == INPUT_MIXED || c.input == INPUT_NONFINITE)
        return;
    if (c.batch * c.heads * c.q_len * c.kv_len > MOST_PAIRS)
        return;
    s->c = &c;
    s->ranks = ranks[number % 5];
    s->calls = calls;
    cr_assert(case_instantiate(s->instance, &c, dtype, test_seed() + number, &a, &why), "%s", why.message);
    sharing_begin(s, &a, number / 5 + number);
    rank_group_run(&s->group, sharing_run_rank, s);
    bool done = true;
    for (uint32_t r = 0; r < s->ranks; r++) {
        done = done && s->status[r] == ATTUNE_OK;
        cr_expect_eq(s->status[r], ATTUNE_OK, "%s, rank %u of %u: %s", c.name, r, s->ranks, s->message[r]);
        cr_expect_not(s->differs[r], "%s, rank %u of %u: a repeated call differs", c.name, r, s->ranks);
    }
    if (done)
        sharing_compare(s, dtype);
    if (done && s->ranks == 1)
        compare_single(s);
    sharing_end(s);
    case_release(&a);
}

/* Every case on 1, 2, 3, 4 and 7 ranks; on one of these where fewer cases are asked for. */
Test(distributed_forward, table)
{
    static sharing s;
    sharing_open(&s);
    const uint64_t cases = scaled(CASE_COUNT), times = cases < CASE_COUNT ? 1 : 5;
    for (uint64_t i = 0; i < cases; i++)
        for (uint64_t j = 0; j < times && test_part(i); j++)
            run_case(&s, &attention_cases[i * CASE_COUNT / cases], i + j, 2);
    sharing_close(&s);
}

Test(distributed_forward, random)
{
    static sharing s;
    sharing_open(&s);
    for (uint64_t i = 0; i < scaled(100); i++) {
        case_storage storage;
        const attention_case c = attention_case_random(test_seed() * 7919 + i, &storage);
        if (test_part(i))
            run_case(&s, &c, i, 2);
    }
    sharing_close(&s);
}

/* Keys of some heads arrive while others are computed, where heads are alike, on every rank or on none. Keys that can
 * be read are not sent. */
Test(distributed_forward, heads_in_turn)
{
#define HEADS(label, g)                                                                                                \
    .name = label, .batch = 2, .kv_batch = 2, .heads = 8, .kv_heads = g, .q_len = 200, .kv_len = 200, .head_dim = 32
    static const struct {
        attention_case c;
        attune_overlap overlap;
        bool token_major, lends;
        int exchanges;
    } rows[] = {
        {{HEADS("causal", 8), .mask = "q >= kv"}, ATTUNE_OVERLAP_HEADS, false, false, 2},
        {{HEADS("dense", 2)}, ATTUNE_OVERLAP_HEADS, false, false, 2},
        {{HEADS("score", 4), .mask = "q >= kv", .score = "score - 0.01 * (q - kv)"},
         ATTUNE_OVERLAP_HEADS,
         false,
         false,
         2},
        {{HEADS("score_of_head", 4), .mask = "q >= kv", .score = "score * slope[h]"},
         ATTUNE_OVERLAP_HEADS,
         false,
         false,
         1},
        {{HEADS("mask_of_head", 4), .mask = "q >= kv || h == 3"}, ATTUNE_OVERLAP_HEADS, false, false, 1},
        {{HEADS("sinks", 4), .mask = "q >= kv", .sinks = true}, ATTUNE_OVERLAP_HEADS, false, false, 1},
        {{HEADS("one_head", 1), .mask = "q >= kv"}, ATTUNE_OVERLAP_HEADS, false, false, 1},
        {{HEADS("two_launches", 4), .mask = "q >= kv"}, ATTUNE_OVERLAP_ON, false, false, 1},
        {{HEADS("token_major", 4), .mask = "q >= kv"}, ATTUNE_OVERLAP_HEADS, true, false, 1},
        {{HEADS("one_launch", 4), .mask = "q >= kv"}, ATTUNE_OVERLAP_OFF, false, false, 1},
        {{HEADS("not_readable", 4), .mask = "q >= kv"}, ATTUNE_OVERLAP_READ, false, false, 1},
        {{HEADS("readable", 4), .mask = "q >= kv"}, ATTUNE_OVERLAP_READ, false, true, 0},
        {{HEADS("readable_off", 4), .mask = "q >= kv"}, ATTUNE_OVERLAP_OFF, false, true, 1},
        {{HEADS("automatic", 4), .mask = "q >= kv"}, ATTUNE_OVERLAP_AUTO, false, true, 0},
        {{HEADS("automatic_cost", 4), .mask = "q >= kv"}, ATTUNE_OVERLAP_AUTO, false, false, 1},
    };
    static sharing s;
    sharing_open(&s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        attention a;
        failure why;
        s.c = &rows[i].c;
        s.ranks = 2;
        s.calls = 1;
        cr_assert(case_instantiate(s.instance, s.c, ATTUNE_BF16, test_seed() + i, &a, &why), "%s", why.message);
        sharing_begin(&s, &a, 11);
        s.overlap = rows[i].overlap;
        s.group.lends = rows[i].lends;
        s.token_major = rows[i].token_major;
        rank_group_run(&s.group, sharing_run_rank, &s);
        for (uint32_t r = 0; r < 2; r++) {
            cr_expect_eq(s.status[r], ATTUNE_OK, "%s: %s", s.c->name, s.message[r]);
            cr_expect_eq(s.group.ends[r].exchanges, rows[i].exchanges, "%s: %d exchanges", s.c->name,
                         s.group.ends[r].exchanges);
        }
        sharing_compare(&s, ATTUNE_BF16);
        sharing_end(&s);
        case_release(&a);
    }
    sharing_close(&s);
#undef HEADS
}

/* A mask of a longer sequence's last rows, which reads a q_len that is not the call's, as the score does. The pairs are
 * those of the rows alone. */
Test(distributed_forward, last_rows)
{
    static const attention_case c = {.name = "last_rows",
                                     .batch = 1,
                                     .kv_batch = 1,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .q_len = 100,
                                     .kv_len = 150,
                                     .head_dim = 16,
                                     .q_block = 16,
                                     .kv_block = 16,
                                     .mask = "(kv_len - q_len + q - kv) % 3 != 1 && kv <= kv_len - q_len + q",
                                     .score = "score - 0.01 * (kv_len - q_len + q - kv)"};
    static sharing s;
    sharing_open(&s);
    for (uint64_t i = 0; i < 10; i++) {
        attention a;
        failure why;
        attune_mask *whole;
        const attune_mask_desc desc = {
            .struct_size = sizeof desc, .q_block = 16, .kv_block = 16, .heads = 2, .q_len = 100 + 48, .kv_len = 150};
        const attune_mask_range last = {.struct_size = sizeof last, .q_block0 = 3};
        s.c = &c;
        s.ranks = 3;
        s.calls = 2;
        cr_assert(case_instantiate(s.instance, &c, ATTUNE_F32, test_seed() + i, &a, &why), "%s", why.message);
        sharing_begin(&s, &a, i);
        attune_mask_destroy(s.mask);
        cr_assert_eq(attune_mask_create(s.instance, &desc, a.mask, NULL, 0, NULL, 0, &whole), ATTUNE_OK);
        cr_assert_eq(attune_mask_slice(whole, &last, &s.mask), ATTUNE_OK);
        attune_mask_destroy(whole);
        rank_group_run(&s.group, sharing_run_rank, &s);
        for (uint32_t r = 0; r < s.ranks; r++)
            cr_assert_eq(s.status[r], ATTUNE_OK, "rank %u: %s", r, s.message[r]);
        sharing_compare(&s, ATTUNE_F32);
        sharing_end(&s);
        case_release(&a);
    }
    sharing_close(&s);
}

/* 250 calls of 3 ranks whose keys arrive late. */
Test(distributed_forward, repeats)
{
    static sharing s;
    sharing_open(&s);
    run_case(&s, &attention_cases[CASE_small_blocks], 6, (uint32_t)scaled(250));
    sharing_close(&s);
}

/* --------------------------------------------------------------------------------------------------------- failures */

/* Every rank returns an error, whichever of them fails, and none waits for it. */
Test(distributed_forward, a_rank_fails, .timeout = 60)
{
    static sharing s;
    static const rank_fault faults[] = {
        {.gather = true, .rank = 2},
        {.exchange = true, .rank = 0},
        {.exchange = true, .rank = 3, .after = 2},
        {.finish = true, .rank = 1, .after = 1},
    };
    sharing_open(&s);
    for (size_t n = 0; n < 2 * sizeof faults / sizeof *faults; n++) {
        const size_t i = n / 2;
        s.fails_in_turn = n % 2;
        sharing_run_failure(&s, &faults[i], MOST_RANKS, MOST_RANKS);
        for (uint32_t r = 0; r < 4; r++) {
            const char *name = faults[i].gather ? "gather" : faults[i].exchange ? "exchange" : "finish";
            cr_expect_neq(s.status[r], ATTUNE_OK, "fault %zu, rank %u", i, r);
            if (r == faults[i].rank)
                cr_expect(s.status[r] == ATTUNE_IO && strstr(s.message[r], name), "%s", s.message[r]);
            /* The message is that of the failed callback. */
            if (r == faults[i].rank)
                cr_expect(!strstr(s.message[r], ": buffer is NULL") == !faults[i].exchange, "%s", s.message[r]);
        }
    }
    s.fails_in_turn = false;
    /* An argument that one rank's call has wrong. */
    sharing_run_failure(&s, &(rank_fault){.rank = 0}, MOST_RANKS, 1);
    for (uint32_t r = 0; r < 4; r++) {
        cr_expect_eq(s.created[r], ATTUNE_OK);
        cr_expect_eq(s.status[r], r == 1 ? ATTUNE_INVALID_ARGUMENT : ATTUNE_UNAVAILABLE, "%s", s.message[r]);
    }
    sharing_close(&s);
}

/* A call whose parameter is not what the mask was built with, as on one device: whether the score reads it or not, and
 * whether masks compare with intervals or are evaluated. */
Test(distributed_forward, parameter_of_the_mask, .timeout = 60)
{
    static const char *const masks[] = {"q - kv < width", "(q - kv) % width < 20"};
    static const char *const scores[] = {NULL, "score * heat", "score * width * heat"};
    static sharing s;
    sharing_open(&s);
    for (int i = 0; i < 12; i++) {
        attention_case c = attention_cases[CASE_parameter];
        attention a;
        failure why;
        s.c = &c;
        c.mask = masks[i / 2 % 2];
        c.score = scores[i / 4];
        s.ranks = i % 2 ? 3 : 1;
        s.calls = 1;
        cr_assert(case_instantiate(s.instance, &c, ATTUNE_F32, 1, &a, &why), "%s", why.message);
        sharing_begin(&s, &a, 2);
        a.parameters[0].value += 1;
        rank_group_run(&s.group, sharing_run_rank, &s);
        uint32_t named = 0;
        for (uint32_t r = 0; r < s.ranks; r++) {
            cr_expect_eq(s.created[r], ATTUNE_OK);
            cr_expect_neq(s.status[r], ATTUNE_OK, "%s, %s: rank %u of %u", c.mask, c.score, r, s.ranks);
            named += strstr(s.message[r], "args.parameters has \"width\" = 34, but args.mask") != NULL;
        }
        cr_expect_gt(named, 0, "%s, %s: %s", c.mask, c.score, s.message[0]);
        sharing_end(&s);
        case_release(&a);
    }
    sharing_close(&s);
}

/* A rank with another problem is refused by all, before any call. */
Test(distributed_forward, a_rank_differs, .timeout = 60)
{
    static sharing s;
    sharing_open(&s);
    sharing_run_failure(&s, &(rank_fault){.rank = 0}, 2, MOST_RANKS);
    for (uint32_t r = 0; r < 4; r++) {
        cr_expect_eq(s.created[r], ATTUNE_INVALID_ARGUMENT);
        cr_expect(strstr(s.message[r], "rank 2"), "%s", s.message[r]);
    }
    sharing_close(&s);
}

/* The bytes of workspace of rank 0 of 2, whose 512 rows and keys are one half of a sequence. */
static uint64_t workspace_of(attune_instance *instance, attune_direction direction, attune_overlap overlap,
                             double byte_cost)
{
    lone_rank lone = {.size = 2};
    const attune_mask_desc mask_desc = {.struct_size = sizeof mask_desc, .q_len = 1024, .kv_len = 1024};
    const attune_partition_desc dealt = {.struct_size = sizeof dealt, .ranks = 2};
    const attune_problem problem = {
        .struct_size = sizeof problem, .direction = direction, .heads = 4, .head_dim = 64, .dtype = ATTUNE_F16};
    attune_transport transport = lone_transport(&lone);
    transport.byte_cost = byte_cost;
    attune_distributed_desc desc = {
        .struct_size = sizeof desc, .transport = &transport, .problem = &problem, .overlap = overlap};
    attune_device *device;
    attune_expr *all;
    attune_mask *mask;
    attune_partition *partition;
    attune_distributed *distributed;
    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "kv >= 0", NULL, 0, &all), ATTUNE_OK);
    cr_assert_eq(attune_mask_create(instance, &mask_desc, all, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
    cr_assert_eq(attune_partition_create(instance, &dealt, mask, &partition), ATTUNE_OK);
    desc.partition = partition;
    desc.mask = mask;
    const attune_status status = attune_distributed_create(device, &desc, &distributed);
    const uint64_t bytes = attune_distributed_workspace_size(distributed);
    attune_distributed_destroy(distributed);
    attune_partition_destroy(partition);
    attune_mask_destroy(mask);
    attune_expr_destroy(all);
    attune_device_destroy(device);
    cr_assert_eq(status, overlap > ATTUNE_OVERLAP_READ || byte_cost < 0 ? ATTUNE_INVALID_ARGUMENT : ATTUNE_OK, "%s",
                 attune_last_error());
    return bytes;
}

/* The cost of a received byte decides whether own keys are computed while others arrive. */
Test(distributed_forward, overlap)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    for (int i = 0; i < 2; i++) {
        const attune_direction direction = i ? ATTUNE_BACKWARD : ATTUNE_FORWARD;
        const uint64_t on = workspace_of(instance, direction, ATTUNE_OVERLAP_ON, 12),
                       off = workspace_of(instance, direction, ATTUNE_OVERLAP_OFF, 0);
        cr_assert_neq(on, off);
        cr_expect_eq(workspace_of(instance, direction, ATTUNE_OVERLAP_AUTO, 0), on);
        cr_expect_eq(workspace_of(instance, direction, ATTUNE_OVERLAP_AUTO, 1), off);
        cr_expect_eq(workspace_of(instance, direction, ATTUNE_OVERLAP_AUTO, 1e4), on);
    }
    (void)workspace_of(instance, ATTUNE_FORWARD, ATTUNE_OVERLAP_READ + 1, 0);
    (void)workspace_of(instance, ATTUNE_FORWARD, ATTUNE_OVERLAP_AUTO, -1);
    attune_instance_destroy(instance);
}

/* Every allocation fails once: an error, and nothing is lost. */
static void fail_allocations(attune_direction direction, attune_overlap overlap)
{
    for (long long at = 1;; at++) {
        heap memory = {0};
        lone_rank lone = {.size = 2};
        const attune_instance_desc instance_desc = {
            .struct_size = sizeof instance_desc, .cpu_threads = 1, .allocator = heap_allocator(&memory)};
        const attune_mask_desc mask_desc = {.struct_size = sizeof mask_desc, .q_len = 300, .kv_len = 300};
        const attune_partition_desc dealt = {.struct_size = sizeof dealt, .ranks = 2};
        attune_problem problem = {.struct_size = sizeof problem, .direction = direction, .head_dim = 16};
        const attune_transport transport = lone_transport(&lone);
        attune_distributed_desc desc = {
            .struct_size = sizeof desc, .transport = &transport, .problem = &problem, .overlap = overlap};
        attune_instance *instance;
        attune_device *device;
        attune_expr *mask_expr, *score;
        attune_mask *mask;
        attune_partition *partition;
        attune_distributed *distributed;
        cr_assert_eq(attune_instance_create(&instance_desc, &instance), ATTUNE_OK);
        cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv", NULL, 0, &mask_expr), ATTUNE_OK);
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score + q", NULL, 0, &score), ATTUNE_OK);
        cr_assert_eq(attune_mask_create(instance, &mask_desc, mask_expr, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
        cr_assert_eq(attune_partition_create(instance, &dealt, mask, &partition), ATTUNE_OK);
        problem.score = score;
        desc.partition = partition;
        desc.mask = mask;
        memory.fail_at = memory.allocations + at;
        const attune_status status = attune_distributed_create(device, &desc, &distributed);
        memory.fail_at = 0;
        attune_distributed_destroy(distributed);
        attune_partition_destroy(partition);
        attune_mask_destroy(mask);
        attune_expr_destroy(mask_expr);
        attune_expr_destroy(score);
        attune_device_destroy(device);
        attune_instance_destroy(instance);
        cr_expect_eq(memory.live, 0, "allocation %lld: %lld live", at, (long long)memory.live);
        if (status == ATTUNE_OK) {
            cr_assert(at > 30 && !lone.aborts);
            break;
        }
        cr_assert(status == ATTUNE_OUT_OF_HOST_MEMORY || status == ATTUNE_OUT_OF_DEVICE_MEMORY, "%s",
                  attune_last_error());
    }
}

Test(distributed_forward, out_of_memory)
{
    for (attune_overlap overlap = ATTUNE_OVERLAP_ON; overlap <= ATTUNE_OVERLAP_READ; overlap++) {
        fail_allocations(ATTUNE_FORWARD, overlap);
        fail_allocations(ATTUNE_BACKWARD, overlap);
    }
}
