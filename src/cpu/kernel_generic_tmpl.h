/* SPDX-License-Identifier: MIT */
/* The portable kernels: matrix products with GNU C's vector extensions, the others as loops that compilers vectorise.
 * Included once for each arithmetic type, with REAL, NAME, REAL_DTYPE and REAL_EXP defined. */
#include "cpu/kernels.h"

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/quant.h"

#define PANEL 16

/* Storage may be unaligned: a caller may wrap a mapped file. */
static inline REAL load(const char *from, attune_dtype dtype, size_t index)
{
    if (dtype == ATTUNE_F16 || dtype == ATTUNE_BF16) {
        uint16_t half;
        memcpy(&half, from + index * sizeof half, sizeof half);
        return (REAL)(dtype == ATTUNE_F16 ? attune__f32_from_f16(half) : attune__f32_from_bf16(half));
    }
    REAL value;
    memcpy(&value, from + index * sizeof value, sizeof value);
    return value;
}

static void load_rows(REAL *to, size_t ld, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                      size_t columns, REAL scale)
{
    const char *row = from;
    for (size_t r = 0; r < rows; r++, row += stride)
        for (size_t c = 0; c < columns; c++)
            to[r * ld + c] = load(row, dtype, c) * scale;
}

static void dequantise(REAL *to, const void *from, attune_dtype dtype, size_t columns, float scale)
{
    float values[32];
    const char *codes = from;
    for (size_t c = 0, n; c < columns; c += n, codes += n / attune_dtype_block(dtype) * attune_dtype_size(dtype)) {
        n = columns - c < 32 ? columns - c : 32;
        attune__dequantise(values, codes, dtype, n, scale);
        for (size_t i = 0; i < n; i++)
            to[c + i] = (REAL)values[i];
    }
}

static void pack_k(REAL *to, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns)
{
    for (size_t r = 0; r < (rows + PANEL - 1) / PANEL * PANEL; r++) {
        const char *row = (const char *)from + (ptrdiff_t)r * stride;
        REAL *column = to + r / PANEL * PANEL * columns + r % PANEL;
        for (size_t c = 0; c < columns; c++)
            column[c * PANEL] = r < rows ? load(row, dtype, c) : 0;
    }
}

static bool pack_v(REAL *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                   size_t columns)
{
    bool finite = true;
    const char *row = from;
    for (size_t r = 0; r < rows; r++, row += stride)
        for (size_t c = 0; c < (columns + PANEL - 1) / PANEL * PANEL; c++) {
            REAL value = c < columns ? load(row, dtype, c) : 0;
            finite &= isfinite(value) != 0;
            to[c / PANEL * panel_stride + r * PANEL + c % PANEL] = value;
        }
    return finite;
}

static bool all_finite(const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns)
{
    const char *row = from;
    for (size_t r = 0; r < rows; r++, row += stride)
        for (size_t c = 0; c < columns; c++)
            if (!isfinite(load(row, dtype, c)))
                return false;
    return true;
}

static void store_row(void *to, attune_dtype dtype, const REAL *from, size_t columns, REAL divisor)
{
    for (size_t c = 0; c < columns; c++) {
        REAL value = from[c] / divisor;
        if (dtype == REAL_DTYPE) {
            memcpy((char *)to + c * sizeof value, &value, sizeof value);
        } else {
            uint16_t half =
                dtype == ATTUNE_F16 ? attune__f16_from_f32((float)value) : attune__bf16_from_f32((float)value);
            memcpy((char *)to + c * sizeof half, &half, sizeof half);
        }
    }
}

/* 128-bit vectors, which all supported processors have; compilers use scalars otherwise. */
typedef REAL vector __attribute__((vector_size(16), aligned(sizeof(REAL)), may_alias));
#define LANES (16 / sizeof(REAL))

#define ROWS 4 /* of c at a time, by two vectors: the sums take eight of at least sixteen registers */

static inline __attribute__((always_inline)) vector vector_at(const REAL *from)
{
    return *(const vector *)(const void *)from;
}

/* One row of a block; branches on constant arguments are removed. */
static inline __attribute__((always_inline)) void store_block(REAL *c, vector sum0, vector sum1, REAL scale, bool add,
                                                              bool wanted)
{
    if (!wanted)
        return;
    *(vector *)(void *)c = add ? vector_at(c) + sum0 : sum0 * scale;
    *(vector *)(void *)(c + LANES) = add ? vector_at(c + LANES) + sum1 : sum1 * scale;
}

static inline __attribute__((always_inline)) void block(REAL *c, size_t ldc, const REAL *a, size_t lda, size_t rows,
                                                        size_t k, const REAL *b, REAL scale, bool add)
{
    vector s00 = {0}, s01 = {0}, s10 = {0}, s11 = {0}, s20 = {0}, s21 = {0}, s30 = {0}, s31 = {0};
    /* Rows past the end repeat the last one. */
    const REAL *a1 = rows > 1 ? a + lda : a, *a2 = rows > 2 ? a + 2 * lda : a1, *a3 = rows > 3 ? a + 3 * lda : a2;
    for (size_t p = 0; p < k; p++, b += PANEL) {
        const vector b0 = vector_at(b), b1 = vector_at(b + LANES);
        s00 += b0 * a[p];
        s01 += b1 * a[p];
        s10 += b0 * a1[p];
        s11 += b1 * a1[p];
        s20 += b0 * a2[p];
        s21 += b1 * a2[p];
        s30 += b0 * a3[p];
        s31 += b1 * a3[p];
    }
    store_block(c, s00, s01, scale, add, true);
    store_block(c + ldc, s10, s11, scale, add, rows > 1);
    store_block(c + 2 * ldc, s20, s21, scale, add, rows > 2);
    store_block(c + 3 * ldc, s30, s31, scale, add, rows > 3);
}

static inline __attribute__((always_inline)) void product(REAL *c, size_t ldc, const REAL *a, size_t lda, size_t m,
                                                          size_t k, const REAL *b, size_t panel_stride, size_t panels,
                                                          REAL scale, bool add)
{
    for (size_t j = 0; j < panels; j++, b += panel_stride, c += PANEL)
        for (size_t column = 0; column < PANEL; column += 2 * LANES) {
            size_t r = 0;
            for (; r + ROWS <= m; r += ROWS)
                block(c + r * ldc + column, ldc, a + r * lda, lda, ROWS, k, b + column, scale, add);
            if (r < m)
                block(c + r * ldc + column, ldc, a + r * lda, lda, m - r, k, b + column, scale, add);
        }
}

static void multiply(REAL *c, size_t ldc, const REAL *a, size_t lda, size_t m, size_t k, const REAL *b,
                     size_t panel_stride, size_t panels, REAL scale)
{
    product(c, ldc, a, lda, m, k, b, panel_stride, panels, scale, false);
}

static void multiply_add(REAL *c, size_t ldc, const REAL *a, size_t lda, size_t m, size_t k, const REAL *b,
                         size_t panel_stride, size_t panels)
{
    product(c, ldc, a, lda, m, k, b, panel_stride, panels, 1, true);
}

static void dots(REAL *s, size_t lds, const REAL *q, size_t ldq, size_t rows, const void *k, ptrdiff_t stride,
                 const uint16_t *at, size_t count, size_t columns, REAL scale)
{
    for (size_t c = 0; c < count; c++) {
        const char *row = (const char *)k + (ptrdiff_t)(at ? at[c] : c) * stride;
        for (size_t r = 0; r < rows; r++) {
            REAL sum[8] = {0};
            for (size_t d = 0; d < columns; d += 8)
                for (size_t i = 0; i < 8; i++)
                    sum[i] += q[r * ldq + d + i] * load(row, REAL_DTYPE, d + i);
            s[r * lds + c] =
                scale * (((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7])));
        }
    }
}

static void axpys(REAL *o, size_t ldo, const REAL *p, size_t ldp, size_t rows, const void *v, ptrdiff_t stride,
                  const uint16_t *at, size_t count, size_t columns)
{
    for (size_t c = 0; c < count; c++) {
        const char *row = (const char *)v + (ptrdiff_t)(at ? at[c] : c) * stride;
        for (size_t r = 0; r < rows; r++)
            for (size_t d = 0; d < columns; d++)
                o[r * ldo + d] += p[r * ldp + c] * load(row, REAL_DTYPE, d);
    }
}

static REAL row_max(const REAL *s, size_t n)
{
    REAL max[PANEL];
    for (size_t j = 0; j < PANEL; j++)
        max[j] = -(REAL)INFINITY;
    for (size_t i = 0; i < n; i += PANEL)
        for (size_t j = 0; j < PANEL; j++)
            max[j] = s[i + j] > max[j] ? s[i + j] : max[j];
    for (size_t width = PANEL / 2; width; width /= 2)
        for (size_t j = 0; j < width; j++)
            max[j] = max[j + width] > max[j] ? max[j + width] : max[j];
    return max[0];
}

static REAL row_exp(REAL *s, size_t n, REAL m)
{
    REAL sum[PANEL] = {0};
    for (size_t i = 0; i < n; i += PANEL)
        for (size_t j = 0; j < PANEL; j++) {
            s[i + j] = REAL_EXP(s[i + j] - m);
            sum[j] += s[i + j];
        }
    for (size_t width = PANEL / 2; width; width /= 2)
        for (size_t j = 0; j < width; j++)
            sum[j] += sum[j + width];
    return sum[0];
}

static void row_scale(REAL *o, size_t n, REAL factor)
{
    for (size_t i = 0; i < n; i++)
        o[i] *= factor;
}

static size_t row_bits(uint16_t *bits, const uint8_t *allowed, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i += PANEL) {
        uint32_t word = 0;
        for (size_t j = 0; j < PANEL && i + j < n; j++)
            word |= (uint32_t)allowed[i + j] << j;
        bits[i / PANEL] = (uint16_t)word;
        count += (size_t)__builtin_popcount(word);
    }
    return count;
}

static void row_mask(REAL *s, const uint16_t *bits, size_t n)
{
    for (size_t i = 0; i < n; i += PANEL)
        for (size_t j = 0; j < PANEL; j++)
            s[i + j] = bits[i / PANEL] >> j & 1 ? s[i + j] : -(REAL)INFINITY;
}

static void row_gradient(REAL *s, REAL *d, const uint16_t *bits, size_t n, REAL lse, REAL delta)
{
    for (size_t i = 0; i < n; i += PANEL) {
        const uint32_t word = bits ? bits[i / PANEL] : 0xffff;
        for (size_t j = 0; j < PANEL; j++) {
            const REAL e = REAL_EXP(s[i + j] - lse), p = word >> j & 1 ? e : 0, product = p * (d[i + j] - delta);
            s[i + j] = p;
            d[i + j] = p == 0 ? 0 : product;
        }
    }
}

static REAL peak(size_t rounds)
{
    /* Different initial values, so that the compiler does not merge the chains. */
    vector s0 = {1}, s1 = {2}, s2 = {3}, s3 = {4}, s4 = {5}, s5 = {6}, s6 = {7}, s7 = {8};
    const REAL x = (REAL)0.999, y = (REAL)0.001;
    for (size_t round = 0; round < rounds; round++) {
        s0 = s0 * x + y;
        s1 = s1 * x + y;
        s2 = s2 * x + y;
        s3 = s3 * x + y;
        s4 = s4 * x + y;
        s5 = s5 * x + y;
        s6 = s6 * x + y;
        s7 = s7 * x + y;
    }
    const vector total = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7));
    REAL sum = 0;
    for (size_t i = 0; i < LANES; i++)
        sum += total[i];
    return sum;
}

void NAME(cpu_kernels_generic)(NAME(cpu_kernels) * kernels)
{
    *kernels = (NAME(cpu_kernels)){
        .name = "generic",
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
        .peak_flops = 2 * 8 * LANES,
    };
}
