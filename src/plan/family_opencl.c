/* SPDX-License-Identifier: MIT */
/*
 * OpenCL, of drivers that run on the CPU (shaders/opencl/lanes.h): a lane has whole rows. Such a driver either has
 * vectors of a processor's registers in an item, and a workgroup is then one item, or it runs the items of a workgroup
 * as the lanes of a vector, and they exchange elements by shuffles.
 */
#include "plan/family.h"
#include "plan/layout.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const attune__tile lanes_forward[] = {
    ATTUNE__TILE(32, 64, 1, 1),
    ATTUNE__TILE(32, 32, 1, 1),
    ATTUNE__TILE(32, 16, 1, 1),
    ATTUNE__TILE(32, 8, 1, 1),
};

static const attune__tile *lanes_tiles(const attune__search *search, uint32_t *count)
{
    (void)search;
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

/* Two rows of each lane: an element of K or V is read once for them. */
static void lanes_clamp(const attune__search *search, attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t rows = 2 * search->limits->subgroup_size;
    const uint32_t q = s->block_mask ? s->mask_q_block : 1024, kv = s->block_mask ? s->mask_kv_block : 1024;
    if (!(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M)) && tile->value[ATTUNE__BLOCK_M] > rows)
        tile->value[ATTUNE__BLOCK_M] = rows;
    if (search->pass == ATTUNE__PASS_DECODE)
        attune__clamp_decode(search, tile, 1);
    else
        attune__clamp_number(search, tile, ATTUNE__BLOCK_M, q, s->q_len, 1);
    attune__clamp_number(search, tile, ATTUNE__BLOCK_N, kv, s->kv_len, 8);
}

static const char *lanes_layout(const attune__search *search, const attune__tile *tile, attune__lanes_layout *layout)
{
    const attune_limits *limits = search->limits;
    return attune__lanes_layout_make(tile->value[ATTUNE__BLOCK_M], tile->value[ATTUNE__BLOCK_N], limits->subgroup_size,
                                     limits->subgroup_operations, search->shape->head_dim, search->shape->head_dim_v,
                                     attune__dtype_bytes(search->shape), layout);
}

static const char *lanes_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    attune__lanes_layout layout;
    const char *why = attune__reject_numbers(search, tile, 0, 128, option);
    if (why)
        return why;
    *option = tile->value[ATTUNE__BLOCK_N] < 8 ? ATTUNE__BLOCK_N : ATTUNE__BLOCK_M;
    return lanes_layout(search, tile, &layout);
}

static attune__cost lanes_cost(const attune__search *search, const attune__tile *tile)
{
    const attune_limits *limits = search->limits;
    attune__lanes_layout layout;
    const char *why = lanes_layout(search, tile, &layout);
    return (attune__cost){.shared = why ? UINT64_MAX : layout.bytes,
                          .invocations = limits->subgroup_operations ? limits->subgroup_size : 1};
}

#define LOOP ATTUNE__BIT(ATTUNE__PRESCALE_QK)

const attune__family attune__opencl_lanes = {
    .name = "opencl_lanes",
    .backend = ATTUNE_BACKEND_OPENCL,
    .host = true,
    .dtypes = 1u << ATTUNE_F32 | 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .mixes = 1u << ATTUNE__PASS_FORWARD | 1u << ATTUNE__PASS_DECODE,
    .reject_problem = lanes_reject_problem,
    .options = {LOOP | ATTUNE__FORWARD_TILE, LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__SPLIT_KV), 0},
    .tiles = lanes_tiles,
    .clamp = lanes_clamp,
    .reject_tile = lanes_reject_tile,
    .cost = lanes_cost,
    .workspace = attune__vulkan_workspace_bytes,
};
