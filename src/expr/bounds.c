/* SPDX-License-Identifier: MIT */
/*
 * Interval analysis. Every rule over-approximates eval.c. An integer that may wrap is bounded by all of i32. The
 * rounding of + - * / and sqrt is monotone, so that endpoints are exact. Functions of libm are widened, since they need
 * not be monotone.
 */
#include "expr/expr.h"

#include <math.h>

#include "expr/ops.h"
#include "expr/ranges.h"

/* The widening of a libm function's endpoints, in ulps: more than the error of any libm. */
#define SLACK 8

static const attune__interval all_ints = {.lo = INT32_MIN, .hi = INT32_MAX};

static attune__interval ints(int64_t lo, int64_t hi)
{
    return lo < INT32_MIN || hi > INT32_MAX ? all_ints : (attune__interval){.lo = (int32_t)lo, .hi = (int32_t)hi};
}

static attune__interval truth(bool may_false, bool may_true)
{
    return (attune__interval){.lo = !may_false, .hi = may_true};
}

static attune__interval floats(float lo, float hi, bool nan)
{
    return (attune__interval){.flo = lo, .fhi = hi, .may_nan = nan};
}

static attune__interval all_floats(bool nan)
{
    return floats(-INFINITY, INFINITY, nan);
}

/* -------------------------------------------------------------------------------------------------------------- i32 */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t greatest(int64_t a, int64_t b)
{
    return a < b ? b : a;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static attune__interval mul_int(attune__interval a, attune__interval b)
{
    int64_t p = (int64_t)a.lo * b.lo, q = (int64_t)a.lo * b.hi, r = (int64_t)a.hi * b.lo, s = (int64_t)a.hi * b.hi;
    return ints(least(least(p, q), least(r, s)), greatest(greatest(p, q), greatest(r, s)));
}

/* The divisor is split by sign; for one sign the quotient is monotone in both, so its corners bound it. */
static attune__interval div_int(attune__interval a, attune__interval b)
{
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    if (b.lo <= 0 && b.hi >= 0)
        lo = hi = 0;
    const int64_t part[2][2] = {{b.lo, least(b.hi, -1)}, {greatest(b.lo, 1), b.hi}};
    for (int i = 0; i < 2; i++) {
        if (part[i][0] > part[i][1])
            continue;
        for (int j = 0; j < 2; j++) {
            int64_t p = floor_div(a.lo, part[i][j]), q = floor_div(a.hi, part[i][j]);
            lo = least(lo, least(p, q));
            hi = greatest(hi, greatest(p, q));
        }
    }
    return ints(lo, hi);
}

static attune__interval mod_int(attune__interval a, attune__interval b)
{
    if (b.lo == b.hi) {
        if (b.lo == 0)
            return ints(0, 0);
        /* within one period the remainder grows with the number */
        if (floor_div(a.lo, b.lo) == floor_div(a.hi, b.lo))
            return ints(attune__imod(a.lo, b.lo), attune__imod(a.hi, b.lo));
    }
    if (a.lo >= 0 && a.hi < b.lo)
        return a;
    int64_t lo = 0, hi = 0;
    if (b.hi > 0)
        hi = a.lo >= 0 ? least(b.hi - 1, a.hi) : b.hi - 1;
    if (b.lo < 0)
        lo = a.hi <= 0 ? greatest((int64_t)b.lo + 1, a.lo) : (int64_t)b.lo + 1;
    return ints(lo, hi);
}

static attune__interval abs_int(attune__interval a)
{
    if (a.lo >= 0)
        return a;
    if (a.lo == INT32_MIN)
        return all_ints;
    return a.hi <= 0 ? ints(-(int64_t)a.hi, -(int64_t)a.lo) : ints(0, greatest(-(int64_t)a.lo, a.hi));
}

/* int and bool: false is 0, true is 1. */
static attune__interval bound_int(attune__op op, attune__interval a, attune__interval b)
{
    switch (op) {
    case ATTUNE__OP_ADD:
        return ints((int64_t)a.lo + b.lo, (int64_t)a.hi + b.hi);
    case ATTUNE__OP_SUB:
        return ints((int64_t)a.lo - b.hi, (int64_t)a.hi - b.lo);
    case ATTUNE__OP_MUL:
        return mul_int(a, b);
    case ATTUNE__OP_DIV:
        return div_int(a, b);
    case ATTUNE__OP_MOD:
        return mod_int(a, b);
    case ATTUNE__OP_NEG:
        return ints(-(int64_t)a.hi, -(int64_t)a.lo);
    case ATTUNE__OP_ABS:
        return abs_int(a);
    case ATTUNE__OP_MIN:
        return ints(least(a.lo, b.lo), least(a.hi, b.hi));
    case ATTUNE__OP_MAX:
        return ints(greatest(a.lo, b.lo), greatest(a.hi, b.hi));
    case ATTUNE__OP_EQ:
        return truth(a.lo != b.hi || a.hi != b.lo, a.lo <= b.hi && b.lo <= a.hi);
    case ATTUNE__OP_NE:
        return truth(a.lo <= b.hi && b.lo <= a.hi, a.lo != b.hi || a.hi != b.lo);
    case ATTUNE__OP_LT:
        return truth(a.hi >= b.lo, a.lo < b.hi);
    case ATTUNE__OP_LE:
        return truth(a.hi > b.lo, a.lo <= b.hi);
    case ATTUNE__OP_AND:
        return (attune__interval){.lo = a.lo & b.lo, .hi = a.hi & b.hi};
    case ATTUNE__OP_OR:
        return (attune__interval){.lo = a.lo | b.lo, .hi = a.hi | b.hi};
    case ATTUNE__OP_NOT:
        return (attune__interval){.lo = !a.hi, .hi = !a.lo};
    case ATTUNE__OP_FLOAT:
        return floats((float)a.lo, (float)a.hi, false);
    default:
        return all_ints;
    }
}

/* -------------------------------------------------------------------------------------------------------------- f32 */

static bool has_zero(attune__interval a)
{
    return a.flo <= 0 && a.fhi >= 0;
}

static bool has_infinity(attune__interval a)
{
    return a.flo == -INFINITY || a.fhi == INFINITY;
}

static attune__interval sum(attune__interval a, attune__interval b)
{
    bool nan = a.may_nan || b.may_nan || (a.flo == -INFINITY && b.fhi == INFINITY) ||
               (a.fhi == INFINITY && b.flo == -INFINITY);
    float lo = a.flo + b.flo, hi = a.fhi + b.fhi;
    return floats(lo == lo ? lo : -INFINITY, hi == hi ? hi : INFINITY, nan);
}

static attune__interval negative(attune__interval a)
{
    return floats(-a.fhi, -a.flo, a.may_nan);
}

/* A corner that is NaN (0 * inf, inf / inf) is skipped: the other corners or 0 cover its limit. */
static attune__interval corners(float p, float q, float r, float s, bool nan)
{
    const float corner[] = {p, q, r, s};
    float lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < 4; i++) {
        float c = corner[i] == corner[i] ? corner[i] : 0;
        lo = c < lo ? c : lo;
        hi = c > hi ? c : hi;
    }
    return floats(lo, hi, nan);
}

static attune__interval product(attune__interval a, attune__interval b)
{
    bool nan = a.may_nan || b.may_nan || (has_zero(a) && has_infinity(b)) || (has_infinity(a) && has_zero(b));
    return corners(a.flo * b.flo, a.flo * b.fhi, a.fhi * b.flo, a.fhi * b.fhi, nan);
}

static attune__interval quotient(attune__interval a, attune__interval b)
{
    bool nan = a.may_nan || b.may_nan || (has_infinity(a) && has_infinity(b)) || (has_zero(a) && has_zero(b));
    if (has_zero(b))
        return all_floats(nan);
    return corners(a.flo / b.flo, a.flo / b.fhi, a.fhi / b.flo, a.fhi / b.fhi, nan);
}

static attune__interval widened(float lo, float hi, float floor_value, float ceil_value, bool nan)
{
    if (lo != lo || hi != hi)
        return floats(floor_value, ceil_value, true);
    for (int i = 0; i < SLACK; i++) {
        lo = nextafterf(lo, -INFINITY);
        hi = nextafterf(hi, INFINITY);
    }
    return floats(lo < floor_value ? floor_value : lo, hi > ceil_value ? ceil_value : hi, nan);
}

static attune__interval root(attune__interval a)
{
    bool nan = a.may_nan || a.flo < 0;
    return floats(a.flo > 0 ? sqrtf(a.flo) : -0.0f, a.fhi > 0 ? sqrtf(a.fhi) : 0, nan);
}

static attune__interval logarithm(attune__interval a, float (*f)(float))
{
    bool nan = a.may_nan || a.flo < 0;
    if (a.fhi <= 0)
        return floats(-INFINITY, -INFINITY, nan);
    attune__interval wide = widened(a.flo > 0 ? f(a.flo) : -INFINITY, f(a.fhi), -INFINITY, INFINITY, nan);
    return wide;
}

static attune__interval power(attune__interval a, attune__interval b)
{
    /* pow(1, NaN) and pow(NaN, 0) are 1: within the corners where they can happen, but not if a is never 1 otherwise */
    if (a.may_nan || b.may_nan || !(a.flo > 0))
        return all_floats(true);
    attune__interval c = corners(powf(a.flo, b.flo), powf(a.flo, b.fhi), powf(a.fhi, b.flo), powf(a.fhi, b.fhi), false);
    return widened(c.flo, c.fhi, 0, INFINITY, false);
}

static attune__interval wave(attune__interval a, float (*f)(float))
{
    bool nan = a.may_nan || has_infinity(a);
    if (a.flo == a.fhi && !has_infinity(a) && a.flo != 0)
        return widened(f(a.flo), f(a.flo), -1, 1, nan);
    return floats(-1, 1, nan);
}

static attune__interval compare(attune__op op, attune__interval a, attune__interval b)
{
    bool nan = a.may_nan || b.may_nan;
    bool apart = a.fhi < b.flo || b.fhi < a.flo;
    bool same = a.flo == a.fhi && b.flo == b.fhi && a.flo == b.flo;
    switch (op) {
    case ATTUNE__OP_EQ:
        return truth(!same || nan, !apart);
    case ATTUNE__OP_NE:
        return truth(!apart, !same || nan);
    case ATTUNE__OP_LT:
        return truth(a.fhi >= b.flo || nan, a.flo < b.fhi);
    default:
        return truth(a.fhi > b.flo || nan, a.flo <= b.fhi);
    }
}

static attune__interval bound_float(attune__op op, attune__interval a, attune__interval b)
{
    attune__interval t;
    switch (op) {
    case ATTUNE__OP_ADD:
        return sum(a, b);
    case ATTUNE__OP_SUB:
        return sum(a, negative(b));
    case ATTUNE__OP_MUL:
        return product(a, b);
    case ATTUNE__OP_DIV:
        return quotient(a, b);
    case ATTUNE__OP_MOD:
        t = quotient(a, b);
        return sum(a, negative(product(floats(floorf(t.flo), floorf(t.fhi), t.may_nan), b)));
    case ATTUNE__OP_NEG:
        return negative(a);
    case ATTUNE__OP_ABS:
        if (a.flo >= 0)
            return floats(fabsf(a.flo), a.fhi, a.may_nan);
        return a.fhi <= 0 ? negative(a) : floats(0, -a.flo > a.fhi ? -a.flo : a.fhi, a.may_nan);
    case ATTUNE__OP_MIN: /* a NaN on the right gives a */
        return floats(a.flo < b.flo ? a.flo : b.flo, b.may_nan || a.fhi < b.fhi ? a.fhi : b.fhi, a.may_nan);
    case ATTUNE__OP_MAX:
        return floats(b.may_nan || a.flo > b.flo ? a.flo : b.flo, a.fhi > b.fhi ? a.fhi : b.fhi, a.may_nan);
    case ATTUNE__OP_EQ:
    case ATTUNE__OP_NE:
    case ATTUNE__OP_LT:
    case ATTUNE__OP_LE:
        return compare(op, a, b);
    case ATTUNE__OP_FLOOR:
        return floats(floorf(a.flo), floorf(a.fhi), a.may_nan);
    case ATTUNE__OP_CEIL:
        return floats(ceilf(a.flo), ceilf(a.fhi), a.may_nan);
    case ATTUNE__OP_EXP:
        return widened(expf(a.flo), expf(a.fhi), 0, INFINITY, a.may_nan);
    case ATTUNE__OP_EXP2:
        return widened(exp2f(a.flo), exp2f(a.fhi), 0, INFINITY, a.may_nan);
    case ATTUNE__OP_LOG:
        return logarithm(a, logf);
    case ATTUNE__OP_LOG2:
        return logarithm(a, log2f);
    case ATTUNE__OP_SQRT:
        return root(a);
    case ATTUNE__OP_RSQRT:
        t = root(a);
        /* 1 / -0 is -inf */
        return t.flo > 0 ? floats(1 / t.fhi, 1 / t.flo, t.may_nan) : floats(-INFINITY, INFINITY, t.may_nan);
    case ATTUNE__OP_TANH:
        return widened(tanhf(a.flo), tanhf(a.fhi), -1, 1, a.may_nan);
    case ATTUNE__OP_SIGMOID:
        return widened(1 / (1 + expf(-a.flo)), 1 / (1 + expf(-a.fhi)), 0, 1, a.may_nan);
    case ATTUNE__OP_SIN:
        return wave(a, sinf);
    case ATTUNE__OP_COS:
        return wave(a, cosf);
    case ATTUNE__OP_POW:
        return power(a, b);
    default:
        return all_floats(true);
    }
}

/* ------------------------------------------------------------------------------------------------------- evaluation */

static attune__interval exactly(attune__type type, attune__value value)
{
    if (type != ATTUNE__FLOAT)
        return (attune__interval){.lo = value.i, .hi = value.i};
    return value.f == value.f ? floats(value.f, value.f, false) : all_floats(true);
}

static attune__interval anything(attune__type type, attune_dtype dtype)
{
    if (type == ATTUNE__FLOAT)
        return all_floats(true);
    if (type == ATTUNE__BOOL)
        return truth(true, true);
    return dtype == ATTUNE_U8 ? ints(0, 255) : all_ints;
}

static attune__interval either(attune__type type, attune__interval a, attune__interval b)
{
    if (type != ATTUNE__FLOAT)
        return (attune__interval){.lo = a.lo < b.lo ? a.lo : b.lo, .hi = a.hi > b.hi ? a.hi : b.hi};
    return floats(a.flo < b.flo ? a.flo : b.flo, a.fhi > b.fhi ? a.fhi : b.fhi, a.may_nan || b.may_nan);
}

static attune__interval capture(const attune_expr *expr, const attune__node *node, const attune__bindings *bindings,
                                const attune__ranges *ranges, const attune__interval *values, uint64_t *looked)
{
    attune__interval index[ATTUNE_MAX_RANK];
    for (uint32_t d = 0; d < node->arg_count; d++)
        index[d] = values[node->arg[d]];
    if (ranges)
        return attune__ranges_query(ranges, bindings, (uint32_t)node->value.i, index, looked);
    return anything((attune__type)node->type, expr->symbols[node->value.i].dtype);
}

/* Bounds a node from the bounds of its operands. */
static void bound_node(const attune_expr *expr, uint32_t n, const attune__bindings *bindings,
                       const attune__ranges *ranges, const attune__box *box, const attune__interval *bounds,
                       uint64_t *looked, attune__interval *out)
{
    const attune__node *node = &expr->nodes[n];
    const attune__interval *a = &bounds[node->arg[0]], *b = &bounds[node->arg[1]];
    const attune__type type = (attune__type)node->type;
    switch (node->op) {
    case ATTUNE__OP_CONST:
        *out = exactly(type, node->value);
        break;
    case ATTUNE__OP_VAR:
        *out = box->var[node->value.i];
        break;
    case ATTUNE__OP_PARAM:
        *out = bindings && bindings->parameters ? exactly(type, bindings->parameters[node->value.i])
                                                : anything(type, ATTUNE_I32);
        break;
    case ATTUNE__OP_CAPTURE:
        *out = capture(expr, node, bindings, ranges, bounds, looked);
        break;
    case ATTUNE__OP_SELECT: {
        const attune__interval *c = &bounds[node->arg[2]];
        *out = a->lo == 1 ? *b : a->hi == 0 ? *c : either(type, *b, *c);
        break;
    }
    default: {
        const attune__type operands = (attune__type)expr->nodes[node->arg[node->arg_count - 1]].type;
        *out = operands == ATTUNE__FLOAT ? bound_float((attune__op)node->op, *a, *b)
                                         : bound_int((attune__op)node->op, *a, *b);
        break;
    }
    }
}

attune__interval attune__expr_open_bounds(const attune_expr *expr, const attune__open_nodes *open,
                                          const attune__bindings *bindings, const attune__ranges *ranges,
                                          const attune__box *box, attune__interval *scratch, uint64_t *looked)
{
    for (uint32_t i = 0; i < open->count; i++)
        bound_node(expr, open->nodes[i], bindings, ranges, box, scratch, looked, &scratch[open->nodes[i]]);
    return scratch[expr->node_count - 1];
}

attune__interval attune__expr_bounds(const attune_expr *expr, const attune__bindings *bindings,
                                     const attune__ranges *ranges, const attune__box *box, attune__interval *scratch)
{
    uint64_t looked = 0;
    for (uint16_t n = 0; n < expr->node_count; n++)
        (void)attune__expr_open_bounds(expr, &(attune__open_nodes){&n, 1}, bindings, ranges, box, scratch, &looked);
    return scratch[expr->node_count - 1];
}

/* ---------------------------------------------------------------------------------------------------------- pruning */

/* An interval does not distinguish 0 from -0. */
static bool decided(const attune__node *node, const attune__interval *bounds)
{
    if (node->type != ATTUNE__FLOAT)
        return bounds->lo == bounds->hi;
    return bounds->flo == bounds->fhi && bounds->flo != 0 && !bounds->may_nan;
}

uint32_t attune__expr_prune(const attune_expr *expr, const attune__open_nodes *open, const attune__interval *bounds,
                            uint16_t *nodes)
{
    bool needed[ATTUNE_EXPR_MAX_NODES] = {false};
    needed[expr->node_count - 1] = true;
    for (uint32_t i = open->count; i-- > 0;) {
        const uint32_t n = open->nodes[i];
        const attune__node *node = &expr->nodes[n];
        needed[n] = needed[n] && !decided(node, &bounds[n]);
        if (!needed[n])
            continue;
        const attune__interval *condition = &bounds[node->arg[0]];
        const bool chosen = node->op == ATTUNE__OP_SELECT && condition->lo == condition->hi;
        for (uint32_t a = 0; a < node->arg_count; a++)
            if (!chosen || a == (condition->lo ? 1 : 2))
                needed[node->arg[a]] = true;
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < open->count; i++)
        if (needed[open->nodes[i]])
            nodes[count++] = open->nodes[i];
    return count;
}
