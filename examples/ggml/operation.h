/* SPDX-License-Identifier: MIT */
/*
 * GGML_OP_FLASH_ATTN_EXT as a problem of attune's: its types, strides, mask, ALiBi, soft-cap, sinks and quantised
 * caches. Shared by the backend on the CPU (ggml-attune.c) and the route inside ggml's Vulkan backend (vulkan-route.c),
 * which lend ggml's memory and launch each in their own way.
 */
#ifndef GGML_ATTUNE_OPERATION_H
#define GGML_ATTUNE_OPERATION_H

#include <attune/attune.h>
#include <ggml.h>

enum { OPERATION_TEXT = 512 };

typedef struct operation_plans operation_plans;

/* A shape of the operation: its plan, and all that a call of it takes but tensors. */
typedef struct operation {
    attune_plan *plan;
    attune_mask *mask;      /* the blocks of ggml's mask that are not all -inf; NULL = none are skipped */
    attune_buffer *scratch; /* for a caller without a workspace of its own: attune_plan_workspace_size bytes, or NULL */
} operation;

/* The arguments of a call, and what they point to. They stay where they are. */
typedef struct operation_call {
    attune_forward_args args;
    attune_tensor lists; /* for an update of operation.mask before the call */
    attune_capture captures[2];
    attune_cache cache;
    attune_batch batch;
} operation_call;

/* Describes a tensor of ggml's in memory that attune has as a buffer: sets *buffer and *offset, in bytes. */
typedef attune_status (*operation_lend)(void *user, const struct ggml_tensor *tensor, attune_buffer **buffer,
                                        uint64_t *offset);

/* The plans of a device, which must outlive them; by one thread at a time. Calls of at least block_rows queries have a
 * block mask, whose update takes launches of its own. NULL = no memory. */
operation_plans *operation_plans_create(attune_instance *instance, attune_device *device, int64_t block_rows);
void operation_plans_destroy(operation_plans *plans);

/* The name of the kernel that attune's planner has for an operation; NULL, with the reason, if none. Compiles nothing,
 * and asks the planner once for a shape. */
const char *operation_kernel(operation_plans *plans, const struct ggml_tensor *op, char reason[OPERATION_TEXT]);
/* Whether the plan of an operation's shape has been made. */
bool operation_is_made(const operation_plans *plans, const struct ggml_tensor *op);
/* The plan of an operation's shape, made where it is the first; NULL, with the reason, if attune has none. */
operation *operation_find(operation_plans *plans, const struct ggml_tensor *op, char reason[OPERATION_TEXT]);
/* The arguments of a call, but for its workspace. */
attune_status operation_call_fill(const operation *x, const struct ggml_tensor *op, operation_lend lend, void *user,
                                  operation_call *call);

#endif /* GGML_ATTUNE_OPERATION_H */
