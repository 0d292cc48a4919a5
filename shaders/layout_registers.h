/* SPDX-License-Identifier: MIT */
/*
 * forward_registers.comp: how a tile lies over subgroups and in shared memory. As layout_forward.h; groups are
 * 16 bytes, of eight elements or four floats, and tiles are counts of matrices.
 */
CONSTANT(16, uint, MATRIX_M, 16)
CONSTANT(17, uint, MATRIX_N, 16)
CONSTANT(18, uint, LANES, 32)
CONSTANT(19, uint, ROWS, 16)     /* of a subgroup */
CONSTANT(20, uint, ROW_TILES, 1) /* rows of a subgroup, columns of S, depth of Q, columns of O */
CONSTANT(21, uint, S_TILES, 4)
CONSTANT(22, uint, Q_TILES, 4)
CONSTANT(23, uint, O_TILES, 4)
CONSTANT(24, uint, S_COUNT, 4) /* ROW_TILES times the above */
CONSTANT(25, uint, HELD_COUNT, 4)
CONSTANT(26, uint, O_COUNT, 4)
CONSTANT(27, bool, QUADS, true)  /* the fragment layout */
CONSTANT(28, uint, ROW_COUNT, 2) /* rows of which a lane has elements: in one matrix, and in all */
CONSTANT(29, uint, ALL_ROWS, 2)
CONSTANT(30, uint, LENGTH, 8)   /* elements that a lane has of a matrix */
CONSTANT(31, uint, FETCH, 4)    /* groups of K or V that an invocation has in flight */
CONSTANT(32, uint, K_GROUPS, 8) /* groups of a row, padded to matrices */
CONSTANT(33, uint, V_GROUPS, 8)
CONSTANT(34, uint, K_STRIDE, 9)
CONSTANT(35, uint, V_STRIDE, 9)
CONSTANT(36, uint, O_STRIDE, 17)
CONSTANT(37, uint, O_CHUNK, 4) /* columns of matrices of O that are stored together */
CONSTANT(38, uint, Q_ROWS, 64) /* of Q, in shared memory at once */
CONSTANT(39, uint, SLOT, 288)  /* of K or of V: `memory` has two for each */
CONSTANT(40, uint, RING, 1152) /* the offset of where the tiles are: 69 groups */
CONSTANT(41, uint, MEMORY_SIZE, 1221)
CONSTANT(42, bool, AHEAD, true) /* S is computed a tile before its softmax */

SHARED(uvec4, memory, OF(MEMORY_SIZE))
/* Whether V has NaN or infinity in a tile with forbidden pairs */
SHARED(uint, non_finite, 1)
