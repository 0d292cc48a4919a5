/* SPDX-License-Identifier: MIT */
/* The driver's errors as statuses and messages. */
#include "base/error.h"
#include "opencl/opencl.h"

/* After these every call may fail or wait for ever. */
static bool is_lost(int32_t error)
{
    switch (error) {
    case CL_DEVICE_NOT_AVAILABLE:
    case CL_OUT_OF_RESOURCES:
    case CL_EXEC_STATUS_ERROR:
    case CL_INVALID_CONTEXT:
    case CL_INVALID_COMMAND_QUEUE:
        return true;
    default:
        return false;
    }
}

attune_status attune__opencl_check(attune__opencl_device *device, int32_t error, const char *what)
{
    if (error == CL_SUCCESS)
        return ATTUNE_OK;
    const char *name = attune__opencl_error_name(error), *id = device->base.info.id;
    if (is_lost(error)) {
        atomic_store(&device->base.lost, true);
        return attune__fail(ATTUNE_DEVICE_LOST, "device %s is lost: %s gave %s (%d): destroy it and open it again", id,
                            what, name, error);
    }
    if (error == CL_MEM_OBJECT_ALLOCATION_FAILURE)
        return attune__fail(ATTUNE_OUT_OF_DEVICE_MEMORY, "device %s has no memory for %s: %s (%d)", id, what, name,
                            error);
    if (error == CL_OUT_OF_HOST_MEMORY)
        return attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "device %s: no host memory for %s: %s (%d)", id, what, name,
                            error);
    return attune__fail(ATTUNE_INTERNAL, "device %s: %s gave %s (%d)", id, what, name, error);
}
