/* SPDX-License-Identifier: MIT */
/* Included before all else in tests that are cross-built for Windows, whose run-time frees aligned memory by a function
 * of its own: all memory of a test is aligned there. */
#ifndef TESTS_SUPPORT_WINDOWS_MEMORY_H
#define TESTS_SUPPORT_WINDOWS_MEMORY_H

#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static inline void *windows_aligned_alloc(size_t alignment, size_t size)
{
    return _aligned_malloc(size ? size : 1, alignment < 16 ? 16 : alignment);
}

static inline void *windows_malloc(size_t size)
{
    return windows_aligned_alloc(16, size);
}

static inline void *windows_calloc(size_t count, size_t size)
{
    void *made = windows_malloc(count * size);
    return made ? memset(made, 0, count * size) : NULL;
}

static inline void *windows_realloc(void *old, size_t size)
{
    return _aligned_realloc(old, size ? size : 1, 16);
}

static inline void windows_free(void *memory)
{
    _aligned_free(memory);
}

static inline int windows_posix_memalign(void **made, size_t alignment, size_t size)
{
    *made = windows_aligned_alloc(alignment, size);
    return *made ? 0 : ENOMEM;
}

static inline char *windows_strdup(const char *text)
{
    const size_t size = strlen(text) + 1;
    char *made = (char *)windows_malloc(size);
    return made ? (char *)memcpy(made, text, size) : NULL;
}

#undef strdup
#define aligned_alloc  windows_aligned_alloc
#define malloc         windows_malloc
#define calloc         windows_calloc
#define realloc        windows_realloc
#define free           windows_free
#define posix_memalign windows_posix_memalign
#define strdup         windows_strdup

#endif
