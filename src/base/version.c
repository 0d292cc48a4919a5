/* SPDX-License-Identifier: MIT */
#include <attune/attune.h>

uint32_t attune_version(void)
{
    return ATTUNE_VERSION_MAJOR * UINT32_C(1000000) + ATTUNE_VERSION_MINOR * UINT32_C(1000) + ATTUNE_VERSION_PATCH;
}
