/* SPDX-License-Identifier: MIT */
/* Disturbances of a measurement: other processes, and clocks that change. */
#ifndef BENCH_TIMING_NOISE_H
#define BENCH_TIMING_NOISE_H

#include "bench/timing/statistics.h"

/* The state of the machine at one time. */
typedef struct noise_mark {
    double seconds;   /* of the monotonic clock */
    double busy, own; /* CPU seconds of all processes since boot, and of this one; busy < 0: unknown */
    double clock;     /* Hz of the fastest core; 0 = unknown */
} noise_mark;

noise_mark noise_now(void);
/* Fills in others, clock_begin, clock_end, drift and drift_p of a measurement between two marks. */
void noise_between(const noise_mark *begin, const noise_mark *end, measurement *m);

/* Reads the CPU seconds of all processes from the text of /proc/stat, and the fastest core's Hz from that of
 * /proc/cpuinfo. -1 and 0 where the text does not have them. */
double noise_busy(const char *stat, double ticks_per_second);
double noise_clock(const char *cpuinfo);

#endif
