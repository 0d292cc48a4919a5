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
    kernels->row_max = row_max;
    kernels->row_exp = row_exp;
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
