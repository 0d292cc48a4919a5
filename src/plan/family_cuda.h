/* SPDX-License-Identifier: MIT */
/* Shared by CUDA's families; and the layout of the backward pass, on which planner, launch and packs must agree. */
#ifndef ATTUNE_PLAN_FAMILY_CUDA_H
#define ATTUNE_PLAN_FAMILY_CUDA_H

#include "cuda/layout.h"
#include "plan/family.h"

typedef struct attune__cuda_tiles {
    const attune__tile *tiles;
    uint32_t count;
} attune__cuda_tiles;
#define ATTUNE__CUDA_TILES(array) ((attune__cuda_tiles){array, sizeof(array) / sizeof((array)[0])})

/* The options that every kernel's main loop uses. */
#define ATTUNE__CUDA_LOOP                                                                                              \
    (ATTUNE__BIT(ATTUNE__NUM_STAGES) | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__BIT(ATTUNE__PRESCALE_QK) |             \
     ATTUNE__BIT(ATTUNE__USE_TMA) | ATTUNE__BIT(ATTUNE__BLOCKS_ARE_CONTIGUOUS) |                                       \
     ATTUNE__BIT(ATTUNE__APPROXIMATE_TANH))

/* Selects a table by the larger head dimension: up to 64, 128, 192, 256. */
static inline attune__cuda_tiles attune__cuda_by_head_dim(const attune__shape *shape,
                                                          const attune__cuda_tiles tables[4])
{
    const uint32_t d = shape->head_dim > shape->head_dim_v ? shape->head_dim : shape->head_dim_v;
    return tables[d <= 64 ? 0 : d <= 128 ? 1 : d <= 192 ? 2 : 3];
}

/* Estimated registers of a thread for addresses, fragments and inlined expressions, without accumulators. */
static inline uint32_t attune__cuda_registers(const attune__shape *s)
{
    return 48 + (s->score_expr ? 4u : 0u) + (s->mask_expr ? 3u : 0u);
}

/* Over a cache, whether both k and v are quantised: the products have their codes, in bf16. */
static inline bool attune__cuda_codes(const attune__shape *s)
{
    const uint32_t quantised = ATTUNE__CACHE_DTYPES & ~ATTUNE__DENSE_DTYPES;
    return quantised >> s->k_dtype & quantised >> s->v_dtype & 1;
}

/* The type of the operands of the products: that of k and v, bf16 for codes, and f32 for a mix of types. */
static inline attune_dtype attune__cuda_operand(const attune__shape *s)
{
    return attune__cuda_codes(s) ? ATTUNE_BF16 : s->k_dtype == s->v_dtype ? s->k_dtype : ATTUNE_F32;
}

/* Factors of a row of k or v, of codes. */
static inline uint32_t attune__cuda_factors(const attune__shape *s, attune_dtype dtype, uint32_t columns)
{
    return !attune__cuda_codes(s) ? 0 : attune_dtype_block(dtype) > 1 ? columns / attune_dtype_block(dtype) : 1;
}

static inline bool attune__cuda_is_f32(const attune__shape *s)
{
    return attune__cuda_operand(s) == ATTUNE_F32;
}

/* The columns of v that one launch multiplies. Past 256 no warp has registers for 16 rows of o, and two launches have
 * half each, in multiples of 8: the second one the last of them. Over a cache warps divide the columns. */
static inline uint32_t attune__cuda_columns(const attune__shape *s)
{
    return s->tokens || s->head_dim_v <= 256 ? s->head_dim_v : s->head_dim_v - s->head_dim_v / 16 * 8;
}

/* The forward kernels with TMA look at V of partial tiles for NaN, a tile behind K. With one stage they would look
 * while it is still being loaded. */
static inline const char *attune__cuda_reject_one_stage(const attune__shape *s, uint32_t stages, attune__option *option)
{
    *option = ATTUNE__NUM_STAGES;
    return stages == 1 && (s->mask_expr || s->block_mask) ? "with a mask the least is 2" : NULL;
}

/* Over a cache: whether keys are computed in parts; with rows of several sequences in a tile. */
bool attune__cuda_has_parts(const attune__shape *shape);
bool attune__cuda_shares(const attune__shape *shape);

/* The parameters of a layout of shared memory. The sides of the tile are the caller's. */
static inline attune_cuda_tile attune__cuda_tile(const attune__shape *s, uint32_t m, uint32_t n, uint32_t warps,
                                                 uint32_t stages)
{
    return (attune_cuda_tile){.element = attune__cuda_is_f32(s) ? 4 : 2,
                              .head_dim = s->head_dim,
                              .head_dim_v = attune__cuda_columns(s),
                              .block_m = m,
                              .block_n = n,
                              .warps = warps,
                              .q_parts = !attune__cuda_codes(s) || s->q_dtype == ATTUNE_BF16 ? 1
                                         : s->q_dtype == ATTUNE_F16                          ? 2
                                                                                             : 3,
                              .k_factors = attune__cuda_factors(s, s->k_dtype, s->head_dim),
                              .v_factors = attune__cuda_factors(s, s->v_dtype, s->head_dim_v),
                              .shares = attune__cuda_shares(s),
                              .stages = stages};
}

/* The workspace function of all CUDA families. */
uint64_t attune__cuda_workspace_bytes(const attune__search *search, const attune__tile *tile, const attune__cost *cost,
                                      uint32_t split);

/* Registers that a launch of a kernel with setmaxnreg allocates for each thread: an equal share of a compute unit's. */
static inline uint32_t attune__cuda_launched_registers(uint32_t threads)
{
    const uint32_t each = threads ? 65536 / threads / 8 * 8 : 0;
    return each > 248 ? 248 : each;
}

/*
 * Hopper's forward kernels, of dense tensors and over a cache: a producer warp group, and a consumer warp group of four
 * warps for each 64 rows. reject_wgmma_warps returns why the number of warps is another, with its option.
 */
uint32_t attune__cuda_wgmma_warps(const attune__tile *tile);
const char *attune__cuda_reject_wgmma_warps(const attune__search *search, const attune__tile *tile,
                                            attune__option *option);
/* Registers of a consumer's threads; width_dv: columns of O with padding. */
uint32_t attune__cuda_wgmma_registers(const attune__shape *shape, uint32_t block_n, uint32_t width_dv);

/* The properties of a family's kernels by which their variant is chosen. */
typedef struct attune__cuda_traits {
    bool both_masks;    /* the mask beside a row's interval, if only the call knows whether that holds */
    bool key_intervals; /* backward: a key's rows */
    bool few_registers; /* backward: the accumulators of dK and dV leave few for what captures need */
    bool exact_slope;   /* backward: the score's functions have all digits */
    bool near_reads;    /* backward: the derivatives of capture reads have a near-zero form too */
    bool score_rows;    /* forward: the score's terms of rows, if there are none of keys */
    bool capture_tiles; /* a capture's elements for a tile of pairs are staged in shared memory */
} attune__cuda_traits;
/* For the variant functions of families: what all kernels have, then what those with TMA have besides. */
void attune__cuda_variant(const attune__shape *shape, const attune_plan_choice *choice,
                          const attune__cuda_traits *traits, attune__variant *variant);
/* large_chunk: scores of a thread in a chunk of the forward kernel where the expression leaves more registers. */
void attune__cuda_tma_variant(const attune__shape *shape, const attune_plan_choice *choice, uint32_t large_chunk,
                              attune__variant *variant);

/* Hopper: the bytes of an element of the capture of which a tile is staged; 0 = none is. */
uint32_t attune__cuda_capture_tile(const attune__shape *s);
/* For kernels with one tile, BLOCK_M1 x BLOCK_N1: why it does not fit the mask's blocks, or NULL. */
const char *attune__cuda_reject_blocks(const attune__shape *s, const uint32_t *v, attune__option *option);

/* In the workspace the rows of every head are padded to a multiple of this. No tile of rows is larger. */
#define ATTUNE__CUDA_ROW_BLOCK 128
/* The bytes of an element's exact sum in a capture gradient (cuda/sums.cuh). */
#define ATTUNE__CUDA_SUM_BYTES 64
/* The counters of a split tail tile: a warp adds each part of its dK and dV. */
#define ATTUNE__CUDA_TAIL_COUNTS 16

/*
 * Workspace, in bytes from its beginning. Everything is float32 but the sums:
 *
 *     lse   [batch][heads][row_stride]   in the units that the kernels subtract; +inf for fully masked rows and past
 * q_len delta [batch][heads][row_stride]   dot(o, d_o) - d_lse; 0 there sums  [elements][8] int64
 */
typedef struct attune__cuda_workspace {
    uint64_t row_stride; /* elements */
    uint64_t delta, sums, size;
} attune__cuda_workspace;
attune__cuda_workspace attune__cuda_backward_workspace(int64_t batch, int64_t heads, int64_t q_len, uint64_t elements);

/* Shared memory of the kernel for dK and dV, and of the one for dQ. */
void attune__cuda_sm80_backward_bytes(const attune__shape *shape, const attune_plan_choice *choice, uint32_t bytes[2]);

/*
 * Calls over a cache: keys are computed in parts where the plan's longest sequence has enough of them. The schedule,
 * which the caller may keep, or which is at the beginning of the workspace; and partial results, which follow it.
 * resident: CTAs that run at once.
 */
typedef struct attune__cuda_parts {
    uint32_t slots;               /* partial results that there is room for; 0 = no parts */
    uint32_t split_keys;          /* parts begin at its multiples; 0 = where the schedule says */
    bool shares;                  /* a tile may have rows of several sequences */
    bool fixed;                   /* a CTA may compute several parts of a tile, one after another */
    bool taken;                   /* CTAs take the parts in turn; then the kernel waits for the schedule itself */
    uint64_t schedule, workspace; /* bytes, multiples of 256 */
} attune__cuda_parts;
/* Rows of a sequence that shares keys, at most, for tiles of 16 rows, which have two of them then. */
#define ATTUNE__CUDA_SHARED_ROWS 8
attune__cuda_parts attune__cuda_serving_parts(const attune__shape *shape, uint32_t block_m, uint32_t stages,
                                              uint32_t resident);
/* The workspace function of families over a cache; `split` is not theirs. */
uint64_t attune__cuda_serving_workspace(const attune__search *search, const attune__tile *tile,
                                        const attune__cost *cost, uint32_t split);

/*
 * sm90a and sm80_atomic have one kernel, which adds dQ to float32 sums in the workspace. They begin where other
 * families have the sums of captures, which then follow at the end:
 *
 *     sums     [batch][heads][row_stride][columns], in tiles of BLOCK_M1 rows as the kernel holds them
 *     order    u32 [batch][heads][row tiles][4]: progress of a warp group's part of a tile, for ordered accumulation.
 *              Without a cluster half of it is enough; the other half begins with u32 [batch of k][heads of k], what
 *              has been added to the dQ of each (cuda/dq_backward_sm90.cuh)
 *     counter  int32 [2]: the next tile of keys, and the next part of dQ to be rounded, for persistent CTAs
 *     redo     int32: a sum is not finite, so that the sm80 kernels compute everything again
 *     captures [elements][8] int64
 *
 * The two functions return the bytes of `sums`, and those from `order` to `redo`, multiples of 8.
 */
uint64_t attune__cuda_backward_sums(const attune__cuda_workspace *w, int64_t batch, int64_t heads, uint32_t head_dim,
                                    uint32_t head_dim_v);
uint64_t attune__cuda_backward_order(const attune__cuda_workspace *w, int64_t batch, int64_t heads);

/*
 * sm90a without block lists and without ordered accumulation: all tiles of keys take equally long, and the tail would
 * leave most of the resident CTAs (`ctas`) idle. Its tiles are therefore split by rows, and the splits' dK and dV are
 * added in the workspace, before `order`:
 *
 *     tail_sums  [left] float [BLOCK_N][D + Dv], D and Dv padded to 16, past 128 to 128, in fragment layout; then
 *                u32 [16]: how many splits each warp's part has
 */
typedef struct attune__cuda_tail {
    int64_t full_wave_tiles, left; /* tiles of full waves, and those of the tail, which are split */
    int64_t each, rows;            /* splits of a tile, rows of a split */
} attune__cuda_tail;
/* ctas: 0 = no tile is split; heads: those whose rows meet a tile of keys, over all batches that share it. */
attune__cuda_tail attune__cuda_sm90_tail(int64_t tiles, int64_t ctas, int64_t q_len, int64_t heads, uint32_t block_m);
/* Bytes of one split tail tile. */
uint64_t attune__cuda_sm90_tail_bytes(uint32_t head_dim, uint32_t head_dim_v, uint32_t block_n);

/* The workspace of a backward plan, and its part for the sums of dQ and for `order`. */
uint64_t attune__cuda_backward_bytes(const attune__shape *shape, const attune__cost *cost);
uint64_t attune__cuda_backward_added(const attune__shape *shape);

/* --------------------------------------------------------------------------------------------------------- sm_100a */

/* Rates of an SM a clock: instructions of threads, and exponentials of the special-function unit (docs/cuda.md). */
#define ATTUNE__SM100_INSTRUCTIONS 128
#define ATTUNE__SM100_EXPONENTIALS 16

/* Instructions of a pair without a mask and a score, counted in the code for sm_100a: forward, where one warp group's
 * softmax runs under the other's; backward, and those of P alone, for which both warp groups wait together. */
#define ATTUNE__SM100_FORWARD_PAIR  5
#define ATTUNE__SM100_BACKWARD_PAIR 7
#define ATTUNE__SM100_P_PAIR        3

/* More instructions of a polynomial of this degree than of the unit's exponential. */
uint32_t attune__sm100_polynomial_instructions(uint32_t degree);
/* Whether pairs of CTAs are expected to be faster in backward: docs/decisions/0068-pairs-of-ctas.md. */
bool attune__sm100_pairs_pay(const attune__shape *s);

#endif
