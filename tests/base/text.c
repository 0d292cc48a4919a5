/* SPDX-License-Identifier: MIT */
/* Text in a buffer of any size: what is needed is counted, what does not fit is left out; and strings of JSON. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

Test(text, of_any_size)
{
    static const char whole[] = "one, 22, three";
    for (size_t size = 0; size < sizeof whole + 3; size++) {
        char buffer[32];
        size_t needed = 0;
        memset(buffer, '#', sizeof buffer);
        attune__text text = attune__text_begin(buffer, size);
        cr_assert(!size || !buffer[0]);
        attune__text_add(&text, "one, %d", 22);
        attune__text_add(&text, ", %s", "three");
        attune__text_end(&text, &needed);
        cr_assert_eq(needed, sizeof whole);
        const size_t kept = size < sizeof whole ? size : sizeof whole;
        cr_assert(!kept || (!memcmp(buffer, whole, kept - 1) && !buffer[kept - 1]), "%zu: %s", size, buffer);
        cr_assert_eq(buffer[kept], '#');
    }
    attune__text_add(NULL, "nowhere");
    attune__text none = attune__text_begin(NULL, 0);
    attune__text_add(&none, "%d", 12345);
    cr_assert_eq(none.length, 5);
    attune__text_end(&none, NULL);
}

Test(text, json_strings)
{
    for (int c = 1; c < 256; c++) {
        const char string[] = {'a', (char)c, 'b', '\0'};
        char buffer[32], wanted[32];
        attune__text text = attune__text_begin(buffer, sizeof buffer);
        attune__text_add_json(&text, string);
        snprintf(wanted, sizeof wanted,
                 c == '"' || c == '\\' ? "\"a\\%cb\""
                 : c < ' '             ? "\"a\\u%04xb\""
                                       : "\"a%cb\"",
                 c);
        cr_assert_str_eq(buffer, wanted);
    }
}
