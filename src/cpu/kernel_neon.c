/* SPDX-License-Identifier: MIT */
/* The kernels for 64-bit Arm processors, all of which have NEON with FMA and conversions of f16. The matrix product
 * keeps 6 rows x 16 columns of the result in 24 of the 32 registers: four loads of b and six broadcasts of a for 24
 * FMAs. */
#include "cpu/kernels.h"

#if defined(__aarch64__)

#include <math.h>
#include <string.h>

#include "base/quant.h"
#include "cpu/neon.h"

#define PANEL   16
#define VECTORS 4 /* of a panel */

/* ---------------------------------------------------------------------------------------------------- storage types */

/* Bytes, since storage may be unaligned. */
SPECIALISE float32x4_t load(const char *from, attune_dtype dtype)
{
    if (dtype == ATTUNE_F16)
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)from)));
    if (dtype == ATTUNE_BF16)
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)from)), 16));
    return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)from));
}

SPECIALISE size_t load_bytes(attune_dtype dtype)
{
    return dtype == ATTUNE_F32 ? LANES * sizeof(float) : LANES * sizeof(uint16_t);
}

/* All ones in the lanes that are infinite or NaN: their exponent is all ones. */
SPECIALISE uint32x4_t not_finite(float32x4_t x)
{
    const uint32x4_t exponent = vdupq_n_u32(0x7f800000);
    return vceqq_u32(vandq_u32(vreinterpretq_u32_f32(x), exponent), exponent);
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
    for (size_t r = 0; r < rows; r++, from += stride, to += ld) {
        const char *element = from;
        for (size_t c = 0; c < columns; c += LANES, element += load_bytes(dtype))
            vst1q_f32(to + c, vmulq_n_f32(load(element, dtype), scale));
    }
}

static void load_rows(float *to, size_t ld, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                      size_t columns, float scale){
#define CALL(constant) load_rows_as(to, ld, from, stride, constant, rows, columns, scale)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

/* Transposes 4 x 4: out[c * PANEL + r] = in[r][c]. */
SPECIALISE void transpose(float *out, const float32x4_t in[4])
{
    const float32x4x2_t a = vtrnq_f32(in[0], in[1]), b = vtrnq_f32(in[2], in[3]);
    vst1q_f32(out, vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0])));
    vst1q_f32(out + PANEL, vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1])));
    vst1q_f32(out + 2 * PANEL, vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0])));
    vst1q_f32(out + 3 * PANEL, vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1])));
}

SPECIALISE void pack_k_as(float *to, const char *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                          size_t columns)
{
    for (size_t r = 0; r < rows; r += PANEL, to += PANEL * columns)
        for (size_t row0 = 0; row0 < PANEL; row0 += LANES)
            for (size_t c = 0; c < columns; c += LANES) {
                const char *element =
                    from + (ptrdiff_t)(r + row0) * stride + (ptrdiff_t)(c / LANES * load_bytes(dtype));
                float32x4_t row[4];
                for (int i = 0; i < 4; i++)
                    row[i] = r + row0 + (size_t)i < rows ? load(element + i * stride, dtype) : vdupq_n_f32(0);
                transpose(to + c * PANEL + row0, row);
            }
}

static void pack_k(float *to, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns){
#define CALL(constant) pack_k_as(to, from, stride, constant, rows, columns)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

SPECIALISE bool pack_v_as(float *to, size_t panel_stride, const char *from, ptrdiff_t stride, attune_dtype dtype,
                          size_t rows, size_t columns)
{
    uint32x4_t bad = vdupq_n_u32(0);
    for (size_t r = 0; r < rows; r++, from += stride, to += PANEL) {
        const char *element = from;
        for (size_t c = 0; c < columns; c += LANES, element += load_bytes(dtype)) {
            const float32x4_t x = load(element, dtype);
            bad = vorrq_u32(bad, not_finite(x));
            vst1q_f32(to + c / PANEL * panel_stride + c % PANEL, x);
        }
        for (size_t c = columns; c % PANEL; c += LANES)
            vst1q_f32(to + c / PANEL * panel_stride + c % PANEL, vdupq_n_f32(0));
    }
    return !vmaxvq_u32(bad);
}

static bool pack_v(float *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                   size_t columns){
#define CALL(constant) return pack_v_as(to, panel_stride, from, stride, constant, rows, columns)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

SPECIALISE bool all_finite_as(const char *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns)
{
    uint32x4_t bad = vdupq_n_u32(0);
    for (size_t r = 0; r < rows; r++, from += stride) {
        const char *element = from;
        for (size_t c = 0; c < columns; c += LANES, element += load_bytes(dtype))
            bad = vorrq_u32(bad, not_finite(load(element, dtype)));
    }
    return !vmaxvq_u32(bad);
}

static bool all_finite(const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns)
{
#define CALL(constant) return all_finite_as(from, stride, constant, rows, columns)
    FOR_DTYPE(dtype, CALL)
#undef CALL
}

static void store_row(void *to, attune_dtype dtype, const float *from, size_t columns, float divisor)
{
    const float32x4_t d = vdupq_n_f32(divisor);
    uint8_t *element = to;
    for (size_t c = 0; c < columns; c += LANES, element += load_bytes(dtype)) {
        const float32x4_t x = vdivq_f32(vld1q_f32(from + c), d);
        if (dtype == ATTUNE_F16)
            vst1_u8(element, vreinterpret_u8_f16(vcvt_f16_f32(x)));
        else if (dtype == ATTUNE_BF16)
            vst1_u8(element, vreinterpret_u8_u16(bf16_from_f32(x)));
        else
            vst1q_u8(element, vreinterpretq_u8_f32(x));
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

#define ZERO(r)                                                                                                        \
    float32x4_t sum##r##0 = vdupq_n_f32(0), sum##r##1 = vdupq_n_f32(0), sum##r##2 = vdupq_n_f32(0),                    \
                sum##r##3 = vdupq_n_f32(0);
#define STEP(r)                                                                                                        \
    {                                                                                                                  \
        const float32x4_t x = vld1q_dup_f32(a + (r)*lda + p);                                                          \
        sum##r##0 = vfmaq_f32(sum##r##0, x, b0);                                                                       \
        sum##r##1 = vfmaq_f32(sum##r##1, x, b1);                                                                       \
        sum##r##2 = vfmaq_f32(sum##r##2, x, b2);                                                                       \
        sum##r##3 = vfmaq_f32(sum##r##3, x, b3);                                                                       \
    }
#define SET_AT(r, i) vst1q_f32(c + (r)*ldc + (i)*LANES, vmulq_n_f32(sum##r##i, scale));
#define ADD_AT(r, i) vst1q_f32(c + (r)*ldc + (i)*LANES, vaddq_f32(vld1q_f32(c + (r)*ldc + (i)*LANES), sum##r##i));
#define SET(r)       SET_AT(r, 0) SET_AT(r, 1) SET_AT(r, 2) SET_AT(r, 3)
#define ADD(r)       ADD_AT(r, 0) ADD_AT(r, 1) ADD_AT(r, 2) ADD_AT(r, 3)

#define BLOCK(n)                                                                                                       \
    SPECIALISE void block_##n(float *c, size_t ldc, const float *a, size_t lda, size_t k, const float *b, float scale, \
                              bool add)                                                                                \
    {                                                                                                                  \
        ROWS_##n(ZERO) for (size_t p = 0; p < k; p++, b += PANEL)                                                      \
        {                                                                                                              \
            const float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + LANES);                                            \
            const float32x4_t b2 = vld1q_f32(b + 2 * LANES), b3 = vld1q_f32(b + 3 * LANES);                            \
            ROWS_##n(STEP)                                                                                             \
        }                                                                                                              \
        if (add) {                                                                                                     \
            ROWS_##n(ADD)                                                                                              \
        } else {                                                                                                       \
            ROWS_##n(SET)                                                                                              \
        }                                                                                                              \
    }
BLOCK(1)
BLOCK(2)
BLOCK(3)
BLOCK(4)
BLOCK(5)
BLOCK(6)

#define PRODUCT_TARGET
#include "cpu/product_tmpl.h"

SPECIALISE const char *row_at(const void *rows, ptrdiff_t stride, const uint16_t *at, size_t c)
{
    return (const char *)rows + (ptrdiff_t)(at ? at[c] : c) * stride;
}

SPECIALISE float32x4_t row_load(const char *row, size_t d)
{
    return load(row + d * sizeof(float), ATTUNE_F32);
}

/* Four rows of k with one row of q: loads of k dominate if k is in memory. */
static void dots(float *s, size_t lds, const float *q, size_t ldq, size_t rows, const void *k, ptrdiff_t stride,
                 const uint16_t *at, size_t count, size_t columns, float scale)
{
    for (size_t c = 0; c < count; c += 4) {
        /* Past the end the last row is read again, and the result dropped. */
        const char *row[4];
        for (size_t i = 0; i < 4; i++)
            row[i] = row_at(k, stride, at, c + i < count ? c + i : count - 1);
        for (size_t r = 0; r < rows; r++) {
            const float *x = q + r * ldq;
            float32x4_t low[4], high[4];
            for (int i = 0; i < 4; i++)
                low[i] = high[i] = vdupq_n_f32(0);
            for (size_t d = 0; d < columns; d += 2 * LANES) {
                const float32x4_t x0 = vld1q_f32(x + d), x1 = vld1q_f32(x + d + LANES);
                for (int i = 0; i < 4; i++) {
                    low[i] = vfmaq_f32(low[i], x0, row_load(row[i], d));
                    high[i] = vfmaq_f32(high[i], x1, row_load(row[i], d + LANES));
                }
            }
            for (int i = 0; i < 4; i++)
                low[i] = vaddq_f32(low[i], high[i]);
            const float32x4_t four =
                vmulq_n_f32(vpaddq_f32(vpaddq_f32(low[0], low[1]), vpaddq_f32(low[2], low[3])), scale);
            if (c + 4 <= count) {
                vst1q_f32(s + r * lds + c, four);
            } else {
                float result[4];
                vst1q_f32(result, four);
                for (size_t i = 0; c + i < count; i++)
                    s[r * lds + c + i] = result[i];
            }
        }
    }
}

static void axpys(float *o, size_t ldo, const float *p, size_t ldp, size_t rows, const void *v, ptrdiff_t stride,
                  const uint16_t *at, size_t count, size_t columns)
{
    size_t c = 0;
    for (; c + 4 <= count; c += 4) {
        const char *v0 = row_at(v, stride, at, c), *v1 = row_at(v, stride, at, c + 1);
        const char *v2 = row_at(v, stride, at, c + 2), *v3 = row_at(v, stride, at, c + 3);
        for (size_t r = 0; r < rows; r++) {
            const float32x4_t weights = vld1q_f32(p + r * ldp + c);
            for (size_t d = 0; d < columns; d += LANES) {
                float32x4_t sum = vld1q_f32(o + r * ldo + d);
                sum = vfmaq_laneq_f32(sum, row_load(v0, d), weights, 0);
                sum = vfmaq_laneq_f32(sum, row_load(v1, d), weights, 1);
                sum = vfmaq_laneq_f32(sum, row_load(v2, d), weights, 2);
                sum = vfmaq_laneq_f32(sum, row_load(v3, d), weights, 3);
                vst1q_f32(o + r * ldo + d, sum);
            }
        }
    }
    for (; c < count; c++) {
        const char *vc = row_at(v, stride, at, c);
        for (size_t r = 0; r < rows; r++)
            for (size_t d = 0; d < columns; d += LANES)
                vst1q_f32(o + r * ldo + d, vfmaq_n_f32(vld1q_f32(o + r * ldo + d), row_load(vc, d), p[r * ldp + c]));
    }
}

/* ------------------------------------------------------------------------------------------------------------- rows */

static float row_max(const float *s, size_t n)
{
    float32x4_t max[VECTORS];
    for (int j = 0; j < VECTORS; j++)
        max[j] = vdupq_n_f32(-INFINITY);
    for (size_t i = 0; i < n; i += PANEL)
        for (int j = 0; j < VECTORS; j++)
            max[j] = larger(vld1q_f32(s + i + j * LANES), max[j]);
    return vmaxvq_f32(larger(larger(max[0], max[1]), larger(max[2], max[3])));
}

static float row_exp(float *s, size_t n, float m)
{
    const float32x4_t shift = vdupq_n_f32(m);
    float32x4_t sum[VECTORS];
    for (int j = 0; j < VECTORS; j++)
        sum[j] = vdupq_n_f32(0);
    for (size_t i = 0; i < n; i += PANEL)
        for (int j = 0; j < VECTORS; j++) {
            const float32x4_t p = exp_nonpositive(vsubq_f32(vld1q_f32(s + i + j * LANES), shift));
            vst1q_f32(s + i + j * LANES, p);
            sum[j] = vaddq_f32(sum[j], p);
        }
    return vaddvq_f32(vaddq_f32(vaddq_f32(sum[0], sum[1]), vaddq_f32(sum[2], sum[3])));
}

static void row_scale(float *o, size_t n, float factor)
{
    for (size_t i = 0; i < n; i += LANES)
        vst1q_f32(o + i, vmulq_n_f32(vld1q_f32(o + i), factor));
}

static size_t row_bits(uint16_t *bits, const uint8_t *allowed, size_t n)
{
    static const int8_t places[16] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
    const int8x16_t place = vld1q_s8(places);
    size_t count = 0;
    for (size_t i = 0; i < n; i += 16) {
        uint8_t last[16] = {0};
        if (i + 16 > n)
            memcpy(last, allowed + i, n - i);
        const uint8x16_t bytes = vld1q_u8(i + 16 > n ? last : allowed + i);
        const uint8x16_t placed = vshlq_u8(bytes, place);
        bits[i / 16] = (uint16_t)(vaddv_u8(vget_low_u8(placed)) | vaddv_u8(vget_high_u8(placed)) << 8);
        count += vaddvq_u8(bytes);
    }
    return count;
}

static void row_mask(float *s, const uint16_t *bits, size_t n)
{
    static const uint32_t places[LANES] = {1, 2, 4, 8};
    const uint32x4_t bit = vld1q_u32(places);
    for (size_t i = 0; i < n; i += LANES) {
        const uint32x4_t allowed = vtstq_u32(vdupq_n_u32((uint32_t)bits[i / 16] >> i % 16), bit);
        vst1q_f32(s + i, vbslq_f32(allowed, vld1q_f32(s + i), vdupq_n_f32(-INFINITY)));
    }
}

static void row_gradient(float *s, float *d, const uint16_t *bits, size_t n, float lse, float delta)
{
    static const uint32_t places[LANES] = {1, 2, 4, 8};
    const uint32x4_t bit = vld1q_u32(places);
    const float32x4_t shift = vdupq_n_f32(lse), less = vdupq_n_f32(delta);
    for (size_t i = 0; i < n; i += LANES) {
        const uint32x4_t allowed = vtstq_u32(vdupq_n_u32(bits ? (uint32_t)bits[i / 16] >> i % 16 : 0xf), bit);
        const float32x4_t e = exp_nonpositive(vsubq_f32(vld1q_f32(s + i), shift));
        /* NaN is not 0. */
        const uint32x4_t some = vbicq_u32(allowed, vceqzq_f32(e));
        const float32x4_t product = vmulq_f32(e, vsubq_f32(vld1q_f32(d + i), less));
        vst1q_f32(s + i, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(e), some)));
        vst1q_f32(d + i, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(product), some)));
    }
}

/* 24 independent chains, for four units with a latency of up to six cycles. They have different initial values, so that
 * the compiler does not merge them. */
#define PEAK_START(r)                                                                                                  \
    float32x4_t sum##r##0 = vdupq_n_f32(r), sum##r##1 = vdupq_n_f32((r) + 0.25f), sum##r##2 = vdupq_n_f32((r) + 0.5f), \
                sum##r##3 = vdupq_n_f32((r) + 0.75f);
#define PEAK_STEP(r)                                                                                                   \
    sum##r##0 = vfmaq_f32(sum##r##0, x, y);                                                                            \
    sum##r##1 = vfmaq_f32(sum##r##1, x, y);                                                                            \
    sum##r##2 = vfmaq_f32(sum##r##2, x, y);                                                                            \
    sum##r##3 = vfmaq_f32(sum##r##3, x, y);
#define PEAK_SUM(r)                                                                                                    \
    total = vaddq_f32(total, vaddq_f32(vaddq_f32(sum##r##0, sum##r##1), vaddq_f32(sum##r##2, sum##r##3)));

static float peak(size_t rounds)
{
    const float32x4_t x = vdupq_n_f32(0.001f), y = vdupq_n_f32(0.999f);
    ROWS_6(PEAK_START)
    for (size_t round = 0; round < rounds; round++) {
        ROWS_6(PEAK_STEP)
    }
    float32x4_t total = vdupq_n_f32(0);
    ROWS_6(PEAK_SUM)
    return vaddvq_f32(total);
}

bool attune__cpu_kernels_neon(attune__cpu_kernels_f32 *kernels)
{
    *kernels = (attune__cpu_kernels_f32){
        .name = "neon",
        .lanes = LANES,
        .load_rows = load_rows,
        .dequantise = attune__dequantise,
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
        .peak_flops = 2 * 24 * LANES,
    };
    return true;
}

#else

bool attune__cpu_kernels_neon(attune__cpu_kernels_f32 *kernels)
{
    (void)kernels;
    return false;
}

#endif
