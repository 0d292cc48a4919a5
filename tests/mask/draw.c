/* SPDX-License-Identifier: MIT */
/* Pictures and statistics of small masks. */
#include <criterion/criterion.h>

#include <string.h>

#include "base/alloc.h"
#include "support/heap.h"
#include "support/mask_oracle.h"

static attune_mask *build(const attune_mask_desc *desc, const char *text)
{
    oracle_bound bound;
    attune_mask *mask = NULL;
    cr_assert(oracle_bind(&bound, oracle_parse(text), NULL, 0, NULL, 0) == ATTUNE_OK, "%s", attune_last_error());
    cr_assert(attune__mask_build(&heap_guarded, desc, bound.expr, bound.arrays, bound.values, &mask) == ATTUNE_OK);
    attune__expr_release(bound.expr);
    return mask;
}

static void expect_text(const attune_mask *mask, int64_t h, uint32_t columns, uint32_t rows, const char *wanted)
{
    char text[512];
    size_t needed = 0;
    attune__mask_draw_text(mask, 0, h, columns, rows, text, sizeof text, &needed);
    cr_assert(!strcmp(text, wanted), "\n%s\nexpected\n%s", text, wanted);
    cr_assert(needed == strlen(wanted) + 1);
    attune__mask_draw_text(mask, 0, h, columns, rows, NULL, 0, &needed);
    cr_assert(needed == strlen(wanted) + 1);
}

Test(mask_draw, text)
{
    attune_mask_desc desc = oracle_desc(64, 64, 16, 16);
    attune_mask *mask = build(&desc, "q >= kv");
    expect_text(mask, 0, 80, 25, "▒   \n█▒  \n██▒ \n███▒");
    expect_text(mask, 0, 2, 2, "▒ \n█▒");
    expect_text(mask, 0, 3, 80, "▒ \n▒ \n█▒\n█▒");
    expect_text(mask, 0, 1, 1, "▒");
    attune__mask_free(mask);

    mask = build(&desc, "q >= kv && q - kv < 16");
    expect_text(mask, 0, 80, 25, "▒   \n▒▒  \n ▒▒ \n  ▒▒");
    attune__mask_free(mask);

    desc = oracle_desc(40, 70, 16, 16); /* ragged: the last blocks are full of what is inside */
    desc.heads = 2;
    mask = build(&desc, "h == 1 ? kv >= 32 : kv < 40");
    expect_text(mask, 0, 80, 25, "██▒  \n██▒  \n██▒  ");
    expect_text(mask, 1, 80, 25, "  ███\n  ███\n  ███");
    attune__mask_free(mask);
}

Test(mask_draw, pixels)
{
    const attune_mask_desc desc = oracle_desc(64, 64, 16, 16);
    attune_mask *mask = build(&desc, "q >= kv");
    uint8_t pixels[2 * 2 * 3];
    uint32_t width = 3, height = 2;
    attune__mask_draw_pixels(mask, 0, 0, NULL, &width, &height);
    cr_assert(width == 2 && height == 2);
    attune__mask_draw_pixels(mask, 0, 0, pixels, &width, &height);
    /* A quarter of the blocks on the diagonal is full. */
    const uint8_t wanted[12] = {172, 194, 228, 255, 255, 255, 24, 48, 96, 172, 194, 228};
    cr_assert(!memcmp(pixels, wanted, sizeof wanted), "%d %d %d", pixels[0], pixels[1], pixels[2]);
    attune__mask_free(mask);
}

Test(mask_draw, statistics)
{
    attune_mask_desc desc = oracle_desc(40, 70, 16, 16);
    desc.batch = 3;
    desc.heads = 2;
    attune_mask *mask = build(&desc, "q >= kv");
    attune_mask_stats stats = {.struct_size = sizeof stats};
    cr_assert(attune__mask_stats(mask, false, NULL, &stats) == ATTUNE_OK);
    cr_assert(stats.pairs == -1 && stats.blocks == 15 && stats.full_blocks == 3 && stats.partial_blocks == 3);
    cr_assert_float_eq(stats.block_density, 6.0 / 15.0, 1e-12);
    /* Full: (1, 0), 16 x 16; (2, 0) and (2, 1), 8 x 16. Partial: two of 16 x 16, one of 8 x 16. */
    cr_assert_float_eq(stats.density, (512.0 + 640.0 / 2.0) / 2800.0, 1e-12);
    cr_assert(attune__mask_stats(mask, true, NULL, &stats) == ATTUNE_OK);
    cr_assert(stats.pairs == 6 * 820);
    cr_assert_float_eq(stats.density, 820.0 / 2800.0, 1e-12);
    attune__mask_free(mask);

    mask = build(&desc, "kv <= h * 32 + b && q_len == 40");
    cr_assert(mask->stored_batch == 3 && mask->stored_heads == 2);
    cr_assert(attune__mask_stats(mask, true, NULL, &stats) == ATTUNE_OK);
    cr_assert(stats.pairs == 40 * (1 + 2 + 3 + 33 + 34 + 35), "%lld", (long long)stats.pairs);
    attune__mask_free(mask);

    desc = oracle_desc(32, 32, 16, 16);
    mask = build(&desc, "true");
    cr_assert(attune__mask_stats(mask, true, NULL, &stats) == ATTUNE_OK);
    cr_assert(stats.density == 1.0 && stats.block_density == 1.0 && stats.pairs == 1024);
    /* Lists: 4 x 3 offsets, 4 x 2 counts, 2 x 4 indices. */
    cr_assert(stats.bytes == sizeof(attune_mask) + 12 * 8 + 8 * 4 + 8 * 4, "%llu", (unsigned long long)stats.bytes);
    attune__mask_free(mask);
}

/* Bytes of captures and parameters are counted, and those of an expression that broadcast lists need. */
Test(mask_draw, statistics_of_captures)
{
    static int32_t limits[6] = {1, 9, 33, 16, 40, 70};
    const attune_symbol symbols[] = {{"limit", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
                                     {"n", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0}};
    const attune_host_capture capture = {"limit", {.data = limits, .dtype = ATTUNE_I32, .rank = 1, .size = {6}}};
    const attune_parameter parameter = {"n", 2};
    static const char *const texts[] = {"kv < limit[h] + n", "kv < limit[b] + n", "kv < limit[h_kv] + n",
                                        "kv < limit[0] + n"};
    attune_mask_desc desc = oracle_desc(40, 70, 16, 16);
    desc.batch = 3;
    desc.heads = 6;
    desc.kv_heads = 2;
    int32_t counts[3], indices[3 * 5];
    for (int i = 0; i < 15; i++)
        indices[i] = i % 5;
    for (int i = 0; i < 3; i++)
        counts[i] = 5;
    const attune_mask_lists lists = {
        .struct_size = sizeof lists, .batch = 1, .heads = 1, .kv_num_blocks = counts, .kv_indices = indices};
    for (int i = 0; i < 4; i++) {
        oracle_bound bound;
        attune_expr *expr;
        attune_mask *masks[2];
        cr_assert_eq(attune__expr_parse(&heap_guarded, ATTUNE_EXPR_MASK, texts[i], symbols, 2, &expr), ATTUNE_OK);
        cr_assert_eq(oracle_bind(&bound, expr, &capture, 1, &parameter, 1), ATTUNE_OK);
        cr_assert_eq(attune__mask_build(&heap_guarded, &desc, bound.expr, bound.arrays, bound.values, &masks[0]),
                     ATTUNE_OK);
        cr_assert_eq(
            attune__mask_from_lists(&heap_guarded, &desc, &lists, bound.expr, bound.arrays, bound.values, &masks[1]),
            ATTUNE_OK, "%s", attune_last_error());
        int64_t pairs = 0;
        for (int b = 0; b < 3; b++)
            for (int h = 0; h < 6; h++) {
                const int at[] = {h, b, h / 3, 0};
                const int keys = limits[at[i]] + 2;
                pairs += 40 * (keys < 70 ? keys : 70);
            }
        for (int m = 0; m < 2; m++) {
            attune_mask_stats stats = {.struct_size = sizeof stats};
            cr_assert_eq(attune__mask_stats(masks[m], true, NULL, &stats), ATTUNE_OK);
            cr_expect_eq(stats.pairs, pairs, "%s: %lld, not %lld", texts[i], (long long)stats.pairs, (long long)pairs);
            const uint64_t planes = (uint64_t)(masks[m]->stored_batch * masks[m]->stored_heads), rows = planes * 3;
            const uint64_t listed = (uint64_t)(stats.full_blocks + stats.partial_blocks), columns = planes * 5;
            cr_expect_eq(stats.bytes, sizeof(attune_mask) + 2 * (rows + 1 + columns + 1) * 8 +
                                          2 * (rows + columns) * 4 + 2 * listed * 4 +
                                          2 * (sizeof(attune_array) + sizeof(attune__value)) + sizeof limits);
            attune__mask_free(masks[m]);
        }
        attune__expr_release(bound.expr);
    }
}

/* More pairs than an int64_t holds. */
Test(mask_draw, statistics_saturate)
{
    attune_mask_desc desc = oracle_desc(64, 64, 16, 16);
    desc.batch = desc.heads = desc.kv_heads = INT32_MAX;
    static const char *const texts[] = {"true", "q >= kv", "(q + kv) % 2 == 0"};
    for (int i = 0; i < 3; i++) {
        attune_mask *mask = build(&desc, texts[i]);
        attune_mask_stats stats = {.struct_size = sizeof stats};
        cr_assert_eq(attune__mask_stats(mask, true, NULL, &stats), ATTUNE_OK);
        cr_expect_eq(stats.pairs, INT64_MAX);
        attune__mask_free(mask);
    }
}
