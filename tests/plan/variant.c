/* SPDX-License-Identifier: MIT */
/* The variants that the planner picks by an expression's form, of kernels that have several. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"

static const attune_symbol symbols[] = {
    {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
    {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
    {"heat", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
    {"pair", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2},
};

typedef struct wanted {
    const char *profile, *mask, *score;
    int64_t q_len;
    bool back, gradients;
    uint32_t head_dim;
    bool lse;
    attune_dtype dtype; /* bf16 if it is 0, which is f32 */
    attune__variant is; /* terms by their counts alone */
} wanted;

static const wanted table[] = {
    {"h200", "q >= kv", NULL, 2048, .head_dim = 128, .is = {.row_intervals = true}},
    {"a6000", "q >= kv", NULL, 2048, .head_dim = 128, .is = {.row_intervals = true}},
    {"h200", "q >= kv", NULL, 2048, true, .head_dim = 128, .is = {.row_intervals = true, .key_intervals = true}},
    {"a6000", "q >= kv", NULL, 2048, true, .head_dim = 128, .is = {.row_intervals = true}},
    /* Runs of equal elements are known at the call: Hopper's kernels have both ways, the others one. */
    {"h200", "doc[q] == doc[kv]", NULL, 2048, .head_dim = 128,
     .is = {.row_intervals = true, .mask_pairs = true, .mask = {.key_count = 1, .row_count = 1}}},
    {"a6000", "doc[q] == doc[kv]", NULL, 2048, .head_dim = 128,
     .is = {.mask_pairs = true, .mask = {.key_count = 1, .row_count = 1}}},
    {"h200", "(q + kv) % 3 != 0", NULL, 2048, .head_dim = 128, .is = {.mask_pairs = true}},
    {"h200", "sin(q * 0.1) < cos(kv * 0.1)", NULL, 2048, .head_dim = 128,
     .is = {.mask_pairs = true, .mask = {.key_count = 1, .row_count = 1}}},
    {"h200", "sin((q - kv) * 0.1) < 0.5", NULL, 2048, .head_dim = 128, .is = {.mask_pairs = true, .mask_chunks = true}},
    {"h200", NULL, "50 * tanh(score / 50)", 2048, .head_dim = 128,
     .is = {.soft_cap = true, .near = 25, .first_score_chunk = 16}},
    {"h200", NULL, "50 * tanh(score / 50)", 2048, true, .head_dim = 128,
     .is = {.soft_cap = true, .near = 25, .late_dp = true}},
    {"h200", NULL, "score - 0.5 * (q - kv)", 2048, .head_dim = 128,
     .is = {.linear = true,
            .near = INFINITY,
            .score_chunks = true,
            .score_chunk = 8,
            .first_score_chunk = 8,
            .descending = true}},
    /* With tcgen05 a share of the exponentials are polynomials, of a degree for the sum's digits, or for P's. */
    {"b200", NULL, NULL, 2048, .head_dim = 128, .is = {.polynomials = 1, .polynomial_degree = 3}},
    {"b200", NULL, NULL, 2048, .head_dim = 128, .dtype = ATTUNE_F16, .is = {.polynomials = 1, .polynomial_degree = 4}},
    {"b200", NULL, NULL, 2048, .head_dim = 128, .lse = true, .is = {.polynomials = 1, .polynomial_degree = 5}},
    {"b200", NULL, NULL, 2048, true, .head_dim = 128, .is = {.polynomials = 2, .polynomial_degree = 3}},
    {"b200", NULL, "score + bias[kv]", 2048, .head_dim = 128,
     .is = {.first_score_chunk = 16, .score = {.key_count = 1}}},
    /* Past 2^23 a float does not hold every distance. */
    {"h200", NULL, "score - 0.5 * (q - kv)", 1 << 23, .head_dim = 128, .is = {.first_score_chunk = 16}},
    {"h200", NULL, "score + bias[kv]", 2048, .head_dim = 128,
     .is = {.first_score_chunk = 16, .score = {.key_count = 1}}},
    /* A tile of decode has rows of several heads, for which a term of a key must not depend on the head. */
    {"h200", NULL, "score + bias[kv] * heat[h]", 1, .head_dim = 128, .is = {.score = {.key_count = 1, .row_count = 1}}},
    {"h200", NULL, "score + bias[kv + h]", 1, .head_dim = 128, .is = {0}},
    {"h200", NULL, "score + bias[q - kv]", 2048, .head_dim = 128,
     .is = {.score_chunks = true, .score_chunk = 16, .first_score_chunk = 16}},
    /* A tile of the capture is staged, and read as terms are. */
    {"h200", NULL, "score + pair[q, kv]", 2048, .head_dim = 128,
     .is = {.first_score_chunk = 16, .score = {.tile_bytes = 4}}},
    {"h200", NULL, "score + pair[q, kv]", 2048, .head_dim = 64,
     .is = {.first_score_chunk = 64, .score = {.tile_bytes = 4}}},
    {"h200", NULL, "score + pair[q, kv] + bias[q - kv]", 2048, .head_dim = 128,
     .is = {.score_chunks = true, .score_chunk = 16, .first_score_chunk = 16, .score = {.tile_bytes = 4}}},
    {"h200", NULL, "score + bias[q - kv]", 2048, .head_dim = 64,
     .is = {.score_chunks = true, .score_chunk = 32, .first_score_chunk = 32}},
    {"h200", NULL, "score * exp(-heat[h] * (q - kv))", 2048, .head_dim = 128,
     .is = {.first_score_chunk = 16, .near = INFINITY, .fused_sums = true, .score = {.row_count = 1}}},
    {"h200", "heat[q - kv] > 0.5", NULL, 2048, .head_dim = 128, .is = {.mask_pairs = true, .mask_chunks = true}},
    /* Approximate functions, of which the compiler begins many at once. */
    {"h200", NULL, "score * sigmoid(1.702 * score)", 2048, .head_dim = 128,
     .is = {.score_chunk = 16, .first_score_chunk = 16}},
    {"h200", NULL, "score * sigmoid(1.702 * score)", 2048, .head_dim = 192,
     .is = {.score_chunk = 8, .first_score_chunk = 8}},
    {"h200", NULL, "score * sigmoid(1.702 * score) + sin(2 * score)", 2048, .head_dim = 128,
     .is = {.score_chunk = 16, .first_score_chunk = 16, .near = 2097152, .near_sines = true}},
    {"h200", NULL, "score + sin(0.01 * (q - kv))", 2048, .head_dim = 128,
     .is = {.first_score_chunk = 16, .near = INFINITY, .fused_sums = true, .near_sines = true}},
    {"h200", NULL, "score + sin(q - kv + 0.1)", 1 << 23, .head_dim = 128,
     .is = {.score_chunks = true, .score_chunk = 8, .first_score_chunk = 8}},
    /* A quotient that is not continuous, in a term of the row. */
    {"h200", NULL, "exp(score) + sin(b) / cos(b)", 2048, .head_dim = 128,
     .is = {.exact_terms = true, .score_chunk = 16, .first_score_chunk = 16, .score = {.row_count = 1}}},
    {"h200", NULL, "sin(score) / cos(b)", 2048, .head_dim = 128,
     .is = {.exact_terms = true,
            .score_chunk = 16,
            .first_score_chunk = 16,
            .near = ATTUNE__SINE_LIMIT,
            .near_sines = true,
            .score = {.row_count = 1}}},
    {"h200", NULL, "score * heat[h] + bias[q - kv] + bias[kv]", 2048, true, true, 128,
     .is = {.late_delta = true,
            .fused_gradients = true,
            .half_tiles = true,
            .rematerialise = true,
            .score = {.key_count = 1, .row_count = 1},
            .slope = {.row_count = 1}}},
    /* As many as Hopper's registers allow. */
    {"h200", "q >= kv", NULL, 2048, .head_dim = 64, .is = {.row_intervals = true, .late_hook = true}},
    {"h200", NULL, "abs(score)", 2048, true, .head_dim = 128, .is = {.late_dp = true}},
    {"h200", NULL, "abs(score)", 2048, true, .head_dim = 192, .is = {0}},
    {"h200", NULL, "abs(score)", 2048, true, .head_dim = 256, .is = {.early_dq = true}},
    {"h200", NULL, "score + bias[kv]", 2048, true, true, 128,
     .is = {.late_dp = true, .rematerialise = true, .score = {.key_count = 1}}},
    {"h200", NULL, "score * bias[kv]", 2048, true, true, 64,
     .is = {.fused_gradients = true, .rematerialise = true, .score = {.key_count = 1}, .slope = {.key_count = 1}}},
    {"a100", NULL, "score * sigmoid(1.702 * score) + sin(score)", 2048, true, true, 128,
     .is = {.score_chunks = true, .serial_columns = true}},
    {"a6000", NULL, "score * heat[h] + bias[q - kv] + bias[kv]", 2048, true, true, 128,
     .is = {.score_chunks = true, .score = {.key_count = 1, .row_count = 1}}},
    {"h200-vulkan", NULL, "score * heat[h] + bias[q - kv] + bias[kv] + heat[0]", 2048, true, true, 64,
     .is = {.uniform_reads = {.reads = {0, 3}, .count = 2}}},
    {"v3d", NULL, "score * heat[0] * heat[1] * heat[2] * heat[3] * heat[4]", 2048, true, true, 64,
     .is = {.uniform_reads = {.reads = {0, 1, 2, 3}, .count = 4}}},
    {"h200-vulkan", NULL, "score * heat[h]", 2048, .head_dim = 64, .is = {.near = 0}},
};

static void name_of(char name[160], const wanted *w)
{
    snprintf(name, 160, "%s, %s, %s, q_len %lld%s%s", w->profile, w->mask ? w->mask : "no mask",
             w->score ? w->score : "no score", (long long)w->q_len, w->back ? ", backward" : "",
             w->gradients ? ", gradients" : "");
}

Test(variant, follows_from_the_expressions)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const wanted *w = &table[i];
        attune_profile profile = {.struct_size = sizeof profile};
        attune_expr *mask = NULL, *score = NULL;
        attune__gradient *gradient = NULL;
        attune__shape shape;
        attune__decision decision;
        char name[160];
        name_of(name, w);
        cr_assert_eq(attune_profile_find(w->profile, &profile), ATTUNE_OK);
        if (w->mask)
            cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, w->mask, symbols, 4, &mask), ATTUNE_OK);
        if (w->score)
            cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE, w->score, symbols, 4, &score), ATTUNE_OK);
        if (w->back && score)
            cr_assert_eq(attune__gradient_create(score, &gradient), ATTUNE_OK);
        const attune_problem problem = {.struct_size = sizeof problem,
                                        .dtype = w->dtype ? w->dtype : ATTUNE_BF16,
                                        .lse = w->lse,
                                        .head_dim = w->head_dim,
                                        .heads = 8,
                                        .kv_heads = 2,
                                        .q_len = w->q_len,
                                        .kv_len = w->q_len < 2048 ? 2048 : w->q_len,
                                        .mask = mask,
                                        .score = score,
                                        .direction = w->back ? ATTUNE_BACKWARD : ATTUNE_FORWARD,
                                        .capture_gradient_elements = w->gradients ? 1000 : 0};
        const attune_kernel_options tcgen05 = {.struct_size = sizeof tcgen05, .any = {.kernel = "cuda_sm100a"}};
        const attune_kernel_options *const named = strcmp(w->profile, "b200") ? NULL : &tcgen05;
        cr_assert_eq(attune__shape_from_problem(&problem, &shape), ATTUNE_OK, "%s: %s", name, attune_last_error());
        shape.expr = attune__analyse(mask, score, gradient);
        cr_assert_eq(attune__plan_choose(&profile.limits, &shape, named, &decision), ATTUNE_OK, "%s: %s", name,
                     attune_last_error());
        const attune__variant *is = &decision.variant, *should = &w->is;
#define SAME(field) cr_expect_eq(is->field, should->field, "%s: " #field " is %d", name, (int)is->field)
        SAME(row_intervals);
        SAME(mask_pairs);
        SAME(key_intervals);
        SAME(soft_cap);
        SAME(linear);
        SAME(exact_terms);
        SAME(near_sines);
        SAME(fused_sums);
        SAME(mask_chunks);
        SAME(score_chunks);
        SAME(score_chunk);
        SAME(first_score_chunk);
        SAME(late_captures);
        SAME(late_delta);
        SAME(descending);
        SAME(late_hook);
        SAME(late_dp);
        SAME(early_dq);
        SAME(fused_gradients);
        SAME(half_tiles);
        SAME(rematerialise);
        SAME(polynomials);
        SAME(polynomial_degree);
        SAME(saved_state);
        SAME(serial_columns);
        SAME(mask.key_count);
        SAME(mask.row_count);
        SAME(score.key_count);
        SAME(score.row_count);
        SAME(score.tile_bytes);
        SAME(slope.key_count);
        SAME(slope.row_count);
        SAME(uniform_reads.count);
        for (uint32_t r = 0; r < is->uniform_reads.count; r++)
            SAME(uniform_reads.reads[r]);
        cr_expect(is->near == should->near || fabsf(is->near - should->near) < 1e-4f, "%s: near is %g", name,
                  (double)is->near);
        attune__gradient_destroy(gradient);
        attune_expr_destroy(mask);
        attune_expr_destroy(score);
    }
    attune_instance_destroy(instance);
}
