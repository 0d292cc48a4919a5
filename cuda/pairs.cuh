/* SPDX-License-Identifier: MIT */
/*
 * The elementwise stages of the mma.sync backward kernels: S and dP, in the fragment layout of mma.cuh, are masked and
 * become P and dS. Their rows are of the outer tile, which the CTA keeps; their columns are of the inner tile, over
 * which it loops. With DK_DV the outer tile has keys and the inner one queries, else the reverse. Warps divide the
 * outer rows, and where SPLIT warps have the same rows these divide the columns.
 */
#ifndef ATTUNE_CUDA_PAIRS_CUH
#define ATTUNE_CUDA_PAIRS_CUH

#include "mma.cuh"
#include "terms.cuh"

constexpr bool DK_DV = config::DK_DV;
constexpr int OUTER_ROWS = DK_DV ? BLOCK_N : BLOCK_M, INNER_ROWS = DK_DV ? BLOCK_M : BLOCK_N;
constexpr int SPLIT = config::PADDING / 16;
constexpr int ROW_TILES = OUTER_ROWS * SPLIT / (16 * WARPS), KEYS = INNER_ROWS / SPLIT, N_TILES = KEYS / 8;
static_assert(ROW_TILES * 16 * WARPS == OUTER_ROWS * SPLIT, "a warp computes 16 rows or a multiple");
static_assert(N_TILES * 8 * SPLIT == INNER_ROWS && N_TILES % 2 == 0, "a warp computes 16 columns or a multiple");

constexpr int HELD_ROWS = DK_DV ? 1 : ROW_TILES * 2; /* rows whose lse and delta a thread holds */

typedef float scores[ROW_TILES][N_TILES][4];

/* A tile of the inner loop. */
struct inner_tile {
    int b, h, h_kv, first; /* first: the first query or key; -1 after the last tile */
    bool full;
};

/* Where a thread's pairs are. */
struct pair_coord {
    int b, h, h_kv;
    int row, column; /* its first row (outer tile), its first column (inner tile) */
};

__device__ __forceinline__ int query_of(const pair_coord &p, int r, int n, int i)
{
    return DK_DV ? p.column + n * 8 + i % 2 : p.row + r * 16 + i / 2 * 8;
}

__device__ __forceinline__ int key_of(const pair_coord &p, int r, int n, int i)
{
    return DK_DV ? p.row + r * 16 + i / 2 * 8 : p.column + n * 8 + i % 2;
}

#define FOR_PAIRS(r, n, i)                                                                                             \
    _Pragma("unroll") for (int r = 0; r < ROW_TILES; r++) _Pragma("unroll") for (int n = 0; n < N_TILES; n++)          \
        _Pragma("unroll") for (int i = 0; i < 4; i++)

/* Forbidden pairs: a raw score becomes -inf. With a score expression a bit marks the pair, since the expression must
 * not be evaluated with -inf. */
struct forbidden {
    u32 bits[(ROW_TILES * N_TILES * 4 + 31) / 32];
};

__device__ __forceinline__ void forbid(forbidden &f, scores &s, int r, int n, int i)
{
    int bit = (r * N_TILES + n) * 4 + i;
    if constexpr (HAVE_SCORE)
        f.bits[bit / 32] |= 1u << bit % 32;
    else
        s[r][n][i] = -ATTUNE_INF;
}

constexpr int COLUMN_SETS = (N_TILES + 7) / 8;
constexpr int MASK_WORDS = (config::MASK_KEYS > config::MASK_ROWS ? config::MASK_KEYS : config::MASK_ROWS) + 1;

/* By the interval of keys that the mask allows each query. */
__device__ __forceinline__ void forbid_outside_range(forbidden &f, scores &s, const attune_cuda_arguments &a,
                                                     const pair_coord &p)
{
    int h = p.h + a.h0, h_kv = h / a.mask_group, b = p.b + a.b0;
    if constexpr (DK_DV) {
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                int low, high;
                attune_mask_range(b, h, query_of(p, 0, n, j) + a.q0, h_kv, a.mask_q_len, a.mask_kv_len, &low, &high,
                                  a.mask_symbols);
#pragma unroll
                for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        int kv = key_of(p, r, n, half * 2 + j);
                        if (kv < low || kv >= high)
                            forbid(f, s, r, n, half * 2 + j);
                    }
            }
    } else {
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int low, high;
                attune_mask_range(b, h, query_of(p, r, 0, half * 2) + a.q0, h_kv, a.mask_q_len, a.mask_kv_len, &low,
                                  &high, a.mask_symbols);
#pragma unroll
                for (int n = 0; n < N_TILES; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        int kv = key_of(p, r, n, half * 2 + j);
                        if (kv < low || kv >= high)
                            forbid(f, s, r, n, half * 2 + j);
                    }
            }
    }
}

/* By the mask's terms of keys and of queries, computed once for each of the thread's rows and columns. */
__device__ __forceinline__ void forbid_by_terms(forbidden &f, scores &s, const attune_cuda_arguments &a,
                                                const pair_coord &p)
{
    int h = p.h + a.h0, h_kv = h / a.mask_group, b = p.b + a.b0;
    int row_words[ROW_TILES * 2][MASK_WORDS];
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++)
        if constexpr (DK_DV)
            attune_mask_key_terms(b, h, key_of(p, i / 2, 0, i % 2 * 2), h_kv, a.mask_q_len, a.mask_kv_len, row_words[i],
                                  a.mask_symbols);
        else
            attune_mask_row_terms(b, h, query_of(p, i / 2, 0, i % 2 * 2) + a.q0, h_kv, a.mask_q_len, a.mask_kv_len,
                                  row_words[i], a.mask_symbols);
    int lane_words[COLUMN_SETS][2][MASK_WORDS];
#pragma unroll
    for (int i = 0; i < COLUMN_SETS * 2; i++) {
        int at = column_of_lane(p.column, i / 2) + i % 2, *words = lane_words[i / 2][i % 2];
        if constexpr (DK_DV)
            attune_mask_row_terms(b, h, at + a.q0, h_kv, a.mask_q_len, a.mask_kv_len, words, a.mask_symbols);
        else
            attune_mask_key_terms(b, h, at, h_kv, a.mask_q_len, a.mask_kv_len, words, a.mask_symbols);
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int column[MASK_WORDS];
#pragma unroll
            for (int w = 0; w < (DK_DV ? config::MASK_ROWS : config::MASK_KEYS); w++)
                column[w] = word_of_column(lane_words[n / 8][j][w], n);
#pragma unroll
            for (int i = 0; i < ROW_TILES * 2; i++) {
                int r = i / 2, at = i % 2 * 2 + j;
                if (!attune_mask_of(b, h, query_of(p, r, n, at) + a.q0, key_of(p, r, n, at), h_kv, a.mask_q_len,
                                    a.mask_kv_len, 0.0f, DK_DV ? row_words[i] : column, DK_DV ? column : row_words[i],
                                    a.mask_symbols))
                    forbid(f, s, r, n, at);
            }
        }
}

__device__ __forceinline__ void forbid_masked(forbidden &f, scores &s, const attune_cuda_arguments &a,
                                              const pair_coord &p)
{
    if constexpr (config::HAVE_MASK_RANGE)
        forbid_outside_range(f, s, a, p);
    else if constexpr (config::MASK_KEYS > 0)
        forbid_by_terms(f, s, a, p);
    else {
        int h = p.h + a.h0, h_kv = h / a.mask_group, b = p.b + a.b0;
        FOR_PAIRS(r, n, i)
        {
            if (!attune_mask(b, h, query_of(p, r, n, i) + a.q0, key_of(p, r, n, i), h_kv, a.mask_q_len, a.mask_kv_len,
                             0.0f, a.mask_symbols))
                forbid(f, s, r, n, i);
        }
    }
}

/* The exponent applies the scale to raw scores (fold_factor), but not its sign: -inf must stay the smallest score. */
__device__ __forceinline__ void fold(scores &s, float scale)
{
    if (HAVE_SCORE || scale <= 0.0f) {
        float by = HAVE_SCORE ? scale : fold_sign(scale);
        FOR_PAIRS(r, n, i)
        {
            s[r][n][i] *= by;
        }
    }
}

/* 4: marks forbidden pairs, and on an edge tile those past the lengths. */
__device__ __forceinline__ void mask_pairs(forbidden &f, scores &s, const attune_cuda_arguments &a, const pair_coord &p,
                                           const inner_tile &t, bool edge)
{
#pragma unroll
    for (u32 i = 0; i < sizeof f.bits / 4; i++)
        f.bits[i] = 0;
    if constexpr (HAVE_MASK)
        if (!t.full)
            forbid_masked(f, s, a, p);
    if (edge)
        FOR_PAIRS(r, n, i)
        {
            if (key_of(p, r, n, i) >= a.kv_len || query_of(p, r, n, i) >= a.q_len)
                forbid(f, s, r, n, i);
        }
}

__device__ __forceinline__ float probability(float score, float lse, float factor)
{
    /* In float32 subtract first: where P is large, the difference is exact. */
    return exp2_fast(FLOAT32 ? (HAVE_SCORE ? score - lse : __fmaf_rn(score, factor, -lse)) * ATTUNE_LOG2E
                             : __fmaf_rn(score, factor, -lse));
}

constexpr bool HAVE_NEAR = HAVE_SCORE && config::SCORE_NEAR_BOUNDED;
/* Whether the near-zero forms of the expression and of its derivative hold for all scores of the warp. */
__device__ __forceinline__ bool near_zero(const scores &s)
{
    float largest = 0.0f;
    FOR_PAIRS(r, n, i)
    {
        largest = fmaxf(largest, fabsf(s[r][n][i]));
    }
    return __all_sync(0xffffffffu, largest <= config::SCORE_NEAR);
}

template <bool NEAR>
__device__ __forceinline__ float score_of(const attune_cuda_arguments &a, const pair_coord &p, int q, int kv, float s,
                                          const shared_terms &key, const shared_terms &row)
{
    if constexpr (HAVE_SCORE)
        return score_of_pair<NEAR>(a, p.b, p.h, q, kv, p.h_kv, s, key.score, row.score);
    else
        return s;
}

template <bool NEAR>
__device__ __forceinline__ float slope_of(const attune_cuda_arguments &a, const pair_coord &p, int q, int kv, float s,
                                          const shared_terms &key, const shared_terms &row)
{
    if constexpr (HAVE_SCORE)
        return slope_of_pair<NEAR>(a, p.b, p.h, q, kv, p.h_kv, s, key.slope, row.slope);
    else
        return 1.0f;
}

/* 5: P in s for dV, and in dp the gradient of the score expression's result, P (dP - delta). Capture gradients need the
 * raw score, which s keeps where the kernel computes no dV; the chain rule is then applied after them. */
template <bool NEAR>
__device__ __forceinline__ void normalise(float &s, float &dp, bool allowed, const attune_cuda_arguments &a,
                                          const pair_coord &p, int q, int kv, const shared_terms &key,
                                          const shared_terms &row, float lse, float delta, float factor, bool slow_path)
{
    float x = probability(score_of<NEAR>(a, p, q, kv, s, key, row), lse, factor);
    if (HAVE_SCORE && !allowed)
        x = 0.0f;
    float d = x == 0.0f ? 0.0f : x * (dp - delta);
    if (HAVE_SCORE && !config::HAVE_CAPTURE_GRADIENTS && d != 0.0f)
        d *= slope_of<NEAR>(a, p, q, kv, s, key, row);
    dp = d;
    if constexpr (DK_DV) {
        /* The slow path replaces a non-finite dO by 0 in the products. Its row has a non-finite delta, and must give
         * NaN in dV where P is not 0. */
        if (slow_path && x != 0.0f && !(fabsf(delta) < ATTUNE_INF))
            x = __int_as_float(0x7fffffff);
        s = x;
    }
}

/* The terms of a key, or of a query. */
template <bool KEY>
__device__ __forceinline__ void terms_of(shared_terms &t, const attune_cuda_arguments &a, const pair_coord &p, int kv,
                                         int q)
{
    if constexpr (KEY)
        share_key(t, a, p.b, p.h, kv);
    else
        share_row(t, a, p.b, p.h, q);
}

/* lse and delta are of the thread's rows; with DK_DV queries are columns, and theirs are in shared memory at `data`. */
template <bool NEAR>
__device__ __forceinline__ void normalise_all(scores &s, scores &dp, const forbidden &f, const attune_cuda_arguments &a,
                                              pair_coord p, const float (&lse)[HELD_ROWS],
                                              const float (&delta)[HELD_ROWS], u32 data, float factor, bool slow_path)
{
    data += (u32)(thread_index_remat() % 4) * 8;
    shared_terms outer_terms[ROW_TILES * 2];
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++)
        terms_of<DK_DV>(outer_terms[i], a, p, key_of(p, i / 2, 0, i % 2 * 2), query_of(p, i / 2, 0, i % 2 * 2));
    shared_terms lane_terms[COLUMN_SETS][2];
#pragma unroll
    for (int i = 0; i < COLUMN_SETS * 2; i++) {
        int at = column_of_lane(p.column, i / 2) + i % 2;
        terms_of<!DK_DV>(lane_terms[i / 2][i % 2], a, p, at, at);
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        float column[4];
        shared_terms column_terms[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int w = 0; w < (DK_DV ? config::SCORE_ROWS : config::SCORE_KEYS); w++)
                column_terms[j].score[w] = word_of_column(lane_terms[n / 8][j].score[w], n);
#pragma unroll
            for (int w = 0; w < (DK_DV ? config::SLOPE_ROWS : config::SLOPE_KEYS); w++)
                column_terms[j].slope[w] = word_of_column(lane_terms[n / 8][j].slope[w], n);
        }
        if constexpr (DK_DV) {
            load_shared_2(column[0], column[1], data + (u32)n * 32);
            load_shared_2(column[2], column[3], data + (u32)n * 32 + INNER_ROWS * 4);
        }
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int bit = (r * N_TILES + n) * 4 + i, of = r * 2 + i / 2;
                normalise<NEAR>(s[r][n][i], dp[r][n][i], !(f.bits[bit / 32] >> bit % 32 & 1), a, p,
                                query_of(p, r, n, i), key_of(p, r, n, i), DK_DV ? outer_terms[of] : column_terms[i % 2],
                                DK_DV ? column_terms[i % 2] : outer_terms[of],
                                DK_DV ? column[i % 2] : lse[DK_DV ? 0 : of],
                                DK_DV ? column[2 + i % 2] : delta[DK_DV ? 0 : of], factor, slow_path);
            }
        if constexpr (config::SERIAL_COLUMNS)
            p.column = after(p.column, dp[ROW_TILES - 1][n][3]);
    }
}

/* ------------------------------------------------------------------------------------------------------------ sums */

template <int TILES> __device__ __forceinline__ void clear(float (&sum)[ROW_TILES][TILES][4])
{
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int d = 0; d < TILES; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[r][d][i] = 0.0f;
}

template <int TILES> __device__ __forceinline__ bool is_finite(const float (&sum)[ROW_TILES][TILES][4])
{
    float probe = 0.0f; /* becomes NaN with the first element that is not finite */
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int d = 0; d < TILES; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                probe = __fmaf_rn(sum[r][d][i], 0.0f, probe);
    return probe == 0.0f;
}

/* 7: stores the thread's rows of a gradient, from column `from` on. */
template <int TILES, int DIM>
__device__ __forceinline__ void store(const float (&sum)[ROW_TILES][TILES][4], const attune_cuda_view &to, int b, int h,
                                      int first, int limit, int from, float scale)
{
    o_element *base = (o_element *)to.address + b * to.batch + h * to.head;
    bool paired = view_paired<o_element>(to);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first + r * 16 + half * 8;
            if (row >= limit)
                continue;
            o_element *row_base = base + row * to.row;
#pragma unroll
            for (int d = 0; d < TILES; d++) {
                int column = from + d * 8 + thread_index_remat() % 4 * 2;
                if (DIM % config::PADDING && from + d * 8 >= DIM)
                    continue;
                store_outputs(row_base + column, sum[r][d][2 * half] * scale, sum[r][d][2 * half + 1] * scale, paired);
            }
        }
}

#endif
