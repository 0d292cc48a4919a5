// SPDX-License-Identifier: MIT
// The fragment layout of this driver: which element of a matrix each lane holds, as an accumulator and as the operand
// A, and whether conversions to f16 round to nearest even. One subgroup loads matrices whose elements are their own
// numbers; src/vulkan/fragment_layout.c compares.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#include "types.h"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;
#define CONSTANT(id, type, name, value) layout(constant_id = id) const type name = value;
#include "constants_fragment_layout.h"

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Result
{
    uint value[];
};

layout(push_constant) uniform Arguments{ATTUNE_PUSH_FRAGMENT_LAYOUT} arguments;

shared float numbers[MATRIX_M * MATRIX_N];
shared uint halves[MATRIX_M * MATRIX_N / 2u];

void main()
{
    const uint lane = gl_SubgroupInvocationID;
    for (uint i = lane; i < MATRIX_M * MATRIX_N / 2u; i += LANES) {
        numbers[2u * i] = float(2u * i);
        numbers[2u * i + 1u] = float(2u * i + 1u);
        halves[i] = packHalf2x16(vec2(2u * i, 2u * i + 1u));
    }
    barrier();
    coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator> sums;
    coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseA> operand;
    coopMatLoad(sums, numbers, 0u, MATRIX_N, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(operand, halves, 0u, MATRIX_N / 2u, gl_CooperativeMatrixLayoutRowMajor);
    /* Halfway between two neighbours of f16; numbers[0] is 0, which the compiler does not know. */
    const bool rounds = float(float16_t(2049.0 + numbers[0])) == 2048.0 &&
                        float(float16_t(2051.0 + numbers[0])) == 2052.0;
    if (lane == 0u)
        Result(arguments.result).value[LANES * LENGTH] = rounds ? 1u : 0u;
    const bool as_long = sums.length() == LENGTH && operand.length() == LENGTH;
    for (uint e = 0u; e < LENGTH; e++)
        Result(arguments.result).value[lane * LENGTH + e] = as_long ? uint(sums[e]) | uint(float(operand[e])) << 16
                                                                    : 0xffffffffu;
}
