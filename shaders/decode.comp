/* SPDX-License-Identifier: MIT */
/*
 * Forward attention of few rows over many keys, at the speed of memory: decode, and calls over a cache of one or a few
 * queries a sequence. A workgroup has up to BLOCK_M rows, of the query heads that share keys, and the keys of a part.
 * Each subgroup computes keys of its own and shares nothing until the end, so that the loop has neither barriers nor
 * shared memory. KEY_LANES lanes have one key, 16 bytes of its row each; a load of the subgroup reads KEYS_AT_ONCE
 * whole rows. While S is computed the loads of V are in flight, and while O is, those of the next tile's K. Where a
 * key is was found by one lane, a tile ahead, and is passed on by shuffles: pages are translated once for each key.
 *
 * V is loaded at the beginning of the loop and not for the next tile: NVIDIA's compiler copies what is loaded for the
 * next pass at the end of the loop, and so waits for it there.
 *
 * A lane has partial dot products of all rows with its KEYS keys. They are summed over the lanes of a key by exchanging
 * halves, so that in the end each lane has SCORES of the pairs, of one row, and computes score, mask and weight once.
 * Shuffles are right where all lanes come to them together. So loads have no condition, and after the caller's mask, or
 * a key's page, which lanes look up each for itself, they wait for each other. Lanes vote, and reduce by shuffles:
 * NVIDIA's driver 580 gives reductions of integers a wrong guard where lanes may have parted, and then leaves some out.
 * The stages are numbered as in docs/algorithm.md.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_memory_scope_semantics : require

#include "arguments.glsl"
#include "mods.glsl"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;

#include "layout_decode.h"

/* As a weight, a forbidden pair: -0, which no exponential results in. Set and compared as bits. */
const uint FORBIDDEN = 0x80000000u;

#define KEYS_IN_REGISTERS
#include "forward_tile.glsl"

#ifdef SERVING
#define POSITION        sequence.position
#define SEQUENCE        , int(sequence.q_len), int(kv_len), int(sequence.token0 + row_q)
#define NEXT_TILE(next) next_tile(next)
#else
#define POSITION 0
#define SEQUENCE
#define NEXT_TILE(next) block_iterator_next(next, kv_block, kv_len)
#endif

/* A tile of keys, and of one of them, that this lane finds for the others, the page and the row there. */
struct Tile {
    bool exists, is_partial;
    uint kv0;
    uvec2 key;
};

/* The addresses of the rows of K and V, the factors of their codes, and which of the lanes' keys are missing. */
struct Keys {
    uvec2 k, v;
    uint k_factor, v_factor, missing;
};

uint tid, warp, lane;
uint key_lane, key_group; /* among the lanes of a key; among the keys that the subgroup reads at once */
uint row, first_score, row_q, row_h;
bool has_row;
float factor;
vec4 held_q[HELD_COUNT], o[O_COUNT];
Group k_groups[K_COUNT], v_groups[V_COUNT]; /* loads in flight */
float pairs[PAIRS], weights[SCORES];
float m = LOWEST, l = 0.0;

/* Sums over the parts before, in items that fold them. */
vec4 sum_o[SUM_SIZE];
float sum_m[SUM_SIZE], sum_l[SUM_SIZE];
bool has_sums = false;

/* Key `u` of a lane's, of the keys of a tile. */
uint key_index(const in uint u, const in uint group)
{
    return (u * WARPS + warp) * KEYS_AT_ONCE + group;
}

/* The lane that finds it. */
uint finder(const in uint u)
{
    return u * KEYS_AT_ONCE + key_group;
}

uint group_index(const in uint c)
{
    return c * KEY_LANES + key_lane;
}

Tile find_tile(inout BlockIterator it)
{
    Tile tile;
    tile.exists = NEXT_TILE(it);
    tile.kv0 = it.row0;
    tile.is_partial = MASK && it.kind != 0u;
    const uint kv = it.row0 + key_index(lane / KEYS_AT_ONCE, lane % KEYS_AT_ONCE);
    bool mine = tile.exists && lane < KEYS * KEYS_AT_ONCE;
#ifdef SERVING
    tile.is_partial = tile.is_partial || sees_some(it.row0 + BLOCK_N);
    tile.key = uvec2(NO_PAGE, 0u);
    if (mine)
        tile.key = key_of(kv);
#else
    tile.key = uvec2(mine && kv < kv_len ? 0u : ~0u, kv);
#endif
    return tile;
}

/* `tile` was found earlier, so that the entries of the block table have arrived. In place of a key that is missing the
 * first row is loaded, which every call has, and not used: a load on a condition would set registers first. */
Keys find_keys(const in Tile tile)
{
    Keys found;
    const bool missing = tile.key.x == ~0u;
    found.missing = subgroupBallot(missing && lane < KEYS * KEYS_AT_ONCE).x;
    found.k_factor = found.v_factor = 0u;
#ifdef SERVING
    const uvec2 key = missing ? uvec2(0u) : tile.key;
    found.k = k_row(key);
    found.v = v_row(key);
    if (is_quantised(K_TYPE) && !has_blocks(K_TYPE) && tile.key.x != NO_PAGE)
        found.k_factor = factor_of(serving.k_scale, coord.kv_h, tile.key);
    if (is_quantised(V_TYPE) && !has_blocks(V_TYPE) && tile.key.x != NO_PAGE)
        found.v_factor = factor_of(serving.v_scale, coord.kv_h, tile.key);
#else
    found.k = address_step(k_plane, missing ? 0u : tile.key.y, k_stride);
    found.v = address_step(v_plane, missing ? 0u : tile.key.y, v_stride);
#endif
    return found;
}

/* The lanes come together again; memory has no order that they need. */
void converge()
{
    if (MEETS)
        controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, 0, 0);
}

/* Eight elements, without a condition. Where they may begin at any of two bytes, five words have those of 16 bits. */
Group fetch_group(const in uint type, const in uvec2 address)
{
    if (ALIGNED || type == F32)
        return fetch(type, address, ALIGNED, true);
    const uvec2 from = uvec2(address.x & ~3u, address.y);
    const bool odd = (address.x & 2u) != 0u;
    uint words[5];
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        words[i] = Word(address_add(from, 4u * i)).value;
    words[4] = Word(address_add(from, odd ? 16u : 12u)).value;
    Group group;
    group.high = uvec4(0u);
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        group.low[i] = odd ? words[i] >> 16 | words[i + 1u] << 16 : words[i];
    return group;
}

/* A group that a lane does not have is 0. */
Group only_own(const in Group group, const in bool own)
{
    Group result;
    result.low = mix(uvec4(0u), group.low, bvec4(own));
    result.high = mix(uvec4(0u), group.high, bvec4(own));
    return result;
}

/* Eight elements of a row, or their codes. */
Group load_group(const in uint type, const in uvec2 at, const in uint group)
{
#ifdef SERVING
    if (is_quantised(type)) {
        Group codes;
        codes.low = codes.high = uvec4(0u);
        codes.low.xy = load_codes(type, at, group * 8u);
        if (has_blocks(type))
            codes.low.z = block_factor(type, at, group * 8u);
        return codes;
    }
#endif
    return fetch_group(type, address_add(at, group * 8u * bytes_of(type)));
}

/* 2: load K, of the lane's key u. A lane without a group of its own loads the last one. */
void load_k(const in Keys keys, const in uint u)
{
    const uint groups = HEAD_DIM / 8u;
    const uvec2 at = uvec2(subgroupShuffle(keys.k.x, finder(u)), subgroupShuffle(keys.k.y, finder(u)));
    [[unroll]] for (uint c = 0u; c < K_GROUPS; c++) {
        Group group = load_group(K_TYPE, at, min(group_index(c), groups - 1u));
        if (groups % KEY_LANES != 0u)
            group = only_own(group, group_index(c) < groups);
        k_groups[u * K_GROUPS + c] = group;
    }
}

/* For stage 6. What a lane has past the end of the row is not stored. */
void load_v(const in Keys keys, const in uint u)
{
    const uint groups = HEAD_DIM_V / 8u;
    const uvec2 at = uvec2(subgroupShuffle(keys.v.x, finder(u)), subgroupShuffle(keys.v.y, finder(u)));
    [[unroll]] for (uint c = 0u; c < V_GROUPS; c++)
        v_groups[u * V_GROUPS + c] = load_group(V_TYPE, at, min(group_index(c), groups - 1u));
}

/* `key_factor`: of the key, where its type has one. */
void widen_group(const in uint type, const in Group group, const in uint key_factor, out vec4 low, out vec4 high)
{
#ifdef SERVING
    if (is_quantised(type)) {
        dequantise(type, group.low.xy, uintBitsToFloat(has_blocks(type) ? group.low.z : key_factor), low, high);
        return;
    }
#endif
    widen(type, group, low, high);
}

uint factor_of_key(const in uint type, const in uint factors, const in uint u)
{
#ifdef SERVING
    if (is_quantised(type) && !has_blocks(type))
        return subgroupShuffle(factors, finder(u));
#endif
    return 0u;
}

/* 1: load Q */
vec4 load_q(const in uint r, const in uint group, const in bool high)
{
    vec4 first, last;
    const bool own = r < coord.rows && group < HEAD_DIM / 8u;
    const uint own_row = own ? r : 0u, own_group = own ? group : 0u;
    uvec2 at = address_step(q_plane, head_of(own_row, coord.queries), q_stride_h);
    at = address_step(at, tensor_row(row_query(own_row)), q_stride);
    at = address_add(at, own_group * 8u * bytes_of(Q_TYPE));
    widen(Q_TYPE, only_own(fetch_group(Q_TYPE, at), own), first, last);
    return (high ? last : first) * (PRESCALE ? args.scale : 1.0);
}

void begin_q()
{
    if (HOLD_Q) {
        [[unroll]] for (uint i = 0u; i < HELD_COUNT; i++)
            held_q[i] = load_q(i / 2u / K_GROUPS, group_index(i / 2u % K_GROUPS), i % 2u != 0u);
    } else {
        for (uint i = tid; i < Q_SIZE; i += THREADS)
            shared_q[i] = load_q(i / 2u / (K_GROUPS * KEY_LANES), i / 2u % (K_GROUPS * KEY_LANES), i % 2u != 0u);
        barrier();
    }
}

vec4 q_of(const in uint r, const in uint c, const in uint half_group)
{
    if (HOLD_Q)
        return held_q[(r * K_GROUPS + c) * 2u + half_group];
    return shared_q[(r * K_GROUPS * KEY_LANES + group_index(c)) * 2u + half_group];
}

/* 3: S = Q K^T, a lane's share of the sums; and the loads of the next tile's K */
void compute_s(const in Keys keys, const in Keys next)
{
    [[unroll]] for (uint u = 0u; u < KEYS; u++) {
        [[unroll]] for (uint r = 0u; r < BLOCK_M; r++)
            pairs[r * KEYS + u] = 0.0;
        [[unroll]] for (uint c = 0u; c < K_GROUPS; c++) {
            vec4 low, high;
            widen_group(K_TYPE, k_groups[u * K_GROUPS + c], factor_of_key(K_TYPE, keys.k_factor, u), low, high);
            [[unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
                vec4 a = q_of(r, c, 0u), b = q_of(r, c, 1u);
                float sum = pairs[r * KEYS + u];
                sum = fma(a.x, low.x, fma(a.y, low.y, fma(a.z, low.z, fma(a.w, low.w, sum))));
                pairs[r * KEYS + u] = fma(b.x, high.x, fma(b.y, high.y, fma(b.z, high.z, fma(b.w, high.w, sum))));
            }
        }
        load_k(next, u);
    }
}

/* One step of the sums over the lanes of a key: of PAIRS >> step values, a lane keeps one half and passes the other one
 * on to the lane KEY_LANES >> step + 1 away. With one value left, both have the sum. */
void exchange(const in uint step)
{
    const uint distance = KEY_LANES >> (step + 1u), left = PAIRS >> (step + 1u);
    if (distance == 0u)
        return;
    const bool upper = (key_lane & distance) != 0u;
    if (left == 0u)
        pairs[0] += subgroupShuffleXor(pairs[0], distance);
    [[unroll]] for (uint i = 0u; i < left; i++) {
        float keep = upper ? pairs[i + left] : pairs[i], give = upper ? pairs[i] : pairs[i + left];
        pairs[i] = keep + subgroupShuffleXor(give, distance);
    }
}

/* 4: score and mask; 5: online softmax. The weights, and the factor of the row's O before */
float online_softmax(const in Tile tile, const in uint missing, const in bool masked)
{
    uint allowed = ~0u;
    const uint u0 = first_score % KEYS;
    [[unroll]] for (uint e = 0u; e < SCORES; e++) {
        weights[e] = pairs[e] * factor;
        if (SCORE && has_row)
            weights[e] = attune_score(weights[e], int(coord.b), int(row_h), POSITION + int(row_q),
                                      int(tile.kv0 + key_index(u0 + e, key_group)), args.score_mod SEQUENCE);
    }
    if (masked) {
        /* A loop, so that the expression's code exists once. */
        if (tile.is_partial) [[dont_unroll]]
            for (uint e = 0u; e < SCORES; e++) {
                uint kv = tile.kv0 + key_index(u0 + e, key_group);
                bool may = !MASK || attune_mask(int(coord.b), int(row_h), POSITION + int(row_q), int(kv),
                                                args.mask_mod SEQUENCE);
#ifdef SERVING
                may = may && (!has_row || !sees_some(kv + 1u) || sees_draft(sequence, row_q, kv));
#endif
                allowed &= may ? ~0u : ~(1u << e);
            }
        converge();
        [[unroll]] for (uint e = 0u; e < SCORES; e++) {
            bool may = has_row && (missing >> finder(u0 + e) & 1u) == 0u && (allowed >> e & 1u) != 0u;
            allowed &= may ? ~0u : ~(1u << e);
            weights[e] = may ? weights[e] : LOWEST;
        }
    }
    float top = LOWEST;
    [[unroll]] for (uint e = 0u; e < SCORES; e++)
        top = max(top, weights[e]);
    [[unroll]] for (uint step = 1u; step < ROW_LANES; step *= 2u)
        top = max(top, subgroupShuffleXor(top, step));
    const float next = max(m, top), alpha = exp2((m - next) * TO_LOG2);
    m = next;
    l *= alpha;
    [[unroll]] for (uint e = 0u; e < SCORES; e++) {
        float p = exp2((weights[e] - m) * TO_LOG2);
        const bool may = (allowed >> e & 1u) != 0u;
        l += may ? p : 0.0;
        weights[e] = uintBitsToFloat(may ? floatBitsToUint(p) : FORBIDDEN);
    }
    return alpha;
}

/* The value of a row, which its first lane has, for all lanes of the key. */
float of_row(const in float value, const in uint r)
{
    return subgroupShuffle(value, key_group * KEY_LANES + r * ROW_LANES);
}

void rescale_o(const in float alpha)
{
    [[unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
        const float mine = of_row(alpha, r);
        [[unroll]] for (uint i = 0u; i < 2u * V_GROUPS; i++)
            o[r * 2u * V_GROUPS + i] *= mine;
    }
}

/* 6: O += P V. With `masked` weight by weight, since 0 times NaN is NaN where the pair is forbidden. */
void accumulate_o(const in Keys keys, const in bool masked)
{
    [[unroll]] for (uint u = 0u; u < KEYS; u++) {
        float p[BLOCK_M];
        [[unroll]] for (uint r = 0u; r < BLOCK_M; r++)
            p[r] = subgroupShuffle(weights[u % SCORES], key_group * KEY_LANES + r * ROW_LANES + u / SCORES * COPIES);
        const uint v_factor = factor_of_key(V_TYPE, keys.v_factor, u);
        [[unroll]] for (uint c = 0u; c < V_GROUPS; c++) {
            vec4 low, high;
            widen_group(V_TYPE, v_groups[u * V_GROUPS + c], v_factor, low, high);
            [[unroll]] for (uint r = 0u; r < BLOCK_M; r++) {
                const uint at = (r * V_GROUPS + c) * 2u;
                if (masked && floatBitsToUint(p[r]) == FORBIDDEN)
                    continue;
                o[at] = fma(vec4(p[r]), low, o[at]);
                o[at + 1u] = fma(vec4(p[r]), high, o[at + 1u]);
            }
        }
    }
}

/* The sums of the lanes that have other keys, and of those that have the same row's other pairs. */
void merge_lanes()
{
    float top = m;
    [[unroll]] for (uint step = KEY_LANES; step < LANES; step *= 2u)
        top = max(top, subgroupShuffleXor(top, step));
    const float alpha = exp2((m - top) * TO_LOG2);
    m = top;
    l = key_lane % COPIES == 0u ? l * alpha : 0.0;
    [[unroll]] for (uint step = 1u; step < ROW_LANES; step *= 2u)
        l += subgroupShuffleXor(l, step);
    [[unroll]] for (uint step = KEY_LANES; step < LANES; step *= 2u)
        l += subgroupShuffleXor(l, step);
    rescale_o(alpha);
    [[unroll]] for (uint i = 0u; i < O_COUNT; i++)
        [[unroll]] for (uint step = KEY_LANES; step < LANES; step *= 2u)
            o[i] += subgroupShuffleXor(o[i], step);
}

/* The end of a part of the keys: O and the state of each row from all subgroups, folded into the sums of the parts
 * before, as serving_combine.comp folds those of many items. */
void end_part()
{
    merge_lanes();
    const uint groups = HEAD_DIM_V / 8u;
    barrier();
    if (key_group == 0u) {
        [[unroll]] for (uint r = 0u; r < BLOCK_M; r++)
            [[unroll]] for (uint c = 0u; c < V_GROUPS; c++)
                if (group_index(c) < groups) {
                    const uint to = ((warp * BLOCK_M + r) * groups + group_index(c)) * 2u;
                    partials[to] = o[(r * V_GROUPS + c) * 2u];
                    partials[to + 1u] = o[(r * V_GROUPS + c) * 2u + 1u];
                }
        if (key_lane % ROW_LANES == 0u) {
            most[warp * BLOCK_M + row] = m;
            sums[warp * BLOCK_M + row] = l;
        }
    }
    barrier();
    [[unroll]] for (uint j = 0u; j < SUM_SIZE; j++) {
        const uint i = min(tid + j * THREADS, BLOCK_M * groups * 2u - 1u), r = i / (groups * 2u);
        float top = LOWEST, part_l = 0.0;
        [[unroll]] for (uint w = 0u; w < WARPS; w++)
            top = max(top, most[w * BLOCK_M + r]);
        vec4 part_o = vec4(0.0);
        [[unroll]] for (uint w = 0u; w < WARPS; w++) {
            const float alpha = exp2((most[w * BLOCK_M + r] - top) * TO_LOG2);
            part_l = fma(sums[w * BLOCK_M + r], alpha, part_l);
            part_o = fma(partials[w * BLOCK_M * groups * 2u + i], vec4(alpha), part_o);
        }
        if (has_sums) {
            const vec2 factors = fold_factors(sum_m[j], top);
            sum_l[j] = fold(sum_l[j], part_l, factors);
            sum_o[j] = fold(sum_o[j], part_o, factors);
        } else {
            sum_m[j] = top;
            sum_l[j] = part_l;
            sum_o[j] = part_o;
        }
    }
    has_sums = true;
    [[unroll]] for (uint i = 0u; i < O_COUNT; i++)
        o[i] = vec4(0.0);
    m = LOWEST;
    l = 0.0;
}

/* 7: store O and LSE, or the partial result of a split */
void store_o()
{
    const uint columns = HEAD_DIM_V / 4u;
    begin_store();
    [[unroll]] for (uint j = 0u; j < SUM_SIZE; j++) {
        const uint i = tid + j * THREADS, r = i / columns, column = i % columns * 4u;
        if (r >= coord.rows)
            continue;
        const uint h = row_head(r), q = row_query(r);
        float top = sum_m[j];
        vec2 sink = split ? vec2(1.0, 0.0) : add_sink(args, h, top);
        precise float sum = sum_l[j] * sink.x + sink.y;
        vec4 value = sum_o[j] * (split ? 1.0 : sink.x / sum);
        if (is_zero(sum))
            value = is_partial_result ? sum_o[j] : vec4(0.0);
        store_columns(h, q, column, value);
        if (column == 0u)
            store_row_state(h, q, top, sum, sum_m[j], sum_l[j]);
    }
}

void begin()
{
    warp = gl_SubgroupID;
    lane = gl_SubgroupInvocationID;
    tid = warp * LANES + lane;
    key_lane = lane % KEY_LANES;
    key_group = lane / KEY_LANES;
    first_score = key_lane * PAIRS / KEY_LANES;
    begin_tile();
    factor = (PRESCALE ? 1.0 : args.scale) * (SCORE ? 1.0 : LOG2E);
    row = first_score / KEYS;
    has_row = row < coord.rows;
    row_q = row_query(row);
    row_h = row_head(row);
    [[unroll]] for (uint i = 0u; i < O_COUNT; i++)
        o[i] = vec4(0.0);
}

void main()
{
    begin();
#ifdef SERVING
    if (coord.rows == 0u)
        return;
    BlockIterator it = begin_keys();
#else
    BlockIterator it = block_iterator_begin(args, coord);
#endif
    Tile tile = find_tile(it);
    Keys keys = find_keys(tile);
    Tile next = tile;
    if (tile.exists) {
        [[unroll]] for (uint u = 0u; u < KEYS; u++)
            load_k(keys, u);
        next = find_tile(it);
    }
    begin_q();
    while (tile.exists) {
        converge();
        [[unroll]] for (uint u = 0u; u < KEYS; u++)
            load_v(keys, u);
        const Keys next_keys = find_keys(next);
        Tile after = next;
        if (next.exists)
            after = find_tile(it);
        converge();

        compute_s(keys, next_keys); /* 3: S = Q K^T */
        exchange(0u);
        exchange(1u);
        exchange(2u);
        exchange(3u);
        exchange(4u);
        exchange(5u);

        /* 4: score and mask; 5: online softmax */
        const bool masked = tile.is_partial || keys.missing != 0u;
        const float alpha = online_softmax(tile, keys.missing, masked);
        if (subgroupAny(floatBitsToUint(alpha) != 0x3f800000u))
            rescale_o(alpha);

        /* 6: O += P V */
        if (masked)
            accumulate_o(keys, true);
        else
            accumulate_o(keys, false);
#ifdef SERVING
        if (FOLDS && slot == ATTUNE_VULKAN_NO_SLOT && next.exists &&
            next.kv0 / serving.split_keys != tile.kv0 / serving.split_keys)
            end_part();
#endif
        tile = next;
        keys = next_keys;
        next = after;
    }
    end_part();
    store_o(); /* 7: store O and LSE */
}
