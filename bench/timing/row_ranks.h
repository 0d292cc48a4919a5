/* SPDX-License-Identifier: MIT */
/* Rows of several ranks, whether they are threads or processes. */
#ifndef BENCH_TIMING_ROW_RANKS_H
#define BENCH_TIMING_ROW_RANKS_H

#include "bench/timing/row_parts.h"
#include "bench/timing/share.h"

typedef struct ranks_setup {
    attention a;
    attune_mask *mask;
    attune_problem problem;
    attune_partition *one, *all; /* of one rank, and of all */
    array o;                     /* for the result of all ranks */
    share_gradients gradients;   /* of ROW_BACKWARD: d_o, and those for the results */
} ranks_setup;

/* Fills in the row's description and the figures of its partition. The same on every rank. Release the setup also after
 * a failure, which is the row's. */
bool ranks_setup_make(attune_instance *instance, attune_device *device, const workload *w, uint32_t ranks,
                      attune_layout layout, const row_options *options, ranks_setup *s, report_row *row);
void ranks_setup_free(ranks_setup *s);

#endif
