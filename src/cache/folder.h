/* SPDX-License-Identifier: MIT */
/* Opens the folder of a cache only if no other user can have written to it. */
#ifndef ATTUNE_CACHE_FOLDER_H
#define ATTUNE_CACHE_FOLDER_H

#include <stdbool.h>
#include <sys/stat.h>

/*
 * Opens a folder for *at functions, component by component, including the targets of links. A link that belongs neither
 * to the caller nor to the superuser is not followed (ELOOP), and the folder itself must pass attune__folder_trusted
 * (EPERM). `make` creates missing folders, accessible to the caller only. Returns 0 or an errno.
 */
int attune__folder_open(const char *path, bool make, int *folder);

/* Whether a folder or file belongs to the caller, and no other user can write to it. */
bool attune__folder_trusted(const struct stat *about);

#endif
