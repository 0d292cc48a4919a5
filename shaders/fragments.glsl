/* SPDX-License-Identifier: MIT */
/*
 * Cooperative matrices of devices whose fragment layout is known (limits.fragment_layout). A kernel declares MATRIX_M,
 * MATRIX_N and QUADS before it includes this; the depth of a product is MATRIX_N.
 */
#ifndef ATTUNE_FRAGMENTS_GLSL
#define ATTUNE_FRAGMENTS_GLSL

#define MATRIX_A     coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseA>
#define MATRIX_B     coopmat<float16_t, gl_ScopeSubgroup, MATRIX_N, MATRIX_N, gl_MatrixUseB>
#define MATRIX_F16   coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
#define MATRIX_F32   coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
#define ROW_MAJOR    gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

/*
 * The fragment layout, by a lane's element e. QUADS: four lanes share two rows, eight apart, and each has two
 * neighbouring columns of every eight. Otherwise a lane has a column. The operand A has the layout of an accumulator.
 */
uint row_of(const in uint e)
{
    return QUADS ? e / 4u : e;
}

uint row_at(const in uint row, const in uint lane)
{
    return QUADS ? lane / 4u + 8u * row : row;
}

uint column_at(const in uint e, const in uint lane)
{
    return QUADS ? lane % 4u * 2u + e % 2u + e / 2u % 2u * 8u : lane;
}

/* subgroupBarrier orders images and buffers too, for which some drivers wait. */
void wait_subgroup()
{
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

#endif
