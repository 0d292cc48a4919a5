/* SPDX-License-Identifier: MIT */
#include "distributed/carriers.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nccl_or_skip(void)
{
    if (!dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL))
        cr_skip_test("%s", dlerror());
}

void fake_nccl_or_skip(void)
{
    const char *path = getenv("ATTUNE_FAKE_NCCL");
    if (!path)
        cr_skip_test("ATTUNE_FAKE_NCCL is not set");
    cr_assert(dlopen(path, RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
}

#if ATTUNE_HAVE_CUDA
#include <attune/cuda_ranks.h>

struct connection {
    attune_cuda_peers *peers;
    attune_nccl *nccl[MOST_RANKS];
    void *comms[MOST_RANKS]; /* ncclComm_t */
    int count;
    atomic_bool aborted;
};

/* A function of the library that nccl_or_skip has loaded. */
static void find_nccl(const char *name, void *function)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), *symbol = library ? dlsym(library, name) : NULL;
    cr_assert(symbol, "libnccl.so.2 has no %s", name);
    memcpy(function, &symbol, sizeof symbol);
}

/* A failure of one rank must not leave the devices of the others waiting. */
static void abort_all(void *user)
{
    connection *c = user;
    int (*abort_comm)(void *comm);
    find_nccl("ncclCommAbort", &abort_comm);
    if (!atomic_exchange(&c->aborted, true))
        for (int r = 0; r < c->count; r++)
            (void)abort_comm(c->comms[r]);
}

static void connect_nccl(const sharing *s, attune_device *const *devices, connection *c)
{
    int (*make_comms)(void **comms, int count, const int *devices), numbers[MOST_RANKS];
    find_nccl("ncclCommInitAll", &make_comms);
    for (uint32_t r = 0; r < s->ranks; r++) {
        attune_device_info info = {.struct_size = sizeof info};
        cr_assert_eq(attune_device_info_get(devices[r], &info), ATTUNE_OK);
        cr_assert_eq(sscanf(info.id, "cuda:%d", &numbers[r]), 1, "%s", info.id);
    }
    cr_assert_eq(make_comms(c->comms, (int)s->ranks, numbers), 0, "ncclCommInitAll");
    c->count = (int)s->ranks;
    for (uint32_t r = 0; r < s->ranks; r++) {
        const attune_nccl_desc desc = {.struct_size = sizeof desc, .comm = c->comms[r], .abort = abort_all, .user = c};
        cr_assert_eq(attune_nccl_create(devices[r], &desc, &c->nccl[r]), ATTUNE_OK, "%s", attune_last_error());
    }
}

connection *carriers_connect(sharing *s, carrier by)
{
    attune_device *devices[MOST_RANKS];
    if (by == THROUGH_HOST)
        return NULL;
    connection *c = calloc(1, sizeof *c);
    cr_assert(c);
    for (uint32_t r = 0; r < s->ranks; r++)
        devices[r] = sharing_device(s, r);
    if (by == PEERS)
        cr_assert_eq(attune_cuda_peers_create(devices, s->ranks, &c->peers), ATTUNE_OK, "%s", attune_last_error());
    else
        connect_nccl(s, devices, c);
    for (uint32_t r = 0; r < s->ranks; r++) {
        attune_transport *t = &s->group.ends[r].shared;
        cr_assert_eq(by == PEERS ? attune_cuda_peers_transport(c->peers, r, t) : attune_nccl_transport(c->nccl[r], t),
                     ATTUNE_OK);
    }
    return c;
}

void carriers_disconnect(connection *c)
{
    int (*destroy_comm)(void *comm);
    if (!c)
        return;
    attune_cuda_peers_destroy(c->peers);
    for (uint32_t r = 0; r < MOST_RANKS; r++)
        attune_nccl_destroy(c->nccl[r]);
    if (c->count && !c->aborted) {
        find_nccl("ncclCommDestroy", &destroy_comm);
        for (int r = 0; r < c->count; r++)
            cr_expect_eq(destroy_comm(c->comms[r]), 0);
    }
    free(c);
}
#else
connection *carriers_connect(sharing *s, carrier by)
{
    (void)s;
    cr_assert_eq(by, THROUGH_HOST);
    return NULL;
}

void carriers_disconnect(connection *c)
{
    (void)c;
}
#endif
