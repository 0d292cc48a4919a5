/* SPDX-License-Identifier: MIT */
/* An expression over a segment of the keys is the expression over all of them, at the segment's place. */
#include "expr/common.h"

/* Its other reads, by name: the start and total come with the parameters. */
static float evaluate(const attune_expr *expr, const random_expr *e, attune_point point, int32_t start, int32_t total)
{
    attune_parameter parameters[4] = {{ATTUNE__KV_START, start}, {ATTUNE__KV_TOTAL, total}};
    float value;
    memcpy(parameters + 2, e->parameters, e->parameter_count * sizeof *parameters);
    cr_assert_eq(
        attune_expr_evaluate(expr, &point, e->captures, e->capture_count, parameters, 2 + e->parameter_count, &value),
        ATTUNE_OK, "%s", attune_last_error());
    return value;
}

static uint64_t compare(const attune_expr *whole, const attune_expr *shifted, const random_expr *e, uint64_t seed)
{
    uint64_t state = seed, wrong = 0;
    for (int i = 0; i < 20; i++) {
        const int32_t total = (int32_t)random_expr_between(&state, 1, RANDOM_EXPR_POSITIONS);
        const int32_t kv = (int32_t)random_expr_between(&state, 0, total - 1);
        const int32_t start = (int32_t)random_expr_between(&state, 0, kv);
        attune_point point = {.b = 1,
                              .h = (int32_t)random_expr_between(&state, 0, 3),
                              .q = (int32_t)random_expr_between(&state, 0, RANDOM_EXPR_POSITIONS - 1),
                              .kv = kv,
                              .q_len = RANDOM_EXPR_POSITIONS,
                              .kv_len = total,
                              .score = (float)random_expr_between(&state, -9, 9) / 4};
        const float wanted = evaluate(whole, e, point, -1, -1);
        point.kv = kv - start;
        point.kv_len = 1 + point.kv;
        const float got = evaluate(shifted, e, point, start, total);
        wrong += memcmp(&got, &wanted, sizeof got) && !(isnan(got) && isnan(wanted));
    }
    return wrong;
}

Test(shift, random_expressions)
{
    static random_expr e;
    static bound b;
    uint64_t full = 0;
    for (uint64_t i = 0; i < scaled(2000); i++) {
        bind_random(&b, &e, test_seed() + i, i % 2 ? ATTUNE_EXPR_SCORE : ATTUNE_EXPR_MASK, 1 + (uint32_t)(i % 30));
        attune_expr *shifted, *again;
        const attune_status status = attune__expr_shift(&attune__default_allocator, b.expr, &shifted);
        if (status != ATTUNE_OK) {
            /* Two symbols more do not fit. */
            cr_assert_eq(status, ATTUNE_INVALID_ARGUMENT);
            cr_assert(b.expr->symbol_count > ATTUNE_EXPR_MAX_SYMBOLS - 2 ||
                      b.expr->node_count > ATTUNE_EXPR_MAX_NODES - 4);
            full++;
            attune__expr_release(b.expr);
            continue;
        }
        cr_expect_eq(compare(b.expr, shifted, &e, i), 0, "seed %llu: %s", (unsigned long long)i, e.text);
        cr_expect_eq(shifted->uses & 1u << ATTUNE__VAR_KV_LEN, 0);
        cr_assert_eq(attune__expr_shift(&attune__default_allocator, shifted, &again), ATTUNE_OK);
        cr_expect_eq(again, shifted, "what was shifted is not shifted again");
        attune__expr_release(again);
        attune__expr_release(shifted);
        attune__expr_release(b.expr);
    }
    cr_log_info("%llu did not fit", (unsigned long long)full);
}

Test(shift, what_reads_no_key_stays)
{
    attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, "q % 3 == h", NULL, 0), *shifted;
    cr_assert_eq(attune__expr_shift(&attune__default_allocator, expr, &shifted), ATTUNE_OK);
    cr_assert_eq(expr, shifted);
    attune__expr_release(shifted);
    attune__expr_release(expr);
}
