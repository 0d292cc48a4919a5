/* SPDX-License-Identifier: MIT */
/* NPY files: whatever the bytes, an array whose every element can be read, or a message. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/oracle/array.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    array a = {0};
    failure why = {""};
    if (npy_parse(data, size, "input", &a, &why)) {
        volatile double sum = 0;
        for (int64_t i = 0; i < array_count(&a); i++)
            sum += array_get(&a, i);
        (void)sum;
        array_free(&a);
    } else if (!why.message[0]) {
        abort();
    }
    why.message[0] = '\0';
    if (npy_parse_integers(data, size, "input", INT32_MIN, UINT32_MAX, &a, &why)) {
        for (int64_t i = 0; i < array_count(&a); i++)
            if (array_get(&a, i) < INT32_MIN || array_get(&a, i) > UINT32_MAX)
                abort();
        array_free(&a);
    } else if (!why.message[0]) {
        abort();
    }
    return 0;
}
