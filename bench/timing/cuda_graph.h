/* SPDX-License-Identifier: MIT */
/* Calls on a CUDA device that are recorded in a graph once and launched as often as one likes, as engines do with the
 * layers of a step. */
#ifndef BENCH_TIMING_CUDA_GRAPH_H
#define BENCH_TIMING_CUDA_GRAPH_H

#include "bench/timing/report.h"

#include <attune/attune.h>

typedef struct cuda_graph cuda_graph;

/* A graph without calls; false, with the row's status and message, for another device. Close it also after that. */
bool cuda_graph_open(attune_device *device, cuda_graph **graph, report_row *row);
void cuda_graph_close(cuda_graph *graph); /* accepts NULL */

/* Calls on the queue between begin and end are recorded. */
attune_queue *cuda_graph_queue(const cuda_graph *graph);
bool cuda_graph_begin(cuda_graph *graph, report_row *row);
bool cuda_graph_end(cuda_graph *graph, report_row *row);
/* Launches the graph and waits until it is done. */
bool cuda_graph_run(cuda_graph *graph, report_row *row);

#endif
