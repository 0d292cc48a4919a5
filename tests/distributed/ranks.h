/* SPDX-License-Identifier: MIT */
/* Threads of one process as ranks: the transport of attune/threads.h, whose callbacks fail on request, and calls on all
 * of them. */
#ifndef TESTS_DISTRIBUTED_RANKS_H
#define TESTS_DISTRIBUTED_RANKS_H

#include <attune/threads.h>

#define MOST_RANKS 16

/* Which callback of which rank fails, once it has been called as often as `after` says. With `lose` it calls that, and
 * succeeds. */
typedef struct rank_fault {
    bool gather, exchange, finish;
    uint32_t rank;
    int after;
    void (*lose)(void *device);
    void *device;
} rank_fault;

typedef struct rank_group {
    attune_threads threads;
    uint32_t size;
    rank_fault fault;
    bool one_at_a_time; /* one rank at a time computes: the others wait, or have met */
    bool lends;         /* ranks of the CPU, which read each other's memory */
    pthread_mutex_t compute;
    struct rank_end {
        struct rank_group *group;
        attune_transport shared; /* of attune/threads.h */
        int calls, exchanges;
        bool late, reading; /* reading: between lend and finish */
        struct {
            const attune_message *sends;
            uint32_t count;
        } own[2];              /* lent in turn */
        uint64_t begun, ended; /* loans; with the threads' lock */
    } ends[MOST_RANKS];
} rank_group;

void rank_group_init(rank_group *group, uint32_t size);
void rank_group_finish(rank_group *group);
/* late: messages are copied in `finish`, not in `exchange`. */
attune_transport rank_transport(rank_group *group, uint32_t rank, bool late);

/* Runs body on a thread for each rank, and waits for all. */
void rank_group_run(rank_group *group, void (*body)(void *context, uint32_t rank), void *context);

/* Rank 0 of `size`, without others: these send what it does, and no keys. */
typedef struct lone_rank {
    uint32_t size;
    int aborts;
} lone_rank;

attune_transport lone_transport(lone_rank *lone);

#endif
