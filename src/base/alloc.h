/* SPDX-License-Identifier: MIT */
/* Host memory from the instance's allocator. Products of sizes are checked for overflow. */
#ifndef ATTUNE_BASE_ALLOC_H
#define ATTUNE_BASE_ALLOC_H

#include <attune/attune.h>

/* aligned_alloc and free. */
extern const attune_allocator attune__default_allocator;

/* Allocates `count` zeroed elements of `size` bytes, aligned to 64. NULL, with the thread's error set, on failure. A
 * count of 0 returns a pointer that may be freed. */
void *attune__alloc(const attune_allocator *allocator, size_t count, size_t size);

/* The same, uninitialised. */
void *attune__alloc_raw(const attune_allocator *allocator, size_t count, size_t size);

/* Grows an array that holds `used` elements to hold at least `wanted`, doubling. On failure the array is unchanged.
 * `*capacity` counts elements. */
bool attune__grow(const attune_allocator *allocator, void **array, size_t *capacity, size_t used, size_t wanted,
                  size_t size);

/* Accepts NULL. */
void attune__free(const attune_allocator *allocator, void *memory);

char *attune__strdup(const attune_allocator *allocator, const char *text);

#endif
