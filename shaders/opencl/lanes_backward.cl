/* SPDX-License-Identifier: MIT */
/*
 * backward.cl for drivers that run on the CPU, in the manner of lanes.cl: each lane has rows of the outer tile. The
 * stages are numbered as in docs/algorithm.md.
 */
#include "backward_tiles.h"
#include "elements.h"
#include "gradient.h"
#include "lanes.h"
#include "layout.h"

/* The query and key of an outer and an inner row, either way round. */
#if KEYS
#define QUERY(outer_row, inner_row) (inner_row)
#define KEY(outer_row, inner_row)   (outer_row)
#define D_X                         d_k
#else
#define QUERY(outer_row, inner_row) (outer_row)
#define KEY(outer_row, inner_row)   (inner_row)
#define D_X                         d_q
#endif

/* An inner tile: its plane and first row, the number of all inner rows, and which stages of 4 it needs. */
typedef struct inner_tile {
    uint b, h, row0, len;
    int is_partial, masked;
} inner_tile;

/* 1: load the outer tile, Q and dO or K and V; `from` is its first row */
ATTUNE_FUNCTION void load_outer(rows *to, const outer_tile *outer, __global const uchar *from, long stride, uint size,
                                float factor)
{
    float *out = (float *)to;
    for (uint j = 0u; j < size * VECTORS; j++)
        to[j] = (rows)(0.0f);
    for (uint i = 0u; i < VECTORS; i++)
        for (uint w = 0u; w < WIDTH; w++) {
            const uint row = lanes_row(i, w);
            if (row < outer->rows)
                for (uint c = 0u; c < size; c++)
                    out[(c * VECTORS + i) * WIDTH + w] = load_element(TYPE, from + (long)row * stride +
                                                                                (long)(c * bytes_of(TYPE))) *
                                                         factor;
        }
}

/* 4: score and mask, of each pair: its score, LOWEST if it is forbidden, and the score's slope */
ATTUNE_FUNCTION void apply_mods(rows *s, rows *slopes, const outer_tile *outer,
                                const inner_tile *tile ATTUNE_MODS_PARAMETERS)
{
    float *pairs = (float *)s, *of_pairs = (float *)slopes;
    for (uint n = 0u; n < BLOCK_N; n++)
        for (uint i = 0u; i < VECTORS; i++)
            for (uint w = 0u; w < WIDTH; w++) {
                const uint outer_row = outer->row0 + lanes_row(i, w), row = tile->row0 + n;
                const uint q = QUERY(outer_row, row), kv = KEY(outer_row, row), at = (n * VECTORS + i) * WIDTH + w;
                const float raw = pairs[at];
                int may = lanes_row(i, w) < outer->rows && row < tile->len;
                if (tile->is_partial && may)
                    may = attune_mask(tile->b, tile->h, q, kv ATTUNE_MODS);
                pairs[at] = may ? attune_score(raw, tile->b, tile->h, q, kv ATTUNE_MODS) : LOWEST;
                if (SCORE)
                    of_pairs[at] = attune_slope(raw, tile->b, tile->h, q, kv ATTUNE_MODS);
            }
}

/* 5: P from scores, and dS from dP with respect to the modified score; a weight of 0 makes dS 0 */
ATTUNE_FUNCTION void softmax_gradient(rows *s, rows *ds, rows lse, rows delta)
{
    const rows x = *s;
    rows weight = exp2_rows((x - lse) * LOG2E);
    weight = select(weight, (rows)(0.0f), AS_INT(x) == AS_INT((rows)(LOWEST)));
    *ds = select(weight * (*ds - delta), (rows)(0.0f), (AS_INT(weight) & 0x7fffffff) == 0);
    *s = weight;
}

#if CAPTURES
/* 5: gradients of captures; `raw` are the scores before the expression */
ATTUNE_FUNCTION void add_captures(const rows *raw, const rows *ds, shared_reads *shared, __global uchar *workspace,
                                  const outer_tile *outer, const inner_tile *tile ATTUNE_MODS_PARAMETERS)
{
    const float *scores = (const float *)raw, *of_pairs = (const float *)ds;
    for (uint n = 0u; n < BLOCK_N; n++)
        for (uint i = 0u; i < VECTORS; i++)
            for (uint w = 0u; w < WIDTH; w++) {
                const uint at = (n * VECTORS + i) * WIDTH + w;
                const float d = of_pairs[at];
                if (!is_zero(d) && lanes_row(i, w) < outer->rows)
                    attune_add_reads(d, shared, workspace, scores[at], tile->b, tile->h, outer->row0 + lanes_row(i, w),
                                     tile->row0 + n ATTUNE_MODS);
            }
}
#endif

/* 6: dV += P^T dO and dK += dS^T Q, or dQ += dS K. The non-finite slow path skips weights of 0, since 0 times NaN or
 * infinity is NaN. */
ATTUNE_FUNCTION void accumulate(rows *to, const rows *weights, INNER_PARAMETERS)
{
    rows one[VECTORS];
    for (uint i = 0u; i < VECTORS; i++)
        one[i] = (rows)(1.0f);
    if (has_non_finite(plane, stride, row0, len, size))
        multiply_weights_slow(to, weights, one, 0u, 0x7fffffffu, plane, stride, row0, len, size);
    else
        multiply_weights(to, weights, one, tile, plane, stride, row0, len, size);
}

/* 7: store dK, dV or dQ; `to` is the tile's first row */
ATTUNE_FUNCTION void store_rows(const rows *from, const outer_tile *outer, __global uchar *to, long stride, int aligned,
                                uint size, float factor)
{
    const float *in = (const float *)from;
    const uint step = VECTORS * WIDTH;
    for (uint i = 0u; i < VECTORS; i++)
        for (uint w = 0u; w < WIDTH; w++) {
            const uint row = lanes_row(i, w);
            if (row < outer->rows)
                for (uint c = 0u; c < size; c += 4u) {
                    const uint at = (c * VECTORS + i) * WIDTH + w;
                    const float4 value = (float4)(in[at], in[at + step], in[at + 2u * step], in[at + 3u * step]);
                    store4(O_TYPE, to + (long)row * stride + (long)(c * bytes_of(O_TYPE)), aligned, value * factor);
                }
        }
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_lanes_backward(ATTUNE_KERNEL_PARAMETERS ATTUNE_BACKWARD_PARAMETERS ATTUNE_KERNEL_MODS)
{
#include "layout_lanes.h"
    ATTUNE_TABLES
    const outer_tile outer = outer_tile_of(&args, args.first + GROUP);
    const float prescale = PRESCALE ? args.scale : 1.0f, factor = PRESCALE ? 1.0f : args.scale;
    rows a[HEAD_DIM * VECTORS], a2[HEAD_DIM_V * VECTORS], p[BLOCK_N * VECTORS], ds[BLOCK_N * VECTORS];
    rows x[HEAD_DIM * VECTORS];
    rows slopes[SCORE ? BLOCK_N * VECTORS : 1u];
    load_outer(a, &outer,
               TENSOR_A + plane_of(&args.TENSOR_A, outer.b, outer.h) + (long)outer.row0 * args.TENSOR_A.stride_row,
               args.TENSOR_A.stride_row, HEAD_DIM, prescale);
    load_outer(a2, &outer,
               TENSOR_A2 + plane_of(&args.TENSOR_A2, outer.b, outer.h) + (long)outer.row0 * args.TENSOR_A2.stride_row,
               args.TENSOR_A2.stride_row, HEAD_DIM_V, 1.0f);
    for (uint j = 0u; j < HEAD_DIM * VECTORS; j++)
        x[j] = (rows)(0.0f);
#if KEYS
    rows y[HEAD_DIM_V * VECTORS];
    for (uint j = 0u; j < HEAD_DIM_V * VECTORS; j++)
        y[j] = (rows)(0.0f);
#else
    rows row_lse[VECTORS], row_delta[VECTORS];
    for (uint i = 0u; i < VECTORS; i++)
        for (uint w = 0u; w < WIDTH; w++) {
            const uint row = lanes_row(i, w), q_row = outer.row0 + row;
            const int valid = row < outer.rows;
            ((float *)row_lse)[i * WIDTH + w] = valid ? load_lse(lse, &args, outer.b, outer.h, q_row) : INFINITY;
            ((float *)row_delta)[i * WIDTH + w] = valid ? load_delta(workspace, &args, outer.b, outer.h, q_row) : 0.0f;
        }
#endif
#if CAPTURES
    rows raw[BLOCK_N * VECTORS];
    shared_reads shared;
    shared_reads_begin(&shared);
#endif
    inner_tiles next;
    next.plane = 0u;
    inner_tiles_begin(&next, &args, mask, &outer);
    inner_tile tile;
    tile.len = KEYS ? args.q_len : args.kv_len;
    while (inner_tiles_next(&next, &args, mask, &outer, tile.len)) {
        __global const uchar *const b = TENSOR_B + next.b_plane, *const b2 = TENSOR_B2 + next.b2_plane;
        tile.b = next.b;
        tile.h = next.h;
        tile.row0 = next.blocks.row0;
        tile.is_partial = MASK && next.blocks.kind != 0u;
        tile.masked = tile.is_partial || tile.row0 + BLOCK_N > tile.len;
        /* 2: load the inner tile; 3: S = Q K^T, and dP = dO V^T */
        multiply_rows(p, a, inner, b, args.TENSOR_B.stride_row, tile.row0, tile.len, HEAD_DIM);
        multiply_rows(ds, a2, inner, b2, args.TENSOR_B2.stride_row, tile.row0, tile.len, HEAD_DIM_V);
        for (uint j = 0u; j < BLOCK_N * VECTORS; j++) {
            p[j] *= factor;
#if CAPTURES
            raw[j] = p[j];
#endif
        }
        if (SCORE || tile.masked)
            apply_mods(p, slopes, &outer, &tile ATTUNE_MODS); /* 4: score and mask */
        for (uint n = 0u; n < BLOCK_N; n++) {                 /* 5: P and dS */
#if KEYS
            const uint at_q = min(tile.row0 + n, tile.len - 1u);
            const float of_lse = load_lse(lse, &args, tile.b, tile.h, at_q);
            const float of_delta = load_delta(workspace, &args, tile.b, tile.h, at_q);
#endif
            for (uint i = 0u; i < VECTORS; i++)
#if KEYS
                softmax_gradient(p + n * VECTORS + i, ds + n * VECTORS + i, (rows)(of_lse), (rows)(of_delta));
#else
                softmax_gradient(p + n * VECTORS + i, ds + n * VECTORS + i, row_lse[i], row_delta[i]);
#endif
        }
#if CAPTURES
        add_captures(raw, ds, &shared, workspace, &outer, &tile ATTUNE_MODS);
#endif
        if (SCORE)
            for (uint j = 0u; j < BLOCK_N * VECTORS; j++)
                ds[j] = select(ds[j] * slopes[j], (rows)(0.0f), (AS_INT(ds[j]) & 0x7fffffff) == 0);
#if KEYS
        accumulate(y, p, inner, b2, args.TENSOR_B2.stride_row, tile.row0, tile.len, HEAD_DIM_V); /* 6: dV */
#endif
        accumulate(x, ds, inner, b, args.TENSOR_B.stride_row, tile.row0, tile.len, HEAD_DIM); /* 6: dK, or dQ */
    }
    /* 7: store dK and dV, or dQ and capture gradients */
#if KEYS
    const uint outputs = ATTUNE_OPENCL_ALIGNED_D_K | ATTUNE_OPENCL_ALIGNED_D_V;
#else
    const uint outputs = ATTUNE_OPENCL_ALIGNED_D_Q;
#endif
    const int aligned = ALIGNED || (args.flags & outputs) == outputs;
    store_rows(x, &outer, D_X + plane_of(&args.D_X, outer.b, outer.h) + (long)outer.row0 * args.D_X.stride_row,
               args.D_X.stride_row, aligned, HEAD_DIM, args.scale);
#if KEYS
    store_rows(y, &outer, d_v + plane_of(&args.d_v, outer.b, outer.h) + (long)outer.row0 * args.d_v.stride_row,
               args.d_v.stride_row, aligned, HEAD_DIM_V, 1.0f);
#elif CAPTURES
    /* The launch without rows, by which a plan compiles, has no table of symbols: h / group would divide by 0. */
    if (outer.rows)
        shared_reads_end(&shared, workspace, outer.b, outer.h ATTUNE_MODS);
#endif
}
