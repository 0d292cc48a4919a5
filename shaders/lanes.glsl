/* SPDX-License-Identifier: MIT */
/* Eight bytes of k or v at a time, for the kernels of drivers that run shaders on a CPU's vector unit. */
#ifndef ATTUNE_LANES_GLSL
#define ATTUNE_LANES_GLSL

#include "constants.glsl"
#include "elements.glsl"

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Word64
{
    uint64_t value;
};
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer OutWord64
{
    uint64_t value;
};

const uint LANES = THREADS;               /* a workgroup is one subgroup */
const uint ELEMENTS = 8u / ELEMENT_BYTES; /* of eight bytes */
const uint COLUMNS = LANES * ELEMENTS;

/* The 32 bits that begin at an element; 64 at a time are read faster than 32. */
uint element_bits(const in uint64_t address)
{
    return uint(Word64(address & ~uint64_t(7u)).value >> (uint(address) % 8u * 8u));
}

uvec2 load8(const in uint64_t address)
{
    if (ALIGNED)
        return unpack32(Word64(address).value);
#if ELEMENT == 0
    return uvec2(element_bits(address), element_bits(address + uint64_t(4u)));
#else
    uvec2 low = uvec2(element_bits(address), element_bits(address + uint64_t(4u))) & 0xffffu;
    return low | uvec2(element_bits(address + uint64_t(2u)), element_bits(address + uint64_t(6u))) << 16;
#endif
}

float element(const in uvec2 words, const in uint e)
{
#if ELEMENT == 0
    return uintBitsToFloat(words[e]);
#else
    return unpack(words[e / 2u])[e % 2u];
#endif
}

bool is_non_finite8(const in uvec2 words)
{
#if ELEMENT == 0
    return any(greaterThanEqual(words & 0x7fffffffu, uvec2(0x7f800000u)));
#else
    const uint ones = ELEMENT == 1 ? 0x7c00u : 0x7f80u;
    return any(equal(words & ones, uvec2(ones))) || any(equal(words & (ones << 16), uvec2(ones << 16)));
#endif
}

#endif
