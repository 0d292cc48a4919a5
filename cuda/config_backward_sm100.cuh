/* SPDX-License-Identifier: MIT */
/* The configuration of the backward kernel for sm_100a: what follows from the plan's tile, the head dimensions and the
 * expressions, and the layout of its memory. The files of backward_sm90.cu that it shares read it too. */
#ifndef ATTUNE_CUDA_CONFIG_BACKWARD_SM100_CUH
#define ATTUNE_CUDA_CONFIG_BACKWARD_SM100_CUH

#include "common.cuh"
#include "layout_sm100.h"

struct backward_config {
    /* Warp groups: the load thread, the one that issues products, and warps that round dQ; the warps that add dQ to its
     * sums; two that compute P and dS, each of half of a tile's rows. A thread of these has a key. */
    static constexpr int GROUPS = 2, COMPUTE_WARPS = 4 * GROUPS, MMA_WARP = 1;
    /* A cluster of two CTAs: each has half of the keys, and products are of both (pair_backward_sm100.cuh). */
    static constexpr bool PAIRED = config::CLUSTER == 2;
    static constexpr int CTAS = PAIRED ? 2 : 1, CTA_N = BLOCK_N / CTAS;
    static constexpr int DQ_GROUPS = CTAS;           /* parts of a tile of dQ */
    static constexpr int GROUP_M = BLOCK_M / GROUPS; /* rows of a warp group's S and dP */
    static constexpr bool WIDE = attune_cuda_backward_sm100_wide(HEAD_DIM, HEAD_DIM_V);
    /* S of the next query tile is computed while dS of the present one is. */
    static constexpr bool AHEAD = STAGES > 1;
    /* Slabs of 64 columns in shared memory, the steps of a product over K, and the columns that products compute. */
    static constexpr int SLABS_D = (HEAD_DIM + 63) / 64, SLABS_DV = (HEAD_DIM_V + 63) / 64;
    static constexpr int STEPS_D = (HEAD_DIM + 15) / 16, STEPS_DV = (HEAD_DIM_V + 15) / 16;
    static constexpr int STEPS_M = BLOCK_M / 16, STEPS_N = BLOCK_N / 16;
    static constexpr int WIDTH_D = attune_cuda_backward_sm100_width(HEAD_DIM, BLOCK_N),
                         WIDTH_DV = attune_cuda_backward_sm100_width(HEAD_DIM_V, BLOCK_N);

    /* For files shared with sm90: no split tail tiles, a thread of the warps that add dQ has a row. */
    static constexpr bool ORDERED = config::DETERMINISTIC, SPLIT_TAIL = false, ROUND_DQ = true;
    static constexpr bool FIRST_BLOCKS_FIRST = false;
    static constexpr bool DQ_ATOMIC = false, DQ_TRANSPOSED = false, DQ_SPLIT_ROWS = false, DQ_THREAD_ROWS = true;
    /* dQ in global memory: [WIDTH_D / 4][BLOCK_M][4]; transposed in tensor memory, [BLOCK_M / 4][DQ_WIDTH][4]; of
     * a pair [CTA][WIDTH_D / 8][half of the columns][BLOCK_M / 2][4], since of its lanes each half has half of the
     * columns. */
    static constexpr bool DQ_THREAD_COLUMNS = WIDE;
    static constexpr int DQ_WIDTH = WIDE ? round_up(HEAD_DIM, 32) : WIDTH_D / CTAS;
    static constexpr int DQ_CHUNKS = (DQ_WIDTH + 127) / 128; /* of 128 lanes of tensor memory, where it is transposed */
    static constexpr u32 DQ_BYTES = BLOCK_M * DQ_WIDTH * 4;

    /* The planner's choices (src/plan/family_cuda_variant.c). */
    static constexpr bool HAVE_CAPTURE_GRADIENTS = config::HAVE_CAPTURE_GRADIENTS,
                          FUSED_GRADIENTS = config::FUSED_GRADIENTS, REMATERIALISE = config::REMATERIALISE;
    /* Chunks of rows in which S and dP are computed, so that the values of an expression have registers. */
    static constexpr int S_CHUNKS = config::HAVE_SCORE && !WIDE ? 2 : 1;
    static constexpr int S_FRAGMENT = GROUP_M / S_CHUNKS; /* scores of a thread in a chunk */
    static constexpr int P_STEPS = S_FRAGMENT / 8;        /* four words each of P or dS */
    /* Of each four scores of a thread, all are of a key. */
    static constexpr int FOUR_ROWS = 4, THREAD_KEYS = 1;
    static constexpr int GROUP_KEYS = 128, FIRST_WARP = 8; /* keys of a warp group; the first warp that has pairs */
    static __device__ __forceinline__ constexpr int row_of(int i)
    {
        return i;
    }
    static __device__ __forceinline__ constexpr int key_of(int)
    {
        return 0;
    }
    /* The first row of the thread among those of its warp group, and of its warp group in the tile. */
    static __device__ __forceinline__ int lane_row()
    {
        return 0;
    }
    static __device__ __forceinline__ int group_row();
    /* setmaxnreg's; together the warp groups have the 65536 of an SM. */
    static constexpr int OTHER_REGISTERS = 48, COMPUTE_REGISTERS = 208;

    /* Shared memory and tensor memory (layout_sm100.h). */
    static constexpr attune_cuda_backward_sm100_layout LAYOUT =
        attune_cuda_backward_sm100(TILE, HAVE_CAPTURE_GRADIENTS);
    /* Items of a tile of keys: dK and dQ, and then dV, or all at once. */
    static constexpr int ITEMS = LAYOUT.separate ? 2 : 1;
    static constexpr u32 ROW_SLAB = BLOCK_M / CTAS * 128, KEY_SLAB = CTA_N * 128;
    static constexpr u32 Q_BYTES = LAYOUT.q_stage, DO_BYTES = LAYOUT.do_stage, ROW_BYTES = BLOCK_M * 4;
    static constexpr u32 K_BYTES = LAYOUT.v - LAYOUT.k, V_BYTES = LAYOUT.k_columns - LAYOUT.v;
    static constexpr u32 K_COLUMNS_OFFSET = LAYOUT.k_columns, Q_COLUMNS_OFFSET = LAYOUT.q_columns,
                         DO_COLUMNS_OFFSET = LAYOUT.do_columns;
    static constexpr u32 Q_OFFSET = LAYOUT.q, DO_OFFSET = LAYOUT.d_o, DS_OFFSET = LAYOUT.ds, DQ_OFFSET = LAYOUT.dq;
    static constexpr u32 LSE_OFFSET = LAYOUT.lse, DELTA_OFFSET = LAYOUT.delta, PEER_K_OFFSET = 0;
    static constexpr u32 COLUMNS_BYTES = BLOCK_M * 128, K_COLUMNS_BYTES = BLOCK_N * 128; /* of a pair */
    static constexpr int DO_STAGES = LAYOUT.do_stages, DQ_PART = LAYOUT.dq_part;
    static constexpr u32 CONTROL_OFFSET = LAYOUT.control, CONTROL_BYTES = LAYOUT.control_bytes;
    static constexpr u32 HEAD_SUMS_OFFSET = LAYOUT.head_sums, HEAD_SUMS_BYTES = ATTUNE_CUDA_SM100_HEAD_SUMS_BYTES;
    static constexpr u32 CAPTURE_TILE_OFFSET = 0; /* no tile of a capture is staged */
    static constexpr u32 DP_COLUMN = LAYOUT.dp_column, DK_COLUMN = LAYOUT.dk_column, DV_COLUMN = LAYOUT.dv_column,
                         DQ_COLUMN = LAYOUT.dq_column;
    static constexpr int TMEM_COLUMNS = (int)LAYOUT.columns;
    static constexpr bool DQ_OVER_DP = DQ_COLUMN == DP_COLUMN;

    static_assert(THREADS == 128 * (GROUPS + 2) && CTA_N == 128, "a lane of tensor memory for each key");
    static_assert(PAIRED == (attune_cuda_backward_sm100_paired(BLOCK_N) != 0), "a pair has 256 keys");
    static_assert(!PAIRED || (!WIDE && ITEMS == 1 && STAGES > 1), "a half of the columns is a slab");
    static_assert(BLOCK_M == (WIDE ? 64 : 128), "rows of a warp group in whole loads of 32 columns");
    static_assert(DQ_COLUMN + (WIDE ? DQ_CHUNKS * BLOCK_M : DQ_WIDTH) <= ATTUNE_CUDA_TENSOR_COLUMNS, "tensor memory");
};
typedef backward_config sm100, backward;
static_assert(
    planned(sm100::LAYOUT.size) ||
        (!sm100::HAVE_CAPTURE_GRADIENTS && planned(attune_cuda_backward_sm100(TILE, true).size)),
    "the planner has the capture gradients of every score that requests them, though it may have no captures");

/* threadIdx.x. Where it is rematerialised, it is hidden from the compiler, which would keep it in a register. */
__device__ __forceinline__ int thread_index()
{
    return sm100::REMATERIALISE ? thread_index_remat() : (int)threadIdx.x;
}

__device__ __forceinline__ int backward_config::group_row()
{
    return (thread_index() / 128 - 2) * GROUP_M;
}

#endif
