/* SPDX-License-Identifier: MIT */
/* Shared by the parts of the machine. One launch runs at a time, on one thread of the host; its state is global, since
 * the model is a driver of its own that tests load. */
#ifndef TESTS_MODEL_MODEL_H
#define TESTS_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/model/machine.h"

#define MODEL_THREADS   1024 /* of a CTA or cluster, at most */
#define MODEL_BARRIERS  16   /* named barriers of a CTA */
#define MODEL_SHARED    232448
#define MODEL_CTAS      2  /* of a cluster, at most */
#define MODEL_MBARRIERS 64 /* of a CTA, at most */
#define MODEL_ADDERS    8  /* threads of a CTA that make bulk additions or stores, at most */
#define MODEL_READERS   (MODEL_THREADS / 32 + MODEL_ADDERS)

/*
 * Each agent of a CTA has a clock: first its threads; then those that read shared memory asynchronously, the warps'
 * wgmmas or tcgen05.mmas and cps and the threads' bulk additions; then its mbarriers, in whose name TMA writes. A
 * vector of clocks has those of all CTAs of the cluster, then the same of what generic stores are ordered before the
 * asynchronous proxy, and on devices with tensor memory of what tcgen05.fence::before_thread_sync has ordered.
 */
#define MODEL_AGENTS      (MODEL_THREADS + MODEL_CTAS * (MODEL_READERS + MODEL_MBARRIERS))
#define MODEL_CLOCK_WORDS (3 * MODEL_AGENTS)

typedef enum thread_state { THREAD_READY, THREAD_WAITING, THREAD_DONE } thread_state;

/* A cp.async that the thread has not waited for. */
typedef struct pending_copy {
    uint32_t to, size, valid;
    const void *from;
    void *pc;
    uint64_t group; /* the thread's commit groups before it */
    bool done;      /* it has written its data, though nobody may know */
} pending_copy;

typedef struct cta cta;

typedef struct thread {
    void *stack_pointer;
    thread_state state;
    cta *cta;
    int index, agent;      /* in its CTA; of all */
    const char *waits_for; /* for the report */
    void *pc;              /* where it waits */
    uint32_t *clock;       /* of every agent: what of theirs happened before */
    uint32_t *ordered;     /* of every agent: what of theirs its tcgen05 instructions come after */
    const void *barrier;   /* the mbarrier for which it waits */
    pending_copy *copies;
    size_t copy_count, copy_space;
    uint64_t groups; /* committed */
    bool spins;      /* it reads a word of global memory again */
    bool waited;     /* for the launches before its own */
    int adder;       /* of its bulk additions, or -1 */
    uint32_t bulk_groups;
    uint32_t transfers; /* tcgen05.ld and st that it has not waited for */
} thread;

/* A fault of an access. */
typedef struct finding {
    enum { FOUND_NOTHING, FOUND_WRITE, FOUND_READ, FOUND_COPY, FOUND_BULK, FOUND_UNFENCED, FOUND_UNWRITTEN } kind;
    uint32_t address;
    int other; /* agent */
    void *other_pc;
} finding;

/* The accumulators that a warp's wgmmas of one d have written. A product of operands that were not there, or were
 * overwritten, is a fault only when it is used. */
#define MODEL_PRODUCTS 12
typedef struct product {
    float *d[32];
    uint32_t count;            /* accumulators of a thread */
    uint32_t first, last;      /* groups that contribute */
    bool live, used, modified; /* modified: by the kernel's own code, since the last wgmma.fence */
    finding fault;
    const char *what; /* the fault's verb */
    void *pc, *fault_pc;
} product;

typedef struct pending_wgmma {
    model_wgmma lane[32];
    uint32_t group;
    product *into;
    void *pc;
} pending_wgmma;

/* The lanes of a warp that have come to an instruction which they execute together. */
typedef struct warp {
    uint32_t mask, arrived;
    model_collective kind;
    void *arguments[32];
    void *pc;
    /* wgmma */
    pending_wgmma *pending;
    uint32_t pending_count, done_count; /* done: those that have been computed */
    uint32_t group, waited;             /* groups committed, and waited for */
    product products[MODEL_PRODUCTS];
    uint32_t product_count;
    uint64_t issued, sequence; /* wgmmas, and a hash of them */
    int registers;             /* setmaxnreg's */
    uint32_t tensor_sequence;  /* tcgen05.mmas and cps */
    int tensor_thread;         /* that issues them */
    uint8_t unused[1024];      /* of groups, as a ring of bits: the product was dropped without having been used */
} warp;

typedef struct named_barrier {
    int arrived, count, value, result;
    bool member[MODEL_THREADS]; /* it waits here */
    uint32_t clock[MODEL_CLOCK_WORDS];
} named_barrier;

typedef struct mbarrier {
    uint32_t address, phase;
    int count, pending, agent, by; /* by: the agent that initialised it, at `made` */
    uint32_t made;
    int64_t bytes;
    bool fenced;
    void *pc;
    uint32_t arrived[MODEL_CLOCK_WORDS], published[MODEL_CLOCK_WORDS];
} mbarrier;

/* The state of four bytes of shared memory. */
typedef struct cell {
    uint32_t write_clock, read_clock;
    uint16_t writer, reader; /* agents; NOBODY, or reader MANY */
    uint8_t written;         /* bytes, as a mask: those of the last write */
    uint8_t initialised;     /* bytes, as a mask */
    uint8_t copying;         /* a COPYING_... that nobody has waited for writes it */
    bool asynchronous;       /* the last write was by the asynchronous proxy */
    uint32_t *readers;       /* clocks, with MANY */
    uint32_t *async_readers; /* clocks of the asynchronous readers of the cluster's CTAs, or NULL */
    void *write_pc, *read_pc, *async_pc;
} cell;

#define NOBODY 0xffff
#define MANY   0xfffe
enum { COPYING_NOTHING, COPYING_ASYNC, COPYING_BULK };

typedef struct loaded {
    struct loaded *peer; /* a second copy, for the other CTA of a cluster */
    void *library, *base;
    char path[512];
    const model_kernel_library *kernel;
    unsigned char *shared[4]; /* arrays that stand for dynamic shared memory: the same bytes on a GPU */
    int shared_count;
    uintptr_t segment_begin, segment_end, tls_begin, tls_end;
} loaded;

struct cta {
    const loaded *from;
    int rank, first_agent;
    thread *thread; /* its own */
    warp warps[MODEL_THREADS / 32];
    named_barrier barriers[MODEL_BARRIERS];
    mbarrier mbarriers[MODEL_MBARRIERS];
    int mbarrier_count, adders;
    int registers;         /* that no warp has */
    unsigned char *shared; /* of the kernel's library: dynamic shared memory */
    cell *cells;
    model_index block;
};

typedef struct launch {
    const loaded *from;
    const char *kernel;
    model_index grid, dimensions;
    uint32_t shared;
    int ctas;   /* of a cluster */
    bool early; /* it may begin before those before it have ended */
    void (*enter[MODEL_CTAS])(void *function, void **parameters);
    void *function[MODEL_CTAS];
    void **parameters;
} launch;

/* machine.c */
extern cta model_ctas[MODEL_CTAS];
extern cta *model_cta;    /* of the thread that runs */
extern thread *model_now; /* it */
extern thread model_threads[MODEL_THREADS];
extern const launch *model_launch;
extern int model_agents, model_readers; /* of the cluster; asynchronous readers of a CTA */
extern int model_clock_words;           /* of a vector of clocks */
/* Runs every CTA. False if it found a fault: model_fault says which. */
bool model_run(const launch *l);
uint64_t model_random(void);
/* Switches to another thread until this one is ready. */
void model_wait(const char *what, void *pc);
/* Lets others run. */
void model_leave(void);
void model_join(uint32_t *clock, const uint32_t *other);
void model_tick(thread *t);
/* Does not return to the kernel. */
_Noreturn void model_abandon(void);
bool model_on_stack(const void *p);

/* driver.c */
bool model_has_tensor_memory(void);

/* memory.c */
extern char model_fault[4096];
/* Reports what the current thread did at pc; the first report of a launch counts. Does not return. */
_Noreturn void model_report(void *pc, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same of a launch that cannot go on, from outside its threads. */
void model_report_end(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* what: "reads" or "writes". */
_Noreturn void model_report_finding(const finding *f, const char *what, void *pc);
void model_access(const void *p, size_t size, int write, void *pc);
/* The bytes at a shared address of a CTA, after a check of bounds and alignment. */
unsigned char *model_shared_bytes(const cta *c, uint32_t address, uint32_t size, void *pc);
void model_shared_access(uint32_t address, uint32_t size, bool write, void *pc);
/* A load from a CTA's shared memory, or a store to it, which may be the peer's. */
void model_shared_load(cta *from, uint32_t address, uint32_t size, void *pc);
void model_shared_store(cta *to, uint32_t address, uint32_t size, void *pc);
void model_check_global(const void *p, size_t size, bool write, void *pc);
void model_add_vector(float *to, const float *x, uint32_t count);
/* A COPYING_... begins or ends. */
void model_copying(uint32_t address, uint32_t size, bool begins, void *pc);
/* A copy by the asynchronous proxy will write these bytes; it has written them, in the name of an agent. */
void model_async_begins(cta *c, uint32_t address, uint32_t size, void *pc);
void model_async_ends(cta *c, uint32_t address, uint32_t size, int agent, uint32_t clock);
/* The asynchronous proxy reads these bytes, as reader `reader` of a CTA of rank `rank`, which completes at `clock`; who
 * may know what they are is `as`. The first fault is in *f. */
void model_async_read(cta *c, uint32_t address, uint32_t size, int rank, int reader, uint32_t clock, const uint32_t *as,
                      finding *f, void *pc);
/* A copy to the peer reads these bytes, until the phase `clock` of the mbarrier of that agent. */
void model_peer_read(cta *c, uint32_t address, uint32_t size, int agent, uint32_t clock, void *pc);
void model_memory_begin(cta *c);
/* Global memory. */
void *model_allocate(size_t size);
void model_release(void *p);
void model_place(char *text, size_t size, void *pc);

/* copies.c */
void model_copy_async(uint32_t to, const void *from, uint32_t size, uint32_t valid);
void model_copy_commit(void);
void model_copy_wait(int pending);
void model_copies_end(thread *t);

/* bulk.c: mbarriers and the copies that signal them */
typedef struct model_tensor_map {
    uint64_t magic, address, size[5], stride[4];
    uint32_t rank, box[5];
} model_tensor_map;
#define MODEL_TENSOR_MAP UINT64_C(0x6d6f64656c746d61)
void model_barrier_init(uint32_t address, int count);
void model_fence_barrier_init(void);
void model_barrier_arrive(uint32_t address, int at);
void model_barrier_expect(uint32_t address, uint32_t bytes, int arrives);
void model_barrier_wait(uint32_t address, uint32_t parity);
void model_tensor_load(uint32_t to, const void *map, uint32_t barrier, int barrier_at, const int *at);
void model_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
void model_bulk_add(float *to, uint32_t from, uint32_t bytes);
void model_bulk_wait(int read_only);
void model_tensor_store(const void *map, uint32_t from, const int *at);
void model_copy_peer(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier);
void model_store_peer(uint32_t to, uint32_t value, uint32_t barrier);
void model_store_cluster(uint32_t to, const void *from, uint32_t size);
void model_load_cluster(void *to, uint32_t from, uint32_t size, uint32_t rank);
/* tcgen05.commit names a barrier of a CTA; later it arrives there, with the clock of an agent and those of the
 * cluster's mbarriers. */
void model_barrier_signalled(cta *c, uint32_t address, void *pc);
void model_barrier_committed(cta *c, uint32_t address, int agent, uint32_t clock,
                             const uint32_t (*copied)[MODEL_MBARRIERS]);
/* The agent of a CTA's first mbarrier. */
int model_first_mbarrier(const cta *c);
void model_bulk_begin(void);
/* Completes one of the copies in flight. False if there are none. */
bool model_bulk_complete(void);
size_t model_bulk_pending(void);

/* wgmma.c */
/* An operand in shared memory, "Matrix Descriptor Format", in bytes. */
typedef struct model_operand {
    uint32_t start, leading, stride;
} model_operand;
model_operand model_operand_of(uint64_t descriptor);
/* Row (or column of B) i and k. */
float model_operand_element(const cta *in, const model_operand *o, bool k_major, int i, int k, bool brain);
/* Marks rows (or columns of B), of 16 k, of a CTA's shared memory as read; arguments as of model_async_read. */
void model_operand_read(cta *in, int rank, int reader, const model_operand *o, bool k_major, int first, int count,
                        uint32_t clock, const uint32_t *as, finding *f, void *pc);
void model_wgmma_issue(warp *w, int first);
void model_wgmma_fence(warp *w);
void model_wgmma_commit(warp *w);
void model_wgmma_wait(warp *w, int first);
void model_wgmma_end(warp *w);
/* The kernel's own code reads or writes what may be accumulators or operands of its warp's wgmmas. */
void model_registers_access(warp *w, const void *p, size_t size, bool write, void *pc);
/* The bytes that the warp's group read are overwritten without order. Whether its result has been used; if not, it must
 * not be from now on. */
bool model_wgmma_overwritten(warp *w, uint32_t group, const finding *f, void *pc);

/* tensor.c: tensor memory and tcgen05 */
void model_tensor_begin(void);
void model_tensor_end(void);
void model_tensor_allocation(warp *w, int first);
void model_tensor_transfer(warp *w, int first);
void model_tensor_wait(const warp *w, int first);
void model_tensor_fence(int after);
void model_tcgen05_issue(const model_tcgen05 *m);
void model_tcgen05_copy(const model_tensor_copy *c);
void model_tcgen05_commit(uint32_t barrier, int ctas, uint32_t mask);
/* The kernel's own code uses what may be registers of a load in flight. */
void model_tensor_registers(const thread *t, const void *at, size_t size, void *pc);
/* Completes the oldest product, copy or commit in flight. False if there are none. */
bool model_tensor_complete(void);
size_t model_tensor_pending(void);

/* collectives.c */
void model_execute(warp *w, int first);
float model_half(uint32_t bits);
float model_truncated(double x);

#endif
