// SPDX-License-Identifier: MIT
// Independent chains of fused multiply-adds: what the arithmetic units give when nothing holds them up.
//   SCALAR, VECTOR   the type of one element and of one chain
#version 450
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#ifdef FLOAT16
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define SCALAR float16_t
#define VECTOR f16vec4
#else
#define SCALAR float
#define VECTOR vec4
#endif

layout(local_size_x_id = 0) in;

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Result {
    float value;
};

layout(push_constant) uniform Arguments {
    uvec2 result;
    uint rounds;
    float factor;
    float term;
} arguments;

// Chains of a thread, and steps of a round. measure.c counts with the same numbers.
const uint CHAINS = 4;
const uint STEPS = 8;

void main()
{
    const VECTOR a = VECTOR(SCALAR(arguments.factor));
    const VECTOR b = VECTOR(SCALAR(arguments.term));
    VECTOR x[CHAINS];
    for (uint c = 0; c < CHAINS; c++)
        x[c] = VECTOR(SCALAR(gl_LocalInvocationIndex + c));
    for (uint round = 0; round < arguments.rounds; round++)
        for (uint step = 0; step < STEPS; step++)
            for (uint c = 0; c < CHAINS; c++)
                x[c] = fma(x[c], a, b);
    VECTOR sum = VECTOR(SCALAR(0));
    for (uint c = 0; c < CHAINS; c++)
        sum += x[c];
    // Never true, and no compiler knows it.
    if (float(sum.x + sum.y + sum.z + sum.w) == arguments.term - 1.0e9)
        Result(arguments.result).value = float(sum.x);
}
