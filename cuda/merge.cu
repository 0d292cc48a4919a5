/* SPDX-License-Identifier: MIT */
/*
 * Merging: w_i = exp(lse_i - lse), o = sum of w_i o_i; backwards d_o_i = w_i d_o and
 * d_lse_i = w_i (dot(d_o, o_i - o) + d_lse). A part whose weight is 0 is not read. A lane has every 32nd pair of columns.
 */
#include "merge.h"

typedef attune_cuda_merge_view view;

#define EMPTY __int_as_float(0xff800000)

struct two {
    float x, y;
};

struct place {
    long long b, h, q;
};

__device__ __forceinline__ char *row_of(const view &v, const place &p)
{
    return (char *)v.address + p.b * v.batch + p.h * v.head + p.q * v.row;
}

__device__ __forceinline__ float load_one(const view &v, const char *row, int column)
{
    float x;
    if (v.dtype == 3)
        return ((const float *)row)[column];
    const unsigned short bits = ((const unsigned short *)row)[column];
    if (v.dtype == 2)
        return __uint_as_float((unsigned)bits << 16);
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ __forceinline__ void store_one(const view &v, char *row, int column, float x)
{
    unsigned two;
    if (v.dtype == 3) {
        ((float *)row)[column] = x;
        return;
    }
    if (v.dtype == 1)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(0.0f), "f"(x));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(0.0f), "f"(x));
    ((unsigned short *)row)[column] = (unsigned short)two;
}

/* From an even column on; `both`: the second is there. */
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
            asm("cvt.f32.f16 %0, %1;" : "=f"(t.x) : "h"((unsigned short)bits));
            asm("cvt.f32.f16 %0, %1;" : "=f"(t.y) : "h"((unsigned short)(bits >> 16)));
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
        unsigned bits;
        if (v.dtype == 3) {
            *(float2 *)(row + 4 * column) = make_float2(x, y);
            return;
        }
        if (v.dtype == 1)
            asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
        else
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
        *(unsigned *)(row + 2 * column) = bits;
        return;
    }
    store_one(v, row, column, x);
    if (both)
        store_one(v, row, column + 1, y);
}

__device__ __forceinline__ bool find_row(const attune_cuda_merge &a, place &p)
{
    const long long row = (long long)blockIdx.x * ATTUNE_CUDA_MERGE_ROWS + threadIdx.x / 32;
    if (a.rows <= 0xffffffffll) { /* divisions of 64 bits would cost more than all else */
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

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)
    attune_merge(const __grid_constant__ attune_cuda_merge a)
{
    place p;
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
        /* A part that is not there has no weight, also where another is NaN. */
        weights[i] = i >= a.part_count || m == EMPTY ? 0.0f : expf(weights[i] - m);
        sum += weights[i];
    }
    const float factor = !a.weighted ? 1.0f : sum == 0.0f ? 0.0f : 1.0f / sum;
    char *to = row_of(a.o, p);
    for (int c = 2 * lane; c < a.columns; c += 64) {
        const bool both = c + 1 < a.columns;
        float x = 0.0f, y = 0.0f;
#pragma unroll
        for (int i = 0; i < ATTUNE_CUDA_MERGE_PARTS; i++)
            if (weights[i] != 0.0f) {
                const two t = load2(a.parts[i].o, row_of(a.parts[i].o, p), c, both);
                x = __fmaf_rn(weights[i], t.x, x);
                y = __fmaf_rn(weights[i], t.y, y);
            }
        store2(a.o, to, c, both, x * factor, y * factor);
    }
    /* The LSE may be that of a part, which all lanes have read by now. */
    __syncwarp();
    if (lane == 0 && a.lse.address)
        *(float *)row_of(a.lse, p) = sum == 0.0f ? EMPTY : m + logf(sum);
}

extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)
    attune_merge_backward(const __grid_constant__ attune_cuda_merge a)
{
    place p;
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
                const two mine = load2(part.o, row_of(part.o, p), c, both), whole = load2(a.o, o, c, both);
                d = load2(a.d_o, d_o, c, both);
                dot = __fmaf_rn(d.x, mine.x - whole.x, dot);
                dot = __fmaf_rn(d.y, mine.y - whole.y, dot);
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
