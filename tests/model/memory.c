/* SPDX-License-Identifier: MIT */
/*
 * Checks of accesses. For shared memory: FastTrack's happens-before with vector clocks (Flanagan and Freund, 2009),
 * by threads and words of four bytes; bytes that nobody has written; copies that nobody has waited for; bounds. For
 * global memory bounds alone.
 */
#define _GNU_SOURCE /* popen */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/model.h"

/* ---------------------------------------------------------------------------------------------------------- reports */

char model_fault[4096];

/* "producer_sm90.cuh:212 in load": the innermost inlined function comes first. */
void model_place(char *text, size_t size, void *pc)
{
    /* Of the libraries of a cluster's CTAs, the one that begins last before it. */
    const loaded *l = model_cta->from;
    for (int i = 0; i < model_launch->ctas; i++) {
        const loaded *other = model_ctas[i].from;
        const bool holds = other && (uintptr_t)other->base <= (uintptr_t)pc;
        if (holds && ((uintptr_t)l->base > (uintptr_t)pc || (uintptr_t)l->base < (uintptr_t)other->base))
            l = other;
    }
    char command[700], line[512];
    snprintf(command, sizeof command, "addr2line -Cfipse '%s' 0x%lx 2>/dev/null", l->path,
             (unsigned long)((uintptr_t)pc - (uintptr_t)l->base - 1));
    size_t length = 0;
    char wrapper[512] = "";
    text[0] = '\0';
    FILE *pipe = popen(command, "r");
    while (pipe && fgets(line, sizeof line, pipe) && length < size) {
        static const char inlined[] = " (inlined by) ";
        char *end = strstr(line, " (discriminator"),
             *begin = line + (strncmp(line, inlined, strlen(inlined)) ? 0 : strlen(inlined));
        line[end ? (size_t)(end - line) : strcspn(line, "\n")] = '\0';
        /* A place in the wrappers says little, but may be all that there is. */
        if (strstr(line, "ptx.cuh") || strstr(line, "wgmma.cuh") || strstr(line, "tcgen05.cuh") ||
            strstr(line, "builtins.h"))
            snprintf(wrapper, sizeof wrapper, "%s", begin);
        else
            length += (size_t)snprintf(text + length, size - length, "%s%s", length ? ", in " : "", begin);
    }
    if (pipe)
        pclose(pipe);
    if (!length)
        snprintf(text, size, "%s", *wrapper ? wrapper : "an unknown place: addr2line is missing");
}

static void write_fault(void *pc, const char *format, va_list list)
{
    char what[3000], place[512] = "";
    vsnprintf(what, sizeof what, format, list);
    if (pc)
        model_place(place, sizeof place, pc);
    snprintf(model_fault, sizeof model_fault, "%s, CTA %u, %s%d: %s%s%s", model_launch->kernel, model_cta->block.x,
             model_now ? "thread " : "of threads ", model_now ? model_now->index : (int)model_launch->dimensions.x,
             what, pc ? "\n  at " : "", place);
    fprintf(stderr, "model: %s\n", model_fault);
}

void model_report_end(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    model_now = NULL;
    write_fault(NULL, format, list);
    va_end(list);
}

_Noreturn void model_report(void *pc, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    write_fault(pc, format, list);
    va_end(list);
    model_abandon();
}

/* --------------------------------------------------------------------------------------------------- shared memory */

static uint32_t *pool;
static size_t pool_used, pool_space;
static uint32_t **old_pools;
static size_t old_count;

/* Clocks that live as long as the CTA. */
static uint32_t *make_clocks(int count)
{
    const size_t many = (size_t)count;
    if (pool_used + many > pool_space) {
        old_pools = realloc(old_pools, (old_count + 1) * sizeof(uint32_t *));
        pool_space = 1u << 20;
        pool = malloc(pool_space * sizeof *pool);
        if (!pool || !old_pools)
            abort();
        old_pools[old_count++] = pool;
        pool_used = 0;
    }
    uint32_t *made = pool + pool_used;
    pool_used += many;
    memset(made, 0, many * sizeof *made);
    return made;
}

/* Shared memory that is not dynamic is in the library's thread-local storage: addresses are those of a kernel that has
 * no other. */
static uint32_t static_shared(const loaded *l)
{
    return l->shared_count ? 0 : (uint32_t)(l->tls_end - l->tls_begin);
}

void model_memory_begin(cta *c)
{
    const uint32_t more = static_shared(c->from), size = more ? more : model_launch->shared;
    if (!c->cells) {
        c->cells = malloc(MODEL_SHARED / 4 * sizeof *c->cells);
        if (!c->cells)
            abort();
    }
    if (!c->rank) {
        for (size_t i = 0; i < old_count; i++)
            free(old_pools[i]);
        old_count = pool_used = pool_space = 0;
    }
    for (uint32_t i = 0; i < (size + 3) / 4; i++)
        c->cells[i] = (cell){.writer = NOBODY, .reader = NOBODY};
    /* NaN in every type. */
    if (c->shared || more)
        memset(more ? (void *)c->from->tls_begin : c->shared, 0xff, size);
}

/* "thread 130", "TMA", ... */
static const char *agent_name(int agent, char *text, size_t size)
{
    const int own = (int)model_launch->dimensions.x, each = own + model_readers + MODEL_MBARRIERS;
    const int rank = agent / each, i = agent % each, warps = model_readers - MODEL_ADDERS;
    const char *peer = rank == model_cta->rank ? "" : " of the cluster's other CTA";
    if (i < own)
        snprintf(text, size, "thread %d%s", i, peer);
    else if (i < own + warps)
        snprintf(text, size, "%s of warp %d%s",
                 model_ctas[rank].warps[i - own].tensor_sequence ? "tcgen05.mma or cp" : "wgmma", i - own, peer);
    else if (i < own + model_readers)
        snprintf(text, size, "a bulk addition or store%s", peer);
    else
        snprintf(text, size, "an asynchronous copy for an mbarrier%s", peer);
    return text;
}

_Noreturn void model_report_finding(const finding *f, const char *what, void *pc)
{
    char place[512] = "", name[64] = "";
    if (f->other_pc)
        model_place(place, sizeof place, f->other_pc);
    if (f->other >= 0)
        agent_name(f->other, name, sizeof name);
    switch (f->kind) {
    case FOUND_WRITE:
    case FOUND_READ:
        model_report(pc, "%s byte %u of shared memory, which %s %s without a barrier between\n  at %s", what,
                     f->address, name, f->kind == FOUND_WRITE ? "wrote" : "read", place);
    case FOUND_UNFENCED:
        model_report(pc,
                     "%s byte %u of shared memory, which %s wrote without a fence of the asynchronous proxy between\n"
                     "  at %s",
                     what, f->address, name, place);
    case FOUND_COPY:
        model_report(pc, "%s byte %u of shared memory, which a cp.async writes that its thread has not waited for",
                     what, f->address);
    case FOUND_BULK:
        model_report(pc, "%s byte %u of shared memory, which an asynchronous copy writes that is in flight\n  from %s",
                     what, f->address, place);
    case FOUND_UNWRITTEN:
    case FOUND_NOTHING:
        break;
    }
    model_report(pc, "%s byte %u of shared memory, which nobody has written", what, f->address);
}

/* An access: by whom, and what of others' happened before. */
typedef struct by {
    const uint32_t *clock;
    int agent; /* NOBODY: it has one of the cells' asynchronous readers */
    bool asynchronous;
    void *pc;
} by;

static bool before(const by *w, int other, uint32_t clock)
{
    return w->clock[other] >= clock;
}

static finding check_writer(const cell *c, uint32_t at, uint8_t bytes, const by *w)
{
    finding f = {.kind = FOUND_NOTHING, .address = at, .other = -1, .other_pc = c->write_pc};
    if (c->copying) {
        f.kind = c->copying == COPYING_ASYNC ? FOUND_COPY : FOUND_BULK;
    } else if (c->writer != NOBODY && c->written & bytes) {
        f.other = c->writer;
        if (!before(w, c->writer, c->write_clock))
            f.kind = FOUND_WRITE;
        else if (w->asynchronous && !c->asynchronous && !before(w, c->writer + model_agents, c->write_clock))
            f.kind = FOUND_UNFENCED;
    }
    return f;
}

static void note_read(cell *c, int agent, uint32_t clock, const uint32_t *known, void *pc)
{
    if (c->reader == MANY) {
        c->readers[agent] = clock;
    } else if (c->reader == NOBODY || c->reader == agent || known[c->reader] >= c->read_clock) {
        c->reader = (uint16_t)agent;
        c->read_clock = clock;
    } else {
        uint32_t *readers = c->readers ? c->readers : make_clocks(model_agents);
        memset(readers, 0, (size_t)model_agents * sizeof *readers);
        readers[c->reader] = c->read_clock;
        readers[agent] = clock;
        c->readers = readers;
        c->reader = MANY;
    }
    c->read_pc = pc;
}

static finding check_readers(const cell *c, uint32_t at, const by *w)
{
    finding f = {.kind = FOUND_NOTHING, .address = at, .other = -1, .other_pc = c->read_pc};
    if (c->reader == MANY) {
        for (int i = 0; i < model_agents && f.other < 0; i++)
            if (!before(w, i, c->readers[i]))
                f.other = i;
    } else if (c->reader != NOBODY && !before(w, c->reader, c->read_clock)) {
        f.other = c->reader;
    }
    for (int j = 0; c->async_readers && f.other < 0 && j < model_launch->ctas * model_readers; j++) {
        cta *of = &model_ctas[j / model_readers];
        const int i = j % model_readers, agent = of->first_agent + (int)model_launch->dimensions.x + i;
        if (before(w, agent, c->async_readers[j]))
            continue;
        const finding own = {.kind = FOUND_WRITE, .address = at, .other = w->agent, .other_pc = w->pc};
        if (i < model_readers - MODEL_ADDERS &&
            !model_wgmma_overwritten(&of->warps[i], c->async_readers[j] - 1, &own, c->async_pc))
            continue;
        f.other = agent;
        f.other_pc = c->async_pc;
    }
    if (f.other >= 0)
        f.kind = FOUND_READ;
    return f;
}

static finding check_write(const cell *c, uint32_t at, uint8_t bytes, const by *w)
{
    const finding f = check_writer(c, at, bytes, w);
    return f.kind ? f : check_readers(c, at, w);
}

static void note_write(cell *c, int agent, uint32_t clock, uint8_t bytes, bool asynchronous, void *pc)
{
    c->writer = (uint16_t)agent;
    c->write_clock = clock;
    c->written = bytes;
    c->initialised |= bytes;
    c->asynchronous = asynchronous;
    c->write_pc = pc;
    c->reader = NOBODY;
}

unsigned char *model_shared_bytes(const cta *c, uint32_t address, uint32_t size, void *pc)
{
    if (address % size && size <= 16)
        model_report(pc, "address %u of shared memory is no multiple of %u bytes", address, size);
    if (address > model_launch->shared || size > model_launch->shared - address)
        model_report(pc, "byte %u of shared memory, of which the launch has %u", address + size - 1,
                     model_launch->shared);
    return c->shared + address;
}

static uint8_t bytes_of(uint32_t at, uint32_t address, uint32_t size)
{
    uint8_t bytes = 15;
    if (at < address)
        bytes &= (uint8_t)(15 << (address - at));
    if (at + 4 > address + size)
        bytes &= (uint8_t)(15 >> (at + 4 - address - size));
    return bytes;
}

/* copied: by the kernel's own code, which copies structs of which not every member has a value. */
static void touch(cta *in, uint32_t address, uint32_t size, bool write, bool copied, void *pc)
{
    const thread *me = model_now;
    const by w = {.clock = me->clock, .agent = me->agent, .pc = pc};
    for (uint32_t at = address & ~3u; at < address + size; at += 4) {
        const uint8_t bytes = bytes_of(at, address, size);
        cell *c = &in->cells[at / 4];
        finding f = write ? check_write(c, at, bytes, &w) : check_writer(c, at, bytes, &w);
        if (!f.kind && !write && !copied && (c->initialised & bytes) != bytes)
            f.kind = FOUND_UNWRITTEN;
        if (f.kind)
            model_report_finding(&f, write ? "writes" : "reads", pc);
        if (write)
            note_write(c, me->agent, me->clock[me->agent], bytes, false, pc);
        else
            note_read(c, me->agent, me->clock[me->agent], me->clock, pc);
    }
}

void model_shared_access(uint32_t address, uint32_t size, bool write, void *pc)
{
    model_shared_bytes(model_cta, address, size, pc);
    touch(model_cta, address, size, write, false, pc);
}

void model_shared_load(cta *from, uint32_t address, uint32_t size, void *pc)
{
    model_shared_bytes(from, address, size, pc);
    touch(from, address, size, false, false, pc);
}

void model_shared_store(cta *to, uint32_t address, uint32_t size, void *pc)
{
    model_shared_bytes(to, address, size, pc);
    touch(to, address, size, true, false, pc);
}

/* A cp.async writes these bytes from now on, until its thread has waited for it. */
void model_copying(uint32_t address, uint32_t size, bool begins, void *pc)
{
    const thread *me = model_now;
    const by w = {.clock = me->clock, .agent = me->agent, .pc = pc};
    model_shared_bytes(model_cta, address, size, pc);
    for (uint32_t at = address; at < address + size; at += 4) {
        cell *c = &model_cta->cells[at / 4];
        if (!begins)
            c->copying = COPYING_NOTHING;
        const finding f = check_write(c, at, 15, &w);
        if (f.kind)
            model_report_finding(&f, "writes", pc);
        note_write(c, me->agent, me->clock[me->agent], 15, false, pc);
        c->copying = begins ? COPYING_ASYNC : COPYING_NOTHING;
    }
}

void model_async_begins(cta *in, uint32_t address, uint32_t size, void *pc)
{
    const by w = {.clock = model_now->clock, .agent = model_now->agent, .asynchronous = true, .pc = pc};
    model_shared_bytes(in, address, size, pc);
    for (uint32_t at = address; at < address + size; at += 4) {
        cell *c = &in->cells[at / 4];
        const finding f = check_write(c, at, 15, &w);
        if (f.kind)
            model_report_finding(&f, "writes", pc);
        c->copying = COPYING_BULK;
        c->write_pc = pc;
    }
}

void model_async_ends(cta *in, uint32_t address, uint32_t size, int agent, uint32_t clock)
{
    for (uint32_t at = address; at < address + size; at += 4) {
        cell *c = &in->cells[at / 4];
        c->copying = COPYING_NOTHING;
        note_write(c, agent, clock, 15, true, c->write_pc);
    }
}

void model_async_read(cta *in, uint32_t address, uint32_t size, int rank, int reader, uint32_t clock,
                      const uint32_t *as, finding *f, void *pc)
{
    const by w = {.clock = as, .agent = NOBODY, .asynchronous = true, .pc = pc};
    for (uint32_t at = address; at < address + size; at += 4) {
        cell *c = &in->cells[at / 4];
        if (!f->kind) {
            *f = check_writer(c, at, 15, &w);
            if (!f->kind && c->initialised != 15)
                f->kind = FOUND_UNWRITTEN;
        }
        if (!c->async_readers)
            c->async_readers = make_clocks(model_launch->ctas * model_readers);
        c->async_readers[rank * model_readers + reader] = clock;
        c->async_pc = pc;
    }
}

void model_peer_read(cta *in, uint32_t address, uint32_t size, int agent, uint32_t clock, void *pc)
{
    const by w = {.clock = model_now->clock, .agent = model_now->agent, .asynchronous = true, .pc = pc};
    for (uint32_t at = address; at < address + size; at += 4) {
        cell *c = &in->cells[at / 4];
        finding f = check_writer(c, at, 15, &w);
        if (!f.kind && c->initialised != 15)
            f.kind = FOUND_UNWRITTEN;
        if (f.kind)
            model_report_finding(&f, "copies", pc);
        note_read(c, agent, clock, w.clock, pc);
    }
}

/* --------------------------------------------------------------------------------------------------- global memory */

typedef struct block {
    unsigned char *begin;
    size_t size;
} block;

static block *blocks;
static size_t block_count, block_space, block_last;

void *model_allocate(size_t size)
{
    if (block_count == block_space) {
        block_space = 2 * block_space + 64;
        blocks = realloc(blocks, block_space * sizeof *blocks);
        if (!blocks)
            abort();
    }
    void *memory = NULL;
    if (posix_memalign(&memory, 256, size))
        return NULL;
    memset(memory, 0xff, size);
    blocks[block_count++] = (block){memory, size};
    return memory;
}

void model_release(void *p)
{
    for (size_t i = 0; i < block_count; i++)
        if (blocks[i].begin == p) {
            blocks[i] = blocks[--block_count];
            break;
        }
    free(p);
}

static bool inside(const block *b, const unsigned char *at, size_t size)
{
    return at >= b->begin && at + size <= b->begin + b->size;
}

void model_check_global(const void *p, size_t size, bool write, void *pc)
{
    if (!model_now->waited)
        model_report(pc, "%s global memory, and has not waited for the launches before", write ? "writes" : "reads");
    if (block_last < block_count && inside(&blocks[block_last], p, size))
        return;
    for (size_t i = 0; i < block_count; i++)
        if (inside(&blocks[i], p, size)) {
            block_last = i;
            return;
        }
    model_report(pc, "%s %zu bytes at %p, where no buffer is", write ? "writes" : "reads", size, p);
}

void model_add_vector(float *to, const float *x, uint32_t count)
{
    void *pc = __builtin_return_address(0);
    if ((uintptr_t)to % (count * sizeof *to))
        model_report(pc, "adds %zu bytes at %p of global memory, which is no multiple of them", count * sizeof *to,
                     (void *)to);
    model_check_global(to, count * sizeof *to, true, pc);
    for (uint32_t i = 0; i < count; i++)
        to[i] += x[i];
}

void model_access(const void *p, size_t size, int write, void *pc)
{
    const loaded *l = model_cta->from;
    if (model_on_stack(p)) {
        warp *w = &model_cta->warps[model_now->index / 32];
        if (w->product_count)
            model_registers_access(w, p, size, write != 0, pc);
        if (model_now->transfers)
            model_tensor_registers(model_now, p, size, pc);
        return;
    }
    const uintptr_t at = (uintptr_t)p;
    for (int i = 0; i < l->shared_count; i++)
        if (at - (uintptr_t)l->shared[i] < MODEL_SHARED) {
            const uint32_t address = (uint32_t)(at - (uintptr_t)l->shared[i]);
            if (address + size > model_launch->shared)
                model_report(pc, "%s byte %u of shared memory, of which the launch has %u", write ? "writes" : "reads",
                             address + (uint32_t)size - 1, model_launch->shared);
            touch(model_cta, address, (uint32_t)size, write, true, pc);
            return;
        }
    if (at - l->tls_begin < static_shared(l)) {
        touch(model_cta, (uint32_t)(at - l->tls_begin), (uint32_t)size, write, true, pc);
        return;
    }
    if (at - l->segment_begin < l->segment_end - l->segment_begin || at - l->tls_begin < l->tls_end - l->tls_begin)
        return;
    model_check_global(p, size, write, pc);
}
