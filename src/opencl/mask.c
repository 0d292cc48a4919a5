/* SPDX-License-Identifier: MIT */
/*
 * Masks on the device, in one memory object: a row table, the entries of all rows, the same of all columns, the
 * expression's table and its captures. The two lists of a row become one in ascending order of keys, so that the order
 * of summation does not depend on how blocks were classified.
 */
#include "opencl/program.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/round.h"

/* The offsets of the parts, and the size; the rows are at offset 0. */
typedef struct layout {
    uint64_t entries, columns, column_entries, table, captures, size;
} layout;

static uint64_t array_bytes(const attune_array *array)
{
    uint64_t bytes = attune_dtype_size(array->dtype);
    for (uint32_t i = 0; i < array->rank; i++)
        bytes *= (uint64_t)array->size[i];
    return bytes;
}

static layout layout_of(const attune_mask *mask, int64_t rows, int64_t columns)
{
    layout l = {.entries = (uint64_t)rows * sizeof(attune_opencl_mask_row)};
    const uint64_t count = (uint64_t)(mask->kv.offsets[rows] + mask->full_kv.offsets[rows]);
    l.columns = attune__round_up64(l.entries + count * sizeof(uint32_t), 16);
    l.column_entries = l.columns + (uint64_t)columns * sizeof(attune_opencl_mask_row);
    l.table = attune__round_up64(l.column_entries + count * sizeof(uint32_t), 16);
    l.captures = attune__round_up64(l.table + (mask->expr ? sizeof(attune_opencl_table) : 0), 16);
    l.size = l.captures;
    for (uint32_t i = 0; mask->expr && i < mask->expr->symbol_count; i++)
        if (mask->expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            l.size = attune__round_up64(l.size + array_bytes(&mask->captures[i]), 16);
    return l;
}

static void write_lists(const attune__block_list *partials, const attune__block_list *fulls, int64_t rows,
                        uint64_t offset, char *rows_out, uint32_t *entries)
{
    uint32_t *next = entries;
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *partial = partials->indices + partials->offsets[r];
        const int32_t *partial_end = partials->indices + partials->offsets[r + 1];
        const int32_t *full = fulls->indices + fulls->offsets[r];
        const int32_t *full_end = fulls->indices + fulls->offsets[r + 1];
        const attune_opencl_mask_row row = {
            .offset = (int64_t)(offset + (uint64_t)(next - entries) * sizeof *entries),
            .count = (uint32_t)((partial_end - partial) + (full_end - full)),
        };
        memcpy(rows_out + (size_t)r * sizeof row, &row, sizeof row);
        while (partial != partial_end || full != full_end) {
            const bool take = full == full_end || (partial != partial_end && *partial < *full);
            *next++ = take ? (uint32_t)*partial++ << 1 | 1u : (uint32_t)*full++ << 1;
        }
    }
}

/* The captures are the mask's own copies, contiguous. */
static void write_expression(const attune_mask *mask, const layout *l, char *out)
{
    attune_opencl_table table = {
        .q_len = mask->expr_q_len,
        .kv_len = mask->expr_kv_len,
        .group = mask->expr_heads / mask->expr_kv_heads,
        .b0 = mask->b0,
        .h0 = mask->h0,
        .q0 = mask->q0,
    };
    uint64_t at = l->captures;
    for (uint32_t i = 0; i < mask->expr->symbol_count; i++) {
        if (mask->expr->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE) {
            table.parameters[i] = mask->parameters[i].i;
            continue;
        }
        const attune_array *array = &mask->captures[i];
        attune_opencl_capture *capture = &table.captures[i];
        capture->offset = (int64_t)at;
        capture->sums = -1;
        for (uint32_t d = 0; d < array->rank; d++) {
            capture->size[d] = array->size[d] > INT32_MAX ? (uint32_t)INT32_MAX + 1 : (uint32_t)array->size[d];
            capture->stride[d] = array->size[d] > 1 ? array->stride[d] * (int64_t)attune_dtype_size(array->dtype) : 0;
        }
        const uint64_t bytes = array_bytes(array);
        memcpy(out + at, array->data, (size_t)bytes);
        at = attune__round_up64(at + bytes, 16);
    }
    memcpy(out + l->table, &table, sizeof table);
}

attune_status attune__opencl_mask_upload(attune_device *device, const attune_mask *mask,
                                         attune__device_mask **device_mask)
{
    const attune_allocator *allocator = &device->host.allocator;
    const int64_t rows = mask->stored_batch * mask->stored_heads * mask->q_blocks;
    const int64_t columns = mask->stored_batch * mask->stored_heads * mask->kv_blocks;
    if (rows > UINT32_MAX || columns > UINT32_MAX || mask->kv_blocks > INT32_MAX || mask->q_blocks > INT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the mask has %lld rows of blocks, %s takes at most 2^32",
                            (long long)rows, device->info.id);
    const layout l = layout_of(mask, rows, columns);
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    attune_buffer *buffer = NULL;
    char *staged = attune__alloc(allocator, (size_t)l.size, 1);
    attune__opencl_mask *made = attune__alloc(allocator, 1, sizeof *made);
    if (!staged || !made)
        goto done;
    status = attune__opencl_buffer_create(device, l.size, &buffer);
    if (status != ATTUNE_OK)
        goto done;
    /* NOLINTBEGIN(bugprone-casting-through-void): aligned to 64, and entries begin at a multiple of 16 */
    write_lists(&mask->kv, &mask->full_kv, rows, l.entries, staged, (uint32_t *)(void *)(staged + l.entries));
    write_lists(&mask->q, &mask->full_q, columns, l.column_entries, staged + l.columns,
                (uint32_t *)(void *)(staged + l.column_entries));
    /* NOLINTEND(bugprone-casting-through-void) */
    if (mask->expr)
        write_expression(mask, &l, staged);
    status = attune__opencl_buffer_write(buffer, 0, staged, l.size);
    if (status != ATTUNE_OK)
        goto done;
    made->base.device = device;
    made->buffer = buffer;
    made->data = attune__opencl_buffer_of(buffer)->memory;
    made->columns = (int64_t)l.columns;
    made->table = (int64_t)l.table;
    *device_mask = &made->base;
    buffer = NULL;
    made = NULL;
done:
    if (buffer)
        attune__opencl_buffer_destroy(buffer);
    attune__free(allocator, made);
    attune__free(allocator, staged);
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
