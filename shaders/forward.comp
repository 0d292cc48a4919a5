/* SPDX-License-Identifier: MIT */
/*
 * Forward attention and decode without matrix units. A workgroup computes one tile of rows and loops over the tiles of
 * keys that the mask lists. Operands stream through shared memory in slices; O stays in registers. The stages are
 * numbered as in docs/algorithm.md. The invocations of a row reduce by subgroup shuffles with SUBGROUPS, else through
 * shared memory.
 *
 * S = Q K^T is computed by a grid of TY x TX invocations, each with TM rows (ty + TY i) and TN groups of four columns
 * (4 (tx + TX g) + j); O likewise, with TO groups of four columns. Between the two, in stages 4 and 5, ROW_LANES
 * invocations share a row. In shared memory key 4 x + j is row BLOCK_N / 4 j + x, so that neighbouring invocations read
 * neighbouring rows.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef SUBGROUPS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

#include "arguments.glsl"
#include "mods.glsl"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;

#include "layout_forward.h"

/* In P, a forbidden pair: -0, a weight of 0 that no exponential results in. Set and compared as bits. */
const uint FORBIDDEN = 0x80000000u;

/* CPU drivers, which run without SUBGROUPS, gain nothing by unrolling, and their compile time grows. */
#ifdef SUBGROUPS
#define UNROLL_CHUNK [[unroll]]
#else
#define UNROLL_CHUNK [[dont_unroll]]
#endif

#include "forward_tile.glsl"

#ifdef SERVING
#define POSITION row_sequence.position
#define SEQUENCE , int(row_sequence.q_len), int(row_sequence.kv_len), int(row_sequence.token0 + row_q)
#define WIDEN(type, group, low, high)                                                                                  \
    if (is_quantised(type))                                                                                            \
        dequantise(type, (group).low.xy, uintBitsToFloat((group).low.z), low, high);                                   \
    else                                                                                                               \
        widen(type, group, low, high)
#define IS_NON_FINITE(group, low, high) is_non_finite(low, high)
#define NEXT_TILE(next)                 next_tile(next)
#else
#define POSITION 0
#define SEQUENCE
#define WIDEN(type, group, low, high)   widen(group, low, high)
#define IS_NON_FINITE(group, low, high) is_non_finite(group)
#define NEXT_TILE(next)                 block_iterator_next(next, kv_block, kv_len)
#endif

const uint SLICE_GROUPS = SLICE / 8u, CHUNK_GROUPS = HEAD_DIM_V / 8u; /* of eight elements */
const uint COLUMNS = BLOCK_N / 4u;                                    /* groups of four */

uint tid, tx, ty;
uint side = 0u, chunk = 0u; /* offset of the half of slices in use; chunks of V so far */
float factor;
Group fetched[FETCH];          /* loads in flight */
vec4 acc[ACC_SIZE], o[O_SIZE]; /* S and O of the grid's invocation */

/* The row of this invocation in stages 4 and 5. */
uint row, row_lane, row_b, row_q, row_h;
#ifdef SERVING
Sequence row_sequence;
#endif
bool has_row, has_scores;
vec4 scores[ROW_GROUPS];
uvec2 allowed; /* bits of the scores' pairs: ROW_GROUPS is at most 16 */
float m = LOWEST, l = 0.0;

/*
 * An invocation's tx and ty. A group of 32 is 8 x 4, and of four neighbours two have the same tx and two the same ty.
 * Then NVIDIA's shared memory serves sixteen lanes at once; with 16 neighbours in a row it serves eight.
 */
uvec2 thread_coord(const in uint tid)
{
    if (TX < 8u || TY < 4u)
        return uvec2(tid % TX, tid / TX);
    uint group = tid / 32u, lane = tid % 32u, across = TX / 8u;
    return uvec2(group % across * 8u + lane / 2u % 8u, group / across * 4u + lane / 16u * 2u + lane % 2u);
}

/*
 * While a slice or chunk is computed, the loads of the next one are in flight (load_*). It is stored to the other half
 * of `slices` after the arithmetic (write_*), so that one barrier for each step is enough. Where memory has one half
 * alone, it is overwritten once every invocation has read it.
 */
void other_half()
{
    if (SLICES_SIZE == SLICE_SIZE)
        barrier();
    side = SLICES_SIZE - SLICE_SIZE - side;
}

/* 1: load Q, a slice of it */
void load_q(const in uint d0)
{
    [[unroll]] for (uint f = 0u; f < FETCH_Q; f++) {
        uint i = tid + f * THREADS, r = i / SLICE_GROUPS;
        uvec2 at = PACKED ? address_step(q_plane, head_of(r, coord.queries), q_stride_h) : q_plane;
#ifdef SERVING
        uvec2 member;
        Sequence of = sequence_of(query_of(r, coord.queries), member);
        at = address_step(address_step(at, member.x, args.q.stride_b), of.row0 + member.y, q_stride);
#else
        at = address_step(at, tensor_row(row_query(r)), q_stride);
#endif
        fetched[f] = fetch(Q_TYPE, address_add(at, (d0 + i % SLICE_GROUPS * 8u) * bytes_of(Q_TYPE)), aligned,
                           r < coord.rows);
    }
}

void write_q()
{
    [[unroll]] for (uint f = 0u; f < FETCH_Q; f++) {
        uint i = tid + f * THREADS, r = i / SLICE_GROUPS, to = side + r * SLICE_STRIDE + i % SLICE_GROUPS * 2u;
        vec4 low, high;
        widen(Q_TYPE, fetched[f], low, high);
        if (r < BLOCK_M) {
            slices[to] = PRESCALE ? low * args.scale : low;
            slices[to + 1u] = PRESCALE ? high * args.scale : high;
        }
    }
}

/* 2: load K, a slice of it */
void load_k(const in uint kv0, const in uint d0)
{
    [[unroll]] for (uint f = 0u; f < FETCH_K; f++) {
        uint i = tid + f * THREADS, n = i / SLICE_GROUPS;
#ifdef SERVING
        uvec2 key = uvec2(NO_PAGE, 0u);
        if (n < BLOCK_N)
            key = d0 == 0u ? begin_key(kv0, n, i % SLICE_GROUPS == 0u) : keys[n];
        fetched[FETCH_Q + f] = fetch_row(K_TYPE, k_row(key), d0 + i % SLICE_GROUPS * 8u, serving.k_scale, key);
#else
        uvec2 at = address_step(k_plane, kv0 + n, k_stride);
        fetched[FETCH_Q + f] = fetch(address_add(at, (d0 + i % SLICE_GROUPS * 8u) * ELEMENT_BYTES), aligned,
                                     n < BLOCK_N && kv0 + n < kv_len);
#endif
    }
}

void write_k()
{
    [[unroll]] for (uint f = 0u; f < FETCH_K; f++) {
        uint i = tid + f * THREADS, n = i / SLICE_GROUPS;
        uint to = side + (BLOCK_M + n % 4u * COLUMNS + n / 4u) * SLICE_STRIDE + i % SLICE_GROUPS * 2u;
        vec4 low, high;
        WIDEN(K_TYPE, fetched[FETCH_Q + f], low, high);
        if (n < BLOCK_N) {
            slices[to] = low;
            slices[to + 1u] = high;
        }
    }
}

/* For stage 6, a chunk of V. */
void load_v(const in uint n0, const in uint kv0)
{
    [[unroll]] for (uint f = 0u; f < FETCH_V; f++) {
        uint i = tid + f * THREADS, n = i / CHUNK_GROUPS;
#ifdef SERVING
        uvec2 key = n < CHUNK ? keys[n0 + n] : uvec2(NO_PAGE, 0u);
        fetched[f] = fetch_row(V_TYPE, v_row(key), i % CHUNK_GROUPS * 8u, serving.v_scale, key);
#else
        uvec2 at = address_step(v_plane, kv0 + n0 + n, v_stride);
        fetched[f] = fetch(address_add(at, i % CHUNK_GROUPS * 8u * ELEMENT_BYTES), aligned,
                           n < CHUNK && kv0 + n0 + n < kv_len);
#endif
    }
}

void write_v(const in bool masked)
{
    [[unroll]] for (uint f = 0u; f < FETCH_V; f++) {
        uint i = tid + f * THREADS, n = i / CHUNK_GROUPS, to = side + n * CHUNK_STRIDE + i % CHUNK_GROUPS * 2u;
        vec4 low, high;
        WIDEN(V_TYPE, fetched[f], low, high);
        if (masked && IS_NON_FINITE(fetched[f], low, high))
            non_finite[chunk & 3u] = 1u;
        if (n < CHUNK) {
            slices[to] = low;
            slices[to + 1u] = high;
        }
    }
}

/* 3: S = Q K^T, a slice of the sum */
void compute_s()
{
    if (ty < BLOCK_M) {
        uint q_at = side + ty * SLICE_STRIDE, k_at = side + (BLOCK_M + tx) * SLICE_STRIDE;
        [[unroll]] for (uint d = 0u; d < SLICE / 4u; d++) {
            vec4 a[TM];
            [[unroll]] for (uint i = 0u; i < TM; i++)
                a[i] = slices[q_at + i * TY * SLICE_STRIDE + d];
            [[unroll]] for (uint g = 0u; g < TN; g++) {
                uint at = k_at + g * TX * SLICE_STRIDE + d;
                vec4 k0 = slices[at], k1 = slices[at + COLUMNS * SLICE_STRIDE],
                     k2 = slices[at + 2u * COLUMNS * SLICE_STRIDE], k3 = slices[at + 3u * COLUMNS * SLICE_STRIDE];
                [[unroll]] for (uint i = 0u; i < TM; i++) {
                    vec4 c = acc[i * TN + g];
                    c.x = fma(a[i].x, k0.x, fma(a[i].y, k0.y, fma(a[i].z, k0.z, fma(a[i].w, k0.w, c.x))));
                    c.y = fma(a[i].x, k1.x, fma(a[i].y, k1.y, fma(a[i].z, k1.z, fma(a[i].w, k1.w, c.y))));
                    c.z = fma(a[i].x, k2.x, fma(a[i].y, k2.y, fma(a[i].z, k2.z, fma(a[i].w, k2.w, c.z))));
                    c.w = fma(a[i].x, k3.x, fma(a[i].y, k3.y, fma(a[i].z, k3.z, fma(a[i].w, k3.w, c.w))));
                    acc[i * TN + g] = c;
                }
            }
        }
    }
}

/* S from the grid to the invocations of the rows. */
void write_s()
{
    if (ty < BLOCK_M) [[unroll]]
        for (uint i = 0u; i < TM; i++)
            [[unroll]] for (uint g = 0u; g < TN; g++)
                s[(ty + TY * i) * S_STRIDE + tx + TX * g] = acc[i * TN + g] * factor;
}

/* 4: score and mask; a forbidden pair is LOWEST */
void apply_mods(const in KeyTile tile)
{
    uint s_at = row * S_STRIDE + row_lane;
    [[unroll]] for (uint e = 0u; e < ROW_GROUPS; e++)
        scores[e] = has_scores ? s[s_at + e * ROW_LANES] : vec4(0.0);
    allowed = uvec2(0xffffffffu);
    if (SCORE && has_row) [[unroll]]
        for (uint e = 0u; e < ROW_GROUPS; e++)
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                uint kv = tile.kv0 + 4u * (row_lane + e * ROW_LANES) + j;
                scores[e][j] = attune_score(scores[e][j], int(row_b), int(row_h), POSITION + int(row_q), int(kv),
                                            args.score_mod SEQUENCE);
            }
    if (tile.masked) {
        /* A loop, so that the expression's code exists once. */
        if (tile.is_partial) [[dont_unroll]]
            for (uint e = 0u; e < 4u * ROW_GROUPS; e++) {
                uint kv = tile.kv0 + 4u * (row_lane + e / 4u * ROW_LANES) + e % 4u;
                bool may = !MASK ||
                           attune_mask(int(row_b), int(row_h), POSITION + int(row_q), int(kv), args.mask_mod SEQUENCE);
#ifdef SERVING
                may = may && (!has_row || !sees_some(kv + 1u) || sees_draft(row_sequence, row_q, kv));
#endif
                uint bit = may ? 0u : 1u << e % 32u;
                allowed &= ~(e < 32u ? uvec2(bit, 0u) : uvec2(0u, bit));
            }
        [[unroll]] for (uint e = 0u; e < ROW_GROUPS; e++)
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                uint kv = tile.kv0 + 4u * (row_lane + e * ROW_LANES) + j;
#ifdef SERVING
                bool there = keys[kv - tile.kv0].x != NO_PAGE;
#else
                bool there = kv < kv_len;
#endif
                allowed[e / 8u] &= has_row && there ? ~0u : ~(1u << (e % 8u * 4u + j));
                scores[e][j] = (allowed[e / 8u] >> (e % 8u * 4u + j) & 1u) != 0u ? scores[e][j] : LOWEST;
            }
    }
}

#ifdef SERVING
/* Sums over the parts before this one, with problem.split_keys. */
vec4 sum_o[SUM_SIZE];
float sum_m, sum_l;
bool has_sums = false;
#endif

float largest_of_row(const in float value)
{
    float most = value;
#ifdef SUBGROUPS
    [[unroll]] for (uint step = 1u; step < ROW_LANES; step *= 2u)
        most = max(most, subgroupShuffleXor(most, step));
#else
    if (ROW_LANES > 1u) {
        if (has_scores)
            reduce[row_lane * BLOCK_M + row] = most;
        barrier();
        if (has_scores) [[unroll]]
            for (uint i = 0u; i < ROW_LANES; i++)
                most = max(most, reduce[i * BLOCK_M + row]);
    }
#endif
    return most;
}

float sum_of_row(const in float value)
{
    float sum = value;
#ifdef SUBGROUPS
    [[unroll]] for (uint step = 1u; step < ROW_LANES; step *= 2u)
        sum += subgroupShuffleXor(sum, step);
#else
    if (ROW_LANES > 1u) {
        barrier();
        if (has_scores)
            reduce[row_lane * BLOCK_M + row] = sum;
        barrier();
        if (has_scores) {
            sum = 0.0;
            [[unroll]] for (uint i = 0u; i < ROW_LANES; i++)
                sum += reduce[i * BLOCK_M + row];
        }
    }
#endif
    return sum;
}

/* 5: online softmax; P and the rescale factors to shared memory */
void online_softmax(const in bool masked)
{
    uint s_at = row * S_STRIDE + row_lane;
    float most = LOWEST;
    [[unroll]] for (uint e = 0u; e < ROW_GROUPS; e++)
        most = max(most, max(max(scores[e].x, scores[e].y), max(scores[e].z, scores[e].w)));
    most = largest_of_row(most);
    float next = max(m, most), alpha = exp2((m - next) * TO_LOG2);
    m = next;
    l *= alpha;
    [[unroll]] for (uint e = 0u; e < ROW_GROUPS; e++) {
        vec4 p = exp2((scores[e] - vec4(m)) * TO_LOG2), counted = p;
        if (masked) [[unroll]]
            for (uint j = 0u; j < 4u; j++) {
                bool may = (allowed[e / 8u] >> (e % 8u * 4u + j) & 1u) != 0u;
                counted[j] = may ? p[j] : 0.0;
                p[j] = uintBitsToFloat(may ? floatBitsToUint(p[j]) : FORBIDDEN);
            }
        /* In one order, whether or not another row of the tile has a forbidden pair. */
        l += counted.x + counted.y + counted.z + counted.w;
        if (has_scores)
            s[s_at + e * ROW_LANES] = p;
    }
    if (has_scores && row_lane == 0u)
        rows[row] = alpha;
}

void rescale_o()
{
    if (ty < BLOCK_M) [[unroll]]
        for (uint i = 0u; i < TM; i++) {
            float alpha = rows[ty + TY * i];
            [[unroll]] for (uint t = 0u; t < TO; t++)
                o[i * TO + t] *= alpha;
        }
}

/* 6: O += P V, a chunk of keys from n0 on */
void accumulate_o(const in uint n0, const in bool masked)
{
    if (tid == 0u)
        non_finite[chunk + 2u & 3u] = 0u;
    if (ty < BLOCK_M) {
        if (masked && non_finite[chunk & 3u] != 0u) {
            /* The non-finite slow path: weight by weight, since 0 times NaN is NaN where the pair is forbidden. In the
             * order of the other path, so that bits depend neither on hidden NaN nor on CHUNK, which is a pipeline's
             * own. */
            [[dont_unroll]] for (uint i = 0u; i < CHUNK; i++)
                [[unroll]] for (uint t = 0u; t < TO; t++) {
                    uint n = i ^ 3u;
                    vec4 v = slices[side + n * CHUNK_STRIDE + min(tx + TX * t, HEAD_DIM_V / 4u - 1u)];
                    [[unroll]] for (uint r = 0u; r < TM; r++) {
                        float p = s[(ty + TY * r) * S_STRIDE + (n0 + n) / 4u][n & 3u];
                        o[r * TO + t] = floatBitsToUint(p) == FORBIDDEN ? o[r * TO + t]
                                                                        : fma(vec4(p), v, o[r * TO + t]);
                    }
                }
        } else
            UNROLL_CHUNK for (uint n = 0u; n < CHUNK; n += 4u)
            {
                vec4 p[TM];
                [[unroll]] for (uint i = 0u; i < TM; i++)
                    p[i] = s[(ty + TY * i) * S_STRIDE + (n0 + n) / 4u];
                [[unroll]] for (uint t = 0u; t < TO; t++) {
                    uint at = side + n * CHUNK_STRIDE + min(tx + TX * t, HEAD_DIM_V / 4u - 1u);
                    vec4 v0 = slices[at], v1 = slices[at + CHUNK_STRIDE], v2 = slices[at + 2u * CHUNK_STRIDE],
                         v3 = slices[at + 3u * CHUNK_STRIDE];
                    [[unroll]] for (uint i = 0u; i < TM; i++)
                        o[i * TO + t] = fma(p[i].xxxx, v0,
                                            fma(p[i].yyyy, v1, fma(p[i].zzzz, v2, fma(p[i].wwww, v3, o[i * TO + t]))));
                }
            }
    }
}

#ifdef SERVING
/* The factor of a row, from the invocations of the row to the grid. */
void share_factor(const in float value, out float factors[TM])
{
    barrier();
    if (has_scores && row_lane == 0u)
        rows[row] = value;
    barrier();
    [[unroll]] for (uint i = 0u; i < TM; i++)
        factors[i] = ty < BLOCK_M ? rows[ty + TY * i] : 0.0;
}

/* The end of a part of the keys in an item that has all of them: as serving_combine.comp folds parts of many items. */
void fold_part()
{
    float before[TM], own[TM];
    vec2 factors = vec2(0.0, 1.0);
    l = sum_of_row(l);
    if (has_sums) {
        factors = fold_factors(sum_m, m);
        sum_l = fold(sum_l, l, factors);
        share_factor(factors.x, before);
        share_factor(factors.y, own);
    } else {
        sum_m = m;
        sum_l = l;
    }
    [[unroll]] for (uint i = 0u; i < SUM_SIZE; i++) {
        sum_o[i] = has_sums ? fold(sum_o[i], o[i], vec2(before[i / TO], own[i / TO])) : o[i];
        o[i] = vec4(0.0);
    }
    m = LOWEST;
    l = 0.0;
    has_sums = true;
}

/* The sums become the result. */
void end_parts()
{
    if (!has_sums)
        return;
    m = sum_m;
    l = row_lane == 0u ? sum_l : 0.0;
    [[unroll]] for (uint i = 0u; i < SUM_SIZE; i++)
        o[i] = sum_o[i];
}
#endif

/* 7: store O and LSE, or the partial result of a split */
void store_o()
{
    l = sum_of_row(l);
    barrier();
    begin_store();
    if (has_row && row_lane == 0u) {
        float top = m;
        vec2 sink = split ? vec2(1.0, 0.0) : add_sink(args, row_h, top);
        precise float sum = l * sink.x + sink.y;
        if (is_zero(sum))
            rows[row] = is_partial_result ? 1.0 : ZERO_ROW;
        else
            rows[row] = split ? 1.0 : sink.x / sum;
        store_row_state(row_h, row_query(row), top, sum, m, l);
    }
    /* Through shared memory, so that the code which narrows and stores exists once, not for each register. */
    [[unroll]] for (uint t = 0u; t < TO; t++) {
        barrier();
        if (ty < BLOCK_M) [[unroll]]
            for (uint i = 0u; i < TM; i++)
                s[(ty + TY * i) * S_STRIDE + tx] = o[i * TO + t];
        barrier();
        [[dont_unroll]] for (uint i = tid; i < coord.rows * TX; i += THREADS) {
            uint r = i / TX, column = 4u * (i % TX + TX * t);
            vec4 value = s[r * S_STRIDE + i % TX] * rows[r];
            if (rows[r] == ZERO_ROW)
                value = vec4(0.0);
            if (column < HEAD_DIM_V)
                store_columns(row_head(r), row_query(r), column, value);
        }
    }
}

void begin()
{
#ifdef SUBGROUPS
    tid = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
#else
    tid = gl_LocalInvocationIndex;
#endif
    uvec2 thread = thread_coord(tid);
    tx = thread.x;
    ty = thread.y;
    begin_tile();
    factor = (PRESCALE ? 1.0 : args.scale) * (SCORE ? 1.0 : LOG2E);
    row = tid / ROW_LANES;
    row_lane = tid % ROW_LANES;
    has_scores = tid < BLOCK_M * ROW_LANES;
    has_row = has_scores && row < coord.rows;
    row_b = coord.b;
    row_q = row_query(row);
    row_h = row_head(row);
#ifdef SERVING
    uvec2 member;
    row_sequence = sequence_of(query_of(row, coord.queries), member);
    row_b += member.x;
    row_q = member.y;
#endif
    [[unroll]] for (uint i = 0u; i < O_SIZE; i++)
        o[i] = vec4(0.0);
}

void main()
{
    begin();
#ifdef SERVING
    if (coord.rows == 0u)
        return;
    if (tid < 2u)
        absent[tid] = 0u;
    barrier();
    BlockIterator next = begin_keys();
#else
    BlockIterator next = block_iterator_begin(args, coord);
#endif
    bool more = NEXT_TILE(next);
    if (more) {
        load_q(0u);
        load_k(next.row0, 0u);
        write_q();
        write_k();
    }
    if (tid < 4u)
        non_finite[tid] = 0u;
    barrier();
    while (more) {
        const KeyTile tile = key_tile_of(next);
#ifdef SERVING
        parity ^= 1u;
        if (tid == 0u)
            absent[parity] = 0u;
#endif
        more = NEXT_TILE(next);

        /* 1, 2: load Q and K, a slice at a time; 3: S = Q K^T */
        [[unroll]] for (uint i = 0u; i < ACC_SIZE; i++)
            acc[i] = vec4(0.0);
        for (uint d0 = 0u; d0 < HEAD_DIM; d0 += SLICE) {
            if (d0 + SLICE < HEAD_DIM) {
                load_q(d0 + SLICE);
                load_k(tile.kv0, d0 + SLICE);
            } else
                load_v(0u, tile.kv0);
            compute_s();
            other_half();
            if (d0 + SLICE < HEAD_DIM) {
                write_q();
                write_k();
            } else {
                write_v(tile.masked);
                write_s();
            }
            barrier();
        }

        apply_mods(tile);            /* 4: score and mask */
        online_softmax(tile.masked); /* 5: online softmax */
        barrier();

        /* 6: O += P V, a chunk of keys at a time */
        rescale_o();
        for (uint n0 = 0u; n0 < BLOCK_N; n0 += CHUNK) {
            if (n0 + CHUNK < BLOCK_N)
                load_v(n0 + CHUNK, tile.kv0);
            else if (more) {
                load_q(0u);
                load_k(next.row0, 0u);
            }
            accumulate_o(n0, tile.masked);
            other_half();
            chunk++;
            if (n0 + CHUNK < BLOCK_N)
                write_v(tile.masked);
            else if (more) {
                write_q();
                write_k();
            }
            barrier();
        }
#ifdef SERVING
        if (FOLDS && slot == ATTUNE_VULKAN_NO_SLOT &&
            (!more || next.row0 / serving.split_keys != tile.kv0 / serving.split_keys))
            fold_part();
#endif
    }

#ifdef SERVING
    end_parts();
#endif
    store_o(); /* 7: store O and LSE */
}
