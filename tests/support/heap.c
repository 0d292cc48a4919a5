/* SPDX-License-Identifier: MIT */
#include "support/heap.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* A block follows its size, and is followed by bytes that must not be written; a sanitizer watches those itself. */
#define HEADER 64
#if defined(__SANITIZE_ADDRESS__)
static const size_t guard = 0;
#else
static const size_t guard = 64;
#endif

static void *heap_alloc(void *user, size_t size, size_t alignment)
{
    heap *h = user;
    if (atomic_fetch_add(&h->allocations, 1) + 1 == h->fail_at)
        return NULL;
    cr_assert(HEADER % alignment == 0);
    void *memory;
    if (posix_memalign(&memory, HEADER, HEADER + size + guard))
        return NULL;
    unsigned char *block = memory;
    atomic_fetch_add(&h->live, 1);
    memcpy(block, &size, sizeof size);
    memset(block + HEADER + size, 0xa5, guard);
    return block + HEADER;
}

static void heap_release(void *user, void *memory)
{
    heap *h = user;
    unsigned char *block = (unsigned char *)memory - HEADER;
    size_t size;
    memcpy(&size, block, sizeof size);
    for (size_t i = 0; i < guard; i++)
        cr_assert_eq(block[HEADER + size + i], 0xa5, "byte %zu after a block of %zu was written", i, size);
    atomic_fetch_sub(&h->live, 1);
    free(block);
}

attune_allocator heap_allocator(heap *h)
{
    return (attune_allocator){heap_alloc, heap_release, h};
}

static heap uncounted;
const attune_allocator heap_guarded = {heap_alloc, heap_release, &uncounted};
