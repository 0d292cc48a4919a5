/* SPDX-License-Identifier: MIT */
/*
 * Backward attention on cooperative matrices, f16 into f32, of devices whose fragment layout is known. Two kernels from
 * one text, with the tiles, operands and results of backward.comp: S = A B^T, dP = A2 B2^T, X += dS B and, with KEYS,
 * Y += P B2. P and dS are rounded to f16 for the last two products.
 *
 * A team of TEAM subgroups has ROWS rows of the outer tile. Its subgroups divide the columns: those of S and dP among
 * inner rows, those of X and Y among the head dimension. So P and dS pass through shared memory, as f16; each score and
 * its derivative stay with the lane that has them. The stages are numbered as in docs/algorithm.md.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#include "arguments.glsl"
#include "elements.glsl"
#include "gradient.glsl"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;

#include "layout_backward_matrix.h"
#include "backward_tiles.glsl"
#include "fragments.glsl"

#ifdef KEYS
#define Q_AND_KV(outer_row, inner_row) int(inner_row), int(outer_row)
#else
#define Q_AND_KV(outer_row, inner_row) int(outer_row), int(inner_row)
#endif

/* Loads are begun long before their values are stored to shared memory, so that arithmetic hides their latency. */
#define FETCH_ROWS(to, count, from, stride, row0, groups, dim)                                                         \
    if (aligned) {                                                                                                     \
        uvec2 tile_at = address_step(from, row0, stride);                                                              \
        [[unroll]] for (uint f = 0u; f < count; f++) {                                                                 \
            uint i = tid + f * THREADS, n = i / (groups), g = i % (groups);                                            \
            to[f] = fetch(address_add(address_step(tile_at, n, stride), g * 16u), true,                                \
                          n < BLOCK_N && g < (dim) / 8u && (row0) + n < inner_len);                                    \
        }                                                                                                              \
    }

/* Groups that FETCH_ROWS does not cover, or that are not aligned, are loaded here. */
#define STORE_ROWS(where, fetched, count, from, stride, row0, groups, dim, row_stride, flag, look)                     \
    {                                                                                                                  \
        if (aligned) [[unroll]]                                                                                        \
            for (uint f = 0u; f < count; f++) {                                                                        \
                uint i = tid + f * THREADS, n = i / (groups), g = i % (groups);                                        \
                if (look && is_non_finite(fetched[f]))                                                                 \
                    non_finite[flag] = step;                                                                           \
                if (n < BLOCK_N)                                                                                       \
                    memory[(where) + n * (row_stride) + g] = fetched[f].low;                                           \
            }                                                                                                          \
        if (!aligned || count * THREADS < BLOCK_N * (groups)) [[dont_unroll]]                                          \
            for (uint i = tid + (aligned ? count * THREADS : 0u); i < BLOCK_N * (groups); i += THREADS) {              \
                uint n = i / (groups), g = i % (groups);                                                               \
                Group late = fetch(address_add(address_step(from, (row0) + n, stride), g * 16u), aligned,              \
                                   g < (dim) / 8u && (row0) + n < inner_len);                                          \
                if (look && is_non_finite(late))                                                                       \
                    non_finite[flag] = step;                                                                           \
                memory[(where) + n * (row_stride) + g] = late.low;                                                     \
            }                                                                                                          \
    }

#ifdef KEYS
#define FETCH_STATE                                                                                                    \
    {                                                                                                                  \
        uint q = next.blocks.row0 + tid;                                                                               \
        bool valid = q < inner_len;                                                                                    \
        q = min(q, inner_len - 1u);                                                                                    \
        float l = load_lse(args.lse, next.b, next.h, q) * LSE_UNIT;                                                    \
        state = vec2(valid ? l : uintBitsToFloat(0x7f800000u), load_delta(args, next.b, next.h, q));                   \
    }
#else
#define FETCH_STATE
#endif

#define FETCH_NEXT                                                                                                     \
    FETCH_ROWS(fetched, FETCH, next.b_plane, b_stride, next.blocks.row0, B_GROUPS, HEAD_DIM)                           \
    FETCH_ROWS(fetched2, FETCH2, next.b2_plane, b2_stride, next.blocks.row0, B2_GROUPS, HEAD_DIM_V)                    \
    FETCH_STATE

/* A or A2: to registers if they are held there, and then its shared memory is free again. */
#define LOAD_OUTER(held, held_count, hold, where, from, stride, depth, groups, dim, row_stride)                        \
    {                                                                                                                  \
        [[dont_unroll]] for (uint i = tid; i < BLOCK_M * (groups); i += THREADS) {                                     \
            uint r = i / (groups), g = i % (groups);                                                                   \
            memory[(where) + r * (row_stride) + g] = fetch(address_add(address_step(from, outer.row0 + r, stride),     \
                                                                       g * 16u),                                       \
                                                           aligned, r < outer.rows && g < (dim) / 8u)                  \
                                                         .low;                                                         \
        }                                                                                                              \
        barrier();                                                                                                     \
        if (hold) {                                                                                                    \
            [[unroll]] for (uint i = 0u; i < held_count; i++)                                                          \
                coopMatLoad(held[i], memory,                                                                           \
                            (where) + (team_row + i / (depth)*MATRIX_M) * (row_stride) +                               \
                                (first_depth(depth) + i % (depth)) * (MATRIX_N / 8u),                                  \
                            row_stride, ROW_MAJOR);                                                                    \
            barrier();                                                                                                 \
        }                                                                                                              \
    }

#define LOAD_A LOAD_OUTER(held, HELD_COUNT, HOLD_A, A_OFFSET, a_plane, a_stride, A_TILES, B_GROUPS, HEAD_DIM, B_STRIDE)
#define LOAD_A2                                                                                                        \
    LOAD_OUTER(held2, HELD2_COUNT, HOLD_A2, A2_OFFSET, a2_plane, a2_stride, A2_TILES, B2_GROUPS, HEAD_DIM_V, B2_STRIDE)

#define first_depth(depth) (SPLIT_DEPTH ? member * (depth) : 0u)

/* to = A B^T, matrix j of the columns of this subgroup, or with SPLIT_DEPTH its share of the sum */
#define MULTIPLY_OUTER(to, held, hold, a_at, b_at, depth, row_stride)                                                  \
    [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)                                                                   \
        to[r] = MATRIX_F32(0.0);                                                                                       \
    if (hold) [[unroll]]                                                                                               \
        for (uint t = 0u; t < depth; t++) {                                                                            \
            LOAD_OUTER_B(b_at, depth, row_stride)                                                                      \
            [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)                                                           \
                to[r] = coopMatMulAdd(held[r * (depth) + t], b, to[r]);                                                \
        }                                                                                                              \
    else [[dont_unroll]]                                                                                               \
        for (uint t = 0u; t < depth; t++) {                                                                            \
            LOAD_OUTER_B(b_at, depth, row_stride)                                                                      \
            [[unroll]] for (uint r = 0u; r < ROW_TILES; r++) {                                                         \
                MATRIX_A a;                                                                                            \
                coopMatLoad(a, memory,                                                                                 \
                            (a_at) + (team_row + r * MATRIX_M) * (row_stride) +                                        \
                                (first_depth(depth) + t) * (MATRIX_N / 8u),                                            \
                            row_stride, ROW_MAJOR);                                                                    \
                to[r] = coopMatMulAdd(a, b, to[r]);                                                                    \
            }                                                                                                          \
        }

#define LOAD_OUTER_B(b_at, depth, row_stride)                                                                          \
    MATRIX_B b;                                                                                                        \
    coopMatLoad(b, memory,                                                                                             \
                (b_at) + (team_column + j * MATRIX_N) * (row_stride) + (first_depth(depth) + t) * (MATRIX_N / 8u),     \
                row_stride, COLUMN_MAJOR);

/* 3: S = Q K^T and dP = dO V^T */
#define COMPUTE_S                                                                                                      \
    {                                                                                                                  \
        MULTIPLY_OUTER(s, held, HOLD_A, A_OFFSET, 0u, A_TILES, B_STRIDE)                                               \
        MULTIPLY_OUTER(dp, held2, HOLD_A2, A2_OFFSET, B2_OFFSET, A2_TILES, B2_STRIDE)                                  \
    }

/* to += W B, W = P or dS of the team's rows. The non-finite slow path skips weights of 0, since 0 times NaN or infinity
 * is NaN. */
#define MULTIPLY_INNER(to, tiles, count, w_at, b_at, row_stride, flag)                                                 \
    if (is_partial && non_finite[flag] == step) [[dont_unroll]]                                                        \
        for (uint i = 0u; i < count; i++) {                                                                            \
            MATRIX_F32 sum = MATRIX_F32(0.0);                                                                          \
            const uint column = (member * (tiles) + i % (tiles)) * MATRIX_N;                                           \
            [[dont_unroll]] for (uint n = 0u; n < BLOCK_N; n++)                                                        \
                [[unroll]] for (uint e = 0u; e < LENGTH; e++) {                                                        \
                    uint row = team_row + i / (tiles)*MATRIX_M + row_at(row_of(e), lane);                              \
                    float w = half_at((w_at) + row * P_STRIDE, n);                                                     \
                    float with = fma(w, half_at((b_at) + n * (row_stride), column + column_at(e, lane)), sum[e]);      \
                    sum[e] = is_zero(w) ? sum[e] : with;                                                               \
                }                                                                                                      \
            [[unroll]] for (uint t = 0u; t < count; t++)                                                               \
                if (t == i)                                                                                            \
                    to[t] = to[t] + sum;                                                                               \
        }                                                                                                              \
    else [[dont_unroll]]                                                                                               \
        for (uint n = 0u; n < BLOCK_N / MATRIX_N; n++) {                                                               \
            MATRIX_A a[ROW_TILES];                                                                                     \
            [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)                                                           \
                coopMatLoad(a[r], memory, (w_at) + (team_row + r * MATRIX_M) * P_STRIDE + n * (MATRIX_N / 8u),         \
                            P_STRIDE, ROW_MAJOR);                                                                      \
            [[unroll]] for (uint t = 0u; t < tiles; t++) {                                                             \
                MATRIX_B b;                                                                                            \
                coopMatLoad(b, memory,                                                                                 \
                            (b_at) + n * MATRIX_N * (row_stride) + (member * (tiles) + t) * (MATRIX_N / 8u),           \
                            row_stride, ROW_MAJOR);                                                                    \
                [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)                                                       \
                    to[r * (tiles) + t] = coopMatMulAdd(a[r], b, to[r * (tiles) + t]);                                 \
            }                                                                                                          \
        }

/* Through shared memory of the subgroup, so that stores are contiguous. */
#define STORE_OUTPUT(tensor, from, tiles, count, size, by)                                                             \
    {                                                                                                                  \
        const uint groups = OUT_CHUNK * MATRIX_N / 4u, out_at = warp * ROWS * OUT_STRIDE;                              \
        uvec2 out_plane = plane(tensor, outer.b, outer.h);                                                             \
        [[dont_unroll]] for (uint t0 = 0u; t0 < tiles; t0 += OUT_CHUNK) {                                              \
            wait_subgroup();                                                                                           \
            [[unroll]] for (uint i = 0u; i < count; i++) {                                                             \
                uint r = i / (tiles), t = i % (tiles);                                                                 \
                if (t >= t0 && t < t0 + OUT_CHUNK)                                                                     \
                    coopMatStore(from[i], memory, out_at + r * MATRIX_M * OUT_STRIDE + (t - t0) * (MATRIX_N / 4u),     \
                                 OUT_STRIDE, ROW_MAJOR);                                                               \
            }                                                                                                          \
            wait_subgroup();                                                                                           \
            [[dont_unroll]] for (uint i = lane; i < ROWS * groups; i += LANES) {                                       \
                uint r = i / groups, g = i % groups, row = team_row + r;                                               \
                uint tile = t0 + g / (MATRIX_N / 4u), column = (member * (tiles) + t0) * MATRIX_N + 4u * g;            \
                if (row < outer.rows && tile < tiles && column < size)                                                 \
                    store4(O_TYPE,                                                                                     \
                           address_add(address_step(out_plane, outer.row0 + row, tensor.stride_row),                   \
                                       column *bytes_of(O_TYPE)),                                                      \
                           out_aligned, uintBitsToFloat(memory[out_at + r * OUT_STRIDE + g]) * by);                    \
            }                                                                                                          \
        }                                                                                                              \
    }

float half_at(const in uint at, const in uint element)
{
    uint word = memory[at + element / 8u][element / 2u % 4u];
    return unpackHalf2x16((element & 1u) != 0u ? word >> 16 : word).x;
}

/* LSE in units of log2 where no expression needs it, which saves a multiplication for each score. */
const float LSE_UNIT = SCORE ? 1.0 : LOG2E;

void main()
{
    const uint inputs = ATTUNE_VULKAN_ALIGNED_Q | ATTUNE_VULKAN_ALIGNED_K | ATTUNE_VULKAN_ALIGNED_V |
                        ATTUNE_VULKAN_ALIGNED_D_O;
    attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);
    const uint lane = gl_SubgroupInvocationID, warp = gl_SubgroupID, tid = warp * LANES + lane;
    const uint member = warp % TEAM, team_row = warp / TEAM * ROWS,
               team_column = SPLIT_DEPTH ? 0u : member * S_TILES * MATRIX_N;
    const OuterTile outer = outer_tile_of(args, push.first + gl_WorkGroupID.x);
    const bool aligned = ALIGNED || (args.flags & inputs) == inputs;
    const uvec2 a_stride = TENSOR_A.stride_row, b_stride = TENSOR_B.stride_row, a2_stride = TENSOR_A2.stride_row,
                b2_stride = TENSOR_B2.stride_row;
    const float factor = args.scale * (SCORE ? 1.0 : LOG2E);
#ifdef KEYS
    const uint inner_len = args.q_len;
#else
    const uint inner_len = args.kv_len;
    vec4 d_uniform = vec4(0.0); /* gradients of capture elements that all pairs read */
    /* Rows past the end get weights of 0. */
    float lse[ALL_ROWS], delta[ALL_ROWS];
    [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++) {
        uint row = team_row + i / ROW_COUNT * MATRIX_M + row_at(i % ROW_COUNT, lane);
        uint q = outer.row0 + min(row, outer.rows - 1u);
        float l = load_lse(args.lse, outer.b, outer.h, q) * LSE_UNIT;
        lse[i] = row < outer.rows ? l : uintBitsToFloat(0x7f800000u);
        delta[i] = load_delta(args, outer.b, outer.h, q);
    }
#endif

    /* 1, 2: load Q and K, dO and V: the outer tile's. What is held passes through all shared memory, so it is first. */
    if (tid < 2u)
        non_finite[tid] = 0u;
    MATRIX_A held[HELD_COUNT];
    MATRIX_A held2[HELD2_COUNT];
    const uvec2 a_plane = plane(TENSOR_A, outer.b, outer.h), a2_plane = plane(TENSOR_A2, outer.b, outer.h);
    if (HOLD_A)
        LOAD_A
    LOAD_A2
    if (!HOLD_A)
        LOAD_A

    MATRIX_F32 x[X_COUNT]; /* dK or dQ */
    [[unroll]] for (uint i = 0u; i < X_COUNT; i++)
        x[i] = MATRIX_F32(0.0);
#ifdef KEYS
    MATRIX_F32 y[Y_COUNT]; /* dV */
    [[unroll]] for (uint i = 0u; i < Y_COUNT; i++)
        y[i] = MATRIX_F32(0.0);
#endif

    Group fetched[FETCH], fetched2[FETCH2];
    vec2 state = vec2(0.0); /* with KEYS, LSE and delta of an inner row */
    InnerTiles next;
    next.plane = 0u;
    inner_tiles_begin(next, args, outer);
    bool more = inner_tiles_next(next, args, outer, inner_len);
    if (more) {
        FETCH_NEXT
    }
    [[dont_unroll]] for (uint step = 1u; more; step++) {
        const uint inner_b = next.b, inner_h = next.h, row0 = next.blocks.row0;
        const bool is_partial = MASK && next.blocks.kind != 0u; /* the mask may forbid pairs */

        /* The inner tile's, which were fetched during the previous one's arithmetic */
        STORE_ROWS(0u, fetched, FETCH, next.b_plane, b_stride, row0, B_GROUPS, HEAD_DIM, B_STRIDE, 0, is_partial)
        STORE_ROWS(B2_OFFSET, fetched2, FETCH2, next.b2_plane, b2_stride, row0, B2_GROUPS, HEAD_DIM_V, B2_STRIDE, 1,
                   is_partial)
#ifdef KEYS
        if (tid < BLOCK_N) {
            uvec2 bits = floatBitsToUint(state);
            if ((tid & 1u) == 0u)
                memory[STATE_OFFSET + tid / 2u].xy = bits;
            else
                memory[STATE_OFFSET + tid / 2u].zw = bits;
        }
#endif
        barrier();

        /* A matrix of columns at a time, in a loop: the expressions stand in the code once for each row of matrices,
         * and no array of matrices is indexed by a loop that a driver may not unroll (decision 0051). */
        MATRIX_F32 s[ROW_TILES];
        MATRIX_F32 dp[ROW_TILES];

        const uint one = MATRIX_M * SUM_STRIDE, all = 2u * ROW_TILES * S_TILES * one;
        if (SPLIT_DEPTH) {
            /* Each matrix is summed by one subgroup of the team, in one order. */
            [[dont_unroll]] for (uint j = 0u; j < S_TILES; j++) {
                COMPUTE_S
                [[unroll]] for (uint r = 0u; r < ROW_TILES; r++) {
                    const uint at = SUM_OFFSET + warp * all + 2u * (r * S_TILES + j) * one;
                    coopMatStore(s[r], memory, at, SUM_STRIDE, ROW_MAJOR);
                    coopMatStore(dp[r], memory, at + one, SUM_STRIDE, ROW_MAJOR);
                }
            }
            barrier();
        }
        [[dont_unroll]] for (uint j = 0u; j < S_TILES; j++) {
            if (!SPLIT_DEPTH)
                COMPUTE_S
            const uint column0 = team_column + j * MATRIX_N;
            /* 4: score and mask; 5: P, and dS with respect to scale q k */
#ifndef KEYS
            /* With CAPTURES; d = dS with respect to the result. */
            float raw_of[ROW_TILES * LENGTH], d_of[ROW_TILES * LENGTH];
            if (CAPTURES) [[unroll]]
                for (uint n = 0u; n < ROW_TILES * LENGTH; n++)
                    d_of[n] = 0.0;
#endif
            [[unroll]] for (uint r = 0u; r < ROW_TILES; r++) {
                if (SPLIT_DEPTH) {
                    if ((r * S_TILES + j) % TEAM != member)
                        continue;
                    s[r] = MATRIX_F32(0.0);
                    dp[r] = MATRIX_F32(0.0);
                    [[dont_unroll]] for (uint w = warp - member; w < warp - member + TEAM; w++) {
                        const uint at = SUM_OFFSET + w * all + 2u * (r * S_TILES + j) * one;
                        MATRIX_F32 other;
                        coopMatLoad(other, memory, at, SUM_STRIDE, ROW_MAJOR);
                        s[r] = s[r] + other;
                        coopMatLoad(other, memory, at + one, SUM_STRIDE, ROW_MAJOR);
                        dp[r] = dp[r] + other;
                    }
                }
                uint allowed = 0xffffffffu;
                if (is_partial || row0 + BLOCK_N > inner_len) [[unroll]]
                    for (uint e = 0u; e < LENGTH; e++) {
                        uint inner_row = row0 + column0 + column_at(e, lane);
                        bool may = inner_row < inner_len;
                        if (is_partial) {
                            uint outer_row = outer.row0 + team_row + r * MATRIX_M + row_at(row_of(e), lane);
                            bool by_mask = attune_mask(int(inner_b), int(inner_h), Q_AND_KV(outer_row, inner_row),
                                                       args.mask_mod);
                            may = may && by_mask;
                        }
                        allowed &= may ? ~0u : ~(1u << e);
                    }
                MATRIX_F16 p;
                MATRIX_F16 ds;
                [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
#ifdef KEYS
                    uint column = column0 + column_at(e, lane);
                    uvec4 states = memory[STATE_OFFSET + column / 2u];
                    float l = uintBitsToFloat((column & 1u) != 0u ? states.z : states.x);
                    float subtract = uintBitsToFloat((column & 1u) != 0u ? states.w : states.y);
#else
                    float l = lse[r * ROW_COUNT + row_of(e)], subtract = delta[r * ROW_COUNT + row_of(e)];
#endif
                    float raw = s[r][e] * factor, weight, slope = 1.0;
                    if (SCORE) {
                        uint inner_row = row0 + column0 + column_at(e, lane);
                        uint outer_row = outer.row0 + team_row + r * MATRIX_M + row_at(row_of(e), lane);
                        float value = attune_score(raw, int(inner_b), int(inner_h), Q_AND_KV(outer_row, inner_row),
                                                   args.score_mod);
                        slope = attune_d_score(raw, int(inner_b), int(inner_h), Q_AND_KV(outer_row, inner_row),
                                               args.score_mod);
                        weight = exp2((value - l) * LOG2E);
                    } else
                        weight = exp2(raw - l);
                    weight = (allowed >> e & 1u) != 0u ? weight : 0.0;
                    float d = is_zero(weight) ? 0.0 : weight * (dp[r][e] - subtract);
#ifndef KEYS
                    if (CAPTURES) {
                        bool valid = team_row + r * MATRIX_M + row_at(row_of(e), lane) < outer.rows;
                        raw_of[r * LENGTH + e] = raw;
                        d_of[r * LENGTH + e] = valid ? d : 0.0;
                    }
#endif
                    if (SCORE)
                        d = is_zero(d) ? 0.0 : d * slope;
                    p[e] = float16_t(weight);
                    ds[e] = float16_t(d);
                }
                const uint at = (team_row + r * MATRIX_M) * P_STRIDE + column0 / 8u;
#ifdef KEYS
                coopMatStore(p, memory, P_OFFSET + at, P_STRIDE, ROW_MAJOR);
#endif
                coopMatStore(ds, memory, DS_OFFSET + at, P_STRIDE, ROW_MAJOR);
            }

#ifndef KEYS
            /* A loop, so that the expression's code exists once. */
            if (CAPTURES) [[dont_unroll]]
                for (uint n = 0u; n < ROW_TILES * LENGTH; n++) {
                    uint r = n / LENGTH, e = n % LENGTH;
                    uint q = outer.row0 + team_row + r * MATRIX_M + row_at(row_of(e), lane);
                    uint kv = row0 + column0 + column_at(e, lane);
                    float raw = raw_of[n], d = d_of[n];
                    if (!is_zero(d)) {
                        d_uniform += d *
                                     attune_d_uniform(raw, int(inner_b), int(inner_h), int(q), int(kv), args.score_mod);
                        attune_d_add(raw, int(inner_b), int(inner_h), int(q), int(kv), args.score_mod, d);
                    }
                }
#endif
        }

        more = inner_tiles_next(next, args, outer, inner_len);
        if (more) {
            FETCH_NEXT
        }
        if (TEAM > 1u)
            barrier();
        else
            wait_subgroup();

            /* 6: dV += P^T dO and dK += dS^T Q, or dQ += dS K */
#ifdef KEYS
        MULTIPLY_INNER(y, Y_TILES, Y_COUNT, P_OFFSET, B2_OFFSET, B2_STRIDE, 1)
#endif
        MULTIPLY_INNER(x, X_TILES, X_COUNT, DS_OFFSET, 0u, B_STRIDE, 0)
        barrier(); /* B and B2 have been read */
    }

    /* 7: store dK and dV, or dQ */
#ifdef KEYS
    const uint outputs = ATTUNE_VULKAN_ALIGNED_D_K | ATTUNE_VULKAN_ALIGNED_D_V;
    const bool out_aligned = ALIGNED || (args.flags & outputs) == outputs;
    STORE_OUTPUT(args.d_k, x, X_TILES, X_COUNT, HEAD_DIM, args.scale)
    STORE_OUTPUT(args.d_v, y, Y_TILES, Y_COUNT, HEAD_DIM_V, 1.0)
#else
    const bool out_aligned = ALIGNED || (args.flags & ATTUNE_VULKAN_ALIGNED_D_Q) != 0u;
    STORE_OUTPUT(args.d_q, x, X_TILES, X_COUNT, HEAD_DIM, args.scale)
    if (CAPTURES)
        attune_d_uniform_add(d_uniform, int(outer.b), int(outer.h), args.score_mod);
#endif
}
