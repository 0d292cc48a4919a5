/* SPDX-License-Identifier: MIT */
/*
 * A mask's bounds over a box as C, for kernels that skip tiles: intervals of integers and bools, as in bounds.c. What
 * is not followed here, floats among it, is bounded by all values.
 */
#include <stdio.h>

#include "expr/builder.h"
#include "expr/expr.h"
#include "expr/ops.h"
#include "expr/print.h"

#define NAME_SIZE (ATTUNE__CTEXT_NAME + 16)

/* The interval of a node: constants and variables are inlined, other nodes are named by number. */
static const char *operand(const attune_expr *expr, uint32_t n, char name[NAME_SIZE])
{
    const attune__node *node = &expr->nodes[n];
    const attune__var var = (attune__var)node->value.i;
    char text[ATTUNE__CTEXT_NAME];
    attune__ctext_operand(expr, n, text);
    const bool point = node->op == ATTUNE__OP_CONST ||
                       (node->op == ATTUNE__OP_VAR && (var == ATTUNE__VAR_B || var == ATTUNE__VAR_H_KV ||
                                                       var == ATTUNE__VAR_Q_LEN || var == ATTUNE__VAR_KV_LEN));
    snprintf(name, NAME_SIZE, point ? "ATTUNE_POINT(%s)" : "%s", text);
    return name;
}

static const char *anything(const attune__node *node)
{
    return node->type == ATTUNE__INT ? "ATTUNE_ALL" : "ATTUNE_EITHER";
}

/* An element, where the indices are exact; any value elsewhere. */
static void add_capture(const attune_expr *expr, const attune__node *node, attune__text *text)
{
    char name[NAME_SIZE];
    attune__text_add(text, "attune_bound_one(");
    for (uint32_t i = 0; i < node->arg_count; i++)
        attune__text_add(text, "%sattune_is_point(%s)", i ? " && " : "", operand(expr, node->arg[i], name));
    attune__text_add(text, ", attune_load_%s_%u(ATTUNE_CAPTURE(%d)",
                     attune_dtype_string(expr->symbols[node->value.i].dtype), node->arg_count, node->value.i);
    for (uint32_t i = 0; i < node->arg_count; i++)
        attune__text_add(text, ", attune_low(%s)", operand(expr, node->arg[i], name));
    attune__text_add(text, "), %s)", anything(node));
}

static void add_bounds(const attune_expr *expr, const attune__node *node, attune__text *text)
{
    static const char *const functions[] = {
        [ATTUNE__OP_ADD] = "add", [ATTUNE__OP_SUB] = "sub", [ATTUNE__OP_MUL] = "mul", [ATTUNE__OP_DIV] = "div",
        [ATTUNE__OP_MIN] = "min", [ATTUNE__OP_MAX] = "max", [ATTUNE__OP_EQ] = "eq",   [ATTUNE__OP_NE] = "ne",
        [ATTUNE__OP_LT] = "lt",   [ATTUNE__OP_LE] = "le",   [ATTUNE__OP_AND] = "and", [ATTUNE__OP_OR] = "or",
        [ATTUNE__OP_ABS] = "abs", [ATTUNE__OP_NEG] = "neg", [ATTUNE__OP_NOT] = "not", [ATTUNE__OP_SELECT] = "select",
    };
    char name[NAME_SIZE];
    if (node->op == ATTUNE__OP_PARAM) {
        attune__text_add(text, "ATTUNE_POINT(ATTUNE_PARAMETER_I32(%d))", node->value.i);
        return;
    }
    if (node->op == ATTUNE__OP_CAPTURE) {
        add_capture(expr, node, text);
        return;
    }
    if (node->op >= sizeof functions / sizeof functions[0] || !functions[node->op] ||
        expr->nodes[node->arg[0]].type == ATTUNE__FLOAT) {
        attune__text_add(text, "%s", anything(node));
        return;
    }
    attune__text_add(text, "attune_bound_%s(", functions[node->op]);
    for (uint32_t i = 0; i < node->arg_count; i++)
        attune__text_add(text, "%s%s", i ? ", " : "", operand(expr, node->arg[i], name));
    attune__text_add(text, ")");
}

void attune__ctext_mask_bounds(const attune_expr *expr, const char *name, attune__text *text)
{
    char root[NAME_SIZE];
    attune__text_add(
        text,
        "ATTUNE_FUNCTION attune_range %s(int b, attune_range h, attune_range q, attune_range kv, int h_kv, "
        "int q_len, int kv_len, attune_range row ATTUNE_SYMBOLS)\n{\n",
        name);
    for (uint32_t n = 0; n < expr->node_count; n++) {
        const attune__node *node = &expr->nodes[n];
        /* Floats have no value: no node of another type is computed from one but by `anything`. */
        if (node->type == ATTUNE__FLOAT || node->op == ATTUNE__OP_CONST || node->op == ATTUNE__OP_VAR)
            continue;
        attune__text_add(text, "    const attune_range t%u = ", n);
        add_bounds(expr, node, text);
        attune__text_add(text, ";\n");
    }
    attune__text_add(text, "    return %s;\n}\n", operand(expr, expr->node_count - 1, root));
}
