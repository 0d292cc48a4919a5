/* SPDX-License-Identifier: MIT */
/* The report of a benchmark run: context and rows. Output as a table, Markdown, CSV, and JSON in the schema of Google
 * Benchmark, which its compare.py can read. */
#ifndef BENCH_TIMING_REPORT_H
#define BENCH_TIMING_REPORT_H

#include <stdio.h>

#include "tests/oracle/array.h"
#include "bench/timing/measure.h"

#define REPORT_SCHEMA_VERSION 1

/* The limits of report_flags. */
#define REPORT_SPREAD 1.1
#define REPORT_OTHERS 0.1
#define REPORT_CLOCK  0.05
#define REPORT_DRIFT  0.02

typedef enum report_status {
    REPORT_OK = 0,
    REPORT_WRONG = 1,       /* the error rule failed: no time is given */
    REPORT_FAILED = 2,      /* a call failed; message says why */
    REPORT_UNSUPPORTED = 3, /* not supported by this device or version; message has the reason */
    REPORT_STOPPED = 4      /* interrupted before it had a sample */
} report_status;

/* A figure that does not apply is 0, unless stated otherwise. */
typedef struct report_row {
    char name[256];    /* workload/device/dtype/shape: the key for comparing two runs */
    char workload[64]; /* also "peer: OpenBLAS sgemm", "mask_causal" */
    char kind[16];     /* "attention", "serving", "ranks", "mask", "peer" */
    char device[32], dtype[16], shape[96], plan[96], timer[64];
    report_status status;
    char message[1024];
    double share; /* of the work of the full-size workload */
    measurement time;
    uint32_t threads;
    double density;       /* share of allowed pairs; -1 = none */
    double block_density; /* share of blocks that are not empty; -1 = none */
    int64_t pairs;        /* over batch and heads; -1 = none */
    int64_t tokens;       /* rows of a serving batch; flop, bytes and time are those of one layer */
    double flop, bytes;   /* of one call */
    double peak_flops, peak_bandwidth;
    bool checked;
    int64_t checked_rows;
    double error, naive_error; /* largest, against the float64 oracle */
    double compile_cold, compile_warm, mask_seconds;
    uint64_t mask_bytes, workspace;
    /* Several ranks. */
    uint32_t ranks;
    double one_seconds;                /* of one rank alone, with as many threads as each has */
    double imbalance;                  /* most work of a rank / mean */
    double fetched;                    /* keys that the rank with most fetches / keys of all others */
    double received_bytes, ring_bytes; /* of all ranks, and what they receive in a ring */
    double exchanged_bytes;            /* of all messages of a call */
    double computing_seconds;          /* of a call without its messages */
    double exchange_seconds;           /* of its messages alone; neither where attune copies them to host memory */
    double predicted_seconds;          /* of a call, from the rate of one rank and the messages' alone; 0 = unknown */
    double link_rate;                  /* that the messages alone had: bytes/s of the rank with most; likewise */
    uint64_t device_bytes;             /* tensors, captures, workspaces and the masks' lists */
    uint64_t seed;
} report_row;

typedef struct report_entry {
    char key[48];
    char value[512];
    bool number; /* written to JSON without quotes */
} report_entry;

typedef struct report {
    report_entry *entries;
    report_row *rows;
    uint32_t entry_count, entry_capacity, row_count, row_capacity;
    double seconds; /* of the run; 0 = unknown */
} report;

/* A table is 100 characters wide; a wide one has all columns of Markdown; one of serving, where every row is, has
 * microseconds and tokens a second in place of milliseconds and FLOP/s; one of ranks, likewise, has what they share. */
typedef enum report_format {
    REPORT_TABLE,
    REPORT_SERVING,
    REPORT_RANKS,
    REPORT_WIDE,
    REPORT_MARKDOWN,
    REPORT_CSV
} report_format;

/* Adds to the context. Does nothing without memory: context is not essential. */
void report_context(report *r, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
void report_context_number(report *r, const char *key, double value);
/* The value of a context key, NULL if there is none. */
const char *report_context_get(const report *r, const char *key);
/* Takes ownership of the row, including its samples. NULL without memory: the samples are then freed. */
report_row *report_add(report *r, const report_row *row);
void report_free(report *r); /* accepts a zeroed one */

/* Written while rows are measured: begin (context and header), each row, end (failures and their reasons, and a
 * summary: counts, the fastest row, peers, what the flags mean). */
void report_begin(const report *r, report_format format, FILE *out);
void report_write_row(const report_row *row, report_format format, FILE *out);
void report_end(const report *r, report_format format, FILE *out);
/* Calls the sink with every figure of a row and its name in CSV and JSON. */
typedef void (*report_text_sink)(void *context, const char *key, const char *text);
typedef void (*report_number_sink)(void *context, const char *key, double value);
void report_each_text(const report_row *row, report_text_sink text, void *context);
void report_each_number(const report_row *row, report_number_sink sink, void *context);
/* False without memory; the caller checks the stream for errors. */
bool report_write_json(const report *r, FILE *out);

/* Derived figures: 0 if the row has none. */
double report_flops(const report_row *row);     /* per second */
double report_bandwidth(const report_row *row); /* bytes per second */
double report_tokens(const report_row *row);    /* per second, of one layer */
double report_speedup(const report_row *row);   /* of several ranks over one */
/* Share, 0 to 1, of the time of a call's messages that the call does not take more than without them. */
double report_hidden(const report_row *row);
/* The largest error over the naive computation's; infinity if only the naive one is 0. */
double report_error_ratio(const report_row *row);
/* Disturbances of a row: n p90 is over 10 % above p10, l other processes used over 10 % of the CPUs, c the
 * CPU's clock changed by over 5 %, d the second half of the samples differs from the first by over 2 % (U test, p <
 * 0.05). */
const char *report_flags(const report_row *row, char buffer[8]);
const char *report_status_string(report_status status);
/* 12345678 as "12.3M": three digits and k M G T P. */
const char *report_si(double value, char buffer[16]);

#endif
