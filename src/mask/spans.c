/* SPDX-License-Identifier: MIT */
/*
 * Masks whose every row allows one interval of keys, as arrays of the intervals' ends. What an expression says in terms
 * of positions, kernels must evaluate pair by pair once rows and keys are gathered from several places; the ends are
 * indices of the gathered ones, with which kernels compare.
 */
#include "mask/rects.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/round.h"

/* The keys that a row allows, so far. */
typedef struct row_keys {
    int32_t from, to; /* to 0 = none */
    int64_t count;
} row_keys;

static void add_keys(row_keys *row, int64_t from, int64_t to)
{
    row->from = row->to && row->from < from ? row->from : (int32_t)from;
    row->to = row->to > to ? row->to : (int32_t)to;
    row->count += to - from;
}

/* Scratch of a search. */
typedef struct search {
    const attune_mask *mask;
    void *row;
    uint8_t *allowed; /* kv_block */
} search;

/* The keys that a row allows in a partial block. */
static void add_partial(const search *s, const attune__row *at, int64_t kv0, row_keys *row)
{
    const attune_mask *mask = s->mask;
    const attune__bindings bindings = {mask->captures, mask->parameters};
    const int64_t count = attune__min64(mask->kv_block, mask->kv_len - kv0);
    attune__expr_mask_row(mask->expr, &bindings, at, (int32_t)kv0, (size_t)count, s->row, s->allowed);
    for (int64_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && s->allowed[end] == s->allowed[i]; end++)
            ;
        if (s->allowed[i])
            add_keys(row, kv0 + i, kv0 + end);
    }
}

/* Fills the ends of a block row's rows. False if a row has no interval. */
static bool find_rows(const search *s, int64_t block, const attune__spans *spans)
{
    const attune_mask *mask = s->mask;
    const int64_t first = block * mask->q_block, end = attune__min64(first + mask->q_block, mask->q_len);
    const attune__block_list *full = &mask->full_kv, *partial = &mask->kv;
    row_keys all = {0};
    for (int64_t i = full->offsets[block]; i < full->offsets[block + 1]; i++) {
        const int64_t kv0 = full->indices[i] * (int64_t)mask->kv_block;
        add_keys(&all, kv0, attune__min64(kv0 + mask->kv_block, mask->kv_len));
    }
    for (int64_t q = first; q < end; q++) {
        const attune__row at = attune__mask_row(mask, 0, 0, q);
        row_keys row = all;
        for (int64_t i = partial->offsets[block]; i < partial->offsets[block + 1]; i++)
            add_partial(s, &at, partial->indices[i] * (int64_t)mask->kv_block, &row);
        if (row.count != row.to - row.from)
            return false;
        spans->row[0][q] = row.from;
        spans->row[1][q] = row.to;
    }
    return true;
}

/* The first key from `key` on that `next` has not passed. */
static int32_t unmarked(int32_t *next, int32_t key)
{
    int32_t end = key;
    while (next[end] != end)
        end = next[end];
    while (next[key] != end) {
        const int32_t step = next[key];
        next[key] = end;
        key = step;
    }
    return end;
}

/* Marks each key with the first of the rows, in this order, that allow it: with the row plus `add`. */
static void mark_keys(const attune_mask *mask, const attune__spans *spans, bool descending, int32_t add, int32_t *next,
                      int32_t *marks)
{
    const int32_t keys = (int32_t)mask->kv_len, rows = (int32_t)mask->q_len;
    for (int32_t k = 0; k <= keys; k++)
        next[k] = k;
    for (int32_t i = 0; i < rows; i++) {
        const int32_t q = descending ? rows - 1 - i : i;
        for (int32_t k = spans->row[0][q]; k < spans->row[1][q] && (k = unmarked(next, k)) < spans->row[1][q];) {
            marks[k] = q + add;
            next[k] = k + 1;
        }
    }
}

/* Whether as many rows allow each key as there are from the first to the last. next: of keys + 1. */
static bool are_contiguous(const attune_mask *mask, const attune__spans *spans, int32_t *next)
{
    memset(next, 0, ((size_t)mask->kv_len + 1) * sizeof *next);
    for (int64_t q = 0; q < mask->q_len; q++) {
        next[spans->row[0][q]]++;
        next[spans->row[1][q]]--;
    }
    int32_t count = 0;
    for (int64_t k = 0; k < mask->kv_len; k++) {
        count += next[k];
        if (count != spans->key[1][k] - spans->key[0][k])
            return false;
    }
    return true;
}

static attune_status find_keys(const attune_mask *mask, attune__spans *spans)
{
    const size_t keys = (size_t)mask->kv_len;
    int32_t *next = attune__alloc_raw(&mask->allocator, keys + 1, sizeof *next);
    for (int i = 0; i < 2; i++)
        spans->key[i] = attune__alloc(&mask->allocator, keys, sizeof *spans->key[i]);
    const bool allocated = next && spans->key[0] && spans->key[1];
    if (allocated) {
        mark_keys(mask, spans, false, 0, next, spans->key[0]);
        mark_keys(mask, spans, true, 1, next, spans->key[1]);
    }
    if (!allocated || !are_contiguous(mask, spans, next))
        for (int i = 0; i < 2; i++) {
            attune__free(&mask->allocator, spans->key[i]);
            spans->key[i] = NULL;
        }
    attune__free(&mask->allocator, next);
    return allocated ? ATTUNE_OK : ATTUNE_OUT_OF_HOST_MEMORY;
}

attune_status attune__mask_find_spans(const attune_mask *mask, attune__spans *spans)
{
    const uint16_t planes = 1u << ATTUNE__VAR_B | 1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV;
    *spans = (attune__spans){{NULL}, {NULL}};
    if (!mask->expr || mask->stored_batch != 1 || mask->stored_heads != 1 || (mask->expr->uses | mask->uses) & planes)
        return ATTUNE_OK;
    search s = {.mask = mask,
                .row = attune__alloc_raw(&mask->allocator, attune__expr_scratch_size(mask->expr, mask->kv_block), 1),
                .allowed = attune__alloc_raw(&mask->allocator, mask->kv_block, 1)};
    for (int i = 0; i < 2; i++)
        spans->row[i] = attune__alloc_raw(&mask->allocator, (size_t)mask->q_len, sizeof *spans->row[i]);
    attune_status status = s.row && s.allowed && spans->row[0] && spans->row[1] ? ATTUNE_OK : ATTUNE_OUT_OF_HOST_MEMORY;
    bool found = status == ATTUNE_OK;
    for (int64_t block = 0; block < mask->q_blocks && found; block++)
        found = find_rows(&s, block, spans);
    if (found)
        status = find_keys(mask, spans);
    attune__free(&mask->allocator, s.row);
    attune__free(&mask->allocator, s.allowed);
    if (!found || status != ATTUNE_OK)
        attune__spans_free(mask, spans);
    return status;
}

void attune__spans_free(const attune_mask *mask, attune__spans *spans)
{
    for (int i = 0; i < 2; i++) {
        attune__free(&mask->allocator, spans->row[i]);
        attune__free(&mask->allocator, spans->key[i]);
    }
    *spans = (attune__spans){{NULL}, {NULL}};
}

attune_status attune__mask_use_spans(attune_mask *mask, const attune__spans *spans, bool keys)
{
    static const char *const names[] = {ATTUNE__ROW_FROM, ATTUNE__ROW_TO, ATTUNE__KEY_FROM, ATTUNE__KEY_TO};
    const int32_t *const ends[] = {spans->row[0], spans->row[1], spans->key[0], spans->key[1]};
    attune_array captures[ATTUNE_EXPR_MAX_SYMBOLS] = {{.data = NULL}};
    attune_expr *expr;
    ATTUNE__TRY(attune__expr_spans(&mask->allocator, keys, &expr));
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        for (int j = 0; j < 4; j++)
            if (!strcmp(expr->symbols[i].name, names[j]))
                captures[i] = (attune_array){.data = ends[j],
                                             .dtype = ATTUNE_I32,
                                             .rank = 1,
                                             .size = {j < 2 ? mask->q_len : mask->kv_len},
                                             .stride = {1}};
    const attune_status status = attune__mask_bind(mask, expr, &(attune__bindings){captures, NULL});
    attune__expr_release(expr);
    mask->q0 = 0;
    return status;
}
