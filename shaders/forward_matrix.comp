/* SPDX-License-Identifier: MIT */
/*
 * Forward attention and decode on cooperative matrices of the device's shape, f16 into f32. A workgroup computes one
 * tile of rows and loops over the tiles of keys that the mask lists. Each subgroup has ROWS rows, their S and their O,
 * so that only K and V are shared. The stages are numbered as in docs/algorithm.md.
 *
 * The fragment layout is the driver's and unknown. Where rows and columns matter, S and P pass through shared memory of
 * the subgroup: there lane `row_lane * ROWS + row` has every ROW_LANES-th group of four of a row.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require

#include "arguments.glsl"
#include "elements.glsl"
#include "mods.glsl"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;

#include "layout_matrix.h"
#include "block_lists.glsl"

#define MATRIX_A     coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define MATRIX_B     coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>
#define MATRIX_F32   coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
#define ROW_MAJOR    gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

const uint FETCHED = FETCH * THREADS;
const uint S_STEP = MATRIX_N / 4u;

/* subgroupBarrier orders images and buffers too, for which some drivers wait. */
void wait_subgroup()
{
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

const uint FORBIDDEN_BITS = 0x8000u; /* -0: a product treats it as 0, and no weight is -0 */
/* O is rescaled only when the row maximum rises by more than this power of two. That is rare, and weights stay far
 * below the largest f16. */
const float RESCALE_THRESHOLD = SCORE ? 8.0 * LN2 : 8.0;

/* Loads are begun long before their values are stored to shared memory, so that arithmetic hides their latency. */
#define FETCH_ROWS(from, stride, kv, groups, dim)                                                                      \
    if (aligned) {                                                                                                     \
        uvec2 tile_at = address_step(from, kv, stride);                                                                \
        [[unroll]] for (uint f = 0u; f < FETCH; f++) {                                                                 \
            uint i = tid + f * THREADS, n = i / (groups), g = i % (groups);                                            \
            fetched[f] = fetch(address_add(address_step(tile_at, n, stride), g * 16u), true,                           \
                               n < BLOCK_N && g < (dim) / 8u && (kv) + n < kv_len);                                    \
        }                                                                                                              \
    }

/* Groups that FETCH does not cover, or that are not aligned, are loaded here. */
#define STORE_ROWS(from, stride, kv, groups, dim, row_stride, look)                                                    \
    {                                                                                                                  \
        if (aligned) [[unroll]]                                                                                        \
            for (uint f = 0u; f < FETCH; f++) {                                                                        \
                uint i = tid + f * THREADS, n = i / (groups), g = i % (groups);                                        \
                if (look && masked && is_non_finite(fetched[f]))                                                       \
                    non_finite[0] = 1u;                                                                                \
                if (n < BLOCK_N)                                                                                       \
                    memory[n * (row_stride) + g] = fetched[f].low;                                                     \
            }                                                                                                          \
        if (!aligned || FETCHED < BLOCK_N * (groups)) [[dont_unroll]]                                                  \
            for (uint i = tid + (aligned ? FETCHED : 0u); i < BLOCK_N * (groups); i += THREADS) {                      \
                uint n = i / (groups), g = i % (groups);                                                               \
                Group late = fetch(address_add(address_step(from, (kv) + n, stride), g * 16u), aligned,                \
                                   g < (dim) / 8u && (kv) + n < kv_len);                                               \
                if (look && masked && is_non_finite(late))                                                             \
                    non_finite[0] = 1u;                                                                                \
                memory[n * (row_stride) + g] = late.low;                                                               \
            }                                                                                                          \
    }

/* Two weights as f16; those that are forbidden as -0. */
uint pack_weights(const in vec2 p, const in uint allowed)
{
    uint bits = packHalf2x16(p);
    uint low = (allowed & 1u) != 0u ? bits & 0xffffu : FORBIDDEN_BITS;
    uint high = (allowed & 2u) != 0u ? bits & 0xffff0000u : FORBIDDEN_BITS << 16;
    return low | high;
}

float half_at(const in uint at, const in uint element)
{
    uint word = memory[at + element / 8u][element / 2u % 4u];
    return unpackHalf2x16((element & 1u) != 0u ? word >> 16 : word).x;
}

bool is_forbidden(const in uint at, const in uint element)
{
    uint word = memory[at + element / 8u][element / 2u % 4u];
    return ((element & 1u) != 0u ? word >> 16 : word & 0xffffu) == FORBIDDEN_BITS;
}

void main()
{
    attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);
    uint lane = gl_SubgroupInvocationID, warp = gl_SubgroupID, tid = warp * (ROWS * ROW_LANES) + lane;
    TileCoord coord = tile_coord_of(args, push.first + gl_WorkGroupID.x);
    uvec2 q_plane = plane(args.q, coord.b, coord.h0), k_plane = plane(args.k, coord.b, coord.kv_h),
          v_plane = plane(args.v, coord.b, coord.kv_h);
    uvec2 q_stride_h = args.q.stride_h, q_stride = args.q.stride_row, k_stride = args.k.stride_row,
          v_stride = args.v.stride_row;
    bool aligned = ALIGNED ||
                   (args.flags & (ATTUNE_VULKAN_ALIGNED_Q | ATTUNE_VULKAN_ALIGNED_K | ATTUNE_VULKAN_ALIGNED_V)) ==
                       (ATTUNE_VULKAN_ALIGNED_Q | ATTUNE_VULKAN_ALIGNED_K | ATTUNE_VULKAN_ALIGNED_V),
         o_aligned = ALIGNED || (args.flags & ATTUNE_VULKAN_ALIGNED_O) != 0u;
    uint kv_len = args.kv_len, kv_block = args.kv_block;
    float factor = args.scale * (SCORE ? 1.0 : LOG2E);

    /* The row of this invocation in stages 4 and 5. */
    uint s_base = WARPS_OFFSET + warp * WARP_SIZE, extra_base = s_base + EXTRA_OFFSET;
    uint warp_row = lane % ROWS, row_lane = lane / ROWS, row = warp * ROWS + warp_row;
    bool has_row = row < coord.rows;
    uint row_q = coord.q0 + query_of(row, coord.queries), row_h = coord.h0 + head_of(row, coord.queries);
    float m = LOWEST, row_max = LOWEST; /* the maximum that scores are relative to; the true one */
    float l = 0.0,
          weight = 0.0; /* this lane's share of the sum, and of the sum of weights rounded to f16, which divides O */

    Group fetched[FETCH];
    BlockIterator next = block_iterator_begin(args, coord);
    bool more = block_iterator_next(next, kv_block, kv_len);
    if (more)
        FETCH_ROWS(k_plane, k_stride, next.row0, K_GROUPS, HEAD_DIM)

    /* 1: load Q */
    [[dont_unroll]] for (uint i = tid; i < BLOCK_M * K_GROUPS; i += THREADS) {
        uint r = i / K_GROUPS, g = i % K_GROUPS;
        uvec2 at = address_step(address_step(q_plane, head_of(r, coord.queries), q_stride_h),
                                coord.q0 + query_of(r, coord.queries), q_stride);
        Group q8 = fetch(Q_TYPE, address_add(at, g * 8u * bytes_of(Q_TYPE)), aligned,
                         r < coord.rows && g < HEAD_DIM / 8u);
        memory[Q_OFFSET + r * K_STRIDE + g] = convert(Q_TYPE, q8, TYPE);
    }
    barrier();
    MATRIX_A held[HELD_COUNT];
    if (HOLD_Q) [[unroll]]
        for (uint i = 0u; i < HELD_COUNT; i++)
            coopMatLoad(held[i], memory,
                        Q_OFFSET + (warp * ROWS + i / Q_TILES * MATRIX_M) * K_STRIDE + i % Q_TILES * (MATRIX_K / 8u),
                        K_STRIDE, ROW_MAJOR);
    MATRIX_F32 o[O_COUNT];
    [[unroll]] for (uint i = 0u; i < O_COUNT; i++)
        o[i] = MATRIX_F32(0.0);

    while (more) {
        const uint kv0 = next.row0, kind = next.kind;
        more = block_iterator_next(next, kv_block, kv_len);
        bool masked = (MASK && kind != 0u) || kv0 + BLOCK_N > kv_len; /* some pairs may be forbidden */

        /* 2: load K */
        barrier();
        STORE_ROWS(k_plane, k_stride, kv0, K_GROUPS, HEAD_DIM, K_STRIDE, false)
        FETCH_ROWS(v_plane, v_stride, kv0, V_GROUPS, HEAD_DIM_V)
        if (tid == 0u)
            non_finite[0] = 0u;
        barrier();

        /* 3: S = Q K^T */
        MATRIX_F32 s[S_COUNT];
        [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
            s[i] = MATRIX_F32(0.0);
        [[unroll]] for (uint t = 0u; t < Q_TILES; t++) {
            MATRIX_A a[ROW_TILES];
            [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                if (HOLD_Q)
                    a[r] = held[r * Q_TILES + t];
                else
                    coopMatLoad(a[r], memory, Q_OFFSET + (warp * ROWS + r * MATRIX_M) * K_STRIDE + t * (MATRIX_K / 8u),
                                K_STRIDE, ROW_MAJOR);
            [[unroll]] for (uint j = 0u; j < S_TILES; j++) {
                MATRIX_B b;
                coopMatLoad(b, memory, j * MATRIX_N * K_STRIDE + t * (MATRIX_K / 8u), K_STRIDE, COLUMN_MAJOR);
                [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                    s[r * S_TILES + j] = coopMatMulAdd(a[r], b, s[r * S_TILES + j]);
            }
        }
        [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
            coopMatStore(s[i], memory, s_base + i / S_TILES * MATRIX_M * S_STRIDE + i % S_TILES * S_STEP, S_STRIDE,
                         ROW_MAJOR);
        wait_subgroup();

        /* 4: score and mask; 5: online softmax */
        bool rescale;
        {
            vec4 x[ROW_GROUPS];
            float most = LOWEST;
            uint s_at = s_base + warp_row * S_STRIDE + row_lane;
            [[unroll]] for (uint e = 0u; e < ROW_GROUPS; e++)
                x[e] = uintBitsToFloat(memory[s_at + e * ROW_LANES]) * factor;
            uint allowed = 0xffffffffu; /* ROW_GROUPS is at most 8 */
            if (SCORE && has_row) [[unroll]]
                for (uint e = 0u; e < ROW_GROUPS; e++)
                    [[unroll]] for (uint j = 0u; j < 4u; j++) {
                        uint kv = kv0 + 4u * (row_lane + e * ROW_LANES) + j;
                        x[e][j] = attune_score(x[e][j], int(coord.b), int(row_h), int(row_q), int(kv), args.score_mod);
                    }
            if (masked) {
                /* Without branches, so that the loads of all pairs are in flight together; captures check indices. */
                if (MASK && kind != 0u) [[unroll]]
                    for (uint e = 0u; e < ROW_GROUPS; e++)
                        [[unroll]] for (uint j = 0u; j < 4u; j++) {
                            uint kv = kv0 + 4u * (row_lane + e * ROW_LANES) + j;
                            bool may = attune_mask(int(coord.b), int(row_h), int(row_q), int(kv), args.mask_mod);
                            allowed &= may ? ~0u : ~(1u << (4u * e + j));
                        }
                [[unroll]] for (uint e = 0u; e < ROW_GROUPS; e++)
                    [[unroll]] for (uint j = 0u; j < 4u; j++) {
                        uint kv = kv0 + 4u * (row_lane + e * ROW_LANES) + j;
                        allowed &= has_row && kv < kv_len ? ~0u : ~(1u << (4u * e + j));
                        x[e][j] = (allowed >> (4u * e + j) & 1u) != 0u ? x[e][j] : LOWEST;
                    }
            }
            [[unroll]] for (uint e = 0u; e < ROW_GROUPS; e++)
                most = max(most, max(max(x[e].x, x[e].y), max(x[e].z, x[e].w)));
            [[unroll]] for (uint step = ROWS; step < ROWS * ROW_LANES; step *= 2u)
                most = max(most, subgroupShuffleXor(most, step));
            row_max = max(row_max, most);
            /* The first tile always rescales: LOWEST is far below every score. */
            bool follow = most > m + RESCALE_THRESHOLD;
            rescale = subgroupAny(follow);
            float before = m;
            m = follow ? most : m;
            float alpha = exp2((before - m) * TO_LOG2);
            l *= alpha;
            weight *= alpha;
            [[unroll]] for (uint e = 0u; e < ROW_GROUPS; e++) {
                vec4 p = exp2((x[e] - vec4(m)) * TO_LOG2);
                uint may = allowed >> 4u * e;
                if (masked) [[unroll]]
                    for (uint j = 0u; j < 4u; j++)
                        l += (may >> j & 1u) != 0u ? p[j] : 0.0;
                else
                    l += p.x + p.y + p.z + p.w;
                x[e] = p;
            }
            wait_subgroup(); /* S has been read */
            [[unroll]] for (uint e = 0u; e < ROW_GROUPS; e++) {
                uint g = row_lane + e * ROW_LANES, may = allowed >> 4u * e;
                uvec2 p = masked ? uvec2(pack_weights(x[e].xy, may), pack_weights(x[e].zw, may >> 2))
                                 : uvec2(packHalf2x16(x[e].xy), packHalf2x16(x[e].zw));
                vec2 low = unpackHalf2x16(p.x), high = unpackHalf2x16(p.y);
                weight += low.x + low.y + high.x + high.y;
                uint at = s_base + warp_row * P_STRIDE + g / 2u;
                if ((g & 1u) == 0u)
                    memory[at].xy = p;
                else
                    memory[at].zw = p;
            }
            if (rescale) [[unroll]]
                for (uint i = 0u; i < EXTRA_STRIDE; i++)
                    if (i % ROW_LANES == row_lane)
                        memory[extra_base + warp_row * EXTRA_STRIDE + i] = floatBitsToUint(vec4(alpha));
        }

        barrier(); /* K has been read */
        STORE_ROWS(v_plane, v_stride, kv0, V_GROUPS, HEAD_DIM_V, V_STRIDE, true)
        if (more)
            FETCH_ROWS(k_plane, k_stride, next.row0, K_GROUPS, HEAD_DIM)
        if (rescale) [[unroll]]
            for (uint r = 0u; r < ROW_TILES; r++) {
                MATRIX_F32 alpha;
                coopMatLoad(alpha, memory, extra_base + r * MATRIX_M * EXTRA_STRIDE, EXTRA_STRIDE, ROW_MAJOR);
                [[unroll]] for (uint t = 0u; t < O_TILES; t++)
                    o[r * O_TILES + t] = o[r * O_TILES + t] * alpha;
            }
        barrier();

        /* 6: O += P V */
        if (masked && non_finite[0] != 0u) {
            /* The non-finite slow path: weight by weight, since 0 times NaN is NaN where the pair is forbidden. */
            [[unroll]] for (uint t = 0u; t < O_TILES; t++) {
                [[dont_unroll]] for (uint i = lane; i < ROWS * MATRIX_N; i += ROWS * ROW_LANES) {
                    uint r = i / MATRIX_N, c = i % MATRIX_N;
                    float sum = 0.0;
                    [[dont_unroll]] for (uint n = 0u; n < BLOCK_N; n++) {
                        float product = half_at(s_base + r * P_STRIDE, n) * half_at(n * V_STRIDE, t * MATRIX_N + c);
                        sum = is_forbidden(s_base + r * P_STRIDE, n) ? sum : sum + product;
                    }
                    memory[extra_base + r * EXTRA_STRIDE + c / 4u][c % 4u] = floatBitsToUint(sum);
                }
                wait_subgroup();
                [[unroll]] for (uint r = 0u; r < ROW_TILES; r++) {
                    MATRIX_F32 sum;
                    coopMatLoad(sum, memory, extra_base + r * MATRIX_M * EXTRA_STRIDE, EXTRA_STRIDE, ROW_MAJOR);
                    o[r * O_TILES + t] = o[r * O_TILES + t] + sum;
                }
                wait_subgroup();
            }
        } else [[unroll]]
            for (uint n = 0u; n < BLOCK_N / MATRIX_K; n++) {
                MATRIX_A a[ROW_TILES];
                [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                    coopMatLoad(a[r], memory, s_base + r * MATRIX_M * P_STRIDE + n * (MATRIX_K / 8u), P_STRIDE,
                                ROW_MAJOR);
                [[unroll]] for (uint t = 0u; t < O_TILES; t++) {
                    MATRIX_B b;
                    coopMatLoad(b, memory, n * MATRIX_K * V_STRIDE + t * (MATRIX_N / 8u), V_STRIDE, ROW_MAJOR);
                    [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                        o[r * O_TILES + t] = coopMatMulAdd(a[r], b, o[r * O_TILES + t]);
                }
            }
    }

    /* 7: store O and LSE, or the partial result of a split */
    [[unroll]] for (uint step = ROWS; step < ROWS * ROW_LANES; step *= 2u) {
        l += subgroupShuffleXor(l, step);
        weight += subgroupShuffleXor(weight, step);
    }
    bool split = args.splits > 1u, partial = split || (args.flags & ATTUNE_VULKAN_IS_PARTIAL) != 0u;
    float top = m;
    vec2 sink = split || !has_row ? vec2(1.0, 0.0) : add_sink(args, row_h, top);
    float sum = l * sink.x + sink.y;
    float to_row_max = exp2((m - row_max) * TO_LOG2); /* partial results are relative to the true maximum */
    wait_subgroup();                                  /* P has been read */
    if (row_lane == 0u)
        memory[extra_base + warp_row * EXTRA_STRIDE].x = floatBitsToUint(
            is_zero(sum) ? partial ? 1.0 : ZERO_ROW : (split ? to_row_max * l : sink.x) / (weight * sink.x + sink.y));
    if (has_row && row_lane == 0u) {
        if (split) {
            uint at = ((coord.b * args.heads + row_h) * args.q_len + row_q) * args.splits + coord.split;
            uvec2 to = address_step(args.partials_ml, at, uvec2(8u, 0u));
            OutWord(to).value = floatBitsToUint(row_max);
            OutWord(address_add(to, 4u)).value = floatBitsToUint(l * to_row_max);
        } else {
            store_row(args.lse, coord.b, row_h, row_q, lse_bits(top, sum));
            store_row(args.row_max, coord.b, row_h, row_q, row_max_bits(row_max, l));
        }
    }
    /* Through the shared memory of S, as many columns at a time as S has. */
    [[unroll]] for (uint t0 = 0u; t0 < O_TILES; t0 += S_TILES) {
        wait_subgroup();
        [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
            if (t0 + i % S_TILES < O_TILES)
                coopMatStore(o[i / S_TILES * O_TILES + t0 + i % S_TILES], memory,
                             s_base + i / S_TILES * MATRIX_M * S_STRIDE + i % S_TILES * S_STEP, S_STRIDE, ROW_MAJOR);
        wait_subgroup();
        [[dont_unroll]] for (uint i = lane; i < ROWS * (BLOCK_N / 4u); i += ROWS * ROW_LANES) {
            uint r = i / (BLOCK_N / 4u), g = i % (BLOCK_N / 4u), at = warp * ROWS + r, column = t0 * MATRIX_N + 4u * g;
            uint q = coord.q0 + query_of(at, coord.queries), h = coord.h0 + head_of(at, coord.queries);
            float scale = uintBitsToFloat(memory[extra_base + r * EXTRA_STRIDE].x);
            vec4 value = uintBitsToFloat(memory[s_base + r * S_STRIDE + g]) * scale;
            if (scale == ZERO_ROW)
                value = vec4(0.0);
            if (at < coord.rows && column < HEAD_DIM_V) {
                if (split) {
                    uint to = ((coord.b * args.heads + h) * args.q_len + q) * args.splits + coord.split;
                    OutVec4(address_add(address_step(args.partials, to, uvec2(HEAD_DIM_V * 4u, 0u)), column * 4u))
                        .value = value;
                } else
                    store4(O_TYPE,
                           address_add(address_step(plane(args.o, coord.b, h), q, args.o.stride_row),
                                       column * bytes_of(O_TYPE)),
                           o_aligned, value);
            }
        }
    }
}
