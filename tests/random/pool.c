/* SPDX-License-Identifier: MIT */
/* An engine's threads, for attune_parallel_for: each index once, in no order that attune could count on. */
#include "random/random.h"

#include <pthread.h>
#include <stdlib.h>

struct pool {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t threads[POOL_MOST - 1], caller;
    int thread_count;
    bool leaving;
    loop_order way;
    const char *broken;
    /* The loop that runs. */
    void (*body)(void *context, uint32_t index);
    void *context;
    uint32_t next, count, done;
};

/* Runs what is left of the loop. Holds the mutex but while a body runs. */
static void take(pool *c)
{
    while (c->next < c->count) {
        const uint32_t index = c->next++;
        void (*const body)(void *, uint32_t) = c->body;
        void *const context = c->context;
        (void)pthread_mutex_unlock(&c->mutex);
        body(context, index);
        (void)pthread_mutex_lock(&c->mutex);
        if (++c->done == c->count)
            (void)pthread_cond_broadcast(&c->changed);
    }
}

static void *work(void *user)
{
    pool *c = user;
    (void)pthread_mutex_lock(&c->mutex);
    while (!c->leaving) {
        take(c);
        if (!c->leaving)
            (void)pthread_cond_wait(&c->changed, &c->mutex);
    }
    (void)pthread_mutex_unlock(&c->mutex);
    return NULL;
}

static void loop(void *user, uint32_t count, void (*body)(void *context, uint32_t index), void *context)
{
    pool *c = user;
    (void)pthread_mutex_lock(&c->mutex);
    if (count < 2 || count > POOL_MOST)
        c->broken = "parallel_for's count is not 2 to cpu_threads";
    if (!pthread_equal(c->caller, pthread_self()))
        c->broken = "parallel_for is run by another thread than the caller of attune";
    if (c->next < c->count)
        c->broken = "parallel_for is run within itself";
    if (c->way == LOOPS_POOL) {
        c->body = body;
        c->context = context;
        c->done = c->next = 0;
        c->count = count;
        (void)pthread_cond_broadcast(&c->changed);
        take(c);
        while (c->done < c->count)
            (void)pthread_cond_wait(&c->changed, &c->mutex);
    }
    const bool alone = c->way != LOOPS_POOL;
    (void)pthread_mutex_unlock(&c->mutex);
    while (alone && count > 0)
        body(context, --count);
}

pool *pool_create(void)
{
    pool *c = calloc(1, sizeof *c);
    if (!c || pthread_mutex_init(&c->mutex, NULL) || pthread_cond_init(&c->changed, NULL))
        abort();
    for (; c->thread_count < POOL_MOST - 1; c->thread_count++)
        if (pthread_create(&c->threads[c->thread_count], NULL, work, c))
            abort();
    return c;
}

void pool_destroy(pool *c)
{
    if (!c)
        return;
    (void)pthread_mutex_lock(&c->mutex);
    c->leaving = true;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->mutex);
    for (int i = 0; i < c->thread_count; i++)
        (void)pthread_join(c->threads[i], NULL);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->mutex);
    free(c);
}

attune_parallel_for pool_parallel_for(pool *c)
{
    return (attune_parallel_for){loop, c};
}

void pool_begin(pool *c, loop_order way)
{
    (void)pthread_mutex_lock(&c->mutex);
    c->way = way;
    c->caller = pthread_self();
    c->broken = NULL;
    (void)pthread_mutex_unlock(&c->mutex);
}

const char *pool_end(pool *c)
{
    (void)pthread_mutex_lock(&c->mutex);
    const char *broken = c->broken;
    (void)pthread_mutex_unlock(&c->mutex);
    return broken;
}
