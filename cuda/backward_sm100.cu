/* SPDX-License-Identifier: MIT */
/*
 * The backward pass for Blackwell data-centre GPUs: TMA, mbarriers, tcgen05 and tensor memory, after FlashAttention-4.
 * attune_delta runs before it. It has run under the model (docs/model.md), and never on hardware.
 *
 * A CTA computes dK and dV of one tile of 128 keys at a time, over all queries of all heads that attend to it, in tiles
 * of 128 rows, or of 64 with a head dimension past 128. The stages are those of backward_sm90.cu:
 *
 *     1  load K V; for each query tile: load Q dO, LSE, delta       produce (producer_backward_sm90.cuh)
 *     2  S^T = K Q^T                                                multiply
 *     3  dP^T = V dO^T                                              multiply
 *     4  P = exp(S - LSE)                                           compute
 *     5  dS = P * (dP - delta)                                      compute
 *     6  dV += P dO                                                 multiply
 *     7  dQ += dS^T K                                               multiply, add_dq
 *     8  dK += dS Q                                                 multiply
 *     9  store dK dV                                                store_dk_dv
 *    10  scale and round dQ                                         round_dq (dq_backward_sm90.cuh)
 *
 * S, dP, dK, dV and dQ are in tensor memory, with a key, or of dQ a row, for each lane. P takes the place of S, and dS
 * that of dP: each is the left operand of a product from there. For dQ, dS is stored to shared memory, too. Where
 * tensor memory is full, dQ takes the place of dP and dS.
 *
 * With a head dimension past 128, dQ is transposed: dQ^T = K^T dS, with a column for each lane. Where tensor memory has
 * no columns for both dK and dV, a tile of keys is two items: one has dK and dQ, the other one S, P and dV alone.
 *
 * By pairs (pair_backward_sm100.cuh) two CTAs of a cluster have 128 of 256 keys each, and products are of both.
 */
#include "config_backward_sm100.cuh" /* before the headers that read it */

#include "dk_dv_backward_sm100.cuh"
#include "dq_backward_sm90.cuh"
#include "ordered_sums.cuh"
#include "pair_backward_sm100.cuh"
#include "scores_backward_sm90.cuh"

/* Barriers between the thread that issues products and the warps that compute. The _full ones say that a product, P or
 * dS is there; p_read and ds_read that products have read them. sums: of dK and dV; dQ has `dq` of the control. */
struct sm100_control {
    control tiles;
    u64 s_full, p_full, p_read, dp_full, ds_full, ds_read;
    u64 sums_full;
    u32 tmem; /* the address of the allocated columns */
    pair_control pair;
};
static_assert(sizeof(sm100_control) <= sm100::CONTROL_BYTES);

/* --------------------------------------------------------------------------------------------------------- products */

/* The descriptors are computed where they are used: those of all steps would not fit the registers of the thread. */

/* 2, 3: S^T = K Q^T or dP^T = V dO^T: [keys][rows]. */
template <int STEPS> __device__ __forceinline__ void multiply_s_dp(u32 s, u32 keys, u32 rows)
{
    make_opaque(keys);
    make_opaque(rows);
    u64 left = tcgen05_descriptor(describe_k_major(keys)), right = tcgen05_descriptor(describe_k_major(rows));
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        tcgen05_ss(s, left + (step / 4 * sm100::KEY_SLAB + step % 4 * 32) / 16,
                   right + (step / 4 * sm100::ROW_SLAB + step % 4 * 32) / 16, tcgen05_instruction(BLOCK_M, false),
                   step);
}

/* 6, 8: dV += P dO or dK += dS Q. rows: of a pair's CTA, half of their columns. Each warp group has stored P or dS in
 * its own half of the columns of S or dP. */
template <int WIDTH> __device__ __forceinline__ void multiply_dk_dv(u32 sum, u32 p, u32 rows, bool first)
{
    constexpr int STEPS = sm100::GROUP_M / 16; /* of a warp group */
    make_opaque(rows);
    u64 right = tcgen05_descriptor(describe_n_major(rows, sm100::ROW_SLAB));
#pragma unroll
    for (int step = 0; step < sm100::STEPS_M; step++)
        tcgen05_ts(sum, p + step / STEPS * sm100::GROUP_M + step % STEPS * 8, right + step * (16 * 128 / 16),
                   tcgen05_instruction(WIDTH, true), step || !first);
}

/* 7: dQ = dS^T K: [rows][D], or dQ^T = K^T dS: [D][rows], of which the lanes past D are not read: they have what lies
 * behind K, which is V. In shared memory dS has a slab of 64 rows of each key. */
__device__ __forceinline__ void multiply_dq(u32 dq, u32 ds, u32 keys)
{
    make_opaque(ds);
    make_opaque(keys);
    /* Of a pair, [256 keys][half of the rows] and [256 keys][half of the columns]. */
    u64 d_s = tcgen05_descriptor(describe_n_major(ds, sm100::KEY_SLAB)),
        k = tcgen05_descriptor(describe_n_major(keys, sm100::KEY_SLAB));
    if constexpr (!sm100::DQ_THREAD_COLUMNS) {
#pragma unroll
        for (int step = 0; step < sm100::STEPS_N; step++)
            tcgen05_ss(dq, d_s + step * (16 * 128 / 16), k + step * (16 * 128 / 16),
                       tcgen05_instruction(sm100::WIDTH_D, true, true, BLOCK_M), step);
    } else {
#pragma unroll 1
        for (int chunk = 0; chunk < sm100::DQ_CHUNKS; chunk++, k += 2 * sm100::KEY_SLAB / 16)
#pragma unroll
            for (int step = 0; step < sm100::STEPS_N; step++)
                tcgen05_ss(dq + chunk * BLOCK_M, k + step * (16 * 128 / 16), d_s + step * (16 * 128 / 16),
                           tcgen05_instruction(BLOCK_M, true, true), step);
    }
}

/* A barrier that says something of tensor memory. */
__device__ __forceinline__ void wait_tensor(u64 *barrier, u32 phase)
{
    wait_both(barrier, phase);
    tmem_fence_after();
}

/* The thread that issues the products. `phase` is that of the barriers that complete once in each query tile; of two
 * items for a tile of keys, those of dP, dS and dQ do so in one, and p_read in the other. */
struct products {
    sm100_control &c;
    u32 memory;
    pipeline_state queries, outputs;
    u32 phase, phase_of_ds, phase_of_dv;
    pipeline_state rows, columns; /* of Q, of a pair */
};

__device__ __forceinline__ u32 ds_phase(const products &m)
{
    return sm100::ITEMS == 1 ? m.phase : m.phase_of_ds;
}

__device__ __forceinline__ u32 dv_phase(const products &m)
{
    return sm100::ITEMS == 1 ? m.phase : m.phase_of_dv;
}

__device__ __forceinline__ u32 q_tile(const products &m, u32 stage)
{
    return m.memory + sm100::Q_OFFSET + stage * sm100::Q_BYTES;
}

__device__ __forceinline__ u32 do_tile(const products &m)
{
    return m.memory + sm100::DO_OFFSET + m.outputs.stage * sm100::DO_BYTES;
}

/* The right operands of dK and dV. */
__device__ __forceinline__ u32 q_columns(const products &m, u32 stage)
{
    return sm100::PAIRED ? m.memory + sm100::Q_COLUMNS_OFFSET + m.columns.stage * sm100::COLUMNS_BYTES
                         : q_tile(m, stage);
}

__device__ __forceinline__ u32 do_columns(const products &m)
{
    return sm100::PAIRED ? m.memory + sm100::DO_COLUMNS_OFFSET + m.outputs.stage * sm100::COLUMNS_BYTES : do_tile(m);
}

/* 2: S^T of the query tile of `queries`. P of the tile before has been read. */
__device__ __forceinline__ void multiply_s(products &m)
{
    if constexpr (sm100::PAIRED)
        wait_both(&m.c.pair.rows.full[m.rows.stage], m.rows.phase);
    multiply_s_dp<sm100::STEPS_D>(m.c.tmem, m.memory, q_tile(m, sm100::PAIRED ? m.rows.stage : m.queries.stage));
    commit_all(&m.c.s_full);
    if constexpr (sm100::PAIRED) {
        commit_all(&m.c.pair.rows.empty[m.rows.stage]);
        advance(m.rows);
    }
}

/* 3: dP^T. dS of the tile before has been read; so must have been dQ, if it has taken its place. */
__device__ __forceinline__ void multiply_dp(products &m)
{
    wait_both(&m.c.tiles.outputs.full[m.outputs.stage], m.outputs.phase);
    if (sm100::DQ_OVER_DP)
        wait_tensor(&m.c.tiles.dq.empty[0], ds_phase(m) ^ 1);
    multiply_s_dp<sm100::STEPS_DV>(m.c.tmem + sm100::DP_COLUMN, m.memory + sm100::K_BYTES, do_tile(m));
    commit_all(&m.c.dp_full);
    if (sm100::ITEMS > 1) /* its only reader */
        tcgen05_commit(&m.c.tiles.outputs.empty[m.outputs.stage]);
}

/* The descriptor of the next query tile. */
__device__ __forceinline__ int next_flags(products &m)
{
    advance(m.queries);
    consumer_wait<&control::queries>(m.c.tiles, m.queries);
    return m.c.tiles.descs[m.queries.stage].flags;
}

/* Releases a query tile's Q, LSE and delta once the products that were issued have read it. */
__device__ __forceinline__ void release_queries(products &m, u32 stage)
{
    if (!sm100::PAIRED)
        tcgen05_commit(&m.c.tiles.queries.empty[stage]);
    consumer_release_thread<&control::queries>(m.c.tiles, {stage, 0});
}

/* 2: S^T of the next query tile, once P of the present one has been read. False: there is none. */
template <bool DV> __device__ __forceinline__ bool multiply_next_s(products &m)
{
    bool more = !(next_flags(m) & TILE_END);
    if (DV)
        wait_tensor(&m.c.p_read, dv_phase(m));
    if (more)
        multiply_s(m);
    return more;
}

/* 8 and 7: dK += dS Q, dQ = dS^T K. */
__device__ __forceinline__ void multiply_dk_dq(products &m, u32 stage, bool first)
{
    sm100_control &c = m.c;
    wait_tensor(&c.ds_full, ds_phase(m));
    /* 8: dK += dS Q */
    if constexpr (sm100::PAIRED)
        wait_both(&c.pair.columns.full[m.columns.stage], m.columns.phase);
    multiply_dk_dv<sm100::WIDTH_D>(c.tmem + sm100::DK_COLUMN, c.tmem + sm100::DP_COLUMN, q_columns(m, stage), first);
    tcgen05_commit(&c.ds_read);
    if constexpr (sm100::PAIRED) {
        commit_all(&c.pair.columns.empty[m.columns.stage]);
        advance<sm100::DO_STAGES>(m.columns);
    }
    release_queries(m, stage);
    if (sm100::DQ_OVER_DP)
        wait_tensor(&c.ds_read, ds_phase(m));
    else /* dQ of the tile before has been read */
        wait_tensor(&c.tiles.dq.empty[0], ds_phase(m) ^ 1);
    /* 7: dQ = dS^T K */
    multiply_dq(c.tmem + sm100::DQ_COLUMN, m.memory + sm100::DS_OFFSET,
                m.memory + (sm100::PAIRED ? sm100::K_COLUMNS_OFFSET : 0));
    commit_all(&c.tiles.dq.full[0]);
    if (!sm100::DQ_OVER_DP)
        wait_tensor(&c.ds_read, ds_phase(m));
}

/* The products of an item of a tile of keys, from its first query tile on, which `queries` has, to its TILE_END. DK:
 * the item has dK and dQ. DV: it has dV. */
template <bool DK, bool DV> __device__ __forceinline__ void multiply_item(products &m)
{
    sm100_control &c = m.c;
    multiply_s(m);
    if (DK)
        multiply_dp(m);
    else
        consumer_wait<&control::outputs>(c.tiles, m.outputs);
    for (bool first = true, more = true; more; first = false) {
        u32 stage = m.queries.stage;
        wait_tensor(&c.p_full, m.phase);
        if (DV) {
            /* 6: dV += P dO. The warps that stored P have stored dK and dV of the tile of keys before. */
            multiply_dk_dv<sm100::WIDTH_DV>(c.tmem + sm100::DV_COLUMN, c.tmem, do_columns(m), first);
            tcgen05_commit(&c.p_read);
            commit_all(&c.tiles.outputs.empty[m.outputs.stage]);
        }
        if (sm100::AHEAD) /* it runs while dS of this tile is computed */
            more = multiply_next_s<DV>(m);
        if (DK)
            multiply_dk_dq(m, stage, first);
        else
            release_queries(m, stage);
        if (!sm100::AHEAD)
            more = multiply_next_s<DV>(m);
        m.phase ^= 1;
        m.phase_of_ds ^= DK;
        m.phase_of_dv ^= DV;
        advance<sm100::DO_STAGES>(m.outputs);
        if (DK && more)
            multiply_dp(m);
        else if (more)
            consumer_wait<&control::outputs>(c.tiles, m.outputs);
    }
    commit_all(&c.sums_full);
}

__device__ __forceinline__ void multiply(sm100_control &c, u32 memory)
{
    products m = {c, memory, {0, 0}, {0, 0}, 0, 0, 0, {0, 0}, {0, 0}};
    for (u32 items_done = 0;; items_done++) {
        consumer_wait<&control::queries>(c.tiles, m.queries);
        int flags = c.tiles.descs[m.queries.stage].flags;
        if (flags & TILE_STOP)
            break;
        /* 1: wait for K and V */
        wait_both(sm100::PAIRED ? &c.pair.keys : &c.tiles.keys.full[0], items_done & 1);
        if (!(flags & TILE_END)) {
            if constexpr (sm100::ITEMS == 1)
                multiply_item<true, true>(m);
            else if (flags & TILE_VALUES)
                multiply_item<false, true>(m);
            else
                multiply_item<true, false>(m);
        }
        commit_all(&c.tiles.keys.empty[0]);
        release_queries(m, m.queries.stage); /* of TILE_END */
        advance(m.queries);
    }
}

/* ---------------------------------------------------------------------------------------------------------- P and dS
 */

/* The thread's scores i to i + COUNT - 1. */
template <int COUNT> __device__ __forceinline__ void load_scores(float (&x)[COUNT], u32 from)
{
    u32 w[COUNT / 32][32];
#pragma unroll
    for (int i = 0; i < COUNT / 32; i++)
        tmem_load(w[i], from + i * 32);
#pragma unroll
    for (int i = 0; i < COUNT / 32; i++)
        tmem_wait_load(w[i]);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        x[i] = __uint_as_float(w[i / 32][i % 32]);
}

/* P or dS, in 16 bits, in the first half of the columns of the warp group's S or dP. */
__device__ __forceinline__ void store_p_ds(u32 to, const u32 (&p)[sm100::P_STEPS][4])
{
#pragma unroll
    for (int part = 0; part < sm100::P_STEPS / 4; part++) { /* 32 rows */
        u32 w[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            w[i] = p[part * 4 + i / 4][i % 4];
        tmem_store(to + part * 16, w);
    }
}

/* dS to shared memory: of a slab of 64 rows, the thread's key, from the rows of the 16 bytes `first` on. away: to that
 * of the pair's other CTA. */
__device__ __forceinline__ void share_ds(u32 slab, int key, int first, const u32 (&ds)[sm100::P_STEPS][4],
                                         bool away = false)
{
#pragma unroll
    for (int i = 0; i < sm100::P_STEPS; i++) {
        u32 to = slab + (u32)(key * 128 + ((first + i) ^ key % 8) * 16);
        if (sm100::PAIRED && away)
            store_peer_4(to, ds[i][0], ds[i][1], ds[i][2], ds[i][3]);
        else
            store_shared_4(to, ds[i][0], ds[i][1], ds[i][2], ds[i][3]);
    }
}

/* The first chunk becomes the last. */
template <int CHUNKS> __device__ __forceinline__ void rotate(float (&s)[CHUNKS][sm100::S_FRAGMENT])
{
    if constexpr (CHUNKS == 2)
#pragma unroll
        for (int i = 0; i < sm100::S_FRAGMENT; i++) {
            float x = s[0][i];
            s[0][i] = s[1][i];
            s[1][i] = x;
        }
}

/* The work of a thread: its warp group, its key in the tile and in all, and its columns of S and dP. */
struct thread_place {
    int group, key, kv;
    u32 s, d_p;
};

/* P, or dS, of a chunk is stored: the products may read it once all warps have arrived. */
__device__ __forceinline__ void store_p(const thread_place &at, int chunk, const u32 (&p)[sm100::P_STEPS][4])
{
    __syncwarp(); /* rows may differ in their masks, and the accesses to tensor memory are collective */
    store_p_ds(at.s + (u32)(chunk * sm100::S_FRAGMENT / 2), p);
}

__device__ __forceinline__ void store_ds(const thread_place &at, u32 memory, int chunk,
                                         const u32 (&d_s)[sm100::P_STEPS][4])
{
    __syncwarp();
    store_p_ds(at.d_p + (u32)(chunk * sm100::S_FRAGMENT / 2), d_s);
    if constexpr (sm100::PAIRED) { /* a CTA has the rows of one warp group of both */
        int rank = rank_in_pair();
        share_ds(memory + sm100::DS_OFFSET + (u32)rank * sm100::KEY_SLAB, at.key, chunk * sm100::P_STEPS, d_s,
                 at.group != rank);
        return;
    }
    int row = at.group * sm100::GROUP_M;
    share_ds(memory + sm100::DS_OFFSET + (u32)(row / 64) * sm100::KEY_SLAB, at.key,
             row % 64 / 8 + chunk * sm100::P_STEPS, d_s);
}

__device__ __forceinline__ void release_stored(u64 *full)
{
    tmem_wait_store();
    tmem_fence_before();
    warp_arrive_issuer(full);
}

/* A chunk of a query tile's rows: its descriptor, the place of its LSE and delta, and the origin of its pairs. */
__device__ __forceinline__ tile_desc chunk_desc(const tile_desc &desc, int chunk)
{
    tile_desc part = desc;
    part.q += chunk * sm100::S_FRAGMENT;
    return part;
}

__device__ __forceinline__ u32 chunk_rows(const thread_place &at, u32 memory, u32 stage, int chunk)
{
    return memory + stage * sm100::ROW_BYTES + (u32)((at.group * sm100::GROUP_M + chunk * sm100::S_FRAGMENT) * 4);
}

__device__ __forceinline__ pair_origin chunk_pairs(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                                   const thread_place &at, const tile_desc &part)
{
    return {a, g, part.b, part.h, part.q + sm100::group_row(), at.kv};
}

/* The phases of a query tile: of S, and of dP and dS. */
struct tile_phases {
    u32 s, dp;
};

/* 4: P = exp(S - LSE). STORE: dV has it. s: S of all chunks, the present one last; then P times the derivative of the
 * score, the present one first. They rotate, so that indices are constants in a loop that is not unrolled. */
template <bool STORE>
__device__ __forceinline__ void compute_p_chunks(float (&s)[sm100::S_CHUNKS][sm100::S_FRAGMENT],
                                                 const attune_cuda_arguments &a, sm100_control &c, u32 memory,
                                                 const thread_place &at, const tile_desc &desc, u32 stage, u32 phase)
{
    float factor = HAVE_SCORE ? ATTUNE_LOG2E : a.scale * ATTUNE_LOG2E;
    wait_tensor(&c.s_full, phase);
#pragma unroll 1
    for (int chunk = 0; chunk < sm100::S_CHUNKS; chunk++) {
        u32 p[sm100::P_STEPS][4];
        rotate(s);
        load_scores(s[sm100::S_CHUNKS - 1], at.s + (u32)(chunk * sm100::S_FRAGMENT));
        compute_p(s[sm100::S_CHUNKS - 1], p, a, chunk_desc(desc, chunk), at.kv,
                  chunk_rows(at, memory, stage, chunk) + sm100::LSE_OFFSET, factor);
        if (STORE)
            store_p(at, chunk, p);
    }
    release_stored(&c.p_full); /* or S has been read */
}

/* 4, of an item that has dV alone. */
__device__ __forceinline__ void compute_values(const attune_cuda_arguments &a, sm100_control &c, u32 memory,
                                               const thread_place &at, const tile_desc &desc, u32 stage, u32 phase)
{
    float s[sm100::S_CHUNKS][sm100::S_FRAGMENT];
    compute_p_chunks<true>(s, a, c, memory, at, desc, stage, phase);
}

/* 4 and 5, one after the other: dV += P dO, and before it the products of the query tile before, run under dS. */
__device__ __forceinline__ void compute_apart(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                              sm100_control &c, u32 memory, const thread_place &at,
                                              const tile_desc &desc, u32 stage, tile_phases phases)
{
    float s[sm100::S_CHUNKS][sm100::S_FRAGMENT];
    compute_p_chunks<sm100::ITEMS == 1>(s, a, c, memory, at, desc, stage, phases.s);
    /* 5: dS = P * (dP - delta) */
    wait_tensor(&c.dp_full, phases.dp);
#pragma unroll 1
    for (int chunk = 0; chunk < sm100::S_CHUNKS; chunk++) {
        float d_p[sm100::S_FRAGMENT];
        u32 d_s[sm100::P_STEPS][4];
        capture_sums<sm100::S_FRAGMENT> sums;
        pair_origin t = chunk_pairs(a, g, at, chunk_desc(desc, chunk));
        clear_sums(sums);
        load_scores(d_p, at.d_p + (u32)(chunk * sm100::S_FRAGMENT));
        compute_ds(s[0], d_p, d_s, sums, t, chunk_rows(at, memory, stage, chunk) + sm100::DELTA_OFFSET);
        store_ds(at, memory, chunk, d_s);
        add_capture_gradients(sums, t, memory);
        rotate(s);
    }
    fence_stores();
    release_stored(&c.ds_full);
}

/* 4 and 5 of a pair's CTA to whose keys no row of the tile attends: zeros, without the expressions. */
__device__ __forceinline__ void compute_absent(sm100_control &c, u32 memory, const thread_place &at, tile_phases phases)
{
    u32 zeros[sm100::P_STEPS][4] = {};
    wait_tensor(&c.s_full, phases.s);
#pragma unroll 1
    for (int chunk = 0; chunk < sm100::S_CHUNKS; chunk++)
        store_p(at, chunk, zeros);
    release_stored(&c.p_full);
    wait_tensor(&c.dp_full, phases.dp);
#pragma unroll 1
    for (int chunk = 0; chunk < sm100::S_CHUNKS; chunk++)
        store_ds(at, memory, chunk, zeros);
    fence_stores();
    release_stored(&c.ds_full);
}

/* 4 and 5 in one pass, for gradients of captures that depend on the score. */
__device__ __forceinline__ void compute_fused(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                              sm100_control &c, u32 memory, const thread_place &at,
                                              const tile_desc &desc, u32 stage, tile_phases phases)
{
    wait_tensor(&c.s_full, phases.s);
    wait_tensor(&c.dp_full, phases.dp);
#pragma unroll 1
    for (int chunk = 0; chunk < sm100::S_CHUNKS; chunk++) {
        float s[sm100::S_FRAGMENT], d_p[sm100::S_FRAGMENT];
        u32 p[sm100::P_STEPS][4], d_s[sm100::P_STEPS][4];
        u32 rows = chunk_rows(at, memory, stage, chunk);
        capture_sums<sm100::S_FRAGMENT> sums;
        tile_desc part = chunk_desc(desc, chunk);
        pair_origin t = chunk_pairs(a, g, at, part);
        clear_sums(sums);
        load_scores(s, at.s + (u32)(chunk * sm100::S_FRAGMENT));
        load_scores(d_p, at.d_p + (u32)(chunk * sm100::S_FRAGMENT));
        compute_p_ds(s, d_p, p, d_s, sums, t, part, rows + sm100::LSE_OFFSET, rows + sm100::DELTA_OFFSET, 0);
        if (sm100::ITEMS == 1)
            store_p(at, chunk, p);
        store_ds(at, memory, chunk, d_s);
        add_capture_gradients(sums, t, memory);
    }
    release_stored(&c.p_full);
    fence_stores();
    release_stored(&c.ds_full);
}

__device__ __forceinline__ void compute(const attune_cuda_arguments &a, const attune_cuda_backward &g, sm100_control &c,
                                        u32 memory)
{
    int group = (int)threadIdx.x / 128 - sm100::GROUPS, key = (int)threadIdx.x % 128;
    group = __shfl_sync(0xffffffffu, group, 0); /* uniform in a warp, which the compiler now knows */
    u32 lanes = c.tmem + ((u32)(key / 32 * 32) << 16), s = lanes + (u32)(group * sm100::GROUP_M);
    thread_place at = {group, key, 0, s, s + sm100::DP_COLUMN};
    clear_head_sums(memory);
    pipeline_state pipe = {0, 0};
    u32 phase = 0, dp_phase = 0, sums_phase = 0;
    for (u32 tiles_done = 0;; tiles_done++) {
        consumer_wait<&control::queries>(c.tiles, pipe);
        tile_desc desc = c.tiles.descs[pipe.stage];
        if (desc.flags & TILE_STOP)
            break;
        bool none = desc.flags & TILE_END;
        consumer_wait<&control::keys>(c.tiles, {0, tiles_done & 1});
        at.kv = c.tiles.kv + key;
        consumer_release<&control::keys>(c.tiles, {0, 0});
        while (!(desc.flags & TILE_END)) {
            bool values = sm100::ITEMS > 1 && desc.flags & TILE_VALUES;
            tile_phases phases = {phase, sm100::ITEMS > 1 ? dp_phase : phase};
            if (values)
                compute_values(a, c, memory, at, desc, pipe.stage, phase);
            else if (sm100::PAIRED && config::HAVE_BLOCKS && desc.flags & TILE_ABSENT)
                compute_absent(c, memory, at, phases);
            else if constexpr (sm100::FUSED_GRADIENTS)
                compute_fused(a, g, c, memory, at, desc, pipe.stage, phases);
            else
                compute_apart(a, g, c, memory, at, desc, pipe.stage, phases);
            consumer_release_converged<&control::queries>(c.tiles, pipe);
            advance(pipe);
            consumer_wait<&control::queries>(c.tiles, pipe);
            tile_desc next = c.tiles.descs[pipe.stage];
            if constexpr (sm100::HAVE_CAPTURE_GRADIENTS)
                if (!values &&
                    (next.flags & TILE_END || next.h != desc.h || next.b != desc.b)) /* the head's last rows */
                    flush_head_sums({a, g, desc.b, desc.h, 0, at.kv}, memory);
            desc = next;
            phase ^= 1;
            dp_phase ^= !values;
        }
        consumer_release<&control::queries>(c.tiles, pipe);
        advance(pipe);
        /* 9: store dK and dV */
        if (!none)
            wait_tensor(&c.sums_full, sums_phase);
        store_dk_dv(a, g, lanes, desc, group, key, none);
        sums_phase ^= !none;
    }
}

/* ---------------------------------------------------------------------------------------------------------------- dQ
 */

/* A part of dQ, from tensor memory to shared memory: a row's columns, for each four of which shared memory has all
 * rows; or a column of 16 rows, for each four of which it has all columns. */
__device__ __forceinline__ void stage_dq(u32 dq, u32 buffer, int part, int end, int lane)
{
    if constexpr (!sm100::DQ_THREAD_COLUMNS) {
#pragma unroll 1
        for (int column = part; column < end; column += 16) {
            float x[16];
            load_columns(x, dq + (u32)column);
#pragma unroll
            for (int i = 0; i < 16; i += 4)
                store_shared_4(buffer + (u32)(((column - part + i) / 4 * BLOCK_M + lane) * 16), x[i], x[i + 1],
                               x[i + 2], x[i + 3]);
        }
    } else {
        int first = __shfl_sync(0xffffffffu, lane, 0);
#pragma unroll 1
        for (int chunk = 0; chunk * 128 + first < sm100::DQ_WIDTH; chunk++) {
            float x[16];
            load_columns(x, dq + (u32)(chunk * BLOCK_M + part));
#pragma unroll
            for (int i = 0; i < 16; i += 4)
                store_shared_4(buffer + (u32)((i / 4 * sm100::DQ_WIDTH + chunk * 128 + lane) * 16), x[i], x[i + 1],
                               x[i + 2], x[i + 3]);
        }
    }
}

/* 7: dQ += dS^T K in global memory: a warp group loads dQ from tensor memory, a row or a column for each thread, and
 * stores it to shared memory, a part at a time, from where the first thread adds it by bulk reductions. */
__device__ __forceinline__ void add_dq(const attune_cuda_arguments &a, const attune_cuda_backward &g, sm100_control &c,
                                       u32 memory)
{
    int row = (int)threadIdx.x % 128;
    u32 dq = c.tmem + ((u32)(row / 32 * 32) << 16) + sm100::DQ_COLUMN, buffer = memory + sm100::DQ_OFFSET;
    bool first_warp = __shfl_sync(0xffffffffu, row / 32, 0) == 0;
    pipeline_state pipe = {0, 0};
    u32 phase = 0;
    for (;; advance(pipe)) {
        consumer_wait<&control::queries>(c.tiles, pipe);
        tile_desc desc = c.tiles.descs[pipe.stage];
        if (desc.flags & TILE_STOP)
            break;
        consumer_release<&control::queries>(c.tiles, pipe);
        if (sm100::ITEMS > 1 && desc.flags & TILE_VALUES)
            continue;
        if (desc.flags & TILE_END) {
            if (row == 0)
                count_bulk_additions(a, g, desc.q);
            continue;
        }
        i64 at = workspace_row(a, g, desc.b, desc.h, desc.q);
        float *to = dq_sums_of(g, at, rank_in_pair());
        int tile = desc.flags / TILE_KEYS;
        u32 *word = (u32 *)g.order_counts + at / BLOCK_M * sm100::CTAS + rank_in_pair();
        if (sm100::ORDERED && first_warp)
            order_wait(a, desc.b, desc.h, desc.q, tile, word);
        wait_tensor(&c.tiles.dq.full[0], phase);
        /* Parts of columns, or of rows; each has as many floats for one of them. */
        constexpr int PARTS_END = sm100::DQ_THREAD_COLUMNS ? BLOCK_M : sm100::DQ_WIDTH;
        constexpr int FLOATS = sm100::DQ_THREAD_COLUMNS ? sm100::DQ_WIDTH : BLOCK_M;
#pragma unroll 1
        for (int part = 0; part < PARTS_END; part += sm100::DQ_PART) {
            int end = min(part + sm100::DQ_PART, PARTS_END);
            if (row == 0)
                bulk_wait_read();
            named_sync<BARRIER_DQ, 128>();
            stage_dq(dq, buffer, part, end, row);
            if (end == PARTS_END) {
                tmem_fence_before();
                warp_arrive_issuer(&c.tiles.dq.empty[0]);
            }
            fence_async();
            named_sync<BARRIER_DQ, 128>();
            if (row == 0)
                bulk_add(to + part * FLOATS, buffer, (u32)((end - part) * FLOATS * 4));
        }
        if (sm100::ORDERED && row == 0)
            order_release(word, tile);
        phase ^= 1;
    }
    if (row == 0)
        bulk_wait();
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

__device__ __forceinline__ void init_barriers(sm100_control &c)
{
    /* A warp arrives ARRIVALS times. The thread that issues products arrives itself, for what it has read of the
     * descriptors, and by a commit, for what the products read. */
    constexpr int COMPUTE = sm100::COMPUTE_WARPS * ARRIVALS, ADD = 4 * ARRIVALS, CTAS = sm100::CTAS;
    /* Of a pair, one CTA's thread issues products, and Q has stages of its own. */
    const int issuer = sm100::PAIRED ? cluster_rank() == 0 : 2;
    pipeline_init<&control::keys>(c.tiles, 0, 1, COMPUTE + 1);
    for (int i = 0; i < STAGES; i++)
        pipeline_init<&control::queries>(c.tiles, i, 1, COMPUTE + ADD + issuer);
    for (int i = 0; i < sm100::DO_STAGES; i++)
        pipeline_init<&control::outputs>(c.tiles, i, 1, 1);
    pipeline_init<&control::dq>(c.tiles, 0, 1, ADD * CTAS);
    c.tiles.loaded = 0;
    barrier_init(&c.s_full, 1);
    barrier_init(&c.p_full, COMPUTE * CTAS);
    barrier_init(&c.p_read, 1);
    barrier_init(&c.dp_full, 1);
    barrier_init(&c.ds_full, COMPUTE * CTAS);
    barrier_init(&c.ds_read, 1);
    barrier_init(&c.sums_full, 1);
    if (sm100::PAIRED)
        init_pair_barriers(c.tiles, c.pair);
    fence_barrier_init();
}

/* All threads, and of a pair both CTAs' tensor memory has been allocated. */
__device__ __forceinline__ void sync_all()
{
    if constexpr (sm100::PAIRED)
        cluster_sync();
    else
        __syncthreads();
}

extern "C" __global__ void ATTUNE_CLUSTER_DIMENSIONS __launch_bounds__(THREADS, 1)
    attune_backward_sm100(const __grid_constant__ attune_cuda_arguments a,
                          const __grid_constant__ attune_cuda_backward g, const __grid_constant__ tensor_map q_map,
                          const __grid_constant__ tensor_map k_map, const __grid_constant__ tensor_map v_map,
                          const __grid_constant__ tensor_map do_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    /* The warps that access tensor memory, and the one that frees it. */
    constexpr int USERS = (sm100::COMPUTE_WARPS + 4 + 1) * 32;
    sm100_control &c = *(sm100_control *)(memory + sm100::CONTROL_OFFSET);
    int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    if (threadIdx.x == 0)
        init_barriers(c);
    if (sm100::PAIRED) /* the other CTA runs, and its barriers may be signalled */
        cluster_sync();
    if (warp == sm100::MMA_WARP) {
        tmem_allocate<sm100::TMEM_COLUMNS>(shared_address(&c.tmem));
        tmem_relinquish();
    }
    tmem_fence_before();
    sync_all();
    tmem_fence_after();
    if (warp < 4) {
        registers_release<sm100::OTHER_REGISTERS>();
        if (threadIdx.x == 0) {
            if constexpr (sm100::PAIRED)
                produce_pair(a, g, c.tiles, c.pair, shared_address(memory), &q_map, &k_map, &v_map, &do_map);
            else
                produce(a, g, c.tiles, shared_address(memory), &q_map, &k_map, &v_map, &do_map);
        }
        if (warp == sm100::MMA_WARP) {
            if (threadIdx.x == sm100::MMA_WARP * 32 && rank_in_pair() == 0)
                multiply(c, shared_address(memory));
            __syncwarp();
            named_sync<BARRIER_TMEM, USERS>();
            if constexpr (sm100::PAIRED) { /* nor has the other CTA use of it */
                if (threadIdx.x == sm100::MMA_WARP * 32)
                    barrier_arrive_peer(&c.pair.freed);
                barrier_wait_peer(&c.pair.freed, 0);
            }
            tmem_fence_after();
            tmem_free<sm100::TMEM_COLUMNS>(c.tmem);
        } else if (warp > sm100::MMA_WARP)
            round_dq<1>(a, g);
    } else if (warp < 8) {
        registers_release<sm100::OTHER_REGISTERS>();
        add_dq(a, g, c, shared_address(memory));
        tmem_fence_before();
        named_arrive<USERS>(BARRIER_TMEM);
        round_dq<2>(a, g);
    } else {
        registers_take<sm100::COMPUTE_REGISTERS>();
        compute(a, g, c, shared_address(memory));
        tmem_fence_before();
        named_arrive<USERS>(BARRIER_TMEM);
        round_dq<4>(a, g);
    }
    if (sm100::PAIRED) /* a CTA may not exit while the other one can still use its memory */
        cluster_sync();
}
