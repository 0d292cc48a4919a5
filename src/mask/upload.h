/* SPDX-License-Identifier: MIT */
/*
 * A mask as the kernels of shaders/ read it, in one piece of memory: a table of the rows of blocks, the entries of all
 * rows, the same of all columns, the expression's table and its captures. The two lists of a row become one in
 * ascending order of keys, so that the order of summation does not depend on how blocks were classified.
 */
#ifndef ATTUNE_MASK_UPLOAD_H
#define ATTUNE_MASK_UPLOAD_H

#include "mask/mask.h"

/* A row, or a column, of blocks: where its entries are, `block << 1 | partial`, ascending. */
typedef struct attune__upload_row {
    uint64_t at;
    uint32_t count, pad;
} attune__upload_row;

/* Offsets of the lists of both directions, from `rows` on. */
typedef struct attune__upload_lists {
    uint64_t rows, entries, columns, column_entries, end;
} attune__upload_lists;
/* Of so many rows and columns, each direction with so many entries, from `first` on, rounded up to 16 bytes. */
attune__upload_lists attune__upload_lists_make(uint64_t first, uint64_t rows, uint64_t columns, uint64_t entries);

typedef struct attune__upload {
    attune__upload_lists lists;
    uint64_t table;                             /* offsets of the expression's table */
    uint64_t captures[ATTUNE_EXPR_MAX_SYMBOLS]; /* and of each capture */
    uint64_t size;
    uint32_t longest, longest_column; /* blocks of a row, and of a column, at most */
    char *memory;                     /* of `size` bytes, for attune__free */
} attune__upload;

/* With memory of zeros. UNSUPPORTED if the mask has too many rows of blocks for the device with this id. */
attune_status attune__upload_make(const attune_allocator *allocator, const attune_mask *mask, const char *device,
                                  uint64_t table_size, attune__upload *upload);
/* Writes all but the table; `base` is where the memory will be. */
void attune__upload_write(const attune_mask *mask, uint64_t base, attune__upload *upload);

#endif
