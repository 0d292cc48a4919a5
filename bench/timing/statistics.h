/* SPDX-License-Identifier: MIT */
/* The samples of a measurement, quantiles and the U test. */
#ifndef BENCH_TIMING_STATISTICS_H
#define BENCH_TIMING_STATISTICS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct measurement {
    double *samples; /* seconds per call, in order of measurement; owned */
    double *cpu;     /* CPU seconds of the process per call; likewise */
    uint32_t count;
    uint32_t warmup;     /* calls done */
    uint64_t iterations; /* calls in a sample */
    double median, p10, p90, mean, deviation, least, most;
    double others;                 /* share of the CPUs that other processes used; -1 = unknown */
    double clock_begin, clock_end; /* Hz of the fastest core; 0 = unknown */
    double drift, drift_p;         /* second half of the samples over the first, less 1, and the U test's p */
    bool cut;                      /* ended by timeout or stop before the repetitions were done */
} measurement;

/* Computes the statistics from samples and count. */
void statistics_finish(measurement *m);
void statistics_free(measurement *m); /* accepts a zeroed one */

/* The p-th quantile (0 to 1) of a sorted list, linear between neighbours (type 7 of Hyndman & Fan, 1996). */
double statistics_quantile(const double *sorted, uint32_t count, double p);

/*
 * The two-sided p-value of Mann and Whitney's U test (1947) that two samples come from one distribution: exact up to 20
 * samples on each side if there are no ties, else the normal approximation with tie and continuity correction. 1 if
 * either is empty.
 */
double statistics_mann_whitney(const double *a, uint32_t a_count, const double *b, uint32_t b_count);

#endif
