/* SPDX-License-Identifier: MIT */
#include "vulkan/mods_bounds.h"

#include <math.h>

#include "expr/capture.h"
#include "expr/ops.h"

#define TINY  0x1p-126 /* below: subnormal */
#define TURNS 20000.0  /* past it the reduction to one turn has no digits to speak of */

static const mods_bound undecided;

/* The spacing of f32 at x, as a bound. */
static double ulp(double x)
{
    return fmax(fabs(x) * 0x1p-23, 0x1p-149);
}

/* A float that was computed: nothing that is not finite is believed, and what may be flushed is allowed for. */
static mods_bound real(attune__value value, double error)
{
    if (!isfinite(value.f) || !isfinite(error) || fabs((double)value.f) + error > 3.4e38)
        return undecided;
    if (value.f != 0 && fabs((double)value.f) - error < TINY)
        error += TINY;
    return (mods_bound){value, true, error};
}

/* A float that is only read. */
static mods_bound given(attune__value value)
{
    const bool subnormal = value.f != 0 && fabs((double)value.f) < TINY;
    return (mods_bound){value, true, subnormal ? TINY : 0};
}

static mods_bound compare(attune__op op, attune__value value, const mods_bound *a, const mods_bound *b)
{
    const double x = (double)a->value.f, y = (double)b->value.f, error = a->error + b->error;
    (void)op;
    if (error > 0 && !(fabs(x - y) > error))
        return undecided;
    return (mods_bound){value, true, 0};
}

static mods_bound whole(attune__op op, attune__value value, const mods_bound *a)
{
    const double x = (double)a->value.f;
    const double lo = x - a->error, hi = x + a->error;
    if (op == ATTUNE__OP_FLOOR ? floor(lo) != floor(hi) : ceil(lo) != ceil(hi))
        return undecided;
    return real(value, 0);
}

static double error_log(double x, double error)
{
    const double carried = error / (x - error);
    return carried + fmax(0x1p-21, 4 * ulp(fmax(fabs(log(x)), fabs(log2(x))))) + carried;
}

static mods_bound power(attune__value value, const mods_bound *a, const mods_bound *b)
{
    const double x = (double)a->value.f, y = (double)b->value.f;
    if (b->error > 0 && x < 0)
        return undecided;
    if ((y == 0 && b->error == 0) || x == 0)
        return a->error > 0 || b->error > 0 ? undecided : real(value, 0);
    if (!isfinite(x) || !isfinite(y) || fabs(x) <= a->error)
        return undecided;
    const double logarithm = log2(fabs(x)), exponent = y * logarithm;
    double error = fabs(y) * (fmax(0x1p-21, 4 * ulp(logarithm)) + 2 * a->error / (fabs(x) - a->error)) +
                   b->error * (fabs(logarithm) + 1) + 2 * ulp(exponent);
    if (error > 0.5)
        return undecided;
    return real(value, fabs((double)value.f) * (error + (5 + 2 * fabs(exponent)) * 0x1p-23));
}

static mods_bound divide(attune__value value, const mods_bound *a, const mods_bound *b)
{
    const double y = fabs((double)b->value.f), r = fabs((double)value.f);
    if (y <= b->error || y - b->error < TINY || y + b->error > 0x1p126)
        return undecided;
    return real(value, (a->error + r * b->error) / (y - b->error) + 3.5 * ulp(r));
}

static mods_bound modulo(attune__value value, const mods_bound *a, const mods_bound *b)
{
    const attune__value quotient = {.f = a->value.f / b->value.f};
    mods_bound q = divide(quotient, a, b);
    if (!q.decided)
        return undecided;
    const attune__value floored = {.f = floorf(quotient.f)};
    q = whole(ATTUNE__OP_FLOOR, floored, &q);
    if (!q.decided)
        return undecided;
    const double carried = a->error + fabs((double)floored.f) * b->error;
    const double rounded = ulp((double)floored.f * (double)b->value.f) + ulp((double)value.f);
    return real(value, carried > 0 ? carried + 2 * rounded : 0);
}

static mods_bound function(attune__op op, attune__value value, const mods_bound *a)
{
    const double x = (double)a->value.f, error = a->error, r = fabs((double)value.f);
    if (!isfinite(x) || error > 1e30)
        return undecided;
    switch (op) {
    case ATTUNE__OP_EXP:
    case ATTUNE__OP_EXP2:
        if (error > 1)
            return undecided;
        return real(value, r * (expm1(error) + (4 + 2 * fabs(x)) * 0x1p-23) + TINY);
    case ATTUNE__OP_LOG:
    case ATTUNE__OP_LOG2:
        return x - error < TINY ? undecided : real(value, error_log(x, error));
    case ATTUNE__OP_SQRT:
        if (x == 0 && error == 0)
            return real(value, 0);
        return x - error < TINY ? undecided : real(value, error / sqrt(x - error) + 6 * ulp(r));
    case ATTUNE__OP_RSQRT:
        return x - error < TINY ? undecided : real(value, r * error / (x - error) + 4 * ulp(r));
    case ATTUNE__OP_TANH:
        return real(value, error + 8 * ulp(r));
    case ATTUNE__OP_SIGMOID:
        return real(value, error / 4 + (8 + 2 * fabs(x)) * ulp(r) + 2 * TINY);
    default: /* sin, cos */
        return fabs(x) > TURNS ? undecided : real(value, error + 0x1p-11 + fabs(x) * 0x1p-22);
    }
}

/* Whether it is 0, or so small that a device may take it for 0, within its error. */
static bool may_vanish(const mods_bound *a)
{
    return fabs((double)a->value.f) - a->error < TINY;
}

static bool is_exact_zero(const mods_bound *a)
{
    return a->value.f == 0 && a->error == 0;
}

/* Of operands among which NaN or infinity is: what IEEE arithmetic makes of them, whatever the others' errors are. */
static mods_bound special(attune__op op, attune__value value, const mods_bound *a, const mods_bound *b)
{
    const bool nan = isnan(a->value.f) || (b && isnan(b->value.f));
    switch (op) {
    case ATTUNE__OP_MIN:
    case ATTUNE__OP_MAX:
        return (mods_bound){value, true, fmax(a->error, b->error)};
    case ATTUNE__OP_MUL:
        return nan || is_exact_zero(a) || is_exact_zero(b) || !(may_vanish(a) || may_vanish(b))
                   ? (mods_bound){value, true, 0}
                   : undecided;
    case ATTUNE__OP_DIV:
        return nan || !(may_vanish(a) || may_vanish(b)) ? (mods_bound){value, true, 0} : undecided;
    case ATTUNE__OP_POW:
        return a->error > 0 || b->error > 0 ? undecided : (mods_bound){value, true, 0};
    default:
        return (mods_bound){value, true, 0};
    }
}

/* Of finite operands: where a function is no number, or infinite, by its definition. */
static bool is_pole(attune__op op, const mods_bound *a, const mods_bound *b)
{
    const bool below = (double)a->value.f < -a->error - TINY;
    switch (op) {
    case ATTUNE__OP_DIV:
    case ATTUNE__OP_MOD:
        return is_exact_zero(b) && (is_exact_zero(a) || !may_vanish(a));
    case ATTUNE__OP_LOG:
    case ATTUNE__OP_LOG2:
        return below || is_exact_zero(a);
    case ATTUNE__OP_SQRT:
        return below;
    case ATTUNE__OP_RSQRT:
        return below || (is_exact_zero(a) && !signbit(a->value.f));
    default:
        return false;
    }
}

static mods_bound apply_float(attune__op op, attune__value value, const mods_bound *a, const mods_bound *b)
{
    const double x = (double)a->value.f, y = (double)b->value.f, r = (double)value.f;
    const double error = a->error + b->error;
    const bool two = attune__op_arity(op) == 2;
    if (!isfinite(x) || (two && !isfinite(y)))
        return special(op, value, a, two ? b : NULL);
    if (is_pole(op, a, b))
        return (mods_bound){value, true, 0};
    switch (op) {
    case ATTUNE__OP_ADD:
    case ATTUNE__OP_SUB:
        return real(value, error > 0 ? error + ulp(r) : 0);
    case ATTUNE__OP_MUL:
        return real(value, error > 0 ? fabs(x) * b->error + fabs(y) * a->error + a->error * b->error + ulp(r) : 0);
    case ATTUNE__OP_DIV:
        return divide(value, a, b);
    case ATTUNE__OP_MOD:
        return modulo(value, a, b);
    case ATTUNE__OP_NEG:
    case ATTUNE__OP_ABS:
        return (mods_bound){value, true, a->error};
    case ATTUNE__OP_MIN:
    case ATTUNE__OP_MAX:
        return (mods_bound){value, true, fmax(a->error, b->error)};
    case ATTUNE__OP_EQ:
    case ATTUNE__OP_NE:
    case ATTUNE__OP_LT:
    case ATTUNE__OP_LE:
        return compare(op, value, a, b);
    case ATTUNE__OP_FLOOR:
    case ATTUNE__OP_CEIL:
        return whole(op, value, a);
    case ATTUNE__OP_POW:
        return power(value, a, b);
    default:
        return function(op, value, a);
    }
}

static mods_bound apply(const attune_expr *expr, const attune__node *node, const mods_bound *bounds)
{
    const mods_bound *arg[3] = {&undecided, &undecided, &undecided};
    attune__value values[3] = {{0}};
    bool decided = true;
    for (uint32_t i = 0; i < node->arg_count; i++) {
        arg[i] = &bounds[node->arg[i]];
        values[i] = arg[i]->value;
        decided = decided && arg[i]->decided;
    }
    const attune__op op = (attune__op)node->op;
    if (op == ATTUNE__OP_SELECT)
        return arg[0]->decided ? *arg[values[0].i ? 1 : 2] : undecided;
    for (int i = 0; i < 2; i++)
        if ((op == ATTUNE__OP_AND && arg[i]->decided && !values[i].i) ||
            (op == ATTUNE__OP_OR && arg[i]->decided && values[i].i))
            return *arg[i];
    if (!decided)
        return undecided;
    const attune__type type = (attune__type)expr->nodes[node->arg[node->arg_count - 1]].type;
    const attune__value value = attune__apply(op, type, values);
    if (type == ATTUNE__FLOAT)
        return apply_float(op, value, arg[0], arg[1]);
    return (mods_bound){value, true, 0};
}

static mods_bound read(const attune_expr *expr, const attune__node *node, const attune__bindings *bindings,
                       const mods_bound *bounds)
{
    int32_t index[ATTUNE_MAX_RANK] = {0};
    for (uint32_t i = 0; i < node->arg_count; i++) {
        if (!bounds[node->arg[i]].decided)
            return undecided;
        index[i] = bounds[node->arg[i]].value.i;
    }
    (void)expr;
    const attune__value value = attune__capture_read(&bindings->captures[node->value.i], node->arg_count, index);
    return node->type == ATTUNE__FLOAT ? given(value) : (mods_bound){value, true, 0};
}

mods_bound mods_bound_of(const attune_expr *expr, const attune__bindings *bindings, const attune_point *point)
{
    mods_bound bounds[ATTUNE_EXPR_MAX_NODES];
    const int32_t vars[] = {point->b, point->h, point->q, point->kv, point->h_kv, point->q_len, point->kv_len};
    for (uint32_t i = 0; i < expr->node_count; i++) {
        const attune__node *node = &expr->nodes[i];
        attune__value value = node->value;
        switch (node->op) {
        case ATTUNE__OP_CAPTURE:
            bounds[i] = read(expr, node, bindings, bounds);
            continue;
        case ATTUNE__OP_VAR:
            if (node->value.i == ATTUNE__VAR_SCORE)
                value.f = point->score;
            else
                value.i = vars[node->value.i];
            break;
        case ATTUNE__OP_PARAM:
            value = bindings->parameters[node->value.i];
            break;
        case ATTUNE__OP_CONST:
            break;
        default:
            bounds[i] = apply(expr, node, bounds);
            continue;
        }
        bounds[i] = node->type == ATTUNE__FLOAT ? given(value) : (mods_bound){value, true, 0};
    }
    return bounds[expr->node_count - 1];
}
