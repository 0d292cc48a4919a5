/* SPDX-License-Identifier: MIT */
/* A mask on the device: one allocation, one copy. */
#include "cuda/cuda.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

#define ALIGNMENT ((size_t)256)

/* Where the parts stand; with memory they are copied there as well. */
typedef struct layout {
    size_t size;
    char *memory;
} layout;

static size_t place(layout *l, const void *data, size_t size)
{
    const size_t at = l->size;
    if (l->memory && size)
        memcpy(l->memory + at, data, size);
    l->size = (at + size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static size_t array_size(const attune_array *array)
{
    size_t count = attune_dtype_size(array->dtype);
    for (uint32_t d = 0; d < array->rank; d++)
        count *= (size_t)array->size[d];
    return count;
}

static void lay_out(layout *l, const attune_mask *mask, attune__cuda_mask *made)
{
    const size_t rows = (size_t)(mask->stored_batch * mask->stored_heads * mask->q_blocks);
    const attune__block_list *lists[2] = {&mask->kv, &mask->full_kv};
    l->size = 0;
    for (int i = 0; i < 2; i++) {
        made->offsets[i] = made->memory + place(l, lists[i]->offsets, (rows + 1) * sizeof(int64_t));
        made->indices[i] =
            made->memory + place(l, lists[i]->indices, (size_t)lists[i]->offsets[rows] * sizeof(int32_t));
    }
    for (uint32_t i = 0; mask->expr && i < mask->expr->symbol_count; i++)
        if (mask->expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            made->captures[i] = made->memory + place(l, mask->captures[i].data, array_size(&mask->captures[i]));
}

attune_status attune__cuda_mask_upload(attune_device *device, const attune_mask *mask,
                                       attune__device_mask **device_mask)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    const attune__cuda_driver *driver = &mine->driver;
    const attune_allocator *allocator = &device->host.allocator;
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    layout l = {0};
    attune__cuda_mask *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return status;
    made->base.device = device;
    lay_out(&l, mask, made);
    l.memory = attune__alloc(allocator, l.size, 1);
    if (!l.memory)
        goto done;
    status = attune__cuda_enter(mine);
    if (status != ATTUNE_OK)
        goto done;
    attune__cu_result result = driver->memory_alloc(&made->memory, l.size);
    if (result == CU_SUCCESS) {
        lay_out(&l, mask, made);
        result = driver->copy_to_device(made->memory, l.memory, l.size, mine->queue.stream);
        if (result == CU_SUCCESS)
            result = driver->stream_synchronize(mine->queue.stream);
        if (result != CU_SUCCESS)
            driver->memory_free(made->memory);
    }
    status = attune__cuda_check(mine, result, "a mask");
    attune__cuda_leave(mine);
done:
    attune__free(allocator, l.memory);
    if (status == ATTUNE_OK)
        *device_mask = &made->base;
    else
        attune__free(allocator, made);
    return status;
}

void attune__cuda_mask_release(attune__device_mask *device_mask)
{
    attune__cuda_mask *mine = (attune__cuda_mask *)device_mask;
    attune__cuda_device *device = attune__cuda_of(device_mask->device);
    if (device->driver.context_push(device->context) == CU_SUCCESS) {
        device->driver.memory_free(mine->memory);
        attune__cuda_leave(device);
    }
    attune__free(&device->base.host.allocator, mine);
}
