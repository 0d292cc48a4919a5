/* SPDX-License-Identifier: MIT */
/*
 * The specialisation constants that every attention kernel has, for GLSL (constants.glsl) and C
 * (src/vulkan/constants.c); a kernel's own are in its layout_*.h. Who includes a list defines
 *
 *     CONSTANT(id, type, name, value)   the value is the module's default, which every pipeline replaces
 */
CONSTANT(ATTUNE_VULKAN_THREADS_ID, uint, THREADS, 128)
CONSTANT(1, uint, BLOCK_M, 32) /* rows of a tile; backward: of the outer tile */
CONSTANT(2, uint, BLOCK_N, 32) /* keys of a tile; backward: rows of an inner tile */
CONSTANT(3, uint, HEAD_DIM, 64)
CONSTANT(4, uint, HEAD_DIM_V, 64)
CONSTANT(5, bool, BLOCKS, false)   /* a block mask's lists */
CONSTANT(6, bool, MASK, false)     /* partial blocks evaluate an expression */
CONSTANT(7, bool, SCORE, false)    /* every pair evaluates an expression */
CONSTANT(8, bool, CAPTURES, false) /* backward: capture gradients may be requested */
CONSTANT(9, bool, PRESCALE, false) /* the scale is in Q; not with cooperative matrices */
CONSTANT(10, bool, ALIGNED, false) /* all tensors are, which saves testing flags, and drivers the other branch */
CONSTANT(11, bool, PACKED, false)  /* tiles have rows of several heads; never in backward */
/* Forward: the types of q and o. The module has that of k and v, to which cooperative matrices round q. Backward:
 * O_TYPE is that of d_q, d_k and d_v. */
CONSTANT(12, uint, Q_TYPE, 0)
CONSTANT(13, uint, O_TYPE, 0)
/* Of modules with SERVING: the types of k and v. */
CONSTANT(14, uint, K_TYPE, 0)
CONSTANT(15, uint, V_TYPE, 0)
