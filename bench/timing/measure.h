/* SPDX-License-Identifier: MIT */
/* Repeated timing and its statistics. A sample is the mean of `iterations` calls, as many as min_time requires, so that
 * a call of microseconds is measured as precisely as one of seconds. */
#ifndef BENCH_TIMING_MEASURE_H
#define BENCH_TIMING_MEASURE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct measure_options {
    uint32_t repetitions; /* samples; at least 1 */
    uint32_t warmup;      /* calls before the first sample */
    double warmup_time;   /* the least total seconds of the warm-up: the clocks of an idle GPU rise slowly */
    double min_time;      /* the least total seconds of the samples */
    double timeout;       /* seconds, warm-up included, after which no further call begins; 0 = none */
    const volatile sig_atomic_t *stop; /* not NULL: no further call begins once it is not 0 */
} measure_options;

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

/* Does the work once and stores its seconds; false ends the measurement. */
typedef bool (*measure_call)(void *context, double *seconds);

/* Runs a measurement. False if a call failed or there is no sample; samples so far are kept. */
bool measure_run(const measure_options *options, measure_call call, void *context, measurement *m);
/* Computes the statistics from samples and count. */
void measure_finish(measurement *m);
void measure_free(measurement *m); /* accepts a zeroed one */

/* The p-th quantile (0 to 1) of a sorted list, linear between neighbours (type 7 of Hyndman & Fan, 1996). */
double measure_quantile(const double *sorted, uint32_t count, double p);

/*
 * The two-sided p-value of Mann and Whitney's U test (1947) that two samples come from one distribution: exact up to 20
 * samples on each side if there are no ties, else the normal approximation with tie and continuity correction. 1 if
 * either is empty.
 */
double measure_mann_whitney(const double *a, uint32_t a_count, const double *b, uint32_t b_count);

/* A monotonic clock and this process's CPU time, in seconds. */
double measure_clock(void);
double measure_cpu_clock(void);

#endif
