/* SPDX-License-Identifier: MIT */
/*
 * The stages of Hopper's backward kernel that its algorithms share: issuing the products, storing P, dS and dQ, and
 * storing dK and dV. No issue_ function waits.
 */
#ifndef ATTUNE_CUDA_STAGES_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_STAGES_BACKWARD_SM90_CUH

#include "capture_gradients_sm90.cuh"
#include "dq_backward_sm90.cuh"
#include "layout_backward_sm90.cuh"
#include "scores_backward_sm90.cuh"
#include "wgmma.cuh"

/* ----------------------------------------------------------------------------------------------------------- stages */

/* S^T = K Q^T or dP^T = V dO^T: [keys][rows]. All issue_ functions commit and do not wait. */
template <int STEPS> __device__ __forceinline__ void issue_s_dp(float (&s)[sm90::S_FRAGMENT], u64 keys, u64 rows)
{
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        wgmma<sm90::GROUP_M / sm90::S_CHUNKS>::ss(s, keys + (step / 4 * sm90::KEY_SLAB + step % 4 * 32) / 16,
                                                  rows + (step / 4 * sm90::ROW_SLAB + step % 4 * 32) / 16, step);
    wgmma_commit();
}

/* dV += P dO or dK += dS Q for the columns of one warp group, with P or dS in shared memory: [row][key]. */
template <int COUNT> __device__ __forceinline__ void issue_dk_dv_wide(float (&d)[COUNT], u32 p, u32 rows)
{
    u64 left = describe_n_major(p, 0), right = describe_n_major(rows, sm90::ROW_SLAB);
#pragma unroll
    for (int step = 0; step < BLOCK_M / 16; step++)
        wgmma<COUNT * 2>::template ss<1, 1>(d, left + step * (16 * 128 / 16), right + step * (16 * 128 / 16), 1);
    wgmma_commit();
}

/* P or dS to shared memory: [row][key], a slab of 64 keys. */
__device__ __forceinline__ void store_p_ds(const u32 (&d_s)[sm90::GROUP_M / 16][4], u32 slab)
{
    int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
    u32 at = slab + (lane / 16 * 8 + lane % 8) * 128 + ((warp * 2 + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
    for (int step = 0; step < sm90::GROUP_M / 16; step++)
        store_transposed(at + step * 16 * 128, d_s[step]);
}

/* Both consumer warp groups: their P and dS are in shared memory, or have been read. */
__device__ __forceinline__ void consumers_sync()
{
    named_sync<(int)BARRIER_CONSUMERS, 256>();
}

/* A wait for wgmma covers the products of the calling warp alone. Before a right operand is overwritten, all four warps
 * of the group must have waited. */
__device__ __forceinline__ void group_sync(int group)
{
    if (group == 0)
        named_sync<(int)BARRIER_GROUP_0, 128>();
    else
        named_sync<(int)BARRIER_GROUP_1, 128>();
}

/* Stores MANY of the accumulators of each thread, from FIRST on, as consecutive 16-byte words of the warp group. */
template <int FIRST, int MANY, int COUNT> __device__ __forceinline__ void store_dq(const float (&dq)[COUNT], u32 to)
{
    to += (u32)thread_index() % 128 * 16;
#pragma unroll
    for (int i = 0; i < MANY; i += 4)
        store_shared_4(to + i / 4 * 128 * 16, dq[FIRST + i], dq[FIRST + i + 1], dq[FIRST + i + 2], dq[FIRST + i + 3]);
}

/* DQ_ADD_STAGED: stores dQ for the producer to add, once it has added the previous fragment. */
template <int COUNT>
__device__ __forceinline__ void stage_dq(const float (&dq)[COUNT], control &c, u32 memory, int group, u32 phase)
{
    producer_acquire<&control::dq>(c, {(u32)group, phase});
    store_dq<0, COUNT>(dq, memory + sm90::DQ_OFFSET + group * sm90::GROUP_DQ_BYTES<0>);
    fence_async();
    producer_commit_warp<&control::dq>(c, {(u32)group, phase});
}

/* Adds a warp group's accumulators to sums in fragment layout. */
template <int COUNT> __device__ __forceinline__ void atomic_add_fragment(const float (&dq)[COUNT], float *to)
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        add_global_4(to + i / 4 * 128 * 4, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
}

/* dK or dV to global memory. row: the first row of the thread; first: the first column. */
template <int WIDTH, int COLUMNS>
__device__ __forceinline__ void store_gradient(const float (&d)[WIDTH / 2], const attune_cuda_view &v, int b, int h,
                                               int row, int rows, int first, float factor, bool &finite)
{
    float nan_if_non_finite = 0.0f;
    int lane = thread_index() % 32;
    o_element *base = (o_element *)v.address + b * v.batch + h * v.head;
    bool paired = view_paired<o_element>(v);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int kv = row + half * 8;
        if (kv >= rows)
            continue;
        o_element *to = base + kv * v.row + first + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            nan_if_non_finite =
                __fmaf_rn(d[n * 4 + half * 2], 0.0f, __fmaf_rn(d[n * 4 + half * 2 + 1], 0.0f, nan_if_non_finite));
            if (first + n * 8 >= COLUMNS || (COLUMNS % 8 && first + n * 8 + lane % 4 * 2 >= COLUMNS))
                continue;
            if (COLUMNS % 2 == 0 || first + n * 8 + lane % 4 * 2 + 1 < COLUMNS)
                store_outputs(to + n * 8, d[n * 4 + half * 2] * factor, d[n * 4 + half * 2 + 1] * factor, paired);
            else
                store_output(to + n * 8, d[n * 4 + half * 2] * factor);
        }
    }
    finite = finite && nan_if_non_finite == 0.0f;
}

/* Adds a warp's dK and dV of a split tail tile to the tile's sums. True for the warp that adds last: then dk and dv are
 * the sums. rank: of the CTA in its cluster. */
template <int D, int DV>
__device__ __forceinline__ bool add_tail_split(float (&dk)[D], float (&dv)[DV], const attune_cuda_backward &g, int tile,
                                               int rank, int group)
{
    constexpr int EACH = sm90::TAIL_TILE_BYTES / 4 / (sm90::GROUPS * (1 + sm90::PAIRED)); /* floats of a warp group */
    static_assert((D + DV) * 128 <= EACH, "the sums of a tile fit");
    int thread = thread_index() % 128, part = rank * sm90::GROUPS + group, added = 0;
    u64 sums = g.tail_sums + (u64)tail_tile(g, tile) * (sm90::TAIL_TILE_BYTES + ATTUNE_CUDA_TAIL_COUNTS * 4);
    float *row_words = (float *)sums + part * EACH + thread * 4;
    atomic_add_fragment(dk, row_words);
    atomic_add_fragment(dv, row_words + D * 128);
    __threadfence();
    __syncwarp();
    if (thread % 32 == 0)
        added = atomicAdd((int *)(sums + sm90::TAIL_TILE_BYTES) + part * 4 + thread / 32, 1) + 1;
    if (__shfl_sync(0xffffffffu, added, 0) < g.tail_splits)
        return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < D + DV; i += 4) {
        float4 x = __ldcg((const float4 *)(row_words + i * 128));
        float *to = i < D ? &dk[i] : &dv[i - D];
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------- consumers */

template <int SIZE> __device__ __forceinline__ void clear(float (&sum)[SIZE])
{
#pragma unroll
    for (int i = 0; i < SIZE; i++)
        sum[i] = 0.0f;
}

/* The thread's first key in its tile. Wide heads: both warp groups have the same 64 keys. */
__device__ __forceinline__ int first_key_of_thread(int group)
{
    int thread = thread_index();
    return (sm90::WIDE ? 0 : group * 64) + thread % 128 / 32 * 16 + thread % 32 / 4;
}

/* A consumer thread's warp group, its first key, and the descriptors of the warp group's K and V. coord_of_thread
 * counts the key from the beginning of the tile. */
struct thread_coord {
    int group, kv;
    u64 k, v;
};

/* GROUP: the warp group, unless both compute as many columns. */
template <int GROUP = 0> __device__ __forceinline__ thread_coord coord_of_thread(u32 memory)
{
    int group = sm90::EQUAL_GROUPS ? (int)threadIdx.x / 128 - 1 : GROUP, lane = (int)threadIdx.x % 32;
    int row = (sm90::WIDE ? 0 : group * 64) + (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
    u32 keys = memory + (sm90::WIDE ? 0 : group * 64 * 128);
    return {group, row, describe_k_major(keys), describe_k_major(keys + sm90::K_BYTES)};
}

/* Computes it again, where there are too few registers to keep it. */
template <int GROUP = 0> __device__ __forceinline__ void rematerialise(thread_coord &at, const control &c, u32 memory)
{
    if constexpr (sm90::REMATERIALISE) {
        int group = sm90::EQUAL_GROUPS ? thread_index() / 128 - 1 : GROUP;
        u32 keys = memory + (sm90::WIDE ? 0 : group * 64 * 128);
        at = {group, *(const volatile int *)&c.kv + first_key_of_thread(group), describe_k_major(keys),
              describe_k_major(keys + sm90::K_BYTES)};
    }
}

/* The first key of a thread's warp. */
__device__ __forceinline__ int first_key_of_warp(const thread_coord &at)
{
    return at.kv - thread_index() % 32 / 4;
}

/* The origin of the warp group's pairs from row `first` of a query tile on, for capture gradients. */
__device__ __forceinline__ pair_origin origin_of_pairs(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                                       const tile_desc &desc, int first, int kv)
{
    if constexpr (!sm90::HAVE_CAPTURE_GRADIENTS)
        return {a, g, 0, 0, 0, 0};
    else
        return {a, g, desc.b, desc.h, desc.q + first + thread_index() % 4 * 2, kv};
}

/* After a query tile: adds the captures' sums over the rows of its head, unless the next tile is of the same head. The
 * stage still has this tile's descriptor, since it is released later. */
__device__ __forceinline__ void finish_capture_gradients(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                                         const control &c, u32 memory, u32 stage, const tile_desc &next,
                                                         int group)
{
    if constexpr (sm90::HAVE_CAPTURE_GRADIENTS) {
        const volatile tile_desc &last = c.descs[stage];
        int h = last.h, b = last.b;
        int kv = *(const volatile int *)&c.kv + first_key_of_thread(group);
        if (next.flags & TILE_END || next.h != h || next.b != b)
            flush_head_sums({a, g, b, h, 0, kv}, memory);
        /* The caller releases the stage without one, and all lanes have read the descriptor. */
        __syncwarp();
    }
}

/* 9: stores dK and dV of a tile of keys, or adds them to the sums of a split tail tile. first: the thread's first key
 * in the tile; rank: of the CTA in its cluster. */
template <int D, int DV>
__device__ __forceinline__ void store_dk_dv(float (&dk)[D], float (&dv)[DV], const attune_cuda_arguments &a,
                                            const attune_cuda_backward &g, int tile, int rank, int group, int first)
{
    if (sm90::SPLIT_TAIL && tile >= g.full_wave_tiles && !add_tail_split(dk, dv, g, tile, rank, group))
        return;
    key_tile at = key_tile_of(a, g, tile);
    bool finite = true;
    int row = at.kv + first, second = sm90::WIDE ? group : 0;
    store_gradient<D * 2, HEAD_DIM>(dk, g.d_k, at.b, at.h_kv, row, a.kv_len, second * sm90::FIRST_GROUP_D, a.scale,
                                    finite);
    store_gradient<DV * 2, HEAD_DIM_V>(dv, g.d_v, at.b, at.h_kv, row, a.kv_len, second * sm90::FIRST_GROUP_DV, 1.0f,
                                       finite);
    if (!finite)
        *(volatile int *)g.redo = 1;
}

#endif
