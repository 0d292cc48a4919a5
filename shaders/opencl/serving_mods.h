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

/* The sequence of a row of the tile; *query receives the row's number there. */
ATTUNE_FUNCTION sequence sequence_of_row(const sequence *s, const tile_coord *coord, uint row, uint *query)
{
    sequence of = *s;
#if SHARES
    const uint2 at = s->queries[min(row % max(coord->queries, 1u), BLOCK_M - 1u)];
    const uint4 member = s->members[at.x];
    const int packed = (s->of->has & ATTUNE_OPENCL_HAS_Q_START) != 0u;
    of.b = s->b + at.x;
    of.batch = packed ? 0u : of.b;
    of.q_len = member.x;
    of.kv_len = member.y;
    of.token0 = member.z;
    of.row0 = packed ? member.z : 0u;
    of.position = (int)member.y - (int)member.x;
    *query = at.y;
#else
    *query = row_query(coord, row);
#endif
    return of;
}

/* Of the mask over `queries` rows of a sequence and some keys, the last one included. */
ATTUNE_FUNCTION attune_range attune_member_bounds(const sequence *s, const tile_coord *coord, uint query0, uint queries,
                                                  uint kv0, uint last ATTUNE_MODS_PARAMETERS)
{
#ifdef ATTUNE_HAS_MASK
    const int q = s->position + (int)query0, row = (int)(s->token0 + query0), more = (int)queries - 1;
    const attune_range h = attune_range_of((int)coord->h0, (int)(coord->h0 + coord->heads) - 1);
    return attune_mask_bounds_of((int)s->b, h, attune_range_of(q, q + more), attune_range_of((int)kv0, (int)last),
                                 (int)s->kv_h, (int)s->q_len, (int)s->kv_len, attune_range_of(row, row + more),
                                 (int)s->token0 - s->position,
                                 &serving_of(s)->mask ATTUNE_MASK_CAPTURES(ATTUNE_MASK_ARGUMENT));
#else
    return ATTUNE_POINT(1);
#endif
}

/* Of the mask over a tile's rows. */
ATTUNE_FUNCTION attune_range attune_mask_bounds(const sequence *s, const tile_coord *coord, uint kv0,
                                                uint last ATTUNE_MODS_PARAMETERS)
{
#if SHARES
    attune_range all = attune_range_of(1, 0);
    for (uint i = 0u; i < coord->queries && (all.low != 0 || all.high == 0);) {
        uint query0;
        const sequence of = sequence_of_row(s, coord, i, &query0);
        const uint queries = clamp(of.q_len - query0, 1u, coord->queries - i);
        const attune_range any = attune_member_bounds(&of, coord, query0, queries, kv0, last ATTUNE_MODS);
        all = attune_range_of(min(all.low, any.low), max(all.high, any.high));
        i += queries;
    }
    return all;
#else
    return attune_member_bounds(s, coord, coord->q0, coord->queries, kv0, last ATTUNE_MODS);
#endif
}

#endif
