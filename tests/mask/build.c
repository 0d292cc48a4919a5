/* SPDX-License-Identifier: MIT */
/* Masks from expressions against every element: 20,000 random ones, and the presets at the sizes they are used at. */
#include <criterion/criterion.h>

#include <string.h>

#include "base/alloc.h"
#include "support/heap.h"
#include "support/mask_oracle.h"
#include "support/random_expr.h"

/* Mostly small, so that many fit in a second; ragged. */
static int64_t random_length(oracle_random *random)
{
    return oracle_between(random, 0, 7) ? oracle_between(random, 1, 100) : oracle_between(random, 1, 300);
}

static attune_mask_desc random_desc(oracle_random *random)
{
    const int64_t q_len = random_length(random), kv_len = random_length(random);
    const uint32_t q_block = 16u * (uint32_t)oracle_between(random, 1, 8);
    attune_mask_desc desc = oracle_desc(q_len, kv_len, q_block, 16u * (uint32_t)oracle_between(random, 1, 8));
    desc.batch = oracle_between(random, 0, 3) ? 1 : oracle_between(random, 2, 3);
    desc.kv_heads = oracle_between(random, 0, 3) ? 1 : 2;
    desc.heads = desc.kv_heads * (oracle_between(random, 0, 3) ? 1 : 2);
    return desc;
}

static void random_masks(uint64_t seed, int count)
{
    oracle_random random = {seed};
    int with_partial = 0, with_all = 0;
    for (int done = 0; done < count;) {
        oracle_world world;
        oracle_world_make(&world, &random);
        char text[ATTUNE_EXPR_MAX_LENGTH], message[256];
        oracle_random_text(&random, text, sizeof text);
        oracle_bound bound;
        const attune_mask_desc desc = random_desc(&random);
        if (oracle_bind_world(&bound, text, &world) != ATTUNE_OK) {
            /* Longer or deeper than the language allows. */
            attune__expr_release(bound.expr);
            continue;
        }
        attune_mask *mask = NULL;
        attune_status status = attune__mask_build(&heap_guarded, &desc, bound.expr, bound.arrays, bound.values, &mask);
        cr_assert(status == ATTUNE_OK, "%s: %s", text, attune_last_error());
        const oracle_expression expected = {&bound, desc};
        const bool ok = oracle_check(mask, oracle_expression_element, &expected, done % 16 == 0, message);
        cr_assert(ok, "seed %llu, mask %d: %s\n%s\n%lld x %lld, blocks %u x %u, batch %lld, heads %lld/%lld",
                  (unsigned long long)seed, done, message, text, (long long)desc.q_len, (long long)desc.kv_len,
                  desc.q_block, desc.kv_block, (long long)desc.batch, (long long)desc.heads, (long long)desc.kv_heads);
        cr_assert(mask->stored_batch == (bound.expr->uses & 1u << ATTUNE__VAR_B ? desc.batch : 1));
        cr_assert(mask->stored_heads ==
                  (bound.expr->uses & (1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV) ? desc.heads : 1));
        const int64_t rows = mask->stored_batch * mask->stored_heads * mask->q_blocks;
        const int64_t partial = mask->kv.offsets[rows], full = mask->full_kv.offsets[rows];
        with_partial += partial > 0;
        with_all += partial > 0 && full > 0 && partial + full < rows * mask->kv_blocks;
        attune__mask_free(mask);
        attune__expr_release(bound.expr);
        done++;
    }
    /* The masks are not all trivial. */
    cr_assert(with_partial > count / 3, "%d of %d have partial blocks", with_partial, count);
    cr_assert(with_all > count / 50, "%d of %d have blocks of every class", with_all, count);
}

Test(mask_build, random_1)
{
    random_masks(1, 3000);
}

Test(mask_build, random_2)
{
    random_masks(2, 3000);
}

Test(mask_build, random_3)
{
    random_masks(3, 3000);
}

Test(mask_build, random_4)
{
    random_masks(4, 3000);
}

/* Usual masks, and every dtype and rank of captures. */
static void random_expressions(uint64_t seed, uint64_t end)
{
    static random_expr made;
    int checked = 0;
    const int count = (int)(end - seed);
    for (; seed < end; seed++) {
        oracle_random random = {seed};
        attune_expr *expr = NULL;
        random_expr_make(&made, seed, ATTUNE_EXPR_MASK, (uint32_t)oracle_between(&random, 1, 30));
        if (attune__expr_parse(&heap_guarded, ATTUNE_EXPR_MASK, made.text, made.symbols, made.symbol_count, &expr) !=
            ATTUNE_OK)
            continue;
        oracle_bound bound;
        cr_assert(oracle_bind(&bound, expr, made.captures, made.capture_count, made.parameters, made.parameter_count) ==
                      ATTUNE_OK,
                  "%s: %s", made.text, attune_last_error());
        const attune_mask_desc desc = random_desc(&random);
        const oracle_expression expected = {&bound, desc};
        attune_mask *mask = NULL;
        char message[256];
        cr_assert(attune__mask_build(&heap_guarded, &desc, expr, bound.arrays, bound.values, &mask) == ATTUNE_OK,
                  "%s: %s", made.text, attune_last_error());
        const bool ok = oracle_check(mask, oracle_expression_element, &expected, seed % 16 == 0, message);
        cr_assert(ok, "seed %llu: %s\n%s\n%lld x %lld, blocks %u x %u", (unsigned long long)seed, message, made.text,
                  (long long)desc.q_len, (long long)desc.kv_len, desc.q_block, desc.kv_block);
        attune__mask_free(mask);
        attune__expr_release(expr);
        checked++;
    }
    cr_assert(checked > count / 10 * 9, "%d of %d expressions parse", checked, count);
}

Test(mask_build, expressions_1)
{
    random_expressions(1000, 5000);
}

Test(mask_build, expressions_2)
{
    random_expressions(5000, 9000);
}

/* ------------------------------------------------------------------------------------------------- realistic sizes */

typedef struct scene {
    const char *name, *text;
    int64_t q_len, kv_len;
    uint32_t q_block, kv_block;
} scene;

static const scene scenes[] = {
    {"causal", "q >= kv", 16384, 16384, 128, 128},
    {"causal, ragged", "q >= kv", 10001, 9999, 128, 64},
    {"bottom right", "q + (kv_len - q_len) >= kv", 1000, 20000, 64, 128},
    {"window", "q >= kv && q - kv < 1024", 16384, 16384, 128, 128},
    {"document", "doc[q] == doc[kv] && q >= kv", 16384, 16384, 128, 128},
    {"prefix", "q >= kv || kv < 1500", 16384, 16384, 128, 128},
    {"neighbourhood", "abs(q / 96 - kv / 96) <= 6 && abs(q % 96 - kv % 96) <= 6", 9216, 9216, 128, 128},
    {"dilated", "q >= kv && (q - kv) % 7 == 0", 8192, 8192, 128, 128},
    {"shared prefix", "q >= kv && (kv < 1000 || doc[q] == doc[kv])", 16384, 16384, 128, 128},
    /* DFlash: each block of 16 drafts sees the context before its anchor, and itself; some are dropped. */
    {"anchors",
     "doc[q / 16] % 7 != 3 && (kv < 8192 && kv < doc[4 * q] * 190 || kv >= 8192 && (kv - 8192) / 16 == q / 16)", 4096,
     12288, 128, 128},
    {"sink", "q >= kv && (q - kv < 512 || kv < 4)", 16384, 16384, 128, 128},
};

static int sampled_class(const attune_mask *mask, const oracle_expression *expected, int64_t r, int64_t c)
{
    int seen = 0;
    for (int64_t q = r * mask->q_block; q < (r + 1) * mask->q_block && q < mask->q_len && seen != 3; q++)
        for (int64_t kv = c * mask->kv_block; kv < (c + 1) * mask->kv_block && kv < mask->kv_len && seen != 3; kv++)
            seen |= oracle_expression_element(expected, 0, 0, q, kv) ? 2 : 1;
    return seen == 3 ? 1 : seen == 2 ? 2 : 0;
}

Test(mask_build, presets_at_size)
{
    static int32_t doc[20000];
    oracle_random random = {7};
    for (int i = 0, id = 0; i < 20000; i++)
        doc[i] = id += oracle_between(&random, 0, 600) == 0;
    const attune_host_capture capture = {"doc", {doc, ATTUNE_I32, 1, {20000}, {1}}};
    for (size_t s = 0; s < sizeof scenes / sizeof *scenes; s++) {
        const scene *at = &scenes[s];
        oracle_bound bound;
        cr_assert(oracle_bind(&bound, oracle_parse(at->text), &capture, 1, NULL, 0) == ATTUNE_OK, "%s: %s", at->name,
                  attune_last_error());
        const attune_mask_desc desc = oracle_desc(at->q_len, at->kv_len, at->q_block, at->kv_block);
        const oracle_expression expected = {&bound, desc};
        attune_mask *mask = NULL;
        cr_assert(attune__mask_build(&heap_guarded, &desc, bound.expr, bound.arrays, bound.values, &mask) == ATTUNE_OK);
        for (int i = 0; i < 600; i++) {
            const int64_t r = oracle_between(&random, 0, (int)mask->q_blocks - 1);
            /* Near the diagonal as often as not. */
            int64_t c = oracle_between(&random, 0, (int)mask->kv_blocks - 1);
            if (i % 2)
                c = r + oracle_between(&random, -9, 1);
            c = c < 0 ? 0 : c >= mask->kv_blocks ? mask->kv_blocks - 1 : c;
            const int got = oracle_block(mask, 0, 0, r, c), wanted = sampled_class(mask, &expected, r, c);
            cr_assert(got == wanted, "%s: block (%lld, %lld) is %d, expected %d", at->name, (long long)r, (long long)c,
                      got, wanted);
        }
        attune__mask_free(mask);
        attune__expr_release(bound.expr);
    }
}

/* Lists are small where the mask is: memory follows the boundary, not the plane. */
Test(mask_build, memory_follows_the_lists)
{
    oracle_memory memory = {.fail_at = -1};
    const attune_allocator allocator = oracle_allocator(&memory);
    oracle_bound bound;
    cr_assert(oracle_bind(&bound, oracle_parse("q >= kv && q - kv < 1024"), NULL, 0, NULL, 0) == ATTUNE_OK);
    const attune_mask_desc desc = oracle_desc(131072, 131072, 128, 128);
    attune_mask *mask = NULL;
    cr_assert(attune__mask_build(&allocator, &desc, bound.expr, bound.arrays, bound.values, &mask) == ATTUNE_OK);
    attune_mask_stats stats = {.struct_size = sizeof stats};
    cr_assert(attune__mask_stats(mask, true, NULL, &stats) == ATTUNE_OK);
    /* Rows 0 to 1,022 have q + 1 pairs, the others 1,024. */
    cr_assert(stats.pairs == 1023 * 1024 / 2 + (131072 - 1023) * INT64_C(1024), "%lld", (long long)stats.pairs);
    /* Two diagonals of partial blocks: j = i, and j = i - 8. Seven of full ones. */
    cr_assert(stats.partial_blocks == 1024 + 1016);
    cr_assert(stats.full_blocks == 7 * 1024 - 28);
    cr_assert(stats.bytes < 200 * 1024, "%llu", (unsigned long long)stats.bytes);
    attune__mask_free(mask);
    attune__expr_release(bound.expr);
    cr_assert(memory.live == 0);
}

/* A row, or a column, of so many blocks that each is a step of work. */
Test(mask_build, half_a_million_blocks, .timeout = 30)
{
    enum { BLOCKS = (1 << 19) + 5 };
    for (int across = 0; across < 2; across++) {
        oracle_bound bound;
        attune_mask *mask;
        cr_assert(oracle_bind(&bound, oracle_parse(across ? "kv >= 32 && q < 16" : "q >= 32 && kv < 16"), NULL, 0, NULL,
                              0) == ATTUNE_OK);
        const attune_mask_desc desc = oracle_desc(across ? 20 : 16 * BLOCKS, across ? 16 * BLOCKS : 20, 16, 16);
        cr_assert(attune__mask_build(&heap_guarded, &desc, bound.expr, bound.arrays, bound.values, &mask) == ATTUNE_OK);
        const attune__block_list *const row = across ? &mask->full_kv : &mask->full_q;
        cr_assert(row->num_blocks[0] == BLOCKS - 2 && row->num_blocks[1] == 0 && row->offsets[2] == BLOCKS - 2);
        cr_assert(row->indices[0] == 2 && row->indices[BLOCKS - 3] == BLOCKS - 1);
        attune__mask_free(mask);
        attune__expr_release(bound.expr);
    }
}
