/* SPDX-License-Identifier: MIT */
/* The functions of score expressions, in every instruction set that this processor runs, against libm's in double. */
#include "cpu/functions.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "expr/gradient.h"
#include "support/devices.h"

#define COLUMNS 256
#define CANARY  12345.0f

typedef struct set {
    const char *name;
    const attune__functions *functions;
} set;

static set sets[3];
static uint32_t set_count;
static uint64_t state;

static void setup(void)
{
    state = test_seed() | 1;
    set_count = 0;
    sets[set_count++] = (set){"generic", attune__cpu_functions_generic()};
    if (attune__cpu_functions_avx2())
        sets[set_count++] = (set){"avx2", attune__cpu_functions_avx2()};
    if (attune__cpu_functions_avx512())
        sets[set_count++] = (set){"avx512", attune__cpu_functions_avx512()};
    if (attune__cpu_functions_neon())
        sets[set_count++] = (set){"neon", attune__cpu_functions_neon()};
}

TestSuite(functions, .init = setup);

static uint32_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* NaN is quiet: libms differ in pow(x, 0) of a signalling one. */
static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return isnan(x) ? NAN : x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static bool same(float a, float b)
{
    return bits_of(a) == bits_of(b) || (a != a && b != b);
}

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

/* The functions of one operand, and where they are more than their ends: |x| up to `reach`. */
static const struct {
    attune__op op;
    float reach;
    const char *name;
    double (*wide)(double);
    double ulp;
} maps[] = {
    {ATTUNE__OP_FLOOR, 1e7f, "floor", floor, 0}, {ATTUNE__OP_CEIL, 1e7f, "ceil", ceil, 0},
    {ATTUNE__OP_EXP, 106, "exp", exp, 1.5},      {ATTUNE__OP_EXP2, 152, "exp2", exp2, 1.5},
    {ATTUNE__OP_LOG, 2, "log", log, 1.5},        {ATTUNE__OP_LOG2, 2, "log2", log2, 2},
    {ATTUNE__OP_TANH, 10, "tanh", tanh, 2},      {ATTUNE__OP_SIGMOID, 106, "sigmoid", sigmoid, 2},
    {ATTUNE__OP_SIN, 60000, "sin", sin, 2},      {ATTUNE__OP_COS, 60000, "cos", cos, 2},
};
#define MAPS (sizeof maps / sizeof maps[0])

/* How far `got` is from `want`, in units of its last place, infinite if one is a NaN or an infinity and it should not.
 */
static double distance(float got, double want)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0 : INFINITY;
    /* As the next f32 above the largest: an infinity is as near as its neighbour. */
    const double value = isinf(got) ? copysign(0x1p128, (double)got) : (double)got;
    if (fabs(want) >= 0x1.ffffffp127)
        return isinf(got) && (got > 0) == (want > 0) ? 0 : (0x1p128 - fabs(value)) * 0x1p-104;
    int exponent;
    frexp(want, &exponent);
    return fabs(value - want) / ldexp(1, exponent < -125 ? -149 : exponent - 24);
}

/* Bits that reach each number once if there are 2^32 of them, numbers in reach, and those near 1. */
static float sample(uint64_t i, float reach)
{
    switch (i % 4) {
    case 0:
        return (float)((double)next() * 0x1p-31 - 1) * reach;
    case 1:
        return of_bits(0x3f800000u - 0x10000u + next() % 0x20000u);
    default:
        return of_bits((uint32_t)i * 2654435761u);
    }
}

Test(functions, are_near_libm)
{
    const uint64_t count = scaled(400000);
    for (size_t m = 0; m < MAPS; m++) {
        double worst[3] = {0};
        float at[3] = {0};
        for (uint64_t done = 0; done < count; done += COLUMNS) {
            float x[COLUMNS], y[COLUMNS];
            double want[COLUMNS];
            for (size_t i = 0; i < COLUMNS; i++) {
                x[i] = sample(done + i, maps[m].reach);
                want[i] = maps[m].wide((double)x[i]);
            }
            for (uint32_t s = 0; s < set_count; s++) {
                if (!sets[s].functions->of[maps[m].op])
                    continue;
                sets[s].functions->of[maps[m].op](y, x, COLUMNS);
                for (size_t i = 0; i < COLUMNS; i++) {
                    const double error = distance(y[i], want[i]);
                    cr_assert_leq(error, maps[m].ulp, "%s %s(%a) = %a, not %a: %.3f ulp", sets[s].name, maps[m].name,
                                  (double)x[i], (double)y[i], want[i], error);
                    if (error > worst[s]) {
                        worst[s] = error;
                        at[s] = x[i];
                    }
                }
            }
        }
        for (uint32_t s = 0; s < set_count; s++)
            cr_log_info("%s: %s is within %.3f ulp, the worst at %a", sets[s].name, maps[m].name, worst[s],
                        (double)at[s]);
    }
}

static const float special[] = {
    0.0f,     -0.0f,    1e-45f,  -1e-45f, 1.1e-38f,   -1.1e-38f,  0x1p-126f,   1e-20f,      -1e-20f,
    0.5f,     -0.5f,    1.0f,    -1.0f,   2.0f,       -2.0f,      3.0f,        -3.0f,       2.5f,
    -2.5f,    88.0f,    88.8f,   -87.4f,  -103.9f,    -104.5f,    127.0f,      128.0f,      -126.0f,
    -149.0f,  -149.5f,  -150.0f, -151.0f, 8388607.0f, 8388608.5f, 16777215.0f, 16777217.0f, -16777215.0f,
    51471.0f, 51472.0f, 1e10f,   -1e10f,  3.4e38f,    -3.4e38f,   INFINITY,    -INFINITY,   NAN};
#define SPECIAL (sizeof special / sizeof special[0])

/* Ends, signs of zero, what is not a number: what libm's f32 has, but for a rounding. */
Test(functions, have_libms_ends)
{
    float y[SPECIAL];
    for (uint32_t s = 0; s < set_count; s++)
        for (size_t m = 0; m < MAPS; m++) {
            if (!sets[s].functions->of[maps[m].op])
                continue;
            sets[s].functions->of[maps[m].op](y, special, SPECIAL);
            for (size_t i = 0; i < SPECIAL; i++) {
                const double want = maps[m].wide((double)special[i]);
                cr_assert_leq(distance(y[i], want), maps[m].ulp, "%s %s(%a) = %a, not %a", sets[s].name, maps[m].name,
                              (double)special[i], (double)y[i], want);
                cr_assert(isnan(want) || !signbit(want) == !signbit(y[i]), "%s %s(%a) = %a, not %a", sets[s].name,
                          maps[m].name, (double)special[i], (double)y[i], want);
                if (want == rint(want) && fabs(want) < 2)
                    cr_assert_eq((double)y[i], want, "%s %s(%a) = %a, not %a", sets[s].name, maps[m].name,
                                 (double)special[i], (double)y[i], want);
            }
        }
}

/* Whole powers of negative numbers, halves of them, and anything. */
static void sample_power(float *x, float *y)
{
    *x = next() % 4 ? (float)((double)next() * 0x1p-28 - 8) : of_bits(next());
    switch (next() % 4) {
    case 0:
        *y = (float)(next() % 64) / 2 - 16;
        break;
    case 1:
        *y = of_bits(next());
        break;
    default:
        *y = (float)((double)next() * 0x1p-27 - 16);
        break;
    }
    if (next() % 16 == 0)
        *x = of_bits(0x3f800000u - 0x100u + next() % 0x200u);
}

Test(functions, powers)
{
    const uint64_t count = scaled(1000000);
    float x[COLUMNS], y[COLUMNS], z[COLUMNS];
    double worst[3] = {0};
    for (uint64_t done = 0; done < count; done += COLUMNS) {
        double want[COLUMNS];
        for (size_t i = 0; i < COLUMNS; i++) {
            sample_power(&x[i], &y[i]);
            want[i] = pow((double)x[i], (double)y[i]);
        }
        for (uint32_t s = 0; s < set_count; s++) {
            sets[s].functions->of_two[ATTUNE__OP_POW](z, x, y, 0, 0, COLUMNS);
            for (size_t i = 0; i < COLUMNS; i++) {
                const double error = distance(z[i], want[i]);
                cr_assert_leq(error, 1, "%s pow(%a, %a) = %a, not %a: %.3f ulp", sets[s].name, (double)x[i],
                              (double)y[i], (double)z[i], want[i], error);
                worst[s] = error > worst[s] ? error : worst[s];
            }
        }
    }
    for (uint32_t s = 0; s < set_count; s++) {
        cr_log_info("%s: pow is within %.3f ulp", sets[s].name, worst[s]);
        for (size_t i = 0; i < SPECIAL; i++)
            for (size_t j = 0; j < SPECIAL; j++) {
                float value;
                sets[s].functions->of_two[ATTUNE__OP_POW](&value, &special[i], &special[j], 0, 0, 1);
                const float wanted = powf(special[i], special[j]);
                cr_assert(same(value, wanted) ||
                              (isfinite(wanted) && wanted != 0 && distance(value, (double)wanted) <= 1),
                          "%s pow(%a, %a) = %a, not %a", sets[s].name, (double)special[i], (double)special[j],
                          (double)value, (double)wanted);
            }
    }
}

/* Arithmetic has C's bits, NaN for NaN: arrays and numbers, any number of columns, in place and not. */
Test(functions, arithmetic)
{
    static const attune__op ops[] = {ATTUNE__OP_ADD, ATTUNE__OP_SUB, ATTUNE__OP_MUL,
                                     ATTUNE__OP_DIV, ATTUNE__OP_MIN, ATTUNE__OP_MAX};
    float x[COLUMNS], y[COLUMNS], z[COLUMNS];
    for (uint64_t round = 0; round < scaled(2000); round++) {
        const size_t count = 1 + next() % COLUMNS, from = next() % 3, n = count > from ? count - from : 1;
        const uint32_t o = (uint32_t)(next() % 6), arrays = 1 + (uint32_t)(next() % 3), place = (uint32_t)(next() % 3);
        for (size_t i = 0; i < COLUMNS; i++) {
            x[i] = next() % 4 ? of_bits((uint32_t)next()) : special[next() % SPECIAL];
            y[i] = next() % 4 ? of_bits((uint32_t)next()) : special[next() % SPECIAL];
        }
        for (uint32_t s = 0; s < set_count; s++) {
            const float *left = arrays & 1 ? x + from : NULL, *right = arrays & 2 ? y + from : NULL;
            memcpy(z, x, sizeof z);
            if (place == 1 && left)
                left = z;
            memcpy(z, place == 1 ? x + from : x, n * sizeof *z);
            sets[s].functions->of_two[ops[o]](z, left, right, x[0], y[0], n);
            for (size_t i = 0; i < n; i++) {
                const float a = left ? x[from + i] : x[0], b = right ? y[from + i] : y[0];
                const float want = o == 0   ? a + b
                                   : o == 1 ? a - b
                                   : o == 2 ? a * b
                                   : o == 3 ? a / b
                                   : o == 4 ? (b < a ? b : a)
                                            : (a < b ? b : a);
                cr_assert(!memcmp(&z[i], &want, sizeof want) || (isnan(z[i]) && isnan(want)),
                          "%s op %u of %a and %a is %a, not %a", sets[s].name, o, (double)a, (double)b, (double)z[i],
                          (double)want);
            }
            for (size_t i = n; i < COLUMNS; i++)
                cr_assert(!memcmp(&z[i], &x[i], sizeof *z), "%s wrote past %zu", sets[s].name, n);
        }
    }
}

/* A value is that of its column alone: any number of columns, at any address, in place too, and nothing past them. */
Test(functions, columns_do_not_depend_on_each_other)
{
    float x[COLUMNS], y[COLUMNS], alone[COLUMNS], out[COLUMNS];
    for (uint32_t s = 0; s < set_count; s++)
        for (size_t m = 0; m <= MAPS; m++) {
            void (*map)(float *, const float *, size_t) = m < MAPS ? sets[s].functions->of[maps[m].op] : NULL;
            if (m < MAPS && !map)
                continue;
            for (size_t i = 0; i < COLUMNS; i++) {
                x[i] = next() % 8 ? sample(i, 100) : special[next() % SPECIAL];
                y[i] = next() % 8 ? sample(i, 5) : special[next() % SPECIAL];
                if (map) {
                    map(&alone[i], &x[i], 1);
                } else {
                    sets[s].functions->of_two[ATTUNE__OP_POW](&alone[i], &x[i], &y[i], 0, 0, 1);
                }
            }
            for (size_t from = 0; from < 3; from++)
                for (size_t count = 0; count <= 67; count++)
                    for (int in_place = 0; in_place < 2; in_place++) {
                        for (size_t i = 0; i < COLUMNS; i++)
                            out[i] = in_place && i < count ? x[from + i] : CANARY;
                        if (map)
                            map(out, in_place ? out : x + from, count);
                        else
                            sets[s].functions->of_two[ATTUNE__OP_POW](out, in_place ? out : x + from, y + from, 0, 0,
                                                                      count);
                        for (size_t i = 0; i < COLUMNS; i++)
                            cr_assert(same(out[i], i < count ? alone[from + i] : CANARY),
                                      "%s %s: column %zu of %zu at %zu", sets[s].name, m < MAPS ? maps[m].name : "pow",
                                      i, count, from);
                    }
        }
}

/* Rows of scores and of derivatives that are made with them, against f64. */
Test(functions, serve_expressions)
{
    static const char *const texts[] = {
        "20 * tanh(score / 20)",   "score * sigmoid(score)",   "log(2 + kv) * exp(score / 10)",
        "pow(2, score / 8)",       "pow(score, 2) / (1 + kv)", "pow(1.5 + score * score, sin(score) + 0.01 * kv)",
        "exp2(score / 9) - score", "log2(1 + score * score)",  "cos(score) * 2 + floor(score / 3) - ceil(score / 5)",
        "pow(2.5, 1.0 / (1 + h))",
    };
    enum { COUNT = 77 };
    static _Alignas(64) unsigned char scratch[256 << 10];
    double *const none[ATTUNE_EXPR_MAX_SYMBOLS] = {NULL};
    const attune__bindings bindings = {NULL, NULL};
    const attune__row row = {.h = 2, .q = 40, .q_len = 100, .kv_len = 100};
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        attune_expr *expr;
        attune__gradient *gradient;
        cr_assert_eq(attune__expr_parse(&attune__default_allocator, ATTUNE_EXPR_SCORE, texts[t], NULL, 0, &expr),
                     ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune__gradient_create(expr, &gradient), ATTUNE_OK);
        cr_assert_leq(attune__expr_scratch_size(gradient->expr, COUNT), sizeof scratch);
        float x[COUNT];
        double wanted[COUNT], slope[COUNT];
        for (size_t i = 0; i < COUNT; i++) {
            x[i] = sample(0, 30);
            wanted[i] = (double)x[i];
            slope[i] = 1;
        }
        attune__gradient_row_f64(gradient, &bindings, &row, 5, COUNT, scratch, wanted, slope, none);
        attune__expr_score_row_f64(expr, &bindings, &row, 5, COUNT, scratch, wanted);
        for (uint32_t s = 0; s < set_count; s++) {
            float y[COUNT], d[COUNT];
            memcpy(y, x, sizeof y);
            for (size_t i = 0; i < COUNT; i++)
                d[i] = 1;
            attune__gradient_row_f32(sets[s].functions, gradient, &bindings, &row, 5, COUNT, scratch, x, d, none);
            attune__expr_score_row_f32(sets[s].functions, expr, &bindings, &row, 5, COUNT, scratch, y);
            for (size_t i = 0; i < COUNT; i++) {
                cr_assert_leq(fabs((double)y[i] - wanted[i]), 2e-5 * (1 + fabs(wanted[i])), "%s %s at %a: %g, not %g",
                              sets[s].name, texts[t], (double)x[i], (double)y[i], wanted[i]);
                cr_assert_leq(fabs((double)d[i] - slope[i]), 2e-5 * (1 + fabs(slope[i])),
                              "%s slope of %s at %a: %g, not %g", sets[s].name, texts[t], (double)x[i], (double)d[i],
                              slope[i]);
            }
        }
        attune__gradient_destroy(gradient);
        attune__expr_release(expr);
    }
}
