/* SPDX-License-Identifier: MIT */
/* cuda/tcgen05.cuh on the CPU. */
#ifndef ATTUNE_CUDA_TCGEN05_CUH
#define ATTUNE_CUDA_TCGEN05_CUH

#include "common.cuh"

constexpr int TENSOR_CTAS = config::CLUSTER;

template <int COLUMNS> __device__ __forceinline__ void tmem_allocate(u32 to)
{
    uint32_t arguments[3] = {to, COLUMNS, TENSOR_CTAS};
    model->collective(MODEL_TENSOR_ALLOCATE, 0xffffffffu, arguments);
}

__device__ __forceinline__ void tmem_relinquish()
{
    uint32_t arguments[3] = {0, 0, TENSOR_CTAS};
    model->collective(MODEL_TENSOR_RELINQUISH, 0xffffffffu, arguments);
}

template <int COLUMNS> __device__ __forceinline__ void tmem_free(u32 address)
{
    uint32_t arguments[3] = {address, COLUMNS, TENSOR_CTAS};
    model->collective(MODEL_TENSOR_FREE, 0xffffffffu, arguments);
}

__device__ __forceinline__ void tmem_fence_before()
{
    model->tensor_fence(0);
}

__device__ __forceinline__ void tmem_fence_after()
{
    model->tensor_fence(1);
}

template <int COUNT> __device__ __forceinline__ void tmem_load(u32 (&r)[COUNT], u32 from)
{
    static_assert(COUNT == 8 || COUNT == 16 || COUNT == 32);
    model_tensor_access access = {from, COUNT, r};
    model->collective(MODEL_TENSOR_LOAD, 0xffffffffu, &access);
}

template <int COUNT> __device__ __forceinline__ void tmem_wait_load(u32 (&)[COUNT])
{
    model->collective(MODEL_TENSOR_WAIT_LOAD, 0xffffffffu, nullptr);
}

template <int COUNT> __device__ __forceinline__ void tmem_store(u32 to, const u32 (&r)[COUNT])
{
    static_assert(COUNT == 8 || COUNT == 16 || COUNT == 32);
    model_tensor_access access = {to, COUNT, const_cast<u32 *>(r)};
    model->collective(MODEL_TENSOR_STORE, 0xffffffffu, &access);
}

__device__ __forceinline__ void tmem_wait_store()
{
    model->collective(MODEL_TENSOR_WAIT_STORE, 0xffffffffu, nullptr);
}

__device__ __forceinline__ u64 tcgen05_descriptor(u64 wgmma_descriptor)
{
    return wgmma_descriptor | 1ull << 46;
}

__device__ constexpr u32 tcgen05_instruction(int columns, bool b_n_major, bool a_m_major = false,
                                             int rows = 128 * TENSOR_CTAS)
{
    const u32 type = config::DTYPE == ATTUNE_CUDA_BF16 ? 1 : 0;
    return 1u << 4 | type << 7 | type << 10 | (a_m_major ? 1u : 0u) << 15 | (b_n_major ? 1u : 0u) << 16 |
           (u32)columns / 8 << 17 | (u32)rows / 16 << 24;
}

__device__ __forceinline__ void tcgen05_ss(u32 d, u64 a, u64 b, u32 instruction, int add)
{
    const model_tcgen05 m = {d, 0, a, b, instruction, 0, add != 0, TENSOR_CTAS};
    model->tcgen05(&m);
}

__device__ __forceinline__ void tcgen05_ts(u32 d, u32 a, u64 b, u32 instruction, int add)
{
    const model_tcgen05 m = {d, a, 0, b, instruction, 1, add != 0, TENSOR_CTAS};
    model->tcgen05(&m);
}

__device__ __forceinline__ void tcgen05_commit(u64 *barrier)
{
    model->tcgen05_commit(shared_address(barrier), TENSOR_CTAS, 0);
}

__device__ __forceinline__ void tcgen05_commit_pair(u64 *barrier)
{
    model->tcgen05_commit(shared_address(barrier), TENSOR_CTAS, 3);
}

#endif
