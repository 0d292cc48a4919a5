/* SPDX-License-Identifier: MIT */
/*
 * opencl/decode.cl: how a tile lies over work-items and in local memory. As layout_forward.h; groups are of eight
 * elements, vectors of four floats. A team of KEY_LANES neighbouring items has KEYS keys of a tile, and each of its
 * items one group of their rows. A pair, of a row and one of a team's keys, is numbered key * BLOCK_M + row.
 */
CONSTANT(16, uint, KEY_LANES, 16)
CONSTANT(17, uint, TEAMS, 8)
CONSTANT(18, uint, KEYS, 4)
CONSTANT(19, uint, PAIRS, 16)      /* BLOCK_M * KEYS: of a team */
CONSTANT(20, uint, PAIR_GROUPS, 4) /* vectors of them */
CONSTANT(21, uint, SCORES, 1)      /* pairs whose score an item computes */
CONSTANT(22, uint, FINDS, 1)       /* keys whose place an item finds */
CONSTANT(23, bool, HOLD_Q, true)   /* in registers, not in local memory */
CONSTANT(24, uint, HELD_COUNT, 8)  /* vectors of Q, or 1 if it is not held */
CONSTANT(25, uint, ROUND_ROWS, 2)  /* rows whose results the teams add at once */
CONSTANT(26, uint, ROUND_SIZE, 1)  /* vectors of them that an item has */
CONSTANT(27, uint, SUM_SIZE, 2)    /* and of all rows */
CONSTANT(28, uint, Q_SIZE, 1)
CONSTANT(29, uint, POOL_SIZE, 512)
CONSTANT(30, uint, S_STRIDE, 5)
CONSTANT(31, uint, S_SIZE, 40)
CONSTANT(32, uint, STATES_SIZE, 32) /* TEAMS * BLOCK_M */
CONSTANT(33, uint, KEYS_SIZE, 64)   /* 2 * BLOCK_N */
CONSTANT(34, uint, FACTORS_SIZE, 1) /* likewise, or 1 where keys have no factors */

SHARED(vec4, shared_q, OF(Q_SIZE)) /* [M][2][KEY_LANES] */
SHARED(vec4, pool,
       OF(POOL_SIZE))       /* shares of dot products: floats [PAIRS][items]; O of teams: [rows][TEAMS][columns] */
SHARED(vec4, s, OF(S_SIZE)) /* scores: [TEAMS][S_STRIDE] */
SHARED(float, most, OF(STATES_SIZE)) /* row maxima and sums of teams: [M][TEAMS] */
SHARED(float, sums, OF(STATES_SIZE))
SHARED(uvec4, keys, OF(KEYS_SIZE))       /* of two tiles: where the rows of K and V are, as two numbers of 64 bits */
SHARED(uvec2, factors, OF(FACTORS_SIZE)) /* of the codes of K and V there */
