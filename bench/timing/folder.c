/* SPDX-License-Identifier: MIT */
#include "bench/timing/folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool folder_make(folder *f)
{
    const char *parent = getenv("TMPDIR");
    const int length =
        snprintf(f->path, sizeof f->path, "%s/attune-bench-XXXXXX", parent && parent[0] == '/' ? parent : "/tmp");
    if (length > 0 && (size_t)length < sizeof f->path && mkdtemp(f->path))
        return true;
    f->path[0] = '\0';
    return false;
}

void folder_remove(folder *f)
{
    DIR *list = f->path[0] ? opendir(f->path) : NULL;
    for (const struct dirent *at; list && (at = readdir(list));)
        if (strcmp(at->d_name, ".") && strcmp(at->d_name, ".."))
            unlinkat(dirfd(list), at->d_name, 0);
    if (list)
        closedir(list);
    if (f->path[0])
        rmdir(f->path);
    f->path[0] = '\0';
}
