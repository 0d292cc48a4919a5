/* SPDX-License-Identifier: MIT */
/* Scores and their derivatives as intervals: a value, and where roundings may have it. */
#include "random/random.h"

#include <math.h>

/* --------------------------------------------------------------------------------------------- scores, as intervals */

#define HUGE_F32 1e37
#define TINY_F32 1e-37

static interval point_interval(double v)
{
    return (interval){v, v, v, false};
}

/* Widens by the error of `units` roundings. */
static interval widened(interval x, double units, const precision *how)
{
    if (!isfinite(x.v)) {
        x.lo = x.hi = x.v;
        return x;
    }
    const bool narrow = how->unit > 1e-12;
    const double largest = fmax(fabs(x.lo), fabs(x.hi));
    if (!isfinite(x.lo) || !isfinite(x.hi) || (narrow && largest > HUGE_F32))
        x.undecided = true;
    const double more = units * how->unit * largest + (narrow && units > 0 && largest > 0 ? TINY_F32 : 0);
    x.lo -= more;
    x.hi += more;
    return x;
}

static interval hull(interval a, interval b)
{
    a.lo = fmin(a.lo, b.lo);
    a.hi = fmax(a.hi, b.hi);
    a.undecided |= b.undecided;
    return a;
}

static bool is_bounded(const interval *x)
{
    return isfinite(x->v) && isfinite(x->lo) && isfinite(x->hi);
}

static interval plus(interval a, interval b, const precision *how)
{
    interval r = {a.v + b.v, a.lo + b.lo, a.hi + b.hi, a.undecided || b.undecided};
    /* Sums of small integers stay exact. */
    const bool whole = a.lo == a.hi && b.lo == b.hi && (double)(float)r.v == r.v;
    return widened(r, whole ? 0 : 1, how);
}

static interval minus(interval a)
{
    return (interval){-a.v, -a.hi, -a.lo, a.undecided};
}

static interval times(interval a, interval b, const precision *how)
{
    interval r = {a.v * b.v, 0, 0, a.undecided || b.undecided};
    if (!isfinite(r.v))
        return r.lo = r.hi = r.v, r;
    const double ends[4] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
    r.lo = r.hi = r.v;
    for (int i = 0; i < 4; i++) {
        r.lo = fmin(r.lo, ends[i]);
        r.hi = fmax(r.hi, ends[i]);
    }
    const bool whole = a.lo == a.hi && b.lo == b.hi && (double)(float)r.v == r.v;
    return widened(r, whole ? 0 : 1, how);
}

static interval over(interval a, interval b, const precision *how)
{
    interval r = {a.v / b.v, 0, 0, a.undecided || b.undecided};
    if (b.lo <= 0 && b.hi >= 0 && !(b.lo == 0 && b.hi == 0))
        r.undecided = true;
    if (!isfinite(r.v) || r.undecided)
        return r.lo = r.hi = r.v, r;
    const double ends[4] = {a.lo / b.lo, a.lo / b.hi, a.hi / b.lo, a.hi / b.hi};
    r.lo = r.hi = r.v;
    for (int i = 0; i < 4; i++) {
        r.lo = fmin(r.lo, ends[i]);
        r.hi = fmax(r.hi, ends[i]);
    }
    return widened(r, how->vulkan ? 6 : 2, how);
}

/* The interval of a function that rises, with its error in units of the last place. */
static interval rising(interval a, double (*f)(double), double units, const precision *how)
{
    interval r = {f(a.v), f(a.lo), f(a.hi), a.undecided};
    if (isfinite(r.v) && (!isfinite(r.lo) || !isfinite(r.hi)))
        r.undecided = true;
    return widened(r, units, how);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double rsqrt(double x)
{
    return 1 / sqrt(x);
}

/* sin and cos: never faster than their argument. */
static interval waving(interval a, double (*f)(double), const precision *how)
{
    const double most = fmax(a.v - a.lo, a.hi - a.v);
    interval r = {f(a.v), 0, 0, a.undecided || (how->vulkan && fabs(a.v) > 20000)};
    const double error = most + (how->vulkan ? 0x1p-10 + fabs(a.v) * 0x1p-21 : 0) + 16 * how->unit;
    r.lo = r.v - error;
    r.hi = r.v + error;
    return r;
}

static interval power(interval a, interval b, const precision *how)
{
    interval r = {pow(a.v, b.v), 0, 0, a.undecided || b.undecided};
    if (!isfinite(r.v) || !is_bounded(&a) || !is_bounded(&b))
        return r.lo = r.hi = r.v, r;
    const bool whole = b.lo == b.hi && floor(b.v) == b.v;
    /* Whole powers of both signs: those from 0 on are between the ends, or are least at 0. */
    if (a.lo <= 0 && !(a.lo == a.hi && b.lo == b.hi) && !(whole && (b.v >= 0 || a.hi < 0)))
        r.undecided = true;
    const double ends[4] = {pow(a.lo, b.lo), pow(a.lo, b.hi), pow(a.hi, b.lo), pow(a.hi, b.hi)};
    r.lo = r.hi = a.lo <= 0 && a.hi >= 0 && whole && b.v > 0 ? 0 : r.v;
    for (int i = 0; i < 4; i++) {
        r.lo = fmin(r.lo, ends[i]);
        r.hi = fmax(r.hi, ends[i]);
    }
    const double exponent = fabs(b.v * log2(fabs(a.v) + 1e-30));
    return widened(r, how->vulkan ? 32 + 16 * exponent : 32, how);
}

/* f(a) at both ends and between them, for functions of one bend at 0. */
static interval magnitude(interval a)
{
    interval r = {fabs(a.v), fmin(fabs(a.lo), fabs(a.hi)), fmax(fabs(a.lo), fabs(a.hi)), a.undecided};
    if (a.lo <= 0 && a.hi >= 0)
        r.lo = 0;
    return r;
}

static interval least(interval a, interval b)
{
    if (isnan(a.v) || isnan(b.v))
        return b.v < a.v ? b : (a.undecided |= b.undecided, a);
    return (interval){b.v < a.v ? b.v : a.v, fmin(a.lo, b.lo), fmin(a.hi, b.hi), a.undecided || b.undecided};
}

static interval most(interval a, interval b)
{
    if (isnan(a.v) || isnan(b.v))
        return a.v < b.v ? b : (a.undecided |= b.undecided, a);
    return (interval){a.v < b.v ? b.v : a.v, fmax(a.lo, b.lo), fmax(a.hi, b.hi), a.undecided || b.undecided};
}

/* A float's interval, a whole number, or a truth that may be undecided. */
typedef struct known {
    interval f;
    int32_t i;
    bool open; /* a truth: the kernel's may be the other; the branches of a choice: both count */
} known;

static interval function(node_op op, interval a, const precision *how)
{
    /* An infinity loses no more than any large argument. */
    const double x = fmin(fabs(a.v), 1e6);
    switch (op) {
    case OP_FLOOR:
        return (interval){floor(a.v), floor(a.lo), floor(a.hi), a.undecided};
    case OP_CEIL:
        return (interval){ceil(a.v), ceil(a.lo), ceil(a.hi), a.undecided};
    case OP_EXP:
        return rising(a, exp, how->vulkan ? 8 + 4 * x : 8, how);
    case OP_EXP2:
        return rising(a, exp2, how->vulkan ? 8 + 4 * x : 8, how);
    case OP_LOG:
    case OP_LOG2: {
        if (a.lo <= 0 && a.lo != a.hi)
            a.undecided = true;
        interval r = rising(a, op == OP_LOG ? log : log2, 8, how);
        if (isfinite(r.v)) {
            r.lo -= how->log;
            r.hi += how->log;
        }
        return r;
    }
    case OP_SQRT:
        if (a.lo < 0 && a.lo != a.hi)
            a.undecided = true;
        return rising(a, sqrt, 12, how);
    case OP_RSQRT: {
        if (a.lo <= 0 && a.lo != a.hi)
            a.undecided = true;
        interval r = {rsqrt(a.v), rsqrt(a.hi), rsqrt(a.lo), a.undecided};
        return widened(r, 8, how);
    }
    case OP_TANH: {
        interval r = rising(a, tanh, 20, how);
        r.lo -= how->tanh;
        r.hi += how->tanh;
        return r;
    }
    case OP_SIGMOID:
        return rising(a, sigmoid, 20 + 4 * x, how);
    case OP_SIN:
        return waving(a, sin, how);
    default:
        return waving(a, cos, how);
    }
}

static known compare(const node *n, node_type type, const known *a, const known *b)
{
    known r = {.open = a->open || b->open};
    if (type != TYPE_FLOAT) {
        r.i = compared(n->op, a->i, b->i);
        return r;
    }
    r.i = compared(n->op, a->f.v, b->f.v);
    const bool apart = a->f.hi < b->f.lo || b->f.hi < a->f.lo;
    const bool exact_both = a->f.lo == a->f.hi && b->f.lo == b->f.hi;
    if (isnan(a->f.v) || isnan(b->f.v))
        r.open = a->f.undecided || b->f.undecided;
    else
        r.open = a->f.undecided || b->f.undecided || !(apart || exact_both);
    return r;
}

static known evaluate(const tree *t, const node *n, const known *k, const binding *bindings, const point *p,
                      interval product, const precision *how)
{
    static const known none;
    const known *a = n->count > 0 ? &k[n->kid[0]] : &none, *b = n->count > 1 ? &k[n->kid[1]] : &none,
                *c = n->count > 2 ? &k[n->kid[2]] : &none;
    known r = {.i = n->i};
    int32_t index[ATTUNE_MAX_RANK] = {0};
    int64_t element;
    switch (n->op) {
    case OP_SCORE:
        r.f = product;
        break;
    case OP_INT:
    case OP_BOOL:
        break;
    case OP_FLOAT:
        r.f = point_interval(how->unit > 1e-12 ? (double)(float)n->f : n->f);
        break;
    case OP_PARAMETER:
        r.i = n->type == TYPE_INT ? (int32_t)bindings[n->i].number : 0;
        r.f = point_interval((double)(float)bindings[n->i].number);
        break;
    case OP_CAPTURE:
        for (int i = 0; i < n->count; i++) {
            index[i] = k[n->kid[i]].i;
            r.open |= k[n->kid[i]].open;
        }
        element = element_at(&bindings[n->i], n->count, index);
        r.i = element < 0 || n->type == TYPE_FLOAT ? 0 : (int32_t)bindings[n->i].values[element];
        r.f = point_interval(element < 0 ? 0 : bindings[n->i].values[element]);
        r.f.undecided = r.open;
        break;
    case OP_CONVERT:
        r.f = point_interval(a->i);
        r.f.undecided = a->open;
        if ((double)(float)a->i != (double)a->i)
            r.f = widened(r.f, 2 * 0x1p-24 / how->unit, how);
        break;
    case OP_NOT:
        r.i = !a->i;
        r.open = a->open;
        break;
    case OP_AND:
        r.i = a->i && b->i;
        r.open = !((!a->i && !a->open) || (!b->i && !b->open)) && (a->open || b->open);
        break;
    case OP_OR:
        r.i = a->i || b->i;
        r.open = !((a->i && !a->open) || (b->i && !b->open)) && (a->open || b->open);
        break;
    case OP_LT:
    case OP_LE:
    case OP_GT:
    case OP_GE:
    case OP_EQ:
    case OP_NE:
        r = compare(n, t->nodes[n->kid[0]].type, a, b);
        break;
    case OP_CHOICE:
    case OP_SELECT:
        r = a->i ? *b : *c;
        if (a->open && n->type == TYPE_FLOAT) {
            const known *other = a->i ? c : b;
            r.f = hull(r.f, other->f);
            if (!is_bounded(&b->f) || !is_bounded(&c->f))
                r.f.undecided = true;
        } else if (a->open && b->i != c->i) {
            r.open = true;
        }
        break;
    default:
        if (n->op <= OP_ROW) {
            r.i = variable_at(n->op, p);
        } else if (n->type != TYPE_FLOAT) {
            r.i = n->op == OP_CLAMP ? int_value(OP_MIN, int_value(OP_MAX, a->i, b->i), c->i)
                                    : int_value(n->op, a->i, b->i);
            r.open = a->open || b->open || c->open;
        } else if (n->op == OP_NEG) {
            r.f = minus(a->f);
        } else if (n->op == OP_ADD) {
            r.f = plus(a->f, b->f, how);
        } else if (n->op == OP_SUB) {
            r.f = plus(a->f, minus(b->f), how);
        } else if (n->op == OP_MUL) {
            r.f = times(a->f, b->f, how);
        } else if (n->op == OP_DIV) {
            r.f = over(a->f, b->f, how);
        } else if (n->op == OP_MOD) {
            interval quotient = over(a->f, b->f, how);
            quotient = function(OP_FLOOR, quotient, how);
            r.f = plus(a->f, minus(times(quotient, b->f, how)), how);
        } else if (n->op == OP_ABS) {
            r.f = magnitude(a->f);
        } else if (n->op == OP_MIN) {
            r.f = least(a->f, b->f);
        } else if (n->op == OP_MAX) {
            r.f = most(a->f, b->f);
        } else if (n->op == OP_CLAMP) {
            r.f = least(most(a->f, b->f), c->f);
        } else if (n->op == OP_POW) {
            r.f = power(a->f, b->f, how);
        } else {
            r.f = function(n->op, a->f, how);
        }
    }
    return r;
}

/* ------------------------------------------------------------------------------------------------------ derivatives */

/* The share of a kid: all of its parent's, none of it, or anything between. */
static interval share(interval adjoint, double v, bool open)
{
    interval r = {adjoint.v * v, adjoint.lo * v, adjoint.hi * v, adjoint.undecided};
    if (v == 0)
        r = (interval){0, 0, 0, false};
    if (open) {
        r.lo = fmin(0, adjoint.lo);
        r.hi = fmax(0, adjoint.hi);
        r.undecided = adjoint.undecided;
    }
    return r;
}

static void give(interval *adjoint, int kid, interval more, const precision *how)
{
    const interval had = adjoint[kid];
    /* A derivative of exactly 0 stays 0. */
    if (more.v == 0 && more.lo == 0 && more.hi == 0 && !more.undecided)
        return;
    adjoint[kid] = had.v == 0 && had.lo == 0 && had.hi == 0 && !had.undecided ? more : plus(had, more, how);
}

static bool overlap(const interval *a, const interval *b)
{
    return !(a->hi < b->lo || b->hi < a->lo);
}

/* Adjoints of two operands, where the first is taken if `first`; a tie gives each a half. */
static void compete(interval *adjoint, const node *n, interval up, const interval *a, const interval *b, bool first,
                    const precision *how)
{
    const bool exact_both = a->lo == a->hi && b->lo == b->hi;
    const bool tie = a->v == b->v, open = overlap(a, b) && (!exact_both || tie);
    give(adjoint, n->kid[0], share(up, tie ? 0.5 : first, open), how);
    give(adjoint, n->kid[1], share(up, tie ? 0.5 : !first, open), how);
}

static void derive(const tree *t, int at, const known *k, interval *adjoint, const precision *how)
{
    const node *n = &t->nodes[at];
    const interval up = adjoint[at], own = k[at].f, one = point_interval(1);
    const known *a = n->count > 0 ? &k[n->kid[0]] : NULL, *b = n->count > 1 ? &k[n->kid[1]] : NULL,
                *c = n->count > 2 ? &k[n->kid[2]] : NULL;
    interval d;
    switch (n->op) {
    case OP_NEG:
        give(adjoint, n->kid[0], minus(up), how);
        return;
    case OP_ADD:
    case OP_SUB:
        give(adjoint, n->kid[0], up, how);
        give(adjoint, n->kid[1], n->op == OP_ADD ? up : minus(up), how);
        return;
    case OP_MUL:
        give(adjoint, n->kid[0], times(up, b->f, how), how);
        give(adjoint, n->kid[1], times(up, a->f, how), how);
        return;
    case OP_DIV:
        give(adjoint, n->kid[0], over(up, b->f, how), how);
        give(adjoint, n->kid[1], minus(over(times(up, over(a->f, b->f, how), how), b->f, how)), how);
        return;
    case OP_MOD:
        give(adjoint, n->kid[0], up, how);
        d = function(OP_FLOOR, over(a->f, b->f, how), how);
        give(adjoint, n->kid[1], minus(times(up, d, how)), how);
        return;
    case OP_ABS:
        d = point_interval(a->f.v > 0 ? 1 : a->f.v < 0 ? -1 : 0);
        if (a->f.lo <= 0 && a->f.hi >= 0 && a->f.lo != a->f.hi)
            d = (interval){d.v, -1, 1, a->f.undecided};
        /* Exactly 0 at 0, whatever it is multiplied by: sqrt(abs(x)) has no NaN there. */
        if (d.lo != 0 || d.hi != 0)
            give(adjoint, n->kid[0], times(up, d, how), how);
        return;
    case OP_MIN:
    case OP_MAX:
        compete(adjoint, n, up, &a->f, &b->f, n->op == OP_MIN ? !(b->f.v < a->f.v) : !(a->f.v < b->f.v), how);
        return;
    case OP_CLAMP: {
        const interval low = most(a->f, b->f);
        const bool below = a->f.v < b->f.v, above = c->f.v < low.v;
        const bool open = overlap(&a->f, &b->f) || overlap(&a->f, &c->f) || overlap(&b->f, &c->f);
        give(adjoint, n->kid[0], share(up, !below && !above, open), how);
        give(adjoint, n->kid[1], share(up, below && !above, open), how);
        give(adjoint, n->kid[2], share(up, above, open), how);
        return;
    }
    case OP_CHOICE:
    case OP_SELECT:
        give(adjoint, n->kid[1], share(up, a->i != 0, a->open), how);
        give(adjoint, n->kid[2], share(up, a->i == 0, a->open), how);
        return;
    case OP_EXP:
        d = own;
        break;
    case OP_EXP2:
        d = times(own, widened(point_interval(0.693147180559945309), 1, how), how);
        break;
    case OP_LOG:
        d = over(one, a->f, how);
        break;
    case OP_LOG2:
        d = over(widened(point_interval(1.44269504088896341), 1, how), a->f, how);
        break;
    case OP_SQRT:
        d = over(point_interval(0.5), own, how);
        break;
    case OP_RSQRT:
        d = times(point_interval(-0.5), over(own, a->f, how), how);
        break;
    case OP_TANH:
        d = plus(one, minus(times(own, own, how)), how);
        break;
    case OP_SIGMOID:
        d = times(own, plus(one, minus(own), how), how);
        break;
    case OP_SIN:
        d = waving(a->f, cos, how);
        break;
    case OP_COS:
        d = minus(waving(a->f, sin, how));
        break;
    case OP_POW:
        d = b->f.v == 0 && b->f.lo == b->f.hi ? point_interval(0)
                                              : times(b->f, power(a->f, plus(b->f, point_interval(-1), how), how), how);
        give(adjoint, n->kid[0], times(up, d, how), how);
        d = a->f.v == 0 ? point_interval(0) : times(own, function(OP_LOG, a->f, how), how);
        give(adjoint, n->kid[1], times(up, d, how), how);
        return;
    default: /* conversions, floor, ceil, comparisons and what is read have none */
        return;
    }
    give(adjoint, n->kid[0], times(up, d, how), how);
}

interval tree_score(const tree *t, const binding *bindings, const point *p, interval product, precision how,
                    derivatives *d)
{
    known k[TREE_NODES];
    interval adjoint[TREE_NODES];
    const int root = t->count - 1;
    for (int at = 0; at < t->count; at++)
        k[at] = evaluate(t, &t->nodes[at], k, bindings, p, product, &how);
    if (!d)
        return k[root].f;
    for (int at = 0; at < t->count; at++)
        adjoint[at] = point_interval(0);
    adjoint[root] = point_interval(1);
    /* A kernel may add the derivatives by each `score` of the text in any order, so that a partial sum of large ones
     * that cancel is rounded with a small one in it: in exp(score) + (score - score) * a the order (exp + a) - a is off
     * by u a, where (a - a) + exp is exact. No term of n passes more than n - 1 additions, so that the sum is off by at
     * most (n - 1) u times the sum of the magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 4.2). */
    double magnitudes = 0;
    int terms = 0;
    d->by_score = point_interval(0);
    d->reads = 0;
    d->open = false;
    for (int at = root; at >= 0; at--) {
        const node *n = &t->nodes[at];
        const interval *up = &adjoint[at];
        const bool flat = up->v == 0 && up->lo == 0 && up->hi == 0 && !up->undecided;
        if (n->op == OP_SCORE && !flat) {
            magnitudes += fmax(fabs(up->lo), fabs(up->hi));
            terms++;
            d->by_score =
                d->by_score.v == 0 && d->by_score.lo == 0 && d->by_score.hi == 0 ? *up : plus(d->by_score, *up, &how);
        }
        /* A derivative of 0 counts too: a kernel's infinite dS makes NaN of it. */
        if (n->op == OP_CAPTURE && n->type == TYPE_FLOAT && d->reads < READS) {
            int32_t index[ATTUNE_MAX_RANK] = {0};
            for (int i = 0; i < n->count; i++)
                index[i] = k[n->kid[i]].i;
            d->symbol[d->reads] = n->i;
            d->index[d->reads] = element_at(&bindings[n->i], n->count, index);
            d->by_element[d->reads] = *up;
            /* An index that depends on a undecided comparison: any element's. */
            d->open |= k[at].open;
            d->reads += d->index[d->reads] >= 0;
        }
        if (!flat)
            derive(t, at, k, adjoint, &how);
    }
    const double order = terms > 1 && isfinite(magnitudes) ? (terms - 1) * how.unit * magnitudes : 0;
    d->by_score.lo -= order;
    d->by_score.hi += order;
    return k[root].f;
}
