/* SPDX-License-Identifier: MIT */
#include "opencl/program.h"

#include "base/alloc.h"

_Static_assert(ATTUNE_OPENCL_SYMBOLS == ATTUNE_EXPR_MAX_SYMBOLS, "tables have every symbol");

attune_opencl_tensor attune__opencl_tensor_describe(const attune_tensor *tensor, uint64_t alignment, uint32_t flag,
                                                    uint32_t *flags)
{
    attune_opencl_tensor t = {0};
    if (!tensor->buffer)
        return t;
    const int64_t bytes = (int64_t)attune_dtype_size(tensor->dtype);
    t.offset = (int64_t)(attune__opencl_buffer_of(tensor->buffer)->offset + tensor->offset);
    t.stride_b = tensor->size[0] == 1 ? 0 : tensor->stride[0] * bytes; /* a batch of one serves all */
    t.stride_h = tensor->stride[1] * bytes;
    t.stride_row = tensor->stride[2] * bytes;
    if ((uint64_t)(t.offset | t.stride_b | t.stride_h | t.stride_row) % alignment == 0)
        *flags |= flag;
    return t;
}

static void describe_mask(const attune__forward *call, attune_opencl_arguments *a)
{
    const attune_mask *mask = call->mask;
    const attune__opencl_mask *uploaded = (const attune__opencl_mask *)call->device_mask;
    const uint32_t heads = mask->stored_heads > 1, batch = mask->stored_batch > 1;
    const uint32_t stored_heads = (uint32_t)mask->stored_heads;
    a->kv_block = mask->kv_block;
    a->inner_q_block = mask->q_block;
    a->mask_rows = uploaded->rows;
    a->mask_columns = uploaded->columns;
    a->mask_table = uploaded->table;
    a->mask_rows_h = heads * (uint32_t)mask->q_blocks;
    a->mask_rows_b = batch * (uint32_t)mask->q_blocks * stored_heads;
    a->mask_columns_h = heads * (uint32_t)mask->kv_blocks;
    a->mask_columns_b = batch * (uint32_t)mask->kv_blocks * stored_heads;
}

void attune__opencl_arguments_describe(const attune__forward *call, uint64_t o_alignment, uint32_t kv_block,
                                       uint32_t inner_q_block, attune_opencl_arguments *arguments)
{
    attune_opencl_arguments *a = arguments;
    a->q = attune__opencl_tensor_describe(&call->q, 16, ATTUNE_OPENCL_ALIGNED_Q, &a->flags);
    a->k = attune__opencl_tensor_describe(&call->k, 16, ATTUNE_OPENCL_ALIGNED_K, &a->flags);
    a->v = attune__opencl_tensor_describe(&call->v, 16, ATTUNE_OPENCL_ALIGNED_V, &a->flags);
    a->o = attune__opencl_tensor_describe(&call->o, o_alignment, ATTUNE_OPENCL_ALIGNED_O, &a->flags);
    a->lse = attune__opencl_tensor_describe(&call->lse, 1, ATTUNE_OPENCL_HAS_LSE, &a->flags);
    a->row_max = attune__opencl_tensor_describe(&call->row_max, 1, ATTUNE_OPENCL_HAS_ROW_MAX, &a->flags);
    if (call->sinks.buffer) {
        a->sinks = (int64_t)(attune__opencl_buffer_of(call->sinks.buffer)->offset + call->sinks.offset);
        a->sinks_h = call->sinks.stride[0] * (int64_t)sizeof(float);
        a->flags |= ATTUNE_OPENCL_HAS_SINKS;
    }
    a->batch = (uint32_t)call->batch;
    a->kv_batch = (uint32_t)call->k.size[0];
    a->heads = (uint32_t)call->heads;
    a->kv_heads = (uint32_t)call->kv_heads;
    a->q_len = (uint32_t)call->q_len;
    a->kv_len = (uint32_t)call->kv_len;
    a->scale = (float)call->scale;
    a->kv_block = kv_block;
    a->inner_q_block = inner_q_block;
    if (call->mask)
        describe_mask(call, a);
}

void attune__opencl_arguments_partition(const attune__partition *partition, attune_opencl_arguments *arguments)
{
    arguments->head_step = partition->head_step;
    arguments->q_step = partition->q_step;
    arguments->head_chunks = (uint32_t)partition->head_chunks;
    arguments->q_block = partition->q_block;
    arguments->in_block = partition->in_block;
    arguments->section = partition->section;
    arguments->q_chunks = (uint32_t)partition->q_chunks;
    arguments->splits = partition->splits;
}

void attune__opencl_table_of(const attune__forward *call, const attune_expr *expr, const attune_tensor *captures,
                             const attune__value *parameters, const int64_t *sums, attune_opencl_table *table)
{
    *table = (attune_opencl_table){
        .q_len = (int32_t)call->q_len,
        .kv_len = (int32_t)call->kv_len,
        .group = (int32_t)(call->heads / call->kv_heads),
    };
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        if (expr->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE) {
            table->parameters[i] = parameters[i].i;
            continue;
        }
        const attune_tensor *tensor = &captures[i];
        const int64_t bytes = (int64_t)attune_dtype_size(tensor->dtype);
        attune_opencl_capture *capture = &table->captures[i];
        capture->offset = (int64_t)(attune__opencl_buffer_of(tensor->buffer)->offset + tensor->offset);
        capture->sums = sums ? sums[i] : -1;
        for (uint32_t d = 0; d < tensor->rank; d++) {
            /* Indices are i32: elements past them are never read. */
            capture->size[d] = tensor->size[d] > INT32_MAX ? (uint32_t)INT32_MAX + 1 : (uint32_t)tensor->size[d];
            /* The stride of a dimension of one entry is not used, and may not fit in bytes. */
            capture->stride[d] = tensor->size[d] > 1 ? tensor->stride[d] * bytes : 0;
        }
    }
}

void attune__opencl_set_forward(attune__opencl_setter *setter, const attune_opencl_arguments *arguments,
                                const attune__forward *call)
{
    const attune__opencl_mask *mask = (const attune__opencl_mask *)call->device_mask;
    attune__opencl_set(setter, sizeof *arguments, arguments);
    attune__opencl_set_memory(setter, call->q.buffer);
    attune__opencl_set_memory(setter, call->k.buffer);
    attune__opencl_set_memory(setter, call->v.buffer);
    attune__opencl_set_memory(setter, call->o.buffer);
    attune__opencl_set_memory(setter, call->lse.buffer);
    attune__opencl_set_memory(setter, call->row_max.buffer);
    attune__opencl_set_memory(setter, call->sinks.buffer);
    attune__opencl_set_memory(setter, call->workspace);
    attune__opencl_set_memory(setter, mask ? mask->buffer : NULL);
    const attune__cl_memory data = mask ? mask->data : setter->device->nothing;
    attune__opencl_set(setter, sizeof data, &data); /* NOLINT(bugprone-sizeof-expression): a handle */
}

void attune__opencl_set_captures(attune__opencl_setter *setter, const attune_expr *expr, const attune_tensor *captures)
{
    for (uint32_t i = 0; expr && i < expr->symbol_count; i++)
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            attune__opencl_set_memory(setter, captures ? captures[i].buffer : NULL);
}
