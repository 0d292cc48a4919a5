/* SPDX-License-Identifier: MIT */
/*
 * forward_matrix.comp: how a tile lies over subgroups and in shared memory. As layout_forward.h; groups are
 * 16 bytes, of eight elements or four floats, and tiles are counts of matrices.
 */
CONSTANT(16, uint, MATRIX_M, 16)
CONSTANT(17, uint, MATRIX_N, 16)
CONSTANT(18, uint, MATRIX_K, 16)
CONSTANT(19, uint, ROWS, 16)     /* of a subgroup */
CONSTANT(20, uint, ROW_TILES, 1) /* rows of a subgroup, columns of S, depth of Q, columns of O */
CONSTANT(21, uint, S_TILES, 4)
CONSTANT(22, uint, Q_TILES, 4)
CONSTANT(23, uint, O_TILES, 4)
CONSTANT(24, uint, S_COUNT, 4) /* ROW_TILES times the above; HELD_COUNT is 1 if Q is not held */
CONSTANT(25, uint, HELD_COUNT, 4)
CONSTANT(26, uint, O_COUNT, 4)
CONSTANT(27, uint, ROW_LANES, 2) /* lanes of a row in stages 4 and 5, and groups of four scores of each */
CONSTANT(28, uint, ROW_GROUPS, 8)
CONSTANT(29, uint, FETCH, 4)     /* groups of K or V that an invocation has in flight */
CONSTANT(30, bool, HOLD_Q, true) /* in registers, not in shared memory */
CONSTANT(31, uint, K_GROUPS, 8)  /* groups of a row, padded to matrices */
CONSTANT(32, uint, V_GROUPS, 8)
CONSTANT(33, uint, K_STRIDE, 9)
CONSTANT(34, uint, V_STRIDE, 9)
CONSTANT(35, uint, S_STRIDE, 17)
CONSTANT(36, uint, P_STRIDE, 9)
CONSTANT(37, uint, EXTRA_STRIDE, 4)
CONSTANT(38, uint, Q_OFFSET, 0)       /* offsets in `memory`; K or V is at 0 */
CONSTANT(39, uint, WARPS_OFFSET, 576) /* S and P of each subgroup */
CONSTANT(40, uint, WARP_SIZE, 336)    /* S, or P in its place; then EXTRA */
CONSTANT(41, uint, EXTRA_OFFSET, 272) /* one column of matrices in float32 */
CONSTANT(42, uint, MEMORY_SIZE, 1920)

SHARED(uvec4, memory, OF(MEMORY_SIZE))
SHARED(uint, non_finite, 1) /* whether V has NaN or infinity in a tile with forbidden pairs */
