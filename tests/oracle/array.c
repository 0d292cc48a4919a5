/* SPDX-License-Identifier: MIT */
/* Host arrays, failures and random numbers. */
#include "tests/oracle/array.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void failure_write(failure *why, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->message, sizeof why->message, format, arguments);
    va_end(arguments);
}

int64_t array_count(const array *a)
{
    int64_t count = 1;
    for (uint32_t i = 0; i < a->rank; i++)
        count *= a->size[i];
    return count;
}

bool array_create(array *a, attune_dtype dtype, uint32_t rank, const int64_t *size, failure *why)
{
    array made = {.dtype = dtype, .rank = rank};
    size_t bytes = attune_dtype_size(dtype);
    if (!bytes || rank > ATTUNE_MAX_RANK)
        return failure_set(why, "an array of dtype %d and rank %u cannot be made", (int)dtype, rank);
    for (uint32_t i = 0; i < rank; i++) {
        made.size[i] = size[i];
        if (size[i] < 1 || __builtin_mul_overflow(bytes, (size_t)size[i], &bytes))
            return failure_set(why,
                               "size[%u] of an array is %lld: expected at least 1, "
                               "and all within 2^64 bytes",
                               i, (long long)size[i]);
    }
    if (bytes > SIZE_MAX - 64 || !(made.data = aligned_alloc(64, (bytes + 63) / 64 * 64)))
        return failure_set(why, "out of memory: an array of %zu bytes", bytes);
    memset(made.data, 0, bytes);
    *a = made;
    return true;
}

void array_free(array *a)
{
    free(a->data);
    *a = (array){0};
}

/* Both 16-bit floats are a sign, `exponent` bits and `fraction` bits; rounding
 * is from the double, once. */
typedef struct half_format {
    int exponent, fraction;
} half_format;

static const half_format f16 = {5, 10}, bf16 = {8, 7};

static double half_decode(uint16_t bits, half_format f)
{
    int bias = (1 << (f.exponent - 1)) - 1, top = (1 << f.exponent) - 1;
    int exponent = bits >> f.fraction & top, fraction = bits & ((1 << f.fraction) - 1);
    double value;
    if (exponent == top)
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, 1 - bias - f.fraction);
    else
        value = ldexp(fraction + (1 << f.fraction), exponent - bias - f.fraction);
    return bits >> 15 ? -value : value;
}

static uint16_t half_encode(double value, half_format f)
{
    int bias = (1 << (f.exponent - 1)) - 1, top = (1 << f.exponent) - 1;
    unsigned sign = signbit(value) ? 0x8000u : 0;
    if (isnan(value))
        return (uint16_t)(sign | (unsigned)top << f.fraction | 1u << (f.fraction - 1));
    int exponent = 0;
    double magnitude = fabs(value);
    if (isinf(value))
        return (uint16_t)(sign | (unsigned)top << f.fraction);
    if (magnitude == 0)
        return (uint16_t)sign; /* frexp gives zero the exponent of a half */
    frexp(magnitude, &exponent);
    if (exponent - 1 < 1 - bias)
        exponent = 2 - bias; /* subnormal: one unit for all */
    double units = nearbyint(ldexp(magnitude, f.fraction - (exponent - 1)));
    /* A carry out of the fraction raises the exponent by itself: both stand in
     * one integer. */
    int64_t bits = (int64_t)(exponent - 2 + bias) * (1 << f.fraction) + (int64_t)units;
    int64_t infinity = (int64_t)top << f.fraction;
    return (uint16_t)(sign | (unsigned)(bits > infinity ? infinity : bits));
}

double array_get(const array *a, int64_t i)
{
    switch (a->dtype) {
    case ATTUNE_F32:
        return (double)((const float *)a->data)[i];
    case ATTUNE_F64:
        return ((const double *)a->data)[i];
    case ATTUNE_F16:
        return half_decode(((const uint16_t *)a->data)[i], f16);
    case ATTUNE_BF16:
        return half_decode(((const uint16_t *)a->data)[i], bf16);
    case ATTUNE_I32:
        return ((const int32_t *)a->data)[i];
    case ATTUNE_I64:
        return (double)((const int64_t *)a->data)[i];
    case ATTUNE_U8:
    case ATTUNE_BOOL:
        return ((const uint8_t *)a->data)[i];
    default:
        break;
    }
    return NAN;
}

void array_set(array *a, int64_t i, double value)
{
    switch (a->dtype) {
    case ATTUNE_F32:
        ((float *)a->data)[i] = (float)value;
        break;
    case ATTUNE_F64:
        ((double *)a->data)[i] = value;
        break;
    case ATTUNE_F16:
        ((uint16_t *)a->data)[i] = half_encode(value, f16);
        break;
    case ATTUNE_BF16:
        ((uint16_t *)a->data)[i] = half_encode(value, bf16);
        break;
    case ATTUNE_I32:
        ((int32_t *)a->data)[i] = (int32_t)value;
        break;
    case ATTUNE_I64:
        ((int64_t *)a->data)[i] = (int64_t)value;
        break;
    case ATTUNE_U8:
        ((uint8_t *)a->data)[i] = (uint8_t)value;
        break;
    case ATTUNE_BOOL:
        ((uint8_t *)a->data)[i] = value != 0;
        break;
    default:
        break;
    }
}

bool array_convert(const array *a, attune_dtype dtype, array *out, failure *why)
{
    array made;
    if (!array_create(&made, dtype, a->rank, a->size, why))
        return false;
    int64_t count = array_count(a);
    for (int64_t i = 0; i < count; i++)
        array_set(&made, i, array_get(a, i));
    *out = made;
    return true;
}

attune_array array_view(const array *a)
{
    attune_array view = {.data = a->data, .dtype = a->dtype, .rank = a->rank};
    int64_t step = 1;
    for (uint32_t i = a->rank; i-- > 0;) {
        view.size[i] = a->size[i];
        view.stride[i] = step;
        step *= a->size[i];
    }
    return view;
}

uint64_t random_u64(random_state *r)
{
    uint64_t x = r->state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

double random_uniform(random_state *r)
{
    return (double)(random_u64(r) >> 11) * 0x1p-53;
}

double random_normal(random_state *r)
{
    double u = 1 - random_uniform(r), angle = 6.283185307179586 * random_uniform(r);
    return sqrt(-2 * log(u)) * cos(angle);
}

/* Of a larger array: as many as 16 bits can name, and the rest are drawn from among them. */
#define FRESH_NUMBERS (INT64_C(1) << 16)

static void draw(char *to, const char *from, uint64_t bits, size_t bytes)
{
    const size_t at = (size_t)(bits & (FRESH_NUMBERS - 1)) * bytes;
    switch (bytes) { /* a copy of a known size is one instruction */
    case 2:
        memcpy(to, from + at, 2);
        break;
    case 4:
        memcpy(to, from + at, 4);
        break;
    default:
        memcpy(to, from + at, bytes);
        break;
    }
}

void array_fill_normal(array *a, random_state *r, double scale)
{
    const int64_t count = array_count(a), fresh = count < FRESH_NUMBERS ? count : FRESH_NUMBERS;
    const size_t bytes = attune_dtype_size(a->dtype);
    char *data = a->data;
    for (int64_t i = 0; i < fresh; i++)
        array_set(a, i, scale * random_normal(r));
    uint64_t bits = 0;
    for (int64_t i = fresh; i < count; i++, bits >>= 16) {
        if (i % 4 == 0)
            bits = random_u64(r);
        draw(data + (size_t)i * bytes, data, bits, bytes);
    }
}
