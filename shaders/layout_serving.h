/* SPDX-License-Identifier: MIT */
/* forward.comp with SERVING: what it has in shared memory besides layout_forward.h. */
SHARED(uvec2, keys, OF(BLOCK_N)) /* of a tile's keys: the page, NO_PAGE = none, and the row in it */
SHARED(uint, absent, 2)          /* whether a key of the tile has no page; by tile, modulo 2 */
