/* SPDX-License-Identifier: MIT */
/* Shared by the vector kernels of merging: a lane has 8 columns of a row, whose tensors have the common, aligned
 * layout. */
#ifndef ATTUNE_CUDA_MERGE_VECTORS_CUH
#define ATTUNE_CUDA_MERGE_VECTORS_CUH

#include "merge.cuh"

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

#endif
