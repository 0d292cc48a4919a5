/* SPDX-License-Identifier: MIT */
/*
 * The backward pass of Vulkan's kernels: one text, two kernels (shaders/backward.comp, lanes_backward.comp,
 * backward_matrix.comp). The planner counts what the larger of them takes.
 */
#include "plan/family_vulkan.h"
#include "plan/layout.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const attune__tile backward_tiles[] = {
    ATTUNE__TILES(32, 64, 64, 32, 1, 0), ATTUNE__TILES(32, 32, 64, 32, 1, 0), ATTUNE__TILES(32, 32, 32, 32, 1, 0),
    ATTUNE__TILES(16, 32, 32, 16, 1, 0), ATTUNE__TILES(16, 16, 16, 16, 1, 0), ATTUNE__TILES(4, 8, 8, 4, 1, 0),
};

attune__shaders_workspace attune__shaders_backward_workspace(const attune__shape *shape)
{
    const uint64_t rows = (uint64_t)(shape->batch * shape->heads * shape->q_len);
    attune__shaders_workspace w = {.sums = attune__round_up64(rows * sizeof(float), 256)};
    w.arguments = w.sums + attune__round_up64(shape->capture_gradient_elements * ATTUNE__SHADERS_SUM, 256);
    w.size = w.arguments + ATTUNE__SHADERS_ARGUMENTS;
    return w;
}

const attune__tile *attune__shaders_backward_tiles(const attune__search *search, uint32_t *count)
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

const char *attune__shaders_backward_reject(const attune__search *search, const attune__tile *tile, uint32_t threads,
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

void attune__vulkan_variant(const attune__shape *shape, const attune_plan_choice *choice, attune__variant *variant)
{
    if (choice->direction == ATTUNE_BACKWARD)
        variant->uniform_reads = shape->expr.uniform_reads;
}

uint64_t attune__shaders_backward_shared(const attune__search *search, const attune__tile *tile, uint32_t threads)
{
    attune__backward_layout keys, rows;
    if (layout(search, tile, threads, true, &keys) || layout(search, tile, threads, false, &rows))
        return UINT64_MAX;
    return keys.bytes > rows.bytes ? keys.bytes : rows.bytes;
}

/* Of drivers that run on a CPU, whose compiler unrolls all rows and columns. */
static const attune__tile lanes_tiles[] = {ATTUNE__TILES(16, 8, 8, 16, 1, 1), ATTUNE__TILES(8, 8, 8, 8, 1, 1)};

const attune__tile *attune__vulkan_lanes_backward_tiles(uint32_t *count)
{
    *count = (uint32_t)COUNT(lanes_tiles);
    return lanes_tiles;
}

const char *attune__vulkan_lanes_backward_reject(const attune__search *search, const attune__tile *tile, uint32_t width,
                                                 attune__option *option)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    const int64_t group = s->heads / s->kv_heads, planes = s->kv_batch < s->batch ? group * s->batch : group;
    for (int keys = 0; keys < 2; keys++) {
        const attune__option rows = keys ? ATTUNE__BLOCK_N1 : ATTUNE__BLOCK_M2;
        const attune__option columns = keys ? ATTUNE__BLOCK_M1 : ATTUNE__BLOCK_N2;
        const uint32_t outer_rows = v[rows], inner_rows = v[columns];
        *option = rows;
        if (outer_rows > 16)
            return "it must be at most 16";
        *option = columns;
        if (inner_rows % width || inner_rows > 4 * width)
            return "each lane of the subgroup has one to four of its columns";
        if (s->head_dim % width || s->head_dim_v % width)
            return "the head dimension is no multiple of the subgroup";
        const int64_t most = attune__lanes_backward_most_steps(outer_rows, inner_rows, width, s->head_dim,
                                                               s->head_dim_v, attune__dtype_bytes(s));
        const int64_t steps =
            keys ? planes * ((s->q_len + inner_rows - 1) / inner_rows + 1) : (s->kv_len + inner_rows - 1) / inner_rows;
        if (steps > most)
            return keys ? "there are more queries than the driver lets one workgroup read"
                        : "there are more keys than the driver lets one workgroup read";
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------------------- cooperative matrix */

static const attune__tile matrix_tiles[] = {ATTUNE__TILES(32, 64, 64, 32, 1, 0), ATTUNE__TILES(16, 64, 64, 32, 1, 0),
                                            ATTUNE__TILES(16, 64, 64, 16, 1, 0), ATTUNE__TILES(32, 32, 32, 32, 1, 0),
                                            ATTUNE__TILES(16, 32, 32, 16, 1, 0), ATTUNE__TILES(16, 16, 16, 16, 1, 0),
                                            ATTUNE__TILES(8, 8, 8, 8, 1, 0)};

const attune__tile *attune__vulkan_matrix_backward_tiles(const attune__search *search, uint32_t *count)
{
    /* A driver on a CPU takes seconds to compile the larger tiles. */
    const uint32_t skip = search->limits->host ? (uint32_t)COUNT(matrix_tiles) - 2 : 0;
    *count = (uint32_t)COUNT(matrix_tiles) - skip;
    return matrix_tiles + skip;
}

static const char *matrix_layout(const attune__search *search, const attune__tile *tile, bool keys,
                                 attune__backward_matrix_layout *l)
{
    const attune_limits *limits = search->limits;
    const attune__matrix_shape matrix = {limits->matrix_m, limits->matrix_n, limits->matrix_k, limits->subgroup_size,
                                         limits->fragment_layout};
    const uint32_t *v = tile->value;
    return attune__backward_matrix_layout_make(v[keys ? ATTUNE__BLOCK_N1 : ATTUNE__BLOCK_M2],
                                               v[keys ? ATTUNE__BLOCK_M1 : ATTUNE__BLOCK_N2], v[ATTUNE__NUM_WARPS],
                                               matrix, search->shape->head_dim, search->shape->head_dim_v, keys, l);
}

/* Whether each pass can have the tile, with its sums in registers and the rest in shared memory. */
static bool matrix_fits(const attune__search *search, const attune__tile *tile)
{
    for (int keys = 0; keys < 2; keys++) {
        attune__backward_matrix_layout l;
        if (matrix_layout(search, tile, keys, &l) || l.registers > ATTUNE__MOST_MATRIX_REGISTERS ||
            l.bytes > search->limits->shared_memory)
            return false;
    }
    return true;
}

/* As few subgroups as fit. */
void attune__vulkan_matrix_backward_clamp(const attune__search *search, attune__tile *tile)
{
    uint32_t *warps = &tile->value[ATTUNE__NUM_WARPS];
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS))
        return;
    const uint32_t rows = tile->value[ATTUNE__BLOCK_N1] < tile->value[ATTUNE__BLOCK_M2] ? tile->value[ATTUNE__BLOCK_N1]
                                                                                        : tile->value[ATTUNE__BLOCK_M2];
    const uint32_t fewest = rows / search->limits->matrix_m ? rows / search->limits->matrix_m : 1;
    for (*warps = fewest; *warps <= 4 * fewest; *warps *= 2)
        if (*warps * search->limits->subgroup_size <= search->limits->workgroup_invocations &&
            matrix_fits(search, tile))
            return;
    *warps = fewest;
}

const char *attune__vulkan_matrix_backward_reject(const attune__search *search, const attune__tile *tile,
                                                  attune__option *option)
{
    *option = ATTUNE__NUM_WARPS;
    if (!attune__is_power2(tile->value[ATTUNE__NUM_WARPS]))
        return "it must be a power of two";
    for (int keys = 0; keys < 2; keys++) {
        const attune__option rows = keys ? ATTUNE__BLOCK_N1 : ATTUNE__BLOCK_M2;
        attune__backward_matrix_layout l;
        *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : rows;
        const char *why = matrix_layout(search, tile, keys, &l);
        if (why)
            return why;
        if (l.registers > ATTUNE__MOST_MATRIX_REGISTERS)
            return "its sums do not stay in registers";
    }
    return NULL;
}

uint64_t attune__vulkan_matrix_backward_shared(const attune__search *search, const attune__tile *tile)
{
    uint64_t bytes = 0;
    for (int keys = 0; keys < 2; keys++) {
        attune__backward_matrix_layout l;
        if (matrix_layout(search, tile, keys, &l))
            return UINT64_MAX;
        bytes = l.bytes > bytes ? l.bytes : bytes;
    }
    return bytes;
}
