/* SPDX-License-Identifier: MIT */
#include "expr/expr.h"

#include "expr/gradient.h"
#include "expr/print.h"

static attune__mask_analysis analyse_mask(const attune_expr *mask)
{
    const uint16_t heads = 1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV, head = 1u << ATTUNE__VAR_H;
    const uint32_t root = mask->node_count - 1;
    attune__mask_analysis m = {.reads_head = mask->uses & heads, .weight = attune__expr_weight(mask, root, false)};
    m.row_intervals = attune__interval_rows(mask, &m.row_runs);
    m.key_intervals = attune__interval_keys(mask, &m.key_runs);
    if (!m.row_intervals || m.row_runs) {
        m.terms[ATTUNE__ONE_HEAD] = attune__expr_terms_with_keys(mask, root, 0);
        m.terms[ATTUNE__SEVERAL_HEADS] = attune__expr_terms_with_keys(mask, root, head);
    }
    return m;
}

static attune__value_analysis analyse_value(const attune_expr *expr, uint32_t root)
{
    return (attune__value_analysis){
        .near = attune__near_limit(expr),
        .weight = attune__expr_weight(expr, root, false),
        .near_weight = attune__expr_weight(expr, root, true),
    };
}

attune__analysis attune__analyse(const attune_expr *mask, const attune_expr *score, const attune__gradient *gradient)
{
    const uint16_t head = 1u << ATTUNE__VAR_H;
    attune__analysis a = {0};
    if (mask)
        a.mask = analyse_mask(mask);
    if (score) {
        const uint32_t root = score->node_count - 1;
        a.score = analyse_value(score, root);
        a.score.terms[ATTUNE__ONE_HEAD] = attune__expr_terms_with_keys(score, root, 0);
        a.score.terms[ATTUNE__SEVERAL_HEADS] = attune__expr_terms_with_keys(score, root, head);
        a.soft_cap = attune__is_soft_cap(score, &a.cap_inner, &a.cap_outer);
        a.linear = attune__is_linear(score);
        a.sloped = attune__linear_has_slope(score);
        a.reads_pairs = attune__expr_reads_pairs(score);
    }
    if (gradient) {
        a.slope = analyse_value(gradient->expr, gradient->score);
        a.slope.terms[ATTUNE__ONE_HEAD] = attune__expr_terms(gradient->expr, gradient->score, 0);
        a.slope.terms[ATTUNE__SEVERAL_HEADS] = attune__expr_terms(gradient->expr, gradient->score, head);
        a.capture_reads = gradient->read_count;
        a.uniform_reads = attune__gradient_uniform_reads(gradient);
        a.gradients_of_score = attune__gradient_uses(gradient) & 1u << ATTUNE__VAR_SCORE;
    }
    return a;
}
