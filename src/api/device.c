/* SPDX-License-Identifier: MIT */
/* Devices and buffers. Enumeration includes backends that this build or machine does not have, with the reason. */
#include "api/api.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A backend that this build does not have has a name and a reason, and no table. */
typedef struct backend_entry {
    const attune__backend *backend;
    attune_backend kind;
    const char *name;
    const char *reason;
} backend_entry;

#if defined(_WIN32)
#define ABSENT(backend, option) "attune has no " backend " backend on Windows"
#else
#define ABSENT(backend, option)                                                                                        \
    "this build of attune has no " backend " backend: configure it with -D" option "=enabled"
#endif

static const backend_entry backends[] = {
    {&attune__cpu_backend, ATTUNE_BACKEND_CPU, "cpu", ""},
#if ATTUNE_HAVE_VULKAN
    {&attune__vulkan_backend, ATTUNE_BACKEND_VULKAN, "vulkan", ""},
#else
    {NULL, ATTUNE_BACKEND_VULKAN, "vulkan", ABSENT("Vulkan", "vulkan")},
#endif
#if ATTUNE_HAVE_CUDA
    {&attune__cuda_backend, ATTUNE_BACKEND_CUDA, "cuda", ""},
#else
    {NULL, ATTUNE_BACKEND_CUDA, "cuda", ABSENT("CUDA", "cuda")},
#endif
#if ATTUNE_HAVE_OPENCL
    {&attune__opencl_backend, ATTUNE_BACKEND_OPENCL, "opencl", ""},
#else
    {NULL, ATTUNE_BACKEND_OPENCL, "opencl", ABSENT("OpenCL", "opencl")},
#endif
};

#define BACKEND_COUNT (sizeof backends / sizeof backends[0])

const attune__backend *attune__backend_find(attune_backend kind)
{
    for (size_t i = 0; i < BACKEND_COUNT; i++)
        if (backends[i].kind == kind) {
            if (!backends[i].backend)
                attune__fail(ATTUNE_UNSUPPORTED, "%s", backends[i].reason);
            return backends[i].backend;
        }
    attune__fail(ATTUNE_UNSUPPORTED, "backend is %d, which this version does not have", (int)kind);
    return NULL;
}

static attune_status count_devices(const attune__host *host, const backend_entry *entry, uint32_t *count, char *reason,
                                   size_t reason_size)
{
    *count = 0;
    if (!entry->backend) {
        snprintf(reason, reason_size, "%s", entry->reason);
        return ATTUNE_OK;
    }
    reason[0] = '\0';
    return entry->backend->count(host, count, reason, reason_size);
}

attune_status attune_device_count(attune_instance *instance, uint32_t *count)
{
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    ATTUNE__TRY(attune__check_not_null(count, "count"));
    uint32_t total = 0;
    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        uint32_t devices;
        char reason[256];
        ATTUNE__TRY(count_devices(&instance->host, &backends[i], &devices, reason, sizeof reason));
        total += devices ? devices : 1;
    }
    *count = total;
    return ATTUNE_OK;
}

attune_status attune_device_describe(attune_instance *instance, uint32_t index, attune_device_info *info)
{
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    attune_device_info found = {.struct_size = sizeof found, .limits.struct_size = sizeof found.limits};
    uint32_t first = 0;
    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        uint32_t devices;
        ATTUNE__TRY(count_devices(&instance->host, &backends[i], &devices, found.reason, sizeof found.reason));
        if (index < first + devices) {
            ATTUNE__TRY(backends[i].backend->describe(&instance->host, index - first, &found));
            return attune__desc_write(info, &found, sizeof found, sizeof found, "info");
        }
        if (!devices && index == first) {
            found.backend = backends[i].kind;
            found.limits.backend = backends[i].kind;
            snprintf(found.id, sizeof found.id, "%s", backends[i].name);
            return attune__desc_write(info, &found, sizeof found, sizeof found, "info");
        }
        first += devices ? devices : 1;
    }
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "index is %u, but there are %u devices", index, first);
}

/* Splits "vulkan:1" into its backend and number, up to a profile's "@". */
static attune_status parse_id(const char *id, const backend_entry **entry, uint32_t *number)
{
    size_t length = strcspn(id, ":@");
    *entry = NULL;
    for (size_t i = 0; i < BACKEND_COUNT; i++)
        if (strlen(backends[i].name) == length && !memcmp(backends[i].name, id, length))
            *entry = &backends[i];
    if (!*entry)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "device id \"%s\" is invalid: expected cpu, vulkan, cuda or opencl, with :N for device number N", id);
    *number = 0;
    if (id[length] != ':')
        return ATTUNE_OK;
    const char *digit = id + length + 1;
    const size_t digits = strcspn(digit, "@");
    if (!digits || digits > 6 || strspn(digit, "0123456789") != digits)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "device id \"%s\" is invalid: expected a number after the colon, as in %s:0", id,
                            (*entry)->name);
    for (const char *end = digit + digits; digit < end; digit++)
        *number = *number * 10 + (uint32_t)(*digit - '0');
    return ATTUNE_OK;
}

attune_status attune_device_open(attune_instance *instance, const char *id, attune_device **device)
{
    ATTUNE__TRY(attune__check_not_null(device, "device"));
    *device = NULL;
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    ATTUNE__TRY(attune__check_not_null(id, "id"));
    const backend_entry *entry;
    uint32_t number, count;
    char reason[256];
    ATTUNE__TRY(parse_id(id, &entry, &number));
    ATTUNE__TRY(count_devices(&instance->host, entry, &count, reason, sizeof reason));
    if (!count)
        return attune__fail(ATTUNE_UNAVAILABLE, "no %s device: %s", entry->name, reason);
    if (number >= count)
        return attune__fail(ATTUNE_UNAVAILABLE, "no device %s: this machine has %u of %s, numbered from 0", id, count,
                            entry->name);
    attune_device *opened;
    ATTUNE__TRY(entry->backend->open(&instance->host, number, &opened));
    const char *profile = strchr(id, '@');
    if (profile) {
        const attune_status status = attune__profile_apply(profile + 1, &opened->info.limits);
        if (status != ATTUNE_OK) {
            opened->backend->close(opened);
            return status;
        }
    }
    attune__device_init(opened, instance);
    *device = opened;
    return ATTUNE_OK;
}

void attune__device_init(attune_device *opened, attune_instance *instance)
{
    opened->instance = attune__instance_retain(instance);
    opened->process = (int64_t)getpid();
    atomic_init(&opened->references, 1);
}

attune_device *attune__device_retain(attune_device *device)
{
    atomic_fetch_add_explicit(&device->references, 1, memory_order_relaxed);
    return device;
}

void attune__device_release(attune_device *device)
{
    if (atomic_fetch_sub_explicit(&device->references, 1, memory_order_acq_rel) != 1)
        return;
    attune_instance *instance = device->instance;
    /* A forked child has the memory but neither the threads nor the driver's state: closing could wait forever. */
    if (device->process == (int64_t)getpid())
        device->backend->close(device);
    attune__instance_release(instance);
}

void attune_device_destroy(attune_device *device)
{
    if (device)
        attune__device_release(device);
}

attune_status attune__device_check(const attune_device *device)
{
    ATTUNE__TRY(attune__check_not_null(device, "device"));
    if (atomic_load_explicit(&device->lost, memory_order_relaxed))
        return attune__fail(ATTUNE_DEVICE_LOST, "device %s is lost: destroy it and open it again", device->info.id);
    if (device->process != (int64_t)getpid())
        return attune__fail(ATTUNE_UNAVAILABLE,
                            "device %s was opened before fork, in process %lld: open it in the child instead",
                            device->info.id, (long long)device->process);
    return ATTUNE_OK;
}

attune_status attune__queue_check(const attune_queue *queue, const attune_device *device, const char *owner)
{
    ATTUNE__TRY(attune__check_not_null(queue, "queue"));
    ATTUNE__TRY(attune__device_check(device));
    if (queue->device != device)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "queue belongs to device %s, the %s to device %s",
                            queue->device->info.id, owner, device->info.id);
    return ATTUNE_OK;
}

attune_status attune_device_info_get(const attune_device *device, attune_device_info *info)
{
    ATTUNE__TRY(attune__check_not_null(device, "device"));
    return attune__desc_write(info, &device->info, sizeof device->info, sizeof device->info, "info");
}

attune_status attune_device_measure(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth)
{
    ATTUNE__TRY(attune__device_check(device));
    if (dtype != ATTUNE_F32 && dtype != ATTUNE_F16 && dtype != ATTUNE_BF16 && dtype != ATTUNE_F64)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "dtype is %s (%d), expected f32, f16, bf16 or f64",
                            attune_dtype_string(dtype), (int)dtype);
    if (!device->backend->measure)
        return attune__fail(ATTUNE_UNSUPPORTED, "device %s: %s", device->info.id, device->backend->missing_reason);
    double measured[2];
    ATTUNE__TRY(device->backend->measure(device, dtype, &measured[0], &measured[1]));
    if (flops)
        *flops = measured[0];
    if (bandwidth)
        *bandwidth = measured[1];
    return ATTUNE_OK;
}

attune_queue *attune_device_queue(attune_device *device)
{
    return device ? device->queue : NULL;
}

attune_status attune_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer)
{
    ATTUNE__TRY(attune__check_not_null(buffer, "buffer"));
    *buffer = NULL;
    ATTUNE__TRY(attune__device_check(device));
    if (!size)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "size is 0: a buffer has at least one byte");
    attune_buffer *made;
    ATTUNE__TRY(device->backend->buffer_create(device, size, &made));
    attune__device_retain(device);
    *buffer = made;
    return ATTUNE_OK;
}

attune_status attune_buffer_wrap(attune_device *device, void *memory, uint64_t size, attune_buffer **buffer)
{
    ATTUNE__TRY(attune__check_not_null(buffer, "buffer"));
    *buffer = NULL;
    ATTUNE__TRY(attune__device_check(device));
    ATTUNE__TRY(attune__check_not_null(memory, "memory"));
    if (!size)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "size is 0: a buffer has at least one byte");
    const char *const wrap = device->backend->buffer_wrap_device_name;
    if (!device->backend->buffer_wrap)
        return attune__fail(
            ATTUNE_UNSUPPORTED,
            "device %s cannot use host memory in place: create a buffer with attune_buffer_create and copy%s%s",
            device->info.id, wrap ? ", or wrap memory of the device with " : "", wrap ? wrap : "");
    attune_buffer *made;
    ATTUNE__TRY(device->backend->buffer_wrap(device, memory, size, &made));
    attune__device_retain(device);
    *buffer = made;
    return ATTUNE_OK;
}

void attune_buffer_destroy(attune_buffer *buffer)
{
    if (!buffer)
        return;
    attune_device *device = buffer->device;
    device->backend->buffer_destroy(buffer);
    attune__device_release(device);
}

uint64_t attune_buffer_size(const attune_buffer *buffer)
{
    return buffer ? buffer->size : 0;
}

static attune_status check_range(const attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size)
{
    ATTUNE__TRY(attune__check_not_null(buffer, "buffer"));
    ATTUNE__TRY(attune__device_check(buffer->device));
    if (offset > buffer->size || size > buffer->size - offset)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "offset %llu + size %llu exceeds the buffer's %llu bytes",
                            (unsigned long long)offset, (unsigned long long)size, (unsigned long long)buffer->size);
    return size ? attune__check_not_null(data, "data") : ATTUNE_OK;
}

attune_status attune_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size)
{
    ATTUNE__TRY(check_range(buffer, offset, data, size));
    return size ? buffer->device->backend->buffer_write(buffer, offset, data, size) : ATTUNE_OK;
}

attune_status attune_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size)
{
    ATTUNE__TRY(check_range(buffer, offset, data, size));
    return size ? buffer->device->backend->buffer_read(buffer, offset, data, size) : ATTUNE_OK;
}
