/* SPDX-License-Identifier: MIT */
/* The kernels for 16-bit matrices that this processor runs: packing against the model's, bit for bit, products against
 * double arithmetic. The model's product is the source of AMX's. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "cpu/draw.h"
#include "cpu/matrix_model.h"
#include "support/devices.h"

#define MOST   160 /* rows and columns */
#define CANARY ((uint16_t)0x5a5a)

static attune__cpu_matrix tables[3];
static const char *names[3];
static uint32_t table_count;

/* Tables of bf16 multiply one part alone, and that of Arm has no other. */
static bool packs(uint32_t t, size_t summands)
{
    return summands == 1 || strcmp(names[t], "neon_bf16") != 0;
}

static bool multiplies(uint32_t t, size_t summands)
{
    return packs(t, summands) && (summands == 1 || strcmp(names[t], "avx512_bf16") != 0);
}

static void setup(void)
{
    state = test_seed() | 1;
    tables[0] = matrix_model();
    names[0] = "model";
    table_count = 1;
    if (attune__cpu_matrix_bf16(&tables[table_count]))
        names[table_count++] = "avx512_bf16";
    if (attune__cpu_matrix_neon(&tables[table_count]))
        names[table_count++] = "neon_bf16";
    if (attune__cpu_matrix_amx(&tables[table_count]))
        names[table_count++] = "amx";
    for (uint32_t i = 0; i < table_count; i++)
        cr_log_info("matrices: %s", names[i]);
}

TestSuite(matrix, .init = setup);

static void *array(size_t bytes)
{
    void *made = aligned_alloc(64, (bytes + 63) / 64 * 64);
    cr_assert_not_null(made);
    return made;
}

static size_t round_to(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

static float widen(uint16_t bits, attune_dtype dtype)
{
    return dtype == ATTUNE_F16 ? attune__f32_from_f16(bits) : attune__f32_from_bf16(bits);
}

static uint16_t narrow(float x, attune_dtype dtype)
{
    return dtype == ATTUNE_F16 ? attune__f16_from_f32(x) : attune__bf16_from_f32(x);
}

/* Ordinary elements, zeros, and with `special` now and then an infinity or NaN. */
static void fill(uint16_t *to, size_t n, attune_dtype dtype, bool special)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t kind = next() % 500;
        to[i] = narrow(special && kind < 2 ? (kind ? NAN : INFINITY)
                       : kind < 20         ? 0
                                           : ldexpf(uniform(), (int)kind % 12),
                       dtype);
    }
}

static void compare(const uint16_t *got, const uint16_t *want, size_t n, const char *name, const char *what)
{
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(got[i], want[i], "%s %s: %zu is %#x, not %#x", name, what, i, got[i], want[i]);
}

/* Of non-finite elements only the answer counts. */
Test(matrix, packing)
{
    const size_t size = 2 * MOST * (MOST + 32);
    uint16_t *from = array(MOST * MOST * 2 + 64), *got = array(size * 2), *want = array(size * 2);
    for (uint64_t round = 0; round < scaled(200); round++) {
        const attune_dtype dtype = round & 1 ? ATTUNE_F16 : ATTUNE_BF16;
        const size_t summands = round & 1 ? 2 : 1, rows = between(1, MOST), columns = 8 * between(1, MOST / 8);
        const ptrdiff_t stride = (ptrdiff_t)(2 * columns);
        const size_t k_stride = 16 * summands * round_to(columns, 32), v_stride = 16 * summands * round_to(rows, 32);
        fill(from, MOST * MOST, dtype, round % 8 >= 6);
        for (uint32_t t = 1; t < table_count; t++) {
            bool finite[2];
            if (!packs(t, summands))
                continue;
            for (size_t i = 0; i < size; i++)
                got[i] = want[i] = CANARY;
            finite[0] = tables[t].pack_q(got, summands * MOST, from, stride, dtype, rows, columns);
            finite[1] = tables[0].pack_q(want, summands * MOST, from, stride, dtype, rows, columns);
            cr_assert_eq(finite[0], finite[1], "%s", names[t]);
            if (finite[0])
                compare(got, want, size, names[t], "pack_q");
            for (size_t i = 0; i < size; i++)
                got[i] = want[i] = CANARY;
            finite[0] = tables[t].pack_k(got, k_stride, from, stride, dtype, rows, columns);
            finite[1] = tables[0].pack_k(want, k_stride, from, stride, dtype, rows, columns);
            cr_assert_eq(finite[0], finite[1], "%s", names[t]);
            if (finite[0])
                compare(got, want, size, names[t], "pack_k");
            for (size_t i = 0; i < size; i++)
                got[i] = want[i] = CANARY;
            finite[0] = tables[t].pack_v(got, v_stride, from, stride, dtype, rows, columns);
            finite[1] = tables[0].pack_v(want, v_stride, from, stride, dtype, rows, columns);
            cr_assert_eq(finite[0], finite[1], "%s", names[t]);
            if (finite[0])
                compare(got, want, size, names[t], "pack_v");
        }
    }
    free(from);
    free(got);
    free(want);
}

/* a of m x k times the transpose of b, n x k. */
Test(matrix, products)
{
    uint16_t *a = array(MOST * MOST * 2), *b = array(MOST * MOST * 2), *rows = array(MOST * MOST * 4 + 64 * MOST),
             *panels = array(MOST * MOST * 4 + 64 * MOST);
    float *c = array(MOST * MOST * 4);
    for (uint64_t round = 0; round < scaled(60); round++) {
        const attune_dtype dtype = round & 1 ? ATTUNE_F16 : ATTUNE_BF16;
        const size_t summands = round & 1 ? 2 : 1, m = between(1, 70), n = between(1, 90), k = 8 * between(1, MOST / 8);
        const size_t ld = summands * round_to(k, 32), stride = 16 * ld, wide = round_to(n, 16);
        const bool add = next() & 1, exact = next() & 1;
        fill(a, MOST * MOST, dtype, false);
        fill(b, MOST * MOST, dtype, false);
        memset(rows, 0, MOST * MOST * 4);
        (void)tables[0].pack_q(rows, ld, a, (ptrdiff_t)(2 * k), dtype, m, k);
        (void)tables[0].pack_k(panels, stride, b, (ptrdiff_t)(2 * k), dtype, n, k);
        for (uint32_t t = 0; t < table_count; t++) {
            if (!multiplies(t, summands))
                continue;
            for (size_t i = 0; i < MOST * MOST; i++)
                c[i] = (float)(i % 7);
            tables[t].begin();
            tables[t].multiply(c, MOST, rows, ld, m, round_to(k, 32) / 32, panels, stride, wide / 16, summands, add,
                               exact);
            tables[t].end();
            for (size_t r = 0; r < round_to(m, 16); r++)
                for (size_t j = 0; j < MOST; j++) {
                    const float before = (float)((r * MOST + j) % 7), value = c[r * MOST + j];
                    if (j >= wide)
                        cr_assert_eq(value, before, "%s wrote outside", names[t]);
                    if (j >= n || r >= m)
                        continue;
                    double sum = add ? (double)before : 0, magnitude = sum;
                    for (size_t p = 0; p < k; p++) {
                        const double term = (double)widen(a[r * k + p], dtype) * (double)widen(b[j * k + p], dtype);
                        sum += term;
                        magnitude += fabs(term);
                    }
                    const double most = ((double)(4 * k + 2) * 0x1p-24 + (exact ? 0 : 0x1p-17)) * magnitude;
                    cr_assert_leq(fabs((double)value - sum), most, "%s %s m %zu n %zu k %zu (%zu, %zu): %g, not %g",
                                  names[t], attune_dtype_string(dtype), m, n, k, r, j, (double)value, sum);
                }
        }
    }
    free(a);
    free(b);
    free(rows);
    free(panels);
    free(c);
}

/* Linux refuses AMX to a process with a signal stack that is too small for its registers: the table then has none. */
Test(matrix_permission, refused)
{
    static char small[2048];
    const stack_t stack = {.ss_sp = small, .ss_size = sizeof small};
    stack_t before;
    attune__cpu_matrix table = {0};
    const bool set = !sigaltstack(&stack, &before);
    const bool permitted = attune__cpu_matrix_amx(&table);
    if (set)
        (void)sigaltstack(&before, NULL);
    if (!permitted)
        cr_assert_null(table.name, "%s", table.name);
}

enum { ROWS = 9, LDS = 272 };

static void check_row(const char *name, const float *s, const uint16_t *p, size_t n, float scale, float m, float got,
                      size_t summands)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const double want = exp((double)(s[i] * scale - m));
        double value = (double)attune__f32_from_bf16(p[i / 32 * 32 * summands + i % 32]);
        if (summands == 2)
            value += (double)attune__f32_from_bf16(p[i / 32 * 64 + 32 + i % 32]);
        const double most = (summands == 2 ? 0x1p-16 : 0x1p-8) * want + 2e-38;
        cr_assert_leq(fabs(value - want), most, "%s: exp(%a) is %a", name, (double)(s[i] * scale - m), value);
        if (s[i] * scale == m)
            cr_assert_eq(value, 1, "%s", name);
        sum += want;
    }
    cr_assert_leq(fabs((double)got - sum), 1e-6 * sum, "%s: the sum is %a, not %a", name, (double)got, sum);
}

/* In place, as calls use it; a row has the same bits alone. */
Test(matrix, rows)
{
    static float s[ROWS * LDS], x[ROWS * LDS], y[LDS];
    for (uint64_t round = 0; round < scaled(100); round++) {
        const size_t n = 32 * between(1, 8), summands = 1 + round % 2, rows = between(1, ROWS);
        const float scale = round % 3 ? uniform() : 1;
        for (size_t i = 0; i < ROWS * LDS; i++)
            s[i] = next() % 50 ? uniform() * 100 : -INFINITY * scale;
        for (uint32_t t = 0; t < table_count; t++) {
            uint16_t *p = (uint16_t *)(void *)x, *alone = (uint16_t *)(void *)y;
            float m[ROWS], max, got[ROWS], sum;
            tables[t].rows_max(s, LDS, rows, n, scale, m);
            for (size_t r = 0; r < rows; r++) {
                tables[0].rows_max(s + r * LDS, LDS, 1, n, scale, &max);
                cr_assert_eq(m[r], max, "%s", names[t]);
                m[r] = m[r] == -INFINITY ? 0 : m[r];
            }
            if (!packs(t, summands))
                continue;
            memcpy(x, s, sizeof x);
            tables[t].rows_exp(p, 2 * LDS, x, LDS, rows, n, scale, m, got, summands);
            for (size_t r = 0; r < rows; r++) {
                check_row(names[t], s + r * LDS, p + 2 * r * LDS, n, scale, m[r], got[r], summands);
                memcpy(y, s + r * LDS, sizeof y);
                tables[t].rows_exp(alone, 2 * LDS, y, LDS, 1, n, scale, m + r, &sum, summands);
                cr_assert(sum == got[r] && !memcmp(alone, p + 2 * r * LDS, 2 * n * summands), "%s: row %zu of %zu",
                          names[t], r, rows);
            }
        }
        for (uint32_t t = 0; t < table_count; t++) {
            float max, sum;
            const float none = 0;
            x[0] = NAN;
            for (size_t i = 1; i < 32; i++)
                x[i] = -INFINITY;
            tables[t].rows_max(x, LDS, 1, 32, 1, &max);
            cr_assert_eq(max, -INFINITY, "%s", names[t]);
            tables[t].rows_exp((uint16_t *)(void *)x, 2 * LDS, x, LDS, 1, 32, 1, &none, &sum, 1);
            cr_assert(isnan(sum), "%s", names[t]);
        }
    }
}
