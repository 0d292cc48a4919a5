/* SPDX-License-Identifier: MIT */
#include "cache/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread.h"

#if defined(_WIN32)
#define O_NONBLOCK 0
#define O_CLOEXEC  (_O_NOINHERIT | _O_BINARY)
#endif

#define KIND          "pack"
#define IDENTITY      "attune %u"
#define IDENTITY_SIZE 24
#define COUNTS        16 /* bytes of the first entry's data */
#define MOST_BYTES    (UINT64_C(1) << 31)
#define MOST_READ     ((size_t)1 << 30) /* in one call: Windows takes an int */

static void put64(uint8_t *to, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t take64(const uint8_t *from)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static bool equal_hashes(attune__hash a, attune__hash b)
{
    return a.lane[0] == b.lane[0] && a.lane[1] == b.lane[1];
}

/* ---------------------------------------------------------------------------------------------------- making a pack */

struct attune__pack {
    attune_allocator allocator;
    attune__mutex lock;
    uint8_t *bytes; /* entries, one after another */
    size_t size, capacity;
    uint32_t count;
};

attune_status attune__pack_create(const attune_allocator *allocator, attune__pack **pack)
{
    attune__pack *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->allocator = *allocator;
    attune__mutex_init(&made->lock);
    *pack = made;
    return ATTUNE_OK;
}

void attune__pack_destroy(attune__pack *pack)
{
    if (!pack)
        return;
    const attune_allocator allocator = pack->allocator;
    attune__mutex_destroy(&pack->lock);
    attune__free(&allocator, pack->bytes);
    attune__free(&allocator, pack);
}

static bool has(const attune__pack *pack, const attune__cache_key *key)
{
    attune__entry entry;
    for (size_t at = 0; at < pack->size; at += entry.size) {
        attune__entry_peek(pack->bytes + at, &entry);
        if (attune__entry_matches(&entry, key))
            return true;
    }
    return false;
}

bool attune__pack_has(attune__pack *pack, const attune__cache_key *key)
{
    attune__mutex_lock(&pack->lock);
    const bool found = has(pack, key);
    attune__mutex_unlock(&pack->lock);
    return found;
}

attune_status attune__pack_add(attune__pack *pack, const attune__cache_key *key, const void *data, size_t size)
{
    const size_t whole = attune__entry_size(key, size), head = attune__entry_size(key, 0);
    attune_status status = ATTUNE_OK;
    attune__mutex_lock(&pack->lock);
    if (has(pack, key))
        goto done;
    if (!whole || whole > MOST_BYTES - pack->size) {
        status = attune__fail(ATTUNE_UNSUPPORTED, "a pack of %zu bytes cannot take %zu more: the limit is %llu",
                              pack->size, size, (unsigned long long)MOST_BYTES);
        goto done;
    }
    if (!attune__grow(&pack->allocator, (void **)&pack->bytes, &pack->capacity, pack->size, pack->size + whole, 1)) {
        status = ATTUNE_OUT_OF_HOST_MEMORY;
        goto done;
    }
    attune__entry_write(key, data, size, pack->bytes + pack->size);
    memcpy(pack->bytes + pack->size + head, data, size);
    pack->size += whole;
    pack->count++;
done:
    attune__mutex_unlock(&pack->lock);
    return status;
}

void attune__pack_measure(attune__pack *pack, uint32_t *entries, uint64_t *bytes)
{
    attune__mutex_lock(&pack->lock);
    *entries = pack->count;
    *bytes = pack->size;
    attune__mutex_unlock(&pack->lock);
}

/* Writes the first entry, which has the counts, and then the others. */
static int write_entries(const attune__pack *pack, attune__file *file)
{
    uint8_t head[ATTUNE__ENTRY_HEADER + sizeof KIND + IDENTITY_SIZE], counts[COUNTS];
    char identity[IDENTITY_SIZE];
    const int length = snprintf(identity, sizeof identity, IDENTITY, attune_version());
    const attune__cache_key key = {KIND, attune__hash_begin(), identity, (size_t)length};
    put64(counts, pack->count);
    put64(counts + 8, pack->size);
    attune__entry_write(&key, counts, sizeof counts, head);
    int error = attune__file_write(file, head, attune__entry_size(&key, 0));
    if (!error)
        error = attune__file_write(file, counts, sizeof counts);
    return error ? error : attune__file_write(file, pack->bytes, pack->size);
}

attune_status attune__pack_write(attune__pack *pack, const char *path)
{
    attune__file file;
    int error = attune__file_find(&file, path);
    if (!error)
        error = attune__file_open(&file);
    if (!error) {
        attune__mutex_lock(&pack->lock);
        error = write_entries(pack, &file);
        attune__mutex_unlock(&pack->lock);
    }
    if (!error)
        error = attune__file_commit(&(attune__file *){&file}, 1);
    attune__file_drop(&file);
    if (!error)
        return ATTUNE_OK;
    char why[ATTUNE__FILE_REASON];
    attune__file_reason(error, why);
    return attune__fail(ATTUNE_IO, "cannot write the pack %.300s: %s (error %d)", path, why, error);
}

/* ----------------------------------------------------------------------------------------------------- loaded packs */

struct attune__loaded {
    struct attune__loaded *next;
    uint8_t *bytes;
    size_t size, begin; /* of the file; of the entries after the first */
    uint32_t count;
};

static attune_status read_file(const attune_allocator *allocator, const char *path, struct attune__loaded *pack)
{
    attune_status status = ATTUNE_OK;
    struct stat info;
    /* Must not block on a pipe of that name. */
    const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) {
        const int error = errno;
        char why[ATTUNE__FILE_REASON];
        attune__file_reason(error, why);
        return attune__fail(ATTUNE_IO, "cannot open the pack %.300s: %s (error %d)", path, why, error);
    }
    if (fstat(file, &info) || !S_ISREG(info.st_mode) || (uint64_t)info.st_size > 2 * MOST_BYTES) {
        status = attune__fail(ATTUNE_IO, "%.300s is no pack: it is no file, or has more than %llu bytes", path,
                              (unsigned long long)(2 * MOST_BYTES));
        goto done;
    }
    pack->size = (size_t)info.st_size;
    pack->bytes = attune__alloc_raw(allocator, pack->size, 1);
    if (!pack->bytes) {
        status = ATTUNE_OUT_OF_HOST_MEMORY;
        goto done;
    }
    for (size_t at = 0; at < pack->size;) {
        const size_t left = pack->size - at;
        const ssize_t got = read(file, pack->bytes + at, (unsigned)(left < MOST_READ ? left : MOST_READ));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            status = attune__fail(ATTUNE_IO, "cannot read the pack %.300s past byte %zu: error %d", path, at,
                                  got ? errno : 0);
            break;
        }
        at += (size_t)got;
    }
done:
    close(file);
    return status;
}

/* Verifies every entry once, so that searches need not. */
static attune_status check(const char *path, struct attune__loaded *pack)
{
    attune__entry entry;
    const char *wrong = attune__entry_read(pack->bytes, pack->size, &entry);
    if (!wrong && (entry.kind_size != strlen(KIND) || memcmp(entry.kind, KIND, entry.kind_size) != 0 ||
                   entry.data_size != COUNTS))
        wrong = "it is an entry of a cache";
    if (wrong)
        return attune__fail(ATTUNE_IO, "%.300s is no pack, or damaged: %s: make it again with `attune compile`", path,
                            wrong);
    char identity[IDENTITY_SIZE];
    const int length = snprintf(identity, sizeof identity, IDENTITY, attune_version());
    if (entry.identity_size != (size_t)length || memcmp(entry.identity, identity, (size_t)length) != 0)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "the pack %.300s was made by \"%.*s\", this is \"%s\": make it again with its own "
                            "`attune compile`",
                            path, (int)(entry.identity_size < 40 ? entry.identity_size : 40),
                            (const char *)entry.identity, identity);
    const uint64_t count = take64(entry.data), bytes = take64(entry.data + 8);
    pack->begin = entry.size;
    if (bytes != pack->size - pack->begin)
        return attune__fail(ATTUNE_IO,
                            "the pack %.300s is damaged: %zu bytes follow its beginning, which says %llu: copy or make "
                            "it again",
                            path, pack->size - pack->begin, (unsigned long long)bytes);
    uint64_t found = 0;
    for (size_t at = pack->begin; at < pack->size; at += entry.size, found++) {
        wrong = attune__entry_read(pack->bytes + at, pack->size - at, &entry);
        if (wrong)
            return attune__fail(
                ATTUNE_IO, "the pack %.300s is damaged: entry %llu of %llu, at byte %zu: %s: copy or make it again",
                path, (unsigned long long)found + 1, (unsigned long long)count, at, wrong);
    }
    if (found != count)
        return attune__fail(ATTUNE_IO, "the pack %.300s is damaged: it has %llu entries and says %llu", path,
                            (unsigned long long)found, (unsigned long long)count);
    pack->count = (uint32_t)count;
    return ATTUNE_OK;
}

attune_status attune__packs_load(attune__packs *packs, const attune_allocator *allocator, const char *path)
{
    struct attune__loaded *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune_status status = read_file(allocator, path, made);
    if (status == ATTUNE_OK)
        status = check(path, made);
    if (status != ATTUNE_OK) {
        attune__free(allocator, made->bytes);
        attune__free(allocator, made);
        return status;
    }
    /* Packs are only prepended until all are released, so that readers need no lock. */
    made->next = atomic_load(&packs->first);
    while (!atomic_compare_exchange_weak(&packs->first, &made->next, made))
        ;
    return ATTUNE_OK;
}

void attune__packs_finish(attune__packs *packs, const attune_allocator *allocator)
{
    for (struct attune__loaded *at = atomic_load(&packs->first), *next; at; at = next) {
        next = at->next;
        attune__free(allocator, at->bytes);
        attune__free(allocator, at);
    }
    atomic_store(&packs->first, NULL);
}

void attune__packs_measure(const attune__packs *packs, uint32_t *count, uint32_t *entries)
{
    *count = *entries = 0;
    if (packs)
        for (const struct attune__loaded *at = atomic_load(&packs->first); at; at = at->next) {
            ++*count;
            *entries += at->count;
        }
}

bool attune__packs_find(const attune__packs *packs, const char *kind, attune__hash hash, const void **data,
                        size_t *size)
{
    const struct attune__loaded *pack = packs ? atomic_load(&packs->first) : NULL;
    for (; pack; pack = pack->next) {
        attune__entry entry;
        for (size_t at = pack->begin; at < pack->size; at += entry.size) {
            attune__entry_peek(pack->bytes + at, &entry);
            if (!equal_hashes(entry.hash, hash) || entry.kind_size != strlen(kind) ||
                memcmp(entry.kind, kind, entry.kind_size) != 0)
                continue;
            *data = entry.data;
            *size = entry.data_size;
            return true;
        }
    }
    return false;
}
