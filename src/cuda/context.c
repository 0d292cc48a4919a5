/* SPDX-License-Identifier: MIT */
/* The context of a device, and the driver's errors as attune's. */
#include "base/error.h"
#include "cuda/cuda.h"

/* After these errors every call in the context fails. */
static bool is_sticky(attune__cu_result result)
{
    switch (result) {
    case CU_DEINITIALIZED:
    case CU_DEVICE_UNAVAILABLE:
    case CU_INVALID_CONTEXT:
    case CU_ECC_UNCORRECTABLE:
    case CU_NVLINK_UNCORRECTABLE:
    case CU_CONTAINED:
    case CU_ILLEGAL_ADDRESS:
    case CU_LAUNCH_TIMEOUT:
    case CU_CONTEXT_IS_DESTROYED:
    case CU_ASSERT:
    case CU_MPS_CLIENT_TERMINATED:
    case CU_EXTERNAL_DEVICE:
    case CU_UNKNOWN:
        return true;
    default:
        return result >= CU_HARDWARE_STACK_ERROR && result <= CU_TENSOR_MEMORY_LEAK;
    }
}

attune_status attune__cuda_check(attune__cuda_device *device, attune__cu_result result, const char *what)
{
    if (result == CU_SUCCESS)
        return ATTUNE_OK;
    const char *name = attune__cuda_error_name(&device->driver, result), *id = device->base.info.id;
    if (is_sticky(result)) {
        atomic_store(&device->base.lost, true);
        return attune__fail(ATTUNE_DEVICE_LOST, "device %s is lost: %s gave %s (%d): destroy it and open it again", id,
                            what, name, result);
    }
    if (result == CU_OUT_OF_MEMORY)
        return attune__fail(ATTUNE_OUT_OF_DEVICE_MEMORY, "device %s has no memory for %s", id, what);
    if (result == CU_INVALID_IMAGE || result == CU_NO_BINARY_FOR_GPU || result == CU_LAUNCH_OUT_OF_RESOURCES)
        return attune__fail(ATTUNE_COMPILE_FAILED, "device %s does not take the kernel: %s gave %s (%d)", id, what,
                            name, result);
    if (result >= CU_STREAM_CAPTURE_FIRST && result <= CU_STREAM_CAPTURE_LAST)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "device %s: %s gave %s (%d): only launches may be captured, end the capture first", id,
                            what, name, result);
    return attune__fail(ATTUNE_INTERNAL, "device %s: %s gave %s (%d)", id, what, name, result);
}

attune_status attune__cuda_enter(attune__cuda_device *device)
{
    return attune__cuda_check(device, device->driver.context_push(device->context), "cuCtxPushCurrent");
}

void attune__cuda_leave(attune__cuda_device *device)
{
    attune__cu_context popped;
    device->driver.context_pop(&popped);
}
