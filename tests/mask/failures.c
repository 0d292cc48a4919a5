/* SPDX-License-Identifier: MIT */
/* Every allocation of every way to make a mask fails once: a status, no mask, no leak. */
#include <criterion/criterion.h>

#include <string.h>

#include "support/mask_oracle.h"

typedef struct setting {
    oracle_bound bound;
    attune_mask_desc desc;
    attune_mask *a, *b, *dense[2], *odd; /* odd: lists that contradict their expression */
} setting;

typedef attune_status (*maker)(const attune_allocator *allocator, const setting *with, attune_mask **mask);

static attune_status make_build(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    return attune__mask_build(allocator, &with->desc, with->bound.expr, with->bound.arrays, with->bound.values, mask);
}

static attune_status make_lists(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    attune_mask_lists lists = {.struct_size = sizeof lists};
    attune__mask_lists(with->a, &lists);
    return attune__mask_from_lists(allocator, &with->desc, &lists, with->bound.expr, with->bound.arrays,
                                   with->bound.values, mask);
}

static attune_status make_odd(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    attune_mask_lists lists = {.struct_size = sizeof lists};
    attune__mask_lists(with->dense[0], &lists);
    lists.batch = lists.heads = 1;
    return attune__mask_from_lists(allocator, &with->desc, &lists, with->bound.expr, with->bound.arrays,
                                   with->bound.values, mask);
}

static attune_status make_dense(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    static uint8_t data[200 * 151];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = i / 700 % 3 != 0;
    const attune_array array = {data, ATTUNE_U8, 4, {1, 1, with->desc.q_len, with->desc.kv_len}, {0, 0, 151, 1}};
    return attune__mask_from_dense(allocator, &with->desc, &array, mask);
}

static attune_status make_other_dense(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    static const uint8_t one = 1;
    const attune_array array = {&one, ATTUNE_BOOL, 4, {1, 1, with->desc.q_len, with->desc.kv_len}, {0}};
    return attune__mask_from_dense(allocator, &with->desc, &array, mask);
}

/* A mask works through the allocator that it was made with. */
static attune_status make_slice(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    attune_mask copy = *with->a;
    copy.allocator = *allocator;
    const attune_mask_range range = {.struct_size = sizeof range, .q_block0 = 1};
    return attune__mask_slice(&copy, &range, mask);
}

static attune_status make_join(const attune_allocator *allocator, attune__op op, const attune_mask *a,
                               const attune_mask *b, attune_mask **mask)
{
    attune_mask copy = *a;
    copy.allocator = *allocator;
    return attune__mask_combine(op, &copy, b, NULL, mask);
}

static attune_status make_and(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    return make_join(allocator, ATTUNE__OP_AND, with->a, with->b, mask);
}

static attune_status make_not(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    return make_join(allocator, ATTUNE__OP_NOT, with->a, NULL, mask);
}

static attune_status make_dense_or(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    return make_join(allocator, ATTUNE__OP_OR, with->dense[0], with->dense[1], mask);
}

static attune_status make_odd_and(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    return make_join(allocator, ATTUNE__OP_AND, with->odd, with->b, mask);
}

static attune_status make_stats(const attune_allocator *allocator, const setting *with, attune_mask **mask)
{
    attune_mask copy = *with->a;
    copy.allocator = *allocator;
    attune_mask_stats stats = {.struct_size = sizeof stats};
    *mask = NULL;
    return attune__mask_stats(&copy, true, NULL, &stats);
}

static const struct {
    const char *name;
    maker make;
} makers[] = {
    {"build", make_build},       {"lists", make_lists},     {"dense", make_dense},
    {"slice", make_slice},       {"and", make_and},         {"not", make_not},
    {"dense or", make_dense_or}, {"odd and", make_odd_and}, {"exact stats", make_stats},
};

Test(mask_failures, every_allocation)
{
    oracle_random random = {31};
    oracle_world world;
    oracle_world_make(&world, &random);
    setting with = {.desc = oracle_desc(199, 150, 16, 32)};
    oracle_memory memory = {.fail_at = -1};
    const attune_allocator allocator = oracle_allocator(&memory);
    oracle_bound other;
    with.desc.batch = 2;
    with.desc.heads = 2;
    cr_assert(oracle_bind_world(&with.bound, "(doc[q] == doc[kv] || kv < lim[h] + 10) && bias[b] < 1000.0 && q != kv",
                                &world) == ATTUNE_OK);
    cr_assert(oracle_bind_world(&other, "q >= kv && flag[kv] && (q - kv) % 3 != 1", &world) == ATTUNE_OK);
    cr_assert(make_build(&allocator, &with, &with.a) == ATTUNE_OK);
    cr_assert(attune__mask_build(&allocator, &with.desc, other.expr, other.arrays, other.values, &with.b) == ATTUNE_OK);
    cr_assert(make_dense(&allocator, &with, &with.dense[0]) == ATTUNE_OK);
    cr_assert(make_other_dense(&allocator, &with, &with.dense[1]) == ATTUNE_OK);
    cr_assert(make_odd(&allocator, &with, &with.odd) == ATTUNE_OK);
    const int64_t before = memory.live;
    static const char *const cures[] = {
        "give larger blocks (q_block, kv_block), shorter lengths, or a mask that allows",
        "give a smaller batch, fewer heads, or a mask without b and h",
        "shorter lengths, a smaller batch, fewer heads, or a mask without b and h"};
    bool told[3] = {false};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
        int n = 0;
        for (; status != ATTUNE_OK; n++) {
            attune_mask *mask = NULL;
            memory.calls = 0;
            memory.fail_at = n;
            status = makers[i].make(&allocator, &with, &mask);
            cr_assert(status == ATTUNE_OK || status == ATTUNE_OUT_OF_HOST_MEMORY, "%s, allocation %d: %s",
                      makers[i].name, n, attune_last_error());
            for (size_t c = 0; c < 3; c++)
                told[c] |= status != ATTUNE_OK && strstr(attune_last_error(), cures[c]);
            cr_assert(status == ATTUNE_OK || mask == NULL, "%s, allocation %d", makers[i].name, n);
            attune__mask_free(mask);
            cr_assert(memory.live == before, "%s, allocation %d: %lld blocks leaked", makers[i].name, n,
                      (long long)(memory.live - before));
            cr_assert(n < 1000);
        }
        /* The failures were reached. */
        cr_assert(n > 2, "%s", makers[i].name);
    }
    for (size_t c = 0; c < 3; c++)
        cr_assert(told[c], "what has no memory says what makes it smaller: %s", cures[c]);
    attune_mask *const all[] = {with.a, with.b, with.dense[0], with.dense[1], with.odd};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        attune__mask_free(all[i]);
    cr_assert(memory.live == 0);
    attune__expr_release(with.bound.expr);
    attune__expr_release(other.expr);
}
