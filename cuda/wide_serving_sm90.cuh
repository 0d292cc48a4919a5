/* SPDX-License-Identifier: MIT */
/*
 * The consumers of serving_sm90.cu for values of more than 256 columns, as those of latent attention. Both have all 64
 * rows of a tile: each computes S of half of the keys, and half of O's columns from the P of both, which they exchange
 * in shared memory, as they do a row's maxima. V is in the stages of K, of which there are two: a part of K, as a rule,
 * else it takes K's place after S.
 */
#ifndef ATTUNE_CUDA_WIDE_SERVING_SM90_CUH
#define ATTUNE_CUDA_WIDE_SERVING_SM90_CUH

#include "scores_serving_sm90.cuh"

/* 6: O += P V of the warp group's columns, and all keys; issued, not waited for. */
__device__ __forceinline__ void multiply_pv_wide(float (&o)[sm90::WIDTH_DV / 2], u64 p, u64 v)
{
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
        wgmma<sm90::WIDTH_DV>::template ss<0, 1>(o, p + step * 2, v + step * (16 * 128 / 16), 1);
    wgmma_commit();
}

/* The first of the thread's two rows in the tile. */
__device__ __forceinline__ u32 row_in_tile()
{
    return (u32)(thread_index_remat() % 128 / 32 * 16 + thread_index_remat() % 32 / 4);
}

/* The descriptor of Q or P, found again for each tile of keys: those of all steps of a product would be kept in
 * registers otherwise. */
__device__ __forceinline__ u64 describe_again(u32 at)
{
    return describe_k_major((u32)uniform((int)at));
}

/* The other warp group's value for each of the thread's rows, of which the lanes of a row give one. which: 0 for maxima
 * and 1 for sums, whose places are read while the other warp group may be at the next maxima. */
__device__ __forceinline__ void exchange_rows(float (&x)[2], u32 memory, int group, int which)
{
    u32 row = row_in_tile();
    u32 places = memory + sm90::MAXIMA_OFFSET + (u32)which * (2 * BLOCK_M * 4) + row * 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (thread_index_remat() % 4 == 0)
            store_shared(places + (u32)(group * BLOCK_M + half * 8) * 4, __float_as_uint(x[half]));
    consumers::sync();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 bits;
        load_shared(bits, places + (u32)((group ^ 1) * BLOCK_M + half * 8) * 4);
        x[half] = __uint_as_float(bits);
    }
}

/* 5: online softmax. A row's maximum is raised where a score passes it by so much that weights may become too large, or
 * where maxima are a result (exact), as softmax_without_rescale does; both warp groups come to the same. */
__device__ __forceinline__ void softmax_wide(float (&s)[sm90::KEYS / 2], float (&row_max)[2], float (&row_sum)[2],
                                             float (&alpha)[2], u32 memory, int group, bool exact, float factor)
{
    float largest[2], other[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        other[half] = largest[half] = largest_of_row(s, half, -ATTUNE_INF);
    exchange_rows(other, memory, group, 0);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = fmaxf(fmaxf(largest[half], other[half]), row_max[half]);
        bool raised = exact || !((most - row_max[half]) * factor <= RESCALE_THRESHOLD_LOG2);
        weigh_row(s, half, raised ? most : row_max[half], row_max[half], row_sum[half], alpha[half], factor);
    }
}

/* P of the warp group's keys in 16 bits, for the products of both. */
__device__ __forceinline__ void share_p(const float (&s)[sm90::KEYS / 2], u32 memory, int group)
{
    u32 row = row_in_tile();
    u32 to = memory + sm90::P_OFFSET + row * 128 + (u32)(thread_index_remat() % 4) * 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < sm90::KEYS / 8; n++)
            store_shared(to + (u32)half * (8 * 128) + (((u32)(group * (sm90::KEYS / 8) + n) ^ row % 8) * 16),
                         pack(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
    fence_async();
    consumers::sync();
}

/* O, the row maxima and sums of a tile's rows. */
template <typename sm90>
__device__ __forceinline__ void compute_wide(float (&o)[sm90::WIDTH_DV / 2], float (&row_max)[2], float (&row_sum)[2],
                                             const attune_cuda_arguments &a, const attune_cuda_serving &s, control &c,
                                             u32 memory, const work &here, int kv, int end, int group, row_states &r,
                                             pipeline_state &k, float factor)
{
    const tile &t = here.of;
    bool replaces = !v_begins_with_k(a); /* V takes the place of K */
    /* 1: wait for Q */
    consumer_wait<&control::q>(c, r.q());
#pragma unroll 1
    for (; kv < end; kv += BLOCK_N) {
        float x[sm90::KEYS / 2], alpha[2];
        key_bits there;
        u64 q_tile = describe_again(memory), k_tile = describe_k(memory, k) + (u64)(group * sm90::KEYS * 128 / 16);
        u64 v_tile = describe_v(memory, k);
        /* 2: wait for K */
        consumer_wait<&control::k>(c, k);
        wgmma_fence();
        /* 3: S = Q K^T */
        multiply_qk(x, q_tile, k_tile);
        load_there(there, c, k.stage, group * sm90::KEYS);
        wgmma_wait<0>();
        accumulators_done(x);
        if (replaces)
            consumer_release<&control::v>(c, k);
        /* 4: score and mask hook */
        modify_scores(x, a, s, t, kv + group * sm90::KEYS, there, sees_all(here, kv));
        /* 5: online softmax. Row maxima that are a result have to be exact. */
        softmax_wide(x, row_max, row_sum, alpha, memory, group, a.row_max.address != 0, factor);
        if (__any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f))
            rescale(o, alpha);
        share_p(x, memory, group);
        /* 2: wait for V */
        if (replaces)
            consumer_wait<&control::v>(c, k);
        wgmma_fence();
        /* 6: O += P V */
        multiply_pv_wide(o, describe_again(memory + sm90::P_OFFSET), v_tile);
        wgmma_wait<0>();
        accumulators_done(o);
        consumer_release<&control::k>(c, k);
        advance(k);
    }
    consumer_release<&control::q>(c, r.q());
    r.advance_q();
    /* The sums of both warp groups, in one of the lanes of a row, whose four are added later. */
    float other[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 1);
        row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 2);
        other[half] = row_sum[half];
    }
    exchange_rows(other, memory, group, 1);
#pragma unroll
    for (int half = 0; half < 2; half++)
        row_sum[half] = thread_index_remat() % 4 == 0 ? row_sum[half] + other[half] : 0.0f;
}

#endif
