/* SPDX-License-Identifier: MIT */
/* Shared by the parts of the machine. One launch runs at a time, on one thread of the host; its state is global, since
 * the model is a driver of its own that tests load. */
#ifndef TESTS_MODEL_MODEL_H
#define TESTS_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/model/machine.h"

#define MODEL_THREADS  1024 /* of a CTA, at most */
#define MODEL_BARRIERS 16   /* named barriers of a CTA */
#define MODEL_SHARED   232448

typedef enum thread_state { THREAD_READY, THREAD_WAITING, THREAD_DONE } thread_state;

/* A cp.async that the thread has not waited for. */
typedef struct pending_copy {
    uint32_t to, size, valid;
    const void *from;
    void *pc;
    uint64_t group; /* the thread's commit groups before it */
    bool done;      /* it has written its data, though nobody may know */
} pending_copy;

typedef struct thread {
    void *stack_pointer;
    thread_state state;
    int index;
    const char *waits_for; /* for the report */
    void *pc;              /* where it waits */
    uint32_t *clock;       /* of every thread of the CTA: what of theirs happened before */
    pending_copy *copies;
    size_t copy_count, copy_space;
    uint64_t groups; /* committed */
    uint64_t spins;  /* without anything else */
} thread;

/* The lanes of a warp that have come to an instruction which they execute together. */
typedef struct warp {
    uint32_t mask, arrived;
    model_collective kind;
    void *arguments[32];
    void *pc;
} warp;

typedef struct named_barrier {
    int arrived, count, value, result;
    bool member[MODEL_THREADS]; /* it waits here */
    uint32_t clock[MODEL_THREADS];
} named_barrier;

/* What is known of four bytes of shared memory. */
typedef struct cell {
    uint32_t write_clock, read_clock;
    uint16_t writer, reader; /* threads; NOBODY, or reader MANY */
    uint8_t written;         /* bytes, as a mask: those of the last write */
    uint8_t initialised;     /* bytes, as a mask */
    uint8_t copying;         /* a cp.async that nobody has waited for writes it */
    uint32_t *readers;       /* clocks, with MANY */
    void *write_pc, *read_pc;
} cell;

#define NOBODY 0xffff
#define MANY   0xfffe

typedef struct cta {
    int threads;
    thread *thread;
    warp warps[MODEL_THREADS / 32];
    named_barrier barriers[MODEL_BARRIERS];
    unsigned char *shared; /* of the kernel's library: dynamic shared memory */
    uint32_t shared_size;
    cell *cells;
    model_index block;
} cta;

typedef struct loaded {
    void *library, *base;
    char path[512];
    const model_kernel_library *kernel;
    unsigned char *shared[4]; /* arrays that stand for dynamic shared memory: the same bytes on a GPU */
    int shared_count;
    uintptr_t segment_begin, segment_end, tls_begin, tls_end;
} loaded;

typedef struct launch {
    const loaded *from;
    const char *kernel;
    model_index grid, dimensions;
    uint32_t shared;
    void (*enter)(void *function, void **parameters);
    void *function;
    void **parameters;
} launch;

/* machine.c */
extern cta model_cta;
extern thread *model_now;
extern const launch *model_launch;
/* Runs every CTA. False if it found a fault: model_fault says which. */
bool model_run(const launch *l);
uint64_t model_random(void);
/* Switches to another thread until this one is ready. */
void model_wait(const char *what, void *pc);
void model_join(uint32_t *clock, const uint32_t *other);
/* Does not return to the kernel. */
_Noreturn void model_abandon(void);
bool model_on_stack(const void *p);

/* memory.c */
extern char model_fault[4096];
/* Reports what the current thread did at pc; the first report of a launch counts. Does not return. */
_Noreturn void model_report(void *pc, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same of a launch that cannot go on, from outside its threads. */
void model_report_end(const char *format, ...) __attribute__((format(printf, 1, 2)));
void model_access(const void *p, size_t size, int write, void *pc);
/* The bytes at a shared address, after a check of bounds and alignment. */
unsigned char *model_shared_bytes(uint32_t address, uint32_t size, void *pc);
void model_shared_access(uint32_t address, uint32_t size, bool write, void *pc);
void model_check_global(const void *p, size_t size, bool write, void *pc);
void model_copying(uint32_t address, uint32_t size, bool begins, void *pc);
void model_memory_begin(void);
/* Global memory. */
void *model_allocate(size_t size);
void model_release(void *p);
void model_place(char *text, size_t size, void *pc);

/* copies.c */
void model_copy_async(uint32_t to, const void *from, uint32_t size, uint32_t valid);
void model_copy_commit(void);
void model_copy_wait(int pending);
void model_copies_end(thread *t);

/* collectives.c */
void model_execute(warp *w, int first);

#endif
