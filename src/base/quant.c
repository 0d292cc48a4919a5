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

static void dequantise_q8_0(float *to, const uint8_t *block)
{
    const float d = block_scale(block);
    for (int i = 0; i < 32; i++)
        to[i] = d * (float)(int8_t)block[2 + i];
}

/* The first half of a block's values is in the low nibbles. */
static void dequantise_q4_0(float *to, const uint8_t *block)
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
