/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "cuda/append.h"
#include "cuda/driver.h"
#include "cuda/fake.h"

fake_state fake = {.architecture = 90};

static int call(const char *name)
{
    const int at = __atomic_fetch_add(&fake.calls, 1, __ATOMIC_RELAXED); /* of any thread */
    if (at < FAKE_CALLS)
        fake.names[at] = name;
    return at + 1 == fake.fail_at || (fake.sticky && fake.fail_at && at + 1 > fake.fail_at) ? fake.fail_with
                                                                                            : CU_SUCCESS;
}

/* Releasing releases, whatever it answers. */
#define CALL(name)                                                                                                     \
    do {                                                                                                               \
        const int result = call(name);                                                                                 \
        if (result)                                                                                                    \
            return result;                                                                                             \
    } while (0)

static int some_object;
static const char hopper[] = "attune_forward_sm90";

int cuInit(unsigned flags)
{
    (void)flags;
    CALL("cuInit");
    return 0;
}
int cuDriverGetVersion(int *version)
{
    CALL("cuDriverGetVersion");
    *version = 13000;
    return 0;
}
int cuGetErrorName(int error, const char **name)
{
    (void)error;
    *name = "CUDA_ERROR_FAKE";
    return 0;
}
int cuDeviceGetCount(int *count)
{
    CALL("cuDeviceGetCount");
    *count = 1;
    return 0;
}
int cuDeviceGet(int *device, int ordinal)
{
    CALL("cuDeviceGet");
    *device = ordinal;
    return 0;
}
int cuDeviceGetName(char *name, int size, int device)
{
    (void)device;
    CALL("cuDeviceGetName");
    strncpy(name, "NVIDIA Fake", (size_t)size);
    return 0;
}
int cuDeviceGetUuid(void *uuid, int device)
{
    (void)device;
    CALL("cuDeviceGetUuid");
    memset(uuid, 7, 16);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    CALL("cuDeviceTotalMem");
    *bytes = 1u << 30;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    CALL("cuDeviceGetAttribute");
    switch (attribute) {
    case CU_COMPUTE_CAPABILITY_MAJOR:
        *value = fake.architecture / 10;
        break;
    case CU_COMPUTE_CAPABILITY_MINOR:
        *value = fake.architecture % 10;
        break;
    case CU_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        break;
    case CU_WARP_SIZE:
        *value = 32;
        break;
    case CU_MULTIPROCESSOR_COUNT:
        *value = 132;
        break;
    case CU_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = 2048;
        break;
    case CU_MAX_REGISTERS_PER_MULTIPROCESSOR:
        *value = 65536;
        break;
    case CU_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = 233472;
        break;
    case CU_MAX_SHARED_MEMORY_PER_BLOCK:
        *value = 49152;
        break;
    case CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = 232448;
        break;
    case CU_RESERVED_SHARED_MEMORY_PER_BLOCK:
        *value = 1024;
        break;
    default:
        return 1;
    }
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    CALL("cuDevicePrimaryCtxRetain");
    fake.contexts++;
    *context = &some_object;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    if (--fake.contexts < 0)
        fake.lent_destroyed = 1;
    return call("cuDevicePrimaryCtxRelease");
}
int cuCtxPushCurrent_v2(void *context)
{
    CALL("cuCtxPushCurrent");
    __atomic_fetch_add(&fake.depth, 1, __ATOMIC_RELAXED);
    return context == &some_object ? 0 : 201;
}
int cuCtxPopCurrent_v2(void **context)
{
    __atomic_fetch_sub(&fake.depth, 1, __ATOMIC_RELAXED);
    *context = &some_object;
    return call("cuCtxPopCurrent");
}
int cuCtxGetDevice(int *device)
{
    CALL("cuCtxGetDevice");
    *device = 0;
    return 0;
}
int cuMemAlloc_v2(unsigned long long *pointer, size_t size)
{
    CALL("cuMemAlloc");
    void *memory = malloc(size);
    if (!memory)
        return 2;
    *pointer = (unsigned long long)(size_t)memory;
    fake.memories++;
    return 0;
}
int cuMemFree_v2(unsigned long long pointer)
{
    free((void *)(size_t)pointer);
    fake.memories--;
    return call("cuMemFree");
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, void *stream)
{
    (void)stream;
    CALL("cuMemcpyHtoDAsync");
    memcpy((void *)(size_t)to, from, size);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, void *stream)
{
    (void)stream;
    CALL("cuMemcpyDtoHAsync");
    memcpy(to, (const void *)(size_t)from, size);
    return 0;
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t size, void *stream)
{
    (void)stream;
    CALL("cuMemcpyDtoDAsync");
    memmove((void *)(size_t)to, (const void *)(size_t)from, size);
    return 0;
}
int cuMemcpyPeerAsync(unsigned long long to, void *to_context, unsigned long long from, void *from_context, size_t size,
                      void *stream)
{
    (void)to_context, (void)from_context, (void)stream;
    CALL("cuMemcpyPeerAsync");
    memcpy((void *)(size_t)to, (const void *)(size_t)from, size);
    return 0;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    (void)device, (void)peer;
    CALL("cuDeviceCanAccessPeer");
    *can = 1;
    return 0;
}
int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer)
{
    (void)attribute, (void)device, (void)peer;
    CALL("cuDeviceGetP2PAttribute");
    *value = 1;
    return 0;
}
int cuCtxEnablePeerAccess(void *peer, unsigned flags)
{
    (void)peer, (void)flags;
    CALL("cuCtxEnablePeerAccess");
    return 0;
}
int cuPointerGetAttribute(void *value, int attribute, unsigned long long pointer)
{
    (void)pointer;
    CALL("cuPointerGetAttribute");
    if (attribute == CU_POINTER_LEGACY_IPC)
        *(int *)value = !fake.pool && !fake.mapped;
    else
        *(void **)value = fake.pool ? &some_object : NULL;
    return 0;
}
int cuMemGetAccess(unsigned long long *flags, const attune__cu_location *location, attune__cu_pointer pointer)
{
    (void)location;
    CALL("cuMemGetAccess");
    *flags = pointer < (unsigned long long)fake.mapped_end ? 3 : 0;
    return fake.mapped ? CU_SUCCESS : CU_INVALID_VALUE;
}
int cuMemPoolGetAccess(int *flags, void *pool, attune__cu_location *location)
{
    (void)pool, (void)location;
    CALL("cuMemPoolGetAccess");
    *flags = fake.pool_grants ? 3 : fake.pool_access;
    fake.pool_grants -= fake.pool_grants > 0;
    return 0;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)flags, (void)stream, (void)event;
    CALL("cuStreamWaitEvent");
    return 0;
}
int cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    CALL("cuStreamCreate");
    fake.streams++;
    *stream = &some_object;
    return 0;
}
int cuStreamDestroy_v2(void *stream)
{
    (void)stream;
    fake.streams--;
    return call("cuStreamDestroy");
}
int cuStreamSynchronize(void *stream)
{
    (void)stream;
    CALL("cuStreamSynchronize");
    return 0;
}
int cuStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    CALL("cuStreamIsCapturing");
    *status = fake.capturing;
    return 0;
}
int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    CALL("cuEventCreate");
    fake.events++;
    *event = &some_object;
    return 0;
}
int cuEventDestroy_v2(void *event)
{
    (void)event;
    fake.events--;
    return call("cuEventDestroy");
}
int cuEventRecord(void *event, void *stream)
{
    (void)event;
    (void)stream;
    CALL("cuEventRecord");
    return 0;
}
int cuEventQuery(void *event)
{
    (void)event;
    CALL("cuEventQuery");
    return fake.not_ready > 0 ? (fake.not_ready--, CU_NOT_READY) : 0;
}
int cuEventSynchronize(void *event)
{
    (void)event;
    CALL("cuEventSynchronize");
    return 0;
}
int cuEventElapsedTime(float *milliseconds, void *start, void *end)
{
    (void)start;
    (void)end;
    CALL("cuEventElapsedTime");
    *milliseconds = 2;
    return 0;
}
int cuModuleLoadData(void **module, const void *image)
{
    (void)image;
    CALL("cuModuleLoadData");
    fake.modules++;
    *module = &some_object;
    return 0;
}
int cuModuleUnload(void *module)
{
    (void)module;
    fake.modules--;
    return call("cuModuleUnload");
}
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    CALL("cuModuleGetFunction");
    static const char *const kernels[] = {hopper,
                                          "attune_forward_sm100",
                                          "attune_forward_sm80",
                                          "attune_backward_sm80",
                                          "attune_backward_sm90",
                                          "attune_backward_sm100",
                                          "attune_delta",
                                          "attune_decode_sm80",
                                          "attune_combine_sm80",
                                          "attune_serving_sm80",
                                          "attune_serving_sm90",
                                          "attune_schedule",
                                          "attune_append",
                                          "attune_sums",
                                          "attune_sinks",
                                          "attune_backward_dq_sm90",
                                          "attune_mask_classify",
                                          "attune_mask_offsets",
                                          "attune_mask_indices"};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if (!strcmp(name, kernels[i])) {
            *function = (void *)(size_t)kernels[i];
            return 0;
        }
    return 500;
}
int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    (void)attribute;
    (void)function;
    CALL("cuFuncGetAttribute");
    *value = 0;
    return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function;
    (void)attribute;
    (void)value;
    CALL("cuFuncSetAttribute");
    return 0;
}
/* On the host alone: it is no call that a test counts. As the driver, it wants a context and multiples of 16 bytes. */
int cuTensorMapEncodeTiled(attune__cu_tensor_map *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int l2_promotion, int fill)
{
    (void)interleave;
    (void)l2_promotion;
    (void)fill;
    if (!fake.depth || (size_t)map % 64 || (size_t)address % 16 || rank < 4 || rank > 5 || (type != 6 && type != 9) ||
        swizzle != 3)
        return 1;
    for (uint32_t i = 0; i < rank; i++)
        if (!sizes[i] || !box[i] || box[i] > 256 || steps[i] != 1 || (i && (strides[i - 1] % 16 || !strides[i - 1])))
            return 1;
    memcpy(map->opaque, sizes, 4 * sizeof *sizes);
    return 0;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra)
{
    (void)stream;
    (void)extra;
    CALL("cuLaunchKernel");
    fake.kernel = function;
    fake.hopper = function == hopper;
    fake.grid = x * y * z;
    fake.block = bx * by * bz;
    fake.shared = shared;
    memcpy(fake.arguments, parameters[0], strcmp(function, "attune_append") ? 512 : sizeof(attune_cuda_append));
    return 0;
}
