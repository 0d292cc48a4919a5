/* SPDX-License-Identifier: MIT */
/*
 * A transport of attune/distributed.h between threads of one process, each of which is a rank with a device of its own,
 * of any backends. Messages go through host memory. All functions are inline; requires POSIX threads, which the engine
 * starts itself.
 */
#ifndef ATTUNE_THREADS_H
#define ATTUNE_THREADS_H

#include <attune/distributed.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

struct attune_threads;

/* One rank's messages in the present call, for the others to read. */
typedef struct attune_threads_rank {
    struct attune_threads *group;
    uint32_t rank;
    const void *gathered;
    const attune_message *sends, *receives;
    uint32_t send_count, receive_count;
} attune_threads_rank;

/* The ranks of a process. */
typedef struct attune_threads {
    uint32_t size;
    attune_threads_rank *ranks;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t round;   /* how often all ranks have met; written with the lock, atomically */
    uint32_t arrived; /* ranks that wait for the next meeting */
    uint32_t readers; /* ranks that read the others' memory */
    bool aborted;
} attune_threads;

/* After an abort nobody begins to read, and nobody returns to where its memory is freed before all that have begun are
 * done. Needs the lock. */
static inline void attune_threads_wait_for_readers(attune_threads *group)
{
    while (group->readers)
        pthread_cond_wait(&group->moved, &group->lock);
}

/* Whether other ranks' memory may be read, until attune_threads_leave. */
static inline bool attune_threads_enter(attune_threads *group)
{
    bool may;
    pthread_mutex_lock(&group->lock);
    may = !group->aborted;
    group->readers += may ? 1 : 0;
    pthread_mutex_unlock(&group->lock);
    return may;
}

static inline void attune_threads_leave(attune_threads *group)
{
    pthread_mutex_lock(&group->lock);
    group->readers--;
    pthread_cond_broadcast(&group->moved);
    pthread_mutex_unlock(&group->lock);
}

/* How often a rank looks whether the others have come, and gives its processor away, before it sleeps: some tens of
 * microseconds. To be woken can take longer than a step of decode. */
#define ATTUNE_THREADS_LOOKS 100

static inline bool attune_threads_look(const attune_threads *group, uint64_t round)
{
    int i;
    for (i = 0; i < ATTUNE_THREADS_LOOKS; i++) {
        if (__atomic_load_n(&group->round, __ATOMIC_ACQUIRE) != round)
            return true;
        (void)sched_yield();
    }
    return false;
}

/* Waits until all ranks are here; fails if one of them aborted. */
static inline attune_status attune_threads_meet(attune_threads *group)
{
    uint64_t round;
    bool met, waits;
    pthread_mutex_lock(&group->lock);
    round = group->round;
    waits = !group->aborted;
    if (waits && ++group->arrived == group->size) {
        group->arrived = 0;
        waits = false;
        __atomic_store_n(&group->round, round + 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&group->moved);
    }
    if (waits) {
        pthread_mutex_unlock(&group->lock);
        if (attune_threads_look(group, round))
            return ATTUNE_OK;
        pthread_mutex_lock(&group->lock);
    }
    while (group->round == round && !group->aborted)
        pthread_cond_wait(&group->moved, &group->lock);
    /* Who met before another aborted has met. */
    met = group->round != round;
    if (!met)
        attune_threads_wait_for_readers(group);
    pthread_mutex_unlock(&group->lock);
    return met ? ATTUNE_OK : ATTUNE_UNAVAILABLE;
}

static inline attune_status attune_threads_gather(void *user, const void *mine, void *all, size_t size)
{
    attune_threads_rank *me = (attune_threads_rank *)user;
    attune_threads *group = me->group;
    attune_status status;
    uint32_t r;
    me->gathered = mine;
    status = attune_threads_meet(group);
    if (status != ATTUNE_OK)
        return status;
    if (attune_threads_enter(group)) {
        for (r = 0; r < group->size; r++)
            memcpy((char *)all + r * size, group->ranks[r].gathered, size);
        attune_threads_leave(group);
    }
    return attune_threads_meet(group);
}

/* Copies what a peer sends: its n-th message to this rank is the n-th that this rank receives from it. */
static inline attune_status attune_threads_copy(const attune_threads_rank *me, const attune_threads_rank *peer)
{
    uint32_t i, n = 0;
    for (i = 0; i < me->receive_count; i++) {
        const attune_message *to = &me->receives[i];
        if (to->peer != peer->rank)
            continue;
        while (n < peer->send_count && peer->sends[n].peer != me->rank)
            n++;
        if (n == peer->send_count || peer->sends[n].size != to->size)
            return ATTUNE_INTERNAL;
        if (!to->memory || !peer->sends[n].memory)
            return ATTUNE_UNSUPPORTED;
        memcpy(to->memory, peer->sends[n++].memory, (size_t)to->size);
    }
    for (; n < peer->send_count; n++)
        if (peer->sends[n].peer == me->rank)
            return ATTUNE_INTERNAL;
    return ATTUNE_OK;
}

static inline attune_status attune_threads_exchange(void *user, const attune_message *sends, uint32_t send_count,
                                                    const attune_message *receives, uint32_t receive_count,
                                                    attune_queue *queue)
{
    attune_threads_rank *me = (attune_threads_rank *)user;
    (void)queue;
    me->sends = sends;
    me->send_count = send_count;
    me->receives = receives;
    me->receive_count = receive_count;
    return attune_threads_meet(me->group);
}

static inline attune_status attune_threads_complete(void *user, attune_queue *queue)
{
    attune_threads_rank *me = (attune_threads_rank *)user;
    attune_threads *group = me->group;
    attune_status copied = ATTUNE_OK, met;
    uint32_t r;
    (void)queue;
    if (attune_threads_enter(group)) {
        for (r = 0; r < group->size && copied == ATTUNE_OK; r++)
            copied = attune_threads_copy(me, &group->ranks[r]);
        attune_threads_leave(group);
    }
    met = attune_threads_meet(group);
    return copied != ATTUNE_OK ? copied : met;
}

static inline void attune_threads_abort(void *user)
{
    attune_threads *group = ((attune_threads_rank *)user)->group;
    pthread_mutex_lock(&group->lock);
    group->aborted = true;
    pthread_cond_broadcast(&group->moved);
    attune_threads_wait_for_readers(group);
    pthread_mutex_unlock(&group->lock);
}

/* Makes a group of 1 to ATTUNE_MAX_RANKS ranks. It stays where it is until attune_threads_finish. */
static inline attune_status attune_threads_init(attune_threads *group, uint32_t size)
{
    uint32_t r;
    memset(group, 0, sizeof *group);
    if (!size || size > ATTUNE_MAX_RANKS)
        return ATTUNE_INVALID_ARGUMENT;
    group->ranks = (attune_threads_rank *)calloc(size, sizeof *group->ranks);
    if (!group->ranks)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    if (pthread_mutex_init(&group->lock, NULL)) {
        free(group->ranks);
        return ATTUNE_OUT_OF_HOST_MEMORY;
    }
    if (pthread_cond_init(&group->moved, NULL)) {
        pthread_mutex_destroy(&group->lock);
        free(group->ranks);
        return ATTUNE_OUT_OF_HOST_MEMORY;
    }
    group->size = size;
    for (r = 0; r < size; r++) {
        group->ranks[r].group = group;
        group->ranks[r].rank = r;
    }
    return ATTUNE_OK;
}

/* After all objects of all ranks were destroyed. */
static inline void attune_threads_finish(attune_threads *group)
{
    pthread_cond_destroy(&group->moved);
    pthread_mutex_destroy(&group->lock);
    free(group->ranks);
}

/*
 * Fills the transport of a rank below the group's size, for one thread, which makes all calls of the rank. It may serve
 * several objects; all ranks make the same calls in the same order, at the same time: each waits for the others. After
 * an abort all fail: make the group and the objects anew.
 */
static inline void attune_threads_transport(attune_threads *group, uint32_t rank, attune_transport *transport)
{
    memset(transport, 0, sizeof *transport);
    transport->struct_size = sizeof *transport;
    transport->rank = rank;
    transport->size = group->size;
    transport->user = &group->ranks[rank];
    transport->gather = attune_threads_gather;
    transport->exchange = attune_threads_exchange;
    transport->finish = attune_threads_complete;
    transport->abort = attune_threads_abort;
    transport->host_memory = true;
}

#ifdef __cplusplus
}
#endif

#endif
