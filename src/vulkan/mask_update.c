/* SPDX-License-Identifier: MIT */
/*
 * Masks that follow a tensor. One buffer holds the arguments of the kernels of shaders/mask_lists.comp, a word for each
 * block, the lists with space for every block in each row, and the expression's table, which every update writes anew.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/round.h"
#include "vulkan/launch.h"

#include "shaders/mask_classify.h"
#include "shaders/mask_fill.h"
#include "shaders/mask_lists.h"

#define ARGUMENTS UINT64_C(256) /* where the words of blocks begin, after the arguments */

_Static_assert(sizeof(attune_vulkan_mask_lists) <= ARGUMENTS, "the arguments' part of the buffer");

/* Counted as bytes from the first and as dispatched workgroups, in 32 bits. */
#define MOST_BLOCKS (INT64_C(1) << 30)

/* The offsets of the parts, and the size. */
typedef struct layout {
    uint64_t rows, entries, columns, column_entries, mod, size;
} layout;

static layout layout_of(const attune_mask *mask)
{
    const uint64_t planes = (uint64_t)(mask->stored_batch * mask->stored_heads);
    const uint64_t rows = planes * (uint64_t)mask->q_blocks, columns = planes * (uint64_t)mask->kv_blocks;
    const uint64_t entries = rows * (uint64_t)mask->kv_blocks * sizeof(uint32_t);
    layout l = {.rows = attune__round_up64(ARGUMENTS + entries, 16)};
    l.entries = l.rows + rows * sizeof(attune_vulkan_mask_row);
    l.columns = attune__round_up64(l.entries + entries, 16);
    l.column_entries = l.columns + columns * sizeof(attune_vulkan_mask_row);
    l.mod = attune__round_up64(l.column_entries + entries, 16);
    l.size = l.mod + attune__mods_table_size(mask->expr);
    return l;
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
    const layout l = layout_of(mask);
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
        status = attune__vulkan_buffer_create(device, l.size, &made->buffer);
    if (status != ATTUNE_OK) {
        attune__vulkan_mask_release(&made->base);
        return status;
    }
    const uint64_t address = attune__vulkan_address(made->buffer, 0);
    made->rows = address + l.rows;
    made->columns = address + l.columns;
    made->mod = address + l.mod;
    *device_mask = &made->base;
    return ATTUNE_OK;
}

static attune_vulkan_mask_lists describe(const attune_mask *mask, const attune__vulkan_mask *made,
                                         const attune_tensor *tensor)
{
    const int64_t element = (int64_t)attune_dtype_size(tensor->dtype);
    const uint64_t address = attune__vulkan_address(made->buffer, 0);
    /* Offsets are those of the longest lengths. */
    attune_mask most = *mask;
    most.q_blocks = made->longest_column;
    most.kv_blocks = made->longest;
    const layout l = layout_of(&most);
    return (attune_vulkan_mask_lists){
        .tensor = attune__vulkan_address(tensor->buffer, tensor->offset),
        .stride_b = tensor->stride[0] * element,
        .stride_h = tensor->stride[1] * element,
        .stride_q = tensor->stride[2] * element,
        .stride_kv = tensor->stride[3] * element,
        .classes = address + ARGUMENTS,
        .rows = made->rows,
        .entries = address + l.entries,
        .columns = made->columns,
        .column_entries = address + l.column_entries,
        .heads = (uint32_t)mask->stored_heads,
        .q_len = (uint32_t)mask->q_len,
        .kv_len = (uint32_t)mask->kv_len,
        .q_block = mask->q_block,
        .kv_block = mask->kv_block,
        .q_blocks = (uint32_t)mask->q_blocks,
        .kv_blocks = (uint32_t)mask->kv_blocks,
        .element = (uint32_t)element,
        .forbidden = attune__mask_forbidden(tensor->dtype),
        .row_count = (uint32_t)(mask->stored_batch * mask->stored_heads * mask->q_blocks),
    };
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
    attune__mods_capture *capture = &table.captures[0];
    capture->address = tensor;
    capture->dtype = array->dtype;
    for (uint32_t d = 0; d < array->rank; d++) {
        capture->size[d] = array->size[d];
        capture->stride[d] = array->stride[d];
    }
    attune__mods_table_pack(mask->expr, &table, out);
}

attune_status attune__vulkan_mask_update(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                         const attune_tensor *tensor, uint64_t *value)
{
    attune__vulkan_device *device = attune__vulkan_of(queue->device);
    attune__vulkan_mask *made = (attune__vulkan_mask *)device_mask;
    const attune__vulkan_buffer *buffer = (const attune__vulkan_buffer *)made->buffer;
    const uint64_t address = attune__vulkan_address(made->buffer, 0);
    const attune_vulkan_mask_lists a = describe(mask, made, tensor);
    const uint64_t planes = (uint64_t)(mask->stored_batch * mask->stored_heads);
    attune__vulkan_slot *slot;
    pack_table(mask, a.tensor, made->table);
    ATTUNE__TRY(attune__vulkan_begin(device, false, &slot));
    device->vk.CmdUpdateBuffer(slot->commands, buffer->handle, buffer->offset, sizeof a, &a);
    device->vk.CmdUpdateBuffer(slot->commands, buffer->handle, buffer->offset + (made->mod - address),
                               attune__mods_table_size(mask->expr), made->table);
    attune__vulkan_barrier(device, slot->commands);
    attune__vulkan_dispatch(device, slot->commands, &made->classify, address, 0,
                            (uint64_t)a.row_count * (uint64_t)mask->kv_blocks);
    attune__vulkan_barrier(device, slot->commands);
    attune__vulkan_dispatch(device, slot->commands, &made->fill, address, 0,
                            (uint64_t)a.row_count + planes * (uint64_t)mask->kv_blocks);
    return attune__vulkan_submit(device, slot, value);
}
