/* SPDX-License-Identifier: MIT */
/*
 * The configuration of a kernel, and the functions of its expressions. Only this file reads the macros with which the
 * host specialises a source (arguments.h): options -D of the plan, and those that "mods.cuh" defines beside the text of
 * the expressions. A macro that is not given has the value of a kernel without mask, score and gradients. Kernels read
 * `config`, and call functions that not every expression has under `if constexpr`: absent ones are declared here, and
 * defined nowhere.
 */
#ifndef ATTUNE_CUDA_CONFIG_CUH
#define ATTUNE_CUDA_CONFIG_CUH

#include "prelude.cuh"

/* The problem. */
#ifndef ATTUNE_DTYPE
#define ATTUNE_DTYPE ATTUNE_CUDA_F16
#endif
#ifndef ATTUNE_Q_DTYPE
#define ATTUNE_Q_DTYPE ATTUNE_DTYPE
#endif
#ifndef ATTUNE_O_DTYPE
#define ATTUNE_O_DTYPE ATTUNE_DTYPE
#endif
#ifndef ATTUNE_K_TYPE
#define ATTUNE_K_TYPE ATTUNE_DTYPE
#endif
#ifndef ATTUNE_V_TYPE
#define ATTUNE_V_TYPE ATTUNE_DTYPE
#endif
#ifndef ATTUNE_HEAD_DIM
#define ATTUNE_HEAD_DIM 64
#endif
#ifndef ATTUNE_HEAD_DIM_V
#define ATTUNE_HEAD_DIM_V ATTUNE_HEAD_DIM
#endif
#ifndef ATTUNE_O_COLUMNS
#define ATTUNE_O_COLUMNS ATTUNE_HEAD_DIM_V
#endif
/* The tile. */
#ifndef ATTUNE_BLOCK_M
#define ATTUNE_BLOCK_M 64
#endif
#ifndef ATTUNE_BLOCK_N
#define ATTUNE_BLOCK_N 64
#endif
#ifndef ATTUNE_NUM_WARPS
#define ATTUNE_NUM_WARPS 4
#endif
#ifndef ATTUNE_NUM_STAGES
#define ATTUNE_NUM_STAGES 1
#endif
#ifndef ATTUNE_PADDING
#define ATTUNE_PADDING 16
#endif
#ifndef ATTUNE_SHARED_MEMORY
#define ATTUNE_SHARED_MEMORY 0
#endif
/* Mask, score, gradients and order of the kernel. */
#ifndef ATTUNE_HAVE_BLOCKS
#define ATTUNE_HAVE_BLOCKS 0
#endif
#ifndef ATTUNE_HAVE_MASK
#define ATTUNE_HAVE_MASK 0
#endif
#ifndef ATTUNE_HAVE_MASK_RANGE
#define ATTUNE_HAVE_MASK_RANGE 0
#endif
#ifndef ATTUNE_HAVE_MASK_COLUMNS
#define ATTUNE_HAVE_MASK_COLUMNS 0
#endif
#ifndef ATTUNE_HAVE_SCORE
#define ATTUNE_HAVE_SCORE 0
#endif
#ifndef ATTUNE_SINKS
#define ATTUNE_SINKS 0
#endif
#ifndef ATTUNE_HAVE_CAPTURE_GRADIENTS
#define ATTUNE_HAVE_CAPTURE_GRADIENTS 0
#endif
#ifndef ATTUNE_DETERMINISTIC
#define ATTUNE_DETERMINISTIC 0
#endif
#ifndef ATTUNE_DK_DV
#define ATTUNE_DK_DV 0
#endif
#ifndef ATTUNE_SEPARATE_DK_DV
#define ATTUNE_SEPARATE_DK_DV 0
#endif
#ifndef ATTUNE_CLUSTER
#define ATTUNE_CLUSTER 1
#endif
#ifndef ATTUNE_ARRIVALS
#define ATTUNE_ARRIVALS 1
#endif

#ifndef ATTUNE_TREE
#define ATTUNE_TREE 0
#endif
#ifndef ATTUNE_PARTS
#define ATTUNE_PARTS 0
#endif
#ifndef ATTUNE_SPLIT_KEYS
#define ATTUNE_SPLIT_KEYS 0
#endif
#ifndef ATTUNE_SHARES
#define ATTUNE_SHARES 0
#endif

#if ATTUNE_HAVE_MASK || ATTUNE_HAVE_MASK_RANGE || ATTUNE_HAVE_SCORE
#include "mods.cuh"
#endif

/* Declares what an expression does not have: the functions of mods.cuh, with their parameters (arguments.h). */
#define ATTUNE_PAIR     int b, int h, int q, int kv, int h_kv, int q_len, int kv_len, float score
#define ATTUNE_KEY      int b, int h, int kv, int h_kv, int q_len, int kv_len
#define ATTUNE_ROW      int b, int h, int q, int h_kv, int q_len, int kv_len
#define ATTUNE_OF_TERMS const int *key, const int *row

#if !ATTUNE_HAVE_MASK && !ATTUNE_HAVE_MASK_RANGE
__device__ int attune_mask(ATTUNE_PAIR ATTUNE_SYMBOLS);
#endif
#if !ATTUNE_HAVE_MASK_RANGE
__device__ void attune_mask_range(ATTUNE_ROW, int *low, int *high ATTUNE_SYMBOLS);
#endif
#if !ATTUNE_HAVE_MASK_COLUMNS
__device__ void attune_mask_rows(ATTUNE_KEY, int *low, int *high ATTUNE_SYMBOLS);
#endif
#ifndef ATTUNE_MASK_KEYS
#define ATTUNE_MASK_KEYS 0
#define ATTUNE_MASK_ROWS 0
__device__ void attune_mask_key_terms(ATTUNE_KEY, int *key ATTUNE_SYMBOLS);
__device__ void attune_mask_row_terms(ATTUNE_ROW, int *row ATTUNE_SYMBOLS);
__device__ int attune_mask_of(ATTUNE_PAIR, ATTUNE_OF_TERMS ATTUNE_SYMBOLS);
#endif
#if !ATTUNE_HAVE_SCORE
__device__ float attune_score(ATTUNE_PAIR ATTUNE_SYMBOLS);
#endif
#ifndef ATTUNE_SCORE_KEYS
#define ATTUNE_SCORE_KEYS 0
#define ATTUNE_SCORE_ROWS 0
__device__ void attune_score_key_terms(ATTUNE_KEY, int *key ATTUNE_SYMBOLS);
__device__ void attune_score_row_terms(ATTUNE_ROW, int *row ATTUNE_SYMBOLS);
__device__ float attune_score_of(ATTUNE_PAIR, ATTUNE_OF_TERMS ATTUNE_SYMBOLS);
#endif
#ifndef ATTUNE_HAVE_SCORE_NEAR
#define ATTUNE_HAVE_SCORE_NEAR 0
__device__ float attune_score_near(ATTUNE_PAIR ATTUNE_SYMBOLS);
#endif
#ifdef ATTUNE_NEAR_SINES
#define ATTUNE_SINES_ARE_NEAR 1
#else
#define ATTUNE_SINES_ARE_NEAR 0
#endif
#ifdef ATTUNE_SCORE_NEAR
#define ATTUNE_SCORE_NEAR_BOUNDED 1
#else
#define ATTUNE_SCORE_NEAR_BOUNDED 0
#endif
#ifndef ATTUNE_SCORE_TILE
#define ATTUNE_SCORE_TILE 0
__device__ attune_capture_row attune_score_tile_row(ATTUNE_ROW ATTUNE_SYMBOLS);
__device__ bool attune_score_tile_aligned(const attune_cuda_symbol *symbols);
__device__ long long attune_score_tile_stride(const attune_cuda_symbol *symbols);
__device__ int attune_score_tile_value(unsigned bits);
#endif
#if !ATTUNE_HAVE_SCORE_NEAR || !(ATTUNE_SCORE_KEYS + ATTUNE_SCORE_ROWS + ATTUNE_SCORE_TILE)
__device__ float attune_score_near_of(ATTUNE_PAIR, ATTUNE_OF_TERMS ATTUNE_SYMBOLS);
#endif
#ifndef ATTUNE_HAVE_LINEAR_SCORE
#define ATTUNE_HAVE_LINEAR_SCORE      0
#define ATTUNE_LINEAR_SCORE_HAS_SLOPE 0
__device__ void attune_linear_score(ATTUNE_ROW, float *factor, float *slope, float *base, int *origin ATTUNE_SYMBOLS);
#endif
#ifdef ATTUNE_SCORE_CAP_INNER
#define ATTUNE_HAVE_SCORE_CAP 1
#else
#define ATTUNE_HAVE_SCORE_CAP 0
#endif
#ifndef ATTUNE_HAVE_SCORE_SLOPE
#define ATTUNE_HAVE_SCORE_SLOPE 0
__device__ float attune_score_slope(ATTUNE_PAIR ATTUNE_SYMBOLS);
#endif
#ifndef ATTUNE_SLOPE_KEYS
#define ATTUNE_SLOPE_KEYS 0
#define ATTUNE_SLOPE_ROWS 0
__device__ void attune_score_slope_key_terms(ATTUNE_KEY, int *key ATTUNE_SYMBOLS);
__device__ void attune_score_slope_row_terms(ATTUNE_ROW, int *row ATTUNE_SYMBOLS);
__device__ float attune_score_slope_of(ATTUNE_PAIR, ATTUNE_OF_TERMS ATTUNE_SYMBOLS);
#endif
#if !ATTUNE_HAVE_SCORE_NEAR || !ATTUNE_HAVE_SCORE_SLOPE
__device__ float attune_score_slope_near(ATTUNE_PAIR ATTUNE_SYMBOLS);
#endif
#if !ATTUNE_HAVE_SCORE_NEAR || !(ATTUNE_SLOPE_KEYS || ATTUNE_SLOPE_ROWS)
__device__ float attune_score_slope_near_of(ATTUNE_PAIR, ATTUNE_OF_TERMS ATTUNE_SYMBOLS);
#endif
#ifndef ATTUNE_CAPTURE_READS
#define ATTUNE_CAPTURE_READS(X)
#define ATTUNE_CAPTURE_READS_IN_ORDER(i)   0
#define ATTUNE_CAPTURE_GRADIENTS_USE_SCORE 0
#endif
#ifdef ATTUNE_HAVE_FAST_FUNCTIONS
#define ATTUNE_FUNCTIONS_ARE_FAST 1
#else
#define ATTUNE_FUNCTIONS_ARE_FAST 0
#endif
#ifdef ATTUNE_APPROXIMATE_TANH
#define ATTUNE_TANH_IS_APPROXIMATE 1
#else
#define ATTUNE_TANH_IS_APPROXIMATE 0
#endif
/* How the planner has the expressions computed. */
#ifndef ATTUNE_SAVED_STATE
#define ATTUNE_SAVED_STATE 0
#endif
#ifndef ATTUNE_SERIAL_COLUMNS
#define ATTUNE_SERIAL_COLUMNS 0
#endif
#ifndef ATTUNE_SCORE_CHUNKS
#define ATTUNE_SCORE_CHUNKS 0
#endif
#ifndef ATTUNE_SCORE_CHUNK
#define ATTUNE_SCORE_CHUNK 0
#endif
#ifndef ATTUNE_FIRST_SCORE_CHUNK
#define ATTUNE_FIRST_SCORE_CHUNK 8
#endif
#ifndef ATTUNE_POLYNOMIALS
#define ATTUNE_POLYNOMIALS 0
#endif
#ifndef ATTUNE_POLYNOMIAL_DEGREE
#define ATTUNE_POLYNOMIAL_DEGREE 3
#endif
#ifndef ATTUNE_MASK_CHUNKS
#define ATTUNE_MASK_CHUNKS 0
#endif
#ifndef ATTUNE_LATE_DELTA
#define ATTUNE_LATE_DELTA 0
#endif
#ifndef ATTUNE_LATE_CAPTURES
#define ATTUNE_LATE_CAPTURES 0
#endif
#ifndef ATTUNE_DESCENDING
#define ATTUNE_DESCENDING 0
#endif
#ifndef ATTUNE_LATE_HOOK
#define ATTUNE_LATE_HOOK 0
#endif
#ifndef ATTUNE_LATE_DP
#define ATTUNE_LATE_DP 0
#endif
#ifndef ATTUNE_EARLY_DQ
#define ATTUNE_EARLY_DQ 0
#endif
#ifndef ATTUNE_FUSED_GRADIENTS
#define ATTUNE_FUSED_GRADIENTS 0
#endif
#ifndef ATTUNE_HALF_TILES
#define ATTUNE_HALF_TILES 0
#endif
#ifndef ATTUNE_REMATERIALISE
#define ATTUNE_REMATERIALISE 0
#endif

struct config {
    /* The problem. q and the outputs (o, or d_q, d_k and d_v) may have other dtypes than k and v; the matrix products
     * use that of k and v. */
    static constexpr int DTYPE = ATTUNE_DTYPE, Q_DTYPE = ATTUNE_Q_DTYPE, O_DTYPE = ATTUNE_O_DTYPE;
    static constexpr int K_TYPE = ATTUNE_K_TYPE, V_TYPE = ATTUNE_V_TYPE; /* of a cache */
    static constexpr int HEAD_DIM = ATTUNE_HEAD_DIM, HEAD_DIM_V = ATTUNE_HEAD_DIM_V;
    static constexpr int O_COLUMNS = ATTUNE_O_COLUMNS; /* of o in all launches of the call: each has HEAD_DIM_V */

    /* The tile. */
    static constexpr int BLOCK_M = ATTUNE_BLOCK_M, BLOCK_N = ATTUNE_BLOCK_N;
    static constexpr int NUM_WARPS = ATTUNE_NUM_WARPS, NUM_STAGES = ATTUNE_NUM_STAGES;
    static constexpr int PADDING = ATTUNE_PADDING; /* mma.sync: head dimensions are padded to a multiple of it */
    static constexpr unsigned SHARED_MEMORY = ATTUNE_SHARED_MEMORY; /* the planner's bytes; 0 = not checked */

    /* The mask: block lists; in partial blocks attune_mask, and intervals of a row's keys and of a key's rows. */
    static constexpr bool HAVE_BLOCKS = ATTUNE_HAVE_BLOCKS, HAVE_MASK_PAIRS = ATTUNE_HAVE_MASK,
                          HAVE_MASK_RANGE = ATTUNE_HAVE_MASK_RANGE, HAVE_MASK_COLUMNS = ATTUNE_HAVE_MASK_COLUMNS;
    static constexpr int MASK_KEYS = ATTUNE_MASK_KEYS, MASK_ROWS = ATTUNE_MASK_ROWS; /* terms of a key, of a row */

    /* Over a cache: rows may see some of the drafts only; keys are computed in parts, which begin at the multiples of
     * SPLIT_KEYS, if it is not 0; a tile may have rows of several sequences. */
    static constexpr bool TREE = ATTUNE_TREE, PARTS = ATTUNE_PARTS, SHARES = ATTUNE_SHARES;
    static constexpr int SPLIT_KEYS = ATTUNE_SPLIT_KEYS;

    /* The score, and in backward kernels its slope, d score / d product. */
    static constexpr bool HAVE_SCORE = ATTUNE_HAVE_SCORE, HAVE_SCORE_SLOPE = ATTUNE_HAVE_SCORE_SLOPE;
    static constexpr int SCORE_KEYS = ATTUNE_SCORE_KEYS, SCORE_ROWS = ATTUNE_SCORE_ROWS;
    static constexpr int SLOPE_KEYS = ATTUNE_SLOPE_KEYS, SLOPE_ROWS = ATTUNE_SLOPE_ROWS;
    static constexpr unsigned SCORE_TILE = ATTUNE_SCORE_TILE; /* bytes of a pair's element of the tile of a capture */
    /* The near-zero form: it holds for every product, or if bounded for those of at most SCORE_NEAR in magnitude. */
    static constexpr bool HAVE_SCORE_NEAR = ATTUNE_HAVE_SCORE_NEAR, SCORE_NEAR_BOUNDED = ATTUNE_SCORE_NEAR_BOUNDED;
    static constexpr bool NEAR_SINES = ATTUNE_SINES_ARE_NEAR; /* it has sines without branches */
#if ATTUNE_SCORE_NEAR_BOUNDED
    static constexpr float SCORE_NEAR = ATTUNE_SCORE_NEAR;
#else
    static constexpr float SCORE_NEAR = 0.0f;
#endif
    /* A score linear in the product and kv; with a slope, it depends on kv. */
    static constexpr bool HAVE_LINEAR_SCORE = ATTUNE_HAVE_LINEAR_SCORE,
                          LINEAR_SCORE_HAS_SLOPE = ATTUNE_LINEAR_SCORE_HAS_SLOPE;
    static constexpr bool FAST_FUNCTIONS = ATTUNE_FUNCTIONS_ARE_FAST; /* without all digits of float32 */
    /* A soft-cap: CAP_OUTER * tanh(CAP_INNER * product). */
    static constexpr bool HAVE_SCORE_CAP = ATTUNE_HAVE_SCORE_CAP, APPROXIMATE_TANH = ATTUNE_TANH_IS_APPROXIMATE;
#if ATTUNE_HAVE_SCORE_CAP
    static constexpr float CAP_INNER = ATTUNE_SCORE_CAP_INNER, CAP_OUTER = ATTUNE_SCORE_CAP_OUTER;
#else
    static constexpr float CAP_INNER = 0.0f, CAP_OUTER = 0.0f;
#endif

    static constexpr bool SINKS = ATTUNE_SINKS; /* the call may have sinks */

    /* Backward: capture gradients may be requested, and some of them depend on the product. */
    static constexpr bool HAVE_CAPTURE_GRADIENTS = ATTUNE_HAVE_CAPTURE_GRADIENTS,
                          GRADIENTS_USE_SCORE = ATTUNE_CAPTURE_GRADIENTS_USE_SCORE;
    static constexpr bool DETERMINISTIC = ATTUNE_DETERMINISTIC;   /* dQ is accumulated in a fixed order */
    static constexpr bool DK_DV = ATTUNE_DK_DV;                   /* the outer tile has keys */
    static constexpr bool SEPARATE_DK_DV = ATTUNE_SEPARATE_DK_DV; /* separate CTAs compute dV and dK */

    /* Loops over a thread's pairs are unrolled in chunks only. */
    static constexpr bool MASK_CHUNKS = ATTUNE_MASK_CHUNKS, SCORE_CHUNKS = ATTUNE_SCORE_CHUNKS;
    /* Forward with TMA: the scores that are computed at once, 0 = all; and in a query tile's first tile of keys. */
    static constexpr int SCORE_CHUNK = ATTUNE_SCORE_CHUNK, FIRST_SCORE_CHUNK = ATTUNE_FIRST_SCORE_CHUNK;

    /* Of each eight exponentials of P, those that are polynomials of this degree (exponentials.cuh). */
    static constexpr int POLYNOMIALS = ATTUNE_POLYNOMIALS, POLYNOMIAL_DEGREE = ATTUNE_POLYNOMIAL_DEGREE;

    /* The order of the stages, for the registers that a thread has (src/plan/plan.h). */
    static constexpr bool DESCENDING = ATTUNE_DESCENDING, LATE_HOOK = ATTUNE_LATE_HOOK, LATE_DP = ATTUNE_LATE_DP,
                          EARLY_DQ = ATTUNE_EARLY_DQ, FUSED_GRADIENTS = ATTUNE_FUSED_GRADIENTS,
                          HALF_TILES = ATTUNE_HALF_TILES, REMATERIALISE = ATTUNE_REMATERIALISE,
                          LATE_CAPTURES = ATTUNE_LATE_CAPTURES, LATE_DELTA = ATTUNE_LATE_DELTA;

    static constexpr int CLUSTER = ATTUNE_CLUSTER; /* CTAs that compute a tile together (backward_sm90) */

    /* mma.sync. Decode: row maxima and sums are in shared memory while O accumulates. Backward with DK_DV: scores are
     * evaluated one fragment of columns after another. */
    static constexpr bool SAVED_STATE = ATTUNE_SAVED_STATE, SERIAL_COLUMNS = ATTUNE_SERIAL_COLUMNS;

    /* Threads of a warp that arrive at an mbarrier (hopper.cuh). */
    static constexpr int ARRIVALS = ATTUNE_ARRIVALS;
};

/* X(i, symbol, kind) for each capture read whose gradient may be requested. */
#if ATTUNE_HAVE_CAPTURE_GRADIENTS
#define ATTUNE_REQUESTED_CAPTURE_READS(X) ATTUNE_CAPTURE_READS(X)
#else
#define ATTUNE_REQUESTED_CAPTURE_READS(X)
#endif
/* The derivative with respect to the element of a capture read, in its near-zero form if there is one. */
#if ATTUNE_HAVE_SCORE_NEAR
#define ATTUNE_CAPTURE_READ_NEAR(n) attune_capture_read_##n##_near
#else
#define ATTUNE_CAPTURE_READ_NEAR(n) attune_capture_read_##n
#endif
/* The name of a 16-bit dtype in PTX; a literal, for the text of instructions. */
#if ATTUNE_DTYPE == ATTUNE_CUDA_F16
#define ATTUNE_PTX_DTYPE "f16"
#else
#define ATTUNE_PTX_DTYPE "bf16"
#endif
/* An attribute of a kernel: none without a cluster, since even one of a single CTA is launched differently. */
#if ATTUNE_CLUSTER > 1
#define ATTUNE_CLUSTER_DIMENSIONS __cluster_dims__(ATTUNE_CLUSTER, 1, 1)
#else
#define ATTUNE_CLUSTER_DIMENSIONS
#endif

#endif
