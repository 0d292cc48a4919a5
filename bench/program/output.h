/* SPDX-License-Identifier: MIT */
/* The files that a command writes: checked before its work, written after it, and renamed to their targets once all are
 * on the disk. */
#ifndef BENCH_PROGRAM_OUTPUT_H
#define BENCH_PROGRAM_OUTPUT_H

#include "bench/program/cli.h"
#include "src/base/file.h"

#define OUTPUTS_MAX 4 /* of one command */

typedef struct output {
    const char *option, *path; /* "--out"; path "" = none */
    bool found;                /* file needs attune__file_drop */
    attune__file file;
} output;

/* Whether each can be written and no two are the same file; prints errors. Requires outputs_drop. */
bool outputs_find(output *outputs, size_t count);
/* Whether no output replaces an input, the file of an option (NULL or "" = not given); prints an error if one does.
 * After outputs_find. */
bool outputs_spare(const output *outputs, size_t count, const char *option, const char *path);
/* The same of each value of an option, NAME=FILE if they are `named`. */
bool outputs_spare_list(const output *outputs, size_t count, const char *option, const cli_list *list, bool named);
/* Where a command's text goes: standard output, or standard error if an output is written there. After outputs_find. */
FILE *outputs_text(const output *outputs, size_t count);
/* Writes outputs[index] to the stream, whose errors the caller checks. Returns false, with an error printed, for other
 * errors. */
typedef bool (*output_fn)(void *user, size_t index, FILE *stream);
/* Writes all outputs: files first, then devices and pipes, and renames the files at last. On failure prints an error
 * and leaves no file. */
bool outputs_write(output *outputs, size_t count, output_fn write, void *user);
void outputs_drop(output *outputs, size_t count);

#endif
