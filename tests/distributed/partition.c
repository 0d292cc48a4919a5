/* SPDX-License-Identifier: MIT */
/* Partitions against the lists of the mask, block by block; balance and traffic; arguments and failures. */
#include <attune/distributed.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/devices.h"
#include "support/heap.h"
#include "support/random_expr.h"

static attune_instance *open_instance(void)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    return instance;
}

static attune_mask *make_mask(attune_instance *instance, const char *text, int64_t q_len, int64_t kv_len,
                              const attune_host_capture *capture)
{
    const attune_symbol symbol = {capture ? capture->name : "none", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1};
    attune_expr *expr;
    attune_mask *mask;
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, text, &symbol, capture != NULL, &expr), ATTUNE_OK, "%s",
                 attune_last_error());
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = q_len, .kv_len = kv_len};
    cr_assert_eq(attune_mask_create(instance, &desc, expr, capture, capture != NULL, NULL, 0, &mask), ATTUNE_OK, "%s",
                 attune_last_error());
    attune_expr_destroy(expr);
    return mask;
}

/* ---------------------------------------------------------------------------------------------------- random masks */

/* A random mask of random lengths and blocks; NULL if the expression does not go. */
static attune_mask *draw_mask(attune_instance *instance, uint64_t seed)
{
    static random_expr e;
    uint64_t state = seed;
    random_expr_make(&e, seed, ATTUNE_EXPR_MASK, 12);
    attune_expr *expr;
    attune_mask *mask;
    if (attune_expr_create(instance, e.kind, e.text, e.symbols, e.symbol_count, &expr) != ATTUNE_OK)
        return NULL;
    attune_mask_desc desc = {.struct_size = sizeof desc,
                             .q_block = 16 * (uint32_t)random_expr_between(&state, 1, 3),
                             .kv_block = 16 * (uint32_t)random_expr_between(&state, 1, 3),
                             .batch = random_expr_between(&state, 1, 2),
                             .kv_heads = random_expr_between(&state, 1, 2),
                             .q_len = random_expr_between(&state, 1, 1200)};
    desc.heads = desc.kv_heads * random_expr_between(&state, 1, 2);
    desc.kv_len = random_expr_next(&state) % 3 ? desc.q_len : random_expr_between(&state, 1, 1200);
    const attune_status status =
        attune_mask_create(instance, &desc, expr, e.captures, e.capture_count, e.parameters, e.parameter_count, &mask);
    attune_expr_destroy(expr);
    return status == ATTUNE_OK ? mask : NULL;
}

/* Marks the rank of each position, which must have one; returns the largest number of one rank. */
static int64_t deal_of(const attune_partition *partition, uint32_t ranks, attune_run_kind kind, int64_t length,
                       uint32_t *rank)
{
    int64_t most = 0;
    memset(rank, 0xff, (size_t)length * sizeof *rank);
    for (uint32_t r = 0; r < ranks; r++) {
        const attune_run *runs;
        uint32_t count;
        int64_t last = -1, sum = 0;
        cr_assert_eq(attune_partition_runs(partition, r, kind, &runs, &count), ATTUNE_OK);
        for (uint32_t i = 0; i < count; i++) {
            cr_assert(runs[i].start > last && runs[i].count > 0 && runs[i].start + runs[i].count <= length);
            cr_assert_eq(runs[i].rank, r);
            for (int64_t at = runs[i].start; at < runs[i].start + runs[i].count; at++) {
                cr_assert_eq(rank[at], UINT32_MAX, "position %lld twice", (long long)at);
                rank[at] = r;
            }
            last = runs[i].start + runs[i].count;
            sum += runs[i].count;
        }
        most = sum > most ? sum : most;
    }
    for (int64_t at = 0; at < length; at++)
        cr_assert_neq(rank[at], UINT32_MAX, "nobody has position %lld", (long long)at);
    return most;
}

static bool listed(const attune_mask_lists *l, int64_t row, int64_t column)
{
    for (int64_t i = l->kv_offsets[row]; i < l->kv_offsets[row + 1]; i++)
        if (l->kv_indices[i] == column)
            return true;
    for (int64_t i = l->full_kv_offsets[row]; i < l->full_kv_offsets[row + 1]; i++)
        if (l->full_kv_indices[i] == column)
            return true;
    return false;
}

/* The definition of what a rank needs, and its work. */
static void check_rank(const attune_partition *partition, const attune_mask_lists *l, uint32_t r,
                       const uint32_t *row_of, const uint32_t *key_of, double partial_cost)
{
    static bool need[2048];
    double work = 0;
    memset(need, 0, sizeof need);
    for (int64_t row = 0; row < l->batch * l->heads * l->q_blocks; row++) {
        if (row_of[row % l->q_blocks * l->q_block] != r)
            continue;
        work += l->full_kv_num_blocks[row] + partial_cost * l->kv_num_blocks[row];
        for (int64_t c = 0; c < l->kv_blocks; c++)
            for (int64_t at = c * l->kv_block; at < (c + 1) * l->kv_block && at < l->kv_len; at++)
                need[at] |= key_of[at] != r && listed(l, row, c);
    }
    cr_assert_float_eq(attune_partition_work(partition, r), work, 1e-3 * (1 + work));
    bool rows = false, keys = false;
    for (int64_t at = 0; at < l->q_len; at++)
        rows |= row_of[at] == r;
    for (int64_t at = 0; at < l->kv_len; at++)
        keys |= key_of[at] == r || need[at];
    for (int64_t at = 0; rows && !keys && at < l->kv_block && at < l->kv_len; at++)
        need[at] = true;
    const attune_run *runs;
    uint32_t count;
    int64_t last = -1;
    cr_assert_eq(attune_partition_runs(partition, r, ATTUNE_RUN_NEEDS, &runs, &count), ATTUNE_OK);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert(runs[i].start >= last && runs[i].count > 0);
        for (int64_t at = runs[i].start; at < runs[i].start + runs[i].count; at++) {
            cr_assert(need[at], "rank %u does not need key %lld", r, (long long)at);
            cr_assert_eq(runs[i].rank, key_of[at]);
            need[at] = false;
        }
        last = runs[i].start + runs[i].count;
    }
    for (int64_t at = 0; at < l->kv_len; at++)
        cr_assert_not(need[at], "rank %u needs key %lld", r, (long long)at);
}

static void check_partition(attune_instance *instance, const attune_mask *mask, const attune_partition_desc *desc)
{
    static uint32_t row_of[2048], key_of[2048];
    attune_partition *partition, *again;
    attune_mask_lists l = {.struct_size = sizeof l};
    attune_partition_stats stats = {.struct_size = sizeof stats};
    cr_assert_eq(attune_mask_lists_get(mask, &l), ATTUNE_OK);
    cr_assert_eq(attune_partition_create(instance, desc, mask, &partition), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_partition_stats_get(partition, &stats), ATTUNE_OK);
    cr_assert_eq(stats.chunk % l.q_block + stats.chunk % l.kv_block, 0);
    const int64_t most = deal_of(partition, desc->ranks, ATTUNE_RUN_ROWS, l.q_len, row_of);
    cr_assert_eq(most, stats.most_rows);
    cr_assert_eq(deal_of(partition, desc->ranks, ATTUNE_RUN_KEYS, l.kv_len, key_of), stats.most_keys);
    if (l.q_len == l.kv_len)
        cr_assert_eq(memcmp(row_of, key_of, (size_t)l.q_len * sizeof *row_of), 0);
    const int64_t chunks = (l.q_len + stats.chunk - 1) / stats.chunk;
    const int64_t fair = (chunks + desc->ranks - 1) / desc->ranks;
    if (desc->layout == ATTUNE_LAYOUT_CUT) {
        const int64_t cap = (int64_t)((double)chunks / desc->ranks * desc->most_rows);
        cr_assert_leq(most, stats.chunk * (cap > fair ? cap : fair));
        for (int64_t at = 1; at < l.q_len; at++)
            cr_assert_geq(row_of[at], row_of[at - 1]);
    } else if (desc->layout != ATTUNE_LAYOUT_ZIGZAG) {
        cr_assert_leq(most, stats.chunk * fair);
    }
    for (uint32_t r = 0; r < desc->ranks; r++) {
        check_rank(partition, &l, r, row_of, key_of, stats.partial_cost);
        const attune_run *runs;
        uint32_t count;
        cr_assert_eq(attune_partition_runs(partition, r, ATTUNE_RUN_ROWS, &runs, &count), ATTUNE_OK);
        cr_assert(count || chunks < desc->ranks, "%lld chunks, but rank %u of %u has no rows in layout %d",
                  (long long)chunks, r, desc->ranks, (int)desc->layout);
    }
    /* Any rank computes the same. */
    uint64_t hash[2], same[2];
    cr_assert_eq(attune_partition_create(instance, desc, mask, &again), ATTUNE_OK);
    attune_partition_hash(partition, hash);
    attune_partition_hash(again, same);
    cr_assert(hash[0] == same[0] && hash[1] == same[1]);
    attune_partition_destroy(partition);
    attune_partition_destroy(again);
}

/* Random masks of any lengths, over 1 to 9 ranks, some of which have no row. */
Test(partition, random_masks)
{
    attune_instance *instance = open_instance();
    uint64_t made = 0;
    for (uint64_t i = 0; i < scaled(150); i++) {
        const uint64_t seed = test_seed() * 104729 + i;
        uint64_t state = seed ^ 77;
        attune_mask *mask = draw_mask(instance, seed);
        if (!mask)
            continue;
        attune_mask_lists l = {.struct_size = sizeof l};
        cr_assert_eq(attune_mask_lists_get(mask, &l), ATTUNE_OK);
        attune_partition_desc desc = {.struct_size = sizeof desc,
                                      .ranks = (uint32_t)random_expr_between(&state, 1, 9),
                                      .layout = (attune_layout)random_expr_between(&state, 0, 4)};
        if (desc.layout == ATTUNE_LAYOUT_CUT)
            desc.most_rows = (double)random_expr_between(&state, 2, 8) / 2;
        if (random_expr_next(&state) % 2)
            desc.chunk = (int64_t)l.q_block * l.kv_block / 16 * random_expr_between(&state, 1, 3);
        if (random_expr_next(&state) % 2)
            desc.partial_cost = 1.5;
        check_partition(instance, mask, &desc);
        attune_mask_destroy(mask);
        made++;
    }
    cr_assert(made > 0);
    attune_instance_destroy(instance);
}

/* The engine's own layouts, by hand: 10 blocks on 3 ranks. */
Test(partition, layouts)
{
    static const struct {
        attune_layout layout;
        uint32_t rank[10];
    } expected[] = {
        {ATTUNE_LAYOUT_CONTIGUOUS, {0, 0, 0, 0, 1, 1, 1, 2, 2, 2}},
        {ATTUNE_LAYOUT_ZIGZAG, {0, 0, 1, 1, 2, 2, 2, 2, 1, 0}},
        {ATTUNE_LAYOUT_STRIPED, {0, 1, 2, 0, 1, 2, 0, 1, 2, 0}},
        /* Causal work is 1 to 10, of 55: the best cut has at most 21 = 6 + 7 + 8 of it. */
        {ATTUNE_LAYOUT_CUT, {0, 0, 0, 0, 0, 0, 1, 1, 2, 2}},
    };
    attune_instance *instance = open_instance();
    attune_mask *mask = make_mask(instance, "q >= kv", 10 * 128 - 3, 10 * 128 - 3, NULL);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        uint32_t rank[1280];
        attune_partition *partition;
        const attune_partition_desc desc = {
            .struct_size = sizeof desc, .ranks = 3, .layout = expected[i].layout, .chunk = 128, .partial_cost = 1};
        cr_assert_eq(attune_partition_create(instance, &desc, mask, &partition), ATTUNE_OK, "%s", attune_last_error());
        deal_of(partition, 3, ATTUNE_RUN_ROWS, 10 * 128 - 3, rank);
        for (int64_t block = 0; block < 10; block++)
            cr_expect_eq(rank[block * 128], expected[i].rank[block], "layout %d, block %lld: rank %u",
                         (int)expected[i].layout, (long long)block, rank[block * 128]);
        attune_partition_destroy(partition);
    }
    attune_mask_destroy(mask);
    attune_instance_destroy(instance);
}

/* ------------------------------------------------------------------------------------------------ balance, traffic */

/* Documents of log-normal lengths that fill the sequence. */
static void draw_documents(int32_t *document, int64_t length, int count, uint64_t seed)
{
    double size[64], total = 0, end = 0;
    for (int i = 0; i < count; i++) {
        const double u = (double)(random_expr_next(&seed) >> 11) * 0x1p-53 + 0x1p-60;
        const double angle = 6.283185307179586 * (double)(random_expr_next(&seed) >> 11) * 0x1p-53;
        size[i] = exp(sqrt(-2 * log(u)) * cos(angle));
        total += size[i];
    }
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        end += size[i] / total * (double)length;
        for (; at < length && ((double)at < end || i == count - 1); at++)
            document[at] = i;
    }
}

/* runs: of rows of all ranks; may be NULL. */
static attune_partition_stats stats_of(attune_instance *instance, const attune_mask *mask, attune_layout layout,
                                       uint32_t *runs)
{
    attune_partition_stats stats = {.struct_size = sizeof stats};
    attune_partition *partition;
    const attune_partition_desc desc = {.struct_size = sizeof desc, .ranks = 8, .layout = layout};
    cr_assert_eq(attune_partition_create(instance, &desc, mask, &partition), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_partition_stats_get(partition, &stats), ATTUNE_OK);
    for (uint32_t r = 0; runs && r < stats.ranks; r++) {
        const attune_run *of_rank;
        uint32_t count;
        cr_assert_eq(attune_partition_runs(partition, r, ATTUNE_RUN_ROWS, &of_rank, &count), ATTUNE_OK);
        *runs += count;
    }
    attune_partition_destroy(partition);
    return stats;
}

/* 1,024 blocks on 8 ranks: the most work is within 2 % of the mean, and most keys stay where they are. */
Test(partition, balance)
{
    enum { LENGTH = 131072 };
    attune_instance *instance = open_instance();
    int32_t *document = calloc(LENGTH, sizeof *document);
    cr_assert(document);
    const attune_host_capture capture = {
        "doc", {.data = document, .dtype = ATTUNE_I32, .rank = 1, .size = {LENGTH}, .stride = {1}}};
    double sum = 0, most = 0;
    for (uint64_t i = 0; i < 8; i++) {
        uint32_t runs = 0;
        draw_documents(document, LENGTH, 24, test_seed() + i);
        attune_mask *mask = make_mask(instance, "q >= kv && doc[q] == doc[kv]", LENGTH, LENGTH, &capture);
        const attune_partition_stats contiguous = stats_of(instance, mask, ATTUNE_LAYOUT_CONTIGUOUS, NULL),
                                     balanced = stats_of(instance, mask, ATTUNE_LAYOUT_BALANCED, &runs),
                                     cut = stats_of(instance, mask, ATTUNE_LAYOUT_CUT, NULL);
        cr_log_info("documents %d: contiguous %.3f %.3f, balanced %.3f %.3f (%lld, %u runs), cut %.3f %.3f", (int)i,
                    contiguous.imbalance, contiguous.fetched, balanced.imbalance, balanced.fetched,
                    (long long)balanced.chunk, runs, cut.imbalance, cut.fetched);
        /* 14 cuts, and what swaps add. */
        cr_expect_leq(runs, 32);
        cr_expect_leq(balanced.imbalance, 1.02);
        cr_expect_leq(cut.imbalance, 1.10);
        cr_expect_lt(cut.imbalance, contiguous.imbalance);
        sum += (double)balanced.fetched_keys / (7.0 * LENGTH);
        most += balanced.fetched;
        attune_mask_destroy(mask);
    }
    cr_log_info("fetched, mean: %.3f, of the ranks with most %.3f", sum / 8, most / 8);
    cr_expect_leq(sum / 8, 0.22);
    cr_expect_leq(most / 8, 0.35);
    static const char *const texts[] = {"q >= kv", "q >= kv && q - kv < 4096", "true"};
    for (size_t i = 0; i < 3; i++) {
        attune_mask *mask = make_mask(instance, texts[i], LENGTH, LENGTH, NULL);
        uint32_t runs = 0;
        const attune_partition_stats balanced = stats_of(instance, mask, ATTUNE_LAYOUT_BALANCED, &runs);
        cr_expect_leq(runs, 16);
        cr_log_info("%s: %.3f %.3f", texts[i], balanced.imbalance, balanced.fetched);
        cr_expect_leq(balanced.imbalance, 1.02);
        if (i == 1)
            cr_expect_leq(balanced.fetched, 0.1);
        attune_mask_destroy(mask);
    }
    free(document);
    attune_instance_destroy(instance);
}

/* A few rows with most of the work, others with little and most with none: many swaps among chunks of three works. A
 * look at each pair of chunks for each swap took 13 s. */
Test(partition, many_swaps, .timeout = 60)
{
    enum { LENGTH = 1 << 20 };
    attune_instance *instance = open_instance();
    attune_mask *mask = make_mask(instance, "q > 1046000 || kv == q && q % 1024 < 128", LENGTH, LENGTH, NULL);
    attune_partition *partition;
    attune_partition_stats stats = {.struct_size = sizeof stats};
    const attune_partition_desc desc = {.struct_size = sizeof desc, .ranks = 2};
    cr_assert_eq(attune_partition_create(instance, &desc, mask, &partition), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_partition_stats_get(partition, &stats), ATTUNE_OK);
    cr_expect_leq(stats.imbalance, 1.05);
    attune_partition_destroy(partition);
    attune_mask_destroy(mask);
    attune_instance_destroy(instance);
}

/* ----------------------------------------------------------------------------------------------- arguments, failures
 */

Test(partition, arguments)
{
    attune_instance *instance = open_instance();
    attune_mask *mask = make_mask(instance, "q >= kv", 1000, 1000, NULL);
    attune_partition *partition;
    static const struct {
        attune_partition_desc desc;
        const char *word;
    } bad[] = {
        {{.ranks = 0}, "ranks"},
        {{.ranks = ATTUNE_MAX_RANKS + 1}, "ranks"},
        {{.ranks = 2, .layout = (attune_layout)5}, "layout"},
        {{.ranks = 2, .chunk = 100}, "chunk"},
        {{.ranks = 2, .chunk = -128}, "chunk"},
        {{.ranks = 2, .partial_cost = -1}, "partial_cost"},
        {{.ranks = 2, .partial_cost = NAN}, "partial_cost"},
        {{.ranks = 2, .most_rows = 2}, "most_rows"},
        {{.ranks = 2, .layout = ATTUNE_LAYOUT_CUT, .most_rows = 0.5}, "most_rows"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        attune_partition_desc desc = bad[i].desc;
        desc.struct_size = sizeof desc;
        cr_expect_eq(attune_partition_create(instance, &desc, mask, &partition), ATTUNE_INVALID_ARGUMENT);
        cr_expect(strstr(attune_last_error(), bad[i].word), "%s", attune_last_error());
        cr_expect_null(partition);
    }
    const attune_partition_desc good = {.struct_size = sizeof good, .ranks = 2};
    cr_expect_eq(attune_partition_create(NULL, &good, mask, &partition), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_partition_create(instance, &good, NULL, &partition), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_partition_create(instance, &good, mask, NULL), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune_partition_create(instance, &good, mask, &partition), ATTUNE_OK);
    const attune_run *runs;
    uint32_t count;
    cr_expect_eq(attune_partition_runs(partition, 2, ATTUNE_RUN_ROWS, &runs, &count), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_partition_runs(partition, 0, (attune_run_kind)4, &runs, &count), ATTUNE_INVALID_ARGUMENT);
    attune_partition_destroy(partition);
    attune_partition_destroy(NULL);
    attune_mask_destroy(mask);
    attune_instance_destroy(instance);
}

/* Every allocation fails once: an error, and nothing is lost. */
Test(partition, out_of_memory)
{
    for (long long at = 1;; at++) {
        heap memory = {0};
        const attune_instance_desc instance_desc = {.struct_size = sizeof instance_desc,
                                                    .allocator = heap_allocator(&memory)};
        attune_instance *instance;
        cr_assert_eq(attune_instance_create(&instance_desc, &instance), ATTUNE_OK);
        attune_mask *mask = make_mask(instance, "q >= kv", 3000, 2000, NULL);
        attune_partition *partition;
        const attune_partition_desc desc = {.struct_size = sizeof desc, .ranks = 4};
        memory.fail_at = memory.allocations + at;
        const attune_status status = attune_partition_create(instance, &desc, mask, &partition);
        memory.fail_at = 0;
        attune_partition_destroy(partition);
        attune_mask_destroy(mask);
        attune_instance_destroy(instance);
        cr_expect_eq(memory.live, 0);
        if (status == ATTUNE_OK) {
            cr_assert_gt(at, 8);
            break;
        }
        cr_assert_eq(status, ATTUNE_OUT_OF_HOST_MEMORY, "%s", attune_last_error());
    }
}
