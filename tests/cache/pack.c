/* SPDX-License-Identifier: MIT */
/* An entry of a pack is found by its kind and both halves of its hash, in the pack that is made and in the one loaded.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cache/pack.h"
#include "cache/scratch.h"

typedef struct item {
    const char *kind;
    attune__hash hash;
    const char *data;
} item;

static const item items[] = {
    {"cuda", {{7, 8}}, "first"},    {"cuda", {{7, 9}}, "second"}, {"cuda", {{6, 8}}, "third half"},
    {"vulkan", {{7, 8}}, "fourth"}, {"cud", {{7, 8}}, "fifth"},   {"cuda", {{8, 7}}, ""},
};
static const item others[] = {
    {"cuda", {{6, 9}}, NULL}, {"vulkan", {{7, 9}}, NULL}, {"cu", {{7, 8}}, NULL}, {"cudas", {{7, 8}}, NULL}};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static attune__cache_key key_of(const item *i)
{
    return (attune__cache_key){i->kind, i->hash, "it", 2};
}

/* A read that is interrupted, then one that gives half, while the file grows. */
static const char *grows; /* NULL = none does */
static int reads;

ssize_t read(int file, void *bytes, size_t size)
{
    if (grows && !reads++) {
        errno = EINTR;
        return -1;
    }
    if (grows && reads == 2) {
        static const char more[4096];
        const int end = open(grows, O_WRONLY | O_APPEND);
        cr_assert(end >= 0 && write(end, more, sizeof more) == (ssize_t)sizeof more);
        close(end);
        size /= 2;
    }
    return (ssize_t)syscall(SYS_read, file, bytes, size);
}

Test(pack, finds_by_kind_and_hash)
{
    scratch r;
    char path[128];
    attune__pack *pack;
    attune__packs packs = {NULL};
    uint32_t count, entries;
    uint64_t bytes;
    const void *data;
    size_t size;
    scratch_open(&r, 0);
    (void)snprintf(path, sizeof path, "%s/p.pack", r.folder);
    const attune_allocator allocator = heap_allocator(&r.heap);
    cr_assert(attune__pack_create(&allocator, &pack) == ATTUNE_OK);
    for (size_t i = 0; i < COUNT(items); i++) {
        const attune__cache_key key = key_of(&items[i]);
        cr_assert(!attune__pack_has(pack, &key), "entry %zu", i);
        cr_assert(attune__pack_add(pack, &key, items[i].data, strlen(items[i].data)) == ATTUNE_OK);
        cr_assert(attune__pack_has(pack, &key));
        cr_assert(attune__pack_add(pack, &key, items[i].data, strlen(items[i].data)) == ATTUNE_OK);
        attune__pack_measure(pack, &entries, &bytes);
        cr_assert(entries == i + 1, "added again: %u entries", entries);
    }
    cr_assert(attune__pack_write(pack, path) == ATTUNE_OK, "%s", attune_last_error());
    grows = path;
    cr_assert(attune__packs_load(&packs, &allocator, path) == ATTUNE_OK, "%s", attune_last_error());
    grows = NULL;
    cr_assert_gt(reads, 2);
    attune__packs_measure(&packs, &count, &entries);
    cr_assert(count == 1 && entries == COUNT(items));
    for (size_t i = 0; i < COUNT(items); i++) {
        cr_assert(attune__packs_find(&packs, items[i].kind, items[i].hash, &data, &size));
        cr_assert(size == strlen(items[i].data) && !memcmp(data, items[i].data, size), "entry %zu", i);
    }
    for (size_t i = 0; i < COUNT(others); i++) {
        const attune__cache_key key = key_of(&others[i]);
        cr_assert(!attune__pack_has(pack, &key) && !attune__packs_find(&packs, key.kind, key.hash, &data, &size));
    }
    attune__packs_finish(&packs, &allocator);
    cr_assert(attune__packs_load(&packs, &allocator, path) == ATTUNE_IO, "it is longer now");
    attune__pack_destroy(pack);
    remove(path);
    scratch_close(&r);
}
