/* SPDX-License-Identifier: MIT */
/*
 * What the expressions of a problem are made of, found once: the planner chooses a kernel's variant from it
 * (plan/plan.h), and explain shows it. Nothing here depends on a device, a shape or a kernel.
 */
#ifndef ATTUNE_EXPR_ANALYSIS_H
#define ATTUNE_EXPR_ANALYSIS_H

#include <stdbool.h>
#include <stdint.h>

/* The most terms of keys, and of rows. */
#define ATTUNE__TERMS 4

/* Nodes that read captures and are the same for every row of a key, or for every key of a row. */
typedef struct attune__terms {
    uint32_t keys[ATTUNE__TERMS], rows[ATTUNE__TERMS];
    uint32_t key_count, row_count;
} attune__terms;

/* Indices of `terms`: whether a tile has rows of one head, or of several, for which a term of a key must not depend on
 * the head. */
typedef enum attune__tile_heads { ATTUNE__ONE_HEAD, ATTUNE__SEVERAL_HEADS } attune__tile_heads;

typedef struct attune__mask_analysis {
    bool reads_head;    /* h or h_kv */
    bool row_intervals; /* a row's keys are one interval, where equal elements of the captures in row_runs stand
                           together */
    bool key_intervals; /* likewise a key's rows */
    uint32_t row_runs, key_runs; /* bits of symbols; 0 = whatever captures hold */
    attune__terms terms[2];      /* none if rows are intervals whatever captures hold: no pair is looked at then */
    uint32_t weight;             /* about how many instructions a pair takes */
} attune__mask_analysis;

/* A score, or its derivative with respect to the product. */
typedef struct attune__value_analysis {
    attune__terms terms[2];
    /* There is a cheaper form for products of at most this magnitude, infinity = for all; 0 = none. */
    float near;
    uint32_t weight, near_weight; /* about how many instructions a pair takes, as it is and in that form */
} attune__value_analysis;

typedef struct attune__analysis {
    attune__mask_analysis mask;
    attune__value_analysis score, slope; /* slope: in backward */
    bool soft_cap;                       /* the score is cap_outer * tanh(cap_inner * product) */
    float cap_inner, cap_outer;
    bool linear;            /* the score is factor * product + base + slope * (kv - origin), of terms of the row */
    bool reads_pairs;       /* it reads captures at indices of both q and kv, or of the product */
    uint32_t capture_reads; /* with a gradient, in backward */
} attune__analysis;

/* The key terms of mask and score together. */
static inline uint32_t attune__analysis_key_terms(const attune__analysis *a, attune__tile_heads heads)
{
    return a->score.terms[heads].key_count + a->mask.terms[heads].key_count;
}

/* Whether a row's keys are one interval whatever captures hold. */
static inline bool attune__analysis_row_intervals(const attune__analysis *a)
{
    return a->mask.row_intervals && !a->mask.row_runs;
}

#endif
