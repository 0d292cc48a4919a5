/* SPDX-License-Identifier: MIT */
/*
 * The consumers of backward_sm90.cu, in whose midst this stands, where two CTAs of a cluster are a pair. Each has 64
 * of 128 keys, and both go over the same rows at the same time. What binds wide heads otherwise are dQ's additions: here
 * each CTA computes dQ of half of the columns, over all 128 keys, which halves them. For that it has those columns
 * of the other's K, and gets the other's dS. There is room for that only where its own P was: it may come once dV is
 * done, by when the next tile's S and dP have begun, and dQ is computed behind these.
 *
 *     consumers   P and dS are there     -> ready    exchange() sends dS, once the other's `free` has come too
 *              dV is done             -> the other's `free`
 *     copy     dS is there            -> the other's `theirs`, for which dQ waits
 *     exchange the other's dS is here -> the other's `sent`: its dS may be written again
 *
 * dQ is added from registers; if in turn, it is laid over the warp group's columns of its tile's dO, whose stage is then
 * loaded again later than Q's.
 */
#ifndef ATTUNE_CUDA_PAIR_SM90_CUH
#define ATTUNE_CUDA_PAIR_SM90_CUH

/* A slab of a pair's dQ: of one half of the keys after the other. Begun. */
__device__ __forceinline__ void multiply_dq_pair(float (&dq)[32], u32 d_s, u32 k, u32 their_d_s, u32 their_k)
{
    u64 left[2] = {describe_k_major(d_s), describe_k_major(their_d_s)};
    u64 right[2] = {describe_n_major(k, KEY_SLAB), describe_n_major(their_k, KEY_SLAB)};
#pragma unroll
    for (int step = 0; step < 2 * CTA_N / 16; step++)
        wgmma<64>::ss<0, 1>(dq, left[step / 4] + step % 4 * 32 / 16, right[step / 4] + step % 4 * (16 * 128 / 16), step);
    wgmma_commit();
}

/* A slab of a pair's, over what its stage had of dO where it waits for its turn. */
__device__ __forceinline__ void give_dq_pair(const float (&dq)[32], float *to, control &c, u32 memory, u32 stage,
                                             int group)
{
    if constexpr (DQ_ADD == DQ_ADD_ATOMIC) {
        add_held(dq, to);
        return;
    }
    store_dq<0, 32>(dq, pair_dq_place(memory, stage, group));
    fence_async();
    warp_arrive(&c.dq_full[group]);
}

/* Whether a pair gives dQ away before it computes P: a score expression has no room beside it, and what waits for a
 * turn keeps dO from being loaded. */
constexpr bool EARLY = HAVE_SCORE || ORDERED;

/* Of a pair. dQ of a tile of rows is computed beside S and dP of the next one, by when the other's dS has come. */
__device__ __forceinline__ void consume_pair(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                         u32 memory)
{
    constexpr int COLUMNS_D = PART_D<0>, COLUMNS_DV = PART_DV<0>;
    int group = (int)threadIdx.x / 128 - 1, lane = (int)threadIdx.x % 32;
    u32 rank = cluster_rank(), group_share = group * SHARE * 128;
    int thread_row = (int)rank * CTA_N + (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
    u64 k = describe_k_major(memory), v = describe_k_major(memory + K_BYTES);
    u32 dq_k = memory + (rank * 2 + group) * KEY_SLAB, their_k = memory + PEER_K_OFFSET + group * KEY_SLAB;
    float factor = HAVE_SCORE ? ATTUNE_LOG2E : a.scale * ATTUNE_LOG2E;
    pipeline_state r = {0, 0};
    u32 phase = 0; /* of a tile of rows */
    for (u32 round = 0;; round++) {
        barrier_wait(&c.full[r.stage], r.phase);
        tile_desc n = c.descs[r.stage];
        if (n.flags & TILE_STOP)
            break;
        float dk[COLUMNS_D / 2], dv[COLUMNS_DV / 2];
        clear(dk);
        clear(dv);
        barrier_wait(&c.keys_full, round & 1);
        int kv = c.kv + thread_row;
        u32 before = STAGES; /* the stage of the tile whose dQ is due, and where it belongs */
        float *to = 0;
        while (!(n.flags & TILE_END)) {
            u32 q_tile = memory + Q_OFFSET + r.stage * Q_BYTES, do_tile = memory + DO_OFFSET + r.stage * DO_BYTES;
            u32 p[SHARE / 16][4], d_s[SHARE / 16][4], stage = r.stage;
            float dq[32];
            {
                float s[TILE], d_p[TILE];
                wgmma_fence();
                multiply_keys<STEPS_D>(s, k, describe_k_major(q_tile + group_share));
                if (before < STAGES)
                    barrier_wait_peer(&c.theirs, phase ^ 1);
                wgmma_fence();
                multiply_dq_pair(dq, memory + DS_OFFSET, dq_k, memory + P_OFFSET, their_k);
                multiply_keys<STEPS_DV>(d_p, v, describe_k_major(do_tile + group_share));
                if constexpr (EARLY) {
                    wgmma_wait<1>();
                    accumulators_done(dq);
                    asm volatile("bar.sync 1, 256;" ::: "memory");
                    if (before < STAGES)
                        give_dq_pair(dq, to, c, memory, before, group);
                }
                wgmma_wait<EARLY ? 1 : 2>();
                accumulators_done(s);
                probabilities(s, p, a, n, kv, memory + LSE_OFFSET + r.stage * ROW_BYTES + group_share / 32, factor);
                if constexpr (!EARLY) {
                    wgmma_wait<1>();
                    accumulators_done(dq);
                    if (before < STAGES)
                        give_dq_pair(dq, to, c, memory, before, group);
                }
                wgmma_wait<0>();
                accumulators_done(d_p);
                differences(s, d_p, d_s, memory + DELTA_OFFSET + r.stage * ROW_BYTES + group_share / 32);
            }
            barrier_wait_peer(&c.sent, phase ^ 1);
            if constexpr (!EARLY)
                asm volatile("bar.sync 1, 256;" ::: "memory");
            store_piece(p, memory + P_OFFSET + group_share);
            store_piece(d_s, memory + DS_OFFSET + group_share);
            fence_async();
            asm volatile("bar.sync 1, 256;" ::: "memory");
            if (threadIdx.x == 128)
                barrier_arrive(&c.ready);
            wgmma_fence();
            multiply_rows_wide(dv, memory + P_OFFSET, do_tile + group * (FIRST_DV / 64) * ROW_SLAB);
            multiply_rows_wide(dk, memory + DS_OFFSET, q_tile + group * (FIRST_D / 64) * ROW_SLAB);
            to = pair_sums_at(g, row_at(a, g, n.b, n.h, n.q), rank, group) + threadIdx.x % 128 * 4;
            advance(r);
            wgmma_wait<1>();
            __syncwarp();
            if (lane < ATTUNE_ARRIVALS)
                barrier_arrive_peer(&c.free);
            barrier_wait(&c.full[r.stage], r.phase);
            n = c.descs[r.stage];
            wgmma_wait<0>();
            accumulators_done(dk);
            accumulators_done(dv);
            lane_arrive(&c.empty_q[stage]);
            if (DQ_ADD == DQ_ADD_ATOMIC)
                lane_arrive(&c.empty[stage]);
            before = stage;
            phase ^= 1;
        }
        if (before < STAGES) {
            float dq[32];
            barrier_wait_peer(&c.theirs, phase ^ 1);
            wgmma_fence();
            multiply_dq_pair(dq, memory + DS_OFFSET, dq_k, memory + P_OFFSET, their_k);
            wgmma_wait<0>();
            accumulators_done(dq);
            group_sync(group);
            give_dq_pair(dq, to, c, memory, before, group);
        }
        warp_arrive(&c.empty_q[r.stage]);
        if (DQ_ADD == DQ_ADD_ATOMIC)
            lane_arrive(&c.empty[r.stage]);
        lane_arrive(&c.keys_empty);
        advance(r);
        if (SPLIT_TAIL && n.q >= g.full_wave_tiles && !add_tail_split(dk, dv, g, n.q, (int)rank, group))
            continue;
        column at = column_at(a, g, n.q);
        bool good = true;
        int row = at.kv + thread_row;
        store<COLUMNS_D, HEAD_DIM>(dk, g.d_k, at.b, at.h_kv, row, a.kv_len, group * FIRST_D, a.scale, good);
        store<COLUMNS_DV, HEAD_DIM_V>(dv, g.d_v, at.b, at.h_kv, row, a.kv_len, group * FIRST_DV, 1.0f, good);
        if (!good)
            *(volatile int *)g.redo = 1;
    }
}

#endif
