/* SPDX-License-Identifier: MIT */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* O_PATH */
#endif
#include "cache/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

#define LINKS 40 /* the limit of links to follow, as in Linux */

/* Opens the next component of a path, without following a link; -1, with errno. */
static int step(int at, const char *name, bool make)
{
    int next = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0 && errno == ENOENT && make && (!mkdirat(at, name, 0700) || errno == EEXIST))
        next = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return next;
}

/* Replaces a link by its target in the path. Returns 0 or an errno. */
static int unfold(int link, const struct stat *about, char path[PATH_MAX], const char *rest)
{
    char to[PATH_MAX];
    if (about->st_uid != geteuid() && about->st_uid != 0)
        return ELOOP;
    const ssize_t length = readlinkat(link, "", to, sizeof to);
    if (length < 0)
        return errno;
    const size_t left = strlen(rest);
    if ((size_t)length + left + 1 > sizeof to)
        return ENAMETOOLONG;
    memmove(path + length, rest, left + 1);
    memcpy(path, to, (size_t)length);
    return 0;
}

static int open_start(const char *path)
{
    return open(path[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Opens the path, component by component, from *at on. Returns 0 or an errno. */
static int open_components(char path[PATH_MAX], bool make, int *at)
{
    const char *rest = path;
    for (int links = 0;;) {
        rest += strspn(rest, "/");
        const size_t length = strcspn(rest, "/");
        if (!length)
            return 0;
        char name[ATTUNE__FILE_NAME];
        if (length >= sizeof name)
            return ENAMETOOLONG;
        memcpy(name, rest, length);
        name[length] = '\0';
        rest += length;
        int next = step(*at, name, make);
        struct stat about;
        int error = next < 0 || fstat(next, &about) ? errno : 0;
        const bool link = !error && S_ISLNK(about.st_mode);
        if (link) {
            error = ++links > LINKS ? ELOOP : unfold(next, &about, path, rest);
            rest = path;
            close(next);
            /* A link's target is relative to the link's folder. */
            next = -1;
            if (!error && path[0] == '/' && (next = open_start(path)) < 0)
                error = errno;
        }
        if (error) {
            if (next >= 0)
                close(next);
            return error;
        }
        if (next >= 0) {
            close(*at);
            *at = next;
        }
    }
}

int attune__folder_open(const char *path, bool make, int *folder)
{
    char left[PATH_MAX];
    const size_t length = strlen(path);
    if (length >= sizeof left)
        return ENAMETOOLONG;
    memcpy(left, path, length + 1);
    int at = open_start(path);
    if (at < 0)
        return errno;
    struct stat about;
    int error = open_components(left, make, &at);
    if (!error)
        error = fstat(at, &about)                ? errno
                : !S_ISDIR(about.st_mode)        ? ENOTDIR
                : attune__folder_trusted(&about) ? 0
                                                 : EPERM;
    if (error)
        close(at);
    else
        *folder = at;
    return error;
}
