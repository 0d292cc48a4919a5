/* SPDX-License-Identifier: MIT */
/*
 * forward.comp: how a tile lies over invocations and in shared memory. src/plan/layout.c computes the constants
 * (constants.h), which are lengths of arrays as they are, since some drivers fail where such lengths are computed.
 * Who includes this defines CONSTANT and also
 *
 *     SHARED(type, name, count)   an array in shared memory
 *     OF(name)                    the value of a constant
 *
 * Sizes and strides are in groups of four floats.
 */
CONSTANT(16, uint, SLICE, 16) /* of the head dimension, in shared memory at once */
CONSTANT(17, uint, CHUNK, 16) /* rows of V in shared memory at once */
CONSTANT(18, uint, TX, 8)     /* the grid of invocations */
CONSTANT(19, uint, TY, 16)
CONSTANT(20, uint, TM, 2) /* rows of an invocation, groups of four columns of S, and of O */
CONSTANT(21, uint, TN, 1)
CONSTANT(22, uint, TO, 2)
CONSTANT(23, uint, ACC_SIZE, 2)   /* TM * TN */
CONSTANT(24, uint, O_SIZE, 4)     /* TM * TO */
CONSTANT(25, uint, ROW_LANES, 4)  /* invocations of a row in stages 4 and 5 */
CONSTANT(26, uint, ROW_GROUPS, 2) /* groups of four columns of each */
CONSTANT(27, uint, FETCH_Q, 1)    /* groups of eight elements that an invocation has in flight */
CONSTANT(28, uint, FETCH_K, 1)
CONSTANT(29, uint, FETCH_V, 2)
CONSTANT(30, uint, FETCH, 2) /* the larger of FETCH_Q + FETCH_K and FETCH_V */
CONSTANT(31, uint, SLICE_STRIDE, 5)
CONSTANT(32, uint, CHUNK_STRIDE, 17)
CONSTANT(33, uint, S_STRIDE, 9)
CONSTANT(34, uint, SLICES_SIZE, 640) /* twice SLICE_SIZE; or once, where two halves do not fit */
CONSTANT(35, uint, SLICE_SIZE, 320)
CONSTANT(36, uint, S_SIZE, 288)
CONSTANT(37, uint, ROWS_SIZE, 32)
CONSTANT(38, uint, REDUCE_SIZE, 128) /* 0 with SUBGROUPS */
CONSTANT(39, bool, FOLDS, false)     /* with SERVING: items fold fixed parts of keys */
CONSTANT(40, uint, SUM_SIZE, 1)      /* then O_SIZE, else 1 */
CONSTANT(41, uint, MEMBERS, 1)       /* sequences that a tile may have rows of: BLOCK_M, or 1 */

SHARED(vec4, slices, OF(SLICES_SIZE)) /* once or twice: Q[M] and K[N] of a slice, or V[CHUNK] */
SHARED(vec4, s, OF(S_SIZE))           /* S, then P: [M][S_STRIDE] */
SHARED(float, rows, OF(ROWS_SIZE))    /* the rescale factor of each row of O; at the end 1 / l */
#ifndef SUBGROUPS
SHARED(float, reduce, OF(REDUCE_SIZE)) /* [ROW_LANES][M] */
#endif
/* Whether V has NaN or infinity in a chunk of a tile with forbidden pairs; by chunk, modulo 4. */
SHARED(uint, non_finite, 4)
