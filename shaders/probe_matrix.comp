/* SPDX-License-Identifier: MIT */
/* Compiles only if glslang knows cooperative matrices whose sizes are specialization constants; meson.build tries it.
 * */
#version 460
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require

layout(local_size_x = 32) in;
layout(constant_id = 0) const uint SIZE = 16;

shared uvec4 memory[64];

void main()
{
    coopmat<float16_t, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA> a;
    coopMatLoad(a, memory, 0u, SIZE / 8u, gl_CooperativeMatrixLayoutRowMajor);
    coopMatStore(a, memory, 0u, SIZE / 8u, gl_CooperativeMatrixLayoutRowMajor);
}
