/* SPDX-License-Identifier: MIT */
/*
 * Use of a caller's OpenCL context, queues and memory objects. Installed only if the library has the OpenCL backend.
 * OpenCL's headers are not needed: a cl_context, cl_device_id, cl_command_queue and cl_mem are passed as pointers.
 *
 * attune retains these objects (clRetain...) for as long as it uses them, and starts no thread. A call consists of
 * kernel launches, one for most forward passes, and of a small copy before them if there is a score expression or a
 * cache. OpenCL's functions may be called from any thread: no lock is needed.
 */
#ifndef ATTUNE_OPENCL_H
#define ATTUNE_OPENCL_H

#include <attune/attune.h>

#ifdef __cplusplus
extern "C" {
#endif

/* OpenCL objects: the caller's, or those of a device that attune opened. */
typedef struct attune_opencl_device_desc {
    uint32_t struct_size;
    void *context; /* cl_context */
    void *device;  /* cl_device_id, one of the context's */
    void *queue;   /* cl_command_queue of the device's own queue, in order or not; NULL = attune creates one */
} attune_opencl_device_desc;

/*
 * Creates an attune device on the caller's context. Its id is "opencl". INVALID_ARGUMENT if the context or the device
 * is NULL, the device is not one of the context's, or the queue is of another context or device; UNAVAILABLE, with the
 * reason, if the kernels cannot run on it. If several devices share the context, kernels are not stored in the cache.
 */
ATTUNE_API attune_status attune_opencl_device_open(attune_instance *instance, const attune_opencl_device_desc *desc,
                                                   attune_device **device);

/* The objects of a device, for creating a cl_mem on it. They are valid as long as the device; ownership does not
 * change. INVALID_ARGUMENT if it is not an OpenCL device. Any thread. */
ATTUNE_API attune_status attune_opencl_device_handles(const attune_device *device, attune_opencl_device_desc *handles);

/*
 * Creates a queue on a cl_command_queue of the device's context. If it is in order, calls run after the commands that
 * are already in it. If it is not, calls run one after the other, in no order with the caller's commands: wait with
 * clFinish or attune_completion_wait between them. Without CL_QUEUE_PROFILING_ENABLE, times are those of the host.
 * attune_buffer_write and attune_buffer_read use the device's own queue and do not wait for this one.
 */
ATTUNE_API attune_status attune_opencl_queue_wrap(attune_device *device, void *queue, attune_queue **wrapped);
/* Waits for the calls on the queue and releases it. NULL and the device's own queue are ignored. */
ATTUNE_API void attune_opencl_queue_destroy(attune_queue *queue);

/*
 * Creates a buffer of `size` bytes at `offset`, a multiple of 16, of a cl_mem of the device's context. INVALID_ARGUMENT
 * if the range is not inside the object. It must be readable and writable by kernels where a call reads and writes it.
 */
ATTUNE_API attune_status attune_opencl_buffer_wrap(attune_device *device, void *memory, uint64_t offset, uint64_t size,
                                                   attune_buffer **buffer);

#ifdef __cplusplus
}
#endif

#endif
