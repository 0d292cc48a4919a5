/* SPDX-License-Identifier: MIT */
/*
 * A stream and its events. Events are created once and reused cyclically, so that a launch allocates nothing: value v
 * has event v modulo their number. Once that event has been recorded again, a wait for v waits for the oldest value
 * that still has its own event, which is later in the stream.
 */
#include "cuda/cuda.h"

#include <time.h>

#include "base/alloc.h"
#include "base/error.h"

#define LONGEST_PAUSE 1000000 /* nanoseconds between two queries of an event */

static attune__cuda_device *device_of(const attune__cuda_queue *queue)
{
    return attune__cuda_of(queue->base.device);
}

attune_status attune__cuda_queue_init(attune__cuda_device *device, attune__cuda_queue *queue, attune__cu_stream stream)
{
    const attune__cuda_driver *driver = &device->driver;
    *queue = (attune__cuda_queue){.base.device = &device->base, .stream = stream, .lent = stream != NULL};
    atomic_init(&queue->done, 0);
    if (pthread_mutex_init(&queue->lock, NULL))
        return attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "the system has no mutex for a queue");
    attune__cu_result result = CU_SUCCESS;
    if (!stream)
        result = driver->stream_create(&queue->stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; result == CU_SUCCESS && i < ATTUNE__CUDA_EVENTS; i++)
        result = driver->event_create(&queue->events[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
    if (result == CU_SUCCESS)
        result = driver->event_create(&queue->start, CU_EVENT_BLOCKING_SYNC);
    if (result == CU_SUCCESS)
        result = driver->event_create(&queue->stop, CU_EVENT_BLOCKING_SYNC);
    if (result == CU_SUCCESS)
        result = driver->memory_alloc(&queue->counter, 2 * sizeof(int32_t));
    if (result == CU_SUCCESS)
        result =
            driver->copy_to_device(queue->counter, (const int32_t[2]){0, 0}, 2 * sizeof(int32_t), device->queue.stream);
    if (result == CU_SUCCESS)
        result = driver->stream_synchronize(device->queue.stream);
    const attune_status status = attune__cuda_check(device, result, "a queue");
    if (status != ATTUNE_OK)
        attune__cuda_queue_finish(queue);
    return status;
}

void attune__cuda_queue_finish(attune__cuda_queue *queue)
{
    const attune__cuda_driver *driver = &device_of(queue)->driver;
    if (!queue->lent && queue->stream) {
        driver->stream_synchronize(queue->stream);
        driver->stream_destroy(queue->stream);
    }
    if (queue->counter)
        driver->memory_free(queue->counter);
    for (int i = 0; i < ATTUNE__CUDA_EVENTS; i++)
        if (queue->events[i])
            driver->event_destroy(queue->events[i]);
    if (queue->start)
        driver->event_destroy(queue->start);
    if (queue->stop)
        driver->event_destroy(queue->stop);
    pthread_mutex_destroy(&queue->lock);
}

attune_status attune__cuda_queue_wrap(attune_device *device, void *handle, attune_queue **queue)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    attune__cuda_queue *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune_status status = attune__cuda_enter(mine);
    if (status == ATTUNE_OK) {
        status = attune__cuda_queue_init(mine, made, handle);
        attune__cuda_leave(mine);
    }
    if (status == ATTUNE_OK)
        *queue = &made->base;
    else
        attune__free(&device->host.allocator, made);
    return status;
}

void attune__cuda_queue_destroy(attune_queue *queue)
{
    attune__cuda_queue *mine = (attune__cuda_queue *)queue;
    attune__cuda_device *device = device_of(mine);
    if (device->driver.context_push(device->context) == CU_SUCCESS) {
        attune__cuda_queue_finish(mine);
        attune__cuda_leave(device);
    }
    attune__free(&device->base.host.allocator, mine);
}

attune_status attune__cuda_queue_begin(attune__cuda_queue *queue, bool measured)
{
    attune__cuda_device *device = device_of(queue);
    pthread_mutex_lock(&queue->lock);
    attune_status status = attune__cuda_check(device, device->driver.stream_capturing(queue->stream, &queue->capturing),
                                              "cuStreamIsCapturing");
    if (status == ATTUNE_OK && measured)
        status = attune__cuda_check(device, device->driver.event_record(queue->start, queue->stream), "cuEventRecord");
    if (status != ATTUNE_OK)
        pthread_mutex_unlock(&queue->lock);
    return status;
}

attune_status attune__cuda_queue_end(attune__cuda_queue *queue, attune_status status, uint64_t *value, double *seconds)
{
    attune__cuda_device *device = device_of(queue);
    const attune__cuda_driver *driver = &device->driver;
    if (value)
        *value = 0;
    /* Nothing runs during a capture, so that there is nothing to wait for before the graph is launched. */
    if (status != ATTUNE_OK || queue->capturing)
        goto done;
    attune__cu_result result = CU_SUCCESS;
    if (seconds) {
        float milliseconds = 0;
        result = driver->event_record(queue->stop, queue->stream);
        if (result == CU_SUCCESS)
            result = driver->event_synchronize(queue->stop);
        if (result == CU_SUCCESS)
            result = driver->event_elapsed(&milliseconds, queue->start, queue->stop);
        *seconds = (double)milliseconds * 1e-3;
    }
    const uint64_t next = queue->last + 1;
    if (result == CU_SUCCESS && value)
        result = driver->event_record(queue->events[next % ATTUNE__CUDA_EVENTS], queue->stream);
    status = attune__cuda_check(device, result, "a launch");
    if (status == ATTUNE_OK && value)
        *value = queue->last = next;
done:
    pthread_mutex_unlock(&queue->lock);
    return status;
}

/* Queries once. While the lock is held, the event is that of `value` or of a later one. */
static attune__cu_result look(attune__cuda_queue *queue, uint64_t value)
{
    pthread_mutex_lock(&queue->lock);
    const uint64_t last = queue->last;
    const uint64_t oldest = last >= ATTUNE__CUDA_EVENTS ? last - ATTUNE__CUDA_EVENTS + 1 : 1;
    const uint64_t at = value > oldest ? value : oldest;
    const attune__cu_result result = device_of(queue)->driver.event_query(queue->events[at % ATTUNE__CUDA_EVENTS]);
    if (result == CU_SUCCESS && at > atomic_load(&queue->done))
        atomic_store(&queue->done, at);
    pthread_mutex_unlock(&queue->lock);
    return result;
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

attune_status attune__cuda_wait(attune_queue *queue, uint64_t value, uint64_t timeout_ns)
{
    attune__cuda_queue *mine = (attune__cuda_queue *)queue;
    attune__cuda_device *device = device_of(mine);
    if (value <= atomic_load(&mine->done))
        return ATTUNE_OK;
    ATTUNE__TRY(attune__cuda_enter(device));
    const uint64_t start = now_ns();
    long pause = 1000;
    attune__cu_result result = look(mine, value);
    while (result == CU_NOT_READY && now_ns() - start < timeout_ns) {
        const struct timespec time = {0, pause};
        nanosleep(&time, NULL);
        pause = 2 * pause < LONGEST_PAUSE ? 2 * pause : LONGEST_PAUSE;
        result = look(mine, value);
    }
    attune__cuda_leave(device);
    if (result == CU_NOT_READY)
        return attune__fail(ATTUNE_TIMEOUT, "device %s has not reached the point after %llu ns", device->base.info.id,
                            (unsigned long long)timeout_ns);
    return attune__cuda_check(device, result, "a launch");
}
