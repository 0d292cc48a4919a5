/* SPDX-License-Identifier: MIT */
/* Loads, stores and conversions of the kernels in NEON. */
#ifndef ATTUNE_CPU_NEON_H
#define ATTUNE_CPU_NEON_H

#include <arm_neon.h>

/* Inlined, so that each use is specialised for its constant arguments. */
#define SPECIALISE static inline __attribute__((always_inline))

#define LANES 4

/* To nearest, ties to even; NaN remains NaN. */
SPECIALISE uint16x4_t bf16_from_f32(float32x4_t x)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
}

/* The larger, and max where x is NaN. */
SPECIALISE float32x4_t larger(float32x4_t x, float32x4_t max)
{
    return vbslq_f32(vcgtq_f32(x, max), x, max);
}

/* As exp_nonpositive in kernel_generic_f32.c, with FMA. */
SPECIALISE float32x4_t exp_nonpositive(float32x4_t x)
{
    const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 0x1.715476p+0f));
    float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0x1.63p-1f));
    r = vfmsq_f32(r, n, vdupq_n_f32(-0x1.bd0106p-13f));
    float32x4_t p = vdupq_n_f32(1.9875691500e-4f);
    p = vfmaq_f32(vdupq_n_f32(1.3981999507e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(8.3334519073e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(4.1665795894e-2f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.6666665459e-1f), p, r);
    p = vfmaq_f32(vdupq_n_f32(5.0000001201e-1f), p, r);
    p = vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), vdupq_n_f32(1.0f));
    const uint32x4_t exponent = vaddq_u32(vreinterpretq_u32_s32(vcvtq_s32_f32(n)), vdupq_n_u32(127));
    /* False for NaN. */
    const uint32x4_t small = vcltq_f32(x, vdupq_n_f32(-87.33654f));
    const float32x4_t value = vmulq_f32(p, vreinterpretq_f32_u32(vshlq_n_u32(exponent, 23)));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), small));
}

#endif
