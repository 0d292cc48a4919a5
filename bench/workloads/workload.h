/* SPDX-License-Identifier: MIT */
/*
 * Named workloads: uses of attention in the shapes of public models, with random data. The program times them; the
 * tests run them shrunk. A workload is data (expressions, shape and the names of its captures' generators), so that a
 * JSON file can express everything that the built-in table can.
 */
#ifndef BENCH_WORKLOADS_WORKLOAD_H
#define BENCH_WORKLOADS_WORKLOAD_H

#include "tests/oracle/reference.h"

#define WORKLOAD_MAX_CAPTURES   8
#define WORKLOAD_MAX_PARAMETERS 7 /* and `side` */

/* How a parameter is scaled when a workload is shrunk. */
typedef enum workload_shrink {
    WORKLOAD_FIXED = 0,
    WORKLOAD_LENGTH = 1, /* in proportion to kv_len: windows, prefixes */
    WORKLOAD_SIDE = 2    /* in proportion to side: radii on a grid */
} workload_shrink;

typedef struct workload_parameter {
    char name[64];
    attune_dtype dtype; /* ATTUNE_I32 or ATTUNE_F32 */
    double value;
    workload_shrink shrink;
} workload_parameter;

/* A size of a capture that follows the workload's. */
typedef enum workload_extent {
    WORKLOAD_NUMBER = 0,
    WORKLOAD_TOKENS = 1, /* the larger of q_len and kv_len */
    WORKLOAD_BATCH = 2,
    WORKLOAD_HEADS = 3
} workload_extent;

/* A capture: computed by a generator (workload_generator_get lists them), or given. */
typedef struct workload_capture {
    char name[64];
    char generator[32];                      /* empty = `values` is given */
    workload_extent extent[ATTUNE_MAX_RANK]; /* of the dimensions of `values`, for generators that take a size */
    double length; /* median length in tokens, in proportion to kv_len when shrunk; meaning: see the generator */
    double spread; /* meaning: see the generator */
    int64_t count; /* likewise */
    array values;  /* the data, owned by the workload list; generators that take a size read its rank and size */
} workload_capture;

typedef struct workload {
    char name[64];         /* "document_packing" */
    char description[256]; /* rule, and the model of its shape, with the source */
    char mask[512];        /* expressions; empty = none */
    char score[512];
    attune_dtype dtype;             /* 0 = the caller's choice; workload_instantiate uses f32 */
    attune_dtype kv_dtype, o_dtype; /* of k and v, and of o, where they differ from q's; 0 = as dtype */
    int64_t batch, kv_batch, heads, kv_heads, q_len, kv_len;
    int64_t
        side; /* tokens are a side x side grid: both lengths are side * side, and `side` is a parameter; 0 = no grid */
    uint32_t segments; /* segments of the keys: all but the first have length q_len; 0 = no segments */
    uint32_t head_dim, head_dim_v;
    double scale;   /* 0 = 1 / sqrt(head_dim) */
    double density; /* the approximate share of allowed pairs, to estimate work before a mask is built */
    uint32_t capture_count, parameter_count;
    workload_capture captures[WORKLOAD_MAX_CAPTURES];
    workload_parameter parameters[WORKLOAD_MAX_PARAMETERS];
} workload;

/* The training workloads, which the next three functions include. */
extern const workload workload_training[];
extern const uint32_t workload_training_count;

uint32_t workload_count(void);
/* The index-th workload at full size; NULL past the count. */
const workload *workload_get(uint32_t index);
const workload *workload_find(const char *name); /* NULL if there is none */

/* Workloads for building block masks only: heads and head_dim are 1 and 8, and there are no inputs. */
uint32_t workload_mask_count(void);
const workload *workload_mask_get(uint32_t index);

/* The floating-point operations of one call, from the approximate density. */
double workload_flop(const workload *w);

/*
 * Shrinks lengths (to no less than 1,024 keys), then batch and heads, then lengths further, so that the work is about
 * `scale` (0 to 1] of the whole. Keeps the ratio of heads to kv_heads and of kv_len to q_len; windows, prefixes and
 * document lengths shrink with kv_len, so that the pattern and the density of the mask are kept. A single query remains
 * one. A workload with given arrays, or whose captures' sizes are all numbers, keeps its
 * shape.
 */
workload workload_scaled(const workload *w, double scale);

/* The share of its work that a benchmark's row has: `scale`, but a row is not shrunk below one GFLOP, nor a decode
 * step, which is bound by memory, below ten. */
double workload_share(const workload *w, double scale);

/* Stores the lengths of its segments, at most SEGMENTS_MAX, and returns their number; 0 = no segments. */
uint32_t workload_cut(const workload *w, int64_t *lengths);

/* Creates inputs, captures and expressions; release with workload_release. Inputs are normally distributed and never
 * zero. The same seed gives the same data on every machine; arrays are independent of one another. */
bool workload_instantiate(attune_instance *instance, const workload *w, uint64_t seed, attention *a, failure *why);
/* The same without q, k and v, for building a mask. */
bool workload_bind(attune_instance *instance, const workload *w, uint64_t seed, attention *a, failure *why);
/* The same with few elements: captures have their types and ranks. For what expressions and plans are refused for,
 * before any data is made. */
bool workload_bind_types(attune_instance *instance, const workload *w, attention *a, failure *why);
void workload_release(attention *a); /* accepts a zeroed one */

/* Writes the number of its document to each of `total` tokens: lengths[0] tokens of document 0, and so on, starting
 * again with lengths[0], under new numbers, when the list ends. Lengths below 1 count as 1. */
void workload_document_ids(int32_t *ids, int64_t total, const int64_t *lengths, int64_t count);

/* The generators of captures; NULL past the count. */
typedef struct workload_generator {
    const char *name, *description;
    bool sized; /* takes "size" */
} workload_generator;
const workload_generator *workload_generator_get(uint32_t index);

/* Whether a name is a word of an expression. */
bool workload_text_has(const char *text, const char *name);

/* A JSON file: an object or an array of objects with the fields of this struct (docs/benchmarking.md); the file is
 * untrusted. Release *list with workload_list_free. Paths of NPY files in it are relative to the working directory. */
bool workload_load(const char *path, workload **list, uint32_t *count, failure *why);
/* The same from memory. files = false: captures from files are an error. */
bool workload_parse(const char *text, size_t length, const char *name, bool files, workload **list, uint32_t *count,
                    failure *why);
void workload_list_free(workload *list, uint32_t count);

#endif
