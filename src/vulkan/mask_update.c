/* SPDX-License-Identifier: MIT */
/*
 * Masks that follow a tensor. One buffer holds the arguments of the kernels of shaders/mask_lists.comp, a word for each
 * block, the lists with space for every block in each row, and the expression's table, which every update writes anew.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "mask/upload.h"
#include "vulkan/launch.h"

#include "shaders/mask_classify.h"
#include "shaders/mask_fill.h"
#include "shaders/mask_lists.h"

#define ARGUMENTS UINT64_C(256) /* where the words of blocks begin, after the arguments */

_Static_assert(sizeof(attune_vulkan_mask_lists) <= ARGUMENTS, "the arguments' part of the buffer");

/* Counted as bytes from the first and as dispatched workgroups, in 32 bits. */
#define MOST_BLOCKS (INT64_C(1) << 30)

/* The lists are after the words of blocks, and the expression's table at their end. */
static attune__upload_lists layout_of(const attune_mask *mask)
{
    const uint64_t planes = (uint64_t)(mask->stored_batch * mask->stored_heads);
    const uint64_t rows = planes * (uint64_t)mask->q_blocks, columns = planes * (uint64_t)mask->kv_blocks;
    const uint64_t blocks = rows * (uint64_t)mask->kv_blocks;
    return attune__upload_lists_make(ARGUMENTS + blocks * sizeof(uint32_t), rows, columns, blocks);
}

attune_status attune__vulkan_mask_create_tensor(attune_device *device, const attune_mask *mask,
                                                attune__device_mask **device_mask)
{
    const attune_allocator *allocator = &device->host.allocator;
    attune__vulkan_device *mine = attune__vulkan_of(device);
    const int64_t blocks = mask->stored_batch * mask->stored_heads * mask->q_blocks;
    if (blocks > MOST_BLOCKS / mask->kv_blocks)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "the mask has %lld x %lld blocks, %s takes at most 2^30: make the blocks larger",
                            (long long)blocks, (long long)mask->kv_blocks, device->info.id);
    const attune__upload_lists l = layout_of(mask);
    attune__vulkan_mask *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->longest = (uint32_t)mask->kv_blocks;
    made->longest_column = (uint32_t)mask->q_blocks;
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    made->table = attune__alloc(allocator, attune__mods_table_size(mask->expr), 1);
    if (made->table)
        status = attune__vulkan_pipeline_prebuilt(mine, "mask_classify", attune__spirv_mask_classify,
                                                  sizeof attune__spirv_mask_classify, &made->classify);
    if (status == ATTUNE_OK)
        status = attune__vulkan_pipeline_prebuilt(mine, "mask_fill", attune__spirv_mask_fill,
                                                  sizeof attune__spirv_mask_fill, &made->fill);
    if (status == ATTUNE_OK)
        status = attune__vulkan_buffer_create(device, l.end + attune__mods_table_size(mask->expr), &made->buffer);
    if (status != ATTUNE_OK) {
        attune__vulkan_mask_release(&made->base);
        return status;
    }
    const uint64_t address = attune__vulkan_address(made->buffer, 0);
    made->rows = address + l.rows;
    made->columns = address + l.columns;
    made->mod = address + l.end;
    *device_mask = &made->base;
    return ATTUNE_OK;
}

#define LISTS attune_vulkan_mask_lists
#include "arguments/lists_tmpl.h"

static attune_vulkan_mask_lists describe(const attune_mask *mask, const attune__vulkan_mask *made,
                                         const attune_tensor *tensor)
{
    const uint64_t address = attune__vulkan_address(made->buffer, 0);
    /* Offsets are those of the longest lengths. */
    attune_mask most = *mask;
    most.q_blocks = made->longest_column;
    most.kv_blocks = made->longest;
    const attune__upload_lists l = layout_of(&most);
    attune_vulkan_mask_lists a = describe_lists(mask, tensor);
    a.tensor = attune__vulkan_address(tensor->buffer, tensor->offset);
    a.classes = address + ARGUMENTS;
    a.rows = made->rows;
    a.entries = address + l.entries;
    a.columns = made->columns;
    a.column_entries = address + l.column_entries;
    return a;
}

/* The mask's expression reads the tensor in place. */
static void pack_table(const attune_mask *mask, uint64_t tensor, void *out)
{
    const attune_array *array = &mask->captures[0];
    attune__mods_table table = {
        .q_len = mask->expr_q_len,
        .kv_len = mask->expr_kv_len,
        .group = mask->expr_heads / mask->expr_kv_heads,
    };
    table.captures[0] = attune__mods_capture_of(array->dtype, array->rank, array->size, array->stride, tensor);
    attune__mods_table_pack(mask->expr, &table, out);
}

static void record(attune__vulkan_device *device, VkCommandBuffer commands, const attune_mask *mask,
                   attune__vulkan_mask *made, const attune_tensor *tensor)
{
    const attune__vulkan_buffer *buffer = (const attune__vulkan_buffer *)made->buffer;
    const uint64_t address = attune__vulkan_address(made->buffer, 0);
    const attune_vulkan_mask_lists a = describe(mask, made, tensor);
    const uint64_t planes = (uint64_t)(mask->stored_batch * mask->stored_heads);
    pack_table(mask, a.tensor, made->table);
    device->vk.CmdUpdateBuffer(commands, buffer->handle, buffer->offset, sizeof a, &a);
    device->vk.CmdUpdateBuffer(commands, buffer->handle, buffer->offset + (made->mod - address),
                               attune__mods_table_size(mask->expr), made->table);
    attune__vulkan_barrier(device, commands);
    attune__vulkan_dispatch(device, commands, &made->classify, address, 0,
                            (uint64_t)a.row_count * (uint64_t)mask->kv_blocks);
    attune__vulkan_barrier(device, commands);
    attune__vulkan_dispatch(device, commands, &made->fill, address, 0,
                            (uint64_t)a.row_count + planes * (uint64_t)mask->kv_blocks);
}

attune_status attune__vulkan_mask_update(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                         const attune_tensor *tensor, uint64_t *value)
{
    attune__vulkan_device *device = attune__vulkan_of(queue->device);
    attune__vulkan_slot *slot;
    ATTUNE__TRY(attune__vulkan_begin(device, false, &slot));
    record(device, slot->commands, mask, (attune__vulkan_mask *)device_mask, tensor);
    return attune__vulkan_submit(device, slot, value);
}

void attune__vulkan_mask_record(const attune_mask *mask, attune__device_mask *device_mask, const attune_tensor *tensor,
                                const void *commands)
{
    attune__vulkan_device *device = attune__vulkan_of(device_mask->device);
    const VkCommandBuffer borrowed = *(const VkCommandBuffer *)commands;
    /* The queue's command buffers begin with a barrier. */
    attune__vulkan_barrier(device, borrowed);
    record(device, borrowed, mask, (attune__vulkan_mask *)device_mask, tensor);
}
