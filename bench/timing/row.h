/* SPDX-License-Identifier: MIT */
/* One row of a benchmark, from the public API alone: set up, check against the oracle, time, give everything back. A
 * row never fails the run: what went wrong is its status and message. */
#ifndef BENCH_TIMING_ROW_H
#define BENCH_TIMING_ROW_H

#include "bench/timing/report.h"
#include "bench/workloads/workload.h"

/* What a sample times. A step of training makes the mask anew, uploads it, and goes forwards and backwards. */
typedef enum row_pass { ROW_FORWARD, ROW_BACKWARD, ROW_STEP } row_pass;

typedef struct row_options {
    row_pass pass;
    measure_options measure;
    const attune_kernel_options *kernel; /* NULL = automatic */
    bool check, segments;                /* segments: workloads whose keys lie in several places are run so */
    uint64_t seed;
} row_options;

/* Fills in the row's name, device, shape, status, figures. `w` is as large as it is to run and has a dtype. */
void row_attention(attune_instance *instance, attune_device *device, const workload *w, const row_options *options,
                   report_row *row);
/* Times the building of a block mask. lengths: of the documents that capture `doc` numbers; NULL = the generator's. */
void row_mask(attune_instance *instance, const workload *w, const int64_t *lengths, int64_t length_count,
              const row_options *options, report_row *row);
/* Times calls of what is no part of attune. The row's description is the caller's. */
void row_call(measure_call call, void *context, const char *what, const row_options *options, report_row *row);

#endif
