/* SPDX-License-Identifier: MIT */
/* The thread pool: every item once, many launches, many callers, signals, the engine's own threads. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/threads.h"
#include "plan/partition.h"
#include "support/devices.h"

#define MAX_THREADS 16
#define ITEMS       20

static const attune_parallel_for none = {NULL, NULL};

typedef struct tally {
    atomic_uint next; /* item, taken by whoever comes */
    atomic_uint items[ITEMS], numbers[MAX_THREADS], inside;
    unsigned plain; /* by thread 0 alone: a launch is over before the next begins */
    atomic_bool unmasked;
} tally;

static void share(void *user, uint32_t thread)
{
    tally *t = user;
    atomic_fetch_add(&t->inside, 1);
    atomic_fetch_add(&t->numbers[thread], 1);
    if (!thread)
        t->plain++;
    for (uint32_t item; (item = atomic_fetch_add(&t->next, 1)) < ITEMS;)
        atomic_fetch_add(&t->items[item], 1);
    atomic_fetch_sub(&t->inside, 1);
}

static void launch(attune__pool *pool, uint32_t threads, tally *t)
{
    const unsigned plain = t->plain;
    atomic_store(&t->next, 0);
    for (uint32_t i = 0; i < ITEMS; i++)
        atomic_store(&t->items[i], 0);
    for (uint32_t i = 0; i < MAX_THREADS; i++)
        atomic_store(&t->numbers[i], 0);
    attune__pool_run(pool, threads, share, t);
    cr_assert_eq(atomic_load(&t->inside), 0, "a thread is still at work");
    cr_assert_eq(t->plain, plain + 1);
    for (uint32_t i = 0; i < ITEMS; i++)
        cr_assert_eq(atomic_load(&t->items[i]), 1);
    for (uint32_t i = 0; i < MAX_THREADS; i++)
        cr_assert_leq(atomic_load(&t->numbers[i]), i < threads, "number %u of %u", i, threads);
}

Test(pool, every_item_is_done_once)
{
    for (uint32_t threads = 1; threads <= 8; threads++) {
        attune__pool *pool = attune__pool_create(&attune__default_allocator, threads, &none);
        cr_assert_not_null(pool);
        cr_assert_leq(attune__pool_threads(pool), threads);
        tally t = {0};
        for (uint64_t i = 0; i < scaled(2000); i++)
            launch(pool, 1 + (uint32_t)(i % attune__pool_threads(pool)), &t);
        attune__pool_destroy(pool);
    }
    attune__pool_destroy(NULL);
}

/* Waits until every number has come, so that all must be woken. */
static void meet(void *user, uint32_t thread)
{
    tally *t = user;
    atomic_fetch_add(&t->numbers[thread], 1);
    atomic_fetch_add(&t->next, 1);
    while (atomic_load(&t->next) < 4)
        sched_yield();
}

Test(pool, as_many_are_woken_as_are_asked_for)
{
    attune__pool *pool = attune__pool_create(&attune__default_allocator, 6, &none);
    cr_assert_not_null(pool);
    for (uint64_t i = 0; i < scaled(300) && attune__pool_threads(pool) == 6; i++) {
        tally t = {0};
        if (i % 8 == 0)
            usleep(1000); /* all asleep */
        attune__pool_run(pool, 4, meet, &t);
        for (uint32_t n = 0; n < 6; n++)
            cr_assert_eq(atomic_load(&t.numbers[n]), n < 4);
    }
    attune__pool_destroy(pool);
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
        launch(c->pool, attune__pool_threads(c->pool), &c->tally);
    return NULL;
}

Test(pool, callers_take_turns)
{
    attune__pool *pool = attune__pool_create(&attune__default_allocator, 4, &none);
    cr_assert_not_null(pool);
    static caller callers[4];
    for (int i = 0; i < 4; i++) {
        callers[i].pool = pool;
        cr_assert_eq(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(callers[i].thread, NULL);
        cr_assert_eq(callers[i].tally.plain, scaled(1000));
    }
    attune__pool_destroy(pool);
}

Test(pool, comes_and_goes)
{
    for (uint64_t i = 0; i < scaled(200); i++) {
        attune__pool *pool = attune__pool_create(&attune__default_allocator, 4, &none);
        cr_assert_not_null(pool);
        tally t = {0};
        if (i % 2)
            launch(pool, attune__pool_threads(pool), &t);
        attune__pool_destroy(pool);
    }
}

/* The engine's loop: from the last index to the first, on the caller's thread alone. */
static void backwards(void *user, uint32_t count, void (*body)(void *context, uint32_t index), void *context)
{
    *(uint32_t *)user = count;
    while (count-- > 0)
        body(context, count);
}

Test(pool, the_engine_runs_loops)
{
    uint32_t seen = 0;
    attune__pool *pool = attune__pool_create(&attune__default_allocator, 5, &(attune_parallel_for){backwards, &seen});
    cr_assert_not_null(pool);
    cr_assert_eq(attune__pool_threads(pool), 5);
    tally t = {0};
    launch(pool, 1, &t);
    cr_assert_eq(seen, 0);
    launch(pool, 4, &t);
    cr_assert_eq(seen, 4);
    for (uint32_t i = 0; i < 4; i++)
        cr_assert_eq(atomic_load(&t.numbers[i]), 1);
    attune__pool_destroy(pool);
}

/* A call gets the threads that its work is worth. */
Test(pool, threads_follow_the_work)
{
    attune__loop_cost cost = {.pairs = 6 * 192, .flop = 2 * 128, .lanes = 8};
    cr_assert_eq(attune__loop_threads(&cost, 64), 1, "a small decode");
    cost.pairs = 32.0 * 2048 * 2048;
    cr_assert_eq(attune__loop_threads(&cost, 64), 64);
    uint32_t before = 1;
    for (cost.pairs = 1; cost.pairs < 1e9; cost.pairs *= 2) {
        const uint32_t threads = attune__loop_threads(&cost, 64);
        cr_assert(threads >= before && threads <= 64);
        before = threads;
    }
    cost.pairs = 3000;
    const uint32_t plain = attune__loop_threads(&cost, 64);
    cost.weight = 200;
    cr_assert_gt(attune__loop_threads(&cost, 64), plain, "what expressions cost counts");
    cost = (attune__loop_cost){0};
    cr_assert_eq(attune__loop_threads(&cost, 64), 1);
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
    attune__pool *pool = attune__pool_create(&attune__default_allocator, 3, &none);
    cr_assert_not_null(pool);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    cr_assert_eq(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
    tally t = {0};
    attune__pool_run(pool, attune__pool_threads(pool), look_at_mask, &t);
    cr_assert_not(atomic_load(&t.unmasked));
    attune__pool_destroy(pool);
}
