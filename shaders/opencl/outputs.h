/* SPDX-License-Identifier: MIT */
/*
 * Stage 7 of forward kernels: a row's results, or those of a split. A program defines Q_TYPE and O_TYPE.
 */
#ifndef ATTUNE_OUTPUTS_H
#define ATTUNE_OUTPUTS_H

#include "elements.h"
#include "tiles.h"

ATTUNE_FUNCTION uint partial_index(const attune_opencl_arguments *args, const tile_coord *coord, uint h, uint q)
{
    return ((coord->b * args->heads + h) * args->q_len + q) * args->splits + coord->split;
}

/* LSE and row maximum where the call requests them, or the row maximum and sum of a split. Weights are relative to m,
 * and l is their sum, with the sink; split_l is the sum without it, relative to largest. */
ATTUNE_FUNCTION void store_row_state(const attune_opencl_arguments *args, const tile_coord *coord,
                                     __global uchar *workspace, __global uchar *lse, __global uchar *row_max, uint h,
                                     uint q, float m, float l, float largest, float split_l)
{
    if (args->splits > 1u) {
        __global float *to = (__global float *)(workspace + args->partials_ml) + 2u * partial_index(args, coord, h, q);
        to[0] = largest;
        to[1] = split_l;
        return;
    }
    if (args->flags & ATTUNE_OPENCL_HAS_LSE)
        *row_at(lse, &args->lse, coord->b, h, q) = lse_of(m, l);
    if (args->flags & ATTUNE_OPENCL_HAS_ROW_MAX)
        *row_at(row_max, &args->row_max, coord->b, h, q) = row_max_of(largest, split_l);
}

/* Four columns of a row of O, or of a split's partial result. */
ATTUNE_FUNCTION void store_columns(const attune_opencl_arguments *args, const tile_coord *coord,
                                   __global uchar *workspace, __global uchar *o, int aligned, uint h, uint q,
                                   uint column, float4 value)
{
    if (args->splits > 1u) {
        __global float *to = (__global float *)(workspace + args->partials) +
                             (ulong)partial_index(args, coord, h, q) * HEAD_DIM_V;
        *(__global float4 *)(to + column) = value;
    } else
        store4(O_TYPE,
               o + plane_of(&args->o, coord->b, h) + (long)q * args->o.stride_row + (long)(column * bytes_of(O_TYPE)),
               aligned, value);
}

#endif
