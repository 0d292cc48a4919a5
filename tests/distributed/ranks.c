/* SPDX-License-Identifier: MIT */
#include "distributed/ranks.h"

#include <stdlib.h>
#include <string.h>

void rank_group_init(rank_group *group, uint32_t size)
{
    memset(group, 0, sizeof *group);
    group->size = size;
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->moved, NULL);
    for (uint32_t r = 0; r < size; r++)
        group->ends[r] = (struct rank_end){.group = group, .rank = r};
}

void rank_group_finish(rank_group *group)
{
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->moved);
}

/* Other ranks' memory may be read from here to leave(). After an abort nobody begins, and nobody returns to where its
 * memory is freed before all that have begun are done. */
static bool enter(rank_group *group)
{
    pthread_mutex_lock(&group->lock);
    const bool may = !group->aborted;
    group->readers += may;
    pthread_mutex_unlock(&group->lock);
    return may;
}

static void leave(rank_group *group)
{
    pthread_mutex_lock(&group->lock);
    group->readers--;
    pthread_cond_broadcast(&group->moved);
    pthread_mutex_unlock(&group->lock);
}

static void wait_for_readers(rank_group *group)
{
    while (group->readers)
        pthread_cond_wait(&group->moved, &group->lock);
}

/* Waits until all ranks are here; fails if one of them aborted. */
static attune_status meet(rank_group *group)
{
    pthread_mutex_lock(&group->lock);
    const uint64_t round = group->round;
    if (!group->aborted && ++group->arrived == group->size) {
        group->arrived = 0;
        group->round++;
        pthread_cond_broadcast(&group->moved);
    }
    while (group->round == round && !group->aborted)
        pthread_cond_wait(&group->moved, &group->lock);
    /* Who met before another aborted has met. */
    const bool met = group->round != round;
    if (!met)
        wait_for_readers(group);
    pthread_mutex_unlock(&group->lock);
    return met ? ATTUNE_OK : ATTUNE_UNAVAILABLE;
}

static bool fails(struct rank_end *end, bool here)
{
    const rank_fault *fault = &end->group->fault;
    if (!here || fault->rank != end->rank || end->calls++ != fault->after)
        return false;
    if (fault->lose)
        fault->lose(fault->device);
    return !fault->lose;
}

static attune_status gather(void *user, const void *mine, void *all, size_t size)
{
    struct rank_end *end = user;
    rank_group *group = end->group;
    if (fails(end, group->fault.gather))
        return ATTUNE_IO;
    group->gathered[end->rank] = mine;
    const attune_status status = meet(group);
    if (status != ATTUNE_OK)
        return status;
    if (enter(group)) {
        for (uint32_t r = 0; r < group->size; r++)
            memcpy((char *)all + r * size, group->gathered[r], size);
        leave(group);
    }
    return meet(group);
}

/* The n-th message from a peer is the n-th that it sends here. */
static attune_status copy(struct rank_end *end)
{
    rank_group *group = end->group;
    uint32_t next[MOST_RANKS] = {0};
    for (uint32_t i = 0; i < end->receive_count; i++) {
        const attune_message *to = &end->receives[i];
        const attune_message *sends = group->sends[to->peer];
        uint32_t *n = &next[to->peer];
        while (*n < group->send_count[to->peer] && sends[*n].peer != end->rank)
            ++*n;
        if (*n == group->send_count[to->peer] || sends[*n].size != to->size)
            return ATTUNE_INTERNAL;
        memcpy(to->memory, sends[*n].memory, to->size);
        ++*n;
    }
    for (uint32_t peer = 0; peer < group->size; peer++)
        for (uint32_t n = next[peer]; n < group->send_count[peer]; n++)
            if (group->sends[peer][n].peer == end->rank)
                return ATTUNE_INTERNAL;
    return ATTUNE_OK;
}

static attune_status complete(struct rank_end *end)
{
    attune_status copied = ATTUNE_OK;
    if (enter(end->group)) {
        copied = copy(end);
        leave(end->group);
    }
    const attune_status met = meet(end->group);
    return copied != ATTUNE_OK ? copied : met;
}

static attune_status begin(void *user, const attune_message *sends, uint32_t send_count, const attune_message *receives,
                           uint32_t receive_count, attune_queue *queue)
{
    struct rank_end *end = user;
    rank_group *group = end->group;
    (void)queue;
    if (fails(end, group->fault.exchange)) {
        /* Leaves a message. */
        (void)attune_buffer_read(NULL, 0, NULL, 1);
        return ATTUNE_IO;
    }
    group->sends[end->rank] = sends;
    group->send_count[end->rank] = send_count;
    end->receives = receives;
    end->receive_count = receive_count;
    return meet(group);
}

static attune_status begin_and_complete(void *user, const attune_message *sends, uint32_t send_count,
                                        const attune_message *receives, uint32_t receive_count, attune_queue *queue)
{
    const attune_status status = begin(user, sends, send_count, receives, receive_count, queue);
    return status == ATTUNE_OK ? complete(user) : status;
}

static attune_status finish(void *user, attune_queue *queue)
{
    struct rank_end *end = user;
    (void)queue;
    return fails(end, end->group->fault.finish) ? ATTUNE_IO : complete(end);
}

static void abort_all(void *user)
{
    rank_group *group = ((struct rank_end *)user)->group;
    pthread_mutex_lock(&group->lock);
    group->aborted = true;
    pthread_cond_broadcast(&group->moved);
    wait_for_readers(group);
    pthread_mutex_unlock(&group->lock);
}

attune_transport rank_transport(rank_group *group, uint32_t rank, bool late)
{
    return (attune_transport){.struct_size = sizeof(attune_transport),
                              .rank = rank,
                              .size = group->size,
                              .user = &group->ends[rank],
                              .gather = gather,
                              .exchange = late ? begin : begin_and_complete,
                              .finish = late ? finish : NULL,
                              .abort = abort_all,
                              .host_memory = true};
}

typedef struct runner {
    void (*body)(void *context, uint32_t rank);
    void *context;
    uint32_t rank;
} runner;

static void *start(void *argument)
{
    const runner *r = argument;
    r->body(r->context, r->rank);
    return NULL;
}

void rank_group_run(rank_group *group, void (*body)(void *context, uint32_t rank), void *context)
{
    pthread_t threads[MOST_RANKS];
    runner runners[MOST_RANKS];
    for (uint32_t r = 0; r < group->size; r++) {
        runners[r] = (runner){body, context, r};
        if (pthread_create(&threads[r], NULL, start, &runners[r]))
            abort();
    }
    for (uint32_t r = 0; r < group->size; r++)
        pthread_join(threads[r], NULL);
}
