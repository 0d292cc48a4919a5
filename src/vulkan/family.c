/* SPDX-License-Identifier: MIT */
/* The list of families. */
#include "vulkan/family.h"

#include <string.h>

#include "base/error.h"

static const attune__vulkan_family *const families[] = {
    &attune__vulkan_family_coopmat,  &attune__vulkan_family_lanes,    &attune__vulkan_family_decode,
    &attune__vulkan_family_subgroup, &attune__vulkan_family_portable,
};

attune_status attune__vulkan_family_find(const attune_plan_choice *choice, const attune__vulkan_family **family)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        const attune__vulkan_family *f = families[i];
        if (!strcmp(f->plan->name, choice->kernel) && (choice->direction == ATTUNE_FORWARD || f->backward)) {
            *family = f;
            return ATTUNE_OK;
        }
    }
    return attune__fail(ATTUNE_UNSUPPORTED, "this version has no %s kernel for this pass", choice->kernel);
}
