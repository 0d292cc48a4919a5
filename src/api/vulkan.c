/* SPDX-License-Identifier: MIT */
/* The functions of <attune/vulkan.h> that check arguments. Compiled with the backend. */
#include "api/api.h"

#include <attune/vulkan.h>

attune_status attune_vulkan_device_open(attune_instance *instance, const attune_vulkan_device_desc *desc,
                                        attune_device **device)
{
    ATTUNE__TRY(attune__check_not_null(device, "device"));
    *device = NULL;
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    attune_vulkan_device_desc d;
    ATTUNE__TRY(attune__desc_read(&d, sizeof d, desc, sizeof d, "desc"));
    ATTUNE__TRY(attune__check_not_null(d.instance, "desc.instance"));
    ATTUNE__TRY(attune__check_not_null(d.physical_device, "desc.physical_device"));
    ATTUNE__TRY(attune__check_not_null(d.device, "desc.device"));
    ATTUNE__TRY(attune__check_not_null(d.queue, "desc.queue"));
    if (d.extension_count)
        ATTUNE__TRY(attune__check_not_null(d.extensions, "desc.extensions"));
    for (uint32_t i = 0; i < d.extension_count; i++)
        if (!d.extensions[i])
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.extensions[%u] is NULL", i);
    if (!d.lock_queue != !d.unlock_queue)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.%s is NULL and its counterpart is not: set both or neither",
                            d.lock_queue ? "unlock_queue" : "lock_queue");
    if (d.api_version && d.api_version < VK_API_VERSION_1_2)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.api_version is %u.%u, expected at least 1.2: create the instance with it",
                            VK_API_VERSION_MAJOR(d.api_version), VK_API_VERSION_MINOR(d.api_version));
    attune_device *opened;
    ATTUNE__TRY(attune__vulkan_backend.open_external(&instance->host, &d, &opened));
    attune__device_init(opened, instance);
    *device = opened;
    return ATTUNE_OK;
}

/* Fails unless the device can be used and is of this backend. */
static attune_status check_device(const attune_device *device)
{
    ATTUNE__TRY(attune__device_check(device));
    if (device->backend != &attune__vulkan_backend)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "device %s is not a Vulkan device", device->info.id);
    return ATTUNE_OK;
}

attune_status attune_vulkan_device_handles(const attune_device *device, attune_vulkan_handles *handles)
{
    ATTUNE__TRY(attune__check_not_null(device, "device"));
    ATTUNE__TRY(attune__check_not_null(handles, "handles"));
    ATTUNE__TRY(check_device(device));
    attune_vulkan_handles found = {.struct_size = sizeof found};
    device->backend->handles(device, &found);
    return attune__desc_write(handles, &found, sizeof found, sizeof found, "handles");
}

attune_status attune_vulkan_buffer_wrap(attune_device *device, VkBuffer vk_buffer, VkDeviceSize offset,
                                        VkDeviceSize size, attune_buffer **buffer)
{
    ATTUNE__TRY(attune__check_not_null(buffer, "buffer"));
    *buffer = NULL;
    ATTUNE__TRY(check_device(device));
    if (vk_buffer == VK_NULL_HANDLE)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "vk_buffer is VK_NULL_HANDLE");
    if (!size)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "size is 0: a buffer has at least one byte");
    if (offset % 16)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "offset is %llu, expected a multiple of 16",
                            (unsigned long long)offset);
    if (size > UINT64_MAX - offset)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "offset %llu + size %llu exceeds 64 bits",
                            (unsigned long long)offset, (unsigned long long)size);
    attune_buffer *made;
    ATTUNE__TRY(device->backend->buffer_wrap_device(device, &vk_buffer, offset, size, &made));
    attune__device_retain(device);
    *buffer = made;
    return ATTUNE_OK;
}

static attune_status check_record(const attune_plan *plan, VkCommandBuffer command_buffer)
{
    ATTUNE__TRY(attune__check_not_null(plan, "plan"));
    ATTUNE__TRY(check_device(plan->device));
    return attune__check_not_null(command_buffer, "command_buffer");
}

static attune_status check_no_seconds(const double *seconds)
{
    if (seconds)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.seconds is set, but recorded launches run when the command buffer is submitted");
    return ATTUNE_OK;
}

attune_status attune_vulkan_forward_record(const attune_plan *plan, VkCommandBuffer command_buffer,
                                           const attune_forward_args *args)
{
    ATTUNE__TRY(check_record(plan, command_buffer));
    attune__forward_call resolved;
    ATTUNE__TRY(attune__forward_resolve(plan, args, &resolved));
    ATTUNE__TRY(check_no_seconds(resolved.call.seconds));
    const attune__program *program = attune__plan_program(plan, resolved.call.q_len, resolved.call.kv_len);
    return plan->device->backend->record(program, &command_buffer, &resolved.call);
}

attune_status attune_vulkan_mask_update_record(attune_mask *mask, VkCommandBuffer command_buffer,
                                               const attune_tensor *tensor)
{
    attune_tensor checked;
    ATTUNE__TRY(attune__check_not_null(mask, "mask"));
    ATTUNE__TRY(attune__check_not_null(command_buffer, "command_buffer"));
    ATTUNE__TRY(attune__mask_update_check(mask, tensor, &checked));
    attune__device_mask *device_mask = mask->uploads->device_mask;
    ATTUNE__TRY(check_device(mask->uploads->device));
    attune__mask_resize(mask, checked.size, checked.stride);
    mask->uploads->device->backend->mask_record(mask, device_mask, &checked, &command_buffer);
    mask->updated = true;
    return ATTUNE_OK;
}

attune_status attune_vulkan_backward_record(const attune_plan *plan, VkCommandBuffer command_buffer,
                                            const attune_backward_args *args)
{
    ATTUNE__TRY(check_record(plan, command_buffer));
    attune__backward_call resolved;
    ATTUNE__TRY(attune__backward_resolve(plan, args, &resolved));
    ATTUNE__TRY(check_no_seconds(resolved.call.forward.seconds));
    return plan->device->backend->record_backward(plan->programs[0], &command_buffer, &resolved.call);
}
