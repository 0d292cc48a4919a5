/* SPDX-License-Identifier: MIT */
/*
 * decode.comp: how a tile lies over the lanes of its subgroups. As layout_forward.h; groups are of eight elements.
 * Lane g of the KEY_LANES lanes of a key has the groups g, g + KEY_LANES, ... of its row.
 */
CONSTANT(16, uint, LANES, 32) /* of a subgroup */
CONSTANT(17, uint, WARPS, 4)
CONSTANT(18, uint, KEY_LANES, 8)
CONSTANT(19, uint, KEYS_AT_ONCE, 4) /* of a subgroup: LANES / KEY_LANES */
CONSTANT(20, uint, KEYS, 4)         /* of a tile, that a lane has a share of */
CONSTANT(21, uint, K_GROUPS, 1)     /* of a row, that a lane has */
CONSTANT(22, uint, V_GROUPS, 1)
CONSTANT(23, uint, PAIRS, 16)     /* BLOCK_M * KEYS: rows and keys of the lanes of a key */
CONSTANT(24, uint, SCORES, 2)     /* of them, those of one lane, all of one row */
CONSTANT(25, uint, COPIES, 1)     /* lanes that have the same ones */
CONSTANT(26, uint, ROW_LANES, 2)  /* lanes that have the pairs of a row: KEY_LANES / BLOCK_M */
CONSTANT(27, bool, HOLD_Q, true)  /* in registers, not in shared memory */
CONSTANT(28, uint, HELD_COUNT, 8) /* vectors of four: of Q, or 1 if it is not held; of O; groups of K and of V */
CONSTANT(29, uint, O_COUNT, 8)
CONSTANT(30, uint, K_COUNT, 4)
CONSTANT(31, uint, V_COUNT, 4)
CONSTANT(32, uint, Q_SIZE, 1)
CONSTANT(33, uint, PARTIALS_SIZE, 256) /* WARPS * BLOCK_M rows of V */
CONSTANT(34, uint, STATES_SIZE, 16)    /* WARPS * BLOCK_M */
CONSTANT(35, uint, SUM_SIZE, 1)        /* vectors of the result that an invocation stores */
CONSTANT(36, bool, FOLDS, false)       /* with SERVING: items fold fixed parts of keys */
CONSTANT(37, bool, MEETS, true)        /* a subgroup's lanes may part, and can wait for each other */

SHARED(vec4, shared_q, OF(Q_SIZE))        /* [M][groups of a row][2] */
SHARED(vec4, partials, OF(PARTIALS_SIZE)) /* O of each subgroup: [WARPS][M][groups of a row][2] */
SHARED(float, most, OF(STATES_SIZE))      /* its row maxima and sums: [WARPS][M] */
SHARED(float, sums, OF(STATES_SIZE))
