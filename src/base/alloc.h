/* SPDX-License-Identifier: MIT */
/* Host memory through the instance's allocator. Every size is checked before it is multiplied. */
#ifndef ATTUNE_BASE_ALLOC_H
#define ATTUNE_BASE_ALLOC_H

#include <attune/attune.h>

/* aligned_alloc and free. */
extern const attune_allocator attune__default_allocator;

/* `count` elements of `size` bytes, aligned to 64, zeroed; NULL, with the thread's error set, if there is no room. A
 * count of 0 gives a pointer that may be freed. */
void *attune__alloc(const attune_allocator *allocator, size_t count, size_t size);

/* The same memory, uninitialised. */
void *attune__alloc_raw(const attune_allocator *allocator, size_t count, size_t size);

/* Grows an array that holds `used` elements to hold at least `wanted`, doubling. On failure the array is unchanged.
 * `*capacity` counts elements. */
bool attune__grow(const attune_allocator *allocator, void **array, size_t *capacity, size_t used, size_t wanted,
                  size_t size);

/* Accepts NULL. */
void attune__free(const attune_allocator *allocator, void *memory);

char *attune__strdup(const attune_allocator *allocator, const char *text);

#endif
