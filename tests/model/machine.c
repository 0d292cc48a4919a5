/* SPDX-License-Identifier: MIT */
/* Threads of a CTA as fibers, the order in which they run, warps and barriers. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/model/model.h"

#define STACK_BYTES (256u << 10)
#define MOST_SPINS  100000

cta model_cta;
thread *model_now;
const launch *model_launch;

static unsigned char *stacks;
static void *scheduler;
static bool abandoned;

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
    model_launch->enter(model_launch->function, model_launch->parameters);
    model_copies_end(model_now);
    model_now->state = THREAD_DONE;
    void *unused;
    model_switch(&unused, scheduler);
    __builtin_unreachable();
}

static void thread_prepare(thread *t)
{
    uint64_t *top = (uint64_t *)(void *)(stacks + (size_t)(t->index + 1) * STACK_BYTES);
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

static void leave(void)
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
    leave();
}

static void spin(void)
{
    if (++model_now->spins > MOST_SPINS)
        model_report(__builtin_return_address(0), "waits for a word of global memory that no thread writes");
    leave();
}

/* Where the threads wait, one line for each place. */
static void report_waiting(void)
{
    char places[2048] = "";
    static bool told[MODEL_THREADS];
    int waiting = 0;
    memset(told, 0, sizeof told);
    for (int i = 0; i < model_cta.threads; i++) {
        const thread *t = &model_cta.thread[i];
        int alike = 0;
        waiting += t->state == THREAD_WAITING;
        if (told[i])
            continue;
        for (int j = i; j < model_cta.threads; j++) {
            const thread *other = &model_cta.thread[j];
            if (other->state != t->state || (t->state == THREAD_WAITING && other->pc != t->pc))
                continue;
            told[j] = true;
            alike++;
        }
        char place[512] = "";
        if (t->state == THREAD_WAITING)
            model_place(place, sizeof place, t->pc);
        const size_t length = strlen(places);
        snprintf(places + length, sizeof places - length, "\n  %d threads, the first of them %d, %s%s%s%s", alike, i,
                 t->state == THREAD_WAITING ? "wait for " : "have ended",
                 t->state == THREAD_WAITING ? t->waits_for : "", *place ? " at " : "", place);
    }
    model_report_end("%d threads wait for others that never come%s", waiting, places);
}

static void run_threads(void)
{
    static int ready[MODEL_THREADS];
    for (;;) {
        int count = 0, done = 0;
        for (int i = 0; i < model_cta.threads; i++) {
            if (model_cta.thread[i].state == THREAD_READY)
                ready[count++] = i;
            done += model_cta.thread[i].state == THREAD_DONE;
        }
        if (done == model_cta.threads || abandoned)
            return;
        if (!count) {
            abandoned = true;
            report_waiting();
            return;
        }
        /* Those that are ready run in a random order; those that become ready meanwhile are taken in the next round. */
        for (int left = count; left > 0 && !abandoned; left--) {
            const int at = (int)(model_random() % (uint64_t)left);
            model_now = &model_cta.thread[ready[at]];
            ready[at] = ready[left - 1];
            model_index *index = model_launch->from->kernel->thread;
            *index = (model_index){(unsigned)model_now->index, 0, 0};
            model_switch(&scheduler, model_now->stack_pointer);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------------- clocks */

void model_join(uint32_t *clock, const uint32_t *other)
{
    for (int i = 0; i < model_cta.threads; i++)
        clock[i] = other[i] > clock[i] ? other[i] : clock[i];
}

static void tick(thread *t)
{
    t->clock[t->index]++;
}

/* ------------------------------------------------------------------------------------------------------------ warps */

/* 9.7.14: an instruction with .sync waits until all lanes of its mask execute it; with .aligned these are the whole
 * warp. 9.7.13.2 bar.warp.sync orders the lanes' accesses; the others do not. */
static void collective(model_collective kind, uint32_t mask, void *arguments)
{
    void *pc = __builtin_return_address(0);
    thread *me = model_now;
    warp *w = &model_cta.warps[me->index / 32];
    const int lane = me->index % 32, first = me->index - lane;
    me->spins = 0;
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
    if (kind == MODEL_SYNCWARP) {
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1 && first + i != me->index)
                model_join(me->clock, model_cta.thread[first + i].clock);
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1) {
                thread *t = &model_cta.thread[first + i];
                if (t != me)
                    memcpy(t->clock, me->clock, (size_t)model_cta.threads * sizeof *t->clock);
            }
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1)
                tick(&model_cta.thread[first + i]);
    }
    w->arrived = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1)
            model_cta.thread[first + i].state = THREAD_READY;
}

/* 9.7.13.1 bar: the barrier completes once `count` threads have come, and orders what they did before it before what
 * those that wait do after it. */
static int barrier(int number, int count, int arrive_only, int value)
{
    void *pc = __builtin_return_address(0);
    thread *me = model_now;
    if (number < 0 || number >= MODEL_BARRIERS)
        model_report(pc, "named barrier %d: there are %d", number, MODEL_BARRIERS);
    named_barrier *b = &model_cta.barriers[number];
    count = count ? count : model_cta.threads;
    me->spins = 0;
    if (!b->arrived) {
        b->count = count;
        b->value = 0;
        memset(b->member, 0, sizeof b->member);
        memset(b->clock, 0, sizeof b->clock);
    } else if (b->count != count) {
        model_report(pc, "named barrier %d is of %d threads here, and of %d where others are", number, count, b->count);
    }
    b->arrived++;
    b->value += value != 0;
    model_join(b->clock, me->clock);
    tick(me);
    if (b->arrived < b->count) {
        if (arrive_only)
            return 0;
        b->member[me->index] = true;
        model_wait("a barrier", pc);
        return b->result;
    }
    b->arrived = 0;
    b->result = b->value;
    b->member[me->index] = !arrive_only;
    for (int i = 0; i < model_cta.threads; i++)
        if (b->member[i]) {
            thread *t = &model_cta.thread[i];
            model_join(t->clock, b->clock);
            t->state = THREAD_READY;
        }
    return b->result;
}

/* ---------------------------------------------------------------------------------------------------------- launches
 */

static uint32_t to_shared(const void *p)
{
    const loaded *l = model_launch->from;
    for (int i = 0; i < l->shared_count; i++) {
        const uintptr_t at = (uintptr_t)p, begin = (uintptr_t)l->shared[i];
        if (at >= begin && at < begin + MODEL_SHARED)
            return (uint32_t)(at - begin);
    }
    model_report(__builtin_return_address(0), "%p is not in shared memory", p);
}

static void *from_shared(uint32_t address)
{
    return model_cta.shared + address;
}

static void load_shared(void *to, uint32_t from, uint32_t size)
{
    void *pc = __builtin_return_address(0);
    model_shared_access(from, size, false, pc);
    memcpy(to, model_shared_bytes(from, size, pc), size);
}

static void store_shared(uint32_t to, const void *from, uint32_t size)
{
    void *pc = __builtin_return_address(0);
    model_shared_access(to, size, true, pc);
    memcpy(model_shared_bytes(to, size, pc), from, size);
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
    .spin = spin,
};

static bool prepare(int threads)
{
    if (!stacks) {
        void *memory = mmap(NULL, (size_t)MODEL_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        model_cta.thread = calloc(MODEL_THREADS, sizeof *model_cta.thread);
        uint32_t *clocks = calloc((size_t)MODEL_THREADS * MODEL_THREADS, sizeof *clocks);
        if (memory == MAP_FAILED || !model_cta.thread || !clocks)
            abort();
        stacks = memory;
        for (int i = 0; i < MODEL_THREADS; i++)
            model_cta.thread[i].clock = clocks + (size_t)i * MODEL_THREADS;
    }
    return threads > 0 && threads <= MODEL_THREADS;
}

static void begin_cta(const launch *l, unsigned number)
{
    cta *c = &model_cta;
    c->threads = (int)l->dimensions.x;
    c->shared_size = l->shared;
    c->shared = l->from->shared_count ? l->from->shared[0] : NULL;
    c->block = (model_index){number % l->grid.x, number / l->grid.x % l->grid.y, number / l->grid.x / l->grid.y};
    *l->from->kernel->block = c->block;
    memset(c->warps, 0, sizeof c->warps);
    memset(c->barriers, 0, sizeof c->barriers);
    for (int i = 0; i < c->threads; i++) {
        thread *t = &c->thread[i];
        t->index = i;
        t->state = THREAD_READY;
        t->copy_count = 0;
        t->groups = t->spins = 0;
        memset(t->clock, 0, (size_t)c->threads * sizeof *t->clock);
        t->clock[i] = 1;
        thread_prepare(t);
    }
    model_memory_begin();
}

bool model_run(const launch *l)
{
    const char *seed = getenv("ATTUNE_MODEL_SEED");
    random_state = UINT64_C(0x9e3779b97f4a7c15) + (seed ? strtoull(seed, NULL, 0) * UINT64_C(0x2545f4914f6cdd1d) : 0);
    abandoned = false;
    model_fault[0] = '\0';
    model_launch = l;
    if (!prepare((int)l->dimensions.x))
        return false;
    *l->from->kernel->machine = machine;
    *l->from->kernel->grid = l->grid;
    *l->from->kernel->dimensions = l->dimensions;
    const unsigned ctas = l->grid.x * l->grid.y * l->grid.z;
    for (unsigned i = 0; i < ctas && !abandoned; i++) {
        begin_cta(l, i);
        run_threads();
    }
    return !model_fault[0];
}
