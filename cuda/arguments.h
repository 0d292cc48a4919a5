/* SPDX-License-Identifier: MIT */
/*
 * What the host hands to a CUDA kernel: read by the C compiler on one side and by NVRTC on the other, so that it
 * includes nothing and uses only types whose layout both agree on.
 *
 *     file             entry point              family       kernel parameters, all by value
 *     forward_sm80.cu  attune_forward_sm80      cuda_sm80    attune_cuda_arguments
 *     decode_sm80.cu   attune_decode_sm80       cuda_sm80    attune_cuda_arguments, attune_cuda_parts
 *                      attune_combine_sm80      the same     the same; only with more than one part
 *     forward_sm90.cu  attune_forward_sm90      cuda_sm90a   attune_cuda_arguments, CUtensorMap q, k, v
 *     delta.cu         attune_delta             all          attune_cuda_arguments, attune_cuda_backward
 *                      attune_sums              the same     attune_cuda_sums; only with gradients of captures
 *     backward_sm80.cu attune_backward_sm80     cuda_sm80    attune_cuda_arguments, attune_cuda_backward
 *     backward_atomic_sm80.cu attune_backward_atomic_sm80, attune_backward_dq_sm80   cuda_sm80_atomic   the same
 *     backward_sm90.cu attune_backward_sm90     cuda_sm90a   the same, CUtensorMap q, k, v, d_o
 *                      attune_backward_dq_sm90  the same     attune_cuda_arguments, attune_cuda_backward
 *
 * A source is specialised with -D:
 *
 *     ATTUNE_DTYPE           ATTUNE_CUDA_F16, ATTUNE_CUDA_BF16 or ATTUNE_CUDA_F32 (sm80 only)
 *                            of k and v, in which products are
 *     ATTUNE_Q_DTYPE, ATTUNE_O_DTYPE         likewise, of q and o, forwards with sm80; not given: as ATTUNE_DTYPE
 *     ATTUNE_HEAD_DIM, ATTUNE_HEAD_DIM_V     as the problem has them; kernels pad
 *     ATTUNE_BLOCK_M, ATTUNE_BLOCK_N, ATTUNE_NUM_WARPS, ATTUNE_NUM_STAGES     the tile
 *     ATTUNE_SHARED_MEMORY   the planner's bytes, which the kernel's layout must have
 *     ATTUNE_HAVE_BLOCKS     1: the mask's lists are given; 0: every pair
 *     ATTUNE_HAVE_MASK       1: partial blocks call attune_mask (only with ATTUNE_HAVE_BLOCKS); 0: there are none
 *     ATTUNE_HAVE_MASK_RANGE 1: partial blocks call attune_mask_range instead of attune_mask; with both, if the
 *                            argument mask_ranges says so (sm90 only)
 *     ATTUNE_HAVE_MASK_COLUMNS  backward_sm90, 1: attune_mask_rows may be called where attune_mask_range may
 *     ATTUNE_DETERMINISTIC   backward_sm90, 1: dQ's sums are added to in turn
 *     ATTUNE_HAVE_SCORE      1: every pair calls attune_score
 *     ATTUNE_HAVE_READS      backward, 1: gradients of captures may be wanted
 *     ATTUNE_DK_DV        backward_sm80, 1: the kernel for dK and dV, whose tile is BLOCK_M1 and BLOCK_N1; 0: that
 *                            for dQ and the gradients of captures, whose tile is BLOCK_M2 and BLOCK_N2
 *     ATTUNE_APART           backward_sm80 with ATTUNE_DK_DV, 1: dV and dK are made by CTAs of their own
 *
 * With any of the last three the host gives NVRTC a header "mods.cuh": the prelude and then the functions
 *
 *     int attune_mask(int b, int h, int q, int kv, int h_kv, int q_len, int kv_len, float score ATTUNE_SYMBOLS)
 *     float attune_score(the same)
 *     void attune_mask_range(int b, int h, int q, int h_kv, int q_len, int kv_len, int *low, int *high ATTUNE_SYMBOLS)
 *
 *     void attune_mask_key_terms, attune_mask_row_terms, int attune_mask_of (src/expr/print.h), and the same of
 *     attune_score and attune_score_slope, and attune_score_near_of, with ATTUNE_MASK_KEYS, ATTUNE_SCORE_KEYS and
 *     ATTUNE_SLOPE_KEYS, which are how many terms of keys there are; ATTUNE_MASK_ROWS and so on: how many of rows
 *     void attune_mask_rows(int b, int h, int kv, the same), with ATTUNE_HAVE_MASK_COLUMNS
 *
 *     float attune_score_near(as attune_score), with ATTUNE_HAVE_SCORE_NEAR: cheaper, and if ATTUNE_SCORE_NEAR is
 *                                              defined right only where |score| is at most that
 *
 *     ATTUNE_SCORE_IS_LONG, ATTUNE_MASK_IS_LONG: so much text that loops over pairs are better not unrolled
 *     ATTUNE_READS_LATE: many gradients of captures: what is known of these is better not held ready
 *     ATTUNE_DELTA_LATE: the same with a read for each pair: delta is better read once P is known
 *
 *     float attune_score_slope(as attune_score): d attune_score / d score, in backward kernels
 *     float attune_score_slope_near(as attune_score), in backward kernels with ATTUNE_HAVE_SCORE_NEAR: likewise
 *     ATTUNE_READS(X): X(i, symbol, how) for each read of a floating-point capture, in backward kernels with
 *                      ATTUNE_HAVE_READS; then
 *     float attune_read_<i>(as attune_score): d attune_score / d what is read
 *     long long attune_read_<i>_at(as attune_score): which element that is, in row-major order; -1 = none
 *
 * where ATTUNE_SYMBOLS is `, const attune_cuda_symbol *symbols, int kv0 = 0`. Row q may attend low <= kv < high,
 * or to key kv the rows low <= q < high. The text must be
 * compiled without contraction (--fmad=false): the kernels ask for each fused operation by name.
 *
 * Launch of decode: a grid of split * tiles of packed rows * heads / packed * batch, the part first; combine: a grid of
 * batch * heads * q_len, any number of threads, no shared memory.
 *
 * Launch of backward: attune_delta with a block of 256 threads for each 32 rows of [batch * heads * row_stride], which
 * also clears the sums; then the kernel with attune_cuda_arguments.partial and full as they are for dQ, for dK and dV
 * with tiles of keys * kv_heads * kv_batch blocks, twice as many if apart; then attune_sums with 256 threads for each
 * 256 elements.
 *
 * Launch of forward: blocks of 32 * ATTUNE_NUM_WARPS threads, the planner's bytes of dynamic shared memory, and a grid
 * of attune_cuda_tiles(). forward_sm90 may be launched with fewer blocks, as many as the device holds at once: then
 * each takes further tiles, from `counter` if there is one, else in strides of the grid.
 */
#ifndef ATTUNE_CUDA_ARGUMENTS_H
#define ATTUNE_CUDA_ARGUMENTS_H

#define ATTUNE_CUDA_F16  1
#define ATTUNE_CUDA_BF16 2
#define ATTUNE_CUDA_F32  3

#define ATTUNE_CUDA_SYMBOLS 16

/* A tensor [batch][head][row][contiguous]; strides in elements. 0 where a dimension is broadcast. */
typedef struct attune_cuda_view {
    unsigned long long address;
    long long batch, head, row;
} attune_cuda_view;

/* A capture (of rank up to 4, strides in elements), or a parameter in the first bytes of `address`. */
typedef struct attune_cuda_symbol {
    union {
        unsigned long long address;
        int i32;
        float f32;
    } is;
    long long size[4], stride[4];
    /* int32 pairs, one for each element: where the elements of the last dimension that equal it begin and end. 0 where
     * they do not stand together. */
    unsigned long long runs;
} attune_cuda_symbol;

/* Block lists in compressed rows, as in src/mask: row r holds indices[offsets[r]] .. indices[offsets[r + 1] - 1],
 * ascending. Addresses of int64 and int32. */
typedef struct attune_cuda_list {
    unsigned long long offsets, indices;
} attune_cuda_list;

typedef struct attune_cuda_arguments {
    attune_cuda_view q, k, v, o;   /* k and v with kv_batch 1: stride 0 */
    attune_cuda_view lse, row_max; /* float, no last dimension; address 0 = not wanted */
    int batch, heads, kv_heads, q_len, kv_len;
    float scale;

    /* The mask: row (b * batch_rows + h * head_rows + block row) of both lists. */
    attune_cuda_list partial, full;
    long long mask_batch_rows, mask_head_rows; /* 0 where the lists broadcast */
    int q_block, kv_block;                     /* multiples of the tile */
    /* Where attune_mask is evaluated: (b + b0, h + h0, q + q0), with the whole's group, q_len and kv_len. */
    int b0, h0, q0, mask_group, mask_q_len, mask_kv_len;
    int mask_ranges; /* attune_mask_range may be called: its captures have their runs */
    int part;        /* a merge follows: where a row's scores are all -inf, O stays what they leave of V, 0 or NaN */

    /* Optional, int32 [tiles]: the order in which tiles are taken, longest first. 0 = the last rows of each head first
     * with lists, the first rows first without. A tile is (b * heads + h) * row tiles + row tile. */
    unsigned long long order;
    /* Optional, forward_sm90: two int32, zero before the launch and again after it; one pair for each stream. */
    unsigned long long counter;

    attune_cuda_symbol mask_symbols[ATTUNE_CUDA_SYMBOLS], score_symbols[ATTUNE_CUDA_SYMBOLS];
} attune_cuda_arguments;

/* Decode: the heads that a tile packs, the parts of the keys, and with more than one where the parts' results go, as
 * src/plan/plan.h lays them out: float o[batch][heads][q_len][split][head_dim_v] and ml[...][split][2], m as S is. */
typedef struct attune_cuda_parts {
    unsigned long long o, ml;
    int packed, split;
} attune_cuda_parts;

/* An exact sum: src/plan/family_cuda.h, sums.cuh. */
#define ATTUNE_CUDA_SUM_WORDS 8
/* Behind the sums of a tile that comes in splits, int32: how many pieces each warp has added to its part of them. */
#define ATTUNE_CUDA_TAIL_COUNTS 16

/* Backward, besides q, k, v, o and lse. */
typedef struct attune_cuda_backward {
    attune_cuda_view d_o, d_q, d_k, d_v;
    attune_cuda_view d_lse; /* float, no last dimension; address 0 = none */
    int kv_batch;           /* batch, or 1: d_k and d_v sum over the batch */

    /* The transposed lists: row (b * column_batch_rows + h * column_head_rows + block column) of both. */
    attune_cuda_list partial, full;
    long long column_batch_rows, column_head_rows;

    /* The workspace: float lse[batch * heads][row_stride] as the kernels subtract it (times log2(e) but in float32),
     * +inf where a row is empty or past q_len; float delta likewise, 0 there. row_stride is a multiple of 128. */
    unsigned long long lse, delta;
    long long row_stride;
    /* long long [elements][ATTUNE_CUDA_SUM_WORDS]: what captures are due, and by symbol of the score expression where
     * each one's begin; 0 = not wanted, or added already. sum_words from `sums` on are cleared. */
    unsigned long long sums, sum_words;
    unsigned long long symbol_sums[ATTUNE_CUDA_SYMBOLS];

    /* backward_sm90, backward_atomic_sm80: there `sums` are float, those of dQ, and what captures are due stands behind
     * redo. int32 *redo, behind the sums, says that the sm80 kernels, which are launched after it, start over; 0 = they
     * are on their own. */
    unsigned long long redo;
    /* backward_sm90 with ATTUNE_DETERMINISTIC: u32 [batch * heads][row tiles][4], how often each part of dQ's sums was
     * added to, zero at first. The counter is then one of the call's own, and zero too. */
    unsigned long long order_counts;
    int together; /* backward_sm90: heads of k and v that are worked on at a time */

    /* backward_sm90 without ATTUNE_HAVE_BLOCKS and ATTUNE_DETERMINISTIC: each tile of keys from the `whole`th on
     * comes in `pieces` of tail_split_rows rows, and their dK and dV are added up in tail_sums
     * (src/plan/family_cuda.h), zero at first. */
    int full_wave_tiles, tail_splits, tail_split_rows;
    unsigned long long tail_sums;
} attune_cuda_backward;

/* What attune_sums adds to: a float tensor of rank up to 4, strides in elements; 0 elements = not wanted. */
typedef struct attune_cuda_sums {
    unsigned long long sums; /* as above */
    long long elements;      /* of all together */
    int count;
    struct {
        unsigned long long address;
        long long elements, size[4], stride[4];
    } to[ATTUNE_CUDA_SYMBOLS];
} attune_cuda_sums;

/* A kernel's parameters are limited to 4096 bytes: with three CUtensorMap of 128 bytes these fit. */
typedef char attune_cuda_arguments_fit[sizeof(attune_cuda_arguments) <= 3584 ? 1 : -1];
/* With four of them these do. */
typedef char attune_cuda_backward_fit[sizeof(attune_cuda_arguments) + sizeof(attune_cuda_backward) <= 3584 ? 1 : -1];

/*
 * The tensor maps of forward_sm90, which the host encodes for each launch (cuTensorMapEncodeTiled, rank 4, interleave
 * none, swizzle 128 bytes, out of bounds zeros): sizes {head_dim, length, heads, batch} (batch 1 for k and v that
 * broadcast, head_dim_v for v), strides of the row, head and batch in bytes, and the box {64, rows, 1, 1} with 64 rows
 * for q and ATTUNE_BLOCK_N rows for k and v. Where an address or stride is no multiple of 16 bytes, the host takes
 * the sm80 family.
 */

#endif
