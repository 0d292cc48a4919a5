/* SPDX-License-Identifier: MIT */
#include "base/quant.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

float attune__f32_from_f8e4m3(uint8_t code)
{
    if ((code & 0x7f) == 0x7f)
        return NAN;
    /* Exponent and fraction, in the places of a float, whose bias is 120 more. */
    const uint32_t bits = (uint32_t)(code & 0x7f) << 20;
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude *= 0x1p120f;
    return code & 0x80 ? -magnitude : magnitude;
}

float attune__f32_from_f8e5m2(uint8_t code)
{
    return attune__f32_from_f16((uint16_t)(code << 8));
}

static float block_scale(const uint8_t *block)
{
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return attune__f32_from_f16(half);
}

static void dequantise_q8_0(float *restrict to, const uint8_t *restrict block)
{
    const float d = block_scale(block);
    for (int i = 0; i < 32; i++)
        to[i] = d * (float)(int8_t)block[2 + i];
}

/* The first half of a block's values is in the low nibbles. */
static void dequantise_q4_0(float *restrict to, const uint8_t *restrict block)
{
    const float d = block_scale(block);
    for (int i = 0; i < 16; i++) {
        to[i] = d * (float)((block[2 + i] & 15) - 8);
        to[16 + i] = d * (float)((block[2 + i] >> 4) - 8);
    }
}

void attune__dequantise(float *to, const void *from, attune_dtype dtype, size_t count, float scale)
{
    const uint8_t *codes = from;
    if (dtype == ATTUNE_Q8_0 || dtype == ATTUNE_Q4_0) {
        for (size_t i = 0; i < count; i += 32, codes += attune_dtype_size(dtype))
            if (dtype == ATTUNE_Q8_0)
                dequantise_q8_0(to + i, codes);
            else
                dequantise_q4_0(to + i, codes);
        return;
    }
    for (size_t i = 0; i < count; i++)
        to[i] = scale * (dtype == ATTUNE_I8       ? (float)(int8_t)codes[i]
                         : dtype == ATTUNE_F8E4M3 ? attune__f32_from_f8e4m3(codes[i])
                                                  : attune__f32_from_f8e5m2(codes[i]));
}

/* Values below the least normal number, 2^(1 - bias), are multiples of 2^(1 - bias - bits). */
static uint8_t f8_from_f32(float value, int bits, int bias, float most, uint8_t most_code)
{
    const uint8_t sign = signbit(value) ? 0x80 : 0;
    const float magnitude = fabsf(value);
    if (isnan(value))
        return sign | 0x7f;
    if (magnitude >= most)
        return sign | most_code;
    if (magnitude < ldexpf(1, 1 - bias)) {
        /* The last place of the sum is that of the code. */
        const float one = ldexpf(1, 24 - bias - bits), sum = magnitude + one;
        return sign | (uint8_t)((sum - one) * ldexpf(1, bias + bits - 1));
    }
    uint32_t word;
    memcpy(&word, &magnitude, sizeof word);
    const int dropped = 23 - bits;
    word += (UINT32_C(1) << (dropped - 1)) - 1 + (word >> dropped & 1);
    return sign | (uint8_t)((word >> dropped) - ((uint32_t)(127 - bias) << bits));
}

uint8_t attune__f8e4m3_from_f32(float value)
{
    return f8_from_f32(value, 3, 7, 448, 0x7e);
}

uint8_t attune__f8e5m2_from_f32(float value)
{
    return f8_from_f32(value, 2, 15, 57344, 0x7b);
}

static int8_t i8_from_f32(float value)
{
    return isnan(value) ? 0 : (int8_t)(value > 127 ? 127 : value < -127 ? -127 : nearbyintf(value));
}

float attune__quantise_scale(const float *from, attune_dtype dtype, size_t count)
{
    float most = 0;
    for (size_t i = 0; i < count; i++)
        most = fabsf(from[i]) > most || isnan(from[i]) ? fabsf(from[i]) : most;
    return most / (dtype == ATTUNE_I8 ? 127 : dtype == ATTUNE_F8E4M3 ? 448 : 57344);
}

/* The value of a block that is furthest from 0, the first of several; false if one is not finite. */
static bool furthest(const float *from, float *value)
{
    *value = 0;
    bool finite = true;
    for (int i = 0; i < 32; i++) {
        finite &= isfinite(from[i]) != 0;
        if (fabsf(from[i]) > fabsf(*value))
            *value = from[i];
    }
    return finite;
}

static void quantise_block(uint8_t *block, const float *from, attune_dtype dtype)
{
    float most;
    const bool finite = furthest(from, &most);
    const float d = dtype == ATTUNE_Q8_0 ? fabsf(most) / 127 : most / -8;
    /* A factor so small that this is infinite is 0 in f16. */
    const float inverse = isfinite(1 / d) ? 1 / d : 0;
    const uint16_t half = attune__f16_from_f32(finite ? d : NAN);
    memset(block, 0, attune_dtype_size(dtype));
    memcpy(block, &half, sizeof half);
    for (int i = 0; i < 32 && finite; i++) {
        const float x = from[i] * inverse;
        if (dtype == ATTUNE_Q8_0) {
            block[2 + i] = (uint8_t)(int8_t)roundf(x);
            continue;
        }
        const int code = (int)(x + 8.5f);
        block[2 + i % 16] |= (uint8_t)((code < 15 ? code : 15) << i / 16 * 4);
    }
}

void attune__quantise(void *to, const float *from, attune_dtype dtype, size_t count, float scale)
{
    uint8_t *codes = to;
    if (dtype == ATTUNE_Q8_0 || dtype == ATTUNE_Q4_0) {
        for (size_t i = 0; i < count; i += 32, codes += attune_dtype_size(dtype))
            quantise_block(codes, from + i, dtype);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const float x = scale != 0 ? from[i] / scale : 0;
        codes[i] = dtype == ATTUNE_I8       ? (uint8_t)i8_from_f32(x)
                   : dtype == ATTUNE_F8E4M3 ? attune__f8e4m3_from_f32(x)
                                            : attune__f8e5m2_from_f32(x);
    }
}
