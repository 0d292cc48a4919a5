/* SPDX-License-Identifier: MIT */
/* Programs: a prebuilt module, the caller's expressions in it, and the plan's numbers as specialization constants. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "vulkan/family.h"
#include "vulkan/launch.h"
#include "vulkan/mods.h"

#include "shaders/combine.h"

attune_status attune__vulkan_specialise(const attune_limits *limits, const attune__program_desc *desc, bool aligned,
                                        attune__vulkan_kernel *kernel)
{
    const attune__vulkan_family *family = NULL;
    ATTUNE__TRY(attune__vulkan_family_find(desc->choice, &family));
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): family_find succeeded */
    const attune__vulkan_module prebuilt =
        desc->shape->tokens ? family->serving : family->forward(limits, desc->shape->k_dtype);
    if (!prebuilt.words)
        return attune__fail(ATTUNE_UNSUPPORTED, "%s was not compiled into this library", desc->choice->kernel);
    const attune_plan_choice *c = desc->choice;
    const attune__vulkan_common common = {
        .THREADS = c->workgroup_invocations,
        .BLOCK_M = c->block_m,
        .BLOCK_N = c->block_n,
        .HEAD_DIM = desc->shape->head_dim,
        .HEAD_DIM_V = desc->shape->head_dim_v,
        .BLOCKS = desc->shape->block_mask && !desc->shape->tokens,
        .MASK = desc->mask != NULL,
        .SCORE = desc->score != NULL,
        .PRESCALE = c->prescale_qk,
        .ALIGNED = aligned,
        .PACKED = c->decode || desc->shape->tokens,
        .Q_TYPE = attune__vulkan_dtype_index(desc->shape->q_dtype),
        .O_TYPE = attune__vulkan_dtype_index(attune__shape_output(desc->shape)),
        .K_TYPE = attune__key_type(desc->shape->k_dtype),
        .V_TYPE = attune__key_type(desc->shape->v_dtype),
    };
    memset(kernel, 0, sizeof *kernel);
    kernel->words = prebuilt.words;
    kernel->word_count = prebuilt.count;
    kernel->subgroups = family->subgroups;
    attune__vulkan_set_common(&common, kernel->constants);
    /* The path for any alignment is rarely taken: a GPU's driver should not spend as long on it as on the other. */
    const bool flat = !aligned && !limits->host;
    const char *why = family->set_forward ? family->set_forward(limits, desc, flat, kernel->constants) : NULL;
    return !why ? ATTUNE_OK
                : attune__fail(ATTUNE_INTERNAL, "%s: BLOCK_M %u x BLOCK_N %u: %s", c->kernel, c->block_m, c->block_n,
                               why);
}

static void bound_steps(const attune__vulkan_family *family, const attune_limits *limits,
                        const attune__program_desc *desc, attune__vulkan_program *program)
{
    if (desc->choice->direction == ATTUNE_FORWARD) {
        program->most_steps = family->most_steps(limits, desc);
    } else {
        program->most_steps = family->most_backward_steps(limits, desc, false);
        program->most_key_steps = family->most_backward_steps(limits, desc, true);
    }
}

static attune_status add_pipelines(attune_device *device, const attune__program_desc *desc,
                                   attune__vulkan_program *program, attune__vulkan_pipelines *list)
{
    if (desc->choice->direction == ATTUNE_BACKWARD)
        return attune__vulkan_backward_pipelines(device, desc, program, list);
    attune__vulkan_kernel kernels[2];
    for (int aligned = 0; aligned < 2; aligned++)
        ATTUNE__TRY(attune__vulkan_specialise(&device->info.limits, desc, aligned, &kernels[aligned]));
    ATTUNE__TRY(attune__vulkan_pipelines_pair(device, list, desc, kernels, &program->forward, &program->aligned));
    if (desc->shape->tokens)
        ATTUNE__TRY(attune__vulkan_append_pipeline(device, &kernels[0], program, list));
    if (program->parts.slots)
        ATTUNE__TRY(attune__vulkan_schedule_pipelines(device, &kernels[0], program, list));
    if (desc->choice->split_kv <= 1)
        return ATTUNE_OK;
    static const attune__vulkan_module combine = ATTUNE__VULKAN_MODULE(attune__spirv_combine);
    return attune__vulkan_pipelines_prebuilt(device, list, &combine, "combine", kernels[0].constants,
                                             &program->combine);
}

static attune_status create(attune_device *device, const attune__program_desc *desc, attune__vulkan_pipelines *list,
                            attune__program **program)
{
    const attune_expr *mask = desc->shape->tokens ? desc->mask : NULL;
    const size_t table =
        (desc->score ? attune__mods_table_size(desc->score) : 0) +
        (desc->shape->tokens ? sizeof(attune_vulkan_serving) + (mask ? attune__mods_table_size(mask) : 0) : 0);
    const size_t sums = desc->gradient && desc->score ? desc->score->symbol_count * sizeof(attune_vulkan_sums) : 0;
    if (table + sizeof(attune_vulkan_arguments) + sums > ATTUNE__SHADERS_ARGUMENTS)
        return attune__fail(ATTUNE_INTERNAL, "the tables of the expressions have %zu bytes", table);
    const attune__vulkan_family *family = NULL;
    ATTUNE__TRY(attune__vulkan_family_find(desc->choice, &family));
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): family_find succeeded */
    if (family->require)
        ATTUNE__TRY(family->require(attune__vulkan_of(device)));
    attune__vulkan_program *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->shape = *desc->shape;
    made->choice = *desc->choice;
    made->score = desc->score;
    made->mask = mask;
    made->gradient = desc->gradient;
    made->near_keys = family->near_keys;
    made->parts = attune__shaders_parts_make(desc->shape, &device->info.limits, desc->choice->block_m);
    if (attune__vulkan_of(device)->physical.driver == VK_DRIVER_ID_MESA_LLVMPIPE)
        bound_steps(family, &attune__vulkan_of(device)->physical.info.limits, desc, made);
    *program = &made->base;
    return add_pipelines(device, desc, made, list);
}

attune_status attune__vulkan_programs_create(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                             attune__program **programs)
{
    attune__vulkan_pipelines list = {.count = 0};
    attune_status status = ATTUNE_OK;
    for (uint32_t i = 0; i < count && status == ATTUNE_OK; i++)
        status = create(device, &descs[i], &list, &programs[i]);
    return attune__vulkan_pipelines_make(attune__vulkan_of(device), &list, status);
}

void attune__vulkan_program_destroy(attune__program *program)
{
    attune__vulkan_program *mine = (attune__vulkan_program *)program;
    const attune_allocator allocator = program->device->host.allocator;
    attune__vulkan_device *device = attune__vulkan_of(program->device);
    attune__vulkan_pipeline_destroy(device, &mine->forward);
    attune__vulkan_pipeline_destroy(device, &mine->aligned);
    attune__vulkan_pipeline_destroy(device, &mine->combine);
    attune__vulkan_pipeline_destroy(device, &mine->delta);
    attune__vulkan_pipeline_destroy(device, &mine->keys);
    attune__vulkan_pipeline_destroy(device, &mine->keys_aligned);
    attune__vulkan_pipeline_destroy(device, &mine->sums);
    attune__vulkan_pipeline_destroy(device, &mine->sinks);
    attune__vulkan_pipeline_destroy(device, &mine->schedule);
    attune__vulkan_pipeline_destroy(device, &mine->merge);
    attune__vulkan_pipeline_destroy(device, &mine->append);
    if (mine->append_arguments)
        attune__vulkan_buffer_destroy(mine->append_arguments);
    attune__free(&allocator, mine);
}
