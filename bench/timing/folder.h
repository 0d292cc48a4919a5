/* SPDX-License-Identifier: MIT */
/* A folder for one run: a benchmark's kernel cache, so that what earlier runs kept is not in its figures. */
#ifndef BENCH_TIMING_FOLDER_H
#define BENCH_TIMING_FOLDER_H

#include <stdbool.h>

typedef struct folder {
    char path[256]; /* empty: none, which folder_remove accepts */
} folder;

/* In $TMPDIR, or /tmp. */
bool folder_make(folder *f);
/* With the files in it. */
void folder_remove(folder *f);

#endif
