/* SPDX-License-Identifier: MIT */
/*
 * Shared by the layouts of shared memory (layout_sm80.h, layout_sm90.h). The planner, which is in C, counts a kernel's
 * bytes with the same functions from which the kernel, in CUDA, has its offsets. All are in bytes.
 */
#ifndef ATTUNE_CUDA_LAYOUT_H
#define ATTUNE_CUDA_LAYOUT_H

#ifdef __CUDACC_RTC__
#define ATTUNE_CUDA_LAYOUT __device__ constexpr
#else
#define ATTUNE_CUDA_LAYOUT static inline
#endif

/* The parameters of a layout. */
typedef struct attune_cuda_tile {
    unsigned element; /* bytes of an element of k and v, in whose type the products are */
    unsigned head_dim, head_dim_v;
    unsigned block_m, block_n, warps, stages;
    unsigned key_terms;                     /* words that each key of a tile has of the expressions (terms.cuh) */
    unsigned q_parts, k_factors, v_factors; /* over a cache: operands of a row of Q, factors of a row of K and of V */
    unsigned shares;                        /* likewise: 1 = the tile may have rows of several sequences */
    unsigned capture_tile;                  /* bytes of the element that each pair of a tile has of a capture */
} attune_cuda_tile;

/* Over a cache: the bytes of a tile of rows. */
#define ATTUNE_CUDA_SERVING_TILE 96

ATTUNE_CUDA_LAYOUT unsigned attune_cuda_round_up(unsigned value, unsigned multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

ATTUNE_CUDA_LAYOUT unsigned attune_cuda_larger(unsigned a, unsigned b)
{
    return a > b ? a : b;
}

#endif
