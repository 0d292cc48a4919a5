/* SPDX-License-Identifier: MIT */
/* Masks on the device, in one memory object (mask/upload.h). */
#include "mask/upload.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "opencl/program.h"

_Static_assert(sizeof(attune_opencl_mask_row) == sizeof(attune__upload_row) &&
                   offsetof(attune_opencl_mask_row, offset) == offsetof(attune__upload_row, at) &&
                   offsetof(attune_opencl_mask_row, count) == offsetof(attune__upload_row, count),
               "rows as the kernels read them");

static attune_opencl_table table_of(const attune_mask *mask, const attune__upload *upload)
{
    attune_opencl_table table = {
        .q_len = mask->expr_q_len,
        .kv_len = mask->expr_kv_len,
        .group = mask->expr_heads / mask->expr_kv_heads,
        .b0 = mask->b0,
        .h0 = mask->h0,
        .q0 = mask->q0,
    };
    for (uint32_t i = 0; i < mask->expr->symbol_count; i++) {
        if (mask->expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            table.captures[i] =
                attune__opencl_capture_of(mask->captures[i].dtype, mask->captures[i].rank, mask->captures[i].size,
                                          mask->captures[i].stride, (int64_t)upload->captures[i]);
        else
            table.parameters[i] = mask->parameters[i].i;
    }
    return table;
}

attune_status attune__opencl_mask_upload(attune_device *device, const attune_mask *mask,
                                         attune__device_mask **device_mask)
{
    const attune_allocator *allocator = &device->host.allocator;
    attune_buffer *buffer = NULL;
    attune__opencl_mask *made = NULL;
    attune__upload upload;
    ATTUNE__TRY(
        attune__upload_make(allocator, mask, device->info.id, mask->expr ? sizeof(attune_opencl_table) : 0, &upload));
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        goto done;
    status = attune__opencl_buffer_create(device, upload.size, &buffer);
    if (status != ATTUNE_OK)
        goto done;
    attune__upload_write(mask, 0, &upload);
    if (mask->expr) {
        const attune_opencl_table table = table_of(mask, &upload);
        memcpy(upload.memory + upload.table, &table, sizeof table);
    }
    status = attune__opencl_buffer_write(buffer, 0, upload.memory, upload.size);
    if (status != ATTUNE_OK)
        goto done;
    made->base.device = device;
    made->buffer = buffer;
    made->data = attune__opencl_buffer_of(buffer)->memory;
    made->columns = (int64_t)upload.lists.columns;
    made->table = (int64_t)upload.table;
    *device_mask = &made->base;
    buffer = NULL;
    made = NULL;
done:
    if (buffer)
        attune__opencl_buffer_destroy(buffer);
    attune__free(allocator, made);
    attune__free(allocator, upload.memory);
    return status;
}

void attune__opencl_mask_release(attune__device_mask *device_mask)
{
    attune__opencl_mask *mine = (attune__opencl_mask *)device_mask;
    const attune_allocator allocator = device_mask->device->host.allocator;
    if (mine->buffer)
        attune__opencl_buffer_destroy(mine->buffer);
    if (mine->follows) {
        attune__opencl_device *device = attune__opencl_of(device_mask->device);
        attune__opencl_kernel_release(device, &mine->classify);
        attune__opencl_kernel_release(device, &mine->fill);
        pthread_mutex_destroy(&mine->lock);
    }
    attune__free(&allocator, mine);
}
