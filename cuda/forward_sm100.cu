/* SPDX-License-Identifier: MIT */
/*
 * Forward for Blackwell data-centre GPUs: TMA, mbarriers, tcgen05 and tensor memory, after FlashAttention-4. The stages
 * are those of docs/algorithm.md. It has run under the model (docs/model.md), and never on hardware.
 *
 * A persistent CTA has the producers of Hopper's kernel (producer_sm90.cuh), a softmax warp group for each 128 rows of
 * a query tile, and a thread that issues all products. S, P and O are in tensor memory, where a softmax thread has the
 * lane of its row. For each 128 rows the order is S = Q K, softmax, O += P V, and the next S, which takes the place of
 * P: with two buffers of S that of the next but one key tile, so that P V and S run under a softmax of their own group.
 * Where P has columns of its own the next S is before P V, and P V alone runs under the softmax.
 * With two groups the products of one run under the softmax of the other, and a correction warp group rescales O and
 * stores it (correction_sm100.cuh).
 *
 * For each key tile a group has three handovers. The products' commits say that S is complete, and that P V is. The
 * softmax warps say that P is in tensor memory, and they or the correction that P V of the key tile before is complete
 * and O rescaled. The correction has the factor of O from the softmax warps through shared memory, and at the end of a
 * query tile the row's sum and maximum.
 */
#include "layout_forward_sm100.cuh" /* before the headers that read its configuration */

#include "correction_sm100.cuh"
#include "exponentials.cuh"
#include "producer_sm90.cuh"
#include "scores_sm90.cuh"

/* --------------------------------------------------------------------------------------------------------- products */

/* The descriptor of an operand that begins some bytes later. The address is in the lower word, and does not carry. */
__device__ __forceinline__ u64 descriptor_at(u64 descriptor, u32 bytes)
{
    return (descriptor & 0xffffffff00000000ull) | ((u32)descriptor + bytes / 16);
}

/* 3: S = Q K^T of 128 rows. */
__device__ __forceinline__ void multiply_qk(u32 s, u64 q, u64 k)
{
#pragma unroll
    for (int step = 0; step < sm100::STEPS_D; step++)
        tcgen05_ss(s, descriptor_at(q, step / 4 * sm100::Q_SLAB + step % 4 * 32),
                   descriptor_at(k, step / 4 * sm100::KV_SLAB + step % 4 * 32), tcgen05_instruction(BLOCK_N, false),
                   step);
}

/* 6: O += P V of 128 rows. With `first` O = P V, where O is not 0 already: infinities and NaN of V are added to it. */
__device__ __forceinline__ void multiply_pv(u32 o, u32 p, u64 v, bool first)
{
    int add = sm100::SCANS_V || !first;
#pragma unroll
    for (int step = 0; step < sm100::STEPS_N; step++)
        tcgen05_ts(o, p + step * 8, descriptor_at(v, step * 16 * 128), tcgen05_instruction(sm100::WIDTH_DV, true),
                   step || add);
}

__device__ __forceinline__ u64 describe_q(u32 memory, u32 stage, int group)
{
    return tcgen05_descriptor(describe_k_major(memory + stage * sm100::Q_BYTES + (u32)group * 128 * 128));
}

/* The columns of P, with a buffer of S. */
__device__ __forceinline__ u32 p_column(u32 buffer)
{
    return sm100::P_COLUMN ? sm100::P_COLUMN : buffer * BLOCK_N;
}

/* The thread that issues the products. */
struct products {
    sm100_control &c;
    u32 memory;
    pipeline_state q, k, v, p; /* p: of P of every group, and of S */
    bool ended;                /* S of the query tile's last key tile has been issued, or is going to be */

    /* 2: waits for the next K. */
    __device__ __forceinline__ u64 next_k()
    {
        consumer_wait<&control::k>(c.tiles, k);
        ended = c.tiles.key_tiles[k.stage].flags & TILE_LAST;
        return tcgen05_descriptor(describe_k_major(memory + sm100::K_OFFSET + k.stage * sm100::K_BYTES));
    }

    /* 3: S = Q K^T of a group. */
    __device__ __forceinline__ void issue_s(int g, u32 buffer, u64 keys)
    {
        multiply_qk(c.tmem + g * sm100::GROUP_COLUMNS + buffer * BLOCK_N, describe_q(memory, q.stage, g), keys);
        tcgen05_commit(&c.groups[g].s_full[buffer]);
    }

    /* After S of all groups: releases K, and Q after the last one. */
    __device__ __forceinline__ void release_k()
    {
        tcgen05_commit(&c.tiles.k.empty[k.stage]);
        consumer_release_thread<&control::k>(c.tiles, k);
        advance(k);
        if (!ended)
            return;
        tcgen05_commit(&c.tiles.q.empty[q.stage]);
        consumer_release_thread<&control::q>(c.tiles, q);
    }

    /* P V of a key tile, and S of a later one, whose products are issued now. o_phase: of every group. */
    __device__ __forceinline__ void issue_key_tile(bool first, u32 o_phase)
    {
        bool more = !ended;
        u64 keys = 0;
        /* 2: wait for V */
        consumer_wait<&control::v>(c.tiles, v);
        u64 values =
            tcgen05_descriptor(describe_n_major(memory + sm100::V_OFFSET + v.stage * sm100::V_BYTES, sm100::KV_SLAB));
#pragma unroll 1
        for (int g = 0; g < sm100::GROUPS; g++) {
            u32 columns = c.tmem + g * sm100::GROUP_COLUMNS;
            barrier_wait(&c.groups[g].p_full[p.stage], p.phase);
            tmem_fence_after();
            if (sm100::P_COLUMN && more) { /* S has been read, and is not where P is */
                if (g == 0)
                    keys = next_k();
                issue_s(g, 0, keys);
            }
            /* 6: O += P V */
            multiply_pv(columns + sm100::O_COLUMN, columns + p_column(p.stage), values, first);
            tcgen05_commit(&c.groups[g].o_full);
            if (sm100::P_COLUMN || !more)
                continue;
            if (g == 0)
                keys = next_k();
            /* P, which the next S overwrites, has been read. Products with other accumulators have no order. */
            barrier_wait(&c.groups[g].o_full, o_phase);
            tmem_fence_after();
            issue_s(g, p.stage, keys);
        }
        tcgen05_commit(&c.tiles.v.empty[v.stage]);
        advance(v);
        if (more)
            release_k();
        advance<sm100::S_BUFFERS>(p);
    }
};

__device__ __forceinline__ void multiply(sm100_control &c, u32 memory)
{
    products m = {c, memory, {0, 0}, {0, 0}, {0, 0}, {0, 0}, false};
    u32 o_phase = 0;
    for (;;) {
        /* 1: wait for Q */
        consumer_wait<&control::q>(c.tiles, m.q);
        int flags = c.tiles.query_tiles[m.q.stage].flags;
        if (!flags)
            break;
        if (flags & TILE_LAST) { /* no keys: an arrival in place of the commit's too */
            consumer_release_thread<&control::q>(c.tiles, m.q);
            consumer_release_thread<&control::q>(c.tiles, m.q);
            advance<sm100::Q_BUFFERS>(m.q);
            continue;
        }
        /* S of as many key tiles as it has buffers. P V of the last query tile is complete, which is waited for below.
         */
        m.ended = false;
        int tiles = 0; /* whose S has been issued and P V has not */
        for (u32 buffer = m.p.stage; tiles < sm100::S_BUFFERS && !m.ended; tiles++) {
            u64 keys = m.next_k();
#pragma unroll 1
            for (int g = 0; g < sm100::GROUPS; g++)
                m.issue_s(g, buffer, keys);
            m.release_k();
            buffer = sm100::S_BUFFERS - 1 - buffer;
        }
        for (bool first = true; tiles; first = false) {
            tiles -= m.ended;
            m.issue_key_tile(first, o_phase);
            if (!tiles) {
#pragma unroll
                for (int g = 0; g < sm100::GROUPS; g++)
                    barrier_wait(&c.groups[g].o_full, o_phase);
                tmem_fence_after();
            }
            o_phase ^= 1;
        }
        advance<sm100::Q_BUFFERS>(m.q);
    }
}

/* ---------------------------------------------------------------------------------------------------------- softmax */

constexpr float RESCALE_THRESHOLD_LOG2 = 8.0f;

/* The state of a softmax thread's row. Warps converge where rows differ, before they access tensor memory. */
struct row_state {
    float row_max, row_sum;
};

__device__ __forceinline__ void load_s(float (&s)[sm100::LOAD_COLUMNS], u32 from)
{
    u32 w[sm100::LOAD_COLUMNS];
    tmem_load(w, from);
    tmem_wait_load(w);
#pragma unroll
    for (int i = 0; i < sm100::LOAD_COLUMNS; i++)
        s[i] = __uint_as_float(w[i]);
}

__device__ __forceinline__ void store_s(u32 to, const float (&s)[sm100::LOAD_COLUMNS])
{
    u32 w[sm100::LOAD_COLUMNS];
#pragma unroll
    for (int i = 0; i < sm100::LOAD_COLUMNS; i++)
        w[i] = __float_as_uint(s[i]);
    tmem_store(to, w);
}

/* 4: score and mask hook: in place, where S changes at all. Returns the row's maximum over the tile. */
__device__ __forceinline__ float modify_s(u32 s, const attune_cuda_arguments &a, const tile_coord &p, int kv, int flags,
                                          int row, const linear_score (&linear_scores)[1], bool linear, u32 terms)
{
    bool modified = HAVE_SCORE || flags & TILE_MASKED || a.scale <= 0.0f;
    float largest = -ATTUNE_INF;
#pragma unroll 1
    for (int load = 0; load < sm100::LOADS; load++) {
        float x[sm100::LOAD_COLUMNS];
        u32 at = s + (u32)(load * sm100::LOAD_COLUMNS);
        load_s(x, at);
        if (modified) {
            apply_score_and_mask<false>(x, a, p, kv + load * sm100::LOAD_COLUMNS, flags, row, linear_scores, linear,
                                        staged_terms{terms + (u32)(load * sm100::LOAD_COLUMNS * 4), 0});
            __syncwarp();
            store_s(at, x);
        }
        float most[2] = {largest, -ATTUNE_INF};
#pragma unroll
        for (int i = 0; i < sm100::LOAD_COLUMNS; i++)
            most[i % 2] = fmaxf(most[i % 2], x[i]);
        largest = fmaxf(most[0], most[1]);
    }
    if (modified)
        tmem_wait_store();
    return largest;
}

/*
 * 5: online softmax: the reference that the exponentials subtract, `row_max`, rises only where a weight would be larger
 * than 2^8, or where maxima are a result, which has to be exact. P, the row sums and O are floating-point, so larger
 * weights lose nothing. Returns the factor of O.
 */
__device__ __forceinline__ float raise_maximum(row_state &state, float largest, float factor, bool exact)
{
    float next = fmaxf(state.row_max, largest);
    bool rises = exact ? next > state.row_max : (next - state.row_max) * factor > RESCALE_THRESHOLD_LOG2;
    float alpha = 1.0f;
    if (rises) {
        alpha = exp2_fast((state.row_max - next) * factor);
        state.row_max = next;
        state.row_sum *= alpha;
    }
    return alpha;
}

/* 5: S becomes P, in 16 bits. p: its columns, of its own or the first half of those of S, of which those of a load have
 * been read when they are overwritten. */
__device__ __forceinline__ void exponentiate(row_state &state, u32 s, u32 p, float factor)
{
    float base = base_of(state.row_max), shift = base * factor, large = 0.0f;
    if (SCORES_MAY_BE_LARGE && fabsf(shift) >= LARGE_SCORE)
        large = base, shift = 0.0f;
    float sum[2] = {state.row_sum, 0.0f};
#pragma unroll 1
    for (int load = 0; load < sm100::LOADS; load++) {
        float x[sm100::LOAD_COLUMNS];
        u32 w[sm100::LOAD_COLUMNS / 2];
        load_s(x, s + (u32)(load * sm100::LOAD_COLUMNS));
#pragma unroll
        for (int i = 0; i < sm100::LOAD_COLUMNS / 2; i++) {
            if (SCORES_MAY_BE_LARGE)
                x[i * 2] -= large, x[i * 2 + 1] -= large;
            float even = exp2_shared(__fmaf_rn(x[i * 2], factor, -shift), i * 2);
            float odd = exp2_shared(__fmaf_rn(x[i * 2 + 1], factor, -shift), i * 2 + 1);
            sum[0] += even;
            sum[1] += odd;
            w[i] = pack(even, odd);
        }
        tmem_store(p + (u32)(load * (sm100::LOAD_COLUMNS / 2)), w);
    }
    state.row_sum = sum[0] + sum[1];
}

/* Adds the infinities and NaN of V that the scan warps replaced by 0, to the rows that are allowed to attend them.
 * Their product with a weight is NaN if the weight is 0, and the element itself with any other. The weights are P's, at
 * s. */
__device__ __forceinline__ void add_non_finite_v(u32 s, u32 o, const attune_cuda_arguments &a, const tile_coord &p,
                                                 int kv, int flags, int row)
{
    const element *v = (const element *)a.v.address + p.b * a.v.batch + p.h_kv * a.v.head;
    tmem_wait_store();
#pragma unroll 1
    for (int load = 0; load < sm100::LOADS; load++, kv += sm100::LOAD_COLUMNS) {
        u32 w[sm100::LOAD_COLUMNS / 2], weightless = 0;
        tmem_load(w, s + (u32)(load * (sm100::LOAD_COLUMNS / 2)));
        tmem_wait_load(w);
#pragma unroll
        for (int i = 0; i < sm100::LOAD_COLUMNS; i++)
            weightless |= w[i / 2] >> i % 2 * 16 & 0x7fffu ? 0 : 1u << i;
        int end = min(kv + sm100::LOAD_COLUMNS, a.kv_len);
        change_o(o, [&](float(&x)[16], int column) {
#pragma unroll 1
            for (int key = kv; key < end; key++) {
                bool allowed = !(flags & TILE_ABSENT) && (!(flags & TILE_PARTIAL) || pair_allowed(a, p, row, key));
                if (!allowed)
                    continue;
                float factor = weightless >> (key - kv) & 1 ? 0.0f : 1.0f;
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    u32 bits = column + i < HEAD_DIM_V ? v[key * a.v.row + column + i] : 0;
                    if (non_finite_signs(bits) & 0x8000u)
                        x[i] += factor * unpack(bits);
                }
            }
            __syncwarp();
        });
    }
}

/* Before P V: waits until the scan warps have read the tile's V. Not every tile is scanned, so each stage has a phase
 * of its own: `scanned` has a bit for each stage, the phase to wait for. passed: of the rows that were handed over
 * last, with which O is rescaled before it is added to. */
__device__ __forceinline__ void wait_scanned(u32 s, u32 o, control &c, group_control &own,
                                             const attune_cuda_arguments &a, const tile_coord &p, int kv, int flags,
                                             int row, u32 stage, u32 &scanned, const pipeline_state &passed)
{
    if (!sm100::SCANS_V || !(flags & TILE_SCAN_V))
        return;
    barrier_wait(&c.v_scanned[stage], scanned >> stage & 1);
    scanned ^= 1u << stage;
    if (!c.non_finite[stage])
        return;
    if (sm100::CORRECTS) {
        producer_acquire<&group_control::rows>(own, passed);
        tmem_fence_after();
    }
    add_non_finite_v(s, o, a, p, kv, flags, row);
}

/* ----------------------------------------------------------------------------------------------- softmax warp groups
 */

__device__ __forceinline__ void consume(const attune_cuda_arguments &a, sm100_control &c, unsigned char *memory)
{
    int group = (int)threadIdx.x / 128 - 1, lane = (int)threadIdx.x % 128;
    group = __shfl_sync(0xffffffffu, group, 0); /* uniform in a warp, which the compiler now knows */
    u32 columns = tmem_lane(c.tmem + (u32)group * sm100::GROUP_COLUMNS), o = columns + sm100::O_COLUMN;
    group_control &own = c.groups[group];
    row_words &words = ((row_words *)(memory + sm100::ROWS_OFFSET))[group];
    float factor = fold_factor(a.scale);
    /* Of Q; of K, whose stages V has, too; of S; of the rows. */
    pipeline_state r = {0, 0}, k = {0, 0}, t = {0, 0}, passed = {0, 1};
    u32 scanned = 0, phases = 0, o_phase = 1; /* o_phase: of the last P V */
    for (;;) {
        /* 1: wait for the descriptor of the query tile. */
        consumer_wait<&control::q>(c.tiles, r);
        int flags = c.tiles.query_tiles[r.stage].flags;
        if (!flags)
            break;
        tile_coord coord = c.tiles.query_tiles[r.stage].coord;
        consumer_release<&control::q>(c.tiles, r);
        advance<sm100::Q_BUFFERS>(r);
        int row = coord.q + group * 128 + lane;
        if (flags & TILE_LAST) {
            if (!sm100::CORRECTS)
                store_fully_masked(a, coord, row);
            continue;
        }
        linear_score linear_scores[1];
        bool linear = find_linear_scores(linear_scores, a, coord, row);
        /* The shift to the flags of the block list that has this warp group's rows. */
        int list = sm100::BLOCK_LISTS > 1 && (coord.q + group * 128) / a.q_block != coord.q / a.q_block ? 8 : 0;
        row_state state = {-ATTUNE_INF, 0.0f};
        if (sm100::SCANS_V && !sm100::CORRECTS)
            zero_o(o);
        bool first = true;
        do {
            /* The descriptor of the key tile. */
            consumer_wait<&control::k>(c.tiles, k);
            int kv = c.tiles.key_tiles[k.stage].index;
            flags = c.tiles.key_tiles[k.stage].flags >> list;
            consumer_release<&control::k>(c.tiles, k);
            u32 terms = wait_key_terms(a, memory, flags, k, phases);
            u32 s = columns + t.stage * BLOCK_N, p = columns + p_column(t.stage);
            barrier_wait(&own.s_full[t.stage], t.phase);
            tmem_fence_after();
            /* 4: score and mask hook */
            float largest = modify_s(s, a, coord, kv, flags, row, linear_scores, linear, terms);
            release_key_terms(a, memory, flags, k);
            /* 5: online softmax */
            float alpha = raise_maximum(state, largest, factor, a.row_max.address != 0);
            if constexpr (sm100::CORRECTS)
                pass_factor(own, words, passed, alpha, flags & TILE_LAST);
            if (sm100::P_COLUMN && !first) { /* the P before has been multiplied */
                barrier_wait(&own.o_full, o_phase);
                tmem_fence_after();
            }
            exponentiate(state, s, p, factor);
            if (!sm100::CORRECTS && !first)
                correct_o(own, o, o_phase, alpha);
            wait_scanned(p, o, c.tiles, own, a, coord, kv, flags, row, k.stage, scanned, passed);
            if (sm100::SCANS_V) {
                /* Not before it is full: the other group may still have to release it for the key tile before. */
                consumer_wait<&control::v>(c.tiles, k);
                consumer_release<&control::v>(c.tiles, k);
            }
            tmem_wait_store();
            tmem_fence_before();
            warp_arrive(&own.p_full[t.stage]);
            advance<sm100::S_BUFFERS>(t);
            o_phase ^= 1;
            first = false;
            advance(k);
        } while (!(flags & TILE_LAST));
        if constexpr (sm100::CORRECTS) {
            pass_sums(own, words, passed, state.row_sum, state.row_max);
        } else {
            barrier_wait(&own.o_full, o_phase);
            tmem_fence_after();
            /* 7: store O and LSE */
            store_o(normaliser_of(state.row_sum, a), o, a, coord, row);
            store_sums_of(state.row_sum, state.row_max, a, coord, row, factor);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

__device__ __forceinline__ void init_barriers(sm100_control &c, unsigned char *memory, bool stores_o)
{
    /* A softmax or scan warp arrives ARRIVALS times when it releases a stage. The thread that issues products arrives
     * itself, for what it has read of the descriptors, and by a commit, for what the products read. */
    constexpr int SOFTMAX = sm100::SOFTMAX_WARPS * ARRIVALS, SCAN = sm100::SCAN_WARPS * ARRIVALS,
                  CORRECTION = sm100::CORRECTION_WARPS * ARRIVALS;
    for (int i = 0; i < sm100::Q_BUFFERS; i++)
        pipeline_init<&control::q>(c.tiles, i, 1, SOFTMAX + SCAN + CORRECTION + 2 + (stores_o ? 1 : 0));
    for (int i = 0; i < STAGES; i++) {
        pipeline_init<&control::k>(c.tiles, i, 1, SOFTMAX + SCAN + 2);
        pipeline_init<&control::v>(c.tiles, i, 1, (sm100::SCANS_V ? SOFTMAX + SCAN : 0) + 1);
        barrier_init(&c.tiles.v_scanned[i], 1);
    }
    for (int i = 0; i < sm100::QUEUE_STAGES; i++)
        pipeline_init<&control::queue>(c.tiles, i, 1, 1);
    for (int g = 0; g < sm100::GROUPS; g++) {
        for (int i = 0; i < sm100::S_BUFFERS; i++) {
            barrier_init(&c.groups[g].s_full[i], 1);
            barrier_init(&c.groups[g].p_full[i], 4 * ARRIVALS + CORRECTION);
        }
        barrier_init(&c.groups[g].o_full, 1);
        if (sm100::CORRECTS)
            pipeline_init<&group_control::rows>(c.groups[g], 0, 4 * ARRIVALS, CORRECTION);
    }
    for (int i = 0; i < sm100::O_TILES; i++)
        pipeline_init<&sm100_control::o>(c, i, CORRECTION, 1);
    if (KEY_TERMS) {
        key_terms_control &t = *(key_terms_control *)(memory + sm100::KEY_TERMS_OFFSET);
        for (int i = 0; i < STAGES; i++)
            pipeline_init<&key_terms_control::terms>(t, i, SCAN, SOFTMAX);
    }
    fence_barrier_init();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_forward_sm100(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ tensor_map q_map,
                         const __grid_constant__ tensor_map k_map, const __grid_constant__ tensor_map v_map,
                         const __grid_constant__ tensor_map o_map, const int tma_stores_o)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    sm100_control &c = *(sm100_control *)(memory + sm100::CONTROL_OFFSET);
    int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    bool stores_o = sm100::STORES_O && tma_stores_o;
    if (threadIdx.x == 0)
        init_barriers(c, memory, stores_o);
    if (warp == sm100::MMA_WARP) {
        tmem_allocate<sm100::TMEM_COLUMNS>(shared_address(&c.tmem));
        tmem_relinquish();
    }
    tmem_fence_before();
    __syncthreads();
    tmem_fence_after();
    if (warp < 4) {
        registers_release<sm100::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0)
            load(a, c.tiles, shared_address(memory), &q_map, &k_map, &v_map);
        else if (warp == 1 && threadIdx.x % 32 < sm100::BLOCK_LISTS)
            schedule_tiles(a, c.tiles);
        else if (sm100::SCAN_WARPS && threadIdx.x >= 64)
            scan_v(a, c.tiles, memory);
    } else if (warp < sm100::CORRECTION_WARP) {
        registers_take<sm100::SOFTMAX_REGISTERS>();
        consume(a, c, memory);
        tmem_fence_before();
        named_arrive<sm100::TMEM_THREADS>(BARRIER_TMEM);
    } else if (sm100::CORRECTS && warp < sm100::MMA_WARP) {
        registers_release<sm100::CORRECTION_REGISTERS>();
        correct(a, c, memory, stores_o);
        tmem_fence_before();
        named_arrive<sm100::TMEM_THREADS>(BARRIER_TMEM);
    } else {
        registers_release<sm100::MMA_REGISTERS>();
        if (threadIdx.x == sm100::MMA_WARP * 32)
            multiply(c, shared_address(memory));
        if constexpr (sm100::STORES_O)
            if (stores_o && threadIdx.x == sm100::STORE_WARP * 32)
                store_tiles(a, c, shared_address(memory), &o_map);
        if (warp != sm100::MMA_WARP)
            return;
        __syncwarp();
        named_sync<sm100::TMEM_THREADS>(BARRIER_TMEM);
        tmem_fence_after();
        tmem_free<sm100::TMEM_COLUMNS>(c.tmem);
    }
}
