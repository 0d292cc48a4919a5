/* SPDX-License-Identifier: MIT */
/* The analysis of a problem's expressions, done once. The planner chooses a kernel's variant from it (plan/plan.h), and
 * explain shows it. It depends on no device, shape or kernel. */
#ifndef ATTUNE_EXPR_ANALYSIS_H
#define ATTUNE_EXPR_ANALYSIS_H

#include <stdbool.h>
#include <stdint.h>

/* The limit on terms of keys, and on terms of rows. */
#define ATTUNE__TERMS 4

/* Nodes that read captures or take many instructions, and have one value per key, for all rows, or one value per row,
 * for all keys. */
typedef struct attune__terms {
    uint32_t keys[ATTUNE__TERMS], rows[ATTUNE__TERMS];
    uint32_t key_count, row_count;
    uint32_t computed; /* bits of `keys`: those that read no capture */
    /* A capture whose last index is kv while the others do not depend on kv and the product, so that the elements for a
     * tile of pairs are rows of consecutive ones: its node, and the bytes of an element; 0 = none. */
    uint32_t tile, tile_bytes;
} attune__terms;

/* Capture reads, by number, whose element is the same for all pairs of a head: the first ones. */
#define ATTUNE__UNIFORM_READS 4
typedef struct attune__uniform_reads {
    uint32_t reads[ATTUNE__UNIFORM_READS];
    uint32_t count;
} attune__uniform_reads;

/* Indices of `terms`. In a tile with rows of several heads, terms of a key must not depend on the head. */
typedef enum attune__tile_heads { ATTUNE__ONE_HEAD, ATTUNE__SEVERAL_HEADS } attune__tile_heads;

typedef struct attune__mask_analysis {
    bool reads_head;             /* h or h_kv */
    bool row_intervals;          /* each row's keys are one interval, if equal elements of the captures in row_runs are
                                    contiguous */
    bool key_intervals;          /* likewise each key's rows */
    uint32_t row_runs, key_runs; /* bits of symbols; 0 = for any contents of captures */
    attune__terms terms[2];      /* none if row_intervals holds for any captures: kernels then evaluate no pairs */
    uint32_t weight;             /* estimated instructions per pair */
    bool reads_pairs;            /* captures at indices that depend on both q and kv */
} attune__mask_analysis;

/* A score, or its derivative with respect to the product. */
typedef struct attune__value_analysis {
    attune__terms terms[2];
    attune__terms tiled; /* of one head, with a tile if there is one */
    /* The bound on |product| of the near-zero form, a cheaper equivalent; infinity = for all products; 0 = none. */
    float near;
    float near_sines; /* likewise of a form whose approximate sines and cosines have small arguments, for q and kv below
                         2^23; 0 if there are none outside of the terms */
    /* Estimated instructions per pair: of the plain form, of the near-zero form, with approximate functions, and with
     * sines of small arguments as well. */
    uint32_t weight, near_weight, fast_weight, sines_weight;
} attune__value_analysis;

typedef struct attune__analysis {
    attune__mask_analysis mask;
    attune__value_analysis score, slope; /* slope: in backward */
    bool soft_cap;                       /* the score is cap_outer * tanh(cap_inner * product) */
    float cap_inner, cap_outer;
    bool linear;            /* the score is factor * product + base + slope * (kv - origin), of terms of the row */
    bool sloped;            /* it is linear, and depends on kv */
    bool smooth;            /* its functions may be approximate (attune__is_smooth) */
    bool smooth_pairs;      /* so may those outside of the terms of one head's tile */
    bool product_functions; /* a function or quotient depends on the product */
    bool smooth_slope;      /* so may those of its derivatives */
    bool reads_pairs;       /* it reads captures at indices that depend on both q and kv, or on the product */
    bool reads_more;        /* ... beside the one of the terms' tile */
    uint32_t capture_reads; /* with a gradient, in backward; uniform_reads: among them */
    attune__uniform_reads uniform_reads;
    bool gradients_of_score; /* a derivative, with respect to the product or a capture, depends on the product */
} attune__analysis;

/* The number of key terms of mask and score together. */
static inline uint32_t attune__analysis_key_terms(const attune__analysis *a, attune__tile_heads heads)
{
    return a->score.terms[heads].key_count + a->mask.terms[heads].key_count;
}

/* Whether each row's keys are one interval for any contents of captures. */
static inline bool attune__analysis_row_intervals(const attune__analysis *a)
{
    return a->mask.row_intervals && !a->mask.row_runs;
}

#endif
