/* SPDX-License-Identifier: MIT */
/* Damage to a file, everywhere: a miss, and the next put repairs it. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cache/scratch.h"

#define SIZE 200

typedef struct kept {
    scratch r;
    attune__cache_key key;
    uint8_t data[SIZE];
    char path[512];
    uint8_t bytes[1024];
    size_t size;
} kept;

static void kept_open(kept *k)
{
    scratch_open(&k->r, 0);
    k->key = scratch_key("cuda", 42, "nvrtc 13.0, driver 580.95");
    for (size_t i = 0; i < SIZE; i++)
        k->data[i] = (uint8_t)(i * 37 + 11);
    attune__cache_put(k->r.cache, &k->key, k->data, SIZE);
    scratch_only_file(&k->r, k->path);
    const int file = open(k->path, O_RDONLY);
    const ssize_t size = read(file, k->bytes, sizeof k->bytes);
    close(file);
    k->size = (size_t)size;
    cr_assert_eq(k->size, ATTUNE__ENTRY_HEADER + 4 + strlen("nvrtc 13.0, driver 580.95") + SIZE);
}

static void replace(const kept *k, const uint8_t *bytes, size_t size)
{
    const int file = open(k->path, O_WRONLY | O_TRUNC);
    cr_assert_geq(file, 0);
    cr_assert_eq(write(file, bytes, size), (ssize_t)size);
    close(file);
}

static bool hit(kept *k)
{
    void *data = NULL;
    size_t size = 0;
    if (!attune__cache_get(k->r.cache, &k->key, &data, &size))
        return false;
    cr_assert_eq(size, SIZE);
    cr_assert_eq(memcmp(data, k->data, SIZE), 0);
    const attune_allocator allocator = heap_allocator(&k->r.heap);
    attune__free(&allocator, data);
    return true;
}

Test(damage, of_every_bit)
{
    static kept k;
    kept_open(&k);
    cr_assert(hit(&k));
    for (size_t i = 0; i < k.size; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint8_t bytes[sizeof k.bytes];
            memcpy(bytes, k.bytes, k.size);
            bytes[i] ^= (uint8_t)(1 << bit);
            replace(&k, bytes, k.size);
            cr_assert_not(hit(&k), "byte %zu, bit %d", i, bit);
        }
    attune__cache_put(k.r.cache, &k.key, k.data, SIZE);
    cr_assert(hit(&k), "the next put repairs it");
    cr_assert_eq(scratch_files(&k.r, ""), 1);
    scratch_close(&k.r);
}

Test(damage, of_the_length)
{
    static kept k;
    kept_open(&k);
    for (size_t size = 0; size < k.size; size++) {
        replace(&k, k.bytes, size);
        cr_assert_not(hit(&k), "%zu of %zu bytes", size, k.size);
    }
    uint8_t longer[sizeof k.bytes + 1];
    memcpy(longer, k.bytes, k.size);
    for (size_t more = 1; more < 20; more++) {
        longer[k.size + more - 1] = 0;
        replace(&k, longer, k.size + more);
        cr_assert_not(hit(&k), "%zu bytes too long", more);
    }
    replace(&k, k.bytes, k.size);
    cr_assert(hit(&k));
    scratch_close(&k.r);
}

/* A sound entry in another's place, and things that are no files. */
Test(damage, of_the_name)
{
    static kept k;
    kept_open(&k);
    const attune__cache_key other = scratch_key("cuda", 42, "nvrtc 13.0, driver 580.96");
    uint8_t head[512];
    attune__entry_write(&other, k.data, SIZE, head);
    uint8_t whole[1024];
    const size_t head_size = attune__entry_size(&other, 0);
    memcpy(whole, head, head_size);
    memcpy(whole + head_size, k.data, SIZE);
    replace(&k, whole, head_size + SIZE);
    cr_assert_not(hit(&k), "another driver's kernel");

    unlink(k.path);
    cr_assert_eq(mkfifo(k.path, 0600), 0);
    cr_assert_not(hit(&k), "a pipe");
    attune__cache_put(k.r.cache, &k.key, k.data, SIZE);
    cr_assert(hit(&k));

    char elsewhere[600];
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", k.r.folder);
    cr_assert_eq(rename(k.path, elsewhere), 0);
    cr_assert_eq(symlink(elsewhere, k.path), 0);
    cr_assert_not(hit(&k), "a link");
    attune__cache_put(k.r.cache, &k.key, k.data, SIZE);
    cr_assert(hit(&k));
    scratch_close(&k.r);
}

Test(damage, random_bytes_are_never_an_entry)
{
    static kept k;
    kept_open(&k);
    uint64_t state = 12345;
    for (int round = 0; round < 20000; round++) {
        uint8_t bytes[sizeof k.bytes];
        memcpy(bytes, k.bytes, k.size);
        const int changes = 1 + round % 40;
        for (int i = 0; i < changes; i++) {
            state = attune__hash_mix(state + 1);
            bytes[state % k.size] = (uint8_t)(state >> 32);
        }
        if (!memcmp(bytes, k.bytes, k.size))
            continue;
        attune__entry entry;
        cr_assert_not_null(attune__entry_read(bytes, (state >> 40) % (k.size + 1), &entry));
        cr_assert_not_null(attune__entry_read(bytes, k.size, &entry));
    }
    scratch_close(&k.r);
}
