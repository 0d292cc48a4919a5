/* SPDX-License-Identifier: MIT */
/* A line on a terminal's standard error that says what long work is doing; nothing in a pipe or a file. */
#ifndef BENCH_PROGRAM_PROGRESS_H
#define BENCH_PROGRAM_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    bool terminal, shown;
    double begin, last; /* seconds: of the work, and of the last line */
} progress;

progress progress_begin(void);
/*
 * Replaces the line by "[DONE/TOTAL] TEXT, 12 s, about 40 s left"; without a total only the text and the time. The time
 * left supposes that every step takes as long, and is given after three seconds. At most ten lines a second are shown.
 */
void progress_show(progress *p, double done, double total, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Removes the line, before other output and at the end. */
void progress_clear(progress *p);
/* Seconds since the beginning. */
double progress_seconds(const progress *p);

#endif
