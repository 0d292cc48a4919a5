/* SPDX-License-Identifier: MIT */
/*
 * Device memory: a few large blocks, each one VkDeviceMemory under one VkBuffer, divided into ranges. Kernels and
 * copies name a range by address or by the block's buffer and an offset, so that making a buffer costs the driver
 * nothing.
 */
#include "vulkan/vulkan.h"

#include "base/alloc.h"
#include "base/error.h"

#define MIB        (UINT64_C(1) << 20)
#define BLOCK_SIZE (64 * MIB)
#define ALIGNMENT  UINT64_C(256)

void attune__vulkan_block_destroy(attune__vulkan_device *device, attune__vulkan_block *block)
{
    if (!block)
        return;
    if (block->buffer)
        device->vk.DestroyBuffer(device->handle, block->buffer, NULL);
    if (block->memory)
        device->vk.FreeMemory(device->handle, block->memory, NULL); /* unmaps */
    attune__free(&device->base.host.allocator, block->ranges);
    attune__free(&device->base.host.allocator, block);
}

static attune_status block_fill(attune__vulkan_device *device, attune__vulkan_block *block, uint32_t type, bool map)
{
    const attune__vulkan_functions *vk = &device->vk;
    const VkBufferCreateInfo buffer = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = block->size,
        .usage = ATTUNE__VULKAN_USAGE,
        .sharingMode = VK_SHARING_MODE_EXCLUSIVE,
    };
    VkResult result = vk->CreateBuffer(device->handle, &buffer, NULL, &block->buffer);
    if (result) {
        block->buffer = VK_NULL_HANDLE;
        return attune__vulkan_fail(device, result, "vkCreateBuffer");
    }
    VkMemoryRequirements needs;
    vk->GetBufferMemoryRequirements(device->handle, block->buffer, &needs);
    const VkMemoryAllocateFlagsInfo flags = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
        .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT,
    };
    const VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .pNext = &flags,
        .allocationSize = needs.size,
        .memoryTypeIndex = type,
    };
    result = vk->AllocateMemory(device->handle, &info, NULL, &block->memory);
    if (result) {
        block->memory = VK_NULL_HANDLE;
        return attune__vulkan_fail(device, result, "vkAllocateMemory");
    }
    result = vk->BindBufferMemory(device->handle, block->buffer, block->memory, 0);
    if (result)
        return attune__vulkan_fail(device, result, "vkBindBufferMemory");
    if (map) {
        void *memory;
        result = vk->MapMemory(device->handle, block->memory, 0, VK_WHOLE_SIZE, 0, &memory);
        if (result)
            return attune__vulkan_fail(device, result, "vkMapMemory");
        block->map = memory;
    }
    const VkBufferDeviceAddressInfo address = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
        .buffer = block->buffer,
    };
    block->address = vk->GetBufferDeviceAddress(device->handle, &address);
    return ATTUNE_OK;
}

attune_status attune__vulkan_block_create(attune__vulkan_device *device, uint64_t size, uint32_t type, bool map,
                                          attune__vulkan_block **block)
{
    const attune_allocator *allocator = &device->base.host.allocator;
    attune__vulkan_block *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->size = size;
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    made->ranges = attune__alloc(allocator, 1, sizeof *made->ranges);
    if (made->ranges) {
        *made->ranges = (attune__vulkan_range){.block = made, .size = size};
        status = block_fill(device, made, type, map);
    }
    if (status)
        attune__vulkan_block_destroy(device, made);
    else
        *block = made;
    return status;
}

/* The first free range that is large enough, split to its size. Under the mutex. */
static attune_status split_range(attune__vulkan_device *device, attune__vulkan_block *block, uint64_t size,
                                 attune__vulkan_range **range)
{
    attune__vulkan_range *r = block->ranges;
    while (r && (r->used || r->size < size))
        r = r->next;
    *range = r;
    if (!r)
        return ATTUNE_OK;
    if (r->size > size) {
        attune__vulkan_range *rest = attune__alloc(&device->base.host.allocator, 1, sizeof *rest);
        if (!rest)
            return ATTUNE_OUT_OF_HOST_MEMORY;
        *rest = (attune__vulkan_range){
            .previous = r,
            .next = r->next,
            .block = block,
            .offset = r->offset + size,
            .size = r->size - size,
        };
        if (r->next)
            r->next->previous = rest;
        r->next = rest;
        r->size = size;
    }
    r->used = true;
    return ATTUNE_OK;
}

static attune_status range_create(attune__vulkan_device *device, uint64_t size, attune__vulkan_range **range)
{
    attune__vulkan_memory *memory = &device->memory;
    /* A range of more than half a block would leave its rest to few. */
    const bool dedicated = size > memory->block_size / 2;
    for (attune__vulkan_block *b = memory->blocks; b && !dedicated; b = b->next) {
        if (b->dedicated)
            continue;
        ATTUNE__TRY(split_range(device, b, size, range));
        if (*range)
            return ATTUNE_OK;
    }
    attune__vulkan_block *block;
    ATTUNE__TRY(attune__vulkan_block_create(device, dedicated ? size : memory->block_size, memory->device_type,
                                            memory->direct_write || memory->direct_read, &block));
    block->dedicated = dedicated;
    attune_status status = split_range(device, block, size, range);
    if (status) {
        attune__vulkan_block_destroy(device, block);
        return status;
    }
    block->next = memory->blocks;
    memory->blocks = block;
    return ATTUNE_OK;
}

attune_status attune__vulkan_range_create(attune__vulkan_device *device, uint64_t size, attune__vulkan_range **range)
{
    attune__vulkan_memory *memory = &device->memory;
    if (size > memory->max_size)
        return attune__fail(
            ATTUNE_OUT_OF_DEVICE_MEMORY,
            "a buffer of %llu bytes is more than the %llu that device %s allocates at once: use several",
            (unsigned long long)size, (unsigned long long)memory->max_size, device->base.info.id);
    pthread_mutex_lock(&memory->mutex);
    attune_status status = range_create(device, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, range);
    pthread_mutex_unlock(&memory->mutex);
    if (status == ATTUNE_OUT_OF_DEVICE_MEMORY)
        return attune__fail_context(status, "device %s has no %llu bytes for a buffer", device->base.info.id,
                                    (unsigned long long)size);
    return status;
}

/* Joins a free range with the free one after it. */
static void join(attune__vulkan_device *device, attune__vulkan_range *range)
{
    attune__vulkan_range *next = range ? range->next : NULL;
    if (!next || range->used || next->used)
        return;
    range->size += next->size;
    range->next = next->next;
    if (next->next)
        next->next->previous = range;
    attune__free(&device->base.host.allocator, next);
}

/* Whether another block of the kind is empty as well: one is kept, so that a buffer that comes and goes is cheap. */
static bool spare(const attune__vulkan_memory *memory, const attune__vulkan_block *block)
{
    for (const attune__vulkan_block *b = memory->blocks; b; b = b->next)
        if (b != block && !b->dedicated && !b->ranges->used && !b->ranges->next)
            return true;
    return false;
}

void attune__vulkan_range_destroy(attune__vulkan_device *device, attune__vulkan_range *range)
{
    attune__vulkan_memory *memory = &device->memory;
    attune__vulkan_block *block = range->block;
    pthread_mutex_lock(&memory->mutex);
    range->used = false;
    join(device, range);
    join(device, range->previous);
    const bool empty = !block->ranges->used && !block->ranges->next;
    if (empty && (block->dedicated || spare(memory, block))) {
        attune__vulkan_block **link = &memory->blocks;
        while (*link != block)
            link = &(*link)->next;
        *link = block->next;
        attune__vulkan_block_destroy(device, block);
    }
    pthread_mutex_unlock(&memory->mutex);
}

/* The first of the types in `allowed` that has all of `flags`; drivers list the faster first. */
static uint32_t find_type(const VkPhysicalDeviceMemoryProperties *memory, uint32_t allowed, VkMemoryPropertyFlags flags,
                          uint64_t heap)
{
    /* Types that need an extension of their own: AMD's are uncached on the device. */
    const VkMemoryPropertyFlags unusual = VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT | VK_MEMORY_PROPERTY_PROTECTED_BIT |
                                          VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD |
                                          VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD;
    for (uint32_t i = 0; i < memory->memoryTypeCount; i++) {
        const VkMemoryType *type = &memory->memoryTypes[i];
        if ((allowed & 1u << i) && (type->propertyFlags & flags) == flags && !(type->propertyFlags & unusual) &&
            memory->memoryHeaps[type->heapIndex].size >= heap)
            return i;
    }
    return UINT32_MAX;
}

/* The memory types that a buffer of ours may use: the same for every size. */
static attune_status allowed_types(attune__vulkan_device *device, uint32_t *types)
{
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = ALIGNMENT,
        .usage = ATTUNE__VULKAN_USAGE,
    };
    VkBuffer buffer;
    VkResult result = device->vk.CreateBuffer(device->handle, &info, NULL, &buffer);
    if (result)
        return attune__vulkan_fail(device, result, "vkCreateBuffer");
    VkMemoryRequirements needs;
    device->vk.GetBufferMemoryRequirements(device->handle, buffer, &needs);
    device->vk.DestroyBuffer(device->handle, buffer, NULL);
    *types = needs.memoryTypeBits;
    return ATTUNE_OK;
}

attune_status attune__vulkan_memory_init(attune__vulkan_device *device, bool staging_only)
{
    attune__vulkan_memory *memory = &device->memory;
    memory->mutex_ready = !pthread_mutex_init(&memory->mutex, NULL);
    if (!memory->mutex_ready)
        return attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "the system has no mutex for the memory");
    VkPhysicalDeviceMemoryProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    device->vk.GetPhysicalDeviceMemoryProperties2(device->physical.handle, &properties);
    const VkPhysicalDeviceMemoryProperties *p = &properties.memoryProperties;
    uint32_t allowed = 0;
    ATTUNE__TRY(allowed_types(device, &allowed));

    const VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    const VkMemoryPropertyFlags visible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const VkMemoryPropertyFlags cached = visible | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    /* The host writes in place where all of the device's memory is open to it (one memory, or a resizable BAR), and
     * reads in place where its caches hold it as well: reads across a bus without them crawl. */
    const uint64_t heap = device->physical.heap;
    const uint32_t types[] = {
        find_type(p, allowed, local | cached, heap),
        find_type(p, allowed, local | visible, heap),
        find_type(p, allowed, local, heap),
        find_type(p, allowed, local, 0),
        find_type(p, allowed, 0, 0),
    };
    uint32_t t = staging_only ? 2 : 0;
    while (t < 4 && types[t] == UINT32_MAX)
        t++;
    memory->device_type = types[t];
    memory->direct_write = t < 2;
    memory->direct_read = t < 1;
    memory->staging_type = find_type(p, allowed, cached, 0);
    if (memory->staging_type == UINT32_MAX)
        memory->staging_type = find_type(p, allowed, visible, 0);
    if (memory->device_type == UINT32_MAX || memory->staging_type == UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "device %s has no memory type for storage buffers",
                            device->base.info.id);

    memory->max_size = device->physical.max_allocation < device->physical.max_buffer ? device->physical.max_allocation
                                                                                     : device->physical.max_buffer;
    memory->max_size -= memory->max_size % ALIGNMENT;
    memory->block_size = BLOCK_SIZE;
    /* A block takes no more than 1/32 of a small device's memory. */
    while (memory->block_size > MIB && (memory->block_size > heap / 32 || memory->block_size > memory->max_size))
        memory->block_size /= 2;
    return ATTUNE_OK;
}

void attune__vulkan_memory_finish(attune__vulkan_device *device)
{
    attune__vulkan_memory *memory = &device->memory;
    /* The api module keeps a device while it has buffers: only empty blocks are left. */
    while (memory->blocks) {
        attune__vulkan_block *block = memory->blocks;
        memory->blocks = block->next;
        attune__vulkan_block_destroy(device, block);
    }
    if (memory->mutex_ready)
        pthread_mutex_destroy(&memory->mutex);
}
