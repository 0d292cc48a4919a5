/* SPDX-License-Identifier: MIT */
/* Programs: a prebuilt module, the caller's expressions in it, and the plan's numbers as specialization constants. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/layout.h"
#include "shaders/modules.h"
#include "vulkan/mods.h"
#include "vulkan/vulkan.h"

#define CONSTANTS 28 /* of shaders/forward.comp */
#define ALIGNED   23

typedef struct module {
    const uint32_t *words;
    size_t size; /* bytes */
} module;

#define MODULE(name) {name, sizeof name}

static const module *find_module(bool subgroups, attune_dtype dtype)
{
    static const module modules[2][3] = {
        {MODULE(attune__forward_f32), MODULE(attune__forward_f16), MODULE(attune__forward_bf16)},
        {MODULE(attune__forward_subgroup_f32), MODULE(attune__forward_subgroup_f16),
         MODULE(attune__forward_subgroup_bf16)},
    };
    return &modules[subgroups][dtype == ATTUNE_F32 ? 0 : dtype == ATTUNE_F16 ? 1 : 2];
}

static const module *find_combine(attune_dtype dtype)
{
    static const module modules[3] = {MODULE(attune__combine_f32), MODULE(attune__combine_f16),
                                      MODULE(attune__combine_bf16)};
    return &modules[dtype == ATTUNE_F32 ? 0 : dtype == ATTUNE_F16 ? 1 : 2];
}

static attune_status scalar_constants(const attune__program_desc *desc, bool subgroups, uint32_t constants[CONSTANTS])
{
    const attune_plan_choice *c = desc->choice;
    attune__scalar_layout l;
    const char *why = attune__scalar_layout_make(c->block_m, c->block_n, c->workgroup_invocations, desc->shape->head_dim,
                                                 desc->shape->head_dim_v, subgroups, &l);
    if (why)
        return attune__fail(ATTUNE_INTERNAL, "%s: BLOCK_M %u x BLOCK_N %u: %s", c->kernel, c->block_m, c->block_n, why);
    const uint32_t values[CONSTANTS] = {
        l.threads,    l.block_m, l.block_n,     l.head_dim,  l.head_dim_v,           l.slice, l.chunk, l.tx, l.ty, l.tm,
        l.to,         l.parts,   l.part,        l.s_stride,  l.o_size,               l.slice_size, l.s_size,
        l.rows_size,  l.reduce_size ? l.reduce_size : 1, desc->shape->block_mask,    desc->mask != NULL,
        desc->score != NULL, c->prescale_qk, false, c->decode,
        l.fetch_qk, l.fetch_v, l.fetch_qk > l.fetch_v ? l.fetch_qk : l.fetch_v,
    };
    memcpy(constants, values, sizeof values);
    return ATTUNE_OK;
}

attune_status attune__vulkan_program_create(attune_device *device, const attune__program_desc *desc,
                                            attune__program **program)
{
    const attune_allocator *allocator = &device->host.allocator;
    const bool subgroups = !strcmp(desc->choice->kernel, "vulkan_subgroup");
    uint32_t constants[CONSTANTS];
    ATTUNE__TRY(scalar_constants(desc, subgroups, constants));
    const size_t table = desc->score ? attune__mods_table_size(desc->score) : 0;
    if (table + 512 > ATTUNE__VULKAN_ARGUMENTS)
        return attune__fail(ATTUNE_INTERNAL, "the score expression's table has %zu bytes", table);

    uint32_t *spliced = NULL;
    size_t words = 0;
    attune__vulkan_program *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->shape = *desc->shape;
    made->choice = *desc->choice;
    made->score = desc->score;

    const module *m = find_module(subgroups, desc->shape->dtype);
    attune_status status =
        attune__mods_splice(allocator, m->words, m->size / 4, desc->mask, desc->score, &spliced, &words);
    if (status == ATTUNE_OK)
        status = attune__vulkan_pipeline_create(device, spliced, words * 4, constants, CONSTANTS, subgroups,
                                                &made->pipeline);
    if (status == ATTUNE_OK && ((attune__vulkan_device *)device)->runs_both_sides) {
        constants[ALIGNED] = true;
        status = attune__vulkan_pipeline_create(device, spliced, words * 4, constants, CONSTANTS, subgroups,
                                                &made->aligned);
    }
    if (status == ATTUNE_OK && desc->choice->split_kv > 1) {
        const module *combine = find_combine(desc->shape->dtype);
        status = attune__vulkan_pipeline_create(device, combine->words, combine->size, constants, CONSTANTS, false,
                                                &made->combine);
    }
    attune__free(allocator, spliced);
    if (status == ATTUNE_OK)
        *program = &made->base;
    else
        attune__vulkan_program_destroy(&made->base);
    return status;
}

void attune__vulkan_program_destroy(attune__program *program)
{
    attune__vulkan_program *mine = (attune__vulkan_program *)program;
    const attune_allocator allocator = program->device->host.allocator;
    attune__vulkan_pipeline_destroy(program->device, mine->pipeline);
    attune__vulkan_pipeline_destroy(program->device, mine->aligned);
    attune__vulkan_pipeline_destroy(program->device, mine->combine);
    attune__free(&allocator, mine);
}
