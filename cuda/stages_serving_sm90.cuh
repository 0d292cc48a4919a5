/* SPDX-License-Identifier: MIT */
/* Shared by the consumers of serving_sm90.cu: which rows, keys and columns a thread has, and the descriptors of tiles.
 */
#ifndef ATTUNE_CUDA_STAGES_SERVING_SM90_CUH
#define ATTUNE_CUDA_STAGES_SERVING_SM90_CUH

#include "layout_serving_sm90.cuh"
#include "stages_forward_sm90.cuh"

/* The first of the thread's two packed rows, rematerialised. */
__device__ __forceinline__ int thread_row(const tile &t)
{
    int thread = thread_index_remat() - sm90::PRODUCERS;
    return t.row + (sm90::WIDE ? thread % 128 : thread) / 32 * 16 + thread % 32 / 4;
}

/* The first column of O that the thread's warp group has. */
__device__ __forceinline__ int first_column()
{
    return sm90::WIDE ? (thread_index_remat() - sm90::PRODUCERS) / 128 * sm90::COLUMNS : 0;
}

/* A bit for each key of a tile. */
typedef u32 key_bits[BLOCK_N / 32];

__device__ __forceinline__ void load_there(key_bits &there, const control &c, u32 stage)
{
#pragma unroll
    for (int i = 0; i < BLOCK_N / 32; i++)
        there[i] = c.there[stage][i];
}

/* Whether all rows of the tile see the keys of one that are there. */
__device__ __forceinline__ bool sees_all(const work &here, int kv)
{
    return kv >= here.inner.low && kv + BLOCK_N <= here.inner.high;
}

/* The descriptors of a stage, which are uniform in a warp: the compiler would move them to uniform registers before
 * each product otherwise. */
__device__ __forceinline__ u64 describe_k(u32 memory, const pipeline_state &k)
{
    return describe_k_major(memory + sm90::K_OFFSET + (u32)uniform((int)k.stage) * sm90::K_STAGE, sm90::KV_KEYS);
}

__device__ __forceinline__ u64 describe_v(u32 memory, const pipeline_state &v)
{
    u32 slabs = sm90::WIDE ? (u32)uniform(first_column()) / 64 * sm90::KV_SLAB : 0;
    return describe_n_major(memory + sm90::V_OFFSET + slabs + (u32)uniform((int)v.stage) * sm90::V_STAGE, sm90::KV_SLAB,
                            sm90::KV_KEYS);
}

#endif
