/* SPDX-License-Identifier: MIT */
/* Products of bf16 by AVX512-BF16, 12 rows x two panels in 24 of the 32 registers, and the packing and the softmax of
 * 16-bit matrices, which AMX shares. */
#include "cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define TARGET     __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define SPECIALISE TARGET static inline __attribute__((always_inline))

#define PANEL 16
#define LANES 16
#define BLOCK 32              /* ATTUNE__BLOCK_K */
#define TILE  (BLOCK * PANEL) /* bf16 of a block of a panel */

/* ---------------------------------------------------------------------------------------------------------- packing */

/* 32 elements as one or two bf16 each. */
typedef struct summands_of {
    __m512i nearest, rest;
} summands_of;

SPECIALISE __m512 widened(__m256i halves)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

SPECIALISE summands_of split(__m512 low, __m512 high)
{
    summands_of x;
    x.nearest = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    const __m512 rest_low = _mm512_sub_ps(low, widened(_mm512_castsi512_si256(x.nearest)));
    const __m512 rest_high = _mm512_sub_ps(high, widened(_mm512_extracti64x4_epi64(x.nearest, 1)));
    x.rest = (__m512i)_mm512_cvtne2ps_pbh(rest_high, rest_low);
    return x;
}

/* The elements c to c + 32 of a row, zeros from `columns` on. Lanes that are infinite or NaN are added to `bad`. */
SPECIALISE summands_of load(const char *row, size_t c, size_t columns, attune_dtype dtype, __mmask32 *bad)
{
    const __mmask32 mask = columns - c >= BLOCK ? 0xffffffff : (1u << (columns - c)) - 1;
    const __m512i x = _mm512_maskz_loadu_epi16(mask, row + 2 * c);
    const __m512i exponent = _mm512_set1_epi16(dtype == ATTUNE_F16 ? 0x7c00 : 0x7f80);
    *bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
    if (dtype == ATTUNE_BF16)
        return (summands_of){x, x};
    return split(_mm512_cvtph_ps(_mm512_castsi512_si256(x)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)));
}

#define FOR_DTYPE(dtype, call)                                                                                         \
    if ((dtype) == ATTUNE_F16) {                                                                                       \
        call(ATTUNE_F16, 2);                                                                                           \
    } else {                                                                                                           \
        call(ATTUNE_BF16, 1);                                                                                          \
    }

SPECIALISE bool pack_q_as(uint16_t *to, size_t ld, const char *from, ptrdiff_t stride, attune_dtype dtype,
                          size_t summands, size_t rows, size_t columns)
{
    __mmask32 bad = 0;
    for (size_t r = 0; r < rows; r++, from += stride, to += ld)
        for (size_t c = 0; c < columns; c += BLOCK) {
            const summands_of x = load(from, c, columns, dtype, &bad);
            _mm512_storeu_si512(to + c * summands, x.nearest);
            if (summands == 2)
                _mm512_storeu_si512(to + c * summands + BLOCK, x.rest);
        }
    return !bad;
}

TARGET static bool pack_q(uint16_t *to, size_t ld, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                          size_t columns){
#define CALL(constant, summands) return pack_q_as(to, ld, from, stride, constant, summands, rows, columns)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

/* Transposes 16 x 16 words of 32 bits: out[32 c + 2 r] = in[r] word c. */
SPECIALISE void transpose(uint16_t *out, const __m512i in[16])
{
    __m512i a[16], b[16];
    for (int i = 0; i < 8; i++) {
        a[2 * i] = _mm512_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(in[2 * i], in[2 * i + 1]);
    }
    /* b[4 i + j]: word j of each 128 bits, of rows 4 i to 4 i + 3. */
    for (int i = 0; i < 4; i++) {
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    for (int j = 0; j < 4; j++) {
        const __m512i even0 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
        const __m512i odd0 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
        const __m512i even1 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
        const __m512i odd1 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
        _mm512_storeu_si512(out + BLOCK * j, _mm512_shuffle_i32x4(even0, even1, 0x88));
        _mm512_storeu_si512(out + BLOCK * (j + 4), _mm512_shuffle_i32x4(odd0, odd1, 0x88));
        _mm512_storeu_si512(out + BLOCK * (j + 8), _mm512_shuffle_i32x4(even0, even1, 0xdd));
        _mm512_storeu_si512(out + BLOCK * (j + 12), _mm512_shuffle_i32x4(odd0, odd1, 0xdd));
    }
}

SPECIALISE bool pack_k_as(uint16_t *to, size_t panel_stride, const char *from, ptrdiff_t stride, attune_dtype dtype,
                          size_t summands, size_t rows, size_t columns)
{
    __mmask32 bad = 0;
    for (size_t r = 0; r < rows; r += PANEL, to += panel_stride)
        for (size_t c = 0; c < columns; c += BLOCK) {
            __m512i nearest[PANEL], rest[PANEL];
            for (size_t i = 0; i < PANEL; i++) {
                nearest[i] = rest[i] = _mm512_setzero_si512();
                if (r + i >= rows)
                    continue;
                const summands_of x = load(from + (ptrdiff_t)(r + i) * stride, c, columns, dtype, &bad);
                nearest[i] = x.nearest;
                rest[i] = x.rest;
            }
            transpose(to + c * PANEL * summands, nearest);
            if (summands == 2)
                transpose(to + c * PANEL * summands + TILE, rest);
        }
    return !bad;
}

TARGET static bool pack_k(uint16_t *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype,
                          size_t rows, size_t columns){
#define CALL(constant, summands) return pack_k_as(to, panel_stride, from, stride, constant, summands, rows, columns)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

/* Two rows of 32 columns, in pairs, to two panels, or one. */
SPECIALISE void interleave(uint16_t *to, size_t panel_stride, __m512i even, __m512i odd, bool two)
{
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
    if (two)
        _mm512_storeu_si512(to + panel_stride,
                            _mm512_permutex2var_epi16(even, _mm512_add_epi16(low, _mm512_set1_epi16(PANEL)), odd));
}

SPECIALISE bool pack_v_as(uint16_t *to, size_t panel_stride, const char *from, ptrdiff_t stride, attune_dtype dtype,
                          size_t summands, size_t rows, size_t columns)
{
    const summands_of zero = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    __mmask32 bad = 0;
    for (size_t r = 0; r < (rows + BLOCK - 1) / BLOCK * BLOCK; r += 2) {
        uint16_t *pair = to + r / BLOCK * TILE * summands + r % BLOCK * PANEL;
        const char *row = from + (ptrdiff_t)r * stride;
        for (size_t c = 0; c < columns; c += BLOCK, pair += 2 * panel_stride) {
            const bool two = columns - c > PANEL;
            const summands_of even = r < rows ? load(row, c, columns, dtype, &bad) : zero;
            const summands_of odd = r + 1 < rows ? load(row + stride, c, columns, dtype, &bad) : zero;
            interleave(pair, panel_stride, even.nearest, odd.nearest, two);
            if (summands == 2)
                interleave(pair + TILE, panel_stride, even.rest, odd.rest, two);
        }
    }
    return !bad;
}

TARGET static bool pack_v(uint16_t *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype,
                          size_t rows, size_t columns){
#define CALL(constant, summands) return pack_v_as(to, panel_stride, from, stride, constant, summands, rows, columns)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

/* --------------------------------------------------------------------------------------------------------- products */

#define ROWS_1(X)  X(0)
#define ROWS_2(X)  ROWS_1(X) X(1)
#define ROWS_3(X)  ROWS_2(X) X(2)
#define ROWS_4(X)  ROWS_3(X) X(3)
#define ROWS_5(X)  ROWS_4(X) X(4)
#define ROWS_6(X)  ROWS_5(X) X(5)
#define ROWS_7(X)  ROWS_6(X) X(6)
#define ROWS_8(X)  ROWS_7(X) X(7)
#define ROWS_9(X)  ROWS_8(X) X(8)
#define ROWS_10(X) ROWS_9(X) X(9)
#define ROWS_11(X) ROWS_10(X) X(10)
#define ROWS_12(X) ROWS_11(X) X(11)

SPECIALISE __m512 add_pairs(__m512 sum, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

SPECIALISE __m512i pair_at(const uint16_t *a)
{
    int pair;
    memcpy(&pair, a, sizeof pair);
    return _mm512_set1_epi32(pair);
}

#define ZERO(r) __m512 sum##r##_0 = _mm512_setzero_ps(), sum##r##_1 = _mm512_setzero_ps();
#define STEP(r)                                                                                                        \
    {                                                                                                                  \
        const __m512i x = pair_at(a + (r)*lda + p);                                                                    \
        sum##r##_0 = add_pairs(sum##r##_0, x, b0);                                                                     \
        if (two)                                                                                                       \
            sum##r##_1 = add_pairs(sum##r##_1, x, b1);                                                                 \
    }
#define END(r)                                                                                                         \
    if (add) {                                                                                                         \
        sum##r##_0 = _mm512_add_ps(_mm512_loadu_ps(c + (r)*ldc), sum##r##_0);                                          \
        if (two)                                                                                                       \
            sum##r##_1 = _mm512_add_ps(_mm512_loadu_ps(c + (r)*ldc + LANES), sum##r##_1);                              \
    }                                                                                                                  \
    _mm512_storeu_ps(c + (r)*ldc, sum##r##_0);                                                                         \
    if (two)                                                                                                           \
        _mm512_storeu_ps(c + (r)*ldc + LANES, sum##r##_1);

/* `two` panels of b, or one. */
#define BLOCK_OF(n)                                                                                                    \
    SPECIALISE void block_##n(float *c, size_t ldc, const uint16_t *a, size_t lda, size_t k, const uint16_t *b,        \
                              size_t panel_stride, bool add, bool two)                                                 \
    {                                                                                                                  \
        ROWS_##n(ZERO) for (size_t p = 0; p < k; p += 2)                                                               \
        {                                                                                                              \
            const __m512i b0 = _mm512_loadu_si512(b + p * PANEL);                                                      \
            const __m512i b1 = two ? _mm512_loadu_si512(b + panel_stride + p * PANEL) : b0;                            \
            ROWS_##n(STEP)                                                                                             \
        }                                                                                                              \
        ROWS_##n(END)                                                                                                  \
    }
BLOCK_OF(1)
BLOCK_OF(2)
BLOCK_OF(4)
BLOCK_OF(8)
BLOCK_OF(12)

SPECIALISE void strip(float *c, size_t ldc, const uint16_t *a, size_t lda, size_t m, size_t k, const uint16_t *b,
                      size_t panel_stride, bool add, bool two)
{
    for (; m >= 12; m -= 12, c += 12 * ldc, a += 12 * lda)
        block_12(c, ldc, a, lda, k, b, panel_stride, add, two);
    /* The remaining rows in powers of two, which limits the number of variants. */
    if (m & 8) {
        block_8(c, ldc, a, lda, k, b, panel_stride, add, two);
        c += 8 * ldc;
        a += 8 * lda;
    }
    if (m & 4) {
        block_4(c, ldc, a, lda, k, b, panel_stride, add, two);
        c += 4 * ldc;
        a += 4 * lda;
    }
    if (m & 2) {
        block_2(c, ldc, a, lda, k, b, panel_stride, add, two);
        c += 2 * ldc;
        a += 2 * lda;
    }
    if (m & 1)
        block_1(c, ldc, a, lda, k, b, panel_stride, add, two);
}

SPECIALISE void product(float *c, size_t ldc, const uint16_t *a, size_t lda, size_t m, size_t k, const uint16_t *b,
                        size_t panel_stride, size_t panels, bool add)
{
    for (; panels >= 2; panels -= 2, b += 2 * panel_stride, c += 2 * PANEL)
        strip(c, ldc, a, lda, m, k, b, panel_stride, add, true);
    if (panels)
        strip(c, ldc, a, lda, m, k, b, panel_stride, add, false);
}

/* Elements have one summand: with two, float would be as fast. */
TARGET static void multiply(float *c, size_t ldc, const uint16_t *a, size_t lda, size_t m, size_t blocks,
                            const uint16_t *b, size_t panel_stride, size_t panels, size_t summands, bool add,
                            bool exact)
{
    (void)summands;
    (void)exact;
    if (add)
        product(c, ldc, a, lda, m, blocks * BLOCK, b, panel_stride, panels, true);
    else
        product(c, ldc, a, lda, m, blocks * BLOCK, b, panel_stride, panels, false);
}

/* ------------------------------------------------------------------------------------------------------------- rows */

/* Rows whose maxima, or sums, are reduced together: one after another their latencies would be a third of the time. */
#define ROWS 4

/* The reductions of four vectors; of one, the same of four copies, so that a row's value does not depend on others. */
#define REDUCE(name, op, op256, op128)                                                                                 \
    SPECIALISE __m128 name(const __m512 x[ROWS], size_t rows)                                                          \
    {                                                                                                                  \
        const __m512 x1 = x[rows > 1 ? 1 : 0], x2 = x[rows > 2 ? 2 : 0], x3 = x[rows > 3 ? 3 : 0];                     \
        const __m512 a = op(_mm512_unpacklo_ps(x[0], x1), _mm512_unpackhi_ps(x[0], x1));                               \
        const __m512 b = op(_mm512_unpacklo_ps(x2, x3), _mm512_unpackhi_ps(x2, x3));                                   \
        const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));                              \
        const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));                             \
        const __m512 c = op(_mm512_castpd_ps(low), _mm512_castpd_ps(high));                                            \
        const __m256 d = op256(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));                               \
        return op128(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));                                          \
    }
REDUCE(reduce_max, _mm512_max_ps, _mm256_max_ps, _mm_max_ps)
REDUCE(reduce_add, _mm512_add_ps, _mm256_add_ps, _mm_add_ps)

SPECIALISE void rows_max_of(const float *s, size_t lds, size_t rows, size_t n, float scale, float *max)
{
    const __m512 factor = _mm512_set1_ps(scale);
    __m512 most[ROWS];
    for (size_t r = 0; r < rows; r++)
        most[r] = _mm512_set1_ps(-INFINITY);
    /* If the first operand is NaN, max returns the second. */
    for (size_t i = 0; i < n; i += LANES)
        for (size_t r = 0; r < rows; r++)
            most[r] = _mm512_max_ps(_mm512_mul_ps(_mm512_loadu_ps(s + r * lds + i), factor), most[r]);
    _mm_mask_storeu_ps(max, (__mmask8)((1u << rows) - 1), reduce_max(most, rows));
}

TARGET static void rows_max(const float *s, size_t lds, size_t rows, size_t n, float scale, float *max)
{
    size_t r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        rows_max_of(s + r * lds, lds, ROWS, n, scale, max + r);
    for (; r < rows; r++)
        rows_max_of(s + r * lds, lds, 1, n, scale, max + r);
}

/* exp(x) = 2^t, t = x log2(e): 2^(t - floor(t)) by a polynomial with an error of 1e-7, with 1 for 0; scalef multiplies
 * by 2^floor(t). An exponent that rounds t is off by |t| 2^-24, which for x < -1 is less than the exponential itself
 * loses beside a weight of 1. 0 below the smallest normal number; NaN remains NaN. */
SPECIALISE __m512 exp_nonpositive(__m512 x)
{
    const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f));
    const __m512 r = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(0x1.e974fap-10f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.277856p-7f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.c91ce6p-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.ebdb56p-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.62e4bap-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    /* Not less than, unordered: true for NaN. */
    const __mmask16 keep = _mm512_cmp_ps_mask(t, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(keep, p, t);
}

SPECIALISE __m512 row_exp(uint16_t *p, const float *s, size_t n, float scale, float m, size_t summands)
{
    const __m512 factor = _mm512_set1_ps(scale), shift = _mm512_set1_ps(m);
    __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0;
    for (size_t i = 0; i < n; i += BLOCK, p += BLOCK * summands) {
        const __m512 x0 = _mm512_mul_ps(_mm512_loadu_ps(s + i), factor);
        const __m512 x1 = _mm512_mul_ps(_mm512_loadu_ps(s + i + LANES), factor);
        const __m512 p0 = exp_nonpositive(_mm512_sub_ps(x0, shift)), p1 = exp_nonpositive(_mm512_sub_ps(x1, shift));
        sum0 = _mm512_add_ps(sum0, p0);
        sum1 = _mm512_add_ps(sum1, p1);
        if (summands == 1) {
            _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(p1, p0));
            continue;
        }
        const summands_of x = split(p0, p1);
        _mm512_storeu_si512(p, x.nearest);
        _mm512_storeu_si512(p + BLOCK, x.rest);
    }
    return _mm512_add_ps(sum0, sum1);
}

SPECIALISE void rows_exp_of(uint16_t *p, size_t ldp, const float *s, size_t lds, size_t rows, size_t n, float scale,
                            const float *m, float *sum, size_t summands)
{
    __m512 sums[ROWS];
    for (size_t r = 0; r < rows; r++)
        sums[r] = row_exp(p + r * ldp, s + r * lds, n, scale, m[r], summands);
    _mm_mask_storeu_ps(sum, (__mmask8)((1u << rows) - 1), reduce_add(sums, rows));
}

SPECIALISE void rows_exp_as(uint16_t *p, size_t ldp, const float *s, size_t lds, size_t rows, size_t n, float scale,
                            const float *m, float *sum, size_t summands)
{
    size_t r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        rows_exp_of(p + r * ldp, ldp, s + r * lds, lds, ROWS, n, scale, m + r, sum + r, summands);
    for (; r < rows; r++)
        rows_exp_of(p + r * ldp, ldp, s + r * lds, lds, 1, n, scale, m + r, sum + r, summands);
}

TARGET static void rows_exp(uint16_t *p, size_t ldp, const float *s, size_t lds, size_t rows, size_t n, float scale,
                            const float *m, float *sum, size_t summands)
{
    if (summands == 1)
        rows_exp_as(p, ldp, s, lds, rows, n, scale, m, sum, 1);
    else
        rows_exp_as(p, ldp, s, lds, rows, n, scale, m, sum, 2);
}

static void nothing(void)
{
}

bool attune__cpu_matrix_bf16(attune__cpu_matrix *matrix)
{
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return false;
    *matrix = (attune__cpu_matrix){
        .name = "cpu_bf16",
        .pack_q = pack_q,
        .pack_k = pack_k,
        .pack_v = pack_v,
        .multiply = multiply,
        .rows_max = rows_max,
        .rows_exp = rows_exp,
        .begin = nothing,
        .end = nothing,
    };
    return true;
}

#else

bool attune__cpu_matrix_bf16(attune__cpu_matrix *matrix)
{
    (void)matrix;
    return false;
}

#endif
