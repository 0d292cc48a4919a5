/* SPDX-License-Identifier: MIT */
#include "distributed/ranks.h"

#include <stdlib.h>
#include <string.h>

void rank_group_init(rank_group *group, uint32_t size)
{
    memset(group, 0, sizeof *group);
    group->size = size;
    pthread_mutex_init(&group->compute, NULL);
    if (size > MOST_RANKS || attune_threads_init(&group->threads, size) != ATTUNE_OK)
        abort();
    for (uint32_t r = 0; r < size; r++) {
        group->ends[r].group = group;
        attune_threads_transport(&group->threads, r, &group->ends[r].shared);
    }
}

void rank_group_finish(rank_group *group)
{
    attune_threads_finish(&group->threads);
    pthread_mutex_destroy(&group->compute);
}

static void begin_computing(rank_group *group)
{
    if (group->one_at_a_time)
        pthread_mutex_lock(&group->compute);
}

static void end_computing(rank_group *group)
{
    if (group->one_at_a_time)
        pthread_mutex_unlock(&group->compute);
}

static bool fails(struct rank_end *end, bool here)
{
    const rank_fault *fault = &end->group->fault;
    if (!here || fault->rank != end->shared.rank || end->calls++ != fault->after)
        return false;
    if (fault->lose)
        fault->lose(fault->device);
    return !fault->lose;
}

static attune_status gather(void *user, const void *mine, void *all, size_t size)
{
    struct rank_end *end = user;
    if (fails(end, end->group->fault.gather))
        return ATTUNE_IO;
    end_computing(end->group);
    const attune_status status = end->shared.gather(end->shared.user, mine, all, size);
    begin_computing(end->group);
    return status;
}

static attune_status begin(void *user, const attune_message *sends, uint32_t send_count, const attune_message *receives,
                           uint32_t receive_count, attune_queue *queue)
{
    struct rank_end *end = user;
    if (fails(end, end->group->fault.exchange)) {
        /* Leaves a message. */
        (void)attune_buffer_read(NULL, 0, NULL, 1);
        return ATTUNE_IO;
    }
    end_computing(end->group);
    const attune_status status =
        end->shared.exchange(end->shared.user, sends, send_count, receives, receive_count, queue);
    begin_computing(end->group);
    return status;
}

static attune_status complete(struct rank_end *end, attune_queue *queue)
{
    end_computing(end->group);
    const attune_status status = end->shared.finish(end->shared.user, queue);
    begin_computing(end->group);
    return status;
}

static attune_status begin_and_complete(void *user, const attune_message *sends, uint32_t send_count,
                                        const attune_message *receives, uint32_t receive_count, attune_queue *queue)
{
    const attune_status status = begin(user, sends, send_count, receives, receive_count, queue);
    return status == ATTUNE_OK ? complete(user, queue) : status;
}

static attune_status finish(void *user, attune_queue *queue)
{
    struct rank_end *end = user;
    return fails(end, end->group->fault.finish) ? ATTUNE_IO : complete(end, queue);
}

static void abort_all(void *user)
{
    struct rank_end *end = user;
    end_computing(end->group);
    end->shared.abort(end->shared.user);
    begin_computing(end->group);
}

attune_transport rank_transport(rank_group *group, uint32_t rank, bool late)
{
    attune_transport transport = group->ends[rank].shared;
    transport.user = &group->ends[rank];
    transport.gather = gather;
    transport.exchange = late ? begin : begin_and_complete;
    transport.finish = late ? finish : NULL;
    transport.abort = abort_all;
    return transport;
}

typedef struct runner {
    rank_group *group;
    void (*body)(void *context, uint32_t rank);
    void *context;
    uint32_t rank;
} runner;

static void *start(void *argument)
{
    const runner *r = argument;
    begin_computing(r->group);
    r->body(r->context, r->rank);
    end_computing(r->group);
    return NULL;
}

void rank_group_run(rank_group *group, void (*body)(void *context, uint32_t rank), void *context)
{
    pthread_t threads[MOST_RANKS];
    runner runners[MOST_RANKS];
    for (uint32_t r = 0; r < group->size; r++) {
        runners[r] = (runner){group, body, context, r};
        if (pthread_create(&threads[r], NULL, start, &runners[r]))
            abort();
    }
    for (uint32_t r = 0; r < group->size; r++)
        pthread_join(threads[r], NULL);
}
