/* SPDX-License-Identifier: MIT */
/*
 * Entries of the cache. Any bytes are an entry or are refused with a reason; what was written reads back, and neither a
 * changed byte nor a missing end passes.
 */
#include <stdlib.h>
#include <string.h>

#include "cache/entry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

/* Bytes that are an entry are the bytes that its own parts make. */
static void read_any(const uint8_t *data, size_t size)
{
    attune__entry entry, peeked;
    if (attune__entry_read(data, size, &entry))
        return;
    char kind[ATTUNE__ENTRY_MAX_KEY + 1] = {0};
    check(entry.size <= size && entry.kind_size < sizeof kind);
    memcpy(kind, entry.kind, entry.kind_size);
    const attune__cache_key key = {kind, entry.hash, entry.identity, entry.identity_size};
    attune__entry_peek(data, &peeked);
    check(peeked.size == entry.size && peeked.data == entry.data);
    if (strlen(kind) != entry.kind_size)
        return;
    check(attune__entry_matches(&entry, &key) && attune__entry_size(&key, entry.data_size) == entry.size);
    uint8_t *head = malloc(entry.size);
    check(head != NULL);
    attune__entry_write(&key, entry.data, entry.data_size, head);
    check(!memcmp(head, data, attune__entry_size(&key, 0)));
    free(head);
}

/* An entry of the input's own parts; a byte of it is changed, and then its end is cut off. */
static void read_own(const uint8_t *data, size_t size)
{
    char kind[16];
    const size_t kind_size = 1 + data[0] % (sizeof kind - 1);
    if (size < 8 + kind_size)
        return;
    for (size_t i = 0; i < kind_size; i++)
        kind[i] = (char)('a' + data[8 + i] % 26);
    kind[kind_size] = '\0';
    const uint8_t *rest = data + 8 + kind_size;
    const size_t rest_size = size - 8 - kind_size, identity_size = rest_size * data[1] / 255;
    attune__cache_key key = {kind, {{data[2], data[3]}}, rest, identity_size};
    const size_t total = attune__entry_size(&key, rest_size - identity_size);
    if (!total)
        return;
    uint8_t *bytes = malloc(total);
    check(bytes != NULL);
    attune__entry_write(&key, rest + identity_size, rest_size - identity_size, bytes);
    if (rest_size > identity_size)
        memcpy(bytes + attune__entry_size(&key, 0), rest + identity_size, rest_size - identity_size);

    attune__entry entry;
    check(!attune__entry_read(bytes, total, &entry) && entry.size == total && attune__entry_matches(&entry, &key));
    key.hash.lane[1]++;
    check(!attune__entry_matches(&entry, &key));
    const size_t at = ((size_t)data[4] << 8 | data[5]) % total;
    check(attune__entry_read(bytes, at, &entry) != NULL);
    bytes[at] ^= (uint8_t)(1 + data[6] % 255);
    check(attune__entry_read(bytes, total, &entry) != NULL);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 9)
        return 0;
    if (data[7] % 2)
        read_any(data + 8, size - 8);
    else
        read_own(data, size);
    return 0;
}
