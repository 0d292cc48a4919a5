/* SPDX-License-Identifier: MIT */
/* The time of a forward call over several ranks, from a partition, the speed of a device and of its link. Pure: no
 * device, no clock. */
#ifndef BENCH_TIMING_PREDICT_H
#define BENCH_TIMING_PREDICT_H

#include <attune/distributed.h>

/* The speed of a rank and of its link, the same for all ranks. */
typedef struct predict_machine {
    double flops;    /* FLOP/s of the kernel, of the pairs in blocks that it computes */
    double link;     /* bytes/s of a rank, to all others together and from them at the same time */
    double exchange; /* seconds that an exchange takes at least */
} predict_machine;

/* A rank's call: keys of others arrive while it computes the own ones, then it computes theirs. */
typedef struct predict_rank {
    double own, others;      /* seconds of computing */
    double exchange;         /* seconds until the rank has sent and received */
    double seconds;          /* of the call: predict_seconds */
    double received, sent;   /* bytes */
    uint32_t senders, peers; /* ranks that it receives from, and that it sends to */
} predict_rank;

static inline double predict_seconds(double own, double exchange, double others)
{
    return (own > exchange ? own : exchange) + others;
}

typedef struct prediction {
    double one;            /* seconds on one device */
    double seconds;        /* on all: of the slowest rank */
    uint32_t slowest;      /* that rank */
    double hidden;         /* share of the time of exchanges under which own keys are computed; 1 without exchanges */
    double received, ring; /* bytes received by all ranks, and what they receive in a ring */
    double block_seconds;  /* of a full block of one batch and head */
    predict_rank *rank;    /* ranks; owned */
    uint32_t ranks;
} prediction;

/*
 * partition and mask belong together, and to the problem: its lengths are the mask's. Merging, launches and contention
 * of links are not counted. Returns an error of the library's, INVALID_ARGUMENT if lists are missing and
 * OUT_OF_HOST_MEMORY; release with predict_free.
 */
attune_status predict(const attune_partition *partition, const attune_mask *mask, const attune_problem *problem,
                      const predict_machine *machine, prediction *made);
void predict_free(prediction *made); /* accepts a zeroed one */

#endif
