/* SPDX-License-Identifier: MIT */
/* A kernel for a choice: compiled or found in the cache, loaded, and held against the planner's figures. */
#include "cuda/cuda.h"

#include "base/alloc.h"
#include "base/error.h"
#include "cuda/compiler.h"
#include "plan/family_cuda.h"

static attune_status load(attune__cuda_device *device, attune__cuda_loaded *kernel, const char *name, const void *cubin)
{
    const attune__cuda_driver *driver = &device->driver;
    ATTUNE__TRY(attune__cuda_check(device, driver->module_load(&kernel->module, cubin), "cuModuleLoadData"));
    ATTUNE__TRY(attune__cuda_check(device, driver->module_function(&kernel->function, kernel->module, name),
                                   "cuModuleGetFunction"));
    int fixed = 0;
    ATTUNE__TRY(attune__cuda_check(device, driver->function_get(&fixed, CU_FUNC_SHARED_SIZE, kernel->function),
                                   "cuFuncGetAttribute"));
    /* The planner's figure is all of it. */
    kernel->shared_memory -= (uint32_t)fixed < kernel->shared_memory ? (uint32_t)fixed : kernel->shared_memory;
    return attune__cuda_check(
        device, driver->function_set(kernel->function, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE, (int)kernel->shared_memory),
        "cuFuncSetAttribute");
}

/* The bytes of shared memory that a choice's kernel asks for. */
static uint32_t shared_memory(const attune__program_desc *desc, attune__cuda_role role)
{
    const attune_plan_choice *choice = desc->choice;
    uint32_t bytes[2] = {choice->shared_memory, choice->shared_memory};
    if (role == ATTUNE__CUDA_DELTA)
        return 0;
    if (choice->direction == ATTUNE_BACKWARD && !choice->use_tma)
        attune__cuda_sm80_backward_bytes(desc->shape, choice, bytes);
    return bytes[role == ATTUNE__CUDA_ROWS];
}

static attune_status make(attune__cuda_device *device, const attune__program_desc *desc, attune__cuda_role role,
                          attune__cuda_loaded *kernel)
{
    const attune_allocator *allocator = &device->base.host.allocator;
    const attune_limits *limits = &device->base.info.limits;
    const attune_plan_choice *choice = desc->choice;
    attune__cuda_kernel source = {0};
    void *cubin = NULL;
    size_t cubin_size = 0;
    const bool back = choice->direction == ATTUNE_BACKWARD, rows = role == ATTUNE__CUDA_ROWS;
    kernel->block_m = !back ? choice->block_m : rows ? choice->block_m2 : choice->block_m1;
    kernel->block_n = !back ? choice->block_n : rows ? choice->block_n2 : choice->block_n1;
    kernel->threads = choice->workgroup_invocations;
    kernel->shared_memory = shared_memory(desc, role);
    if (choice->use_tma)
        kernel->resident = limits->compute_units * (choice->occupancy ? choice->occupancy : 1);
    attune_status status = attune__cuda_specialise(allocator, desc, limits->architecture, role, &source);
    if (status == ATTUNE_OK)
        status = attune__cuda_compile(&device->base.host, &source, &cubin, &cubin_size);
    if (status == ATTUNE_OK)
        status = attune__cuda_enter(device);
    if (status == ATTUNE_OK) {
        status = load(device, kernel, attune__cuda_entry_name(choice, role), cubin);
        attune__cuda_leave(device);
    }
    attune__free(allocator, (void *)(uintptr_t)source.mods);
    attune__free(allocator, cubin);
    return status;
}

attune_status attune__cuda_program_create(attune_device *device, const attune__program_desc *desc,
                                          attune__program **program)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    attune__cuda_program *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->tma = desc->choice->use_tma;
    made->mask = desc->mask;
    made->score = desc->score;
    attune_status status = make(mine, desc, ATTUNE__CUDA_MAIN, &made->kernel);
    if (status == ATTUNE_OK && desc->choice->decode)
        status = attune__cuda_decode_load(made, desc);
    const bool back = desc->choice->direction == ATTUNE_BACKWARD;
    if (status == ATTUNE_OK && back && !made->tma)
        status = make(mine, desc, ATTUNE__CUDA_ROWS, &made->rows);
    if (status == ATTUNE_OK && back)
        status = make(mine, desc, ATTUNE__CUDA_DELTA, &made->delta);
    if (status == ATTUNE_OK && back)
        status = attune__cuda_backward_load(made, desc);
    if (status == ATTUNE_OK && made->tma) {
        attune__decision decision;
        attune__program_desc second = *desc;
        second.choice = &decision.choice;
        status = attune__cuda_fallback(&device->info.limits, desc->shape, &decision);
        if (status == ATTUNE_OK)
            status = make(mine, &second, ATTUNE__CUDA_MAIN, &made->fallback);
        if (status == ATTUNE_OK && back)
            status = make(mine, &second, ATTUNE__CUDA_ROWS, &made->rows);
    }
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
    const attune__cu_module modules[] = {mine->kernel.module, mine->fallback.module, mine->rows.module,
                                         mine->delta.module};
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++)
        if (modules[i] && device->driver.context_push(device->context) == CU_SUCCESS) {
            device->driver.module_unload(modules[i]);
            attune__cuda_leave(device);
        }
    attune__free(&device->base.host.allocator, mine);
}
