/* SPDX-License-Identifier: MIT */
/*
 * Backward with mma.sync and cp.async, every dtype and head dimension. One text makes two kernels. Each owns a tile of
 * one side, walks over the tiles of the other, and computes P and dS again, so that nothing is added to from two sides:
 *
 *     ATTUNE_OWN_KEYS   owns    walks over    S and dP                    gives
 *     1                 K, V    Q, dO         S^T = K Q^T, dP^T = V dO^T  dV += P^T dO, dK += dS^T Q
 *     0                 Q, dO   K, V          S = Q K^T, dP = dO V^T      dQ += dS K, and what captures are due
 *
 * A warp owns 16 rows of its side, or a multiple, and all columns of the other: P and dS go from registers to the next
 * product as they are (mma.cuh). With p = exp(score(s) - lse): dS = p (dP - delta) score'(s), and 0 where p is 0,
 * whatever stands there. The products multiply such a 0 with Q, K or dO: if a sum came out as no number, the workgroup
 * starts over, carefully: what is not finite counts as 0 in the last products, where p or dS say so already.
 */
#include "common.cuh"

constexpr bool OWN_KEYS = ATTUNE_OWN_KEYS;
constexpr int OWN = OWN_KEYS ? BLOCK_N : BLOCK_M, OTHER = OWN_KEYS ? BLOCK_M : BLOCK_N;
constexpr int ROW_TILES = OWN / (16 * ATTUNE_NUM_WARPS), KEYS = OTHER;
static_assert(ROW_TILES * 16 * ATTUNE_NUM_WARPS == OWN, "a warp owns 16 rows or a multiple");

#include "backward.cuh"
#include "mma.cuh"
#include "terms.cuh"

constexpr int AHEAD = STAGES > 1 ? STAGES - 1 : 1, D_TILES = PAD_D / 8;
constexpr int ROLES = OWN_KEYS && ATTUNE_APART ? 2 : 1;
/* The least tile of float32 reads what it owns where it lies, so that wide heads fit little shared memory. */
constexpr bool OWN_DIRECT = WIDE && OWN == 16;
constexpr u32 OWN_BYTES = OWN_DIRECT ? 0 : OWN * (PAD_D + PAD_DV) * sizeof(element);
constexpr u32 OTHER_BYTES = OTHER * (PAD_D + PAD_DV) * sizeof(element), ROW_BYTES = OWN_KEYS ? OTHER * 8 : 0;
/* The walk and the tiles that it found stand in shared memory: registers are for the sums. */
constexpr int NOTES = AHEAD > 5 ? 16 : AHEAD > 1 ? 8 : 4; /* a power of two, of at least AHEAD + 3 */
constexpr u32 WALK_BYTES = 256, NOTE_BYTES = round_up(NOTES * 16, 128);
constexpr u32 SECOND = OTHER * PAD_D * sizeof(element); /* where V or dO stands behind K or Q */

constexpr int ROWS_HELD = OWN_KEYS ? 1 : ROW_TILES * 2; /* whose lse and delta a thread keeps */

typedef float scores[ROW_TILES][N_TILES][4];

/* A tile of the other side, and where it stands. */
struct other {
    int b, h, first; /* first: -1 = there are no more */
    bool whole;
};

/* What a workgroup owns, and its walk, which its first thread walks. */
#if ATTUNE_OWN_KEYS
struct feed {
    column c;
    column_walk w;
};

__device__ __forceinline__ void feed_begin(feed &f, const attune_cuda_arguments &a, const attune_cuda_backward &back)
{
    f.c = column_place(a, back, (int)blockIdx.x, ROLES);
    column_begin(f.w, a, back, f.c);
}

__device__ __forceinline__ other feed_take(feed &f, const attune_cuda_arguments &a, const attune_cuda_backward &back)
{
    rows r = column_take(f.w, a, back, f.c);
    return {r.b, r.h, r.q, r.whole};
}
#else
struct feed {
    place p;
    walk w;
};

__device__ __forceinline__ void feed_begin(feed &f, const attune_cuda_arguments &a, const attune_cuda_backward &back)
{
    f.p = tile_place(a, (int)blockIdx.x);
    walk_begin(f.w, a, f.p);
}

__device__ __forceinline__ other feed_take(feed &f, const attune_cuda_arguments &a, const attune_cuda_backward &back)
{
    keys k = walk_take(f.w, a);
    return {f.p.b, f.p.h, k.kv, k.whole};
}
#endif
static_assert(sizeof(feed) <= WALK_BYTES);

/* Notes the next tile; by the first thread alone. */
__device__ __forceinline__ void feed_note(unsigned char *walk, int index, const attune_cuda_arguments &a,
                                          const attune_cuda_backward &back)
{
    other t = feed_take(*(feed *)walk, a, back);
    *(int4 *)(walk + WALK_BYTES + index % NOTES * 16) = make_int4(t.b, t.h, t.first, t.whole);
}

__device__ __forceinline__ other noted(const unsigned char *walk, int index)
{
    int b, h, first, whole;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b), "=r"(h), "=r"(first), "=r"(whole)
                 : "r"(shared_address(walk) + WALK_BYTES + (u32)(index % NOTES) * 16));
    return {b, h, first, (bool)whole};
}

template <int ROWS>
__device__ __forceinline__ void load_both(u32 to, const attune_cuda_view &x, const attune_cuda_view &y, int b, int h,
                                          int first, int limit)
{
    load_tile<ROWS, HEAD_DIM, CHUNKS_D>(to, (const element *)x.address + b * x.batch + h * x.head, x.row, first, limit,
                                        view_aligned(x));
    load_tile<ROWS, HEAD_DIM_V, CHUNKS_DV>(to + (u32)(ROWS * PAD_D * sizeof(element)),
                                           (const element *)y.address + b * y.batch + h * y.head, y.row, first, limit,
                                           view_aligned(y));
}

__device__ __forceinline__ void copy_float(u32 to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}

/* 1, 2: a tile of the other side, as one group of copies; with keys of one's own the rows' lse and delta too. */
__device__ __forceinline__ void load_other(u32 to, u32 row_data, const attune_cuda_arguments &a,
                                           const attune_cuda_backward &back, const other &t)
{
    if (t.first >= 0) {
        if constexpr (OWN_KEYS) {
            load_both<OTHER>(to, a.q, back.d_o, t.b, t.h, t.first, a.q_len);
            i64 row = ((i64)t.b * a.heads + t.h) * back.row_stride + t.first;
            for (int i = thread_here(); i < OTHER; i += THREADS) {
                copy_float(row_data + (u32)i * 4, (const float *)back.lse + row + i);
                copy_float(row_data + (u32)(OTHER + i) * 4, (const float *)back.delta + row + i);
            }
        } else
            load_both<OTHER>(to, a.k, a.v, t.b, t.h / (a.heads / a.kv_heads), t.first, a.kv_len);
    }
    copy_commit();
}

/* multiply_qk with rows of one's own from memory. The thread's first is `row`. */
template <int CHUNKS, int DIM>
__device__ __forceinline__ void multiply_direct(float (&s)[ROW_TILES][N_TILES][4], const attune_cuda_view &own, int b,
                                                int h, int row, int limit, u32 other)
{
    const element *base = (const element *)own.address + b * own.batch + h * own.head;
    int lane = thread_here() % 32;
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[0][n][i] = 0.0f;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
        u32 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = row + i % 2 * 8, column = (chunk + i / 2) * 4 + lane % 4;
            x[i] = at < limit && column < DIM ? __float_as_uint(base[at * own.row + column]) : 0u;
        }
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            u32 y[4];
            load_matrices(y, other + chunk_offset<CHUNKS>(n * 8 + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
            multiply_rounded(s[0][n], x, y[0], y[1]);
            multiply_rounded(s[0][n + 1], x, y[2], y[3]);
        }
    }
}

/* -------------------------------------------------------------------------------------------------------- the hook */

/* A thread's rows, of its own side and the other. */
struct spot {
    int b, h, h_kv;
    int own, column; /* the first of its own rows, the first of its columns */
};

__device__ __forceinline__ int query_of(const spot &p, int r, int n, int i)
{
    return OWN_KEYS ? p.column + n * 8 + i % 2 : p.own + r * 16 + i / 2 * 8;
}

__device__ __forceinline__ int key_of(const spot &p, int r, int n, int i)
{
    return OWN_KEYS ? p.own + r * 16 + i / 2 * 8 : p.column + n * 8 + i % 2;
}

#define FOR_PAIRS(r, n, i)                                                                                             \
    _Pragma("unroll") for (int r = 0; r < ROW_TILES; r++) _Pragma("unroll") for (int n = 0; n < N_TILES; n++)         \
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
    if constexpr (OWN_KEYS) {
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
    int own[ROW_TILES * 2][MASK_WORDS];
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++)
        if constexpr (OWN_KEYS)
            attune_mask_key_terms(b, h, key_of(p, i / 2, 0, i % 2 * 2), h_kv, a.mask_q_len, a.mask_kv_len, own[i],
                                  a.mask_symbols);
        else
            attune_mask_row_terms(b, h, query_of(p, i / 2, 0, i % 2 * 2) + a.q0, h_kv, a.mask_q_len, a.mask_kv_len,
                                  own[i], a.mask_symbols);
    int mine[COLUMN_SETS][2][MASK_WORDS];
#pragma unroll
    for (int i = 0; i < COLUMN_SETS * 2; i++) {
        int at = column_of_lane(p.column, i / 2) + i % 2, *words = mine[i / 2][i % 2];
        if constexpr (OWN_KEYS)
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
            for (int w = 0; w < (OWN_KEYS ? ATTUNE_MASK_ROWS : ATTUNE_MASK_KEYS); w++)
                column[w] = word_of_column(mine[n / 8][j][w], n);
#pragma unroll
            for (int i = 0; i < ROW_TILES * 2; i++) {
                int r = i / 2, at = i % 2 * 2 + j;
                if (!attune_mask_of(b, h, query_of(p, r, n, at) + a.q0, key_of(p, r, n, at), h_kv, a.mask_q_len,
                                    a.mask_kv_len, 0.0f, OWN_KEYS ? own[i] : column, OWN_KEYS ? column : own[i],
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
    if (!t.whole)
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
                                          const shared_terms &row, float lse, float delta, float factor, bool careful)
{
    float x = probability(score_of<NEAR>(a, p, q, kv, s, key, row), lse, factor);
    if (HAVE_SCORE && !allowed)
        x = 0.0f;
    float d = x == 0.0f ? 0.0f : x * (dp - delta);
    if (HAVE_SCORE && !ATTUNE_HAVE_READS && d != 0.0f)
        d *= slope_of<NEAR>(a, p, q, kv, s, key, row);
    dp = d;
    if constexpr (OWN_KEYS) {
        /* dO counts as 0 where it is not finite: what it would have given is no number. */
        if (careful && x != 0.0f && !(fabsf(delta) < ATTUNE_INF))
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
                                              const spot &p, const float (&lse)[ROWS_HELD],
                                              const float (&delta)[ROWS_HELD], u32 data, float factor, bool careful)
{
    data += (u32)(thread_here() % 4) * 8;
    shared_terms own[ROW_TILES * 2];
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++)
        share<OWN_KEYS>(own[i], a, p, key_of(p, i / 2, 0, i % 2 * 2), query_of(p, i / 2, 0, i % 2 * 2));
    shared_terms mine[COLUMN_SETS][2];
#pragma unroll
    for (int i = 0; i < COLUMN_SETS * 2; i++) {
        int at = column_of_lane(p.column, i / 2) + i % 2;
        share<!OWN_KEYS>(mine[i / 2][i % 2], a, p, at, at);
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        float column[4];
        shared_terms others[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int w = 0; w < (OWN_KEYS ? ATTUNE_SCORE_ROWS : ATTUNE_SCORE_KEYS); w++)
                others[j].score[w] = word_of_column(mine[n / 8][j].score[w], n);
#pragma unroll
            for (int w = 0; w < (OWN_KEYS ? ATTUNE_SLOPE_ROWS : ATTUNE_SLOPE_KEYS); w++)
                others[j].slope[w] = word_of_column(mine[n / 8][j].slope[w], n);
        }
        if constexpr (OWN_KEYS) {
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
                normalise<NEAR>(s[r][n][i], dp[r][n][i], !(f.bits[bit / 32] >> bit % 32 & 1), a, p, query_of(p, r, n, i),
                          key_of(p, r, n, i), OWN_KEYS ? own[of] : others[i % 2],
                          OWN_KEYS ? others[i % 2] : own[of], OWN_KEYS ? column[i % 2] : lse[OWN_KEYS ? 0 : of],
                          OWN_KEYS ? column[2 + i % 2] : delta[OWN_KEYS ? 0 : of], factor, careful);
            }
    }
}

#if ATTUNE_HAVE_READS
__device__ __forceinline__ float over_lanes(float x, int from, int to)
{
    for (int step = from; step <= to; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

#define READ(n_, r, n, i)                                                                                              \
    (dp[r][n][i] == 0.0f ? 0.0f                                                                                        \
                         : dp[r][n][i] * attune_read_##n_(p.b, p.h, query_of(p, r, n, i), key_of(p, r, n, i), p.h_kv, \
                                                          a.q_len, a.kv_len, s[r][n][i], a.score_symbols))
#define READ_ADD(n_, r, n, i, x)                                                                                       \
    do {                                                                                                               \
        i64 at_ = attune_read_##n_##_at(p.b, p.h, query_of(p, r, n, i), key_of(p, r, n, i), p.h_kv, a.q_len, a.kv_len, \
                                        s[r][n][i], a.score_symbols);                                                  \
        float x_ = x;                                                                                                  \
        if (at_ >= 0 && x_ != 0.0f)                                                                                    \
            sum_add(sums + at_ * ATTUNE_CUDA_SUM_WORDS, x_);                                                           \
    } while (0)

/* What one read of a capture is due, summed first over the pairs that read the same element. */
#define ADD_READ(n_, symbol, how)                                                                                      \
    if (u64 *sums = (u64 *)back.symbol_sums[symbol]) {                                                                 \
        if constexpr (how == 0) {                                                                                      \
            float x = 0.0f;                                                                                            \
            FOR_PAIRS(r, n, i) x += READ(n_, r, n, i);                                                                 \
            x = over_lanes(x, 1, 16);                                                                                  \
            if (lane == 0)                                                                                             \
                READ_ADD(n_, 0, 0, 0, x);                                                                              \
        } else if constexpr (how == 1) {                                                                               \
            _Pragma("unroll") for (int r = 0; r < ROW_TILES; r++) _Pragma("unroll") for (int i = 0; i < 4; i += 2)     \
            {                                                                                                          \
                float x = 0.0f;                                                                                        \
                _Pragma("unroll") for (int n = 0; n < N_TILES; n++) x += READ(n_, r, n, i) + READ(n_, r, n, i + 1);    \
                x = over_lanes(x, 1, 2);                                                                               \
                if (lane % 4 == 0)                                                                                     \
                    READ_ADD(n_, r, 0, i, x);                                                                          \
            }                                                                                                          \
        } else if constexpr (how == 2) {                                                                               \
            _Pragma("unroll") for (int n = 0; n < N_TILES; n++) _Pragma("unroll") for (int i = 0; i < 2; i++)          \
            {                                                                                                          \
                float x = 0.0f;                                                                                        \
                _Pragma("unroll") for (int r = 0; r < ROW_TILES; r++) x += READ(n_, r, n, i) + READ(n_, r, n, i + 2);  \
                x = over_lanes(x, 4, 16);                                                                              \
                if (lane < 4)                                                                                          \
                    READ_ADD(n_, 0, n, i, x);                                                                          \
            }                                                                                                          \
        } else                                                                                                         \
            FOR_PAIRS(r, n, i) READ_ADD(n_, r, n, i, READ(n_, r, n, i));                                               \
    }

/* What captures are due, then dS with respect to the score before its expression. */
__device__ __forceinline__ void chain(scores &s, scores &dp, const attune_cuda_arguments &a,
                                      const attune_cuda_backward &back, const spot &p, bool again)
{
    int lane = (int)threadIdx.x % 32;
    if (!again) {
        ATTUNE_READS(ADD_READ)
    }
    FOR_PAIRS(r, n, i)
    {
        if (dp[r][n][i] != 0.0f)
            dp[r][n][i] *= attune_score_slope(p.b, p.h, query_of(p, r, n, i), key_of(p, r, n, i), p.h_kv, a.q_len,
                                              a.kv_len, s[r][n][i], a.score_symbols);
    }
}
#endif

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* Zeros for what is not finite in a tile. */
__device__ __forceinline__ void clean(u32 tile)
{
    for (u32 i = threadIdx.x * 4; i < OTHER_BYTES; i += THREADS * 4) {
        u32 two;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(two) : "r"(tile + i));
        if constexpr (WIDE) {
            two = (two & 0x7f800000) == 0x7f800000 ? 0 : two;
        } else {
            constexpr u32 TOP = ATTUNE_DTYPE == ATTUNE_CUDA_F16 ? 0x7c00 : 0x7f80;
            two = (two & TOP) == TOP ? two & 0xffff0000 : two;
            two = (two >> 16 & TOP) == TOP ? two & 0xffff : two;
        }
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + i), "r"(two) : "memory");
    }
}

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

/* 7: the thread's rows of a gradient. */
template <int TILES, int DIM>
__device__ __forceinline__ void store(const float (&sum)[ROW_TILES][TILES][4], const attune_cuda_view &to, int b, int h,
                                      int first, int limit, float scale)
{
    element *base = (element *)to.address + b * to.batch + h * to.head;
    bool paired = ((to.address | (u64)(to.batch | to.head | to.row) * sizeof(element)) & (2 * sizeof(element) - 1)) == 0;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first + r * 16 + half * 8;
            if (row >= limit)
                continue;
            element *line = base + row * to.row;
#pragma unroll
            for (int d = 0; d < TILES; d++) {
                int column = d * 8 + (int)threadIdx.x % 4 * 2;
                if (DIM % 16 && d * 8 >= DIM)
                    continue;
                float x = sum[r][d][2 * half] * scale, y = sum[r][d][2 * half + 1] * scale;
                if constexpr (WIDE) {
                    if (paired)
                        *(float2 *)(line + column) = make_float2(x, y);
                    else
                        line[column] = (element)x, line[column + 1] = (element)y;
                } else {
                    u32 two = pack(x, y);
                    if (paired)
                        *(u32 *)(line + column) = two;
                    else
                        line[column] = (element)two, line[column + 1] = (element)(two >> 16);
                }
            }
        }
}

/* FIRST: dK, or dQ; BOTH or not FIRST: dV. Returns whether every sum is finite; only then, or if careful, it stores. */
template <bool FIRST, bool SECOND_TOO>
__device__ __forceinline__ bool run(const attune_cuda_arguments &a, const attune_cuda_backward &back,
                                    unsigned char *bytes, bool careful)
{
    u32 memory = shared_address(bytes), others = memory + OWN_BYTES, row_data = others + STAGES * OTHER_BYTES;
    unsigned char *walk = bytes + OWN_BYTES + STAGES * (OTHER_BYTES + ROW_BYTES);
    if (threadIdx.x == 0) {
        feed_begin(*(feed *)walk, a, back);
#pragma unroll 1
        for (int i = 0; i <= AHEAD + 1; i++)
            feed_note(walk, i, a, back);
    }
#if ATTUNE_OWN_KEYS
    column c = column_place(a, back, (int)blockIdx.x, ROLES);
    int b = uniform(c.b), h = uniform(c.h_kv), first = uniform(c.kv), limit = a.kv_len;
    const attune_cuda_view &own = a.k, &own_2 = a.v;
#else
    place c = tile_place(a, (int)blockIdx.x);
    int b = uniform(c.b), h = uniform(c.h), first = uniform(c.q), limit = a.q_len;
    const attune_cuda_view &own = a.q, &own_2 = back.d_o;
#endif
    if constexpr (!OWN_DIRECT)
        load_both<OWN>(memory, own, own_2, b, h, first, limit);
    int warp = thread_here() / 32 * (OWN / ATTUNE_NUM_WARPS), row = first + warp + thread_here() % 32 / 4;
    float factor = uniform(WIDE && !HAVE_SCORE ? (a.scale == 0.0f ? 1.0f : fabsf(a.scale)) : fold_factor(a.scale));

    float sum_1[FIRST ? ROW_TILES : 1][D_TILES][4], sum_2[ROW_TILES][DV_TILES][4];
    if constexpr (FIRST)
        clear(sum_1);
    if constexpr (SECOND_TOO)
        clear(sum_2);
    float lse[ROWS_HELD], delta[ROWS_HELD];
    if constexpr (!OWN_KEYS) {
#pragma unroll
        for (int i = 0; i < ROWS_HELD; i++) {
            i64 at = ((i64)b * a.heads + h) * back.row_stride + row + i / 2 * 16 + i % 2 * 8;
            lse[i] = ((const float *)back.lse)[at];
            delta[i] = ((const float *)back.delta)[at];
        }
    }

    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++)
        load_other(others + i * OTHER_BYTES, row_data + i * ROW_BYTES, a, back, noted(walk, (int)i));
    u32 stage = 0;
#pragma unroll 1
    for (int index = 0;; index++) {
        other now = noted(walk, index), next = noted(walk, index + AHEAD);
        if (now.first < 0)
            break;
        u32 tile = others + stage * OTHER_BYTES, data = row_data + stage * ROW_BYTES;
        copy_wait<AHEAD - 1>();
        __syncthreads();
        if constexpr (STAGES > 1) {
            u32 free = stage == 0 ? STAGES - 1 : stage - 1;
            load_other(others + free * OTHER_BYTES, row_data + free * ROW_BYTES, a, back, next);
        }
        if (threadIdx.x == 0)
            feed_note(walk, index + AHEAD + 2, a, back);
        scores s, dp;
        forbidden f_pairs;
        if constexpr (OWN_DIRECT) {
            multiply_direct<CHUNKS_D, HEAD_DIM>(s, own, b, h, row, limit, tile);
            if constexpr (FIRST)
                multiply_direct<CHUNKS_DV, HEAD_DIM_V>(dp, own_2, b, h, row, limit, tile + SECOND);
        } else {
            multiply_qk<CHUNKS_D, false>(s, memory, tile, warp);
            if constexpr (FIRST)
                multiply_qk<CHUNKS_DV, false>(dp, memory + (u32)(OWN * PAD_D * sizeof(element)), tile + SECOND, warp);
        }
        if constexpr (!FIRST)
            FOR_PAIRS(r, n, i) dp[r][n][i] = 0.0f;
        int lane = thread_here() % 32;
        spot p = {now.b, now.h, now.h / (a.heads / a.kv_heads), row, now.first + lane % 4 * 2};
        bool edge = first + OWN > limit || now.first + OTHER > (OWN_KEYS ? a.q_len : a.kv_len);
        fold(s, a.scale);
        mask_pairs(f_pairs, s, a, p, now, edge);
#if HAVE_NEAR
        if (near_zero(s))
            normalise_all<true>(s, dp, f_pairs, a, p, lse, delta, data, factor, careful);
        else
#endif
            normalise_all<false>(s, dp, f_pairs, a, p, lse, delta, data, factor, careful);
#if ATTUNE_HAVE_READS
        chain(s, dp, a, back, p, careful);
#endif
        if (careful) {
            __syncthreads();
            clean(tile);
            __syncthreads();
        }
        if constexpr (SECOND_TOO)
            multiply_pv<DV_TILES, CHUNKS_DV>(sum_2, s, tile + SECOND);
        if constexpr (FIRST)
            multiply_pv<D_TILES, CHUNKS_D>(sum_1, dp, tile);
        if constexpr (STAGES == 1) {
            __syncthreads();
            load_other(tile, data, a, back, next);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    /* The place once more, hidden from the compiler: in the loop its registers are needed. */
    int again;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(again));
#if ATTUNE_OWN_KEYS
    c = column_place(a, back, again, ROLES);
    b = c.b, h = c.h_kv, first = c.kv;
#else
    c = tile_place(a, again);
    b = c.b, h = c.h, first = c.q;
#endif
    row = first + thread_here() / 32 * (OWN / ATTUNE_NUM_WARPS) + thread_here() % 32 / 4;
    bool good = true;
    if constexpr (FIRST)
        good = is_finite(sum_1);
    if constexpr (SECOND_TOO)
        good = good && is_finite(sum_2);
    if (__syncthreads_or(!good) && !careful)
        return false;
    if constexpr (FIRST)
        store<D_TILES, HEAD_DIM>(sum_1, OWN_KEYS ? back.d_k : back.d_q, b, h, row, limit, a.scale);
    if constexpr (SECOND_TOO)
        store<DV_TILES, HEAD_DIM_V>(sum_2, back.d_v, b, h, row, limit, 1.0f);
    return true;
}

template <bool FIRST, bool SECOND_TOO>
__device__ __forceinline__ void run_until_good(const attune_cuda_arguments &a, const attune_cuda_backward &back,
                                               unsigned char *memory)
{
    bool careful = false;
#pragma unroll 1
    while (!run<FIRST, SECOND_TOO>(a, back, memory, careful))
        careful = true;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_backward_sm80(const __grid_constant__ attune_cuda_arguments a,
                         const __grid_constant__ attune_cuda_backward back)
{
    extern __shared__ __align__(128) unsigned char memory[];
    static_assert(planned(OWN_BYTES + STAGES * (OTHER_BYTES + ROW_BYTES) + WALK_BYTES + NOTE_BYTES, 0));
    if (back.redo && !*(const int *)back.redo)
        return;
    if constexpr (ROLES == 2) {
        if (blockIdx.x % 2)
            run_until_good<true, false>(a, back, memory);
        else
            run_until_good<false, true>(a, back, memory);
    } else
        run_until_good<true, OWN_KEYS>(a, back, memory);
}
