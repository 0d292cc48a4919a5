/* SPDX-License-Identifier: MIT */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* O_PATH */
#endif
#include "cache/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#if !defined(O_PATH)
#define O_PATH O_RDONLY
#endif

bool attune__folder_trusted(const struct stat *about)
{
    return about->st_uid == geteuid() && !(about->st_mode & (S_IWGRP | S_IWOTH));
}

/* The next component; -1, with errno. */
static int step(int at, const char *name, bool make)
{
    int next = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0 && errno == ENOENT && make && (!mkdirat(at, name, 0700) || errno == EEXIST))
        next = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat about;
    if (next < 0 || fstat(next, &about) || !S_ISLNK(about.st_mode))
        return next;
    close(next);
    if (about.st_uid != geteuid() && about.st_uid != 0) {
        errno = ELOOP;
        return -1;
    }
    return openat(at, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

int attune__folder_open(const char *path, bool make, int *folder)
{
    int at = open(path[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    while (at >= 0) {
        path += strspn(path, "/");
        const size_t length = strcspn(path, "/");
        if (!length)
            break;
        char name[ATTUNE__FILE_NAME];
        int next = -1;
        if (length < sizeof name) {
            memcpy(name, path, length);
            name[length] = '\0';
            next = step(at, name, make);
        } else {
            errno = ENAMETOOLONG;
        }
        const int error = errno;
        close(at);
        errno = error;
        at = next;
        path += length;
    }
    if (at < 0)
        return errno;
    struct stat about;
    const int error = fstat(at, &about)                ? errno
                      : !S_ISDIR(about.st_mode)        ? ENOTDIR
                      : attune__folder_trusted(&about) ? 0
                                                       : EPERM;
    if (error)
        close(at);
    else
        *folder = at;
    return error;
}
