/* SPDX-License-Identifier: MIT */
#include "base/quant.h"

#include <criterion/criterion.h>
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
