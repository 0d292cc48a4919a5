/* SPDX-License-Identifier: MIT */
/* The parts of a problem that an attention gives: its block mask, and the captures that have gradients. */
#include "tests/oracle/reference.h"

#include <string.h>

uint32_t attention_differentiable(const attention *a)
{
    uint32_t captures = 0;
    for (uint32_t i = 0; a->score && i < attune_expr_symbol_count(a->score); i++) {
        attune_symbol symbol;
        if (attune_expr_symbol_get(a->score, i, &symbol) != ATTUNE_OK || symbol.kind != ATTUNE_SYMBOL_CAPTURE ||
            (symbol.dtype != ATTUNE_F32 && symbol.dtype != ATTUNE_F16 && symbol.dtype != ATTUNE_BF16))
            continue;
        for (uint32_t j = 0; j < a->capture_count; j++)
            if (!strcmp(a->captures[j].name, symbol.name))
                captures |= 1u << j;
    }
    return captures;
}

int64_t attention_capture_elements(const attention *a, uint32_t captures)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < a->capture_count; i++) {
        const attune_array *h = &a->captures[i].array;
        int64_t elements = captures >> i & 1;
        for (uint32_t j = 0; j < h->rank; j++)
            elements *= h->size[j];
        sum += elements;
    }
    return sum;
}

attune_status attention_mask(attune_instance *instance, attune_device *device, const attention *a,
                             const attune_mask_desc *desc, attune_problem *problem, attune_mask **mask)
{
    attune_mask_destroy(*mask);
    *mask = NULL;
    attune_status status = attune_mask_create(instance, desc, a->mask, a->captures, a->capture_count, a->parameters,
                                              a->parameter_count, mask);
    if (status == ATTUNE_OK)
        status = attune_mask_upload(*mask, device);
    return status == ATTUNE_OK && problem ? attune_problem_set_mask(problem, *mask) : status;
}
