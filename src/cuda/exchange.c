/* SPDX-License-Identifier: MIT */
#include "cuda/exchange.h"

#include "base/error.h"

attune_status attune__cuda_exchange_init(attune_device *device, attune__cu_stream stream, attune__cuda_exchange *e)
{
    *e = (attune__cuda_exchange){.stream = stream, .lent = stream != NULL};
    if (!device)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "a device is NULL");
    if (device->backend != &attune__cuda_backend)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "device %s is not a CUDA device", device->info.id);
    attune__cuda_device *mine = attune__cuda_of(device);
    const attune__cuda_driver *driver = &mine->driver;
    ATTUNE__TRY(attune__cuda_enter(mine));
    e->device = mine;
    attune__cu_result result = stream ? CU_SUCCESS : driver->stream_create(&e->stream, CU_STREAM_NON_BLOCKING);
    if (result == CU_SUCCESS)
        result = driver->event_create(&e->ready, CU_EVENT_DISABLE_TIMING);
    if (result == CU_SUCCESS)
        result = driver->event_create(&e->done, CU_EVENT_DISABLE_TIMING);
    const attune_status status = attune__cuda_check(mine, result, "a stream of messages");
    attune__cuda_leave(mine);
    if (status != ATTUNE_OK)
        attune__cuda_exchange_finish(e);
    return status;
}

void attune__cuda_exchange_finish(attune__cuda_exchange *e)
{
    if (!e->device || e->device->driver.context_push(e->device->context) != CU_SUCCESS)
        return;
    const attune__cuda_driver *driver = &e->device->driver;
    if (e->stream)
        driver->stream_synchronize(e->stream);
    if (e->stream && !e->lent)
        driver->stream_destroy(e->stream);
    if (e->ready)
        driver->event_destroy(e->ready);
    if (e->done)
        driver->event_destroy(e->done);
    attune__cuda_leave(e->device);
    e->device = NULL;
}

attune__cu_result attune__cuda_exchange_ready(const attune__cuda_exchange *e, const attune_queue *queue)
{
    const attune__cuda_driver *driver = &e->device->driver;
    const attune__cu_result result = driver->event_record(e->ready, ((const attune__cuda_queue *)queue)->stream);
    return result == CU_SUCCESS ? driver->stream_wait(e->stream, e->ready, 0) : result;
}
