/* SPDX-License-Identifier: MIT */
/* IEEE binary16 and bfloat16 as 16-bit integers. Rounding is to nearest, ties to even; NaN is converted to NaN. */
#ifndef ATTUNE_BASE_HALF_H
#define ATTUNE_BASE_HALF_H

#include <stdint.h>

float attune__f32_from_f16(uint16_t half);
uint16_t attune__f16_from_f32(float value);
float attune__f32_from_bf16(uint16_t half);
uint16_t attune__bf16_from_f32(float value);

#endif
