/* SPDX-License-Identifier: MIT */
#include "vulkan/functions.h"

#include <stddef.h>

#define LOAD_FROM(get, handle, name)                                                                                   \
    vk->name = (PFN_vk##name)get(handle, "vk" #name);                                                                  \
    if (!vk->name && !missing)                                                                                         \
        missing = "vk" #name;

const char *attune__vulkan_load_loader(attune__vulkan_functions *vk, PFN_vkGetInstanceProcAddr get)
{
    const char *missing = NULL;
    vk->GetInstanceProcAddr = get;
#define LOAD(name) LOAD_FROM(get, NULL, name)
    ATTUNE__VULKAN_LOADER_FUNCTIONS(LOAD)
#undef LOAD
    return missing;
}

const char *attune__vulkan_load_instance(attune__vulkan_functions *vk, VkInstance instance)
{
    const char *missing = NULL;
#define LOAD(name) LOAD_FROM(vk->GetInstanceProcAddr, instance, name)
    ATTUNE__VULKAN_INSTANCE_FUNCTIONS(LOAD)
#undef LOAD
    const char *required = missing;
#define LOAD(name) LOAD_FROM(vk->GetInstanceProcAddr, instance, name)
    ATTUNE__VULKAN_OPTIONAL_FUNCTIONS(LOAD)
#undef LOAD
    return required;
}

const char *attune__vulkan_load_device(attune__vulkan_functions *vk, VkDevice device)
{
    const char *missing = NULL;
#define LOAD(name) LOAD_FROM(vk->GetDeviceProcAddr, device, name)
    ATTUNE__VULKAN_DEVICE_FUNCTIONS(LOAD)
#undef LOAD
    return missing;
}
