/* SPDX-License-Identifier: MIT */
/* A cache's entries, owner and size, and calls where it cannot be written. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cache/folder.h"
#include "cache/scratch.h"

/* --------------------------------------------------------------------------------------------------------- the folder
 */

static void count_line(void *user, attune_log_level level, const char *message)
{
    scratch *r = user;
    (void)level;
    atomic_fetch_add(&r->lines, 1);
    snprintf(r->line, sizeof r->line, "%s", message);
}

static attune__cache_desc scratch_desc(scratch *r, const char *folder, uint64_t size)
{
    return (attune__cache_desc){
        .allocator = heap_allocator(&r->heap),
        .log = count_line,
        .log_user = r,
        .log_level = ATTUNE_LOG_WARNING,
        .folder = folder,
        .size = size,
    };
}

void scratch_open(scratch *r, uint64_t size)
{
    memset(r, 0, sizeof *r);
    snprintf(r->folder, sizeof r->folder, "/tmp/attune-cache-XXXXXX");
    cr_assert_not_null(mkdtemp(r->folder));
    snprintf(r->kernels, sizeof r->kernels, "%s/kernels", r->folder);
    const attune__cache_desc desc = scratch_desc(r, r->kernels, size);
    r->cache = attune__cache_open(&desc);
    cr_assert_not_null(r->cache);
}

static void remove_tree(const char *path)
{
    chmod(path, 0700);
    DIR *list = opendir(path);
    for (const struct dirent *at; list && (at = readdir(list));) {
        if (!strcmp(at->d_name, ".") || !strcmp(at->d_name, ".."))
            continue;
        char child[1024];
        snprintf(child, sizeof child, "%s/%s", path, at->d_name);
        if (unlink(child))
            remove_tree(child);
    }
    if (list)
        closedir(list);
    rmdir(path);
}

void scratch_close(scratch *r)
{
    attune__cache_close(r->cache);
    cr_assert_eq(atomic_load(&r->heap.live), 0, "%lld allocations leak", (long long)atomic_load(&r->heap.live));
    remove_tree(r->folder);
}

attune__cache_key scratch_key(const char *kind, uint64_t number, const char *identity)
{
    attune__hash hash = attune__hash_begin();
    attune__hash_add(&hash, number);
    return (attune__cache_key){kind, hash, identity, strlen(identity)};
}

int scratch_files(const scratch *r, const char *suffix)
{
    DIR *list = opendir(r->kernels);
    int count = 0;
    for (const struct dirent *at; list && (at = readdir(list));) {
        const size_t length = strlen(at->d_name), tail = strlen(suffix);
        count += at->d_name[0] != '.' && length >= tail && !strcmp(at->d_name + length - tail, suffix);
    }
    if (list)
        closedir(list);
    return count;
}

void scratch_only_file(const scratch *r, char path[512])
{
    cr_assert_eq(scratch_files(r, ""), 1);
    DIR *list = opendir(r->kernels);
    for (const struct dirent *at; (at = readdir(list));)
        if (at->d_name[0] != '.')
            snprintf(path, 512, "%s/%s", r->kernels, at->d_name);
    closedir(list);
}

static bool has(scratch *r, const attune__cache_key *key, const void *data, size_t size)
{
    void *got = NULL;
    size_t got_size = 0;
    if (!attune__cache_get(r->cache, key, &got, &got_size))
        return false;
    const bool equal = got_size == size && !memcmp(got, data, size);
    const attune_allocator allocator = heap_allocator(&r->heap);
    attune__free(&allocator, got);
    cr_assert(equal, "the cache gave other bytes than it was given");
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ tests */

Test(cache, keeps_bytes_between_caches)
{
    static scratch r;
    scratch_open(&r, 0);
    uint8_t data[3000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(rand() >> 7);
    const attune__cache_key key = scratch_key("cuda", 1, "nvrtc 13.0");
    cr_assert_not(has(&r, &key, data, sizeof data));
    for (size_t size = 0; size < 20; size++) {
        const attune__cache_key small = scratch_key("cuda", 100 + size, "");
        attune__cache_put(r.cache, &small, data, size);
        cr_assert(has(&r, &small, data, size), "%zu bytes", size);
    }
    attune__cache_put(r.cache, &key, data, sizeof data);
    attune__cache_close(r.cache);
    const attune__cache_desc desc = scratch_desc(&r, r.kernels, 0);
    r.cache = attune__cache_open(&desc);
    cr_assert(has(&r, &key, data, sizeof data));
    cr_assert_eq(scratch_files(&r, "tmp"), 0);
    cr_assert_eq(atomic_load(&r.lines), 0, "%s", r.line);
    scratch_close(&r);
}

Test(cache, every_part_of_the_key_counts)
{
    static scratch r;
    scratch_open(&r, 0);
    const attune__cache_key key = scratch_key("cuda", 1, "driver 580");
    attune__cache_put(r.cache, &key, "one", 3);
    const attune__cache_key others[] = {
        scratch_key("cuda", 2, "driver 580"),   scratch_key("cuda", 1, "driver 581"),
        scratch_key("cuda", 1, "driver 58"),    scratch_key("cuda", 1, ""),
        scratch_key("vulkan", 1, "driver 580"),
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        cr_assert_not(has(&r, &others[i], "", 0), "%zu", i);
    cr_assert(has(&r, &key, "one", 3));
    /* Each key has an entry of its own. */
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        attune__cache_put(r.cache, &others[i], &i, sizeof i);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        cr_assert(has(&r, &others[i], &i, sizeof i), "%zu", i);
    cr_assert(has(&r, &key, "one", 3));
    /* Two kinds that make one file name are still two. */
    const attune__cache_key dot = scratch_key("a.b", 7, ""), bar = scratch_key("a_b", 7, "");
    attune__cache_put(r.cache, &dot, "dot", 3);
    cr_assert_not(has(&r, &bar, "", 0));
    cr_assert(has(&r, &dot, "dot", 3));
    scratch_close(&r);
}

Test(cache, a_kind_does_not_leave_the_folder)
{
    static scratch r;
    scratch_open(&r, 0);
    const attune__cache_key key = scratch_key("../../escape", 1, "");
    attune__cache_put(r.cache, &key, "x", 1);
    cr_assert(has(&r, &key, "x", 1));
    cr_assert_eq(scratch_files(&r, ".attune"), 1);
    /* A file has the beginning of a long kind in its name, the entry all of it. */
    char kind[100] = "", path[512];
    memset(kind, 'k', sizeof kind - 1);
    const attune__cache_key whole = scratch_key(kind, 1, "");
    remove_tree(r.kernels);
    attune__cache_put(r.cache, &whole, "y", 1);
    cr_assert(has(&r, &whole, "y", 1));
    scratch_only_file(&r, path);
    cr_assert_eq(strspn(strrchr(path, '/') + 1, "k"), 47);
    kind[98] = '\0';
    cr_assert_not(has(&r, &whole, "y", 1));
    char *endless = malloc(ATTUNE__ENTRY_MAX_KEY + 2);
    memset(endless, 'k', ATTUNE__ENTRY_MAX_KEY + 1);
    endless[ATTUNE__ENTRY_MAX_KEY + 1] = '\0';
    const attune__cache_key long_key = scratch_key(endless, 1, "");
    attune__cache_put(r.cache, &long_key, "x", 1);
    cr_assert_not(has(&r, &long_key, "x", 1));
    free(endless);
    scratch_close(&r);
}

Test(cache, the_oldest_go_first)
{
    static scratch r;
    static uint8_t data[10000];
    scratch_open(&r, 60000);
    /* A stranger's file, and a dead and a living writer's, which counts. */
    attune__cache_key keys[8];
    for (uint64_t i = 0; i < 8; i++)
        keys[i] = scratch_key("k", i, "id");
    attune__cache_put(r.cache, &keys[0], data, sizeof data);
    char path[512], dead[600], living[600], stranger[600];
    scratch_only_file(&r, path);
    snprintf(dead, sizeof dead, "%s/1-1.attune-tmp", r.kernels);
    snprintf(living, sizeof living, "%s/1-2.attune-tmp", r.kernels);
    snprintf(stranger, sizeof stranger, "%s/stranger.bin", r.kernels);
    const char *others[] = {dead, living, stranger};
    for (int i = 0; i < 3; i++) {
        const int file = open(others[i], O_CREAT | O_WRONLY, 0600);
        cr_assert_geq(file, 0);
        cr_assert_eq(write(file, data, sizeof data), (ssize_t)sizeof data);
        close(file);
    }
    const struct timespec past[2] = {{1000000, 0}, {1000000, 0}};
    cr_assert_eq(utimensat(AT_FDCWD, dead, past, 0), 0);
    cr_assert_eq(utimensat(AT_FDCWD, stranger, past, 0), 0);
    for (int i = 1; i < 7; i++) {
        usleep(20000);
        cr_assert(has(&r, &keys[0], data, sizeof data), "the first is used all the time, so it stays: round %d", i);
        usleep(20000);
        attune__cache_put(r.cache, &keys[i], data, sizeof data);
    }
    cr_assert_eq(scratch_files(&r, ".attune"), 4);
    for (int i = 0; i < 7; i++)
        cr_assert_eq(has(&r, &keys[i], data, sizeof data), i == 0 || i > 3, "%d", i);
    cr_assert_neq(access(dead, F_OK), 0);
    cr_assert_eq(access(living, F_OK), 0);
    cr_assert_eq(access(stranger, F_OK), 0);
    /* An entry larger than the cache displaces nothing. */
    static uint8_t large[70000];
    attune__cache_put(r.cache, &keys[7], large, sizeof large);
    cr_assert_eq(scratch_files(&r, ".attune"), 4);
    /* One that displaces several at once. */
    attune__cache_put(r.cache, &keys[7], large, 35000);
    cr_assert(has(&r, &keys[7], large, 35000));
    cr_assert_eq(scratch_files(&r, ".attune"), 2);
    scratch_close(&r);
}

/* Unfinished files fill the disk as well; a clock that was wrong keeps none of them for ever. */
Test(cache, temporary_files_count)
{
    static scratch r;
    static uint8_t data[10000];
    scratch_open(&r, 50000);
    attune__cache_key keys[4];
    for (uint64_t i = 0; i < 4; i++)
        keys[i] = scratch_key("k", i, "id");
    attune__cache_put(r.cache, &keys[0], data, sizeof data);
    char living[600], ahead[600];
    snprintf(living, sizeof living, "%s/1.attune-tmp", r.kernels);
    snprintf(ahead, sizeof ahead, "%s/2.attune-tmp", r.kernels);
    const char *const others[] = {living, ahead};
    for (int i = 0; i < 2; i++) {
        const int file = open(others[i], O_CREAT | O_WRONLY, 0600);
        cr_assert(file >= 0 && ftruncate(file, 25000) == 0);
        close(file);
    }
    const struct timespec future[2] = {{time(NULL) + 100000, 0}, {time(NULL) + 100000, 0}};
    cr_assert_eq(utimensat(AT_FDCWD, ahead, future, 0), 0);
    for (int i = 1; i < 4; i++) {
        usleep(20000);
        attune__cache_put(r.cache, &keys[i], data, sizeof data);
    }
    for (int i = 0; i < 4; i++)
        cr_assert_eq(has(&r, &keys[i], data, sizeof data), i > 1, "%d", i);
    cr_assert_eq(access(living, F_OK), 0);
    cr_assert_neq(access(ahead, F_OK), 0);
    scratch_close(&r);
}

/* Whoever can write to the folder, or to a file in it, can choose what runs. */
Test(cache, others_may_write_to_it)
{
    const struct {
        mode_t mode;
        bool hit;
    } folders[] = {{0700, true}, {0755, true}, {0720, false}, {0702, false}, {0777, false}, {01777, false}};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        for (int of_entry = 0; of_entry < 2; of_entry++) {
            static scratch r;
            scratch_open(&r, 0);
            const attune__cache_key key = scratch_key("k", 1, ""), late = scratch_key("k", 2, "");
            attune__cache_put(r.cache, &key, "x", 1);
            char path[512];
            scratch_only_file(&r, path);
            cr_assert_eq(chmod(of_entry ? path : r.kernels, folders[i].mode), 0);
            cr_assert_eq(has(&r, &key, "x", 1), folders[i].hit, "mode %o", (unsigned)folders[i].mode);
            cr_assert_eq(has(&r, &key, "x", 1), folders[i].hit);
            cr_assert_eq(atomic_load(&r.lines), folders[i].hit ? 0 : 1, "one line, not one for each kernel");
            attune__cache_put(r.cache, &late, "y", 1);
            cr_assert_eq(has(&r, &late, "y", 1), folders[i].hit || of_entry);
            cr_assert(folders[i].hit || (strstr(r.line, r.kernels) && strstr(r.line, "chmod go-w")), "%s", r.line);
            if (of_entry) {
                attune__cache_put(r.cache, &key, "z", 1);
                cr_assert(has(&r, &key, "z", 1), "the next put replaces it");
            }
            scratch_close(&r);
        }
}

Test(cache, another_users)
{
    if (geteuid() != 0)
        cr_skip("only the super-user can give files away");
    static scratch r;
    const attune__cache_key key = scratch_key("k", 1, ""), late = scratch_key("k", 2, "");
    for (int of_entry = 0; of_entry < 2; of_entry++) {
        scratch_open(&r, 0);
        attune__cache_put(r.cache, &key, "x", 1);
        char path[512];
        scratch_only_file(&r, path);
        cr_assert_eq(chown(of_entry ? path : r.kernels, 65534, 65534), 0);
        cr_assert_not(has(&r, &key, "x", 1));
        attune__cache_put(r.cache, &late, "y", 1);
        cr_assert_eq(has(&r, &late, "y", 1), of_entry);
        cr_assert_eq(atomic_load(&r.lines), 1);
        scratch_close(&r);
    }
}

/* One's own link leads to the folder, another's does not: neither at its end nor on the way. */
Test(cache, links_on_the_way)
{
    static scratch r;
    scratch_open(&r, 0);
    const attune__cache_key key = scratch_key("k", 1, "");
    attune__cache_put(r.cache, &key, "x", 1);
    char end[100], way[100], through[120];
    snprintf(end, sizeof end, "%s/end", r.folder);
    snprintf(way, sizeof way, "%s/way", r.folder);
    snprintf(through, sizeof through, "%s/way/../kernels//", r.folder);
    cr_assert_eq(symlink("kernels", end), 0);
    cr_assert_eq(symlink("kernels/", way), 0);
    const char *const paths[] = {end, through};
    for (int theirs = 0; theirs < (geteuid() == 0 ? 2 : 1); theirs++) {
        if (theirs)
            cr_assert(lchown(end, 65534, 65534) == 0 && lchown(way, 65534, 65534) == 0);
        for (int i = 0; i < 2; i++) {
            attune__cache_close(r.cache);
            const attune__cache_desc desc = scratch_desc(&r, paths[i], 0);
            r.cache = attune__cache_open(&desc);
            cr_assert_eq(has(&r, &key, "x", 1), !theirs, "%s", paths[i]);
        }
    }
    cr_assert_eq(atomic_load(&r.lines), geteuid() == 0 ? 2 : 0);
    scratch_close(&r);
}

/* The user's own link leads through another user's to the folder; dangling links and cycles end. */
Test(cache, links_to_links)
{
    static scratch r;
    scratch_open(&r, 0);
    const attune__cache_key key = scratch_key("k", 1, "");
    attune__cache_put(r.cache, &key, "x", 1);
    char name[5][100];
    const char *const made[5][2] = {
        {"kernels", "last"}, {"./last", "second"}, {"second/.", "first"}, {"round", "round"}, {NULL, "absolute"}};
    char absolute[120];
    snprintf(absolute, sizeof absolute, "%s/second", r.folder);
    for (int i = 0; i < 5; i++) {
        snprintf(name[i], sizeof name[i], "%s/%s", r.folder, made[i][1]);
        cr_assert_eq(symlink(made[i][0] ? made[i][0] : absolute, name[i]), 0);
    }
    for (int theirs = 0; theirs < (geteuid() == 0 ? 2 : 1); theirs++) {
        if (theirs)
            cr_assert_eq(lchown(name[0], 65534, 65534), 0);
        for (int i = 1; i < 5; i++) {
            attune__cache_close(r.cache);
            const attune__cache_desc desc = scratch_desc(&r, name[i], 0);
            r.cache = attune__cache_open(&desc);
            cr_assert_eq(has(&r, &key, "x", 1), i != 3 && !theirs, "%s", name[i]);
        }
    }
    scratch_close(&r);
}

/* A process without standard input has folders of number 0, at the beginning, after a link or at the end. */
Test(cache, number_zero_is_a_folder)
{
    static scratch r;
    scratch_open(&r, 0);
    char link[100];
    snprintf(link, sizeof link, "%s/absolute", r.folder);
    cr_assert_eq(mkdir(r.kernels, 0700), 0);
    cr_assert_eq(symlink(r.kernels, link), 0);
    static const char *const forms[] = {"%s/kernels",    "%s/./kernels",    "%s/absolute",
                                        "%s/./absolute", "%s/././absolute", "%s/absolute/."};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char path[128];
        int folder = -1;
        snprintf(path, sizeof path, forms[i], r.folder);
        close(0);
        errno = EIO;
        cr_assert_eq(attune__folder_open(path, false, &folder), 0, "%s", path);
        struct stat found, wanted;
        cr_assert(!fstat(folder, &found) && !stat(r.kernels, &wanted) && found.st_ino == wanted.st_ino, "%s", path);
        close(folder);
        cr_assert_eq(open("/dev/null", O_RDONLY), 0, "a folder on the way is left open");
        snprintf(path, sizeof path, "%s/absolute/nowhere", r.folder);
        close(0);
        cr_assert_eq(attune__folder_open(path, false, &folder), ENOENT);
        cr_assert_eq(open("/dev/null", O_RDONLY), 0, "a folder on the way is left open");
    }
    scratch_close(&r);
}

Test(cache, none_where_none_is_wanted_or_possible)
{
    static scratch r;
    scratch_open(&r, 0);
    attune__cache_desc desc = scratch_desc(&r, "", 0);
    cr_assert_null(attune__cache_open(&desc));
    desc.folder = NULL;
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    cr_assert_null(attune__cache_open(&desc));
    setenv("HOME", "relative", 1);
    cr_assert_null(attune__cache_open(&desc));
    cr_assert_eq(atomic_load(&r.lines), 0);
    desc.log_level = ATTUNE_LOG_INFO;
    cr_assert_null(attune__cache_open(&desc));
    cr_assert_eq(atomic_load(&r.lines), 1);
    const attune__cache_key key = scratch_key("k", 1, "");
    void *data;
    size_t size;
    attune__cache_put(NULL, &key, "x", 1);
    cr_assert_not(attune__cache_get(NULL, &key, &data, &size));
    attune__cache_close(NULL);
    scratch_close(&r);
}

Test(cache, finds_the_users_folder)
{
    static scratch r;
    scratch_open(&r, 0);
    const attune__cache_key key = scratch_key("k", 1, "");
    const char *const variables[] = {"HOME", "XDG_CACHE_HOME"}, *const places[] = {"/.cache/attune", "/attune"};
    unsetenv("XDG_CACHE_HOME");
    for (int i = 0; i < 2; i++) {
        attune__cache_close(r.cache);
        setenv(variables[i], r.folder, 1);
        const attune__cache_desc desc = scratch_desc(&r, NULL, 0);
        r.cache = attune__cache_open(&desc);
        snprintf(r.kernels, sizeof r.kernels, "%s%s", r.folder, places[i]);
        cr_assert_neq(access(r.kernels, F_OK), 0, "opening touches no file");
        attune__cache_put(r.cache, &key, "x", 1);
        cr_assert_eq(scratch_files(&r, ".attune"), 1, "%s", r.kernels);
    }
    scratch_close(&r);
}

/* The super-user writes where no user may: such a test needs another user. */
static void become_ordinary(const scratch *r)
{
    if (geteuid() != 0)
        return;
    cr_assert_eq(chown(r->folder, 65534, 65534), 0);
    if (access(r->kernels, F_OK) == 0)
        cr_assert_eq(chown(r->kernels, 65534, 65534), 0);
    cr_assert_eq(seteuid(65534), 0);
}

Test(cache, a_read_only_folder_is_no_cache)
{
    static scratch r;
    scratch_open(&r, 0);
    become_ordinary(&r);
    const attune__cache_key key = scratch_key("k", 1, ""), late = scratch_key("k", 2, "");
    attune__cache_put(r.cache, &key, "x", 1);
    cr_assert(has(&r, &key, "x", 1));
    cr_assert_eq(chmod(r.kernels, 0500), 0);
    attune__cache_put(r.cache, &late, "y", 1);
    attune__cache_put(r.cache, &late, "y", 1);
    cr_assert_not(has(&r, &late, "y", 1));
    cr_assert(has(&r, &key, "x", 1), "what is there can still be read");
    cr_assert_eq(atomic_load(&r.lines), 1, "one line, not one for each kernel");
    cr_assert_not_null(strstr(r.line, r.kernels), "%s", r.line);
    scratch_close(&r);
}

Test(cache, a_folder_that_is_a_file_is_no_cache)
{
    static scratch r;
    scratch_open(&r, 0);
    close(open(r.kernels, O_CREAT | O_WRONLY, 0600));
    const attune__cache_key key = scratch_key("k", 1, "");
    attune__cache_put(r.cache, &key, "x", 1);
    attune__cache_put(r.cache, &key, "x", 1);
    cr_assert_not(has(&r, &key, "x", 1));
    cr_assert_eq(atomic_load(&r.lines), 1);
    unlink(r.kernels);
    attune__cache_put(r.cache, &key, "x", 1);
    cr_assert(has(&r, &key, "x", 1), "it works once the folder does");
    scratch_close(&r);
}

/* A limit on the size of files makes write fail in the middle, as a full disk does. */
Test(cache, a_full_disk_is_no_cache)
{
    static scratch r;
    static uint8_t data[100000];
    scratch_open(&r, 0);
    const attune__cache_key key = scratch_key("k", 1, "");
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t before = limit.rlim_cur;
    const rlim_t sizes[] = {0, 10, 60, 4096, 99999};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        limit.rlim_cur = sizes[i];
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        attune__cache_put(r.cache, &key, data, sizeof data);
        limit.rlim_cur = before;
        setrlimit(RLIMIT_FSIZE, &limit);
        cr_assert_eq(scratch_files(&r, ""), 0, "a part of a file is left at %llu bytes", (unsigned long long)sizes[i]);
        cr_assert_not(has(&r, &key, data, sizeof data));
    }
    cr_assert_eq(atomic_load(&r.lines), 1);
    attune__cache_put(r.cache, &key, data, sizeof data);
    cr_assert(has(&r, &key, data, sizeof data));
    scratch_close(&r);
}

Test(cache, every_allocation_fails_in_turn)
{
    static scratch r;
    scratch_open(&r, 0);
    attune__cache_close(r.cache);
    const attune__cache_key key = scratch_key("k", 1, "id");
    int misses = 0;
    for (r.heap.fail_at = 1;; r.heap.fail_at++) {
        atomic_store(&r.heap.allocations, 0);
        const attune__cache_desc desc = scratch_desc(&r, r.kernels, 0);
        r.cache = attune__cache_open(&desc);
        attune__cache_put(r.cache, &key, "x", 1);
        const bool hit = has(&r, &key, "x", 1);
        attune__cache_close(r.cache);
        r.cache = NULL;
        cr_assert_eq(atomic_load(&r.heap.live), 0, "failing allocation %lld leaks", r.heap.fail_at);
        if (r.heap.fail_at > atomic_load(&r.heap.allocations)) {
            cr_assert(hit);
            break;
        }
        misses += !hit;
        remove_tree(r.kernels);
    }
    cr_assert_geq(misses, 4);
    scratch_close(&r);
}

/* ---------------------------------------------------------------------------------------------------------- writers */

#define WRITERS 4
#define ROUNDS  200
#define KEYS    5

/* Every writer's data are of another length and content, so that a mixture shows: all bytes equal the last. */
static void write_and_read(scratch *r, int writer)
{
    uint8_t data[4096];
    const attune_allocator allocator = heap_allocator(&r->heap);
    for (int round = 0; round < ROUNDS; round++) {
        const attune__cache_key key = scratch_key("k", (uint64_t)(round % KEYS), "id");
        const size_t size = 1000 + 500 * (size_t)writer;
        memset(data, writer + 1, size);
        attune__cache_put(r->cache, &key, data, size);
        void *got;
        size_t got_size;
        cr_assert(attune__cache_get(r->cache, &key, &got, &got_size), "writer %d, round %d", writer, round);
        const uint8_t first = *(uint8_t *)got;
        cr_assert_eq(got_size, 1000 + 500 * ((size_t)first - 1));
        memset(data, first, got_size);
        cr_assert_eq(memcmp(got, data, got_size), 0);
        attune__free(&allocator, got);
    }
}

typedef struct writer {
    scratch *r;
    int number;
} writer;

static void *run_writer(void *user)
{
    const writer *w = user;
    write_and_read(w->r, w->number);
    return NULL;
}

Test(cache, threads_share_a_cache)
{
    static scratch r;
    scratch_open(&r, 0);
    pthread_t threads[WRITERS];
    writer writers[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = (writer){&r, i};
        cr_assert_eq(pthread_create(&threads[i], NULL, run_writer, &writers[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(scratch_files(&r, ""), KEYS);
    cr_assert_eq(atomic_load(&r.lines), 0, "%s", r.line);
    scratch_close(&r);
}

Test(cache, processes_share_a_folder)
{
    static scratch r;
    scratch_open(&r, 0);
    pid_t children[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        children[i] = fork();
        if (!children[i]) {
            uint8_t good = 1;
            for (int round = 0; round < ROUNDS && good; round++) {
                uint8_t data[4096], expected[4096];
                const attune__cache_key key = scratch_key("k", (uint64_t)(round % KEYS), "id");
                memset(data, i + 1, sizeof data);
                attune__cache_put(r.cache, &key, data, 1000 + 500 * (size_t)i);
                void *got;
                size_t size;
                good = attune__cache_get(r.cache, &key, &got, &size);
                if (!good)
                    break;
                memset(expected, *(uint8_t *)got, sizeof expected);
                good = size == 1000 + 500 * ((size_t)expected[0] - 1) && !memcmp(got, expected, size);
                const attune_allocator allocator = heap_allocator(&r.heap);
                attune__free(&allocator, got);
            }
            _exit(good && !atomic_load(&r.lines) ? 0 : 1);
        }
    }
    for (int i = 0; i < WRITERS; i++) {
        int status;
        cr_assert_eq(waitpid(children[i], &status, 0), children[i]);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "writer %d", i);
    }
    cr_assert_eq(scratch_files(&r, ""), KEYS);
    scratch_close(&r);
}

/* A public struct made before cache_folder still works, and "" reaches the cache. */
Test(cache, instances_of_both_sizes)
{
    attune_instance *instance;
    attune_instance_desc desc = {.struct_size = (uint32_t)offsetof(attune_instance_desc, cache_folder),
                                 .cache_folder = "\1 not to be read"};
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK, "%s", attune_last_error());
    attune_instance_destroy(instance);
    desc = (attune_instance_desc){.struct_size = sizeof desc, .cache_folder = ""};
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK, "%s", attune_last_error());
    attune_instance_destroy(instance);
    desc.struct_size = (uint32_t)offsetof(attune_instance_desc, cache_folder) - 1;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_INVALID_ARGUMENT);
}
