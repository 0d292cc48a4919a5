/* SPDX-License-Identifier: MIT */
/*
 * GGML_OP_FLASH_ATTN_EXT inside ggml's Vulkan backend, recorded by attune into ggml's command buffers, on its device
 * and in its memory. ggml-vulkan.patch calls these functions from ggml-vulkan.cpp.
 *
 * An operation that ggml's own shader has as well is attune's where attune is thought faster (choice.h), by the times
 * of the file that GGML_ATTUNE_TIMES names, if any. GGML_ATTUNE=0 leaves every operation to ggml's shader,
 * GGML_ATTUNE=1 gives attune whatever it has a kernel for; GGML_ATTUNE_LOG=1 prints why one is left to ggml, and at the
 * end how many were not.
 */
#ifndef GGML_ATTUNE_VULKAN_ROUTE_H
#define GGML_ATTUNE_VULKAN_ROUTE_H

#include <attune/vulkan.h>
#include <ggml.h>

#include "choice.h"

#ifdef __cplusplus
extern "C" {
#endif

/* attune on one of ggml's devices; any thread. */
typedef struct attune_route_device attune_route_device;
/* The plans of one ggml backend, which is used by one thread at a time. */
typedef struct attune_route attune_route;

/* A buffer of ggml's with a tensor in it. */
typedef struct attune_route_memory {
    VkBuffer buffer;
    uint64_t size, address; /* of the buffer */
    uint64_t offset;        /* of the tensor */
} attune_route_memory;

/* NULL, with the reason in the log, if attune cannot use the device. matrices: of ggml's shader on it. */
attune_route_device *attune_route_device_open(const attune_vulkan_device_desc *desc, choice_matrices matrices);
/* After the routes on it, and before vkDestroyDevice. */
void attune_route_device_close(attune_route_device *device);
/* Whether attune can compute an operation. Where ggml has no shader for it the plan is compiled, to be certain, and
 * operations of its shape are attune's. */
bool attune_route_supports(attune_route_device *device, const struct ggml_tensor *op, bool ggml_has_shader);

/* NULL if there is no device. */
attune_route *attune_route_create(attune_route_device *device);
/* When no command buffer with its work is pending any more. */
void attune_route_destroy(attune_route *route);
/* The bytes of workspace that an operation needs; 0 = it is left to ggml, for the reason in the log. May compile. */
uint64_t attune_route_workspace(attune_route *route, const struct ggml_tensor *op);
/*
 * Records an operation behind a barrier on all that it reads and writes, the workspace included, and leaves the barrier
 * after it to the caller. find says where a tensor is. False, with nothing recorded, if attune refuses the operation.
 */
bool attune_route_record(attune_route *route, const struct ggml_tensor *op, VkCommandBuffer commands,
                         const attune_route_memory *workspace,
                         void (*find)(void *user, const struct ggml_tensor *tensor, attune_route_memory *memory),
                         void *user);

#ifdef __cplusplus
}
#endif

#endif /* GGML_ATTUNE_VULKAN_ROUTE_H */
