/* SPDX-License-Identifier: MIT */
/*
 * Forward for Hopper: TMA, mbarriers and wgmma. The stages are those of docs/algorithm.md.
 *
 * The first warp group feeds. One thread of it walks the work and the mask's lists, some tiles of keys ahead, so that
 * nobody waits for what it reads; another one loads, and passes on, with each tile of keys, where it stands and how it
 * is to be masked. Each other warp group owns 64 rows. It issues Q K(j + 1) before P V(j), so that the tensor cores
 * work under softmax, and the next rows' first Q K with the last P V, so that they work while O is stored; and two warp
 * groups take turns in issuing, so that one's products run under the other's softmax.
 *
 * A thread holds, of each 16 x 8 piece of S and O, rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next.
 * Tiles in shared memory are slabs of 64 columns, as TMA's 128-byte swizzle lays them.
 */
#include "feed_sm90.cuh"
#include "wgmma.cuh"

/* With 160 registers a mask has room only once P is gone: P V is not under it then. */
constexpr bool DRAINS = GROUPS == 3 && ATTUNE_HAVE_BLOCKS;
constexpr bool TURNS = GROUPS > 1 && HEAD_DIM_V <= 128;

/* Turns between two or three warp groups, in named barriers 1 and following. */
__device__ __forceinline__ void turn_wait(int group)
{
    if (TURNS)
        asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void turn_pass(int group)
{
    if (TURNS)
        asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group + 1 == GROUPS ? 0 : group + 1)) : "memory");
}

/* ----------------------------------------------------------------------------------------------------------- stages */

/* 3: S = Q K^T, begun. */
__device__ __forceinline__ void multiply_qk(float (&s)[BLOCK_N / 2], u64 q, u64 k)
{
#pragma unroll
    for (int step = 0; step < STEPS_D; step++)
        wgmma<BLOCK_N>::ss(s, q + (step / 4 * Q_SLAB + step % 4 * 32) / 16,
                           k + (step / 4 * KV_SLAB + step % 4 * 32) / 16, step);
    wgmma_commit();
}

/* The largest product of the thread, in magnitude. */
__device__ __forceinline__ float magnitude(const float (&s)[BLOCK_N / 2])
{
    float top[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++)
        top[i % 2] = fmaxf(top[i % 2], fabsf(s[i]));
    return fmaxf(top[0], top[1]);
}

/* Whether the warp's scores all lie where the cheaper form of their expression holds. */
__device__ __forceinline__ bool near_zero(const float (&s)[BLOCK_N / 2], float scale)
{
#ifdef ATTUNE_SCORE_NEAR
    return __all_sync(0xffffffffu, magnitude(s) * fabsf(scale) <= ATTUNE_SCORE_NEAR);
#else
    return true;
#endif
}

/* A score that is a line in the product and in kv, in one row: factor * score + base + slope * (kv - origin). */
struct line {
    float factor, slope, base;
    int origin;
};

/* Of the thread's two rows. False where an infinity would make of these sums what it does not make of the text's. */
__device__ __forceinline__ bool find_lines(line (&lines)[2], const attune_cuda_arguments &a, const place &p, int row)
{
    bool finite = false;
#if ATTUNE_HAVE_SCORE && ATTUNE_HAVE_SCORE_LINE
    finite = true;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        line &l = lines[half];
        attune_score_line(p.b, p.h, row + half * 8, p.h_kv, a.q_len, a.kv_len, &l.factor, &l.slope, &l.base, &l.origin,
                          a.score_symbols);
        l.factor *= a.scale;
        finite = finite && fabsf(l.factor) + fabsf(l.slope) + fabsf(l.base) < ATTUNE_INF;
    }
    finite = __all_sync(0xffffffffu, finite);
#endif
    return finite;
}

__device__ __forceinline__ void apply_lines(float (&s)[BLOCK_N / 2], const line (&lines)[2], int column)
{
#if ATTUNE_HAVE_SCORE && ATTUNE_HAVE_SCORE_LINE
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const line &l = lines[half];
        float from = ATTUNE_SCORE_LINE_SLOPED ? __fmaf_rn(l.slope, (float)(column - l.origin), l.base) : l.base;
#pragma unroll
        for (int i = 0; i < BLOCK_N / 4; i++) {
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
__device__ __forceinline__ void apply_cap(float (&s)[BLOCK_N / 2], float scale)
{
#if ATTUNE_HAVE_SCORE && defined ATTUNE_SCORE_CAP_INNER
    float inner = ATTUNE_SCORE_CAP_INNER * scale;
#ifndef ATTUNE_APPROXIMATE_TANH
    float two = inner * inner, c0 = ATTUNE_SCORE_CAP_OUTER * inner;
    float top = two > 0x1p-24f && two < 0x1p24f ? magnitude(s) * fabsf(inner) : ATTUNE_INF;
    if (__all_sync(0xffffffffu, top <= 0.16f)) {
        float c1 = c0 * two * -0.33331832f, c2 = c0 * two * (two * 0.13143139f);
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) {
            float y = s[i] * s[i];
            s[i] *= __fmaf_rn(__fmaf_rn(y, c2, c1), y, c0);
        }
        return;
    }
    if (__all_sync(0xffffffffu, top <= 0.5f)) {
        float c1 = c0 * two, c2 = c1 * two, c3 = c2 * two, c4 = c3 * two;
        c1 *= -0.33333072f, c2 *= 0.13324828f, c3 *= -0.052989241f, c4 *= 0.017141320f;
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) {
            float y = s[i] * s[i];
            s[i] *= __fmaf_rn(__fmaf_rn(__fmaf_rn(__fmaf_rn(y, c4, c3), y, c2), y, c1), y, c0);
        }
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++)
        s[i] = ATTUNE_SCORE_CAP_OUTER * attune_tanh(inner * s[i]);
#endif
}

/* The expression's own text. Where it is seldom needed the scores go round, so that a loop has eight of them: a tenth
 * of the code, which compiles in less time. */
__device__ __forceinline__ void apply_text(float (&s)[BLOCK_N / 2], const attune_cuda_arguments &a, const place &p,
                                           int row, int column)
{
#if ATTUNE_HAVE_SCORE
#if ATTUNE_HAVE_SCORE_LINE || defined ATTUNE_SCORE_NEAR
    constexpr int STEP = 8;
#else
    constexpr int STEP = BLOCK_N / 2;
#endif
#pragma unroll 1
    for (int n = 0; n < BLOCK_N / 2; n += STEP) {
        float done[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++)
            done[i] = attune_score(p.b, p.h, row + i / 2 % 2 * 8, column + (n + i / 4 * 4) * 2 + i % 2, p.h_kv, a.q_len,
                                   a.kv_len, s[i] * a.scale, a.score_symbols);
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++)
            s[i] = i + STEP < BLOCK_N / 2 ? s[i + STEP] : done[i + STEP - BLOCK_N / 2];
    }
#endif
}

#if ATTUNE_HAVE_MASK
__device__ __forceinline__ bool mask_allows(const attune_cuda_arguments &a, const place &p, int q, int kv)
{
    int h = p.h + a.h0;
    return attune_mask(p.b + a.b0, h, q + a.q0, kv, h / a.mask_group, a.mask_q_len, a.mask_kv_len, 0.0f,
                       a.mask_symbols);
}
#endif

/* The keys from low to before high that row q may attend. */
__device__ __forceinline__ void mask_range(const attune_cuda_arguments &a, const place &p, int q, int &low, int &high)
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
__device__ __forceinline__ bool pair_allowed(const attune_cuda_arguments &a, const place &p, int q, int kv)
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

/* Forbids pair by pair. Where rows mostly have ranges the loop is short, as in apply_text. */
__device__ __forceinline__ void forbid_pairs(float (&s)[BLOCK_N / 2], const attune_cuda_arguments &a, const place &p,
                                             int row, int column)
{
#if ATTUNE_HAVE_MASK
    constexpr int STEP = ATTUNE_HAVE_MASK_RANGE ? 8 : BLOCK_N / 2;
#pragma unroll 1
    for (int n = 0; n < BLOCK_N / 2; n += STEP) {
        float done[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++)
            done[i] = mask_allows(a, p, row + i / 2 % 2 * 8, column + (n + i / 4 * 4) * 2 + i % 2) ? s[i] : -ATTUNE_INF;
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++)
            s[i] = i + STEP < BLOCK_N / 2 ? s[i + STEP] : done[i + STEP - BLOCK_N / 2];
    }
#endif
}

#if ATTUNE_SCORE_KEYS
/* The scores, of the terms of rows and keys. */
template <bool NEAR>
__device__ __forceinline__ void score_terms(float (&s)[BLOCK_N / 2], const attune_cuda_arguments &a, const place &p,
                                            int row, int column, const row_terms (&rows)[2], u32 terms)
{
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) {
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
__device__ __forceinline__ void mask_terms(float (&s)[BLOCK_N / 2], const attune_cuda_arguments &a, const place &p,
                                           int row, int column, const row_terms (&rows)[2], u32 terms)
{
    int h = p.h + a.h0;
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) {
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
                                          const ring &r, u32 &turns)
{
    if (!KEY_TERMS || !has_terms(a, flags))
        return 0;
    barrier_wait(&((staged *)(memory + STAGED_AT))->full[r.stage],
                 ATTUNE_SCORE_KEYS ? r.phase : turns >> r.stage & 1);
    turns ^= 1u << r.stage;
    return shared_address(memory) + STAGED_AT + sizeof(staged) + r.stage * TERM_BYTES;
}

__device__ __forceinline__ void leave_terms(const attune_cuda_arguments &a, unsigned char *memory, int flags,
                                            const ring &r)
{
    if (KEY_TERMS && has_terms(a, flags))
        warp_arrive(&((staged *)(memory + STAGED_AT))->empty[r.stage]);
}

/* 4: the score and mask hook. row: the thread's first row of q; lined: the scores of both rows are lines; terms: those
 * of the keys. */
__device__ __forceinline__ void hook(float (&s)[BLOCK_N / 2], const attune_cuda_arguments &a, const place &p, int kv,
                                     int flags, int row, const line (&lines)[2], bool lined, u32 terms)
{
    int column = kv + (int)threadIdx.x % 4 * 2;
#if ATTUNE_KEY_TERMS
    row_terms rows[2];
    if (has_terms(a, flags))
#pragma unroll
        for (int half = 0; half < 2; half++)
            row_terms_make(rows[half], a, {p.b, p.h, p.h_kv, row + half * 8}, flags & NOTE_PARTIAL);
#endif
#if ATTUNE_HAVE_SCORE && defined ATTUNE_SCORE_CAP_INNER
    apply_cap(s, a.scale);
#elif ATTUNE_SCORE_KEYS
#if ATTUNE_HAVE_SCORE_NEAR
    if (near_zero(s, a.scale))
        score_terms<true>(s, a, p, row, column, rows, terms);
    else
#endif
        score_terms<false>(s, a, p, row, column, rows, terms);
#elif ATTUNE_HAVE_SCORE
#if ATTUNE_HAVE_SCORE_LINE
    if (lined)
        apply_lines(s, lines, column);
    else
#elif ATTUNE_HAVE_SCORE_NEAR
    if (near_zero(s, a.scale)) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++)
            s[i] = attune_score_near(p.b, p.h, row + i / 2 % 2 * 8, column + i / 4 * 8 + i % 2, p.h_kv, a.q_len,
                                     a.kv_len, s[i] * a.scale, a.score_symbols, column);
    } else
#endif
        apply_text(s, a, p, row, column);
#else
    if (a.scale <= 0.0f) {
        float sign = fold_sign(a.scale);
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++)
            s[i] *= sign;
    }
#endif
    if (!(flags & NOTE_MASK))
        return;
    if (flags & NOTE_PARTIAL) {
        if (mask_has_ranges(a)) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int low = 0, high = 0;
                mask_range(a, p, row + half * 8, low, high);
                forbid_outside(s, half, low - column, high - column);
            }
        } else {
#if ATTUNE_MASK_KEYS
            mask_terms(s, a, p, row, column, rows, terms);
#else
            forbid_pairs(s, a, p, row, column);
#endif
        }
    }
    int limit = WALKS > 1 && flags & NOTE_ABSENT ? 0 : a.kv_len;
    if (kv + BLOCK_N > limit) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++)
            if (column + i / 4 * 8 + i % 2 >= limit)
                s[i] = -ATTUNE_INF;
    }
}

/* With the terms of the keys, which stand where r is. */
__device__ __forceinline__ void hook_terms(float (&s)[BLOCK_N / 2], const attune_cuda_arguments &a,
                                           unsigned char *memory, const place &p, int kv, int flags, int row,
                                           const line (&lines)[2], bool lined, const ring &r, u32 &turns)
{
    u32 terms = wait_terms(a, memory, flags, r, turns);
    hook(s, a, p, kv, flags, row, lines, lined, terms);
    leave_terms(a, memory, flags, r);
}

/* 5: online softmax; S becomes P. m and l belong to rows lane / 4 and lane / 4 + 8; l is the thread's own part. */
__device__ __forceinline__ void softmax(float (&s)[BLOCK_N / 2], float (&m)[2], float (&l)[2], float (&shrink)[2],
                                        float factor)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = m[half];
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++)
            top = fmaxf(top, fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        /* A row without anything yet subtracts 0, so that exp(-inf) is 0 and not NaN. */
        float base = top == -ATTUNE_INF ? 0.0f : top, shift = base * factor;
        shrink[half] = exp2_fast((m[half] - base) * factor);
        m[half] = top;
        float even = l[half] * shrink[half], odd = 0.0f;
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++) {
            float &x = s[n * 4 + half * 2], &y = s[n * 4 + half * 2 + 1];
            x = exp2_fast(__fmaf_rn(x, factor, -shift));
            y = exp2_fast(__fmaf_rn(y, factor, -shift));
            even += x;
            odd += y;
        }
        l[half] = even + odd;
    }
}

/*
 * The same against the largest scores of before, without a look at these first: exponentials begin at once, and O needs
 * no scaling. Adds to l, makes P, and leaves S alone. False, with l as it was, if a weight would be past NEAR, or a row
 * has had no key yet. Weights up to there lose nothing, since P, l and O are all floating-point. What is compared are
 * the bits of their logarithms: as integers negative ones are below 0, and NaN are the largest.
 */
constexpr float NEAR = 256.0f, NEAR_LOG2 = 8.0f;
#if ATTUNE_HAVE_SCORE && ATTUNE_HAVE_SCORE_LINE
constexpr bool RISES = ATTUNE_SCORE_LINE_SLOPED; /* ALiBi's maxima move with every tile: to look for that first is lost */
#else
constexpr bool RISES = false;
#endif
constexpr int CHAINS = GROUPS == 3 ? 1 : 2; /* of sums, and of what is looked at: 160 registers have room for one */

__device__ __forceinline__ bool softmax_near(u32 (&p)[BLOCK_N / 16][4], const float (&s)[BLOCK_N / 2],
                                             const float (&m)[2], float (&l)[2], float factor)
{
    float shift[2] = {m[0] * factor, m[1] * factor}, sum[2][2] = {{l[0], 0.0f}, {l[1], 0.0f}};
    int top[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = __fmaf_rn(s[n * 4 + half * 2], factor, -shift[half]);
            float y = __fmaf_rn(s[n * 4 + half * 2 + 1], factor, -shift[half]);
            top[half % CHAINS] = __vimax3_s32(top[half % CHAINS], __float_as_int(x), __float_as_int(y));
            x = exp2_fast(x);
            y = exp2_fast(y);
            sum[half][0] += x;
            sum[half][1 % CHAINS] += y;
            p[n / 2][n % 2 * 2 + half] = pack(x, y);
        }
    if (__any_sync(0xffffffffu, max(top[0], top[1]) > __float_as_int(NEAR_LOG2)))
        return false;
    l[0] = sum[0][0] + sum[0][1];
    l[1] = sum[1][0] + sum[1][1];
    return true;
}

/* P in 16 bits: the left operands of P V as they are. */
__device__ __forceinline__ void round_p(u32 (&p)[BLOCK_N / 16][4], const float (&s)[BLOCK_N / 2])
{
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[step][i] = pack(s[step * 8 + i * 2], s[step * 8 + i * 2 + 1]);
}

__device__ __forceinline__ void rescale(float (&o)[WIDTH_DV / 2], const float (&shrink)[2])
{
#pragma unroll
    for (int i = 0; i < WIDTH_DV / 2; i++)
        o[i] *= shrink[i / 2 % 2];
}

/* What the checkers took out of V, added to the rows that may see it: its product with any weight is itself. */
__device__ __forceinline__ void add_special(float (&o)[WIDTH_DV / 2], const attune_cuda_arguments &a, const place &p,
                                            int kv, int flags, int row)
{
    if (flags & NOTE_ABSENT)
        return;
    int column = (int)threadIdx.x % 4 * 2, end = min(kv + BLOCK_N, a.kv_len);
    const element *v = (const element *)a.v.address + p.b * a.v.batch + p.h_kv * a.v.head + column;
#pragma unroll 1
    for (; kv < end; kv++) {
        bool allowed[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
            allowed[half] = !(flags & NOTE_PARTIAL) || pair_allowed(a, p, row + half * 8, kv);
        /* O goes round, so that the loop need not be unrolled. */
#pragma unroll 1
        for (int d = 0; d < WIDTH_DV; d += 8) {
            u32 two = d + column < HEAD_DIM_V ? *(const u32 *)(v + kv * a.v.row + d) : 0, signs = special_signs(two);
            float low = signs & 0x8000u ? unpack(two) : 0.0f, high = signs >> 31 ? unpack(two >> 16) : 0.0f;
            float first[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                first[i] = o[i] + (allowed[i / 2] ? i % 2 ? high : low : 0.0f);
#pragma unroll
            for (int i = 0; i < WIDTH_DV / 2; i++)
                o[i] = i + 4 < WIDTH_DV / 2 ? o[i + 4] : first[i + 4 - WIDTH_DV / 2];
        }
    }
}

/* Waits until the checkers have seen the tile. `checked` has a bit for each stage: the phase to wait for. */
__device__ __forceinline__ void wait_checked(float (&o)[WIDTH_DV / 2], control &c, const attune_cuda_arguments &a,
                                             const place &p, int kv, int flags, int row, u32 stage, u32 &checked)
{
    if (!CHECKS || !(flags & NOTE_CHECK))
        return;
    barrier_wait(&c.v_checked[stage], checked >> stage & 1);
    checked ^= 1u << stage;
    if (c.special[stage])
        add_special(o, a, p, kv, flags, row);
}

/* 6: O += P V, begun. */
__device__ __forceinline__ void multiply_pv(float (&o)[WIDTH_DV / 2], const u32 (&p)[BLOCK_N / 16][4], u64 v)
{
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
        wgmma<WIDTH_DV>::rs(o, p[step], v + step * (16 * 128 / 16));
    wgmma_commit();
}

/* Four words of each of four lanes, turned: a lane gets the word that has its number, of each. */
__device__ __forceinline__ void turn_four(u32 (&w)[4])
{
#pragma unroll
    for (int by = 1; by <= 2; by *= 2) {
        bool upper = threadIdx.x & by;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & by)
                continue;
            u32 mine = upper ? w[i] : w[i + by], other = __shfl_xor_sync(0xffffffffu, mine, by);
            w[i] = upper ? other : w[i];
            w[i + by] = upper ? w[i + by] : other;
        }
    }
}

/* 7: store O and LSE. */
__device__ __forceinline__ void store(const float (&o)[WIDTH_DV / 2], const float (&m)[2], const float (&l)[2],
                                      const attune_cuda_arguments &a, const place &p, int row, float factor)
{
    int lane = (int)threadIdx.x % 32;
    element *base = (element *)a.o.address + p.b * a.o.batch + p.h * a.o.head;
    u64 places = a.o.address | (u64)(a.o.batch | a.o.head | a.o.row) * sizeof(element);
    bool paired = places % 4 == 0, wide = places % 16 == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = l[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int q = row + half * 8;
        float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        element *to = base + q * a.o.row + lane % 4 * 2;
        if (wide) {
#pragma unroll
            for (int d = 0; d + 4 <= HEAD_DIM_V / 8; d += 4) {
                u32 w[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w[i] = pack(o[(d + i) * 4 + half * 2] * inverse, o[(d + i) * 4 + half * 2 + 1] * inverse);
                turn_four(w);
                if (q < a.q_len)
                    *(uint4 *)(base + q * a.o.row + (d + lane % 4) * 8) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
        if (q >= a.q_len)
            continue;
#pragma unroll
        for (int d = 0; d < WIDTH_DV / 8; d++) {
            if (wide && d < HEAD_DIM_V / 32 * 4)
                continue;
            if (d * 8 >= HEAD_DIM_V || (HEAD_DIM_V % 8 && d * 8 + lane % 4 * 2 >= HEAD_DIM_V))
                continue;
            u32 two = pack(o[d * 4 + half * 2] * inverse, o[d * 4 + half * 2 + 1] * inverse);
            if (paired && HEAD_DIM_V % 2 == 0) {
                *(u32 *)(to + d * 8) = two;
            } else {
                to[d * 8] = (element)two;
                if (HEAD_DIM_V % 2 == 0 || d * 8 + lane % 4 * 2 + 1 < HEAD_DIM_V)
                    to[d * 8 + 1] = (element)(two >> 16);
            }
        }
        if (lane % 4 == 0) {
            /* A NaN is lost in the largest score and stays in the sum; so does an infinite one, which both have. */
            float top = isnan(sum) && m[half] != ATTUNE_INF ? sum : m[half] * (factor * ATTUNE_LN2);
            bool empty = sum == 0.0f;
            if (a.lse.address)
                ((float *)a.lse.address)[p.b * a.lse.batch + p.h * a.lse.head + q * a.lse.row] =
                    empty ? -ATTUNE_INF : top + logf(sum);
            if (a.row_max.address)
                ((float *)a.row_max.address)[p.b * a.row_max.batch + p.h * a.row_max.head + q * a.row_max.row] =
                    empty ? -ATTUNE_INF : top;
        }
    }
}

/* The same for a row that no key is there for; its four threads share it. */
__device__ __forceinline__ void store_nothing(const attune_cuda_arguments &a, const place &p, int row)
{
    int first = (int)threadIdx.x % 4;
#pragma unroll 1
    for (int q = row; q < min(row + 16, a.q_len); q += 8) {
        element *to = (element *)a.o.address + p.b * a.o.batch + p.h * a.o.head + q * a.o.row;
#pragma unroll 1
        for (int d = first; d < HEAD_DIM_V; d += 4)
            to[d] = 0;
        if (first)
            continue;
        if (a.lse.address)
            ((float *)a.lse.address)[p.b * a.lse.batch + p.h * a.lse.head + q * a.lse.row] = -ATTUNE_INF;
        if (a.row_max.address)
            ((float *)a.row_max.address)[p.b * a.row_max.batch + p.h * a.row_max.head + q * a.row_max.row] =
                -ATTUNE_INF;
    }
}

/* ------------------------------------------------------------------------------------------------------- the owners */

/* Whether the next tile of rows has keys. */
__device__ __forceinline__ bool rows_follow(control &c, const ring &r)
{
    barrier_wait(&c.q_full[r.stage], r.phase);
    return c.work[r.stage].what == NOTE_ROWS;
}

__device__ __forceinline__ void own(const attune_cuda_arguments &a, control &c, unsigned char *memory)
{
    int group = (int)threadIdx.x / 128 - 1;
    if (GROUPS == 3) /* known to be the same in a warp it costs no register */
        group = __shfl_sync(0xffffffffu, group, 0);
    u32 k_tiles = shared_address(memory) + RESIDENT_BYTES, v_tiles = k_tiles + STAGES * K_BYTES;
    u64 q = describe_k_major(shared_address(memory) + (u32)group * 64 * 128);
    float factor = fold_factor(a.scale);
    ring r = {0, 0}, k = {0, 0}, v = {0, 0};
    u32 checked = 0, turns = 0;
    bool begun = false; /* S of the next rows' first keys is there */
    float s[BLOCK_N / 2], o[WIDTH_DV / 2];
    if (group == GROUPS - 1)
        turn_pass(group);
    for (;;) {
        barrier_wait(&c.q_full[r.stage], r.phase);
        int flags = c.work[r.stage].what;
        if (!flags)
            break;
        place at = c.work[r.stage].at;
        int row = at.q + group * 64 + (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4;
        if (flags & NOTE_LAST) {
            warp_arrive(&c.q_empty[r.stage]);
            ring_next<Q_BUFFERS>(r);
            store_nothing(a, at, row);
            continue;
        }
        line lines[2];
        bool lined = find_lines(lines, a, at, row);
        int part = WALKS > 1 && (at.q + group * 64) / a.q_block != at.q / a.q_block ? 8 : 0;
        if (!begun) {
            barrier_wait(&c.k_full[k.stage], k.phase);
            turn_wait(group);
            wgmma_fence();
            multiply_qk(s, q + r.stage * (Q_BYTES / 16), describe_k_major(k_tiles + k.stage * K_BYTES));
            turn_pass(group);
            wgmma_wait<0>();
            accumulators_done(s);
        }
        float m[2] = {-ATTUNE_INF, -ATTUNE_INF}, l[2] = {0.0f, 0.0f}, shrink[2];
        u32 p[BLOCK_N / 16][4];
#pragma unroll
        for (int i = 0; i < WIDTH_DV / 2; i++)
            o[i] = 0.0f;
        int kv = c.keys[k.stage].at;
        flags = c.keys[k.stage].flags >> part;
        warp_arrive(&c.k_empty[k.stage]);
        ring_next(k);
        /* V's ring is at this tile, as K's was. */
        hook_terms(s, a, memory, at, kv, flags, row, lines, lined, v, turns);
        softmax(s, m, l, shrink, factor);
        round_p(p, s);
        wait_checked(o, c, a, at, kv, flags, row, v.stage, checked);
        bool rising = false; /* the last keys' scores were far past those before, as ALiBi's: so may the next ones' be */
        while (!(flags & NOTE_LAST)) {
            barrier_wait(&c.k_full[k.stage], k.phase);
            kv = c.keys[k.stage].at;
            flags = c.keys[k.stage].flags >> part;
            turn_wait(group);
            wgmma_fence();
            multiply_qk(s, q + r.stage * (Q_BYTES / 16), describe_k_major(k_tiles + k.stage * K_BYTES));
            barrier_wait(&c.v_full[v.stage], v.phase);
            wgmma_fence();
            multiply_pv(o, p, describe_n_major(v_tiles + v.stage * V_BYTES, KV_SLAB));
            turn_pass(group);
            wgmma_wait<1>();
            accumulators_done(s);
            warp_arrive(&c.k_empty[k.stage]);
            ring now = k;
            ring_next(k);
            if (!DRAINS)
                hook_terms(s, a, memory, at, kv, flags, row, lines, lined, now, turns);
            wgmma_wait<0>();
            accumulators_done(o);
            warp_arrive(&c.v_empty[v.stage]);
            ring_next(v);
            if (DRAINS)
                hook_terms(s, a, memory, at, kv, flags, row, lines, lined, now, turns);
            if (RISES || rising || a.row_max.address || !softmax_near(p, s, m, l, factor)) {
                softmax(s, m, l, shrink, factor);
                rescale(o, shrink);
                round_p(p, s);
                rising = __any_sync(0xffffffffu, fminf(shrink[0], shrink[1]) < 1.0f / NEAR);
            }
            wait_checked(o, c, a, at, kv, flags, row, v.stage, checked);
        }
        warp_arrive(&c.q_empty[r.stage]);
        ring_next<Q_BUFFERS>(r);
        if (Q_BUFFERS > 1)
            begun = rows_follow(c, r);
        barrier_wait(&c.v_full[v.stage], v.phase);
        if (Q_BUFFERS > 1 && begun)
            barrier_wait(&c.k_full[k.stage], k.phase);
        turn_wait(group);
        wgmma_fence();
        multiply_pv(o, p, describe_n_major(v_tiles + v.stage * V_BYTES, KV_SLAB));
        if (Q_BUFFERS > 1 && begun) {
            multiply_qk(s, q + r.stage * (Q_BYTES / 16), describe_k_major(k_tiles + k.stage * K_BYTES));
            turn_pass(group);
            wgmma_wait<1>();
            accumulators_done(o);
            warp_arrive(&c.v_empty[v.stage]);
            store(o, m, l, a, at, row, factor);
            wgmma_wait<0>();
            accumulators_done(s);
        } else {
            turn_pass(group);
            wgmma_wait<0>();
            accumulators_done(o);
            warp_arrive(&c.v_empty[v.stage]);
            store(o, m, l, a, at, row, factor);
        }
        ring_next(v);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_forward_sm90(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ tensor_map q_map,
                        const __grid_constant__ tensor_map k_map, const __grid_constant__ tensor_map v_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    control &c = *(control *)(memory + RESIDENT_BYTES + STAGES * (K_BYTES + V_BYTES));
    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_BUFFERS; i++) {
            barrier_init(&c.q_full[i], 1);
            barrier_init(&c.q_empty[i], (GROUPS * 4 + CHECKERS) * ATTUNE_ARRIVALS);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&c.k_full[i], 1);
            barrier_init(&c.k_empty[i], (GROUPS * 4 + CHECKERS) * ATTUNE_ARRIVALS);
            barrier_init(&c.v_full[i], 1);
            barrier_init(&c.v_empty[i], GROUPS * 4 * ATTUNE_ARRIVALS);
            barrier_init(&c.v_checked[i], 1);
        }
        for (int i = 0; i < AHEAD; i++) {
            barrier_init(&c.step_full[i], 1);
            barrier_init(&c.step_empty[i], 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (KEY_TERMS && threadIdx.x == 0) {
        staged &t = *(staged *)(memory + STAGED_AT);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&t.full[i], CHECKERS * ATTUNE_ARRIVALS);
            barrier_init(&t.empty[i], GROUPS * 4 * ATTUNE_ARRIVALS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEEDER_REGISTERS));
        if (threadIdx.x == 0)
            load(a, c, shared_address(memory), &q_map, &k_map, &v_map);
        else if (threadIdx.x / 32 == 1 && threadIdx.x % 32 < WALKS)
            walk_ahead(a, c);
        else if (CHECKERS && threadIdx.x >= 64)
            check(a, c, memory);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(OWNER_REGISTERS));
        own(a, c, memory);
    }
}
