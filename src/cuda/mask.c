/* SPDX-License-Identifier: MIT */
/* A mask on the device: one allocation, one copy. */
#include "cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

#define ALIGNMENT ((size_t)256)

/* Computes the offsets of the arrays; if memory is set, also copies them there. */
typedef struct layout {
    size_t size;
    char *memory;
} layout;

static size_t append(layout *l, const void *data, size_t size)
{
    const size_t at = l->size;
    if (l->memory && size)
        memcpy(l->memory + at, data, size);
    l->size = (at + size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

/* ---------------------------------------------------------------------------------------------------------------
 * runs
 */

static int element(const attune_array *array, size_t i)
{
    switch (array->dtype) {
    case ATTUNE_I32:
        return ((const int32_t *)array->data)[i];
    case ATTUNE_I64:
        return (int)((const int64_t *)array->data)[i]; /* in range, or the mask would not have been built */
    default:
        return ((const uint8_t *)array->data)[i];
    }
}

static int compare(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Finds the run of equal elements around each of the `count` elements from `first` on. False if a value has more than
 * one run. `values` is scratch for `count` values. */
static bool find_runs(const attune_array *array, size_t first, size_t count, int *values, int32_t (*runs)[2])
{
    size_t run_count = 0;
    for (size_t i = 0, end; i < count; i = end) {
        const int value = element(array, first + i);
        for (end = i + 1; end < count && element(array, first + end) == value; end++)
            ;
        for (size_t j = i; j < end; j++) {
            runs[first + j][0] = (int32_t)i;
            runs[first + j][1] = (int32_t)end;
        }
        values[run_count++] = value;
    }
    qsort(values, run_count, sizeof *values, compare);
    for (size_t i = 1; i < run_count; i++)
        if (values[i - 1] == values[i])
            return false;
    return true;
}

/* The runs of a capture of rank 1 or 2; *runs stays NULL if a value has more than one run, or the capture is shorter
 * than the mask. */
static attune_status make_runs(const attune_allocator *allocator, const attune_mask *mask, uint32_t symbol,
                               int32_t (**runs)[2], size_t *size)
{
    const attune_array *array = &mask->captures[symbol];
    const size_t rows = array->rank == 1 ? 1 : (size_t)array->size[0], count = (size_t)array->size[array->rank - 1];
    *runs = NULL;
    *size = 0;
    if ((int64_t)count < mask->expr_q_len || (int64_t)count < mask->expr_kv_len || count > INT32_MAX || !rows)
        return ATTUNE_OK;
    int *values = attune__alloc(allocator, count, sizeof *values);
    int32_t(*made)[2] = attune__alloc(allocator, rows * count, sizeof *made);
    bool contiguous = values && made;
    for (size_t row = 0; row < rows && contiguous; row++)
        contiguous = find_runs(array, row * count, count, values, made);
    const bool no_memory = !values || !made;
    attune__free(allocator, values);
    if (contiguous) {
        *runs = made;
        *size = rows * count * sizeof *made;
    } else
        attune__free(allocator, made);
    return no_memory ? ATTUNE_OUT_OF_HOST_MEMORY : ATTUNE_OK;
}

/* ---------------------------------------------------------------------------------------------------------------
 * upload in one allocation
 */

typedef struct all_runs {
    int32_t (*of[ATTUNE_EXPR_MAX_SYMBOLS])[2];
    size_t size[ATTUNE_EXPR_MAX_SYMBOLS];
} all_runs;

static void free_runs(const attune_allocator *allocator, all_runs *runs)
{
    for (uint32_t i = 0; i < ATTUNE_EXPR_MAX_SYMBOLS; i++)
        attune__free(allocator, runs->of[i]);
}

/* *complete: every array that the mask's intervals depend on has runs. */
static attune_status make_all_runs(const attune_allocator *allocator, const attune_mask *mask, all_runs *runs,
                                   bool *complete)
{
    *runs = (all_runs){{0}, {0}};
    *complete = mask->expr && mask->row_intervals;
    for (uint32_t i = 0; *complete && i < mask->expr->symbol_count; i++)
        if (mask->row_runs >> i & 1) {
            ATTUNE__TRY(make_runs(allocator, mask, i, &runs->of[i], &runs->size[i]));
            *complete = runs->of[i] != NULL;
        }
    return ATTUNE_OK;
}

/* A block column of a stored batch, and how many blocks it has. */
typedef struct column {
    int64_t blocks;
    int32_t index;
} column;

static int compare_columns(const void *a, const void *b)
{
    const column *x = a, *y = b;
    return x->blocks != y->blocks ? (x->blocks < y->blocks) - (x->blocks > y->blocks) : x->index - y->index;
}

/* The order in which backward takes block columns, where all heads have the same; *order stays NULL else. The longest
 * first is Graham's LPT rule: what is left for the last compute units to finish is short. */
static attune_status make_column_order(const attune_allocator *allocator, const attune_mask *mask, int32_t **order)
{
    const size_t columns = (size_t)mask->kv_blocks;
    *order = NULL;
    if (mask->stored_heads != 1)
        return ATTUNE_OK;
    column *of = attune__alloc(allocator, columns, sizeof *of);
    int32_t *made = attune__alloc(allocator, (size_t)mask->stored_batch * columns, sizeof *made);
    const bool no_memory = !of || !made;
    for (size_t batch = 0; !no_memory && batch < (size_t)mask->stored_batch; batch++) {
        for (size_t i = 0; i < columns; i++) {
            const size_t row = batch * columns + i;
            of[i] = (column){mask->q.offsets[row + 1] - mask->q.offsets[row] + mask->full_q.offsets[row + 1] -
                                 mask->full_q.offsets[row],
                             (int32_t)i};
        }
        qsort(of, columns, sizeof *of, compare_columns);
        for (size_t i = 0; i < columns; i++)
            made[batch * columns + i] = of[i].index;
    }
    attune__free(allocator, of);
    if (no_memory)
        attune__free(allocator, made);
    else
        *order = made;
    return no_memory ? ATTUNE_OUT_OF_HOST_MEMORY : ATTUNE_OK;
}

static void lay_out(layout *l, const attune_mask *mask, const all_runs *runs, const int32_t *order,
                    attune__cuda_mask *made)
{
    const size_t rows = (size_t)(mask->stored_batch * mask->stored_heads * mask->q_blocks);
    const size_t columns = (size_t)(mask->stored_batch * mask->stored_heads * mask->kv_blocks);
    const attune__block_list *lists[2] = {&mask->kv, &mask->full_kv}, *transposed[2] = {&mask->q, &mask->full_q};
    l->size = 0;
    for (int i = 0; i < 2; i++) {
        made->offsets[i] = made->memory + append(l, lists[i]->offsets, (rows + 1) * sizeof(int64_t));
        made->indices[i] =
            made->memory + append(l, lists[i]->indices, (size_t)lists[i]->offsets[rows] * sizeof(int32_t));
        made->column_offsets[i] = made->memory + append(l, transposed[i]->offsets, (columns + 1) * sizeof(int64_t));
        made->column_indices[i] =
            made->memory + append(l, transposed[i]->indices, (size_t)transposed[i]->offsets[columns] * sizeof(int32_t));
    }
    if (order)
        made->column_order = made->memory + append(l, order, columns * sizeof *order);
    for (uint32_t i = 0; mask->expr && i < mask->expr->symbol_count; i++) {
        if (mask->expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            made->captures[i] =
                made->memory + append(l, mask->captures[i].data, (size_t)attune__array_bytes(&mask->captures[i]));
        if (runs->of[i])
            made->runs[i] = made->memory + append(l, runs->of[i], runs->size[i]);
    }
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
    int32_t *order = NULL;
    all_runs runs;
    status = make_all_runs(allocator, mask, &runs, &made->ranges);
    if (status == ATTUNE_OK)
        status = make_column_order(allocator, mask, &order);
    if (status != ATTUNE_OK)
        goto done;
    status = ATTUNE_OUT_OF_HOST_MEMORY;
    lay_out(&l, mask, &runs, order, made);
    l.memory = attune__alloc(allocator, l.size, 1);
    if (!l.memory)
        goto done;
    status = attune__cuda_enter(mine);
    if (status != ATTUNE_OK)
        goto done;
    attune__cu_result result = driver->memory_alloc(&made->memory, l.size);
    if (result == CU_SUCCESS) {
        lay_out(&l, mask, &runs, order, made);
        result = driver->copy_to_device(made->memory, l.memory, l.size, mine->queue.stream);
        if (result == CU_SUCCESS)
            result = driver->stream_synchronize(mine->queue.stream);
        if (result != CU_SUCCESS)
            driver->memory_free(made->memory);
    }
    status = attune__cuda_check(mine, result, "a mask");
    attune__cuda_leave(mine);
done:
    free_runs(allocator, &runs);
    attune__free(allocator, order);
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
        if (mine->memory)
            device->driver.memory_free(mine->memory);
        if (mine->follow)
            attune__cuda_follow_destroy(device, mine->follow);
        attune__cuda_leave(device);
    }
    attune__free(&device->base.host.allocator, mine->follow);
    attune__free(&device->base.host.allocator, mine);
}
