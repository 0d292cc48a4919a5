/* SPDX-License-Identifier: MIT */
/* Masks on the device, in one buffer (mask/upload.h). */
#include "mask/upload.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "vulkan/launch.h"
#include "vulkan/mods.h"

_Static_assert(sizeof(attune_vulkan_mask_row) == sizeof(attune__upload_row) &&
                   offsetof(attune_vulkan_mask_row, address) == offsetof(attune__upload_row, at) &&
                   offsetof(attune_vulkan_mask_row, count) == offsetof(attune__upload_row, count),
               "rows as the kernels read them");

static void write_table(const attune_mask *mask, uint64_t address, const attune__upload *upload)
{
    attune__mods_table table = {
        .q_len = mask->expr_q_len,
        .kv_len = mask->expr_kv_len,
        .group = mask->expr_heads / mask->expr_kv_heads,
        .b0 = mask->b0,
        .h0 = mask->h0,
        .q0 = mask->q0,
    };
    for (uint32_t i = 0; i < mask->expr->symbol_count; i++) {
        const attune_array *array = &mask->captures[i];
        if (mask->expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            table.captures[i] = attune__mods_capture_of(array->dtype, array->rank, array->size, array->stride,
                                                        address + upload->captures[i]);
        else
            table.parameters[i] = mask->parameters[i];
    }
    attune__mods_table_pack(mask->expr, &table, upload->memory + upload->table);
}

attune_status attune__vulkan_mask_upload(attune_device *device, const attune_mask *mask,
                                         attune__device_mask **device_mask)
{
    const attune_allocator *allocator = &device->host.allocator;
    attune_buffer *buffer = NULL;
    attune__vulkan_mask *made = NULL;
    attune__upload upload;
    ATTUNE__TRY(attune__upload_make(allocator, mask, device->info.id,
                                    mask->expr ? attune__mods_table_size(mask->expr) : 0, &upload));
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        goto done;
    status = attune__vulkan_buffer_create(device, upload.size, &buffer);
    if (status != ATTUNE_OK)
        goto done;
    const uint64_t address = attune__vulkan_address(buffer, 0);
    attune__upload_write(mask, address, &upload);
    if (mask->expr)
        write_table(mask, address, &upload);
    status = attune__vulkan_buffer_write(buffer, 0, upload.memory, upload.size);
    if (status != ATTUNE_OK)
        goto done;
    made->base.device = device;
    made->buffer = buffer;
    made->rows = address;
    made->columns = address + upload.lists.columns;
    made->mod = address + upload.table;
    made->longest = upload.longest;
    made->longest_column = upload.longest_column;
    *device_mask = &made->base;
    buffer = NULL;
    made = NULL;
done:
    if (buffer)
        attune__vulkan_buffer_destroy(buffer);
    attune__free(allocator, made);
    attune__free(allocator, upload.memory);
    return status;
}

void attune__vulkan_mask_release(attune__device_mask *device_mask)
{
    attune__vulkan_mask *mine = (attune__vulkan_mask *)device_mask;
    const attune_allocator allocator = device_mask->device->host.allocator;
    attune__vulkan_device *device = attune__vulkan_of(device_mask->device);
    if (mine->buffer)
        attune__vulkan_buffer_destroy(mine->buffer);
    attune__vulkan_pipeline_destroy(device, &mine->classify);
    attune__vulkan_pipeline_destroy(device, &mine->fill);
    attune__free(&allocator, mine->table);
    attune__free(&allocator, mine);
}
