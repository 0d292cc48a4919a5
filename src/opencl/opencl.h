/* SPDX-License-Identifier: MIT */
/*
 * The OpenCL backend.
 *
 *     driver.*    libOpenCL.so.1              device.c     enumeration, limits, the table
 *     probe.c     drivers that crash          queue.c      a queue and its events, waits
 *     buffer.c    memory objects              mask.c       lists and captures on the device
 *     text.c      the text of a program       compiler.c   programs and kernels from it
 *     cache.c     binaries on disk
 *     family.c    the list of families        family_*.c   what kernels of a family are built with
 *     program.c   the kernels of a choice     arguments.c  what kernels read of a call
 *     launch.c    the hot call                backward.c   the backward pass
 *     merge.c     merges partial results      mask_update.c  masks computed from a tensor
 *     serving.c   the cache of a call         append.c    new rows of a cache
 *     schedule.c  its division                result.c    errors
 *     subgroups.c whether they can be trusted
 *     measure.c   peaks
 *
 * Kernels get memory objects and 64-bit offsets. clSetKernelArg is not thread-safe for one kernel object: a program's
 * lock is held from the first argument to the launch.
 */
#ifndef ATTUNE_OPENCL_OPENCL_H
#define ATTUNE_OPENCL_OPENCL_H

#include <pthread.h>

#include "backend.h"
#include "opencl/driver.h"
#include "shaders/opencl/arguments.h"

/* Events of a queue. A wait for a value that is older than all of them also waits for some later launches. */
#define ATTUNE__OPENCL_EVENTS 64
/* The workgroups of a launch of a PoCL before version 6 (attune__opencl_launch). */
#define ATTUNE__OPENCL_EARLY_POCL_GROUPS 65534
/* Bytes of a kernel's arguments that every device takes. */
#define ATTUNE__OPENCL_ARGUMENTS 1024
/* Bytes of what a call copies to the device. */
#define ATTUNE__OPENCL_TABLE 3072

typedef struct attune__opencl_queue {
    attune_queue base;
    attune__cl_queue handle; /* NULL = not made */
    bool profiling, out_of_order;
    pthread_mutex_t lock; /* keeps the commands of a call adjacent in the queue */
    uint64_t last;        /* the value of the latest call; values start at 1 */
    _Atomic uint64_t done;
    attune__cl_event events[ATTUNE__OPENCL_EVENTS]; /* by value modulo their number */
    char (*tables)[ATTUNE__OPENCL_TABLE];           /* likewise: a copy reads its table after the call returns */
} attune__opencl_queue;

typedef struct attune__opencl_device {
    attune_device base;
    attune__opencl_driver driver;
    attune__cl_platform platform;
    attune__cl_device device;
    attune__cl_context context;
    attune__cl_memory nothing; /* zeros, for arguments that a call does not have */
    attune__opencl_queue queue;
    char identity[256];  /* device and driver, with a hash of all names and versions */
    bool fma, round_div; /* hardware multiply-add; correctly rounded division on request */
    bool unified;        /* it shares the host's memory */
    bool many;           /* its context, of the caller, has other devices: programs have several binaries */
    bool early_pocl;     /* before version 6: see attune__opencl_launch and attune__opencl_cache_put */
} attune__opencl_device;

typedef struct attune__opencl_buffer {
    attune_buffer base;
    attune__cl_memory memory;
    uint64_t offset;
} attune__opencl_buffer;

static inline attune__opencl_device *attune__opencl_of(const attune_device *device)
{
    return (attune__opencl_device *)(uintptr_t)device;
}
/* The least items of a section (plan/partition.h): some waves, since a compute unit has several workgroups at once. */
static inline uint32_t attune__opencl_section(const attune_device *device)
{
    return 8 * device->info.limits.compute_units;
}

static inline const attune__opencl_buffer *attune__opencl_buffer_of(const attune_buffer *buffer)
{
    return (const attune__opencl_buffer *)buffer;
}

/* The order of types in kernels: F32, F16 and BF16 of shaders/opencl/elements.h. */
static inline uint32_t attune__opencl_dtype_index(attune_dtype dtype)
{
    return dtype == ATTUNE_F32 ? 0 : dtype == ATTUNE_F16 ? 1 : 2;
}

/* ATTUNE_OK, or the status and message of a driver's error in `what`. Records the loss of the device. */
attune_status attune__opencl_check(attune__opencl_device *device, int32_t error, const char *what);

/* subgroups.c: sets the limits of subgroups by a kernel's results; `least` is the smallest that the driver lists, or 0.
 * Fails only where the kernel loses the device. */
attune_status attune__opencl_subgroups_probe(attune__opencl_device *device, uint32_t least);

/* ----------------------------------------------------------------------------------------------------------- queues */

/* Retains `lent`; NULL: makes a queue. Leaves nothing behind on failure. */
attune_status attune__opencl_queue_init(attune__opencl_device *device, attune__opencl_queue *queue,
                                        attune__cl_queue lent);
void attune__opencl_queue_finish(attune__opencl_queue *queue);
attune_status attune__opencl_queue_wrap(attune_device *device, void *handle, attune_queue **queue);
void attune__opencl_queue_destroy(attune_queue *queue);
attune_status attune__opencl_wait(attune_queue *queue, uint64_t value, uint64_t timeout_ns);

/* The commands of one call: begin, commands, end. After an error the rest does nothing, and end returns it. */
typedef struct attune__opencl_call {
    attune__opencl_queue *queue;
    attune__cl_event first, last;
    uint64_t start;
    attune_status status;
} attune__opencl_call;

void attune__opencl_begin(attune__opencl_queue *queue, attune__opencl_call *call);
void attune__opencl_launch(attune__opencl_call *call, attune__cl_kernel kernel, uint64_t groups, uint32_t threads);
/* Memory of the host must be valid until the call has been waited for. */
void attune__opencl_write(attune__opencl_call *call, attune__cl_memory memory, uint64_t offset, const void *data,
                          uint64_t size);
void attune__opencl_read(attune__opencl_call *call, attune__cl_memory memory, uint64_t offset, void *data,
                         uint64_t size);
/* From the beginning of one memory object to that of another. */
void attune__opencl_copy_memory(attune__opencl_call *call, attune__cl_memory from, attune__cl_memory to, uint64_t size);
/* Copies a table of at most ATTUNE__OPENCL_TABLE bytes to the device; once in a call. */
void attune__opencl_table(attune__opencl_call *call, attune__cl_memory memory, uint64_t offset, const void *table,
                          size_t size);
/* Stores the value to wait for; with `seconds` waits. */
attune_status attune__opencl_end(attune__opencl_call *call, uint64_t *value, double *seconds);
/* Ends and waits. */
attune_status attune__opencl_finish(attune__opencl_call *call);

/* ---------------------------------------------------------------------------------------------------------- entries */

attune_status attune__opencl_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer);
attune_status attune__opencl_buffer_wrap_device(attune_device *device, const void *handle, uint64_t offset,
                                                uint64_t size, attune_buffer **buffer);
void attune__opencl_buffer_destroy(attune_buffer *buffer);
attune_status attune__opencl_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size);
attune_status attune__opencl_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size);
attune_status attune__opencl_copy(attune_queue *queue, const attune__copy *copies, uint32_t count, bool to_device);

attune_status attune__opencl_measure(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth);

attune_status attune__opencl_mask_upload(attune_device *device, const attune_mask *mask,
                                         attune__device_mask **device_mask);
void attune__opencl_mask_release(attune__device_mask *device_mask);
attune_status attune__opencl_mask_create_tensor(attune_device *device, const attune_mask *mask,
                                                attune__device_mask **device_mask);
attune_status attune__opencl_mask_update(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                         const attune_tensor *tensor, uint64_t *value);

attune_status attune__opencl_programs_create(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                             attune__program **programs);
void attune__opencl_program_destroy(attune__program *program);
attune_status attune__opencl_forward(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                     uint64_t *value);
attune_status attune__opencl_decode(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                    uint64_t *value);
uint64_t attune__opencl_schedule_size(const attune__program *program);
attune_status attune__opencl_schedule(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                      uint64_t *value);
attune_status attune__opencl_append(const attune__program *program, attune_queue *queue, const attune__append *call,
                                    uint64_t *value);
attune_status attune__opencl_backward(const attune__program *program, attune_queue *queue, const attune__backward *call,
                                      uint64_t *value);

attune_status attune__opencl_merger_create(attune_device *device, attune__program **merger);
void attune__opencl_merger_destroy(attune__program *merger);
attune_status attune__opencl_merge(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                   uint64_t *value);
attune_status attune__opencl_merge_backward(const attune__program *merger, attune_queue *queue,
                                            const attune__merge *call, uint64_t *value);

#endif
