/* SPDX-License-Identifier: MIT */
/* The vector kernels of merging forward (merge.cu has the others): a module of its own, so that it compiles beside
 * them. */
#include "merge_vectors.cuh"

/* TYPE: of the parts; TO: of the result. */
template <int TYPE, int TO, int PARTS> __device__ __forceinline__ void merge_vectors(const attune_cuda_merge &a)
{
    const lane_work t = lane_work_of(a);
    float weights[PARTS];
    chunk chunks[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (t.in_range && i < a.part_count) {
            weights[i] = a.weighted ? *lse_at(a.parts[i].lse, t.p) : 0.0f;
            if (t.active)
                chunks[i] = load_chunk<TYPE>(a.parts[i].o, t.p, t.lane);
        }
    float m = EMPTY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (i < a.part_count && (weights[i] > m || weights[i] != weights[i]))
            m = weights[i];
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        weights[i] = i >= a.part_count || m == EMPTY ? 0.0f : expf(weights[i] - m);
        sum += weights[i];
    }
    const float factor = factor_of(a, sum);
    const bool empty = is_empty(a, sum);
    float x[8] = {};
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (weights[i] != 0.0f || (a.strict && i < a.part_count)) {
            float y[8];
            unpack<TYPE>(a.parts[i].o, chunks[i], y);
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[j] = __fmaf_rn(weights[i], y[j], x[j]);
        }
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = empty ? 0.0f : x[j] * factor;
    if (t.active)
        store_chunk<TO>(a.o, t.p, t.lane, x);
    __syncwarp();
    if (t.in_range && t.lane == 0 && a.lse.address)
        *lse_at(a.lse, t.p) = sum == 0.0f ? EMPTY : m + logf(sum);
}

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)
    attune_merge_any_8(const __grid_constant__ attune_cuda_merge a)
{
    merge_vectors<0, 0, 8>(a);
}

#define VECTORS(of, from, to, parts)                                                                                   \
    extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)                                            \
        attune_merge_##of##_##parts(const __grid_constant__ attune_cuda_merge a)                                       \
    {                                                                                                                  \
        merge_vectors<from, to, parts>(a);                                                                             \
    }

VECTORS(f16, 1, 1, 2)
VECTORS(f16, 1, 1, 8)
VECTORS(bf16, 2, 2, 2)
VECTORS(bf16, 2, 2, 8)
VECTORS(f32, 3, 3, 2)
VECTORS(f32, 3, 3, 8)
VECTORS(f16_of_f32, 3, 1, 2)
VECTORS(bf16_of_f32, 3, 2, 2)
