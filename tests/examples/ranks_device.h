/* SPDX-License-Identifier: MIT */
/*
 * examples/ranks.c with attune_mpi_device_transport, whose device is the CPU: the compiler includes this first. Buffers
 * are wrapped memory, and messages are found by their buffers alone.
 */
#ifndef TESTS_EXAMPLES_RANKS_DEVICE_H
#define TESTS_EXAMPLES_RANKS_DEVICE_H

#include <attune/mpi.h>
#include <stdlib.h>

#define MOST_BUFFERS 64

static struct {
    const attune_buffer *buffer;
    void *memory;
} lent[MOST_BUFFERS];
static int lent_count, waits;

static attune_status lend(attune_device *device, void *memory, uint64_t size, attune_buffer **buffer)
{
    if (lent_count == MOST_BUFFERS)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    const attune_status status = attune_buffer_wrap(device, memory, size, buffer);
    lent[lent_count].buffer = *buffer;
    lent[lent_count++].memory = memory;
    return status;
}

/* Of workspaces, which the process keeps until it ends. */
static attune_status lend_new(attune_device *device, uint64_t size, attune_buffer **buffer)
{
    void *memory = calloc(size, 1);
    return memory ? lend(device, memory, size, buffer) : ATTUNE_OUT_OF_HOST_MEMORY;
}

static void *address_of(void *user, const attune_buffer *buffer)
{
    (void)user;
    for (int i = lent_count; i-- > 0;)
        if (lent[i].buffer == buffer)
            return lent[i].memory;
    return NULL;
}

static attune_status wait_for(void *user, attune_queue *queue)
{
    (void)user;
    waits++;
    return queue ? ATTUNE_OK : ATTUNE_INTERNAL;
}

/* The exit status of a process whose messages did not go this way is not 0. */
static void check_waits(void)
{
    if (!waits)
        _Exit(4);
}

static attune_status device_transport(MPI_Comm comm, int tag, attune_mpi *mpi, attune_transport *transport)
{
    const attune_mpi_device device = {NULL, address_of, wait_for};
    atexit(check_waits);
    return attune_mpi_device_transport(comm, tag, &device, mpi, transport);
}

#define attune_mpi_transport device_transport
#define attune_buffer_wrap   lend
#define attune_buffer_create lend_new

#endif
