/* SPDX-License-Identifier: MIT */
#include "bench/timing/links.h"

#include "bench/timing/row_parts.h"

#include <stdlib.h>
#include <string.h>

const char *links_name(row_link link)
{
    static const char *const names[] = {[ROW_LINK_AUTOMATIC] = "automatic",
                                        [ROW_LINK_HOST] = "host",
                                        [ROW_LINK_PEERS] = "peers",
                                        [ROW_LINK_NCCL] = "nccl"};
    return names[link];
}

/* -------------------------------------------------------------------------------------------------------------- CUDA
 */

#if ATTUNE_HAVE_CUDA
#include <attune/cuda_ranks.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>

typedef struct links_cuda {
    attune_cuda_peers *peers;
    attune_nccl *nccl[MOST_RANKS];
    void *library;
    void *comms[MOST_RANKS]; /* ncclComm_t */
    uint32_t comm_count;
    atomic_bool aborted;
} links_cuda;

static bool find(const links_cuda *c, const char *name, void *function)
{
    void *symbol = c->library ? dlsym(c->library, name) : NULL;
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* Once for all ranks: devices that wait for messages of a rank that failed are released. */
static void abort_comms(void *user)
{
    links_cuda *c = user;
    int (*abort_comm)(void *comm);
    if (find(c, "ncclCommAbort", &abort_comm) && !atomic_exchange(&c->aborted, true))
        for (uint32_t r = 0; r < c->comm_count; r++)
            (void)abort_comm(c->comms[r]);
}

static bool connect_nccl(links *l, report_row *row)
{
    links_cuda *c = l->cuda;
    int (*make_comms)(void **comms, int count, const int *devices), numbers[MOST_RANKS];
    c->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!c->library)
        return row_fail(row, REPORT_UNSUPPORTED, "%s", dlerror());
    if (!find(c, "ncclCommInitAll", &make_comms))
        return row_fail(row, REPORT_UNSUPPORTED, "libnccl.so.2 has no ncclCommInitAll");
    for (uint32_t r = 0; r < l->ranks; r++) {
        attune_device_info info = {.struct_size = sizeof info};
        (void)attune_device_info_get(l->devices[r], &info);
        if (sscanf(info.id, "cuda:%d", &numbers[r]) != 1)
            return row_fail(row, REPORT_UNSUPPORTED, "%s has no NCCL", info.id);
    }
    const int result = make_comms(c->comms, (int)l->ranks, numbers);
    if (result)
        return row_fail(row, REPORT_FAILED, "ncclCommInitAll gave ncclResult_t %d", result);
    c->comm_count = l->ranks;
    for (uint32_t r = 0; r < l->ranks; r++) {
        const attune_nccl_desc desc = {
            .struct_size = sizeof desc, .comm = c->comms[r], .abort = abort_comms, .user = c};
        attune_status status = attune_nccl_create(l->devices[r], &desc, &c->nccl[r]);
        if (status == ATTUNE_OK)
            status = attune_nccl_transport(c->nccl[r], &l->group.ends[r].shared);
        if (status != ATTUNE_OK)
            return row_fail_call(row, status, "NCCL");
    }
    return true;
}

static bool connect_devices(links *l, report_row *row)
{
    l->cuda = calloc(1, sizeof *l->cuda);
    if (!l->cuda)
        return row_fail(row, REPORT_FAILED, "out of memory");
    if (l->link == ROW_LINK_NCCL)
        return connect_nccl(l, row);
    attune_status status = attune_cuda_peers_create(l->devices, l->ranks, &l->cuda->peers);
    for (uint32_t r = 0; r < l->ranks && status == ATTUNE_OK; r++)
        status = attune_cuda_peers_transport(l->cuda->peers, r, &l->group.ends[r].shared);
    return status == ATTUNE_OK || row_fail_call(row, status, "peers");
}

static void disconnect_devices(links_cuda *c)
{
    int (*destroy_comm)(void *comm);
    if (!c)
        return;
    attune_cuda_peers_destroy(c->peers);
    for (uint32_t r = 0; r < MOST_RANKS; r++)
        attune_nccl_destroy(c->nccl[r]);
    if (c->comm_count && !atomic_load(&c->aborted) && find(c, "ncclCommDestroy", &destroy_comm))
        for (uint32_t r = 0; r < c->comm_count; r++)
            (void)destroy_comm(c->comms[r]);
    free(c);
}
#else
static bool connect_devices(links *l, report_row *row)
{
    return row_fail(row, REPORT_UNSUPPORTED, "this build has no CUDA: --transport %s", links_name(l->link));
}

static void disconnect_devices(const struct links_cuda *c)
{
    (void)c;
}
#endif

/* ----------------------------------------------------------------------------------------------------------- devices
 */

static attune_status open_device(attune_instance *instance, const char *id, uint32_t threads, uint32_t rank, links *l)
{
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = threads};
    if (strcmp(id, "cpu") != 0)
        return attune_device_open(instance, id, &l->devices[rank]);
    const attune_status status = attune_instance_create(&desc, &l->instances[rank]);
    return status == ATTUNE_OK ? attune_device_open(l->instances[rank], id, &l->devices[rank]) : status;
}

static bool all_cuda(const links *l)
{
    bool all = true;
    for (uint32_t r = 0; r < l->ranks; r++) {
        attune_device_info info = {.struct_size = sizeof info};
        all = all && attune_device_info_get(l->devices[r], &info) == ATTUNE_OK && info.backend == ATTUNE_BACKEND_CUDA;
    }
    return all;
}

bool links_make(attune_instance *instance, const row_ranks_options *o, uint32_t ranks, uint32_t threads, links *l,
                report_row *row)
{
    *l = (links){.ranks = ranks, .link = o->link};
    rank_group_init(&l->group, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        const attune_status status = open_device(instance, o->devices[r], threads, r, l);
        if (status != ATTUNE_OK)
            return row_fail_call(row, status, "device");
    }
    if (l->link == ROW_LINK_AUTOMATIC)
        l->link = all_cuda(l) ? ROW_LINK_PEERS : ROW_LINK_HOST;
    if (ranks == 1 || l->link == ROW_LINK_HOST)
        return true;
    if (!all_cuda(l))
        return row_fail(row, REPORT_UNSUPPORTED, "--transport %s is between CUDA devices alone", links_name(l->link));
    return connect_devices(l, row);
}

attune_transport links_transport(links *l, uint32_t rank)
{
    return rank_transport(&l->group, rank, true);
}

void links_free(links *l)
{
    disconnect_devices(l->cuda);
    for (uint32_t r = 0; r < l->ranks; r++) {
        attune_device_destroy(l->devices[r]);
        attune_instance_destroy(l->instances[r]);
    }
    rank_group_finish(&l->group);
}
