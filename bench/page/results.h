/* SPDX-License-Identifier: MIT */
/* Files of results: those of attune bench --json and others in Google Benchmark's schema, and those that
 * bench/results/measure.py writes, which have sections. The files are untrusted. */
#ifndef BENCH_PAGE_RESULTS_H
#define BENCH_PAGE_RESULTS_H

#include <jansson.h>

#include "bench/timing/compare.h"

typedef struct results_row {
    char *key;         /* the section and the name, by which rows of two files are compared */
    const json_t *row; /* of `groups` */
    const char *group; /* the section's title, "" without sections */
    double *samples;   /* seconds; p10, median and p90 where the file has no samples */
    uint32_t count;
    bool failed;
} results_row;

typedef struct results {
    char *label;    /* the file's name, without its folder and ".json" */
    json_t *groups; /* [{"title", "command", "context", "rows"}], of known fields with checked types */
    results_row *rows;
    uint32_t row_count;
} results;

/* any_device: keys have no device, so that rows of different devices are compared; then two rows of a file with one key
 * are an error. */
bool results_load(const char *path, bool any_device, results *r, failure *why);
void results_free(results *r); /* accepts a zeroed one */

/* {"files", "comparisons", "noise"}: what the page shows. The first file is the baseline of the others. NULL without
 * memory. */
json_t *results_page(const results *list, uint32_t count, double noise);
/* Writes the page; false if memory or the stream fails. */
bool results_write_page(const results *list, uint32_t count, double noise, FILE *out);
/* Writes a line for each row of either side, as compare_write does. Returns the number of SLOWER and LOST rows; a row
 * that `now` does not have is LOST, too. */
uint32_t results_compare(const results *base, const results *now, double noise, FILE *out, uint32_t *compared);

#endif
