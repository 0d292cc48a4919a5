/* SPDX-License-Identifier: MIT */
/*
 * Merges partial results: w_i = exp(lse_i - lse), o = sum of w_i o_i; backward d_o_i = w_i d_o and
 * d_lse_i = w_i (dot(d_o, o_i - o) + d_lse). A part of weight 0 is skipped, except forward in a strict merge. The
 * vector kernels (merge_forward.cu, merge_backward.cu) need the common, aligned layout; a lane has 8 columns of a row.
 * In those here, of any layout, a lane has every 32nd pair of columns. Copies, and splits of several devices, are here
 * too.
 */
#include "merge.cuh"

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)
    attune_merge(const __grid_constant__ attune_cuda_merge a)
{
    row_coord p;
    if (!find_row(a, p))
        return;
    const int lane = threadIdx.x % 32;
    float weights[ATTUNE_CUDA_MERGE_PARTS], m = EMPTY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ATTUNE_CUDA_MERGE_PARTS; i++) {
        if (i >= a.part_count)
            break;
        weights[i] = a.weighted ? *(const float *)row_of(a.parts[i].lse, p) : 0.0f;
        if (weights[i] > m || weights[i] != weights[i])
            m = weights[i];
    }
#pragma unroll
    for (int i = 0; i < ATTUNE_CUDA_MERGE_PARTS; i++) {
        /* Parts past part_count have weight 0, also if m is NaN. */
        weights[i] = i >= a.part_count || m == EMPTY ? 0.0f : expf(weights[i] - m);
        sum += weights[i];
    }
    const float factor = factor_of(a, sum);
    const bool empty = is_empty(a, sum);
    char *to = row_of(a.o, p);
    for (int c = 2 * lane; c < a.columns; c += 64) {
        const bool both = c + 1 < a.columns;
        float x = 0.0f, y = 0.0f;
#pragma unroll
        for (int i = 0; i < ATTUNE_CUDA_MERGE_PARTS; i++)
            if (weights[i] != 0.0f || (a.strict && i < a.part_count)) {
                const two t = load2(a.parts[i].o, row_of(a.parts[i].o, p), c, both);
                x = __fmaf_rn(weights[i], t.x, x);
                y = __fmaf_rn(weights[i], t.y, y);
            }
        store2(a.o, to, c, both, empty ? 0.0f : x * factor, empty ? 0.0f : y * factor);
    }
    /* The LSE may overwrite that of a part, which all lanes must have read. */
    __syncwarp();
    if (lane == 0 && a.lse.address)
        *(float *)row_of(a.lse, p) = sum == 0.0f ? EMPTY : m + logf(sum);
}

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)
    attune_merge_backward(const __grid_constant__ attune_cuda_merge a)
{
    row_coord p;
    if (!find_row(a, p))
        return;
    const int lane = threadIdx.x % 32;
    const float lse = *(const float *)row_of(a.lse, p);
    const float d_lse = a.d_lse.address ? *(const float *)row_of(a.d_lse, p) : 0.0f;
    const char *o = row_of(a.o, p), *d_o = row_of(a.d_o, p);
    for (int i = 0; i < a.part_count; i++) {
        const attune_cuda_merge_part &part = a.parts[i];
        const float part_lse = *(const float *)row_of(part.lse, p);
        const float weight = part_lse == EMPTY || lse == EMPTY ? 0.0f : expf(part_lse - lse);
        float dot = 0.0f;
        for (int c = 2 * lane; c < a.columns; c += 64) {
            const bool both = c + 1 < a.columns;
            two d = {0.0f, 0.0f};
            if (weight != 0.0f) {
                const two mine = load2(part.o, row_of(part.o, p), c, both), full = load2(a.o, o, c, both);
                d = load2(a.d_o, d_o, c, both);
                dot = __fmaf_rn(d.x, mine.x - full.x, dot);
                dot = __fmaf_rn(d.y, mine.y - full.y, dot);
            }
            if (part.d_o.address)
                store2(part.d_o, row_of(part.d_o, p), c, both, weight * d.x, weight * d.y);
        }
        for (int step = 16; step; step /= 2)
            dot += __shfl_xor_sync(0xffffffffu, dot, step);
        if (lane == 0 && part.d_lse.address)
            *(float *)row_of(part.d_lse, p) = weight == 0.0f ? 0.0f : weight * (dot + d_lse);
    }
}

/* ------------------------------------------------------------------------------------------------------------- copies
 */

template <class UNIT> __device__ __forceinline__ void copy_units(const attune_cuda_copy &p)
{
    const long long step = (long long)gridDim.x * ATTUNE_CUDA_MERGE_THREADS;
    for (long long i = (long long)blockIdx.x * ATTUNE_CUDA_MERGE_THREADS + threadIdx.x; i < p.units; i += step) {
        const long long row = i / p.row_units, unit = i - row * p.row_units, plane = row / p.q_len,
                        q = row - plane * p.q_len, b = plane / p.heads, h = plane - b * p.heads;
        ((UNIT *)p.to)[b * p.to_strides[0] + h * p.to_strides[1] + q * p.to_strides[2] + unit] =
            ((const UNIT *)p.from)[b * p.from_strides[0] + h * p.from_strides[1] + q * p.from_strides[2] + unit];
    }
}

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)
    attune_copy_tensors(const __grid_constant__ attune_cuda_copies a)
{
    const attune_cuda_copy &p = a.parts[blockIdx.y];
    if (a.unit == 16)
        copy_units<uint4>(p);
    else if (a.unit == 4)
        copy_units<unsigned>(p);
    else
        copy_units<unsigned short>(p);
}

/* Where unit i is in both tensors. Divisions of 64 bits take longer than the copy. */
__device__ __forceinline__ void copy_find(const attune_cuda_lent_copy &p, unsigned i, long long &from, long long &to)
{
    const unsigned row = divide(i, p.by_row_units), plane = divide(row, p.by_q_len), b = divide(plane, p.by_heads);
    const long long unit = i - row * (unsigned)p.copy.row_units, q = row - plane * (unsigned)p.copy.q_len,
                    h = plane - b * (unsigned)p.copy.heads;
    from = b * p.copy.from_strides[0] + h * p.copy.from_strides[1] + q * p.copy.from_strides[2] + unit;
    to = b * p.copy.to_strides[0] + h * p.copy.to_strides[1] + q * p.copy.to_strides[2] + unit;
}

/* A thread has several units under way. */
template <class UNIT> __device__ __forceinline__ void copy_lent(const attune_cuda_lent_copy &p)
{
    constexpr unsigned TOGETHER = 4;
    const unsigned step = gridDim.x * ATTUNE_CUDA_MERGE_THREADS, units = (unsigned)p.copy.units;
    for (unsigned i = blockIdx.x * ATTUNE_CUDA_MERGE_THREADS + threadIdx.x; i < units; i += TOGETHER * step) {
        UNIT x[TOGETHER];
        long long to[TOGETHER];
#pragma unroll
        for (unsigned j = 0; j < TOGETHER; j++)
            if (i + j * step < units) {
                long long from;
                copy_find(p, i + j * step, from, to[j]);
                x[j] = ((const UNIT *)p.copy.from)[from];
            }
#pragma unroll
        for (unsigned j = 0; j < TOGETHER; j++)
            if (i + j * step < units)
                ((UNIT *)p.copy.to)[to[j]] = x[j];
    }
}

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)
    attune_copy_lent(const __grid_constant__ attune_cuda_lent_copies a)
{
    const attune_cuda_lent_copy &p = a.parts[blockIdx.y];
    if (a.unit == 16)
        copy_lent<uint4>(p);
    else if (a.unit == 4)
        copy_lent<unsigned>(p);
    else
        copy_lent<unsigned short>(p);
}

/* ------------------------------------------------------------------------------------------------------------- splits
 */

constexpr int SPLIT_WARPS = ATTUNE_CUDA_MERGE_THREADS / 32;

__device__ __forceinline__ int split_part(const attune_cuda_merge_splits &a, int split, int &index)
{
    const int part = (int)divide((unsigned)split, a.by_split);
    index = split - part * a.split;
    return part;
}

__device__ __forceinline__ float split_load(const attune_cuda_merge_splits &a, int split, long long from, int column)
{
    int index;
    const int part = split_part(a, split, index);
    return ((const float *)a.parts[part].o)[(from + index) * a.columns + column];
}

/* A warp has every SPLIT_WARPS-th split, a lane a column. */
extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)
    attune_merge_splits(const __grid_constant__ attune_cuda_merge_splits a)
{
    __shared__ float2 states[ATTUNE_CUDA_MERGE_SPLITS];
    __shared__ float sums[SPLIT_WARPS][32];
    const int all = a.part_count * a.split, row = blockIdx.x, plane = row / a.q_len, b = plane / a.heads;
    const row_coord p = {b, plane - b * a.heads, row - plane * a.q_len};
    const long long from = (((p.b + a.first_batch) * a.all_heads + a.first_head + p.h) * a.q_len + p.q) * a.split;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.y * 32 + lane;
    const bool active = column < a.columns;
    /* Other devices' memory answers late: the first results are under way before their weights are known. */
    float early[ATTUNE_CUDA_EARLY_SPLITS / SPLIT_WARPS];
#pragma unroll
    for (int i = 0; i < ATTUNE_CUDA_EARLY_SPLITS / SPLIT_WARPS; i++) {
        const int split = warp + i * SPLIT_WARPS;
        early[i] = active && split < all ? split_load(a, split, from, column) : 0.0f;
    }
    for (int i = threadIdx.x; i < all; i += ATTUNE_CUDA_MERGE_THREADS) {
        int index;
        const int part = split_part(a, i, index);
        states[i] = ((const float2 *)a.parts[part].ml)[from + index];
    }
    __syncthreads();
    float m = EMPTY, sum = 0.0f, value = 0.0f;
    for (int i = lane; i < all; i += 32)
        m = fmaxf(m, states[i].x);
    for (int step = 32 / 2; step; step /= 2)
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, step));
    const float base = m == EMPTY ? 0.0f : m;
    for (int i = lane; i < all; i += 32)
        sum = __fmaf_rn(states[i].y, exp2_fast((states[i].x - base) * a.factor), sum);
    for (int step = 32 / 2; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
#pragma unroll
    for (int i = 0; i < ATTUNE_CUDA_EARLY_SPLITS / SPLIT_WARPS; i++) {
        const int split = warp + i * SPLIT_WARPS;
        if (split < all)
            value = __fmaf_rn(exp2_fast((states[split].x - base) * a.factor), early[i], value);
    }
#pragma unroll 1
    for (int split = ATTUNE_CUDA_EARLY_SPLITS + warp; split < all && active; split += SPLIT_WARPS)
        value = __fmaf_rn(exp2_fast((states[split].x - base) * a.factor), split_load(a, split, from, column), value);
    sums[warp][lane] = value;
    __syncthreads();
    if (warp || !active)
        return;
#pragma unroll
    for (int i = 1; i < SPLIT_WARPS; i++)
        value += sums[i][lane];
    store_one(a.o, row_of(a.o, p), column, sum == 0.0f ? 0.0f : value * (1.0f / sum));
    if (column == 0 && a.lse.address)
        *(float *)row_of(a.lse, p) = sum == 0.0f ? EMPTY : m * (a.factor * 0.693147180559945309f) + logf(sum);
}
