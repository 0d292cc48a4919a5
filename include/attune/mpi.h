/* SPDX-License-Identifier: MIT */
/*
 * A transport of attune/distributed.h over MPI. All functions are inline: the engine compiles them with its own mpicc,
 * because MPI libraries differ in their binary interfaces, and attune links to none. Requires MPI 2.0.
 *
 * attune_mpi_transport: messages go through host memory, so that ranks are of any devices, also of different ones.
 * attune_mpi_device_transport: an MPI that is device-aware is given addresses in device memory.
 */
#ifndef ATTUNE_MPI_H
#define ATTUNE_MPI_H

#include <attune/distributed.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A device whose memory the engine's MPI reads and writes. */
typedef struct attune_mpi_device {
    void *user; /* passed to the callbacks, which must not call attune */
    /* The address at which a buffer begins, of those that the engine wrapped: k, v and q of the calls, and the
     * workspace (attune_cuda_buffer_wrap). NULL fails the call. */
    void *(*address)(void *user, const attune_buffer *buffer);
    /* Returns when the work in the queue is done, as cudaStreamSynchronize of the stream that it wraps. */
    attune_status (*wait)(void *user, attune_queue *queue);
} attune_mpi_device;

/* The engine's communicator, and the requests of the present exchange. */
typedef struct attune_mpi {
    MPI_Comm comm;
    int tag;
    attune_mpi_device device; /* address NULL = messages are in host memory */
    MPI_Request *requests;
    int count, capacity;
} attune_mpi;

/* Larger messages are sent in parts, because MPI counts in int. */
#define ATTUNE_MPI_PART ((uint64_t)1 << 30)

static inline attune_status attune_mpi_status(int error)
{
    return error == MPI_SUCCESS ? ATTUNE_OK : ATTUNE_IO;
}

static inline attune_status attune_mpi_gather(void *user, const void *mine, void *all, size_t size)
{
    attune_mpi *mpi = (attune_mpi *)user;
    return attune_mpi_status(
        MPI_Allgather((void *)(uintptr_t)mine, (int)size, MPI_BYTE, all, (int)size, MPI_BYTE, mpi->comm));
}

/* Makes room for one more request. */
static inline bool attune_mpi_grow(attune_mpi *mpi)
{
    if (mpi->count < mpi->capacity)
        return true;
    const int capacity = mpi->capacity ? 2 * mpi->capacity : 64;
    MPI_Request *grown = (MPI_Request *)realloc(mpi->requests, (size_t)capacity * sizeof *grown);
    if (!grown)
        return false;
    mpi->requests = grown;
    mpi->capacity = capacity;
    return true;
}

static inline attune_status attune_mpi_start(attune_mpi *mpi, const attune_message *messages, uint32_t count, bool send)
{
    for (uint32_t i = 0; i < count; i++) {
        const attune_message *m = &messages[i];
        char *first = (char *)m->memory;
        if (mpi->device.address) {
            first = (char *)mpi->device.address(mpi->device.user, m->buffer);
            first = first ? first + m->offset : NULL;
        }
        if (!first)
            return ATTUNE_UNSUPPORTED;
        for (uint64_t at = 0; at < m->size; at += ATTUNE_MPI_PART) {
            const int part = (int)(m->size - at < ATTUNE_MPI_PART ? m->size - at : ATTUNE_MPI_PART);
            char *memory = first + at;
            if (!attune_mpi_grow(mpi))
                return ATTUNE_OUT_OF_HOST_MEMORY;
            MPI_Request *request = &mpi->requests[mpi->count];
            const int error = send ? MPI_Isend(memory, part, MPI_BYTE, (int)m->peer, mpi->tag, mpi->comm, request)
                                   : MPI_Irecv(memory, part, MPI_BYTE, (int)m->peer, mpi->tag, mpi->comm, request);
            if (error != MPI_SUCCESS)
                return ATTUNE_IO;
            mpi->count++;
        }
    }
    return ATTUNE_OK;
}

static inline attune_status attune_mpi_exchange(void *user, const attune_message *sends, uint32_t send_count,
                                                const attune_message *receives, uint32_t receive_count,
                                                attune_queue *queue)
{
    attune_mpi *mpi = (attune_mpi *)user;
    mpi->count = 0;
    /* The queue may still compute what is sent, and read what is overwritten. */
    attune_status status = mpi->device.wait ? mpi->device.wait(mpi->device.user, queue) : ATTUNE_OK;
    if (status == ATTUNE_OK)
        status = attune_mpi_start(mpi, receives, receive_count, false);
    return status == ATTUNE_OK ? attune_mpi_start(mpi, sends, send_count, true) : status;
}

static inline attune_status attune_mpi_complete(void *user, attune_queue *queue)
{
    attune_mpi *mpi = (attune_mpi *)user;
    (void)queue;
    int error = MPI_SUCCESS;
    /* Not MPI_Waitall, which gcc warns of with MPICH's MPI_STATUSES_IGNORE. */
    for (int i = 0; i < mpi->count && error == MPI_SUCCESS; i++)
        error = MPI_Wait(&mpi->requests[i], MPI_STATUS_IGNORE);
    return attune_mpi_status(error);
}

static inline void attune_mpi_abort(void *user)
{
    MPI_Abort(((attune_mpi *)user)->comm, 1);
}

/*
 * Fills a transport. The communicator remains the engine's, which uses `tag` for nothing else in it; *mpi must outlive
 * the transport, and may serve several objects whose calls do not overlap. transport->abort is MPI_Abort, which ends
 * all processes: an engine that recovers sets its own, which also ends the requests of *mpi that are under way, since
 * they read and write memory that the engine then frees. A failing call of MPI ends the process too, unless the engine
 * set MPI_ERRORS_RETURN. Memory for requests grows in the first calls.
 */
static inline attune_status attune_mpi_transport(MPI_Comm comm, int tag, attune_mpi *mpi, attune_transport *transport)
{
    int rank, size;
    attune_mpi made;
    attune_transport filled;
    if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &size) != MPI_SUCCESS)
        return ATTUNE_IO;
    memset(&made, 0, sizeof made);
    made.comm = comm;
    made.tag = tag;
    *mpi = made;
    memset(&filled, 0, sizeof filled);
    filled.struct_size = sizeof filled;
    filled.rank = (uint32_t)rank;
    filled.size = (uint32_t)size;
    filled.user = mpi;
    filled.gather = attune_mpi_gather;
    filled.exchange = attune_mpi_exchange;
    filled.finish = attune_mpi_complete;
    filled.abort = attune_mpi_abort;
    filled.host_memory = true;
    *transport = filled;
    return ATTUNE_OK;
}

/*
 * As attune_mpi_transport, with messages between device memory. All ranks must use it, each with a device of its own,
 * and their MPI must be device-aware: the engine asks it, as by MPIX_Query_cuda_support of Open MPI's mpi-ext.h, and
 * otherwise uses attune_mpi_transport. An exchange waits for the work that is in the queue before it begins; the own
 * keys are computed while messages are under way. *device is copied.
 */
static inline attune_status attune_mpi_device_transport(MPI_Comm comm, int tag, const attune_mpi_device *device,
                                                        attune_mpi *mpi, attune_transport *transport)
{
    if (!device || !device->address || !device->wait)
        return ATTUNE_INVALID_ARGUMENT;
    const attune_status status = attune_mpi_transport(comm, tag, mpi, transport);
    if (status != ATTUNE_OK)
        return status;
    mpi->device = *device;
    transport->host_memory = false;
    return ATTUNE_OK;
}

/* Frees the requests. */
static inline void attune_mpi_finish(attune_mpi *mpi)
{
    free(mpi->requests);
    mpi->requests = NULL;
    mpi->count = mpi->capacity = 0;
}

#ifdef __cplusplus
}
#endif

#endif
