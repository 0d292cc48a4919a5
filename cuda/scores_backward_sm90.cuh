/* SPDX-License-Identifier: MIT */
/*
 * The elementwise stages of the backward kernels with TMA, on the scores of S^T and dP^T that a thread holds: the mask,
 * P, dS and the capture gradients. Which keys and rows they are of is the configuration's: on Hopper, of each four, two
 * rows of two keys; with tensor memory, a key's consecutive rows.
 */
#ifndef ATTUNE_CUDA_SCORES_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_SCORES_BACKWARD_SM90_CUH

#include "layout_backward_sm90.cuh"

#include "capture_gradients_sm90.cuh"
#include "captures_backward_sm90.cuh"
#include "exponentials.cuh"
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

/* LSE or delta of the rows of the thread's scores i to i + 3, from shared memory. */
struct four_rows {
    float of[backward::FOUR_ROWS];
};

__device__ __forceinline__ four_rows load_rows(u32 from, int i)
{
    four_rows x;
    u32 at = from + (u32)(backward::row_of(i) + backward::lane_row()) * 4;
    if constexpr (backward::FOUR_ROWS == 2)
        load_shared_2(x.of[0], x.of[1], at);
    else
        load_shared_4_ordered(x.of[0], x.of[1], x.of[2], x.of[3], at);
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

/* Masks by the interval of queries that each of the thread's keys allows. False if the mask has no such interval.
 */
__device__ __forceinline__ bool mask_by_row_ranges(float (&s)[backward::S_FRAGMENT], const attune_cuda_arguments &a,
                                                   const tile_desc &desc, int q, int kv)
{
    if constexpr (config::HAVE_MASK_COLUMNS) {
        if (!config::HAVE_MASK_PAIRS || a.mask_ranges) {
#pragma unroll
            for (int half = 0; half < backward::THREAD_KEYS; half++) {
                int low = 0, high = 0, h = desc.h + a.h0;
                attune_mask_rows(desc.b + a.b0, h, kv + half * 8, h / a.mask_group, a.mask_q_len, a.mask_kv_len, &low,
                                 &high, a.mask_symbols);
                int from = q + a.q0 - low;
#pragma unroll
                for (int i = 0; i < backward::S_FRAGMENT; i++)
                    if (backward::key_of(i) == half * 8 && (u32)(from + backward::row_of(i)) >= (u32)max(high - low, 0))
                        s[i] = MASKED_SCORE;
            }
            return true;
        }
    }
    return false;
}

/* Sets of rows of Q whose terms the lanes of a warp share: of 64, two for each lane, or of 32. */
constexpr int LANE_ROWS = backward::FOUR_ROWS == 2 ? 2 : 1;
constexpr int ROW_SETS = backward::FOUR_ROWS == 4 ? backward::S_FRAGMENT / 32
                         : backward::GROUP_M > 64 ? backward::GROUP_M / 64
                                                  : 1;

/* Row j of a lane in a set. first: the thread's first row. */
__device__ __forceinline__ int row_of_lane(int first, int set, int j)
{
    return backward::FOUR_ROWS == 2 ? column_of_lane(first, set) + j : first + set * 32 + (int)threadIdx.x % 32;
}

/* The word of row `row` of the thread's scores i to i + 3, from the lane that computed it. words: of LANE_ROWS rows. */
__device__ __forceinline__ int word_of_row(const int (&words)[LANE_ROWS], int i, int row)
{
    if constexpr (backward::FOUR_ROWS == 2)
        return word_of_column(words[row], i / 4);
    else
        return __shfl_sync(0xffffffffu, words[0], (i + row) % 32);
}

/* Masks by terms of keys and rows. False if the mask has none, or intervals apply. */
__device__ __forceinline__ bool mask_by_terms(float (&s)[backward::S_FRAGMENT], const attune_cuda_arguments &a,
                                              const tile_desc &desc, int q, int kv)
{
    if constexpr (config::MASK_KEYS > 0) {
        if (config::HAVE_MASK_RANGE && a.mask_ranges)
            return false;
        int b = desc.b + a.b0, h = desc.h + a.h0, h_kv = h / a.mask_group;
        int key[backward::THREAD_KEYS][config::MASK_KEYS + 1], row_words[ROW_SETS][LANE_ROWS][config::MASK_ROWS + 1];
#pragma unroll
        for (int half = 0; half < backward::THREAD_KEYS; half++)
            attune_mask_key_terms(b, h, kv + half * 8, h_kv, a.mask_q_len, a.mask_kv_len, key[half], a.mask_symbols);
#pragma unroll
        for (int i = 0; i < ROW_SETS * LANE_ROWS; i++)
            attune_mask_row_terms(b, h, row_of_lane(q, i / LANE_ROWS, i % LANE_ROWS) + a.q0, h_kv, a.mask_q_len,
                                  a.mask_kv_len, row_words[i / LANE_ROWS][i % LANE_ROWS], a.mask_symbols);
#pragma unroll
        for (int i = 0; i < backward::S_FRAGMENT; i += 4)
#pragma unroll
            for (int row = 0; row < backward::FOUR_ROWS; row++) {
                int words[config::MASK_ROWS + 1];
#pragma unroll
                for (int j = 0; j < config::MASK_ROWS; j++) {
                    int of_lane[LANE_ROWS];
#pragma unroll
                    for (int n = 0; n < LANE_ROWS; n++)
                        of_lane[n] = row_words[i / 32][n][j];
                    words[j] = word_of_row(of_lane, i, row);
                }
#pragma unroll
                for (int half = 0; half < backward::THREAD_KEYS; half++)
                    if (!attune_mask_of(b, h, q + backward::row_of(i) + row + a.q0, kv + half * 8, h_kv, a.mask_q_len,
                                        a.mask_kv_len, 0.0f, key[half], words, a.mask_symbols))
                        s[i + half * 2 + row] = MASKED_SCORE;
            }
        return true;
    }
    return false;
}

__device__ __forceinline__ void mask_scores(float (&s)[backward::S_FRAGMENT], const attune_cuda_arguments &a,
                                            const tile_desc &desc, int q, int kv)
{
    if (desc.flags & TILE_PARTIAL) {
        if (!mask_by_row_ranges(s, a, desc, q, kv) && !mask_by_terms(s, a, desc, q, kv)) {
#pragma unroll
            for (int i = 0; i < backward::S_FRAGMENT; i++)
                if (!pair_allowed(a, desc, q + backward::row_of(i), kv + backward::key_of(i)))
                    s[i] = MASKED_SCORE;
        }
    }
#pragma unroll
    for (int i = 0; i < backward::S_FRAGMENT; i++)
        if (kv + backward::key_of(i) >= a.kv_len ||
            (backward::HAVE_CAPTURE_GRADIENTS && q + backward::row_of(i) >= a.q_len))
            s[i] = MASKED_SCORE;
}

/* Whether all scores of the warp are within the bound of the near-zero form. */
__device__ __forceinline__ bool near_zero(const float (&s)[backward::S_FRAGMENT], float scale)
{
    if constexpr (config::SCORE_NEAR_BOUNDED) {
        float top[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < backward::S_FRAGMENT; i++)
            top[i % 2] = fmaxf(top[i % 2], fabsf(s[i]));
        return __all_sync(0xffffffffu, fmaxf(top[0], top[1]) * fabsf(scale) <= config::SCORE_NEAR);
    }
    return config::HAVE_SCORE_NEAR;
}

/* P of one pair, the thread's i-th, and in slope P times the derivative of the score. NEAR_ZERO: uses the near-zero
 * form. kv0: the thread's first key. */
template <bool NEAR_ZERO>
__device__ __forceinline__ void pair_p(int i, float s, float lse, float &p, float &slope,
                                       const attune_cuda_arguments &a, const tile_desc &desc, int q, int kv, int kv0,
                                       float factor, const shared_terms &key, const shared_terms &row)
{
    if constexpr (!HAVE_SCORE) {
        p = slope = exp2_shared(__fmaf_rn(s, factor, -lse), i);
    } else {
        int h_kv = desc.h / (a.heads / a.kv_heads);
        float raw = s * a.scale, score, by;
        score = score_of_pair<NEAR_ZERO>(a, desc.b, desc.h, q, kv, h_kv, raw, key.score, row.score, kv0);
        by = slope_of_pair<NEAR_ZERO>(a, desc.b, desc.h, q, kv, h_kv, raw, key.slope, row.slope, kv0);
        score = __float_as_uint(s) == __float_as_uint(MASKED_SCORE) ? -ATTUNE_INF : score;
        p = exp2_shared(__fmaf_rn(score, factor, -lse), i);
        slope = backward::HAVE_CAPTURE_GRADIENTS && !backward::FUSED_GRADIENTS ? p : p == 0.0f ? 0.0f : p * by;
    }
}

/* Terms that pairs of a tile share: of the thread's keys, and of a lane's rows of each set. */
struct tile_terms {
    shared_terms key[backward::THREAD_KEYS], row_words[ROW_SETS][LANE_ROWS];
};

__device__ __forceinline__ void make_tile_terms(tile_terms &t, const attune_cuda_arguments &a, const tile_desc &desc,
                                                int q, int kv)
{
#pragma unroll
    for (int half = 0; half < backward::THREAD_KEYS; half++)
        share_key(t.key[half], a, desc.b, desc.h, kv + half * 8);
#pragma unroll
    for (int set = 0; set < ROW_SETS; set++)
#pragma unroll
        for (int j = 0; j < LANE_ROWS; j++)
            share_row(t.row_words[set][j], a, desc.b, desc.h, row_of_lane(q, set, j));
}

/* The terms of the key of score j of the four from i on, and the element of the pair if a tile of a capture is staged.
 */
__device__ __forceinline__ shared_terms pair_terms(const tile_terms &t, u32 elements, int i, int j)
{
    shared_terms key = t.key[j / backward::FOUR_ROWS];
    if constexpr (config::SCORE_TILE > 0)
        key.score[config::SCORE_KEYS] = attune_score_tile_value(capture_element(elements, i + j));
    return key;
}

/* The terms of the rows of the thread's scores i to i + 3, from the lanes that computed them. */
__device__ __forceinline__ void four_row_terms(shared_terms (&row)[backward::FOUR_ROWS], const tile_terms &t, int i)
{
#pragma unroll
    for (int j = 0; j < backward::FOUR_ROWS; j++) {
        const shared_terms(&near)[LANE_ROWS] = t.row_words[0], (&far)[LANE_ROWS] = t.row_words[ROW_SETS - 1];
#pragma unroll
        for (int w = 0; w < config::SCORE_ROWS; w++) {
            int words[LANE_ROWS];
#pragma unroll
            for (int n = 0; n < LANE_ROWS; n++)
                words[n] = i < 32 ? near[n].score[w] : far[n].score[w];
            row[j].score[w] = word_of_row(words, i, j);
        }
#pragma unroll
        for (int w = 0; w < config::SLOPE_ROWS; w++) {
            int words[LANE_ROWS];
#pragma unroll
            for (int n = 0; n < LANE_ROWS; n++)
                words[n] = i < 32 ? near[n].slope[w] : far[n].slope[w];
            row[j].slope[w] = word_of_row(words, i, j);
        }
    }
}

/* p: P as 16-bit operands of dV += P dO. s: S on entry, P times the derivative of the score on return. elements: of
 * wait_capture_tile. */
template <bool NEAR_ZERO>
__device__ __forceinline__ void compute_p_pairs(float (&s)[backward::S_FRAGMENT], u32 (&p)[backward::P_STEPS][4],
                                                const attune_cuda_arguments &a, const tile_desc &desc, int q, int kv,
                                                u32 lse, float factor, u32 elements)
{
    tile_terms terms;
    make_tile_terms(terms, a, desc, q, kv);
    /* A long expression is not unrolled over all pairs: the loop body has eight, and the registers rotate so that
     * indices stay constants. */
    constexpr int CHUNK = config::SCORE_CHUNKS ? 8 : backward::S_FRAGMENT;
#pragma unroll 1
    for (int first = 0; first < backward::S_FRAGMENT; first += CHUNK) {
#pragma unroll
        for (int i = 0; i < CHUNK; i += 4) {
            int at = q + backward::row_of(first + i);
            four_rows l = load_rows(lse, first + i);
            float x[4];
            shared_terms row[backward::FOUR_ROWS];
            four_row_terms(row, terms, first + i);
#pragma unroll
            for (int j = 0; j < 4; j++)
                pair_p<NEAR_ZERO>(i + j, s[i + j], l.of[j % backward::FOUR_ROWS], x[j], s[i + j], a, desc,
                                  at + j % backward::FOUR_ROWS, kv + backward::key_of(j), kv, factor,
                                  pair_terms(terms, elements, first + i, j), row[j % backward::FOUR_ROWS]);
            p[i / 8][i / 4 % 2 * 2] = pack(x[0], x[1]);
            p[i / 8][i / 4 % 2 * 2 + 1] = pack(x[2], x[3]);
        }
        if constexpr (CHUNK < backward::S_FRAGMENT) {
            float s_done[CHUNK];
            u32 p_done[4];
#pragma unroll
            for (int i = 0; i < CHUNK; i++)
                s_done[i] = s[i];
#pragma unroll
            for (int i = 0; i < 4; i++)
                p_done[i] = p[0][i];
#pragma unroll
            for (int i = 0; i < backward::S_FRAGMENT; i++)
                s[i] = i + CHUNK < backward::S_FRAGMENT ? s[i + CHUNK] : s_done[i + CHUNK - backward::S_FRAGMENT];
#pragma unroll
            for (int i = 0; i < backward::S_FRAGMENT / 2; i++)
                p[i / 4][i % 4] = i + 4 < backward::S_FRAGMENT / 2 ? p[i / 4 + 1][i % 4] : p_done[i % 4];
        }
    }
}

/* P = exp(S - LSE), masked. kv: the thread's first key. */
__device__ __forceinline__ void compute_p(float (&s)[backward::S_FRAGMENT], u32 (&p)[backward::P_STEPS][4],
                                          const attune_cuda_arguments &a, const tile_desc &desc, int kv, u32 lse,
                                          float factor, u32 elements = 0)
{
    int q = desc.q + backward::lane_row() + backward::group_row();
    if (desc.flags & TILE_MASKED)
        mask_scores(s, a, desc, q, kv);
    if (config::HAVE_SCORE_NEAR && near_zero(s, a.scale))
        compute_p_pairs<config::HAVE_SCORE_NEAR>(s, p, a, desc, q, kv, lse, factor, elements);
    else
        compute_p_pairs<false>(s, p, a, desc, q, kv, lse, factor, elements);
}

/* dS = P * (dP - delta) as 16-bit operands of dQ and dK. s: P times the derivative of the score. */
__device__ __forceinline__ void compute_ds(const float (&s)[backward::S_FRAGMENT],
                                           const float (&d_p)[backward::S_FRAGMENT], u32 (&d_s)[backward::P_STEPS][4],
                                           u32 delta)
{
#pragma unroll
    for (int i = 0; i < backward::S_FRAGMENT; i += 4) {
        four_rows d = load_rows(delta, i);
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = s[i + j] * (d_p[i + j] - d.of[j % backward::FOUR_ROWS]);
        d_s[i / 8][i / 4 % 2 * 2] = pack(x[0], x[1]);
        d_s[i / 8][i / 4 % 2 * 2 + 1] = pack(x[2], x[3]);
    }
}

/* The same with capture gradients that do not depend on the score: then s has P alone. */
__device__ __forceinline__ void compute_ds(float (&s)[backward::S_FRAGMENT], float (&d_p)[backward::S_FRAGMENT],
                                           u32 (&d_s)[backward::P_STEPS][4], capture_sums<backward::S_FRAGMENT> &sums,
                                           const pair_origin &t, u32 delta)
{
    if constexpr (!backward::HAVE_CAPTURE_GRADIENTS) {
        compute_ds(s, d_p, d_s, delta);
    } else {
        constexpr bool NEAR_ZERO = READS_NEAR_ZERO;
        int h_kv = t.h / (t.a.heads / t.a.kv_heads);
#pragma unroll
        for (int i = 0; i < backward::S_FRAGMENT; i += 4) {
            four_rows two = load_rows(delta, i);
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float d = s[i + j] == 0.0f ? 0.0f : s[i + j] * (d_p[i + j] - two.of[j % backward::FOUR_ROWS]);
                float by = attune_score_slope(t.b, t.h, t.q + backward::row_of(i) + j % backward::FOUR_ROWS,
                                              t.kv + backward::key_of(j), h_kv, t.a.q_len, t.a.kv_len, 0.0f,
                                              t.a.score_symbols);
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
__device__ __forceinline__ void compute_fused_pairs(float (&s)[backward::S_FRAGMENT],
                                                    float (&d_p)[backward::S_FRAGMENT], u32 (&p)[backward::P_STEPS][4],
                                                    u32 (&d_s)[backward::P_STEPS][4],
                                                    capture_sums<backward::S_FRAGMENT> &sums, const pair_origin &t,
                                                    const tile_desc &desc, u32 lse, u32 delta, int chunk, u32 elements)
{
    tile_terms terms;
    make_tile_terms(terms, late_arguments(t.a), desc, t.q, t.kv);
#pragma unroll
    for (int i = 0; i < backward::S_FRAGMENT; i += 4) {
        four_rows l = load_rows(lse, i), two;
        if constexpr (!config::LATE_DELTA)
            two = load_rows(delta, i);
        float x[4], y[4];
        shared_terms row[backward::FOUR_ROWS];
        four_row_terms(row, terms, i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            pair_p<NEAR_ZERO>(i + j, s[i + j], l.of[j % backward::FOUR_ROWS], x[j], y[j], t.a, desc,
                              t.q + backward::row_of(i) + j % backward::FOUR_ROWS, t.kv + backward::key_of(j), t.kv,
                              ATTUNE_LOG2E, pair_terms(terms, elements, i, j), row[j % backward::FOUR_ROWS]);
            if (config::LATE_DELTA && j == 0)
                two = load_rows((u32)after((int)delta, x[0]), i);
            float difference = d_p[i + j] - two.of[j % backward::FOUR_ROWS];
            d_p[i + j] = x[j] == 0.0f ? 0.0f : x[j] * difference;
            y[j] = x[j] == 0.0f ? 0.0f : y[j] * difference;
            sum_capture_gradients<NEAR_ZERO>(sums, t, i / 4, j, d_p[i + j], s[i + j] * t.a.scale);
        }
        int to = (chunk * backward::S_FRAGMENT + i) / 8;
        p[to][i / 4 % 2 * 2] = pack(x[0], x[1]);
        p[to][i / 4 % 2 * 2 + 1] = pack(x[2], x[3]);
        d_s[to][i / 4 % 2 * 2] = pack(y[0], y[1]);
        d_s[to][i / 4 % 2 * 2 + 1] = pack(y[2], y[3]);
    }
    add_pair_gradients<NEAR_ZERO>(d_p, s, t);
}

__device__ __forceinline__ void compute_p_ds(float (&s)[backward::S_FRAGMENT], float (&d_p)[backward::S_FRAGMENT],
                                             u32 (&p)[backward::P_STEPS][4], u32 (&d_s)[backward::P_STEPS][4],
                                             capture_sums<backward::S_FRAGMENT> &sums, const pair_origin &t,
                                             const tile_desc &desc, u32 lse, u32 delta, int chunk, u32 elements = 0)
{
    if (desc.flags & TILE_MASKED)
        mask_scores(s, t.a, desc, t.q, t.kv);
    if (config::HAVE_SCORE_NEAR && near_zero(s, t.a.scale))
        compute_fused_pairs<config::HAVE_SCORE_NEAR>(s, d_p, p, d_s, sums, t, desc, lse, delta, chunk, elements);
    else
        compute_fused_pairs<false>(s, d_p, p, d_s, sums, t, desc, lse, delta, chunk, elements);
}

#endif
