/* SPDX-License-Identifier: MIT */
/* attune explain --ranks: the time of a forward call over several ranks, predicted. */
#ifndef BENCH_PROGRAM_EXPLAIN_RANKS_H
#define BENCH_PROGRAM_EXPLAIN_RANKS_H

#include "bench/program/cli.h"
#include "bench/timing/predict.h"

/* As given; "" = not given. */
typedef struct ranks_options {
    const char *ranks, *link, *exchange, *flops, *layout;
} ranks_options;

typedef struct ranks_asked {
    attune_partition_desc partition; /* ranks 0 = none */
    predict_machine machine;         /* flops 0 = as measured */
} ranks_asked;

/* Prints errors. */
bool ranks_read(const ranks_options *o, const attune_problem *problem, ranks_asked *asked);
/* The name of a layout, and a layout by its name. */
const char *ranks_layout_name(attune_layout layout);
bool ranks_layout(const char *option, const char *name, attune_layout *layout);

/* Builds the mask of the problem, for every pair if it has none, and predicts. Prints errors; release with
 * predict_free. */
attune_status ranks_predict(attune_instance *instance, const attune_problem *problem, const bindings *names,
                            const ranks_asked *asked, prediction *made, attune_partition_stats *stats);
void ranks_print(const ranks_asked *asked, const prediction *p, const attune_partition_stats *stats);
json_t *ranks_json(const ranks_asked *asked, const prediction *p, const attune_partition_stats *stats);

#endif
