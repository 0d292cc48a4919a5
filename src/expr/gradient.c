/* SPDX-License-Identifier: MIT */
/* Reverse accumulation: from the result backwards, each node adds its adjoint times its local derivative to the
 * adjoints of its operands. */
#include "expr/gradient.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "expr/builder.h"
#include "expr/ops.h"
#include "expr/print.h"

typedef struct accumulation {
    attune__builder *builder;
    const attune_expr *expr;
    uint32_t number[ATTUNE_EXPR_MAX_NODES];   /* the expression's nodes, in the builder */
    uint32_t adjoints[ATTUNE_EXPR_MAX_NODES]; /* d result / d node, in the builder; ATTUNE__NONE: exactly 0 */
    bool carries[ATTUNE_EXPR_MAX_NODES];      /* float nodes that depend on the score or on a capture element */
    bool partial[ATTUNE__BUILDER_NODES];      /* adjoints that are 0 where the value of their node is not used */
} accumulation;

static uint32_t make_float(accumulation *a, double value)
{
    return attune__make_float(a->builder, value);
}

static uint32_t make2(accumulation *a, attune__op op, uint32_t x, uint32_t y)
{
    return attune__make2(a->builder, op, x, y);
}

static uint32_t choose(accumulation *a, uint32_t condition, uint32_t x, uint32_t y)
{
    return attune__make(a->builder, ATTUNE__OP_SELECT, condition, x, y);
}

static const attune__node *node_at(const accumulation *a, uint32_t node)
{
    return &a->builder->nodes[node];
}

static bool is_constant(const accumulation *a, uint32_t node)
{
    return node_at(a, node)->op == ATTUNE__OP_CONST;
}

static bool is_zero(const accumulation *a, uint32_t node)
{
    return is_constant(a, node) && node_at(a, node)->real == 0;
}

/* Whether 0 times, or 0 over, this constant is 0: it is finite in f32, and not a divisor of 0. */
static bool keeps_zero(const accumulation *a, uint32_t node, attune__op op)
{
    const attune__node *n = node_at(a, node);
    return is_constant(a, node) && isfinite(n->value.f) && (op == ATTUNE__OP_MUL || n->value.f != 0);
}

static uint32_t mark_partial(accumulation *a, uint32_t node)
{
    a->partial[node] = !is_constant(a, node);
    return node;
}

static bool carries(const accumulation *a, uint32_t n)
{
    const attune__node *node = &a->expr->nodes[n];
    if (node->type != ATTUNE__FLOAT)
        return false;
    bool any = node->op == ATTUNE__OP_CAPTURE || (node->op == ATTUNE__OP_VAR && node->value.i == ATTUNE__VAR_SCORE);
    for (uint32_t j = 0; j < node->arg_count; j++)
        any |= a->carries[node->arg[j]];
    return any;
}

static void add(accumulation *a, uint32_t node, uint32_t d)
{
    if (!a->carries[node] || is_zero(a, d))
        return;
    const uint32_t old = a->adjoints[node];
    a->adjoints[node] = old == ATTUNE__NONE ? d : make2(a, ATTUNE__OP_ADD, old, d);
    if (a->partial[d] || (old != ATTUNE__NONE && a->partial[old]))
        mark_partial(a, a->adjoints[node]);
}

/* d * x or d / x. Where the value is not used, x may be non-finite, and the product must still be 0. */
static uint32_t product(accumulation *a, attune__op op, uint32_t d, uint32_t x)
{
    if (op == ATTUNE__OP_MUL && is_zero(a, x))
        return x;
    if (!a->partial[d])
        return make2(a, op, d, x);
    const attune__node n = *node_at(a, d);
    if (n.op == ATTUNE__OP_SELECT && is_zero(a, n.arg[2]))
        return mark_partial(a, choose(a, n.arg[0], product(a, op, n.arg[1], x), n.arg[2]));
    if (n.op == ATTUNE__OP_SELECT && is_zero(a, n.arg[1]))
        return mark_partial(a, choose(a, n.arg[0], n.arg[1], product(a, op, n.arg[2], x)));
    if (keeps_zero(a, x, op))
        return mark_partial(a, make2(a, op, d, x));
    const uint32_t zero = make_float(a, 0);
    return mark_partial(a, choose(a, make2(a, ATTUNE__OP_EQ, d, zero), zero, make2(a, op, d, x)));
}

static uint32_t multiplied(accumulation *a, uint32_t d, uint32_t factor)
{
    return product(a, ATTUNE__OP_MUL, d, factor);
}

static uint32_t divided(accumulation *a, uint32_t d, uint32_t divisor)
{
    /* The derivative of c * f(x / c), the form of a soft-cap, is f'(x / c). */
    const attune__node *n = node_at(a, d);
    if (n->op == ATTUNE__OP_MUL && (n->arg[0] == divisor || n->arg[1] == divisor))
        return n->arg[n->arg[0] == divisor];
    return product(a, ATTUNE__OP_DIV, d, divisor);
}

static uint32_t negated(accumulation *a, uint32_t d)
{
    const uint32_t negative = attune__make1(a->builder, ATTUNE__OP_NEG, d);
    return a->partial[d] ? mark_partial(a, negative) : negative;
}

/* select(condition, x, y), whose adjoints are partial. */
static uint32_t adjoint_of_choice(accumulation *a, uint32_t condition, uint32_t x, uint32_t y)
{
    return mark_partial(a, choose(a, condition, x, y));
}

/* The operand of min or max that is taken gets d; equal operands get half each. */
static void add_extreme(accumulation *a, const attune__node *node, uint32_t d)
{
    const uint32_t x = a->number[node->arg[0]], y = a->number[node->arg[1]];
    const bool least = node->op == ATTUNE__OP_MIN;
    const uint32_t second = make2(a, ATTUNE__OP_LT, least ? y : x, least ? x : y);
    const uint32_t zero = make_float(a, 0);
    const uint32_t half = multiplied(a, d, make_float(a, 0.5));
    const uint32_t equal = make2(a, ATTUNE__OP_EQ, x, y);
    add(a, node->arg[0], adjoint_of_choice(a, second, zero, adjoint_of_choice(a, equal, half, d)));
    add(a, node->arg[1], adjoint_of_choice(a, second, d, adjoint_of_choice(a, equal, half, zero)));
}

/* clamp is stored as min(max(x, lo), hi), so that hi takes precedence over lo. */
static void add_clamp(accumulation *a, const attune__node *node, uint32_t d)
{
    const attune__node *inner = &a->expr->nodes[node->arg[0]];
    const uint32_t x = a->number[inner->arg[0]], lo = a->number[inner->arg[1]], hi = a->number[node->arg[1]];
    const uint32_t below = make2(a, ATTUNE__OP_LT, x, lo), above = make2(a, ATTUNE__OP_LT, hi, x);
    const uint32_t crossed = make2(a, ATTUNE__OP_LT, hi, lo), outside = make2(a, ATTUNE__OP_OR, below, above);
    const uint32_t zero = make_float(a, 0);
    const uint32_t to_hi = make2(a, ATTUNE__OP_OR, above, crossed);
    add(a, inner->arg[0], adjoint_of_choice(a, outside, zero, d));
    add(a, inner->arg[1], adjoint_of_choice(a, below, adjoint_of_choice(a, crossed, zero, d), zero));
    add(a, node->arg[1], adjoint_of_choice(a, to_hi, d, zero));
}

static void add_power(accumulation *a, const attune__node *node, uint32_t d, uint32_t result)
{
    const uint32_t x = a->number[node->arg[0]], y = a->number[node->arg[1]];
    const uint32_t zero = make_float(a, 0), one = make_float(a, 1);
    const uint32_t power = make2(a, ATTUNE__OP_POW, x, make2(a, ATTUNE__OP_SUB, y, one));
    const uint32_t slope = make2(a, ATTUNE__OP_MUL, y, power);
    const uint32_t flat = make2(a, ATTUNE__OP_EQ, y, zero);
    add(a, node->arg[0], multiplied(a, d, choose(a, flat, zero, slope)));
    const uint32_t at_zero =
        make2(a, ATTUNE__OP_AND, make2(a, ATTUNE__OP_EQ, x, zero), make2(a, ATTUNE__OP_LE, zero, y));
    const uint32_t growth = make2(a, ATTUNE__OP_MUL, result, attune__make1(a->builder, ATTUNE__OP_LOG, x));
    if (a->carries[node->arg[1]])
        add(a, node->arg[1], multiplied(a, d, choose(a, at_zero, zero, growth)));
}

static void add_function(accumulation *a, const attune__node *node, uint32_t d, uint32_t result)
{
    const uint32_t x = a->number[node->arg[0]];
    const double ln2 = 0.693147180559945309417;
    switch (node->op) {
    case ATTUNE__OP_EXP:
        add(a, node->arg[0], multiplied(a, d, result));
        break;
    case ATTUNE__OP_EXP2:
        add(a, node->arg[0], multiplied(a, multiplied(a, d, make_float(a, ln2)), result));
        break;
    case ATTUNE__OP_LOG:
        add(a, node->arg[0], divided(a, d, x));
        break;
    case ATTUNE__OP_LOG2:
        add(a, node->arg[0], divided(a, multiplied(a, d, make_float(a, 1 / ln2)), x));
        break;
    case ATTUNE__OP_SQRT:
        add(a, node->arg[0], divided(a, multiplied(a, d, make_float(a, 0.5)), result));
        break;
    case ATTUNE__OP_RSQRT: /* result / x is finite wherever result^3 is */
        add(a, node->arg[0], multiplied(a, multiplied(a, d, make_float(a, -0.5)), make2(a, ATTUNE__OP_DIV, result, x)));
        break;
    case ATTUNE__OP_TANH: {
        const uint32_t square = make2(a, ATTUNE__OP_MUL, result, result);
        add(a, node->arg[0], multiplied(a, d, make2(a, ATTUNE__OP_SUB, make_float(a, 1), square)));
        break;
    }
    case ATTUNE__OP_SIGMOID: {
        const uint32_t rest = make2(a, ATTUNE__OP_SUB, make_float(a, 1), result);
        add(a, node->arg[0], multiplied(a, d, make2(a, ATTUNE__OP_MUL, result, rest)));
        break;
    }
    case ATTUNE__OP_SIN:
        add(a, node->arg[0], multiplied(a, d, attune__make1(a->builder, ATTUNE__OP_COS, x)));
        break;
    case ATTUNE__OP_COS:
        add(a, node->arg[0], negated(a, multiplied(a, d, attune__make1(a->builder, ATTUNE__OP_SIN, x))));
        break;
    default: /* floor and ceil have derivative 0 */
        break;
    }
}

static void add_operands(accumulation *a, uint32_t index)
{
    const attune__node *node = &a->expr->nodes[index];
    const uint32_t d = a->adjoints[index];
    const uint32_t result = a->number[index];
    const uint32_t x = node->arg_count > 0 ? a->number[node->arg[0]] : 0;
    const uint32_t y = node->arg_count > 1 ? a->number[node->arg[1]] : 0;
    switch (node->op) {
    case ATTUNE__OP_ADD:
        add(a, node->arg[0], d);
        add(a, node->arg[1], d);
        break;
    case ATTUNE__OP_SUB:
        add(a, node->arg[0], d);
        add(a, node->arg[1], negated(a, d));
        break;
    case ATTUNE__OP_MUL:
        add(a, node->arg[0], multiplied(a, d, y));
        add(a, node->arg[1], multiplied(a, d, x));
        break;
    case ATTUNE__OP_DIV:
        add(a, node->arg[0], divided(a, d, y));
        if (a->carries[node->arg[1]])
            add(a, node->arg[1], negated(a, multiplied(a, d, make2(a, ATTUNE__OP_DIV, result, y))));
        break;
    case ATTUNE__OP_MOD: {
        const uint32_t whole = attune__make1(a->builder, ATTUNE__OP_FLOOR, make2(a, ATTUNE__OP_DIV, x, y));
        add(a, node->arg[0], d);
        if (a->carries[node->arg[1]])
            add(a, node->arg[1], negated(a, multiplied(a, d, whole)));
        break;
    }
    case ATTUNE__OP_NEG:
        add(a, node->arg[0], negated(a, d));
        break;
    case ATTUNE__OP_ABS: {
        const uint32_t zero = make_float(a, 0);
        const uint32_t falls = adjoint_of_choice(a, make2(a, ATTUNE__OP_LT, x, zero), negated(a, d), zero);
        add(a, node->arg[0], adjoint_of_choice(a, make2(a, ATTUNE__OP_LT, zero, x), d, falls));
        break;
    }
    case ATTUNE__OP_MIN:
        if (a->expr->nodes[node->arg[0]].op == ATTUNE__OP_MAX)
            add_clamp(a, node, d);
        else
            add_extreme(a, node, d);
        break;
    case ATTUNE__OP_MAX:
        add_extreme(a, node, d);
        break;
    case ATTUNE__OP_SELECT: {
        const uint32_t zero = make_float(a, 0);
        add(a, node->arg[1], adjoint_of_choice(a, x, d, zero));
        add(a, node->arg[2], adjoint_of_choice(a, x, zero, d));
        break;
    }
    case ATTUNE__OP_POW:
        add_power(a, node, d, result);
        break;
    default:
        if (node->arg_count && node->op != ATTUNE__OP_CAPTURE && node->op != ATTUNE__OP_FLOAT)
            add_function(a, node, d, result);
        break;
    }
}

/* Writes the roots of the gradient: that of the score, then the capture node and the derivative of each read. */
static uint32_t accumulate(accumulation *a, uint32_t *roots)
{
    const attune_expr *expr = a->expr;
    for (uint32_t i = 0; i < expr->node_count; i++) {
        a->adjoints[i] = ATTUNE__NONE;
        a->carries[i] = carries(a, i);
    }
    a->adjoints[expr->node_count - 1] = make_float(a, 1);
    roots[0] = make_float(a, 0);
    uint32_t count = 1;
    for (uint32_t i = expr->node_count; i-- > 0;) {
        const attune__node *node = &expr->nodes[i];
        if (a->adjoints[i] == ATTUNE__NONE)
            continue;
        if (node->op == ATTUNE__OP_CAPTURE) {
            roots[count++] = a->number[i];
            roots[count++] = a->adjoints[i];
        } else if (node->op == ATTUNE__OP_VAR) {
            roots[0] = a->adjoints[i];
        } else {
            add_operands(a, i);
        }
    }
    return count;
}

/* The derivatives use the symbols of the score expression, so that both share the bindings. */
static attune_status share_symbols(const attune_expr *score, attune_expr *expr)
{
    attune__symbol *symbols = attune__alloc(&expr->allocator, score->symbol_count, sizeof *symbols);
    if (!symbols)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; i < expr->node_count; i++) {
        attune__node *node = &expr->nodes[i];
        if (node->op != ATTUNE__OP_PARAM && node->op != ATTUNE__OP_CAPTURE)
            continue;
        int32_t symbol = 0;
        while (strcmp(score->symbols[symbol].name, expr->symbols[node->value.i].name) != 0)
            symbol++;
        node->value.i = symbol;
    }
    memcpy(symbols, score->symbols, score->symbol_count * sizeof *symbols);
    attune__free(&expr->allocator, expr->symbols);
    expr->symbols = symbols;
    expr->symbol_count = score->symbol_count;
    return ATTUNE_OK;
}

static attune_status finish(accumulation *a, uint32_t *roots, attune__gradient *gradient)
{
    const uint32_t count = accumulate(a, roots);
    ATTUNE__TRY(attune__builder_finish_all(a->builder, roots, count, ATTUNE_UNSUPPORTED, &gradient->expr));
    ATTUNE__TRY(share_symbols(a->expr, gradient->expr));
    gradient->score = roots[0];
    gradient->read_count = count / 2;
    gradient->reads = attune__alloc(a->builder->allocator, count, sizeof *gradient->reads);
    if (!gradient->reads)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; i < gradient->read_count; i++)
        gradient->reads[i] = (attune__gradient_read){roots[1 + 2 * i], roots[2 + 2 * i]};
    return ATTUNE_OK;
}

attune_status attune__gradient_create(const attune_expr *expr, attune__gradient **gradient)
{
    *gradient = NULL;
    if (expr->kind != ATTUNE_EXPR_SCORE)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "a mask has no derivative; score expressions have");
    const attune_allocator *allocator = &expr->allocator;
    attune__builder builder;
    ATTUNE__TRY(attune__builder_init(&builder, allocator, ATTUNE_EXPR_SCORE));
    accumulation *a = attune__alloc(allocator, 1, sizeof *a);
    uint32_t *roots = attune__alloc(allocator, 1 + 2 * (size_t)expr->node_count, sizeof *roots);
    attune__gradient *result = attune__alloc(allocator, 1, sizeof *result);
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    if (result)
        result->allocator = *allocator;
    if (a && roots && result) {
        a->builder = &builder;
        a->expr = expr;
        status = attune__builder_import(&builder, expr, a->number);
        if (status == ATTUNE_OK)
            status = finish(a, roots, result);
    }
    if (status == ATTUNE_OK)
        *gradient = result;
    else
        attune__gradient_destroy(result);
    attune__free(allocator, roots);
    attune__free(allocator, a);
    attune__builder_free(&builder);
    return status;
}

void attune__gradient_destroy(attune__gradient *gradient)
{
    if (!gradient)
        return;
    const attune_allocator allocator = gradient->allocator;
    attune__expr_release(gradient->expr);
    attune__free(&allocator, gradient->reads);
    attune__free(&allocator, gradient);
}

uint16_t attune__gradient_uses(const attune__gradient *gradient)
{
    const attune__node *nodes = gradient->expr->nodes;
    uint16_t uses = nodes[gradient->score].uses;
    for (uint32_t i = 0; i < gradient->read_count; i++)
        uses = (uint16_t)(uses | nodes[gradient->reads[i].factor].uses | nodes[gradient->reads[i].capture].uses);
    return uses;
}

attune__uniform_reads attune__gradient_uniform_reads(const attune__gradient *gradient)
{
    const attune__node *nodes = gradient->expr->nodes;
    const uint16_t pair = 1u << ATTUNE__VAR_Q | 1u << ATTUNE__VAR_KV | 1u << ATTUNE__VAR_SCORE;
    attune__uniform_reads uniform = {.count = 0};
    for (uint32_t i = 0; i < gradient->read_count && uniform.count < ATTUNE__UNIFORM_READS; i++) {
        const attune__node *read = &nodes[gradient->reads[i].capture];
        uint16_t uses = 0;
        for (uint32_t a = 0; a < read->arg_count; a++)
            uses = (uint16_t)(uses | nodes[read->arg[a]].uses);
        if (!(uses & pair))
            uniform.reads[uniform.count++] = i;
    }
    return uniform;
}

static attune_status add_derivatives(const attune__gradient *gradient, attune__text *text)
{
    attune__text_add(text, "d score = ");
    ATTUNE__TRY(attune__print_node(gradient->expr, gradient->score, text));
    attune__text_add(text, "\n");
    for (uint32_t i = 0; i < gradient->read_count; i++) {
        attune__text_add(text, "d ");
        ATTUNE__TRY(attune__print_node(gradient->expr, gradient->reads[i].capture, text));
        attune__text_add(text, " = ");
        ATTUNE__TRY(attune__print_node(gradient->expr, gradient->reads[i].factor, text));
        attune__text_add(text, "\n");
    }
    return ATTUNE_OK;
}

attune_status attune__gradient_print(const attune_expr *expr, char *buffer, size_t size, size_t *needed)
{
    attune__gradient *gradient;
    attune_status status = attune__gradient_create(expr, &gradient);
    if (!gradient)
        return status;
    attune__text text = attune__text_begin(buffer, size);
    status = add_derivatives(gradient, &text);
    attune__gradient_destroy(gradient);
    if (status == ATTUNE_OK)
        attune__text_end(&text, needed);
    return status;
}
