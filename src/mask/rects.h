/* SPDX-License-Identifier: MIT */
/*
 * Rectangles of blocks of one class, from which the lists of a mask are built without sorting.
 *
 * Within one batch and head the rectangles are disjoint. Any two of one class that share a block row are in ascending
 * order of columns, and any two that share a block column in ascending order of rows. Row-by-row order satisfies this,
 * and so does a quadtree visited top left, top right, bottom left, bottom right. Counting and filling then compute the
 * lists and their transposes in two passes.
 */
#ifndef ATTUNE_MASK_RECTS_H
#define ATTUNE_MASK_RECTS_H

#include "mask/mask.h"

typedef enum attune__class {
    ATTUNE__EMPTY,
    ATTUNE__PARTIAL,
    ATTUNE__FULL,
    ATTUNE__UNDECIDED /* never of a rectangle */
} attune__class;

/* Block rows [r0, r1), block columns [c0, c1). */
typedef struct attune__rect {
    int32_t r0, r1, c0, c1;
    attune__class class;
} attune__rect;

/* The rectangles of one batch and head: items[first] .. items[end - 1]. */
typedef struct attune__span {
    size_t first, end;
} attune__span;

typedef struct attune__rects {
    const attune_allocator *allocator;
    attune__rect *items;
    size_t count, capacity;
    attune__span *planes; /* plane_count of them, in the order of the lists' rows */
    size_t plane_count, planes_done;
} attune__rects;

attune_status attune__rects_init(attune__rects *rects, const attune_allocator *allocator, int64_t plane_count);
void attune__rects_finish(attune__rects *rects);
void attune__rects_begin_plane(attune__rects *rects);
/* Merges the rectangle with the previous one if possible. Empty ones are dropped. */
bool attune__rects_add(attune__rects *rects, int32_t r0, int32_t r1, int32_t c0, int32_t c1, attune__class class);
void attune__rects_end_plane(attune__rects *rects);
/* The next plane is the same as the one before it. */
void attune__rects_repeat_plane(attune__rects *rects);

/* ----------------------------------------------------------------------------------------------- building, build.c */

/* Blocks of a mask whose classes another mask has too: block rows [0, rows) and columns [0, columns) of every plane. */
typedef struct attune__kept_blocks {
    const attune_mask *mask;
    int32_t rows, columns;
} attune__kept_blocks;

/* attune__mask_build, which classifies the other blocks alone, within `work`, not the limits of desc. */
attune_status attune__mask_build_from(const attune__kept_blocks *kept, const attune_allocator *allocator,
                                      const attune_mask_desc *desc, const attune_expr *expr,
                                      const attune_array *captures, const attune__value *parameters, attune__work *work,
                                      attune_mask **mask);

/* ------------------------------------------------------------------------------------------------ storage, store.c */

/* Creates a mask without lists: sizes from desc, batch and heads of the lists from stored_*, the expression retained,
 * captures and parameters copied. expr may be NULL. */
attune_status attune__mask_new(const attune_allocator *allocator, const attune_mask_desc *desc, int64_t stored_batch,
                               int64_t stored_heads, const attune_expr *expr, const attune__bindings *bindings,
                               attune_mask **mask);
/* Replaces the expression, captures and parameters of a mask, likewise; of a mask without them too. */
attune_status attune__mask_bind(attune_mask *mask, const attune_expr *expr, const attune__bindings *bindings);
/* Builds the lists and their transposes. A unit of work is a list entry, or a row. */
attune_status attune__mask_store(attune_mask *mask, const attune__rects *rects, attune__work *work);
/* Returns a contiguous row-major copy; NULL, with the error set, on failure. */
void *attune__array_copy(const attune_allocator *allocator, const attune_array *array);
/* The number of elements of an array, which was checked for overflow. */
size_t attune__array_count(const attune_array *array);

/* Creates a dense mask that takes ownership of `data`: contiguous 0 or 1 of [batch or 1, heads or 1, q_len, kv_len]. On
 * failure the caller keeps it. */
attune_status attune__mask_adopt_dense(const attune_allocator *allocator, const attune_mask_desc *desc,
                                       int64_t dense_batch, int64_t dense_heads, uint8_t *data, attune__work *work,
                                       attune_mask **mask);

/* -------------------------------------------------------------------------------------------- reading lists by run */

/* Iterates over a block row as runs of one class, including empty ones, which together cover [0, kv_blocks). */
typedef struct attune__runs {
    const int32_t *partial, *partial_end;
    const int32_t *full, *full_end;
    int32_t c0, c1, columns; /* the current run: [c0, c1) */
    attune__class class;
} attune__runs;

static inline void attune__runs_next(attune__runs *runs)
{
    int32_t c = runs->c0 = runs->c1;
    const int32_t **list = NULL, *end = NULL;
    if (runs->partial < runs->partial_end && *runs->partial == c) {
        runs->class = ATTUNE__PARTIAL;
        list = &runs->partial;
        end = runs->partial_end;
    } else if (runs->full < runs->full_end && *runs->full == c) {
        runs->class = ATTUNE__FULL;
        list = &runs->full;
        end = runs->full_end;
    } else {
        runs->class = ATTUNE__EMPTY;
        c = runs->columns;
        if (runs->partial < runs->partial_end && *runs->partial < c)
            c = *runs->partial;
        if (runs->full < runs->full_end && *runs->full < c)
            c = *runs->full;
        runs->c1 = c;
        return;
    }
    while (*list < end && **list == c) {
        ++*list;
        c++;
    }
    runs->c1 = c;
}

/* Begins with the first run of list `row`: attune__mask_at plus the block row. c0 == columns after the last run. */
static inline attune__runs attune__runs_begin(const attune_mask *mask, int64_t row)
{
    attune__runs runs = {
        .partial = mask->kv.indices + mask->kv.offsets[row],
        .partial_end = mask->kv.indices + mask->kv.offsets[row + 1],
        .full = mask->full_kv.indices + mask->full_kv.offsets[row],
        .full_end = mask->full_kv.indices + mask->full_kv.offsets[row + 1],
        .columns = (int32_t)mask->kv_blocks,
    };
    attune__runs_next(&runs);
    return runs;
}

/* The first of the entries that is not below c. */
static inline const int32_t *attune__runs_seek(const int32_t *entries, const int32_t *end, int32_t c)
{
    while (entries < end) {
        const int32_t *middle = entries + (end - entries) / 2;
        if (*middle < c)
            entries = middle + 1;
        else
            end = middle;
    }
    return entries;
}

/* The same for columns [c0, c1) of the row. */
static inline attune__runs attune__runs_within(const attune_mask *mask, int64_t row, int32_t c0, int32_t c1)
{
    const int32_t *partial = mask->kv.indices + mask->kv.offsets[row];
    const int32_t *partial_end = mask->kv.indices + mask->kv.offsets[row + 1];
    const int32_t *full = mask->full_kv.indices + mask->full_kv.offsets[row];
    const int32_t *full_end = mask->full_kv.indices + mask->full_kv.offsets[row + 1];
    attune__runs runs = {
        .partial = attune__runs_seek(partial, partial_end, c0),
        .partial_end = attune__runs_seek(partial, partial_end, c1),
        .full = attune__runs_seek(full, full_end, c0),
        .full_end = attune__runs_seek(full, full_end, c1),
        .c1 = c0,
        .columns = c1,
    };
    attune__runs_next(&runs);
    return runs;
}

static inline bool attune__runs_done(const attune__runs *runs)
{
    return runs->c0 >= runs->columns;
}

/* In 64 bits, since the product of a block index and a block size may exceed 2^31. */
static inline int64_t attune__min64(int64_t a, int64_t b)
{
    return b < a ? b : a;
}

#endif
