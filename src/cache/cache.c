/* SPDX-License-Identifier: MIT */
#include "cache/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/environment.h"
#include "base/file.h"
#include "cache/folder.h"

#if defined(__APPLE__)
#define st_mtim st_mtimespec
#endif

#define NAME_SIZE 128 /* of a file name: kind, 32 digits, suffix */
#define KIND_SIZE 48  /* of the kind in a file name, which may be truncated; the entry has the whole kind */
#define SUFFIX    ".attune"

/* Seconds after which a temporary file is considered abandoned. */
#define ABANDONED 3600

struct attune__cache {
    attune_allocator allocator;
    attune_log_fn log;
    void *log_user;
    attune_log_level log_level;
    uint64_t size;
    char *folder;
    atomic_bool warned;
};

/* ------------------------------------------------------------------------------------------------------- the folder */

static void warn(attune__cache *cache, const char *what, int error)
{
    if (atomic_exchange(&cache->warned, true) || !cache->log || cache->log_level < ATTUNE_LOG_WARNING)
        return;
    char message[512];
    errno = error;
    if (error == EPERM)
        snprintf(message, sizeof message,
                 "cache: %s in %.200s: it is another user's, or others may write to it (chown, chmod go-w, or name "
                 "another cache_folder): kernels will be compiled again",
                 what, cache->folder);
    else
        snprintf(message, sizeof message, "cache: %s in %.300s: %m (error %d): kernels will be compiled again", what,
                 cache->folder, error);
    cache->log(cache->log_user, ATTUNE_LOG_WARNING, message);
}

static char *join(const attune_allocator *allocator, const char *parent, const char *child)
{
    const size_t size = strlen(parent) + strlen(child) + 1;
    char *path = attune__alloc(allocator, size, 1);
    if (path)
        snprintf(path, size, "%s%s", parent, child);
    return path;
}

/* Relative paths are ignored, as the XDG base directory specification requires. */
static const char *absolute(const char *variable)
{
    const char *value = attune__environment(variable);
    return value && value[0] == '/' ? value : NULL;
}

static char *choose_folder(const attune__cache_desc *desc)
{
    if (desc->folder)
        return desc->folder[0] ? attune__strdup(&desc->allocator, desc->folder) : NULL;
    const char *parent = absolute("XDG_CACHE_HOME");
    if (parent)
        return join(&desc->allocator, parent, "/attune");
    parent = absolute("HOME");
    if (parent)
        return join(&desc->allocator, parent, "/.cache/attune");
    if (desc->log && desc->log_level >= ATTUNE_LOG_INFO)
        desc->log(desc->log_user, ATTUNE_LOG_INFO, "cache: none: neither XDG_CACHE_HOME nor HOME is an absolute path");
    return NULL;
}

/* Returns -1 if there is no usable folder, with a warning unless it is merely missing. */
static int open_folder(attune__cache *cache, bool make)
{
    int folder = -1;
    const int error = attune__folder_open(cache->folder, make, &folder);
    if (error && (make || error == EPERM || error == ELOOP))
        warn(cache, "cannot make or use the folder", error);
    return folder;
}

attune__cache *attune__cache_open(const attune__cache_desc *desc)
{
    char *folder = choose_folder(desc);
    if (!folder)
        return NULL;
    attune__cache *made = attune__alloc(&desc->allocator, 1, sizeof *made);
    if (!made) {
        attune__free(&desc->allocator, folder);
        return NULL;
    }
    made->allocator = desc->allocator;
    made->log = desc->log;
    made->log_user = desc->log_user;
    made->log_level = desc->log_level;
    made->size = desc->size ? desc->size : ATTUNE__CACHE_SIZE;
    made->folder = folder;
    atomic_init(&made->warned, false);
    return made;
}

void attune__cache_close(attune__cache *cache)
{
    if (!cache)
        return;
    const attune_allocator allocator = cache->allocator;
    attune__free(&allocator, cache->folder);
    attune__free(&allocator, cache);
}

/* ---------------------------------------------------------------------------------------------------------- entries */

static void name_entry(const attune__cache_key *key, char name[NAME_SIZE])
{
    attune__hash hash = key->hash;
    attune__hash_bytes(&hash, key->identity, key->identity_size);
    char kind[KIND_SIZE];
    size_t length = 0;
    for (const char *at = key->kind; *at && length < sizeof kind - 1; at++)
        kind[length++] = *at == '/' || *at == '.' ? '_' : *at;
    kind[length] = '\0';
    snprintf(name, NAME_SIZE, "%s-%016llx%016llx" SUFFIX, kind, (unsigned long long)hash.lane[0],
             (unsigned long long)hash.lane[1]);
}

static bool read_all(int file, uint8_t *to, size_t size)
{
    while (size) {
        const ssize_t got = read(file, to, size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        to += got;
        size -= (size_t)got;
    }
    return true;
}

/* Reads a file that may be an entry; NULL if it cannot be one. */
static uint8_t *read_file(attune__cache *cache, int folder, const char *name, size_t *size)
{
    /* Must not block on a pipe of that name. */
    const int file = openat(folder, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return NULL;
    uint8_t *bytes = NULL;
    struct stat status;
    if (fstat(file, &status) || !S_ISREG(status.st_mode) || status.st_size < (off_t)ATTUNE__ENTRY_HEADER ||
        (uint64_t)status.st_size > cache->size)
        goto done;
    if (!attune__folder_trusted(&status)) {
        warn(cache, "cannot use a file", EPERM);
        goto done;
    }
    bytes = attune__alloc_raw(&cache->allocator, (size_t)status.st_size, 1);
    if (!bytes)
        goto done;
    *size = (size_t)status.st_size;
    if (!read_all(file, bytes, *size)) {
        attune__free(&cache->allocator, bytes);
        bytes = NULL;
    } else {
        futimens(file, NULL); /* the time of last use, for remove_oldest */
    }
done:
    close(file);
    return bytes;
}

bool attune__cache_get(attune__cache *cache, const attune__cache_key *key, void **data, size_t *size)
{
    if (!cache || !attune__entry_size(key, 0))
        return false;
    const int folder = open_folder(cache, false);
    if (folder < 0)
        return false;
    char name[NAME_SIZE];
    name_entry(key, name);
    size_t bytes_size = 0;
    uint8_t *bytes = read_file(cache, folder, name, &bytes_size);
    close(folder);
    if (!bytes)
        return false;
    attune__entry entry;
    if (attune__entry_read(bytes, bytes_size, &entry) || entry.size != bytes_size ||
        !attune__entry_matches(&entry, key)) {
        attune__free(&cache->allocator, bytes);
        return false;
    }
    memmove(bytes, entry.data, entry.data_size);
    *data = bytes;
    *size = entry.data_size;
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- removal */

typedef struct found {
    char name[NAME_SIZE];
    uint64_t size;
    struct timespec used;
} found;

static int compare_used(const void *a, const void *b)
{
    const struct timespec *x = &((const found *)a)->used, *y = &((const found *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static bool ends_with(const char *name, const char *suffix)
{
    const size_t length = strlen(name), tail = strlen(suffix);
    return length > tail && !strcmp(name + length - tail, suffix);
}

/* Removes abandoned files, and the least recently used entries until the rest fits; never `keep`, the newest one. */
static void remove_oldest(const attune__cache *cache, int folder, const char *keep)
{
    const int listed = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = listed < 0 ? NULL : fdopendir(listed);
    if (!list) {
        if (listed >= 0)
            close(listed);
        return;
    }
    found *entries = NULL;
    size_t count = 0, capacity = 0;
    uint64_t total = 0;
    const time_t now = time(NULL);
    for (const struct dirent *at; (at = readdir(list));) {
        struct stat status;
        const bool is_entry = ends_with(at->d_name, SUFFIX),
                   is_temporary = ends_with(at->d_name, ATTUNE__FILE_TEMPORARY);
        if ((!is_entry && !is_temporary) || strlen(at->d_name) >= NAME_SIZE ||
            fstatat(folder, at->d_name, &status, AT_SYMLINK_NOFOLLOW) || !S_ISREG(status.st_mode))
            continue;
        const time_t age = now - status.st_mtim.tv_sec;
        if (is_temporary && (age > ABANDONED || age < -ABANDONED) && !unlinkat(folder, at->d_name, 0))
            continue;
        total += (uint64_t)status.st_size;
        if (is_temporary || !strcmp(at->d_name, keep))
            continue;
        if (!attune__grow(&cache->allocator, (void **)&entries, &capacity, count, count + 1, sizeof *entries))
            break;
        memcpy(entries[count].name, at->d_name, strlen(at->d_name) + 1); /* its length is checked above */
        entries[count].size = (uint64_t)status.st_size;
        entries[count].used = status.st_mtim;
        count++;
    }
    closedir(list);
    if (entries && total > cache->size) {
        qsort(entries, count, sizeof *entries, compare_used);
        for (size_t i = 0; i < count && total > cache->size; i++) {
            unlinkat(folder, entries[i].name, 0);
            total -= entries[i].size;
        }
    }
    attune__free(&cache->allocator, entries);
}

/* ---------------------------------------------------------------------------------------------------------- writing */

static int write_entry(int folder, const char *name, const void *head, size_t head_size, const void *data, size_t size)
{
    attune__file file;
    int error = attune__file_find_in(&file, folder, name);
    if (!error)
        error = attune__file_open(&file);
    if (!error)
        error = attune__file_write(&file, head, head_size);
    if (!error)
        error = attune__file_write(&file, data, size);
    if (!error)
        error = attune__file_commit(&(attune__file *){&file}, 1);
    attune__file_drop(&file);
    return error;
}

void attune__cache_put(attune__cache *cache, const attune__cache_key *key, const void *data, size_t size)
{
    if (!cache)
        return;
    const size_t whole = attune__entry_size(key, size), head_size = attune__entry_size(key, 0);
    if (!whole || whole > cache->size)
        return;
    const int folder = open_folder(cache, true);
    if (folder < 0)
        return;
    uint8_t *head = attune__alloc_raw(&cache->allocator, head_size, 1);
    if (head) {
        char name[NAME_SIZE];
        attune__entry_write(key, data, size, head);
        name_entry(key, name);
        const int error = write_entry(folder, name, head, head_size, data, size);
        if (error)
            warn(cache, "cannot write a file", error);
        else
            remove_oldest(cache, folder, name);
    }
    attune__free(&cache->allocator, head);
    close(folder);
}
