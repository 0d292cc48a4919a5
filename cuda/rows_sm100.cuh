/* SPDX-License-Identifier: MIT */
/* Rows of results, of which a thread has one in tensor memory: 16 columns are loaded and stored at a time. */
#ifndef ATTUNE_CUDA_ROWS_SM100_CUH
#define ATTUNE_CUDA_ROWS_SM100_CUH

#include "tcgen05.cuh"

__device__ __forceinline__ void load_columns(float (&x)[16], u32 from)
{
    u32 w[16];
    tmem_load(w, from);
    tmem_wait_load(w);
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = __uint_as_float(w[i]);
}

/* Stores 16 columns of a row that has COLUMNS. vectors: it is aligned for stores of 16 bytes. */
template <int COLUMNS>
__device__ __forceinline__ void store_columns(o_element *to, const float (&x)[16], int column, bool vectors)
{
#pragma unroll
    for (int i = 0; i < 16; i += 8) {
        if (vectors && column + i + 8 <= COLUMNS) {
            store_eight(to + column + i, &x[i]);
            continue;
        }
#pragma unroll
        for (int j = i; j < i + 8; j++)
            if (column + j < COLUMNS)
                store_output(to + column + j, x[j]);
    }
}

#endif
