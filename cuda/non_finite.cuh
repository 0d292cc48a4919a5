/* SPDX-License-Identifier: MIT */
/*
 * The non-finite slow path of forward and decode. The tensor cores multiply P = 0 of a forbidden pair with its V, and 0
 * times an infinity or NaN is NaN, but a forbidden pair must not affect the result. An element of O that is not finite
 * although its row's sum is finite is therefore recomputed here with scalar code, from the allowed pairs alone.
 */
#ifndef ATTUNE_CUDA_NON_FINITE_CUH
#define ATTUNE_CUDA_NON_FINITE_CUH

#include "sinks.cuh"

template <int DTYPE = config::DTYPE> __device__ __forceinline__ float widen(typename storage<DTYPE>::type x)
{
    if constexpr (DTYPE == ATTUNE_CUDA_F32)
        return x;
    else
        return unpack<DTYPE>(x);
}

/* An element of Q, rounded as the matrix products use it. */
__device__ __forceinline__ float widen_q(q_element x)
{
    float value = widen<config::Q_DTYPE>(x);
    if constexpr (config::Q_DTYPE != config::DTYPE && config::DTYPE != ATTUNE_CUDA_F32 && !CODES)
        value = unpack(pack(value, 0.0f));
    return value;
}

/* Stores value / sum to column d of row p.q. */
__device__ __forceinline__ void store_column(const attune_cuda_arguments &a, const tile_coord &p, int d, float value,
                                             float sum)
{
    value = sum != 0.0f ? value * (1.0f / sum) : a.is_partial ? value : 0.0f;
    store_output((o_element *)a.o.address + p.b * a.o.batch + p.h * a.o.head + p.q * a.o.row + d, value);
}

/* LSE is that of a maximum and a sum, which may have the sink; row_max and row_sum do not. In natural units. */
__device__ __forceinline__ void store_state(const attune_cuda_arguments &a, const tile_coord &p, float most, float sum,
                                            float row_max, float row_sum)
{
    if (a.lse.address)
        ((float *)a.lse.address)[p.b * a.lse.batch + p.h * a.lse.head + p.q * a.lse.row] =
            sum == 0.0f ? -ATTUNE_INF : most + logf(sum);
    if (a.row_max.address)
        ((float *)a.row_max.address)[p.b * a.row_max.batch + p.h * a.row_max.head + p.q * a.row_max.row] =
            row_sum == 0.0f ? -ATTUNE_INF : nan_or(row_max, row_sum);
}

/* Stores value / sum to column d of row p.q; the thread of column 0 also stores the row's LSE and maximum. */
__device__ __forceinline__ void store_element(const attune_cuda_arguments &a, const tile_coord &p, int d, float value,
                                              float row_max, float sum, float factor)
{
    row_max *= factor * ATTUNE_LN2;
    row_total total = row_total_of(a, p.h, row_max, sum);
    store_column(a, p, d, value * total.weight, total.sum);
    if (!d)
        store_state(a, p, total.most, total.sum, row_max, sum);
}

/* Neither NaN nor infinite. */
__device__ __forceinline__ bool finite(float x)
{
    return fabsf(x) < ATTUNE_INF;
}

/* Whether the mask allows key kv for row p.q, which is a row and not a tile's first. */
__device__ __forceinline__ bool pair_allowed(const attune_cuda_arguments &a, const tile_coord &p, int kv)
{
    if constexpr (config::HAVE_MASK_RANGE) {
        int low, high;
        attune_mask_range(p.b + a.b0, p.h + a.h0, p.q + a.q0, (p.h + a.h0) / a.mask_group, a.mask_q_len, a.mask_kv_len,
                          &low, &high, a.mask_symbols);
        return kv >= low && kv < high;
    } else if constexpr (config::HAVE_MASK_PAIRS)
        return attune_mask(p.b + a.b0, p.h + a.h0, p.q + a.q0, kv, (p.h + a.h0) / a.mask_group, a.mask_q_len,
                           a.mask_kv_len, 0.0f, a.mask_symbols);
    else
        return true;
}

struct recomputed_element {
    float o, m, l; /* o is not yet divided by l */
};

/* Column d of row p.q of O, over the tiles of keys of w that begin before `end`. */
__device__ __forceinline__ recomputed_element recompute_element(const attune_cuda_arguments &a, const tile_coord &p,
                                                                block_iterator w, int end, int d)
{
    i64 b = p.b, h = p.h, h_kv = p.h_kv;
    const q_element *q = (const q_element *)a.q.address + b * a.q.batch + h * a.q.head + p.q * a.q.row;
    const element *k = (const element *)a.k.address + b * a.k.batch + h_kv * a.k.head;
    const element *v = (const element *)a.v.address + b * a.v.batch + h_kv * a.v.head + d;
    float factor = fold_factor(a.scale);
    recomputed_element r = {0.0f, -ATTUNE_INF, 0.0f};
#pragma unroll 1
    for (keys t = block_iterator_next(w, a); t.kv >= 0 && t.kv < end; t = block_iterator_next(w, a))
#pragma unroll 1
        for (int kv = t.kv; kv < min(t.kv + BLOCK_N, end); kv++) {
            if (!t.full && !pair_allowed(a, p, kv))
                continue;
            float s = 0.0f;
#pragma unroll 1
            for (int i = 0; i < HEAD_DIM; i++)
                s = __fmaf_rn(widen_q(q[i]), widen(k[kv * a.k.row + i]), s);
            if constexpr (HAVE_SCORE)
                s = attune_score(p.b, p.h, p.q, kv, p.h_kv, a.q_len, a.kv_len, s * a.scale, a.score_symbols);
            else
                s *= a.scale > 0.0f ? 1.0f : fold_sign(a.scale);
            float row_max = fmaxf(r.m, s), base = row_max == -ATTUNE_INF ? 0.0f : row_max;
            float alpha = exp2_fast((r.m - base) * factor), x = exp2_fast((s - base) * factor);
            r.o = __fmaf_rn(x, widen(v[kv * a.v.row]), r.o * alpha);
            r.l = r.l * alpha + x;
            r.m = row_max;
        }
    return r;
}

#endif
