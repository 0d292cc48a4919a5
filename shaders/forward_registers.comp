/* SPDX-License-Identifier: MIT */
/*
 * Forward attention and decode on cooperative matrices, f16 into f32, of devices whose fragment layout is known
 * (limits.fragment_layout), so that S and O stay in registers. A workgroup computes one tile of rows and loops over the
 * tiles of keys that the mask lists. Each subgroup has ROWS rows, so that only K and V are shared. The stages are
 * numbered as in docs/algorithm.md.
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
#define SHORT_FUNCTIONS
#include "mods.glsl"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;

#include "layout_registers.h"
#include "block_lists.glsl"
#include "fragments.glsl"

/* Rows of K or V, whose groups of 16 bytes are counted from the head's first. */
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Groups
{
    uvec4 values[];
};

const uint FETCHED = FETCH * THREADS;
const uint LEAD = AHEAD ? 1u : 0u;
/* Groups of Q that an invocation has in flight, and whether these are all that it has of a part. */
const uint Q_LOADS = ALIGNED ? 8u : 1u;
const bool Q_AT_ONCE = Q_ROWS * K_GROUPS <= Q_LOADS * THREADS;

/* Whether a step stores tiles and begins loads after its products, or before: which is faster was measured
 * (docs/decisions/0074-vulkan-forward-schedule.md). */
const bool STORE_LAST = AHEAD && ROW_TILES == 1u;

/* Whether the scores of the next tile are computed beside the last products of a step, which leave the other units
 * idle. */
const bool SCORE_AHEAD = AHEAD && SCORE;

/* Consecutive lanes that share their rows. */
const uint SPAN = QUADS ? 4u : MATRIX_N;

/* Over the lanes that share rows. Unrolled by hand: some drivers do not unroll loops whose step is a product, and
 * arrays that an outer loop indexes then end up in memory. */
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

/* O is rescaled only when the row maximum rises by more than this power of two. That is rare, and weights stay far
 * below the largest f16. With bf16, whose roundings are larger, a row's largest weight is always 1, without one. */
const float RESCALE_THRESHOLD = TYPE == BF16 ? 0.0 : SCORE ? 8.0 * LN2 : 8.0;

uvec2 address_sum(const in uvec2 a, const in uvec2 b)
{
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

/*
 * Where the tiles of keys are: a ring in shared memory, of two groups for each tile, counted from 1. The first has the
 * addresses of its rows of K and V, the second its first row and kind. The aligned kernel has the second alone, of
 * twice as many tiles. Half of the ring is filled at once, by as many invocations, so that steps neither follow the
 * list nor keep it and strides in registers. From kv_len on there is no tile, and the first rows of all stand for its
 * keys, or in the aligned kernel the last.
 */
struct Keys {
    uint kv0, kind;
};

const uint RING_GROUPS = ALIGNED ? 1u : 2u, RING_TILES = 64u / RING_GROUPS;

Keys keys_of(const in uint number)
{
    uvec4 entry = memory[RING + number % RING_TILES * RING_GROUPS + RING_GROUPS - 1u];
    return Keys(entry.x, entry.y);
}

uvec4 rows_of(const in uint number)
{
    return memory[RING + number % RING_TILES * 2u];
}

/* Behind the ring: the list's address, first block and end; tiles and keys of a block, and all keys; planes and strides
 * of K and V; the strides of as many rows as are loaded at once. */
const uint STATE = RING + RING_GROUPS * RING_TILES;

void begin_keys(attune_vulkan_arguments args, const in TileCoord coord)
{
    BlockIterator it = block_iterator_begin(args, coord);
    memory[STATE] = uvec4(it.entries, it.block, it.end);
    memory[STATE + 1u] = uvec4((args.kv_block + BLOCK_N - 1u) / BLOCK_N, args.kv_block, args.kv_len, 0u);
    memory[STATE + 2u] = uvec4(plane(args.k, coord.b, coord.kv_h), plane(args.v, coord.b, coord.kv_h));
    memory[STATE + 3u] = uvec4(args.k.stride_row, args.v.stride_row);
    memory[STATE + 4u] = uvec4(address_step(uvec2(0u), THREADS / K_GROUPS, args.k.stride_row),
                               address_step(uvec2(0u), THREADS / V_GROUPS, args.v.stride_row));
}

/* Lists ascend, so that only their last block may have fewer tiles, and none follows it. */
void locate_keys(const in uint number)
{
    uvec4 list = memory[STATE], sizes = memory[STATE + 1u], planes = memory[STATE + 2u], strides = memory[STATE + 3u];
    uint block = list.z + (number - 1u) / sizes.x, kv_len = sizes.z, kv0 = kv_len, kind = 0u;
    if (block < list.w) {
        uint column = block;
        if (BLOCKS) {
            uint entry = Word(address_add(list.xy, 4u * block)).value;
            column = entry >> 1;
            kind = entry & 1u;
        }
        kv0 = min(column * sizes.y + (number - 1u) % sizes.x * BLOCK_N, kv_len);
    }
    if (!ALIGNED) {
        uint from = kv0 < kv_len ? kv0 : 0u;
        uvec4 rows = uvec4(address_step(planes.xy, from, strides.xy), address_step(planes.zw, from, strides.zw));
        /* Without keys the arguments are what can be read. */
        memory[RING + number % RING_TILES * 2u] = kv_len > 0u ? rows : uvec4(push.arguments, push.arguments);
    }
    memory[RING + number % RING_TILES * RING_GROUPS + RING_GROUPS - 1u] = uvec4(kv0, kind, 0u, 0u);
}

/* Whether some pairs of a tile may be forbidden. */
bool is_masked(const in Keys keys, const in uint kv_len)
{
    return (MASK && keys.kind != 0u) || keys.kv0 + BLOCK_N > kv_len;
}

/* A group of a row of the aligned kernel; 0 where the row has none. Numbers of 32 bits, since a sum of addresses is
 * four instructions: the kernel is launched only if they reach all rows of a head (src/vulkan/launch.c). */
uvec4 group_at(const in uvec2 head, const in uint row_groups, const in uint key, const in uint g, const in uint groups,
               const in uint dim)
{
    const bool whole = 8u * groups == dim;
    uvec4 group = Groups(head).values[key * row_groups + (whole ? g : min(g, dim / 8u - 1u))];
    return whole || g < dim / 8u ? group : uvec4(0u);
}

/* Loads are begun a tile before their values are stored to shared memory, so that arithmetic hides their latency.
 * `offset`: of this invocation's first group from the tile's rows. No load has a condition: in place of a key from
 * kv_len on the last one is read, or without ALIGNED the tile's first. A compiler that keeps no load's result where a
 * branch ends waits there. */
#define FETCH_ROWS(fetched, head, row_groups, rows, kv, offset, stride, step, groups, dim)                             \
    if (ALIGNED) {                                                                                                     \
        [[unroll]] for (uint f = 0u; f < FETCH; f++) {                                                                 \
            const uint i = tid + f * THREADS;                                                                          \
            uint n = THREADS % (groups) == 0u ? tid / (groups) + f * (THREADS / (groups)) : i / (groups);              \
            uint g = THREADS % (groups) == 0u ? tid % (groups) : i % (groups);                                         \
            fetched[f].low = group_at(head, row_groups, min((kv) + n, kv_len - 1u), g, groups, dim);                   \
        }                                                                                                              \
    } else if (aligned) {                                                                                              \
        if (THREADS % (groups) == 0u && FETCHED <= BLOCK_N * (groups) && 8u * (groups) == (dim)) {                     \
            uvec2 at = address_sum(rows, offset), by = step;                                                           \
            [[unroll]] for (uint f = 0u; f < FETCH; f++) {                                                             \
                bool is_key = (kv) + tid / (groups) + f * (THREADS / (groups)) < kv_len;                               \
                fetched[f].low = Uvec4(is_key ? at : rows).value;                                                      \
                at = address_sum(at, by);                                                                              \
            }                                                                                                          \
        } else [[unroll]]                                                                                              \
            for (uint f = 0u; f < FETCH; f++) {                                                                        \
                uint n = (tid + f * THREADS) / (groups), g = (tid + f * THREADS) % (groups);                           \
                fetched[f] = fetch(address_add(address_step(rows, n, stride), g * 16u), true,                          \
                                   n < BLOCK_N && g < (dim) / 8u && (kv) + n < kv_len);                                \
            }                                                                                                          \
    }

/*
 * V of tiles with forbidden pairs, whose weight of 0 must not multiply NaN or an infinity: they are 0 in the loop over
 * tiles, and if there was one in any tile another loop adds them (codes).
 */
const uint INFINITE = TYPE == BF16 ? 0x7f80u : 0x7c00u;

uint finite_mask(const in uint word)
{
    const uint high = INFINITE << 16;
    return ((word & INFINITE) == INFINITE ? 0u : 0xffffu) | ((word & high) == high ? 0u : 0xffff0000u);
}

uvec4 finite_of(const in uvec4 group)
{
    return group & uvec4(finite_mask(group.x), finite_mask(group.y), finite_mask(group.z), finite_mask(group.w));
}

/* Groups that FETCH does not cover, or that are not aligned, are loaded here. With `look` NaN and infinities are noted
 * and become 0. */
#define STORE_ROWS(fetched, where, head, row_groups, rows, kv, stride, groups, dim, row_stride, look)                  \
    {                                                                                                                  \
        if (aligned) {                                                                                                 \
            if (look) {                                                                                                \
                bool found = false;                                                                                    \
                [[unroll]] for (uint f = 0u; f < FETCH; f++)                                                           \
                    found = found || is_non_finite(fetched[f]);                                                        \
                if (found) {                                                                                           \
                    non_finite[0] = 1u;                                                                                \
                    [[unroll]] for (uint f = 0u; f < FETCH; f++)                                                       \
                        fetched[f].low = finite_of(fetched[f].low);                                                    \
                }                                                                                                      \
            }                                                                                                          \
            const uint first = (where) + tid / (groups) * (row_stride) + tid % (groups);                               \
            [[unroll]] for (uint f = 0u; f < FETCH; f++) {                                                             \
                uint i = tid + f * THREADS, n = i / (groups);                                                          \
                uint at = THREADS % (groups) == 0u ? first + f * (THREADS / (groups)) * (row_stride)                   \
                                                   : (where) + n * (row_stride) + i % (groups);                        \
                if (FETCHED <= BLOCK_N * (groups) || n < BLOCK_N)                                                      \
                    memory[at] = fetched[f].low;                                                                       \
            }                                                                                                          \
        }                                                                                                              \
        if (!aligned || FETCHED < BLOCK_N * (groups)) [[dont_unroll]]                                                  \
            for (uint i = tid + (aligned ? FETCHED : 0u); i < BLOCK_N * (groups); i += THREADS) {                      \
                uint n = i / (groups), g = i % (groups);                                                               \
                Group late;                                                                                            \
                if (ALIGNED)                                                                                           \
                    late.low = group_at(head, row_groups, min((kv) + n, kv_len - 1u), g, groups, dim);                 \
                else                                                                                                   \
                    late = fetch(address_add(address_step(rows, n, stride), g * 16u), aligned,                         \
                                 g < (dim) / 8u && (kv) + n < kv_len);                                                 \
                if ((look) && is_non_finite(late)) {                                                                   \
                    non_finite[0] = 1u;                                                                                \
                    late.low = finite_of(late.low);                                                                    \
                }                                                                                                      \
                memory[(where) + n * (row_stride) + g] = late.low;                                                     \
            }                                                                                                          \
    }
#define FETCH_K(fetched)                                                                                               \
    FETCH_ROWS(fetched, k_head, k_row_groups, k_rows, k_kv, k_offset, memory[STATE + 3u].xy, by.xy, K_GROUPS, HEAD_DIM)
#define FETCH_V(fetched)                                                                                               \
    FETCH_ROWS(fetched, v_head, v_row_groups, v_rows, v_kv, v_offset, memory[STATE + 3u].zw, by.zw, V_GROUPS,          \
               HEAD_DIM_V)
#define STORE_K(fetched, where, number)                                                                                \
    STORE_ROWS(fetched, where, k_head, k_row_groups, rows_of(number).xy, keys_of(number).kv0, memory[STATE + 3u].xy,   \
               K_GROUPS, HEAD_DIM, K_STRIDE, false)
#define STORE_V(fetched, where, number)                                                                                \
    STORE_ROWS(fetched, where, v_head, v_row_groups, rows_of(number).zw, keys_of(number).kv0, memory[STATE + 3u].zw,   \
               V_GROUPS, HEAD_DIM_V, V_STRIDE, is_masked(next, kv_len))

/* Stores what the step before has loaded, and begins the next loads. */
#define MOVE_TILES(step)                                                                                               \
    {                                                                                                                  \
        if (step % (RING_TILES / 2u) == 0u) [[dont_unroll]]                                                            \
            for (uint i = tid; i < RING_TILES / 2u; i += THREADS)                                                      \
                locate_keys(step + RING_TILES / 2u + i);                                                               \
        next = keys_of(step + 1u);                                                                                     \
        k_rows = rows_of(step + 2u + LEAD).xy;                                                                         \
        k_kv = keys_of(step + 2u + LEAD).kv0;                                                                          \
        v_rows = rows_of(step + 2u).zw;                                                                                \
        v_kv = keys_of(step + 2u).kv0;                                                                                 \
        by = memory[STATE + 4u];                                                                                       \
        STORE_K(fetched_k, SLOT - k_at, step + 1u + LEAD)                                                              \
        STORE_V(fetched_v, 5u * SLOT - v_at, step + 1u)                                                                \
        FETCH_K(fetched_k)                                                                                             \
        FETCH_V(fetched_v)                                                                                             \
    }

/* Before the first step: the loads of one tile. */
#define BEGIN_K(fetched, number)                                                                                       \
    {                                                                                                                  \
        k_rows = rows_of(number).xy;                                                                                   \
        k_kv = keys_of(number).kv0;                                                                                    \
        FETCH_K(fetched)                                                                                               \
    }
#define BEGIN_V(fetched, number)                                                                                       \
    {                                                                                                                  \
        v_rows = rows_of(number).zw;                                                                                   \
        v_kv = keys_of(number).kv0;                                                                                    \
        FETCH_V(fetched)                                                                                               \
    }

/* A part of Q, from its row `part` on and this invocation's group i0. In place of a row past the last that one is read;
 * its results are not stored. */
#define LOAD_Q(part, i0)                                                                                               \
    [[unroll]] for (uint f = 0u; f < Q_LOADS; f++) {                                                                   \
        uint i = (i0) + f * THREADS, r = min((part) + i / K_GROUPS, coord.rows - 1u), g = i % K_GROUPS;                \
        uvec2 at = address_step(address_step(q_plane, head_of(r, coord.queries), q_stride_h),                          \
                                coord.q0 + query_of(r, coord.queries), q_stride);                                      \
        q8[f] = fetch(Q_TYPE, address_add(at, g * 8u * bytes_of(Q_TYPE)), aligned,                                     \
                      8u * K_GROUPS == HEAD_DIM || g < HEAD_DIM / 8u);                                                 \
    }
#define STORE_Q(i0)                                                                                                    \
    [[unroll]] for (uint f = 0u; f < Q_LOADS; f++) {                                                                   \
        uint i = (i0) + f * THREADS;                                                                                   \
        if (i < Q_ROWS * K_GROUPS)                                                                                     \
            memory[i / K_GROUPS * K_STRIDE + i % K_GROUPS] = convert(Q_TYPE, q8[f], TYPE);                             \
    }

/* S = Q K^T of the keys in shared memory. */
#define PRODUCT_S(s, where)                                                                                            \
    {                                                                                                                  \
        [[unroll]] for (uint i = 0u; i < S_COUNT; i++)                                                                 \
            s[i] = MATRIX_F32(0.0);                                                                                    \
        [[unroll]] for (uint t = 0u; t < Q_TILES; t++)                                                                 \
            [[unroll]] for (uint j = 0u; j < S_TILES; j++) {                                                           \
                MATRIX_B b;                                                                                            \
                coopMatLoad(b, memory, (where) + j * MATRIX_N * K_STRIDE + t * (MATRIX_N / 8u), K_STRIDE,              \
                            COLUMN_MAJOR);                                                                             \
                [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)                                                       \
                    s[r * S_TILES + j] = coopMatMulAdd(held[r * Q_TILES + t], b, s[r * S_TILES + j]);                  \
            }                                                                                                          \
    }

/* The scores of a tile, in place of its products. */
#define SCORES(s, kv0)                                                                                                 \
    [[unroll]] for (uint i = 0u; i < S_COUNT; i++)                                                                     \
        [[unroll]] for (uint e = 0u; e < LENGTH; e++) {                                                                \
            float x = s[i][e] * factor;                                                                                \
            if (SCORE) {                                                                                               \
                uint row = i / S_TILES * ROW_COUNT + row_of(e);                                                        \
                uint kv = (kv0) + i % S_TILES * MATRIX_N + column_at(e, lane);                                         \
                x = attune_score(x, int(coord.b), int(row_h[row]), int(row_q[row]), int(kv), args.score_mod);          \
            }                                                                                                          \
            s[i][e] = x;                                                                                               \
        }

/* Bits of the pairs that a tile allows. Without branches, so that the loads of all pairs are in flight together;
 * captures check indices. */
#define FORBID(keys)                                                                                                   \
    uint allowed[S_COUNT];                                                                                             \
    [[unroll]] for (uint i = 0u; i < S_COUNT; i++) {                                                                   \
        allowed[i] = 0u;                                                                                               \
        [[unroll]] for (uint e = 0u; e < LENGTH; e++)                                                                  \
            allowed[i] |= (keys).kv0 + i % S_TILES * MATRIX_N + column_at(e, lane) < kv_len ? 1u << e : 0u;            \
    }                                                                                                                  \
    if (MASK && (keys).kind != 0u) [[unroll]]                                                                          \
        for (uint i = 0u; i < S_COUNT; i++)                                                                            \
            [[unroll]] for (uint e = 0u; e < LENGTH; e++) {                                                            \
                uint row = i / S_TILES * ROW_COUNT + row_of(e);                                                        \
                uint kv = (keys).kv0 + i % S_TILES * MATRIX_N + column_at(e, lane);                                    \
                bool may = attune_mask(int(coord.b), int(row_h[row]), int(row_q[row]), int(kv), args.mask_mod);        \
                allowed[i] &= may ? ~0u : ~(1u << e);                                                                  \
            }

/* Codes for NaN and the infinities, so that a sum of up to 255 codes shows which occurred. A weight of 0 times any of
 * them is NaN: such a pair multiplies its code by CODE_NAN. */
const float CODE_NEGATIVE = 256.0, CODE_NAN = 32768.0;

/* The bits of CODE_NAN, CODE_NEGATIVE and 1 in 16 bits. */
uint code_of(const in uint bits)
{
    const bool wide = TYPE == BF16;
    uint magnitude = bits & 0x7fffu, negative = wide ? 0x4380u : 0x5c00u, positive = wide ? 0x3f80u : 0x3c00u;
    uint infinity = (bits & 0x8000u) != 0u ? negative : positive;
    return magnitude > INFINITE ? (wide ? 0x4700u : 0x7800u) : magnitude == INFINITE ? infinity : 0u;
}

float value_of_codes(const in float sum)
{
    bool nan = sum >= CODE_NAN, negative = sum >= CODE_NEGATIVE, positive = fract(sum / CODE_NEGATIVE) != 0.0;
    return nan || (negative && positive) ? uintBitsToFloat(0x7fc00000u)
           : negative                    ? uintBitsToFloat(0xff800000u)
           : positive                    ? uintBitsToFloat(0x7f800000u)
                                         : 0.0;
}

#if ELEMENT == 2
/* A weight as its type has it, rounded to nearest: a conversion to bf16 may cut off. A NaN stays one. */
float rounded(const in float x)
{
    return uintBitsToFloat(min(floatBitsToUint(x), 0x7fff7fffu) + 0x8000u & 0xffff0000u);
}
#else
#define rounded(x) (x)
#endif

/* Two elements of O. Where the fragment layout is QUADS, conversions to f16 round to nearest even
 * (fragment_layout.comp). */
uint pack_pair(const in float x, const in float y)
{
#if ELEMENT == 1
    if (QUADS && O_TYPE == F16)
        return packFloat2x16(f16vec2(x, y));
#endif
    return pack(O_TYPE, x, y);
}

/* A row's LSE and row maximum, or the maximum and sum of its part. */
void store_sums(attune_vulkan_arguments args, const in TileCoord coord, const in uint row, const in float top,
                const in float row_max, const in float sum, const in float l)
{
    uint q_row = coord.q0 + query_of(row, coord.queries), h = coord.h0 + head_of(row, coord.queries);
    if (args.splits > 1u) {
        uint at = ((coord.b * args.heads + h) * args.q_len + q_row) * args.splits + coord.split;
        uvec2 to = address_step(args.partials_ml, at, uvec2(8u, 0u));
        OutWord(to).value = floatBitsToUint(row_max);
        OutWord(address_add(to, 4u)).value = floatBitsToUint(sum * exp2((top - row_max) * TO_LOG2));
    } else {
        store_row(args.lse, coord.b, h, q_row, lse_bits(top, sum));
        store_row(args.row_max, coord.b, h, q_row, row_max_bits(row_max, l));
    }
}

/* Groups of four elements of O that an invocation reads together. */
const uint O_LOADS = 4u;

void main()
{
    attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);
    uint lane = gl_SubgroupInvocationID, warp = gl_SubgroupID, tid = warp * LANES + lane;
    TileCoord coord = tile_coord_of(args, push.first + gl_WorkGroupID.x);
    uvec2 q_plane = plane(args.q, coord.b, coord.h0), q_stride_h = args.q.stride_h, q_stride = args.q.stride_row;
    uvec2 k_offset = address_add(address_step(uvec2(0u), tid / K_GROUPS, args.k.stride_row), tid % K_GROUPS * 16u),
          v_offset = address_add(address_step(uvec2(0u), tid / V_GROUPS, args.v.stride_row), tid % V_GROUPS * 16u);
    bool aligned = ALIGNED ||
                   (args.flags & (ATTUNE_VULKAN_ALIGNED_Q | ATTUNE_VULKAN_ALIGNED_K | ATTUNE_VULKAN_ALIGNED_V)) ==
                       (ATTUNE_VULKAN_ALIGNED_Q | ATTUNE_VULKAN_ALIGNED_K | ATTUNE_VULKAN_ALIGNED_V),
         o_aligned = ALIGNED || (args.flags & ATTUNE_VULKAN_ALIGNED_O) != 0u;
    uint kv_len = args.kv_len;
    /* The first row of the head's K and V, and groups from one row to the next. */
    const uvec2 k_head = plane(args.k, coord.b, coord.kv_h), v_head = plane(args.v, coord.b, coord.kv_h);
    const uint k_row_groups = args.k.stride_row.x / 16u, v_row_groups = args.v.stride_row.x / 16u;
    float factor = args.scale * (SCORE ? 1.0 : LOG2E);

    /* The rows whose elements this invocation has. */
    uint row_q[ALL_ROWS], row_h[ALL_ROWS];
    float m[ALL_ROWS], row_max[ALL_ROWS]; /* the maximum that scores are relative to; the true one */
    float l[ALL_ROWS],
        weight[ALL_ROWS]; /* this lane's share of the sum, and of the sum of weights rounded to f16, which divides O */
    [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++) {
        uint row = warp * ROWS + i / ROW_COUNT * MATRIX_M + row_at(i % ROW_COUNT, lane);
        row_q[i] = coord.q0 + query_of(row, coord.queries);
        row_h[i] = coord.h0 + head_of(row, coord.queries);
        m[i] = row_max[i] = LOWEST;
        l[i] = weight[i] = 0.0;
    }

    /* 1, 2: the loads of Q and of the first tiles of K and V are in flight together, before Q passes through shared
     * memory. */
    Group q8[Q_LOADS];
    if (Q_AT_ONCE)
        LOAD_Q(0u, tid)
    if (tid == 0u) {
        non_finite[0] = 0u;
        begin_keys(args, coord);
    }
    barrier();
    [[dont_unroll]] for (uint i = tid; i < RING_TILES; i += THREADS)
        locate_keys(i + 1u);
    barrier();
    Group first_k[FETCH], first_v[FETCH], second_k[FETCH], fetched_k[FETCH], fetched_v[FETCH];
    uvec2 k_rows, v_rows;
    uint k_kv, v_kv;
    uvec4 by = memory[STATE + 4u];
    BEGIN_K(first_k, 1u)
    BEGIN_V(first_v, 1u)
    if (AHEAD)
        BEGIN_K(second_k, 2u)
    BEGIN_V(fetched_v, 2u)
    BEGIN_K(fetched_k, 2u + LEAD)

    /* 1: Q through shared memory, in as many parts as that needs */
    MATRIX_A held[HELD_COUNT];
    [[unroll]] for (uint part = 0u; part < BLOCK_M; part += Q_ROWS) {
        if (Q_AT_ONCE) {
            STORE_Q(tid)
            if (part + Q_ROWS < BLOCK_M)
                LOAD_Q(part + Q_ROWS, tid)
        } else [[dont_unroll]]
            for (uint i0 = tid; i0 < Q_ROWS * K_GROUPS; i0 += Q_LOADS * THREADS) {
                LOAD_Q(part, i0)
                STORE_Q(i0)
            }
        barrier();
        if (warp * ROWS / Q_ROWS == part / Q_ROWS) [[unroll]]
            for (uint i = 0u; i < HELD_COUNT; i++)
                coopMatLoad(held[i], memory,
                            (warp * ROWS - part + i / Q_TILES * MATRIX_M) * K_STRIDE + i % Q_TILES * (MATRIX_N / 8u),
                            K_STRIDE, ROW_MAJOR);
        barrier();
    }
    MATRIX_F32 o[O_COUNT];
    [[unroll]] for (uint i = 0u; i < O_COUNT; i++)
        o[i] = MATRIX_F32(0.0);

    /* 2: load K and V; each has two slots of shared memory, so that a step has one barrier. With AHEAD a step computes
     * S of the next tile before the softmax of its own, so that the products of the one run beside the exponentials of
     * the other. */
    uint k_at = AHEAD ? SLOT : 0u, v_at = 2u * SLOT; /* of the K that a step multiplies, and of its V */
    Keys now, next = keys_of(1u);
    STORE_K(first_k, 0u, 1u)
    STORE_V(first_v, v_at, 1u)
    if (AHEAD)
        STORE_K(second_k, k_at, 2u)
    barrier();
    MATRIX_F32 s[S_COUNT];
    if (AHEAD) {
        PRODUCT_S(s, 0u)
        if (SCORE_AHEAD)
            SCORES(s, keys_of(1u).kv0)
        barrier();
    }

    [[dont_unroll]] for (uint step = 1u; next.kv0 < kv_len; step++) {
        now = next;
        const uint kv0 = now.kv0;
        const bool masked = is_masked(now, kv_len);

        if (!STORE_LAST)
            MOVE_TILES(step)

        /* 3: S = Q K^T */
        if (!AHEAD)
            PRODUCT_S(s, k_at)

        /* 4: score and mask */
        if (!SCORE_AHEAD)
            SCORES(s, kv0)
        if (masked) {
            FORBID(now)
            [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
                [[unroll]] for (uint e = 0u; e < LENGTH; e++)
                    s[i][e] = (allowed[i] >> e & 1u) != 0u ? s[i][e] : uintBitsToFloat(0xff800000u);
        }

        /* 3, of the next tile, and 5: online softmax; without a branch between the two */
        MATRIX_F32 next_s[S_COUNT];
        if (AHEAD)
            PRODUCT_S(next_s, k_at)
        float most[ALL_ROWS], alpha[ALL_ROWS];
        [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++)
            most[i] = LOWEST;
        [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
            [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
                uint row = i / S_TILES * ROW_COUNT + row_of(e);
                most[row] = max(most[row], s[i][e]);
            }
        bool rescale = false;
        [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++) {
            most[i] = largest_across(most[i]);
            row_max[i] = max(row_max[i], most[i]);
            /* The first tile always rescales: LOWEST is far below every score. */
            bool follow = most[i] > m[i] + RESCALE_THRESHOLD;
            rescale = rescale || follow;
            float before = m[i];
            m[i] = follow ? most[i] : m[i];
            alpha[i] = exp2((before - m[i]) * TO_LOG2);
            l[i] *= alpha[i];
            weight[i] *= alpha[i];
        }
        /* A forbidden pair has -inf, relative to a maximum that never is: its weight is 0. */
        MATRIX_A p[S_COUNT];
        [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
            [[unroll]] for (uint e = 0u; e < LENGTH; e += 2u) {
                uint row = i / S_TILES * ROW_COUNT + row_of(e), other = i / S_TILES * ROW_COUNT + row_of(e + 1u);
                float x = exp2((s[i][e] - m[row]) * TO_LOG2), y = exp2((s[i][e + 1u] - m[other]) * TO_LOG2);
                l[row] += x;
                l[other] += y;
                f16vec2 pair = f16vec2(rounded(x), rounded(y));
                weight[row] += float(pair.x);
                weight[other] += float(pair.y);
                p[i][e] = pair.x;
                p[i][e + 1u] = pair.y;
            }

        if (subgroupAny(rescale)) [[unroll]]
            for (uint i = 0u; i < O_COUNT; i++)
                [[unroll]] for (uint e = 0u; e < LENGTH; e++)
                    o[i][e] *= alpha[i / O_TILES * ROW_COUNT + row_of(e)];

        /* 4, of the next tile, and 6: O += P V */
        if (SCORE_AHEAD)
            SCORES(next_s, keys_of(step + 1u).kv0)
        [[unroll]] for (uint n = 0u; n < S_TILES; n++)
            [[unroll]] for (uint t = 0u; t < O_TILES; t++) {
                MATRIX_B b;
                coopMatLoad(b, memory, v_at + n * MATRIX_N * V_STRIDE + t * (MATRIX_N / 8u), V_STRIDE, ROW_MAJOR);
                [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                    o[r * O_TILES + t] = coopMatMulAdd(p[r * S_TILES + n], b, o[r * O_TILES + t]);
            }

        if (STORE_LAST)
            MOVE_TILES(step)
        k_at = SLOT - k_at;
        v_at = 5u * SLOT - v_at;
        if (AHEAD) [[unroll]]
            for (uint i = 0u; i < S_COUNT; i++)
                s[i] = next_s[i];
        barrier();
    }

    /* The non-finite slow path: codes of V's NaN and infinities are summed over the allowed pairs of each tile whose V
     * the loop above may have changed. */
    if (non_finite[0] != 0u) [[dont_unroll]]
        for (uint number = 1u;; number++) {
            barrier();
            if (tid == 0u)
                locate_keys(number);
            barrier();
            now = keys_of(number);
            if (now.kv0 >= kv_len) {
                barrier(); /* before O takes the ring's memory */
                break;
            }
            if (!is_masked(now, kv_len))
                continue;
            uvec4 rows = rows_of(number), strides = memory[STATE + 3u];
            [[dont_unroll]] for (uint i = tid; i < BLOCK_N * K_GROUPS; i += THREADS) {
                uint n = i / K_GROUPS, g = i % K_GROUPS;
                if (ALIGNED)
                    memory[n * K_STRIDE + g] = group_at(k_head, k_row_groups, min(now.kv0 + n, kv_len - 1u), g,
                                                        K_GROUPS, HEAD_DIM);
                else
                    memory[n * K_STRIDE + g] = fetch(address_add(address_step(rows.xy, n, strides.xy), g * 16u),
                                                     aligned, g < HEAD_DIM / 8u && now.kv0 + n < kv_len)
                                                   .low;
            }
            [[dont_unroll]] for (uint i = tid; i < BLOCK_N * V_GROUPS; i += THREADS) {
                uint n = i / V_GROUPS, g = i % V_GROUPS;
                uvec4 code;
                if (ALIGNED)
                    code = group_at(v_head, v_row_groups, min(now.kv0 + n, kv_len - 1u), g, V_GROUPS, HEAD_DIM_V);
                else
                    code = fetch(address_add(address_step(rows.zw, n, strides.zw), g * 16u), aligned,
                                 g < HEAD_DIM_V / 8u && now.kv0 + n < kv_len)
                               .low;
                [[unroll]] for (uint w = 0u; w < 4u; w++)
                    code[w] = code_of(code[w] & 0xffffu) | code_of(code[w] >> 16) << 16;
                memory[2u * SLOT + n * V_STRIDE + g] = code;
            }
            barrier();
            PRODUCT_S(s, 0u)
            SCORES(s, now.kv0)
            FORBID(now)
            MATRIX_A counts[S_COUNT];
            [[unroll]] for (uint i = 0u; i < S_COUNT; i++)
                [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
                    float weight = exp2((s[i][e] - m[i / S_TILES * ROW_COUNT + row_of(e)]) * TO_LOG2);
                    float counted = is_zero(float(float16_t(weight))) ? CODE_NAN : 1.0;
                    counts[i][e] = float16_t((allowed[i] >> e & 1u) != 0u ? counted : 0.0);
                }
            [[unroll]] for (uint r = 0u; r < ROW_TILES; r++)
                [[dont_unroll]] for (uint t = 0u; t < O_TILES; t++) {
                    MATRIX_F32 sum = MATRIX_F32(0.0);
                    [[unroll]] for (uint n = 0u; n < S_TILES; n++) {
                        MATRIX_B b;
                        coopMatLoad(b, memory, 2u * SLOT + n * MATRIX_N * V_STRIDE + t * (MATRIX_N / 8u), V_STRIDE,
                                    ROW_MAJOR);
                        sum = coopMatMulAdd(counts[r * S_TILES + n], b, sum);
                    }
                    [[unroll]] for (uint e = 0u; e < LENGTH; e++)
                        sum[e] = value_of_codes(sum[e]);
                    [[unroll]] for (uint i = 0u; i < O_TILES; i++)
                        if (i == t)
                            o[r * O_TILES + i] = o[r * O_TILES + i] + sum;
                }
        }

    /* 7: store O and LSE, or the partial result of a split, through shared memory so that stores are contiguous */
    bool split = args.splits > 1u, partial = split || (args.flags & ATTUNE_VULKAN_IS_PARTIAL) != 0u;
    float scale[ALL_ROWS], top[ALL_ROWS], sum[ALL_ROWS]; /* top and sum: with the sink */
    [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++) {
        l[i] = sum_across(l[i]);
        weight[i] = sum_across(weight[i]);
        /* Partial results are relative to the true maximum. */
        uint row = warp * ROWS + i / ROW_COUNT * MATRIX_M + row_at(i % ROW_COUNT, lane);
        vec2 sink = vec2(1.0, 0.0);
        top[i] = m[i];
        if (!split && row < coord.rows)
            sink = add_sink(args, coord.h0 + head_of(row, coord.queries), top[i]);
        sum[i] = l[i] * sink.x + sink.y;
        float factor = split ? exp2((m[i] - row_max[i]) * TO_LOG2) * l[i] : sink.x;
        scale[i] = is_zero(sum[i]) ? partial ? 1.0 : ZERO_ROW : factor / (weight[i] * sink.x + sink.y);
    }
    [[unroll]] for (uint i = 0u; i < O_COUNT; i++)
        [[unroll]] for (uint e = 0u; e < LENGTH; e++) {
            float by = scale[i / O_TILES * ROW_COUNT + row_of(e)];
            o[i][e] = by == ZERO_ROW ? 0.0 : o[i][e] * by;
        }
    [[unroll]] for (uint i = 0u; i < ALL_ROWS; i++) {
        uint row = warp * ROWS + i / ROW_COUNT * MATRIX_M + row_at(i % ROW_COUNT, lane);
        if (lane % SPAN == 0u && row < coord.rows)
            store_sums(args, coord, row, top[i], row_max[i], sum[i], l[i]);
    }
    const uvec2 o_plane = plane(args.o, coord.b, coord.h0), o_stride_h = args.o.stride_h, o_stride = args.o.stride_row;
    /* Every subgroup has passed a barrier since it last read K or V. */
    [[dont_unroll]] for (uint t0 = 0u; t0 < O_TILES; t0 += O_CHUNK) {
        if (t0 != 0u)
            barrier();
        [[unroll]] for (uint i = 0u; i < O_COUNT; i++) {
            uint r = i / O_TILES, t = i % O_TILES;
            if (t >= t0 && t < t0 + O_CHUNK)
                coopMatStore(o[i], memory, (warp * ROWS + r * MATRIX_M) * O_STRIDE + (t - t0) * (MATRIX_N / 4u),
                             O_STRIDE, ROW_MAJOR);
        }
        barrier();
        const uint groups = O_CHUNK * MATRIX_N / 4u;
        [[dont_unroll]] for (uint i0 = tid; i0 < BLOCK_M * groups; i0 += O_LOADS * THREADS) {
            vec4 value[O_LOADS];
            [[unroll]] for (uint f = 0u; f < O_LOADS; f++) {
                uint i = min(i0 + f * THREADS, BLOCK_M * groups - 1u);
                value[f] = uintBitsToFloat(memory[i / groups * O_STRIDE + i % groups]);
            }
            [[unroll]] for (uint f = 0u; f < O_LOADS; f++) {
                uint i = i0 + f * THREADS, r = i / groups, column = t0 * MATRIX_N + 4u * (i % groups);
                uint q_row = coord.q0 + query_of(r, coord.queries), h = coord.h0 + head_of(r, coord.queries);
                if (r < coord.rows && column < HEAD_DIM_V) {
                    if (split) {
                        uint to = ((coord.b * args.heads + h) * args.q_len + q_row) * args.splits + coord.split;
                        OutVec4(address_add(address_step(args.partials, to, uvec2(HEAD_DIM_V * 4u, 0u)), column * 4u))
                            .value = value[f];
                    } else {
                        uvec2 to = address_add(
                            address_step(address_step(o_plane, head_of(r, coord.queries), o_stride_h), q_row, o_stride),
                            column * bytes_of(O_TYPE));
                        if (o_aligned && O_TYPE != F32)
                            OutUvec2(to).value = uvec2(pack_pair(value[f].x, value[f].y),
                                                       pack_pair(value[f].z, value[f].w));
                        else
                            store4(O_TYPE, to, o_aligned, value[f]);
                    }
                }
            }
        }
    }
}
