/* SPDX-License-Identifier: MIT */
/* Stages that the mma.sync backward kernels share: the prologue, and the elementwise stages between their products. */
#ifndef ATTUNE_CUDA_STAGES_BACKWARD_SM80_CUH
#define ATTUNE_CUDA_STAGES_BACKWARD_SM80_CUH

#include "loads_backward_sm80.cuh"

constexpr bool OUTER_DIRECT = attune_cuda_backward_sm80_outer_direct(sizeof(element), OUTER_ROWS);

/* 1: starts the loads of the outer tile and of the first inner tiles. Returns where the outer tile is. */
__device__ __forceinline__ pair_coord load_first_tiles(unsigned char *memory, const attune_cuda_arguments &a,
                                                       const attune_cuda_backward &back)
{
    u32 outer = shared_address(memory);
    unsigned char *work = memory + WORK_OFFSET;
    if (threadIdx.x == 0)
        enqueue_first_tiles(work, a, back);
    __syncthreads();
    pair_coord mine = ((const work_item *)work)->coord();
    if constexpr (!OUTER_DIRECT)
        load_both<OUTER_ROWS>(outer, DK_DV ? a.k : a.q, DK_DV ? a.v : back.d_o, mine.b, mine.h, mine.row,
                              DK_DV ? a.kv_len : a.q_len);
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++)
        load_inner(outer + INNER_OFFSET + i * INNER_BYTES, outer + ROW_DATA_OFFSET + i * ROW_DATA_BYTES, a, back,
                   tile_desc(work, (int)i));
    return mine;
}

/* Whether the tiles from `outer` and `inner` on have pairs past the lengths. Subtracts, because the compiler would keep
 * outer + OUTER_ROWS in a register across tiles. */
__device__ __forceinline__ bool on_edge(const attune_cuda_arguments &a, int outer, int inner)
{
    return outer > (DK_DV ? a.kv_len : a.q_len) - OUTER_ROWS || inner > (DK_DV ? a.q_len : a.kv_len) - INNER_ROWS;
}

/* 4, 5: the mask, then P in s and dS in dp (normalise). */
__device__ __forceinline__ void compute_p_ds(scores &s, scores &dp, const attune_cuda_arguments &a, const pair_coord &p,
                                             const inner_tile &t, bool edge, const float (&lse)[HELD_ROWS],
                                             const float (&delta)[HELD_ROWS], u32 data, float factor,
                                             const unsigned char *work)
{
    forbidden f;
    fold(s, a.scale);
    mask_pairs(f, s, a, p, t, edge);
    if constexpr (HAVE_NEAR) {
        if (near_zero(s))
            normalise_all<true>(s, dp, f, a, p, lse, delta, data, factor, on_slow_path(work));
        else
            normalise_all<false>(s, dp, f, a, p, lse, delta, data, factor, on_slow_path(work));
    } else
        normalise_all<false>(s, dp, f, a, p, lse, delta, data, factor, on_slow_path(work));
}

#endif
