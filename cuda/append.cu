/* SPDX-License-Identifier: MIT */
/*
 * New rows of a cache: normalised, rotated, rounded or quantised, and written where their keys are. The warps of a
 * row's CTAs share its heads; a head's row is in shared memory in float32, of which a lane has every 32nd column.
 */
#include "append.h"
#include "cached.cuh"
#include "serving_sequences.cuh"

constexpr int APPEND_THREADS = ATTUNE_CUDA_APPEND_THREADS, APPEND_WARPS = APPEND_THREADS / 32;
constexpr int COLUMNS = HEAD_DIM > HEAD_DIM_V ? HEAD_DIM : HEAD_DIM_V;
constexpr u32 MAGNITUDE = 0x7fffffffu;

/* Of a CTA: where its row is in the tensors, its position in the rotation, and its key in the cache. */
struct row_place {
    i64 page, key;
    int batch, row, position;
    bool there, has_key; /* the row is of a sequence, and its position in the tables; the key has a place */
};

/* ----------------------------------------------------------------------------------------------------------- places */

__device__ __forceinline__ int least_of_warp(int x)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        x = min(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

/* The first sequence that has the row; a.batch if none has. */
__device__ __forceinline__ int find_sequence(const attune_cuda_append &a, const attune_cuda_serving &s, int batch,
                                             int row, int *of_warps)
{
    int live = s.count.address ? min(integer_at(s.count, 0), a.batch) : a.batch;
    if (!s.q_start.address)
        return batch < live ? batch : a.batch;
    int found = a.batch;
#pragma unroll 1
    for (i64 b = (int)threadIdx.x; b < live && found == a.batch; b += APPEND_THREADS) {
        sequence_rows of = rows_of(a, s, (int)b, live);
        if (row >= of.first && row - of.first < of.count)
            found = (int)b;
    }
    found = least_of_warp(found);
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = found;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < APPEND_WARPS; w++)
        found = min(found, of_warps[w]);
    return found;
}

__device__ __forceinline__ void find_slot(row_place &p, const attune_cuda_append &a)
{
    i64 slot = ((const i64 *)a.slots.address)[p.batch * a.slots.stride[0] + p.row * a.slots.stride[1]];
    p.page = slot < 0 ? 0 : slot / a.page;
    p.key = slot - p.page * a.page;
    p.has_key = slot >= 0 && p.page < a.pool;
}

/* The key of the row's place in its sequence. */
__device__ __forceinline__ void find_key(row_place &p, const tile &t, const attune_cuda_serving &s, int kv)
{
    p.page = t.b;
    p.key = kv;
    p.has_key = kv >= 0;
    if (!s.pages.address || kv < 0)
        return;
    int entry = kv / s.page, page = entry < t.entries ? t.table[entry * t.entry_stride] : -1;
    p.page = page;
    p.key = kv - entry * s.page;
    p.has_key = page >= 0 && page < s.pool;
}

__device__ __forceinline__ row_place find_place(const attune_cuda_append &a, const attune_cuda_serving &s,
                                                int *of_warps)
{
    row_place p = {};
    int index = (int)blockIdx.x / a.ctas, place = 0;
    p.batch = index / a.rows;
    p.row = index - p.batch * a.rows;
    p.there = true;
    tile t = {};
    if (!a.whole) {
        t.b = find_sequence(a, s, p.batch, p.row, of_warps);
        p.there = t.b < a.batch;
        if (!p.there)
            return p;
        sequence_rows of = rows_of(a, s, t.b, a.batch);
        t.row0 = of.first;
        t.q_len = of.count;
        find_keys(t, a, s);
        place = t.position + p.row - of.first;
    }
    if (a.slots.address)
        find_slot(p, a);
    else
        find_key(p, t, s, place);
    if (a.positions.address)
        place = ((const int *)a.positions.address)[p.batch * a.positions.stride[0] + p.row * a.positions.stride[1]];
    p.position = place;
    p.there = !a.cosine.address || (place >= 0 && place < a.table_positions);
    return p;
}

/* ----------------------------------------------------------------------------------------------------------- values */

__device__ __forceinline__ float value_at(u64 address, i64 i, bool is_f32)
{
    if (is_f32 || config::Q_DTYPE == ATTUNE_CUDA_F32)
        return ((const float *)address)[i];
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): without V a row has no heads of V */
    return unpack<config::Q_DTYPE>(((const unsigned short *)address)[i]);
}

template <int COUNT>
__device__ __forceinline__ void load_row(float *row, const attune_cuda_view &v, const row_place &p, int h, int lane)
{
    i64 first = p.batch * v.batch + h * v.head + p.row * v.row;
#pragma unroll 4
    for (int c = lane; c < COUNT; c += 32)
        row[c] = value_at(v.address, first + c, false);
}

/* The root mean square of the first columns becomes 1, times the weights. */
__device__ __forceinline__ void normalise(float *row, const attune_cuda_array &weights, int columns, bool is_f32,
                                          float epsilon, int lane)
{
    float sum = 0.0f;
    for (int c = lane; c < columns; c += 32)
        sum = __fmaf_rn(row[c], row[c], sum);
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    float factor = 1.0f / sqrtf(sum / (float)columns + epsilon);
    for (int c = lane; c < columns; c += 32)
        row[c] *= factor * value_at(weights.address, c * weights.stride[0], is_f32);
}

__device__ __forceinline__ void rotate(float *row, const attune_cuda_append &a, int position, int lane)
{
    const float *cosine = (const float *)a.cosine.address + position * a.cosine.stride[0],
                *sine = (const float *)a.sine.address + position * a.sine.stride[0];
    row += a.rotary_first;
    __syncwarp();
    for (int i = lane; i < a.pairs; i += 32) {
        int first = a.interleaved ? 2 * i : i, second = first + (a.interleaved ? 1 : a.pairs);
        float c = cosine[i * a.cosine.stride[1]], s = sine[i * a.sine.stride[1]], x = row[first], y = row[second];
        row[first] = x * c - y * s;
        row[second] = x * s + y * c;
    }
    __syncwarp();
}

/* ----------------------------------------------------------------------------------------------- codes (base/quant.c)
 */

template <int TYPE>
constexpr float LARGEST_CODE = TYPE == ATTUNE_CUDA_I8       ? 127.0f
                               : TYPE == ATTUNE_CUDA_F8E4M3 ? 448.0f
                                                            : 57344.0f;

/* The nearest, ties to even, and the largest of finite value past it. */
template <int TYPE> __device__ __forceinline__ u32 f8_of(float x)
{
    constexpr u32 BITS = TYPE == ATTUNE_CUDA_F8E4M3 ? 3 : 2, BIAS = TYPE == ATTUNE_CUDA_F8E4M3 ? 7 : 15;
    constexpr u32 DROPPED = 23 - BITS;
    u32 sign = __float_as_uint(x) >> 24 & 0x80u, magnitude = __float_as_uint(x) & MAGNITUDE;
    if (magnitude > 0x7f800000u)
        return sign | 0x7fu;
    if (magnitude >= __float_as_uint(LARGEST_CODE<TYPE>))
        return sign | (TYPE == ATTUNE_CUDA_F8E4M3 ? 0x7eu : 0x7bu);
    /* Below the least normal number: multiples of its last place. */
    if (magnitude < (128 - BIAS) << 23)
        return sign | (u32)(int)rintf(__uint_as_float(magnitude) * (TYPE == ATTUNE_CUDA_F8E4M3 ? 512.0f : 65536.0f));
    u32 rounded = (magnitude + (1u << (DROPPED - 1)) - 1 + (magnitude >> DROPPED & 1)) >> DROPPED;
    return sign | (rounded - ((127 - BIAS) << BITS));
}

template <int TYPE> __device__ __forceinline__ u32 code_of(float value, float factor)
{
    float x = factor == 0.0f ? 0.0f : value / factor;
    if constexpr (TYPE == ATTUNE_CUDA_I8)
        return x == x ? (u32)(int)rintf(fminf(fmaxf(x, -127.0f), 127.0f)) & 0xffu : 0;
    else
        return f8_of<TYPE>(x);
}

/* The largest magnitude of the lanes' values, as bits: a NaN is the largest. */
__device__ __forceinline__ u32 largest_of_warp(u32 magnitude)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        magnitude = max(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, i));
    return magnitude;
}

/* A block of 32, of which a lane has an element. */
template <int TYPE> __device__ __forceinline__ void store_block(byte *to, float x, int lane)
{
    u32 magnitude = __float_as_uint(x) & MAGNITUDE, most = largest_of_warp(magnitude);
    /* The first of the furthest from 0; that of zeros is +0. */
    int first = __ffs((int)__ballot_sync(0xffffffffu, magnitude == most)) - 1;
    float furthest = __shfl_sync(0xffffffffu, x, first);
    bool finite = most < 0x7f800000u;
    furthest = most ? furthest : 0.0f;
    float factor = TYPE == ATTUNE_CUDA_Q8_0 ? clear_sign(furthest) / 127.0f : furthest / -8.0f;
    /* A factor so small that its inverse is infinite is 0 in f16. */
    float inverse = 1.0f / factor, scaled = x * (fabsf(inverse) < ATTUNE_INF ? inverse : 0.0f);
    if (lane == 0)
        *(unsigned short *)to = (unsigned short)(finite ? pack_f16(factor, 0.0f) : 0x7e00u);
    if constexpr (TYPE == ATTUNE_CUDA_Q8_0)
        to[2 + lane] = (byte)(finite ? (int)roundf(scaled) : 0);
    else {
        int code = finite ? min((int)(scaled + 8.5f), 15) : 0, high = __shfl_sync(0xffffffffu, code, lane % 16 + 16);
        if (lane < 16)
            to[2 + lane] = (byte)(code | high << 4);
    }
}

/* A row of K or V into the cache, or of Q. of_row: the factor is the row's, and written too. */
template <int TYPE, int COUNT>
__device__ __forceinline__ void store_row(byte *to, const float *row, float *factor_at, bool of_row, int lane)
{
    if constexpr (HAS_BLOCKS<TYPE>) {
#pragma unroll 2
        for (int i = 0; i < COUNT / 32; i++)
            store_block<TYPE>(to + i * TYPE_BYTES<TYPE>, row[32 * i + lane], lane);
    } else if constexpr (HAS_FACTORS<TYPE>) {
        float factor = factor_at && !of_row ? *factor_at : 1.0f;
        if (of_row) {
            u32 most = 0;
            for (int c = lane; c < COUNT; c += 32)
                most = max(most, __float_as_uint(row[c]) & MAGNITUDE);
            factor = __uint_as_float(largest_of_warp(most)) / LARGEST_CODE<TYPE>;
            if (lane == 0)
                *factor_at = factor;
        }
        /* The divisions of several would spill. */
#pragma unroll 1
        for (int c = lane; c < COUNT; c += 32)
            to[c] = (byte)code_of<TYPE>(row[c], factor);
    } else {
#pragma unroll 4
        for (int c = lane; c < COUNT; c += 32)
            if constexpr (TYPE == ATTUNE_CUDA_F32)
                ((float *)to)[c] = row[c];
            else
                ((unsigned short *)to)[c] = (unsigned short)pack<TYPE>(row[c], 0.0f);
    }
}

/* ------------------------------------------------------------------------------------------------------------- rows */

template <int TYPE> __device__ __forceinline__ byte *cached_row(const attune_cuda_view &v, const row_place &p, int h)
{
    return (byte *)v.address + (p.page * v.batch + h * v.head + p.key * v.row) * TYPE_BYTES<TYPE>;
}

__device__ __forceinline__ float *factor_at(const attune_cuda_array &scale, const row_place &p, int h)
{
    if (!scale.address)
        return nullptr;
    return (float *)scale.address + (p.page * scale.stride[0] + h * scale.stride[1] + p.key * scale.stride[2]);
}

/* Rows of heads: those of q, of k and of v, one after another. */
__device__ __forceinline__ void append_head(const attune_cuda_append &a, const attune_cuda_serving &s,
                                            const row_place &p, float *row, int h, int lane)
{
    int queries = a.q.address ? a.heads : 0;
    bool is_query = h < queries;
    h -= is_query ? 0 : queries;
    if (!is_query && h >= a.kv_heads) {
        h -= a.kv_heads;
        load_row<HEAD_DIM_V>(row, a.v, p, h, lane);
        store_row<V_TYPE, HEAD_DIM_V>(cached_row<V_TYPE>(a.cache_v, p, h), row, factor_at(s.v_scale, p, h),
                                      a.v_scale_rows, lane);
        return;
    }
    const attune_cuda_array &norm = is_query ? a.q_norm : a.k_norm;
    load_row<HEAD_DIM>(row, is_query ? a.q : a.k, p, h, lane);
    if (norm.address)
        normalise(row, norm, is_query ? a.q_norm_columns : a.k_norm_columns, is_query ? a.q_norm_f32 : a.k_norm_f32,
                  a.epsilon, lane);
    if (a.cosine.address)
        rotate(row, a, p.position, lane);
    if (is_query) {
        i64 first = p.batch * a.q_out.batch + h * a.q_out.head + p.row * a.q_out.row;
        store_row<config::Q_DTYPE, HEAD_DIM>((byte *)a.q_out.address + first * TYPE_BYTES<config::Q_DTYPE>, row,
                                             nullptr, false, lane);
    } else
        store_row<K_TYPE, HEAD_DIM>(cached_row<K_TYPE>(a.cache_k, p, h), row, factor_at(s.k_scale, p, h),
                                    a.k_scale_rows, lane);
}

/* Without a number of CTAs ptxas takes 56 registers on sm_86, and 8 bytes of the stack where k is q8_0. */
extern "C" __global__ void __launch_bounds__(APPEND_THREADS, 8)
    attune_append(const __grid_constant__ attune_cuda_append a, const __grid_constant__ attune_cuda_serving s)
{
    extern __shared__ __align__(16) float memory[];
    static_assert(planned(attune_cuda_append_shared(HEAD_DIM, HEAD_DIM_V)));
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    row_place p = find_place(a, s, (int *)(memory + APPEND_WARPS * COLUMNS));
    if (!p.there)
        return;
    int queries = a.q.address ? a.heads : 0, keys = a.kv_heads * (a.v.address ? 2 : 1);
    int all = queries + (p.has_key ? keys : 0);
#pragma unroll 1
    for (int h = (int)blockIdx.x % a.ctas * APPEND_WARPS + warp; h < all; h += a.ctas * APPEND_WARPS)
        append_head(a, s, p, memory + warp * COLUMNS, h, lane);
}
