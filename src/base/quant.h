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

/* to[i] = scale * from[i], rounded once; count is a multiple of the type's block, and from of any alignment. */
void attune__dequantise(float *to, const void *from, attune_dtype dtype, size_t count, float scale);

#endif
