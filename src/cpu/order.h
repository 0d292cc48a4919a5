/* SPDX-License-Identifier: MIT */
/*
 * An order of a tile's rows and columns that brings its allowed pairs together: rows sorted by their bits, then columns
 * by theirs, as numbers. Equal rows become adjacent, as those of a dilated window with the same remainder or of a grid
 * with the same column; rows that allow more and more keys, as of a random order of tokens, become a staircase.
 */
#ifndef ATTUNE_CPU_ORDER_H
#define ATTUNE_CPU_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan/layout_cpu.h"

#define ATTUNE__ORDER_MOST  ATTUNE__CPU_SORTED
#define ATTUNE__ORDER_WORDS (ATTUNE__ORDER_MOST / 16)
/* Products of partial tiles skip cells, of so many rows and a word's 16 columns, without an allowed pair. */
#define ATTUNE__CELL_ROWS 8

typedef struct attune__order {
    uint16_t bits[ATTUNE__ORDER_MOST][ATTUNE__ORDER_WORDS]; /* of the sorted tile; 0 past its last row and column */
    uint16_t row[ATTUNE__ORDER_MOST], column[ATTUNE__ORDER_MOST]; /* of the tile, in the new order */
} attune__order;

/* bits: ldb words for each row, of 16 columns each, 0 past the last column. The last column, and row, is the highest
 * digit, or the first: neither is the better one for all tiles. */
void attune__order_find(const uint16_t *bits, size_t ldb, size_t rows, size_t columns, bool first,
                        attune__order *order);

/* The last orders that a thread found: of a mask that depends on distances, or on the places of a grid, most tiles have
 * equal bits. */
typedef struct attune__known_order {
    uint64_t hash;
    size_t rows, columns;                                   /* rows 0 = no entry */
    size_t cells;                                           /* attune__order_cells of the sorted tile */
    uint16_t bits[ATTUNE__ORDER_MOST][ATTUNE__ORDER_WORDS]; /* of the tile as it is */
    attune__order order;
} attune__known_order;

#define ATTUNE__KNOWN_ORDERS 8
typedef struct attune__known_orders {
    attune__known_order order[ATTUNE__KNOWN_ORDERS];
    size_t next; /* to be replaced */
} attune__known_orders;
_Static_assert(sizeof(attune__known_orders) <= ATTUNE__CPU_ORDERS, "ATTUNE__CPU_ORDERS");

void attune__order_begin(attune__known_orders *known);

/* The better order of both highest digits, but not the second where the first has at most `enough` pairs of cells. */
const attune__known_order *attune__order_known(attune__known_orders *known, const uint16_t *bits, size_t ldb,
                                               size_t rows, size_t columns, size_t enough);

/* The pairs of the cells that have an allowed pair. */
size_t attune__order_cells(const uint16_t *bits, size_t ldb, size_t rows, size_t words);

#endif
