/* SPDX-License-Identifier: MIT */
/*
 * Products of kernels for drivers that run on the CPU: an outer tile's rows lie across lanes. A matrix of the tile is
 * an array of vectors of rows in private memory: element [c * VECTORS + i] has column c of WIDTH rows. Lanes are those
 * of a vector (WIDTH 16 in a workgroup of one item), or a driver's across the items of a workgroup (WIDTH 1). Every
 * element of an inner row then is one load for all lanes, and no lane reads another's. There are no barriers.
 *
 * A program defines TYPE, BLOCK_N, THREADS and the constants of layout_lanes.h; with SERVING the kernel stages the
 * inner rows itself, and there may be several items without shuffles.
 */
#ifndef ATTUNE_LANES_H
#define ATTUNE_LANES_H

#include "elements.h"
#include "exp2.h"
#include "tiles.h"

#if WIDTH == 16u
typedef float16 rows;
typedef int16 rows_int;
#define AS_ROWS as_float16
#define AS_INT  as_int16
#elif WIDTH == 8u
typedef float8 rows;
typedef int8 rows_int;
#define AS_ROWS as_float8
#define AS_INT  as_int8
#elif WIDTH == 4u
typedef float4 rows;
typedef int4 rows_int;
#define AS_ROWS as_float4
#define AS_INT  as_int4
#else
typedef float rows;
typedef int rows_int;
#define AS_ROWS as_float
#define AS_INT  as_int
#endif

/* The tile's row that is element w of an item's vector i. */
ATTUNE_FUNCTION uint lanes_row(uint i, uint w)
{
    return (i * THREADS + (uint)get_local_id(0)) * WIDTH + w;
}

ATTUNE_EXP2(exp2_rows, rows, rows_int, AS_ROWS, AS_INT)

/* Eight elements of an inner row, of any alignment. */
ATTUNE_FUNCTION float8 load8(__global const uchar *at)
{
#if TYPE == F32
    return vload8(0, (__global const float *)at);
#elif TYPE == F16
    return vload_half8(0, (__global const half *)at);
#else
    return as_float8(convert_uint8(vload8(0, (__global const ushort *)at)) << 16u);
#endif
}

#if STAGED
/* A tile of inner rows as floats. */
#define INNER            __local const float *
#define INNER_ROW(n)     (tile + (n)*size)
#define ELEMENT(from, c) ((from)[c])
#define AT(from, c)      ((from) + (c))
#endif
#ifdef SERVING
#define STAGE(plane, stride, size)
#define INNER_PARAMETERS __local const float *tile, uint size
#elif STAGED
ATTUNE_FUNCTION void stage(__local float *tile, __global const uchar *plane, long stride, uint row0, uint len,
                           uint size)
{
    for (uint n = 0u; n < BLOCK_N; n++) {
        __global const uchar *from = plane + (long)min(row0 + n, len - 1u) * stride;
        for (uint c = 0u; c < size; c += 8u)
            vstore8(load8(from + (long)(c * bytes_of(TYPE))), 0, tile + n * size + c);
    }
}
#define STAGE(plane, stride, size) stage(tile, plane, stride, row0, len, size)
#else
#define INNER            __global const uchar *
#define INNER_ROW(n)     (plane + (long)min(row0 + (n), len - 1u) * stride)
#define AT(from, c)      ((from) + (long)((c)*bytes_of(TYPE)))
#define ELEMENT(from, c) load_element(TYPE, AT(from, c))
#define STAGE(plane, stride, size)
#endif
#ifndef SERVING
#define INNER_PARAMETERS __local float *tile, __global const uchar *plane, long stride, uint row0, uint len, uint size
#endif

/* CHUNK elements of an inner row that follow one another: with SHUFFLES one in each lane, else where they are. */
#if SHUFFLES
typedef float chunk;
#define CHUNK_OF(from, c)     ELEMENT(from, (c) + (uint)get_local_id(0))
#define ELEMENT_OF(loaded, e) sub_group_shuffle(loaded, e)
#else
typedef INNER chunk;
#define CHUNK_OF(from, c)     AT(from, c)
#define ELEMENT_OF(loaded, e) ELEMENT(loaded, e)
#endif

/* to[n] = sum over c of a[c] B[n][c] */
ATTUNE_FUNCTION void multiply_rows(rows *restrict to, const rows *restrict a, INNER_PARAMETERS)
{
    STAGE(plane, stride, size);
    for (uint n0 = 0u; n0 < BLOCK_N; n0 += DEPTH) {
        INNER from[DEPTH];
        rows sum[DEPTH * VECTORS];
#pragma unroll
        for (uint n = 0u; n < DEPTH; n++)
            from[n] = INNER_ROW(n0 + n);
#pragma unroll
        for (uint j = 0u; j < DEPTH * VECTORS; j++)
            sum[j] = (rows)(0.0f);
#pragma nounroll
        for (uint c0 = 0u; c0 < size; c0 += CHUNK) {
            chunk loaded[DEPTH];
#pragma unroll
            for (uint n = 0u; n < DEPTH; n++)
                loaded[n] = CHUNK_OF(from[n], c0);
#pragma unroll
            for (uint c = 0u; c < CHUNK; c++) {
#pragma unroll
                for (uint n = 0u; n < DEPTH; n++) {
                    const rows b = (rows)(ELEMENT_OF(loaded[n], c));
#pragma unroll
                    for (uint i = 0u; i < VECTORS; i++)
                        sum[n * VECTORS + i] = FMA(a[(c0 + c) * VECTORS + i], b, sum[n * VECTORS + i]);
                }
            }
        }
#pragma unroll
        for (uint j = 0u; j < DEPTH * VECTORS; j++)
            to[n0 * VECTORS + j] = sum[j];
    }
}

/* to[c] = factor to[c] + sum over n of weights[n] B[n][c] */
ATTUNE_FUNCTION void multiply_weights(rows *restrict to, const rows *restrict weights, const rows *restrict factor,
                                      INNER_PARAMETERS)
{
    STAGE(plane, stride, size);
    for (uint c0 = 0u; c0 < size; c0 += DEPTH) {
        rows sum[DEPTH * VECTORS];
#pragma unroll
        for (uint j = 0u; j < DEPTH * VECTORS; j++)
            sum[j] = to[c0 * VECTORS + j] * factor[j % VECTORS];
#pragma nounroll
        for (uint n = 0u; n < BLOCK_N; n++) {
            INNER from = INNER_ROW(n);
            chunk loaded = CHUNK_OF(from, c0);
#pragma unroll
            for (uint c = 0u; c < DEPTH; c++) {
                const rows b = (rows)(ELEMENT_OF(loaded, c));
#pragma unroll
                for (uint i = 0u; i < VECTORS; i++)
                    sum[c * VECTORS + i] = FMA(weights[n * VECTORS + i], b, sum[c * VECTORS + i]);
            }
        }
#pragma unroll
        for (uint j = 0u; j < DEPTH * VECTORS; j++)
            to[c0 * VECTORS + j] = sum[j];
    }
}

#ifndef SERVING
/* Whether an inner tile has NaN or infinity, the same for all items: each reads some rows. */
ATTUNE_FUNCTION int has_non_finite(__global const uchar *plane, long stride, uint row0, uint len, uint size)
{
    int found = 0;
    for (uint n = row0 + (uint)get_local_id(0); n < min(row0 + BLOCK_N, len); n += THREADS)
        for (uint c = 0u; c < size; c += 8u)
            found |= any((as_int8(load8(plane + (long)n * stride + (long)(c * bytes_of(TYPE)))) & 0x7f800000) ==
                         (int8)(0x7f800000));
#if SHUFFLES
    for (uint step = 1u; step < THREADS; step *= 2u)
        found |= sub_group_shuffle(found, (uint)get_local_id(0) ^ step);
#endif
    return found;
}

/* As multiply_weights, without the pairs whose weight is `none` in the bits of `of`: 0 times NaN is NaN. */
ATTUNE_FUNCTION void multiply_weights_slow(rows *restrict to, const rows *restrict weights, const rows *restrict factor,
                                           uint none, uint of, __global const uchar *plane, long stride, uint row0,
                                           uint len, uint size)
{
    const uint end = min((uint)BLOCK_N, len - row0);
    for (uint c = 0u; c < size; c++)
        for (uint i = 0u; i < VECTORS; i++) {
            rows sum = to[c * VECTORS + i] * factor[i];
            for (uint n = 0u; n < end; n++) {
                const rows weight = weights[n * VECTORS + i];
                const float b = load_element(TYPE, plane + (long)(row0 + n) * stride + (long)(c * bytes_of(TYPE)));
                sum = select(FMA(weight, (rows)(b), sum), sum, (AS_INT(weight) & (int)of) == (rows_int)((int)none));
            }
            to[c * VECTORS + i] = sum;
        }
}
#endif

#endif
