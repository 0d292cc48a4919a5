/* SPDX-License-Identifier: MIT */
/*
 * New rows of a cache: normalised, rotated, rounded or quantised, and written where their keys are. The workgroups of a
 * row share its heads; a head's row goes through shared memory, first as values, then as the bytes that the cache has.
 */
#version 460
#extension GL_GOOGLE_include_directive : require

#include "quantise.glsl"

#include "append.h"
#include "constants.glsl"

#define WIDTH 64u
layout(local_size_x = 64) in;

layout(push_constant) uniform Push{ATTUNE_PUSH_LAUNCH} push;

attune_vulkan_append args = attune_vulkan_append(push.arguments);

#include "sequence.glsl"

const uint MOST_COLUMNS = 576u;

shared float values[MOST_COLUMNS];
shared uint stored[MOST_COLUMNS]; /* the row's bytes */
shared float sums[WIDTH];
shared uint inverses[MOST_COLUMNS / 32u];
shared uint found; /* the sequence of the row */
shared uint largest;

/* Of this workgroup's row: where it is in the tensors, its position in the rotation, and its key in the cache. Absent
 * ones are 0, so that what follows may be read. */
uint batch, row, lane;
uint position;
uvec2 key;
bool has_key;

/* ----------------------------------------------------------------------------------------------------------- places */

/* The first sequence that has the row. */
void find_sequence()
{
    if (lane == 0u)
        found = NO_PAGE;
    barrier();
    for (uint b = lane; b < args.batch; b += WIDTH) {
        begin_rows(b);
        if (sequence.batch == batch && row - sequence.row0 < sequence.q_len)
            atomicMin(found, b);
    }
    barrier();
}

void find_slot()
{
    uvec2 at = address_step(address_step(args.slots.address, batch, args.slots.stride[0]), row, args.slots.stride[1]);
    uint low = Word(at).value, high = Word(address_add(at, 4u)).value;
    uvec2 divided = divide_wide(min(high, serving.page - 1u), low, serving.page);
    has_key = high < serving.page && divided.x < serving.pool;
    key = divided;
}

/* The key of the row's place in its sequence. */
void find_key(const in uint b, const in int kv)
{
    has_key = kv >= 0;
    key = uvec2(b, uint(kv));
    if (is_absent(serving.pages))
        return;
    uint index = uint(max(kv, 0)) / serving.page;
    has_key = has_key && index < sequence.entries;
    uvec2 at = has_key ? address_step(sequence.table, index, sequence.entry_stride) : args.serving;
    uint page = Word(at).value;
    has_key = has_key && page < serving.pool;
    key = uvec2(page, uint(kv) - index * serving.page);
}

/* False if the row is not to be written at all. */
bool find_place()
{
    uint index = (push.first + gl_WorkGroupID.x) / args.workgroups;
    batch = index / args.rows;
    row = index % args.rows;
    int place = 0;
    uint b = 0u;
    if (args.whole == 0u) {
        find_sequence();
        b = min(found, args.batch - 1u);
        begin_rows(b);
        begin_length(b);
        place = sequence.position + int(row - sequence.row0);
    }
    bool is_there = args.whole != 0u || found != NO_PAGE;
    if (is_absent(args.slots))
        find_key(b, place);
    else
        find_slot();
    if (!has_key)
        key = uvec2(0u);
    if (!is_absent(args.positions)) {
        uvec2 at = address_step(args.positions.address, batch, args.positions.stride[0]);
        place = int(Word(address_step(at, row, args.positions.stride[1])).value);
    }
    position = uint(place);
    if (is_absent(args.cosine))
        return is_there;
    is_there = is_there && position < args.positions_count;
    position = min(position, args.positions_count - 1u);
    return is_there;
}

/* ----------------------------------------------------------------------------------------------------------- values */

float load(const in uint type, const in uvec2 address)
{
    uint element = load_element(type, address);
    /* A driver may flush denormals of binary16, which are plain numbers in binary32. */
    if (type == F16 && (element & 0x7c00u) == 0u) {
        float magnitude = float(element & 0x3ffu) * 5.9604644775390625e-8;
        return uintBitsToFloat(floatBitsToUint(magnitude) | (element & 0x8000u) << 16);
    }
    return type == F32 ? uintBitsToFloat(element) : unpack(type, element).x;
}

void load_row(const in attune_vulkan_tensor from, const in uint head, const in uint columns)
{
    uvec2 at = address_step(address_step(address_step(from.address, batch, from.stride_b), head, from.stride_h), row,
                            from.stride_row);
    barrier();
    for (uint c = lane; c < columns; c += WIDTH)
        values[c] = load(Q_TYPE, address_add(at, c * bytes_of(Q_TYPE)));
    barrier();
}

/* The root mean square of the first columns becomes 1, times the weights. */
void normalise(const in attune_vulkan_array weights, const in uint columns, const in bool is_f32)
{
    float sum = 0.0;
    for (uint c = lane; c < columns; c += WIDTH)
        sum = fma(values[c], values[c], sum);
    sums[lane] = sum;
    for (uint step = WIDTH / 2u; step > 0u; step /= 2u) {
        barrier();
        if (lane < step)
            sums[lane] += sums[lane + step];
    }
    barrier();
    float factor = inversesqrt(sums[0] / float(columns) + args.epsilon);
    for (uint c = lane; c < columns; c += WIDTH)
        values[c] *= factor * load(is_f32 ? F32 : Q_TYPE, address_step(weights.address, c, weights.stride[0]));
    barrier();
}

void rotate()
{
    uvec2 cosine = address_step(args.cosine.address, position, args.cosine.stride[0]),
          sine = address_step(args.sine.address, position, args.sine.stride[0]);
    for (uint i = lane; i < args.pairs; i += WIDTH) {
        bool pairwise = args.interleaved != 0u;
        uint first = args.rotary_first + (pairwise ? 2u * i : i), second = first + (pairwise ? 1u : args.pairs);
        float c = load(F32, address_step(cosine, i, args.cosine.stride[1])),
              s = load(F32, address_step(sine, i, args.sine.stride[1]));
        float x = values[first], y = values[second];
        values[first] = x * c - y * s;
        values[second] = x * s + y * c;
    }
    barrier();
}

/* ------------------------------------------------------------------------------------------------------------ bytes */

/* Bits of the stored row, which do not cross a word. */
void put(const in uint at, const in uint bits)
{
    atomicOr(stored[at / 4u], bits << 8u * (at & 3u));
}

/* Blocks of q8_0 or q4_0. */
void pack_blocks(const in uint type, const in uint columns)
{
    const uint bytes = type == Q8_0 ? 34u : 18u;
    for (uint i = lane; i < columns / 32u; i += WIDTH) {
        uint most = 0u, inverse;
        bool finite = true;
        for (uint j = 0u; j < 32u; j++) {
            uint bits = floatBitsToUint(values[32u * i + j]);
            finite = finite && (bits & INFINITE) != INFINITE;
            most = (bits & MAGNITUDE) > (most & MAGNITUDE) ? bits : most;
        }
        put(i * bytes, block_factors(type, most, finite, inverse));
        inverses[i] = inverse;
    }
    barrier();
    for (uint c = lane; c < columns; c += WIDTH) {
        uint i = c / 32u, j = c % 32u;
        uint code = code_in_block(type, values[c], inverses[i]);
        put(i * bytes + 2u + (type == Q8_0 ? j : j % 16u), type == Q4_0 && j >= 16u ? code << 4 : code);
    }
}

/* Codes, with a factor that the cache has or receives. */
void pack_codes(const in uint type, const in uint columns, const in attune_vulkan_array scale, const in bool of_row,
                const in uint head)
{
    uint factor = factor_of(scale, head, key);
    if (of_row) {
        if (lane == 0u)
            largest = 0u;
        barrier();
        for (uint c = lane; c < columns; c += WIDTH)
            atomicMax(largest, floatBitsToUint(values[c]) & MAGNITUDE);
        barrier();
        factor = divide(largest, largest_code(type));
        uvec2 at = address_step(address_step(scale.address, key.x, scale.stride[0]), head, scale.stride[1]);
        if (lane == 0u)
            OutWord(address_step(at, key.y, scale.stride[2])).value = factor;
    }
    for (uint c = lane; c < columns; c += WIDTH)
        put(c, code_of(type, floatBitsToUint(values[c]), factor));
}

/* The stored row to any address. Words that it has a part of may have others' bytes too. */
void write_bytes(const in uvec2 to, const in uint bytes)
{
    const uint shift = 8u * (to.x & 3u), end = (to.x & 3u) + bytes;
    const uvec2 base = uvec2(to.x & ~3u, to.y);
    for (uint i = lane; 4u * i < end; i += WIDTH) {
        uint word = 4u * i < bytes ? stored[i] << shift : 0u, mask = 0xffffffffu;
        if (shift > 0u && i > 0u)
            word |= stored[i - 1u] >> 32u - shift;
        if (i == 0u)
            mask <<= shift;
        if (end - 4u * i < 4u)
            mask &= (1u << 8u * (end - 4u * i)) - 1u;
        OutWord out_word = OutWord(address_add(base, 4u * i));
        if (mask == 0xffffffffu) {
            out_word.value = word;
        } else {
            atomicAnd(out_word.value, ~mask);
            atomicOr(out_word.value, word & mask);
        }
    }
}

void write_row(const in uint type, const in uint columns, const in attune_vulkan_array scale, const in bool of_row,
               const in uint head, const in uvec2 to)
{
    const uint bytes = type == Q8_0     ? columns / 32u * 34u
                       : type == Q4_0   ? columns / 32u * 18u
                       : type >= F8E4M3 ? columns
                                        : columns * bytes_of(type);
    for (uint i = lane; 4u * i < bytes; i += WIDTH)
        stored[i] = 0u;
    barrier();
    if (has_blocks(type))
        pack_blocks(type, columns);
    else if (is_quantised(type))
        pack_codes(type, columns, scale, of_row, head);
    else
        for (uint c = lane; c < columns; c += WIDTH)
            if (type == F32)
                stored[c] = floatBitsToUint(values[c]);
            else
                put(2u * c, narrow(type, values[c]));
    barrier();
    write_bytes(to, bytes);
}

uvec2 cache_row(const in attune_vulkan_tensor cache, const in uint head)
{
    uvec2 at = address_step(address_step(cache.address, key.x, cache.stride_b), head, cache.stride_h);
    return address_step(at, key.y, cache.stride_row);
}

void append_key(const in uint head)
{
    load_row(args.k, head, HEAD_DIM);
    if (!is_absent(args.k_norm))
        normalise(args.k_norm, args.k_norm_columns, args.k_norm_f32 != 0u);
    if (!is_absent(args.cosine))
        rotate();
    write_row(K_TYPE, HEAD_DIM, serving.k_scale, args.k_scale_rows != 0u, head, cache_row(args.cache_k, head));
}

void append_value(const in uint head)
{
    load_row(args.v, head, HEAD_DIM_V);
    write_row(V_TYPE, HEAD_DIM_V, serving.v_scale, args.v_scale_rows != 0u, head, cache_row(args.cache_v, head));
}

void write_query(const in uint head)
{
    load_row(args.q, head, HEAD_DIM);
    if (!is_absent(args.q_norm))
        normalise(args.q_norm, args.q_norm_columns, args.q_norm_f32 != 0u);
    if (!is_absent(args.cosine))
        rotate();
    uvec2 at = address_step(address_step(args.q_out.address, batch, args.q_out.stride_b), head, args.q_out.stride_h);
    write_row(Q_TYPE, HEAD_DIM, serving.k_scale, false, head, address_step(at, row, args.q_out.stride_row));
}

void main()
{
    lane = gl_LocalInvocationIndex;
    serving = attune_vulkan_serving(args.serving);
    if (!find_place())
        return;
    bool has_v = any(notEqual(args.v.address, uvec2(0u))), has_q = any(notEqual(args.q.address, uvec2(0u)));
    uint all = args.kv_heads + (has_v ? args.kv_heads : 0u) + (has_q ? args.heads : 0u);
    for (uint i = (push.first + gl_WorkGroupID.x) % args.workgroups; i < all; i += args.workgroups) {
        if (has_q && i < args.heads) {
            write_query(i);
            continue;
        }
        uint head = has_q ? i - args.heads : i;
        if (has_key && head < args.kv_heads)
            append_key(head);
        else if (has_key)
            append_value(head - args.kv_heads);
    }
}
