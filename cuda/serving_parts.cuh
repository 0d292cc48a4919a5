/* SPDX-License-Identifier: MIT */
/* Partial results of a tile whose keys are computed in parts. The CTA that finishes last adds them, so that no further
 * launch is needed. */
#ifndef ATTUNE_CUDA_SERVING_PARTS_CUH
#define ATTUNE_CUDA_SERVING_PARTS_CUH

#include "non_finite.cuh"
#include "serving_groups.cuh"

constexpr u64 PART_BYTES = attune_cuda_serving_part_sm80(BLOCK_M, HEAD_DIM_V);
constexpr int PART_ML = BLOCK_M * HEAD_DIM_V; /* after O, in floats */

__device__ __forceinline__ float *partial_at(const attune_cuda_serving &s, i64 slot)
{
    return (float *)(s.parts + (u64)slot * PART_BYTES);
}

__device__ __forceinline__ float *part_at(const attune_cuda_serving &s, const tile &t, int part)
{
    return (float *)(s.parts + (u64)(t.slot + part) * PART_BYTES);
}

/* Stores an element of a row in part_at. */
__device__ __forceinline__ void store_partial(float *to, int row, int d, const recomputed_element &x)
{
    to[row * HEAD_DIM_V + d] = x.o;
    if (d == 0)
        *(float2 *)(to + PART_ML + row * 2) = make_float2(x.m, x.l);
}

/* The threads that compute a tile: all of the CTA's, unless some of them load alone. */
struct whole_cta {
    static constexpr int COUNT = THREADS;

    static __device__ __forceinline__ int thread()
    {
        return (int)threadIdx.x;
    }
    static __device__ __forceinline__ void sync()
    {
        __syncthreads();
    }
    static __device__ __forceinline__ int sync_or(int x)
    {
        return __syncthreads_or(x);
    }
};

/* Whether this CTA is the last of the tile's: then it sees the results of all. The next call finds the counter 0. */
template <typename TEAM = whole_cta>
__device__ __forceinline__ bool last_of_parts(const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                              const tile &t)
{
    int last = 0;
    if constexpr (TAKEN) {
        /* The thread that counts orders what all of them have stored, and sees what those of the others have. */
        TEAM::sync();
        if (TEAM::thread() == 0) {
            int *counter = counters_of(a, s) + t.counter;
            last = (int)add_acquire_release((u32 *)counter, 1) == t.parts - 1;
            if (last)
                *counter = 0;
        }
        return TEAM::sync_or(last);
    }
    __threadfence();
    TEAM::sync();
    if (TEAM::thread() == 0) {
        int *counter = counters_of(a, s) + t.counter;
        last = atomicAdd(counter, 1) == t.parts - 1;
        if (last)
            *counter = 0;
    }
    last = TEAM::sync_or(last);
    __threadfence();
    return last;
}

/* The weights of two results whose maxima are m and x, and the larger one. */
struct two_weights {
    float most, of_m, of_x;
};

__device__ __forceinline__ two_weights weigh(float m, float x, float factor)
{
    float most = fmaxf(m, x), base = most == -ATTUNE_INF ? 0.0f : most;
    return {most, exp2_fast((m - base) * factor), exp2_fast((x - base) * factor)};
}

/* Fixed parts are added one after another, whether a CTA computes all of a tile or each is an item: the bits are the
 * same. */
__device__ __forceinline__ recomputed_element add_fixed(const recomputed_element &sum, const recomputed_element &x,
                                                        float factor)
{
    two_weights w = weigh(sum.m, x.m, factor);
    return {sum.o * w.of_m + x.o * w.of_x, w.most, sum.l * w.of_m + x.l * w.of_x};
}

/* The sum that this CTA has of a tile's parts. */
__device__ __forceinline__ float *sum_of_parts(const attune_cuda_serving &s)
{
    return (float *)(s.parts + (u64)(s.slots + block_here()) * PART_BYTES);
}

/* The sum of the parts of four columns of a row, in the order of the keys. They are in L2, written by other CTAs. */
struct four_columns {
    float4 o;
    float m, l;
};

__device__ __forceinline__ four_columns add_parts(const attune_cuda_serving &s, const tile &t, int row, int d,
                                                  float factor)
{
    constexpr int STEP = (int)(PART_BYTES / sizeof(float));
    const float *part = part_at(s, t, 0), *ml = part + PART_ML + row * 2;
    four_columns sum = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), -ATTUNE_INF, 0.0f};
    part += row * HEAD_DIM_V + d;
#pragma unroll 8
    for (int i = 0; i < t.parts; i++)
        sum.m = fmaxf(sum.m, __ldcg(ml + (i64)i * STEP));
    float base = sum.m == -ATTUNE_INF ? 0.0f : sum.m;
#pragma unroll 8
    for (int i = 0; i < t.parts; i++) {
        float2 of = __ldcg((const float2 *)(ml + (i64)i * STEP));
        float4 o = __ldcg((const float4 *)(part + (i64)i * STEP));
        float weight = exp2_fast((of.x - base) * factor);
        sum.l += of.y * weight;
        sum.o.x += o.x * weight;
        sum.o.y += o.y * weight;
        sum.o.z += o.z * weight;
        sum.o.w += o.w * weight;
    }
    return sum;
}

/* The same of COUNT rows and columns, whose loads are under way together. */
template <int COUNT>
__device__ __forceinline__ void add_parts_together(four_columns (&sums)[COUNT], const attune_cuda_serving &s,
                                                   const tile &t, const int (&row)[COUNT], const int (&d)[COUNT],
                                                   float factor)
{
    constexpr int STEP = (int)(PART_BYTES / sizeof(float));
    const float *part = part_at(s, t, 0);
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        sums[j] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), -ATTUNE_INF, 0.0f};
#pragma unroll 8
    for (int i = 0; i < t.parts; i++)
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            sums[j].m = fmaxf(sums[j].m, __ldcg(part + PART_ML + row[j] * 2 + (i64)i * STEP));
#pragma unroll 4
    for (int i = 0; i < t.parts; i++)
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            four_columns &sum = sums[j];
            float2 of = __ldcg((const float2 *)(part + PART_ML + row[j] * 2 + (i64)i * STEP));
            float4 o = __ldcg((const float4 *)(part + row[j] * HEAD_DIM_V + d[j] + (i64)i * STEP));
            float weight = exp2_fast((of.x - (sum.m == -ATTUNE_INF ? 0.0f : sum.m)) * factor);
            sum.l += of.y * weight;
            sum.o.x += o.x * weight;
            sum.o.y += o.y * weight;
            sum.o.z += o.z * weight;
            sum.o.w += o.w * weight;
        }
}

/* The same of fixed parts, one after another. */
__device__ __forceinline__ four_columns add_fixed_parts(const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                                        const tile &t, int row, int d, float factor)
{
    int base = t.kv_first / part_keys(t), first = t.fixed_first - base, last = min(t.fixed_last - base, t.parts - 1);
    four_columns sum = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), -ATTUNE_INF, 0.0f};
    [[maybe_unused]] parts_place place = {0, 0, 0};
    [[maybe_unused]] int row_of_tile = row;
#pragma unroll 4
    for (int i = first; i <= last; i++) {
        const float *part;
        if constexpr (SHARES) {
            if (i >= place.end)
                place = place_of(a, s, t, i);
            part = partial_at(s, min(max(place.slot + i, (i64)0), (i64)s.slots - 1));
            row = min(max(row_of_tile + place.row, 0), BLOCK_M - 1);
        } else
            part = part_at(s, t, i);
        float2 of = __ldcg((const float2 *)(part + PART_ML + row * 2));
        float4 o = __ldcg((const float4 *)(part + row * HEAD_DIM_V + d));
        two_weights w = i == first ? two_weights{of.x, 0.0f, 1.0f} : weigh(sum.m, of.x, factor);
        sum.o.x = i == first ? o.x : sum.o.x * w.of_m + o.x * w.of_x;
        sum.o.y = i == first ? o.y : sum.o.y * w.of_m + o.y * w.of_x;
        sum.o.z = i == first ? o.z : sum.o.z * w.of_m + o.z * w.of_x;
        sum.o.w = i == first ? o.w : sum.o.w * w.of_m + o.w * w.of_x;
        sum.l = i == first ? of.y : sum.l * w.of_m + of.y * w.of_x;
        sum.m = w.most;
    }
    return sum;
}

#endif
