/* SPDX-License-Identifier: MIT */
/* The hot call: arguments by value, one launch, and one event where a completion is asked for. */
#include "cuda/cuda.h"
#include "cuda/family.h"

#include <string.h>

#include "base/error.h"

static unsigned long long address(const attune_tensor *tensor)
{
    return tensor->buffer ? attune__cuda_pointer(tensor->buffer) + tensor->offset : 0;
}

attune_cuda_view attune__cuda_view_of(const attune_tensor *tensor)
{
    return (attune_cuda_view){
        .address = address(tensor),
        .batch = tensor->size[0] == 1 ? 0 : tensor->stride[0],
        .head = tensor->stride[1],
        .row = tensor->stride[2],
    };
}

static void capture(attune_cuda_symbol *symbol, unsigned long long at, uint32_t rank, const int64_t *size,
                    const int64_t *stride)
{
    symbol->is.address = at;
    for (uint32_t d = 0; d < rank; d++) {
        symbol->size[d] = size[d];
        symbol->stride[d] = stride[d];
    }
}

static void parameter(attune_cuda_symbol *symbol, attune__value value)
{
    memcpy(&symbol->is, &value, sizeof value);
}

static void set_mask(attune_cuda_arguments *a, const attune_mask *mask, const attune__cuda_mask *uploaded)
{
    a->partial = (attune_cuda_list){uploaded->offsets[0], uploaded->indices[0]};
    a->full = (attune_cuda_list){uploaded->offsets[1], uploaded->indices[1]};
    a->mask_head_rows = mask->stored_heads == 1 ? 0 : mask->q_blocks;
    a->mask_batch_rows = mask->stored_batch == 1 ? 0 : mask->stored_heads * mask->q_blocks;
    a->q_block = (int)mask->q_block;
    a->kv_block = (int)mask->kv_block;
    a->b0 = mask->b0;
    a->h0 = mask->h0;
    a->q0 = mask->q0;
    a->mask_group = mask->expr ? mask->expr_heads / mask->expr_kv_heads : 1;
    a->mask_q_len = mask->expr_q_len;
    a->mask_kv_len = mask->expr_kv_len;
    a->mask_ranges = uploaded->ranges;
    for (uint32_t i = 0; mask->expr && i < mask->expr->symbol_count; i++) {
        if (mask->expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            capture(&a->mask_symbols[i], uploaded->captures[i], mask->captures[i].rank, mask->captures[i].size,
                    mask->captures[i].stride);
        else
            parameter(&a->mask_symbols[i], mask->parameters[i]);
        a->mask_symbols[i].runs = uploaded->runs[i];
    }
}

/* The symbols of an expression that is bound to the call. */
static void set_symbols(attune_cuda_symbol *symbols, const attune_expr *expr, const attune_tensor *captures,
                        const attune__value *parameters)
{
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        const attune_tensor *tensor = &captures[i];
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            capture(&symbols[i], address(tensor), tensor->rank, tensor->size, tensor->stride);
        else
            parameter(&symbols[i], parameters[i]);
    }
}

attune_cuda_arguments attune__cuda_arguments_of(const attune__cuda_program *program, const attune__forward *call)
{
    attune_cuda_arguments arguments = {
        .q = attune__cuda_view_of(&call->q),
        .k = attune__cuda_view_of(&call->k),
        .v = attune__cuda_view_of(&call->v),
        .o = attune__cuda_view_of(&call->o),
        .lse = attune__cuda_view_of(&call->lse),
        .row_max = attune__cuda_view_of(&call->row_max),
        .batch = (int)call->batch,
        .heads = (int)call->heads,
        .kv_heads = (int)call->kv_heads,
        .q_len = (int)call->q_len,
        .kv_len = (int)call->kv_len,
        .scale = (float)call->scale,
        .is_partial = call->part,
        .sinks = call->sinks.buffer ? address(&call->sinks) : 0,
        .sinks_head = call->sinks.stride[0],
    };
    if (call->mask)
        set_mask(&arguments, call->mask, (const attune__cuda_mask *)call->device_mask);
    if (call->serving && program->mask)
        set_symbols(arguments.mask_symbols, program->mask, call->serving->mask_captures,
                    call->serving->mask_parameters);
    if (program->score)
        set_symbols(arguments.score_symbols, program->score, call->captures, call->parameters);
    return arguments;
}

/* Columns that both launches have get the same values from both. The first one has stored what there is of a row once.
 */
bool attune__cuda_take_last_columns(const attune__cuda_program *program, const attune__forward *call,
                                    attune_cuda_arguments *arguments)
{
    const uint64_t first = (uint64_t)call->v.size[3] - program->columns;
    if (first == 0)
        return false;
    arguments->v.address += first * attune_dtype_size(call->v.dtype);
    arguments->o.address += first * attune_dtype_size(call->o.dtype);
    arguments->lse.address = arguments->row_max.address = 0;
    return true;
}

/* Of `rank` dimensions; sizes from the innermost on, and strides in bytes of those after it, which are 0 where a
 * dimension of size 1 needs none. */
static bool encode(const attune__cuda_driver *driver, const attune_tensor *tensor, uint32_t rank, const uint64_t *sizes,
                   const uint64_t *strides, const uint32_t *box, attune__cu_tensor_map *map)
{
    static const uint32_t every[5] = {1, 1, 1, 1, 1};
    const uint64_t address = attune__cuda_view_of(tensor).address;
    uint64_t steps[4];
    for (uint32_t i = 0; i + 1 < rank; i++) {
        steps[i] = sizes[i + 1] == 1 ? 16 : strides[i];
        if (!steps[i] || steps[i] % 16 || steps[i] >> 40)
            return false;
    }
    return address % 16 == 0 && tensor->stride[3] == 1 &&
           driver->tensor_map(map, tensor->dtype == ATTUNE_F16 ? CU_TENSOR_MAP_FLOAT16 : CU_TENSOR_MAP_BFLOAT16, rank,
                              (void *)(uintptr_t)address, sizes, steps, box, every, 0, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_256B, 0) == CU_SUCCESS;
}

bool attune__cuda_encode(const attune__cuda_driver *driver, const attune_tensor *tensor, uint32_t rows, bool repeats,
                         attune__cu_tensor_map *map)
{
    const attune_cuda_view v = attune__cuda_view_of(tensor);
    const uint64_t bytes = attune_dtype_size(tensor->dtype);
    const uint64_t strides[] = {(uint64_t)v.row * bytes, (uint64_t)v.head * bytes, (uint64_t)v.batch * bytes};
    const uint32_t box[] = {64, rows, 1, 1};
    uint64_t sizes[4];
    for (uint32_t i = 0; i < 4; i++)
        sizes[i] = (uint64_t)tensor->size[3 - i];
    if (repeats && !v.batch)
        sizes[3] = 1;
    return encode(driver, tensor, 4, sizes, strides, box, map);
}

bool attune__cuda_encode_slabs(const attune__cuda_driver *driver, const attune_tensor *tensor, uint32_t rows,
                               attune__cu_tensor_map *map)
{
    const attune_cuda_view v = attune__cuda_view_of(tensor);
    const uint64_t bytes = attune_dtype_size(tensor->dtype), slabs = (uint64_t)tensor->size[3] / 64;
    const uint64_t sizes[] = {64, (uint64_t)tensor->size[2], slabs, (uint64_t)tensor->size[1],
                              (uint64_t)tensor->size[0]};
    const uint64_t strides[] = {(uint64_t)v.row * bytes, 64 * bytes, (uint64_t)v.head * bytes,
                                (uint64_t)v.batch * bytes};
    const uint32_t box[] = {64, rows, (uint32_t)slabs, 1, 1};
    return encode(driver, tensor, 5, sizes, strides, box, map);
}

static bool encode_all(const attune__cuda_program *program, const attune__forward *call, attune__cu_tensor_map maps[3])
{
    const attune__cuda_driver *driver = &attune__cuda_of(program->base.device)->driver;
    const uint32_t rows = program->kernel.block_n;
    return attune__cuda_encode(driver, &call->q, 64, false, &maps[0]) &&
           attune__cuda_encode(driver, &call->k, rows, true, &maps[1]) &&
           attune__cuda_encode(driver, &call->v, rows, true, &maps[2]);
}

/* For stores of 128 rows of 16-bit elements. False where the kernel stores O itself. */
static bool encode_o(const attune__cuda_program *program, const attune__forward *call, attune__cu_tensor_map *map)
{
    return program->family->stores_o && call->o.dtype != ATTUNE_F32 &&
           attune__cuda_encode(&attune__cuda_of(program->base.device)->driver, &call->o, 128, false, map);
}

static attune__cu_result launch_tiles(const attune__cuda_device *device, const attune__cuda_loaded *kernel,
                                      int64_t grid, attune__cu_stream stream, void **parameters)
{
    return device->driver.launch(kernel->function, (unsigned)grid, 1, 1, kernel->threads, 1, 1, kernel->shared_memory,
                                 stream, parameters, NULL);
}

/* Needs the current context: the driver encodes tensor maps only within one. */
static attune_status launch(const attune__cuda_program *program, attune__cuda_queue *queue, const attune__forward *call,
                            uint64_t *value)
{
    attune__cuda_device *device = attune__cuda_of(program->base.device);
    attune__cu_tensor_map maps[4] = {0};
    const attune__cuda_loaded *kernel =
        program->family->plan->tma && !encode_all(program, call, maps) ? &program->fallback : &program->kernel;
    int64_t tiles = (call->q_len + kernel->block_m - 1) / kernel->block_m;
    if (tiles > ATTUNE__CUDA_MOST_BLOCKS / call->heads / call->batch)
        return attune__fail(
            ATTUNE_UNSUPPORTED, "batch %lld, heads %lld and q_len %lld make more than %d workgroups: cut the batch",
            (long long)call->batch, (long long)call->heads, (long long)call->q_len, ATTUNE__CUDA_MOST_BLOCKS);
    tiles *= call->heads * call->batch;
    const int64_t grid = kernel->resident && kernel->resident < tiles ? kernel->resident : tiles;
    attune_cuda_arguments arguments = attune__cuda_arguments_of(program, call);
    int stores_o = encode_o(program, call, &maps[3]);
    void *parameters[] = {&arguments, &maps[0], &maps[1], &maps[2], &maps[3], &stores_o};
    attune_status status = attune__cuda_queue_begin(queue, call->seconds != NULL);
    if (status != ATTUNE_OK)
        return status;
    if (kernel->resident && !queue->capturing)
        arguments.counter = queue->counter;
    attune__cu_result result = launch_tiles(device, kernel, grid, queue->stream, parameters);
    if (result == CU_SUCCESS && attune__cuda_take_last_columns(program, call, &arguments))
        result = launch_tiles(device, kernel, grid, queue->stream, parameters);
    status = attune__cuda_check(device, result, "cuLaunchKernel");
    return attune__cuda_queue_end(queue, status, value, call->seconds);
}

attune_status attune__cuda_forward(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                   uint64_t *value)
{
    attune__cuda_device *device = attune__cuda_of(program->device);
    ATTUNE__TRY(attune__cuda_enter(device));
    const attune_status status = (call->serving ? attune__cuda_serve : launch)(
        (const attune__cuda_program *)program, (attune__cuda_queue *)queue, call, value);
    attune__cuda_leave(device);
    return status;
}
