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

/* ------------------------------------------------------------------------------------------------------------ tiles */

/* The indices of a tile on which a node of a mask depends. */
typedef enum dependence {
    ON_NEITHER,  /* a value for the tile */
    ON_ROW,      /* q: a value for each row */
    ON_KEY,      /* kv: a column for all rows */
    ON_DISTANCE, /* q - kv: rows' columns overlap in one, of rows + count - 1 distances */
    ON_PAIR      /* a column for each row */
} dependence;

/* An integer node that is q * r + kv * c + corner in row r and column c, modulo 2^32. */
typedef struct linear {
    int64_t q, kv;
    int32_t corner;
    bool valid;
} linear;

typedef struct tile {
    attune__row row;
    uint32_t rows;
    int32_t kv0;
    size_t count;
    uint32_t row_nodes, shifted; /* lengths of the lists below */
    char *memory;                /* of columns of pairs */
    node_state_f32 *states;      /* of the row that was evaluated last, and nodes on neither or on keys */
    node_state_f32 *path;        /* of nodes that nodes on distances depend on */
    linear *lines;
    uint16_t *row_list;   /* nodes to evaluate for each row */
    uint16_t *shift_list; /* nodes on distances that others read */
    uint8_t *depends;
    uint8_t *changed; /* whether a node differs from the row before */
    bool evaluated;   /* a row was */
} tile;

/* Coefficients up to this do not overflow in the sums below. */
#define MOST_SLOPE ((int64_t)1 << 20)

static linear line_of(const attune_expr *expr, uint32_t n, dependence depends, const tile *t)
{
    const attune__node *node = &expr->nodes[n];
    if (node->type != ATTUNE__INT)
        return (linear){0};
    if (depends == ON_NEITHER)
        return (linear){0, 0, t->states[n].value.i, true};
    if (node->op == ATTUNE__OP_VAR && node->value.i == ATTUNE__VAR_Q)
        return (linear){1, 0, t->row.q, true};
    if (node->op == ATTUNE__OP_VAR && node->value.i == ATTUNE__VAR_KV)
        return (linear){0, 1, t->kv0, true};
    const linear a = t->lines[node->arg[0]], b = t->lines[node->arg[node->arg_count > 1]];
    if (!node->arg_count || !a.valid || !b.valid)
        return (linear){0};
    linear line = {.valid = true};
    switch (node->op) {
    case ATTUNE__OP_ADD:
        line = (linear){a.q + b.q, a.kv + b.kv, attune__iadd(a.corner, b.corner), true};
        break;
    case ATTUNE__OP_SUB:
        line = (linear){a.q - b.q, a.kv - b.kv, attune__isub(a.corner, b.corner), true};
        break;
    case ATTUNE__OP_NEG:
        line = (linear){-a.q, -a.kv, attune__ineg(a.corner), true};
        break;
    case ATTUNE__OP_MUL: {
        const bool first = !a.q && !a.kv;
        const int64_t factor = first ? a.corner : b.corner;
        const linear other = first ? b : a;
        line.valid = (first || (!b.q && !b.kv)) && factor <= MOST_SLOPE && factor >= -MOST_SLOPE;
        line.q = line.valid ? other.q * factor : 0;
        line.kv = line.valid ? other.kv * factor : 0;
        line.corner = attune__imul(a.corner, b.corner);
        break;
    }
    default:
        line.valid = false;
        break;
    }
    line.valid &= line.q <= MOST_SLOPE && line.q >= -MOST_SLOPE && line.kv <= MOST_SLOPE && line.kv >= -MOST_SLOPE;
    return line;
}

/* Whether no value of the tile wraps. */
static bool stays(const tile *t, linear line)
{
    const int64_t q = line.q * (t->rows - 1), kv = line.kv * ((int64_t)t->count - 1);
    const int64_t low = line.corner + (q < 0 ? q : 0) + (kv < 0 ? kv : 0);
    const int64_t high = line.corner + (q > 0 ? q : 0) + (kv > 0 ? kv : 0);
    return low >= INT32_MIN && high <= INT32_MAX;
}

/* The dependence of a node that reads q and kv. */
static dependence dependence_of_both(const attune_expr *expr, uint32_t n, const tile *t)
{
    const attune__node *node = &expr->nodes[n];
    if (t->lines[n].valid && t->lines[n].q == -t->lines[n].kv)
        return ON_DISTANCE;
    if (node->op >= ATTUNE__OP_EQ && node->op <= ATTUNE__OP_LE) {
        const linear a = t->lines[node->arg[0]], b = t->lines[node->arg[1]];
        const bool ordered = node->op == ATTUNE__OP_LT || node->op == ATTUNE__OP_LE;
        if (a.valid && b.valid && a.q - b.q == b.kv - a.kv && (!ordered || (stays(t, a) && stays(t, b))))
            return ON_DISTANCE;
    }
    for (uint32_t i = 0; i < node->arg_count; i++) {
        const dependence operand = (dependence)t->depends[node->arg[i]];
        if (operand != ON_NEITHER && operand != ON_DISTANCE)
            return ON_PAIR;
    }
    return ON_DISTANCE;
}

/* Nodes on distances, for the pairs of the first column, from the last row up, then those of the first row. */
static void evaluate_distances(const attune_expr *expr, const attune__bindings *bindings, const tile *t, char **memory)
{
    const size_t distances = t->rows + t->count - 1;
    const plane_f32 plane = {expr, NULL, bindings, NULL, 0, NULL, distances, NULL, t->path};
    for (uint32_t n = 0; n < expr->node_count; n++) {
        const attune__node *node = &expr->nodes[n];
        if (!t->path[n].slope)
            continue;
        if (t->depends[n] == ON_NEITHER) {
            t->path[n] = t->states[n];
        } else if (node->op == ATTUNE__OP_VAR) {
            int32_t *restrict o = (int32_t *)(void *)*memory;
            const bool q = node->value.i == ATTUNE__VAR_Q;
            for (size_t i = 0; i < distances; i++) {
                const size_t row = i < t->rows ? t->rows - 1 - i : 0, column = i < t->rows ? 0 : i - (t->rows - 1);
                o[i] = attune__iadd(q ? t->row.q : t->kv0, (int32_t)(q ? row : column));
            }
            t->path[n] = (node_state_f32){.column = o, .slope = CURVED};
            *memory += ALIGNED(distances * sizeof *o);
        } else {
            evaluate_column_f32(&plane, n, memory);
            t->path[n].slope = CURVED;
        }
    }
}

static tile *tile_at(const attune_expr *expr, void *scratch)
{
    const size_t nodes = expr->node_count, states = ALIGNED(nodes * sizeof(node_state_f32));
    tile *t = scratch;
    t->states = (node_state_f32 *)(void *)((char *)scratch + ALIGNED(sizeof *t));
    t->path = (node_state_f32 *)(void *)((char *)t->states + states);
    t->lines = (linear *)(void *)((char *)t->path + states);
    t->row_list = (uint16_t *)(t->lines + nodes);
    t->shift_list = t->row_list + nodes;
    t->depends = (uint8_t *)(t->shift_list + nodes);
    t->changed = t->depends + nodes;
    t->memory = (char *)t->states + 2 * states + ALIGNED(nodes * (sizeof(linear) + 2 * sizeof(uint16_t) + 2));
    return t;
}

size_t attune__expr_tile_size(const attune_expr *expr, size_t columns)
{
    const size_t nodes = expr->node_count, distances = ATTUNE__TILE_ROWS + columns - 1;
    size_t count = 0, along = 0;
    for (uint32_t i = 0; i < nodes; i++) {
        count += (expr->nodes[i].uses & COLUMN_USES) != 0;
        along += (expr->nodes[i].uses & (COLUMN_USES | 1u << ATTUNE__VAR_Q)) != 0;
    }
    return ALIGNED(sizeof(tile)) + 2 * ALIGNED(nodes * sizeof(node_state_f32)) +
           ALIGNED(nodes * (sizeof(linear) + 2 * sizeof(uint16_t) + 2)) + count * ALIGNED(columns * sizeof(float)) +
           along * ALIGNED(distances * sizeof(float));
}

static void vars_of(const attune__row *row, uint32_t r, int32_t vars[9])
{
    const int32_t of[] = {row->b,      row->h, attune__iadd(row->q, (int32_t)r),  0, row->h_kv, row->q_len,
                          row->kv_len, 0,      attune__iadd(row->row, (int32_t)r)};
    memcpy(vars, of, sizeof of);
}

/* Lists what rows evaluate, and marks what the path needs with a slope other than 0. */
static void list_nodes(const attune_expr *expr, tile *t)
{
    for (uint32_t n = 0; n < expr->node_count; n++)
        t->path[n].slope = 0;
    const uint32_t root = expr->node_count - 1;
    if (t->depends[root] == ON_DISTANCE)
        t->path[root].slope = 1;
    for (uint32_t n = 0; n < expr->node_count; n++)
        for (uint32_t i = 0; i < expr->nodes[n].arg_count && t->depends[n] == ON_PAIR; i++)
            if (t->depends[expr->nodes[n].arg[i]] == ON_DISTANCE)
                t->path[expr->nodes[n].arg[i]].slope = 1;
    t->row_nodes = t->shifted = 0;
    for (uint32_t n = 0; n < expr->node_count; n++) {
        if (t->depends[n] == ON_ROW || t->depends[n] == ON_PAIR)
            t->row_list[t->row_nodes++] = (uint16_t)n;
        else if (t->path[n].slope)
            t->shift_list[t->shifted++] = (uint16_t)n;
    }
    for (uint32_t n = expr->node_count; n-- > 0;)
        for (uint32_t i = 0; i < expr->nodes[n].arg_count && t->path[n].slope; i++)
            t->path[expr->nodes[n].arg[i]].slope = 1;
}

void attune__expr_tile_begin(const attune_expr *expr, const attune__bindings *bindings, const attune__row *row,
                             uint32_t rows, int32_t kv0, size_t count, void *scratch)
{
    tile *t = tile_at(expr, scratch);
    int32_t vars[9];
    t->row = *row;
    t->rows = rows;
    t->kv0 = kv0;
    t->count = count;
    vars_of(row, 0, vars);
    const plane_f32 plane = {expr, NULL, bindings, vars, kv0, NULL, count, NULL, t->states};
    const uint16_t of_row = 1u << ATTUNE__VAR_Q | 1u << ATTUNE__VAR_ROW;
    for (uint32_t n = 0; n < expr->node_count; n++) {
        const uint16_t uses = expr->nodes[n].uses;
        dependence depends = ON_PAIR;
        if (!(uses & of_row))
            depends = uses & COLUMN_USES ? ON_KEY : ON_NEITHER;
        else if (!(uses & COLUMN_USES))
            depends = ON_ROW;
        if (depends == ON_NEITHER)
            evaluate_value_f32(&plane, n);
        else if (depends == ON_KEY)
            evaluate_column_f32(&plane, n, &t->memory);
        t->lines[n] = line_of(expr, n, depends, t);
        if (depends == ON_PAIR && !(uses & 1u << ATTUNE__VAR_ROW))
            depends = dependence_of_both(expr, n, t);
        t->depends[n] = (uint8_t)depends;
    }
    t->evaluated = false;
    for (uint32_t n = 0; n < expr->node_count; n++)
        t->changed[n] = t->depends[n] == ON_DISTANCE;
    list_nodes(expr, t);
    if (t->shifted)
        evaluate_distances(expr, bindings, t, &t->memory);
}

/* The nodes of a row. Those whose operands are as in the row before are left as they are. */
static void evaluate_row(const attune_expr *expr, const attune__bindings *bindings, uint32_t r, tile *t)
{
    int32_t vars[9];
    vars_of(&t->row, r, vars);
    const plane_f32 plane = {expr, NULL, bindings, vars, t->kv0, NULL, t->count, NULL, t->states};
    char *memory = t->memory;
    for (uint32_t i = 0; i < t->row_nodes; i++) {
        const uint32_t n = t->row_list[i];
        const attune__node *node = &expr->nodes[n];
        if (t->depends[n] == ON_ROW) {
            const int32_t before = t->states[n].value.i;
            evaluate_value_f32(&plane, n);
            t->changed[n] = !t->evaluated || t->states[n].value.i != before;
            continue;
        }
        bool changed = !t->evaluated;
        for (uint32_t a = 0; a < node->arg_count; a++)
            changed |= t->changed[node->arg[a]];
        t->changed[n] = changed;
        if (changed)
            evaluate_column_f32(&plane, n, &memory);
        else
            memory += column_bytes_f32(node, t->count);
    }
}

bool attune__expr_tile_row(const attune_expr *expr, const attune__bindings *bindings, uint32_t r, void *scratch,
                           uint8_t *allowed)
{
    tile *t = scratch;
    const uint32_t root = expr->node_count - 1;
    for (uint32_t i = 0; i < t->shifted; i++) {
        const uint32_t n = t->shift_list[i];
        t->states[n] = (node_state_f32){
            .column = (const int32_t *)t->path[n].column + (t->rows - 1 - r),
            .slope = t->lines[n].valid ? t->lines[n].kv : CURVED,
        };
    }
    evaluate_row(expr, bindings, r, t);
    const bool first = !t->evaluated;
    t->evaluated = true;
    if (!first && !t->changed[root])
        return false;
    store_allowed(&t->states[root], t->count, allowed);
    return true;
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
