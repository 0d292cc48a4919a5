/* SPDX-License-Identifier: MIT */
/* Programs: a prebuilt module, the caller's expressions in it, and the plan's numbers as specialization constants. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "vulkan/launch.h"
#include "vulkan/mods.h"

#include "shaders/combine.h"
#include "shaders/forward_bf16.h"
#include "shaders/forward_f16.h"
#include "shaders/forward_f32.h"
#include "shaders/forward_subgroup_bf16.h"
#include "shaders/forward_subgroup_f16.h"
#include "shaders/forward_subgroup_f32.h"
#include "shaders/lanes_bf16.h"
#include "shaders/lanes_f16.h"
#include "shaders/lanes_f32.h"

#if ATTUNE_HAVE_COOPERATIVE_MATRIX
#include "shaders/forward_matrix_f16.h"
#include "shaders/forward_registers_f16.h"
#endif

typedef enum module_kind { PORTABLE, SUBGROUP, LANES } module_kind;

static module_kind kind_of(const attune_plan_choice *choice)
{
    return !strcmp(choice->kernel, "vulkan_lanes")      ? LANES
           : !strcmp(choice->kernel, "vulkan_subgroup") ? SUBGROUP
                                                        : PORTABLE;
}

static const attune__vulkan_module *find_module(module_kind kind, attune_dtype dtype)
{
    static const attune__vulkan_module modules[3][3] = {
        ATTUNE__VULKAN_MODULES(forward), ATTUNE__VULKAN_MODULES(forward_subgroup), ATTUNE__VULKAN_MODULES(lanes)};
    return &modules[kind][attune__vulkan_dtype_index(dtype)];
}

static attune_status refuse_tile(const attune_plan_choice *c, const char *why)
{
    return attune__fail(ATTUNE_INTERNAL, "%s: BLOCK_M %u x BLOCK_N %u: %s", c->kernel, c->block_m, c->block_n, why);
}

/* The lanes kernel has no layout. */
static attune_status set_forward(const attune__program_desc *desc, module_kind kind, bool flat, uint32_t *constants)
{
    const attune_plan_choice *c = desc->choice;
    if (kind == LANES)
        return ATTUNE_OK;
    attune__forward_layout l;
    const char *why =
        attune__forward_layout_make(c->block_m, c->block_n, c->workgroup_invocations, desc->shape->head_dim,
                                    desc->shape->head_dim_v, kind == SUBGROUP, flat, &l);
    if (why)
        return refuse_tile(c, why);
    attune__vulkan_set_forward(&l, constants);
    return ATTUNE_OK;
}

static attune__matrix_shape matrix_shape(const attune_limits *limits)
{
    return (attune__matrix_shape){limits->matrix_m, limits->matrix_n, limits->matrix_k, limits->subgroup_size,
                                  limits->fragment_layout};
}

#if ATTUNE_HAVE_COOPERATIVE_MATRIX
static const attune__vulkan_module matrix_modules[2] = {ATTUNE__VULKAN_MODULE(attune__spirv_forward_matrix_f16),
                                                        ATTUNE__VULKAN_MODULE(attune__spirv_forward_registers_f16)};

static attune_status set_matrix(const attune_limits *limits, const attune__program_desc *desc, uint32_t *constants)
{
    const attune_plan_choice *c = desc->choice;
    const uint32_t d = desc->shape->head_dim, dv = desc->shape->head_dim_v;
    const attune__matrix_shape matrix = matrix_shape(limits);
    const char *why;
    if (matrix.fragment_layout) {
        attune__registers_layout l;
        why = attune__registers_layout_make(c->block_m, c->block_n, c->num_warps, matrix, d, dv, &l);
        if (!why)
            attune__vulkan_set_registers(&l, constants);
    } else {
        attune__matrix_layout l;
        why = attune__matrix_layout_make(c->block_m, c->block_n, c->num_warps, matrix, d, dv, &l);
        if (!why)
            attune__vulkan_set_matrix(&l, constants);
    }
    return why ? refuse_tile(c, why) : ATTUNE_OK;
}
#else
static const attune__vulkan_module matrix_modules[2];

static attune_status set_matrix(const attune_limits *limits, const attune__program_desc *desc, uint32_t *constants)
{
    (void)limits, (void)constants;
    return attune__fail(ATTUNE_UNSUPPORTED, "%s was not compiled into this library", desc->choice->kernel);
}
#endif

attune_status attune__vulkan_specialise(const attune_limits *limits, const attune__program_desc *desc, bool aligned,
                                        attune__vulkan_kernel *kernel)
{
    const bool matrices = !strcmp(desc->choice->kernel, "vulkan_coopmat");
    const module_kind kind = kind_of(desc->choice);
    const attune__vulkan_module *prebuilt =
        matrices ? &matrix_modules[limits->fragment_layout != 0] : find_module(kind, desc->shape->k_dtype);
    const attune_plan_choice *c = desc->choice;
    const attune__vulkan_common common = {
        .THREADS = c->workgroup_invocations,
        .BLOCK_M = c->block_m,
        .BLOCK_N = c->block_n,
        .HEAD_DIM = desc->shape->head_dim,
        .HEAD_DIM_V = desc->shape->head_dim_v,
        .BLOCKS = desc->shape->block_mask,
        .MASK = desc->mask != NULL,
        .SCORE = desc->score != NULL,
        .PRESCALE = c->prescale_qk,
        .ALIGNED = aligned,
        .PACKED = c->decode,
        .Q_TYPE = attune__vulkan_dtype_index(desc->shape->q_dtype),
        .O_TYPE = attune__vulkan_dtype_index(desc->shape->o_dtype),
    };
    memset(kernel, 0, sizeof *kernel);
    kernel->words = prebuilt->words;
    kernel->word_count = prebuilt->count;
    kernel->subgroups = matrices || kind != PORTABLE;
    attune__vulkan_set_common(&common, kernel->constants);
    /* The path for any alignment is rarely taken: a GPU's driver should not spend as long on it as on the other. */
    const bool flat = !aligned && !limits->host;
    return matrices ? set_matrix(limits, desc, kernel->constants) : set_forward(desc, kind, flat, kernel->constants);
}

/*
 * Mesa's llvmpipe leaves all loops of a shader after 65,535 iterations of any of them together (gallivm's
 * LP_MAX_TGSI_LOOP_ITERATIONS), silently: rows would lack their last keys. This is the number of tiles of keys that
 * keeps a workgroup below that, with NaN in every chunk of V. Each loop's last test is counted, and all counts are
 * doubled, since unrolling varies (22 were measured where this has 15).
 */
static uint32_t count_steps(const attune__vulkan_device *device, const attune__program_desc *desc)
{
    const attune_plan_choice *c = desc->choice;
    if (device->physical.driver != VK_DRIVER_ID_MESA_LLVMPIPE)
        return 0;
    if (kind_of(c) == LANES)
        return attune__lanes_most_steps(c->block_m, c->block_n, c->workgroup_invocations, desc->shape->head_dim,
                                        desc->shape->head_dim_v, (uint32_t)attune_dtype_size(desc->shape->k_dtype));
    if (!strcmp(c->kernel, "vulkan_coopmat"))
        return attune__matrix_most_steps(c->block_m, c->block_n, c->num_warps,
                                         matrix_shape(&device->physical.info.limits), desc->shape->head_dim,
                                         desc->shape->head_dim_v);
    attune__forward_layout l;
    if (attune__forward_layout_make(c->block_m, c->block_n, c->workgroup_invocations, desc->shape->head_dim,
                                    desc->shape->head_dim_v, false, false, &l))
        return 0;
    const uint32_t slices = desc->shape->head_dim / l.SLICE, chunks = c->block_n / l.CHUNK;
    const uint32_t regular = 1 + 2 + (slices + 1) + (chunks + 1) + chunks * (l.CHUNK / 4 + 1);
    const uint32_t budget = 60000; /* the rest is for loops outside the main loop */
    return budget / (2 * regular + chunks * (l.CHUNK + 1));
}

static attune_status make_pipelines(attune_device *device, const attune__program_desc *desc,
                                    attune__vulkan_program *program)
{
    if (desc->choice->direction == ATTUNE_BACKWARD)
        return attune__vulkan_backward_pipelines(device, desc, program);
    attune__vulkan_kernel kernels[2];
    for (int aligned = 0; aligned < 2; aligned++)
        ATTUNE__TRY(attune__vulkan_specialise(&device->info.limits, desc, aligned, &kernels[aligned]));
    ATTUNE__TRY(attune__vulkan_pipeline_pair(device, desc, kernels, &program->forward, &program->aligned));
    if (desc->choice->split_kv <= 1)
        return ATTUNE_OK;
    static const attune__vulkan_module combine = ATTUNE__VULKAN_MODULE(attune__spirv_combine);
    return attune__vulkan_pipeline_specialise(device, combine.words, combine.count, NULL, "combine",
                                              kernels[0].constants, 0, &program->combine);
}

static attune_status create(attune_device *device, const attune__program_desc *desc, attune__program **program)
{
    const size_t table = desc->score ? attune__mods_table_size(desc->score) : 0;
    const size_t sums = desc->gradient && desc->score ? desc->score->symbol_count * sizeof(attune_vulkan_sums) : 0;
    if (table + sizeof(attune_vulkan_arguments) + sums > ATTUNE__VULKAN_ARGUMENTS)
        return attune__fail(ATTUNE_INTERNAL, "the score expression's table has %zu bytes", table);
    if (!strcmp(desc->choice->kernel, "vulkan_coopmat"))
        ATTUNE__TRY(attune__vulkan_fragment_layout_require(attune__vulkan_of(device)));
    attune__vulkan_program *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->shape = *desc->shape;
    made->choice = *desc->choice;
    made->score = desc->score;
    made->gradient = desc->gradient;
    made->most_steps = desc->choice->direction == ATTUNE_FORWARD ? count_steps(attune__vulkan_of(device), desc) : 0;
    attune_status status = make_pipelines(device, desc, made);
    if (status == ATTUNE_OK)
        *program = &made->base;
    else
        attune__vulkan_program_destroy(&made->base);
    return status;
}

attune_status attune__vulkan_programs_create(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                             attune__program **programs)
{
    for (uint32_t i = 0; i < count; i++)
        ATTUNE__TRY(create(device, &descs[i], &programs[i]));
    return ATTUNE_OK;
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
    attune__free(&allocator, mine);
}
