/* SPDX-License-Identifier: MIT */
/*
 * Calls over a cache: ragged batches against the oracle, a sequence at a time, from pools that hold NaN wherever no key
 * is, and once more with every page elsewhere, which must give the same bits.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/served.h"
#include "support/devices.h"
#include "tests/oracle/reference.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

#define CANARY (-77.0)

/* Prompts, chunks of prompts and single queries; no key, no row, more rows than keys. */
static const int64_t mix[][2] = {{1, 130}, {70, 70}, {33, 301}, {1, 1},   {0, 40},
                                 {5, 0},   {9, 4},   {1, 257},  {17, 90}, {-1}};
static const int64_t decode[][2] = {{1, 700}, {1, 33}, {1, 64}, {1, 129}, {1, 5}, {-1}};
static const int64_t drafts[][2] = {{7, 200}, {40, 140}, {1, 65}, {7, 7}, {-1}};
static const int64_t even[][2] = {{3, 100}, {3, 3}, {3, 77}, {3, 0}, {3, 128}, {-1}};

/* Several splits; the first has the most keys. */
static const int64_t longer[][2] = {{1, 1500}, {5, 700}, {70, 900}, {1, 300}, {1, 40},
                                    {0, 600},  {3, 513}, {1, 1024}, {1, 257}, {-1}};

/* Of lengths that differ, so that there are more parts than run at once. */
static const int64_t ragged[][2] = {{1, 2900}, {1, 40},  {2, 1900}, {1, 700},  {1, 2500}, {1, 1},
                                    {1, 1300}, {2, 600}, {0, 9},    {1, 2100}, {-1}};

/* As few as have several splits. */
static const int64_t few[][2] = {{1, 600}, {2, 520}, {1, 9}, {-1}};

/* A prefix of some parts, of single queries and a few, of a sequence without rows and one that has too many for a tile.
 */
static const int64_t prompted[][2] = {{1, 1300}, {1, 1250},  {2, 1290}, {0, 1200}, {1, 1100}, {3, 1031}, {1, 900},
                                      {1, 1024}, {40, 1300}, {1, 1026}, {1, 1400}, {1, 5},    {-1}};
static const int64_t prompted_even[][2] = {{2, 1100}, {2, 1300}, {2, 1050}, {2, 700}, {2, 3}, {-1}};

#define CAUSAL   "q >= kv"
#define NO_SCORE "h % 2 == 0 ? -1.0 / 0.0 : score" /* all of every other head are -inf */

static const serving_case cases[] = {
    {"pages_16", 4, 2, 64, 64, 16, CAUSAL, NULL, 0, mix, NULL, 0, 0, 0},
    {"pages_1", 4, 4, 64, 64, 1, CAUSAL, NULL, LIST, mix, NULL, 0, 0, 0},
    {"pages_5", 6, 2, 40, 72, 5, CAUSAL, "score + slope[h] * (kv - q)", TOKENS, mix, NULL, 0, 0, 0},
    {"pages_256", 2, 1, 128, 128, 256, CAUSAL, "20 * tanh(score / 20)", BESIDE, mix, NULL, 0, 0, 0},
    {"one_page", 4, 2, 64, 64, 0, CAUSAL, NULL, 0, mix, NULL, 0, 0, 0},
    {"no_mask", 3, 1, 32, 32, 32, NULL, NULL, TOKENS, mix, NULL, 0, 0, 0},
    {"window", 4, 2, 64, 64, 16, "q >= kv && q - kv < 40", NULL, FIRST | LIST, mix, NULL, 0, 0, 0},
    {"lengths", 2, 2, 64, 64, 8, "kv < kv_len / 2 || kv_len - q_len == kv",
     "score * 0.5 + q_len * 0.01 * (kv - kv_len)", 0, mix, NULL, 0, 0, 0},
    {"rows", 2, 2, 64, 64, 8, "depth[row] >= kv % 7", "score + depth[row] * slope[h]", 0, mix, NULL, 0, 0, 0},
    {"by_sequence", 2, 2, 64, 64, 8, "kv % (b + 2) != 1", "score + slope[h] * b", 0, mix, NULL, 0, 0, 0},
    {"group_5", 10, 2, 80, 80, 16, CAUSAL, NULL, 0, decode, NULL, 0, 0, 0},
    {"group_6", 6, 1, 96, 96, 16, CAUSAL, NULL, SINKS, decode, NULL, 0, 0, 0},
    {"group_7", 28, 4, 112, 112, 7, CAUSAL, NULL, LIST, decode, NULL, 0, 0, 0},
    {"group_16", 16, 1, 64, 64, 16, NULL, NULL, SHARED, decode, NULL, 0, 0, 0},
    {"group_64", 64, 1, 72, 72, 16, CAUSAL, NULL, SINKS, decode, NULL, 0, 0, 0},
    {"group_3", 6, 2, 64, 64, 64, "kv + 100 > q", NULL, FIRST | SINKS, decode, NULL, 0, 0, 0},
    {"sinks", 4, 2, 64, 64, 16, "q >= kv && q - kv < 30", NULL, SINKS | FIRST, mix, NULL, 0, 0, 0},
    {"head_192_128", 4, 1, 192, 128, 16, CAUSAL, NULL, 0, mix, NULL, 0, 0, 0},
    {"head_320_256", 4, 2, 320, 256, 16, CAUSAL, NULL, 0, decode, NULL, 0, 0, 0},
    {"head_512", 2, 1, 512, 512, 16, CAUSAL, NULL, 0, decode, NULL, 0, 0, 0},
    {"absorbed", 16, 1, 576, 512, 64, CAUSAL, NULL, VIEW, decode, NULL, 0, 0, 0},
    {"absorbed_mix", 4, 1, 576, 512, 16, CAUSAL, NULL, VIEW | LIST, drafts, NULL, 0, 0, 0},
    {"absorbed_heads", 64, 1, 576, 512, 16, CAUSAL, NULL, VIEW, decode, NULL, 0, 0, 0},
    {"absorbed_apart", 32, 1, 576, 512, 5, CAUSAL, NULL, FIRST, decode, NULL, 0, 0, 0},
    {"ragged", 8, 2, 64, 64, 16, CAUSAL, NULL, SINKS, ragged, NULL, 0, 0, 0},
    {"ragged_window", 4, 2, 40, 72, 5, "q >= kv && q - kv < 900", NULL, FIRST | LIST | HOLES, ragged, NULL, 0, 0, 0},
    {"tree", 4, 2, 64, 64, 16, NULL, NULL, TREE, drafts, NULL, 0, 0, 0},
    {"tree_window", 4, 2, 64, 64, 16, "q - kv < 60", NULL, TREE | SINKS | FIRST, drafts, NULL, 0, 0, 0},
    {"tree_uniform", 4, 2, 64, 64, 16, CAUSAL, NULL, TREE | UNIFORM, even, NULL, 0, 0, 0},
    {"uniform", 4, 2, 64, 64, 16, CAUSAL, NULL, UNIFORM, even, NULL, 0, 0, 0},
    {"uniform_one_page", 4, 1, 64, 64, 0, "q >= kv && row % 4 != kv % 4", NULL, UNIFORM, even, NULL, 0, 0, 0},
    {"count", 4, 2, 64, 64, 16, CAUSAL, NULL, COUNT, mix, NULL, 0, 0, 0},
    {"holes", 4, 2, 64, 64, 4, CAUSAL, NULL, HOLES, mix, NULL, 0, 0, 0},
    {"holes_no_mask", 4, 2, 64, 64, 4, NULL, NULL, HOLES | LIST, mix, NULL, 0, 0, 0},
    {"shared", 4, 2, 64, 64, 16, CAUSAL, NULL, SHARED | LIST, mix, NULL, 0, 0, 0},
    {"small_tile", 4, 2, 64, 64, 8, CAUSAL, NULL, 0, mix, "{\"BLOCK_M\": 16, \"BLOCK_N\": 16}", 0, 0, 0},
    {"f16_keys", 4, 2, 64, 64, 16, CAUSAL, NULL, 0, mix, NULL, ATTUNE_F16, 0, 0},
    {"e4m3", 4, 2, 64, 64, 16, CAUSAL, NULL, 0, mix, NULL, ATTUNE_F8E4M3, 0, 1},
    {"e5m2", 8, 1, 128, 128, 16, CAUSAL, NULL, LIST | SINKS, decode, NULL, ATTUNE_F8E5M2, 0, 2},
    {"e4m3_e5m2", 4, 4, 40, 24, 7, "q >= kv && q - kv < 40", NULL, FIRST, mix, NULL, ATTUNE_F8E4M3, ATTUNE_F8E5M2, 3},
    {"i8", 4, 2, 64, 64, 16, CAUSAL, "20 * tanh(score / 20)", TOKENS, mix, NULL, ATTUNE_I8, 0, 3},
    {"i8_f16", 6, 2, 96, 96, 1, CAUSAL, NULL, 0, decode, NULL, ATTUNE_I8, ATTUNE_F16, 2},
    {"q8_0", 4, 2, 64, 64, 16, CAUSAL, NULL, 0, mix, NULL, ATTUNE_Q8_0, 0, 0},
    {"q8_0_one_page", 8, 2, 128, 128, 0, CAUSAL, NULL, SINKS, decode, NULL, ATTUNE_Q8_0, 0, 0},
    {"q8_0_q4_0", 4, 2, 128, 64, 16, CAUSAL, NULL, TOKENS | HOLES, mix, NULL, ATTUNE_Q8_0, ATTUNE_Q4_0, 0},
    {"q4_0", 8, 2, 64, 64, 16, "q >= kv && q - kv < 50", NULL, LIST, mix, NULL, ATTUNE_Q4_0, 0, 0},
    {"q4_0_f32", 2, 2, 32, 40, 5, NULL, NULL, 0, drafts, NULL, ATTUNE_Q4_0, ATTUNE_F32, 0},
    {"absorbed_e4m3", 16, 1, 576, 512, 64, CAUSAL, NULL, VIEW, decode, NULL, ATTUNE_F8E4M3, 0, 3},
    {"bf16_keys", 8, 1, 128, 128, 16, CAUSAL, NULL, 0, decode, NULL, ATTUNE_BF16, 0, 0},
    {"split", 4, 2, 64, 64, 16, CAUSAL, NULL, SPLIT, longer, NULL, 0, 0, 0},
    {"split_window", 4, 2, 64, 64, 16, "q >= kv && q - kv < 300", NULL, SPLIT | FIRST | SINKS | LIST, longer, NULL, 0,
     0, 0},
    {"split_alibi", 8, 2, 40, 24, 5, CAUSAL, "score + slope[h] * (kv - q)", SPLIT | HOLES, longer,
     "{\"BLOCK_M\": 16, \"BLOCK_N\": 16}", 0, 0, 0},
    {"split_q8_0", 4, 1, 64, 64, 16, NULL, NULL, SPLIT | COUNT, longer, NULL, ATTUNE_Q8_0, 0, 0},
    {"prefix", 4, 2, 64, 64, 256, CAUSAL, NULL, SHARED | PREFIX, longer, NULL, 0, 0, 0},
    {"prefix_split", 8, 2, 64, 64, 256, "q >= kv && q - kv < 600", NULL, SHARED | PREFIX | SPLIT | SINKS, longer, NULL,
     0, 0, 0},
    {"prefix_e5m2", 6, 2, 64, 40, 256, CAUSAL, NULL, SHARED | PREFIX | LIST, decode, NULL, ATTUNE_F8E5M2, 0, 1},
    {"rows_before_keys", 2, 1, 32, 32, 8, "q % 3 != 1", "score + q / 2 * 0.25", 0, mix, NULL, 0, 0, 0},
    {"e5m2_infinite", 8, 4, 32, 40, 16, NULL, NULL, INFINITE, even, NULL, ATTUNE_F8E5M2, 0, 0},
    {"q8_0_nan", 8, 4, 32, 32, 16, NULL, NULL, NAN_BITS, mix, NULL, ATTUNE_Q8_0, 0, 0},
    {"sinks_nan", 4, 2, 64, 64, 16, "q >= kv && q - kv < 100", NO_SCORE, SINKS | NAN_V, mix, NULL, 0, 0, 0},
    {"split_sinks_nan", 4, 2, 64, 64, 16, NULL, NO_SCORE, SPLIT | SINKS | NAN_V, longer, NULL, 0, 0, 0},
    {"split_no_sinks_nan", 4, 2, 64, 64, 16, NULL, NO_SCORE, SPLIT | NAN_V, longer, NULL, 0, 0, 0},
    {"split_i8", 4, 2, 64, 64, 16, CAUSAL, NULL, SPLIT | LIST, longer, NULL, ATTUNE_I8, 0, 3},
    {"split_e4m3_f16", 8, 2, 40, 24, 5, CAUSAL, NULL, SPLIT | FIRST, longer, NULL, ATTUNE_F8E4M3, ATTUNE_F16, 2},
    {"split_few", 2, 1, 16, 16, 8, CAUSAL, NULL, SPLIT | SINKS | LIST, few, NULL, 0, 0, 0},
    {"gather", 4, 2, 64, 64, 1024, CAUSAL, NULL, GATHER | SHARED | PREFIX, prompted, NULL, 0, 0, 0},
    {"gather_split", 8, 2, 64, 40, 1024, "q >= kv && (q - kv < 700 || kv < 9)", "score + slope[h] * (kv - q)",
     GATHER | SHARED | PREFIX | SPLIT | SINKS | LIST, prompted, NULL, 0, 0, 0},
    {"gather_rows", 4, 4, 32, 32, 1024, "(kv + depth[row]) % (b + 2) != 1", "score + depth[row] * slope[h] + 0.01 * b",
     GATHER | SHARED | PREFIX | SPLIT | COUNT, prompted, NULL, 0, 0, 0},
    {"gather_tree", 4, 2, 64, 64, 1024, NULL, NULL, GATHER | SHARED | PREFIX | SPLIT | TREE | UNIFORM, prompted_even,
     NULL, 0, 0, 0},
    {"gather_uniform", 6, 2, 64, 64, 1024, "q >= kv && row % 4 != kv % 4", NULL, GATHER | SHARED | PREFIX | UNIFORM,
     prompted_even, NULL, 0, 0, 0},
    {"gather_q8_0", 4, 1, 64, 64, 1024, CAUSAL, NULL, GATHER | SHARED | PREFIX | SPLIT | LIST, prompted, NULL,
     ATTUNE_Q8_0, 0, 0},
    {"gather_e4m3", 8, 2, 128, 128, 1024, CAUSAL, "20 * tanh(score / 20)", GATHER | SHARED | PREFIX, prompted, NULL,
     ATTUNE_F8E4M3, 0, 2},
    {"gather_first", 4, 2, 64, 64, 1024, CAUSAL, NULL, GATHER | SHARED | PREFIX | SPLIT | FIRST | NAN_V, prompted, NULL,
     0, 0, 0},
    {"gather_nan", 4, 2, 64, 64, 1024, "q >= kv && kv > b % 2 * 100", NULL, GATHER | SHARED | PREFIX | SPLIT | NAN_V,
     prompted_even, NULL, 0, 0, 0},
    {"wide_least", 2, 1, 272, 272, 16, NULL, "score + (kv < 130 && kv + 4 < q ? -3.4e38 : 0.0)", 0, decode, NULL, 0, 0,
     0},
    {"forbidden", 4, 2, 32, 32, 16, CAUSAL, "score + (kv < 130 && kv + 4 < q ? -1e9 : 0.0)", 0, mix, NULL, 0, 0, 0},
    {"wide_forbidden", 2, 1, 272, 272, 16, NULL, "score + (kv < 130 && kv + 4 < q ? -1e9 : 0.0)", 0, decode, NULL, 0, 0,
     0},
    {"gather_least", 2, 1, 32, 32, 1024, CAUSAL, "score + (b % 2 == 1 && kv < 700 && kv + 4 < q ? -3.4e38 : 0.0)",
     GATHER | SHARED | PREFIX | SPLIT, prompted, NULL, 0, 0, 0},
    {"split_forbidden", 4, 1, 32, 32, 16, CAUSAL, "score + (h % 2 == 1 && kv < 500 && kv + 4 < q ? -1e9 : 0.0)", SPLIT,
     few, NULL, 0, 0, 0},
    {"gather_forbidden", 2, 1, 32, 32, 1024, CAUSAL, "score + (b % 2 == 1 && kv < 700 && kv + 4 < q ? -1e9 : 100.0)",
     GATHER | SHARED | PREFIX | SPLIT, prompted, NULL, 0, 0, 0},
    {"wide_forbidden_by_more", 2, 1, 272, 272, 16, NULL, "score + (kv < 130 && kv + 4 < q ? -1e10 : 0.0)", 0, decode,
     NULL, 0, 0, 0},
    {"prompt", 4, 2, 64, 64, 32, CAUSAL, NULL, 0, longer, NULL, 0, 0, 0},
    {"prompt_256", 4, 2, 256, 256, 16, CAUSAL, NULL, HOLES, longer, NULL, 0, 0, 0},
    {"prompt_window", 4, 1, 128, 128, 64, "q >= kv && q - kv < 400", NULL, FIRST | SINKS | LIST, longer, NULL, 0, 0, 0},
    {"prompt_tree", 4, 2, 64, 64, 16, NULL, NULL, TREE, drafts, NULL, 0, 0, 0},
    {"prompt_192", 2, 1, 192, 192, 16, CAUSAL, "score + slope[h] * (kv - q)", 0, longer, NULL, 0, 0, 0},
    {"prompt_pairs", 4, 2, 96, 96, 32, "depth[row] >= kv % 7", NULL, TOKENS, longer, NULL, 0, 0, 0},
    {"latent_f32", 16, 1, 576, 512, 64, CAUSAL, NULL, VIEW, mix, NULL, 0, 0, 0},
    {"latent_prompt", 16, 1, 576, 512, 64, CAUSAL, NULL, VIEW | SINKS, mix, NULL, 0, 0, 0},
    {"latent_tree", 8, 1, 576, 512, 16, NULL, NULL, VIEW | TREE, drafts, NULL, 0, 0, 0},
    {"wide_f32", 4, 2, 512, 512, 16, CAUSAL, NULL, SPLIT, few, NULL, 0, 0, 0},
    {"latent_window", 24, 1, 576, 512, 5, "q >= kv && q - kv < 100", NULL, VIEW | FIRST | HOLES, mix, NULL, 0, 0, 0},
    {"latent_parts", 32, 1, 576, 512, 16, CAUSAL, NULL, VIEW | SINKS | LIST, few, NULL, 0, 0, 0},
    {"latent_one", 2, 1, 576, 512, 1, NULL, NULL, VIEW, decode, NULL, 0, 0, 0},
    {"wide_384", 48, 2, 448, 384, 16, CAUSAL, NULL, SINKS, few, NULL, 0, 0, 0},
    {"wide_nan", 8, 1, 512, 512, 5, "q >= kv && q - kv < 100", NULL, NAN_V, mix, NULL, 0, 0, 0},
};

/* Whether kernels may have rows of several sequences in a tile. */
static bool gathers(const serving_case *c)
{
    return !(c->options && strstr(c->options, "_decode"));
}

static attune_expr *parse(attune_instance *instance, attune_expr_kind kind, const char *text)
{
    static const attune_symbol symbols[] = {
        {"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},       {"depth", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
        {"seen", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 2},       {"position", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
        {"first_row", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
    };
    attune_expr *expr = NULL;
    if (text)
        OK(attune_expr_create(instance, kind, text, symbols, sizeof symbols / sizeof symbols[0], &expr));
    return expr;
}

/* row by its definition. */
static void without_row(const char *text, char *out, size_t size)
{
    size_t used = 0;
    for (const char *c = text; *c && used + 40 < size; c++)
        if (!strncmp(c, "row", 3)) {
            used += (size_t)snprintf(out + used, size - used, "(q - position + first_row)");
            c += 2;
        } else
            out[used++] = *c;
    out[used] = '\0';
}

/* Whether a row of a sequence sees a key, but for the mask expression. */
static bool sees(const served *s, int64_t b, int64_t i, int64_t kv)
{
    const int64_t draft = kv - (s->kv_len[b] - s->q_len[b]);
    if (kv < s->first[b] || (s->c->page && s->hole[s->entry0[b] + kv / s->c->page]))
        return false;
    if (!(s->c->flags & TREE) || draft < 0)
        return true;
    const uint32_t *words = (const uint32_t *)s->tree.data + (s->row0[b] + i) * s->words;
    return draft < 32 * s->words && (words[draft / 32] >> draft % 32 & 1);
}

/* Results of all rows, ordered by sequence, head, row. */
typedef struct results {
    double *o, *lse, *row_max, *moved;
} results;

static results results_create(const served *s)
{
    const int64_t rows = s->tokens * s->c->heads, dv = s->c->dv;
    double *all = calloc((size_t)(rows * (2 * dv + 2) + 1), sizeof *all);
    cr_assert(all);
    return (results){all, all + rows * dv, all + rows * (dv + 1), all + rows * (dv + 2)};
}

static void oracle(attune_instance *instance, const served *s, reference_precision precision, results *out)
{
    const serving_case *c = s->c;
    failure why;
    char mask[512], score[512], all[600];
    without_row(c->mask ? c->mask : "true", mask, sizeof mask);
    without_row(c->score ? c->score : "", score, sizeof score);
    snprintf(all, sizeof all, "(%s) && seen[q - position, kv]", mask);
    attune_expr *mask_expr = parse(instance, ATTUNE_EXPR_MASK, all);
    attune_expr *score_expr = parse(instance, ATTUNE_EXPR_SCORE, c->score ? score : NULL);
    for (int64_t b = 0; b < s->sequences; b++) {
        const int64_t base = s->row0[b] * c->heads, rows = s->q_len[b] * c->heads;
        if (!served_live(s, b))
            continue;
        if (!s->kv_len[b]) {
            for (int64_t i = 0; i < rows; i++) {
                out->lse[base + i] = c->flags & SINKS ? array_get(&s->sinks, i / s->q_len[b]) : -INFINITY;
                out->row_max[base + i] = -INFINITY;
            }
            continue;
        }
        attention a = {.o_dtype = s->dtype,
                       .k = s->k[b],
                       .v = s->v[b],
                       .scale = 1 / sqrt((double)c->d),
                       .b0 = b,
                       .q0 = s->kv_len[b] - s->q_len[b],
                       .mask = mask_expr,
                       .score = score_expr};
        array seen;
        cr_assert(array_create(&a.q, s->dtype, 4, (int64_t[]){1, c->heads, s->q_len[b], c->d}, &why) &&
                  array_create(&seen, ATTUNE_BOOL, 2, (int64_t[]){s->q_len[b], s->kv_len[b]}, &why));
        for (int64_t h = 0; h < c->heads; h++)
            for (int64_t i = 0; i < s->q_len[b]; i++)
                for (int64_t j = 0; j < c->d; j++)
                    array_set(&a.q, (h * s->q_len[b] + i) * c->d + j,
                              array_get(&s->q, ((s->row0[b] + i) * c->heads + h) * c->d + j));
        for (int64_t i = 0; i < s->q_len[b]; i++)
            for (int64_t kv = 0; kv < s->kv_len[b]; kv++)
                array_set(&seen, i * s->kv_len[b] + kv, sees(s, b, i, kv));
        if (c->flags & SINKS)
            a.sinks = s->sinks;
        a.captures[a.capture_count++] = (attune_host_capture){"slope", array_view(&s->slope)};
        a.captures[a.capture_count++] = (attune_host_capture){"depth", array_view(&s->depth)};
        a.captures[a.capture_count++] = (attune_host_capture){"seen", array_view(&seen)};
        a.parameters[a.parameter_count++] = (attune_parameter){"position", (double)a.q0};
        a.parameters[a.parameter_count++] = (attune_parameter){"first_row", (double)s->row0[b]};
        const reference_result r = {out->o + base * c->dv, out->lse + base, out->row_max + base,
                                    precision == REFERENCE_ORACLE && s->dtype != ATTUNE_F64 ? out->moved + base * c->dv
                                                                                            : NULL};
        cr_assert(reference_compute(&a, precision, NULL, 0, &r, &why), "%s: %s", c->name, why.message);
        array_free(&a.q);
        array_free(&seen);
    }
    attune_expr_destroy(mask_expr);
    attune_expr_destroy(score_expr);
}

/* A buffer of CANARY for an output of [tokens + 3, heads, columns]; the rows begin at the second. */
static attune_tensor output(attune_device *device, const served *s, attune_dtype dtype, int64_t columns)
{
    failure why;
    array a;
    const int64_t heads = s->c->heads;
    cr_assert(array_create(&a, dtype, 3, (int64_t[]){s->tokens + 3, heads, columns}, &why));
    for (int64_t i = 0; i < array_count(&a); i++)
        array_set(&a, i, CANARY);
    attune_tensor t = {.buffer = served_upload(device, a.data, (uint64_t)array_count(&a) * attune_dtype_size(dtype)),
                       .offset = (uint64_t)(heads * columns) * attune_dtype_size(dtype),
                       .dtype = dtype,
                       .rank = columns > 1 ? 3 : 2,
                       .size = {s->tokens, heads, columns},
                       .stride = {heads * columns, columns, 1}};
    if (s->c->flags & UNIFORM) {
        const int64_t rows = s->q_len[0];
        t.rank++;
        memcpy(t.size, (int64_t[]){s->sequences, heads, rows, columns}, sizeof t.size);
        memcpy(t.stride, (int64_t[]){rows * heads * columns, columns, heads * columns, 1}, sizeof t.stride);
    }
    array_free(&a);
    return t;
}

/* In the order of results; rows that no live sequence has must be CANARY still, and are 0 then. */
static void collect(const served *s, const attune_tensor *t, int64_t columns, double *out)
{
    failure why;
    array a;
    const int64_t heads = s->c->heads;
    cr_assert(array_create(&a, t->dtype, 3, (int64_t[]){s->tokens + 3, heads, columns}, &why));
    OK(attune_buffer_read(t->buffer, 0, a.data, (uint64_t)array_count(&a) * attune_dtype_size(t->dtype)));
    for (int64_t b = 0; b < s->sequences; b++)
        for (int64_t i = 0; i < s->q_len[b]; i++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t j = 0; j < columns; j++) {
                    const int64_t at = ((s->row0[b] + i + 1) * heads + h) * columns + j;
                    double *to = &out[((s->row0[b] * heads) + h * s->q_len[b] + i) * columns + j];
                    *to = served_live(s, b) ? array_get(&a, at) : 0;
                    if (served_live(s, b))
                        array_set(&a, at, CANARY);
                }
    for (int64_t i = 0; i < array_count(&a); i++)
        cr_assert_eq(array_get(&a, i), CANARY, "%s: element %lld outside of the batch was written", s->c->name,
                     (long long)i);
    array_free(&a);
}

static void compute(attune_instance *instance, attune_device *device, const served *s, uint64_t seed, results *out)
{
    const serving_case *c = s->c;
    const attune_dtype real = s->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    attune_expr *mask = parse(instance, ATTUNE_EXPR_MASK, c->mask),
                *score = parse(instance, ATTUNE_EXPR_SCORE, c->score);
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = s->dtype,
                                    .kv_dtype = s->k_dtype,
                                    .v_dtype = s->v_dtype,
                                    .head_dim = (uint32_t)c->d,
                                    .head_dim_v = (uint32_t)c->dv,
                                    .batch = s->sequences,
                                    .heads = c->heads,
                                    .kv_heads = c->kv_heads,
                                    .q_len = s->most_rows,
                                    .kv_len = s->most_keys,
                                    .mask = mask,
                                    .score = score,
                                    .lse = true,
                                    .row_max = true,
                                    .sinks = c->flags & SINKS,
                                    .tokens = s->tokens,
                                    .page = c->page,
                                    .tree = c->flags & TREE,
                                    .split_keys = c->flags & SPLIT ? 256 : 0,
                                    .shared_sequences = c->flags & GATHER && gathers(c) ? (uint32_t)s->sequences : 0};
    attune_kernel_options options = {.struct_size = sizeof options};
    if (c->options)
        OK(attune_kernel_options_parse(c->options, &options));
    attune_plan *plan;
    OK(attune_plan_create(device, &problem, &options, &plan));
    served_pool p = served_place(device, s, seed);
    int32_t start[SEQUENCES_MAX + 1], lengths[SEQUENCES_MAX], first[SEQUENCES_MAX], shared[SEQUENCES_MAX] = {0};
    for (int64_t b = 0; b < s->sequences; b++) {
        start[b] = (int32_t)s->row0[b];
        lengths[b] = (int32_t)s->kv_len[b];
        first[b] = (int32_t)s->first[b];
        for (int64_t i = b - 1; b && i <= b && (i == b - 1 || shared[b]); i++) {
            const int64_t most = s->kv_len[i] < c->page ? s->kv_len[i] : c->page;
            shared[b] = (int32_t)(i == b - 1 || most < shared[b] ? most : shared[b]);
        }
    }
    start[s->sequences] = (int32_t)s->tokens;
    const int32_t count = (int32_t)s->live;
    const attune_cache cache = {.struct_size = sizeof cache,
                                .k = p.k,
                                .v = p.v,
                                .pages = p.pages,
                                .pages_start = p.pages_start,
                                .k_scale = p.k_scale,
                                .v_scale = p.v_scale};
    attune_batch batch = {.struct_size = sizeof batch, .kv_len = served_integers(device, lengths, 1, s->sequences, 0)};
    if (!(c->flags & UNIFORM))
        batch.q_start = served_integers(device, start, 1, s->sequences + 1, 0);
    if (c->flags & FIRST)
        batch.kv_first = served_integers(device, first, 1, s->sequences, 0);
    if (c->flags & PREFIX)
        batch.shared = served_integers(device, shared, 1, s->sequences, 0);
    if (c->flags & COUNT)
        batch.count = served_integers(device, &count, 1, 1, 0);
    if (c->flags & TREE) {
        batch.tree = served_integers(device, s->tree.data, 2, s->tokens, s->words);
        if (c->flags & UNIFORM) {
            batch.tree.rank = 3;
            memcpy(batch.tree.size, (int64_t[]){s->sequences, s->q_len[0], s->words, 0}, sizeof batch.tree.size);
        }
    }
    const attune_capture captures[] = {
        {"slope",
         {.buffer = served_upload(device, s->slope.data, (uint64_t)c->heads * 4),
          .dtype = ATTUNE_F32,
          .rank = 1,
          .size = {c->heads}}},
        {"depth", served_integers(device, s->depth.data, 1, s->tokens, 0)},
    };
    attune_forward_args args = {.struct_size = sizeof args,
                                .o = output(device, s, s->dtype, c->dv),
                                .lse = output(device, s, real, 1),
                                .row_max = output(device, s, real, 1),
                                .captures = captures,
                                .capture_count = 2,
                                .cache = &cache,
                                .batch = &batch};
    args.q = (attune_tensor){
        .buffer = served_upload(device, s->q.data, (uint64_t)array_count(&s->q) * attune_dtype_size(s->dtype)),
        .dtype = s->dtype,
        .rank = 3,
        .size = {s->tokens, c->heads, c->d}};
    if (c->flags & UNIFORM) {
        const int64_t rows = s->q_len[0];
        args.q.rank = 4;
        memcpy(args.q.size, (int64_t[]){s->sequences, c->heads, rows, c->d}, sizeof args.q.size);
        memcpy(args.q.stride, (int64_t[]){rows * c->heads * c->d, c->d, c->heads * c->d, 1}, sizeof args.q.stride);
    }
    if (c->flags & SINKS)
        args.sinks = (attune_tensor){
            .buffer = served_upload(device, s->sinks.data, (uint64_t)c->heads * attune_dtype_size(real)),
            .dtype = real,
            .rank = 1,
            .size = {c->heads}};
    const uint64_t bytes = attune_plan_workspace_size(plan);
    if (bytes)
        OK(attune_buffer_create(device, bytes, &args.workspace));
    /* Without a schedule a call computes its own. */
    attune_completion completion;
    const uint64_t schedule_bytes = seed % 2 ? 0 : attune_plan_schedule_size(plan);
    if (schedule_bytes) {
        OK(attune_buffer_create(device, schedule_bytes, &args.schedule));
        OK(attune_schedule(plan, attune_device_queue(device), &args, &completion));
    }
    /* Another layer finds it as the first did. */
    if (schedule_bytes) {
        attune_forward_args layer = args;
        layer.o = output(device, s, s->dtype, c->dv);
        OK(attune_forward(plan, attune_device_queue(device), &layer, &completion));
        OK(attune_completion_wait(completion, UINT64_MAX));
        attune_buffer_destroy(layer.o.buffer);
    }
    OK(attune_forward(plan, attune_device_queue(device), &args, &completion));
    OK(attune_completion_wait(completion, UINT64_MAX));
    collect(s, &args.o, c->dv, out->o);
    collect(s, &args.lse, 1, out->lse);
    collect(s, &args.row_max, 1, out->row_max);
    attune_buffer *all[] = {args.q.buffer,
                            args.o.buffer,
                            args.lse.buffer,
                            args.row_max.buffer,
                            args.workspace,
                            args.schedule,
                            args.sinks.buffer,
                            batch.kv_len.buffer,
                            batch.q_start.buffer,
                            batch.kv_first.buffer,
                            batch.count.buffer,
                            batch.shared.buffer,
                            batch.tree.buffer,
                            captures[0].tensor.buffer,
                            captures[1].tensor.buffer};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        attune_buffer_destroy(all[i]);
    served_pool_free(&p);
    attune_plan_destroy(plan);
    attune_expr_destroy(mask);
    attune_expr_destroy(score);
}

static void check(const served *s, const char *what, reference_error e, const double *got, const double *exact)
{
    cr_expect(e.pass,
              "%s %s %s: max error %.3g (bound %.3g), mean %.3g (bound %.3g), %lld wrong patterns; worst at %lld: got "
              "%.9g, oracle %.9g",
              s->c->name, attune_dtype_string(s->dtype), what, e.max, e.bound_max, e.mean, e.bound_mean,
              (long long)e.pattern_errors, (long long)e.worst, got[e.worst], exact[e.worst]);
}

static void run_case(attune_instance *instance, attune_device *device, const serving_case *c, attune_dtype dtype,
                     uint64_t index)
{
    served s;
    served_draw(c, dtype, test_seed() * 1000003 + index * 4 + (uint64_t)dtype, &s);
    results got = results_create(&s), again = results_create(&s), exact = results_create(&s),
            plain = results_create(&s);
    const int64_t rows = s.tokens * c->heads;
    compute(instance, device, &s, 1, &got);
    compute(instance, device, &s, 2, &again);
    cr_expect_eq(memcmp(got.o, again.o, (size_t)(rows * (c->dv + 2)) * sizeof *got.o), 0,
                 "%s %s: other bits from other pages", c->name, attune_dtype_string(dtype));
    if (c->page && !(c->flags & (HOLES | SHARED))) {
        /* Nor from pages of another size. */
        serving_case other = *c;
        other.page = 3 * c->page + 1;
        s.c = &other;
        for (int64_t b = 0; b < s.sequences; b++)
            s.entry0[b + 1] = s.entry0[b] + served_pages(&s, b);
        compute(instance, device, &s, 3, &again);
        cr_expect_eq(memcmp(got.o, again.o, (size_t)(rows * (c->dv + 2)) * sizeof *got.o), 0,
                     "%s %s: other bits from pages of another size", c->name, attune_dtype_string(dtype));
        s.c = c;
    }
    if (c->flags & PREFIX && (c->flags & SPLIT || !(c->flags & GATHER))) {
        serving_case other = *c;
        other.flags &= ~(unsigned)PREFIX;
        s.c = &other;
        compute(instance, device, &s, 1, &again);
        cr_expect_eq(memcmp(got.o, again.o, (size_t)(rows * (c->dv + 2)) * sizeof *got.o), 0,
                     "%s %s: other bits where sequences share keys", c->name, attune_dtype_string(dtype));
        s.c = c;
    }
    oracle(instance, &s, REFERENCE_ORACLE, &exact);
    oracle(instance, &s, REFERENCE_NAIVE, &plain);
    const attention types = {.q = s.q, .k = s.k[0], .v = s.v[0], .o_dtype = s.dtype};
    const reference_result e = {exact.o, exact.lse, exact.row_max, dtype == ATTUNE_F64 ? NULL : exact.moved},
                           n = {plain.o, plain.lse, plain.row_max, NULL};
    reference_error error;
    reference_compare_o(attention_rule_dtype(&types), attention_o_dtype(&types), rows, c->dv, got.o, &e, &n, &error);
    check(&s, "o", error, got.o, exact.o);
    const attune_dtype real = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    reference_compare(real, rows, got.lse, exact.lse, plain.lse, &error);
    check(&s, "lse", error, got.lse, exact.lse);
    reference_compare(real, rows, got.row_max, exact.row_max, plain.row_max, &error);
    check(&s, "row_max", error, got.row_max, exact.row_max);
    free(got.o);
    free(again.o);
    free(exact.o);
    free(plain.o);
    served_free(&s);
}

/* Cases one after another, each of one type; `most` of them in a sampled run. */
static void run_some(const char *backend, const char *kernel, uint64_t most)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};
    const size_t count = sizeof cases / sizeof cases[0];
    /* A driver that compiles on the CPU takes seconds for a case: a sampled run has a share of them, of all types. */
    size_t ran = 0;
    const size_t share = test_sampled() ? (size_t)scaled(most) : count, step = share < count ? count / share : 1;
    attune_instance *instance;
    attune_device *device;
    OK(attune_instance_create(NULL, &instance));
    device = device_or_skip(instance, backend);
    for (size_t i = test_seed() % step; i < count; i += step) {
        serving_case c = cases[i];
        if (!c.options)
            c.options = kernel;
        if (!test_part(i) || !test_case(c.name))
            continue;
        run_case(instance, device, &c, dtypes[i % 3], i);
        ran++;
    }
    if (step == 1)
        test_case_found(ran);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(serving_cases, vulkan_portable)
{
    run_some("vulkan", "{\"KERNEL\": \"vulkan_portable\"}", 10);
}

/* Wide heads with as little shared memory as a device may have. */
Test(serving_cases, vulkan_least)
{
    static const char *const names[] = {"head_512", "absorbed", "wide_nan", "latent_tree", "wide_f32"};
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};
    attune_instance *instance;
    OK(attune_instance_create(NULL, &instance));
    attune_device *device = device_or_skip(instance, "vulkan@vulkan-minimum");
    size_t ran = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++)
            if (!strcmp(cases[i].name, names[j])) {
                run_case(instance, device, &cases[i], dtypes[j % 3], i);
                ran++;
            }
    cr_assert_eq(ran, sizeof names / sizeof names[0]);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(serving_cases, vulkan_subgroup)
{
    run_some("vulkan", "{\"KERNEL\": \"vulkan_subgroup\"}", 10);
}

Test(serving_cases, vulkan_decode)
{
    run_some("vulkan", "{\"KERNEL\": \"vulkan_decode\"}", 10);
}

Test(serving_cases, opencl)
{
    run_some("opencl", "{\"KERNEL\": \"opencl_serving\"}", 4);
}

Test(serving_cases, opencl_decode)
{
    run_some("opencl", "{\"KERNEL\": \"opencl_decode\"}", 4);
}

/* Small enough for an interpreter of kernels (.ci/opencl): keys in parts, with a schedule of the step and the call's
 * own. */
static void run_small(const char *kernel)
{
    static const serving_case small[] = {
        {"small", 2, 1, 16, 16, 8, CAUSAL, NULL, SPLIT | SINKS | LIST, few, NULL, 0, 0, 0},
        {"small_nan", 2, 1, 16, 16, 8, CAUSAL, NO_SCORE, SPLIT | SINKS | NAN_V, few, NULL, 0, 0, 0}};
    attune_instance *instance;
    OK(attune_instance_create(NULL, &instance));
    attune_device *device = device_or_skip(instance, "opencl");
    for (uint64_t seed = 0; seed < 3; seed++) {
        serving_case c = small[seed / 2];
        c.options = kernel;
        run_case(instance, device, &c, ATTUNE_F32, seed);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(serving_cases, opencl_small)
{
    run_small(NULL);
}

Test(serving_cases, opencl_decode_small)
{
    run_small("{\"KERNEL\": \"opencl_decode\"}");
}

static bool named(const char *names, const char *name)
{
    char word[64];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(names, word);
}

/* Every one of the names is a case: a misspelt one would be left out in silence. */
static void check_names(const char *names)
{
    for (const char *at = names + strspn(names, " "); *at; at += strcspn(at, " "), at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        bool found = false;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0] && !found; i++)
            found = strlen(cases[i].name) == length && !memcmp(cases[i].name, at, length);
        cr_assert(found, "\"%.*s\" is no case of the table", (int)length, at);
    }
}

/* Options with which copies are several tiles ahead, where K and V are copied as they are; NULL elsewhere. */
static const char *stages_of(const serving_case *c, attune_dtype dtype, size_t index)
{
    if (c->options || c->kv_dtype || (dtype == ATTUNE_F32 && c->dv > 256))
        return NULL;
    return c->d > 256  ? "{\"num_stages\": 2, \"BLOCK_N\": 16}"
           : index % 2 ? "{\"num_stages\": 2}"
                       : "{\"num_stages\": 3}";
}

/* Every case; under the model those that `names` has, and without a cache of kernels. */
static void run_cuda(const char *names)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = names ? "" : NULL};
    attune_instance *instance;
    check_names(names ? names : "");
    OK(attune_instance_create(&desc, &instance));
    attune_device *device = device_or_skip(instance, "cuda");
    size_t ran = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attune_dtype dtype = dtypes[i % 3];
        if (!test_part(i) || !test_case(cases[i].name) || (names && !named(names, cases[i].name)))
            continue;
        serving_case staged = cases[i];
        ran++;
        run_case(instance, device, &cases[i], dtype, i);
        if ((staged.options = stages_of(&cases[i], dtype, i)))
            run_case(instance, device, &staged, dtype, i);
    }
    test_case_found(ran);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(serving_cases, cuda)
{
    run_cuda(NULL);
}

/* Some of them under the model of the CUDA kernels (docs/model.md). */
Test(serving_cases, model)
{
    model_or_skip();
    run_cuda(" tree_window holes_no_mask q4_0 head_512 group_16 e5m2_infinite q8_0_nan split_q8_0 "
             "sinks_nan split_sinks_nan wide_forbidden gather_forbidden ");
}

Test(serving_cases, cpu)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    attune_instance *instance;
    attune_device *device;
    /* More than one thread, for which long sequences are split. */
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 3};
    OK(attune_instance_create(&desc, &instance));
    OK(attune_device_open(instance, "cpu", &device));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t j = 0; j < 4; j++)
            if (dtypes[j] != ATTUNE_F64 || !cases[i].kv_dtype)
                run_case(instance, device, &cases[i], dtypes[j], i);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}
