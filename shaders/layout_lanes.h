/* SPDX-License-Identifier: MIT */
/* opencl/lanes.h: how a tile's rows lie over lanes, and what is in registers at once. As layout_forward.h. */
CONSTANT(16, uint, WIDTH, 16)     /* rows in a vector of one item; 1: the lanes are the items of a workgroup */
CONSTANT(17, uint, SHUFFLES, 0)   /* the items read each other's elements */
CONSTANT(18, uint, VECTORS, 2)    /* of each item: its rows, with WIDTH */
CONSTANT(19, uint, DEPTH, 8)      /* inner rows, or columns of a product, in registers */
CONSTANT(20, uint, CHUNK, 1)      /* elements of an inner row that are loaded at once */
CONSTANT(21, uint, STAGED, 0)     /* inner rows are converted to floats once */
CONSTANT(22, uint, INNER_SIZE, 1) /* BLOCK_N rows, with STAGED */

SHARED(float, inner, OF(INNER_SIZE)) /* [BLOCK_N][HEAD_DIM] of K, or of V */
