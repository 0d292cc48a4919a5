/* SPDX-License-Identifier: MIT */
/*
 * The planner: limits + problem + options -> a choice, or the exact reason why there is none. A pure function: no
 * device, no clock, no environment, no allocation.
 *
 *     choose.c  the planner's main function            shape.c         checks of problem and limits
 *     search.c  families and tiles until one fits      search_error.c  why none fits, and the nearest that would
 *     decode.c  when to decode, in how many parts      explain.c       text and JSON
 *     options.c names, ranges, prefixes                options_json.c  options from JSON
 *     family.c  the list of families                   family_*.c      tiles and byte formulas of families
 *     layout.c  layouts of Vulkan's kernels            layout_cpu.c    the CPU's workspace
 *     profile.c the table of known devices             partition.c     work items of the CPU and of decode
 */
#ifndef ATTUNE_PLAN_PLAN_H
#define ATTUNE_PLAN_PLAN_H

#include <attune/attune.h>

#include "base/round.h"
#include "expr/analysis.h"

/* The problem as the planner reads it: defaults are filled in, and expressions are reduced to their analysis. */
typedef struct attune__shape {
    attune_direction direction;
    attune_dtype q_dtype, k_dtype, v_dtype, o_dtype; /* f64: all of them */
    uint32_t head_dim, head_dim_v;
    int64_t batch, kv_batch, heads, kv_heads, q_len, kv_len;
    double scale;
    bool block_mask, mask_expr, score_expr;
    bool lse, row_max, sinks;
    bool partial; /* o, or d_q, d_k and d_v, are partial results, which are merged: of attune__shape_output */
    uint32_t mask_q_block, mask_kv_block;
    uint64_t capture_gradient_elements;
    uint32_t segments; /* the limit per call; 0 = none */
    int64_t tokens;    /* serving: the most rows of a call; 0 = none. block_mask is then mask_expr */
    int64_t page;      /* 0 = each sequence is one page */
    bool tree;
    uint32_t split_keys;       /* 0 = the family's */
    uint32_t shared_sequences; /* that share keys; up to 1 = none */
    /*
     * The analysis of the expressions, filled in by src/api, as is expr_scratch. With mask.reads_head, lists differ by
     * head, so that the heads of a group cannot share a tile. Lists may also differ without it, which only the call can
     * tell.
     */
    attune__analysis expr;
    uint64_t expr_scratch;   /* bytes that one CPU thread needs to evaluate a row of the expressions over mask_kv_block
                                columns */
    uint64_t bounds_scratch; /* likewise, to bound the mask over a tile; 0 unless tokens is set */
} attune__shape;

/* The type of softmax, sums, LSE and partial results. */
static inline attune_dtype attune__shape_real(const attune__shape *shape)
{
    return shape->q_dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
}

/* The type of o, or of d_q, d_k and d_v, as kernels write them. */
static inline attune_dtype attune__shape_output(const attune__shape *shape)
{
    return shape->partial                       ? attune__shape_real(shape)
           : shape->direction == ATTUNE_FORWARD ? shape->o_dtype
                                                : shape->k_dtype;
}

/* Whether the four tensors have different types. */
static inline bool attune__shape_mixed(const attune__shape *shape)
{
    return shape->k_dtype != shape->q_dtype || shape->v_dtype != shape->q_dtype || shape->o_dtype != shape->q_dtype;
}

/* Checks a problem and fills in the defaults. INVALID_ARGUMENT or UNSUPPORTED, with field, value and limit. Expressions
 * are not analysed: expr.mask.reads_head is true if there is a mask expression, and expr_scratch is 0. */
attune_status attune__shape_from_problem(const attune_problem *problem, attune__shape *shape);

/* The number of query heads whose rows share a decode tile: the group of a KV head (row = head in group * q_len + q),
 * or 1 if the mask's expression reads the head. A call whose lists differ by head always has tiles of one head. */
uint32_t attune__shape_packed_heads(const attune__shape *shape);

/*
 * The bytes of the partial results of a decode pass that is split `split` ways, of `element` bytes (4; 8 for f64), a
 * multiple of 256; 0 if split is 1. They are at the beginning of the workspace:
 *
 *     o  [batch][heads][q_len][split][head_dim_v]    each part's sum of exp(s - m) v, not divided by l
 *     ml [batch][heads][q_len][split][2]             its m and l; begins at the next multiple of 256
 *
 * The keys are counted in steps of attune__decode_step. Part i has the steps [i * steps / split, (i + 1) * steps /
 * split), so that no part is empty at the plan's longest kv_len.
 */
uint64_t attune__split_size(const attune__shape *shape, uint32_t split, uint32_t element);
/* The offset of ml, of a call with batch * heads * q_len rows, o `columns` wide. */
static inline uint64_t attune__split_ml(uint64_t rows, uint32_t split, uint64_t columns, uint64_t element)
{
    return attune__round_up64(rows * split * columns * element, 256);
}
/* Keys in a step: the block of the mask, or block_n without a block mask. */
uint32_t attune__decode_step(const attune__shape *shape, uint32_t block_n);

/* The workspace of a merge of part_count parts with results of dtype, `columns` wide: that of a launch, then o and lse
 * of the result so far if one launch does not take all parts, each at a multiple of 256. */
#define ATTUNE__MERGE_PARTS     8
#define ATTUNE__MERGE_SPLITS    512
#define ATTUNE__MERGE_WORKSPACE UINT64_C(4096)
uint64_t attune__merge_workspace(attune_dtype dtype, uint64_t rows, uint64_t columns, uint32_t part_count);
/* The partial result of one segment: o and lse, or d_q; sized for any type that a backend writes. */
uint64_t attune__segment_size(const attune__shape *shape, uint64_t rows);
/* The part of a workspace for segments, at its beginning: that of the merge, then the partial results. 0 for fewer than
 * two segments. */
uint64_t attune__segments_size(const attune__shape *shape, uint64_t rows, uint32_t segments);

/* Replaces the limits of a device by those of a profile, except the architecture that kernels are compiled for. */
attune_status attune__profile_apply(const char *name, attune_limits *limits);

/* A candidate that was rejected. */
typedef struct attune__rejection {
    char what[96]; /* "cuda_sm80 BLOCK_M 128 BLOCK_N 64 num_stages 3" */
    char why[160]; /* "122880 bytes of shared memory, the device has 101376" */
} attune__rejection;

#define ATTUNE__MAX_REJECTIONS 32

/* How a kernel evaluates the expressions: chosen by its family from their analysis. Zero: unchanged, pair by pair. */
typedef struct attune__variant {
    bool row_intervals; /* partial blocks compare kv with a row's interval, instead of evaluating the mask ... */
    bool mask_pairs;    /* ... or the mask is evaluated: beside row_intervals for captures without runs */
    bool key_intervals; /* backward: a key's rows too */
    bool soft_cap, linear;
    bool fast_functions; /* the score's functions need not have all digits of float32 */
    bool exact_terms;    /* ... but those of its terms have */
    float near;          /* the bound on |product| of the score's near-zero form; infinity = all, 0 = none */
    bool fused_sums;     /* its sums with products are one operation each */
    bool near_sines;     /* the arguments of its approximate sines and cosines are small too */
    bool near_reads;     /* backward: the derivatives of capture reads have it too */
    bool mask_chunks,
        score_chunks;   /* loops over a thread's pairs are unrolled in chunks only, to limit register pressure */
    bool late_captures; /* sizes and strides of captures are loaded where they are used, not kept in registers */
    bool late_delta;    /* delta is loaded after P is computed */
    /* Hopper's kernels, in the registers that a thread has. */
    bool descending; /* forward: tiles of keys are taken from the last to the first */
    /* Forward: scores of a thread that are computed at once, 0 = all; and in a query tile's first tile of keys, where
     * slower and shorter code will do. */
    uint32_t score_chunk, first_score_chunk;
    bool late_hook;        /* forward: the hook for the next S runs after P V, not beside it */
    bool late_dp;          /* backward: dP is issued after P is known and dV is issued */
    bool early_dq;         /* backward with a cluster: dQ of the previous query tile is added before P is computed */
    bool fused_gradients;  /* backward: P, dS and the captures' gradients are computed in one pass */
    bool half_tiles;       /* ... for half of a query tile at a time */
    bool rematerialise;    /* backward: what follows from the thread's index is computed again in each tile */
    bool predicated_loads; /* elements of captures are loaded without branches, so that many are under way at once */
    /* tcgen05's: of each eight exponentials of P, those that are polynomials, and of which degree; 0 = none. */
    uint32_t polynomials, polynomial_degree;
    /* The mma.sync kernels, likewise. */
    bool separate_dk_dv; /* backward: separate CTAs compute dK and dV, whose accumulators would not fit together */
    bool saved_state;    /* decode: row maxima and sums are in shared memory while O accumulates */
    bool serial_columns; /* backward: the loop of dK and dV evaluates scores one fragment of columns after another */
    attune__terms mask, score, slope; /* computed once for each key, and each row, of a tile */
    /* Vulkan, backward: the gradients of these capture reads are summed over a thread's pairs before they are added. */
    attune__uniform_reads uniform_reads;
} attune__variant;

/* A choice with its reasons. */
typedef struct attune__decision {
    attune_plan_choice choice;
    attune__variant variant;
    char why[256];
    char why_decode[256]; /* why the decode kernel was chosen or not */
    /* If it was not: the decode choice for calls of at most choice.short_q_len queries (attune__decision_is_short). */
    attune_plan_choice short_choice;
    attune__variant short_variant;
    char why_short[256]; /* why there is a short choice or not; empty if the choice is decode or backward */
    uint32_t rejection_count;
    attune__rejection rejections[ATTUNE__MAX_REJECTIONS];
} attune__decision;

/* Whether a call of these lengths runs the short choice, by the planner's rule for decode. */
bool attune__decision_is_short(const attune__decision *decision, int64_t q_len, int64_t kv_len);

/* The shape of the short choice's program. */
static inline attune__shape attune__shape_of_short(const attune__shape *shape, const attune__decision *decision)
{
    attune__shape s = *shape;
    s.q_len = decision->choice.short_q_len;
    return s;
}

attune_status attune__plan_choose(const attune_limits *limits, const attune__shape *shape,
                                  const attune_kernel_options *options, attune__decision *decision);

attune_status attune__plan_explain(const attune_limits *limits, const attune__shape *shape,
                                   const attune_kernel_options *options, const attune__decision *decision,
                                   attune_text_format format, char *buffer, size_t size, size_t *needed);

#endif
