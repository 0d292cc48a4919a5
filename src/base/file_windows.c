/* SPDX-License-Identifier: MIT */
/* base/file.h on Windows. Paths are in the program's code page. */
#define _CRT_RAND_S
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#define TRIES      100 /* names to try before EEXIST is returned */
#define MOST_WRITE ((size_t)1 << 30)

static int errno_of(DWORD error)
{
    switch (error) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
        return ENOENT;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION:
        return EACCES;
    case ERROR_DISK_FULL:
        return ENOSPC;
    default:
        return EIO;
    }
}

int attune__file_find(attune__file *f, const char *path)
{
    memset(f, 0, sizeof *f);
    f->file = -1;
    const size_t length = strlen(path);
    if (!length)
        return ENOENT;
    if (length >= sizeof f->path)
        return ENAMETOOLONG;
    memcpy(f->path, path, length + 1);
    size_t folder = length;
    while (folder && path[folder - 1] != '/' && path[folder - 1] != '\\' && path[folder - 1] != ':')
        folder--;
    if (folder == length)
        return EISDIR;
    char parent[sizeof f->path + 1];
    memcpy(parent, path, folder);
    memcpy(parent + folder, ".", 2);
    const DWORD above = GetFileAttributesA(parent), about = GetFileAttributesA(path);
    if (above == INVALID_FILE_ATTRIBUTES || !(above & FILE_ATTRIBUTE_DIRECTORY))
        return ENOENT;
    f->exists = about != INVALID_FILE_ATTRIBUTES;
    if (f->exists && about & FILE_ATTRIBUTE_DIRECTORY)
        return EISDIR;
    if (f->exists && about & FILE_ATTRIBUTE_READONLY)
        return EACCES;
    f->direct = f->exists && about & FILE_ATTRIBUTE_DEVICE;
    f->durable = !f->direct;
    return 0;
}

bool attune__file_same(const attune__file *a, const attune__file *b)
{
    char whole[2][sizeof a->path];
    const DWORD x = GetFullPathNameA(a->path, sizeof whole[0], whole[0], NULL),
                y = GetFullPathNameA(b->path, sizeof whole[1], whole[1], NULL);
    return x && y && x < sizeof whole[0] && y < sizeof whole[1] && !_stricmp(whole[0], whole[1]);
}

static int name_beside(const char *path, char *name, size_t size)
{
    unsigned word[4];
    for (int i = 0; i < 4; i++)
        if (rand_s(&word[i]))
            return EIO;
    snprintf(name, size, "%s.%08x%08x%08x%08x" ATTUNE__FILE_TEMPORARY, path, word[0], word[1], word[2], word[3]);
    return 0;
}

int attune__file_open(attune__file *f)
{
    if (f->direct) {
        f->file = _open(f->path, _O_WRONLY | _O_APPEND | _O_BINARY | _O_NOINHERIT);
        return f->file < 0 ? errno : 0;
    }
    for (int i = 0; i < TRIES && f->file < 0; i++) {
        const int error = name_beside(f->path, f->temporary, sizeof f->temporary);
        if (error)
            return error;
        f->file = _open(f->temporary, _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT, _S_IREAD | _S_IWRITE);
        if (f->file < 0 && errno != EEXIST)
            return errno;
    }
    f->has_temporary = f->file >= 0;
    return f->has_temporary ? 0 : EEXIST;
}

int attune__file_write(attune__file *f, const void *bytes, size_t size)
{
    const char *from = bytes;
    while (size) {
        const int put = _write(f->file, from, (unsigned)(size < MOST_WRITE ? size : MOST_WRITE));
        if (put <= 0)
            return put ? errno : EIO;
        from += put;
        size -= (size_t)put;
    }
    return 0;
}

int attune__file_close(attune__file *f)
{
    int error = f->durable && _commit(f->file) ? errno : 0;
    if (_close(f->file) && !error)
        error = errno;
    f->file = -1;
    return error;
}

/* With `keep`, the old target stays as a backup. */
int attune__file_publish(attune__file *f, bool keep)
{
    if (!f->has_temporary)
        return 0;
    if (keep && f->exists) {
        const int error = name_beside(f->path, f->backup, sizeof f->backup);
        if (error)
            return error;
        f->has_backup = CopyFileA(f->path, f->backup, TRUE);
    }
    if (!MoveFileExA(f->temporary, f->path, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH))
        return errno_of(GetLastError());
    f->has_temporary = false;
    f->published = true;
    return 0;
}

void attune__file_withdraw(attune__file *f)
{
    if (f->published && f->has_backup) {
        /* A backup that cannot be renamed back is the only copy, so it is not removed. */
        (void)MoveFileExA(f->backup, f->path, MOVEFILE_REPLACE_EXISTING);
        f->has_backup = false;
    } else if (f->published && !f->exists)
        DeleteFileA(f->path);
    f->published = false;
}

void attune__file_drop(attune__file *f)
{
    if (f->file >= 0)
        _close(f->file);
    if (f->has_temporary)
        DeleteFileA(f->temporary);
    if (f->has_backup)
        DeleteFileA(f->backup);
    f->file = -1;
    f->has_temporary = f->has_backup = false;
}

void attune__file_reason(int error, char reason[ATTUNE__FILE_REASON])
{
    if (strerror_s(reason, ATTUNE__FILE_REASON, error))
        snprintf(reason, ATTUNE__FILE_REASON, "unknown");
}
