/* SPDX-License-Identifier: MIT */
/*
 * Device addresses as uvec2 (low, high word): some devices have no 64-bit integers. Strides are in bytes, 64-bit, two's
 * complement; sums wrap, as they do on the host.
 */
#ifndef ATTUNE_ADDRESS_GLSL
#define ATTUNE_ADDRESS_GLSL

#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vec4
{
    vec4 value;
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Uvec4
{
    uvec4 value;
};
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Word
{
    uint value;
};
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer OutVec4
{
    vec4 value;
};
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer OutUvec2
{
    uvec2 value;
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer OutWord
{
    uint value;
};

uvec2 address_add(const in uvec2 address, const in uint bytes)
{
    uint carry;
    uint low = uaddCarry(address.x, bytes, carry);
    return uvec2(low, address.y + carry);
}

/* address + count * stride */
uvec2 address_step(const in uvec2 address, const in uint count, const in uvec2 stride)
{
    uint high, low, carry;
    umulExtended(count, stride.x, high, low);
    low = uaddCarry(address.x, low, carry);
    return uvec2(low, address.y + high + count * stride.y + carry);
}

#endif
