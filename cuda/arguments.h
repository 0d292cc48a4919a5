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
 *
 * A source is specialised with -D:
 *
 *     ATTUNE_DTYPE           ATTUNE_CUDA_F16, ATTUNE_CUDA_BF16 or ATTUNE_CUDA_F32 (sm80 only)
 *     ATTUNE_HEAD_DIM, ATTUNE_HEAD_DIM_V     as the problem has them; kernels pad
 *     ATTUNE_BLOCK_M, ATTUNE_BLOCK_N, ATTUNE_NUM_WARPS, ATTUNE_NUM_STAGES     the tile
 *     ATTUNE_SHARED_MEMORY   the planner's bytes, which the kernel's layout must have
 *     ATTUNE_HAVE_BLOCKS     1: the mask's lists are given; 0: every pair
 *     ATTUNE_HAVE_MASK       1: partial blocks call attune_mask (only with ATTUNE_HAVE_BLOCKS); 0: there are none
 *     ATTUNE_HAVE_MASK_RANGE 1: partial blocks call attune_mask_range instead of attune_mask; with both, if the
 *                            argument mask_ranges says so (sm90 only)
 *     ATTUNE_HAVE_SCORE      1: every pair calls attune_score
 *
 * With any of the last three the host gives NVRTC a header "mods.cuh": the prelude and then the functions
 *
 *     int attune_mask(int b, int h, int q, int kv, int h_kv, int q_len, int kv_len, float score ATTUNE_SYMBOLS)
 *     float attune_score(the same)
 *     void attune_mask_range(int b, int h, int q, int h_kv, int q_len, int kv_len, int *low, int *high ATTUNE_SYMBOLS)
 *
 *     float attune_score_near(as attune_score), with ATTUNE_HAVE_SCORE_NEAR: cheaper, and if ATTUNE_SCORE_NEAR is
 *                                              defined right only where |score| is at most that
 *
 * where ATTUNE_SYMBOLS is `, const attune_cuda_symbol *symbols, int kv0 = 0`. Row q may attend low <= kv < high. The
 * text must be compiled without contraction (--fmad=false): the kernels ask for each fused operation by name.
 *
 * Launch of decode: a grid of split * tiles of packed rows * heads / packed * batch, the part first; combine: a grid of
 * batch * heads * q_len, any number of threads, no shared memory.
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

/* A kernel's parameters are limited to 4096 bytes: with three CUtensorMap of 128 bytes these fit. */
typedef char attune_cuda_arguments_fit[sizeof(attune_cuda_arguments) <= 3584 ? 1 : -1];

/*
 * The tensor maps of forward_sm90, which the host encodes for each launch (cuTensorMapEncodeTiled, rank 4, interleave
 * none, swizzle 128 bytes, out of bounds zeros): sizes {head_dim, length, heads, batch} (batch 1 for k and v that
 * broadcast, head_dim_v for v), strides of the row, head and batch in bytes, and the box {64, rows, 1, 1} with 64 rows
 * for q and ATTUNE_BLOCK_N rows for k and v. Where an address or stride is no multiple of 16 bytes, the host takes
 * the sm80 family.
 */

#endif
