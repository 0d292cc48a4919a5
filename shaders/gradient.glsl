/* SPDX-License-Identifier: MIT */
/*
 * Derivatives of the caller's score expression, beside mods.glsl: stubs that src/vulkan/splice.c replaces where a
 * program has a gradient. Their first parameters are those of attune_score.
 *
 * Capture gradients are sums over pairs in no fixed order. They are exact, so that the order does not matter and no
 * float atomics are needed: a sum is an integer of 384 bits in two's complement, in units of 2^-149, the smallest f32.
 * Of its 16 words 0 to 11 are the integer, lowest first; word 15 has a bit each for NaN, infinity and minus infinity.
 */
#ifndef ATTUNE_GRADIENT_GLSL
#define ATTUNE_GRADIENT_GLSL

#include "mods.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) buffer AttuneSum
{
    uint x[16];
};

#define SUM_WORDS          12u
#define SUM_NON_FINITE     15u
#define SUM_NAN            1u
#define SUM_INFINITY       2u
#define SUM_MINUS_INFINITY 4u

/* The address of an element's sum, and whether the gradient is requested. */
uvec3 attune_mod_sum(const in uvec2 sums, const in uint element, const in bool inside)
{
    bool wanted = inside && (sums.x | sums.y) != 0u;
    return uvec3(attune_mod_step(sums, element, uvec2(64u, 0u)), wanted ? 1u : 0u);
}

uvec3 attune_mod_sum_1(const in uvec2 mod, const in int at, const in int i)
{
    AttuneModTable t = AttuneModTable(mod);
    uvec4 size = t.x[at + 1];
    return attune_mod_sum(t.x[at].zw, uint(i), uint(i) < size.x);
}

uvec3 attune_mod_sum_2(const in uvec2 mod, const in int at, const in int i, const in int j)
{
    AttuneModTable t = AttuneModTable(mod);
    uvec4 size = t.x[at + 1];
    return attune_mod_sum(t.x[at].zw, uint(i) * size.y + uint(j), uint(i) < size.x && uint(j) < size.y);
}

uvec3 attune_mod_sum_3(const in uvec2 mod, const in int at, const in int i, const in int j, const in int k)
{
    AttuneModTable t = AttuneModTable(mod);
    uvec4 size = t.x[at + 1];
    return attune_mod_sum(t.x[at].zw, (uint(i) * size.y + uint(j)) * size.z + uint(k),
                          uint(i) < size.x && uint(j) < size.y && uint(k) < size.z);
}

uvec3 attune_mod_sum_4(const in uvec2 mod, const in int at, const in int i, const in int j, const in int k,
                       const in int l)
{
    AttuneModTable t = AttuneModTable(mod);
    uvec4 size = t.x[at + 1];
    return attune_mod_sum(t.x[at].zw, ((uint(i) * size.y + uint(j)) * size.z + uint(k)) * size.w + uint(l),
                          uint(i) < size.x && uint(j) < size.y && uint(k) < size.z && uint(l) < size.w);
}

void attune_mod_add(const in uvec3 address, const in float value)
{
    uint bits = floatBitsToUint(value), magnitude = bits & 0x7fffffffu, exponent = magnitude >> 23;
    if (address.z == 0u || magnitude == 0u)
        return;
    AttuneSum sum = AttuneSum(address.xy);
    bool negative = bits != magnitude;
    if (exponent == 255u) {
        atomicOr(sum.x[SUM_NON_FINITE], magnitude > 0x7f800000u ? SUM_NAN
                                        : negative              ? SUM_MINUS_INFINITY
                                                                : SUM_INFINITY);
        return;
    }
    uint mantissa = (magnitude & 0x7fffffu) | (exponent != 0u ? 0x800000u : 0u);
    uint first = max(exponent, 1u) - 1u, word = first / 32u, shift = first % 32u;
    uint low = mantissa << shift, high = shift > 8u ? mantissa >> (32u - shift) : 0u;
    [[unroll]] for (uint n = 0u; n < SUM_WORDS; n++) {
        if (low != 0u && word < SUM_WORDS) {
            uint old = atomicAdd(sum.x[word], negative ? 0u - low : low);
            bool carry = negative ? old < low : old + low < old;
            low = high + (carry ? 1u : 0u);
        } else
            low = high;
        high = 0u;
        word++;
    }
}

/* ---------------------------------------------------------------------------------------------------------- stubs */

/* glslang drops functions that nothing calls. */
void attune_gradient_keep(const in uvec2 mod)
{
    uvec3 address = attune_mod_sum_1(mod, 2, 0) + attune_mod_sum_2(mod, 2, 0, 0) + attune_mod_sum_3(mod, 2, 0, 0, 0);
    attune_mod_add(address + attune_mod_sum_4(mod, 2, 0, 0, 0, 0), 0.0);
}

/* d result / d score */
float attune_d_score(const in float score, const in int b, const in int h, const in int q, const in int kv,
                     const in uvec2 mod)
{
    return 1.0;
}

/* Of the first four reads whose element is the same for all q and kv: d result / d element. */
vec4 attune_d_uniform(const in float score, const in int b, const in int h, const in int q, const in int kv,
                      const in uvec2 mod)
{
    return vec4(0.0);
}

/* Adds those four gradients to the elements. */
void attune_d_uniform_add(const in vec4 gradients, const in int b, const in int h, const in uvec2 mod)
{
    attune_gradient_keep(mod);
}

/* Adds d times the derivative to the elements of all other reads of a pair. */
void attune_d_add(const in float score, const in int b, const in int h, const in int q, const in int kv,
                  const in uvec2 mod, const in float d)
{
    attune_gradient_keep(mod);
}

#endif
