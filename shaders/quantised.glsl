/* SPDX-License-Identifier: MIT */
/*
 * Quantised keys and values, eight at a time: their codes, one in each byte of two words, and the factor's f32 bits.
 * Bytes are read from 32-bit words, from any address. q8_0 and q4_0 are ggml's blocks of 32: a factor in f16, then the
 * codes; q4_0 has elements 0 to 15 in the low half of its bytes and 16 to 31 in the high one.
 */
#ifndef ATTUNE_QUANTISED_GLSL
#define ATTUNE_QUANTISED_GLSL

#include "address.glsl"

/* attune__vulkan_key_type */
const uint F8E4M3 = 3u, F8E5M2 = 4u, I8 = 5u, Q8_0 = 6u, Q4_0 = 7u;

bool is_quantised(const in uint type)
{
    return type >= F8E4M3;
}

bool has_blocks(const in uint type)
{
    return type >= Q8_0;
}

/* Eight bytes. No word without one of them is read. */
uvec2 load_bytes(const in uvec2 address)
{
    uint shift = (address.x & 3u) * 8u;
    uvec2 at = uvec2(address.x & ~3u, address.y);
    uvec2 words = uvec2(Word(at).value, Word(address_add(at, 4u)).value);
    if (shift == 0u)
        return words;
    uint last = Word(address_add(at, 8u)).value;
    return words >> shift | uvec2(words.y, last) << (32u - shift);
}

uvec2 block_of(const in uint type, const in uvec2 row, const in uint d)
{
    return address_add(row, d / 32u * (type == Q8_0 ? 34u : 18u));
}

uint block_factor(const in uint type, const in uvec2 row, const in uint d)
{
    uvec2 at = block_of(type, row, d);
    uint word = Word(uvec2(at.x & ~3u, at.y)).value, h = (at.x & 2u) != 0u ? word >> 16 : word & 0xffffu;
    /* A driver may flush denormals of binary16, which are plain numbers in f32. */
    uint small = floatBitsToUint(float(h & 1023u) * 5.9604644775390625e-8) | (h & 0x8000u) << 16;
    return (h & 0x7c00u) == 0u ? small : floatBitsToUint(unpackHalf2x16(h).x);
}

uvec2 load_codes(const in uint type, const in uvec2 row, const in uint d)
{
    if (type == Q4_0)
        return load_bytes(address_add(block_of(type, row, d), 2u + d % 16u)) >> (d % 32u < 16u ? 0u : 4u) & 0x0f0f0f0fu;
    if (type == Q8_0)
        return load_bytes(address_add(block_of(type, row, d), 2u + d % 32u));
    return load_bytes(address_add(row, d));
}

/* Of the formats of OCP's 8-bit floating point: e4m3 has one NaN and no infinity. */
float value_of_code(const in uint type, const in uint code)
{
    if (type == Q4_0)
        return float(int(code) - 8);
    if (type == I8 || type == Q8_0)
        return float(int(code << 24) >> 24);
    uint magnitude = code & 127u, fraction_bits = type == F8E4M3 ? 3u : 2u, bias = type == F8E4M3 ? 7u : 15u;
    uint bits = magnitude + (127u - bias << fraction_bits) << 23u - fraction_bits;
    if (magnitude >> fraction_bits == 0u)
        bits = floatBitsToUint(float(magnitude) * (type == F8E4M3 ? 1.953125e-3 : 1.52587890625e-5));
    if (type == F8E4M3 ? magnitude == 127u : magnitude > 124u)
        bits = 0x7fc00000u;
    else if (type == F8E5M2 && magnitude == 124u)
        bits = 0x7f800000u;
    return uintBitsToFloat(bits | (code & 128u) << 24);
}

bool is_non_finite(const in vec4 low, const in vec4 high)
{
    const uvec4 ones = uvec4(0x7f800000u);
    return any(equal(floatBitsToUint(low) & ones, ones)) || any(equal(floatBitsToUint(high) & ones, ones));
}

/* Each rounded once. */
void dequantise(const in uint type, const in uvec2 codes, const in float factor, out vec4 low, out vec4 high)
{
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        low[i] = value_of_code(type, codes.x >> 8u * i & 255u) * factor;
        high[i] = value_of_code(type, codes.y >> 8u * i & 255u) * factor;
    }
}

#endif
