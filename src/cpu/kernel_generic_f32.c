/* SPDX-License-Identifier: MIT */
/* The portable kernels in float. */
#include "cpu/kernels.h"

#include <string.h>

/*
 * exp(x) for x <= 0 or NaN: x = n ln 2 + r with ln 2 in two parts (Cody & Waite), and the polynomial of Moshier's
 * Cephes expf. Results below the smallest normal number are 0. The bias is added by integer arithmetic on unsigned, so
 * that the meaningless n of a NaN cannot overflow.
 */
static inline float exp_nonpositive(float x)
{
    float clamped = x < -88.0f ? -88.0f : x;
    float shifted = clamped * 0x1.715476p+0f + 0x1.8p+23f; /* rounds to an integer in the low bits */
    float n = shifted - 0x1.8p+23f;
    float r = clamped - n * 0x1.63p-1f;
    r = r - n * -0x1.bd0106p-13f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return x < -87.33654f ? 0.0f : p * power;
}

#define REAL       float
#define NAME(x)    attune__##x##_f32
#define REAL_DTYPE ATTUNE_F32
#define REAL_EXP   exp_nonpositive
#include "cpu/kernel_generic_tmpl.h"
