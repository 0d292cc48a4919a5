/* SPDX-License-Identifier: MIT */
/*
 * Transports of attune/distributed.h between CUDA devices, from device memory to device memory: copies between the
 * devices of one process, and NCCL. Messages run on a stream beside the queue's, so that a rank computes its own keys
 * while keys of others arrive; nothing waits for the device in a call. Installed only if the library has the CUDA
 * backend. NVIDIA's headers are not needed: a CUstream (or cudaStream_t) and an ncclComm_t are passed as pointers.
 */
#ifndef ATTUNE_CUDA_RANKS_H
#define ATTUNE_CUDA_RANKS_H

#include <attune/distributed.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- one process */

/* Ranks that are threads of one process, each of which has a CUDA device. */
typedef struct attune_cuda_peers attune_cuda_peers;

/*
 * Makes a group of 1 to ATTUNE_MAX_RANKS ranks: rank r has devices[r]. A device may be several ranks, on different
 * queues or on one. All devices must outlive the group. Each rank has streams and events of its own. Where devices
 * can read each other's memory (NVLink, PCIe) and the engine has not enabled that, it is enabled in both contexts;
 * elsewhere the driver copies through host memory. INVALID_ARGUMENT if a device is not CUDA's: attune/threads.h takes
 * any devices.
 */
ATTUNE_API attune_status attune_cuda_peers_create(attune_device *const *devices, uint32_t count,
                                                  attune_cuda_peers **peers);
/* After all objects of all ranks were destroyed. NULL is ignored. */
ATTUNE_API void attune_cuda_peers_destroy(attune_cuda_peers *peers);

/*
 * Fills the transport of a rank, for one thread, which makes all calls of the rank. Every rank makes the same calls in
 * the same order, and each exchange waits until the other threads have made it too, not for their devices. Each rank
 * copies what it receives; where all devices read each other's memory, the transport also lends, which decode uses, and
 * by default attention whose keys are computed in one launch (ATTUNE_OVERLAP_AUTO). lend fails for memory that the
 * engine wrapped and a peer's device has no access to, of a pool (cuMemPoolSetAccess) or of cuMemMap (cuMemSetAccess):
 * an engine with such q, k and v sets transport->lend to NULL, and keys are sent.
 * After an abort, which waits for the copies and reads that are under way, all ranks fail: make the group and the
 * objects anew.
 */
ATTUNE_API attune_status attune_cuda_peers_transport(attune_cuda_peers *peers, uint32_t rank,
                                                     attune_transport *transport);

/* ------------------------------------------------------------------------------------------------------------- NCCL */

/* A communicator of the engine, and what messages need. */
typedef struct attune_nccl attune_nccl;

/* Parameters of attune_nccl_create. */
typedef struct attune_nccl_desc {
    uint32_t struct_size;
    void *comm; /* ncclComm_t, of the device: its ranks are those of the transport */
    /* CUstream that messages run on, of the device's context; NULL = attune creates a non-blocking stream. One of high
     * priority, or queues whose kernels leave multiprocessors free, let NCCL's kernels begin beside attune's. */
    void *stream;
    /* A call failed on this rank: the engine aborts the communicator (ncclCommAbort) here and, by its own means, on the
     * other ranks, whose devices would otherwise wait for this one. Required. */
    void (*abort)(void *user);
    void *user; /* passed to abort */
} attune_nccl_desc;

/*
 * Prepares a transport over the engine's communicator. Device, communicator and stream must outlive it. The functions
 * are those of the libnccl.so.2, 2.7 or newer, that the process has loaded: UNAVAILABLE if there is none. A
 * communicator may be non-blocking: a call then waits until NCCL has enqueued the messages. Other users of the
 * communicator must not call it at the same time, and in the same order on all ranks.
 */
ATTUNE_API attune_status attune_nccl_create(attune_device *device, const attune_nccl_desc *desc, attune_nccl **nccl);
/* After all objects that use its transport were destroyed. The communicator remains. NULL is ignored. */
ATTUNE_API void attune_nccl_destroy(attune_nccl *nccl);

/*
 * Fills the transport of this rank. An exchange is one group of ncclSend and ncclRecv of bytes, after the work in the
 * queue; `finish` makes the queue's stream wait for it, and fails with IO if the communicator has an asynchronous
 * error. Only gather, which is called when objects are created, allocates and waits (ncclAllGather).
 */
ATTUNE_API attune_status attune_nccl_transport(attune_nccl *nccl, attune_transport *transport);

#ifdef __cplusplus
}
#endif

#endif
