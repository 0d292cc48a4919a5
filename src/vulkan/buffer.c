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

/* A list of copies in one direction, through staging memory but for buffers that the host reads or writes itself. */
typedef struct transfer {
    attune__vulkan_device *device;
    const attune__copy *copies;
    uint32_t count;
    bool into_buffers;
} transfer;

static bool is_direct(const transfer *t, const attune__copy *copy)
{
    const attune__vulkan_memory *memory = &t->device->memory;
    return ((const attune__vulkan_buffer *)copy->buffer)->map &&
           (t->into_buffers ? memory->direct_write : memory->direct_read);
}

/* How far the staged copies of a transfer are. */
typedef struct cursor {
    uint32_t copy;
    uint64_t done; /* bytes of it */
} cursor;

static bool has_more(const transfer *t, cursor *c)
{
    while (c->copy < t->count && (c->done == t->copies[c->copy].size || is_direct(t, &t->copies[c->copy]))) {
        c->copy++;
        c->done = 0;
    }
    return c->copy < t->count;
}

/* Bytes of one copy in a chunk of staging memory. */
typedef struct piece {
    const attune__copy *copy;
    uint64_t at, size;
} piece;

static bool next_piece(const transfer *t, cursor *c, uint64_t room, piece *p)
{
    if (!room || !has_more(t, c))
        return false;
    const attune__copy *copy = &t->copies[c->copy];
    const uint64_t left = copy->size - c->done;
    *p = (piece){copy, c->done, left < room ? left : room};
    c->done += p->size;
    return true;
}

/* Submits the copies between the next pieces and a chunk, at `staged`, together. */
static attune_status submit_chunk(const transfer *t, cursor *c, uint64_t staged, uint64_t *value)
{
    attune__vulkan_device *device = t->device;
    const VkBuffer staging = device->staging->block->buffer;
    attune__vulkan_slot *slot;
    ATTUNE__TRY(attune__vulkan_begin(device, false, &slot));
    piece p;
    for (uint64_t used = 0; next_piece(t, c, CHUNK_SIZE - used, &p); used += p.size) {
        const attune__vulkan_buffer *buffer = (const attune__vulkan_buffer *)p.copy->buffer;
        const uint64_t at = buffer->offset + p.copy->offset + p.at;
        const VkBufferCopy region = {.srcOffset = t->into_buffers ? staged + used : at,
                                     .dstOffset = t->into_buffers ? at : staged + used,
                                     .size = p.size};
        if (t->into_buffers)
            memcpy((char *)device->staging->block->map + staged + used, (const char *)p.copy->memory + p.at,
                   (size_t)p.size);
        device->vk.CmdCopyBuffer(slot->commands, t->into_buffers ? staging : buffer->handle,
                                 t->into_buffers ? buffer->handle : staging, 1, &region);
    }
    return attune__vulkan_submit(device, slot, value);
}

static void read_chunk(const transfer *t, cursor *c, uint64_t staged)
{
    const char *map = t->device->staging->block->map;
    piece p;
    for (uint64_t used = 0; next_piece(t, c, CHUNK_SIZE - used, &p); used += p.size)
        memcpy((char *)p.copy->memory + p.at, map + staged + used, (size_t)p.size);
}

/* Several chunks are in flight; each is waited for before its part of the staging memory is used again. */
static attune_status run_chunks(const transfer *t)
{
    uint64_t values[CHUNK_COUNT], submitted = 0, waited = 0;
    cursor next = {0, 0}, arrived = {0, 0};
    while (has_more(t, &next) || waited < submitted) {
        if (has_more(t, &next)) {
            const uint64_t at = submitted++ % CHUNK_COUNT;
            ATTUNE__TRY(submit_chunk(t, &next, at * CHUNK_SIZE, &values[at]));
        }
        if (has_more(t, &next) && submitted - waited < CHUNK_COUNT)
            continue;
        const uint64_t at = waited++ % CHUNK_COUNT;
        ATTUNE__TRY(attune__vulkan_wait(&t->device->queue.base, values[at], UINT64_MAX));
        if (!t->into_buffers)
            read_chunk(t, &arrived, at * CHUNK_SIZE);
    }
    return ATTUNE_OK;
}

/* The staging memory is made for the first copy that needs it. */
static attune_status run_staged(const transfer *t)
{
    attune__vulkan_device *device = t->device;
    cursor first = {0, 0};
    attune_status status = ATTUNE_OK;
    if (!has_more(t, &first))
        return ATTUNE_OK;
    pthread_mutex_lock(&device->memory.mutex);
    if (!device->staging)
        status = staging_create(device, &device->staging);
    pthread_mutex_unlock(&device->memory.mutex);
    if (status)
        return status;
    pthread_mutex_lock(&device->staging->mutex);
    status = run_chunks(t);
    /* A failed copy may have left chunks in flight, which the next copy must not overwrite. */
    if (status)
        (void)attune__vulkan_wait_idle(device);
    pthread_mutex_unlock(&device->staging->mutex);
    return status;
}

static attune_status run_transfer(const transfer *t)
{
    bool idle = false;
    for (uint32_t i = 0; i < t->count; i++) {
        const attune__copy *c = &t->copies[i];
        if (!is_direct(t, c))
            continue;
        if (!idle)
            ATTUNE__TRY(attune__vulkan_wait_idle(t->device));
        idle = true;
        char *at = ((const attune__vulkan_buffer *)c->buffer)->map + c->offset;
        memcpy(t->into_buffers ? at : c->memory, t->into_buffers ? c->memory : at, (size_t)c->size);
    }
    return run_staged(t);
}

attune_status attune__vulkan_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size)
{
    const attune__copy copy = {buffer, offset, size, (void *)(uintptr_t)data};
    return run_transfer(&(transfer){attune__vulkan_of(buffer->device), &copy, 1, true});
}

attune_status attune__vulkan_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size)
{
    const attune__copy copy = {(attune_buffer *)(uintptr_t)buffer, offset, size, data};
    return run_transfer(&(transfer){attune__vulkan_of(buffer->device), &copy, 1, false});
}

attune_status attune__vulkan_copy(attune_queue *queue, const attune__copy *copies, uint32_t count, bool to_device)
{
    /* A device has one queue, in which its copies are. */
    return run_transfer(&(transfer){attune__vulkan_of(queue->device), copies, count, to_device});
}
