/* SPDX-License-Identifier: MIT */
/* Quantised types. A conversion to float is exact. */
#ifndef ATTUNE_BASE_QUANT_H
#define ATTUNE_BASE_QUANT_H

#include <attune/attune.h>

float attune__f32_from_f8e4m3(uint8_t code);
float attune__f32_from_f8e5m2(uint8_t code);

static inline bool attune__is_quantised(attune_dtype dtype)
{
    return dtype >= ATTUNE_F8E4M3 && dtype <= ATTUNE_Q4_0;
}

/* To the nearest code, ties to even, and to the largest of finite value; NaN is converted to NaN. */
uint8_t attune__f8e4m3_from_f32(float value);
uint8_t attune__f8e5m2_from_f32(float value);

/* to[i] = scale * from[i], rounded once; count is a multiple of the type's block, and from of any alignment. */
void attune__dequantise(float *to, const void *from, attune_dtype dtype, size_t count, float scale);
/* The factor with which the largest of the values has the largest code of a type that has factors. NaN if a value is.
 */
float attune__quantise_scale(const float *from, attune_dtype dtype, size_t count);
/*
 * Likewise to codes: the nearest of from[i] / scale, ties to even and within the type's range; all 0 if scale is 0. NaN
 * becomes 0 in I8. Q8_0 and Q4_0 are ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref, bit for bit where they are
 * defined: the factor of a block with a value that is not finite is NaN.
 */
void attune__quantise(void *to, const float *from, attune_dtype dtype, size_t count, float scale);

#endif
