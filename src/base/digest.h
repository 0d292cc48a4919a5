/* SPDX-License-Identifier: MIT */
/* BLAKE2s-256 without a key (RFC 7693): the content hash of what lies on disk. Nobody can make other bytes of the same
 * digest. For keys of tables in memory there is base/hash.h, which is faster and promises less. */
#ifndef ATTUNE_BASE_DIGEST_H
#define ATTUNE_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define ATTUNE__DIGEST_SIZE 32

typedef struct attune__digest {
    uint32_t state[8];
    uint64_t count;    /* bytes compressed so far */
    uint8_t block[64]; /* not yet */
    size_t used;
} attune__digest;

attune__digest attune__digest_begin(void);
void attune__digest_add(attune__digest *digest, const void *bytes, size_t size);
/* Gives the digest, which is then used up. */
void attune__digest_end(attune__digest *digest, uint8_t out[ATTUNE__DIGEST_SIZE]);

#endif
