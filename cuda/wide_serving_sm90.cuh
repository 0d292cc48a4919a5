/* SPDX-License-Identifier: MIT */
/*
 * The consumers of serving_sm90.cu for values of more than 256 columns, as those of latent attention. Both have all 64
 * rows of a tile, and half of O's columns each. They take turns at tiles of keys: one computes S and P of a tile, and
 * gives the other P and the row maxima in shared memory, so that its softmax runs under the other's products. V is in
 * the stages of K, of which there are two: a part of K, as a rule, else it takes K's place after S.
 */
#ifndef ATTUNE_CUDA_WIDE_SERVING_SM90_CUH
#define ATTUNE_CUDA_WIDE_SERVING_SM90_CUH

#include "scores_serving_sm90.cuh"

/* 6: O += P V of the warp group's columns, and all keys; issued, not waited for. */
__device__ __forceinline__ void multiply_pv_wide(float (&o)[sm90::WIDTH_DV / 2], u64 p, u64 v)
{
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
        wgmma<sm90::WIDTH_DV>::template ss<0, 1>(o, p + step * 2, v + step * (2 * sm90::KV_KEYS / 16), 1);
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

/* Where the tile's rows have a float32 of a warp group's. which: 0 for maxima, 1 for sums. */
__device__ __forceinline__ u32 row_places(u32 memory, int group, int which)
{
    return memory + sm90::MAXIMA_OFFSET + (u32)((which * 2 + group) * BLOCK_M + row_in_tile()) * 4;
}

/* The value of one of the lanes that have the row. */
__device__ __forceinline__ void store_rows(const float (&x)[2], u32 places)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (thread_index_remat() % 4 == 0)
            store_shared(places + half * (8 * 4), __float_as_uint(x[half]));
}

__device__ __forceinline__ void load_rows(float (&x)[2], u32 places)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 bits;
        load_shared(bits, places + half * (8 * 4));
        x[half] = __uint_as_float(bits);
    }
}

/* 5: online softmax. Row maxima are raised where a score passes one by so much that weights may become too large, or
 * where they are a result (exact): threads of a row need not look for their largest score otherwise. */
__device__ __forceinline__ void softmax_wide(float (&s)[BLOCK_N / 2], float (&row_max)[2], float (&row_sum)[2],
                                             float (&alpha)[2], bool exact, float factor)
{
    float most[2];
    bool raised = exact;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        most[half] = largest_of_thread(s, half, row_max[half]);
        raised = raised || !((most[half] - row_max[half]) * factor <= RESCALE_THRESHOLD_LOG2);
    }
    if (__any_sync(0xffffffffu, raised)) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            most[half] = largest_of_threads(most[half]);
    } else
        most[0] = row_max[0], most[1] = row_max[1];
#pragma unroll
    for (int half = 0; half < 2; half++)
        weigh_row(s, half, most[half], row_max[half], row_sum[half], alpha[half], factor);
}

/* Beside the row maxima of the other warp group's tile. */
__device__ __forceinline__ void follow_maxima(const float (&most)[2], float (&row_max)[2], float (&row_sum)[2],
                                              float (&alpha)[2], float factor)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        alpha[half] = rescale_factor(row_max[half], most[half], factor);
        row_max[half] = most[half];
        row_sum[half] *= alpha[half];
    }
}

__device__ __forceinline__ void rescale_if_raised(float (&o)[sm90::WIDTH_DV / 2], const float (&alpha)[2])
{
    if (__any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f))
        rescale(o, alpha);
}

/* Gives the other warp group P of a tile, and its row maxima. */
__device__ __forceinline__ void give_p(const u32 (&p)[BLOCK_N / 16][4], const float (&row_max)[2], u32 memory,
                                       int group)
{
    u32 row = row_in_tile();
    u32 to = memory + sm90::P_OFFSET + row * 128 + (u32)(thread_index_remat() % 4) * 4;
    store_rows(row_max, row_places(memory, group, 0));
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            store_shared(to + (u32)(i % 2) * (8 * 128) + (((u32)(step * 2 + i / 2) ^ row % 8) * 16), p[step][i]);
    fence_async();
    named_arrive<256>(BARRIER_GIVEN + group);
}

/* The arguments of the stages of a tile of keys. */
struct wide_tile {
    const attune_cuda_arguments &a;
    const attune_cuda_serving &s;
    control &c;
    const work &here;
    u32 memory;
    int group;
    bool replaces; /* V takes the place of K */
    float factor;
};

/* A tile of keys of which the warp group computes S and P, for both. */
__device__ __forceinline__ void compute_tile(float (&o)[sm90::WIDTH_DV / 2], float (&row_max)[2], float (&row_sum)[2],
                                             const wide_tile &w, const pipeline_state &k, int kv)
{
    float x[BLOCK_N / 2], alpha[2];
    u32 p[BLOCK_N / 16][4];
    key_bits there;
    u64 q_tile = describe_again(w.memory), k_tile = describe_k(w.memory, k), v_tile = describe_v(w.memory, k);
    /* 2: wait for K */
    consumer_wait<&control::k>(w.c, k);
    wgmma_fence();
    /* 3: S = Q K^T */
    multiply_qk(x, q_tile, k_tile);
    load_there(there, w.c, k.stage);
    /* All of the warp group's warps have read the other's P before, whose place this tile's takes. */
    named_sync<128>(BARRIER_READ + w.group);
    wgmma_wait<0>();
    accumulators_done(x);
    if (w.replaces)
        consumer_release<&control::v>(w.c, k);
    /* 4: score and mask hook */
    modify_scores(x, w.a, w.s, w.here.of, kv, there, sees_all(w.here, kv));
    /* 5: online softmax. Row maxima that are a result have to be exact. */
    softmax_wide(x, row_max, row_sum, alpha, w.a.row_max.address != 0, w.factor);
    round_p(p, x);
    give_p(p, row_max, w.memory, w.group);
    rescale_if_raised(o, alpha);
    /* 2: wait for V */
    if (w.replaces)
        consumer_wait<&control::v>(w.c, k);
    wgmma_fence();
    /* 6: O += P V */
    multiply_pv<sm90::KV_KEYS>(o, p, v_tile);
    wgmma_wait<0>();
    accumulators_done(o);
}

/* A tile of keys whose P the other warp group gives. */
__device__ __forceinline__ void follow_tile(float (&o)[sm90::WIDTH_DV / 2], float (&row_max)[2], float (&row_sum)[2],
                                            const wide_tile &w, const pipeline_state &k)
{
    float most[2], alpha[2];
    u64 v_tile = describe_v(w.memory, k);
    if (w.replaces)
        consumer_release<&control::v>(w.c, k);
    named_sync<256>(BARRIER_GIVEN + (w.group ^ 1));
    load_rows(most, row_places(w.memory, w.group ^ 1, 0));
    follow_maxima(most, row_max, row_sum, alpha, w.factor);
    rescale_if_raised(o, alpha);
    /* 2: wait for V */
    consumer_wait<&control::k>(w.c, k);
    if (w.replaces)
        consumer_wait<&control::v>(w.c, k);
    wgmma_fence();
    /* 6: O += P V */
    multiply_pv_wide(o, describe_again(w.memory + sm90::P_OFFSET), v_tile);
    wgmma_wait<0>();
    accumulators_done(o);
}

/* The tile's stage is free. */
__device__ __forceinline__ void next_tile(control &c, pipeline_state &k, int &kv)
{
    consumer_release<&control::k>(c, k);
    advance(k);
    kv += BLOCK_N;
}

/* O, the row maxima and sums of a tile's rows. */
template <typename sm90>
__device__ __forceinline__ void compute_wide(float (&o)[sm90::WIDTH_DV / 2], float (&row_max)[2], float (&row_sum)[2],
                                             const attune_cuda_arguments &a, const attune_cuda_serving &s, control &c,
                                             u32 memory, const work &here, int kv, int end, int group, row_states &r,
                                             pipeline_state &k, float factor)
{
    wide_tile w = {a, s, c, here, memory, group, !v_begins_with_k(a), factor};
    /* 1: wait for Q */
    consumer_wait<&control::q>(c, r.q());
    if (k.stage == (u32)group) {
        compute_tile(o, row_max, row_sum, w, k, kv);
        next_tile(c, k, kv);
    }
    /* In pairs, which compute 3 % faster than one loop with a branch for each tile. */
#pragma unroll 1
    while (kv < end) {
        follow_tile(o, row_max, row_sum, w, k);
        next_tile(c, k, kv);
        if (kv >= end)
            break;
        compute_tile(o, row_max, row_sum, w, k, kv);
        next_tile(c, k, kv);
    }
    /* The sums of both warp groups, in one of the lanes of a row, whose four are added later. */
    float other[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 1);
        row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 2);
    }
    store_rows(row_sum, row_places(memory, group, 1));
    consumers::sync();
    load_rows(other, row_places(memory, group ^ 1, 1));
#pragma unroll
    for (int half = 0; half < 2; half++)
        row_sum[half] = thread_index_remat() % 4 == 0 ? row_sum[half] + other[half] : 0.0f;
    /* After the sums, whose places the next tile of rows has too. */
    consumer_release<&control::q>(c, r.q());
    r.advance_q();
}

#endif
