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
    end->exchanges++;
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

/* ---------------------------------------------------------------------------------------------------------- lending */

/* As attune_cuda_peers, of ranks whose calls are done when they return. */
static attune_status lend_memory(struct rank_end *end, const attune_message *sends, uint32_t send_count,
                                 attune_message *receives, uint32_t receive_count)
{
    rank_group *group = end->group;
    pthread_mutex_lock(&group->threads.lock);
    const uint64_t turn = end->begun++ % 2;
    pthread_mutex_unlock(&group->threads.lock);
    end->own[turn].sends = sends;
    end->own[turn].count = send_count;
    attune_status status = attune_threads_meet(&group->threads);
    if (status != ATTUNE_OK || !attune_threads_enter(&group->threads))
        return ATTUNE_UNAVAILABLE;
    end->reading = true;
    for (uint32_t i = 0, next = 0; i < receive_count; i++) {
        const attune_message *theirs = group->ends[receives[i].peer].own[turn].sends;
        const uint32_t count = group->ends[receives[i].peer].own[turn].count;
        next = i && receives[i].peer == receives[i - 1].peer ? next + 1 : 0;
        while (next < count && theirs[next].peer != end->shared.rank)
            next++;
        if (next == count || theirs[next].size != receives[i].size)
            return ATTUNE_INTERNAL;
        receives[i].buffer = theirs[next].buffer;
        receives[i].offset = theirs[next].offset;
    }
    return ATTUNE_OK;
}

static void end_reading(struct rank_end *end)
{
    attune_threads *threads = &end->group->threads;
    end->reading = false;
    pthread_mutex_lock(&threads->lock);
    end->ended++;
    pthread_mutex_unlock(&threads->lock);
    attune_threads_leave(threads);
}

static attune_status lend(void *user, const attune_message *sends, uint32_t send_count, attune_message *receives,
                          uint32_t receive_count, attune_queue *queue)
{
    struct rank_end *end = user;
    if (fails(end, end->group->fault.exchange))
        return ATTUNE_IO;
    end_computing(end->group);
    const attune_status status =
        end->group->lends ? lend_memory(end, sends, send_count, receives, receive_count)
                          : end->shared.lend(end->shared.user, sends, send_count, receives, receive_count, queue);
    end->reading = status == ATTUNE_OK || end->reading;
    begin_computing(end->group);
    return status;
}

static void reclaim(void *user)
{
    struct rank_end *end = user;
    rank_group *group = end->group;
    attune_threads *threads = &group->threads;
    end_computing(group);
    if (!group->lends) {
        end->shared.reclaim(end->shared.user);
    } else {
        pthread_mutex_lock(&threads->lock);
        for (uint32_t r = 0; r < group->size; r++)
            while (group->ends[r].ended < end->begun && !threads->aborted)
                pthread_cond_wait(&threads->moved, &threads->lock);
        attune_threads_wait_for_readers(threads);
        pthread_mutex_unlock(&threads->lock);
    }
    begin_computing(group);
}

static attune_status finish(void *user, attune_queue *queue)
{
    struct rank_end *end = user;
    const bool reading = end->reading;
    if (fails(end, end->group->fault.finish))
        return ATTUNE_IO;
    if (reading && end->group->lends) {
        end_reading(end);
        return ATTUNE_OK;
    }
    end->reading = false;
    return reading || end->late ? complete(end, queue) : ATTUNE_OK;
}

static void abort_all(void *user)
{
    struct rank_end *end = user;
    end_computing(end->group);
    if (end->reading && end->group->lends)
        end_reading(end);
    end->shared.abort(end->shared.user);
    begin_computing(end->group);
}

attune_transport rank_transport(rank_group *group, uint32_t rank, bool late)
{
    attune_transport transport = group->ends[rank].shared;
    transport.user = &group->ends[rank];
    transport.gather = gather;
    transport.exchange = late ? begin : begin_and_complete;
    transport.abort = abort_all;
    group->ends[rank].late = late;
    const bool lends = group->lends || transport.lend;
    if (group->lends) {
        transport.host_memory = false;
        transport.byte_cost = 1;
    }
    transport.lend = lends ? lend : NULL;
    transport.reclaim = lends ? reclaim : NULL;
    transport.finish = late || lends ? finish : NULL;
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

static attune_status lone_gather(void *user, const void *mine, void *all, size_t size)
{
    const lone_rank *lone = user;
    for (uint32_t r = 0; r < lone->size; r++)
        memcpy((char *)all + r * size, mine, size);
    return ATTUNE_OK;
}

static attune_status lone_exchange(void *user, const attune_message *sends, uint32_t send_count,
                                   const attune_message *receives, uint32_t receive_count, attune_queue *queue)
{
    (void)user, (void)sends, (void)send_count, (void)receives, (void)receive_count, (void)queue;
    return ATTUNE_OK;
}

static void lone_abort(void *user)
{
    ((lone_rank *)user)->aborts++;
}

attune_transport lone_transport(lone_rank *lone)
{
    return (attune_transport){.struct_size = sizeof(attune_transport),
                              .size = lone->size,
                              .user = lone,
                              .gather = lone_gather,
                              .exchange = lone_exchange,
                              .abort = lone_abort};
}
