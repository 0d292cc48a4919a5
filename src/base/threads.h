/* SPDX-License-Identifier: MIT */
/*
 * A pool of threads that sleep between calls, or the engine's own threads. The calling thread takes part, so that a
 * pool of one starts no thread. Workers block all signals, call neither the allocator nor the log, and end in
 * attune__pool_destroy.
 */
#ifndef ATTUNE_BASE_THREADS_H
#define ATTUNE_BASE_THREADS_H

#include <attune/attune.h>

typedef struct attune__pool attune__pool;

/* The work of one thread, numbered from 0, the caller. Threads take work items from a shared counter: when one returns,
 * every item has been taken. */
typedef void (*attune__pool_fn)(void *user, uint32_t thread);

/* The cores that this process may use, at least 1. */
uint32_t attune__pool_cores(void);

/* Starts threads - 1 workers, or none if the engine runs the loops. That the system allows fewer is not an error. NULL,
 * with the thread's error set, if there is no memory. */
attune__pool *attune__pool_create(const attune_allocator *allocator, uint32_t threads,
                                  const attune_parallel_for *engine);
void attune__pool_destroy(attune__pool *pool); /* accepts NULL */
/* attune__pool_run once, on a pool of `threads` threads that is made for it; with 0 or 1 on the calling thread alone.
 */
attune_status attune__pool_once(const attune_allocator *allocator, uint32_t threads, attune__pool_fn fn, void *user);

/* The number of workers and the caller, or the largest count for the engine's run. */
uint32_t attune__pool_threads(const attune__pool *pool);

/*
 * Runs fn(user, 0) on the calling thread and fn(user, 1 ... threads - 1) on workers, and returns when all calls that
 * have begun are done. A worker that is late, after fn(user, 0) has returned, does not begin: no work is left. threads
 * is 1 to attune__pool_threads. Concurrent callers run one after another. Allocates nothing.
 */
void attune__pool_run(attune__pool *pool, uint32_t threads, attune__pool_fn fn, void *user);

#endif
