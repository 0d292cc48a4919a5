/* SPDX-License-Identifier: MIT */
/* The mask of longer sequences, from a mask of their first parts: what a cache that grows needs. */
#include "mask/rects.h"

#include <string.h>

/* Whether the elements of an array of the same rank, none of whose sizes is smaller, begin with those of `old`, which
 * is contiguous. */
static bool begins_with(const attune_array *array, const attune_array *old)
{
    int64_t size[ATTUNE_MAX_RANK] = {1, 1, 1, 1}, stride[ATTUNE_MAX_RANK] = {0};
    const uint32_t pad = ATTUNE_MAX_RANK - old->rank;
    for (uint32_t i = 0; i < old->rank; i++) {
        size[pad + i] = old->size[i];
        stride[pad + i] = array->stride[i];
    }
    const size_t bytes = attune_dtype_size(old->dtype);
    const size_t step = stride[3] == 1 ? (size_t)size[3] : 1; /* elements that stand together in both */
    const char *expected = old->data;
    for (int64_t i = 0; i < size[0]; i++)
        for (int64_t j = 0; j < size[1]; j++)
            for (int64_t k = 0; k < size[2]; k++) {
                const int64_t row = i * stride[0] + j * stride[1] + k * stride[2];
                for (int64_t l = 0; l < size[3]; l += (int64_t)step, expected += step * bytes)
                    if (memcmp((const char *)array->data + (row + l * stride[3]) * (int64_t)bytes, expected,
                               step * bytes))
                        return false;
            }
    return true;
}

/* Lowers q and kv to where the pairs below both read the same elements of a capture that has grown. */
static void limit_by_capture(const attune_expr *expr, uint32_t symbol, const attune_array *old,
                             const attune_array *array, int64_t *q, int64_t *kv)
{
    for (uint32_t d = 0; d < old->rank; d++) {
        if (array->size[d] == old->size[d])
            continue;
        /* An element that was out of range, and 0, may be in range now: at other indices than q and kv, at any pair. */
        const uint16_t on_q = 1u << ATTUNE__VAR_Q, on_kv = 1u << ATTUNE__VAR_KV;
        if (array->size[d] < old->size[d] || !attune__reads_only(expr, symbol, d, on_q | on_kv)) {
            *q = *kv = 0;
            return;
        }
        if (!attune__reads_only(expr, symbol, d, on_kv))
            *q = attune__min64(*q, old->size[d]);
        if (!attune__reads_only(expr, symbol, d, on_q))
            *kv = attune__min64(*kv, old->size[d]);
    }
    if (!begins_with(array, old))
        *q = *kv = 0;
}

attune_status attune__mask_extend(const attune_mask *mask, const attune_mask_desc *desc, const attune_array *captures,
                                  attune__work *work, attune_mask **extended)
{
    const attune_expr *expr = mask->expr;
    const unsigned pair = 1u << ATTUNE__VAR_Q | 1u << ATTUNE__VAR_KV;
    const unsigned lengths = 1u << ATTUNE__VAR_Q_LEN | 1u << ATTUNE__VAR_KV_LEN;
    /* Pairs below both have the value that they had. */
    int64_t q = mask->q_len, kv = mask->kv_len;
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            limit_by_capture(expr, i, &mask->captures[i], &captures[i], &q, &kv);
    attune__kept_blocks kept = {0};
    /* Without q or kv there is one row or column of blocks to classify. */
    if ((expr->uses & pair) == pair && !(expr->uses & lengths)) {
        /* The last block of a length that is no multiple of the block has new pairs if that length has grown. */
        kept = (attune__kept_blocks){
            .mask = mask,
            .rows = (int32_t)(q == desc->q_len ? mask->q_blocks : q / mask->q_block),
            .columns = (int32_t)(kv == desc->kv_len ? mask->kv_blocks : kv / mask->kv_block),
        };
    }
    return attune__mask_build_from(&kept, &mask->allocator, desc, expr, captures, mask->parameters, work, extended);
}
