// SPDX-License-Identifier: MIT
// Measures the peak rate of matrix multiply-adds, f16 into f32, of the device's shape: independent chains.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require

#include "types.h"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;
#define CONSTANT(id, type, name, value) layout(constant_id = id) const type name = value;
#include "constants_measure.h"

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Result
{
    float value;
};

layout(push_constant) uniform Arguments{ATTUNE_PUSH_MEASURE} arguments;

// Matrices A and B of a subgroup, and steps of a round.
const uint ROWS = ATTUNE_MEASURE_MATRICES_A;
const uint COLUMNS = ATTUNE_MEASURE_MATRICES_B;
const uint STEPS = ATTUNE_MEASURE_MATRIX_STEPS;

const uint A_SIZE = MATRIX_M * MATRIX_K / 2u;
const uint B_SIZE = MATRIX_K * MATRIX_N / 2u;
shared uint halves[ROWS * A_SIZE + COLUMNS * B_SIZE];

// In [-1, 1) and not 0: zeros need less power, and clocks would rise.
float number(uint i)
{
    i = (i ^ i >> 15) * 0x2c1b3c6du;
    i = (i ^ i >> 12) * 0x297a2d39u;
    return (float((i ^ i >> 15) & 1023u) - 511.5) / 512.0;
}

void main()
{
    for (uint i = gl_LocalInvocationIndex; i < ROWS * A_SIZE + COLUMNS * B_SIZE; i += THREADS)
        halves[i] = packHalf2x16(vec2(number(2u * i + 1u), number(2u * i + 2u)) * arguments.factor);
    barrier();
    coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA> a[ROWS];
    coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB> b[COLUMNS];
    coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator> sums[ROWS * COLUMNS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++)
        coopMatLoad(a[r], halves, r * A_SIZE, MATRIX_K / 2u, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++)
        coopMatLoad(b[c], halves, ROWS * A_SIZE + c * B_SIZE, MATRIX_N / 2u, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0u; i < ROWS * COLUMNS; i++)
        sums[i] = coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>(float(i));
    for (uint round = 0u; round < arguments.rounds; round++)
        [[unroll]] for (uint step = 0u; step < STEPS; step++)
            [[unroll]] for (uint r = 0u; r < ROWS; r++)
                [[unroll]] for (uint c = 0u; c < COLUMNS; c++)
                    sums[r * COLUMNS + c] = coopMatMulAdd(a[r], b[c], sums[r * COLUMNS + c]);
    [[unroll]] for (uint i = 1u; i < ROWS * COLUMNS; i++)
        sums[0] += sums[i];
    // Every element is used: compilers drop the instructions of elements that are not.
    float total = 0.0;
    for (int i = 0; i < sums[0].length(); i++)
        total += sums[0][i];
    // Never true, but the compiler must keep the arithmetic.
    if (total == arguments.term - 1.0e30)
        Result(arguments.result).value = total;
}
