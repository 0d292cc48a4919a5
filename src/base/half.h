/* SPDX-License-Identifier: MIT */
/* IEEE binary16 and bfloat16 as 16-bit integers. Rounding is to nearest, ties to even; NaN is converted to NaN. Loops
 * over the conversions to f32 vectorise: they are inline, without branches. */
#ifndef ATTUNE_BASE_HALF_H
#define ATTUNE_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float attune__f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t attune__f32_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float attune__f32_from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    const uint32_t normal = (magnitude << 13) + (112U << 23);
    /* With the smallest normal's exponent a subnormal's fraction exceeds 2^-14 by its value. */
    const uint32_t subnormal = attune__f32_to_bits(attune__f32_from_bits(normal + (1U << 23)) - 0x1p-14f);
    const uint32_t special = magnitude >= 0x7c00 ? 112U << 23 : 0; /* infinity and NaN */
    return attune__f32_from_bits(sign | (magnitude < 0x400 ? subnormal : normal + special));
}

static inline float attune__f32_from_bf16(uint16_t half)
{
    return attune__f32_from_bits((uint32_t)half << 16);
}

uint16_t attune__f16_from_f32(float value);
uint16_t attune__bf16_from_f32(float value);

#endif
