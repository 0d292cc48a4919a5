/* SPDX-License-Identifier: MIT */
/* Builds the block lists of a mask from a tensor on the device: classifies the blocks, scans their counts, and writes
 * the indices in ascending order. */
#include "mask_lists.h"

typedef unsigned char u8;
typedef long long i64;

enum { EMPTY, PARTIAL, FULL };

struct pairs_found {
    int forbidden, allowed;
};

template <typename T> __device__ __forceinline__ void classify(pairs_found &s, T element, T wanted)
{
    if (element == wanted)
        s.forbidden = 1;
    else
        s.allowed = 1;
}

/* Reads 16 bytes at once where rows are contiguous and aligned: a block's first column is a multiple of 16. Returns the
 * columns that it has read. */
template <typename T>
__device__ __forceinline__ int classify_vectors(pairs_found &s, const attune_cuda_mask_lists &a, const T *elements,
                                                int rows, int columns)
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
            classify(s, (T)(words[j * (int)sizeof(T) / 4] >> j * (int)sizeof(T) % 4 * 8), wanted);
    }
    return vectors * EACH;
}

template <typename T>
__device__ __forceinline__ void classify_block(pairs_found &s, const attune_cuda_mask_lists &a, i64 first, int rows,
                                               int columns)
{
    const T *elements = (const T *)a.tensor + first;
    const T wanted = (T)a.forbidden;
    const bool aligned =
        a.stride[3] == 1 && (((unsigned long long)elements | (unsigned long long)(a.stride[2] * sizeof(T))) & 15) == 0;
    const int done = aligned ? classify_vectors(s, a, elements, rows, columns) : 0, left = columns - done;
    for (int i = threadIdx.x; i < rows * left; i += ATTUNE_CUDA_MASK_THREADS) {
        const int q = i / left, kv = done + i - q * left;
        classify(s, elements[q * a.stride[2] + kv * a.stride[3]], wanted);
    }
}

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MASK_THREADS)
    attune_mask_classify(const __grid_constant__ attune_cuda_mask_lists a)
{
    const unsigned block = blockIdx.x, line = block / (unsigned)a.kv_blocks;
    const int plane = (int)(line / (unsigned)a.q_blocks);
    const int q = (int)(line % (unsigned)a.q_blocks) * a.q_block,
              kv = (int)(block % (unsigned)a.kv_blocks) * a.kv_block;
    const int rows = min(a.q_block, a.q_len - q), columns = min(a.kv_block, a.kv_len - kv);
    const i64 first =
        plane / a.heads * a.stride[0] + plane % a.heads * a.stride[1] + q * a.stride[2] + kv * a.stride[3];
    pairs_found s = {0, 0};
    if (a.element == 1)
        classify_block<u8>(s, a, first, rows, columns);
    else if (a.element == 2)
        classify_block<unsigned short>(s, a, first, rows, columns);
    else
        classify_block<unsigned>(s, a, first, rows, columns);
    const int any_forbidden = __syncthreads_or(s.forbidden), any_allowed = __syncthreads_or(s.allowed);
    if (threadIdx.x == 0)
        ((u8 *)a.classes)[block] = (u8)(!any_allowed ? EMPTY : any_forbidden ? PARTIAL : FULL);
}

/* A line: one row of blocks or one column of blocks, counted over all planes. */
struct block_line {
    const u8 *first;
    int count, step;
};

__device__ __forceinline__ block_line block_line_of(const attune_cuda_mask_lists &a, int line, bool columns)
{
    const int lines = columns ? a.kv_blocks : a.q_blocks, plane = line / lines, at = line % lines;
    block_line r;
    r.first = (const u8 *)a.classes + (i64)plane * a.q_blocks * a.kv_blocks + (columns ? at : (i64)at * a.kv_blocks);
    r.count = columns ? a.q_blocks : a.kv_blocks;
    r.step = columns ? a.kv_blocks : 1;
    return r;
}

/* Offsets of the lists: an exclusive scan of the lines' counts, ATTUNE_CUDA_MASK_SCAN lines at a time. */
extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MASK_SCAN)
    attune_mask_offsets(const __grid_constant__ attune_cuda_mask_lists a)
{
    __shared__ int of_warps[ATTUNE_CUDA_MASK_SCAN / 32];
    const bool columns = blockIdx.x & ATTUNE_CUDA_MASK_COLUMNS;
    const u8 wanted = blockIdx.x & ATTUNE_CUDA_MASK_FULL ? FULL : PARTIAL;
    const int lines = a.planes * (columns ? a.kv_blocks : a.q_blocks);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i64 *offsets = (i64 *)a.offsets[blockIdx.x], before = 0;
    for (int base = 0; base < lines; base += ATTUNE_CUDA_MASK_SCAN) {
        const int line = base + (int)threadIdx.x;
        int mine = 0;
        if (line < lines) {
            const block_line r = block_line_of(a, line, columns);
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
        if (line < lines)
            offsets[line] = before + earlier + sum - mine;
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        offsets[lines] = before;
}

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MASK_THREADS)
    attune_mask_indices(const __grid_constant__ attune_cuda_mask_lists a)
{
    const int rows = a.planes * a.q_blocks, lane = threadIdx.x % 32;
    int line = (int)((blockIdx.x * (i64)ATTUNE_CUDA_MASK_THREADS + threadIdx.x) / 32);
    const bool columns = line >= rows;
    line -= columns ? rows : 0;
    if (columns && line >= a.planes * a.kv_blocks)
        return;
    const block_line r = block_line_of(a, line, columns);
    const int list = columns ? ATTUNE_CUDA_MASK_COLUMNS : 0;
    int *partial = (int *)a.indices[list] + ((const i64 *)a.offsets[list])[line];
    int *full =
        (int *)a.indices[list + ATTUNE_CUDA_MASK_FULL] + ((const i64 *)a.offsets[list + ATTUNE_CUDA_MASK_FULL])[line];
    for (int base = 0; base < r.count; base += 32) {
        const int block = base + lane;
        const u8 is = block < r.count ? r.first[(i64)block * r.step] : (u8)EMPTY;
        const unsigned partials = __ballot_sync(0xffffffffu, is == PARTIAL),
                       fulls = __ballot_sync(0xffffffffu, is == FULL);
        const unsigned below = (1u << lane) - 1u;
        if (is == PARTIAL)
            partial[__popc(partials & below)] = block;
        if (is == FULL)
            full[__popc(fulls & below)] = block;
        partial += __popc(partials);
        full += __popc(fulls);
    }
}
