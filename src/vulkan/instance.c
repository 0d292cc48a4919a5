/* SPDX-License-Identifier: MIT */
/* The loader, opened at run time and by this use of it alone, and an instance. */
#include "vulkan/vulkan.h"

#include <stdio.h>
#include <string.h>

#include "base/library.h"

#if defined(_WIN32)
#define VULKAN_LIBRARY "vulkan-1.dll"
#else
#define VULKAN_LIBRARY "libvulkan.so.1"
#endif

/* Newer devices are used as this version; what later versions promote is requested by its extension. */
#define VERSION VK_API_VERSION_1_3

PFN_vkGetInstanceProcAddr attune__vulkan_library_open(const char *name, void **library, char *reason,
                                                      size_t reason_size)
{
    const char *file = name ? name : VULKAN_LIBRARY;
    char why[256];
    *library = attune__library_open(file, 0, why, sizeof why);
    if (!*library) {
        snprintf(reason, reason_size,
                 "the Vulkan loader (Debian: libvulkan1) and a driver, NVIDIA's or mesa-vulkan-drivers, are needed: %s",
                 why);
        return NULL;
    }
    PFN_vkGetInstanceProcAddr get;
    void *symbol = attune__library_symbol(*library, "vkGetInstanceProcAddr");
    memcpy(&get, &symbol, sizeof get);
    if (!get) {
        snprintf(reason, reason_size, "%s has no vkGetInstanceProcAddr: it is not a Vulkan loader", file);
        attune__library_close(*library);
        *library = NULL;
    }
    return get;
}

/* A loader hides non-conformant drivers (MoltenVK) unless the instance requests them. */
static bool has_portability(const attune__vulkan_functions *vk)
{
    VkExtensionProperties extensions[128];
    uint32_t count = 128;
    if (vk->EnumerateInstanceExtensionProperties(NULL, &count, extensions) < 0)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(extensions[i].extensionName, VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME))
            return true;
    return false;
}

static bool create(attune__vulkan_instance *instance, PFN_vkGetInstanceProcAddr get, char *reason, size_t reason_size)
{
    attune__vulkan_functions *vk = &instance->vk;
    const char *missing = attune__vulkan_load_loader(vk, get);
    if (missing) {
        snprintf(reason, reason_size, "the Vulkan loader has no %s: Vulkan 1.2 is needed", missing);
        return false;
    }
    uint32_t version = 0;
    if (vk->EnumerateInstanceVersion(&version) || version < VK_API_VERSION_1_2) {
        snprintf(reason, reason_size, "the Vulkan loader has version %u.%u, 1.2 is needed: update it",
                 VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
        return false;
    }
    instance->api_version = version < VERSION ? version : VERSION;
    const char *const portability = VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME;
    const bool portable = has_portability(vk);
    const VkApplicationInfo application = {
        .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
        .pEngineName = "attune",
        .engineVersion = attune_version(),
        .apiVersion = instance->api_version,
    };
    const VkInstanceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
        .flags = portable ? VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR : 0,
        .pApplicationInfo = &application,
        .enabledExtensionCount = portable,
        .ppEnabledExtensionNames = &portability,
    };
    VkResult result = vk->CreateInstance(&info, NULL, &instance->handle);
    if (result) {
        instance->handle = VK_NULL_HANDLE;
        snprintf(reason, reason_size, "vkCreateInstance: %s%s", attune__vulkan_result_string(result),
                 result == VK_ERROR_INCOMPATIBLE_DRIVER ? ": the loader found no driver that works" : "");
        return false;
    }
    missing = attune__vulkan_load_instance(vk, instance->handle);
    if (missing)
        snprintf(reason, reason_size, "the Vulkan loader has no %s: Vulkan 1.2 is needed", missing);
    return !missing;
}

bool attune__vulkan_instance_create(const attune__vulkan_overrides *overrides, attune__vulkan_instance *instance,
                                    char *reason, size_t reason_size)
{
    *instance = (attune__vulkan_instance){0};
    PFN_vkGetInstanceProcAddr get = overrides ? overrides->get : NULL;
    if (!get)
        get =
            attune__vulkan_library_open(overrides ? overrides->library : NULL, &instance->library, reason, reason_size);
    if (get && create(instance, get, reason, reason_size))
        return true;
    attune__vulkan_instance_destroy(instance);
    return false;
}

void attune__vulkan_instance_destroy(attune__vulkan_instance *instance)
{
    if (instance->handle && instance->vk.DestroyInstance)
        instance->vk.DestroyInstance(instance->handle, NULL);
    if (instance->library)
        attune__library_close(instance->library);
    *instance = (attune__vulkan_instance){0};
}
