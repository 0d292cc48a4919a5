/* SPDX-License-Identifier: MIT */
/* Evaluation of rows for one REAL; included by eval.c. A node that depends on neither kv nor score has a value. Any
 * other has a column, in scratch or, if nothing has to be computed, in the array that it reads. */

typedef struct NAME(node_state) {
    const void *column; /* int32_t (int, bool) or REAL; NULL: `value` serves every column */
    NAME(scalar) value;
    int64_t slope; /* ints: the step between columns, 0 without a column, CURVED if it is not constant */
} NAME(node_state);

static NAME(scalar) NAME(scalar_of)(attune__value value, uint8_t type)
{
    return type == ATTUNE__FLOAT ? (NAME(scalar)){.r = value.f} : (NAME(scalar)){.i = value.i};
}

static NAME(scalar) NAME(apply)(attune__op op, attune__type type, NAME(scalar) x, NAME(scalar) y)
{
    if (type != ATTUNE__FLOAT) {
        if (op == ATTUNE__OP_FLOAT)
            return (NAME(scalar)){.r = (REAL)x.i};
        return (NAME(scalar)){.i = apply_int(op, x.i, y.i).i};
    }
    REAL a = x.r, b = y.r;
    switch (op) {
#define REAL_OP(name, expression)                                                                                      \
    case ATTUNE__OP_##name:                                                                                            \
        return (NAME(scalar)){.r = (expression)};
#define TEST_OP(name, expression)                                                                                      \
    case ATTUNE__OP_##name:                                                                                            \
        return (NAME(scalar)){.i = (expression)};
        REAL_OP(ADD, a + b)
        REAL_OP(SUB, a - b)
        REAL_OP(MUL, a * b)
        REAL_OP(DIV, a / b)
        REAL_OP(MOD, a - F(floor)(a / b) * b)
        REAL_OP(NEG, -a)
        REAL_OP(ABS, F(fabs)(a))
        REAL_OP(MIN, b < a ? b : a)
        REAL_OP(MAX, a < b ? b : a)
        TEST_OP(EQ, a == b)
        TEST_OP(NE, a != b)
        TEST_OP(LT, a < b)
        TEST_OP(LE, a <= b)
        REAL_OP(FLOOR, F(floor)(a))
        REAL_OP(CEIL, F(ceil)(a))
        REAL_OP(EXP, F(exp)(a))
        REAL_OP(EXP2, F(exp2)(a))
        REAL_OP(LOG, F(log)(a))
        REAL_OP(LOG2, F(log2)(a))
        REAL_OP(SQRT, F(sqrt)(a))
        REAL_OP(RSQRT, 1 / F(sqrt)(a))
        REAL_OP(TANH, F(tanh)(a))
        REAL_OP(SIGMOID, 1 / (1 + F(exp)(-a)))
        REAL_OP(SIN, F(sin)(a))
        REAL_OP(COS, F(cos)(a))
        REAL_OP(POW, F(pow)(a, b))
#undef REAL_OP
#undef TEST_OP
    default:
        return (NAME(scalar)){0};
    }
}

/* ---------------------------------------------------------------------------------------------- columns: operations */

/* One loop for each combination of columns and values; x and y are the elements. */
#define LOOP(IN, OUT, member, expression)                                                                              \
    do {                                                                                                               \
        OUT *restrict o = out;                                                                                         \
        const IN *p = a->column, *r = b->column;                                                                       \
        if (p && r)                                                                                                    \
            for (size_t i = 0; i < count; i++) {                                                                       \
                const IN x = p[i], y = r[i];                                                                           \
                o[i] = (OUT)(expression);                                                                              \
            }                                                                                                          \
        else if (p) {                                                                                                  \
            const IN y = b->value.member;                                                                              \
            for (size_t i = 0; i < count; i++) {                                                                       \
                const IN x = p[i];                                                                                     \
                o[i] = (OUT)(expression);                                                                              \
            }                                                                                                          \
        } else {                                                                                                       \
            const IN x = a->value.member;                                                                              \
            for (size_t i = 0; i < count; i++) {                                                                       \
                const IN y = r[i];                                                                                     \
                o[i] = (OUT)(expression);                                                                              \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

/* One operand, always a column. */
#define MAP(IN, OUT, expression)                                                                                       \
    do {                                                                                                               \
        OUT *restrict o = out;                                                                                         \
        const IN *p = a->column;                                                                                       \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const IN x = p[i];                                                                                         \
            o[i] = (OUT)(expression);                                                                                  \
        }                                                                                                              \
    } while (0)

/* Division by one number for all columns. In double the quotient of two i32 has the exact floor: it is at least 2^-31
 * away from the next whole number, and its rounding error below 2^-22 divided by the divisor. */
static void NAME(divide)(const NAME(node_state) * a, int32_t divisor, bool modulo, size_t count, int32_t *restrict o)
{
    const int32_t *p = a->column;
    const double d = divisor;
    if (divisor == 0 || divisor == -1) {
        for (size_t i = 0; i < count; i++)
            o[i] = modulo || !divisor ? 0 : attune__ineg(p[i]);
    } else if (modulo) {
        for (size_t i = 0; i < count; i++) {
            double quotient = p[i] / d;
            int32_t whole = (int32_t)quotient;
            int32_t floored = whole - (quotient < whole ? 1 : 0);
            o[i] = attune__isub(p[i], attune__imul(floored, divisor));
        }
    } else {
        for (size_t i = 0; i < count; i++) {
            double quotient = p[i] / d;
            int32_t whole = (int32_t)quotient;
            o[i] = whole - (quotient < whole ? 1 : 0);
        }
    }
}

static void NAME(column_int)(attune__op op, const NAME(node_state) * a, const NAME(node_state) * b, size_t count,
                             void *out)
{
    switch (op) {
    case ATTUNE__OP_ADD:
        LOOP(int32_t, int32_t, i, attune__iadd(x, y));
        break;
    case ATTUNE__OP_SUB:
        LOOP(int32_t, int32_t, i, attune__isub(x, y));
        break;
    case ATTUNE__OP_MUL:
        LOOP(int32_t, int32_t, i, attune__imul(x, y));
        break;
    case ATTUNE__OP_DIV:
        if (b->column)
            LOOP(int32_t, int32_t, i, attune__idiv(x, y));
        else
            NAME(divide)(a, b->value.i, false, count, out);
        break;
    case ATTUNE__OP_MOD:
        if (b->column)
            LOOP(int32_t, int32_t, i, attune__imod(x, y));
        else
            NAME(divide)(a, b->value.i, true, count, out);
        break;
    case ATTUNE__OP_NEG:
        MAP(int32_t, int32_t, attune__ineg(x));
        break;
    case ATTUNE__OP_ABS:
        MAP(int32_t, int32_t, attune__iabs(x));
        break;
    case ATTUNE__OP_MIN:
        LOOP(int32_t, int32_t, i, y < x ? y : x);
        break;
    case ATTUNE__OP_MAX:
        LOOP(int32_t, int32_t, i, x < y ? y : x);
        break;
    case ATTUNE__OP_EQ:
        LOOP(int32_t, int32_t, i, x == y);
        break;
    case ATTUNE__OP_NE:
        LOOP(int32_t, int32_t, i, x != y);
        break;
    case ATTUNE__OP_LT:
        LOOP(int32_t, int32_t, i, x < y);
        break;
    case ATTUNE__OP_LE:
        LOOP(int32_t, int32_t, i, x <= y);
        break;
    case ATTUNE__OP_AND:
        LOOP(int32_t, int32_t, i, x & y);
        break;
    case ATTUNE__OP_OR:
        LOOP(int32_t, int32_t, i, x | y);
        break;
    case ATTUNE__OP_NOT:
        MAP(int32_t, int32_t, x ^ 1);
        break;
    case ATTUNE__OP_FLOAT:
        MAP(int32_t, REAL, x);
        break;
    default:
        break;
    }
}

static void NAME(column_real)(attune__op op, const NAME(node_state) * a, const NAME(node_state) * b, size_t count,
                              void *out)
{
    switch (op) {
    case ATTUNE__OP_ADD:
        LOOP(REAL, REAL, r, x + y);
        break;
    case ATTUNE__OP_SUB:
        LOOP(REAL, REAL, r, x - y);
        break;
    case ATTUNE__OP_MUL:
        LOOP(REAL, REAL, r, x * y);
        break;
    case ATTUNE__OP_DIV:
        LOOP(REAL, REAL, r, x / y);
        break;
    case ATTUNE__OP_MOD:
        LOOP(REAL, REAL, r, x - F(floor)(x / y) * y);
        break;
    case ATTUNE__OP_NEG:
        MAP(REAL, REAL, -x);
        break;
    case ATTUNE__OP_ABS:
        MAP(REAL, REAL, F(fabs)(x));
        break;
    case ATTUNE__OP_MIN:
        LOOP(REAL, REAL, r, y < x ? y : x);
        break;
    case ATTUNE__OP_MAX:
        LOOP(REAL, REAL, r, x < y ? y : x);
        break;
    case ATTUNE__OP_EQ:
        LOOP(REAL, int32_t, r, x == y);
        break;
    case ATTUNE__OP_NE:
        LOOP(REAL, int32_t, r, x != y);
        break;
    case ATTUNE__OP_LT:
        LOOP(REAL, int32_t, r, x < y);
        break;
    case ATTUNE__OP_LE:
        LOOP(REAL, int32_t, r, x <= y);
        break;
    case ATTUNE__OP_FLOOR:
        MAP(REAL, REAL, F(floor)(x));
        break;
    case ATTUNE__OP_CEIL:
        MAP(REAL, REAL, F(ceil)(x));
        break;
    case ATTUNE__OP_EXP:
        MAP(REAL, REAL, F(exp)(x));
        break;
    case ATTUNE__OP_EXP2:
        MAP(REAL, REAL, F(exp2)(x));
        break;
    case ATTUNE__OP_LOG:
        MAP(REAL, REAL, F(log)(x));
        break;
    case ATTUNE__OP_LOG2:
        MAP(REAL, REAL, F(log2)(x));
        break;
    case ATTUNE__OP_SQRT:
        MAP(REAL, REAL, F(sqrt)(x));
        break;
    case ATTUNE__OP_RSQRT:
        MAP(REAL, REAL, 1 / F(sqrt)(x));
        break;
    case ATTUNE__OP_TANH:
        MAP(REAL, REAL, F(tanh)(x));
        break;
    case ATTUNE__OP_SIGMOID:
        MAP(REAL, REAL, 1 / (1 + F(exp)(-x)));
        break;
    case ATTUNE__OP_SIN:
        MAP(REAL, REAL, F(sin)(x));
        break;
    case ATTUNE__OP_COS:
        MAP(REAL, REAL, F(cos)(x));
        break;
    case ATTUNE__OP_POW:
        LOOP(REAL, REAL, r, F(pow)(x, y));
        break;
    default:
        break;
    }
}

#undef LOOP
#undef MAP

/* Calls the device's own function; false if it has none. */
static bool NAME(column_function)(const attune__functions *functions, attune__op op, const NAME(node_state) * a,
                                  const NAME(node_state) * b, size_t count, void *out)
{
    if (sizeof(REAL) != sizeof(float) || !functions)
        return false;
    if (functions->of_two[op])
        functions->of_two[op](out, a->column, b->column, (float)a->value.r, (float)b->value.r, count);
    else if (op != ATTUNE__OP_POW && functions->of[op])
        functions->of[op](out, a->column, count);
    else
        return false;
    return true;
}

/* select: the condition and the branches are columns or values. Compilers vectorise loops that read both branches. */
#define CHOOSE(T, member)                                                                                              \
    do {                                                                                                               \
        T *restrict o = out;                                                                                           \
        const T *p = a->column, *r = b->column;                                                                        \
        const T x = a->value.member, y = b->value.member;                                                              \
        const int32_t *k = c->column;                                                                                  \
        if (!k) {                                                                                                      \
            const T *from = c->value.i ? p : r;                                                                        \
            const T one = c->value.i ? x : y;                                                                          \
            for (size_t i = 0; i < count; i++)                                                                         \
                o[i] = from ? from[i] : one;                                                                           \
        } else if (p && r)                                                                                             \
            for (size_t i = 0; i < count; i++) {                                                                       \
                const T yes = p[i], no = r[i];                                                                         \
                o[i] = k[i] ? yes : no;                                                                                \
            }                                                                                                          \
        else if (p)                                                                                                    \
            for (size_t i = 0; i < count; i++) {                                                                       \
                const T yes = p[i];                                                                                    \
                o[i] = k[i] ? yes : y;                                                                                 \
            }                                                                                                          \
        else if (r)                                                                                                    \
            for (size_t i = 0; i < count; i++) {                                                                       \
                const T no = r[i];                                                                                     \
                o[i] = k[i] ? x : no;                                                                                  \
            }                                                                                                          \
        else                                                                                                           \
            for (size_t i = 0; i < count; i++)                                                                         \
                o[i] = k[i] ? x : y;                                                                                   \
    } while (0)

static void NAME(column_select)(uint8_t type, const NAME(node_state) * c, const NAME(node_state) * a,
                                const NAME(node_state) * b, size_t count, void *out)
{
    if (type == ATTUNE__FLOAT)
        CHOOSE(REAL, r);
    else
        CHOOSE(int32_t, i);
}
#undef CHOOSE

/* ------------------------------------------------------------------------------------------------ columns: captures */

/* Elements offset, offset + step, ... */
static void NAME(strided)(const attune_array *array, int64_t offset, int64_t step, size_t count, void *out)
{
    int32_t *restrict whole = out;
    REAL *restrict real = out;
#define STRIDED(T, to, expression)                                                                                     \
    do {                                                                                                               \
        const T *data = (const T *)array->data + offset;                                                               \
        if (step == 1)                                                                                                 \
            for (size_t i = 0; i < count; i++) {                                                                       \
                const T x = data[i];                                                                                   \
                to[i] = (expression);                                                                                  \
            }                                                                                                          \
        else                                                                                                           \
            for (size_t i = 0; i < count; i++) {                                                                       \
                const T x = data[(int64_t)i * step];                                                                   \
                to[i] = (expression);                                                                                  \
            }                                                                                                          \
    } while (0)
    switch (array->dtype) {
    case ATTUNE_I32:
        STRIDED(int32_t, whole, x);
        break;
    case ATTUNE_I64:
        STRIDED(int64_t, whole, attune__clamp_i64(x));
        break;
    case ATTUNE_U8:
        STRIDED(uint8_t, whole, x);
        break;
    case ATTUNE_BOOL:
        STRIDED(uint8_t, whole, x != 0);
        break;
    case ATTUNE_F32:
        STRIDED(float, real, x);
        break;
    case ATTUNE_F16:
        STRIDED(uint16_t, real, attune__f32_from_f16(x));
        break;
    case ATTUNE_BF16:
        STRIDED(uint16_t, real, attune__f32_from_bf16(x));
        break;
    default:
        break;
    }
#undef STRIDED
}

/* If every index is linear in the column, the columns in range are one run. False if an index would wrap. */
static bool NAME(capture_run)(const attune_array *array, const attune__node *node, const NAME(node_state) * states,
                              size_t count, void *out, const void **column)
{
    int64_t first = 0, end = (int64_t)count;
    /* unsigned: the stride of a dimension of size 1 may be anything */
    uint64_t offset = 0, step = 0;
    for (uint32_t d = 0; d < node->arg_count; d++) {
        const NAME(node_state) *s = &states[node->arg[d]];
        int64_t slope = s->slope;
        if (slope == CURVED)
            return false;
        int64_t start = s->column ? *(const int32_t *)s->column : s->value.i;
        int64_t last = start + slope * ((int64_t)count - 1);
        if (last < INT32_MIN || last > INT32_MAX)
            return false;
        offset += (uint64_t)start * (uint64_t)array->stride[d];
        step += (uint64_t)slope * (uint64_t)array->stride[d];
        int64_t size = array->size[d];
        if (slope == 0) {
            if (start < 0 || start >= size)
                end = 0;
        } else {
            /* columns i with 0 <= start + slope * i < size, counted from the side where the index grows */
            int64_t low = slope > 0 ? start : -start + size - 1, pace = slope > 0 ? slope : -slope;
            int64_t from = low >= 0 ? 0 : pace == 1 ? -low : (-low + pace - 1) / pace;
            int64_t to = low >= size ? 0 : pace == 1 ? size - low : (size - 1 - low) / pace + 1;
            first = from > first ? from : first;
            end = to < end ? to : end;
        }
    }
    if (end < first)
        end = first = 0;
    size_t element = node->type == ATTUNE__FLOAT ? sizeof(REAL) : sizeof(int32_t);
    bool same = array->dtype == ATTUNE_I32 || (array->dtype == ATTUNE_F32 && sizeof(REAL) == sizeof(float));
    if (same && step == 1 && first == 0 && end == (int64_t)count) {
        *column = (const char *)array->data + (int64_t)offset * (int64_t)element;
        return true;
    }
    char *bytes = out;
    memset(bytes, 0, (size_t)first * element);
    if (end > first)
        NAME(strided)
    (array, (int64_t)(offset + (uint64_t)first * step), (int64_t)step, (size_t)(end - first),
     bytes + (size_t)first * element);
    memset(bytes + (size_t)end * element, 0, (count - (size_t)end) * element);
    return true;
}

/* Any indices. Indices that are the same for every column are checked once. */
static void NAME(column_capture)(const attune_array *array, const attune__node *node, const NAME(node_state) * states,
                                 size_t count, void *out)
{
    const int32_t *index[ATTUNE_MAX_RANK];
    int64_t size[ATTUNE_MAX_RANK], stride[ATTUNE_MAX_RANK], base = 0;
    uint32_t rank = 0;
    int32_t *restrict whole = out;
    REAL *restrict real = out;
    for (uint32_t d = 0; d < node->arg_count; d++) {
        const NAME(node_state) *s = &states[node->arg[d]];
        if (s->column) {
            index[rank] = s->column;
            size[rank] = array->size[d];
            stride[rank++] = array->stride[d];
        } else if (s->value.i >= 0 && s->value.i < array->size[d]) {
            base += s->value.i * array->stride[d];
        } else {
            memset(out, 0, count * (node->type == ATTUNE__FLOAT ? sizeof *real : sizeof *whole));
            return;
        }
    }
    if (rank == 1 && array->dtype == ATTUNE_I32) {
        const int32_t *data = (const int32_t *)array->data + base;
        for (size_t i = 0; i < count; i++)
            whole[i] = index[0][i] >= 0 && index[0][i] < size[0] ? data[index[0][i] * stride[0]] : 0;
        return;
    }
    if (rank == 1 && array->dtype == ATTUNE_F32) {
        const float *data = (const float *)array->data + base;
        for (size_t i = 0; i < count; i++)
            real[i] = index[0][i] >= 0 && index[0][i] < size[0] ? data[index[0][i] * stride[0]] : 0;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t offset = base;
        uint32_t d = 0;
        for (; d < rank && index[d][i] >= 0 && index[d][i] < size[d]; d++)
            offset += index[d][i] * stride[d];
        const attune__value value = d == rank ? attune__capture_load(array, offset) : (attune__value){0};
        if (node->type == ATTUNE__FLOAT)
            real[i] = value.f;
        else
            whole[i] = value.i;
    }
}

/* ------------------------------------------------------------------------------------------------------- evaluation */

static int64_t NAME(slope)(const attune__node *node, const NAME(node_state) * states, bool adjacent)
{
    if (node->op == ATTUNE__OP_VAR)
        return node->value.i == ATTUNE__VAR_KV && adjacent ? 1 : CURVED;
    if (node->type != ATTUNE__INT || (node->op != ATTUNE__OP_ADD && node->op != ATTUNE__OP_SUB &&
                                      node->op != ATTUNE__OP_NEG && node->op != ATTUNE__OP_MUL))
        return CURVED;
    const NAME(node_state) *a = &states[node->arg[0]],
                           *b = &states[node->op == ATTUNE__OP_NEG ? node->arg[0] : node->arg[1]];
    if (a->slope == CURVED || b->slope == CURVED)
        return CURVED;
    int64_t slope = node->op == ATTUNE__OP_ADD   ? a->slope + b->slope
                    : node->op == ATTUNE__OP_SUB ? a->slope - b->slope
                    : node->op == ATTUNE__OP_NEG ? -a->slope
                    : a->column && b->column     ? CURVED
                    : a->column                  ? a->slope * b->value.i
                                                 : b->slope * a->value.i;
    /* larger than any array; prevents overflow in the sums above */
    return slope > INT32_MAX || slope < -INT32_MAX ? CURVED : slope;
}

static NAME(scalar) NAME(constant)(const attune__node *node, const NAME(node_state) * states,
                                   const attune__bindings *bindings, const int32_t *vars, attune__type type)
{
    switch (node->op) {
    case ATTUNE__OP_CONST:
        return node->type == ATTUNE__FLOAT ? (NAME(scalar)){.r = (REAL)node->real} : (NAME(scalar)){.i = node->value.i};
    case ATTUNE__OP_VAR:
        return (NAME(scalar)){.i = vars[node->value.i]};
    case ATTUNE__OP_PARAM:
        return NAME(scalar_of)(bindings->parameters[node->value.i], node->type);
    case ATTUNE__OP_CAPTURE: {
        int32_t index[ATTUNE_MAX_RANK] = {0};
        for (uint32_t d = 0; d < node->arg_count; d++)
            index[d] = states[node->arg[d]].value.i;
        return NAME(scalar_of)(attune__capture_read(&bindings->captures[node->value.i], node->arg_count, index),
                               node->type);
    }
    case ATTUNE__OP_SELECT:
        return states[node->arg[states[node->arg[0]].value.i ? 1 : 2]].value;
    default:
        return NAME(apply)((attune__op)node->op, type, states[node->arg[0]].value,
                           node->arg_count > 1 ? states[node->arg[1]].value : (NAME(scalar)){0});
    }
}

/* Whether an open node has a column: decided operands are values. */
static bool NAME(varies)(const attune__node *node, const NAME(node_state) * states)
{
    bool column = !node->arg_count;
    for (uint32_t a = 0; a < node->arg_count; a++)
        column |= states[node->arg[a]].column != NULL;
    return column;
}

/* All rows and columns of a call of evaluate. */
typedef struct NAME(plane) {
    const attune_expr *expr;
    const attune__functions *functions;
    const attune__bindings *bindings;
    const int32_t *vars;
    int32_t kv0;
    const int32_t *keys; /* NULL = kv0 and those after it */
    size_t count;
    const REAL *score;
    NAME(node_state) * states;
} NAME(plane);

static attune__type NAME(operand_type)(const attune_expr *expr, const attune__node *node)
{
    return node->arg_count ? (attune__type)expr->nodes[node->arg[node->arg_count - 1]].type : (attune__type)node->type;
}

static void NAME(evaluate_value)(const NAME(plane) * plane, uint32_t n)
{
    const attune__node *node = &plane->expr->nodes[n];
    plane->states[n] = (NAME(node_state)){.value = NAME(constant)(node, plane->states, plane->bindings, plane->vars,
                                                                  NAME(operand_type)(plane->expr, node))};
}

static size_t NAME(column_bytes)(const attune__node *node, size_t count)
{
    return ALIGNED(count * (node->type == ATTUNE__FLOAT ? sizeof(REAL) : sizeof(int32_t)));
}

/* The column is at `memory`, which moves on. */
static void NAME(evaluate_column)(const NAME(plane) * plane, uint32_t n, char **memory)
{
    const attune__node *node = &plane->expr->nodes[n];
    const attune__type type = NAME(operand_type)(plane->expr, node);
    const size_t count = plane->count;
    NAME(node_state) *states = plane->states, *state = &states[n];
    void *out = *memory;
    *memory += NAME(column_bytes)(node, count);
    *state = (NAME(node_state)){.column = out};
    state->slope = NAME(slope)(node, states, !plane->keys);
    const NAME(node_state) *a = &states[node->arg[0]], *b = &states[node->arg[1]];
    if (node->op == ATTUNE__OP_VAR && node->value.i == ATTUNE__VAR_SCORE) {
        state->column = plane->score;
    } else if (node->op == ATTUNE__OP_VAR && plane->keys) {
        state->column = plane->keys;
    } else if (node->op == ATTUNE__OP_VAR) {
        int32_t *restrict o = out;
        for (size_t c = 0; c < count; c++)
            o[c] = attune__iadd(plane->kv0, (int32_t)c);
    } else if (node->op == ATTUNE__OP_CAPTURE) {
        const attune_array *array = &plane->bindings->captures[node->value.i];
        if (!NAME(capture_run)(array, node, states, count, out, &state->column))
            NAME(column_capture)(array, node, states, count, out);
    } else if (node->op == ATTUNE__OP_SELECT) {
        NAME(column_select)(node->type, a, b, &states[node->arg[2]], count, out);
    } else if (type == ATTUNE__FLOAT) {
        if (!NAME(column_function)(plane->functions, (attune__op)node->op, a, b, count, out))
            NAME(column_real)((attune__op)node->op, a, b, count, out);
    } else {
        NAME(column_int)((attune__op)node->op, a, b, count, out);
    }
}

/* open: NULL = all nodes; else scratch has the states of the others. */
static const NAME(node_state) * NAME(evaluate)(const attune_expr *expr, const attune__open_nodes *open,
                                               const attune__functions *functions, const attune__bindings *bindings,
                                               const attune__row *row, int32_t kv0, size_t count, const REAL *score,
                                               void *scratch)
{
    const int32_t vars[] = {row->b, row->h, row->q, 0, row->h_kv, row->q_len, row->kv_len, 0, row->row};
    NAME(node_state) *states = scratch;
    const NAME(plane) plane = {expr, functions, bindings, vars, kv0, row->keys, count, score, states};
    char *memory = (char *)scratch + ALIGNED(expr->node_count * sizeof(NAME(node_state)));
    const uint32_t nodes = open ? open->count : expr->node_count;
    for (uint32_t i = 0; i < nodes; i++) {
        const uint32_t n = open ? open->nodes[i] : i;
        const attune__node *node = &expr->nodes[n];
        if (!(node->uses & COLUMN_USES) || (open && !NAME(varies)(node, states)))
            NAME(evaluate_value)(&plane, n);
        else
            NAME(evaluate_column)(&plane, n, &memory);
    }
    return &states[expr->node_count - 1];
}

static void NAME(store)(const NAME(node_state) * root, size_t count, REAL *score)
{
    const REAL *value = root->column;
    if (!value)
        for (size_t i = 0; i < count; i++)
            score[i] = root->value.r; /* NOLINT(clang-analyzer-core.NullDereference): never called for masks */
    else if (value != score)
        memmove(score, value, count * sizeof *score);
}

/* -------------------------------------------------------------------------------------------------------- gradients */

/* Adds the gradients of a capture read to its elements. An index out of range has none. */
static void NAME(scatter)(const attune__gradient *gradient, const attune__gradient_read *read,
                          const attune_array *array, const NAME(node_state) * states, size_t count, const REAL *d,
                          double *sums)
{
    const attune__node *node = &gradient->expr->nodes[read->capture];
    const NAME(node_state) *factor = &states[read->factor];
    for (size_t i = 0; i < count; i++) {
        int64_t place = 0;
        bool inside = d[i] != 0;
        for (uint32_t k = 0; k < node->arg_count && inside; k++) {
            const NAME(node_state) *index = &states[node->arg[k]];
            const int64_t at = index->column ? ((const int32_t *)index->column)[i] : index->value.i;
            inside = at >= 0 && at < array->size[k];
            place = place * array->size[k] + at;
        }
        if (inside)
            sums[place] += (double)(d[i] * (factor->column ? ((const REAL *)factor->column)[i] : factor->value.r));
    }
}

static void NAME(differentiate)(const attune__gradient *gradient, const attune__bindings *bindings,
                                const NAME(node_state) * states, size_t count, REAL *d, double *const *sums)
{
    for (uint32_t r = 0; r < gradient->read_count; r++) {
        const int32_t symbol = gradient->expr->nodes[gradient->reads[r].capture].value.i;
        if (sums[symbol])
            NAME(scatter)(gradient, &gradient->reads[r], &bindings->captures[symbol], states, count, d, sums[symbol]);
    }
    const REAL *slope = states[gradient->score].column, same = states[gradient->score].value.r;
    for (size_t i = 0; i < count; i++) {
        const REAL product = d[i] * (slope ? slope[i] : same);
        d[i] = d[i] == 0 ? 0 : product;
    }
}
