/* SPDX-License-Identifier: MIT */
/* The thread pool: every number once, many launches, many callers, signals. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/threads.h"
#include "support/devices.h"

#define MAX_THREADS 16

typedef struct tally {
    atomic_uint runs[MAX_THREADS];
    unsigned plain; /* by thread 0 alone: a launch is over before the next begins */
    atomic_bool unmasked;
} tally;

static void count(void *user, uint32_t thread)
{
    tally *t = user;
    atomic_fetch_add(&t->runs[thread], 1);
    if (!thread)
        t->plain++;
}

Test(pool, each_number_runs_once)
{
    for (uint32_t threads = 1; threads <= 8; threads++) {
        attune__pool *pool = attune__pool_create(&attune__default_allocator, threads);
        cr_assert_not_null(pool);
        cr_assert_leq(attune__pool_threads(pool), threads);
        tally t = {0};
        unsigned expected[MAX_THREADS] = {0};
        for (uint64_t launch = 0; launch < scaled(2000); launch++) {
            const uint32_t wanted = 1 + (uint32_t)(launch % attune__pool_threads(pool));
            attune__pool_run(pool, wanted, count, &t);
            for (uint32_t i = 0; i < wanted; i++)
                expected[i]++;
            for (uint32_t i = 0; i < MAX_THREADS; i++)
                cr_assert_eq(atomic_load(&t.runs[i]), expected[i], "launch %llu, thread %u", (unsigned long long)launch,
                             i);
        }
        attune__pool_destroy(pool);
    }
    attune__pool_destroy(NULL);
}

typedef struct caller {
    attune__pool *pool;
    tally tally;
    pthread_t thread;
} caller;

static void *call(void *user)
{
    caller *c = user;
    for (uint64_t i = 0; i < scaled(1000); i++)
        attune__pool_run(c->pool, attune__pool_threads(c->pool), count, &c->tally);
    return NULL;
}

Test(pool, callers_take_turns)
{
    attune__pool *pool = attune__pool_create(&attune__default_allocator, 4);
    cr_assert_not_null(pool);
    static caller callers[4];
    for (int i = 0; i < 4; i++) {
        callers[i].pool = pool;
        cr_assert_eq(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(callers[i].thread, NULL);
        cr_assert_eq(callers[i].tally.plain, scaled(1000));
        for (uint32_t t = 0; t < attune__pool_threads(pool); t++)
            cr_assert_eq(atomic_load(&callers[i].tally.runs[t]), scaled(1000));
    }
    attune__pool_destroy(pool);
}

Test(pool, comes_and_goes)
{
    for (uint64_t i = 0; i < scaled(200); i++) {
        attune__pool *pool = attune__pool_create(&attune__default_allocator, 4);
        cr_assert_not_null(pool);
        tally t = {0};
        if (i % 2)
            attune__pool_run(pool, attune__pool_threads(pool), count, &t);
        attune__pool_destroy(pool);
    }
}

static void look_at_mask(void *user, uint32_t thread)
{
    tally *t = user;
    sigset_t mask;
    if (thread &&
        (pthread_sigmask(SIG_SETMASK, NULL, &mask) || !sigismember(&mask, SIGINT) || !sigismember(&mask, SIGUSR1)))
        atomic_store(&t->unmasked, true);
}

Test(pool, workers_take_no_signal)
{
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    attune__pool *pool = attune__pool_create(&attune__default_allocator, 3);
    cr_assert_not_null(pool);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    cr_assert_eq(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
    tally t = {0};
    attune__pool_run(pool, attune__pool_threads(pool), look_at_mask, &t);
    cr_assert_not(atomic_load(&t.unmasked));
    attune__pool_destroy(pool);
}
