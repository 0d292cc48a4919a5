/* SPDX-License-Identifier: MIT */
/*
 * Simplification while nodes are created. Every rule preserves the value bit for bit (except the bits of a NaN),
 * including wrap-around, signed zeros and NaN; x + 0.0 and !(a < b) of floats are therefore kept. Functions that differ
 * between implementations of libm are not folded, so that hashes are the same on every machine. Operations whose
 * results differ between f32 and f64 are not folded either.
 */
#include "expr/builder.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "expr/ops.h"

#define TABLE_SIZE (2 * ATTUNE__BUILDER_NODES)

attune_status attune__builder_init(attune__builder *builder, const attune_allocator *allocator, attune_expr_kind kind)
{
    memset(builder, 0, sizeof *builder);
    builder->allocator = allocator;
    builder->kind = kind;
    builder->nodes = attune__alloc_raw(allocator, ATTUNE__BUILDER_NODES, sizeof *builder->nodes);
    builder->hashes = attune__alloc_raw(allocator, ATTUNE__BUILDER_NODES, sizeof *builder->hashes);
    builder->table = attune__alloc(allocator, TABLE_SIZE, sizeof *builder->table);
    if (!builder->nodes || !builder->hashes || !builder->table) {
        attune__builder_free(builder);
        return ATTUNE_OUT_OF_HOST_MEMORY;
    }
    return ATTUNE_OK;
}

void attune__builder_free(attune__builder *builder)
{
    attune__free(builder->allocator, builder->nodes);
    attune__free(builder->allocator, builder->hashes);
    attune__free(builder->allocator, builder->table);
}

uint32_t attune__builder_symbol(attune__builder *builder, const attune__symbol *symbol)
{
    for (uint32_t i = 0; i < builder->symbol_count; i++)
        if (!strcmp(builder->symbols[i].name, symbol->name))
            return i;
    if (builder->symbol_count == ATTUNE_EXPR_MAX_SYMBOLS)
        return ATTUNE__NONE;
    builder->symbols[builder->symbol_count] = *symbol;
    return builder->symbol_count++;
}

/* ----------------------------------------------------------------------------------------------------- hash-consing */

static attune__hash content(const attune__builder *builder, const attune__node *node)
{
    attune__hash hash = attune__hash_begin();
    attune__hash_add(&hash, (uint64_t)node->op << 8 | node->type);
    if (node->op == ATTUNE__OP_PARAM || node->op == ATTUNE__OP_CAPTURE) {
        const attune__symbol *symbol = &builder->symbols[node->value.i];
        attune__hash_add(&hash, (uint64_t)symbol->kind << 32 | (uint64_t)symbol->dtype << 16 | symbol->rank);
        for (const char *c = symbol->name; *c; c++)
            attune__hash_add(&hash, (uint64_t)(unsigned char)*c);
    } else {
        attune__hash_add(&hash, (uint32_t)node->value.i);
        if (node->op == ATTUNE__OP_CONST && node->type == ATTUNE__FLOAT && node->real != (double)node->value.f) {
            uint64_t bits;
            memcpy(&bits, &node->real, sizeof bits);
            attune__hash_add(&hash, bits);
        }
    }
    for (uint32_t i = 0; i < node->arg_count; i++) {
        attune__hash_add(&hash, builder->hashes[node->arg[i]].lane[0]);
        attune__hash_add(&hash, builder->hashes[node->arg[i]].lane[1]);
    }
    return hash;
}

static uint32_t intern(attune__builder *builder, attune__node node)
{
    for (uint32_t i = 0; i < node.arg_count; i++)
        node.uses = (uint16_t)(node.uses | builder->nodes[node.arg[i]].uses);
    attune__hash hash = content(builder, &node);
    uint32_t slot = (uint32_t)(hash.lane[0] % TABLE_SIZE);
    for (; builder->table[slot]; slot = (slot + 1) % TABLE_SIZE) {
        attune__hash *other = &builder->hashes[builder->table[slot] - 1];
        if (other->lane[0] == hash.lane[0] && other->lane[1] == hash.lane[1])
            return builder->table[slot] - 1;
    }
    if (builder->count == ATTUNE__BUILDER_NODES) {
        builder->overflow = true;
        return 0;
    }
    builder->nodes[builder->count] = node;
    builder->hashes[builder->count] = hash;
    builder->table[slot] = ++builder->count;
    return builder->count - 1;
}

static uint32_t make_integer(attune__builder *builder, attune__type type, int32_t value)
{
    return intern(builder, (attune__node){.op = ATTUNE__OP_CONST, .type = (uint8_t)type, .value.i = value});
}

uint32_t attune__make_bool(attune__builder *builder, bool value)
{
    return make_integer(builder, ATTUNE__BOOL, value);
}

uint32_t attune__make_int(attune__builder *builder, int32_t value)
{
    return make_integer(builder, ATTUNE__INT, value);
}

uint32_t attune__make_float(attune__builder *builder, double value)
{
    attune__node node = {.op = ATTUNE__OP_CONST, .type = ATTUNE__FLOAT, .value.f = (float)value};
    if (value != value)
        node.value.i = 0x7fc00000; /* one canonical NaN on every host */
    node.real = builder->kind == ATTUNE_EXPR_MASK || value != value ? (double)node.value.f : value;
    return intern(builder, node);
}

uint32_t attune__make_var(attune__builder *builder, attune__var var)
{
    /* A row is that of a query of a sequence. */
    const uint16_t implied = var == ATTUNE__VAR_ROW ? 1u << ATTUNE__VAR_B | 1u << ATTUNE__VAR_Q : 0;
    return intern(builder, (attune__node){.op = ATTUNE__OP_VAR,
                                          .type = var == ATTUNE__VAR_SCORE ? ATTUNE__FLOAT : ATTUNE__INT,
                                          .uses = (uint16_t)(implied | 1u << var),
                                          .value.i = (int32_t)var});
}

uint32_t attune__make_symbol(attune__builder *builder, uint32_t index, const uint32_t *arg)
{
    const attune__symbol *symbol = &builder->symbols[index];
    attune__node node = {.value.i = (int32_t)index};
    if (symbol->kind == ATTUNE_SYMBOL_PARAMETER) {
        node.op = ATTUNE__OP_PARAM;
        node.type = symbol->dtype == ATTUNE_F32 ? ATTUNE__FLOAT : ATTUNE__INT;
    } else {
        node.op = ATTUNE__OP_CAPTURE;
        node.type = (uint8_t)attune__capture_type(symbol->dtype);
        node.arg_count = symbol->rank;
        memcpy(node.arg, arg, symbol->rank * sizeof *arg);
    }
    return intern(builder, node);
}

/* ------------------------------------------------------------------------------------------------------------ rules */

static const attune__node *node_at(const attune__builder *builder, uint32_t node)
{
    return &builder->nodes[node];
}

static bool is_op(const attune__builder *builder, uint32_t node, attune__op op)
{
    return node_at(builder, node)->op == op;
}

static bool is_bool(const attune__builder *builder, uint32_t node, int value)
{
    const attune__node *n = node_at(builder, node);
    return n->op == ATTUNE__OP_CONST && n->type == ATTUNE__BOOL && n->value.i == value;
}

static bool is_int(const attune__builder *builder, uint32_t node, int32_t value)
{
    const attune__node *n = node_at(builder, node);
    return n->op == ATTUNE__OP_CONST && n->type == ATTUNE__INT && n->value.i == value;
}

static bool is_float(const attune__builder *builder, uint32_t node, double value)
{
    const attune__node *n = node_at(builder, node);
    return n->op == ATTUNE__OP_CONST && n->type == ATTUNE__FLOAT && !memcmp(&n->real, &value, sizeof value);
}

/* Whether one is the negation of the other, in the forms of make_not. */
static bool is_negation(const attune__builder *builder, uint32_t a, uint32_t b)
{
    const attune__node *m = node_at(builder, a), *n = node_at(builder, b);
    if (m->op == ATTUNE__OP_NOT || n->op == ATTUNE__OP_NOT)
        return (m->op == ATTUNE__OP_NOT && m->arg[0] == b) || (n->op == ATTUNE__OP_NOT && n->arg[0] == a);
    if ((m->op == ATTUNE__OP_EQ && n->op == ATTUNE__OP_NE) || (m->op == ATTUNE__OP_NE && n->op == ATTUNE__OP_EQ))
        return m->arg[0] == n->arg[0] && m->arg[1] == n->arg[1];
    if ((m->op == ATTUNE__OP_LT && n->op == ATTUNE__OP_LE) || (m->op == ATTUNE__OP_LE && n->op == ATTUNE__OP_LT))
        return node_at(builder, m->arg[0])->type == ATTUNE__INT && m->arg[0] == n->arg[1] && m->arg[1] == n->arg[0];
    return false;
}

/* The order of commutative operands depends on content, not on node numbers, so that a && b and b && a are one node:
 * variables, symbols, other nodes, constants. */
static bool is_ordered_before(const attune__builder *builder, uint32_t a, uint32_t b)
{
    static const uint8_t order[] = {[ATTUNE__OP_CONST] = 4, [ATTUNE__OP_PARAM] = 1, [ATTUNE__OP_CAPTURE] = 2};
    const attune__node *m = node_at(builder, a), *n = node_at(builder, b);
    uint8_t x = m->op <= ATTUNE__OP_CAPTURE ? order[m->op] : 3, y = n->op <= ATTUNE__OP_CAPTURE ? order[n->op] : 3;
    if (x != y)
        return x < y;
    if (m->op == ATTUNE__OP_VAR && n->op == ATTUNE__OP_VAR)
        return m->value.i < n->value.i;
    const uint64_t *p = builder->hashes[a].lane, *q = builder->hashes[b].lane;
    return p[0] != q[0] ? p[0] < q[0] : p[1] < q[1];
}

static bool foldable(attune__op op)
{
    switch (op) {
    case ATTUNE__OP_EXP:
    case ATTUNE__OP_EXP2:
    case ATTUNE__OP_LOG:
    case ATTUNE__OP_LOG2:
    case ATTUNE__OP_TANH:
    case ATTUNE__OP_SIGMOID:
    case ATTUNE__OP_SIN:
    case ATTUNE__OP_COS:
    case ATTUNE__OP_POW:
        return false;
    default:
        return true;
    }
}

static attune__type result_type(const attune__builder *builder, attune__op op, uint32_t a, uint32_t b)
{
    if (op >= ATTUNE__OP_EQ && op <= ATTUNE__OP_NOT)
        return ATTUNE__BOOL;
    if (op >= ATTUNE__OP_FLOAT)
        return ATTUNE__FLOAT;
    return attune__type_of(builder, op == ATTUNE__OP_SELECT ? b : a);
}

static uint32_t make_unsimplified(attune__builder *builder, attune__op op, uint32_t a, uint32_t b, uint32_t c)
{
    attune__node node = {.op = (uint8_t)op,
                         .type = (uint8_t)result_type(builder, op, a, b),
                         .arg = {a, b == ATTUNE__NONE ? 0 : b, c == ATTUNE__NONE ? 0 : c},
                         .arg_count = attune__op_arity(op)};
    return intern(builder, node);
}

static uint32_t make_not(attune__builder *builder, uint32_t a)
{
    const attune__node *n = node_at(builder, a);
    bool ints = n->arg_count && node_at(builder, n->arg[0])->type == ATTUNE__INT;
    uint32_t x = n->arg[0], y = n->arg[1];
    switch (n->op) {
    case ATTUNE__OP_NOT:
        return x;
    case ATTUNE__OP_EQ:
        return attune__make2(builder, ATTUNE__OP_NE, x, y);
    case ATTUNE__OP_NE:
        return attune__make2(builder, ATTUNE__OP_EQ, x, y);
    case ATTUNE__OP_LT:
        return ints ? attune__make2(builder, ATTUNE__OP_LE, y, x) : ATTUNE__NONE;
    case ATTUNE__OP_LE:
        return ints ? attune__make2(builder, ATTUNE__OP_LT, y, x) : ATTUNE__NONE;
    default:
        return ATTUNE__NONE;
    }
}

static uint32_t make_unary(attune__builder *builder, attune__op op, uint32_t a)
{
    const attune__node *n = node_at(builder, a);
    switch (op) {
    case ATTUNE__OP_NEG:
        if (n->op == ATTUNE__OP_NEG)
            return n->arg[0];
        if (n->op == ATTUNE__OP_SUB && n->type == ATTUNE__INT)
            return attune__make2(builder, ATTUNE__OP_SUB, n->arg[1], n->arg[0]);
        break;
    case ATTUNE__OP_ABS:
        if (n->op == ATTUNE__OP_ABS)
            return a;
        if (n->op == ATTUNE__OP_NEG)
            return attune__make1(builder, ATTUNE__OP_ABS, n->arg[0]);
        break;
    case ATTUNE__OP_NOT:
        return make_not(builder, a);
    case ATTUNE__OP_FLOOR:
    case ATTUNE__OP_CEIL:
        if (n->op == ATTUNE__OP_FLOAT || n->op == ATTUNE__OP_FLOOR || n->op == ATTUNE__OP_CEIL)
            return a;
        break;
    default:
        break;
    }
    return ATTUNE__NONE;
}

/* i32 sums. Operands are ordered, so that a constant is on the right. */
static uint32_t make_add_int(attune__builder *builder, uint32_t a, uint32_t b)
{
    const attune__node *m = node_at(builder, a), *n = node_at(builder, b);
    if (n->op == ATTUNE__OP_CONST) {
        int32_t c = n->value.i;
        if (c == 0)
            return a;
        if (m->op == ATTUNE__OP_ADD && is_op(builder, m->arg[1], ATTUNE__OP_CONST))
            return attune__make2(builder, ATTUNE__OP_ADD, m->arg[0],
                                 attune__make_int(builder, attune__iadd(node_at(builder, m->arg[1])->value.i, c)));
        if (m->op == ATTUNE__OP_SUB && is_op(builder, m->arg[0], ATTUNE__OP_CONST)) {
            uint32_t x = m->arg[1];
            return attune__make2(builder, ATTUNE__OP_SUB,
                                 attune__make_int(builder, attune__iadd(node_at(builder, m->arg[0])->value.i, c)), x);
        }
    }
    if (n->op == ATTUNE__OP_NEG)
        return attune__make2(builder, ATTUNE__OP_SUB, a, n->arg[0]);
    if (m->op == ATTUNE__OP_NEG)
        return attune__make2(builder, ATTUNE__OP_SUB, b, m->arg[0]);
    return ATTUNE__NONE;
}

static uint32_t make_arithmetic_int(attune__builder *builder, attune__op op, uint32_t a, uint32_t b)
{
    const attune__node *n = node_at(builder, b);
    switch (op) {
    case ATTUNE__OP_ADD:
        return make_add_int(builder, a, b);
    case ATTUNE__OP_SUB:
        if (a == b)
            return attune__make_int(builder, 0);
        if (n->op == ATTUNE__OP_CONST)
            return attune__make2(builder, ATTUNE__OP_ADD, a, attune__make_int(builder, attune__ineg(n->value.i)));
        if (is_int(builder, a, 0))
            return attune__make1(builder, ATTUNE__OP_NEG, b);
        if (n->op == ATTUNE__OP_NEG)
            return attune__make2(builder, ATTUNE__OP_ADD, a, n->arg[0]);
        break;
    case ATTUNE__OP_MUL:
        if (is_int(builder, b, 0) || is_int(builder, b, 1))
            return is_int(builder, b, 0) ? b : a;
        if (is_int(builder, b, -1))
            return attune__make1(builder, ATTUNE__OP_NEG, a);
        break;
    case ATTUNE__OP_DIV:
        if (is_int(builder, b, 1) || is_int(builder, a, 0))
            return a;
        if (is_int(builder, b, 0))
            return b;
        break;
    case ATTUNE__OP_MOD:
        if (is_int(builder, b, 1) || is_int(builder, b, -1))
            return attune__make_int(builder, 0);
        if (is_int(builder, b, 0) || is_int(builder, a, 0))
            return attune__make_int(builder, 0);
        break;
    default:
        break;
    }
    return ATTUNE__NONE;
}

static uint32_t make_arithmetic_float(attune__builder *builder, attune__op op, uint32_t a, uint32_t b)
{
    switch (op) {
    case ATTUNE__OP_ADD:
        return is_float(builder, b, -0.0) ? a : ATTUNE__NONE;
    case ATTUNE__OP_SUB:
        return is_float(builder, b, 0.0) ? a : ATTUNE__NONE;
    case ATTUNE__OP_MUL:
    case ATTUNE__OP_DIV:
        return is_float(builder, b, 1.0) ? a : ATTUNE__NONE;
    default:
        return ATTUNE__NONE;
    }
}

static uint32_t make_compare(attune__builder *builder, attune__op op, uint32_t a, uint32_t b)
{
    attune__type type = attune__type_of(builder, a);
    if (a == b && type != ATTUNE__FLOAT)
        return attune__make_bool(builder, op == ATTUNE__OP_EQ || op == ATTUNE__OP_LE);
    if (type != ATTUNE__BOOL)
        return ATTUNE__NONE;
    if (node_at(builder, b)->op == ATTUNE__OP_CONST)
        return node_at(builder, b)->value.i == (op == ATTUNE__OP_EQ) ? a : attune__make1(builder, ATTUNE__OP_NOT, a);
    if (is_negation(builder, a, b))
        return attune__make_bool(builder, op == ATTUNE__OP_NE);
    return ATTUNE__NONE;
}

static uint32_t make_logic(attune__builder *builder, attune__op op, uint32_t a, uint32_t b)
{
    bool absorbing = op == ATTUNE__OP_OR;
    if (is_bool(builder, b, absorbing))
        return b;
    if (is_bool(builder, b, !absorbing) || a == b)
        return a;
    if (is_negation(builder, a, b))
        return attune__make_bool(builder, absorbing);
    for (int side = 0; side < 2; side++) {
        uint32_t x = side ? b : a, y = side ? a : b;
        const attune__node *n = node_at(builder, x);
        if ((n->op == ATTUNE__OP_AND || n->op == ATTUNE__OP_OR) && (n->arg[0] == y || n->arg[1] == y))
            return n->op == op ? x : y;
    }
    return ATTUNE__NONE;
}

static uint32_t make_select(attune__builder *builder, uint32_t c, uint32_t a, uint32_t b)
{
    if (a == b || is_bool(builder, c, 1))
        return a;
    if (is_bool(builder, c, 0))
        return b;
    if (is_op(builder, c, ATTUNE__OP_NOT))
        return attune__make(builder, ATTUNE__OP_SELECT, node_at(builder, c)->arg[0], b, a);
    if (attune__type_of(builder, a) != ATTUNE__BOOL)
        return ATTUNE__NONE;
    /* Interval analysis is more precise for logic operations than for select. */
    if (is_bool(builder, a, 1) || c == a)
        return attune__make2(builder, ATTUNE__OP_OR, c, b);
    if (is_bool(builder, b, 0) || c == b)
        return attune__make2(builder, ATTUNE__OP_AND, c, a);
    if (is_bool(builder, a, 0))
        return attune__make2(builder, ATTUNE__OP_AND, attune__make1(builder, ATTUNE__OP_NOT, c), b);
    if (is_bool(builder, b, 1))
        return attune__make2(builder, ATTUNE__OP_OR, attune__make1(builder, ATTUNE__OP_NOT, c), a);
    return ATTUNE__NONE;
}

/* Masks are always f32. In scores, f32 and f64 must agree: the double rounds to the float, and is finite if
 * the float is, so that a literal can represent it. */
static bool precisions_agree(const attune__builder *builder, float single, double real)
{
    const float rounded = (float)real;
    if (builder->kind == ATTUNE_EXPR_MASK || (single != single && real != real))
        return true;
    return !memcmp(&rounded, &single, sizeof single) && isfinite(single) == isfinite(real);
}

/* Folds an operation on constants; ATTUNE__NONE if the precisions do not agree. */
static uint32_t fold(attune__builder *builder, attune__op op, const uint32_t *arg, uint32_t arity)
{
    const attune__type type = attune__type_of(builder, arg[arity - 1]);
    const attune__type result = result_type(builder, op, arg[0], arg[1]);
    attune__value values[3] = {{0}};
    attune__real reals[3] = {{0}};
    for (uint32_t i = 0; i < arity; i++) {
        const attune__node *n = node_at(builder, arg[i]);
        values[i] = n->value;
        if (n->type == ATTUNE__FLOAT)
            reals[i].r = n->real;
        else
            reals[i].i = n->value.i;
    }
    const attune__value single = attune__apply(op, type, values);
    const attune__real real = attune__apply_real(op, type, reals);
    if (result != ATTUNE__FLOAT)
        return builder->kind == ATTUNE_EXPR_MASK || single.i == real.i ? make_integer(builder, result, single.i)
                                                                       : ATTUNE__NONE;
    if (!precisions_agree(builder, single.f, real.r))
        return ATTUNE__NONE;
    return attune__make_float(builder, builder->kind == ATTUNE_EXPR_MASK ? (double)single.f : real.r);
}

uint32_t attune__make(attune__builder *builder, attune__op op, uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t arity = attune__op_arity(op);
    uint32_t arg[3] = {a, b, c};
    bool constant = foldable(op);
    for (uint32_t i = 0; i < arity && constant; i++)
        constant = is_op(builder, arg[i], ATTUNE__OP_CONST);
    attune__type type = attune__type_of(builder, arg[arity - 1]);
    if (constant) {
        const uint32_t folded = fold(builder, op, arg, arity);
        if (folded != ATTUNE__NONE)
            return folded;
    }
    bool commutes = op == ATTUNE__OP_ADD || op == ATTUNE__OP_MUL || op == ATTUNE__OP_EQ || op == ATTUNE__OP_NE ||
                    op == ATTUNE__OP_AND || op == ATTUNE__OP_OR ||
                    (type == ATTUNE__INT && (op == ATTUNE__OP_MIN || op == ATTUNE__OP_MAX));
    if (commutes && is_ordered_before(builder, b, a)) {
        uint32_t swap = a;
        a = b;
        b = swap;
    }
    uint32_t simple = ATTUNE__NONE;
    if (arity == 1)
        simple = make_unary(builder, op, a);
    else if (op == ATTUNE__OP_SELECT)
        simple = make_select(builder, a, b, c);
    else if (op == ATTUNE__OP_AND || op == ATTUNE__OP_OR)
        simple = make_logic(builder, op, a, b);
    else if (op >= ATTUNE__OP_EQ && op <= ATTUNE__OP_LE)
        simple = make_compare(builder, op, a, b);
    else if ((op == ATTUNE__OP_MIN || op == ATTUNE__OP_MAX) && a == b)
        simple = a;
    else if (type == ATTUNE__INT)
        simple = make_arithmetic_int(builder, op, a, b);
    else
        simple = make_arithmetic_float(builder, op, a, b);
    return simple != ATTUNE__NONE ? simple : make_unsimplified(builder, op, a, b, c);
}

uint32_t attune__make1(attune__builder *builder, attune__op op, uint32_t a)
{
    return attune__make(builder, op, a, ATTUNE__NONE, ATTUNE__NONE);
}

uint32_t attune__make2(attune__builder *builder, attune__op op, uint32_t a, uint32_t b)
{
    return attune__make(builder, op, a, b, ATTUNE__NONE);
}
