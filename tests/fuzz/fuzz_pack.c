/* SPDX-License-Identifier: MIT */
/*
 * Packs. Entries that were added are found again; a file with one byte changed, a file of any bytes, and one whose
 * entries are well made but say anything are loaded or refused with a message, and what is loaded can be searched.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cache/pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MOST 8192 /* bytes of a file */

static char path[64];

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void remove_file(void)
{
    unlink(path);
}

static void make_path(void)
{
    if (path[0])
        return;
    (void)snprintf(path, sizeof path, "/tmp/attune-fuzz-pack-XXXXXX");
    const int file = mkstemp(path);
    check(file >= 0);
    close(file);
    check(!atexit(remove_file));
}

static void write_file(const uint8_t *bytes, size_t size)
{
    const int file = open(path, O_WRONLY | O_TRUNC);
    check(file >= 0 && write(file, bytes, size) == (ssize_t)size);
    close(file);
}

static size_t read_file(uint8_t bytes[MOST])
{
    const int file = open(path, O_RDONLY);
    const ssize_t size = file < 0 ? -1 : read(file, bytes, MOST);
    check(size >= 0);
    close(file);
    return (size_t)size;
}

static bool load(attune__packs *packs)
{
    *packs = (attune__packs){NULL};
    const attune_status status = attune__packs_load(packs, &attune__default_allocator, path);
    check(status == ATTUNE_OK || ((status == ATTUNE_IO || status == ATTUNE_UNSUPPORTED) && attune_last_error()[0]));
    return status == ATTUNE_OK;
}

/* Number i of the input's entries: its data are the input from there on. */
static attune__cache_key key_of(const uint8_t *data, size_t i)
{
    return (attune__cache_key){data[i] % 2 ? "cuda" : "vulkan", {{i, data[i]}}, "fuzz", data[i] % 5};
}

static void own(const uint8_t *data, size_t size)
{
    static uint8_t bytes[MOST];
    attune__pack *pack;
    const size_t count = data[0] % 8 < size ? data[0] % 8 : size;
    check(attune__pack_create(&attune__default_allocator, &pack) == ATTUNE_OK);
    for (size_t i = 0; i < count; i++) {
        const attune__cache_key key = key_of(data, i);
        check(!attune__pack_has(pack, &key));
        check(attune__pack_add(pack, &key, data + i, (size - i) % 512) == ATTUNE_OK);
        check(attune__pack_has(pack, &key));
    }
    check(attune__pack_write(pack, path) == ATTUNE_OK);
    attune__pack_destroy(pack);

    attune__packs packs;
    uint32_t loaded, entries;
    check(load(&packs));
    attune__packs_measure(&packs, &loaded, &entries);
    check(loaded == 1 && entries == count);
    for (size_t i = 0; i < count; i++) {
        const attune__cache_key key = key_of(data, i);
        const void *found;
        size_t found_size;
        check(attune__packs_find(&packs, key.kind, key.hash, &found, &found_size));
        check(found_size == (size - i) % 512 && (!found_size || !memcmp(found, data + i, found_size)));
    }
    attune__packs_finish(&packs, &attune__default_allocator);

    const size_t total = read_file(bytes);
    bytes[((size_t)data[1] << 8 | data[2]) % total] ^= (uint8_t)(1 + data[3] % 255);
    write_file(bytes, total);
    check(!load(&packs));
}

/* A first entry that says what the input says, and entries whose digests are right. */
static void hostile(const uint8_t *data, size_t size)
{
    static uint8_t bytes[MOST];
    char identity[64];
    const int length = snprintf(identity, sizeof identity, "attune %u", attune_version());
    attune__cache_key key = {"pack", {{0, 0}}, identity, (size_t)length - data[0] % 2};
    size_t at = attune__entry_size(&key, 0);
    attune__entry_write(&key, data, 16, bytes);
    memcpy(bytes + at, data, 16);
    at += 16;
    for (size_t i = 16; i + 2 < size && at < MOST / 2;) {
        const size_t part = data[i] < size - i ? data[i] : size - i;
        key = (attune__cache_key){"cuda", {{data[i], 0}}, data + i, part / 2};
        attune__entry_write(&key, data + i, part, bytes + at);
        memcpy(bytes + at + attune__entry_size(&key, 0), data + i, part);
        at += attune__entry_size(&key, part);
        i += part + 1;
    }
    write_file(bytes, at);
    attune__packs packs;
    const void *found;
    size_t found_size;
    if (load(&packs))
        (void)attune__packs_find(&packs, "cuda", (attune__hash){{data[15], 0}}, &found, &found_size);
    attune__packs_finish(&packs, &attune__default_allocator);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 18 || size > 2048)
        return 0;
    make_path();
    attune__packs packs;
    switch (data[0] % 3) {
    case 0:
        own(data + 1, size - 1);
        break;
    case 1:
        hostile(data + 1, size - 1);
        break;
    default:
        write_file(data + 1, size - 1);
        (void)load(&packs);
        attune__packs_finish(&packs, &attune__default_allocator);
    }
    return 0;
}
