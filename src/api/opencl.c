/* SPDX-License-Identifier: MIT */
/* The functions of <attune/opencl.h>. Compiled with the backend. */
#include "api/api.h"

#include <attune/opencl.h>

attune_status attune_opencl_device_open(attune_instance *instance, const attune_opencl_device_desc *desc,
                                        attune_device **device)
{
    ATTUNE__TRY(attune__check_not_null(device, "device"));
    *device = NULL;
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    attune_opencl_device_desc d;
    ATTUNE__TRY(attune__desc_read(&d, sizeof d, desc, sizeof d, "desc"));
    ATTUNE__TRY(attune__check_not_null(d.context, "desc.context"));
    ATTUNE__TRY(attune__check_not_null(d.device, "desc.device"));
    attune_device *opened;
    ATTUNE__TRY(attune__opencl_backend.open_external(&instance->host, &d, &opened));
    attune__device_init(opened, instance);
    *device = opened;
    return ATTUNE_OK;
}

/* Fails unless the device can be used and is of this backend. */
static attune_status check_device(const attune_device *device)
{
    ATTUNE__TRY(attune__device_check(device));
    if (device->backend != &attune__opencl_backend)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "device %s is not an OpenCL device", device->info.id);
    return ATTUNE_OK;
}

attune_status attune_opencl_device_handles(const attune_device *device, attune_opencl_device_desc *handles)
{
    ATTUNE__TRY(attune__check_not_null(handles, "handles"));
    ATTUNE__TRY(check_device(device));
    attune_opencl_device_desc found = {.struct_size = sizeof found};
    device->backend->handles(device, &found);
    return attune__desc_write(handles, &found, sizeof found, sizeof found, "handles");
}

attune_status attune_opencl_queue_wrap(attune_device *device, void *queue, attune_queue **wrapped)
{
    ATTUNE__TRY(attune__check_not_null(wrapped, "wrapped"));
    *wrapped = NULL;
    ATTUNE__TRY(check_device(device));
    ATTUNE__TRY(attune__check_not_null(queue, "queue"));
    attune_queue *made;
    ATTUNE__TRY(device->backend->queue_wrap(device, queue, &made));
    attune__device_retain(device);
    *wrapped = made;
    return ATTUNE_OK;
}

void attune_opencl_queue_destroy(attune_queue *queue)
{
    if (!queue || queue == queue->device->queue)
        return;
    attune_device *device = queue->device;
    device->backend->queue_destroy(queue);
    attune__device_release(device);
}

attune_status attune_opencl_buffer_wrap(attune_device *device, void *memory, uint64_t offset, uint64_t size,
                                        attune_buffer **buffer)
{
    ATTUNE__TRY(attune__check_not_null(buffer, "buffer"));
    *buffer = NULL;
    ATTUNE__TRY(check_device(device));
    ATTUNE__TRY(attune__check_not_null(memory, "memory"));
    if (!size)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "size is 0: a buffer has at least one byte");
    if (offset % 16)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "offset is %llu, expected a multiple of 16",
                            (unsigned long long)offset);
    attune_buffer *made;
    ATTUNE__TRY(device->backend->buffer_wrap_device(device, &memory, offset, size, &made));
    attune__device_retain(device);
    *buffer = made;
    return ATTUNE_OK;
}
