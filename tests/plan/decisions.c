/* SPDX-License-Identifier: MIT */
/*
 * Every decision of the planner that a change of tiles, estimates or limits could move: problems of all kinds on each
 * known device, with all of its shared memory and with parts of it, against the text in decisions.txt. A change that is
 * meant is seen in review as a change of that file, which this writes:
 *
 *     ATTUNE_WRITE_DECISIONS=tests/plan/decisions.txt build/tests/test_plan --filter 'decisions/ *'
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "expr/expr.h"
#include "plan/plan.h"

typedef struct kind {
    const char *name, *mask, *score;
    int64_t batch, heads, kv_heads, q_len, kv_len;
    uint32_t mask_block; /* 0 = no block mask */
    bool lse;
    int64_t tokens; /* 0 = no cache */
} kind;

/* Cycled over the head dimensions; decode is forward alone. */
static const kind kinds[] = {
    {"dense", NULL, NULL, 2, 16, 16, 4096, 4096, 0, true, 0},
    {"causal", "q >= kv", NULL, 2, 16, 4, 4096, 4096, 128, true, 0},
    {"decode", NULL, NULL, 1, 32, 8, 1, 16384, 0, false, 0},
    {"soft_cap", NULL, "30 * tanh(score / 30)", 1, 8, 8, 1000, 1000, 0, true, 0},
    {"document", "doc[q] == doc[kv] && q >= kv", "score - 0.125 * (q - kv)", 1, 16, 8, 2048, 2048, 64, false, 0},
    {"few_queries", NULL, "score + bias[kv]", 4, 8, 2, 7, 900, 0, true, 0},
    {"long_mod", "pad[h, kv] || bias[kv] > bias[q]", "((score * 2 + bias[kv]) * sin(score) + bias[q]) * exp(score)", 1,
     64, 8, 16384, 16384, 128, true, 0},
    {"decode_group", NULL, "score + bias[kv]", 3, 64, 2, 1, 8192, 0, true, 0},
    {"decode_rows", NULL, NULL, 1, 32, 8, 16, 8192, 0, true, 0},
    {"one_head", NULL, NULL, 1, 1, 1, 300, 300, 0, true, 0},
    {"short", "q >= kv", NULL, 3, 3, 3, 130, 70, 32, false, 0},
};

/* Over a cache: all of them for each device. */
static const kind serving_kinds[] = {
    {"serve_decode", NULL, NULL, 64, 32, 8, 1, 8192, 0, true, 64},
    {"serve_prefill", "q >= kv", NULL, 16, 16, 2, 2048, 8192, 16, false, 4096},
    {"serve_draft", "q - kv < 500 + h", "score - 0.125 * (q - kv)", 8, 32, 1, 5, 600, 48, true, 40},
};

static const uint32_t head_dims[][2] = {{8, 8},     {40, 40},   {64, 64},   {80, 80},  {96, 96},
                                        {128, 128}, {192, 128}, {192, 192}, {64, 256}, {256, 256}};

static const struct {
    attune_dtype dtype;
    const char *name;
} dtypes[] = {{ATTUNE_F32, "f32"}, {ATTUNE_BF16, "bf16"}, {ATTUNE_F16, "f16"}};

/* Shares of the device's shared memory, in sixteenths. */
static const uint32_t memory[] = {16, 11, 6, 3, 1};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const attune_expr *expr_of(attune_expr_kind expr_kind, const char *text)
{
    static const attune_symbol symbols[] = {{"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                            {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
                                            {"pad", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 2}};
    attune_expr *expr = NULL;
    if (text)
        cr_assert_eq(attune__expr_parse(&attune__default_allocator, expr_kind, text, symbols, 3, &expr), ATTUNE_OK,
                     "%s", attune_last_error());
    return expr;
}

static int print_choice(char *to, size_t size, const attune_plan_choice *c, const attune__variant *v)
{
    char tiles[64];
    if (c->direction == ATTUNE_BACKWARD)
        snprintf(tiles, sizeof tiles, "%ux%u,%ux%u", c->block_m1, c->block_n1, c->block_m2, c->block_n2);
    else
        snprintf(tiles, sizeof tiles, "%ux%u", c->block_m, c->block_n);
    int n = snprintf(to, size, "%s%s %s s%u w%u %uB r%u o%u", c->kernel, c->decode ? " decode" : "", tiles,
                     c->num_stages, c->num_warps, c->shared_memory, c->registers, c->occupancy);
    if (c->split_kv > 1)
        n += snprintf(to + n, size - (size_t)n, " split%u", c->split_kv);
    if (c->workspace)
        n += snprintf(to + n, size - (size_t)n, " ws%" PRIu64, c->workspace);
    if (c->short_q_len)
        n += snprintf(to + n, size - (size_t)n, " short%" PRId64, c->short_q_len);
    const uint32_t chosen[] = {c->prescale_qk,
                               c->use_tma,
                               c->blocks_are_contiguous,
                               c->rows_guaranteed_safe,
                               c->write_dq,
                               c->deterministic,
                               v->row_intervals,
                               v->mask_pairs,
                               v->key_intervals,
                               v->soft_cap,
                               v->linear,
                               v->mask_chunks,
                               v->score_chunks,
                               v->late_captures,
                               v->late_delta,
                               v->late_hook,
                               v->late_dp,
                               v->early_dq,
                               v->fused_gradients,
                               v->half_tiles,
                               v->rematerialise,
                               v->descending,
                               v->saved_state,
                               v->serial_columns};
    uint32_t bits = 0;
    for (size_t i = 0; i < COUNT(chosen); i++)
        bits |= (chosen[i] & 1) << i;
    return n + snprintf(to + n, size - (size_t)n, " v%x", bits);
}

/* One line: the choices for each share of the memory, those equal to the last as "=". */
static void print_problem(char *line, size_t size, const attune_profile *profile, const kind *of,
                          const uint32_t *head_dim, size_t dtype, bool backward, bool deterministic)
{
    attune_problem q = {.struct_size = sizeof q,
                        .direction = backward ? ATTUNE_BACKWARD : ATTUNE_FORWARD,
                        .dtype = dtypes[dtype].dtype,
                        .head_dim = head_dim[0],
                        .head_dim_v = head_dim[1],
                        .batch = of->batch,
                        .heads = of->heads,
                        .kv_heads = of->kv_heads,
                        .q_len = of->q_len,
                        .kv_len = of->kv_len,
                        .block_mask = of->mask_block != 0,
                        .mask_q_block = of->mask_block,
                        .mask_kv_block = of->mask_block,
                        .lse = of->lse,
                        .tokens = of->tokens,
                        .page = of->tokens ? 16 : 0};
    const attune_expr *mask = expr_of(ATTUNE_EXPR_MASK, of->mask);
    const attune_expr *score = expr_of(ATTUNE_EXPR_SCORE, of->score);
    q.mask = mask, q.score = score;
    attune__shape shape;
    cr_assert_eq(attune__shape_from_problem(&q, &shape), ATTUNE_OK, "%s", attune_last_error());
    shape.expr = attune__analyse(mask, score, NULL);
    /* Some kernels are chosen by name or by an option alone. */
    attune_kernel_options options = {.struct_size = sizeof options};
    const bool matrices = !backward && !of->tokens && profile->limits.backend == ATTUNE_BACKEND_VULKAN &&
                          profile->limits.matrix_m && q.dtype == ATTUNE_F16;
    if (deterministic)
        options.bwd.deterministic = ATTUNE_ON;
    if (matrices)
        strcpy(options.fwd.kernel, "vulkan_coopmat");
    int n =
        snprintf(line, size, "%s %s %s %s%s %u/%u:", profile->name, of->name, dtypes[dtype].name,
                 deterministic ? "deterministic " : "", backward ? "backward" : "forward", head_dim[0], head_dim[1]);
    char last[256] = "", now[256];
    for (size_t m = 0; m < COUNT(memory); m++) {
        attune_limits limits = profile->limits;
        limits.shared_memory = limits.shared_memory / 16 * memory[m];
        attune__decision d;
        if (attune__plan_choose(&limits, &shape, &options, &d) == ATTUNE_OK)
            print_choice(now, sizeof now, &d.choice, &d.variant);
        else
            snprintf(now, sizeof now, "%.60s", attune_last_error());
        n += snprintf(line + n, size - (size_t)n, " | %s", strcmp(now, last) ? now : "=");
        memcpy(last, now, sizeof last);
    }
    attune__expr_release(mask);
    attune__expr_release(score);
}

/* Calls `line` for each line of the file. */
static void each_line(void (*line)(const char *text, void *user), void *user)
{
    char text[1600];
    for (uint32_t i = 0; i < attune_profile_count(); i++) {
        attune_profile p = {.struct_size = sizeof p};
        cr_assert_eq(attune_profile_get(i, &p), ATTUNE_OK);
        const attune_limits *l = &p.limits;
        snprintf(
            text, sizeof text,
            "%s: backend %d, architecture %u, %u units, shared %u of %u reserved %u, threads %u of %u, registers %u "
            "of %u, subgroup %u, matrix %u %ux%ux%u %u, push %u, range %" PRIu64 ", memory %" PRIu64 ", %d%d%d%d%d",
            p.name, (int)l->backend, l->architecture, l->compute_units, l->shared_memory, l->shared_memory_unit,
            l->shared_memory_reserved, l->workgroup_invocations, l->unit_invocations, l->registers_per_thread,
            l->registers, l->subgroup_size, l->matrix, l->matrix_m, l->matrix_n, l->matrix_k, l->fragment_layout,
            l->push_constants, l->storage_range, l->memory, l->f16, l->bf16, l->subgroup_operations, l->f64, l->host);
        line(text, user);
        size_t index = i; /* another kind of problem for each device */
        for (size_t dims = 0; dims < COUNT(head_dims); dims++)
            for (size_t dtype = 0; dtype < COUNT(dtypes); dtype++)
                for (int backward = 0; backward < 2; backward++, index++) {
                    const size_t k = index % COUNT(kinds);
                    const bool dense = backward && !strncmp(kinds[k].name, "decode", 6);
                    print_problem(text, sizeof text, &p, &kinds[dense ? 0 : k], head_dims[dims], dtype, backward,
                                  backward && index % 4 == 1);
                    line(text, user);
                }
        static const uint32_t serving_dims[][2] = {{64, 64}, {128, 128}, {576, 512}};
        for (size_t k = 0; k < COUNT(serving_kinds); k++)
            for (size_t dims = 0; dims < COUNT(serving_dims); dims++, index++) {
                print_problem(text, sizeof text, &p, &serving_kinds[k], serving_dims[dims], index % COUNT(dtypes),
                              false, false);
                line(text, user);
            }
    }
}

static void write_line(const char *text, void *user)
{
    fprintf(user, "%s\n", text);
}

typedef struct comparison {
    FILE *expected;
    unsigned lines, different;
} comparison;

static void compare_line(const char *text, void *user)
{
    comparison *c = user;
    char expected[1700] = "";
    if (!fgets(expected, sizeof expected, c->expected))
        strcpy(expected, "(the file ends)\n");
    expected[strcspn(expected, "\n")] = '\0';
    c->lines++;
    if (strcmp(text, expected) && c->different++ < 5)
        fprintf(stderr, "line %u\n  expected %s\n  decided  %s\n", c->lines, expected, text);
}

Test(decisions, are_those_that_were_reviewed)
{
    const char *to = getenv("ATTUNE_WRITE_DECISIONS");
    if (to) {
        FILE *file = fopen(to, "w");
        cr_assert_not_null(file, "%s cannot be written", to);
        each_line(write_line, file);
        cr_assert_eq(fclose(file), 0);
        return;
    }
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/plan/decisions.txt", getenv("ATTUNE_SOURCE") ? getenv("ATTUNE_SOURCE") : ".");
    comparison c = {.expected = fopen(path, "r")};
    cr_assert_not_null(c.expected, "%s cannot be read", path);
    each_line(compare_line, &c);
    const bool all = fgetc(c.expected) == EOF;
    fclose(c.expected);
    cr_assert(all, "%s has more than %u lines", path, c.lines);
    cr_assert_eq(c.different, 0, "%u of %u decisions differ; if they should, write the file again (%s)", c.different,
                 c.lines, "its recipe is at the top of tests/plan/decisions.c");
}
