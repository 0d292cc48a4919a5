/* SPDX-License-Identifier: MIT */
/* Over a cache, of a tile that may have rows of several sequences that share keys, as layout_serving.h. */
SHARED(uvec4, members, OF(MEMBERS)) /* sequences: rows, keys, and the first row among those of all sequences */
SHARED(uvec2, queries, OF(MEMBERS)) /* of the tile: the member and its row */
