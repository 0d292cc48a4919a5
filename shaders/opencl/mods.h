/* SPDX-License-Identifier: MIT */
/*
 * The caller's expressions. src/opencl/program.c puts before a kernel, for the expressions that it has,
 *
 *     #define ATTUNE_HAS_MASK           attune_mask_of follows, in a text that mods.h includes as "mask_text.h"
 *     #define ATTUNE_HAS_BOUNDS         the text has attune_mask_bounds_of too
 *     #define ATTUNE_HAS_SCORE          likewise attune_score_of, in "score_text.h", and in backward its derivatives
 *     #define ATTUNE_SCORE_CAPTURES(X)  X(n) for each capture n of the score expression
 *
 * A kernel has ATTUNE_KERNEL_MODS after its other parameters, declares ATTUNE_TABLES, and passes ATTUNE_MODS to the
 * functions that take ATTUNE_MODS_PARAMETERS.
 */
#ifndef ATTUNE_MODS_H
#define ATTUNE_MODS_H

#include "prelude.h"

#ifndef ATTUNE_SCORE_CAPTURES
#define ATTUNE_SCORE_CAPTURES(X)
#endif

#define ATTUNE_CAPTURE_OF_KERNEL(n) , __global const uchar *restrict capture_##n
#define ATTUNE_CAPTURE_PARAMETER(n) , __global const uchar *capture_##n
#define ATTUNE_CAPTURE_ARGUMENT(n)  , capture_##n

#define ATTUNE_KERNEL_MODS ATTUNE_SCORE_CAPTURES(ATTUNE_CAPTURE_OF_KERNEL)
#define ATTUNE_TABLES                                                                                                  \
    __global const attune_opencl_table *const mask_table = (__global const attune_opencl_table *)(mask +               \
                                                                                                  args.mask_table);    \
    __global const attune_opencl_table *const score_table = (__global const attune_opencl_table *)(workspace +         \
                                                                                                   args.score_table);
#define ATTUNE_MODS_PARAMETERS                                                                                         \
    , __global const uchar *mask_data, __global const attune_opencl_table *mask_table,                                 \
        __global const attune_opencl_table *score_table ATTUNE_SCORE_CAPTURES(ATTUNE_CAPTURE_PARAMETER)
#define ATTUNE_MODS , mask_data, mask_table, score_table ATTUNE_SCORE_CAPTURES(ATTUNE_CAPTURE_ARGUMENT)

#ifdef ATTUNE_HAS_BOUNDS
#include "bounds.h"
#endif
#ifdef ATTUNE_HAS_MASK
#define ATTUNE_SYMBOLS    , __global const uchar *memory, __global const attune_opencl_table *table
#define ATTUNE_CAPTURE(n) memory, &table->captures[n]
#include "mask_text.h"
#undef ATTUNE_SYMBOLS
#undef ATTUNE_CAPTURE
#endif

#ifdef ATTUNE_HAS_SCORE
#define ATTUNE_SYMBOLS    , __global const attune_opencl_table *table ATTUNE_SCORE_CAPTURES(ATTUNE_CAPTURE_PARAMETER)
#define ATTUNE_CAPTURE(n) capture_##n, &table->captures[n]
#include "score_text.h"
#define ATTUNE_SCORE_SYMBOLS , score_table ATTUNE_SCORE_CAPTURES(ATTUNE_CAPTURE_ARGUMENT)
#endif

/* The modified score; the score itself where there is no expression. */
ATTUNE_FUNCTION float attune_score(float score, uint b, uint h, uint q, uint kv ATTUNE_MODS_PARAMETERS)
{
#ifdef ATTUNE_HAS_SCORE
    return attune_score_of((int)b, (int)h, (int)q, (int)kv, (int)h / score_table->group, score_table->q_len,
                           score_table->kv_len, score ATTUNE_SCORE_SYMBOLS);
#else
    return score;
#endif
}

/* Whether the pair is allowed, in a partial block. */
ATTUNE_FUNCTION int attune_mask(uint b, uint h, uint q, uint kv ATTUNE_MODS_PARAMETERS)
{
#ifdef ATTUNE_HAS_MASK
    int head = (int)h + mask_table->h0;
    return attune_mask_of((int)b + mask_table->b0, head, (int)q + mask_table->q0, (int)kv, head / mask_table->group,
                          mask_table->q_len, mask_table->kv_len, 0.0f, mask_data, mask_table);
#else
    return 1;
#endif
}

#ifdef ATTUNE_HAS_BOUNDS
/* Of the mask over `heads` heads that share keys, `queries` queries, and keys from kv0 to `last`. */
ATTUNE_FUNCTION attune_range attune_mask_bounds(uint b, uint h0, uint heads, uint q0, uint queries, uint kv0,
                                                uint last ATTUNE_MODS_PARAMETERS)
{
    const int h = (int)h0 + mask_table->h0, q = (int)q0 + mask_table->q0;
    const attune_range rows = attune_range_of(q, q + (int)queries - 1);
    return attune_mask_bounds_of((int)b + mask_table->b0, attune_range_of(h, h + (int)heads - 1), rows,
                                 attune_range_of((int)kv0, (int)last), h / mask_table->group, mask_table->q_len,
                                 mask_table->kv_len, rows, mask_data, mask_table);
}
#endif

#endif
