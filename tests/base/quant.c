/* SPDX-License-Identifier: MIT */
#include "base/quant.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>

/* Every code, and the values between two codes: to the nearest, ties to the even code; what is larger becomes the
 * largest. */
static void check_f8(float (*decode)(uint8_t), uint8_t (*encode)(float), int most_code)
{
    for (int code = 0; code <= most_code; code++) {
        const float value = decode((uint8_t)code), next = decode((uint8_t)(code + 1));
        cr_expect_eq(encode(value), code, "%02x: %g is coded as %02x", code, value, encode(value));
        cr_expect_eq(encode(-value), code | 0x80, "-%02x: %02x", code, encode(-value));
        if (code == most_code)
            break;
        cr_expect_gt(next, value, "%02x", code);
        const float middle = value + (next - value) / 2;
        cr_expect_eq(encode(middle), code + code % 2, "%02x: %g", code, middle);
        cr_expect_eq(encode(nextafterf(middle, 0)), code, "%02x: below %g", code, middle);
        cr_expect_eq(encode(nextafterf(middle, INFINITY)), code + 1, "%02x: above %g", code, middle);
    }
    cr_expect_eq(encode(INFINITY), most_code);
    cr_expect(isnan(decode(encode(NAN))));
}

Test(quant, codes_of_8_bit_floats)
{
    check_f8(attune__f32_from_f8e4m3, attune__f8e4m3_from_f32, 0x7e);
    check_f8(attune__f32_from_f8e5m2, attune__f8e5m2_from_f32, 0x7b);
    cr_expect_eq(attune__f32_from_f8e4m3(0x7e), 448);
    cr_expect_eq(attune__f32_from_f8e4m3(0x01), 0x1p-9f);
    cr_expect_eq(attune__f32_from_f8e5m2(0x7b), 57344);
    cr_expect_eq(attune__f32_from_f8e5m2(0x01), 0x1p-16f);
}

/* Blocks of values whose factor has no finite inverse in f32 are 0, as their factor in f16 is. */
Test(quant, blocks_of_tiny_values)
{
    static const float most[] = {1e-37f, -1e-37f, FLT_MIN, -FLT_MIN, 0x1p-149f, -0x1p-149f};
    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        float from[32] = {[3] = most[i], [4] = -most[i] / 2, [20] = most[i] / 4}, to[32];
        uint8_t q8[34], q4[18];
        const float d = fabsf(most[i]) / 127;
        attune__quantise(q8, from, ATTUNE_Q8_0, 32, 1);
        attune__quantise(q4, from, ATTUNE_Q4_0, 32, 1);
        cr_assert(d == 0 || isinf(1 / d));
        for (int j = 0; j < 34; j++)
            cr_expect_eq(q8[j], 0, "%g: byte %d of q8_0 is %02x", (double)most[i], j, q8[j]);
        if (isinf(1 / (most[i] / -8)))
            for (int j = 2; j < 18; j++)
                cr_expect_eq(q4[j], 0x88, "%g: byte %d of q4_0 is %02x", (double)most[i], j, q4[j]);
        attune__dequantise(to, q8, ATTUNE_Q8_0, 32, 1);
        for (int j = 0; j < 32; j++)
            cr_expect_eq(to[j], 0);
        attune__dequantise(to, q4, ATTUNE_Q4_0, 32, 1);
        for (int j = 0; j < 32; j++)
            cr_expect_eq(to[j], 0);
    }
}
