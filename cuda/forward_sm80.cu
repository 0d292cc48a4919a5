/* SPDX-License-Identifier: MIT */
/*
 * Forward with mma.sync and cp.async: every NVIDIA GPU from sm_80, every dtype and head dimension. Numbered stages are
 * those of docs/algorithm.md; mma.cuh has the matrix products and the softmax.
 *
 * With one pipeline stage the copy of V(j) overlaps Q K(j)^T, and that of K(j+1) overlaps P V(j). With more, tiles j +
 * 1 to j + STAGES - 1 are being copied while tile j is computed, with one barrier for each tile.
 */
#include "layout_sm80.h"
#include "mma.cuh"
#include "non_finite.cuh"
#include "sinks.cuh"
#include "terms.cuh"

constexpr int ROW_TILES = BLOCK_M / (16 * WARPS), N_TILES = BLOCK_N / 8, DV_TILES = PAD_DV / 8;
static_assert(ROW_TILES * 16 * WARPS == BLOCK_M, "a warp computes 16 rows or a multiple");

/* The warp's first row in the tile. */
__device__ __forceinline__ int warp_row()
{
    return thread_index_remat() / 32 * (BLOCK_M / WARPS);
}

/* Whether the near-zero form of the score expression holds for all scores of the warp. */
__device__ __forceinline__ bool near_zero(const float (&s)[ROW_TILES][N_TILES][4], float scale)
{
    float largest = 0.0f;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                largest = fmaxf(largest, fabsf(s[r][n][i]));
    return __all_sync(0xffffffffu, largest * fabsf(scale) <= config::SCORE_NEAR);
}

typedef row_terms rows_terms[ROW_TILES][2];

__device__ __forceinline__ void make_rows(rows_terms &rows, const attune_cuda_arguments &a, tile_coord p, int row,
                                          bool masked)
{
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            p.q = row + r * 16 + half * 8;
            row_terms_make(rows[r][half], a, p, masked);
        }
}

/* Raw products become scores, NEAR with the near-zero form. Captures are read for 8 keys at a time, since the values of
 * all keys at once would fill the registers. */
template <bool NEAR>
__device__ __forceinline__ void make_scores(float (&s)[ROW_TILES][N_TILES][4], const attune_cuda_arguments &a,
                                            const tile_coord &p, int first, int column, const rows_terms &rows,
                                            u32 terms)
{
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = s[r][n][i];
                int q = first + r * 16 + i / 2 * 8, kv = column + n * 8 + i % 2;
                int key[config::SCORE_KEYS + 1];
                key_terms_load<0, config::SCORE_KEYS>(key, terms, n * 8 + (int)threadIdx.x % 4 * 2 + i % 2);
                x = score_of_pair<NEAR>(a, p.b, p.h, q, kv, p.h_kv, x * a.scale, key, rows[r][i / 2].score);
            }
        column = after(column, s[ROW_TILES - 1][n][3]);
    }
}

__device__ __forceinline__ void mask_terms(float (&s)[ROW_TILES][N_TILES][4], const attune_cuda_arguments &a,
                                           const tile_coord &p, int row, int column, const rows_terms &rows, u32 terms)
{
    int h = p.h + a.h0, lane = thread_index_remat() % 4 * 2;
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int key[config::MASK_KEYS + 1];
                key_terms_load<config::SCORE_KEYS, config::MASK_KEYS>(key, terms, n * 8 + lane + i % 2);
                if (!attune_mask_of(p.b + a.b0, h, row + r * 16 + i / 2 * 8 + a.q0, column + n * 8 + i % 2,
                                    h / a.mask_group, a.mask_q_len, a.mask_kv_len, 0.0f, key, rows[r][i / 2].mask,
                                    a.mask_symbols))
                    s[r][n][i] = -ATTUNE_INF;
            }
}

/* The mask of a partial block, by the interval of keys of each row. */
__device__ __forceinline__ void mask_range(float (&s)[ROW_TILES][N_TILES][4], const attune_cuda_arguments &a,
                                           const tile_coord &p, int row, int column)
{
    int h = p.h + a.h0;
    row += a.q0;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int low, high;
            attune_mask_range(p.b + a.b0, h, row + r * 16 + half * 8, h / a.mask_group, a.mask_q_len, a.mask_kv_len,
                              &low, &high, a.mask_symbols);
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int kv = column + n * 8 + i;
                    if (kv < low || kv >= high)
                        s[r][n][half * 2 + i] = -ATTUNE_INF;
                }
            row = after(row, s[r][N_TILES - 1][half * 2 + 1]);
        }
}

/* Pair by pair. */
__device__ __forceinline__ void mask_pairs(float (&s)[ROW_TILES][N_TILES][4], const attune_cuda_arguments &a,
                                           const tile_coord &p, int row, int column)
{
    int h = p.h + a.h0;
    row += a.q0;
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!attune_mask(p.b + a.b0, h, row + r * 16 + i / 2 * 8, column + n * 8 + i % 2, h / a.mask_group,
                                 a.mask_q_len, a.mask_kv_len, 0.0f, a.mask_symbols))
                    s[r][n][i] = -ATTUNE_INF;
        column = after(column, s[ROW_TILES - 1][n][3]);
    }
}

/* 4: the score and mask hook. row: the thread's first query row; terms: the keys' terms in shared memory. */
__device__ __forceinline__ void hook(float (&s)[ROW_TILES][N_TILES][4], const attune_cuda_arguments &a,
                                     const tile_coord &p, const keys &w, int row, u32 terms)
{
    /* Key terms leave no register for the thread's column across tiles: rematerialise it. */
    int column = w.kv + (KEY_TERMS ? thread_index_remat() : (int)threadIdx.x) % 4 * 2;
    rows_terms rows;
    make_rows(rows, a, p, row, !w.full);
    if constexpr (HAVE_SCORE && config::SCORE_NEAR_BOUNDED) {
        if (near_zero(s, a.scale))
            make_scores<true>(s, a, p, row, column, rows, terms);
        else
            make_scores<false>(s, a, p, row, column, rows, terms);
    } else if constexpr (HAVE_SCORE) {
        make_scores<false>(s, a, p, row, column, rows, terms);
    } else if (a.scale <= 0.0f) {
        float sign = fold_sign(a.scale);
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[r][n][i] *= sign;
    }
    if (!keys_masked(w, a))
        return;
    if (!w.full) {
        if constexpr (config::MASK_KEYS > 0)
            mask_terms(s, a, p, row, column, rows, terms);
        else if constexpr (config::HAVE_MASK_RANGE)
            mask_range(s, a, p, row, column);
        else if constexpr (config::HAVE_MASK_PAIRS)
            mask_pairs(s, a, p, row, column);
    }
    if (w.kv + BLOCK_N > a.kv_len) {
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (column + n * 8 + i >= a.kv_len)
#pragma unroll
                    for (int r = 0; r < ROW_TILES; r++)
                        s[r][n][i] = s[r][n][2 + i] = -ATTUNE_INF;
    }
}

/* 1: the rows of Q. */
__device__ __forceinline__ void load_q(u32 to, const attune_cuda_arguments &a, const tile_coord &p)
{
    const q_element *from = (const q_element *)a.q.address + p.b * a.q.batch + p.h * a.q.head;
    bool aligned = view_aligned<q_element>(a.q);
    if constexpr (config::Q_DTYPE == config::DTYPE) {
        load_tile<BLOCK_M, HEAD_DIM, CHUNKS_D>(to, (const element *)from, a.q.row, p.q, a.q_len, aligned);
    } else {
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < BLOCK_M * CHUNKS_D; i += THREADS) {
            int row = i / CHUNKS_D, chunk = i % CHUNKS_D;
            bool valid = chunk * PER_CHUNK < HEAD_DIM && p.q + row < a.q_len;
            copy_q(to + chunk_offset<CHUNKS_D>(row, chunk), from + (p.q + row) * a.q.row + chunk * PER_CHUNK, valid,
                   aligned);
        }
    }
}

/* 7: stores O and LSE. Returns a bit for each of the thread's rows that needs the non-finite slow path. */
__device__ __forceinline__ u32 store(float (&o)[ROW_TILES][DV_TILES][4], const float (&m)[ROW_TILES][2],
                                     const float (&l)[ROW_TILES][2], const attune_cuda_arguments &a,
                                     const tile_coord &p, int row, float factor)
{
    int lane = (int)threadIdx.x % 32;
    u32 non_finite = 0;
    o_element *base = (o_element *)a.o.address + p.b * a.o.batch + p.h * a.o.head;
    bool paired = view_paired<o_element>(a.o);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = l[r][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            int q = row + r * 16 + half * 8;
            if (q >= a.q_len)
                continue;
            float row_max = m[r][half] * (factor * ATTUNE_LN2);
            row_total total = row_total_of(a, p.h, row_max, sum);
            float inverse = total.sum == 0.0f ? 0.0f : total.weight / total.sum;
            if (total.sum == 0.0f && !a.is_partial) /* fully masked: O = 0, also where 0 times V gave NaN */
#pragma unroll
                for (int d = 0; d < DV_TILES; d++)
                    o[r][d][2 * half] = o[r][d][2 * half + 1] = 0.0f;
            o_element *to = base + q * a.o.row;
            float probe = 0.0f; /* becomes NaN with the first element that is not finite */
#pragma unroll
            for (int d = 0; d < DV_TILES; d++) {
                int column = d * 8 + lane % 4 * 2;
                if (HEAD_DIM_V % 16 && d * 8 >= HEAD_DIM_V)
                    continue;
                float x = o[r][d][2 * half] * inverse, y = o[r][d][2 * half + 1] * inverse;
                if constexpr (HAVE_MASK)
                    probe = __fmaf_rn(x, 0.0f, __fmaf_rn(y, 0.0f, probe));
                store_outputs(to + column, x, y, paired);
            }
            if (HAVE_MASK && probe != 0.0f && finite(sum))
                non_finite |= 1u << (r * 2 + half);
            if (lane % 4 == 0) {
                if (a.lse.address)
                    ((float *)a.lse.address)[p.b * a.lse.batch + p.h * a.lse.head + q * a.lse.row] =
                        total.sum == 0.0f ? -ATTUNE_INF : total.most + logf(total.sum);
                if (a.row_max.address)
                    ((float *)a.row_max.address)[p.b * a.row_max.batch + p.h * a.row_max.head + q * a.row_max.row] =
                        sum == 0.0f ? -ATTUNE_INF : nan_or(row_max, sum);
            }
        }
    return non_finite;
}

/* Recomputes elements that a forbidden pair may have made NaN (non_finite.cuh). Each thread checks those that it
 * stored. */
__device__ __forceinline__ void recompute_non_finite(const attune_cuda_arguments &a, tile_coord p, int row,
                                                     u32 non_finite, float factor)
{
    int first = p.q;
#pragma unroll 1
    for (int i = 0; i < ROW_TILES * 2; i++) {
        if (!(non_finite >> i & 1))
            continue;
        p.q = row + i * 8;
        const o_element *o = (const o_element *)a.o.address + p.b * a.o.batch + p.h * a.o.head + p.q * a.o.row;
#pragma unroll 1
        for (int j = 0; j < DV_TILES * 2; j++) {
            int d = j / 2 * 8 + (int)threadIdx.x % 4 * 2 + j % 2;
            if (d >= HEAD_DIM_V || finite(widen<config::O_DTYPE>(o[d])))
                continue;
            block_iterator w;
            tile_coord tile = p;
            tile.q = first;
            block_iterator_begin(w, a, tile);
            recomputed_element again = recompute_element(a, p, w, a.kv_len, d);
            store_element(a, p, d, again.o, again.m, again.l, factor);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

constexpr int AHEAD = STAGES > 1 ? STAGES - 1 : 1;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_forward_sm80(const __grid_constant__ attune_cuda_arguments a)
{
    extern __shared__ __align__(128) unsigned char memory[];
    constexpr attune_cuda_forward_sm80_layout AT = attune_cuda_forward_sm80(TILE);
    constexpr u32 K_BYTES = AT.k_stage, V_BYTES = AT.v_stage;
    static_assert(planned(AT.size) && TERM_BYTES == AT.terms_buffer);
    u32 q_tile = shared_address(memory) + AT.q, k_tiles = q_tile + (AT.k - AT.q), v_tiles = k_tiles + (AT.v - AT.k),
        terms = v_tiles + (AT.terms - AT.v);
    tile_coord p = tile_coord_of(a, (int)blockIdx.x);
    p = {uniform(p.b), uniform(p.h), uniform(p.h_kv), uniform(p.q)};
    source from = source_of(a, p.b, p.h_kv);

    float o[ROW_TILES][DV_TILES][4], m[ROW_TILES][2], l[ROW_TILES][2];
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int d = 0; d < DV_TILES; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[r][d][i] = 0.0f;
        m[r][0] = m[r][1] = -ATTUNE_INF;
        l[r][0] = l[r][1] = 0.0f;
    }
    float factor = uniform(fold_factor(a.scale));

    block_iterator ahead;
    block_iterator_begin(ahead, a, p);
    load_q(q_tile, a, p);
    keys next[AHEAD]; /* tiles being copied */
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
        next[i] = block_iterator_next(ahead, a);
        load_k(k_tiles + i * K_BYTES, from, a, next[i]);
        if (STAGES > 1)
            load_v(v_tiles + i * V_BYTES, from, a, next[i]);
    }

    next_terms next_key_terms;
    make_terms(next_key_terms, a, p, next[0]);
    store_terms(next_key_terms, terms);

    u32 stage = 0, terms_offset = 0; /* terms_offset: this tile's key terms, double-buffered */
    while (next[0].kv >= 0) {
        keys now = next[0];
#pragma unroll
        for (int i = 0; i + 1 < AHEAD; i++)
            next[i] = next[i + 1];
        next[AHEAD - 1] = block_iterator_next(ahead, a);
        u32 k_tile = k_tiles + stage * K_BYTES, v_tile = v_tiles + stage * V_BYTES;
        float s[ROW_TILES][N_TILES][4];
        /* 2: this tile is loaded; the copies of a later one start. */
        copy_wait<STAGES == 1 ? 0 : 2 * (AHEAD - 1)>();
        __syncthreads();
        if constexpr (STAGES == 1) {
            load_v(v_tile, from, a, now);
        } else {
            u32 free_stage = stage == 0 ? STAGES - 1 : stage - 1;
            load_k(k_tiles + free_stage * K_BYTES, from, a, next[AHEAD - 1]);
            load_v(v_tiles + free_stage * V_BYTES, from, a, next[AHEAD - 1]);
        }
        make_terms(next_key_terms, a, p, next[0]);
        /* 3, 4: S, then score and mask. */
        multiply_qk(s, q_tile, k_tile, warp_row());
        hook(s, a, p, now, p.q + warp_row() + thread_index_remat() % 32 / 4, terms + terms_offset);
        terms_offset = TERM_BYTES - terms_offset;
        store_terms(next_key_terms, terms + terms_offset);
        if constexpr (STAGES == 1) {
            copy_wait<0>();
            __syncthreads();
            load_k(k_tile, from, a, next[0]);
        }
        /* 5, 6: online softmax, O += P V. */
        float base[ROW_TILES][2];
        softmax_maxima(s, o, m, l, base, factor);
        if constexpr (FLOAT32) {
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
                softmax_exp(s, l, base, factor, n);
            multiply_pv(o, s, v_tile);
        } else
            multiply_weights(o, s, l, base, factor, v_tile);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    /* 7. The coordinates are computed again, since the loop needs their registers. */
    p = tile_coord_of(a, block_here());
    int row = p.q + warp_row() + thread_index_remat() % 32 / 4;
    u32 non_finite = store(o, m, l, a, p, row, factor);
    if (HAVE_MASK && non_finite)
        recompute_non_finite(a, p, row, non_finite, factor);
}
