/* SPDX-License-Identifier: MIT */
/* Threads of a CTA as fibers, the order in which they run, warps and barriers. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/model/model.h"

#define STACK_BYTES (256u << 10)
#define IDLE_ROUNDS 100 /* in which all that run read words of global memory again */

cta model_ctas[MODEL_CTAS], *model_cta;
thread *model_now, model_threads[MODEL_THREADS];
const launch *model_launch;
int model_agents, model_readers, model_clock_words;

static unsigned char *stacks;
static void *scheduler;
static bool abandoned;
static int threads; /* of the CTA or cluster */
static named_barrier cluster_barrier;
/* How long asynchronous copies take: drawn for each CTA. */
static enum { COPIES_EARLY, COPIES_BETWEEN, COPIES_LATE } copies_when;

/* ----------------------------------------------------------------------------------------------------------- fibers */

#if !defined(__x86_64__)
#error "the switch of fibers is written for x86-64"
#endif

/* Saves the registers that a function preserves, and continues where `to` was saved. */
void model_switch(void **from, void *to);
__asm__(".text\n"
        ".globl model_switch\n"
        ".hidden model_switch\n"
        ".type model_switch, @function\n"
        "model_switch:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
        "ret\n"
        ".size model_switch, .-model_switch\n");

static void thread_main(void)
{
    const int rank = model_cta->rank;
    model_launch->enter[rank](model_launch->function[rank], model_launch->parameters);
    model_copies_end(model_now);
    model_now->state = THREAD_DONE;
    void *unused;
    model_switch(&unused, scheduler);
    __builtin_unreachable();
}

static void thread_prepare(thread *t)
{
    uint64_t *top = (uint64_t *)(void *)(stacks + (size_t)(t - model_threads + 1) * STACK_BYTES);
    /* After the return into thread_main the stack is as after a call: 8 bytes off a multiple of 16. */
    top -= 1;
    *top = 0;
    *--top = (uint64_t)(uintptr_t)thread_main;
    for (int i = 0; i < 6; i++)
        *--top = 0;
    t->stack_pointer = top;
}

bool model_on_stack(const void *p)
{
    const unsigned char *at = p;
    return at >= stacks && at < stacks + (size_t)MODEL_THREADS * STACK_BYTES;
}

void model_leave(void)
{
    thread *me = model_now;
    model_switch(&me->stack_pointer, scheduler);
}

_Noreturn void model_abandon(void)
{
    abandoned = true;
    void *unused;
    model_switch(&unused, scheduler);
    __builtin_unreachable();
}

/* --------------------------------------------------------------------------------------------------------- schedule */

static uint64_t random_state;

uint64_t model_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

void model_wait(const char *what, void *pc)
{
    model_now->state = THREAD_WAITING;
    model_now->waits_for = what;
    model_now->pc = pc;
    model_leave();
}

static void wait_for_launches(void)
{
    model_now->waited = true;
}

static void spin(void)
{
    model_now->spins = true;
    model_now->waits_for = "a word of global memory that no thread writes";
    model_now->pc = __builtin_return_address(0);
    model_leave();
}

/* Where the threads wait, one line for each place. */
static void report_waiting(void)
{
    char places[2048] = "";
    static bool told[MODEL_THREADS];
    int waiting = 0;
    memset(told, 0, sizeof told);
    for (int i = 0; i < threads; i++) {
        const thread *t = &model_threads[i];
        int alike = 0;
        waiting += t->state != THREAD_DONE;
        if (told[i])
            continue;
        for (int j = i; j < threads; j++) {
            const thread *other = &model_threads[j];
            if (other->state != t->state || (t->state != THREAD_DONE && other->pc != t->pc))
                continue;
            told[j] = true;
            alike++;
        }
        char place[512] = "";
        model_cta = t->cta;
        if (t->state != THREAD_DONE)
            model_place(place, sizeof place, t->pc);
        const size_t length = strlen(places);
        snprintf(places + length, sizeof places - length, "\n  %d threads, the first of them %d, %s%s%s%s", alike, i,
                 t->state != THREAD_DONE ? "wait for " : "have ended", t->state != THREAD_DONE ? t->waits_for : "",
                 *place ? " at " : "", place);
    }
    model_report_end("%d threads wait for others that never come%s", waiting, places);
}

/* A CTA must not end before what is in flight to it. */
static void end_threads(void)
{
    model_now = NULL;
    if (model_bulk_pending())
        model_report_end("%zu asynchronous copies are in flight when the CTA ends", model_bulk_pending());
    model_cta = model_threads[0].cta;
    model_tensor_end();
    for (int i = 0; i < threads / 32 && !model_fault[0]; i++) {
        model_cta = model_threads[i * 32].cta;
        model_wgmma_end(&model_cta->warps[model_threads[i * 32].index / 32]);
    }
}

/* An asynchronous copy, or one of tcgen05's operations, which are complete in the order of their issue. */
static bool complete_one(void)
{
    if (model_tensor_pending() && (!model_bulk_pending() || model_random() >> 32 & 1))
        return model_tensor_complete();
    return model_bulk_complete();
}

static void run_threads(void)
{
    static int ready[MODEL_THREADS];
    for (int idle = 0;;) {
        int count = 0, spinning = 0, done = 0;
        for (int i = 0; i < threads; i++) {
            if (model_threads[i].state == THREAD_READY) {
                ready[count++] = i;
                spinning += model_threads[i].spins;
            }
            done += model_threads[i].state == THREAD_DONE;
        }
        if (abandoned || model_fault[0])
            return;
        if (done == threads) {
            end_threads();
            return;
        }
        idle = spinning == count ? idle + 1 : 0;
        if (idle && complete_one()) {
            idle = 0;
            continue;
        }
        if (!count || idle > IDLE_ROUNDS) {
            abandoned = true;
            report_waiting();
            return;
        }
        /* Those that are ready run in a random order; those that become ready meanwhile are taken in the next round. */
        for (int left = count; left > 0 && !abandoned; left--) {
            const int at = (int)(model_random() % (uint64_t)left);
            model_now = &model_threads[ready[at]];
            model_cta = model_now->cta;
            ready[at] = ready[left - 1];
            model_index *index = model_cta->from->kernel->thread;
            *index = (model_index){(unsigned)model_now->index, 0, 0};
            model_now->spins = false;
            model_switch(&scheduler, model_now->stack_pointer);
            while (copies_when == COPIES_EARLY || (copies_when == COPIES_BETWEEN && !(model_random() % 64)))
                if (!complete_one())
                    break;
        }
    }
}

/* ----------------------------------------------------------------------------------------------------------- clocks */

void model_join(uint32_t *clock, const uint32_t *other)
{
    for (int i = 0; i < model_clock_words; i++)
        clock[i] = other[i] > clock[i] ? other[i] : clock[i];
}

void model_tick(thread *t)
{
    t->clock[t->agent]++;
}

/* fence.proxy.async: what happened before it is ordered before later accesses by the asynchronous proxy. */
static void fence_async(void)
{
    uint32_t *clock = model_now->clock;
    memcpy(clock + model_agents, clock, (size_t)model_agents * sizeof *clock);
}

/* ------------------------------------------------------------------------------------------------------------ warps */

/* setmaxnreg: more registers are waited for until other warps have released them. */
static void set_registers(warp *w, int registers)
{
    static const char what[] = "registers of setmaxnreg";
    if (registers < 24 || registers > 256 || registers % 8)
        model_report(w->pc, "setmaxnreg of %d registers", registers);
    while ((registers - w->registers) * 32 > model_cta->registers)
        model_wait(what, w->pc);
    model_cta->registers -= (registers - w->registers) * 32;
    w->registers = registers;
    for (int i = 0; i < threads; i++)
        if (model_threads[i].state == THREAD_WAITING && model_threads[i].waits_for == what)
            model_threads[i].state = THREAD_READY;
}

/* An instruction with .sync waits until all lanes of its mask execute it; with .aligned these are the whole
 * warp. bar.warp.sync orders the lanes' accesses; the others do not. */
static void collective(model_collective kind, uint32_t mask, void *arguments)
{
    void *pc = __builtin_return_address(0);
    thread *me = model_now;
    warp *w = &model_cta->warps[me->index / 32];
    const int lane = me->index % 32, first = me->index - lane;
    if (!(mask >> lane & 1))
        model_report(pc, "lane %d is not in the mask 0x%08x of its own instruction", lane, mask);
    if (!w->arrived) {
        w->kind = kind;
        w->mask = mask;
        w->pc = pc;
    } else if (w->kind != kind || w->mask != mask) {
        char place[256];
        model_place(place, sizeof place, w->pc);
        model_report(pc,
                     "lane %d executes another collective instruction than lanes 0x%08x of its warp, which are at %s",
                     lane, w->arrived, place);
    }
    w->arguments[lane] = arguments;
    w->arrived |= 1u << lane;
    if (w->arrived != w->mask) {
        model_wait("the other lanes of the warp", pc);
        return;
    }
    w->pc = pc;
    model_execute(w, first);
    if (kind == MODEL_SETMAXNREG)
        set_registers(w, *(const int *)arguments);
    if (kind == MODEL_SYNCWARP) {
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1 && first + i != me->index)
                model_join(me->clock, model_cta->thread[first + i].clock);
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1) {
                thread *t = &model_cta->thread[first + i];
                if (t != me)
                    memcpy(t->clock, me->clock, (size_t)model_clock_words * sizeof *t->clock);
            }
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1)
                model_tick(&model_cta->thread[first + i]);
    }
    w->arrived = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1)
            model_cta->thread[first + i].state = THREAD_READY;
}

/* The barrier is complete once `count` threads have come. */
static int meet(named_barrier *b, int count, int arrive_only, int value, const char *what, void *pc)
{
    thread *me = model_now;
    if (!b->arrived) {
        b->count = count;
        b->value = 0;
        memset(b->member, 0, sizeof b->member);
        memset(b->clock, 0, (size_t)model_clock_words * sizeof *b->clock);
    }
    b->arrived++;
    b->value += value != 0;
    model_join(b->clock, me->clock);
    model_tick(me);
    if (b->arrived < b->count) {
        if (arrive_only)
            return 0;
        b->member[me - model_threads] = true;
        model_wait(what, pc);
        return b->result;
    }
    b->arrived = 0;
    b->result = b->value;
    b->member[me - model_threads] = !arrive_only;
    for (int i = 0; i < threads; i++)
        if (b->member[i]) {
            thread *t = &model_threads[i];
            model_join(t->clock, b->clock);
            t->state = THREAD_READY;
        }
    return b->result;
}

/* bar: the barrier completes once `count` threads have come, and orders what they did before it before what
 * those that wait do after it. */
static int barrier(int number, int count, int arrive_only, int value)
{
    void *pc = __builtin_return_address(0);
    if (number < 0 || number >= MODEL_BARRIERS)
        model_report(pc, "named barrier %d: there are %d", number, MODEL_BARRIERS);
    named_barrier *b = &model_cta->barriers[number];
    count = count ? count : (int)model_launch->dimensions.x;
    if (b->arrived && b->count != count)
        model_report(pc, "named barrier %d is of %d threads here, and of %d where others are", number, count, b->count);
    return meet(b, count, arrive_only, value, "a barrier", pc);
}

/* barrier.cluster, of all threads of the cluster. */
static void cluster_sync(void)
{
    meet(&cluster_barrier, threads, 0, 0, "the barrier of the cluster", __builtin_return_address(0));
}

static uint32_t cluster_rank(void)
{
    return (uint32_t)model_cta->rank;
}

/* ---------------------------------------------------------------------------------------------------------- launches
 */

static uint32_t to_shared(const void *p)
{
    const loaded *l = model_cta->from;
    for (int i = 0; i < l->shared_count; i++) {
        const uintptr_t at = (uintptr_t)p, begin = (uintptr_t)l->shared[i];
        if (at >= begin && at < begin + MODEL_SHARED)
            return (uint32_t)(at - begin);
    }
    model_report(__builtin_return_address(0), "%p is not in shared memory", p);
}

static void *from_shared(uint32_t address)
{
    return model_cta->shared + address;
}

static void load_shared(void *to, uint32_t from, uint32_t size)
{
    void *pc = __builtin_return_address(0);
    model_shared_access(from, size, false, pc);
    memcpy(to, model_shared_bytes(model_cta, from, size, pc), size);
}

static void store_shared(uint32_t to, const void *from, uint32_t size)
{
    void *pc = __builtin_return_address(0);
    model_shared_access(to, size, true, pc);
    memcpy(model_shared_bytes(model_cta, to, size, pc), from, size);
}

static const model_machine machine = {
    .access = model_access,
    .to_shared = to_shared,
    .from_shared = from_shared,
    .load_shared = load_shared,
    .store_shared = store_shared,
    .collective = collective,
    .barrier = barrier,
    .copy_async = model_copy_async,
    .copy_commit = model_copy_commit,
    .copy_wait = model_copy_wait,
    .cluster_rank = cluster_rank,
    .cluster_sync = cluster_sync,
    .fence_async = fence_async,
    .fence_barrier_init = model_fence_barrier_init,
    .barrier_init = model_barrier_init,
    .barrier_arrive = model_barrier_arrive,
    .barrier_expect = model_barrier_expect,
    .barrier_wait = model_barrier_wait,
    .tensor_load = model_tensor_load,
    .bulk_load = model_bulk_load,
    .bulk_add = model_bulk_add,
    .bulk_wait = model_bulk_wait,
    .copy_peer = model_copy_peer,
    .store_peer = model_store_peer,
    .store_cluster = model_store_cluster,
    .load_cluster = model_load_cluster,
    .tensor_fence = model_tensor_fence,
    .tcgen05 = model_tcgen05_issue,
    .tcgen05_copy = model_tcgen05_copy,
    .tcgen05_commit = model_tcgen05_commit,
    .wait_for_launches = wait_for_launches,
    .spin = spin,
    .tensor_store = model_tensor_store,
    .add_vector = model_add_vector,
};

static bool prepare(void)
{
    if (!stacks) {
        void *memory = mmap(NULL, (size_t)MODEL_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        uint32_t *clocks = calloc((size_t)MODEL_THREADS * MODEL_CLOCK_WORDS, sizeof *clocks);
        if (memory == MAP_FAILED || !clocks)
            abort();
        stacks = memory;
        for (int i = 0; i < MODEL_THREADS; i++)
            model_threads[i].clock = clocks + (size_t)i * MODEL_CLOCK_WORDS;
        uint32_t *ordered = calloc((size_t)MODEL_THREADS * MODEL_AGENTS, sizeof *ordered);
        if (!ordered)
            abort();
        for (int i = 0; i < MODEL_THREADS; i++)
            model_threads[i].ordered = ordered + (size_t)i * MODEL_AGENTS;
    }
    return threads > 0 && threads <= MODEL_THREADS;
}

/* The registers that each thread has at first: a CTA that uses setmaxnreg is alone, and has the 65536 of an SM, or what
 * threads have by eights. setmaxnreg moves what there is at the launch. */
static int registers_of(int cta_threads)
{
    const int each = 65536 / cta_threads / 8 * 8;
    return each > 255 ? 255 : each;
}

static void begin_cta(const launch *l, int rank, unsigned number)
{
    cta *c = &model_ctas[rank];
    const int own = (int)l->dimensions.x;
    c->from = rank ? l->from->peer : l->from;
    c->rank = rank;
    c->first_agent = rank * (own + model_readers + MODEL_MBARRIERS);
    c->thread = model_threads + rank * own;
    c->shared = c->from->shared_count ? c->from->shared[0] : NULL;
    c->block = (model_index){number % l->grid.x, number / l->grid.x % l->grid.y, number / l->grid.x / l->grid.y};
    *c->from->kernel->block = c->block;
    *c->from->kernel->machine = machine;
    *c->from->kernel->grid = l->grid;
    *c->from->kernel->dimensions = l->dimensions;
    c->mbarrier_count = c->adders = 0;
    c->registers = 0;
    memset(c->barriers, 0, sizeof c->barriers);
    for (int i = 0; i < MODEL_THREADS / 32; i++) {
        pending_wgmma *pending = c->warps[i].pending;
        memset(&c->warps[i], 0, sizeof c->warps[i]);
        c->warps[i].pending = pending;
        c->warps[i].registers = registers_of(own);
    }
    for (int i = 0; i < own; i++) {
        thread *t = &c->thread[i];
        t->cta = c;
        t->index = i;
        t->agent = c->first_agent + i;
        t->state = THREAD_READY;
        t->copy_count = 0;
        t->groups = t->bulk_groups = 0;
        t->spins = false;
        t->waited = !l->early;
        t->adder = -1;
        t->barrier = NULL;
        memset(t->clock, 0, (size_t)model_clock_words * sizeof *t->clock);
        memset(t->ordered, 0, (size_t)model_agents * sizeof *t->ordered);
        t->transfers = 0;
        t->clock[t->agent] = 1;
        thread_prepare(t);
    }
    model_memory_begin(c);
}

bool model_run(const launch *l)
{
    const char *seed = getenv("ATTUNE_MODEL_SEED");
    random_state = UINT64_C(0x9e3779b97f4a7c15) + (seed ? strtoull(seed, NULL, 0) * UINT64_C(0x2545f4914f6cdd1d) : 0);
    abandoned = false;
    model_fault[0] = '\0';
    model_launch = l;
    threads = (int)l->dimensions.x * l->ctas;
    model_readers = ((int)l->dimensions.x + 31) / 32 + MODEL_ADDERS;
    model_agents = threads + l->ctas * (model_readers + MODEL_MBARRIERS);
    model_clock_words = (model_has_tensor_memory() ? 3 : 2) * model_agents;
    if (!prepare())
        return false;
    const unsigned ctas = l->grid.x * l->grid.y * l->grid.z;
    for (unsigned i = 0; i < ctas && !abandoned; i += (unsigned)l->ctas) {
        copies_when = (model_random() >> 32) % 3;
        memset(&cluster_barrier, 0, sizeof cluster_barrier);
        model_bulk_begin();
        model_tensor_begin();
        for (int rank = 0; rank < l->ctas; rank++)
            begin_cta(l, rank, i + (unsigned)rank);
        run_threads();
    }
    return !model_fault[0];
}
