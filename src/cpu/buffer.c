/* SPDX-License-Identifier: MIT */
/* Buffers: host memory, allocated or of the caller, and its elements. */
#include "cpu/cpu.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/half.h"

attune_status attune__cpu_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer)
{
    const attune_allocator *allocator = &device->host.allocator;
    attune__cpu_buffer *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->memory = size > SIZE_MAX ? NULL : attune__alloc_raw(allocator, (size_t)size, 1);
    if (!made->memory) {
        attune__free(allocator, made);
        return attune__fail(ATTUNE_OUT_OF_DEVICE_MEMORY, "the host has no %llu bytes for a buffer",
                            (unsigned long long)size);
    }
    made->base.device = device;
    made->base.size = size;
    made->owned = true;
    *buffer = &made->base;
    return ATTUNE_OK;
}

attune_status attune__cpu_buffer_wrap(attune_device *device, void *memory, uint64_t size, attune_buffer **buffer)
{
    attune__cpu_buffer *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->base.size = size;
    made->base.misalignment = (uint32_t)((uintptr_t)memory % 8);
    made->memory = memory;
    *buffer = &made->base;
    return ATTUNE_OK;
}

void attune__cpu_buffer_destroy(attune_buffer *buffer)
{
    attune__cpu_buffer *mine = (attune__cpu_buffer *)buffer;
    const attune_allocator allocator = buffer->device->host.allocator;
    if (mine->owned)
        attune__free(&allocator, mine->memory);
    attune__free(&allocator, mine);
}

attune_status attune__cpu_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size)
{
    memmove(attune__cpu_memory(buffer) + offset, data, (size_t)size);
    return ATTUNE_OK;
}

attune_status attune__cpu_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size)
{
    memmove(data, attune__cpu_memory(buffer) + offset, (size_t)size);
    return ATTUNE_OK;
}

void *attune__cpu_buffer_memory(const attune_buffer *buffer)
{
    return attune__cpu_memory(buffer);
}

double attune__cpu_load(const char *at, attune_dtype dtype)
{
    if (dtype == ATTUNE_F64) {
        double value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    if (dtype == ATTUNE_F32) {
        float value;
        memcpy(&value, at, sizeof value);
        return (double)value;
    }
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return (double)(dtype == ATTUNE_F16 ? attune__f32_from_f16(half) : attune__f32_from_bf16(half));
}

void attune__cpu_store(char *at, attune_dtype dtype, double value)
{
    if (dtype == ATTUNE_F64) {
        memcpy(at, &value, sizeof value);
        return;
    }
    const float single = (float)value;
    if (dtype == ATTUNE_F32) {
        memcpy(at, &single, sizeof single);
        return;
    }
    const uint16_t half = dtype == ATTUNE_F16 ? attune__f16_from_f32(single) : attune__bf16_from_f32(single);
    memcpy(at, &half, sizeof half);
}
