/* SPDX-License-Identifier: MIT */
/* Named workloads of serving: a step's batch over a paged cache, in the shapes of public models. */
#ifndef BENCH_WORKLOADS_SERVING_H
#define BENCH_WORKLOADS_SERVING_H

#include "tests/oracle/serving.h"

#define SERVING_GROUPS 3

/* Sequences with the same number of rows, and as many keys as are drawn between two numbers. */
typedef struct serving_group {
    int64_t sequences, rows, keys_least, keys_most;
} serving_group;

typedef struct serving_workload {
    char name[64];
    char description[256]; /* the batch, and the model of its shape, with the source */
    int64_t heads, kv_heads;
    uint32_t head_dim, head_dim_v; /* of v; 0 = head_dim */
    double scale;                  /* 0 = 1 / sqrt(head_dim) */
    bool v_in_k, sinks, tree;      /* V is the first columns of K; a tree over the last keys */
    int64_t page;                  /* keys of a page; 0 = 16 */
    int64_t prefix;                /* the first keys, which all sequences share */
    bool unnamed;                  /* the call does not say so */
    int64_t window;                /* of the local layers */
    uint32_t local, global;        /* layers of the model's pattern; both 0 = one global layer */
    serving_group groups[SERVING_GROUPS];
} serving_workload;

uint32_t serving_workload_count(void);
const serving_workload *serving_workload_get(uint32_t index); /* NULL past the count */
const serving_workload *serving_workload_find(const char *name);

/* Figures of one layer, the mean over the model's pattern. */
typedef struct serving_work {
    int64_t sequences, rows, keys; /* keys: the longest */
    double pairs, flop;            /* over the heads */
    double bytes;                  /* q, o, and the keys that some row sees, those of a shared prefix once */
} serving_work;

/* Shrinks lengths to no less than 256 keys, then sequences, then heads, so that the work is about `scale` (0 to 1] of
 * the whole. */
serving_workload serving_scaled(const serving_workload *w, double scale);

/* The layers of the pattern: a call for each kind, which counts as often as the model has it. */
uint32_t serving_kinds(const serving_workload *w);
uint32_t serving_layers(const serving_workload *w, uint32_t kind);
/* Its window, the value of the parameter `width`. */
double serving_window(const serving_workload *w, uint32_t kind);

/*
 * Draws lengths, the tree, and the cache, whose pages are in a random order. The same seed gives the same data on every
 * machine. Release the arrays with serving_free, the expression by itself.
 */
bool serving_instantiate(attune_instance *instance, const serving_workload *w, attune_dtype dtype,
                         attune_dtype kv_dtype, attune_dtype o_dtype, uint64_t seed, serving *s, failure *why);
serving_work serving_measure(const serving_workload *w, const serving *s);
/* The operations of one layer, without its data: from the mean of each group's lengths. */
double serving_flop(const serving_workload *w);

#endif
