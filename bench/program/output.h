/* SPDX-License-Identifier: MIT */
/* The files that a command writes: looked at before its work, written after it, and given their names when all of them
 * are on the disk. */
#ifndef BENCH_PROGRAM_OUTPUT_H
#define BENCH_PROGRAM_OUTPUT_H

#include <stdio.h>

#include "src/base/file.h"

#define OUTPUTS_MAX 4 /* of one command */

typedef struct output {
    const char *option, *path; /* "--out"; path "" = not wanted */
    bool found;                /* file is to be dropped */
    attune__file file;
} output;

/* Whether each may be written and no two are the same file. Complains. To be followed by outputs_drop. */
bool outputs_find(output *outputs, size_t count);
/* Writes outputs[index] to the stream; whether it could is the stream's to say, why else has been complained about. */
typedef bool (*output_fn)(void *user, size_t index, FILE *stream);
/* Writes all: files first, then devices and pipes, and names the files after that. Complains; nothing is then left. */
bool outputs_write(output *outputs, size_t count, output_fn write, void *user);
void outputs_drop(output *outputs, size_t count);

#endif
