/* SPDX-License-Identifier: MIT */
/*
 * The backward pass of Vulkan's kernels without matrix units: one text, two kernels (shaders/backward.comp). The
 * planner counts what the larger of them takes.
 */
#include "plan/family.h"
#include "plan/layout.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const attune__tile backward_tiles[] = {
    ATTUNE__TILES(32, 64, 64, 32, 1, 0), ATTUNE__TILES(32, 32, 64, 32, 1, 0), ATTUNE__TILES(32, 32, 32, 32, 1, 0),
    ATTUNE__TILES(16, 32, 32, 16, 1, 0), ATTUNE__TILES(16, 16, 16, 16, 1, 0), ATTUNE__TILES(4, 8, 8, 4, 1, 0),
};

const attune__tile *attune__vulkan_backward_tiles(const attune__search *search, uint32_t *count)
{
    /* dK and dV of 64 keys would not stay in the registers of 128 invocations. A driver on a CPU takes seconds to
     * compile the larger tiles. */
    const uint32_t skip = search->limits->host ? (uint32_t)COUNT(backward_tiles) - 2
                          : search->shape->head_dim + search->shape->head_dim_v > 256 ? 1
                                                                                      : 0;
    *count = (uint32_t)COUNT(backward_tiles) - skip;
    return backward_tiles + skip;
}

static const char *layout(const attune__search *search, const attune__tile *tile, uint32_t threads, bool keys,
                          attune__backward_layout *l)
{
    const uint32_t *v = tile->value;
    return attune__backward_layout_make(v[keys ? ATTUNE__BLOCK_N1 : ATTUNE__BLOCK_M2],
                                        v[keys ? ATTUNE__BLOCK_M1 : ATTUNE__BLOCK_N2], threads, search->shape->head_dim,
                                        search->shape->head_dim_v, keys, l);
}

const char *attune__vulkan_backward_refuse(const attune__search *search, const attune__tile *tile, uint32_t threads,
                                           attune__option *option)
{
    attune__backward_layout l;
    const char *why = layout(search, tile, threads, true, &l);
    *option = search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M1) ? ATTUNE__BLOCK_M1 : ATTUNE__BLOCK_N1;
    if (why)
        return why;
    *option = search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N2) ? ATTUNE__BLOCK_N2 : ATTUNE__BLOCK_M2;
    return layout(search, tile, threads, false, &l);
}

uint64_t attune__vulkan_backward_shared(const attune__search *search, const attune__tile *tile, uint32_t threads)
{
    attune__backward_layout keys, rows;
    if (layout(search, tile, threads, true, &keys) || layout(search, tile, threads, false, &rows))
        return UINT64_MAX;
    return keys.bytes > rows.bytes ? keys.bytes : rows.bytes;
}
