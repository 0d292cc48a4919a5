/* SPDX-License-Identifier: MIT */
/*
 * Masks that follow a tensor. One memory object holds a word for each block, the lists with space for every block in
 * each row, and the expression's table, which every update writes anew.
 */
#include "opencl/program.h"

#include "base/alloc.h"
#include "base/error.h"
#include "mask/upload.h"
#include "shaders/opencl/mask_lists.h"

/* Counted as launched workgroups, in 32 bits. */
#define MOST_BLOCKS (INT64_C(1) << 30)
/* The time of a load, as operations: strided elements may each be a line of the cache. */
#define FLOPS_OF_LOAD 64.0

/* The words of blocks are at offset 0, the lists after them, and the expression's table at their end. */
static attune__upload_lists layout_of(uint64_t planes, uint64_t q_blocks, uint64_t kv_blocks)
{
    const uint64_t blocks = planes * q_blocks * kv_blocks;
    return attune__upload_lists_make(blocks * sizeof(uint32_t), planes * q_blocks, planes * kv_blocks, blocks);
}

static int32_t set_arguments(const attune__opencl_device *device, const attune__opencl_kernel *kernel,
                             const attune_opencl_mask_lists *arguments, const attune_buffer *mask,
                             const attune_buffer *tensor)
{
    attune__opencl_setter setter = {.device = device, .kernel = kernel->handle};
    attune__opencl_set(&setter, sizeof *arguments, arguments);
    attune__opencl_set_memory(&setter, mask);
    attune__opencl_set_memory(&setter, tensor);
    return setter.error;
}

/* The first launch: of a block without elements. It writes zeros. */
static attune_status launch_empty(attune__opencl_device *device, attune__opencl_kernel *kernel)
{
    const attune_opencl_mask_lists none = {
        .heads = 1, .q_blocks = 1, .kv_blocks = 1, .q_block = 1, .kv_block = 1, .element = 1, .row_count = 1};
    return attune__opencl_kernel_first(device, kernel, set_arguments(device, kernel, &none, NULL, NULL));
}

static attune_status build(attune__opencl_device *device, attune__opencl_mask *made)
{
    const attune__opencl_text text = {.file = "mask_lists.cl", .host = device->base.info.limits.host};
    const uint32_t threads = ATTUNE_OPENCL_LISTS_THREADS;
    if (pthread_mutex_init(&made->lock, NULL))
        return attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "the system has no mutex for a mask");
    made->follows = true;
    ATTUNE__TRY(attune__opencl_kernel_build(device, &text, "attune_classify", threads, NULL, &made->classify));
    ATTUNE__TRY(attune__opencl_kernel_also(device, &made->classify, "attune_fill", threads, &made->fill));
    ATTUNE__TRY(launch_empty(device, &made->fill));
    return launch_empty(device, &made->classify);
}

attune_status attune__opencl_mask_create_tensor(attune_device *device, const attune_mask *mask,
                                                attune__device_mask **device_mask)
{
    const int64_t blocks = mask->stored_batch * mask->stored_heads * mask->q_blocks;
    if (blocks > MOST_BLOCKS / mask->kv_blocks)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "the mask has %lld x %lld blocks, %s takes at most 2^30: make the blocks larger",
                            (long long)blocks, (long long)mask->kv_blocks, device->info.id);
    const attune__upload_lists l = layout_of((uint64_t)(mask->stored_batch * mask->stored_heads),
                                             (uint64_t)mask->q_blocks, (uint64_t)mask->kv_blocks);
    attune__opencl_mask *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    made->most_q_blocks = (uint64_t)mask->q_blocks;
    made->most_kv_blocks = (uint64_t)mask->kv_blocks;
    made->rows = (int64_t)l.rows;
    made->columns = (int64_t)l.columns;
    made->table = (int64_t)l.end;
    attune_status status = build(attune__opencl_of(device), made);
    if (status == ATTUNE_OK)
        status = attune__opencl_buffer_create(device, l.end + sizeof(attune_opencl_table), &made->buffer);
    if (status == ATTUNE_OK)
        *device_mask = &made->base;
    else
        attune__opencl_mask_release(&made->base);
    return status;
}

#define LISTS attune_opencl_mask_lists
#include "arguments/lists_tmpl.h"

static attune_opencl_mask_lists describe(const attune_mask *mask, const attune__opencl_mask *made,
                                         const attune_tensor *tensor)
{
    /* Offsets are those of the longest lengths. */
    const attune__upload_lists l =
        layout_of((uint64_t)(mask->stored_batch * mask->stored_heads), made->most_q_blocks, made->most_kv_blocks);
    attune_opencl_mask_lists a = describe_lists(mask, tensor);
    a.offset = (int64_t)(attune__opencl_buffer_of(tensor->buffer)->offset + tensor->offset);
    a.classes = 0;
    a.rows = (int64_t)l.rows;
    a.entries = (int64_t)l.entries;
    a.columns = (int64_t)l.columns;
    a.column_entries = (int64_t)l.column_entries;
    return a;
}

/* The mask's expression reads the tensor in place. */
static attune_opencl_table table_of(const attune_mask *mask, int64_t offset)
{
    const attune_array *array = &mask->captures[0];
    attune_opencl_table table = {
        .q_len = mask->expr_q_len,
        .kv_len = mask->expr_kv_len,
        .group = mask->expr_heads / mask->expr_kv_heads,
    };
    table.captures[0] = attune__opencl_capture_of(array->dtype, array->rank, array->size, array->stride, offset);
    return table;
}

/* In launches of bounded length; `loads`: of a workgroup. */
static void launch(attune__opencl_call *commands, const attune__opencl_kernel *kernel,
                   const attune_opencl_mask_lists *arguments, const attune__opencl_mask *made,
                   const attune_tensor *tensor, uint64_t groups, double loads)
{
    attune__opencl_device *device = attune__opencl_of(made->base.device);
    attune_opencl_mask_lists a = *arguments;
    const uint64_t most = attune__opencl_launch_most(device, groups, loads * FLOPS_OF_LOAD);
    for (uint64_t first = 0; first < groups; first += most) {
        a.first = (uint32_t)first;
        if (commands->status == ATTUNE_OK)
            commands->status = attune__opencl_check(
                device, set_arguments(device, kernel, &a, made->buffer, tensor->buffer), "clSetKernelArg");
        attune__opencl_launch(commands, kernel->handle, groups - first < most ? groups - first : most, kernel->threads);
    }
}

attune_status attune__opencl_mask_update(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                         const attune_tensor *tensor, uint64_t *value)
{
    attune__opencl_mask *made = (attune__opencl_mask *)device_mask;
    const attune_opencl_mask_lists a = describe(mask, made, tensor);
    const attune_opencl_table table = table_of(mask, a.offset);
    const uint64_t planes = (uint64_t)(mask->stored_batch * mask->stored_heads);
    attune__opencl_call commands;
    pthread_mutex_lock(&made->lock);
    made->data = attune__opencl_buffer_of(tensor->buffer)->memory;
    attune__opencl_begin((attune__opencl_queue *)queue, &commands);
    attune__opencl_table(&commands, attune__opencl_buffer_of(made->buffer)->memory, (uint64_t)made->table, &table,
                         sizeof table);
    launch(&commands, &made->classify, &a, made, tensor, (uint64_t)a.row_count * (uint64_t)mask->kv_blocks,
           (double)mask->q_block * mask->kv_block);
    /* A workgroup of the lists reads a row or a column of blocks, 64 at a time, each by every work-item. */
    const double line = (double)(mask->q_blocks > mask->kv_blocks ? mask->q_blocks : mask->kv_blocks);
    launch(&commands, &made->fill, &a, made, tensor, (uint64_t)a.row_count + planes * (uint64_t)mask->kv_blocks,
           line * ATTUNE_OPENCL_LISTS_THREADS);
    pthread_mutex_unlock(&made->lock);
    return attune__opencl_end(&commands, value, NULL);
}
