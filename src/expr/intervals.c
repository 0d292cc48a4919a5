/* SPDX-License-Identifier: MIT */
/*
 * Interval masks: masks whose every row allows one interval of keys, such as causal, window, prefix, document, and
 * their conjunctions. They are recognised in the IR, and printed as C that computes the interval of a row. The interval
 * of rows of a key is computed likewise, with q in place of kv below.
 *
 * A comparison of a node that is monotone in kv with one that is independent of kv bounds kv on one side or both. &&
 * intersects intervals. || of two intervals is one if both begin at the first key, if both end at the last key, or if
 * one side is independent of kv. ids[q] == ids[kv] is an interval if equal elements of the array are contiguous, which
 * depends on its contents: the kernel then needs the array's runs.
 */
#include "expr/expr.h"

#include <stdio.h>
#include <string.h>

#include "expr/print.h"

#define BOUND_TEXT 320 /* characters of the text of one end */

/* Properties of node N's interval [lN, hN). */
typedef struct span {
    bool from_start;  /* l <= 0 */
    bool to_end;      /* h is larger than every key */
    bool independent; /* the node is independent of kv: the interval is empty or has every key */
} span;

#define BIT(variable) ((uint16_t)(1u << (variable)))

typedef struct scan {
    const attune_expr *expr;
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    bool done[ATTUNE_EXPR_MAX_NODES];
    span spans[ATTUNE_EXPR_MAX_NODES];
    attune__var along; /* the variable of the intervals, called kv below */
    uint32_t runs;
    attune__text *text; /* NULL = analysis only */
} scan;

/* The bounds of a subexpression, as text; empty = unbounded. */
typedef struct limits {
    char low[BOUND_TEXT], high[BOUND_TEXT];
} limits;

static const attune__node *node_at(const scan *w, uint32_t n)
{
    return &w->expr->nodes[n];
}

static bool depends_on_kv(const scan *w, uint32_t n)
{
    return node_at(w, n)->uses & BIT(w->along);
}

static bool wraps(const scan *w, uint32_t n)
{
    return w->bounds[n].lo == INT32_MIN && w->bounds[n].hi == INT32_MAX;
}

/* to = a op b; false if the text is too long. An absent bound remains absent. */
static bool combine_bounds(char to[BOUND_TEXT], const char *a, const char *op, const char *b)
{
    char text[BOUND_TEXT];
    if (!*a || !*b) {
        *to = '\0';
        return true;
    }
    if (snprintf(text, sizeof text, "(%s %s %s)", a, op, b) >= (int)sizeof text)
        return false;
    memcpy(to, text, sizeof text);
    return true;
}

/* Transforms bounds of the node into bounds of kv. */
static bool solve_for_kv(const scan *w, uint32_t n, limits *l)
{
    for (;;) {
        const attune__node *node = node_at(w, n);
        if (node->op == ATTUNE__OP_VAR && node->value.i == (int32_t)w->along)
            return true;
        if (node->type != ATTUNE__INT || wraps(w, n) || !node->arg_count)
            return false;
        const bool first = depends_on_kv(w, node->arg[0]),
                   second = node->arg_count > 1 && depends_on_kv(w, node->arg[1]);
        if (first == second && node->arg_count > 1)
            return false;
        const uint32_t inner = node->arg[first ? 0 : 1], outer = node->arg[first ? 1 : 0];
        char other[ATTUNE__CTEXT_NAME];
        attune__ctext_operand(w->expr, outer, other);
        limits r = {"", ""};
        bool fits = true;
        switch (node->op) {
        case ATTUNE__OP_ADD:
            fits = combine_bounds(r.low, l->low, "-", other) && combine_bounds(r.high, l->high, "-", other);
            break;
        case ATTUNE__OP_SUB:
            if (first)
                fits = combine_bounds(r.low, l->low, "+", other) && combine_bounds(r.high, l->high, "+", other);
            else
                fits = combine_bounds(r.low, other, "-", l->high) && combine_bounds(r.high, other, "-", l->low);
            break;
        case ATTUNE__OP_NEG:
            fits = combine_bounds(r.low, "0", "-", l->high) && combine_bounds(r.high, "0", "-", l->low);
            break;
        case ATTUNE__OP_ABS:
            if (*l->low)
                return false;
            fits = combine_bounds(r.low, "0", "-", l->high) && combine_bounds(r.high, "0", "+", l->high);
            break;
        case ATTUNE__OP_DIV:
            if (!first || w->bounds[outer].lo < 1 || w->bounds[outer].lo != w->bounds[outer].hi)
                return false;
            fits = combine_bounds(r.low, l->low, "*", other) && combine_bounds(r.high, l->high, "*", other) &&
                   combine_bounds(r.high, r.high, "+", other) && combine_bounds(r.high, r.high, "-", "1");
            break;
        default:
            return false;
        }
        if (!fits)
            return false;
        *l = r;
        n = inner;
    }
}

static span declare(scan *w, uint32_t n, const char *low, const char *high)
{
    attune__text_add(w->text, "    const long long l%u = %s, h%u = %s;\n", n, *low ? low : "0", n,
                     *high ? high : ATTUNE__CTEXT_END);
    return (span){.from_start = !*low, .to_end = !*high};
}

/* ids[q] == ids[kv], or ids[b, q] == ids[b, kv]. */
static bool equal_elements(scan *w, uint32_t n, span *s)
{
    const attune__node *node = node_at(w, n), *a = node_at(w, node->arg[0]), *b = node_at(w, node->arg[1]);
    if (a->op != ATTUNE__OP_CAPTURE || b->op != ATTUNE__OP_CAPTURE || a->type != ATTUNE__INT ||
        a->value.i != b->value.i || a->arg_count > 2)
        return false;
    const uint32_t last = a->arg_count - 1;
    const attune__node *i = node_at(w, a->arg[last]), *j = node_at(w, b->arg[last]);
    const uint16_t both = BIT(ATTUNE__VAR_Q) | BIT(ATTUNE__VAR_KV);
    if (i->op != ATTUNE__OP_VAR || j->op != ATTUNE__OP_VAR || (i->uses | j->uses) != both || i->uses == j->uses)
        return false;
    const attune__node *row = node_at(w, a->arg[0]);
    if (last && (a->arg[0] != b->arg[0] || row->op != ATTUNE__OP_VAR || row->value.i != ATTUNE__VAR_B))
        return false;
    attune__text_add(w->text, "    long long l%u, h%u;\n    attune_run(ATTUNE_CAPTURE(%d), %s, %s, &l%u, &h%u);\n", n,
                     n, a->value.i, last ? "b" : "-1", w->along == ATTUNE__VAR_KV ? "q" : "kv", n, n);
    w->runs |= UINT32_C(1) << a->value.i;
    *s = (span){0};
    return true;
}

static bool has_symbol(const attune_expr *expr, const char *name)
{
    bool found = false;
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        found = found || !strcmp(expr->symbols[i].name, name);
    return found;
}

/* A bound of attune__expr_spans on the other variable, by an end that this one has: the other half of the mask, if it
 * is there, allows the same pairs. */
static bool said_by_other_half(const scan *w, uint32_t n)
{
    const bool rows = w->along == ATTUNE__VAR_KV;
    const char *const from = rows ? ATTUNE__KEY_FROM : ATTUNE__ROW_FROM, *const to =
                                                                             rows ? ATTUNE__KEY_TO : ATTUNE__ROW_TO;
    for (int i = 0; i < 2; i++) {
        const attune__node *end = node_at(w, node_at(w, n)->arg[i]);
        if (end->op != ATTUNE__OP_CAPTURE)
            continue;
        const char *name = w->expr->symbols[end->value.i].name;
        if (!strcmp(name, from) || !strcmp(name, to))
            return has_symbol(w->expr, rows ? ATTUNE__ROW_FROM : ATTUNE__KEY_FROM);
    }
    return false;
}

static bool comparison(scan *w, uint32_t n, span *s)
{
    const attune__node *node = node_at(w, n);
    if (node_at(w, node->arg[0])->type != ATTUNE__INT)
        return false;
    if (said_by_other_half(w, n)) {
        *s = declare(w, n, "", "");
        return true;
    }
    if (node->op == ATTUNE__OP_EQ && equal_elements(w, n, s))
        return true;
    const bool first = depends_on_kv(w, node->arg[0]);
    if (first == depends_on_kv(w, node->arg[1]))
        return false;
    char other[ATTUNE__CTEXT_NAME], term[BOUND_TEXT];
    attune__ctext_operand(w->expr, node->arg[first ? 1 : 0], other);
    snprintf(term, sizeof term, "(long long)%s", other);
    limits l = {"", ""};
    if (node->op == ATTUNE__OP_EQ) {
        memcpy(l.low, term, sizeof term);
        memcpy(l.high, term, sizeof term);
    } else if (node->op == ATTUNE__OP_LE) {
        memcpy(first ? l.high : l.low, term, sizeof term);
    } else if (!combine_bounds(first ? l.high : l.low, term, first ? "-" : "+", "1"))
        return false;
    if (!solve_for_kv(w, first ? node->arg[0] : node->arg[1], &l) || !combine_bounds(l.high, l.high, "+", "1"))
        return false;
    *s = declare(w, n, l.low, l.high);
    return true;
}

static void declare_join(scan *w, uint32_t n, const char *low, const char *high)
{
    const uint32_t a = node_at(w, n)->arg[0], b = node_at(w, n)->arg[1];
    attune__text_add(w->text, "    const long long l%u = l%u %s l%u ? l%u : l%u, h%u = h%u %s h%u ? h%u : h%u;\n", n, a,
                     low, b, a, b, n, a, high, b, a, b);
}

static bool visit(scan *w, uint32_t n);

static bool conjunction(scan *w, uint32_t n)
{
    const attune__node *node = node_at(w, n);
    if (!visit(w, node->arg[0]) || !visit(w, node->arg[1]))
        return false;
    const span a = w->spans[node->arg[0]], b = w->spans[node->arg[1]];
    declare_join(w, n, ">", "<");
    w->spans[n] = (span){a.from_start && b.from_start, a.to_end && b.to_end, false};
    return true;
}

static bool disjunction(scan *w, uint32_t n)
{
    const attune__node *node = node_at(w, n);
    if (!visit(w, node->arg[0]) || !visit(w, node->arg[1]))
        return false;
    const span a = w->spans[node->arg[0]], b = w->spans[node->arg[1]];
    if (a.independent || b.independent) {
        const uint32_t independent = node->arg[a.independent ? 0 : 1], other = node->arg[a.independent ? 1 : 0];
        const span s = a.independent ? b : a;
        attune__text_add(w->text, "    const long long l%u = h%u ? 0 : l%u, h%u = h%u ? h%u : h%u;\n", n, independent,
                         other, n, independent, independent, other);
        w->spans[n] = (span){s.from_start, s.to_end, false};
        return true;
    }
    if (!(a.from_start && b.from_start) && !(a.to_end && b.to_end))
        return false;
    declare_join(w, n, "<", ">");
    w->spans[n] = (span){a.from_start && b.from_start, a.to_end && b.to_end, false};
    return true;
}

static bool negation(scan *w, uint32_t n)
{
    const uint32_t a = node_at(w, n)->arg[0];
    if (!visit(w, a))
        return false;
    char name[16];
    const span s = w->spans[a];
    if (!s.from_start && !s.to_end)
        return false;
    snprintf(name, sizeof name, s.from_start ? "h%u" : "l%u", a);
    w->spans[n] = s.from_start ? declare(w, n, name, "") : declare(w, n, "", name);
    return true;
}

static bool visit(scan *w, uint32_t n)
{
    const attune__node *node = node_at(w, n);
    if (w->done[n])
        return true;
    bool known = true;
    if (!depends_on_kv(w, n)) {
        char name[ATTUNE__CTEXT_NAME];
        attune__text_add(w->text, "    const long long l%u = 0, h%u = %s ? " ATTUNE__CTEXT_END " : 0;\n", n, n,
                         attune__ctext_operand(w->expr, n, name));
        w->spans[n] = (span){.from_start = true, .independent = true};
    } else if (node->op == ATTUNE__OP_AND)
        known = conjunction(w, n);
    else if (node->op == ATTUNE__OP_OR)
        known = disjunction(w, n);
    else if (node->op == ATTUNE__OP_NOT)
        known = negation(w, n);
    else if (node->op == ATTUNE__OP_LT || node->op == ATTUNE__OP_LE || node->op == ATTUNE__OP_EQ)
        known = comparison(w, n, &w->spans[n]);
    else
        known = false;
    w->done[n] = known;
    return known;
}

static bool is_interval_mask(const attune_expr *expr, attune__var along, uint32_t *runs)
{
    scan w = {.expr = expr, .along = along};
    attune__ctext_bounds(expr, w.bounds);
    const bool found = visit(&w, expr->node_count - 1);
    *runs = found ? w.runs : 0;
    return found;
}

bool attune__interval_rows(const attune_expr *mask, uint32_t *runs)
{
    return is_interval_mask(mask, ATTUNE__VAR_KV, runs);
}

bool attune__interval_keys(const attune_expr *mask, uint32_t *runs)
{
    return is_interval_mask(mask, ATTUNE__VAR_Q, runs);
}

/* along: the variable of the intervals; across: the variable that they are functions of. */
static void print(const attune_expr *expr, const char *name, attune__text *text, attune__var along, const char *across,
                  const char *length)
{
    scan w = {.expr = expr, .along = along, .text = text};
    const uint32_t root = expr->node_count - 1;
    attune__ctext_bounds(expr, w.bounds);
    attune__text_add(text,
                     "ATTUNE_FUNCTION void %s(int b, int h, int %s, int h_kv, int q_len, int kv_len, int *low, "
                     "int *high ATTUNE_SYMBOLS)\n{\n",
                     name, across);
    attune__ctext_declare_row(expr, text);
    attune__ctext_values(expr, w.bounds, BIT(along), text);
    (void)visit(&w, root);
    attune__text_add(text,
                     "    *low = l%u < 0 ? 0 : l%u > %s ? %s : (int)l%u;\n"
                     "    *high = h%u < 0 ? 0 : h%u > %s ? %s : (int)h%u;\n}\n",
                     root, root, length, length, root, root, root, length, length, root);
}

void attune__ctext_rows(const attune_expr *expr, const char *name, attune__text *text)
{
    print(expr, name, text, ATTUNE__VAR_KV, "q", "kv_len");
}

void attune__ctext_columns(const attune_expr *expr, const char *name, attune__text *text)
{
    print(expr, name, text, ATTUNE__VAR_Q, "kv", "q_len");
}
