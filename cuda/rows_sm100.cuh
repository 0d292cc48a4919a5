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
__device__ __forceinline__ void store_columns(element *to, const float (&x)[16], int column, bool vectors)
{
    u32 w[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        w[i] = pack(x[i * 2], x[i * 2 + 1]);
#pragma unroll
    for (int i = 0; i < 16; i += 8) {
        if (vectors && column + i + 8 <= COLUMNS) {
            *(uint4 *)(to + column + i) = make_uint4(w[i / 2], w[i / 2 + 1], w[i / 2 + 2], w[i / 2 + 3]);
            continue;
        }
#pragma unroll
        for (int j = i; j < i + 8; j++)
            if (column + j < COLUMNS)
                to[column + j] = (element)(w[j / 2] >> j % 2 * 16);
    }
}

#endif
