/* SPDX-License-Identifier: MIT */
/* The mask of some rows and keys of a sequence, which a rank has or has received. Its lists are parts of the whole
 * mask's, so that a block has the same class in both. */
#include "mask/rects.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* Adds the blocks of one plane. column[c] is the block column of the gathered mask that column c becomes, or -1. */
static bool gather_plane(const attune_mask *mask, int64_t row0, const attune__positions *rows, int64_t q_blocks,
                         const int32_t *column, attune__rects *rects)
{
    attune__rects_begin_plane(rects);
    for (int32_t r = 0; r < q_blocks; r++) {
        const int64_t row = row0 + rows->at[(int64_t)r * mask->q_block] / (int64_t)mask->q_block;
        for (attune__runs run = attune__runs_begin(mask, row); !attune__runs_done(&run); attune__runs_next(&run))
            for (int32_t c = run.c0; c < run.c1 && run.class != ATTUNE__EMPTY; c++)
                if (column[c] >= 0 && !attune__rects_add(rects, r, r + 1, column[c], column[c] + 1, run.class))
                    return false;
    }
    attune__rects_end_plane(rects);
    return true;
}

static attune_status gather_lists(const attune_mask *mask, const attune__positions *rows, const attune__positions *keys,
                                  attune_mask *made)
{
    attune__rects rects;
    int32_t *column = attune__alloc_raw(&mask->allocator, (size_t)mask->kv_blocks, sizeof *column);
    if (!column)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    memset(column, 0xff, (size_t)mask->kv_blocks * sizeof *column);
    for (int32_t c = 0; c < made->kv_blocks; c++)
        column[keys->at[(int64_t)c * mask->kv_block] / (int64_t)mask->kv_block] = c;
    const int64_t planes = made->stored_batch * made->stored_heads;
    attune_status status = attune__rects_init(&rects, &mask->allocator, planes);
    for (int64_t p = 0; status == ATTUNE_OK && p < planes; p++)
        if (!gather_plane(mask, p * mask->q_blocks, rows, made->q_blocks, column, &rects))
            status = ATTUNE_OUT_OF_HOST_MEMORY;
    if (status == ATTUNE_OK)
        status = attune__mask_store(made, &rects, NULL);
    attune__rects_finish(&rects);
    attune__free(&mask->allocator, column);
    return status;
}

static bool is_named(const attune_expr *expr, uint32_t index, const char *name)
{
    return !strcmp(expr->symbols[index].name, name);
}

/* The expression of some rows and keys. Of a slice q_len is a constant: a call has one parameter of the name, which the
 * score expression may read with the length of the slice. */
static attune_status gather_expression(const attune_mask *mask, attune_expr **made)
{
    attune_expr *of_slice = NULL;
    if (mask->expr_q_len == mask->q_len)
        return attune__expr_gather(&mask->allocator, mask->expr, made);
    ATTUNE__TRY(attune__expr_of_q_len(&mask->allocator, mask->expr, mask->expr_q_len, &of_slice));
    const attune_status status = attune__expr_gather(&mask->allocator, of_slice, made);
    attune__expr_release(of_slice);
    return status;
}

/* Binds the symbols of a gathered expression: the mask's own, which come first, and the positions and lengths. q is the
 * positions of the rows in the expression of the mask, which may be a slice. */
static void bind_gathered(const attune_mask *mask, const attune_expr *expr, const int32_t *q, int64_t rows,
                          const attune__positions *keys, attune_array *captures, attune__value *parameters)
{
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        if (is_named(expr, i, ATTUNE__GATHER_Q)) {
            captures[i] = (attune_array){.data = q, .dtype = ATTUNE_I32, .rank = 1, .size = {rows}, .stride = {1}};
        } else if (is_named(expr, i, ATTUNE__GATHER_KV)) {
            captures[i] =
                (attune_array){.data = keys->at, .dtype = ATTUNE_I32, .rank = 1, .size = {keys->count}, .stride = {1}};
        } else if (is_named(expr, i, ATTUNE__GATHER_Q_LEN)) {
            parameters[i].i = mask->expr_q_len;
        } else if (is_named(expr, i, ATTUNE__GATHER_KV_LEN)) {
            parameters[i].i = mask->expr_kv_len;
        } else {
            for (uint32_t j = 0; j < mask->expr->symbol_count; j++)
                if (is_named(mask->expr, j, expr->symbols[i].name)) {
                    captures[i] = mask->captures[j];
                    parameters[i] = mask->parameters[j];
                }
        }
    }
}

attune_status attune__mask_gather(const attune_mask *mask, const attune__positions *rows, const attune__positions *keys,
                                  attune_mask **gathered)
{
    *gathered = NULL;
    attune_mask *made = NULL;
    attune_expr *expr = NULL;
    attune_array captures[ATTUNE_EXPR_MAX_SYMBOLS] = {{.data = NULL}};
    attune__value parameters[ATTUNE_EXPR_MAX_SYMBOLS] = {{.i = 0}};
    int32_t *q = attune__alloc_raw(&mask->allocator, (size_t)rows->count, sizeof *q);
    attune_status status = q ? ATTUNE_OK : ATTUNE_OUT_OF_HOST_MEMORY;
    if (status == ATTUNE_OK && mask->expr)
        status = gather_expression(mask, &expr);
    if (status != ATTUNE_OK)
        goto done;
    for (int64_t i = 0; i < rows->count; i++)
        q[i] = rows->at[i] + mask->q0;
    if (expr)
        bind_gathered(mask, expr, q, rows->count, keys, captures, parameters);
    attune_mask_desc desc = attune__mask_describe(mask);
    desc.q_len = rows->count;
    desc.kv_len = keys->count;
    desc.kv_start = desc.kv_total = 0;
    status = attune__mask_new(&mask->allocator, &desc, mask->stored_batch, mask->stored_heads, expr,
                              &(attune__bindings){captures, parameters}, &made);
    if (status != ATTUNE_OK)
        goto done;
    made->b0 = mask->b0;
    made->h0 = mask->h0;
    made->expr_heads = mask->expr_heads;
    made->expr_kv_heads = mask->expr_kv_heads;
    made->uses |= mask->uses & (1u << ATTUNE__VAR_B | 1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV);
    status = gather_lists(mask, rows, keys, made);
    if (status != ATTUNE_OK) {
        attune__mask_free(made);
        made = NULL;
    }
done:
    attune__expr_release(expr);
    attune__free(&mask->allocator, q);
    *gathered = made;
    return status;
}
