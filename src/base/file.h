/* SPDX-License-Identifier: MIT */
/*
 * Atomic file writes, for the library (packs, cache) and for the program (its outputs).
 *
 * Data is written to a temporary file of unpredictable name in the target's folder, which is renamed to the target once
 * it is on the disk. Readers see the complete new file or the old one. A symbolic link at the target is replaced, not
 * followed. An existing target's permissions are kept; a new file follows the umask. A target that is not a regular
 * file (a device, a pipe, /dev/stdout) is written in place.
 *
 * Functions return 0 or an errno. Distinct objects may be used from distinct threads. Nothing here allocates or sets
 * the thread's error, because the program compiles this file too, beside the library's public functions.
 */
#ifndef ATTUNE_BASE_FILE_H
#define ATTUNE_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define ATTUNE__FILE_TEMPORARY ".attune-tmp" /* the suffix of temporary names */
#define ATTUNE__FILE_NAME      256           /* bytes of a name, including the NUL */

#define ATTUNE__FILE_REASON 256 /* bytes of an errno in words */

#if defined(_WIN32)

/* Windows has no functions for a name in an open folder, owners or modes: targets are paths. */
typedef struct attune__file {
    int file;    /* open for writing; -1 = not */
    bool direct; /* written in place */
    bool exists, has_temporary, has_backup, published;
    bool durable; /* flushed before the rename */
    int error;    /* of attune__file_commit, set in the file that failed */
    char path[1024], temporary[1088], backup[1088];
} attune__file;

#else

typedef struct attune__file {
    int folder;  /* of the target; -1 = none */
    int file;    /* open for writing; -1 = not */
    bool direct; /* written in place */
    bool exists, has_temporary, has_backup, published;
    bool durable; /* fsync before the rename; not needed for files that can be regenerated */
    int error;    /* of attune__file_commit, set in the file that failed */
    mode_t mode;
    uid_t owner;
    gid_t group;
    dev_t device; /* device and inode of an existing target, else of its folder */
    ino_t number;
    char name[ATTUNE__FILE_NAME];
    char temporary[48], backup[48];
} attune__file;

/* attune__file_find for a name in an open folder, which the caller keeps. The file is accessible to its owner only,
 * replaces any target, and is not synced to the disk. */
int attune__file_find_in(attune__file *f, int folder, const char *name);

#endif

/* Checks the target and its folder without creating anything, so that EACCES, ENOENT, EISDIR, ... are reported before
 * the work whose result is written. Requires attune__file_drop, also on failure. */
int attune__file_find(attune__file *f, const char *path);
/* Whether two targets are the same file. */
bool attune__file_same(const attune__file *a, const attune__file *b);

/* Opens for writing and sets `file`. Blocks on a pipe until it has a reader. */
int attune__file_open(attune__file *f);
int attune__file_write(attune__file *f, const void *bytes, size_t size);
/* Renames all files to their targets once all are on the disk: all of them, or none. */
int attune__file_commit(attune__file *const *files, size_t count);
/* Its steps, of each system: the data is on the disk and the file closed; it is renamed to the target, of which `keep`
 * leaves a backup; the target is what it was. */
int attune__file_close(attune__file *f);
int attune__file_publish(attune__file *f, bool keep);
void attune__file_withdraw(attune__file *f);
/* Closes the files, and removes those that were not committed. May be called more than once. */
void attune__file_drop(attune__file *f);

/* The message of an errno. */
void attune__file_reason(int error, char reason[ATTUNE__FILE_REASON]);

#endif
