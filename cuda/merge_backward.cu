/* SPDX-License-Identifier: MIT */
/* The vector kernels of merging backward: a module of its own, as merge_forward.cu. */
#include "merge_vectors.cuh"

template <int TYPE, int PARTS> __device__ __forceinline__ void backward_vectors(const attune_cuda_merge &a)
{
    const lane_work t = lane_work_of(a);
    float part_lse[PARTS], lse = EMPTY, d_lse = 0.0f, o[8], d[8];
    chunk mine[PARTS], full, change;
    if (t.in_range) {
        lse = *lse_at(a.lse, t.p);
        if (a.d_lse.address)
            d_lse = *lse_at(a.d_lse, t.p);
    }
    if (t.active) {
        full = load_chunk<TYPE>(a.o, t.p, t.lane);
        change = load_chunk<TYPE>(a.d_o, t.p, t.lane);
    }
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (t.in_range && i < a.part_count) {
            part_lse[i] = *lse_at(a.parts[i].lse, t.p);
            if (t.active)
                mine[i] = load_chunk<TYPE>(a.parts[i].o, t.p, t.lane);
        }
    unpack<TYPE>(a.o, full, o);
    unpack<TYPE>(a.d_o, change, d);
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (i < a.part_count) {
            const attune_cuda_merge_part &part = a.parts[i];
            const bool empty = !t.in_range || part_lse[i] == EMPTY || lse == EMPTY;
            const float weight = empty ? 0.0f : expf(part_lse[i] - lse);
            float dot = 0.0f, x[8] = {};
            if (t.active && weight != 0.0f) {
                float y[8];
                unpack<TYPE>(part.o, mine[i], y);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    dot = __fmaf_rn(d[j], y[j] - o[j], dot);
                    x[j] = weight * d[j];
                }
            }
            if (t.active && part.d_o.address)
                store_chunk<TYPE>(part.d_o, t.p, t.lane, x);
            for (int step = 1 << a.lane_bits >> 1; step; step /= 2)
                dot += __shfl_xor_sync(0xffffffffu, dot, step);
            if (t.in_range && t.lane == 0 && part.d_lse.address)
                *lse_at(part.d_lse, t.p) = weight == 0.0f ? 0.0f : weight * (dot + d_lse);
        }
}

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)
    attune_merge_backward_any_8(const __grid_constant__ attune_cuda_merge a)
{
    backward_vectors<0, 8>(a);
}

#define VECTORS(type, number, parts)                                                                                   \
    extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)                                            \
        attune_merge_backward_##type##_##parts(const __grid_constant__ attune_cuda_merge a)                            \
    {                                                                                                                  \
        backward_vectors<number, parts>(a);                                                                            \
    }

VECTORS(f16, 1, 2)
VECTORS(f16, 1, 8)
VECTORS(bf16, 2, 2)
VECTORS(bf16, 2, 8)
VECTORS(f32, 3, 2)
VECTORS(f32, 3, 8)
