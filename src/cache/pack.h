/* SPDX-License-Identifier: MIT */
/*
 * Packs: kernels compiled ahead, for machines without a compiler. A file of entries (cache/entry.h), one after another.
 * The first is of kind "pack", its identity is the library's version, and its data say how many entries follow and how
 * many bytes they have: u64 each, little endian. What an entry is found by is its kind and content hash; its identity
 * only says what it is.
 */
#ifndef ATTUNE_CACHE_PACK_H
#define ATTUNE_CACHE_PACK_H

#include <stdatomic.h>

#include "cache/entry.h"

/* ---------------------------------------------------------------------------------------------------- making a pack */

typedef struct attune__pack attune__pack;

attune_status attune__pack_create(const attune_allocator *allocator, attune__pack **pack);
void attune__pack_destroy(attune__pack *pack);

/* Any thread may ask and add. An entry that is there already is not added again. */
bool attune__pack_has(attune__pack *pack, const attune__cache_key *key);
attune_status attune__pack_add(attune__pack *pack, const attune__cache_key *key, const void *data, size_t size);
void attune__pack_measure(attune__pack *pack, uint32_t *entries, uint64_t *bytes);

/* As base/file.h writes: a reader finds the whole file or the one before. */
attune_status attune__pack_write(attune__pack *pack, const char *path);

/* ----------------------------------------------------------------------------------------------------- loaded packs */

/* Those of an instance. Zeroed = none. Packs are added and searched from any thread, and go together. */
typedef struct attune__packs {
    _Atomic(struct attune__loaded *) first;
} attune__packs;

/* IO if the file cannot be read or is damaged, UNSUPPORTED if another version made it. */
attune_status attune__packs_load(attune__packs *packs, const attune_allocator *allocator, const char *path);
void attune__packs_finish(attune__packs *packs, const attune_allocator *allocator);
/* Packs, and their entries; packs may be NULL. */
void attune__packs_measure(const attune__packs *packs, uint32_t *count, uint32_t *entries);

/* The content in a pack's own memory, which lives as long as the packs. packs may be NULL. */
bool attune__packs_find(const attune__packs *packs, const char *kind, attune__hash hash, const void **data,
                        size_t *size);

#endif
