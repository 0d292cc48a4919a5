/* SPDX-License-Identifier: MIT */
/* The configuration of the forward kernel for sm_100a: what follows from the plan's tile, the head dimensions and the
 * expressions, and the layout of its memory. The producers of forward_sm90.cu, which it shares, read it too. */
#ifndef ATTUNE_CUDA_CONFIG_FORWARD_SM100_CUH
#define ATTUNE_CUDA_CONFIG_FORWARD_SM100_CUH

#include "common.cuh"
#include "layout_sm100.h"

struct forward_config {
    static constexpr int GROUPS = BLOCK_M / 128; /* softmax warp groups, of 128 rows each */
    static constexpr attune_cuda_forward_tma_layout LAYOUT = attune_cuda_forward_sm100(TILE);

    /* A thread holds one row of S, and LOAD_COLUMNS of its columns at a time. */
    static constexpr int THREAD_ROWS = 1, SPREAD = 1;
    static __device__ __forceinline__ constexpr int row_of(int)
    {
        return 0;
    }
    static __device__ __forceinline__ constexpr int column_of(int i)
    {
        return i;
    }
    static __device__ __forceinline__ int first_column()
    {
        return 0;
    }
    /* The columns of S that a thread has in registers at once. */
    static constexpr int LOAD_COLUMNS = 32, LOADS = BLOCK_N / LOAD_COLUMNS;

    /* Slabs of 64 columns in shared memory, the steps of Q K over its columns, those of P V over keys, the columns of
     * O. */
    static constexpr int SLABS_D = (HEAD_DIM + 63) / 64, SLABS_DV = (HEAD_DIM_V + 63) / 64;
    static constexpr int STEPS_D = (HEAD_DIM + 15) / 16, STEPS_N = BLOCK_N / 16, WIDTH_DV = round_up(HEAD_DIM_V, 16);

    /* Of pairs of a mask and of soft-caps these are computed at once, of other scores what the planner chose
     * (src/plan/family_cuda_variant.c). */
    static constexpr int CHUNK = 8, FIRST_CHUNK = 16;
    static constexpr int SCORE_CHUNK_SIZE = config::SCORE_CHUNK ? config::SCORE_CHUNK : LOAD_COLUMNS;
    static constexpr int MASK_CHUNK_SIZE = config::MASK_CHUNKS ? CHUNK : LOAD_COLUMNS;

    /* 256 query rows may be in two of the mask's blocks of 128 rows. Both blocks' lists are iterated then, and each
     * softmax warp group takes the flags of the block that its 128 rows are in. */
    static constexpr int BLOCK_LISTS = config::HAVE_BLOCKS && GROUPS == 2 ? 2 : 1;
    /* P of a forbidden pair is 0, but 0 times an infinity or NaN of V is NaN. In tiles with forbidden pairs the scan
     * warps replace such elements of V by 0, and the softmax warps add them to the rows that may attend them. */
    static constexpr bool SCANS_V = HAVE_MASK || BLOCK_LISTS > 1;
    /* The scan warps compute the terms of the keys too. */
    static constexpr int SCAN_WARPS = SCANS_V || KEY_TERMS ? 2 : 0, SCAN_THREADS = 64;
    /* The tile scheduler has a lane for each block list; lane 0 fills the queue. */
    static constexpr u32 SCHEDULER_LANES = (1u << BLOCK_LISTS) - 1;
    static constexpr int QUEUE_STAGES = 4;

    /* Warp groups: the producers, the softmax of each 128 rows, the correction, if there is one, and one whose first
     * warp issues products. */
    static constexpr bool CORRECTS = attune_cuda_forward_sm100_corrects(BLOCK_M);
    static constexpr int SOFTMAX_WARPS = 4 * GROUPS, CORRECTION_WARPS = CORRECTS ? 4 : 0;
    static constexpr int CORRECTION_WARP = 4 + SOFTMAX_WARPS, MMA_WARP = CORRECTION_WARP + CORRECTION_WARPS;
    /* TMA stores O, where the call's O allows it: one thread, of the warp after that of the products. */
    static constexpr int O_TILES = LAYOUT.o_tiles, STORE_WARP = MMA_WARP + 1;
    static constexpr bool STORES_O = O_TILES > 0 && !O_FLOAT32;
    /* Those that access tensor memory, and the warp that frees it after them. */
    static constexpr int TMEM_THREADS = (SOFTMAX_WARPS + CORRECTION_WARPS + 1) * 32;
    /* Commits release stages: the CTA must not end before they have arrived. */
    static constexpr bool DRAINS = true;
    /* The scan warps wait for V of every key tile and release it, so that with one stage, too, they are never a phase
     * behind. */
    static constexpr bool SCAN_RELEASES_V = SCANS_V;
    /* setmaxnreg's. Together the warp groups have those of the launch: 96 for each of 640 threads, 168 for 384. */
    static constexpr int PRODUCER_REGISTERS = CORRECTS ? 48 : 72, MMA_REGISTERS = CORRECTS ? 48 : 72;
    static constexpr int CORRECTION_REGISTERS = 64, SOFTMAX_REGISTERS = CORRECTS ? 160 : 248;

    /* Shared memory and tensor memory (layout_sm100.h). */
    static constexpr u32 Q_SLAB = BLOCK_M * 128, KV_SLAB = BLOCK_N * 128;
    static constexpr u32 Q_BYTES = LAYOUT.q_buffer, K_BYTES = LAYOUT.k_stage, V_BYTES = LAYOUT.v_stage;
    static constexpr int Q_BUFFERS = LAYOUT.q_buffers;
    static constexpr u32 K_OFFSET = LAYOUT.k, V_OFFSET = LAYOUT.v, CONTROL_OFFSET = LAYOUT.control;
    static constexpr u32 O_OFFSET = LAYOUT.o, O_TILE_BYTES = ATTUNE_CUDA_SM100_O_TILE;
    static constexpr u32 ROWS_OFFSET = LAYOUT.rows, KEY_TERMS_OFFSET = LAYOUT.key_terms;
    static constexpr u32 CAPTURE_TILES_OFFSET = 0, CAPTURE_PITCH = 0, CAPTURE_STAGE = 0; /* none */
    static constexpr int S_BUFFERS = LAYOUT.s_buffers;
    static constexpr u32 P_COLUMN = LAYOUT.p_column; /* of P, where it has columns of its own */
    static constexpr int TMEM_COLUMNS = (int)LAYOUT.columns;
    static constexpr u32 GROUP_COLUMNS = LAYOUT.group_columns, O_COLUMN = LAYOUT.s_buffers * BLOCK_N;

    static_assert(WARPS == attune_cuda_forward_sm100_warps(BLOCK_M), "the warp groups");
    static_assert(PRODUCER_REGISTERS + GROUPS * SOFTMAX_REGISTERS + (CORRECTS ? CORRECTION_REGISTERS : 0) +
                          MMA_REGISTERS <=
                      65536 / THREADS / 8 * 8 * (WARPS / 4),
                  "the launch's registers");
    static_assert(BLOCK_M % 128 == 0 && BLOCK_N % LOAD_COLUMNS == 0, "whole warp groups, and loads of S");
    static_assert(TMEM_COLUMNS <= ATTUNE_CUDA_TENSOR_COLUMNS, "tensor memory");
    static_assert(planned(LAYOUT.size));
    static_assert(!KEY_TERMS || BLOCK_LISTS == 1, "scan warps and softmax warps read the same flags");
};
typedef forward_config sm100, forward;

#endif
