/* SPDX-License-Identifier: MIT */
/*
 * Borrowing an engine's own Vulkan: its device and queue, its buffers, its command buffers. Installed only where the
 * backend was built.
 *
 * attune never takes ownership of a Vulkan object, and makes no thread. What it makes of its own on a lent device (one
 * timeline semaphore, command pools, memory for buffers that attune_buffer_create makes) goes with
 * attune_device_destroy, which must come before vkDestroyDevice.
 *
 * Kernels reach memory by buffer device address, with no descriptor: what an engine binds stays bound, except the
 * compute pipeline and the push constants.
 */
#ifndef ATTUNE_VULKAN_H
#define ATTUNE_VULKAN_H

#include <attune/attune.h>
#include <vulkan/vulkan_core.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What a device needs (Vulkan 1.2 has it all in its core, so that the list of required extensions is empty today) and
 * what makes it faster where it is there. Extensions are names, *count receives how many; the array lives as long as
 * the library. Any thread.
 */
ATTUNE_API const char *const *attune_vulkan_required_extensions(uint32_t *count);
ATTUNE_API const char *const *attune_vulkan_recommended_extensions(uint32_t *count);
/*
 * Features likewise, by the names that their structs give them, such as "bufferDeviceAddress". All of them are fields
 * of VkPhysicalDeviceFeatures, VkPhysicalDeviceVulkan11Features, VkPhysicalDeviceVulkan12Features,
 * VkPhysicalDeviceVulkan13Features or the struct of a recommended extension.
 */
ATTUNE_API const char *const *attune_vulkan_required_features(uint32_t *count);
ATTUNE_API const char *const *attune_vulkan_recommended_features(uint32_t *count);

/* What an engine lends, and what its device was created with. */
typedef struct attune_vulkan_device_desc {
    uint32_t struct_size;
    uint32_t api_version; /* VkApplicationInfo.apiVersion of the instance, at least 1.2; 0 = VK_API_VERSION_1_2 */
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    PFN_vkGetInstanceProcAddr get_instance_proc_addr; /* NULL = that of libvulkan.so.1 */

    /* What the device was created with, which cannot be asked of a VkDevice. attune uses nothing that is not named
     * here. */
    const char *const *extensions; /* ppEnabledExtensionNames */
    uint32_t extension_count;
    const void *features;                             /* the pNext chain of VkDeviceCreateInfo; NULL = none */
    const VkPhysicalDeviceFeatures *enabled_features; /* pEnabledFeatures; NULL = none, or in the chain */

    VkQueue queue; /* of a family that computes */
    uint32_t queue_family;
    /*
     * Called around each use of the queue, from whichever thread called attune: whatever else may submit to it must
     * hold the same lock. NULL if attune alone uses the queue. Set both or neither.
     */
    void (*lock_queue)(void *user);
    void (*unlock_queue)(void *user);
    void *lock_user;
} attune_vulkan_device_desc;

/*
 * Makes an attune device of the caller's. Its id is "vulkan". INVALID_ARGUMENT for a handle that is NULL; UNSUPPORTED,
 * naming them, if required features are not in the description. instance, device and queue must outlive the device;
 * everything else of the description is copied or not kept.
 */
ATTUNE_API attune_status attune_vulkan_device_open(attune_instance *instance, const attune_vulkan_device_desc *desc,
                                                   attune_device **device);

/*
 * The Vulkan objects of a device, attune's own or lent: what a VkBuffer is made with that attune_vulkan_buffer_wrap
 * takes, or a command buffer for attune_vulkan_forward_record. They stay attune's (or the lender's): nothing of them is
 * destroyed by the caller, whose own objects on them go before attune_device_destroy. Of its own device attune enables,
 * of those that are there, the extensions and features that it requires and recommends.
 *
 * The queue is used by every call of attune that runs work or copies, from the thread that calls, and, of attune's own
 * device, by the destroy of plans and masks (Mesa's lavapipe keeps destroyed pipelines until the next submission):
 * Vulkan allows one thread at a time, so that who submits to it keeps other threads from calling attune with the device
 * meanwhile.
 */
typedef struct attune_vulkan_handles {
    uint32_t struct_size;
    uint32_t api_version; /* that instance and device have, at least VK_API_VERSION_1_2 */
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    VkQueue queue;
    uint32_t queue_family; /* it computes */
} attune_vulkan_handles;

/* INVALID_ARGUMENT if the device is no Vulkan device. Any thread. */
ATTUNE_API attune_status attune_vulkan_device_handles(const attune_device *device, attune_vulkan_handles *handles);

/*
 * Makes an attune buffer of `size` bytes from `offset` on in the caller's VkBuffer, which stays the caller's and must
 * outlive it. The VkBuffer was made on this device (attune_vulkan_device_handles) with at least
 *
 *     VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT   and, for attune_buffer_write and attune_buffer_read,
 *     VK_BUFFER_USAGE_TRANSFER_DST_BIT and VK_BUFFER_USAGE_TRANSFER_SRC_BIT
 *
 * is bound to memory allocated with VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT, and is used by the queue's family alone, or
 * by several in VK_SHARING_MODE_CONCURRENT. `offset` is a multiple of 16. Kernels read whole 64-bit words: the word
 * that holds the last byte must lie in the VkBuffer. The device may be lent or attune's own.
 */
ATTUNE_API attune_status attune_vulkan_buffer_wrap(attune_device *device, VkBuffer vk_buffer, VkDeviceSize offset,
                                                   VkDeviceSize size, attune_buffer **buffer);

/*
 * Appends the launches of attune_forward to a command buffer of the caller's: no submission, allocation or wait. The
 * command buffer is in the recording state, outside a render pass, of a pool of a family that computes.
 *
 * Before: the caller makes its writes to q, k, v, captures and workspace, and all use of o, lse and row_max, available
 * to VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT with VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT. Between its own
 * launches attune records the barriers that they need. After: o, lse and row_max are written by
 * VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT with VK_ACCESS_SHADER_WRITE_BIT; the caller records the barrier that its next
 * use needs.
 *
 * The bound compute pipeline and the push constants are undefined after it. Tensors, workspace, mask and plan must live
 * until the command buffer has run for the last time; it may be submitted more than once. args->seconds must be NULL.
 */
ATTUNE_API attune_status attune_vulkan_forward_record(const attune_plan *plan, VkCommandBuffer command_buffer,
                                                      const attune_forward_args *args);

/*
 * The same of attune_backward: it reads q, k, v, o, lse, d_o, d_lse and captures, and writes d_q, d_k, d_v and the
 * gradients of captures, which it also reads. The workspace is filled and updated by the command buffer too:
 * VK_PIPELINE_STAGE_TRANSFER_BIT.
 */
ATTUNE_API attune_status attune_vulkan_backward_record(const attune_plan *plan, VkCommandBuffer command_buffer,
                                                       const attune_backward_args *args);

#ifdef __cplusplus
}
#endif

#endif /* ATTUNE_VULKAN_H */
