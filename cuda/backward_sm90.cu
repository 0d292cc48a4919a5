/* SPDX-License-Identifier: MIT */
/*
 * Backward for Hopper, head dimensions up to 128, and wide ones: attune_delta comes before it, and
 * attune_backward_dq_sm90 rounds dQ.
 *
 * A CTA owns 128 keys at a time, whose K and V stay in shared memory, and each of its two warp groups 64 of them,
 * whose dK and dV stay in registers, over every row of every head that attends to them. The first warp group loads: one
 * thread of it walks the transposed lists and passes on, with each tile of rows, where it stands and how it is to be
 * masked. S and dP are transposed: their rows are keys, so that P and dS are the left operands of dV += P dO and
 * dK += dS Q as they stand in registers. For dQ = dS^T K both warp groups' dS meet in shared memory; each has a part of
 * that product, lays it down as it holds it, and another warp adds it to the sums in global memory, in which a tile of
 * rows lies in the same order. The order of these additions is not fixed, so dQ's last bits are not either.
 *
 * Of wide heads a CTA has 64 keys: dK, dV and dQ are shared by columns, S and dP by rows; P and dS both meet in
 * shared memory. Of those past 192 two CTAs have 128 (pair_sm90.cuh).
 *
 * What is not finite in K, V, Q or dO makes results that are no numbers even where the mask forbids the pair: a flag
 * tells the kernels of the non-finite slow path of backward_sm80.cu, which come last, to start over. They are what else such a call costs.
 *
 * A thread holds, of each 16 x 8 fragment of an accumulator, rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the
 * next.
 */
#include "scores_backward_sm90.cuh"
#include "wgmma.cuh"

/* ----------------------------------------------------------------------------------------------------- instructions */

/* Four 8 x 8 fragments, transposed. */
__device__ __forceinline__ void store_transposed(u32 at, const u32 (&x)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* ----------------------------------------------------------------------------------------------------------- stages */

/* S or dP, transposed: [keys][rows]. Begun. */
template <int STEPS> __device__ __forceinline__ void multiply_keys(float (&s)[TILE], u64 keys, u64 rows)
{
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        wgmma<SHARE / PARTS>::ss(s, keys + (step / 4 * KEY_SLAB + step % 4 * 32) / 16,
                           rows + (step / 4 * ROW_SLAB + step % 4 * 32) / 16, step);
    wgmma_commit();
}

/* dV += P dO or dK += dS Q. Begun. */
template <int WIDTH>
__device__ __forceinline__ void multiply_rows(float (&d)[WIDTH / 2], const u32 (&p)[SHARE / 16][4], u64 rows)
{
#pragma unroll
    for (int step = 0; step < SHARE / 16; step++)
        wgmma<WIDTH>::rs(d, p[step], rows + step * (16 * 128 / 16));
    wgmma_commit();
}

/* The same of a warp group's columns, P or dS in shared memory: [row][key]. */
template <int COUNT> __device__ __forceinline__ void multiply_rows_wide(float (&d)[COUNT], u32 p, u32 rows)
{
    u64 left = describe_n_major(p, 0), right = describe_n_major(rows, ROW_SLAB);
#pragma unroll
    for (int step = 0; step < BLOCK_M / 16; step++)
        wgmma<COUNT * 2>::template ss<1, 1>(d, left + step * (16 * 128 / 16), right + step * (16 * 128 / 16), 1);
    wgmma_commit();
}

/* A warp group's part of dQ = dS^T K. Begun. */
template <int COUNT>
__device__ __forceinline__ void multiply_dq(float (&dq)[COUNT], u32 d_s, u32 k, int group)
{
    u64 left = DQ_TRANSPOSED ? describe_n_major(k + group * KEY_SLAB, KEY_SLAB)
                      : describe_k_major(d_s + (BY_ROWS ? group * 64 * 128 : 0));
    u64 right = DQ_TRANSPOSED ? describe_k_major(d_s) : describe_n_major(k + (BY_ROWS ? 0
                                                               : WIDE  ? group * (FIRST_D / 64) * KEY_SLAB
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

/* P or dS to shared memory: [row][key], a 64 keys' slab. */
__device__ __forceinline__ void store_piece(const u32 (&d_s)[SHARE / 16][4], u32 slab)
{
    int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
    u32 at = slab + (lane / 16 * 8 + lane % 8) * 128 + ((warp * 2 + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
    for (int step = 0; step < SHARE / 16; step++)
        store_transposed(at + step * 16 * 128, d_s[step]);
}

/* A warp's wait says that its own products are done: those of the group's others may still read their right operand. */
__device__ __forceinline__ void group_sync(int group)
{
    if (group == 0)
        asm volatile("bar.sync 2, 128;" ::: "memory");
    else
        asm volatile("bar.sync 3, 128;" ::: "memory");
}

/* Of a part of dQ `MANY` of what each thread holds, from `FIRST` on. */
template <int FIRST, int MANY, int COUNT> __device__ __forceinline__ void store_dq(const float (&dq)[COUNT], u32 to)
{
    to += (u32)thread_index() % 128 * 16;
#pragma unroll
    for (int i = 0; i < MANY; i += 4)
        asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to + i / 4 * 128 * 16), "f"(dq[FIRST + i]),
                     "f"(dq[FIRST + i + 1]), "f"(dq[FIRST + i + 2]), "f"(dq[FIRST + i + 3])
                     : "memory");
}

/* Waits until the part before has been added. */
template <int COUNT>
__device__ __forceinline__ void give_dq(const float (&dq)[COUNT], control &c, u32 memory, int group, u32 &phase)
{
    barrier_wait(&c.dq_empty[group], phase);
    phase ^= 1;
    store_dq<0, COUNT>(dq, memory + DQ_OFFSET + group * PART_DQ_BYTES<0>);
    fence_async();
    warp_arrive(&c.dq_full[group]);
}

/* What the threads of a warp group hold of dQ, dK or dV, added to its sums as it stands. */
template <int COUNT> __device__ __forceinline__ void add_held(const float (&dq)[COUNT], float *to)
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to + i / 4 * 128 * 4), "f"(dq[i]),
                     "f"(dq[i + 1]), "f"(dq[i + 2]), "f"(dq[i + 3])
                     : "memory");
}

/* dK or dV, to global memory. row: the thread's first; first: the first column. */
template <int WIDTH, int COLUMNS>
__device__ __forceinline__ void store(const float (&d)[WIDTH / 2], const attune_cuda_view &v, int b, int h, int row,
                                      int rows, int first, float factor, bool &good)
{
    float none = 0.0f; /* NaN once an element is not finite */
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
            none = __fmaf_rn(d[n * 4 + half * 2], 0.0f, __fmaf_rn(d[n * 4 + half * 2 + 1], 0.0f, none));
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
    good = good && none == 0.0f;
}

/* A warp's parts of dK and dV of a piece, added to those of the tile's other pieces. False, unless all have been added
 * now: then dk and dv hold the sums. rank: of a pair. */
template <int D, int DV>
__device__ __forceinline__ bool add_tail_split(float (&dk)[D], float (&dv)[DV], const attune_cuda_backward &g, int tile,
                                          int rank, int group)
{
    constexpr int EACH = TAIL_TILE_BYTES / 4 / (GROUPS * (1 + PAIRED)); /* a warp group's */
    static_assert((D + DV) * 128 <= EACH, "its parts have room");
    int thread = thread_index() % 128, part = rank * GROUPS + group, added = 0;
    u64 sums = g.tail_sums + (u64)tail_tile(g, tile) * (TAIL_TILE_BYTES + ATTUNE_CUDA_TAIL_COUNTS * 4);
    float *mine = (float *)sums + part * EACH + thread * 4;
    add_held(dk, mine);
    add_held(dv, mine + D * 128);
    __threadfence();
    __syncwarp();
    if (thread % 32 == 0)
        added = atomicAdd((int *)(sums + TAIL_TILE_BYTES) + part * 4 + thread / 32, 1) + 1;
    if (__shfl_sync(0xffffffffu, added, 0) < g.tail_splits)
        return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < D + DV; i += 4) {
        float4 x = __ldcg((const float4 *)(mine + i * 128));
        float *to = i < D ? &dk[i] : &dv[i - D];
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------- the consumers */

/* Of a tile's keys the thread's first. */
template <bool SHARED> __device__ __forceinline__ int key_now(int group)
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

/* GROUP: the warp group, unless both are alike. */
template <int GROUP>
__device__ __forceinline__ void consume(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                    u32 memory)
{
    constexpr int COLUMNS_D = PART_D<GROUP>, COLUMNS_DV = PART_DV<GROUP>;
    int group = EQUAL_SHARES ? (int)threadIdx.x / 128 - 1 : GROUP, lane = (int)threadIdx.x % 32;
    int thread_row = (WIDE ? 0 : group * 64) + (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
    u32 group_keys = WIDE ? 0 : group * 64 * 128, group_share = WIDE ? group * SHARE * 128 : 0;
    u64 k = describe_k_major(memory + group_keys), v = describe_k_major(memory + K_BYTES + group_keys);
    float factor = HAVE_SCORE ? ATTUNE_LOG2E : a.scale * ATTUNE_LOG2E;
    pipeline_state r = {0, 0};
    u32 dq_phase = 1, ds_stage = 0;
#if ATTUNE_HAVE_READS
    clear_reads(memory);
#endif
    for (u32 round = 0;; round++) {
        barrier_wait(&c.full[r.stage], r.phase);
        tile_desc n = c.descs[r.stage];
        if (n.flags & TILE_STOP)
            break;
        float dk[COLUMNS_D / 2], dv[COLUMNS_DV / 2];
        clear(dk);
        clear(dv);
        barrier_wait(&c.keys_full, round & 1);
#if !ATTUNE_REMATERIALISE
        int kv = c.kv + thread_row;
#endif
        while (!(n.flags & TILE_END)) {
            u32 q_tile = memory + Q_OFFSET + r.stage * Q_BYTES, do_tile = memory + DO_OFFSET + r.stage * DO_BYTES;
            u32 ds_tile = memory + DS_OFFSET + ds_stage * DS_BYTES;
            u32 p[SHARE / 16][4], d_s[SHARE / 16][4];
#if ATTUNE_REMATERIALISE
            group = EQUAL_SHARES ? thread_index() / 128 - 1 : GROUP;
            group_keys = WIDE ? 0 : group * 64 * 128, group_share = WIDE ? group * SHARE * 128 : 0;
            k = describe_k_major(memory + group_keys), v = describe_k_major(memory + K_BYTES + group_keys);
            int kv = *(volatile int *)&c.kv + key_now<WIDE>(group);
#endif
#if ATTUNE_HAVE_READS
            read_sums<TILE> sums;
#endif
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                u32 part_rows = group_share + part * (TILE * 2) * 128;
                float s[TILE];
                wgmma_fence();
                multiply_keys<STEPS_D>(s, k, describe_k_major(q_tile + part_rows));
                float d_p[TILE];
                if constexpr (!LATE) {
                    wgmma_fence();
                    multiply_keys<STEPS_DV>(d_p, v, describe_k_major(do_tile + part_rows));
                }
                u32 row_data = memory + r.stage * ROW_BYTES + part_rows / 32;
#if ATTUNE_HAVE_READS
                reader t = {a, g, n.b, n.h, n.q + (int)(part_rows / 128) + thread_index() % 4 * 2, kv};
                clear_sums(sums);
#endif
                if constexpr (AT_ONCE) {
#if ATTUNE_HAVE_READS
                    wgmma_wait<0>();
                    accumulators_done(s);
                    accumulators_done(d_p);
                    all_at_once(s, d_p, p, d_s, sums, t, n, row_data + LSE_OFFSET, row_data + DELTA_OFFSET, part);
#endif
                } else {
                    wgmma_wait<!LATE>();
                    accumulators_done(s);
                    probabilities(s, p, a, n, kv, row_data + LSE_OFFSET, factor);
                    if constexpr (LATE) {
                        wgmma_fence();
                        multiply_rows<COLUMNS_DV>(dv, p, describe_n_major(do_tile, ROW_SLAB));
                        multiply_keys<STEPS_DV>(d_p, v, describe_k_major(do_tile + group_share));
                    }
                    wgmma_wait<0>();
                    accumulators_done(d_p);
#if ATTUNE_HAVE_READS
                    differences(s, d_p, d_s, sums, t, row_data + DELTA_OFFSET);
#else
                    differences(s, d_p, d_s, row_data + DELTA_OFFSET);
#endif
                }
#if ATTUNE_HAVE_READS
                if constexpr (!READS_UNDER)
                    add_reads(sums, t, memory);
#endif
            }
            float dq[WIDE ? COLUMNS_D / 2 : DQ_WIDTH / 2];
            u32 stage = r.stage;
            if constexpr (WIDE) {
                store_piece(p, ds_tile + group_share);
                store_piece(d_s, ds_tile + ROW_SLAB + group_share);
                fence_async();
                asm volatile("bar.sync 1, 256;" ::: "memory");
                float *to = sums_at(g, row_at(a, g, n.b, n.h, n.q), group) + threadIdx.x % 128 * 4;
                constexpr bool IN_PLACE = DQ_ADD == DQ_ADD_IN_PLACE;
                wgmma_fence();
                if constexpr (!IN_PLACE)
                    multiply_dq(dq, ds_tile + ROW_SLAB, memory, group);
                multiply_rows_wide(dv, ds_tile, do_tile + group * (FIRST_DV / 64) * ROW_SLAB);
                if constexpr (IN_PLACE)
                    multiply_dq(dq, ds_tile + ROW_SLAB, memory, group);
                multiply_rows_wide(dk, ds_tile + ROW_SLAB, q_tile + group * (FIRST_D / 64) * ROW_SLAB);
                advance(r);
                barrier_wait(&c.full[r.stage], r.phase);
                n = c.descs[r.stage];
                wgmma_wait<IN_PLACE ? 1 : 2>();
                accumulators_done(dq);
                if constexpr (IN_PLACE) {
                    group_sync(group);
                    store_dq<0, COLUMNS_D / 4>(dq, dq_place(memory, stage, group, 0));
                    wgmma_wait<0>();
                    group_sync(group);
                    store_dq<COLUMNS_D / 4, COLUMNS_D / 4>(dq, dq_place(memory, stage, group, 1));
                    fence_async();
                    warp_arrive(&c.dq_full[group]);
                } else if constexpr (DQ_ADD == DQ_ADD_STAGED)
                    give_dq(dq, c, memory, group, dq_phase);
                else
                    add_held(dq, to);
            } else {
                if constexpr (!LATE) {
                    wgmma_fence();
                    multiply_rows<COLUMNS_DV>(dv, p, describe_n_major(do_tile, ROW_SLAB));
                }
                store_piece(d_s, ds_tile + group * ROW_SLAB);
                fence_async();
                asm volatile("bar.sync 1, 256;" ::: "memory");
                wgmma_fence();
                multiply_dq(dq, ds_tile, memory, group);
                multiply_rows<COLUMNS_D>(dk, d_s, describe_n_major(q_tile, ROW_SLAB));
#if ATTUNE_HAVE_READS
                if constexpr (READS_UNDER)
                    add_reads(sums, {a, g, n.b, n.h, n.q + thread_index() % 4 * 2, kv}, memory);
#endif
                advance(r);
                barrier_wait(&c.full[r.stage], r.phase);
                n = c.descs[r.stage];
                wgmma_wait<1>();
                accumulators_done(dq);
#if ATTUNE_HAVE_READS
                dq_phase = ds_stage ^ 1;
#endif
                give_dq(dq, c, memory, group, dq_phase);
            }
            wgmma_wait<0>();
            accumulators_done(dk);
            accumulators_done(dv);
#if ATTUNE_HAVE_READS
            const volatile tile_desc &last = c.descs[stage];
            int h = last.h, b = last.b;
            kv = *(volatile int *)&c.kv + key_now<WIDE>(group);
            if (n.flags & TILE_END || n.h != h || n.b != b)
                flush_reads({a, g, b, h, 0, kv}, memory);
#endif
            lane_arrive(&c.empty[stage]);
            ds_stage ^= 1; /* the other warp group may still read the present one */
        }
        warp_arrive(&c.empty[r.stage]);
        lane_arrive(&c.keys_empty);
        advance(r);
#if ATTUNE_HAVE_READS
        thread_row = key_now<WIDE>(group);
#endif
        if (SPLIT_TAIL && n.q >= g.full_wave_tiles && !add_tail_split(dk, dv, g, n.q, 0, group))
            continue;
        column at = column_at(a, g, n.q);
        bool good = true;
        int row = at.kv + thread_row, second = WIDE ? group : 0;
        store<COLUMNS_D, HEAD_DIM>(dk, g.d_k, at.b, at.h_kv, row, a.kv_len, second * FIRST_D, a.scale, good);
        store<COLUMNS_DV, HEAD_DIM_V>(dv, g.d_v, at.b, at.h_kv, row, a.kv_len, second * FIRST_DV, 1.0f, good);
        if (!good)
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
    attune_backward_sm90(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_backward g,
                         const __grid_constant__ tensor_map q_map, const __grid_constant__ tensor_map k_map,
                         const __grid_constant__ tensor_map v_map, const __grid_constant__ tensor_map do_map)
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
        barrier_init(&c.ready, 1);
        barrier_init(&c.free, GROUPS * 4 * ATTUNE_ARRIVALS);
        barrier_init(&c.theirs, 1);
        barrier_init(&c.sent, 1);
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
            load(a, g, c, shared_address(memory), &q_map, &k_map, &v_map, &do_map);
        else if (DQ_ADD != DQ_ADD_ATOMIC && threadIdx.x >= 32 && threadIdx.x / 32 <= GROUPS)
            add_dq(a, g, c, shared_address(memory), (int)threadIdx.x / 32 - 1);
        else if (PAIRED && threadIdx.x == 96)
            exchange(c, shared_address(memory));
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        if constexpr (PAIRED)
            consume_pair(a, g, c, shared_address(memory));
        else if (EQUAL_SHARES || threadIdx.x < 256)
            consume<0>(a, g, c, shared_address(memory));
        else
            consume<EQUAL_SHARES ? 0 : 1>(a, g, c, shared_address(memory));
    }
    if (PAIRED)
        cluster_sync(); /* none leaves while the other may still tell it something */
}

/* --------------------------------------------------------------------------------------------------------------- dQ */

constexpr int DQ_TILE = GROUPS * DQ_BYTES / 4;

/* dQ from its sums: a CTA of 256 for each tile of rows, of wide heads one for each half of the columns. */
extern "C" __global__ void __launch_bounds__(256)
    attune_backward_dq_sm90(const __grid_constant__ attune_cuda_arguments a,
                            const __grid_constant__ attune_cuda_backward g)
{
    constexpr int HALVES = WIDE ? 2 : 1, COLUMNS = DQ_COLUMNS / HALVES, PITCH = COLUMNS + 4;
    extern __shared__ __align__(16) float tile[]; /* [BLOCK_M][PITCH] */
    int tiles = row_tiles(a), index = (int)blockIdx.x / HALVES, half = (int)blockIdx.x % HALVES;
    int plane = index / tiles, q0 = (index - plane * tiles) * BLOCK_M, b = plane / a.heads, h = plane - b * a.heads;
    const float4 *sums = (const float4 *)sums_at(g, row_at(a, g, b, h, q0), half);
    float none = 0.0f; /* NaN once an element is not finite */
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < DQ_TILE / HALVES / 4; i += 256) {
        float4 four = sums[i];
        int thread = i % 128, piece = i / 128 % (DQ_WIDTH / 8), group = i / 128 / (DQ_WIDTH / 8);
        int row = (DQ_TRANSPOSED || BY_ROWS ? group * 64 : 0) + thread / 32 * 16 + thread % 32 / 4;
        int column = (DQ_TRANSPOSED || BY_ROWS ? 0 : group * DQ_WIDTH) + piece * 8 + thread % 4 * 2;
        const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int r = row + j / 2 * 8, at = column + j % 2;
            none = __fmaf_rn(x[j], 0.0f, none);
            tile[DQ_TRANSPOSED ? at * PITCH + r : r * PITCH + at] = x[j] * a.scale;
        }
    }
    if (none != 0.0f)
        *(volatile int *)g.redo = 1;
    __syncthreads();
    element *out = (element *)g.d_q.address + b * g.d_q.batch + h * g.d_q.head;
    bool vector = view_aligned(g.d_q);
    constexpr int SPLIT_TAIL = (WIDE ? COLUMNS : HEAD_DIM + 7) / 8;
    for (int i = (int)threadIdx.x; i < BLOCK_M * SPLIT_TAIL; i += 256) {
        int row = i / SPLIT_TAIL, d = i % SPLIT_TAIL * 8 + half * COLUMNS;
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
