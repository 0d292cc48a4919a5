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

uint64_t array_bytes(const array *a)
{
    return (uint64_t)array_count(a) / attune_dtype_block(a->dtype) * attune_dtype_size(a->dtype);
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
    const uint32_t block = attune_dtype_block(dtype);
    if (block > 1 && (!rank || size[rank - 1] % block))
        return failure_set(why, "the rows of an array of %s have %lld elements: expected a multiple of %u",
                           attune_dtype_string(dtype), (long long)(rank ? size[rank - 1] : 1), block);
    bytes /= block;
    if (bytes > SIZE_MAX - 64 || !(made.data = aligned_alloc(64, (bytes + 63) / 64 * 64)))
        return failure_set(why, "out of memory: an array of %zu bytes: make its shape smaller", bytes);
    memset(made.data, 0, bytes);
    *a = made;
    return true;
}

void array_free(array *a)
{
    free(a->data);
    *a = (array){0};
}

/* Floats of at most 16 bits are a sign, `exponent` bits and `fraction` bits; rounding is from the double, once. */
typedef struct half_format {
    int exponent, fraction;
    bool finite; /* e4m3: the largest exponent is one of numbers, but for the last code, a NaN */
} half_format;

static const half_format f16 = {5, 10, false}, bf16 = {8, 7, false}, e4m3 = {4, 3, true}, e5m2 = {5, 2, false};

static double half_decode(uint16_t bits, half_format f)
{
    const int bias = (1 << (f.exponent - 1)) - 1, top = (1 << f.exponent) - 1, last = (1 << f.fraction) - 1;
    const int exponent = bits >> f.fraction & top, fraction = bits & last;
    double value;
    if (exponent == top && (!f.finite || fraction == last))
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, 1 - bias - f.fraction);
    else
        value = ldexp(fraction + (1 << f.fraction), exponent - bias - f.fraction);
    return bits >> 15 ? -value : value;
}

static uint16_t half_encode(double value, half_format f)
{
    const int bias = (1 << (f.exponent - 1)) - 1, top = (1 << f.exponent) - 1, last = (1 << f.fraction) - 1;
    const unsigned sign = signbit(value) ? 0x8000u : 0;
    /* A value too large for e4m3 is NaN. */
    const int64_t infinity = (int64_t)top << f.fraction | (f.finite ? last : 0);
    if (isnan(value))
        return (uint16_t)(sign | (unsigned)infinity | 1u << (f.fraction - 1));
    int exponent = 0;
    const double magnitude = fabs(value);
    if (isinf(value))
        return (uint16_t)(sign | (unsigned)infinity);
    if (magnitude == 0)
        return (uint16_t)sign; /* frexp gives zero the exponent of a half */
    frexp(magnitude, &exponent);
    if (exponent - 1 < 1 - bias)
        exponent = 2 - bias; /* subnormal: one unit for all */
    const double units = nearbyint(ldexp(magnitude, f.fraction - (exponent - 1)));
    /* A carry out of the fraction raises the exponent by itself: both stand in
     * one integer. */
    const int64_t bits = (int64_t)(exponent - 2 + bias) * (1 << f.fraction) + (int64_t)units;
    return (uint16_t)(sign | (unsigned)(bits > infinity ? infinity : bits));
}

static double byte_decode(uint8_t code, half_format f)
{
    return half_decode((uint16_t)((code & 128) << 8 | (code & 127)), f);
}

static uint8_t byte_encode(double value, half_format f)
{
    const uint16_t bits = half_encode(value, f);
    return (uint8_t)((bits >> 8 & 128) | (bits & 127));
}

static int8_t integer_code(double value)
{
    return (int8_t)fmin(fmax(nearbyint(value), -127), 127);
}

/* ggml's blocks of 32: a factor in f16, then the codes; q4_0 has elements 0 to 15 in the low half of its bytes. */
static double block_get(const array *a, int64_t i)
{
    const uint8_t *block = (const uint8_t *)a->data + (size_t)(i / 32) * attune_dtype_size(a->dtype);
    uint16_t factor;
    memcpy(&factor, block, sizeof factor);
    const double code = a->dtype == ATTUNE_Q8_0 ? (double)(int8_t)block[2 + i % 32]
                                                : (block[2 + i % 16] >> (i % 32 < 16 ? 0 : 4) & 15) - 8;
    return half_decode(factor, f16) * code;
}

static void block_draw(uint8_t *block, attune_dtype dtype, random_state *r, double scale)
{
    /* The largest code is that of about three standard deviations. */
    const double factor = scale * 3 / (dtype == ATTUNE_Q8_0 ? 127 : 8) * (0.75 + 0.5 * random_uniform(r));
    const uint16_t bits = half_encode(factor, f16);
    memcpy(block, &bits, sizeof bits);
    for (int i = 0; i < (dtype == ATTUNE_Q8_0 ? 32 : 16); i++)
        block[2 + i] =
            dtype == ATTUNE_Q8_0 ? (uint8_t)integer_code(scale * random_normal(r) / factor) : (uint8_t)random_u64(r);
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
    case ATTUNE_F8E4M3:
        return byte_decode(((const uint8_t *)a->data)[i], e4m3);
    case ATTUNE_F8E5M2:
        return byte_decode(((const uint8_t *)a->data)[i], e5m2);
    case ATTUNE_I8:
        return ((const int8_t *)a->data)[i];
    case ATTUNE_Q8_0:
    case ATTUNE_Q4_0:
        return block_get(a, i);
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
    case ATTUNE_F8E4M3:
        ((uint8_t *)a->data)[i] = byte_encode(value, e4m3);
        break;
    case ATTUNE_F8E5M2:
        ((uint8_t *)a->data)[i] = byte_encode(value, e5m2);
        break;
    case ATTUNE_I8:
        ((int8_t *)a->data)[i] = integer_code(value);
        break;
    default:
        break;
    }
}

bool array_convert(const array *a, attune_dtype dtype, array *out, failure *why)
{
    array made;
    if (attune_dtype_block(dtype) > 1)
        return failure_set(why, "an array of %s cannot be converted to %s: only whole blocks are quantised",
                           attune_dtype_string(a->dtype), attune_dtype_string(dtype));
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
    case 1:
        *to = from[at];
        break;
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
    const uint32_t block = attune_dtype_block(a->dtype);
    const int64_t count = array_count(a) / block, fresh = count < FRESH_NUMBERS ? count : FRESH_NUMBERS;
    const size_t bytes = attune_dtype_size(a->dtype);
    char *data = a->data;
    for (int64_t i = 0; i < fresh; i++)
        if (block > 1)
            block_draw((uint8_t *)data + (size_t)i * bytes, a->dtype, r, scale);
        else
            array_set(a, i, scale * random_normal(r));
    uint64_t bits = 0;
    for (int64_t i = fresh; i < count; i++, bits >>= 16) {
        if (i % 4 == 0)
            bits = random_u64(r);
        draw(data + (size_t)i * bytes, data, bits, bytes);
    }
}
