/* SPDX-License-Identifier: MIT */
/* Workloads from options: every combination of lists of lengths, heads, dimensions and expressions. */
#ifndef BENCH_PROGRAM_SHAPES_H
#define BENCH_PROGRAM_SHAPES_H

#include "bench/program/cli.h"
#include "bench/workloads/workload.h"

/* Lists are numbers and sweeps with commas: 1024, 1024..65536*2 and 128..512+128, whose last number is included if a
 * step meets it. NULL = not given. */
typedef struct shape_options {
    const char *q_len, *kv_len, *heads, *kv_heads, *head_dim, *head_dim_v, *batch;
    cli_list masks, scores, captures, parameters;
} shape_options;

/* Whether an option defines workloads. */
bool shapes_given(const shape_options *o);
/* The workloads of the options, which are parsed as those of a file are. A mask and a score expression give them their
 * names. Prints errors. Release *list with workload_list_free. */
bool shapes_load(const shape_options *o, workload **list, uint32_t *count);

#endif
