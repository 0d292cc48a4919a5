/* SPDX-License-Identifier: MIT */
/* Multiples and powers of two. */
#ifndef ATTUNE_BASE_ROUND_H
#define ATTUNE_BASE_ROUND_H

#include <stdbool.h>
#include <stdint.h>

static inline uint32_t attune__round_up(uint32_t value, uint32_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}
static inline uint64_t attune__round_up64(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* The largest power of two up to value, which is at least 1. */
static inline uint32_t attune__floor2(uint32_t value)
{
    uint32_t power = 1;
    while (power <= value / 2)
        power *= 2;
    return power;
}
static inline bool attune__is_power2(uint32_t value)
{
    return value && !(value & (value - 1));
}

#endif
