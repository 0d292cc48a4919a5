/* SPDX-License-Identifier: MIT */
/*
 * The IR as C that is valid in C99, CUDA C++ and OpenCL C: one constant per node, and calls of helper functions from a
 * prelude that each of the three defines (docs/expressions.md). Plain operators replace helpers where the bounds of the
 * index variables prove that nothing wraps and no floor needs a correction.
 */
#include "expr/expr.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "expr/builder.h"
#include "expr/ops.h"
#include "expr/print.h"

#define NAME_SIZE ATTUNE__CTEXT_NAME

/* The text of an operand: constants and variables are inlined, other nodes are named by number. */
const char *attune__ctext_operand(const attune_expr *expr, uint32_t n, char name[NAME_SIZE])
{
    const attune__node *node = &expr->nodes[n];
    char text[ATTUNE__FLOAT_TEXT];
    if (node->op == ATTUNE__OP_VAR) {
        snprintf(name, NAME_SIZE, "%s", attune__var_name((attune__var)node->value.i));
    } else if (node->op != ATTUNE__OP_CONST) {
        snprintf(name, NAME_SIZE, "t%u", n);
    } else if (node->type != ATTUNE__FLOAT) {
        if (node->value.i == INT32_MIN)
            snprintf(name, NAME_SIZE, "(-2147483647 - 1)");
        else
            snprintf(name, NAME_SIZE, node->value.i < 0 ? "(%d)" : "%d", node->value.i);
    } else if (isfinite(node->value.f)) {
        attune__float_text(node->value.f, text);
        snprintf(name, NAME_SIZE, signbit(node->value.f) ? "(%sf)" : "%sf", text);
    } else {
        snprintf(name, NAME_SIZE, "%s",
                 isnan(node->value.f) ? "ATTUNE_NAN"
                 : node->value.f > 0  ? "ATTUNE_INFINITY"
                                      : "(-ATTUNE_INFINITY)");
    }
    return name;
}

/* Whether the exact result can leave i32. */
static bool may_wrap(attune__op op, attune__interval a, attune__interval b)
{
    int64_t lo, hi;
    if (op == ATTUNE__OP_ADD) {
        lo = (int64_t)a.lo + b.lo;
        hi = (int64_t)a.hi + b.hi;
    } else if (op == ATTUNE__OP_SUB) {
        lo = (int64_t)a.lo - b.hi;
        hi = (int64_t)a.hi - b.lo;
    } else {
        const int64_t p[] = {(int64_t)a.lo * b.lo, (int64_t)a.lo * b.hi, (int64_t)a.hi * b.lo, (int64_t)a.hi * b.hi};
        lo = hi = p[0];
        for (int i = 1; i < 4; i++) {
            lo = p[i] < lo ? p[i] : lo;
            hi = p[i] > hi ? p[i] : hi;
        }
    }
    return lo < INT32_MIN || hi > INT32_MAX;
}

/* The exponent of a power of two, 0 for other numbers. */
static int32_t shift_of(attune__interval b)
{
    int32_t shift = 0;
    while (shift < 30 && b.lo != 1 << shift)
        shift++;
    return b.lo == b.hi && shift < 30 ? shift : 0;
}

/* Right shifts of negative numbers floor, as our / does, with every compiler of the text. */
static void add_int(attune__text *text, attune__op op, const char *a, const char *b, attune__interval ra,
                    attune__interval rb)
{
    switch (op) {
    case ATTUNE__OP_ADD:
        attune__text_add(text, may_wrap(op, ra, rb) ? "attune_iadd(%s, %s)" : "%s + %s", a, b);
        break;
    case ATTUNE__OP_SUB:
        attune__text_add(text, may_wrap(op, ra, rb) ? "attune_isub(%s, %s)" : "%s - %s", a, b);
        break;
    case ATTUNE__OP_MUL:
        attune__text_add(text, may_wrap(op, ra, rb) ? "attune_imul(%s, %s)" : "%s * %s", a, b);
        break;
    case ATTUNE__OP_DIV:
        if (shift_of(rb))
            attune__text_add(text, "%s >> %d", a, shift_of(rb));
        else
            attune__text_add(text, ra.lo >= 0 && rb.lo > 0 ? "%s / %s" : "attune_idiv(%s, %s)", a, b);
        break;
    case ATTUNE__OP_MOD:
        if (shift_of(rb))
            attune__text_add(text, "%s & %d", a, rb.lo - 1);
        else
            attune__text_add(text, ra.lo >= 0 && rb.lo > 0 ? "%s %% %s" : "attune_imod(%s, %s)", a, b);
        break;
    case ATTUNE__OP_NEG:
        attune__text_add(text, ra.lo > INT32_MIN ? "-%s" : "attune_isub(0, %s)", a);
        break;
    case ATTUNE__OP_ABS:
        if (ra.lo > INT32_MIN)
            attune__text_add(text, "%s < 0 ? -%s : %s", a, a, a);
        else
            attune__text_add(text, "%s < 0 ? attune_isub(0, %s) : %s", a, a, a);
        break;
    case ATTUNE__OP_FLOAT:
        attune__text_add(text, "(float)%s", a);
        break;
    case ATTUNE__OP_AND:
        attune__text_add(text, "%s & %s", a, b);
        break;
    case ATTUNE__OP_OR:
        attune__text_add(text, "%s | %s", a, b);
        break;
    case ATTUNE__OP_NOT:
        attune__text_add(text, "!%s", a);
        break;
    default:
        break;
    }
}

static void add_quotient(attune__text *text, const char *a, const char *b, const attune__node *divisor)
{
    char inverse[ATTUNE__FLOAT_TEXT];
    const bool constant = divisor->op == ATTUNE__OP_CONST && isnormal(divisor->value.f);
    int exponent;
    /* Exactly the quotient. */
    if (constant && fabsf(frexpf(divisor->value.f, &exponent)) == 0.5f && isnormal(1 / divisor->value.f)) {
        attune__float_text(1 / divisor->value.f, inverse);
        attune__text_add(text, divisor->value.f < 0 ? "%s * (%sf)" : "%s * %sf", a, inverse);
        return;
    }
    attune__text_add(text, constant && isnormal(1 / divisor->value.f) ? "attune_over(%s, %s)" : "attune_div(%s, %s)", a,
                     b);
}

static bool is_positive(const attune__interval *range)
{
    return range->flo > 0 && !range->may_nan;
}

bool attune__ctext_is_root(const attune__node *exponent, const attune__interval *base)
{
    return exponent->op == ATTUNE__OP_CONST && exponent->value.f == 0.5f && is_positive(base);
}

static void add_float(attune__text *text, attune__op op, const char *a, const char *b, const attune__interval *ra,
                      const attune__node *exponent)
{
    switch (op) {
    case ATTUNE__OP_ADD:
        attune__text_add(text, "%s + %s", a, b);
        break;
    case ATTUNE__OP_SUB:
        attune__text_add(text, "%s - %s", a, b);
        break;
    case ATTUNE__OP_MUL:
        attune__text_add(text, "%s * %s", a, b);
        break;
    case ATTUNE__OP_MOD:
        attune__text_add(text, "attune_fmod(%s, %s)", a, b);
        break;
    case ATTUNE__OP_NEG:
        attune__text_add(text, "-%s", a);
        break;
    case ATTUNE__OP_POW:
        if (attune__ctext_is_root(exponent, ra))
            attune__text_add(text, "attune_pow_half(%s)", a);
        else
            attune__text_add(text, is_positive(ra) ? "attune_pow_positive(%s, %s)" : "attune_pow(%s, %s)", a, b);
        break;
    default:
        attune__text_add(text, "attune_%s(%s)", attune__op_name(op), a);
        break;
    }
}

static void add_value(const attune_expr *expr, uint32_t n, const attune__interval *bounds, attune__text *text)
{
    const attune__node *node = &expr->nodes[n];
    attune__op op = (attune__op)node->op;
    char names[ATTUNE_MAX_RANK][NAME_SIZE] = {{0}};
    for (uint32_t i = 0; i < node->arg_count; i++)
        attune__ctext_operand(expr, node->arg[i], names[i]);
    const char *a = names[0], *b = names[1];
    switch (op) {
    case ATTUNE__OP_PARAM:
        attune__text_add(text, "ATTUNE_PARAMETER_%s(%d)", node->type == ATTUNE__FLOAT ? "F32" : "I32", node->value.i);
        return;
    case ATTUNE__OP_CAPTURE:
        attune__text_add(text, "attune_load_%s_%u(ATTUNE_CAPTURE(%d)",
                         attune_dtype_string(expr->symbols[node->value.i].dtype), node->arg_count, node->value.i);
        for (uint32_t i = 0; i < node->arg_count; i++)
            attune__text_add(text, ", %s", names[i]);
        attune__text_add(text, ")");
        return;
    case ATTUNE__OP_SELECT:
        attune__text_add(text, "%s ? %s : %s", a, b, names[2]);
        return;
    case ATTUNE__OP_MIN:
        attune__text_add(text, "%s < %s ? %s : %s", b, a, b, a);
        return;
    case ATTUNE__OP_MAX:
        attune__text_add(text, "%s < %s ? %s : %s", a, b, b, a);
        return;
    case ATTUNE__OP_EQ:
        attune__text_add(text, "%s == %s", a, b);
        return;
    case ATTUNE__OP_NE:
        attune__text_add(text, "%s != %s", a, b);
        return;
    case ATTUNE__OP_LT:
        attune__text_add(text, "%s < %s", a, b);
        return;
    case ATTUNE__OP_LE:
        attune__text_add(text, "%s <= %s", a, b);
        return;
    default:
        break;
    }
    const attune__node *last = &expr->nodes[node->arg[node->arg_count - 1]];
    if (op == ATTUNE__OP_DIV && last->type == ATTUNE__FLOAT)
        add_quotient(text, a, b, last);
    else if (last->type == ATTUNE__FLOAT)
        add_float(text, op, a, b, &bounds[node->arg[0]], last);
    else
        add_int(text, op, a, b, bounds[node->arg[0]], bounds[node->arg[node->arg_count - 1]]);
}

static bool is_leaf(const attune__node *node)
{
    return node->op == ATTUNE__OP_CONST || node->op == ATTUNE__OP_VAR;
}

static void find_bounds(const attune_expr *expr, int32_t most, attune__interval *bounds)
{
    attune__box box;
    for (int i = 0; i < ATTUNE__VAR_COUNT; i++)
        box.var[i] = (attune__interval){.lo = i == ATTUNE__VAR_Q_LEN || i == ATTUNE__VAR_KV_LEN, .hi = INT32_MAX};
    box.var[ATTUNE__VAR_Q].hi = box.var[ATTUNE__VAR_KV].hi = most;
    if (expr->ragged)
        box.var[ATTUNE__VAR_Q].lo = -INT32_MAX;
    box.var[ATTUNE__VAR_SCORE] = (attune__interval){.flo = -INFINITY, .fhi = INFINITY, .may_nan = true};
    attune__expr_bounds(expr, NULL, NULL, &box, bounds);
}

void attune__ctext_bounds(const attune_expr *expr, attune__interval *bounds)
{
    find_bounds(expr, INT32_MAX, bounds);
}

void attune__ctext_declare_row(const attune_expr *expr, attune__text *text)
{
    if (expr->uses & 1u << ATTUNE__VAR_ROW)
        attune__text_add(text, "    const int row = ATTUNE_ROW_INDEX;\n");
}

void attune__ctext_declare(const attune_expr *expr, uint32_t n, const attune__interval *bounds, attune__text *text)
{
    if (is_leaf(&expr->nodes[n]))
        return;
    attune__text_add(text, "    const %s t%u = ", expr->nodes[n].type == ATTUNE__FLOAT ? "float" : "int", n);
    add_value(expr, n, bounds, text);
    attune__text_add(text, ";\n");
}

void attune__ctext_values(const attune_expr *expr, const attune__interval *bounds, uint16_t without, attune__text *text)
{
    for (uint32_t n = 0; n < expr->node_count; n++)
        if (!(expr->nodes[n].uses & without))
            attune__ctext_declare(expr, n, bounds, text);
}

static bool is_term(const uint32_t terms[ATTUNE__TERMS], uint32_t count, uint32_t n, uint32_t *index)
{
    for (*index = 0; *index < count; ++*index)
        if (terms[*index] == n)
            return true;
    return false;
}

static bool is_tile(const attune__terms *terms, uint32_t n)
{
    return terms->tile_bytes && terms->tile == n;
}

void attune__ctext_needed(const attune_expr *expr, const uint32_t *roots, uint32_t count, const attune__terms *terms,
                          bool needed[ATTUNE_EXPR_MAX_NODES])
{
    uint32_t index;
    memset(needed, 0, ATTUNE_EXPR_MAX_NODES * sizeof *needed);
    for (uint32_t i = 0; i < count; i++)
        needed[roots[i]] = true;
    for (uint32_t n = expr->node_count; n-- > 0;) {
        if (!needed[n] || (terms && (is_tile(terms, n) || is_term(terms->keys, terms->key_count, n, &index) ||
                                     is_term(terms->rows, terms->row_count, n, &index))))
            continue;
        for (uint32_t i = 0; i < expr->nodes[n].arg_count; i++)
            needed[expr->nodes[n].arg[i]] = true;
    }
}

/* Declares a term's value; false if the node is not a term. */
static bool write_term(const attune_expr *expr, const attune__terms *terms, uint32_t n, attune__text *text)
{
    uint32_t index;
    if (!terms)
        return false;
    const bool tile = is_tile(terms, n), key = tile || is_term(terms->keys, terms->key_count, n, &index);
    if (tile)
        index = terms->key_count;
    if (!key && !is_term(terms->rows, terms->row_count, n, &index))
        return false;
    const bool is_float = expr->nodes[n].type == ATTUNE__FLOAT;
    attune__text_add(text, "    const %s t%u = ATTUNE_TERM_%s(%s[%u]);\n", is_float ? "float" : "int", n,
                     is_float ? "F32" : "I32", key ? "key" : "row", index);
    return true;
}

static void begin_function(const attune_expr *expr, const char *name, const attune__terms *terms, attune__text *text)
{
    attune__text_add(text,
                     "ATTUNE_FUNCTION %s %s(int b, int h, int q, int kv, int h_kv, int q_len, int kv_len, "
                     "float score%s ATTUNE_SYMBOLS)\n{\n",
                     expr->kind == ATTUNE_EXPR_MASK ? "int" : "float", name,
                     terms ? ", const int *key, const int *row" : "");
    for (int i = 0; i <= ATTUNE__VAR_SCORE; i++)
        if (!(expr->uses & (1u << i)))
            attune__text_add(text, "    (void)%s;\n", attune__var_name((attune__var)i));
    if (!terms)
        attune__ctext_declare_row(expr, text);
}

static void end_function(const attune_expr *expr, uint32_t result, attune__text *text)
{
    char root[NAME_SIZE];
    attune__text_add(text, "    return %s;\n}\n", attune__ctext_operand(expr, result, root));
}

attune_status attune__ctext_function(const attune_expr *expr, const char *name, attune__text *text)
{
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    attune__ctext_bounds(expr, bounds);
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        attune__text_add(text, "/* symbol %u: %s %s, %s, rank %u */\n", i,
                         expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE ? "capture" : "parameter",
                         expr->symbols[i].name, attune_dtype_string(expr->symbols[i].dtype), expr->symbols[i].rank);
    begin_function(expr, name, NULL, text);
    attune__ctext_values(expr, bounds, 0, text);
    end_function(expr, expr->node_count - 1, text);
    return ATTUNE_OK;
}

void attune__ctext_with_terms(const attune_expr *expr, uint32_t root, const char *name, const attune__terms *terms,
                              attune__text *text)
{
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    bool needed[ATTUNE_EXPR_MAX_NODES];
    attune__ctext_bounds(expr, bounds);
    attune__ctext_needed(expr, &root, 1, terms, needed);
    begin_function(expr, name, terms, text);
    for (uint32_t n = 0; n < expr->node_count; n++)
        if (needed[n] && !write_term(expr, terms, n, text))
            attune__ctext_declare(expr, n, bounds, text);
    end_function(expr, root, text);
}

/* Whether a float has one value; it may be an operation that the IR does not fold. */
static bool is_constant(const attune__interval *bounds)
{
    return bounds->flo == bounds->fhi && !bounds->may_nan;
}

/* The largest |score| for which the argument of a tanh is at most 0.5 in magnitude; 0 if unknown. *factor receives the
 * score's factor. */
static float near_limit(const attune_expr *expr, uint32_t n, const attune__interval *bounds, float *factor)
{
    const attune__node *node = &expr->nodes[n];
    *factor = 1;
    if (node->op == ATTUNE__OP_DIV || node->op == ATTUNE__OP_MUL) {
        const uint32_t a = node->arg[0], b = node->arg[1], constant = is_constant(&bounds[b]) ? b : a;
        if (!is_constant(&bounds[constant]) || (node->op == ATTUNE__OP_DIV && constant == a))
            return 0;
        *factor = node->op == ATTUNE__OP_DIV ? 1 / bounds[constant].flo : bounds[constant].flo;
        node = &expr->nodes[constant == b ? a : b];
    }
    const float limit = 0.5f / fabsf(*factor);
    return node->op == ATTUNE__OP_VAR && isnormal(*factor) && isnormal(limit) ? limit : 0;
}

/* The conversion of "kv - q", "q - kv" or "kv" to float; NULL for other nodes. */
static const char *float_of_kv(const attune_expr *expr, const attune__node *node)
{
    if (node->op != ATTUNE__OP_FLOAT)
        return NULL;
    const attune__node *inner = &expr->nodes[node->arg[0]];
    const attune__node *a = &expr->nodes[inner->arg[0]], *b = &expr->nodes[inner->arg[1]];
    if (inner->op == ATTUNE__OP_VAR)
        return inner->value.i == ATTUNE__VAR_KV ? "ATTUNE_FLOAT_KV" : NULL;
    if (inner->op != ATTUNE__OP_SUB || a->op != ATTUNE__OP_VAR || b->op != ATTUNE__OP_VAR)
        return NULL;
    return a->value.i == ATTUNE__VAR_KV && b->value.i == ATTUNE__VAR_Q   ? "ATTUNE_FLOAT_KV_Q"
           : a->value.i == ATTUNE__VAR_Q && b->value.i == ATTUNE__VAR_KV ? "ATTUNE_FLOAT_Q_KV"
                                                                         : NULL;
}

float attune__near_limit(const attune_expr *expr)
{
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    float limit = INFINITY, factor;
    bool cheaper = false;
    attune__ctext_bounds(expr, bounds);
    for (uint32_t n = 0; n < expr->node_count; n++) {
        const attune__node *node = &expr->nodes[n];
        cheaper = cheaper || float_of_kv(expr, node) || node->op == ATTUNE__OP_TANH;
        if (node->op != ATTUNE__OP_TANH)
            continue;
        const float own = near_limit(expr, node->arg[0], bounds, &factor);
        limit = own < limit ? own : limit;
    }
    return cheaper ? limit : 0;
}

float attune__sine_limit(const attune_expr *expr, const attune__terms *terms)
{
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    bool needed[ATTUNE_EXPR_MAX_NODES];
    const uint32_t root = expr->node_count - 1;
    uint32_t index;
    float limit = 0, factor;
    find_bounds(expr, 1 << 23, bounds);
    attune__ctext_needed(expr, &root, 1, terms, needed);
    for (uint32_t n = 0; n < expr->node_count; n++) {
        const attune__node *node = &expr->nodes[n];
        if (!needed[n] || (node->op != ATTUNE__OP_SIN && node->op != ATTUNE__OP_COS) ||
            is_term(terms->keys, terms->key_count, n, &index) || is_term(terms->rows, terms->row_count, n, &index))
            continue;
        const attune__interval *of = &bounds[node->arg[0]];
        const bool always = of->flo >= -ATTUNE__SINE_LIMIT && of->fhi <= ATTUNE__SINE_LIMIT;
        const float own =
            always ? INFINITY : near_limit(expr, node->arg[0], bounds, &factor) * (2 * ATTUNE__SINE_LIMIT);
        if (own == 0)
            return 0;
        limit = limit == 0 || own < limit ? own : limit;
    }
    return limit;
}

/* Whether a node is the sine of what is at most pi / 2 in magnitude. */
static bool is_small_sine(const attune__node *node, const attune__interval *bounds)
{
    return node->op == ATTUNE__OP_SIN && bounds[node->arg[0]].flo >= -1.57f && bounds[node->arg[0]].fhi <= 1.57f;
}

static bool is_own(const attune__terms *terms, uint32_t n)
{
    uint32_t index;
    return !terms || !(is_tile(terms, n) || is_term(terms->keys, terms->key_count, n, &index) ||
                       is_term(terms->rows, terms->row_count, n, &index));
}

/* A sum with a product as one operation; false if the node is none. */
static bool add_fused(const attune_expr *expr, uint32_t n, const attune__terms *terms, attune__text *text)
{
    const attune__node *node = &expr->nodes[n];
    char a[NAME_SIZE], b[NAME_SIZE], c[NAME_SIZE];
    const bool subtracts = node->op == ATTUNE__OP_SUB;
    if (node->type != ATTUNE__FLOAT || (node->op != ATTUNE__OP_ADD && !subtracts))
        return false;
    for (uint32_t i = 2; i-- > 0;) {
        const attune__node *product = &expr->nodes[node->arg[i]];
        if (product->op != ATTUNE__OP_MUL || !is_own(terms, node->arg[i]))
            continue;
        attune__text_add(text, "    const float t%u = attune_fused(%s%s, %s, %s%s);\n", n, subtracts && i ? "-" : "",
                         attune__ctext_operand(expr, product->arg[0], a),
                         attune__ctext_operand(expr, product->arg[1], b), subtracts && !i ? "-" : "",
                         attune__ctext_operand(expr, node->arg[1 - i], c));
        return true;
    }
    return false;
}

/* A quotient whose divisor the pairs of a row share. */
static bool add_row_quotient(const attune_expr *expr, uint32_t n, attune__text *text)
{
    const attune__node *node = &expr->nodes[n];
    const uint16_t pair = 1u << ATTUNE__VAR_KV | 1u << ATTUNE__VAR_SCORE;
    char a[NAME_SIZE], b[NAME_SIZE];
    if (node->op != ATTUNE__OP_DIV || node->type != ATTUNE__FLOAT || expr->nodes[node->arg[1]].uses & pair ||
        expr->nodes[node->arg[1]].op == ATTUNE__OP_CONST)
        return false;
    attune__text_add(text, "    const float t%u = attune_fast_div_by_row(%s, %s);\n", n,
                     attune__ctext_operand(expr, node->arg[0], a), attune__ctext_operand(expr, node->arg[1], b));
    return true;
}

/* kv - q or q - kv as a float, and an integer added to it. */
static bool add_distance(const attune_expr *expr, uint32_t n, const attune__terms *terms, attune__text *text)
{
    const attune__node *node = &expr->nodes[n];
    if (node->type != ATTUNE__FLOAT || (node->op != ATTUNE__OP_ADD && node->op != ATTUNE__OP_SUB))
        return false;
    const attune__node *by = &expr->nodes[node->arg[1]];
    const char *distance = float_of_kv(expr, &expr->nodes[node->arg[0]]);
    if (!distance || !strcmp(distance, "ATTUNE_FLOAT_KV") || !is_own(terms, node->arg[0]) ||
        by->op != ATTUNE__OP_CONST || !(fabsf(by->value.f) <= 0x1p20f) || by->value.f != floorf(by->value.f))
        return false;
    attune__text_add(text, "    const float t%u = %s_AND(%d);\n", n, distance,
                     (int)(node->op == ATTUNE__OP_ADD ? by->value.f : -by->value.f));
    return true;
}

/* Prints a node's shorter form; false if it has none. */
static bool add_short(const attune_expr *expr, uint32_t n, const attune__terms *terms, attune__text *text)
{
    return add_distance(expr, n, terms, text) || add_fused(expr, n, terms, text) || add_row_quotient(expr, n, text);
}

/* fused: shorter forms, whose results may differ in the last digits. */
static void near_text(const attune_expr *expr, uint32_t root, const char *name, const attune__terms *terms, bool fused,
                      attune__text *text)
{
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    bool needed[ATTUNE_EXPR_MAX_NODES];
    char literal[ATTUNE__FLOAT_TEXT], argument[NAME_SIZE];
    float factor;
    attune__ctext_bounds(expr, bounds);
    attune__ctext_needed(expr, &root, 1, terms, needed);
    begin_function(expr, name, terms, text);
    for (uint32_t n = 0; n < expr->node_count; n++) {
        if ((terms && !needed[n]) || write_term(expr, terms, n, text))
            continue;
        const attune__node *node = &expr->nodes[n];
        const char *distance = float_of_kv(expr, node);
        if (fused && add_short(expr, n, terms, text))
            continue;
        if (distance) {
            attune__text_add(text, "    const float t%u = %s;\n", n, distance);
        } else if (is_small_sine(node, bounds)) {
            attune__text_add(text, "    const float t%u = attune_sin_small(%s);\n", n,
                             attune__ctext_operand(expr, node->arg[0], argument));
        } else if (node->op != ATTUNE__OP_TANH) {
            attune__ctext_declare(expr, n, bounds, text);
        } else {
            (void)near_limit(expr, node->arg[0], bounds, &factor);
            attune__float_text(factor, literal);
            attune__text_add(text, "    const float t%u = attune_tanh_near(score * %sf);\n", n, literal);
        }
    }
    end_function(expr, root, text);
}

void attune__ctext_near(const attune_expr *expr, const char *name, const attune__terms *terms, bool fused,
                        attune__text *text)
{
    near_text(expr, expr->node_count - 1, name, terms, fused, text);
}

void attune__ctext_near_slope(const attune__gradient *gradient, const char *name, const attune__terms *terms,
                              attune__text *text)
{
    near_text(gradient->expr, gradient->score, name, terms, false, text);
}

void attune__ctext_near_reads(const attune__gradient *gradient, attune__text *text)
{
    char name[40];
    for (uint32_t i = 0; i < gradient->read_count; i++) {
        snprintf(name, sizeof name, "attune_capture_read_%u_near", i);
        near_text(gradient->expr, gradient->reads[i].factor, name, NULL, false, text);
    }
}

bool attune__is_soft_cap(const attune_expr *expr, float *inner, float *outer)
{
    const attune__node *root = &expr->nodes[expr->node_count - 1], *tanh = root;
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    attune__ctext_bounds(expr, bounds);
    *outer = 1;
    if (root->op == ATTUNE__OP_MUL) {
        const uint32_t a = root->arg[0], b = root->arg[1], constant = is_constant(&bounds[b]) ? b : a;
        if (!is_constant(&bounds[constant]))
            return false;
        *outer = bounds[constant].flo;
        tanh = &expr->nodes[constant == b ? a : b];
    }
    return tanh->op == ATTUNE__OP_TANH && isnormal(*outer) && near_limit(expr, tanh->arg[0], bounds, inner) > 0;
}

void attune__ctext_soft_cap(const attune_expr *expr, const char *name, const char *slope, attune__text *text)
{
    float inner, outer;
    char in[ATTUNE__FLOAT_TEXT], out[ATTUNE__FLOAT_TEXT];
    (void)attune__is_soft_cap(expr, &inner, &outer);
    attune__float_text(inner, in);
    attune__float_text(outer, out);
    begin_function(expr, name, NULL, text);
    attune__text_add(text, "    return attune_tanh(score * (%sf)) * (%sf);\n}\n", in, out);
    if (!slope)
        return;
    begin_function(expr, slope, NULL, text);
    attune__text_add(text,
                     "    const float t = attune_tanh(score * (%sf));\n    return (1.0f - t * t) * (%sf * %sf);\n}\n",
                     in, in, out);
}

attune_status attune__expr_ctext(const attune_expr *expr, const char *function_name, char *buffer, size_t size,
                                 size_t *needed)
{
    attune__text text = attune__text_begin(buffer, size);
    ATTUNE__TRY(attune__ctext_function(expr, function_name, &text));
    attune__text_end(&text, needed);
    return ATTUNE_OK;
}

/* ------------------------------------------------------------------------------------------------------------- C99 */

static const char prelude[] =
    "/* Functions that the one below calls, in C99. Compile with -ffp-contract=off. */\n"
    "#include <math.h>\n"
    "#include <stdint.h>\n"
    "#include <string.h>\n"
    "\n"
    "#define ATTUNE_FUNCTION static inline\n"
    "#define ATTUNE_INFINITY INFINITY\n"
    "#define ATTUNE_NAN NAN\n"
    "\n"
    "/* Strides are in elements. */\n"
    "typedef struct attune_view { const void *data; int64_t size[4], stride[4]; } attune_view;\n"
    "typedef union attune_scalar { int32_t i; float f; } attune_scalar;\n"
    "#define ATTUNE_SYMBOLS , const attune_view *captures, const attune_scalar *parameters\n"
    "#define ATTUNE_CAPTURE(n) (&captures[n])\n"
    "#define ATTUNE_PARAMETER_I32(n) (parameters[n].i)\n"
    "#define ATTUNE_PARAMETER_F32(n) (parameters[n].f)\n"
    "#define ATTUNE_ROW_INDEX attune_iadd(attune_imul(b, q_len), q)\n"
    "static inline float attune_term_f32(int x) { attune_scalar s; s.i = x; return s.f; }\n"
    "static inline int attune_bits_f32(float x) { attune_scalar s; s.f = x; return s.i; }\n"
    "#define ATTUNE_TERM_I32(x) (x)\n"
    "#define ATTUNE_TERM_F32(x) attune_term_f32(x)\n"
    "#define ATTUNE_BITS_I32(x) (x)\n"
    "#define ATTUNE_BITS_F32(x) attune_bits_f32(x)\n"
    "\n"
    "static inline int attune_iadd(int a, int b) { return (int)((unsigned)a + (unsigned)b); }\n"
    "static inline int attune_isub(int a, int b) { return (int)((unsigned)a - (unsigned)b); }\n"
    "static inline int attune_imul(int a, int b) { return (int)((unsigned)a * (unsigned)b); }\n"
    "static inline int attune_idiv(int a, int b)\n"
    "{\n"
    "    if (b == 0 || b == -1) return b ? attune_isub(0, a) : 0;\n"
    "    return a / b - (a % b != 0 && ((a % b) ^ b) < 0);\n"
    "}\n"
    "static inline int attune_imod(int a, int b)\n"
    "{\n"
    "    if (b == 0 || b == -1) return 0;\n"
    "    return a % b + ((a % b != 0 && ((a % b) ^ b) < 0) ? b : 0);\n"
    "}\n"
    "static inline float attune_div(float a, float b) { return a / b; }\n"
    "static inline float attune_over(float a, float b) { return a / b; }\n"
    "static inline float attune_fmod(float a, float b) { return a - floorf(a / b) * b; }\n"
    "static inline float attune_abs(float x) { return fabsf(x); }\n"
    "static inline float attune_floor(float x) { return floorf(x); }\n"
    "static inline float attune_ceil(float x) { return ceilf(x); }\n"
    "static inline float attune_exp(float x) { return expf(x); }\n"
    "static inline float attune_exp2(float x) { return exp2f(x); }\n"
    "static inline float attune_log(float x) { return logf(x); }\n"
    "static inline float attune_log2(float x) { return log2f(x); }\n"
    "static inline float attune_sqrt(float x) { return sqrtf(x); }\n"
    "static inline float attune_rsqrt(float x) { return 1.0f / sqrtf(x); }\n"
    "static inline float attune_tanh(float x) { return tanhf(x); }\n"
    "static inline float attune_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }\n"
    "static inline float attune_sin(float x) { return sinf(x); }\n"
    "static inline float attune_cos(float x) { return cosf(x); }\n"
    "static inline float attune_pow(float x, float y) { return powf(x, y); }\n"
    "static inline float attune_pow_positive(float x, float y) { return powf(x, y); }\n"
    "static inline float attune_pow_half(float x) { return powf(x, 0.5f); }\n"
    "\n"
    "static inline int attune_get_i32(const void *p, int64_t i) { return ((const int32_t *)p)[i]; }\n"
    "static inline int attune_get_i64(const void *p, int64_t i)\n"
    "{\n"
    "    int64_t x = ((const int64_t *)p)[i];\n"
    "    return x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : (int)x;\n"
    "}\n"
    "static inline int attune_get_u8(const void *p, int64_t i) { return ((const uint8_t *)p)[i]; }\n"
    "static inline int attune_get_bool(const void *p, int64_t i) { return ((const uint8_t *)p)[i] != 0; }\n"
    "static inline float attune_get_f32(const void *p, int64_t i) { return ((const float *)p)[i]; }\n"
    "static inline float attune_get_bf16(const void *p, int64_t i)\n"
    "{\n"
    "    uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;\n"
    "    float x;\n"
    "    memcpy(&x, &bits, sizeof x);\n"
    "    return x;\n"
    "}\n"
    "static inline float attune_get_f16(const void *p, int64_t i)\n"
    "{\n"
    "    uint32_t half = ((const uint16_t *)p)[i], exponent = half >> 10 & 31, fraction = half & 1023, bits;\n"
    "    float x = ldexpf((float)fraction, -24);\n"
    "    if (exponent) {\n"
    "        bits = exponent == 31 ? 0x7f800000u | fraction << 13 : (exponent + 112) << 23 | fraction << 13;\n"
    "        memcpy(&x, &bits, sizeof x);\n"
    "    }\n"
    "    return half >> 15 ? -x : x;\n"
    "}\n"
    "\n"
    "#define ATTUNE_IN(v, d, i) ((i) >= 0 && (i) < (v)->size[d])\n"
    "#define ATTUNE_LOADS(T, name) \\\n"
    "    static inline T attune_load_##name##_1(const attune_view *v, int i) \\\n"
    "    { \\\n"
    "        return ATTUNE_IN(v, 0, i) ? attune_get_##name(v->data, i * v->stride[0]) : 0; \\\n"
    "    } \\\n"
    "    static inline T attune_load_##name##_2(const attune_view *v, int i, int j) \\\n"
    "    { \\\n"
    "        return ATTUNE_IN(v, 0, i) && ATTUNE_IN(v, 1, j) \\\n"
    "                   ? attune_get_##name(v->data, i * v->stride[0] + j * v->stride[1]) : 0; \\\n"
    "    } \\\n"
    "    static inline T attune_load_##name##_3(const attune_view *v, int i, int j, int k) \\\n"
    "    { \\\n"
    "        return ATTUNE_IN(v, 0, i) && ATTUNE_IN(v, 1, j) && ATTUNE_IN(v, 2, k) \\\n"
    "                   ? attune_get_##name(v->data, i * v->stride[0] + j * v->stride[1] + k * v->stride[2]) : 0; \\\n"
    "    } \\\n"
    "    static inline T attune_load_##name##_4(const attune_view *v, int i, int j, int k, int l) \\\n"
    "    { \\\n"
    "        return ATTUNE_IN(v, 0, i) && ATTUNE_IN(v, 1, j) && ATTUNE_IN(v, 2, k) && ATTUNE_IN(v, 3, l) \\\n"
    "                   ? attune_get_##name(v->data, i * v->stride[0] + j * v->stride[1] + k * v->stride[2] + \\\n"
    "                                                    l * v->stride[3]) : 0; \\\n"
    "    }\n"
    "ATTUNE_LOADS(int, i32)\n"
    "ATTUNE_LOADS(int, i64)\n"
    "ATTUNE_LOADS(int, u8)\n"
    "ATTUNE_LOADS(int, bool)\n"
    "ATTUNE_LOADS(float, f32)\n"
    "ATTUNE_LOADS(float, f16)\n"
    "ATTUNE_LOADS(float, bf16)\n"
    "\n";

void attune__ctext_prelude(attune__text *text)
{
    attune__text_add(text, "%s", prelude);
}
