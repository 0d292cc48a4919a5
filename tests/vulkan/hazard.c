/* SPDX-License-Identifier: MIT */
/* Two writes of the same bytes without a barrier between them: what the validation layer must see (validated.py). */
#include <stdio.h>

#include "api/api.h"
#include "vulkan/vulkan.h"

static attune_status race(attune_device *device)
{
    attune__vulkan_device *vulkan = attune__vulkan_of(device);
    attune_buffer *buffer;
    attune__vulkan_slot *slot;
    ATTUNE__TRY(attune_buffer_create(device, 256, &buffer));
    attune_status status = attune__vulkan_begin(vulkan, false, &slot);
    if (status == ATTUNE_OK) {
        const attune__vulkan_buffer *to = (const attune__vulkan_buffer *)buffer;
        for (uint32_t i = 0; i < 2; i++)
            vulkan->vk.CmdFillBuffer(slot->commands, to->handle, to->offset, 256, i);
        status = attune__vulkan_submit(vulkan, slot, NULL);
    }
    if (status == ATTUNE_OK)
        status = attune__vulkan_wait_idle(vulkan);
    attune_buffer_destroy(buffer);
    return status;
}

int main(void)
{
    attune_instance *instance;
    attune_device *device = NULL;
    attune_status status = attune_instance_create(NULL, &instance);
    if (status != ATTUNE_OK)
        return 1;
    status = attune_device_open(instance, "vulkan", &device);
    const int code = status == ATTUNE_UNAVAILABLE ? 3 : status || race(device) ? 1 : 0;
    if (code)
        fprintf(stderr, "%s\n", attune_last_error());
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    return code;
}
