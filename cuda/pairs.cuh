/* SPDX-License-Identifier: MIT */
/*
 * What becomes of a warp's pairs in the backward kernels on mma.sync: S and dP, which lie in registers as mma.cuh says,
 * are masked and become P and dS. Rows of them are of the side that the CTA owns, columns of the other: with
 * DK_DV keys and rows of Q, else the reverse. The kernel that includes this defines DK_DV and OTHER.
 */
#ifndef ATTUNE_CUDA_PAIRS_CUH
#define ATTUNE_CUDA_PAIRS_CUH

#include "mma.cuh"
#include "terms.cuh"

constexpr int ROWS_HELD = DK_DV ? 1 : ROW_TILES * 2; /* whose lse and delta a thread keeps */

typedef float scores[ROW_TILES][N_TILES][4];

/* A tile of the other side, and where it stands. */
struct other {
    int b, h, h_kv, first; /* first: -1 = there are no more */
    bool full;
};

/* A thread's rows, of its own side and the other. */
struct spot {
    int b, h, h_kv;
    int consume, column; /* the first of its own rows, the first of its columns */
};

__device__ __forceinline__ int query_of(const spot &p, int r, int n, int i)
{
    return DK_DV ? p.column + n * 8 + i % 2 : p.consume + r * 16 + i / 2 * 8;
}

__device__ __forceinline__ int key_of(const spot &p, int r, int n, int i)
{
    return DK_DV ? p.consume + r * 16 + i / 2 * 8 : p.column + n * 8 + i % 2;
}

#define FOR_PAIRS(r, n, i)                                                                                             \
    _Pragma("unroll") for (int r = 0; r < ROW_TILES; r++) _Pragma("unroll") for (int n = 0; n < N_TILES; n++)          \
        _Pragma("unroll") for (int i = 0; i < 4; i++)

/* Forbidden pairs: of raw scores -inf, where a score expression must see them a bit. */
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
constexpr int MASK_WORDS = (ATTUNE_MASK_KEYS > ATTUNE_MASK_ROWS ? ATTUNE_MASK_KEYS : ATTUNE_MASK_ROWS) + 1;

#if ATTUNE_HAVE_MASK || ATTUNE_HAVE_MASK_RANGE
__device__ __forceinline__ void forbid_masked(forbidden &f, scores &s, const attune_cuda_arguments &a, const spot &p)
{
    int h = p.h + a.h0, h_kv = h / a.mask_group, b = p.b + a.b0;
#if ATTUNE_HAVE_MASK_RANGE
    /* An interval for each row of q. */
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
#elif ATTUNE_MASK_KEYS
    /* What the keys and the rows share, once for each of the thread's own rows and of its columns. */
    int consume[ROW_TILES * 2][MASK_WORDS];
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++)
        if constexpr (DK_DV)
            attune_mask_key_terms(b, h, key_of(p, i / 2, 0, i % 2 * 2), h_kv, a.mask_q_len, a.mask_kv_len, consume[i],
                                  a.mask_symbols);
        else
            attune_mask_row_terms(b, h, query_of(p, i / 2, 0, i % 2 * 2) + a.q0, h_kv, a.mask_q_len, a.mask_kv_len,
                                  consume[i], a.mask_symbols);
    int mine[COLUMN_SETS][2][MASK_WORDS];
#pragma unroll
    for (int i = 0; i < COLUMN_SETS * 2; i++) {
        int at = column_of_lane(p.column, i / 2) + i % 2, *words = mine[i / 2][i % 2];
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
            for (int w = 0; w < (DK_DV ? ATTUNE_MASK_ROWS : ATTUNE_MASK_KEYS); w++)
                column[w] = word_of_column(mine[n / 8][j][w], n);
#pragma unroll
            for (int i = 0; i < ROW_TILES * 2; i++) {
                int r = i / 2, at = i % 2 * 2 + j;
                if (!attune_mask_of(b, h, query_of(p, r, n, at) + a.q0, key_of(p, r, n, at), h_kv, a.mask_q_len,
                                    a.mask_kv_len, 0.0f, DK_DV ? consume[i] : column, DK_DV ? column : consume[i],
                                    a.mask_symbols))
                    forbid(f, s, r, n, at);
            }
        }
#else
    FOR_PAIRS(r, n, i)
    {
        if (!attune_mask(b, h, query_of(p, r, n, i) + a.q0, key_of(p, r, n, i), h_kv, a.mask_q_len, a.mask_kv_len, 0.0f,
                         a.mask_symbols))
            forbid(f, s, r, n, i);
    }
#endif
}
#endif

/* The scale stays out of raw scores: fold_factor. Its sign must not, or -inf were not the least. */
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

/* 4: pairs that are not allowed. */
__device__ __forceinline__ void mask_pairs(forbidden &f, scores &s, const attune_cuda_arguments &a, const spot &p,
                                           const other &t, bool edge)
{
#pragma unroll
    for (u32 i = 0; i < sizeof f.bits / 4; i++)
        f.bits[i] = 0;
#if ATTUNE_HAVE_MASK || ATTUNE_HAVE_MASK_RANGE
    if (!t.full)
        forbid_masked(f, s, a, p);
#endif
    if (edge)
        FOR_PAIRS(r, n, i)
        {
            if (key_of(p, r, n, i) >= a.kv_len || query_of(p, r, n, i) >= a.q_len)
                forbid(f, s, r, n, i);
        }
}

__device__ __forceinline__ float probability(float score, float lse, float factor)
{
    /* In float32 the difference first: it is exact where it matters. */
    return exp2_fast(WIDE ? (HAVE_SCORE ? score - lse : __fmaf_rn(score, factor, -lse)) * ATTUNE_LOG2E
                          : __fmaf_rn(score, factor, -lse));
}

#if ATTUNE_HAVE_SCORE && defined(ATTUNE_SCORE_NEAR)
#define HAVE_NEAR 1
/* Whether the warp's scores all lie where the cheaper forms of their expression and its derivative hold. */
__device__ __forceinline__ bool near_zero(const scores &s)
{
    float top = 0.0f;
    FOR_PAIRS(r, n, i)
    {
        top = fmaxf(top, fabsf(s[r][n][i]));
    }
    return __all_sync(0xffffffffu, top <= ATTUNE_SCORE_NEAR);
}
#endif

template <bool NEAR>
__device__ __forceinline__ float score_of(const attune_cuda_arguments &a, const spot &p, int q, int kv, float s,
                                          const shared_terms &key, const shared_terms &row)
{
#if HAVE_NEAR
    if constexpr (NEAR)
        return SCORE_OF(attune_score_near)(p.b, p.h, q, kv, p.h_kv, a.q_len, a.kv_len, s SCORE_TERMS, a.score_symbols);
#endif
#if ATTUNE_HAVE_SCORE
    return SCORE_OF(attune_score)(p.b, p.h, q, kv, p.h_kv, a.q_len, a.kv_len, s SCORE_TERMS, a.score_symbols);
#else
    return s;
#endif
}

template <bool NEAR>
__device__ __forceinline__ float slope_of(const attune_cuda_arguments &a, const spot &p, int q, int kv, float s,
                                          const shared_terms &key, const shared_terms &row)
{
#if HAVE_NEAR
    if constexpr (NEAR)
        return SLOPE_OF(attune_score_slope_near)(p.b, p.h, q, kv, p.h_kv, a.q_len, a.kv_len, s SLOPE_TERMS,
                                                 a.score_symbols);
#endif
#if ATTUNE_HAVE_SCORE
    return SLOPE_OF(attune_score_slope)(p.b, p.h, q, kv, p.h_kv, a.q_len, a.kv_len, s SLOPE_TERMS, a.score_symbols);
#else
    return 1.0f;
#endif
}

/* 5: P, and dS with respect to what the score expression gave. Where P is not wanted and the score is, s keeps it. */
template <bool NEAR>
__device__ __forceinline__ void normalise(float &s, float &dp, bool allowed, const attune_cuda_arguments &a,
                                          const spot &p, int q, int kv, const shared_terms &key,
                                          const shared_terms &row, float lse, float delta, float factor, bool recomputed)
{
    float x = probability(score_of<NEAR>(a, p, q, kv, s, key, row), lse, factor);
    if (HAVE_SCORE && !allowed)
        x = 0.0f;
    float d = x == 0.0f ? 0.0f : x * (dp - delta);
    if (HAVE_SCORE && !ATTUNE_HAVE_READS && d != 0.0f)
        d *= slope_of<NEAR>(a, p, q, kv, s, key, row);
    dp = d;
    if constexpr (DK_DV) {
        /* dO counts as 0 where it is not finite: what it would have given is no number. */
        if (recomputed && x != 0.0f && !(fabsf(delta) < ATTUNE_INF))
            x = __int_as_float(0x7fffffff);
        s = x;
    }
}

/* What a key, or a row, shares. */
template <bool KEY>
__device__ __forceinline__ void share(shared_terms &t, const attune_cuda_arguments &a, const spot &p, int kv, int q)
{
    if constexpr (KEY)
        share_key(t, a, p.b, p.h, kv);
    else
        share_row(t, a, p.b, p.h, q);
}

/* lse and delta: of the thread's own rows. With keys of its own those of the columns stand at `data`. */
template <bool NEAR>
__device__ __forceinline__ void normalise_all(scores &s, scores &dp, const forbidden &f, const attune_cuda_arguments &a,
                                              spot p, const float (&lse)[ROWS_HELD],
                                              const float (&delta)[ROWS_HELD], u32 data, float factor, bool recomputed)
{
    data += (u32)(thread_index_remat() % 4) * 8;
    shared_terms consume[ROW_TILES * 2];
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++)
        share<DK_DV>(consume[i], a, p, key_of(p, i / 2, 0, i % 2 * 2), query_of(p, i / 2, 0, i % 2 * 2));
    shared_terms mine[COLUMN_SETS][2];
#pragma unroll
    for (int i = 0; i < COLUMN_SETS * 2; i++) {
        int at = column_of_lane(p.column, i / 2) + i % 2;
        share<!DK_DV>(mine[i / 2][i % 2], a, p, at, at);
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        float column[4];
        shared_terms others[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int w = 0; w < (DK_DV ? ATTUNE_SCORE_ROWS : ATTUNE_SCORE_KEYS); w++)
                others[j].score[w] = word_of_column(mine[n / 8][j].score[w], n);
#pragma unroll
            for (int w = 0; w < (DK_DV ? ATTUNE_SLOPE_ROWS : ATTUNE_SLOPE_KEYS); w++)
                others[j].slope[w] = word_of_column(mine[n / 8][j].slope[w], n);
        }
        if constexpr (DK_DV) {
            asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                         : "=f"(column[0]), "=f"(column[1])
                         : "r"(data + (u32)n * 32));
            asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                         : "=f"(column[2]), "=f"(column[3])
                         : "r"(data + (u32)n * 32 + OTHER * 4));
        }
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int bit = (r * N_TILES + n) * 4 + i, of = r * 2 + i / 2;
                normalise<NEAR>(s[r][n][i], dp[r][n][i], !(f.bits[bit / 32] >> bit % 32 & 1), a, p,
                                query_of(p, r, n, i), key_of(p, r, n, i), DK_DV ? consume[of] : others[i % 2],
                                DK_DV ? others[i % 2] : consume[of], DK_DV ? column[i % 2] : lse[DK_DV ? 0 : of],
                                DK_DV ? column[2 + i % 2] : delta[DK_DV ? 0 : of], factor, recomputed);
            }
        if constexpr (IN_TURN)
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
    float none = 0.0f; /* NaN once an element is not finite */
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int d = 0; d < TILES; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                none = __fmaf_rn(sum[r][d][i], 0.0f, none);
    return none == 0.0f;
}

/* 7: the thread's rows of a gradient, from a column on. */
template <int TILES, int DIM>
__device__ __forceinline__ void store(const float (&sum)[ROW_TILES][TILES][4], const attune_cuda_view &to, int b, int h,
                                      int first, int limit, int from, float scale)
{
    element *base = (element *)to.address + b * to.batch + h * to.head;
    bool paired =
        ((to.address | (u64)(to.batch | to.head | to.row) * sizeof(element)) & (2 * sizeof(element) - 1)) == 0;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first + r * 16 + half * 8;
            if (row >= limit)
                continue;
            element *linear_score = base + row * to.row;
#pragma unroll
            for (int d = 0; d < TILES; d++) {
                int column = from + d * 8 + thread_index_remat() % 4 * 2;
                if (DIM % ATTUNE_PADDING && from + d * 8 >= DIM)
                    continue;
                float x = sum[r][d][2 * half] * scale, y = sum[r][d][2 * half + 1] * scale;
                if constexpr (WIDE) {
                    if (paired)
                        *(float2 *)(linear_score + column) = make_float2(x, y);
                    else
                        linear_score[column] = (element)x, linear_score[column + 1] = (element)y;
                } else {
                    u32 two = pack(x, y);
                    if (paired)
                        *(u32 *)(linear_score + column) = two;
                    else
                        linear_score[column] = (element)two, linear_score[column + 1] = (element)(two >> 16);
                }
            }
        }
}

#endif
