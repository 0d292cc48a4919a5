/* SPDX-License-Identifier: MIT */
/*
 * A pool of threads that sleep between calls, or the engine's own. The caller works too, so that a pool of one starts
 * no thread. Workers take no signal, call neither the allocator nor the log, and end in attune__pool_destroy.
 */
#ifndef ATTUNE_BASE_THREADS_H
#define ATTUNE_BASE_THREADS_H

#include <attune/attune.h>

typedef struct attune__pool attune__pool;

/* The work of one thread of at most `threads`, numbered from 0, the caller. Threads share work out among themselves, by
 * a counter that all take from: one that returns leaves none that nobody has begun. */
typedef void (*attune__pool_fn)(void *user, uint32_t thread);

/* The cores that this process may use, at least 1. */
uint32_t attune__pool_cores(void);

/* Starts threads - 1 workers, or as many as the system gives: fewer is not an error. None where the engine runs loops
 * itself. NULL, with the thread's error set, if there is no memory. */
attune__pool *attune__pool_create(const attune_allocator *allocator, uint32_t threads,
                                  const attune_parallel_for *engine);
void attune__pool_destroy(attune__pool *pool); /* accepts NULL */

/* The caller and the workers, or as many indices as the engine may be given at once. */
uint32_t attune__pool_threads(const attune__pool *pool);

/*
 * Runs fn(user, 0) and returns when it, and every other that has begun, is done. Beside it workers run
 * fn(user, 1 ... threads - 1), each number once at most: a worker that comes when fn(user, 0) has returned, so that no
 * work is left, does not begin, and nobody waits for it. threads is 1 to attune__pool_threads. A second caller waits
 * for its turn. Allocates nothing.
 */
void attune__pool_run(attune__pool *pool, uint32_t threads, attune__pool_fn fn, void *user);

#endif
