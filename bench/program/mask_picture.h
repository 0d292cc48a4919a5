/* SPDX-License-Identifier: MIT */
/* Pictures of a mask's blocks, with axes in tokens and a legend: on a terminal, as PNG and as SVG. */
#ifndef BENCH_PROGRAM_MASK_PICTURE_H
#define BENCH_PROGRAM_MASK_PICTURE_H

#include "bench/program/cli.h"

#define PICTURE_LEAST 800 /* pixels of the longer side */

typedef struct mask_picture {
    const attune_mask *mask;
    const char *text; /* the expression */
    int64_t batch, head, batches, heads;
    int64_t q_len, kv_len;
    uint32_t q_block, kv_block;
    double density, block_density;
    bool exact;      /* the density was counted */
    uint32_t pixels; /* the longer side of a saved picture */
} mask_picture;

/* Prints the picture, at most `columns` characters wide. A character has two rows of cells: half-blocks, in colour if
 * `colour`. False, with an error printed, on failure. */
bool mask_picture_print(const mask_picture *p, FILE *out, uint32_t columns, bool colour);
/* Writes PNG and SVG; the caller checks the stream. False, with an error printed, for other failures. */
bool mask_picture_png(const mask_picture *p, FILE *out);
bool mask_picture_svg(const mask_picture *p, FILE *out);

#endif
