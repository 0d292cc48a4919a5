/* SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "opencl/program.h"

_Static_assert(ATTUNE_OPENCL_SYMBOLS == ATTUNE_EXPR_MAX_SYMBOLS, "tables have every symbol");

static int64_t place_of(const attune_tensor *tensor)
{
    return (int64_t)(attune__opencl_buffer_of(tensor->buffer)->offset + tensor->offset);
}

#define NAME(x)    attune__opencl_##x
#define TENSOR     attune_opencl_tensor
#define ARGUMENTS  attune_opencl_arguments
#define SUMS       attune_opencl_sums
#define PLACE      offset
#define PLACE_TYPE int64_t
#include "arguments/call_tmpl.h"

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
        a->sinks = place_of(&call->sinks);
        a->sinks_h = call->sinks.stride[0] * (int64_t)sizeof(float);
        a->flags |= ATTUNE_OPENCL_HAS_SINKS;
    }
    describe_sizes(call, kv_block, inner_q_block, a);
    if (call->mask) {
        const attune__opencl_mask *uploaded = (const attune__opencl_mask *)call->device_mask;
        a->mask_rows = uploaded->rows;
        a->mask_columns = uploaded->columns;
        a->mask_table = uploaded->table;
    }
}

attune_opencl_capture attune__opencl_capture_of(attune_dtype dtype, uint32_t rank, const int64_t *size,
                                                const int64_t *stride, int64_t offset)
{
    const int64_t bytes = (int64_t)attune_dtype_size(dtype);
    attune_opencl_capture capture = {.offset = offset, .sums = -1};
    for (uint32_t d = 0; d < rank; d++) {
        /* Indices are i32: elements past them are never read. */
        capture.size[d] = size[d] > INT32_MAX ? (uint32_t)INT32_MAX + 1 : (uint32_t)size[d];
        /* The stride of a dimension of one entry is not used, and may not fit in bytes. */
        capture.stride[d] = size[d] > 1 ? stride[d] * bytes : 0;
    }
    return capture;
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
        table->captures[i] =
            attune__opencl_capture_of(tensor->dtype, tensor->rank, tensor->size, tensor->stride, place_of(tensor));
        if (sums)
            table->captures[i].sums = sums[i];
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
