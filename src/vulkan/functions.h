/* SPDX-License-Identifier: MIT */
/*
 * Vulkan's entry points, as each device has them: filled from the vkGetInstanceProcAddr of the loader that we opened or
 * that the caller lent. There is no global table, so that two devices from two loaders do not disturb one another.
 */
#ifndef ATTUNE_VULKAN_FUNCTIONS_H
#define ATTUNE_VULKAN_FUNCTIONS_H

#include "vulkan/headers.h"

#define ATTUNE__VULKAN_LOADER_FUNCTIONS(F)                                                                             \
    F(CreateInstance)                                                                                                  \
    F(EnumerateInstanceExtensionProperties)                                                                            \
    F(EnumerateInstanceVersion)

#define ATTUNE__VULKAN_INSTANCE_FUNCTIONS(F)                                                                           \
    F(CreateDevice)                                                                                                    \
    F(DestroyInstance)                                                                                                 \
    F(EnumerateDeviceExtensionProperties)                                                                              \
    F(EnumeratePhysicalDevices)                                                                                        \
    F(GetDeviceProcAddr)                                                                                               \
    F(GetPhysicalDeviceFeatures2)                                                                                      \
    F(GetPhysicalDeviceMemoryProperties2)                                                                              \
    F(GetPhysicalDeviceProperties2)                                                                                    \
    F(GetPhysicalDeviceQueueFamilyProperties2)

/* NULL where the driver does not have the extension. */
#define ATTUNE__VULKAN_OPTIONAL_FUNCTIONS(F) F(GetPhysicalDeviceCooperativeMatrixPropertiesKHR)

#define ATTUNE__VULKAN_DEVICE_FUNCTIONS(F)                                                                             \
    F(AllocateCommandBuffers)                                                                                          \
    F(AllocateMemory)                                                                                                  \
    F(BeginCommandBuffer)                                                                                              \
    F(BindBufferMemory)                                                                                                \
    F(CmdBindPipeline)                                                                                                 \
    F(CmdCopyBuffer)                                                                                                   \
    F(CmdDispatch)                                                                                                     \
    F(CmdFillBuffer)                                                                                                   \
    F(CmdPipelineBarrier)                                                                                              \
    F(CmdPushConstants)                                                                                                \
    F(CmdResetQueryPool)                                                                                               \
    F(CmdUpdateBuffer)                                                                                                 \
    F(CmdWriteTimestamp)                                                                                               \
    F(CreateBuffer)                                                                                                    \
    F(CreateCommandPool)                                                                                               \
    F(CreateComputePipelines)                                                                                          \
    F(CreatePipelineCache)                                                                                             \
    F(CreatePipelineLayout)                                                                                            \
    F(CreateQueryPool)                                                                                                 \
    F(CreateSemaphore)                                                                                                 \
    F(CreateShaderModule)                                                                                              \
    F(DestroyBuffer)                                                                                                   \
    F(DestroyCommandPool)                                                                                              \
    F(DestroyDevice)                                                                                                   \
    F(DestroyPipeline)                                                                                                 \
    F(DestroyPipelineCache)                                                                                            \
    F(DestroyPipelineLayout)                                                                                           \
    F(DestroyQueryPool)                                                                                                \
    F(DestroySemaphore)                                                                                                \
    F(DestroyShaderModule)                                                                                             \
    F(EndCommandBuffer)                                                                                                \
    F(FreeMemory)                                                                                                      \
    F(GetBufferDeviceAddress)                                                                                          \
    F(GetBufferMemoryRequirements)                                                                                     \
    F(GetDeviceQueue)                                                                                                  \
    F(GetPipelineCacheData)                                                                                            \
    F(GetQueryPoolResults)                                                                                             \
    F(GetSemaphoreCounterValue)                                                                                        \
    F(MapMemory)                                                                                                       \
    F(QueueSubmit)                                                                                                     \
    F(ResetCommandPool)                                                                                                \
    F(WaitSemaphores)

#define ATTUNE__VULKAN_FUNCTION(name) PFN_vk##name name;
typedef struct attune__vulkan_functions {
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
    ATTUNE__VULKAN_LOADER_FUNCTIONS(ATTUNE__VULKAN_FUNCTION)
    ATTUNE__VULKAN_INSTANCE_FUNCTIONS(ATTUNE__VULKAN_FUNCTION)
    ATTUNE__VULKAN_OPTIONAL_FUNCTIONS(ATTUNE__VULKAN_FUNCTION)
    ATTUNE__VULKAN_DEVICE_FUNCTIONS(ATTUNE__VULKAN_FUNCTION)
} attune__vulkan_functions;
#undef ATTUNE__VULKAN_FUNCTION

/* Each fills its part and returns the name of the first function that is missing, NULL if all are there. */
const char *attune__vulkan_load_loader(attune__vulkan_functions *vk, PFN_vkGetInstanceProcAddr get);
const char *attune__vulkan_load_instance(attune__vulkan_functions *vk, VkInstance instance);
const char *attune__vulkan_load_device(attune__vulkan_functions *vk, VkDevice device);

#endif
