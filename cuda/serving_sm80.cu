/* SPDX-License-Identifier: MIT */
/*
 * Calls over a cache with mma.sync and cp.async: prompts, chunks of prompts and single queries of a ragged batch. A CTA
 * computes tiles of the packed rows of the query heads that share keys (row = q * heads of the group + head), over all
 * keys of their sequence or a part of them (serving_schedule.cuh). Its warps divide the rows by 16, then the columns of
 * each tile of keys, as in decode_sm80.cu.
 *
 * Kernels walk logical tiles of keys; pages are translated for addresses alone, so that results do not depend on them.
 */
#include "serving_results_sm80.cuh"

/* The first bits of a NaN may be those of an infinity. */
__device__ __forceinline__ float whole_nan(float x)
{
    return x == x ? x : __int_as_float(0x7fffffff);
}

/* Eight elements of Q, as addends. */
__device__ __forceinline__ void copy_q_addends(u32 to, const q_element *from, bool valid, bool aligned)
{
    eight<config::Q_DTYPE> x = {};
    u32 word[Q_ADDENDS][4];
    if (valid)
        load_eight(x, (const byte *)from, 0, 1.0f, aligned);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float low[Q_ADDENDS], high[Q_ADDENDS];
        split_bf16(low, whole_nan(value_of(x, 2 * i)));
        split_bf16(high, whole_nan(value_of(x, 2 * i + 1)));
#pragma unroll
        for (int addend = 0; addend < Q_ADDENDS; addend++)
            word[addend][i] = high_halves(low[addend], high[addend]);
    }
#pragma unroll
    for (int addend = 0; addend < Q_ADDENDS; addend++)
        store_shared_4(to + (u32)(addend * BLOCK_M * CHUNKS_D * 16), word[addend][0], word[addend][1], word[addend][2],
                       word[addend][3]);
}

__device__ __forceinline__ const q_element *rows_of_q(const attune_cuda_arguments &a, const sequence &t)
{
    return (const q_element *)a.q.address + t.batch * a.q.batch + t.row0 * a.q.row;
}

/* 1: the packed rows of Q. */
__device__ __forceinline__ void load_q(u32 to, const attune_cuda_arguments &a, const tile &t)
{
    const q_element *base = rows_of_q(a, t);
    bool aligned = view_aligned<q_element>(a.q);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < BLOCK_M * CHUNKS_D; i += THREADS) {
        int row = i / CHUNKS_D, chunk = i % CHUNKS_D;
        tile_coord at = row_coord(a, t, t.row + row);
        bool valid = chunk * PER_CHUNK < HEAD_DIM && t.row + row < t.rows;
        if (SHARES && valid)
            base = rows_of_q(a, sequence_of(a, t, t.row + row));
        const q_element *from = valid ? base + at.h * a.q.head + at.q * a.q.row + chunk * PER_CHUNK : base;
        if constexpr (CODES)
            copy_q_addends(to + chunk_offset<CHUNKS_D>(row, chunk), from, valid, aligned);
        else
            copy_q(to + chunk_offset<CHUNKS_D>(row, chunk), from, valid, aligned);
    }
}

/* With several stages, and two warps that share rows: each has all keys of the tile over every second 16 of the head's
 * columns, so that operands of Q are loaded for twice as many products, which are in twice as many sums. `x` is then
 * the sum of both of the warp's keys; the other half of each is in shared memory, in the place of P, meanwhile. */
constexpr bool HALF_COLUMNS =
    STAGES > 1 && SHARED_P && !FLOAT32 && !CODES && GROUPS == 2 && KEY_GROUPS == 2 && CHUNKS_D % 8 == 0;

__device__ __forceinline__ void multiply_half(float (&x)[1][N_TILES][4], u32 q, u32 k, float *sums)
{
    constexpr int ALL = KEY_GROUPS * N_TILES;
    int lane = thread_index_remat() % 32, row = warp_row(), from = warp_group() * 2;
    u32 q_start = q + chunk_offset<CHUNKS_D>(row + lane % 16, from + lane / 16);
    u32 k_start = k + chunk_offset<CHUNKS_D>(lane % 8 + lane / 16 * 8, from + lane / 8 % 2);
    float s[1][ALL][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS_D; chunk += 4) {
        u32 a[4];
        load_matrices(a, chunk_address<CHUNKS_D>(q_start, chunk));
#pragma unroll
        for (int n = 0; n < ALL; n += 2) {
            u32 b[4];
            load_matrices(b, chunk_address<CHUNKS_D>(k_start, chunk) + (u32)(n * CHUNKS_D * 128));
            multiply(s[0][n], a, b[0], b[1]);
            multiply(s[0][n + 1], a, b[2], b[3]);
        }
    }
    bool first = warp_group() == 0;
    float *mine = sums + (row + lane / 4) * P_PITCH + lane % 4 * 2;
    float *others = mine + (first ? N_TILES * 8 : 0);
    mine += warp_column();
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)&others[half * 8 * P_PITCH + n * 8] =
                make_float2(first ? s[0][N_TILES + n][2 * half] : s[0][n][2 * half],
                            first ? s[0][N_TILES + n][2 * half + 1] : s[0][n][2 * half + 1]);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 other = *(const float2 *)&mine[half * 8 * P_PITCH + n * 8];
            x[0][n][2 * half] = (first ? s[0][n][2 * half] : s[0][N_TILES + n][2 * half]) + other.x;
            x[0][n][2 * half + 1] = (first ? s[0][n][2 * half + 1] : s[0][N_TILES + n][2 * half + 1]) + other.y;
        }
}

/* 3, of codes: the sums of 32 columns, which may have a factor of their own, are added in float32. factors: of the
 * warp's first key. */
__device__ __forceinline__ void multiply_codes(float (&s)[1][N_TILES][4], u32 q, u32 k, int row, const float *factors)
{
    int lane = thread_index_remat() % 32;
    factors += lane % 4 * 2 * K_FACTORS;
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[0][n][i] = 0.0f;
#pragma unroll 1
    for (int block = 0; block < CHUNKS_D; block += 4) {
        u32 a[2][Q_ADDENDS][4];
#pragma unroll
        for (int step = 0; step < 2; step++)
            if (CHUNKS_D % 4 == 0 || block + 2 * step < CHUNKS_D)
#pragma unroll
                for (int addend = 0; addend < Q_ADDENDS; addend++)
                    load_matrices(a[step][addend],
                                  q + (u32)(addend * BLOCK_M * CHUNKS_D * 16) +
                                      chunk_offset<CHUNKS_D>(row + lane % 16, block + 2 * step + lane / 16));
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            float sum[2][4] = {};
#pragma unroll
            for (int step = 0; step < 2; step++)
                if (CHUNKS_D % 4 == 0 || block + 2 * step < CHUNKS_D) {
                    u32 b[4];
                    load_matrices(b, k + chunk_offset<CHUNKS_D>(n * 8 + lane % 8 + lane / 16 * 8,
                                                                block + 2 * step + lane / 8 % 2));
#pragma unroll
                    for (int addend = Q_ADDENDS - 1; addend > 0; addend--) {
                        multiply(sum[0], a[step][addend], finite_codes<K_TYPE>(b[0]), finite_codes<K_TYPE>(b[1]));
                        multiply(sum[1], a[step][addend], finite_codes<K_TYPE>(b[2]), finite_codes<K_TYPE>(b[3]));
                    }
                    multiply(sum[0], a[step][0], b[0], b[1]);
                    multiply(sum[1], a[step][0], b[2], b[3]);
                }
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float factor = HAS_BLOCKS<K_TYPE> ? factors[((n + j) * 8 + i % 2) * K_FACTORS + block / 4] : 1.0f;
                    s[0][n + j][i] = __fmaf_rn(sum[j][i], factor, s[0][n + j][i]);
                }
        }
    }
    if (!HAS_BLOCKS<K_TYPE>)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[0][n][i] *= factors[n * 8 + i % 2];
}

/* 6, of codes: P times the factors of V, as addends. The arguments are those of multiply_pv; factors: of the first key.
 */
template <int COUNT>
__device__ __forceinline__ void multiply_weighted_codes(float (&o)[1][DV_TILES][4], const float (&p)[1][COUNT][4],
                                                        u32 v, int first, const float *factors)
{
    constexpr int TILES = !HAS_BLOCKS<V_TYPE> ? DV_TILES : DV_TILES % 4 == 0 ? 4 : 2; /* that share factors */
    int lane = thread_index_remat() % 32;
    factors += lane % 4 * 2 * V_FACTORS;
#pragma unroll
    for (int n = 0; n < COUNT; n += 2)
#pragma unroll
        for (int from = 0; from < DV_TILES; from += TILES) {
            u32 a[P_ADDENDS][4];
#pragma unroll
            for (int i = 0; i < 4; i++) { /* rows of i % 2, keys of i / 2 */
                float low[P_ADDENDS], high[P_ADDENDS];
                const float *of = factors + (n + i / 2) * 8 * V_FACTORS;
                if (HAS_BLOCKS<V_TYPE>)
                    of += (first + from) / 4;
                split_bf16(low, p[0][n + i / 2][i % 2 * 2] * of[0]);
                split_bf16(high, p[0][n + i / 2][i % 2 * 2 + 1] * of[V_FACTORS]);
#pragma unroll
                for (int addend = 0; addend < P_ADDENDS; addend++)
                    a[addend][i] = high_halves(low[addend], high[addend]);
            }
#pragma unroll
            for (int d = from; d < from + TILES; d += 2) {
                u32 b[4];
                load_matrices_transposed(b, v + chunk_offset<CHUNKS_V>(n * 8 + lane % 16, first + d + lane / 16));
                float sum[2][4] = {};
#pragma unroll
                for (int addend = P_ADDENDS - 1; addend > 0; addend--) {
                    multiply(sum[0], a[addend], finite_codes<V_TYPE>(b[0]), finite_codes<V_TYPE>(b[1]));
                    multiply(sum[1], a[addend], finite_codes<V_TYPE>(b[2]), finite_codes<V_TYPE>(b[3]));
                }
                multiply(sum[0], a[0], b[0], b[1]);
                multiply(sum[1], a[0], b[2], b[3]);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    o[0][d][i] += sum[0][i];
                    o[0][d + 1][i] += sum[1][i];
                }
            }
        }
}

/* 4: the score and mask hook, for both of the thread's rows. column: the warp's first in the tile of keys at kv0. */
template <typename KEY>
__device__ __forceinline__ void hook(float (&x)[1][N_TILES][4], const attune_cuda_arguments &a,
                                     const attune_cuda_serving &s, const tile &t, int kv0, int row, int column,
                                     const KEY *keys, bool absent, bool inner)
{
    column += thread_index_remat() % 4 * 2;
    if (HAVE_INNER && inner) {
        if (a.scale <= 0.0f)
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[0][n][i] *= fold_sign(a.scale);
    } else
#pragma unroll
        for (int half = 0; half < 2; half++) {
            tile_coord at = row_coord(a, t, row + half * 8);
            const sequence &of = sequence_of(a, t, row + half * 8);
            range r = row_range(a, of, at);
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &score = x[0][n][half * 2 + i];
                    int kv = kv0 + column + n * 8 + i;
                    score = score_of(a, of, at, kv, score);
                    if (!allows(a, s, of, at, r, kv))
                        score = -ATTUNE_INF;
                }
        }
    if (absent)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (presence(keys[column + n * 8 + i]) < 0)
                    x[0][n][i] = x[0][n][2 + i] = -ATTUNE_INF;
}

/* 5, where warps divide the columns of O: the maxima of the warp's keys, for the others. */
__device__ __forceinline__ void store_maxima(float *maxima, const float (&x)[1][N_TILES][4])
{
    int lane = thread_index_remat() % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float row_max = -ATTUNE_INF;
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
            row_max = fmaxf(row_max, fmaxf(x[0][n][2 * half], x[0][n][2 * half + 1]));
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, 1));
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, 2));
        if (lane % 4 == 0)
            maxima[warp_group() * BLOCK_M + warp_row() + lane / 4 + half * 8] = row_max;
    }
}

/* The rows' maxima over all keys of the tile; O is rescaled. */
__device__ __forceinline__ void share_maxima(const float *maxima, float (&o)[1][DV_TILES][4], float (&m)[1][2],
                                             float (&l)[1][2], float (&base)[1][2], float factor)
{
    int row = warp_row() + thread_index_remat() % 32 / 4;
    float top[1][1][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float row_max = -ATTUNE_INF;
#pragma unroll
        for (int g = 0; g < KEY_GROUPS; g++)
            row_max = fmaxf(row_max, maxima[g * BLOCK_M + row + half * 8]);
        top[0][0][2 * half] = top[0][0][2 * half + 1] = row_max;
    }
    softmax_maxima(top, o, m, l, base, factor, false);
}

/* The warp's part of P goes to shared memory, from which each warp loads all of its rows. */
__device__ __forceinline__ void store_p(float *p, const float (&x)[1][N_TILES][4])
{
    int lane = thread_index_remat() % 32;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
            *(float2 *)&p[(warp_row() + lane / 4 + half * 8) * P_PITCH + warp_column() + n * 8 + lane % 4 * 2] =
                make_float2(x[0][n][2 * half], x[0][n][2 * half + 1]);
}

__device__ __forceinline__ void load_p(float (&x)[1][BLOCK_N / 8][4], const float *p)
{
    int lane = thread_index_remat() % 32;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++) {
            float2 two = *(const float2 *)&p[(warp_row() + lane / 4 + half * 8) * P_PITCH + n * 8 + lane % 4 * 2];
            x[0][n][2 * half] = two.x, x[0][n][2 * half + 1] = two.y;
        }
}

/* 6, of the warp's columns of O, with addresses that are kept. */
template <int CHUNKS>
__device__ __forceinline__ void multiply_columns(float (&o)[1][DV_TILES][4], const float (&p)[1][BLOCK_N / 8][4], u32 v)
{
    if constexpr (STAGES > 1 && !FLOAT32 && CHUNKS % 8 == 0 && DV_TILES % 8 == 0) {
        int lane = thread_index_remat() % 32;
        u32 start = v + chunk_offset<CHUNKS>(lane % 16, lane / 16) + (u32)(warp_group() * DV_TILES * 16);
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n += 2) {
            u32 a[1][4];
            pack_weights(a, p, n);
#pragma unroll
            for (int d = 0; d < DV_TILES; d += 2) {
                u32 b[4];
                load_matrices_transposed(b, chunk_address<CHUNKS>(start, d) + (u32)(n * CHUNKS * 128));
                multiply(o[0][d], a[0], b[0], b[1]);
                multiply(o[0][d + 1], a[0], b[2], b[3]);
            }
        }
    } else
        multiply_pv<CHUNKS>(o, p, v, warp_group() * DV_TILES);
}

/* ---------------------------------------------------------------------------------------------------------- kernels */

/* The place in the ring of STAGES + 1 tiles' keys that is `tiles` past `place`. */
__device__ __forceinline__ int ring_place(int place, int tiles)
{
    place += tiles * BLOCK_N;
    return place < (STAGES + 1) * BLOCK_N ? place : place - (STAGES + 1) * BLOCK_N;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_serving_sm80(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_serving s)
{
    extern __shared__ __align__(128) unsigned char memory[];
    constexpr attune_cuda_serving_sm80_layout AT = attune_cuda_serving_sm80(SERVED);
    static_assert(planned(AT.size));
    u32 q_tile = shared_address(memory), k_tile = q_tile + AT.k, v_tile = q_tile + AT.v;
    typedef key_of_tile<(STAGES > 1)>::type key;
    wait_for_launches();
    key *keys = (key *)(memory + AT.keys);
    float *maxima = (float *)(memory + AT.maxima), *p = (float *)(memory + AT.p);
    float *k_factors = (float *)(memory + AT.k_factors), *v_factors = (float *)(memory + AT.v_factors);
    tile &t = *(tile *)(memory + AT.rows);
    float factor = uniform(fold_factor(a.scale));
    [[maybe_unused]] bool v_of_k = v_is_of_k(a);
    tile found;
    /* A grid has fewer than 2^31 CTAs: tiles from there on are of sequences that claim the same rows. */
    for (u32 index = (u32)block_here(); (int)index >= 0 && find_tile(found, a, s, (int)index);
         index = TAKEN && config::PARTS ? next_item(s, index, (int *)memory) : index + (u32)grid_here()) {
        if (config::PARTS && found.row >= found.rows)
            continue;
        if (!config::PARTS || !TAKEN)
            find_keys(found, a, s);
        begin_rows(t, found, a, s);
        const tile &rows = SHARES ? t : found;
        bool more = false; /* fixed parts of the tile, of which this is not the first */
        do {
            range seen = tile_range(a, rows);
            if (FIXED)
                find_fixed(found, seen, more && (!SHARES || found.parts == 1));
            if (config::PARTS)
                seen = part_range(seen, found);
            if (threadIdx.x == 0)
                publish(t, found);
            int kv = uniform(seen.low / BLOCK_N * BLOCK_N), end = uniform(seen.high), place = 0;
            u32 stage = 0;
            float o[1][DV_TILES][4] = {}, m[1][2] = {{-ATTUNE_INF, -ATTUNE_INF}}, l[1][2] = {};

            range inner = inner_range<HAVE_INNER>(a, rows);
            [[maybe_unused]] heads from = {cached_head<K_TYPE>(a.k, rows), cached_head<V_TYPE>(a.v, rows)};

            /* 1: load Q, and the first tiles of K. */
            next_of_tile<(STAGES > 1)>::type next;
            bool absent_next[AHEAD];
            if (STAGES == 1)
                load_q(q_tile, a, rows);
            begin_keys(next, s, kv);
            fetch_keys(next, found, s, kv);
            if (STAGES > 1) /* while the table is on its way */
                load_q(q_tile, a, rows);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                absent_next[i] = __syncthreads_or(store_keys(next, keys + i * BLOCK_N, a, s));
                if constexpr (STAGES == 1)
                    load_rows<K_TYPE, HEAD_DIM, CHUNKS_D>(k_tile, a.k, s.k_scale, t, keys, k_factors);
                else
                    copy_tile(k_tile + i * AT.k_stage, v_tile + i * AT.v_stage, a, from, keys + i * BLOCK_N, v_of_k,
                              kv + i * BLOCK_N < end);
                advance_keys(next, s);
                fetch_keys(next, t, s, kv + (i + 1) * BLOCK_N);
            }
            for (; kv < end; kv += BLOCK_N) {
                key *here = keys + place, *later = keys + ring_place(place, AHEAD);
                bool absent = absent_next[0];
                float x[1][N_TILES][4];
                u32 k = k_tile + stage * AT.k_stage, v = v_tile + stage * AT.v_stage;
                place = ring_place(place, 1);
#pragma unroll
                for (int i = 0; i + 1 < AHEAD; i++)
                    absent_next[i] = absent_next[i + 1];
                /* 2: K is loaded, with several stages V too; the copies of V, or of a later tile, start. */
                copy_wait<STAGES == 1 ? 0 : AHEAD - 1>();
                bool some = store_keys(next, later, a, s);
                absent_next[AHEAD - 1] = __syncthreads_or(some);
                if constexpr (STAGES > 1) {
                    u32 free_stage = stage == 0 ? STAGES - 1 : stage - 1;
                    copy_tile(k_tile + free_stage * AT.k_stage, v_tile + free_stage * AT.v_stage, a, from, later,
                              v_of_k, kv + AHEAD * BLOCK_N < end);
                    stage = stage + 1 == STAGES ? 0 : stage + 1;
                } else if (!ONE_BUFFER)
                    load_rows<V_TYPE, HEAD_DIM_V, CHUNKS_V>(v, a.v, s.v_scale, t, here, v_factors);
                advance_keys(next, s);
                fetch_keys(next, t, s, kv + (AHEAD + 1) * BLOCK_N);
                /* 3, 4: S, then score and mask. */
                [[maybe_unused]] u32 v_in_k = k;
                if (!SHARED_P || warp_group() < KEY_GROUPS) {
                    if constexpr (!HALF_COLUMNS)
                        k += (u32)(warp_column() * CHUNKS_D * 16);
                    if constexpr (HALF_COLUMNS)
                        multiply_half(x, q_tile, k, p);
                    else if constexpr (CODES)
                        multiply_codes(x, q_tile, k, warp_row(), k_factors + warp_column() * K_FACTORS);
                    else
                        multiply_qk(x, q_tile, k, warp_row());
                    hook(x, a, s, t, kv, t.row + warp_row() + thread_index_remat() % 32 / 4, warp_column(), here,
                         absent, kv >= inner.low && kv + BLOCK_N <= inner.high);
                    if (SHARED_P)
                        store_maxima(maxima, x);
                }
                if constexpr (STAGES == 1) {
                    copy_wait<0>();
                    __syncthreads();
                    if (ONE_BUFFER)
                        load_rows<V_TYPE, HEAD_DIM_V, CHUNKS_V>(v, a.v, s.v_scale, t, here, v_factors);
                    else if (kv + BLOCK_N < end)
                        load_rows<K_TYPE, HEAD_DIM, CHUNKS_D>(k_tile, a.k, s.k_scale, t, later, k_factors);
                } else if (SHARED_P) {
                    __syncthreads();
                    if (V_IN_K && !v_of_k)
                        copy_v(v, a, from, here);
                }
                /* 5, 6: online softmax, O += P V. */
                if constexpr (SHARED_P) {
                    float base[1][2], all[1][BLOCK_N / 8][4];
                    share_maxima(maxima, o, m, l, base, factor);
                    if (warp_group() < KEY_GROUPS) {
                        subtract_large(x, m, base, fmaxf(fabsf(base[0][0]), fabsf(base[0][1])));
#pragma unroll
                        for (int n = 0; n < N_TILES; n++)
                            softmax_exp(x, l, base, factor, n);
                        store_p(p, x);
                    }
                    if (ONE_BUFFER || (V_IN_K && !v_of_k))
                        copy_wait<0>();
                    __syncthreads();
                    load_p(all, p);
                    if constexpr (CODES)
                        multiply_weighted_codes(o, all, v, warp_group() * DV_TILES, v_factors);
                    else if (V_OF_K && v_of_k)
                        multiply_columns<CHUNKS_D>(o, all, v_in_k);
                    else
                        multiply_columns<CHUNKS_V>(o, all, v);
                } else {
                    softmax(x, o, m, l, factor);
                    v += (u32)(warp_column() * CHUNKS_V * 16);
                    if constexpr (CODES)
                        multiply_weighted_codes(o, x, v, 0, v_factors + warp_column() * V_FACTORS);
                    else
                        multiply_pv(o, x, v);
                }
                if (ONE_BUFFER) {
                    __syncthreads();
                    if (kv + BLOCK_N < end)
                        load_rows<K_TYPE, HEAD_DIM, CHUNKS_D>(k_tile, a.k, s.k_scale, t, later, k_factors);
                }
            }
            /* 7: store O and LSE, or a partial result. */
            copy_wait<0>();
            __syncthreads();
            save_groups((float *)memory, (float *)(memory + AT.ml), o, m, l, t.rows - t.row);
            __syncthreads();
            more = adds_fixed(t) && t.fixed < t.fixed_last;
            if (more)
                store_sum((const float *)memory, (const float *)(memory + AT.ml), s, t, factor);
            else
                more =
                    computes_again(t, store((const float *)memory, (const float *)(memory + AT.ml), a, s, t, factor));
            if (SHARES && !more && t.parts > 1)
                finish_members(a, s, t, factor);
            else if (!SHARES && config::PARTS && t.parts > 1 && last_of_parts(a, s, t)) {
                if constexpr (WEIGHTED_PARTS)
                    store_weighted_parts((float *)memory, a, s, t, factor);
                else
                    store_parts(a, s, t, factor);
            }
            __syncthreads();
            if (more) {
                found = t;
                __syncthreads();
            }
        } while (more);
    }
}

extern "C" __global__ void __launch_bounds__(SCHEDULE_THREADS)
    attune_schedule(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_serving s)
{
    extern __shared__ __align__(128) unsigned char memory[];
    schedule_step(a, s, memory);
}
