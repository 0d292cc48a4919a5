/* SPDX-License-Identifier: MIT */
/*
 * Forward attention and decode for drivers that run on the CPU: each lane has rows of its own (lanes.h), so that the
 * softmax needs neither local memory nor barriers. The stages are numbered as in docs/algorithm.md.
 */
#include "key_tiles.h"
#include "lanes.h"
#include "layout.h"
#include "outputs.h"

/* The weight of a forbidden pair is -0: in a product it is 0, and its bits tell it from a weight that underflows. */
#define FORBIDDEN 0x80000000u

/* 1: load Q */
ATTUNE_FUNCTION void load_q(rows *to, const attune_opencl_arguments *args, const tile_coord *coord,
                            __global const uchar *q)
{
    float *out = (float *)to;
    const float factor = PRESCALE ? args->scale : 1.0f;
    for (uint j = 0u; j < HEAD_DIM * VECTORS; j++)
        to[j] = (rows)(0.0f);
    for (uint i = 0u; i < VECTORS; i++)
        for (uint w = 0u; w < WIDTH; w++) {
            const uint row = lanes_row(i, w);
            if (row < coord->rows) {
                __global const uchar *from = q + plane_of(&args->q, coord->b, row_head(coord, row)) +
                                             (long)row_query(coord, row) * args->q.stride_row;
                for (uint c = 0u; c < HEAD_DIM; c++)
                    out[(c * VECTORS + i) * WIDTH + w] = load_element(Q_TYPE, from + (long)(c * bytes_of(Q_TYPE))) *
                                                         factor;
            }
        }
}

/* 4: score and mask; a forbidden pair is LOWEST */
ATTUNE_FUNCTION void apply_mods(rows *s, float factor, const attune_opencl_arguments *args, const tile_coord *coord,
                                const key_tile *tile ATTUNE_MODS_PARAMETERS)
{
    float *pairs = (float *)s;
    for (uint j = 0u; j < BLOCK_N * VECTORS; j++)
        s[j] *= factor;
    if (!SCORE && !tile->masked)
        return;
    for (uint n = 0u; n < BLOCK_N; n++)
        for (uint i = 0u; i < VECTORS; i++)
            for (uint w = 0u; w < WIDTH; w++) {
                const uint row = lanes_row(i, w), kv = tile->kv0 + n, at = (n * VECTORS + i) * WIDTH + w;
                const uint row_h = row_head(coord, row), row_q = row_query(coord, row);
                int may = row < coord->rows && kv < args->kv_len;
                float x = pairs[at];
                if (SCORE)
                    x = attune_score(x, coord->b, row_h, row_q, kv ATTUNE_MODS);
                if (tile->is_partial && may)
                    may = attune_mask(coord->b, row_h, row_q, kv ATTUNE_MODS);
                pairs[at] = may ? x : LOWEST;
            }
}

/* 5: online softmax; S becomes P */
ATTUNE_FUNCTION void online_softmax(rows *s, rows *m, rows *l, rows *factor, int masked)
{
    for (uint i = 0u; i < VECTORS; i++) {
        rows most = m[i], sum = (rows)(0.0f);
        for (uint n = 0u; n < BLOCK_N; n++)
            most = fmax(most, s[n * VECTORS + i]);
        factor[i] = exp2_rows((m[i] - most) * TO_LOG2);
        for (uint n = 0u; n < BLOCK_N; n++) {
            const rows x = s[n * VECTORS + i];
            rows weight = exp2_rows((x - most) * TO_LOG2);
            if (masked)
                weight = select(weight, AS_ROWS((rows_int)((int)FORBIDDEN)), AS_INT(x) == AS_INT((rows)(LOWEST)));
            sum += weight;
            s[n * VECTORS + i] = weight;
        }
        m[i] = most;
        l[i] = l[i] * factor[i] + sum;
    }
}

/* 7: store O and LSE, or the partial result of a split */
ATTUNE_FUNCTION void store_o(const rows *from, const rows *m, const rows *l, const attune_opencl_arguments *args,
                             const tile_coord *coord, __global uchar *o, __global uchar *lse, __global uchar *row_max,
                             __global const uchar *sinks, __global uchar *workspace)
{
    const float *out = (const float *)from, *most = (const float *)m, *sums = (const float *)l;
    const int split = args->splits > 1u, is_partial = split || (args->flags & ATTUNE_OPENCL_IS_PARTIAL) != 0u;
    const int aligned = ALIGNED || (args->flags & ATTUNE_OPENCL_ALIGNED_O) != 0u;
    for (uint i = 0u; i < VECTORS; i++)
        for (uint w = 0u; w < WIDTH; w++) {
            const uint row = lanes_row(i, w);
            if (row < coord->rows) {
                const uint row_h = row_head(coord, row), row_q = row_query(coord, row);
                const float l_row = sums[i * WIDTH + w], m_row = most[i * WIDTH + w];
                float top = m_row;
                const float2 sink = split ? (float2)(1.0f, 0.0f) : add_sink(args, sinks, row_h, &top);
                const float sum = l_row * sink.x + sink.y;
                const int zero = is_zero(sum) && !is_partial;
                const float scale = split || is_zero(sum) ? 1.0f : sink.x / sum;
                store_row_state(args, coord, workspace, lse, row_max, row_h, row_q, top, sum, m_row, l_row);
                for (uint c = 0u; c < HEAD_DIM_V; c += 4u) {
                    const uint at = (c * VECTORS + i) * WIDTH + w, step = VECTORS * WIDTH;
                    float4 value = (float4)(out[at], out[at + step], out[at + 2u * step], out[at + 3u * step]);
                    value = zero ? (float4)(0.0f) : value * scale;
                    store_columns(args, coord, workspace, o, aligned, row_h, row_q, c, value);
                }
            }
        }
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_lanes(ATTUNE_KERNEL_PARAMETERS ATTUNE_KERNEL_MODS)
{
    ATTUNE_TABLES
#include "layout_lanes.h"
    rows a[HEAD_DIM * VECTORS], s[BLOCK_N * VECTORS], sum[HEAD_DIM_V * VECTORS];
    rows m[VECTORS], l[VECTORS], factor[VECTORS];
    const tile_coord coord = tile_coord_of(&args, args.first + GROUP);
    __global const uchar *k_plane = k + plane_of(&args.k, coord.b, coord.kv_h);
    __global const uchar *v_plane = v + plane_of(&args.v, coord.b, coord.kv_h);
    const float s_factor = (PRESCALE ? 1.0f : args.scale) * (SCORE ? 1.0f : LOG2E);
    for (uint i = 0u; i < VECTORS; i++) {
        m[i] = (rows)(LOWEST);
        l[i] = (rows)(0.0f);
    }
    for (uint j = 0u; j < HEAD_DIM_V * VECTORS; j++)
        sum[j] = (rows)(0.0f);
    load_q(a, &args, &coord, q); /* 1 */
    block_iterator blocks = block_iterator_of_tile(&args, mask, &coord);
    while (key_tiles_next(&blocks, &args, &coord ATTUNE_MODS)) {
        const key_tile tile = key_tile_of(&blocks, args.kv_len);
        /* 2: load K; 3: S = Q K^T */
        multiply_rows(s, a, inner, k_plane, args.k.stride_row, tile.kv0, args.kv_len, HEAD_DIM);
        apply_mods(s, s_factor, &args, &coord, &tile ATTUNE_MODS); /* 4: score and mask */
        online_softmax(s, m, l, factor, tile.masked);              /* 5: online softmax */
        /* 6: O += P V */
        if (tile.masked && has_non_finite(v_plane, args.v.stride_row, tile.kv0, args.kv_len, HEAD_DIM_V))
            multiply_weights_slow(sum, s, factor, FORBIDDEN, ~0u, v_plane, args.v.stride_row, tile.kv0, args.kv_len,
                                  HEAD_DIM_V);
        else
            multiply_weights(sum, s, factor, inner, v_plane, args.v.stride_row, tile.kv0, args.kv_len, HEAD_DIM_V);
    }
    store_o(sum, m, l, &args, &coord, o, lse, row_max, sinks, workspace); /* 7 */
}
