/* SPDX-License-Identifier: MIT */
/* A 128-bit content hash, the same on every machine: two lanes of multiply and xor-shift over 64-bit words (the
 * finaliser is that of Steele & Flood's SplitMix64). For keys and tables, not against an adversary. */
#ifndef ATTUNE_BASE_HASH_H
#define ATTUNE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct attune__hash {
    uint64_t lane[2];
} attune__hash;

static inline uint64_t attune__hash_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline attune__hash attune__hash_begin(void)
{
    return (attune__hash){{UINT64_C(0x9e3779b97f4a7c15), UINT64_C(0xd1b54a32d192ed03)}};
}

static inline void attune__hash_add(attune__hash *hash, uint64_t word)
{
    hash->lane[0] = attune__hash_mix(hash->lane[0] ^ word) + UINT64_C(0x9e3779b97f4a7c15);
    hash->lane[1] = attune__hash_mix(hash->lane[1] + (word ^ UINT64_C(0xa0761d6478bd642f))) ^ hash->lane[0];
}

/* Adds bytes and their number, so that adjacent strings cannot be confused. */
static inline void attune__hash_bytes(attune__hash *hash, const void *bytes, size_t size)
{
    const unsigned char *from = (const unsigned char *)bytes;
    attune__hash_add(hash, size);
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = 0;
        for (size_t j = 0; j < 8 && i + j < size; j++)
            word |= (uint64_t)from[i + j] << (8 * j);
        attune__hash_add(hash, word);
    }
}

#endif
