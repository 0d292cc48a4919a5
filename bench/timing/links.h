/* SPDX-License-Identifier: MIT */
/* The devices of ranks in this process, and the transports between them. */
#ifndef BENCH_TIMING_LINKS_H
#define BENCH_TIMING_LINKS_H

#include "bench/timing/row.h"
#include "tests/distributed/ranks.h"

typedef struct links {
    uint32_t ranks;
    attune_instance *instances[MOST_RANKS]; /* of CPU ranks, which have threads of their own */
    attune_device *devices[MOST_RANKS];
    rank_group group;
    row_link link; /* that is used: not automatic */
    struct links_cuda *cuda;
} links;

/* Opens the first `ranks` devices, those of a CPU with so many threads, and connects them. False sets the row's
 * failure; links_free is due nonetheless. */
bool links_make(attune_instance *instance, const row_ranks_options *o, uint32_t ranks, uint32_t threads, links *l,
                report_row *row);
attune_transport links_transport(links *l, uint32_t rank);
const char *links_name(row_link link);
void links_free(links *l);

#endif
