/* SPDX-License-Identifier: MIT */
/*
 * backward_matrix.comp: how a tile lies over subgroups and in shared memory. As layout_forward.h; the outer tile has M
 * rows, an inner tile N. Groups are 16 bytes, of eight elements or four floats, and tiles are counts of matrices.
 */
CONSTANT(16, uint, MATRIX_M, 16)
CONSTANT(17, uint, MATRIX_N, 16)
CONSTANT(18, uint, LANES, 32)
CONSTANT(19, bool, QUADS, true)  /* the fragment layout */
CONSTANT(20, uint, ROW_COUNT, 2) /* rows of which a lane has elements: in one matrix, and in all */
CONSTANT(21, uint, ALL_ROWS, 2)
CONSTANT(22, uint, LENGTH, 8)    /* elements that a lane has of a matrix */
CONSTANT(23, uint, TEAM, 1)      /* subgroups that share rows */
CONSTANT(24, uint, ROWS, 16)     /* of a team */
CONSTANT(25, uint, ROW_TILES, 1) /* rows of a team; columns of a subgroup, of S, X and Y; depth of A and A2 */
CONSTANT(26, uint, S_TILES, 2)
CONSTANT(27, uint, X_TILES, 4)
CONSTANT(28, uint, Y_TILES, 4)
CONSTANT(29, uint, A_TILES, 4) /* of a subgroup, with SPLIT_DEPTH */
CONSTANT(30, uint, A2_TILES, 4)
CONSTANT(31, uint, X_COUNT, 4) /* ROW_TILES times the above; HELD_COUNT is 1 if A is not held */
CONSTANT(32, uint, Y_COUNT, 4)
CONSTANT(33, uint, HELD_COUNT, 4)
CONSTANT(34, uint, HELD2_COUNT, 4)
CONSTANT(35, bool, HOLD_A, true) /* in registers, not in shared memory */
CONSTANT(36, bool, HOLD_A2, true)
CONSTANT(37, uint, FETCH, 2) /* groups of B and of B2 that an invocation has in flight */
CONSTANT(38, uint, FETCH2, 2)
CONSTANT(39, uint, B_GROUPS, 8) /* groups of a row, padded to matrices */
CONSTANT(40, uint, B2_GROUPS, 8)
CONSTANT(41, uint, B_STRIDE, 9) /* of A too */
CONSTANT(42, uint, B2_STRIDE, 9)
CONSTANT(43, uint, P_STRIDE, 5)
CONSTANT(44, uint, OUT_STRIDE, 17)
CONSTANT(45, uint, OUT_CHUNK, 4)   /* columns of matrices of X or Y that are stored together */
CONSTANT(46, uint, B2_OFFSET, 288) /* offsets in `memory`; B is at 0 */
CONSTANT(47, uint, A_OFFSET, 0)
CONSTANT(48, uint, A2_OFFSET, 0)
CONSTANT(49, uint, P_OFFSET, 576)
CONSTANT(50, uint, DS_OFFSET, 896)
CONSTANT(51, uint, STATE_OFFSET, 1216) /* LSE and delta of inner rows, of two in each group */
CONSTANT(52, uint, MEMORY_SIZE, 1232)
CONSTANT(53, bool, SPLIT_DEPTH, false) /* the subgroups of a team divide the depth of S and dP, not the columns */
CONSTANT(54, uint, SUM_OFFSET, 0)      /* with it, their shares of S and dP */
CONSTANT(55, uint, SUM_STRIDE, 5)

SHARED(uvec4, memory, OF(MEMORY_SIZE))
SHARED(uint, non_finite,
       2) /* the last tile, counted from 1, with forbidden pairs and NaN or infinity in B, and in B2 */
