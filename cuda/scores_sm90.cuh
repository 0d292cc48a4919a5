/* SPDX-License-Identifier: MIT */
/*
 * Hopper's forward kernel: what becomes of products before the softmax, the score and mask hook (stage 4). A thread
 * holds, of each 16 x 8 fragment of S, rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next.
 */
#ifndef ATTUNE_CUDA_SCORES_SM90_CUH
#define ATTUNE_CUDA_SCORES_SM90_CUH

#include "producer_sm90.cuh"

/*
 * f(some, columns) for SOME scores after the others, which rotate: a loop has SOME of them, and compiles in a
 * fraction of the time. columns: how far they are from the first.
 */
template <int SOME, int COUNT, typename function>
__device__ __forceinline__ void rotate_chunks(float (&s)[COUNT], function f)
{
    static_assert(COUNT % SOME == 0, "a whole number of turns");
#pragma unroll 1
    for (int n = 0; n < COUNT; n += SOME) {
        float some[SOME];
#pragma unroll
        for (int i = 0; i < SOME; i++)
            some[i] = s[i];
        f(some, n * 2);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            s[i] = i + SOME < COUNT ? s[i + SOME] : some[i + SOME - COUNT];
    }
}

constexpr int CHUNK = 8, FIRST_CHUNK = 16;
/* Wide heads leave too few registers to have all scores at once beside terms of keys and two forms of a score; and so do
 * wide values beside narrow heads, whose soft-caps spilled. */
#if ATTUNE_SCORE_KEYS && defined ATTUNE_SCORE_NEAR
constexpr bool REGISTERS_FULL = Q_BUFFERS == 1;
#else
constexpr bool REGISTERS_FULL = HEAD_DIM <= 64 && HEAD_DIM_V > 192;
#endif
constexpr int SCORE_CHUNK = ATTUNE_SCORE_IS_LONG || ATTUNE_HAVE_SCORE_LINE || REGISTERS_FULL ? CHUNK : BLOCK_N / 2;
/* Where rows mostly have ranges, pairs are seldom looked at; terms make them short. */
constexpr bool RARE_PAIRS = ATTUNE_HAVE_MASK_RANGE && !ATTUNE_MASK_KEYS;
constexpr int MASK_CHUNK = ATTUNE_MASK_IS_LONG || RARE_PAIRS ? CHUNK : BLOCK_N / 2;

/* The largest product of the thread, in magnitude. */
template <int COUNT> __device__ __forceinline__ float magnitude(const float (&s)[COUNT])
{
    float top[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        top[i % 2] = fmaxf(top[i % 2], fabsf(s[i]));
    return fmaxf(top[0], top[1]);
}

/* Whether the warp's scores all lie where the cheaper form of their expression holds. */
template <int COUNT> __device__ __forceinline__ bool near_zero(const float (&s)[COUNT], float scale)
{
#ifdef ATTUNE_SCORE_NEAR
    return __all_sync(0xffffffffu, magnitude(s) * fabsf(scale) <= ATTUNE_SCORE_NEAR);
#else
    return true;
#endif
}

/* A score that is a line in the product and in kv, in one row: factor * score + base + slope * (kv - origin). */
struct linear_score {
    float factor, slope, base;
    int origin;
};

/* Of the thread's two rows. False where an infinity would make of these sums what it does not make of the text's. */
__device__ __forceinline__ bool find_linear_scores(linear_score (&linear_scores)[2], const attune_cuda_arguments &a, const tile_coord &p, int row)
{
    bool finite = false;
#if ATTUNE_HAVE_SCORE && ATTUNE_HAVE_SCORE_LINE
    finite = true;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        linear_score &l = linear_scores[half];
        attune_score_line(p.b, p.h, row + half * 8, p.h_kv, a.q_len, a.kv_len, &l.factor, &l.slope, &l.base, &l.origin,
                          a.score_symbols);
        l.factor *= a.scale;
        finite = finite && fabsf(l.factor) + fabsf(l.slope) + fabsf(l.base) < ATTUNE_INF;
    }
    finite = __all_sync(0xffffffffu, finite);
#endif
    return finite;
}

template <int COUNT> __device__ __forceinline__ void apply_linear_scores(float (&s)[COUNT], const linear_score (&linear_scores)[2], int column)
{
#if ATTUNE_HAVE_SCORE && ATTUNE_HAVE_SCORE_LINE
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const linear_score &l = linear_scores[half];
        float from = ATTUNE_SCORE_LINE_SLOPED ? __fmaf_rn(l.slope, (float)(column - l.origin), l.base) : l.base;
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++) {
            float &x = s[i / 2 * 4 + half * 2 + i % 2];
            float to = ATTUNE_SCORE_LINE_SLOPED ? __fmaf_rn((float)(i / 2 * 8 + i % 2), l.slope, from) : from;
            x = __fmaf_rn(x, l.factor, to);
        }
    }
#endif
}

/*
 * outer * tanh(inner * score): x times a polynomial in x * x, of the product itself. With two coefficients it is within
 * 3.5e-8 of tanh where |inner * score| <= 0.16, with four within 1.4e-8 up to 0.5; past that, tanh.
 */
template <int COUNT> __device__ __forceinline__ void apply_cap(float (&s)[COUNT], float scale)
{
#if ATTUNE_HAVE_SCORE && defined ATTUNE_SCORE_CAP_INNER
    float inner = ATTUNE_SCORE_CAP_INNER * scale;
#ifndef ATTUNE_APPROXIMATE_TANH
    float two = inner * inner, c0 = ATTUNE_SCORE_CAP_OUTER * inner;
    float top = two > 0x1p-24f && two < 0x1p24f ? magnitude(s) * fabsf(inner) : ATTUNE_INF;
    if (__all_sync(0xffffffffu, top <= 0.16f)) {
        float c1 = c0 * two * -0.33331832f, c2 = c0 * two * (two * 0.13143139f);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float y = s[i] * s[i];
            s[i] *= __fmaf_rn(__fmaf_rn(y, c2, c1), y, c0);
        }
        return;
    }
    if (__all_sync(0xffffffffu, top <= 0.5f)) {
        float c1 = c0 * two, c2 = c1 * two, c3 = c2 * two, c4 = c3 * two;
        c1 *= -0.33333072f, c2 *= 0.13324828f, c3 *= -0.052989241f, c4 *= 0.017141320f;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float y = s[i] * s[i];
            s[i] *= __fmaf_rn(__fmaf_rn(__fmaf_rn(__fmaf_rn(y, c4, c3), y, c2), y, c1), y, c0);
        }
        return;
    }
#endif
    constexpr int SOME = COUNT % FIRST_CHUNK ? CHUNK : FIRST_CHUNK;
    rotate_chunks<SOME>(s, [&](float(&some)[SOME], int) {
#pragma unroll
        for (int i = 0; i < SOME; i++)
            some[i] = ATTUNE_SCORE_CAP_OUTER * attune_tanh(inner * some[i]);
    });
#endif
}

/* The cheaper form of the expression; its own text where it has none. */
template <int COUNT>
__device__ __forceinline__ void apply_near(float (&s)[COUNT], const attune_cuda_arguments &a, const tile_coord &p, int row,
                                           int column)
{
#if ATTUNE_HAVE_SCORE
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int q = row + i / 2 % 2 * 8, kv = column + i / 4 * 8 + i % 2;
#if ATTUNE_HAVE_SCORE_NEAR
        s[i] = attune_score_near(p.b, p.h, q, kv, p.h_kv, a.q_len, a.kv_len, s[i] * a.scale, a.score_symbols, column);
#else
        s[i] = attune_score(p.b, p.h, q, kv, p.h_kv, a.q_len, a.kv_len, s[i] * a.scale, a.score_symbols);
#endif
    }
#endif
}

/* The expression's own text, behind another form: seldom. */
template <int COUNT>
__device__ __forceinline__ void apply_text(float (&s)[COUNT], const attune_cuda_arguments &a, const tile_coord &p, int row,
                                           int column)
{
#if ATTUNE_HAVE_SCORE
    rotate_chunks<CHUNK>(s, [&](float(&some)[CHUNK], int columns) {
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            some[i] = attune_score(p.b, p.h, row + i / 2 % 2 * 8, column + columns + i / 4 * 8 + i % 2, p.h_kv, a.q_len,
                                   a.kv_len, some[i] * a.scale, a.score_symbols);
    });
#endif
}

#if ATTUNE_HAVE_MASK
__device__ __forceinline__ bool mask_allows(const attune_cuda_arguments &a, const tile_coord &p, int q, int kv)
{
    int h = p.h + a.h0;
    return attune_mask(p.b + a.b0, h, q + a.q0, kv, h / a.mask_group, a.mask_q_len, a.mask_kv_len, 0.0f,
                       a.mask_symbols);
}
#endif

/* The keys from low to before high that row q may attend. */
__device__ __forceinline__ void mask_range(const attune_cuda_arguments &a, const tile_coord &p, int q, int &low, int &high)
{
#if ATTUNE_HAVE_MASK_RANGE
    int h = p.h + a.h0;
    attune_mask_range(p.b + a.b0, h, q + a.q0, h / a.mask_group, a.mask_q_len, a.mask_kv_len, &low, &high,
                      a.mask_symbols);
#endif
}

/* Whether ranges hold for this mask's captures; known when there is no other way. */
__device__ __forceinline__ bool mask_has_ranges(const attune_cuda_arguments &a)
{
    return ATTUNE_HAVE_MASK_RANGE && (!ATTUNE_HAVE_MASK || a.mask_ranges);
}

/* One pair of a partial block. */
__device__ __forceinline__ bool pair_allowed(const attune_cuda_arguments &a, const tile_coord &p, int q, int kv)
{
    if (mask_has_ranges(a)) {
        int low = 0, high = 0;
        mask_range(a, p, q, low, high);
        return kv >= low && kv < high;
    }
#if ATTUNE_HAVE_MASK
    return mask_allows(a, p, q, kv);
#else
    return true;
#endif
}

/* Forbids what lies outside [low, high) in one half of the thread's elements; both count from its first column. */
__device__ __forceinline__ void forbid_outside(float (&s)[BLOCK_N / 2], int half, int low, int high)
{
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (n * 8 + i < low || n * 8 + i >= high)
                s[n * 4 + half * 2 + i] = -ATTUNE_INF;
}

/* Forbids pair by pair. */
template <int COUNT>
__device__ __forceinline__ void forbid_pairs(float (&s)[COUNT], const attune_cuda_arguments &a, const tile_coord &p, int row,
                                             int column)
{
#if ATTUNE_HAVE_MASK
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (!mask_allows(a, p, row + i / 2 % 2 * 8, column + i / 4 * 8 + i % 2))
            s[i] = -ATTUNE_INF;
#endif
}

#if ATTUNE_SCORE_KEYS
/* The scores, of the terms of rows and keys. */
template <bool NEAR, int COUNT>
__device__ __forceinline__ void score_terms(float (&s)[COUNT], const attune_cuda_arguments &a, const tile_coord &p, int row,
                                            int column, const row_terms (&rows)[2], u32 terms)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float &x = s[i];
        int half = i / 2 % 2, n = i / 4 * 8 + i % 2, key[ATTUNE_SCORE_KEYS];
        key_terms_load<0>(key, terms, (int)threadIdx.x % 4 * 2 + n);
#if ATTUNE_HAVE_SCORE_NEAR
        if constexpr (NEAR)
            x = attune_score_near_of(p.b, p.h, row + half * 8, column + n, p.h_kv, a.q_len, a.kv_len, x * a.scale, key,
                                     rows[half].score, a.score_symbols, column);
        else
#endif
            x = attune_score_of(p.b, p.h, row + half * 8, column + n, p.h_kv, a.q_len, a.kv_len, x * a.scale, key,
                                rows[half].score, a.score_symbols);
    }
}
#endif

#if ATTUNE_MASK_KEYS
template <int COUNT>
__device__ __forceinline__ void mask_terms(float (&s)[COUNT], const attune_cuda_arguments &a, const tile_coord &p, int row,
                                           int column, const row_terms (&rows)[2], u32 terms)
{
    int h = p.h + a.h0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int half = i / 2 % 2, n = i / 4 * 8 + i % 2, key[ATTUNE_MASK_KEYS];
        key_terms_load<ATTUNE_SCORE_KEYS>(key, terms, (int)threadIdx.x % 4 * 2 + n);
        if (!attune_mask_of(p.b + a.b0, h, row + half * 8 + a.q0, column + n, h / a.mask_group, a.mask_q_len,
                            a.mask_kv_len, 0.0f, key, rows[half].mask, a.mask_symbols))
            s[i] = -ATTUNE_INF;
    }
}
#endif

/* The terms of a tile's keys, once they are there. r: the tile's; `turns` has a bit for each stage: the phase to wait
 * for, where not every tile has terms. */
__device__ __forceinline__ u32 wait_terms(const attune_cuda_arguments &a, unsigned char *memory, int flags,
                                          const pipeline_state &r, u32 &phases)
{
    if (!KEY_TERMS || !has_terms(a, flags))
        return 0;
    barrier_wait(&((staged *)(memory + STAGED_OFFSET))->full[r.stage], ATTUNE_SCORE_KEYS ? r.phase : phases >> r.stage & 1);
    phases ^= 1u << r.stage;
    return shared_address(memory) + STAGED_OFFSET + sizeof(staged) + r.stage * TERM_BYTES;
}

__device__ __forceinline__ void leave_terms(const attune_cuda_arguments &a, unsigned char *memory, int flags,
                                            const pipeline_state &r)
{
    if (KEY_TERMS && has_terms(a, flags))
        warp_arrive(&((staged *)(memory + STAGED_OFFSET))->empty[r.stage]);
}

/* 4: the score and mask hook. FIRST: of a row's first keys, which are few among all; row: the thread's first row of q;
 * lined: the scores of both rows are lines; terms: those of the keys. */
template <bool FIRST>
__device__ __forceinline__ void hook(float (&s)[BLOCK_N / 2], const attune_cuda_arguments &a, const tile_coord &p, int kv,
                                     int flags, int row, const linear_score (&linear_scores)[2], bool linear, u32 terms)
{
    constexpr int SOME = !FIRST || SCORE_CHUNK == CHUNK ? SCORE_CHUNK : BLOCK_N / 2 % FIRST_CHUNK ? CHUNK : FIRST_CHUNK;
    int column = kv + (int)threadIdx.x % 4 * 2;
#if ATTUNE_KEY_TERMS
    row_terms rows[2];
    if (has_terms(a, flags))
#pragma unroll
        for (int half = 0; half < 2; half++)
            row_terms_make(rows[half], a, {p.b, p.h, p.h_kv, row + half * 8}, flags & TILE_PARTIAL);
#endif
#if ATTUNE_HAVE_SCORE_LINE
    if (linear)
        apply_linear_scores(s, linear_scores, column);
    else
#endif
#if ATTUNE_HAVE_SCORE
        rotate_chunks<SOME>(s, [&](float(&some)[SOME], int columns) {
#ifdef ATTUNE_SCORE_CAP_INNER
            apply_cap(some, a.scale);
#elif ATTUNE_SCORE_KEYS
            if (near_zero(some, a.scale))
                score_terms<ATTUNE_HAVE_SCORE_NEAR>(some, a, p, row, column + columns, rows, terms + columns * 4);
            else
                score_terms<false>(some, a, p, row, column + columns, rows, terms + columns * 4);
#else
            if (!ATTUNE_HAVE_SCORE_LINE && near_zero(some, a.scale))
                apply_near(some, a, p, row, column + columns);
            else
                apply_text(some, a, p, row, column + columns);
#endif
        });
#else
    if (a.scale <= 0.0f) {
        float sign = fold_sign(a.scale);
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++)
            s[i] *= sign;
    }
#endif
    if (!(flags & TILE_MASKED))
        return;
    int limit = BLOCK_LISTS > 1 && flags & TILE_ABSENT ? 0 : a.kv_len;
    int low[2] = {0, 0}, high[2] = {limit, limit};
    bool ranges = flags & TILE_PARTIAL && mask_has_ranges(a);
    if (ranges) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            mask_range(a, p, row + half * 8, low[half], high[half]);
            high[half] = min(high[half], limit);
        }
    } else if (ATTUNE_HAVE_MASK && flags & TILE_PARTIAL) {
        rotate_chunks<MASK_CHUNK>(s, [&](float(&some)[MASK_CHUNK], int columns) {
#if ATTUNE_MASK_KEYS
            mask_terms(some, a, p, row, column + columns, rows, terms + columns * 4);
#else
            forbid_pairs(some, a, p, row, column + columns);
#endif
        });
    }
    if (ranges || kv + BLOCK_N > limit)
#pragma unroll
        for (int half = 0; half < 2; half++)
            forbid_outside(s, half, low[half] - column, high[half] - column);
}

/* With the terms of the keys, which stand where r is. */
template <bool FIRST>
__device__ __forceinline__ void hook_terms(float (&s)[BLOCK_N / 2], const attune_cuda_arguments &a,
                                           unsigned char *memory, const tile_coord &p, int kv, int flags, int row,
                                           const linear_score (&linear_scores)[2], bool linear, const pipeline_state &r, u32 &phases)
{
    u32 terms = wait_terms(a, memory, flags, r, phases);
    hook<FIRST>(s, a, p, kv, flags, row, linear_scores, linear, terms);
    leave_terms(a, memory, flags, r);
}

#endif
