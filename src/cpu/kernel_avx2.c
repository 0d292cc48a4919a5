/* SPDX-License-Identifier: MIT */
/* The kernels for x86 processors with AVX2, FMA and F16C. The matrix product keeps 6 rows x 16 columns of the result in
 * 12 of the 16 registers, as BLIS does: two loads of b and six broadcasts of a for twelve FMAs. */
#include "cpu/kernels.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
/* Inlined, so that each use is specialised for its constant arguments. */
#define SPECIALISE TARGET static inline __attribute__((always_inline))

#define PANEL 16
#define LANES 8

/* ---------------------------------------------------------------------------------------------------- storage types */

SPECIALISE __m256 load(const char *from, attune_dtype dtype)
{
    if (dtype == ATTUNE_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
    if (dtype == ATTUNE_BF16) {
        __m128i half = _mm_loadu_si128((const __m128i *)(const void *)from);
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    return _mm256_loadu_ps((const float *)(const void *)from);
}

SPECIALISE size_t load_bytes(attune_dtype dtype)
{
    return dtype == ATTUNE_F32 ? LANES * sizeof(float) : LANES * sizeof(uint16_t);
}

/* All ones in the lanes that are infinite or NaN: their exponent is all ones. */
SPECIALISE __m256i not_finite(__m256 x)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(x), exponent), exponent);
}

/* f(dtype) with dtype a constant in each branch. */
#define FOR_DTYPE(dtype, call)                                                                                         \
    if ((dtype) == ATTUNE_F16) {                                                                                       \
        call(ATTUNE_F16);                                                                                              \
    } else if ((dtype) == ATTUNE_BF16) {                                                                               \
        call(ATTUNE_BF16);                                                                                             \
    } else {                                                                                                           \
        call(ATTUNE_F32);                                                                                              \
    }

SPECIALISE void load_rows_as(float *to, size_t ld, const char *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                             size_t columns, float scale)
{
    const __m256 factor = _mm256_set1_ps(scale);
    for (size_t r = 0; r < rows; r++, from += stride, to += ld) {
        const char *element = from;
        for (size_t c = 0; c < columns; c += LANES, element += load_bytes(dtype))
            _mm256_storeu_ps(to + c, _mm256_mul_ps(load(element, dtype), factor));
    }
}

TARGET static void load_rows(float *to, size_t ld, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                             size_t columns, float scale){
#define CALL(constant) load_rows_as(to, ld, from, stride, constant, rows, columns, scale)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

/* Eight codes of a byte each, and in blocks. */
SPECIALISE __m256 values_of(__m128i codes, attune_dtype dtype)
{
    if (dtype == ATTUNE_F8E5M2) /* the first half of an f16 */
        return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(codes), 8));
    if (dtype != ATTUNE_F8E4M3)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    /* As attune__f32_from_f8e4m3: exponent and fraction in the places of a float, whose bias is 120 more. */
    const __m256i wide = _mm256_cvtepu8_epi32(codes), bits = _mm256_and_si256(wide, _mm256_set1_epi32(0x7f));
    const __m256 magnitude = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(bits, 20)), _mm256_set1_ps(0x1p120f));
    const __m256i nan = _mm256_cmpeq_epi32(bits, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(wide, bits), 24);
    return _mm256_or_ps(_mm256_or_ps(magnitude, _mm256_castsi256_ps(sign)), _mm256_castsi256_ps(nan));
}

SPECIALISE void dequantise_bytes(float *to, const uint8_t *from, attune_dtype dtype, size_t columns, float scale)
{
    const __m256 factor = _mm256_set1_ps(scale);
    for (size_t c = 0; c < columns; c += LANES)
        _mm256_storeu_ps(to + c, _mm256_mul_ps(factor, values_of(_mm_loadl_epi64((const __m128i *)(from + c)), dtype)));
}

/* ggml's blocks of 32: a factor in f16, then the codes. */
SPECIALISE void dequantise_blocks(float *to, const uint8_t *from, attune_dtype dtype, size_t columns)
{
    const __m128i low = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
    for (size_t c = 0; c < columns; c += 32, from += dtype == ATTUNE_Q8_0 ? 34 : 18) {
        uint16_t half;
        memcpy(&half, from, sizeof half);
        const __m256 factor = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
        __m128i codes[2];
        codes[0] = _mm_loadu_si128((const __m128i *)(from + 2));
        if (dtype == ATTUNE_Q8_0)
            codes[1] = _mm_loadu_si128((const __m128i *)(from + 18));
        else {
            codes[1] = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(codes[0], 4), low), eight);
            codes[0] = _mm_sub_epi8(_mm_and_si128(codes[0], low), eight);
        }
        for (size_t i = 0; i < 2; i++) {
            _mm256_storeu_ps(to + c + 16 * i, _mm256_mul_ps(factor, values_of(codes[i], dtype)));
            _mm256_storeu_ps(to + c + 16 * i + 8,
                             _mm256_mul_ps(factor, values_of(_mm_unpackhi_epi64(codes[i], codes[i]), dtype)));
        }
    }
}

TARGET static void dequantise(float *to, const void *from, attune_dtype dtype, size_t columns, float scale)
{
    switch (dtype) {
    case ATTUNE_Q8_0:
        dequantise_blocks(to, from, ATTUNE_Q8_0, columns);
        break;
    case ATTUNE_Q4_0:
        dequantise_blocks(to, from, ATTUNE_Q4_0, columns);
        break;
    case ATTUNE_F8E4M3:
        dequantise_bytes(to, from, ATTUNE_F8E4M3, columns, scale);
        break;
    case ATTUNE_F8E5M2:
        dequantise_bytes(to, from, ATTUNE_F8E5M2, columns, scale);
        break;
    default:
        dequantise_bytes(to, from, ATTUNE_I8, columns, scale);
        break;
    }
}

/* Transposes 8 x 8: out[c * PANEL + r] = in[r][c]. */
SPECIALISE void transpose(float *out, const __m256 in[8])
{
    __m256 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps(in[2 * i], in[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(in[2 * i], in[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
        b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + i * PANEL, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * PANEL, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
    }
}

SPECIALISE void pack_k_as(float *to, const char *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                          size_t columns)
{
    for (size_t r = 0; r < rows; r += PANEL, to += PANEL * columns)
        for (size_t half = 0; half < PANEL; half += LANES)
            for (size_t c = 0; c < columns; c += LANES) {
                const char *element =
                    from + (ptrdiff_t)(r + half) * stride + (ptrdiff_t)(c / LANES * load_bytes(dtype));
                __m256 row[8];
                if (r + half + LANES <= rows)
                    for (int i = 0; i < 8; i++)
                        row[i] = load(element + i * stride, dtype);
                else
                    for (int i = 0; i < 8; i++)
                        row[i] = r + half + (size_t)i < rows ? load(element + i * stride, dtype) : _mm256_setzero_ps();
                transpose(to + c * PANEL + half, row);
            }
}

TARGET static void pack_k(float *to, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                          size_t columns){
#define CALL(constant) pack_k_as(to, from, stride, constant, rows, columns)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

SPECIALISE bool pack_v_as(float *to, size_t panel_stride, const char *from, ptrdiff_t stride, attune_dtype dtype,
                          size_t rows, size_t columns)
{
    __m256i bad = _mm256_setzero_si256();
    for (size_t r = 0; r < rows; r++, from += stride, to += PANEL) {
        const char *element = from;
        for (size_t c = 0; c < columns; c += LANES, element += load_bytes(dtype)) {
            __m256 x = load(element, dtype);
            bad = _mm256_or_si256(bad, not_finite(x));
            _mm256_storeu_ps(to + c / PANEL * panel_stride + c % PANEL, x);
        }
        if (columns % PANEL)
            _mm256_storeu_ps(to + columns / PANEL * panel_stride + LANES, _mm256_setzero_ps());
    }
    return _mm256_testz_si256(bad, bad);
}

TARGET static bool pack_v(float *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype,
                          size_t rows, size_t columns){
#define CALL(constant) return pack_v_as(to, panel_stride, from, stride, constant, rows, columns)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

SPECIALISE bool all_finite_as(const char *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns)
{
    __m256i bad = _mm256_setzero_si256();
    for (size_t r = 0; r < rows; r++, from += stride) {
        const char *element = from;
        for (size_t c = 0; c < columns; c += LANES, element += load_bytes(dtype))
            bad = _mm256_or_si256(bad, not_finite(load(element, dtype)));
    }
    return _mm256_testz_si256(bad, bad);
}

TARGET static bool all_finite(const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns){
#define CALL(constant) return all_finite_as(from, stride, constant, rows, columns)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

/* To nearest, ties to even; NaN remains NaN. */
SPECIALISE __m128i bf16_from_f32(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan)), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

TARGET static void store_row(void *to, attune_dtype dtype, const float *from, size_t columns, float divisor)
{
    const __m256 d = _mm256_set1_ps(divisor);
    for (size_t c = 0; c < columns; c += LANES) {
        __m256 x = _mm256_div_ps(_mm256_loadu_ps(from + c), d);
        if (dtype == ATTUNE_F16)
            _mm_storeu_si128((__m128i *)(void *)((char *)to + c * sizeof(uint16_t)),
                             _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        else if (dtype == ATTUNE_BF16)
            _mm_storeu_si128((__m128i *)(void *)((char *)to + c * sizeof(uint16_t)), bf16_from_f32(x));
        else
            _mm256_storeu_ps((float *)(void *)((char *)to + c * sizeof(float)), x);
    }
}

/* --------------------------------------------------------------------------------------------------------- products */

/* Rows are unrolled by macros, so that the sums are in registers for any compiler and option. */
#define ROWS_1(X) X(0)
#define ROWS_2(X) ROWS_1(X) X(1)
#define ROWS_3(X) ROWS_2(X) X(2)
#define ROWS_4(X) ROWS_3(X) X(3)
#define ROWS_5(X) ROWS_4(X) X(4)
#define ROWS_6(X) ROWS_5(X) X(5)

#define ZERO(r) __m256 sum##r##0 = _mm256_setzero_ps(), sum##r##1 = _mm256_setzero_ps();
#define STEP(r)                                                                                                        \
    {                                                                                                                  \
        __m256 x = _mm256_broadcast_ss(a + (r)*lda + p);                                                               \
        sum##r##0 = _mm256_fmadd_ps(x, b0, sum##r##0);                                                                 \
        sum##r##1 = _mm256_fmadd_ps(x, b1, sum##r##1);                                                                 \
    }
#define SET(r)                                                                                                         \
    _mm256_storeu_ps(c + (r)*ldc, _mm256_mul_ps(sum##r##0, factor));                                                   \
    _mm256_storeu_ps(c + (r)*ldc + LANES, _mm256_mul_ps(sum##r##1, factor));
#define ADD(r)                                                                                                         \
    _mm256_storeu_ps(c + (r)*ldc, _mm256_add_ps(_mm256_loadu_ps(c + (r)*ldc), sum##r##0));                             \
    _mm256_storeu_ps(c + (r)*ldc + LANES, _mm256_add_ps(_mm256_loadu_ps(c + (r)*ldc + LANES), sum##r##1));

#define BLOCK(n)                                                                                                       \
    SPECIALISE void block_##n(float *c, size_t ldc, const float *a, size_t lda, size_t k, const float *b, float scale, \
                              bool add)                                                                                \
    {                                                                                                                  \
        ROWS_##n(ZERO) _Pragma("GCC unroll 4") for (size_t p = 0; p < k; p++, b += PANEL)                              \
        {                                                                                                              \
            __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + LANES);                                           \
            ROWS_##n(STEP)                                                                                             \
        }                                                                                                              \
        if (add) {                                                                                                     \
            ROWS_##n(ADD)                                                                                              \
        } else {                                                                                                       \
            const __m256 factor = _mm256_set1_ps(scale);                                                               \
            ROWS_##n(SET)                                                                                              \
        }                                                                                                              \
    }
BLOCK(1)
BLOCK(2)
BLOCK(3)
BLOCK(4)
BLOCK(5)
BLOCK(6)

#define PRODUCT_TARGET TARGET
#include "cpu/product_tmpl.h"

/* The horizontal sums of four vectors. */
SPECIALISE __m128 sums(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 abcd = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
}

SPECIALISE const float *row_at(const void *rows, ptrdiff_t stride, const uint16_t *at, size_t c)
{
    return (const float *)(const void *)((const char *)rows + (ptrdiff_t)(at ? at[c] : c) * stride);
}

/* Four rows of k with one row of q: loads of k dominate if k is in memory. */
TARGET static void dots(float *s, size_t lds, const float *q, size_t ldq, size_t rows, const void *k, ptrdiff_t stride,
                        const uint16_t *at, size_t count, size_t columns, float scale)
{
    for (size_t c = 0; c < count; c += 4) {
        /* Past the end the last row is read again, and the result dropped. */
        const float *row[4];
        for (size_t i = 0; i < 4; i++)
            row[i] = row_at(k, stride, at, c + i < count ? c + i : count - 1);
        for (size_t r = 0; r < rows; r++) {
            const float *x = q + r * ldq;
            __m256 sum0 = _mm256_setzero_ps(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
            for (size_t d = 0; d < columns; d += LANES) {
                __m256 xd = _mm256_loadu_ps(x + d);
                sum0 = _mm256_fmadd_ps(xd, _mm256_loadu_ps(row[0] + d), sum0);
                sum1 = _mm256_fmadd_ps(xd, _mm256_loadu_ps(row[1] + d), sum1);
                sum2 = _mm256_fmadd_ps(xd, _mm256_loadu_ps(row[2] + d), sum2);
                sum3 = _mm256_fmadd_ps(xd, _mm256_loadu_ps(row[3] + d), sum3);
            }
            __m128 four = _mm_mul_ps(sums(sum0, sum1, sum2, sum3), _mm_set1_ps(scale));
            if (c + 4 <= count) {
                _mm_storeu_ps(s + r * lds + c, four);
            } else {
                float result[4];
                _mm_storeu_ps(result, four);
                for (size_t i = 0; c + i < count; i++)
                    s[r * lds + c + i] = result[i];
            }
        }
    }
}

TARGET static void axpys(float *o, size_t ldo, const float *p, size_t ldp, size_t rows, const void *v, ptrdiff_t stride,
                         const uint16_t *at, size_t count, size_t columns)
{
    size_t c = 0;
    for (; c + 4 <= count; c += 4) {
        const float *v0 = row_at(v, stride, at, c), *v1 = row_at(v, stride, at, c + 1);
        const float *v2 = row_at(v, stride, at, c + 2), *v3 = row_at(v, stride, at, c + 3);
        for (size_t r = 0; r < rows; r++) {
            const float *pr = p + r * ldp + c;
            const __m256 p0 = _mm256_set1_ps(pr[0]), p1 = _mm256_set1_ps(pr[1]);
            const __m256 p2 = _mm256_set1_ps(pr[2]), p3 = _mm256_set1_ps(pr[3]);
            for (size_t d = 0; d < columns; d += LANES) {
                __m256 sum = _mm256_loadu_ps(o + r * ldo + d);
                sum = _mm256_fmadd_ps(p0, _mm256_loadu_ps(v0 + d), sum);
                sum = _mm256_fmadd_ps(p1, _mm256_loadu_ps(v1 + d), sum);
                sum = _mm256_fmadd_ps(p2, _mm256_loadu_ps(v2 + d), sum);
                sum = _mm256_fmadd_ps(p3, _mm256_loadu_ps(v3 + d), sum);
                _mm256_storeu_ps(o + r * ldo + d, sum);
            }
        }
    }
    for (; c < count; c++) {
        const float *vc = row_at(v, stride, at, c);
        for (size_t r = 0; r < rows; r++) {
            const __m256 pc = _mm256_set1_ps(p[r * ldp + c]);
            for (size_t d = 0; d < columns; d += LANES)
                _mm256_storeu_ps(o + r * ldo + d,
                                 _mm256_fmadd_ps(pc, _mm256_loadu_ps(vc + d), _mm256_loadu_ps(o + r * ldo + d)));
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------- rows */

TARGET static float row_max(const float *s, size_t n)
{
    __m256 max0 = _mm256_set1_ps(-INFINITY), max1 = max0;
    /* If the first operand is NaN, max returns the second. */
    for (size_t i = 0; i < n; i += 2 * LANES) {
        max0 = _mm256_max_ps(_mm256_loadu_ps(s + i), max0);
        max1 = _mm256_max_ps(_mm256_loadu_ps(s + i + LANES), max1);
    }
    max0 = _mm256_max_ps(max0, max1);
    __m128 max = _mm_max_ps(_mm256_castps256_ps128(max0), _mm256_extractf128_ps(max0, 1));
    max = _mm_max_ps(max, _mm_movehl_ps(max, max));
    return _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)));
}

/* As exp_nonpositive in kernel_generic_f32.c, with FMA. */
SPECIALISE __m256 exp_nonpositive(__m256 x)
{
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.63p-1f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-0x1.bd0106p-13f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    /* Ordered comparison: false for NaN. */
    __m256 small = _mm256_cmp_ps(x, _mm256_set1_ps(-87.33654f), _CMP_LT_OQ);
    return _mm256_andnot_ps(small, _mm256_mul_ps(p, _mm256_castsi256_ps(bits)));
}

SPECIALISE float sum_lanes(__m256 x)
{
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

TARGET static float row_exp(float *s, size_t n, float m)
{
    const __m256 shift = _mm256_set1_ps(m);
    __m256 sum0 = _mm256_setzero_ps(), sum1 = sum0;
    for (size_t i = 0; i < n; i += 2 * LANES) {
        __m256 p0 = exp_nonpositive(_mm256_sub_ps(_mm256_loadu_ps(s + i), shift));
        __m256 p1 = exp_nonpositive(_mm256_sub_ps(_mm256_loadu_ps(s + i + LANES), shift));
        _mm256_storeu_ps(s + i, p0);
        _mm256_storeu_ps(s + i + LANES, p1);
        sum0 = _mm256_add_ps(sum0, p0);
        sum1 = _mm256_add_ps(sum1, p1);
    }
    return sum_lanes(_mm256_add_ps(sum0, sum1));
}

TARGET static void row_scale(float *o, size_t n, float factor)
{
    const __m256 f = _mm256_set1_ps(factor);
    for (size_t i = 0; i < n; i += LANES)
        _mm256_storeu_ps(o + i, _mm256_mul_ps(_mm256_loadu_ps(o + i), f));
}

TARGET static size_t row_bits(uint16_t *bits, const uint8_t *allowed, size_t n)
{
    size_t count = 0, i = 0;
    for (; i < n; i += 16) {
        __m128i bytes = _mm_setzero_si128();
        if (i + 16 <= n)
            bytes = _mm_loadu_si128((const __m128i *)(const void *)(allowed + i));
        else
            memcpy(&bytes, allowed + i, n - i);
        const int word = _mm_movemask_epi8(_mm_cmpgt_epi8(bytes, _mm_setzero_si128()));
        bits[i / 16] = (uint16_t)word;
        count += (size_t)__builtin_popcount((unsigned)word);
    }
    return count;
}

TARGET static void row_mask(float *s, const uint16_t *bits, size_t n)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    for (size_t i = 0; i < n; i += LANES) {
        const __m256i word = _mm256_set1_epi32(bits[i / 16] >> i % 16);
        const __m256i allowed = _mm256_cmpeq_epi32(_mm256_and_si256(word, bit), bit);
        _mm256_storeu_ps(
            s + i, _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), _mm256_loadu_ps(s + i), _mm256_castsi256_ps(allowed)));
    }
}

TARGET static void row_gradient(float *s, float *d, const uint16_t *bits, size_t n, float lse, float delta)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256 shift = _mm256_set1_ps(lse), less = _mm256_set1_ps(delta);
    for (size_t i = 0; i < n; i += LANES) {
        __m256 p = exp_nonpositive(_mm256_sub_ps(_mm256_loadu_ps(s + i), shift));
        if (bits) {
            const __m256i word = _mm256_set1_epi32(bits[i / 16] >> i % 16);
            p = _mm256_and_ps(p, _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(word, bit), bit)));
        }
        const __m256 product = _mm256_mul_ps(p, _mm256_sub_ps(_mm256_loadu_ps(d + i), less));
        _mm256_storeu_ps(s + i, p);
        /* Unordered: true for NaN. */
        _mm256_storeu_ps(d + i, _mm256_and_ps(product, _mm256_cmp_ps(p, _mm256_setzero_ps(), _CMP_NEQ_UQ)));
    }
}

/* Twelve independent chains, for two units with a latency of up to six cycles. They have different initial values, so
 * that the compiler does not merge them. */
#define PEAK_START(r) __m256 sum##r##0 = _mm256_set1_ps((r)), sum##r##1 = _mm256_set1_ps((r) + 0.5f);
#define PEAK_STEP(r)                                                                                                   \
    sum##r##0 = _mm256_fmadd_ps(sum##r##0, x, y);                                                                      \
    sum##r##1 = _mm256_fmadd_ps(sum##r##1, x, y);
#define PEAK_SUM(r) total = _mm256_add_ps(total, _mm256_add_ps(sum##r##0, sum##r##1));

TARGET static float peak(size_t rounds)
{
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    ROWS_6(PEAK_START)
    for (size_t round = 0; round < rounds; round++) {
        ROWS_6(PEAK_STEP)
    }
    __m256 total = _mm256_setzero_ps();
    ROWS_6(PEAK_SUM)
    return sum_lanes(total);
}

bool attune__cpu_kernels_avx2(attune__cpu_kernels_f32 *kernels)
{
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__get_cpuid(1, &a, &b, &c, &d) ||
        !(c & bit_F16C))
        return false;
    *kernels = (attune__cpu_kernels_f32){
        .name = "avx2",
        .lanes = LANES,
        .load_rows = load_rows,
        .dequantise = dequantise,
        .pack_k = pack_k,
        .pack_v = pack_v,
        .finite = all_finite,
        .store_row = store_row,
        .multiply = multiply,
        .multiply_add = multiply_add,
        .dots = dots,
        .axpys = axpys,
        .row_max = row_max,
        .row_exp = row_exp,
        .row_scale = row_scale,
        .row_bits = row_bits,
        .row_mask = row_mask,
        .row_gradient = row_gradient,
        .peak = peak,
        .peak_flops = 2 * 12 * LANES,
    };
    return true;
}

#else

bool attune__cpu_kernels_avx2(attune__cpu_kernels_f32 *kernels)
{
    (void)kernels;
    return false;
}

#endif
