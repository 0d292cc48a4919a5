/* SPDX-License-Identifier: MIT */
/* The options of attune bench. */
#ifndef BENCH_PROGRAM_BENCH_OPTIONS_H
#define BENCH_PROGRAM_BENCH_OPTIONS_H

#include "bench/program/cli.h"
#include "bench/program/shapes.h"
#include "bench/timing/row.h"

typedef struct bench_options {
    const char *workloads, *file, *devices, *dtypes, *kernel, *json, *baseline, *doc_lengths, *direction,
        *write_captures;
    const char *kv_dtype_text, *o_dtype_text;
    attune_dtype kv_dtype, o_dtype; /* 0 = the workload's */
    report_format format;
    row_options row;
    double scale;            /* 0 = automatic */
    double floor;            /* the smallest significant change */
    row_ranks_options ranks; /* count 0 = not asked for */
    bool list, masks, peers, no_peers, no_peaks, fail_on_slower, scale_given, seed_given;
    cli_list packs;
    shape_options shapes;
} bench_options;

/* Parses the command line, whose --json may have no value; prints errors. */
cli_result bench_options_parse(bench_options *o, int argc, char **argv);
/* Whether the results go to standard output as JSON. */
bool bench_options_json_alone(const bench_options *o);

#endif
