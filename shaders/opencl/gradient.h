/* SPDX-License-Identifier: MIT */
/*
 * Derivatives of the caller's score expression, beside mods.h, in programs that define CAPTURES as 0 or 1: whether a
 * call may request capture gradients.
 *
 * Capture gradients are sums over pairs in no fixed order. They are exact, so that the order does not matter and no
 * float atomics are needed: a sum is an integer of 384 bits in two's complement, in units of 2^-149, the smallest f32.
 * Of its 16 words 0 to 11 are the integer, lowest first; word 15 has a bit each for NaN, infinity and minus infinity.
 */
#ifndef ATTUNE_GRADIENT_H
#define ATTUNE_GRADIENT_H

#include "exact_sum.h"
#include "mods.h"

/* d result / d score */
ATTUNE_FUNCTION float attune_slope(float score, uint b, uint h, uint q, uint kv ATTUNE_MODS_PARAMETERS)
{
#ifdef ATTUNE_HAS_SCORE
    return attune_score_slope((int)b, (int)h, (int)q, (int)kv, (int)h / score_table->group, score_table->q_len,
                              score_table->kv_len, score ATTUNE_SCORE_SYMBOLS);
#else
    return 1.0f;
#endif
}

#if CAPTURES
ATTUNE_FUNCTION void attune_add_read(__global uchar *workspace, __global const attune_opencl_capture *capture,
                                     attune_index at, float value)
{
    if (at >= 0)
        exact_sum_add((__global uint *)(workspace + capture->sums) + SUM_WORDS * at, value);
}

/* By read: the gradients of elements that all pairs of a head read, summed over a work-item's pairs. */
typedef struct shared_reads {
#define READ(n, symbol, sharing) float of_##n;
    ATTUNE_CAPTURE_READS(READ)
#undef READ
} shared_reads;

ATTUNE_FUNCTION void shared_reads_begin(shared_reads *shared)
{
#define READ(n, symbol, sharing) shared->of_##n = 0.0f;
    ATTUNE_CAPTURE_READS(READ)
#undef READ
}

#define OF_PAIR                                                                                                        \
    (int)b, (int)h, (int)q, (int)kv, (int)h / score_table->group, score_table->q_len, score_table->kv_len,             \
        score ATTUNE_SCORE_SYMBOLS

/* Adds d times the derivative to each element that the pair reads. */
ATTUNE_FUNCTION void attune_add_reads(float d, shared_reads *shared, __global uchar *workspace, float score, uint b,
                                      uint h, uint q, uint kv ATTUNE_MODS_PARAMETERS)
{
#define READ(n, symbol, sharing)                                                                                       \
    if (score_table->captures[symbol].sums >= 0) {                                                                     \
        const float by = d * attune_capture_read_##n(OF_PAIR);                                                         \
        if (sharing == 0)                                                                                              \
            shared->of_##n += by;                                                                                      \
        else                                                                                                           \
            attune_add_read(workspace, &score_table->captures[symbol], attune_capture_read_##n##_at(OF_PAIR), by);     \
    }
    ATTUNE_CAPTURE_READS(READ)
#undef READ
}

/* After a work-item's last pair. */
ATTUNE_FUNCTION void shared_reads_end(const shared_reads *shared, __global uchar *workspace, uint b,
                                      uint h ATTUNE_MODS_PARAMETERS)
{
    const uint q = 0u, kv = 0u;
    const float score = 0.0f;
#define READ(n, symbol, sharing)                                                                                       \
    if (sharing == 0 && score_table->captures[symbol].sums >= 0)                                                       \
        attune_add_read(workspace, &score_table->captures[symbol], attune_capture_read_##n##_at(OF_PAIR),              \
                        shared->of_##n);
    ATTUNE_CAPTURE_READS(READ)
#undef READ
}
#endif

#endif
