/* SPDX-License-Identifier: MIT */
/*
 * The consumers of Hopper's backward kernel with a cluster of two CTAs. Each CTA has 64 of 128 keys, and both process
 * the same query tiles at the same time. Wide heads are otherwise bound by the additions to dQ in global memory. Here
 * each CTA computes half of dQ's columns over all 128 keys, which halves the additions. This takes the peer's K of
 * those columns, loaded once, and the peer's dS of every query tile.
 *
 * Shared memory has space for the peer's dS only in the buffer of P, once dV is done. By then the next tile's S and dP
 * have been issued, and dQ is issued after them. Barriers, for each query tile:
 *
 *     ds_ready      consumers -> exchange_ds          this CTA's P and dS are stored
 *     peer_p_empty  consumers -> peer's exchange_ds   dV is done: the peer may copy its dS over P
 *     peer_ds_full  copy      -> peer's consumers     dS has arrived: dQ may be issued
 *     ds_empty      peer's exchange_ds -> consumers   the peer has this CTA's dS, which may be overwritten
 *
 * dQ is added from registers. In a fixed order it is stored over the warp group's columns of its tile's dO, whose
 * buffer becomes empty later than Q's.
 */
#ifndef ATTUNE_CUDA_PAIR_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_PAIR_BACKWARD_SM90_CUH

#include "add_dq_backward_sm90.cuh"
#include "stages_backward_sm90.cuh"

/* A slab of dQ = dS^T K, first over the keys of this CTA, then over those of the peer. Not waited for. */
__device__ __forceinline__ void issue_dq_pair(float (&dq)[32], u32 d_s, u32 k, u32 peer_d_s, u32 peer_k)
{
    u64 left[2] = {describe_k_major(d_s), describe_k_major(peer_d_s)};
    u64 right[2] = {describe_n_major(k, sm90::KEY_SLAB), describe_n_major(peer_k, sm90::KEY_SLAB)};
#pragma unroll
    for (int step = 0; step < 2 * sm90::CTA_N / 16; step++)
        wgmma<64>::ss<0, 1>(dq, left[step / 4] + step % 4 * 32 / 16, right[step / 4] + step % 4 * (16 * 128 / 16),
                            step);
    wgmma_commit();
}

/* Adds a slab of dQ. In a fixed order it is stored over the dO of its stage, from where the producer adds it. */
__device__ __forceinline__ void add_dq_pair(const float (&dq)[32], float *to, control &c, u32 memory, u32 stage,
                                            int group)
{
    if constexpr (sm90::DQ_ADD == DQ_ADD_ATOMIC) {
        atomic_add_fragment(dq, to);
        return;
    }
    store_dq<0, 32>(dq, pair_dq_buffer(memory, stage, group));
    fence_async();
    producer_commit_warp<&control::dq>(c, {(u32)group, 0});
}

/* Copies dS of each query tile to the cluster peer, and signals the peer when its dS has arrived here. */
__device__ __forceinline__ void exchange_ds(control &c, u32 memory)
{
    pipeline_state pipe = {0, 0};
    u32 phase = 0;
    for (;; advance(pipe)) {
        consumer_wait<&control::queries>(c, pipe);
        int flags = c.descs[pipe.stage].flags;
        consumer_release_thread<&control::queries>(c, pipe);
        if (flags & TILE_STOP)
            break;
        if (flags & TILE_END)
            continue;
        barrier_expect(&c.peer_ds_full, sm90::ROW_SLAB);
        barrier_wait(&c.ds_ready, phase);
        barrier_wait_peer(&c.peer_p_empty, phase);
        copy_peer(memory + sm90::P_OFFSET, memory + sm90::DS_OFFSET, sm90::ROW_SLAB, &c.peer_ds_full);
        barrier_wait_peer(&c.peer_ds_full, phase);
        barrier_arrive_peer(&c.ds_empty);
        phase ^= 1;
    }
}

/* dQ of a query tile is computed with S and dP of the next one, by when the peer's dS has arrived. */
template <typename sm90>
__device__ __forceinline__ void consume_pair(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                             u32 memory)
{
    constexpr int COLUMNS_D = sm90::template GROUP_D<0>, COLUMNS_DV = sm90::template GROUP_DV<0>;
    int group = (int)threadIdx.x / 128 - 1, lane = (int)threadIdx.x % 32;
    u32 rank = cluster_rank(), group_m = group * sm90::GROUP_M * 128;
    int thread_row = (int)rank * sm90::CTA_N + (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
    u64 k = describe_k_major(memory), v = describe_k_major(memory + sm90::K_BYTES);
    u32 dq_k = memory + (rank * 2 + group) * sm90::KEY_SLAB,
        peer_k = memory + sm90::PEER_K_OFFSET + group * sm90::KEY_SLAB;
    float factor = HAVE_SCORE ? ATTUNE_LOG2E : a.scale * ATTUNE_LOG2E;
    pipeline_state pipe = {0, 0};
    u32 phase = 0; /* of the cluster barriers; changes with every query tile */
    for (u32 tiles_done = 0;; tiles_done++) {
        consumer_wait<&control::queries>(c, pipe);
        tile_desc desc = c.descs[pipe.stage];
        if (desc.flags & TILE_STOP)
            break;
        float dk[COLUMNS_D / 2], dv[COLUMNS_DV / 2];
        clear(dk);
        clear(dv);
        /* 1: wait for K, V and the peer's K */
        consumer_wait<&control::keys>(c, {0, tiles_done & 1});
        int kv = c.kv + thread_row;
        u32 pending = STAGES; /* stage of the tile whose dQ is pending, and its sums */
        float *to = 0;
        while (!(desc.flags & TILE_END)) {
            u32 q_tile = memory + sm90::Q_OFFSET + pipe.stage * sm90::Q_BYTES,
                do_tile = memory + sm90::DO_OFFSET + pipe.stage * sm90::DO_BYTES;
            u32 p[sm90::GROUP_M / 16][4], d_s[sm90::GROUP_M / 16][4], stage = pipe.stage;
            float dq[32];
            {
                float s[sm90::S_FRAGMENT], d_p[sm90::S_FRAGMENT];
                /* 2: S^T = K Q^T */
                wgmma_fence();
                issue_s_dp<sm90::STEPS_D>(s, k, describe_k_major(q_tile + group_m));
                /* 7: dQ = dS^T K of the previous query tile. The first time its result is not used. */
                if (pending < STAGES)
                    barrier_wait_peer(&c.peer_ds_full, phase ^ 1);
                wgmma_fence();
                issue_dq_pair(dq, memory + sm90::DS_OFFSET, dq_k, memory + sm90::P_OFFSET, peer_k);
                /* 3: dP^T = V dO^T */
                issue_s_dp<sm90::STEPS_DV>(d_p, v, describe_k_major(do_tile + group_m));
                if constexpr (sm90::EARLY_DQ) {
                    wgmma_wait<1>();
                    accumulators_done(dq);
                    consumers_sync();
                    if (pending < STAGES)
                        add_dq_pair(dq, to, c, memory, pending, group);
                }
                /* 4: P = exp(S - LSE) */
                wgmma_wait<sm90::EARLY_DQ ? 1 : 2>();
                accumulators_done(s);
                compute_p(s, p, a, desc, kv, memory + sm90::LSE_OFFSET + pipe.stage * sm90::ROW_BYTES + group_m / 32,
                          factor);
                if constexpr (!sm90::EARLY_DQ) {
                    wgmma_wait<1>();
                    accumulators_done(dq);
                    if (pending < STAGES)
                        add_dq_pair(dq, to, c, memory, pending, group);
                }
                /* 5: dS = P * (dP - delta) */
                wgmma_wait<0>();
                accumulators_done(d_p);
                compute_ds(s, d_p, d_s, memory + sm90::DELTA_OFFSET + pipe.stage * sm90::ROW_BYTES + group_m / 32);
            }
            /* The buffers of P and dS may be overwritten: the peer has this dS, and all products have read them. */
            barrier_wait_peer(&c.ds_empty, phase ^ 1);
            if constexpr (!sm90::EARLY_DQ)
                consumers_sync();
            store_p_ds(p, memory + sm90::P_OFFSET + group_m);
            store_p_ds(d_s, memory + sm90::DS_OFFSET + group_m);
            fence_async();
            consumers_sync();
            if (threadIdx.x == 128)
                barrier_arrive(&c.ds_ready);
            wgmma_fence();
            /* 6: dV += P dO */
            issue_dk_dv_wide(dv, memory + sm90::P_OFFSET,
                             do_tile + group * (sm90::FIRST_GROUP_DV / 64) * sm90::ROW_SLAB);
            /* 8: dK += dS Q */
            issue_dk_dv_wide(dk, memory + sm90::DS_OFFSET,
                             q_tile + group * (sm90::FIRST_GROUP_D / 64) * sm90::ROW_SLAB);
            to = pair_dq_sums_of(g, workspace_row(a, g, desc.b, desc.h, desc.q), rank, group) + threadIdx.x % 128 * 4;
            advance(pipe);
            wgmma_wait<1>();
            __syncwarp();
            if (lane < ARRIVALS)
                barrier_arrive_peer(&c.peer_p_empty);
            consumer_wait<&control::queries>(c, pipe);
            desc = c.descs[pipe.stage];
            wgmma_wait<0>();
            accumulators_done(dk);
            accumulators_done(dv);
            lane_arrive(&c.q_empty[stage]);
            if (sm90::DQ_ADD == DQ_ADD_ATOMIC)
                consumer_release_converged<&control::queries>(c, {stage, 0});
            pending = stage;
            phase ^= 1;
        }
        /* 7: dQ of the last query tile */
        if (pending < STAGES) {
            float dq[32];
            barrier_wait_peer(&c.peer_ds_full, phase ^ 1);
            wgmma_fence();
            issue_dq_pair(dq, memory + sm90::DS_OFFSET, dq_k, memory + sm90::P_OFFSET, peer_k);
            wgmma_wait<0>();
            accumulators_done(dq);
            group_sync(group);
            add_dq_pair(dq, to, c, memory, pending, group);
        }
        warp_arrive(&c.q_empty[pipe.stage]);
        if (sm90::DQ_ADD == DQ_ADD_ATOMIC)
            consumer_release_converged<&control::queries>(c, pipe);
        consumer_release_converged<&control::keys>(c, {0, 0});
        advance(pipe);
        count_warp_additions(a, g, desc.q);
        /* 9: store dK and dV */
        store_dk_dv(dk, dv, a, g, desc.q, (int)rank, group, thread_row);
    }
}

#endif
