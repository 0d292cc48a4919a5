/* SPDX-License-Identifier: MIT */
/* Products of bf16 by BFDOT, 4 rows x 16 columns, of 64-bit Arm processors that have it. Elements have one summand: f16
 * as the sum of two would not be faster than float. */
#include "cpu/kernels.h"

#if defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))

#include <math.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#else
#include <sys/sysctl.h>
#endif

#include "cpu/neon.h"

/* The option in the words of each compiler. */
#if defined(__clang__)
#define TARGET __attribute__((target("bf16")))
#else
#define TARGET __attribute__((target("+bf16")))
#endif

#define PANEL 16
#define BLOCK 32 /* ATTUNE__BLOCK_K */
#define HALF  8  /* bf16 of a vector */

/* ---------------------------------------------------------------------------------------------------------- packing */

/* Lanes that are infinite or NaN are added to `bad`. */
SPECIALISE uint16x8_t load(const char *from, uint16x8_t *bad)
{
    const uint16x8_t x = vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)from)), exponent = vdupq_n_u16(0x7f80);
    *bad = vorrq_u16(*bad, vceqq_u16(vandq_u16(x, exponent), exponent));
    return x;
}

static bool pack_q(uint16_t *to, size_t ld, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                   size_t columns)
{
    (void)dtype;
    uint16x8_t bad = vdupq_n_u16(0);
    const char *row = from;
    for (size_t r = 0; r < rows; r++, row += stride, to += ld) {
        for (size_t c = 0; c < columns; c += HALF)
            vst1q_u16(to + c, load(row + 2 * c, &bad));
        for (size_t c = columns; c % BLOCK; c += HALF)
            vst1q_u16(to + c, vdupq_n_u16(0));
    }
    return !vmaxvq_u16(bad);
}

/* Transposes 4 x 4 pairs: pair i of row r to out[2 (PANEL i + r)]. */
SPECIALISE void transpose(uint16_t *out, const uint16x8_t in[4])
{
    const uint32x4x2_t a = vtrnq_u32(vreinterpretq_u32_u16(in[0]), vreinterpretq_u32_u16(in[1]));
    const uint32x4x2_t b = vtrnq_u32(vreinterpretq_u32_u16(in[2]), vreinterpretq_u32_u16(in[3]));
    for (int i = 0; i < 2; i++) {
        const uint32x4_t low = vcombine_u32(vget_low_u32(a.val[i]), vget_low_u32(b.val[i]));
        const uint32x4_t high = vcombine_u32(vget_high_u32(a.val[i]), vget_high_u32(b.val[i]));
        vst1q_u16(out + 2 * PANEL * i, vreinterpretq_u16_u32(low));
        vst1q_u16(out + 2 * PANEL * (i + 2), vreinterpretq_u16_u32(high));
    }
}

static bool pack_k(uint16_t *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype,
                   size_t rows, size_t columns)
{
    (void)dtype;
    uint16x8_t bad = vdupq_n_u16(0);
    for (size_t r = 0; r < rows; r += PANEL, to += panel_stride)
        for (size_t row0 = 0; row0 < PANEL; row0 += 4)
            for (size_t c = 0; c < (columns + BLOCK - 1) / BLOCK * BLOCK; c += HALF) {
                uint16x8_t row[4];
                for (size_t i = 0; i < 4; i++) {
                    const size_t at = r + row0 + i;
                    row[i] = at < rows && c < columns
                                 ? load((const char *)from + (ptrdiff_t)at * stride + (ptrdiff_t)(2 * c), &bad)
                                 : vdupq_n_u16(0);
                }
                transpose(to + c * PANEL + 2 * row0, row);
            }
    return !vmaxvq_u16(bad);
}

static bool pack_v(uint16_t *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype,
                   size_t rows, size_t columns)
{
    (void)dtype;
    const uint16x8_t zero = vdupq_n_u16(0);
    uint16x8_t bad = zero;
    for (size_t r = 0; r < (rows + BLOCK - 1) / BLOCK * BLOCK; r += 2) {
        const char *row = (const char *)from + (ptrdiff_t)r * stride;
        for (size_t c = 0; c < (columns + PANEL - 1) / PANEL * PANEL; c += HALF) {
            const uint16x8_t even = r < rows && c < columns ? load(row + 2 * c, &bad) : zero;
            const uint16x8_t odd = r + 1 < rows && c < columns ? load(row + stride + 2 * c, &bad) : zero;
            uint16_t *pair = to + c / PANEL * panel_stride + r * PANEL + c % PANEL * 2;
            vst1q_u16(pair, vzip1q_u16(even, odd));
            vst1q_u16(pair + HALF, vzip2q_u16(even, odd));
        }
    }
    return !vmaxvq_u16(bad);
}

/* --------------------------------------------------------------------------------------------------------- products */

/* Each lane of sum += the product of a pair of b and the pair of a. In assembly: clang has the intrinsic only where the
 * whole file may use the instruction. */
#define ADD_PAIRS(sum, b, a, pair) __asm__("bfdot %0.4s, %1.8h, %2.2h[" #pair "]" : "+w"(sum) : "w"(b), "w"(a))

#define ROWS(X) X(0) X(1) X(2) X(3)

#define ZERO(r)                                                                                                        \
    float32x4_t sum##r##0 = vdupq_n_f32(0), sum##r##1 = vdupq_n_f32(0), sum##r##2 = vdupq_n_f32(0),                    \
                sum##r##3 = vdupq_n_f32(0);
#define LOAD_A(r) const uint16x8_t a##r = vld1q_u16(a + (r)*lda + p);
#define STEP_OF(r, pair)                                                                                               \
    ADD_PAIRS(sum##r##0, b0, a##r, pair);                                                                              \
    ADD_PAIRS(sum##r##1, b1, a##r, pair);                                                                              \
    ADD_PAIRS(sum##r##2, b2, a##r, pair);                                                                              \
    ADD_PAIRS(sum##r##3, b3, a##r, pair);
#define STEP(pair)                                                                                                     \
    {                                                                                                                  \
        const uint16x8_t b0 = vld1q_u16(b), b1 = vld1q_u16(b + HALF);                                                  \
        const uint16x8_t b2 = vld1q_u16(b + 2 * HALF), b3 = vld1q_u16(b + 3 * HALF);                                   \
        STEP_OF(0, pair) STEP_OF(1, pair) STEP_OF(2, pair) STEP_OF(3, pair) b += 2 * PANEL;                            \
    }
#define END_AT(r, i)                                                                                                   \
    {                                                                                                                  \
        float *to = c + (r)*ldc + (i)*LANES;                                                                           \
        vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), sum##r##i) : sum##r##i);                                          \
    }
#define END(r) END_AT(r, 0) END_AT(r, 1) END_AT(r, 2) END_AT(r, 3)

TARGET SPECIALISE void block(float *c, size_t ldc, const uint16_t *a, size_t lda, size_t k, const uint16_t *b, bool add)
{
    ROWS(ZERO)
    for (size_t p = 0; p < k; p += HALF) {
        ROWS(LOAD_A)
        STEP(0) STEP(1) STEP(2) STEP(3)
    }
    ROWS(END)
}

/* A panel of b stays in the L1 cache for all rows of a. */
TARGET static void multiply(float *c, size_t ldc, const uint16_t *a, size_t lda, size_t m, size_t blocks,
                            const uint16_t *b, size_t panel_stride, size_t panels, size_t summands, bool add,
                            bool exact)
{
    (void)summands;
    (void)exact;
    for (size_t j = 0; j < panels; j++, b += panel_stride, c += PANEL)
        for (size_t r = 0; r < m; r += 4)
            block(c + r * ldc, ldc, a + r * lda, lda, blocks * BLOCK, b, add);
}

/* ------------------------------------------------------------------------------------------------------------- rows */

static float row_max(const float *s, size_t n, float scale)
{
    float32x4_t max0 = vdupq_n_f32(-INFINITY), max1 = max0;
    for (size_t i = 0; i < n; i += 2 * LANES) {
        max0 = larger(vmulq_n_f32(vld1q_f32(s + i), scale), max0);
        max1 = larger(vmulq_n_f32(vld1q_f32(s + i + LANES), scale), max1);
    }
    return vmaxvq_f32(larger(max0, max1));
}

static float row_exp(uint16_t *p, const float *s, size_t n, float scale, float m, size_t summands)
{
    (void)summands;
    const float32x4_t shift = vdupq_n_f32(m);
    float32x4_t sum0 = vdupq_n_f32(0), sum1 = sum0;
    for (size_t i = 0; i < n; i += 2 * LANES) {
        const float32x4_t p0 = exp_nonpositive(vsubq_f32(vmulq_n_f32(vld1q_f32(s + i), scale), shift));
        const float32x4_t p1 = exp_nonpositive(vsubq_f32(vmulq_n_f32(vld1q_f32(s + i + LANES), scale), shift));
        sum0 = vaddq_f32(sum0, p0);
        sum1 = vaddq_f32(sum1, p1);
        /* Bytes, since p may begin at s. */
        vst1q_u8((uint8_t *)(p + i), vreinterpretq_u8_u16(vcombine_u16(bf16_from_f32(p0), bf16_from_f32(p1))));
    }
    return vaddvq_f32(vaddq_f32(sum0, sum1));
}

#include "cpu/rows_tmpl.h"

static void nothing(void)
{
}

static bool has_bf16(void)
{
#if defined(__linux__)
    return getauxval(AT_HWCAP2) & HWCAP2_BF16;
#else
    int has = 0;
    size_t size = sizeof has;
    return !sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, NULL, 0) && has;
#endif
}

bool attune__cpu_matrix_neon(attune__cpu_matrix *matrix)
{
    if (!has_bf16())
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

bool attune__cpu_matrix_neon(attune__cpu_matrix *matrix)
{
    (void)matrix;
    return false;
}

#endif
