/* SPDX-License-Identifier: MIT */
/* The kernels before and after those of the backward pass: attune_delta computes LSE as they subtract it and
 * delta = rowsum(dO * O) - dLSE; attune_sums adds the capture gradients to the caller's tensors; attune_sinks sums the
 * gradient of sinks. */
#include "common.cuh"
#include "sums.cuh"

constexpr bool IN_F32 = config::DTYPE == ATTUNE_CUDA_F32;

__device__ __forceinline__ float value_of(element x)
{
    if constexpr (IN_F32)
        return (float)x;
    else
        return unpack((u32)x);
}

/* A CTA computes ROWS rows of one head, a warp WARP_ROWS of them. With vector loads LANES lanes share a row, and a warp
 * issues all loads before the first addition. */
constexpr int ROWS = 32, CTA_WARPS = 8, CTA_THREADS = 32 * CTA_WARPS, WARP_ROWS = ROWS / CTA_WARPS;
constexpr bool VECTORS = !IN_F32 && HEAD_DIM_V % 8 == 0;
constexpr int LANES = HEAD_DIM_V > 128 ? 32 : HEAD_DIM_V > 64 ? 16 : 8, STEPS = WARP_ROWS * LANES / 32;

__device__ __forceinline__ float dot_two(u32 x, u32 y, float sum)
{
    return __fmaf_rn(unpack(x >> 16), unpack(y >> 16), __fmaf_rn(unpack(x & 0xffff), unpack(y & 0xffff), sum));
}

template <int COUNT> __device__ __forceinline__ float sum_over(float sum)
{
#pragma unroll
    for (int step = COUNT / 2; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

/* The dot product of a row, by a warp. Products of 16-bit values are exact in float32. */
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
        for (int d = lane; d < HEAD_DIM_V; d += 32)
            sum = __fmaf_rn(value_of(x[d]), value_of(y[d]), sum);
        return sum_over<32>(sum);
    }
}

/* Stores LSE and delta of row q. dot: rowsum(dO * O). An empty row gets +inf, so that P = exp(S - LSE) = 0. */
__device__ __forceinline__ void store_row(const attune_cuda_arguments &a, const attune_cuda_backward &back, int plane,
                                          int b, int h, int q, float dot)
{
    float lse = ATTUNE_INF, delta = 0.0f;
    if (q < a.q_len) {
        delta = dot;
        if (back.d_lse.address)
            delta -=
                ((const float *)back.d_lse.address)[b * back.d_lse.batch + h * back.d_lse.head + q * back.d_lse.row];
        lse = ((const float *)a.lse.address)[b * a.lse.batch + h * a.lse.head + q * a.lse.row];
        if (lse == -ATTUNE_INF)
            lse = ATTUNE_INF, delta = 0.0f;
        else if (!IN_F32)
            lse *= ATTUNE_LOG2E;
    }
    ((float *)back.lse)[plane * back.row_stride + q] = lse;
    ((float *)back.delta)[plane * back.row_stride + q] = delta;
}

__device__ __forceinline__ void clear_sums(const attune_cuda_backward &back)
{
    u64 quads = back.sum_words / 2, first = (u64)blockIdx.x * CTA_THREADS + threadIdx.x;
    for (u64 i = first; i < quads; i += (u64)gridDim.x * CTA_THREADS)
        ((uint4 *)back.sums)[i] = make_uint4(0, 0, 0, 0);
    if (first == 0 && back.sum_words % 2)
        ((u64 *)back.sums)[back.sum_words - 1] = 0;
}

extern "C" __global__ void __launch_bounds__(CTA_THREADS)
    attune_delta(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_backward back)
{
    clear_sums(back);
    int blocks = (int)back.row_stride / ROWS, plane = (int)blockIdx.x / blocks;
    int b = plane / a.heads, h = plane - b * a.heads, lane = (int)threadIdx.x % 32;
    int first = ((int)blockIdx.x - plane * blocks) * ROWS + (int)threadIdx.x / 32 * WARP_ROWS;
    const element *o = (const element *)a.o.address + b * a.o.batch + h * a.o.head;
    const element *d_o = (const element *)back.d_o.address + b * back.d_o.batch + h * back.d_o.head;
    if (VECTORS && view_aligned(a.o) && view_aligned(back.d_o)) {
        uint4 x[STEPS], y[STEPS];
        int q = first + lane / LANES, at = lane % LANES * 8;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            x[i] = y[i] = make_uint4(0, 0, 0, 0);
            if (q + i * (32 / LANES) < a.q_len && at < HEAD_DIM_V) {
                x[i] = *(const uint4 *)(o + (q + i * (32 / LANES)) * a.o.row + at);
                y[i] = *(const uint4 *)(d_o + (q + i * (32 / LANES)) * back.d_o.row + at);
            }
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            float sum = dot_two(x[i].x, y[i].x, dot_two(x[i].y, y[i].y, 0.0f));
            sum = sum_over<LANES>(dot_two(x[i].z, y[i].z, dot_two(x[i].w, y[i].w, sum)));
            if (lane % LANES == 0)
                store_row(a, back, plane, b, h, q + i * (32 / LANES), sum);
        }
        return;
    }
    for (int q = first; q < first + WARP_ROWS; q++) {
        float sum = q < a.q_len ? dot(o + q * a.o.row, d_o + q * back.d_o.row, lane) : 0.0f;
        if (lane == 0)
            store_row(a, back, plane, b, h, q, sum);
    }
}

extern "C" __global__ void __launch_bounds__(CTA_THREADS) attune_sums(const __grid_constant__ attune_cuda_sums s)
{
    i64 element = (i64)blockIdx.x * CTA_THREADS + threadIdx.x;
    if (element >= s.elements)
        return;
    int i = 0;
    for (; element >= s.to[i].elements; i++)
        element -= s.to[i].elements;
    i64 padding = s.to[i].pitch - s.to[i].row, before = padding ? element / s.to[i].row * padding : 0;
    double value = s.to[i].is_float ? (double)((const float *)s.to[i].sums)[element + before]
                                    : sum_value((const u64 *)s.to[i].sums + element * ATTUNE_CUDA_SUM_WORDS);
    i64 at = 0;
    for (int d = 3; d >= 0; d--) {
        i64 rest = element / s.to[i].size[d];
        at += (element - rest * s.to[i].size[d]) * s.to[i].stride[d];
        element = rest;
    }
    float *to = (float *)s.to[i].address + at;
    *to = (float)((double)*to + value);
}

/* d_sink = -sum over the rows of a head of exp(sink - LSE) delta, in a fixed order. */
extern "C" __global__ void __launch_bounds__(CTA_THREADS)
    attune_sinks(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_backward back)
{
    extern __shared__ __align__(8) unsigned char memory[];
    double *sums = (double *)memory; /* of each warp */
    int h = (int)blockIdx.x;
    float sink = ((const float *)a.sinks)[h * a.sinks_head];
    double sum = 0.0;
    i64 rows = sink == -ATTUNE_INF ? 0 : (i64)a.batch * a.q_len;
    for (i64 i = (int)threadIdx.x; i < rows; i += CTA_THREADS) {
        int b = (int)(i / a.q_len), q = (int)(i - (i64)b * a.q_len);
        float lse = ((const float *)a.lse.address)[b * a.lse.batch + h * a.lse.head + q * a.lse.row];
        if (lse != -ATTUNE_INF)
            sum -= (double)expf(sink - lse) *
                   (double)((const float *)back.delta)[((i64)b * a.heads + h) * back.row_stride + q];
    }
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (int i = 1; i < CTA_WARPS; i++)
        sum += sums[i];
    ((float *)back.d_sinks)[h * back.d_sinks_head] = (float)sum;
}
