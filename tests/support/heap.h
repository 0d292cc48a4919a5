/* SPDX-License-Identifier: MIT */
/* An allocator that counts, fails the N-th allocation, finds leaks and writes past the end. Safe to use from several
 * threads. */
#ifndef TESTS_SUPPORT_HEAP_H
#define TESTS_SUPPORT_HEAP_H

#include <attune/attune.h>
#include <stdatomic.h>

typedef struct heap {
    atomic_llong allocations; /* so far */
    atomic_llong live;        /* not yet released */
    long long fail_at;        /* the allocation that fails, from 1; 0 = none */
} heap;

attune_allocator heap_allocator(heap *h);
/* The allocator of a heap that is not counted. */
extern const attune_allocator heap_guarded;

#endif
