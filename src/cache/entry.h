/* SPDX-License-Identifier: MIT */
/*
 * The format of a compiled kernel, in a cache file and in a pack: a header, the kind, the identity, the data. Little
 * endian:
 *
 *     0  magic "attune\0" and the format's number       60  bytes of identity, u32
 *     8  BLAKE2s-256 of all that follows               64  bytes of data, u64
 *    40  hash of what the content follows from, 2 u64  72  kind, identity, data
 *    56  bytes of kind, u32
 */
#ifndef ATTUNE_CACHE_ENTRY_H
#define ATTUNE_CACHE_ENTRY_H

#include <attune/attune.h>

#include "base/hash.h"

#define ATTUNE__ENTRY_HEADER  ((size_t)72)
#define ATTUNE__ENTRY_MAX_KEY ((size_t)4096) /* bytes of kind, and of identity */

/* The key of an entry. */
typedef struct attune__cache_key {
    const char *kind;     /* "cuda", "vulkan-pipeline": letters, digits, '-' and '_' */
    attune__hash hash;    /* of everything that determines the content: sources, options, expressions */
    const void *identity; /* bytes that must also be equal: compiler, driver, library version */
    size_t identity_size;
} attune__cache_key;

/* Bytes of the whole entry; 0 if the key is too long or the sum overflows. */
size_t attune__entry_size(const attune__cache_key *key, size_t data_size);

/* Writes everything before the data: attune__entry_size(key, 0) bytes. */
void attune__entry_write(const attune__cache_key *key, const void *data, size_t data_size, uint8_t *head);

/* A parsed entry; pointers are into its bytes. */
typedef struct attune__entry {
    const char *kind; /* not terminated */
    size_t kind_size;
    attune__hash hash;
    const uint8_t *identity, *data;
    size_t identity_size, data_size;
    size_t size; /* of the whole entry */
} attune__entry;

/* Parses and verifies the entry that begins at `bytes`; more bytes may follow. Returns NULL, or the error. */
const char *attune__entry_read(const uint8_t *bytes, size_t size, attune__entry *entry);
/* The same without verification, for bytes that attune__entry_read has accepted. */
void attune__entry_peek(const uint8_t *bytes, attune__entry *entry);
bool attune__entry_matches(const attune__entry *entry, const attune__cache_key *key);

#endif
