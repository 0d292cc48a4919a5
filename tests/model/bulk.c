/* SPDX-License-Identifier: MIT */
/*
 * Mbarriers, and the asynchronous copies that signal them or that a thread waits for. A copy is done at once, at a
 * random time, or when nothing else can run: machine.c draws which for each CTA.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/model.h"

/* -------------------------------------------------------------------------------------------------------- mbarriers */

static void check_ordered(const mbarrier *b, const char *what, void *pc)
{
    const thread *me = model_now;
    if (me->clock[b->by] < b->made)
        model_report(pc, "%s the mbarrier at %u, whose initialisation no barrier orders before", what, b->address);
}

static mbarrier *find(cta *c, uint32_t address, const char *what, void *pc)
{
    for (int i = 0; i < c->mbarrier_count; i++)
        if (c->mbarriers[i].address == address)
            return &c->mbarriers[i];
    model_report(pc, "%s the mbarrier at %u, which nobody has initialised", what, address);
}

static mbarrier *known(cta *c, uint32_t address, const char *what, void *pc)
{
    mbarrier *b = find(c, address, what, pc);
    check_ordered(b, what, pc);
    return b;
}

/* mbarrier.init */
void model_barrier_init(uint32_t address, int count)
{
    void *pc = __builtin_return_address(0);
    cta *c = model_cta;
    thread *me = model_now;
    model_shared_bytes(c, address, 8, pc);
    if (count < 1 || count >= 1 << 20)
        model_report(pc, "an mbarrier of %d arrivals", count);
    for (int i = 0; i < c->mbarrier_count; i++)
        if (c->mbarriers[i].address == address)
            model_report(pc, "initialises the mbarrier at %u again", address);
    if (c->mbarrier_count == MODEL_MBARRIERS)
        model_report(pc, "the model has %d mbarriers in a CTA", MODEL_MBARRIERS);
    model_shared_access(address, 8, true, pc);
    mbarrier *b = &c->mbarriers[c->mbarrier_count];
    *b = (mbarrier){.address = address, .count = count, .pending = count, .by = me->agent, .pc = pc};
    b->made = me->clock[me->agent];
    b->agent = c->first_agent + (int)model_launch->dimensions.x + model_readers + c->mbarrier_count++;
}

int model_first_mbarrier(const cta *c)
{
    return c->first_agent + (int)model_launch->dimensions.x + model_readers;
}

/* fence.mbarrier_init: copies and the cluster see this thread's mbarriers. */
void model_fence_barrier_init(void)
{
    for (int i = 0; i < model_cta->mbarrier_count; i++)
        if (model_cta->mbarriers[i].by == model_now->agent)
            model_cta->mbarriers[i].fenced = true;
}

/* "Phase of the mbarrier object": it is complete when no arrivals and no bytes are pending. */
static void complete_phase(mbarrier *b)
{
    if (b->pending || b->bytes)
        return;
    b->phase++;
    b->pending = b->count;
    b->arrived[b->agent] = b->phase;
    memcpy(b->published, b->arrived, (size_t)model_clock_words * sizeof *b->published);
    for (int i = 0; i < MODEL_THREADS; i++)
        if (model_threads[i].barrier == b && model_threads[i].state == THREAD_WAITING)
            model_threads[i].state = THREAD_READY;
}

static void arrive(mbarrier *b, void *pc)
{
    thread *me = model_now;
    if (!b->pending)
        model_report(pc, "arrives at the mbarrier at %u, whose phase waits for bytes only: more than %d arrivals",
                     b->address, b->count);
    b->pending--;
    model_join(b->arrived, me->clock);
    model_tick(me);
    complete_phase(b);
}

/* The CTA that an address of .shared::cluster names, as mapa gives it. */
static cta *owner_of(int at, const char *what, void *pc)
{
    if (at == MODEL_OWN)
        return model_cta;
    if (model_launch->ctas == 1)
        model_report(pc, "%s of another CTA, but is in no cluster", what);
    return &model_ctas[at == MODEL_FIRST ? 0 : model_cta->rank ^ 1];
}

/* mbarrier.arrive, with release. At another CTA's barrier: .shared::cluster. */
void model_barrier_arrive(uint32_t address, int at)
{
    void *pc = __builtin_return_address(0);
    arrive(known(owner_of(at, "arrives at a barrier", pc), address, "arrives at", pc), pc);
}

/* mbarrier.expect_tx */
void model_barrier_expect(uint32_t address, uint32_t bytes, int arrives)
{
    void *pc = __builtin_return_address(0);
    mbarrier *b = known(model_cta, address, "expects bytes at", pc);
    b->bytes += bytes;
    if (b->bytes >= 1 << 20)
        model_report(pc, "the mbarrier at %u expects %lld bytes, which is past its range", address,
                     (long long)b->bytes);
    if (arrives)
        arrive(b, pc);
}

/* mbarrier.try_wait.parity: the phase of this parity is the current one, or the one before it. */
void model_barrier_wait(uint32_t address, uint32_t parity)
{
    void *pc = __builtin_return_address(0);
    thread *me = model_now;
    mbarrier *b = known(model_cta, address, "waits at", pc);
    if (parity > 1)
        model_report(pc, "a phase's parity is %u", parity);
    if (!(model_random() >> 32 & 7))
        model_leave();
    while ((b->phase & 1) == parity) {
        me->barrier = b;
        model_wait(parity ? "an odd phase of an mbarrier" : "an even phase of an mbarrier", pc);
        me->barrier = NULL;
    }
    model_join(me->clock, b->published);
}

void model_barrier_signalled(cta *c, uint32_t address, void *pc)
{
    if (!known(c, address, "signals", pc)->fenced)
        model_report(pc, "signals the mbarrier at %u, which was initialised without a fence.mbarrier_init after it",
                     address);
}

/* The arrival of tcgen05.commit: it publishes the products, and their accesses to tensor memory as if fenced. */
void model_barrier_committed(cta *c, uint32_t address, int agent, uint32_t clock,
                             const uint32_t (*copied)[MODEL_MBARRIERS])
{
    mbarrier *b = find(c, address, "signals", NULL);
    if (!b->pending) {
        model_report_end("tcgen05.commit arrives at the mbarrier at %u: more than %d arrivals", address, b->count);
        return;
    }
    for (int part = 0; part * model_agents < model_clock_words; part++)
        if (b->arrived[part * model_agents + agent] < clock)
            b->arrived[part * model_agents + agent] = clock;
    for (int rank = 0; rank < model_launch->ctas; rank++)
        for (int i = 0; i < MODEL_MBARRIERS; i++) {
            uint32_t *arrived = &b->arrived[model_first_mbarrier(&model_ctas[rank]) + i];
            *arrived = *arrived > copied[rank][i] ? *arrived : copied[rank][i];
        }
    b->pending--;
    complete_phase(b);
}

/* ----------------------------------------------------------------------------------------------------------- copies */

typedef struct bulk_copy {
    enum { COPY_TENSOR, COPY_BULK, COPY_PEER, COPY_WORD, ADD_BULK, STORE_TENSOR } kind;
    cta *to_cta, *from_cta;
    uint32_t to, from, bytes;
    const unsigned char *global;
    float *sums, *values; /* values: of the source, once they have been read */
    mbarrier *barrier;
    const thread *by;
    model_tensor_map map;
    int at[5];
    uint32_t word;
} bulk_copy;

static bulk_copy *copies;
static size_t copy_count, copy_space;

void model_bulk_begin(void)
{
    for (size_t i = 0; i < copy_count; i++)
        free(copies[i].values);
    copy_count = 0;
}

size_t model_bulk_pending(void)
{
    return copy_count;
}

static void push(const bulk_copy *made)
{
    if (copy_count == copy_space) {
        copy_space = 2 * copy_space + 64;
        copies = realloc(copies, copy_space * sizeof *copies);
        if (!copies)
            abort();
    }
    copies[copy_count++] = *made;
}

/* A copy that signals a barrier of a CTA: the destination's bytes are the copy's from now on. */
static void begin(bulk_copy *c, cta *at, uint32_t barrier, void *pc)
{
    c->barrier = known(at, barrier, "signals", pc);
    if (!c->barrier->fenced)
        model_report(pc, "signals the mbarrier at %u, which was initialised without a fence.mbarrier_init after it",
                     barrier);
    c->by = model_now;
    model_async_begins(c->to_cta, c->to, c->bytes, pc);
    push(c);
}

/* "Tensors", "Swizzling Modes": of a tile with the 128-byte swizzle, address bits 4 to 6 are XORed with bits 7 to
 * 9. "Bounding Box": elements outside the tensor are zero. */
static void load_tile(const bulk_copy *c)
{
    const model_tensor_map *m = &c->map;
    for (uint32_t row = 0; row < c->bytes / (m->box[0] * 2); row++) {
        const unsigned char *from = (const unsigned char *)(uintptr_t)m->address;
        bool inside = true;
        for (uint32_t i = 1, rest = row; i < m->rank; rest /= m->box[i++]) {
            const int64_t at = (int64_t)c->at[i] + rest % m->box[i];
            inside = inside && at >= 0 && (uint64_t)at < m->size[i];
            from += inside ? (uint64_t)at * m->stride[i - 1] : 0;
        }
        for (uint32_t column = 0; column < m->box[0]; column++) {
            const int64_t at = (int64_t)c->at[0] + column;
            const uint32_t dense = c->to + (row * m->box[0] + column) * 2;
            unsigned char *to = c->to_cta->shared + (dense ^ (dense >> 7 & 7) << 4);
            if (inside && at >= 0 && (uint64_t)at < m->size[0])
                memcpy(to, from + at * 2, 2);
            else
                memset(to, 0, 2);
        }
    }
}

/* The bytes of a row of a tile that are inside the tensor, and their address. 0: none. */
static uint32_t row_inside(const bulk_copy *c, uint32_t row, unsigned char **address)
{
    const model_tensor_map *m = &c->map;
    const int64_t at[4] = {c->at[0], (int64_t)c->at[1] + row, c->at[2], c->at[3]};
    for (int i = 0; i < 4; i++)
        if (at[i] < 0 || (uint64_t)at[i] >= m->size[i])
            return 0;
    *address = (unsigned char *)(uintptr_t)m->address + (uint64_t)at[0] * 2 + (uint64_t)at[1] * m->stride[0] +
               (uint64_t)at[2] * m->stride[1] + (uint64_t)at[3] * m->stride[2];
    const uint64_t columns = m->size[0] - (uint64_t)at[0];
    return 2 * (columns < m->box[0] ? (uint32_t)columns : m->box[0]);
}

/* Where TMA has 16 bytes of a row of 64 columns, with the 128-byte swizzle. */
static uint32_t swizzled(uint32_t tile, uint32_t row, uint32_t byte)
{
    const uint32_t dense = tile + row * 128 + byte;
    return dense ^ (dense >> 7 & 7) << 4;
}

static void read_values(bulk_copy *c)
{
    c->values = malloc(c->bytes);
    if (!c->values)
        abort();
    memcpy(c->values, c->from_cta->shared + c->from, c->bytes);
}

static void add(bulk_copy *c)
{
    if (!c->values)
        read_values(c);
    for (uint32_t i = 0; i < c->bytes / 4; i++)
        c->sums[i] += c->values[i];
    free(c->values);
}

static void store_tile(bulk_copy *c)
{
    unsigned char *to;
    if (!c->values)
        read_values(c);
    for (uint32_t row = 0; row < c->map.box[1]; row++) {
        const uint32_t bytes = row_inside(c, row, &to);
        for (uint32_t i = 0; i < bytes; i += 2)
            memcpy(to + i, (unsigned char *)c->values + swizzled(c->from, row, i) - c->from, 2);
    }
    free(c->values);
}

static void complete(size_t i)
{
    bulk_copy c = copies[i];
    copies[i] = copies[--copy_count];
    if (c.kind == ADD_BULK || c.kind == STORE_TENSOR) {
        (c.kind == ADD_BULK ? add : store_tile)(&c);
        return;
    }
    unsigned char *to = c.to_cta->shared + c.to;
    switch (c.kind) {
    case COPY_TENSOR:
        load_tile(&c);
        break;
    case COPY_BULK:
        memcpy(to, c.global, c.bytes);
        break;
    case COPY_PEER:
        memcpy(to, c.from_cta->shared + c.from, c.bytes);
        break;
    case COPY_WORD:
        memcpy(to, &c.word, sizeof c.word);
        break;
    case ADD_BULK:
    case STORE_TENSOR:
        break;
    }
    model_async_ends(c.to_cta, c.to, c.bytes, c.barrier->agent, c.barrier->phase + 1);
    c.barrier->bytes -= c.bytes;
    complete_phase(c.barrier);
}

bool model_bulk_complete(void)
{
    if (!copy_count)
        return false;
    complete((model_random() >> 32) % copy_count);
    return true;
}

/* cp.async.bulk.tensor. With .cta_group::2 the barrier may be of the pair's other CTA. */
void model_tensor_load(uint32_t to, const void *map, uint32_t barrier, int barrier_at, const int *at)
{
    void *pc = __builtin_return_address(0);
    bulk_copy c = {.kind = COPY_TENSOR, .to_cta = model_cta, .to = to};
    memcpy(&c.map, map, sizeof c.map);
    if (c.map.magic != MODEL_TENSOR_MAP || (uintptr_t)map % 64)
        model_report(pc, "%p is no tensor map", map);
    memcpy(c.at, at, c.map.rank * sizeof *at);
    if (to % 128)
        model_report(pc, "a tile at byte %u of shared memory, which is no multiple of 128", to);
    c.bytes = 2;
    for (uint32_t i = 0; i < c.map.rank; i++)
        c.bytes *= c.map.box[i];
    model_check_global((const void *)(uintptr_t)c.map.address, 16, false, pc);
    begin(&c, owner_of(barrier_at, "signals a barrier", pc), barrier, pc);
}

/* cp.async.bulk */
void model_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    void *pc = __builtin_return_address(0);
    bulk_copy c = {.kind = COPY_BULK, .to_cta = model_cta, .to = to, .bytes = bytes, .global = from};
    if (to % 16 || (uintptr_t)from % 16 || bytes % 16)
        model_report(pc, "a bulk copy of %u bytes from %p to byte %u, which are not multiples of 16", bytes, from, to);
    model_check_global(from, bytes, false, pc);
    begin(&c, model_cta, barrier, pc);
}

/* The thread's place among those that read shared memory asynchronously. */
static int adder_of(thread *t, void *pc)
{
    if (t->adder >= 0)
        return t->adder;
    if (t->cta->adders == MODEL_ADDERS)
        model_report(pc, "the model has %d threads of a CTA that make bulk additions or stores", MODEL_ADDERS);
    return t->adder = model_readers - MODEL_ADDERS + t->cta->adders++;
}

/* cp.async.bulk.tensor to global memory, and its commit_group: of a tile of rows of 64 columns */
void model_tensor_store(const void *map, uint32_t from, const int *at)
{
    void *pc = __builtin_return_address(0);
    thread *me = model_now;
    bulk_copy c = {.kind = STORE_TENSOR, .from_cta = model_cta, .from = from, .by = me};
    memcpy(&c.map, map, sizeof c.map);
    if (c.map.magic != MODEL_TENSOR_MAP || (uintptr_t)map % 64)
        model_report(pc, "%p is no tensor map", map);
    memcpy(c.at, at, c.map.rank * sizeof *at);
    if (from % 128)
        model_report(pc, "a tile at byte %u of shared memory, which is no multiple of 128", from);
    if (c.map.rank != 4 || c.map.box[2] != 1 || c.map.box[3] != 1)
        model_report(pc, "the model stores boxes of one head and batch");
    c.bytes = c.map.box[0] * c.map.box[1] * 2;
    model_shared_bytes(model_cta, from, c.bytes, pc);
    const int adder = adder_of(me, pc);
    finding f = {.kind = FOUND_NOTHING};
    me->bulk_groups++;
    for (uint32_t row = 0; row < c.map.box[1]; row++) {
        unsigned char *to;
        const uint32_t bytes = row_inside(&c, row, &to);
        if (bytes)
            model_check_global(to, bytes, true, pc);
        for (uint32_t i = 0; i < bytes; i += 16)
            model_async_read(model_cta, swizzled(from, row, i), bytes - i < 16 ? bytes - i : 16, model_cta->rank, adder,
                             me->bulk_groups, me->clock, &f, pc);
    }
    if (f.kind)
        model_report_finding(&f, "stores", pc);
    push(&c);
}

/* cp.reduce.async.bulk, and its commit_group */
void model_bulk_add(float *to, uint32_t from, uint32_t bytes)
{
    void *pc = __builtin_return_address(0);
    thread *me = model_now;
    cta *c = model_cta;
    if (from % 16 || (uintptr_t)to % 16 || bytes % 16)
        model_report(pc, "a bulk addition of %u bytes from byte %u to %p, which are not multiples of 16", bytes, from,
                     (void *)to);
    model_check_global(to, bytes, true, pc);
    model_shared_bytes(c, from, bytes, pc);
    finding f = {.kind = FOUND_NOTHING};
    model_async_read(c, from, bytes, c->rank, adder_of(me, pc), ++me->bulk_groups, me->clock, &f, pc);
    if (f.kind)
        model_report_finding(&f, "adds", pc);
    push(&(bulk_copy){.kind = ADD_BULK, .from_cta = c, .from = from, .bytes = bytes, .sums = to, .by = me});
}

/* cp.async.bulk.wait_group 0 */
void model_bulk_wait(int read_only)
{
    thread *me = model_now;
    for (size_t i = copy_count; i-- > 0;) {
        bulk_copy *c = &copies[i];
        if (c->by != me || (c->kind != ADD_BULK && c->kind != STORE_TENSOR))
            continue;
        if (read_only && !c->values)
            read_values(c);
        else if (!read_only)
            complete(i);
    }
    if (me->adder >= 0)
        me->clock[me->cta->first_agent + (int)model_launch->dimensions.x + me->adder] = me->bulk_groups;
}

/* --------------------------------------------------------------------------------------------------------- clusters */

static cta *peer_of(void *pc)
{
    return owner_of(MODEL_PEER, "writes to shared memory", pc);
}

/* cp.async.bulk from shared::cta to shared::cluster */
void model_copy_peer(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier)
{
    void *pc = __builtin_return_address(0);
    bulk_copy c = {
        .kind = COPY_PEER, .to_cta = peer_of(pc), .from_cta = model_cta, .to = to, .from = from, .bytes = bytes};
    if (to % 16 || from % 16 || bytes % 16)
        model_report(pc, "a bulk copy of %u bytes from byte %u to byte %u, which are not multiples of 16", bytes, from,
                     to);
    model_shared_bytes(model_cta, from, bytes, pc);
    begin(&c, c.to_cta, barrier, pc);
    const mbarrier *b = copies[copy_count - 1].barrier;
    model_peer_read(model_cta, from, bytes, b->agent, b->phase + 1, pc);
}

/* st.async */
void model_store_peer(uint32_t to, uint32_t value, uint32_t barrier)
{
    void *pc = __builtin_return_address(0);
    bulk_copy c = {.kind = COPY_WORD, .to_cta = peer_of(pc), .to = to, .bytes = 4, .word = value};
    begin(&c, c.to_cta, barrier, pc);
}

/* st.shared::cluster: a generic store, which barriers between the CTAs order. */
void model_store_cluster(uint32_t to, const void *from, uint32_t size)
{
    void *pc = __builtin_return_address(0);
    cta *peer = peer_of(pc);
    model_shared_store(peer, to, size, pc);
    memcpy(model_shared_bytes(peer, to, size, pc), from, size);
}

/* Its shared memory is there for as long as any of its threads. */
static bool has_ended(const cta *of)
{
    for (int i = 0; i < (int)model_launch->dimensions.x * model_launch->ctas; i++)
        if (model_threads[i].cta == of && model_threads[i].state != THREAD_DONE)
            return false;
    return true;
}

/* ld.shared::cluster, likewise */
void model_load_cluster(void *to, uint32_t from, uint32_t size, uint32_t rank)
{
    void *pc = __builtin_return_address(0);
    if (rank >= (uint32_t)model_launch->ctas)
        model_report(pc, "reads shared memory of rank %u in a cluster of %d", rank, model_launch->ctas);
    cta *owner = &model_ctas[rank];
    if (has_ended(owner))
        model_report(pc, "reads shared memory of rank %u, which has ended", rank);
    model_shared_load(owner, from, size, pc);
    memcpy(to, model_shared_bytes(owner, from, size, pc), size);
}
