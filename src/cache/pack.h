/* SPDX-License-Identifier: MIT */
/*
 * Packs: kernels compiled ahead of time, for machines without a compiler. A pack is a file of consecutive entries
 * (cache/entry.h). The first is of kind "pack"; its identity is the library's version, and its data are the number of
 * entries that follow and their bytes, both u64, little endian. Entries are found by kind and content hash; the
 * identity is for information.
 */
#ifndef ATTUNE_CACHE_PACK_H
#define ATTUNE_CACHE_PACK_H

#include <stdatomic.h>

#include "cache/entry.h"

/* ---------------------------------------------------------------------------------------------------- making a pack */

typedef struct attune__pack attune__pack;

attune_status attune__pack_create(const attune_allocator *allocator, attune__pack **pack);
void attune__pack_destroy(attune__pack *pack);

/* Any thread. An entry that the pack has already is not added again. */
bool attune__pack_has(attune__pack *pack, const attune__cache_key *key);
attune_status attune__pack_add(attune__pack *pack, const attune__cache_key *key, const void *data, size_t size);
void attune__pack_measure(attune__pack *pack, uint32_t *entries, uint64_t *bytes);

/* Writes atomically (base/file.h). */
attune_status attune__pack_write(attune__pack *pack, const char *path);

/* ----------------------------------------------------------------------------------------------------- loaded packs */

/* The packs of an instance; zeroed = none. Packs are added and searched from any thread, and released together. */
typedef struct attune__packs {
    _Atomic(struct attune__loaded *) first;
} attune__packs;

/* IO if the file cannot be read or is damaged, UNSUPPORTED if another version made it. */
attune_status attune__packs_load(attune__packs *packs, const attune_allocator *allocator, const char *path);
void attune__packs_finish(attune__packs *packs, const attune_allocator *allocator);
/* Counts the packs and their entries; packs may be NULL. */
void attune__packs_measure(const attune__packs *packs, uint32_t *count, uint32_t *entries);

/* Finds a content, in memory of the pack that is valid as long as the packs. packs may be NULL. */
bool attune__packs_find(const attune__packs *packs, const char *kind, attune__hash hash, const void **data,
                        size_t *size);

#endif
