/* SPDX-License-Identifier: MIT */
/* The kernels that AVX-512F makes faster than AVX2: the matrix product, with 12 rows x two panels in 24 of the 32
 * registers, and the softmax of a row. Packed panels have the same layout for both. */
#include "cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>

#define TARGET     __attribute__((target("avx512f")))
#define SPECIALISE TARGET static inline __attribute__((always_inline))

#define PANEL 16
#define LANES 16

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

#define ZERO(r) __m512 sum##r##_0 = _mm512_setzero_ps(), sum##r##_1 = _mm512_setzero_ps();
#define STEP(r)                                                                                                        \
    {                                                                                                                  \
        __m512 x = _mm512_set1_ps(a[(r)*lda + p]);                                                                     \
        sum##r##_0 = _mm512_fmadd_ps(x, b0, sum##r##_0);                                                               \
        if (two)                                                                                                       \
            sum##r##_1 = _mm512_fmadd_ps(x, b1, sum##r##_1);                                                           \
    }
#define SET(r)                                                                                                         \
    _mm512_storeu_ps(c + (r)*ldc, _mm512_mul_ps(sum##r##_0, factor));                                                  \
    if (two)                                                                                                           \
        _mm512_storeu_ps(c + (r)*ldc + LANES, _mm512_mul_ps(sum##r##_1, factor));
#define ADD(r)                                                                                                         \
    _mm512_storeu_ps(c + (r)*ldc, _mm512_add_ps(_mm512_loadu_ps(c + (r)*ldc), sum##r##_0));                            \
    if (two)                                                                                                           \
        _mm512_storeu_ps(c + (r)*ldc + LANES, _mm512_add_ps(_mm512_loadu_ps(c + (r)*ldc + LANES), sum##r##_1));

/* `two` panels of b, or one. */
#define BLOCK(n)                                                                                                       \
    SPECIALISE void block_##n(float *c, size_t ldc, const float *a, size_t lda, size_t k, const float *b,              \
                              size_t panel_stride, float scale, bool add, bool two)                                    \
    {                                                                                                                  \
        ROWS_##n(ZERO) for (size_t p = 0; p < k; p++)                                                                  \
        {                                                                                                              \
            __m512 b0 = _mm512_loadu_ps(b + p * PANEL);                                                                \
            __m512 b1 = two ? _mm512_loadu_ps(b + panel_stride + p * PANEL) : b0;                                      \
            ROWS_##n(STEP)                                                                                             \
        }                                                                                                              \
        if (add) {                                                                                                     \
            ROWS_##n(ADD)                                                                                              \
        } else {                                                                                                       \
            const __m512 factor = _mm512_set1_ps(scale);                                                               \
            ROWS_##n(SET)                                                                                              \
        }                                                                                                              \
    }
BLOCK(1)
BLOCK(2)
BLOCK(4)
BLOCK(8)
BLOCK(12)

SPECIALISE void strip(float *c, size_t ldc, const float *a, size_t lda, size_t m, size_t k, const float *b,
                      size_t panel_stride, float scale, bool add, bool two)
{
    for (; m >= 12; m -= 12, c += 12 * ldc, a += 12 * lda)
        block_12(c, ldc, a, lda, k, b, panel_stride, scale, add, two);
    /* The remaining rows in powers of two, which limits the number of variants. */
    if (m & 8) {
        block_8(c, ldc, a, lda, k, b, panel_stride, scale, add, two);
        c += 8 * ldc;
        a += 8 * lda;
    }
    if (m & 4) {
        block_4(c, ldc, a, lda, k, b, panel_stride, scale, add, two);
        c += 4 * ldc;
        a += 4 * lda;
    }
    if (m & 2) {
        block_2(c, ldc, a, lda, k, b, panel_stride, scale, add, two);
        c += 2 * ldc;
        a += 2 * lda;
    }
    if (m & 1)
        block_1(c, ldc, a, lda, k, b, panel_stride, scale, add, two);
}

SPECIALISE void product(float *c, size_t ldc, const float *a, size_t lda, size_t m, size_t k, const float *b,
                        size_t panel_stride, size_t panels, float scale, bool add)
{
    for (; panels >= 2; panels -= 2, b += 2 * panel_stride, c += 2 * PANEL)
        strip(c, ldc, a, lda, m, k, b, panel_stride, scale, add, true);
    if (panels)
        strip(c, ldc, a, lda, m, k, b, panel_stride, scale, add, false);
}

TARGET static void multiply(float *c, size_t ldc, const float *a, size_t lda, size_t m, size_t k, const float *b,
                            size_t panel_stride, size_t panels, float scale)
{
    product(c, ldc, a, lda, m, k, b, panel_stride, panels, scale, false);
}

TARGET static void multiply_add(float *c, size_t ldc, const float *a, size_t lda, size_t m, size_t k, const float *b,
                                size_t panel_stride, size_t panels)
{
    product(c, ldc, a, lda, m, k, b, panel_stride, panels, 1, true);
}

SPECIALISE const float *row_at(const void *rows, ptrdiff_t stride, const uint16_t *at, size_t c)
{
    return (const float *)(const void *)((const char *)rows + (ptrdiff_t)(at ? at[c] : c) * stride);
}

/* The lower half plus the upper half. */
SPECIALISE __m256 halves(__m512 x)
{
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
}

/* The horizontal sums of four vectors. */
SPECIALISE __m128 sums(__m512 a, __m512 b, __m512 c, __m512 d)
{
    const __m256 four = _mm256_hadd_ps(_mm256_hadd_ps(halves(a), halves(b)), _mm256_hadd_ps(halves(c), halves(d)));
    return _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
}

/* The columns d to d + LANES of a row that has `columns`. */
SPECIALISE __m512 columns_at(const float *row, size_t d, size_t columns)
{
    return d + LANES <= columns ? _mm512_loadu_ps(row + d) : _mm512_maskz_loadu_ps(0xff, row + d);
}

#define DOT_START(i)                                                                                                   \
    __m512 dot##i = _mm512_setzero_ps();                                                                               \
    const float *k##i = row_at(k, stride, at, c + (i) < count ? c + (i) : count - 1);
#define DOT_STEP(i) dot##i = _mm512_fmadd_ps(x, columns_at(k##i, d, columns), dot##i);

/* Eight rows of k with one row of q. */
TARGET static void dots(float *s, size_t lds, const float *q, size_t ldq, size_t rows, const void *k, ptrdiff_t stride,
                        const uint16_t *at, size_t count, size_t columns, float scale)
{
    for (size_t c = 0; c < count; c += 8)
        for (size_t r = 0; r < rows; r++) {
            /* Past the end the last row is read again, and the result dropped. */
            ROWS_8(DOT_START)
            for (size_t d = 0; d < columns; d += LANES) {
                const __m512 x = columns_at(q + r * ldq, d, columns);
                ROWS_8(DOT_STEP)
            }
            const __m256 eight =
                _mm256_mul_ps(_mm256_insertf128_ps(_mm256_castps128_ps256(sums(dot0, dot1, dot2, dot3)),
                                                   sums(dot4, dot5, dot6, dot7), 1),
                              _mm256_set1_ps(scale));
            const size_t left = count - c;
            _mm512_mask_storeu_ps(s + r * lds + c, (__mmask16)(left < 8 ? (1u << left) - 1 : 0xff),
                                  _mm512_castps256_ps512(eight));
        }
}

#define AXPY_START(i) __m512 sum##i = _mm512_maskz_loadu_ps(mask##i, o + LANES * (i));
#define AXPY_STEP(i)  sum##i = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(mask##i, row + LANES * (i)), sum##i);
#define AXPY_END(i)   _mm512_mask_storeu_ps(o + LANES * (i), mask##i, sum##i);
#define AXPY_MASK(i)                                                                                                   \
    const __mmask16 mask##i = (__mmask16)(columns >= LANES * ((i) + 1) ? 0xffff : columns > LANES * (i) ? 0xff : 0);

/* One row of o, up to n vectors of it in registers. */
#define AXPY(n)                                                                                                        \
    SPECIALISE void axpy_##n(float *o, const float *p, const void *v, ptrdiff_t stride, const uint16_t *at,            \
                             size_t count, size_t columns, size_t d)                                                   \
    {                                                                                                                  \
        ROWS_##n(AXPY_MASK) ROWS_##n(AXPY_START) for (size_t c = 0; c < count; c++)                                    \
        {                                                                                                              \
            const float *row = row_at(v, stride, at, c) + d;                                                           \
            const __m512 x = _mm512_set1_ps(p[c]);                                                                     \
            ROWS_##n(AXPY_STEP)                                                                                        \
        }                                                                                                              \
        ROWS_##n(AXPY_END)                                                                                             \
    }
AXPY(4)
AXPY(8)

TARGET static void axpys(float *o, size_t ldo, const float *p, size_t ldp, size_t rows, const void *v, ptrdiff_t stride,
                         const uint16_t *at, size_t count, size_t columns)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t d = 0; d < columns; d += 8 * LANES) {
            const size_t left = columns - d;
            if (left > 4 * LANES)
                axpy_8(o + r * ldo + d, p + r * ldp, v, stride, at, count, left, d);
            else
                axpy_4(o + r * ldo + d, p + r * ldp, v, stride, at, count, left, d);
        }
}

TARGET static float row_max(const float *s, size_t n)
{
    __m512 max = _mm512_set1_ps(-INFINITY);
    /* If the first operand is NaN, max returns the second. */
    for (size_t i = 0; i < n; i += LANES)
        max = _mm512_max_ps(_mm512_loadu_ps(s + i), max);
    return _mm512_reduce_max_ps(max);
}

/* As exp_nonpositive in kernel_generic_f32.c, with FMA. */
SPECIALISE __m512 exp_nonpositive(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.63p-1f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-0x1.bd0106p-13f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
    __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    /* Not less than, unordered: true for NaN. */
    __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.33654f), _CMP_NLT_UQ);
    return _mm512_maskz_mul_ps(keep, p, _mm512_castsi512_ps(bits));
}

TARGET static float row_exp(float *s, size_t n, float m)
{
    const __m512 shift = _mm512_set1_ps(m);
    __m512 sum = _mm512_setzero_ps();
    for (size_t i = 0; i < n; i += LANES) {
        __m512 p = exp_nonpositive(_mm512_sub_ps(_mm512_loadu_ps(s + i), shift));
        _mm512_storeu_ps(s + i, p);
        sum = _mm512_add_ps(sum, p);
    }
    return _mm512_reduce_add_ps(sum);
}

TARGET static void row_mask(float *s, const uint16_t *bits, size_t n)
{
    for (size_t i = 0; i < n; i += LANES)
        _mm512_mask_storeu_ps(s + i, (__mmask16)~bits[i / LANES], _mm512_set1_ps(-INFINITY));
}

TARGET static void row_gradient(float *s, float *d, const uint16_t *bits, size_t n, float lse, float delta)
{
    const __m512 shift = _mm512_set1_ps(lse), less = _mm512_set1_ps(delta);
    for (size_t i = 0; i < n; i += LANES) {
        const __mmask16 allowed = bits ? bits[i / LANES] : 0xffff;
        const __m512 e = exp_nonpositive(_mm512_sub_ps(_mm512_loadu_ps(s + i), shift));
        /* Unordered: true for NaN. */
        const __mmask16 some = _mm512_mask_cmp_ps_mask(allowed, e, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        _mm512_storeu_ps(s + i, _mm512_maskz_mov_ps(some, e));
        _mm512_storeu_ps(d + i, _mm512_maskz_mul_ps(some, e, _mm512_sub_ps(_mm512_loadu_ps(d + i), less)));
    }
}

#define PEAK_START(r) __m512 sum##r##_0 = _mm512_set1_ps((r)), sum##r##_1 = _mm512_set1_ps((r) + 0.5f);
#define PEAK_STEP(r)                                                                                                   \
    sum##r##_0 = _mm512_fmadd_ps(sum##r##_0, x, y);                                                                    \
    sum##r##_1 = _mm512_fmadd_ps(sum##r##_1, x, y);
#define PEAK_SUM(r) total = _mm512_add_ps(total, _mm512_add_ps(sum##r##_0, sum##r##_1));

TARGET static float peak(size_t rounds)
{
    const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
    ROWS_6(PEAK_START)
    for (size_t round = 0; round < rounds; round++) {
        ROWS_6(PEAK_STEP)
    }
    __m512 total = _mm512_setzero_ps();
    ROWS_6(PEAK_SUM)
    return _mm512_reduce_add_ps(total);
}

bool attune__cpu_kernels_avx512(attune__cpu_kernels_f32 *kernels)
{
    if (!__builtin_cpu_supports("avx512f"))
        return false;
    kernels->name = "avx512";
    kernels->lanes = LANES;
    kernels->multiply = multiply;
    kernels->multiply_add = multiply_add;
    kernels->dots = dots;
    kernels->axpys = axpys;
    kernels->row_max = row_max;
    kernels->row_exp = row_exp;
    kernels->row_mask = row_mask;
    kernels->row_gradient = row_gradient;
    kernels->peak = peak;
    kernels->peak_flops = 2 * 12 * LANES;
    return true;
}

#else

bool attune__cpu_kernels_avx512(attune__cpu_kernels_f32 *kernels)
{
    (void)kernels;
    return false;
}

#endif
