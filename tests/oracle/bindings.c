/* SPDX-License-Identifier: MIT */
#include "tests/oracle/bindings.h"

void bindings_free(bindings *names)
{
    for (uint32_t i = 0; i < names->capture_count; i++)
        array_free(&names->data[i]);
    names->capture_count = 0;
}
