/* SPDX-License-Identifier: MIT */
/*
 * What accesses may see. For shared memory: FastTrack's happens-before with vector clocks (Flanagan and Freund, 2009),
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
    const loaded *l = model_launch->from;
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
        if (strstr(line, "ptx.cuh") || strstr(line, "builtins.h"))
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
    snprintf(model_fault, sizeof model_fault, "%s, CTA %u, %s%d: %s%s%s", model_launch->kernel, model_cta.block.x,
             model_now ? "thread " : "of threads ", model_now ? model_now->index : model_cta.threads, what,
             pc ? "\n  at " : "", place);
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

/* A vector of clocks that lives as long as the CTA. */
static uint32_t *make_readers(void)
{
    const size_t many = (size_t)model_cta.threads;
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

void model_memory_begin(void)
{
    cta *c = &model_cta;
    if (!c->cells) {
        c->cells = malloc(MODEL_SHARED / 4 * sizeof *c->cells);
        if (!c->cells)
            abort();
    }
    for (size_t i = 0; i < old_count; i++)
        free(old_pools[i]);
    old_count = pool_used = pool_space = 0;
    for (uint32_t i = 0; i < c->shared_size / 4; i++)
        c->cells[i] = (cell){.writer = NOBODY, .reader = NOBODY};
    /* NaN in every type. */
    if (c->shared)
        memset(c->shared, 0xff, c->shared_size);
}

static _Noreturn void report_race(uint32_t address, const char *what, int other, const char *did, void *other_pc,
                                  void *pc)
{
    char place[512];
    model_place(place, sizeof place, other_pc);
    model_report(pc, "%s byte %u of shared memory, which thread %d %s without a barrier between\n  at %s", what,
                 address, other, did, place);
}

/* Whether what a thread did at `clock` happened before what the current one does. */
static bool before(int other, uint32_t clock)
{
    return model_now->clock[other] >= clock;
}

static void check_writer(cell *c, uint32_t at, uint8_t bytes, const char *what, void *pc)
{
    if (c->writer != NOBODY && c->written & bytes && !before(c->writer, c->write_clock))
        report_race(at, what, c->writer, "wrote", c->write_pc, pc);
    if (c->copying)
        model_report(pc, "%s byte %u of shared memory, which a cp.async writes that its thread has not waited for",
                     what, at);
}

static void read_cell(cell *c, uint32_t at, uint8_t bytes, bool copied, void *pc)
{
    thread *me = model_now;
    const uint32_t now = me->clock[me->index];
    check_writer(c, at, bytes, "reads", pc);
    if (!copied && (c->initialised & bytes) != bytes)
        model_report(pc, "reads byte %u of shared memory, which nobody has written", at);
    if (c->reader == MANY) {
        c->readers[me->index] = now;
    } else if (c->reader == NOBODY || c->reader == me->index || before(c->reader, c->read_clock)) {
        c->reader = (uint16_t)me->index;
        c->read_clock = now;
    } else {
        uint32_t *readers = c->readers ? c->readers : make_readers();
        memset(readers, 0, (size_t)model_cta.threads * sizeof *readers);
        readers[c->reader] = c->read_clock;
        readers[me->index] = now;
        c->readers = readers;
        c->reader = MANY;
    }
    c->read_pc = pc;
}

static void check_readers(const cell *c, uint32_t at, void *pc)
{
    if (c->reader == MANY) {
        for (int i = 0; i < model_cta.threads; i++)
            if (!before(i, c->readers[i]))
                report_race(at, "writes", i, "read", c->read_pc, pc);
    } else if (c->reader != NOBODY && !before(c->reader, c->read_clock)) {
        report_race(at, "writes", c->reader, "read", c->read_pc, pc);
    }
}

static void write_cell(cell *c, uint32_t at, uint8_t bytes, void *pc)
{
    thread *me = model_now;
    check_writer(c, at, bytes, "writes", pc);
    check_readers(c, at, pc);
    c->writer = (uint16_t)me->index;
    c->write_clock = me->clock[me->index];
    c->written = bytes;
    c->initialised |= bytes;
    c->write_pc = pc;
    c->reader = NOBODY;
}

unsigned char *model_shared_bytes(uint32_t address, uint32_t size, void *pc)
{
    if (address % size && size <= 16)
        model_report(pc, "address %u of shared memory is no multiple of %u bytes", address, size);
    if (address > model_cta.shared_size || size > model_cta.shared_size - address)
        model_report(pc, "byte %u of shared memory, of which the launch has %u", address + size - 1,
                     model_cta.shared_size);
    return model_cta.shared + address;
}

/* copied: by the kernel's own code, which copies structs of which not every member has a value. */
static void touch(uint32_t address, uint32_t size, bool write, bool copied, void *pc)
{
    for (uint32_t at = address & ~3u; at < address + size; at += 4) {
        uint8_t bytes = 15;
        if (at < address)
            bytes &= (uint8_t)(15 << (address - at));
        if (at + 4 > address + size)
            bytes &= (uint8_t)(15 >> (at + 4 - address - size));
        cell *c = &model_cta.cells[at / 4];
        if (write)
            write_cell(c, at, bytes, pc);
        else
            read_cell(c, at, bytes, copied, pc);
    }
}

void model_shared_access(uint32_t address, uint32_t size, bool write, void *pc)
{
    model_shared_bytes(address, size, pc);
    touch(address, size, write, false, pc);
}

/* A cp.async writes these bytes from now on, until its thread has waited for it. */
void model_copying(uint32_t address, uint32_t size, bool begins, void *pc)
{
    model_shared_bytes(address, size, pc);
    for (uint32_t at = address; at < address + size; at += 4) {
        cell *c = &model_cta.cells[at / 4];
        if (!begins)
            c->copying = 0;
        write_cell(c, at, 15, pc);
        c->copying = begins;
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
    if (block_last < block_count && inside(&blocks[block_last], p, size))
        return;
    for (size_t i = 0; i < block_count; i++)
        if (inside(&blocks[i], p, size)) {
            block_last = i;
            return;
        }
    model_report(pc, "%s %zu bytes at %p, where no buffer is", write ? "writes" : "reads", size, p);
}

void model_access(const void *p, size_t size, int write, void *pc)
{
    const loaded *l = model_launch->from;
    if (model_on_stack(p))
        return;
    const uintptr_t at = (uintptr_t)p;
    for (int i = 0; i < l->shared_count; i++)
        if (at - (uintptr_t)l->shared[i] < MODEL_SHARED) {
            const uint32_t address = (uint32_t)(at - (uintptr_t)l->shared[i]);
            if (address + size > model_cta.shared_size)
                model_report(pc, "%s byte %u of shared memory, of which the launch has %u", write ? "writes" : "reads",
                             address + (uint32_t)size - 1, model_cta.shared_size);
            touch(address, (uint32_t)size, write, true, pc);
            return;
        }
    if (at - l->segment_begin < l->segment_end - l->segment_begin || at - l->tls_begin < l->tls_end - l->tls_begin)
        return;
    model_check_global(p, size, write, pc);
}
