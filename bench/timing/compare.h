/* SPDX-License-Identifier: MIT */
/* Comparison of a run with an earlier one, with a test of significance. */
#ifndef BENCH_TIMING_COMPARE_H
#define BENCH_TIMING_COMPARE_H

#include "bench/timing/report.h"

#define COMPARE_LEAST_SAMPLES 9    /* on each side, for a test of significance: Google Benchmark's figure */
#define COMPARE_SIGNIFICANCE  0.05 /* p below this is a difference */

typedef enum compare_verdict {
    COMPARE_SAME = 0,
    COMPARE_FASTER = 1,
    COMPARE_SLOWER = 2,
    COMPARE_UNKNOWN = 3, /* missing on one side, failed, or too few samples */
    COMPARE_LOST = 4,    /* a time in the baseline and none now, by compare_lose */
    COMPARE_VERDICTS
} compare_verdict;

typedef struct comparison {
    compare_verdict verdict;
    double base, now; /* medians, seconds; 0 = missing */
    double change;    /* now / base - 1 */
    double p;         /* of the U test; -1 = no test */
} comparison;

/* Samples in seconds. A change of the medians below `floor` (0.02 is 2 percent) is SAME for any p, since repeated runs
 * on one machine differ by as much. */
comparison compare_samples(const double *base, uint32_t base_count, const double *now, uint32_t now_count,
                           double floor);
const char *compare_verdict_string(compare_verdict verdict); /* "SAME", "FASTER", "SLOWER", "????", "LOST" */
/* Of a row that should have a time now: one that had a time in the baseline and has none is LOST. */
void compare_lose(comparison *c);

typedef struct baseline_row {
    char *name;
    double *samples; /* seconds */
    uint32_t count;
    bool failed;
} baseline_row;

/* Of the rows of one device and type, where a run had several scales. */
typedef struct baseline_part {
    char key[48]; /* "cuda:0 f16" */
    double scale;
} baseline_part;

#define BASELINE_PARTS 64

typedef struct baseline {
    baseline_row *rows;
    uint32_t row_count, part_count;
    baseline_part parts[BASELINE_PARTS];
    double scale;  /* of the run; 0 = not recorded, or in `parts` */
    uint64_t seed; /* 0 = not recorded */
} baseline;

/* Reads a file of report_write_json, or any file of Google Benchmark's schema. The file is untrusted. */
bool baseline_load(const char *path, baseline *b, failure *why);
bool baseline_parse(const char *text, size_t length, const char *name, baseline *b, failure *why);
const baseline_row *baseline_find(const baseline *b, const char *name);
/* The scale of a device's rows of a type; 0 = not recorded. */
double baseline_scale(const baseline *b, const char *device, const char *dtype);
void baseline_free(baseline *b); /* accepts a zeroed one */

/* The parts of a comparison: its header, a row followed by a remark, and the number of rows with each verdict. */
void compare_write_head(report_format format, FILE *out);
void compare_write_line(const char *name, const comparison *c, const char *note, report_format format, FILE *out);
void compare_write_counts(const uint32_t counts[COMPARE_VERDICTS], FILE *out);
/* Writes a line for each row of either side. Returns the number of SLOWER and LOST rows; *compared receives the number
 * of rows with times on both sides. Rows that the report does not have are not LOST: it may have had a choice. */
uint32_t compare_write(const baseline *b, const report *r, double floor, report_format format, FILE *out,
                       uint32_t *compared);

#endif
