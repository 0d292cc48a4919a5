/* SPDX-License-Identifier: MIT */
/* Programs: nothing is compiled; a program holds the choice and the expressions. */
#include "cpu/cpu.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* The kernels that a family is named after. */
static const attune__cpu_matrix *matrix_of(const attune__cpu_device *device, const char *kernel)
{
    const attune__cpu_matrix *all[] = {&device->amx, &device->bf16};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->name && !strcmp(all[i]->name, kernel))
            return all[i];
    return NULL;
}

static attune_status create(attune_device *device, const attune__program_desc *desc, attune__program **program)
{
    attune__cpu_program *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->shape = *desc->shape;
    made->choice = *desc->choice;
    made->matrix = matrix_of((const attune__cpu_device *)device, desc->choice->kernel);
    made->score = desc->score;
    made->mask = desc->shape->tokens ? desc->mask : NULL;
    made->gradient = desc->gradient;
    made->weight = desc->shape->expr.score.weight + desc->shape->expr.slope.weight;
    *program = &made->base;
    return ATTUNE_OK;
}

attune_status attune__cpu_programs_create(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                          attune__program **programs)
{
    for (uint32_t i = 0; i < count; i++)
        ATTUNE__TRY(create(device, &descs[i], &programs[i]));
    return ATTUNE_OK;
}

void attune__cpu_program_destroy(attune__program *program)
{
    const attune_allocator allocator = program->device->host.allocator;
    attune__free(&allocator, program);
}
