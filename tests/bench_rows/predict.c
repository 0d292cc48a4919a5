/* SPDX-License-Identifier: MIT */
/* The predicted time of ranks: a case by hand, and what holds for every mask and partition. */
#include "bench/timing/predict.h"

#include <criterion/criterion.h>
#include <math.h>

#include "support/devices.h"
#include "support/random_expr.h"

static attune_instance *open_instance(void)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    return instance;
}

static attune_mask *make_mask(attune_instance *instance, const char *text, const attune_mask_desc *desc)
{
    attune_expr *expr;
    attune_mask *mask;
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, text, NULL, 0, &expr), ATTUNE_OK);
    cr_assert_eq(attune_mask_create(instance, desc, expr, NULL, 0, NULL, 0, &mask), ATTUNE_OK, "%s",
                 attune_last_error());
    attune_expr_destroy(expr);
    return mask;
}

static attune_partition *deal(attune_instance *instance, const attune_mask *mask, uint32_t ranks, attune_layout layout)
{
    attune_partition *partition;
    const attune_partition_desc desc = {.struct_size = sizeof desc, .ranks = ranks, .layout = layout};
    cr_assert_eq(attune_partition_create(instance, &desc, mask, &partition), ATTUNE_OK, "%s", attune_last_error());
    return partition;
}

/* Causal, 4 blocks of 128 on 2 ranks: rank 0 has 3 blocks, rank 1 has 3 over its own keys and 4 over those of rank 0.
 */
Test(predict, by_hand)
{
    attune_instance *instance = open_instance();
    const attune_mask_desc desc = {.struct_size = sizeof desc, .heads = 8, .kv_heads = 2, .q_len = 512, .kv_len = 512};
    attune_mask *mask = make_mask(instance, "q >= kv", &desc);
    attune_partition *partition;
    const attune_partition_desc dealt = {
        .struct_size = sizeof dealt, .ranks = 2, .layout = ATTUNE_LAYOUT_CONTIGUOUS, .chunk = 256, .partial_cost = 1};
    cr_assert_eq(attune_partition_create(instance, &dealt, mask, &partition), ATTUNE_OK);
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = ATTUNE_BF16,
                                    .head_dim = 64,
                                    .head_dim_v = 32,
                                    .heads = 8,
                                    .kv_heads = 2};
    /* 2 * 128 * 128 * (64 + 32) FLOP take 1 s, of 8 heads; 2 * (64 + 32) * 2 bytes of a key. */
    const double unit = 8;
    const struct {
        double link, exchange, own, wait, total;
    } cases[] = {
        {98304, 2, 3 * unit, 3, 7 * unit},              /* hidden: 256 * 384 bytes in 1 s, and 2 s */
        {98304 / 30.0, 0.5, 3 * unit, 30.5, 30.5 + 32}, /* longer than the own keys */
    };
    for (size_t i = 0; i < 2; i++) {
        prediction p;
        const predict_machine machine = {2.0 * 128 * 128 * 96, cases[i].link, cases[i].exchange};
        cr_assert_eq(predict(partition, mask, &problem, &machine, &p), ATTUNE_OK);
        cr_assert_eq(p.ranks, 2);
        cr_expect_float_eq(p.block_seconds, 1, 1e-12);
        cr_expect_float_eq(p.one, 10 * unit, 1e-9);
        cr_expect_float_eq(p.rank[0].own, 3 * unit, 1e-9);
        cr_expect_float_eq(p.rank[0].others, 0, 1e-9);
        cr_expect_float_eq(p.rank[0].exchange, cases[i].wait, 1e-9, "%g", p.rank[0].exchange);
        cr_expect_float_eq(p.rank[1].own, cases[i].own, 1e-9);
        cr_expect_float_eq(p.rank[1].others, 4 * unit, 1e-9);
        cr_expect_float_eq(p.rank[1].exchange, cases[i].wait, 1e-9);
        cr_expect_float_eq(p.rank[1].received, 256 * 384, 1e-9);
        cr_expect_float_eq(p.rank[0].sent, 256 * 384, 1e-9);
        cr_expect(p.rank[0].senders == 0 && p.rank[0].peers == 1 && p.rank[1].senders == 1 && p.rank[1].peers == 0);
        cr_expect_float_eq(p.ring, 2 * 256 * 384, 1e-9);
        cr_expect_eq(p.slowest, 1);
        cr_expect_float_eq(p.seconds, cases[i].total, 1e-9, "%g", p.seconds);
        cr_expect_float_eq(p.hidden, cases[i].wait < 24 ? 1 : 24 / cases[i].wait, 1e-12);
        predict_free(&p);
    }
    attune_partition_destroy(partition);
    attune_mask_destroy(mask);
    attune_instance_destroy(instance);
}

static void check(attune_instance *instance, const attune_mask *mask, const attune_problem *problem, uint32_t ranks,
                  attune_layout layout, double heads)
{
    prediction p, fast;
    attune_partition_stats stats = {.struct_size = sizeof stats};
    attune_partition *partition = deal(instance, mask, ranks, layout);
    const predict_machine machine = {1e12, 1e9, 1e-4}, no_link = {1e12, 1e300, 0};
    cr_assert_eq(attune_partition_stats_get(partition, &stats), ATTUNE_OK);
    cr_assert_eq(predict(partition, mask, problem, &machine, &p), ATTUNE_OK);
    cr_assert_eq(predict(partition, mask, problem, &no_link, &fast), ATTUNE_OK);
    double sent = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        const double work = attune_partition_work(partition, r) * heads * p.block_seconds;
        /* Work is counted in 1/1024 of a block. */
        cr_expect_float_eq(p.rank[r].own + p.rank[r].others, work, 1e-3 * work);
        cr_expect_geq(p.rank[r].seconds, fast.rank[r].seconds);
        cr_expect_leq(p.rank[r].seconds, p.rank[r].own + p.rank[r].others + p.rank[r].exchange + 1e-12);
        cr_expect_float_eq(fast.rank[r].seconds, fast.rank[r].own + fast.rank[r].others, 1e-12);
        sent += p.rank[r].sent;
    }
    cr_expect_float_eq(sent, p.received, 1e-9 * sent);
    cr_expect_leq(p.received, p.ring);
    cr_expect_float_eq(fast.seconds * ranks, fast.one * stats.imbalance, 2e-3 * fast.one + 1e-15);
    if (ranks == 1)
        cr_expect(p.seconds == p.one && p.received == 0 && p.hidden == 1);
    predict_free(&p);
    predict_free(&fast);
    attune_partition_destroy(partition);
}

Test(predict, any_partition)
{
    static const char *const texts[] = {"q >= kv", "q >= kv && q - kv < 300 + 100 * h", "q % 7 == 0 && kv < q",
                                        "q / 700 == kv / 700", "true"};
    attune_instance *instance = open_instance();
    uint64_t state = test_seed();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const attune_mask_desc desc = {.struct_size = sizeof desc,
                                       .q_block = 64,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .q_len = random_expr_between(&state, 1, 4000),
                                       .kv_len = random_expr_between(&state, 1, 4000)};
        attune_mask *mask = make_mask(instance, texts[i], &desc);
        attune_mask_lists lists = {.struct_size = sizeof lists};
        cr_assert_eq(attune_mask_lists_get(mask, &lists), ATTUNE_OK);
        const attune_problem problem = {.struct_size = sizeof problem, .head_dim = 64, .heads = 4, .kv_heads = 2};
        for (attune_layout layout = ATTUNE_LAYOUT_BALANCED; layout <= ATTUNE_LAYOUT_STRIPED; layout++)
            check(instance, mask, &problem, (uint32_t)random_expr_between(&state, 1, 12), layout,
                  4.0 / (double)lists.heads);
        check(instance, mask, &problem, 1, ATTUNE_LAYOUT_BALANCED, 4.0 / (double)lists.heads);
        attune_mask_destroy(mask);
    }
    attune_instance_destroy(instance);
}
