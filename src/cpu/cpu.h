/* SPDX-License-Identifier: MIT */
/*
 * The CPU backend: threaded, tiled attention in float, and in double, which is the oracle of the tests.
 *
 *     device.c    device, limits                    measure.c         peaks
 *     buffer.c    host memory                       launch.c          a forward call: items, threads, workspace
 *     program.c   programs                          forward_tmpl.h    a forward item: the seven stages
 *     serving.c   sequences and pages of a cache    cache_tmpl.h      its keys in a tile
 *     append.c    new rows of a cache               partial_tmpl.h    its partial tiles
 *     mask.c      masks computed from a tensor      bits_tmpl.h       the bits of a partial tile
 *     order.c     an order of a tile's rows and     kept_tmpl.h       those that heads share
 *                 keys                              sorted_tmpl.h     tiles in such an order
 *                                                   backward*         likewise for the backward pass
 *                                                   matrix.h          a tile of 16-bit matrices
 *     merge.c     merging                           block_iterator.h  the tiles of a row of blocks
 *     kernels.h   inner kernels                     kernel_*.c        their implementations
 *     functions*  functions of scores in float, by instruction set
 *
 * Numerics. s = scale * dot(q, k), score expression, mask, softmax, in this order. A fully masked row, and one whose
 * allowed scores are all -inf, has o = 0 and lse = row_max = -inf. A NaN at an allowed pair makes o and lse of its row
 * NaN, and so does a score of +inf (inf - inf). Non-finite elements of q, k and v at forbidden pairs do not affect
 * results. Results do not depend on the number of threads.
 */
#ifndef ATTUNE_CPU_CPU_H
#define ATTUNE_CPU_CPU_H

#include "backend.h"
#include "cpu/functions.h"
#include "cpu/kernels.h"
#include "cpu/order.h"
#include "base/threads.h"
#include "plan/layout_cpu.h"

typedef struct attune__cpu_device {
    attune_device base;
    attune_queue queue;
    attune__pool *pool;
    attune__cpu_kernels_f32 f32;
    attune__cpu_kernels_f64 f64;
    attune__cpu_matrix bf16, amx;
    const attune__functions *functions; /* of scores in f32 */
} attune__cpu_device;

typedef struct attune__cpu_buffer {
    attune_buffer base;
    void *memory;
    bool owned;
} attune__cpu_buffer;

typedef struct attune__cpu_program {
    attune__program base;
    attune__shape shape;
    attune_plan_choice choice;
    const attune__cpu_matrix *matrix; /* of choice.kernel; NULL = products in float or double */
    const attune_expr *score;         /* NULL = none. Partial blocks evaluate the expression of the mask */
    const attune_expr *mask;          /* of calls over a cache, which have no mask; NULL = none */
    const attune__gradient *gradient; /* of score, in backward */
    uint32_t weight;                  /* of score and gradient, per pair */
} attune__cpu_program;

/* Sequences whose rows are computed together, since they share keys: at most ATTUNE__CPU_GROUP, and if more than one,
 * in one chunk of rows. */
typedef struct attune__cpu_group {
    int64_t items; /* of the groups before it */
    int64_t part;  /* its first partial result; its items have one each */
    int32_t b, count;
    int32_t splits; /* 1 = an item has all keys; else items are for each split */
    int32_t unused;
} attune__cpu_group;

#define ATTUNE__CPU_GROUP 16

/* How a call over a cache is divided, in attune__cpu_schedule_size bytes. It depends on the lengths and what `key` has,
 * and not on the contents of the layers. */
typedef struct attune__cpu_schedule {
    uint64_t key;
    int64_t groups, items, split_items; /* split_items: those of groups with splits */
    double pairs;                       /* of a query and a key */
    int64_t unused[3];
    attune__cpu_group group[]; /* and the end of the last */
} attune__cpu_schedule;
_Static_assert(sizeof(attune__cpu_schedule) == 64 && sizeof(attune__cpu_group) == 32, "attune__cpu_schedule_size");

/* Of a tile of packed keys. One that another thread is packing is not waited for. */
typedef enum attune__pack_state {
    ATTUNE__PACK_NONE,
    ATTUNE__PACK_BEGUN,
    ATTUNE__PACK_DONE,
    ATTUNE__PACK_REFUSED, /* an element is infinite or NaN */
} attune__pack_state;

/* The state of a call, which its threads share. */
typedef struct attune__cpu_run {
    const attune__cpu_device *device;
    const attune__cpu_program *program;
    const attune__forward *call;
    attune__bindings score;         /* of the score expression */
    attune__bindings mask;          /* of program->mask */
    attune__cpu_schedule *schedule; /* of serving */
    int64_t split_keys, part_limit; /* likewise: the keys of a split, and the partial results that there is room for */
    attune__cpu_part_layout part;
    attune__cpu_layout layout; /* of a thread's scratch, in forward and decode */
    size_t block_m, block_n;   /* of a tile */
    size_t head_step, q_step;  /* query heads and rows of an item: head_step * q_step <= block_m */
    int64_t head_chunks;       /* items in a group of query heads */
    int64_t q_block, q_chunks; /* chunks of q_step rows never cross a block of q_block */
    uint32_t splits;           /* parts of the keys, with an item each */
    int64_t items;
    int64_t adjacent; /* items that a thread takes together */
    char *parts;      /* splits > 1: partial results: o of each row and split (attune__split_size) */
    char *ml;         /* their m and l */
    attune__cpu_packed packing;
    char *packed;  /* tiles of k and v for 16-bit products, and an attune__pack_state of each; NULL = none */
    char *scratch; /* of thread 0; the others follow */
    size_t scratch_bytes;
    atomic_llong next; /* the next item, or row to merge */
} attune__cpu_run;

/* The sequence of an item. Of a dense call, every batch has the call's lengths. */
typedef struct attune__cpu_sequence {
    int64_t q_len, kv_len, kv_first;
    int64_t batch, row0; /* its first row in q, o, lse and row_max */
    int64_t position;    /* of that row among the keys: q of the expressions */
    int64_t row;         /* likewise among the rows of all sequences */
} attune__cpu_sequence;

static inline char *attune__cpu_memory(const attune_buffer *buffer)
{
    return ((const attune__cpu_buffer *)buffer)->memory;
}

/* Element (b, h, row, 0) of a tensor. */
static inline char *attune__cpu_at(const attune_tensor *tensor, size_t element, int64_t b, int64_t h, int64_t row)
{
    int64_t index = b * tensor->stride[0] + h * tensor->stride[1] + row * tensor->stride[2];
    return attune__cpu_memory(tensor->buffer) + (int64_t)tensor->offset + index * (int64_t)element;
}

/* Element i of a tensor of rank 1. */
static inline char *attune__cpu_element(const attune_tensor *tensor, size_t element, int64_t i)
{
    return attune__cpu_memory(tensor->buffer) + (int64_t)tensor->offset + i * tensor->stride[0] * (int64_t)element;
}

/* An element of a floating-point type. */
double attune__cpu_load(const char *at, attune_dtype dtype);
void attune__cpu_store(char *at, attune_dtype dtype, double value);

/* Serving: the rows of all sequences are in the order of q_start, so that no row has two. */
bool attune__cpu_in_order(const attune__forward *call);

/* Serving: sequence b, checked, without rows where q_start is invalid and without keys where kv_len is. */
attune__cpu_sequence attune__cpu_sequence_at(const attune__forward *call, int64_t b);
/* Fills run->schedule. */
void attune__cpu_schedule_fill(attune__cpu_run *run);
/* schedule->key of this call. */
uint64_t attune__cpu_schedule_key(const attune__cpu_run *run);
/* The group of an item, which becomes its index in the group. */
const attune__cpu_group *attune__cpu_schedule_find(const attune__cpu_run *run, int64_t *index);
/* The first keys that sequence b has in common with the one before it. */
int64_t attune__cpu_shared(const attune__forward *call, int64_t b);
/* Where a key is, and how many keys from there on are in its page. */
typedef struct attune__cpu_key {
    int64_t page, row, count;
} attune__cpu_key;
/* False if it is in no page; count is set in either case. */
bool attune__cpu_key_at(const attune__forward *call, int64_t b, int64_t kv, attune__cpu_key *key);

/* The work of a thread (attune__pool_fn; user is an attune__cpu_run): items, then merging rows of splits. */
void attune__cpu_items_f32(void *run, uint32_t thread);
void attune__cpu_items_f64(void *run, uint32_t thread);
void attune__cpu_serve_f32(void *run, uint32_t thread);
void attune__cpu_serve_f64(void *run, uint32_t thread);
void attune__cpu_fold_f32(void *run, uint32_t thread); /* splits, in order */
void attune__cpu_fold_f64(void *run, uint32_t thread);
void attune__cpu_merge_f32(void *run, uint32_t thread);
void attune__cpu_merge_f64(void *run, uint32_t thread);

/* How many items a thread takes together: those of `heads` adjacent heads share a mask's bits, if each thread still has
 * several times as many. */
int64_t attune__cpu_adjacent(const attune__cpu_run *run, int64_t heads, uint32_t threads);

/* Divides the rows of Q of a run into items. */
void attune__cpu_divide(attune__cpu_run *run, bool decode);

/* The number of threads that a loop pays for (plan/partition.h), at most `most`. */
uint32_t attune__cpu_threads(const attune__cpu_device *device, bool f64, double pairs, uint32_t flop, uint32_t weight,
                             uint64_t most);

/* Captures of the score expression as arrays; entries of parameters are not set. */
void attune__cpu_bind(const attune_expr *score, const attune_tensor *tensors, attune_array *captures);
double attune__cpu_now(void);

/* Entries of the table. */
attune_status attune__cpu_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer);
attune_status attune__cpu_buffer_wrap(attune_device *device, void *memory, uint64_t size, attune_buffer **buffer);
void attune__cpu_buffer_destroy(attune_buffer *buffer);
attune_status attune__cpu_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size);
attune_status attune__cpu_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size);
void *attune__cpu_buffer_memory(const attune_buffer *buffer);
attune_status attune__cpu_mask_update(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                      const attune_tensor *tensor, uint64_t *value);
attune_status attune__cpu_programs_create(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                          attune__program **programs);
void attune__cpu_program_destroy(attune__program *program);
attune_status attune__cpu_forward(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                  uint64_t *value);
attune_status attune__cpu_decode(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                 uint64_t *value);
uint64_t attune__cpu_schedule_bytes(const attune__program *program);
attune_status attune__cpu_schedule_write(const attune__program *program, attune_queue *queue,
                                         const attune__forward *call, uint64_t *value);
attune_status attune__cpu_append(const attune__program *program, attune_queue *queue, const attune__append *call,
                                 uint64_t *value);
attune_status attune__cpu_backward(const attune__program *program, attune_queue *queue, const attune__backward *call,
                                   uint64_t *value);
attune_status attune__cpu_merger_create(attune_device *device, attune__program **merger);
void attune__cpu_merger_destroy(attune__program *merger);
attune_status attune__cpu_merge(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                uint64_t *value);
attune_status attune__cpu_merge_backward(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                         uint64_t *value);
attune_status attune__cpu_measure(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth);

#endif
