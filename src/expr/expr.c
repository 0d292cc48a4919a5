/* SPDX-License-Identifier: MIT */
/* Finished expressions: order of nodes, hash, reference count, combination and shift. */
#include "expr/expr.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "expr/builder.h"
#include "expr/ops.h"

const char *attune__op_name(attune__op op)
{
    static const char *const names[] = {"const", "var",  "param",  "capture", "add",     "sub",  "mul", "div",  "mod",
                                        "neg",   "abs",  "min",    "max",     "eq",      "ne",   "lt",  "le",   "and",
                                        "or",    "not",  "select", "float",   "floor",   "ceil", "exp", "exp2", "log",
                                        "log2",  "sqrt", "rsqrt",  "tanh",    "sigmoid", "sin",  "cos", "pow"};
    return names[op];
}

const char *attune__type_name(attune__type type)
{
    return type == ATTUNE__BOOL ? "bool" : type == ATTUNE__INT ? "i32" : "f32";
}

const char *attune__var_name(attune__var var)
{
    static const char *const names[] = {"b", "h", "q", "kv", "h_kv", "q_len", "kv_len", "score", "row"};
    return names[var];
}

attune_expr *attune__expr_retain(const attune_expr *expr)
{
    attune_expr *mutable_expr = (attune_expr *)expr; /* only the count changes */
    if (expr)
        atomic_fetch_add_explicit(&mutable_expr->references, 1, memory_order_relaxed);
    return mutable_expr;
}

static void destroy(attune_expr *expr)
{
    attune_allocator allocator = expr->allocator;
    attune__free(&allocator, expr->nodes);
    attune__free(&allocator, expr->symbols);
    attune__free(&allocator, expr);
}

void attune__expr_release(const attune_expr *expr)
{
    attune_expr *mutable_expr = (attune_expr *)expr;
    if (expr && atomic_fetch_sub_explicit(&mutable_expr->references, 1, memory_order_acq_rel) == 1)
        destroy(mutable_expr);
}

/* Numbers the nodes that a root needs and no earlier root did, in post-order: operands first, in their order. order[i]
 * is the builder's node, number[node] its new number; both have an entry for every node. */
static uint32_t number_nodes(const attune__builder *builder, uint32_t root, uint32_t count, uint32_t *order,
                             uint32_t *number, uint32_t *stack, uint8_t *visited)
{
    uint32_t depth = 0;
    if (!visited[root])
        stack[depth++] = root;
    while (depth) {
        uint32_t node = stack[depth - 1];
        const attune__node *n = &builder->nodes[node];
        /* visited counts the operands that were visited, and ends one past them. */
        while (visited[node] < n->arg_count && visited[n->arg[visited[node]]])
            visited[node]++;
        if (visited[node] < n->arg_count) {
            stack[depth++] = n->arg[visited[node]++];
            continue;
        }
        if (visited[node] == n->arg_count) {
            visited[node]++;
            number[node] = count;
            order[count++] = node;
        }
        depth--;
    }
    return count;
}

static attune_status fill(const attune__builder *builder, const uint32_t *roots, uint32_t root_count,
                          const uint32_t *order, const uint32_t *number, uint32_t count, attune_expr *expr)
{
    expr->node_count = count;
    expr->nodes = attune__alloc(builder->allocator, count, sizeof *expr->nodes);
    expr->symbols = attune__alloc(builder->allocator, builder->symbol_count, sizeof *expr->symbols);
    if (!expr->nodes || !expr->symbols)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    uint32_t symbol_number[ATTUNE_EXPR_MAX_SYMBOLS];
    for (uint32_t i = 0; i < ATTUNE_EXPR_MAX_SYMBOLS; i++)
        symbol_number[i] = ATTUNE__NONE;
    for (uint32_t i = 0; i < count; i++) {
        attune__node *node = &expr->nodes[i];
        *node = builder->nodes[order[i]];
        for (uint32_t j = 0; j < node->arg_count; j++)
            node->arg[j] = number[node->arg[j]];
        if (node->op != ATTUNE__OP_PARAM && node->op != ATTUNE__OP_CAPTURE)
            continue;
        uint32_t *symbol = &symbol_number[node->value.i];
        if (*symbol == ATTUNE__NONE) {
            *symbol = expr->symbol_count++;
            expr->symbols[*symbol] = builder->symbols[node->value.i];
        }
        node->value.i = (int32_t)*symbol;
    }
    atomic_init(&expr->references, 1);
    expr->kind = builder->kind;
    expr->hash = builder->hashes[roots[0]];
    for (uint32_t i = 0; i < root_count; i++) {
        expr->uses = (uint16_t)(expr->uses | builder->nodes[roots[i]].uses);
        if (i) {
            attune__hash_add(&expr->hash, builder->hashes[roots[i]].lane[0]);
            attune__hash_add(&expr->hash, builder->hashes[roots[i]].lane[1]);
        }
    }
    attune__hash_add(&expr->hash, (uint64_t)builder->kind);
    return ATTUNE_OK;
}

attune_status attune__builder_finish(attune__builder *builder, uint32_t root, attune_status limit, attune_expr **expr)
{
    return attune__builder_finish_all(builder, &root, 1, limit, expr);
}

attune_status attune__builder_finish_all(attune__builder *builder, uint32_t *roots, uint32_t root_count,
                                         attune_status limit, attune_expr **expr)
{
    *expr = NULL;
    if (builder->overflow)
        return attune__fail(limit, "the expression makes more than %d nodes before it is simplified; the limit is %d",
                            ATTUNE__BUILDER_NODES, ATTUNE_EXPR_MAX_NODES);
    const attune_allocator *allocator = builder->allocator;
    uint32_t *memory = attune__alloc(allocator, 4 * (size_t)builder->count, sizeof *memory);
    if (!memory)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    uint32_t *number = memory + builder->count, *stack = number + builder->count;
    uint8_t *visited = (uint8_t *)(stack + builder->count);
    uint32_t count = 0;
    for (uint32_t i = 0; i < root_count; i++)
        count = number_nodes(builder, roots[i], count, memory, number, stack, visited);
    attune_status status;
    if (count > ATTUNE_EXPR_MAX_NODES) {
        status = attune__fail(limit, "the expression has %u nodes after simplification; the limit is %d", count,
                              ATTUNE_EXPR_MAX_NODES);
    } else {
        attune_expr *made = attune__alloc(allocator, 1, sizeof *made);
        status = made ? ATTUNE_OK : ATTUNE_OUT_OF_HOST_MEMORY;
        if (made) {
            made->allocator = *allocator;
            status = fill(builder, roots, root_count, memory, number, count, made);
            if (status == ATTUNE_OK)
                *expr = made;
            else
                destroy(made);
            for (uint32_t i = 0; i < root_count; i++)
                roots[i] = number[roots[i]];
        }
    }
    attune__free(allocator, memory);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- joining */

attune_status attune__builder_import(attune__builder *builder, const attune_expr *expr, uint32_t *number)
{
    uint32_t symbols[ATTUNE_EXPR_MAX_SYMBOLS];
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        const attune__symbol *symbol = &expr->symbols[i];
        symbols[i] = attune__builder_symbol(builder, symbol);
        if (symbols[i] == ATTUNE__NONE)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "the joined expression uses more than %d captures and parameters, the limit",
                                ATTUNE_EXPR_MAX_SYMBOLS);
        const attune__symbol *other = &builder->symbols[symbols[i]];
        if (other->kind != symbol->kind || other->dtype != symbol->dtype || other->rank != symbol->rank)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "'%s' is a %s of %s, rank %u, in one expression and a %s of %s, rank %u, in the other",
                                symbol->name, other->kind == ATTUNE_SYMBOL_CAPTURE ? "capture" : "parameter",
                                attune_dtype_string(other->dtype), other->rank,
                                symbol->kind == ATTUNE_SYMBOL_CAPTURE ? "capture" : "parameter",
                                attune_dtype_string(symbol->dtype), symbol->rank);
    }
    for (uint32_t i = 0; i < expr->node_count; i++) {
        const attune__node *node = &expr->nodes[i];
        uint32_t arg[ATTUNE_MAX_RANK] = {0};
        for (uint32_t j = 0; j < node->arg_count; j++)
            arg[j] = number[node->arg[j]];
        if (node->op == ATTUNE__OP_CONST)
            number[i] = node->type == ATTUNE__BOOL  ? attune__make_bool(builder, node->value.i)
                        : node->type == ATTUNE__INT ? attune__make_int(builder, node->value.i)
                                                    : attune__make_float(builder, node->real);
        else if (node->op == ATTUNE__OP_VAR)
            number[i] = builder->substitute && builder->var[node->value.i] != ATTUNE__NONE
                            ? builder->var[node->value.i]
                            : attune__make_var(builder, (attune__var)node->value.i);
        else if (node->op == ATTUNE__OP_PARAM || node->op == ATTUNE__OP_CAPTURE)
            number[i] = attune__make_symbol(builder, symbols[node->value.i], arg);
        else
            number[i] = attune__make(builder, (attune__op)node->op, arg[0], arg[1], arg[2]);
    }
    return ATTUNE_OK;
}

attune_status attune__expr_combine(const attune_allocator *allocator, attune__op op, const attune_expr *a,
                                   const attune_expr *b, attune_expr **expr)
{
    *expr = NULL;
    bool binary = op == ATTUNE__OP_AND || op == ATTUNE__OP_OR;
    if ((!binary && op != ATTUNE__OP_NOT) || binary != (b != NULL) || a->kind != ATTUNE_EXPR_MASK ||
        (b && b->kind != ATTUNE_EXPR_MASK))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "masks are joined by and, or and not; scores are not joined");
    attune__builder builder;
    ATTUNE__TRY(attune__builder_init(&builder, allocator, ATTUNE_EXPR_MASK));
    uint32_t number[ATTUNE_EXPR_MAX_NODES];
    uint32_t x = 0, y = 0;
    attune_status status = attune__builder_import(&builder, a, number);
    if (status == ATTUNE_OK)
        x = number[a->node_count - 1];
    if (status == ATTUNE_OK && b)
        status = attune__builder_import(&builder, b, number);
    if (status == ATTUNE_OK) {
        y = b ? number[b->node_count - 1] : 0;
        uint32_t root = b ? attune__make2(&builder, op, x, y) : attune__make1(&builder, op, x);
        status = attune__builder_finish(&builder, root, ATTUNE_INVALID_ARGUMENT, expr);
    }
    attune__builder_free(&builder);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- shifting */

static bool is_shifted(const attune_expr *expr)
{
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        if (!strcmp(expr->symbols[i].name, ATTUNE__KV_START) || !strcmp(expr->symbols[i].name, ATTUNE__KV_TOTAL))
            return true;
    return false;
}

static attune_status make_parameter(attune__builder *builder, const char *name, uint32_t *node)
{
    attune__symbol symbol = {.kind = ATTUNE_SYMBOL_PARAMETER, .dtype = ATTUNE_I32};
    snprintf(symbol.name, sizeof symbol.name, "%s", name);
    const uint32_t index = attune__builder_symbol(builder, &symbol);
    if (index == ATTUNE__NONE)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "over segments an expression has two parameters more: it uses more than the %d captures and "
            "parameters that leaves",
            ATTUNE_EXPR_MAX_SYMBOLS - 2);
    *node = attune__make_symbol(builder, index, NULL);
    return ATTUNE_OK;
}

/* Begins to replace variables, and replaces none. */
static void substitute_none(attune__builder *builder)
{
    for (uint32_t i = 0; i < sizeof builder->var / sizeof builder->var[0]; i++)
        builder->var[i] = ATTUNE__NONE;
    builder->substitute = true;
}

attune_status attune__expr_shift(const attune_allocator *allocator, const attune_expr *expr, attune_expr **shifted)
{
    *shifted = NULL;
    if (!(expr->uses & (1u << ATTUNE__VAR_KV | 1u << ATTUNE__VAR_KV_LEN)) || is_shifted(expr)) {
        *shifted = attune__expr_retain(expr);
        return ATTUNE_OK;
    }
    attune__builder builder;
    ATTUNE__TRY(attune__builder_init(&builder, allocator, expr->kind));
    uint32_t number[ATTUNE_EXPR_MAX_NODES], start = 0, total = 0;
    /* Importing first keeps the order of the expression's own symbols, which is that of first use. */
    attune_status status = attune__builder_import(&builder, expr, number);
    if (status == ATTUNE_OK)
        status = make_parameter(&builder, ATTUNE__KV_START, &start);
    if (status == ATTUNE_OK)
        status = make_parameter(&builder, ATTUNE__KV_TOTAL, &total);
    if (status == ATTUNE_OK) {
        substitute_none(&builder);
        builder.var[ATTUNE__VAR_KV] =
            attune__make2(&builder, ATTUNE__OP_ADD, attune__make_var(&builder, ATTUNE__VAR_KV), start);
        builder.var[ATTUNE__VAR_KV_LEN] = total;
        status = attune__builder_import(&builder, expr, number);
    }
    if (status == ATTUNE_OK)
        status = attune__builder_finish(&builder, number[expr->node_count - 1], ATTUNE_INVALID_ARGUMENT, shifted);
    attune__builder_free(&builder);
    return status;
}

attune_status attune__expr_dense(const attune_allocator *allocator, const attune_expr *expr, attune_expr **dense)
{
    *dense = NULL;
    if (!(expr->uses & 1u << ATTUNE__VAR_ROW)) {
        *dense = attune__expr_retain(expr);
        return ATTUNE_OK;
    }
    attune__builder builder;
    ATTUNE__TRY(attune__builder_init(&builder, allocator, expr->kind));
    uint32_t number[ATTUNE_EXPR_MAX_NODES];
    /* Importing first keeps the order of the symbols. */
    attune_status status = attune__builder_import(&builder, expr, number);
    if (status == ATTUNE_OK) {
        const uint32_t first = attune__make2(&builder, ATTUNE__OP_MUL, attune__make_var(&builder, ATTUNE__VAR_B),
                                             attune__make_var(&builder, ATTUNE__VAR_Q_LEN));
        const uint32_t row = attune__make2(&builder, ATTUNE__OP_ADD, first, attune__make_var(&builder, ATTUNE__VAR_Q));
        substitute_none(&builder);
        builder.var[ATTUNE__VAR_ROW] = row;
        status = attune__builder_import(&builder, expr, number);
    }
    if (status == ATTUNE_OK)
        status = attune__builder_finish(&builder, number[expr->node_count - 1], ATTUNE_INVALID_ARGUMENT, dense);
    attune__builder_free(&builder);
    return status;
}

attune_status attune__expr_of_q_len(const attune_allocator *allocator, const attune_expr *expr, int32_t q_len,
                                    attune_expr **made)
{
    *made = NULL;
    if (!(expr->uses & 1u << ATTUNE__VAR_Q_LEN)) {
        *made = attune__expr_retain(expr);
        return ATTUNE_OK;
    }
    attune__builder builder;
    ATTUNE__TRY(attune__builder_init(&builder, allocator, expr->kind));
    uint32_t number[ATTUNE_EXPR_MAX_NODES];
    substitute_none(&builder);
    builder.var[ATTUNE__VAR_Q_LEN] = attune__make_int(&builder, q_len);
    attune_status status = attune__builder_import(&builder, expr, number);
    if (status == ATTUNE_OK)
        status = attune__builder_finish(&builder, number[expr->node_count - 1], ATTUNE_INVALID_ARGUMENT, made);
    attune__builder_free(&builder);
    return status;
}

attune_status attune__expr_ragged(const attune_allocator *allocator, const attune_expr *expr, attune_expr **ragged)
{
    *ragged = NULL;
    attune__builder builder;
    ATTUNE__TRY(attune__builder_init(&builder, allocator, expr->kind));
    uint32_t number[ATTUNE_EXPR_MAX_NODES];
    attune_status status = attune__builder_import(&builder, expr, number);
    if (status == ATTUNE_OK)
        status = attune__builder_finish(&builder, number[expr->node_count - 1], ATTUNE_INVALID_ARGUMENT, ragged);
    if (*ragged)
        (*ragged)->ragged = true;
    attune__builder_free(&builder);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- gathering
 */

/* The replacement of a variable: a parameter, or for q and kv an element of a capture. */
typedef struct replacement {
    const char *name;
    attune__var var;
    bool capture;
} replacement;

static const replacement gathered_variables[] = {
    {ATTUNE__GATHER_Q, ATTUNE__VAR_Q, true},
    {ATTUNE__GATHER_KV, ATTUNE__VAR_KV, true},
    {ATTUNE__GATHER_Q_LEN, ATTUNE__VAR_Q_LEN, false},
    {ATTUNE__GATHER_KV_LEN, ATTUNE__VAR_KV_LEN, false},
};

static attune_status make_replacement(attune__builder *builder, const replacement *r, uint32_t *node)
{
    attune__symbol symbol = {
        .kind = r->capture ? ATTUNE_SYMBOL_CAPTURE : ATTUNE_SYMBOL_PARAMETER, .dtype = ATTUNE_I32, .rank = r->capture};
    snprintf(symbol.name, sizeof symbol.name, "%s", r->name);
    const uint32_t index = attune__builder_symbol(builder, &symbol);
    if (index == ATTUNE__NONE)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "over several ranks an expression has a symbol more for each of q, kv, q_len and kv_len "
                            "that it reads: with them it has more than %d captures and parameters",
                            ATTUNE_EXPR_MAX_SYMBOLS);
    const uint32_t var = r->capture ? attune__make_var(builder, r->var) : 0;
    *node = attune__make_symbol(builder, index, r->capture ? &var : NULL);
    return ATTUNE_OK;
}

attune_status attune__expr_gather(const attune_allocator *allocator, const attune_expr *expr, attune_expr **gathered)
{
    *gathered = NULL;
    uint32_t replaced[ATTUNE__VAR_ROW + 1];
    attune__builder builder;
    ATTUNE__TRY(attune__builder_init(&builder, allocator, expr->kind));
    uint32_t number[ATTUNE_EXPR_MAX_NODES];
    /* Importing first keeps the order of the symbols. */
    attune_status status = attune__builder_import(&builder, expr, number);
    for (size_t i = 0; i < sizeof gathered_variables / sizeof *gathered_variables; i++) {
        const replacement *r = &gathered_variables[i];
        replaced[r->var] = ATTUNE__NONE;
        if (status == ATTUNE_OK && expr->uses & 1u << r->var)
            status = make_replacement(&builder, r, &replaced[r->var]);
    }
    if (status == ATTUNE_OK) {
        substitute_none(&builder);
        for (size_t i = 0; i < sizeof gathered_variables / sizeof *gathered_variables; i++)
            builder.var[gathered_variables[i].var] = replaced[gathered_variables[i].var];
        status = attune__builder_import(&builder, expr, number);
    }
    if (status == ATTUNE_OK)
        status = attune__builder_finish(&builder, number[expr->node_count - 1], ATTUNE_INVALID_ARGUMENT, gathered);
    attune__builder_free(&builder);
    return status;
}

/* index >= from[by] && index < to[by] */
static uint32_t make_span(attune__builder *builder, attune__var index, attune__var by, const char *from, const char *to)
{
    const char *const names[] = {from, to};
    const uint32_t var = attune__make_var(builder, index), at = attune__make_var(builder, by);
    uint32_t ends[2];
    for (int i = 0; i < 2; i++) {
        attune__symbol symbol = {.kind = ATTUNE_SYMBOL_CAPTURE, .dtype = ATTUNE_I32, .rank = 1};
        snprintf(symbol.name, sizeof symbol.name, "%s", names[i]);
        ends[i] = attune__make_symbol(builder, attune__builder_symbol(builder, &symbol), &at);
    }
    return attune__make2(builder, ATTUNE__OP_AND, attune__make2(builder, ATTUNE__OP_LE, ends[0], var),
                         attune__make2(builder, ATTUNE__OP_LT, var, ends[1]));
}

attune_status attune__expr_spans(const attune_allocator *allocator, bool keys, attune_expr **expr)
{
    attune__builder builder;
    *expr = NULL;
    ATTUNE__TRY(attune__builder_init(&builder, allocator, ATTUNE_EXPR_MASK));
    uint32_t root = make_span(&builder, ATTUNE__VAR_KV, ATTUNE__VAR_Q, ATTUNE__ROW_FROM, ATTUNE__ROW_TO);
    if (keys)
        root = attune__make2(&builder, ATTUNE__OP_AND, root,
                             make_span(&builder, ATTUNE__VAR_Q, ATTUNE__VAR_KV, ATTUNE__KEY_FROM, ATTUNE__KEY_TO));
    const attune_status status = attune__builder_finish(&builder, root, ATTUNE_INTERNAL, expr);
    attune__builder_free(&builder);
    return status;
}
