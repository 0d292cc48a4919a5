/* SPDX-License-Identifier: MIT */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* O_PATH, getentropy */
#endif
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/magic.h>
#include <sys/vfs.h>
#elif defined(__APPLE__)
#include <sys/random.h>
#endif

#if !defined(O_PATH)
#define O_PATH O_RDONLY
#endif

#define TRIES 100 /* names to try before EEXIST is returned */

/* ------------------------------------------------------------------------------------------------------- the target */

/* "/dev/stdout" and "/dev/fd/1" refer to open files of the process: a rename would replace them by a regular file. */
static bool is_descriptor(int folder, const char *name)
{
#if defined(__linux__)
    static const char proc[] = "/proc/";
    char target[sizeof proc];
    struct statfs about;
    return (!fstatfs(folder, &about) && about.f_type == PROC_SUPER_MAGIC) ||
           (readlinkat(folder, name, target, sizeof target) >= (ssize_t)strlen(proc) &&
            !memcmp(target, proc, strlen(proc)));
#else
    (void)folder, (void)name;
    return false;
#endif
}

static void begin(attune__file *f)
{
    memset(f, 0, sizeof *f);
    f->folder = f->file = -1;
}

static int open_folder(const char *path, size_t length)
{
    char folder[PATH_MAX];
    if (length >= sizeof folder) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(folder, length ? path : ".", length ? length : 1);
    folder[length ? length : 1] = '\0';
    return open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

int attune__file_find(attune__file *f, const char *path)
{
    begin(f);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t length = strlen(name);
    if (!length || !strcmp(name, ".") || !strcmp(name, ".."))
        return *path ? EISDIR : ENOENT;
    if (length >= sizeof f->name)
        return ENAMETOOLONG;
    memcpy(f->name, name, length + 1);
    f->folder = open_folder(path, (size_t)(name - path));
    if (f->folder < 0)
        return errno;
    struct stat about;
    f->exists = !fstatat(f->folder, name, &about, 0);
    if (!f->exists && errno != ENOENT)
        return errno;
    if (f->exists && S_ISDIR(about.st_mode))
        return EISDIR;
    f->direct = f->exists && (!S_ISREG(about.st_mode) || is_descriptor(f->folder, name));
    f->durable = !f->direct;
    if (faccessat(f->folder, f->direct ? name : ".", f->direct ? W_OK : W_OK | X_OK, AT_EACCESS))
        return errno;
    if (!f->exists && fstat(f->folder, &about))
        return errno;
    f->mode = f->exists ? about.st_mode & 0777 : 0666;
    f->owner = about.st_uid;
    f->group = about.st_gid;
    f->device = about.st_dev;
    f->number = about.st_ino;
    return 0;
}

int attune__file_find_in(attune__file *f, int folder, const char *name)
{
    begin(f);
    const size_t length = strlen(name);
    if (length >= sizeof f->name)
        return ENAMETOOLONG;
    memcpy(f->name, name, length + 1);
    f->mode = 0600;
    f->folder = fcntl(folder, F_DUPFD_CLOEXEC, 0);
    return f->folder < 0 ? errno : 0;
}

bool attune__file_same(const attune__file *a, const attune__file *b)
{
    return a->exists == b->exists && a->device == b->device && a->number == b->number &&
           (a->exists || !strcmp(a->name, b->name));
}

/* ---------------------------------------------------------------------------------------------------------- writing */

static void name_temporary(char name[48])
{
    uint64_t word[2];
    if (getentropy(word, sizeof word)) { /* not implemented by the kernel: O_EXCL still prevents a planted file */
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        word[0] = (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec ^ (uintptr_t)name;
        word[1] = (uint64_t)getpid();
    }
    snprintf(name, 48, "%016llx%016llx" ATTUNE__FILE_TEMPORARY, (unsigned long long)word[0],
             (unsigned long long)word[1]);
}

int attune__file_open(attune__file *f)
{
    if (f->direct) {
        f->file = openat(f->folder, f->name, O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC);
        return f->file < 0 ? errno : 0;
    }
    for (int i = 0; i < TRIES && f->file < 0; i++) {
        name_temporary(f->temporary);
        /* Until fchmod, the file must not be more accessible than the target is. */
        f->file = openat(f->folder, f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         f->exists ? f->mode & 0600 : f->mode);
        if (f->file < 0 && errno != EEXIST)
            return errno;
    }
    if (f->file < 0)
        return EEXIST;
    f->has_temporary = true;
    struct stat about;
    if (!f->exists)
        return 0;
    if (fstat(f->file, &about))
        return errno;
    /* Only the superuser may change the owner; for others the file is theirs. */
    if ((about.st_uid != f->owner || about.st_gid != f->group) && fchown(f->file, f->owner, f->group) &&
        about.st_gid != f->group)
        f->mode &= 0707;
    return fchmod(f->file, f->mode) ? errno : 0;
}

/* Writing to a pipe without a reader raises SIGPIPE, which would end the process. The signal is directed at the writing
 * thread: it is blocked and consumed here. One that was pending before remains pending. */
static ssize_t write_in_place(int file, const void *bytes, size_t size)
{
    sigset_t broken, before, pending;
    int taken;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    const bool earlier = !sigpending(&pending) && sigismember(&pending, SIGPIPE) == 1;
    if (pthread_sigmask(SIG_BLOCK, &broken, &before)) {
        errno = EINVAL;
        return -1;
    }
    const ssize_t put = write(file, bytes, size);
    const int error = errno;
    if (put < 0 && error == EPIPE && !earlier && !sigpending(&pending) && sigismember(&pending, SIGPIPE) == 1)
        (void)sigwait(&broken, &taken);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return put;
}

int attune__file_write(attune__file *f, const void *bytes, size_t size)
{
    const char *from = bytes;
    while (size) {
        const ssize_t put = f->direct ? write_in_place(f->file, from, size) : write(f->file, from, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put ? errno : EIO;
        from += put;
        size -= (size_t)put;
    }
    return 0;
}

/* A full network disk reports the error only in fsync or close. */
int attune__file_close(attune__file *f)
{
    int error = 0;
    if (f->durable && fsync(f->file) && errno != EINVAL && errno != ENOTSUP)
        error = errno;
    if (close(f->file) && !error && errno != EINTR)
        error = errno;
    f->file = -1;
    return error;
}

/* Renames the file to the target. With `keep`, the old target is kept as a backup, if the file system has links. */
int attune__file_publish(attune__file *f, bool keep)
{
    if (!f->has_temporary)
        return 0;
    if (keep) {
        name_temporary(f->backup);
        f->has_backup = !linkat(f->folder, f->name, f->folder, f->backup, 0);
    }
    if (renameat(f->folder, f->temporary, f->folder, f->name))
        return errno;
    f->has_temporary = false;
    f->published = true;
    return 0;
}

void attune__file_withdraw(attune__file *f)
{
    if (f->published && f->has_backup) {
        /* A backup that cannot be renamed back is the only copy, so it is not removed. */
        (void)renameat(f->folder, f->backup, f->folder, f->name);
        f->has_backup = false;
    } else if (f->published && !f->exists)
        unlinkat(f->folder, f->name, 0);
    f->published = false;
}

void attune__file_drop(attune__file *f)
{
    if (f->file >= 0)
        close(f->file);
    if (f->has_temporary)
        unlinkat(f->folder, f->temporary, 0);
    if (f->has_backup)
        unlinkat(f->folder, f->backup, 0);
    if (f->folder >= 0)
        close(f->folder);
    f->file = f->folder = -1;
    f->has_temporary = f->has_backup = false;
}

void attune__file_reason(int error, char reason[ATTUNE__FILE_REASON])
{
    errno = error;
    snprintf(reason, ATTUNE__FILE_REASON, "%m");
}
