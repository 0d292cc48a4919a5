/* SPDX-License-Identifier: MIT */
/* Merging: one workgroup for each row. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "vulkan/launch.h"

#include "shaders/merge.h"
#include "shaders/merge_bf16.h"
#include "shaders/merge_f16.h"

_Static_assert(ATTUNE_VULKAN_MERGE_PARTS == ATTUNE__MERGE_PARTS, "the parts of a launch");
_Static_assert(sizeof(attune_vulkan_merge) <= ATTUNE__MERGE_WORKSPACE, "the workspace of a launch");

typedef struct merger {
    attune__program base;
    attune__vulkan_pipeline f16, bf16; /* either takes f32 too */
} merger;

attune_status attune__vulkan_merger_create(attune_device *device, attune__program **program)
{
    merger *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    attune_status status = attune__vulkan_pipeline_prebuilt(
        attune__vulkan_of(device), "merge_f16", attune__spirv_merge_f16, sizeof attune__spirv_merge_f16, &made->f16);
    if (status == ATTUNE_OK)
        status = attune__vulkan_pipeline_prebuilt(attune__vulkan_of(device), "merge_bf16", attune__spirv_merge_bf16,
                                                  sizeof attune__spirv_merge_bf16, &made->bf16);
    if (status == ATTUNE_OK)
        *program = &made->base;
    else
        attune__vulkan_merger_destroy(&made->base);
    return status;
}

void attune__vulkan_merger_destroy(attune__program *program)
{
    merger *mine = (merger *)program;
    const attune_allocator allocator = program->device->host.allocator;
    attune__vulkan_device *device = attune__vulkan_of(program->device);
    attune__vulkan_pipeline_destroy(device, &mine->f16);
    attune__vulkan_pipeline_destroy(device, &mine->bf16);
    attune__free(&allocator, mine);
}

static attune_vulkan_merge_view describe(const attune_tensor *tensor)
{
    if (!tensor->buffer)
        return (attune_vulkan_merge_view){.address = 0};
    const int64_t bytes = (int64_t)attune_dtype_size(tensor->dtype);
    return (attune_vulkan_merge_view){
        .address = attune__vulkan_address(tensor->buffer, tensor->offset),
        .stride_b = tensor->stride[0] * bytes,
        .stride_h = tensor->stride[1] * bytes,
        .stride_row = tensor->stride[2] * bytes,
        .is_f32 = tensor->dtype == ATTUNE_F32,
    };
}

#define MERGE attune_vulkan_merge
#include "arguments/merge_tmpl.h"

/* Those of f32 fit either. */
static bool is_bf16(const attune__merge *call)
{
    bool bf16 = call->o.dtype == ATTUNE_BF16 || call->d_o.dtype == ATTUNE_BF16;
    for (uint32_t i = 0; i < call->part_count; i++)
        bf16 = bf16 || call->parts[i].o.dtype == ATTUNE_BF16;
    return bf16;
}

static attune_status launch(const attune__program *program, const attune__merge *call, bool backward, uint64_t *value)
{
    const merger *mine = (const merger *)program;
    attune__vulkan_device *device = attune__vulkan_of(program->device);
    attune_vulkan_merge a = describe_call(call);
    a.backward = backward;
    const uint64_t rows = (uint64_t)(call->o.size[0] * call->o.size[1] * call->o.size[2]);
    if (rows > UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the merge has %llu rows, device %s takes fewer than 2^32",
                            (unsigned long long)rows, program->device->info.id);
    const attune__vulkan_pipeline *pipeline = is_bf16(call) ? &mine->bf16 : &mine->f16;
    const attune__vulkan_buffer *workspace = (const attune__vulkan_buffer *)call->workspace;
    attune__vulkan_slot *slot;
    ATTUNE__TRY(attune__vulkan_begin(device, call->seconds != NULL, &slot));
    device->vk.CmdUpdateBuffer(slot->commands, workspace->handle, workspace->offset + call->workspace_offset, sizeof a,
                               &a);
    attune__vulkan_barrier(device, slot->commands);
    attune__vulkan_dispatch(device, slot->commands, pipeline,
                            attune__vulkan_address(call->workspace, call->workspace_offset), 0, rows);
    return call->seconds ? attune__vulkan_finish(device, slot, value, call->seconds)
                         : attune__vulkan_submit(device, slot, value);
}

attune_status attune__vulkan_merge(const attune__program *program, attune_queue *queue, const attune__merge *call,
                                   uint64_t *value)
{
    (void)queue; /* a device has one */
    return launch(program, call, false, value);
}

attune_status attune__vulkan_merge_backward(const attune__program *program, attune_queue *queue,
                                            const attune__merge *call, uint64_t *value)
{
    (void)queue;
    return launch(program, call, true, value);
}
