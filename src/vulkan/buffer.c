/* SPDX-License-Identifier: MIT */
/*
 * Buffers, and copies between them and the host: in place where the host sees the memory, else in chunks through
 * staging memory, of which one chunk is copied by the host while the device copies another. Either way a copy comes
 * after everything that was submitted before it.
 */
#include "vulkan/vulkan.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

#define CHUNK_SIZE  (UINT64_C(4) << 20)
#define CHUNK_COUNT 3

typedef struct attune__vulkan_staging {
    pthread_mutex_t mutex; /* one copy at a time */
    attune__vulkan_block *block;
} attune__vulkan_staging;

static attune_status staging_create(attune__vulkan_device *device, attune__vulkan_staging **staging)
{
    const attune_allocator *allocator = &device->base.host.allocator;
    attune__vulkan_staging *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune_status status =
        attune__vulkan_block_create(device, CHUNK_COUNT * CHUNK_SIZE, device->memory.staging_type, true, &made->block);
    if (status == ATTUNE_OK && pthread_mutex_init(&made->mutex, NULL)) {
        attune__vulkan_block_destroy(device, made->block);
        status = attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "the system has no mutex for the staging memory");
    }
    if (status)
        attune__free(allocator, made);
    else
        *staging = made;
    return status;
}

void attune__vulkan_staging_finish(attune__vulkan_device *device)
{
    if (!device->staging)
        return;
    attune__vulkan_block_destroy(device, device->staging->block);
    pthread_mutex_destroy(&device->staging->mutex);
    attune__free(&device->base.host.allocator, device->staging);
}

attune_status attune__vulkan_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer)
{
    attune__vulkan_device *mine = attune__vulkan_of(device);
    attune__vulkan_buffer *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune_status status = attune__vulkan_range_create(mine, size, &made->range);
    if (status) {
        attune__free(&device->host.allocator, made);
        return status;
    }
    const attune__vulkan_block *block = made->range->block;
    made->base = (attune_buffer){.device = device, .size = size};
    made->handle = block->buffer;
    made->offset = made->range->offset;
    made->address = block->address + made->offset;
    made->map = block->map ? block->map + made->offset : NULL;
    *buffer = &made->base;
    return ATTUNE_OK;
}

attune_status attune__vulkan_buffer_wrap_device(attune_device *device, const void *handle, uint64_t offset,
                                                uint64_t size, attune_buffer **buffer)
{
    attune__vulkan_device *mine = attune__vulkan_of(device);
    VkBuffer borrowed;
    memcpy(&borrowed, handle, sizeof borrowed); /* NOLINT(bugprone-sizeof-expression): a handle */
    const VkBufferDeviceAddressInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
        .buffer = borrowed,
    };
    const VkDeviceAddress address = mine->vk.GetBufferDeviceAddress(mine->handle, &info);
    if (!address)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "vk_buffer has no device address: make it with "
                                                     "VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT and bind it to memory");
    attune__vulkan_buffer *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    *made = (attune__vulkan_buffer){
        .base = {.device = device, .size = size},
        .handle = borrowed,
        .offset = offset,
        .address = address + offset,
    };
    *buffer = &made->base;
    return ATTUNE_OK;
}

void attune__vulkan_buffer_destroy(attune_buffer *buffer)
{
    attune__vulkan_device *device = attune__vulkan_of(buffer->device);
    attune__vulkan_buffer *mine = (attune__vulkan_buffer *)buffer;
    if (mine->range)
        attune__vulkan_range_destroy(device, mine->range);
    attune__free(&device->base.host.allocator, mine);
}

/* Submits a copy between the buffer and a chunk. */
static attune_status copy_chunk(attune__vulkan_device *device, const attune__vulkan_buffer *buffer, uint64_t offset,
                                uint64_t staged, uint64_t size, bool upload, uint64_t *value)
{
    attune__vulkan_slot *slot;
    ATTUNE__TRY(attune__vulkan_begin(device, false, &slot));
    const VkBuffer staging = device->staging->block->buffer;
    const VkBufferCopy region = {
        .srcOffset = upload ? staged : buffer->offset + offset,
        .dstOffset = upload ? buffer->offset + offset : staged,
        .size = size,
    };
    device->vk.CmdCopyBuffer(slot->commands, upload ? staging : buffer->handle, upload ? buffer->handle : staging, 1,
                             &region);
    return attune__vulkan_submit(device, slot, value);
}

/* The chunks of a copy alternate between parts of the staging memory. */
typedef struct chunk {
    uint64_t value, offset, size; /* value 0 = not in flight */
} chunk;

static attune_status wait_chunk(attune__vulkan_device *device, const chunk *c)
{
    return c->value ? attune__vulkan_wait(&device->queue.base, c->value, UINT64_MAX) : ATTUNE_OK;
}

static attune_status staged_write(attune__vulkan_device *device, const attune__vulkan_buffer *buffer, uint64_t offset,
                                  const char *data, uint64_t size)
{
    char *map = device->staging->block->map;
    chunk chunks[CHUNK_COUNT] = {{0}};
    uint64_t last = 0;
    for (uint64_t i = 0, done = 0; done < size; i++) {
        chunk *c = &chunks[i % CHUNK_COUNT];
        const uint64_t staged = i % CHUNK_COUNT * CHUNK_SIZE;
        ATTUNE__TRY(wait_chunk(device, c));
        c->size = size - done < CHUNK_SIZE ? size - done : CHUNK_SIZE;
        memcpy(map + staged, data + done, (size_t)c->size);
        ATTUNE__TRY(copy_chunk(device, buffer, offset + done, staged, c->size, true, &c->value));
        last = c->value;
        done += c->size;
    }
    return attune__vulkan_wait(&device->queue.base, last, UINT64_MAX);
}

static attune_status staged_read(attune__vulkan_device *device, const attune__vulkan_buffer *buffer, uint64_t offset,
                                 char *data, uint64_t size)
{
    const char *map = device->staging->block->map;
    chunk chunks[CHUNK_COUNT] = {{0}};
    const uint64_t count = (size + CHUNK_SIZE - 1) / CHUNK_SIZE;
    /* Chunk i is submitted before chunk i - CHUNK_COUNT + 1 is read. */
    for (uint64_t i = 0; i < count + CHUNK_COUNT - 1; i++) {
        if (i < count) {
            chunk *c = &chunks[i % CHUNK_COUNT];
            c->offset = i * CHUNK_SIZE;
            c->size = size - c->offset < CHUNK_SIZE ? size - c->offset : CHUNK_SIZE;
            ATTUNE__TRY(copy_chunk(device, buffer, offset + c->offset, i % CHUNK_COUNT * CHUNK_SIZE, c->size, false,
                                   &c->value));
        }
        if (i >= CHUNK_COUNT - 1 && i - (CHUNK_COUNT - 1) < count) {
            const uint64_t ready = (i - (CHUNK_COUNT - 1)) % CHUNK_COUNT;
            ATTUNE__TRY(wait_chunk(device, &chunks[ready]));
            memcpy(data + chunks[ready].offset, map + ready * CHUNK_SIZE, (size_t)chunks[ready].size);
        }
    }
    return ATTUNE_OK;
}

/* A copy through staging memory, which is made for the first one: into the buffer from `from`, or into `to`. */
static attune_status staged_copy(attune__vulkan_device *device, const attune__vulkan_buffer *buffer, uint64_t offset,
                                 bool into_buffer, const char *from, char *to, uint64_t size)
{
    attune_status status = ATTUNE_OK;
    pthread_mutex_lock(&device->memory.mutex);
    if (!device->staging)
        status = staging_create(device, &device->staging);
    pthread_mutex_unlock(&device->memory.mutex);
    if (status)
        return status;
    pthread_mutex_lock(&device->staging->mutex);
    status =
        into_buffer ? staged_write(device, buffer, offset, from, size) : staged_read(device, buffer, offset, to, size);
    /* A failed copy may have left chunks in flight, which the next copy must not overwrite. */
    if (status)
        (void)attune__vulkan_wait_idle(device);
    pthread_mutex_unlock(&device->staging->mutex);
    return status;
}

attune_status attune__vulkan_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size)
{
    attune__vulkan_device *device = attune__vulkan_of(buffer->device);
    const attune__vulkan_buffer *mine = (attune__vulkan_buffer *)buffer;
    if (!mine->map || !device->memory.direct_write)
        return staged_copy(device, mine, offset, true, data, NULL, size);
    ATTUNE__TRY(attune__vulkan_wait_idle(device));
    memcpy(mine->map + offset, data, (size_t)size);
    return ATTUNE_OK;
}

attune_status attune__vulkan_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size)
{
    attune__vulkan_device *device = attune__vulkan_of(buffer->device);
    const attune__vulkan_buffer *mine = (const attune__vulkan_buffer *)buffer;
    if (!mine->map || !device->memory.direct_read)
        return staged_copy(device, mine, offset, false, NULL, data, size);
    ATTUNE__TRY(attune__vulkan_wait_idle(device));
    memcpy(data, mine->map + offset, (size_t)size);
    return ATTUNE_OK;
}

attune_status attune__vulkan_copy(attune_queue *queue, const attune__copy *copies, uint32_t count, bool to_device)
{
    attune_status status = ATTUNE_OK;
    (void)queue; /* a device has one, in which its copies are */
    for (uint32_t i = 0; i < count && status == ATTUNE_OK; i++) {
        const attune__copy *c = &copies[i];
        status = to_device ? attune__vulkan_buffer_write(c->buffer, c->offset, c->memory, c->size)
                           : attune__vulkan_buffer_read(c->buffer, c->offset, c->memory, c->size);
    }
    return status;
}
