/* SPDX-License-Identifier: MIT */
#include "vulkan/fake.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <string.h>
#include <time.h>

#include "support/devices.h"

fake_settings fake;

/* The driver's own functions. */
static attune__vulkan_functions real;

/* The header of the driver's data; the last device's that was looked at. */
static VkPipelineCacheHeaderVersionOne header;

static unsigned char payload(size_t i)
{
    return (unsigned char)(i * 37 + 11);
}

static VKAPI_ATTR void VKAPI_CALL get_features(VkPhysicalDevice device, VkPhysicalDeviceFeatures2 *features)
{
    real.GetPhysicalDeviceFeatures2(device, features);
    const bool denied = fake.no_device_address || fake.denials > 0;
    fake.denials--;
    for (VkBaseOutStructure *s = (VkBaseOutStructure *)features; s; s = s->pNext)
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES) {
            VkPhysicalDeviceVulkan12Features *v12 = (void *)s;
            v12->bufferDeviceAddress &= !denied;
            v12->timelineSemaphore &= !fake.no_timeline;
        }
}

static VKAPI_ATTR void VKAPI_CALL get_properties(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *properties)
{
    real.GetPhysicalDeviceProperties2(device, properties);
    if (fake.old)
        properties->properties.apiVersion = VK_API_VERSION_1_1;
    properties->properties.driverVersion += fake.driver;
    header = (VkPipelineCacheHeaderVersionOne){
        .headerSize = sizeof header,
        .headerVersion = VK_PIPELINE_CACHE_HEADER_VERSION_ONE,
        .vendorID = properties->properties.vendorID,
        .deviceID = properties->properties.deviceID,
    };
    memcpy(header.pipelineCacheUUID, properties->properties.pipelineCacheUUID, VK_UUID_SIZE);
}

static VKAPI_ATTR VkResult VKAPI_CALL enumerate(VkInstance instance, uint32_t *count, VkPhysicalDevice *devices)
{
    if (fake.no_list)
        return VK_ERROR_INITIALIZATION_FAILED;
    const uint32_t fixture = *count;
    VkResult result = real.EnumeratePhysicalDevices(instance, count, devices);
    if (fake.twice && devices && *count && *count < fixture)
        devices[(*count)++] = devices[0];
    return result;
}

static bool fails(void)
{
    return atomic_fetch_add(&fake.created, 1) + 1 == fake.fail_at;
}

/* The result of a function that fails is undefined. */
static VkResult fail_with(VkResult code, void *result, size_t size)
{
    memset(result, 0xA5, size);
    return code;
}

#define FAIL(code, result) fail_with(code, result, sizeof *(result)) /* NOLINT(bugprone-sizeof-expression): handles */

#define CREATE(name, info, type)                                                                                       \
    static VKAPI_ATTR VkResult VKAPI_CALL fake##name(VkDevice device, const info *create,                              \
                                                     const VkAllocationCallbacks *callbacks, type *object)             \
    {                                                                                                                  \
        return fails() ? FAIL(fake.fail_code, object) : real.name(device, create, callbacks, object);                  \
    }
CREATE(CreateBuffer, VkBufferCreateInfo, VkBuffer)
CREATE(CreateCommandPool, VkCommandPoolCreateInfo, VkCommandPool)
CREATE(CreatePipelineLayout, VkPipelineLayoutCreateInfo, VkPipelineLayout)
CREATE(CreateQueryPool, VkQueryPoolCreateInfo, VkQueryPool)
CREATE(CreateSemaphore, VkSemaphoreCreateInfo, VkSemaphore)
CREATE(CreateShaderModule, VkShaderModuleCreateInfo, VkShaderModule)

static VKAPI_ATTR VkResult VKAPI_CALL fakeAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
                                                         const VkAllocationCallbacks *callbacks, VkDeviceMemory *memory)
{
    if (fake.no_memory)
        return FAIL(VK_ERROR_OUT_OF_DEVICE_MEMORY, memory);
    return fails() ? FAIL(fake.fail_code, memory) : real.AllocateMemory(device, info, callbacks, memory);
}

static VKAPI_ATTR VkResult VKAPI_CALL fakeBindBufferMemory(VkDevice device, VkBuffer buffer, VkDeviceMemory memory,
                                                           VkDeviceSize offset)
{
    return fails() ? fake.fail_code : real.BindBufferMemory(device, buffer, memory, offset);
}

static VKAPI_ATTR VkResult VKAPI_CALL fakeMapMemory(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset,
                                                    VkDeviceSize size, VkMemoryMapFlags flags, void **data)
{
    return fails() ? FAIL(fake.fail_code, data) : real.MapMemory(device, memory, offset, size, flags, data);
}

static VKAPI_ATTR VkResult VKAPI_CALL fakeAllocateCommandBuffers(VkDevice device,
                                                                 const VkCommandBufferAllocateInfo *info,
                                                                 VkCommandBuffer *buffers)
{
    return fails() ? FAIL(fake.fail_code, buffers) : real.AllocateCommandBuffers(device, info, buffers);
}

static VKAPI_ATTR VkResult VKAPI_CALL fakeBeginCommandBuffer(VkCommandBuffer commands,
                                                             const VkCommandBufferBeginInfo *info)
{
    return fails() ? fake.fail_code : real.BeginCommandBuffer(commands, info);
}

static VKAPI_ATTR VkResult VKAPI_CALL fakeCreatePipelineCache(VkDevice device, const VkPipelineCacheCreateInfo *info,
                                                              const VkAllocationCallbacks *callbacks,
                                                              VkPipelineCache *cache)
{
    if (fake.no_cache)
        return FAIL(VK_ERROR_OUT_OF_HOST_MEMORY, cache);
    VkPipelineCacheCreateInfo mine = *info;
    atomic_fetch_add(info->initialDataSize ? &fake.given : &fake.empty, 1);
    if (fake.kept && info->initialDataSize) {
        const unsigned char *data = info->pInitialData;
        bool same = info->initialDataSize == sizeof header + fake.kept && !memcmp(data, &header, sizeof header);
        for (size_t i = 0; same && i < fake.kept; i++)
            same = data[sizeof header + i] == payload(i);
        atomic_fetch_add(&fake.wrong, !same);
        mine.initialDataSize = 0; /* the driver would not know it */
    }
    return real.CreatePipelineCache(device, &mine, callbacks, cache);
}

static VKAPI_ATTR VkResult VKAPI_CALL fakeGetPipelineCacheData(VkDevice device, VkPipelineCache cache, size_t *size,
                                                               void *data)
{
    if (!fake.kept)
        return real.GetPipelineCacheData(device, cache, size, data);
    if (data) {
        VkPipelineCacheHeaderVersionOne head = header;
        head.vendorID += fake.foreign;
        memcpy(data, &head, sizeof head);
        for (size_t i = 0; i < fake.kept; i++)
            ((unsigned char *)data)[sizeof head + i] = payload(i);
    }
    *size = sizeof header + fake.kept;
    return VK_SUCCESS;
}

static void meet(void)
{
    atomic_fetch_add(&fake.met, 1);
    for (int i = 0; i < 10000 && fake.met < fake.meet; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    atomic_fetch_add(&fake.alone, fake.met < fake.meet);
}

static VKAPI_ATTR VkResult VKAPI_CALL fakeCreateComputePipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                                                 const VkComputePipelineCreateInfo *infos,
                                                                 const VkAllocationCallbacks *callbacks,
                                                                 VkPipeline *pipelines)
{
    if (fake.meet)
        meet();
    if (fake.refuse_kept && cache)
        return VK_ERROR_UNKNOWN;
    return fails() ? fake.fail_code : real.CreateComputePipelines(device, cache, count, infos, callbacks, pipelines);
}

static VKAPI_ATTR VkResult VKAPI_CALL fakeQueueSubmit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos,
                                                      VkFence fence)
{
    if (fake.lose_submit)
        return VK_ERROR_DEVICE_LOST;
    return fails() ? fake.fail_code : real.QueueSubmit(queue, count, infos, fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL fakeWaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo *info,
                                                         uint64_t timeout)
{
    /* The real one as well: the test destroys what a lost device would have dropped. */
    VkResult result = real.WaitSemaphores(device, info, timeout);
    return fake.lose_wait ? VK_ERROR_DEVICE_LOST : result;
}

static VkInstance only;

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
                                                      const VkAllocationCallbacks *callbacks, VkInstance *instance)
{
    if (fake.one_instance && only) {
        *instance = only;
        return VK_SUCCESS;
    }
    const VkResult result = real.CreateInstance(info, callbacks, instance);
    if (!result && fake.one_instance)
        only = *instance;
    return result;
}

static VKAPI_ATTR void VKAPI_CALL destroy_instance(VkInstance instance, const VkAllocationCallbacks *callbacks)
{
    if (instance != only)
        real.DestroyInstance(instance, callbacks);
}

void fake_instance_destroy(void)
{
    const VkInstance instance = only;
    only = VK_NULL_HANDLE;
    fake.one_instance = false;
    if (instance)
        real.DestroyInstance(instance, NULL);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *callbacks, VkDevice *device)
{
    if (fails())
        return FAIL(fake.fail_code, device);
    VkResult result = real.CreateDevice(physical, info, callbacks, device);
    if (!result)
        attune__vulkan_load_device(&real, *device);
    return result;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_device(VkDevice device, const char *name)
{
    static const struct {
        const char *name;
        PFN_vkVoidFunction function;
    } table[] = {
#define FAKE(name) {"vk" #name, (PFN_vkVoidFunction)(void (*)(void))fake##name}
        FAKE(AllocateCommandBuffers), FAKE(AllocateMemory),      FAKE(BeginCommandBuffer),
        FAKE(BindBufferMemory),       FAKE(CreateBuffer),        FAKE(CreateCommandPool),
        FAKE(CreateComputePipelines), FAKE(CreatePipelineCache), FAKE(CreatePipelineLayout),
        FAKE(CreateQueryPool),        FAKE(CreateSemaphore),     FAKE(CreateShaderModule),
        FAKE(GetPipelineCacheData),   FAKE(MapMemory),           FAKE(QueueSubmit),
        FAKE(WaitSemaphores),
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name))
            return table[i].function;
    return real.GetDeviceProcAddr(device, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get(VkInstance instance, const char *name)
{
    if (instance && !real.GetDeviceProcAddr)
        attune__vulkan_load_instance(&real, instance);
    static const struct {
        const char *name;
        PFN_vkVoidFunction function;
    } table[] = {
        {"vkCreateInstance", (PFN_vkVoidFunction)(void (*)(void))create_instance},
        {"vkDestroyInstance", (PFN_vkVoidFunction)(void (*)(void))destroy_instance},
        {"vkCreateDevice", (PFN_vkVoidFunction)(void (*)(void))create_device},
        {"vkEnumeratePhysicalDevices", (PFN_vkVoidFunction)(void (*)(void))enumerate},
        {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)(void (*)(void))get_device},
        {"vkGetPhysicalDeviceFeatures2", (PFN_vkVoidFunction)(void (*)(void))get_features},
        {"vkGetPhysicalDeviceProperties2", (PFN_vkVoidFunction)(void (*)(void))get_properties},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name))
            return table[i].function;
    return real.GetInstanceProcAddr(instance, name);
}

PFN_vkGetInstanceProcAddr fake_get(void)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device_destroy(device_or_skip(instance, "vulkan"));
    attune_instance_destroy(instance);
    void *library;
    char reason[256];
    PFN_vkGetInstanceProcAddr loader = attune__vulkan_library_open(NULL, &library, reason, sizeof reason);
    cr_assert(loader, "%s", reason);
    cr_assert_null(attune__vulkan_load_loader(&real, loader));
    return get;
}

attune_status open_with(attune_instance *instance, const attune__vulkan_overrides *overrides, attune_device **device)
{
    attune_device *opened;
    *device = NULL;
    attune_status status = attune__vulkan_open_with(&instance->host, overrides, 0, &opened);
    if (status)
        return status;
    attune__device_init(opened, instance);
    *device = opened;
    return ATTUNE_OK;
}

attune_device *vulkan_or_skip(attune_instance *instance, bool staging_only)
{
    attune_device *device = device_or_skip(instance, "vulkan");
    if (!staging_only)
        return device;
    attune_device_destroy(device);
    const attune__vulkan_overrides overrides = {.staging_only = true};
    cr_assert_eq(open_with(instance, &overrides, &device), ATTUNE_OK, "%s", attune_last_error());
    return device;
}
