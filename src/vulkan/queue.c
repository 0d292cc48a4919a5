/* SPDX-License-Identifier: MIT */
/*
 * Submission. A fixed ring of command buffers, each with a pool of its own so that threads record at once, is recycled
 * by the value of one timeline semaphore. Nothing here allocates after init.
 */
#include "vulkan/vulkan.h"

#include <time.h>

#include "base/error.h"

void attune__vulkan_barrier(const attune__vulkan_device *device, VkCommandBuffer commands)
{
    const VkPipelineStageFlags stages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                         VK_ACCESS_TRANSFER_WRITE_BIT,
    };
    device->vk.CmdPipelineBarrier(commands, stages, stages, 0, 1, &barrier, 0, NULL, 0, NULL);
}

/* A semaphore's signal makes writes available to the device; the host needs a barrier of its own. */
static void barrier_to_host(const attune__vulkan_device *device, VkCommandBuffer commands)
{
    const VkMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT,
    };
    device->vk.CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                                  VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0, NULL, 0, NULL);
}

static attune_status wait_value(attune__vulkan_device *device, uint64_t value, uint64_t timeout_ns)
{
    const VkSemaphoreWaitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
        .semaphoreCount = 1,
        .pSemaphores = &device->queue.timeline,
        .pValues = &value,
    };
    VkResult result = device->vk.WaitSemaphores(device->handle, &info, timeout_ns);
    if (result == VK_TIMEOUT)
        return attune__fail(ATTUNE_TIMEOUT, "%llu ns went by and the work is not done: wait again",
                            (unsigned long long)timeout_ns);
    return result ? attune__vulkan_fail(device, result, "vkWaitSemaphores") : ATTUNE_OK;
}

attune_status attune__vulkan_wait(attune_queue *queue, uint64_t value, uint64_t timeout_ns)
{
    attune__vulkan_device *device = attune__vulkan_of(queue->device);
    pthread_mutex_lock(&device->queue.mutex);
    const uint64_t submitted = device->queue.submitted;
    pthread_mutex_unlock(&device->queue.mutex);
    if (value > submitted)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "completion.value is %llu, but the queue has given out %llu",
                            (unsigned long long)value, (unsigned long long)submitted);
    return wait_value(device, value, timeout_ns);
}

attune_status attune__vulkan_wait_idle(attune__vulkan_device *device)
{
    pthread_mutex_lock(&device->queue.mutex);
    const uint64_t submitted = device->queue.submitted;
    pthread_mutex_unlock(&device->queue.mutex);
    return submitted ? wait_value(device, submitted, UINT64_MAX) : ATTUNE_OK;
}

/* A free slot, or the pending one that was submitted first; NULL if all are being recorded. Under the mutex. */
static attune__vulkan_slot *find_slot(attune__vulkan_queue *queue)
{
    attune__vulkan_slot *oldest = NULL;
    for (uint32_t i = 0; i < ATTUNE__VULKAN_SLOTS; i++) {
        attune__vulkan_slot *slot = &queue->slots[i];
        if (slot->state == ATTUNE__VULKAN_FREE)
            return slot;
        if (slot->state == ATTUNE__VULKAN_PENDING && (!oldest || slot->value < oldest->value))
            oldest = slot;
    }
    return oldest;
}

static attune_status take_slot(attune__vulkan_device *device, attune__vulkan_slot **taken)
{
    attune__vulkan_queue *queue = &device->queue;
    attune_status status = ATTUNE_OK;
    pthread_mutex_lock(&queue->mutex);
    for (;;) {
        uint64_t done;
        VkResult result = device->vk.GetSemaphoreCounterValue(device->handle, queue->timeline, &done);
        if (result) {
            status = attune__vulkan_fail(device, result, "vkGetSemaphoreCounterValue");
            break;
        }
        for (uint32_t i = 0; i < ATTUNE__VULKAN_SLOTS; i++)
            if (queue->slots[i].state == ATTUNE__VULKAN_PENDING && queue->slots[i].value <= done)
                queue->slots[i].state = ATTUNE__VULKAN_FREE;
        attune__vulkan_slot *slot = find_slot(queue);
        if (!slot) {
            pthread_cond_wait(&queue->freed, &queue->mutex);
            continue;
        }
        if (slot->state == ATTUNE__VULKAN_FREE) {
            slot->state = ATTUNE__VULKAN_RECORDING;
            *taken = slot;
            break;
        }
        const uint64_t value = slot->value;
        pthread_mutex_unlock(&queue->mutex);
        status = wait_value(device, value, UINT64_MAX);
        pthread_mutex_lock(&queue->mutex);
        if (status)
            break;
    }
    /* This thread frees no slot, by which the next one would be woken. */
    if (status)
        pthread_cond_broadcast(&queue->freed);
    pthread_mutex_unlock(&queue->mutex);
    return status;
}

static void set_slot(attune__vulkan_queue *queue, attune__vulkan_slot *slot, attune__vulkan_slot_state state)
{
    pthread_mutex_lock(&queue->mutex);
    slot->state = state;
    pthread_cond_signal(&queue->freed);
    pthread_mutex_unlock(&queue->mutex);
}

static uint32_t first_query(const attune__vulkan_queue *queue, const attune__vulkan_slot *slot)
{
    return 2 * (uint32_t)(slot - queue->slots);
}

attune_status attune__vulkan_begin(attune__vulkan_device *device, bool timed, attune__vulkan_slot **slot)
{
    attune__vulkan_queue *queue = &device->queue;
    attune__vulkan_slot *taken = NULL;
    ATTUNE__TRY(take_slot(device, &taken));
    const VkCommandBufferBeginInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
        .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
    };
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): take_slot succeeded */
    VkResult result = device->vk.ResetCommandPool(device->handle, taken->pool, 0);
    if (!result)
        result = device->vk.BeginCommandBuffer(taken->commands, &info);
    if (result) {
        set_slot(queue, taken, ATTUNE__VULKAN_FREE);
        return attune__vulkan_fail(device, result, "vkBeginCommandBuffer");
    }
    attune__vulkan_barrier(device, taken->commands);
    if (timed && queue->queries) {
        device->vk.CmdResetQueryPool(taken->commands, queue->queries, first_query(queue, taken), 2);
        device->vk.CmdWriteTimestamp(taken->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, queue->queries,
                                     first_query(queue, taken));
    }
    *slot = taken;
    return ATTUNE_OK;
}

/* Submits and sets the state of the slot; FREE if that fails. */
static attune_status submit(attune__vulkan_device *device, attune__vulkan_slot *slot, attune__vulkan_slot_state state,
                            uint64_t *value)
{
    attune__vulkan_queue *queue = &device->queue;
    barrier_to_host(device, slot->commands);
    VkResult result = device->vk.EndCommandBuffer(slot->commands);
    if (result) {
        set_slot(queue, slot, ATTUNE__VULKAN_FREE);
        return attune__vulkan_fail(device, result, "vkEndCommandBuffer");
    }
    /* Before the mutex, which a thread that has the lender's lock takes in a wait. */
    if (queue->lock)
        queue->lock(queue->lock_user);
    pthread_mutex_lock(&queue->mutex);
    const uint64_t next = queue->submitted + 1;
    const VkTimelineSemaphoreSubmitInfo timeline = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = &next,
    };
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
        .pNext = &timeline,
        .commandBufferCount = 1,
        .pCommandBuffers = &slot->commands,
        .signalSemaphoreCount = 1,
        .pSignalSemaphores = &queue->timeline,
    };
    result = device->vk.QueueSubmit(queue->handle, 1, &info, VK_NULL_HANDLE);
    if (!result) {
        queue->submitted = slot->value = next;
        slot->state = state;
    } else {
        slot->state = ATTUNE__VULKAN_FREE;
    }
    pthread_cond_signal(&queue->freed);
    pthread_mutex_unlock(&queue->mutex);
    if (queue->unlock)
        queue->unlock(queue->lock_user);
    if (result)
        return attune__vulkan_fail(device, result, "vkQueueSubmit");
    if (value)
        *value = next;
    return ATTUNE_OK;
}

attune_status attune__vulkan_submit(attune__vulkan_device *device, attune__vulkan_slot *slot, uint64_t *value)
{
    return submit(device, slot, ATTUNE__VULKAN_PENDING, value);
}

void attune__vulkan_release_destroyed(attune__vulkan_device *device)
{
    attune__vulkan_queue *queue = &device->queue;
    if (device->physical.driver != VK_DRIVER_ID_MESA_LLVMPIPE || device->lent || atomic_load(&device->base.lost))
        return;
    const VkSubmitInfo empty = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO};
    pthread_mutex_lock(&queue->mutex);
    const VkResult result = device->vk.QueueSubmit(queue->handle, 1, &empty, VK_NULL_HANDLE);
    pthread_mutex_unlock(&queue->mutex);
    if (result == VK_ERROR_DEVICE_LOST)
        atomic_store(&device->base.lost, true);
}

void attune__vulkan_cancel(attune__vulkan_device *device, attune__vulkan_slot *slot)
{
    set_slot(&device->queue, slot, ATTUNE__VULKAN_FREE);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

attune_status attune__vulkan_finish(attune__vulkan_device *device, attune__vulkan_slot *slot, uint64_t *value,
                                    double *seconds)
{
    attune__vulkan_queue *queue = &device->queue;
    const uint32_t query = first_query(queue, slot);
    const double before = now();
    uint64_t point, times[2];
    if (queue->queries)
        device->vk.CmdWriteTimestamp(slot->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queue->queries, query + 1);
    /* The slot stays ours until its queries are read. */
    ATTUNE__TRY(submit(device, slot, ATTUNE__VULKAN_RECORDING, &point));
    attune_status status = wait_value(device, point, UINT64_MAX);
    *seconds = now() - before;
    if (status == ATTUNE_OK && queue->queries) {
        VkResult result = device->vk.GetQueryPoolResults(device->handle, queue->queries, query, 2, sizeof times, times,
                                                         sizeof times[0], VK_QUERY_RESULT_64_BIT);
        if (result < 0)
            status = attune__vulkan_fail(device, result, "vkGetQueryPoolResults");
        const uint32_t bits = device->physical.timestamp_bits;
        const uint64_t mask = bits < 64 ? (UINT64_C(1) << bits) - 1 : UINT64_MAX;
        if (result == VK_SUCCESS)
            *seconds = (double)((times[1] - times[0]) & mask) * device->physical.timestamp_period * 1e-9;
    }
    set_slot(queue, slot, ATTUNE__VULKAN_PENDING);
    if (value)
        *value = point;
    return status;
}

static VkResult create_slot(attune__vulkan_device *device, attune__vulkan_slot *slot)
{
    const VkCommandPoolCreateInfo pool = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
        .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
        .queueFamilyIndex = device->queue.family,
    };
    VkResult result = device->vk.CreateCommandPool(device->handle, &pool, NULL, &slot->pool);
    if (result) {
        slot->pool = VK_NULL_HANDLE;
        return result;
    }
    const VkCommandBufferAllocateInfo buffer = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = slot->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = 1,
    };
    return device->vk.AllocateCommandBuffers(device->handle, &buffer, &slot->commands);
}

attune_status attune__vulkan_queue_init(attune__vulkan_device *device)
{
    attune__vulkan_queue *queue = &device->queue;
    queue->mutex_ready = !pthread_mutex_init(&queue->mutex, NULL);
    queue->freed_ready = !pthread_cond_init(&queue->freed, NULL);
    if (!queue->mutex_ready || !queue->freed_ready)
        return attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "the system has no mutex for the queue");
    const VkSemaphoreTypeCreateInfo type = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
        .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
    };
    const VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VkResult result = device->vk.CreateSemaphore(device->handle, &semaphore, NULL, &queue->timeline);
    if (result) {
        queue->timeline = VK_NULL_HANDLE;
        return attune__vulkan_fail(device, result, "vkCreateSemaphore");
    }
    if (device->physical.timestamp_bits) {
        const VkQueryPoolCreateInfo queries = {
            .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
            .queryType = VK_QUERY_TYPE_TIMESTAMP,
            .queryCount = 2 * ATTUNE__VULKAN_SLOTS,
        };
        result = device->vk.CreateQueryPool(device->handle, &queries, NULL, &queue->queries);
        if (result) {
            queue->queries = VK_NULL_HANDLE;
            return attune__vulkan_fail(device, result, "vkCreateQueryPool");
        }
    }
    for (uint32_t i = 0; i < ATTUNE__VULKAN_SLOTS; i++) {
        result = create_slot(device, &queue->slots[i]);
        if (result)
            return attune__vulkan_fail(device, result, "vkCreateCommandPool");
    }
    return ATTUNE_OK;
}

void attune__vulkan_queue_finish(attune__vulkan_device *device)
{
    attune__vulkan_queue *queue = &device->queue;
    for (uint32_t i = 0; i < ATTUNE__VULKAN_SLOTS; i++)
        if (queue->slots[i].pool)
            device->vk.DestroyCommandPool(device->handle, queue->slots[i].pool, NULL);
    if (queue->queries)
        device->vk.DestroyQueryPool(device->handle, queue->queries, NULL);
    if (queue->timeline)
        device->vk.DestroySemaphore(device->handle, queue->timeline, NULL);
    if (queue->freed_ready)
        pthread_cond_destroy(&queue->freed);
    if (queue->mutex_ready)
        pthread_mutex_destroy(&queue->mutex);
}
