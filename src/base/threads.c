/* SPDX-License-Identifier: MIT */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "base/threads.h"

#include <stdatomic.h>
#if !defined(_WIN32)
#include <sched.h>
#include <signal.h>
#include <unistd.h>
#endif

#include "base/alloc.h"
#include "base/thread.h"

/* Polls before sleeping: about ten microseconds, the round trip of a futex. */
#define SPINS 500

/* The work of one generation. */
typedef struct job {
    attune__pool_fn fn;
    void *user;
    uint32_t threads; /* 0: finished, no worker may begin */
    uint32_t taken;   /* thread numbers that are taken */
} job;

struct attune__pool {
    attune_allocator allocator;
    attune_parallel_for engine; /* .run not NULL: loops run on the engine's threads, and there are no workers */
    uint32_t threads;           /* the caller and the workers that started */
    attune__mutex callers;      /* held by the caller while its job runs */
    attune__mutex lock;         /* guards the fields below that are not atomic, and both conditions */
    attune__condition work, done;
    job job;
    uint32_t asleep; /* workers that sleep */
    bool stop;
    atomic_uint generation; /* incremented under the lock for a new job or the end */
    atomic_uint running;    /* workers that have begun the job and not finished; incremented under the lock */
    attune__thread workers[];
};

uint32_t attune__pool_cores(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) {
        int count = CPU_COUNT(&set);
        if (count > 0)
            return (uint32_t)count;
    }
#endif
#if defined(_WIN32)
    const DWORD online = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return online ? (uint32_t)online : 1;
#else
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
#endif
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void *work(void *user)
{
    attune__pool *pool = user;
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load_explicit(&pool->generation, memory_order_relaxed) == seen; i++)
            relax();
        attune__mutex_lock(&pool->lock);
        while (atomic_load_explicit(&pool->generation, memory_order_relaxed) == seen) {
            pool->asleep++;
            attune__condition_wait(&pool->work, &pool->lock);
            pool->asleep--;
        }
        /* A late worker may find the job finished, or the next one in its place. */
        seen = atomic_load_explicit(&pool->generation, memory_order_relaxed);
        const bool stop = pool->stop, begins = pool->job.taken < pool->job.threads;
        const job todo = pool->job;
        if (begins) {
            pool->job.taken++;
            atomic_fetch_add_explicit(&pool->running, 1, memory_order_relaxed);
        }
        attune__mutex_unlock(&pool->lock);
        if (stop)
            return NULL;
        if (!begins)
            continue;
        todo.fn(todo.user, todo.taken);
        if (atomic_fetch_sub_explicit(&pool->running, 1, memory_order_acq_rel) == 1) {
            attune__mutex_lock(&pool->lock);
            attune__condition_signal(&pool->done);
            attune__mutex_unlock(&pool->lock);
        }
    }
}

attune__pool *attune__pool_create(const attune_allocator *allocator, uint32_t threads,
                                  const attune_parallel_for *engine)
{
    uint32_t workers = threads > 1 && !engine->run ? threads - 1 : 0;
    attune__pool *pool = attune__alloc(allocator, 1, sizeof *pool + workers * sizeof pool->workers[0]);
    if (!pool)
        return NULL;
    pool->allocator = *allocator;
    pool->engine = *engine;
    pool->threads = engine->run ? threads : 1;
    attune__mutex_init(&pool->callers);
    attune__mutex_init(&pool->lock);
    attune__condition_init(&pool->work);
    attune__condition_init(&pool->done);
#if !defined(_WIN32)
    /* Workers inherit the blocked signals, so that signals are delivered to the engine's threads. */
    sigset_t all, before;
    sigfillset(&all);
    bool masked = workers && !pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    for (uint32_t i = 0; i < workers; i++) {
        if (!attune__thread_create(&pool->workers[i], work, pool))
            break;
        pool->threads++;
    }
#if !defined(_WIN32)
    if (masked)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
    return pool;
}

void attune__pool_destroy(attune__pool *pool)
{
    if (!pool)
        return;
    attune__mutex_lock(&pool->lock);
    pool->stop = true;
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_relaxed);
    attune__condition_broadcast(&pool->work);
    attune__mutex_unlock(&pool->lock);
    for (uint32_t i = 0; !pool->engine.run && i + 1 < pool->threads; i++)
        attune__thread_join(&pool->workers[i]);
    attune__condition_destroy(&pool->done);
    attune__condition_destroy(&pool->work);
    attune__mutex_destroy(&pool->lock);
    attune__mutex_destroy(&pool->callers);
    attune_allocator allocator = pool->allocator;
    attune__free(&allocator, pool);
}

uint32_t attune__pool_threads(const attune__pool *pool)
{
    return pool->threads;
}

/* Workers that poll need no wake-up. */
static void wake(attune__pool *pool, uint32_t wanted)
{
    const uint32_t awake = pool->threads - 1 - pool->asleep;
    for (uint32_t i = awake; i < wanted && i - awake < pool->asleep; i++)
        attune__condition_signal(&pool->work);
}

void attune__pool_run(attune__pool *pool, uint32_t threads, attune__pool_fn fn, void *user)
{
    if (threads <= 1) {
        fn(user, 0);
        return;
    }
    if (pool->engine.run) {
        pool->engine.run(pool->engine.user, threads, fn, user);
        return;
    }
    attune__mutex_lock(&pool->callers);
    attune__mutex_lock(&pool->lock);
    pool->job = (job){fn, user, threads, 1};
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_relaxed);
    wake(pool, threads - 1);
    attune__mutex_unlock(&pool->lock);
    fn(user, 0);
    /* All work is taken, so that workers that have not begun need not. */
    attune__mutex_lock(&pool->lock);
    pool->job.threads = 0;
    attune__mutex_unlock(&pool->lock);
    for (int i = 0; i < SPINS && atomic_load_explicit(&pool->running, memory_order_acquire); i++)
        relax();
    if (atomic_load_explicit(&pool->running, memory_order_acquire)) {
        attune__mutex_lock(&pool->lock);
        while (atomic_load_explicit(&pool->running, memory_order_acquire))
            attune__condition_wait(&pool->done, &pool->lock);
        attune__mutex_unlock(&pool->lock);
    }
    attune__mutex_unlock(&pool->callers);
}

attune_status attune__pool_once(const attune_allocator *allocator, uint32_t threads, attune__pool_fn fn, void *user)
{
    if (threads <= 1) {
        fn(user, 0);
        return ATTUNE_OK;
    }
    attune__pool *pool = attune__pool_create(allocator, threads, &(attune_parallel_for){0});
    if (!pool)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune__pool_run(pool, attune__pool_threads(pool), fn, user);
    attune__pool_destroy(pool);
    return ATTUNE_OK;
}
