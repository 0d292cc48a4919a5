/* SPDX-License-Identifier: MIT */
/* BLAKE2s-256 against RFC 7693 and a reference implementation, at once and in chunks. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"

static void digest_of(const void *bytes, size_t size, size_t chunk, char text[65])
{
    uint8_t out[ATTUNE__DIGEST_SIZE];
    attune__digest d = attune__digest_begin();
    for (size_t at = 0; at < size; at += chunk)
        attune__digest_add(&d, (const uint8_t *)bytes + at, size - at < chunk ? size - at : chunk);
    attune__digest_end(&d, out);
    for (size_t i = 0; i < sizeof out; i++)
        snprintf(text + 2 * i, 3, "%02x", out[i]);
}

/* RFC 7693, appendix E: selftest_seq. */
static void fill(uint8_t *out, size_t size, uint32_t seed)
{
    uint32_t a = UINT32_C(0xdead4bad) * seed, b = 1;
    for (size_t i = 0; i < size; i++) {
        const uint32_t t = a + b;
        a = b;
        b = t;
        out[i] = (uint8_t)(t >> 24);
    }
}

Test(digest, known_answers)
{
    /* "abc" is appendix B of the RFC, the others are lengths of its appendix E and neighbours of a block. */
    static const struct {
        size_t size;
        const char *digest;
    } known[] = {
        {0, "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9"},
        {3, "77012be5f6fb6b23846795e1e8e22fb598a1ba60ea59a378d9d908d8b6dea646"},
        {64, "ea1387748c70a79548f4e19453cacf84e6eadf88beb5511ad53181271c6f40e5"},
        {65, "f40d1afedd6265437e1cc49a2bae67c3bf936f84956ef2d548e0a323df58aa59"},
        {255, "ad4286d0cb7544fe3b1c1aff31b8a9aa3b6076d9a2c6b4bbdb7975ba7f7408a1"},
        {1024, "c795e9ac66ad49540e9ce43efcc6da142c61c1e6051f0608bb109c14d24e4ebb"},
    };
    char text[65];
    digest_of("abc", 3, 3, text);
    cr_assert_str_eq(text, "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        for (size_t chunk = 1; chunk < 140; chunk++) {
            uint8_t bytes[1024];
            fill(bytes, known[i].size, (uint32_t)known[i].size);
            digest_of(bytes, known[i].size, chunk, text);
            cr_assert_str_eq(text, known[i].digest, "%zu bytes in chunks of %zu", known[i].size, chunk);
        }
    static char million[1000000];
    memset(million, 'a', sizeof million);
    digest_of(million, sizeof million, 999, text);
    cr_assert_str_eq(text, "bec0c0e6cde5b67acb73b81f79a67a4079ae1c60dac9d2661af18e9f8b50dfa5");
}

/* The digest of the digests of 0 to 300 bytes. */
Test(digest, every_length)
{
    uint8_t bytes[300], out[ATTUNE__DIGEST_SIZE];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + 3);
    attune__digest all = attune__digest_begin();
    for (size_t size = 0; size <= sizeof bytes; size++) {
        attune__digest one = attune__digest_begin();
        attune__digest_add(&one, bytes, size);
        attune__digest_end(&one, out);
        attune__digest_add(&all, out, sizeof out);
    }
    attune__digest_end(&all, out);
    static const uint8_t expected[] = {0xda, 0x4b, 0x7f, 0x1b, 0xcd, 0xa6, 0xdd, 0xd6};
    cr_assert_eq(memcmp(out, expected, sizeof expected), 0);
    cr_assert_eq(out[31], 0x5c);
}
