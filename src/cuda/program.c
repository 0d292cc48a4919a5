/* SPDX-License-Identifier: MIT */
/* A kernel for a choice: compiled or found in the cache, loaded, and checked against the planner's figures. */
#include "cuda/cuda.h"

#include "base/alloc.h"
#include "base/error.h"
#include "cuda/compiler.h"
#include "cuda/family.h"
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
    /* The planner's figure includes static shared memory. */
    kernel->shared_memory -= (uint32_t)fixed < kernel->shared_memory ? (uint32_t)fixed : kernel->shared_memory;
    return attune__cuda_check(
        device, driver->function_set(kernel->function, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE, (int)kernel->shared_memory),
        "cuFuncSetAttribute");
}

/* One of a plan's kernels while it is being created. */
typedef struct made_kernel {
    attune__cuda_loaded *kernel;
    const attune__program_desc *desc;
    attune__cuda_role role;
    attune__cuda_kernel source;
} made_kernel;

typedef struct made_kernels {
    made_kernel each[ATTUNE__CUDA_JOBS];
    uint32_t count;
    attune__program_desc
        second; /* the fallback for tensors that TMA cannot read: of one program at most, since decode has no TMA */
    attune__decision decision;
} made_kernels;

static void add_kernel(made_kernels *p, const attune__program_desc *desc, attune__cuda_role role,
                       attune__cuda_loaded *kernel)
{
    p->each[p->count++] = (made_kernel){.kernel = kernel, .desc = desc, .role = role};
}

/* The longest to compile come first: NVRTC's front end serves one thread at a time. */
static attune_status choose_kernels(made_kernels *p, const attune_limits *limits, const attune__program_desc *desc,
                                    attune__cuda_program *program)
{
    const bool back = desc->choice->direction == ATTUNE_BACKWARD;
    add_kernel(p, desc, ATTUNE__CUDA_MAIN, &program->kernel);
    const attune__program_desc *plain = desc;
    if (program->family->has_fallback) {
        p->second = *desc;
        p->second.choice = &p->decision.choice;
        p->second.variant = &p->decision.variant;
        plain = &p->second;
        ATTUNE__TRY(attune__cuda_fallback(limits, desc, &p->decision));
        add_kernel(p, plain, ATTUNE__CUDA_MAIN, &program->fallback);
    }
    if (back) {
        program->separate_dk_dv = plain->variant->separate_dk_dv;
        add_kernel(p, plain, ATTUNE__CUDA_ROWS, &program->rows);
        add_kernel(p, desc, ATTUNE__CUDA_DELTA, &program->delta);
    }
    if (attune__cuda_has_role(desc, ATTUNE__CUDA_APPEND))
        add_kernel(p, desc, ATTUNE__CUDA_APPEND, &program->append);
    return ATTUNE_OK;
}

static void size_kernel(attune__cuda_loaded *kernel, const attune_limits *limits, const attune__program_desc *desc,
                        attune__cuda_role role)
{
    const attune_plan_choice *choice = desc->choice;
    const bool back = choice->direction == ATTUNE_BACKWARD, rows = role == ATTUNE__CUDA_ROWS;
    kernel->block_m = !back ? choice->block_m : rows ? choice->block_m2 : choice->block_m1;
    kernel->block_n = !back ? choice->block_n : rows ? choice->block_n2 : choice->block_n1;
    kernel->threads = choice->workgroup_invocations;
    kernel->shared_memory = attune__cuda_shared_memory(desc, role);
    if (attune__cuda_family_find(choice->kernel)->persistent)
        kernel->resident = limits->compute_units * (choice->occupancy ? choice->occupancy : 1);
}

static attune_status load_kernels(attune__cuda_device *device, const made_kernels *p, const attune__cuda_job *jobs)
{
    ATTUNE__TRY(attune__cuda_enter(device));
    attune_status status = ATTUNE_OK;
    for (uint32_t i = 0; i < p->count && status == ATTUNE_OK; i++) {
        const made_kernel *one = &p->each[i];
        size_kernel(one->kernel, &device->base.info.limits, one->desc, one->role);
        const attune__cuda_family *family = NULL;
        attune__cuda_entry entry = {0};
        status = attune__cuda_entry_of(one->desc, one->role, &family, &entry);
        if (status == ATTUNE_OK)
            status = load(device, one->kernel, entry.name, jobs[i].cubin);
    }
    attune__cuda_leave(device);
    return status;
}

static attune_status make(attune__cuda_device *device, const attune__program_desc *descs, uint32_t count,
                          attune__program **programs)
{
    const attune_allocator *allocator = &device->base.host.allocator;
    const attune_limits *limits = &device->base.info.limits;
    attune__cuda_job jobs[ATTUNE__CUDA_JOBS] = {0};
    made_kernels p = {.count = 0};
    attune_status status = ATTUNE_OK;
    for (uint32_t i = 0; i < count && status == ATTUNE_OK; i++)
        status = choose_kernels(&p, limits, &descs[i], (attune__cuda_program *)programs[i]);
    for (uint32_t i = 0; i < p.count && status == ATTUNE_OK; i++) {
        made_kernel *one = &p.each[i];
        status = attune__cuda_specialise(allocator, one->desc, limits->architecture, one->role, &one->source);
        jobs[i].kernel = &one->source;
    }
    if (status == ATTUNE_OK)
        status = attune__cuda_compile_all(&device->base.host, jobs, p.count);
    if (status == ATTUNE_OK)
        status = load_kernels(device, &p, jobs);
    for (uint32_t i = 0; i < p.count; i++) {
        attune__free(allocator, (void *)(uintptr_t)p.each[i].source.mods);
        attune__free(allocator, jobs[i].cubin);
    }
    return status;
}

static attune_status allocate(attune_device *device, const attune__program_desc *desc, attune__program **program)
{
    const attune__cuda_family *family = NULL;
    attune__cuda_entry entry = {0};
    ATTUNE__TRY(attune__cuda_entry_of(desc, ATTUNE__CUDA_MAIN, &family, &entry));
    attune__cuda_program *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->family = family;
    made->columns = attune__cuda_columns(desc->shape);
    made->mask = desc->mask;
    made->score = desc->score;
    *program = &made->base;
    return ATTUNE_OK;
}

attune_status attune__cuda_programs_create(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                           attune__program **programs)
{
    for (uint32_t i = 0; i < count; i++)
        ATTUNE__TRY(allocate(device, &descs[i], &programs[i]));
    ATTUNE__TRY(make(attune__cuda_of(device), descs, count, programs));
    for (uint32_t i = 0; i < count; i++) {
        attune__cuda_program *made = (attune__cuda_program *)programs[i];
        if (descs[i].choice->decode)
            ATTUNE__TRY(attune__cuda_decode_load(made, &descs[i]));
        if (descs[i].shape->tokens)
            ATTUNE__TRY(attune__cuda_serving_load(made, &descs[i]));
        if (descs[i].choice->direction == ATTUNE_BACKWARD)
            ATTUNE__TRY(attune__cuda_backward_load(made, &descs[i]));
    }
    return ATTUNE_OK;
}

void attune__cuda_program_destroy(attune__program *program)
{
    attune__cuda_program *mine = (attune__cuda_program *)program;
    attune__cuda_device *device = attune__cuda_of(program->device);
    const attune__cu_module modules[] = {mine->kernel.module, mine->fallback.module, mine->rows.module,
                                         mine->delta.module, mine->append.module};
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++)
        if (modules[i] && device->driver.context_push(device->context) == CU_SUCCESS) {
            device->driver.module_unload(modules[i]);
            attune__cuda_leave(device);
        }
    attune__free(&device->base.host.allocator, mine);
}
