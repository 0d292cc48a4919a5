/* SPDX-License-Identifier: MIT */
/*
 * OpenCL. opencl_portable and opencl_subgroup have the tiles of Vulkan's kernels of those names (family_shaders.h).
 * opencl_lanes is for drivers that run on the CPU (shaders/opencl/lanes.h): a lane has whole rows. Such a driver either
 * has vectors of a processor's registers in an item, and a workgroup is then one item, or it runs the items of a
 * workgroup as the lanes of a vector, and they exchange elements by shuffles. opencl_serving, of every device, has the
 * first form on the former and a row for each item elsewhere.
 */
#include "plan/family_opencl.h"
#include "plan/layout.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const attune__tile lanes_forward[] = {
    ATTUNE__TILE(32, 64, 1, 1),
    ATTUNE__TILE(32, 32, 1, 1),
    ATTUNE__TILE(32, 16, 1, 1),
    ATTUNE__TILE(32, 8, 1, 1),
};

static const attune__tile lanes_backward[] = {
    ATTUNE__TILES(32, 32, 32, 32, 1, 1),
    ATTUNE__TILES(16, 32, 32, 16, 1, 1),
    ATTUNE__TILES(8, 32, 32, 8, 1, 1),
};

static const attune__tile *lanes_tiles(const attune__search *search, uint32_t *count)
{
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        *count = COUNT(lanes_backward);
        return lanes_backward;
    }
    *count = COUNT(lanes_forward);
    return lanes_forward;
}

static const char *lanes_reject_problem(const attune__search *search)
{
    const attune_limits *limits = search->limits;
    const uint32_t lanes = limits->subgroup_size;
    return lanes == 4 || lanes == 8 || (lanes == 16 && !limits->subgroup_operations)
               ? NULL
               : "it needs vectors of 4, 8 or 16 floats, or shuffles of 4 or 8 lanes";
}

/* Two rows of each lane: an element of an inner row is read once for them. */
static void clamp_outer(const attune__search *search, attune__tile *tile, attune__option option)
{
    const uint32_t rows = 2 * search->limits->subgroup_size;
    if (!(search->forced & ATTUNE__BIT(option)) && tile->value[option] > rows)
        tile->value[option] = rows;
}

static void lanes_clamp(const attune__search *search, attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t q = s->block_mask ? s->mask_q_block : 1024, kv = s->block_mask ? s->mask_kv_block : 1024;
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        clamp_outer(search, tile, ATTUNE__BLOCK_N1);
        clamp_outer(search, tile, ATTUNE__BLOCK_M2);
        attune__clamp_tile(search, tile, 8);
        return;
    }
    clamp_outer(search, tile, ATTUNE__BLOCK_M);
    if (search->pass == ATTUNE__PASS_DECODE)
        attune__clamp_decode(search, tile, 1);
    else
        attune__clamp_number(search, tile, ATTUNE__BLOCK_M, q, s->q_len, 1);
    attune__clamp_number(search, tile, ATTUNE__BLOCK_N, kv, s->kv_len, 8);
}

static const char *layout(const attune__search *search, const attune__tile *tile, attune__option outer,
                          attune__option inner, attune__lanes_layout *l)
{
    const attune_limits *limits = search->limits;
    return attune__lanes_layout_make(tile->value[outer], tile->value[inner], limits->subgroup_size,
                                     limits->subgroup_operations, search->shape->head_dim, search->shape->head_dim_v,
                                     attune__dtype_bytes(search->shape), l);
}

/* In backward both kernels have the tile's numbers, the larger arrays count. */
static const char *lanes_layout(const attune__search *search, const attune__tile *tile, attune__option *option,
                                uint64_t *bytes)
{
    static const attune__option forward[][2] = {{ATTUNE__BLOCK_M, ATTUNE__BLOCK_N}};
    static const attune__option backward[][2] = {{ATTUNE__BLOCK_N1, ATTUNE__BLOCK_M1},
                                                 {ATTUNE__BLOCK_M2, ATTUNE__BLOCK_N2}};
    const bool both = search->pass == ATTUNE__PASS_BACKWARD;
    *bytes = 0;
    for (uint32_t i = 0; i < (both ? 2 : 1); i++) {
        const attune__option *rows = both ? backward[i] : forward[i];
        attune__lanes_layout l;
        const char *why = layout(search, tile, rows[0], rows[1], &l);
        *option = tile->value[rows[1]] < 8 ? rows[1] : rows[0];
        if (why)
            return why;
        *bytes = l.bytes > *bytes ? l.bytes : *bytes;
    }
    return NULL;
}

static const char *lanes_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    uint64_t bytes;
    const char *why = attune__reject_numbers(search, tile, 0, 128, option);
    return why ? why : lanes_layout(search, tile, option, &bytes);
}

static attune__cost lanes_cost(const attune__search *search, const attune__tile *tile)
{
    const attune_limits *limits = search->limits;
    attune__option option;
    attune__cost cost = {.invocations = limits->subgroup_operations ? limits->subgroup_size : 1};
    if (lanes_layout(search, tile, &option, &cost.shared))
        cost.shared = UINT64_MAX;
    return cost;
}

#define LOOP ATTUNE__SHADERS_LOOP

const attune__family attune__opencl_lanes = {
    .name = "opencl_lanes",
    .backend = ATTUNE_BACKEND_OPENCL,
    .host = true,
    .sinks = true,
    .heads_above_256 = true,
    .dtypes = ATTUNE__DENSE_DTYPES,
    .mixes = 1u << ATTUNE__PASS_FORWARD | 1u << ATTUNE__PASS_DECODE,
    .reject_problem = lanes_reject_problem,
    .options = {LOOP | ATTUNE__FORWARD_TILE, LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__SPLIT_KV),
                LOOP | ATTUNE__BACKWARD_TILES | ATTUNE__BIT(ATTUNE__WRITE_DQ)},
    .tiles = lanes_tiles,
    .clamp = lanes_clamp,
    .reject_tile = lanes_reject_tile,
    .cost = lanes_cost,
    .workspace = attune__shaders_workspace_bytes,
};

/* ---------------------------------------------------------------------------------------------- portable, subgroup */

const attune__family attune__opencl_portable = {
    .name = "opencl_portable",
    .backend = ATTUNE_BACKEND_OPENCL,
    .sinks = true,
    .heads_above_256 = true,
    .dtypes = ATTUNE__DENSE_DTYPES,
    .mixes = 1u << ATTUNE__PASS_FORWARD | 1u << ATTUNE__PASS_DECODE,
    .options = {LOOP | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__FORWARD_TILE,
                LOOP | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__SPLIT_KV),
                LOOP | ATTUNE__BACKWARD_TILES | ATTUNE__BIT(ATTUNE__WRITE_DQ)},
    .tiles = attune__shaders_tiles,
    .clamp = attune__shaders_portable_clamp,
    .reject_tile = attune__shaders_portable_reject,
    .cost = attune__shaders_portable_cost,
    .workspace = attune__shaders_workspace_bytes,
};

/* Forward and decode alone: no device has shown what subgroups save in backward. */
const attune__family attune__opencl_subgroup = {
    .name = "opencl_subgroup",
    .backend = ATTUNE_BACKEND_OPENCL,
    .sinks = true,
    .heads_above_256 = true,
    .subgroups = true,
    .dtypes = ATTUNE__DENSE_DTYPES,
    .mixes = 1u << ATTUNE__PASS_FORWARD | 1u << ATTUNE__PASS_DECODE,
    .options = {LOOP | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__FORWARD_TILE,
                LOOP | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__SPLIT_KV)},
    .tiles = attune__shaders_tiles,
    .clamp = attune__shaders_subgroup_clamp,
    .reject_tile = attune__shaders_subgroup_reject,
    .cost = attune__shaders_subgroup_cost,
    .workspace = attune__shaders_workspace_bytes,
};

/* --------------------------------------------------------------------------------------------------------- serving */

/* Fewer keys than opencl_lanes has: a tile is staged whole, and sequences are short as a rule. */
static const attune__tile serving_forward[] = {
    ATTUNE__TILE(32, 32, 1, 1),
    ATTUNE__TILE(32, 16, 1, 1),
    ATTUNE__TILE(32, 8, 1, 1),
    ATTUNE__TILE(32, 4, 1, 1),
};

static const attune__tile *serving_tiles(const attune__search *search, uint32_t *count)
{
    (void)search;
    *count = COUNT(serving_forward);
    return serving_forward;
}

uint32_t attune__opencl_serving_width(const attune_limits *limits)
{
    const uint32_t lanes = limits->subgroup_size;
    return limits->host && !limits->subgroup_operations && (lanes == 4 || lanes == 8 || lanes == 16) ? lanes : 1;
}

static uint32_t serving_threads(const attune_limits *limits)
{
    const uint32_t most = attune__floor2(limits->workgroup_invocations);
    return attune__opencl_serving_width(limits) > 1 ? 1 : most < 32 ? most : 32;
}

/* As many rows as there are lanes, and twice as many in vectors. */
static void serving_clamp(const attune__search *search, attune__tile *tile)
{
    const uint32_t width = attune__opencl_serving_width(search->limits),
                   rows = width > 1 ? 2 * width : serving_threads(search->limits);
    if (!(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M)) && tile->value[ATTUNE__BLOCK_M] > rows)
        tile->value[ATTUNE__BLOCK_M] = rows;
    attune__clamp_decode(search, tile, 1);
    /* Rows of other sequences have the lanes that are there anyway: a second vector would take its time in every item.
     */
    const int64_t own = search->shape->q_len * attune__shape_packed_heads(search->shape);
    if (!(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M)) && width > 1 && own <= width &&
        tile->value[ATTUNE__BLOCK_M] > width)
        tile->value[ATTUNE__BLOCK_M] = width;
    attune__clamp_number(search, tile, ATTUNE__BLOCK_N, 1024, search->shape->kv_len, 8);
}

static const char *serving_layout(const attune__search *search, const attune__tile *tile, attune__lanes_layout *l)
{
    return attune__lanes_serving_layout_make(tile->value[ATTUNE__BLOCK_M], tile->value[ATTUNE__BLOCK_N],
                                             attune__opencl_serving_width(search->limits),
                                             serving_threads(search->limits), search->shape->head_dim,
                                             search->shape->head_dim_v, search->shape->shared_sequences > 1, l);
}

/* Mesa's llvmpipe, below rusticl, silently ends all loops of a kernel after 65,535 iterations in total. Those that are
 * not unrolled: of a key, of a tile of keys, and of the rows. */
static bool serving_loops_fit(const attune__search *search, const attune__tile *tile, const attune__lanes_layout *l)
{
    const int64_t d = search->shape->head_dim, dv = search->shape->head_dim_v, n = tile->value[ATTUNE__BLOCK_N];
    const int64_t vectors = l->VECTORS, part = 8 * (int64_t)serving_threads(search->limits);
    const int64_t staged = (d + part - 1) / part + (dv + part - 1) / part;
    const int64_t of_key = d / l->DEPTH + dv / 8 + vectors * dv + staged + 5 * vectors + 5;
    /* The rows of several sequences are found once, and their mask is bounded for each sequence. */
    const int64_t rows = search->shape->shared_sequences > 1 ? tile->value[ATTUNE__BLOCK_M] : 0;
    const int64_t of_tile = n * of_key + (1 + vectors) * dv + vectors + 6 + rows;
    const int64_t of_rows = vectors * (2 * d + dv + dv / 4 + 6) + 3 * rows;
    return !search->limits->host || l->WIDTH > 1 || (search->shape->kv_len + n - 1) / n * of_tile + of_rows <= 65535;
}

static const char *serving_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    attune__lanes_layout l;
    const char *why = attune__reject_numbers(search, tile, 0, 128, option);
    if (why)
        return why;
    *option = ATTUNE__BLOCK_N;
    if (search->shape->split_keys % tile->value[ATTUNE__BLOCK_N])
        return "it must divide problem.split_keys";
    *option = tile->value[ATTUNE__BLOCK_N] < 4 ? ATTUNE__BLOCK_N : ATTUNE__BLOCK_M;
    why = serving_layout(search, tile, &l);
    if (why || serving_loops_fit(search, tile, &l))
        return why;
    *option = search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M) ? ATTUNE__BLOCK_M : ATTUNE__BLOCK_N;
    return "there are more keys than the driver lets one workgroup read";
}

static attune__cost serving_cost(const attune__search *search, const attune__tile *tile)
{
    attune__lanes_layout l;
    const bool has_layout = !serving_layout(search, tile, &l);
    return (attune__cost){.invocations = serving_threads(search->limits), .shared = has_layout ? l.bytes : UINT64_MAX};
}

const attune__family attune__opencl_serving = {
    .name = "opencl_serving",
    .backend = ATTUNE_BACKEND_OPENCL,
    .sinks = true,
    .serving = true,
    .serving_only = true,
    .fixed_splits = true,
    .shares = true,
    .heads_above_256 = true,
    .dtypes = ATTUNE__CACHE_DTYPES,
    .mixes = 1u << ATTUNE__PASS_FORWARD,
    .options = {LOOP | ATTUNE__FORWARD_TILE},
    .tiles = serving_tiles,
    .clamp = serving_clamp,
    .reject_tile = serving_reject_tile,
    .cost = serving_cost,
    .workspace = attune__shaders_workspace_bytes,
};
