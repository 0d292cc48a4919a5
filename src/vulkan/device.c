/* SPDX-License-Identifier: MIT */
/* Devices: enumeration, opening our own, borrowing an engine's; the backend's table. */
#include "vulkan/vulkan.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* ------------------------------------------------------------------------------------------------------ enumeration */

/* Usable devices first, then by type: discrete before integrated before virtual before CPU. */
static uint32_t rank(const attune__vulkan_physical *physical)
{
    uint32_t order;
    switch (physical->type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
        order = 0;
        break;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
        order = 1;
        break;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
        order = 2;
        break;
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
        order = 4;
        break;
    default:
        order = 3;
    }
    return order + (physical->info.available ? 0 : 8);
}

/* Two drivers, or two manifests of one driver, show the same chip twice. */
static bool same_device(const attune__vulkan_physical *a, const attune__vulkan_physical *b)
{
    if (a->has_pci && b->has_pci)
        return !memcmp(a->pci, b->pci, sizeof a->pci);
    static const uint8_t none[VK_UUID_SIZE];
    return memcmp(a->uuid, none, sizeof none) && !memcmp(a->uuid, b->uuid, sizeof a->uuid) && a->vendor == b->vendor;
}

/* Keeps `list` in order of rank, the driver's order within one. Of two drivers of a chip it has the one that can be
 * used. */
static void insert(attune__vulkan_physical *list, uint32_t *count, const attune__vulkan_physical *found)
{
    uint32_t same = 0;
    while (same < *count && !same_device(&list[same], found))
        same++;
    if (same < *count) {
        if (list[same].info.available || !found->info.available)
            return;
        (*count)--;
        memmove(&list[same], &list[same + 1], (*count - same) * sizeof *list);
    }
    uint32_t at = (*count)++;
    for (; at > 0 && rank(&list[at - 1]) > rank(found); at--)
        list[at] = list[at - 1];
    list[at] = *found;
}

/* Reads all devices into *list, which the caller frees also on failure; where there is none, the reason. */
static attune_status enumerate(const attune_allocator *allocator, const attune__vulkan_instance *instance,
                               attune__vulkan_physical **list, uint32_t *count, char *reason, size_t reason_size)
{
    enum { MOST = 64 };
    VkPhysicalDevice handles[MOST];
    uint32_t found = MOST;
    *count = 0;
    const VkResult result = instance->vk.EnumeratePhysicalDevices(instance->handle, &found, handles);
    if (result < 0)
        snprintf(reason, reason_size, "vkEnumeratePhysicalDevices: %s (%d)", attune__vulkan_result_string(result),
                 (int)result);
    else if (!found)
        snprintf(reason, reason_size, "the Vulkan loader lists no device: is a driver installed?");
    if (result < 0 || !found)
        return ATTUNE_OK;
    /* One more than there are: a device is read at the end before it is sorted in. */
    *list = attune__alloc(allocator, found + 1, sizeof **list);
    if (!*list)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune__vulkan_physical *next = &(*list)[found];
    for (uint32_t i = 0; i < found; i++) {
        memset(next, 0, sizeof *next);
        next->handle = handles[i];
        ATTUNE__TRY(attune__vulkan_physical_read(allocator, &instance->vk, instance->api_version, next));
        if (next->info.available)
            attune__vulkan_limits_choose(next);
        insert(*list, count, next);
    }
    for (uint32_t i = 0; i < *count; i++)
        snprintf((*list)[i].info.id, sizeof(*list)[i].info.id, "vulkan:%u", i);
    return ATTUNE_OK;
}

attune_status attune__vulkan_count_with(const attune__host *host, const attune__vulkan_overrides *overrides,
                                        uint32_t *count, char *reason, size_t reason_size)
{
    *count = 0;
    attune__vulkan_instance instance;
    if (!attune__vulkan_instance_create(overrides, &instance, reason, reason_size))
        return ATTUNE_OK;
    attune__vulkan_physical *list = NULL;
    attune_status status = enumerate(&host->allocator, &instance, &list, count, reason, reason_size);
    attune__free(&host->allocator, list);
    attune__vulkan_instance_destroy(&instance);
    return status;
}

/* One device of the list; *instance stays the caller's to destroy. */
static attune_status find(const attune__host *host, const attune__vulkan_overrides *overrides, uint32_t index,
                          attune__vulkan_instance *instance, attune__vulkan_physical *physical)
{
    char reason[256];
    if (!attune__vulkan_instance_create(overrides, instance, reason, sizeof reason))
        return attune__fail(ATTUNE_UNAVAILABLE, "vulkan:%u: %s", index, reason);
    attune__vulkan_physical *list = NULL;
    uint32_t count;
    attune_status status = enumerate(&host->allocator, instance, &list, &count, reason, sizeof reason);
    if (status == ATTUNE_OK && !count)
        status = attune__fail(ATTUNE_UNAVAILABLE, "vulkan:%u: %s", index, reason);
    else if (status == ATTUNE_OK && index >= count)
        status = attune__fail(ATTUNE_UNAVAILABLE, "vulkan:%u: the Vulkan loader lists %u devices now", index, count);
    if (status == ATTUNE_OK)
        *physical = list[index]; /* NOLINT(clang-analyzer-core.NullDereference): index is below count */
    attune__free(&host->allocator, list);
    return status;
}

attune_status attune__vulkan_describe_with(const attune__host *host, const attune__vulkan_overrides *overrides,
                                           uint32_t index, attune_device_info *info)
{
    attune__vulkan_instance instance;
    attune__vulkan_physical physical;
    attune_status status = find(host, overrides, index, &instance, &physical);
    if (status == ATTUNE_OK)
        *info = physical.info;
    attune__vulkan_instance_destroy(&instance);
    return status;
}

/* --------------------------------------------------------------------------------------------------- open and close */

static void device_close(attune_device *device)
{
    attune__vulkan_device *mine = attune__vulkan_of(device);
    const attune_allocator allocator = device->host.allocator;
    if (mine->handle) {
        /* A lost device answers at once, and may be destroyed. */
        if (mine->queue.timeline)
            (void)attune__vulkan_wait_idle(mine);
        attune__vulkan_staging_finish(mine);
        attune__vulkan_memory_finish(mine);
        attune__vulkan_queue_finish(mine);
        if (!mine->lent)
            mine->vk.DestroyDevice(mine->handle, NULL);
    }
    attune__vulkan_instance instance = {
        .vk = mine->vk,
        .library = mine->library,
        .handle = mine->lent ? VK_NULL_HANDLE : mine->instance,
    };
    attune__vulkan_instance_destroy(&instance);
    attune__free(&allocator, mine);
}

static attune_status allocate(const attune__host *host, attune__vulkan_device **device)
{
    attune__vulkan_device *made = attune__alloc(&host->allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.backend = &attune__vulkan_backend;
    made->base.host = *host;
    made->base.queue = &made->queue.base;
    made->queue.base.device = &made->base;
    atomic_init(&made->base.lost, false);
    *device = made;
    return ATTUNE_OK;
}

static attune_status create_device(attune__vulkan_device *device)
{
    attune__vulkan_physical *physical = &device->physical;
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
        .queueFamilyIndex = physical->family,
        .queueCount = 1,
        .pQueuePriorities = &priority,
    };
    const char *names[ATTUNE__VULKAN_EXTENSIONS];
    uint32_t count = 0;
    for (uint32_t e = 0; e < ATTUNE__VULKAN_EXTENSIONS; e++)
        if (physical->extensions & 1u << e)
            names[count++] = attune__vulkan_extension_names[e];
    attune__vulkan_chain chain;
    attune__vulkan_chain_init(&chain, physical->api_version, physical->extensions);
    attune__vulkan_chain_enable(&chain, &physical->features);
    const VkDeviceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
        .pNext = &chain,
        .queueCreateInfoCount = 1,
        .pQueueCreateInfos = &queue,
        .enabledExtensionCount = count,
        .ppEnabledExtensionNames = names,
    };
    VkResult result = device->vk.CreateDevice(physical->handle, &info, NULL, &device->handle);
    if (result) {
        device->handle = VK_NULL_HANDLE;
        return attune__vulkan_fail(device, result, "vkCreateDevice");
    }
    return ATTUNE_OK;
}

/* The part of opening that own and lent devices share, once there is a handle. */
static attune_status finish_open(attune__vulkan_device *device, bool staging_only)
{
    device->base.info = device->physical.info;
    ATTUNE__TRY(attune__vulkan_queue_init(device));
    ATTUNE__TRY(attune__vulkan_memory_init(device, staging_only));
    return attune__vulkan_fragment_layout_verify(device);
}

static attune_status load_device(attune__vulkan_device *device)
{
    const char *missing = attune__vulkan_load_device(&device->vk, device->handle);
    return missing ? attune__fail(ATTUNE_UNAVAILABLE, "the driver has no %s: update it", missing) : ATTUNE_OK;
}

static attune_status open_own(attune__vulkan_device *device, const attune__vulkan_overrides *overrides, uint32_t index)
{
    attune__vulkan_instance instance;
    attune_status status = find(&device->base.host, overrides, index, &instance, &device->physical);
    device->vk = instance.vk;
    device->library = instance.library;
    device->instance = instance.handle;
    ATTUNE__TRY(status);
    const attune_device_info *info = &device->physical.info;
    if (!info->available)
        return attune__fail(ATTUNE_UNAVAILABLE, "device %s, %s, cannot be used: %s", info->id, info->name,
                            info->reason);
    ATTUNE__TRY(create_device(device));
    ATTUNE__TRY(load_device(device));
    device->vk.GetDeviceQueue(device->handle, device->physical.family, 0, &device->queue.handle);
    device->queue.family = device->physical.family;
    return finish_open(device, overrides && overrides->staging_only);
}

attune_status attune__vulkan_open_with(const attune__host *host, const attune__vulkan_overrides *overrides,
                                       uint32_t index, attune_device **device)
{
    attune__vulkan_device *made;
    ATTUNE__TRY(allocate(host, &made));
    attune_status status = open_own(made, overrides, index);
    if (status)
        device_close(&made->base);
    else
        *device = &made->base;
    return status;
}

/* ------------------------------------------------------------------------------------------------ caller's devices */

static bool enables(const attune_vulkan_device_desc *desc, const char *extension)
{
    for (uint32_t i = 0; i < desc->extension_count; i++)
        if (!strcmp(desc->extensions[i], extension))
            return true;
    return false;
}

static attune_status open_lent(attune__vulkan_device *device, const attune_vulkan_device_desc *desc)
{
    attune__vulkan_physical *physical = &device->physical;
    const attune_device_info *info = &physical->info;
    PFN_vkGetInstanceProcAddr get = desc->get_instance_proc_addr;
    if (!get) {
        char reason[256];
        get = attune__vulkan_library_open(NULL, &device->library, reason, sizeof reason);
        if (!get)
            return attune__fail(ATTUNE_UNAVAILABLE, "%s: set desc.get_instance_proc_addr", reason);
    }
    const char *missing = attune__vulkan_load_loader(&device->vk, get);
    if (!missing)
        missing = attune__vulkan_load_instance(&device->vk, desc->instance);
    if (missing)
        return attune__fail(ATTUNE_UNAVAILABLE, "desc.get_instance_proc_addr knows no %s", missing);
    device->instance = desc->instance;
    physical->handle = desc->physical_device;
    const uint32_t version = desc->api_version ? desc->api_version : VK_API_VERSION_1_2;
    ATTUNE__TRY(attune__vulkan_physical_read(&device->base.host.allocator, &device->vk, version, physical));
    snprintf(physical->info.id, sizeof physical->info.id, "vulkan");
    if (!info->available)
        return attune__fail(ATTUNE_UNAVAILABLE, "the lent device, %s, cannot be used: %s", info->name, info->reason);

    attune__vulkan_features enabled;
    attune__vulkan_chain_read(desc->features, desc->enabled_features, &enabled);
    attune__vulkan_features_meet(&physical->features, &enabled);
    for (uint32_t e = 0; e < ATTUNE__VULKAN_EXTENSIONS; e++)
        if (!enables(desc, attune__vulkan_extension_names[e]))
            physical->extensions &= ~(1u << e);
    if (!(physical->extensions & ATTUNE__VULKAN_COOPERATIVE_MATRIX))
        physical->features.cooperative_matrix = false;
    const bool address = physical->features.buffer_device_address, timeline = physical->features.timeline_semaphore;
    if (!address || !timeline)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "desc.features does not enable %s%s%s: create the VkDevice with "
                            "attune_vulkan_required_features and set desc.features to its pNext chain",
                            address ? "" : "bufferDeviceAddress", address || timeline ? "" : " and ",
                            timeline ? "" : "timelineSemaphore");
    attune__vulkan_limits_choose(physical);

    VkQueueFamilyProperties2 families[64];
    uint32_t count = 64;
    for (uint32_t i = 0; i < count; i++)
        families[i] = (VkQueueFamilyProperties2){.sType = VK_STRUCTURE_TYPE_QUEUE_FAMILY_PROPERTIES_2};
    device->vk.GetPhysicalDeviceQueueFamilyProperties2(physical->handle, &count, families);
    if (desc->queue_family >= count)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.queue_family is %u, the device has %u families",
                            desc->queue_family, count);
    const VkQueueFamilyProperties *family = &families[desc->queue_family].queueFamilyProperties;
    if (!(family->queueFlags & VK_QUEUE_COMPUTE_BIT))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.queue_family %u does not compute (VK_QUEUE_COMPUTE_BIT)",
                            desc->queue_family);
    physical->family = desc->queue_family;
    physical->timestamp_bits = family->timestampValidBits;

    device->handle = desc->device;
    ATTUNE__TRY(load_device(device));
    device->queue.handle = desc->queue;
    device->queue.family = desc->queue_family;
    device->queue.lock = desc->lock_queue;
    device->queue.unlock = desc->unlock_queue;
    device->queue.lock_user = desc->lock_user;
    return finish_open(device, false);
}

attune_status attune__vulkan_device_open_external(const attune__host *host, const void *desc, attune_device **device)
{
    attune__vulkan_device *made;
    ATTUNE__TRY(allocate(host, &made));
    made->lent = true;
    attune_status status = open_lent(made, desc);
    if (status)
        device_close(&made->base);
    else
        *device = &made->base;
    return status;
}

/* ------------------------------------------------------------------------------------------------------------ table */

static attune_status device_count(const attune__host *host, uint32_t *count, char *reason, size_t reason_size)
{
    return attune__vulkan_count_with(host, NULL, count, reason, reason_size);
}

static attune_status device_describe(const attune__host *host, uint32_t index, attune_device_info *info)
{
    return attune__vulkan_describe_with(host, NULL, index, info);
}

static attune_status device_open(const attune__host *host, uint32_t index, attune_device **device)
{
    return attune__vulkan_open_with(host, NULL, index, device);
}

static void device_handles(const attune_device *device, void *handles)
{
    const attune__vulkan_device *mine = (const attune__vulkan_device *)device;
    attune_vulkan_handles *h = handles;
    h->api_version = mine->physical.api_version;
    h->instance = mine->instance;
    h->physical_device = mine->physical.handle;
    h->device = mine->handle;
    h->get_instance_proc_addr = mine->vk.GetInstanceProcAddr;
    h->queue = mine->queue.handle;
    h->queue_family = mine->queue.family;
}

const attune__backend attune__vulkan_backend = {
    .kind = ATTUNE_BACKEND_VULKAN,
    .name = "vulkan",
    .count = device_count,
    .describe = device_describe,
    .open = device_open,
    .open_external = attune__vulkan_device_open_external,
    .handles = device_handles,
    .close = device_close,
    .measure = attune__vulkan_measure,
    .buffer_create = attune__vulkan_buffer_create,
    .buffer_wrap_device_name = "attune_vulkan_buffer_wrap",
    .buffer_wrap_device = attune__vulkan_buffer_wrap_device,
    .buffer_destroy = attune__vulkan_buffer_destroy,
    .buffer_write = attune__vulkan_buffer_write,
    .buffer_read = attune__vulkan_buffer_read,
    .copy = attune__vulkan_copy,
    .wait = attune__vulkan_wait,
    .mask_upload = attune__vulkan_mask_upload,
    .mask_release = attune__vulkan_mask_release,
    .mask_create_tensor = attune__vulkan_mask_create_tensor,
    .mask_update = attune__vulkan_mask_update,
    .mask_record = attune__vulkan_mask_record,
    .programs_create = attune__vulkan_programs_create,
    .program_destroy = attune__vulkan_program_destroy,
    .forward = attune__vulkan_forward,
    .decode = attune__vulkan_decode,
    .schedule_size = attune__vulkan_schedule_size,
    .schedule = attune__vulkan_schedule,
    .append = attune__vulkan_append,
    .backward = attune__vulkan_backward,
    .merger_create = attune__vulkan_merger_create,
    .merger_destroy = attune__vulkan_merger_destroy,
    .merge = attune__vulkan_merge,
    .merge_backward = attune__vulkan_merge_backward,
    .record = attune__vulkan_record,
    .record_backward = attune__vulkan_backward_record,
};
