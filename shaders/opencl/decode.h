/* SPDX-License-Identifier: MIT */
/*
 * Forward attention of few rows over many keys, without subgroups: decode, and calls over a cache of one or a few
 * queries a sequence. A workgroup has up to BLOCK_M rows, of the query heads that share keys, and the keys of a part.
 * A team of KEY_LANES neighbouring items has KEYS keys of a tile; each of its items loads 16 bytes of their rows, so
 * that neighbours read whole rows, and has the same columns of Q and O. The teams' sums are added at the end.
 *
 * An item's shares of the dot products go through local memory to the items that add them, one for each pair, and
 * compute score and mask; the scores go back to all items of the team, which keep the rows' maxima and sums of their
 * own keys and compute the same weights. So a tile has two barriers, for any number of keys. Loads have no condition
 * and are in flight over them: those of V from the beginning of the tile, and those of the next tile's K from the first
 * barrier on. Where the keys of a tile are was found a tile ahead, by one item for each key. The stages are numbered as
 * in docs/algorithm.md.
 *
 * Barriers are at the top level of uniform loops, and no item returns early. Who includes this has included the tiles
 * of keys and the expressions: decode.cl those of dense keys, decode_serving.cl those of a cache.
 */
#ifndef ATTUNE_DECODE_H
#define ATTUNE_DECODE_H

#include "key_groups.h"
#include "layout.h"
#include "outputs.h"

/* As a weight, a forbidden pair: -0, which no exponential results in. Set and compared as bits. */
#define FORBIDDEN 0x80000000u

#define K_GROUPS (HEAD_DIM / 8u)
#define V_GROUPS (HEAD_DIM_V / 8u)
#define COLUMNS  (HEAD_DIM_V / 4u) /* vectors of a row of O */

/* In the place of a key's row of K: there is none, and the place is the first row's. */
#define MISSING 0x80000000u

/* Code of score and mask exists once where there is some. */
#if SCORE || MASK
#define EACH_SCORE
#else
#define EACH_SCORE UNROLL
#endif

/* A tile of keys: the first; whether there is one; whether the mask's expression is evaluated. */
typedef struct tile_of_keys {
    uint kv0;
    int exists, partial;
} tile_of_keys;

/* Key u of a team, of the keys of a tile. */
ATTUNE_FUNCTION uint key_index(uint u, uint team)
{
    return u * TEAMS + team;
}

/* Whether an item of a team has a group of the rows, of `count`. */
ATTUNE_FUNCTION int has_group(uint key_lane, uint count)
{
    return count == KEY_LANES || key_lane < count;
}

ATTUNE_FUNCTION uint4 place_of(long k_at, long v_at, int missing)
{
    uint4 place = as_uint4((ulong2)((ulong)k_at, (ulong)v_at));
    place.y |= missing ? MISSING : 0u;
    return place;
}

/* 1: load Q, a row's group */
ATTUNE_FUNCTION void load_q(float4 *to, __global const uchar *row, uint key_lane, int aligned, int valid, float scale)
{
    float4 low, high;
    const int there = valid && has_group(key_lane, K_GROUPS);
    widen(Q_TYPE, fetch(Q_TYPE, row + (long)(key_lane * 8u * bytes_of(Q_TYPE)), aligned, there), &low, &high);
    to[0] = PRESCALE ? low * scale : low;
    to[1] = PRESCALE ? high * scale : high;
}

/* 2: load K; returns bits of the missing keys */
ATTUNE_FUNCTION uint load_k(element_group *to, __global const uchar *k, __local const uint4 *places, uint key_lane,
                            uint team, int aligned)
{
    uint missing = 0u;
    UNROLL for (uint u = 0u; u < KEYS; u++)
    {
        uint2 at = places[key_index(u, team)].xy;
        missing |= at.y & MISSING ? 1u << u : 0u;
        at.y &= ~MISSING;
        to[u] = load_group(K_TYPE, k + as_long(at), key_lane, aligned, has_group(key_lane, K_GROUPS));
    }
    return missing;
}

/* For stage 6. */
ATTUNE_FUNCTION void load_v(element_group *to, __global const uchar *v, __local const uint4 *places, uint key_lane,
                            uint team, int aligned)
{
    UNROLL for (uint u = 0u; u < KEYS; u++) to[u] = load_group(V_TYPE, v + as_long(places[key_index(u, team)].zw),
                                                               key_lane, aligned, has_group(key_lane, V_GROUPS));
}

ATTUNE_FUNCTION float dot8(float4 a, float4 b, float4 low, float4 high)
{
    const float sum = FMA(a.x, low.x, FMA(a.y, low.y, FMA(a.z, low.z, a.w * low.w)));
    return FMA(b.x, high.x, FMA(b.y, high.y, FMA(b.z, high.z, FMA(b.w, high.w, sum))));
}

/* 3: S = Q K^T, an item's shares of the sums; shares: the item's first */
ATTUNE_FUNCTION void compute_s(__local float *shares, const element_group *groups, const float4 *held,
                               __local const float4 *shared_q, __local const uint2 *factors, uint key_lane, uint team)
{
    UNROLL for (uint u = 0u; u < KEYS; u++)
    {
        float4 low, high;
        const float factor = has_factor(K_TYPE) ? as_float(factors[key_index(u, team)].x) : 1.0f;
        widen_group(K_TYPE, groups[u], key_lane, factor, &low, &high);
        UNROLL for (uint r = 0u; r < BLOCK_M; r++)
        {
            const float4 a = HOLD_Q ? held[HOLD_Q ? 2u * r : 0u] : shared_q[2u * r * KEY_LANES + key_lane];
            const float4 b = HOLD_Q ? held[HOLD_Q ? 2u * r + 1u : 0u] : shared_q[(2u * r + 1u) * KEY_LANES + key_lane];
            shares[(u * BLOCK_M + r) * THREADS] = dot8(a, b, low, high);
        }
    }
}

/* The sum of a pair's shares. Teams begin at different vectors, so that neighbouring items read different banks. */
ATTUNE_FUNCTION float sum_of_pair(__local const float4 *pool, uint pair, uint team)
{
#if KEY_LANES < 4u
    __local const float *from = (__local const float *)pool + pair * THREADS + team * KEY_LANES;
    float sum = from[0];
    UNROLL for (uint j = 1u; j < KEY_LANES; j++) sum += from[j];
    return sum;
#else
    const uint vectors = KEY_LANES / 4u, skew = vectors < 8u ? team * vectors / 8u : team;
    __local const float4 *from = pool + (pair * THREADS + team * KEY_LANES) / 4u;
    float4 sum = (float4)(0.0f);
    UNROLL for (uint j = 0u; j < vectors; j++) sum += from[(j + skew) % vectors];
    return sum.x + sum.y + (sum.z + sum.w);
#endif
}

/* 5: online softmax of the team's keys: weights in place of scores. Returns whether O is to be rescaled. */
ATTUNE_FUNCTION int online_softmax(float *w, float *m, float *l, float *alpha, int masked)
{
    int rescales = 0;
    UNROLL for (uint r = 0u; r < BLOCK_M; r++)
    {
        float top = m[r];
        UNROLL for (uint u = 0u; u < KEYS; u++) top = fmax(top, w[u * BLOCK_M + r]);
        alpha[r] = exp2((m[r] - top) * TO_LOG2);
        rescales |= as_uint(alpha[r]) != 0x3f800000u;
        m[r] = top;
        l[r] *= alpha[r];
    }
    UNROLL for (uint u = 0u; u < KEYS; u++) UNROLL for (uint r = 0u; r < BLOCK_M; r++)
    {
        const float x = w[u * BLOCK_M + r], p = exp2((x - m[r]) * TO_LOG2);
        const int may = !masked || as_uint(x) != as_uint(LOWEST);
        l[r] += may ? p : 0.0f;
        w[u * BLOCK_M + r] = may ? p : as_float(FORBIDDEN);
    }
    return rescales;
}

/* 6: O += P V. With `masked` weight by weight, since 0 times NaN is NaN where the pair is forbidden. */
ATTUNE_FUNCTION void accumulate_o(float4 *o, const element_group *groups, const float *w, __local const uint2 *factors,
                                  uint key_lane, uint team, int masked)
{
    UNROLL for (uint u = 0u; u < KEYS; u++)
    {
        float4 low, high;
        const float factor = has_factor(V_TYPE) ? as_float(factors[key_index(u, team)].y) : 1.0f;
        widen_group(V_TYPE, groups[u], key_lane, factor, &low, &high);
        UNROLL for (uint r = 0u; r < BLOCK_M; r++)
        {
            const float p = w[u * BLOCK_M + r];
            if (!masked || as_uint(p) != FORBIDDEN) {
                o[2u * r] = FMA((float4)(p), low, o[2u * r]);
                o[2u * r + 1u] = FMA((float4)(p), high, o[2u * r + 1u]);
            }
        }
    }
}

/* The sum of a vector of O over the teams, with the row's maximum and sum; folded into those of parts before as
 * attune_serving_combine folds parts of many items. */
ATTUNE_FUNCTION void add_teams(float4 *sum_o, float *sum_m, float *sum_l, __local const float4 *from,
                               __local const float *most, __local const float *sums, int folds)
{
    float top = most[0];
    for (uint t = 1u; t < TEAMS; t++)
        top = fmax(top, most[t]);
    float part_l = 0.0f;
    float4 part_o = (float4)(0.0f);
    for (uint t = 0u; t < TEAMS; t++) {
        const float alpha = exp2((most[t] - top) * TO_LOG2);
        part_l = FMA(sums[t], alpha, part_l);
        part_o = FMA(from[t * COLUMNS], (float4)(alpha), part_o);
    }
#ifdef SERVING
    if (folds) {
        const float all = fmax(*sum_m, top);
        const float before = exp2_row((*sum_m - all) * TO_LOG2), own = exp2_row((top - all) * TO_LOG2);
        part_l = FMA(part_l, own, *sum_l * before);
        part_o = FMA(part_o, (float4)(own), *sum_o * before);
        top = all;
    }
#endif
    *sum_m = top;
    *sum_l = part_l;
    *sum_o = part_o;
}

/* Where the keys of a tile are, of those that an item finds. In the place of a key that is missing is the first row,
 * which every call has: it is loaded and not used, since a load on a condition would set registers first. */
#ifdef SERVING
ATTUNE_FUNCTION void find_keys(uint4 *found, uint2 *factors, const tile_of_keys *tile, uint id,
                               const attune_opencl_arguments *args, const sequence *s, __global const uchar *k_scale,
                               __global const uchar *v_scale)
{
    UNROLL for (uint f = 0u; f < FINDS; f++)
    {
        const uint n = id + f * THREADS;
        const uint2 key = key_of(s, tile->exists && n < BLOCK_N ? tile->kv0 + n : 0xffffffffu);
        const int lacks = key.x == NO_PAGE;
        const uint2 at = lacks ? (uint2)(0u) : key;
        found[f] = place_of(plane_of(&args->k, at.x, s->kv_h) + (long)at.y * args->k.stride_row,
                            plane_of(&args->v, at.x, s->kv_h) + (long)at.y * args->v.stride_row, lacks);
        factors[f] = (uint2)(0u);
        if (has_factor(K_TYPE))
            factors[f].x = as_uint(factor_of(s, k_scale, &s->of->k_scale, ATTUNE_OPENCL_HAS_K_SCALE, at));
        if (has_factor(V_TYPE))
            factors[f].y = as_uint(factor_of(s, v_scale, &s->of->v_scale, ATTUNE_OPENCL_HAS_V_SCALE, at));
    }
}
#else
ATTUNE_FUNCTION void find_keys(uint4 *found, const tile_of_keys *tile, uint id, const attune_opencl_arguments *args,
                               const tile_coord *coord)
{
    UNROLL for (uint f = 0u; f < FINDS; f++)
    {
        const uint kv = tile->kv0 + id + f * THREADS;
        const int lacks = !tile->exists || kv >= args->kv_len;
        const long row = lacks ? 0l : (long)kv;
        found[f] = place_of(plane_of(&args->k, coord->b, coord->kv_h) + row * args->k.stride_row,
                            plane_of(&args->v, coord->b, coord->kv_h) + row * args->v.stride_row, lacks);
    }
}
#endif

ATTUNE_FUNCTION void write_keys(__local uint4 *keys, __local uint2 *factors, const uint4 *found,
                                const uint2 *found_factors, uint id)
{
    UNROLL for (uint f = 0u; f < FINDS; f++)
    {
        const uint n = id + f * THREADS;
        if (n < BLOCK_N) {
            keys[n] = found[f];
            if (has_factor(K_TYPE) || has_factor(V_TYPE))
                factors[n] = found_factors[f];
        }
    }
}

#ifdef SERVING
#define POINTERS           ATTUNE_SERVING_PARAMETERS ATTUNE_KERNEL_MODS
#define SCORE_OF(x, r, kv) attune_score(x, &seq, row_head(&coord, r), row_query(&coord, r), kv ATTUNE_MODS)
#define MASK_OF(r, kv)     attune_mask(&seq, row_head(&coord, r), row_query(&coord, r), kv ATTUNE_MODS)
#define FIND_TILE(t, from)                                                                                             \
    t.kv0 = next_tile(from, end, &t.partial, &coord, &seq ATTUNE_MODS);                                                \
    t.exists = t.kv0 < end
#define FIND_KEYS(t) find_keys(found, found_factors, &t, id, &args, &seq, k_scale, v_scale)
#else
#define POINTERS           ATTUNE_KERNEL_MODS
#define SCORE_OF(x, r, kv) attune_score(x, coord.b, row_head(&coord, r), row_query(&coord, r), kv ATTUNE_MODS)
#define MASK_OF(r, kv)     attune_mask(coord.b, row_head(&coord, r), row_query(&coord, r), kv ATTUNE_MODS)
#define FIND_TILE(t, from)                                                                                             \
    t.exists = key_tiles_next(&it, &args, &coord ATTUNE_MODS);                                                         \
    t.kv0 = it.row0;                                                                                                   \
    t.partial = MASK && it.partial != 0u
#define FIND_KEYS(t) find_keys(found, &t, id, &args, &coord)
#endif

/* Which half of `factors` a tile has. */
#define FACTORS_OF(parity) (has_factor(K_TYPE) || has_factor(V_TYPE) ? (parity)*BLOCK_N : 0u)

/* Of fixed parts that one item folds. */
#define PART_OF(kv) (FOLDS ? (kv) / max(FOLDS, 1u) : 0u)

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attune_decode(ATTUNE_KERNEL_PARAMETERS POINTERS)
{
#include "layout_few_rows.h"
    const uint id = (uint)get_local_id(0), key_lane = id % KEY_LANES, team = id / KEY_LANES;
    const int q_aligned = ALIGNED || (args.flags & ATTUNE_OPENCL_ALIGNED_Q) != 0u;
    const int k_aligned = ALIGNED || (args.flags & ATTUNE_OPENCL_ALIGNED_K) != 0u;
    const int v_aligned = ALIGNED || (args.flags & ATTUNE_OPENCL_ALIGNED_V) != 0u;
    const int o_aligned = ALIGNED || (args.flags & ATTUNE_OPENCL_ALIGNED_O) != 0u;
    const float factor = (PRESCALE ? 1.0f : args.scale) * (SCORE ? 1.0f : LOG2E);
#ifdef SERVING
    __global const attune_opencl_serving *serving = (__global const attune_opencl_serving *)(workspace + args.serving);
    const work_item item = work_item_of(&args, &serving->parts, schedule, args.first + GROUP);
    tile_coord coord = tile_coord_of(&args, item.tile);
    sequence seq;
    seq.of = &serving->cache;
    seq.b = coord.b;
    seq.kv_h = coord.kv_h;
    begin_rows(&seq, args.q_len, q_start, count);
    begin_table(&seq, pages, pages_start);
    begin_length(&seq, args.kv_len, kv_lens);
    begin_first(&seq, kv_first);
    coord.queries = coord.q0 < seq.q_len ? min(args.q_step, seq.q_len - coord.q0) : 0u;
    coord.rows = item.is_there ? coord.heads * coord.queries : 0u;
    /* The tiles of a sequence begin at multiples of BLOCK_N of its keys. */
    const uint end = coord.rows ? min(seq.kv_len, item.end_key) : 0u;
    const uint first = max(seq.kv_first, item.first_key) / BLOCK_N * BLOCK_N;
    const uint batch = seq.batch, row0 = seq.row0;
#else
    ATTUNE_TABLES
    const tile_coord coord = tile_coord_of(&args, args.first + GROUP);
    block_iterator it = block_iterator_of_tile(&args, mask, &coord);
    const uint batch = coord.b, row0 = 0u;
#endif
    float4 held[HELD_COUNT], o_team[2u * BLOCK_M], sum_o[SUM_SIZE];
    float m[BLOCK_M], l[BLOCK_M], sum_m[SUM_SIZE], sum_l[SUM_SIZE];
    element_group k_groups[KEYS], v_groups[KEYS];
    uint4 found[FINDS];
    uint2 found_factors[FINDS];
    uint missing = 0u, parity = 0u; /* parity: of the tile, which of the two halves of `keys` */
    int again = 1, folds = 0;
    tile_of_keys tile, next;

    FIND_TILE(tile, first);
    if (tile.exists) {
        FIND_KEYS(tile);
        write_keys(keys, factors, found, found_factors, id);
    }
    UNROLL for (uint r = 0u; r < BLOCK_M; r++)
    {
        m[r] = LOWEST;
        l[r] = 0.0f;
        o_team[2u * r] = o_team[2u * r + 1u] = (float4)(0.0f);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (tile.exists)
        missing = load_k(k_groups, k, keys, key_lane, team, k_aligned);
    /* 1: load Q, which does not delay the loads of K. */
    UNROLL for (uint r = 0u; r < BLOCK_M; r++)
    {
        __global const uchar *from = q;
        if (r < coord.rows)
            from += plane_of(&args.q, batch, row_head(&coord, r)) +
                    (long)(row0 + row_query(&coord, r)) * args.q.stride_row;
        float4 group[2];
        load_q(group, from, key_lane, q_aligned, r < coord.rows, args.scale);
        if (HOLD_Q) {
            held[HOLD_Q ? 2u * r : 0u] = group[0];
            held[HOLD_Q ? 2u * r + 1u : 0u] = group[1];
        } else if (team == 0u) {
            shared_q[HOLD_Q ? 0u : 2u * r * KEY_LANES + key_lane] = group[0];
            shared_q[HOLD_Q ? 0u : (2u * r + 1u) * KEY_LANES + key_lane] = group[1];
        }
    }
    if (!HOLD_Q)
        barrier(CLK_LOCAL_MEM_FENCE);

    while (again) {
        const uint part = PART_OF(tile.kv0);
        int inside = tile.exists;
        while (inside) {
            load_v(v_groups, v, keys + parity * BLOCK_N, key_lane, team, v_aligned);
            FIND_TILE(next, tile.kv0 + BLOCK_N);
            FIND_KEYS(next);
            /* 3: S = Q K^T */
            compute_s((__local float *)pool + id, k_groups, held, shared_q, factors + FACTORS_OF(parity), key_lane,
                      team);
            write_keys(keys + (1u - parity) * BLOCK_N, factors + FACTORS_OF(1u - parity), found, found_factors, id);
            barrier(CLK_LOCAL_MEM_FENCE);

            /* 2: load K, of the next tile */
            const uint next_missing = load_k(k_groups, k, keys + (1u - parity) * BLOCK_N, key_lane, team, k_aligned);
            /* 4: score and mask; a forbidden pair is LOWEST */
#ifdef SERVING
            const int drafts = sees_some(&seq, tile.kv0 + BLOCK_N);
#else
            const int drafts = 0;
#endif
            EACH_SCORE for (uint e = 0u; e < SCORES; e++)
            {
                const uint i = id + e * THREADS, pair = i / TEAMS, of = i % TEAMS, r = pair % BLOCK_M;
                if (pair < PAIRS) {
                    const uint n = key_index(pair / BLOCK_M, of), kv = tile.kv0 + n;
                    float x = sum_of_pair(pool, pair, of) * factor;
                    int may = (keys[parity * BLOCK_N + n].y & MISSING) == 0u;
                    if (r < coord.rows && may) {
                        if (SCORE)
                            x = SCORE_OF(x, r, kv);
                        if (tile.partial)
                            may = MASK_OF(r, kv);
#ifdef SERVING
                        if (drafts && may)
                            may = sees_draft(&seq, tree, row_query(&coord, r), kv);
#endif
                    }
                    ((__local float *)s)[of * 4u * S_STRIDE + pair] = may ? x : LOWEST;
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);

            /* 5: online softmax */
            const int masked = (tile.partial | drafts) != 0 || missing != 0u;
            float w[4u * PAIR_GROUPS], alpha[BLOCK_M];
            UNROLL for (uint i = 0u; i < PAIR_GROUPS; i++)
            {
                const float4 four = s[team * S_STRIDE + i];
                w[4u * i] = four.x;
                w[4u * i + 1u] = four.y;
                w[4u * i + 2u] = four.z;
                w[4u * i + 3u] = four.w;
            }
            if (online_softmax(w, m, l, alpha, masked))
                UNROLL for (uint r = 0u; r < BLOCK_M; r++)
                {
                    o_team[2u * r] *= alpha[r];
                    o_team[2u * r + 1u] *= alpha[r];
                }
            /* 6: O += P V */
            if (masked)
                accumulate_o(o_team, v_groups, w, factors + FACTORS_OF(parity), key_lane, team, 1);
            else
                accumulate_o(o_team, v_groups, w, factors + FACTORS_OF(parity), key_lane, team, 0);
            tile = next;
            missing = next_missing;
            parity = 1u - parity;
            inside = tile.exists & (PART_OF(tile.kv0) == part);
        }

        /* 7: the sums of the teams, some rows at a time */
        if (key_lane == 0u)
            UNROLL for (uint r = 0u; r < BLOCK_M; r++)
            {
                most[r * TEAMS + team] = m[r];
                sums[r * TEAMS + team] = l[r];
            }
        UNROLL for (uint round = 0u; round < BLOCK_M / ROUND_ROWS; round++)
        {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (has_group(key_lane, V_GROUPS))
                UNROLL for (uint j = 0u; j < ROUND_ROWS; j++)
                {
                    const uint to = (j * TEAMS + team) * COLUMNS + 2u * key_lane, r = round * ROUND_ROWS + j;
                    pool[to] = o_team[2u * r];
                    pool[to + 1u] = o_team[2u * r + 1u];
                }
            barrier(CLK_LOCAL_MEM_FENCE);
            UNROLL for (uint i = 0u; i < ROUND_SIZE; i++)
            {
                const uint at = min(id + i * THREADS, ROUND_ROWS * COLUMNS - 1u), j = at / COLUMNS;
                const uint to = round * ROUND_SIZE + i, states = (round * ROUND_ROWS + j) * TEAMS;
                add_teams(sum_o + to, sum_m + to, sum_l + to, pool + j * TEAMS * COLUMNS + at % COLUMNS, most + states,
                          sums + states, folds);
            }
        }
        UNROLL for (uint r = 0u; r < BLOCK_M; r++)
        {
            m[r] = LOWEST;
            l[r] = 0.0f;
            o_team[2u * r] = o_team[2u * r + 1u] = (float4)(0.0f);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        folds = 1;
        again = FOLDS > 0u ? tile.exists : 0;
    }

    /* 7: store O and LSE, or the partial result of a split */
    UNROLL for (uint to = 0u; to < SUM_SIZE; to++)
    {
        const uint at = id + to % ROUND_SIZE * THREADS, column = at % COLUMNS * 4u;
        const uint row = to / ROUND_SIZE * ROUND_ROWS + at / COLUMNS;
        if (at < ROUND_ROWS * COLUMNS && row < coord.rows) {
            const uint row_h = row_head(&coord, row), row_q = row0 + row_query(&coord, row);
#ifdef SERVING
            if (item.slot != ATTUNE_OPENCL_NO_SLOT) {
                const ulong index = (ulong)item.slot * BLOCK_M + partial_row(&coord, row);
                __global float *const ml = (__global float *)(workspace + args.partials_ml) + 2ul * index;
                if (column == 0u) {
                    ml[0] = sum_m[to];
                    ml[1] = sum_l[to];
                }
                vstore4(sum_o[to], 0,
                        (__global float *)(workspace + args.partials) + index * HEAD_DIM_V + (ulong)column);
                continue;
            }
            tile_coord place = coord;
            place.b = batch;
#else
            const tile_coord place = coord;
#endif
            const int split = args.splits > 1u, is_partial = split || (args.flags & ATTUNE_OPENCL_IS_PARTIAL) != 0u;
            float top = sum_m[to];
            const float2 sink = split ? (float2)(1.0f, 0.0f) : add_sink(&args, sinks, row_h, &top);
            const float sum = sum_l[to] * sink.x + sink.y;
            const float scale = split || (is_zero(sum) && is_partial) ? 1.0f : sink.x / sum;
            const float4 value = is_zero(sum) && !is_partial ? (float4)(0.0f) : sum_o[to] * scale;
            if (column == 0u)
                store_row_state(&args, &place, workspace, lse, row_max, row_h, row_q, top, sum, sum_m[to], sum_l[to]);
            store_columns(&args, &place, workspace, o, o_aligned, row_h, row_q, column, value);
        }
    }
}

#endif
