/* SPDX-License-Identifier: MIT */
/* Messages over the engine's NCCL communicator (attune/cuda_ranks.h): groups of sends and receives of bytes on a stream
 * beside the queue's. Nothing here was compiled against NVIDIA's header: its types and numbers are below. */
#include <attune/cuda_ranks.h>
#include <string.h>

#include "base/alloc.h"
#include "base/desc.h"
#include "base/error.h"
#include "base/library.h"
#include "cuda/exchange.h"

#define LIBRARY "libnccl.so.2"
#define OLDEST  2700 /* ncclGetVersion of 2.7, the first with ncclSend */

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 }; /* ncclResult_t */
enum { NCCL_UINT8 = 1 };                         /* ncclDataType_t */
typedef int nccl_result;
typedef void *nccl_comm;

/* name in our table, symbol in the library, parameters */
#define FUNCTIONS(X)                                                                                                   \
    X(version, ncclGetVersion, (int *version))                                                                         \
    X(comm_count, ncclCommCount, (nccl_comm comm, int *count))                                                         \
    X(comm_rank, ncclCommUserRank, (nccl_comm comm, int *rank))                                                        \
    X(async_error, ncclCommGetAsyncError, (nccl_comm comm, nccl_result * error))                                       \
    X(group_start, ncclGroupStart, (void))                                                                             \
    X(group_end, ncclGroupEnd, (void))                                                                                 \
    X(send, ncclSend, (const void *data, size_t count, int type, int peer, nccl_comm comm, attune__cu_stream stream))  \
    X(receive, ncclRecv, (void *data, size_t count, int type, int peer, nccl_comm comm, attune__cu_stream stream))     \
    X(all_gather, ncclAllGather,                                                                                       \
      (const void *mine, void *all, size_t count, int type, nccl_comm comm, attune__cu_stream stream))

struct attune_nccl {
    void *library;
#define POINTER(name, symbol, parameters) nccl_result(*name) parameters;
    FUNCTIONS(POINTER)
#undef POINTER
    nccl_comm comm;
    int rank, size;
    void (*abort)(void *user);
    void *user;
    attune__cuda_exchange messages;
};

static attune_status open_library(attune_nccl *nccl)
{
    char why[256];
    /* A communicator is of the library that made it. */
    nccl->library = attune__library_open(LIBRARY, ATTUNE__LIBRARY_LOADED, why, sizeof why);
    if (!nccl->library)
        return attune__fail(ATTUNE_UNAVAILABLE,
                            "the process has not loaded " LIBRARY ", as an engine that links NCCL "
                            "dynamically has: %s",
                            why);
    void *symbol;
    /* ISO C has no cast from data to functions; POSIX promises that the bytes are the same. */
#define FIND(name, symbol_name, parameters)                                                                            \
    symbol = attune__library_symbol(nccl->library, #symbol_name);                                                      \
    if (!symbol)                                                                                                       \
        return attune__fail(ATTUNE_UNAVAILABLE, LIBRARY " has no %s: 2.7 or newer is needed", #symbol_name);           \
    memcpy(&nccl->name, &symbol, sizeof symbol);
    FUNCTIONS(FIND)
#undef FIND
    return ATTUNE_OK;
}

/* A non-blocking communicator is asked until it has done what was called. */
static attune_status check(const attune_nccl *nccl, nccl_result result, const char *what)
{
    while (result == NCCL_IN_PROGRESS) {
        const nccl_result asked = nccl->async_error(nccl->comm, &result);
        if (asked != NCCL_SUCCESS)
            result = asked;
    }
    if (result == NCCL_SUCCESS)
        return ATTUNE_OK;
    return attune__fail(ATTUNE_IO, "NCCL: %s gave ncclResult_t %d on rank %d of %d", what, result, nccl->rank,
                        nccl->size);
}

/* -------------------------------------------------------------------------------------------------------- transport */

/* With the memory for it: this rank's, then that of all. */
static attune_status gather_in(const attune_nccl *nccl, attune__cu_pointer at, const void *mine, void *all, size_t size)
{
    const attune__cuda_exchange *e = &nccl->messages;
    const attune__cuda_driver *driver = &e->device->driver;
    const attune__cu_pointer gathered = at + size;
    attune__cu_result result = driver->copy_to_device(at, mine, size, e->stream);
    ATTUNE__TRY(attune__cuda_check(e->device, result, "a gather"));
    ATTUNE__TRY(check(nccl,
                      nccl->all_gather((const void *)(uintptr_t)at, (void *)(uintptr_t)gathered, size, NCCL_UINT8,
                                       nccl->comm, e->stream),
                      "ncclAllGather"));
    result = driver->copy_to_host(all, gathered, size * (size_t)nccl->size, e->stream);
    return attune__cuda_check(e->device, result, "a gather");
}

static attune_status gather(void *user, const void *mine, void *all, size_t size)
{
    const attune_nccl *nccl = user;
    attune__cuda_device *device = nccl->messages.device;
    attune__cu_pointer memory = 0;
    ATTUNE__TRY(attune__cuda_enter(device));
    attune_status status = attune__cuda_check(
        device, device->driver.memory_alloc(&memory, size * ((size_t)nccl->size + 1)), "the ranks' hashes");
    if (status == ATTUNE_OK) {
        status = gather_in(nccl, memory, mine, all, size);
        /* Also after an error: a copy that was enqueued uses the caller's memory. */
        const attune_status waited =
            attune__cuda_check(device, device->driver.stream_synchronize(nccl->messages.stream), "a gather");
        status = status == ATTUNE_OK ? waited : status;
        device->driver.memory_free(memory);
    }
    attune__cuda_leave(device);
    return status;
}

/* Within a group. */
static nccl_result start(const attune_nccl *nccl, const attune_message *sends, uint32_t send_count,
                         const attune_message *receives, uint32_t receive_count)
{
    const attune__cu_stream stream = nccl->messages.stream;
    nccl_result result = NCCL_SUCCESS;
    for (uint32_t i = 0; i < send_count && (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS); i++)
        result = nccl->send((const void *)(uintptr_t)attune__cuda_message(&sends[i]), (size_t)sends[i].size, NCCL_UINT8,
                            (int)sends[i].peer, nccl->comm, stream);
    for (uint32_t i = 0; i < receive_count && (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS); i++)
        result = nccl->receive((void *)(uintptr_t)attune__cuda_message(&receives[i]), (size_t)receives[i].size,
                               NCCL_UINT8, (int)receives[i].peer, nccl->comm, stream);
    return result == NCCL_IN_PROGRESS ? NCCL_SUCCESS : result;
}

static attune_status exchange(void *user, const attune_message *sends, uint32_t send_count,
                              const attune_message *receives, uint32_t receive_count, attune_queue *queue)
{
    const attune_nccl *nccl = user;
    const attune__cuda_exchange *e = &nccl->messages;
    ATTUNE__TRY(attune__cuda_enter(e->device));
    attune_status status = attune__cuda_check(e->device, attune__cuda_exchange_ready(e, queue), "an exchange");
    if (status == ATTUNE_OK && send_count + receive_count)
        status = check(nccl, nccl->group_start(), "ncclGroupStart");
    if (status == ATTUNE_OK && send_count + receive_count) {
        const nccl_result started = start(nccl, sends, send_count, receives, receive_count);
        const nccl_result ended = nccl->group_end(); /* also after an error, which leaves a group open */
        status =
            started == NCCL_SUCCESS ? check(nccl, ended, "ncclGroupEnd") : check(nccl, started, "ncclSend or ncclRecv");
    }
    if (status == ATTUNE_OK)
        status = attune__cuda_check(e->device, e->device->driver.event_record(e->done, e->stream), "cuEventRecord");
    attune__cuda_leave(e->device);
    return status;
}

static attune_status finish(void *user, attune_queue *queue)
{
    const attune_nccl *nccl = user;
    const attune__cuda_exchange *e = &nccl->messages;
    nccl_result error = NCCL_SUCCESS;
    ATTUNE__TRY(check(nccl, nccl->async_error(nccl->comm, &error), "ncclCommGetAsyncError"));
    ATTUNE__TRY(check(nccl, error, "an earlier call"));
    ATTUNE__TRY(attune__cuda_enter(e->device));
    const attune__cu_result result =
        e->device->driver.stream_wait(((const attune__cuda_queue *)queue)->stream, e->done, 0);
    attune__cuda_leave(e->device);
    return attune__cuda_check(e->device, result, "an exchange");
}

static void abort_all(void *user)
{
    const attune_nccl *nccl = user;
    nccl->abort(nccl->user);
}

attune_status attune_nccl_transport(attune_nccl *nccl, attune_transport *transport)
{
    if (!nccl || !transport)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is NULL", nccl ? "transport" : "nccl");
    *transport = (attune_transport){.struct_size = sizeof *transport,
                                    .rank = (uint32_t)nccl->rank,
                                    .size = (uint32_t)nccl->size,
                                    .user = nccl,
                                    .gather = gather,
                                    .exchange = exchange,
                                    .finish = finish,
                                    .abort = abort_all};
    return ATTUNE_OK;
}

/* ------------------------------------------------------------------------------------------------------------ create
 */

static attune_status prepare(attune_nccl *nccl, attune_device *device, const attune_nccl_desc *d)
{
    int version = 0;
    ATTUNE__TRY(open_library(nccl));
    ATTUNE__TRY(check(nccl, nccl->version(&version), "ncclGetVersion"));
    if (version < OLDEST)
        return attune__fail(ATTUNE_UNAVAILABLE, LIBRARY " is version code %d: 2.7 (%d) or newer is needed", version,
                            OLDEST);
    ATTUNE__TRY(check(nccl, nccl->comm_count(nccl->comm, &nccl->size), "ncclCommCount"));
    ATTUNE__TRY(check(nccl, nccl->comm_rank(nccl->comm, &nccl->rank), "ncclCommUserRank"));
    if (nccl->size < 1 || nccl->size > ATTUNE_MAX_RANKS || nccl->rank < 0 || nccl->rank >= nccl->size)
        return attune__fail(ATTUNE_UNSUPPORTED, "desc.comm is of rank %d of %d, expected at most %d ranks", nccl->rank,
                            nccl->size, ATTUNE_MAX_RANKS);
    return attune__cuda_exchange_init(device, d->stream, &nccl->messages);
}

attune_status attune_nccl_create(attune_device *device, const attune_nccl_desc *desc, attune_nccl **nccl)
{
    attune_nccl_desc d;
    if (!nccl)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "nccl is NULL");
    *nccl = NULL;
    if (!device)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "device is NULL");
    ATTUNE__TRY(attune__desc_read(&d, sizeof d, desc, sizeof d, "desc"));
    if (!d.comm || !d.abort)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.%s is NULL", d.comm ? "abort" : "comm");
    attune_nccl *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->comm = d.comm;
    made->abort = d.abort;
    made->user = d.user;
    const attune_status status = prepare(made, device, &d);
    if (status == ATTUNE_OK) {
        *nccl = made;
        return ATTUNE_OK;
    }
    attune__library_close(made->library);
    attune__free(&device->host.allocator, made);
    return status;
}

void attune_nccl_destroy(attune_nccl *nccl)
{
    if (!nccl)
        return;
    const attune_allocator allocator = nccl->messages.device->base.host.allocator;
    attune__cuda_exchange_finish(&nccl->messages);
    attune__library_close(nccl->library);
    attune__free(&allocator, nccl);
}
