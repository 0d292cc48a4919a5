/* SPDX-License-Identifier: MIT */
/* Numbers that a test of the kernels draws. The test sets `state`, which must not be 0. */
#ifndef TESTS_CPU_DRAW_H
#define TESTS_CPU_DRAW_H

#include <stddef.h>
#include <stdint.h>

static uint64_t state;

/* xorshift64 */
static inline uint32_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static inline size_t between(size_t low, size_t high)
{
    return low + next() % (high - low + 1);
}

/* From -1 to 1. */
static inline float uniform(void)
{
    return (float)next() * 0x1p-31f - 1.0f;
}

#endif
