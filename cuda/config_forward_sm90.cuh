/* SPDX-License-Identifier: MIT */
/* The configuration of Hopper's forward kernel: what follows from the plan's tile, the head dimensions and the
 * expressions, and the layout of its shared memory. */
#ifndef ATTUNE_CUDA_CONFIG_FORWARD_SM90_CUH
#define ATTUNE_CUDA_CONFIG_FORWARD_SM90_CUH

#include "common.cuh"
#include "layout_sm90.h"

struct forward_config {
    static constexpr int GROUPS = BLOCK_M / 64; /* consumer warp groups */
    /* Of each 16 x 8 fragment of S a thread holds rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next:
     * the row, in units of 8, and the column of its scores after its first ones, and the columns of the tile for each
     * score that it holds. */
    static constexpr int THREAD_ROWS = 2, SPREAD = 2;
    static __device__ __forceinline__ constexpr int row_of(int i)
    {
        return i / 2 % 2;
    }
    static __device__ __forceinline__ constexpr int column_of(int i)
    {
        return i / 4 * 8 + i % 2;
    }
    static __device__ __forceinline__ int first_column()
    {
        return (int)threadIdx.x % 4 * 2;
    }

    /* Slabs of 64 columns in shared memory, the steps of Q K over its columns, and the columns of O. */
    static constexpr int SLABS_D = (HEAD_DIM + 63) / 64, SLABS_DV = (HEAD_DIM_V + 63) / 64;
    static constexpr int STEPS_D = (HEAD_DIM + 15) / 16, WIDTH_DV = round_up(HEAD_DIM_V, 16);

    /* Consumers issue their products in turn, so that one's run under the others' softmax. */
    static constexpr bool PING_PONG = GROUPS > 1 && HEAD_DIM_V <= 128;
    /* Independent chains of sums, and of maxima: more hide latency, but 160 registers hold one. */
    static constexpr int CHAINS = GROUPS == 3 ? 1 : 2;
    /* Of pairs of a mask and of soft-caps these are computed at once, of other scores what the planner chose
     * (src/plan/family_cuda_variant.c). */
    static constexpr int CHUNK = 8, FIRST_CHUNK = 16;
    static constexpr int SCORE_CHUNK_SIZE = config::SCORE_CHUNK ? config::SCORE_CHUNK : BLOCK_N / 2;
    static constexpr int MASK_CHUNK_SIZE = config::MASK_CHUNKS ? CHUNK : BLOCK_N / 2;

    /* 192 query rows may be in two of the mask's blocks of 128 rows. Both blocks' lists are iterated then, and each
     * consumer takes the flags of the block that its 64 rows are in. */
    static constexpr int BLOCK_LISTS = config::HAVE_BLOCKS && GROUPS == 3 ? 2 : 1;
    /* P of a forbidden pair is 0, but 0 times an infinity or NaN of V is NaN. In tiles with forbidden pairs the scan
     * warps replace such elements of V by 0, and the consumers add them to the rows that are allowed to attend them. */
    static constexpr bool SCANS_V = HAVE_MASK || BLOCK_LISTS > 1;
    /* The scan warps compute the terms of the keys too. */
    static constexpr int SCAN_WARPS = SCANS_V || KEY_TERMS ? 2 : 0, SCAN_THREADS = 64;
    /* The tile scheduler has a lane for each block list; lane 0 fills the queue. */
    static constexpr u32 SCHEDULER_LANES = (1u << BLOCK_LISTS) - 1;
    /* Tiles that it may be ahead of the load thread: enough to hide the latency of its reads of the lists. */
    static constexpr int QUEUE_STAGES = 4;
    /* A consumer has waited for its products before it releases a stage. */
    static constexpr bool DRAINS = false;
    /* The scan warps wait for V of every key tile and release it, so that they are never a phase behind: a wait for a
     * phase is over too, where the one before it is not. */
    static constexpr bool SCAN_RELEASES_V = SCANS_V;
    /* setmaxnreg's; together the warp groups have the 65536 of an SM. */
    static constexpr int PRODUCER_REGISTERS = GROUPS == 3 ? 32 : GROUPS == 2 ? 40 : 56;
    static constexpr int CONSUMER_REGISTERS = GROUPS == 3 ? 160 : GROUPS == 2 ? 232 : 248;

    /* Shared memory (layout_sm90.h). */
    static constexpr attune_cuda_forward_tma_layout LAYOUT = attune_cuda_forward_sm90(TILE);
    static constexpr u32 Q_SLAB = BLOCK_M * 128, KV_SLAB = BLOCK_N * 128;
    static constexpr u32 Q_BYTES = LAYOUT.q_buffer, K_BYTES = LAYOUT.k_stage, V_BYTES = LAYOUT.v_stage;
    static constexpr int Q_BUFFERS = LAYOUT.q_buffers;
    static constexpr u32 K_OFFSET = LAYOUT.k, V_OFFSET = LAYOUT.v, CONTROL_OFFSET = LAYOUT.control;
    static constexpr u32 KEY_TERMS_OFFSET = LAYOUT.key_terms, CAPTURE_TILES_OFFSET = LAYOUT.capture_tiles;
    static constexpr u32 CAPTURE_PITCH = LAYOUT.capture_pitch, CAPTURE_STAGE = LAYOUT.capture_stage;

    static_assert(THREADS == 128 * (GROUPS + 1), "a producer warp group, and a consumer warp group for each 64 rows");
    static_assert(planned(LAYOUT.size));
    static_assert(!config::SCORE_TILE || BLOCK_LISTS == 1, "a tile has one next tile");
    static_assert(!KEY_TERMS || BLOCK_LISTS == 1, "scan warps and consumers read the same flags");
};
typedef forward_config sm90, forward;

#endif
