/* SPDX-License-Identifier: MIT */
/* The functions of <attune/cuda.h>. Compiled with the backend. */
#include "api/api.h"

#include <attune/cuda.h>

attune_status attune_cuda_device_open(attune_instance *instance, const attune_cuda_device_desc *desc,
                                      attune_device **device)
{
    ATTUNE__TRY(attune__check_not_null(device, "device"));
    *device = NULL;
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    attune_cuda_device_desc d;
    ATTUNE__TRY(attune__desc_read(&d, sizeof d, desc, sizeof d, "desc"));
    ATTUNE__TRY(attune__check_not_null(d.context, "desc.context"));
    attune_device *opened;
    ATTUNE__TRY(attune__cuda_backend.open_external(&instance->host, &d, &opened));
    attune__device_init(opened, instance);
    *device = opened;
    return ATTUNE_OK;
}

/* Fails unless the device can be used and is of this backend. */
static attune_status check_device(const attune_device *device)
{
    ATTUNE__TRY(attune__device_check(device));
    if (device->backend != &attune__cuda_backend)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "device %s is not a CUDA device", device->info.id);
    return ATTUNE_OK;
}

attune_status attune_cuda_queue_wrap(attune_device *device, void *stream, attune_queue **queue)
{
    ATTUNE__TRY(attune__check_not_null(queue, "queue"));
    *queue = NULL;
    ATTUNE__TRY(check_device(device));
    ATTUNE__TRY(attune__check_not_null(stream, "stream"));
    attune_queue *made;
    ATTUNE__TRY(device->backend->queue_wrap(device, stream, &made));
    attune__device_retain(device);
    *queue = made;
    return ATTUNE_OK;
}

void attune_cuda_queue_destroy(attune_queue *queue)
{
    if (!queue || queue == queue->device->queue)
        return;
    attune_device *device = queue->device;
    device->backend->queue_destroy(queue);
    attune__device_release(device);
}

attune_status attune_cuda_buffer_wrap(attune_device *device, uint64_t address, uint64_t size, attune_buffer **buffer)
{
    ATTUNE__TRY(attune__check_not_null(buffer, "buffer"));
    *buffer = NULL;
    ATTUNE__TRY(check_device(device));
    if (!address || address % 16)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "address is 0x%llx, expected a multiple of 16 that is not 0",
                            (unsigned long long)address);
    if (!size || size > UINT64_MAX - address)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "size is %llu, expected 1 to the end of the address space",
                            (unsigned long long)size);
    const unsigned long long pointer = address;
    attune_buffer *made;
    ATTUNE__TRY(device->backend->buffer_wrap_device(device, &pointer, 0, size, &made));
    attune__device_retain(device);
    *buffer = made;
    return ATTUNE_OK;
}
