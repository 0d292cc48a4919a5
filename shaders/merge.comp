/* SPDX-License-Identifier: MIT */
/*
 * Merging, a row to a workgroup: w_i = exp(lse_i - lse), o = sum of w_i o_i; backwards d_o_i = w_i d_o and
 * d_lse_i = w_i (dot(d_o, o_i - o) + d_lse). A tensor has elements of ELEMENT, or of f32. An LSE
 * of -inf or NaN is recognised by its bits: drivers need not preserve either.
 */
#version 460
#extension GL_GOOGLE_include_directive : require

#include "elements.glsl"
#include "merge.h"

#define WIDTH 64u
#define PARTS ATTUNE_VULKAN_MERGE_PARTS
#define EMPTY 0xff800000u
#define NAN   0x7fc00000u

layout(local_size_x = 64) in;

layout(push_constant) uniform Push{ATTUNE_PUSH_LAUNCH} push;

shared float sums[WIDTH];

uint b, h, q; /* of this workgroup */

uvec2 row_of(const in attune_vulkan_merge_view view)
{
    uvec2 plane = address_step(address_step(view.address, b, view.stride_b), h, view.stride_h);
    return address_step(plane, q, view.stride_row);
}

bool is_present(const in attune_vulkan_merge_view view)
{
    return any(notEqual(view.address, uvec2(0u)));
}

/* Two columns; the second is 0 past the last column. */
vec2 load2(const in uvec2 row, const in bool is_f32, const in uint column, const in bool both)
{
    if (is_f32) {
        uvec2 at = address_add(row, 4u * column);
        return vec2(uintBitsToFloat(Word(at).value), both ? uintBitsToFloat(Word(address_add(at, 4u)).value) : 0.0);
    }
    uvec2 at = address_add(row, 2u * column);
    return unpack(load_element(at) | (both ? load_element(address_add(at, 2u)) << 16 : 0u));
}

void store2(const in uvec2 row, const in bool is_f32, const in uint column, const in bool both, const in vec2 value)
{
    uvec2 at = address_add(row, (is_f32 ? 4u : 2u) * column);
    if (is_f32) {
        OutWord(at).value = floatBitsToUint(value.x);
        if (both)
            OutWord(address_add(at, 4u)).value = floatBitsToUint(value.y);
    } else if (both && (at.x & 2u) == 0u) {
        OutWord(at).value = pack(value.x, value.y);
    } else {
        store_element(at, value.x);
        if (both)
            store_element(address_add(at, 2u), value.y);
    }
}

bool is_nan(const in uint bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u;
}

void merge_row(const in attune_vulkan_merge args)
{
    float weights[PARTS];
    uint bits[PARTS], lse = EMPTY;
    bool nan = false;
    float m = -2.0e38, sum = 0.0;
    for (uint i = 0u; i < args.part_count; i++) {
        bits[i] = 0u;
        if (args.weighted != 0u)
            bits[i] = Word(row_of(args.parts[min(i, args.part_count - 1u)].lse)).value;
        nan = nan || is_nan(bits[i]);
        if (bits[i] != EMPTY)
            m = max(m, uintBitsToFloat(bits[i]));
    }
    for (uint i = 0u; i < args.part_count; i++) {
        weights[i] = args.weighted == 0u ? 1.0 : bits[i] == EMPTY ? 0.0 : exp(uintBitsToFloat(bits[i]) - m);
        sum += weights[i];
    }
    if (args.weighted == 0u)
        sum = 1.0;
    if (sum != 0.0)
        lse = floatBitsToUint(m + log(sum));
    const bool empty = sum == 0.0;
    const float factor = empty ? 1.0 : 1.0 / sum;
    const uvec2 to = row_of(args.o);
    for (uint c = 2u * gl_LocalInvocationIndex; c < args.columns; c += 2u * WIDTH) {
        const bool both = c + 1u < args.columns;
        vec2 o = vec2(0.0);
        for (uint i = 0u; i < args.part_count; i++)
            if (weights[i] != 0.0 || args.strict != 0u)
                o += weights[i] * load2(row_of(args.parts[i].o), args.parts[i].o.is_f32 != 0u, c, both);
        o = empty && args.partial == 0u ? vec2(0.0) : o * factor;
        store2(to, args.o.is_f32 != 0u, c, both, nan ? uintBitsToFloat(uvec2(NAN)) : o);
    }
    /* The LSE may be written over that of a part, which all invocations have read by now. */
    barrier();
    if (gl_LocalInvocationIndex == 0u && is_present(args.lse))
        OutWord(row_of(args.lse)).value = nan ? NAN : lse;
}

void merge_row_backward(const in attune_vulkan_merge args)
{
    const uint lse = Word(row_of(args.lse)).value;
    const uvec2 o = row_of(args.o), d_o = row_of(args.d_o);
    /* Loads are unconditional and from parts that exist: llvmpipe (Mesa 26) loads from an address that all lanes share
     * even where the branch is not taken. */
    float d_lse = uintBitsToFloat(Word(is_present(args.d_lse) ? row_of(args.d_lse) : row_of(args.lse)).value);
    d_lse = is_present(args.d_lse) ? d_lse : 0.0;
    for (uint p = 0u; p < args.part_count; p++) {
        const uint i = min(p, args.part_count - 1u);
        const uint part_lse = Word(row_of(args.parts[i].lse)).value;
        const bool nan = is_nan(lse) || is_nan(part_lse);
        const float weight = part_lse == EMPTY || lse == EMPTY ? 0.0
                                                               : exp(uintBitsToFloat(part_lse) - uintBitsToFloat(lse));
        float sum = 0.0;
        for (uint c = 2u * gl_LocalInvocationIndex; c < args.columns; c += 2u * WIDTH) {
            const bool both = c + 1u < args.columns;
            vec2 d = vec2(0.0);
            if (weight != 0.0) {
                d = load2(d_o, args.d_o.is_f32 != 0u, c, both);
                vec2 off = load2(row_of(args.parts[i].o), args.parts[i].o.is_f32 != 0u, c, both) -
                           load2(o, args.o.is_f32 != 0u, c, both);
                sum += dot(d, off);
            }
            if (is_present(args.parts[i].d_o))
                store2(row_of(args.parts[i].d_o), args.parts[i].d_o.is_f32 != 0u, c, both,
                       nan ? uintBitsToFloat(uvec2(NAN)) : weight * d);
        }
        sums[gl_LocalInvocationIndex] = sum;
        for (uint step = WIDTH / 2u; step > 0u; step /= 2u) {
            barrier();
            if (gl_LocalInvocationIndex < step)
                sums[gl_LocalInvocationIndex] += sums[gl_LocalInvocationIndex + step];
        }
        if (gl_LocalInvocationIndex == 0u && is_present(args.parts[i].d_lse)) {
            const float d = weight == 0.0 ? 0.0 : weight * (sums[0] + d_lse);
            OutWord(row_of(args.parts[i].d_lse)).value = nan ? NAN : floatBitsToUint(d);
        }
        barrier();
    }
}

void main()
{
    attune_vulkan_merge args = attune_vulkan_merge(push.arguments);
    uint row = push.first + gl_WorkGroupID.x;
    q = row % args.q_len;
    h = row / args.q_len % args.heads;
    b = row / args.q_len / args.heads;
    if (args.backward != 0u)
        merge_row_backward(args);
    else
        merge_row(args);
}
