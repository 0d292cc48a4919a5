/* SPDX-License-Identifier: MIT */
/* And, or, not of masks of every origin, against every element. */
#include <criterion/criterion.h>
#include <stddef.h>

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/heap.h"
#include "support/mask_oracle.h"

static const attune_allocator *const memory = &heap_guarded;

typedef struct joined {
    attune__op op;
    const attune_mask *a, *b;
} joined;

static bool joined_element(const void *context, int64_t b, int64_t h, int64_t q, int64_t kv)
{
    const joined *j = context;
    const bool left = oracle_mask_element(j->a, b, h, q, kv);
    if (j->op == ATTUNE__OP_NOT)
        return !left;
    const bool right = oracle_mask_element(j->b, b, h, q, kv);
    return j->op == ATTUNE__OP_AND ? left && right : left || right;
}

static bool parse_random(oracle_random *random, const oracle_world *world, oracle_bound *bound)
{
    char text[1024];
    oracle_random_text(random, text, sizeof text);
    if (oracle_bind_world(bound, text, world) == ATTUNE_OK)
        return true;
    attune__expr_release(bound->expr);
    return false;
}

/* From an expression, from lists that agree with it, from lists that need not, from full blocks alone, from an array.
 */
static attune_mask *random_origin(oracle_random *random, const oracle_world *world, const attune_mask_desc *desc)
{
    static uint8_t data[3 * 4 * 100 * 100];
    attune_mask *mask = NULL, *built = NULL;
    const int origin = oracle_between(random, 0, 9);
    if (origin == 0) {
        const int64_t batch = oracle_between(random, 0, 1) ? desc->batch : 1;
        const int64_t heads = oracle_between(random, 0, 1) ? desc->heads : 1;
        const int64_t patch = oracle_between(random, 1, 3000);
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = (uint8_t)((int64_t)i / patch % 2);
        const attune_array array = {data,
                                    ATTUNE_BOOL,
                                    4,
                                    {batch, heads, desc->q_len, desc->kv_len},
                                    {heads * desc->q_len * desc->kv_len, desc->q_len * desc->kv_len, desc->kv_len, 1}};
        cr_assert(attune__mask_from_dense(memory, desc, &array, &mask) == ATTUNE_OK);
        return mask;
    }
    oracle_bound bound;
    while (!parse_random(random, world, &bound))
        continue;
    cr_assert(attune__mask_build(memory, desc, bound.expr, bound.arrays, bound.values, &built) == ATTUNE_OK);
    if (origin <= 6) {
        attune__expr_release(bound.expr);
        return built;
    }
    attune_mask_lists lists = {.struct_size = sizeof lists};
    attune__mask_lists(built, &lists);
    if (origin == 7) { /* the lists of one expression with another */
        attune__expr_release(bound.expr);
        while (!parse_random(random, world, &bound))
            continue;
    }
    const int32_t *none = calloc((size_t)(built->stored_batch * built->stored_heads * built->q_blocks), sizeof *none);
    if (origin == 8)
        lists.kv_num_blocks = none, lists.kv_offsets = NULL;
    cr_assert(attune__mask_from_lists(memory, desc, &lists, origin == 8 ? NULL : bound.expr, bound.arrays, bound.values,
                                      &mask) == ATTUNE_OK,
              "%s", attune_last_error());
    free((void *)(uintptr_t)none);
    attune__expr_release(bound.expr);
    attune__mask_free(built);
    return mask;
}

/* Lists that came from the caller may call a block partial that is not, so that a result may too: only its pairs are
 * then sure. */
static bool pairs_agree(const attune_mask *mask, const joined *expected)
{
    for (int64_t b = 0; b < mask->batch; b++)
        for (int64_t h = 0; h < mask->heads; h++)
            for (int64_t q = 0; q < mask->q_len; q++)
                for (int64_t kv = 0; kv < mask->kv_len; kv++)
                    if (oracle_mask_element(mask, b, h, q, kv) != joined_element(expected, b, h, q, kv))
                        return false;
    return true;
}

static void random_pairs(uint64_t seed, int count)
{
    oracle_random random = {seed};
    for (int i = 0; i < count; i++) {
        oracle_world world;
        char message[256];
        oracle_world_make(&world, &random);
        attune_mask_desc desc =
            oracle_desc(oracle_between(&random, 1, 100), oracle_between(&random, 1, 100),
                        16u * (uint32_t)oracle_between(&random, 1, 3), 16u * (uint32_t)oracle_between(&random, 1, 3));
        desc.batch = oracle_between(&random, 1, 2);
        desc.kv_heads = oracle_between(&random, 1, 2);
        desc.heads = desc.kv_heads * oracle_between(&random, 1, 2);
        attune_mask *a = random_origin(&random, &world, &desc), *b = random_origin(&random, &world, &desc), *made;
        static const attune__op ops[] = {ATTUNE__OP_AND, ATTUNE__OP_OR, ATTUNE__OP_NOT};
        for (int o = 0; o < 3; o++) {
            const joined expected = {ops[o], a, b};
            const attune_status status =
                attune__mask_combine(ops[o], a, ops[o] == ATTUNE__OP_NOT ? NULL : b, NULL, &made);
            cr_assert(status == ATTUNE_OK, "%s", attune_last_error());
            cr_assert(pairs_agree(made, &expected), "seed %llu, case %d, op %d", (unsigned long long)seed, i, o);
            if (!oracle_check(made, joined_element, &expected, false, message))
                cr_assert(strstr(message, "is partial, expected") != NULL, "%s", message);
            attune__mask_free(made);
        }
        attune__mask_free(b);
        attune__mask_free(a);
    }
}

Test(mask_combine, random_1)
{
    random_pairs(21, 400);
}

Test(mask_combine, random_2)
{
    random_pairs(22, 400);
}

static attune_mask *build(const attune_mask_desc *desc, const char *text, const attune_host_capture *captures,
                          uint32_t count, const attune_parameter *parameters, uint32_t parameter_count)
{
    oracle_bound bound;
    attune_mask *mask = NULL;
    cr_assert(oracle_bind(&bound, oracle_parse(text), captures, count, parameters, parameter_count) == ATTUNE_OK, "%s",
              attune_last_error());
    cr_assert(attune__mask_build(memory, desc, bound.expr, bound.arrays, bound.values, &mask) == ATTUNE_OK);
    attune__expr_release(bound.expr);
    return mask;
}

/* Built masks combine to exactly what the joined expression builds. */
Test(mask_combine, same_as_the_joined_expression)
{
    const attune_mask_desc desc = oracle_desc(8192, 8000, 128, 64);
    attune_mask *causal = build(&desc, "q >= kv", NULL, 0, NULL, 0);
    attune_mask *window = build(&desc, "q - kv < 1000", NULL, 0, NULL, 0);
    attune_mask *both = NULL, *either = NULL, *none = NULL;
    attune_mask *wanted_both = build(&desc, "q >= kv && q - kv < 1000", NULL, 0, NULL, 0);
    attune_mask *wanted_either = build(&desc, "q >= kv || q - kv < 1000", NULL, 0, NULL, 0);
    attune_mask *wanted_none = build(&desc, "!(q >= kv)", NULL, 0, NULL, 0);
    cr_assert(attune__mask_combine(ATTUNE__OP_AND, causal, window, NULL, &both) == ATTUNE_OK);
    cr_assert(attune__mask_combine(ATTUNE__OP_OR, causal, window, NULL, &either) == ATTUNE_OK);
    cr_assert(attune__mask_combine(ATTUNE__OP_NOT, causal, NULL, NULL, &none) == ATTUNE_OK);
    cr_assert(oracle_same_lists(both, wanted_both));
    cr_assert(oracle_same_lists(either, wanted_either));
    cr_assert(oracle_same_lists(none, wanted_none));
    attune_mask *const all[] = {causal, window, both, either, none, wanted_both, wanted_either, wanted_none};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        attune__mask_free(all[i]);
}

static void expect_refusal(attune_status wanted, const attune_mask *a, const attune_mask *b, const char *message)
{
    attune_mask *made = (attune_mask *)(uintptr_t)a;
    const attune_status status = attune__mask_combine(ATTUNE__OP_AND, a, b, NULL, &made);
    cr_assert(status == wanted, "%s: status %d", message, (int)status);
    cr_assert(made == NULL);
    cr_assert(strstr(attune_last_error(), message) != NULL, "%s", attune_last_error());
}

Test(mask_combine, refuses)
{
    const attune_mask_desc desc = {.struct_size = sizeof desc,
                                   .q_block = 32,
                                   .kv_block = 64,
                                   .batch = 2,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .q_len = 200,
                                   .kv_len = 300};
    attune_mask *whole = build(&desc, "q >= kv", NULL, 0, NULL, 0);
    attune_mask_desc other = desc;
    static const struct {
        size_t offset;
        int64_t value;
        const char *message;
    } cases[] = {
        {offsetof(attune_mask_desc, q_len), 201, "a.q_len is 200, b.q_len is 201, expected the same"},
        {offsetof(attune_mask_desc, kv_len), 299, "a.kv_len is 300, b.kv_len is 299"},
        {offsetof(attune_mask_desc, batch), 1, "a.batch is 2, b.batch is 1"},
        {offsetof(attune_mask_desc, heads), 8, "a.heads is 4, b.heads is 8"},
        {offsetof(attune_mask_desc, kv_heads), 1, "a.kv_heads is 2, b.kv_heads is 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        other = desc;
        memcpy((char *)&other + cases[i].offset, &cases[i].value, sizeof cases[i].value);
        attune_mask *mask = build(&other, "q >= kv", NULL, 0, NULL, 0);
        expect_refusal(ATTUNE_INVALID_ARGUMENT, whole, mask, cases[i].message);
        attune__mask_free(mask);
    }
    other = desc;
    other.kv_block = 128;
    attune_mask *mask = build(&other, "q >= kv", NULL, 0, NULL, 0);
    expect_refusal(ATTUNE_INVALID_ARGUMENT, whole, mask, "a.kv_block is 64, b.kv_block is 128");
    attune__mask_free(mask);

    attune_mask *slice = NULL;
    const attune_mask_range range = {.struct_size = sizeof range, .q_block0 = 2};
    cr_assert(attune__mask_slice(whole, &range, &slice) == ATTUNE_OK);
    expect_refusal(ATTUNE_UNSUPPORTED, slice, slice,
                   "a is a slice (from batch 0, head 0, row 64 of the whole): combine");
    expect_refusal(ATTUNE_UNSUPPORTED, whole, slice, "b is a slice");
    attune__mask_free(slice);
    /* A part of the rows, heads or batches is enough; the first batches alone are a whole mask of fewer. */
    static const attune_mask_range parts[] = {{.batch0 = 1}, {.head0 = 2}, {.heads = 2}, {.q_blocks = 1}, {.batch = 1}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        attune_mask *made = NULL;
        cr_assert(attune__mask_slice(whole, &parts[i], &slice) == ATTUNE_OK);
        const attune_status status = attune__mask_combine(ATTUNE__OP_NOT, slice, NULL, NULL, &made);
        cr_expect(parts[i].batch ? status == ATTUNE_OK : status == ATTUNE_UNSUPPORTED, "slice %zu: %s", i,
                  attune_status_string(status));
        attune__mask_free(made);
        attune__mask_free(slice);
    }

    const attune_parameter five = {"n", 5}, six = {"n", 6};
    attune_mask *a = build(&desc, "q - kv < n", NULL, 0, &five, 1), *b = build(&desc, "q - kv < n", NULL, 0, &six, 1);
    expect_refusal(ATTUNE_INVALID_ARGUMENT, a, b, "parameter `n` has other values in a than in b");
    attune__mask_free(b);
    attune__mask_free(a);

    int32_t doc[300] = {0};
    const attune_host_capture capture = {"doc", {doc, ATTUNE_I32, 1, {300}, {1}}};
    a = build(&desc, "doc[q] == doc[kv]", &capture, 1, NULL, 0);
    doc[299] = 1;
    b = build(&desc, "doc[q] == doc[kv] && q >= kv", &capture, 1, NULL, 0);
    expect_refusal(ATTUNE_INVALID_ARGUMENT, a, b, "capture `doc` has other values in a than in b");
    attune__mask_free(b);
    attune__mask_free(a);
    attune__mask_free(whole);

    /* A mask of a segment belongs to it, and so does what is combined with it. */
    attune_mask *made = NULL, *segments[4];
    const int64_t places[4][2] = {{0, 0}, {100, 500}, {100, 500}, {150, 500}};
    for (int i = 0; i < 4; i++) {
        other = desc;
        other.kv_start = places[i][0];
        other.kv_total = places[i][1];
        segments[i] = build(&other, i % 2 ? "q >= kv" : "q % 3 > 0", NULL, 0, NULL, 0);
    }
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            cr_assert(attune__mask_combine(ATTUNE__OP_OR, segments[i], segments[j], NULL, &made) == ATTUNE_OK);
            cr_expect(made->kv_start == (i || j ? 100 : 0) && made->kv_total == (i || j ? 500 : 0),
                      "%d and %d: %lld of %lld", i, j, (long long)made->kv_start, (long long)made->kv_total);
            attune__mask_free(made);
        }
    expect_refusal(ATTUNE_INVALID_ARGUMENT, segments[1], segments[3], "a.kv_start is 100, b.kv_start is 150");
    segments[3]->kv_start = 100, segments[3]->kv_total = 501;
    expect_refusal(ATTUNE_INVALID_ARGUMENT, segments[1], segments[3], "a.kv_total is 500, b.kv_total is 501");
    for (int i = 0; i < 4; i++)
        attune__mask_free(segments[i]);

    /* Lists that contradict their expression, too large to make element by element. */
    const attune_mask_desc large = oracle_desc(65536, 65536, 128, 128);
    const int32_t all[512] = {1}, first = 5, none[512] = {0};
    const attune_mask_lists lists = {.struct_size = sizeof lists,
                                     .batch = 1,
                                     .heads = 1,
                                     .kv_num_blocks = none,
                                     .full_kv_num_blocks = all,
                                     .full_kv_indices = &first};
    oracle_bound bound;
    cr_assert(oracle_bind(&bound, oracle_parse("q >= kv"), NULL, 0, NULL, 0) == ATTUNE_OK);
    cr_assert(attune__mask_from_lists(memory, &large, &lists, bound.expr, bound.arrays, bound.values, &a) == ATTUNE_OK);
    b = build(&large, "kv % 2 == 0", NULL, 0, NULL, 0);
    expect_refusal(ATTUNE_UNSUPPORTED, a, b, "needs a dense array of 1 x 1 x 65536 x 65536 bytes");
    attune__mask_free(b);
    attune__mask_free(a);
    attune__expr_release(bound.expr);
}
