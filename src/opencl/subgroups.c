/* SPDX-License-Identifier: MIT */
/*
 * Whether the subgroups of a device can be trusted: drivers have named the extension whose shuffles then gave wrong
 * values. A kernel shuffles once when the device is opened, and its results are compared.
 */
#include "opencl/program.h"

#include "base/error.h"

#define ITEMS 128 /* of the workgroup: the widest subgroup that is told from none */

/* The width of all subgroups; 0 = they differ, or are not to be trusted. */
static uint32_t width_of(const uint32_t *results)
{
    const uint32_t width = results[0];
    for (uint32_t i = 1; i < ITEMS; i++)
        if (results[i] != width)
            return 0;
    return width <= ITEMS && (width & (width - 1)) == 0 ? width : 0;
}

static attune_status shuffle(attune__opencl_device *device, attune__opencl_kernel *kernel, uint32_t *results)
{
    const attune__opencl_text text = {
        .file = "subgroups.cl",
        .host = device->base.info.limits.host,
        .defines = {{"THREADS", ITEMS}},
        .define_count = 1,
    };
    const size_t size = ITEMS * sizeof *results;
    int32_t error = CL_SUCCESS;
    ATTUNE__TRY(attune__opencl_kernel_build(device, &text, "attune_subgroups", ITEMS, NULL, kernel));
    attune__cl_memory memory = device->driver.memory_create(device->context, CL_MEM_READ_WRITE, size, NULL, &error);
    if (!memory)
        return attune__opencl_check(device, error ? error : CL_OUT_OF_HOST_MEMORY, "a buffer");
    attune__opencl_setter setter = {.device = device, .kernel = kernel->handle};
    attune__opencl_set(&setter, sizeof memory, &memory); /* NOLINT(bugprone-sizeof-expression): a handle */
    attune_status status = attune__opencl_kernel_first(device, kernel, setter.error);
    if (status == ATTUNE_OK) {
        attune__opencl_call call;
        attune__opencl_begin(&device->queue, &call);
        attune__opencl_read(&call, memory, 0, results, size);
        status = attune__opencl_finish(&call);
    }
    device->driver.memory_release(memory);
    return status;
}

attune_status attune__opencl_subgroups_probe(attune__opencl_device *device, uint32_t least)
{
    attune_limits *limits = &device->base.info.limits;
    attune__opencl_kernel kernel = {.handle = NULL};
    uint32_t results[ITEMS] = {0};
    const attune_status status = shuffle(device, &kernel, results);
    const uint32_t width = status == ATTUNE_OK ? width_of(results) : 0;
    attune__opencl_kernel_release(device, &kernel);
    if (status == ATTUNE_DEVICE_LOST)
        return status;
    limits->subgroup_operations = width > 1;
    /* A driver of the CPU has its lanes as they are; on a GPU the compiler may take fewer for another kernel. */
    if (!limits->host && width > 1)
        limits->subgroup_size = least && least < width ? least : width;
    return ATTUNE_OK;
}
