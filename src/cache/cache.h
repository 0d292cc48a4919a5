/* SPDX-License-Identifier: MIT */
/*
 * Compiled kernels on disk. A cache never decides whether a call succeeds: whatever goes wrong is a miss or an entry
 * that is not kept, said once in the log as a warning.
 *
 * One file an entry (cache/entry.h), named by kind, content hash and identity. Files are written under another name and
 * renamed, so that any number of processes and threads may share a folder; a file that is damaged or not what its name
 * says is a miss, and the next put replaces it. When the files pass the cache's size, those that were used longest ago
 * go first. Files that the cache did not make are left alone.
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
    const char *folder; /* made when first needed; NULL = $XDG_CACHE_HOME/attune, or $HOME/.cache/attune; "" = none */
    uint64_t size;      /* bytes of all files; 0 = ATTUNE__CACHE_SIZE */
} attune__cache_desc;

/* Touches no file. NULL if there is to be no cache, no folder for one or no memory: all functions accept it. */
attune__cache *attune__cache_open(const attune__cache_desc *desc);
void attune__cache_close(attune__cache *cache);

/* True if there: *data is given back with attune__free, of the allocator of the cache. */
bool attune__cache_get(attune__cache *cache, const attune__cache_key *key, void **data, size_t *size);
/* Keeps a copy, if it can. */
void attune__cache_put(attune__cache *cache, const attune__cache_key *key, const void *data, size_t size);

#endif
