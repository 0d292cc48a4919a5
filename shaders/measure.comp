// SPDX-License-Identifier: MIT
// Measures the peak rate of fused multiply-adds: chains that do not depend on one another.
//   SCALAR, VECTOR   the type of one element and of one chain: f16 in pairs, which is what registers hold
//   CHAINS           of a thread; ATTUNE_MEASURE_ELEMENTS in all
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#ifdef FLOAT16
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define SCALAR float16_t
#define VECTOR f16vec2
#define CHAINS (ATTUNE_MEASURE_ELEMENTS / 2u)
#else
#define SCALAR float
#define VECTOR vec4
#define CHAINS (ATTUNE_MEASURE_ELEMENTS / 4u)
#endif

#include "types.h"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Result
{
    float value;
};

layout(push_constant) uniform Arguments{ATTUNE_PUSH_MEASURE} arguments;

const uint STEPS = ATTUNE_MEASURE_STEPS; // of a round

void main()
{
    const VECTOR a = VECTOR(SCALAR(arguments.factor));
    VECTOR x[CHAINS], b[CHAINS];
    for (uint c = 0; c < CHAINS; c++) {
        // The factor is -1: an element alternates between x and b - x, and stays finite.
        x[c] = VECTOR(SCALAR(0.37 + 0.61 * float(gl_LocalInvocationIndex % 61u) - float(c)));
        b[c] = VECTOR(SCALAR(arguments.term * float(1u + c + gl_LocalInvocationIndex % 7u)));
        x[c].y += SCALAR(0.5);
    }
    for (uint round = 0; round < arguments.rounds; round++)
        for (uint step = 0; step < STEPS; step++)
            for (uint c = 0; c < CHAINS; c++)
                x[c] = fma(x[c], a, b[c]);
    VECTOR sum = VECTOR(SCALAR(0));
    for (uint c = 0; c < CHAINS; c++)
        sum += x[c];
    // Never true, but the compiler must keep the arithmetic.
    if (float(dot(sum, VECTOR(SCALAR(1)))) == arguments.term - 1.0e9)
        Result(arguments.result).value = float(sum.x);
}
