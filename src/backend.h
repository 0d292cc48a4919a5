/* SPDX-License-Identifier: MIT */
/*
 * The interface between src/api and the backends. Each backend fills one attune__backend table. src/api checks every
 * argument before it calls an entry, so that a backend may trust its input: handles are of this backend, tensors are
 * inside their buffers, sizes match the plan, and every symbol is bound. An entry that a backend does not implement is
 * NULL: src/api then returns ATTUNE_UNSUPPORTED with the table's missing_reason. docs/backends.md describes how to add
 * a backend.
 *
 * Thread-safety: entries may be called from several threads at once with the same device or program. A buffer is used
 * by one call that writes or by many that read.
 */
#ifndef ATTUNE_BACKEND_H
#define ATTUNE_BACKEND_H

#include <attune/attune.h>
#include <stdatomic.h>

#include "base/printf.h"
#include "cache/cache.h"
#include "cache/pack.h"
#include "expr/gradient.h"
#include "mask/mask.h"
#include "plan/partition.h"
#include "plan/plan.h"

/* The parts of an instance that a backend may use. */
typedef struct attune__host {
    attune_allocator allocator;
    attune_log_fn log; /* may be NULL: use attune__log */
    void *log_user;
    attune_log_level log_level;
    uint32_t cpu_threads;             /* 0 = the cores that this process may use */
    attune_parallel_for parallel_for; /* for the CPU; .run NULL = the device starts its own threads */
    uint32_t compile_threads;         /* for the kernels of a plan, including the calling thread; 0 = 1 */
    attune__cache *cache;             /* compiled kernels on disk; NULL = none, which its functions accept */
    const attune__packs *packs;       /* kernels compiled ahead of time; likewise */
} attune__host;

void attune__log(const attune__host *host, attune_log_level level, const char *format, ...) ATTUNE__PRINTF(3, 4);

typedef struct attune__backend attune__backend;

/* Common first members of the handles: a backend's own structs begin with them. src/api counts the references. */
struct attune_queue {
    attune_device *device;
};

struct attune_device {
    const attune__backend *backend;
    attune__host host;
    attune_device_info info;
    attune_queue *queue; /* the device's own */
    atomic_bool lost;    /* set by the backend; every later call returns ATTUNE_DEVICE_LOST */
    /* of src/api: */
    attune_instance *instance;
    atomic_uint references;
    int64_t process; /* that opened the device: it cannot be used after fork */
};

struct attune_buffer {
    attune_device *device;
    uint64_t size;
    uint32_t misalignment; /* host memory: bytes from its first byte back to a multiple of 8; 0 elsewhere */
};

/* The compiled kernels of one choice. */
typedef struct attune__program {
    attune_device *device;
} attune__program;

/* A mask's upload to a device. */
typedef struct attune__device_mask {
    attune_device *device;
} attune__device_mask;

/* A plan has at most two programs: its own, and the decode program of its short calls. */
#define ATTUNE__PLAN_PROGRAMS 2

/* Inputs of programs_create. The expressions outlive the program: src/api retains them. */
typedef struct attune__program_desc {
    const attune__shape *shape;
    const attune_plan_choice *choice;
    const attune__variant *variant;
    const attune_expr *mask;          /* NULL = no mask expression */
    const attune_expr *score;         /* NULL = none */
    const attune__gradient *gradient; /* of score, in backward; NULL = none */
    /* Where a compiled kernel turns out to have fewer invocations than its choice: their number, and COMPILE_FAILED.
     * The plan is then made anew, once. NULL = not asked. */
    uint32_t *invocations;
} attune__program_desc;

/* Whether a call may request gradients of captures. gradient: NULL = the plan has no score. */
static inline bool attune__requests_captures(const attune__shape *shape, const attune__gradient *gradient)
{
    return gradient && gradient->read_count && shape->capture_gradient_elements;
}

/*
 * The cache and the batch of a call of a plan with shape.tokens. Tensors of integers are i32 and are read on the device
 * alone. q, o, lse and row_max have a batch of 1 if packed, and the tokens of all sequences in place of q_len.
 */
typedef struct attune__serving {
    attune_tensor pages, pages_start; /* pages.buffer NULL = sequence b is page b; pages_start.buffer NULL = rank 2 */
    attune_tensor k_scale, v_scale;   /* [pages, kv_heads, page], with strides of 0 where they broadcast; NULL = 1 */
    attune_tensor q_start, kv_len, kv_first, tree, count; /* buffer NULL = as in attune_batch; tree has rank 3, with the
                                                             batch of q */
    attune_tensor shared;                                 /* likewise */
    bool packed;                                          /* q_start is there */
    attune_buffer *schedule;                              /* NULL = the call computes its own */
    uint64_t schedule_offset;
    const attune_tensor *mask_captures;   /* by symbol of the mask expression */
    const attune__value *mask_parameters; /* likewise */
} attune__serving;

/* Arguments of forward and decode. Tensors have resolved strides and rank 4 (lse and row_max: 3). */
typedef struct attune__forward {
    int64_t batch, heads, kv_heads, q_len, kv_len; /* of this call; kv_batch is k.size[0] */
    double scale;
    attune_tensor q, k, v, o, lse, row_max; /* lse.buffer, row_max.buffer NULL = not requested */
    attune_tensor sinks;                    /* buffer NULL = none, in a part of a plan with sinks too */
    const attune_mask *mask;                /* NULL = every pair */
    const attune__device_mask *device_mask; /* the mask's upload; NULL if the backend has no mask_upload */
    const attune_tensor *captures;          /* by symbol of the score expression; entries of parameters are unused */
    const attune__value *parameters;        /* likewise */
    attune_buffer *workspace;               /* NULL if the plan needs none */
    uint64_t workspace_offset;
    double *seconds;                /* not NULL: wait and measure */
    const attune__serving *serving; /* NULL = dense: k, v and mask. Otherwise k and v are [pages, kv_heads, page,
                                       head_dim], mask is NULL, and batch is that of the lengths */
    bool part; /* a partial result, which is merged later: if every allowed score of a row is -inf, o is its sum of 0 *
                  v, 0 or NaN */
    bool splits; /* of a decode pass in parts: they stay in the workspace, and o and lse are not written */
} attune__forward;

/* Sizes of a cache and its batch, for kernels that count in 31 bits: no index reaches what is cut off. */
typedef struct attune__serving_sizes {
    uint32_t pool, page; /* pages, and the keys of one */
    uint32_t entries;    /* of a sequence's row of the block table, or of the list */
    uint32_t tree_words; /* of a row */
} attune__serving_sizes;

static inline uint32_t attune__serving_size(int64_t size)
{
    return size < INT32_MAX ? (uint32_t)size : INT32_MAX;
}

static inline attune__serving_sizes attune__serving_sizes_of(const attune__forward *call)
{
    const attune__serving *s = call->serving;
    return (attune__serving_sizes){.pool = attune__serving_size(call->k.size[0]),
                                   .page = attune__serving_size(call->k.size[2]),
                                   .entries = attune__serving_size(s->pages.size[s->pages_start.buffer ? 0 : 1]),
                                   .tree_words = attune__serving_size(s->tree.size[2])};
}

/* The order of the types of keys and values in kernels: shaders/elements.glsl, quantised.glsl and opencl/quantised.h.
 */
static inline uint32_t attune__key_type(attune_dtype dtype)
{
    switch (dtype) {
    case ATTUNE_F8E4M3:
        return 3;
    case ATTUNE_F8E5M2:
        return 4;
    case ATTUNE_I8:
        return 5;
    case ATTUNE_Q8_0:
        return 6;
    case ATTUNE_Q4_0:
        return 7;
    default:
        return dtype == ATTUNE_F32 ? 0 : dtype == ATTUNE_F16 ? 1 : 2;
    }
}

/* The most rows of a sequence: none of a packed call has more than q. */
static inline int64_t attune__forward_rows(const attune__forward *call)
{
    return call->serving && call->q.size[2] < call->q_len ? call->q.size[2] : call->q_len;
}

/* The tiles of queries of a call; of backward those of dQ. `section_items` is that of attune__partition_desc. */
static inline attune__partition attune__forward_partition(const attune__forward *call, const attune_plan_choice *choice,
                                                          bool decode, uint32_t section_items)
{
    const attune_mask *mask = call->mask;
    return attune__partition_make(&(attune__partition_desc){
        .batch = call->batch,
        .heads = call->heads,
        .kv_heads = call->kv_heads,
        .q_len = attune__forward_rows(call),
        .block_m = choice->direction == ATTUNE_BACKWARD ? choice->block_m2 : choice->block_m,
        .split_kv = choice->split_kv,
        .decode = decode || call->serving, /* a tile has the rows of a group of heads */
        .mask_q_block = mask ? mask->q_block : 0,
        .one_list = !mask || mask->stored_heads == 1,
        .section_items = section_items,
    });
}

/* New rows of a cache. */
typedef struct attune__append {
    /* The cache is k and v of forward, v.buffer NULL = a part of k; its serving has the factors and, with a batch
     * (kv_len), the block table and the sequences. Without a batch all q_len rows are there. q.buffer NULL = none. */
    const attune__forward *forward;
    attune_tensor k, v;           /* [batch or 1, kv_heads, rows, head_dim]; v.buffer NULL if v is a part of k */
    attune_tensor q_out;          /* as forward->q */
    attune_tensor slots;          /* i64 [batch or 1, rows]; buffer NULL = the keys of the batch */
    attune_tensor positions;      /* i32, likewise; buffer NULL = those of the batch */
    attune_tensor q_norm, k_norm; /* [columns]; buffer NULL = none */
    attune_tensor cosine, sine;   /* [positions, columns / 2]; buffer NULL = none */
    double norm_epsilon;
    uint32_t rotary_first;           /* the first column that is rotated */
    bool interleaved;                /* pairs are (2 i, 2 i + 1), not (i, i + columns / 2) */
    bool k_scale_rows, v_scale_rows; /* each row has its own factor, which is computed and written */
} attune__append;

static inline uint64_t attune__append_rows(const attune__append *call)
{
    return (uint64_t)(call->k.size[0] * call->k.size[2]);
}

/* Heads of each row: those of k, of v and of q. */
static inline uint64_t attune__append_heads(const attune__append *call)
{
    const attune__forward *forward = call->forward;
    return (uint64_t)(forward->kv_heads * (call->v.buffer ? 2 : 1) + (forward->q.buffer ? forward->heads : 0));
}

/* The workgroups of each row, which write `each` heads at a time: no more than have work, and of all rows no more than
 * the `enough` that fill a device, since each looks for its row's sequence. */
static inline uint64_t attune__append_workgroups(const attune__append *call, uint64_t each, uint64_t enough)
{
    const uint64_t rows = attune__append_rows(call), most = (attune__append_heads(call) + each - 1) / each;
    const uint64_t wanted = rows && rows < enough ? (enough + rows - 1) / rows : 1;
    return most < wanted ? most : wanted;
}

typedef struct attune__backward {
    attune__forward forward; /* o and lse are inputs */
    attune_tensor d_o, d_lse, d_q, d_k, d_v;
    const attune_tensor *d_captures; /* by symbol; buffer NULL = not requested */
    attune_tensor d_sinks;           /* likewise */
} attune__backward;

/* Arguments of merge and merge_backward. o has rank 4, lse 3, and strides are resolved. o and d_o are of any
 * floating-point types, which may differ; lse and d_lse are f32, or f64 on the CPU if o is. */
typedef struct attune__merge_part {
    attune_tensor o, lse;     /* lse.buffer NULL in all parts: o is the sum of the parts */
    attune_tensor d_o, d_lse; /* backward: outputs; buffer NULL = not requested */
} attune__merge_part;

/* A copy between tensors of rank 4, of the same sizes and type, whose last dimensions are contiguous. */
typedef struct attune__copied {
    attune_tensor from, to;
} attune__copied;

/* A copy between a buffer and host memory. */
typedef struct attune__copy {
    attune_buffer *buffer;
    uint64_t offset, size;
    void *memory;
} attune__copy;

/* The results of a decode pass in parts (attune__split_size), of several devices over parts of the keys, merged into o
 * and lse, f32, of some of their batches or heads. */
typedef struct attune__merge_splits {
    const attune__copy *parts; /* buffer and offset; at most ATTUNE__MERGE_PARTS, and ATTUNE__MERGE_SPLITS splits */
    uint32_t part_count, split;
    attune_tensor o, lse;            /* lse.buffer NULL = not requested */
    int64_t batch, heads;            /* of the parts, ... */
    int64_t first_batch, first_head; /* ... of which o has those from here on */
    double scale;
    bool has_score;
    double *seconds; /* not NULL: wait and measure */
} attune__merge_splits;

typedef struct attune__merge {
    const attune__merge_part *parts; /* at most ATTUNE__MERGE_PARTS */
    uint32_t part_count;
    attune_tensor o, lse;     /* forward: outputs, lse.buffer NULL = not requested; backward: inputs */
    attune_tensor d_o, d_lse; /* backward: inputs; d_lse.buffer NULL = 0 */
    attune_buffer *workspace; /* of ATTUNE__MERGE_WORKSPACE bytes for each launch */
    uint64_t workspace_offset;
    double *seconds; /* not NULL: wait and measure */
    bool strict;     /* a part of weight 0 is also added: 0 times NaN is NaN, as in a call without segments */
    bool part;       /* a partial result, as in attune__forward */
} attune__merge;

struct attune__backend {
    attune_backend kind;
    const char *name; /* the prefix of device ids */

    /* Devices. count stores the number of devices; if it is 0, count returns ATTUNE_OK and writes the reason. count and
     * describe must not crash on a broken driver. open fills attune_device except src/api's fields. */
    attune_status (*count)(const attune__host *host, uint32_t *count, char *reason, size_t reason_size);
    attune_status (*describe)(const attune__host *host, uint32_t index, attune_device_info *info);
    attune_status (*open)(const attune__host *host, uint32_t index, attune_device **device);
    /* As open, on a device of the caller; desc is the checked struct of the backend's public header. NULL if there is
     * no such function. */
    attune_status (*open_external)(const attune__host *host, const void *desc, attune_device **device);
    /* Fills the struct of the backend's public header, except struct_size, with the driver's handles of a device. NULL
     * if there are none. */
    void (*handles)(const attune_device *device, void *handles);
    void (*close)(attune_device *device);
    attune_status (*measure)(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth);

    /* Buffers. buffer_wrap uses the caller's host memory in place. buffer_write and buffer_read return when the copy is
     * done. */
    attune_status (*buffer_create)(attune_device *device, uint64_t size, attune_buffer **buffer);
    attune_status (*buffer_wrap)(attune_device *device, void *memory, uint64_t size, attune_buffer **buffer);
    /* Wraps a range of the caller's device buffer; handle points to the handle type of the backend's public header. */
    const char *buffer_wrap_device_name; /* the public function that calls it; NULL if there is none */
    attune_status (*buffer_wrap_device)(attune_device *device, const void *handle, uint64_t offset, uint64_t size,
                                        attune_buffer **buffer);
    void (*buffer_destroy)(attune_buffer *buffer);
    attune_status (*buffer_write)(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size);
    attune_status (*buffer_read)(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size);
    /* The first byte of a buffer in host memory. NULL if buffers are not there. */
    void *(*buffer_memory)(const attune_buffer *buffer);

    /* Masks on the device. NULL if kernels read the lists in host memory (the CPU). */
    attune_status (*mask_upload)(attune_device *device, const attune_mask *mask, attune__device_mask **device_mask);
    void (*mask_release)(attune__device_mask *device_mask);
    /*
     * Masks computed from a tensor (attune__mask_new_tensor). mask_create_tensor allocates for every block and
     * compiles; NULL if mask_upload is. mask_update, whose mask has the tensor's sizes by then, launches the kernels
     * that compute the lists.
     */
    attune_status (*mask_create_tensor)(attune_device *device, const attune_mask *mask,
                                        attune__device_mask **device_mask);
    attune_status (*mask_update)(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                 const attune_tensor *tensor, uint64_t *value);
    /* Records the launches of mask_update into the caller's command buffer, as `record` below does. */
    void (*mask_record)(const attune_mask *mask, attune__device_mask *device_mask, const attune_tensor *tensor,
                        const void *commands);

    /* Programs: compilation and all else that takes time or allocates. */
    /* Creates all programs of a plan at once, so that their kernels can be compiled in parallel. On failure the caller
     * destroys those in programs that are not NULL. */
    attune_status (*programs_create)(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                     attune__program **programs);
    void (*program_destroy)(attune__program *program);
    /* Compiles for a device that need not be present, and adds the kernel to a pack. Any thread. NULL if the backend
     * has no packs. */
    attune_status (*program_compile)(const attune__host *host, const attune_limits *limits,
                                     const attune__program_desc *desc, attune__pack *pack);

    /* Launches only. *value receives the point in the queue to wait for; NULL in forward, decode and backward = nobody
     * waits for it. decode is called if choice.decode is set. */
    attune_status (*forward)(const attune__program *program, attune_queue *queue, const attune__forward *call,
                             uint64_t *value);
    attune_status (*decode)(const attune__program *program, attune_queue *queue, const attune__forward *call,
                            uint64_t *value);
    /* Serving: the bytes of a schedule, and the launch that writes it to call->serving->schedule. */
    uint64_t (*schedule_size)(const attune__program *program);
    attune_status (*schedule)(const attune__program *program, attune_queue *queue, const attune__forward *call,
                              uint64_t *value);
    attune_status (*append)(const attune__program *program, attune_queue *queue, const attune__append *call,
                            uint64_t *value);
    attune_status (*backward)(const attune__program *program, attune_queue *queue, const attune__backward *call,
                              uint64_t *value);

    /* Merging. A merger is a program for merge and merge_backward, for all types and shapes. */
    attune_status (*merger_create)(attune_device *device, attune__program **merger);
    void (*merger_destroy)(attune__program *merger);
    /* As program_compile. */
    attune_status (*merger_compile)(const attune__host *host, const attune_limits *limits, attune__pack *pack);
    /* Likewise, the kernels of mask_create_tensor. */
    attune_status (*mask_compile)(const attune__host *host, const attune_limits *limits, attune__pack *pack);
    attune_status (*merge)(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                           uint64_t *value);
    attune_status (*merge_backward)(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                    uint64_t *value);
    /* Copies at most ATTUNE__MERGE_PARTS tensors in one launch. NULL = each is a merge of one part. */
    attune_status (*copy_tensors)(const attune__program *merger, attune_queue *queue, const attune__copied *parts,
                                  uint32_t count, uint64_t *value);
    /* The same for keys of other devices, beside many own ones. NULL = copy_tensors. */
    attune_status (*copy_lent)(const attune__program *merger, attune_queue *queue, const attune__copied *parts,
                               uint32_t count, uint64_t *value);
    /* Decode leaves its splits (attune__forward.splits), and a launch merges those of several devices. NULL = it does
     * not. With it, decode and copies take a value of NULL, where another launch follows in the queue. */
    attune_status (*merge_splits)(const attune__program *merger, attune_queue *queue, const attune__merge_splits *call,
                                  uint64_t *value);
    /* The bytes from the first of one buffer to the first of another, of devices that read each other's memory. NULL =
     * not known. */
    int64_t (*buffer_distance)(const attune_buffer *from, const attune_buffer *to);
    /* forward computes the heads of the call, which may be fewer than those of the plan. */
    bool fewer_heads;
    /* forward can write an f32 o, and backward f32 d_q, d_k and d_v, for any dtype of the plan. */
    bool f32_outputs;

    /* Record the launches of forward or decode, and of backward, into the caller's command buffer; commands points to
     * its handle. No submission, allocation or wait. NULL if there are no command buffers. */
    attune_status (*record)(const attune__program *program, const void *commands, const attune__forward *call);
    attune_status (*record_backward)(const attune__program *program, const void *commands,
                                     const attune__backward *call);

    /* Creates a queue on a stream of the caller, of the handle type of the backend's public header. NULL if there is no
     * such function. */
    attune_status (*queue_wrap)(attune_device *device, void *handle, attune_queue **queue);
    void (*queue_destroy)(attune_queue *queue);

    /* Copies to buffers or from them, after the work in the queue, the caller's own too on a stream of the caller;
     * returns when all are done. NULL if buffers are in host memory. */
    attune_status (*copy)(attune_queue *queue, const attune__copy *copies, uint32_t count, bool to_device);

    /* Completion. NULL if the work is done when a launch returns (the CPU). */
    attune_status (*wait)(attune_queue *queue, uint64_t value, uint64_t timeout_ns);

    /* Why an entry above is NULL; empty if none is. */
    const char *missing_reason;
};

/* The tables of this build, in the order of enumeration. */
extern const attune__backend attune__cpu_backend;
extern const attune__backend attune__vulkan_backend; /* ATTUNE_HAVE_VULKAN */
extern const attune__backend attune__cuda_backend;   /* ATTUNE_HAVE_CUDA */
extern const attune__backend attune__opencl_backend; /* ATTUNE_HAVE_OPENCL */

#endif
