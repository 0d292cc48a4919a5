/* SPDX-License-Identifier: MIT */
/* Rounding up to a multiple. */
#ifndef ATTUNE_BASE_ROUND_H
#define ATTUNE_BASE_ROUND_H

#include <stdint.h>

static inline uint32_t attune__round_up(uint32_t value, uint32_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}
static inline uint64_t attune__round_up64(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

#endif
