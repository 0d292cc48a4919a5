/* SPDX-License-Identifier: MIT */
/* A mask that grows has the lists that it would have if it were built at once. */
#include <criterion/criterion.h>

#include <string.h>

#include "support/heap.h"
#include "support/mask_oracle.h"

static void shorten(attune_host_capture *capture, oracle_random *random, int64_t length)
{
    attune_array *array = &capture->array;
    for (uint32_t d = 0; d < array->rank; d++)
        if (array->size[d] > length)
            array->size[d] = oracle_between(random, 0, 3) ? length : oracle_between(random, 1, (int)length);
}

static attune_mask *build(const attune_mask_desc *desc, const oracle_bound *bound)
{
    attune_mask *mask = NULL;
    cr_assert(attune__mask_build(&heap_guarded, desc, bound->expr, bound->arrays, bound->values, &mask) == ATTUNE_OK,
              "%s", attune_last_error());
    return mask;
}

static void random_growth(uint64_t seed, int count)
{
    oracle_random random = {seed};
    int same = 0, other = 0;
    for (int done = 0; done < count;) {
        oracle_world world, before;
        oracle_world_make(&world, &random);
        before = world;
        char text[ATTUNE_EXPR_MAX_LENGTH];
        oracle_random_text(&random, text, sizeof text);
        /* Three lengths, of which some stay the same; captures that grow with them, or stay, or are shorter. */
        const int q_block = 16 * oracle_between(&random, 1, 4), kv_block = 16 * oracle_between(&random, 1, 4);
        attune_mask_desc desc = oracle_desc(oracle_between(&random, 1, 200), oracle_between(&random, 1, 200),
                                            (uint32_t)q_block, (uint32_t)kv_block);
        desc.batch = oracle_between(&random, 0, 3) ? 1 : 2;
        desc.heads = desc.kv_heads = oracle_between(&random, 0, 3) ? 1 : 2;
        const int64_t longer = desc.q_len > desc.kv_len ? desc.q_len : desc.kv_len;
        for (int i = 0; i < 7; i++)
            if (oracle_between(&random, 0, 2))
                shorten(&before.captures[i], &random, longer);
        int32_t doc[ORACLE_LENGTH];
        if (!oracle_between(&random, 0, 7)) { /* an element that was there has another value */
            memcpy(doc, world.doc, sizeof doc);
            doc[oracle_between(&random, 0, (int)longer - 1)] += 1;
            for (int i = 0; i < 7; i++)
                if (before.captures[i].array.data == world.doc || before.captures[i].array.data == before.doc)
                    before.captures[i].array.data = doc;
        }
        oracle_bound old, bound;
        if (oracle_bind_world(&bound, text, &world) != ATTUNE_OK) {
            attune__expr_release(bound.expr);
            continue;
        }
        cr_assert(oracle_bind_world(&old, text, &before) == ATTUNE_OK);
        attune_mask *mask = build(&desc, &old);
        for (int step = 0; step < 2; step++) {
            desc.q_len += oracle_between(&random, 0, 2) ? oracle_between(&random, 0, 60) : 0;
            desc.kv_len += oracle_between(&random, 0, 2) ? oracle_between(&random, 0, 60) : 0;
            attune_mask *extended = NULL, *fresh = build(&desc, &bound);
            cr_assert(attune__mask_extend(mask, &desc, bound.arrays, NULL, &extended) == ATTUNE_OK, "%s",
                      attune_last_error());
            cr_assert(oracle_same_lists(extended, fresh),
                      "seed %llu, mask %d, step %d, to %lld x %lld, blocks %d x %d\n%s", (unsigned long long)seed, done,
                      step, (long long)desc.q_len, (long long)desc.kv_len, q_block, kv_block, text);
            if (!step)
                oracle_same_lists(mask, fresh) ? same++ : other++;
            attune__mask_free(fresh);
            attune__mask_free(mask);
            mask = extended;
        }
        attune__mask_free(mask);
        attune__expr_release(old.expr);
        attune__expr_release(bound.expr);
        done++;
    }
    cr_assert(other > count / 4, "%d of %d are the masks that they were", same, count);
}

Test(mask_extend, random_1)
{
    random_growth(1, 1500);
}

Test(mask_extend, random_2)
{
    random_growth(2, 1500);
}

/* An element out of a capture's range, and 0, comes into range. */
Test(mask_extend, indices_that_come_into_range)
{
    static int32_t ids[300];
    for (int i = 0; i < 300; i++)
        ids[i] = 1 + i / 40;
    static const char *const texts[] = {"ids[kv + 20] == ids[q]", "ids[q] == ids[kv] || ids[kv - q + 100] > 2",
                                        "ids[kv * 2] > 1 && q >= 0"};
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        static const attune_symbol symbols[] = {{"ids", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1}};
        attune_host_capture few = {"ids", {.data = ids, .dtype = ATTUNE_I32, .rank = 1, .size = {100}, .stride = {1}}};
        attune_host_capture more = few;
        more.array.size[0] = 300;
        attune_expr *expr;
        oracle_bound old, bound;
        cr_assert(attune__expr_parse(&heap_guarded, ATTUNE_EXPR_MASK, texts[t], symbols, 1, &expr) == ATTUNE_OK);
        cr_assert(oracle_bind(&old, expr, &few, 1, NULL, 0) == ATTUNE_OK);
        cr_assert(oracle_bind(&bound, expr, &more, 1, NULL, 0) == ATTUNE_OK);
        attune_mask_desc desc = oracle_desc(100, 100, 16, 16);
        attune_mask *mask = build(&desc, &old), *extended;
        desc.q_len = desc.kv_len = 140;
        attune_mask *fresh = build(&desc, &bound);
        cr_assert(attune__mask_extend(mask, &desc, bound.arrays, NULL, &extended) == ATTUNE_OK);
        cr_assert(oracle_same_lists(extended, fresh), "%s", texts[t]);
        attune__mask_free(fresh);
        attune__mask_free(extended);
        attune__mask_free(mask);
        attune__expr_release(expr);
    }
}

/* The work is that of the new blocks: with a limit that a build does not meet, the extension succeeds. A capture that
 * has grown, read at q and at kv alone, does not change the others. */
Test(mask_extend, work_of_the_new_blocks)
{
    static int32_t ids[1040];
    for (int i = 0; i < 1040; i++)
        ids[i] = i * 31 % 89;
    static const attune_symbol symbol = {"ids", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1};
    static const char *const texts[] = {"(q * 7919 + kv * 104729) % 97 < 48",
                                        "(q * 7919 + kv * 104729 + ids[q] + ids[kv]) % 97 < 48"};
    for (uint32_t t = 0; t < 2; t++) {
        attune_host_capture few = {"ids", {.data = ids, .dtype = ATTUNE_I32, .rank = 1, .size = {1024}, .stride = {1}}};
        attune_host_capture more = few;
        more.array.size[0] = 1040;
        attune_expr *expr;
        oracle_bound old, bound;
        cr_assert(attune__expr_parse(&heap_guarded, ATTUNE_EXPR_MASK, texts[t], &symbol, t, &expr) == ATTUNE_OK);
        cr_assert(oracle_bind(&old, expr, &few, t, NULL, 0) == ATTUNE_OK);
        cr_assert(oracle_bind(&bound, expr, &more, t, NULL, 0) == ATTUNE_OK);
        attune_mask_desc desc = oracle_desc(1000, 1024, 16, 16);
        attune_mask *mask = build(&desc, &old), *extended, *fresh;
        desc.q_len = 1040;
        desc.max_work = 1;
        while (attune__mask_build(&heap_guarded, &desc, expr, bound.arrays, bound.values, &fresh) == ATTUNE_CANCELLED)
            desc.max_work *= 2;
        attune__mask_free(fresh);
        desc.max_work /= 8;
        cr_assert(attune__mask_build(&heap_guarded, &desc, expr, bound.arrays, bound.values, &fresh) ==
                  ATTUNE_CANCELLED);
        attune__work work = {.name = "work", .most = desc.max_work};
        cr_assert(attune__mask_extend(mask, &desc, bound.arrays, &work, &extended) == ATTUNE_OK, "%s: %s", texts[t],
                  attune_last_error());
        attune__mask_free(extended);
        attune__mask_free(mask);
        attune__expr_release(expr);
    }
}
