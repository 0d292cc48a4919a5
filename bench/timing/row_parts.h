/* SPDX-License-Identifier: MIT */
/* The parts that rows of every kind have. */
#ifndef BENCH_TIMING_ROW_PARTS_H
#define BENCH_TIMING_ROW_PARTS_H

#include "bench/timing/row.h"

#define CHECK_ROWS 64
#define CHECK_WORK 4000000 /* the limit on pairs that the references evaluate, unless that leaves fewer than 8 rows */

/* Set the row's status and message, and return false. */
bool row_fail(report_row *row, report_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool row_fail_call(report_row *row, attune_status status, const char *what);

/* Fills in what a workload on a device has before it is measured; suffix ends the name. A device that the row names
 * already remains. */
void row_describe(attune_device *device, const workload *w, const char *kind, const char *suffix,
                  const row_options *options, report_row *row);
/* The forward problem of a workload, without its mask. */
attune_problem row_problem(const workload *w, const attention *a, bool lse);
/* Compares some rows of o with the oracle. more: what is added to the bound of the largest error. */
bool row_check_o(const attention *a, const array *o, uint64_t seed, double more, report_row *row);

/*
 * Checks gradients by two identities that hold for any mask and score expression: o is linear in v, so that <d_v, v> =
 * <d_o, o>; and scores depend on q and k only through their product, so that <d_q, q> = <d_k, k>. The tests compare the
 * elements with the oracle.
 */
bool row_check_identities(const attention *a, const array *o, const array *d_o, const array *d_q, const array *d_k,
                          const array *d_v, report_row *row);

/* Whether the planner refuses the problem with the options, of which `why` has the message, and not without them. */
bool row_problem_refuses_options(attune_device *device, const attune_problem *problem,
                                 const attune_kernel_options *options, failure *why);
/* Creates a plan twice, with a cold and with a warm cache, and adds the times to the row's. */
bool row_plan(attune_device *device, const row_options *options, const attune_problem *problem, const char *what,
              attune_plan **plan, report_row *row);
/* Sets the clock that measures the time, and the threads that run. */
void row_clock(const attune_device_info *info, report_row *row);
void row_describe_plan(const attune_plan *plan, report_row *row);

/* Space for the references of `rows` rows of `dim` columns; release it also after a failure. */
bool row_result_create(reference_result *r, int64_t rows, int64_t dim);
void row_result_free(reference_result *r);

/* Measures `options->layers` calls in a row, as those of a model's layers: `call` makes one on a queue, and with
 * `seconds`, which is of the last, waits for it (attune_forward_args.seconds). With `options->graph` they are recorded
 * in a CUDA graph, without `seconds`, and launches of that are measured. The time is that of one call. */
typedef attune_status (*row_queued)(void *context, attune_queue *queue, uint32_t layer, double *seconds);
bool row_layers(attune_device *device, row_queued call, void *context, const row_options *options, report_row *row,
                attune_status *status);

/* Records why a measurement has no time. */
void row_finish(report_row *row, bool good, const char *what, attune_status status);

#endif
