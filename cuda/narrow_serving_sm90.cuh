/* SPDX-License-Identifier: MIT */
/*
 * A consumer of serving_sm90.cu for values of up to 256 columns, which has 64 rows of a tile. As in forward_sm90.cu it
 * issues Q K of key tile j + 1 before P V of tile j, and two of them issue products in turn.
 */
#ifndef ATTUNE_CUDA_NARROW_SERVING_SM90_CUH
#define ATTUNE_CUDA_NARROW_SERVING_SM90_CUH

#include "scores_serving_sm90.cuh"

/* O, the row maxima and sums of a tile's rows. A template, as that of wide values, so that only the one which is called
 * is compiled. */
template <typename sm90>
__device__ __forceinline__ void compute_narrow(float (&o)[sm90::WIDTH_DV / 2], float (&row_max)[2], float (&row_sum)[2],
                                               const attune_cuda_arguments &a, const attune_cuda_serving &s, control &c,
                                               u32 memory, const work &here, int kv, int end, int group, row_states &r,
                                               pipeline_state &k, float factor)
{
    const tile &t = here.of;
    bool in_turn = uniform(t.row + 64 < t.rows); /* the other warp group has rows too */
    u64 q_tile = describe_k_major(memory + (u32)group * 64 * 128), k_tile = describe_k(memory, k), v_tile;
    float x[BLOCK_N / 2], alpha[2];
    u32 p[BLOCK_N / 16][4];
    key_bits there;
    /* 1, 2: wait for Q, and for K */
    consumer_wait<&control::q>(c, r.q());
    consumer_wait<&control::k>(c, k);
    if (in_turn)
        ping_pong_wait(group);
    wgmma_fence();
    /* 3: S = Q K^T */
    multiply_qk(x, q_tile, k_tile);
    if (in_turn)
        ping_pong_arrive(group);
    load_there(there, c, k.stage);
    wgmma_wait<0>();
    accumulators_done(x);
    consumer_release<&control::k>(c, k);
    advance(k);
    /* 4: score and mask hook */
    modify_scores(x, a, s, t, kv, there, sees_all(here, kv));
    /* 5: online softmax */
    softmax(x, row_max, row_sum, alpha, factor);
    round_p(p, x);
    /* As in forward_sm90.cu: no attempt without rescale. */
    bool rising = has_large_scores(row_max, factor);
#pragma unroll 1
    for (kv += BLOCK_N; kv < end; kv += BLOCK_N) {
        k_tile = describe_k(memory, k);
        pipeline_state v = before(k); /* of the tile before, as V's stages are those of K */
        v_tile = describe_v(memory, v);
        /* 2: wait for K of the next key tile */
        consumer_wait<&control::k>(c, k);
        if (in_turn)
            ping_pong_wait(group);
        wgmma_fence();
        /* 3: S = Q K^T */
        multiply_qk(x, q_tile, k_tile);
        /* 2: wait for V of this key tile */
        consumer_wait<&control::v>(c, v);
        wgmma_fence();
        /* 6: O += P V */
        multiply_pv(o, p, v_tile);
        if (in_turn)
            ping_pong_arrive(group);
        load_there(there, c, k.stage);
        wgmma_wait<1>(); /* S is done, O may not be */
        accumulators_done(x);
        consumer_release<&control::k>(c, k);
        advance(k);
        /* 4: score and mask hook */
        modify_scores(x, a, s, t, kv, there, sees_all(here, kv));
        wgmma_wait<0>();
        accumulators_done(o);
        consumer_release<&control::v>(c, v);
        /* 5: online softmax. Row maxima that are a result have to be exact. */
        if (rising || a.row_max.address || !softmax_without_rescale(p, x, row_max, row_sum, factor)) {
            softmax(x, row_max, row_sum, alpha, factor);
            rescale(o, alpha);
            round_p(p, x);
            rising = __any_sync(0xffffffffu, fminf(alpha[0], alpha[1]) < 1.0f / RESCALE_THRESHOLD) ||
                     has_large_scores(row_max, factor);
        }
    }
    consumer_release<&control::q>(c, r.q());
    r.advance_q();
    pipeline_state v = before(k);
    v_tile = describe_v(memory, v);
    /* 2: wait for the last V */
    consumer_wait<&control::v>(c, v);
    if (in_turn)
        ping_pong_wait(group);
    wgmma_fence();
    /* 6: O += P V */
    multiply_pv(o, p, v_tile);
    if (in_turn)
        ping_pong_arrive(group);
    wgmma_wait<0>();
    accumulators_done(o);
    consumer_release<&control::v>(c, v);
}

#endif
