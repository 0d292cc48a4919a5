/* SPDX-License-Identifier: MIT */
/* Verifies that a driver's fragment layout is the one of limits.fragment_layout. */
#include "vulkan/launch.h"

#include "base/error.h"

#if ATTUNE_HAVE_COOPERATIVE_MATRIX
#include "shaders/fragment_layout.h"
#include "shaders/types.h"

#define MAX_ELEMENTS 1024

typedef struct arguments {
    ATTUNE_PUSH_FRAGMENT_LAYOUT
} arguments;

/* As row_at and column_at in shaders/fragments.glsl. */
static uint32_t element_at(const attune_limits *limits, uint32_t lane, uint32_t e)
{
    const bool quads = limits->fragment_layout == ATTUNE_FRAGMENT_QUADS;
    const uint32_t row = quads ? lane / 4 + e / 4 * 8 : e;
    return row * limits->matrix_n + (quads ? lane % 4 * 2 + e % 2 + e / 2 % 2 * 8 : lane);
}

static attune_status read_layout(attune__vulkan_device *device, attune_buffer *buffer, uint32_t *elements,
                                 uint32_t count)
{
    const attune_limits *limits = &device->physical.info.limits;
    const attune__vulkan_fragment_constants matrix = {.LANES = limits->subgroup_size,
                                                      .MATRIX_M = limits->matrix_m,
                                                      .MATRIX_N = limits->matrix_n,
                                                      .LENGTH = count / limits->subgroup_size};
    uint32_t constants[ATTUNE__VULKAN_CONSTANTS] = {0};
    attune__vulkan_set_fragment_layout(&matrix, constants);
    const arguments push = {.result = attune__vulkan_address(buffer, 0)};
    const attune__vulkan_pipeline_desc desc = {
        .name = "fragment layout",
        .words = attune__spirv_fragment_layout,
        .word_count = sizeof attune__spirv_fragment_layout / sizeof *attune__spirv_fragment_layout,
        .push_constants = sizeof push,
        .constants = constants,
        .subgroup_size = limits->subgroup_size,
    };
    attune__vulkan_pipeline pipeline;
    ATTUNE__TRY(attune__vulkan_pipeline_create(device, &desc, &pipeline));
    attune__vulkan_slot *slot;
    double seconds;
    attune_status status = attune__vulkan_begin(device, true, &slot);
    if (status == ATTUNE_OK) {
        device->vk.CmdBindPipeline(slot->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.handle);
        device->vk.CmdPushConstants(slot->commands, pipeline.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof push,
                                    &push);
        device->vk.CmdDispatch(slot->commands, 1, 1, 1);
        status = attune__vulkan_finish(device, slot, NULL, &seconds);
    }
    if (status == ATTUNE_OK)
        status = attune__vulkan_buffer_read(buffer, 0, elements, (count + 1) * sizeof *elements);
    attune__vulkan_pipeline_destroy(device, &pipeline);
    return status;
}

/* *same: whether the layouts agree. If the driver rejects the kernel, they do not, which is no failure. */
static attune_status probe(attune__vulkan_device *device, bool *same)
{
    const attune_limits *limits = &device->physical.info.limits;
    /* Each lane's elements, and whether conversions to f16 round to nearest, which QUADS stands for too. */
    uint32_t elements[MAX_ELEMENTS + 1];
    const uint32_t count = limits->matrix_m * limits->matrix_n, length = count / limits->subgroup_size;
    attune_buffer *buffer = NULL;
    attune_status status = count <= MAX_ELEMENTS ? ATTUNE_OK : ATTUNE_UNSUPPORTED;
    if (status == ATTUNE_OK)
        status = attune__vulkan_buffer_create(&device->base, (count + 1) * sizeof *elements, &buffer);
    if (status == ATTUNE_OK)
        status = read_layout(device, buffer, elements, count);
    *same = status == ATTUNE_OK && (elements[count] || limits->fragment_layout != ATTUNE_FRAGMENT_QUADS);
    for (uint32_t i = 0; *same && i < count; i++) {
        const uint32_t at = element_at(limits, i / length, i % length);
        *same = elements[i] == (at | at << 16);
    }
    if (buffer)
        attune__vulkan_buffer_destroy(buffer);
    const bool hard =
        status == ATTUNE_OUT_OF_HOST_MEMORY || status == ATTUNE_OUT_OF_DEVICE_MEMORY || status == ATTUNE_DEVICE_LOST;
    return hard ? status : ATTUNE_OK;
}

attune_status attune__vulkan_fragment_layout_verify(attune__vulkan_device *device)
{
    attune_limits *limits = &device->physical.info.limits;
    /* On the CPU the planner uses matrices only where the caller names the kernel. */
    if (!limits->fragment_layout || limits->host)
        return ATTUNE_OK;
    bool same;
    ATTUNE__TRY(probe(device, &same));
    if (!same)
        limits->fragment_layout = 0;
    device->base.info.limits.fragment_layout = limits->fragment_layout;
    return ATTUNE_OK;
}

attune_status attune__vulkan_fragment_layout_require(attune__vulkan_device *device)
{
    if (!device->physical.info.limits.fragment_layout || !device->physical.info.limits.host)
        return ATTUNE_OK;
    bool same;
    ATTUNE__TRY(probe(device, &same));
    return same ? ATTUNE_OK
                : attune__fail(ATTUNE_UNSUPPORTED, "this driver's fragment layout of matrices is not the one that "
                                                   "attune knows: leave KERNEL to the planner");
}
#else
attune_status attune__vulkan_fragment_layout_verify(attune__vulkan_device *device)
{
    (void)device;
    return ATTUNE_OK;
}

attune_status attune__vulkan_fragment_layout_require(attune__vulkan_device *device)
{
    (void)device;
    return ATTUNE_OK;
}
#endif
