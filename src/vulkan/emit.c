/* SPDX-License-Identifier: MIT */
/* IR as SPIR-V: one value for each node, straight-line, each float operation rounded on its own. */
#include <string.h>

#include <spirv/unified1/spirv.h>

#include "base/alloc.h"
#include "expr/ops.h"
#include "vulkan/splice.h"

typedef struct emitter {
    attune__module *module;
    const attune__stub *stub;
    const attune_expr *expr;
    attune__words *body;
    uint32_t *value; /* ids, by node */
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
        return word(e, 0);
    case ATTUNE__VAR_KV_LEN:
        return word(e, 1);
    case ATTUNE__VAR_SCORE:
        break;
    }
    return e->stub->score;
}

static uint32_t capture(emitter *e, const attune__node *node)
{
    static const attune__helper loads[] = {
        [ATTUNE_F32] = ATTUNE__HELPER_F32,   [ATTUNE_F16] = ATTUNE__HELPER_F16, [ATTUNE_BF16] = ATTUNE__HELPER_BF16,
        [ATTUNE_I32] = ATTUNE__HELPER_I32,   [ATTUNE_I64] = ATTUNE__HELPER_I64, [ATTUNE_U8] = ATTUNE__HELPER_U8,
        [ATTUNE_BOOL] = ATTUNE__HELPER_BOOL,
    };
    const attune__module *m = e->module;
    const uint32_t symbol = (uint32_t)node->value.i, at = attune__mods_capture_at(e->expr, symbol);
    uint32_t arguments[2 + ATTUNE_MAX_RANK] = {e->stub->mod, integer(e, at)};
    for (uint32_t i = 0; i < node->arg_count; i++)
        arguments[2 + i] = e->value[node->arg[i]];
    const uint32_t place = call(e, (attune__helper)(ATTUNE__HELPER_AT_1 + node->arg_count - 1), m->type_uvec3,
                                arguments, 2 + node->arg_count);
    const uint32_t type = node->type == ATTUNE__BOOL  ? m->type_bool
                          : node->type == ATTUNE__INT ? m->type_int
                                                      : m->type_float;
    return call(e, loads[e->expr->symbols[symbol].dtype], type, &place, 1);
}

static uint32_t parameter(emitter *e, const attune__node *node)
{
    const uint32_t bits = word(e, 8 + (uint32_t)node->value.i);
    return node->type == ATTUNE__FLOAT ? operation(e, SpvOpBitcast, e->module->type_float, bits, 0, 0) : bits;
}

/* min and max choose as the interpreter does: the second operand only if it is strictly past the first. Floats are
 * chosen as bits: a driver may take the choice between floats for its own minimum, which loses NaN. */
static uint32_t extreme(emitter *e, const attune__node *node, uint32_t a, uint32_t b)
{
    const bool real = node->type == ATTUNE__FLOAT, least = node->op == ATTUNE__OP_MIN;
    const attune__module *m = e->module;
    const uint32_t past =
        operation(e, real ? SpvOpFOrdLessThan : SpvOpSLessThan, m->type_bool, least ? b : a, least ? a : b, 0);
    if (!real)
        return operation(e, SpvOpSelect, m->type_int, past, b, a);
    const uint32_t bits_a = operation(e, SpvOpBitcast, m->type_int, a, 0, 0);
    const uint32_t bits_b = operation(e, SpvOpBitcast, m->type_int, b, 0, 0);
    const uint32_t bits = operation(e, SpvOpSelect, m->type_int, past, bits_b, bits_a);
    return operation(e, SpvOpBitcast, m->type_float, bits, 0, 0);
}

static uint32_t comparison(emitter *e, const attune__node *node, uint32_t a, uint32_t b)
{
    static const uint16_t opcodes[4][3] = {
        {SpvOpLogicalEqual, SpvOpIEqual, SpvOpFOrdEqual},
        {SpvOpLogicalNotEqual, SpvOpINotEqual, SpvOpFUnordNotEqual},
        {0, SpvOpSLessThan, SpvOpFOrdLessThan},
        {0, SpvOpSLessThanEqual, SpvOpFOrdLessThanEqual},
    };
    const uint8_t type = e->expr->nodes[node->arg[0]].type;
    return operation(e, opcodes[node->op - ATTUNE__OP_EQ][type - ATTUNE__BOOL], e->module->type_bool, a, b, 0);
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

static uint32_t arithmetic_float(emitter *e, const attune__node *node, uint32_t a, uint32_t b)
{
    const uint32_t type = e->module->type_float;
    switch (node->op) {
    case ATTUNE__OP_ADD:
        return rounded(e, SpvOpFAdd, a, b);
    case ATTUNE__OP_SUB:
        return rounded(e, SpvOpFSub, a, b);
    case ATTUNE__OP_MUL:
        return rounded(e, SpvOpFMul, a, b);
    case ATTUNE__OP_DIV:
        return rounded(e, SpvOpFDiv, a, b);
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
    return call(e, helpers[node->op - ATTUNE__OP_FLOOR], e->module->type_float, (uint32_t[]){a, b},
                node->op == ATTUNE__OP_POW ? 2 : 1);
}

static uint32_t emit_node(emitter *e, const attune__node *node)
{
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

void attune__mods_emit(attune__module *module, const attune__stub *stub, const attune_expr *expr, bool is_score,
                       attune__words *body)
{
    emitter e = {.module = module, .stub = stub, .expr = expr, .body = body};
    const uint32_t label = new_id(&e);
    attune__words_add(body, SpvOpLabel, &label, 1);
    uint32_t result;
    if (expr) {
        e.value = attune__alloc(body->allocator, expr->node_count, sizeof *e.value);
        if (!e.value) {
            body->status = ATTUNE_OUT_OF_HOST_MEMORY;
            return;
        }
        for (uint32_t i = 0; i < expr->node_count; i++)
            e.value[i] = emit_node(&e, &expr->nodes[i]);
        result = e.value[expr->node_count - 1];
        attune__free(body->allocator, e.value);
    } else
        result = is_score ? stub->score : truth(&e, true);
    attune__words_add(body, SpvOpReturnValue, &result, 1);
}
