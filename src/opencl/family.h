/* SPDX-License-Identifier: MIT */
/*
 * A kernel family in this backend: its files and entry points, and the constants that they are compiled with. The
 * planner's table of the same name (plan/family.h) has its tiles. Adding a family is adding a table, and a line to the
 * list in family.c.
 */
#ifndef ATTUNE_OPENCL_FAMILY_H
#define ATTUNE_OPENCL_FAMILY_H

#include "opencl/program.h"
#include "plan/family.h"

typedef struct attune__opencl_entry {
    const char *file, *name; /* of shaders/opencl/ and of the entry point; NULL = the family has no such pass */
} attune__opencl_entry;

typedef struct attune__opencl_family {
    const attune__family *plan;
    attune__opencl_entry forward, backward;
    const char *serving;    /* over a cache: the file of `forward`, where it is another one */
    const char *combine;    /* over a cache: the entry point that merges the parts of tiles */
    uint32_t combine_items; /* elsewhere: items that share four columns of a row when splits are merged; 0 = one */
    bool has_aligned;       /* each pass has a second kernel, for calls whose tensors are aligned */
    /* Adds the constants that other families do not have, with those of the layout. */
    attune_status (*define)(const attune__opencl_device *device, const attune__program_desc *desc,
                            const attune__opencl_tile *tile, bool aligned, attune__opencl_text *text);
    /* Of the kernel for dK and dV (`keys`), or of the one for dQ. */
    attune_status (*define_backward)(const attune__opencl_device *device, const attune__program_desc *desc,
                                     const attune__opencl_tile *tile, bool keys, attune__opencl_text *text);
} attune__opencl_family;

extern const attune__opencl_family attune__opencl_family_lanes, attune__opencl_family_subgroup,
    attune__opencl_family_portable, attune__opencl_family_serving, attune__opencl_family_decode;

/* UNSUPPORTED if this version has no kernel of the choice's family for its pass. */
attune_status attune__opencl_family_find(const attune_plan_choice *choice, const attune__opencl_family **family);

/* On the CPU one kernel tests flags: its compiler takes longer than the tests. */
static inline bool attune__opencl_has_aligned(const attune__opencl_device *device, const attune__opencl_family *family)
{
    return family->has_aligned && !device->base.info.limits.host;
}

/* INTERNAL, with the reason `why` a tile has no layout, since the planner has accepted it; OK for NULL. */
attune_status attune__opencl_layout_check(const attune__program_desc *desc, const attune__opencl_tile *tile,
                                          const char *why);

/* backward.c: the kernels of a backward program. */
attune_status attune__opencl_backward_build(attune__opencl_device *device, const attune__program_desc *desc,
                                            const attune__opencl_family *family, attune__opencl_program *program);

#endif
