/* SPDX-License-Identifier: MIT */
/* Programs, kernels and uploaded masks, for launches. */
#ifndef ATTUNE_OPENCL_PROGRAM_H
#define ATTUNE_OPENCL_PROGRAM_H

#include "base/hash.h"
#include "base/text.h"
#include "opencl/opencl.h"
#include "plan/family_opencl.h"
#include "plan/partition.h"

/* ---------------------------------------------------------------------------------------------------------- text.c */

typedef struct attune__opencl_define {
    const char *name;
    uint32_t value;
} attune__opencl_define;

#define ATTUNE__OPENCL_DEFINES 64

/* The text of a kernel: constants, the expressions, a file of shaders/opencl/. */
typedef struct attune__opencl_text {
    const char *file; /* "forward.cl" */
    const attune_expr *mask, *score;
    const attune__gradient *gradient;
    bool host, fma;
    bool literal; /* built without optimisation */
    bool serving; /* of a plan over a cache, which evaluates the mask for each call */
    bool bounds;  /* with the mask's bounds over tiles */
    attune__opencl_define defines[ATTUNE__OPENCL_DEFINES];
    uint32_t define_count;
    bool full; /* a constant found no place */
} attune__opencl_text;

void attune__opencl_add_define(attune__opencl_text *text, const char *name, uint32_t value);
/* The whole source, which the caller frees. */
attune_status attune__opencl_text_make(const attune_allocator *allocator, const attune__opencl_text *text,
                                       char **source);

/* --------------------------------------------------------------------------------------------------------- cache.c */

/* A hash of the whole source and the options. */
attune__hash attune__opencl_hash(const char *source, const char *options);
/* A built program from the cache; NULL = none, or the driver does not take it any more. */
attune__cl_program attune__opencl_cache_get(attune__opencl_device *device, attune__hash hash, const char *options);
void attune__opencl_cache_put(attune__opencl_device *device, attune__hash hash, attune__cl_program program);

/* ------------------------------------------------------------------------------------------------------ compiler.c */

/* A kernel, built; handle NULL = none. */
typedef struct attune__opencl_kernel {
    attune__cl_program program;
    attune__cl_kernel handle;
    uint32_t threads;
    bool cached; /* the program came from the cache, or is there */
    attune__hash hash;
} attune__opencl_kernel;

/*
 * Builds a text, or takes its binary from the cache, and makes a kernel of it. COMPILE_FAILED, with the driver's log,
 * if the text does not build, or the device then has fewer than `threads` work-items for the kernel, which *invocations
 * receives if it is not NULL.
 */
attune_status attune__opencl_kernel_build(attune__opencl_device *device, const attune__opencl_text *text,
                                          const char *name, uint32_t threads, uint32_t *invocations,
                                          attune__opencl_kernel *kernel);
/* Another kernel of the same program. */
attune_status attune__opencl_kernel_also(attune__opencl_device *device, const attune__opencl_kernel *first,
                                         const char *name, uint32_t threads, attune__opencl_kernel *kernel);
void attune__opencl_kernel_release(attune__opencl_device *device, attune__opencl_kernel *kernel);
/*
 * Launches one workgroup, whose arguments leave it nothing to do, and waits: a driver may compile at the first launch.
 * The binary is stored after that, since some drivers' is empty before.
 */
attune_status attune__opencl_kernel_first(attune__opencl_device *device, attune__opencl_kernel *kernel, int32_t error);

/* Arguments in order; the next index is kept, and the first error. */
typedef struct attune__opencl_setter {
    const attune__opencl_device *device;
    attune__cl_kernel kernel;
    uint32_t index;
    int32_t error;
} attune__opencl_setter;

void attune__opencl_set(attune__opencl_setter *setter, size_t size, const void *value);
/* NULL: the device's object without content. */
void attune__opencl_set_memory(attune__opencl_setter *setter, const attune_buffer *buffer);

/* --------------------------------------------------------------------------------------------------------- program */

typedef struct attune__opencl_program {
    attune__program base;
    attune__shape shape;
    attune_plan_choice choice;
    const attune_expr *score; /* borrowed from the plan */
    const attune_expr *mask;  /* likewise, of a plan over a cache; NULL = none */
    pthread_mutex_t lock;     /* of the kernels' arguments */
    attune__opencl_kernel forward;
    attune__opencl_kernel aligned; /* for calls whose tensors are; none: forward serves them */
    attune__opencl_kernel combine; /* none: no splits, or parts over a cache */
    uint32_t combine_items;        /* of it, that share four columns of a row */
    /* of a plan over a cache */
    attune__shaders_parts parts;
    attune__opencl_kernel append, schedule;
    /* backward: forward and aligned give dQ, and gradients of captures */
    const attune__gradient *gradient; /* borrowed likewise */
    attune__opencl_kernel keys, keys_aligned, delta;
    attune__opencl_kernel sinks;                /* none: the plan adds none */
    attune__opencl_kernel clear_sums, add_sums; /* none: no call may request a capture's gradient */
} attune__opencl_program;

/* The constants of a tile that every kernel has. */
typedef struct attune__opencl_tile {
    uint32_t threads, block_m, block_n;
} attune__opencl_tile;

/* For kernels of both directions: a text with all that does not depend on a layout. */
attune__opencl_text attune__opencl_text_begin(const attune__opencl_device *device, const attune__program_desc *desc,
                                              const char *file, const attune__opencl_tile *tile, bool aligned);
/* The first launch: of one workgroup without rows and keys. The kernel has `more` pointers before the captures. */
attune_status attune__opencl_launch_empty(attune__opencl_device *device, attune__opencl_kernel *kernel, uint32_t more,
                                          const attune_expr *score);

typedef struct attune__opencl_mask {
    attune__device_mask base;
    attune_buffer *buffer;
    int64_t rows, columns, table; /* offsets */
    attune__cl_memory data;       /* where the expression's captures are */
    /* of a mask computed from a tensor */
    bool follows;
    uint64_t most_q_blocks, most_kv_blocks;
    pthread_mutex_t lock; /* of the kernels' arguments */
    attune__opencl_kernel classify, fill;
} attune__opencl_mask;

/* ----------------------------------------------------------------------------------------------------- arguments.c */

/* Describes a tensor, and sets the flag if every group of elements in it begins at a multiple of `alignment`. */
attune_opencl_tensor attune__opencl_tensor_describe(const attune_tensor *tensor, uint64_t alignment, uint32_t flag,
                                                    uint32_t *flags);
/* The tensors, lengths and mask of a call; `o_alignment` is that of the groups of o. Without a mask the blocks are of
 * kv_block keys and inner_q_block queries. */
void attune__opencl_arguments_describe(const attune__forward *call, uint64_t o_alignment, uint32_t kv_block,
                                       uint32_t inner_q_block, attune_opencl_arguments *arguments);
/* The tiles of queries. */
void attune__opencl_arguments_partition(const attune__partition *partition, attune_opencl_arguments *arguments);
/* UNSUPPORTED: the call has more tiles or partial results than the kernels count. */
attune_status attune__opencl_counts_check(const attune__forward *call, uint64_t tiles, uint32_t block_m,
                                          uint32_t splits);
/* The gradient of the capture `name`, whose exact sums are at an offset in the workspace. UNSUPPORTED: it has 2^32
 * elements or more. */
attune_status attune__opencl_sums_describe(const attune_tensor *out, const char *name, int64_t sums,
                                           attune_opencl_sums *described);
/* A capture at `offset`, whose strides are in elements; its gradient is not requested. */
attune_opencl_capture attune__opencl_capture_of(attune_dtype dtype, uint32_t rank, const int64_t *size,
                                                const int64_t *stride, int64_t offset);
/* The table of an expression, whose captures and parameters are by symbol; `sums` likewise: offsets in the workspace,
 * or NULL. */
void attune__opencl_table_of(const attune__forward *call, const attune_expr *expr, const attune_tensor *captures,
                             const attune__value *parameters, const int64_t *sums, attune_opencl_table *table);
/* The arguments that every attention kernel begins with: the struct and pointers. Those of captures are the last. */
#define ATTUNE__OPENCL_POINTERS 10
void attune__opencl_set_forward(attune__opencl_setter *setter, const attune_opencl_arguments *arguments,
                                const attune__forward *call);
/* captures NULL: of the launch with nothing to do. */
void attune__opencl_set_captures(attune__opencl_setter *setter, const attune_expr *expr, const attune_tensor *captures);

/* ------------------------------------------------------------------------------------------------------- serving.c */

/* Fills the cache's and the batch's part of the arguments, without the tables of the expressions. */
void attune__opencl_serving_describe(const attune__forward *call, attune_opencl_cache *cache);
/* The pointers after attune__opencl_set_forward's; NULL: of the launch with nothing to do. */
#define ATTUNE__OPENCL_SERVING_POINTERS 10
void attune__opencl_serving_set(attune__opencl_setter *setter, const attune__serving *serving,
                                const attune_buffer *schedule);

/* -------------------------------------------------------------------------------------------------------- append.c */

/* The first launch, of a row without heads. */
attune_status attune__opencl_append_first(attune__opencl_device *device, attune__opencl_kernel *kernel);

/* ------------------------------------------------------------------------------------------------------ schedule.c */

/* The kernels that all plans over a cache share. */
attune_status attune__opencl_step_build(attune__opencl_device *device, const attune__program_desc *desc,
                                        attune__opencl_program *program);
/* Whether tiles of the call may have parts: its cache has more keys than two. */
bool attune__opencl_has_parts(const attune__opencl_program *program, const attune__forward *call);
/* `schedule`: its offset in its object. */
attune_opencl_parts attune__opencl_parts_describe(const attune__opencl_program *program, int64_t schedule);
/* Under the program's lock; `tiles` has those of the call, numbered as the plan's. */
void attune__opencl_schedule_launch(attune__opencl_program *program, const attune__forward *call,
                                    const attune_opencl_arguments *tiles, const attune_opencl_parts *parts,
                                    const attune_buffer *schedule, attune__opencl_call *commands);

/* -------------------------------------------------------------------------------------------------------- launch.c */

/* The sizes and tiles of a call with parts. Tiles are numbered by the plan's rows: the calls that share a schedule may
 * have other rows of q. */
void attune__opencl_tiles_describe(const attune__opencl_program *program, const attune__forward *call,
                                   attune_opencl_arguments *arguments);
/* The work of one launch, so that no driver's watchdog takes a long call for a hung one: a tenth of a second at 4
 * GFLOP/s of each compute unit, which phones reach, half at 40 of a card's. */
double attune__opencl_launch_flops(const attune__opencl_device *device);
/* Likewise the workgroups of one launch, of `flops` each: all launches but the last have as many. */
uint64_t attune__opencl_launch_most(const attune__opencl_device *device, uint64_t workgroups, double flops);

#endif
