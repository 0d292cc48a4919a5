/* SPDX-License-Identifier: MIT */
/* The list of families. */
#include "cuda/family.h"

#include <string.h>

#include "plan/family.h"

static const attune__cuda_family *const families[] = {
    &attune__cuda_family_sm100a,      &attune__cuda_family_sm90a, &attune__cuda_family_serving_sm90a,
    &attune__cuda_family_sm80_atomic, &attune__cuda_family_sm80,
};

const attune__cuda_family *attune__cuda_family_find(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (!strcmp(families[i]->plan->name, name))
            return families[i];
    return NULL;
}
