/* SPDX-License-Identifier: MIT */
/* Devices: enumeration, limits, contexts. */
#include "cuda/cuda.h"

#include <attune/cuda.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/environment.h"
#include "base/error.h"
#include "cuda/compiler.h"

/* ----------------------------------------------------------------------------------------------------------- limits */

/* The kernels need mma.sync of m16n8k16 and cp.async. */
#define OLDEST 80

/* Whether the automatic choice may take kernels that have never run on hardware. */
static bool untried_kernels(void)
{
    const char *value = attune__environment("ATTUNE_UNTRIED_KERNELS");
    return value && !strcmp(value, "1");
}

static uint32_t attribute(const attune__cuda_driver *driver, attune__cu_device device, int which)
{
    int value = 0;
    return driver->device_attribute(&value, which, device) == CU_SUCCESS && value > 0 ? (uint32_t)value : 0;
}

static void fill_info(const attune__cuda_driver *driver, attune__cu_device device, uint32_t index,
                      attune_device_info *info)
{
    *info = (attune_device_info){.struct_size = sizeof *info, .backend = ATTUNE_BACKEND_CUDA, .available = true};
    snprintf(info->id, sizeof info->id, "cuda:%u", index);
    if (driver->device_name(info->name, sizeof info->name, device) != CU_SUCCESS)
        snprintf(info->name, sizeof info->name, "NVIDIA GPU");
    int version = 0;
    if (driver->driver_version(&version) == CU_SUCCESS)
        snprintf(info->driver, sizeof info->driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    attune__cu_uuid uuid;
    if (driver->device_uuid(&uuid, device) == CU_SUCCESS)
        for (size_t i = 0; i < sizeof uuid.bytes; i++)
            snprintf(info->uuid + 2 * i, 3, "%02x", uuid.bytes[i]);
    size_t memory = 0;
    if (driver->device_memory(&memory, device) != CU_SUCCESS)
        memory = 0;
    const uint32_t architecture = 10 * attribute(driver, device, CU_COMPUTE_CAPABILITY_MAJOR) +
                                  attribute(driver, device, CU_COMPUTE_CAPABILITY_MINOR);
    const uint32_t opt_in = attribute(driver, device, CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    info->limits = (attune_limits){
        .struct_size = sizeof info->limits,
        .backend = ATTUNE_BACKEND_CUDA,
        .architecture = architecture,
        .compute_units = attribute(driver, device, CU_MULTIPROCESSOR_COUNT),
        .shared_memory = opt_in ? opt_in : attribute(driver, device, CU_MAX_SHARED_MEMORY_PER_BLOCK),
        .shared_memory_unit = attribute(driver, device, CU_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        .shared_memory_reserved = attribute(driver, device, CU_RESERVED_SHARED_MEMORY_PER_BLOCK),
        .workgroup_invocations = attribute(driver, device, CU_MAX_THREADS_PER_BLOCK),
        .unit_invocations = attribute(driver, device, CU_MAX_THREADS_PER_MULTIPROCESSOR),
        .registers = attribute(driver, device, CU_MAX_REGISTERS_PER_MULTIPROCESSOR),
        .registers_per_thread = 255,
        .subgroup_size = attribute(driver, device, CU_WARP_SIZE),
        .matrix = (architecture >= OLDEST ? ATTUNE_MATRIX_MMA_SYNC : 0) |
                  (architecture == 90 ? ATTUNE_MATRIX_WGMMA : 0) |
                  (architecture == 100 || architecture == 103 ? ATTUNE_MATRIX_TCGEN05 : 0) |
                  (untried_kernels() ? ATTUNE_MATRIX_UNTRIED : 0),
        .f16 = true,
        .bf16 = architecture >= OLDEST,
        .subgroup_operations = true,
        .memory = memory,
    };
    if (architecture < OLDEST) {
        info->available = false;
        snprintf(info->reason, sizeof info->reason,
                 "compute capability %u.%u: attune's CUDA kernels need 8.0 (Ampere) or later", architecture / 10,
                 architecture % 10);
    }
}

/* ---------------------------------------------------------------------------------------------------------- devices */

static attune_status device_count(const attune__host *host, uint32_t *count, char *reason, size_t reason_size)
{
    (void)host;
    *count = 0;
    attune__cuda_driver driver;
    char why[256];
    if (!attune__cuda_driver_open(&driver, why, sizeof why)) {
        snprintf(reason, reason_size, "%s", why);
        return ATTUNE_OK;
    }
    int devices = 0;
    const attune__cu_result result = driver.device_count(&devices);
    if (result != CU_SUCCESS)
        snprintf(reason, reason_size, "cuDeviceGetCount gave %s (%d)", attune__cuda_error_name(&driver, result),
                 result);
    else if (devices <= 0)
        snprintf(reason, reason_size, "NVIDIA's driver finds no GPU");
    else
        *count = (uint32_t)devices;
    attune__cuda_driver_close(&driver);
    return ATTUNE_OK;
}

static attune_status find_device(attune__cuda_driver *driver, uint32_t index, attune__cu_device *device)
{
    char reason[256];
    if (!attune__cuda_driver_open(driver, reason, sizeof reason))
        return attune__fail(ATTUNE_UNAVAILABLE, "cuda:%u: %s", index, reason);
    const attune__cu_result result = driver->device_get(device, (int)index);
    if (result == CU_SUCCESS)
        return ATTUNE_OK;
    attune__fail(ATTUNE_UNAVAILABLE, "cuda:%u: cuDeviceGet gave %s (%d)", index,
                 attune__cuda_error_name(driver, result), result);
    attune__cuda_driver_close(driver);
    return ATTUNE_UNAVAILABLE;
}

static attune_status device_describe(const attune__host *host, uint32_t index, attune_device_info *info)
{
    (void)host;
    attune__cuda_driver driver;
    attune__cu_device device;
    ATTUNE__TRY(find_device(&driver, index, &device));
    fill_info(&driver, device, index, info);
    attune__cuda_driver_close(&driver);
    return ATTUNE_OK;
}

/* A device without its context. */
static attune_status make_device(const attune__host *host, attune__cuda_device **device)
{
    attune__cuda_device *made = attune__alloc(&host->allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.backend = &attune__cuda_backend;
    made->base.host = *host;
    made->base.queue = &made->queue.base;
    atomic_init(&made->base.lost, false);
    *device = made;
    return ATTUNE_OK;
}

static void discard_device(attune__cuda_device *device)
{
    const attune_allocator allocator = device->base.host.allocator;
    if (device->retained)
        device->driver.context_release(device->device);
    attune__cuda_driver_close(&device->driver);
    attune__free(&allocator, device);
}

static void device_close(attune_device *device)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    /* Fails in a lost context, which has freed its objects. */
    if (mine->driver.context_push(mine->context) == CU_SUCCESS) {
        attune__cuda_queue_finish(&mine->queue);
        attune__cuda_leave(mine);
    }
    discard_device(mine);
}

/* The part of creation that needs the context current. */
static attune_status finish_device(attune__cuda_device *device, uint32_t index, attune__cu_stream stream)
{
    fill_info(&device->driver, device->device, index, &device->base.info);
    if (!device->base.info.available)
        return attune__fail(ATTUNE_UNAVAILABLE, "cuda:%u: %s", index, device->base.info.reason);
    attune__cuda_compiler_load();
    return attune__cuda_queue_init(device, &device->queue, stream);
}

static attune_status device_open(const attune__host *host, uint32_t index, attune_device **device)
{
    attune__cuda_device *made;
    ATTUNE__TRY(make_device(host, &made));
    snprintf(made->base.info.id, sizeof made->base.info.id, "cuda:%u", index);
    attune_status status = find_device(&made->driver, index, &made->device);
    if (status == ATTUNE_OK)
        status = attune__cuda_check(made, made->driver.context_retain(&made->context, made->device),
                                    "cuDevicePrimaryCtxRetain");
    made->retained = status == ATTUNE_OK;
    if (status == ATTUNE_OK)
        status = attune__cuda_enter(made);
    if (status == ATTUNE_OK) {
        status = finish_device(made, index, NULL);
        attune__cuda_leave(made);
    }
    if (status == ATTUNE_OK)
        *device = &made->base;
    else
        discard_device(made);
    return status;
}

static attune_status device_open_external(const attune__host *host, const void *desc, attune_device **device)
{
    const attune_cuda_device_desc *d = desc;
    attune__cuda_device *made;
    ATTUNE__TRY(make_device(host, &made));
    snprintf(made->base.info.id, sizeof made->base.info.id, "cuda");
    made->context = d->context;
    char reason[256];
    attune_status status = ATTUNE_OK;
    if (!attune__cuda_driver_open(&made->driver, reason, sizeof reason))
        status = attune__fail(ATTUNE_UNAVAILABLE, "cuda: %s", reason);
    if (status == ATTUNE_OK)
        status = attune__cuda_enter(made);
    if (status == ATTUNE_OK) {
        status = attune__cuda_check(made, made->driver.context_device(&made->device), "cuCtxGetDevice");
        if (status == ATTUNE_OK)
            status = finish_device(made, (uint32_t)made->device, d->stream);
        attune__cuda_leave(made);
    }
    if (status == ATTUNE_OK)
        *device = &made->base;
    else
        discard_device(made);
    return status;
}

const attune__backend attune__cuda_backend = {
    .kind = ATTUNE_BACKEND_CUDA,
    .name = "cuda",
    .count = device_count,
    .describe = device_describe,
    .open = device_open,
    .open_external = device_open_external,
    .close = device_close,
    .measure = attune__cuda_measure,
    .buffer_create = attune__cuda_buffer_create,
    .buffer_wrap_device_name = "attune_cuda_buffer_wrap",
    .buffer_wrap_device = attune__cuda_buffer_wrap_device,
    .buffer_destroy = attune__cuda_buffer_destroy,
    .buffer_write = attune__cuda_buffer_write,
    .buffer_read = attune__cuda_buffer_read,
    .mask_upload = attune__cuda_mask_upload,
    .mask_release = attune__cuda_mask_release,
    .mask_create_tensor = attune__cuda_mask_create_tensor,
    .mask_update = attune__cuda_mask_update,
    .programs_create = attune__cuda_programs_create,
    .program_destroy = attune__cuda_program_destroy,
    .program_compile = attune__cuda_pack,
    .forward = attune__cuda_forward,
    .decode = attune__cuda_decode,
    .schedule_size = attune__cuda_schedule_size,
    .schedule = attune__cuda_schedule,
    .append = attune__cuda_append,
    .backward = attune__cuda_backward,
    .merger_create = attune__cuda_merger_create,
    .merger_destroy = attune__cuda_merger_destroy,
    .merger_compile = attune__cuda_merger_pack,
    .mask_compile = attune__cuda_mask_pack,
    .merge = attune__cuda_merge,
    .merge_backward = attune__cuda_merge_backward,
    .copy_tensors = attune__cuda_copy_tensors,
    .copy_lent = attune__cuda_copy_lent,
    .merge_splits = attune__cuda_merge_splits,
    .buffer_distance = attune__cuda_buffer_distance,
    .fewer_heads = true,
    .queue_wrap = attune__cuda_queue_wrap,
    .queue_destroy = attune__cuda_queue_destroy,
    .copy = attune__cuda_copy,
    .wait = attune__cuda_wait,
    .missing_reason = "",
};
