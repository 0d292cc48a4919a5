/* SPDX-License-Identifier: MIT */
/*
 * A kernel family in this backend: the prebuilt modules of its passes, the specialisation constants of their layouts,
 * and the bounds on their loops. The planner's table of the same name (plan/family.h) has its tiles. Adding a family is
 * adding a table, and a line to the list in family.c.
 */
#ifndef ATTUNE_VULKAN_FAMILY_H
#define ATTUNE_VULKAN_FAMILY_H

#include "plan/family.h"
#include "vulkan/launch.h"

typedef struct attune__vulkan_family {
    const attune__family *plan;
    bool subgroups, backward_subgroups; /* whether forward and decode, and backward, need the subgroups' size */
    /* Refuses a device on which the modules would be wrong; NULL = none. */
    attune_status (*require)(attune__vulkan_device *device);

    /* The module of forward and decode. `words` NULL = it was not compiled into this library. */
    attune__vulkan_module (*forward)(const attune_limits *limits, attune_dtype dtype);
    attune__vulkan_module serving; /* over a cache, likewise */
    /* Whether the kernel for aligned tensors reads keys and values by offsets of 32 bits from a head's first row, and
     * the last key in place of one past it. */
    bool near_keys;
    /* Writes the constants of the layout, by id. Returns why the tile has none, or NULL. flat: with as few unrolled
     * loops as possible. The function is NULL for kernels without a layout. */
    const char *(*set_forward)(const attune_limits *limits, const attune__program_desc *desc, bool flat,
                               uint32_t *constants);

    /* Of the kernel for dK and dV (`keys`), or of the one for dQ; NULL = the family has no such pass. */
    attune__vulkan_module (*backward)(bool keys, attune_dtype dtype);
    const char *(*set_backward)(const attune_limits *limits, const attune__program_desc *desc, bool keys,
                                uint32_t *constants);

    /*
     * Mesa's llvmpipe ends all loops of a shader after 65,535 iterations in total (gallivm's
     * LP_MAX_TGSI_LOOP_ITERATIONS), silently: rows would lack their last keys. These are the largest numbers of tiles
     * of keys, and in backward of inner tiles, that keep a workgroup below that; 0 = no bound. There may be NaN in
     * every chunk of V. Each loop's last test is counted, and all counts are doubled, since compilers unroll
     * differently.
     */
    uint32_t (*most_steps)(const attune_limits *limits, const attune__program_desc *desc);
    uint32_t (*most_backward_steps)(const attune_limits *limits, const attune__program_desc *desc, bool keys);
} attune__vulkan_family;

extern const attune__vulkan_family attune__vulkan_family_portable, attune__vulkan_family_subgroup,
    attune__vulkan_family_decode, attune__vulkan_family_lanes, attune__vulkan_family_coopmat;

/* UNSUPPORTED if this version has no kernel of the choice's family for its pass. */
attune_status attune__vulkan_family_find(const attune_plan_choice *choice, const attune__vulkan_family **family);

/* Rows of the outer tile and of the inner tile of a backward kernel. */
static inline uint32_t attune__vulkan_outer_rows(const attune_plan_choice *choice, bool keys)
{
    return keys ? choice->block_n1 : choice->block_m2;
}

static inline uint32_t attune__vulkan_inner_rows(const attune_plan_choice *choice, bool keys)
{
    return keys ? choice->block_m1 : choice->block_n2;
}

#endif
