/* SPDX-License-Identifier: MIT */
/*
 * backward.comp for drivers that run shaders on a CPU's vector unit, in the manner of lanes.comp: a workgroup is one
 * subgroup without shared memory or barriers. In S and P, lane w has inner row LANES g + w; A and A2 are kept with lane
 * w at element LANES c + w of a row, X and Y with ELEMENTS columns in each lane. The stages are numbered as in
 * docs/algorithm.md.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#include "arguments.glsl"
#include "gradient.glsl"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;

#include "backward_tiles.glsl"
#include "lanes.glsl"

const uint GROUPS = BLOCK_N / LANES, LANE_DIMS = HEAD_DIM / LANES, LANE_DIMS_V = HEAD_DIM_V / LANES;
const uint CHUNKS = (HEAD_DIM + COLUMNS - 1u) / COLUMNS, CHUNKS_V = (HEAD_DIM_V + COLUMNS - 1u) / COLUMNS;

attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);
OuterTile outer;
InnerTiles next; /* the inner tile */
uint lane, inner_len;
uvec2 b_stride, b2_stride;
float prescale, factor;
float a[BLOCK_M * LANE_DIMS], a2[BLOCK_M * LANE_DIMS_V], p[BLOCK_M * GROUPS], ds[BLOCK_M * GROUPS];
float x[BLOCK_M * CHUNKS * ELEMENTS];
#ifdef KEYS
float y[BLOCK_M * CHUNKS_V * ELEMENTS], lse[GROUPS], delta[GROUPS];
#else
float lse[BLOCK_M], delta[BLOCK_M];
vec4 d_uniform = vec4(0.0); /* gradients of capture elements that all pairs read */
#endif

/* A row of A or A2. */
#define LOAD_OUTER(to, dims, plane, stride, factor)                                                                    \
    [[dont_unroll]] for (uint r = 0u; r < BLOCK_M; r++) {                                                              \
        uvec2 from = address_step(plane, outer.row0 + min(r, outer.rows - 1u), stride);                                \
        uint64_t at = pack64(address_add(from, lane * ELEMENT_BYTES));                                                 \
        [[dont_unroll]] for (uint c = 0u; c < dims; c++) {                                                             \
            uint bits = element_bits(at + uint64_t(c * LANES * ELEMENT_BYTES));                                        \
            to[r * dims + c] = element(uvec2(bits), 0u) * factor;                                                      \
        }                                                                                                              \
    }

/* to = A B^T */
#define MULTIPLY_ROWS(to, from, dims, plane, stride)                                                                   \
    {                                                                                                                  \
        uint64_t b_at[GROUPS];                                                                                         \
        [[unroll]] for (uint g = 0u; g < GROUPS; g++)                                                                  \
            b_at[g] = pack64(address_step(plane, min(row0 + g * LANES + lane, inner_len - 1u), stride));               \
        float acc[BLOCK_M * GROUPS];                                                                                   \
        [[unroll]] for (uint i = 0u; i < BLOCK_M * GROUPS; i++)                                                        \
            acc[i] = 0.0;                                                                                              \
        [[dont_unroll]] for (uint c = 0u; c < dims; c++) {                                                             \
            float b_row[GROUPS * LANES];                                                                               \
            [[unroll]] for (uint g = 0u; g < GROUPS; g++) {                                                            \
                [[unroll]] for (uint t = 0u; t < LANES; t += ELEMENTS) {                                               \
                    uvec2 words = load8(b_at[g] + uint64_t(t * ELEMENT_BYTES));                                        \
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++)                                                    \
                        b_row[g * LANES + t + e] = element(words, e);                                                  \
                }                                                                                                      \
                b_at[g] += uint64_t(LANES * ELEMENT_BYTES);                                                            \
            }                                                                                                          \
            [[unroll]] for (uint r = 0u; r < BLOCK_M; r++) {                                                           \
                float mine = from[r * dims + c];                                                                       \
                [[unroll]] for (uint w = 0u; w < LANES; w++) {                                                         \
                    float one = subgroupShuffle(mine, w);                                                              \
                    [[unroll]] for (uint g = 0u; g < GROUPS; g++)                                                      \
                        acc[r * GROUPS + g] = fma(one, b_row[g * LANES + w], acc[r * GROUPS + g]);                     \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        [[unroll]] for (uint i = 0u; i < BLOCK_M * GROUPS; i++)                                                        \
            to[i] = acc[i];                                                                                            \
    }

/* to += weights B, eight bytes of each row of B in each lane. The non-finite slow path skips weights of 0,
 * since 0 times NaN or infinity is NaN. */
#define MULTIPLY_WEIGHTS(to, weights, chunks, size, plane, stride_row)                                                 \
    [[dont_unroll]] for (uint chunk = 0u; chunk < chunks; chunk++) {                                                   \
        uint column = min(chunk * COLUMNS + lane * ELEMENTS, size - ELEMENTS);                                         \
        uint64_t from = pack64(address_add(address_step(plane, row0, stride_row), column * ELEMENT_BYTES));            \
        uint64_t stride = pack64(stride_row), at = from;                                                               \
        uint to_at = chunk * ELEMENTS * BLOCK_M, non_finite = 0u;                                                      \
        float sum[BLOCK_M * ELEMENTS];                                                                                 \
        [[unroll]] for (uint i = 0u; i < BLOCK_M * ELEMENTS; i++)                                                      \
            sum[i] = to[to_at + i];                                                                                    \
        [[dont_unroll]] for (uint g = 0u; g < GROUPS; g++) {                                                           \
            float weight[BLOCK_M];                                                                                     \
            [[unroll]] for (uint r = 0u; r < BLOCK_M; r++)                                                             \
                weight[r] = weights[r * GROUPS + g];                                                                   \
            [[unroll]] for (uint w = 0u; w < LANES; w++) {                                                             \
                uvec2 words = load8(at);                                                                               \
                at += row0 + g * LANES + w + 1u < inner_len ? stride : uint64_t(0u);                                   \
                non_finite |= is_non_finite8(words) ? 1u : 0u;                                                         \
                [[unroll]] for (uint r = 0u; r < BLOCK_M; r++) {                                                       \
                    float one = subgroupShuffle(weight[r], w);                                                         \
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++)                                                    \
                        sum[e * BLOCK_M + r] = fma(one, element(words, e), sum[e * BLOCK_M + r]);                      \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        [[unroll]] for (uint step = 1u; step < LANES; step *= 2u)                                                      \
            non_finite |= subgroupShuffle(non_finite, lane ^ step);                                                    \
        [[dont_unroll]] for (uint once = 0u; once < non_finite; once++) {                                              \
            at = from;                                                                                                 \
            [[unroll]] for (uint i = 0u; i < BLOCK_M * ELEMENTS; i++)                                                  \
                sum[i] = to[to_at + i];                                                                                \
            [[dont_unroll]] for (uint n = 0u; n < BLOCK_N; n++) {                                                      \
                uvec2 words = load8(at);                                                                               \
                at += row0 + n + 1u < inner_len ? stride : uint64_t(0u);                                               \
                [[unroll]] for (uint r = 0u; r < BLOCK_M; r++) {                                                       \
                    float one = subgroupShuffle(weights[r * GROUPS + n / LANES], n % LANES);                           \
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {                                                  \
                        float with = fma(one, element(words, e), sum[e * BLOCK_M + r]);                                \
                        sum[e * BLOCK_M + r] = is_zero(one) ? sum[e * BLOCK_M + r] : with;                             \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        [[unroll]] for (uint i = 0u; i < BLOCK_M * ELEMENTS; i++)                                                      \
            to[to_at + i] = sum[i];                                                                                    \
    }

#define STORE_OUTPUT(tensor, from, chunks, size, factor)                                                               \
    [[dont_unroll]] for (uint r = 0u; r < outer.rows; r++) {                                                           \
        uvec2 to = address_step(plane(tensor, outer.b, outer.h), outer.row0 + r, tensor.stride_row);                   \
        [[dont_unroll]] for (uint chunk = 0u; chunk < chunks; chunk++) {                                               \
            uint column = chunk * COLUMNS + lane * ELEMENTS;                                                           \
            [[dont_unroll]] for (uint e = 0u; e < ELEMENTS && column < size; e += 2u)                                  \
                store2(address_add(to, (column + e) * bytes_of(O_TYPE)),                                               \
                       factor *vec2(from[(chunk * ELEMENTS + e) * BLOCK_M + r],                                        \
                                    from[(chunk * ELEMENTS + e + 1u) * BLOCK_M + r]));                                 \
        }                                                                                                              \
    }

void store2(const in uvec2 to, const in vec2 value)
{
    if (ALIGNED && O_TYPE == F32) {
        OutWord64(pack64(to)).value = pack64(floatBitsToUint(value));
    } else if (ALIGNED) {
        OutWord(to).value = pack(O_TYPE, value.x, value.y);
    } else {
        store_element(O_TYPE, to, value.x);
        store_element(O_TYPE, address_add(to, bytes_of(O_TYPE)), value.y);
    }
}

/* 1: load the outer tile, Q and dO or K and V */
void load_outer()
{
    uvec2 a_plane = plane(TENSOR_A, outer.b, outer.h), a2_plane = plane(TENSOR_A2, outer.b, outer.h);
    LOAD_OUTER(a, LANE_DIMS, a_plane, TENSOR_A.stride_row, prescale)
    LOAD_OUTER(a2, LANE_DIMS_V, a2_plane, TENSOR_A2.stride_row, 1.0)
#ifndef KEYS
    [[dont_unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
        uint q = outer.row0 + min(r, outer.rows - 1u);
        lse[r] = load_lse(args.lse, outer.b, outer.h, q);
        delta[r] = load_delta(args, outer.b, outer.h, q);
    }
#endif
}

/* 2: load the inner tile; 3: S = Q K^T */
void compute_s()
{
    const uint row0 = next.blocks.row0;
    MULTIPLY_ROWS(p, a, LANE_DIMS, next.b_plane, b_stride)
}

/* 3, of the backward pass: dP = dO V^T */
void compute_dp()
{
    const uint row0 = next.blocks.row0;
    MULTIPLY_ROWS(ds, a2, LANE_DIMS_V, next.b2_plane, b2_stride)
}

/* 4: score and mask; 5: P, and dS with respect to scale q k */
void apply_mods()
{
    const uint row0 = next.blocks.row0;
    const bool is_partial = MASK && next.blocks.kind != 0u;
#ifdef KEYS
    [[unroll]] for (uint g = 0u; g < GROUPS; g++) {
        uint q = min(row0 + g * LANES + lane, inner_len - 1u);
        lse[g] = load_lse(args.lse, next.b, next.h, q);
        delta[g] = load_delta(args, next.b, next.h, q);
    }
#endif
    [[dont_unroll]] for (uint r = 0u; r < BLOCK_M; r++)
        [[dont_unroll]] for (uint g = 0u; g < GROUPS; g++) {
            uint outer_row = outer.row0 + r, row = row0 + g * LANES + lane;
#ifdef KEYS
            uint q = row, kv = outer_row, at = g;
#else
            uint q = outer_row, kv = row, at = r;
#endif
            bool may = r < outer.rows && row < inner_len;
            [[dont_unroll]] for (uint once = 0u; once < (is_partial ? 1u : 0u); once++)
                may = may && attune_mask(int(next.b), int(next.h), int(q), int(kv), args.mask_mod);
            float raw = p[r * GROUPS + g] * factor, value = raw;
            if (SCORE)
                value = attune_score(raw, int(next.b), int(next.h), int(q), int(kv), args.score_mod);
            float weight = exp2((value - lse[at]) * LOG2E);
            weight = may ? weight : 0.0;
            float d = is_zero(weight) ? 0.0 : weight * (ds[r * GROUPS + g] - delta[at]);
            p[r * GROUPS + g] = weight;
#ifndef KEYS
            [[dont_unroll]] for (uint once = 0u; once < (SCORE && CAPTURES && !is_zero(d) ? 1u : 0u); once++) {
                d_uniform += d * attune_d_uniform(raw, int(next.b), int(next.h), int(q), int(kv), args.score_mod);
                attune_d_add(raw, int(next.b), int(next.h), int(q), int(kv), args.score_mod, d);
            }
#endif
            if (SCORE) {
                float slope = attune_d_score(raw, int(next.b), int(next.h), int(q), int(kv), args.score_mod);
                d = is_zero(d) ? 0.0 : d * slope;
            }
            ds[r * GROUPS + g] = d;
        }
}

#ifdef KEYS
/* 6: dV += P^T dO */
void accumulate_dv()
{
    const uint row0 = next.blocks.row0;
    MULTIPLY_WEIGHTS(y, p, CHUNKS_V, HEAD_DIM_V, next.b2_plane, b2_stride)
}
#endif

/* 6: dK += dS^T Q, or dQ += dS K */
void accumulate_dx()
{
    const uint row0 = next.blocks.row0;
    MULTIPLY_WEIGHTS(x, ds, CHUNKS, HEAD_DIM, next.b_plane, b_stride)
}

/* 7: store dK and dV, or dQ and capture gradients */
void store_gradients()
{
#ifdef KEYS
    STORE_OUTPUT(args.d_k, x, CHUNKS, HEAD_DIM, args.scale)
    STORE_OUTPUT(args.d_v, y, CHUNKS_V, HEAD_DIM_V, 1.0)
#else
    STORE_OUTPUT(args.d_q, x, CHUNKS, HEAD_DIM, args.scale)
    if (CAPTURES)
        attune_d_uniform_add(d_uniform, int(outer.b), int(outer.h), args.score_mod);
#endif
}

void begin()
{
    lane = gl_SubgroupInvocationID;
    outer = outer_tile_of(args, push.first + gl_WorkGroupID.x);
    b_stride = TENSOR_B.stride_row;
    b2_stride = TENSOR_B2.stride_row;
    prescale = PRESCALE ? args.scale : 1.0;
    factor = PRESCALE ? 1.0 : args.scale;
    [[dont_unroll]] for (uint i = 0u; i < BLOCK_M * CHUNKS * ELEMENTS; i++)
        x[i] = 0.0;
#ifdef KEYS
    inner_len = args.q_len;
    [[dont_unroll]] for (uint i = 0u; i < BLOCK_M * CHUNKS_V * ELEMENTS; i++)
        y[i] = 0.0;
#else
    inner_len = args.kv_len;
#endif
}

void main()
{
    begin();
    load_outer(); /* 1 */
    next.plane = 0u;
    inner_tiles_begin(next, args, outer);
    while (inner_tiles_next(next, args, outer, inner_len)) {
        compute_s();  /* 2: load; 3: S = Q K^T */
        compute_dp(); /* 3: dP = dO V^T */
        apply_mods(); /* 4: score and mask; 5: P and dS */
#ifdef KEYS
        accumulate_dv(); /* 6 */
#endif
        accumulate_dx(); /* 6 */
    }
    store_gradients(); /* 7 */
}
