/* SPDX-License-Identifier: MIT */
/*
 * The tiles of keys that a forward kernel computes: those of the mask's lists, without the tiles of partial blocks that
 * have no allowed pair of the workgroup's rows. Where all pairs are allowed the mask is not evaluated.
 */
#ifndef ATTUNE_KEY_TILES_H
#define ATTUNE_KEY_TILES_H

#include "mods.h"
#include "tiles.h"

/* The same for all items of a workgroup. */
ATTUNE_FUNCTION int key_tiles_next(block_iterator *it, const attune_opencl_arguments *args,
                                   const tile_coord *coord ATTUNE_MODS_PARAMETERS)
{
#ifdef ATTUNE_HAS_BOUNDS
    int found = 0;
    while (!found) {
        if (!block_iterator_next(it, args->kv_block, args->kv_len))
            return 0;
        found = 1;
        if (it->partial != 0u) {
            const uint last = min(it->row0 + BLOCK_N, it->row_end) - 1u;
            const attune_range any = attune_mask_bounds(coord->b, coord->h0, coord->heads, coord->q0, coord->queries,
                                                        it->row0, last ATTUNE_MODS);
            found = any.high != 0;
            it->partial = any.low == 0 ? 1u : 0u;
        }
    }
    return 1;
#else
    return block_iterator_next(it, args->kv_block, args->kv_len);
#endif
}

#endif
