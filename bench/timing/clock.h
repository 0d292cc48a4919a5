/* SPDX-License-Identifier: MIT */
/* A monotonic clock and this process's CPU time, in seconds. */
#ifndef BENCH_TIMING_CLOCK_H
#define BENCH_TIMING_CLOCK_H

double clock_seconds(void);
double clock_cpu_seconds(void);

#endif
