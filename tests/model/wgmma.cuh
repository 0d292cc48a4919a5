/* SPDX-License-Identifier: MIT */
/* cuda/wgmma.cuh on the CPU. */
#ifndef ATTUNE_CUDA_WGMMA_CUH
#define ATTUNE_CUDA_WGMMA_CUH

#include "common.cuh"

template <int N> struct wgmma {
    template <int A = 0, int B = 0> static __device__ __forceinline__ void ss(float (&d)[N / 2], u64 a, u64 b, int add)
    {
        model_wgmma m = {d, nullptr, a, b, N, add != 0, A, B, ATTUNE_PTX_DTYPE[0] == 'b'};
        model->collective(MODEL_WGMMA, 0xffffffffu, &m);
    }
    static __device__ __forceinline__ void ss4(float (&d)[N / 2], u64 a, u64 b, int add)
    {
        for (int i = 0; i < 4; i++)
            ss(d, a + i * 2, b + i * 2, add || i);
    }
    static __device__ __forceinline__ void rs(float (&d)[N / 2], const u32 (&a)[4], u64 b)
    {
        model_wgmma m = {d, a, 0, b, N, 1, 0, 1, ATTUNE_PTX_DTYPE[0] == 'b'};
        model->collective(MODEL_WGMMA, 0xffffffffu, &m);
    }
    static __device__ __forceinline__ void rs4(float (&d)[N / 2], const u32 (*a)[4], u64 b)
    {
        for (int i = 0; i < 4; i++)
            rs(d, a[i], b + i * 128);
    }
};

#endif
