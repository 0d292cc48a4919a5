/* SPDX-License-Identifier: MIT */
/*
 * Finds captures that are shorter than the variables that index them. A read out of range is defined as 0, but is
 * rarely intended if a variable alone is the index, as in doc[kv]. Other indices are not checked: where they are out of
 * range, a mask or a choice usually discards the value.
 */
#include "expr/expr.h"

#include <string.h>

/* kv, or kv + segment_kv_start (attune__expr_shift). */
static bool is_shifted_kv(const attune_expr *expr, const attune__node *node)
{
    if (node->op != ATTUNE__OP_ADD)
        return false;
    for (int i = 0; i < 2; i++) {
        const attune__node *kv = &expr->nodes[node->arg[i]], *start = &expr->nodes[node->arg[1 - i]];
        if (kv->op == ATTUNE__OP_VAR && kv->value.i == ATTUNE__VAR_KV && start->op == ATTUNE__OP_PARAM &&
            !strcmp(expr->symbols[start->value.i].name, ATTUNE__KV_START))
            return true;
    }
    return false;
}

attune__direct_reads attune__expr_direct_reads(const attune_expr *expr)
{
    attune__direct_reads reads = {{{0}}};
    for (uint32_t i = 0; i < expr->node_count; i++) {
        const attune__node *node = &expr->nodes[i];
        if (node->op != ATTUNE__OP_CAPTURE)
            continue;
        for (uint32_t d = 0; d < node->arg_count; d++) {
            const attune__node *index = &expr->nodes[node->arg[d]];
            if (index->op == ATTUNE__OP_VAR)
                reads.vars[node->value.i][d] |= (uint16_t)(1u << index->value.i);
            else if (is_shifted_kv(expr, index))
                reads.vars[node->value.i][d] |= 1u << ATTUNE__VAR_KV;
        }
    }
    return reads;
}

bool attune__reads_only(const attune_expr *expr, uint32_t symbol, uint32_t d, uint16_t vars)
{
    for (uint32_t i = 0; i < expr->node_count; i++) {
        const attune__node *node = &expr->nodes[i];
        if (node->op != ATTUNE__OP_CAPTURE || node->value.i != (int32_t)symbol)
            continue;
        const attune__node *index = &expr->nodes[node->arg[d]];
        if (index->op != ATTUNE__OP_VAR || !(vars >> index->value.i & 1))
            return false;
    }
    return true;
}

bool attune__reads_past(const attune__direct_reads *reads, uint32_t symbol, const int64_t *size,
                        const attune__extents *extents, attune__short_read *found)
{
    for (uint32_t d = 0; d < ATTUNE_MAX_RANK; d++)
        for (uint32_t var = 0; reads->vars[symbol][d] >> var; var++)
            if (reads->vars[symbol][d] >> var & 1 && extents->of[var] > size[d]) {
                *found = (attune__short_read){d, (attune__var)var};
                return true;
            }
    return false;
}
