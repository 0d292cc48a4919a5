/* SPDX-License-Identifier: MIT */
/*
 * The Vulkan backend.
 *
 *     headers.h    Vulkan's header, completed          device.c    enumeration, opening, lending, the table
 *     functions.*  entry points of one device          physical.c  properties, corrections, limits
 *     instance.c   loader and instance                 memory.c    blocks of device memory, divided into ranges
 *     features.c   extensions, feature chains
 *     queue.c      submission, waiting, timing         buffer.c    buffers, uploads, downloads
 *     pipeline.c   a compute pipeline from SPIR-V      measure.c   peaks
 *     floats.c     float controls for a module        arguments.* what kernels read of a call
 *     cache.c      the disk cache of both              merge.c     partial results into one, and back
 *     mask.c       masks on the device                 mask_update.c  masks computed from a tensor
 *
 * Kernels reach all memory by buffer device address: there are no descriptors, and a pipeline layout is push constants
 * only. All buffers have the usage ATTUNE__VULKAN_USAGE.
 */
#ifndef ATTUNE_VULKAN_VULKAN_H
#define ATTUNE_VULKAN_VULKAN_H

#include <pthread.h>

#include "backend.h"
#include "vulkan/functions.h"
#include "vulkan/mods.h"

#include <attune/vulkan.h>

#define ATTUNE__VULKAN_USAGE                                                                                           \
    (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |                                  \
     VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)

typedef struct attune__vulkan_device attune__vulkan_device;

/* --------------------------------------------------------------------------------------------------------- features */

/* Enabled on the device. */
typedef struct attune__vulkan_features {
    bool buffer_device_address, timeline_semaphore; /* always: a device without them is unavailable */
    bool float16;                                   /* arithmetic */
    bool int8, int16, int64;
    bool storage16, push16, storage8; /* 16-bit and 8-bit members in storage buffers, 16-bit in push constants */
    bool scalar_layout;
    bool memory_model, memory_model_device_scope;
    bool subgroup_extended_types;
    bool subgroup_size_control, full_subgroups;
    bool maintenance4;
    bool workgroup_layout, workgroup_layout16; /* workgroupMemoryExplicitLayout */
    bool cooperative_matrix;
    bool bfloat16, bfloat16_cooperative_matrix;
} attune__vulkan_features;

typedef struct attune__vulkan_matrix {
    uint32_t m, n, k;
    VkComponentTypeKHR a, b, c, result;
    VkScopeKHR scope;
    bool saturating;
} attune__vulkan_matrix;

#define ATTUNE__VULKAN_MAX_MATRICES 64

/* The properties of a physical device, before or after it is opened. */
typedef struct attune__vulkan_physical {
    VkPhysicalDevice handle;
    VkPhysicalDeviceType type;
    VkDriverId driver;
    uint32_t vendor, device_id, driver_version;
    uint32_t api_version; /* the lower of the device's and the instance's */
    uint8_t uuid[VK_UUID_SIZE], driver_uuid[VK_UUID_SIZE], pipeline_cache_uuid[VK_UUID_SIZE];
    bool has_pci;
    uint32_t pci[4];     /* domain, bus, device, function */
    bool required_sizes; /* VkPipelineShaderStageRequiredSubgroupSizeCreateInfo in compute */
    bool preserves;      /* shaderSignedZeroInfNanPreserveFloat32 */
    uint32_t subgroup_size, subgroup_min, subgroup_max;
    uint32_t max_workgroups[3];
    uint64_t max_allocation, max_buffer; /* bytes */
    double timestamp_period;             /* nanoseconds; 0 = no timestamps */
    uint32_t timestamp_bits;
    uint32_t family;     /* the queue family that we use */
    uint32_t extensions; /* ATTUNE__VULKAN_*: supported; after opening: enabled */
    uint32_t max_shared_memory, max_invocations, max_push_constants, max_storage_range;
    uint32_t compute_units, unit_invocations; /* 0 = the driver does not say */
    uint64_t heap;                            /* bytes of the largest device-local heap */
    bool subgroup_operations;                 /* reductions and shuffles, as far as the driver has none wrong */
    attune__vulkan_features features;         /* supported; after opening: enabled */
    uint32_t matrix_count;
    attune__vulkan_matrix matrices[ATTUNE__VULKAN_MAX_MATRICES]; /* as reported; limits.matrix_* is the chosen one */
    attune_device_info info; /* info.available, info.reason: whether attune can use it */
} attune__vulkan_physical;

/* ----------------------------------------------------------------------------------------------------------- memory */

/* A part of a block, in use or free. The ranges of a block are a list without gaps, in order of offset. */
typedef struct attune__vulkan_range {
    struct attune__vulkan_range *previous, *next;
    struct attune__vulkan_block *block;
    uint64_t offset, size;
    bool used;
} attune__vulkan_range;

/* One VkDeviceMemory with one VkBuffer over all of it. */
typedef struct attune__vulkan_block {
    struct attune__vulkan_block *next;
    VkDeviceMemory memory;
    VkBuffer buffer;
    VkDeviceAddress address;
    char *map; /* NULL if the host does not see it */
    uint64_t size;
    attune__vulkan_range *ranges;
    bool dedicated; /* to one large range: released with it */
} attune__vulkan_block;

typedef struct attune__vulkan_memory {
    pthread_mutex_t mutex; /* of the list of blocks and of their ranges */
    bool mutex_ready;
    attune__vulkan_block *blocks;
    uint64_t block_size, max_size;      /* bytes of a shared block; of the largest */
    uint32_t device_type, staging_type; /* memory types */
    bool direct_write, direct_read; /* blocks are mapped, and the host's access is as fast as a copy by the device */
} attune__vulkan_memory;

attune_status attune__vulkan_memory_init(attune__vulkan_device *device, bool staging_only);
void attune__vulkan_memory_finish(attune__vulkan_device *device);
/* `size` bytes at a multiple of 256. The range is rounded up to 256 bytes, so that a kernel may read the whole 32-bit
 * word (or 16 bytes) that holds a buffer's last element. */
attune_status attune__vulkan_range_create(attune__vulkan_device *device, uint64_t size, attune__vulkan_range **range);
void attune__vulkan_range_destroy(attune__vulkan_device *device, attune__vulkan_range *range);
/* A block outside the list, of one free range. destroy accepts NULL. */
attune_status attune__vulkan_block_create(attune__vulkan_device *device, uint64_t size, uint32_t type, bool map,
                                          attune__vulkan_block **block);
void attune__vulkan_block_destroy(attune__vulkan_device *device, attune__vulkan_block *block);

/* ------------------------------------------------------------------------------------------------------------ queue */

/* Command buffers in flight at most. They are made when the device is opened; a call that finds all in flight waits for
 * the oldest. */
#define ATTUNE__VULKAN_SLOTS 32

typedef enum attune__vulkan_slot_state {
    ATTUNE__VULKAN_FREE,
    ATTUNE__VULKAN_RECORDING, /* belongs to the thread that began it */
    ATTUNE__VULKAN_PENDING    /* submitted: free again when the semaphore reaches value */
} attune__vulkan_slot_state;

typedef struct attune__vulkan_slot {
    VkCommandPool pool; /* one each: two threads may record at once */
    VkCommandBuffer commands;
    uint64_t value;
    attune__vulkan_slot_state state;
} attune__vulkan_slot;

typedef struct attune__vulkan_queue {
    attune_queue base;
    VkQueue handle;
    uint32_t family;
    void (*lock)(void *user); /* the caller's, around each use of a lent handle; NULL = none */
    void (*unlock)(void *user);
    void *lock_user;
    pthread_mutex_t mutex; /* of the slots and of submission */
    pthread_cond_t freed;
    bool mutex_ready, freed_ready;
    VkSemaphore timeline;
    uint64_t submitted;  /* the last value that was submitted */
    VkQueryPool queries; /* two timestamps for each slot; NULL = the family has none */
    attune__vulkan_slot slots[ATTUNE__VULKAN_SLOTS];
} attune__vulkan_queue;

/*
 * Begins a command buffer of the queue's ring, after a barrier that makes everything submitted before complete and
 * visible. `timed` writes a timestamp before and (in finish) after. Then record into slot->commands and call submit,
 * finish or cancel, exactly one of them. Allocates nothing.
 */
attune_status attune__vulkan_begin(attune__vulkan_device *device, bool timed, attune__vulkan_slot **slot);
/* Ends and submits; *value is the point in the queue (it may be NULL). On failure the slot is released. */
attune_status attune__vulkan_submit(attune__vulkan_device *device, attune__vulkan_slot *slot, uint64_t *value);
/* Ends, submits and waits; *seconds is the device's own time between begin and here (the host's, if the family has no
 * timestamps). The slot must have been begun with `timed`. */
attune_status attune__vulkan_finish(attune__vulkan_device *device, attune__vulkan_slot *slot, uint64_t *value,
                                    double *seconds);
/* Releases a slot that was not submitted. */
void attune__vulkan_cancel(attune__vulkan_device *device, attune__vulkan_slot *slot);
/* The table's wait. */
attune_status attune__vulkan_wait(attune_queue *queue, uint64_t value, uint64_t timeout_ns);
/* Waits for all that was submitted. */
attune_status attune__vulkan_wait_idle(attune__vulkan_device *device);
/* Mesa's lavapipe keeps a destroyed pipeline, of some 5 MB, until the next submission to the device: makes an empty one
 * there. Not to a lent queue, whose lender may hold its lock, and submits to it anyway. */
void attune__vulkan_release_destroyed(attune__vulkan_device *device);

/* Makes what earlier commands of the same command buffer wrote (dispatches, copies) visible to later ones: between two
 * dispatches that depend on one another. */
void attune__vulkan_barrier(const attune__vulkan_device *device, VkCommandBuffer commands);

attune_status attune__vulkan_queue_init(attune__vulkan_device *device);
void attune__vulkan_queue_finish(attune__vulkan_device *device);

/* ----------------------------------------------------------------------------------------------------------- device */

struct attune__vulkan_device {
    attune_device base;
    attune__vulkan_queue queue;
    attune__vulkan_functions vk;
    void *library; /* NULL if lent */
    bool lent;     /* instance and handle are the caller's */
    VkInstance instance;
    VkDevice handle;
    attune__vulkan_physical physical;
    attune__vulkan_memory memory;
    struct attune__vulkan_staging *staging; /* NULL until the first copy that needs it */
};

static inline attune__vulkan_device *attune__vulkan_of(attune_device *device)
{
    return (attune__vulkan_device *)device;
}

/*
 * A failed Vulkan call as a status, with a message "<what>: VK_ERROR_...". VK_ERROR_DEVICE_LOST latches device->lost.
 * device may be NULL before there is one. A handle that a failed call should have made is undefined: it is set to
 * VK_NULL_HANDLE where something destroys it.
 */
attune_status attune__vulkan_fail(attune__vulkan_device *device, VkResult result, const char *what);
const char *attune__vulkan_result_string(VkResult result);

/* For tests: another loader than libvulkan.so.1, every upload through staging. NULL or zero = as the table's open. */
typedef struct attune__vulkan_overrides {
    const char *library;
    PFN_vkGetInstanceProcAddr get; /* instead of the library's own */
    bool staging_only;
} attune__vulkan_overrides;
attune_status attune__vulkan_count_with(const attune__host *host, const attune__vulkan_overrides *overrides,
                                        uint32_t *count, char *reason, size_t reason_size);
attune_status attune__vulkan_describe_with(const attune__host *host, const attune__vulkan_overrides *overrides,
                                           uint32_t index, attune_device_info *info);
attune_status attune__vulkan_open_with(const attune__host *host, const attune__vulkan_overrides *overrides,
                                       uint32_t index, attune_device **device);

/* The loader and an instance of it. */
typedef struct attune__vulkan_instance {
    attune__vulkan_functions vk;
    void *library;
    VkInstance handle;
    uint32_t api_version;
} attune__vulkan_instance;

/* False, with the reason, if there is no loader or it makes no instance. */
bool attune__vulkan_instance_create(const attune__vulkan_overrides *overrides, attune__vulkan_instance *instance,
                                    char *reason, size_t reason_size);
/* The loader by its name, or another; NULL, with the reason. */
PFN_vkGetInstanceProcAddr attune__vulkan_library_open(const char *name, void **library, char *reason,
                                                      size_t reason_size);
void attune__vulkan_instance_destroy(attune__vulkan_instance *instance);

/* Fills a physical device whose handle is set: everything but info.id and info.limits. Fails only on the host's memory.
 */
attune_status attune__vulkan_physical_read(const attune_allocator *allocator, const attune__vulkan_functions *vk,
                                           uint32_t instance_version, attune__vulkan_physical *physical);
/* info.limits, of the features that physical has. */
void attune__vulkan_limits_choose(attune__vulkan_physical *physical);
/* Opening: clears limits.fragment_layout if the driver's fragment layout differs from it. On a CPU driver the check
 * runs only when a kernel needs the layout, which is UNSUPPORTED if it differs. */
attune_status attune__vulkan_fragment_layout_verify(attune__vulkan_device *device);
attune_status attune__vulkan_fragment_layout_require(attune__vulkan_device *device);

/* Extensions that attune enables where they are, as bits of attune__vulkan_physical.extensions. */
enum {
    ATTUNE__VULKAN_COOPERATIVE_MATRIX = 1,
    ATTUNE__VULKAN_BFLOAT16 = 2,
    ATTUNE__VULKAN_WORKGROUP_LAYOUT = 4,
    ATTUNE__VULKAN_SUBGROUP_SIZE_CONTROL = 8,
    ATTUNE__VULKAN_MAINTENANCE4 = 16,
    ATTUNE__VULKAN_PORTABILITY_SUBSET = 32 /* must be enabled where it is */
};
#define ATTUNE__VULKAN_EXTENSIONS 6
extern const char *const attune__vulkan_extension_names[ATTUNE__VULKAN_EXTENSIONS]; /* in the order of the bits */

/* The structs of a feature query, or of VkDeviceCreateInfo. */
typedef struct attune__vulkan_chain {
    VkPhysicalDeviceFeatures2 base; /* the head */
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceSubgroupSizeControlFeatures size_control;
    VkPhysicalDeviceMaintenance4Features maintenance4;
    VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR workgroup_layout;
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR cooperative_matrix;
    VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloat16;
} attune__vulkan_chain;

/* Links the structs that a device of this version, with these extensions, knows; all features false. */
void attune__vulkan_chain_init(attune__vulkan_chain *chain, uint32_t api_version, uint32_t extensions);
void attune__vulkan_chain_enable(attune__vulkan_chain *chain, const attune__vulkan_features *features);
/* The features of a chain, ours or an engine's; base, if not NULL, counts as part of it. */
void attune__vulkan_chain_read(const void *chain, const VkPhysicalDeviceFeatures *base,
                               attune__vulkan_features *features);
/* Clears the features that `other` lacks. */
void attune__vulkan_features_meet(attune__vulkan_features *features, const attune__vulkan_features *other);

/* ---------------------------------------------------------------------------------------------------------- buffers */

typedef struct attune__vulkan_buffer {
    attune_buffer base;
    attune__vulkan_range *range; /* NULL if the buffer wraps the caller's */
    VkBuffer handle;
    uint64_t offset;         /* of the buffer's first byte in handle */
    VkDeviceAddress address; /* of the buffer's first byte */
    char *map;               /* likewise; NULL if the host does not see it */
} attune__vulkan_buffer;

/* The address of the first byte of a tensor's element (0, 0, ...). */
static inline VkDeviceAddress attune__vulkan_address(const attune_buffer *buffer, uint64_t offset)
{
    return ((const attune__vulkan_buffer *)buffer)->address + offset;
}

attune_status attune__vulkan_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer);
attune_status attune__vulkan_buffer_wrap_device(attune_device *device, const void *handle, uint64_t offset,
                                                uint64_t size, attune_buffer **buffer);
void attune__vulkan_buffer_destroy(attune_buffer *buffer);
attune_status attune__vulkan_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size);
attune_status attune__vulkan_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size);
attune_status attune__vulkan_copy(attune_queue *queue, const attune__copy *copies, uint32_t count, bool to_device);

void attune__vulkan_staging_finish(attune__vulkan_device *device);

/* -------------------------------------------------------------------------------------------------------- pipelines */

typedef struct attune__vulkan_pipeline {
    VkPipelineLayout layout;
    VkPipeline handle;
} attune__vulkan_pipeline;

/* Specialisation constants have lower ids, in every list of shaders/. */
#define ATTUNE__VULKAN_CONSTANTS 57

typedef struct attune__vulkan_pipeline_desc {
    const char *name;      /* for messages */
    const uint32_t *words; /* SPIR-V; the entry point is "main" */
    size_t word_count;
    uint32_t push_constants;   /* bytes */
    const uint32_t *constants; /* ATTUNE__VULKAN_CONSTANTS numbers, by id; NULL = none */
    uint32_t subgroup_size;    /* required, with full subgroups; 0 = as the driver likes */
    const attune__hash *hash;  /* of the words; NULL = the disk does not keep the pipeline */
} attune__vulkan_pipeline_desc;

/* A copy of a module with the execution mode SignedZeroInfNanPreserve for binary32. Free it with attune__free, also
 * after a failure. */
attune_status attune__vulkan_preserve(const attune_allocator *allocator, const uint32_t *words, size_t count,
                                      uint32_t **preserving, size_t *preserving_count);

/* On a device with float controls every module has them. COMPILE_FAILED, with the name, if the
 * driver refuses. */
attune_status attune__vulkan_pipeline_create(attune__vulkan_device *device, const attune__vulkan_pipeline_desc *desc,
                                             attune__vulkan_pipeline *pipeline);
void attune__vulkan_pipeline_destroy(attune__vulkan_device *device, attune__vulkan_pipeline *pipeline);

/* The driver's own cache while one pipeline is made. */
typedef struct attune__vulkan_cache {
    attune__hash hash;
    VkPipelineCache handle; /* VK_NULL_HANDLE = none */
    bool hit;               /* it holds what the disk kept */
} attune__vulkan_cache;

/* Pipelines that are made together: the driver compiles them on up to host.compile_threads threads. */
#define ATTUNE__VULKAN_PIPELINES (ATTUNE__PLAN_PROGRAMS * 8)
typedef struct attune__vulkan_pipelines {
    uint32_t count;
    struct {
        const char *name;
        VkShaderModule module;
        uint32_t constants[ATTUNE__VULKAN_CONSTANTS];
        bool specialised;
        uint32_t subgroup_size;
        attune__vulkan_cache cache;
        VkResult result;
        attune__vulkan_pipeline *pipeline;
    } each[ATTUNE__VULKAN_PIPELINES];
} attune__vulkan_pipelines;

/* Adds a pipeline, of which nothing but its name is kept. *pipeline is complete after attune__vulkan_pipelines_make. */
attune_status attune__vulkan_pipelines_add(attune__vulkan_device *device, attune__vulkan_pipelines *list,
                                           const attune__vulkan_pipeline_desc *desc, attune__vulkan_pipeline *pipeline);
/* Follows the last add, also one that failed: makes what was added if status is ATTUNE_OK, all or none. Returns status,
 * or its own error. */
attune_status attune__vulkan_pipelines_make(attune__vulkan_device *device, attune__vulkan_pipelines *list,
                                            attune_status status);

/* --------------------------------------------------------------------------------------------------------- the disk's
 *
 * The host's cache never decides whether a call succeeds: damage, another driver's entry, a full disk are misses.
 */

/* A prebuilt module with the expressions in it, from the disk or spliced, and the hash that it is kept under. *spliced
 * is freed with attune__free. */
attune_status attune__vulkan_cache_splice(attune__vulkan_device *device, const uint32_t *words, size_t count,
                                          const attune__mods *mods, uint32_t **spliced, size_t *spliced_count,
                                          attune__hash *hash);

void attune__vulkan_cache_begin(attune__vulkan_device *device, const attune__vulkan_pipeline_desc *desc,
                                attune__vulkan_cache *cache);
/* made: the pipeline was; a miss is then kept. */
void attune__vulkan_cache_end(attune__vulkan_device *device, attune__vulkan_cache *cache, bool made);

/* --------------------------------------------------------------------------------------------- entries of the table */

attune_status attune__vulkan_measure(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth);

/* program.c, launch.c, mask.c: the kernels. */
attune_status attune__vulkan_mask_upload(attune_device *device, const attune_mask *mask,
                                         attune__device_mask **device_mask);
void attune__vulkan_mask_release(attune__device_mask *device_mask);
attune_status attune__vulkan_mask_create_tensor(attune_device *device, const attune_mask *mask,
                                                attune__device_mask **device_mask);
attune_status attune__vulkan_mask_update(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                         const attune_tensor *tensor, uint64_t *value);
/* commands is a VkCommandBuffer *. */
void attune__vulkan_mask_record(const attune_mask *mask, attune__device_mask *device_mask, const attune_tensor *tensor,
                                const void *commands);
attune_status attune__vulkan_programs_create(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                             attune__program **programs);
void attune__vulkan_program_destroy(attune__program *program);
attune_status attune__vulkan_forward(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                     uint64_t *value);
attune_status attune__vulkan_decode(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                    uint64_t *value);
uint64_t attune__vulkan_schedule_size(const attune__program *program);
attune_status attune__vulkan_schedule(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                      uint64_t *value);
attune_status attune__vulkan_append(const attune__program *program, attune_queue *queue, const attune__append *call,
                                    uint64_t *value);
attune_status attune__vulkan_backward(const attune__program *program, attune_queue *queue, const attune__backward *call,
                                      uint64_t *value);
attune_status attune__vulkan_merger_create(attune_device *device, attune__program **merger);
void attune__vulkan_merger_destroy(attune__program *merger);
attune_status attune__vulkan_merge(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                   uint64_t *value);
attune_status attune__vulkan_merge_backward(const attune__program *merger, attune_queue *queue,
                                            const attune__merge *call, uint64_t *value);
/* open_external of the table; desc is an attune_vulkan_device_desc. */
attune_status attune__vulkan_device_open_external(const attune__host *host, const void *desc, attune_device **device);
/* The table's record; commands is a VkCommandBuffer *. Appends the launches of a call to a command buffer, with the
 * barriers between them; forward and decode are begin, record, submit. call->seconds is
 * ignored. */
attune_status attune__vulkan_record(const attune__program *program, const void *commands, const attune__forward *call);
attune_status attune__vulkan_backward_record(const attune__program *program, const void *commands,
                                             const attune__backward *call);

#endif
