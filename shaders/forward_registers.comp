/* SPDX-License-Identifier: MIT */
/*
 * Forward attention and decode on cooperative matrices, f16 into f32, of devices that spread a matrix over the lanes in a
 * way that is known (attune_matrix_spread): S, P and O never leave registers. A workgroup owns the rows of one tile and
 * walks the tiles of the keys that its mask lists; each subgroup has ROWS rows of it, so that only K and V are shared.
 * The stages carry the numbers of docs/algorithm.md.
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

layout(local_size_x_id = 0) in;

/* Most are attune__spread_layout's (src/plan/layout.h). Groups are 16 bytes. */
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint BLOCK_M = 64;
layout(constant_id = 2) const uint BLOCK_N = 64;
layout(constant_id = 3) const uint HEAD_DIM = 64;
layout(constant_id = 4) const uint HEAD_DIM_V = 64;
layout(constant_id = 5) const uint MATRIX_M = 16;
layout(constant_id = 6) const uint MATRIX_N = 16;
layout(constant_id = 7) const uint LANES = 32;
layout(constant_id = 8) const uint ROW_TILES = 1; /* matrices: rows of a subgroup, columns of S, depth of Q, columns of O */
layout(constant_id = 9) const uint S_TILES = 4;
layout(constant_id = 10) const uint Q_TILES = 4;
layout(constant_id = 11) const uint O_TILES = 4;
layout(constant_id = 12) const uint S_COUNT = 4; /* ROW_TILES times the above */
layout(constant_id = 13) const uint HELD_COUNT = 1; /* 1 if Q is not held */
layout(constant_id = 14) const uint O_COUNT = 4;
layout(constant_id = 15) const bool QUADS = true;   /* how a matrix lies in the lanes: below */
layout(constant_id = 16) const uint ROW_COUNT = 2;  /* rows of which a lane has elements: in one matrix, and in all */
layout(constant_id = 17) const uint ALL_ROWS = 2;
layout(constant_id = 18) const uint LENGTH = 8;     /* elements that a lane has of a matrix */
layout(constant_id = 19) const bool BLOCKS = false; /* a block mask's lists */
layout(constant_id = 20) const bool MASK = false;   /* partial blocks evaluate an expression */
layout(constant_id = 22) const uint FETCH = 4;      /* groups of K or V that an invocation has on their way */
layout(constant_id = 23) const bool ALIGNED = false; /* q, k, v and o all are: for drivers that run both sides of a branch */
layout(constant_id = 24) const bool PACKED = false;  /* tiles have rows of several heads */
layout(constant_id = 25) const uint K_STRIDE = 9;    /* groups from one row to the next */
layout(constant_id = 26) const uint V_STRIDE = 9;
layout(constant_id = 27) const uint V_AT = 576; /* where in `memory` V begins: K is at 0 */
layout(constant_id = 28) const uint O_CHUNK = 4; /* columns of matrices of O that are stored together, and their stride */
layout(constant_id = 29) const uint O_STRIDE = 17;
layout(constant_id = 30) const uint MEMORY_SIZE = 2304;
layout(constant_id = 31) const uint Q_AT = 1152;
layout(constant_id = 32) const uint P_AT = 1728;
layout(constant_id = 33) const bool HOLD_Q = false; /* in registers */
/* The types of q and o; k and v have ELEMENT, to which q is rounded. */
layout(constant_id = 34) const uint Q_TYPE = ELEMENT;
layout(constant_id = 35) const uint O_TYPE = ELEMENT;

shared uvec4 memory[MEMORY_SIZE];
shared uint special; /* the last tile, counted from 1, with forbidden pairs and with NaN or infinity in V */

#include "tiles.glsl"

#define MATRIX_A     coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseA>
#define MATRIX_B     coopmat<float16_t, gl_ScopeSubgroup, MATRIX_N, MATRIX_N, gl_MatrixUseB>
#define MATRIX_F16   coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
#define MATRIX_F32   coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
#define ROW_MAJOR    gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

const uint ROWS = ROW_TILES * MATRIX_M;
const uint K_GROUPS = Q_TILES * MATRIX_N / 8u, V_GROUPS = O_TILES * MATRIX_N / 8u; /* of eight elements, padded */
const uint P_STRIDE = BLOCK_N / 8u + 1u;
const uint FETCHED = FETCH * THREADS;

/*
 * The element e of a lane. QUADS: four lanes have two rows, eight apart, and of each two neighbours of every eight
 * columns. Otherwise a lane has a column. Lanes whose numbers differ below SPAN share their rows. A's elements lie as an
 * accumulator's do.
 */
const uint SPAN = QUADS ? 4u : MATRIX_N;

uint row_of(const in uint e)
{
    return QUADS ? e / 4u : e;
}

uint row_at(const in uint row, const in uint lane)
{
    return QUADS ? lane / 4u + 8u * row : row;
}

uint column_at(const in uint e, const in uint lane)
{
    return QUADS ? lane % 4u * 2u + e % 2u + e / 2u % 2u * 8u : lane;
}

/* Of the lanes that share rows. Written out: some drivers leave loops whose step is a product alone, and then arrays that
 * are indexed by a loop around them lie in memory. */
float largest_across(const in float value)
{
    float x = value;
    if (SPAN > 1u)
        x = max(x, subgroupShuffleXor(x, 1u));
    if (SPAN > 2u)
        x = max(x, subgroupShuffleXor(x, 2u));
    if (SPAN > 4u)
        x = max(x, subgroupShuffleXor(x, 4u));
    if (SPAN > 8u)
        x = max(x, subgroupShuffleXor(x, 8u));
    return x;
}

float sum_across(const in float value)
{
    float x = value;
    if (SPAN > 1u)
        x += subgroupShuffleXor(x, 1u);
    if (SPAN > 2u)
        x += subgroupShuffleXor(x, 2u);
    if (SPAN > 4u)
        x += subgroupShuffleXor(x, 4u);
    if (SPAN > 8u)
        x += subgroupShuffleXor(x, 8u);
    return x;
}

/* A row's scores are relative to a largest one that is not followed while it grows by less than this power of two: O is
 * seldom rescaled, and weights stay far below what f16 holds. */
const float SLACK = SCORE ? 8.0 * LN2 : 8.0;

/* subgroupBarrier orders images and buffers too, for which some drivers wait. */
void wait_subgroup()
{
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

uvec2 address_sum(const in uvec2 a, const in uvec2 b)
{
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

/* Loads are begun long before their values are stored to shared memory, so that arithmetic hides their latency. */
#define FETCH_ROWS(from, stride, kv, groups, dim)                                                                      \
    if (aligned) {                                                                                                     \
        uint n = tid / (groups), g = tid % (groups);                                                                   \
        uvec2 at = address_add(address_step(from, (kv) + n, stride), g * 16u);                                         \
        [[unroll]] for (uint f = 0u; f < FETCH; f++)                                                                   \
        {                                                                                                              \
            if (THREADS % (groups) != 0u) {                                                                            \
                n = (tid + f * THREADS) / (groups), g = (tid + f * THREADS) % (groups);                                \
                at = address_add(address_step(from, (kv) + n, stride), g * 16u);                                       \
            }                                                                                                          \
            fetched[f] = fetch(at, true, (FETCHED <= BLOCK_N * (groups) || n < BLOCK_N) &&                             \
                                             (8u * (groups) == (dim) || g < (dim) / 8u) && (kv) + n < kv_len);         \
            n += THREADS / (groups);                                                                                   \
            at = address_sum(at, stride##_step);                                                                       \
        }                                                                                                              \
    }

/* What FETCH does not cover, and what is not aligned, is loaded here. */
#define STORE_ROWS(where, from, stride, kv, groups, dim, row_stride, look)                                             \
    {                                                                                                                  \
        if (aligned)                                                                                                   \
            [[unroll]] for (uint f = 0u; f < FETCH; f++)                                                               \
            {                                                                                                          \
                uint i = tid + f * THREADS, n = i / (groups), g = i % (groups);                                        \
                if (look && some && is_special(fetched[f]))                                                            \
                    special = step;                                                                                    \
                if (FETCHED <= BLOCK_N * (groups) || n < BLOCK_N)                                                      \
                    memory[(where) + n * (row_stride) + g] = fetched[f].low;                                           \
            }                                                                                                          \
        if (!aligned || FETCHED < BLOCK_N * (groups))                                                                  \
            [[dont_unroll]] for (uint i = tid + (aligned ? FETCHED : 0u); i < BLOCK_N * (groups); i += THREADS)        \
            {                                                                                                          \
                uint n = i / (groups), g = i % (groups);                                                               \
                Group late = fetch(address_add(address_step(from, (kv) + n, stride), g * 16u), aligned,                \
                                   g < (dim) / 8u && (kv) + n < kv_len);                                               \
                if (look && some && is_special(late))                                                                  \
                    special = step;                                                                                    \
                memory[(where) + n * (row_stride) + g] = late.low;                                                     \
            }                                                                                                          \
    }

/* NaN and infinity as numbers that a sum of at most 255 of each tells apart. An allowed pair whose weight is 0 makes NaN of
 * any of them: it counts as so many that the sum is no less than NaN's. */
const float CODE_NEGATIVE = 256.0, CODE_NAN = 32768.0;

uint code_of(const in uint bits)
{
    uint magnitude = bits & 0x7fffu;
    uint infinity = (bits & 0x8000u) != 0u ? 0x5c00u : 0x3c00u;
    return magnitude > 0x7c00u ? 0x7800u : magnitude == 0x7c00u ? infinity : 0u;
}

float value_of_codes(const in float sum)
{
    bool nan = sum >= CODE_NAN, negative = sum >= CODE_NEGATIVE, positive = fract(sum / CODE_NEGATIVE) != 0.0;
    return nan || (negative && positive) ? uintBitsToFloat(0x7fc00000u)
           : negative                    ? uintBitsToFloat(0xff800000u)
           : positive                    ? uintBitsToFloat(0x7f800000u)
                                         : 0.0;
}

void main()
{
    Arguments args = Arguments(push.arguments);
    uint lane = gl_SubgroupInvocationID, warp = gl_SubgroupID, tid = warp * LANES + lane;
    Item it = item_of(args, push.first + gl_WorkGroupID.x);
    uvec2 q_plane = plane(args.q, it.b, it.h0), k_plane = plane(args.k, it.b, it.kv_h),
          v_plane = plane(args.v, it.b, it.kv_h);
    uvec2 q_stride_h = args.q.stride_h, q_stride = args.q.stride_row, k_stride = args.k.stride_row,
          v_stride = args.v.stride_row;
    uvec2 k_stride_step = address_step(uvec2(0u), THREADS / K_GROUPS, k_stride),
          v_stride_step = address_step(uvec2(0u), THREADS / V_GROUPS, v_stride);
    bool aligned = ALIGNED || (args.flags & (ALIGNED_Q | ALIGNED_K | ALIGNED_V)) == (ALIGNED_Q | ALIGNED_K | ALIGNED_V),
         o_aligned = ALIGNED || (args.flags & ALIGNED_O) != 0u;
    uint kv_len = args.kv_len, kv_block = args.kv_block;
    float factor = args.scale * (SCORE ? 1.0 : LOG2E);

    /* The rows of which this invocation has elements. */
    uint row_q[ALL_ROWS], row_h[ALL_ROWS];
    float m[ALL_ROWS], top[ALL_ROWS];    /* what scores are relative to; the largest */
    float l[ALL_ROWS], weight[ALL_ROWS]; /* this lane's part of the sum, and of the sum of what f16 leaves of each: O's divisor */
    [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++) {
        uint row = warp * ROWS + i / ROW_COUNT * MATRIX_M + row_at(i % ROW_COUNT, lane);
        row_q[i] = it.q0 + query_of(row, it.queries);
        row_h[i] = it.h0 + head_of(row, it.queries);
        m[i] = top[i] = LOWEST;
        l[i] = weight[i] = 0.0;
    }

    /* The blocks of this row of blocks: entries, or all. */
    uvec2 entries = uvec2(0u);
    uint blocks;
    if (BLOCKS) {
        uint at = it.b * args.mask_rows_b + it.h0 * args.mask_rows_h + it.q0 / args.q_block;
        uvec4 head = Uvec4(address_step(args.mask_rows, at, uvec2(16u, 0u))).value;
        entries = head.xy;
        blocks = head.z;
    } else
        blocks = (kv_len + kv_block - 1u) / kv_block;
    uint first = 0u;
    if (args.splits > 1u) {
        /* blocks * split / splits, without overflow */
        first = blocks / args.splits * it.split + blocks % args.splits * it.split / args.splits;
        blocks = blocks / args.splits * (it.split + 1u) + blocks % args.splits * (it.split + 1u) / args.splits;
    }

    Group fetched[FETCH];
    Tile next = Tile(0u - BLOCK_N, 0u, 0u, first);
    bool more = advance(next, entries, blocks, kv_block, kv_len);
    if (more)
        FETCH_ROWS(k_plane, k_stride, next.kv0, K_GROUPS, HEAD_DIM)

    /* 1: load Q */
    if (tid == 0u)
        special = 0u;
    [[dont_unroll]] for (uint i = tid; i < BLOCK_M * K_GROUPS; i += THREADS) {
        uint r = i / K_GROUPS, g = i % K_GROUPS;
        uvec2 at = address_step(address_step(q_plane, head_of(r, it.queries), q_stride_h),
                                it.q0 + query_of(r, it.queries), q_stride);
        Group q8 = fetch(Q_TYPE, address_add(at, g * 8u * bytes_of(Q_TYPE)), aligned,
                         r < it.rows && g < HEAD_DIM / 8u);
        memory[Q_AT + r * K_STRIDE + g] = convert(Q_TYPE, q8, TYPE);
    }
    barrier();
    const uint q_own = Q_AT + warp * ROWS * K_STRIDE, p_own = P_AT + warp * ROWS * P_STRIDE;
    MATRIX_A held[HELD_COUNT];
    if (HOLD_Q)
        [[unroll]] for (uint i = 0u; i < HELD_COUNT; i++)
            coopMatLoad(held[i], memory, q_own + i / Q_TILES * MATRIX_M * K_STRIDE + i % Q_TILES * (MATRIX_N / 8u), K_STRIDE,
                        ROW_MAJOR);
    MATRIX_F32 o[O_COUNT];
    [[unroll]] for (uint i = 0u; i < O_COUNT; i++)
        o[i] = MATRIX_F32(0.0);
    barrier();

    [[dont_unroll]] for (uint step = 1u; more; step++) {
        const uint kv0 = next.kv0, kind = next.kind;
        more = advance(next, entries, blocks, kv_block, kv_len);
        bool some = (MASK && kind != 0u) || kv0 + BLOCK_N > kv_len; /* some pairs may be forbidden */

        /* 2: load K; whoever still has V before it reads elsewhere */
        STORE_ROWS(0u, k_plane, k_stride, kv0, K_GROUPS, HEAD_DIM, K_STRIDE, false)
        FETCH_ROWS(v_plane, v_stride, kv0, V_GROUPS, HEAD_DIM_V)
        barrier();

        /* 3: S = Q K^T */
        MATRIX_F32 s[S_COUNT];
        [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
            s[i] = MATRIX_F32(0.0);
        if (HOLD_Q)
            [[unroll]] for (uint t = 0u; t < Q_TILES; t++)
                [[unroll]] for (uint j = 0u; j < S_TILES; j++) {
                    MATRIX_B b;
                    coopMatLoad(b, memory, j * MATRIX_N * K_STRIDE + t * (MATRIX_N / 8u), K_STRIDE, COLUMN_MAJOR);
                    [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                        s[r * S_TILES + j] = coopMatMulAdd(held[r * Q_TILES + t], b, s[r * S_TILES + j]);
                }
        else
            [[dont_unroll]] for (uint t = 0u; t < Q_TILES; t++) {
                MATRIX_A a[ROW_TILES];
                [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                    coopMatLoad(a[r], memory, q_own + r * MATRIX_M * K_STRIDE + t * (MATRIX_N / 8u), K_STRIDE, ROW_MAJOR);
                [[unroll]] for (uint j = 0u; j < S_TILES; j++) {
                    MATRIX_B b;
                    coopMatLoad(b, memory, j * MATRIX_N * K_STRIDE + t * (MATRIX_N / 8u), K_STRIDE, COLUMN_MAJOR);
                    [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                        s[r * S_TILES + j] = coopMatMulAdd(a[r], b, s[r * S_TILES + j]);
                }
            }

        /* 4: score and mask */
        uint allowed[S_COUNT];
        [[unroll]] for (uint i = 0u; i < S_COUNT; i++) {
            allowed[i] = 0xffffffffu;
            [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
                float x = s[i][e] * factor;
                if (SCORE) {
                    uint row = i / S_TILES * ROW_COUNT + row_of(e);
                    uint kv = kv0 + i % S_TILES * MATRIX_N + column_at(e, lane);
                    x = attune_score(x, int(it.b), int(row_h[row]), int(row_q[row]), int(kv), args.score_mod);
                }
                s[i][e] = x;
            }
        }
        if (some) {
            /* Without branches, so that the loads of all pairs are on their way together; captures check indices. */
            if (MASK && kind != 0u)
                [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
                    [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
                        uint row = i / S_TILES * ROW_COUNT + row_of(e);
                        uint kv = kv0 + i % S_TILES * MATRIX_N + column_at(e, lane);
                        bool may = attune_mask(int(it.b), int(row_h[row]), int(row_q[row]), int(kv), args.mask_mod);
                        allowed[i] &= may ? ~0u : ~(1u << e);
                    }
            [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
                [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
                    uint kv = kv0 + i % S_TILES * MATRIX_N + column_at(e, lane);
                    allowed[i] &= kv < kv_len ? ~0u : ~(1u << e);
                    s[i][e] = (allowed[i] >> e & 1u) != 0u ? s[i][e] : LOWEST;
                }
        }

        /* 5: online softmax */
        float most[ALL_ROWS], alpha[ALL_ROWS];
        [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++)
            most[i] = LOWEST;
        [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
            [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
                uint row = i / S_TILES * ROW_COUNT + row_of(e);
                most[row] = max(most[row], s[i][e]);
            }
        bool grows = false;
        [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++) {
            most[i] = largest_across(most[i]);
            top[i] = max(top[i], most[i]);
            /* The first scores always count: LOWEST is below all by more. */
            bool follow = most[i] > m[i] + SLACK;
            grows = grows || follow;
            float before = m[i];
            m[i] = follow ? most[i] : m[i];
            alpha[i] = exp2((before - m[i]) * TO_LOG2);
            l[i] *= alpha[i];
            weight[i] *= alpha[i];
        }
        [[unroll]] for (uint i = 0u; i < S_COUNT; i++) {
            MATRIX_F16 p;
            [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
                uint row = i / S_TILES * ROW_COUNT + row_of(e);
                float x = exp2((s[i][e] - m[row]) * TO_LOG2);
                if (some)
                    x = (allowed[i] >> e & 1u) != 0u ? x : 0.0;
                l[row] += x;
                float16_t h = float16_t(x);
                weight[row] += float(h);
                p[e] = h;
            }
            coopMatStore(p, memory, p_own + i / S_TILES * MATRIX_M * P_STRIDE + i % S_TILES * (MATRIX_N / 8u), P_STRIDE,
                         ROW_MAJOR);
        }

        STORE_ROWS(V_AT, v_plane, v_stride, kv0, V_GROUPS, HEAD_DIM_V, V_STRIDE, true)
        if (more)
            FETCH_ROWS(k_plane, k_stride, next.kv0, K_GROUPS, HEAD_DIM)
        if (subgroupAny(grows))
            [[unroll]] for (uint i = 0u; i < O_COUNT; i++)
                [[unroll]] for (uint e = 0u; e < LENGTH; e++)
                    o[i][e] *= alpha[i / O_TILES * ROW_COUNT + row_of(e)];
        barrier();

        /* Rare, since 0 times NaN is NaN where the pair is forbidden: NaN and infinity leave V, and what allowed pairs see
         * of them is summed from codes in the place of K. */
        bool codes = some && special == step;
        if (codes) {
            [[dont_unroll]] for (uint i = tid; i < BLOCK_N * V_GROUPS; i += THREADS) {
                uint at = i / V_GROUPS * V_STRIDE + i % V_GROUPS;
                uvec4 value = memory[V_AT + at], code;
                [[unroll]] for (uint w = 0u; w < 4u; w++) {
                    uint low = code_of(value[w] & 0xffffu), high = code_of(value[w] >> 16);
                    code[w] = low | high << 16;
                    value[w] &= (low != 0u ? 0u : 0xffffu) | (high != 0u ? 0u : 0xffff0000u);
                }
                memory[at] = code;
                memory[V_AT + at] = value;
            }
            barrier();
        }

        /* 6: O += P V */
        [[dont_unroll]] for (uint n = 0u; n < S_TILES; n++) {
            MATRIX_A a[ROW_TILES];
            [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                coopMatLoad(a[r], memory, p_own + r * MATRIX_M * P_STRIDE + n * (MATRIX_N / 8u), P_STRIDE, ROW_MAJOR);
            [[unroll]] for (uint t = 0u; t < O_TILES; t++) {
                MATRIX_B b;
                coopMatLoad(b, memory, V_AT + n * MATRIX_N * V_STRIDE + t * (MATRIX_N / 8u), V_STRIDE, ROW_MAJOR);
                [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                    o[r * O_TILES + t] = coopMatMulAdd(a[r], b, o[r * O_TILES + t]);
            }
        }
        if (codes) {
            wait_subgroup(); /* P has been read */
            [[unroll]] for (uint i = 0u; i < S_COUNT; i++) {
                const uint at = p_own + i / S_TILES * MATRIX_M * P_STRIDE + i % S_TILES * (MATRIX_N / 8u);
                MATRIX_F16 p;
                coopMatLoad(p, memory, at, P_STRIDE, ROW_MAJOR);
                wait_subgroup();
                [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
                    float counted = is_zero(float(p[e])) ? CODE_NAN : 1.0;
                    p[e] = float16_t((allowed[i] >> e & 1u) != 0u ? counted : 0.0);
                }
                coopMatStore(p, memory, at, P_STRIDE, ROW_MAJOR);
            }
            wait_subgroup();
            [[dont_unroll]] for (uint i = 0u; i < O_COUNT; i++) {
                MATRIX_F32 sum = MATRIX_F32(0.0);
                [[dont_unroll]] for (uint n = 0u; n < S_TILES; n++) {
                    MATRIX_A a;
                    MATRIX_B b;
                    coopMatLoad(a, memory, p_own + i / O_TILES * MATRIX_M * P_STRIDE + n * (MATRIX_N / 8u), P_STRIDE,
                                ROW_MAJOR);
                    coopMatLoad(b, memory, n * MATRIX_N * V_STRIDE + i % O_TILES * (MATRIX_N / 8u), V_STRIDE, ROW_MAJOR);
                    sum = coopMatMulAdd(a, b, sum);
                }
                [[unroll]] for (uint e = 0u; e < LENGTH; e++)
                    sum[e] = value_of_codes(sum[e]);
                [[unroll]] for (uint t = 0u; t < O_COUNT; t++)
                    if (t == i)
                        o[t] = o[t] + sum;
            }
            barrier();
        }
    }

    /* 7: store O and LSE, or the part of a split, through the place of K and V, so that neighbours store neighbours */
    bool split = args.splits > 1u, keeps = split || (args.flags & IS_PART) != 0u;
    float scale[ALL_ROWS];
    [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++) {
        l[i] = sum_across(l[i]);
        weight[i] = sum_across(weight[i]);
        /* The parts of a split are relative to their largest score. */
        float whole = split ? exp2((m[i] - top[i]) * TO_LOG2) * l[i] : 1.0;
        scale[i] = is_zero(l[i]) ? keeps ? 1.0 : 0.0 : whole / weight[i];
    }
    [[unroll]] for (uint i = 0u; i < O_COUNT; i++)
        [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
            float by = scale[i / O_TILES * ROW_COUNT + row_of(e)];
            o[i][e] = is_zero(by) ? 0.0 : o[i][e] * by;
        }
    barrier();
    if (lane % SPAN == 0u)
        [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++)
            memory[warp * ROWS + i / ROW_COUNT * MATRIX_M + row_at(i % ROW_COUNT, lane)] =
                floatBitsToUint(vec4(m[i], top[i], l[i], 0.0));
    barrier();
    [[dont_unroll]] for (uint row = tid; row < it.rows; row += THREADS) {
        uint q_row = it.q0 + query_of(row, it.queries), h = it.h0 + head_of(row, it.queries);
        vec3 of_row = uintBitsToFloat(memory[row].xyz);
        if (split) {
            uint at = ((it.b * args.heads + h) * args.q_len + q_row) * args.splits + it.split;
            uvec2 to = address_step(args.parts_ml, at, uvec2(8u, 0u));
            OutWord(to).value = floatBitsToUint(of_row.y);
            OutWord(address_add(to, 4u)).value =
                floatBitsToUint(of_row.z * exp2((of_row.x - of_row.y) * TO_LOG2));
        } else {
            store_row(args.lse, it.b, h, q_row, lse_bits(of_row.x, of_row.z));
            store_row(args.row_max, it.b, h, q_row, row_max_bits(of_row.y, of_row.z));
        }
    }
    [[dont_unroll]] for (uint t0 = 0u; t0 < O_TILES; t0 += O_CHUNK) {
        barrier();
        [[unroll]] for (uint i = 0u; i < O_COUNT; i++) {
            uint r = i / O_TILES, t = i % O_TILES;
            if (t >= t0 && t < t0 + O_CHUNK)
                coopMatStore(o[i], memory, (warp * ROWS + r * MATRIX_M) * O_STRIDE + (t - t0) * (MATRIX_N / 4u), O_STRIDE,
                             ROW_MAJOR);
        }
        barrier();
        const uint groups = O_CHUNK * MATRIX_N / 4u;
        [[dont_unroll]] for (uint i = tid; i < BLOCK_M * groups; i += THREADS) {
            uint r = i / groups, g = i % groups, column = t0 * MATRIX_N + 4u * g;
            uint q_row = it.q0 + query_of(r, it.queries), h = it.h0 + head_of(r, it.queries);
            if (r < it.rows && column < HEAD_DIM_V) {
                vec4 value = uintBitsToFloat(memory[r * O_STRIDE + g]);
                if (split) {
                    uint to = ((it.b * args.heads + h) * args.q_len + q_row) * args.splits + it.split;
                    OutVec4(address_add(address_step(args.parts, to, uvec2(HEAD_DIM_V * 4u, 0u)), column * 4u)).value =
                        value;
                } else
                    store4(O_TYPE,
                           address_add(address_step(plane(args.o, it.b, h), q_row, args.o.stride_row),
                                       column * bytes_of(O_TYPE)),
                           o_aligned, value);
            }
        }
    }
}
