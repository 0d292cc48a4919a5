/* SPDX-License-Identifier: MIT */
/*
 * Backward attention without subgroups and without matrix units. Two kernels from one text: a workgroup computes the
 * gradients of one outer tile and loops over the inner tiles that the mask lists. With KEYS the outer tile has keys,
 * the inner ones the queries of every head that reads them, and the results are dK and dV. Without, the outer tile has
 * queries, the inner ones keys, and the results are dQ and the capture gradients. Both kernels recompute P and dS, so
 * that each gradient is written by one workgroup alone and does not depend on the order of workgroups. The stages are
 * numbered as in docs/algorithm.md.
 *
 * With A, B the rows of q and k (KEYS: of k and q) and A2, B2 those of dO and v (v and dO), S = A B^T and dP = A2 B2^T
 * stay in registers of a grid of TY x TX work-items, each with TM rows (ty + TY i) and four columns (4 tx + j).
 * Weights then go through local memory: X += dS B and, with KEYS, Y += P B2, with TO groups of four columns (4 (tx +
 * TX t)) each. In local memory inner row 4 tx + j is row TX j + tx, so that neighbouring work-items read neighbouring
 * rows. Barriers are at the top level of uniform loops, and no work-item returns early.
 */
#include "backward_tiles.h"
#include "elements.h"
#include "gradient.h"
#include "layout.h"

#define SLICE_GROUPS (SLICE / 8u) /* of eight elements */

/* Loops over the pairs of a work-item. Code that adds to captures is long: it exists once. */
#if CAPTURES
#define EACH_PAIR
#else
#define EACH_PAIR UNROLL
#endif

/* A work-item: its place in the grid, the outer tile, and how inputs lie. */
typedef struct work_item {
    uint id, tx, ty, inner_len;
    int aligned;
    outer_tile outer;
} work_item;

/* An inner tile: its plane, first row and offsets; whether the mask's expression is evaluated. */
typedef struct inner_tile {
    uint b, h, row0;
    int is_partial;
    long b_plane, b2_plane;
} inner_tile;

/*
 * While a slice or chunk is computed, the loads of the next one are in flight (load_*). It is stored to the other half
 * of `slices` after the arithmetic (write_*), so that one barrier for each step is enough.
 */

/* 1, 2: load Q and K, or dO and V, a slice of them: of the outer rows from `a` on, of the inner ones from row0 on */
ATTUNE_FUNCTION void load_slice(element_group *fetched, const work_item *w, __global const uchar *a, long a_stride,
                                __global const uchar *b, long b_stride, uint row0, uint d0)
{
    UNROLL for (uint f = 0u; f < FETCH_A; f++)
    {
        const uint i = w->id + f * THREADS, r = i / SLICE_GROUPS;
        fetched[f] = fetch(TYPE, a + (long)r * a_stride + (d0 + i % SLICE_GROUPS * 8u) * bytes_of(TYPE), w->aligned,
                           r < w->outer.rows);
    }
    UNROLL for (uint f = 0u; f < FETCH_B; f++)
    {
        const uint i = w->id + f * THREADS, n = i / SLICE_GROUPS;
        fetched[FETCH_A + f] = fetch(TYPE,
                                     b + (long)(row0 + n) * b_stride + (d0 + i % SLICE_GROUPS * 8u) * bytes_of(TYPE),
                                     w->aligned, n < BLOCK_N && row0 + n < w->inner_len);
    }
}

ATTUNE_FUNCTION void write_slice(const element_group *fetched, const work_item *w, float factor_a, float factor_b,
                                 __local float4 *to)
{
    float4 low, high;
    UNROLL for (uint f = 0u; f < FETCH_A; f++)
    {
        const uint i = w->id + f * THREADS, r = i / SLICE_GROUPS, at = r * SLICE_STRIDE + i % SLICE_GROUPS * 2u;
        widen(TYPE, fetched[f], &low, &high);
        if (r < BLOCK_M) {
            to[at] = low * factor_a;
            to[at + 1u] = high * factor_a;
        }
    }
    UNROLL for (uint f = 0u; f < FETCH_B; f++)
    {
        const uint i = w->id + f * THREADS, n = i / SLICE_GROUPS;
        const uint at = (BLOCK_M + n % 4u * TX + n / 4u) * SLICE_STRIDE + i % SLICE_GROUPS * 2u;
        widen(TYPE, fetched[FETCH_A + f], &low, &high);
        if (n < BLOCK_N) {
            to[at] = low * factor_b;
            to[at + 1u] = high * factor_b;
        }
    }
}

/* 3: S = Q K^T, or dP = dO V^T, a slice of the sum */
ATTUNE_FUNCTION void multiply_slice(float4 *to, const work_item *w, __local const float4 *slice)
{
    if (w->ty < BLOCK_M) {
        __local const float4 *a_at = slice + w->ty * SLICE_STRIDE, *b_at = slice + (BLOCK_M + w->tx) * SLICE_STRIDE;
        UNROLL for (uint d = 0u; d < SLICE / 4u; d++)
        {
            const float4 b0 = b_at[d], b1 = b_at[TX * SLICE_STRIDE + d], b2 = b_at[2u * TX * SLICE_STRIDE + d],
                         b3 = b_at[3u * TX * SLICE_STRIDE + d];
            UNROLL for (uint i = 0u; i < TM; i++)
            {
                const float4 a = a_at[i * TY * SLICE_STRIDE + d];
                float4 c = to[i];
                c.x = FMA(a.x, b0.x, FMA(a.y, b0.y, FMA(a.z, b0.z, FMA(a.w, b0.w, c.x))));
                c.y = FMA(a.x, b1.x, FMA(a.y, b1.y, FMA(a.z, b1.z, FMA(a.w, b1.w, c.y))));
                c.z = FMA(a.x, b2.x, FMA(a.y, b2.y, FMA(a.z, b2.z, FMA(a.w, b2.w, c.z))));
                c.w = FMA(a.x, b3.x, FMA(a.y, b3.y, FMA(a.z, b3.z, FMA(a.w, b3.w, c.w))));
                to[i] = c;
            }
        }
    }
}

/* For stage 6, a chunk of inner rows from row0 on, each of `groups` groups; a work-item has `count` of them. */
ATTUNE_FUNCTION void load_chunk(element_group *fetched, const work_item *w, uint count, uint groups,
                                __global const uchar *b, long stride, uint row0)
{
    UNROLL for (uint f = 0u; f < count; f++)
    {
        const uint i = w->id + f * THREADS, n = i / groups;
        fetched[f] = fetch(TYPE, b + (long)(row0 + n) * stride + i % groups * 8u * bytes_of(TYPE), w->aligned,
                           n < CHUNK && row0 + n < w->inner_len);
    }
}

ATTUNE_FUNCTION void write_chunk(const element_group *fetched, const work_item *w, uint count, uint groups,
                                 uint row_size, __local float4 *to, __local uint *non_finite)
{
    UNROLL for (uint f = 0u; f < count; f++)
    {
        const uint i = w->id + f * THREADS, n = i / groups, at = n * row_size + i % groups * 2u;
        float4 low, high;
        widen(TYPE, fetched[f], &low, &high);
        if (is_non_finite(fetched[f]))
            *non_finite = 1u;
        if (n < CHUNK) {
            to[at] = low;
            to[at + 1u] = high;
        }
    }
}

/* The weights of a row for inner row n of the tile. */
ATTUNE_FUNCTION float weight_of(__local const float4 *s, uint row, uint n)
{
    return ((__local const float *)(s + row * S_STRIDE))[n];
}

/* 6: dV += P^T dO and dK += dS^T Q, or dQ += dS K, a chunk of inner rows from n0 on. The non-finite slow path skips
 * weights of 0, since 0 times NaN or infinity is NaN. */
ATTUNE_FUNCTION void multiply_chunk(float4 *to, const work_item *w, uint columns, uint row_size, uint size,
                                    int non_finite, uint n0, __local const float4 *chunk, __local const float4 *s)
{
    if (w->ty < BLOCK_M) {
        if (non_finite) {
            for (uint n = 0u; n < CHUNK; n++)
                UNROLL for (uint t = 0u; t < columns; t++)
                {
                    const float4 b = chunk[n * row_size + min(w->tx + TX * t, size / 4u - 1u)];
                    UNROLL for (uint i = 0u; i < TM; i++)
                    {
                        const float weight = weight_of(s, w->ty + TY * i, n0 + n);
                        const float4 with = FMA((float4)(weight), b, to[i * columns + t]);
                        to[i * columns + t] = is_zero(weight) ? to[i * columns + t] : with;
                    }
                }
        } else
            for (uint n = 0u; n < CHUNK; n += 4u) {
                float4 weights[TM];
                UNROLL for (uint i = 0u; i < TM; i++) weights[i] = s[(w->ty + TY * i) * S_STRIDE + (n0 + n) / 4u];
                UNROLL for (uint t = 0u; t < columns; t++)
                {
                    __local const float4 *at = chunk + n * row_size + min(w->tx + TX * t, size / 4u - 1u);
                    const float4 b0 = at[0], b1 = at[row_size], b2 = at[2u * row_size], b3 = at[3u * row_size];
                    UNROLL for (uint i = 0u; i < TM; i++)
                    {
                        float4 sum = to[i * columns + t];
                        sum = FMA((float4)(weights[i].w), b3, sum);
                        sum = FMA((float4)(weights[i].z), b2, sum);
                        sum = FMA((float4)(weights[i].y), b1, sum);
                        to[i * columns + t] = FMA((float4)(weights[i].x), b0, sum);
                    }
                }
            }
    }
}

ATTUNE_FUNCTION void write_weights(const float4 *from, const work_item *w, uint step, __local float4 *s)
{
    if (w->ty < BLOCK_M)
        UNROLL for (uint i = 0u; i < TM; i++) s[(w->ty + TY * i) * S_STRIDE + w->tx] = from[i * step];
}

/* The query and key of an outer and an inner row, either way round. */
#if KEYS
#define QUERY(outer_row, inner_row) (inner_row)
#define KEY(outer_row, inner_row)   (outer_row)
#else
#define QUERY(outer_row, inner_row) (outer_row)
#define KEY(outer_row, inner_row)   (inner_row)
#endif

/* 4: the pairs of a work-item that are allowed: bit 4 i + j, TM is at most 8 */
ATTUNE_FUNCTION uint apply_mask(const work_item *w, const inner_tile *tile ATTUNE_MODS_PARAMETERS)
{
    uint allowed = 0xffffffffu;
#if CAPTURES
    /* For rows past the end: an infinite LSE does not zero a NaN score, and capture gradients sum over all rows. */
    UNROLL for (uint i = 0u; i < TM; i++) allowed &= w->ty + TY * i < w->outer.rows ? ~0u : ~(15u << 4u * i);
#endif
    if (tile->row0 + BLOCK_N > w->inner_len)
        UNROLL for (uint j = 0u; j < 4u; j++)
            allowed &= tile->row0 + 4u * w->tx + j < w->inner_len ? ~0u : ~(0x11111111u << j);
    if (tile->is_partial && w->ty < BLOCK_M)
        /* A loop, so that the expression's code exists once. */
        for (uint e = 0u; e < 4u * TM; e++) {
            const uint outer_row = w->outer.row0 + w->ty + TY * (e / 4u), row = tile->row0 + 4u * w->tx + e % 4u;
            const int may = attune_mask(tile->b, tile->h, QUERY(outer_row, row), KEY(outer_row, row) ATTUNE_MODS);
            allowed &= may ? ~0u : ~(1u << e);
        }
    return allowed;
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_backward(ATTUNE_KERNEL_PARAMETERS ATTUNE_BACKWARD_PARAMETERS ATTUNE_KERNEL_MODS)
{
#include "layout_backward.h"
    ATTUNE_TABLES
    const uint inputs = ATTUNE_OPENCL_ALIGNED_Q | ATTUNE_OPENCL_ALIGNED_K | ATTUNE_OPENCL_ALIGNED_V |
                        ATTUNE_OPENCL_ALIGNED_D_O;
    work_item w;
    w.id = (uint)get_local_id(0);
    w.tx = w.id % TX;
    w.ty = w.id / TX;
    w.inner_len = KEYS ? args.q_len : args.kv_len;
    w.aligned = ALIGNED || (args.flags & inputs) == inputs;
    w.outer = outer_tile_of(&args, args.first + GROUP);
    __global const uchar *const a = TENSOR_A + plane_of(&args.TENSOR_A, w.outer.b, w.outer.h) +
                                    (long)w.outer.row0 * args.TENSOR_A.stride_row;
    __global const uchar *const a2 = TENSOR_A2 + plane_of(&args.TENSOR_A2, w.outer.b, w.outer.h) +
                                     (long)w.outer.row0 * args.TENSOR_A2.stride_row;
    const long a_stride = args.TENSOR_A.stride_row, a2_stride = args.TENSOR_A2.stride_row;
    const long b_stride = args.TENSOR_B.stride_row, b2_stride = args.TENSOR_B2.stride_row;
    const float prescale = PRESCALE ? args.scale : 1.0f, factor = PRESCALE ? 1.0f : args.scale;
    const float factor_a = KEYS ? 1.0f : prescale, factor_b = KEYS ? prescale : 1.0f;
    uint side = 0u, chunk = 0u; /* offset of the half of slices in use; chunks so far */
    element_group fetched[FETCH];
    float4 p[TM], ds[TM]; /* S, then P; dP, then dS */
    float4 x[X_SIZE];     /* dK or dQ */
    UNROLL for (uint i = 0u; i < X_SIZE; i++) x[i] = (float4)(0.0f);
#if KEYS
    float4 y[Y_SIZE]; /* dV */
    UNROLL for (uint i = 0u; i < Y_SIZE; i++) y[i] = (float4)(0.0f);
#else
    /* Rows past the end get weights of 0. */
    float row_lse[TM], row_delta[TM];
    UNROLL for (uint i = 0u; i < TM; i++)
    {
        const uint r = w.ty + TY * i;
        const int valid = r < w.outer.rows;
        row_lse[i] = valid ? load_lse(lse, &args, w.outer.b, w.outer.h, w.outer.row0 + r) : INFINITY;
        row_delta[i] = valid ? load_delta(workspace, &args, w.outer.b, w.outer.h, w.outer.row0 + r) : 0.0f;
    }
#if CAPTURES
    shared_reads shared;
    shared_reads_begin(&shared);
#endif
#endif

    inner_tiles next;
    next.plane = 0u;
    inner_tiles_begin(&next, &args, mask, &w.outer);
    int more = inner_tiles_next(&next, &args, mask, &w.outer, w.inner_len);
    if (more) {
        load_slice(fetched, &w, a, a_stride, TENSOR_B + next.b_plane, b_stride, next.blocks.row0, 0u);
        write_slice(fetched, &w, factor_a, factor_b, slices);
    }
    for (uint i = w.id; i < 4u; i += THREADS)
        non_finite[i] = 0u;
    barrier(CLK_LOCAL_MEM_FENCE);
    while (more) {
        inner_tile tile;
        tile.b = next.b;
        tile.h = next.h;
        tile.row0 = next.blocks.row0;
        tile.is_partial = MASK && next.blocks.kind != 0u;
        tile.b_plane = next.b_plane;
        tile.b2_plane = next.b2_plane;
        more = inner_tiles_next(&next, &args, mask, &w.outer, w.inner_len);

        /* 1, 2: load Q and K, a slice at a time; 3: S = Q K^T */
        UNROLL for (uint i = 0u; i < TM; i++) p[i] = ds[i] = (float4)(0.0f);
        for (uint d0 = 0u; d0 < HEAD_DIM; d0 += SLICE) {
            const int last = d0 + SLICE >= HEAD_DIM;
            if (!last)
                load_slice(fetched, &w, a, a_stride, TENSOR_B + tile.b_plane, b_stride, tile.row0, d0 + SLICE);
            else
                load_slice(fetched, &w, a2, a2_stride, TENSOR_B2 + tile.b2_plane, b2_stride, tile.row0, 0u);
            multiply_slice(p, &w, slices + side);
            side = SLICE_SIZE - side;
            write_slice(fetched, &w, last ? 1.0f : factor_a, last ? 1.0f : factor_b, slices + side);
            barrier(CLK_LOCAL_MEM_FENCE);
        }

        /* 3, of the backward pass: dP = dO V^T */
        for (uint d0 = 0u; d0 < HEAD_DIM_V; d0 += SLICE) {
            const int last = d0 + SLICE >= HEAD_DIM_V;
            if (!last)
                load_slice(fetched, &w, a2, a2_stride, TENSOR_B2 + tile.b2_plane, b2_stride, tile.row0, d0 + SLICE);
            else if (KEYS)
                load_chunk(fetched, &w, FETCH_Y, HEAD_DIM_V / 8u, TENSOR_B2 + tile.b2_plane, b2_stride, tile.row0);
            else
                load_chunk(fetched, &w, FETCH_X, HEAD_DIM / 8u, TENSOR_B + tile.b_plane, b_stride, tile.row0);
            multiply_slice(ds, &w, slices + side);
            side = SLICE_SIZE - side;
            if (!last)
                write_slice(fetched, &w, 1.0f, 1.0f, slices + side);
            else if (KEYS)
                write_chunk(fetched, &w, FETCH_Y, HEAD_DIM_V / 8u, Y_STRIDE, slices + side, non_finite + (chunk & 3u));
            else
                write_chunk(fetched, &w, FETCH_X, HEAD_DIM / 8u, X_STRIDE, slices + side, non_finite + (chunk & 3u));
            barrier(CLK_LOCAL_MEM_FENCE);
        }

        /* 4: score and mask; 5: P, and dS with respect to scale q k */
        const uint allowed = apply_mask(&w, &tile ATTUNE_MODS);
#if KEYS
        float column_lse[4], column_delta[4];
        UNROLL for (uint j = 0u; j < 4u; j++)
        {
            const uint at = min(tile.row0 + 4u * w.tx + j, w.inner_len - 1u);
            column_lse[j] = load_lse(lse, &args, tile.b, tile.h, at);
            column_delta[j] = load_delta(workspace, &args, tile.b, tile.h, at);
        }
#define LSE(i, j)   column_lse[j]
#define DELTA(i, j) column_delta[j]
#else
#define LSE(i, j)   row_lse[i]
#define DELTA(i, j) row_delta[i]
#endif
        float weights[4u * TM], slopes[4u * TM];
        UNROLL for (uint i = 0u; i < TM; i++)
        {
            vstore4(p[i] * factor, i, weights);
            vstore4(ds[i], i, slopes);
        }
        if (w.ty < BLOCK_M)
            EACH_PAIR for (uint e = 0u; e < 4u * TM; e++)
            {
                const uint i = e / 4u, j = e % 4u;
                const uint outer_row = w.outer.row0 + w.ty + TY * i, row = tile.row0 + 4u * w.tx + j;
                const uint at_q = QUERY(outer_row, row), kv = KEY(outer_row, row);
                const float raw = weights[e];
                const float value = attune_score(raw, tile.b, tile.h, at_q, kv ATTUNE_MODS);
                const float weight = (allowed >> e & 1u) != 0u ? exp2((value - LSE(i, j)) * LOG2E) : 0.0f;
                const float d = is_zero(weight) ? 0.0f : weight * (slopes[e] - DELTA(i, j));
                weights[e] = weight;
                slopes[e] = is_zero(d) ? 0.0f : d * attune_slope(raw, tile.b, tile.h, at_q, kv ATTUNE_MODS);
#if CAPTURES
                if (!is_zero(d))
                    attune_add_reads(d, &shared, workspace, raw, tile.b, tile.h, at_q, kv ATTUNE_MODS);
#endif
            }
        UNROLL for (uint i = 0u; i < TM; i++)
        {
            p[i] = vload4(i, weights);
            ds[i] = vload4(i, slopes);
        }

        /* 6: dV += P^T dO and dK += dS^T Q, or dQ += dS K, a chunk of inner rows at a time */
#if KEYS
        write_weights(p, &w, 1u, s);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint n0 = 0u; n0 < BLOCK_N; n0 += CHUNK) {
            const int last = n0 + CHUNK >= BLOCK_N;
            if (!last)
                load_chunk(fetched, &w, FETCH_Y, HEAD_DIM_V / 8u, TENSOR_B2 + tile.b2_plane, b2_stride,
                           tile.row0 + n0 + CHUNK);
            else
                load_chunk(fetched, &w, FETCH_X, HEAD_DIM / 8u, TENSOR_B + tile.b_plane, b_stride, tile.row0);
            if (w.id == 0u)
                non_finite[(chunk + 2u) & 3u] = 0u;
            multiply_chunk(y, &w, TO_V, Y_STRIDE, HEAD_DIM_V, non_finite[chunk & 3u] != 0u, n0, slices + side, s);
            side = SLICE_SIZE - side;
            chunk++;
            if (!last)
                write_chunk(fetched, &w, FETCH_Y, HEAD_DIM_V / 8u, Y_STRIDE, slices + side, non_finite + (chunk & 3u));
            else
                write_chunk(fetched, &w, FETCH_X, HEAD_DIM / 8u, X_STRIDE, slices + side, non_finite + (chunk & 3u));
            barrier(CLK_LOCAL_MEM_FENCE);
        }
#endif
        write_weights(ds, &w, 1u, s);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint n0 = 0u; n0 < BLOCK_N; n0 += CHUNK) {
            const int last = n0 + CHUNK >= BLOCK_N;
            if (!last)
                load_chunk(fetched, &w, FETCH_X, HEAD_DIM / 8u, TENSOR_B + tile.b_plane, b_stride,
                           tile.row0 + n0 + CHUNK);
            else if (more)
                load_slice(fetched, &w, a, a_stride, TENSOR_B + next.b_plane, b_stride, next.blocks.row0, 0u);
            if (w.id == 0u)
                non_finite[(chunk + 2u) & 3u] = 0u;
            multiply_chunk(x, &w, TO, X_STRIDE, HEAD_DIM, non_finite[chunk & 3u] != 0u, n0, slices + side, s);
            side = SLICE_SIZE - side;
            chunk++;
            if (!last)
                write_chunk(fetched, &w, FETCH_X, HEAD_DIM / 8u, X_STRIDE, slices + side, non_finite + (chunk & 3u));
            else if (more)
                write_slice(fetched, &w, factor_a, factor_b, slices + side);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }

    /* 7: store dK and dV, or dQ and capture gradients. Through local memory, so that the code which narrows and stores
     * exists once, not for each register. */
#if KEYS
    const uint outputs = ATTUNE_OPENCL_ALIGNED_D_K | ATTUNE_OPENCL_ALIGNED_D_V;
#define D_X d_k
#else
    const uint outputs = ATTUNE_OPENCL_ALIGNED_D_Q;
#define D_X d_q
#endif
    const int out_aligned = ALIGNED || (args.flags & outputs) == outputs;
    __global uchar *const x_rows = D_X + plane_of(&args.D_X, w.outer.b, w.outer.h) +
                                   (long)w.outer.row0 * args.D_X.stride_row;
    UNROLL for (uint t = 0u; t < TO; t++)
    {
        barrier(CLK_LOCAL_MEM_FENCE);
        write_weights(x + t, &w, TO, s);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = w.id; i < w.outer.rows * TX; i += THREADS) {
            const uint r = i / TX, column = 4u * (i % TX + TX * t);
            if (column < HEAD_DIM)
                store4(O_TYPE, x_rows + (long)r * args.D_X.stride_row + column * bytes_of(O_TYPE), out_aligned,
                       s[r * S_STRIDE + i % TX] * args.scale);
        }
    }
#if KEYS
    __global uchar *const y_rows = d_v + plane_of(&args.d_v, w.outer.b, w.outer.h) +
                                   (long)w.outer.row0 * args.d_v.stride_row;
    UNROLL for (uint t = 0u; t < TO_V; t++)
    {
        barrier(CLK_LOCAL_MEM_FENCE);
        write_weights(y + t, &w, TO_V, s);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = w.id; i < w.outer.rows * TX; i += THREADS) {
            const uint r = i / TX, column = 4u * (i % TX + TX * t);
            if (column < HEAD_DIM_V)
                store4(O_TYPE, y_rows + (long)r * args.d_v.stride_row + column * bytes_of(O_TYPE), out_aligned,
                       s[r * S_STRIDE + i % TX]);
        }
    }
#elif CAPTURES
    /* The launch without rows, by which a plan compiles, has no table of symbols: h / group would divide by 0. */
    if (w.outer.rows)
        shared_reads_end(&shared, workspace, w.outer.b, w.outer.h ATTUNE_MODS);
#endif
}
