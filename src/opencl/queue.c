/* SPDX-License-Identifier: MIT */
/*
 * A command queue and its events. Value v has event v modulo their number; once that has been replaced, a wait for v
 * waits for the oldest value that still has its own. Commands of a queue that is not in order are chained by their
 * events. Waits poll: a driver that never ends a hung kernel must not take the thread with it.
 */
#include "opencl/opencl.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/error.h"

#define LONGEST_PAUSE 1000000                /* nanoseconds between two looks at an event */
#define LONGEST_WAIT  UINT64_C(600000000000) /* of a wait that has no limit of its own */

static attune__opencl_device *device_of(const attune__opencl_queue *queue)
{
    return attune__opencl_of(queue->base.device);
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

attune_status attune__opencl_queue_init(attune__opencl_device *device, attune__opencl_queue *queue,
                                        attune__cl_queue lent)
{
    const attune__opencl_driver *driver = &device->driver;
    *queue = (attune__opencl_queue){.base.device = &device->base};
    atomic_init(&queue->done, 0);
    int32_t error = CL_SUCCESS;
    if (lent) {
        error = driver->queue_retain(lent);
        queue->handle = error ? NULL : lent;
    } else {
        queue->handle = driver->queue_create(device->context, device->device, CL_QUEUE_PROFILING, &error);
        if (!queue->handle)
            queue->handle = driver->queue_create(device->context, device->device, 0, &error);
    }
    if (!queue->handle)
        return attune__opencl_check(device, error ? error : CL_OUT_OF_HOST_MEMORY, "a queue");
    uint64_t properties = 0;
    if (driver->queue_info(queue->handle, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL) == CL_SUCCESS) {
        queue->profiling = properties & CL_QUEUE_PROFILING;
        queue->out_of_order = properties & CL_QUEUE_OUT_OF_ORDER;
    }
    queue->tables = attune__alloc(&device->base.host.allocator, ATTUNE__OPENCL_EVENTS, sizeof *queue->tables);
    if (queue->tables && !pthread_mutex_init(&queue->lock, NULL))
        return ATTUNE_OK;
    attune__free(&device->base.host.allocator, queue->tables);
    driver->queue_release(queue->handle);
    queue->handle = NULL;
    return attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "the system has no memory or no mutex for a queue");
}

/* The status of an event: positive while it runs, CL_COMPLETE, or an error. */
static int32_t look(const attune__opencl_driver *driver, attune__cl_event event)
{
    int32_t status = 0;
    const int32_t error = driver->event_info(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    return error ? error : status;
}

/* *running: the event is not reached after the timeout; that is no error here. */
static attune_status poll_event(attune__opencl_device *device, attune__cl_event event, uint64_t timeout_ns,
                                bool *running)
{
    const uint64_t start = now_ns();
    long pause = 1000;
    int32_t status = look(&device->driver, event);
    while (status > CL_COMPLETE && now_ns() - start < timeout_ns) {
        const struct timespec time = {0, pause};
        nanosleep(&time, NULL);
        pause = 2 * pause < LONGEST_PAUSE ? 2 * pause : LONGEST_PAUSE;
        status = look(&device->driver, event);
    }
    *running = status > CL_COMPLETE;
    if (status >= CL_COMPLETE)
        return ATTUNE_OK;
    /* A command that was accepted and then failed leaves its queue in no state to go on. */
    atomic_store(&device->base.lost, true);
    return attune__fail(ATTUNE_DEVICE_LOST, "device %s is lost: a launch gave %s (%d): destroy it and open it again",
                        device->base.info.id, attune__opencl_error_name(status), status);
}

/* A wait inside of a call: past any time that a launch may take the device hangs. */
static attune_status wait_event(attune__opencl_device *device, attune__cl_event event)
{
    bool running;
    ATTUNE__TRY(poll_event(device, event, LONGEST_WAIT, &running));
    if (!running)
        return ATTUNE_OK;
    atomic_store(&device->base.lost, true);
    return attune__fail(ATTUNE_DEVICE_LOST, "device %s is lost: it has not answered for %llu s", device->base.info.id,
                        (unsigned long long)(LONGEST_WAIT / 1000000000u));
}

void attune__opencl_queue_finish(attune__opencl_queue *queue)
{
    attune__opencl_device *device = device_of(queue);
    const attune__opencl_driver *driver = &device->driver;
    if (!queue->handle)
        return;
    attune__cl_event last = queue->events[queue->last % ATTUNE__OPENCL_EVENTS];
    if (last && !atomic_load(&device->base.lost))
        (void)wait_event(device, last);
    for (int i = 0; i < ATTUNE__OPENCL_EVENTS; i++)
        if (queue->events[i])
            driver->event_release(queue->events[i]);
    driver->queue_release(queue->handle);
    attune__free(&device->base.host.allocator, queue->tables);
    pthread_mutex_destroy(&queue->lock);
}

void attune__opencl_queue_destroy(attune_queue *queue)
{
    const attune_allocator allocator = queue->device->host.allocator;
    attune__opencl_queue_finish((attune__opencl_queue *)queue);
    attune__free(&allocator, queue);
}

/* ---------------------------------------------------------------------------------------------------------- a call */

void attune__opencl_begin(attune__opencl_queue *queue, attune__opencl_call *call)
{
    pthread_mutex_lock(&queue->lock);
    *call = (attune__opencl_call){.queue = queue, .start = now_ns(), .status = ATTUNE_OK};
}

/* The event that the next command of the call must wait for; NULL = none. */
static attune__cl_event earlier(const attune__opencl_call *call)
{
    const attune__opencl_queue *queue = call->queue;
    return !queue->out_of_order ? NULL : call->last ? call->last : queue->events[queue->last % ATTUNE__OPENCL_EVENTS];
}

static void enqueued(attune__opencl_call *call, int32_t error, attune__cl_event event, const char *what)
{
    attune__opencl_device *device = device_of(call->queue);
    if (error != CL_SUCCESS) {
        call->status = attune__opencl_check(device, error, what);
        return;
    }
    if (!call->first)
        call->first = event;
    else if (call->last != call->first)
        device->driver.event_release(call->last);
    call->last = event;
}

/*
 * Workgroups are in the first dimension, which every driver has to take in any number. PoCL before version 6 keeps an
 * entry for each local size of a kernel and each wider grid, and counts the users of a kernel in the entry that is the
 * newest of its local size: where one queue's launch makes an entry while another's runs the kernel, the process ends
 * ("pocl_release_dlhandle_cache"). Groups of the third dimension do not widen its grid: a kernel has one entry. They
 * must be fewer than those for which it compiles another kernel.
 */
void attune__opencl_launch(attune__opencl_call *call, attune__cl_kernel kernel, uint64_t groups, uint32_t threads)
{
    attune__opencl_device *device = device_of(call->queue);
    const bool third = device->early_pocl && groups <= ATTUNE__OPENCL_EARLY_POCL_GROUPS;
    const size_t local[3] = {threads, 1, 1};
    const size_t global[3] = {third ? threads : (size_t)groups * threads, 1, third ? (size_t)groups : 1};
    const attune__cl_event wait = earlier(call);
    attune__cl_event event = NULL;
    if (call->status != ATTUNE_OK || !groups)
        return;
    const int32_t error = device->driver.launch(call->queue->handle, kernel, third ? 3 : 1, NULL, global, local,
                                                wait != NULL, wait ? &wait : NULL, &event);
    enqueued(call, error, event, "clEnqueueNDRangeKernel");
}

void attune__opencl_write(attune__opencl_call *call, attune__cl_memory memory, uint64_t offset, const void *data,
                          uint64_t size)
{
    const attune__cl_event wait = earlier(call);
    attune__cl_event event = NULL;
    if (call->status != ATTUNE_OK)
        return;
    const int32_t error = device_of(call->queue)
                              ->driver.write(call->queue->handle, memory, 0, (size_t)offset, (size_t)size, data,
                                             wait != NULL, wait ? &wait : NULL, &event);
    enqueued(call, error, event, "a copy to the device");
}

void attune__opencl_read(attune__opencl_call *call, attune__cl_memory memory, uint64_t offset, void *data,
                         uint64_t size)
{
    const attune__cl_event wait = earlier(call);
    attune__cl_event event = NULL;
    if (call->status != ATTUNE_OK)
        return;
    const int32_t error = device_of(call->queue)
                              ->driver.read(call->queue->handle, memory, 0, (size_t)offset, (size_t)size, data,
                                            wait != NULL, wait ? &wait : NULL, &event);
    enqueued(call, error, event, "a copy from the device");
}

void attune__opencl_copy_memory(attune__opencl_call *call, attune__cl_memory from, attune__cl_memory to, uint64_t size)
{
    const attune__cl_event wait = earlier(call);
    attune__cl_event event = NULL;
    if (call->status != ATTUNE_OK)
        return;
    const int32_t error =
        device_of(call->queue)
            ->driver.copy(call->queue->handle, from, to, 0, 0, (size_t)size, wait != NULL, wait ? &wait : NULL, &event);
    enqueued(call, error, event, "a copy on the device");
}

void attune__opencl_table(attune__opencl_call *call, attune__cl_memory memory, uint64_t offset, const void *table,
                          size_t size)
{
    attune__opencl_queue *queue = call->queue;
    const uint64_t slot = (queue->last + 1) % ATTUNE__OPENCL_EVENTS;
    /* The copy that read the slot last is that of the value whose event is replaced next. */
    if (call->status == ATTUNE_OK && queue->events[slot])
        call->status = wait_event(device_of(queue), queue->events[slot]);
    memcpy(queue->tables[slot], table, size);
    attune__opencl_write(call, memory, offset, queue->tables[slot], size);
}

static double seconds_of(const attune__opencl_call *call)
{
    const attune__opencl_queue *queue = call->queue;
    const attune__opencl_driver *driver = &device_of(queue)->driver;
    uint64_t begin = 0, end = 0;
    if (queue->profiling &&
        !driver->event_profile(call->first, CL_PROFILING_COMMAND_START, sizeof begin, &begin, NULL) &&
        !driver->event_profile(call->last, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL) && end > begin)
        return (double)(end - begin) * 1e-9;
    return (double)(now_ns() - call->start) * 1e-9;
}

static void keep_last(const attune__opencl_call *call, uint64_t *value)
{
    attune__opencl_queue *queue = call->queue;
    const attune__opencl_driver *driver = &device_of(queue)->driver;
    const uint64_t next = queue->last + 1;
    attune__cl_event *kept = &queue->events[next % ATTUNE__OPENCL_EVENTS];
    if (*kept)
        driver->event_release(*kept);
    *kept = call->last;
    queue->last = next;
    if (value)
        *value = next;
}

/* Also after an error: copies that were enqueued use the caller's memory. */
static void wait_for_end(attune__opencl_call *call, double *seconds)
{
    const attune_status waited = wait_event(device_of(call->queue), call->last);
    call->status = call->status == ATTUNE_OK ? waited : call->status;
    if (call->status == ATTUNE_OK)
        *seconds = seconds_of(call);
}

attune_status attune__opencl_end(attune__opencl_call *call, uint64_t *value, double *seconds)
{
    attune__opencl_queue *queue = call->queue;
    attune__opencl_device *device = device_of(queue);
    const attune__opencl_driver *driver = &device->driver;
    bool held = false;
    if (value)
        *value = queue->last;
    if (seconds)
        *seconds = 0;
    if (call->last) {
        const int32_t error = driver->flush(queue->handle);
        if (call->status == ATTUNE_OK)
            call->status = attune__opencl_check(device, error, "clFlush");
        const bool waits = seconds && error == CL_SUCCESS && !atomic_load(&device->base.lost);
        /* Without the lock, under which others launch and wait; the queue may release its event meanwhile. */
        held = waits && driver->event_retain(call->last) == CL_SUCCESS;
        if (waits && !held)
            wait_for_end(call, seconds);
        /* Also after an error: what was enqueued before it runs. */
        keep_last(call, value);
    }
    pthread_mutex_unlock(&queue->lock);
    if (held)
        wait_for_end(call, seconds);
    if (call->first && call->first != call->last)
        driver->event_release(call->first);
    if (held)
        driver->event_release(call->last);
    return call->status;
}

attune_status attune__opencl_finish(attune__opencl_call *call)
{
    double seconds;
    uint64_t value;
    return attune__opencl_end(call, &value, &seconds);
}

attune_status attune__opencl_wait(attune_queue *queue, uint64_t value, uint64_t timeout_ns)
{
    attune__opencl_queue *mine = (attune__opencl_queue *)queue;
    attune__opencl_device *device = device_of(mine);
    const attune__opencl_driver *driver = &device->driver;
    if (value <= atomic_load(&mine->done))
        return ATTUNE_OK;
    pthread_mutex_lock(&mine->lock);
    const uint64_t last = mine->last;
    const uint64_t oldest = last >= ATTUNE__OPENCL_EVENTS ? last - ATTUNE__OPENCL_EVENTS + 1 : 1;
    const uint64_t at = value > oldest ? value : oldest;
    attune__cl_event event = value <= last ? mine->events[at % ATTUNE__OPENCL_EVENTS] : NULL;
    const int32_t error = event ? driver->event_retain(event) : CL_SUCCESS;
    pthread_mutex_unlock(&mine->lock);
    ATTUNE__TRY(attune__opencl_check(device, error, "clRetainEvent"));
    if (!event)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "completion.value is %llu, but the queue has given out %llu",
                            (unsigned long long)value, (unsigned long long)last);
    bool running;
    attune_status status = poll_event(device, event, timeout_ns, &running);
    driver->event_release(event);
    if (status == ATTUNE_OK && running)
        return attune__fail(ATTUNE_TIMEOUT, "device %s has not reached the point after %llu ns", device->base.info.id,
                            (unsigned long long)timeout_ns);
    if (status == ATTUNE_OK) {
        uint64_t done = atomic_load(&mine->done);
        while (done < at && !atomic_compare_exchange_weak(&mine->done, &done, at))
            ;
    }
    return status;
}
