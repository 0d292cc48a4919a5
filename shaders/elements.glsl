/* SPDX-License-Identifier: MIT */
/*
 * Elements of q, k, v and o, eight at a time. ELEMENT is 0 for f32, 1 for f16, 2 for bf16; 16-bit elements are read from
 * 32-bit words, so that no 16-bit storage is asked of the device. `aligned` says that every group of eight begins at a
 * multiple of 16 bytes; without it elements are aligned to themselves.
 */
#ifndef ATTUNE_ELEMENTS_GLSL
#define ATTUNE_ELEMENTS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "address.glsl"

#if ELEMENT == 0
#define ELEMENT_BYTES 4u
#else
#define ELEMENT_BYTES 2u
#endif

vec2 unpack(const in uint word)
{
#if ELEMENT == 1
    return unpackHalf2x16(word);
#else
    return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
#endif
}

/* Round to nearest even: packHalf2x16 may truncate. */
uint narrow(const in float value)
{
    uint bits = floatBitsToUint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
#if ELEMENT == 2
    if (magnitude > 0x7f800000u)
        return bits >> 16 | 0x40u;
    return bits + 0x7fffu + (bits >> 16 & 1u) >> 16;
#else
    if (magnitude > 0x7f800000u)
        return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return sign | 0x7c00u;
    if (magnitude < 0x38800000u) { /* below 2^-14: a multiple of 2^-24 */
        float steps = uintBitsToFloat(magnitude) * 16777216.0;
        uint whole = uint(steps);
        float rest = steps - float(whole);
        if (rest > 0.5 || (rest == 0.5 && (whole & 1u) != 0u))
            whole++;
        return sign | whole;
    }
    return sign | (magnitude + 0xfffu + (magnitude >> 13 & 1u) >> 13) - 0x1c000u;
#endif
}

uint pack(const in float low, const in float high)
{
    return narrow(low) | narrow(high) << 16;
}

/* The 32 bits of one element at the bottom of the result. */
uint load_element(const in uvec2 address)
{
#if ELEMENT == 0
    return Word(address).value;
#else
    uint word = Word(uvec2(address.x & ~3u, address.y)).value;
    return (address.x & 2u) != 0u ? word >> 16 : word & 0xffffu;
#endif
}

/* Eight elements as they lie in memory. */
struct Group {
    uvec4 low;
#if ELEMENT == 0
    uvec4 high;
#endif
};

/* Zeros unless `there`. */
Group fetch(const in uvec2 address, const in bool aligned, const in bool there)
{
    Group group;
    group.low = uvec4(0u);
#if ELEMENT == 0
    group.high = uvec4(0u);
#endif
    if (!there)
        return group;
    if (aligned) {
        group.low = Uvec4(address).value;
#if ELEMENT == 0
        group.high = Uvec4(address_add(address, 16u)).value;
#endif
        return group;
    }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
#if ELEMENT == 0
        group.low[i] = load_element(address_add(address, 4u * i));
        group.high[i] = load_element(address_add(address, 16u + 4u * i));
#else
        group.low[i] = load_element(address_add(address, 4u * i)) |
                       load_element(address_add(address, 4u * i + 2u)) << 16;
#endif
    }
    return group;
}

void widen(const in Group group, out vec4 low, out vec4 high)
{
#if ELEMENT == 0
    low = uintBitsToFloat(group.low);
    high = uintBitsToFloat(group.high);
#else
    low = vec4(unpack(group.low.x), unpack(group.low.y));
    high = vec4(unpack(group.low.z), unpack(group.low.w));
#endif
}

/* Whether NaN or infinity is among them. */
bool is_special(const in Group group)
{
#if ELEMENT == 0
    return any(greaterThanEqual(group.low & 0x7fffffffu, uvec4(0x7f800000u))) ||
           any(greaterThanEqual(group.high & 0x7fffffffu, uvec4(0x7f800000u)));
#else
    const uint ones = ELEMENT == 1 ? 0x7c00u : 0x7f80u;
    return any(equal(group.low & ones, uvec4(ones))) || any(equal(group.low & (ones << 16), uvec4(ones << 16)));
#endif
}

/* One element where its neighbour in the word belongs to another invocation. */
void store_element(const in uvec2 address, const in float value)
{
#if ELEMENT == 0
    OutWord(address).value = floatBitsToUint(value);
#else
    OutWord word = OutWord(uvec2(address.x & ~3u, address.y));
    uint shift = (address.x & 2u) << 3, bits = narrow(value) << shift;
    atomicAnd(word.value, 0xffff0000u >> shift);
    atomicOr(word.value, bits);
#endif
}

void store4(const in uvec2 address, const in bool aligned, const in vec4 value)
{
    if (!aligned) {
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            store_element(address_add(address, ELEMENT_BYTES * i), value[i]);
        return;
    }
#if ELEMENT == 0
    OutVec4(address).value = value;
#else
    OutUvec2(address).value = uvec2(pack(value.x, value.y), pack(value.z, value.w));
#endif
}

#endif
