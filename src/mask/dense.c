/* SPDX-License-Identifier: MIT */
/* Masks from a dense array of bytes, which becomes a capture of an expression that reads it. */
#include "mask/rects.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

#define ONES UINT64_C(0x0101010101010101)

/* Converts non-zero bytes to 1. Most arrays have only 0 and 1: then nothing is written. */
static void make_truth(uint8_t *bytes, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        if (word & ~ONES)
            for (size_t j = i; j < i + 8; j++)
                bytes[j] = bytes[j] != 0;
    }
    for (; i < count; i++)
        bytes[i] = bytes[i] != 0;
}

/* The values in a run of 0 and 1 bytes, as bits: 1 = false, 2 = true. */
static unsigned values_in(const uint8_t *bytes, int64_t count)
{
    uint64_t any = 0, all = ONES;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        any |= word;
        all &= word;
    }
    for (; i < count; i++) {
        any |= bytes[i];
        all &= bytes[i] ? ONES : 0;
    }
    return (any ? 2u : 0) | (all != ONES ? 1u : 0);
}

static const attune__class class_of[4] = {ATTUNE__EMPTY, ATTUNE__EMPTY, ATTUNE__FULL, ATTUNE__PARTIAL};

/* `seen` has kv_blocks entries. */
static attune_status classify_plane(const attune_mask *mask, const uint8_t *plane, uint8_t *seen, attune__rects *rects,
                                    attune__work *work)
{
    for (int32_t r = 0; r < mask->q_blocks; r++) {
        const int64_t q0 = r * (int64_t)mask->q_block, q1 = attune__min64(q0 + mask->q_block, mask->q_len);
        memset(seen, 0, (size_t)mask->kv_blocks);
        ATTUNE__TRY(attune__work_add(work, (uint64_t)((q1 - q0) * mask->kv_len) / 8));
        for (int64_t q = q0; q < q1; q++)
            for (int64_t c = 0; c < mask->kv_blocks; c++)
                if (seen[c] != 3) {
                    const int64_t kv0 = c * mask->kv_block;
                    seen[c] |= (uint8_t)values_in(plane + q * mask->kv_len + kv0,
                                                  attune__min64(mask->kv_block, mask->kv_len - kv0));
                }
        for (int32_t c = 0; c < mask->kv_blocks; c++)
            if (!attune__rects_add(rects, r, r + 1, c, c + 1, class_of[seen[c]]))
                return ATTUNE_OUT_OF_HOST_MEMORY;
    }
    return ATTUNE_OK;
}

attune_status attune__mask_adopt_dense(const attune_allocator *allocator, const attune_mask_desc *desc,
                                       int64_t dense_batch, int64_t dense_heads, uint8_t *data, attune__work *work,
                                       attune_mask **mask)
{
    const attune_symbol symbol = {"dense", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 4};
    attune_expr *expr = NULL;
    attune_mask *made = NULL;
    attune__rects rects = {0};
    uint8_t *seen = NULL;
    char text[32];
    snprintf(text, sizeof text, "dense[%s, %s, q, kv]", dense_batch == 1 ? "0" : "b", dense_heads == 1 ? "0" : "h");
    attune_status status = attune__expr_parse(allocator, ATTUNE_EXPR_MASK, text, &symbol, 1, &expr);
    if (status != ATTUNE_OK)
        goto done;
    /* The array is attached last, when nothing can fail any more. */
    const attune_array none = {.dtype = ATTUNE_BOOL, .rank = 4};
    const attune__value unused = {0};
    status =
        attune__mask_new(allocator, desc, dense_batch, dense_heads, expr, &(attune__bindings){&none, &unused}, &made);
    if (status != ATTUNE_OK)
        goto done;
    status = attune__rects_init(&rects, allocator, dense_batch * dense_heads);
    if (status != ATTUNE_OK)
        goto done;
    status = ATTUNE_OUT_OF_HOST_MEMORY;
    seen = attune__alloc_raw(allocator, (size_t)made->kv_blocks, 1);
    if (!seen)
        goto done;
    for (int64_t p = 0; p < dense_batch * dense_heads; p++) {
        attune__rects_begin_plane(&rects);
        status = classify_plane(made, data + p * desc->q_len * desc->kv_len, seen, &rects, work);
        if (status != ATTUNE_OK)
            goto done;
        attune__rects_end_plane(&rects);
    }
    status = attune__mask_store(made, &rects, work);
    if (status != ATTUNE_OK)
        goto done;
    attune_array *capture = &made->captures[0];
    attune__free(allocator, (void *)(uintptr_t)capture->data);
    *capture = (attune_array){
        .data = data,
        .dtype = ATTUNE_BOOL,
        .rank = 4,
        .size = {dense_batch, dense_heads, desc->q_len, desc->kv_len},
        .stride = {dense_heads * desc->q_len * desc->kv_len, desc->q_len * desc->kv_len, desc->kv_len, 1},
    };
done:
    attune__free(allocator, seen);
    attune__rects_finish(&rects);
    attune__expr_release(expr);
    if (status != ATTUNE_OK) {
        attune__mask_free(made);
        made = NULL;
    }
    *mask = made;
    return status;
}

attune_status attune__mask_from_dense(const attune_allocator *allocator, const attune_mask_desc *desc,
                                      const attune_array *dense, attune_mask **mask)
{
    *mask = NULL;
    uint8_t *data = attune__array_copy(allocator, dense);
    if (!data)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    make_truth(data, attune__array_count(dense));
    attune_status status = attune__mask_adopt_dense(allocator, desc, dense->size[0], dense->size[1], data, NULL, mask);
    if (status != ATTUNE_OK)
        attune__free(allocator, data);
    return status;
}
