/* SPDX-License-Identifier: MIT */
/*
 * O of the forward kernel for sm_100a: rescaled in tensor memory, and stored. With two softmax warp groups a warp group
 * of its own does both, for the rows of either in turn, while they begin the next query tile. With one group its
 * softmax warps do.
 */
#ifndef ATTUNE_CUDA_CORRECTION_SM100_CUH
#define ATTUNE_CUDA_CORRECTION_SM100_CUH

#include "layout_forward_sm100.cuh" /* before the headers that read its configuration */

#include "rows_sm100.cuh"

/* The thread's lane of the columns of a group's 128 rows. */
__device__ __forceinline__ u32 tmem_lane(u32 columns)
{
    return columns + (threadIdx.x % 128 / 32 * 32 << 16);
}

/* Calls f(o, column) for each 16 columns of O, which f may change. */
template <typename function> __device__ __forceinline__ void change_o(u32 o, function f)
{
#pragma unroll 1
    for (int column = 0; column < sm100::WIDTH_DV; column += 16) {
        u32 w[16];
        float x[16];
        load_columns(x, o + (u32)column);
        f(x, column);
#pragma unroll
        for (int i = 0; i < 16; i++)
            w[i] = __float_as_uint(x[i]);
        tmem_store(o + (u32)column, w);
    }
    tmem_wait_store();
}

__device__ __forceinline__ void zero_o(u32 o)
{
    u32 w[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        w[i] = 0;
#pragma unroll 1
    for (int column = 0; column < sm100::WIDTH_DV; column += 16)
        tmem_store(o + (u32)column, w);
    tmem_wait_store();
}

/*
 * 5: online softmax: waits for P V of the key tile before, and rescales O. That is by whole warps, whose accesses to
 * tensor memory are collective. alpha: 1 where the row's reference has not risen. The wait is for each key tile, though
 * few rescale: P V of the next, whose order it is, then never completes a phase that nobody has seen.
 */
__device__ __forceinline__ void correct_o(group_control &g, u32 o, u32 o_phase, float alpha)
{
    barrier_wait(&g.o_full, o_phase);
    tmem_fence_after();
    if (!__any_sync(0xffffffffu, alpha != 1.0f))
        return;
    change_o(o, [&](float(&x)[16], int) {
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i] *= alpha;
    });
}

/* ------------------------------------------------------------------------------------------------------------ store */

/* 7: LSE and row maximum. largest: of the scores. */
__device__ __forceinline__ void store_sums(const attune_cuda_arguments &a, const tile_coord &p, int row, float lse,
                                           float largest)
{
    if (a.lse.address)
        ((float *)a.lse.address)[p.b * a.lse.batch + p.h * a.lse.head + row * a.lse.row] = lse;
    if (a.row_max.address)
        ((float *)a.row_max.address)[p.b * a.row_max.batch + p.h * a.row_max.head + row * a.row_max.row] = largest;
}

/* 7: LSE and row maximum of a row's sum and reference. The maximum of scores drops NaN but their sum does not, so a NaN
 * sum is the result. If the maximum is +inf the sum is NaN as well, and the maximum stays. */
__device__ __forceinline__ void store_sums_of(float sum, float row_max, const attune_cuda_arguments &a,
                                              const tile_coord &p, int row, float factor)
{
    bool fully_masked = sum == 0.0f;
    float largest = isnan(sum) && row_max != ATTUNE_INF ? sum : row_max * (factor * ATTUNE_LN2);
    if (row < a.q_len)
        store_sums(a, p, row, fully_masked ? -ATTUNE_INF : largest + logf(sum), fully_masked ? -ATTUNE_INF : largest);
}

/* 7: 16 columns of a row of O, divided by its sum. */
struct normaliser {
    float inverse;
    bool zero; /* not by the factor 0: O may be NaN */
};

__device__ __forceinline__ normaliser normaliser_of(float sum, const attune_cuda_arguments &a)
{
    return {sum == 0.0f ? 0.0f : 1.0f / sum, sum == 0.0f && !a.is_partial};
}

__device__ __forceinline__ void load_normalised(float (&x)[16], u32 from, const normaliser &n)
{
    load_columns(x, from);
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = n.zero ? 0.0f : x[i] * n.inverse;
}

/* 7: store O. All threads of a warp load their rows, also past the last one. */
__device__ __forceinline__ void store_o(const normaliser &n, u32 o, const attune_cuda_arguments &a, const tile_coord &p,
                                        int row)
{
    o_element *to = (o_element *)a.o.address + p.b * a.o.batch + p.h * a.o.head + row * a.o.row;
    bool vectors = view_aligned<o_element>(a.o);
#pragma unroll 1
    for (int column = 0; column < sm100::WIDTH_DV; column += 16) {
        float x[16];
        load_normalised(x, o + (u32)column, n);
        if (row < a.q_len)
            store_columns<HEAD_DIM_V>(to, x, column, vectors);
        __syncwarp();
    }
}

/* 7, for a row without keys. */
__device__ __forceinline__ void store_fully_masked(const attune_cuda_arguments &a, const tile_coord &p, int row)
{
    if (row >= a.q_len)
        return;
    o_element *to = (o_element *)a.o.address + p.b * a.o.batch + p.h * a.o.head + row * a.o.row;
#pragma unroll 1
    for (int d = 0; d < HEAD_DIM_V; d++)
        to[d] = 0;
    store_sums(a, p, row, -ATTUNE_INF, -ATTUNE_INF);
}

/* ------------------------------------------------------------------------------------------------------- handovers */

/* By the softmax warps: the factor of O for a key tile, which is not negative, though a scale may make it NaN. */
__device__ __forceinline__ void pass_factor(group_control &g, row_words &w, pipeline_state &r, float alpha, bool last)
{
    producer_acquire<&group_control::rows>(g, r);
    w.factor_or_sum[threadIdx.x % 128] = (__float_as_uint(alpha) & 0x7fffffffu) | (last ? 0x80000000u : 0u);
    producer_commit_warp<&group_control::rows>(g, r);
    advance<1>(r);
}

/* By the softmax warps, after the last key tile. */
__device__ __forceinline__ void pass_sums(group_control &g, row_words &w, pipeline_state &r, float sum, float row_max)
{
    producer_acquire<&group_control::rows>(g, r);
    w.factor_or_sum[threadIdx.x % 128] = __float_as_uint(sum);
    w.row_max[threadIdx.x % 128] = __float_as_uint(row_max);
    producer_commit_warp<&group_control::rows>(g, r);
    advance<1>(r);
}

/* ------------------------------------------------------------------------------------------- correction warp group */

/* 5: a key tile of all groups, with its buffer of S. o_phase: of P V of the key tile before. Returns whether it was the
 * query tile's last. */
__device__ __forceinline__ bool correct_tile(sm100_control &c, const row_words *rows, const pipeline_state &r,
                                             u32 buffer, u32 o_phase, bool first)
{
    bool last = false;
#pragma unroll 1
    for (int g = 0; g < sm100::GROUPS; g++) {
        group_control &own = c.groups[g];
        consumer_wait<&group_control::rows>(own, r);
        u32 word = rows[g].factor_or_sum[threadIdx.x % 128];
        last = word >> 31;
        if (!first) /* in a query tile's first key tile O is 0, or not written */
            correct_o(own, tmem_lane(c.tmem + (u32)g * sm100::GROUP_COLUMNS + sm100::O_COLUMN), o_phase,
                      __uint_as_float(word & 0x7fffffffu));
        tmem_fence_before();
        consumer_release<&group_control::rows>(own, r);
        lane_arrive(&own.p_full[buffer]);
    }
    return last;
}

/* 7: O of 128 rows through shared memory, from where the store thread stores it: 64 columns at a time, with TMA's
 * 128-byte swizzle. Of the last ones TMA leaves out those that O has not. */
__device__ __forceinline__ void stage_o(const normaliser &n, u32 o, sm100_control &c, u32 tiles, pipeline_state &r)
{
    u32 row = threadIdx.x % 128;
#pragma unroll 1
    for (int slab = 0; slab < sm100::WIDTH_DV; slab += 64) {
        producer_acquire<&sm100_control::o>(c, r);
        u32 to = tiles + r.stage * sm100::O_TILE_BYTES + row * 128;
#pragma unroll 1
        for (int column = 0; column < min(64, sm100::WIDTH_DV - slab); column += 16) {
            float x[16];
            u32 w[8];
            load_normalised(x, o + (u32)(slab + column), n);
#pragma unroll
            for (int i = 0; i < 8; i++)
                w[i] = pack<config::O_DTYPE>(x[i * 2], x[i * 2 + 1]);
            u32 chunk = (u32)column / 8;
            store_shared_4(to + (chunk ^ row % 8) * 16, w[0], w[1], w[2], w[3]);
            store_shared_4(to + ((chunk + 1) ^ row % 8) * 16, w[4], w[5], w[6], w[7]);
        }
        fence_async();
        producer_commit_warp<&sm100_control::o>(c, r);
        advance<sm100::O_TILES>(r);
    }
}

/* 7: of all groups. stores_o: the store thread stores O; s: of its tiles. */
__device__ __forceinline__ void store_groups(const attune_cuda_arguments &a, sm100_control &c, unsigned char *memory,
                                             const pipeline_state &r, u32 o_phase, const tile_coord &coord,
                                             float factor, bool stores_o, pipeline_state &s)
{
    const row_words *rows = (const row_words *)(memory + sm100::ROWS_OFFSET);
    int lane = (int)threadIdx.x % 128;
#pragma unroll 1
    for (int g = 0; g < sm100::GROUPS; g++) {
        group_control &own = c.groups[g];
        consumer_wait<&group_control::rows>(own, r);
        float sum = __uint_as_float(rows[g].factor_or_sum[lane]), row_max = __uint_as_float(rows[g].row_max[lane]);
        consumer_release<&group_control::rows>(own, r);
        u32 o = tmem_lane(c.tmem + (u32)g * sm100::GROUP_COLUMNS + sm100::O_COLUMN);
        int first = coord.q + g * 128;
        normaliser n = normaliser_of(sum, a);
        barrier_wait(&own.o_full, o_phase);
        tmem_fence_after();
        if constexpr (sm100::STORES_O)
            if (stores_o && first < a.q_len)
                stage_o(n, o, c, shared_address(memory) + sm100::O_OFFSET, s);
        if (!sm100::STORES_O || !stores_o)
            store_o(n, o, a, coord, first + lane);
        store_sums_of(sum, row_max, a, coord, first + lane, factor);
    }
}

__device__ __forceinline__ void correct(const attune_cuda_arguments &a, sm100_control &c, unsigned char *memory,
                                        bool stores_o)
{
    float factor = fold_factor(a.scale);
    pipeline_state q = {0, 0}, r = {0, 0}, s = {0, 1}; /* r: of the rows of every group; s: of the tiles of O */
    u32 buffer = 0, o_phase = 1;                       /* of P; of the last P V */
    for (;;) {
        /* 1: wait for the descriptor of the query tile. */
        consumer_wait<&control::q>(c.tiles, q);
        int flags = c.tiles.query_tiles[q.stage].flags;
        if (!flags)
            break;
        tile_coord coord = c.tiles.query_tiles[q.stage].coord;
        consumer_release<&control::q>(c.tiles, q);
        advance<sm100::Q_BUFFERS>(q);
        if (flags & TILE_LAST) {
#pragma unroll 1
            for (int g = 0; g < sm100::GROUPS; g++)
                store_fully_masked(a, coord, coord.q + g * 128 + (int)threadIdx.x % 128);
            continue;
        }
#pragma unroll 1
        for (int g = 0; sm100::SCANS_V && g < sm100::GROUPS; g++)
            zero_o(tmem_lane(c.tmem + (u32)g * sm100::GROUP_COLUMNS + sm100::O_COLUMN));
        bool last = false;
        for (bool first = true; !last; first = false) {
            last = correct_tile(c, (const row_words *)(memory + sm100::ROWS_OFFSET), r, buffer, o_phase, first);
            buffer = sm100::S_BUFFERS - 1 - buffer;
            advance<1>(r);
            o_phase ^= 1;
        }
        store_groups(a, c, memory, r, o_phase, coord, factor, stores_o, s);
        advance<1>(r);
    }
}

/* ---------------------------------------------------------------------------------------------------- store thread */

/* 7: stores the tiles of O that the correction has staged. */
__device__ __forceinline__ void store_tiles(const attune_cuda_arguments &a, sm100_control &c, u32 memory,
                                            const tensor_map *o_map)
{
    pipeline_state q = {0, 0}, s = {0, 0}; /* s: of the tiles of O */
    for (;;) {
        /* 1: wait for the descriptor of the query tile. */
        consumer_wait<&control::q>(c.tiles, q);
        int flags = c.tiles.query_tiles[q.stage].flags;
        if (!flags)
            break;
        tile_coord coord = c.tiles.query_tiles[q.stage].coord;
        consumer_release_thread<&control::q>(c.tiles, q);
        advance<sm100::Q_BUFFERS>(q);
        if (flags & TILE_LAST) /* no keys */
            continue;
#pragma unroll 1
        for (int row = coord.q; row < min(coord.q + BLOCK_M, a.q_len); row += 128) {
#pragma unroll 1
            for (int column = 0; column < HEAD_DIM_V; column += 64) {
                consumer_wait<&sm100_control::o>(c, s);
                tensor_store(o_map, memory + sm100::O_OFFSET + s.stage * sm100::O_TILE_BYTES, column, row, coord.h,
                             coord.b);
                bulk_wait_read();
                consumer_release_thread<&sm100_control::o>(c, s);
                advance<sm100::O_TILES>(s);
            }
        }
    }
    bulk_wait();
}

#endif
