/* SPDX-License-Identifier: MIT */
#include "base/half.h"

#include <string.h>

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float attune__f32_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1f;
    uint32_t fraction = half & 0x3ff;
    if (exponent == 0x1f)
        return from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) {
        /* A subnormal is fraction * 2^-24, which float32 holds exactly. */
        float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t attune__f16_from_f32(float value)
{
    uint32_t bits = to_bits(value);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) {
        /* Adding 0.5 makes the float adder round to a multiple of 2^-24, the unit of f16's subnormals. */
        uint32_t rounded = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000;
        return (uint16_t)(sign | rounded);
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

float attune__f32_from_bf16(uint16_t half)
{
    return from_bits((uint32_t)half << 16);
}

uint16_t attune__bf16_from_f32(float value)
{
    uint32_t bits = to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
