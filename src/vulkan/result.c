/* SPDX-License-Identifier: MIT */
/* The driver's errors as statuses and messages. */
#include "base/error.h"
#include "vulkan/vulkan.h"

const char *attune__vulkan_result_string(VkResult result)
{
    switch (result) {
#define NAME(code)                                                                                                     \
    case code:                                                                                                         \
        return #code;
        NAME(VK_NOT_READY)
        NAME(VK_TIMEOUT)
        NAME(VK_INCOMPLETE)
        NAME(VK_ERROR_OUT_OF_HOST_MEMORY)
        NAME(VK_ERROR_OUT_OF_DEVICE_MEMORY)
        NAME(VK_ERROR_INITIALIZATION_FAILED)
        NAME(VK_ERROR_DEVICE_LOST)
        NAME(VK_ERROR_MEMORY_MAP_FAILED)
        NAME(VK_ERROR_LAYER_NOT_PRESENT)
        NAME(VK_ERROR_EXTENSION_NOT_PRESENT)
        NAME(VK_ERROR_FEATURE_NOT_PRESENT)
        NAME(VK_ERROR_INCOMPATIBLE_DRIVER)
        NAME(VK_ERROR_TOO_MANY_OBJECTS)
        NAME(VK_ERROR_UNKNOWN)
        NAME(VK_ERROR_FRAGMENTATION)
        NAME(VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS)
        NAME(VK_ERROR_VALIDATION_FAILED_EXT)
        NAME(VK_ERROR_INVALID_SHADER_NV)
#undef NAME
    default:
        return "an error without a name";
    }
}

attune_status attune__vulkan_fail(attune__vulkan_device *device, VkResult result, const char *what)
{
    attune_status status = ATTUNE_INTERNAL;
    switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
        status = ATTUNE_OUT_OF_HOST_MEMORY;
        break;
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_TOO_MANY_OBJECTS:
    case VK_ERROR_MEMORY_MAP_FAILED:
    case VK_ERROR_FRAGMENTATION:
        status = ATTUNE_OUT_OF_DEVICE_MEMORY;
        break;
    case VK_ERROR_DEVICE_LOST:
        status = ATTUNE_DEVICE_LOST;
        if (device)
            atomic_store(&device->base.lost, true);
        break;
    case VK_ERROR_INITIALIZATION_FAILED:
    case VK_ERROR_INCOMPATIBLE_DRIVER:
    case VK_ERROR_EXTENSION_NOT_PRESENT:
    case VK_ERROR_FEATURE_NOT_PRESENT:
    case VK_ERROR_LAYER_NOT_PRESENT:
        status = ATTUNE_UNAVAILABLE;
        break;
    default:
        break;
    }
    return attune__fail(status, "%s: %s (%d)", what, attune__vulkan_result_string(result), (int)result);
}
