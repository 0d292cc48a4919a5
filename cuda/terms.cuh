/* SPDX-License-Identifier: MIT */
/*
 * Terms of the expressions (src/expr/terms.c): parts that depend on the key and not on the row, or on the row and not
 * on the key, so that they are computed once and not for each pair. A term is a word. The terms of a tile's keys are in
 * shared memory, [term][key], those of the score before those of the mask. The terms of a row are in registers; in
 * backward kernels the terms of a key are too.
 */
#ifndef ATTUNE_CUDA_TERMS_CUH
#define ATTUNE_CUDA_TERMS_CUH

#include "common.cuh"

constexpr u32 TERM_BYTES = KEY_TERMS * BLOCK_N * 4; /* of a key tile */

constexpr bool SCORE_HAS_TERMS = config::SCORE_KEYS + config::SCORE_ROWS + (int)config::SCORE_TILE > 0;

/* Whether a pair's score takes terms; those of rows alone it has in forward only (SCORE_HAS_TERMS). */
constexpr bool PAIR_TAKES_TERMS = config::SCORE_KEYS + (int)config::SCORE_TILE > 0;

struct row_terms {
    int score[config::SCORE_ROWS + 1], mask[config::MASK_ROWS + 1], slope[config::SLOPE_ROWS + 1];
};

/* p.q: the row. masked: the mask's terms too. */
__device__ __forceinline__ void row_terms_make(row_terms &r, const attune_cuda_arguments &a, const tile_coord &p,
                                               bool masked)
{
    if constexpr (SCORE_HAS_TERMS)
        attune_score_row_terms(p.b, p.h, p.q, p.h_kv, a.q_len, a.kv_len, r.score, a.score_symbols);
    if constexpr (config::MASK_KEYS > 0)
        if (masked)
            attune_mask_row_terms(p.b + a.b0, p.h + a.h0, p.q + a.q0, (p.h + a.h0) / a.mask_group, a.mask_q_len,
                                  a.mask_kv_len, r.mask, a.mask_symbols);
}

struct key_terms {
    int word[KEY_TERMS + 1];
};

/* masked: the mask's terms too; else they are 0. */
__device__ __forceinline__ void key_terms_make(key_terms &k, const attune_cuda_arguments &a, const tile_coord &p,
                                               int kv, bool masked)
{
    if constexpr (config::SCORE_KEYS > 0)
        attune_score_key_terms(p.b, p.h, kv, p.h_kv, a.q_len, a.kv_len, k.word, a.score_symbols);
    if constexpr (config::MASK_KEYS > 0) {
        if (masked)
            attune_mask_key_terms(p.b + a.b0, p.h + a.h0, kv, (p.h + a.h0) / a.mask_group, a.mask_q_len, a.mask_kv_len,
                                  k.word + config::SCORE_KEYS, a.mask_symbols);
        else
#pragma unroll
            for (int i = config::SCORE_KEYS; i < KEY_TERMS; i++)
                k.word[i] = 0;
    }
}

/* column: the key's index in its tile. */
__device__ __forceinline__ void key_terms_store(const key_terms &k, u32 tile, int column)
{
#pragma unroll
    for (int i = 0; i < KEY_TERMS; i++)
        store_shared(tile + (u32)(i * BLOCK_N + column) * 4, (u32)k.word[i]);
}

/* The terms FIRST to FIRST + COUNT - 1 of a key. */
template <int FIRST, int COUNT> __device__ __forceinline__ void key_terms_load(int *k, u32 tile, int column)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        k[i] = *(const int *)__cvta_shared_to_generic(tile + (u32)((FIRST + i) * BLOCK_N + column) * 4);
}

/* The terms of the next key tile: computed while Q K of this one runs, stored when this one's terms have been read. */
struct next_terms {
    static constexpr int COUNT = KEY_TERMS ? (BLOCK_N + THREADS - 1) / THREADS : 0; /* a thread's keys */
    key_terms key[COUNT + 1];
};

__device__ __forceinline__ void make_terms(next_terms &t, const attune_cuda_arguments &a, const tile_coord &p,
                                           const keys &next)
{
#pragma unroll
    for (int i = 0; i < t.COUNT; i++)
        if (next.kv >= 0)
            key_terms_make(t.key[i], a, p, next.kv + i * THREADS + (int)threadIdx.x, !next.full);
}

__device__ __forceinline__ void store_terms(const next_terms &t, u32 tile)
{
#pragma unroll
    for (int i = 0; i < t.COUNT; i++) {
        int column = i * THREADS + thread_index_remat();
        if (BLOCK_N % THREADS == 0 || column < BLOCK_N)
            key_terms_store(t.key[i], tile, column);
    }
}

/* The score of a pair, whose function takes the terms of key and row if it has any. NEAR: the near-zero form, which
 * converts fewer integers if kv0 is a key of the tile. */
template <bool NEAR>
__device__ __forceinline__ float score_of_pair(const attune_cuda_arguments &a, int b, int h, int q, int kv, int h_kv,
                                               float s, const int *key, const int *row, int kv0 = 0)
{
    if constexpr (NEAR && PAIR_TAKES_TERMS)
        return attune_score_near_of(b, h, q, kv, h_kv, a.q_len, a.kv_len, s, key, row, a.score_symbols, kv0);
    else if constexpr (NEAR)
        return attune_score_near(b, h, q, kv, h_kv, a.q_len, a.kv_len, s, a.score_symbols, kv0);
    else if constexpr (PAIR_TAKES_TERMS)
        return attune_score_of(b, h, q, kv, h_kv, a.q_len, a.kv_len, s, key, row, a.score_symbols);
    else
        return attune_score(b, h, q, kv, h_kv, a.q_len, a.kv_len, s, a.score_symbols);
}

/* Whether the mask allows a pair. Its function takes the terms of key and row if it has any. */
__device__ __forceinline__ bool mask_of_pair(const attune_cuda_arguments &a, int b, int h, int q, int kv,
                                             const int *key, const int *row)
{
    b += a.b0, h += a.h0, q += a.q0;
    if constexpr (config::MASK_KEYS > 0)
        return attune_mask_of(b, h, q, kv, h / a.mask_group, a.mask_q_len, a.mask_kv_len, 0.0f, key, row,
                              a.mask_symbols);
    else
        return attune_mask(b, h, q, kv, h / a.mask_group, a.mask_q_len, a.mask_kv_len, 0.0f, a.mask_symbols);
}

/* --------------------------------------------------------------------------------------------------------- backward */

/* d score / d product of a pair, likewise. */
template <bool NEAR>
__device__ __forceinline__ float slope_of_pair(const attune_cuda_arguments &a, int b, int h, int q, int kv, int h_kv,
                                               float s, const int *key, const int *row, int kv0 = 0)
{
    constexpr bool TERMS = config::SLOPE_KEYS + config::SLOPE_ROWS > 0;
    if constexpr (NEAR && TERMS)
        return attune_score_slope_near_of(b, h, q, kv, h_kv, a.q_len, a.kv_len, s, key, row, a.score_symbols, kv0);
    else if constexpr (NEAR)
        return attune_score_slope_near(b, h, q, kv, h_kv, a.q_len, a.kv_len, s, a.score_symbols, kv0);
    else if constexpr (TERMS)
        return attune_score_slope_of(b, h, q, kv, h_kv, a.q_len, a.kv_len, s, key, row, a.score_symbols);
    else
        return attune_score_slope(b, h, q, kv, h_kv, a.q_len, a.kv_len, s, a.score_symbols);
}

/* The terms of one key, or of one row, that its pairs share: of the score and of the score's derivative. */
struct shared_terms {
    int score[(config::SCORE_KEYS > config::SCORE_ROWS ? config::SCORE_KEYS : config::SCORE_ROWS) + 1];
    int slope[(config::SLOPE_KEYS > config::SLOPE_ROWS ? config::SLOPE_KEYS : config::SLOPE_ROWS) + 1];
};

__device__ __forceinline__ void share_key(shared_terms &t, const attune_cuda_arguments &a, int b, int h, int kv)
{
    if constexpr (config::SCORE_KEYS > 0)
        attune_score_key_terms(b, h, kv, h / (a.heads / a.kv_heads), a.q_len, a.kv_len, t.score, a.score_symbols);
    if constexpr (config::SLOPE_KEYS + config::SLOPE_ROWS > 0)
        attune_score_slope_key_terms(b, h, kv, h / (a.heads / a.kv_heads), a.q_len, a.kv_len, t.slope, a.score_symbols);
}

__device__ __forceinline__ void share_row(shared_terms &t, const attune_cuda_arguments &a, int b, int h, int q)
{
    if constexpr (config::SCORE_KEYS > 0)
        attune_score_row_terms(b, h, q, h / (a.heads / a.kv_heads), a.q_len, a.kv_len, t.score, a.score_symbols);
    if constexpr (config::SLOPE_KEYS + config::SLOPE_ROWS > 0)
        attune_score_slope_row_terms(b, h, q, h / (a.heads / a.kv_heads), a.q_len, a.kv_len, t.slope, a.score_symbols);
}

/*
 * The lanes of a warp divide the terms of a tile's columns: of each set of 64 columns a lane computes the terms of two,
 * column_of_lane and the next, and the others get them by a shuffle. first: the lane's first column.
 */
__device__ __forceinline__ int column_of_lane(int first, int set)
{
    return first + (set * 8 + (int)threadIdx.x % 32 / 4) * 8;
}

/* The word of the column n * 8 after the lane's first one, from the lane that computed it. */
__device__ __forceinline__ int word_of_column(int own, int n)
{
    return __shfl_sync(0xffffffffu, own, n % 8 * 4 + (int)threadIdx.x % 4);
}

#endif
