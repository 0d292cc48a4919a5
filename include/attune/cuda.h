/* SPDX-License-Identifier: MIT */
/*
 * Borrowing an engine's own CUDA: its context, its streams, its memory. Installed only where the backend was built.
 * NVIDIA's headers are not needed: a CUcontext and a CUstream (or cudaStream_t) are passed as the pointers that they
 * are, a CUdeviceptr (or what cudaMalloc gave) as a number.
 *
 * attune never takes ownership of any of them and makes no thread. Around each call it makes the context current and
 * puts back what was. A call makes kernel launches, one forwards and a few otherwise, and one event record, so that it
 * may be captured in a CUDA graph; while the stream is being captured there is no point to wait for, and the completion
 * is reached at once.
 */
#ifndef ATTUNE_CUDA_H
#define ATTUNE_CUDA_H

#include <attune/attune.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What an engine lends. */
typedef struct attune_cuda_device_desc {
    uint32_t struct_size;
    void *context; /* CUcontext; of the runtime API: the device's primary context */
    void *stream;  /* CUstream of the device's own queue; NULL = attune makes one, which waits for no other */
} attune_cuda_device_desc;

/*
 * Makes an attune device of the caller's context, which must outlive it, as must the stream. UNAVAILABLE for a GPU
 * older than compute capability 8.0; INVALID_ARGUMENT without a context.
 */
ATTUNE_API attune_status attune_cuda_device_open(attune_instance *instance, const attune_cuda_device_desc *desc,
                                                 attune_device **device);

/*
 * Makes a queue of a stream of the device's context, which must outlive it. Calls on it run behind what the stream
 * holds; attune_buffer_write and attune_buffer_read use the device's own queue and do not wait for this one. The
 * legacy default stream has no handle: pass CU_STREAM_LEGACY or CU_STREAM_PER_THREAD.
 */
ATTUNE_API attune_status attune_cuda_queue_wrap(attune_device *device, void *stream, attune_queue **queue);
/* Gives the queue back, not the stream. Accepts NULL, and refuses the device's own queue by doing nothing. */
ATTUNE_API void attune_cuda_queue_destroy(attune_queue *queue);

/* Makes a buffer of `size` bytes at a device address, a multiple of 16, which must outlive it. */
ATTUNE_API attune_status attune_cuda_buffer_wrap(attune_device *device, uint64_t address, uint64_t size,
                                                 attune_buffer **buffer);

#ifdef __cplusplus
}
#endif

#endif
