/* SPDX-License-Identifier: MIT */
/*
 * The consumers of Hopper's backward kernel for head dimensions up to 128. A tile has 128 keys, 64 for each consumer
 * warp group. S and dP are transposed, so that P and dS are in registers the left operands of dV += P dO and
 * dK += dS Q. For dQ both warp groups store dS to shared memory; each computes a fragment of dQ over all keys, and a
 * warp of the producer adds it to float32 sums in global memory, whose order is that of the fragments.
 */
#ifndef ATTUNE_CUDA_NARROW_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_NARROW_BACKWARD_SM90_CUH

#include "stages_backward_sm90.cuh"

/* dV += P dO or dK += dS Q, with P or dS in registers. */
template <int WIDTH>
__device__ __forceinline__ void issue_dk_dv(float (&d)[WIDTH / 2], const u32 (&p)[sm90::GROUP_M / 16][4], u64 rows)
{
#pragma unroll
    for (int step = 0; step < sm90::GROUP_M / 16; step++)
        wgmma<WIDTH>::rs(d, p[step], rows + step * (16 * 128 / 16));
    wgmma_commit();
}

/* A warp group's fragment of dQ = dS^T K; transposed, dQ^T = K^T dS. */
__device__ __forceinline__ void issue_dq(float (&dq)[sm90::DQ_WIDTH / 2], u32 d_s, u32 k, int group)
{
    u64 left = sm90::DQ_TRANSPOSED ? describe_n_major(k + group * sm90::KEY_SLAB, sm90::KEY_SLAB)
                                   : describe_k_major(d_s + (sm90::DQ_SPLIT_ROWS ? group * 64 * 128 : 0));
    u64 right = sm90::DQ_TRANSPOSED
                    ? describe_k_major(d_s)
                    : describe_n_major(k + (sm90::DQ_SPLIT_ROWS ? 0 : group * sm90::DQ_WIDTH * 2), sm90::KEY_SLAB);
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++) {
        u32 transposed = step * (16 * 128 / 16), straight = (step / 4 * sm90::ROW_SLAB + step % 4 * 32) / 16;
        if constexpr (sm90::DQ_TRANSPOSED)
            wgmma<sm90::DQ_WIDTH>::ss<1, 0>(dq, left + transposed, right + straight, step);
        else
            wgmma<sm90::DQ_WIDTH>::ss<0, 1>(dq, left + straight, right + transposed, step);
    }
    wgmma_commit();
}

template <typename sm90>
__device__ __forceinline__ void consume_narrow(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                               control &c, u32 memory)
{
    float factor = HAVE_SCORE ? ATTUNE_LOG2E : a.scale * ATTUNE_LOG2E;
    pipeline_state pipe = {0, 0};
    u32 ds_stage = 0, dq_phase = 1;
    clear_head_sums(memory);
    const thread_coord origin = coord_of_thread(memory);
    for (u32 tiles_done = 0;; tiles_done++) {
        consumer_wait<&control::queries>(c, pipe);
        tile_desc desc = c.descs[pipe.stage];
        if (desc.flags & TILE_STOP)
            break;
        float dk[sm90::WIDTH_D / 2], dv[sm90::WIDTH_DV / 2];
        clear(dk);
        clear(dv);
        /* 1: wait for K and V */
        consumer_wait<&control::keys>(c, {0, tiles_done & 1});
        thread_coord at = origin;
        at.kv += c.kv;
        if constexpr (config::SCORE_TILE > 0)
            if (!(desc.flags & TILE_END))
                copy_capture_tile(a, desc, first_key_of_warp(at), memory);
        while (!(desc.flags & TILE_END)) {
            u32 q_tile = memory + sm90::Q_OFFSET + pipe.stage * sm90::Q_BYTES,
                do_tile = memory + sm90::DO_OFFSET + pipe.stage * sm90::DO_BYTES;
            u32 ds_tile = memory + sm90::DS_OFFSET + ds_stage * sm90::DS_BYTES;
            u32 p[sm90::GROUP_M / 16][4], d_s[sm90::GROUP_M / 16][4];
            rematerialise(at, c, memory);
            capture_sums<sm90::S_FRAGMENT> sums;
#pragma unroll
            for (int chunk = 0; chunk < sm90::S_CHUNKS; chunk++) {
                u32 chunk_rows = chunk * (sm90::S_FRAGMENT * 2) * 128;
                u32 row_data = memory + pipe.stage * sm90::ROW_BYTES + chunk_rows / 32;
                float s[sm90::S_FRAGMENT], d_p[sm90::S_FRAGMENT];
                /* 2: S^T = K Q^T */
                wgmma_fence();
                issue_s_dp<sm90::STEPS_D>(s, at.k, describe_k_major(q_tile + chunk_rows));
                /* 3: dP^T = V dO^T */
                if constexpr (!sm90::LATE_DP) {
                    wgmma_fence();
                    issue_s_dp<sm90::STEPS_DV>(d_p, at.v, describe_k_major(do_tile + chunk_rows));
                }
                pair_origin t = origin_of_pairs(a, g, desc, chunk_rows / 128, at.kv);
                clear_sums(sums);
                if constexpr (sm90::FUSED_GRADIENTS) {
                    /* 4, 5: P = exp(S - LSE), dS = P * (dP - delta) */
                    wgmma_wait<0>();
                    accumulators_done(s);
                    accumulators_done(d_p);
                    compute_p_ds(s, d_p, p, d_s, sums, t, desc, row_data + sm90::LSE_OFFSET,
                                 row_data + sm90::DELTA_OFFSET, chunk, wait_capture_tile(memory, chunk_rows / 128));
                } else {
                    /* 4: P = exp(S - LSE) */
                    wgmma_wait<!sm90::LATE_DP>();
                    accumulators_done(s);
                    compute_p(s, p, a, desc, at.kv, row_data + sm90::LSE_OFFSET, factor,
                              wait_capture_tile(memory, chunk_rows / 128));
                    if constexpr (sm90::LATE_DP) {
                        /* 6: dV += P dO */
                        wgmma_fence();
                        issue_dk_dv<sm90::WIDTH_DV>(dv, p, describe_n_major(do_tile, sm90::ROW_SLAB));
                        /* 3: dP^T = V dO^T */
                        issue_s_dp<sm90::STEPS_DV>(d_p, at.v, describe_k_major(do_tile));
                    }
                    /* 5: dS = P * (dP - delta) */
                    wgmma_wait<0>();
                    accumulators_done(d_p);
                    compute_ds(s, d_p, d_s, sums, t, row_data + sm90::DELTA_OFFSET);
                }
                if constexpr (!sm90::OVERLAP_GRADIENTS)
                    add_capture_gradients(sums, t, memory);
            }
            /* 6: dV += P dO */
            if constexpr (!sm90::LATE_DP) {
                wgmma_fence();
                issue_dk_dv<sm90::WIDTH_DV>(dv, p, describe_n_major(do_tile, sm90::ROW_SLAB));
            }
            /* 7: dQ = dS^T K over the keys of both warp groups */
            float dq[sm90::DQ_WIDTH / 2];
            u32 stage = pipe.stage;
            store_p_ds(d_s, ds_tile + at.group * sm90::ROW_SLAB);
            fence_async();
            consumers_sync();
            wgmma_fence();
            issue_dq(dq, ds_tile, memory, at.group);
            /* 8: dK += dS Q */
            issue_dk_dv<sm90::WIDTH_D>(dk, d_s, describe_n_major(q_tile, sm90::ROW_SLAB));
            if constexpr (sm90::OVERLAP_GRADIENTS)
                add_capture_gradients(sums, origin_of_pairs(a, g, desc, 0, at.kv), memory);
            /* The next tile descriptor is read while the products run. */
            advance(pipe);
            consumer_wait<&control::queries>(c, pipe);
            desc = c.descs[pipe.stage];
            if constexpr (config::SCORE_TILE > 0)
                if (!(desc.flags & TILE_END))
                    copy_capture_tile(a, desc, first_key_of_warp(at), memory);
            wgmma_wait<1>();
            accumulators_done(dq);
            /* 7: dQ is released to the producer, which adds it */
            /* With capture gradients one register is enough: both change with every query tile. */
            stage_dq(dq, c, memory, at.group, sm90::HAVE_CAPTURE_GRADIENTS ? ds_stage ^ 1 : dq_phase);
            dq_phase ^= 1;
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
        /* 9: store dK and dV */
        store_dk_dv(dk, dv, a, g, desc.q, 0, at.group,
                    sm90::HAVE_CAPTURE_GRADIENTS ? first_key_of_thread(at.group) : origin.kv);
    }
}

#endif
