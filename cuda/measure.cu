/* SPDX-License-Identifier: MIT */
/*
 * Measures peak multiply-add throughput: wgmma on sm_90a (ATTUNE_USE_WGMMA), mma.sync elsewhere, both with 16-bit
 * operands and float32 accumulators, as attention uses them; scalar multiply-adds for float32. Operands are random,
 * since zeros take less power and would raise the clocks. A CTA has 256 threads; src/cuda/measure.c has the operations
 * of an iteration.
 */
#if ATTUNE_USE_WGMMA
#include "wgmma.cuh"
#else
#include "common.cuh"
#endif

/* Two random values with a magnitude between 1/2 and 2, of either sign. */
__device__ __forceinline__ u32 random_pair(u32 i)
{
    i = (i ^ 61u ^ i >> 16) * 9u;
    i = (i ^ i >> 4) * 0x27d4eb2du;
    i ^= i >> 15;
    return config::DTYPE == ATTUNE_CUDA_F16 ? (i & 0x87ff87ffu) | 0x38003800u : (i & 0x80ff80ffu) | 0x3f003f00u;
}

#if ATTUNE_USE_WGMMA

constexpr int N = 256, ROW_BYTES = 128;

/* The wgmma matrix descriptor of a K-major tile with 128-byte swizzle: 64 elements a row, 8 rows in 1024 bytes. */
__device__ __forceinline__ u64 matrix_descriptor(u32 address)
{
    return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}

extern "C" __global__ void __launch_bounds__(256, 1) attune_measure(u32 iterations, u64 result)
{
    __shared__ __align__(1024) u32 a_tiles[2 * 64 * ROW_BYTES / 4], b_tile[N * ROW_BYTES / 4];
    for (u32 i = threadIdx.x; i < sizeof a_tiles / 4; i += 256)
        a_tiles[i] = random_pair(i);
    for (u32 i = threadIdx.x; i < sizeof b_tile / 4; i += 256)
        b_tile[i] = random_pair(~i);
    fence_async_all();
    __syncthreads();
    u64 a = matrix_descriptor(shared_address(a_tiles) + threadIdx.x / 128 * 64 * ROW_BYTES),
        b = matrix_descriptor(shared_address(b_tile));
    float d[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0.0f;
#pragma unroll 1
    for (u32 iteration = 0; iteration < iterations; iteration++) {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            wgmma<N>::ss(d, a + step * 2, b + step * 2, 1);
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sum += d[i];
    if (sum == 1.2345f)
        *(float *)result = sum;
}

#elif ATTUNE_DTYPE != ATTUNE_CUDA_F32

constexpr int CHAINS = 8;

extern "C" __global__ void __launch_bounds__(256, 1) attune_measure(u32 iterations, u64 result)
{
    u32 a[4], b[2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = random_pair(threadIdx.x * 4 + i);
#pragma unroll
    for (int i = 0; i < 2; i++)
        b[i] = random_pair(~(threadIdx.x * 2 + i));
    float d[CHAINS][4] = {};
#pragma unroll 1
    for (u32 iteration = 0; iteration < iterations; iteration++)
#pragma unroll
        for (int c = 0; c < CHAINS; c++)
            if constexpr (config::DTYPE == ATTUNE_CUDA_F16)
                multiply_f16(d[c], a, b[0], b[1]);
            else
                multiply_bf16(d[c], a, b[0], b[1]);
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHAINS; c++)
        sum += d[c][0] + d[c][1] + d[c][2] + d[c][3];
    if (sum == 1.2345f)
        *(float *)result = sum;
}

#else

constexpr int CHAINS = 16, STEPS = 8;

extern "C" __global__ void __launch_bounds__(256, 1) attune_measure(u32 iterations, u64 result)
{
    float x[CHAINS], factor = 0.5f + (float)threadIdx.x * 1e-3f, term = 0.25f;
#pragma unroll
    for (int c = 0; c < CHAINS; c++)
        x[c] = (float)(threadIdx.x + c);
#pragma unroll 1
    for (u32 iteration = 0; iteration < iterations; iteration++)
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int c = 0; c < CHAINS; c++)
                x[c] = __fmaf_rn(x[c], factor, term);
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHAINS; c++)
        sum += x[c];
    if (sum == 1.2345f)
        *(float *)result = sum;
}

#endif
