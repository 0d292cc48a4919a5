/* SPDX-License-Identifier: MIT */
/* IR as SPIR-V: one value for each node, straight-line, each float operation rounded on its own. */
#include <math.h>
#include <string.h>

#include <spirv/unified1/spirv.h>

#include "base/alloc.h"
#include "expr/ops.h"
#include "vulkan/emit.h"

typedef struct emitter {
    attune__module *module;
    const attune__stub *stub;
    const attune_expr *expr;
    attune__words *body;
    uint32_t *value; /* ids, by node */
    uint32_t *nan;   /* likewise: whether the value is NaN; 0 = not emitted yet */
    bool smooth;     /* functions need not have all digits */
} emitter;

static uint32_t new_id(emitter *e)
{
    return e->module->bound++;
}

static uint32_t constant(emitter *e, uint32_t type, uint32_t bits)
{
    const uint32_t id = new_id(e);
    attune__words_add(&e->module->constants, SpvOpConstant, (uint32_t[]){type, id, bits}, 3);
    return id;
}

static uint32_t integer(emitter *e, uint32_t value)
{
    return constant(e, e->module->type_int, value);
}

static uint32_t truth(emitter *e, bool value)
{
    const uint32_t id = new_id(e);
    attune__words_add(&e->module->constants, value ? SpvOpConstantTrue : SpvOpConstantFalse,
                      (uint32_t[]){e->module->type_bool, id}, 2);
    return id;
}

static uint32_t operation(emitter *e, uint32_t opcode, uint32_t type, uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t id = new_id(e);
    attune__words_add(e->body, opcode, (uint32_t[]){type, id, a, b, c}, 3u + (b != 0) + (c != 0));
    return id;
}

/* A float operation that no compiler may fuse with its neighbours. */
static uint32_t rounded(emitter *e, uint32_t opcode, uint32_t a, uint32_t b)
{
    const uint32_t id = operation(e, opcode, e->module->type_float, a, b, 0);
    attune__words_add(&e->module->decorations, SpvOpDecorate, (uint32_t[]){id, SpvDecorationNoContraction}, 2);
    return id;
}

static uint32_t call(emitter *e, attune__helper helper, uint32_t type, const uint32_t *arguments, uint32_t count)
{
    uint32_t operands[3 + 2 + ATTUNE_MAX_RANK] = {type, new_id(e), e->module->helper[helper]};
    memcpy(operands + 3, arguments, count * sizeof *arguments);
    attune__words_add(e->body, SpvOpFunctionCall, operands, 3 + count);
    return operands[1];
}

/* A word of the table. */
static uint32_t word(emitter *e, uint32_t n)
{
    return call(e, ATTUNE__HELPER_WORD, e->module->type_int, (uint32_t[]){e->stub->mod, integer(e, n)}, 2);
}

static uint32_t variable(emitter *e, attune__var var)
{
    const uint32_t type = e->module->type_int;
    switch (var) {
    case ATTUNE__VAR_B:
        return operation(e, SpvOpIAdd, type, e->stub->b, word(e, 3), 0);
    case ATTUNE__VAR_H:
        return operation(e, SpvOpIAdd, type, e->stub->h, word(e, 4), 0);
    case ATTUNE__VAR_Q:
        return operation(e, SpvOpIAdd, type, e->stub->q, word(e, 5), 0);
    case ATTUNE__VAR_KV:
        return e->stub->kv;
    case ATTUNE__VAR_H_KV:
        return operation(e, SpvOpSDiv, type, variable(e, ATTUNE__VAR_H), word(e, 2), 0);
    case ATTUNE__VAR_Q_LEN:
        return e->stub->q_len ? e->stub->q_len : word(e, 0);
    case ATTUNE__VAR_KV_LEN:
        return e->stub->kv_len ? e->stub->kv_len : word(e, 1);
    case ATTUNE__VAR_ROW: /* rewritten in dense plans */
        return e->stub->row;
    case ATTUNE__VAR_SCORE:
        break;
    }
    return e->stub->score;
}

/* The element of a capture at indices. */
static uint32_t load_capture(emitter *e, const attune__node *node, uint32_t symbol, const uint32_t *indices)
{
    static const attune__helper loads[] = {
        [ATTUNE_F32] = ATTUNE__HELPER_F32,   [ATTUNE_F16] = ATTUNE__HELPER_F16, [ATTUNE_BF16] = ATTUNE__HELPER_BF16,
        [ATTUNE_I32] = ATTUNE__HELPER_I32,   [ATTUNE_I64] = ATTUNE__HELPER_I64, [ATTUNE_U8] = ATTUNE__HELPER_U8,
        [ATTUNE_BOOL] = ATTUNE__HELPER_BOOL,
    };
    const attune__module *m = e->module;
    const uint32_t at = attune__mods_capture_at(e->expr, symbol);
    uint32_t arguments[2 + ATTUNE_MAX_RANK] = {e->stub->mod, integer(e, at)};
    memcpy(arguments + 2, indices, node->arg_count * sizeof *indices);
    const uint32_t address = call(e, (attune__helper)(ATTUNE__HELPER_AT_1 + node->arg_count - 1), m->type_uvec3,
                                  arguments, 2 + node->arg_count);
    const uint32_t type = node->type == ATTUNE__BOOL  ? m->type_bool
                          : node->type == ATTUNE__INT ? m->type_int
                                                      : m->type_float;
    return call(e, loads[e->expr->symbols[symbol].dtype], type, &address, 1);
}

static uint32_t capture(emitter *e, const attune__node *node)
{
    uint32_t indices[ATTUNE_MAX_RANK];
    for (uint32_t i = 0; i < node->arg_count; i++)
        indices[i] = e->value[node->arg[i]];
    return load_capture(e, node, (uint32_t)node->value.i, indices);
}

static uint32_t parameter(emitter *e, const attune__node *node)
{
    const uint32_t bits = word(e, 8 + (uint32_t)node->value.i);
    return node->type == ATTUNE__FLOAT ? operation(e, SpvOpBitcast, e->module->type_float, bits, 0, 0) : bits;
}

/* Whether a float can be NaN, whatever is read. */
static bool may_be_nan(const attune_expr *expr, uint32_t n)
{
    const attune__node *node = &expr->nodes[n];
    switch ((attune__op)node->op) {
    case ATTUNE__OP_CONST:
        return node->value.f != node->value.f;
    case ATTUNE__OP_FLOAT:
        return false;
    case ATTUNE__OP_NEG:
    case ATTUNE__OP_ABS:
    case ATTUNE__OP_FLOOR:
    case ATTUNE__OP_CEIL:
    case ATTUNE__OP_MIN: /* a, or b where it is strictly past a, and then a number */
    case ATTUNE__OP_MAX:
        return may_be_nan(expr, node->arg[0]);
    default:
        return true;
    }
}

/* By its bits: a driver may take comparisons for those of numbers. */
static uint32_t is_nan(emitter *e, uint32_t n)
{
    const attune__module *m = e->module;
    if (!e->nan[n]) {
        const uint32_t bits = operation(e, SpvOpBitcast, m->type_int, e->value[n], 0, 0);
        const uint32_t magnitude = operation(e, SpvOpBitwiseAnd, m->type_int, bits, integer(e, 0x7fffffffu), 0);
        e->nan[n] = operation(e, SpvOpSGreaterThan, m->type_bool, magnitude, integer(e, 0x7f800000u), 0);
    }
    return e->nan[n];
}

/* A comparison of two nodes, corrected where one may be NaN: NaN is unequal to everything. */
static uint32_t ordered(emitter *e, uint32_t result, const uint32_t nodes[2])
{
    for (int i = 0; i < 2; i++)
        if (may_be_nan(e->expr, nodes[i])) {
            const uint32_t number = operation(e, SpvOpLogicalNot, e->module->type_bool, is_nan(e, nodes[i]), 0, 0);
            result = operation(e, SpvOpLogicalAnd, e->module->type_bool, result, number, 0);
        }
    return result;
}

/* min and max choose as the interpreter does: the second operand only if it is strictly past the first. Floats are
 * chosen as bits: a driver may take the choice between floats for its own minimum, which loses NaN. */
static uint32_t extreme(emitter *e, const attune__node *node, uint32_t a, uint32_t b)
{
    const bool real = node->type == ATTUNE__FLOAT, least = node->op == ATTUNE__OP_MIN;
    const attune__module *m = e->module;
    uint32_t past =
        operation(e, real ? SpvOpFOrdLessThan : SpvOpSLessThan, m->type_bool, least ? b : a, least ? a : b, 0);
    if (!real)
        return operation(e, SpvOpSelect, m->type_int, past, b, a);
    past = ordered(e, past, node->arg);
    const uint32_t bits_a = operation(e, SpvOpBitcast, m->type_int, a, 0, 0);
    const uint32_t bits_b = operation(e, SpvOpBitcast, m->type_int, b, 0, 0);
    const uint32_t bits = operation(e, SpvOpSelect, m->type_int, past, bits_b, bits_a);
    return operation(e, SpvOpBitcast, m->type_float, bits, 0, 0);
}

static uint32_t comparison(emitter *e, const attune__node *node, uint32_t a, uint32_t b)
{
    static const uint16_t opcodes[4][3] = {
        {SpvOpLogicalEqual, SpvOpIEqual, SpvOpFOrdEqual},
        {SpvOpLogicalNotEqual, SpvOpINotEqual, SpvOpFOrdEqual}, /* the last is negated */
        {0, SpvOpSLessThan, SpvOpFOrdLessThan},
        {0, SpvOpSLessThanEqual, SpvOpFOrdLessThanEqual},
    };
    const uint8_t type = e->expr->nodes[node->arg[0]].type;
    const uint32_t truth_type = e->module->type_bool;
    const uint32_t result = operation(e, opcodes[node->op - ATTUNE__OP_EQ][type - ATTUNE__BOOL], truth_type, a, b, 0);
    if (type != ATTUNE__FLOAT)
        return result;
    const uint32_t found = ordered(e, result, node->arg);
    return node->op == ATTUNE__OP_NE ? operation(e, SpvOpLogicalNot, truth_type, found, 0, 0) : found;
}

static uint32_t arithmetic_int(emitter *e, const attune__node *node, uint32_t a, uint32_t b)
{
    const uint32_t type = e->module->type_int;
    switch (node->op) {
    case ATTUNE__OP_ADD:
        return operation(e, SpvOpIAdd, type, a, b, 0);
    case ATTUNE__OP_SUB:
        return operation(e, SpvOpISub, type, a, b, 0);
    case ATTUNE__OP_MUL:
        return operation(e, SpvOpIMul, type, a, b, 0);
    case ATTUNE__OP_DIV:
        return call(e, ATTUNE__HELPER_IDIV, type, (uint32_t[]){a, b}, 2);
    case ATTUNE__OP_MOD:
        return call(e, ATTUNE__HELPER_IMOD, type, (uint32_t[]){a, b}, 2);
    case ATTUNE__OP_NEG:
        return operation(e, SpvOpSNegate, type, a, 0, 0);
    default: { /* abs, which wraps */
        const uint32_t below = operation(e, SpvOpSLessThan, e->module->type_bool, a, integer(e, 0), 0);
        return operation(e, SpvOpSelect, type, below, operation(e, SpvOpSNegate, type, a, 0, 0), a);
    }
    }
}

/* A 0 that the compiler cannot fold: from the table's head. */
static uint32_t unknown_zero(emitter *e, int32_t bits)
{
    const attune__module *m = e->module;
    const uint32_t zero = operation(e, SpvOpBitwiseOr, m->type_int, word(e, 6), integer(e, (uint32_t)bits), 0);
    return operation(e, SpvOpBitcast, m->type_float, zero, 0, 0);
}

/* A factor or divisor. llvmpipe folds a product with a constant 0 to 0, and a quotient by it to anything. */
static uint32_t factor(emitter *e, uint32_t n)
{
    const attune__node *node = &e->expr->nodes[n];
    const bool zero = node->op == ATTUNE__OP_CONST && node->value.f == 0;
    return zero ? unknown_zero(e, node->value.i) : e->value[n];
}

static uint32_t arithmetic_float(emitter *e, const attune__node *node, uint32_t a, uint32_t b)
{
    const uint32_t type = e->module->type_float;
    switch (node->op) {
    case ATTUNE__OP_ADD:
        return rounded(e, SpvOpFAdd, a, b);
    case ATTUNE__OP_SUB:
        /* x - x is 0 of numbers alone. Of the zeros -0 alone changes nothing that it is added to. */
        return rounded(e, SpvOpFSub, a, a == b ? rounded(e, SpvOpFAdd, b, unknown_zero(e, INT32_MIN)) : b);
    case ATTUNE__OP_MUL:
        return rounded(e, SpvOpFMul, factor(e, node->arg[0]), factor(e, node->arg[1]));
    case ATTUNE__OP_DIV:
        return rounded(e, SpvOpFDiv, factor(e, node->arg[0]), factor(e, node->arg[1]));
    case ATTUNE__OP_MOD:
        return call(e, ATTUNE__HELPER_FMOD, type, (uint32_t[]){a, b}, 2);
    case ATTUNE__OP_NEG:
        return operation(e, SpvOpFNegate, type, a, 0, 0);
    default:
        return call(e, ATTUNE__HELPER_ABS, type, &a, 1);
    }
}

static uint32_t function(emitter *e, const attune__node *node, uint32_t a, uint32_t b)
{
    static const attune__helper helpers[] = {
        ATTUNE__HELPER_FLOOR, ATTUNE__HELPER_CEIL, ATTUNE__HELPER_EXP,   ATTUNE__HELPER_EXP2, ATTUNE__HELPER_LOG,
        ATTUNE__HELPER_LOG2,  ATTUNE__HELPER_SQRT, ATTUNE__HELPER_RSQRT, ATTUNE__HELPER_TANH, ATTUNE__HELPER_SIGMOID,
        ATTUNE__HELPER_SIN,   ATTUNE__HELPER_COS,  ATTUNE__HELPER_POW,
    };
    const bool is_short = node->op == ATTUNE__OP_TANH && e->smooth && e->module->helper[ATTUNE__HELPER_SHORT_TANH];
    return call(e, is_short ? ATTUNE__HELPER_SHORT_TANH : helpers[node->op - ATTUNE__OP_FLOOR], e->module->type_float,
                (uint32_t[]){a, b}, node->op == ATTUNE__OP_POW ? 2 : 1);
}

/* The other operand of a product or quotient with a constant. Returns NULL, or the operand and the constant factor. */
static const uint32_t *scaled(const attune_expr *expr, const attune__node *node, double *factor)
{
    const bool divides = node->op == ATTUNE__OP_DIV;
    if (node->type != ATTUNE__FLOAT || (!divides && node->op != ATTUNE__OP_MUL))
        return NULL;
    for (int i = 1; i >= (divides ? 1 : 0); i--) {
        const attune__node *other = &expr->nodes[node->arg[i]];
        const double value = (double)other->value.f;
        if (other->op == ATTUNE__OP_CONST && fabs(value) > 1e-20 && fabs(value) < 1e20) {
            *factor = divides ? 1 / value : value;
            return &node->arg[1 - i];
        }
    }
    return NULL;
}

static uint32_t real(emitter *e, double value)
{
    const float rounded_value = (float)value;
    uint32_t bits;
    memcpy(&bits, &rounded_value, sizeof bits);
    return constant(e, e->module->type_float, bits);
}

/* c * tanh(x / d) as one function; 0 = the node is no such product. */
static uint32_t soft_cap(emitter *e, const attune__node *node)
{
    double outer, inner = 1;
    if (!e->smooth || !e->module->helper[ATTUNE__HELPER_SHORT_CAP] || node->op != ATTUNE__OP_MUL)
        return 0;
    const uint32_t *cap = scaled(e->expr, node, &outer);
    if (!cap || e->expr->nodes[*cap].op != ATTUNE__OP_TANH)
        return 0;
    const uint32_t *argument = &e->expr->nodes[*cap].arg[0];
    const uint32_t *within = scaled(e->expr, &e->expr->nodes[*argument], &inner);
    const uint32_t arguments[3] = {e->value[within ? *within : *argument], real(e, inner * 2.8853900817779268),
                                   real(e, outer)};
    return call(e, ATTUNE__HELPER_SHORT_CAP, e->module->type_float, arguments, 3);
}

static uint32_t emit_node(emitter *e, const attune__node *node)
{
    const uint32_t cap = soft_cap(e, node);
    if (cap)
        return cap;
    const attune__module *m = e->module;
    const uint32_t type = node->type == ATTUNE__BOOL  ? m->type_bool
                          : node->type == ATTUNE__INT ? m->type_int
                                                      : m->type_float;
    const uint32_t arity = attune__op_arity((attune__op)node->op);
    const uint32_t a = arity > 0 ? e->value[node->arg[0]] : 0, b = arity > 1 ? e->value[node->arg[1]] : 0;
    switch ((attune__op)node->op) {
    case ATTUNE__OP_CONST:
        return node->type == ATTUNE__BOOL ? truth(e, node->value.i) : constant(e, type, (uint32_t)node->value.i);
    case ATTUNE__OP_VAR:
        return variable(e, (attune__var)node->value.i);
    case ATTUNE__OP_PARAM:
        return parameter(e, node);
    case ATTUNE__OP_CAPTURE:
        return capture(e, node);
    case ATTUNE__OP_MIN:
    case ATTUNE__OP_MAX:
        return extreme(e, node, a, b);
    case ATTUNE__OP_EQ:
    case ATTUNE__OP_NE:
    case ATTUNE__OP_LT:
    case ATTUNE__OP_LE:
        return comparison(e, node, a, b);
    case ATTUNE__OP_AND:
        return operation(e, SpvOpLogicalAnd, type, a, b, 0);
    case ATTUNE__OP_OR:
        return operation(e, SpvOpLogicalOr, type, a, b, 0);
    case ATTUNE__OP_NOT:
        return operation(e, SpvOpLogicalNot, type, a, 0, 0);
    case ATTUNE__OP_SELECT:
        return operation(e, SpvOpSelect, type, a, b, e->value[node->arg[2]]);
    case ATTUNE__OP_FLOAT:
        return operation(e, SpvOpConvertSToF, type, a, 0, 0);
    default:
        return node->op >= ATTUNE__OP_FLOOR  ? function(e, node, a, b)
               : node->type == ATTUNE__FLOAT ? arithmetic_float(e, node, a, b)
                                             : arithmetic_int(e, node, a, b);
    }
}

/* ----------------------------------------------------------------------------------------------------------- bounds */

/* Intervals of integers and bools, as in expr/bounds.c: what is not followed here is bounded by all values. The
 * operations of attune_mod_bound in shaders/mods.glsl. */
enum { ADD, SUB, MUL, DIV, MIN, MAX, EQ, NE, LT, LE, AND, OR, ABS, NEG };

static uint32_t interval(emitter *e, uint32_t low, uint32_t high)
{
    const uint32_t id = new_id(e);
    attune__words_add(e->body, SpvOpCompositeConstruct, (uint32_t[]){e->module->type_ivec2, id, low, high}, 4);
    return id;
}

static uint32_t end_of(emitter *e, uint32_t bounds, uint32_t which)
{
    const uint32_t id = new_id(e);
    attune__words_add(e->body, SpvOpCompositeExtract, (uint32_t[]){e->module->type_int, id, bounds, which}, 4);
    return id;
}

static uint32_t bound(emitter *e, int op, uint32_t a, uint32_t b)
{
    return call(e, ATTUNE__HELPER_BOUND, e->module->type_ivec2, (uint32_t[]){integer(e, (uint32_t)op), a, b}, 3);
}

static uint32_t anything(emitter *e, const attune__node *node)
{
    return node->type == ATTUNE__INT ? interval(e, integer(e, 0x80000000u), integer(e, 0x7fffffffu))
                                     : interval(e, integer(e, 0), integer(e, 1));
}

static uint32_t bound_variable(emitter *e, attune__var var)
{
    const attune__stub *stub = e->stub;
    const uint32_t offset = var == ATTUNE__VAR_B ? 3 : var == ATTUNE__VAR_Q ? 5 : 4;
    uint32_t value, moved;
    switch (var) {
    case ATTUNE__VAR_KV:
        return stub->kv;
    case ATTUNE__VAR_ROW:
        return stub->row;
    case ATTUNE__VAR_Q_LEN:
        return interval(e, stub->q_len, stub->q_len);
    case ATTUNE__VAR_KV_LEN:
        return interval(e, stub->kv_len, stub->kv_len);
    default:
        value = var == ATTUNE__VAR_B ? interval(e, stub->b, stub->b) : var == ATTUNE__VAR_Q ? stub->q : stub->h;
        moved = word(e, offset);
        value = bound(e, ADD, value, interval(e, moved, moved));
        break;
    }
    if (var != ATTUNE__VAR_H_KV)
        return value;
    const uint32_t group = word(e, 2);
    return bound(e, DIV, value, interval(e, group, group));
}

/* An element, where the indices are exact; any value elsewhere. */
static uint32_t bound_capture(emitter *e, const attune__node *node)
{
    const attune__module *m = e->module;
    const uint32_t symbol = (uint32_t)node->value.i;
    uint32_t exact = truth(e, true), low[ATTUNE_MAX_RANK];
    for (uint32_t i = 0; i < node->arg_count; i++) {
        low[i] = end_of(e, e->value[node->arg[i]], 0);
        const uint32_t same = operation(e, SpvOpIEqual, m->type_bool, low[i], end_of(e, e->value[node->arg[i]], 1), 0);
        exact = operation(e, SpvOpLogicalAnd, m->type_bool, exact, same, 0);
    }
    uint32_t value = load_capture(e, node, symbol, low);
    if (node->type == ATTUNE__BOOL)
        value = operation(e, SpvOpSelect, m->type_int, value, integer(e, 1), integer(e, 0));
    const uint32_t all = anything(e, node);
    const uint32_t first = operation(e, SpvOpSelect, m->type_int, exact, value, end_of(e, all, 0)),
                   last = operation(e, SpvOpSelect, m->type_int, exact, value, end_of(e, all, 1));
    return interval(e, first, last);
}

static uint32_t bound_node(emitter *e, const attune__node *node)
{
    static const int8_t operations[] = {
        [ATTUNE__OP_ADD] = ADD + 1, [ATTUNE__OP_SUB] = SUB + 1, [ATTUNE__OP_MUL] = MUL + 1, [ATTUNE__OP_DIV] = DIV + 1,
        [ATTUNE__OP_MIN] = MIN + 1, [ATTUNE__OP_MAX] = MAX + 1, [ATTUNE__OP_EQ] = EQ + 1,   [ATTUNE__OP_NE] = NE + 1,
        [ATTUNE__OP_LT] = LT + 1,   [ATTUNE__OP_LE] = LE + 1,   [ATTUNE__OP_AND] = AND + 1, [ATTUNE__OP_OR] = OR + 1,
        [ATTUNE__OP_ABS] = ABS + 1, [ATTUNE__OP_NEG] = NEG + 1,
    };
    const uint32_t arity = attune__op_arity((attune__op)node->op);
    const uint32_t a = arity > 0 ? e->value[node->arg[0]] : 0, b = arity > 1 ? e->value[node->arg[1]] : a;
    uint32_t value;
    switch ((attune__op)node->op) {
    case ATTUNE__OP_CONST:
        value = integer(e, (uint32_t)node->value.i);
        return interval(e, value, value);
    case ATTUNE__OP_VAR:
        return bound_variable(e, (attune__var)node->value.i);
    case ATTUNE__OP_PARAM:
        value = word(e, 8 + (uint32_t)node->value.i);
        return interval(e, value, value);
    case ATTUNE__OP_CAPTURE:
        return bound_capture(e, node);
    case ATTUNE__OP_NOT: {
        const uint32_t one = integer(e, 1);
        return bound(e, SUB, interval(e, one, one), a);
    }
    case ATTUNE__OP_SELECT:
        return call(e, ATTUNE__HELPER_BOUND_SELECT, e->module->type_ivec2, (uint32_t[]){a, b, e->value[node->arg[2]]},
                    3);
    default:
        if (node->op >= sizeof operations || !operations[node->op] ||
            e->expr->nodes[node->arg[0]].type == ATTUNE__FLOAT)
            return anything(e, node);
        return bound(e, operations[node->op] - 1, a, b);
    }
}

/* Floats have no value: no node of another type is computed from one but by `anything`. */
static void emit_bounds(emitter *e)
{
    const uint32_t count = e->expr->node_count;
    for (uint32_t i = 0; i < count; i++)
        if (e->expr->nodes[i].type != ATTUNE__FLOAT)
            e->value[i] = bound_node(e, &e->expr->nodes[i]);
    attune__words_add(e->body, SpvOpReturnValue, &e->value[count - 1], 1);
}

/* Marks `node` and the nodes that it is computed from. */
static void need(const attune_expr *expr, uint32_t node, bool *needed)
{
    needed[node] = true;
    for (uint32_t i = node + 1; i-- > 0;)
        for (uint32_t a = 0; needed[i] && a < expr->nodes[i].arg_count; a++)
            needed[expr->nodes[i].arg[a]] = true;
}

/* Adds `value` to the element that a capture's node reads. */
static void add_to(emitter *e, const attune__node *read, uint32_t value)
{
    const uint32_t at = attune__mods_capture_at(e->expr, (uint32_t)read->value.i);
    uint32_t arguments[2 + ATTUNE_MAX_RANK] = {e->stub->mod, integer(e, at)};
    for (uint32_t i = 0; i < read->arg_count; i++)
        arguments[2 + i] = e->value[read->arg[i]];
    const uint32_t address = call(e, (attune__helper)(ATTUNE__HELPER_SUM_1 + read->arg_count - 1),
                                  e->module->type_uvec3, arguments, 2 + read->arg_count);
    call(e, ATTUNE__HELPER_ADD, e->module->type_void, (uint32_t[]){address, value}, 2);
}

/* The capture reads of a stub: whether it computes their factors, and whether it needs their indices. */
typedef struct selection {
    uint32_t reads[ATTUNE_EXPR_MAX_NODES];
    uint32_t count;
    bool factors, indices;
} selection;

static void select_reads(const attune__mods *mods, attune__stub_kind kind, selection *s)
{
    const attune__uniform_reads *uniform = &mods->uniform_reads;
    s->factors = kind != ATTUNE__STUB_D_UNIFORM_ADD;
    s->indices = kind != ATTUNE__STUB_D_UNIFORM;
    s->count = 0;
    for (uint32_t r = 0, next = 0; r < mods->gradient->read_count; r++) {
        const bool is_uniform = next < uniform->count && uniform->reads[next] == r;
        next += is_uniform;
        if (is_uniform == (kind != ATTUNE__STUB_D_ADD))
            s->reads[s->count++] = r;
    }
}

static void need_reads(const attune__gradient *gradient, const selection *s, bool *needed)
{
    for (uint32_t n = 0; n < s->count; n++) {
        const attune__gradient_read *r = &gradient->reads[s->reads[n]];
        const attune__node *read = &gradient->expr->nodes[r->capture];
        if (s->factors)
            need(gradient->expr, r->factor, needed);
        for (uint32_t a = 0; s->indices && a < read->arg_count; a++)
            need(gradient->expr, read->arg[a], needed);
    }
}

/* The body of a stub that adds to capture gradients or returns derivatives; its nodes have been emitted. */
static void finish_reads(emitter *e, const attune__gradient *gradient, const selection *s)
{
    const attune__module *m = e->module;
    uint32_t parts[2 + ATTUNE__UNIFORM_READS] = {m->type_vec4};
    for (uint32_t n = 0; n < s->count; n++) {
        const attune__gradient_read *r = &gradient->reads[s->reads[n]];
        const attune__node *read = &gradient->expr->nodes[r->capture];
        if (e->stub->kind == ATTUNE__STUB_D_UNIFORM) {
            parts[2 + n] = e->value[r->factor];
        } else if (e->stub->kind == ATTUNE__STUB_D_ADD) {
            add_to(e, read, rounded(e, SpvOpFMul, e->stub->d, e->value[r->factor]));
        } else {
            const uint32_t gradient_id = new_id(e);
            attune__words_add(e->body, SpvOpCompositeExtract,
                              (uint32_t[]){m->type_float, gradient_id, e->stub->gradients, n}, 4);
            add_to(e, read, gradient_id);
        }
    }
    if (e->stub->kind != ATTUNE__STUB_D_UNIFORM) {
        attune__words_add(e->body, SpvOpReturn, NULL, 0);
        return;
    }
    const uint32_t zero = constant(e, m->type_float, 0);
    for (uint32_t n = s->count; n < ATTUNE__UNIFORM_READS; n++)
        parts[2 + n] = zero;
    parts[1] = new_id(e);
    attune__words_add(e->body, SpvOpCompositeConstruct, parts, 2 + ATTUNE__UNIFORM_READS);
    attune__words_add(e->body, SpvOpReturnValue, &parts[1], 1);
}

static void emit_nodes(emitter *e, const bool *needed)
{
    for (uint32_t i = 0; i < e->expr->node_count; i++)
        if (needed[i])
            e->value[i] = emit_node(e, &e->expr->nodes[i]);
}

/* Bodies where there is no expression. */
static void emit_default(emitter *e)
{
    const attune__stub_kind kind = e->stub->kind;
    if (kind == ATTUNE__STUB_D_UNIFORM_ADD || kind == ATTUNE__STUB_D_ADD || kind == ATTUNE__STUB_D_UNIFORM) {
        finish_reads(e, NULL, &(selection){.count = 0});
        return;
    }
    const uint32_t one = UINT32_C(0x3f800000);
    const uint32_t result = kind == ATTUNE__STUB_MASK_BOUNDS ? interval(e, integer(e, 1), integer(e, 1))
                            : kind == ATTUNE__STUB_MASK      ? truth(e, true)
                            : kind == ATTUNE__STUB_D_SCORE   ? constant(e, e->module->type_float, one)
                                                             : e->stub->score;
    attune__words_add(e->body, SpvOpReturnValue, &result, 1);
}

void attune__mods_emit(attune__module *module, const attune__stub *stub, const attune__mods *mods, attune__words *body)
{
    const bool is_derivative = stub->kind >= ATTUNE__STUB_D_SCORE;
    const attune__gradient *gradient = is_derivative ? mods->gradient : NULL;
    emitter e = {.module = module, .stub = stub, .body = body};
    e.expr = gradient                           ? gradient->expr
             : stub->kind == ATTUNE__STUB_SCORE ? mods->score
             : !is_derivative                   ? mods->mask
                                                : NULL;
    e.smooth = stub->kind == ATTUNE__STUB_SCORE && e.expr && attune__is_smooth(e.expr);
    const uint32_t label = new_id(&e);
    attune__words_add(body, SpvOpLabel, &label, 1);
    if (!e.expr) {
        emit_default(&e);
        return;
    }
    const uint32_t count = e.expr->node_count;
    e.value = attune__alloc(body->allocator, 2 * (size_t)count, sizeof *e.value);
    e.nan = e.value ? e.value + count : NULL;
    bool *needed = attune__alloc(body->allocator, count, sizeof *needed);
    selection *reads = attune__alloc(body->allocator, 1, sizeof *reads);
    if (!e.value || !needed || !reads) {
        body->status = ATTUNE_OUT_OF_HOST_MEMORY;
    } else if (stub->kind == ATTUNE__STUB_MASK_BOUNDS) {
        emit_bounds(&e);
    } else if (is_derivative && stub->kind != ATTUNE__STUB_D_SCORE) {
        select_reads(mods, stub->kind, reads);
        need_reads(gradient, reads, needed);
        emit_nodes(&e, needed);
        finish_reads(&e, gradient, reads);
    } else {
        const uint32_t root = is_derivative ? gradient->score : count - 1;
        need(e.expr, root, needed);
        emit_nodes(&e, needed);
        attune__words_add(body, SpvOpReturnValue, &e.value[root], 1);
    }
    attune__free(body->allocator, reads);
    attune__free(body->allocator, needed);
    attune__free(body->allocator, e.value);
}
