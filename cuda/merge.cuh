/* SPDX-License-Identifier: MIT */
/* Shared by the merging kernels: tensors of any type and layout, and rows. */
#ifndef ATTUNE_CUDA_MERGE_CUH
#define ATTUNE_CUDA_MERGE_CUH

#include "merge.h"
#include "ptx.cuh"

typedef attune_cuda_merge_view view;

#define EMPTY __int_as_float(0xff800000)

struct two {
    float x, y;
};

struct row_coord {
    long long b, h, q;
};

__device__ __forceinline__ char *row_of(const view &v, const row_coord &p)
{
    return (char *)v.address + p.b * v.batch + p.h * v.head + p.q * v.row;
}

__device__ __forceinline__ float load_one(const view &v, const char *row, int column)
{
    if (v.dtype == 3)
        return ((const float *)row)[column];
    const unsigned short bits = ((const unsigned short *)row)[column];
    if (v.dtype == 2)
        return __uint_as_float((unsigned)bits << 16);
    return half_to_float(bits);
}

__device__ __forceinline__ void store_one(const view &v, char *row, int column, float x)
{
    if (v.dtype == 3) {
        ((float *)row)[column] = x;
        return;
    }
    const unsigned two = v.dtype == 1 ? pack_f16(x, 0.0f) : pack_bf16(x, 0.0f);
    ((unsigned short *)row)[column] = (unsigned short)two;
}

/* Loads two columns from an even one on; `both`: the second one exists. */
__device__ __forceinline__ two load2(const view &v, const char *row, int column, bool both)
{
    two t;
    if (v.pair && both) {
        if (v.dtype == 3) {
            const float2 pair = *(const float2 *)(row + 4 * column);
            t.x = pair.x;
            t.y = pair.y;
            return t;
        }
        const unsigned bits = *(const unsigned *)(row + 2 * column);
        if (v.dtype == 2) {
            t.x = __uint_as_float(bits << 16);
            t.y = __uint_as_float(bits & 0xffff0000u);
        } else {
            t.x = half_to_float((unsigned short)bits);
            t.y = half_to_float((unsigned short)(bits >> 16));
        }
        return t;
    }
    t.x = load_one(v, row, column);
    t.y = both ? load_one(v, row, column + 1) : 0.0f;
    return t;
}

__device__ __forceinline__ void store2(const view &v, char *row, int column, bool both, float x, float y)
{
    if (v.pair && both) {
        if (v.dtype == 3) {
            *(float2 *)(row + 4 * column) = make_float2(x, y);
            return;
        }
        *(unsigned *)(row + 2 * column) = v.dtype == 1 ? pack_f16(x, y) : pack_bf16(x, y);
        return;
    }
    store_one(v, row, column, x);
    if (both)
        store_one(v, row, column + 1, y);
}

__device__ __forceinline__ bool find_row(const attune_cuda_merge &a, row_coord &p)
{
    const long long row = (long long)blockIdx.x * ATTUNE_CUDA_MERGE_ROWS + threadIdx.x / 32;
    if (a.rows <= 0xffffffffll) { /* 64-bit divisions would take longer than the rest of the kernel */
        const unsigned plane = (unsigned)row / (unsigned)a.q_len, b = plane / (unsigned)a.heads;
        p.q = (unsigned)row - plane * (unsigned)a.q_len;
        p.h = plane - b * (unsigned)a.heads;
        p.b = b;
    } else {
        p.q = row % a.q_len;
        p.h = row / a.q_len % a.heads;
        p.b = row / a.q_len / a.heads;
    }
    return row < a.rows;
}

/* The factor of the weighted sums, from the sum of the weights. */
__device__ __forceinline__ float factor_of(const attune_cuda_merge &a, float sum)
{
    return !a.weighted || sum == 0.0f ? 1.0f : 1.0f / sum;
}

/* A fully masked row: O = 0, also where the parts have NaN. */
__device__ __forceinline__ bool is_empty(const attune_cuda_merge &a, float sum)
{
    return a.weighted && sum == 0.0f && !a.is_partial;
}

__device__ __forceinline__ unsigned divide(unsigned n, attune_cuda_divisor by)
{
    return (unsigned)((unsigned long long)n * by.multiplier >> (31 + by.shift));
}

#endif
