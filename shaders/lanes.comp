/* SPDX-License-Identifier: MIT */
/*
 * Forward attention and decode for drivers that run shaders on a CPU's vector unit. There, memory is read lane by lane
 * and a barrier leaves the function, but a shuffle is one instruction and a variable is a register or a word of the
 * stack. So a workgroup is one subgroup without shared memory or barriers. It has all rows of a tile, reads each
 * element of K and V once for them, eight bytes at a time, and broadcasts Q and P to its lanes by shuffles.
 *
 * In S and P, lane w has key LANES g + w; Q is kept with lane w at element LANES c + w of a row, O with ELEMENTS
 * columns in each lane. Arrays that are read at a variable index are separate from those that are registers. Where both
 * sides of a branch would run, a loop of at most one iteration replaces it. Mesa unrolls loops of up to 32 iterations:
 * an array that a longer loop indexes is in memory. The stages are numbered as in docs/algorithm.md.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#include "arguments.glsl"
#include "mods.glsl"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;

#include "forward_tile.glsl"
#include "lanes.glsl"

const uint GROUPS = BLOCK_N / LANES, LANE_DIMS = HEAD_DIM / LANES, CHUNKS = (HEAD_DIM_V + COLUMNS - 1u) / COLUMNS;
const float FORBIDDEN = -1.0;
const uint FORBIDDEN_BITS = 0xbf800000u;
#define LOWEST_BITS floatBitsToUint(LOWEST)

uint lane;
float factor;
float q[BLOCK_M * LANE_DIMS], p[BLOCK_M * GROUPS], o[BLOCK_M * CHUNKS * ELEMENTS];
float m[BLOCK_M], l[BLOCK_M], factors[BLOCK_M]; /* factors: that rescale O */

/* 1: load Q */
void load_q()
{
    [[dont_unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
        uint row = min(r, coord.rows - 1u);
        uvec2 from = plane(args.q, coord.b, row_head(row));
        from = address_step(from, row_query(row), q_stride);
        uint64_t at = pack64(address_add(from, lane * bytes_of(Q_TYPE)));
        [[dont_unroll]] for (uint c = 0u; c < LANE_DIMS; c++) {
            uint bits = element_bits(at + uint64_t(c * LANES * bytes_of(Q_TYPE)));
            float value = Q_TYPE == F32 ? uintBitsToFloat(bits) : unpack(Q_TYPE, bits).x;
            q[r * LANE_DIMS + c] = value * (PRESCALE ? args.scale : 1.0);
        }
    }
}

/* 2: load K; 3: S = Q K^T */
void compute_s(const in uint kv0)
{
    uint64_t k_at[GROUPS];
    [[unroll]] for (uint g = 0u; g < GROUPS; g++)
        k_at[g] = pack64(address_step(k_plane, min(kv0 + g * LANES + lane, kv_len - 1u), k_stride));
    float acc[BLOCK_M * GROUPS];
    [[unroll]] for (uint r = 0u; r < BLOCK_M; r++)
        [[unroll]] for (uint g = 0u; g < GROUPS; g++)
            acc[r * GROUPS + g] = 0.0;
    [[dont_unroll]] for (uint c = 0u; c < LANE_DIMS; c++) {
        float k[GROUPS * LANES];
        [[unroll]] for (uint g = 0u; g < GROUPS; g++) {
            [[unroll]] for (uint t = 0u; t < LANES; t += ELEMENTS) {
                uvec2 words = load8(k_at[g] + uint64_t(t * ELEMENT_BYTES));
                [[unroll]] for (uint e = 0u; e < ELEMENTS; e++)
                    k[g * LANES + t + e] = element(words, e);
            }
            k_at[g] += uint64_t(LANES * ELEMENT_BYTES);
        }
        [[unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
            float mine = q[r * LANE_DIMS + c];
            [[unroll]] for (uint w = 0u; w < LANES; w++) {
                float a = subgroupShuffle(mine, w);
                [[unroll]] for (uint g = 0u; g < GROUPS; g++)
                    acc[r * GROUPS + g] = fma(a, k[g * LANES + w], acc[r * GROUPS + g]);
            }
        }
    }
    [[unroll]] for (uint r = 0u; r < BLOCK_M; r++)
        [[unroll]] for (uint g = 0u; g < GROUPS; g++)
            p[r * GROUPS + g] = acc[r * GROUPS + g];
}

/* 4: score and mask; a forbidden pair is LOWEST */
void apply_mods(const in KeyTile tile)
{
    [[dont_unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
        uint row_q = row_query(r), row_h = row_head(r);
        [[dont_unroll]] for (uint g = 0u; g < GROUPS; g++) {
            uint kv = tile.kv0 + g * LANES + lane;
            float x = p[r * GROUPS + g] * factor;
            if (SCORE)
                x = attune_score(x, int(coord.b), int(row_h), int(row_q), int(kv), args.score_mod);
            bool may = r < coord.rows && kv < kv_len;
            [[dont_unroll]] for (uint once = 0u; once < (tile.is_partial ? 1u : 0u); once++)
                may = may && attune_mask(int(coord.b), int(row_h), int(row_q), int(kv), args.mask_mod);
            p[r * GROUPS + g] = may ? x : LOWEST;
        }
    }
}

/* 5: online softmax. Returns whether a pair is forbidden. */
bool online_softmax()
{
    bool masked = false;
    [[dont_unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
        float x[GROUPS], most = LOWEST, sum = 0.0;
        [[unroll]] for (uint g = 0u; g < GROUPS; g++) {
            x[g] = p[r * GROUPS + g];
            most = max(most, x[g]);
        }
        [[unroll]] for (uint step = 1u; step < LANES; step *= 2u)
            most = max(most, subgroupShuffle(most, lane ^ step));
        float next = max(m[r], most), alpha = exp2((m[r] - next) * TO_LOG2);
        [[unroll]] for (uint g = 0u; g < GROUPS; g++) {
            bool may = floatBitsToUint(x[g]) != LOWEST_BITS;
            float weight = exp2((x[g] - next) * TO_LOG2);
            masked = masked || !may;
            sum += may ? weight : 0.0;
            p[r * GROUPS + g] = may ? weight : FORBIDDEN;
        }
        m[r] = next;
        l[r] = l[r] * alpha + sum;
        factors[r] = alpha;
    }
    return masked;
}

/* 6: O += P V, eight bytes of each row of V in each lane */
void accumulate_o(const in uint kv0, const in bool masked)
{
    [[dont_unroll]] for (uint chunk = 0u; chunk < CHUNKS; chunk++) {
        uint column = min(chunk * COLUMNS + lane * ELEMENTS, HEAD_DIM_V - ELEMENTS);
        uint64_t from = pack64(address_add(address_step(v_plane, kv0, v_stride), column * ELEMENT_BYTES));
        uint64_t stride = pack64(v_stride), at = from;
        uint o_at = chunk * ELEMENTS * BLOCK_M, non_finite = 0u;
        float sum[BLOCK_M * ELEMENTS];
        [[unroll]] for (uint e = 0u; e < ELEMENTS; e++)
            [[unroll]] for (uint r = 0u; r < BLOCK_M; r++)
                sum[e * BLOCK_M + r] = o[o_at + e * BLOCK_M + r] * factors[r];
        [[dont_unroll]] for (uint g = 0u; g < GROUPS; g++) {
            float weight[BLOCK_M];
            [[unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
                weight[r] = p[r * GROUPS + g];
                weight[r] = floatBitsToUint(weight[r]) == FORBIDDEN_BITS ? 0.0 : weight[r];
            }
            [[unroll]] for (uint w = 0u; w < LANES; w++) {
                uvec2 words = load8(at);
                at += kv0 + g * LANES + w + 1u < kv_len ? stride : uint64_t(0u);
                non_finite |= is_non_finite8(words) ? 1u : 0u;
                [[unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
                    float a = subgroupShuffle(weight[r], w);
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++)
                        sum[e * BLOCK_M + r] = fma(a, element(words, e), sum[e * BLOCK_M + r]);
                }
            }
        }
        /* The non-finite slow path: weight by weight, since 0 times NaN is NaN where the pair is forbidden. */
        non_finite = masked ? non_finite | 2u : non_finite;
        [[unroll]] for (uint step = 1u; step < LANES; step *= 2u)
            non_finite |= subgroupShuffle(non_finite, lane ^ step);
        [[dont_unroll]] for (uint once = 0u; once < (non_finite == 3u ? 1u : 0u); once++) {
            at = from;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e++)
                [[unroll]] for (uint r = 0u; r < BLOCK_M; r++)
                    sum[e * BLOCK_M + r] = o[o_at + e * BLOCK_M + r] * factors[r];
            [[dont_unroll]] for (uint n = 0u; n < BLOCK_N; n++) {
                uvec2 words = load8(at);
                at += kv0 + n + 1u < kv_len ? stride : uint64_t(0u);
                [[unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
                    float a = subgroupShuffle(p[r * GROUPS + n / LANES], n % LANES);
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
                        float with = fma(a, element(words, e), sum[e * BLOCK_M + r]);
                        sum[e * BLOCK_M + r] = floatBitsToUint(a) == FORBIDDEN_BITS ? sum[e * BLOCK_M + r] : with;
                    }
                }
            }
        }
        [[unroll]] for (uint e = 0u; e < ELEMENTS; e++)
            [[unroll]] for (uint r = 0u; r < BLOCK_M; r++)
                o[o_at + e * BLOCK_M + r] = sum[e * BLOCK_M + r];
    }
}

/* 7: store O and LSE, or the partial result of a split */
void store_o()
{
    begin_store();
    [[dont_unroll]] for (uint r = 0u; r < coord.rows; r++) {
        uint row_q = row_query(r), row_h = row_head(r);
        float sum = l[r];
        [[unroll]] for (uint step = 1u; step < LANES; step *= 2u)
            sum += subgroupShuffle(sum, lane ^ step);
        float top = m[r];
        vec2 sink = split ? vec2(1.0, 0.0) : add_sink(args, row_h, top);
        float with_sink = sum * sink.x + sink.y;
        bool empty = is_zero(with_sink);
        float scale = split || empty ? 1.0 : sink.x / with_sink;
        if (lane == 0u)
            store_row_state(row_h, row_q, top, with_sink, m[r], sum);
        uvec2 part = address_step(args.partials, partial_index(row_h, row_q), uvec2(HEAD_DIM_V * 4u, 0u));
        uvec2 to = address_step(plane(args.o, coord.b, row_h), row_q, args.o.stride_row);
        [[dont_unroll]] for (uint chunk = 0u; chunk < CHUNKS; chunk++) {
            uint column = chunk * COLUMNS + lane * ELEMENTS;
            [[dont_unroll]] for (uint e = 0u; e < ELEMENTS && column < HEAD_DIM_V; e += 2u) {
                uint at = (chunk * ELEMENTS + e) * BLOCK_M + r;
                vec2 value = vec2(o[at], o[at + BLOCK_M]);
                value = empty && !is_partial_result ? vec2(0.0) : value * scale;
                if (split)
                    OutWord64(pack64(address_add(part, (column + e) * 4u))).value = pack64(floatBitsToUint(value));
                else if (ALIGNED && O_TYPE == F32)
                    OutWord64(pack64(address_add(to, (column + e) * 4u))).value = pack64(floatBitsToUint(value));
                else if (ALIGNED)
                    OutWord(address_add(to, (column + e) * 2u)).value = pack(O_TYPE, value.x, value.y);
                else {
                    store_element(O_TYPE, address_add(to, (column + e) * bytes_of(O_TYPE)), value.x);
                    store_element(O_TYPE, address_add(to, (column + e + 1u) * bytes_of(O_TYPE)), value.y);
                }
            }
        }
    }
}

void begin()
{
    lane = gl_SubgroupInvocationID;
    begin_tile();
    factor = (PRESCALE ? 1.0 : args.scale) * (SCORE ? 1.0 : LOG2E);
    [[dont_unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
        [[dont_unroll]] for (uint c = 0u; c < CHUNKS * ELEMENTS; c++)
            o[c * BLOCK_M + r] = 0.0;
        m[r] = LOWEST;
        l[r] = 0.0;
    }
}

void main()
{
    begin();
    load_q(); /* 1: load Q */
    BlockIterator blocks = block_iterator_begin(args, coord);
    while (block_iterator_next(blocks, kv_block, kv_len)) {
        const KeyTile tile = key_tile_of(blocks);
        compute_s(tile.kv0);                  /* 2: load K; 3: S = Q K^T */
        apply_mods(tile);                     /* 4: score and mask */
        const bool masked = online_softmax(); /* 5: online softmax */
        accumulate_o(tile.kv0, masked);       /* 6: O += P V */
    }
    store_o(); /* 7: store O and LSE */
}
