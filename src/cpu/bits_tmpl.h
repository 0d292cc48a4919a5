/* SPDX-License-Identifier: MIT */
/*
 * The bits of a partial tile: st->bits has ldb words for each row, of ATTUNE__PANEL columns each. Included by
 * forward_tmpl.h and backward_tmpl.h after their `state`.
 */

/* st->pairs: bits are not evaluated yet. */
#define UNKNOWN_PAIRS UINT32_MAX

/* Products of partial tiles skip cells, of so many rows and a panel of columns, without an allowed pair. */
#define CELL_ROWS 8
/* ATTUNE__PANEL columns each, of the largest tile. */
#define MOST_SPANS 32

/* Adjacent columns of a tile, from a multiple of a panel on. */
typedef struct span {
    size_t first, end;
} span;

static size_t rows_of_cells(size_t rows, size_t r)
{
    return rows - r < CELL_ROWS ? rows - r : CELL_ROWS;
}

/* The spans of columns that some of `rows` rows from r on allows. */
static size_t spans_of(const state *st, size_t r, size_t rows, const attune__kv_tile *tile, span *spans)
{
    const size_t words = attune__cpu_pad(tile->count) / ATTUNE__PANEL;
    size_t count = 0;
    for (size_t w = 0; w < words; w++) {
        uint16_t any = 0;
        for (size_t i = 0; i < rows; i++)
            any |= st->bits[(r + i) * st->ldb + w];
        if (!any)
            continue;
        if (!count || spans[count - 1].end != w * ATTUNE__PANEL)
            spans[count++].first = w * ATTUNE__PANEL;
        spans[count - 1].end = (w + 1) * ATTUNE__PANEL;
    }
    return count;
}

/* The allowed columns of a row, in st->at. */
static size_t columns_of(const state *st, size_t r, const attune__kv_tile *tile)
{
    size_t count = 0;
    for (size_t w = 0; w * ATTUNE__PANEL < tile->count; w++)
        for (uint32_t word = st->bits[r * st->ldb + w]; word; word &= word - 1)
            st->at[count++] = (uint16_t)(w * ATTUNE__PANEL + (size_t)__builtin_ctz(word));
    return count;
}

/* With fewer rows, what they share costs more than it saves. */
#define SHARING_ROWS 4

/* Evaluates the mask for the `queries` rows of head h from q0 on, which are those of the tile from row0 on. Returns the
 * number of allowed pairs. */
static size_t allow_head(const attune__cpu_run *run, int64_t b, int64_t h, int64_t q0, size_t queries, const state *st,
                         const attune__kv_tile *tile, size_t row0)
{
    const attune_mask *mask = run->call->mask;
    const attune__bindings bindings = {mask->captures, mask->parameters};
    size_t pairs = 0, allowed = 0;
    for (size_t q = 0; q < queries; q++) {
        const size_t first = q / ATTUNE__TILE_ROWS * ATTUNE__TILE_ROWS, left = queries - q;
        const attune__row row = attune__mask_row(mask, b, h, q0 + (int64_t)q);
        uint16_t *bits = st->bits + (row0 + q) * st->ldb;
        bool changed = true;
        if (queries < SHARING_ROWS) {
            attune__expr_mask_row(mask->expr, &bindings, &row, (int32_t)tile->kv0, tile->count, st->expr, st->allowed);
        } else {
            if (q == first)
                attune__expr_tile_begin(mask->expr, &bindings, &row,
                                        left < ATTUNE__TILE_ROWS ? (uint32_t)left : ATTUNE__TILE_ROWS,
                                        (int32_t)tile->kv0, tile->count, st->expr);
            changed = attune__expr_tile_row(mask->expr, &bindings, (uint32_t)(q - first), st->expr, st->allowed);
        }
        if (changed)
            allowed = run->device->KERNELS.row_bits(bits, st->allowed, tile->count);
        else
            memcpy(bits, bits - st->ldb, st->ldb * sizeof *bits);
        pairs += allowed;
    }
    return pairs;
}

#include "cpu/kept_tmpl.h"
