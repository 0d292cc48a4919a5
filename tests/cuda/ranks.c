/* SPDX-License-Identifier: MIT */
/* Transports of CUDA devices over a fake driver and a fake NCCL: what is called in which order, what never is, and
 * every failure. tests/distributed/devices.c has attention over them. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <attune/cuda.h>
#include <attune/cuda_ranks.h>

#include "cuda/fake.h"
#include "cuda/fake_nccl.h"

#define BYTES 256

static fake_state *driver;
static fake_nccl_state *nccl;

static void *open_fake(const char *variable, const char *symbol)
{
    const char *path = getenv(variable);
    if (!path)
        cr_skip_test("%s is not set", variable);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(library, "%s", dlerror());
    return dlsym(library, symbol);
}

typedef struct scene {
    attune_instance *instance;
    attune_device *device;
    attune_buffer *from, *to;
    unsigned char sent[BYTES], received[BYTES];
} scene;

static void scene_open(scene *s)
{
    if (!driver)
        driver = open_fake("ATTUNE_FAKE_CUDA", "fake");
    cr_assert_eq(attune_instance_create(NULL, &s->instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(s->instance, "cuda", &s->device), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_create(s->device, BYTES, &s->from), ATTUNE_OK);
    cr_assert_eq(attune_buffer_create(s->device, BYTES, &s->to), ATTUNE_OK);
    for (int i = 0; i < BYTES; i++)
        s->sent[i] = (unsigned char)(i * 7);
    cr_assert_eq(attune_buffer_write(s->from, 0, s->sent, BYTES), ATTUNE_OK);
    cr_assert_eq(attune_buffer_write(s->to, 0, s->received, BYTES), ATTUNE_OK);
}

static void scene_close(scene *s)
{
    attune_buffer_destroy(s->from);
    attune_buffer_destroy(s->to);
    attune_device_destroy(s->device);
    attune_instance_destroy(s->instance);
    cr_expect(!driver->events && !driver->streams && !driver->memories && !driver->contexts && !driver->depth,
              "%d events, %d streams, %d memories, %d contexts, depth %d", driver->events, driver->streams,
              driver->memories, driver->contexts, driver->depth);
}

/* The driver's calls since the `first`, by name. */
static void expect_calls(int first, const char *const *names, int count)
{
    cr_expect_eq(driver->calls - first, count, "%d calls", driver->calls - first);
    for (int i = 0; i < count && first + i < driver->calls; i++)
        cr_expect_str_eq(driver->names[first + i], names[i], "call %d is %s, not %s", i, driver->names[first + i],
                         names[i]);
}
#define EXPECT_CALLS(first, ...)                                                                                       \
    expect_calls(first, (const char *const[]){__VA_ARGS__},                                                            \
                 (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

static int aborted;
static void count_abort(void *user)
{
    ++*(int *)user;
}

/* Two runs of bytes to the other rank, and two from it. */
static void fill_messages(const scene *s, uint32_t peer, attune_message sends[2], attune_message receives[2])
{
    sends[0] = (attune_message){.peer = peer, .buffer = s->from, .offset = 16, .size = 32};
    sends[1] = (attune_message){.peer = peer, .buffer = s->from, .offset = 128, .size = 128};
    receives[0] = (attune_message){.peer = peer, .buffer = s->to, .offset = 0, .size = 32};
    receives[1] = (attune_message){.peer = peer, .buffer = s->to, .offset = 64, .size = 128};
}

/* ------------------------------------------------------------------------------------------------------------- NCCL */

Test(cuda_ranks, no_nccl)
{
    scene s = {0};
    fake_nccl_comm comm = {0, 2};
    const attune_nccl_desc desc = {.struct_size = sizeof desc, .comm = &comm, .abort = count_abort, .user = &aborted};
    attune_nccl *made;
    scene_open(&s);
    if (!dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD)) {
        cr_expect_eq(attune_nccl_create(s.device, &desc, &made), ATTUNE_UNAVAILABLE);
        cr_expect(strstr(attune_last_error(), "libnccl.so.2"), "%s", attune_last_error());
        cr_expect_null(made);
    }
    scene_close(&s);
}

static attune_nccl *open_nccl(const scene *s, fake_nccl_comm *comm)
{
    const attune_nccl_desc desc = {.struct_size = sizeof desc, .comm = comm, .abort = count_abort, .user = &aborted};
    attune_nccl *made;
    if (!nccl)
        nccl = open_fake("ATTUNE_FAKE_NCCL", "fake_nccl");
    *nccl = (fake_nccl_state){.version = 22800};
    cr_assert_eq(attune_nccl_create(s->device, &desc, &made), ATTUNE_OK, "%s", attune_last_error());
    return made;
}

Test(cuda_ranks, nccl_arguments)
{
    scene s = {0};
    fake_nccl_comm comm = {0, 2}, wrong = {2, 2};
    attune_nccl_desc desc = {.struct_size = sizeof desc, .comm = &comm, .abort = count_abort};
    attune_nccl *made;
    attune_device *cpu;
    scene_open(&s);
    attune_nccl_destroy(open_nccl(&s, &comm));
    attune_nccl_destroy(NULL);
    desc.abort = NULL;
    cr_expect_eq(attune_nccl_create(s.device, &desc, &made), ATTUNE_INVALID_ARGUMENT);
    cr_expect(strstr(attune_last_error(), "desc.abort is NULL"), "%s", attune_last_error());
    desc.abort = count_abort;
    desc.comm = NULL;
    cr_expect_eq(attune_nccl_create(s.device, &desc, &made), ATTUNE_INVALID_ARGUMENT);
    desc.comm = &wrong;
    cr_expect_eq(attune_nccl_create(s.device, &desc, &made), ATTUNE_UNSUPPORTED);
    desc.comm = &comm;
    nccl->version = 2604;
    cr_expect_eq(attune_nccl_create(s.device, &desc, &made), ATTUNE_UNAVAILABLE);
    cr_expect(strstr(attune_last_error(), "2604"), "%s", attune_last_error());
    nccl->version = 22800;
    cr_assert_eq(attune_device_open(s.instance, "cpu", &cpu), ATTUNE_OK);
    cr_expect_eq(attune_nccl_create(cpu, &desc, &made), ATTUNE_INVALID_ARGUMENT);
    cr_expect(strstr(attune_last_error(), "not a CUDA device"), "%s", attune_last_error());
    attune_device_destroy(cpu);
    cr_expect_eq(attune_nccl_create(NULL, &desc, &made), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_nccl_create(s.device, &desc, NULL), ATTUNE_INVALID_ARGUMENT);
    scene_close(&s);
}

/* A rank of two, whose messages the other has sent before: the fake keeps them. */
typedef struct other {
    const scene *s;
    attune_nccl *nccl;
    attune_status status;
} other;

static void *send_from_other(void *user)
{
    other *o = user;
    attune_transport t;
    attune_message sends[2], receives[2];
    fill_messages(o->s, 0, sends, receives);
    o->status = attune_nccl_transport(o->nccl, &t);
    if (o->status == ATTUNE_OK)
        o->status = t.exchange(t.user, sends, 2, NULL, 0, attune_device_queue(o->s->device));
    return NULL;
}

static void send_first(const scene *s, attune_nccl *from)
{
    other o = {s, from, ATTUNE_OK};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, send_from_other, &o), 0);
    pthread_join(thread, NULL);
    cr_assert_eq(o.status, ATTUNE_OK);
}

Test(cuda_ranks, nccl_order)
{
    scene s = {0};
    fake_nccl_comm comms[2] = {{0, 2}, {1, 2}};
    attune_transport t;
    attune_message sends[2], receives[2];
    scene_open(&s);
    attune_nccl *mine = open_nccl(&s, &comms[0]), *theirs = open_nccl(&s, &comms[1]);
    attune_queue *queue = attune_device_queue(s.device);
    cr_assert_eq(attune_nccl_transport(mine, &t), ATTUNE_OK);
    cr_expect(t.rank == 0 && t.size == 2 && !t.host_memory);
    send_first(&s, theirs);
    fill_messages(&s, 1, sends, receives);
    memset(nccl->log, 0, sizeof nccl->log);
    nccl->calls = 0;
    int before = driver->calls;
    cr_assert_eq(t.exchange(t.user, sends, 2, receives, 2, queue), ATTUNE_OK, "%s", attune_last_error());
    /* After the queue's work, on the other stream; nothing waits here. */
    EXPECT_CALLS(before, "cuCtxPushCurrent", "cuEventRecord", "cuStreamWaitEvent", "cuEventRecord", "cuCtxPopCurrent");
    cr_expect_str_eq(nccl->log, "(ssrr)");
    before = driver->calls;
    cr_assert_eq(t.finish(t.user, queue), ATTUNE_OK);
    EXPECT_CALLS(before, "cuCtxPushCurrent", "cuStreamWaitEvent", "cuCtxPopCurrent");
    cr_assert_eq(attune_buffer_read(s.to, 0, s.received, BYTES), ATTUNE_OK);
    cr_expect(!memcmp(s.received, s.sent + 16, 32) && !memcmp(s.received + 64, s.sent + 128, 128));
    /* Without messages there is no group. */
    nccl->calls = 0;
    cr_assert_eq(t.exchange(t.user, NULL, 0, NULL, 0, queue), ATTUNE_OK);
    cr_expect_eq(nccl->calls, 0);
    /* A non-blocking communicator is asked until it has enqueued. */
    nccl->in_progress = 3;
    cr_assert_eq(t.exchange(t.user, sends, 2, NULL, 0, queue), ATTUNE_OK);
    cr_expect_eq(nccl->in_progress, 0);
    nccl->async_error = 6;
    cr_expect_eq(t.finish(t.user, queue), ATTUNE_IO);
    cr_expect(strstr(attune_last_error(), "ncclResult_t 6"), "%s", attune_last_error());
    aborted = 0;
    t.abort(t.user);
    cr_expect_eq(aborted, 1);
    attune_nccl_destroy(mine);
    attune_nccl_destroy(theirs);
    scene_close(&s);
}

/* Each call of NCCL fails once: IO, and no group stays open. Likewise each call of the driver. */
Test(cuda_ranks, nccl_failures)
{
    scene s = {0};
    fake_nccl_comm comm = {0, 2};
    attune_transport t;
    attune_message sends[2], receives[2];
    scene_open(&s);
    attune_nccl *mine = open_nccl(&s, &comm);
    attune_queue *queue = attune_device_queue(s.device);
    cr_assert_eq(attune_nccl_transport(mine, &t), ATTUNE_OK);
    fill_messages(&s, 1, sends, receives);
    for (int at = 1; at <= 4; at++) {
        nccl->calls = 0;
        nccl->fail_at = at;
        cr_expect_eq(t.exchange(t.user, sends, 2, NULL, 0, queue), ATTUNE_IO, "call %d: %s", at, attune_last_error());
        cr_expect_eq(nccl->open, 0, "call %d", at);
    }
    nccl->fail_at = 0;
    for (int at = 1; at <= 4; at++) {
        driver->fail_at = driver->calls + at;
        driver->fail_with = 2;
        cr_expect_eq(t.exchange(t.user, sends, 2, NULL, 0, queue), ATTUNE_OUT_OF_DEVICE_MEMORY, "call %d", at);
        driver->fail_at = 0;
        cr_expect_eq(driver->depth, 0);
    }
    unsigned char all[64];
    for (int at = 1; at <= 3; at++) { /* the context, memory, the copy to the device */
        driver->fail_at = driver->calls + at;
        cr_expect_eq(t.gather(t.user, s.sent, all, 32), ATTUNE_OUT_OF_DEVICE_MEMORY, "call %d", at);
        driver->fail_at = 0;
    }
    attune_nccl_destroy(mine);
    scene_close(&s);
}

/* ------------------------------------------------------------------------------------------------------------ peers */

typedef struct rank {
    scene *s;
    attune_transport t;
    attune_message sends[2], receives[2];
    attune_status exchanged, finished;
    unsigned char gathered[2 * 8];
    bool aborts;
} rank;

static void *run_rank(void *user)
{
    rank *r = user;
    attune_queue *queue = attune_device_queue(r->s->device);
    const unsigned char mine[8] = {(unsigned char)(r->t.rank + 1)};
    r->exchanged = r->t.gather(r->t.user, mine, r->gathered, sizeof mine);
    if (r->exchanged == ATTUNE_OK && r->aborts)
        r->exchanged = ATTUNE_IO;
    else if (r->exchanged == ATTUNE_OK)
        r->exchanged = r->t.exchange(r->t.user, r->sends, 2, r->receives, 2, queue);
    r->finished = r->exchanged == ATTUNE_OK ? r->t.finish(r->t.user, queue) : r->exchanged;
    if (r->finished != ATTUNE_OK)
        r->t.abort(r->t.user);
    return NULL;
}

/* Sizes and offsets of messages are so many times those of fill_messages. */
static void run_pair(scene *s, attune_cuda_peers *peers, rank ranks[2], bool second_aborts, uint64_t times)
{
    pthread_t threads[2];
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r].s = s;
        ranks[r].aborts = r && second_aborts;
        cr_assert_eq(attune_cuda_peers_transport(peers, r, &ranks[r].t), ATTUNE_OK);
        cr_expect(ranks[r].t.rank == r && ranks[r].t.size == 2 && !ranks[r].t.host_memory);
        fill_messages(s, 1 - r, ranks[r].sends, ranks[r].receives);
        ranks[r].receives[0].offset += r ? 32 : 0; /* two halves of one buffer */
        ranks[r].receives[1] = (attune_message){.peer = 1 - r, .buffer = s->to, .offset = 128, .size = 128};
        for (int i = 0; i < 2; i++) {
            ranks[r].sends[i].offset *= times;
            ranks[r].sends[i].size *= times;
            ranks[r].receives[i].offset *= times;
            ranks[r].receives[i].size *= times;
        }
        cr_assert_eq(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
}

static int count_of(int first, const char *name)
{
    int count = 0;
    for (int i = first; i < driver->calls && i < FAKE_CALLS; i++)
        count += !strcmp(driver->names[i], name);
    return count;
}

/* Two copies of 10 MiB together on two of four streams: all four wait for the own queue, these two for the sender's,
 * and the first for the others. */
static void run_large_pair(scene *s, attune_cuda_peers *peers, rank ranks[2])
{
    const uint64_t times = UINT64_C(1) << 16;
    attune_buffer *const from = s->from, *const to = s->to;
    unsigned char sent[BYTES], received[BYTES];
    cr_assert_eq(attune_buffer_create(s->device, BYTES * times, &s->from), ATTUNE_OK);
    cr_assert_eq(attune_buffer_create(s->device, BYTES * times, &s->to), ATTUNE_OK);
    for (int i = 0; i < BYTES; i++)
        sent[i] = (unsigned char)(i + 1);
    /* The last bytes of what both ranks send last, and of where one writes it. */
    cr_assert_eq(attune_buffer_write(s->from, (BYTES - 1) * times, sent, BYTES), ATTUNE_OK);
    const int before = driver->calls;
    run_pair(s, peers, ranks, false, times);
    cr_assert_eq(attune_buffer_read(s->to, (BYTES - 1) * times, received, BYTES), ATTUNE_OK);
    cr_expect(!memcmp(received, sent, BYTES));
    cr_expect_eq(count_of(before, "cuMemcpyDtoDAsync"), 4);
    cr_expect_eq(count_of(before, "cuStreamWaitEvent"), 2 * (4 + 2 + 3 + 2));
    cr_expect_eq(count_of(before, "cuEventRecord"), 2 * (2 + 3));
    attune_buffer_destroy(s->from);
    attune_buffer_destroy(s->to);
    s->from = from;
    s->to = to;
}

Test(cuda_ranks, peers)
{
    scene s = {0};
    rank ranks[2] = {{0}};
    attune_cuda_peers *peers;
    attune_transport t;
    scene_open(&s);
    attune_device *const devices[2] = {s.device, s.device};
    cr_assert_eq(attune_cuda_peers_create(devices, 2, &peers), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(attune_cuda_peers_transport(peers, 2, &t), ATTUNE_INVALID_ARGUMENT);
    const int before = driver->calls;
    run_pair(&s, peers, ranks, false, 1);
    for (uint32_t r = 0; r < 2; r++) {
        cr_expect(ranks[r].exchanged == ATTUNE_OK && ranks[r].finished == ATTUNE_OK);
        cr_expect(ranks[r].gathered[0] == 1 && ranks[r].gathered[8] == 2);
    }
    cr_assert_eq(attune_buffer_read(s.to, 0, s.received, BYTES), ATTUNE_OK);
    cr_expect(!memcmp(s.received, s.sent + 16, 32) && !memcmp(s.received + 32, s.sent + 16, 32) &&
              !memcmp(s.received + 128, s.sent + 128, 128));
    /* Of each rank: two small copies on one stream, which waits for the own queue and the sender's; the queue waits for
     * both ranks' copies. No thread waits for the device but in attune_buffer_read. */
    cr_expect_eq(count_of(before, "cuMemcpyDtoDAsync"), 4);
    cr_expect_eq(count_of(before, "cuStreamWaitEvent"), 2 * (2 + 2));
    cr_expect_eq(count_of(before, "cuEventRecord"), 2 * 2);
    cr_expect_eq(count_of(before, "cuStreamSynchronize"), 1);
    cr_expect_eq(ranks[0].t.byte_cost, 2); /* one device is both ranks */
    run_large_pair(&s, peers, ranks);
    /* A size that differs is refused by one rank, whose abort fails the other. */
    attune_cuda_peers_destroy(peers);
    cr_assert_eq(attune_cuda_peers_create(devices, 2, &peers), ATTUNE_OK);
    run_pair(&s, peers, ranks, true, 1);
    cr_expect_eq(ranks[0].finished, ATTUNE_UNAVAILABLE);
    cr_expect_eq(ranks[1].finished, ATTUNE_IO);
    attune_cuda_peers_destroy(peers);
    attune_cuda_peers_destroy(NULL);
    cr_expect_eq(attune_cuda_peers_create(devices, 0, &peers), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_cuda_peers_create(NULL, 2, &peers), ATTUNE_INVALID_ARGUMENT);
    attune_device *cpu;
    cr_assert_eq(attune_device_open(s.instance, "cpu", &cpu), ATTUNE_OK);
    attune_device *const mixed[2] = {s.device, cpu};
    cr_expect_eq(attune_cuda_peers_create(mixed, 2, &peers), ATTUNE_INVALID_ARGUMENT);
    attune_device_destroy(cpu);
    /* Each call of the driver fails once, and nothing is left: 16 calls of each rank, the 5th and the last of which
     * leave the context. */
    for (int at = 1; at <= 32; at++) {
        driver->fail_at = driver->calls + at;
        driver->fail_with = 2;
        cr_expect_eq(attune_cuda_peers_create(devices, 2, &peers),
                     at % 16 == 5 || at % 16 == 0 ? ATTUNE_OK : ATTUNE_OUT_OF_DEVICE_MEMORY, "call %d", at);
        driver->fail_at = 0;
        attune_cuda_peers_destroy(peers);
    }
    scene_close(&s);
}

/* ---------------------------------------------------------------------------------------------------------- lending */

/* A rank that lends an eighth of a buffer in each round and borrows the other's. */
typedef struct borrower {
    scene *s;
    attune_transport t;
    uint32_t rounds;
    uint64_t size;       /* of what it borrows */
    uint32_t stops_at;   /* the round in which it fails instead of lending; none if not below rounds */
    bool stops_reading;  /* it fails between lend and finish of that round */
    attune_queue *other; /* of every second round; NULL = the device's */
    attune_status status;
    bool right; /* it was given the other's memory each time */
} borrower;

static void *run_borrower(void *user)
{
    borrower *b = user;
    attune_message sends[2]; /* one is read while the next is made */
    b->right = true;
    b->status = ATTUNE_OK;
    for (uint32_t i = 0; i < b->rounds && b->status == ATTUNE_OK; i++) {
        attune_queue *queue = i % 2 && b->other ? b->other : attune_device_queue(b->s->device);
        sends[i % 2] =
            (attune_message){.peer = 1 - b->t.rank, .buffer = b->s->from, .offset = 16 * i + 8 * b->t.rank, .size = 8};
        attune_message receive = {.peer = 1 - b->t.rank, .size = b->size};
        const bool stops = i == b->stops_at;
        b->status = stops && !b->stops_reading ? ATTUNE_IO : b->t.lend(b->t.user, &sends[i % 2], 1, &receive, 1, queue);
        if (b->status == ATTUNE_OK) {
            b->right = b->right && receive.buffer == b->s->from && receive.offset == 16 * i + 8 * (1 - b->t.rank);
            b->status = stops ? ATTUNE_IO : b->t.finish(b->t.user, queue);
        }
    }
    if (b->status != ATTUNE_OK)
        b->t.abort(b->t.user);
    b->t.reclaim(b->t.user);
    return NULL;
}

static void run_borrowers(scene *s, borrower both[2])
{
    attune_device *const devices[2] = {s->device, s->device};
    attune_cuda_peers *peers;
    pthread_t threads[2];
    cr_assert_eq(attune_cuda_peers_create(devices, 2, &peers), ATTUNE_OK, "%s", attune_last_error());
    for (uint32_t r = 0; r < 2; r++) {
        both[r].s = s;
        cr_assert_eq(attune_cuda_peers_transport(peers, r, &both[r].t), ATTUNE_OK);
        cr_assert(both[r].t.lend && both[r].t.reclaim);
    }
    for (uint32_t r = 0; r < 2; r++)
        cr_assert_eq(pthread_create(&threads[r], NULL, run_borrower, &both[r]), 0);
    for (uint32_t r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    attune_cuda_peers_destroy(peers);
}

static borrower rounds_of(uint32_t rounds)
{
    return (borrower){.rounds = rounds, .size = 8, .stops_at = UINT32_MAX};
}

Test(cuda_ranks, lend, .timeout = 60)
{
    scene s = {0};
    scene_open(&s);
    int stream; /* those of the fake driver are all alike */
    attune_queue *second;
    cr_assert_eq(attune_cuda_queue_wrap(s.device, &stream, &second), ATTUNE_OK, "%s", attune_last_error());
    /* In each round two events, and a wait for the other's; at the end reads of both ranks are waited for. */
    borrower both[2] = {rounds_of(5), rounds_of(5)};
    int before = driver->calls;
    run_borrowers(&s, both);
    for (int r = 0; r < 2; r++)
        cr_expect(both[r].status == ATTUNE_OK && both[r].right);
    cr_expect_eq(count_of(before, "cuEventRecord"), 2 * 5 * 2);
    cr_expect_eq(count_of(before, "cuStreamWaitEvent"), 2 * 5);
    cr_expect_eq(count_of(before, "cuEventSynchronize"), 2 * 2);
    cr_expect_eq(count_of(before, "cuMemcpyDtoDAsync"), 0);
    /* A queue that changes waits for what the other one read. */
    both[0] = both[1] = rounds_of(4);
    both[0].other = second;
    before = driver->calls;
    run_borrowers(&s, both);
    cr_expect(both[0].status == ATTUNE_OK && both[1].status == ATTUNE_OK);
    cr_expect_eq(count_of(before, "cuStreamWaitEvent"), 2 * 4 + 3, "%d waits", count_of(before, "cuStreamWaitEvent"));
    /* A rank fails before it lends, while it reads, or borrows what the other does not lend. */
    for (uint32_t i = 0; i < 6; i++) {
        both[0] = both[1] = rounds_of(4);
        both[i % 2].stops_at = i / 2 < 2 ? 2 : UINT32_MAX;
        both[i % 2].stops_reading = i / 2 == 1;
        both[i % 2].size = i / 2 == 2 ? 16 : 8;
        run_borrowers(&s, both);
        cr_expect_eq(both[i % 2].status, i / 2 == 2 ? ATTUNE_INTERNAL : ATTUNE_IO, "fault %u: %d", i,
                     both[i % 2].status);
        cr_expect_eq(both[1 - i % 2].status, ATTUNE_UNAVAILABLE, "fault %u: %d", i, both[1 - i % 2].status);
    }
    attune_cuda_queue_destroy(second);
    scene_close(&s);
}

/* An engine's memory that other devices cannot read is refused before they do. */
Test(cuda_ranks, lend_pool)
{
    scene s = {0};
    attune_cuda_peers *peers;
    attune_transport t;
    attune_buffer *wrapped;
    scene_open(&s);
    cr_assert_eq(attune_cuda_buffer_wrap(s.device, 4096, 64, &wrapped), ATTUNE_OK);
    for (int i = 0; i < 4; i++) {
        attune_buffer *const buffer = i < 3 ? wrapped : s.from;
        const attune_message sends[2] = {{.buffer = buffer, .size = 8}, {.buffer = buffer, .offset = 8, .size = 8}};
        driver->pool = i > 0;
        driver->pool_access = i == 1 ? 3 : 0;
        cr_assert_eq(attune_cuda_peers_create(&s.device, 1, &peers), ATTUNE_OK);
        cr_assert_eq(attune_cuda_peers_transport(peers, 0, &t), ATTUNE_OK);
        const attune_status status = t.lend(t.user, sends, 2, NULL, 0, attune_device_queue(s.device));
        cr_expect_eq(status, i == 2 ? ATTUNE_UNSUPPORTED : ATTUNE_OK, "%d: %d", i, status);
        cr_expect(i != 2 || strstr(attune_last_error(), "memory pool"), "%s", attune_last_error());
        if (status != ATTUNE_OK)
            t.abort(t.user);
        else
            cr_expect_eq(t.finish(t.user, attune_device_queue(s.device)), ATTUNE_OK);
        t.reclaim(t.user);
        attune_cuda_peers_destroy(peers);
    }
    driver->pool = 0;
    attune_buffer_destroy(wrapped);
    scene_close(&s);
}

/* So is memory of cuMemMap without access, also if that of the buffer's end alone has none; it is no pool's. */
Test(cuda_ranks, lend_mapped)
{
    static const struct {
        int mapped, end;
        attune_status status;
    } kinds[] = {
        {0, 0, ATTUNE_OK}, {1, 4096 + 64, ATTUNE_OK}, {1, 4096 + 63, ATTUNE_UNSUPPORTED}, {1, 0, ATTUNE_UNSUPPORTED}};
    scene s = {0};
    attune_cuda_peers *peers;
    attune_transport t;
    attune_buffer *wrapped;
    scene_open(&s);
    attune_queue *queue = attune_device_queue(s.device);
    cr_assert_eq(attune_cuda_buffer_wrap(s.device, 4096, 64, &wrapped), ATTUNE_OK);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const attune_message sends[2] = {{.buffer = s.from, .size = 8}, {.buffer = wrapped, .size = 8}};
        driver->mapped = kinds[i].mapped;
        driver->mapped_end = kinds[i].end;
        cr_assert_eq(attune_cuda_peers_create(&s.device, 1, &peers), ATTUNE_OK);
        cr_assert_eq(attune_cuda_peers_transport(peers, 0, &t), ATTUNE_OK);
        const attune_status status = t.lend(t.user, sends, 2, NULL, 0, queue);
        cr_expect_eq(status, kinds[i].status, "%zu: %d", i, status);
        cr_expect(status == ATTUNE_OK || strstr(attune_last_error(), "cuMemSetAccess"), "%s", attune_last_error());
        if (status != ATTUNE_OK)
            t.abort(t.user);
        else
            cr_expect_eq(t.finish(t.user, queue), ATTUNE_OK);
        t.reclaim(t.user);
        attune_cuda_peers_destroy(peers);
    }
    driver->mapped = 0;
    attune_buffer_destroy(wrapped);
    scene_close(&s);
}

/* Each peer's device is asked for, also behind memory that needs no question. */
Test(cuda_ranks, lend_pool_to_several, .timeout = 60)
{
    scene s = {0};
    attune_cuda_peers *peers;
    attune_transport t;
    attune_buffer *wrapped;
    scene_open(&s);
    attune_device *const devices[2] = {s.device, s.device};
    cr_assert_eq(attune_cuda_buffer_wrap(s.device, 4096, 64, &wrapped), ATTUNE_OK);
    const attune_message sends[3] = {{.peer = 0, .buffer = wrapped, .size = 8},
                                     {.peer = 1, .buffer = s.from, .size = 8},
                                     {.peer = 1, .buffer = wrapped, .size = 8}};
    cr_assert_eq(attune_cuda_peers_create(devices, 2, &peers), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_cuda_peers_transport(peers, 0, &t), ATTUNE_OK);
    driver->pool = 1;
    driver->pool_access = 0;
    driver->pool_grants = 1;
    /* Refused before it meets the other rank, which has no thread here. */
    cr_expect_eq(t.lend(t.user, sends, 3, NULL, 0, attune_device_queue(s.device)), ATTUNE_UNSUPPORTED);
    t.abort(t.user);
    driver->pool = 0;
    attune_cuda_peers_destroy(peers);
    attune_buffer_destroy(wrapped);
    scene_close(&s);
}

/* Each call of the driver fails once in a rank that lends to nobody. */
Test(cuda_ranks, lend_failures)
{
    scene s = {0};
    attune_cuda_peers *peers;
    attune_transport t;
    scene_open(&s);
    attune_queue *queue = attune_device_queue(s.device);
    for (int at = 1; at <= 8; at++) {
        cr_assert_eq(attune_cuda_peers_create(&s.device, 1, &peers), ATTUNE_OK);
        cr_assert_eq(attune_cuda_peers_transport(peers, 0, &t), ATTUNE_OK);
        driver->fail_at = driver->calls + at;
        driver->fail_with = 2;
        attune_status status = t.lend(t.user, NULL, 0, NULL, 0, queue);
        if (status == ATTUNE_OK)
            status = t.finish(t.user, queue);
        driver->fail_at = 0;
        /* Of 8 calls the 3rd, the 5th and the last leave the context. */
        cr_expect_eq(status, at == 3 || at == 5 || at == 8 ? ATTUNE_OK : ATTUNE_OUT_OF_DEVICE_MEMORY, "call %d", at);
        cr_expect_eq(driver->depth, 0, "call %d", at);
        if (status != ATTUNE_OK)
            t.abort(t.user);
        t.reclaim(t.user);
        attune_cuda_peers_destroy(peers);
    }
    scene_close(&s);
}
