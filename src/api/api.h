/* SPDX-License-Identifier: MIT */
/* The handles and argument checks of the public functions. Every argument is checked once, here; other modules trust
 * their input. */
#ifndef ATTUNE_API_API_H
#define ATTUNE_API_API_H

#include "backend.h"
#include "base/alloc.h"
#include "base/desc.h"
#include "base/error.h"
#include "base/round.h"

struct attune_instance {
    atomic_uint references;
    attune__host host;
    attune__packs packs;
};

struct attune_plan {
    attune_device *device;
    attune__shape shape;
    attune_kernel_options options; /* of the caller, for explain */
    attune__decision decision;
    const attune_expr *mask;    /* retained; NULL = none */
    const attune_expr *score;   /* retained; NULL = none */
    attune__direct_reads reads; /* of score */
    atomic_bool warned;         /* of a capture that is too short, which is logged once per plan */
    attune__gradient *gradient; /* of score, in backward */
    attune__program *programs[ATTUNE__PLAN_PROGRAMS]; /* of decision.choice and short_choice; NULL = none */
    attune__program *merger;                          /* of segments; NULL = none */
};

/* The program and the choice for a call of these lengths. */
static inline const attune__program *attune__plan_program(const attune_plan *plan, int64_t q_len, int64_t kv_len)
{
    return plan->programs[attune__decision_is_short(&plan->decision, q_len, kv_len)];
}
static inline const attune_plan_choice *attune__plan_choice(const attune_plan *plan, int64_t q_len, int64_t kv_len)
{
    const attune__decision *d = &plan->decision;
    return attune__decision_is_short(d, q_len, kv_len) ? &d->short_choice : &d->choice;
}
/* Launches forward or decode, according to the choice. */
attune_status attune__plan_forward(const attune_plan *plan, attune_queue *queue, const attune__forward *call,
                                   uint64_t *value);

struct attune_pack {
    attune_instance *instance; /* retained */
    attune__pack *content;
};

/* Uploads of a mask, one for each device. */
struct attune__mask_upload {
    struct attune__mask_upload *next;
    attune_device *device;            /* retained */
    attune__device_mask *device_mask; /* NULL if the backend reads the lists in host memory */
};

/* Returns the table of a backend; NULL, with the thread's error set, if this build does not have it. */
const attune__backend *attune__backend_find(attune_backend kind);
/* Initialises a plan except its device and programs. Requires attune__plan_finish, also on failure. */
attune_status attune__plan_init(attune_plan *plan, const attune_limits *limits, const attune_problem *problem,
                                const attune_kernel_options *options);
/* attune_plan_create; partial: calls write partial results, of attune__shape_output. */
attune_status attune__plan_create(attune_device *device, const attune_problem *problem,
                                  const attune_kernel_options *options, bool partial, attune_plan **plan);
/* Releases everything that attune__plan_init retained and allocated. */
void attune__plan_finish(attune_plan *plan);
/* Fills the descriptions of a plan's programs and returns their number; short_shape is referenced by the second. */
uint32_t attune__plan_programs(const attune_plan *plan, attune__shape *short_shape,
                               attune__program_desc descs[ATTUNE__PLAN_PROGRAMS]);
/* UNSUPPORTED if the backend has no entry for the chosen pass; `who` is the subject of the message. */
attune_status attune__plan_supported(const attune_plan *plan, const attune__backend *backend, const char *who);

attune_instance *attune__instance_retain(attune_instance *instance);
void attune__instance_release(attune_instance *instance);
/* Initialises src/api's fields of a device that a backend opened. */
void attune__device_init(attune_device *opened, attune_instance *instance);
attune_device *attune__device_retain(attune_device *device);
void attune__device_release(attune_device *device);

/* Fails if a device is NULL, lost, or was opened before a fork. */
attune_status attune__device_check(const attune_device *device);
/* Fails unless the queue is of this device; `owner` ("plan", ...) names the object of the device in the message. */
attune_status attune__queue_check(const attune_queue *queue, const attune_device *device, const char *owner);

/* Fails with "NAME is NULL" if the argument is. */
attune_status attune__check_not_null(const void *argument, const char *name);

/*
 * A tensor that lies in a buffer of the device: dtype, rank, sizes, offset alignment, every element inside. Zero
 * strides are resolved in range. `writable` also refuses overlap with itself; `contiguous_row` wants the last stride to
 * be 1.
 */
typedef struct attune__tensor_rule {
    const char *name;
    const attune_device *device;
    attune_dtype dtype; /* 0 = any */
    uint32_t rank;
    bool writable, contiguous_row;
} attune__tensor_rule;
attune_status attune__tensor_check(attune_tensor *tensor, const attune__tensor_rule *rule);
/* [tokens, heads, ...] becomes [1, heads, tokens, ...]. */
void attune__unpack(attune_tensor *tensor);
/* INVALID_ARGUMENT unless tensor->size[dimension] is `wanted`, which is `what`. */
attune_status attune__check_size(const char *name, const attune_tensor *tensor, uint32_t dimension, const char *what,
                                 int64_t wanted);
/* INVALID_ARGUMENT if `value`, which is `what`, exceeds the plan's limit. */
attune_status attune__check_at_most(const char *what, int64_t value, int64_t limit);
/* Resolves device captures by name, in the order of the expression's symbols; `whose` is "score" or "mask". */
attune_status attune__resolve_captures(const attune_plan *plan, const attune_expr *expr, const char *whose,
                                       const attune_capture *captures, uint32_t count,
                                       attune_tensor tensors[ATTUNE_EXPR_MAX_SYMBOLS]);

/* A mask's lists depend on its parameters: fails if a call passes other values for them. `values` are those of the
 * expression's symbols; expr may be NULL. */
attune_status attune__check_mask_parameters(const attune_expr *expr, const attune__value *values,
                                            const attune_parameter *parameters, uint32_t count);

/* Checks the tensor of an update of a mask, which must be one of attune_mask_create_tensor, and fills in its strides.
 */
attune_status attune__mask_update_check(const attune_mask *mask, const attune_tensor *tensor, attune_tensor *checked);

/* Checks a workspace: buffer of the device, offset a multiple of 256, and `wanted` bytes from there on. `who` needs
 * them. */
attune_status attune__workspace_check(const attune_device *device, const attune_buffer *workspace, uint64_t offset,
                                      uint64_t wanted, const char *who);

/* The same for arrays in host memory. */
attune_status attune__array_check(attune_array *array, const char *name);

/* The checked arguments of a forward call. */
typedef struct attune__forward_call {
    attune__forward call; /* points to the arrays below */
    attune_tensor captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value parameters[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__serving serving;
    attune_tensor mask_captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value mask_parameters[ATTUNE_EXPR_MAX_SYMBOLS];
} attune__forward_call;
attune_status attune__forward_resolve(const attune_plan *plan, const attune_forward_args *args,
                                      attune__forward_call *resolved);

/* Checks k, v and o of a call over a cache, and fills call and serving, except what a dense call has too. */
attune_status attune__serving_resolve(const attune_plan *plan, const attune_forward_args *args,
                                      attune__forward_call *resolved);
/* The cache of args->cache and, unless it is NULL, args->batch; call.q, and whether it is packed, are there. */
attune_status attune__cache_resolve(const attune_plan *plan, const attune_cache *cache, const attune_batch *batch,
                                    attune__forward_call *resolved);
/* Checks a tensor of integers in device memory. */
attune_status attune__integers_check(const attune_plan *plan, const char *name, attune_dtype dtype, uint32_t rank,
                                     attune_tensor *tensor);
/* INVALID_ARGUMENT unless the plan is for this direction. */
attune_status attune__check_direction(const attune_plan *plan, attune_direction direction);

/* A segment and its range of keys in the concatenation. */
typedef struct attune__segment_range {
    const attune_segment *segment;
    int64_t kv_start, kv_total;
} attune__segment_range;
/* Likewise for one segment, or with range NULL; args were copied by attune__desc_read. */
attune_status attune__forward_resolve_at(const attune_plan *plan, const attune_forward_args *args,
                                         const attune__segment_range *range, attune__forward_call *resolved);

/* The checked arguments of a backward call. */
typedef struct attune__backward_call {
    attune__backward call;
    attune_tensor captures[ATTUNE_EXPR_MAX_SYMBOLS], d_captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value parameters[ATTUNE_EXPR_MAX_SYMBOLS];
} attune__backward_call;
attune_status attune__backward_resolve(const attune_plan *plan, const attune_backward_args *args,
                                       attune__backward_call *resolved);
attune_status attune__backward_resolve_at(const attune_plan *plan, const attune_backward_args *args,
                                          const attune__segment_range *range, attune__backward_call *resolved);

/* Calls over segments: all are checked first, then launched one after another and merged. */
attune_status attune__forward_segments(const attune_plan *plan, attune_queue *queue, const attune_forward_args *args,
                                       uint64_t *value);
attune_status attune__backward_segments(const attune_plan *plan, attune_queue *queue, const attune_backward_args *args,
                                        uint64_t *value);

/* Merges any number of parts in launches of at most ATTUNE__MERGE_PARTS; part(user, i) returns the i-th. The workspace
 * has attune__merge_workspace bytes. */
typedef attune__merge_part (*attune__merge_part_fn)(const void *user, uint32_t index);
attune_status attune__merge_run(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                uint32_t part_count, attune__merge_part_fn part, const void *user, uint64_t *value);
/* UNSUPPORTED on backends without merge kernels. */
attune_status attune__merger_make(attune_device *device, attune__program **merger);
/* The type of LSE and of intermediate sums. */
attune_dtype attune__merge_dtype(attune_dtype dtype);
/* A contiguous tensor in a workspace, with the first `rank` sizes of another tensor. */
attune_tensor attune__workspace_tensor(attune_buffer *buffer, uint64_t offset, attune_dtype dtype,
                                       const attune_tensor *like, uint32_t rank);

/* Logs a warning and returns true if a capture is shorter than the range of a variable that indexes it. */
bool attune__warn_short_capture(const attune__host *host, const char *whose, const attune__direct_reads *reads,
                                uint32_t symbol, const char *name, const int64_t *size, const attune__extents *extents);

/* Resolves host captures and parameters of an expression by name, in symbol order, into arrays of
 * ATTUNE_EXPR_MAX_SYMBOLS. */
attune_status attune__bind_host(const attune_expr *expr, const attune_host_capture *captures, uint32_t capture_count,
                                const attune_parameter *parameters, uint32_t parameter_count, attune_array *arrays,
                                attune__value *values);
/* Likewise for an expression of attune__expr_shift, whose parameters include kv_start and kv_total. */
attune_status attune__bind_shifted(const attune_expr *expr, const attune_host_capture *captures, uint32_t capture_count,
                                   const attune_parameter *parameters, uint32_t parameter_count, int64_t kv_start,
                                   int64_t kv_total, attune_array *arrays, attune__value *values);

#endif
