/* SPDX-License-Identifier: MIT */
/*
 * Files that are written as a whole or not at all: by the library (packs, cache) and by the program (its outputs).
 *
 * What is written goes to a new file beside the target, with a name that nobody can predict, which takes the target's
 * name by rename once all is on the disk. Readers find the whole file or the one before; a link planted at the target
 * is replaced, not followed. An existing target's permissions are kept, a new file follows the umask. What is no
 * regular file (a device, a pipe, /dev/stdout) is written in place.
 *
 * Functions give 0 or an errno. Distinct objects may be used from distinct threads. Nothing here allocates or sets the
 * thread's error: the program has this file too, beside the library's public functions.
 */
#ifndef ATTUNE_BASE_FILE_H
#define ATTUNE_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define ATTUNE__FILE_TEMPORARY ".attune-tmp" /* the suffix of temporary names */
#define ATTUNE__FILE_NAME      256           /* bytes of a name, the NUL included */

typedef struct attune__file {
    int folder;  /* the target's; -1 = none */
    int file;    /* open for writing; -1 = not */
    bool direct; /* written in place */
    bool exists, has_temporary, has_backup, published;
    bool durable; /* on the disk before it takes its name: not for what can be made again */
    int error;    /* of attune__file_commit, in the file that failed */
    mode_t mode;
    uid_t owner;
    gid_t group;
    dev_t device; /* of an existing target, and its number there; else the folder's */
    ino_t number;
    char name[ATTUNE__FILE_NAME];
    char temporary[48], backup[48];
} attune__file;

/* Looks at the target and its folder, and makes nothing: EACCES, ENOENT, EISDIR, ... come before the work whose result
 * is written. To be followed by attune__file_drop, also when it fails. */
int attune__file_find(attune__file *f, const char *path);
/* Of a name in an open folder, which stays the caller's: a file for its owner alone, whatever is there is replaced, and
 * it is not waited for the disk. */
int attune__file_find_in(attune__file *f, int folder, const char *name);
/* Whether two targets are one file, by whichever names. */
bool attune__file_same(const attune__file *a, const attune__file *b);

/* Opens for writing: `file` is then set. A pipe waits for its reader here. */
int attune__file_open(attune__file *f);
int attune__file_write(attune__file *f, const void *bytes, size_t size);
/* Gives all their names when the last is on the disk: all of them, or none. */
int attune__file_commit(attune__file *const *files, size_t count);
/* Closes; removes what was not committed. May be called again. */
void attune__file_drop(attune__file *f);

#endif
