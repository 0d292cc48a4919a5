/* SPDX-License-Identifier: MIT */
/* The list of families. */
#include "opencl/family.h"

#include <string.h>

#include "base/error.h"

static const attune__opencl_family *const families[] = {
    &attune__opencl_family_lanes,   &attune__opencl_family_subgroup, &attune__opencl_family_portable,
    &attune__opencl_family_serving, &attune__opencl_family_decode,
};

attune_status attune__opencl_family_find(const attune_plan_choice *choice, const attune__opencl_family **family)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        const attune__opencl_family *f = families[i];
        const attune__opencl_entry *entry = choice->direction == ATTUNE_BACKWARD ? &f->backward : &f->forward;
        if (!strcmp(f->plan->name, choice->kernel) && entry->file) {
            *family = f;
            return ATTUNE_OK;
        }
    }
    return attune__fail(ATTUNE_UNSUPPORTED, "this version has no %s kernel for this pass", choice->kernel);
}

attune_status attune__opencl_layout_check(const attune__program_desc *desc, const attune__opencl_tile *tile,
                                          const char *why)
{
    return why ? attune__fail(ATTUNE_INTERNAL, "%s: a tile of %u x %u: %s", desc->choice->kernel, tile->block_m,
                              tile->block_n, why)
               : ATTUNE_OK;
}
