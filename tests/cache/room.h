/* SPDX-License-Identifier: MIT */
/* A folder of its own for each test, a cache in it, and a log that counts. */
#ifndef TESTS_CACHE_ROOM_H
#define TESTS_CACHE_ROOM_H

#include <stdatomic.h>

#include "cache/cache.h"
#include "support/heap.h"

typedef struct room {
    char folder[64]; /* exists and is empty at first; the cache's is "kernels" in it */
    char kernels[80];
    heap heap;
    atomic_int lines; /* of the log */
    char line[512];
    attune__cache *cache;
} room;

/* size: 0 = the default. */
void room_open(room *r, uint64_t size);
void room_close(room *r); /* asserts that nothing leaked; removes the folder */

attune__cache_key room_key(const char *kind, uint64_t number, const char *identity);
/* The one entry's path; asserts that there is exactly one file in the folder. */
void room_only_file(const room *r, char path[512]);
int room_files(const room *r, const char *suffix);

#endif
