/* SPDX-License-Identifier: MIT */
/* Chunks of 16 bytes of a row, the unit of cp.async. */
#ifndef ATTUNE_CUDA_CHUNKS_CUH
#define ATTUNE_CUDA_CHUNKS_CUH

#include "common.cuh"

constexpr bool FLOAT32 = config::DTYPE == ATTUNE_CUDA_F32;
constexpr int PER_CHUNK = 16 / (int)sizeof(element); /* elements in 16 bytes, the unit of copies and of ldmatrix */

/* Copies 16 bytes, or zeros where the chunk is not valid. */
__device__ __forceinline__ void copy_chunk(u32 to, const element *from, bool valid, bool aligned)
{
    if (aligned) {
        copy_async(to, from, valid);
        return;
    }
    u32 word[4] = {0, 0, 0, 0};
    if (valid) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if constexpr (FLOAT32)
                word[j] = __float_as_uint((float)from[j]);
            else
                word[j] = (u32)from[2 * j] | (u32)from[2 * j + 1] << 16;
        }
    }
    store_shared_4(to, word[0], word[1], word[2], word[3]);
}

#endif
