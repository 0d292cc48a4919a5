/* SPDX-License-Identifier: MIT */
/* The folder of a cache, opened so that nobody else can have chosen what is in it. */
#ifndef ATTUNE_CACHE_FOLDER_H
#define ATTUNE_CACHE_FOLDER_H

#include <stdbool.h>
#include <sys/stat.h>

/*
 * Opens a folder for *at functions, component by component, those that links hold included: a link that is neither the
 * caller's nor the super-user's is not followed (ELOOP), and the folder itself must pass attune__folder_trusted
 * (EPERM). `make` makes what is missing, for the caller alone. Gives 0 or an errno.
 */
int attune__folder_open(const char *path, bool make, int *folder);

/* Whether a folder or file is the caller's, and nobody else can write to it. */
bool attune__folder_trusted(const struct stat *about);

#endif
