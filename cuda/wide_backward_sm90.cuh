/* SPDX-License-Identifier: MIT */
/*
 * The consumers of Hopper's backward kernel for head dimensions over 128. A CTA has 64 keys. The two consumer warp
 * groups split dK, dV and dQ by columns, S and dP by rows, and exchange P and dS through shared memory. With both head
 * dimensions over 192 a cluster of two CTAs has 128 keys: pair_backward_sm90.cuh.
 */
#ifndef ATTUNE_CUDA_WIDE_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_WIDE_BACKWARD_SM90_CUH

#include "add_dq_backward_sm90.cuh"
#include "stages_backward_sm90.cuh"

/* A warp group's columns of dQ = dS^T K. */
template <int COUNT> __device__ __forceinline__ void issue_dq_wide(float (&dq)[COUNT], u32 d_s, u32 k, int group)
{
    u64 left = describe_k_major(d_s),
        right = describe_n_major(k + group * (sm90::FIRST_GROUP_D / 64) * sm90::KEY_SLAB, sm90::KEY_SLAB);
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
        wgmma<COUNT * 2>::template ss<0, 1>(dq, left + (step / 4 * sm90::ROW_SLAB + step % 4 * 32) / 16,
                                            right + step * (16 * 128 / 16), step);
    wgmma_commit();
}

/* Adds a fragment of dQ to its sums `to`, or releases it to the producer, which adds it. In place, dQ overwrites first
 * dO, then Q once dK is done. */
template <int COUNT>
__device__ __forceinline__ void add_dq_wide(const float (&dq)[COUNT], float *to, control &c, u32 memory, u32 stage,
                                            int group, u32 phase)
{
    if constexpr (sm90::DQ_ADD == DQ_ADD_IN_PLACE) {
        group_sync(group);
        store_dq<0, COUNT / 2>(dq, dq_buffer(memory, stage, group, 0));
        wgmma_wait<0>();
        group_sync(group);
        store_dq<COUNT / 2, COUNT / 2>(dq, dq_buffer(memory, stage, group, 1));
        fence_async();
        producer_commit_warp<&control::dq>(c, {(u32)group, 0});
    } else if constexpr (sm90::DQ_ADD == DQ_ADD_STAGED)
        stage_dq(dq, c, memory, group, phase);
    else
        atomic_add_fragment(dq, to);
}

/* GROUP: the index of the consumer warp group, unless both compute as many columns. */
template <typename sm90, int GROUP>
__device__ __forceinline__ void consume_wide(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                             u32 memory)
{
    constexpr int COLUMNS_D = sm90::template GROUP_D<GROUP>, COLUMNS_DV = sm90::template GROUP_DV<GROUP>;
    constexpr bool IN_PLACE = sm90::DQ_ADD == DQ_ADD_IN_PLACE;
    float factor = HAVE_SCORE ? ATTUNE_LOG2E : a.scale * ATTUNE_LOG2E;
    pipeline_state pipe = {0, 0};
    u32 ds_stage = 0;
    clear_head_sums(memory);
    for (u32 tiles_done = 0;; tiles_done++) {
        consumer_wait<&control::queries>(c, pipe);
        tile_desc desc = c.descs[pipe.stage];
        if (desc.flags & TILE_STOP)
            break;
        float dk[COLUMNS_D / 2], dv[COLUMNS_DV / 2];
        clear(dk);
        clear(dv);
        /* 1: wait for K and V */
        consumer_wait<&control::keys>(c, {0, tiles_done & 1});
        thread_coord at = coord_of_thread<GROUP>(memory);
        at.kv += c.kv;
        while (!(desc.flags & TILE_END)) {
            u32 q_tile = memory + sm90::Q_OFFSET + pipe.stage * sm90::Q_BYTES,
                do_tile = memory + sm90::DO_OFFSET + pipe.stage * sm90::DO_BYTES;
            u32 ds_tile = memory + sm90::DS_OFFSET + ds_stage * sm90::DS_BYTES;
            u32 p[sm90::GROUP_M / 16][4], d_s[sm90::GROUP_M / 16][4];
            rematerialise<GROUP>(at, c, memory);
            {
                u32 group_rows = at.group * sm90::GROUP_M * 128,
                    row_data = memory + pipe.stage * sm90::ROW_BYTES + group_rows / 32;
                capture_sums<sm90::S_FRAGMENT> sums;
                float s[sm90::S_FRAGMENT], d_p[sm90::S_FRAGMENT];
                /* 2: S^T = K Q^T */
                wgmma_fence();
                issue_s_dp<sm90::STEPS_D>(s, at.k, describe_k_major(q_tile + group_rows));
                /* 3: dP^T = V dO^T */
                wgmma_fence();
                issue_s_dp<sm90::STEPS_DV>(d_p, at.v, describe_k_major(do_tile + group_rows));
                pair_origin t = origin_of_pairs(a, g, desc, group_rows / 128, at.kv);
                clear_sums(sums);
                if constexpr (sm90::FUSED_GRADIENTS) {
                    /* 4, 5: P = exp(S - LSE), dS = P * (dP - delta) */
                    wgmma_wait<0>();
                    accumulators_done(s);
                    accumulators_done(d_p);
                    compute_p_ds(s, d_p, p, d_s, sums, t, desc, row_data + sm90::LSE_OFFSET,
                                 row_data + sm90::DELTA_OFFSET, 0);
                } else {
                    /* 4: P = exp(S - LSE) */
                    wgmma_wait<1>();
                    accumulators_done(s);
                    compute_p(s, p, a, desc, at.kv, row_data + sm90::LSE_OFFSET, factor);
                    /* 5: dS = P * (dP - delta) */
                    wgmma_wait<0>();
                    accumulators_done(d_p);
                    compute_ds(s, d_p, d_s, sums, t, row_data + sm90::DELTA_OFFSET);
                }
                add_capture_gradients(sums, t, memory);
            }
            float dq[COLUMNS_D / 2];
            u32 stage = pipe.stage;
            /* Both warp groups need the P and dS of all rows. */
            u32 group_rows = at.group * sm90::GROUP_M * 128;
            store_p_ds(p, ds_tile + group_rows);
            store_p_ds(d_s, ds_tile + sm90::ROW_SLAB + group_rows);
            fence_async();
            consumers_sync();
            float *to = dq_sums_of(g, workspace_row(a, g, desc.b, desc.h, desc.q), at.group) + threadIdx.x % 128 * 4;
            wgmma_fence();
            /* 7: dQ = dS^T K. In place, it is issued after dV, since it overwrites dO. */
            if constexpr (!IN_PLACE)
                issue_dq_wide(dq, ds_tile + sm90::ROW_SLAB, memory, at.group);
            /* 6: dV += P dO */
            issue_dk_dv_wide(dv, ds_tile, do_tile + at.group * (sm90::FIRST_GROUP_DV / 64) * sm90::ROW_SLAB);
            if constexpr (IN_PLACE)
                issue_dq_wide(dq, ds_tile + sm90::ROW_SLAB, memory, at.group);
            /* 8: dK += dS Q */
            issue_dk_dv_wide(dk, ds_tile + sm90::ROW_SLAB,
                             q_tile + at.group * (sm90::FIRST_GROUP_D / 64) * sm90::ROW_SLAB);
            /* The next tile descriptor is read while the products run. */
            advance(pipe);
            consumer_wait<&control::queries>(c, pipe);
            desc = c.descs[pipe.stage];
            wgmma_wait<IN_PLACE ? 1 : 2>();
            accumulators_done(dq);
            /* 7: add dQ */
            add_dq_wide(dq, to, c, memory, stage, at.group, ds_stage ^ 1);
            wgmma_wait<0>();
            accumulators_done(dk);
            accumulators_done(dv);
            finish_capture_gradients(a, g, c, memory, stage, desc, at.group);
            consumer_release_converged<&control::queries>(c, {stage, 0});
            ds_stage ^= 1; /* the other warp group may still read the present one */
        }
        consumer_release<&control::queries>(c, pipe);
        consumer_release_converged<&control::keys>(c, {0, 0});
        advance(pipe);
        count_warp_additions(a, g, desc.q);
        /* 9: store dK and dV */
        store_dk_dv(dk, dv, a, g, desc.q, 0, at.group, first_key_of_thread(at.group));
    }
}

#endif
