/* SPDX-License-Identifier: MIT */
/*
 * Use of a caller's Vulkan device, queue, buffers and command buffers. Installed only if the library has the Vulkan
 * backend.
 *
 * attune takes no ownership of Vulkan objects of the caller and starts no thread. attune_device_destroy destroys the
 * objects that attune created on the caller's device (a timeline semaphore, command pools, memory of
 * attune_buffer_create), and must be called before vkDestroyDevice.
 *
 * Kernels access memory by buffer device address and use no descriptors: the caller's bindings remain, except the
 * compute pipeline and the push constants.
 */
#ifndef ATTUNE_VULKAN_H
#define ATTUNE_VULKAN_H

#include <attune/attune.h>
#include <vulkan/vulkan_core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The extensions that a device must have (none at present: Vulkan 1.2 core is enough), and those that make kernels
 * faster. *count receives the number of names; the array is static. Any thread. */
ATTUNE_API const char *const *attune_vulkan_required_extensions(uint32_t *count);
ATTUNE_API const char *const *attune_vulkan_recommended_extensions(uint32_t *count);
/*
 * The required and recommended features, by their field names, such as "bufferDeviceAddress", in
 * VkPhysicalDeviceFeatures, VkPhysicalDeviceVulkan11Features, VkPhysicalDeviceVulkan12Features,
 * VkPhysicalDeviceVulkan13Features or the struct of a recommended extension. Otherwise as above.
 */
ATTUNE_API const char *const *attune_vulkan_required_features(uint32_t *count);
ATTUNE_API const char *const *attune_vulkan_recommended_features(uint32_t *count);

/* The caller's Vulkan objects, and how its device was created. */
typedef struct attune_vulkan_device_desc {
    uint32_t struct_size;
    uint32_t api_version; /* VkApplicationInfo.apiVersion of the instance, at least 1.2; 0 = VK_API_VERSION_1_2 */
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    PFN_vkGetInstanceProcAddr get_instance_proc_addr; /* NULL = that of libvulkan.so.1 */

    /* How the device was created, which a VkDevice cannot be queried for. attune uses no extension or feature that is
     * not listed here. */
    const char *const *extensions; /* ppEnabledExtensionNames */
    uint32_t extension_count;
    const void *features;                             /* the pNext chain of VkDeviceCreateInfo; NULL = none */
    const VkPhysicalDeviceFeatures *enabled_features; /* pEnabledFeatures; NULL = none, or in the chain */

    VkQueue queue; /* of a family with VK_QUEUE_COMPUTE_BIT */
    uint32_t queue_family;
    /* Called around each use of the queue, on the thread that called attune. Other code that submits to the queue must
     * hold the same lock, and may call attune_completion_wait meanwhile, which does not use the queue. NULL if only
     * attune uses the queue. Set both or neither. */
    void (*lock_queue)(void *user);
    void (*unlock_queue)(void *user);
    void *lock_user;
} attune_vulkan_device_desc;

/*
 * Creates an attune device on the caller's device. Its id is "vulkan". INVALID_ARGUMENT if a handle is NULL;
 * UNSUPPORTED, with their names, if required features are not in the description. The VkInstance, VkDevice and VkQueue
 * must outlive the attune device; everything else in the description is copied or not kept.
 */
ATTUNE_API attune_status attune_vulkan_device_open(attune_instance *instance, const attune_vulkan_device_desc *desc,
                                                   attune_device **device);

/*
 * The Vulkan objects of a device, created by attune or by the caller, for creating a VkBuffer for
 * attune_vulkan_buffer_wrap or a command buffer for attune_vulkan_forward_record. Ownership does not change: the caller
 * must not destroy objects that attune created, and must destroy its own objects on them before attune_device_destroy.
 * On a device that attune creates, the required extensions and features and all available recommended ones are enabled.
 *
 * Every call of attune that runs work or copies uses the queue, on the calling thread. On a device that attune created,
 * destroying plans and masks uses it too (Mesa's lavapipe keeps destroyed pipelines until the next submission). Vulkan
 * allows only one thread at a time to use a queue: while the caller submits to it, no other thread may call attune with
 * the device.
 */
typedef struct attune_vulkan_handles {
    uint32_t struct_size;
    uint32_t api_version; /* of instance and device, at least VK_API_VERSION_1_2 */
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    VkQueue queue;
    uint32_t queue_family; /* has VK_QUEUE_COMPUTE_BIT */
} attune_vulkan_handles;

/* Returns the Vulkan objects of a device. INVALID_ARGUMENT if it is not a Vulkan device. Any thread. */
ATTUNE_API attune_status attune_vulkan_device_handles(const attune_device *device, attune_vulkan_handles *handles);

/*
 * Creates an attune buffer from `size` bytes at `offset` of the caller's VkBuffer, which must outlive it. The caller
 * keeps ownership. The VkBuffer must have been created on this device (attune_vulkan_device_handles) with at least
 *
 *     VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT,
 *     VK_BUFFER_USAGE_TRANSFER_DST_BIT for a workspace, for a schedule and for attune_buffer_write,
 *     VK_BUFFER_USAGE_TRANSFER_SRC_BIT for attune_buffer_read
 *
 * It must be bound to memory allocated with VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT, and be used by the queue's family
 * only, or created with VK_SHARING_MODE_CONCURRENT. `offset` is a multiple of 16. Kernels read whole 64-bit words: the
 * word that contains the last byte must be inside the VkBuffer. The device may have been created by attune or by the
 * caller.
 */
ATTUNE_API attune_status attune_vulkan_buffer_wrap(attune_device *device, VkBuffer vk_buffer, VkDeviceSize offset,
                                                   VkDeviceSize size, attune_buffer **buffer);

/*
 * Records the launches of attune_forward into the caller's command buffer, without submission, allocation or wait. The
 * command buffer must be in the recording state, outside a render pass, from a pool of a family with
 * VK_QUEUE_COMPUTE_BIT.
 *
 * Before the launches, the caller records a barrier from its writes to q, k, v, captures and workspace, and from all
 * accesses to o, lse and row_max, to VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT with VK_ACCESS_SHADER_READ_BIT |
 * VK_ACCESS_SHADER_WRITE_BIT. attune records the barriers between its own launches. o, lse and row_max are written in
 * VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT with VK_ACCESS_SHADER_WRITE_BIT; the caller records a barrier before it accesses
 * them. attune_buffer_read does not wait for the caller's submissions and may read in place: it is called after they
 * are complete, and after a barrier to VK_PIPELINE_STAGE_HOST_BIT with VK_ACCESS_HOST_READ_BIT.
 *
 * The bound compute pipeline and the push constants are undefined afterwards. The command buffer may be submitted more
 * than once; tensors, workspace, mask and plan must stay valid until its last execution is complete. args->seconds must
 * be NULL.
 */
ATTUNE_API attune_status attune_vulkan_forward_record(const attune_plan *plan, VkCommandBuffer command_buffer,
                                                      const attune_forward_args *args);

/*
 * The same for attune_mask_update: the launches that compute the lists of a mask of attune_mask_create_tensor. They
 * read the tensor and write the mask's own memory, by update commands too: include VK_PIPELINE_STAGE_TRANSFER_BIT in
 * the barrier for it where an earlier call with the mask may still run. No barrier is needed before an
 * attune_vulkan_forward_record that follows in the same command buffer. Calls that are recorded or made after it have
 * the tensor's lengths. One mask must not be used by two command buffers that run at once.
 */
ATTUNE_API attune_status attune_vulkan_mask_update_record(attune_mask *mask, VkCommandBuffer command_buffer,
                                                          const attune_tensor *tensor);

/*
 * The same for attune_backward, which reads q, k, v, o, lse, d_o, d_lse and captures, writes d_q, d_k and d_v, and
 * reads and writes the capture gradients. Fill and update commands also write the workspace: include
 * VK_PIPELINE_STAGE_TRANSFER_BIT in the barrier for it.
 */
ATTUNE_API attune_status attune_vulkan_backward_record(const attune_plan *plan, VkCommandBuffer command_buffer,
                                                       const attune_backward_args *args);

#ifdef __cplusplus
}
#endif

#endif /* ATTUNE_VULKAN_H */
