/* SPDX-License-Identifier: MIT */
/*
 * The score and mask hook (stage 4) of the forward kernels with TMA: products become scores, and forbidden pairs -inf.
 * The kernel's configuration, `forward`, says which rows and columns the scores of a thread have: the one at index i
 * has row row_of(i) * 8 and column column_of(i) after the thread's first ones.
 */
#ifndef ATTUNE_CUDA_SCORES_SM90_CUH
#define ATTUNE_CUDA_SCORES_SM90_CUH

#include "layout_forward_sm90.cuh"

constexpr int THREAD_ROWS = forward::THREAD_ROWS;

/*
 * Calls f(chunk, columns) for each SIZE scores, `columns` columns after the first. The loop is not unrolled, so that f
 * is compiled once and not for each chunk. Registers need constant indices: the scores rotate, and a chunk is the first
 * SIZE.
 */
template <int SIZE, int COUNT, typename function>
__device__ __forceinline__ void rotate_chunks(float (&s)[COUNT], function f)
{
    static_assert(COUNT % SIZE == 0, "chunks of equal sizes");
#pragma unroll 1
    for (int n = 0; n < COUNT; n += SIZE) {
        float chunk[SIZE];
#pragma unroll
        for (int i = 0; i < SIZE; i++)
            chunk[i] = s[i];
        f(chunk, n * forward::SPREAD);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            s[i] = i + SIZE < COUNT ? s[i + SIZE] : chunk[i + SIZE - COUNT];
    }
}

/* The largest absolute value of the thread's products. */
template <int COUNT> __device__ __forceinline__ float magnitude(const float (&s)[COUNT])
{
    float largest[2] = {0.0f, 0.0f}; /* two chains of instructions */
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        largest[i % 2] = fmaxf(largest[i % 2], fabsf(s[i]));
    return fmaxf(largest[0], largest[1]);
}

/* Whether the score's near-zero form holds for all products of the warp. */
template <int COUNT> __device__ __forceinline__ bool near_zero(const float (&s)[COUNT], float scale)
{
    if constexpr (config::SCORE_NEAR_BOUNDED)
        return __all_sync(0xffffffffu, magnitude(s) * fabsf(scale) <= config::SCORE_NEAR);
    else
        return true;
}

/* A row's score if it is linear in the product and in kv: factor * product + base + slope * (kv - origin). */
struct linear_score {
    float factor, slope, base;
    int origin;
};

/* Those of the thread's rows. False if one is not finite, since the sum may then differ from the expression. */
__device__ __forceinline__ bool find_linear_scores(linear_score (&linear_scores)[THREAD_ROWS],
                                                   const attune_cuda_arguments &a, const tile_coord &p, int row)
{
    bool finite = false;
    if constexpr (config::HAVE_LINEAR_SCORE) {
        finite = true;
#pragma unroll
        for (int half = 0; half < THREAD_ROWS; half++) {
            linear_score &l = linear_scores[half];
            attune_linear_score(p.b, p.h, row + half * 8, p.h_kv, a.q_len, a.kv_len, &l.factor, &l.slope, &l.base,
                                &l.origin, a.score_symbols);
            l.factor *= a.scale;
            finite = finite && fabsf(l.factor) + fabsf(l.slope) + fabsf(l.base) < ATTUNE_INF;
        }
        finite = __all_sync(0xffffffffu, finite);
    }
    return finite;
}

template <int COUNT>
__device__ __forceinline__ void apply_linear_scores(float (&s)[COUNT], const linear_score (&linear_scores)[THREAD_ROWS],
                                                    int column)
{
    if constexpr (config::HAVE_LINEAR_SCORE) {
#pragma unroll
        for (int half = 0; half < THREAD_ROWS; half++) {
            const linear_score &l = linear_scores[half];
            float first =
                config::LINEAR_SCORE_HAS_SLOPE ? __fmaf_rn(l.slope, (float)(column - l.origin), l.base) : l.base;
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                if (forward::row_of(i) != half)
                    continue;
                float bias =
                    config::LINEAR_SCORE_HAS_SLOPE ? __fmaf_rn((float)forward::column_of(i), l.slope, first) : first;
                s[i] = __fmaf_rn(s[i], l.factor, bias);
            }
        }
    }
}

/*
 * Soft-cap: outer * tanh(inner * score). Where the warp's |inner * score| are at most 0.16, tanh is an odd polynomial
 * of three coefficients, within 3.5e-8; up to 0.5 one of five, within 1.4e-8. The scale and the caps are multiplied
 * into the coefficients, and the polynomial is evaluated at the product. Past 0.5, tanh itself.
 */
template <int COUNT> __device__ __forceinline__ void apply_soft_cap(float (&s)[COUNT], float scale)
{
    float inner = config::CAP_INNER * scale;
    if constexpr (!config::APPROXIMATE_TANH) {
        float square = inner * inner, c0 = config::CAP_OUTER * inner;
        float largest = square > 0x1p-24f && square < 0x1p24f ? magnitude(s) * fabsf(inner) : ATTUNE_INF;
        if (__all_sync(0xffffffffu, largest <= 0.16f)) {
            float c1 = c0 * square * -0.33331832f, c2 = c0 * square * (square * 0.13143139f);
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                float y = s[i] * s[i];
                s[i] *= __fmaf_rn(__fmaf_rn(y, c2, c1), y, c0);
            }
            return;
        }
        if (__all_sync(0xffffffffu, largest <= 0.5f)) {
            float c1 = c0 * square, c2 = c1 * square, c3 = c2 * square, c4 = c3 * square;
            c1 *= -0.33333072f, c2 *= 0.13324828f, c3 *= -0.052989241f, c4 *= 0.017141320f;
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                float y = s[i] * s[i];
                s[i] *= __fmaf_rn(__fmaf_rn(__fmaf_rn(__fmaf_rn(y, c4, c3), y, c2), y, c1), y, c0);
            }
            return;
        }
    }
    constexpr int SIZE = COUNT % forward::FIRST_CHUNK ? forward::CHUNK : forward::FIRST_CHUNK;
    rotate_chunks<SIZE>(s, [&](float(&chunk)[SIZE], int) {
#pragma unroll
        for (int i = 0; i < SIZE; i++)
            chunk[i] = config::CAP_OUTER * attune_tanh(inner * chunk[i]);
    });
}

/* The score's near-zero form; the score itself if it has none. */
template <int COUNT>
__device__ __forceinline__ void apply_near_zero_form(float (&s)[COUNT], const attune_cuda_arguments &a,
                                                     const tile_coord &p, int row, int column)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int q = row + forward::row_of(i) * 8, kv = column + forward::column_of(i);
        if constexpr (config::HAVE_SCORE_NEAR)
            s[i] =
                attune_score_near(p.b, p.h, q, kv, p.h_kv, a.q_len, a.kv_len, s[i] * a.scale, a.score_symbols, column);
        else
            s[i] = attune_score(p.b, p.h, q, kv, p.h_kv, a.q_len, a.kv_len, s[i] * a.scale, a.score_symbols);
    }
}

/* The score itself, where another form does not hold: seldom, so it is compiled for one chunk. */
template <int COUNT>
__device__ __forceinline__ void apply_score(float (&s)[COUNT], const attune_cuda_arguments &a, const tile_coord &p,
                                            int row, int column)
{
    rotate_chunks<forward::CHUNK>(s, [&](float(&chunk)[forward::CHUNK], int columns) {
#pragma unroll
        for (int i = 0; i < forward::CHUNK; i++)
            chunk[i] = attune_score(p.b, p.h, row + forward::row_of(i) * 8, column + columns + forward::column_of(i),
                                    p.h_kv, a.q_len, a.kv_len, chunk[i] * a.scale, a.score_symbols);
    });
}

__device__ __forceinline__ bool mask_allows(const attune_cuda_arguments &a, const tile_coord &p, int q, int kv)
{
    int h = p.h + a.h0;
    return attune_mask(p.b + a.b0, h, q + a.q0, kv, h / a.mask_group, a.mask_q_len, a.mask_kv_len, 0.0f,
                       a.mask_symbols);
}

/* The keys [low, high) that row q is allowed to attend. */
__device__ __forceinline__ void mask_range(const attune_cuda_arguments &a, const tile_coord &p, int q, int &low,
                                           int &high)
{
    if constexpr (config::HAVE_MASK_RANGE) {
        int h = p.h + a.h0;
        attune_mask_range(p.b + a.b0, h, q + a.q0, h / a.mask_group, a.mask_q_len, a.mask_kv_len, &low, &high,
                          a.mask_symbols);
    }
}

/* Whether the mask's rows have ranges. That may depend on its captures' values: then the mask is compiled too. */
__device__ __forceinline__ bool mask_has_ranges(const attune_cuda_arguments &a)
{
    return config::HAVE_MASK_RANGE && (!config::HAVE_MASK_PAIRS || a.mask_ranges);
}

/* One pair of a partial block. */
__device__ __forceinline__ bool pair_allowed(const attune_cuda_arguments &a, const tile_coord &p, int q, int kv)
{
    if (mask_has_ranges(a)) {
        int low = 0, high = 0;
        mask_range(a, p, q, low, high);
        return kv >= low && kv < high;
    }
    if constexpr (config::HAVE_MASK_PAIRS)
        return mask_allows(a, p, q, kv);
    return true;
}

/* Forbids the keys outside [low, high) in one of the thread's rows. Both count from the thread's first column. */
template <int COUNT> __device__ __forceinline__ void forbid_outside(float (&s)[COUNT], int half, int low, int high)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (forward::row_of(i) == half && (forward::column_of(i) < low || forward::column_of(i) >= high))
            s[i] = -ATTUNE_INF;
}

/* Evaluates the mask for each pair. */
template <int COUNT>
__device__ __forceinline__ void forbid_pairs(float (&s)[COUNT], const attune_cuda_arguments &a, const tile_coord &p,
                                             int row, int column)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (!mask_allows(a, p, row + forward::row_of(i) * 8, column + forward::column_of(i)))
            s[i] = -ATTUNE_INF;
}

/* Words of a key's terms; an array has at least one. */
constexpr int SCORE_KEY_WORDS = config::SCORE_KEYS + 1, MASK_KEY_WORDS = config::MASK_KEYS ? config::MASK_KEYS : 1;

/* Where a thread finds what its pairs share: the address of the tile's terms of keys, that of the elements of the
 * capture of its first row and column but for their swizzle, and the bytes of the columns before its chunk. */
struct staged_terms {
    u32 keys, elements, bytes = 0;
};

__device__ __forceinline__ staged_terms staged_after(const staged_terms &t, int columns)
{
    return {t.keys + columns * 4, t.elements, t.bytes + columns * config::SCORE_TILE};
}

/* The address of the capture's element in column n of a chunk of COUNT scores. */
template <int COUNT> __device__ __forceinline__ u32 element_at(const staged_terms &t, int n)
{
    u32 swizzle = capture_swizzle(threadIdx.x / 4), bytes = n * config::SCORE_TILE;
    if constexpr (COUNT * forward::SPREAD * config::SCORE_TILE % 128 == 0) /* chunks begin where the swizzle does */
        return t.elements + t.bytes + bytes / 128 * 128 + (bytes % 128 ^ swizzle);
    else
        return t.elements + ((t.bytes + bytes) ^ swizzle);
}

/* The capture's elements of a row for two columns. */
__device__ __forceinline__ void load_pair(u32 (&bits)[2], u32 from)
{
    if constexpr (config::SCORE_TILE == 4) {
        float x, y;
        load_shared_2(x, y, from);
        bits[0] = __float_as_uint(x), bits[1] = __float_as_uint(y);
    } else if constexpr (config::SCORE_TILE == 2) {
        u32 both;
        load_shared(both, from);
        bits[0] = both & 0xffffu, bits[1] = both >> 16;
    }
}

/* The scores, from the terms of rows and keys. */
template <bool NEAR, int COUNT>
__device__ __forceinline__ void apply_score_terms(float (&s)[COUNT], const attune_cuda_arguments &a,
                                                  const tile_coord &p, int row, int column,
                                                  const row_terms (&rows)[THREAD_ROWS], const staged_terms &staged)
{
    u32 elements[2];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float &x = s[i];
        int half = forward::row_of(i), n = forward::column_of(i), key[SCORE_KEY_WORDS];
        key_terms_load<0, config::SCORE_KEYS>(key, staged.keys, forward::first_column() + n);
        if constexpr (config::SCORE_TILE > 0) {
            if (i % 2 == 0)
                load_pair(elements, element_at<COUNT>(staged, n) + half * 8 * forward::CAPTURE_PITCH);
            key[config::SCORE_KEYS] = attune_score_tile_value(elements[i % 2]);
        }
        if constexpr (NEAR)
            x = attune_score_near_of(p.b, p.h, row + half * 8, column + n, p.h_kv, a.q_len, a.kv_len, x * a.scale, key,
                                     rows[half].score, a.score_symbols, column);
        else
            x = attune_score_of(p.b, p.h, row + half * 8, column + n, p.h_kv, a.q_len, a.kv_len, x * a.scale, key,
                                rows[half].score, a.score_symbols);
    }
}

/* Evaluates the mask from the terms of rows and keys. */
template <int COUNT>
__device__ __forceinline__ void forbid_pairs_terms(float (&s)[COUNT], const attune_cuda_arguments &a,
                                                   const tile_coord &p, int row, int column,
                                                   const row_terms (&rows)[THREAD_ROWS], u32 terms)
{
    int h = p.h + a.h0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int half = forward::row_of(i), n = forward::column_of(i), key[MASK_KEY_WORDS];
        key_terms_load<config::SCORE_KEYS, config::MASK_KEYS>(key, terms, forward::first_column() + n);
        if (!attune_mask_of(p.b + a.b0, h, row + half * 8 + a.q0, column + n, h / a.mask_group, a.mask_q_len,
                            a.mask_kv_len, 0.0f, key, rows[half].mask, a.mask_symbols))
            s[i] = -ATTUNE_INF;
    }
}

/* Waits for the terms of the tile's keys and returns their address. r: the tile's stage. If every tile has terms, their
 * phase is that of r; else each stage has its own: `phases` has a bit for each stage, the phase to wait for. */
__device__ __forceinline__ u32 wait_key_terms(const attune_cuda_arguments &a, unsigned char *memory, int flags,
                                              const pipeline_state &r, u32 &phases)
{
    if (!KEY_TERMS || !has_terms(a, flags))
        return 0;
    consumer_wait<&key_terms_control::terms>(*(key_terms_control *)(memory + forward::KEY_TERMS_OFFSET),
                                             {r.stage, config::SCORE_KEYS ? r.phase : phases >> r.stage & 1});
    phases ^= 1u << r.stage;
    return shared_address(memory) + forward::KEY_TERMS_OFFSET + sizeof(key_terms_control) + r.stage * TERM_BYTES;
}

__device__ __forceinline__ void release_key_terms(const attune_cuda_arguments &a, unsigned char *memory, int flags,
                                                  const pipeline_state &r)
{
    if (KEY_TERMS && has_terms(a, flags))
        consumer_release<&key_terms_control::terms>(*(key_terms_control *)(memory + forward::KEY_TERMS_OFFSET), r);
}

/* FIRST: a query tile's first key tile, where slower and shorter code will do; row: the thread's first row; linear: the
 * scores of both rows are linear_scores. */
template <bool FIRST, int COUNT>
__device__ __forceinline__ void
apply_score_and_mask(float (&s)[COUNT], const attune_cuda_arguments &a, const tile_coord &p, int kv, int flags, int row,
                     const linear_score (&linear_scores)[THREAD_ROWS], bool linear, const staged_terms &terms)
{
    constexpr int SIZE = FIRST ? config::FIRST_SCORE_CHUNK : forward::SCORE_CHUNK_SIZE;
    int column = kv + forward::first_column();
    row_terms rows[THREAD_ROWS];
    if constexpr (KEY_TERMS + config::SCORE_ROWS > 0) {
        if (config::SCORE_ROWS || has_terms(a, flags))
#pragma unroll
            for (int half = 0; half < THREAD_ROWS; half++)
                row_terms_make(rows[half], a, {p.b, p.h, p.h_kv, row + half * 8}, flags & TILE_PARTIAL);
    }
    if (config::HAVE_LINEAR_SCORE && linear) {
        apply_linear_scores(s, linear_scores, column);
    } else if constexpr (HAVE_SCORE) {
        rotate_chunks<SIZE>(s, [&](float(&chunk)[SIZE], int columns) {
            if constexpr (config::HAVE_SCORE_CAP) {
                apply_soft_cap(chunk, a.scale);
            } else if constexpr (SCORE_HAS_TERMS) {
                if (near_zero(chunk, a.scale))
                    apply_score_terms<config::HAVE_SCORE_NEAR>(chunk, a, p, row, column + columns, rows,
                                                               staged_after(terms, columns));
                else if constexpr (config::NEAR_SINES) /* long and seldom */
                    rotate_chunks<forward::CHUNK>(chunk, [&](float(&few)[forward::CHUNK], int more) {
                        apply_score_terms<false>(few, a, p, row, column + columns + more, rows,
                                                 staged_after(terms, columns + more));
                    });
                else
                    apply_score_terms<false>(chunk, a, p, row, column + columns, rows, staged_after(terms, columns));
            } else {
                if (!config::HAVE_LINEAR_SCORE && near_zero(chunk, a.scale))
                    apply_near_zero_form(chunk, a, p, row, column + columns);
                else
                    apply_score(chunk, a, p, row, column + columns);
            }
        });
    } else if (a.scale <= 0.0f) {
        float sign = fold_sign(a.scale);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            s[i] *= sign;
    }
    if (!(flags & TILE_MASKED))
        return;
    int limit = forward::BLOCK_LISTS > 1 && flags & TILE_ABSENT ? 0 : a.kv_len;
    int low[THREAD_ROWS], high[THREAD_ROWS];
#pragma unroll
    for (int half = 0; half < THREAD_ROWS; half++) {
        low[half] = 0;
        high[half] = limit;
    }
    bool ranges = flags & TILE_PARTIAL && mask_has_ranges(a);
    if (ranges) {
#pragma unroll
        for (int half = 0; half < THREAD_ROWS; half++) {
            mask_range(a, p, row + half * 8, low[half], high[half]);
            high[half] = min(high[half], limit);
        }
    } else if constexpr (config::HAVE_MASK_PAIRS) {
        if (flags & TILE_PARTIAL)
            rotate_chunks<forward::MASK_CHUNK_SIZE>(s, [&](float(&chunk)[forward::MASK_CHUNK_SIZE], int columns) {
                if constexpr (config::MASK_KEYS > 0)
                    forbid_pairs_terms(chunk, a, p, row, column + columns, rows, terms.keys + columns * 4);
                else
                    forbid_pairs(chunk, a, p, row, column + columns);
            });
    }
    if (ranges || kv + COUNT * forward::SPREAD > limit)
#pragma unroll
        for (int half = 0; half < THREAD_ROWS; half++)
            forbid_outside(s, half, low[half] - column, high[half] - column);
}

#endif
