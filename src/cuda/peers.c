/* SPDX-License-Identifier: MIT */
/*
 * Copies between the CUDA devices of one process (attune/cuda_ranks.h). The threads of the ranks meet twice in an
 * exchange, for what only the host knows:
 *
 *     exchange   record `ready` in the queue; meet: the messages and `ready` of all ranks are known; copy what this
 *                rank receives, each copy after the sender's `ready`; record `done`
 *     finish     meet: `done` of all ranks is recorded; the queue waits for the own one, and for those of the ranks
 *                that read this rank's memory
 *
 * So `ready` is recorded again only after all ranks have used it, and likewise `done`. Where all devices read each
 * other's memory, ranks also lend it. They meet once:
 *
 *     lend       record `lent` in the queue; meet: what all ranks lend and their `lent` are known; the queue waits for
 *                those of the ranks that lend to this one or borrow from it
 *     finish     record `read` in the queue
 *
 * There are two loans, in turn: once a rank has met the others again, they have used the one before. From lend to
 * finish a rank counts as a reader, for whom an abort waits before it waits for `read`. A rank whose memory is freed
 * waits until all have ended as many loans as it has begun, and then for `read`.
 */
#include <attune/cuda_ranks.h>
#include <attune/threads.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cuda/exchange.h"

/* Of attune_transport: the memory of an H100 has 3.35 TB/s, NVLink 292 GB/s each way (measured), PCIe 5 about 50. A
 * copy on one device reads and writes. */
#define COST_NVLINK 12
#define COST_PCIE   64
#define COST_DEVICE 2

/* Beside that of the messages: a copy of a head's keys takes hardly longer than it takes to start, so that several are
 * to start at a time. Calls with little to copy, as decode's, would wait longer for the streams than for the copies. */
#define FURTHER_STREAMS 3
#define FURTHER_BYTES   (UINT64_C(8) << 20)

/* The messages that a rank lends at a time. */
typedef struct loan {
    const attune_message *sends;
    uint32_t count;
    attune__cu_event lent; /* its work before is done */
} loan;

struct attune_cuda_peers {
    attune_allocator allocator;
    attune_threads threads;
    double byte_cost; /* of the slowest pair */
    bool readable;    /* by every device, the memory of every other */
    struct peer {
        attune_cuda_peers *all;
        attune__cuda_exchange messages;
        attune__cu_stream further[FURTHER_STREAMS];
        attune__cu_event joined[FURTHER_STREAMS]; /* what was enqueued there is done */
        loan loans[2];
        uint64_t begun, ended;     /* loans; with the threads' lock */
        attune_queue *reading;     /* between lend and finish; NULL = not */
        attune__cu_event read;     /* the last reads of others' memory are done ... */
        attune__cu_stream read_on; /* ... and where they were enqueued */
    } ranks[];
};

/* ---------------------------------------------------------------------------------------------------------- copies */

/* The further streams that copy what a rank receives. */
static uint32_t further_streams(const attune_threads_rank *me)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < me->receive_count; i++)
        bytes += me->receives[i].size;
    return bytes < FURTHER_BYTES ? 0 : FURTHER_STREAMS;
}

static attune__cu_stream stream_of(const struct peer *p, uint32_t index)
{
    return index ? p->further[index - 1] : p->messages.stream;
}

/* The further streams wait for what the first one waits for. */
static attune__cu_result fork_streams(const struct peer *p, uint32_t count)
{
    attune__cu_result result = CU_SUCCESS;
    for (uint32_t i = 0; i < count && result == CU_SUCCESS; i++)
        result = p->messages.device->driver.stream_wait(p->further[i], p->messages.ready, 0);
    return result;
}

/* The first stream waits for the others. */
static attune__cu_result join_streams(const struct peer *p, uint32_t count)
{
    const attune__cuda_driver *driver = &p->messages.device->driver;
    attune__cu_result result = CU_SUCCESS;
    for (uint32_t i = 0; i < count && result == CU_SUCCESS; i++) {
        result = driver->event_record(p->joined[i], p->further[i]);
        if (result == CU_SUCCESS)
            result = driver->stream_wait(p->messages.stream, p->joined[i], 0);
    }
    return result;
}

/* Copies what one peer sends to this rank: its n-th message is the n-th that is received from it. */
static attune_status copy_from(const struct peer *mine, uint32_t further, const attune_threads_rank *me,
                               const attune_threads_rank *from)
{
    const attune__cuda_exchange *to = &mine->messages, *source = &mine->all->ranks[from->rank].messages;
    const attune__cuda_driver *driver = &to->device->driver;
    const attune__cu_context context = to->device->context, other = source->device->context;
    attune__cu_result result = CU_SUCCESS;
    uint32_t sent = 0, copied = 0;
    for (uint32_t i = 0; i < me->receive_count && result == CU_SUCCESS; i++) {
        const attune_message *m = &me->receives[i];
        if (m->peer != from->rank)
            continue;
        while (sent < from->send_count && from->sends[sent].peer != me->rank)
            sent++;
        if (sent == from->send_count || from->sends[sent].size != m->size)
            return attune__fail(ATTUNE_INTERNAL, "rank %u receives other messages than rank %u sends", me->rank,
                                from->rank);
        const attune__cu_stream stream = stream_of(mine, copied % (further + 1));
        if (copied++ <= further)
            result = driver->stream_wait(stream, source->ready, 0);
        const attune__cu_pointer at = attune__cuda_message(m), data = attune__cuda_message(&from->sends[sent++]);
        if (result == CU_SUCCESS)
            result = context == other ? driver->copy_on_device(at, data, (size_t)m->size, stream)
                                      : driver->copy_between(at, context, data, other, (size_t)m->size, stream);
    }
    return attune__cuda_check(to->device, result, "a copy between ranks");
}

static attune_status copy_all(const struct peer *mine, const attune_threads_rank *me)
{
    attune_threads *threads = me->group;
    const attune__cuda_exchange *e = &mine->messages;
    if (!attune_threads_enter(threads))
        return ATTUNE_UNAVAILABLE;
    attune_status status = attune__cuda_enter(e->device);
    if (status == ATTUNE_OK) {
        const uint32_t further = further_streams(me);
        status = attune__cuda_check(e->device, fork_streams(mine, further), "the streams of copies");
        for (uint32_t r = 0; r < threads->size && status == ATTUNE_OK; r++)
            if (r != me->rank)
                status = copy_from(mine, further, me, &threads->ranks[r]);
        attune__cu_result result = join_streams(mine, further);
        if (result == CU_SUCCESS)
            result = e->device->driver.event_record(e->done, e->stream);
        if (status == ATTUNE_OK)
            status = attune__cuda_check(e->device, result, "the streams of copies");
        attune__cuda_leave(e->device);
    }
    attune_threads_leave(threads);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- transport */

static attune_threads_rank *rank_of(const struct peer *mine)
{
    return &mine->all->threads.ranks[mine - mine->all->ranks];
}

static attune_status gather(void *user, const void *mine, void *all, size_t size)
{
    return attune_threads_gather(rank_of(user), mine, all, size);
}

static attune_status exchange(void *user, const attune_message *sends, uint32_t send_count,
                              const attune_message *receives, uint32_t receive_count, attune_queue *queue)
{
    const struct peer *mine = user;
    const attune__cuda_exchange *e = &mine->messages;
    attune_threads_rank *me = rank_of(mine);
    ATTUNE__TRY(attune__cuda_enter(e->device));
    const attune_status status = attune__cuda_check(e->device, attune__cuda_exchange_ready(e, queue), "an exchange");
    attune__cuda_leave(e->device);
    ATTUNE__TRY(status);
    ATTUNE__TRY(attune_threads_exchange(me, sends, send_count, receives, receive_count, queue));
    return copy_all(mine, me);
}

/* ---------------------------------------------------------------------------------------------------------- lending */

/* Nothing more is enqueued that reads others' memory. */
static attune_status end_reading(struct peer *mine)
{
    const attune__cuda_exchange *e = &mine->messages;
    attune_threads *threads = &mine->all->threads;
    attune_status status = attune__cuda_enter(e->device);
    if (status == ATTUNE_OK) {
        mine->read_on = ((const attune__cuda_queue *)mine->reading)->stream;
        status = attune__cuda_check(e->device, e->device->driver.event_record(mine->read, mine->read_on),
                                    "the reads of other ranks' memory");
        attune__cuda_leave(e->device);
    }
    mine->reading = NULL;
    pthread_mutex_lock(&threads->lock);
    mine->ended++;
    pthread_mutex_unlock(&threads->lock);
    attune_threads_leave(threads);
    return status;
}

static bool has_peer(const attune_message *messages, uint32_t count, uint32_t peer)
{
    bool found = false;
    for (uint32_t i = 0; i < count; i++)
        found = found || messages[i].peer == peer;
    return found;
}

/* Memory whose access is set for each device, where a device has none. */
typedef enum hidden { READABLE, IN_POOL, MAPPED } hidden;

/* All memory of cuMemAlloc is readable since attune_cuda_peers_create. It has a handle of the first kind for other
 * processes, unlike that of pools and of cuMemMap, as PyTorch's expandable segments. */
static hidden hidden_from(const attune__cuda_driver *driver, attune__cu_pointer at, attune__cu_location *device)
{
    void *pool = NULL;
    uint64_t legacy = 0; /* the driver writes an int or less */
    int access = 0;
    unsigned long long flags = 0;
    if (driver->pointer_attribute(&pool, CU_POINTER_MEMORY_POOL, at) == CU_SUCCESS && pool)
        return driver->pool_access(&access, pool, device) == CU_SUCCESS && !access ? IN_POOL : READABLE;
    if (driver->pointer_attribute(&legacy, CU_POINTER_LEGACY_IPC, at) == CU_SUCCESS && legacy)
        return READABLE;
    return driver->mapped_access(&flags, device, at) == CU_SUCCESS && !flags ? MAPPED : READABLE;
}

/* Fails for memory that a peer's device has no access to. The ends of a buffer may be mapped apart. */
static attune_status check_readable(const struct peer *mine, const attune_message *sends, uint32_t count)
{
    const attune__cuda_driver *driver = &mine->messages.device->driver;
    const attune_buffer *last = NULL;
    uint32_t last_peer = 0; /* that `last` was checked for */
    for (uint32_t i = 0; i < count; i++) {
        attune__cu_location location = {CU_LOCATION_DEVICE, mine->all->ranks[sends[i].peer].messages.device->device};
        if (((const attune__cuda_buffer *)sends[i].buffer)->owned ||
            (sends[i].buffer == last && sends[i].peer == last_peer))
            continue;
        last = sends[i].buffer;
        last_peer = sends[i].peer;
        const attune__cu_pointer at = attune__cuda_pointer(last);
        hidden is = hidden_from(driver, at, &location);
        if (!is)
            is = hidden_from(driver, at + last->size - 1, &location);
        if (is)
            return attune__fail(ATTUNE_UNSUPPORTED,
                                "q, k or v of rank %u is in memory %s that device %d cannot read: set its access "
                                "(%s), wrap memory of cuMemAlloc, or set transport.lend to NULL",
                                (uint32_t)(mine - mine->all->ranks), is == IN_POOL ? "of a memory pool" : "of cuMemMap",
                                location.id, is == IN_POOL ? "cuMemPoolSetAccess" : "cuMemSetAccess");
    }
    return ATTUNE_OK;
}

/* After the queue's work so far, and after reads in another one. */
static attune_status begin_loan(struct peer *mine, const attune_message *sends, uint32_t send_count,
                                attune__cu_stream stream, uint32_t *turn)
{
    const attune__cuda_exchange *e = &mine->messages;
    const attune__cuda_driver *driver = &e->device->driver;
    pthread_mutex_lock(&mine->all->threads.lock);
    *turn = mine->begun++ % 2;
    pthread_mutex_unlock(&mine->all->threads.lock);
    loan *own = &mine->loans[*turn];
    own->sends = sends;
    own->count = send_count;
    ATTUNE__TRY(attune__cuda_enter(e->device));
    attune_status status = check_readable(mine, sends, send_count);
    attune__cu_result result = CU_SUCCESS;
    if (status == ATTUNE_OK && mine->read_on && mine->read_on != stream)
        result = driver->stream_wait(stream, mine->read, 0);
    if (status == ATTUNE_OK && result == CU_SUCCESS)
        result = driver->event_record(own->lent, stream);
    attune__cuda_leave(e->device);
    return status == ATTUNE_OK ? attune__cuda_check(e->device, result, "an event of a loan") : status;
}

/* Finds what is received: the n-th message of a peer is the n-th that it sends to this rank. */
static attune_status find_lent(const struct peer *mine, uint32_t turn, attune_message *receives, uint32_t count)
{
    const attune_cuda_peers *all = mine->all;
    const uint32_t rank = (uint32_t)(mine - all->ranks);
    for (uint32_t i = 0, next = 0; i < count; i++) {
        const loan *theirs = &all->ranks[receives[i].peer].loans[turn];
        next = i && receives[i].peer == receives[i - 1].peer ? next + 1 : 0;
        while (next < theirs->count && theirs->sends[next].peer != rank)
            next++;
        const bool found = next < theirs->count;
        const uint64_t size = found ? theirs->sends[next].size : 0;
        if (!found || size != receives[i].size)
            return attune__fail(ATTUNE_INTERNAL, "rank %u borrows %llu bytes of rank %u, which lends %llu", rank,
                                (unsigned long long)receives[i].size, receives[i].peer, (unsigned long long)size);
        receives[i].buffer = theirs->sends[next].buffer;
        receives[i].offset = theirs->sends[next].offset;
    }
    return ATTUNE_OK;
}

static attune_status lend(void *user, const attune_message *sends, uint32_t send_count, attune_message *receives,
                          uint32_t receive_count, attune_queue *queue)
{
    struct peer *mine = user;
    const attune_cuda_peers *all = mine->all;
    const attune__cuda_exchange *e = &mine->messages;
    const attune__cu_stream stream = ((const attune__cuda_queue *)queue)->stream;
    uint32_t turn;
    ATTUNE__TRY(begin_loan(mine, sends, send_count, stream, &turn));
    ATTUNE__TRY(attune_threads_meet(&mine->all->threads));
    if (!attune_threads_enter(&mine->all->threads))
        return ATTUNE_UNAVAILABLE;
    mine->reading = queue;
    ATTUNE__TRY(find_lent(mine, turn, receives, receive_count));
    ATTUNE__TRY(attune__cuda_enter(e->device));
    attune__cu_result result = CU_SUCCESS;
    for (uint32_t r = 0; r < all->threads.size && result == CU_SUCCESS; r++)
        if (has_peer(sends, send_count, r) || has_peer(receives, receive_count, r))
            result = e->device->driver.stream_wait(stream, all->ranks[r].loans[turn].lent, 0);
    attune__cuda_leave(e->device);
    return attune__cuda_check(e->device, result, "an event of a loan");
}

/* Whether a rank may still read what this one has lent, unless one aborted. */
static bool is_borrowed(const struct peer *mine)
{
    bool may = false;
    for (uint32_t r = 0; r < mine->all->threads.size; r++)
        may = may || mine->all->ranks[r].ended < mine->begun;
    return may && !mine->all->threads.aborted;
}

static void wait_for_reads(const attune_cuda_peers *all)
{
    for (uint32_t r = 0; r < all->threads.size; r++) {
        const attune__cuda_device *device = all->ranks[r].messages.device;
        if (device->driver.context_push(device->context) != CU_SUCCESS)
            continue;
        device->driver.event_synchronize(all->ranks[r].read);
        attune__cuda_leave(all->ranks[r].messages.device);
    }
}

static void reclaim(void *user)
{
    const struct peer *mine = user;
    attune_threads *threads = &mine->all->threads;
    pthread_mutex_lock(&threads->lock);
    while (is_borrowed(mine))
        pthread_cond_wait(&threads->moved, &threads->lock);
    attune_threads_wait_for_readers(threads);
    pthread_mutex_unlock(&threads->lock);
    wait_for_reads(mine->all);
}

static attune_status finish(void *user, attune_queue *queue)
{
    if (((struct peer *)user)->reading)
        return end_reading(user);
    const struct peer *mine = user;
    const attune__cuda_exchange *e = &mine->messages;
    const attune_threads_rank *me = rank_of(mine);
    const attune__cuda_driver *driver = &e->device->driver;
    const attune__cu_stream stream = ((const attune__cuda_queue *)queue)->stream;
    ATTUNE__TRY(attune_threads_meet(me->group));
    ATTUNE__TRY(attune__cuda_enter(e->device));
    attune__cu_result result = driver->stream_wait(stream, e->done, 0);
    for (uint32_t i = 0; i < me->send_count && result == CU_SUCCESS; i++)
        if (!i || me->sends[i].peer != me->sends[i - 1].peer)
            result = driver->stream_wait(stream, mine->all->ranks[me->sends[i].peer].messages.done, 0);
    attune__cuda_leave(e->device);
    return attune__cuda_check(e->device, result, "an exchange");
}

/* Once nobody enqueues copies any more, those that were are waited for: memory of any rank may be freed then. */
static void abort_all(void *user)
{
    struct peer *mine = user;
    const attune_cuda_peers *all = mine->all;
    if (mine->reading)
        (void)end_reading(mine);
    attune_threads_abort(rank_of(user));
    for (uint32_t r = 0; r < all->threads.size; r++) {
        const attune__cuda_exchange *e = &all->ranks[r].messages;
        if (e->device->driver.context_push(e->device->context) != CU_SUCCESS)
            continue;
        for (uint32_t i = 0; i <= FURTHER_STREAMS; i++)
            e->device->driver.stream_synchronize(stream_of(&all->ranks[r], i));
        attune__cuda_leave(e->device);
    }
    wait_for_reads(all);
}

attune_status attune_cuda_peers_transport(attune_cuda_peers *peers, uint32_t rank, attune_transport *transport)
{
    if (!peers || !transport)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is NULL", peers ? "transport" : "peers");
    if (rank >= peers->threads.size)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "rank is %u, expected at most %u", rank, peers->threads.size - 1);
    *transport = (attune_transport){.struct_size = sizeof *transport,
                                    .rank = rank,
                                    .size = peers->threads.size,
                                    .user = &peers->ranks[rank],
                                    .gather = gather,
                                    .exchange = exchange,
                                    .finish = finish,
                                    .abort = abort_all,
                                    .byte_cost = peers->byte_cost,
                                    .lend = peers->readable ? lend : NULL,
                                    .reclaim = peers->readable ? reclaim : NULL};
    return ATTUNE_OK;
}

/* ------------------------------------------------------------------------------------------------------------ group */

/* The cost of a byte between two devices. Atomic operations between devices are NVLink's. */
static attune_status find_cost(attune__cuda_device *a, const attune__cuda_device *b, double *cost)
{
    int atomics = 0;
    *cost = COST_DEVICE;
    if (a->device == b->device)
        return ATTUNE_OK;
    const attune__cu_result result =
        a->driver.device_pair_attribute(&atomics, CU_PAIR_NATIVE_ATOMIC_SUPPORTED, a->device, b->device);
    *cost = atomics ? COST_NVLINK : COST_PCIE;
    return attune__cuda_check(a, result, "cuDeviceGetP2PAttribute");
}

/* Lets the devices of two ranks read each other's memory, if they can. */
static attune_status connect_devices(attune__cuda_device *a, attune__cuda_device *b, bool *readable)
{
    int can = 0;
    if (a->context == b->context || a->device == b->device)
        return ATTUNE_OK;
    attune__cu_result result = a->driver.device_can_access(&can, a->device, b->device);
    *readable = *readable && can;
    if (result != CU_SUCCESS || !can)
        return attune__cuda_check(a, result, "cuDeviceCanAccessPeer");
    ATTUNE__TRY(attune__cuda_enter(a));
    result = a->driver.context_enable_peer(b->context, 0);
    attune__cuda_leave(a);
    return result == CU_PEER_ACCESS_ALREADY_ENABLED ? ATTUNE_OK
                                                    : attune__cuda_check(a, result, "cuCtxEnablePeerAccess");
}

static attune_status make_streams(struct peer *p)
{
    const attune__cuda_driver *driver = &p->messages.device->driver;
    attune__cu_result result = CU_SUCCESS;
    ATTUNE__TRY(attune__cuda_enter(p->messages.device));
    for (uint32_t i = 0; i < FURTHER_STREAMS && result == CU_SUCCESS; i++) {
        result = driver->stream_create(&p->further[i], CU_STREAM_NON_BLOCKING);
        if (result == CU_SUCCESS)
            result = driver->event_create(&p->joined[i], CU_EVENT_DISABLE_TIMING);
    }
    for (int i = 0; i < 2 && result == CU_SUCCESS; i++)
        result = driver->event_create(&p->loans[i].lent, CU_EVENT_DISABLE_TIMING);
    if (result == CU_SUCCESS)
        result = driver->event_create(&p->read, CU_EVENT_DISABLE_TIMING);
    attune__cuda_leave(p->messages.device);
    return attune__cuda_check(p->messages.device, result, "the streams of copies");
}

static void destroy_streams(struct peer *p)
{
    if (!p->messages.device || p->messages.device->driver.context_push(p->messages.device->context) != CU_SUCCESS)
        return;
    const attune__cuda_driver *driver = &p->messages.device->driver;
    for (uint32_t i = 0; i < FURTHER_STREAMS; i++) {
        if (p->further[i]) {
            driver->stream_synchronize(p->further[i]);
            driver->stream_destroy(p->further[i]);
        }
        if (p->joined[i])
            driver->event_destroy(p->joined[i]);
    }
    for (int i = 0; i < 2; i++)
        if (p->loans[i].lent)
            driver->event_destroy(p->loans[i].lent);
    if (p->read)
        driver->event_destroy(p->read);
    attune__cuda_leave(p->messages.device);
}

attune_status attune_cuda_peers_create(attune_device *const *devices, uint32_t count, attune_cuda_peers **peers)
{
    if (!peers)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "peers is NULL");
    *peers = NULL;
    if (!devices || !count || count > ATTUNE_MAX_RANKS)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "devices is %s and count is %u, expected 1 to %d devices",
                            devices ? "set" : "NULL", count, ATTUNE_MAX_RANKS);
    if (!devices[0])
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "devices[0] is NULL");
    const attune_allocator allocator = devices[0]->host.allocator;
    attune_cuda_peers *made = attune__alloc(&allocator, 1, sizeof *made + count * sizeof *made->ranks);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->allocator = allocator;
    made->readable = true;
    attune_status status = attune_threads_init(&made->threads, count);
    if (status != ATTUNE_OK) {
        attune__free(&allocator, made);
        return status;
    }
    for (uint32_t r = 0; r < count && status == ATTUNE_OK; r++) {
        made->ranks[r].all = made;
        status = attune__cuda_exchange_init(devices[r], NULL, &made->ranks[r].messages);
        if (status == ATTUNE_OK)
            status = make_streams(&made->ranks[r]);
        for (uint32_t i = 0; i < r && status == ATTUNE_OK; i++) {
            attune__cuda_device *a = attune__cuda_of(devices[r]), *b = attune__cuda_of(devices[i]);
            double cost = 0;
            status = connect_devices(a, b, &made->readable);
            if (status == ATTUNE_OK)
                status = connect_devices(b, a, &made->readable);
            if (status == ATTUNE_OK)
                status = find_cost(a, b, &cost);
            made->byte_cost = cost > made->byte_cost ? cost : made->byte_cost;
        }
    }
    if (status == ATTUNE_OK)
        *peers = made;
    else
        attune_cuda_peers_destroy(made);
    return status;
}

void attune_cuda_peers_destroy(attune_cuda_peers *peers)
{
    if (!peers)
        return;
    const attune_allocator allocator = peers->allocator;
    for (uint32_t r = 0; r < peers->threads.size; r++) {
        destroy_streams(&peers->ranks[r]);
        attune__cuda_exchange_finish(&peers->ranks[r].messages);
    }
    attune_threads_finish(&peers->threads);
    attune__free(&allocator, peers);
}
