/* SPDX-License-Identifier: MIT */
/*
 * The references for a kernel's result: attention by the definition, in plain loops over chosen rows, in float64 (the
 * oracle) and in the precision of the inputs (the naive computation); and the error rule that compares the three.
 * Independent of every backend: only attune_expr_evaluate is attune's.
 */
#ifndef TESTS_ORACLE_REFERENCE_H
#define TESTS_ORACLE_REFERENCE_H

#include "tests/oracle/array.h"

/* One attention problem with its data in host memory: what every test, check and benchmark row is made of. */
typedef struct attention {
    array q, k, v;        /* [b, h, l, d]; k and v of one dtype, f64 of all three or none */
    attune_dtype o_dtype; /* of o; 0 = that of q */
    array sinks;          /* [heads], f32 (f64 with f64); data NULL = none */
    int64_t b0, q0;       /* b and q in expressions are those of a row of these arrays and these */
    const bool *seen;     /* [q_len, kv_len]: further pairs that are forbidden; NULL = none */
    double scale;
    attune_expr *mask;  /* NULL = none */
    attune_expr *score; /* NULL = none */
    uint32_t capture_count;
    attune_host_capture captures[ATTUNE_EXPR_MAX_SYMBOLS]; /* of mask and score together */
    uint32_t parameter_count;
    attune_parameter parameters[ATTUNE_EXPR_MAX_SYMBOLS];
} attention;

attune_dtype attention_o_dtype(const attention *a);
/* By whose error rule O goes: the coarsest of k, v and o, by which the plain computation rounds Q, P and O. */
attune_dtype attention_rule_dtype(const attention *a);

typedef struct reference_row {
    int64_t b, h, q;
} reference_row;

/* Results for `count` rows: o is [count, head_dim_v], lse and row_max [count]; all float64, caller's memory. `moved`
 * may be NULL. */
typedef struct reference_result {
    double *o, *lse, *row_max;
    double *moved; /* [count, head_dim_v], of the oracle: how far o may move by roundings that the naive computation may
                      be spared. In f32 of each score; in 16 bits of the largest weight, which it has as 1 */
} reference_result;

typedef enum reference_precision {
    REFERENCE_ORACLE, /* float64 throughout; masks in float32, as everywhere */
    REFERENCE_NAIVE   /* Q rounded to the dtype of K, S and softmax in float32, P rounded to the dtype of V, PV
                         accumulated in float32, O rounded to its own */
} reference_precision;

/* Rows NULL: every row, in order b, h, q (count is then ignored). */
bool reference_compute(const attention *a, reference_precision precision, const reference_row *rows, int64_t count,
                       const reference_result *result, failure *why);

/*
 * The error rule (docs/numerics.md): against the oracle, the kernel's largest error is at most `factor` times the naive
 * one plus an absolute term, its mean error at most `mean_factor` times (plus the same term); NaN, infinity and masked
 * rows (o = 0, lse = -inf) exactly where the oracle has them. Factors: 2 and 1.1 for f16 and bf16, 10 and 10 for f32,
 * and 1e-12 absolute only for f64. The absolute term is twice the largest |((x + 0.3) - 0.3) - x| over the oracle's
 * values in the output's precision, at least 1e-6 for f32... see the .c file.
 */
typedef struct reference_error {
    double max, mean;             /* of the kernel */
    double naive_max, naive_mean; /* of the naive computation */
    double bound_max, bound_mean;
    int64_t pattern_errors; /* elements whose NaN, infinity or masked-row pattern is wrong */
    int64_t worst;          /* index of the largest error */
    bool pass;
} reference_error;

/* The largest relative error of one rounding to the dtype. */
double reference_epsilon(attune_dtype dtype);

void reference_compare(attune_dtype dtype, int64_t count, const double *got, const double *oracle, const double *naive,
                       reference_error *error);

/* Widens the bounds, and looks again whether the error is within. */
void reference_allow(reference_error *error, double more_max, double more_mean);

/* The same as reference_compare for whole rows of o, with what the oracle's `moved` adds to the bounds, and, where
 * o_dtype adds no rounding of its own to that of 16-bit weights, what means of few rows scatter by. */
void reference_compare_o(attune_dtype dtype, attune_dtype o_dtype, int64_t rows, int64_t columns, const double *got,
                         const reference_result *oracle, const reference_result *naive, reference_error *error);

/*
 * By how much roundings may move a gradient's elements, whatever their sums cancel to: the largest. dS = P (dP - delta)
 * is the difference of two sums over the head's dimension, which are made in different ways: delta of O as its dtype
 * keeps it, both in float32, and P of scores that are computed again. With u one rounding of attention_rule_dtype, a
 * pair's keeps
 *
 *     2 P (u sqrt(3 sum (o d_o)^2) + (2 + |s|) 2^-24 (sum |d_o v| + sum |o d_o| + |d_lse|))
 *
 * times what dS is multiplied by: elements of O are rounded separately, three times what their sum scatters by, and
 * twice that. Pairs of a row share delta, so theirs add up; rows do not: the root of the sum of their squares. In d_v
 * it is 2 u P |d_o|. Sums of n terms x in float32 scatter by 3 2^-24 sqrt(n (sum x^2 / 2 + (sum x)^2 / 3)) more, which
 * counts past some thousand terms. A rounding to f16, whose numbers end at 2^-24, is 2^-25 at
 * least: of O, of P, of dS and of the element.
 */
typedef struct reference_cancellation {
    double d_q, d_k, d_v, d_captures[ATTUNE_EXPR_MAX_SYMBOLS];
} reference_cancellation;

/* d_lse may be NULL; captures as in attention_gradients. Fails if a derivative has more text than an expression may. */
bool reference_cancelled(attune_instance *instance, const attention *a, const array *d_o, const array *d_lse,
                         uint32_t captures, reference_cancellation *out, failure *why);

/* A gradient, whose bound is in units of the largest element's rounding, plus `cancelled`. The errors' mean has no
 * bound of its own; pattern_errors counts what is not finite. */
void reference_compare_gradient(attune_dtype dtype, int64_t count, const double *got, const double *oracle,
                                double cancelled, reference_error *error);

/* Inputs and outputs of a backward pass. Outputs are float64 arrays shaped as q, k, v and the captures. */
typedef struct attention_gradients {
    const array *d_o;   /* [b,h,lq,dv] in the dtype of o */
    const array *d_lse; /* [b,h,lq] f32 (f64 with f64); NULL = the loss does not use LSE */
    uint32_t captures;  /* bits 1 << index of a capture of the problem whose gradient is wanted */
    array d_q, d_k, d_v, d_captures[ATTUNE_EXPR_MAX_SYMBOLS];
} attention_gradients;
void attention_gradients_free(attention_gradients *gradients);

/* Captures of the score expression that have gradients: those that are floating-point; bits as above. */
uint32_t attention_differentiable(const attention *a);
/* Elements of such captures together. */
int64_t attention_capture_elements(const attention *a, uint32_t captures);

/* Builds and uploads the mask that desc describes, in place of *mask (which may be NULL), and gives it to the problem,
 * if that is not NULL. */
attune_status attention_mask(attune_instance *instance, attune_device *device, const attention *a,
                             const attune_mask_desc *desc, attune_problem *problem, attune_mask **mask);

/* Runs `a` on a device through the public API: mask build, upload, plan, buffers, forward, and backward if gradients
 * are asked for. Outputs are float64 arrays shaped as the results; o [b,h,lq,dv], lse and row_max [b,h,lq], any may be
 * NULL. mask_block 0 = 128. */
typedef struct attention_run {
    const attune_kernel_options *options; /* NULL = automatic */
    uint32_t mask_q_block, mask_kv_block;
    array *o, *lse, *row_max;
    attention_gradients *gradients; /* NULL = forward alone */
    attune_plan_choice *choice;     /* NULL or receives the plan's */
    const int64_t *segments;        /* lengths that k and v are cut into, each with a mask of its own; NULL = whole */
    uint32_t segment_count;         /* at most SEGMENTS_MAX */
} attention_run;
attune_status attention_forward(attune_instance *instance, attune_device *device, const attention *a,
                                attention_run *run);

#endif
