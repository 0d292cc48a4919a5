/* SPDX-License-Identifier: MIT */
/*
 * Linear scores: factor * score + base + slope * (kv - origin), where everything except score and kv depends on the row
 * only. ALiBi, a bias per head or row, and scales are linear. A kernel then needs two fused multiply-adds per pair.
 * origin is 0 or q, because kv - q is exact in integers, and the difference of rounded products is not.
 */
#include "expr/expr.h"

#include <stdio.h>

#include "expr/print.h"

#define OPEN (UINT16_C(1) << ATTUNE__VAR_KV | UINT16_C(1) << ATTUNE__VAR_SCORE)

typedef enum part { FACTOR, SLOPE, BASE, PARTS } part;

static const char letters[PARTS] = {'f', 'c', 'g'}; /* the coefficients of node N are named fN, cN, gN */

typedef struct line {
    bool has[PARTS];
    bool from_q; /* origin is q; else 0 */
} line;

typedef struct scan {
    const attune_expr *expr;
    attune__text *text; /* NULL = look alone */
    line lines[ATTUNE_EXPR_MAX_NODES];
} scan;

static const attune__node *node_of(const scan *w, uint32_t n)
{
    return &w->expr->nodes[n];
}

static bool is_open(const scan *w, uint32_t n)
{
    return node_of(w, n)->uses & OPEN;
}

static bool is_var(const scan *w, uint32_t n, attune__var var)
{
    return node_of(w, n)->op == ATTUNE__OP_VAR && node_of(w, n)->value.i == (int32_t)var;
}

static void begin_part(scan *w, uint32_t n, part i)
{
    w->lines[n].has[i] = true;
    attune__text_add(w->text, "    const float %c%u = ", letters[i], n);
}

/* The conversion of kv, kv - q or q - kv to float. */
static bool distance(scan *w, uint32_t n)
{
    const uint32_t inner = node_of(w, n)->arg[0];
    const attune__node *sub = node_of(w, inner);
    const bool kv = is_var(w, inner, ATTUNE__VAR_KV);
    bool ahead = false, behind = false;
    if (!kv && sub->op == ATTUNE__OP_SUB) {
        ahead = is_var(w, sub->arg[0], ATTUNE__VAR_KV) && is_var(w, sub->arg[1], ATTUNE__VAR_Q);
        behind = is_var(w, sub->arg[0], ATTUNE__VAR_Q) && is_var(w, sub->arg[1], ATTUNE__VAR_KV);
    }
    if (!kv && !ahead && !behind)
        return false;
    begin_part(w, n, SLOPE);
    attune__text_add(w->text, "%s;\n", behind ? "-1.0f" : "1.0f");
    w->lines[n].from_q = !kv;
    return true;
}

static bool negation(scan *w, uint32_t n)
{
    const uint32_t a = node_of(w, n)->arg[0];
    w->lines[n].from_q = w->lines[a].from_q;
    for (part i = 0; i < PARTS; i++)
        if (w->lines[a].has[i]) {
            begin_part(w, n, i);
            attune__text_add(w->text, "-%c%u;\n", letters[i], a);
        }
    return true;
}

/*
 * A coefficient of an operand as text, empty if it has none. An operand that depends on the row only is its own base.
 */
static void name_part(const scan *w, uint32_t n, part i, char name[ATTUNE__CTEXT_NAME])
{
    name[0] = '\0';
    if (!is_open(w, n)) {
        if (i == BASE)
            attune__ctext_operand(w->expr, n, name);
    } else if (w->lines[n].has[i])
        snprintf(name, ATTUNE__CTEXT_NAME, "%c%u", letters[i], n);
}

static bool sum(scan *w, uint32_t n)
{
    const attune__node *node = node_of(w, n);
    const uint32_t a = node->arg[0], b = node->arg[1];
    const bool sloped[2] = {is_open(w, a) && w->lines[a].has[SLOPE], is_open(w, b) && w->lines[b].has[SLOPE]};
    if (sloped[0] && sloped[1] && w->lines[a].from_q != w->lines[b].from_q)
        return false;
    w->lines[n].from_q = w->lines[sloped[0] ? a : b].from_q;
    for (part i = 0; i < PARTS; i++) {
        char x[ATTUNE__CTEXT_NAME], y[ATTUNE__CTEXT_NAME];
        name_part(w, a, i, x);
        name_part(w, b, i, y);
        if (!*x && !*y)
            continue;
        begin_part(w, n, i);
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
    const uint32_t a = node_of(w, n)->arg[0], b = node_of(w, n)->arg[1];
    if (is_open(w, a) && is_open(w, b))
        return false;
    const uint32_t inner = is_open(w, a) ? a : b, outer = is_open(w, a) ? b : a;
    char by[ATTUNE__CTEXT_NAME];
    attune__ctext_operand(w->expr, outer, by);
    w->lines[n].from_q = w->lines[inner].from_q;
    for (part i = 0; i < PARTS; i++)
        if (w->lines[inner].has[i]) {
            begin_part(w, n, i);
            attune__text_add(w->text, "%c%u * %s;\n", letters[i], inner, by);
        }
    return true;
}

static bool visit(scan *w, uint32_t n)
{
    const attune__node *node = node_of(w, n);
    switch (node->op) {
    case ATTUNE__OP_VAR:
        if (!is_var(w, n, ATTUNE__VAR_SCORE))
            return true; /* kv, which may be used only by a distance */
        begin_part(w, n, FACTOR);
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
    bool linear = is_open(w, root);
    for (uint32_t n = 0; n <= root && linear; n++)
        linear = !is_open(w, n) || visit(w, n);
    return linear;
}

bool attune__is_linear(const attune_expr *score)
{
    scan w = {.expr = score};
    return visit_all(&w);
}

void attune__ctext_line(const attune_expr *expr, const char *name, attune__text *text)
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
    attune__ctext_values(expr, bounds, OPEN, text);
    (void)visit_all(&w);
    static const char *const results[PARTS] = {"factor", "slope", "base"};
    for (part i = 0; i < PARTS; i++) {
        char value[ATTUNE__CTEXT_NAME];
        name_part(&w, root, i, value);
        attune__text_add(text, "    *%s = %s;\n", results[i], *value ? value : "0.0f");
    }
    attune__text_add(text, "    *origin = %s;\n}\n", w.lines[root].has[SLOPE] && w.lines[root].from_q ? "q" : "0");
    attune__text_add(text, "#define ATTUNE_SCORE_LINE_SLOPED %d\n", w.lines[root].has[SLOPE]);
}
