/* SPDX-License-Identifier: MIT */
/* Structs of callers that know fewer fields, and of callers that know more. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <attune/attune.h>

#include "base/desc.h"

enum { OURS = 24, SMALLEST = 12, MOST = 40, FILL = 0xa5 };

static void begin(unsigned char bytes[MOST], uint32_t size)
{
    memset(bytes, FILL, MOST);
    memcpy(bytes, &size, sizeof size);
}

/* The fields of the caller's version are written, later ones are zero, and nothing past its size is written. */
Test(desc, writes_what_the_caller_knows)
{
    unsigned char ours[OURS], theirs[MOST];
    for (int i = 0; i < OURS; i++)
        ours[i] = (unsigned char)(i + 1);
    for (uint32_t size = SMALLEST; size <= MOST; size++) {
        begin(theirs, size);
        cr_assert_eq(attune__desc_write(theirs, ours, OURS, SMALLEST, "info"), ATTUNE_OK);
        cr_assert_eq(memcmp(theirs, &size, sizeof size), 0, "its size stays");
        for (uint32_t i = sizeof size; i < MOST; i++)
            cr_assert_eq(theirs[i], i >= size ? FILL : i < OURS ? ours[i] : 0, "byte %u of %u", i, size);
    }
    begin(theirs, SMALLEST - 1);
    cr_assert_eq(attune__desc_write(theirs, ours, OURS, SMALLEST, "info"), ATTUNE_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(attune_last_error(), "info.struct_size is 11, expected at least 12"));
    cr_assert_eq(theirs[sizeof(uint32_t)], FILL);
    cr_assert_eq(attune__desc_write(NULL, ours, OURS, SMALLEST, "info"), ATTUNE_INVALID_ARGUMENT);
}

/* Fields past the caller's version are read as zero; those past ours must be zero. */
Test(desc, reads_what_the_caller_knows)
{
    unsigned char ours[MOST], theirs[MOST];
    for (uint32_t size = SMALLEST; size <= MOST; size++) {
        begin(theirs, size);
        if (size > OURS)
            memset(theirs + OURS, 0, size - OURS);
        memset(ours, FILL, sizeof ours);
        cr_assert_eq(attune__desc_read(ours, OURS, theirs, SMALLEST, "desc"), ATTUNE_OK, "%u", size);
        const uint32_t copied = OURS;
        cr_assert_eq(memcmp(ours, &copied, sizeof copied), 0);
        for (uint32_t i = sizeof copied; i < MOST; i++)
            cr_assert_eq(ours[i], i >= OURS ? FILL : i < size ? theirs[i] : 0, "byte %u of %u", i, size);
        for (uint32_t i = OURS; i < size; i++) {
            char words[64];
            theirs[i] = 1;
            snprintf(words, sizeof words, "field at byte %u ", i);
            cr_assert_eq(attune__desc_read(ours, OURS, theirs, SMALLEST, "desc"), ATTUNE_UNSUPPORTED);
            cr_assert_not_null(strstr(attune_last_error(), words), "%s", attune_last_error());
            theirs[i] = 0;
        }
    }
    begin(theirs, SMALLEST - 1);
    cr_assert_eq(attune__desc_read(ours, OURS, theirs, SMALLEST, "desc"), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune__desc_read(ours, OURS, NULL, SMALLEST, "desc"), ATTUNE_INVALID_ARGUMENT);
}
