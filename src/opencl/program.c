/* SPDX-License-Identifier: MIT */
/* The kernels of a choice: its constants and expressions as text, built, and launched once with nothing to do. */
#include "opencl/program.h"

#include "base/alloc.h"
#include "base/error.h"
#include "opencl/family.h"

/* Constants that all attention kernels have, but those of the tile. */
static void add_common(const attune__program_desc *desc, bool aligned, attune__opencl_text *text)
{
    const attune_plan_choice *c = desc->choice;
    attune__opencl_add_define(text, "HEAD_DIM", desc->shape->head_dim);
    attune__opencl_add_define(text, "HEAD_DIM_V", desc->shape->head_dim_v);
    attune__opencl_add_define(text, "BLOCKS", desc->shape->block_mask && !desc->shape->tokens);
    attune__opencl_add_define(text, "MASK", desc->mask != NULL);
    attune__opencl_add_define(text, "SCORE", desc->score != NULL);
    attune__opencl_add_define(text, "PRESCALE", c->prescale_qk);
    attune__opencl_add_define(text, "ALIGNED", aligned);
    attune__opencl_add_define(text, "PACKED", c->decode || desc->shape->tokens);
    if (desc->shape->tokens) {
        attune__opencl_add_define(text, "K_TYPE", attune__key_type(desc->shape->k_dtype));
        attune__opencl_add_define(text, "V_TYPE", attune__key_type(desc->shape->v_dtype));
    } else {
        attune__opencl_add_define(text, "TYPE", attune__opencl_dtype_index(desc->shape->k_dtype));
    }
    attune__opencl_add_define(text, "Q_TYPE", attune__opencl_dtype_index(desc->shape->q_dtype));
    attune__opencl_add_define(text, "O_TYPE", attune__opencl_dtype_index(attune__shape_output(desc->shape)));
}

attune__opencl_text attune__opencl_text_begin(const attune__opencl_device *device, const attune__program_desc *desc,
                                              const char *file, const attune__opencl_tile *tile, bool aligned)
{
    attune__opencl_text text = {
        .file = file,
        .mask = desc->mask,
        .score = desc->score,
        .gradient = desc->gradient,
        .host = device->base.info.limits.host,
        .fma = device->fma,
        .serving = desc->shape->tokens != 0,
    };
    attune__opencl_add_define(&text, "THREADS", tile->threads);
    attune__opencl_add_define(&text, "BLOCK_M", tile->block_m);
    attune__opencl_add_define(&text, "BLOCK_N", tile->block_n);
    add_common(desc, aligned, &text);
    return text;
}

/* The arguments that every kernel has, of a call with one tile, which has no rows. */
static attune__opencl_setter set_nothing(const attune__opencl_device *device, const attune__opencl_kernel *kernel)
{
    const attune_opencl_arguments arguments = {
        .kv_batch = 1,
        .splits = 1,
        .heads = 1,
        .kv_heads = 1,
        .q_block = 1,
        .kv_block = 1,
        .inner_q_block = 1,
        .head_step = 1,
        .q_step = 1,
        .head_chunks = 1,
        .q_chunks = 1,
        .in_block = 1,
        .section = 1,
    };
    const attune__forward none = {.batch = 0};
    attune__opencl_setter setter = {.device = device, .kernel = kernel->handle};
    attune__opencl_set_forward(&setter, &arguments, &none);
    return setter;
}

attune_status attune__opencl_launch_empty(attune__opencl_device *device, attune__opencl_kernel *kernel, uint32_t more,
                                          const attune_expr *score)
{
    attune__opencl_setter setter = set_nothing(device, kernel);
    for (uint32_t i = 0; i < more; i++)
        attune__opencl_set_memory(&setter, NULL);
    attune__opencl_set_captures(&setter, score, NULL);
    return attune__opencl_kernel_first(device, kernel, setter.error);
}

/* The text of a family's forward kernel. */
static attune_status begin_forward(const attune__opencl_device *device, const attune__program_desc *desc,
                                   const attune__opencl_family *family, bool aligned, attune__opencl_text *text)
{
    const attune_plan_choice *c = desc->choice;
    const attune__opencl_tile tile = {c->workgroup_invocations, c->block_m, c->block_n};
    const char *const file = desc->shape->tokens && family->serving ? family->serving : family->forward.file;
    *text = attune__opencl_text_begin(device, desc, file, &tile, aligned);
    return family->define(device, desc, &tile, aligned, text);
}

static attune_status build_forward(attune__opencl_device *device, const attune__program_desc *desc,
                                   const attune__opencl_family *family, bool aligned, attune__opencl_kernel *kernel)
{
    attune__opencl_text text;
    ATTUNE__TRY(begin_forward(device, desc, family, aligned, &text));
    ATTUNE__TRY(attune__opencl_kernel_build(device, &text, family->forward.name, desc->choice->workgroup_invocations,
                                            desc->invocations, kernel));
    return attune__opencl_launch_empty(device, kernel, 0, desc->score);
}

/* Of any type of keys and values. */
static attune_status build_over_cache(attune__opencl_device *device, const attune__program_desc *desc,
                                      const attune__opencl_family *family, bool aligned, attune__opencl_kernel *kernel)
{
    attune__opencl_text text;
    ATTUNE__TRY(begin_forward(device, desc, family, aligned, &text));
    return attune__opencl_kernel_build(device, &text, family->forward.name, desc->choice->workgroup_invocations,
                                       desc->invocations, kernel);
}

static attune_status launch_over_cache(attune__opencl_device *device, const attune__program_desc *desc,
                                       attune__opencl_kernel *kernel)
{
    attune__opencl_setter setter = set_nothing(device, kernel);
    attune__opencl_serving_set(&setter, NULL, NULL);
    attune__opencl_set_captures(&setter, desc->mask, NULL);
    attune__opencl_set_captures(&setter, desc->score, NULL);
    return attune__opencl_kernel_first(device, kernel, setter.error);
}

static attune_status build_serving(attune__opencl_device *device, const attune__program_desc *desc,
                                   const attune__opencl_family *family, attune__opencl_program *program)
{
    attune__opencl_kernel *kernel = &program->forward;
    const attune_plan_choice *c = desc->choice;
    program->parts = attune__shaders_parts_make(desc->shape, &device->base.info.limits, c->block_m);
    ATTUNE__TRY(build_over_cache(device, desc, family, false, kernel));
    if (program->parts.slots) {
        ATTUNE__TRY(
            attune__opencl_kernel_also(device, kernel, family->combine, c->workgroup_invocations, &program->combine));
        attune__opencl_setter setter = set_nothing(device, &program->combine);
        attune__opencl_serving_set(&setter, NULL, NULL);
        ATTUNE__TRY(attune__opencl_kernel_first(device, &program->combine, setter.error));
    }
    ATTUNE__TRY(launch_over_cache(device, desc, kernel));
    if (!attune__opencl_has_aligned(device, family))
        return ATTUNE_OK;
    ATTUNE__TRY(build_over_cache(device, desc, family, true, &program->aligned));
    return launch_over_cache(device, desc, &program->aligned);
}

static attune_status build_combine(attune__opencl_device *device, const attune__program_desc *desc,
                                   const attune__opencl_family *family, attune__opencl_program *program)
{
    const uint32_t most = device->base.info.limits.workgroup_invocations, threads = most < 64 ? most : 64;
    const bool shares = family->combine_items && threads % family->combine_items == 0;
    const attune__opencl_tile tile = {threads, desc->choice->block_m, desc->choice->block_n};
    const char *const file = shares ? "combine_items.cl" : "combine.cl";
    attune__opencl_text text = attune__opencl_text_begin(device, desc, file, &tile, false);
    text.mask = NULL;
    program->combine_items = shares ? family->combine_items : 1;
    if (shares)
        attune__opencl_add_define(&text, "COMBINE_ITEMS", family->combine_items);
    ATTUNE__TRY(
        attune__opencl_kernel_build(device, &text, "attune_combine", threads, desc->invocations, &program->combine));
    return attune__opencl_launch_empty(device, &program->combine, 0, desc->score);
}

static attune_status build_all(attune__opencl_device *device, const attune__program_desc *desc,
                               attune__opencl_program *program)
{
    const attune__opencl_family *family;
    ATTUNE__TRY(attune__opencl_family_find(desc->choice, &family));
    if (desc->choice->direction == ATTUNE_BACKWARD)
        return attune__opencl_backward_build(device, desc, family, program);
    if (desc->shape->tokens) {
        ATTUNE__TRY(attune__opencl_step_build(device, desc, program));
        return build_serving(device, desc, family, program);
    }
    ATTUNE__TRY(build_forward(device, desc, family, false, &program->forward));
    if (attune__opencl_has_aligned(device, family))
        ATTUNE__TRY(build_forward(device, desc, family, true, &program->aligned));
    return desc->choice->split_kv > 1 ? build_combine(device, desc, family, program) : ATTUNE_OK;
}

static attune_status create(attune_device *device, const attune__program_desc *desc, attune__program **program)
{
    attune__opencl_program *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    if (pthread_mutex_init(&made->lock, NULL)) {
        attune__free(&device->host.allocator, made);
        return attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "the system has no mutex for a program");
    }
    made->base.device = device;
    made->shape = *desc->shape;
    made->choice = *desc->choice;
    made->score = desc->score;
    made->mask = desc->shape->tokens ? desc->mask : NULL;
    made->gradient = desc->gradient;
    const attune_status status = build_all(attune__opencl_of(device), desc, made);
    if (status == ATTUNE_OK)
        *program = &made->base;
    else
        attune__opencl_program_destroy(&made->base);
    return status;
}

attune_status attune__opencl_programs_create(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                             attune__program **programs)
{
    for (uint32_t i = 0; i < count; i++)
        ATTUNE__TRY(create(device, &descs[i], &programs[i]));
    return ATTUNE_OK;
}

void attune__opencl_program_destroy(attune__program *program)
{
    attune__opencl_program *mine = (attune__opencl_program *)program;
    attune__opencl_device *device = attune__opencl_of(program->device);
    attune__opencl_kernel_release(device, &mine->forward);
    attune__opencl_kernel_release(device, &mine->aligned);
    attune__opencl_kernel_release(device, &mine->combine);
    attune__opencl_kernel_release(device, &mine->append);
    attune__opencl_kernel_release(device, &mine->schedule);
    attune__opencl_kernel_release(device, &mine->keys);
    attune__opencl_kernel_release(device, &mine->keys_aligned);
    attune__opencl_kernel_release(device, &mine->delta);
    attune__opencl_kernel_release(device, &mine->sinks);
    attune__opencl_kernel_release(device, &mine->clear_sums);
    attune__opencl_kernel_release(device, &mine->add_sums);
    pthread_mutex_destroy(&mine->lock);
    attune__free(&program->device->host.allocator, mine);
}
