/* SPDX-License-Identifier: MIT */
#include "base/digest.h"

#include <stdbool.h>
#include <string.h>

/* The fractional parts of the square roots of the first eight primes. */
static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

/* RFC 7693, section 2.7: which word of the block each mixing takes. */
static const uint8_t order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void mix(uint32_t *v, int a, int b, int c, int d, uint32_t x, uint32_t y)
{
    v[a] += v[b] + x;
    v[d] = rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = rotate(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 7);
}

static void compress(attune__digest *d, const uint8_t *block, bool last)
{
    uint32_t v[16], m[16];
    for (int i = 0; i < 16; i++)
        m[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 | (uint32_t)block[4 * i + 2] << 16 |
               (uint32_t)block[4 * i + 3] << 24;
    memcpy(v, d->state, sizeof d->state);
    memcpy(v + 8, start, sizeof start);
    v[12] ^= (uint32_t)d->count;
    v[13] ^= (uint32_t)(d->count >> 32);
    if (last)
        v[14] = ~v[14];
    for (int i = 0; i < 10; i++) {
        const uint8_t *s = order[i];
        mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
        mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
        mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
        mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
        mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
        mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
        mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
        mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++)
        d->state[i] ^= v[i] ^ v[i + 8];
}

attune__digest attune__digest_begin(void)
{
    attune__digest d = {.count = 0};
    memcpy(d.state, start, sizeof start);
    d.state[0] ^= 0x01010000 ^ ATTUNE__DIGEST_SIZE; /* fan-out and depth 1, no key */
    return d;
}

void attune__digest_add(attune__digest *d, const void *bytes, size_t size)
{
    const uint8_t *from = bytes;
    while (size) {
        if (d->used ==
            sizeof d->block) { /* more bytes follow: only the last block is compressed in attune__digest_end */
            d->count += sizeof d->block;
            compress(d, d->block, false);
            d->used = 0;
        }
        const size_t left = sizeof d->block - d->used, part = size < left ? size : left;
        memcpy(d->block + d->used, from, part);
        d->used += part;
        from += part;
        size -= part;
    }
}

void attune__digest_end(attune__digest *d, uint8_t out[ATTUNE__DIGEST_SIZE])
{
    d->count += d->used;
    memset(d->block + d->used, 0, sizeof d->block - d->used);
    compress(d, d->block, true);
    for (int i = 0; i < ATTUNE__DIGEST_SIZE; i++)
        out[i] = (uint8_t)(d->state[i / 4] >> 8 * (i % 4));
}

attune__hash attune__digest_key(attune__digest *d)
{
    uint8_t bytes[ATTUNE__DIGEST_SIZE];
    attune__hash key = {{0, 0}};
    attune__digest_end(d, bytes);
    for (int i = 0; i < 16; i++)
        key.lane[i / 8] |= (uint64_t)bytes[i] << 8 * (i % 8);
    return key;
}
