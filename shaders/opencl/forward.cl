/* SPDX-License-Identifier: MIT */
/*
 * Forward attention and decode without matrix units: any device of OpenCL 1.2, or with SUBGROUPS those whose subgroups
 * shuffle, where the items of a row exchange its maximum and sum without local memory and a barrier. A workgroup
 * computes one tile of rows and loops over the tiles of keys that the mask lists. Operands stream through local memory
 * in slices; O stays in registers. The stages are numbered as in docs/algorithm.md.
 *
 * S = Q K^T is computed by a grid of TY x TX work-items, each with TM rows (ty + TY i) and TN groups of four columns
 * (4 (tx + TX g) + j); O likewise, with TO groups of four columns. Between the two, in stages 4 and 5, ROW_LANES
 * work-items share a row. In local memory key 4 x + j is row BLOCK_N / 4 j + x, so that neighbouring work-items read
 * neighbouring rows. Barriers are at the top level of uniform loops, and no work-item returns early.
 */
#include "key_tiles.h"
#include "layout.h"
#include "outputs.h"

/* In P, a forbidden pair: -0, a weight of 0 that no exponential results in. Set and compared as bits. */
#define FORBIDDEN 0x80000000u

#define SLICE_GROUPS (SLICE / 8u) /* of eight elements */
#define CHUNK_GROUPS (HEAD_DIM_V / 8u)
#define COLUMNS      (BLOCK_N / 4u) /* groups of four */

/* A work-item: its place in the grid, and in stages 4 and 5 its row and its place among the work-items of that. */
typedef struct work_item {
    uint id, tx, ty, row, row_lane;
    int has_scores, has_row;
} work_item;

/*
 * A group of 32 is 8 x 4, and of four neighbours two have the same tx and two the same ty. Then NVIDIA's shared memory
 * serves sixteen lanes at once; with 16 neighbours in a row it serves eight.
 */
ATTUNE_FUNCTION work_item work_item_of(uint id, uint rows)
{
    work_item w;
    w.id = id;
#if TX < 8 || TY < 4
    w.tx = id % TX;
    w.ty = id / TX;
#else
    uint group = id / 32u, lane = id % 32u, across = TX / 8u;
    w.tx = group % across * 8u + lane / 2u % 8u;
    w.ty = group / across * 4u + lane / 16u * 2u + lane % 2u;
#endif
    w.row = id / ROW_LANES;
    w.row_lane = id % ROW_LANES;
    w.has_scores = id < BLOCK_M * ROW_LANES;
    w.has_row = w.has_scores && w.row < rows;
    return w;
}

/*
 * While a slice or chunk is computed, the loads of the next one are in flight (load_*). It is stored to the other half
 * of `slices` after the arithmetic (write_*), so that one barrier for each step is enough.
 */

/* 1: load Q, a slice of it */
ATTUNE_FUNCTION void load_q(element_group *fetched, uint id, const attune_opencl_arguments *args,
                            const tile_coord *coord, __global const uchar *q_plane, int aligned, uint d0)
{
    UNROLL for (uint f = 0u; f < FETCH_Q; f++)
    {
        uint i = id + f * THREADS, r = i / SLICE_GROUPS;
        long at = (long)(row_head(coord, r) - coord->h0) * args->q.stride_h +
                  (long)row_query(coord, r) * args->q.stride_row;
        fetched[f] = fetch(Q_TYPE, q_plane + at + (d0 + i % SLICE_GROUPS * 8u) * bytes_of(Q_TYPE), aligned,
                           r < coord->rows);
    }
}

ATTUNE_FUNCTION void write_q(const element_group *fetched, uint id, float scale, __local float4 *to)
{
    UNROLL for (uint f = 0u; f < FETCH_Q; f++)
    {
        uint i = id + f * THREADS, r = i / SLICE_GROUPS, at = r * SLICE_STRIDE + i % SLICE_GROUPS * 2u;
        float4 low, high;
        widen(Q_TYPE, fetched[f], &low, &high);
        if (r < BLOCK_M) {
            to[at] = PRESCALE ? low * scale : low;
            to[at + 1u] = PRESCALE ? high * scale : high;
        }
    }
}

/* 2: load K, a slice of it */
ATTUNE_FUNCTION void load_k(element_group *fetched, uint id, __global const uchar *k_plane, long stride, int aligned,
                            uint kv0, uint kv_len, uint d0)
{
    UNROLL for (uint f = 0u; f < FETCH_K; f++)
    {
        uint i = id + f * THREADS, n = i / SLICE_GROUPS;
        fetched[FETCH_Q + f] = fetch(TYPE,
                                     k_row(k_plane, kv0 + n, stride) + (d0 + i % SLICE_GROUPS * 8u) * bytes_of(TYPE),
                                     aligned, n < BLOCK_N && kv0 + n < kv_len);
    }
}

ATTUNE_FUNCTION void write_k(const element_group *fetched, uint id, __local float4 *to)
{
    UNROLL for (uint f = 0u; f < FETCH_K; f++)
    {
        uint i = id + f * THREADS, n = i / SLICE_GROUPS;
        uint at = (BLOCK_M + n % 4u * COLUMNS + n / 4u) * SLICE_STRIDE + i % SLICE_GROUPS * 2u;
        float4 low, high;
        widen(TYPE, fetched[FETCH_Q + f], &low, &high);
        if (n < BLOCK_N) {
            to[at] = low;
            to[at + 1u] = high;
        }
    }
}

/* For stage 6, a chunk of V. */
ATTUNE_FUNCTION void load_v(element_group *fetched, uint id, __global const uchar *v_plane, long stride, int aligned,
                            uint kv0, uint kv_len)
{
    UNROLL for (uint f = 0u; f < FETCH_V; f++)
    {
        uint i = id + f * THREADS, n = i / CHUNK_GROUPS;
        fetched[f] = fetch(TYPE, v_row(v_plane, kv0 + n, stride) + i % CHUNK_GROUPS * 8u * bytes_of(TYPE), aligned,
                           n < CHUNK && kv0 + n < kv_len);
    }
}

ATTUNE_FUNCTION void write_v(const element_group *fetched, uint id, int masked, __local float4 *to,
                             __local uint *non_finite)
{
    UNROLL for (uint f = 0u; f < FETCH_V; f++)
    {
        uint i = id + f * THREADS, n = i / CHUNK_GROUPS, at = n * CHUNK_STRIDE + i % CHUNK_GROUPS * 2u;
        float4 low, high;
        widen(TYPE, fetched[f], &low, &high);
        if (masked && is_non_finite(fetched[f]))
            *non_finite = 1u;
        if (n < CHUNK) {
            to[at] = low;
            to[at + 1u] = high;
        }
    }
}

/* 3: S = Q K^T, a slice of the sum */
ATTUNE_FUNCTION void compute_s(float4 *acc, const work_item *w, __local const float4 *slice)
{
    if (w->ty < BLOCK_M) {
        __local const float4 *a_at = slice + w->ty * SLICE_STRIDE, *k_at = slice + (BLOCK_M + w->tx) * SLICE_STRIDE;
        UNROLL for (uint d = 0u; d < SLICE / 4u; d++)
        {
            float4 a[TM];
            UNROLL for (uint i = 0u; i < TM; i++) a[i] = a_at[i * TY * SLICE_STRIDE + d];
            UNROLL for (uint g = 0u; g < TN; g++)
            {
                __local const float4 *at = k_at + g * TX * SLICE_STRIDE + d;
                float4 k0 = at[0], k1 = at[COLUMNS * SLICE_STRIDE], k2 = at[2u * COLUMNS * SLICE_STRIDE],
                       k3 = at[3u * COLUMNS * SLICE_STRIDE];
                UNROLL for (uint i = 0u; i < TM; i++)
                {
                    float4 c = acc[i * TN + g];
                    c.x = FMA(a[i].x, k0.x, FMA(a[i].y, k0.y, FMA(a[i].z, k0.z, FMA(a[i].w, k0.w, c.x))));
                    c.y = FMA(a[i].x, k1.x, FMA(a[i].y, k1.y, FMA(a[i].z, k1.z, FMA(a[i].w, k1.w, c.y))));
                    c.z = FMA(a[i].x, k2.x, FMA(a[i].y, k2.y, FMA(a[i].z, k2.z, FMA(a[i].w, k2.w, c.z))));
                    c.w = FMA(a[i].x, k3.x, FMA(a[i].y, k3.y, FMA(a[i].z, k3.z, FMA(a[i].w, k3.w, c.w))));
                    acc[i * TN + g] = c;
                }
            }
        }
    }
}

/* S from the grid to the work-items of the rows. */
ATTUNE_FUNCTION void write_s(const float4 *acc, const work_item *w, float factor, __local float4 *s)
{
    if (w->ty < BLOCK_M)
        UNROLL for (uint i = 0u; i < TM; i++) UNROLL for (uint g = 0u; g < TN; g++)
            s[(w->ty + TY * i) * S_STRIDE + w->tx + TX * g] = acc[i * TN + g] * factor;
}

/* The scores of a work-item, and bits of the allowed pairs: ROW_GROUPS is at most 16. */
typedef struct score_row {
    float scores[4u * ROW_GROUPS];
    uint allowed[2];
} score_row;

ATTUNE_FUNCTION int is_allowed(const uint *allowed, uint e)
{
    return (allowed[e / 32u] >> e % 32u & 1u) != 0u;
}

/* The key of a score, relative to the tile's first. */
ATTUNE_FUNCTION uint column_of(uint row_lane, uint e)
{
    return 4u * (row_lane + e / 4u * ROW_LANES) + e % 4u;
}

/* 4: score and mask; a forbidden pair is LOWEST */
ATTUNE_FUNCTION void apply_mods(float *scores, uint *allowed, const work_item *w, const tile_coord *coord,
                                const key_tile *tile, uint kv_len, __local const float4 *s ATTUNE_MODS_PARAMETERS)
{
    const uint row_h = row_head(coord, w->row), row_q = row_query(coord, w->row);
    UNROLL for (uint e = 0u; e < ROW_GROUPS; e++)
    {
        float4 four = w->has_scores ? s[w->row * S_STRIDE + w->row_lane + e * ROW_LANES] : (float4)(0.0f);
        scores[4u * e] = four.x;
        scores[4u * e + 1u] = four.y;
        scores[4u * e + 2u] = four.z;
        scores[4u * e + 3u] = four.w;
    }
    allowed[0] = allowed[1] = 0xffffffffu;
    if (SCORE && w->has_row)
        UNROLL for (uint e = 0u; e < 4u * ROW_GROUPS; e++) scores[e] = attune_score(
            scores[e], coord->b, row_h, row_q, tile->kv0 + column_of(w->row_lane, e) ATTUNE_MODS);
    if (tile->masked) {
        /* A loop, so that the expression's code exists once. */
        if (tile->is_partial)
            for (uint e = 0u; e < 4u * ROW_GROUPS; e++) {
                uint bit = attune_mask(coord->b, row_h, row_q, tile->kv0 + column_of(w->row_lane, e) ATTUNE_MODS)
                               ? 0u
                               : 1u << e % 32u;
                allowed[0] &= ~(e < 32u ? bit : 0u);
                allowed[1] &= ~(e < 32u ? 0u : bit);
            }
        UNROLL for (uint e = 0u; e < 4u * ROW_GROUPS; e++)
        {
            int inside = w->has_row && tile->kv0 + column_of(w->row_lane, e) < kv_len;
            allowed[e / 32u] &= inside ? ~0u : ~(1u << e % 32u);
            scores[e] = is_allowed(allowed, e) ? scores[e] : LOWEST;
        }
    }
}

/* 5: online softmax: the rescale factor of the row, and P to local memory */
ATTUNE_FUNCTION float online_softmax(const float *scores, const uint *allowed, const work_item *w, int masked,
                                     float largest, float *m, float *l, __local float4 *s)
{
    float next = fmax(*m, largest), alpha = exp2((*m - next) * TO_LOG2);
    *m = next;
    *l *= alpha;
    UNROLL for (uint e = 0u; e < ROW_GROUPS; e++)
    {
        float p[4];
        UNROLL for (uint j = 0u; j < 4u; j++)
        {
            p[j] = exp2((scores[4u * e + j] - next) * TO_LOG2);
            int may = !masked || is_allowed(allowed, 4u * e + j);
            *l += may ? p[j] : 0.0f;
            p[j] = may ? p[j] : as_float(FORBIDDEN);
        }
        if (w->has_scores)
            s[w->row * S_STRIDE + w->row_lane + e * ROW_LANES] = (float4)(p[0], p[1], p[2], p[3]);
    }
    return alpha;
}

#ifdef SUBGROUPS
/* Over the work-items of a row, which are neighbours in a subgroup: all items of the workgroup call it. */
ATTUNE_FUNCTION float most_of_row(float x)
{
    UNROLL for (uint step = 1u; step < ROW_LANES; step *= 2u) x = fmax(x, sub_group_shuffle_xor(x, step));
    return x;
}

ATTUNE_FUNCTION float sum_of_row(float x)
{
    UNROLL for (uint step = 1u; step < ROW_LANES; step *= 2u) x += sub_group_shuffle_xor(x, step);
    return x;
}
#endif

ATTUNE_FUNCTION void rescale_o(float4 *sums, const work_item *w, __local const float *rows)
{
    if (w->ty < BLOCK_M)
        UNROLL for (uint i = 0u; i < TM; i++)
        {
            float alpha = rows[w->ty + TY * i];
            UNROLL for (uint t = 0u; t < TO; t++) sums[i * TO + t] *= alpha;
        }
}

ATTUNE_FUNCTION float4 multiply_add(float p, float4 v, float4 sum)
{
    return FMA((float4)(p), v, sum);
}

/* The column group of O that a work-item has; those past the last are not stored. */
ATTUNE_FUNCTION uint o_column(const work_item *w, uint t)
{
    return min(w->tx + TX * t, HEAD_DIM_V / 4u - 1u);
}

/* 6: O += P V, a chunk of keys from n0 on */
ATTUNE_FUNCTION void accumulate_o(float4 *sums, const work_item *w, int slow, uint n0, __local const float4 *chunk,
                                  __local const float4 *s)
{
    if (w->ty < BLOCK_M) {
        if (slow) {
            /* The non-finite slow path: weight by weight, since 0 times NaN is NaN where the pair is forbidden. In the
             * order of the other path, so that bits depend neither on hidden NaN nor on CHUNK, which is a program's
             * own. */
            for (uint k = 0u; k < CHUNK; k++)
                UNROLL for (uint i = 0u; i < TM; i++)
                {
                    const uint n = k ^ 3u;
                    float p = ((__local const float *)&s[(w->ty + TY * i) * S_STRIDE])[n0 + n];
                    UNROLL for (uint t = 0u; t < TO; t++)
                    {
                        float4 sum = sums[i * TO + t];
                        sums[i * TO + t] = as_uint(p) == FORBIDDEN
                                               ? sum
                                               : multiply_add(p, chunk[n * CHUNK_STRIDE + o_column(w, t)], sum);
                    }
                }
        } else
            UNROLL for (uint n = 0u; n < CHUNK; n += 4u)
            {
                float4 p[TM];
                UNROLL for (uint i = 0u; i < TM; i++) p[i] = s[(w->ty + TY * i) * S_STRIDE + (n0 + n) / 4u];
                UNROLL for (uint t = 0u; t < TO; t++)
                {
                    __local const float4 *at = chunk + n * CHUNK_STRIDE + o_column(w, t);
                    float4 v0 = at[0], v1 = at[CHUNK_STRIDE], v2 = at[2u * CHUNK_STRIDE], v3 = at[3u * CHUNK_STRIDE];
                    UNROLL for (uint i = 0u; i < TM; i++) sums[i * TO + t] = multiply_add(
                        p[i].x, v0,
                        multiply_add(p[i].y, v1, multiply_add(p[i].z, v2, multiply_add(p[i].w, v3, sums[i * TO + t]))));
                }
            }
    }
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_forward(ATTUNE_KERNEL_PARAMETERS ATTUNE_KERNEL_MODS)
{
#include "layout_forward.h"
    ATTUNE_TABLES
    const tile_coord coord = tile_coord_of(&args, args.first + GROUP);
    const work_item w = work_item_of((uint)get_local_id(0), coord.rows);
    const uint inputs = ATTUNE_OPENCL_ALIGNED_Q | ATTUNE_OPENCL_ALIGNED_K | ATTUNE_OPENCL_ALIGNED_V;
    const int aligned = ALIGNED || (args.flags & inputs) == inputs;
    const int o_aligned = ALIGNED || (args.flags & ATTUNE_OPENCL_ALIGNED_O) != 0u;
    __global const uchar *const q_plane = q + plane_of(&args.q, coord.b, coord.h0);
    __global const uchar *const k_plane = k + plane_of(&args.k, coord.b, coord.kv_h);
    __global const uchar *const v_plane = v + plane_of(&args.v, coord.b, coord.kv_h);
    const long k_stride = args.k.stride_row, v_stride = args.v.stride_row;
    const uint kv_len = args.kv_len;
    const float factor = (PRESCALE ? 1.0f : args.scale) * (SCORE ? 1.0f : LOG2E);
    uint side = 0u, chunk = 0u; /* offset of the half of slices in use; chunks of V so far */
    element_group fetched[FETCH];
    float4 sums[O_SIZE];
    float m = LOWEST, l = 0.0f;

    UNROLL for (uint i = 0u; i < O_SIZE; i++) sums[i] = (float4)(0.0f);
    block_iterator next = block_iterator_of_tile(&args, mask, &coord);
    int more = key_tiles_next(&next, &args, &coord ATTUNE_MODS);
    if (more) {
        load_q(fetched, w.id, &args, &coord, q_plane, aligned, 0u);
        load_k(fetched, w.id, k_plane, k_stride, aligned, next.row0, kv_len, 0u);
        write_q(fetched, w.id, args.scale, slices);
        write_k(fetched, w.id, slices);
    }
    if (w.id < 4u)
        non_finite[w.id] = 0u;
    if (THREADS < 4u)
        for (uint i = THREADS; i < 4u; i++)
            non_finite[i] = 0u;
    barrier(CLK_LOCAL_MEM_FENCE);
    while (more) {
        const key_tile tile = key_tile_of(&next, kv_len);
        more = key_tiles_next(&next, &args, &coord ATTUNE_MODS);

        /* 1, 2: load Q and K, a slice at a time; 3: S = Q K^T */
        float4 acc[ACC_SIZE];
        UNROLL for (uint i = 0u; i < ACC_SIZE; i++) acc[i] = (float4)(0.0f);
        for (uint d0 = 0u; d0 < HEAD_DIM; d0 += SLICE) {
            const int last = d0 + SLICE >= HEAD_DIM;
            if (last)
                load_v(fetched, w.id, v_plane, v_stride, aligned, tile.kv0, kv_len);
            else {
                load_q(fetched, w.id, &args, &coord, q_plane, aligned, d0 + SLICE);
                load_k(fetched, w.id, k_plane, k_stride, aligned, tile.kv0, kv_len, d0 + SLICE);
            }
            compute_s(acc, &w, slices + side);
            side = SLICE_SIZE - side;
            if (last) {
                write_v(fetched, w.id, tile.masked, slices + side, non_finite + (chunk & 3u));
                write_s(acc, &w, factor, s);
            } else {
                write_q(fetched, w.id, args.scale, slices + side);
                write_k(fetched, w.id, slices + side);
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }

        /* 4: score and mask; 5: online softmax */
        float scores[4u * ROW_GROUPS];
        uint allowed[2];
        apply_mods(scores, allowed, &w, &coord, &tile, kv_len, s ATTUNE_MODS);
        float largest = LOWEST;
        UNROLL for (uint e = 0u; e < 4u * ROW_GROUPS; e++) largest = fmax(largest, scores[e]);
#ifdef SUBGROUPS
        largest = most_of_row(largest);
#else
        if (w.has_scores)
            reduce[w.row_lane * BLOCK_M + w.row] = largest;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (w.has_scores)
            UNROLL for (uint i = 0u; i < ROW_LANES; i++) largest = fmax(largest, reduce[i * BLOCK_M + w.row]);
#endif
        const float alpha = online_softmax(scores, allowed, &w, tile.masked, largest, &m, &l, s);
        if (w.has_scores && w.row_lane == 0u)
            rows[w.row] = alpha;
        barrier(CLK_LOCAL_MEM_FENCE);

        /* 6: O += P V, a chunk of keys at a time */
        rescale_o(sums, &w, rows);
        for (uint n0 = 0u; n0 < BLOCK_N; n0 += CHUNK) {
            const int last = n0 + CHUNK >= BLOCK_N;
            if (!last)
                load_v(fetched, w.id, v_plane, v_stride, aligned, tile.kv0 + n0 + CHUNK, kv_len);
            else if (more) {
                load_q(fetched, w.id, &args, &coord, q_plane, aligned, 0u);
                load_k(fetched, w.id, k_plane, k_stride, aligned, next.row0, kv_len, 0u);
            }
            if (w.id == 0u)
                non_finite[(chunk + 2u) & 3u] = 0u;
            accumulate_o(sums, &w, tile.masked && non_finite[chunk & 3u] != 0u, n0, slices + side, s);
            side = SLICE_SIZE - side;
            chunk++;
            if (!last)
                write_v(fetched, w.id, tile.masked, slices + side, non_finite + (chunk & 3u));
            else if (more) {
                write_q(fetched, w.id, args.scale, slices + side);
                write_k(fetched, w.id, slices + side);
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }

    /* 7: store O and LSE, or the partial result of a split */
#ifdef SUBGROUPS
    l = sum_of_row(l);
#else
    if (w.has_scores)
        reduce[w.row_lane * BLOCK_M + w.row] = l;
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    if (w.has_row && w.row_lane == 0u) {
#ifndef SUBGROUPS
        l = 0.0f;
        UNROLL for (uint i = 0u; i < ROW_LANES; i++) l += reduce[i * BLOCK_M + w.row];
#endif
        const int split = args.splits > 1u, is_partial = split || (args.flags & ATTUNE_OPENCL_IS_PARTIAL) != 0u;
        const uint row_h = row_head(&coord, w.row);
        float top = m;
        const float2 sink = split ? (float2)(1.0f, 0.0f) : add_sink(&args, sinks, row_h, &top);
        const float sum = l * sink.x + sink.y;
        rows[w.row] = split ? 1.0f : is_zero(sum) ? is_partial ? 1.0f : ZERO_ROW : sink.x / sum;
        store_row_state(&args, &coord, workspace, lse, row_max, row_h, row_query(&coord, w.row), top, sum, m, l);
    }
    /* Through local memory, so that the code which narrows and stores exists once, not for each register. */
    UNROLL for (uint t = 0u; t < TO; t++)
    {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (w.ty < BLOCK_M)
            UNROLL for (uint i = 0u; i < TM; i++) s[(w.ty + TY * i) * S_STRIDE + w.tx] = sums[i * TO + t];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = w.id; i < coord.rows * TX; i += THREADS) {
            uint r = i / TX, column = 4u * (i % TX + TX * t);
            float4 value = rows[r] == ZERO_ROW ? (float4)(0.0f) : s[r * S_STRIDE + i % TX] * rows[r];
            if (column < HEAD_DIM_V)
                store_columns(&args, &coord, workspace, o, o_aligned, row_head(&coord, r), row_query(&coord, r), column,
                              value);
        }
    }
}
