/* SPDX-License-Identifier: MIT */
/*
 * Use of a caller's CUDA context, streams and memory. Installed only if the library has the CUDA backend. NVIDIA's
 * headers are not needed: a CUcontext and a CUstream (or cudaStream_t) are passed as pointers, a CUdeviceptr (or the
 * result of cudaMalloc) as an integer.
 *
 * attune takes no ownership of these objects and starts no thread. Each call makes the context current and restores the
 * previous one before it returns. A call consists of kernel launches (one for most forward passes, a few otherwise) and
 * one event record, which forward and backward passes without segments leave out if no completion is asked for, so that
 * it can be captured in a CUDA graph. A completion from a stream that is being captured counts as reached at once.
 */
#ifndef ATTUNE_CUDA_H
#define ATTUNE_CUDA_H

#include <attune/attune.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The caller's CUDA objects. */
typedef struct attune_cuda_device_desc {
    uint32_t struct_size;
    void *context; /* CUcontext; with the runtime API, the device's primary context */
    void *stream;  /* CUstream of the device's own queue; NULL = attune creates a non-blocking stream */
} attune_cuda_device_desc;

/* Creates an attune device on the caller's context. Context and stream must outlive the device. UNAVAILABLE for a GPU
 * older than compute capability 8.0; INVALID_ARGUMENT if the context is NULL. */
ATTUNE_API attune_status attune_cuda_device_open(attune_instance *instance, const attune_cuda_device_desc *desc,
                                                 attune_device **device);

/*
 * Creates a queue on a stream of the device's context. The stream must outlive the queue. Calls on the queue run after
 * the work that is already in the stream. attune_buffer_write and attune_buffer_read use the device's own queue and do
 * not wait for this one. A default stream is passed as CU_STREAM_LEGACY or CU_STREAM_PER_THREAD, not as NULL.
 */
ATTUNE_API attune_status attune_cuda_queue_wrap(attune_device *device, void *stream, attune_queue **queue);
/* Destroys the queue, not the stream. NULL and the device's own queue are ignored. */
ATTUNE_API void attune_cuda_queue_destroy(attune_queue *queue);

/*
 * Creates a buffer of `size` bytes at a device address, which is a multiple of 16. The memory must outlive the buffer.
 * As with attune_buffer_wrap, calls access the bytes that a tensor describes and no others; of a workspace, the
 * attune_plan_workspace_size bytes behind workspace_offset.
 */
ATTUNE_API attune_status attune_cuda_buffer_wrap(attune_device *device, uint64_t address, uint64_t size,
                                                 attune_buffer **buffer);

#ifdef __cplusplus
}
#endif

#endif
