/* SPDX-License-Identifier: MIT */
/* The estimated code size of an expression, which decides how far loops over pairs are unrolled. */
#include "expr/expr.h"

#include "expr/print.h"

/* The weight of the functions without all digits (cuda/prelude.cuh); 0 = there is none. */
static uint32_t fast_weight_of(const attune_expr *expr, const attune__node *node, attune__form form)
{
    switch ((attune__op)node->op) {
    case ATTUNE__OP_DIV:
        return node->type == ATTUNE__INT ? 0 : expr->nodes[node->arg[1]].op == ATTUNE__OP_CONST ? 1 : 8;
    case ATTUNE__OP_EXP:
    case ATTUNE__OP_EXP2:
        return 2;
    case ATTUNE__OP_LOG:
    case ATTUNE__OP_LOG2:
    case ATTUNE__OP_SQRT:
    case ATTUNE__OP_RSQRT:
        return 5;
    case ATTUNE__OP_SIGMOID:
        return 4;
    case ATTUNE__OP_TANH:
        return 12;
    case ATTUNE__OP_SIN:
    case ATTUNE__OP_COS:
        return form == ATTUNE__FORM_SINES ? 13 : 0;
    default:
        return 0;
    }
}

static bool is_root(const attune_expr *expr, const attune__node *node)
{
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    if (node->op != ATTUNE__OP_POW)
        return false;
    attune__ctext_bounds(expr, bounds);
    return attune__ctext_is_root(&expr->nodes[node->arg[1]], &bounds[node->arg[0]]);
}

/* Instructions of NVIDIA's exact functions, including rare branches; other operations take one or two. */
static uint32_t weight_of(const attune_expr *expr, const attune__node *node, attune__form form)
{
    const bool integer = node->type == ATTUNE__INT, near = form == ATTUNE__FORM_NEAR,
               fast = form == ATTUNE__FORM_FAST || form == ATTUNE__FORM_SINES;
    if (is_root(expr, node))
        return fast ? 5 : 20;
    if (fast && fast_weight_of(expr, node, form))
        return fast_weight_of(expr, node, form);
    switch ((attune__op)node->op) {
    case ATTUNE__OP_CONST:
    case ATTUNE__OP_VAR:
    case ATTUNE__OP_PARAM:
        return 0;
    case ATTUNE__OP_CAPTURE:
        return 4 + 3 * node->arg_count;
    case ATTUNE__OP_DIV:
    case ATTUNE__OP_MOD:
        return expr->nodes[node->arg[1]].op == ATTUNE__OP_CONST && integer ? 6 : 20;
    case ATTUNE__OP_EXP:
    case ATTUNE__OP_EXP2:
        return 8;
    case ATTUNE__OP_LOG:
    case ATTUNE__OP_LOG2:
        return 16;
    case ATTUNE__OP_SQRT:
        return 20;
    case ATTUNE__OP_TANH:
        return near ? 6 : 28;
    case ATTUNE__OP_SIGMOID:
        return 28;
    case ATTUNE__OP_RSQRT:
        return 36;
    case ATTUNE__OP_POW:
        return 80;
    case ATTUNE__OP_SIN:
    case ATTUNE__OP_COS:
        return 90;
    default:
        return 1;
    }
}

uint32_t attune__node_weight(const attune_expr *expr, uint32_t n, attune__form form)
{
    return weight_of(expr, &expr->nodes[n], form);
}

uint32_t attune__expr_weight(const attune_expr *expr, uint32_t root, attune__form form, const attune__terms *terms)
{
    const uint16_t pair = 1u << ATTUNE__VAR_KV | 1u << ATTUNE__VAR_SCORE;
    bool needed[ATTUNE_EXPR_MAX_NODES];
    attune__terms computed = {0};
    uint32_t weight = 0;
    for (uint32_t i = 0; terms && i < terms->key_count; i++)
        if (terms->computed >> i & 1)
            computed.keys[computed.key_count++] = terms->keys[i];
    attune__ctext_needed(expr, &root, 1, &computed, needed);
    for (uint32_t i = 0; i < computed.key_count; i++) {
        needed[computed.keys[i]] = false;
        weight++;
    }
    for (uint32_t n = 0; n < expr->node_count; n++)
        if (needed[n] && expr->nodes[n].uses & pair)
            weight += weight_of(expr, &expr->nodes[n], form);
    return weight;
}
