/* SPDX-License-Identifier: MIT */
/* Measures the bandwidth that compute units reach: a copy, 16 bytes for each invocation and step. */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "address.glsl"
#include "types.h"

layout(local_size_x = ATTUNE_COPY_THREADS) in;

layout(push_constant) uniform Push{ATTUNE_PUSH_COPY} push;

const uint STEPS = ATTUNE_COPY_STEPS;

void main()
{
    uint first = gl_WorkGroupID.x * ATTUNE_COPY_THREADS * STEPS + gl_LocalInvocationIndex;
    vec4 value[STEPS];
    [[unroll]] for (uint i = 0u; i < STEPS; i++)
        value[i] = Vec4(address_step(push.from, first + i * ATTUNE_COPY_THREADS, uvec2(16u, 0u))).value;
    [[unroll]] for (uint i = 0u; i < STEPS; i++)
        OutVec4(address_step(push.to, first + i * ATTUNE_COPY_THREADS, uvec2(16u, 0u))).value = value[i];
}
