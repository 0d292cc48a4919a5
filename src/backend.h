/* SPDX-License-Identifier: MIT */
/*
 * The one table between src/api and the devices. A backend fills an attune__backend; src/api checks every argument
 * before it calls an entry, so that a backend trusts its input: handles are of this backend, tensors lie in their
 * buffers, sizes match the plan, every symbol is bound. An entry that a backend does not have is NULL: src/api
 * answers ATTUNE_UNSUPPORTED with the reason that the table gives. docs/backends.md walks through adding one.
 *
 * Thread-safety: entries that take the same device may be called from several threads at once; a program is used by
 * many calls at once; a buffer by one call that writes or many that read.
 */
#ifndef ATTUNE_BACKEND_H
#define ATTUNE_BACKEND_H

#include <attune/attune.h>
#include <stdatomic.h>

#include "cache/cache.h"
#include "cache/pack.h"
#include "expr/gradient.h"
#include "mask/mask.h"
#include "plan/plan.h"

/* What a backend may use of the instance. */
typedef struct attune__host {
    attune_allocator allocator;
    attune_log_fn log; /* may be NULL: use attune__log */
    void *log_user;
    attune_log_level log_level;
    uint32_t cpu_threads;             /* 0 = the cores that this process may use */
    attune_parallel_for parallel_for; /* of the CPU; .run NULL = threads of its own */
    uint32_t compile_threads;         /* for the kernels of a plan, the caller's included; 0 = 1 */
    attune__cache *cache;             /* compiled kernels; NULL = none, which its functions accept */
    const attune__packs *packs;       /* kernels compiled ahead; likewise */
} attune__host;

void attune__log(const attune__host *host, attune_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

typedef struct attune__backend attune__backend;

/* The heads of the handles: a backend's own structs begin with them. src/api owns references. */
struct attune_queue {
    attune_device *device;
};

struct attune_device {
    const attune__backend *backend;
    attune__host host;
    attune_device_info info;
    attune_queue *queue; /* the device's own */
    atomic_bool lost;    /* latched by the backend: every later call answers ATTUNE_DEVICE_LOST */
    /* src/api's */
    attune_instance *instance;
    atomic_uint references;
    int64_t process; /* a device does not survive fork */
};

struct attune_buffer {
    attune_device *device;
    uint64_t size;
    uint32_t misalignment; /* host memory: bytes from its first byte back to a multiple of 8; 0 elsewhere */
};

/* A kernel made for one choice. */
typedef struct attune__program {
    attune_device *device;
} attune__program;

/* What a backend keeps of a mask on its device. */
typedef struct attune__device_mask {
    attune_device *device;
} attune__device_mask;

/* The most programs of a plan: its own, and that of its short calls. */
#define ATTUNE__PLAN_PROGRAMS 2

/* What a program is made from. The expressions live as long as the program: src/api retains them. */
typedef struct attune__program_desc {
    const attune__shape *shape;
    const attune_plan_choice *choice;
    const attune__variant *variant;
    const attune_expr *mask;          /* NULL = no mask expression */
    const attune_expr *score;         /* NULL = none */
    const attune__gradient *gradient; /* of score, in backward; NULL = none */
} attune__program_desc;

/* One forward call, or decode: the same arguments for another kernel. Tensors have resolved strides and rank 4 (lse and
 * row_max: 3). */
typedef struct attune__forward {
    int64_t batch, heads, kv_heads, q_len, kv_len; /* of this call; kv_batch is k.size[0] */
    double scale;
    attune_tensor q, k, v, o, lse, row_max; /* lse.buffer, row_max.buffer NULL = not wanted */
    const attune_mask *mask;                /* NULL = every pair */
    const attune__device_mask *device_mask; /* the mask's upload; NULL where the backend has no mask_upload */
    const attune_tensor *captures;          /* by symbol of the score expression; parameters' entries are unused */
    const attune__value *parameters;        /* likewise */
    attune_buffer *workspace;               /* NULL if the plan needs none */
    uint64_t workspace_offset;
    double *seconds; /* not NULL: wait and measure */
    bool part;       /* a merge follows: where every allowed score is -inf, o stays what they leave of v, 0 or NaN */
} attune__forward;

typedef struct attune__backward {
    attune__forward forward; /* o and lse are inputs */
    attune_tensor d_o, d_lse, d_q, d_k, d_v;
    const attune_tensor *d_captures; /* by symbol; buffer NULL = no gradient wanted */
} attune__backward;

/* A merge, or its gradients. o has rank 4, lse 3, strides resolved; o and d_o of any floating-point type, the same or
 * not; lse and d_lse f32, f64 on the CPU where o is. */
typedef struct attune__merge_part {
    attune_tensor o, lse;     /* lse.buffer NULL in all parts: o is their plain sum */
    attune_tensor d_o, d_lse; /* backward: out; buffer NULL = not wanted */
} attune__merge_part;

typedef struct attune__merge {
    const attune__merge_part *parts; /* at most ATTUNE__MERGE_PARTS */
    uint32_t part_count;
    attune_tensor o, lse;     /* forward: out, lse.buffer NULL = not wanted; backward: in */
    attune_tensor d_o, d_lse; /* backward: in; d_lse.buffer NULL = 0 */
    attune_buffer *workspace; /* ATTUNE__MERGE_WORKSPACE bytes are the launch's */
    uint64_t workspace_offset;
    double *seconds; /* not NULL: wait and measure */
    bool strict;     /* a part whose weight is 0 counts too: 0 times NaN is NaN, as in one piece */
    bool part;       /* another merge follows: o of a row without weights stays 0 or NaN, as attune__forward's */
} attune__merge;

struct attune__backend {
    attune_backend kind;
    const char *name; /* the prefix of device ids */

    /* Devices. count stores how many there are; with none it returns ATTUNE_OK and writes the reason. Neither may crash
     * on a broken driver. open fills everything of attune_device but src/api's fields. */
    attune_status (*count)(const attune__host *host, uint32_t *count, char *reason, size_t reason_size);
    attune_status (*describe)(const attune__host *host, uint32_t index, attune_device_info *info);
    attune_status (*open)(const attune__host *host, uint32_t index, attune_device **device);
    /* As open, of a device that the caller lends; desc is the struct of the backend's public header, checked. NULL
     * where there is nothing to lend. */
    attune_status (*lend)(const attune__host *host, const void *desc, attune_device **device);
    /* The driver's handles of a device, own or lent: fills the struct of the backend's public header but for
     * struct_size. NULL where there are none. */
    void (*handles)(const attune_device *device, void *handles);
    void (*close)(attune_device *device);
    attune_status (*measure)(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth);

    /* Buffers. wrap borrows host memory. write and read return when the copy is done. */
    attune_status (*buffer_create)(attune_device *device, uint64_t size, attune_buffer **buffer);
    attune_status (*buffer_wrap)(attune_device *device, void *memory, uint64_t size, attune_buffer **buffer);
    /* Wraps a part of the caller's own device buffer; handle points to what the backend's public header takes. */
    const char *buffer_lend_name; /* of the public function that calls buffer_lend; NULL where there is none */
    attune_status (*buffer_lend)(attune_device *device, const void *handle, uint64_t offset, uint64_t size,
                                 attune_buffer **buffer);
    void (*buffer_destroy)(attune_buffer *buffer);
    attune_status (*buffer_write)(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size);
    attune_status (*buffer_read)(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size);

    /* Masks on the device. NULL where kernels read the host's lists (the CPU). */
    attune_status (*mask_upload)(attune_device *device, const attune_mask *mask, attune__device_mask **device_mask);
    void (*mask_release)(attune__device_mask *device_mask);
    /* Masks that follow a tensor (attune__mask_new_tensor). follow prepares: memory for every block, kernels; NULL
     * where mask_upload is. update, whose mask has the tensor's sizes by then, launches what makes the lists. */
    attune_status (*mask_follow)(attune_device *device, const attune_mask *mask, attune__device_mask **device_mask);
    attune_status (*mask_update)(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                 const attune_tensor *tensor, uint64_t *value);

    /* Programs: compilation and everything else that may take time or memory. */
    /* All of a plan's at once, so that their kernels may be compiled side by side. On failure those in programs that
     * are not NULL are the caller's to destroy. */
    attune_status (*programs_create)(attune_device *device, const attune__program_desc *descs, uint32_t count,
                                     attune__program **programs);
    void (*program_destroy)(attune__program *program);
    /* Compiles for a device that need not be here, and adds the kernel to a pack. From any thread. NULL where kernels
     * cannot be compiled without their device, or need not be. */
    attune_status (*program_compile)(const attune__host *host, const attune_limits *limits,
                                     const attune__program_desc *desc, attune__pack *pack);

    /* Launches only. *value is the point in the queue to wait for. decode is called when choice.decode is set. */
    attune_status (*forward)(const attune__program *program, attune_queue *queue, const attune__forward *call,
                             uint64_t *value);
    attune_status (*decode)(const attune__program *program, attune_queue *queue, const attune__forward *call,
                            uint64_t *value);
    attune_status (*backward)(const attune__program *program, attune_queue *queue, const attune__backward *call,
                              uint64_t *value);

    /* Merging, for every type and shape alike. A merger is a program that merge and merge_backward alone take. */
    attune_status (*merger_create)(attune_device *device, attune__program **merger);
    void (*merger_destroy)(attune__program *merger);
    /* As program_compile. */
    attune_status (*merger_compile)(const attune__host *host, const attune_limits *limits, attune__pack *pack);
    /* Likewise, what mask_follow needs. */
    attune_status (*mask_compile)(const attune__host *host, const attune_limits *limits, attune__pack *pack);
    attune_status (*merge)(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                           uint64_t *value);
    attune_status (*merge_backward)(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                    uint64_t *value);
    /* forward may be given an o, and backward a d_q, of f32 whatever the plan's dtype. */
    bool wide_outputs;

    /* Append the launches of forward or decode, and of backward, to the caller's command buffer; commands points to its
     * handle. No submission, allocation or wait. NULL where there are no command buffers. */
    attune_status (*record)(const attune__program *program, const void *commands, const attune__forward *call);
    attune_status (*record_backward)(const attune__program *program, const void *commands,
                                     const attune__backward *call);

    /* The caller's own queue, as the backend's public header takes it. NULL where there is none to lend. */
    attune_status (*queue_lend)(attune_device *device, void *handle, attune_queue **queue);
    void (*queue_destroy)(attune_queue *queue);

    /* Completion. NULL where launches are done on return (the CPU). */
    attune_status (*wait)(attune_queue *queue, uint64_t value, uint64_t timeout_ns);

    /* Why an entry above is NULL; empty if all are there. */
    const char *missing;
};

/* Tables that exist in this build; src/api walks them in this order. */
extern const attune__backend attune__cpu_backend;
extern const attune__backend attune__vulkan_backend; /* ATTUNE_HAVE_VULKAN */
extern const attune__backend attune__cuda_backend;   /* ATTUNE_HAVE_CUDA */

#endif
