/* SPDX-License-Identifier: MIT */
/* The results of a tile of rows (stage 7) of serving_sm90.cu: O and LSE, or a part's. */
#ifndef ATTUNE_CUDA_RESULTS_SERVING_SM90_CUH
#define ATTUNE_CUDA_RESULTS_SERVING_SM90_CUH

#include "serving_results.cuh"
#include "stages_serving_sm90.cuh"

/* 7, where a forbidden pair may have made elements of a row NaN: those that were stored as NaN or infinities are
 * computed again. bad: whether the thread's row may have some; sum: of its weights; scale: what O is multiplied with.
 */
__device__ __forceinline__ void store_again(const attune_cuda_arguments &a, const attune_cuda_serving &s, const tile &t,
                                            int row, u32 bad, float sum, float scale)
{
    if (!__any_sync(0xffffffffu, bad & 15))
        return;
    __syncwarp(); /* other threads of the row stored them */
    tile_coord at = row_coord(a, t, row);
    o_element *o = (o_element *)a.o.address + t.batch * a.o.batch + at.h * a.o.head + (t.row0 + at.q) * a.o.row;
#pragma unroll 1
    for (int d = first_column() + thread_index_remat() % 4; (bad & 15) && d < first_column() + sm90::COLUMNS; d += 4) {
        if (finite(widen<config::O_DTYPE>(((volatile o_element *)o)[d])))
            continue;
        recomputed_element again = recompute(a, s, t, at, d);
        store_output(o + d, (again.l == 0.0f ? again.o : again.o * (sum / again.l)) * scale);
    }
}

/* 7: store O and LSE. */
__device__ __forceinline__ void store(float (&o)[sm90::WIDTH_DV / 2], const float (&row_max)[2],
                                      const float (&row_sum)[2], const attune_cuda_arguments &a,
                                      const attune_cuda_serving &s, const tile &t, float factor)
{
    int lane = thread_index_remat() % 32, row = thread_row(t);
    bool paired = view_paired<o_element>(a.o), vectors = O_FLOAT32 ? paired : view_aligned<o_element>(a.o);
    constexpr int TOGETHER = O_FLOAT32 ? 1 : 4, FRAGMENTS = sm90::COLUMNS / 8; /* those that are stored at once */
    constexpr int AT_ONCE = FRAGMENTS / TOGETHER * TOGETHER;
    u32 bad = 0;
    float sum[2], scale[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bool valid = row + half * 8 < t.rows;
        sum[half] = row_sum[half];
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        tile_coord at = row_coord(a, t, row + half * 8), to = {t.batch, at.h, at.h_kv, t.row0 + at.q};
        row_total total = row_total_of(a, at.h, row_max[half] * (factor * ATTUNE_LN2), sum[half]);
        bool kept = total.sum != 0.0f || a.is_partial;
        scale[half] = total.sum == 0.0f ? total.weight : total.weight / total.sum;
        if (HAVE_MASK || config::TREE) {
            /* The sum is NaN if one of them is not finite. */
            float products = 0.0f;
#pragma unroll
            for (int d = 0; d < sm90::WIDTH_DV / 8; d++)
                products += o[d * 4 + half * 2] * 0.0f + o[d * 4 + half * 2 + 1] * 0.0f;
            u32 lanes = __ballot_sync(0xffffffffu, products != 0.0f && valid && finite(sum[half]));
            bad |= (lanes >> (lane & ~3) & 15) << 4 * half;
        }
#pragma unroll
        for (int i = 0; i < sm90::WIDTH_DV / 4; i++) { /* not by the factor 0: O may be NaN */
            float &x = o[i / 2 * 4 + half * 2 + i % 2];
            x = kept ? x * scale[half] : 0.0f;
        }
        o_element *base =
            (o_element *)a.o.address + to.b * a.o.batch + to.h * a.o.head + to.q * a.o.row + first_column();
#pragma unroll
        for (int d = 0; d < AT_ONCE; d += TOGETHER)
            if constexpr (O_FLOAT32) {
                if (valid && vectors)
                    store_outputs(base + d * 8 + lane % 4 * 2, o[d * 4 + half * 2], o[d * 4 + half * 2 + 1], true);
            } else {
                u32 w[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w[i] = pack<config::O_DTYPE>(o[(d + i) * 4 + half * 2], o[(d + i) * 4 + half * 2 + 1]);
                transpose_4x4(w);
                if (valid && vectors)
                    *(uint4 *)(base + (d + lane % 4) * 8) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        if (!vectors || FRAGMENTS % TOGETHER)
        /* Seldom needed, so short: O rotates in a loop that is not unrolled. */
#pragma unroll 1
            for (int d = 0; d < sm90::WIDTH_DV / 8; d++) {
                if (valid && d < FRAGMENTS && (!vectors || d >= AT_ONCE))
                    store_outputs(base + d * 8 + lane % 4 * 2, o[half * 2], o[half * 2 + 1], paired);
                float first[4] = {o[0], o[1], o[2], o[3]};
#pragma unroll
                for (int i = 0; i < sm90::WIDTH_DV / 2; i++)
                    o[i] = i + 4 < sm90::WIDTH_DV / 2 ? o[i + 4] : first[i + 4 - sm90::WIDTH_DV / 2];
            }
        if (valid && lane % 4 == 0 && first_column() == 0)
            store_state(a, to, total.most, total.sum, row_max[half] * (factor * ATTUNE_LN2), sum[half]);
    }
    if (HAVE_MASK || config::TREE)
#pragma unroll 1
        for (int half = 0; half < 2; half++)
            store_again(a, s, t, thread_row(t) + half * 8, bad >> 4 * half, half ? sum[1] : sum[0],
                        half ? scale[1] : scale[0]);
}

/* 7, of a part of the keys. */
__device__ __forceinline__ void store_part(const float (&o)[sm90::WIDTH_DV / 2], const float (&row_max)[2],
                                           const float (&row_sum)[2], const attune_cuda_serving &s, const tile &t)
{
    int column = thread_index_remat() % 4 * 2, row = thread_row(t);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = row_sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int local = row - t.row + half * 8;
        if (row + half * 8 >= t.rows)
            continue;
        float *to = part_at(s, t, t.part);
#pragma unroll
        for (int d = 0; d < sm90::COLUMNS / 8; d++)
            *(float2 *)(to + local * HEAD_DIM_V + first_column() + d * 8 + column) =
                make_float2(o[d * 4 + half * 2], o[d * 4 + half * 2 + 1]);
        if (column == 0 && first_column() == 0)
            *(float2 *)(to + PART_ML + local * 2) = make_float2(row_max[half], sum);
    }
}

#endif
