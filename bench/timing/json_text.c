/* SPDX-License-Identifier: MIT */
#include "bench/timing/json_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The length of the UTF-8 character at text, 0 if it is malformed (RFC 3629, section 4). */
static size_t utf8_length(const unsigned char *text)
{
    const size_t length = text[0] < 0x80   ? 1
                          : text[0] < 0xc2 ? 0
                          : text[0] < 0xe0 ? 2
                          : text[0] < 0xf0 ? 3
                          : text[0] < 0xf5 ? 4
                                           : 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) ||
        (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f))
        return 0;
    return length;
}

json_t *json_text(const char *text)
{
    static const char replacement[] = "\xef\xbf\xbd";
    const size_t size = strlen(text);
    char *valid = malloc(size * 3 + 1);
    size_t used = 0;
    if (!valid)
        return NULL;
    for (size_t at = 0; at < size;) {
        const size_t length = utf8_length((const unsigned char *)text + at);
        memcpy(valid + used, length ? text + at : replacement, length ? length : 3);
        used += length ? length : 3;
        at += length ? length : 1;
    }
    json_t *string = json_stringn(valid, used);
    free(valid);
    return string;
}

json_t *json_figure(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}
