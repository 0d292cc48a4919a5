/* SPDX-License-Identifier: MIT */
#include "base/half.h"

uint16_t attune__f16_from_f32(float value)
{
    uint32_t bits = attune__f32_to_bits(value);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) {
        /* Adding 0.5 makes the float adder round to a multiple of 2^-24, the unit of f16's subnormals. */
        uint32_t rounded = attune__f32_to_bits(attune__f32_from_bits(magnitude) + 0.5f) - 0x3f000000;
        return (uint16_t)(sign | rounded);
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

uint16_t attune__bf16_from_f32(float value)
{
    uint32_t bits = attune__f32_to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
