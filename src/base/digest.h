/* SPDX-License-Identifier: MIT */
/* BLAKE2s-256 without a key (RFC 7693), for files: it is infeasible to construct other bytes with the same digest.
 * base/hash.h is faster, for tables in memory, and not safe against an adversary. */
#ifndef ATTUNE_BASE_DIGEST_H
#define ATTUNE_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"

#define ATTUNE__DIGEST_SIZE 32

typedef struct attune__digest {
    uint32_t state[8];
    uint64_t count;    /* bytes compressed so far */
    uint8_t block[64]; /* not compressed yet */
    size_t used;
} attune__digest;

attune__digest attune__digest_begin(void);
void attune__digest_add(attune__digest *digest, const void *bytes, size_t size);
/* Writes the digest. The state cannot be used afterwards. */
void attune__digest_end(attune__digest *digest, uint8_t out[ATTUNE__DIGEST_SIZE]);
/* Likewise; its first 128 bits, as a key. */
attune__hash attune__digest_key(attune__digest *digest);

#endif
