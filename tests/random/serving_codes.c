/* SPDX-License-Identifier: MIT */
/* Rows of a cache in every type: drawn, and read as numbers. */
#include "random/serving.h"

#include <math.h>
#include <string.h>

/* Near enough to a normal one: a sum of four. */
double normal_of(uint64_t word)
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)(word >> 16 * i & 0xffff) / 65536;
    return (sum - 2) * 1.7320508;
}

/* FP8 of `digits` bits of fraction. E5M2 has infinities, E4M3 has not. */
static double small_value(unsigned code, int digits, int bias)
{
    const int exponent = (int)(code >> digits & ((1u << (7 - digits)) - 1)),
              fraction = (int)(code & ((1u << digits) - 1));
    const double magnitude =
        exponent ? ldexp((1 << digits) + fraction, exponent - bias - digits) : ldexp(fraction, 1 - bias - digits);
    const double sign = code & 0x80 ? -1 : 1;
    if (digits == 2 && exponent == 31)
        return fraction ? NAN : sign * INFINITY;
    return digits == 3 && (code & 0x7f) == 0x7f ? NAN : sign * magnitude;
}

/* The nearest code, ties to even, the largest for all beyond: found among all of them. */
static unsigned small_code(double value, int digits, int bias)
{
    const unsigned largest = digits == 3 ? 0x7e : 0x7b, sign = signbit(value) ? 0x80 : 0;
    const double magnitude = fabs(value);
    if (isnan(value))
        return 0x7f;
    unsigned code = 0;
    while (code < largest && small_value(code + 1, digits, bias) <= magnitude)
        code++;
    if (code < largest) {
        const double below = magnitude - small_value(code, digits, bias),
                     above = small_value(code + 1, digits, bias) - magnitude;
        code += above < below || (above == below && code % 2);
    }
    return sign | code;
}

double code_get(attune_dtype dtype, const unsigned char *row, int64_t column)
{
    const int64_t in = column % 32;
    const unsigned char *block = row + column / 32 * (int64_t)attune_dtype_size(dtype);
    switch (dtype) {
    case ATTUNE_F8E4M3:
        return small_value(row[column], 3, 7);
    case ATTUNE_F8E5M2:
        return small_value(row[column], 2, 15);
    case ATTUNE_I8:
        return row[column] < 128 ? row[column] : row[column] - 256;
    case ATTUNE_Q8_0:
        return element_get(ATTUNE_F16, block, 0) * code_get(ATTUNE_I8, block + 2, in);
    case ATTUNE_Q4_0:
        return element_get(ATTUNE_F16, block, 0) * ((in < 16 ? block[2 + in] & 15 : block[2 + in - 16] >> 4) - 8);
    default:
        return element_get(dtype, row, column);
    }
}

/* Of a type without blocks. */
void code_set(attune_dtype dtype, unsigned char *at, double value)
{
    switch (dtype) {
    case ATTUNE_F8E4M3:
        *at = (unsigned char)small_code(value, 3, 7);
        break;
    case ATTUNE_F8E5M2:
        *at = (unsigned char)small_code(value, 2, 15);
        break;
    case ATTUNE_I8:
        value = isnan(value) ? 0 : nearbyint(value);
        *at = (unsigned char)(int)fmax(-127, fmin(127, value));
        break;
    default:
        element_set(dtype, at, 0, value);
    }
}

void row_draw(const rows_of_cache *of, uint64_t word, data_kind data, unsigned char *row)
{
    const size_t size = attune_dtype_size(of->dtype);
    const bool coded = of->dtype == ATTUNE_F8E4M3 || of->dtype == ATTUNE_F8E5M2;
    /* Small numbers are subnormal ones of f16 and of codes. */
    const double factor = data == DATA_LARGE ? 3 : data != DATA_SMALL ? 1 : coded ? 0x1p-7 : 0x1p-18;
    for (int64_t i = 0; i < of->columns; i++) {
        const uint64_t own = mix(word, (uint64_t)i);
        const double value = data == DATA_EQUAL ? (double)(own >> 20 & 3) - 1.0 : normal_of(own) * factor;
        unsigned char *block = row + i / 32 * (int64_t)size;
        if (of->dtype == ATTUNE_Q8_0 || of->dtype == ATTUNE_Q4_0) {
            const uint64_t whole = mix(word, (uint64_t)(i / 32 + 100000));
            const bool eight = of->dtype == ATTUNE_Q8_0;
            if (i % 32 == 0)
                element_set(ATTUNE_F16, block, 0,
                            (double)(1 + whole % 64) / (eight ? 4096 : 256) * (whole >> 10 & 1 ? -1 : 1) *
                                (data == DATA_SMALL ? 0x1p-12 : 1));
            if (eight)
                block[2 + i % 32] = (unsigned char)own;
            else if (i % 32 < 16)
                block[2 + i % 32] = (unsigned char)own;
        } else if (of->dtype == ATTUNE_I8) {
            code_set(of->dtype, row + i, value * 40);
            if (own % 50 == 0)
                row[i] = 0x80; /* -128, which attune_append does not write */
        } else {
            code_set(of->dtype, row + i * (int64_t)size, value);
        }
    }
    const bool plain = of->dtype == ATTUNE_F32 || of->dtype == ATTUNE_F16 || of->dtype == ATTUNE_BF16;
    static const double what[] = {NAN, INFINITY, -INFINITY, NAN};
    if (data == DATA_NONFINITE && plain && word % 40 == 0)
        element_set(of->dtype, row, (int64_t)(word >> 8 & 0xffff) % of->columns, what[word >> 40 & 3]);
    else if (data == DATA_NONFINITE && (of->dtype == ATTUNE_F8E4M3 || of->dtype == ATTUNE_F8E5M2) && word % 40 == 0)
        row[(int64_t)(word >> 8 & 0xffff) % of->columns] =
            of->dtype == ATTUNE_F8E5M2 && word >> 41 & 1 ? (word >> 42 & 1 ? 0xfc : 0x7c) : 0x7f;
}

void cache_values(const rows_of_cache *of, const unsigned char *row, double scale, double *values)
{
    for (int64_t i = 0; i < of->columns; i++)
        values[i] = code_get(of->dtype, row, i) * scale;
}

double scale_at(const rows_of_cache *of, int64_t kv_heads, int64_t page, int64_t entry, int64_t h, int64_t slot)
{
    switch (of->kind) {
    case SCALE_TENSOR:
        return of->scale[0];
    case SCALE_HEADS:
        return of->scale[h];
    case SCALE_KEYS:
        return of->scale[(entry * kv_heads + h) * page + slot];
    default:
        return 1;
    }
}
