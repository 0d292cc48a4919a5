/* SPDX-License-Identifier: MIT */
/* Masks from lists and dense arrays, and slices: against every element, and against hostile input. */
#include <criterion/criterion.h>

#include <string.h>

#include "base/alloc.h"
#include "support/heap.h"
#include "support/mask_oracle.h"

static const attune_allocator *const memory = &heap_guarded;

/* ------------------------------------------------------------------------------------------------------ from lists */

static attune_mask *random_mask(oracle_random *random, const oracle_world *world, const attune_mask_desc *desc,
                                oracle_bound *bound)
{
    char text[ATTUNE_EXPR_MAX_LENGTH];
    for (;;) {
        oracle_random_text(random, text, sizeof text);
        if (oracle_bind_world(bound, text, world) == ATTUNE_OK)
            break;
        attune__expr_release(bound->expr);
    }
    attune_mask *mask = NULL;
    cr_assert(attune__mask_build(memory, desc, bound->expr, bound->arrays, bound->values, &mask) == ATTUNE_OK);
    return mask;
}

static attune_mask_desc random_desc(oracle_random *random)
{
    attune_mask_desc desc =
        oracle_desc(oracle_between(random, 1, 150), oracle_between(random, 1, 150),
                    16u * (uint32_t)oracle_between(random, 1, 4), 16u * (uint32_t)oracle_between(random, 1, 4));
    desc.batch = oracle_between(random, 1, 3);
    desc.kv_heads = oracle_between(random, 1, 2);
    desc.heads = desc.kv_heads * oracle_between(random, 1, 2);
    return desc;
}

/* A mask's own lists make the same mask again, with offsets and without. */
Test(mask_lists, round_trip)
{
    oracle_random random = {11};
    for (int i = 0; i < 500; i++) {
        oracle_world world;
        oracle_bound bound;
        oracle_world_make(&world, &random);
        const attune_mask_desc desc = random_desc(&random);
        attune_mask *mask = random_mask(&random, &world, &desc, &bound);
        attune_mask_lists lists = {.struct_size = sizeof lists};
        attune__mask_lists(mask, &lists);
        if (i % 2)
            lists.kv_offsets = lists.full_kv_offsets = NULL;
        attune_mask *again = NULL;
        cr_assert(attune__mask_from_lists(memory, &desc, &lists, bound.expr, bound.arrays, bound.values, &again) ==
                      ATTUNE_OK,
                  "%s", attune_last_error());
        cr_assert(oracle_same_lists(mask, again));
        attune__mask_free(again);
        attune__mask_free(mask);
        attune__expr_release(bound.expr);
    }
}

/* FlexAttention's padded form: rows of a fixed width. */
Test(mask_lists, padded_rows)
{
    const int32_t counts[3] = {1, 0, 2}, indices[9] = {2, -1, -1, -1, -1, -1, 0, 1, -1};
    const int64_t offsets[4] = {0, 3, 6, 9};
    const int32_t none[3] = {0};
    const attune_mask_lists lists = {.struct_size = sizeof lists,
                                     .batch = 1,
                                     .heads = 1,
                                     .kv_num_blocks = none,
                                     .full_kv_num_blocks = counts,
                                     .full_kv_offsets = offsets,
                                     .full_kv_indices = indices};
    const attune_mask_desc desc = oracle_desc(48, 40, 16, 16);
    attune_mask *mask = NULL;
    cr_assert(attune__mask_from_lists(memory, &desc, &lists, NULL, NULL, NULL, &mask) == ATTUNE_OK, "%s",
              attune_last_error());
    static const int wanted[3][3] = {{0, 0, 2}, {0, 0, 0}, {2, 2, 0}};
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 3; c++)
            cr_assert(oracle_block(mask, 0, 0, r, c) == wanted[r][c]);
    cr_assert(mask->full_q.num_blocks[2] == 1 && mask->full_q.indices[mask->full_q.offsets[2]] == 0);
    cr_assert(mask->expr == NULL);
    attune_mask_stats stats = {.struct_size = sizeof stats};
    cr_assert(attune__mask_stats(mask, true, NULL, &stats) == ATTUNE_OK);
    cr_assert(stats.pairs == 16 * 8 + 16 * 32 && stats.full_blocks == 3);
    attune__mask_free(mask);
}

typedef struct refusal {
    int32_t kv_num[2], kv[4], full_num[2], full[4];
    int64_t offsets[3];
    bool use_offsets, expr;
    int64_t batch;
    const char *message; /* a part of it */
} refusal;

static const refusal refusals[] = {
    {.kv_num = {-1, 0}, .expr = true, .message = "lists.kv_num_blocks[0] is -1, expected 0 to 3"},
    {.kv_num = {0, 4}, .expr = true, .message = "lists.kv_num_blocks[1] is 4, expected 0 to 3"},
    {.full_num = {0, INT32_MAX}, .expr = true, .message = "lists.full_kv_num_blocks[1] is 2147483647"},
    {.kv_num = {1, 1}, .kv = {0, 3}, .expr = true, .message = "entry 0 of row 1 is 3, expected 0 to 2"},
    {.kv_num = {1, 1}, .kv = {-5, 1}, .expr = true, .message = "entry 0 of row 0 is -5"},
    {.kv_num = {2, 0}, .kv = {1, 1}, .expr = true, .message = "entry 1 of row 0 is 1 after 1, expected ascending"},
    {.kv_num = {2, 0}, .kv = {2, 0}, .expr = true, .message = "entry 1 of row 0 is 0 after 2"},
    {.kv_num = {0, 1},
     .kv = {2},
     .full_num = {0, 2},
     .full = {0, 2},
     .expr = true,
     .message = "block 2 of row 1 is in"},
    {.kv_num = {0, 1}, .kv = {2}, .message = "expr is NULL, but lists.kv_num_blocks[1] is 1: give the expression"},
    {.kv_num = {1, 1}, .offsets = {-1, 1, 2}, .use_offsets = true, .expr = true, .message = "kv_offsets[0] is -1"},
    {.kv_num = {2, 1},
     .kv = {0, 1},
     .offsets = {0, 1, 2},
     .use_offsets = true,
     .expr = true,
     .message = "lists.kv_offsets[1] is 1, expected at least 2"},
    {.kv_num = {1, 1}, .offsets = {3, 0, 2}, .use_offsets = true, .expr = true, .message = "kv_offsets[1] is 0"},
    {.batch = 2, .expr = true, .message = "lists.batch is 2, expected 1 or desc.batch, which is 1"},
    {.batch = -1, .expr = true, .message = "lists.batch is 0"},
};

Test(mask_lists, refuses)
{
    oracle_bound bound;
    cr_assert(oracle_bind(&bound, oracle_parse("q >= kv"), NULL, 0, NULL, 0) == ATTUNE_OK);
    const attune_mask_desc desc = oracle_desc(32, 48, 16, 16);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        const attune_mask_lists lists = {.struct_size = sizeof lists,
                                         .batch = r->batch < 0 ? 0
                                                  : r->batch   ? r->batch
                                                               : 1,
                                         .heads = 1,
                                         .kv_num_blocks = r->kv_num,
                                         .kv_indices = r->kv,
                                         .kv_offsets = r->use_offsets ? r->offsets : NULL,
                                         .full_kv_num_blocks = r->full_num,
                                         .full_kv_indices = r->full};
        attune_mask *mask = (attune_mask *)&lists;
        const attune_status status = attune__mask_from_lists(memory, &desc, &lists, r->expr ? bound.expr : NULL,
                                                             bound.arrays, bound.values, &mask);
        cr_assert(status == ATTUNE_INVALID_ARGUMENT, "case %zu: %d", i, (int)status);
        cr_assert(mask == NULL);
        cr_assert(strstr(attune_last_error(), r->message) != NULL, "case %zu: %s", i, attune_last_error());
    }
    const int32_t one[2] = {1, 0};
    attune_mask_lists lists = {.struct_size = sizeof lists, .batch = 1, .heads = 1, .kv_num_blocks = one};
    attune_mask *mask = NULL;
    cr_assert(attune__mask_from_lists(memory, &desc, &lists, bound.expr, bound.arrays, bound.values, &mask) ==
              ATTUNE_INVALID_ARGUMENT);
    cr_assert(strstr(attune_last_error(), "lists.kv_indices is NULL, but row 0 has 1 blocks") != NULL);
    lists.kv_num_blocks = NULL;
    cr_assert(attune__mask_from_lists(memory, &desc, &lists, bound.expr, bound.arrays, bound.values, &mask) ==
              ATTUNE_INVALID_ARGUMENT);
    cr_assert(strstr(attune_last_error(), "lists.kv_num_blocks is NULL") != NULL);
    attune__expr_release(bound.expr);
}

/* ------------------------------------------------------------------------------------------------------ from dense */

typedef struct dense {
    uint8_t *data;
    attune_array array;
} dense;

static bool dense_element(const void *context, int64_t b, int64_t h, int64_t q, int64_t kv)
{
    const attune_array *a = context;
    const int64_t i = (a->size[0] == 1 ? 0 : b) * a->stride[0] + (a->size[1] == 1 ? 0 : h) * a->stride[1] +
                      q * a->stride[2] + kv * a->stride[3];
    return ((const uint8_t *)a->data)[i] != 0;
}

Test(mask_lists, dense)
{
    static uint8_t data[3 * 4 * 160 * 160 + 160];
    oracle_random random = {13};
    for (int i = 0; i < 600; i++) {
        attune_mask_desc desc = random_desc(&random);
        const int64_t batch = oracle_between(&random, 0, 1) ? desc.batch : 1;
        const int64_t heads = oracle_between(&random, 0, 1) ? desc.heads : 1;
        /* Sparse, dense, and in patches, so that every class appears. */
        const int style = oracle_between(&random, 0, 3);
        for (size_t j = 0; j < sizeof data; j++)
            data[j] = style == 0   ? oracle_between(&random, 0, 500) == 0
                      : style == 1 ? oracle_between(&random, 0, 500) != 0
                      : style == 2 ? (uint8_t)(j / 4000 % 2 * 7)
                                   : (uint8_t)(j / 16 % 3 * 128);
        attune_array array = {data, i % 2 ? ATTUNE_U8 : ATTUNE_BOOL, 4, {batch, heads, desc.q_len, desc.kv_len}, {0}};
        const int64_t pitch = desc.kv_len + oracle_between(&random, 0, 9);
        array.stride[3] = 1;
        array.stride[2] = pitch;
        array.stride[1] = pitch * desc.q_len;
        array.stride[0] = pitch * desc.q_len * heads;
        if (i % 5 == 0) { /* transposed */
            array.stride[3] = desc.q_len;
            array.stride[2] = 1;
        }
        attune_mask *mask = NULL;
        char message[256];
        cr_assert(attune__mask_from_dense(memory, &desc, &array, &mask) == ATTUNE_OK, "%s", attune_last_error());
        cr_assert(oracle_check(mask, dense_element, &array, true, message), "case %d: %s", i, message);
        cr_assert(mask->stored_batch == batch && mask->stored_heads == heads);
        cr_assert(mask->captures[0].dtype == ATTUNE_BOOL && mask->captures[0].data != (const void *)data);
        attune__mask_free(mask);
    }
}

/* ---------------------------------------------------------------------------------------------------------- slices */

typedef struct part {
    const attune_mask *whole;
    attune_mask_range range;
} part;

static bool part_element(const void *context, int64_t b, int64_t h, int64_t q, int64_t kv)
{
    const part *p = context;
    return oracle_mask_element(p->whole, b + p->range.batch0, h + p->range.head0,
                               q + p->range.q_block0 * p->whole->q_block, kv);
}

static attune_mask_range random_range(oracle_random *random, const attune_mask *mask)
{
    attune_mask_range r = {.struct_size = sizeof r};
    r.batch0 = oracle_between(random, 0, (int)mask->batch - 1);
    r.batch = oracle_between(random, 0, (int)(mask->batch - r.batch0));
    r.head0 = oracle_between(random, 0, (int)mask->heads - 1);
    r.heads = oracle_between(random, 0, (int)(mask->heads - r.head0));
    r.q_block0 = oracle_between(random, 0, (int)mask->q_blocks - 1);
    r.q_blocks = oracle_between(random, 0, (int)(mask->q_blocks - r.q_block0));
    return r;
}

/* A count of 0 is the rest; the last block may be cut off by the end. */
static bool has_sizes(const attune_mask *slice, const attune_mask *whole, const attune_mask_range *range)
{
    int64_t rows = 0;
    for (int64_t q = range->q_block0 * whole->q_block; q < whole->q_len; q++)
        rows += !range->q_blocks || q < (range->q_block0 + range->q_blocks) * whole->q_block;
    return slice->batch == (range->batch ? range->batch : whole->batch - range->batch0) &&
           slice->heads == (range->heads ? range->heads : whole->heads - range->head0) && slice->q_len == rows &&
           slice->kv_len == whole->kv_len;
}

Test(mask_lists, slices)
{
    oracle_random random = {17};
    for (int i = 0; i < 400; i++) {
        oracle_world world;
        oracle_bound bound;
        char message[256];
        oracle_world_make(&world, &random);
        const attune_mask_desc desc = random_desc(&random);
        attune_mask *mask = random_mask(&random, &world, &desc, &bound), *first = NULL, *second = NULL;
        const part one = {mask, random_range(&random, mask)};
        cr_assert(attune__mask_slice(mask, &one.range, &first) == ATTUNE_OK, "%s", attune_last_error());
        cr_assert(has_sizes(first, mask, &one.range), "case %d", i);
        cr_assert(oracle_check(first, part_element, &one, true, message), "case %d: %s", i, message);
        cr_assert(first->heads % first->kv_heads == 0);
        /* A slice of a slice, after the whole is gone. */
        const part two = {first, random_range(&random, first)};
        attune__mask_free(mask);
        attune__expr_release(bound.expr);
        cr_assert(attune__mask_slice(first, &two.range, &second) == ATTUNE_OK, "%s", attune_last_error());
        cr_assert(has_sizes(second, first, &two.range), "case %d", i);
        cr_assert(oracle_check(second, part_element, &two, true, message), "case %d: %s", i, message);
        attune__mask_free(second);
        attune__mask_free(first);
    }
}

Test(mask_lists, slice_refuses)
{
    oracle_bound bound;
    cr_assert(oracle_bind(&bound, oracle_parse("q >= kv"), NULL, 0, NULL, 0) == ATTUNE_OK);
    attune_mask_desc desc = oracle_desc(100, 100, 16, 16);
    desc.batch = 2;
    desc.heads = 4;
    attune_mask *mask = NULL, *slice = NULL;
    cr_assert(attune__mask_build(memory, &desc, bound.expr, bound.arrays, bound.values, &mask) == ATTUNE_OK);
    static const struct {
        attune_mask_range range;
        const char *message;
    } cases[] = {
        {{.batch0 = 2}, "range.batch0 is 2, expected 0 to 1"},
        {{.batch0 = -1}, "range.batch0 is -1"},
        {{.batch0 = 1, .batch = 2}, "range.batch is 2, expected 1 to 1"},
        {{.head0 = 1, .heads = INT64_MAX}, "range.heads is 9223372036854775807, expected 1 to 3"},
        {{.heads = -1}, "range.heads is -1"},
        {{.q_block0 = 7}, "range.q_block0 is 7, expected 0 to 6"},
        {{.q_block0 = 3, .q_blocks = 5}, "range.q_blocks is 5, expected 1 to 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert(attune__mask_slice(mask, &cases[i].range, &slice) == ATTUNE_INVALID_ARGUMENT);
        cr_assert(slice == NULL);
        cr_assert(strstr(attune_last_error(), cases[i].message) != NULL, "%s", attune_last_error());
    }
    attune__mask_free(mask);
    attune__expr_release(bound.expr);
}
