/* SPDX-License-Identifier: MIT */
/*
 * As mods.h, for calls over a cache: both expressions are evaluated for the lengths of each call. The captures of the
 * mask have memory of their own too, in parameters before the score's; both tables are in attune_opencl_serving.
 */
#ifndef ATTUNE_SERVING_MODS_H
#define ATTUNE_SERVING_MODS_H

#include "serving.h"

#include "bounds.h"
#include "tiles.h"

#ifndef ATTUNE_MASK_CAPTURES
#define ATTUNE_MASK_CAPTURES(X)
#endif
#ifndef ATTUNE_SCORE_CAPTURES
#define ATTUNE_SCORE_CAPTURES(X)
#endif

#define ATTUNE_MASK_OF_KERNEL(n)  , __global const uchar *restrict mask_capture_##n
#define ATTUNE_MASK_PARAMETER(n)  , __global const uchar *mask_capture_##n
#define ATTUNE_MASK_ARGUMENT(n)   , mask_capture_##n
#define ATTUNE_SCORE_OF_KERNEL(n) , __global const uchar *restrict capture_##n
#define ATTUNE_SCORE_PARAMETER(n) , __global const uchar *capture_##n
#define ATTUNE_SCORE_ARGUMENT(n)  , capture_##n

#define ATTUNE_KERNEL_MODS     ATTUNE_MASK_CAPTURES(ATTUNE_MASK_OF_KERNEL) ATTUNE_SCORE_CAPTURES(ATTUNE_SCORE_OF_KERNEL)
#define ATTUNE_MODS_PARAMETERS ATTUNE_MASK_CAPTURES(ATTUNE_MASK_PARAMETER) ATTUNE_SCORE_CAPTURES(ATTUNE_SCORE_PARAMETER)
#define ATTUNE_MODS            ATTUNE_MASK_CAPTURES(ATTUNE_MASK_ARGUMENT) ATTUNE_SCORE_CAPTURES(ATTUNE_SCORE_ARGUMENT)

/* Of all sequences' rows; first_row: of q = 0. */
#define ATTUNE_ROW_INDEX (first_row + q)

#ifdef ATTUNE_HAS_MASK
#define ATTUNE_SYMBOLS                                                                                                 \
    , int first_row, __global const attune_opencl_table *table ATTUNE_MASK_CAPTURES(ATTUNE_MASK_PARAMETER)
#define ATTUNE_CAPTURE(n) mask_capture_##n, &table->captures[n]
#include "mask_text.h"
#undef ATTUNE_SYMBOLS
#undef ATTUNE_CAPTURE
#endif

#ifdef ATTUNE_HAS_SCORE
#define ATTUNE_SYMBOLS                                                                                                 \
    , int first_row, __global const attune_opencl_table *table ATTUNE_SCORE_CAPTURES(ATTUNE_SCORE_PARAMETER)
#define ATTUNE_CAPTURE(n) capture_##n, &table->captures[n]
#include "score_text.h"
#endif

/* The struct of the call, which begins with the cache. */
ATTUNE_FUNCTION __global const attune_opencl_serving *serving_of(const sequence *s)
{
    return (__global const attune_opencl_serving *)s->of;
}

ATTUNE_FUNCTION float attune_score(float score, const sequence *s, uint h, uint query, uint kv ATTUNE_MODS_PARAMETERS)
{
#ifdef ATTUNE_HAS_SCORE
    return attune_score_of((int)s->b, (int)h, s->position + (int)query, (int)kv, (int)s->kv_h, (int)s->q_len,
                           (int)s->kv_len, score, (int)s->token0 - s->position,
                           &serving_of(s)->score ATTUNE_SCORE_CAPTURES(ATTUNE_SCORE_ARGUMENT));
#else
    return score;
#endif
}

ATTUNE_FUNCTION int attune_mask(const sequence *s, uint h, uint query, uint kv ATTUNE_MODS_PARAMETERS)
{
#ifdef ATTUNE_HAS_MASK
    return attune_mask_of((int)s->b, (int)h, s->position + (int)query, (int)kv, (int)s->kv_h, (int)s->q_len,
                          (int)s->kv_len, 0.0f, (int)s->token0 - s->position,
                          &serving_of(s)->mask ATTUNE_MASK_CAPTURES(ATTUNE_MASK_ARGUMENT));
#else
    return 1;
#endif
}

/* Of the mask over a tile's rows and some keys, the last one included. */
ATTUNE_FUNCTION attune_range attune_mask_bounds(const sequence *s, const tile_coord *coord, uint kv0,
                                                uint last ATTUNE_MODS_PARAMETERS)
{
#ifdef ATTUNE_HAS_MASK
    const int q = s->position + (int)coord->q0, row = (int)(s->token0 + coord->q0), more = (int)coord->queries - 1;
    const attune_range h = attune_range_of((int)coord->h0, (int)(coord->h0 + coord->heads) - 1);
    return attune_mask_bounds_of((int)s->b, h, attune_range_of(q, q + more), attune_range_of((int)kv0, (int)last),
                                 (int)s->kv_h, (int)s->q_len, (int)s->kv_len, attune_range_of(row, row + more),
                                 (int)s->token0 - s->position,
                                 &serving_of(s)->mask ATTUNE_MASK_CAPTURES(ATTUNE_MASK_ARGUMENT));
#else
    return ATTUNE_POINT(1);
#endif
}

#endif
