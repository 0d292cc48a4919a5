/* SPDX-License-Identifier: MIT */
/*
 * What stands between the products of Hopper's backward kernel: the mask, P, dS and what captures are due, of the S and
 * dP that a thread holds.
 */
#ifndef ATTUNE_CUDA_SCORES_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_SCORES_BACKWARD_SM90_CUH

#include "producer_backward_sm90.cuh"
#include "capture_gradients_sm90.cuh"

constexpr int SHARE = WIDE ? BLOCK_M / GROUPS : BLOCK_M; /* of a tile's rows, a warp group's */
#if ATTUNE_HAVE_READS
#define ONE_READ(n, symbol, how) +1
constexpr bool MANY_READS = (0 ATTUNE_READS(ONE_READ)) > 2;
#else
constexpr bool MANY_READS = false;
#endif
/* S and dP with what captures are due are made in halves, where dK and dV, or many captures, leave no room for all. */
constexpr int PARTS = AT_ONCE && !WIDE && (MANY_READS || WIDTH_D + WIDTH_DV > 192) ? 2 : 1;
/* Whether that is added under the last products. */
constexpr bool READS_UNDER = !WIDE && PARTS == 1 && !ORDERED;
constexpr int TILE = SHARE / 2 / PARTS; /* of S and dP, what a thread holds */

/* Beside many captures' gradients their sizes and strides may find no registers: with ATTUNE_READS_LATE those of a tile's
 * terms come from a place that is hidden from the compiler, which else has them ready. */
__device__ __forceinline__ const attune_cuda_arguments &read_late(const attune_cuda_arguments &a)
{
    const attune_cuda_arguments *late = &a;
    if constexpr (ATTUNE_READS_LATE)
        asm volatile("" : "+l"(late));
    return *late;
}

__device__ __forceinline__ float2 load_two(u32 at)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
    return x;
}

/* Whether row q may attend to kv. */
__device__ __forceinline__ bool pair_allowed(const attune_cuda_arguments &a, const tile_desc &n, int q, int kv)
{
    int h = n.h + a.h0;
#if ATTUNE_HAVE_MASK_RANGE
    if (!ATTUNE_HAVE_MASK || a.mask_ranges) {
        int low = 0, high = 0;
        attune_mask_range(n.b + a.b0, h, q + a.q0, h / a.mask_group, a.mask_q_len, a.mask_kv_len, &low, &high,
                          a.mask_symbols);
        return kv >= low && kv < high;
    }
#endif
#if ATTUNE_HAVE_MASK
    return attune_mask(n.b + a.b0, h, q + a.q0, kv, h / a.mask_group, a.mask_q_len, a.mask_kv_len, 0.0f,
                       a.mask_symbols);
#else
    return true;
#endif
}

/* Stands in S for a pair that is forbidden: the score expression knows nothing of masks. */
#define FORBIDDEN (HAVE_SCORE ? __int_as_float(0x7fc0dead) : -ATTUNE_INF)

/* By the rows that may attend to each of the thread's two keys; false where a mask does not say these. */
__device__ __forceinline__ bool forbid_rows(float (&s)[TILE], const attune_cuda_arguments &a, const tile_desc &n, int q, int kv)
{
#if ATTUNE_HAVE_MASK_COLUMNS
    if (!ATTUNE_HAVE_MASK || a.mask_ranges) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int low = 0, high = 0, h = n.h + a.h0;
            attune_mask_rows(n.b + a.b0, h, kv + half * 8, h / a.mask_group, a.mask_q_len, a.mask_kv_len, &low, &high,
                             a.mask_symbols);
            int from = q + a.q0 - low;
#pragma unroll
            for (int i = half * 2; i < TILE; i += 4)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    if ((u32)(from + i / 4 * 8 + j) >= (u32)max(high - low, 0))
                        s[i + j] = FORBIDDEN;
        }
        return true;
    }
#endif
    return false;
}

constexpr int ROW_SETS = SHARE > 64 ? SHARE / 64 : 1; /* of columns that a warp's lanes share */

/* By what keys and rows share; false where the mask has nothing of that kind, or its rows have ranges. */
__device__ __forceinline__ bool forbid_terms(float (&s)[TILE], const attune_cuda_arguments &a, const tile_desc &n, int q,
                                             int kv)
{
#if ATTUNE_MASK_KEYS
    if (ATTUNE_HAVE_MASK_RANGE && a.mask_ranges)
        return false;
    int b = n.b + a.b0, h = n.h + a.h0, h_kv = h / a.mask_group;
    int key[2][ATTUNE_MASK_KEYS], mine[ROW_SETS][2][ATTUNE_MASK_ROWS + 1];
#pragma unroll
    for (int half = 0; half < 2; half++)
        attune_mask_key_terms(b, h, kv + half * 8, h_kv, a.mask_q_len, a.mask_kv_len, key[half], a.mask_symbols);
#pragma unroll
    for (int i = 0; i < ROW_SETS * 2; i++)
        attune_mask_row_terms(b, h, column_of_lane(q, i / 2) + i % 2 + a.q0, h_kv, a.mask_q_len, a.mask_kv_len,
                              mine[i / 2][i % 2], a.mask_symbols);
#pragma unroll
    for (int i = 0; i < TILE / 2; i++) {
        int words[ATTUNE_MASK_ROWS + 1];
#pragma unroll
        for (int j = 0; j < ATTUNE_MASK_ROWS; j++)
            words[j] = word_of_column(mine[i / 16][i % 2][j], i / 2);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (!attune_mask_of(b, h, q + i / 2 * 8 + i % 2 + a.q0, kv + half * 8, h_kv, a.mask_q_len, a.mask_kv_len,
                                0.0f, key[half], words, a.mask_symbols))
                s[i / 2 * 4 + half * 2 + i % 2] = FORBIDDEN;
    }
    return true;
#else
    return false;
#endif
}

__device__ __forceinline__ void forbid(float (&s)[TILE], const attune_cuda_arguments &a, const tile_desc &n, int q, int kv)
{
    if (n.flags & TILE_PARTIAL) {
        if (!forbid_rows(s, a, n, q, kv) && !forbid_terms(s, a, n, q, kv)) {
#pragma unroll
            for (int i = 0; i < TILE; i++)
                if (!pair_allowed(a, n, q + i / 4 * 8 + i % 2, kv + i / 2 % 2 * 8))
                    s[i] = FORBIDDEN;
        }
    }
#pragma unroll
    for (int i = 0; i < TILE; i++)
        if (kv + i / 2 % 2 * 8 >= a.kv_len || (HAVE_READS && q + i / 4 * 8 + i % 2 >= a.q_len))
            s[i] = FORBIDDEN;
}

/* Whether the warp's scores all lie where the cheaper form of their expression holds. */
__device__ __forceinline__ bool near_zero(const float (&s)[TILE], float scale)
{
#ifdef ATTUNE_SCORE_NEAR
    float top[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < TILE; i++)
        top[i % 2] = fmaxf(top[i % 2], fabsf(s[i]));
    return __all_sync(0xffffffffu, fmaxf(top[0], top[1]) * fabsf(scale) <= ATTUNE_SCORE_NEAR);
#else
    return ATTUNE_HAVE_SCORE_NEAR;
#endif
}

/* P of one pair, and P times the score's derivative. NEAR: in the cheaper form; kv0: some key of the thread. */
template <bool NEAR>
__device__ __forceinline__ void pair(float s, float lse, float &p, float &slope, const attune_cuda_arguments &a,
                                     const tile_desc &n, int q, int kv, int kv0, float factor, const shared_terms &key,
                                     const shared_terms &row)
{
#if ATTUNE_HAVE_SCORE
    int h_kv = n.h / (a.heads / a.kv_heads);
    float raw = s * a.scale, score, by;
#if ATTUNE_HAVE_SCORE_NEAR
    if constexpr (NEAR) {
        score = SCORE_OF(attune_score_near)(n.b, n.h, q, kv, h_kv, a.q_len, a.kv_len, raw SCORE_TERMS, a.score_symbols, kv0);
        by = SLOPE_OF(attune_score_slope_near)(n.b, n.h, q, kv, h_kv, a.q_len, a.kv_len, raw SLOPE_TERMS, a.score_symbols, kv0);
    } else
#endif
    {
        score = SCORE_OF(attune_score)(n.b, n.h, q, kv, h_kv, a.q_len, a.kv_len, raw SCORE_TERMS, a.score_symbols);
        by = SLOPE_OF(attune_score_slope)(n.b, n.h, q, kv, h_kv, a.q_len, a.kv_len, raw SLOPE_TERMS, a.score_symbols);
    }
    score = __float_as_uint(s) == __float_as_uint(FORBIDDEN) ? -ATTUNE_INF : score;
    p = exp2_fast(__fmaf_rn(score, factor, -lse));
    slope = HAVE_READS && !AT_ONCE ? p : p == 0.0f ? 0.0f : p * by;
#else
    p = slope = exp2_fast(__fmaf_rn(s, factor, -lse));
#endif
}

/* What the pairs of a tile share: of the thread's keys, and of two rows of each set. */
struct tile_terms {
    shared_terms key[2], mine[ROW_SETS][2];
};

__device__ __forceinline__ void share_tile(tile_terms &t, const attune_cuda_arguments &a, const tile_desc &n, int q, int kv)
{
    share_key(t.key[0], a, n.b, n.h, kv);
    share_key(t.key[1], a, n.b, n.h, kv + 8);
#pragma unroll
    for (int set = 0; set < ROW_SETS; set++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            share_row(t.mine[set][j], a, n.b, n.h, column_of_lane(q, set) + j);
}

/* The terms of a piece's rows. */
__device__ __forceinline__ void share_piece(shared_terms (&row)[2], const tile_terms &t, int piece)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const shared_terms &near = t.mine[0][j], &far = t.mine[ROW_SETS - 1][j];
#pragma unroll
        for (int w = 0; w < ATTUNE_SCORE_ROWS; w++)
            row[j].score[w] = word_of_column(piece < 8 ? near.score[w] : far.score[w], piece);
#pragma unroll
        for (int w = 0; w < ATTUNE_SLOPE_ROWS; w++)
            row[j].slope[w] = word_of_column(piece < 8 ? near.slope[w] : far.slope[w], piece);
    }
}

/* S becomes P, in 16 bits in p, and in s times the score's derivative. */
template <bool NEAR>
__device__ __forceinline__ void pairs(float (&s)[TILE], u32 (&p)[SHARE / 16][4], const attune_cuda_arguments &a,
                                      const tile_desc &n, int q, int kv, u32 lse, float factor)
{
    int column = thread_index() % 4 * 2;
    tile_terms terms;
    share_tile(terms, a, n, q, kv);
    /* Where the text is long the pairs rotate, so that a loop has eight of them. */
    constexpr int SOME = ATTUNE_SCORE_IS_LONG ? 8 : TILE;
#pragma unroll 1
    for (int first = 0; first < TILE; first += SOME) {
#pragma unroll
        for (int i = 0; i < SOME; i += 4) {
            int n_at = (first + i) / 4, at = q + (first + i) * 2;
            float2 l = load_two(lse + ((first + i) * 2 + column) * 4);
            float x[4];
            shared_terms row[2];
            share_piece(row, terms, n_at);
#pragma unroll
            for (int j = 0; j < 4; j++)
                pair<NEAR>(s[i + j], j % 2 ? l.y : l.x, x[j], s[i + j], a, n, at + j % 2, kv + j / 2 * 8, kv, factor,
                           terms.key[j / 2], row[j % 2]);
            p[i / 8][i / 4 % 2 * 2] = pack(x[0], x[1]);
            p[i / 8][i / 4 % 2 * 2 + 1] = pack(x[2], x[3]);
        }
        if constexpr (SOME < TILE) {
            float s_done[SOME];
            u32 p_done[4];
#pragma unroll
            for (int i = 0; i < SOME; i++)
                s_done[i] = s[i];
#pragma unroll
            for (int i = 0; i < 4; i++)
                p_done[i] = p[0][i];
#pragma unroll
            for (int i = 0; i < TILE; i++)
                s[i] = i + SOME < TILE ? s[i + SOME] : s_done[i + SOME - TILE];
#pragma unroll
            for (int i = 0; i < TILE / 2; i++)
                p[i / 4][i % 4] = i + 4 < TILE / 2 ? p[i / 4 + 1][i % 4] : p_done[i % 4];
        }
    }
}

/* kv: the thread's first key. */
__device__ __forceinline__ void probabilities(float (&s)[TILE], u32 (&p)[SHARE / 16][4],
                                              const attune_cuda_arguments &a, const tile_desc &n, int kv, u32 lse,
                                              float factor)
{
    int q = n.q + thread_index() % 4 * 2 + (WIDE ? (thread_index() / 128 - 1) * SHARE : 0);
    if (n.flags & TILE_MASKED)
        forbid(s, a, n, q, kv);
    if (ATTUNE_HAVE_SCORE_NEAR && near_zero(s, a.scale))
        pairs<true>(s, p, a, n, q, kv, lse, factor);
    else
        pairs<false>(s, p, a, n, q, kv, lse, factor);
}

/* dS = P * (dP - delta), in 16 bits. */
__device__ __forceinline__ void differences(const float (&s)[TILE], const float (&d_p)[TILE],
                                            u32 (&d_s)[SHARE / 16][4], u32 delta)
{
#pragma unroll
    for (int i = 0; i < TILE; i += 4) {
        float2 d = load_two(delta + (i * 2 + thread_index() % 4 * 2) * 4);
        d_s[i / 8][i / 4 % 2 * 2] = pack(s[i] * (d_p[i] - d.x), s[i + 1] * (d_p[i + 1] - d.y));
        d_s[i / 8][i / 4 % 2 * 2 + 1] = pack(s[i + 2] * (d_p[i + 2] - d.x), s[i + 3] * (d_p[i + 3] - d.y));
    }
}

#if ATTUNE_HAVE_READS
/* The same with what captures are due, of P alone in s. */
__device__ __forceinline__ void differences(float (&s)[TILE], float (&d_p)[TILE], u32 (&d_s)[SHARE / 16][4],
                                            read_sums<TILE> &sums, const reader &t, u32 delta)
{
    constexpr bool NEAR = READS_NEAR;
    int h_kv = t.h / (t.a.heads / t.a.kv_heads);
#pragma unroll
    for (int i = 0; i < TILE; i += 4) {
        float2 two = load_two(delta + (i * 2 + thread_index() % 4 * 2) * 4);
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float d = s[i + j] == 0.0f ? 0.0f : s[i + j] * (d_p[i + j] - (j % 2 ? two.y : two.x));
            float by = attune_score_slope(t.b, t.h, t.q + i * 2 + j % 2, t.kv + j / 2 * 8, h_kv, t.a.q_len, t.a.kv_len,
                                          0.0f, t.a.score_symbols);
            x[j] = d == 0.0f ? 0.0f : d * by;
            sum_reads<NEAR>(sums, t, i / 4, j, d, 0.0f);
            d_p[i + j] = d;
        }
        d_s[i / 8][i / 4 % 2 * 2] = pack(x[0], x[1]);
        d_s[i / 8][i / 4 % 2 * 2 + 1] = pack(x[2], x[3]);
    }
    add_pairs<NEAR>(d_p, s, t);
}

/* P, dS and what captures are due, where this depends on the scores: at once, for P would not tell them. */
template <bool NEAR>
__device__ __forceinline__ void pairs_at_once(float (&s)[TILE], float (&d_p)[TILE], u32 (&p)[SHARE / 16][4],
                                              u32 (&d_s)[SHARE / 16][4], read_sums<TILE> &sums, const reader &t,
                                              const tile_desc &n, u32 lse, u32 delta, int part)
{
    int column = thread_index() % 4 * 2;
    tile_terms terms;
    share_tile(terms, read_late(t.a), n, t.q, t.kv);
#pragma unroll
    for (int i = 0; i < TILE; i += 4) {
        float2 l = load_two(lse + (i * 2 + column) * 4), two;
        if constexpr (!ATTUNE_DELTA_LATE)
            two = load_two(delta + (i * 2 + column) * 4);
        float x[4], y[4];
        shared_terms row[2];
        share_piece(row, terms, i / 4);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            pair<NEAR>(s[i + j], j % 2 ? l.y : l.x, x[j], y[j], t.a, n, t.q + i * 2 + j % 2, t.kv + j / 2 * 8, t.kv,
                       ATTUNE_LOG2E, terms.key[j / 2], row[j % 2]);
            if (ATTUNE_DELTA_LATE && j == 0)
                two = load_two((u32)after((int)delta, x[0]) + (i * 2 + column) * 4);
            float difference = d_p[i + j] - (j % 2 ? two.y : two.x);
            d_p[i + j] = x[j] == 0.0f ? 0.0f : x[j] * difference;
            y[j] = x[j] == 0.0f ? 0.0f : y[j] * difference;
            sum_reads<NEAR>(sums, t, i / 4, j, d_p[i + j], s[i + j] * t.a.scale);
        }
        int to = (part * TILE + i) / 8;
        p[to][i / 4 % 2 * 2] = pack(x[0], x[1]);
        p[to][i / 4 % 2 * 2 + 1] = pack(x[2], x[3]);
        d_s[to][i / 4 % 2 * 2] = pack(y[0], y[1]);
        d_s[to][i / 4 % 2 * 2 + 1] = pack(y[2], y[3]);
    }
    add_pairs<NEAR>(d_p, s, t);
}

__device__ __forceinline__ void all_at_once(float (&s)[TILE], float (&d_p)[TILE], u32 (&p)[SHARE / 16][4],
                                            u32 (&d_s)[SHARE / 16][4], read_sums<TILE> &sums, const reader &t,
                                            const tile_desc &n, u32 lse, u32 delta, int part)
{
    if (n.flags & TILE_MASKED)
        forbid(s, t.a, n, t.q, t.kv);
    if (ATTUNE_HAVE_SCORE_NEAR && near_zero(s, t.a.scale))
        pairs_at_once<true>(s, d_p, p, d_s, sums, t, n, lse, delta, part);
    else
        pairs_at_once<false>(s, d_p, p, d_s, sums, t, n, lse, delta, part);
}
#endif

#endif
