/* SPDX-License-Identifier: MIT */
/* The handles and checks of the public functions. Every argument is checked once, here; below it, input is trusted. */
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
    attune_kernel_options options; /* as given: explain repeats them */
    attune__decision decision;
    const attune_expr *mask;    /* retained; NULL = none */
    const attune_expr *score;   /* retained; NULL = none */
    attune__direct_reads reads; /* of score */
    atomic_bool warned;         /* of captures that are too short: once, whatever else calls bring */
    attune__gradient *gradient; /* of score, in backward */
    attune__program *programs[ATTUNE__PLAN_PROGRAMS]; /* of decision.choice and short_choice; NULL = none */
    attune__program *merger;                          /* of segments; NULL = none */
};

/* What a call of these lengths runs. */
static inline const attune__program *attune__plan_program(const attune_plan *plan, int64_t q_len, int64_t kv_len)
{
    return plan->programs[attune__decision_is_short(&plan->decision, q_len, kv_len)];
}
static inline const attune_plan_choice *attune__plan_choice(const attune_plan *plan, int64_t q_len, int64_t kv_len)
{
    const attune__decision *d = &plan->decision;
    return attune__decision_is_short(d, q_len, kv_len) ? &d->short_choice : &d->choice;
}
/* Launches forward or decode, as was chosen. */
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
    attune__device_mask *device_mask; /* NULL where the backend reads the host's lists */
};

/* The table of a backend; NULL, with the thread's error, if this build has none of it. */
const attune__backend *attune__backend_find(attune_backend kind);
/* Fills everything of a plan but its device and program. The expressions are retained, also on failure. */
attune_status attune__plan_fill(attune_plan *plan, const attune_limits *limits, const attune_problem *problem,
                                const attune_kernel_options *options);
/* Releases what filling retained and made. */
void attune__plan_empty(attune_plan *plan);
/* What the programs of a filled plan are made from, and how many there are; short_shape belongs to the second. */
uint32_t attune__plan_programs(const attune_plan *plan, attune__shape *short_shape,
                               attune__program_desc descs[ATTUNE__PLAN_PROGRAMS]);
/* UNSUPPORTED if the backend has no entry for what was chosen; `who` begins the message. */
attune_status attune__plan_supported(const attune_plan *plan, const attune__backend *backend, const char *who);

attune_instance *attune__instance_retain(attune_instance *instance);
void attune__instance_release(attune_instance *instance);
/* Fills src/api's fields of a device that a backend opened. */
void attune__device_adopt(attune_device *opened, attune_instance *instance);
attune_device *attune__device_retain(attune_device *device);
void attune__device_release(attune_device *device);

/* A device that can be used: not NULL, not lost, not carried over a fork. */
attune_status attune__device_check(const attune_device *device);
/* A queue of the device that `owner`, "plan" or such, belongs to. */
attune_status attune__queue_check(const attune_queue *queue, const attune_device *device, const char *owner);

/* "NAME is NULL" as a status. */
attune_status attune__check_not_null(const void *argument, const char *name);

/*
 * A tensor that lies in a buffer of the device: dtype, rank, sizes, offset alignment, every element inside. Zero
 * strides are resolved in place. `writable` also refuses overlap with itself; `contiguous_row` wants the last stride to
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

/* A workspace of the device with `wanted` bytes from a multiple of 256 on; `who` needs them. */
attune_status attune__workspace_check(const attune_device *device, const attune_buffer *workspace, uint64_t offset,
                                      uint64_t wanted, const char *who);

/* Host arrays: the same without a buffer. */
attune_status attune__array_check(attune_array *array, const char *name);

/* A forward call's arguments, checked against the plan. */
typedef struct attune__forward_call {
    attune__forward call; /* points to the arrays behind it */
    attune_tensor captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value parameters[ATTUNE_EXPR_MAX_SYMBOLS];
} attune__forward_call;
attune_status attune__forward_resolve(const attune_plan *plan, const attune_forward_args *args,
                                      attune__forward_call *resolved);

/* INVALID_ARGUMENT unless the plan is for this direction. */
attune_status attune__check_direction(const attune_plan *plan, attune_direction direction);

/* A segment in its concatenation. */
typedef struct attune__place {
    const attune_segment *segment;
    int64_t kv_start, kv_total;
} attune__place;
/* Likewise, of one segment; args were read. */
attune_status attune__forward_resolve_at(const attune_plan *plan, const attune_forward_args *args,
                                         const attune__place *place, attune__forward_call *resolved);

/* A backward call's, likewise. */
typedef struct attune__backward_call {
    attune__backward call;
    attune_tensor captures[ATTUNE_EXPR_MAX_SYMBOLS], d_captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value parameters[ATTUNE_EXPR_MAX_SYMBOLS];
} attune__backward_call;
attune_status attune__backward_resolve(const attune_plan *plan, const attune_backward_args *args,
                                       attune__backward_call *resolved);
attune_status attune__backward_resolve_at(const attune_plan *plan, const attune_backward_args *args,
                                          const attune__place *place, attune__backward_call *resolved);

/* The calls over segments: checked as a whole, then launched one after another and merged. */
attune_status attune__forward_segments(const attune_plan *plan, attune_queue *queue, const attune_forward_args *args,
                                       uint64_t *value);
attune_status attune__backward_segments(const attune_plan *plan, attune_queue *queue, const attune_backward_args *args,
                                        uint64_t *value);

/* Merging, whose parts are made one after another as launches take them. The workspace has attune__merge_workspace
 * bytes. */
typedef attune__merge_part (*attune__merge_part_fn)(const void *user, uint32_t index);
attune_status attune__merge_run(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                uint32_t part_count, attune__merge_part_fn part, const void *user, uint64_t *value);
/* UNSUPPORTED on backends that cannot. */
attune_status attune__merger_make(attune_device *device, attune__program **merger);
/* Of LSE, and of sums on their way. */
attune_dtype attune__merge_dtype(attune_dtype dtype);
/* Contiguous, with the first sizes of another tensor. */
attune_tensor attune__rows_in(attune_buffer *buffer, uint64_t offset, attune_dtype dtype, const attune_tensor *like,
                              uint32_t rank);

/* A warning of a capture that is shorter than a variable that indexes it; false if it is none of those. */
bool attune__warn_short(const attune__host *host, const char *whose, const attune__direct_reads *reads, uint32_t symbol,
                        const char *name, const int64_t *size, const attune__extents *extents);

/* Host captures and parameters of an expression, resolved in symbol order into arrays of ATTUNE_EXPR_MAX_SYMBOLS. */
attune_status attune__bind_host(const attune_expr *expr, const attune_host_capture *captures, uint32_t capture_count,
                                const attune_parameter *parameters, uint32_t parameter_count, attune_array *arrays,
                                attune__value *values);
/* Likewise of an expression that attune__expr_shift made: its place in the concatenation is among its parameters. */
attune_status attune__bind_shifted(const attune_expr *expr, const attune_host_capture *captures, uint32_t capture_count,
                                   const attune_parameter *parameters, uint32_t parameter_count, int64_t kv_start,
                                   int64_t kv_total, attune_array *arrays, attune__value *values);

#endif
