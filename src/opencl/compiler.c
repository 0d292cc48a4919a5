/* SPDX-License-Identifier: MIT */
/* Programs from text, and their kernels. Never with relaxed or finite math: an all-masked row would weigh 1. */
#include "opencl/program.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"

#define LOG_SIZE     1200 /* bytes of the compiler's log in an error message */
#define OPTIONS_SIZE 128

/* Reports the beginning of the log: the first error is the most useful one. */
static attune_status fail_build(attune__opencl_device *device, attune__cl_program program, const char *file,
                                int32_t error)
{
    const attune_allocator *allocator = &device->base.host.allocator;
    size_t size = 0;
    char *log = NULL;
    if (!device->driver.program_build_info(program, device->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size) && size)
        log = attune__alloc(allocator, size + 1, 1);
    if (log &&
        device->driver.program_build_info(program, device->device, CL_PROGRAM_BUILD_LOG, size, log, NULL) != CL_SUCCESS)
        log[0] = '\0';
    attune__fail(ATTUNE_COMPILE_FAILED, "device %s does not build %s: %s (%d): %.*s", device->base.info.id, file,
                 attune__opencl_error_name(error), error, LOG_SIZE, log ? log : "");
    attune__free(allocator, log);
    return ATTUNE_COMPILE_FAILED;
}

static attune_status build(attune__opencl_device *device, const char *source, const char *options, const char *file,
                           attune__cl_program *program)
{
    const attune__opencl_driver *driver = &device->driver;
    int32_t error = CL_SUCCESS;
    *program = driver->program_source(device->context, 1, &source, NULL, &error);
    if (!*program)
        return attune__opencl_check(device, error ? error : CL_OUT_OF_HOST_MEMORY, "clCreateProgramWithSource");
    error = driver->program_build(*program, 1, &device->device, options, NULL, NULL);
    return error ? fail_build(device, *program, file, error) : ATTUNE_OK;
}

static attune_status make_kernel(attune__opencl_device *device, const char *name, uint32_t *invocations,
                                 attune__opencl_kernel *kernel)
{
    const attune__opencl_driver *driver = &device->driver;
    int32_t error = CL_SUCCESS;
    size_t most = 0;
    kernel->handle = driver->kernel_create(kernel->program, name, &error);
    if (!kernel->handle)
        return attune__fail(ATTUNE_COMPILE_FAILED, "device %s makes no kernel %s: %s (%d)", device->base.info.id, name,
                            attune__opencl_error_name(error), error);
    error =
        driver->kernel_group_info(kernel->handle, device->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL);
    if (error != CL_SUCCESS || most >= kernel->threads)
        return ATTUNE_OK;
    if (invocations)
        *invocations = (uint32_t)most;
    return attune__fail(ATTUNE_COMPILE_FAILED,
                        "device %s has %zu work-items for %s once it is built, the tile needs %u", device->base.info.id,
                        most, name, kernel->threads);
}

attune_status attune__opencl_kernel_build(attune__opencl_device *device, const attune__opencl_text *text,
                                          const char *name, uint32_t threads, uint32_t *invocations,
                                          attune__opencl_kernel *kernel)
{
    char *source = NULL, options[OPTIONS_SIZE];
    *kernel = (attune__opencl_kernel){.threads = threads};
    ATTUNE__TRY(attune__opencl_text_make(&device->base.host.allocator, text, &source));
    snprintf(options, sizeof options, "-cl-std=CL1.2%s%s",
             device->round_div ? " -cl-fp32-correctly-rounded-divide-sqrt" : "",
             text->literal ? " -cl-opt-disable" : "");
    kernel->hash = attune__opencl_hash(source, options);
    kernel->program = attune__opencl_cache_get(device, kernel->hash, options);
    kernel->cached = kernel->program != NULL;
    attune_status status = kernel->cached ? make_kernel(device, name, invocations, kernel) : ATTUNE_OK;
    /* The cache never decides whether a plan is made: a program without its kernel is built again. */
    if (kernel->cached && !kernel->handle) {
        device->driver.program_release(kernel->program);
        kernel->program = NULL;
        kernel->cached = false;
    }
    if (!kernel->cached) {
        status = build(device, source, options, text->file, &kernel->program);
        if (status == ATTUNE_OK)
            status = make_kernel(device, name, invocations, kernel);
    }
    attune__free(&device->base.host.allocator, source);
    if (status != ATTUNE_OK)
        attune__opencl_kernel_release(device, kernel);
    return status;
}

attune_status attune__opencl_kernel_also(attune__opencl_device *device, const attune__opencl_kernel *first,
                                         const char *name, uint32_t threads, attune__opencl_kernel *kernel)
{
    *kernel = (attune__opencl_kernel){.threads = threads, .hash = first->hash, .cached = true};
    ATTUNE__TRY(attune__opencl_check(device, device->driver.program_retain(first->program), "clRetainProgram"));
    kernel->program = first->program;
    const attune_status status = make_kernel(device, name, NULL, kernel);
    if (status != ATTUNE_OK)
        attune__opencl_kernel_release(device, kernel);
    return status;
}

attune_status attune__opencl_kernel_first(attune__opencl_device *device, attune__opencl_kernel *kernel, int32_t error)
{
    ATTUNE__TRY(attune__opencl_check(device, error, "clSetKernelArg"));
    attune__opencl_call call;
    attune__opencl_begin(&device->queue, &call);
    attune__opencl_launch(&call, kernel->handle, 1, kernel->threads);
    ATTUNE__TRY(attune__opencl_finish(&call));
    if (!kernel->cached)
        attune__opencl_cache_put(device, kernel->hash, kernel->program);
    kernel->cached = true;
    return ATTUNE_OK;
}

void attune__opencl_kernel_release(attune__opencl_device *device, attune__opencl_kernel *kernel)
{
    if (kernel->handle)
        device->driver.kernel_release(kernel->handle);
    if (kernel->program)
        device->driver.program_release(kernel->program);
    *kernel = (attune__opencl_kernel){0};
}

void attune__opencl_set(attune__opencl_setter *setter, size_t size, const void *value)
{
    const int32_t error = setter->device->driver.kernel_argument(setter->kernel, setter->index++, size, value);
    if (setter->error == CL_SUCCESS)
        setter->error = error;
}

void attune__opencl_set_memory(attune__opencl_setter *setter, const attune_buffer *buffer)
{
    const attune__cl_memory memory = buffer ? attune__opencl_buffer_of(buffer)->memory : setter->device->nothing;
    attune__opencl_set(setter, sizeof memory, &memory); /* NOLINT(bugprone-sizeof-expression): a handle */
}
