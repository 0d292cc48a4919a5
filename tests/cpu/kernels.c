/* SPDX-License-Identifier: MIT */
/* Every variant of the inner kernels that this processor runs, against the portable one or double arithmetic. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/quant.h"
#include "cpu/draw.h"
#include "cpu/kernels.h"
#include "support/devices.h"

#define MAX_ROWS    40
#define MAX_COLUMNS 96
#define MAX_DEPTH   264
#define CANARY      12345.0f

static attune__cpu_kernels_f32 tables[3];
static uint32_t table_count;
static attune__cpu_kernels_f64 table_f64;

static void setup(void)
{
    state = test_seed() | 1;
    attune__cpu_kernels_generic_f32(&tables[0]);
    attune__cpu_kernels_generic_f64(&table_f64);
    table_count = 1;
    tables[1] = tables[0];
    if (attune__cpu_kernels_avx2(&tables[1])) {
        table_count = 2;
        tables[2] = tables[1];
        if (attune__cpu_kernels_avx512(&tables[2]))
            table_count = 3;
    }
    if (attune__cpu_kernels_neon(&tables[1]))
        table_count = 2;
    for (uint32_t i = 0; i < table_count; i++)
        cr_log_info("kernels: %s", tables[i].name);
}

TestSuite(kernels, .init = setup);

static void fill(float *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = uniform();
}

static float *floats(size_t n)
{
    float *made = aligned_alloc(64, (n * sizeof *made + 63) / 64 * 64);
    cr_assert_not_null(made);
    return made;
}

/* The rounding of a sum of k products, in any order, relative to the sum of their magnitudes. */
static double bound(size_t k)
{
    return (double)(k + 2) * 0x1p-24;
}

Test(kernels, products)
{
    float *a = floats(MAX_ROWS * MAX_DEPTH), *b = floats(MAX_COLUMNS * MAX_DEPTH), *c = floats(MAX_ROWS * MAX_COLUMNS);
    for (uint64_t round = 0; round < scaled(200); round++) {
        const size_t m = between(1, MAX_ROWS - 1), k = between(1, MAX_DEPTH), panels = between(1, MAX_COLUMNS / 16 - 1);
        const size_t lda = k, ldc = MAX_COLUMNS, panel_stride = 16 * k;
        const float scale = uniform();
        const bool add = next() & 1;
        fill(a, m * lda);
        fill(b, panels * panel_stride);
        for (uint32_t t = 0; t < table_count; t++) {
            for (size_t i = 0; i < MAX_ROWS * MAX_COLUMNS; i++)
                c[i] = CANARY;
            if (add)
                for (size_t r = 0; r < m; r++)
                    for (size_t j = 0; j < 16 * panels; j++)
                        c[r * ldc + j] = (float)j;
            if (add)
                tables[t].multiply_add(c, ldc, a, lda, m, k, b, panel_stride, panels);
            else
                tables[t].multiply(c, ldc, a, lda, m, k, b, panel_stride, panels, scale);
            for (size_t r = 0; r < MAX_ROWS; r++)
                for (size_t j = 0; j < MAX_COLUMNS; j++) {
                    if (r >= m || j >= 16 * panels) {
                        cr_assert_eq(c[r * ldc + j], CANARY, "%s wrote outside", tables[t].name);
                        continue;
                    }
                    double sum = 0, magnitude = 0;
                    for (size_t p = 0; p < k; p++) {
                        const double term = (double)a[r * lda + p] * (double)b[j / 16 * panel_stride + 16 * p + j % 16];
                        sum += term;
                        magnitude += fabs(term);
                    }
                    const double want = add ? (double)j + sum : sum * (double)scale;
                    magnitude = add ? magnitude + (double)j : magnitude * fabs((double)scale);
                    cr_assert_leq(fabs((double)c[r * ldc + j] - want), bound(k) * magnitude,
                                  "%s m %zu k %zu (%zu, %zu)", tables[t].name, m, k, r, j);
                }
        }
    }
    free(a);
    free(b);
    free(c);
}

Test(kernels, products_in_place)
{
    float *q = floats(16 * 256), *k = floats(64 * 280), *s = floats(16 * 64), *o = floats(16 * 256),
          *p = floats(16 * 64);
    for (uint64_t round = 0; round < scaled(200); round++) {
        const size_t rows = between(1, 16), count = between(1, 64), columns = 8 * between(1, 32);
        const size_t ldk = columns + between(0, 24);
        const ptrdiff_t stride = (ptrdiff_t)(ldk * sizeof(float));
        const float scale = uniform();
        uint16_t list[64];
        const uint16_t *const at = round & 1 ? list : NULL;
        for (size_t c = 0; c < 64; c++)
            list[c] = (uint16_t)(round & 1 ? between(0, 63) : c);
        fill(q, 16 * 256);
        fill(k, 64 * 280);
        fill(p, 16 * 64);
        for (uint32_t t = 0; t < table_count; t++) {
            for (size_t i = 0; i < 16 * 64; i++)
                s[i] = CANARY;
            tables[t].dots(s, 64, q, 256, rows, k, stride, at, count, columns, scale);
            for (size_t r = 0; r < 16; r++)
                for (size_t c = 0; c < 64; c++) {
                    if (r >= rows || c >= count) {
                        cr_assert_eq(s[r * 64 + c], CANARY, "%s wrote outside", tables[t].name);
                        continue;
                    }
                    double sum = 0, magnitude = 0;
                    for (size_t d = 0; d < columns; d++) {
                        sum += (double)q[r * 256 + d] * (double)k[list[c] * ldk + d];
                        magnitude += fabs((double)q[r * 256 + d] * (double)k[list[c] * ldk + d]);
                    }
                    cr_assert_leq(fabs((double)s[r * 64 + c] - sum * (double)scale),
                                  bound(columns) * magnitude * fabs((double)scale), "%s", tables[t].name);
                }
            for (size_t i = 0; i < 16 * 256; i++)
                o[i] = CANARY;
            tables[t].axpys(o, 256, p, 64, rows, k, stride, at, count, columns);
            for (size_t r = 0; r < 16; r++)
                for (size_t d = 0; d < 256; d++) {
                    if (r >= rows || d >= columns) {
                        cr_assert_eq(o[r * 256 + d], CANARY, "%s wrote outside", tables[t].name);
                        continue;
                    }
                    double sum = (double)CANARY, magnitude = sum;
                    for (size_t c = 0; c < count; c++) {
                        sum += (double)p[r * 64 + c] * (double)k[list[c] * ldk + d];
                        magnitude += fabs((double)p[r * 64 + c] * (double)k[list[c] * ldk + d]);
                    }
                    cr_assert_leq(fabs((double)o[r * 256 + d] - sum), bound(count) * magnitude, "%s", tables[t].name);
                }
        }
    }
    free(q);
    free(k);
    free(s);
    free(o);
    free(p);
}

/* Bit for bit, except that any NaN is any other. */
static bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || !memcmp(&a, &b, sizeof a);
}

static float widen(const void *from, attune_dtype dtype, size_t index)
{
    if (dtype == ATTUNE_F32) {
        float value;
        memcpy(&value, (const char *)from + index * sizeof value, sizeof value);
        return value;
    }
    uint16_t half;
    memcpy(&half, (const char *)from + index * sizeof half, sizeof half);
    return dtype == ATTUNE_F16 ? attune__f32_from_f16(half) : attune__f32_from_bf16(half);
}

Test(kernels, packing)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};
    char *storage = (char *)floats(64 * 280 + 16);
    float *packed = floats(64 * 272), *expected = floats(64 * 272);
    for (uint64_t round = 0; round < scaled(300); round++) {
        const attune_dtype dtype = dtypes[round % 3];
        const size_t element = attune_dtype_size(dtype), rows = between(1, 64), columns = 8 * between(1, 32);
        const ptrdiff_t stride = (ptrdiff_t)((columns + between(0, 24)) * element);
        /* Any bits, so also infinities and NaN; at any address. */
        for (size_t i = 0; i < 64 * 280 * sizeof(float); i++)
            storage[i] = (char)next();
        if (round & 1)
            for (size_t i = 0; i < 64 * 280 * sizeof(float); i++)
                storage[i] = (char)(storage[i] & 0x3b);
        char *from = storage + between(0, 3);
        bool finite = true;
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < columns; c++)
                finite &= isfinite(widen(from + (ptrdiff_t)r * stride, dtype, c)) != 0;
        for (uint32_t t = 0; t < table_count; t++) {
            const size_t padded = (rows + 15) / 16 * 16, wide = (columns + 15) / 16 * 16;
            for (size_t i = 0; i < 64 * 272; i++)
                packed[i] = expected[i] = CANARY;
            for (size_t r = 0; r < padded; r++)
                for (size_t c = 0; c < columns; c++)
                    expected[r / 16 * 16 * columns + c * 16 + r % 16] =
                        r < rows ? widen(from + (ptrdiff_t)r * stride, dtype, c) : 0;
            tables[t].pack_k(packed, from, stride, dtype, rows, columns);
            for (size_t i = 0; i < 64 * 272; i++)
                cr_assert(same(packed[i], expected[i]), "%s pack_k %zu", tables[t].name, i);

            for (size_t i = 0; i < 64 * 272; i++)
                packed[i] = expected[i] = CANARY;
            for (size_t r = 0; r < rows; r++)
                for (size_t c = 0; c < wide; c++)
                    expected[c / 16 * 16 * 64 + r * 16 + c % 16] =
                        c < columns ? widen(from + (ptrdiff_t)r * stride, dtype, c) : 0;
            cr_assert_eq(tables[t].pack_v(packed, 16 * 64, from, stride, dtype, rows, columns), finite);
            for (size_t i = 0; i < 64 * 272; i++)
                cr_assert(same(packed[i], expected[i]), "%s pack_v %zu", tables[t].name, i);
            cr_assert_eq(tables[t].finite(from, stride, dtype, rows, columns), finite, "%s", tables[t].name);

            for (size_t i = 0; i < 64 * 272; i++)
                packed[i] = expected[i] = CANARY;
            for (size_t r = 0; r < rows; r++)
                for (size_t c = 0; c < columns; c++)
                    expected[r * 272 + c] = widen(from + (ptrdiff_t)r * stride, dtype, c) * 0.3f;
            tables[t].load_rows(packed, 272, from, stride, dtype, rows, columns, 0.3f);
            for (size_t i = 0; i < 64 * 272; i++)
                cr_assert(same(packed[i], expected[i]), "%s load_rows %zu", tables[t].name, i);
        }
    }
    free(storage);
    free(packed);
    free(expected);
}

/* Every code, at any alignment, in rows of any length; a block's factor is any f16. */
Test(kernels, codes)
{
    static const attune_dtype dtypes[] = {ATTUNE_F8E4M3, ATTUNE_F8E5M2, ATTUNE_I8, ATTUNE_Q8_0, ATTUNE_Q4_0};
    static uint8_t codes[7 + 320 * 34 / 32];
    float got[320 + 1], expected[320];
    for (uint64_t round = 0; round < scaled(400); round++)
        for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
            const uint32_t block = attune_dtype_block(dtypes[i]), unit = block > 8 ? block : 8;
            const size_t columns = unit * between(1, 320 / unit);
            const uint8_t *from = codes + between(0, 7);
            const float scale = uniform();
            for (size_t n = 0; n < sizeof codes; n++)
                codes[n] = round ? (uint8_t)next() : (uint8_t)n;
            attune__dequantise(expected, from, dtypes[i], columns, scale);
            for (uint32_t t = 0; t < table_count; t++) {
                got[columns] = CANARY;
                tables[t].dequantise(got, from, dtypes[i], columns, scale);
                for (size_t c = 0; c < columns; c++)
                    cr_assert(same(got[c], expected[c]), "%s %s %zu of %zu: %g, expected %g", tables[t].name,
                              attune_dtype_string(dtypes[i]), c, columns, got[c], expected[c]);
                cr_assert_eq(got[columns], CANARY);
            }
            double wide[320];
            table_f64.dequantise(wide, from, dtypes[i], columns, scale);
            for (size_t c = 0; c < columns; c++)
                cr_assert(same((float)wide[c], expected[c]), "double %s %zu", attune_dtype_string(dtypes[i]), c);
        }
}

Test(kernels, all_halves)
{
    uint16_t *halves = malloc(65536 * sizeof *halves), *back = malloc(65536 * sizeof *back);
    float *wide = floats(65536);
    cr_assert(halves && back);
    for (uint32_t i = 0; i < 65536; i++)
        halves[i] = (uint16_t)i;
    for (uint32_t t = 0; t < table_count; t++)
        for (attune_dtype dtype = ATTUNE_F16; dtype <= ATTUNE_BF16; dtype++) {
            tables[t].load_rows(wide, 65536, halves, 0, dtype, 1, 65536, 1);
            tables[t].store_row(back, dtype, wide, 65536, 1);
            for (uint32_t i = 0; i < 65536; i++) {
                const float value = widen(halves, dtype, i);
                cr_assert(same(wide[i], value), "%s %s %#x", tables[t].name, attune_dtype_string(dtype), i);
                if (isnan(value))
                    cr_assert(isnan(widen(back, dtype, i)));
                else
                    cr_assert_eq(back[i], halves[i], "%s %s %#x", tables[t].name, attune_dtype_string(dtype), i);
            }
            /* Rounding: any float, also halfway cases. */
            for (uint64_t round = 0; round < scaled(4); round++) {
                for (uint32_t i = 0; i < 65536; i++) {
                    uint32_t bits = next();
                    if (i & 1)
                        bits &= dtype == ATTUNE_F16 ? 0xfffff000 : 0xffff8000;
                    memcpy(&wide[i], &bits, sizeof bits);
                }
                tables[t].store_row(back, dtype, wide, 65536, 1);
                for (uint32_t i = 0; i < 65536; i++) {
                    const uint16_t want =
                        dtype == ATTUNE_F16 ? attune__f16_from_f32(wide[i]) : attune__bf16_from_f32(wide[i]);
                    if (isnan(wide[i]))
                        cr_assert(isnan(widen(back, dtype, i)));
                    else
                        cr_assert_eq(back[i], want, "%s %s of %a", tables[t].name, attune_dtype_string(dtype),
                                     (double)wide[i]);
                }
            }
        }
    free(halves);
    free(back);
    free(wide);
}

/* The error of exp in units of the last place of the result. */
Test(kernels, exponential)
{
    float s[16];
    for (uint32_t t = 0; t < table_count; t++) {
        double worst = 0;
        float at = 0;
        /* Every float from -87.3 to -2^-30 in steps, so that each table is asked at the same points. */
        const uint32_t step = (uint32_t)(131 / scaled(1)) | 1;
        uint32_t bits = 0xb0800000;
        for (bool more = true; more;) {
            float x[16];
            for (int i = 0; i < 16; i++, bits += step)
                memcpy(&x[i], &bits, sizeof bits);
            more = x[15] > -87.3f;
            memcpy(s, x, sizeof s);
            tables[t].row_exp(s, 16, 0);
            for (int i = 0; i < 16; i++) {
                if (x[i] < -87.3f)
                    continue;
                const double want = exp((double)x[i]);
                int exponent;
                frexp(want, &exponent);
                const double error = fabs((double)s[i] - want) / ldexp(1, exponent - 24);
                if (error > worst) {
                    worst = error;
                    at = x[i];
                }
            }
        }
        cr_log_info("%s: exp is within %.3f ulp, the worst at %a", tables[t].name, worst, (double)at);
        cr_assert_leq(worst, 1.5, "%s: %.3f ulp at %a", tables[t].name, worst, (double)at);

        const float special[16] = {0,       -0.0f,   -INFINITY, NAN,     -88,     -1000, -3.4e38f,  -87.4f,
                                   -1e-45f, -1e-38f, -103.9f,   -104.5f, -87.33f, NAN,   -INFINITY, -1};
        memcpy(s, special, sizeof s);
        const float sum = tables[t].row_exp(s, 16, 0);
        cr_assert(isnan(sum) && isnan(s[3]) && isnan(s[13]), "%s", tables[t].name);
        for (int i = 0; i < 16; i++)
            if (!isnan(special[i]))
                cr_assert_leq(fabs((double)s[i] - exp((double)special[i])), 1.2e-38 + 1e-7 * exp((double)special[i]),
                              "%s exp(%g) = %g", tables[t].name, (double)special[i], (double)s[i]);
        cr_assert(s[2] == 0 && s[14] == 0 && s[0] == 1, "%s", tables[t].name);
    }
}

Test(kernels, rows)
{
    float s[256], o[256];
    uint8_t allowed[256];
    for (uint64_t round = 0; round < scaled(2000); round++) {
        const size_t n = 16 * between(1, 16), any = between(0, 256);
        float original[256];
        for (size_t i = 0; i < 256; i++) {
            original[i] = next() % 50 ? uniform() * 10 : next() & 1 ? NAN : -INFINITY;
            allowed[i] = next() % 4 == 0 && i >= any;
        }
        float max = -INFINITY;
        for (size_t i = 0; i < n; i++)
            max = original[i] > max ? original[i] : max;
        for (uint32_t t = 0; t < table_count; t++) {
            cr_assert_eq(tables[t].row_max(original, n), max, "%s", tables[t].name);

            memcpy(s, original, sizeof s);
            const size_t count = between(1, 256), padded = (count + 15) / 16 * 16;
            uint16_t bits[17];
            size_t found = 0;
            memset(bits, 0x5a, sizeof bits);
            for (size_t i = 0; i < count; i++)
                found += allowed[i];
            cr_assert_eq(tables[t].row_bits(bits, allowed, count), found, "%s", tables[t].name);
            for (size_t i = 0; i < padded; i++)
                cr_assert_eq(bits[i / 16] >> i % 16 & 1, i < count ? allowed[i] : 0, "%s", tables[t].name);
            cr_assert_eq(bits[padded / 16], 0x5a5a, "%s wrote outside", tables[t].name);
            tables[t].row_mask(s, bits, padded);
            for (size_t i = 0; i < 256; i++)
                cr_assert(same(s[i], i < padded && (i >= count || !allowed[i]) ? -INFINITY : original[i]), "%s",
                          tables[t].name);

            memcpy(o, original, sizeof o);
            tables[t].row_scale(o, n, 0.7f);
            for (size_t i = 0; i < 256; i++)
                cr_assert(same(o[i], i < n ? original[i] * 0.7f : original[i]), "%s", tables[t].name);
        }
    }
}

/* Against the same in double; NaN, infinities and large values at forbidden places have no influence. */
Test(kernels, row_gradient)
{
    float s[256], d[256], bad[256], bad_d[256];
    uint8_t allowed[256];
    uint16_t bits[16];
    for (uint64_t round = 0; round < scaled(2000); round++) {
        const size_t n = 16 * between(1, 16);
        const bool all = round % 4 == 0;
        const float lse = uniform() * 5, delta = uniform();
        float x[256], d_p[256];
        for (size_t i = 0; i < 256; i++) {
            x[i] = lse - (next() % 20 ? 10 * fabsf(uniform()) : 200);
            d_p[i] = next() % 30 ? uniform() : INFINITY;
            if (next() % 60 == 0)
                x[i] = NAN;
            allowed[i] = all || next() % 3 == 0;
            bad[i] = allowed[i] ? x[i] : next() % 3 ? 1e30f * uniform() : next() % 2 ? NAN : INFINITY;
            bad_d[i] = allowed[i] ? d_p[i] : next() % 3 ? 1e30f * uniform() : NAN;
        }
        for (uint32_t t = 0; t < table_count; t++) {
            tables[t].row_bits(bits, allowed, 256);
            memcpy(s, bad, sizeof s);
            memcpy(d, bad_d, sizeof d);
            tables[t].row_gradient(s, d, all ? NULL : bits, n, lse, delta);
            for (size_t i = 0; i < 256; i++) {
                if (i >= n) {
                    cr_assert(same(s[i], bad[i]) && same(d[i], bad_d[i]), "%s wrote outside", tables[t].name);
                    continue;
                }
                const double p = !allowed[i] ? 0 : exp((double)x[i] - (double)lse);
                if (p < 1e-38) {
                    cr_assert(s[i] == 0 && d[i] == 0, "%s: %g and %g", tables[t].name, (double)s[i], (double)d[i]);
                    continue;
                }
                const double want = p * ((double)d_p[i] - (double)delta);
                if (isnan(x[i]) || isinf(d_p[i])) {
                    cr_assert(isnan(x[i]) ? isnan(s[i]) && isnan(d[i]) : isinf(d[i]), "%s", tables[t].name);
                    continue;
                }
                cr_assert_leq(fabs((double)s[i] - p), 2e-6 * p, "%s: %g, not %g", tables[t].name, (double)s[i], p);
                cr_assert_leq(fabs((double)d[i] - want), 1e-6 * p + 2e-6 * fabs(want), "%s: %g, not %g", tables[t].name,
                              (double)d[i], want);
            }
        }
    }
}

/* The oracle's table is the same source: it has to agree with plain loops to double's precision. */
Test(kernels, double_products)
{
    double a[7 * 24], b[16 * 24], c[7 * 16];
    for (size_t i = 0; i < sizeof a / sizeof a[0]; i++)
        a[i] = (double)uniform();
    for (size_t i = 0; i < sizeof b / sizeof b[0]; i++)
        b[i] = (double)uniform();
    table_f64.multiply(c, 16, a, 24, 7, 24, b, 16 * 24, 1, 0.5);
    for (size_t r = 0; r < 7; r++)
        for (size_t j = 0; j < 16; j++) {
            double sum = 0;
            for (size_t p = 0; p < 24; p++)
                sum += a[r * 24 + p] * b[16 * p + j];
            cr_assert_float_eq(c[r * 16 + j], sum * 0.5, 1e-14);
        }
}
