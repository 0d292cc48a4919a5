/* SPDX-License-Identifier: MIT */
/* Simplified expressions against a plain evaluation of the text: few operands, so that the rules find something. */
#include "expr/common.h"

#include <stdio.h>

#include "base/text.h"

typedef enum type { TRUTH, WHOLE, REAL } type;

typedef union number {
    int32_t i; /* also truth */
    float f;
} number;

typedef struct tree {
    struct {
        int index; /* of the operation; ~index of a leaf */
        type type;
        int operand[3], height;
    } node[64];
    int count;
} tree;

/* ------------------------------------------------------------------------------------------------------- operations */

static int32_t wrapped(int64_t value)
{
    return (int32_t)(uint32_t)(uint64_t)value;
}

static int32_t floor_div(int32_t a, int32_t b)
{
    if (!b)
        return 0;
    const int64_t quotient = (int64_t)a / b;
    return wrapped(quotient - (quotient * b != a && (a < 0) != (b < 0)));
}

#define I(name, expression)                                                                                            \
    static number name(const number *x)                                                                                \
    {                                                                                                                  \
        return (number){.i = (expression)};                                                                            \
    }
#define F(name, expression)                                                                                            \
    static number name(const number *x)                                                                                \
    {                                                                                                                  \
        return (number){.f = (expression)};                                                                            \
    }
I(add_i, wrapped((int64_t)x[0].i + x[1].i))
I(sub_i, wrapped((int64_t)x[0].i - x[1].i))
I(mul_i, wrapped((int64_t)x[0].i *x[1].i))
I(div_i, floor_div(x[0].i, x[1].i))
I(mod_i, x[1].i ? wrapped(x[0].i - (int64_t)floor_div(x[0].i, x[1].i) * x[1].i) : 0)
I(neg_i, wrapped(-(int64_t)x[0].i))
I(abs_i, x[0].i < 0 ? wrapped(-(int64_t)x[0].i) : x[0].i)
I(min_i, x[0].i < x[1].i ? x[0].i : x[1].i)
I(max_i, x[0].i < x[1].i ? x[1].i : x[0].i)
I(eq_i, x[0].i == x[1].i)
I(ne_i, x[0].i != x[1].i)
I(lt_i, x[0].i < x[1].i)
I(le_i, x[0].i <= x[1].i)
I(gt_i, x[0].i > x[1].i)
I(ge_i, x[0].i >= x[1].i)
I(and_i, x[0].i &&x[1].i)
I(or_i, x[0].i || x[1].i)
I(not_i, !x[0].i)
I(eq_f, x[0].f == x[1].f)
I(ne_f, x[0].f != x[1].f)
I(lt_f, x[0].f < x[1].f)
I(le_f, x[0].f <= x[1].f)
I(gt_f, x[0].f > x[1].f)
I(ge_f, x[0].f >= x[1].f)
F(of_i, (float)x[0].i)
F(add_f, x[0].f + x[1].f)
F(sub_f, x[0].f - x[1].f)
F(mul_f, x[0].f *x[1].f)
F(div_f, x[0].f / x[1].f)
F(mod_f, x[0].f - floorf(x[0].f / x[1].f) * x[1].f)
F(neg_f, -x[0].f)
F(abs_f, fabsf(x[0].f))
F(min_f, x[1].f < x[0].f ? x[1].f : x[0].f)
F(max_f, x[0].f < x[1].f ? x[1].f : x[0].f)
F(floor_f, floorf(x[0].f))
F(ceil_f, ceilf(x[0].f))
#undef I
#undef F
static number choose(const number *x)
{
    return x[0].i ? x[1] : x[2];
}

typedef struct operation {
    const char *form; /* $: an operand */
    type of;          /* the operands: but for the first of a choice */
    type to;
    number (*value)(const number *);
} operation;

static const operation operations[] = {
    {"($ + $)", WHOLE, WHOLE, add_i},      {"($ - $)", WHOLE, WHOLE, sub_i},   {"($ * $)", WHOLE, WHOLE, mul_i},
    {"($ / $)", WHOLE, WHOLE, div_i},      {"($ % $)", WHOLE, WHOLE, mod_i},   {"(-$)", WHOLE, WHOLE, neg_i},
    {"abs($)", WHOLE, WHOLE, abs_i},       {"min($, $)", WHOLE, WHOLE, min_i}, {"max($, $)", WHOLE, WHOLE, max_i},
    {"($ ? $ : $)", WHOLE, WHOLE, choose}, {"($ == $)", WHOLE, TRUTH, eq_i},   {"($ != $)", WHOLE, TRUTH, ne_i},
    {"($ < $)", WHOLE, TRUTH, lt_i},       {"($ <= $)", WHOLE, TRUTH, le_i},   {"($ > $)", WHOLE, TRUTH, gt_i},
    {"($ >= $)", WHOLE, TRUTH, ge_i},      {"($ == $)", TRUTH, TRUTH, eq_i},   {"($ != $)", TRUTH, TRUTH, ne_i},
    {"($ && $)", TRUTH, TRUTH, and_i},     {"($ && $)", TRUTH, TRUTH, and_i},  {"($ || $)", TRUTH, TRUTH, or_i},
    {"($ || $)", TRUTH, TRUTH, or_i},      {"(!$)", TRUTH, TRUTH, not_i},      {"($ ? $ : $)", TRUTH, TRUTH, choose},
    {"($ == $)", REAL, TRUTH, eq_f},       {"($ != $)", REAL, TRUTH, ne_f},    {"($ < $)", REAL, TRUTH, lt_f},
    {"($ <= $)", REAL, TRUTH, le_f},       {"($ > $)", REAL, TRUTH, gt_f},     {"($ >= $)", REAL, TRUTH, ge_f},
    {"($ + $)", REAL, REAL, add_f},        {"($ - $)", REAL, REAL, sub_f},     {"($ * $)", REAL, REAL, mul_f},
    {"($ / $)", REAL, REAL, div_f},        {"($ % $)", REAL, REAL, mod_f},     {"(-$)", REAL, REAL, neg_f},
    {"abs($)", REAL, REAL, abs_f},         {"min($, $)", REAL, REAL, min_f},   {"max($, $)", REAL, REAL, max_f},
    {"floor($)", REAL, REAL, floor_f},     {"ceil($)", REAL, REAL, ceil_f},    {"($ ? $ : $)", REAL, REAL, choose},
    {"($ * 1.0)", WHOLE, REAL, of_i},
};

/* ------------------------------------------------------------------------------------------------------------ trees */

static const struct {
    const char *text;
    type type;
} leaves[] = {{"q", WHOLE},     {"kv", WHOLE},   {"q", WHOLE},  {"kv", WHOLE},        {"0", WHOLE},
              {"1", WHOLE},     {"(-1)", WHOLE}, {"2", WHOLE},  {"(-3)", WHOLE},      {"true", TRUTH},
              {"false", TRUTH}, {"x", REAL},     {"x", REAL},   {"y", REAL},          {"0.0", REAL},
              {"(-0.0)", REAL}, {"1.0", REAL},   {"0.5", REAL}, {"(1.0 / 0.0)", REAL}};
#define LEAVES     (sizeof leaves / sizeof *leaves)
#define OPERATIONS (sizeof operations / sizeof *operations)

/* Index of a node of the tree: one that is there, a leaf, or an operation on others. */
static int grow(tree *t, uint64_t *state, type wanted, int height)
{
    if (t->count && random_expr_next(state) % 3 == 0) {
        const int n = (int)(random_expr_next(state) % (uint64_t)t->count);
        if (t->node[n].type == wanted && t->node[n].height <= height)
            return n;
    }
    const bool leaf = !height || t->count > 50 || random_expr_next(state) % 8 == 0;
    size_t i;
    do
        i = random_expr_next(state) % (leaf ? LEAVES : OPERATIONS);
    while ((leaf ? leaves[i].type : operations[i].to) != wanted);
    int operand[3] = {0}, tall = 0, operands = 0;
    for (const char *c = leaf ? "" : operations[i].form; (c = strchr(c, '$')); c++, operands++) {
        const bool condition = !operands && operations[i].value == choose;
        operand[operands] = grow(t, state, condition ? TRUTH : operations[i].of, height - 1);
        const int below = t->node[operand[operands]].height + 1;
        tall = below > tall ? below : tall;
    }
    t->node[t->count].index = leaf ? ~(int)i : (int)i;
    t->node[t->count].type = wanted;
    t->node[t->count].height = tall;
    memcpy(t->node[t->count].operand, operand, sizeof operand);
    return t->count++;
}

static void write_node(const tree *t, int n, attune__text *text)
{
    const int *operand = t->node[n].operand;
    if (t->node[n].index < 0) {
        attune__text_add(text, "%s", leaves[~t->node[n].index].text);
        return;
    }
    for (const char *c = operations[t->node[n].index].form; *c; c++)
        if (*c == '$')
            write_node(t, *operand++, text);
        else
            attune__text_add(text, "%c", *c);
}

/* -------------------------------------------------------------------------------------------------------- evaluation
 */

typedef struct place {
    int32_t q, kv;
    float x, y;
} place;

static number leaf_value(const char *text, type of, const place *at)
{
    if (of == TRUTH)
        return (number){.i = text[0] == 't'};
    if (of == WHOLE)
        return (number){.i = text[0] == 'q' ? at->q : text[0] == 'k' ? at->kv : atoi(text + (text[0] == '('))};
    return (number){.f = text[0] == 'x'      ? at->x
                         : text[0] == 'y'    ? at->y
                         : strchr(text, '/') ? INFINITY
                                             : strtof(text + (text[0] == '('), NULL)};
}

/* Operands come before their users. */
static number value_of(const tree *t, const place *at)
{
    number values[64];
    for (int n = 0; n < t->count; n++) {
        const int index = t->node[n].index;
        number x[3];
        for (int i = 0; i < 3; i++)
            x[i] = index < 0 || t->node[n].operand[i] >= n ? (number){0} : values[t->node[n].operand[i]];
        values[n] = index < 0 ? leaf_value(leaves[~index].text, leaves[~index].type, at) : operations[index].value(x);
    }
    return values[t->count - 1];
}

static place random_place(uint64_t *state)
{
    static const int32_t whole[] = {0, 1, -1, 2, -2, 3, -7, INT32_MAX, INT32_MIN};
    static const float real[] = {0.0f, -0.0f, 1, -1, 0.5f, -2.5f, 1e30f, INFINITY, -INFINITY, NAN};
#define ANY(list) list[random_expr_next(state) % (sizeof list / sizeof *list)]
    return (place){ANY(whole), ANY(whole), ANY(real), ANY(real)};
#undef ANY
}

/* Both compute the same bits, but for those of a NaN. */
Test(simplify, keeps_every_value)
{
    static const attune_symbol symbols[] = {{"x", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0},
                                            {"y", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0}};
    static tree t;
    static char text[1 << 16];
    const uint64_t count = 6000 + scaled(14000);
    uint64_t state = test_seed() + 31, fewer = 0, tried = 0;
    for (uint64_t i = 0; i < count; i++) {
        const bool mask = i % 4 != 0;
        t.count = 0;
        grow(&t, &state, mask ? TRUTH : i % 8 ? WHOLE : REAL, 1 + (int)(i % 3));
        attune__text to = attune__text_begin(text, sizeof text);
        write_node(&t, t.count - 1, &to);
        if (to.length > ATTUNE_EXPR_MAX_LENGTH)
            continue;
        attune_expr *expr = parse_with(mask ? ATTUNE_EXPR_MASK : ATTUNE_EXPR_SCORE, text, symbols, 2);
        fewer += expr->node_count < (uint32_t)t.count;
        tried++;
        for (int n = 0; n < 10; n++) {
            const place at = random_place(&state);
            attune__value values[2];
            for (uint32_t s = 0; s < expr->symbol_count; s++)
                values[s].f = expr->symbols[s].name[0] == 'x' ? at.x : at.y;
            const attune_point point = {.q = at.q, .kv = at.kv, .q_len = 1, .kv_len = 1};
            const attune__value found = attune__expr_point(expr, &(attune__bindings){NULL, values}, &point);
            number wanted = value_of(&t, &at);
            if (!mask && i % 8)
                wanted.f = (float)wanted.i;
            cr_assert(mask ? found.i == wanted.i : same_float(found.f, wanted.f),
                      "%s at q %d, kv %d, x %g, y %g: %d, %.9g; expected %d, %.9g", text, at.q, at.kv, (double)at.x,
                      (double)at.y, found.i, (double)found.f, wanted.i, (double)wanted.f);
        }
        attune__expr_release(expr);
    }
    cr_log_info("%llu of %llu expressions became shorter", (unsigned long long)fewer, (unsigned long long)tried);
    cr_assert(fewer > tried / 4);
}

/* Every two comparisons of three operands, joined in every way: which are each other's negation, and which are not. */
Test(simplify, two_comparisons)
{
    static const char *const names[] = {"q", "kv", "2"}, *const joins[] = {"&&", "||", "==", "!="};
    static const char *const signs[] = {"==", "!=", "<", "<=", ">", ">="};
    enum { PAIRS = 3, SIGNS = 6, EACH = PAIRS * SIGNS };
    for (int n = 0; n < EACH * 2 * EACH * 4; n++) {
        const int one = n % EACH, other = n / EACH % EACH, join = n / EACH / EACH % 4;
        const bool negated = n / EACH / EACH / 4;
        const int sides[2][2] = {{one % PAIRS, (one + 1) % PAIRS}, {other % PAIRS, (other + 1) % PAIRS}};
        char text[64];
        snprintf(text, sizeof text, "(%s %s %s) %s %s(%s %s %s)", names[sides[0][0]], signs[one / PAIRS],
                 names[sides[0][1]], joins[join], negated ? "!" : "", names[sides[1][0]], signs[other / PAIRS],
                 names[sides[1][1]]);
        attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, text, NULL, 0);
        for (int32_t p = 0; p < 9; p++) {
            const int32_t values[] = {1 + p % 3, 1 + p / 3, 2};
            bool truth[2];
            for (int s = 0; s < 2; s++) {
                const int32_t a = values[sides[s][0]], b = values[sides[s][1]];
                const bool by_sign[] = {a == b, a != b, a<b, a <= b, a> b, a >= b};
                truth[s] = by_sign[(s ? other : one) / PAIRS];
            }
            truth[1] ^= negated;
            const bool wanted[] = {truth[0] && truth[1], truth[0] || truth[1], truth[0] == truth[1],
                                   truth[0] != truth[1]};
            const attune_point point = {.q = values[0], .kv = values[1]};
            cr_assert_eq(attune__expr_point(expr, &(attune__bindings){NULL, NULL}, &point).i, wanted[join],
                         "%s at q %d, kv %d", text, point.q, point.kv);
        }
        attune__expr_release(expr);
    }
}
