/* SPDX-License-Identifier: MIT */
/* The arguments of a launch (arguments.h), and what is done with a row of them in every kernel. */
#ifndef ATTUNE_ARGUMENTS_GLSL
#define ATTUNE_ARGUMENTS_GLSL

#include "address.glsl"
#include "arguments.h"
#include "constants.glsl"

uvec2 plane(const in attune_vulkan_tensor t, const in uint b, const in uint h)
{
    return address_step(address_step(t.address, b, t.stride_b), h, t.stride_h);
}

/* A row's LSE or row maximum, where the call requests it. */
void store_row(const in attune_vulkan_tensor t, const in uint b, const in uint h, const in uint q, const in uint bits)
{
    if (any(notEqual(t.address, uvec2(0u))))
        OutWord(address_step(plane(t, b, h), q, t.stride_row)).value = bits;
}

/* Below every score: a row that has seen no pair. Times LOG2E it is finite too: a driver may take (x - m) * LOG2E for
 * x * LOG2E - m * LOG2E. */
const float LOWEST = -2.0e38;
const float LOG2E = 1.44269504088896341;
const float LN2 = 0.693147180559945309;

/* Scores are in units of log2, which saves a multiplication for each. Results of a score expression stay in natural
 * units, so that the row maximum is exact. */
const float UNIT = SCORE ? 1.0 : LN2, TO_LOG2 = SCORE ? LOG2E : 1.0;

/* By their bits: a driver may assume that floats have no NaN, and then comparisons with NaN are undefined. */
bool is_zero(const in float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) == 0u;
}

bool is_nan(const in float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

uint lse_bits(const in float m, const in float l)
{
    return is_nan(l) ? 0x7fc00000u : is_zero(l) ? 0xff800000u : floatBitsToUint(m * UNIT + log2(l) * LN2);
}

/* The row maximum from m and the sum l. max() drops NaN scores, so that l alone shows them. An infinite score makes l
 * NaN too, but then m is infinite. */
uint row_max_bits(const in float m, const in float l)
{
    bool nan = is_nan(l) && floatBitsToUint(m) != 0x7f800000u;
    bool none = floatBitsToUint(m) == floatBitsToUint(LOWEST);
    return nan ? 0x7fc00000u : none ? 0xff800000u : floatBitsToUint(m * UNIT);
}

/* In stage 7, the factor of a row whose O is 0, whatever was accumulated. No factor is negative; -0 would not do, whose
 * sign a driver may drop. */
const float ZERO_ROW = -1.0;

/* The sink of a head, a logit in the denominator alone. m becomes the larger of both; O and sums relative to the old m
 * are multiplied by the first number, and the second is added to the sums. */
vec2 add_sink(attune_vulkan_arguments args, const in uint h, inout float m)
{
    if (all(equal(args.sinks, uvec2(0u))))
        return vec2(1.0, 0.0);
    float sink = uintBitsToFloat(Word(address_step(args.sinks, h, args.sinks_h)).value) / UNIT, top = max(m, sink);
    vec2 result = vec2(exp2((m - top) * TO_LOG2), exp2((sink - top) * TO_LOG2));
    m = top;
    return result;
}

/* Parts of a row are folded from the first to the last: the sums before a part and its own are relative to m and
 * part_m, and m becomes the larger. The same bits in every kernel. */
vec2 fold_factors(inout float m, const in float part_m)
{
    float top = max(m, part_m);
    precise vec2 factors = exp2((vec2(m, part_m) - vec2(top)) * TO_LOG2);
    m = top;
    return factors;
}

float fold(const in float before, const in float part, const in vec2 factors)
{
    precise float scaled = before * factors.x, result = fma(part, factors.y, scaled);
    return result;
}

vec4 fold(const in vec4 before, const in vec4 part, const in vec2 factors)
{
    precise vec4 scaled = before * factors.x, result = fma(part, vec4(factors.y), scaled);
    return result;
}

layout(push_constant) uniform Push{ATTUNE_PUSH_LAUNCH} push;

#endif
