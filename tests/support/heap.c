/* SPDX-License-Identifier: MIT */
#include "support/heap.h"

#include <stdlib.h>

static void *heap_alloc(void *user, size_t size, size_t alignment)
{
    heap *h = user;
    if (atomic_fetch_add(&h->allocations, 1) + 1 == h->fail_at)
        return NULL;
    void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (memory)
        atomic_fetch_add(&h->live, 1);
    return memory;
}

static void heap_release(void *user, void *memory)
{
    heap *h = user;
    atomic_fetch_sub(&h->live, 1);
    free(memory);
}

attune_allocator heap_allocator(heap *h)
{
    return (attune_allocator){heap_alloc, heap_release, h};
}
