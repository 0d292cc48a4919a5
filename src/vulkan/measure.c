/* SPDX-License-Identifier: MIT */
/*
 * The peaks that shares are reported of: independent multiply-adds, of the units that kernels of the dtype use (f16 on
 * cooperative matrices into f32, where there are such; else f16 in pairs, and bf16 in f32), and a large copy by the
 * device: the better of its own and a kernel's, since some drivers copy with an engine that reaches a fifth of the
 * memory's bandwidth.
 */
#include "vulkan/launch.h"

#include <time.h>

#include "base/error.h"
#include "shaders/copy.h"
#include "shaders/measure_f16.h"
#include "shaders/measure_f32.h"
#include "shaders/types.h"

#if ATTUNE_HAVE_COOPERATIVE_MATRIX
#include "shaders/measure_matrix_bf16.h"
#include "shaders/measure_matrix_f16.h"
#endif

#define SECONDS 0.3
#define MIB     (UINT64_C(1) << 20)

/* FLOP of a thread in a round, and of a subgroup for each product of elements. An FMA counts two. */
#define ROUND_FLOPS        (2.0 * ATTUNE_MEASURE_ELEMENTS * ATTUNE_MEASURE_STEPS)
#define MATRIX_ROUND_FLOPS (2.0 * ATTUNE_MEASURE_MATRICES_A * ATTUNE_MEASURE_MATRICES_B * ATTUNE_MEASURE_MATRIX_STEPS)

#define MAX_WIDTH      256u
#define ENOUGH_SECONDS 2e-3 /* of a launch, against what starting it costs */

typedef struct arguments {
    ATTUNE_PUSH_MEASURE
} arguments;

typedef struct copy_arguments {
    ATTUNE_PUSH_COPY
} copy_arguments;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static attune_status launch(attune__vulkan_device *device, const attune__vulkan_pipeline *pipeline,
                            const arguments *push, uint32_t groups, double *seconds)
{
    attune__vulkan_slot *slot;
    ATTUNE__TRY(attune__vulkan_begin(device, true, &slot));
    device->vk.CmdBindPipeline(slot->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->handle);
    device->vk.CmdPushConstants(slot->commands, pipeline->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof *push, push);
    device->vk.CmdDispatch(slot->commands, groups, 1, 1);
    return attune__vulkan_finish(device, slot, NULL, seconds);
}

static attune_status repeat_launch(attune__vulkan_device *device, const attune__vulkan_pipeline *pipeline,
                                   uint64_t address, double round, double *flops)
{
    const uint32_t groups = 32 * device->physical.info.limits.compute_units;
    arguments push = {.result = address, .rounds = 64, .factor = -1.0f, .term = 0.25f};
    double best = 0;
    for (const double start = now(); best == 0 || now() - start < SECONDS;) {
        double seconds;
        ATTUNE__TRY(launch(device, pipeline, &push, groups, &seconds));
        const double rate = round * push.rounds * groups / seconds;
        /* Once the time is over a short launch counts, if there was no other. */
        if (seconds < ENOUGH_SECONDS && now() - start < SECONDS && push.rounds < UINT32_C(1) << 20)
            push.rounds *= 2;
        else if (rate > best)
            best = rate;
    }
    *flops = best;
    return ATTUNE_OK;
}

/* round: the operations of a round of one workgroup. */
static attune_status measure_pipeline(attune__vulkan_device *device, const attune__vulkan_pipeline_desc *desc,
                                      double round, double *flops)
{
    attune__vulkan_pipeline pipeline;
    ATTUNE__TRY(attune__vulkan_pipeline_create(device, desc, &pipeline));
    attune__vulkan_range *range;
    attune_status status = attune__vulkan_range_create(device, sizeof(float), &range);
    if (status == ATTUNE_OK) {
        status = repeat_launch(device, &pipeline, range->block->address + range->offset, round, flops);
        attune__vulkan_range_destroy(device, range);
    }
    attune__vulkan_pipeline_destroy(device, &pipeline);
    return status;
}

static attune_status measure_scalars(attune__vulkan_device *device, bool f16, double *flops)
{
    const uint32_t most = device->physical.info.limits.workgroup_invocations;
    const uint32_t width = most < MAX_WIDTH ? most : MAX_WIDTH;
    uint32_t constants[ATTUNE__VULKAN_CONSTANTS] = {0};
    attune__vulkan_set_measure(&(attune__vulkan_measure_constants){.THREADS = width}, constants);
    const attune__vulkan_pipeline_desc desc = {
        .name = f16 ? "measure_f16" : "measure_f32",
        .words = f16 ? attune__spirv_measure_f16 : attune__spirv_measure_f32,
        .word_count = (f16 ? sizeof attune__spirv_measure_f16 : sizeof attune__spirv_measure_f32) / sizeof(uint32_t),
        .push_constants = sizeof(arguments),
        .constants = constants,
    };
    return measure_pipeline(device, &desc, ROUND_FLOPS * width, flops);
}

#if ATTUNE_HAVE_COOPERATIVE_MATRIX
static attune_status measure_matrices(attune__vulkan_device *device, bool bf16, double *flops)
{
    const attune_limits *limits = &device->physical.info.limits;
    const uint32_t most = limits->workgroup_invocations < MAX_WIDTH ? limits->workgroup_invocations : MAX_WIDTH;
    const uint32_t subgroups = most / limits->subgroup_size ? most / limits->subgroup_size : 1;
    const attune__vulkan_measure_constants matrices = {.THREADS = subgroups * limits->subgroup_size,
                                                       .MATRIX_M = limits->matrix_m,
                                                       .MATRIX_N = limits->matrix_n,
                                                       .MATRIX_K = limits->matrix_k};
    uint32_t constants[ATTUNE__VULKAN_CONSTANTS] = {0};
    attune__vulkan_set_measure(&matrices, constants);
    const attune__vulkan_pipeline_desc desc = {
        .name = bf16 ? "measure_matrix_bf16" : "measure_matrix_f16",
        .words = bf16 ? attune__spirv_measure_matrix_bf16 : attune__spirv_measure_matrix_f16,
        .word_count = (bf16 ? sizeof attune__spirv_measure_matrix_bf16 : sizeof attune__spirv_measure_matrix_f16) /
                      sizeof(uint32_t),
        .push_constants = sizeof(arguments),
        .constants = constants,
        .subgroup_size = limits->subgroup_size,
    };
    const double product = (double)limits->matrix_m * limits->matrix_n * limits->matrix_k;
    return measure_pipeline(device, &desc, MATRIX_ROUND_FLOPS * product * subgroups, flops);
}
#else
static attune_status measure_matrices(attune__vulkan_device *device, bool bf16, double *flops)
{
    (void)device, (void)bf16, (void)flops;
    return attune__fail(ATTUNE_INTERNAL, "matrices were not compiled into this library");
}
#endif

static attune_status measure_flops(attune__vulkan_device *device, attune_dtype dtype, double *flops)
{
    const bool f16 = dtype == ATTUNE_F16 && device->physical.features.float16;
    const bool bf16 = dtype == ATTUNE_BF16 && device->physical.info.limits.bf16;
    if ((f16 || bf16) && device->physical.info.limits.matrix & ATTUNE_MATRIX_COOPMAT)
        return measure_matrices(device, bf16, flops);
    return measure_scalars(device, f16, flops);
}

static attune_status copy(attune__vulkan_device *device, const attune__vulkan_range *from,
                          const attune__vulkan_range *to, double *seconds)
{
    attune__vulkan_slot *slot;
    ATTUNE__TRY(attune__vulkan_begin(device, true, &slot));
    const VkBufferCopy region = {.srcOffset = from->offset, .dstOffset = to->offset, .size = from->size};
    device->vk.CmdCopyBuffer(slot->commands, from->block->buffer, to->block->buffer, 1, &region);
    return attune__vulkan_finish(device, slot, NULL, seconds);
}

#define COPY_BYTES (ATTUNE_COPY_THREADS * ATTUNE_COPY_STEPS * 16) /* of a workgroup */

static attune_status copy_by_kernel(attune__vulkan_device *device, const attune__vulkan_pipeline *pipeline,
                                    const attune__vulkan_range *from, const attune__vulkan_range *to, double *seconds)
{
    attune__vulkan_slot *slot;
    const copy_arguments push = {from->block->address + from->offset, to->block->address + to->offset};
    ATTUNE__TRY(attune__vulkan_begin(device, true, &slot));
    device->vk.CmdBindPipeline(slot->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->handle);
    device->vk.CmdPushConstants(slot->commands, pipeline->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof push, &push);
    device->vk.CmdDispatch(slot->commands, (uint32_t)(from->size / COPY_BYTES), 1, 1);
    return attune__vulkan_finish(device, slot, NULL, seconds);
}

static attune_status measure_bandwidth(attune__vulkan_device *device, double *bandwidth)
{
    /* Past every cache; on a small device, a little of its memory. */
    uint64_t size = device->physical.type == VK_PHYSICAL_DEVICE_TYPE_CPU ? 64 * MIB : 512 * MIB;
    while (size > MIB && (size > device->physical.heap / 16 || size > device->memory.max_size))
        size /= 2;
    const attune__vulkan_pipeline_desc desc = {
        .name = "copy",
        .words = attune__spirv_copy,
        .word_count = sizeof attune__spirv_copy / sizeof(uint32_t),
        .push_constants = sizeof(copy_arguments),
    };
    attune__vulkan_range *from, *to = NULL;
    attune__vulkan_pipeline pipeline = {0};
    ATTUNE__TRY(attune__vulkan_range_create(device, size, &from));
    attune_status status = attune__vulkan_range_create(device, size, &to);
    if (status == ATTUNE_OK)
        status = attune__vulkan_pipeline_create(device, &desc, &pipeline);
    double best = 0;
    uint32_t copies = 0;
    for (const double start = now(); status == ATTUNE_OK && (copies < 4 || now() - start < SECONDS); copies++) {
        double seconds;
        status = copies % 2 ? copy(device, from, to, &seconds) : copy_by_kernel(device, &pipeline, from, to, &seconds);
        if (status == ATTUNE_OK && 2.0 * (double)size / seconds > best)
            best = 2.0 * (double)size / seconds;
    }
    *bandwidth = best;
    attune__vulkan_pipeline_destroy(device, &pipeline);
    if (to)
        attune__vulkan_range_destroy(device, to);
    attune__vulkan_range_destroy(device, from);
    return status;
}

attune_status attune__vulkan_measure(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth)
{
    attune__vulkan_device *mine = attune__vulkan_of(device);
    if (dtype == ATTUNE_F64)
        return attune__fail(ATTUNE_UNSUPPORTED, "device %s: the Vulkan kernels do not compute in f64", device->info.id);
    if (flops)
        ATTUNE__TRY(measure_flops(mine, dtype, flops));
    return bandwidth ? measure_bandwidth(mine, bandwidth) : ATTUNE_OK;
}
