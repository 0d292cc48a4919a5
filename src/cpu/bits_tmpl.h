/* SPDX-License-Identifier: MIT */
/*
 * The bits of a partial tile: st->bits has ldb words for each row, of ATTUNE__PANEL columns each. Included by
 * forward_tmpl.h and backward_tmpl.h after their `state`.
 */

/* st->pairs: bits are not evaluated yet. */
#define UNKNOWN_PAIRS UINT32_MAX

/* Added to st->pairs: the tile is sorted, and places of its rows and columns are after its bits. */
#define SORTED_TILE (1u << 31)

#define CELL_ROWS ATTUNE__CELL_ROWS
/* ATTUNE__PANEL columns each, of the largest tile. */
#define MOST_SPANS 32

/* Rows of a matrix, as a tile of k in its tensor. */
typedef struct source {
    const char *rows;
    ptrdiff_t stride;
    attune_dtype dtype;
} source;

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

static bool is_sorted(const state *st)
{
    return *st->pairs & SORTED_TILE;
}

static size_t allowed_pairs(const state *st)
{
    return *st->pairs & ~SORTED_TILE;
}

static uint16_t *row_places(const attune__cpu_run *run, const state *st)
{
    return st->bits + run->block_m * st->ldb;
}

static uint16_t *column_places(const attune__cpu_run *run, const state *st)
{
    return row_places(run, st) + attune__cpu_pad(run->block_m);
}

/* Sorts a tile if that brings its cost, in pairs of a product, below `cost`. products: that items take of it, all those
 * that share its bits together. */
static void sort_tile(const attune__cpu_run *run, const state *st, size_t rows, const attune__kv_tile *tile,
                      size_t cost, size_t products)
{
    const attune__shape *shape = &run->program->shape;
    const size_t pairs = allowed_pairs(st), words = attune__cpu_pad(tile->count) / ATTUNE__PANEL;
    const size_t whole = rows * words * ATTUNE__PANEL;
    /* Copying rows there and back takes as long as an eighth of the tile's products, and sorting as those of a third of
     * it for one item with head dimension 64 in forward, which has two products. */
    const size_t enough = pairs + pairs / 4, copies = whole / 8;
    const size_t sorting = whole * 86 / ((size_t)(shape->head_dim + shape->head_dim_v) * products);
    if (!attune__cpu_sorts(shape, (uint32_t)run->block_m, (uint32_t)run->block_n) || enough + copies + sorting >= cost)
        return;
    const attune__known_order *k = attune__order_known(st->orders, st->bits, st->ldb, rows, tile->count, enough);
    if (k->cells + copies >= cost)
        return;
    for (size_t r = 0; r < rows; r++)
        memcpy(st->bits + r * st->ldb, k->order.bits[r], words * sizeof *st->bits);
    memcpy(row_places(run, st), k->order.row, rows * sizeof *st->bits);
    memcpy(column_places(run, st), k->order.column, tile->count * sizeof *st->bits);
    *st->pairs |= SORTED_TILE;
}

/* Bytes are a multiple of 16. Calls of memcpy would take longer than the rows of a tile. */
static inline void copy_row(char *to, const char *from, size_t bytes)
{
    typedef struct part {
        uint64_t half[2];
    } part;
    size_t i = 0;
    for (; i + 64 <= bytes; i += 64) {
        part parts[4];
        memcpy(parts, from + i, sizeof parts);
        memcpy(to + i, parts, sizeof parts);
    }
    for (; i < bytes; i += sizeof(part))
        memcpy(to + i, from + i, sizeof(part));
}

/* to[i] = from[at[i]] of rows, */
static void take_rows(REAL *to, const REAL *from, const uint16_t *at, size_t count, size_t ld)
{
    for (size_t i = 0; i < count; i++)
        copy_row((char *)(to + i * ld), (const char *)(from + at[i] * ld), ld * sizeof *to);
}

/* and the reverse. */
static void return_rows(REAL *to, const REAL *from, const uint16_t *at, size_t count, size_t ld)
{
    for (size_t i = 0; i < count; i++)
        copy_row((char *)(to + at[i] * ld), (const char *)(from + i * ld), ld * sizeof *to);
}

/* Likewise of values. */
static void take_values_at(REAL *to, const REAL *from, const uint16_t *at, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = from[at[i]];
}

/* The columns up to the last that some row allows. */
static size_t last_column(const state *st, size_t rows, const attune__kv_tile *tile)
{
    span spans[MOST_SPANS];
    const size_t count = spans_of(st, 0, rows, tile, spans);
    return count && spans[count - 1].end < tile->count ? spans[count - 1].end : tile->count;
}

/* st->at = the place of each of `count` rows or columns. */
static void find_places(const state *st, const uint16_t *order, size_t count)
{
    for (size_t i = 0; i < count; i++)
        st->at[order[i]] = (uint16_t)i;
}

/* The keys of a sorted tile's first `count` columns. */
static void find_keys(const attune__kv_tile *tile, const uint16_t *columns, size_t count, int32_t *keys)
{
    for (size_t i = 0; i < count; i++)
        keys[i] = (int32_t)(tile->kv0 + columns[i]);
}

/* The first `end` of `count` rows in the order of find_places, as they are. They are read as they lie, which processors
 * foresee. */
static source sorted_rows(const state *st, source from, REAL *to, size_t count, size_t end, size_t columns)
{
    const size_t bytes = columns * attune_dtype_size(from.dtype);
    for (size_t r = 0; r < count; r++)
        if (st->at[r] < end)
            copy_row((char *)to + st->at[r] * bytes, from.rows + (ptrdiff_t)r * from.stride, bytes);
    return (source){(const char *)to, (ptrdiff_t)bytes, from.dtype};
}

#include "cpu/kept_tmpl.h"
