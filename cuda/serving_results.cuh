/* SPDX-License-Identifier: MIT */
/* The results of a tile over a cache: rows of O and LSE, or partial results and their sums. */
#ifndef ATTUNE_CUDA_SERVING_RESULTS_CUH
#define ATTUNE_CUDA_SERVING_RESULTS_CUH

#include "serving_tile.cuh"

/* Column d of O of a row, from the pairs that are allowed alone (non_finite.cuh). */
__device__ __forceinline__ recomputed_element recompute(const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                                        const tile &t, const tile_coord &at, int d)
{
    const q_element *q =
        (const q_element *)a.q.address + t.batch * a.q.batch + at.h * a.q.head + (t.row0 + at.q) * a.q.row;
    const byte *k = cached_head<K_TYPE>(a.k, t), *v = cached_head<V_TYPE>(a.v, t);
    float factor = fold_factor(a.scale);
    recomputed_element r = {0.0f, -ATTUNE_INF, 0.0f};
    range seen = row_range(a, t, at);
#pragma unroll 1
    for (int kv = seen.low; kv < seen.high; kv++) {
        int2 key = key_of(t, s, kv);
        if (key.x < 0 || !allows(a, s, t, at, seen, kv))
            continue;
        float x = 0.0f, factor_k = factor_of<K_TYPE>(s.k_scale, t, key),
              factor_v = factor_of<V_TYPE>(s.v_scale, t, key);
        const byte *k_row = k + row_at(a.k, key) * TYPE_BYTES<K_TYPE>,
                   *v_row = v + row_at(a.v, key) * TYPE_BYTES<V_TYPE>;
#pragma unroll 1
        for (int i = 0; i < HEAD_DIM; i++)
            x = __fmaf_rn(widen_q(q[i]), load_value<K_TYPE>(k_row, i, factor_k), x);
        x = score_of(a, t, at, kv, x);
        float row_max = fmaxf(r.m, x), base = row_max == -ATTUNE_INF ? 0.0f : row_max;
        float alpha = exp2_fast((r.m - base) * factor), weight = exp2_fast((x - base) * factor);
        r.o = __fmaf_rn(weight, load_value<V_TYPE>(v_row, d, factor_v), r.o * alpha);
        r.l = r.l * alpha + weight;
        r.m = row_max;
        if (r.o != r.o)
            break; /* it remains NaN */
    }
    return r;
}

/* Stores an element of O, and LSE. */
__device__ __forceinline__ void finish(const attune_cuda_arguments &a, const attune_cuda_serving &s, const tile &t,
                                       const tile_coord &at, int d, recomputed_element x, float factor)
{
    if ((HAVE_MASK || config::TREE) && !finite(x.o) && finite(x.l)) {
        recomputed_element again = recompute(a, s, t, at, d);
        /* Scalar products round differently than the tensor cores: divide by the sum of the recomputed weights, and
         * scale by the one that the row is normalised with. */
        x.o = again.l == 0.0f ? again.o : again.o * (x.l / again.l);
    }
    tile_coord to = {t.batch, at.h, at.h_kv, t.row0 + at.q};
    float row_max = x.m * (factor * ATTUNE_LN2);
    row_total total = row_total_of(a, at.h, row_max, x.l);
    store_column(a, to, d, x.o * total.weight, total.sum);
    if (!d)
        store_state(a, to, total.most, total.sum, row_max, x.l);
}

/* The same of four columns. */
__device__ __forceinline__ void finish_four(const attune_cuda_arguments &a, const attune_cuda_serving &s, const tile &t,
                                            const tile_coord &at, int d, const four_columns &x, float factor)
{
    if ((HAVE_MASK || config::TREE) && finite(x.l) &&
        !(finite(x.o.x) && finite(x.o.y) && finite(x.o.z) && finite(x.o.w))) {
#pragma unroll 1
        for (int i = 0; i < 4; i++)
            finish(a, s, t, at, d + i, {i == 0 ? x.o.x : i == 1 ? x.o.y : i == 2 ? x.o.z : x.o.w, x.m, x.l}, factor);
        return;
    }
    tile_coord to = {t.batch, at.h, at.h_kv, t.row0 + at.q};
    float row_max = x.m * (factor * ATTUNE_LN2);
    row_total total = row_total_of(a, at.h, row_max, x.l);
    bool none = total.sum == 0.0f, kept = !none || a.is_partial;
    float inverse = none ? 1.0f : 1.0f / total.sum;
    o_element *o = (o_element *)a.o.address + to.b * a.o.batch + to.h * a.o.head + to.q * a.o.row + d;
    bool paired = view_paired<o_element>(a.o);
    store_outputs(o, kept ? x.o.x * total.weight * inverse : 0.0f, kept ? x.o.y * total.weight * inverse : 0.0f,
                  paired);
    store_outputs(o + 2, kept ? x.o.z * total.weight * inverse : 0.0f, kept ? x.o.w * total.weight * inverse : 0.0f,
                  paired);
    if (!d)
        store_state(a, to, total.most, total.sum, row_max, x.l);
}

/* The same for tiles of many elements, of whose parts a CTA adds some millions of bytes. */
template <typename TEAM>
__device__ __forceinline__ void store_parts_together(const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                                     const tile &t, float factor)
{
    constexpr int COUNT = 4, STEP = TEAM::COUNT * 4;
    static_assert(BLOCK_M * HEAD_DIM_V % (COUNT * STEP) == 0, "threads have as many elements each");
#pragma unroll 1
    for (int i = TEAM::thread() * 4; i < BLOCK_M * HEAD_DIM_V; i += COUNT * STEP) {
        int row[COUNT], d[COUNT];
        four_columns sums[COUNT];
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            row[j] = (i + j * STEP) / HEAD_DIM_V;
            d[j] = i + j * STEP - row[j] * HEAD_DIM_V;
        }
        if (t.row + row[0] >= t.rows)
            break;
        add_parts_together(sums, s, t, row, d, factor);
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (t.row + row[j] < t.rows)
                finish_four(a, s, t, row_coord(a, t, t.row + row[j]), d[j], sums[j], factor);
    }
}

/* Stores the sums of the parts. */
template <typename TEAM = whole_cta>
__device__ __forceinline__ void store_parts(const attune_cuda_arguments &a, const attune_cuda_serving &s, const tile &t,
                                            float factor)
{
#pragma unroll 1
    for (int i = TEAM::thread() * 4; i < BLOCK_M * HEAD_DIM_V; i += TEAM::COUNT * 4) {
        int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
        if (t.row + row >= t.rows)
            break;
        tile_coord at = row_coord(a, t, t.row + row);
        four_columns sum = FIXED ? add_fixed_parts(a, s, t, row, d, factor) : add_parts(s, t, row, d, factor);
        finish(a, s, t, at, d, {sum.o.x, sum.m, sum.l}, factor);
        finish(a, s, t, at, d + 1, {sum.o.y, sum.m, sum.l}, factor);
        finish(a, s, t, at, d + 2, {sum.o.z, sum.m, sum.l}, factor);
        finish(a, s, t, at, d + 3, {sum.o.w, sum.m, sum.l}, factor);
    }
}

#endif
