/* SPDX-License-Identifier: MIT */
/* What stands before and behind the kernels of the backward pass: a row's LSE and delta = dot(o, d_o) - d_lse, and at
 * the end what captures are due, added to the caller's tensors. */
#define ATTUNE_BLOCK_M        16 /* it has no tiles */
#define ATTUNE_BLOCK_N        16
#define ATTUNE_NUM_WARPS      8
#define ATTUNE_NUM_STAGES     1
#define ATTUNE_HAVE_BLOCKS    0
#define ATTUNE_HAVE_MASK      0
#define ATTUNE_HAVE_MASK_RANGE 0
#define ATTUNE_HAVE_SCORE     0
#include "common.cuh"
#include "sums.cuh"

constexpr bool IN_F32 = ATTUNE_DTYPE == ATTUNE_CUDA_F32;

__device__ __forceinline__ float value_of(element x)
{
    if constexpr (IN_F32)
        return (float)x;
    else
        return unpack((u32)x);
}

/* The lane's part of a dot product. 16-bit products are exact in float32. */
__device__ __forceinline__ float dot(const element *x, const element *y, int lane)
{
    if constexpr (IN_F32) {
        double sum = 0;
        for (int d = lane; d < HEAD_DIM_V; d += 32)
            sum += (double)value_of(x[d]) * (double)value_of(y[d]);
        for (int step = 16; step; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        return (float)sum;
    } else {
        float sum = 0.0f;
        if ((((u64)x | (u64)y) & 3) == 0) {
            for (int d = lane; d < HEAD_DIM_V / 2; d += 32) {
                u32 a = ((const u32 *)x)[d], b = ((const u32 *)y)[d];
                sum = __fmaf_rn(unpack(a & 0xffff), unpack(b & 0xffff), sum);
                sum = __fmaf_rn(unpack(a >> 16), unpack(b >> 16), sum);
            }
        } else {
            for (int d = lane; d < HEAD_DIM_V; d += 32)
                sum = __fmaf_rn(value_of(x[d]), value_of(y[d]), sum);
        }
        for (int step = 16; step; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        return sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attune_delta(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_backward back)
{
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < back.sum_words; i += (u64)gridDim.x * THREADS)
        ((u64 *)back.sums)[i] = 0;
    int lane = (int)threadIdx.x % 32;
    i64 row = (i64)blockIdx.x * ATTUNE_NUM_WARPS + threadIdx.x / 32, plane = row / back.row_stride;
    int q = (int)(row - plane * back.row_stride), b = (int)(plane / a.heads), h = (int)(plane - (i64)b * a.heads);
    float lse = ATTUNE_INF, delta = 0.0f;
    if (q < a.q_len) {
        delta = dot((const element *)a.o.address + b * a.o.batch + h * a.o.head + q * a.o.row,
                    (const element *)back.d_o.address + b * back.d_o.batch + h * back.d_o.head + q * back.d_o.row,
                    lane);
        if (back.d_lse.address)
            delta -= ((const float *)
                          back.d_lse.address)[b * back.d_lse.batch + h * back.d_lse.head + q * back.d_lse.row];
        lse = ((const float *)a.lse.address)[b * a.lse.batch + h * a.lse.head + q * a.lse.row];
        if (lse == -ATTUNE_INF)
            lse = ATTUNE_INF, delta = 0.0f;
        else if (!IN_F32)
            lse *= ATTUNE_LOG2E;
    }
    if (lane == 0) {
        ((float *)back.lse)[row] = lse;
        ((float *)back.delta)[row] = delta;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attune_sums(const __grid_constant__ attune_cuda_sums s)
{
    i64 element = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (element >= s.elements)
        return;
    double value = sum_value((const u64 *)s.sums + element * ATTUNE_CUDA_SUM_WORDS);
    int i = 0;
    for (; element >= s.to[i].elements; i++)
        element -= s.to[i].elements;
    i64 at = 0;
    for (int d = 3; d >= 0; d--) {
        i64 rest = element / s.to[i].size[d];
        at += (element - rest * s.to[i].size[d]) * s.to[i].stride[d];
        element = rest;
    }
    float *to = (float *)s.to[i].address + at;
    *to = (float)((double)*to + value);
}
