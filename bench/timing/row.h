/* SPDX-License-Identifier: MIT */
/* One row of a benchmark, through the public API: set up, compare with the oracle, time, release. A row never fails the
 * run; errors are its status and message. */
#ifndef BENCH_TIMING_ROW_H
#define BENCH_TIMING_ROW_H

#include <attune/distributed.h>

#include "bench/timing/report.h"
#include "bench/workloads/serving.h"
#include "bench/workloads/workload.h"

/* The work of a sample. A training step builds and uploads the mask, and runs forward and backward. Decode is of
 * several ranks, whose keys stay. */
typedef enum row_pass { ROW_FORWARD, ROW_BACKWARD, ROW_STEP, ROW_DECODE } row_pass;

typedef struct row_options {
    row_pass pass;
    measure_options measure;
    const attune_kernel_options *kernel; /* NULL = automatic */
    bool check, segments; /* segments: workloads with segments run over them, instead of over their concatenation */
    uint32_t layers;      /* of a forward pass: calls in a row that are timed, by the host; 0 = single ones */
    bool graph;           /* these as launches of a CUDA graph */
    uint64_t seed;
} row_options;

/*
 * Measures attention and fills in the row: name, device, shape, status, figures. `w` is scaled already and has a dtype.
 */
void row_attention(attune_instance *instance, attune_device *device, const workload *w, const row_options *options,
                   report_row *row);
/* Whether a kernel option is at fault: the planner refuses the row with the options, of which `why` has the message,
 * and not without them. `w` has a dtype. */
bool row_refuses_options(attune_instance *instance, attune_device *device, const workload *w,
                         const row_options *options, failure *why);
bool row_serving_refuses_options(attune_instance *instance, attune_device *device, const serving_workload *w,
                                 attune_dtype dtype, attune_dtype kv_dtype, attune_dtype o_dtype,
                                 const row_options *options, failure *why);
/* Measures a batch over a paged cache: the mean of a layer over the model's pattern. `w` is scaled already; kv_dtype
 * and o_dtype 0 = dtype. Forward alone. */
void row_serving(attune_instance *instance, attune_device *device, const serving_workload *w, attune_dtype dtype,
                 attune_dtype kv_dtype, attune_dtype o_dtype, const row_options *options, report_row *row);
#define ROW_RANKS 16
/* How messages go between ranks. Automatic: peers between CUDA devices, otherwise through host memory. */
typedef enum row_link { ROW_LINK_AUTOMATIC, ROW_LINK_HOST, ROW_LINK_PEERS, ROW_LINK_NCCL } row_link;
typedef struct row_ranks_options {
    uint32_t count;
    attune_layout layout;
    char devices[ROW_RANKS][32]; /* of each rank; those of the CPU have equal shares of its threads */
    row_link link;
    attune_overlap overlap;
    bool send; /* devices read nothing of each other in place */
} row_ranks_options;
/* Measures a call over at most ROW_RANKS ranks, beside one of them alone, the call without its messages, and the
 * messages alone. `device` describes the row. Forward, backward or decode, without segments. */
void row_ranks(attune_instance *instance, attune_device *device, const workload *w, const row_ranks_options *ranks,
               const row_options *options, report_row *row);
/* Measures the building of a block mask. lengths: of the documents in capture `doc`; NULL = the generator's. */
void row_mask(attune_instance *instance, const workload *w, const int64_t *lengths, int64_t length_count,
              const row_options *options, report_row *row);
/* Measures calls of a peer. The caller fills in the row's description. */
void row_call(measure_call call, void *context, const char *what, const row_options *options, report_row *row);

#endif
