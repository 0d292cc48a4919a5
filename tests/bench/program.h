/* SPDX-License-Identifier: MIT */
/* The program as a person runs it. ATTUNE_PROGRAM and ATTUNE_SOURCE come from the build. */
#ifndef TESTS_BENCH_PROGRAM_H
#define TESTS_BENCH_PROGRAM_H

#include "tests/oracle/array.h"

/* The output that program_run has read. */
extern char program_output[1 << 16];

/* For a suite: each test has an empty folder of its own. */
void program_enter(void);
void program_leave(void);

/* Runs the program in a shell; both streams go to program_output. Returns its exit status, 128 after a signal. */
int program_run(const char *arguments);
/* Fails without that exit status, or without the words. */
void program_expect(const char *arguments, int status, const char *words);
/* The same of the standard error alone. */
void program_expect_complaint(const char *arguments, int status, const char *words);

/* Writes a file of normal numbers, or of integers that rise every 30 elements. */
void program_save(const char *path, attune_dtype dtype, uint32_t rank, const int64_t *size, uint64_t seed);

#endif
