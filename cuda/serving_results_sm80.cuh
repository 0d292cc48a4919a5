/* SPDX-License-Identifier: MIT */
/* The results of the warps of serving_sm80.cu, which are merged in shared memory. */
#ifndef ATTUNE_CUDA_SERVING_RESULTS_SM80_CUH
#define ATTUNE_CUDA_SERVING_RESULTS_SM80_CUH

#include "serving_results.cuh"
#include "serving_warps_sm80.cuh"

/* 7: the warps' results replace the operands in shared memory: O[O_GROUPS][BLOCK_M][SERVED_DV], then m and l. rows: of
 * the tile; with config::PARTS && TAKEN others are not read, and their stores would wait for the same banks. */
__device__ __forceinline__ void save_groups(float *o_groups, float *ml_groups, const float (&o)[1][DV_TILES][4],
                                            const float (&m)[1][2], const float (&l)[1][2], int rows)
{
    int lane = (int)threadIdx.x % 32;
    int group = (int)threadIdx.x / (32 * ROW_GROUPS), row = warp_row() + lane / 4;
    int to = SHARED_P ? row : group * BLOCK_M + row, column = (SHARED_P ? group * DV_TILES * 8 : 0) + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = l[0][half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (config::PARTS && TAKEN && row + half * 8 >= rows)
            continue;
#pragma unroll
        for (int d = 0; d < DV_TILES; d++)
            *(float2 *)&o_groups[(to + half * 8) * SERVED_DV + d * 8 + column] =
                make_float2(o[0][d][half * 2], o[0][d][half * 2 + 1]);
        if (lane % 4 == 0 && group < KEY_GROUPS)
            *(float2 *)&ml_groups[(group * BLOCK_M + row + half * 8) * 2] = make_float2(m[0][half], sum);
    }
}

__device__ __forceinline__ recomputed_element merge_groups(const float *o, const float *ml, int row, int d,
                                                           float factor)
{
    recomputed_element x = {0.0f, -ATTUNE_INF, 0.0f};
#pragma unroll
    for (int g = 0; g < KEY_GROUPS; g++)
        x.m = fmaxf(x.m, ml[(g * BLOCK_M + row) * 2]);
    float base = x.m == -ATTUNE_INF ? 0.0f : x.m;
#pragma unroll
    for (int g = 0; g < KEY_GROUPS; g++) {
        float weight = exp2_fast((ml[(g * BLOCK_M + row) * 2] - base) * factor);
        x.l += ml[(g * BLOCK_M + row) * 2 + 1] * weight;
        if (g < O_GROUPS)
            x.o += o[(g * BLOCK_M + row) * SERVED_DV + d] * weight;
    }
    return x;
}

/* The same of four columns. */
__device__ __forceinline__ four_columns merge_four(const float *o, const float *ml, int row, int d, float factor)
{
    four_columns x = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), -ATTUNE_INF, 0.0f};
    float2 of[KEY_GROUPS];
#pragma unroll
    for (int g = 0; g < KEY_GROUPS; g++) {
        of[g] = *(const float2 *)&ml[(g * BLOCK_M + row) * 2];
        x.m = fmaxf(x.m, of[g].x);
    }
    float base = x.m == -ATTUNE_INF ? 0.0f : x.m;
#pragma unroll
    for (int g = 0; g < KEY_GROUPS; g++) {
        float weight = exp2_fast((of[g].x - base) * factor);
        x.l += of[g].y * weight;
        if (g < O_GROUPS) {
            float4 four = *(const float4 *)&o[(g * BLOCK_M + row) * SERVED_DV + d];
            x.o.x += four.x * weight;
            x.o.y += four.y * weight;
            x.o.z += four.z * weight;
            x.o.w += four.w * weight;
        }
    }
    return x;
}

/* Whether this CTA adds the fixed parts of a tile. */
__device__ __forceinline__ bool adds_fixed(const tile &t)
{
    return FIXED && t.parts == 1 && t.fixed_first < t.fixed_last;
}

/* The result of a fixed part, with those before it. */
__device__ __forceinline__ recomputed_element with_sum(const attune_cuda_serving &s, const tile &t, int row, int d,
                                                       const recomputed_element &x, float factor)
{
    if (t.fixed == t.fixed_first)
        return x;
    const float *sum = sum_of_parts(s);
    float2 ml = *(const float2 *)(sum + PART_ML + row * 2);
    return add_fixed({sum[row * HEAD_DIM_V + d], ml.x, ml.y}, x, factor);
}

/* Adds a fixed part, which is not the last, to the sum. Maxima and sums are stored when all threads have read them. */
__device__ __forceinline__ void store_sum(const float *o, const float *ml, const attune_cuda_serving &s, const tile &t,
                                          float factor)
{
    float *to = sum_of_parts(s);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < BLOCK_M * HEAD_DIM_V; i += THREADS) {
        int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
        to[i] = with_sum(s, t, row, d, merge_groups(o, ml, row, d, factor), factor).o;
    }
    static_assert(BLOCK_M <= THREADS, "a thread has one row's");
    int row = (int)threadIdx.x < BLOCK_M ? (int)threadIdx.x : 0;
    recomputed_element mine = with_sum(s, t, row, 0, merge_groups(o, ml, row, 0, factor), factor);
    __syncthreads();
    if ((int)threadIdx.x < BLOCK_M)
        *(float2 *)(to + PART_ML + row * 2) = make_float2(mine.m, mine.l);
}

/* Merges the warps' results, and stores those of the tile, or of its part. Returns whether the part of a group has an
 * element that is not finite. */
__device__ __forceinline__ bool store(const float *o, const float *ml, const attune_cuda_arguments &a,
                                      const attune_cuda_serving &s, const tile &t, float factor)
{
    bool bad = false;
    if constexpr (config::PARTS && TAKEN) {
        bool partial = t.parts > 1;
        int end = min(t.rows - t.row, BLOCK_M) * HEAD_DIM_V;
        float *to = part_at(s, t, t.part);
#pragma unroll 1
        for (int i = (int)threadIdx.x * 4; i < end; i += THREADS * 4) {
            int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
            four_columns x = merge_four(o, ml, row, d, factor);
            if (partial) {
                *(float4 *)(to + i) = x.o;
                if (d == 0)
                    *(float2 *)(to + PART_ML + row * 2) = make_float2(x.m, x.l);
            } else
                finish_four(a, s, t, row_coord(a, t, t.row + row), d, x, factor);
        }
        return false;
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < BLOCK_M * HEAD_DIM_V; i += THREADS) {
        int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
        if (t.row + row >= t.rows)
            break;
        if (!is_computed(a, t, t.row + row))
            continue;
        recomputed_element x = merge_groups(o, ml, row, d, factor);
        if (SHARES)
            bad = bad || (!finite(x.o) && finite(x.l));
        if (adds_fixed(t))
            x = with_sum(s, t, row, d, x, factor);
        if (config::PARTS && t.parts > 1)
            store_partial(part_at(s, t, t.part), row, d, x);
        else
            finish(a, s, t, row_coord(a, t, t.row + row), d, x, factor);
    }
    return bad;
}

/* The same with the weights of all parts first, by several threads for each row. A thread then has AT_ONCE parts on
 * their way at once, the first of them before the weights are there. */
constexpr bool WEIGHTED_PARTS =
    STAGES > 1 && !FIXED && BLOCK_M * (MOST_PARTS + 2) * 4 <= (int)attune_cuda_serving_sm80(SERVED).rows;
constexpr int WEIGHT_LANES = THREADS / BLOCK_M < 32 ? THREADS / BLOCK_M : 32;
static_assert(STAGES == 1 || ((WEIGHT_LANES & (WEIGHT_LANES - 1)) == 0 && WEIGHT_LANES > 0), "lanes exchange by xor");
constexpr int AT_ONCE = 16;

/* Four columns of the parts from `first` on; of the last one again where there are fewer. */
__device__ __forceinline__ void load_parts(float4 (&o)[AT_ONCE], const float *column, int first, int parts)
{
    constexpr int STEP = (int)(PART_BYTES / sizeof(float));
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++)
        o[j] = __ldcg((const float4 *)(column + (i64)min(first + j, parts - 1) * STEP));
}

__device__ __forceinline__ void store_weighted_parts(float *weights, const attune_cuda_arguments &a,
                                                     const attune_cuda_serving &s, const tile &t, float factor)
{
    constexpr int STEP = (int)(PART_BYTES / sizeof(float)), EACH = MOST_PARTS / WEIGHT_LANES;
    const float *parts = part_at(s, t, 0);
    float2 *totals = (float2 *)(weights + BLOCK_M * MOST_PARTS);
    int lane = (int)threadIdx.x % WEIGHT_LANES, count = t.parts, end = min(t.rows - t.row, BLOCK_M) * HEAD_DIM_V;
    float4 o[AT_ONCE];
    load_parts(o, parts + min((int)threadIdx.x * 4, end - 4), 0, count);
#pragma unroll 1
    for (int row = (int)threadIdx.x / WEIGHT_LANES; row < BLOCK_M; row += THREADS / WEIGHT_LANES) {
        float2 ml[EACH];
        float m = -ATTUNE_INF, l = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int part = i * WEIGHT_LANES + lane;
            ml[i] = make_float2(-ATTUNE_INF, 0.0f);
            if (part < count && row * HEAD_DIM_V < end)
                ml[i] = __ldcg((const float2 *)(parts + (i64)part * STEP + PART_ML + row * 2));
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
            m = fmaxf(m, ml[i].x);
#pragma unroll
        for (int i = WEIGHT_LANES / 2; i > 0; i /= 2)
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, i));
        float base = m == -ATTUNE_INF ? 0.0f : m;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float weight = exp2_fast((ml[i].x - base) * factor);
            weights[row * MOST_PARTS + i * WEIGHT_LANES + lane] = weight;
            l += ml[i].y * weight;
        }
#pragma unroll
        for (int i = WEIGHT_LANES / 2; i > 0; i /= 2)
            l += __shfl_xor_sync(0xffffffffu, l, i);
        if (lane == 0)
            totals[row] = make_float2(m, l);
    }
    __syncthreads();
    bool here = true;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int i = (int)threadIdx.x * 4, first = 0; i < end; here = false) {
        int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
        const float *weight = weights + row * MOST_PARTS + first;
        if (!here)
            load_parts(o, parts + i, first, count);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (first + j < count) {
                sum.x += o[j].x * weight[j];
                sum.y += o[j].y * weight[j];
                sum.z += o[j].z * weight[j];
                sum.w += o[j].w * weight[j];
            }
        first += AT_ONCE;
        if (first < count)
            continue;
        float2 total = totals[row];
        finish_four(a, s, t, row_coord(a, t, t.row + row), d, {sum, total.x, total.y}, factor);
        sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        first = 0;
        i += THREADS * 4;
    }
}

/* With config::SHARES, the end of a part of an item: rows of which this was the last part are stored. */
template <typename TILE>
__device__ __forceinline__ void finish_members(const attune_cuda_arguments &a, const attune_cuda_serving &s, TILE &t,
                                               float factor)
{
    if constexpr (SHARES) {
        int members = t.members;
        if (members == 1) {
            if (last_of_parts(a, s, t))
                store_parts(a, s, t, factor);
            return;
        }
        group_of_rows &g = group_of(t);
        count_parts(g, members, a, s);
#pragma unroll 1
        for (int i = 0; i < members; i++) {
            if (!g.finished[i])
                continue;
            /* In shared memory alone: the addresses of its rows are taken. */
            if (threadIdx.x == 0)
                find_member(t, g.member[i], a, s);
            __syncthreads();
            range seen = tile_range(a, t);
            if (threadIdx.x == 0)
                find_fixed(t, seen, false);
            __syncthreads();
            store_parts(a, s, t, factor);
            __syncthreads();
        }
    }
}

#endif
