/* SPDX-License-Identifier: MIT */
/*
 * Linear scores: factor * score + base + slope * (kv - origin), where everything except score and kv depends on the row
 * only. ALiBi, a bias per head or row, and scales are linear. A kernel then needs two fused multiply-adds per pair.
 * origin is 0 or q, because kv - q is exact in integers, and the difference of rounded products is not.
 */
#include "expr/expr.h"

#include <stdio.h>

#include "expr/print.h"

#define PER_PAIR (UINT16_C(1) << ATTUNE__VAR_KV | UINT16_C(1) << ATTUNE__VAR_SCORE)

typedef enum coefficient { FACTOR, SLOPE, BASE, COEFFICIENTS } coefficient;

static const char letters[COEFFICIENTS] = {'f', 'c', 'g'}; /* the coefficients of node N are named fN, cN, gN */

typedef struct linear_form {
    bool has[COEFFICIENTS];
    bool from_q; /* origin is q; else 0 */
} linear_form;

typedef struct scan {
    const attune_expr *expr;
    attune__text *text; /* NULL = analysis only */
    linear_form forms[ATTUNE_EXPR_MAX_NODES];
} scan;

static const attune__node *node_at(const scan *w, uint32_t n)
{
    return &w->expr->nodes[n];
}

static bool is_per_pair(const scan *w, uint32_t n)
{
    return node_at(w, n)->uses & PER_PAIR;
}

static bool is_var(const scan *w, uint32_t n, attune__var var)
{
    return node_at(w, n)->op == ATTUNE__OP_VAR && node_at(w, n)->value.i == (int32_t)var;
}

static void begin_coefficient(scan *w, uint32_t n, coefficient i)
{
    w->forms[n].has[i] = true;
    attune__text_add(w->text, "    const float %c%u = ", letters[i], n);
}

/* The conversion of kv, kv - q or q - kv to float. */
static bool distance(scan *w, uint32_t n)
{
    const uint32_t inner = node_at(w, n)->arg[0];
    const attune__node *sub = node_at(w, inner);
    const bool kv = is_var(w, inner, ATTUNE__VAR_KV);
    bool kv_minus_q = false, q_minus_kv = false;
    if (!kv && sub->op == ATTUNE__OP_SUB) {
        kv_minus_q = is_var(w, sub->arg[0], ATTUNE__VAR_KV) && is_var(w, sub->arg[1], ATTUNE__VAR_Q);
        q_minus_kv = is_var(w, sub->arg[0], ATTUNE__VAR_Q) && is_var(w, sub->arg[1], ATTUNE__VAR_KV);
    }
    if (!kv && !kv_minus_q && !q_minus_kv)
        return false;
    begin_coefficient(w, n, SLOPE);
    attune__text_add(w->text, "%s;\n", q_minus_kv ? "-1.0f" : "1.0f");
    w->forms[n].from_q = !kv;
    return true;
}

static bool negation(scan *w, uint32_t n)
{
    const uint32_t a = node_at(w, n)->arg[0];
    w->forms[n].from_q = w->forms[a].from_q;
    for (coefficient i = 0; i < COEFFICIENTS; i++)
        if (w->forms[a].has[i]) {
            begin_coefficient(w, n, i);
            attune__text_add(w->text, "-%c%u;\n", letters[i], a);
        }
    return true;
}

/*
 * A coefficient of an operand as text, empty if it has none. An operand that depends on the row only is its own base.
 */
static void name_coefficient(const scan *w, uint32_t n, coefficient i, char name[ATTUNE__CTEXT_NAME])
{
    name[0] = '\0';
    if (!is_per_pair(w, n)) {
        if (i == BASE)
            attune__ctext_operand(w->expr, n, name);
    } else if (w->forms[n].has[i])
        snprintf(name, ATTUNE__CTEXT_NAME, "%c%u", letters[i], n);
}

static bool sum(scan *w, uint32_t n)
{
    const attune__node *node = node_at(w, n);
    const uint32_t a = node->arg[0], b = node->arg[1];
    const bool sloped[2] = {is_per_pair(w, a) && w->forms[a].has[SLOPE], is_per_pair(w, b) && w->forms[b].has[SLOPE]};
    if (sloped[0] && sloped[1] && w->forms[a].from_q != w->forms[b].from_q)
        return false;
    w->forms[n].from_q = w->forms[sloped[0] ? a : b].from_q;
    for (coefficient i = 0; i < COEFFICIENTS; i++) {
        char x[ATTUNE__CTEXT_NAME], y[ATTUNE__CTEXT_NAME];
        name_coefficient(w, a, i, x);
        name_coefficient(w, b, i, y);
        if (!*x && !*y)
            continue;
        begin_coefficient(w, n, i);
        attune__text_add(w->text, *x && *y ? "%s %s %s;\n" : "%s%s%s;\n", x,
                         !*y                          ? ""
                         : node->op == ATTUNE__OP_SUB ? "-"
                         : *x                         ? "+"
                                                      : "",
                         y);
    }
    return true;
}

static bool product(scan *w, uint32_t n)
{
    const uint32_t a = node_at(w, n)->arg[0], b = node_at(w, n)->arg[1];
    if (is_per_pair(w, a) && is_per_pair(w, b))
        return false;
    const uint32_t inner = is_per_pair(w, a) ? a : b, outer = is_per_pair(w, a) ? b : a;
    char by[ATTUNE__CTEXT_NAME];
    attune__ctext_operand(w->expr, outer, by);
    w->forms[n].from_q = w->forms[inner].from_q;
    for (coefficient i = 0; i < COEFFICIENTS; i++)
        if (w->forms[inner].has[i]) {
            begin_coefficient(w, n, i);
            attune__text_add(w->text, "%c%u * %s;\n", letters[i], inner, by);
        }
    return true;
}

static bool visit(scan *w, uint32_t n)
{
    const attune__node *node = node_at(w, n);
    switch (node->op) {
    case ATTUNE__OP_VAR:
        if (!is_var(w, n, ATTUNE__VAR_SCORE))
            return true; /* kv, which may be used only by a distance */
        begin_coefficient(w, n, FACTOR);
        attune__text_add(w->text, "1.0f;\n");
        return true;
    case ATTUNE__OP_FLOAT:
        return distance(w, n);
    case ATTUNE__OP_NEG:
        return node->type == ATTUNE__FLOAT && negation(w, n);
    case ATTUNE__OP_ADD:
        return node->type == ATTUNE__FLOAT && sum(w, n);
    case ATTUNE__OP_SUB:
        return node->type != ATTUNE__FLOAT || sum(w, n); /* integer nodes are checked by `distance` */
    case ATTUNE__OP_MUL:
        return node->type == ATTUNE__FLOAT && product(w, n);
    default:
        return false;
    }
}

static bool visit_all(scan *w)
{
    const uint32_t root = w->expr->node_count - 1;
    bool linear = is_per_pair(w, root);
    for (uint32_t n = 0; n <= root && linear; n++)
        linear = !is_per_pair(w, n) || visit(w, n);
    return linear;
}

bool attune__is_linear(const attune_expr *score)
{
    scan w = {.expr = score};
    return visit_all(&w);
}

bool attune__linear_has_slope(const attune_expr *score)
{
    scan w = {.expr = score};
    return visit_all(&w) && w.forms[score->node_count - 1].has[SLOPE];
}

void attune__ctext_linear(const attune_expr *expr, const char *name, attune__text *text)
{
    scan w = {.expr = expr, .text = text};
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    const uint32_t root = expr->node_count - 1;
    attune__ctext_bounds(expr, bounds);
    attune__text_add(
        text,
        "ATTUNE_FUNCTION void %s(int b, int h, int q, int h_kv, int q_len, int kv_len, float *factor, float "
        "*slope, float *base, int *origin ATTUNE_SYMBOLS)\n{\n",
        name);
    attune__ctext_declare_row(expr, text);
    attune__ctext_values(expr, bounds, PER_PAIR, text);
    (void)visit_all(&w);
    static const char *const results[COEFFICIENTS] = {"factor", "slope", "base"};
    for (coefficient i = 0; i < COEFFICIENTS; i++) {
        char value[ATTUNE__CTEXT_NAME];
        name_coefficient(&w, root, i, value);
        attune__text_add(text, "    *%s = %s;\n", results[i], *value ? value : "0.0f");
    }
    attune__text_add(text, "    *origin = %s;\n}\n", w.forms[root].has[SLOPE] && w.forms[root].from_q ? "q" : "0");
    attune__text_add(text, "#define ATTUNE_LINEAR_SCORE_HAS_SLOPE %d\n", w.forms[root].has[SLOPE]);
}
