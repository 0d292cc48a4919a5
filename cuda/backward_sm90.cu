/* SPDX-License-Identifier: MIT */
/*
 * The backward pass on Hopper. attune_delta runs before it; attune_backward_dq_sm90 scales and rounds dQ after it.
 *
 * A CTA computes dK and dV of one tile of keys at a time, over all queries of all heads that attend to it. Warp group 0
 * is the producer (producer_backward_sm90.cuh); warp groups 1 and 2 are consumers, which keep dK and dV in registers:
 *
 *     1  load K V; for each query tile: load Q dO, LSE, delta       producer
 *     2  S^T = K Q^T                                                issue_s_dp
 *     3  dP^T = V dO^T                                              issue_s_dp
 *     4  P = exp(S - LSE)                                           compute_p
 *     5  dS = P * (dP - delta)                                      compute_ds
 *     6  dV += P dO                                                 issue_dk_dv
 *     7  dQ += dS^T K                                               issue_dq, add_dq
 *     8  dK += dS Q                                                 issue_dk_dv
 *     9  store dK dV                                                store_gradient
 *
 * Narrow heads (up to 128): a tile has 128 keys, 64 for each consumer warp group. S and dP are transposed, so that P
 * and dS are in registers the left operands of dV += P dO and dK += dS Q. For dQ both warp groups store dS to shared
 * memory; each computes a fragment of dQ over all keys, and a warp of the producer adds it to float32 sums in global
 * memory, whose order is that of the fragments. Without ATTUNE_DETERMINISTIC the order of the additions is not fixed,
 * and dQ may differ in its last bits from run to run.
 *
 * Wide heads: a CTA has 64 keys. The warp groups split dK, dV and dQ by columns, S and dP by rows, and exchange P and
 * dS through shared memory. With heads over 192 a cluster of two CTAs has 128 keys (pair_sm90.cuh).
 *
 * A value in K, V, Q or dO that is not finite gives NaN even at forbidden pairs. Then a flag makes the kernels of
 * backward_sm80.cu, launched after this one, recompute all gradients; otherwise they return at once.
 *
 * A thread holds of each 16 x 8 fragment of an accumulator rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and
 * + 1.
 */
#include "scores_backward_sm90.cuh"
#include "wgmma.cuh"

/* ----------------------------------------------------------------------------------------------------- instructions */

/* Stores four 8 x 8 matrices, transposed. */
__device__ __forceinline__ void store_transposed(u32 at, const u32 (&x)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* ----------------------------------------------------------------------------------------------------------- stages */

/* S^T = K Q^T or dP^T = V dO^T: [keys][rows]. All issue_ functions commit and do not wait. */
template <int STEPS> __device__ __forceinline__ void issue_s_dp(float (&s)[S_FRAGMENT], u64 keys, u64 rows)
{
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        wgmma<GROUP_M / S_CHUNKS>::ss(s, keys + (step / 4 * KEY_SLAB + step % 4 * 32) / 16,
                                      rows + (step / 4 * ROW_SLAB + step % 4 * 32) / 16, step);
    wgmma_commit();
}

/* dV += P dO or dK += dS Q, with P or dS in registers. */
template <int WIDTH>
__device__ __forceinline__ void issue_dk_dv(float (&d)[WIDTH / 2], const u32 (&p)[GROUP_M / 16][4], u64 rows)
{
#pragma unroll
    for (int step = 0; step < GROUP_M / 16; step++)
        wgmma<WIDTH>::rs(d, p[step], rows + step * (16 * 128 / 16));
    wgmma_commit();
}

/* The same for the columns of one warp group, with P or dS in shared memory: [row][key]. */
template <int COUNT> __device__ __forceinline__ void issue_dk_dv_wide(float (&d)[COUNT], u32 p, u32 rows)
{
    u64 left = describe_n_major(p, 0), right = describe_n_major(rows, ROW_SLAB);
#pragma unroll
    for (int step = 0; step < BLOCK_M / 16; step++)
        wgmma<COUNT * 2>::template ss<1, 1>(d, left + step * (16 * 128 / 16), right + step * (16 * 128 / 16), 1);
    wgmma_commit();
}

/* a warp group's fragment of dQ = dS^T K; transposed, dQ^T = K^T dS. */
template <int COUNT> __device__ __forceinline__ void issue_dq(float (&dq)[COUNT], u32 d_s, u32 k, int group)
{
    u64 left = DQ_TRANSPOSED ? describe_n_major(k + group * KEY_SLAB, KEY_SLAB)
                             : describe_k_major(d_s + (DQ_SPLIT_ROWS ? group * 64 * 128 : 0));
    u64 right = DQ_TRANSPOSED ? describe_k_major(d_s)
                              : describe_n_major(k + (DQ_SPLIT_ROWS ? 0
                                                      : WIDE        ? group * (FIRST_GROUP_D / 64) * KEY_SLAB
                                                                    : group * DQ_WIDTH * 2),
                                                 KEY_SLAB);
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++) {
        u32 transposed = step * (16 * 128 / 16), straight = (step / 4 * ROW_SLAB + step % 4 * 32) / 16;
        if constexpr (DQ_TRANSPOSED)
            wgmma<COUNT * 2>::template ss<1, 0>(dq, left + transposed, right + straight, step);
        else
            wgmma<COUNT * 2>::template ss<0, 1>(dq, left + straight, right + transposed, step);
    }
    wgmma_commit();
}

/* P or dS to shared memory: [row][key], a slab of 64 keys. */
__device__ __forceinline__ void store_p_ds(const u32 (&d_s)[GROUP_M / 16][4], u32 slab)
{
    int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
    u32 at = slab + (lane / 16 * 8 + lane % 8) * 128 + ((warp * 2 + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
    for (int step = 0; step < GROUP_M / 16; step++)
        store_transposed(at + step * 16 * 128, d_s[step]);
}

/* Barrier 0 is __syncthreads. */
enum named_barrier { BARRIER_CONSUMERS = 1, BARRIER_GROUP_0, BARRIER_GROUP_1 };

/* Both consumer warp groups: their P and dS are in shared memory, or have been read. */
__device__ __forceinline__ void consumers_sync()
{
    asm volatile("bar.sync %0, 256;" ::"n"((int)BARRIER_CONSUMERS) : "memory");
}

/* A wait for wgmma covers the products of the calling warp alone. Before a right operand is overwritten, all four warps
 * of the group must have waited. */
__device__ __forceinline__ void group_sync(int group)
{
    if (group == 0)
        asm volatile("bar.sync %0, 128;" ::"n"((int)BARRIER_GROUP_0) : "memory");
    else
        asm volatile("bar.sync %0, 128;" ::"n"((int)BARRIER_GROUP_1) : "memory");
}

/* Stores MANY of the accumulators of each thread, from FIRST on, as consecutive 16-byte words of the warp group. */
template <int FIRST, int MANY, int COUNT> __device__ __forceinline__ void store_dq(const float (&dq)[COUNT], u32 to)
{
    to += (u32)thread_index() % 128 * 16;
#pragma unroll
    for (int i = 0; i < MANY; i += 4)
        asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to + i / 4 * 128 * 16), "f"(dq[FIRST + i]),
                     "f"(dq[FIRST + i + 1]), "f"(dq[FIRST + i + 2]), "f"(dq[FIRST + i + 3])
                     : "memory");
}

/* DQ_ADD_STAGED: stores dQ for the producer to add, once it has added the previous fragment. */
template <int COUNT>
__device__ __forceinline__ void stage_dq(const float (&dq)[COUNT], control &c, u32 memory, int group, u32 &phase)
{
    barrier_wait(&c.dq_empty[group], phase);
    phase ^= 1;
    store_dq<0, COUNT>(dq, memory + DQ_OFFSET + group * GROUP_DQ_BYTES<0>);
    fence_async();
    warp_arrive(&c.dq_full[group]);
}

/* Adds a warp group's accumulators to sums in fragment layout. */
template <int COUNT> __device__ __forceinline__ void atomic_add_fragment(const float (&dq)[COUNT], float *to)
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to + i / 4 * 128 * 4), "f"(dq[i]),
                     "f"(dq[i + 1]), "f"(dq[i + 2]), "f"(dq[i + 3])
                     : "memory");
}

/* dK or dV to global memory. row: the first row of the thread; first: the first column. */
template <int WIDTH, int COLUMNS>
__device__ __forceinline__ void store_gradient(const float (&d)[WIDTH / 2], const attune_cuda_view &v, int b, int h,
                                               int row, int rows, int first, float factor, bool &finite)
{
    float nan_if_non_finite = 0.0f;
    int lane = thread_index() % 32;
    element *base = (element *)v.address + b * v.batch + h * v.head;
    bool paired = ((v.address | (u64)(v.batch | v.head | v.row) * sizeof(element)) & 3) == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int kv = row + half * 8;
        if (kv >= rows)
            continue;
        element *to = base + kv * v.row + first + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            nan_if_non_finite =
                __fmaf_rn(d[n * 4 + half * 2], 0.0f, __fmaf_rn(d[n * 4 + half * 2 + 1], 0.0f, nan_if_non_finite));
            if (first + n * 8 >= COLUMNS || (COLUMNS % 8 && first + n * 8 + lane % 4 * 2 >= COLUMNS))
                continue;
            u32 two = pack(d[n * 4 + half * 2] * factor, d[n * 4 + half * 2 + 1] * factor);
            if (paired && COLUMNS % 2 == 0) {
                *(u32 *)(to + n * 8) = two;
            } else {
                to[n * 8] = (element)two;
                if (COLUMNS % 2 == 0 || first + n * 8 + lane % 4 * 2 + 1 < COLUMNS)
                    to[n * 8 + 1] = (element)(two >> 16);
            }
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
    constexpr int EACH = TAIL_TILE_BYTES / 4 / (GROUPS * (1 + PAIRED)); /* floats of a warp group */
    static_assert((D + DV) * 128 <= EACH, "the sums of a tile fit");
    int thread = thread_index() % 128, part = rank * GROUPS + group, added = 0;
    u64 sums = g.tail_sums + (u64)tail_tile(g, tile) * (TAIL_TILE_BYTES + ATTUNE_CUDA_TAIL_COUNTS * 4);
    float *row_words = (float *)sums + part * EACH + thread * 4;
    atomic_add_fragment(dk, row_words);
    atomic_add_fragment(dv, row_words + D * 128);
    __threadfence();
    __syncwarp();
    if (thread % 32 == 0)
        added = atomicAdd((int *)(sums + TAIL_TILE_BYTES) + part * 4 + thread / 32, 1) + 1;
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

/* ------------------------------------------------------------------------------------------------------- the consumers
 */

/* The thread's first key in its tile. SHARED: both warp groups have the same 64 keys. */
template <bool SHARED> __device__ __forceinline__ int first_key_of_thread(int group)
{
    int thread = thread_index();
    return (SHARED ? 0 : group * 64) + thread % 128 / 32 * 16 + thread % 32 / 4;
}

template <int SIZE> __device__ __forceinline__ void clear(float (&sum)[SIZE])
{
#pragma unroll
    for (int i = 0; i < SIZE; i++)
        sum[i] = 0.0f;
}

/* GROUP: the index of the consumer warp group, unless both compute as many columns. */
template <int GROUP>
__device__ __forceinline__ void consume(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                        u32 memory)
{
    constexpr int COLUMNS_D = GROUP_D<GROUP>, COLUMNS_DV = GROUP_DV<GROUP>;
    int group = EQUAL_GROUPS ? (int)threadIdx.x / 128 - 1 : GROUP, lane = (int)threadIdx.x % 32;
    int thread_row = (WIDE ? 0 : group * 64) + (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
    u32 group_keys = WIDE ? 0 : group * 64 * 128, group_m = WIDE ? group * GROUP_M * 128 : 0;
    u64 k = describe_k_major(memory + group_keys), v = describe_k_major(memory + K_BYTES + group_keys);
    float factor = HAVE_SCORE ? ATTUNE_LOG2E : a.scale * ATTUNE_LOG2E;
    pipeline_state pipe = {0, 0};
    u32 dq_phase = 1, ds_stage = 0;
#if ATTUNE_HAVE_READS
    clear_head_sums(memory);
#endif
    for (u32 tiles_done = 0;; tiles_done++) {
        barrier_wait(&c.full[pipe.stage], pipe.phase);
        tile_desc desc = c.descs[pipe.stage];
        if (desc.flags & TILE_STOP)
            break;
        float dk[COLUMNS_D / 2], dv[COLUMNS_DV / 2];
        clear(dk);
        clear(dv);
        /* K and V have been loaded. */
        barrier_wait(&c.keys_full, tiles_done & 1);
#if !ATTUNE_REMATERIALISE
        int kv = c.kv + thread_row;
#endif
        while (!(desc.flags & TILE_END)) {
            u32 q_tile = memory + Q_OFFSET + pipe.stage * Q_BYTES, do_tile = memory + DO_OFFSET + pipe.stage * DO_BYTES;
            u32 ds_tile = memory + DS_OFFSET + ds_stage * DS_BYTES;
            u32 p[GROUP_M / 16][4], d_s[GROUP_M / 16][4];
#if ATTUNE_REMATERIALISE
            group = EQUAL_GROUPS ? thread_index() / 128 - 1 : GROUP;
            group_keys = WIDE ? 0 : group * 64 * 128, group_m = WIDE ? group * GROUP_M * 128 : 0;
            k = describe_k_major(memory + group_keys), v = describe_k_major(memory + K_BYTES + group_keys);
            int kv = *(volatile int *)&c.kv + first_key_of_thread<WIDE>(group);
#endif
#if ATTUNE_HAVE_READS
            capture_sums<S_FRAGMENT> sums;
#endif
#pragma unroll
            for (int chunk = 0; chunk < S_CHUNKS; chunk++) {
                u32 chunk_rows = group_m + chunk * (S_FRAGMENT * 2) * 128;
                /* S^T = K Q^T */
                float s[S_FRAGMENT];
                wgmma_fence();
                issue_s_dp<STEPS_D>(s, k, describe_k_major(q_tile + chunk_rows));
                /* dP^T = V dO^T */
                float d_p[S_FRAGMENT];
                if constexpr (!DP_AFTER_P) {
                    wgmma_fence();
                    issue_s_dp<STEPS_DV>(d_p, v, describe_k_major(do_tile + chunk_rows));
                }
                u32 row_data = memory + pipe.stage * ROW_BYTES + chunk_rows / 32;
#if ATTUNE_HAVE_READS
                pair_origin t = {a, g, desc.b, desc.h, desc.q + (int)(chunk_rows / 128) + thread_index() % 4 * 2, kv};
                clear_sums(sums);
#endif
                if constexpr (FUSED_GRADIENTS) {
                    /* P, dS and the capture gradients */
#if ATTUNE_HAVE_READS
                    wgmma_wait<0>();
                    accumulators_done(s);
                    accumulators_done(d_p);
                    compute_p_ds_gradients(s, d_p, p, d_s, sums, t, desc, row_data + LSE_OFFSET,
                                           row_data + DELTA_OFFSET, chunk);
#endif
                } else {
                    /* P = exp(S - LSE) */
                    wgmma_wait<!DP_AFTER_P>();
                    accumulators_done(s);
                    compute_p(s, p, a, desc, kv, row_data + LSE_OFFSET, factor);
                    if constexpr (DP_AFTER_P) {
                        /* dV += P dO, dP^T = V dO^T */
                        wgmma_fence();
                        issue_dk_dv<COLUMNS_DV>(dv, p, describe_n_major(do_tile, ROW_SLAB));
                        issue_s_dp<STEPS_DV>(d_p, v, describe_k_major(do_tile + group_m));
                    }
                    /* dS = P * (dP - delta) */
                    wgmma_wait<0>();
                    accumulators_done(d_p);
#if ATTUNE_HAVE_READS
                    compute_ds(s, d_p, d_s, sums, t, row_data + DELTA_OFFSET);
#else
                    compute_ds(s, d_p, d_s, row_data + DELTA_OFFSET);
#endif
                }
#if ATTUNE_HAVE_READS
                if constexpr (!OVERLAP_GRADIENTS)
                    add_capture_gradients(sums, t, memory);
#endif
            }
            float dq[WIDE ? COLUMNS_D / 2 : DQ_WIDTH / 2];
            u32 stage = pipe.stage;
            if constexpr (WIDE) {
                /* Both warp groups need the P and dS of all rows. */
                store_p_ds(p, ds_tile + group_m);
                store_p_ds(d_s, ds_tile + ROW_SLAB + group_m);
                fence_async();
                consumers_sync();
                float *to = dq_sums_of(g, workspace_row(a, g, desc.b, desc.h, desc.q), group) + threadIdx.x % 128 * 4;
                constexpr bool IN_PLACE = DQ_ADD == DQ_ADD_IN_PLACE;
                /* dQ = dS^T K, dV += P dO, dK += dS Q. In place, dQ is issued after dV, since it overwrites dO. */
                wgmma_fence();
                if constexpr (!IN_PLACE)
                    issue_dq(dq, ds_tile + ROW_SLAB, memory, group);
                issue_dk_dv_wide(dv, ds_tile, do_tile + group * (FIRST_GROUP_DV / 64) * ROW_SLAB);
                if constexpr (IN_PLACE)
                    issue_dq(dq, ds_tile + ROW_SLAB, memory, group);
                issue_dk_dv_wide(dk, ds_tile + ROW_SLAB, q_tile + group * (FIRST_GROUP_D / 64) * ROW_SLAB);
                /* The next tile descriptor is read while the products run. */
                advance(pipe);
                barrier_wait(&c.full[pipe.stage], pipe.phase);
                desc = c.descs[pipe.stage];
                wgmma_wait<IN_PLACE ? 1 : 2>();
                accumulators_done(dq);
                if constexpr (IN_PLACE) {
                    group_sync(group);
                    store_dq<0, COLUMNS_D / 4>(dq, dq_buffer(memory, stage, group, 0));
                    wgmma_wait<0>();
                    group_sync(group);
                    store_dq<COLUMNS_D / 4, COLUMNS_D / 4>(dq, dq_buffer(memory, stage, group, 1));
                    fence_async();
                    warp_arrive(&c.dq_full[group]);
                } else if constexpr (DQ_ADD == DQ_ADD_STAGED)
                    stage_dq(dq, c, memory, group, dq_phase);
                else
                    atomic_add_fragment(dq, to);
            } else {
                if constexpr (!DP_AFTER_P) {
                    /* dV += P dO */
                    wgmma_fence();
                    issue_dk_dv<COLUMNS_DV>(dv, p, describe_n_major(do_tile, ROW_SLAB));
                }
                /* dQ = dS^T K over the keys of both warp groups */
                store_p_ds(d_s, ds_tile + group * ROW_SLAB);
                fence_async();
                consumers_sync();
                wgmma_fence();
                issue_dq(dq, ds_tile, memory, group);
                /* dK += dS Q */
                issue_dk_dv<COLUMNS_D>(dk, d_s, describe_n_major(q_tile, ROW_SLAB));
#if ATTUNE_HAVE_READS
                if constexpr (OVERLAP_GRADIENTS)
                    add_capture_gradients(sums, {a, g, desc.b, desc.h, desc.q + thread_index() % 4 * 2, kv}, memory);
#endif
                /* The next tile descriptor is read while the products run. */
                advance(pipe);
                barrier_wait(&c.full[pipe.stage], pipe.phase);
                desc = c.descs[pipe.stage];
                wgmma_wait<1>();
                accumulators_done(dq);
#if ATTUNE_HAVE_READS
                dq_phase = ds_stage ^ 1; /* both change with every query tile: one register is enough */
#endif
                stage_dq(dq, c, memory, group, dq_phase);
            }
            wgmma_wait<0>();
            accumulators_done(dk);
            accumulators_done(dv);
#if ATTUNE_HAVE_READS
            /* The stage still has this tile's descriptor: it is released below. */
            const volatile tile_desc &last = c.descs[stage];
            int h = last.h, b = last.b;
            kv = *(volatile int *)&c.kv + first_key_of_thread<WIDE>(group);
            if (desc.flags & TILE_END || desc.h != h || desc.b != b)
                flush_head_sums({a, g, b, h, 0, kv}, memory);
#endif
            lane_arrive(&c.empty[stage]);
            ds_stage ^= 1; /* the other warp group may still read the present one */
        }
        warp_arrive(&c.empty[pipe.stage]);
        lane_arrive(&c.keys_empty);
        advance(pipe);
#if ATTUNE_HAVE_READS
        thread_row = first_key_of_thread<WIDE>(group);
#endif
        if (SPLIT_TAIL && desc.q >= g.full_wave_tiles && !add_tail_split(dk, dv, g, desc.q, 0, group))
            continue;
        /* Store dK and dV. */
        key_tile at = key_tile_of(a, g, desc.q);
        bool finite = true;
        int row = at.kv + thread_row, second = WIDE ? group : 0;
        store_gradient<COLUMNS_D, HEAD_DIM>(dk, g.d_k, at.b, at.h_kv, row, a.kv_len, second * FIRST_GROUP_D, a.scale,
                                            finite);
        store_gradient<COLUMNS_DV, HEAD_DIM_V>(dv, g.d_v, at.b, at.h_kv, row, a.kv_len, second * FIRST_GROUP_DV, 1.0f,
                                               finite);
        if (!finite)
            *(volatile int *)g.redo = 1;
    }
}

#include "pair_sm90.cuh"

#if ATTUNE_PAIRED
#define CLUSTER __cluster_dims__(2, 1, 1)
#else
#define CLUSTER
#endif

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    attune_backward_sm90(const __grid_constant__ attune_cuda_arguments a,
                         const __grid_constant__ attune_cuda_backward g, const __grid_constant__ tensor_map q_map,
                         const __grid_constant__ tensor_map k_map, const __grid_constant__ tensor_map v_map,
                         const __grid_constant__ tensor_map do_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    control &c = *(control *)(memory + CONTROL_OFFSET);
    if (threadIdx.x == 0) {
        barrier_init(&c.keys_full, 1);
        barrier_init(&c.keys_empty, GROUPS * 4 * ATTUNE_ARRIVALS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&c.full[i], 1);
            barrier_init(&c.empty[i], (PAIRED && ORDERED ? 0 : GROUPS * 4 * ATTUNE_ARRIVALS) + PAIRED +
                                          (DQ_ADD == DQ_ADD_ATOMIC ? 0 : GROUPS * (ORDERED ? ATTUNE_ARRIVALS : 1)));
            barrier_init(&c.empty_q[i], GROUPS * 4 * ATTUNE_ARRIVALS);
        }
        barrier_init(&c.ds_ready, 1);
        barrier_init(&c.peer_p_empty, GROUPS * 4 * ATTUNE_ARRIVALS);
        barrier_init(&c.peer_ds_full, 1);
        barrier_init(&c.ds_empty, 1);
        barrier_init(&c.next_full, 1);
        barrier_init(&c.next_empty, 1);
        for (int i = 0; i < GROUPS; i++) {
            barrier_init(&c.dq_full[i], 4 * ATTUNE_ARRIVALS);
            barrier_init(&c.dq_empty[i], 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (PAIRED)
        cluster_sync();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0)
            produce(a, g, c, shared_address(memory), &q_map, &k_map, &v_map, &do_map);
        else if (DQ_ADD != DQ_ADD_ATOMIC && threadIdx.x >= 32 && threadIdx.x / 32 <= GROUPS)
            add_dq(a, g, c, shared_address(memory), (int)threadIdx.x / 32 - 1);
        else if (PAIRED && threadIdx.x == 96)
            exchange_ds(c, shared_address(memory));
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        if constexpr (PAIRED)
            consume_pair(a, g, c, shared_address(memory));
        else if (EQUAL_GROUPS || threadIdx.x < 256)
            consume<0>(a, g, c, shared_address(memory));
        else
            consume<EQUAL_GROUPS ? 0 : 1>(a, g, c, shared_address(memory));
    }
    if (PAIRED)
        cluster_sync(); /* a CTA may not exit while its peer can still write to its shared memory */
}

/* ----------------------------------------------------------------------------------------------------------- dQ */

constexpr int DQ_TILE = GROUPS * DQ_BYTES / 4;

/* Scales and rounds dQ from its sums. One CTA of 256 threads for each tile of rows; wide heads: one for each half of
 * its columns. */
extern "C" __global__ void __launch_bounds__(256)
    attune_backward_dq_sm90(const __grid_constant__ attune_cuda_arguments a,
                            const __grid_constant__ attune_cuda_backward g)
{
    constexpr int HALVES = WIDE ? 2 : 1, COLUMNS = DQ_COLUMNS / HALVES, PITCH = COLUMNS + 4;
    extern __shared__ __align__(16) float tile[]; /* [BLOCK_M][PITCH] */
    int tiles = query_tiles_per_head(a), index = (int)blockIdx.x / HALVES, half = (int)blockIdx.x % HALVES;
    int plane = index / tiles, q0 = (index - plane * tiles) * BLOCK_M, b = plane / a.heads, h = plane - b * a.heads;
    const float4 *sums = (const float4 *)dq_sums_of(g, workspace_row(a, g, b, h, q0), half);
    float nan_if_non_finite = 0.0f;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < DQ_TILE / HALVES / 4; i += 256) {
        float4 four = sums[i];
        int thread = i % 128, fragment = i / 128 % (DQ_WIDTH / 8), group = i / 128 / (DQ_WIDTH / 8);
        int row = (DQ_TRANSPOSED || DQ_SPLIT_ROWS ? group * 64 : 0) + thread / 32 * 16 + thread % 32 / 4;
        int column = (DQ_TRANSPOSED || DQ_SPLIT_ROWS ? 0 : group * DQ_WIDTH) + fragment * 8 + thread % 4 * 2;
        const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int r = row + j / 2 * 8, at = column + j % 2;
            nan_if_non_finite = __fmaf_rn(x[j], 0.0f, nan_if_non_finite);
            tile[DQ_TRANSPOSED ? at * PITCH + r : r * PITCH + at] = x[j] * a.scale;
        }
    }
    if (nan_if_non_finite != 0.0f)
        *(volatile int *)g.redo = 1;
    __syncthreads();
    element *out = (element *)g.d_q.address + b * g.d_q.batch + h * g.d_q.head;
    bool vector = view_aligned(g.d_q);
    constexpr int CHUNKS = (WIDE ? COLUMNS : HEAD_DIM + 7) / 8;
    for (int i = (int)threadIdx.x; i < BLOCK_M * CHUNKS; i += 256) {
        int row = i / CHUNKS, d = i % CHUNKS * 8 + half * COLUMNS;
        if (q0 + row >= a.q_len || d >= HEAD_DIM)
            continue;
        const float *from = tile + row * PITCH + d - half * COLUMNS;
        element *to = out + (q0 + row) * g.d_q.row + d;
        if (vector && d + 8 <= HEAD_DIM) {
            *(uint4 *)to = make_uint4(pack(from[0], from[1]), pack(from[2], from[3]), pack(from[4], from[5]),
                                      pack(from[6], from[7]));
        } else {
            for (int j = 0; j < 8 && d + j < HEAD_DIM; j++)
                to[j] = (element)pack(from[j], 0.0f);
        }
    }
}
