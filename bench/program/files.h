/* SPDX-License-Identifier: MIT */
/* A call from NPY files, which `run` computes and `check` compares: tensors, or a cache and a batch. */
#ifndef BENCH_PROGRAM_FILES_H
#define BENCH_PROGRAM_FILES_H

#include "bench/program/cli.h"
#include "tests/oracle/serving.h"

struct output;

typedef struct file_options {
    const char *q, *k, *v, *mask, *score, *scale, *sinks; /* NULL or "" = not given */
    const char *kv_len, *q_start, *pages, *pages_start, *kv_first, *tree, *count, *head_dim_v;
    cli_list captures, parameters;
} file_options;

/* The options of a command that takes a call from files. */
#define FILE_OPTIONS(f)                                                                                                  \
    {"--q",  "FILE.npy", "queries [batch, heads, length, head_dim]; over a cache packed, [tokens, heads, head_dim]",     \
     &(f).q, NULL,       NULL},                                                                                          \
        {"--k",  "FILE.npy", "keys [batch or 1, kv heads, length, head_dim], or a cache [pages, kv heads, page, ...]",   \
         &(f).k, NULL,       NULL},                                                                                      \
        {"--v", "FILE.npy", "values [batch or 1, kv heads, length, head_dim_v], or a cache", &(f).v, NULL, NULL},        \
        {"--mask", "EXPR", "mask expression; none if not given", &(f).mask, NULL, NULL},                                 \
        {"--score", "EXPR", "score expression; none if not given", &(f).score, NULL, NULL},                              \
        {"--capture", "NAME=FILE.npy", "a capture's data; repeat for more", NULL, NULL, &(f).captures},                  \
        {"--param", "NAME=VALUE", "a parameter's value; repeat for more", NULL, NULL, &(f).parameters},                  \
        {"--scale", "X", "factor of q k^T; 1/sqrt(head_dim) if not given", &(f).scale, NULL, NULL},                      \
        {"--kv-len", "FILE.npy", "k and v are a cache: the keys of each sequence [sequences]", &(f).kv_len, NULL, NULL}, \
        {"--q-start",  "FILE.npy", "first row of each sequence, and the end [sequences + 1]; else as q's dimension",     \
         &(f).q_start, NULL,       NULL},                                                                                \
        {"--pages",                                                                                                      \
         "FILE.npy",                                                                                                     \
         "block table [sequences, most pages], or one list with --pages-start; else sequence b is page b",               \
         &(f).pages,                                                                                                     \
         NULL,                                                                                                           \
         NULL},                                                                                                          \
        {"--pages-start",  "FILE.npy", "first entry of each sequence in the list, and the end [sequences + 1]",          \
         &(f).pages_start, NULL,       NULL},                                                                            \
        {"--kv-first", "FILE.npy", "first key that is kept [sequences]; else 0", &(f).kv_first, NULL, NULL},             \
        {"--tree", "FILE.npy", "bits of the last keys that each row sees [tokens, words of 32]", &(f).tree, NULL, NULL}, \
        {"--count", "FILE.npy", "sequences of the call, the first ones [1]; else all", &(f).count, NULL, NULL},          \
        {"--sinks", "FILE.npy", "a logit of each head in the denominator [heads]", &(f).sinks, NULL, NULL},              \
    {                                                                                                                    \
        "--head-dim-v", "N", "without --v: v is the first N columns of k", &(f).head_dim_v, NULL, NULL                   \
    }

/* Whether one of the options is given. */
bool files_given(const file_options *f);
/* Whether the call is over a cache. */
bool files_serve(const file_options *f);
/* Whether q, k and v are given, or what stands for v; prints an error if not. */
bool files_complete(const file_options *f);
/* Whether no output replaces a file of the options; prints an error if one does. After outputs_find. */
bool files_spared(const file_options *f, const struct output *outputs, size_t count);
/* Reads and checks everything; dtypes 0 keep the files'. Prints an error and returns false on failure. `names` has the
 * captures' data, and is released after the call with bindings_free, the rest with files_free, also after a failure. */
bool files_load(attune_instance *instance, const file_options *f, attune_dtype dtype, attune_dtype kv_dtype,
                bindings *names, serving *s);
void files_free(serving *s);

#endif
