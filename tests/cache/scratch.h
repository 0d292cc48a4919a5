/* SPDX-License-Identifier: MIT */
/* A folder of its own for each test, a cache in it, and a log that counts. */
#ifndef TESTS_CACHE_SCRATCH_H
#define TESTS_CACHE_SCRATCH_H

#include <stdatomic.h>

#include "cache/cache.h"
#include "support/heap.h"

typedef struct scratch {
    char folder[64]; /* exists and is empty at first; the cache's is "kernels" in it */
    char kernels[80];
    heap heap;
    atomic_int lines; /* of the log */
    char line[512];
    attune__cache *cache;
} scratch;

/* size: 0 = the default. */
void scratch_open(scratch *r, uint64_t size);
void scratch_close(scratch *r); /* asserts that nothing leaked; removes the folder */

attune__cache_key scratch_key(const char *kind, uint64_t number, const char *identity);
/* The one entry's path; asserts that there is exactly one file in the folder. */
void scratch_only_file(const scratch *r, char path[512]);
int scratch_files(const scratch *r, const char *suffix);

#endif
