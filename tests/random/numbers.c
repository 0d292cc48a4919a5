/* SPDX-License-Identifier: MIT */
/* Random numbers, and elements of every dtype. */
#include "random/random.h"

#include <math.h>
#include <string.h>
#include <time.h>

uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b + UINT64_C(0x632be59bd9b4e019);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t rng_next(rng *r)
{
    r->state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(r->state, 0);
}

int64_t rng_range(rng *r, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(rng_next(r) % (uint64_t)(hi - lo + 1));
}

bool rng_chance(rng *r, int percent)
{
    return rng_range(r, 0, 99) < percent;
}

/* A float with `digits` bits of fraction and exponents from `least` on, for dtypes of 16 bits. */
static double round_to(double value, int digits, int least, double largest)
{
    if (!isfinite(value) || value == 0)
        return value;
    int exponent;
    (void)frexp(value, &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1;
    const double step = ldexp(1, exponent - digits);
    const double result = nearbyint(value / step) * step;
    return fabs(result) > largest ? copysign(INFINITY, value) : result;
}

double rounded_to(attune_dtype dtype, double value)
{
    switch (dtype) {
    case ATTUNE_F32:
        return (double)(float)value;
    case ATTUNE_F16:
        return round_to(value, 10, -14, 65504);
    case ATTUNE_BF16:
        return round_to(value, 7, -126, 0x1.fep127);
    default:
        return value;
    }
}

double unit_of(attune_dtype dtype)
{
    return dtype == ATTUNE_F64 ? 0x1p-53 : dtype == ATTUNE_F16 ? 0x1p-11 : dtype == ATTUNE_BF16 ? 0x1p-8 : 0x1p-24;
}

static double half_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                             : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                            : ldexp(fraction, -24);
    return bits >> 15 ? -magnitude : magnitude;
}

/* The bits of a value that f16 has exactly. */
static uint16_t half_bits(double value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double magnitude = fabs(value);
    if (isnan(value))
        return 0x7e00;
    if (isinf(value))
        return sign | 0x7c00;
    if (magnitude < 0x1p-14)
        return (uint16_t)(sign | (uint16_t)ldexp(magnitude, 24));
    int exponent;
    const double fraction = frexp(magnitude, &exponent); /* 0.5 to 1 */
    return (uint16_t)(sign | (exponent + 14) << 10 | ((int)ldexp(fraction, 11) - 1024));
}

double element_get(attune_dtype dtype, const void *at, int64_t index)
{
    float f;
    double d;
    int32_t i;
    int64_t l;
    uint16_t h;
    uint32_t word;
    const unsigned char *bytes = (const unsigned char *)at + (size_t)index * attune_dtype_size(dtype);
    switch (dtype) {
    case ATTUNE_F32:
        memcpy(&f, bytes, sizeof f);
        return (double)f;
    case ATTUNE_F64:
        memcpy(&d, bytes, sizeof d);
        return d;
    case ATTUNE_F16:
        memcpy(&h, bytes, sizeof h);
        return half_value(h);
    case ATTUNE_BF16:
        memcpy(&h, bytes, sizeof h);
        word = (uint32_t)h << 16;
        memcpy(&f, &word, sizeof f);
        return (double)f;
    case ATTUNE_I32:
        memcpy(&i, bytes, sizeof i);
        return i;
    case ATTUNE_I64:
        memcpy(&l, bytes, sizeof l);
        return (double)l;
    case ATTUNE_U8:
        return bytes[0];
    case ATTUNE_BOOL:
        return bytes[0] != 0;
    default:
        break;
    }
    return 0;
}

void element_set(attune_dtype dtype, void *at, int64_t index, double value)
{
    const double exact = rounded_to(dtype, value);
    unsigned char *bytes = (unsigned char *)at + (size_t)index * attune_dtype_size(dtype);
    const float f = (float)exact;
    uint32_t word;
    uint16_t h;
    int32_t i;
    int64_t l;
    switch (dtype) {
    case ATTUNE_F32:
        memcpy(bytes, &f, sizeof f);
        break;
    case ATTUNE_F64:
        memcpy(bytes, &value, sizeof value);
        break;
    case ATTUNE_F16:
        h = half_bits(exact);
        memcpy(bytes, &h, sizeof h);
        break;
    case ATTUNE_BF16:
        memcpy(&word, &f, sizeof word);
        h = isnan(value) ? 0x7fc0 : (uint16_t)(word >> 16);
        memcpy(bytes, &h, sizeof h);
        break;
    case ATTUNE_I32:
        i = (int32_t)value;
        memcpy(bytes, &i, sizeof i);
        break;
    case ATTUNE_I64:
        l = (int64_t)value;
        memcpy(bytes, &l, sizeof l);
        break;
    case ATTUNE_U8:
    case ATTUNE_BOOL:
        bytes[0] = (unsigned char)value;
        break;
    default:
        break;
    }
}

double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
