/* SPDX-License-Identifier: MIT */
/* Buffers: device memory. Copies use the device's own queue, so that they follow the launches in it. */
#include "cuda/cuda.h"

#include "base/alloc.h"
#include "base/error.h"

attune_status attune__cuda_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    attune__cuda_buffer *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->base.size = size;
    made->owned = true;
    attune_status status = attune__cuda_enter(mine);
    if (status == ATTUNE_OK) {
        status = attune__cuda_check(mine, mine->driver.memory_alloc(&made->pointer, (size_t)size), "a buffer");
        attune__cuda_leave(mine);
    }
    if (status == ATTUNE_OUT_OF_DEVICE_MEMORY)
        attune__fail_context(status, "%llu bytes", (unsigned long long)size);
    if (status != ATTUNE_OK) {
        attune__free(&device->host.allocator, made);
        return status;
    }
    *buffer = &made->base;
    return ATTUNE_OK;
}

attune_status attune__cuda_buffer_wrap_device(attune_device *device, const void *handle, uint64_t offset, uint64_t size,
                                              attune_buffer **buffer)
{
    attune__cuda_buffer *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->base.size = size;
    made->pointer = *(const attune__cu_pointer *)handle + offset;
    *buffer = &made->base;
    return ATTUNE_OK;
}

void attune__cuda_buffer_destroy(attune_buffer *buffer)
{
    attune__cuda_buffer *mine = (attune__cuda_buffer *)buffer;
    attune__cuda_device *device = attune__cuda_of(buffer->device);
    /* Fails in a lost context, which has freed its memory. */
    if (mine->owned && device->driver.context_push(device->context) == CU_SUCCESS) {
        device->driver.memory_free(mine->pointer);
        attune__cuda_leave(device);
    }
    attune__free(&device->base.host.allocator, mine);
}

attune_status attune__cuda_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size)
{
    attune__cuda_device *device = attune__cuda_of(buffer->device);
    const attune__cuda_driver *driver = &device->driver;
    ATTUNE__TRY(attune__cuda_enter(device));
    attune__cu_result result =
        driver->copy_to_device(attune__cuda_pointer(buffer) + offset, data, (size_t)size, device->queue.stream);
    if (result == CU_SUCCESS)
        result = driver->stream_synchronize(device->queue.stream);
    const attune_status status = attune__cuda_check(device, result, "a copy to the device");
    attune__cuda_leave(device);
    return status;
}

attune_status attune__cuda_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size)
{
    attune__cuda_device *device = attune__cuda_of(buffer->device);
    const attune__cuda_driver *driver = &device->driver;
    ATTUNE__TRY(attune__cuda_enter(device));
    attune__cu_result result =
        driver->copy_to_host(data, attune__cuda_pointer(buffer) + offset, (size_t)size, device->queue.stream);
    if (result == CU_SUCCESS)
        result = driver->stream_synchronize(device->queue.stream);
    const attune_status status = attune__cuda_check(device, result, "a copy from the device");
    attune__cuda_leave(device);
    return status;
}

attune_status attune__cuda_copy(attune_queue *queue, const attune__copy *copies, uint32_t count, bool to_device)
{
    attune__cuda_device *device = attune__cuda_of(queue->device);
    const attune__cuda_driver *driver = &device->driver;
    const attune__cu_stream stream = ((attune__cuda_queue *)queue)->stream;
    attune__cu_result result = CU_SUCCESS;
    ATTUNE__TRY(attune__cuda_enter(device));
    for (uint32_t i = 0; i < count && result == CU_SUCCESS; i++) {
        const attune__cu_pointer at = attune__cuda_pointer(copies[i].buffer) + copies[i].offset;
        result = to_device ? driver->copy_to_device(at, copies[i].memory, (size_t)copies[i].size, stream)
                           : driver->copy_to_host(copies[i].memory, at, (size_t)copies[i].size, stream);
    }
    /* Also after an error: copies that were enqueued use the caller's memory. */
    const attune__cu_result finished = driver->stream_synchronize(stream);
    const attune_status status =
        attune__cuda_check(device, result == CU_SUCCESS ? finished : result, "copies of several ranks");
    attune__cuda_leave(device);
    return status;
}

int64_t attune__cuda_buffer_distance(const attune_buffer *from, const attune_buffer *to)
{
    return (int64_t)(attune__cuda_pointer(to) - attune__cuda_pointer(from));
}
