/* SPDX-License-Identifier: MIT */
/*
 * The CUDA backend.
 *
 *     driver.c    libcuda.so.1            device.c   enumeration, limits
 *     compiler.c  libnvrtc.so.*, cubins   queue.c    a stream and its events
 *     buffer.c    device memory           mask.c     lists and captures on the device
 *     program.c   a kernel for a choice   launch.c   the hot call
 *     decode.c    the hot call of decode  pack.c     kernels compiled ahead
 *     measure.c   peaks                   merge.c    merges partial results
 *     context.c   contexts, errors        backward.c the hot call of the backward pass
 *     mask_update.c  masks computed from a tensor         serving.c  the hot call over a cache
 *     append.c    new rows of a cache     exchange.c streams of messages between ranks
 *     peers.c     copies between devices  nccl.c     messages over NCCL
 *
 * Every entry makes the device's context current and restores the previous one, so that the calling thread keeps its
 * own.
 */
#ifndef ATTUNE_CUDA_CUDA_H
#define ATTUNE_CUDA_CUDA_H

#include <pthread.h>

#include "backend.h"
#include "cuda/arguments.h"
#include "cuda/driver.h"
#include "plan/family_cuda.h"

/* Events of a queue. A wait for a value that is older than all of them also waits for some later launches. */
#define ATTUNE__CUDA_EVENTS 64

typedef struct attune__cuda_queue {
    attune_queue base;
    attune__cu_stream stream;
    bool lent;
    pthread_mutex_t lock; /* keeps a launch and its event adjacent in the stream */
    uint64_t last;        /* the value of the latest launch; values start at 1 */
    _Atomic uint64_t done;
    attune__cu_event events[ATTUNE__CUDA_EVENTS]; /* by value modulo their number */
    attune__cu_event start, stop;                 /* of a measured call; with timing */
    attune__cu_pointer counter;                   /* two int32, zero between launches: the stream's next tile */
    int capturing;                                /* between begin and end */
} attune__cuda_queue;

typedef struct attune__cuda_device {
    attune_device base;
    attune__cuda_driver driver;
    attune__cu_device device;
    attune__cu_context context;
    bool retained; /* it is the primary context, which must be released */
    attune__cuda_queue queue;
} attune__cuda_device;

typedef struct attune__cuda_buffer {
    attune_buffer base;
    attune__cu_pointer pointer;
    bool owned;
} attune__cuda_buffer;

static inline attune__cuda_device *attune__cuda_of(const attune_device *device)
{
    return (attune__cuda_device *)(uintptr_t)device;
}
static inline attune__cu_pointer attune__cuda_pointer(const attune_buffer *buffer)
{
    return ((const attune__cuda_buffer *)buffer)->pointer;
}

/* ----------------------------------------------------------------------------------------------------------- device */

/* Makes the context current until leave. */
attune_status attune__cuda_enter(attune__cuda_device *device);
void attune__cuda_leave(attune__cuda_device *device);
/* ATTUNE_OK, or the status and message of a driver's error in `what`. Records the loss of the device. */
attune_status attune__cuda_check(attune__cuda_device *device, attune__cu_result result, const char *what);

/* ----------------------------------------------------------------------------------------------------------- queues */

/* Needs the current context. Creates a stream if `stream` is NULL. Leaves nothing behind on failure. */
attune_status attune__cuda_queue_init(attune__cuda_device *device, attune__cuda_queue *queue, attune__cu_stream stream);
void attune__cuda_queue_finish(attune__cuda_queue *queue);
/* Around the launches of one call, within the current context. A captured launch must not use the counter, since the
 * graph may run beside the stream's own launches. end stores the value to wait for, 0 during a capture; with `seconds`
 * it waits. It must also be called if a launch failed: `status` is the launches' result. */
attune_status attune__cuda_queue_begin(attune__cuda_queue *queue, bool measured);
attune_status attune__cuda_queue_end(attune__cuda_queue *queue, attune_status status, uint64_t *value, double *seconds);
attune_status attune__cuda_queue_wrap(attune_device *device, void *handle, attune_queue **queue);
void attune__cuda_queue_destroy(attune_queue *queue);
attune_status attune__cuda_wait(attune_queue *queue, uint64_t value, uint64_t timeout_ns);

/* ---------------------------------------------------------------------------------------------------------- entries */

attune_status attune__cuda_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer);
attune_status attune__cuda_buffer_wrap_device(attune_device *device, const void *handle, uint64_t offset, uint64_t size,
                                              attune_buffer **buffer);
void attune__cuda_buffer_destroy(attune_buffer *buffer);
attune_status attune__cuda_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size);
attune_status attune__cuda_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size);
attune_status attune__cuda_copy(attune_queue *queue, const attune__copy *copies, uint32_t count, bool to_device);

/* A mask's block lists and captures, in one device allocation. */
typedef struct attune__cuda_mask {
    attune__device_mask base;
    attune__cu_pointer memory;
    attune__cu_pointer offsets[2], indices[2];               /* partial, full */
    attune__cu_pointer column_offsets[2], column_indices[2]; /* the transposed lists */
    attune__cu_pointer column_order; /* of each stored batch, those with the most blocks first; 0 = none */
    attune__cu_pointer captures[ATTUNE_EXPR_MAX_SYMBOLS], runs[ATTUNE_EXPR_MAX_SYMBOLS]; /* runs: 0 = none */
    bool ranges; /* each row of the mask allows one interval, and the runs that it depends on exist */
    struct attune__cuda_follow *follow; /* of a mask computed from a tensor; NULL in others */
} attune__cuda_mask;

attune_status attune__cuda_mask_upload(attune_device *device, const attune_mask *mask,
                                       attune__device_mask **device_mask);
void attune__cuda_mask_release(attune__device_mask *device_mask);
attune_status attune__cuda_mask_create_tensor(attune_device *device, const attune_mask *mask,
                                              attune__device_mask **device_mask);
attune_status attune__cuda_mask_update(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                       const attune_tensor *tensor, uint64_t *value);
/* Needs the current context; does not free the struct. */
void attune__cuda_follow_destroy(attune__cuda_device *device, struct attune__cuda_follow *follow);

/* A kernel, loaded. */
typedef struct attune__cuda_loaded {
    attune__cu_module module; /* NULL = not loaded */
    attune__cu_function function;
    uint32_t block_m, block_n, threads, shared_memory;
    uint32_t resident; /* CTAs of a persistent kernel, all resident at once; 0 = a CTA for each tile */
} attune__cuda_loaded;

typedef struct attune__cuda_program {
    attune__program base;
    attune__cuda_loaded kernel;
    attune__cuda_loaded fallback; /* for tensors that TMA cannot read; backward: see `family` */
    attune__cuda_loaded rows;     /* backward: dQ, where `kernel` computes dK and dV */
    attune__cuda_loaded delta;    /* backward: lse and delta as the others read them */
    attune__cuda_loaded append;   /* serving: new rows of the cache */
    attune__cu_function dq;       /* backward with a fallback, in kernel's module: converts dQ */
    attune__cu_function sums;     /* backward, in delta's module: capture gradients ... */
    attune__cu_function sinks;    /* ... and those of sinks */
    bool separate_dk_dv;          /* backward: separate CTAs compute dK and dV */
    /* Of `kernel`. With a fallback, `fallback` runs where TMA cannot read a tensor. In backward `kernel` then computes
     * all gradients and adds dQ to sums; `fallback` and `rows` run after it if a sum is not finite, or instead of it.
     */
    const struct attune__cuda_family *family;
    uint32_t columns;                /* forward, decode: those of v that a launch multiplies */
    uint32_t head_dim, head_dim_v;   /* backward */
    bool ordered;                    /* backward: ordered accumulation */
    uint32_t float_sums;             /* backward: bits of the captures whose gradients are summed in float32 */
    uint32_t padded_sums;            /* ... in rows of a multiple of four elements */
    attune__cu_function combine;     /* decode with more than one split */
    uint32_t packed_heads, split;    /* decode */
    uint32_t clusters;               /* decode: those of a row's splits that run at once, or 0 */
    attune__cu_function schedule;    /* serving, with parts of the keys */
    attune__cuda_parts parts;        /* likewise */
    uint32_t resident;               /* likewise: CTAs that run at once */
    const attune_expr *mask, *score; /* borrowed from the plan */
} attune__cuda_program;

attune_status attune__cuda_programs_create(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                           attune__program **programs);
void attune__cuda_program_destroy(attune__program *program);
attune_status attune__cuda_forward(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                   uint64_t *value);
attune_status attune__cuda_decode(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                  uint64_t *value);
/* As forward, over a cache. Needs the current context. */
attune_status attune__cuda_serve(const attune__cuda_program *program, attune__cuda_queue *queue,
                                 const attune__forward *call, uint64_t *value);
uint64_t attune__cuda_schedule_size(const attune__program *program);
attune_status attune__cuda_schedule(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                    uint64_t *value);
attune_status attune__cuda_append(const attune__program *program, attune_queue *queue, const attune__append *call,
                                  uint64_t *value);
attune_status attune__cuda_backward(const attune__program *program, attune_queue *queue, const attune__backward *call,
                                    uint64_t *value);
/* Launches a kernel that waits itself for those before it (wait_for_launches), and may begin before they end; with
 * cluster > 1, which attune__cuda_most_clusters allows, in clusters of so many CTAs. */
attune__cu_result attune__cuda_launch_early(attune__cuda_device *device, attune__cu_function function, unsigned grid,
                                            unsigned cluster, unsigned threads, unsigned shared,
                                            attune__cu_stream stream, void **parameters);
/* The clusters of so many CTAs that run at once; 0 where the device or the driver has none. Needs the context. */
uint32_t attune__cuda_most_clusters(attune__cuda_device *device, attune__cu_function function, unsigned cluster,
                                    unsigned threads, unsigned shared);
/* A further function of a loaded module. */
attune_status attune__cuda_function(attune__cuda_device *device, attune__cu_module module, const char *name,
                                    attune__cu_function *function);
/* Loads the rest of a backward program after its kernels. */
attune_status attune__cuda_backward_load(attune__cuda_program *program, const attune__program_desc *desc);
/* Loads the rest of a decode program, or one of serving, after its kernel. */
attune_status attune__cuda_decode_load(attune__cuda_program *program, const attune__program_desc *desc);
attune_status attune__cuda_serving_load(attune__cuda_program *program, const attune__program_desc *desc);

/* The arguments of a call, for any kernel of the program. */
attune_cuda_arguments attune__cuda_arguments_of(const attune__cuda_program *program, const attune__forward *call);
/* If v has more columns than a launch multiplies, changes the first launch's arguments to those of the second, for the
 * last columns, and is true. */
bool attune__cuda_take_last_columns(const attune__cuda_program *program, const attune__forward *call,
                                    attune_cuda_arguments *arguments);

attune_cuda_view attune__cuda_view_of(const attune_tensor *tensor);
/* An array of rank 3 at most. */
attune_cuda_array attune__cuda_array_of(const attune_tensor *tensor);
/* The cache and the batch of a call, without a schedule. */
attune_cuda_serving attune__cuda_serving_of(const attune__forward *call);

/*
 * Encodes a tensor map with boxes of 64 columns and `rows` rows; `repeats`: a batch of 1 is shared by all batches,
 * whose coordinate is 0 then. False where TMA cannot read the tensor: addresses and strides must be multiples of 16
 * bytes. A batch of 1 has no stride. Needs the current context.
 */
bool attune__cuda_encode(const attune__cuda_driver *driver, const attune_tensor *tensor, uint32_t rows, bool repeats,
                         attune__cu_tensor_map *map);
/* The same, with boxes of all columns, in slabs of 64: those of a multiple of 64. The third dimension is the slab. */
bool attune__cuda_encode_slabs(const attune__cuda_driver *driver, const attune_tensor *tensor, uint32_t rows,
                               attune__cu_tensor_map *map);

#define ATTUNE__CUDA_MOST_BLOCKS INT32_MAX /* limit of a grid's first dimension */

attune_status attune__cuda_merger_create(attune_device *device, attune__program **merger);
void attune__cuda_merger_destroy(attune__program *merger);
attune_status attune__cuda_merger_pack(const attune__host *host, const attune_limits *limits, attune__pack *pack);
attune_status attune__cuda_mask_pack(const attune__host *host, const attune_limits *limits, attune__pack *pack);
attune_status attune__cuda_merge(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                 uint64_t *value);
attune_status attune__cuda_merge_backward(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                          uint64_t *value);

attune_status attune__cuda_copy_tensors(const attune__program *merger, attune_queue *queue, const attune__copied *parts,
                                        uint32_t count, uint64_t *value);
attune_status attune__cuda_copy_lent(const attune__program *merger, attune_queue *queue, const attune__copied *parts,
                                     uint32_t count, uint64_t *value);
attune_status attune__cuda_merge_splits(const attune__program *merger, attune_queue *queue,
                                        const attune__merge_splits *call, uint64_t *value);
int64_t attune__cuda_buffer_distance(const attune_buffer *from, const attune_buffer *to);

attune_status attune__cuda_measure(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth);

#endif
