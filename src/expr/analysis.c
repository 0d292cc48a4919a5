/* SPDX-License-Identifier: MIT */
#include "expr/expr.h"

#include "expr/gradient.h"
#include "expr/print.h"

static attune__mask_analysis analyse_mask(const attune_expr *mask)
{
    const uint16_t heads = 1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV, head = 1u << ATTUNE__VAR_H;
    const uint32_t root = mask->node_count - 1;
    attune__mask_analysis m = {.reads_head = mask->uses & heads, .reads_pairs = attune__expr_reads_pairs(mask)};
    m.row_intervals = attune__interval_rows(mask, &m.row_runs);
    m.key_intervals = attune__interval_keys(mask, &m.key_runs);
    if (!m.row_intervals || m.row_runs) {
        m.terms[ATTUNE__ONE_HEAD] = attune__expr_terms_with_keys(mask, root, 0);
        m.terms[ATTUNE__SEVERAL_HEADS] = attune__expr_terms_with_keys(mask, root, head);
    }
    m.weight = attune__expr_weight(mask, root, ATTUNE__FORM_EXACT, &m.terms[ATTUNE__ONE_HEAD]);
    return m;
}

/* Whether a rounded operand may leave a function's domain or meet its pole, where the result is not continuous. */
static bool meets_edge(const attune_expr *score, const attune__node *node, const bool *rounded,
                       const attune__interval *bounds)
{
    const bool divides = node->op == ATTUNE__OP_DIV && node->type == ATTUNE__FLOAT;
    if (!divides && node->op != ATTUNE__OP_POW && (node->op < ATTUNE__OP_LOG || node->op > ATTUNE__OP_RSQRT))
        return false;
    const uint32_t operand = node->arg[divides];
    /* sigmoid is never below 0, and is 0 where the exact one is. */
    return rounded[operand] && score->nodes[operand].op != ATTUNE__OP_SIGMOID && !(bounds[operand].flo > 0) &&
           !(divides && bounds[operand].fhi < 0);
}

/* Whether the result is continuous in those of its functions and divisions, if it has any. skipped: parts that have
 * none that count; may be NULL. */
static bool is_continuous(const attune_expr *expr, const bool *skipped, bool *functions)
{
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    bool rounded[ATTUNE_EXPR_MAX_NODES] = {false};
    *functions = false;
    attune__ctext_bounds(expr, bounds);
    for (uint32_t n = 0; n < expr->node_count; n++) {
        if (skipped && skipped[n])
            continue;
        const attune__node *node = &expr->nodes[n];
        const bool steps = (node->op >= ATTUNE__OP_EQ && node->op <= ATTUNE__OP_LE) || node->op == ATTUNE__OP_FLOOR ||
                           node->op == ATTUNE__OP_CEIL || node->op == ATTUNE__OP_MOD;
        rounded[n] = node->op >= ATTUNE__OP_EXP || (node->op == ATTUNE__OP_DIV && node->type == ATTUNE__FLOAT);
        for (uint32_t i = 0; i < node->arg_count; i++) {
            if (steps && rounded[node->arg[i]])
                return false;
            rounded[n] = rounded[n] || rounded[node->arg[i]];
        }
        if (meets_edge(expr, node, rounded, bounds))
            return false;
        *functions = *functions || rounded[n];
    }
    return true;
}

bool attune__is_smooth(const attune_expr *score)
{
    bool functions;
    return is_continuous(score, NULL, &functions) && functions;
}

/* The same of what is not in the terms, which are computed by exact functions. */
static bool is_smooth_outside(const attune_expr *score, const attune__terms *terms)
{
    const uint32_t root = score->node_count - 1;
    bool needed[ATTUNE_EXPR_MAX_NODES], skipped[ATTUNE_EXPR_MAX_NODES], functions;
    attune__ctext_needed(score, &root, 1, terms, needed);
    for (uint32_t n = 0; n < score->node_count; n++)
        skipped[n] = !needed[n];
    for (uint32_t i = 0; i < terms->key_count; i++)
        skipped[terms->keys[i]] = true;
    for (uint32_t i = 0; i < terms->row_count; i++)
        skipped[terms->rows[i]] = true;
    return is_continuous(score, skipped, &functions) && functions;
}

static bool has_product_functions(const attune_expr *score)
{
    bool has = false;
    for (uint32_t n = 0; n < score->node_count; n++) {
        const attune__node *node = &score->nodes[n];
        const bool divides = node->op == ATTUNE__OP_DIV && score->nodes[node->arg[1]].op != ATTUNE__OP_CONST;
        has = has || ((node->op >= ATTUNE__OP_EXP || divides) && node->uses & 1u << ATTUNE__VAR_SCORE);
    }
    return has;
}

static attune__value_analysis analyse_value(const attune_expr *expr, uint32_t root)
{
    attune__value_analysis a = {.near = attune__near_limit(expr)};
    a.terms[ATTUNE__ONE_HEAD] = attune__expr_terms(expr, root, 0);
    a.terms[ATTUNE__SEVERAL_HEADS] = attune__expr_terms(expr, root, 1u << ATTUNE__VAR_H);
    a.tiled = attune__expr_terms_with_tile(expr, root);
    const attune__terms *const terms = &a.terms[ATTUNE__ONE_HEAD];
    a.weight = attune__expr_weight(expr, root, ATTUNE__FORM_EXACT, terms);
    a.near_weight = attune__expr_weight(expr, root, ATTUNE__FORM_NEAR, terms);
    a.fast_weight = attune__expr_weight(expr, root, ATTUNE__FORM_FAST, terms);
    a.sines_weight = attune__expr_weight(expr, root, ATTUNE__FORM_SINES, terms);
    a.near_sines = attune__sine_limit(expr, terms);
    return a;
}

attune__analysis attune__analyse(const attune_expr *mask, const attune_expr *score, const attune__gradient *gradient)
{
    attune__analysis a = {0};
    if (mask)
        a.mask = analyse_mask(mask);
    if (score) {
        a.score = analyse_value(score, score->node_count - 1);
        a.soft_cap = attune__is_soft_cap(score, &a.cap_inner, &a.cap_outer);
        a.linear = attune__is_linear(score);
        a.sloped = attune__linear_has_slope(score);
        a.reads_pairs = attune__expr_reads_pairs(score);
        a.reads_more = attune__expr_reads_beside(score, &a.score.tiled);
        a.smooth = attune__is_smooth(score);
        a.smooth_pairs = is_smooth_outside(score, &a.score.terms[ATTUNE__ONE_HEAD]);
        a.product_functions = has_product_functions(score);
    }
    if (gradient) {
        bool functions;
        a.smooth_slope = a.smooth && is_continuous(gradient->expr, NULL, &functions);
        a.slope = analyse_value(gradient->expr, gradient->score);
        a.capture_reads = gradient->read_count;
        a.uniform_reads = attune__gradient_uniform_reads(gradient);
        a.gradients_of_score = attune__gradient_uses(gradient) & 1u << ATTUNE__VAR_SCORE;
    }
    return a;
}
