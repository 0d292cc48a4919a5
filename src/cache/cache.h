/* SPDX-License-Identifier: MIT */
/*
 * Compiled kernels on disk. A cache never decides whether a call succeeds: an error is a miss, or an entry that is not
 * stored, with one warning in the log.
 *
 * Each entry (cache/entry.h) is a file, named by kind, content hash and identity. Files are written under a temporary
 * name and renamed, so that any number of processes and threads may share a folder. A file that is corrupt or does not
 * match its name is a miss, and the next put replaces it. If the files exceed the cache's size, the least recently used
 * are removed. Other files in the folder are not touched.
 *
 * Thread-safety: get and put may be called from several threads at once.
 */
#ifndef ATTUNE_CACHE_CACHE_H
#define ATTUNE_CACHE_CACHE_H

#include "cache/entry.h"

typedef struct attune__cache attune__cache;

#define ATTUNE__CACHE_SIZE (UINT64_C(256) << 20)

typedef struct attune__cache_desc {
    attune_allocator allocator;
    attune_log_fn log; /* may be NULL */
    void *log_user;
    attune_log_level log_level;
    const char
        *folder;   /* created when first needed; NULL = $XDG_CACHE_HOME/attune, or $HOME/.cache/attune; "" = none */
    uint64_t size; /* bytes of all files; 0 = ATTUNE__CACHE_SIZE */
} attune__cache_desc;

/* Accesses no file. NULL, which all functions accept, if the cache is off or there is no folder or no memory. */
attune__cache *attune__cache_open(const attune__cache_desc *desc);
void attune__cache_close(attune__cache *cache);

/* Returns true on a hit; the caller releases *data with attune__free of the cache's allocator. */
bool attune__cache_get(attune__cache *cache, const attune__cache_key *key, void **data, size_t *size);
/* Stores a copy, if possible. */
void attune__cache_put(attune__cache *cache, const attune__cache_key *key, const void *data, size_t size);

#endif
