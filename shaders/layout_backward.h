/* SPDX-License-Identifier: MIT */
/* backward.comp: how a tile lies over invocations and in shared memory. As layout_forward.h; the outer tile has M rows,
 * an inner tile N. */
CONSTANT(16, uint, SLICE, 16) /* of a head dimension, in shared memory at once */
CONSTANT(17, uint, CHUNK, 16) /* inner rows in shared memory at once, in stage 6 */
CONSTANT(18, uint, TX, 8)     /* the grid of invocations */
CONSTANT(19, uint, TY, 16)
CONSTANT(20, uint, TM, 2) /* rows of an invocation, groups of four columns of X, and of Y */
CONSTANT(21, uint, TO, 2)
CONSTANT(22, uint, TO_V, 2)
CONSTANT(23, uint, X_SIZE, 4)  /* TM * TO */
CONSTANT(24, uint, Y_SIZE, 4)  /* TM * TO_V */
CONSTANT(25, uint, FETCH_A, 1) /* groups of eight elements that an invocation has in flight */
CONSTANT(26, uint, FETCH_B, 1)
CONSTANT(27, uint, FETCH_X, 2)
CONSTANT(28, uint, FETCH_Y, 2)
CONSTANT(29, uint, FETCH, 2) /* the largest of FETCH_A + FETCH_B, FETCH_X and FETCH_Y */
CONSTANT(30, uint, SLICE_STRIDE, 5)
CONSTANT(31, uint, X_STRIDE, 17)
CONSTANT(32, uint, Y_STRIDE, 17)
CONSTANT(33, uint, S_STRIDE, 9)
CONSTANT(34, uint, SLICES_SIZE, 640) /* twice SLICE_SIZE */
CONSTANT(35, uint, SLICE_SIZE, 320)
CONSTANT(36, uint, S_SIZE, 288)

SHARED(vec4, slices, OF(SLICES_SIZE)) /* twice: A[M] and B[N] of a slice, or B or B2 [CHUNK] */
SHARED(vec4, s, OF(S_SIZE))           /* P, dS: [M][S_STRIDE] */
SHARED(uint, non_finite, 4)           /* whether a chunk has NaN or infinity; by chunk, modulo 4 */
