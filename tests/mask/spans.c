/* SPDX-License-Identifier: MIT */
/* Intervals of rows and keys of gathered masks, against every pair. */
#include <criterion/criterion.h>

#include <stdlib.h>

#include "support/heap.h"
#include "support/mask_oracle.h"

/* Some rows and keys of a mask. */
typedef struct part {
    const attune_mask *whole;
    int32_t rows[ORACLE_LENGTH], keys[ORACLE_LENGTH];
    attune__positions q, kv;
} part;

static bool part_element(const void *context, int64_t b, int64_t h, int64_t q, int64_t kv)
{
    const part *p = context;
    return oracle_mask_element(p->whole, b, h, p->rows[q], p->keys[kv]);
}

/* Some whole blocks, at least one. */
static attune__positions draw(oracle_random *random, int64_t length, uint32_t block, int32_t *at)
{
    const int64_t blocks = (length + block - 1) / block, kept = oracle_between(random, 0, (int)blocks - 1);
    attune__positions positions = {at, 0};
    for (int64_t i = 0; i < blocks; i++)
        if (i == kept || oracle_between(random, 0, 2))
            for (int64_t j = i * block; j < length && j < (i + 1) * block; j++)
                at[positions.count++] = (int32_t)j;
    return positions;
}

/* Whether the allowed pairs of each row, or of each key, are adjacent. */
static bool are_intervals(const part *p, bool of_keys)
{
    const int64_t lines = of_keys ? p->kv.count : p->q.count, length = of_keys ? p->q.count : p->kv.count;
    for (int64_t i = 0; i < lines; i++) {
        int begun = 0;
        bool before = false;
        for (int64_t j = 0; j < length; j++) {
            const bool allowed = part_element(p, 0, 0, of_keys ? j : i, of_keys ? i : j);
            begun += allowed && !before;
            before = allowed;
        }
        if (begun > 1)
            return false;
    }
    return true;
}

static void check_part(const part *p, const char *text, int counts[3])
{
    attune_mask *gathered = NULL;
    attune__spans spans;
    char message[256];
    uint32_t runs;
    cr_assert_eq(attune__mask_gather(p->whole, &p->q, &p->kv, &gathered), ATTUNE_OK, "%s", attune_last_error());
    cr_assert(oracle_check(gathered, part_element, p, true, message), "%s\n%s", text, message);
    cr_assert_eq(attune__mask_find_spans(gathered, &spans), ATTUNE_OK);
    const bool rows = are_intervals(p, false), keys = rows && are_intervals(p, true);
    cr_assert_eq(spans.row[0] != NULL, rows, "%s", text);
    cr_assert_eq(spans.key[0] != NULL, keys, "%s", text);
    counts[rows + keys]++;
    if (rows) {
        const bool both = keys && p->q.count % 2;
        cr_assert_eq(attune__mask_use_spans(gathered, &spans, both), ATTUNE_OK);
        cr_assert(gathered->row_intervals && !gathered->row_runs);
        cr_assert(attune__interval_rows(gathered->expr, &runs) && !runs);
        cr_assert_eq(attune__interval_keys(gathered->expr, &runs), both);
        cr_assert(oracle_check(gathered, part_element, p, true, message), "%s\n%s", text, message);
    }
    attune__spans_free(gathered, &spans);
    attune__mask_free(gathered);
}

Test(mask_spans, random)
{
    static const char *const known[] = {"q >= kv && doc[q] == doc[kv]", "q >= kv && q - kv < 70", "kv < 50 || q >= kv",
                                        "doc[q] == doc[kv]", "kv < 100 && q / 8 >= kv / 8"};
    oracle_random random = {7};
    int counts[3] = {0};
    for (int done = 0; done < 400;) {
        oracle_world world;
        oracle_bound bound;
        static part p;
        char text[ATTUNE_EXPR_MAX_LENGTH];
        attune_mask *whole = NULL;
        oracle_world_make(&world, &random);
        oracle_random_text(&random, text, sizeof text);
        const char *words = done % 2 ? text : known[done / 2 % 5];
        const uint32_t q_block = 16 * (uint32_t)oracle_between(&random, 1, 3),
                       kv_block = 16 * (uint32_t)oracle_between(&random, 1, 3);
        const attune_mask_desc desc =
            oracle_desc(oracle_between(&random, 1, 200), oracle_between(&random, 1, 200), q_block, kv_block);
        if (oracle_bind_world(&bound, words, &world) != ATTUNE_OK) {
            attune__expr_release(bound.expr);
            continue;
        }
        cr_assert_eq(attune__mask_build(&heap_guarded, &desc, bound.expr, bound.arrays, bound.values, &whole),
                     ATTUNE_OK);
        p.whole = whole;
        p.q = draw(&random, desc.q_len, q_block, p.rows);
        p.kv = draw(&random, desc.kv_len, kv_block, p.keys);
        if (!(bound.expr->uses & (1u << ATTUNE__VAR_B | 1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV)))
            check_part(&p, words, counts);
        attune__mask_free(whole);
        attune__expr_release(bound.expr);
        done++;
    }
    cr_assert(counts[0] > 3 && counts[1] > 1 && counts[2] > 100, "%d without intervals, %d of rows, %d of both",
              counts[0], counts[1], counts[2]);
}

/* No batch or head has intervals of its own. */
Test(mask_spans, planes)
{
    oracle_random random = {3};
    oracle_world world;
    oracle_bound bound;
    attune_mask *mask = NULL;
    attune__spans spans;
    attune_mask_desc desc = oracle_desc(90, 90, 16, 16);
    desc.heads = desc.kv_heads = 2;
    oracle_world_make(&world, &random);
    cr_assert_eq(oracle_bind_world(&bound, "q >= kv || h == 1", &world), ATTUNE_OK);
    cr_assert_eq(attune__mask_build(&heap_guarded, &desc, bound.expr, bound.arrays, bound.values, &mask), ATTUNE_OK);
    cr_assert_eq(attune__mask_find_spans(mask, &spans), ATTUNE_OK);
    cr_expect_null(spans.row[0]);
    attune__mask_free(mask);
    attune__expr_release(bound.expr);
}

/* Nothing is left behind. */
Test(mask_spans, every_allocation)
{
    oracle_random random = {5};
    oracle_world world;
    oracle_bound bound;
    oracle_memory memory = {.fail_at = -1};
    const attune_allocator allocator = oracle_allocator(&memory);
    const attune_mask_desc desc = oracle_desc(90, 90, 16, 16);
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    oracle_world_make(&world, &random);
    cr_assert_eq(oracle_bind_world(&bound, "q >= kv && q - kv < 30", &world), ATTUNE_OK);
    for (int n = 0; status != ATTUNE_OK; n++) {
        attune_mask *mask = NULL;
        attune__spans spans;
        memory.fail_at = -1;
        cr_assert_eq(attune__mask_build(&allocator, &desc, bound.expr, bound.arrays, bound.values, &mask), ATTUNE_OK);
        memory.calls = 0;
        memory.fail_at = n;
        status = attune__mask_find_spans(mask, &spans);
        if (status == ATTUNE_OK) {
            status = attune__mask_use_spans(mask, &spans, true);
            attune__spans_free(mask, &spans);
        }
        cr_assert(status == ATTUNE_OK || status == ATTUNE_OUT_OF_HOST_MEMORY, "%d: %s", n, attune_last_error());
        attune__mask_free(mask);
        cr_assert_eq(memory.live, 0, "allocation %d", n);
    }
    attune__expr_release(bound.expr);
}
