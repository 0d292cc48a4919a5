/* SPDX-License-Identifier: MIT */
/* dK and dV of the backward pass for sm_100a, from tensor memory to global memory: a thread has a key's row. */
#ifndef ATTUNE_CUDA_DK_DV_BACKWARD_SM100_CUH
#define ATTUNE_CUDA_DK_DV_BACKWARD_SM100_CUH

#include "config_backward_sm100.cuh" /* before the headers that read it */

#include "layout_backward_sm90.cuh"
#include "rows_sm100.cuh"

/* The CTA's rank in its pair. */
__device__ __forceinline__ int rank_in_pair()
{
    return sm100::PAIRED ? (int)cluster_rank() : 0;
}

/* The columns of dK or dV that a warp group stores. */
struct column_range {
    int begin, end;
};

/* Of dK, or of dV, if they are of separate items, each warp group has a half. */
template <int COLUMNS> __device__ __forceinline__ column_range columns_of_group(int group)
{
    constexpr int HALF = round_up(round_up(COLUMNS, 16) / 2, 16);
    return sm100::ITEMS == 1 ? column_range{0, COLUMNS} : group ? column_range{HALF, COLUMNS} : column_range{0, HALF};
}

/* 9: stores a key's row of dK or dV. none: no query attends to the tile of keys. */
template <int COLUMNS>
__device__ __forceinline__ void store_sums(const attune_cuda_view &v, u32 from, column_range columns, int b, int h,
                                           int kv, int rows, float factor, bool none, bool &finite)
{
    o_element *to = (o_element *)v.address + b * v.batch + h * v.head + kv * v.row;
    bool vectors = view_aligned<o_element>(v);
    float nan_if_non_finite = 0.0f;
#pragma unroll 1
    for (int column = columns.begin; column < columns.end; column += 16) {
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i] = 0.0f;
        if (!none)
            load_columns(x, from + (u32)column);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            nan_if_non_finite = __fmaf_rn(x[i], 0.0f, nan_if_non_finite);
            x[i] *= factor;
        }
        if (kv < rows)
            store_columns<COLUMNS>(to, x, column, vectors);
        __syncwarp();
    }
    finite = kv >= rows || nan_if_non_finite == 0.0f;
}

/* 9: the first warp group stores dK, the second one dV; or both those of the item. */
__device__ __forceinline__ void store_dk_dv(const attune_cuda_arguments &a, const attune_cuda_backward &g, u32 lanes,
                                            const tile_desc &end, int group, int key, bool none)
{
    key_tile at = key_tile_of(a, g, end.q);
    at.kv += rank_in_pair() * sm100::CTA_N;
    bool finite, values = sm100::ITEMS == 1 ? group : end.flags & TILE_VALUES;
    if (!values)
        store_sums<HEAD_DIM>(g.d_k, lanes + sm100::DK_COLUMN, columns_of_group<HEAD_DIM>(group), at.b, at.h_kv,
                             at.kv + key, a.kv_len, a.scale, none, finite);
    else
        store_sums<HEAD_DIM_V>(g.d_v, lanes + sm100::DV_COLUMN, columns_of_group<HEAD_DIM_V>(group), at.b, at.h_kv,
                               at.kv + key, a.kv_len, 1.0f, none, finite);
    if (!finite)
        *(volatile int *)g.redo = 1;
}

#endif
