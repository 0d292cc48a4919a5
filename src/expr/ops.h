/* SPDX-License-Identifier: MIT */
/* Operations on i32, and properties of operations, for folding, evaluation and bounds. */
#ifndef ATTUNE_EXPR_OPS_H
#define ATTUNE_EXPR_OPS_H

#include "expr/expr.h"

static inline int32_t attune__iadd(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}

static inline int32_t attune__isub(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a - (uint32_t)b);
}

static inline int32_t attune__imul(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a * (uint32_t)b);
}

static inline int32_t attune__ineg(int32_t a)
{
    return (int32_t)(0u - (uint32_t)a);
}

static inline int32_t attune__iabs(int32_t a)
{
    return a < 0 ? attune__ineg(a) : a;
}

static inline int32_t attune__idiv(int32_t a, int32_t b)
{
    if (b == 0)
        return 0;
    if (b == -1)
        return attune__ineg(a);
    int32_t quotient = a / b, rest = a % b;
    return quotient - (rest != 0 && (rest ^ b) < 0);
}

static inline int32_t attune__imod(int32_t a, int32_t b)
{
    if (b == 0 || b == -1)
        return 0;
    int32_t rest = a % b;
    return rest != 0 && (rest ^ b) < 0 ? rest + b : rest;
}

static inline uint32_t attune__op_arity(attune__op op)
{
    if (op <= ATTUNE__OP_CAPTURE)
        return 0;
    if (op == ATTUNE__OP_SELECT)
        return 3;
    return op == ATTUNE__OP_NEG || op == ATTUNE__OP_ABS || op == ATTUNE__OP_NOT ||
                   (op >= ATTUNE__OP_FLOAT && op != ATTUNE__OP_POW)
               ? 1
               : 2;
}

/* Applies one operation to values in f32, for folding and for the evaluation of a point. `type` is that of the last
 * operand. */
attune__value attune__apply(attune__op op, attune__type type, const attune__value *arg);

/* Likewise in f64. */
typedef union attune__real {
    int32_t i; /* also bool: 0 or 1 */
    double r;
} attune__real;
attune__real attune__apply_real(attune__op op, attune__type type, const attune__real *arg);

/* The names in the IR listing and, for functions, in the language. */
const char *attune__op_name(attune__op op);
const char *attune__type_name(attune__type type);
const char *attune__var_name(attune__var var);
#define ATTUNE__VAR_COUNT 9

/* The type of a capture read, 0 for a dtype that captures cannot have. */
static inline attune__type attune__capture_type(attune_dtype dtype)
{
    switch (dtype) {
    case ATTUNE_I32:
    case ATTUNE_I64:
    case ATTUNE_U8:
        return ATTUNE__INT;
    case ATTUNE_F32:
    case ATTUNE_F16:
    case ATTUNE_BF16:
        return ATTUNE__FLOAT;
    case ATTUNE_BOOL:
        return ATTUNE__BOOL;
    default:
        break;
    }
    return (attune__type)0;
}

#endif
