/* SPDX-License-Identifier: MIT */
/*
 * The configuration of Hopper's backward kernel: what follows from the plan's tile, the head dimensions and the
 * expressions, and the layout of its shared memory.
 */
#ifndef ATTUNE_CUDA_CONFIG_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_CONFIG_BACKWARD_SM90_CUH

#include "common.cuh"
#include "layout_sm90.h"

/* Which consumers compute a tile (narrow_, wide_ and pair_backward_sm90.cuh). */
enum backward_algorithm { BACKWARD_NARROW, BACKWARD_WIDE, BACKWARD_PAIR };

/* How a warp group's fragment of dQ is added to global memory. STAGED: through a buffer of its own. IN_PLACE: through
 * the warp group's columns of Q and dO, which all products have read by then. ATOMIC: by all threads from registers. */
enum dq_addition { DQ_ADD_STAGED, DQ_ADD_IN_PLACE, DQ_ADD_ATOMIC };

struct backward_config {
    /* Narrow: head dimensions up to 128, 64 keys for each warp group. Wide: both warp groups have the same 64 keys and
     * split the columns of dK, dV and dQ, and the rows of S and dP. Pair: the same in a cluster of two CTAs, with 128
     * keys. They exchange dS, which halves the additions to dQ in global memory. */
    static constexpr backward_algorithm ALGORITHM = HEAD_DIM <= 128 && HEAD_DIM_V <= 128 ? BACKWARD_NARROW
                                                    : config::CLUSTER == 2               ? BACKWARD_PAIR
                                                                                         : BACKWARD_WIDE;
    static constexpr bool WIDE = ALGORITHM != BACKWARD_NARROW, PAIRED = ALGORITHM == BACKWARD_PAIR;
    static constexpr int GROUPS = 2, DQ_GROUPS = GROUPS;              /* consumer warp groups; which compute dQ */
    static constexpr int CTA_N = WIDE ? 64 : BLOCK_N;                 /* keys of one CTA */
    static constexpr int GROUP_M = WIDE ? BLOCK_M / GROUPS : BLOCK_M; /* rows of a warp group's S and dP */
    /* Slabs of 64 columns in shared memory, the steps of a product over K, and the columns that products compute. */
    static constexpr int SLABS_D = (HEAD_DIM + 63) / 64, SLABS_DV = (HEAD_DIM_V + 63) / 64;
    static constexpr int STEPS_D = (HEAD_DIM + 15) / 16, STEPS_DV = (HEAD_DIM_V + 15) / 16;
    static constexpr int WIDTH_D = round_up(HEAD_DIM, 16), WIDTH_DV = round_up(HEAD_DIM_V, 16);
    /* Columns of dK (and of a wide head's dQ) and of dV that a warp group computes. Of three slabs, the first warp
     * group computes two of dK and the second two of dV. EQUAL_GROUPS: both compute as many. */
    static constexpr bool EQUAL_GROUPS = !WIDE || (SLABS_D % 2 == 0 && SLABS_DV % 2 == 0);
    static constexpr int FIRST_GROUP_D = (SLABS_D + 1) / 2 * 64, FIRST_GROUP_DV = SLABS_DV / 2 * 64;
    template <int GROUP>
    static constexpr int GROUP_D = !WIDE   ? WIDTH_D
                                   : GROUP ? SLABS_D * 64 - FIRST_GROUP_D
                                           : FIRST_GROUP_D;
    template <int GROUP>
    static constexpr int GROUP_DV = !WIDE   ? WIDTH_DV
                                    : GROUP ? SLABS_DV * 64 - FIRST_GROUP_DV
                                            : FIRST_GROUP_DV;

    /* Whether dQ is accumulated in a fixed order. Tiles of keys are added from the last to the first: under a causal
     * mask the last keys start with later query tiles, so that waits are short. */
    static constexpr bool ORDERED = config::DETERMINISTIC;
    /* Narrow heads: the warp groups split dQ by its rows if there are 128, else by its columns. With 128 columns dQ is
     * computed transposed, because its columns are then the M of wgmma, 64 for each warp group. */
    static constexpr bool DQ_TRANSPOSED = HEAD_DIM > 64 && !WIDE, DQ_SPLIT_ROWS = BLOCK_M == 128;
    static constexpr int DQ_COLUMNS = attune_cuda_backward_sm90_dq_columns(HEAD_DIM, HEAD_DIM_V, BLOCK_M);
    /* N of a warp group's wgmma for dQ; M is 64. */
    static constexpr int DQ_WIDTH = DQ_TRANSPOSED ? BLOCK_M : DQ_SPLIT_ROWS ? DQ_COLUMNS : DQ_COLUMNS / 2;
    static constexpr u32 DQ_BYTES = 64 * DQ_WIDTH * 4; /* of a warp group, in global memory; then in shared memory */
    template <int GROUP>
    static constexpr u32 GROUP_DQ_BYTES = PAIRED ? 64 * 64 * 4
                                          : WIDE ? 64 * GROUP_D<GROUP> * 4
                                                 : DQ_BYTES;
    /* Atomic additions are the slowest, but for clusters, where staging would delay the next load of dO. */
    static constexpr dq_addition DQ_ADD = PAIRED && !ORDERED                       ? DQ_ADD_ATOMIC
                                          : !WIDE || (SLABS_D < 4 && SLABS_DV < 4) ? DQ_ADD_STAGED
                                          : EQUAL_GROUPS && SLABS_DV >= SLABS_D    ? DQ_ADD_IN_PLACE
                                                                                   : DQ_ADD_ATOMIC;
    static constexpr bool DQ_ATOMIC = DQ_ADD == DQ_ADD_ATOMIC;
    static constexpr bool DQ_THREAD_ROWS = false, DQ_THREAD_COLUMNS = false; /* a thread has a row, a column of dQ */
    static constexpr int ITEMS = 1;                                          /* dK and dV of a tile of keys */
    static constexpr int DO_STAGES = 0;                                      /* dO is loaded with Q */
    static constexpr bool ROUND_DQ = attune_cuda_backward_sm90_rounds_dq(HEAD_DIM, HEAD_DIM_V, BLOCK_N);
    /* Whether tail tiles are split by query rows, so that the last wave occupies all CTAs. The block lists of a mask
     * give tiles of many lengths, which balance the last wave without a split. */
    static constexpr bool SPLIT_TAIL = !config::HAVE_BLOCKS && !ORDERED;
    static constexpr u32 TAIL_TILE_BYTES =
        BLOCK_N * (round_up(HEAD_DIM, WIDE ? 128 : 16) + round_up(HEAD_DIM_V, WIDE ? 128 : 16)) * 4;

    /* The planner's choices (src/plan/family_cuda_variant.c). */
    static constexpr bool HAVE_CAPTURE_GRADIENTS = config::HAVE_CAPTURE_GRADIENTS,
                          FUSED_GRADIENTS = config::FUSED_GRADIENTS, LATE_DP = config::LATE_DP,
                          EARLY_DQ = config::EARLY_DQ, REMATERIALISE = config::REMATERIALISE;
    /* In a fixed order, where all heads have the same blocks: the first block of rows of all heads comes before the
     * others of each. Where a document ends, its last rows are in the first block of the next one's first tile of keys,
     * for which the tiles of both documents would wait until it is done with a head, and so on through all documents.
     * Sums of captures are by head. */
    static constexpr bool FIRST_BLOCKS_FIRST = ORDERED && config::HAVE_BLOCKS && !HAVE_CAPTURE_GRADIENTS;
    static constexpr int S_CHUNKS = config::HALF_TILES ? 2 : 1; /* chunks of rows in which S and dP are computed */
    static constexpr int S_FRAGMENT = GROUP_M / 2 / S_CHUNKS;   /* accumulators of S or dP in a thread */
    static constexpr int P_STEPS = GROUP_M / 16;                /* four words each of P or dS in a thread */
    /* Of each four scores of a thread, two are of a row, and two of a key. Rows and keys are counted from the first
     * ones. */
    static constexpr int FOUR_ROWS = 2, THREAD_KEYS = 2;
    static constexpr int GROUP_KEYS = 64, FIRST_WARP = 4; /* keys of a warp group; the first warp that has pairs */
    static __device__ __forceinline__ constexpr int row_of(int i)
    {
        return i / 4 * 8 + i % 2;
    }
    static __device__ __forceinline__ constexpr int key_of(int i)
    {
        return i / 2 % 2 * 8;
    }
    /* The first row of the thread among those of its warp group, and of its warp group in the tile. */
    static __device__ __forceinline__ int lane_row();
    static __device__ __forceinline__ int group_row();
    /* The capture gradients are added while the wgmmas of dQ and dK run. */
    static constexpr bool OVERLAP_GRADIENTS = HAVE_CAPTURE_GRADIENTS && !WIDE && S_CHUNKS == 1 && !ORDERED;
    /* setmaxnreg's; together the warp groups have the 65536 of an SM. */
    static constexpr int PRODUCER_REGISTERS = ORDERED ? 40 : 24, CONSUMER_REGISTERS = ORDERED ? 232 : 240;

    /* Shared memory (layout_sm90.h). */
    static constexpr attune_cuda_backward_sm90_layout LAYOUT = attune_cuda_backward_sm90(TILE, HAVE_CAPTURE_GRADIENTS);
    static constexpr u32 ROW_SLAB = BLOCK_M * 128, KEY_SLAB = CTA_N * 128;
    static constexpr u32 Q_BYTES = LAYOUT.q_stage, DO_BYTES = LAYOUT.do_stage, ROW_BYTES = BLOCK_M * 4;
    static constexpr u32 K_BYTES = LAYOUT.v - LAYOUT.k, V_BYTES = LAYOUT.q - LAYOUT.v, DS_BYTES = LAYOUT.ds_stage;
    static constexpr u32 Q_OFFSET = LAYOUT.q, DO_OFFSET = LAYOUT.d_o, DS_OFFSET = LAYOUT.ds, DQ_OFFSET = LAYOUT.dq;
    /* Pair: one buffer for dS; one for P, which receives the peer's dS once dV is done; and the peer's K, of the
     * columns of dQ that this CTA computes. */
    static constexpr u32 P_OFFSET = LAYOUT.p, PEER_K_OFFSET = LAYOUT.peer_k;
    static constexpr u32 LSE_OFFSET = LAYOUT.lse, DELTA_OFFSET = LAYOUT.delta;
    static_assert(LSE_OFFSET - DQ_OFFSET == (DQ_ADD == DQ_ADD_STAGED ? GROUP_DQ_BYTES<0> + GROUP_DQ_BYTES<1> : 0),
                  "dQ has space where it is staged");
    static constexpr u32 CONTROL_OFFSET = LAYOUT.control, CONTROL_BYTES = LAYOUT.control_bytes;
    static constexpr u32 HEAD_SUMS_OFFSET = LAYOUT.head_sums, HEAD_SUMS_BYTES = ATTUNE_CUDA_HEAD_SUMS_BYTES;
    static constexpr u32 CAPTURE_TILE_OFFSET = LAYOUT.capture_tile;

    static_assert(THREADS == 128 * (GROUPS + 1) && STAGES == 2 && (BLOCK_N == 64 * GROUPS || (WIDE && BLOCK_N == 64)),
                  "each warp group computes 64 keys, or both the same 64");
    static_assert(BLOCK_M == 64 || (DQ_SPLIT_ROWS && SLABS_D == 1 && SLABS_DV == 1),
                  "a tile has 64 rows, or 128 with heads up to 64");
    static_assert(!WIDE || (SLABS_D >= 2 && SLABS_DV >= 2), "each warp group computes a slab of dK and of dV");
    static_assert(PAIRED == (WIDE && BLOCK_N == 128), "a cluster has 128 keys");
    static_assert(!PAIRED || (SLABS_D == 4 && SLABS_DV == 4),
                  "the four consumer warp groups of a cluster compute a slab of dQ each");
    static_assert(!PAIRED || 2 * DS_BYTES == 2 * ROW_SLAB + 2 * KEY_SLAB,
                  "dS, P and the peer's K take the space of two stages of P and dS");
    static_assert(!PAIRED || !HAVE_CAPTURE_GRADIENTS, "a cluster has no space for the sums of captures");
    static_assert(!ORDERED || DQ_ADD != DQ_ADD_ATOMIC, "atomic additions have no fixed order");
};
typedef backward_config sm90, backward;
static_assert(
    planned(sm90::LAYOUT.size) ||
        (!sm90::HAVE_CAPTURE_GRADIENTS && planned(attune_cuda_backward_sm90(TILE, true).size)),
    "the planner has the capture gradients of every score that requests them, though it may have no captures");

/* threadIdx.x. Where it is rematerialised, it is hidden from the compiler, which would keep it in a register. */
__device__ __forceinline__ int thread_index()
{
    return sm90::REMATERIALISE ? thread_index_remat() : (int)threadIdx.x;
}

__device__ __forceinline__ int backward_config::lane_row()
{
    return thread_index() % 4 * 2;
}

__device__ __forceinline__ int backward_config::group_row()
{
    return WIDE ? (thread_index() / 128 - 1) * GROUP_M : 0;
}

#endif
