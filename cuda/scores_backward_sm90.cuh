/* SPDX-License-Identifier: MIT */
/*
 * The elementwise stages of Hopper's backward kernel, on the fragments of S^T and dP^T that a thread holds: the mask,
 * P, dS and the capture gradients.
 */
#ifndef ATTUNE_CUDA_SCORES_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_SCORES_BACKWARD_SM90_CUH

#include "capture_gradients_sm90.cuh"
#include "layout_backward_sm90.cuh"
#include "terms.cuh"

/* Many capture gradients leave no registers for sizes and strides. With LATE_CAPTURES those for the shared terms
 * are read through an address that is hidden from the compiler, which would otherwise load them early and keep them. */
__device__ __forceinline__ const attune_cuda_arguments &late_arguments(const attune_cuda_arguments &a)
{
    const attune_cuda_arguments *late = &a;
    if constexpr (config::LATE_CAPTURES)
        make_opaque(late);
    return *late;
}

__device__ __forceinline__ float2 load_two(u32 at)
{
    float2 x;
    load_shared_2(x.x, x.y, at);
    return x;
}

/* Whether the mask allows query q to attend to key kv. */
__device__ __forceinline__ bool pair_allowed(const attune_cuda_arguments &a, const tile_desc &desc, int q, int kv)
{
    int h = desc.h + a.h0;
    if constexpr (config::HAVE_MASK_RANGE) {
        if (!config::HAVE_MASK_PAIRS || a.mask_ranges) {
            int low = 0, high = 0;
            attune_mask_range(desc.b + a.b0, h, q + a.q0, h / a.mask_group, a.mask_q_len, a.mask_kv_len, &low, &high,
                              a.mask_symbols);
            return kv >= low && kv < high;
        }
    }
    if constexpr (config::HAVE_MASK_PAIRS)
        return attune_mask(desc.b + a.b0, h, q + a.q0, kv, h / a.mask_group, a.mask_q_len, a.mask_kv_len, 0.0f,
                           a.mask_symbols);
    return true;
}

/* The score of a forbidden pair. A score expression could turn -inf into a finite number, so there it is a NaN that is
 * recognised by its bits after the expression. */
#define MASKED_SCORE (HAVE_SCORE ? __int_as_float(0x7fc0dead) : -ATTUNE_INF)

/* Masks by the interval of queries that each of the thread's two keys allows. False if the mask has no such interval.
 */
__device__ __forceinline__ bool mask_by_row_ranges(float (&s)[sm90::S_FRAGMENT], const attune_cuda_arguments &a,
                                                   const tile_desc &desc, int q, int kv)
{
    if constexpr (config::HAVE_MASK_COLUMNS) {
        if (!config::HAVE_MASK_PAIRS || a.mask_ranges) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int low = 0, high = 0, h = desc.h + a.h0;
                attune_mask_rows(desc.b + a.b0, h, kv + half * 8, h / a.mask_group, a.mask_q_len, a.mask_kv_len, &low,
                                 &high, a.mask_symbols);
                int from = q + a.q0 - low;
#pragma unroll
                for (int i = half * 2; i < sm90::S_FRAGMENT; i += 4)
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        if ((u32)(from + i / 4 * 8 + j) >= (u32)max(high - low, 0))
                            s[i + j] = MASKED_SCORE;
            }
            return true;
        }
    }
    return false;
}

constexpr int ROW_SETS =
    sm90::GROUP_M > 64 ? sm90::GROUP_M / 64 : 1; /* sets of 64 rows of Q, whose terms the lanes of a warp share */

/* Masks by terms of keys and rows. False if the mask has none, or intervals apply. */
__device__ __forceinline__ bool mask_by_terms(float (&s)[sm90::S_FRAGMENT], const attune_cuda_arguments &a,
                                              const tile_desc &desc, int q, int kv)
{
    if constexpr (config::MASK_KEYS > 0) {
        if (config::HAVE_MASK_RANGE && a.mask_ranges)
            return false;
        int b = desc.b + a.b0, h = desc.h + a.h0, h_kv = h / a.mask_group;
        int key[2][config::MASK_KEYS + 1], row_words[ROW_SETS][2][config::MASK_ROWS + 1];
#pragma unroll
        for (int half = 0; half < 2; half++)
            attune_mask_key_terms(b, h, kv + half * 8, h_kv, a.mask_q_len, a.mask_kv_len, key[half], a.mask_symbols);
#pragma unroll
        for (int i = 0; i < ROW_SETS * 2; i++)
            attune_mask_row_terms(b, h, column_of_lane(q, i / 2) + i % 2 + a.q0, h_kv, a.mask_q_len, a.mask_kv_len,
                                  row_words[i / 2][i % 2], a.mask_symbols);
#pragma unroll
        for (int i = 0; i < sm90::S_FRAGMENT / 2; i++) {
            int words[config::MASK_ROWS + 1];
#pragma unroll
            for (int j = 0; j < config::MASK_ROWS; j++)
                words[j] = word_of_column(row_words[i / 16][i % 2][j], i / 2);
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (!attune_mask_of(b, h, q + i / 2 * 8 + i % 2 + a.q0, kv + half * 8, h_kv, a.mask_q_len,
                                    a.mask_kv_len, 0.0f, key[half], words, a.mask_symbols))
                    s[i / 2 * 4 + half * 2 + i % 2] = MASKED_SCORE;
        }
        return true;
    }
    return false;
}

__device__ __forceinline__ void mask_scores(float (&s)[sm90::S_FRAGMENT], const attune_cuda_arguments &a,
                                            const tile_desc &desc, int q, int kv)
{
    if (desc.flags & TILE_PARTIAL) {
        if (!mask_by_row_ranges(s, a, desc, q, kv) && !mask_by_terms(s, a, desc, q, kv)) {
#pragma unroll
            for (int i = 0; i < sm90::S_FRAGMENT; i++)
                if (!pair_allowed(a, desc, q + i / 4 * 8 + i % 2, kv + i / 2 % 2 * 8))
                    s[i] = MASKED_SCORE;
        }
    }
#pragma unroll
    for (int i = 0; i < sm90::S_FRAGMENT; i++)
        if (kv + i / 2 % 2 * 8 >= a.kv_len || (sm90::HAVE_CAPTURE_GRADIENTS && q + i / 4 * 8 + i % 2 >= a.q_len))
            s[i] = MASKED_SCORE;
}

/* Whether all scores of the warp are within the bound of the near-zero form. */
__device__ __forceinline__ bool near_zero(const float (&s)[sm90::S_FRAGMENT], float scale)
{
    if constexpr (config::SCORE_NEAR_BOUNDED) {
        float top[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < sm90::S_FRAGMENT; i++)
            top[i % 2] = fmaxf(top[i % 2], fabsf(s[i]));
        return __all_sync(0xffffffffu, fmaxf(top[0], top[1]) * fabsf(scale) <= config::SCORE_NEAR);
    }
    return config::HAVE_SCORE_NEAR;
}

/* P of one pair, and in slope P times the derivative of the score. NEAR_ZERO: uses the near-zero form. kv0: the
 * thread's first key. */
template <bool NEAR_ZERO>
__device__ __forceinline__ void pair_p(float s, float lse, float &p, float &slope, const attune_cuda_arguments &a,
                                       const tile_desc &desc, int q, int kv, int kv0, float factor,
                                       const shared_terms &key, const shared_terms &row)
{
    if constexpr (!HAVE_SCORE) {
        p = slope = exp2_fast(__fmaf_rn(s, factor, -lse));
    } else {
        int h_kv = desc.h / (a.heads / a.kv_heads);
        float raw = s * a.scale, score, by;
        score = score_of_pair<NEAR_ZERO>(a, desc.b, desc.h, q, kv, h_kv, raw, key.score, row.score, kv0);
        by = slope_of_pair<NEAR_ZERO>(a, desc.b, desc.h, q, kv, h_kv, raw, key.slope, row.slope, kv0);
        score = __float_as_uint(s) == __float_as_uint(MASKED_SCORE) ? -ATTUNE_INF : score;
        p = exp2_fast(__fmaf_rn(score, factor, -lse));
        slope = sm90::HAVE_CAPTURE_GRADIENTS && !sm90::FUSED_GRADIENTS ? p : p == 0.0f ? 0.0f : p * by;
    }
}

/* Terms that pairs of a tile share: of the thread's two keys, and of two rows of each set of 64. */
struct tile_terms {
    shared_terms key[2], row_words[ROW_SETS][2];
};

__device__ __forceinline__ void make_tile_terms(tile_terms &t, const attune_cuda_arguments &a, const tile_desc &desc,
                                                int q, int kv)
{
    share_key(t.key[0], a, desc.b, desc.h, kv);
    share_key(t.key[1], a, desc.b, desc.h, kv + 8);
#pragma unroll
    for (int set = 0; set < ROW_SETS; set++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            share_row(t.row_words[set][j], a, desc.b, desc.h, column_of_lane(q, set) + j);
}

/* The terms of the two rows of a 16 x 8 fragment, from the lane that computed them. */
__device__ __forceinline__ void fragment_row_terms(shared_terms (&row)[2], const tile_terms &t, int fragment)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const shared_terms &near = t.row_words[0][j], &far = t.row_words[ROW_SETS - 1][j];
#pragma unroll
        for (int w = 0; w < config::SCORE_ROWS; w++)
            row[j].score[w] = word_of_column(fragment < 8 ? near.score[w] : far.score[w], fragment);
#pragma unroll
        for (int w = 0; w < config::SLOPE_ROWS; w++)
            row[j].slope[w] = word_of_column(fragment < 8 ? near.slope[w] : far.slope[w], fragment);
    }
}

/* p: P as 16-bit operands of dV += P dO. s: S on entry, P times the derivative of the score on return. */
template <bool NEAR_ZERO>
__device__ __forceinline__ void compute_p_pairs(float (&s)[sm90::S_FRAGMENT], u32 (&p)[sm90::GROUP_M / 16][4],
                                                const attune_cuda_arguments &a, const tile_desc &desc, int q, int kv,
                                                u32 lse, float factor)
{
    int column = thread_index() % 4 * 2;
    tile_terms terms;
    make_tile_terms(terms, a, desc, q, kv);
    /* A long expression is not unrolled over all pairs: the loop body has eight, and the registers rotate so that
     * indices stay constants. */
    constexpr int CHUNK = config::SCORE_CHUNKS ? 8 : sm90::S_FRAGMENT;
#pragma unroll 1
    for (int first = 0; first < sm90::S_FRAGMENT; first += CHUNK) {
#pragma unroll
        for (int i = 0; i < CHUNK; i += 4) {
            int n_at = (first + i) / 4, at = q + (first + i) * 2;
            float2 l = load_two(lse + ((first + i) * 2 + column) * 4);
            float x[4];
            shared_terms row[2];
            fragment_row_terms(row, terms, n_at);
#pragma unroll
            for (int j = 0; j < 4; j++)
                pair_p<NEAR_ZERO>(s[i + j], j % 2 ? l.y : l.x, x[j], s[i + j], a, desc, at + j % 2, kv + j / 2 * 8, kv,
                                  factor, terms.key[j / 2], row[j % 2]);
            p[i / 8][i / 4 % 2 * 2] = pack(x[0], x[1]);
            p[i / 8][i / 4 % 2 * 2 + 1] = pack(x[2], x[3]);
        }
        if constexpr (CHUNK < sm90::S_FRAGMENT) {
            float s_done[CHUNK];
            u32 p_done[4];
#pragma unroll
            for (int i = 0; i < CHUNK; i++)
                s_done[i] = s[i];
#pragma unroll
            for (int i = 0; i < 4; i++)
                p_done[i] = p[0][i];
#pragma unroll
            for (int i = 0; i < sm90::S_FRAGMENT; i++)
                s[i] = i + CHUNK < sm90::S_FRAGMENT ? s[i + CHUNK] : s_done[i + CHUNK - sm90::S_FRAGMENT];
#pragma unroll
            for (int i = 0; i < sm90::S_FRAGMENT / 2; i++)
                p[i / 4][i % 4] = i + 4 < sm90::S_FRAGMENT / 2 ? p[i / 4 + 1][i % 4] : p_done[i % 4];
        }
    }
}

/* P = exp(S - LSE), masked. kv: the thread's first key. */
__device__ __forceinline__ void compute_p(float (&s)[sm90::S_FRAGMENT], u32 (&p)[sm90::GROUP_M / 16][4],
                                          const attune_cuda_arguments &a, const tile_desc &desc, int kv, u32 lse,
                                          float factor)
{
    int q = desc.q + thread_index() % 4 * 2 + (sm90::WIDE ? (thread_index() / 128 - 1) * sm90::GROUP_M : 0);
    if (desc.flags & TILE_MASKED)
        mask_scores(s, a, desc, q, kv);
    if (config::HAVE_SCORE_NEAR && near_zero(s, a.scale))
        compute_p_pairs<config::HAVE_SCORE_NEAR>(s, p, a, desc, q, kv, lse, factor);
    else
        compute_p_pairs<false>(s, p, a, desc, q, kv, lse, factor);
}

/* dS = P * (dP - delta) as 16-bit operands of dQ and dK. s: P times the derivative of the score. */
__device__ __forceinline__ void compute_ds(const float (&s)[sm90::S_FRAGMENT], const float (&d_p)[sm90::S_FRAGMENT],
                                           u32 (&d_s)[sm90::GROUP_M / 16][4], u32 delta)
{
#pragma unroll
    for (int i = 0; i < sm90::S_FRAGMENT; i += 4) {
        float2 d = load_two(delta + (i * 2 + thread_index() % 4 * 2) * 4);
        d_s[i / 8][i / 4 % 2 * 2] = pack(s[i] * (d_p[i] - d.x), s[i + 1] * (d_p[i + 1] - d.y));
        d_s[i / 8][i / 4 % 2 * 2 + 1] = pack(s[i + 2] * (d_p[i + 2] - d.x), s[i + 3] * (d_p[i + 3] - d.y));
    }
}

/* The same with capture gradients that do not depend on the score: then s has P alone. */
__device__ __forceinline__ void compute_ds(float (&s)[sm90::S_FRAGMENT], float (&d_p)[sm90::S_FRAGMENT],
                                           u32 (&d_s)[sm90::GROUP_M / 16][4], capture_sums<sm90::S_FRAGMENT> &sums,
                                           const pair_origin &t, u32 delta)
{
    if constexpr (!sm90::HAVE_CAPTURE_GRADIENTS) {
        compute_ds(s, d_p, d_s, delta);
    } else {
        constexpr bool NEAR_ZERO = READS_NEAR_ZERO;
        int h_kv = t.h / (t.a.heads / t.a.kv_heads);
#pragma unroll
        for (int i = 0; i < sm90::S_FRAGMENT; i += 4) {
            float2 two = load_two(delta + (i * 2 + thread_index() % 4 * 2) * 4);
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float d = s[i + j] == 0.0f ? 0.0f : s[i + j] * (d_p[i + j] - (j % 2 ? two.y : two.x));
                float by = attune_score_slope(t.b, t.h, t.q + i * 2 + j % 2, t.kv + j / 2 * 8, h_kv, t.a.q_len,
                                              t.a.kv_len, 0.0f, t.a.score_symbols);
                x[j] = d == 0.0f ? 0.0f : d * by;
                sum_capture_gradients<NEAR_ZERO>(sums, t, i / 4, j, d, 0.0f);
                d_p[i + j] = d;
            }
            d_s[i / 8][i / 4 % 2 * 2] = pack(x[0], x[1]);
            d_s[i / 8][i / 4 % 2 * 2 + 1] = pack(x[2], x[3]);
        }
        add_pair_gradients<NEAR_ZERO>(d_p, s, t);
    }
}

/* P, dS and capture gradients that depend on the score, in one pass while S is in registers. */
template <bool NEAR_ZERO>
__device__ __forceinline__ void compute_fused_pairs(float (&s)[sm90::S_FRAGMENT], float (&d_p)[sm90::S_FRAGMENT],
                                                    u32 (&p)[sm90::GROUP_M / 16][4], u32 (&d_s)[sm90::GROUP_M / 16][4],
                                                    capture_sums<sm90::S_FRAGMENT> &sums, const pair_origin &t,
                                                    const tile_desc &desc, u32 lse, u32 delta, int chunk)
{
    int column = thread_index() % 4 * 2;
    tile_terms terms;
    make_tile_terms(terms, late_arguments(t.a), desc, t.q, t.kv);
#pragma unroll
    for (int i = 0; i < sm90::S_FRAGMENT; i += 4) {
        float2 l = load_two(lse + (i * 2 + column) * 4), two;
        if constexpr (!config::LATE_DELTA)
            two = load_two(delta + (i * 2 + column) * 4);
        float x[4], y[4];
        shared_terms row[2];
        fragment_row_terms(row, terms, i / 4);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            pair_p<NEAR_ZERO>(s[i + j], j % 2 ? l.y : l.x, x[j], y[j], t.a, desc, t.q + i * 2 + j % 2, t.kv + j / 2 * 8,
                              t.kv, ATTUNE_LOG2E, terms.key[j / 2], row[j % 2]);
            if (config::LATE_DELTA && j == 0)
                two = load_two((u32)after((int)delta, x[0]) + (i * 2 + column) * 4);
            float difference = d_p[i + j] - (j % 2 ? two.y : two.x);
            d_p[i + j] = x[j] == 0.0f ? 0.0f : x[j] * difference;
            y[j] = x[j] == 0.0f ? 0.0f : y[j] * difference;
            sum_capture_gradients<NEAR_ZERO>(sums, t, i / 4, j, d_p[i + j], s[i + j] * t.a.scale);
        }
        int to = (chunk * sm90::S_FRAGMENT + i) / 8;
        p[to][i / 4 % 2 * 2] = pack(x[0], x[1]);
        p[to][i / 4 % 2 * 2 + 1] = pack(x[2], x[3]);
        d_s[to][i / 4 % 2 * 2] = pack(y[0], y[1]);
        d_s[to][i / 4 % 2 * 2 + 1] = pack(y[2], y[3]);
    }
    add_pair_gradients<NEAR_ZERO>(d_p, s, t);
}

__device__ __forceinline__ void compute_p_ds(float (&s)[sm90::S_FRAGMENT], float (&d_p)[sm90::S_FRAGMENT],
                                             u32 (&p)[sm90::GROUP_M / 16][4], u32 (&d_s)[sm90::GROUP_M / 16][4],
                                             capture_sums<sm90::S_FRAGMENT> &sums, const pair_origin &t,
                                             const tile_desc &desc, u32 lse, u32 delta, int chunk)
{
    if (desc.flags & TILE_MASKED)
        mask_scores(s, t.a, desc, t.q, t.kv);
    if (config::HAVE_SCORE_NEAR && near_zero(s, t.a.scale))
        compute_fused_pairs<config::HAVE_SCORE_NEAR>(s, d_p, p, d_s, sums, t, desc, lse, delta, chunk);
    else
        compute_fused_pairs<false>(s, d_p, p, d_s, sums, t, desc, lse, delta, chunk);
}

#endif
