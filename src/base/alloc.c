/* SPDX-License-Identifier: MIT */
#include "base/alloc.h"

#if defined(_WIN32)
#include <malloc.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

/* One cache line, and the widest vector that the CPU kernels load. */
#define ALIGNMENT ((size_t)64)

#if defined(_WIN32)

static void *default_alloc(void *user, size_t size, size_t alignment)
{
    (void)user;
    return _aligned_malloc(size, alignment);
}

static void default_release(void *user, void *memory)
{
    (void)user;
    _aligned_free(memory);
}

#else

static void *default_alloc(void *user, size_t size, size_t alignment)
{
    (void)user;
    /* aligned_alloc requires a multiple of the alignment. */
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void default_release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

#endif

const attune_allocator attune__default_allocator = {default_alloc, default_release, NULL};

void *attune__alloc_raw(const attune_allocator *allocator, size_t count, size_t size)
{
    size_t bytes = count;
    if (!attune__multiply_size(&bytes, size) || bytes > SIZE_MAX - ALIGNMENT) {
        attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "%zu elements of %zu bytes exceed the address space", count, size);
        return NULL;
    }
    void *memory = allocator->alloc(allocator->user, bytes ? bytes : 1, ALIGNMENT);
    if (!memory)
        attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "the allocator returned NULL for %zu bytes", bytes);
    return memory;
}

void *attune__alloc(const attune_allocator *allocator, size_t count, size_t size)
{
    void *memory = attune__alloc_raw(allocator, count, size);
    if (memory)
        memset(memory, 0, count * size);
    return memory;
}

bool attune__grow(const attune_allocator *allocator, void **array, size_t *capacity, size_t used, size_t wanted,
                  size_t size)
{
    if (wanted <= *capacity)
        return true;
    size_t larger = *capacity < 16 ? 16 : *capacity;
    while (larger < wanted) {
        if (larger > SIZE_MAX / 2) {
            larger = wanted;
            break;
        }
        larger *= 2;
    }
    void *memory = attune__alloc_raw(allocator, larger, size);
    if (!memory)
        return false;
    if (used)
        memcpy(memory, *array, used * size);
    attune__free(allocator, *array);
    *array = memory;
    *capacity = larger;
    return true;
}

void attune__free(const attune_allocator *allocator, void *memory)
{
    if (memory)
        allocator->release(allocator->user, memory);
}

char *attune__strdup(const attune_allocator *allocator, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = attune__alloc_raw(allocator, bytes, 1);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}
