/* SPDX-License-Identifier: MIT */
/* Evaluation. A point is a scalar loop over the nodes; rows are in eval_tmpl.c, which is included once for float and
 * once for double. Masks always use float. */
#include "expr/expr.h"

#include <math.h>
#include <string.h>

#include "expr/capture.h"
#include "expr/gradient.h"
#include "expr/ops.h"

/* ------------------------------------------------------------------------------------------------------------ point */

static attune__value apply_int(attune__op op, int32_t a, int32_t b)
{
    switch (op) {
    case ATTUNE__OP_ADD:
        return (attune__value){.i = attune__iadd(a, b)};
    case ATTUNE__OP_SUB:
        return (attune__value){.i = attune__isub(a, b)};
    case ATTUNE__OP_MUL:
        return (attune__value){.i = attune__imul(a, b)};
    case ATTUNE__OP_DIV:
        return (attune__value){.i = attune__idiv(a, b)};
    case ATTUNE__OP_MOD:
        return (attune__value){.i = attune__imod(a, b)};
    case ATTUNE__OP_NEG:
        return (attune__value){.i = attune__ineg(a)};
    case ATTUNE__OP_ABS:
        return (attune__value){.i = attune__iabs(a)};
    case ATTUNE__OP_MIN:
        return (attune__value){.i = b < a ? b : a};
    case ATTUNE__OP_MAX:
        return (attune__value){.i = a < b ? b : a};
    case ATTUNE__OP_EQ:
        return (attune__value){.i = a == b};
    case ATTUNE__OP_NE:
        return (attune__value){.i = a != b};
    case ATTUNE__OP_LT:
        return (attune__value){.i = a < b};
    case ATTUNE__OP_LE:
        return (attune__value){.i = a <= b};
    case ATTUNE__OP_AND:
        return (attune__value){.i = a & b};
    case ATTUNE__OP_OR:
        return (attune__value){.i = a | b};
    case ATTUNE__OP_NOT:
        return (attune__value){.i = !a};
    case ATTUNE__OP_FLOAT:
        return (attune__value){.f = (float)a};
    default:
        return (attune__value){0};
    }
}

static attune__value apply_float(attune__op op, float a, float b)
{
    switch (op) {
    case ATTUNE__OP_ADD:
        return (attune__value){.f = a + b};
    case ATTUNE__OP_SUB:
        return (attune__value){.f = a - b};
    case ATTUNE__OP_MUL:
        return (attune__value){.f = a * b};
    case ATTUNE__OP_DIV:
        return (attune__value){.f = a / b};
    case ATTUNE__OP_MOD:
        return (attune__value){.f = a - floorf(a / b) * b};
    case ATTUNE__OP_NEG:
        return (attune__value){.f = -a};
    case ATTUNE__OP_ABS:
        return (attune__value){.f = fabsf(a)};
    case ATTUNE__OP_MIN:
        return (attune__value){.f = b < a ? b : a};
    case ATTUNE__OP_MAX:
        return (attune__value){.f = a < b ? b : a};
    case ATTUNE__OP_EQ:
        return (attune__value){.i = a == b};
    case ATTUNE__OP_NE:
        return (attune__value){.i = a != b};
    case ATTUNE__OP_LT:
        return (attune__value){.i = a < b};
    case ATTUNE__OP_LE:
        return (attune__value){.i = a <= b};
    case ATTUNE__OP_FLOOR:
        return (attune__value){.f = floorf(a)};
    case ATTUNE__OP_CEIL:
        return (attune__value){.f = ceilf(a)};
    case ATTUNE__OP_EXP:
        return (attune__value){.f = expf(a)};
    case ATTUNE__OP_EXP2:
        return (attune__value){.f = exp2f(a)};
    case ATTUNE__OP_LOG:
        return (attune__value){.f = logf(a)};
    case ATTUNE__OP_LOG2:
        return (attune__value){.f = log2f(a)};
    case ATTUNE__OP_SQRT:
        return (attune__value){.f = sqrtf(a)};
    case ATTUNE__OP_RSQRT:
        return (attune__value){.f = 1.0f / sqrtf(a)};
    case ATTUNE__OP_TANH:
        return (attune__value){.f = tanhf(a)};
    case ATTUNE__OP_SIGMOID:
        return (attune__value){.f = 1.0f / (1.0f + expf(-a))};
    case ATTUNE__OP_SIN:
        return (attune__value){.f = sinf(a)};
    case ATTUNE__OP_COS:
        return (attune__value){.f = cosf(a)};
    case ATTUNE__OP_POW:
        return (attune__value){.f = powf(a, b)};
    default:
        return (attune__value){0};
    }
}

attune__value attune__apply(attune__op op, attune__type type, const attune__value *arg)
{
    if (op == ATTUNE__OP_SELECT)
        return arg[0].i ? arg[1] : arg[2];
    bool binary = attune__op_arity(op) == 2;
    return type == ATTUNE__FLOAT ? apply_float(op, arg[0].f, binary ? arg[1].f : 0)
                                 : apply_int(op, arg[0].i, binary ? arg[1].i : 0);
}

attune__value attune__expr_point(const attune_expr *expr, const attune__bindings *bindings, const attune_point *point)
{
    attune__value values[ATTUNE_EXPR_MAX_NODES];
    /* A point is of a dense call. */
    const int32_t row = attune__iadd(attune__imul(point->b, point->q_len), point->q);
    const int32_t vars[] = {point->b, point->h, point->q, point->kv, point->h_kv, point->q_len, point->kv_len, 0, row};
    for (uint32_t i = 0; i < expr->node_count; i++) {
        const attune__node *node = &expr->nodes[i];
        attune__value arg[ATTUNE_MAX_RANK] = {{0}};
        for (uint32_t j = 0; j < node->arg_count; j++)
            arg[j] = values[node->arg[j]];
        switch (node->op) {
        case ATTUNE__OP_CONST:
            values[i] = node->value;
            break;
        case ATTUNE__OP_VAR:
            if (node->value.i == ATTUNE__VAR_SCORE)
                values[i].f = point->score;
            else
                values[i].i = vars[node->value.i];
            break;
        case ATTUNE__OP_PARAM:
            values[i] = bindings->parameters[node->value.i];
            break;
        case ATTUNE__OP_CAPTURE: {
            int32_t index[ATTUNE_MAX_RANK] = {arg[0].i, arg[1].i, arg[2].i, arg[3].i};
            values[i] = attune__capture_read(&bindings->captures[node->value.i], node->arg_count, index);
            break;
        }
        default: {
            attune__type type = (attune__type)expr->nodes[node->arg[node->arg_count - 1]].type;
            values[i] = attune__apply((attune__op)node->op, type, arg);
            break;
        }
        }
    }
    return values[expr->node_count - 1];
}

/* ------------------------------------------------------------------------------------------------------------- rows */

#define COLUMN_USES ((1u << ATTUNE__VAR_KV) | (1u << ATTUNE__VAR_SCORE))
#define ALIGNED(x)  (((x) + 63) & ~(size_t)63)

/* The slope of a node that is not linear in the column. */
#define CURVED INT64_MIN

typedef union scalar_f32 {
    int32_t i;
    float r;
} scalar_f32;
typedef attune__real scalar_f64;

#define REAL    float
#define F(name) name##f
#define NAME(x) x##_f32
#include "expr/eval_tmpl.c"
#undef REAL
#undef F
#undef NAME

#define REAL    double
#define F(name) name
#define NAME(x) x##_f64
#include "expr/eval_tmpl.c"
#undef REAL
#undef F
#undef NAME

attune__real attune__apply_real(attune__op op, attune__type type, const attune__real *arg)
{
    if (op == ATTUNE__OP_SELECT)
        return arg[0].i ? arg[1] : arg[2];
    return apply_f64(op, type, arg[0], attune__op_arity(op) == 2 ? arg[1] : (attune__real){0});
}

size_t attune__expr_scratch_size(const attune_expr *expr, size_t columns)
{
    size_t element = expr->kind == ATTUNE_EXPR_MASK ? sizeof(float) : sizeof(double);
    size_t count = 0;
    for (uint32_t i = 0; i < expr->node_count; i++)
        count += (expr->nodes[i].uses & COLUMN_USES) != 0;
    return ALIGNED(expr->node_count * sizeof(node_state_f64)) + count * ALIGNED(columns * element);
}

static void store_allowed(const node_state_f32 *root, size_t count, uint8_t *allowed)
{
    if (!root->column) {
        memset(allowed, root->value.i, count);
        return;
    }
    const int32_t *value = root->column;
    for (size_t i = 0; i < count; i++)
        allowed[i] = (uint8_t)value[i];
}

void attune__expr_mask_row(const attune_expr *expr, const attune__bindings *bindings, const attune__row *row,
                           int32_t kv0, size_t count, void *scratch, uint8_t *allowed)
{
    store_allowed(evaluate_f32(expr, NULL, NULL, bindings, row, kv0, count, NULL, scratch), count, allowed);
}

/* Decided nodes that no open node depends on are not initialised. */
void attune__expr_open_begin(const attune_expr *expr, const attune__interval *bounds, void *scratch)
{
    node_state_f32 *states = scratch;
    for (uint32_t n = 0; n < expr->node_count; n++) {
        states[n] = (node_state_f32){0};
        if (expr->nodes[n].type == ATTUNE__FLOAT)
            states[n].value.r = bounds[n].flo;
        else
            states[n].value.i = bounds[n].lo;
    }
}

void attune__expr_open_row(const attune_expr *expr, const attune__open_nodes *open, const attune__bindings *bindings,
                           const attune__row *row, int32_t kv0, size_t count, void *scratch, uint8_t *allowed)
{
    store_allowed(evaluate_f32(expr, open, NULL, bindings, row, kv0, count, NULL, scratch), count, allowed);
}

void attune__expr_score_row_f32(const attune__functions *functions, const attune_expr *expr,
                                const attune__bindings *bindings, const attune__row *row, int32_t kv0, size_t count,
                                void *scratch, float *score)
{
    store_f32(evaluate_f32(expr, NULL, functions, bindings, row, kv0, count, score, scratch), count, score);
}

void attune__expr_score_row_f64(const attune_expr *expr, const attune__bindings *bindings, const attune__row *row,
                                int32_t kv0, size_t count, void *scratch, double *score)
{
    store_f64(evaluate_f64(expr, NULL, NULL, bindings, row, kv0, count, score, scratch), count, score);
}

void attune__gradient_row_f32(const attune__functions *functions, const attune__gradient *gradient,
                              const attune__bindings *bindings, const attune__row *row, int32_t kv0, size_t count,
                              void *scratch, const float *score, float *d, double *const *sums)
{
    evaluate_f32(gradient->expr, NULL, functions, bindings, row, kv0, count, score, scratch);
    differentiate_f32(gradient, bindings, scratch, count, d, sums);
}

void attune__gradient_row_f64(const attune__gradient *gradient, const attune__bindings *bindings,
                              const attune__row *row, int32_t kv0, size_t count, void *scratch, const double *score,
                              double *d, double *const *sums)
{
    evaluate_f64(gradient->expr, NULL, NULL, bindings, row, kv0, count, score, scratch);
    differentiate_f64(gradient, bindings, scratch, count, d, sums);
}
