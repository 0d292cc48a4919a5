/* SPDX-License-Identifier: MIT */
/* Programs: nothing is compiled; a program holds the choice and the expressions. */
#include "cpu/cpu.h"

#include "base/alloc.h"
#include "base/error.h"

static attune_status create(attune_device *device, const attune__program_desc *desc, attune__program **program)
{
    attune__cpu_program *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->shape = *desc->shape;
    made->choice = *desc->choice;
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
