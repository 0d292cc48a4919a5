/* SPDX-License-Identifier: MIT */
/*
 * Merges partial results: w_i = exp(lse_i - lse), o = sum of w_i o_i; backward d_o_i = w_i d_o and
 * d_lse_i = w_i (dot(d_o, o_i - o) + d_lse). A part of weight 0 is skipped, except forward in a strict merge. The
 * vector kernels need the common, aligned layout; a lane has 8 columns of a row. In the others a lane has every 32nd
 * pair of columns.
 */
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

/* ------------------------------------------------------------------------------------------------------------ vectors
 */

/* 8 columns of a row. Merging is bound by memory, so that addresses must be cheap: divisions by multiplication, strides
 * of 32 bits. All loads are issued before the first is used. */
struct chunk {
    uint4 low, high; /* high: for float32 only */
};

/* TYPE: a view's dtype; 0 = any. */

template <int TYPE> __device__ __forceinline__ bool is_single(const view &v)
{
    return TYPE ? TYPE == 3 : v.dtype == 3;
}

template <int TYPE> __device__ __forceinline__ bool is_brain(const view &v)
{
    return TYPE == 1 || TYPE == 2 ? TYPE == 2 : v.dtype == 2;
}

struct row_coord_32 {
    int b, h, q;
};

__device__ __forceinline__ unsigned divide(unsigned n, attune_cuda_divisor by)
{
    return (unsigned)((unsigned long long)n * by.multiplier >> (31 + by.shift));
}

__device__ __forceinline__ row_coord_32 row_coord_of(const attune_cuda_merge &a, unsigned row)
{
    const unsigned plane = divide(row, a.by_q_len), b = divide(plane, a.by_heads);
    return {(int)b, (int)(plane - b * (unsigned)a.heads), (int)(row - plane * (unsigned)a.q_len)};
}

__device__ __forceinline__ long long steps_to(const view &v, const row_coord_32 &p)
{
    return (long long)p.b * v.steps[0] + (long long)p.h * v.steps[1] + (long long)p.q * v.steps[2];
}

__device__ __forceinline__ float *lse_at(const view &v, const row_coord_32 &p)
{
    return (float *)v.address + steps_to(v, p);
}

template <int TYPE> __device__ __forceinline__ uint4 *chunk_at(const view &v, const row_coord_32 &p, int lane)
{
    return (uint4 *)v.address + steps_to(v, p) + (is_single<TYPE>(v) ? 2 * lane : lane);
}

template <int TYPE> __device__ __forceinline__ chunk load_chunk(const view &v, const row_coord_32 &p, int lane)
{
    const uint4 *from = chunk_at<TYPE>(v, p, lane);
    chunk c;
    c.low = from[0];
    if (is_single<TYPE>(v))
        c.high = from[1];
    return c;
}

template <int TYPE> __device__ __forceinline__ void unpack(const view &v, const chunk &c, float (&x)[8])
{
    const unsigned words[8] = {c.low.x, c.low.y, c.low.z, c.low.w, c.high.x, c.high.y, c.high.z, c.high.w};
    if (is_single<TYPE>(v)) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = __uint_as_float(words[i]);
    } else if (is_brain<TYPE>(v)) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = __uint_as_float(words[i] << 16);
            x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = half_to_float((unsigned short)words[i]);
            x[2 * i + 1] = half_to_float((unsigned short)(words[i] >> 16));
        }
    }
}

template <int TYPE>
__device__ __forceinline__ void store_chunk(const view &v, const row_coord_32 &p, int lane, const float (&x)[8])
{
    uint4 *to = chunk_at<TYPE>(v, p, lane);
    unsigned words[4];
    if (is_single<TYPE>(v)) {
        to[0] = make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
        to[1] = make_uint4(__float_as_uint(x[4]), __float_as_uint(x[5]), __float_as_uint(x[6]), __float_as_uint(x[7]));
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = is_brain<TYPE>(v) ? pack_bf16(x[2 * i], x[2 * i + 1]) : pack_f16(x[2 * i], x[2 * i + 1]);
    to[0] = make_uint4(words[0], words[1], words[2], words[3]);
}

/* A thread's row and columns. `in_range`: the row exists; `active`: its columns do too. A row's lanes are in one warp.
 */
struct lane_work {
    row_coord_32 p;
    int lane;
    bool in_range, active;
};

__device__ __forceinline__ lane_work lane_work_of(const attune_cuda_merge &a)
{
    const int lane = threadIdx.x & ((1 << a.lane_bits) - 1);
    const unsigned rows = ATTUNE_CUDA_MERGE_THREADS >> a.lane_bits;
    const unsigned row = blockIdx.x * rows + (threadIdx.x >> a.lane_bits);
    const bool in_range = row < (unsigned)a.rows;
    return {row_coord_of(a, row), lane, in_range, in_range && 8 * lane < a.columns};
}

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

#define VECTORS(type, number, parts)                                                                                   \
    extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)                                            \
        attune_merge_##type##_##parts(const __grid_constant__ attune_cuda_merge a)                                     \
    {                                                                                                                  \
        merge_vectors<number, number, parts>(a);                                                                       \
    }                                                                                                                  \
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
VECTORS(any, 0, 8)

#define ROUNDED(type, number)                                                                                          \
    extern "C" __global__ void __launch_bounds__(ATTUNE_CUDA_MERGE_THREADS)                                            \
        attune_merge_##type##_of_f32_2(const __grid_constant__ attune_cuda_merge a)                                    \
    {                                                                                                                  \
        merge_vectors<3, number, 2>(a);                                                                                \
    }

ROUNDED(f16, 1)
ROUNDED(bf16, 2)

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
