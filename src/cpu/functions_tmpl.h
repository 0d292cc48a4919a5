/* SPDX-License-Identifier: MIT */
/*
 * Functions over arrays of f32, in GNU C's vector extensions. Included once for each instruction set, with TARGET,
 * SPECIALISE, LANES, the vectors vf, vi and vd, fma_f, fma_d, any, widen_low, widen_high, narrow, FUNCTIONS and RUNS
 * defined; FLOOR and CEIL if the set has them.
 *
 * Polynomials in f32 are those of Moshier's Cephes. Reductions by ln 2 and pi / 2 are Cody & Waite's: constants in two
 * parts, the first with so few bits that its product is exact without FMA too. Adding 1.5 * 2^23 (2^52 in f64) rounds
 * to an integer in the low bits; for NaN these bits are meaningless, and products with them remain NaN.
 */
#include <float.h>
#include <math.h>
#include <string.h>

typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint64_t vl __attribute__((vector_size(4 * LANES)));

#define ROUND_F 0x1.8p23f
#define ROUND_D 0x1.8p52

SPECIALISE vf load(const float *from)
{
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}

SPECIALISE void store(float *to, vf x)
{
    memcpy(to, &x, sizeof x);
}

SPECIALISE vf all_f(float x)
{
    return x - (vf){0};
}

SPECIALISE vd all_d(double x)
{
    return x - (vd){0};
}

/* a x + b for numbers a. */
SPECIALISE vf step_f(vf p, vf x, float coefficient)
{
    return fma_f(p, x, all_f(coefficient));
}

SPECIALISE vd step_d(vd p, vd x, double coefficient)
{
    return fma_d(p, x, all_d(coefficient));
}

/* mask ? a : b; a mask's lanes are all ones or zero. */
SPECIALISE vf choose(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* NaN remains NaN. */
SPECIALISE vf at_most(vf x, float limit)
{
    return choose(x > limit, all_f(limit), x);
}

SPECIALISE vf at_least(vf x, float limit)
{
    return choose(x < limit, all_f(limit), x);
}

SPECIALISE vf magnitude(vf x)
{
    return (vf)((vu)x & 0x7fffffffu);
}

SPECIALISE vu sign(vf x)
{
    return (vu)x & 0x80000000u;
}

/* -------------------------------------------------------------------------------------------------------- powers of e
 */

/* 2^n (1 + tail) */
typedef struct power {
    vi n;
    vf tail;
} power;

/* 2^n of a normal number. */
SPECIALISE vf two_to(vi n)
{
    return (vf)(((vu)n + 127u) << 23);
}

/* A factor that may be subnormal is the product of two normal ones; only the second multiplication rounds. */
SPECIALISE vf value_of(power p)
{
    const vi half = p.n >> 1;
    return (1.0f + p.tail) * two_to(half) * two_to((vi)((vu)p.n - (vu)half));
}

/* e^x for |x| up to 2^14. */
SPECIALISE power power_of_e(vf x)
{
    const vf shifted = step_f(x, all_f(0x1.715476p+0f), ROUND_F), n = shifted - ROUND_F;
    vf r = fma_f(n, all_f(-0x1.63p-1f), x);
    r = fma_f(n, all_f(0x1.bd0106p-13f), r);
    vf p = all_f(1.9875691500e-4f);
    p = step_f(p, r, 1.3981999507e-3f);
    p = step_f(p, r, 8.3334519073e-3f);
    p = step_f(p, r, 4.1665795894e-2f);
    p = step_f(p, r, 1.6666665459e-1f);
    p = step_f(p, r, 5.0000001201e-1f);
    return (power){(vi)((vu)shifted - (vu)all_f(ROUND_F)), fma_f(p, r * r, r)};
}

SPECIALISE power power_of_two(vf x)
{
    const vf shifted = x + ROUND_F, r = x - (shifted - ROUND_F);
    vf p = all_f(1.535336188319500e-4f);
    p = step_f(p, r, 1.339887440266574e-3f);
    p = step_f(p, r, 9.618437357674640e-3f);
    p = step_f(p, r, 5.550332471162809e-2f);
    p = step_f(p, r, 2.402264791363012e-1f);
    p = step_f(p, r, 6.931472028550421e-1f);
    return (power){(vi)((vu)shifted - (vu)all_f(ROUND_F)), p * r};
}

SPECIALISE vf exp_of(vf x)
{
    return value_of(power_of_e(at_least(at_most(x, 89), -104)));
}

SPECIALISE vf exp2_of(vf x)
{
    return value_of(power_of_two(at_least(at_most(x, 129), -151)));
}

/* e^x + 1, rounded once more than e^x - 1 is: n is at most 23, so that 2^n + 1 is exact or as good as 1. */
SPECIALISE vf power_and_one(power p, vf scale)
{
    return fma_f(scale, p.tail, scale + 1.0f);
}

/* A polynomial for small |x|, for relative accuracy; 1 - 2 / (e^2x + 1) otherwise. */
SPECIALISE vf tanh_of(vf x)
{
    const vf a = magnitude(x), z = a * a;
    vf p = all_f(-5.70498872745e-3f);
    p = step_f(p, z, 2.06390887954e-2f);
    p = step_f(p, z, -5.37397155531e-2f);
    p = step_f(p, z, 1.33314422036e-1f);
    p = step_f(p, z, -3.33332819422e-1f);
    const vf small = fma_f(p * z, a, a);
    const power e = power_of_e(at_most(a + a, 20));
    const vf large = 1.0f - 2.0f / power_and_one(e, two_to(e.n));
    return (vf)((vu)choose(a < 0.625f, small, large) | sign(x));
}

/* 1 / (e^-x + 1); below -16, e^x / (e^x + 1) = e^x - e^2x, which may be subnormal. */
SPECIALISE vf sigmoid_of(vf x)
{
    const vi low = x < -16.0f;
    const power e = power_of_e(at_least(choose(low, x, -x), -104));
    const vf tiny = value_of(e), scale = value_of((power){e.n, all_f(0)});
    return choose(low, fma_f(-tiny, tiny, tiny), 1.0f / power_and_one(e, scale));
}

/* --------------------------------------------------------------------------------------------------------- logarithms
 */

/* x = 2^n (1 + f) for x above 0, with 1 + f around 1: from the root of a half to that of 2. */
SPECIALISE vf exponent_of(vf x, vf *f)
{
    const vi tiny = x < FLT_MIN;
    const vu bits = (vu)choose(tiny, x * 0x1p23f, x);
    const vi n = (vi)(bits - 0x3f3504f3u) >> 23;
    *f = (vf)(bits - ((vu)n << 23)) - 1.0f;
    return __builtin_convertvector(n, vf) - (vf)(tiny & (vi)all_f(23));
}

/* log(1 + f) - f */
SPECIALISE vf log_tail(vf f)
{
    const vf z = f * f;
    vf p = all_f(7.0376836292e-2f);
    p = step_f(p, f, -1.1514610310e-1f);
    p = step_f(p, f, 1.1676998740e-1f);
    p = step_f(p, f, -1.2420140846e-1f);
    p = step_f(p, f, 1.4249322787e-1f);
    p = step_f(p, f, -1.6668057665e-1f);
    p = step_f(p, f, 2.0000714765e-1f);
    p = step_f(p, f, -2.4999993993e-1f);
    p = step_f(p, f, 3.3333331174e-1f);
    return fma_f(p * f, z, -0.5f * z);
}

/* The logarithm of x <= 0 and of non-finite x. */
SPECIALISE vf log_domain(vf x, vf log)
{
    log = choose(x < INFINITY, log, x + x);
    log = choose(x < 0.0f, all_f(NAN), log);
    return choose(x == 0.0f, all_f(-INFINITY), log);
}

SPECIALISE vf log_of(vf x)
{
    vf f;
    const vf n = exponent_of(x, &f);
    const vf tail = fma_f(n, all_f(-2.12194440e-4f), log_tail(f));
    return log_domain(x, fma_f(n, all_f(0.693359375f), f + tail));
}

/* log2(e) as 1 and the remainder. */
SPECIALISE vf log2_of(vf x)
{
    vf f;
    const vf n = exponent_of(x, &f), tail = log_tail(f), rest = all_f(0.44269504088896340736f);
    return log_domain(x, n + (f + (tail + fma_f(rest, tail, rest * f))));
}

/* -------------------------------------------------------------------------------------------------------- sine, cosine
 */

/* Larger angles cannot be reduced accurately enough with f32 quotients, and use libm. */
#define FAR_ANGLE 51471.0f

/* |x| - n pi / 2 in f64: n has at most 16 bits, and the first part of pi / 2 has 33. */
SPECIALISE vd reduce(vd x, vd n)
{
    return fma_d(n, all_d(-0x1.0b4611a626331p-34), fma_d(n, all_d(-0x1.921fb544p+0), x));
}

/* quarters: 0 for sin, 1 for cos. */
SPECIALISE vf sine(vf x, uint32_t quarters)
{
    const vf a = magnitude(x), shifted = step_f(a, all_f(0x1.45f306p-1f), ROUND_F), n = shifted - ROUND_F;
    const vf r = narrow(reduce(widen_low(a), widen_low(n)), reduce(widen_high(a), widen_high(n))), z = r * r;
    vf s = all_f(-1.9515295891e-4f);
    s = step_f(s, z, 8.3321608736e-3f);
    s = step_f(s, z, -1.6666654611e-1f);
    s = fma_f(s * z, r, r);
    vf c = all_f(2.443315711809948e-5f);
    c = step_f(c, z, -1.388731625493765e-3f);
    c = step_f(c, z, 4.166664568298827e-2f);
    c = fma_f(c * z, z, fma_f(z, all_f(-0.5f), all_f(1)));
    const vu quarter = (vu)shifted + quarters;
    const vf value = choose((vi)(0u - (quarter & 1u)), c, s);
    return (vf)((vu)value ^ (quarter & 2u) << 30);
}

SPECIALISE vf sin_of(vf x)
{
    return (vf)((vu)sine(x, 0) ^ sign(x));
}

SPECIALISE vf cos_of(vf x)
{
    return sine(x, 1);
}

SPECIALISE vi far_angle(vf x)
{
    return ~(magnitude(x) <= FAR_ANGLE);
}

/* -------------------------------------------------------------------------------------------------------------- powers
 */

#define MANTISSA_BITS 52
#define ONE           ((uint64_t)1023 << MANTISSA_BITS)

/* log2(x) of normal x above 0, within 2^-39 of itself: x = 2^n m with m around 1, and log(m) = 2 atanh(s). */
SPECIALISE vd log2_wide(vd x)
{
    const vl bits = (vl)x, n = (bits - 0x3fe6a09e667f3bcdu + ONE) >> MANTISSA_BITS;
    const vd m = (vd)(bits - (n << MANTISSA_BITS) + ONE), s = (m - 1.0) / (m + 1.0), z = s * s;
    vd p = all_d(0x1.71547652b82fep+1 / 13);
    p = step_d(p, z, 0x1.71547652b82fep+1 / 11);
    p = step_d(p, z, 0x1.71547652b82fep+1 / 9);
    p = step_d(p, z, 0x1.71547652b82fep+1 / 7);
    p = step_d(p, z, 0x1.71547652b82fep+1 / 5);
    p = step_d(p, z, 0x1.71547652b82fep+1 / 3);
    p = step_d(p, z, 0x1.71547652b82fep+1);
    /* An integer below 2^52 in the mantissa of 2^52. */
    return fma_d(p, s, (vd)(n | (vl)all_d(0x1p52)) - (0x1p52 + 1023));
}

/* 2^x as the series of e^(x ln 2). Outside of the limits the result is 0 or infinity in f32. */
SPECIALISE vd exp2_wide(vd x)
{
    x = (vd)(((x > 200.0) & (vl)all_d(200)) | (~(x > 200.0) & (vl)x));
    x = (vd)(((x < -200.0) & (vl)all_d(-200)) | (~(x < -200.0) & (vl)x));
    const vd shifted = x + ROUND_D, r = (x - (shifted - ROUND_D)) * 0x1.62e42fefa39efp-1;
    vd p = all_d(1.0 / 40320);
    p = step_d(p, r, 1.0 / 5040);
    p = step_d(p, r, 1.0 / 720);
    p = step_d(p, r, 1.0 / 120);
    p = step_d(p, r, 1.0 / 24);
    p = step_d(p, r, 1.0 / 6);
    p = step_d(p, r, 0.5);
    p = step_d(p, r, 1);
    p = step_d(p, r, 1);
    return p * (vd)(((vl)shifted + 1023u) << MANTISSA_BITS);
}

SPECIALISE vi whole(vf x)
{
    return (x >= 0x1p23f) | ((x + 0x1p23f) - 0x1p23f == x);
}

SPECIALISE vf pow_of(vf x, vf y)
{
    const vf a = magnitude(x), b = magnitude(y);
    const vf raised =
        narrow(exp2_wide(widen_low(y) * log2_wide(widen_low(a))), exp2_wide(widen_high(y) * log2_wide(widen_high(a))));
    const vi negative = x < 0.0f, odd = ~whole(0.5f * b);
    const vf value = (vf)((vu)raised ^ ((vu)(negative & odd) & 0x80000000u));
    return choose(negative & ~whole(b), all_f(NAN), value);
}

/* Zeros, infinities and NaN use libm. */
SPECIALISE vi power_needs_libm(vf x, vf y)
{
    return ~((magnitude(x) > 0.0f) & (magnitude(x) < INFINITY) & (magnitude(y) < INFINITY));
}

/* --------------------------------------------------------------------------------------------------------------
 * columns */

/* The remainder after the last whole vector is copied to a vector that is padded with ones. */
#define COLUMNS(name, value)                                                                                           \
    TARGET static void name(float *to, const float *x, size_t count)                                                   \
    {                                                                                                                  \
        for (; count >= LANES; count -= LANES, x += LANES, to += LANES)                                                \
            store(to, value(load(x)));                                                                                 \
        if (count) {                                                                                                   \
            float last[LANES];                                                                                         \
            store(last, all_f(1));                                                                                     \
            memcpy(last, x, count * sizeof *x);                                                                        \
            store(last, value(load(last)));                                                                            \
            memcpy(to, last, count * sizeof *to);                                                                      \
        }                                                                                                              \
    }

#ifdef FLOOR
SPECIALISE vf floor_of(vf x)
{
    return FLOOR(x);
}

SPECIALISE vf ceil_of(vf x)
{
    return CEIL(x);
}

COLUMNS(columns_floor, floor_of)
COLUMNS(columns_ceil, ceil_of)
#endif
COLUMNS(columns_exp, exp_of)
COLUMNS(columns_exp2, exp2_of)
COLUMNS(columns_log, log_of)
COLUMNS(columns_log2, log2_of)
COLUMNS(columns_tanh, tanh_of)
COLUMNS(columns_sigmoid, sigmoid_of)

/* Only these lanes use libm, so that a value does not depend on its neighbours. */
SPECIALISE vf replace(vf value, vi far, float (*function)(float), vf x)
{
    for (int i = 0; i < LANES; i++)
        if (far[i])
            value[i] = function(x[i]);
    return value;
}

SPECIALISE vf any_sin(vf x)
{
    const vi far = far_angle(x);
    return any(far) ? replace(sin_of(x), far, sinf, x) : sin_of(x);
}

SPECIALISE vf any_cos(vf x)
{
    const vi far = far_angle(x);
    return any(far) ? replace(cos_of(x), far, cosf, x) : cos_of(x);
}

COLUMNS(columns_sin, any_sin)
COLUMNS(columns_cos, any_cos)

SPECIALISE vf any_pow(vf x, vf y)
{
    const vi far = power_needs_libm(x, y);
    vf value = pow_of(x, y);
    if (any(far))
        for (int i = 0; i < LANES; i++)
            if (far[i])
                value[i] = powf(x[i], y[i]);
    return value;
}

#define COLUMNS_OF_TWO(name, value)                                                                                    \
    TARGET static void name(float *to, const float *x, const float *y, float every_x, float every_y, size_t count)     \
    {                                                                                                                  \
        const vf same_x = all_f(every_x), same_y = all_f(every_y);                                                     \
        size_t i = 0;                                                                                                  \
        for (; i + LANES <= count; i += LANES)                                                                         \
            store(to + i, value(x ? load(x + i) : same_x, y ? load(y + i) : same_y));                                  \
        if (i < count) {                                                                                               \
            float last[2][LANES];                                                                                      \
            store(last[0], x ? all_f(1) : same_x);                                                                     \
            store(last[1], y ? all_f(1) : same_y);                                                                     \
            if (x)                                                                                                     \
                memcpy(last[0], x + i, (count - i) * sizeof *x);                                                       \
            if (y)                                                                                                     \
                memcpy(last[1], y + i, (count - i) * sizeof *y);                                                       \
            store(last[0], value(load(last[0]), load(last[1])));                                                       \
            memcpy(to + i, last[0], (count - i) * sizeof *to);                                                         \
        }                                                                                                              \
    }

SPECIALISE vf sum_of(vf x, vf y)
{
    return x + y;
}

SPECIALISE vf difference_of(vf x, vf y)
{
    return x - y;
}

SPECIALISE vf product_of(vf x, vf y)
{
    return x * y;
}

SPECIALISE vf quotient_of(vf x, vf y)
{
    return x / y;
}

SPECIALISE vf smaller_of(vf x, vf y)
{
    return choose(y < x, y, x);
}

SPECIALISE vf larger_of(vf x, vf y)
{
    return choose(x < y, y, x);
}

COLUMNS_OF_TWO(columns_add, sum_of)
COLUMNS_OF_TWO(columns_sub, difference_of)
COLUMNS_OF_TWO(columns_mul, product_of)
COLUMNS_OF_TWO(columns_div, quotient_of)
COLUMNS_OF_TWO(columns_min, smaller_of)
COLUMNS_OF_TWO(columns_max, larger_of)
COLUMNS_OF_TWO(columns_pow, any_pow)

const attune__functions *FUNCTIONS(void)
{
    static const attune__functions functions = {
        .of =
            {
#ifdef FLOOR
                [ATTUNE__OP_FLOOR] = columns_floor,
                [ATTUNE__OP_CEIL] = columns_ceil,
#endif
                [ATTUNE__OP_EXP] = columns_exp,
                [ATTUNE__OP_EXP2] = columns_exp2,
                [ATTUNE__OP_LOG] = columns_log,
                [ATTUNE__OP_LOG2] = columns_log2,
                [ATTUNE__OP_TANH] = columns_tanh,
                [ATTUNE__OP_SIGMOID] = columns_sigmoid,
                [ATTUNE__OP_SIN] = columns_sin,
                [ATTUNE__OP_COS] = columns_cos,
            },
        .of_two =
            {
                [ATTUNE__OP_ADD] = columns_add,
                [ATTUNE__OP_SUB] = columns_sub,
                [ATTUNE__OP_MUL] = columns_mul,
                [ATTUNE__OP_DIV] = columns_div,
                [ATTUNE__OP_MIN] = columns_min,
                [ATTUNE__OP_MAX] = columns_max,
                [ATTUNE__OP_POW] = columns_pow,
            },
    };
    return (RUNS) ? &functions : NULL;
}
