/* SPDX-License-Identifier: MIT */
/* Programs and uploaded masks, for launches. */
#ifndef ATTUNE_VULKAN_LAUNCH_H
#define ATTUNE_VULKAN_LAUNCH_H

#include "plan/layout.h"
#include "vulkan/arguments.h"
#include "vulkan/mods.h"
#include "vulkan/vulkan.h"

typedef struct attune__vulkan_program {
    attune__program base;
    attune__shape shape;
    attune_plan_choice choice;
    const attune_expr *score;
    const attune_expr *mask; /* of a plan over a cache, which calls evaluate; NULL = none */
    attune__vulkan_pipeline forward;
    attune__vulkan_pipeline aligned; /* for calls whose tensors are; handle VK_NULL_HANDLE: forward serves them */
    bool near_keys;                  /* aligned is for calls with keys whose heads' rows are near (launch.c) */
    attune__vulkan_pipeline combine; /* handle VK_NULL_HANDLE: no splits */
    uint32_t most_steps;             /* tiles of keys of a workgroup that the driver allows; 0 = no bound */
    /* backward: forward and aligned give dQ, and gradients of captures */
    const attune__gradient *gradient;
    attune__vulkan_pipeline delta, keys, keys_aligned, sums, sinks;
    uint32_t most_key_steps; /* tiles of queries of a workgroup of keys; 0 = no bound */
    /* of a plan over a cache */
    attune__shaders_parts parts;
    attune__vulkan_pipeline schedule, merge; /* handle VK_NULL_HANDLE: no parts */
    attune__vulkan_pipeline append;
    attune_buffer *append_arguments;
} attune__vulkan_program;

typedef struct attune__vulkan_mask {
    attune__device_mask base;
    attune_buffer *buffer;
    uint64_t rows, mod; /* addresses */
    uint64_t columns;   /* likewise, of the transposed lists */
    uint32_t longest;   /* blocks in one row, at most */
    uint32_t longest_column;
    /* of a mask computed from a tensor; NULL and VK_NULL_HANDLE in others */
    attune__vulkan_pipeline classify, fill;
    void *table; /* the expression's, as an update packs it */
} attune__vulkan_mask;

/* The least items of a section (plan/partition.h): some waves; a compute unit has one workgroup of the matrix kernel.
 */
static inline uint32_t attune__vulkan_section(const attune_device *device)
{
    return 4 * device->info.limits.compute_units;
}

/* A prebuilt module: the words of the array that a generated header defines. */
typedef struct attune__vulkan_module {
    const uint32_t *words;
    size_t count;
} attune__vulkan_module;

#define ATTUNE__VULKAN_MODULE(name)                                                                                    \
    {                                                                                                                  \
        name, sizeof name / sizeof name[0]                                                                             \
    }

/* Of a shader that is compiled for each dtype, in the order of attune__vulkan_dtype_index. */
#define ATTUNE__VULKAN_MODULES(name)                                                                                   \
    {                                                                                                                  \
        ATTUNE__VULKAN_MODULE(attune__spirv_##name##_f32), ATTUNE__VULKAN_MODULE(attune__spirv_##name##_f16),          \
            ATTUNE__VULKAN_MODULE(attune__spirv_##name##_bf16)                                                         \
    }
static inline uint32_t attune__vulkan_dtype_index(attune_dtype dtype)
{
    return dtype == ATTUNE_F32 ? 0 : dtype == ATTUNE_F16 ? 1 : 2;
}

/* The specialisation constants that all attention kernels have, and those of the measurements. */
#define CONSTANT(id, type, name, value) uint32_t name;
typedef struct attune__vulkan_common {
#include "shaders/constants.h"
} attune__vulkan_common;
typedef struct attune__vulkan_measure_constants {
#include "shaders/constants_measure.h"
} attune__vulkan_measure_constants;
typedef struct attune__vulkan_fragment_constants {
#include "shaders/constants_fragment_layout.h"
} attune__vulkan_fragment_constants;
#undef CONSTANT

/* constants.c: write a list's constants to constants[id]. */
void attune__vulkan_set_common(const attune__vulkan_common *from, uint32_t *constants);
void attune__vulkan_set_forward(const attune__forward_layout *from, uint32_t *constants);
void attune__vulkan_set_decode(const attune__decode_layout *from, uint32_t *constants);
void attune__vulkan_set_backward(const attune__backward_layout *from, uint32_t *constants);
void attune__vulkan_set_matrix(const attune__matrix_layout *from, uint32_t *constants);
void attune__vulkan_set_registers(const attune__registers_layout *from, uint32_t *constants);
void attune__vulkan_set_backward_matrix(const attune__backward_matrix_layout *from, uint32_t *constants);
void attune__vulkan_set_measure(const attune__vulkan_measure_constants *from, uint32_t *constants);
void attune__vulkan_set_fragment_layout(const attune__vulkan_fragment_constants *from, uint32_t *constants);

/* The kernel of a choice: a prebuilt module and its specialisation constants, by id. */
typedef struct attune__vulkan_kernel {
    const uint32_t *words;
    size_t word_count;
    bool subgroups; /* their size is required */
    uint32_t constants[ATTUNE__VULKAN_CONSTANTS];
} attune__vulkan_kernel;

/* For tensors of which every group of elements is aligned, or for any. UNSUPPORTED if the library has no module for the
 * choice's kernel. */
attune_status attune__vulkan_specialise(const attune_limits *limits, const attune__program_desc *desc, bool aligned,
                                        attune__vulkan_kernel *kernel);

/* Of a backward choice, the kernel for dK and dV (`keys`) or the one for dQ. */
attune_status attune__vulkan_specialise_backward(const attune_limits *limits, const attune__program_desc *desc,
                                                 bool keys, bool aligned, attune__vulkan_kernel *kernel);

/* backward.c: adds the pipelines of a backward program. */
attune_status attune__vulkan_backward_pipelines(attune_device *device, const attune__program_desc *desc,
                                                attune__vulkan_program *program, attune__vulkan_pipelines *list);

/* append.c: what a program of a plan over a cache appends with, from the constants of its kernel. */
attune_status attune__vulkan_append_pipeline(attune_device *device, const attune__vulkan_kernel *kernel,
                                             attune__vulkan_program *program, attune__vulkan_pipelines *list);

/* schedule.c: the kernels that divide the work of a batch and that merge parts, likewise. */
attune_status attune__vulkan_schedule_pipelines(attune_device *device, const attune__vulkan_kernel *kernel,
                                                attune__vulkan_program *program, attune__vulkan_pipelines *list);

/* pipeline.c. A prebuilt module without expressions or constants, whose push constants are attune__vulkan_push. */
attune_status attune__vulkan_pipeline_prebuilt(attune__vulkan_device *device, const char *name, const uint32_t *words,
                                               size_t bytes, attune__vulkan_pipeline *pipeline);
/* Adds a prebuilt module without expressions. `constants` has ATTUNE__VULKAN_CONSTANTS. */
attune_status attune__vulkan_pipelines_prebuilt(attune_device *device, attune__vulkan_pipelines *list,
                                                const attune__vulkan_module *module, const char *name,
                                                const uint32_t *constants, attune__vulkan_pipeline *pipeline);
/* Adds a prebuilt module that expressions are put into, with two sets of constants: for tensors of any alignment, and
 * for aligned ones. */
attune_status attune__vulkan_pipelines_pair(attune_device *device, attune__vulkan_pipelines *list,
                                            const attune__program_desc *desc, const attune__vulkan_kernel kernels[2],
                                            attune__vulkan_pipeline *any, attune__vulkan_pipeline *aligned);

/* launch.c, for both directions. */

/* Whether tiles may have parts: a cache that cannot hold the keys of two has neither schedule nor merge. */
static inline bool attune__vulkan_has_parts(const attune__shaders_parts *parts, const attune__forward *call)
{
    const attune__serving_sizes sizes = attune__serving_sizes_of(call);
    const uint64_t keys = (uint64_t)sizes.page * (call->serving->pages.buffer ? sizes.entries : 1);
    return parts->slots && keys > 2 * ATTUNE__SHADERS_PART_KEYS;
}

/* The bound of a submission: half a second at 4 GFLOP/s of each compute unit, which phones reach, or at 40 of a
 * card's. */
double attune__vulkan_submission_flops(const attune__vulkan_device *device);
/* Submits; with `total` waits, and adds the seconds to it. */
attune_status attune__vulkan_end(attune__vulkan_device *device, attune__vulkan_slot *slot, double *total,
                                 uint64_t *value);
/* Workgroups `first` to before `end`, in dispatches that every device takes. */
void attune__vulkan_dispatch(const attune__vulkan_device *device, VkCommandBuffer commands,
                             const attune__vulkan_pipeline *pipeline, uint64_t arguments, uint64_t first, uint64_t end);

#endif
