/* SPDX-License-Identifier: MIT */
/* The lists of a mask that follows a tensor: its blocks classified, counted, and written in ascending order. */
#include "mask_lists.h"

typedef unsigned char u8;
typedef long long i64;

enum { EMPTY, PARTIAL, FULL };

struct seen {
    int forbidden, allowed;
};

template <typename T> __device__ __forceinline__ void see(seen &s, T element, T wanted)
{
    if (element == wanted)
        s.forbidden = 1;
    else
        s.allowed = 1;
}

/* Of contiguous rows that begin at multiples of 16 bytes, 16 bytes at once. A block's first column is a multiple of 16. */
template <typename T>
__device__ __forceinline__ int see_vectors(seen &s, const attune_cuda_mask_lists &a, const T *elements, int rows,
                                           int columns)
{
    constexpr int EACH = 16 / (int)sizeof(T);
    const T wanted = (T)a.forbidden;
    const int vectors = columns / EACH;
    if (!vectors)
        return 0;
    for (int i = threadIdx.x; i < rows * vectors; i += ATTUNE_CUDA_MASK_THREADS) {
        const int q = i / vectors;
        const uint4 v = *(const uint4 *)(elements + q * a.stride[2] + (i - q * vectors) * EACH);
        const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < EACH; j++)
            see(s, (T)(words[j * (int)sizeof(T) / 4] >> j * (int)sizeof(T) % 4 * 8), wanted);
    }
    return vectors * EACH;
}

template <typename T>
__device__ __forceinline__ void see_block(seen &s, const attune_cuda_mask_lists &a, i64 first, int rows, int columns)
{
    const T *elements = (const T *)a.tensor + first;
    const T wanted = (T)a.forbidden;
    const bool aligned =
        a.stride[3] == 1 && (((unsigned long long)elements | (unsigned long long)(a.stride[2] * sizeof(T))) & 15) == 0;
    const int done = aligned ? see_vectors(s, a, elements, rows, columns) : 0, left = columns - done;
    for (int i = threadIdx.x; i < rows * left; i += ATTUNE_CUDA_MASK_THREADS) {
        const int q = i / left, kv = done + i - q * left;
        see(s, elements[q * a.stride[2] + kv * a.stride[3]], wanted);
    }
}

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MASK_THREADS)
    attune_mask_classify(const __grid_constant__ attune_cuda_mask_lists a)
{
    const unsigned block = blockIdx.x, linear_score = block / (unsigned)a.kv_blocks;
    const int plane = (int)(linear_score / (unsigned)a.q_blocks);
    const int q = (int)(linear_score % (unsigned)a.q_blocks) * a.q_block, kv = (int)(block % (unsigned)a.kv_blocks) * a.kv_block;
    const int rows = min(a.q_block, a.q_len - q), columns = min(a.kv_block, a.kv_len - kv);
    const i64 first = plane / a.heads * a.stride[0] + plane % a.heads * a.stride[1] + q * a.stride[2] + kv * a.stride[3];
    seen s = {0, 0};
    if (a.element == 1)
        see_block<u8>(s, a, first, rows, columns);
    else if (a.element == 2)
        see_block<unsigned short>(s, a, first, rows, columns);
    else
        see_block<unsigned>(s, a, first, rows, columns);
    const int any_forbidden = __syncthreads_or(s.forbidden), any_allowed = __syncthreads_or(s.allowed);
    if (threadIdx.x == 0)
        ((u8 *)a.classes)[block] = (u8)(!any_allowed ? EMPTY : any_forbidden ? PARTIAL : FULL);
}

/* One row of blocks, or one column, of all planes. */
struct run {
    const u8 *first;
    int count, step;
};

__device__ __forceinline__ run run_of(const attune_cuda_mask_lists &a, int linear_score, bool columns)
{
    const int linear_scores = columns ? a.kv_blocks : a.q_blocks, plane = linear_score / linear_scores, at = linear_score % linear_scores;
    run r;
    r.first = (const u8 *)a.classes + (i64)plane * a.q_blocks * a.kv_blocks + (columns ? at : (i64)at * a.kv_blocks);
    r.count = columns ? a.q_blocks : a.kv_blocks;
    r.step = columns ? a.kv_blocks : 1;
    return r;
}

/* Offsets of compressed rows: an exclusive scan of the lines' counts, a share of them at a time. */
extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MASK_SCAN)
    attune_mask_offsets(const __grid_constant__ attune_cuda_mask_lists a)
{
    __shared__ int of_warps[ATTUNE_CUDA_MASK_SCAN / 32];
    const bool columns = blockIdx.x & ATTUNE_CUDA_MASK_COLUMNS;
    const u8 wanted = blockIdx.x & ATTUNE_CUDA_MASK_FULL ? FULL : PARTIAL;
    const int linear_scores = a.planes * (columns ? a.kv_blocks : a.q_blocks);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i64 *offsets = (i64 *)a.offsets[blockIdx.x], before = 0;
    for (int base = 0; base < linear_scores; base += ATTUNE_CUDA_MASK_SCAN) {
        const int linear_score = base + (int)threadIdx.x;
        int mine = 0;
        if (linear_score < linear_scores) {
            const run r = run_of(a, linear_score, columns);
            for (int i = 0; i < r.count; i++)
                mine += r.first[(i64)i * r.step] == wanted;
        }
        int sum = mine;
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, d);
            sum += lane >= d ? other : 0;
        }
        if (lane == 31)
            of_warps[warp] = sum;
        __syncthreads();
        i64 earlier = 0, all = 0;
        for (int w = 0; w < ATTUNE_CUDA_MASK_SCAN / 32; w++) {
            earlier += w < warp ? of_warps[w] : 0;
            all += of_warps[w];
        }
        if (linear_score < linear_scores)
            offsets[linear_score] = before + earlier + sum - mine;
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        offsets[linear_scores] = before;
}

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MASK_THREADS)
    attune_mask_indices(const __grid_constant__ attune_cuda_mask_lists a)
{
    const int rows = a.planes * a.q_blocks, lane = threadIdx.x % 32;
    int linear_score = (int)((blockIdx.x * (i64)ATTUNE_CUDA_MASK_THREADS + threadIdx.x) / 32);
    const bool columns = linear_score >= rows;
    linear_score -= columns ? rows : 0;
    if (columns && linear_score >= a.planes * a.kv_blocks)
        return;
    const run r = run_of(a, linear_score, columns);
    const int list = columns ? ATTUNE_CUDA_MASK_COLUMNS : 0;
    int *partial = (int *)a.indices[list] + ((const i64 *)a.offsets[list])[linear_score];
    int *full = (int *)a.indices[list + ATTUNE_CUDA_MASK_FULL] + ((const i64 *)a.offsets[list + ATTUNE_CUDA_MASK_FULL])[linear_score];
    for (int base = 0; base < r.count; base += 32) {
        const int block = base + lane;
        const u8 is = block < r.count ? r.first[(i64)block * r.step] : (u8)EMPTY;
        const unsigned partials = __ballot_sync(0xffffffffu, is == PARTIAL), fulls = __ballot_sync(0xffffffffu, is == FULL);
        const unsigned below = (1u << lane) - 1u;
        if (is == PARTIAL)
            partial[__popc(partials & below)] = block;
        if (is == FULL)
            full[__popc(fulls & below)] = block;
        partial += __popc(partials);
        full += __popc(fulls);
    }
}
