/* SPDX-License-Identifier: MIT */
/* Buffers: memory objects. Copies use the device's own queue, so that they follow the launches in it. */
#include "opencl/opencl.h"

#include "base/alloc.h"
#include "base/error.h"

static attune_status check_size(const attune_device *device, uint64_t size)
{
    const uint64_t most = device->info.limits.storage_range;
    if (most && size > most)
        return attune__fail(ATTUNE_OUT_OF_DEVICE_MEMORY,
                            "a buffer of %llu bytes: device %s allocates at most %llu at once "
                            "(CL_DEVICE_MAX_MEM_ALLOC_SIZE): cut the keys into segments",
                            (unsigned long long)size, device->info.id, (unsigned long long)most);
    return ATTUNE_OK;
}

attune_status attune__opencl_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer)
{
    attune__opencl_device *mine = attune__opencl_of(device);
    ATTUNE__TRY(check_size(device, size));
    attune__opencl_buffer *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    int32_t error = CL_SUCCESS;
    made->base.device = device;
    made->base.size = size;
    made->memory = mine->driver.memory_create(mine->context, CL_MEM_READ_WRITE, (size_t)size, NULL, &error);
    if (made->memory) {
        *buffer = &made->base;
        return ATTUNE_OK;
    }
    attune__free(&device->host.allocator, made);
    /* Nothing was launched: no error here takes the device with it. */
    if (error == CL_OUT_OF_RESOURCES || error == CL_INVALID_BUFFER_SIZE)
        return attune__fail(ATTUNE_OUT_OF_DEVICE_MEMORY, "%llu bytes: device %s has no memory for a buffer: %s (%d)",
                            (unsigned long long)size, device->info.id, attune__opencl_error_name(error), error);
    const attune_status status = attune__opencl_check(mine, error ? error : CL_OUT_OF_HOST_MEMORY, "a buffer");
    return attune__fail_context(status, "%llu bytes", (unsigned long long)size);
}

attune_status attune__opencl_buffer_wrap_device(attune_device *device, const void *handle, uint64_t offset,
                                                uint64_t size, attune_buffer **buffer)
{
    const attune__opencl_driver *driver = &attune__opencl_of(device)->driver;
    const attune__cl_memory memory = *(const attune__cl_memory *)handle;
    attune__cl_context context = NULL;
    size_t all = 0;
    if (driver->memory_info(memory, CL_MEM_CONTEXT, sizeof(void *), &context, NULL) ||
        driver->memory_info(memory, CL_MEM_SIZE, sizeof all, &all, NULL) ||
        context != attune__opencl_of(device)->context)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "memory is no cl_mem of the context of device %s",
                            device->info.id);
    if (offset > all || size > all - offset)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "offset %llu + size %llu exceeds the %llu bytes of the cl_mem",
                            (unsigned long long)offset, (unsigned long long)size, (unsigned long long)all);
    attune__opencl_buffer *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->base.size = size;
    made->memory = memory;
    made->offset = offset;
    const attune_status status =
        attune__opencl_check(attune__opencl_of(device), driver->memory_retain(memory), "clRetainMemObject");
    if (status == ATTUNE_OK)
        *buffer = &made->base;
    else
        attune__free(&device->host.allocator, made);
    return status;
}

void attune__opencl_buffer_destroy(attune_buffer *buffer)
{
    attune__opencl_buffer *mine = (attune__opencl_buffer *)buffer;
    attune__opencl_device *device = attune__opencl_of(buffer->device);
    device->driver.memory_release(mine->memory);
    attune__free(&device->base.host.allocator, mine);
}

attune_status attune__opencl_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size)
{
    const attune__opencl_buffer *mine = (const attune__opencl_buffer *)buffer;
    attune__opencl_call call;
    attune__opencl_begin(&attune__opencl_of(buffer->device)->queue, &call);
    attune__opencl_write(&call, mine->memory, mine->offset + offset, data, size);
    return attune__opencl_finish(&call);
}

attune_status attune__opencl_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size)
{
    const attune__opencl_buffer *mine = (const attune__opencl_buffer *)buffer;
    attune__opencl_call call;
    attune__opencl_begin(&attune__opencl_of(buffer->device)->queue, &call);
    attune__opencl_read(&call, mine->memory, mine->offset + offset, data, size);
    return attune__opencl_finish(&call);
}

attune_status attune__opencl_copy(attune_queue *queue, const attune__copy *copies, uint32_t count, bool to_device)
{
    attune__opencl_call call;
    attune__opencl_begin((attune__opencl_queue *)queue, &call);
    for (uint32_t i = 0; i < count; i++) {
        const attune__opencl_buffer *mine = (const attune__opencl_buffer *)copies[i].buffer;
        const uint64_t offset = mine->offset + copies[i].offset;
        if (to_device)
            attune__opencl_write(&call, mine->memory, offset, copies[i].memory, copies[i].size);
        else
            attune__opencl_read(&call, mine->memory, offset, copies[i].memory, copies[i].size);
    }
    return attune__opencl_finish(&call);
}
