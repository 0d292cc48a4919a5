/* SPDX-License-Identifier: MIT */
/* Random expressions: any operator of the language, over variables, captures and parameters. */
#include "random/random.h"

#include <math.h>
#include <string.h>

typedef struct grammar {
    rng *r;
    tree *t;
    const char *suffix;
    bool score;   /* `score` and the functions of floats are in reach */
    bool lengths; /* q_len and kv_len are */
    bool divide;  /* any float may divide; else powers of two, whose quotients no device rounds otherwise */
    bool wild;    /* infinities */
    bool bare;    /* operands may be anything */
    bool rows;    /* row is in reach */
    int captures; /* reads so far */
} grammar;

static int push(grammar *g, node n)
{
    g->t->nodes[g->t->count] = n;
    return g->t->count++;
}

static int apply(grammar *g, node_op op, node_type type, int count, const int *kid)
{
    node n = {.op = op, .type = type, .count = count};
    memcpy(n.kid, kid, (size_t)count * sizeof *kid);
    return push(g, n);
}

static int unary(grammar *g, node_op op, node_type type, int a)
{
    return apply(g, op, type, 1, &a);
}

static int binary(grammar *g, node_op op, node_type type, int a, int b)
{
    return apply(g, op, type, 2, (const int[]){a, b});
}

static int literal_int(grammar *g, int32_t value)
{
    return push(g, (node){.op = OP_INT, .type = TYPE_INT, .i = value});
}

static int literal_float(grammar *g, double value)
{
    return push(g, (node){.op = OP_FLOAT, .type = TYPE_FLOAT, .f = value});
}

static int int_expr(grammar *g, int depth);
static int float_expr(grammar *g, int depth);
static int bool_expr(grammar *g, int depth);

static bool full(const grammar *g)
{
    return g->t->count > TREE_NODES - 45;
}

/* An old symbol, or a new one. */
static int draw_symbol(grammar *g, attune_symbol_kind kind, node_type type)
{
    static const attune_dtype ints[] = {ATTUNE_I32, ATTUNE_I32, ATTUNE_I64, ATTUNE_U8},
                              floats[] = {ATTUNE_F32, ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};
    tree *t = g->t;
    rng *r = g->r;
    const bool use_old = t->symbol_count == SYMBOLS || rng_chance(r, 50);
    for (int i = 0; i < t->symbol_count && use_old; i++) {
        const tree_symbol *s = &t->symbols[i];
        const node_type has = s->dtype == ATTUNE_BOOL                                                       ? TYPE_BOOL
                              : s->dtype == ATTUNE_F32 || s->dtype == ATTUNE_F16 || s->dtype == ATTUNE_BF16 ? TYPE_FLOAT
                                                                                                            : TYPE_INT;
        if (s->kind == kind && has == type)
            return i;
    }
    if (t->symbol_count == SYMBOLS)
        return -1;
    tree_symbol *s = &t->symbols[t->symbol_count];
    *s = (tree_symbol){.kind = kind, .declared_rank = rng_chance(r, 70)};
    (void)snprintf(s->name, sizeof s->name, "%s%s%d", kind == ATTUNE_SYMBOL_CAPTURE ? "cap" : "par", g->suffix,
                   t->symbol_count);
    if (kind == ATTUNE_SYMBOL_PARAMETER) {
        s->dtype = type == TYPE_INT ? ATTUNE_I32 : ATTUNE_F32;
        return t->symbol_count++;
    }
    s->dtype = type == TYPE_BOOL ? ATTUNE_BOOL : (type == TYPE_INT ? ints : floats)[rng_range(r, 0, 3)];
    s->rank = rng_chance(r, 60) ? 1 : (int)rng_range(r, 1, 4);
    for (int i = 0; i < s->rank; i++) {
        static const node_op by[] = {OP_Q, OP_KV, OP_H, OP_B, OP_KV, OP_Q, OP_H_KV, OP_INT};
        s->by[i] = g->rows && rng_chance(r, 20) ? OP_ROW : by[rng_range(r, 0, s->rank > 2 ? 7 : 5)];
    }
    return t->symbol_count++;
}

static int variable(grammar *g, node_op op)
{
    return push(g, (node){.op = op, .type = TYPE_INT});
}

static int capture(grammar *g, node_type type, int depth)
{
    if (g->captures >= READS || full(g))
        return -1;
    const int symbol = draw_symbol(g, ATTUNE_SYMBOL_CAPTURE, type);
    if (symbol < 0)
        return -1;
    g->captures++;
    int kid[ATTUNE_MAX_RANK];
    const int rank = g->t->symbols[symbol].rank;
    for (int i = 0; i < rank; i++) {
        const node_op by = g->t->symbols[symbol].by[i];
        const int64_t how = rng_range(g->r, 0, 9);
        if (by == OP_INT || how == 0)
            kid[i] = literal_int(g, (int32_t)rng_range(g->r, 0, 5));
        else if (how == 1 && depth > 0)
            kid[i] = int_expr(g, depth - 1);
        else if (how == 2)
            kid[i] = binary(g, OP_ADD, TYPE_INT, binary(g, OP_SUB, TYPE_INT, variable(g, OP_Q), variable(g, OP_KV)),
                            literal_int(g, (int32_t)rng_range(g->r, 0, 40)));
        else if (how == 3)
            kid[i] = binary(g, rng_chance(g->r, 50) ? OP_DIV : OP_MOD, TYPE_INT, variable(g, by),
                            literal_int(g, (int32_t)rng_range(g->r, 1, 9)));
        else if (how == 4)
            kid[i] = variable(g, by == OP_Q ? OP_KV : by == OP_KV ? OP_Q : by);
        else
            kid[i] = variable(g, by);
    }
    node n = {.op = OP_CAPTURE, .type = type, .count = rank, .i = symbol};
    memcpy(n.kid, kid, (size_t)rank * sizeof *kid);
    return push(g, n);
}

static int parameter(grammar *g, node_type type)
{
    const int symbol = draw_symbol(g, ATTUNE_SYMBOL_PARAMETER, type);
    return symbol < 0 ? -1 : push(g, (node){.op = OP_PARAMETER, .type = type, .i = symbol});
}

static int int_leaf(grammar *g)
{
    static const node_op variables[] = {OP_Q, OP_KV, OP_Q, OP_KV, OP_Q, OP_KV, OP_H, OP_B, OP_H_KV};
    if (g->lengths && rng_chance(g->r, 8))
        return variable(g, rng_chance(g->r, 50) ? OP_Q_LEN : OP_KV_LEN);
    if (g->rows && rng_chance(g->r, 6))
        return variable(g, OP_ROW);
    if (g->bare && rng_chance(g->r, 6)) {
        /* Powers of two, the ends of i32, and what wraps when it is multiplied. */
        const int power = literal_int(g, (int32_t)(rng_chance(g->r, 20) ? INT32_MAX : 1 << rng_range(g->r, 0, 30)));
        const int signed_one = rng_chance(g->r, 40) ? unary(g, OP_NEG, TYPE_INT, power) : power;
        return rng_chance(g->r, 30) ? binary(g, OP_SUB, TYPE_INT, signed_one, literal_int(g, 1)) : signed_one;
    }
    if (rng_chance(g->r, 25))
        return literal_int(g, (int32_t)(rng_chance(g->r, 4) ? rng_range(g->r, INT32_MAX - 9, INT32_MAX)
                                                            : rng_range(g->r, 0, rng_chance(g->r, 50) ? 5 : 60)));
    return variable(g, variables[rng_range(g->r, 0, 8)]);
}

static int int_expr(grammar *g, int depth)
{
    int at = -1;
    if (depth <= 0 || full(g))
        return int_leaf(g);
    switch (rng_range(g->r, 0, 13)) {
    case 0:
    case 1:
    case 2:
        at = capture(g, TYPE_INT, depth - 1);
        break;
    case 3:
        at = parameter(g, TYPE_INT);
        break;
    case 4:
    case 5:
    case 6: {
        static const node_op ops[] = {OP_ADD, OP_SUB, OP_SUB, OP_MUL};
        const int a = int_expr(g, depth - 1);
        return binary(g, ops[rng_range(g->r, 0, 3)], TYPE_INT, a, int_expr(g, depth - 1));
    }
    case 7:
    case 8: {
        const int a = int_expr(g, depth - 1);
        if (g->bare && rng_chance(g->r, 50)) {
            const int power = literal_int(g, 1 << rng_range(g->r, 1, 10));
            const int by = rng_chance(g->r, 20) ? unary(g, OP_NEG, TYPE_INT, power) : power;
            return binary(g, rng_chance(g->r, 50) ? OP_DIV : OP_MOD, TYPE_INT, a, by);
        }
        const int b = rng_chance(g->r, 70) ? literal_int(g, (int32_t)rng_range(g->r, 0, 17)) : int_expr(g, depth - 1);
        return binary(g, rng_chance(g->r, 50) ? OP_DIV : OP_MOD, TYPE_INT, a, b);
    }
    case 9: {
        const int a = int_expr(g, depth - 1);
        return binary(g, rng_chance(g->r, 50) ? OP_MIN : OP_MAX, TYPE_INT, a, int_expr(g, depth - 1));
    }
    case 10: {
        const int a = int_expr(g, depth - 1), b = int_expr(g, 0), c = int_expr(g, 0);
        return apply(g, OP_CLAMP, TYPE_INT, 3, (const int[]){a, b, c});
    }
    case 11: {
        const int a = bool_expr(g, depth - 1), b = int_expr(g, depth - 1), c = int_expr(g, depth - 1);
        return apply(g, rng_chance(g->r, 50) ? OP_CHOICE : OP_SELECT, TYPE_INT, 3, (const int[]){a, b, c});
    }
    case 12:
        return unary(g, rng_chance(g->r, 50) ? OP_ABS : OP_NEG, TYPE_INT, int_expr(g, depth - 1));
    default:
        break;
    }
    return at >= 0 ? at : int_leaf(g);
}

static int compare(grammar *g, int depth)
{
    const node_op op = (node_op)(OP_LT + rng_range(g->r, 0, 5));
    if (rng_chance(g->r, g->score ? 15 : 25)) {
        const int a = float_expr(g, depth - 1);
        return binary(g, op, TYPE_BOOL, a, float_expr(g, depth - 1));
    }
    const int a = int_expr(g, depth - 1);
    return binary(g, op, TYPE_BOOL, a, int_expr(g, depth - 1));
}

/* An analysis may take these for an interval of keys in each row. */
static int interval_term(grammar *g)
{
    const int key = variable(g, OP_KV), of = variable(g, OP_Q);
    const node_op op = (node_op)(OP_LT + rng_range(g->r, 0, 3));
    const int n = literal_int(g, 1 << rng_range(g->r, 0, 7));
    int bound = -1;
    switch (rng_range(g->r, 0, 5)) {
    case 0: /* the last row at the last key, where lengths are in reach */
        if (g->lengths)
            return binary(g, OP_GE, TYPE_BOOL,
                          binary(g, OP_ADD, TYPE_INT, of,
                                 binary(g, OP_SUB, TYPE_INT, variable(g, OP_KV_LEN), variable(g, OP_Q_LEN))),
                          key);
        return binary(g, op, TYPE_BOOL, key, binary(g, OP_SUB, TYPE_INT, of, n));
    case 1: /* blocks */
        return binary(g, rng_chance(g->r, 70) ? OP_EQ : op, TYPE_BOOL, binary(g, OP_DIV, TYPE_INT, key, n),
                      binary(g, OP_DIV, TYPE_INT, of, n));
    case 2: /* lengths and starts */
        bound = capture(g, TYPE_INT, 0);
        return bound < 0 ? binary(g, op, TYPE_BOOL, key, of) : binary(g, op, TYPE_BOOL, key, bound);
    case 3: /* every n-th key, or most of them */
        return binary(g, rng_chance(g->r, 50) ? OP_EQ : OP_NE, TYPE_BOOL,
                      binary(g, OP_MOD, TYPE_INT, binary(g, OP_SUB, TYPE_INT, of, key), n),
                      literal_int(g, (int32_t)rng_range(g->r, 0, 2)));
    case 4: /* a prefix and what follows it */
        return binary(g, OP_OR, TYPE_BOOL, binary(g, op, TYPE_BOOL, key, n), binary(g, OP_GE, TYPE_BOOL, of, key));
    default: /* a product that may wrap */
        return binary(g, op, TYPE_BOOL, binary(g, OP_MUL, TYPE_INT, key, int_leaf(g)), int_leaf(g));
    }
}

/* Terms of masks as applications write them. */
static int usual(grammar *g, int depth)
{
    if (g->bare && rng_chance(g->r, 40))
        return interval_term(g);
    switch (rng_range(g->r, 0, 4)) {
    case 0:
        return binary(g, OP_GE, TYPE_BOOL, variable(g, OP_Q), variable(g, OP_KV));
    case 1: {
        const int distance = binary(g, OP_SUB, TYPE_INT, variable(g, OP_Q), variable(g, OP_KV));
        const int left = rng_chance(g->r, 50) ? unary(g, OP_ABS, TYPE_INT, distance) : distance;
        return binary(g, OP_LT, TYPE_BOOL, left, literal_int(g, (int32_t)rng_range(g->r, 0, 70)));
    }
    case 2: {
        const int n = parameter(g, TYPE_INT);
        if (n < 0)
            break;
        return binary(g, OP_LT, TYPE_BOOL, variable(g, OP_KV), n);
    }
    case 3: {
        const int c = capture(g, TYPE_BOOL, depth - 1);
        if (c < 0)
            break;
        return c;
    }
    default: {
        const int a = capture(g, TYPE_INT, depth - 1);
        if (a < 0)
            break;
        return binary(g, rng_chance(g->r, 50) ? OP_EQ : OP_LE, TYPE_BOOL, a, int_leaf(g));
    }
    }
    return binary(g, OP_GE, TYPE_BOOL, variable(g, OP_Q), variable(g, OP_KV));
}

static int bool_expr(grammar *g, int depth)
{
    if (depth <= 0 || full(g))
        return rng_chance(g->r, 12)
                   ? push(g, (node){.op = OP_BOOL, .type = TYPE_BOOL, .i = rng_chance(g->r, 50)})
                   : binary(g, (node_op)(OP_LT + rng_range(g->r, 0, 5)), TYPE_BOOL, int_leaf(g), int_leaf(g));
    switch (rng_range(g->r, 0, 11)) {
    case 0:
    case 1:
    case 2: {
        const int a = bool_expr(g, depth - 1);
        return binary(g, OP_AND, TYPE_BOOL, a, bool_expr(g, depth - 1));
    }
    case 3:
    case 4: {
        const int a = bool_expr(g, depth - 1);
        return binary(g, OP_OR, TYPE_BOOL, a, bool_expr(g, depth - 1));
    }
    case 5:
        return unary(g, OP_NOT, TYPE_BOOL, bool_expr(g, depth - 1));
    case 6: {
        const int a = bool_expr(g, depth - 1), b = bool_expr(g, depth - 1), c = bool_expr(g, depth - 1);
        return apply(g, rng_chance(g->r, 50) ? OP_CHOICE : OP_SELECT, TYPE_BOOL, 3, (const int[]){a, b, c});
    }
    case 7: {
        const int a = bool_expr(g, depth - 1);
        return binary(g, rng_chance(g->r, 50) ? OP_EQ : OP_NE, TYPE_BOOL, a, bool_expr(g, depth - 1));
    }
    case 8:
    case 9:
        return compare(g, depth);
    default:
        return usual(g, depth);
    }
}

/* A multiple of 1 / 128. */
static double plain(grammar *g, double most)
{
    return (double)rng_range(g->r, 0, (int64_t)(most * 128)) / 128;
}

static int float_leaf(grammar *g)
{
    int at = -1;
    if (g->score && rng_chance(g->r, 55))
        return push(g, (node){.op = OP_SCORE, .type = TYPE_FLOAT});
    switch (rng_range(g->r, 0, 4)) {
    case 0:
    case 1:
        at = capture(g, TYPE_FLOAT, 1);
        break;
    case 2:
        at = parameter(g, TYPE_FLOAT);
        break;
    case 3:
        return unary(g, OP_CONVERT, TYPE_FLOAT, int_leaf(g));
    default:
        break;
    }
    if (at >= 0)
        return at;
    /* Past what f32 tells apart, and up to its range. */
    if (g->score && rng_chance(g->r, 4))
        return literal_float(g, ldexp(1 + plain(g, 0.75), (int)rng_range(g->r, -100, 120)));
    return literal_float(g, rng_chance(g->r, 20) ? (double)rng_range(g->r, 1, 30) / 10 : plain(g, 4));
}

static int guarded(grammar *g, node_op op, int depth)
{
    int a = float_expr(g, depth - 1);
    if (g->bare && op == OP_POW) {
        const int power = literal_float(g, (double)rng_range(g->r, 0, 4) / (rng_chance(g->r, 70) ? 1 : 2));
        return binary(g, OP_POW, TYPE_FLOAT, a, rng_chance(g->r, 30) ? unary(g, OP_NEG, TYPE_FLOAT, power) : power);
    }
    if (g->bare)
        return unary(g, op, TYPE_FLOAT, a);
    switch (op) {
    case OP_EXP:
    case OP_EXP2:
        a = binary(g, OP_MIN, TYPE_FLOAT, a, literal_float(g, 2));
        break;
    case OP_LOG:
    case OP_LOG2:
    case OP_RSQRT:
    case OP_SQRT:
    case OP_POW:
        a = unary(g, OP_ABS, TYPE_FLOAT, a);
        a = binary(g, OP_ADD, TYPE_FLOAT, a, literal_float(g, op == OP_SQRT && rng_chance(g->r, 20) ? 0 : 1));
        break;
    default:
        break;
    }
    if (op == OP_POW)
        return binary(g, OP_POW, TYPE_FLOAT, a, literal_float(g, plain(g, 2)));
    return unary(g, op, TYPE_FLOAT, a);
}

static int float_divisor(grammar *g, int depth)
{
    if (g->bare && g->divide && rng_chance(g->r, 40))
        return rng_chance(g->r, 25) ? literal_float(g, 0) : float_expr(g, depth - 1);
    if (!g->divide || rng_chance(g->r, 60))
        return literal_float(g, ldexp(1, (int)rng_range(g->r, -3, 3)));
    if (rng_chance(g->r, 60))
        return literal_float(g, plain(g, 4) + 0.25);
    return binary(g, OP_ADD, TYPE_FLOAT, unary(g, OP_ABS, TYPE_FLOAT, float_expr(g, depth - 1)), literal_float(g, 0.5));
}

static int float_expr(grammar *g, int depth)
{
    if (depth <= 0 || full(g))
        return float_leaf(g);
    switch (rng_range(g->r, 0, 17)) {
    case 0:
    case 1:
    case 2:
    case 3: {
        const int a = float_expr(g, depth - 1);
        return binary(g, rng_chance(g->r, 60) ? OP_ADD : OP_SUB, TYPE_FLOAT, a, float_expr(g, depth - 1));
    }
    case 4:
    case 5: {
        const int a = float_expr(g, depth - 1);
        return binary(g, OP_MUL, TYPE_FLOAT, a, rng_chance(g->r, 60) ? literal_float(g, plain(g, 2)) : float_leaf(g));
    }
    case 6: {
        const int a = float_expr(g, depth - 1);
        return binary(g, OP_DIV, TYPE_FLOAT, a, float_divisor(g, depth - 1));
    }
    case 7: {
        const int a = float_expr(g, depth - 1);
        if (g->bare && g->divide)
            return binary(g, OP_MOD, TYPE_FLOAT, a, float_divisor(g, depth - 1));
        return binary(g, OP_MOD, TYPE_FLOAT, a, literal_float(g, ldexp(1, (int)rng_range(g->r, -1, 3))));
    }
    case 8:
    case 9: {
        const int a = bool_expr(g, depth - 1), b = float_expr(g, depth - 1), c = float_expr(g, depth - 1);
        return apply(g, rng_chance(g->r, 50) ? OP_CHOICE : OP_SELECT, TYPE_FLOAT, 3, (const int[]){a, b, c});
    }
    case 10: {
        const int a = float_expr(g, depth - 1);
        return binary(g, rng_chance(g->r, 50) ? OP_MIN : OP_MAX, TYPE_FLOAT, a, float_expr(g, depth - 1));
    }
    case 11: {
        const int a = float_expr(g, depth - 1);
        if (g->bare) {
            const int low = float_leaf(g);
            return apply(g, OP_CLAMP, TYPE_FLOAT, 3, (const int[]){a, low, float_leaf(g)});
        }
        const int low = unary(g, OP_NEG, TYPE_FLOAT, literal_float(g, plain(g, 3)));
        return apply(g, OP_CLAMP, TYPE_FLOAT, 3, (const int[]){a, low, literal_float(g, plain(g, 3))});
    }
    case 12:
        return unary(g, rng_chance(g->r, 50) ? OP_ABS : OP_NEG, TYPE_FLOAT, float_expr(g, depth - 1));
    case 13:
        return unary(g, rng_chance(g->r, 50) ? OP_FLOOR : OP_CEIL, TYPE_FLOAT, float_expr(g, depth - 1));
    case 14:
        return unary(g, OP_CONVERT, TYPE_FLOAT, int_expr(g, depth - 1));
    default:
        /* Functions whose last bits are a device's own have no place in a mask. */
        return g->score ? guarded(g, (node_op)(OP_EXP + rng_range(g->r, 0, 10)), depth) : float_leaf(g);
    }
}

void tree_draw_mask(rng *r, const char *suffix, bool lengths, bool divide, bool bare, tree *t)
{
    *t = (tree){0};
    grammar g = {.r = r, .t = t, .suffix = suffix, .lengths = lengths, .divide = divide, .bare = bare};
    (void)bool_expr(&g, (int)rng_range(r, 1, 4));
}

/* A scaled tanh of the score, a slope by distance, a factor of each head, a table by distance: around any score. */
static int usual_score(grammar *g, int score)
{
    static const node_op heads[] = {OP_H, OP_H_KV, OP_B};
    int at = -1, by = -1;
    switch (rng_range(g->r, 0, 3)) {
    case 0: {
        const double c = (double)(1 << rng_range(g->r, 0, 6));
        const int share = binary(g, OP_DIV, TYPE_FLOAT, score, literal_float(g, c));
        return binary(g, OP_MUL, TYPE_FLOAT, literal_float(g, c), unary(g, OP_TANH, TYPE_FLOAT, share));
    }
    case 1:
        at = capture(g, TYPE_FLOAT, 0);
        by = unary(g, OP_CONVERT, TYPE_FLOAT, binary(g, OP_SUB, TYPE_INT, variable(g, OP_KV), variable(g, OP_Q)));
        return at < 0 ? score : binary(g, OP_ADD, TYPE_FLOAT, score, binary(g, OP_MUL, TYPE_FLOAT, at, by));
    case 2:
        at = capture(g, TYPE_FLOAT, 0);
        return at < 0 ? score : binary(g, OP_MUL, TYPE_FLOAT, score, at);
    default:
        by = variable(g, heads[rng_range(g->r, 0, 2)]);
        at = binary(g, OP_EQ, TYPE_BOOL, by, literal_int(g, 0));
        return apply(g, OP_CHOICE, TYPE_FLOAT, 3, (const int[]){at, score, literal_float(g, plain(g, 2))});
    }
}

void tree_draw_score(rng *r, bool wild, bool bare, tree *t)
{
    *t = (tree){0};
    grammar g = {
        .r = r, .t = t, .suffix = "S", .score = true, .lengths = true, .divide = true, .wild = wild, .bare = bare};
    int root = float_expr(&g, (int)rng_range(r, 1, 4));
    if (bare && rng_chance(r, 40))
        root = usual_score(&g, root);
    if (!tree_uses(t, OP_SCORE) && rng_chance(r, 90))
        root = binary(&g, OP_ADD, TYPE_FLOAT, root, push(&g, (node){.op = OP_SCORE, .type = TYPE_FLOAT}));
    if (wild) {
        /* Pairs of -inf (or of +inf) that the score forbids, so to speak. */
        const int c = bool_expr(&g, 1);
        const int infinity =
            binary(&g, OP_DIV, TYPE_FLOAT,
                   rng_chance(r, 85) ? unary(&g, OP_NEG, TYPE_FLOAT, literal_float(&g, 1)) : literal_float(&g, 1),
                   literal_float(&g, 0));
        (void)apply(&g, OP_CHOICE, TYPE_FLOAT, 3, (const int[]){c, root, infinity});
    }
}

void tree_draw_served(rng *r, bool score, bool divide, bool bare, tree *t)
{
    *t = (tree){0};
    grammar g = {.r = r,
                 .t = t,
                 .suffix = score ? "S" : "A",
                 .score = score,
                 .lengths = true,
                 .divide = divide,
                 .bare = bare,
                 .rows = true};
    const int root = (score ? float_expr : bool_expr)(&g, (int)rng_range(r, 1, 4));
    if (score && !tree_uses(t, OP_SCORE))
        (void)binary(&g, OP_ADD, TYPE_FLOAT, root, push(&g, (node){.op = OP_SCORE, .type = TYPE_FLOAT}));
}

void tree_add_bias(attune_dtype dtype, bool by_batch, bool by_head, tree *t)
{
    grammar g = {.t = t};
    const int root = t->count - 1;
    if (t->symbol_count == SYMBOLS || t->count > TREE_NODES - 8)
        return;
    t->symbols[t->symbol_count] =
        (tree_symbol){"bias", ATTUNE_SYMBOL_CAPTURE, dtype, 4, .declared_rank = true, .of_mask = true};
    const int score = root < 0 ? push(&g, (node){.op = OP_SCORE, .type = TYPE_FLOAT}) : root;
    const int b = by_batch ? push(&g, (node){.op = OP_B, .type = TYPE_INT}) : literal_int(&g, 0),
              h = by_head ? push(&g, (node){.op = OP_H, .type = TYPE_INT}) : literal_int(&g, 0),
              q = push(&g, (node){.op = OP_Q, .type = TYPE_INT}), kv = push(&g, (node){.op = OP_KV, .type = TYPE_INT});
    const int read = apply(&g, OP_CAPTURE, TYPE_FLOAT, 4, (const int[]){b, h, q, kv});
    t->nodes[read].i = t->symbol_count++;
    (void)binary(&g, OP_ADD, TYPE_FLOAT, score, read);
}
