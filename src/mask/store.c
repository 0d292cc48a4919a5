/* SPDX-License-Identifier: MIT */
/* Storage of a mask: its lists, and its copies of captures and parameters. */
#include "mask/rects.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"

/* ------------------------------------------------------------------------------------------------------ rectangles */

attune_status attune__rects_init(attune__rects *rects, const attune_allocator *allocator, int64_t plane_count)
{
    *rects = (attune__rects){.allocator = allocator, .plane_count = (size_t)plane_count};
    rects->planes = attune__alloc_raw(allocator, rects->plane_count, sizeof *rects->planes);
    if (!rects->planes)
        return attune__fail(
            ATTUNE_OUT_OF_HOST_MEMORY,
            "no memory for the blocks of %zu batches and heads, %.0f bytes: give a smaller batch, fewer "
            "heads, or a mask without b and h",
            rects->plane_count, (double)rects->plane_count * (double)sizeof *rects->planes);
    return ATTUNE_OK;
}

void attune__rects_finish(attune__rects *rects)
{
    if (!rects->allocator)
        return;
    attune__free(rects->allocator, rects->items);
    attune__free(rects->allocator, rects->planes);
    *rects = (attune__rects){0};
}

void attune__rects_begin_plane(attune__rects *rects)
{
    rects->planes[rects->planes_done] = (attune__span){rects->count, rects->count};
}

bool attune__rects_add(attune__rects *rects, int32_t r0, int32_t r1, int32_t c0, int32_t c1, attune__class class)
{
    if (class == ATTUNE__EMPTY)
        return true;
    if (rects->count > rects->planes[rects->planes_done].first) {
        attune__rect *last = &rects->items[rects->count - 1];
        if (last->class == class && last->r0 == r0 && last->r1 == r1 && last->c1 == c0) {
            last->c1 = c1;
            return true;
        }
        if (last->class == class && last->c0 == c0 && last->c1 == c1 && last->r1 == r0) {
            last->r1 = r1;
            return true;
        }
    }
    if (rects->count == rects->capacity && !attune__grow(rects->allocator, (void **)&rects->items, &rects->capacity,
                                                         rects->count, rects->count + 1, sizeof *rects->items))
        return false;
    rects->items[rects->count++] = (attune__rect){r0, r1, c0, c1, class};
    return true;
}

void attune__rects_end_plane(attune__rects *rects)
{
    rects->planes[rects->planes_done++].end = rects->count;
}

void attune__rects_repeat_plane(attune__rects *rects)
{
    rects->planes[rects->planes_done] = rects->planes[rects->planes_done - 1];
    rects->planes_done++;
}

/* ----------------------------------------------------------------------------------------------------------- lists */

static bool list_init(const attune_allocator *allocator, attune__block_list *list, int64_t rows)
{
    list->num_blocks = attune__alloc(allocator, (size_t)rows, sizeof *list->num_blocks);
    if (!list->num_blocks)
        return false;
    list->offsets = attune__alloc_raw(allocator, (size_t)rows + 1, sizeof *list->offsets);
    return list->offsets != NULL;
}

/* Allocates the indices from the counts. offsets[r + 1] is set to the start of row r, and is the cursor for filling row
 * r, which leaves it at the row's end. */
static bool list_reserve(const attune_allocator *allocator, attune__block_list *list, int64_t rows)
{
    int64_t total = 0;
    list->offsets[0] = 0;
    for (int64_t r = 0; r < rows; r++) {
        list->offsets[r + 1] = total;
        total += list->num_blocks[r];
    }
    list->indices = attune__alloc_raw(allocator, (size_t)total, sizeof *list->indices);
    if (!list->indices)
        attune__fail(ATTUNE_OUT_OF_HOST_MEMORY,
                     "no memory for a list of %lld blocks, %lld bytes: give larger blocks (q_block, kv_block), shorter "
                     "lengths, or a mask that allows fewer of them",
                     (long long)total, (long long)total * (long long)sizeof *list->indices);
    return list->indices != NULL;
}

static void list_free(const attune_allocator *allocator, attune__block_list *list)
{
    attune__free(allocator, list->offsets);
    attune__free(allocator, list->num_blocks);
    attune__free(allocator, list->indices);
}

static void count(attune__block_list *list, int64_t first, int32_t r0, int32_t r1, int32_t entries)
{
    int32_t *num = list->num_blocks + first;
    for (int32_t r = r0; r < r1; r++)
        num[r] += entries;
}

/* Appends c0 ... c1 - 1 to each row. */
static void fill_rows(attune__block_list *list, int64_t first, int32_t r0, int32_t r1, int32_t c0, int32_t c1)
{
    int64_t *cursor = list->offsets + first + 1;
    const int32_t entries = c1 - c0;
    const int32_t *pattern = list->indices + cursor[r0];
    for (int32_t r = r0; r < r1; r++) {
        int32_t *out = list->indices + cursor[r];
        cursor[r] += entries;
        if (r > r0 && entries > 8)
            memcpy(out, pattern, (size_t)entries * sizeof *out);
        else
            for (int32_t i = 0; i < entries; i++)
                out[i] = c0 + i;
    }
}

/* The same, in steps of work. */
static bool fill(attune__block_list *list, int64_t first, int32_t r0, int32_t r1, int32_t c0, int32_t c1,
                 attune__work *work)
{
    const uint64_t entries = (uint64_t)(c1 - c0);
    const bool one_step = entries * (uint64_t)(r1 - r0) <= ATTUNE__WORK_STEP;
    const int32_t step = one_step ? r1 - r0 : entries < ATTUNE__WORK_STEP ? (int32_t)(ATTUNE__WORK_STEP / entries) : 1;
    for (int32_t r = r0, end; r < r1; r = end) {
        end = r1 - r > step ? r + step : r1;
        if (attune__work_add(work, entries * (uint64_t)(end - r)) != ATTUNE_OK)
            return false;
        fill_rows(list, first, r, end, c0, c1);
    }
    return true;
}

attune_status attune__mask_store(attune_mask *mask, const attune__rects *rects, attune__work *work)
{
    const attune_allocator *allocator = &mask->allocator;
    const int64_t planes = (int64_t)rects->plane_count;
    const int64_t rows = planes * mask->q_blocks, columns = planes * mask->kv_blocks;
    ATTUNE__TRY(attune__work_add(work, (uint64_t)rows + (uint64_t)columns));
    if (!list_init(allocator, &mask->kv, rows) || !list_init(allocator, &mask->full_kv, rows) ||
        !list_init(allocator, &mask->q, columns) || !list_init(allocator, &mask->full_q, columns))
        return attune__fail(ATTUNE_OUT_OF_HOST_MEMORY,
                            "no memory for lists of %lld rows and %lld columns of blocks, over batch and heads: give "
                            "larger blocks (q_block, kv_block), shorter lengths, a smaller batch, fewer heads, or a "
                            "mask without b and h",
                            (long long)rows, (long long)columns);
    for (int64_t p = 0; p < planes; p++)
        for (size_t i = rects->planes[p].first; i < rects->planes[p].end; i++) {
            const attune__rect *rect = &rects->items[i];
            const bool full = rect->class == ATTUNE__FULL;
            ATTUNE__TRY(attune__work_add(work, (uint64_t)(rect->r1 - rect->r0) + (uint64_t)(rect->c1 - rect->c0)));
            count(full ? &mask->full_kv : &mask->kv, p * mask->q_blocks, rect->r0, rect->r1, rect->c1 - rect->c0);
            count(full ? &mask->full_q : &mask->q, p * mask->kv_blocks, rect->c0, rect->c1, rect->r1 - rect->r0);
        }
    if (!list_reserve(allocator, &mask->kv, rows) || !list_reserve(allocator, &mask->full_kv, rows) ||
        !list_reserve(allocator, &mask->q, columns) || !list_reserve(allocator, &mask->full_q, columns))
        return ATTUNE_OUT_OF_HOST_MEMORY;
    for (int64_t p = 0; p < planes; p++)
        for (size_t i = rects->planes[p].first; i < rects->planes[p].end; i++) {
            const attune__rect *rect = &rects->items[i];
            const bool full = rect->class == ATTUNE__FULL;
            if (!fill(full ? &mask->full_kv : &mask->kv, p * mask->q_blocks, rect->r0, rect->r1, rect->c0, rect->c1,
                      work) ||
                !fill(full ? &mask->full_q : &mask->q, p * mask->kv_blocks, rect->c0, rect->c1, rect->r0, rect->r1,
                      work))
                return work->status;
        }
    return ATTUNE_OK;
}

void attune__mask_lists(const attune_mask *mask, attune_mask_lists *lists)
{
    *lists = (attune_mask_lists){
        .struct_size = lists->struct_size,
        .q_block = mask->q_block,
        .kv_block = mask->kv_block,
        .batch = mask->stored_batch,
        .heads = mask->stored_heads,
        .q_len = mask->q_len,
        .kv_len = mask->kv_len,
        .q_blocks = mask->q_blocks,
        .kv_blocks = mask->kv_blocks,
        .kv_num_blocks = mask->kv.num_blocks,
        .full_kv_num_blocks = mask->full_kv.num_blocks,
        .q_num_blocks = mask->q.num_blocks,
        .full_q_num_blocks = mask->full_q.num_blocks,
        .kv_offsets = mask->kv.offsets,
        .full_kv_offsets = mask->full_kv.offsets,
        .q_offsets = mask->q.offsets,
        .full_q_offsets = mask->full_q.offsets,
        .kv_indices = mask->kv.indices,
        .full_kv_indices = mask->full_kv.indices,
        .q_indices = mask->q.indices,
        .full_q_indices = mask->full_q.indices,
    };
}

/* -------------------------------------------------------------------------------------------------------- captures */

size_t attune__array_count(const attune_array *array)
{
    size_t elements = 1;
    for (uint32_t i = 0; i < array->rank; i++)
        elements *= (size_t)array->size[i];
    return elements;
}

void *attune__array_copy(const attune_allocator *allocator, const attune_array *array)
{
    /* Padded to four dimensions. With strides of 0 a small array can describe one of any size. */
    int64_t size[ATTUNE_MAX_RANK] = {1, 1, 1, 1}, stride[ATTUNE_MAX_RANK] = {0};
    const uint32_t pad = ATTUNE_MAX_RANK - array->rank;
    size_t elements = 1;
    for (uint32_t i = 0; i < array->rank; i++) {
        size[pad + i] = array->size[i];
        stride[pad + i] = array->stride[i];
    }
    for (int i = 0; i < ATTUNE_MAX_RANK; i++)
        if (!attune__multiply_size(&elements, (size_t)size[i])) {
            attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "a capture of %lld x %lld x %lld x %lld exceeds the address space",
                         (long long)size[0], (long long)size[1], (long long)size[2], (long long)size[3]);
            return NULL;
        }
    const size_t bytes = attune_dtype_size(array->dtype);
    unsigned char *copy = attune__alloc_raw(allocator, elements, bytes);
    if (!copy || !elements)
        return copy;

    bool contiguous = true;
    int64_t expected = 1;
    for (int i = ATTUNE_MAX_RANK - 1; i >= 0; i--) {
        contiguous = contiguous && (size[i] == 1 || stride[i] == expected);
        expected *= size[i];
    }
    if (contiguous) {
        memcpy(copy, array->data, elements * bytes);
        return copy;
    }
    unsigned char *out = copy;
    for (int64_t i = 0; i < size[0]; i++)
        for (int64_t j = 0; j < size[1]; j++)
            for (int64_t k = 0; k < size[2]; k++) {
                int64_t row = i * stride[0] + j * stride[1] + k * stride[2];
                for (int64_t l = 0; l < size[3]; l++, out += bytes)
                    memcpy(out, (const unsigned char *)array->data + (row + l * stride[3]) * (int64_t)bytes, bytes);
            }
    return copy;
}

static bool copy_capture(const attune_allocator *allocator, const attune_array *from, attune_array *to)
{
    void *data = attune__array_copy(allocator, from);
    if (!data)
        return false;
    *to = *from;
    to->data = data;
    int64_t stride = 1;
    for (uint32_t i = to->rank; i-- > 0;) {
        to->stride[i] = stride;
        stride *= to->size[i];
    }
    return true;
}

/* ----------------------------------------------------------------------------------------------------------- masks */

static void free_bindings(attune_mask *mask)
{
    if (mask->captures && !mask->from_tensor)
        for (uint32_t i = 0; i < mask->expr->symbol_count; i++)
            attune__free(&mask->allocator, (void *)(uintptr_t)mask->captures[i].data);
    attune__free(&mask->allocator, mask->captures);
    attune__free(&mask->allocator, mask->parameters);
    attune__expr_release(mask->expr);
    mask->captures = NULL;
    mask->parameters = NULL;
    mask->expr = NULL;
}

attune_status attune__mask_bind(attune_mask *mask, const attune_expr *expr, const attune__bindings *bindings)
{
    free_bindings(mask);
    mask->expr = attune__expr_retain(expr);
    mask->row_intervals = attune__interval_rows(expr, &mask->row_runs);
    mask->uses = expr->uses;
    mask->captures = attune__alloc(&mask->allocator, expr->symbol_count, sizeof *mask->captures);
    mask->parameters = attune__alloc(&mask->allocator, expr->symbol_count, sizeof *mask->parameters);
    if (!mask->captures || !mask->parameters)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_PARAMETER)
            mask->parameters[i] = bindings->parameters[i];
        else if (!copy_capture(&mask->allocator, &bindings->captures[i], &mask->captures[i]))
            return ATTUNE_OUT_OF_HOST_MEMORY;
    return ATTUNE_OK;
}

attune_mask_desc attune__mask_describe(const attune_mask *mask)
{
    return (attune_mask_desc){
        .struct_size = sizeof(attune_mask_desc),
        .q_block = mask->q_block,
        .kv_block = mask->kv_block,
        .batch = mask->batch,
        .heads = mask->heads,
        .kv_heads = mask->kv_heads,
        .q_len = mask->q_len,
        .kv_len = mask->kv_len,
        .kv_start = mask->kv_start,
        .kv_total = mask->kv_total,
    };
}

/* Each of the four lists has (rows + 1) offsets of 8 bytes. */
static attune_status check_planes(const attune_mask *mask)
{
    int64_t entries = mask->stored_batch;
    const int64_t longer = mask->q_blocks > mask->kv_blocks ? mask->q_blocks : mask->kv_blocks;
    if (!attune__multiply(&entries, mask->stored_heads) || !attune__multiply(&entries, longer) ||
        entries > INT64_MAX / 64)
        return attune__fail(
            ATTUNE_OUT_OF_HOST_MEMORY,
            "lists of batch %lld x heads %lld x %lld blocks exceed the address space: give larger blocks "
            "(q_block, kv_block), a smaller batch, fewer heads, or a mask without b and h",
            (long long)mask->stored_batch, (long long)mask->stored_heads, (long long)longer);
    return ATTUNE_OK;
}

attune_status attune__mask_new(const attune_allocator *allocator, const attune_mask_desc *desc, int64_t stored_batch,
                               int64_t stored_heads, const attune_expr *expr, const attune__bindings *bindings,
                               attune_mask **mask)
{
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    *mask = NULL;
    attune_mask *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return status;
    made->allocator = *allocator;
    made->q_block = desc->q_block;
    made->kv_block = desc->kv_block;
    made->batch = desc->batch;
    made->heads = desc->heads;
    made->kv_heads = desc->kv_heads;
    made->stored_batch = stored_batch;
    made->stored_heads = stored_heads;
    made->q_len = desc->q_len;
    made->kv_len = desc->kv_len;
    made->kv_start = desc->kv_start;
    made->kv_total = desc->kv_total;
    made->q_blocks = (desc->q_len + desc->q_block - 1) / desc->q_block;
    made->kv_blocks = (desc->kv_len + desc->kv_block - 1) / desc->kv_block;
    made->expr_heads = (int32_t)desc->heads;
    made->expr_kv_heads = (int32_t)desc->kv_heads;
    made->expr_q_len = (int32_t)desc->q_len;
    made->expr_kv_len = (int32_t)desc->kv_len;
    status = check_planes(made);
    if (status != ATTUNE_OK)
        goto fail;
    if (expr) {
        status = attune__mask_bind(made, expr, bindings);
        if (status != ATTUNE_OK)
            goto fail;
    }
    *mask = made;
    return ATTUNE_OK;
fail:
    attune__mask_free(made);
    return status;
}

void attune__mask_free(attune_mask *mask)
{
    if (!mask)
        return;
    const attune_allocator allocator = mask->allocator;
    list_free(&allocator, &mask->kv);
    list_free(&allocator, &mask->full_kv);
    list_free(&allocator, &mask->q);
    list_free(&allocator, &mask->full_q);
    free_bindings(mask);
    attune__free(&allocator, mask->classes);
    attune__free(&allocator, mask);
}
