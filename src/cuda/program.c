/* SPDX-License-Identifier: MIT */
/* A kernel for a choice: compiled or found in the cache, loaded, and held against the planner's figures. */
#include "cuda/cuda.h"

#include "base/alloc.h"
#include "base/error.h"
#include "cuda/compiler.h"

static attune_status load(attune__cuda_device *device, attune__cuda_program *program, const void *cubin)
{
    const attune__cuda_driver *driver = &device->driver;
    ATTUNE__TRY(attune__cuda_check(device, driver->module_load(&program->module, cubin), "cuModuleLoadData"));
    ATTUNE__TRY(
        attune__cuda_check(device,
                           driver->module_function(&program->function, program->module,
                                                   program->split ? "attune_decode_sm80" : "attune_forward_sm80"),
                           "cuModuleGetFunction"));
    if (program->split > 1)
        ATTUNE__TRY(attune__cuda_check(
            device, driver->module_function(&program->combine, program->module, "attune_combine_sm80"),
            "cuModuleGetFunction"));
    int fixed = 0;
    ATTUNE__TRY(attune__cuda_check(device, driver->function_get(&fixed, CU_FUNC_SHARED_SIZE, program->function),
                                   "cuFuncGetAttribute"));
    /* The planner's figure is all of it. */
    program->shared_memory -= (uint32_t)fixed < program->shared_memory ? (uint32_t)fixed : program->shared_memory;
    return attune__cuda_check(
        device, driver->function_set(program->function, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE, (int)program->shared_memory),
        "cuFuncSetAttribute");
}

attune_status attune__cuda_program_create(attune_device *device, const attune__program_desc *desc,
                                          attune__program **program)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    const attune_allocator *allocator = &device->host.allocator;
    attune__cuda_kernel kernel = {0};
    void *cubin = NULL;
    size_t cubin_size = 0;
    attune__cuda_program *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->block_m = desc->choice->block_m;
    made->threads = desc->choice->workgroup_invocations;
    made->shared_memory = desc->choice->shared_memory;
    if (desc->choice->decode) {
        made->packed_heads = attune__shape_packed_heads(desc->shape);
        made->split = desc->choice->split_kv;
    }
    made->mask = desc->mask;
    made->score = desc->score;
    attune_status status = attune__cuda_specialise(allocator, desc, device->info.limits.architecture, &kernel);
    if (status == ATTUNE_OK)
        status = attune__cuda_compile(&device->host, &kernel, &cubin, &cubin_size);
    if (status == ATTUNE_OK)
        status = attune__cuda_enter(mine);
    if (status == ATTUNE_OK) {
        status = load(mine, made, cubin);
        attune__cuda_leave(mine);
    }
    attune__free(allocator, (void *)(uintptr_t)kernel.mods);
    attune__free(allocator, cubin);
    if (status == ATTUNE_OK)
        *program = &made->base;
    else
        attune__cuda_program_destroy(&made->base);
    return status;
}

void attune__cuda_program_destroy(attune__program *program)
{
    attune__cuda_program *mine = (attune__cuda_program *)program;
    attune__cuda_device *device = attune__cuda_of(program->device);
    if (mine->module && device->driver.context_push(device->context) == CU_SUCCESS) {
        device->driver.module_unload(mine->module);
        attune__cuda_leave(device);
    }
    attune__free(&device->base.host.allocator, mine);
}
