/* SPDX-License-Identifier: MIT */
/*
 * Forward attention over a cache, for any device. A lane has whole rows (lanes.h): those of a vector in a workgroup of
 * one item, or those of its items. The keys of a tile are converted to floats in local memory, so that one text has
 * every type; items meet at barriers only where there are several. The stages are numbered as in docs/algorithm.md.
 */
#define TYPE F32 /* of the tile in local memory */
#include "lanes.h"
#include "layout.h"
#include "outputs.h"
#include "serving_items.h"
#include "serving_mods.h"

/* The weight of a forbidden pair is -0: in a product it is 0, and its bits tell it from a weight that underflows. */
#define FORBIDDEN 0x80000000u

#if SHARES
/* Finds the queries of a tile that has those of its sequence and of the `count` - 1 after it, or those of its sequence
 * from q0 on. Returns their number. */
ATTUNE_FUNCTION uint gather_queries(__local uint4 *members, __local uint2 *queries, const attune_opencl_arguments *args,
                                    const tile_coord *coord, const sequence *s, uint count,
                                    __global const uchar *q_start, __global const uchar *kv_lens,
                                    __global const uchar *live, __global const uchar *pages,
                                    __global const uchar *pages_start)
{
    const uint id = (uint)get_local_id(0), alone = count < 2u, room = min(args->q_step, BLOCK_M);
    for (uint j = id; j < min(count, args->batch - min(args->batch, s->b)); j += THREADS) {
        sequence of = *s;
        of.b = s->b + j;
        begin_rows(&of, args->q_len, q_start, live);
        begin_table(&of, pages, pages_start);
        begin_length(&of, args->kv_len, kv_lens);
        members[j] = (uint4)(of.q_len, of.kv_len, of.token0, 0u);
    }
    MEET();
    uint end = 0u;
    for (uint j = 0u; j < min(count, args->batch - min(args->batch, s->b)); j++) {
        const uint first = end, of = alone ? coord->queries : members[j].x;
        end = min(first + min(of, room), room);
        for (uint i = first + id; i < end; i += THREADS)
            queries[i] = (uint2)(j, (alone ? coord->q0 : 0u) + i - first);
    }
    MEET();
    return end;
}
#endif

/* 1: load Q */
ATTUNE_FUNCTION void load_q(rows *to, const attune_opencl_arguments *args, const tile_coord *coord, const sequence *s,
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
                uint row_q;
                const sequence of = sequence_of_row(s, coord, row, &row_q);
                __global const uchar *from = q + plane_of(&args->q, of.batch, row_head(coord, row)) +
                                             (long)(of.row0 + row_q) * args->q.stride_row;
                for (uint c = 0u; c < HEAD_DIM; c++)
                    out[(c * VECTORS + i) * WIDTH + w] = load_element(Q_TYPE, from + (long)(c * bytes_of(Q_TYPE))) *
                                                         factor;
            }
        }
}

/* Where the keys of a tile are; *absent becomes 1 if one is nowhere. */
ATTUNE_FUNCTION void find_keys(__local uint2 *keys, __local uint *absent, const sequence *s, uint kv0)
{
    for (uint n = (uint)get_local_id(0); n < BLOCK_N; n += THREADS) {
        const uint2 key = key_of(s, kv0 + n);
        keys[n] = key;
        if (key.x == NO_PAGE)
            *absent = 1u;
    }
}

/* 2: load K, or V; keys that are nowhere are 0 */
ATTUNE_FUNCTION void stage(__local float *tile, __local const uint2 *keys, uint type, __global const uchar *memory,
                           const attune_opencl_tensor *t, const sequence *s, __global const uchar *scale,
                           __global const attune_opencl_array *a, uint has, uint size)
{
    for (uint n = 0u; n < BLOCK_N; n++) {
        const int there = keys[n].x != NO_PAGE;
        const uint2 key = there ? keys[n] : (uint2)(0u);
        __global const uchar *from = memory + plane_of(t, key.x, s->kv_h) + (long)key.y * t->stride_row;
        const float factor = type > BF16 ? factor_of(s, scale, a, has, key) : 1.0f;
        for (uint c = 8u * (uint)get_local_id(0); c < size; c += 8u * THREADS) {
            const float8 values = load_row8(type, from, c, factor);
            vstore8(there ? values : (float8)(0.0f), 0, tile + n * size + c);
        }
    }
}

/* 4: score and mask; a forbidden pair is LOWEST */
ATTUNE_FUNCTION void apply_mods(rows *s, float factor, const tile_coord *coord, const sequence *seq,
                                __local const uint2 *keys, __global const uchar *tree, uint kv0, int masked,
                                int partial ATTUNE_MODS_PARAMETERS)
{
    float *pairs = (float *)s;
    const int drafts = sees_some(seq, kv0 + BLOCK_N);
    for (uint j = 0u; j < BLOCK_N * VECTORS; j++)
        s[j] *= factor;
    if (!SCORE && !masked)
        return;
    for (uint n = 0u; n < BLOCK_N; n++)
        for (uint i = 0u; i < VECTORS; i++)
            for (uint w = 0u; w < WIDTH; w++) {
                const uint row = lanes_row(i, w), kv = kv0 + n, at = (n * VECTORS + i) * WIDTH + w;
                const uint row_h = row_head(coord, row);
                uint row_q;
                const sequence of = sequence_of_row(seq, coord, row, &row_q);
                int may = row < coord->rows && keys[n].x != NO_PAGE;
                float x = pairs[at];
                if (SCORE && may)
                    x = attune_score(x, &of, row_h, row_q, kv ATTUNE_MODS);
                if (partial && may)
                    may = attune_mask(&of, row_h, row_q, kv ATTUNE_MODS);
                if (drafts && may)
                    may = sees_draft(&of, tree, row_q, kv);
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

/* Whether the tile has NaN or infinity. */
ATTUNE_FUNCTION int has_non_finite(__local const float *tile, uint size)
{
    int found = 0;
    for (uint c = 0u; c < BLOCK_N * size; c += 8u)
        found |= any((as_int8(vload8(0, tile + c)) & 0x7f800000) == (int8)(0x7f800000));
    return found;
}

/* As multiply_weights, without forbidden pairs: 0 times NaN is NaN. */
ATTUNE_FUNCTION void multiply_weights_slow(rows *restrict to, const rows *restrict weights, const rows *restrict factor,
                                           __local const float *tile, uint size)
{
    for (uint c = 0u; c < size; c++)
        for (uint i = 0u; i < VECTORS; i++) {
            rows sum = to[c * VECTORS + i] * factor[i];
            for (uint n = 0u; n < BLOCK_N; n++) {
                const rows weight = weights[n * VECTORS + i];
                sum = select(FMA(weight, (rows)(tile[n * size + c]), sum), sum,
                             AS_INT(weight) == (rows_int)((int)FORBIDDEN));
            }
            to[c * VECTORS + i] = sum;
        }
}

#if FOLDS
/* The end of a part of the keys in an item that has all of them: as attune_serving_combine folds parts of many items.
 * `sum` has those before. */
ATTUNE_FUNCTION void fold_part(rows *sum, rows *sum_m, rows *sum_l, rows *o, rows *m, rows *l, int has_sums)
{
    for (uint i = 0u; i < VECTORS; i++) {
        const rows top = fmax(sum_m[i], m[i]);
        const rows before = exp2_rows((sum_m[i] - top) * TO_LOG2), own = exp2_rows((m[i] - top) * TO_LOG2);
        sum_m[i] = has_sums ? top : m[i];
        sum_l[i] = has_sums ? FMA(l[i], own, sum_l[i] * before) : l[i];
        for (uint c = 0u; c < HEAD_DIM_V; c++) {
            const rows part = o[c * VECTORS + i];
            sum[c * VECTORS + i] = has_sums ? FMA(part, own, sum[c * VECTORS + i] * before) : part;
            o[c * VECTORS + i] = (rows)(0.0f);
        }
        m[i] = (rows)(LOWEST);
        l[i] = (rows)(0.0f);
    }
}
#endif

/* 7: the partial result of a part of the keys */
ATTUNE_FUNCTION void store_partial(const rows *from, const rows *m, const rows *l, const attune_opencl_arguments *args,
                                   const tile_coord *coord, uint slot, __global uchar *workspace)
{
    const float *out = (const float *)from, *most = (const float *)m, *sums = (const float *)l;
    for (uint i = 0u; i < VECTORS; i++)
        for (uint w = 0u; w < WIDTH; w++) {
            const uint row = lanes_row(i, w);
            if (row < coord->rows) {
                const ulong at = (ulong)slot * BLOCK_M + partial_row(coord, row);
                __global float *ml = (__global float *)(workspace + args->partials_ml) + 2ul * at;
                __global float *to = (__global float *)(workspace + args->partials) + at * HEAD_DIM_V;
                ml[0] = most[i * WIDTH + w];
                ml[1] = sums[i * WIDTH + w];
                for (uint c = 0u; c < HEAD_DIM_V; c++)
                    to[c] = out[(c * VECTORS + i) * WIDTH + w];
            }
        }
}

/* 7: store O and LSE */
ATTUNE_FUNCTION void store_o(const rows *from, const rows *m, const rows *l, const attune_opencl_arguments *args,
                             const tile_coord *coord, const sequence *s, __global uchar *o, __global uchar *lse,
                             __global uchar *row_max, __global const uchar *sinks, __global uchar *workspace)
{
    const float *out = (const float *)from, *most = (const float *)m, *sums = (const float *)l;
    const int aligned = ALIGNED || (args->flags & ATTUNE_OPENCL_ALIGNED_O) != 0u;
    tile_coord at = *coord;
    at.b = s->batch;
    for (uint i = 0u; i < VECTORS; i++)
        for (uint w = 0u; w < WIDTH; w++) {
            const uint row = lanes_row(i, w);
            if (row < coord->rows) {
                const uint row_h = row_head(coord, row), row_q = s->row0 + row_query(coord, row);
                const float largest = most[i * WIDTH + w], l_row = sums[i * WIDTH + w];
                float top = largest;
                const float2 sink = add_sink(args, sinks, row_h, &top);
                const float sum = l_row * sink.x + sink.y;
                const float scale = sink.x / sum;
                store_row_state(args, &at, workspace, lse, row_max, row_h, row_q, top, sum, largest, l_row);
                for (uint c = 0u; c < HEAD_DIM_V; c += 4u) {
                    const uint first = (c * VECTORS + i) * WIDTH + w, step = VECTORS * WIDTH;
                    float4 value = (float4)(out[first], out[first + step], out[first + 2u * step],
                                            out[first + 3u * step]);
                    value = is_zero(sum) ? (float4)(0.0f) : value * scale;
                    store_columns(args, &at, workspace, o, aligned, row_h, row_q, c, value);
                }
            }
        }
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_serving(ATTUNE_KERNEL_PARAMETERS ATTUNE_SERVING_PARAMETERS ATTUNE_KERNEL_MODS)
{
#include "layout_lanes.h"
#include "layout_serving.h"
#if SHARES
#include "layout_members.h"
#endif
    rows a[HEAD_DIM * VECTORS], s[BLOCK_N * VECTORS], sum[HEAD_DIM_V * VECTORS];
    rows m[VECTORS], l[VECTORS], factor[VECTORS];
#if FOLDS
    rows total[HEAD_DIM_V * VECTORS], total_m[VECTORS], total_l[VECTORS];
    int has_sums = 0;
#endif
    const uint id = (uint)get_local_id(0);
    sequence seq;
    __global const attune_opencl_serving *serving = (__global const attune_opencl_serving *)(workspace + args.serving);
    seq.of = &serving->cache;
    const work_item item = work_item_of(&args, &serving->parts, schedule, args.first + GROUP);
    tile_coord coord = tile_coord_of(&args, item.tile);
    seq.b = coord.b;
    seq.kv_h = coord.kv_h;
    begin_rows(&seq, args.q_len, q_start, count);
    begin_table(&seq, pages, pages_start);
    begin_length(&seq, args.kv_len, kv_lens);
    begin_first(&seq, kv_first);
    coord.queries = coord.q0 < seq.q_len ? min(args.q_step, seq.q_len - coord.q0) : 0u;
#if SHARES
    seq.members = members;
    seq.queries = queries;
    coord.queries = gather_queries(members, queries, &args, &coord, &seq, item.members, q_start, kv_lens, count, pages,
                                   pages_start);
#endif
    coord.rows = item.is_there ? coord.heads * coord.queries : 0u;
    const float s_factor = (PRESCALE ? 1.0f : args.scale) * (SCORE ? 1.0f : LOG2E);
    for (uint i = 0u; i < VECTORS; i++) {
        m[i] = (rows)(LOWEST);
        l[i] = (rows)(0.0f);
    }
    for (uint j = 0u; j < HEAD_DIM_V * VECTORS; j++)
        sum[j] = (rows)(0.0f);
    load_q(a, &args, &coord, &seq, q); /* 1 */
    if (id == 0u)
        absent[0] = absent[1] = 0u;
    MEET();
    /* The tiles of a sequence begin at multiples of BLOCK_N of its keys. */
    const uint end = coord.rows ? min(seq.kv_len, item.end_key) : 0u;
    uint parity = 0u;
    int partial;
    uint kv0 = max(seq.kv_first, item.first_key) / BLOCK_N * BLOCK_N;
    kv0 = next_tile(kv0, end, &partial, &coord, &seq ATTUNE_MODS);
    while (kv0 < end) {
        find_keys(keys, absent + parity, &seq, kv0);
        MEET();
        const int masked = partial || absent[parity] != 0u || sees_some(&seq, kv0 + BLOCK_N);
        parity ^= 1u;
        if (id == 0u)
            absent[parity] = 0u;
        stage(inner, keys, K_TYPE, k, &args.k, &seq, k_scale, &seq.of->k_scale, ATTUNE_OPENCL_HAS_K_SCALE, HEAD_DIM);
        MEET();
        multiply_rows(s, a, inner, HEAD_DIM);                                                /* 3: S = Q K^T */
        apply_mods(s, s_factor, &coord, &seq, keys, tree, kv0, masked, partial ATTUNE_MODS); /* 4 */
        online_softmax(s, m, l, factor, masked);                                             /* 5 */
        MEET();
        stage(inner, keys, V_TYPE, v, &args.v, &seq, v_scale, &seq.of->v_scale, ATTUNE_OPENCL_HAS_V_SCALE, HEAD_DIM_V);
        MEET();
        /* 6: O += P V */
        if (masked && has_non_finite(inner, HEAD_DIM_V))
            multiply_weights_slow(sum, s, factor, inner, HEAD_DIM_V);
        else
            multiply_weights(sum, s, factor, inner, HEAD_DIM_V);
        const uint next = next_tile(kv0 + BLOCK_N, end, &partial, &coord, &seq ATTUNE_MODS);
#if FOLDS
        if (item.slot == ATTUNE_OPENCL_NO_SLOT && (next >= end || next / FOLDS != kv0 / FOLDS)) {
            fold_part(total, total_m, total_l, sum, m, l, has_sums);
            has_sums = 1;
        }
#endif
        kv0 = next;
    }
    if (item.slot != ATTUNE_OPENCL_NO_SLOT)
        store_partial(sum, m, l, &args, &coord, item.slot, workspace); /* 7 */
#if FOLDS
    else if (has_sums)
        store_o(total, total_m, total_l, &args, &coord, &seq, o, lse, row_max, sinks, workspace); /* 7 */
#endif
    else
        store_o(sum, m, l, &args, &coord, &seq, o, lse, row_max, sinks, workspace); /* 7 */
}

#include "serving_combine.h"
