/* SPDX-License-Identifier: MIT */
#include "cache/entry.h"

#include <string.h>

#include "base/digest.h"

static const uint8_t magic[8] = {'a', 't', 't', 'u', 'n', 'e', 0, 2};

#define DIGEST   8
#define HASH     40 /* the digest covers everything from here on */
#define KIND     56
#define IDENTITY 60
#define DATA     64

static void put(uint8_t *to, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t take(const uint8_t *from, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static void compute_digest(const uint8_t *head, size_t head_size, const uint8_t *data, size_t data_size,
                           uint8_t out[ATTUNE__DIGEST_SIZE])
{
    attune__digest digest = attune__digest_begin();
    attune__digest_add(&digest, head + HASH, head_size - HASH);
    attune__digest_add(&digest, data, data_size);
    attune__digest_end(&digest, out);
}

size_t attune__entry_size(const attune__cache_key *key, size_t data_size)
{
    const size_t kind = strlen(key->kind);
    if (!kind || kind > ATTUNE__ENTRY_MAX_KEY || key->identity_size > ATTUNE__ENTRY_MAX_KEY)
        return 0;
    const size_t head = ATTUNE__ENTRY_HEADER + kind + key->identity_size;
    return data_size > SIZE_MAX - head ? 0 : head + data_size;
}

void attune__entry_write(const attune__cache_key *key, const void *data, size_t data_size, uint8_t *head)
{
    const size_t kind = strlen(key->kind);
    memcpy(head, magic, sizeof magic);
    put(head + HASH, key->hash.lane[0], 8);
    put(head + HASH + 8, key->hash.lane[1], 8);
    put(head + KIND, kind, 4);
    put(head + IDENTITY, key->identity_size, 4);
    put(head + DATA, data_size, 8);
    memcpy(head + ATTUNE__ENTRY_HEADER, key->kind, kind);
    if (key->identity_size)
        memcpy(head + ATTUNE__ENTRY_HEADER + kind, key->identity, key->identity_size);
    compute_digest(head, ATTUNE__ENTRY_HEADER + kind + key->identity_size, data, data_size, head + DIGEST);
}

void attune__entry_peek(const uint8_t *bytes, attune__entry *entry)
{
    const size_t kind = (size_t)take(bytes + KIND, 4), identity = (size_t)take(bytes + IDENTITY, 4),
                 data = (size_t)take(bytes + DATA, 8);
    *entry = (attune__entry){
        .kind = (const char *)bytes + ATTUNE__ENTRY_HEADER,
        .kind_size = kind,
        .hash = {{take(bytes + HASH, 8), take(bytes + HASH + 8, 8)}},
        .identity = bytes + ATTUNE__ENTRY_HEADER + kind,
        .identity_size = identity,
        .data = bytes + ATTUNE__ENTRY_HEADER + kind + identity,
        .data_size = data,
        .size = ATTUNE__ENTRY_HEADER + kind + identity + data,
    };
}

const char *attune__entry_read(const uint8_t *bytes, size_t size, attune__entry *entry)
{
    if (size < ATTUNE__ENTRY_HEADER)
        return "it is truncated in a header";
    if (memcmp(bytes, magic, sizeof magic) != 0)
        return "it does not begin with this version's magic number";
    const uint64_t kind = take(bytes + KIND, 4), identity = take(bytes + IDENTITY, 4), data = take(bytes + DATA, 8);
    if (!kind)
        return "its key has an empty kind";
    if (kind > ATTUNE__ENTRY_MAX_KEY || identity > ATTUNE__ENTRY_MAX_KEY)
        return "its key exceeds the limit";
    const size_t payload = size - ATTUNE__ENTRY_HEADER;
    if (kind + identity > payload || data > payload - (kind + identity))
        return "it is truncated in its content";
    attune__entry_peek(bytes, entry);
    uint8_t digest[ATTUNE__DIGEST_SIZE];
    compute_digest(bytes, ATTUNE__ENTRY_HEADER + entry->kind_size + entry->identity_size, entry->data, entry->data_size,
                   digest);
    if (memcmp(bytes + DIGEST, digest, sizeof digest) != 0)
        return "its digest does not match its content";
    return NULL;
}

bool attune__entry_matches(const attune__entry *entry, const attune__cache_key *key)
{
    return entry->hash.lane[0] == key->hash.lane[0] && entry->hash.lane[1] == key->hash.lane[1] &&
           entry->kind_size == strlen(key->kind) && !memcmp(entry->kind, key->kind, entry->kind_size) &&
           entry->identity_size == key->identity_size &&
           (!entry->identity_size || !memcmp(entry->identity, key->identity, entry->identity_size));
}
