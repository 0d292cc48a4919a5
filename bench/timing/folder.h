/* SPDX-License-Identifier: MIT */
/* A temporary folder for the kernel cache of one run, so that earlier runs do not affect its figures. */
#ifndef BENCH_TIMING_FOLDER_H
#define BENCH_TIMING_FOLDER_H

#include <stdbool.h>

typedef struct folder {
    char path[256]; /* empty: none, which folder_remove accepts */
} folder;

/* In $TMPDIR, or /tmp. */
bool folder_make(folder *f);
/* Removes the folder and its files. */
void folder_remove(folder *f);

#endif
