/* SPDX-License-Identifier: MIT */
/*
 * The driver's functions, loaded from libcuda.so.1 at run time: the build needs nothing of NVIDIA's. Types and
 * constants are those of cuda.h that attune uses, under its own names; their values are part of the driver's ABI.
 */
#ifndef ATTUNE_CUDA_DRIVER_H
#define ATTUNE_CUDA_DRIVER_H

#include <attune/attune.h>

typedef int attune__cu_result;
typedef int attune__cu_device;
typedef void *attune__cu_context, *attune__cu_stream, *attune__cu_event, *attune__cu_module, *attune__cu_function;
typedef unsigned long long attune__cu_pointer;
/* CUtensorMap: how TMA reads a tensor. */
typedef struct attune__cu_tensor_map {
    _Alignas(64) unsigned long long opaque[16];
} attune__cu_tensor_map;
typedef struct attune__cu_uuid {
    unsigned char bytes[16];
} attune__cu_uuid;

enum {
    CU_SUCCESS = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_DEINITIALIZED = 4,
    CU_DEVICE_UNAVAILABLE = 46,
    CU_NO_DEVICE = 100,
    CU_INVALID_IMAGE = 200,
    CU_INVALID_CONTEXT = 201,
    CU_NO_BINARY_FOR_GPU = 209,
    CU_ECC_UNCORRECTABLE = 214,
    CU_NVLINK_UNCORRECTABLE = 220,
    CU_CONTAINED = 226,
    CU_NOT_READY = 600,
    CU_ILLEGAL_ADDRESS = 700,
    CU_LAUNCH_OUT_OF_RESOURCES = 701,
    CU_LAUNCH_TIMEOUT = 702,
    CU_PEER_ACCESS_ALREADY_ENABLED = 704,
    CU_CONTEXT_IS_DESTROYED = 709,
    CU_ASSERT = 710,
    CU_HARDWARE_STACK_ERROR = 714,
    CU_TENSOR_MEMORY_LEAK = 721,
    CU_MPS_CLIENT_TERMINATED = 810,
    CU_STREAM_CAPTURE_FIRST = 900,
    CU_STREAM_CAPTURE_LAST = 908,
    CU_EXTERNAL_DEVICE = 911,
    CU_UNKNOWN = 999
};

enum {
    CU_MAX_THREADS_PER_BLOCK = 1,
    CU_MAX_SHARED_MEMORY_PER_BLOCK = 8,
    CU_WARP_SIZE = 10,
    CU_MULTIPROCESSOR_COUNT = 16,
    CU_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CU_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_COMPUTE_CAPABILITY_MINOR = 76,
    CU_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
    CU_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
    CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CU_RESERVED_SHARED_MEMORY_PER_BLOCK = 111
};

enum {
    CU_PAIR_NATIVE_ATOMIC_SUPPORTED = 3,
    CU_POINTER_LEGACY_IPC = 10,
    CU_POINTER_MEMORY_POOL = 17,
    CU_LOCATION_DEVICE = 1
};

/* CUmemLocation */
typedef struct attune__cu_location {
    int type, id;
} attune__cu_location;

enum {
    CU_FUNC_SHARED_SIZE = 1,
    CU_FUNC_LOCAL_SIZE = 3,
    CU_FUNC_REGISTERS = 4,
    CU_FUNC_MAX_DYNAMIC_SHARED_SIZE = 8,
    CU_STREAM_NON_BLOCKING = 1,
    CU_TENSOR_MAP_FLOAT16 = 6,
    CU_TENSOR_MAP_BFLOAT16 = 9,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
    CU_TENSOR_MAP_L2_PROMOTION_256B = 3,
    CU_EVENT_BLOCKING_SYNC = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_LAUNCH_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6
};

/* name in our table, symbol in the library, parameters */
#define ATTUNE__CUDA_FUNCTIONS(X)                                                                                      \
    X(init, cuInit, (unsigned flags))                                                                                  \
    X(driver_version, cuDriverGetVersion, (int *version))                                                              \
    X(error_name, cuGetErrorName, (attune__cu_result error, const char **name))                                        \
    X(device_count, cuDeviceGetCount, (int *count))                                                                    \
    X(device_get, cuDeviceGet, (attune__cu_device * device, int ordinal))                                              \
    X(device_name, cuDeviceGetName, (char *name, int size, attune__cu_device device))                                  \
    X(device_uuid, cuDeviceGetUuid, (attune__cu_uuid * uuid, attune__cu_device device))                                \
    X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, attune__cu_device device))                                  \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, attune__cu_device device))                   \
    X(context_retain, cuDevicePrimaryCtxRetain, (attune__cu_context * context, attune__cu_device device))              \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (attune__cu_device device))                                       \
    X(context_push, cuCtxPushCurrent_v2, (attune__cu_context context))                                                 \
    X(context_pop, cuCtxPopCurrent_v2, (attune__cu_context * context))                                                 \
    X(context_device, cuCtxGetDevice, (attune__cu_device * device))                                                    \
    X(memory_alloc, cuMemAlloc_v2, (attune__cu_pointer * pointer, size_t size))                                        \
    X(memory_free, cuMemFree_v2, (attune__cu_pointer pointer))                                                         \
    X(copy_to_device, cuMemcpyHtoDAsync_v2,                                                                            \
      (attune__cu_pointer to, const void *from, size_t size, attune__cu_stream stream))                                \
    X(copy_to_host, cuMemcpyDtoHAsync_v2, (void *to, attune__cu_pointer from, size_t size, attune__cu_stream stream))  \
    X(copy_on_device, cuMemcpyDtoDAsync_v2,                                                                            \
      (attune__cu_pointer to, attune__cu_pointer from, size_t size, attune__cu_stream stream))                         \
    X(copy_between, cuMemcpyPeerAsync,                                                                                 \
      (attune__cu_pointer to, attune__cu_context to_context, attune__cu_pointer from, attune__cu_context from_context, \
       size_t size, attune__cu_stream stream))                                                                         \
    X(device_can_access, cuDeviceCanAccessPeer, (int *can, attune__cu_device device, attune__cu_device peer))          \
    X(device_pair_attribute, cuDeviceGetP2PAttribute,                                                                  \
      (int *value, int attribute, attune__cu_device device, attune__cu_device peer))                                   \
    X(context_enable_peer, cuCtxEnablePeerAccess, (attune__cu_context peer, unsigned flags))                           \
    X(pointer_attribute, cuPointerGetAttribute, (void *value, int attribute, attune__cu_pointer pointer))              \
    X(pool_access, cuMemPoolGetAccess, (int *flags, void *pool, attune__cu_location *location))                        \
    X(mapped_access, cuMemGetAccess,                                                                                   \
      (unsigned long long *flags, const attune__cu_location *location, attune__cu_pointer pointer))                    \
    X(stream_create, cuStreamCreate, (attune__cu_stream * stream, unsigned flags))                                     \
    X(stream_destroy, cuStreamDestroy_v2, (attune__cu_stream stream))                                                  \
    X(stream_synchronize, cuStreamSynchronize, (attune__cu_stream stream))                                             \
    X(stream_wait, cuStreamWaitEvent, (attune__cu_stream stream, attune__cu_event event, unsigned flags))              \
    X(stream_capturing, cuStreamIsCapturing, (attune__cu_stream stream, int *status))                                  \
    X(event_create, cuEventCreate, (attune__cu_event * event, unsigned flags))                                         \
    X(event_destroy, cuEventDestroy_v2, (attune__cu_event event))                                                      \
    X(event_record, cuEventRecord, (attune__cu_event event, attune__cu_stream stream))                                 \
    X(event_query, cuEventQuery, (attune__cu_event event))                                                             \
    X(event_synchronize, cuEventSynchronize, (attune__cu_event event))                                                 \
    X(event_elapsed, cuEventElapsedTime, (float *milliseconds, attune__cu_event start, attune__cu_event end))          \
    X(module_load, cuModuleLoadData, (attune__cu_module * module, const void *image))                                  \
    X(module_unload, cuModuleUnload, (attune__cu_module module))                                                       \
    X(module_function, cuModuleGetFunction,                                                                            \
      (attune__cu_function * function, attune__cu_module module, const char *name))                                    \
    X(function_get, cuFuncGetAttribute, (int *value, int attribute, attune__cu_function function))                     \
    X(function_set, cuFuncSetAttribute, (attune__cu_function function, int attribute, int value))                      \
    X(tensor_map, cuTensorMapEncodeTiled,                                                                              \
      (attune__cu_tensor_map * map, int type, uint32_t rank, void *address, const uint64_t *sizes,                     \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle,               \
       int l2_promotion, int fill))                                                                                    \
    X(launch, cuLaunchKernel,                                                                                          \
      (attune__cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,              \
       unsigned block_y, unsigned block_z, unsigned shared, attune__cu_stream stream, void **parameters,               \
       void **extra))

/* CUlaunchAttribute: the CTAs of a cluster, or that a launch may begin before the one before it has ended. */
typedef struct attune__cu_launch_attribute {
    int id;
    union {
        _Alignas(8) int allowed;
        unsigned cluster[3];
        unsigned char bytes[64];
    } value;
} attune__cu_launch_attribute;

/* CUlaunchConfig */
typedef struct attune__cu_launch_config {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    attune__cu_stream stream;
    attune__cu_launch_attribute *attributes;
    unsigned attribute_count;
} attune__cu_launch_config;

/* As cuda.h has them on 64 bits. */
_Static_assert(sizeof(attune__cu_launch_attribute) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(void *) != 8 || sizeof(attune__cu_launch_config) == 56, "CUlaunchConfig");

typedef struct attune__cuda_driver {
    void *library;
    /* cuLaunchKernelEx; NULL where launches wait for those before them: before CUDA 12.3, which captures others. */
    attune__cu_result (*launch_ex)(const attune__cu_launch_config *config, attune__cu_function function,
                                   void **parameters, void **extra);
    /* cuOccupancyMaxActiveClusters, likewise. */
    attune__cu_result (*most_clusters)(int *count, attune__cu_function function,
                                       const attune__cu_launch_config *config);
#define MEMBER(name, symbol, parameters) attune__cu_result(*name) parameters;
    ATTUNE__CUDA_FUNCTIONS(MEMBER)
#undef MEMBER
} attune__cuda_driver;

/* Opens the library, finds every function and initialises the driver. False, with the reason, if that fails. The
 * library stays loaded until the process ends: the driver does not survive being unloaded. */
bool attune__cuda_driver_open(attune__cuda_driver *driver, char *reason, size_t reason_size);
void attune__cuda_driver_close(attune__cuda_driver *driver);

/* "CUDA_ERROR_OUT_OF_MEMORY"; never NULL. */
const char *attune__cuda_error_name(const attune__cuda_driver *driver, attune__cu_result result);

#endif
