/* SPDX-License-Identifier: MIT */
/* Repeated timing. A sample is the mean of `iterations` calls, as many as min_time requires, so that
 * a call of microseconds is measured as precisely as one of seconds. */
#ifndef BENCH_TIMING_MEASURE_H
#define BENCH_TIMING_MEASURE_H

#include "bench/timing/statistics.h"

#include <signal.h>

typedef struct measure_options {
    uint32_t repetitions; /* samples; at least 1 */
    uint32_t warmup;      /* calls before the first sample */
    double warmup_time;   /* the least total seconds of the warm-up: the clocks of an idle GPU rise slowly */
    double min_time;      /* the least total seconds of the samples */
    double timeout;       /* seconds, warm-up included, after which no further call begins; 0 = none */
    const volatile sig_atomic_t *stop; /* not NULL: no further call begins once it is not 0 */
} measure_options;

/* Does the work once and stores its seconds; false ends the measurement. */
typedef bool (*measure_call)(void *context, double *seconds);

/* Runs a measurement. False if a call failed or there is no sample; samples so far are kept. */
bool measure_run(const measure_options *options, measure_call call, void *context, measurement *m);

#endif
