/* SPDX-License-Identifier: MIT */
/*
 * Forward for Hopper: TMA, mbarriers and wgmma, after FlashAttention-3. The stages are those of docs/algorithm.md.
 *
 * A persistent CTA has a producer warp group (producer_sm90.cuh) and up to three consumer warp groups, each of which
 * computes 64 rows of a query tile. The tensor cores are kept at work in three ways. A consumer issues Q K of key tile
 * j + 1 before P V of tile j, so that products run under its softmax. It issues the first Q K of the next query tile
 * with the last P V of this one, so that products run while it stores O. And consumers issue products in turn
 * (ping-pong), so that one's run under the others' softmax.
 *
 * Of each 16 x 8 fragment of S and O a thread holds rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next.
 * Arrays of two have an element for each of these rows. Tiles in shared memory are slabs of 64 columns with TMA's
 * 128-byte swizzle.
 */
#include "captures_sm90.cuh"
#include "producer_sm90.cuh"
#include "scores_sm90.cuh"
#include "sinks.cuh"
#include "stages_forward_sm90.cuh"

/* ----------------------------------------------------------------------------------------------------------- stages */

/* 4: the score and mask hook. r: the tile's stage. */
template <bool FIRST>
__device__ __forceinline__ void modify_scores(float (&s)[BLOCK_N / 2], const attune_cuda_arguments &a,
                                              unsigned char *memory, const tile_coord &p, int kv, int flags, int row,
                                              const linear_score (&linear_scores)[THREAD_ROWS], bool linear,
                                              const pipeline_state &r, u32 &phases)
{
    staged_terms terms = {wait_key_terms(a, memory, flags, r, phases), wait_capture_tile(memory, row - p.q, r)};
    apply_score_and_mask<FIRST>(s, a, p, kv, flags, row, linear_scores, linear, terms);
    release_key_terms(a, memory, flags, r);
}

/* Adds the infinities and NaN of V that the scan warps replaced by 0, to the rows that are allowed to attend them.
 * Their product with a weight is NaN if the weight is 0, and the element itself with any other. */
__device__ __forceinline__ void add_non_finite_v(float (&o)[sm90::WIDTH_DV / 2], u32 (&weights)[BLOCK_N / 16][4],
                                                 const attune_cuda_arguments &a, const tile_coord &p, int kv, int flags,
                                                 int row)
{
    if (flags & TILE_ABSENT)
        return;
    int lane = (int)threadIdx.x % 32, column = lane % 4 * 2, end = min(kv + BLOCK_N, a.kv_len);
    const element *v = (const element *)a.v.address + p.b * a.v.batch + p.h_kv * a.v.head + column;
#pragma unroll 1
    for (int eight = 0; eight < BLOCK_N; eight += 8) {
        /* The weights of 8 keys rotate, as O does below, so that indices are constants in a loop that is not unrolled.
         */
        u32 pair[2] = {weights[0][0], weights[0][1]};
#pragma unroll
        for (int i = 0; i + 2 < BLOCK_N / 4; i++)
            weights[i / 4][i % 4] = weights[(i + 2) / 4][(i + 2) % 4];
        weights[BLOCK_N / 16 - 1][2] = pair[0];
        weights[BLOCK_N / 16 - 1][3] = pair[1];
#pragma unroll 1
        for (int i = 0; i < 8 && kv < end; i++, kv++) {
            float factor[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 weight = __shfl_sync(0xffffffffu, pair[half], lane / 4 * 4 + i / 2) >> i % 2 * 16 & 0x7fffu;
                bool allowed = !(flags & TILE_PARTIAL) || pair_allowed(a, p, row + half * 8, kv);
                factor[half] = !allowed ? -1.0f : weight ? 1.0f : 0.0f;
            }
#pragma unroll 1
            for (int d = 0; d < sm90::WIDTH_DV; d += 8) {
                u32 two = d + column < HEAD_DIM_V ? *(const u32 *)(v + kv * a.v.row + d) : 0;
                u32 signs = non_finite_signs(two);
                float low = signs & 0x8000u ? unpack(two) : 0.0f, high = signs >> 31 ? unpack(two >> 16) : 0.0f;
                float first[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    first[j] = o[j] + (factor[j / 2] < 0.0f ? 0.0f : factor[j / 2] * (j % 2 ? high : low));
#pragma unroll
                for (int j = 0; j < sm90::WIDTH_DV / 2; j++)
                    o[j] = j + 4 < sm90::WIDTH_DV / 2 ? o[j + 4] : first[j + 4 - sm90::WIDTH_DV / 2];
            }
        }
    }
}

/* Before P V: waits until the scan warps have read the tile's V. Not every tile is scanned, so each stage has a phase
 * of its own: `scanned` has a bit for each stage, the phase to wait for. */
__device__ __forceinline__ void wait_scanned(float (&o)[sm90::WIDTH_DV / 2], u32 (&weights)[BLOCK_N / 16][4],
                                             control &c, const attune_cuda_arguments &a, const tile_coord &p, int kv,
                                             int flags, int row, u32 stage, u32 &scanned)
{
    if (!sm90::SCANS_V || !(flags & TILE_SCAN_V))
        return;
    barrier_wait(&c.v_scanned[stage], scanned >> stage & 1);
    scanned ^= 1u << stage;
    if (c.non_finite[stage])
        add_non_finite_v(o, weights, a, p, kv, flags, row);
}

/* 7: store O and LSE. vectors: rows are aligned for stores of 16 bytes; paired: of two elements. In f32 four threads
 * store 32 bytes of a row, so that none are exchanged. */
__device__ __forceinline__ void store(float (&o)[sm90::WIDTH_DV / 2], const float (&row_max)[2],
                                      const float (&row_sum)[2], const attune_cuda_arguments &a, const tile_coord &p,
                                      int row, float factor)
{
    int lane = (int)threadIdx.x % 32;
    o_element *base = (o_element *)a.o.address + p.b * a.o.batch + p.h * a.o.head;
    bool paired = view_paired<o_element>(a.o), vectors = O_FLOAT32 ? paired : view_aligned<o_element>(a.o);
    constexpr int TOGETHER = O_FLOAT32 ? 1 : 4, AT_ONCE = HEAD_DIM_V / 8 / TOGETHER * TOGETHER; /* fragments */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = row_sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int q = row + half * 8;
        row_total total = row_total_of(a, p.h, row_max[half] * (factor * ATTUNE_LN2), sum);
        float inverse = total.sum == 0.0f ? 0.0f : total.weight / total.sum;
        if (total.sum == 0.0f && !a.is_partial) /* not by the factor 0: O may be NaN */
#pragma unroll
            for (int d = 0; d < sm90::WIDTH_DV / 8; d++)
                o[d * 4 + half * 2] = o[d * 4 + half * 2 + 1] = 0.0f;
        o_element *thread_row = base + q * a.o.row + lane % 4 * 2;
        if (O_FLOAT32 && vectors && q < a.q_len) {
#pragma unroll
            for (int d = 0; d < AT_ONCE; d++)
                store_outputs(thread_row + d * 8, o[d * 4 + half * 2] * inverse, o[d * 4 + half * 2 + 1] * inverse,
                              true);
        }
        if (!O_FLOAT32 && vectors) {
#pragma unroll
            for (int d = 0; d < AT_ONCE; d += 4) {
                u32 w[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w[i] = pack(o[(d + i) * 4 + half * 2] * inverse, o[(d + i) * 4 + half * 2 + 1] * inverse);
                transpose_4x4(w);
                if (q < a.q_len)
                    *(uint4 *)(base + q * a.o.row + (d + lane % 4) * 8) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
        if (q >= a.q_len)
            continue;
        if (!vectors || HEAD_DIM_V % (8 * TOGETHER)) {
            /* Seldom needed, so short: O rotates in a loop that is not unrolled, instead of WIDTH_DV / 8 copies. */
#pragma unroll 1
            for (int d = 0; d < sm90::WIDTH_DV / 8; d++) {
                int left = HEAD_DIM_V - d * 8 - lane % 4 * 2;
                if ((!vectors || d >= AT_ONCE) && left > 1)
                    store_outputs(thread_row + d * 8, o[half * 2] * inverse, o[half * 2 + 1] * inverse, paired);
                else if ((!vectors || d >= AT_ONCE) && left > 0)
                    store_output(thread_row + d * 8, o[half * 2] * inverse);
                float first[4] = {o[0], o[1], o[2], o[3]};
#pragma unroll
                for (int i = 0; i < sm90::WIDTH_DV / 2; i++)
                    o[i] = i + 4 < sm90::WIDTH_DV / 2 ? o[i + 4] : first[i + 4 - sm90::WIDTH_DV / 2];
            }
        }
        if (lane % 4 == 0) {
            /* The maximum of scores drops NaN but their sum does not, so a NaN sum is the result. If the maximum is
             * +inf the sum is NaN as well, and the maximum stays. */
            float largest = isnan(sum) && row_max[half] != ATTUNE_INF ? sum : row_max[half] * (factor * ATTUNE_LN2);
            if (a.lse.address)
                ((float *)a.lse.address)[p.b * a.lse.batch + p.h * a.lse.head + q * a.lse.row] =
                    total.sum == 0.0f ? -ATTUNE_INF : (config::SINKS ? total.most : largest) + logf(total.sum);
            if (a.row_max.address)
                ((float *)a.row_max.address)[p.b * a.row_max.batch + p.h * a.row_max.head + q * a.row_max.row] =
                    sum == 0.0f ? -ATTUNE_INF : largest;
        }
    }
}

/* 7, for a query tile without keys. The four threads of a row share its columns. */
__device__ __forceinline__ void store_fully_masked(const attune_cuda_arguments &a, const tile_coord &p, int row)
{
    int first = (int)threadIdx.x % 4;
    row_total total = row_total_of(a, p.h, -ATTUNE_INF, 0.0f);
    float zero = 0.0f * total.sum; /* or NaN, by a sink */
#pragma unroll 1
    for (int q = row; q < min(row + 16, a.q_len); q += 8) {
        o_element *o_row = (o_element *)a.o.address + p.b * a.o.batch + p.h * a.o.head + q * a.o.row;
#pragma unroll 1
        for (int d = first; d < HEAD_DIM_V; d += 4)
            store_output(o_row + d, zero);
        if (first)
            continue;
        if (a.lse.address)
            ((float *)a.lse.address)[p.b * a.lse.batch + p.h * a.lse.head + q * a.lse.row] =
                total.sum == 0.0f ? -ATTUNE_INF : total.most + logf(total.sum);
        if (a.row_max.address)
            ((float *)a.row_max.address)[p.b * a.row_max.batch + p.h * a.row_max.head + q * a.row_max.row] =
                -ATTUNE_INF;
    }
}

/* ------------------------------------------------------------------------------------------------------- consumers */

/* Waits for the next query tile: whether there is one, and it has keys. */
__device__ __forceinline__ bool next_query_tile_has_keys(control &c, const pipeline_state &r)
{
    consumer_wait<&control::q>(c, r);
    return c.query_tiles[r.stage].flags == TILE_QUERIES;
}

__device__ __forceinline__ void consume(const attune_cuda_arguments &a, control &c, unsigned char *memory)
{
    int group = (int)threadIdx.x / 128 - 1;
    if (sm90::GROUPS == 3) /* after the shuffle the compiler knows that it is uniform in a warp: it costs no register */
        group = __shfl_sync(0xffffffffu, group, 0);
    u32 k_tiles = shared_address(memory) + sm90::K_OFFSET, v_tiles = k_tiles + (sm90::V_OFFSET - sm90::K_OFFSET);
    u64 q = describe_k_major(shared_address(memory) + (u32)group * 64 * 128);
    float factor = fold_factor(a.scale);
    pipeline_state r = {0, 0}, k = {0, 0}, v = {0, 0}; /* of Q, K and V */
    u32 scanned = 0, phases = 0;
    capture_rows captured; /* of the query tile */
    bool s_ready = false;  /* S of this query tile's first key tile was computed with the last P V of the one before */
    float s[BLOCK_N / 2], o[sm90::WIDTH_DV / 2];
    if (group == sm90::GROUPS - 1)
        ping_pong_arrive(group); /* group 0 is the first to issue */
    for (;;) {
        /* 1: wait for Q, and for the descriptor of the query tile. */
        consumer_wait<&control::q>(c, r);
        int flags = c.query_tiles[r.stage].flags;
        if (!flags)
            break;
        tile_coord coord = c.query_tiles[r.stage].coord;
        int row = coord.q + group * 64 + (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4;
        if (flags & TILE_LAST) {
            consumer_release<&control::q>(c, r);
            advance<sm90::Q_BUFFERS>(r);
            store_fully_masked(a, coord, row);
            continue;
        }
        linear_score linear_scores[2];
        bool linear = find_linear_scores(linear_scores, a, coord, row);
        /* The shift to the flags of the block list that has this warp group's rows. */
        int list = sm90::BLOCK_LISTS > 1 && (coord.q + group * 64) / a.q_block != coord.q / a.q_block ? 8 : 0;
        if constexpr (config::SCORE_TILE > 0) {
            if (!s_ready)
                consumer_wait<&control::k>(c, k);
            begin_capture_tiles(captured, a, c, memory, coord, k, s_ready);
        }
        if (!s_ready) {
            /* 2: wait for K */
            consumer_wait<&control::k>(c, k);
            ping_pong_wait(group);
            wgmma_fence();
            /* 3: S = Q K^T */
            multiply_qk(s, q + r.stage * (sm90::Q_BYTES / 16), describe_k_major(k_tiles + k.stage * sm90::K_BYTES));
            ping_pong_arrive(group);
            wgmma_wait<0>();
            accumulators_done(s);
        }
        float row_max[2] = {-ATTUNE_INF, -ATTUNE_INF}, row_sum[2] = {0.0f, 0.0f}, alpha[2];
        u32 p[BLOCK_N / 16][4];
#pragma unroll
        for (int i = 0; i < sm90::WIDTH_DV / 2; i++)
            o[i] = 0.0f;
        int kv = c.key_tiles[k.stage].index;
        flags = c.key_tiles[k.stage].flags >> list;
        consumer_release<&control::k>(c, k);
        advance(k);
        /* 4: score and mask hook. V's state is still that of this key tile, as K's was. */
        modify_scores<true>(s, a, memory, coord, kv, flags, row, linear_scores, linear, v, phases);
        /* 5: online softmax */
        softmax(s, row_max, row_sum, alpha, factor);
        round_p(p, s);
        wait_scanned(o, p, c, a, coord, kv, flags, row, v.stage, scanned);
        /* The last maxima rose past RESCALE_THRESHOLD, and the next may too, or they are large: no attempt without
         * rescale. */
        bool rising = has_large_scores(row_max, factor);
        while (!(flags & TILE_LAST)) {
            /* 2: wait for K of the next key tile */
            consumer_wait<&control::k>(c, k);
            kv = c.key_tiles[k.stage].index;
            flags = c.key_tiles[k.stage].flags >> list;
            ping_pong_wait(group);
            wgmma_fence();
            /* 3: S = Q K^T */
            multiply_qk(s, q + r.stage * (sm90::Q_BYTES / 16), describe_k_major(k_tiles + k.stage * sm90::K_BYTES));
            /* 2: wait for V of this key tile */
            consumer_wait<&control::v>(c, v);
            wgmma_fence();
            /* 6: O += P V */
            multiply_pv(o, p, describe_n_major(v_tiles + v.stage * sm90::V_BYTES, sm90::KV_SLAB));
            ping_pong_arrive(group);
            if constexpr (config::SCORE_TILE > 0) /* under the products */
                copy_next_capture_tile(captured, a, c, memory, k);
            wgmma_wait<1>(); /* S is done, O may not be */
            accumulators_done(s);
            consumer_release<&control::k>(c, k);
            pipeline_state terms = k;
            advance(k);
            /* 4: score and mask hook */
            if (!config::LATE_HOOK)
                modify_scores<false>(s, a, memory, coord, kv, flags, row, linear_scores, linear, terms, phases);
            wgmma_wait<0>();
            accumulators_done(o);
            consumer_release<&control::v>(c, v);
            advance(v);
            /* 4: score and mask hook */
            if (config::LATE_HOOK)
                modify_scores<false>(s, a, memory, coord, kv, flags, row, linear_scores, linear, terms, phases);
            /* 5: online softmax. Row maxima that are a result have to be exact. */
            if (rising || a.row_max.address || !softmax_without_rescale(p, s, row_max, row_sum, factor)) {
                softmax(s, row_max, row_sum, alpha, factor);
                rescale(o, alpha);
                round_p(p, s);
                rising = __any_sync(0xffffffffu, fminf(alpha[0], alpha[1]) < 1.0f / RESCALE_THRESHOLD) ||
                         has_large_scores(row_max, factor);
            }
            wait_scanned(o, p, c, a, coord, kv, flags, row, v.stage, scanned);
        }
        consumer_release<&control::q>(c, r);
        advance<sm90::Q_BUFFERS>(r);
        /* 1: wait for Q of the next query tile. */
        if (sm90::Q_BUFFERS > 1)
            s_ready = next_query_tile_has_keys(c, r);
        /* 2: wait for the last V, and for the next query tile's first K. */
        consumer_wait<&control::v>(c, v);
        if (sm90::Q_BUFFERS > 1 && s_ready)
            consumer_wait<&control::k>(c, k);
        ping_pong_wait(group);
        wgmma_fence();
        /* 6: O += P V */
        multiply_pv(o, p, describe_n_major(v_tiles + v.stage * sm90::V_BYTES, sm90::KV_SLAB));
        /* 3: S = Q K^T of the next query tile. If there is none the product is not used: a branch around it would
         * double the code that follows. */
        if (sm90::Q_BUFFERS > 1)
            multiply_qk(s, q + r.stage * (sm90::Q_BYTES / 16), describe_k_major(k_tiles + k.stage * sm90::K_BYTES));
        ping_pong_arrive(group);
        if constexpr (config::SCORE_TILE > 0 && sm90::Q_BUFFERS > 1)
            if (s_ready) {
                find_capture_rows(captured, a, c.query_tiles[r.stage].coord);
                copy_capture_tile(captured, a, memory, c.key_tiles[k.stage].index, k);
            }
        wgmma_wait<sm90::Q_BUFFERS == 1 ? 0 : 1>(); /* O is done, S may not be */
        accumulators_done(o);
        consumer_release<&control::v>(c, v);
        /* 7: store O and LSE */
        store(o, row_max, row_sum, a, coord, row, factor);
        wgmma_wait<0>();
        accumulators_done(s);
        advance(v);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_forward_sm90(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ tensor_map q_map,
                        const __grid_constant__ tensor_map k_map, const __grid_constant__ tensor_map v_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    control &c = *(control *)(memory + sm90::CONTROL_OFFSET);
    if (threadIdx.x == 0) {
        /* A warp of the consumers and of the scan warps arrives ARRIVALS times when it releases a stage. */
        for (int i = 0; i < sm90::Q_BUFFERS; i++)
            pipeline_init<&control::q>(c, i, 1, (sm90::GROUPS * 4 + sm90::SCAN_WARPS) * ARRIVALS);
        for (int i = 0; i < STAGES; i++) {
            pipeline_init<&control::k>(c, i, 1, (sm90::GROUPS * 4 + sm90::SCAN_WARPS) * ARRIVALS);
            pipeline_init<&control::v>(c, i, 1,
                                       (sm90::GROUPS * 4 + (sm90::SCAN_RELEASES_V ? sm90::SCAN_WARPS : 0)) * ARRIVALS);
            barrier_init(&c.v_scanned[i], 1);
        }
        for (int i = 0; i < sm90::QUEUE_STAGES; i++)
            pipeline_init<&control::queue>(c, i, 1, 1);
        fence_barrier_init();
    }
    if (KEY_TERMS && threadIdx.x == 0) {
        key_terms_control &t = *(key_terms_control *)(memory + sm90::KEY_TERMS_OFFSET);
        for (int i = 0; i < STAGES; i++)
            pipeline_init<&key_terms_control::terms>(t, i, sm90::SCAN_WARPS * ARRIVALS, sm90::GROUPS * 4 * ARRIVALS);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_release<sm90::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0)
            load(a, c, shared_address(memory), &q_map, &k_map, &v_map);
        else if (threadIdx.x / 32 == 1 && threadIdx.x % 32 < sm90::BLOCK_LISTS)
            schedule_tiles(a, c);
        else if (sm90::SCAN_WARPS && threadIdx.x >= 64)
            scan_v(a, c, memory);
    } else {
        registers_take<sm90::CONSUMER_REGISTERS>();
        consume(a, c, memory);
    }
}
