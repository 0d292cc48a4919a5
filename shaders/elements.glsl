/* SPDX-License-Identifier: MIT */
/*
 * Elements of q, k, v and o, eight at a time. Their type, F32, F16 or BF16, is a constant of the module or of its
 * specialisation, so that a driver's compiler keeps one path. 16-bit elements are read from 32-bit words, so that the
 * device needs no 16-bit storage. `aligned`: every group of eight begins at a multiple of 16 bytes; without it elements
 * are aligned to themselves. With ELEMENT defined, functions without a type are for that one: of k and v, and of all
 * tensors where a module has no other.
 */
#ifndef ATTUNE_ELEMENTS_GLSL
#define ATTUNE_ELEMENTS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "address.glsl"

/* attune__vulkan_dtype_index */
const uint F32 = 0u, F16 = 1u, BF16 = 2u;

uint bytes_of(const in uint type)
{
    return type == F32 ? 4u : 2u;
}

vec2 unpack(const in uint type, const in uint word)
{
    if (type == F16)
        return unpackHalf2x16(word);
    return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
}

/* Round to nearest even: packHalf2x16 may truncate. */
uint narrow(const in uint type, const in float value)
{
    uint bits = floatBitsToUint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (type == BF16) {
        if (magnitude > 0x7f800000u)
            return bits >> 16 | 0x40u;
        return bits + 0x7fffu + (bits >> 16 & 1u) >> 16;
    }
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
}

uint pack(const in uint type, const in float low, const in float high)
{
    return narrow(type, low) | narrow(type, high) << 16;
}

/* The 32 bits of one element at the bottom of the result. */
uint load_element(const in uint type, const in uvec2 address)
{
    if (type == F32)
        return Word(address).value;
    uint word = Word(uvec2(address.x & ~3u, address.y)).value;
    return (address.x & 2u) != 0u ? word >> 16 : word & 0xffffu;
}

/* Eight elements as memory has them; `high` only where they have 32 bits. */
struct Group {
    uvec4 low, high;
};

/* Zeros unless `valid`. */
Group fetch(const in uint type, const in uvec2 address, const in bool aligned, const in bool valid)
{
    Group group;
    group.low = uvec4(0u);
    if (type == F32)
        group.high = uvec4(0u);
    if (!valid)
        return group;
    if (aligned) {
        group.low = Uvec4(address).value;
        if (type == F32)
            group.high = Uvec4(address_add(address, 16u)).value;
        return group;
    }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        if (type == F32) {
            group.low[i] = load_element(type, address_add(address, 4u * i));
            group.high[i] = load_element(type, address_add(address, 16u + 4u * i));
        } else
            group.low[i] = load_element(type, address_add(address, 4u * i)) |
                           load_element(type, address_add(address, 4u * i + 2u)) << 16;
    }
    return group;
}

void widen(const in uint type, const in Group group, out vec4 low, out vec4 high)
{
    if (type == F32) {
        low = uintBitsToFloat(group.low);
        high = uintBitsToFloat(group.high);
    } else {
        low = vec4(unpack(type, group.low.x), unpack(type, group.low.y));
        high = vec4(unpack(type, group.low.z), unpack(type, group.low.w));
    }
}

/* The eight in another type, of 16 bits. */
uvec4 convert(const in uint type, const in Group group, const in uint to)
{
    if (type == to)
        return group.low;
    vec4 low, high;
    widen(type, group, low, high);
    return uvec4(pack(to, low.x, low.y), pack(to, low.z, low.w), pack(to, high.x, high.y), pack(to, high.z, high.w));
}

/* One element where its neighbour in the word belongs to another invocation. */
void store_element(const in uint type, const in uvec2 address, const in float value)
{
    if (type == F32) {
        OutWord(address).value = floatBitsToUint(value);
        return;
    }
    OutWord word = OutWord(uvec2(address.x & ~3u, address.y));
    uint shift = (address.x & 2u) << 3, bits = narrow(type, value) << shift;
    atomicAnd(word.value, 0xffff0000u >> shift);
    atomicOr(word.value, bits);
}

void store4(const in uint type, const in uvec2 address, const in bool aligned, const in vec4 value)
{
    if (!aligned) {
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            store_element(type, address_add(address, bytes_of(type) * i), value[i]);
        return;
    }
    if (type == F32)
        OutVec4(address).value = value;
    else
        OutUvec2(address).value = uvec2(pack(type, value.x, value.y), pack(type, value.z, value.w));
}

#ifdef ELEMENT
const uint TYPE = ELEMENT;
#if ELEMENT == 0
#define ELEMENT_BYTES 4u
#else
#define ELEMENT_BYTES 2u
#endif

vec2 unpack(const in uint word)
{
    return unpack(TYPE, word);
}

uint pack(const in float low, const in float high)
{
    return pack(TYPE, low, high);
}

uint load_element(const in uvec2 address)
{
    return load_element(TYPE, address);
}

Group fetch(const in uvec2 address, const in bool aligned, const in bool valid)
{
    return fetch(TYPE, address, aligned, valid);
}

void widen(const in Group group, out vec4 low, out vec4 high)
{
    widen(TYPE, group, low, high);
}

/* Whether one of them is NaN or infinite. */
bool is_non_finite(const in Group group)
{
#if ELEMENT == 0
    return any(greaterThanEqual(group.low & 0x7fffffffu, uvec4(0x7f800000u))) ||
           any(greaterThanEqual(group.high & 0x7fffffffu, uvec4(0x7f800000u)));
#else
    const uint ones = ELEMENT == 1 ? 0x7c00u : 0x7f80u;
    return any(equal(group.low & ones, uvec4(ones))) || any(equal(group.low & (ones << 16), uvec4(ones << 16)));
#endif
}

void store_element(const in uvec2 address, const in float value)
{
    store_element(TYPE, address, value);
}

void store4(const in uvec2 address, const in bool aligned, const in vec4 value)
{
    store4(TYPE, address, aligned, value);
}
#endif

#endif
